"""Collectives over several processes, run by mpiexec: each process does its part, and process 0 compares.

    PYTHONPATH=.:tests mpiexec -n 3 python tests/helpers/process/spanning.py collectives LS L SS

The letters name each process' devices (L is lavapipe, S SwiftShader). Every case is run once more in process 0 alone,
on as many ranks of the same drivers, and must give the same bits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.graph import fusing

import vkpar
from vkpar.comm.rig.processes.progress import Progress

NAMES = {"L": "llvmpipe", "S": "swiftshader"}


EVERY = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)] + ["float32", "float16", "bfloat16"]


def devices_of(letters: str) -> list[vkpar.Device]:
    """Open the devices that letters name."""
    return vkpar.open_devices("&".join(NAMES[letter] for letter in letters))


@dataclass(frozen=True)
class Case:
    """One call: of each rank ``counts[rank]`` elements, None for no array; ``out`` likewise."""

    name: str
    dtype: str
    counts: Sequence[int | None]
    out: Sequence[int | None] | None = None
    words: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def given(self, rank: int) -> np.ndarray[Any, Any] | None:
        """Return what a rank gives."""
        count = self.counts[rank]
        if count is None:
            return None
        rng = np.random.default_rng((self.seed, rank, count))
        kind = np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)
        if kind.kind in "iu":
            return rng.integers(0, 5, count).astype(kind)
        values = rng.standard_normal(count)
        values[::97] *= 1e4
        if self.words.get("op") in ("max", "min") and count > 3:
            values[3] = np.nan
        return values.astype(kind)


def run(comm: vkpar.Communicator, devices: Sequence[vkpar.Device], ranks: range, case: Case) -> dict[int, bytes]:
    """Run a case, and return by rank the bytes of the result."""
    here = list(zip(ranks, devices, strict=True))
    given = [_array(device, case.given(rank)) for rank, device in here]
    out = None
    if case.out is not None:
        out = [None if case.out[rank] is None else device.empty(case.out[rank], case.dtype) for rank, device in here]
    words, root = dict(case.words), case.words.get("root")
    if case.name == "scatter":
        array = given[root - ranks.start] if root in ranks else None
        comm.scatter(array, out=out, **words)
    elif case.name in ("reduce", "gather"):
        target = out[root - ranks.start] if out is not None and root in ranks else None
        getattr(comm, case.name)(given, out=target, **words)
    else:
        getattr(comm, case.name)(given, out=out, **words)
    results = given if out is None else [array if one is None else one for one, array in zip(out, given, strict=True)]
    if case.name == "reduce" and root not in ranks:
        return {}
    rooted = case.name in ("reduce", "gather")
    return {
        rank: array.numpy().tobytes()
        for rank, array in zip(ranks, results, strict=True)
        if array is not None and (not rooted or rank == root)
    }


def _array(device: vkpar.Device, given: np.ndarray[Any, Any] | None) -> vkpar.Array | None:
    return None if given is None else device.array(given)


def cases(n: int) -> Iterator[Case]:
    """Yield every collective, dtype, op and wire, and uneven, zero and missing counts."""
    alike = {count: [count] * n for count in (0, 1, 255, 1000, 70001)}
    for wire in ("f16", "bf16", "f32", "q8"):
        for count in (1, 1000, 70001):
            yield Case("all_reduce", "float32", alike[count], words={"wire": wire})
    for dtype in ("float16", "bfloat16", "int8", "uint16", "int32", "uint64"):
        yield Case("all_reduce", dtype, alike[1000])
    full = os.environ.get("VKPAR_TEST_FULL") == "1"
    for op in (("sum",) if full else ()) + ("prod", "max", "min", "avg"):
        for dtype in EVERY if full else ("float32", "int32", "float16"):
            yield Case("all_reduce", dtype, alike[255], words={"op": op})
    yield Case("all_reduce", "float32", alike[0])
    yield Case("all_reduce", "float32", [1000 if rank else None for rank in range(n)], alike[1000], {"op": "avg"})
    yield Case("all_reduce", "float32", [1000, *[0] * (n - 1)], alike[1000])
    for root in range(n):
        yield Case(
            "reduce", "float32", alike[1000], [1000 if rank == root else None for rank in range(n)], {"root": root}
        )
        yield Case("broadcast", "uint8", alike[1000], words={"root": root}, seed=root)
    yield Case("reduce", "int32", alike[255], words={"root": n - 1})
    parts = [7 * rank for rank in range(n)]
    total = sum(parts)
    yield Case("reduce_scatter", "float32", [total] * n, parts, {"counts": parts})
    yield Case("reduce_scatter", "int16", alike[1000], [len(part) for part in np.array_split(np.zeros(1000), n)])
    yield Case("all_gather", "float16", parts, [total] * n)
    yield Case("all_gather", "float64", [None, *parts[1:]], [total] * n)
    yield Case("gather", "int32", parts, [total if rank == n - 1 else None for rank in range(n)], {"root": n - 1})
    yield Case("scatter", "uint8", [total, *[None] * (n - 1)], parts, {"root": 0, "counts": parts})
    yield Case(
        "all_to_all",
        "float32",
        alike[1000],
        [n * 1000 // n if 1000 % n == 0 else _received(1000, n, rank) for rank in range(n)],
    )
    rows = [[(rank + 2 * other) % 4 * 33 for other in range(n)] for rank in range(n)]
    received = [sum(row[rank] for row in rows) for rank in range(n)]
    yield Case("all_to_all", "int16", [sum(row) for row in rows], received, {"counts": rows})


def _received(count: int, n: int, rank: int) -> int:
    return n * len(np.array_split(np.zeros(count), n)[rank])


class Team:
    """The processes of a test: what each has, and process 0's one-process communicator for comparison."""

    def __init__(self, letters: Sequence[str]) -> None:
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        assert self.world.size == len(letters), "a word of letters for each process"
        self.letters = letters
        self.devices = devices_of(letters[self.world.rank])
        self.every = devices_of("".join(letters)) if self.world.rank == 0 else []

    @property
    def n(self) -> int:
        return len("".join(self.letters))

    def compare(self, name: str, mine: dict[int, bytes], alone: Callable[[], dict[int, bytes]]) -> None:
        """Compare the results of all ranks with those of one process."""
        found = self.world.gather(mine, 0)
        if found is None:
            return
        every = {rank: data for results in found for rank, data in results.items()}
        wanted = alone()
        assert every.keys() == wanted.keys(), (name, sorted(every), sorted(wanted))
        wrong = [rank for rank in wanted if every[rank] != wanted[rank]]
        assert not wrong, f"{name}: ranks {wrong} differ from one process"


