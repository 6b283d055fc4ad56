"""The sub-allocator on every driver."""

from __future__ import annotations

import gc
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.process.threads import in_threads
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, OutOfMemoryError, UnsupportedError, env
from vkpar.device import living
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.memory.hostmemory import HostArena
from vkpar.vulkan.memory.memory import Allocator

pytestmark = pytest.mark.device
KINDS = ["device", "upload", "readback"]


def make(device: vkpar.Device) -> Allocator:
    """Return an allocator of its own on an open device."""
    logical = device.logical
    return Allocator(logical.handle, device.info, (logical.compute.family, logical.transfer.family))


@pytest.fixture
def allocator(device: vkpar.Device) -> Iterator[Allocator]:
    """An empty allocator; everything it made must be gone after its close."""
    device.array([1.0]).numpy()  # the device's own rings and frames are made on first use
    device.zeros(3).numpy()
    trim_all()  # what devices keep goes where memory runs out
    before = api.load().live()
    made = make(device)
    yield made
    made.close()
    trim_all()
    assert api.load().live() == before


def trim_all() -> None:
    """Free what open devices keep for later."""
    for opened in list(living):
        if not opened.closed:
            opened.trim()


def check_apart(buffers: list[Buffer]) -> None:
    """Check that no two buffers share a byte, and that each is aligned and inside its block."""
    by_block: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        assert buffer.offset % ALIGNMENT == 0
        assert buffer.reserved >= max(buffer.nbytes, 1)
        assert buffer.offset + buffer.reserved <= buffer.piece.block.nbytes
        by_block.setdefault(id(buffer.piece.block), []).append(buffer)
    for group in by_block.values():
        group.sort(key=lambda item: item.offset)
        for first, second in itertools.pairwise(group):
            assert first.offset + first.reserved <= second.offset


def arrays_are_mapped(device: vkpar.Device) -> bool:
    """Say whether the host sees the device's arrays, so that nothing is read through a ring."""
    return memtypes.is_mapped(device.info, "device", memtypes.choose(device.info, "device"))


SIZES = st.integers(0, 5000) | st.integers(0, 1 << 22)


@given(st.lists(st.tuples(st.booleans(), SIZES, st.sampled_from(KINDS)), max_size=60), st.randoms())
def test_any_sequence(device: vkpar.Device, actions: list[tuple[bool, int, str]], random: Any) -> None:
    before = api.load().live()
    allocator, held = make(device), list[Buffer]()
    for give, nbytes, kind in actions:
        if give and held:
            allocator.release(held.pop(random.randrange(len(held))))
        else:
            held.append(allocator.allocate(nbytes, kind, purpose="arrays"))
            assert held[-1].nbytes == nbytes
            assert bool(held[-1].mapped) == (kind != "device" or arrays_are_mapped(device))
        check_apart(held)
        assert allocator.used == sum(buffer.reserved for buffer in held)
    random.shuffle(held)
    for buffer in held:
        allocator.release(buffer)
    assert allocator.used == 0
    assert allocator.room().fragmentation == 0
    allocator.trim()
    assert allocator.room().free == 0
    assert api.load().live() == before
    allocator.close()
    assert api.load().live() == before


def take(allocator: Allocator, nbytes: int, kind: str = "device") -> Buffer:
    """Allocate for arrays."""
    return allocator.allocate(nbytes, kind, purpose="arrays")


def test_neighbours_coalesce(allocator: Allocator) -> None:
    pieces = [take(allocator, 1000) for _ in range(4)]
    block = pieces[0].piece.block
    for index in (0, 2, 1, 3):
        allocator.release(pieces[index])
    assert block.free.pieces() == [(0, block.nbytes)]
    assert take(allocator, 4096).offset == 0


def test_freed_room_is_taken_first(allocator: Allocator) -> None:
    pieces = [take(allocator, 1024) for _ in range(3)]
    allocator.release(pieces[1])
    allocator.release(pieces[1])  # a second time does nothing
    assert take(allocator, 512).offset == pieces[1].offset
    assert take(allocator, 512).offset == pieces[1].offset + 512
    assert take(allocator, 512).offset > pieces[2].offset


def test_large_buffers_get_memory_of_their_own_which_a_trim_gives_back(allocator: Allocator) -> None:
    memories = api.load().live().get("DeviceMemory", 0)
    big = take(allocator, 65 << 20)
    assert big.piece.block.dedicated
    assert api.load().live()["DeviceMemory"] == memories + 1
    allocator.release(big)
    again = take(allocator, 64 << 20)
    assert again.handle == big.handle
    allocator.release(again)
    assert allocator.trim() == allocator.trimmable + (65 << 20)
    assert api.load().live().get("DeviceMemory", 0) == memories


