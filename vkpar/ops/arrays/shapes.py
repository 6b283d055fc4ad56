"""Functions that give an array another shape."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError


def transpose(a: Array, axes: Sequence[int] | None = None) -> Array:
    """Return a view of ``a`` with permuted axes, by default in the opposite order; see :meth:`Array.transpose`.

    Args:
        a: the array.
        axes: which axis of ``a`` each axis of the result is; None for the opposite order.

    Raises:
        InvalidUsageError: not an array, or ``axes`` that do not name each axis once.

    Examples:
        >>> vkpar.transpose(device.zeros((2, 3))).shape
        (3, 2)
    """
    _check("transpose", a)
    return a.transpose() if axes is None else a.transpose(tuple(axes))


def broadcast_to(a: Array, shape: int | Sequence[int]) -> Array:
    """Return a view of ``a`` in a larger shape, as NumPy broadcasts; see :meth:`Array.broadcast_to`.

    Args:
        a: the array.
        shape: the larger shape; its last axes are those of ``a``, or longer where these have length 1.

    Raises:
        InvalidUsageError: not an array, or one that does not fit the shape.

    Examples:
        >>> vkpar.broadcast_to(device.array([1, 2]), (2, 2)).tolist()
        [[1, 2], [1, 2]]
    """
    _check("broadcast_to", a)
    return a.broadcast_to(shape)


def contiguous(a: Array) -> Array:
    """Return ``a`` where its elements lie side by side in C order, else a copy of it; see :meth:`Array.contiguous`.

    Args:
        a: the array, of any type.

    Raises:
        InvalidUsageError: not an array, or a closed one.

    Examples:
        >>> vkpar.contiguous(device.zeros((2, 3)).T).is_contiguous
        True
    """
    _check("contiguous", a)
    return a.contiguous()


def _check(operation: str, a: object) -> None:
    if not isinstance(a, Array):
        raise InvalidUsageError(f"{operation} takes a vkpar.Array, not {type(a).__name__}")