def collectives(letters: Sequence[str]) -> None:
    """Every case, against one process, then every algorithm; a sample has every fourth case, others for each rig."""
    team = Team(letters)
    chosen, algorithms = list(enumerate(cases(team.n))), ["ring", "two_level", "tree", "naive"]
    if os.environ.get("VKPAR_TEST_FULL") != "1" and len(letters) > 2:
        chosen, algorithms = chosen[len(letters) % 4 :: 4], algorithms[:2]
    alone = vkpar.Communicator(team.every) if team.every else None
    with vkpar.Communicator(team.devices, mpi=team.world, timeout=60) as comm:
        assert (comm.nranks, list(comm.local_ranks)) == (team.n, list(_own(letters, team.world.rank)))
        for number, case in chosen:
            comm.barrier()
            mine = run(comm, team.devices, comm.local_ranks, case)
            team.compare(f"{number}: {case}", mine, partial(run, alone, team.every, range(team.n), case))
    big = [Case("all_reduce", "float32", [count] * team.n) for count in (3, 300_000)]
    whole = [Case("all_reduce", "int32", [count] * team.n) for count in (3, 300_000)]
    for algorithm in (*algorithms, *(["direct"] if len(set("".join(letters))) == 1 else [])):
        single = vkpar.Communicator(team.every, algorithm=algorithm) if team.every else None
        with vkpar.Communicator(team.devices, mpi=team.world, timeout=60, algorithm=algorithm) as comm:
            for case in whole if algorithm == "two_level" else big:  # whose order in one process is another one
                mine = run(comm, team.devices, comm.local_ranks, case)
                alone_ = partial(run, single, team.every, range(team.n), case)
                team.compare(f"{algorithm}: {case}", mine, alone_)
            if algorithm == "two_level":
                replicas(team, comm)


def replicas(team: Team, comm: vkpar.Communicator) -> None:
    """Sums of two levels are the same bits on every rank, and right."""
    for wire, bound in (("f32", 1e-6), ("f16", 4e-3)):
        case = Case("all_reduce", "float32", [70_001] * team.n, words={"wire": wire})
        found = team.world.allgather(run(comm, team.devices, comm.local_ranks, case))
        bits = {data for results in found for data in results.values()}
        assert len(bits) == 1, wire
        rows = np.array([case.given(rank) for rank in range(team.n)], np.float64)
        far = np.abs(np.frombuffer(bits.pop(), np.float32) - rows.sum(0))
        largest = np.abs(rows).sum(0) * team.n * bound
        assert (far <= largest + 1e-30).all(), (wire, far.max())


