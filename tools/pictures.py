#!/usr/bin/env python3
"""Draw the pictures of the pages, which are good on light and on dark: ``docs/images/*.svg``.

``python tools/pictures.py --check`` draws nothing, and fails where a file is not what would be drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
# The reader's scheme decides: a page's own switch reaches into pictures by its `color-scheme`.
_STYLE: Final = """
  .ink { fill: #24292f } .faint { fill: #59636e } .box { fill: #f3f6f8; stroke: #59636e } .road { stroke: #59636e }
  .a { fill: #bfe3df; stroke: #00796b } .b { fill: #ffe0b2; stroke: #b35c00 } .c { fill: #d1d9ff; stroke: #3f51b5 }
  .tip { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    .ink { fill: #e6edf3 } .faint { fill: #aab4be } .box { fill: #2b3138; stroke: #8b949e } .road { stroke: #aab4be }
    .a { fill: #0f4f49; stroke: #4db6ac } .b { fill: #5c3a0c; stroke: #ffb74d } .c { fill: #2c3670; stroke: #9fa8da }
    .tip { fill: #aab4be }
  }
  text { font: 14px system-ui, sans-serif; text-anchor: middle; dominant-baseline: middle }
  .small { font-size: 12px } .left { text-anchor: start } .road { fill: none; stroke-width: 1.6 }
  .dashed { stroke-dasharray: 5 4 } rect { stroke-width: 1.2 }
"""
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)


class Picture:
    """An SVG that grows by boxes, words and roads.

    Args:
        title: what it shows, for those who do not see it.
        width: in pixels; it is scaled to its page.
        height: likewise.
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{title}</title><style>{_STYLE}</style>{_TIP}'
        ]

    def text(self, x: float, y: float, text: str, kind: str = "ink") -> None:
        """Write a line whose middle is at x and y."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>')

    def box(self, x: float, y: float, width: float, height: float, text: str = "", kind: str = "box") -> None:
        """Draw a box with a line in its middle."""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" class="{kind}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 1, text, "ink small")

    def road(self, *points: tuple[float, float], dashed: bool = False, both: bool = False) -> None:
        """Draw an arrow along points; with ``both``, with a tip at either end."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        kind = "road dashed" if dashed else "road"
        self.parts.append(f'<path class="{kind}" d="{path}"{start} marker-end="url(#tip)"/>')

    def svg(self) -> str:
        """Return the file's text."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def roads() -> Picture:
    """Three cards, the host memory that they meet in, and how their queues wait for each other."""
    picture = Picture("Cards of three vendors meet in host memory; queues wait natively or by a bridge", 640, 310)
    for number, (name, kind) in enumerate((("NVIDIA card 0", "a"), ("NVIDIA card 1", "a"), ("AMD card", "b"))):
        x = 20 + 225 * number
        picture.box(x, 50, 150, 50, f"rank {number}: {name}", kind)
        picture.road((x + 75, 102), (x + 75, 198), both=True)
        picture.text(x + 83, 180, "PCI Express", "faint small left")
    picture.road((95, 48), (95, 22), (320, 22), (320, 48), both=True)
    picture.text(208, 12, "native: shared timelines", "faint small")
    picture.road((398, 75), (467, 75), both=True, dashed=True)
    picture.text(432, 118, "bridged: a host thread", "faint small")
    picture.text(432, 134, "passes signals on", "faint small")
    picture.box(20, 200, 600, 60, "", "c")
    picture.text(320, 220, "host memory that all of them import: a slot a sender and segment")
    picture.text(320, 243, "a driver that cannot import it is mapped: the host copies its slots", "faint small")
    picture.text(320, 288, "bytes go through host memory on every road; what differs is who wakes whom", "faint small")
    return picture


def two_shot() -> Picture:
    """An all_reduce of three ranks by the two-shot algorithm: publish, sum at the owner, gather."""
    picture = Picture("two_shot on three ranks: each publishes, the owner sums its chunk, all gather", 640, 300)
    for column, title in enumerate(("1 publish", "2 the owner sums, publishes", "3 gather")):
        picture.text(140 + 195 * column, 18, title)
    for rank in range(3):
        y = 45 + 80 * rank
        picture.text(34, y + 20, f"rank {rank}")
        for chunk, kind in enumerate("abc"):
            picture.box(80 + 42 * chunk, y, 38, 40, f"{'xyz'[rank]}{chunk}", kind)
            picture.box(475 + 48 * chunk, y, 44, 40, f"&#931;{chunk}", kind)
        picture.box(290, y, 110, 40, f"x{rank} + y{rank} + z{rank}", "abc"[rank])
        for other in range(3):
            picture.road((208, 65 + 80 * other), (286, y + 14 + 6 * other))
            picture.road((402, y + 20), (471, 65 + 80 * other - 6 + 6 * rank))
    picture.text(
        320, 284, "every element is summed by one rank, in rank order: all ranks get the same bits", "faint small"
    )
    return picture


def stretches() -> Picture:
    """What two devices do in a launch of a graph, cut into stretches where one waits for the other."""
    picture = Picture("A launch on two devices: stretches end where the other rank's bytes are needed", 640, 230)
    for rank in range(2):
        y = 40 + 85 * rank
        picture.text(34, y + 25, f"rank {rank}")
        cuts = (("matmul | publish", 75, 150, "a"), ("reduce", 265, 95, "b"), ("gather | add | matmul", 400, 170, "c"))
        for name, x, width, kind in cuts:
            picture.box(x, y, width, 50, name, kind)
    for left, right in ((227, 263), (362, 398)):
        picture.road((left, 65), (right, 65))
        picture.road((left, 150), (right, 150))
        picture.road((left, 75), (right, 140))
        picture.road((left, 140), (right, 75))
    picture.road((75, 205), (570, 205))
    picture.text(322, 192, "time: one submission a stretch, one wait between two", "faint small")
    for x, name in ((150, "stretch 1"), (312, "stretch 2"), (485, "stretch 3")):
        picture.text(x, 22, name)
    return picture


PICTURES: Final = {"roads.svg": roads, "two-shot.svg": two_shot, "stretches.svg": stretches}


def main() -> int:
    """Write the files, or compare them."""
    stale = []
    for name, draw in PICTURES.items():
        path, svg = IMAGES / name, draw().svg()
        if "--check" not in sys.argv[1:]:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            stale.append(name)
    if stale:
        print(f"python tools/pictures.py draws other pictures than these: {', '.join(stale)}")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
