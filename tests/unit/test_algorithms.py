"""Every algorithm's schedule, run by the simulator: no deadlock, no race, right sums, the published costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import Counts, Plain, ScheduleError, Simulator, _Run, problem

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.comm.algorithms import TABLE, Algorithm
from vkpar.comm.schedule import BLOCK, MOST_SOURCES, Forward, Reduce, SlotSet, Step

ALGORITHMS = list(TABLE)
RANKS = range(1, 9)
COUNTS = (1, 255, 256, 257, 1000, 1024, 2560, 5000)


def slots_for(algorithm: Algorithm, nranks: int, blocks: int, extra: int = 0, base: int = 0) -> SlotSet:
    """Return the fewest slots that the algorithm takes, and ``extra`` more a rank."""
    return SlotSet(nranks, algorithm.least_slots(nranks) + extra, blocks, base)


def data(nranks: int, count: int, silent: Sequence[int], dtype: type) -> list[np.ndarray | None]:
    """Return integer-valued arrays, so that every order of summation gives the same sum."""
    rng = np.random.default_rng(count)
    made = [rng.integers(-(1 << 40), 1 << 40, count).astype(dtype) for _ in range(nranks)]
    return [None if rank in silent else array for rank, array in enumerate(made)]


def run(
    name: str,
    nranks: int,
    count: int,
    slots: SlotSet,
    silent: Sequence[int] = (),
    *,
    dtype: type = np.int64,
    calls: int = 2,
    seed: int = 0,
    in_place: bool = True,
) -> list[Counts]:
    """Run ``calls`` collectives back to back over the same slots, generations in turn, and check the sums."""
    enqueued, expected, results = [], [], []
    for call in range(calls):
        arrays = data(nranks, count, silent, dtype)
        expected.append(sum(array for array in arrays if array is not None))
        stale = [np.full(count, 777, dtype) for _ in range(nranks)]
        targets = [a if in_place and a is not None else stale[r] for r, a in enumerate(arrays)]
        steps = TABLE[name].steps(problem(nranks, count, slots, silent, call % 2))
        enqueued.append((steps, arrays, targets))
        results.append(targets)
    counts = Simulator(slots, seed).run_all(enqueued, Plain())
    for want, targets in zip(expected, results, strict=True):
        for rank, target in enumerate(targets):
            assert np.array_equal(target, want), f"rank {rank}"
    return counts


def check_ownership(name: str, counts: Counts) -> None:
    """Each element is finished by one rank; with direct, by none: every rank sums for itself."""
    finished = sum(counts.finished)
    assert np.all(finished == (0 if TABLE[name].every_rank_sums else 1))


@pytest.mark.parametrize("nranks", RANKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_and_ownership(name: str, nranks: int) -> None:
    for seed, count in enumerate(COUNTS):
        slots = slots_for(TABLE[name], nranks, blocks=1 + seed % 3, extra=seed % 4, base=seed)
        dtype = (np.int64, np.float64)[seed % 2]
        for counts in run(name, nranks, count, slots, dtype=dtype, calls=3, seed=seed, in_place=bool(seed % 3)):
            check_ownership(name, counts)


@given(
    st.sampled_from(ALGORITHMS),
    st.integers(1, 8),
    st.integers(1, 5000),
    st.integers(1, 5),
    st.integers(0, 5),
    st.integers(0, 1 << 30),
    st.data(),
)
def test_any_problem(
    name: str, nranks: int, count: int, blocks: int, extra: int, seed: int, draw: st.DataObject
) -> None:
    silent = draw.draw(st.sets(st.integers(0, nranks - 1), max_size=nranks - 1))
    slots = slots_for(TABLE[name], nranks, blocks, extra)
    for counts in run(name, nranks, count, slots, sorted(silent), calls=3, seed=seed, in_place=bool(seed % 2)):
        check_ownership(name, counts)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_order_of_the_queues(name: str, seed: int) -> None:
    """The fewest slots, many segments, several calls in flight: where a missing wait would show."""
    nranks = 3 + seed % 3
    run(name, nranks, 5000, slots_for(TABLE[name], nranks, 1), silent=[seed % nranks] * (seed % 2), calls=4, seed=seed)


@pytest.mark.parametrize("nranks", range(2, 9))
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_ring_moves_what_was_published(nranks: int, segments: int) -> None:
    """Patarasuk and Yuan 2009: 2(n-1) steps, of which each sends 1/n of the array, to the next rank alone."""
    blocks = 6 * nranks
    slots = SlotSet(nranks, 2, 6 // segments)
    (counts,) = run("ring", nranks, blocks * BLOCK, slots, calls=1)
    assert counts.hops == 2 * (nranks - 1)
    assert counts.steps == [segments * (2 * nranks - 1)] * nranks
    assert counts.sent_blocks == [2 * (nranks - 1) * blocks // nranks] * nranks
    assert counts.talked == {(rank, (rank - 1) % nranks) for rank in range(nranks)}


@pytest.mark.parametrize("nranks", range(2, 9))
@pytest.mark.parametrize("count", [1, 300, 5000])
def test_ring_sends_as_much_for_any_count(nranks: int, count: int) -> None:
    (counts,) = run("ring", nranks, count, SlotSet(nranks, 4, 3), calls=1)
    assert sum(counts.sent_blocks) == 2 * (nranks - 1) * -(-count // BLOCK)
    assert counts.hops == 2 * (nranks - 1)


@pytest.mark.parametrize("nranks", range(2, 9))
def test_two_shot_takes_two_hops(nranks: int) -> None:
    """Each rank publishes what the others own, (n-1)/n of the array, and its own sum, 1/n."""
    blocks = 3 * nranks
    (counts,) = run("two_shot", nranks, blocks * BLOCK, SlotSet(nranks, 2 * nranks, 3), calls=1)
    assert counts.hops == 2
    assert counts.sent_blocks == [blocks] * nranks
    assert counts.steps == [3] * nranks


@pytest.mark.parametrize("nranks", range(2, 9))
def test_direct_takes_one_hop(nranks: int) -> None:
    (counts,) = run("direct", nranks, 4 * BLOCK, SlotSet(nranks, 2, 4), calls=1)
    assert counts.hops == 1
    assert counts.sent_blocks == [4] * nranks
    assert counts.steps == [2] * nranks


@pytest.mark.parametrize("nranks", range(2, 9))
def test_naive_goes_through_rank_zero(nranks: int) -> None:
    (counts,) = run("naive", nranks, 4 * BLOCK, SlotSet(nranks, 2, 4), calls=1)
    assert counts.hops == 2
    assert counts.sent_blocks == [4] * nranks
    assert all(0 in pair for pair in counts.talked)
    assert counts.finished[0].all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replicas_agree_on_owners_but_not_on_direct(name: str) -> None:
    """Only direct lets every rank sum; it must say so, because mixed rigs rely on it."""
    steps = list(TABLE[name].steps(problem(3, 2000, slots_for(TABLE[name], 3, 2))))
    summed_for_all = any(
        isinstance(action, Reduce) and action.to_array and not action.final for step in steps for action in step.actions
    )
    assert summed_for_all == TABLE[name].every_rank_sums
    partial = any(
        isinstance(action, Reduce) and action.sources and action.out_slot is not None and not action.final
        for step in steps
        for action in step.actions
    )
    assert partial == TABLE[name].sums_travel


@pytest.mark.parametrize("nranks", RANKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_fewer_slots_than_least_are_refused(name: str, nranks: int) -> None:
    algorithm = TABLE[name]
    fewer = SlotSet(nranks, algorithm.least_slots(nranks) - 1, 4)
    with pytest.raises(InvalidUsageError, match=f"{name} needs {algorithm.least_slots(nranks)} slots"):
        list(algorithm.steps(problem(nranks, 100, fewer)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_more_ranks_than_a_kernel_sums(name: str) -> None:
    nranks = MOST_SOURCES + 1
    slots = slots_for(TABLE[name], nranks, 1)
    if name == "ring":
        run(name, nranks, 5000, slots, calls=1)
    else:
        with pytest.raises(UnsupportedError, match=str(MOST_SOURCES)):
            list(TABLE[name].steps(problem(nranks, 100, slots)))


# ---- the simulator finds what is wrong ----


def fails(steps: Sequence[Step], slots: SlotSet, count: int, *, last_reader_only: bool = False) -> bool:
    """Say whether any of some random orders shows that ``steps`` are wrong."""
    arrays = data(slots.nranks, count, (), np.int64)
    want = sum(array for array in arrays if array is not None)
    for seed in range(30):
        mine = [array.copy() for array in arrays if array is not None]
        try:
            Simulator(slots, seed, last_reader_only=last_reader_only).run(steps, mine, mine, Plain())
        except ScheduleError:
            return True
        if not all(np.array_equal(array, want) for array in mine):
            return True
    return False


def with_slots(steps: Sequence[Step], change: dict[int, int]) -> Iterator[Step]:
    """Yield the steps with other slots."""

    def other(slot: int | None) -> int | None:
        return slot if slot is None else change.get(slot, slot)

    for step in steps:
        actions = [
            dataclasses.replace(
                action,
                sources=tuple(change.get(slot, slot) for slot in action.sources),
                out_slot=other(action.out_slot),
            )
            if isinstance(action, Reduce)
            else dataclasses.replace(action, slot=change.get(action.slot, action.slot), out_slot=other(action.out_slot))
            for action in step.actions
        ]
        yield dataclasses.replace(step, actions=tuple(actions))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_slot_that_is_reused_too_early_is_found(name: str) -> None:
    slots = slots_for(TABLE[name], 3, 1)
    steps = list(TABLE[name].steps(problem(3, 5000, slots)))
    assert not fails(steps, slots, 5000)
    merged = {slot: slot - slot % slots.per_rank for slot in range(3 * slots.per_rank)}
    assert fails(list(with_slots(steps, merged)), slots, 5000)


def test_a_reader_that_nobody_waits_for_is_found() -> None:
    """Direct's slots are read by all ranks: to wait for the last one of them alone is a race from three ranks on."""
    slots = SlotSet(4, 2, 1)
    steps = list(TABLE["direct"].steps(problem(4, 5000, slots)))
    assert not fails(steps, slots, 5000)
    assert fails(steps, slots, 5000, last_reader_only=True)


