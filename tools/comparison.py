"""The results of ``tools/compare.py``: read from a file, summed up over the rounds, as a table and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from vkpar.bench.frame import table
from vkpar.errors import VkparError

Document = dict[str, Any]


class CompareError(VkparError):
    """A library that did not run, or results that cannot be read."""


def read(file: Path) -> Document:
    """Return what :func:`write` wrote.

    Raises:
        CompareError: something else.
    """
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise CompareError(f"{file} is no JSON document: {error}") from error
    if not isinstance(found, dict) or found.get("benchmark") != "compare" or not found.get("rounds"):
        raise CompareError(f"{file} holds no results of this tool")
    return found


# ---- numbers ----


@dataclass(frozen=True)
class Spread:
    """A median over the rounds, and how far they lie apart."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return that of ``values``."""
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Line:
    """One size of one variant; ``ratio`` is the peer's time over the variant's: above 1, the variant is faster."""

    size: int
    variant: str
    time_us: Spread
    peer_time_us: Spread
    ratio: Spread
    busbw_gbps: Spread
    peer_busbw_gbps: Spread
    wrong: int | None


def summarise(results: Document) -> list[Line]:
    """Return a line for each size and variant, sizes first."""
    peer = results["peer"]
    names = [name for name in results["libraries"] if name != peer]
    return [
        _line(name, [(of[name][index], of[peer][index]) for of in results["rounds"]])
        for index in range(len(results["rounds"][0][peer]))
        for name in names
    ]


def _line(name: str, pairs: Sequence[tuple[Document, Document]]) -> Line:
    checked = [row["wrong"] for pair in pairs for row in pair if row["wrong"] is not None]
    return Line(
        size=pairs[0][0]["size"],
        variant=name,
        time_us=Spread.of([own["time_us"] for own, _ in pairs]),
        peer_time_us=Spread.of([peer["time_us"] for _, peer in pairs]),
        ratio=Spread.of([peer["time_us"] / own["time_us"] for own, peer in pairs]),
        busbw_gbps=Spread.of([own["busbw_gbps"] for own, _ in pairs]),
        peer_busbw_gbps=Spread.of([peer["busbw_gbps"] for _, peer in pairs]),
        wrong=sum(checked) if checked else None,
    )


def wrong_elements(results: Document) -> int:
    """Return the wrong elements of all rounds and libraries."""
    return sum(row["wrong"] or 0 for of in results["rounds"] for rows in of.values() for row in rows)


# ---- text ----


def lines(results: Document) -> Iterator[str]:
    """Yield the header and the table."""
    yield from _header(results)
    made = summarise(results)
    peer, width = results["peer"], max(len(line.variant) for line in made) + 2
    spread = f"{'[min':>11} -{'max]':>10}"
    yield "#"
    yield (
        f"#{'size':>10}{'variant':>{max(width, 9)}}{'time':>10}{spread}{peer + ' time':>11}{spread}{'ratio':>8}"
        f"{'[min':>8} -{'max]':>7}{'busbw':>8}{peer:>7}{'#wrong':>8}"
    )
    blank = " " * len(spread)
    yield f"#{'(B)':>10}{'':{max(width, 9)}}{'(us)':>10}{blank}{'(us)':>11}{blank}{'':25}{'(GB/s)':>8}{'(GB/s)':>7}"
    for line in made:
        yield _text(line, max(width, 9))
    yield "#"
    yield f"# ratio: {peer}'s time / vkpar's, of the same round; above 1 vkpar is faster."
    yield "# busbw: size / time * 2(n-1)/n, medians, GB/s of 10^9 bytes. #wrong: elements of both, all rounds."


def _text(line: Line, width: int) -> str:
    def spread(of: Spread, value: int, least: int, most: int) -> str:
        ends = f"[{table.fixed(of.least, least).lstrip()}"
        return f"{table.fixed(of.median, value)}{ends:>{least + 1}} -{table.fixed(of.most, most)}]"

    return (
        f"{line.size:>11}{line.variant:>{width}}{spread(line.time_us, 10, 10, 9)}"
        f"{spread(line.peer_time_us, 11, 10, 9)}{spread(line.ratio, 8, 7, 6)}"
        f"{table.fixed(line.busbw_gbps.median, 8)}{table.fixed(line.peer_busbw_gbps.median, 7)}"
        f"{table.wrong_text(line.wrong):>8}"
    )


def _header(results: Document) -> Iterator[str]:
    options, host, peer = results["options"], results["host"], results["libraries"][results["peer"]]
    variants = {name: of for name, of in results["libraries"].items() if name != results["peer"]}
    one = next(iter(variants.values()))
    versions = ", ".join(f"{name} {version}" for name, version in peer["versions"].items() if name != "vkpar")
    count = len(results["rounds"])
    iters = "as many as fill 0.2 s" if options["iters"] is None else options["iters"]
    yield f"# vkpar {one['versions']['vkpar']} ({results['commit']}) and {results['peer']} ({versions})"
    yield f"# all_reduce, float32 sum in place, {one['nranks']} ranks; {results['date']}"
    yield f"# {host['cpu']}, {host['cores']} cores, load {host['load']:.1f} at the start"
    yield (
        f"# {count} round{'s' * (count > 1)} in turns; calls of each size: {options['warmup_iters']} to warm up, "
        f"{iters} timed, {options['check']} checked"
    )
    yield "#"
    yield f"# Devices: {devices(one)}"
    for name, of in variants.items():
        yield f"# {name}: {', '.join([*_settings(of), *links(of)])}"
    yield f"# {results['peer']}: {', '.join([devices(peer), *_pairs(peer['environment'])])}. {peer['explanation']}"


