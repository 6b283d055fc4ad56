"""``vkpar tune``: what was measured on a rig, and what its collectives take at which size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vkpar import env
from vkpar.bench.frame import frame, table
from vkpar.cli import console
from vkpar.comm import wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Plan, Tuning
from vkpar.comm.schedule.algorithms.table import BASELINE, TABLE
from vkpar.comm.tune import store
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from rich.table import Table

    from vkpar.comm.communicator import Communicator


def run(devices: str | None, *, redo: bool, as_json: bool) -> int:
    """Print the tuning of a rig, measured now where it was not before.

    Raises:
        VkparError: what opening the rig raises.
    """
    with ExitStack() as stack:
        if redo:
            stack.enter_context(env.override(tuning="redo"))
        communicator, described = frame.open_communicator(stack, devices)
        if communicator.nranks == 1:
            raise InvalidUsageError("a tuning is of two ranks or more; open a device twice with 'name*2'")
        tuning, path = communicator.tuning, store.path(communicator._engine.rig)
        kept = tuning.origin == choose.MEASURED and path is not None and path.exists()
        file = str(path) if kept else "none"
        if as_json:
            print(json.dumps(_document(communicator, tuning, file), indent=2))
            return 0
        terminal = console.console()
        for line in described.lines()[1:-1]:
            terminal.print(*table.wrapped(line, terminal.width), sep="\n")
        terminal.print()
        for wire, trials in tuning.by_wire().items():
            terminal.print(_table(choose.trial_table(wire, trials)))
            terminal.print()
        if tuning.costs:
            terminal.print(_table(choose.cost_table(tuning.costs)))
            terminal.print()
        terminal.print(console.pairs(_about(communicator, tuning, file)))
    return 0


def _document(communicator: Communicator, tuning: Tuning, file: str) -> dict[str, Any]:
    return {
        "file": file,
        "rig": store.describe(communicator._engine.rig),
        **asdict(tuning),
        "speeds": tuning.speeds,
        "weights": {wire: {f"{k}_shares": v for k, v in _shares_of(tuning, wire).items()} for wire in wires.TIMED},
    }


def _shares_of(tuning: Tuning, wire: str) -> dict[str, tuple[float, ...] | None]:
    """Return, by algorithm that takes shares, those that the ranks have with a measured wire; None for equal chunks."""
    plans = [Plan(algorithm) for algorithm in TABLE.values() if algorithm.takes_shares]
    return {plan.algorithm.name: choose.weighted(plan, tuning.costs_of(wire)).shares for plan in plans}


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """Make a table of titles and rows, all to the right."""
    made = console.table(*rows[0])
    for column in made.columns:
        column.justify = "right"
        column.no_wrap = True
    for row in rows[1:]:
        made.add_row(*row)
    return made


def _about(communicator: Communicator, tuning: Tuning, file: str) -> dict[str, str]:
    made = {
        **_legend(tuning),
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
        made |= {choose.EQUAL_MARK: "chunks are equal although ranks differ", **weighed}
    else:
        made["shares"] = "equal: no rank is 1.5 times as slow as another, or others gain nothing"
    made["waits"] = f"spin {communicator._engine.rig.spin_ns / 1000:.0f} us, then block"
    made["file"] = file
    return made


def _legend(tuning: Tuning) -> dict[str, str]:
    """Say what the columns of the tables mean, those that are there."""
    shown = {title for wire, trials in tuning.by_wire().items() for title in choose.trial_table(wire, trials)[0]}
    words = {
        "segment": "bytes under way at a time where that was tuned; by size: computed",
        "float32": "the bytes of the arrays, of float32",
        f"vs {BASELINE.name}": f"how many times as fast as {BASELINE.name} the taken one is",
        choose.COPIES: "two_shot around copies of the slots",
    }
    made = {}
    if shown:
        made["rows"] = "bytes on the wire that the table names first"
        made["*"] = "taken at that size; columns are algorithms, each with its best time in microseconds"
        made |= {title: text for title, text in words.items() if title in shown}
    if tuning.costs:
        made["exchange"] = "GB/s of a rank that publishes its elements while it gathers as many sums"
        made["reduce"] = "GB/s of a rank that sums the elements of all"
    return made