def test_a_deadlock_is_found() -> None:
    """Two queues that take two collectives in opposite orders wait for each other."""
    slots = SlotSet(2, 2, 1)
    simulator = Simulator(slots)
    arrays = [array for array in data(2, 100, (), np.int64) if array is not None]
    steps = list(TABLE["direct"].steps(problem(2, 100, slots)))
    queued = [simulator._enqueue(step) for step in steps]
    queues = [[item for item in queued if item.step.rank == rank] for rank in range(2)]
    runs = _Run(simulator, arrays, arrays, Plain())
    reversed_queues = [[(item, runs) for item in reversed(queue)] for queue in queues]
    with pytest.raises(ScheduleError, match="deadlock"):
        simulator._drain(reversed_queues)


def test_a_step_out_of_the_global_order_is_found() -> None:
    slots = SlotSet(3, 2, 1)
    steps = list(TABLE["ring"].steps(problem(3, 2000, slots)))
    assert fails(list(reversed(steps)), slots, 2000)
    assert fails([step for step in steps if step is not steps[4]], slots, 2000)


def test_a_forward_of_an_unfinished_sum_is_found() -> None:
    slots = SlotSet(2, 2, 4)
    steps = list(TABLE["naive"].steps(problem(2, 100, slots)))
    final = next(step for step in steps if step.phase == "reduce")
    broken = dataclasses.replace(final, actions=(dataclasses.replace(final.actions[0], final=False),))
    assert isinstance(steps[-1].actions[0], Forward)
    assert fails([broken if step is final else step for step in steps], slots, 100)
