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
from vkpar.topology import LinkGroup, RankInfo


@dataclass(frozen=True)
class LayerResult:
    """A part of the encoder on the rig against float64 on the same input; error and bound are relative.

    ``differing`` counts the elements of which not all ranks hold the same bits.
    """

    layer: str
    error: float
    bound: float
    differing: int

    @property
    def ok(self) -> bool:
        """True where the error is within its bound and all ranks hold the same bits."""
        return self.error <= self.bound and self.differing == 0


@dataclass(frozen=True)
class SplitResult:
    """The whole encoder, split in one way.

    Attributes:
        split: ``"tensor"``, ``"row"``, ``"layer"`` or ``"single"``.
        weights_nbytes: bytes of the weights that each rank holds.
        distance: the largest cosine distance of an embedding from the same sentence's in float64.
        accepted: the largest that is right.
        nearest_agree: every sentence's most similar other one is the same on the rig and in float64.
        microseconds: median time from token ids on the host to embeddings on the host.
    """

    split: str
    weights_nbytes: list[int]
    distance: float
    accepted: float
    nearest_agree: bool
    microseconds: float

    @property
    def ok(self) -> bool:
        """True where the embeddings are near to float64's, and near to each other as those are."""
        return self.distance <= self.accepted and self.nearest_agree


@dataclass(frozen=True)
class Similarities:
    """Cosines of the sentence embeddings.

    Attributes:
        sentences: the texts.
        table: the rig's embeddings against each other, (sentences, sentences).
    """

    sentences: list[str]
    table: list[list[float]]


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
    split: str = ""
    layers: list[LayerResult] = field(default_factory=list)
    splits: list[SplitResult] = field(default_factory=list)
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
    """Print the encoder's parts."""
    table = _table("part", "error", "accepted", "ranks equal", "", wrapping="part")
    for result in report.layers:
        error, bound = f"{result.error:.1e}", f"{result.bound:.1e}"
        table.add_row(result.layer, error, bound, _equal(result.differing), _verdict(result.ok))
    how = f", {report.split} split" if len(report.ranks) > 1 else ""
    title = f"{report.model} over {ranks(len(report.ranks))}{how}, {report.tokens} tokens"
    note = "error: relative to float64 on the same input; ranks equal: the hidden states, bit for bit."
    _show(console, title, table, note)


def show_splits(console: Console, report: Report) -> None:
    """Print the whole encoder in each split."""
    table = _table("split", "weights", "1 - cosine", "accepted", "same pairs", "time", "", wrapping="weights")
    for result in report.splits:
        held = " + ".join(f"{nbytes / 2**20:.0f}" for nbytes in result.weights_nbytes)
        table.add_row(
            result.split,
            held,
            f"{result.distance:.1e}",
            f"{result.accepted:.1e}",
            "yes" if result.nearest_agree else "NO",
            duration(result.microseconds),
            _verdict(result.ok),
        )
    title = f"The whole model, from the tokens of {_sentences(report)} to embeddings"
    note = (
        "weights: MiB by rank; 1 - cosine: of an embedding and float64's, the largest; same pairs: as in float64; "
        "time: median, with the way to and from the host."
    )
    _show(console, title, table, note)


def _sentences(report: Report) -> str:
    count = 0 if report.similarities is None else len(report.similarities.sentences)
    return f"{count} sentence{'' if count == 1 else 's'}"


def show_similarities(console: Console, found: Similarities) -> None:
    """Print the sentences and the cosines of the rig's embeddings."""
    numbers = [str(number + 1) for number in range(len(found.sentences))]
    table = _table("", "sentence", *numbers, wrapping="sentence")
    for number, text, row in zip(numbers, found.sentences, found.table, strict=True):
        table.add_row(number, text, *(f"{cosine:.2f}" for cosine in row))
    _show(
        console,
        "Cosines of the rig's sentence embeddings",
        table,
        "Each two sentences say the same thing in other words.",
    )


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
        text = column in words or column in ("", "kind", "vendor", "type", "transport", "split")
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
