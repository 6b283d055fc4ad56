"""Measures a rig once, in about two seconds: which algorithm and segments at which size, how fast each link is.

Every size tries the naive algorithm too, so that whatever is chosen is at least as fast there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from vkpar import dtypes, env
from vkpar.comm import collectives, tuner, weights, wires
from vkpar.comm.algorithms import TABLE
from vkpar.comm.placement import Operands, Part, Placement
from vkpar.comm.recorder import Arithmetic
from vkpar.comm.schedule import BLOCK, MOST_SOURCES, Forward, Reduce, Span, Step
from vkpar.comm.tuner import Choice, Plan, Trial, Tuning
from vkpar.comm.work import Work
from vkpar.errors import OutOfMemoryError

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator

SECONDS = 2.0
_WIRE = "f16"
_SIZES = tuple(4 << (10 + 2 * step) for step in range(8))  # bytes on the wire: 4 KiB to 64 MiB
_TOO_LONG = 0.15  # seconds of one call
_ROUND = 0.003  # seconds that a round of calls should take
_ROUNDS, _MOST_CALLS = 3, 50
_HOPELESS = 3.0  # times slower than the best: not tried at larger sizes
_BETTER = 0.97  # of the built-in choice's time: else that stays
_LEAST_COPIED = 256 << 10  # bytes on the wire: two more hops between a device's queues take as long as so many
_LATENCIES = 20
_SPEED_BYTES, _TURNS = 1 << 20, 4


def run(communicator: Communicator, seconds: float = SECONDS) -> Tuning:
    """Measure ``communicator``'s rig; nothing else may run on it meanwhile.

    Args:
        communicator: with two ranks or more.
        seconds: about how long it may take; what is not reached keeps its built-in choice.

    Raises:
        CommunicatorError: the communicator failed.
    """
    end = time.monotonic() + seconds
    speeds = _speeds(communicator)
    if weights.differ(speeds):  # or one of them was held up
        speeds = tuple(map(max, speeds, _speeds(communicator)))
    tuning = Tuning(speeds=speeds, origin=tuner.MEASURED)
    found = list(_sizes(communicator, tuning, end))
    spin = _spin_us(communicator)
    trials = [trial for size in found for trial in size]
    choices = _choices([trial for trial in trials if trial.chosen])
    return replace(tuning, choices=choices, spin_us=spin, trials=tuple(trials))


def _choices(chosen: list[Trial]) -> tuple[Choice, ...]:
    """Return what to take: each up to the geometric mean with the next size, beyond which built-in choices go on."""
    merged: list[Choice] = []
    for trial in chosen:
        # Sizes lie a factor of four apart.
        up_to = None if trial.wire_nbytes == _SIZES[-1] else 2 * trial.wire_nbytes
        choice = Choice(up_to, trial.algorithm, trial.segment_nbytes, trial.copies, trial.equal)
        if merged and replace(merged[-1], up_to=up_to) == choice:
            merged.pop()
        merged.append(choice)
    return tuple(merged)


def _sizes(communicator: Communicator, tuning: Tuning, end: float) -> Iterator[list[Trial]]:
    """Yield the trials of each size for as long as there is time; the first one's always."""
    dropped: set[str] = set()
    expected = 0.0
    for wire_nbytes in _SIZES:
        if expected > _TOO_LONG or (expected and time.monotonic() > end):
            return
        try:
            trials = list(_candidates(communicator, tuning, wire_nbytes, dropped, end))
        except OutOfMemoryError:
            return
        best = min(trial.seconds for trial in trials)
        dropped |= {trial.algorithm for trial in trials if trial.seconds > _HOPELESS * best} & {"direct", "naive"}
        yield _marked(trials, best)
        expected = 4 * best


def _marked(trials: list[Trial], best: float) -> list[Trial]:
    """Mark the one to take: the first, the built-in choice, unless another is clearly, or naive at all, faster."""
    stays = best > _BETTER * trials[0].seconds
    if any(trial.algorithm == "naive" and trial.seconds < trials[0].seconds for trial in trials):
        stays = False
    taken = 0 if stays else [trial.seconds for trial in trials].index(best)
    return [replace(trial, chosen=index == taken) for index, trial in enumerate(trials)]


