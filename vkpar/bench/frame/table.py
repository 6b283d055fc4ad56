"""Sizes, bandwidths and rows as text, and the parts of a report that all benchmarks share."""

from __future__ import annotations

import os
import platform
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

import numpy as np

import vkpar
from vkpar.errors import InvalidUsageError

_SIZE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_LEAST_WIDTH: Final = 40  # columns: what a narrower terminal breaks is not worth wrapping
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names: a number with K, M, G or T for powers of 1024, as nccl-tests takes them.

    Raises:
        InvalidUsageError: not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InvalidUsageError(f"{text!r} is no size: expected bytes such as 8, 64K, 1.5M or 1G (powers of 1024)")
    nbytes = int(float(found[1]) * 2 ** _UNITS[found[2].lower()])
    if nbytes < 1:
        raise InvalidUsageError(f"{text!r} is no size: expected 1 byte or more")
    return nbytes


def steps(least: int, most: int, factor: int) -> Iterator[int]:
    """Yield ``least`` and its multiples by powers of ``factor`` up to ``most``."""
    while least <= most:
        yield least
        least *= factor


def algbw(nbytes: int, seconds: float) -> float:
    """Return the algorithm bandwidth: a collective's size over the time, in GB/s of 10^9 bytes."""
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def fixed(value: float, width: int) -> str:
    """Return ``value`` right-aligned in ``width`` characters, a space first, with two decimals or as many as fit."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) < width:
            break
    return text.rjust(width)


def wrong_text(wrong: int | None) -> str:
    """Return a number of wrong elements, ``N/A`` where nothing was checked."""
    return "N/A" if wrong is None else str(wrong)


def verdict(wrong: Sequence[int | None]) -> str:
    """Return the footer's words on the wrong elements of all rows."""
    checked = [number for number in wrong if number is not None]
    if not checked:
        return "N/A (not checked, see -c)"
    return f"{sum(checked)} {'FAILED' if any(checked) else 'OK'}"


def versions() -> dict[str, str]:
    """Return what ran: the versions of vkpar, Python and NumPy."""
    return {"vkpar": vkpar.__version__, "python": platform.python_version(), "numpy": np.__version__}


class Lines:
    """Lines of a report, each written out as soon as it is known; ``quiet`` drops them all.

    Attributes:
        width: columns of the terminal that they go to, where comments are wrapped; None for files and pipes.
    """

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._quiet = quiet
        terminal = stream.isatty() or "COLUMNS" in os.environ
        self.width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH) if terminal else None

    def __call__(self, *lines: str) -> None:
        """Print ``lines``."""
        if not self._quiet:
            for line in lines:
                for part in wrapped(line.rstrip(), self.width):
                    print(part, file=self._stream, flush=True)


def wrapped(line: str, width: int | None) -> list[str]:
    """Return a comment line as lines of at most ``width`` columns, each of them a comment; other lines as they are."""
    if width is None or len(line) <= width or not line.startswith("#"):
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False)


def is_narrow(width: int | None, line: str) -> bool:
    """Say whether the table that ``line`` belongs to is too wide for a terminal of ``width`` columns."""
    return width is not None and len(line) > width


def as_json(document: dict[str, Any], stream: TextIO) -> None:
    """Print the one document of a ``--json`` run."""
    import json

    print(json.dumps(document, indent=2), file=stream)
