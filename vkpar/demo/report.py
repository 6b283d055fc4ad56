"""What the demo says: tables for a person, one object for a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from vkpar.demo.checks import AllReduceCheck
from vkpar.demo.feedforward import StepTimes
from vkpar.topology import LinkGroup, RankInfo


@dataclass(frozen=True)
class LayerResult:
    """One layer's feed-forward block on the rig against float64 on the same input; error and bound are relative."""

    layer: int
    error: float
    bound: float
    differing: int
    times: StepTimes

    @property
    def ok(self) -> bool:
        """True where the error is within its bound and all ranks hold the same bits."""
        return self.error <= self.bound and self.differing == 0


@dataclass(frozen=True)
class Similarities:
    """Cosines of the sentence embeddings.

    Attributes:
        sentences: the texts.
        table: the rig's embeddings against each other, (sentences, sentences).
        against_float64: each of the rig's embeddings against the same sentence's in float64.
        nearest_agree: every sentence's most similar other one is the same on the rig and in float64.
    """

    sentences: list[str]
    table: list[list[float]]
    against_float64: list[float]
    nearest_agree: bool


@dataclass
class Report:
    """Everything that a run found out, as far as it came; ``summary`` is the last line."""

    wire: str
    model: str = ""
    ranks: list[RankInfo] = field(default_factory=list)
    links: list[LinkGroup] = field(default_factory=list)
    rig: str = ""
    all_reduce: list[AllReduceCheck] = field(default_factory=list)
    tokens: int = 0
    layers: list[LayerResult] = field(default_factory=list)
    similarities: Similarities | None = None
    ok: bool = False
    summary: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON: numbers that are not finite become None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def show_rig(console: Console, report: Report) -> None:
    """Print the devices, the links and what the ranks stand for."""
    table = _table("rank", "name", "vendor", "driver", "type", "memory", "transport", wrapping="name driver")
    for rank in report.ranks:
        memory = f"{rank.memory_bytes / 2**30:.0f} GiB"
        table.add_row(str(rank.rank), rank.name, rank.vendor, rank.driver, rank.type, memory, rank.transport)
    _show(console, "Devices", table, report.rig)
    if report.links:
        table = _table("kind", "from-to", "why", wrapping="why from-to")
        for group in report.links:
            table.add_row(group.kind, " ".join(f"{src}-{dst}" for src, dst in group.pairs), group.reason)
        _show(console, "Links", table)


def show_all_reduce(console: Console, report: Report) -> None:
    """Print what the AllReduce gave."""
    table = _table("elements", "#wrong", "error", "accepted", "ranks equal", "time", "")
    for check in report.all_reduce:
        table.add_row(
            f"{check.count:,}",
            f"{check.wrong:,}",
            f"{check.error:.1e}",
            f"{check.bound:.1e}",
            _equal(check.differing),
            duration(check.microseconds),
            _verdict(check.ok),
        )
    title = f"AllReduce of float32 over {ranks(len(report.ranks))}, wire {report.wire}"
    note = "#wrong: with exact integers; error: of random numbers, relative to float64; time: one call and its wait."
    _show(console, title, table, note)


def show_layers(console: Console, report: Report) -> None:
    """Print the feed-forward blocks."""
    table = _table("layer", "error", "accepted", "ranks equal", "matmul", "all_reduce", "step", "")
    for result in report.layers:
        table.add_row(
            str(result.layer),
            f"{result.error:.1e}",
            f"{result.bound:.1e}",
            _equal(result.differing),
            duration(result.times.matmul),
            duration(result.times.all_reduce),
            duration(result.times.whole),
            _verdict(result.ok),
        )
    title = f"Feed-forward blocks of {report.model} over {ranks(len(report.ranks))}, {report.tokens} tokens"
    note = "error: relative to float64 on the same input; times: medians; step: both parts, enqueued at once."
    _show(console, title, table, note)


def show_similarities(console: Console, found: Similarities) -> None:
    """Print the sentences and the cosines of the rig's embeddings."""
    numbers = [str(number + 1) for number in range(len(found.sentences))]
    table = _table("", "sentence", *numbers, wrapping="sentence")
    for number, text, row in zip(numbers, found.sentences, found.table, strict=True):
        table.add_row(number, text, *(f"{cosine:.2f}" for cosine in row))
    distance = max(0.0, *(1.0 - cosine for cosine in found.against_float64))
    note = f"Lowest cosine between an embedding and the float64 model's: 1 - {distance:.1e}."
    _show(console, "Cosines of the rig's sentence embeddings", table, note)


def ranks(count: int) -> str:
    """Return ``"1 rank"`` or ``"3 ranks"``."""
    return f"{count} rank{'' if count == 1 else 's'}"


def duration(microseconds: float) -> str:
    """Return a time with three digits and its unit."""
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= 0.9995 * size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} us"


def _show(console: Console, title: str, table: Table, note: str = "") -> None:
    console.print(f"\n{title}", style="bold")
    console.print(table)
    if note:
        console.print(note)


def _table(*columns: str, wrapping: str = "") -> Table:
    """Make a table that fits 80 columns: only the columns in ``wrapping`` give way, and only those hold long text."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    words = wrapping.split()
    for column in columns:
        text = column in words or column in ("", "kind", "vendor", "type", "transport")
        table.add_column(column, justify="left" if text else "right", overflow="fold", no_wrap=column not in words)
    return table


def _equal(differing: int) -> str:
    return "yes" if differing == 0 else f"NO: {differing:,}"


def _verdict(ok: bool) -> str:
    return "ok" if ok else "WRONG"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
