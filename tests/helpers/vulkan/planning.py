"""What devices keep of the calls of operations, and what these send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

import vkpar
from vkpar.ops.call.call import Call


class Sent(NamedTuple):
    """A dispatch that was not sent: its kernel, numbers of bindings, of bytes pushed and of work-groups, constants."""

    name: str
    bindings: int
    push_nbytes: int
    groups: int
    constants: tuple[int, ...]


def forget(device: vkpar.Device) -> None:
    """Have the next calls go the long way: those that a test made choose other kernels would run by what is kept."""
    device.plans.known.clear()
    device.plans.recipes.clear()


def dispatches(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """Have calls list their dispatches instead of sending them: no device has to run the kernels."""
    sent: list[Sent] = []

    def dispatch(
        self: Any,
        name: str,
        arrays: Sequence[Any],
        ranges: Sequence[Any],
        push: bytes,
        groups: int,
        constants: tuple[int, ...] = (),
        cost_ns: int = 0,
        *,
        layers: int = 1,
    ) -> None:
        sent.append(Sent(name, len(ranges), len(push), groups * layers, constants))
        self.forget()

    monkeypatch.setattr(Call, "dispatch", dispatch)
    return sent