def pairs(letters: Sequence[str]) -> None:
    """Copies between any two ranks, in one process and across, and back and forth in groups; views with steps."""
    team = Team(letters)
    n = team.n
    with vkpar.Communicator(team.devices, mpi=team.world, timeout=60) as comm:
        own = comm.local_ranks
        sent = [[np.arange(700, dtype=np.int16) + 100 * rank + other for other in range(n)] for rank in range(n)]
        mine = {rank: [device.array(row) for row in sent[rank]] for rank, device in zip(own, team.devices, strict=True)}
        got = {
            rank: [device.zeros(700, "int16") for _ in range(n)] for rank, device in zip(own, team.devices, strict=True)
        }
        listed = []
        for rank in range(n):
            for other in range(n):
                if rank in own or other in own:
                    ends = mine[rank][other] if rank in own else rank, got[other][rank] if other in own else other
                    listed.append(ends)
        comm.send_recv(listed).wait()
        for rank in own:
            for other in range(n):
                assert np.array_equal(got[rank][other].numpy(), sent[other][rank]), (rank, other)
        whole = [
            device.array(np.arange(64, dtype=np.float32).reshape(8, 8) + rank)
            for rank, device in enumerate(team.devices, own.start)
        ]
        ones = [device.array(np.ones(9, np.float32)) for device in team.devices]
        with comm.group():
            works = [comm.all_reduce([array[:, 1] for array in whole], wire="f32"), comm.barrier()]
            works += [comm.all_reduce(ones), comm.all_reduce(ones)]
        comm.broadcast([array[:, 2] for array in whole], root=n - 1)
        for work in works:
            work.wait()
        assert np.array_equal(ones[0].numpy(), np.full(9, n * n))
        column = np.arange(1, 64, 8, dtype=np.float32)
        for array in whole:
            assert np.array_equal(array.numpy()[:, 1], n * column + n * (n - 1) / 2), array.numpy()
            assert np.array_equal(array.numpy()[:, 2], column + 1 + n - 1), array.numpy()


def graphs(letters: Sequence[str]) -> None:
    """A graph with operations and sums over hosts gives what eager calls give, launch after launch."""
    team = Team(letters)
    with vkpar.Communicator(team.devices, mpi=team.world, timeout=60) as comm:
        count = 40_000
        start = [np.random.default_rng(rank).standard_normal(count).astype(np.float32) for rank in comm.local_ranks]

        def step(arrays: list[vkpar.Array]) -> None:
            doubled = [vkpar.add(array, array) for array in arrays]
            comm.all_reduce(doubled, op="avg")
            comm.reduce_scatter(doubled, op="max", out=halves)
            for array, sums in zip(arrays, doubled, strict=True):
                vkpar.multiply(sums, 0.25, out=array)

        cuts = [len(part) for part in np.array_split(np.zeros(count), team.n)]
        halves = [device.empty(cuts[rank]) for rank, device in zip(comm.local_ranks, team.devices, strict=True)]
        eager = [device.array(x) for device, x in zip(team.devices, start, strict=True)]
        for _ in range(6):
            step(eager)
        wanted = [array.numpy() for array in (*eager, *halves)]
        arrays = [device.array(x) for device, x in zip(team.devices, start, strict=True)]
        with vkpar.capture(team.devices, comm=comm) as graph:
            step(arrays)
        for _ in range(6):
            work = graph.launch()
        work.wait()
        for array, expected in zip((*arrays, *halves), wanted, strict=True):
            assert np.array_equal(array.numpy(), expected)
        graph.close()


def fused(letters: Sequence[str]) -> None:
    """Products fill the slots that cross, gathers add and normalize, and leave what eager calls leave, on all wires."""
    fusing.force_gpu(setattr)
    team = Team(letters)
    odd, here = team.world.rank == team.world.size - 1, len(team.devices)
    for wire in fusing.WIRES if os.environ.get("VKPAR_TEST_FULL") == "1" else ("f16", "q8"):
        with vkpar.Communicator(team.devices, mpi=team.world, timeout=60, wire=wire, algorithm="direct") as comm:
            for m, n in ((1, 1000), (3, 256)):
                case = fusing.Sum(comm, m, n, special=odd)

                def added(case: fusing.Sum = case) -> fusing.Arrays:
                    comm.all_reduce(case.products())
                    return [*case.y, *(vkpar.add(y, r) for y, r in zip(case.y, case.r, strict=True))]

                def normalized(case: fusing.Sum = case) -> fusing.Arrays:
                    comm.all_reduce(case.products(), op="avg")
                    pairs = [vkpar.rms_norm(y, residual=r) for y, r in zip(case.y, case.r, strict=True)]
                    return [*case.y, *(array for pair in pairs for array in pair)]

                case.check(added, fused=2 * here, launches=3)
                case.check(normalized, fused=2 * here, launches=3)


