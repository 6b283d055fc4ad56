"""Problems and moves for the simulator, and what they must come to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers.comm.running import Call, Codec, Counts, Plain, part
from helpers.comm.simulator import Simulator, problem, shared_slots

from vkpar.comm.schedule.algorithms import p2p
from vkpar.comm.schedule.algorithms.table import TABLE, Algorithm
from vkpar.comm.schedule.slot_copies import QueueMap, through_copies
from vkpar.comm.schedule.steps import BLOCK, Move, Problem, SlotSet, Span

Numbers = npt.NDArray[Any]
PAIRS = [(name, collective) for name, algorithm in TABLE.items() for collective in sorted(algorithm.collectives)]
STALE = 777  # what a destination holds before


def slots_for(algorithm: Algorithm, nranks: int, blocks: int, extra: int = 0, base: int = 0) -> SlotSet:
    """Return the fewest slots that the algorithm takes, and ``extra`` more a rank."""
    return SlotSet(nranks, algorithm.least_slots(nranks) + extra, blocks, base)


def spans_of(counts: Iterable[int]) -> tuple[Span, ...]:
    """Return spans of ``counts`` elements, each from the next block on."""
    spans, start = [], 0
    for count in counts:
        spans.append(Span(start, count))
        start += -(-count // BLOCK) * BLOCK
    return tuple(spans)


def posed(
    collective: str,
    counts: Sequence[int],
    slots: SlotSet,
    silent: Sequence[int] = (),
    generation: int = 0,
    root: int = 0,
) -> Problem:
    """Return the problem; ``counts`` are a reduce_scatter's parts and sum up to any other's array."""
    n = slots.nranks
    if collective == "reduce_scatter":
        parts = spans_of(counts)
        return problem(n, parts[-1].start + parts[-1].count, slots, silent, generation, parts=parts)
    chosen = root if collective == "reduce" else None
    return problem(n, sum(counts), slots, silent, generation, root=chosen)


def split(count: int, nranks: int) -> list[int]:
    """Return the sizes of the parts into which ``numpy.array_split`` cuts."""
    return [count // nranks + (rank < count % nranks) for rank in range(nranks)]


def data(nranks: int, count: int, silent: Sequence[int] = (), dtype: type = np.int64, seed: int = 0) -> list[Any]:
    """Return integer-valued arrays, so that every order of summation gives the same sum; None for the silent."""
    rng = np.random.default_rng((seed, count))
    made = [rng.integers(-(1 << 40), 1 << 40, count).astype(dtype) for _ in range(nranks)]
    return [None if rank in silent else array for rank, array in enumerate(made)]


@dataclass
class Expected:
    """A call, and what its targets must hold after it; None where a rank must store nothing."""

    call: Call
    results: list[Numbers | None]

    def check(self) -> None:
        """Compare."""
        for rank, (target, want) in enumerate(zip(self.call.targets, self.results, strict=True)):
            assert (target is None) == (want is None)
            assert want is None or np.array_equal(target, want), f"rank {rank}"


def received(given: Problem, rank: int) -> list[Span]:
    """Return what ``rank`` is to hold."""
    if given.parts is not None:
        return [given.parts[rank]]
    return [Span(0, given.count)] if given.root in (None, rank) else []


def reduction(
    name: str,
    given: Problem,
    *,
    dtype: type = np.int64,
    in_place: bool = True,
    seed: int = 0,
    codec: Codec | None = None,
) -> Expected:
    """Return the call of a sum and what it must give."""
    silent = [rank for rank in range(given.nranks) if not given.contributes(rank)]
    arrays = data(given.nranks, given.count, silent, dtype, seed)
    total = sum(array for array in arrays if array is not None)
    targets: list[Numbers | None] = []
    for rank, array in enumerate(arrays):
        own = array if in_place and array is not None else np.full(given.count, STALE, dtype)
        targets.append(own if received(given, rank) else None)
    results = [None if target is None else target.copy() for target in targets]
    for rank, want in enumerate(results):
        for span in received(given, rank):
            assert want is not None
            want[part(span)] = total[part(span)]
    return Expected(Call(TABLE[name].steps(given), arrays, targets, codec or Plain()), results)


def movement(moves: Sequence[Move], slots: SlotSet, generation: int = 0, *, seed: int = 0) -> Expected:
    """Return the call of an exchange and what it must give; ranks have arrays for what they send and receive."""
    n = slots.nranks
    count = max((move.span.start + move.span.count for move in moves), default=0)
    senders = {move.source for move in moves}
    takers = {target for move in moves for target in move.targets}
    arrays = data(n, count, [rank for rank in range(n) if rank not in senders], seed=seed)
    targets = [np.full(count, STALE, np.int64) if rank in takers else None for rank in range(n)]
    results = [None if target is None else target.copy() for target in targets]
    for move in moves:
        for rank in move.targets:
            results[rank][part(move.span)] = arrays[move.source][part(move.span)]
    return Expected(Call(p2p.steps(moves, slots, generation), arrays, targets), results)


def run(
    expected: Sequence[Expected],
    slots: SlotSet,
    *,
    seed: int = 0,
    queues: int = 1,
    queue_map: QueueMap | None = None,
    **faults: bool,
) -> list[Counts]:
    """Run the calls back to back over the same slots and check their results; through copies with ``queue_map``."""
    for item in expected if queue_map else ():
        item.call.steps = through_copies(item.call.steps, queue_map, shared_slots(slots))
    before = [[None if array is None else array.copy() for array in item.call.arrays] for item in expected]
    counts = Simulator(slots, seed, queues=queues, queue_map=queue_map, **faults).run_all(
        [item.call for item in expected]
    )
    for item, arrays in zip(expected, before, strict=True):
        item.check()
        for array, copy, target in zip(item.call.arrays, arrays, item.call.targets, strict=True):
            assert array is target or array is None or np.array_equal(array, copy)
    return counts


def run_one(name: str, given: Problem, *, seed: int = 0, queues: int = 1) -> Counts:
    """Run one reduction and check it."""
    return run([reduction(name, given)], given.slots, seed=seed, queues=queues)[0]


# ---- the movements ----


def all_gather(counts: Sequence[int]) -> list[Move]:
    """Return the moves that give every rank's part to all others."""
    ranks = range(len(counts))
    return [
        Move(span, rank, tuple(other for other in ranks if other != rank)) for rank, span in enumerate(spans_of(counts))
    ]


def broadcast(nranks: int, count: int, root: int) -> list[Move]:
    """Return the move of the root's array to all others."""
    return [Move(Span(0, count), root, tuple(rank for rank in range(nranks) if rank != root))]


def all_to_all(counts: Sequence[Sequence[int]]) -> list[Move]:
    """Return the moves of ``counts[r][s]`` elements from rank r to rank s."""
    pairs = list(itertools.product(range(len(counts)), repeat=2))
    spans = spans_of(counts[source][target] for source, target in pairs)
    return [
        Move(span, source, (target,)) for (source, target), span in zip(pairs, spans, strict=True) if source != target
    ]
