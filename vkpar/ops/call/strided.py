"""Operands of three or four dimensions that kernels take where they lie: rows side by side, any steps between rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import UnsupportedError
from vkpar.ops.call.call import Call
from vkpar.ops.call.landing import packed

if TYPE_CHECKING:
    from vkpar.vulkan.memory.buffer import BufferRange


class Strided(NamedTuple):
    """What a kernel binds of an operand or a result.

    Attributes:
        array: what is bound, by ``range``.
        first: the number of its first element in the range.
        steps: elements from one place to the next along the axes before the last two, and along rows: batch, head, row.
    """

    array: Array
    range: BufferRange
    first: int
    steps: tuple[int, int, int]

    @property
    def words(self) -> tuple[int, int, int, int]:
        """The first element and the steps, as kernels take them."""
        return self.first, *self.steps

    def multiples(self, count: int) -> bool:
        """Say whether all rows begin at multiples of ``count`` elements."""
        return not any(word % count for word in self.words)


def takes(array: Array) -> bool:
    """Say whether kernels take an array as it lies: the elements of a row side by side, no step backwards."""
    if array.steps is None:
        return True
    return (array.steps[-1] == 1 or array.shape[-1] == 1) and min(array.steps) >= 0


def bind(call: Call, array: Array) -> Strided:
    """Return how a kernel binds an operand, a copy where it does not take that as it lies.

    Args:
        call: that it is a part of.
        array: one of the call's operands, results or temporaries.

    Raises:
        UnsupportedError: no binding of a kernel holds it.
    """
    if not takes(array):
        array = packed(call, array)
    shape, steps = array.shape, array.strides
    flat, made, first = whole(call, array)
    outer = [step if count > 1 else 0 for count, step in zip(shape[:-1], steps[:-1], strict=True)]
    return Strided(flat, made, first, (0,) * (4 - len(shape)) + tuple(outer))  # type: ignore[arg-type]


def whole(call: Call, array: Array) -> tuple[Array, BufferRange, int]:
    """Return all that an array of the call reaches, no stride being negative, its range and the first one's number.

    Raises:
        UnsupportedError: no binding of a kernel holds it.
    """
    flat = call.flat(array)
    if flat.reach() < flat.size:
        raise UnsupportedError(
            f"{call.operation}: a kernel of {array.device} cannot see an array of {flat.nbytes} bytes at once"
        )
    return (flat, *flat.window())


def stand_in(call: Call, out: Array) -> Array:
    """Return what a kernel writes in place of ``out``, itself where it can; ``land`` brings it there.

    Halves are written two at a time: no two rows may share a word.
    """
    if not takes(out):
        return call.temporary(out.shape, out.dtype if out.dtype.itemsize == 4 else dtypes.float32)
    if out.dtype.itemsize == 4:
        return out
    steps = [step for count, step in zip(out.shape[:-1], out.strides[:-1], strict=True) if count > 1]
    if any(place % 2 for place in (out.byte_offset // 2, out.shape[-1], *steps)):
        return call.temporary(out.shape, dtypes.float32)
    return out
