"""``vkpar tune``: what was measured on a rig, and what its collectives take at which size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vkpar import console, env
from vkpar.bench import frame
from vkpar.comm import wires
from vkpar.comm.plan import choose as tuner
from vkpar.comm.plan.choose import Plan, Trial, Tuning
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.comm.schedule.algorithms.table import BASELINE, TABLE
from vkpar.comm.tune import store as tuningfile
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from rich.table import Table

    from vkpar.comm.communicator import Communicator


_COPIES = "copies"  # two_shot around copies of the slots
_EQUAL = "="  # chunks, although ranks differ


def run(devices: str | None, *, redo: bool, as_json: bool) -> int:
    """Print the tuning of a rig, measured now where it was not before.

    Args:
        devices: selector of the rig.
        redo: measure again.
        as_json: print one JSON document and nothing else.

    Raises:
        VkparError: what opening the rig raises.
    """
    with ExitStack() as stack:
        if redo:
            stack.enter_context(env.override(tuning="redo"))
        communicator, described = frame.open_communicator(stack, devices)
        if communicator.nranks == 1:
            raise InvalidUsageError("a tuning is of two ranks or more; open a device twice with 'name*2'")
        tuning, path = communicator.tuning, tuningfile.path(communicator._engine.rig)
        kept = tuning.origin == tuner.MEASURED and path is not None and path.exists()
        file = str(path) if kept else "none"
        if as_json:
            print(json.dumps(_document(communicator, tuning, file), indent=2))
            return 0
        terminal = console.console()
        for line in described.lines():
            terminal.print(line)
        terminal.print()
        for wire in wires.TIMED:
            trials = [trial for trial in tuning.trials if trial.wire == wire]
            if trials:
                terminal.print(_table(wire, trials))
                terminal.print()
        if tuning.costs:
            terminal.print(_costs(tuning.costs))
            terminal.print()
        terminal.print(console.pairs(_about(communicator, tuning, file)))
    return 0


def _document(communicator: Communicator, tuning: Tuning, file: str) -> dict[str, Any]:
    return {
        "file": file,
        "rig": tuningfile.describe(communicator._engine.rig),
        **asdict(tuning),
        "speeds": tuning.speeds,
        "weights": {wire: {f"{k}_shares": v for k, v in _shares_of(tuning, wire).items()} for wire in wires.TIMED},
    }


def _shares_of(tuning: Tuning, wire: str) -> dict[str, tuple[float, ...] | None]:
    """Return, by algorithm that takes shares, those that the ranks have with a measured wire; None for equal chunks."""
    plans = [Plan(algorithm) for algorithm in TABLE.values() if algorithm.takes_shares]
    return {plan.algorithm.name: tuner.weighted(plan, tuning.costs_of(wire)).shares for plan in plans}


def _table(wire: str, trials: Sequence[Trial]) -> Table:
    """Return a row per size on the wire: each algorithm's best time, the chosen one marked."""
    ways = [way for name in TABLE for way in (name, f"{name}{_EQUAL}")]
    names = [name for name in [*ways, _COPIES] if any(_way(trial) == name for trial in trials)]
    narrow = any(trial.equal for trial in trials)  # the columns would not fit
    made = console.table(wire, *names, "segment", *(() if narrow else ("float32", f"vs {BASELINE.name}")))
    for column in made.columns:
        column.justify = "right"
        column.no_wrap = True
    for wire_nbytes in dict.fromkeys(trial.wire_nbytes for trial in trials):
        here = [trial for trial in trials if trial.wire_nbytes == wire_nbytes]
        best = {name: min((t.seconds for t in here if _way(t) == name), default=None) for name in names}
        chosen = next(trial for trial in here if trial.chosen)
        times = [_time(best[name], marked=name == _way(chosen)) for name in names]
        baseline = best.get(BASELINE.name)
        gain = "-" if baseline is None else f"{baseline / chosen.seconds:.1f}x"
        segment = _size(chosen.segment_nbytes) if chosen.segment_nbytes else "by size"
        more = () if narrow else (_size(4 * wire_nbytes // wires.TIMED_NBYTES[wire]), gain)
        made.add_row(_size(wire_nbytes), *times, segment, *more)
    return made


def _way(trial: Trial) -> str:
    if trial.copies:
        return _COPIES
    return f"{trial.algorithm}{_EQUAL}" if trial.equal else trial.algorithm


def _time(seconds: float | None, *, marked: bool) -> str:
    return "-" if seconds is None else f"{'* ' if marked else ''}{1e6 * seconds:.0f}"


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def _costs(costs: Sequence[Costs]) -> Table:
    """Return a row per wire and rank: at how many GB/s it does what."""
    made = console.table("GB/s", "rank", *ROLES)
    for column in made.columns:
        column.justify = "right"
    for wire in wires.TIMED:
        for rank, each in enumerate(cost for cost in costs if cost.wire == wire):
            made.add_row(wire, str(rank), *(f"{1e-9 / getattr(each, role):.3g}" for role in ROLES))
    return made


def _about(communicator: Communicator, tuning: Tuning, file: str) -> dict[str, str]:
    made = {
        "*": "taken at that size; times in microseconds, each algorithm's best",
        "origin": tuning.origin,
        "links": ", ".join(f"rank {rank} {speed / 1e9:.2f} GB/s" for rank, speed in enumerate(tuning.speeds)) or "-",
    }
    weighed = {
        f"{name} {wire}": f"shares by rank {' '.join(f'{100 * share:.0f}%' for share in shares)}"
        for wire in wires.TIMED
        for name, shares in _shares_of(tuning, wire).items()
        if shares is not None
    }
    if weighed:
        made |= {_EQUAL: "chunks are equal although ranks differ", **weighed}
    else:
        made["shares"] = "equal: no rank is 1.5 times as slow as another, or others gain nothing"
    made["waits"] = f"spin {communicator._engine.rig.spin_ns / 1000:.0f} us, then block"
    made["file"] = file
    return made
