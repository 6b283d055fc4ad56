"""Addresses over several buffers, and matrix products cut to what one binding holds. No Vulkan."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.ops.tiles.cut import Operand, tiles
from vkpar.vulkan.memory.buffer import Buffer, BufferRange, paired
from vkpar.vulkan.memory.pool import Block, Piece, padded
from vkpar.vulkan.memory.subbuffers import GRANULE, SubBuffers, cut


def made(*sizes: int) -> SubBuffers:
    """Return buffers of these sizes, each in a block named after its place, at an offset of its own."""
    return SubBuffers(
        [
            Buffer(f"vk{i}", 256 * i, size, padded(size), 0, Piece(Block(1 << 20, "device", 0, None), 0, size))
            for i, size in enumerate(sizes)
        ]
    )


def bytes_of(ranges: list[BufferRange]) -> list[tuple[str, int]]:
    return [(part.buffer, part.offset + byte) for part in ranges for byte in range(part.nbytes)]


@given(st.integers(1, 100_000), st.integers(1, 60_000))
def test_cut_keeps_to_the_limit(nbytes: int, most: int) -> None:
    sizes = cut(nbytes, most)
    assert sum(sizes) == nbytes
    assert max(sizes) <= max(most, GRANULE)
    assert all(size == sizes[0] and size % GRANULE == 0 for size in sizes[:-1])


@given(st.lists(st.integers(1, 4), max_size=5), st.integers(1, 5000), st.data())
def test_addresses_are_resolved(whole: list[int], last: int, data: st.DataObject) -> None:
    sizes = [*(GRANULE * number for number in whole), last]
    memory = made(*sizes)
    assert (memory.nbytes, len(memory)) == (sum(sizes), len(sizes))
    assert memory.borders == list(itertools.accumulate(sizes))[:-1]
    every = [(f"vk{i}", 256 * i + byte) for i, size in enumerate(sizes) for byte in range(size)]
    start = data.draw(st.integers(0, memory.nbytes - 1))
    nbytes = data.draw(st.integers(0, memory.nbytes - start))
    buffer, offset = memory.resolve(start)
    assert (buffer.handle, buffer.offset + offset) == every[start]
    assert bytes_of(memory.ranges(start, nbytes)) == every[start : start + nbytes]
    if nbytes <= memory.reach(start):
        assert bytes_of([memory.range(start, nbytes)]) == every[start : start + nbytes]
    else:
        with pytest.raises(InvalidUsageError, match="more than one of its"):
            memory.range(start, nbytes)


def test_addresses_that_are_none() -> None:
    memory = made(GRANULE, 10)
    for address in (-1, GRANULE + 256, 1 << 40):
        with pytest.raises(InvalidUsageError, match=f"byte {address} of an array's memory"):
            memory.resolve(address)
    assert memory.ranges(GRANULE + 10, 0) == []
    assert memory.resolve(GRANULE + 255)[1] == 255  # padding


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_copies_need_not_be_cut_alike(sizes: list[int], data: st.DataObject) -> None:
    total, others = sum(sizes), list[int]()
    while sum(others) < total:
        others.append(data.draw(st.integers(1, total - sum(others))))
    left = [BufferRange("a", 100 * i, size) for i, size in enumerate(sizes)]
    right = [BufferRange("b", 100 * i, size) for i, size in enumerate(others)]
    pairs = list(paired(left, right))
    assert all(a.nbytes == b.nbytes > 0 for a, b in pairs)
    assert bytes_of([a for a, _ in pairs]) == bytes_of(left)
    assert bytes_of([b for _, b in pairs]) == bytes_of(right)


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    st.booleans(),
    st.integers(1, 12),
)
def test_tiles_cover_a_product_once(
    shape: tuple[int, int, int], pieces: tuple[int, int, int], transpose_b: bool, most_k: int
) -> None:
    m, n, k = shape
    lengths = {"m": m, "n": n, "k": k}
    rows = (("m", "k"), ("n", "k") if transpose_b else ("k", "n"), ("m", "n"))
    operands = [
        Operand(lambda first, piece=piece: piece - first % piece, lengths[columns], row, columns)  # type: ignore[misc]
        for piece, (row, columns) in zip(pieces, rows, strict=True)
    ]
    done: dict[tuple[int, int], int] = {}
    for tile in tiles(lengths, {"m": m, "n": n, "k": most_k}, operands):
        for operand in operands:
            (row, height), (column, width) = tile[operand.rows], tile[operand.columns]
            first = row * operand.row + column
            assert (height - 1) * operand.row + width <= operand.reach(first)
        assert tile["k"][1] <= most_k
        for i, j in itertools.product(*(range(start, start + size) for start, size in (tile["m"], tile["n"]))):
            assert done.get((i, j), 0) == tile["k"][0], "tiles of k come in order, from 0"
            done[i, j] = sum(tile["k"])
    assert done == dict.fromkeys(itertools.product(range(m), range(n)), k)