def calls(letters: Sequence[str]) -> None:
    """Calls that differ between processes are refused on each, in words, and the next right one works."""
    team = Team(letters)
    me = team.world.rank
    with vkpar.Communicator(team.devices, mpi=team.world, timeout=60) as comm:

        def arrays(count: int = 100, dtype: str = "float32") -> list[vkpar.Array]:
            return [device.zeros(count, dtype) for device in team.devices]

        odd = me == team.world.size - 1
        foreign = team.devices[0].zeros(4)
        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("counts and dtypes", lambda: comm.all_reduce(arrays(101 if odd else 100))),
            ("counts and dtypes", lambda: comm.all_reduce(arrays(dtype="int32" if odd else "float32"))),
            ("op='max'", lambda: comm.all_reduce(arrays(), op="max" if odd else "sum")),
            ("wire='f32'", lambda: comm.all_reduce(arrays(), wire="f32" if odd else None)),
            ("barrier", lambda: comm.barrier() if odd else comm.all_reduce(arrays())),
            ("root=1", lambda: comm.broadcast(arrays(), root=1 if odd else 0)),
            ("one array per rank", lambda: comm.all_reduce(arrays()[1:] if odd else arrays())),
            ("unknown op", lambda: comm.all_reduce(arrays(), op="xor")),
            ("not a vkpar.Array", lambda: comm.all_reduce([np.zeros(4)] * len(team.devices) if odd else arrays())),
            ("out is needed", lambda: comm.all_gather(arrays())),
            ("no array", lambda: comm.send_recv([(0, 0)])),
            ("receives less", lambda: comm.send_recv([(foreign, team.n - 1)] if me == 0 else [])),
        ]
        refuse(team, wrong)
        places(team, comm)
        views(team, comm)
        mine = arrays()
        comm.all_reduce(mine).wait()
        assert not mine[0].numpy().any()


def refuse(team: Team, wrong: Sequence[tuple[str, Callable[[], Any]]]) -> None:
    """Make calls that every process must refuse, one of them with these words."""
    for number, (words, call) in enumerate(wrong, 1):
        with pytest.raises(vkpar.InvalidUsageError) as caught:
            call()
        told = team.world.allgather(str(caught.value))
        assert any(words in each for each in told), (words, told)
        named = sum("process" in each or "rank" in each for each in told)
        assert named or words in ("unknown op", "out is needed", "no array"), (number, told)


def places(team: Team, comm: vkpar.Communicator) -> None:
    """What one process alone refuses is refused in each, and so are calls inside groups and captures in one alone."""
    devices, odd = team.devices, team.world.rank == team.world.size - 1
    rows = [device.zeros(6) for device in devices]
    nothing = contextlib.nullcontext
    with vkpar.capture(devices, comm=comm) as graph:
        comm.all_reduce(rows)

    def one(context: Callable[[], Any], call: Callable[[], object]) -> None:
        """Make a call in a context in the last process, outside in the others."""
        with context() if odd else nothing():
            call()

    def group(then: Callable[[], object]) -> None:
        with comm.group():
            comm.all_reduce(rows)
            then()

    def grouped() -> None:
        try:
            one(comm.group, lambda: comm.all_reduce(rows))
        finally:
            if not odd:  # what meets the end of the group
                with pytest.raises(vkpar.InvalidUsageError, match="end of a group by an exception"):
                    comm.barrier()

    def early() -> None:
        try:
            group(lambda: None if odd else comm.all_reduce(rows))
        finally:
            if odd:
                with pytest.raises(vkpar.InvalidUsageError, match="end of a group by an exception"):
                    comm.barrier()

    def launched() -> None:
        with comm.group():
            graph.launch() if odd else comm.barrier()

    def twice() -> None:
        group(lambda: comm.all_reduce([row[::2] for row in rows] if odd else [device.zeros(3) for device in devices]))

    refuse(
        team,
        [
            ("comm=", lambda: one(partial(vkpar.capture, devices), lambda: comm.all_reduce(rows))),
            ("inside vkpar.capture", lambda: one(partial(vkpar.capture, devices, comm=comm), comm.barrier)),
            ("inside vkpar.capture", lambda: one(partial(vkpar.capture, devices, comm=comm), lambda: group(nothing))),
            ("comm=", lambda: one(partial(vkpar.capture, devices), lambda: group(nothing))),
            ("in a group", grouped),
            ("the end of a group of 1", early),
            ("outside groups", launched),
            ("pending in a group", twice),
        ],
    )
    with pytest.raises(KeyError if odd else vkpar.InvalidUsageError):
        group(lambda: {}[0] if odd else None)
    with contextlib.suppress(KeyError), vkpar.capture(devices, comm=comm):  # a graph less in one process
        comm.barrier()
        if odd:
            raise KeyError
    for row in rows:
        row.fill(1)
    graph.launch().wait()
    assert np.array_equal(rows[0].numpy(), np.full(6, team.n))


