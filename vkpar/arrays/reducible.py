"""What arrays have of reductions: methods whose work is done by operations, which lie above arrays."""

from __future__ import annotations

from typing import TypeVar

from vkpar.arrays.operators import operations

_R = TypeVar("_R", bound="Reducible")


class Reducible:
    """An array with the reductions of ``vkpar`` as methods; see ``vkpar.sum`` and the others for what they return."""

    def sum(
        self: _R, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _R | None = None
    ) -> _R:
        """Return :func:`vkpar.sum` of the array."""
        made: _R = operations["sum"](self, axis, keepdims, out=out)
        return made

    def mean(
        self: _R, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _R | None = None
    ) -> _R:
        """Return :func:`vkpar.mean` of the array."""
        made: _R = operations["mean"](self, axis, keepdims, out=out)
        return made

    def max(
        self: _R, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _R | None = None
    ) -> _R:
        """Return :func:`vkpar.max` of the array."""
        made: _R = operations["max"](self, axis, keepdims, out=out)
        return made

    def min(
        self: _R, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _R | None = None
    ) -> _R:
        """Return :func:`vkpar.min` of the array."""
        made: _R = operations["min"](self, axis, keepdims, out=out)
        return made

    def argmax(self: _R, axis: int | None = None, keepdims: bool = False, *, out: _R | None = None) -> _R:
        """Return :func:`vkpar.argmax` of the array."""
        made: _R = operations["argmax"](self, axis, keepdims, out=out)
        return made

    def argmin(self: _R, axis: int | None = None, keepdims: bool = False, *, out: _R | None = None) -> _R:
        """Return :func:`vkpar.argmin` of the array."""
        made: _R = operations["argmin"](self, axis, keepdims, out=out)
        return made
