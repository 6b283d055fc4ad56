"""Measures a rig once, in about two seconds: the ranks' costs, and the best algorithm and segments by size.

What drivers take to make pipelines, and the clocks of GPUs to rise, comes on top: neither may decide what is tried.

Every size tries the table's baseline too, so that no choice is slower than the baseline, up to one at which that is
hopeless.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median

from vkpar import dtypes, env
from vkpar.comm import wires
from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.work import Work
from vkpar.comm.plan import choose, shares
from vkpar.comm.plan.choose import Choice, Plan, Trial, Tuning
from vkpar.comm.requests import calls, collectives
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.keys import Call
from vkpar.comm.schedule.algorithms.table import BASELINE, TABLE
from vkpar.comm.tune import store
from vkpar.comm.tune.costs import measured, seconds_of
from vkpar.comm.tune.rehearsal import request_by
from vkpar.comm.tune.settling import warm_up
from vkpar.errors import InvalidUsageError, OutOfMemoryError

SECONDS = 2.0
_SIZES = tuple(4 << (10 + 2 * step) for step in range(8))  # bytes on the wire: 4 KiB to 64 MiB
_TOO_LONG = 0.15  # seconds of one call
_ROUND = 0.003  # seconds that a round of calls should take
_ROUNDS, _MOST_CALLS = 3, 50
_HOPELESS = 3.0  # times slower than the best: not tried at larger sizes
_BETTER = 0.97  # of the built-in choice's time: else that stays
_LEAST_COPIED = 256 << 10  # bytes on the wire: smaller messages take less time than two hops between queues
_LEAST_SHARED = 256 << 10  # bytes on the wire: the time of smaller messages hardly depends on shares
_PLAIN_PART = 0.4  # of the time for trials: for the f32 wire, where ranks differ with it
_LEAST_PART = 0.5  # of all the time: for trials, however long the costs took
_LATENCIES = 20
_WARMING = 1 << 20  # bytes on the wire, while clocks rise


def run(engine: Engine, seconds: float = SECONDS) -> Tuning:
    """Measure ``engine``'s rig, on which nothing else may run meanwhile; keep the tuning in a file and return it.

    Args:
        engine: the engine of a communicator.
        seconds: about how long measuring may take; sizes that it does not reach keep the built-in choice.

    Raises:
        InvalidUsageError: the communicator has a single rank, is inside a group or a profile, or is closed.
        OutOfMemoryError: no room for arrays of a few MiB.
        CommunicatorError: the communicator has failed.
    """
    with engine.health.gate.lock():  # a close in another thread waits
        engine.health.gate.check()
        engine.check_usable()
        if engine.rig.nranks == 1:
            raise InvalidUsageError("there is nothing to measure on a single rank")
        if engine.in_group() or engine.profiling.profile is not None:
            raise InvalidUsageError("a rig is not measured inside a group or a profile")
        tuning = _measured(engine, seconds)
        store.save(engine.rig, tuning)
    return tuning


def _measured(engine: Engine, seconds: float) -> Tuning:
    _raise_clocks(engine)
    start = time.monotonic()
    tuning = Tuning(costs=measured(engine), origin=choose.MEASURED)
    left = max(seconds - (time.monotonic() - start), _LEAST_PART * seconds)  # some processors compile for a second
    differs = shares.differ(tuning.costs_of(wires.PLAIN))
    budget = _Budget((1 - _PLAIN_PART) * left if differs else left)
    found = _timed(engine, tuning, wires.CODED, budget)
    choices = _choices(found)
    if differs:
        budget.extend(_PLAIN_PART * left)
        also = _timed(engine, tuning, wires.PLAIN, budget)
        choices += (*_up_to(choices, _LEAST_SHARED // 2), *_choices(also))
        found += also
    return replace(tuning, choices=choices, spin_us=_spin_us(engine), trials=tuple(found))


class _Budget:
    """Seconds for trials; what happens within :meth:`uncounted` takes none of them."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        self._end += seconds

    def spent(self) -> bool:
        return time.monotonic() > self._end

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.extend(time.monotonic() - start)


