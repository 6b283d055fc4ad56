"""What operations check of their arguments alike, and the element types that devices compute."""

from __future__ import annotations

import math
from numbers import Real
from typing import Final

import ml_dtypes
import numpy as np

from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.views import overlaps, same_elements
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.text import shown

# The codes of shaders/common/elements.glsl.
FLOATS: Final = {"float32": 0, "float16": 1, "bfloat16": 2}
INTEGERS: Final = ("int32", "uint32")
# What the variants of the kernels are called after.
SHORT: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "uint32": "i32"}
# Types that are stored, and converted before anything is computed; those of 64 bits by the user alone.
NARROW: Final = frozenset({"int8", "uint8", "int16", "uint16", "bool"})
OTHERS: Final = NARROW | {"int64", "uint64"}

NUMBERS: Final = (int, float, np.bool_, np.integer, np.floating, ml_dtypes.bfloat16)
LARGEST: Final = 3.4028235e38  # what float32 holds


def holds(number: object) -> bool:
    """Say whether something is a finite number that float32 holds."""
    try:
        return isinstance(number, (Real, *NUMBERS)) and -LARGEST <= float(number) <= LARGEST
    except OverflowError:
        return False


def widened(array: Array) -> str:
    """Return the type that integers of 8 and 16 bits, and truth, are computed in."""
    return "uint32" if array.dtype.numpy.kind == "u" else "int32"


def check_arrays(operation: str, out: Array | None, **operands: Array) -> None:
    """Raise InvalidUsageError unless all are arrays of one device, nothing of it closed; only ``out`` may be None."""
    given = operands if out is None else {**operands, "out": out}
    for name, array in given.items():
        if not isinstance(array, Array):
            hint = "; write device.array(x) first" if isinstance(array, (np.ndarray, list, tuple)) else ""
            raise InvalidUsageError(f"{operation}: {name} has to be a vkpar.Array, not {type(array).__name__}{hint}")
    check_same_device(*given.values())
    next(iter(given.values())).device.check_open()
    for array in given.values():
        array.check_free()
    for array in operands.values():
        array.check_sound()


def check_out(operation: str, out: Array, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise InvalidUsageError unless ``out`` can take the result, which stands for what a failure has spoiled there."""
    out.check_writable(f"{operation}: out")
    if out.shape != shape or out.dtype != dtype:
        raise InvalidUsageError(f"{operation}: the result is {shape} {dtype}, out is {out.shape} {out.dtype}")
    out.renew()


def check_float(operation: str, *dtypes: DType) -> None:
    """Raise UnsupportedError unless every type is a float that devices compute."""
    for dtype in dtypes:
        if dtype.name not in FLOATS:
            raise UnsupportedError(f"{operation} computes {', '.join(FLOATS)}, not {dtype}{advice(dtype)}")


def check_number(operation: str, name: str, value: object) -> None:
    """Raise InvalidUsageError unless ``value`` is a number that float32 holds, infinity and NaN among them."""
    if not holds(value) and not (isinstance(value, (float, np.floating)) and not math.isfinite(value)):
        raise InvalidUsageError(f"{operation}: {name} is a number that float32 holds, not {shown(value)}")


def advice(*dtypes: DType | str) -> str:
    """Return what to do about types that no device computes, for the end of a message."""
    if any(dtype == "float64" for dtype in dtypes):
        return ', NumPy\'s default type: upload it as device.array(x, dtype="float32") or x.astype(np.float32)'
    if all(str(dtype) in SHORT or str(dtype) in OTHERS for dtype in dtypes):
        return '; convert it on the device: a.astype("float32")'
    return "; convert on the host, such as with x.astype(np.float32)"


def check_overlap(operation: str, out: Array, *inputs: Array, in_place: bool) -> None:
    """Raise InvalidUsageError where ``out`` shares memory with an input, other than exactly (if ``in_place``)."""
    for array in inputs:
        if out.size and array.size and overlaps(out, array) and not (in_place and same_elements(out, array)):
            allowed = "other than being the same array" if in_place else "at all"
            raise InvalidUsageError(f"{operation}: out may not share memory with an operand {allowed}")


def batch_of(operation: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many products matrices, or batches of them, of two shapes make; nothing for those of two matrices.

    Raises:
        InvalidUsageError: two batches, neither of one, nor of as many as the other.
    """
    if len(a) == len(b) == 2:
        return ()
    many_a, many_b = (shape[0] if len(shape) == 3 else 1 for shape in (a, b))
    batch = many_a if many_b == 1 else many_b
    if many_a not in (1, batch):
        raise InvalidUsageError(
            f"{operation}: {many_a} and {many_b} products, of shapes {a} and {b}: a batch meets one of "
            "as many matrices, or of one"
        )
    return (batch,)
