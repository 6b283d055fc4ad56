"""What all ways of calling ``vkpar.matmul`` check alike: by floats, by quantised weights, with norms and gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.dispatch import check_float, check_out, check_overlap
from vkpar.ops.quantized.weights import Quantized


def residual_of(out: Array | None, residual: Array | None, accumulate: bool) -> Array | None:
    """Return what is added to the product: ``out`` itself where it accumulates.

    Raises:
        InvalidUsageError: there is no ``out`` to accumulate in, or a residual beside it.
    """
    if not accumulate:
        return residual
    if out is None or residual is not None:
        raise InvalidUsageError("matmul: accumulate adds to out, which has to be given; it is residual=out: give one")
    return out


def adds_in_place(out: Any, residual: Any, *others: Any) -> bool:
    """Say whether the residual is ``out``, whose memory none of the other operands has a part of."""
    if residual is None or residual is not out:
        return False
    storage = out.storage
    return all(getattr(other, "storage", None) is not storage for other in others if other is not None)


def check_device(a: Array, q: Quantized) -> None:
    """Raise InvalidUsageError where an operand and quantised weights live on different devices."""
    if a.device is not q.device:
        raise InvalidUsageError(f"matmul: {a!r} and {q!r} live on different devices; copy one over with .to(device)")


def result_type(operands: Sequence[Array], out: Array | None, dtype: object) -> DType:
    """Return the result's type.

    Args:
        operands: of floats.
        out: given where the product is added to it.
        dtype: what the call asks for.

    Raises:
        UnsupportedError: a type that devices do not compute.
        InvalidUsageError: no type.
    """
    check_float("matmul", *(array.dtype for array in operands))
    if dtype is not None:
        found = dtypes.resolve(dtype)
    else:
        found = dtypes.result_type(*(array.dtype for array in operands)) if out is None else out.dtype
    check_float("matmul", found)
    return found


def check_result(
    out: Array, shape: tuple[int, ...], dtype: DType, operands: Sequence[Array | None], residual: Array | None
) -> None:
    """Raise InvalidUsageError where a result cannot go to ``out``, which may be the residual."""
    check_out("matmul", out, shape, dtype)
    check_overlap("matmul", out, *(array for array in operands if array is not None), in_place=False)
    check_overlap("matmul", out, *([] if residual is None else [residual]), in_place=True)