def _raise_clocks(engine: Engine) -> None:
    request = _request(engine, wires.CODED, _WARMING)
    with request_by(engine, request, next(_plans(engine, Tuning(), wires.CODED, _WARMING))) as rehearsal:
        warm_up(lambda: seconds_of(rehearsal.launch, _MOST_CALLS), engine.devices)


def _request(engine: Engine, wire: str, wire_nbytes: int) -> Request:
    count = wire_nbytes // wires.TIMED_NBYTES[wire]
    arrays = [device.zeros(count, dtypes.float32) for device in engine.devices]
    return calls.check(engine.devices, Call(collectives.ALL_REDUCE, arrays, op="sum", wire=wire))


def _timed(engine: Engine, tuning: Tuning, wire: str, budget: _Budget) -> list[Trial]:
    return [trial for size in _sizes(engine, tuning, wire, budget) for trial in size]


def _up_to(choices: Sequence[Choice], nbytes: int) -> Iterator[Choice]:
    """Yield, for the f32 wire, the choices of the f16 wire for messages of up to ``nbytes``."""
    for choice in choices:
        whole = choice.up_to is not None and choice.up_to < nbytes
        yield replace(choice, up_to=choice.up_to if whole else nbytes, wire=wires.PLAIN)
        if not whole:
            return


def _choices(trials: Sequence[Trial]) -> tuple[Choice, ...]:
    """Return the choices: each holds up to the geometric mean with the next size, the built-in ones after the last."""
    merged: list[Choice] = []
    for trial in trials:
        if not trial.chosen:
            continue
        # Sizes lie a factor of four apart.
        up_to = None if trial.wire_nbytes == _SIZES[-1] else 2 * trial.wire_nbytes
        choice = Choice(up_to, trial.algorithm, trial.segment_nbytes, trial.copies, trial.equal, trial.wire)
        if merged and replace(merged[-1], up_to=up_to) == choice:
            merged.pop()
        merged.append(choice)
    return (*merged, *_beyond(trials))


def _beyond(trials: Sequence[Trial]) -> Iterator[Choice]:
    """Yield the built-in choice with equal chunks for larger sizes, where equal chunks were faster at the last size."""
    if not trials:
        return
    here = [trial for trial in trials if trial.wire_nbytes == trials[-1].wire_nbytes]
    first = here[0]
    equal = [trial for trial in here if trial.equal and trial.algorithm == first.algorithm]
    if _LEAST_SHARED <= first.wire_nbytes < _SIZES[-1] and equal and equal[0].seconds < first.seconds:
        yield Choice(None, first.algorithm, equal=True, wire=first.wire)


def _sizes(engine: Engine, tuning: Tuning, wire: str, budget: _Budget) -> Iterator[list[Trial]]:
    """Yield the trials of each size for as long as there is time, and those of the first size always."""
    dropped: set[str] = set()
    expected = 0.0
    for wire_nbytes in _sizes_of(wire):
        if expected > _TOO_LONG or (expected and budget.spent()):
            return
        try:
            trials = _trials(engine, tuning, wire, wire_nbytes, dropped, budget)
        except OutOfMemoryError:
            return
        best = min(trial.seconds for trial in trials)
        dropped |= {
            trial.algorithm
            for trial in trials
            if trial.seconds > _HOPELESS * best and TABLE[trial.algorithm].reads_whole
        }
        yield _marked(trials, best)
        expected = 4 * best


def _sizes_of(wire: str) -> tuple[int, ...]:
    return _SIZES if wire == wires.CODED else tuple(size for size in _SIZES if size >= _LEAST_SHARED)


def _marked(trials: list[Trial], best: float) -> list[Trial]:
    """Mark the trial to take: the built-in choice, unless another is clearly faster, or the baseline faster at all."""
    stays = best > _BETTER * trials[0].seconds
    if any(trial.algorithm == BASELINE.name and trial.seconds < trials[0].seconds for trial in trials):
        stays = False
    taken = 0 if stays else [trial.seconds for trial in trials].index(best)
    return [replace(trial, chosen=index == taken) for index, trial in enumerate(trials)]