def views(team: Team, comm: vkpar.Communicator) -> None:
    """Views that cannot be written are refused in every process; those that lie between one another are not."""
    devices, odd = team.devices, team.world.rank == team.world.size - 1
    given = np.arange(24, dtype=np.float32).reshape(6, 4)
    rows = [device.zeros(6) for device in devices]
    grids = [device.array(given) for device in devices]
    wide = [device.zeros(1).broadcast_to((6,)) for device in devices]

    def column(number: int) -> list[vkpar.Array]:
        return [grid[:, number] for grid in grids]

    def overlapping() -> None:
        others = [(rows[0], team.n - 1)] * 2 if team.world.rank == 0 else []
        comm.send_recv([(0, grids[-1][:, 0]), (0, grids[-1][:, 0])] if odd else others)

    refuse(
        team,
        [
            ("cannot be written", lambda: comm.all_reduce(rows, out=wide if odd else column(0))),
            ("cannot be written", lambda: comm.broadcast(wide if odd else rows, root=0)),
            ("overlap", overlapping),
        ],
    )
    comm.all_reduce(column(0), out=column(1), wire="f32")
    comm.all_reduce(column(2), out=column(2) if odd else None, wire="f32")
    comm.all_reduce(column(3) if odd else rows, op="max").wait()
    wanted = np.stack([given[:, 0], team.n * given[:, 0], team.n * given[:, 2], given[:, 3]], 1)
    for grid, row in zip(grids, rows, strict=True):
        assert np.array_equal(grid.numpy(), wanted)
        assert np.array_equal(row.numpy(), np.zeros(6) if odd else given[:, 3])


def streams(letters: Sequence[str]) -> None:
    """Sums between operations that nobody waits for, over memory that is dropped and serves the next arrays."""
    team = Team(letters)
    n, own = team.n, team.devices
    with vkpar.Communicator(own, mpi=team.world, timeout=60, wire="f32") as comm:
        for count in (700, 90_001, 600_000):
            kept = [device.zeros(count) for device in own]
            moved = [device.zeros(count) for device in own]
            for turn in range(12):
                given = [device.full(count, rank + turn) for rank, device in zip(comm.local_ranks, own, strict=True)]
                doubled = [vkpar.add(array, array) for array in given]
                if turn % 2:
                    sums = [device.empty(count) for device in own]
                    comm.all_reduce(doubled, out=sums)
                else:
                    sums = doubled
                    comm.all_reduce(doubled)
                comm.broadcast(given, root=turn % n)
                for total, added, last, array in zip(kept, sums, moved, given, strict=True):
                    vkpar.add(total, added, out=total)
                    vkpar.add(last, array, out=last)
                    vkpar.multiply(array, 0, out=array)
                    vkpar.multiply(added, 0, out=added)
            wanted = sum(2 * (rank + turn) for rank in range(n) for turn in range(12))
            for total, last in zip(kept, moved, strict=True):
                assert np.array_equal(total.numpy(), np.full(count, wanted, np.float32)), count
                assert np.array_equal(last.numpy(), np.full(count, sum(t + t % n for t in range(12)), np.float32)), (
                    count
                )


