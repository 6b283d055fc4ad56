"""Copies of many bytes by the kernel that GPUs take, run on every driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar.vulkan import bulk

pytestmark = pytest.mark.device


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have CPU drivers take the kernel, too; the sizes that it copied."""
    taken: list[int] = []
    monkeypatch.setattr(bulk, "suits", lambda info, nbytes: nbytes >= bulk.LEAST_NBYTES)
    plain = bulk.Copies.copy_part

    def counted(copies: bulk.Copies, *part: Any) -> bool:
        done = plain(copies, *part)
        if done:
            taken.append(part[4])
        return done

    monkeypatch.setattr(bulk.Copies, "copy_part", counted)
    return taken


@pytest.mark.parametrize("count", [1 << 16, (1 << 16) + 4, 100_003, 1 << 20])
def test_a_large_copy_moves_every_byte(device: vkpar.Device, kernels: list[int], count: int) -> None:
    wanted = np.arange(count, dtype=np.uint32)
    source, target = device.array(wanted), device.empty(count + 64, "uint32")
    target.write(np.full(count + 64, 7, np.uint32))
    target[:count].copy_from(source)
    assert np.array_equal(target[:count].numpy(), wanted)
    assert np.all(target[count:].numpy() == 7)
    assert kernels == ([4 * count] if count % 4 == 0 else [])


def test_a_view_that_begins_anywhere_goes_the_plain_way(device: vkpar.Device, kernels: list[int]) -> None:
    wanted = np.arange(1 << 17, dtype=np.uint32)
    source, target = device.array(wanted), device.zeros(1 << 17, "uint32")
    target[1:].copy_from(source[:-1])
    assert np.array_equal(target.numpy()[1:], wanted[:-1])
    assert kernels == []


def test_a_chain_of_copies_is_ordered(device: vkpar.Device, kernels: list[int]) -> None:
    wanted = np.arange(1 << 17, dtype=np.float32)
    a = device.array(wanted)
    for _ in range(5):
        a = vkpar.add(a.copy(), a)
    assert np.array_equal(a.numpy(), wanted * 32)
    assert len(kernels) == 5