def test_memory_for_the_host_is_mapped_in_place(allocator: Allocator) -> None:
    ffi = api.load().ffi
    first, second = take(allocator, 1000, "upload"), take(allocator, 1000, "upload")
    assert second.mapped - first.mapped == second.offset - first.offset
    view = ffi.buffer(ffi.cast("char*", second.mapped), 1000)
    view[:] = bytes(range(250)) * 4
    assert bytes(view[:4]) == b"\0\1\2\3"


def test_ranges(allocator: Allocator) -> None:
    take(allocator, 10)
    buffer = take(allocator, 1000)
    assert (buffer.range().offset, buffer.range().nbytes) == (buffer.offset, 1000)
    part = buffer.range(100, 50)
    assert (part.offset, part.nbytes) == (buffer.offset + 100, 50)
    assert buffer.range(900).nbytes == 100


def test_more_than_the_driver_allows(device: vkpar.Device, allocator: Allocator) -> None:
    most = device.limits.max_allocation
    with pytest.raises(UnsupportedError, match="maxMemoryAllocationSize"):
        take(allocator, most + 1)
    assert allocator.used == 0


class Refusing:
    """The loader, with vkAllocateMemory failing."""

    def __init__(self, real: Any, result: int) -> None:
        self._real, self._result = real, result

    def __getattr__(self, name: str) -> Any:
        if name == "vkAllocateMemory":
            return lambda *arguments: self._result
        return getattr(self._real, name)


