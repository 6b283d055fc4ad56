"""What arrays have of reductions: methods whose work is done by operations, which lie above arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vkpar.arrays.array import Array

# By name; `vkpar.ops.reductions` puts them here.
operations: dict[str, Callable[..., Any]] = {}


class Reducible:
    """An array with the reductions of ``vkpar`` as methods; see ``vkpar.sum`` and the others for what they return."""

    def sum(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: Array | None = None
    ) -> Array:
        """Return :func:`vkpar.sum` of the array."""
        made: Array = operations["sum"](self, axis, keepdims, out=out)
        return made

    def mean(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: Array | None = None
    ) -> Array:
        """Return :func:`vkpar.mean` of the array."""
        made: Array = operations["mean"](self, axis, keepdims, out=out)
        return made

    def max(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: Array | None = None
    ) -> Array:
        """Return :func:`vkpar.max` of the array."""
        made: Array = operations["max"](self, axis, keepdims, out=out)
        return made

    def min(
        self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: Array | None = None
    ) -> Array:
        """Return :func:`vkpar.min` of the array."""
        made: Array = operations["min"](self, axis, keepdims, out=out)
        return made

    def argmax(self, axis: int | None = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
        """Return :func:`vkpar.argmax` of the array."""
        made: Array = operations["argmax"](self, axis, keepdims, out=out)
        return made

    def argmin(self, axis: int | None = None, keepdims: bool = False, *, out: Array | None = None) -> Array:
        """Return :func:`vkpar.argmin` of the array."""
        made: Array = operations["argmin"](self, axis, keepdims, out=out)
        return made
