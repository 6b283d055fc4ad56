"""scatter, gather, uneven parts, broadcast into other arrays, all_to_all in place: against NumPy, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from helpers.ops.reducing import Numbers

import vkpar
from vkpar import InvalidUsageError

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
RIGS = ["L", "LL", "SS", "LS", "LLL", "SLS", "LLSLL", "LLLLLLLL"]
DTYPES = ["float32", "float16", "int8", "uint64", "complex64"]
COUNTS = (0, 1, 5, 257, 1003, 20_001)


def some(rng: np.random.Generator, dtype: str, count: int) -> Numbers:
    resolved = np.dtype(dtype)
    return rng.integers(0, 256, count * resolved.itemsize, np.uint8).view(resolved)


def same(array: vkpar.Array, want: Numbers) -> bool:
    return array.numpy().tobytes() == np.ascontiguousarray(want).tobytes()


def counts_of(rng: np.random.Generator, count: int, nranks: int) -> list[int]:
    """Return counts that add up, some of them often zero."""
    cuts = np.sort(rng.choice([0, count, int(rng.integers(0, count + 1))], nranks - 1))
    return [int(size) for size in np.diff([0, *cuts, count])]


def pieces_of(part: Numbers, counts: Sequence[int]) -> list[Numbers]:
    return np.split(part, np.cumsum(counts)[:-1])


def views_of(array: vkpar.Array, counts: Sequence[int]) -> list[vkpar.Array]:
    ends = np.cumsum(counts)
    return [array[int(end - count) : int(end)] for count, end in zip(counts, ends, strict=True)]


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_and_gather(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm, n = rig(letters), len(letters)
    for number, count in enumerate(COUNTS):
        root = number % n
        counts = counts_of(rng, count, n) if number % 2 else None
        part = some(rng, dtype, count)
        pieces = np.array_split(part, n) if counts is None else pieces_of(part, counts)
        sizes = [piece.size for piece in pieces]
        for in_place in (False, True):
            whole = comm.devices[root].array(part)
            out = [device.array(np.full(size, 1, dtype)) for device, size in zip(comm.devices, sizes, strict=True)]
            if in_place:
                out[root] = views_of(whole, sizes)[root]
            comm.scatter(whole, root, out=out, counts=counts).wait()
            assert all(same(array, piece) for array, piece in zip(out, pieces, strict=True))
            assert same(whole, part)
            back = comm.devices[root].array(np.zeros(count, dtype))
            arrays: list[vkpar.Array | None] = list(out)
            if in_place:
                arrays[root] = views_of(back, sizes)[root]
                arrays[root].write(pieces[root])  # type: ignore[union-attr]
            elif sizes[root] == 0 and n > 1:
                arrays[root] = None
            comm.gather(arrays, root, out=back).wait()
            assert same(back, part)


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_broadcast_into_other_arrays(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm, n = rig(letters), len(letters)
    for number, count in enumerate(COUNTS):
        root, part = number % n, some(rng, dtype, count)
        arrays: list[vkpar.Array | None] = [None] * n
        arrays[root] = source = comm.devices[root].array(part)
        out = [device.array(np.zeros(count, dtype)) for device in comm.devices]
        comm.broadcast(arrays, root, out=out).wait()
        assert all(same(array, part) for array in [*out, source])
        out[root] = source
        comm.broadcast(arrays, root, out=out).wait()
        assert all(same(array, part) for array in out)


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int64"])
def test_all_to_all_of_uneven_parts(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm, n = rig(letters), len(letters)
    for number, most in enumerate((1, 40, 3000)):
        rows = rng.integers(0, most + 1, (n, n))
        rows[number % n] = 0  # gives nothing
        parts = [some(rng, dtype, int(row.sum())) for row in rows]
        arrays: list[vkpar.Array | None] = [d.array(part) for d, part in zip(comm.devices, parts, strict=True)]
        if n > 1:
            arrays[number % n] = None
        out = [
            device.array(np.zeros(int(column.sum()), dtype))
            for device, column in zip(comm.devices, rows.T, strict=True)
        ]
        comm.all_to_all(arrays, out=out, counts=rows).wait()
        cut = [pieces_of(part, row) for part, row in zip(parts, rows, strict=True)]
        for rank, array in enumerate(out):
            assert same(array, np.concatenate([pieces[rank] for pieces in cut]))
        row = [int(size) for size in rng.integers(0, most, n)]
        parts = [some(rng, dtype, sum(row)) for _ in range(n)]
        out = [device.array(np.zeros(n * size, dtype)) for device, size in zip(comm.devices, row, strict=True)]
        comm.all_to_all(
            [d.array(part) for d, part in zip(comm.devices, parts, strict=True)], out=out, counts=row
        ).wait()
        for rank, array in enumerate(out):
            assert same(array, np.concatenate([pieces_of(part, row)[rank] for part in parts]))


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_all_to_all_in_place(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    """Equal parts, and any whose counts are symmetric; larger than all slots together too, and some ranks apart."""
    comm, n = rig(letters), len(letters)
    for number, most in enumerate((1, 5, 300, 20_000, 400_000)):
        rows = np.full((n, n), most) if number % 2 else np.triu(rng.integers(0, most + 1, (n, n)))
        rows = np.maximum(rows, rows.T)
        parts = [some(rng, dtype, int(row.sum())) for row in rows]
        arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
        out = list(arrays)
        if number == 2:
            out[0] = comm.devices[0].array(np.zeros(parts[0].size, dtype))
        comm.all_to_all(arrays, out=out, counts=None if number % 2 else rows).wait()
        cut = [pieces_of(part, row) for part, row in zip(parts, rows, strict=True)]
        for rank, array in enumerate(out):
            assert same(array, np.concatenate([pieces[rank] for pieces in cut]))


def test_what_is_refused(rig: Open) -> None:
    comm = rig("LS")
    a, b = (device.zeros(100) for device in comm.devices)
    halves = [device.zeros(50) for device in comm.devices]
    outs = [device.zeros(200) for device in comm.devices]
    bad = [
        ("out is needed", lambda: comm.scatter(a)),
        ("out is needed", lambda: comm.gather([a, b])),
        ("array is on", lambda: comm.scatter(b, 0, out=halves)),
        ("not a vkpar.Array", lambda: comm.scatter([a, b], 0, out=halves)),
        ("out is on", lambda: comm.gather([a, b], 0, out=outs[1])),
        (r"out\[0\] is 50 float32; this needs 40", lambda: comm.scatter(a, out=halves, counts=[40, 60])),
        ("counts add up to 99; the array has 100", lambda: comm.scatter(a, out=halves, counts=[49, 50])),
        ("counts add up to 99; the array has 100", lambda: comm.reduce_scatter([a, b], out=halves, counts=[49, 50])),
        ("one whole number of elements per rank", lambda: comm.scatter(a, out=halves, counts=[100])),
        ("one whole number of elements per rank", lambda: comm.reduce_scatter([a, b], out=halves, counts=[-1, 101])),
        ("one whole number of elements per rank", lambda: comm.scatter(a, out=halves, counts=[0.5, 99.5])),
        ("one whole number of elements per rank", lambda: comm.scatter(a, out=halves, counts=100)),
        ("one row for all ranks, or 2 rows", lambda: comm.all_to_all([a, b], out=outs, counts=[[50, 50]] * 3)),
        ("rank 1's array has 100 elements", lambda: comm.all_to_all([a, b], out=outs, counts=[[50, 50], [50, 49]])),
        ("or counts=", lambda: comm.all_to_all([a, None], out=outs)),
        ("out is 200 float32; this needs 150", lambda: comm.gather([a, halves[1]], 0, out=outs[0])),
        ("dtypes must agree", lambda: comm.gather([a, comm.devices[1].zeros(5, "int8")], 0, out=outs[0])),
        ("gather needs at least one array", lambda: comm.gather([None, None], 0, out=outs[0])),
        ("overlap", lambda: comm.gather([outs[0][50:150], b], 0, out=outs[0])),
        ("overlap", lambda: comm.scatter(a, out=[a[10:60], halves[1]])),
        ("broadcast needs an array", lambda: comm.broadcast([None, b], 0, out=[a, b])),
        ("must agree", lambda: comm.broadcast([a, halves[1]], 0, out=[a, b])),
        (r"out\[1\]", lambda: comm.broadcast([a, None], 0, out=[a, halves[1]])),
        ("overlaps", lambda: comm.all_to_all([outs[0][:100], b], out=[outs[0][50:150], b])),
        ("overlaps", lambda: comm.all_to_all([a, b], out=[a[:50], outs[1][:150]], counts=[[10, 90], [40, 60]])),
    ]
    for match, call in bad:
        with pytest.raises(InvalidUsageError, match=match):
            call()
    assert comm.stats()["collectives"] == 0


def test_all_to_all_in_place_of_counts_that_are_not_symmetric(rig: Open) -> None:
    """As many elements in all as before, but no piece lies where the one that comes back for it will."""
    comm = rig("LSL")
    arrays = [device.zeros(30) for device in comm.devices]
    with pytest.raises(InvalidUsageError, match="in part"):
        comm.all_to_all(arrays, out=arrays, counts=[[0, 10, 20], [20, 0, 10], [10, 20, 0]])


def test_the_flight_recorder_names_them(rig: Open) -> None:
    comm = rig("LS")
    whole, out = (
        comm.devices[1].zeros(9, "int8"),
        [d.zeros(n, "int8") for d, n in zip(comm.devices, (2, 7), strict=True)],
    )
    comm.scatter(whole, 1, out=out, counts=[2, 7])
    comm.gather(out, 1, out=whole).wait()
    first, second = json.loads(comm.dump())["operations"][-2:]
    for found, name in ((first, "scatter"), (second, "gather")):
        assert (found["op"], found["dtype"], found["count"], found["root"]) == (name, "int8", 9, 1)


def test_thousands_of_pairs_are_checked_one_by_one(rig: Open, rng: np.random.Generator) -> None:
    """Every destination and source is compared with its neighbours in memory, not with all others."""
    comm = rig("LL")
    n = 3000
    source, target = comm.devices[0].array(rng.standard_normal(8 * n)), comm.devices[1].empty(8 * n, "float64")
    order = rng.permutation(n)
    pairs = [(source[8 * a : 8 * a + 8], target[8 * b : 8 * b + 8]) for a, b in enumerate(order)]
    comm.send_recv(pairs).wait()
    want = np.empty((n, 8))
    want[order] = source.numpy().reshape(n, 8)
    assert np.array_equal(target.numpy().reshape(n, 8), want)
    first, last = pairs[0], pairs[-1]
    with pytest.raises(InvalidUsageError, match="two destinations overlap"):
        comm.send_recv([*pairs[:-1], (last[0], first[1])])
    with pytest.raises(InvalidUsageError, match="sent elsewhere"):
        comm.send_recv([*pairs[:-1], (target[:8], first[0])])