@pytest.mark.parametrize("result", [-1, -2, -10])
def test_no_memory_left(
    device: vkpar.Device, allocator: Allocator, result: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vk = api.load()
    before = vk.live()
    with monkeypatch.context() as patch:
        patch.setattr(vk, "lib", Refusing(vk.lib, result))
        with pytest.raises(OutOfMemoryError) as caught:
            take(allocator, 100)
        with pytest.raises(OutOfMemoryError, match=r"100000000 bytes|vkAllocateMemory"):
            device.empty(100_000_000, "uint8")
    assert isinstance(caught.value, MemoryError)
    assert caught.value.call == "vkAllocateMemory"
    assert device.name in str(caught.value)
    assert vk.live() == before
    assert allocator.used == 0
    allocator.release(take(allocator, 100))
    assert device.zeros(3).numpy().sum() == 0


@pytest.mark.parametrize("alignment", [1, 4096, 65536])
@pytest.mark.parametrize("nbytes", [1, 4096, 100_000])
def test_host_arenas_are_aligned(device: vkpar.Device, nbytes: int, alignment: int) -> None:
    arena = HostArena(nbytes, alignment)
    assert arena.nbytes >= nbytes
    assert arena.nbytes % max(alignment, 4096) == 0
    assert arena.address % max(alignment, 4096) == 0
    view = arena.view(0, arena.nbytes)
    view[0:1] = b"\1"
    view[arena.nbytes - 1 : arena.nbytes] = b"\2"
    assert (view[0], view[arena.nbytes - 1]) == (b"\1", b"\2")
    del view
    arena.close()
    arena.close()


def test_threads_share_an_allocator(allocator: Allocator) -> None:
    def work(seed: int) -> None:
        chance, held = random.Random(seed), list[Buffer]()
        for _ in range(300):
            if held and chance.random() < 0.4:
                allocator.release(held.pop(chance.randrange(len(held))))
            elif chance.random() < 0.1:
                allocator.trim()
            else:
                held.append(take(allocator, int(2 ** chance.uniform(0, 20))))
        check_apart(list(allocator._live.copy()))
        for buffer in held:
            allocator.release(buffer)

    in_threads(work)
    assert (allocator.used, allocator.room().fragmentation) == (0, 0)


# ---- accounting ----


@pytest.fixture
def fresh(device: vkpar.Device) -> Iterator[vkpar.Device]:
    """Open the device anew, so that nothing is allocated on it; all its handles must be gone after its close."""
    trim_all()
    before = api.load().live()
    (made,) = vkpar.open_devices(device.info.index)
    yield made
    made.close()
    trim_all()
    assert api.load().live() == before


def test_memory_of_a_device(fresh: vkpar.Device) -> None:
    empty = fresh.memory()
    assert (empty.used, empty.cached, empty.buffers, empty.blocks, empty.arrays) == (0, 0, 0, 0, 0)
    assert [heap.total for heap in empty.heaps] == [heap.nbytes for heap in fresh.info.heaps]
    a = fresh.array([1.0] * 1000, "float32")
    assert a.numpy().sum() == 1000
    full = fresh.memory()
    assert (full.arrays, full.buffers, full.slots) == (4096, 2 if arrays_are_mapped(fresh) else 3, 0)
    assert 0 < full.staging <= 2 * env.get().ring_bytes
    assert full.used == full.arrays + full.staging
    assert full.cached >= full.largest_free > 0
    assert full.limit == 0
    vkpar.add(a, a)
    assert fresh.memory().pipelines == 1
    for heap, found in zip(full.heaps, fresh.info.heaps, strict=True):
        assert (heap.budget is None) == (found.budget is None) == (heap.process_used is None)
        assert heap.budget is None or 0 < heap.budget <= heap.total
        assert heap.imported == 0
    plain = json.loads(json.dumps(full.as_dict()))
    assert plain["arrays"] == 4096
    assert sum(heap["used"] for heap in plain["heaps"]) == plain["used"] == full.used


def test_budgets_are_read_afresh(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkpar.vulkan import device as module

    index = fresh.info.memory_types[0][1]
    said = iter([1000, 900])

    def read(info: vkpar.DeviceInfo) -> tuple[Any, ...]:
        budget = next(said)
        return tuple(replace(heap, budget=budget, used=1) for heap in info.heaps)

    monkeypatch.setattr(module, "read_heaps", read)
    assert [fresh.memory().heaps[index].budget for _ in range(2)] == [1000, 900]


def test_freed_memory_is_kept_and_trimmed(fresh: vkpar.Device) -> None:
    made = [fresh.zeros(1 << 20, "uint8") for _ in range(3)]
    fresh.synchronize()
    blocks = fresh.memory().blocks
    del made
    gc.collect()
    kept = fresh.memory()
    assert (kept.arrays, kept.blocks, kept.fragmentation) == (0, blocks, 0)
    assert kept.trimmable == kept.cached >= 3 << 20
    assert fresh.trim() == kept.trimmable
    assert (fresh.memory().cached, fresh.memory().blocks) == (0, 0)
    fresh.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        fresh.memory()


@pytest.mark.parametrize("transport", ["staged", "mapped"])
def test_slots_are_booked(device: vkpar.Device, transport: str) -> None:
    devices = vkpar.open_devices(f"{device.info.index}*2")
    with vkpar.Communicator(devices, transport=transport):
        for memory in [item.memory() for item in devices]:
            imported = sum(heap.imported for heap in memory.heaps)
            assert memory.slots > 0
            assert imported == (memory.slots if transport == "staged" else 0)
    for item in devices:
        assert item.memory().slots == sum(heap.imported for heap in item.memory().heaps) == 0
        item.close()


# ---- out of memory ----


def test_out_of_memory_names_what_there_is(fresh: vkpar.Device) -> None:
    with env.override(max_memory=1 << 20):
        held = [fresh.zeros((3, 100)), fresh.zeros(100_000, "uint8"), fresh.zeros(7), fresh.zeros((2, 50_000), "int16")]
        assert fresh.memory().limit == 1 << 20
        with pytest.raises(OutOfMemoryError) as caught:
            fresh.empty((1000, 300))
        assert fresh.memory().arrays <= 1 << 20
        del held[1]
        gc.collect()
        fresh.empty(700_000, "uint8")
    message = str(caught.value)
    for part in ("VKPAR_MAX_MEMORY=1048576", "1200000 bytes", fresh.name, "heap ", " bytes and ", "keeps"):
        assert part in message
    users = message.split("largest users: ")[1]
    assert users.startswith("array (2, 50000) int16: 200000 bytes; array (100000,) uint8: 100000 bytes; array (3, 100)")
    assert users.count("array") == 3
    assert fresh.zeros(1 << 21, "uint8").nbytes > 1 << 20


def test_what_is_about_to_be_given_back_is_waited_for(fresh: vkpar.Device) -> None:
    with env.override(max_memory=3 << 20):
        for value in range(20):
            made = fresh.zeros(1 << 20, "uint8")
            made = fresh.array([value] * 256, "float32")  # drops the zeros while they may be pending
            assert made.numpy()[3] == value


def test_dropped_arrays_are_released_before_the_limit_is_looked_at(fresh: vkpar.Device) -> None:
    with env.override(max_memory=1 << 20):
        for _ in range(10):
            kept = fresh.empty(100_000)  # two of them fit, three do not
        assert kept.nbytes <= fresh.memory().arrays <= 1 << 20


class Scarce:
    """The loader, with so many bytes for vkAllocateMemory; counts what it refused."""

    def __init__(self, real: Any, left: int) -> None:
        self._real, self.left, self.refused = real, left, 0

    def __getattr__(self, name: str) -> Any:
        return self._allocate if name == "vkAllocateMemory" else getattr(self._real, name)

    def _allocate(self, device: Any, info: Any, *rest: Any) -> int:
        if info.allocationSize > self.left:
            self.refused += 1
            return -2
        return int(self._real.vkAllocateMemory(device, info, *rest))


def test_the_cache_is_freed_before_memory_runs_out(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    vk = api.load()
    (other,) = vkpar.open_devices(fresh.info.index)
    for item in (fresh, other):
        item.zeros(1 << 20, "uint8")
        item.synchronize()
    gc.collect()
    assert min(fresh.memory().trimmable, other.memory().trimmable) > 0
    with monkeypatch.context() as patch:
        scarce = Scarce(vk.lib, 1 << 20)
        patch.setattr(vk, "lib", scarce)
        small = fresh.zeros(300_000, "uint8")  # taken from what is kept
        assert scarce.refused == 0
        large = fresh.zeros(100_000)  # room for it, but not for a block of its class
        assert scarce.refused == 0
        with pytest.raises(OutOfMemoryError, match=r"largest users: array \(100000,\) float32"):
            fresh.empty(40 << 20, "uint8")
        del small, large
        assert scarce.refused > 0
        assert other.memory().trimmable == 0
        fresh.synchronize()
        gc.collect()
        assert fresh.trim() > 0
        assert fresh.zeros(100_000, "float64").size == 100_000  # in a block of its own size
    other.close()


# ---- many ----


def test_ten_thousand_arrays_and_views(fresh: vkpar.Device, rng: np.random.Generator) -> None:
    """Random arrays come and go; each holds a value of its own to its end, and nothing overlaps or leaks."""
    live = fresh.logical.allocator._live
    held: list[tuple[vkpar.Array, int]] = []
    worst, idle = 0.0, []
    with env.override(debug="memory"):
        for turn in range(10_000):
            if held and (rng.random() < 0.5 or len(held) > 200):
                array, value = held.pop(int(rng.integers(len(held))))
                if value and turn % 10 == 0:
                    assert set(np.unique(array.numpy())) == {value}
            elif held and rng.random() < 0.2:
                array, value = held[int(rng.integers(len(held)))]
                held.append((array[len(array) // 2 :], value))
            else:
                count = int(2 ** rng.uniform(0, 18))
                value = turn if turn % 20 == 0 else 0  # the others are never written
                held.append((fresh.array(np.full(count, value, np.int32)) if value else fresh.empty(count), value))
            if turn % 500 == 499:
                check_apart(list(live))
                fresh.synchronize()
                memory = fresh.memory()
                worst = max(worst, memory.fragmentation)
                idle.append((memory.cached - memory.trimmable) / (memory.used + memory.cached - memory.trimmable))
    memory = fresh.memory()
    assert memory.arrays == sum(buffer.reserved for buffer in live if buffer.purpose == "arrays")
    print(f"{fresh.name}: {memory.arrays} bytes in arrays; fragmentation {worst:.2f} at most, {max(idle):.2f} idle")
    assert worst < 0.75
    assert max(idle) < 0.7  # of a few MiB, in at least one block a class
    assert all(set(np.unique(array.numpy())) == {value} for array, value in held if value and array.size)
    held.clear()
    del array
    gc.collect()
    fresh.synchronize()
    assert (fresh.memory().arrays, fresh.memory().fragmentation) == (0, 0)
    fresh.trim()
    assert fresh.memory().blocks <= 2  # the rings'


def test_new_arrays_are_poisoned_where_that_is_asked_for(fresh: vkpar.Device) -> None:
    with env.override(debug="slots,memory"):
        assert np.isnan(fresh.empty(1001, "float16").numpy()).all()
        assert (fresh.empty((3, 5), "int8").numpy() == -1).all()
        assert fresh.zeros(7).numpy().sum() == 0
    assert fresh.memory().arrays >= 0


# ---- plans ----


def test_plans_come_true(fresh: vkpar.Device) -> None:
    arrays = [((1000, 1000), "float32"), ((77,), "bfloat16"), ((5, 5), "int8", 0), ((300_000,), "float16"), (0, "int8")]
    (plan,) = vkpar.plan_memory([fresh], arrays)
    (listed,) = vkpar.plan_memory([fresh.info], arrays)
    assert plan.fits
    assert (plan.reserved, plan.blocks, plan.block_nbytes) == (listed.reserved, listed.blocks, listed.block_nbytes)
    held = [fresh.empty(array[0], array[1]) for array in arrays]
    memory = fresh.memory()
    assert (memory.arrays, memory.blocks) == (plan.reserved, plan.blocks)
    assert memory.used + memory.cached >= plan.block_nbytes
    assert memory.heaps[plan.heap].used == plan.reserved == sum(-(-max(a.nbytes, 0) // 256) * 256 for a in held)
    with env.override(max_memory=plan.reserved):
        (full,) = vkpar.plan_memory([fresh], [(1, "int8")])
    assert (full.limit, full.fits) == (0, False)
