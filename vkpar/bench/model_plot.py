"""Draws the rates of ``vkpar bench model``: prompts on the left, tokens one after the other on the right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from vkpar.errors import InvalidUsageError, UnsupportedError

# Colours that the colour-blind can tell apart.
_COLOURS: Final = ("#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
_HATCHES: Final = ("", "//", "..", "xx")  # once the colours are used up
_BOLD: Final = {"x": 0.01, "ha": "left", "fontweight": "bold"}
_WIDTH: Final = 0.8  # of the bars of a test together

_Row = dict[str, Any]


def check(file: str) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        UnsupportedError: there is no matplotlib.
        InvalidUsageError: there is no folder for the file, it is one, or its suffix is not known.
    """
    if find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs the package matplotlib: pip install 'vkpar[plot]'")
    path = Path(file)
    if not path.resolve().parent.is_dir():
        raise InvalidUsageError(f"there is no folder for {file}")
    if path.is_dir():
        raise InvalidUsageError(f"{file} is a folder; name a file in it")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InvalidUsageError(f"{file} has no suffix of a picture; there are {', '.join(sorted(known))}")


def draw(report: dict[str, Any], file: str) -> None:
    """Draw the rows of a report, as its JSON document has them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows: list[_Row] = report["rows"]
    told = [name for name in ("ratios", "wire", "step") if len({row[name] for row in rows} - {"-"}) > 1]
    labelled = [(_label(row, told), row) for row in rows]
    styles = {label: _style(number) for number, label in enumerate(dict.fromkeys(label for label, _ in labelled))}
    kinds = [kind for kind in ("pp", "tg") if any(row["test"].startswith(kind) for row in rows)]
    groups = [[each for each in labelled if each[1]["test"].startswith(kind)] for kind in kinds]
    wide = [len({row["test"] for _, row in group}) for group in groups]
    figure, found = pyplot.subplots(
        1, len(groups), figsize=(10, 5.4), width_ratios=wide, layout="constrained", squeeze=False
    )
    known: dict[str, Any] = {}
    for axes, group in zip(found[0], groups, strict=True):
        known |= _bars(axes, group, styles)
    found[0][0].set_ylabel("tokens a second")
    figure.legend(known.values(), known, loc="outside lower center", ncols=min(len(known), 4), frameon=False)
    found[0][0].set_title(_title(report), loc="left", fontsize=8.5, color="0.3")
    name = report["options"]["preset"] or report["options"]["config"]
    figure.suptitle(f"Prompts and tokens of {name}, {report['options']['weights']} weights, by split", **_BOLD)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _label(row: _Row, told: Sequence[str]) -> str:
    """Return a row's split, and what else differs between rows."""
    more = [f"{name} {row[name]}" if name == "wire" else str(row[name]) for name in told]
    return ", ".join([row["split"], *(each for each in more if each != "-")])


def _style(number: int) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "hatch": _HATCHES[number // len(_COLOURS) % len(_HATCHES)]}


def _bars(axes: Any, rows: Sequence[tuple[str, _Row]], styles: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Draw the tests of one kind side by side; return the bars by label."""
    tests = list(dict.fromkeys(row["test"] for _, row in rows))
    labels = list(dict.fromkeys(label for label, _ in rows))
    width = _WIDTH / len(labels)
    known = {}
    for number, label in enumerate(labels):
        own = [row for of, row in rows if of == label]
        places = [tests.index(row["test"]) + (number + 0.5) * width - _WIDTH / 2 for row in own]
        below, above = ([abs(row["rate"] - row[side]) for row in own] for side in ("least", "most"))
        known[label] = axes.bar(
            places,
            [row["rate"] for row in own],
            0.92 * width,
            yerr=(below, above),
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "0.2"},
            **styles[label],
        )
        for place, row in zip(places, own, strict=True):
            style = {"ha": "center", "fontsize": 8 if len(labels) < 5 else 6}
            axes.annotate(_short(row["rate"]), (place, row["most"]), (0, 2), "data", "offset points", **style)
    axes.set_xticks(range(len(tests)), tests)
    axes.set_xlim(-0.5, len(tests) - 0.5)
    axes.margins(y=0.1)
    axes.yaxis.set_major_formatter(lambda rate, _: _short(rate) if rate else "0")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return known


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _title(report: dict[str, Any]) -> str:
    """Return the lines under the heading."""
    model, options = report["model"], report["options"]
    counts = Counter(rank["name"] for rank in report["ranks"])
    where = " & ".join(f"{count} x {name}" for name, count in counts.items())
    sizes = (
        f"{model['layers']} layers, hidden {model['hidden']}, intermediate {model['intermediate']}, "
        f"{model['heads']} heads over {model['kv_heads']}, {model['vocabulary']:,} words"
    )
    how = (
        f"vkpar {report['versions']['vkpar']}, ratios {'/'.join(options['ratios'])}, wire {'/'.join(options['wires'])}"
    )
    return f"{where}; {sizes}\n{how}; bars: median of {options['repeat']}, whiskers: least to most"
