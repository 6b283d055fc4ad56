"""The allocator's arithmetic: free lists, blocks and their classes, memory types, plans. No Vulkan."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.infos import fake_info
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, env
from vkpar.vulkan.machine.physical import ALIGNMENT, Heap
from vkpar.vulkan.memory import memtypes, subbuffers
from vkpar.vulkan.memory.accounting import Accounting
from vkpar.vulkan.memory.freelist import FreeList
from vkpar.vulkan.memory.pool import Piece, Pool, padded, round_up
from vkpar.vulkan.memory.recycle import Recycler

MIB = 1 << 20


def check_tiled(free: FreeList, taken: list[tuple[int, int]]) -> None:
    """Check that taken and free pieces cover the block exactly, and that no two free ones touch."""
    pieces = free.pieces()
    spans = sorted([*taken, *pieces])
    assert [start for start, _ in spans] == [0, *(start + size for start, size in spans)][: len(spans)]
    assert sum(size for _, size in spans) == free.nbytes
    assert free.free == sum(size for _, size in pieces)
    assert free.largest == max((size for _, size in pieces), default=0)
    assert all(a + size < b for (a, size), (b, _) in itertools.pairwise(pieces))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=80), st.randoms())
def test_free_lists_never_overlap_and_merge(actions: list[tuple[bool, int]], chance: random.Random) -> None:
    free, taken = FreeList(4096), list[tuple[int, int]]()
    for give, nbytes in actions:
        if give and taken:
            free.give(*taken.pop(chance.randrange(len(taken))))
        else:
            sizes = [size for _, size in free.pieces() if size >= nbytes]
            offset = free.take(nbytes)
            assert (offset is None) == (not sizes)
            if offset is not None:
                taken.append((offset, nbytes))
        check_tiled(free, taken)
    chance.shuffle(taken)
    for piece in taken:
        free.give(*piece)
    assert free.pieces() == [(0, 4096)]
    assert free.empty


def test_the_best_fitting_piece_is_taken() -> None:
    free = FreeList(1000)
    offsets = [free.take(size) for size in (300, 100, 50, 100, 450)]
    assert offsets == [0, 300, 400, 450, 550]
    assert free.take(1) is None
    free.give(0, 300)
    free.give(400, 50)
    assert free.take(40) == 400
    assert free.take(20) == 0
    assert free.take(281) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=20), st.integers(1, 9))
def test_free_lists_around_what_is_taken(gaps: list[tuple[int, int]], tail: int) -> None:
    taken, start = list[tuple[int, int]](), 0
    for gap, size in gaps:
        taken.append((start + gap, size))
        start += gap + size
    free = FreeList.around(start + tail, reversed(taken))
    check_tiled(free, taken)
    for piece in taken:
        free.give(*piece)
    assert free.pieces() == [(0, start + tail)]
    assert FreeList.around(8, [(0, 8)]).pieces() == []


class Driver:
    """Stands in for Vulkan: counts bytes of blocks, and has no more than ``most``."""

    def __init__(self, most: int = 1 << 50) -> None:
        self.most, self.held, self.blocks = most, 0, 0

    def make(self, nbytes: int, kind: str) -> int:
        if self.held + nbytes > self.most:
            raise MemoryError
        self.held += nbytes
        self.blocks += 1
        return nbytes

    def drop(self, nbytes: int) -> None:
        self.held -= nbytes
        self.blocks -= 1


SIZES = st.integers(1, 5000) | st.integers(1, 40 * MIB)


@given(
    st.lists(st.tuples(st.booleans(), SIZES, st.sampled_from(memtypes.KINDS)), max_size=60),
    st.randoms(),
    st.sampled_from([0, MIB, 256 * MIB, 1 << 40]),
)
def test_pools_place_without_overlap(
    actions: list[tuple[bool, int, str]], chance: random.Random, heap_nbytes: int
) -> None:
    driver, held = Driver(), list[Piece]()
    pool = Pool(heap_nbytes, driver.make, driver.drop)
    for give, nbytes, kind in actions:
        if give and held:
            pool.give(held.pop(chance.randrange(len(held))))
        else:
            held.append(pool.take(padded(nbytes), kind))
            assert held[-1].block.kind == kind
            assert held[-1].nbytes >= padded(nbytes)
            assert held[-1].offset % ALIGNMENT == 0
        for block in pool.blocks():
            check_tiled(block.free, [(piece.offset, piece.nbytes) for piece in held if piece.block is block])
        assert driver.held == sum(block.nbytes for block in pool.blocks())
        assert pool.trimmable == sum(block.nbytes for block in pool.blocks() if block.free.empty)
    for piece in held:
        pool.give(piece)
    assert pool.trimmable == driver.held <= max(heap_nbytes or 1 << 30, 8 * MIB) // 8
    assert pool.trim() >= 0
    assert (driver.held, driver.blocks, list(pool.blocks())) == (0, 0, [])


def traffic(pool: Pool, rng: random.Random, turns: int, kind: str = "device") -> tuple[int, float]:
    """Take and give pieces of all sizes; return the bytes in use and the share of the blocks that is idle at most."""
    held: list[Piece] = []
    worst = 0.0
    for _ in range(turns):
        if rng.random() < len(held) / 600:  # settles at 300 pieces
            pool.give(held.pop(rng.randrange(len(held))))
        else:
            held.append(pool.take(padded(int(2 ** rng.uniform(4, 24))), kind))
        if len(held) > 200:
            nbytes = sum(block.nbytes for block in pool.blocks() if not block.free.empty)
            worst = max(worst, 1 - sum(piece.nbytes for piece in held) / nbytes)
    return sum(piece.nbytes for piece in held), worst


def test_random_traffic_fragments_little() -> None:
    driver = Driver()
    pool = Pool(1 << 40, driver.make, driver.drop)
    used, idle = traffic(pool, random.Random(1), 4000)
    room = pool.room()
    print(f"{used >> 20} MiB in use, {room.free >> 20} free, {room.fragmentation:.2f} fragmented, {idle:.2f} idle")
    assert room.fragmentation < 0.6
    assert idle < 0.6
    assert 0 < room.largest <= room.whole <= room.free


def test_a_class_grows_only_while_its_blocks_are_used() -> None:
    """An adversary frees every second small piece and then asks for twice their size: the bound still holds."""
    driver = Driver()
    pool = Pool(1 << 40, driver.make, driver.drop)
    for size, number in ((256, 8192), (4096, 4096)):
        pieces = [pool.take(size, "device") for _ in range(number)]
        for piece in pieces[::2]:
            pool.give(piece)
        used = sum(block.nbytes - block.free.free for block in pool.blocks())
        assert pool.room().free <= 32 * used


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [
        (256, MIB),
        (4096, MIB),
        (4352, 4 * MIB),
        (65536, 4 * MIB),
        (65792, 16 * MIB),
        (MIB, 16 * MIB),
        (MIB + 256, 64 * MIB),
        (16 * MIB, 64 * MIB),
        (16 * MIB + 256, 16 * MIB + 256),
        (1 << 35, 1 << 35),
    ],
)
def test_size_classes(nbytes: int, block: int) -> None:
    driver = Driver()
    assert Pool(1 << 40, driver.make, driver.drop).take(nbytes, "device").block.nbytes == block


@pytest.mark.parametrize("most", [100_000, 10 * MIB])
def test_no_block_is_larger_than_the_driver_allows(most: int) -> None:
    driver = Driver()
    pool = Pool(1 << 40, driver.make, driver.drop, most)
    for nbytes in (256, 4096, 65536, most // 256 * 256):
        assert pool.take(nbytes, "device").block.nbytes <= most


def test_emptied_blocks_are_taken_again_and_go_at_a_trim() -> None:
    driver = Driver()
    pool = Pool(1 << 40, driver.make, driver.drop)
    for nbytes in (1024, 100 * MIB):
        piece = pool.take(nbytes, "device")
        pool.give(piece)
        assert pool.take(nbytes, "device") == piece
        pool.give(piece)
    assert pool.take(90 * MIB, "device").nbytes == 100 * MIB  # an eighth may lie idle
    assert driver.blocks == 2
    assert pool.take(50 * MIB, "device").nbytes == 50 * MIB
    assert pool.take(1024, "upload").block is not piece.block
    assert driver.blocks == 4
    assert pool.trim() == MIB
    assert (driver.blocks, pool.trimmable) == (3, 0)


def test_the_cache_is_bounded() -> None:
    driver = Driver()
    pool = Pool(800 * MIB, driver.make, driver.drop)
    pieces = [pool.take(60 * MIB, "device") for _ in range(4)]
    for piece in pieces:
        pool.give(piece)
    assert driver.held == pool.trimmable == 60 * MIB  # an eighth of the heap is 100 MiB
    small = pool.take(256, "device")
    pool.give(small)
    pool.give(pool.take(200 * MIB, "device"))
    assert driver.held == 61 * MIB  # what is larger than the cache does not empty it


@pytest.mark.parametrize("torn", range(5))
def test_a_pool_is_made_anew_from_what_is_in_use(torn: int) -> None:
    driver, rng = Driver(), random.Random(torn)
    pool = Pool(1 << 40, driver.make, driver.drop)
    held = [pool.take(padded(rng.randrange(1, 300_000)), "device") for _ in range(100)]
    for _ in range(50):
        pool.give(held.pop(rng.randrange(len(held))))
    own = pool.take(30 * MIB, "device")
    pool.give(own)
    before = pool.room()
    for block in pool.blocks():  # as calls that did not end would leave it
        block.free._by_size.clear()
        block.free.free = torn
    pool._empty.clear()
    pool.trimmable = torn
    pool.restore(held, lambda backing: bool(backing != own.block.backing))
    assert own.block not in list(pool.blocks())
    assert pool.room().free == before.free - 30 * MIB
    for block in pool.blocks():
        check_tiled(block.free, [(piece.offset, piece.nbytes) for piece in held if piece.block is block])
    assert pool.trimmable == sum(block.nbytes for block in pool.blocks() if block.free.empty)


def test_a_block_that_cannot_be_made_changes_nothing() -> None:
    driver = Driver(10 * MIB)
    pool = Pool(1 << 40, driver.make, driver.drop)
    piece = pool.take(256, "device")
    with pytest.raises(MemoryError):
        pool.take(MIB, "device")
    assert list(pool.blocks()) == [piece.block]
    assert pool.take(MIB, "device", alone=True).block.dedicated


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_round_up(number: int, multiple: int) -> None:
    found = round_up(number, multiple)
    assert found % multiple == 0
    assert 0 <= found - number < multiple


# ---- memory types ----

VRAM, BAR, RAM, CACHED, LOCAL = 1, 1 | 2 | 4, 2 | 4, 2 | 4 | 8, 1 | 2 | 4 | 8
HEAPS = tuple(Heap(index, size << 20, index != 1, None, None) for index, size in enumerate((16384, 65536, 256)))


@pytest.mark.parametrize(
    ("types", "chosen"),
    [
        ([(0, 1), (VRAM, 0), (RAM, 1), (CACHED, 1), (BAR, 2)], (1, 2, 3)),  # NVIDIA
        ([(0, 1), (VRAM, 0), (RAM, 1), (CACHED, 1), (BAR, 0)], (1, 4, 3)),  # the same with resizable BAR
        ([(BAR, 2), (VRAM, 0), (CACHED, 1), (RAM, 1)], (1, 2, 2)),
        ([(0xC0 | VRAM, 0), (0xC0 | RAM, 1), (VRAM, 0), (RAM, 1), (CACHED, 1)], (2, 3, 4)),  # AMD's coherent ones
        ([(VRAM, 0), (BAR, 0), (LOCAL, 0)], (0, 1, 2)),  # integrated
        ([(LOCAL, 0)], (0, 0, 0)),  # a CPU driver
        ([(RAM, 0)], (0, 0, 0)),
        ([(0x20 | VRAM, 0), (0x10 | VRAM, 0), (VRAM, 0), (RAM, 1)], (2, 3, 3)),
    ],
)
def test_memory_types(types: list[tuple[int, int]], chosen: tuple[int, int, int]) -> None:
    info = fake_info(memory_types=tuple(types), heaps=HEAPS)
    assert tuple(memtypes.choose(info, kind) for kind in memtypes.KINDS) == chosen


def test_memory_types_that_a_buffer_does_not_take() -> None:
    info = fake_info(memory_types=((VRAM, 0), (BAR, 2), (RAM, 1)), heaps=HEAPS)
    assert memtypes.choose(info, "device", 0b110) == 1
    assert memtypes.choose(info, "device", 0b100) == 2
    with pytest.raises(UnsupportedError, match="no upload memory"):
        memtypes.choose(info, "upload", 0b001)
    assert memtypes.heap_of(info, "upload") == 1
    assert memtypes.describe(info, 1) == "type 1 of heap 2 (device-local, host-visible, coherent)"
    assert memtypes.describe(fake_info(memory_types=((0, 0),)), 0) == "type 0 of heap 0 (host)"


def test_uploads_in_host_memory() -> None:
    info = fake_info(memory_types=((VRAM, 0), (BAR, 0), (RAM, 1)), heaps=HEAPS)
    assert (memtypes.choose(info, "upload"), memtypes.choose(info, "host")) == (1, 2)
    assert memtypes.choose(info, "upload", 0b101) == 2


@pytest.mark.parametrize("flags", [VRAM, BAR, RAM, CACHED, LOCAL])
def test_arrays_are_mapped_where_the_host_reads_them_fast(flags: int) -> None:
    info = fake_info(memory_types=((flags, 0),))
    assert memtypes.is_mapped(info, "device", 0) == (flags in (CACHED, LOCAL))
    assert memtypes.is_mapped(info, "upload", 0)


# ---- accounting and plans ----


def test_books() -> None:
    info, accounting = fake_info(), Accounting()
    accounting.block(0, 1000)
    accounting.buffer("arrays", 0, 300)
    accounting.buffer("staging", 0, 200)
    accounting.imported("slots", 1, 64)
    first, second = accounting.heaps(info.heaps)
    assert (first.used, first.cached, first.imported, first.total) == (500, 500, 0, 140 << 30)
    assert (first.budget, first.process_used) == (138 << 30, 2 << 30)
    assert (second.used, second.imported, second.budget) == (0, 64, None)
    assert [accounting.of(name) for name in ("arrays", "staging", "slots")] == [300, 200, 64]
    accounting.buffer("arrays", 0, 300, -1)
    assert (accounting.of("arrays"), accounting.counts) == (0, (1, 1))
    part = Accounting(accounting)
    part.buffer("arrays", 0, 50)
    part.block(0, 100)
    assert (accounting.of("arrays", "slots"), part.of("arrays"), accounting.counts) == (114, 50, (2, 2))
    part.clear()
    assert (accounting.of("arrays"), accounting.counts) == (0, (1, 1))


def test_plans() -> None:
    infos = [fake_info(0), fake_info(1)]
    arrays = [((1000, 1000), "float32"), ((3,), "bfloat16", 1), (7, "int8", 0), ((0, 5), "float64")]
    first, second = vkpar.plan_memory(infos, arrays)
    assert (first.rank, first.arrays, first.nbytes, first.reserved) == (0, 3, 4_000_007, 4_000_000 + 256)
    assert (second.arrays, second.nbytes) == (3, 4_000_006)
    assert (first.blocks, first.block_nbytes, first.largest) == (2, 65 * MIB, 64 * MIB)
    assert (first.available, first.limit, first.fits) == (136 << 30, None, True)
    assert json.loads(json.dumps(first.as_dict()))["device"] == first.device


@pytest.mark.parametrize(
    ("heap", "kept"),
    [(0, 256), (1 << 10, 64), (8 << 10, 256), (16 << 10, 256), (64 << 10, 1 << 10), (140 << 10, 2 << 10)],
)
def test_large_heaps_keep_more_of_dropped_arrays(heap: int, kept: int) -> None:
    """In MiB: a sixteenth, up to 256 MiB, or a sixty-fourth, up to 2 GiB."""
    assert Recycler(heap * MIB)._most == kept * MIB


def test_plans_say_what_does_not_fit() -> None:
    info = fake_info()
    (large,) = vkpar.plan_memory([info], [((1 << 40,), "uint8"), (1, "uint8")])
    assert large.largest == large.max_buffer == 1 << 40
    assert not large.fits
    (many,) = vkpar.plan_memory([info], [((1 << 30,), "uint8")] * 137)
    assert (many.blocks, many.fits) == (137, False)
    (fewer,) = vkpar.plan_memory([info], [((1 << 30,), "uint8")] * 136)
    assert fewer.fits
    with env.override(max_memory=1000):
        (limited,) = vkpar.plan_memory([info], [((1001,), "uint8")])
    assert (limited.limit, limited.fits) == (1000, False)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1 << 44,), "float32"), ((1 << 70,), "float64"), ((1 << 40, 1 << 40), "int8"), (1 << 38, "int8")],
)
def test_plans_of_impossible_arrays_place_nothing(monkeypatch: pytest.MonkeyPatch, shape: Any, dtype: str) -> None:
    """Buffers of an array that is larger than the heap are counted, however many: they are not placed one by one."""
    info, taken = fake_info(), list[int]()
    info = replace(info, limits=replace(info.limits, max_buffer=(1 << 30) + 5))
    take = Pool.take

    def counted(pool: Pool, nbytes: int, kind: str) -> Piece:
        taken.append(nbytes)
        return take(pool, nbytes, kind)

    monkeypatch.setattr(Pool, "take", counted)
    (plan,) = vkpar.plan_memory([info], [(shape, dtype), (1000, "int8")])
    nbytes = np.dtype(dtype).itemsize * math.prod(shape if isinstance(shape, tuple) else (shape,))
    assert taken == [1024], "the small one alone"
    assert (plan.nbytes, plan.reserved, plan.largest) == (nbytes + 1000, nbytes + 1024, 1 << 30)
    assert (plan.blocks, plan.block_nbytes, plan.fits) == ((nbytes >> 30) + 1, nbytes + MIB, False)


@given(st.integers(0, 1 << 16), st.integers(1, 1 << 15))
def test_buffers_are_counted_as_they_are_cut(nbytes: int, most: int) -> None:
    sizes = subbuffers.cut(nbytes, most)
    assert dict(Counter(sizes)) == dict(subbuffers.counted(nbytes, most))
    assert sum(sizes) == nbytes


def test_blocks_of_their_own_are_found_among_the_empty_ones() -> None:
    """However many are in use: a device with thousands of large arrays makes the next one as soon as the first."""
    pool = Pool(1 << 40, lambda nbytes, kind: nbytes, lambda backing: None)
    pieces = [pool.take(32 * MIB, memtypes.DEVICE) for _ in range(50)]
    for piece in (pieces[7], pieces[33]):
        pool.give(piece)
    assert pool.take(32 * MIB, memtypes.UPLOAD).block not in (pieces[7].block, pieces[33].block)
    assert pool.take(30 * MIB, memtypes.DEVICE).block is pieces[7].block
    assert pool.take(20 * MIB, memtypes.DEVICE).block not in [piece.block for piece in pieces], "too small for it"
    assert pool.take(32 * MIB, memtypes.DEVICE).block is pieces[33].block
    assert pool.take(32 * MIB, memtypes.DEVICE).block not in [piece.block for piece in pieces]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ([((2, -1), "float32")], "from 0"),
        ([((2.5,), "float32")], "whole numbers"),
        ([((2,), "float32", 1)], "rank 1 of 1"),
        ([((2,), "float32", -1)], "rank -1 of 1"),
        ([((2,), "text")], "not a dtype"),
        ([((2,),)], "an array is"),
        (["ab"], "an array is"),
        ([7], "an array is"),
    ],
)
def test_plans_refuse(arrays: list[Any], said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        vkpar.plan_memory([fake_info()], arrays)


def test_plans_need_devices() -> None:
    with pytest.raises(InvalidUsageError, match="at least one device"):
        vkpar.plan_memory([], [])
    with pytest.raises(InvalidUsageError, match="not str"):
        vkpar.plan_memory(["gpu"], [])  # type: ignore[list-item]
