"""What the pictures of all benchmarks share: whether one can be drawn, colours, and how axes look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from vkpar.errors import InvalidUsageError, UnsupportedError

# Colours that the colour-blind can tell apart.
COLOURS: Final = ("#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
BOLD: Final = {"x": 0.01, "ha": "left", "fontweight": "bold"}  # how headings stand


def check(file: str) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        UnsupportedError: there is no matplotlib.
        InvalidUsageError: there is no folder for the file, it is one, or its suffix is not known.
    """
    if find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs the package matplotlib: pip install matplotlib")
    path = Path(file)
    if not path.resolve().parent.is_dir():
        raise InvalidUsageError(f"there is no folder for {file}")
    if path.is_dir():
        raise InvalidUsageError(f"{file} is a folder; name a file in it")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InvalidUsageError(f"{file} has no suffix of a picture; there are {', '.join(sorted(known))}")


def counted(names: Sequence[str]) -> str:
    """Return names joined by ``&``, equal ones counted: ``2 x llvmpipe & SwiftShader``."""
    return " & ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items())


def quiet(axes: Any, *, grid: str) -> None:
    """Take from axes what distracts; ``grid`` says along which of them lines stand behind: ``y`` or ``both``."""
    axes.grid(axis=grid, color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
