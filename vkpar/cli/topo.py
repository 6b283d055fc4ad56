"""``vkpar topo``: the roads between the ranks of a rig, what each device does, and what the rig is good for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import vkpar
from vkpar import Communicator, text, topology
from vkpar.bench.frame import frame, picture
from vkpar.cli import console
from vkpar.topology import fits, hosts, plot, roads
from vkpar.topology.fits import Fit
from vkpar.topology.hosts import Host
from vkpar.topology.roads import Road

if TYPE_CHECKING:
    from rich.table import Table

_log = logging.getLogger("vkpar")
_KINDS: Final = {
    "peer": "the vendor's own link, without the host",
    "native": "shared timelines, data through host memory that both import",
    "bridged": "the host passes signals on, data through host memory that both import",
    "mapped": "the host copies what one of them cannot import",
}
_CELLS: Final[dict[str, Callable[[Road], str]]] = {
    "from a row's rank to a column's": lambda road: road.kind,
    "latency in us": lambda road: _rate(road.latency_us),
    "GB/s one way": lambda road: _rate(road.gbps),
    "GB/s each way, both at once": lambda road: _rate(road.both_gbps),
}
_CLOSE: Final = 8  # columns of a cell of a matrix, so that eight ranks fit 80 columns


@dataclass
class Survey:
    """What was found of a rig.

    Attributes:
        explanation: how many devices stand behind the ranks.
        shares: of the ranks, by name of ratios.
    """

    explanation: str
    hosts: list[Host]
    roads: list[Road] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)
    fits: list[Fit] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {"vkpar": vkpar.__version__, **asdict(self)}


def run(devices: str | None, *, as_json: bool, file: str | None) -> int:
    """Measure a rig and print what was found.

    Args:
        devices: selector of the rig.
        as_json: print one JSON document and nothing else.
        file: for a picture; None for none.

    Raises:
        VkparError: what opening the rig raises; a picture that cannot be drawn, before anything is measured.
    """
    if file is not None:
        picture.check(file)
    with ExitStack() as stack:
        opened = frame.open_devices(stack, topology.choose(devices))
        _log.info("measuring %s by themselves", text.number(len(opened), "rank"))
        survey = Survey(topology.explain(opened), hosts.measured(opened))
        _log.info("measuring the roads between them")
        survey.roads = list(roads.measured(opened))
        with Communicator(opened) as comm:
            survey.shares = fits.suggested(comm)
            for model in fits.SHAPES:
                _log.info("planning a model of %s", model)
                survey.fits += [fits.fit(comm, model, weights) for weights in ("q4_k", "float16")]
    if file is not None:
        plot.draw(survey.as_dict(), file)
    if as_json:
        print(json.dumps(survey.as_dict(), indent=2))
    else:
        _show(survey)
    return 0


def _show(survey: Survey) -> None:
    terminal = console.console()
    terminal.print(f"vkpar topo {vkpar.__version__}: {survey.explanation}")
    terminal.print()
    terminal.print(console.pairs({str(host.rank): _named(host) for host in survey.hosts}))
    terminal.print()
    terminal.print(_hosts(survey))
    terminal.print()
    if survey.roads:
        terminal.print(_matrices(survey, terminal.width))
        kinds = dict.fromkeys(road.kind for road in survey.roads)
        told = {kind: [_KINDS[kind]] for kind in kinds}
        for road in survey.roads:
            if road.reason not in told[road.kind]:
                told[road.kind].append(road.reason)
        terminal.print(console.pairs({kind: "\n".join(lines) for kind, lines in told.items()}))
        terminal.print()
    terminal.print(_fits(survey))


def _named(host: Host) -> str:
    driver = "" if host.driver in host.name else f", {host.driver}"
    return f"{host.name}{driver}{f', {host.slot}' if host.slot else ''}"


def _hosts(survey: Survey) -> Table:
    made = console.table("#", "up GB/s", "down GB/s", "weights GB/s", "f16 GFLOP/s", "free", *survey.shares)
    for column in made.columns:
        column.justify = "right"
        column.no_wrap = True
    for host in survey.hosts:
        made.add_row(
            str(host.rank),
            *map(_rate, (host.up_gbps, host.down_gbps, host.weights_gbps, 1e3 * host.tflops)),
            text.units(host.free_bytes),
            *(f"{100 * parts[host.rank]:.0f}%" for parts in survey.shares.values()),
        )
    return made


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _matrices(survey: Survey, width: int) -> Table:
    """Make the matrices, as many side by side as there is room for."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    n = len(survey.hosts)
    beside = max(1, min(len(_CELLS), width // max(_CLOSE * n + 8, 36)))
    made = Table.grid(padding=(0, 4, 0, 0))
    drawn = [Group(Text(title, "bold"), _matrix(n, survey.roads, cell), "") for title, cell in _CELLS.items()]
    for start in range(0, len(drawn), beside):
        made.add_row(*drawn[start : start + beside])
    return made


def _matrix(nranks: int, found: Sequence[Road], cell: Callable[[Road], str]) -> Table:
    by_pair = {(road.src, road.dst): road for road in found}
    made = console.table("#", *(str(rank) for rank in range(nranks)))
    for column in made.columns[1:]:
        column.justify = "right"
        column.min_width = _CLOSE - 1
    for src in range(nranks):
        cells = ("-" if src == dst else cell(by_pair[src, dst]) for dst in range(nranks))
        made.add_row(str(src), *cells)
    return made


def _fits(survey: Survey) -> Table:
    made = console.table("model", "weights", "needs", "fits", "auto takes", "a token", "why")
    for each in survey.fits:
        made.add_row(
            each.model,
            each.weights,
            text.units(each.need_bytes) if each.need_bytes else "-",
            "yes" if each.fits else "no",
            each.mode or "none",
            "-" if each.ms is None else f"{each.ms:.3g} ms",
            each.shown,
        )
    return made
