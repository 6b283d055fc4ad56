"""The times of single steps: their records, tables and traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from vkpar import text
from vkpar.comm.observe.collector import Run
from vkpar.comm.record.timestamps import Planned


class Clock(Protocol):
    """Turns a device's counter into seconds of the host's clock."""

    def seconds(self, ticks: int, near: float) -> float:
        """Return the moment of ``ticks``, which is not far from ``near`` seconds."""


@dataclass(frozen=True)
class StepTime:
    """One step of one collective on one rank; times are in seconds, and moments are values of ``time.monotonic``.

    Attributes:
        sequence: the collective's number in its communicator, from 1; ``op`` its name.
        device: the name of the rank's device.
        phase: what the step is for, such as ``"publish"``, ``"reduce"`` or ``"gather"``.
        index: its number among the rank's steps of this collective.
        begin: when its queue began it, after all earlier work of the queue; ``end`` is when its results were written.
        received_nbytes: wire bytes that it read from slots; ``sent_nbytes`` counts wire bytes that it wrote to slots.
        wait: from the end of its queue's step before, or from the enqueueing where that was later, to ``begin``.
        bridge: the part of ``wait`` after the end of the last step that it reads from, where the link from that step's
            rank is bridged: the host passed the signal on, and copied slots of mapped ranks. It is 0 on native links.
        sources: the steps whose slots it reads, as rank and index.
        lane: the number of its queue, where that is a copy queue; None for the rank's compute queue.
    """

    sequence: int
    op: str
    rank: int
    device: str
    phase: str
    index: int
    begin: float
    end: float
    received_nbytes: int
    sent_nbytes: int
    wait: float
    bridge: float
    sources: tuple[tuple[int, int], ...] = ()
    lane: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


def step_times(
    runs: Iterable[Run], lines: Sequence[Clock], names: Sequence[str], bridged: Collection[tuple[int, int]]
) -> tuple[StepTime, ...]:
    """Return the steps of ``runs`` in the order of enqueueing."""
    made: list[StepTime] = []
    before: dict[int, float] = {}  # when each queue's last step ended
    for run in sorted(runs, key=lambda run: run.sequence):
        moments = {(step.rank, step.index): _moments(step, run, lines[step.rank]) for step in run.steps}
        for step in run.steps:
            begin, end = moments[step.rank, step.index]
            ready = max(run.enqueued, before.get(step.queue, run.enqueued))
            before[step.queue] = end
            wait = max(0.0, begin - ready)
            last = max(((moments[source][1], source[0]) for source in step.sources), default=(begin, step.rank))
            passed_on = max(0.0, begin - max(ready, last[0])) if (last[1], step.rank) in bridged else 0.0
            made.append(
                StepTime(
                    run.sequence,
                    run.op,
                    step.rank,
                    names[step.rank],
                    step.phase,
                    step.index,
                    begin,
                    end,
                    step.received_nbytes,
                    step.sent_nbytes,
                    wait,
                    passed_on,
                    step.sources,
                    None if step.queue == step.rank else step.queue,
                )
            )
    return tuple(made)


def _moments(step: Planned, run: Run, line: Clock) -> tuple[float, float]:
    """Return when ``step`` began and ended."""
    queue, number = step.place or (step.rank, step.index)
    begin, end = run.ticks[queue][number]
    return line.seconds(begin, run.enqueued), line.seconds(end, run.enqueued)


# ---- summaries ----


@dataclass(frozen=True)
class PhaseSummary:
    """All steps of one phase on one rank.

    Attributes:
        steps: how many steps there were.
        median_us: the median time of a step; ``total_us`` is the time of all steps.
        received_gbps: 10^9 wire bytes a second that the steps read from slots while they ran; ``sent_gbps`` is the same
            for bytes written to slots.
        wait_us: how long the steps waited, in all; ``bridge_us`` is the part that bridged links took.
    """

    rank: int
    device: str
    phase: str
    steps: int
    median_us: float
    total_us: float
    received_gbps: float
    sent_gbps: float
    wait_us: float
    bridge_us: float


def summarize(steps: Iterable[StepTime]) -> list[PhaseSummary]:
    """Return a row per rank and phase, phases in the order in which they first ran."""
    groups: dict[tuple[int, str], list[StepTime]] = {}
    for step in steps:
        groups.setdefault((step.rank, step.phase), []).append(step)
    return [_summary(groups[key]) for key in sorted(groups, key=lambda key: key[0])]


def _summary(steps: Sequence[StepTime]) -> PhaseSummary:
    total = sum(step.seconds for step in steps)
    per_second = 1e-9 / total if total > 0 else 0.0
    return PhaseSummary(
        steps[0].rank,
        steps[0].device,
        steps[0].phase,
        len(steps),
        median_us=1e6 * median(step.seconds for step in steps),
        total_us=1e6 * total,
        received_gbps=per_second * sum(step.received_nbytes for step in steps),
        sent_gbps=per_second * sum(step.sent_nbytes for step in steps),
        wait_us=1e6 * sum(step.wait for step in steps),
        bridge_us=1e6 * sum(step.bridge for step in steps),
    )


_COLUMNS = ("rank", "phase", "steps", "median", "total", "received", "sent", "wait", "bridge")
_UNITS = ("", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(us)")


def table(rows: Iterable[PhaseSummary]) -> list[str]:
    """Return aligned lines: titles, units, and one per row."""
    return text.columns([_COLUMNS, _UNITS, *(_cells(row) for row in rows)], left=(1,))


def _cells(row: PhaseSummary) -> tuple[str, ...]:
    times = row.median_us, row.total_us, row.wait_us, row.bridge_us
    middle, total, wait, bridge = (f"{value:.1f}" for value in times)
    rates = f"{row.received_gbps:.3f}", f"{row.sent_gbps:.3f}"
    return (str(row.rank), row.phase, str(row.steps), middle, total, *rates, wait, bridge)


# ---- traces ----


@dataclass(frozen=True)
class Places:
    """Where a trace shows the steps of one communicator.

    Attributes:
        processes: by rank, the trace's process.
        first: the first thread of it that is for these steps; each queue takes two.
        origin: the moment that counts as 0.
        flows: the number of the first arrow.
        title: what threads' names begin with.
    """

    processes: Sequence[int]
    first: int = 1
    origin: float = 0.0
    flows: int | None = None
    title: str = ""


def trace_events(steps: Sequence[StepTime], names: Sequence[str]) -> dict[str, Any]:
    """Return a Chrome trace-event document: a process per rank, with a thread of steps and one of waits per queue."""
    origin = min((step.begin - step.wait for step in steps), default=0.0)
    events = [named("process_name", rank + 1, 0, f"rank {rank}: {name}") for rank, name in enumerate(names)]
    events += step_events(steps, Places(range(1, len(names) + 1), origin=origin))
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"origin_monotonic_seconds": origin}}


def step_events(steps: Sequence[StepTime], places: Places) -> list[dict[str, Any]]:
    """Return the trace events of steps and of what they waited for, with arrows from the steps that they read from."""
    events: list[dict[str, Any]] = []
    threads: dict[tuple[int, int | None], int] = {}
    lanes = {(step.rank, step.lane) for step in steps} | {(rank, None) for rank in range(len(places.processes))}
    for rank, lane in sorted(lanes, key=lambda each: (each[0], -1 if each[1] is None else each[1])):
        copies = sum(1 for known in threads if known[0] == rank)
        thread = threads[rank, lane] = places.first + 2 * copies
        kind, waits = ("copies", "waits of copies") if copies else ("steps", "waits")
        events.append(named("thread_name", places.processes[rank], thread, places.title + kind))
        events.append(named("thread_name", places.processes[rank], thread + 1, places.title + waits))
    ends = {(step.sequence, step.rank, step.index): step for step in steps}
    for step in steps:
        place = places.processes[step.rank], threads[step.rank, step.lane]
        at = step.begin - places.origin
        events.append(_slice(step.phase, step, *place, at, step.seconds))
        waits_of = (("wait", step.wait, step.wait - step.bridge), ("bridge", step.bridge, step.bridge))
        events += [
            _slice(what, step, place[0], place[1] + 1, at - ago, took) for what, ago, took in waits_of if took > 0
        ]
        if places.flows is not None:
            for rank, index in step.sources:
                source = ends.get((step.sequence, rank, index))
                if source is not None and rank != step.rank:
                    number = places.flows + len(events)
                    begin = places.processes[rank], threads[rank, source.lane], source.end - places.origin
                    events += _arrow(number, begin, (*place, at))
    return events


def named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return the trace event that names a process or a thread."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _arrow(number: int, begin: tuple[int, int, float], end: tuple[int, int, float]) -> list[dict[str, Any]]:
    """Return the two events of an arrow; it begins inside the slice that ends there."""
    made = []
    for phase, (process, thread, at), more in (("s", begin, {}), ("f", end, {"bp": "e"})):
        moment = 1e6 * at - (1e-3 if phase == "s" else -1e-3)
        place = {"pid": process, "tid": thread, "ts": moment}
        made.append({"ph": phase, "id": number, "name": "reads", "cat": "slots", **place, **more})
    return made


def _slice(name: str, step: StepTime, process: int, thread: int, begin: float, seconds: float) -> dict[str, Any]:
    numbers = {
        "sequence": step.sequence,
        "step": step.index,
        "received_nbytes": step.received_nbytes,
        "sent_nbytes": step.sent_nbytes,
        "from": [f"rank {rank}, step {index}" for rank, index in step.sources],
    }
    return slice_of(name, step.op, process, thread, begin, begin + seconds, numbers)


def slice_of(
    name: str, category: str, process: int, thread: int, begin: float, end: float, told: dict[str, Any]
) -> dict[str, Any]:
    """Return the trace event of what lasted from ``begin`` to ``end``, in seconds.

    Both are whole ns: readers round to these, and drop a slice that begins before the end of the one before it.
    """
    first, last = round(1e9 * begin), round(1e9 * end)
    place = {"pid": process, "tid": thread, "ts": first / 1e3, "dur": max(0, last - first) / 1e3}
    return {"ph": "X", "name": name, "cat": category, **place, "args": told}
