"""When waits spin before they block."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from vkpar import env
from vkpar.vulkan.queue import spin_ns


def devices(*cpus: bool) -> Any:
    return [SimpleNamespace(is_cpu=is_cpu) for is_cpu in cpus]


@pytest.mark.parametrize(
    ("cores", "cpus", "spins"),
    [(4, (False, False), True), (3, (False, False), True), (2, (False, False), False), (64, (False, True), False)],
)
def test_where_cores_are_to_spare(
    monkeypatch: pytest.MonkeyPatch, cores: int, cpus: tuple[bool, ...], spins: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    with env.override(spin_us=None):
        assert bool(spin_ns(devices(*cpus), len(cpus))) == spins
    with env.override(spin_us=7):
        assert spin_ns(devices(*cpus), len(cpus)) == 7000
