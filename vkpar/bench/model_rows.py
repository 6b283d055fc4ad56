"""The rows of `vkpar bench model`: what they hold, and their lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vkpar.bench.frame import table

# Characters of a column; those of a narrow terminal, which leaves out what has none there.
COLUMNS: Final = (
    ("split", 13, 13),
    ("ratios", 12, 10),
    ("wire", 6, 5),
    ("step", 10, 9),
    ("test", 18, 15),
    ("tokens/s", 12, 10),
    ("least", 12, 0),
    ("most", 12, 0),
    ("first(ms)", 11, 10),
    ("#wrong", 8, 7),
)
_NAMED: Final = 5  # columns of words, to the left


@dataclass(frozen=True)
class Row:
    """One test of one split.

    Attributes:
        split: as it was asked for; ``auto`` with the mode that it took, ``each`` behind it where each expert is summed.
        ratios: that the devices got, ``wire`` of the sums.
        step: ``captured``, ``eager``; for prompts ``-``, or ``halves`` where they went through in two halves.
        test: its name.
        rate: tokens a second, the median of the runs; ``least`` and ``most`` of any.
        first: seconds of the first run, which makes pipelines and graphs and finds a GPU at a low clock.
        wrong: logits that are not finite.
    """

    split: str
    ratios: str
    wire: str
    step: str
    test: str
    rate: float
    least: float
    most: float
    first: float
    wrong: int

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        rates = (f"{rate:.2f}" for rate in (self.rate, self.least, self.most))
        named = (self.split, self.ratios, self.wire, self.step, self.test)
        return " " + line_of((*named, *rates, f"{1e3 * self.first:.1f}", str(self.wrong)), width)


def line_of(cells: Sequence[str], width: int | None) -> str:
    """Return the cells of a row, those that a terminal of ``width`` columns can show."""
    narrow = table.is_narrow(width, " " * (1 + sum(wide for _, wide, _ in COLUMNS)))
    line = ""
    for number, (cell, (_, wide, small)) in enumerate(zip(cells, COLUMNS, strict=True)):
        size = small if narrow else wide
        if size:  # a word that fills its column is cut off from the next by a space
            line += f"{cell:<{size - 1}} " if number < _NAMED else f"{cell:>{size}}"
    return line
