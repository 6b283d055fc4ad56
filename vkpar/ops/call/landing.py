"""Arrays that stand in for others within a call: copies of operands, and results on their way to where they go."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.arrays.rearrange import goes_by_rows
from vkpar.ops.call.call import Call
from vkpar.ops.call.windows import writable_in_place


def move(call: Call, source: Array, target: Array) -> None:
    """Copy an array of a call, or a view of one, to another of equal shape and type."""
    if source.is_contiguous and target.is_contiguous:
        call.copy(source, target)
    elif goes_by_rows(source, target) or not operations["move"](source, target, call):
        call.forget()
        target.copy_from(source)


def packed(call: Call, array: Array) -> Array:
    """Return an array of a call, or a copy where its elements do not lie side by side."""
    if array.is_contiguous:
        return array
    made = call.temporary(array.shape, array.dtype)
    move(call, array, made)
    return made


def land(call: Call, made: Array, out: Array) -> None:
    """Bring to ``out`` what was made in its place: itself, or an array of its shape, of another float type perhaps."""
    if made is not out and made.dtype != out.dtype:
        direct = out.is_contiguous and writable_in_place(out)
        target = out if direct else call.temporary(out.shape, out.dtype)
        call.convert(made, target)
        made = target
    if made is not out:
        move(call, made, out)


def settle(made: Sequence[Array], outs: Sequence[Array]) -> None:
    """Copy to results what was made in their place, where no call notes it."""
    for array, out in zip(made, outs, strict=True):
        if array is not out:
            out.copy_from(array)
