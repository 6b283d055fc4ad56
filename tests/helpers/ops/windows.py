"""Which keys a query sees through a window."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def windowed(tokens: int, keys: int, window: int, *, causal: bool, length: int | None = None) -> NDArray[np.float64]:
    """Return a mask of the keys that queries see."""
    last = np.full((tokens, 1), keys if length is None else min(length, keys))
    last -= np.arange(tokens)[::-1, None] * causal
    at = np.arange(keys)
    return np.where((at < last) & (at >= last - window), 0.0, -np.inf)
