"""Draws a collective's benchmark: the time and the bus bandwidth over the size, a line for each form of the call."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from vkpar.bench.frame import picture
from vkpar.text import units

_FORMS: Final = {
    "out_of_place": ("out of place", picture.COLOURS[0], "o"),
    "in_place": ("in place", picture.COLOURS[2], "D"),
}
_PANELS: Final = {"time_us": "time (us)", "busbw_gbps": "bus bandwidth (GB/s)"}
_MANY: Final = 8  # sizes, beyond which their names stand aslant


def draw(report: dict[str, Any], file: str) -> None:
    """Draw the rows of a report that have a size, as its JSON document has them; its lines keep their names in SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    rows = [row for row in report["rows"] if row["size"]]
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure, panels = pyplot.subplots(2, 1, figsize=(9, 6.6), sharex=True, layout="constrained")
        for axes, (column, title) in zip(panels, _PANELS.items(), strict=True):
            _panel(axes, rows, column, title)
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panels[0].yaxis.set_major_formatter(lambda time, _: f"{time:,g}")
        panels[0].yaxis.set_minor_formatter(ticker.NullFormatter())
        panels[0].legend(frameon=False, loc="upper left")
        panels[0].set_title(_how(report), loc="left", fontsize=8.5, color="0.3")
        panels[1].set_ylim(bottom=0)
        _sizes(panels[1], [row["size"] for row in rows])
        figure.suptitle(_heading(report), **picture.BOLD)
        figure.savefig(file, dpi=150)
        pyplot.close(figure)


def _panel(axes: Any, rows: list[dict[str, Any]], column: str, title: str) -> None:
    for form, (label, colour, marker) in _FORMS.items():
        own = [row for row in rows if row[form] is not None]
        if own:
            (line,) = axes.plot(
                [row["size"] for row in own],
                [row[form][column] for row in own],
                marker=marker,
                color=colour,
                label=label,
            )
            line.set_gid(f"{form} {column}")
    axes.set_ylabel(title)
    picture.quiet(axes, grid="both")


def _sizes(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [units(size) for size in sizes], rotation=30 if len(sizes) > _MANY else 0)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("size per rank")


def _heading(report: dict[str, Any]) -> str:
    first, options = report["rows"][0], report["options"]
    what = ", ".join([first["type"], *([options["op"]] if first["redop"] else [])])
    wrong = f": {report['wrong']} WRONG ELEMENTS" if report["wrong"] else ""
    return f"vkpar bench {report['benchmark']}, {what}, over {report['nranks']} ranks{wrong}"


def _how(report: dict[str, Any]) -> str:
    """Return the lines under the heading."""
    options, first = report["options"], report["rows"][0]
    kinds = Counter(group["kind"] for group in report["links"] for _ in group["pairs"])
    links = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    wire = [f"wire {options['wire']}"] if first["redop"] else []
    where = picture.counted([rank["name"] for rank in report["ranks"]])
    how = ", ".join([f"vkpar {report['versions']['vkpar']}", *wire, f"links: {links}"])
    return f"{where}\n{how}; calls queued back to back, one wait at the end"