def refused(letters: Sequence[str]) -> None:
    """Communicators and settings that cannot be taken."""
    team = Team(letters)
    from mpi4py import MPI

    world, devices = team.world, team.devices
    half = world.Split(color=world.rank % 2, key=world.rank)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2, 7)
    for given, kind, words in (
        (inter, vkpar.InvalidUsageError, "intercommunicator"),
        (MPI.COMM_NULL, vkpar.InvalidUsageError, "COMM_NULL"),
        (3, vkpar.InvalidUsageError, "communicator of mpi4py"),
    ):
        with pytest.raises(kind, match=words):
            vkpar.Communicator(devices, mpi=given)
    inter.Free()
    with pytest.raises(vkpar.InvalidUsageError, match="all must say the same"):
        vkpar.Communicator(devices, mpi=world, timeout=60, wire="f32" if world.rank else "f16")
    with vkpar.Communicator(devices, mpi=world, timeout=60) as comm:
        cut = vkpar.parallel.shard(np.zeros((4, 4), np.float32), comm, axis=0)
        for refuse in (comm.measure, comm.profile().__enter__, cut.numpy):
            with pytest.raises(vkpar.UnsupportedError, match="process"):
                refuse()
    closes(world, devices)
    # a communicator of Split beside one of all, at the same time
    with (
        vkpar.Communicator(devices, mpi=world, timeout=60) as every,
        vkpar.Communicator(devices, mpi=half, timeout=60) as some,
    ):
        assert every.nranks == team.n
        assert some.nranks == sum(len(word) for word in letters[world.rank % 2 :: 2])
        ones, twos = ([device.array(np.full(5000, fill, np.int32)) for device in devices] for fill in (1, 2))
        for _ in range(3):
            every.all_reduce(ones)
            some.all_reduce(twos)
        assert np.array_equal(ones[0].numpy(), np.full(5000, team.n**3))
        assert np.array_equal(twos[0].numpy(), np.full(5000, 2 * some.nranks**3))
    half.Free()


def unthreaded(letters: Sequence[str]) -> None:
    """An MPI that allows no threads is refused."""
    team = Team(letters)
    with pytest.raises(vkpar.UnsupportedError, match="needs an MPI with threads"):
        vkpar.Communicator(team.devices, mpi=team.world)


def closes(world: Any, devices: Sequence[vkpar.Device]) -> None:
    """A close by another thread ends a call that waits for other processes, whose communicators work until then."""
    comm = vkpar.Communicator(devices, mpi=world, timeout=60)
    odd = world.rank == world.size - 1
    closer = threading.Timer(0.2, comm.close)
    if not odd:
        closer.start()
        with pytest.raises(vkpar.InvalidUsageError, match="closed"):
            comm.barrier()
        closer.join()
    world.Barrier()
    if odd:
        comm.close()


def _own(letters: Sequence[str], process: int) -> range:
    first = len("".join(letters[:process]))
    return range(first, first + len(letters[process]))


def against_mpi(letters: Sequence[str]) -> None:
    """What MPI's own collectives give on the same data, as mpi4py's tests have them: each process is one rank."""
    team = Team(letters)
    world, (device,), n = team.world, team.devices, team.n
    from mpi4py import MPI

    me = world.rank
    ops = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
    with vkpar.Communicator(team.devices, mpi=world, timeout=60) as comm:
        for kind in ("int8", "uint16", "int32", "int64", "float32"):
            given = np.arange(me, me + 300).astype(kind)
            mine = device.array(given)
            for op, theirs in ops.items():
                wanted, out = np.zeros_like(given), device.zeros(300, kind)
                world.Allreduce(given, wanted, theirs)
                comm.all_reduce(
                    [mine], op=op, out=[out], **({"wire": "f32"} if kind == "float32" and op == "sum" else {})
                )
                assert np.array_equal(out.numpy(), wanted), (kind, op)
            for root in range(n):
                wanted, target = np.zeros_like(given), device.zeros(300, kind) if me == root else None
                world.Reduce(given, wanted, MPI.MAX, root)
                comm.reduce([mine], root, op="max", out=target)
                assert target is None or np.array_equal(target.numpy(), wanted), (kind, root)
                wanted, sent = given.copy(), device.array(given)
                world.Bcast(wanted, root)
                comm.broadcast([sent], root)
                assert np.array_equal(sent.numpy(), wanted), (kind, root)
            counts = [10 * (rank + 1) for rank in range(n)]
            part, total = given[: counts[me]], sum(counts)
            wanted, out = np.zeros(total, kind), device.zeros(total, kind)
            world.Allgatherv(part, (wanted, counts))
            comm.all_gather([device.array(part)], out=[out])
            assert np.array_equal(out.numpy(), wanted), kind
            wanted, out = np.zeros(total, kind), device.zeros(total, kind) if me == 0 else None
            world.Gatherv(part, (wanted, counts), 0)
            comm.gather([device.array(part)], 0, out=out)
            assert out is None or np.array_equal(out.numpy(), wanted), kind
            whole = np.arange(total).astype(kind) if me == 0 else None
            wanted, out = np.zeros(counts[me], kind), device.zeros(counts[me], kind)
            world.Scatterv((whole, counts) if me == 0 else None, wanted, 0)
            comm.scatter(None if whole is None else device.array(whole), 0, out=[out], counts=counts)
            assert np.array_equal(out.numpy(), wanted), kind
            flat = np.arange(total).astype(kind)
            wanted, out = np.zeros(counts[me], kind), device.zeros(counts[me], kind)
            world.Reduce_scatter(flat, wanted, counts, MPI.MAX)
            comm.reduce_scatter([device.array(flat)], op="max", out=[out], counts=counts)
            assert np.array_equal(out.numpy(), wanted), kind
            wanted, out = np.zeros(n * counts[me], kind), device.zeros(n * counts[me], kind)
            world.Alltoallv((flat, counts), (wanted, [counts[me]] * n))
            comm.all_to_all([device.array(flat)], out=[out], counts=[counts] * n)
            assert np.array_equal(out.numpy(), wanted), kind


