"""The sub-allocator on every driver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import OutOfMemoryError, UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.buffer import Buffer
from vkpar.vulkan.memory import ALIGNMENT, Allocator, HostArena, round_up

pytestmark = pytest.mark.device
PURPOSES = ["device", "upload", "readback"]


def make(device: vkpar.Device) -> Allocator:
    """Return an allocator of its own on an open device."""
    logical = device.logical
    return Allocator(logical.handle, device.info, (logical.compute.family, logical.transfer.family))


@pytest.fixture
def allocator(device: vkpar.Device) -> Iterator[Allocator]:
    """An empty allocator; everything it made must be gone after its close."""
    device.array([1.0]).numpy()  # the device's own rings and frames are made on first use
    device.zeros(3).numpy()
    before = api.load().live()
    made = make(device)
    yield made
    made.close()
    assert api.load().live() == before


def check_apart(buffers: list[Buffer]) -> None:
    """Check that no two buffers share a byte, and that each is aligned and inside its block."""
    by_block: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        assert buffer.offset % ALIGNMENT == 0
        assert buffer.reserved >= max(buffer.nbytes, 1)
        assert buffer.offset + buffer.reserved <= buffer.block.nbytes
        by_block.setdefault(id(buffer.block), []).append(buffer)
    for group in by_block.values():
        group.sort(key=lambda item: item.offset)
        for first, second in itertools.pairwise(group):
            assert first.offset + first.reserved <= second.offset


SIZES = st.integers(0, 5000) | st.integers(0, 1 << 22)


@given(st.lists(st.tuples(st.booleans(), SIZES, st.sampled_from(PURPOSES)), max_size=60), st.randoms())
def test_any_sequence(device: vkpar.Device, actions: list[tuple[bool, int, str]], random: Any) -> None:
    before = api.load().live()
    allocator, held = make(device), list[Buffer]()
    for give, nbytes, purpose in actions:
        if give and held:
            allocator.release(held.pop(random.randrange(len(held))))
        else:
            held.append(allocator.allocate(nbytes, purpose))
            assert held[-1].nbytes == nbytes
            assert bool(held[-1].mapped) == (purpose != "device")
        check_apart(held)
        assert allocator.used == sum(buffer.reserved for buffer in held)
    random.shuffle(held)
    for buffer in held:
        allocator.release(buffer)
    assert allocator.used == 0
    assert all(block.empty and not block.dedicated for block in allocator._blocks)
    assert len({block.purpose for block in allocator._blocks}) == len(allocator._blocks)
    allocator.close()
    assert api.load().live() == before


def test_neighbours_coalesce(allocator: Allocator) -> None:
    pieces = [allocator.allocate(1000) for _ in range(4)]
    block = pieces[0].block
    for index in (0, 2, 1, 3):
        allocator.release(pieces[index])
    assert block.free == [(0, block.nbytes)]
    assert allocator.allocate(4096).offset == 0


def test_freed_room_is_taken_first(allocator: Allocator) -> None:
    pieces = [allocator.allocate(1024) for _ in range(3)]
    allocator.release(pieces[1])
    assert allocator.allocate(512).offset == pieces[1].offset
    assert allocator.allocate(512).offset == pieces[1].offset + 512
    assert allocator.allocate(512).offset > pieces[2].offset


def test_large_buffers_get_memory_of_their_own_and_give_it_back(allocator: Allocator) -> None:
    memories = api.load().live().get("DeviceMemory", 0)
    big = allocator.allocate(65 << 20)
    assert big.block.dedicated
    assert api.load().live()["DeviceMemory"] == memories + 1
    allocator.release(big)
    assert api.load().live().get("DeviceMemory", 0) == memories


def test_memory_for_the_host_is_mapped_in_place(allocator: Allocator) -> None:
    ffi = api.load().ffi
    first, second = allocator.allocate(1000, "upload"), allocator.allocate(1000, "upload")
    assert second.mapped - first.mapped == second.offset - first.offset
    view = ffi.buffer(ffi.cast("char*", second.mapped), 1000)
    view[:] = bytes(range(250)) * 4
    assert bytes(view[:4]) == b"\0\1\2\3"


def test_ranges(allocator: Allocator) -> None:
    allocator.allocate(10)
    buffer = allocator.allocate(1000)
    assert (buffer.range().offset, buffer.range().nbytes) == (buffer.offset, 1000)
    part = buffer.range(100, 50)
    assert (part.offset, part.nbytes) == (buffer.offset + 100, 50)
    assert buffer.range(900).nbytes == 100


def test_more_than_the_driver_allows(device: vkpar.Device, allocator: Allocator) -> None:
    most = device.limits.max_allocation
    with pytest.raises(UnsupportedError, match="maxMemoryAllocationSize"):
        allocator.allocate(most + 1)
    with pytest.raises(UnsupportedError, match="maxMemoryAllocationSize"):
        device.empty(most + 1, "uint8")
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
            allocator.allocate(100)
        with pytest.raises(OutOfMemoryError, match=r"100000000 bytes|vkAllocateMemory"):
            device.empty(100_000_000, "uint8")
    assert isinstance(caught.value, MemoryError)
    assert caught.value.call == "vkAllocateMemory"
    assert device.name in str(caught.value)
    assert vk.live() == before
    assert allocator.used == 0
    allocator.release(allocator.allocate(100))
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


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_round_up(number: int, multiple: int) -> None:
    found = round_up(number, multiple)
    assert found % multiple == 0
    assert 0 <= found - number < multiple
