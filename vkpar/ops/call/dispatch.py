"""What every operation needs: checks of its arguments, element types, windows of big arrays, grids."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.views import overlaps, same_elements
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.elementwise.words import holds
from vkpar.plans import form_of
from vkpar.plans import make as make_plan
from vkpar.text import shown

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline

# The codes of shaders/common/elements.glsl.
FLOATS: Final = {"float32": 0, "float16": 1, "bfloat16": 2}
INTEGERS: Final = ("int32", "uint32")
# What the variants of the kernels are called after.
SHORT: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "uint32": "i32"}

GROUP: Final = 256 * 4  # elements that one work group of an elementwise kernel covers


def check_arrays(operation: str, out: Array | None, **operands: Array) -> None:
    """Raise InvalidUsageError unless all are arrays of one device, nothing of it closed; only ``out`` may be None."""
    given = operands if out is None else {**operands, "out": out}
    for name, array in given.items():
        if not isinstance(array, Array):
            hint = "; write device.array(x) first" if isinstance(array, (np.ndarray, list, tuple)) else ""
            raise InvalidUsageError(f"{operation}: {name} has to be a vkpar.Array, not {type(array).__name__}{hint}")
    check_same_device(*given.values())
    next(iter(given.values())).device.logical  # noqa: B018  (refuses a closed device)
    for array in given.values():
        array.check_free()


def check_out(operation: str, out: Array, shape: tuple[int, ...], dtype: DType) -> None:
    """Raise InvalidUsageError unless ``out`` can take the result."""
    out.check_writable(f"{operation}: out")
    if out.shape != shape or out.dtype != dtype:
        raise InvalidUsageError(f"{operation}: the result is {shape} {dtype}, out is {out.shape} {out.dtype}")


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
    if all(str(dtype) in SHORT for dtype in dtypes):
        return '; convert it on the device: a.astype("float32")'
    return "; convert on the host, such as with x.astype(np.float32)"


def check_overlap(operation: str, out: Array, *inputs: Array, in_place: bool) -> None:
    """Raise InvalidUsageError where ``out`` shares memory with an input, other than exactly (if ``in_place``)."""
    for array in inputs:
        if out.size and array.size and overlaps(out, array) and not (in_place and same_elements(out, array)):
            allowed = "other than being the same array" if in_place else "at all"
            raise InvalidUsageError(f"{operation}: out may not share memory with an operand {allowed}")


def writable_in_place(out: Array) -> bool:
    """Tell whether kernels can write ``out``: halves have to begin on a 32-bit word."""
    return out.dtype.itemsize == 4 or out.window(0, 1)[1] % 2 == 0


def fold_groups(device: Device, count: int) -> tuple[int, int, int]:
    """Return a two-dimensional grid of at least ``count`` work groups."""
    width, height, _ = device.limits.max_workgroup_count
    rows = -(-count // width)
    if rows > height:
        raise UnsupportedError(f"{device.info.name}: {count} work groups exceed the device's {width} x {height}")
    return -(-count // rows), rows, 1


def spans(total: int, *operands: tuple[Array, int], pairs: bool) -> Iterator[tuple[int, int]]:
    """Cut ``total`` elements into (start, count) parts that one dispatch covers, with a binding for each operand.

    Args:
        total: how many elements.
        operands: arrays, and which of their elements each begins at.
        pairs: starts are even, since kernels write halves in pairs. Two elements of an array that is read may lie to
            either side of a border between sub-buffers then: :func:`window` copies these.
    """
    start = 0
    while start < total:
        count = min(total - start, *(array.reach(first + start) for array, first in operands))
        if count < total - start:
            count = count // GROUP * GROUP or (max(count // 2, 1) * 2 if pairs else count)
        yield start, count
        start += count


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


def window(array: Array, start: int, count: int) -> tuple[BufferRange, int]:
    """Return a bindable range over elements, of a copy where they lie to either side of a border."""
    if array.reach(start) >= count:
        return array.window(start, count)
    return array.reshape(-1)[start : start + count].copy().window()


def run_pair(operation: str, a: Array, b: Array, out: Array | None, *options: object, in_place: bool) -> Array | None:
    """Run an operation of two operands by the plan of an earlier call; None, and nothing done, where there is none.

    Args:
        operation: its name.
        a: an operand; none of the arrays is checked.
        b: the other one.
        out: where the result goes; None for a new array.
        options: whatever else a plan depends on.
        in_place: ``out`` may be an operand.
    """
    try:
        forms = a.form or form_of(a), b.form or form_of(b), None if out is None else out.form or form_of(out)
        plan = a.device.plans.known.get((operation, *forms, *options))
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    return None if plan is None else plan.pair(a, b, out, in_place=in_place)


def run_single(operation: str, a: Array, out: Array | None, *options: object) -> Array | None:
    """Run an operation of one operand, which ``out`` may not share memory with, as :func:`run_pair` does."""
    try:
        forms = a.form or form_of(a), None if out is None else out.form or form_of(out)
        plan = a.device.plans.known.get((operation, *forms, *options))
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    return None if plan is None else plan.single(a, out)


def key_of(operation: str, a: Array, b: Array, out: Array | None, *options: object) -> tuple[object, ...]:
    """Return what :func:`run_pair` finds a plan by."""
    return (operation, form_of(a), form_of(b), None if out is None else form_of(out), *options)


def dispatch(
    operation: str,
    kernel: str,
    arrays: Sequence[Array],
    ranges: Sequence[BufferRange],
    push: bytes,
    groups: tuple[int, int, int],
    constants: tuple[int, ...] = (),
    *,
    cost_ns: int = 0,
    key: tuple[object, ...] | None = None,
    swapped: bool = False,
) -> None:
    """Run a built-in kernel asynchronously, in program order, and keep its plan where there is a ``key`` for it.

    Args:
        operation: what it is a part of, for messages.
        kernel: its name in the package's ``spirv`` folder.
        arrays: by binding.
        ranges: what the kernel sees of them.
        push: the push constants.
        groups: numbers of work-groups.
        constants: specialization constants 0, 1, ... (32-bit integers).
        cost_ns: an estimate of its time on a slow GPU; that of moving the bytes is the least.
        key: what later calls find the plan by; it is all of the operation.
        swapped: the first two arrays are the operation's second and first operand.
    """
    device = arrays[0].device
    pipeline = submit(device, operation, kernel, ranges, push, groups, constants, cost_ns)
    if key is not None:
        plan = make_plan(device, operation, pipeline, arrays, ranges, groups, push, cost_ns=cost_ns, swapped=swapped)
        if plan is not None:
            device.plans.keep(key, plan)


def submit(
    device: Device,
    operation: str,
    kernel: str,
    ranges: Sequence[BufferRange],
    push: bytes,
    groups: tuple[int, int, int],
    constants: tuple[int, ...] = (),
    cost_ns: int = 0,
) -> Pipeline:
    """Run a built-in kernel as :func:`dispatch` does, without a plan, and return its pipeline."""
    logical = device.logical
    pushes = logical.pushes(len(ranges))
    pipeline = logical.pipelines.shipped(kernel, len(ranges), len(push), constants, pushes=pushes)
    logical.dispatch(operation, pipeline, ranges, push, groups, cost_ns)
    return pipeline


def words(*values: int) -> bytes:
    """Pack push constants."""
    return struct.pack(f"={len(values)}I", *values)
