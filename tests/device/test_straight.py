"""Writes and reads of arrays whose memory the host sees, and what goes through the ring all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from helpers.vulkan.parking import parked

import vkpar
from vkpar import OutOfMemoryError
from vkpar.vulkan import api
from vkpar.vulkan.memory import mapped, memtypes
from vkpar.vulkan.memory.memory import Allocator
from vkpar.vulkan.staging import Staging

RING = 1 << 16
Reopen = Callable[..., vkpar.Device]


@pytest.fixture
def small(device: vkpar.Device, reopen: Reopen) -> vkpar.Device:
    """The device with a small ring, which large writes and all reads go past."""
    if not memtypes.is_mapped(device.info, "device", memtypes.choose(device.info, "device")):
        pytest.skip("the host does not see this device's arrays")
    return reopen(ring_bytes=RING)


def count_staged(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what will hold the names of the copies that go through the ring."""
    seen: list[str] = []
    for name in ("upload", "download"):
        staged = getattr(device.logical.staging, name)
        monkeypatch.setattr(
            device.logical.staging, name, lambda *given, name=name, staged=staged: (seen.append(name), staged(*given))
        )
    return seen


def test_large_writes_and_all_reads_go_past_the_ring(small: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = count_staged(small, monkeypatch)
    for nbytes, ways in ((1, ["upload"]), (RING, ["upload"]), (RING + 1, []), (5 * RING + 3, [])):
        want = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
        assert np.array_equal(small.array(want).numpy(), want)
        assert staged == ways
        staged.clear()


def test_a_ring_in_host_memory_can_be_asked_for(
    small: vkpar.Device, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = count_staged(made := reopen(ring="host", ring_bytes=RING), monkeypatch)
    want = np.arange(RING, dtype=np.int32)
    assert np.array_equal(made.array(want).numpy(), want)
    assert staged == ["upload", "download"]
    assert set(made.logical.staging.memory_types) == {"upload", "readback"}
    assert made.logical.staging.upload_kind == memtypes.HOST


def test_copies_wait_for_the_work_before_them_and_are_seen_by_the_work_after(small: vkpar.Device) -> None:
    ones = np.ones((RING, 3), np.float32)
    a, total = small.array(ones), small.zeros(ones.shape)
    for value in range(10):
        before = vkpar.add(a, a)
        a.write(ones * value)  # not before that addition has read it
        total = vkpar.add(total, a)
        assert np.all(before.numpy() == (2 if value == 0 else 2 * value - 2))
    assert np.all(total.numpy() == sum(range(10)))


def test_small_writes_do_not_wait(small: vkpar.Device) -> None:
    a, want = small.zeros(2 * RING, np.uint8), np.arange(RING, dtype=np.uint8)
    with parked(small) as release:
        a[:RING].write(want)
        reader = threading.Thread(target=lambda: found.append(a.numpy()))
        found: list[np.ndarray] = []
        reader.start()
        reader.join(0.1)
        assert not found
        release()
        reader.join(60)
    assert np.array_equal(found[0][:RING], want)


def test_arrays_over_several_buffers(small: vkpar.Device, reopen: Reopen) -> None:
    cut = reopen(ring_bytes=RING, max_buffer=RING)
    want = np.random.default_rng(1).integers(0, 1 << 30, (7, RING // 8 + 1), np.int32)
    a = cut.array(want)
    assert len(a.memory) > 1
    assert np.array_equal(a.numpy(), want)
    a[2:6].write(want[1:5])
    assert np.array_equal(a[1:7].numpy(), np.concatenate([want[1:2], want[1:5], want[6:]]))


def test_memory_is_not_freed_while_the_host_copies(small: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    want = np.arange(1 << 18, dtype=np.int32)
    a = small.array(want)
    copy, live = mapped._copy, api.load().live

    def close_first(target: mapped._Bytes, source: mapped._Bytes) -> None:
        a.close()
        blocks = live()["DeviceMemory"]
        small.trim()
        assert live()["DeviceMemory"] == blocks
        copy(target, source)

    monkeypatch.setattr(mapped, "_copy", close_first)
    assert np.array_equal(a.numpy(), want)
    assert small.memory().arrays == 0


@pytest.mark.parametrize("distance", [0, 1, 16, 511, 512, 4095])
@pytest.mark.parametrize("nbytes", [0, 1, mapped._PIECE, 2 * mapped._PIECE + 7])
def test_copies_on_the_host(distance: int, nbytes: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    room = np.zeros(nbytes + 3 * 4096, np.uint8)
    start = (source.ctypes.data + distance - room.ctypes.data) % 4096 + 4096
    mapped._copy(room[start : start + nbytes], source)
    assert np.array_equal(room[start : start + nbytes], source)
    assert not room[:start].any()
    assert not room[start + nbytes :].any()


def test_uploads_take_host_memory_where_the_device_is_full(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []
    allocate = Allocator.allocate

    def full(self: Allocator, nbytes: int, kind: str, **how: object) -> object:
        kinds.append(kind)
        if kind == memtypes.UPLOAD:
            raise OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkAllocateMemory")
        return allocate(self, nbytes, kind, **how)  # type: ignore[arg-type]

    logical = device.logical
    a = device.zeros(RING, np.uint8)
    monkeypatch.setattr(Allocator, "allocate", full)
    staging = Staging(logical.allocator, logical.transfer, RING)
    staging.upload(np.full(RING, 7, np.uint8), a.ranges())
    logical.synchronize()
    assert kinds == [memtypes.UPLOAD, memtypes.HOST]
    monkeypatch.undo()
    assert np.all(a.numpy() == 7)
    logical.allocator.release(staging._rings[memtypes.UPLOAD]._buffer)
