"""Numbers and tables as plain text, for messages and for objects that print themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TextIO

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_BLANKS = re.compile(r"(?: |\x1b\[[0-9;]*m)+\n")


def units(nbytes: int) -> str:
    """Return a number of bytes with the largest unit that it reaches, four digits at most: ``1.5 MiB``, ``80 B``."""
    if nbytes >= 1 << 100:
        return "more than 2^100 B"
    for size, name in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.4g} {name}"
    return f"{nbytes} B"


def number(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things in words: ``1 device``, ``2 devices``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def shown(value: object) -> str:
    """Return the ``repr`` of a value for a message; Python refuses to print whole numbers of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return f"a whole number of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__


def columns(rows: Iterable[Sequence[str]], *, left: Collection[int] = ()) -> list[str]:
    """Return rows of cells as lines with aligned columns, two blanks between them and none at the ends.

    Args:
        rows: the header, then the rows; each has as many cells.
        left: the columns that are aligned to the left; the others go to the right, as numbers do.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return [line.rstrip() for line in lines]


class Trimmed:
    """A stream that drops the blanks at the ends of lines, which tables are padded with; all else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, written: str) -> int:
        """Write without blanks before line ends, those among codes of colours included."""
        return self._stream.write(_BLANKS.sub(lambda found: found[0].replace(" ", ""), written))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
