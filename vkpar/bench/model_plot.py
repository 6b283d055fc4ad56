"""Draws the rates of ``vkpar bench model``: prompts on the left, tokens one after the other on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vkpar.bench.frame import picture

_HATCHES: Final = ("", "//", "..", "xx")  # once the colours are used up
_WIDTH: Final = 0.8  # of the bars of a test together

_Row = dict[str, Any]


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
    figure.suptitle(f"Prompts and tokens of {name}, {report['options']['weights']} weights, by split", **picture.BOLD)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _label(row: _Row, told: Sequence[str]) -> str:
    """Return a row's split, and what else differs between rows."""
    more = [f"{name} {row[name]}" if name == "wire" else str(row[name]) for name in told]
    return ", ".join([row["split"], *(each for each in more if each != "-")])


def _style(number: int) -> dict[str, Any]:
    return {
        "color": picture.COLOURS[number % len(picture.COLOURS)],
        "hatch": _HATCHES[number // len(picture.COLOURS) % len(_HATCHES)],
    }


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
    picture.quiet(axes, grid="y")
    return known


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _title(report: dict[str, Any]) -> str:
    """Return the lines under the heading."""
    model, options = report["model"], report["options"]
    where = picture.counted([rank["name"] for rank in report["ranks"]])
    sizes = (
        f"{model['layers']} layers, hidden {model['hidden']}, intermediate {model['intermediate']}, "
        f"{model['heads']} heads over {model['kv_heads']}, {model['vocabulary']:,} words"
    )
    how = (
        f"vkpar {report['versions']['vkpar']}, ratios {'/'.join(options['ratios'])}, wire {'/'.join(options['wires'])}"
    )
    return f"{where}; {sizes}\n{how}; bars: median of {options['repeat']}, whiskers: least to most"