def _trials(
    engine: Engine, tuning: Tuning, wire: str, wire_nbytes: int, dropped: set[str], budget: _Budget
) -> list[Trial]:
    """Time the plans for one size; where a plan is faster than the built-in one, time both again, in turns.

    The better time of each counts, so that a plan does not lose because something held it up once.
    """
    request = _request(engine, wire, wire_nbytes)
    plans, times = list[Plan](), list[float]()
    for plan in _plans(engine, tuning, wire, wire_nbytes):
        name = plan.algorithm.name
        if plans and (name in dropped or (name != BASELINE.name and budget.spent())):
            continue
        plans.append(plan)
        times += _times(engine, request, [plan], budget)
    best = times.index(min(times))
    if best and times[0] < _TOO_LONG:
        again = _times(engine, request, [plans[0], plans[best]], budget)
        times[0], times[best] = min(times[0], again[0]), min(times[best], again[1])
    return [
        Trial(
            wire_nbytes,
            plan.algorithm.name,
            plan.segment_nbytes,
            seconds,
            plan.copies,
            equal=plan.shares is None and choose.weighted(plan, tuning.costs_of(wire)) != plan,
            wire=wire,
        )
        for plan, seconds in zip(plans, times, strict=True)
    ]


def _times(engine: Engine, request: Request, plans: Sequence[Plan], budget: _Budget) -> list[float]:
    """Return the seconds of a call by each of ``plans``, timed in turns."""
    with ExitStack() as open_ones:
        with budget.uncounted():  # the pipelines are made
            launches = [open_ones.enter_context(request_by(engine, request, plan)).launch for plan in plans]
            for launch in launches:
                launch().wait()
        seconds = [seconds_of(launch, 1) for launch in launches]
        if max(seconds) > _TOO_LONG:
            return seconds
        calls = [max(2, min(_MOST_CALLS, int(_ROUND / one))) for one in seconds]
        rounds = [[seconds_of(*pair) for pair in zip(launches, calls, strict=True)] for _ in range(_ROUNDS)]
        return [median(column) for column in zip(*rounds, strict=True)]


def _plans(engine: Engine, tuning: Tuning, wire: str, wire_nbytes: int) -> Iterator[Plan]:
    """Yield the built-in plan, then all others that the rig can take, each once; those with shares first."""
    ranks, n = [device.info for device in engine.devices], engine.rig.nranks
    costs = tuning.costs_of(wire)
    first = choose.choose(choose.AUTO, ranks, wire_nbytes, Tuning(costs=tuning.costs), wire)
    yield first
    slot = engine.rig.slot_nbytes
    grouped = engine.rig.groups is not None
    tuned = (algorithm for algorithm in choose.candidates(ranks) if algorithm.tuned or grouped)
    others = [algorithm for algorithm in tuned if algorithm != first.algorithm]
    plans = [first, *(choose.weighted(Plan(algorithm), costs) for algorithm in others)]
    for plan in sorted(plans, key=lambda plan: (plan != first, plan.shares is None, plan.algorithm != BASELINE)):
        algorithm = plan.algorithm
        usual = min(slot, choose.segment_nbytes(plan, n, wire_nbytes))
        other = {min(slot, factor * usual // 2) for factor in (1, 4)} - {usual}
        if plan != first:
            yield plan
        if plan.shares is not None:
            yield Plan(algorithm)
        if algorithm.tunes_segments and choose.chunk_nbytes(algorithm, n, wire_nbytes) > usual:
            yield from (replace(plan, segment_nbytes=nbytes) for nbytes in sorted(other))
        if algorithm.tunes_copies and engine.rig.copies and wire_nbytes >= _LEAST_COPIED:
            yield replace(plan, copies=True)


def _spin_us(engine: Engine) -> int | None:
    """Return 0 where a wait that blocks at once is as fast as one that spins first; None leaves it to the rig."""
    rig, usual = engine.rig, engine.rig.spin_ns
    if not usual or env.get().spin_us is not None:
        return None
    latencies = []

    def barrier() -> Work:
        return engine.run(Call(collectives.BARRIER))

    try:
        for spin_ns in (usual, 0):
            rig.spin_ns = spin_ns
            latencies.append(median(seconds_of(barrier, 1) for _ in range(_LATENCIES)))
    finally:
        rig.spin_ns = usual
    spinning, blocking = latencies
    return 0 if blocking <= spinning else None
