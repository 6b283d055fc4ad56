"""Conversion between floating-point types."""

from __future__ import annotations

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.ops._launch import (
    GROUP,
    SHORT,
    check_arrays,
    check_float,
    check_out,
    check_overlap,
    dispatch,
    fold_groups,
    run_single,
    spans,
    window,
    words,
    writable_in_place,
)
from vkpar.plans import form_of


def cast(a: Array, dtype: object, *, out: Array | None = None) -> Array:
    """Return the elements of ``a`` in another type, rounded to nearest even.

    Overflow gives infinity; NaN (as the canonical one) and infinity are kept; subnormal values are exact.

    Args:
        a: any shape; float32, float16 or bfloat16, or any type when ``dtype`` is its own (then bytes are copied).
        dtype: float32, float16 or bfloat16.
        out: where the result goes, of ``a``'s shape and of type ``dtype``; by default a new array.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; a wrong ``out``, or one in shared memory.
        UnsupportedError: a type that devices do not convert, such as float64.
    """
    target = dtypes.resolve(dtype)
    done = run_single("cast", a, out, target.name)
    if done is not None:
        return done
    check_arrays("cast", out, a=a)
    if a.dtype != target:
        check_float("cast", a.dtype, target)
    given = out
    if out is not None:
        check_out("cast", out, a.shape, target)
        check_overlap("cast", out, a, in_place=a.dtype == target)
    else:
        out = a.device.empty(a.shape, target)
    if a.size == 0 or out is a:
        return out
    if a.dtype == target:
        out.copy_from(a)
    else:
        a = a.contiguous()
        convert(a, out, ("cast", form_of(a), None if given is None else form_of(given), target.name))
    return out


def convert(a: Array, out: Array, key: tuple[object, ...] | None = None) -> None:
    """Convert checked, non-empty arrays of equal size and different floating-point types; ``a`` is contiguous.

    Where there is a ``key``, and one dispatch does it, its plan is kept.
    """
    if not (out.is_contiguous and writable_in_place(out)):
        aligned = a.device.empty(out.shape, out.dtype)
        convert(a, aligned)
        out.copy_from(aligned)
        return
    kernel = f"cast_{SHORT[a.dtype.name]}_{SHORT[out.dtype.name]}"
    for start, count in spans(a.size, (a, 0), (out, 0), pairs=out.dtype.itemsize == 2):
        source, a_first = window(a, start, count)
        target, o_first = out.window(start, count)
        constants = (a_first % 4 == 0, o_first % 4 == 0)
        grid = fold_groups(a.device, -(-count // GROUP))
        push = words(count, a_first, o_first)
        kept = key if count == a.size else None
        dispatch("cast", kernel, (a, out), (source, target), push, grid, constants, key=kept)