def _candidates(
    communicator: Communicator, tuning: Tuning, wire_nbytes: int, dropped: set[str], end: float
) -> Iterator[Trial]:
    count = wire_nbytes // 2
    arrays = [device.zeros(count, dtypes.float32) for device in communicator.devices]
    request = collectives.all_reduce(communicator.devices, arrays, "sum", None, _WIRE)
    for number, plan in enumerate(_plans(communicator, tuning, wire_nbytes)):
        name = plan.algorithm.name
        if number > 0 and (name in dropped or (name != "naive" and time.monotonic() > end)):
            continue
        with communicator._rehearse(request, plan) as rehearsal:
            rehearsal.launch().wait()  # the pipelines are made
            seconds = _seconds(rehearsal.launch, 1)
            if seconds < _TOO_LONG:
                calls = max(2, min(_MOST_CALLS, int(_ROUND / seconds)))
                seconds = median(_seconds(rehearsal.launch, calls) for _ in range(_ROUNDS))
        equal = plan.shares is None and tuner.weighted(plan, tuning.speeds) != plan
        yield Trial(wire_nbytes, name, plan.segment_nbytes, seconds, plan.copies, equal)


def _plans(communicator: Communicator, tuning: Tuning, wire_nbytes: int) -> Iterator[Plan]:
    """Yield the built-in plan, then all others that the rig can take, each once."""
    ranks, n = [device.info for device in communicator.devices], communicator.nranks
    names = ["naive", "two_shot", "tree"] if n <= MOST_SOURCES else []
    names += ["direct"] if tuner.uniform(ranks) else []
    first = tuner.choose(tuner.AUTO, ranks, wire_nbytes, Tuning(speeds=tuning.speeds))
    yield first
    slot = communicator.rig.arena.large.slot_nbytes
    for name in dict.fromkeys([first.algorithm.name, *names, "ring"]):
        plan = tuner.weighted(Plan(TABLE[name]), tuning.speeds)
        usual = min(slot, tuner.segment_nbytes(plan, n, wire_nbytes))
        other = {min(slot, factor * usual // 2) for factor in (1, 4)} - {usual}
        longest = wire_nbytes if name == "direct" else wire_nbytes // n
        if name != first.algorithm.name:
            yield plan
        if longest > usual and name != "naive":
            yield from (replace(plan, segment_nbytes=nbytes) for nbytes in sorted(other))
        if plan.shares is not None:
            yield Plan(TABLE[name])
        if name == "two_shot" and communicator.rig.copies and wire_nbytes >= _LEAST_COPIED:
            yield replace(plan, copies=True)


def _seconds(launch: Callable[[], Work], calls: int) -> float:
    """Return the time of one of several calls that are queued back to back."""
    start = time.perf_counter()
    for _ in range(calls):
        work = launch()
    work.wait()
    return (time.perf_counter() - start) / calls


def _spin_us(communicator: Communicator) -> int | None:
    """Return 0 where a wait that blocks at once is as fast as one that spins first; None leaves it to the rig."""
    rig, usual = communicator.rig, communicator.rig.spin_ns
    if not usual or env.get().spin_us is not None:
        return None
    latencies = []
    try:
        for spin_ns in (usual, 0):
            rig.spin_ns = spin_ns
            latencies.append(median(_seconds(communicator.barrier, 1) for _ in range(_LATENCIES)))
    finally:
        rig.spin_ns = usual
    spinning, blocking = latencies
    return 0 if blocking <= spinning else None


def _speeds(communicator: Communicator) -> tuple[float, ...]:
    """Return the bytes per second that each rank writes to its slots and reads back, one rank after the other."""
    region = communicator.rig.arena.large
    formats = wires.plan(dtypes.float32, _WIRE, TABLE["two_shot"])
    slots = region.slot_set(formats.blocks(min(region.slot_nbytes, _SPEED_BYTES)))
    span = Span(0, slots.blocks * BLOCK)
    arrays = [device.zeros(span.count, dtypes.float32) for device in communicator.devices]
    places = [Placement([Part(0, array)]) for array in arrays]
    speeds = []
    for rank in range(communicator.nranks):
        publish = Step(rank, "publish", (Reduce(span, own_at=0, out_slot=slots.slot(rank, 0), final=True),))
        gather = Step(rank, "gather", (Forward(span, slots.slot(rank, 0)),))
        operands = Operands(places, places)
        steps = [publish, gather] * _TURNS
        with communicator._rehearse_steps(steps, Arithmetic(formats), region, operands, arrays) as rehearsal:
            rehearsal.launch().wait()  # the pipelines are made
            seconds = min(_seconds(rehearsal.launch, 1) for _ in range(_ROUNDS))
        speeds.append(_TURNS * slots.blocks * formats.nbytes_per_block / seconds)
    return tuple(speeds)