def soak(letters: Sequence[str]) -> None:
    """Reductions of random sizes, ops and dtypes, integers that every process knows: no wrong bit, no growth."""
    team = Team(letters)
    rng = np.random.default_rng(5)  # the same in every process
    calls, begun, sizes = int(os.environ.get("VKPAR_TEST_CALLS", "10000")), time.monotonic(), []
    wholes = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}
    kinds = ["float32", "int32", "float16", "bfloat16", "int8", "uint16", "int64"]
    with vkpar.Communicator(team.devices, mpi=team.world, timeout=60) as comm:
        for number in range(calls):
            kind, op = kinds[rng.integers(len(kinds))], list(wholes)[rng.integers(4)]
            count = int(2 ** rng.uniform(0, 17)) if number % 50 else 500_000
            rows = rng.integers(0, 3, (team.n, count), dtype=np.int8)
            arrays = [
                device.array(rows[rank], kind) for rank, device in zip(comm.local_ranks, team.devices, strict=True)
            ]
            comm.all_reduce(arrays, op=op)
            wanted = wholes[op](rows, axis=0, dtype=np.int32) if op in ("sum", "prod") else wholes[op](rows, axis=0)
            for array in arrays:
                assert np.array_equal(array.numpy().astype(np.int32), wanted), (number, kind, op, count)
            if number % (calls // 10) == calls // 10 - 1:
                sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20)
        if team.world.rank == 0:
            print(f"{calls} reductions in {time.monotonic() - begun:.0f} s; MiB resident: {sizes}", flush=True)
        assert sizes[-1] < sizes[4] + 64, sizes


PATIENCE = 3.0  # seconds, the communicators' timeout where something fails


def _told(rank: int, seconds: float, closed: float, error: BaseException) -> None:
    """Write down what a process was told: a mpiexec that ends all of them may lose what they have printed."""
    with Path(os.environ["VKPAR_TEST_TOLD"]).open("a") as file:
        file.write(f"told {rank} after {seconds:.1f} s, closed after {closed:.1f} s: {error}\n")


def _fails(letters: Sequence[str], fail: Callable[[vkpar.Communicator, list[vkpar.Array]], None]) -> None:
    """Have the last process fail in its way in the midst of sums; the others must be told in time, by an error."""
    team = Team(letters)
    last = team.world.size - 1
    team.world.Barrier()
    comm = vkpar.Communicator(team.devices, mpi=team.world, timeout=PATIENCE, wire="f32")
    arrays = [device.zeros(300_000) for device in team.devices]
    comm.all_reduce(arrays).wait()
    team.world.Barrier()
    begun = time.monotonic()
    try:
        if team.world.rank == last:
            fail(comm, arrays)
        while time.monotonic() - begun < 5 * PATIENCE:
            comm.all_reduce(arrays).wait()
    except vkpar.CommunicatorError as error:
        seconds = time.monotonic() - begun
        spent = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - spent < 0.25, "a thread spins"
        for device in team.devices:  # what the communicator did not touch is there yet, and there is room for more
            assert np.array_equal(device.array(np.arange(300_000)).numpy(), np.arange(300_000))
        comm.close()
        assert comm.failed
        _told(team.world.rank, seconds, time.monotonic() - begun, error)
        with pytest.raises(vkpar.VkparError):
            comm.all_reduce(arrays)
        return
    raise AssertionError("nothing was raised")


