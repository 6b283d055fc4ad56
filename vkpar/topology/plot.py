"""Draws what ``vkpar topo`` measured: the roads as maps of heat, the devices as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_MAPS: Final = {
    "latency_us": "latency (us)",
    "gbps": "one way (GB/s)",
    "both_gbps": "each way, both at once (GB/s)",
}
_BARS: Final = {"up_gbps": ("from the host", "#0072b2"), "down_gbps": ("to the host", "#e69f00")}
_NAME: Final = 26


def draw(survey: Mapping[str, Any], file: str) -> None:
    """Draw the document of a survey; :func:`vkpar.bench.frame.picture.check` says whether the file will do."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    devices, found = survey["hosts"], survey["roads"]
    maps = _MAPS if found else {}
    side = max(3.2, 0.55 * len(devices) + 1.5)
    rows = 2 if maps and len(devices) > 3 else 1
    columns = (len(maps) + 1) // rows
    size = (side * (columns + 0.4), side * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    places = list(axes.flat)
    for axis, (name, title) in zip(places, maps.items(), strict=False):
        _map(axis, len(devices), found, name, title)
    _bars(places[-1], devices)
    figure.suptitle(f"vkpar topo {survey['vkpar']}: {survey['explanation']}", x=0.01, ha="left", fontsize="medium")
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _map(axis: Any, nranks: int, found: Sequence[Mapping[str, Any]], name: str, title: str) -> None:
    values = [[float("nan")] * nranks for _ in range(nranks)]
    for road in found:
        values[road["src"]][road["dst"]] = road[name]
    most = max(road[name] for road in found)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=1.25 * most)
    for road in found:
        dark = road[name] > 0.75 * most
        colour = "white" if dark else "black"
        axis.text(road["dst"], road["src"], f"{road[name]:.3g}", ha="center", va="center", color=colour)
    axis.set_title(title, fontsize="medium")
    axis.set_xticks(range(nranks))
    axis.set_yticks(range(nranks))
    axis.set_xlabel("to rank")
    axis.set_ylabel("from rank")


def _bars(axis: Any, devices: Sequence[Mapping[str, Any]]) -> None:
    for number, (name, (label, colour)) in enumerate(_BARS.items()):
        places = [host["rank"] + 0.36 * number - 0.18 for host in devices]
        bars = axis.barh(places, [host[name] for host in devices], 0.34, label=label, color=colour)
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize="small")
    names = [f"{host['rank']} {host['name']}" for host in devices]
    shown = [name if len(name) <= _NAME else f"{name[: _NAME - 3]}..." for name in names]
    axis.set_yticks(range(len(devices)), shown)
    axis.invert_yaxis()
    axis.margins(x=0.18)
    axis.set_title("host link (GB/s)", fontsize="medium")
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