def devices(library: Document) -> str:
    """Return the devices of a library's ranks, with their drivers; equal ones counted."""
    named = [f"{rank['name']} [{rank['driver']}]" for rank in library["ranks"]]
    groups = [(name, len(list(equal))) for name, equal in groupby(named)]
    return " & ".join(f"{count} x {name}" for name, count in groups)


def links(library: Document) -> list[str]:
    """Return the kinds of links between a library's ranks, with their numbers."""
    return [f"{len(group['pairs'])} links {group['kind']}" for group in library["links"]]


def _settings(library: Document) -> list[str]:
    return [*(f"{name} {value}" for name, value in library["settings"].items()), *_pairs(library["environment"])]


def _pairs(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


# ---- the picture ----


def plot(results: Document, file: Path) -> None:
    """Draw bus bandwidth and the ratio over the size, each round's least and most as bars beside one another."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    made, peer = summarise(results), results["peer"]
    names = list(dict.fromkeys(line.variant for line in made))
    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(9, 6.6), sharex=True, height_ratios=(3, 1.3), layout="constrained"
    )
    # Colours that the colour-blind can tell apart, and markers for print.
    styles = (("#0072b2", "o"), ("#009e73", "D"), ("#cc79a7", "^"), ("#56b4e9", "v"), ("#e69f00", "P"))
    for index, name in enumerate(names):
        own = [line for line in made if line.variant == name]
        label = "vkpar" if name == "vkpar" else f"vkpar, {name}"
        colour, marker = styles[index % len(styles)]
        _curve(top, own, [line.busbw_gbps for line in own], index, colour, marker, label=label)
        _curve(bottom, own, [line.ratio for line in own], index, colour, marker)
    first = [line for line in made if line.variant == names[0]]
    _curve(top, first, [line.peer_busbw_gbps for line in first], -1, "#d55e00", "s", label=peer, linestyle="--")
    bottom.axhline(1.0, color="#d55e00", linestyle="--", linewidth=1)
    _axes(top, bottom, peer, made)
    _titles(top, results)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _curve(
    axes: Any, own: Sequence[Line], spreads: Sequence[Spread], place: int, colour: str, marker: str, **style: Any
) -> None:
    sizes = [line.size * 1.1**place for line in own]
    middles = [of.median for of in spreads]
    below = [of.median - of.least for of in spreads]
    above = [of.most - of.median for of in spreads]
    own_style: dict[str, Any] = {"marker": marker, "markersize": 5, "elinewidth": 1.2, "capsize": 3}
    axes.errorbar(sizes, middles, yerr=(below, above), color=colour, **own_style | style)


def _axes(top: Any, bottom: Any, peer: str, made: Sequence[Line]) -> None:
    from matplotlib import ticker

    sizes = sorted({line.size for line in made})
    top.set_ylabel("bus bandwidth (GB/s)")
    bandwidths = [of for line in made for of in (line.busbw_gbps, line.peer_busbw_gbps)]
    if max(of.median for of in bandwidths) > 30 * min(of.median for of in bandwidths):
        _log_y(top, ticker, min(of.least for of in bandwidths) / 1.3, max(of.most for of in bandwidths) * 1.3)
    else:
        top.set_ylim(bottom=0)
    top.legend(frameon=False, loc="upper left")
    bottom.set_ylabel(f"{peer} time /\nvkpar time")
    bottom.set_title("above the dashed line: vkpar is faster", loc="left", fontsize=8.5, color="0.3")
    least, most = min(line.ratio.least for line in made), max(line.ratio.most for line in made)
    _log_y(bottom, ticker, min(0.5, least / 1.1), max(2, most * 1.1))
    bottom.set_xscale("log", base=2)
    bottom.set_xticks(sizes, [size_text(size) for size in sizes], rotation=30 if len(sizes) > 10 else 0)
    bottom.set_xticks([], minor=True)
    bottom.set_xlabel("message size per rank")
    for axes in (top, bottom):
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def _log_y(axes: Any, ticker: Any, least: float, most: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(least, most)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _titles(top: Any, results: Document) -> None:
    peer, count = results["peer"], len(results["rounds"])
    variants = [of for name, of in results["libraries"].items() if name != peer]
    one, versions = variants[0], results["libraries"][peer]["versions"]
    wires = "/".join(dict.fromkeys(of["settings"]["wire"] for of in variants))
    kinds = "/".join(dict.fromkeys(group["kind"] for of in variants for group in of["links"])) or "none"
    library = versions.get("mpi") or " ".join((peer, versions.get("nccl") or f"in torch {versions['torch']}"))
    ours = f"vkpar {one['versions']['vkpar']} ({results['commit']}), wire {wires}, links {kinds}"
    host = results["host"]
    below = (
        f"{devices(one)}; {host['cpu']}, {host['cores']} cores\n"
        f"{ours}; {results['date'].split()[0]}\n"
        f"{library}: {results['libraries'][peer]['explanation']}\n"
        f"lines: median of {count} round{'s' * (count > 1)} in turns; bars: least to most"
    )
    top.set_title(
        f"AllReduce of float32, {one['nranks']} ranks: vkpar and {peer}", loc="left", pad=62, fontweight="bold"
    )
    top.annotate(below, (0, 1), (0, 8), "axes fraction", "offset points", va="bottom", fontsize=8.5, color="0.3")


def size_text(nbytes: int) -> str:
    """Return a size in the largest unit that leaves a whole number."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % 2**power == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"