def _opens(letters: Sequence[str], where: str, name: str) -> None:
    """The last process fails while it opens its communicator, at the call of a function; the others are told soon."""
    team = Team(letters)
    odd, begun = team.world.rank == team.world.size - 1, time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        if odd:

            def fail(*_: object, **__: object) -> None:
                raise vkpar.OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", name)

            patch.setattr(f"{where}.{name}", fail)
        wanted = vkpar.OutOfMemoryError if odd else vkpar.CommunicatorError
        with pytest.raises(wanted) as caught, vkpar.Communicator(team.devices, mpi=team.world, timeout=30) as comm:
            comm.barrier().wait()
    seconds = time.monotonic() - begun
    if not odd:
        _told(team.world.rank, seconds, seconds, caught.value)


def opens_no_rig(letters: Sequence[str]) -> None:
    """The last process has no memory for its rig."""
    _opens(letters, "vkpar.comm.rig.rig", "CGroup")


def tests_nothing(letters: Sequence[str]) -> None:
    """The last process has no memory for its self-test."""
    _opens(letters, "vkpar.comm.selftest", "run")


def refuses_late(letters: Sequence[str]) -> None:
    """The last process raises after it has agreed to a call, which the others make."""

    def fail(comm: vkpar.Communicator, _arrays: list[vkpar.Array]) -> None:
        def late(*_: object) -> None:
            raise vkpar.InvalidUsageError("raised too late")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vkpar.comm.engine.library.Library.record", late)
            with pytest.raises(vkpar.InvalidUsageError, match="too late"):
                comm.all_reduce([device.zeros(300_000) for device in comm.devices])

    _fails(letters, fail)


def dies(letters: Sequence[str]) -> None:
    """The last process is killed."""
    _fails(letters, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def hangs(letters: Sequence[str]) -> None:
    """The last process makes no call for long."""
    _fails(letters, lambda *_: time.sleep(3 * PATIENCE))


def stops(letters: Sequence[str]) -> None:
    """The last process is stopped."""
    _fails(letters, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))


def stalls(letters: Sequence[str]) -> None:
    """The last process is stopped by another one of its own, while it sums."""

    def fail(comm: vkpar.Communicator, arrays: list[vkpar.Array]) -> None:
        code = "import os, signal, sys, time; time.sleep(0.2); os.kill(int(sys.argv[1]), signal.SIGSTOP)"
        subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
        while True:
            comm.all_reduce(arrays)

    _fails(letters, fail)


def leaves(letters: Sequence[str]) -> None:
    """The last process closes its communicator."""

    def fail(comm: vkpar.Communicator, _arrays: list[vkpar.Array]) -> None:
        comm.close()
        sys.exit(0)

    _fails(letters, fail)


def comes_late(letters: Sequence[str]) -> None:
    """What the last process sends after the first one has failed is written to no array of the first."""
    team = Team(letters)
    (device,), world = team.devices, team.world
    failed, sent = Path(os.environ["VKPAR_TEST_TOLD"] + ".failed"), threading.Event()
    comm = vkpar.Communicator(team.devices, mpi=world, timeout=60.0 if world.rank else 0.5)
    array, fresh = device.zeros(50_000), np.full(50_000, 7, np.float32)
    comm.broadcast([array], root=1).wait()
    world.Barrier()
    if world.rank:
        send = Progress._requests

        def late(*given: Any) -> list[Any]:
            while not failed.exists():
                time.sleep(0.01)
            made = send(*given)
            sent.set()
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Progress, "_look", lambda _: None)  # that the other has failed
            patch.setattr(Progress, "_requests", late)
            comm.broadcast([array], root=1)
            assert sent.wait(60)
            world.send(None, 0)
            world.recv(source=0)
            return
    with pytest.raises(vkpar.CommunicatorError):
        comm.broadcast([array], root=1).wait()
    array.write(fresh)
    failed.touch()
    world.recv(source=1)
    ends = time.monotonic() + 0.3
    while time.monotonic() < ends:  # MPI moves bytes when it is called
        world.Iprobe()
    world.send(None, 1)
    assert np.array_equal(array.numpy(), fresh)
    _told(0, 0, 0, AssertionError("it has what was written"))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(collectives, pairs, graphs, fused, streams, calls, refused, unthreaded, against_mpi, soak),
        *(dies, hangs, stops, stalls, leaves, opens_no_rig, tests_nothing, refuses_late, comes_late),
    )
}


def main() -> None:
    """Run scenarios, joined by commas, one after the other."""
    scenarios, *letters = sys.argv[1:]
    most = 500 if os.environ.get("VKPAR_TEST_FULL") == "1" else 120
    faulthandler.dump_traceback_later(3000 if "soak" in scenarios else most, exit=True)
    for name in scenarios.split(","):
        SCENARIOS[name](letters)
    print(f"{scenarios}: done", flush=True)


if __name__ == "__main__":
    main()
