"""A profile's arithmetic, on made-up counters and records: clocks, bytes, waits, summaries, tables, traces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import dtypes
from vkpar.comm import wires
from vkpar.comm.observe.clocks import ClockLine
from vkpar.comm.observe.collector import Run
from vkpar.comm.observe.steptimes import StepTime, step_times, summarize, table, trace_events
from vkpar.comm.record.timestamps import Planned, planned
from vkpar.comm.schedule.algorithms import barrier, p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, Barrier, Forward, Move, Problem, Reduce, SlotSet, Span, Step
from vkpar.vulkan.query import Sample

US = 1e-6
NAMES = ["one", "two"]
PLAN = wires.plan(dtypes.float32, "f16", TABLE["direct"])
SCALED = 2 * BLOCK + 4  # bytes of a block on that wire


# ---- clocks ----


def test_a_line_through_two_samples_follows_the_drift() -> None:
    """A tick is said to take 10 ns and takes 10.01."""
    line = ClockLine(64, 1e-8, Sample(1000, 5.0, 0.1 * US), Sample(100_001_000, 6.001, 0.1 * US))
    assert line.seconds(1000, 5.0) == pytest.approx(5.0, abs=0.2 * US)
    assert line.seconds(50_001_000, 5.5) == pytest.approx(5.5005, abs=0.2 * US)
    assert line.seconds(100_001_000, 6.0) == pytest.approx(6.001, abs=0.2 * US)
    assert 0.1 * US <= line.uncertainty(6.0) <= 0.25 * US


def test_uncertainty_is_not_taken_for_drift() -> None:
    """A millisecond between two samples of 40 us each says nothing of the period."""
    line = ClockLine(64, 1e-9, Sample(0, 1.0, 40 * US), Sample(1_000_000, 1.00105, 40 * US))
    assert line.slope == 1e-9
    assert line.seconds(0, 1.0) == pytest.approx(1.000025)
    assert line.uncertainty(1.0) == pytest.approx(65 * US)


def test_without_a_second_sample_times_are_less_and_less_certain() -> None:
    line = ClockLine(64, 1e-9, Sample(500, 2.0, 1 * US))
    assert line.seconds(1_000_500, 2.0) == pytest.approx(2.001)
    assert line.uncertainty(2.0) == pytest.approx(1 * US)
    assert line.uncertainty(12.0) > 100 * US


@given(st.integers(20, 40), st.floats(0, 30), st.floats(-0.45, 0.45))
def test_a_counter_that_began_anew(bits: int, cycles: float, away: float) -> None:
    """The moment is found from the one of the enqueueing, half a cycle away at most."""
    cycle = 1 << bits
    start, at = 3 * cycle // 4, round(cycles * cycle)
    line = ClockLine(bits, 1e-9, Sample(start, 7.0, 0.0))
    moment = 7.0 + 1e-9 * at
    found = line.seconds((start + at) % cycle, moment + away * 1e-9 * cycle)
    assert found == pytest.approx(moment, abs=2e-9)


# ---- what is known before a step runs ----


def test_bytes_and_sources_of_steps() -> None:
    span = Span(0, 3 * BLOCK - 5)  # the last block travels whole
    steps = [
        Step(0, "publish", (Reduce(span, own_at=0, out_slot=1),)),
        Step(1, "publish", (Reduce(span, own_at=0, out_slot=2),)),
        Step(0, "reduce", (Reduce(span, (2, 1), to_array=True, out_slot=3, final=True),)),
        Step(1, "gather", (Forward(span, 3, 4),)),
        Step(1, "meet", (Barrier((4,), 5),)),
    ]
    found = planned(steps, PLAN)
    nbytes = 3 * SCALED
    assert [(p.rank, p.index) for p in found] == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert [p.sent_nbytes for p in found] == [nbytes, nbytes, nbytes, nbytes, 0]
    assert [p.received_nbytes for p in found] == [0, 0, 2 * nbytes, nbytes, 0]
    assert [p.sources for p in found] == [(), (), ((1, 0), (0, 0)), ((0, 1),), ((1, 1),)]


def test_a_step_that_fills_the_slot_that_it_reads_has_the_earlier_writer() -> None:
    span = Span(0, BLOCK)
    steps = [
        Step(0, "a", (Reduce(span, own_at=0, out_slot=1),)),
        Step(1, "b", (Forward(span, 1), Reduce(span, own_at=0, out_slot=1))),
    ]
    assert planned(steps, PLAN)[1].sources == ((0, 0),)


def test_sums_that_travel_are_counted_as_wide_as_they_are() -> None:
    """In a ring, unfinished sums of halves are sent as float32, finished ones as halves."""
    plan = wires.plan(dtypes.float16, "f16", TABLE["ring"])
    problem = Problem(2, 2 * BLOCK, SlotSet(2, 4, 8), (0, 1))
    found = planned(list(TABLE["ring"].steps(problem)), plan)
    for rank in range(2):
        assert sum(p.sent_nbytes for p in found if p.rank == rank) == 4 * BLOCK + 2 * BLOCK
        assert sum(p.received_nbytes for p in found if p.rank == rank) == 4 * BLOCK + 2 * BLOCK


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_all_that_is_read_was_written_by_an_earlier_step(name: str, nranks: int) -> None:
    slots = SlotSet(nranks, 2 * nranks, 4)
    problem = Problem(nranks, 100 * BLOCK + 7, slots, tuple(range(nranks)))
    steps = list(TABLE[name].steps(problem))
    check_sources(steps)


def test_sources_of_movements_and_barriers() -> None:
    slots = SlotSet(3, 6, 4)
    moves = [Move(Span(rank * BLOCK * 9, BLOCK * 9), rank, ((rank + 1) % 3,)) for rank in range(3)]
    check_sources(list(p2p.steps(moves, slots)))
    check_sources(list(barrier.steps(slots)))


def check_sources(steps: list[Step]) -> None:
    found = planned(steps, PLAN)
    places = {(p.rank, p.index): number for number, p in enumerate(found)}
    for number, (step, made) in enumerate(zip(steps, found, strict=True)):
        assert all(places[source] < number for source in made.sources)
        written = {slot for source in made.sources for slot in steps[places[source]].writes}
        assert written >= set(step.reads)


# ---- waits ----


class Ticks:
    """A counter of microseconds from 0."""

    def seconds(self, ticks: int, near: float) -> float:
        return ticks * US


def two_ranks(second: tuple[int, int], enqueued: float = 0.0, sequence: int = 1) -> Run:
    """Return a run in which rank 1's step reads what rank 0's, from 10 to 20 us, wrote."""
    steps = (Planned(0, "publish", 0, 0, 1000), Planned(1, "gather", 0, 1000, 0, ((0, 0),)))
    return Run(sequence, "broadcast", enqueued, steps, {0: [(10, 20)], 1: [second]})


def test_a_step_waits_from_its_enqueueing_and_the_bridge_from_its_source() -> None:
    first, second = step_times([two_ranks((26, 30), 4 * US)], [Ticks(), Ticks()], NAMES, {(0, 1)})
    assert (first.rank, first.device, first.phase, first.op, first.sequence) == (0, "one", "publish", "broadcast", 1)
    assert (first.begin, first.end) == pytest.approx((10 * US, 20 * US))
    assert (first.wait, first.bridge) == (pytest.approx(6 * US), 0.0)
    assert (second.wait, second.bridge) == (pytest.approx(22 * US), pytest.approx(6 * US))
    assert (second.received_nbytes, second.sent_nbytes, second.sources) == (1000, 0, ((0, 0),))


def test_native_links_have_no_bridge() -> None:
    assert step_times([two_ranks((26, 30))], [Ticks(), Ticks()], NAMES, {(1, 0)})[1].bridge == 0.0


def test_a_step_waits_from_the_end_of_the_rank_s_step_before() -> None:
    """Rank 1 was busy until 28 us, with a collective before: the bridge was there by then."""
    busy = Run(1, "reduce", 0.0, (Planned(1, "publish", 0),), {1: [(5, 28)]})
    runs = [two_ranks((31, 40), sequence=2), busy]  # in any order
    found = step_times(runs, [Ticks(), Ticks()], NAMES, {(0, 1)})
    assert [step.sequence for step in found] == [1, 2, 2]
    assert (found[2].wait, found[2].bridge) == pytest.approx((3 * US, 3 * US))


def test_clocks_that_disagree_make_no_negative_wait() -> None:
    second = step_times([two_ranks((15, 18), 30 * US)], [Ticks(), Ticks()], NAMES, {(0, 1)})[1]
    assert (second.wait, second.bridge) == (0.0, 0.0)


def test_of_several_sources_the_last_one_counts() -> None:
    steps = (Planned(0, "a", 0), Planned(1, "b", 0), Planned(2, "c", 0, sources=((0, 0), (1, 0))))
    run = Run(1, "x", 0.0, steps, {0: [(0, 50)], 1: [(0, 10)], 2: [(70, 80)]})
    clocks, names = [Ticks()] * 3, ["a", "b", "c"]
    assert step_times([run], clocks, names, {(0, 2), (1, 2)})[2].bridge == pytest.approx(20 * US)
    assert step_times([run], clocks, names, {(1, 2)})[2].bridge == 0.0  # the last one's link is native


# ---- what is made of steps ----


def some_steps() -> list[StepTime]:
    """Return two collectives of two ranks, 3 us apart."""
    made = []
    for call, (rank, phase) in itertools.product(range(2), [(1, "publish"), (0, "publish"), (0, "reduce")]):
        begin = (10 * call + (5 if phase == "reduce" else 0)) * US
        took = (2 + call) * US
        made.append(
            StepTime(
                call + 1, "all_reduce", rank, NAMES[rank], phase, 0, begin, begin + took, 10_000, 5_000, US, 0.25 * US
            )
        )
    return made


def test_a_summary_has_a_row_per_rank_and_phase() -> None:
    rows = summarize(some_steps())
    assert [(row.rank, row.device, row.phase, row.steps) for row in rows] == [
        (0, "one", "publish", 2),
        (0, "one", "reduce", 2),
        (1, "two", "publish", 2),
    ]
    for row in rows:
        assert (row.median_us, row.total_us) == pytest.approx((2.5, 5.0))
        assert (row.received_gbps, row.sent_gbps) == pytest.approx((4.0, 2.0))
        assert (row.wait_us, row.bridge_us) == pytest.approx((2.0, 0.5))


def test_steps_that_took_no_time_have_no_rate() -> None:
    step = StepTime(1, "barrier", 0, "one", "arrive", 0, 1.0, 1.0, 0, 0, 0.0, 0.0)
    assert (summarize([step])[0].sent_gbps, summarize([])) == (0.0, [])


def test_a_table_is_aligned() -> None:
    lines = table(summarize(some_steps()))
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 78
    assert lines[0].split()[:3] == ["rank", "phase", "steps"]
    assert lines[1].split() == ["(us)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(us)"]
    assert lines[2].split() == ["0", "publish", "2", "2.5", "5.0", "4.000", "2.000", "2.0", "0.5"]
    assert table([])[0].startswith("rank")


def test_a_trace_has_a_process_per_rank() -> None:
    document = json.loads(json.dumps(trace_events(some_steps(), NAMES)))
    events = document["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "rank 0: one", 2: "rank 1: two"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len([event for event in slices if event["tid"] == 1]) == 6
    waits = [event for event in slices if event["tid"] == 2]
    assert sum(event["dur"] for event in waits) == pytest.approx(6.0)
    assert min(event["ts"] for event in slices) == pytest.approx(0.0)
    assert all(event["cat"] == "all_reduce" and event["dur"] >= 0 for event in slices)
    assert trace_events([], [])["traceEvents"] == []
