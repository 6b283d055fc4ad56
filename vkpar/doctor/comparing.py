"""An answer of a device, compared with what it is to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkpar import Array
from vkpar.doctor import references
from vkpar.doctor.functions import F64
from vkpar.testing import U

Host = NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """A result of an operation.

    Attributes:
        what: was computed, in words.
        made: by the device.
        wanted: in float64, or bit for bit where there is no error.
        error: that it may have before it is rounded to its type; None for none at all, not even by rounding.
    """

    what: str
    made: Array
    wanted: Host
    error: F64 | float | None


def compare(answer: Answer) -> tuple[str, float]:
    """Return what is wrong with an answer, and how much of its bound it takes."""
    found = answer.made.numpy()
    if found.shape != answer.wanted.shape:
        return f"has the shape {found.shape}, not {answer.wanted.shape}", 0.0
    if answer.error is None:
        wrong = _bits(found) != _bits(answer.wanted.astype(found.dtype, copy=False))
        return (_differing(found, answer.wanted, wrong, "bit for bit"), 0.0) if wrong.any() else ("", 0.0)
    found, wanted = found.astype(np.float64), answer.wanted.astype(np.float64)
    relative, least = references.ROUNDING[answer.made.dtype.name]
    most = answer.error + relative * (np.abs(wanted) + answer.error) + least + U * np.abs(wanted)
    off = np.abs(found - wanted)
    wrong = ~(off <= most)
    if wrong.any():
        worst = float(np.nanmax(np.where(wrong, off / most, 0.0))) if not np.isnan(off).any() else np.inf
        return _differing(found, wanted, wrong, f"off by {worst:.3g} times its bound"), worst
    return "", float(np.max(off / most, initial=0.0))


def _differing(found: Host, wanted: Host, wrong: Host, how: str) -> str:
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ", ".join(map(str, at)) or "0"
    number = int(np.count_nonzero(wrong))
    beside = f"[{place}] is {found[at]:.9g}, not {wanted[at]:.9g}"
    return f"{number} of {wrong.size} elements are wrong, the first: {beside} ({how})"


def _bits(values: Host) -> Host:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
