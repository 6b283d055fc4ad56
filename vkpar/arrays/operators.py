"""Python's operators on arrays, and methods that compute; ``vkpar.ops``, which lies above, fills the table of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from vkpar.arrays.views import Viewable

_A = TypeVar("_A", bound="Operators")

# By what vkpar calls them; "in_place" takes the name of another one.
operations: Final[dict[str, Callable[..., Any]]] = {}

_UFUNCS: Final = {
    np.add: "add", np.subtract: "subtract", np.multiply: "multiply", np.true_divide: "divide", np.power: "pow",
    np.equal: "equal", np.not_equal: "not_equal", np.less: "less", np.less_equal: "less_equal",
    np.greater: "greater", np.greater_equal: "greater_equal",
}  # fmt: skip


def _both(name: str) -> tuple[Callable[[_A, Any], _A], Callable[[_A, Any], _A]]:
    """Return the methods of an operator: of the array on the left, and on the right."""

    def left(self: _A, other: Any) -> _A:
        made: _A = operations[name](self, other)
        return made

    def right(self: _A, other: Any) -> _A:
        made: _A = operations[name](other, self)
        return made

    return left, right


class Operators(Viewable):
    """Arithmetic and comparisons by element, with arrays of the same device and with numbers.

    Operands are broadcast as NumPy broadcasts them, and numbers take the array's type. Comparisons give arrays of
    bool: an array of several elements has no truth of its own. ``a + b`` is :func:`vkpar.add`, and so on.
    Reductions are methods, too.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **how: Any) -> Any:
        """Compute NumPy's scalar with the array (``np.float32(2) * a``); refuse all else, which would download it.

        Raises:
            OperandError: anything else; the message says what to write.
        """
        if method == "__call__" and ufunc in _UFUNCS and not how and isinstance(operands[0], np.generic):
            return operations[_UFUNCS[ufunc]](*operands)
        return super().__array_ufunc__(ufunc, method, *operands, **how)

    # --- arithmetic ---

    def __add__(self: _A, other: Any) -> _A:
        made: _A = operations["add"](self, other)
        return made

    def __radd__(self: _A, other: Any) -> _A:
        made: _A = operations["add"](other, self)
        return made

    def __sub__(self: _A, other: Any) -> _A:
        made: _A = operations["subtract"](self, other)
        return made

    def __rsub__(self: _A, other: Any) -> _A:
        made: _A = operations["subtract"](other, self)
        return made

    def __mul__(self: _A, other: Any) -> _A:
        made: _A = operations["multiply"](self, other)
        return made

    def __rmul__(self: _A, other: Any) -> _A:
        made: _A = operations["multiply"](other, self)
        return made

    def __truediv__(self: _A, other: Any) -> _A:
        made: _A = operations["divide"](self, other)
        return made

    def __rtruediv__(self: _A, other: Any) -> _A:
        made: _A = operations["divide"](other, self)
        return made

    def __pow__(self: _A, other: Any) -> _A:
        made: _A = operations["pow"](self, other)
        return made

    def __rpow__(self: _A, other: Any) -> _A:
        made: _A = operations["pow"](other, self)
        return made

    def __matmul__(self: _A, other: Any) -> _A:
        made: _A = operations["matmul"](self, other)
        return made

    def __neg__(self: _A) -> _A:
        made: _A = operations["negative"](self)
        return made

    def __abs__(self: _A) -> _A:
        made: _A = operations["abs"](self)
        return made

    __mod__, __rmod__ = _both("mod")
    __floordiv__, __rfloordiv__ = _both("floor_divide")
    __and__, __rand__ = _both("bitwise_and")
    __or__, __ror__ = _both("bitwise_or")
    __xor__, __rxor__ = _both("bitwise_xor")
    __lshift__, __rlshift__ = _both("left_shift")
    __rshift__, __rrshift__ = _both("right_shift")

    def __invert__(self: _A) -> _A:
        made: _A = operations["invert"](self)
        return made

    # --- in place ---

    def __iadd__(self: _A, other: Any) -> _A:
        operations["in_place"]("add", self, other)
        return self

    def __isub__(self: _A, other: Any) -> _A:
        operations["in_place"]("subtract", self, other)
        return self

    def __imul__(self: _A, other: Any) -> _A:
        operations["in_place"]("multiply", self, other)
        return self

    def __itruediv__(self: _A, other: Any) -> _A:
        operations["in_place"]("divide", self, other)
        return self

    # --- comparisons ---

    def __eq__(self, other: object) -> Any:
        """Compare by element; raises OperandError for what is neither an array nor a number."""
        return operations["equal"](self, other)

    def __ne__(self, other: object) -> Any:
        """Compare by element; raises OperandError for what is neither an array nor a number."""
        return operations["not_equal"](self, other)

    def __lt__(self: _A, other: Any) -> _A:
        made: _A = operations["less"](self, other)
        return made

    def __le__(self: _A, other: Any) -> _A:
        made: _A = operations["less_equal"](self, other)
        return made

    def __gt__(self: _A, other: Any) -> _A:
        made: _A = operations["greater"](self, other)
        return made

    def __ge__(self: _A, other: Any) -> _A:
        made: _A = operations["greater_equal"](self, other)
        return made

    __hash__ = object.__hash__  # by identity: arrays are keys of what is kept for them

    # --- masks and places ---

    def _picked(self: _A, key: Viewable) -> _A:
        made: _A = operations["picked"](self, key)
        return made

    # --- assignment ---

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the elements that ``self[key]`` shows, in program order; the value is broadcast to them as NumPy does it.

        Args:
            key: what ``self[key]`` takes: NumPy's basic indexing; or a mask of bool, with one number as the value.
            value: an array of the same device, which is converted and copied on it; a number, as :meth:`fill` takes it;
                or what ``np.asarray`` takes, which is uploaded. The array may share memory with ``self``.

        Raises:
            InvalidUsageError: a key of another kind or out of range, a view made by broadcasting, an array of another
                device, or a shape that cannot be broadcast.
            UnsupportedError: an array of a type that devices do not convert to this one.
        """
        self.check_writable("assignment")
        if isinstance(key, Viewable):
            operations["put"](self, key, value)
            return
        operations["assign"](self[key], value)

    # --- methods ---

    def astype(self: _A, dtype: object) -> _A:
        """Return the elements as another type, a new array even of the same one; see :func:`vkpar.cast`."""
        made: _A = operations["cast"](self, dtype)
        return made

    def fill(self, value: float) -> None:
        """Set every element to ``value``, in program order; on the device, of the types that operations compute.

        Raises:
            InvalidUsageError: a view made by broadcasting, or a value that the array's type does not hold.
        """
        operations["fill"](self, value)

    def clip(self: _A, low: Any = None, high: Any = None, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.clip` of the array."""
        made: _A = operations["clip"](self, low, high, out=out)
        return made

    def round(self: _A, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.round` of the array."""
        made: _A = operations["round"](self, out=out)
        return made

    def repeat(self: _A, repeats: int | Sequence[int], axis: int | None = None, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.repeat` of the array."""
        made: _A = operations["repeat"](self, repeats, axis, out=out)
        return made

    # --- reductions ---

    def sum(
        self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _A | None = None
    ) -> _A:
        """Return :func:`vkpar.sum` of the array."""
        made: _A = operations["sum"](self, axis, keepdims, out=out)
        return made

    def mean(
        self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _A | None = None
    ) -> _A:
        """Return :func:`vkpar.mean` of the array."""
        made: _A = operations["mean"](self, axis, keepdims, out=out)
        return made

    def max(
        self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _A | None = None
    ) -> _A:
        """Return :func:`vkpar.max` of the array."""
        made: _A = operations["max"](self, axis, keepdims, out=out)
        return made

    def min(
        self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, out: _A | None = None
    ) -> _A:
        """Return :func:`vkpar.min` of the array."""
        made: _A = operations["min"](self, axis, keepdims, out=out)
        return made

    def var(self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, ddof: int = 0) -> _A:
        """Return :func:`vkpar.var` of the array."""
        made: _A = operations["var"](self, axis, keepdims, ddof=ddof)
        return made

    def std(self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, ddof: int = 0) -> _A:
        """Return :func:`vkpar.std` of the array."""
        made: _A = operations["std"](self, axis, keepdims, ddof=ddof)
        return made

    def prod(self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> _A:
        """Return :func:`vkpar.prod` of the array."""
        made: _A = operations["prod"](self, axis, keepdims)
        return made

    def any(self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> _A:
        """Return :func:`vkpar.any` of the array."""
        made: _A = operations["any"](self, axis, keepdims)
        return made

    def all(self: _A, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> _A:
        """Return :func:`vkpar.all` of the array."""
        made: _A = operations["all"](self, axis, keepdims)
        return made

    def cumsum(self: _A, axis: int | None = None, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.cumsum` of the array."""
        made: _A = operations["cumsum"](self, axis, out=out)
        return made

    def cumprod(self: _A, axis: int | None = None, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.cumprod` of the array."""
        made: _A = operations["cumprod"](self, axis, out=out)
        return made

    def argsort(self: _A, axis: int | None = -1, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.argsort` of the array."""
        made: _A = operations["argsort"](self, axis, out=out)
        return made

    def argmax(self: _A, axis: int | None = None, keepdims: bool = False, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.argmax` of the array."""
        made: _A = operations["argmax"](self, axis, keepdims, out=out)
        return made

    def argmin(self: _A, axis: int | None = None, keepdims: bool = False, *, out: _A | None = None) -> _A:
        """Return :func:`vkpar.argmin` of the array."""
        made: _A = operations["argmin"](self, axis, keepdims, out=out)
        return made
