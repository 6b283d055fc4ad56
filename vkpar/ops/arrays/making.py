"""Arrays that are made or changed as a whole: of one value, of steps, in place."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.elements import host_elements
from vkpar.arrays.forms import form_of
from vkpar.arrays.operators import operations
from vkpar.arrays.rearrange import alone
from vkpar.arrays.views import overlaps, same_elements
from vkpar.dtypes import DType, resolve
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call.checks import LARGEST, NARROW, NUMBERS, holds
from vkpar.ops.call.plan import bindings_of
from vkpar.ops.call.plan import make as make_plan
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.expressions import FLOATS, INTEGERS
from vkpar.ops.elementwise.geometry import arrange
from vkpar.ops.elementwise.run import COMPUTED, launch, run
from vkpar.ops.elementwise.run import move as copy_bits
from vkpar.ops.elementwise.shipped import SHIPPED
from vkpar.ops.elementwise.table import BUILTINS, kind_of
from vkpar.ops.elementwise.ways import Meaning, binding
from vkpar.text import shown

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.call.call import Call
    from vkpar.ops.call.plan import Plan


def fill(a: Array, value: Any, call: Call | None = None) -> None:
    """Set every element of ``a`` to ``value``, as a part of ``call`` if there is one; see :meth:`vkpar.Array.fill`."""
    if type(value) is not int:
        value = _whole(value, a.dtype)  # plans have whole numbers, too
    key: tuple[Any, ...] = ("fill", type(value), a.form or form_of(a))
    plan: Plan | None = None if call is not None else a.device.plans.known.get(key)
    if plan is not None and plan.apply(a.device, (), (a,), plan.words([value])) is not None:
        return
    a.device.check_open()
    a.check_free()
    a.check_writable("fill")
    if not isinstance(value, NUMBERS):
        raise InvalidUsageError(f"fill takes a number, not {type(value).__name__}")
    value, name = _whole(value, a.dtype), a.dtype.name
    if name not in COMPUTED:
        if call is not None:
            call.forget()
        try:
            a.write(np.full(a.shape, value, a.dtype.numpy))
        except OverflowError as error:
            raise InvalidUsageError(f"fill: {error} of {a.dtype}") from error
        return
    kind = kind_of(BUILTINS["fill"], ("int32" if name in NARROW else name,))
    assert kind is not None
    if a.size:
        a.renew()
        fills = SHIPPED["fill"]
        meaning = Meaning(kind, (name,), (name,), fills if name in NARROW else None)
        launch(fills, meaning, [value], [a], key=key, call=call)


def _whole(value: Any, dtype: DType) -> Any:
    """Return a number, that of an array of integers as the whole one that it will hold."""
    if dtype == "bool" and isinstance(value, NUMBERS):
        return bool(value)
    if dtype.is_float or dtype.numpy.kind not in "iu" or not isinstance(value, NUMBERS):
        return value
    limits = np.iinfo(dtype.numpy)
    if not (isinstance(value, Integral) or float(value).is_integer()) or not limits.min <= value <= limits.max:
        raise InvalidUsageError(f"fill: {shown(value)} is no {dtype}")
    return int(value)


def assign(target: Array, value: Any) -> None:
    """Set the elements of ``target``, a view, to ``value``; see :meth:`vkpar.Array.__setitem__`."""
    if isinstance(value, NUMBERS):
        fill(target, value)
        return
    target.check_free()
    target.check_writable("assignment")
    if not isinstance(value, Array):
        host = host_elements(value, target.dtype).values
        wanted = _fitting(host.shape, target.shape)
        target.write(np.broadcast_to(host.reshape(host.shape[max(host.ndim - len(wanted), 0) :]), wanted))
        return
    check_same_device(target, value)
    value = value if value.dtype == target.dtype else cast(value, target.dtype)
    shape = _fitting(value.shape, target.shape)
    while value.ndim > len(shape):
        value = value[0]
    target.copy_from(value.broadcast_to(shape))


def _fitting(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``wanted``, where ``shape`` without the ones that it may begin with can be broadcast to it."""
    extra = max(len(shape) - len(wanted), 0)
    kept = shape[extra:]
    sizes = zip(kept[::-1], wanted[::-1], strict=False)
    if any(size != 1 for size in shape[:extra]) or any(size not in (1, most) for size, most in sizes):
        raise InvalidUsageError(f"assignment: {shape} cannot be broadcast to the {wanted} that are set")
    return wanted


def packed(source: Array) -> Array:
    """Return a copy of a view, whose elements lie side by side; see :meth:`vkpar.Array.contiguous`."""
    form, plans = source.form or form_of(source), source.device.plans
    key = ("packed", form)
    plan: Plan | None = plans.known.get(key)
    if plan is not None:
        made = Array.fresh(source.device, form.shape, form.dtype, form.nbytes)
        if plan.run((source, made), b""):
            return made
    made = source.copy()
    target = form_of(made)
    plan = plans.known.get((SHIPPED["move"].key, form, target)) or plans.known.get(("region", form, target))
    if plan is not None:
        plans.keep(key, plan)
    return made


def move(source: Array, target: Array, call: Call | None = None) -> bool:
    """Copy views by one dispatch; False, and nothing done, where another way has to be gone.

    Args:
        source: what is copied.
        target: of the same shape, in other memory.
        call: of which the copy is a part, and which has both.
    """
    if source.shape != target.shape:
        return False
    key = ("region", form_of(source), form_of(target))
    pair = (source, target) if target.steps is None else (target, source)  # a view, and what it is packed to or from
    plan: Plan | None = None if call is not None else target.device.plans.known.get(key)
    if plan is not None and plan.run(pair, b""):
        return True
    if call is None and target.size and cpu.moves_in_parts(target) and binding(source) is not None:
        half = target.shape[0] // 2
        for rows in (slice(half), slice(half, None)):
            target[rows].copy_from(source[rows])
        return True
    small = target.dtype.itemsize <= 4
    if small and copy_bits(SHIPPED["move"], BUILTINS["move"].kinds[0], source, target, call):
        return True
    if overlaps(source, target):
        return False
    kind = BUILTINS["move"].kinds[0]
    if cpu.picks_long(source, target) and copy_bits(SHIPPED["move"], kind, source, target, call):
        return True
    if cpu.moves_long(source, target) and _as_numbers(source, target, call):
        return True
    if pair[1].steps is not None:
        return False
    return _by_region(key, pair, "region_pack" if target.steps is None else "region_unpack", call)


def _as_numbers(source: Array, target: Array, call: Call | None) -> bool:
    """Copy elements of 64 bits as whole numbers, as :func:`move` does."""
    words = resolve("uint64")
    seen, put = (Array(a.storage, a.byte_offset, a.shape, words, a.steps) for a in (source, target))
    if arrange(put.shape, (seen.strides, put.strides), 1) is None or None in (binding(seen), binding(put)):
        return False
    operation = SHIPPED["long_bitwise_or"]
    if call is None:
        run(operation, (seen, 0), (put,))
    else:
        call.view(source, seen)
        call.view(target, put)
        launch(operation, operation.meaning((seen, 0)), (seen, 0), (put,), call=call)
    return True


def _by_region(key: tuple[object, ...], pair: tuple[Array, Array], kernel: str, call: Call | None) -> bool:
    """Copy between a view of any strides and elements that lie side by side, as :func:`move` does."""
    device, sent = pair[0].device, alone(*pair, kernel)
    if sent is None:
        return False
    bindings = bindings_of(sent.pipeline, pair, sent.ranges)
    device.logical.dispatch("copy", sent.pipeline, sent.ranges, sent.push, sent.groups, 0, bindings)
    if call is not None:
        call.note(sent.pipeline, pair, sent.ranges, bindings, sent.groups, sent.push)
        return True
    plan = make_plan(device, "copy", sent.pipeline, pair, bindings, sent.groups, sent.push)
    if plan is not None:
        device.plans.keep(key, plan)
    return True


def full(device: Device, shape: int | Sequence[int], value: float, dtype: object = "float32") -> Array:
    """Return a new array of which every element is ``value``.

    Args:
        device: where it lives.
        shape: its dimensions.
        value: of every element.
        dtype: of its elements.

    Raises:
        InvalidUsageError: a bad shape or dtype, or a value that the type does not hold.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.full(device, (2, 2), 7.0).tolist()
        [[7.0, 7.0], [7.0, 7.0]]
    """
    made = device.empty(shape, dtype)
    fill(made, value)
    return made


def arange(device: Device, start: float, stop: float | None = None, step: float = 1, dtype: object = None) -> Array:
    """Return a new array of ``start``, ``start + step``, ... below ``stop``, as ``np.arange`` has them.

    Floats are ``start + step * number`` in float32, rounded to ``dtype``.

    Args:
        device: where it lives.
        start: the first number; with no ``stop``, that is it, and ``start`` is 0.
        stop: which it ends before.
        step: not zero.
        dtype: float32, float16, bfloat16, int32 or uint32; by default int32 of whole numbers, else float32.

    Raises:
        InvalidUsageError: a step of zero, something that is no number, or numbers that ``dtype`` does not hold.
        UnsupportedError: another ``dtype``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.arange(device, 2, 8, 2).tolist()
        [2, 4, 6]
    """
    start, stop = (0, start) if stop is None else (start, stop)
    given: tuple[Any, ...] = (start, stop, step)
    if not all(map(holds, given)) or not step:
        raise InvalidUsageError(
            "arange takes finite numbers that float32 holds, the step not zero; got " + ", ".join(map(shown, given))
        )
    whole = all(_is_whole(number) for number in given)
    name = dtypes.resolve(("int32" if whole else "float32") if dtype is None else dtype).name
    if name not in COMPUTED:
        raise UnsupportedError(f"arange makes {', '.join(COMPUTED)}, not {name}")
    if name in INTEGERS and not whole:
        raise InvalidUsageError(f"arange: {start}, {stop}, {step} are not all whole, as those of {name} are")
    count = max(int(-((start - stop) // step)) if whole else math.ceil((stop - start) / step), 0)
    last = start + (count - 1) * step
    low, high = {"int32": (-(1 << 31), 1 << 31), "uint32": (0, 1 << 32)}.get(name, (-LARGEST, LARGEST))
    if count and not (low <= start < high and low <= last < high):
        raise InvalidUsageError(f"arange: {start} to {last} are not all {name}")
    return _stepped(device, start, step, count, name)


def _stepped(device: Device, start: float, step: float, count: int, dtype: str) -> Array:
    made = device.empty(count, dtype)
    if count:
        operation = SHIPPED["arange_whole" if dtype in INTEGERS else "arange"]
        kind = BUILTINS["arange_whole" if dtype in INTEGERS else "arange"].kinds[0]
        types = kind.inputs
        numbers = [start, step] if dtype not in INTEGERS else [_wrapped(start), _wrapped(step)]
        launch(operation, Meaning(kind, types, (dtype,)), [*numbers, None], [made])
    return made


def linspace(
    device: Device, start: float, stop: float, num: int = 50, *, endpoint: bool = True, dtype: object = "float32"
) -> Array:
    """Return a new array of ``num`` floats from ``start`` to ``stop`` in equal steps, as ``np.linspace`` has them.

    Each is ``start + step * number`` in float32, rounded to ``dtype``; the last one is ``stop`` itself.

    Args:
        device: where it lives.
        start: the first number.
        stop: the last one; that which would follow, without ``endpoint``.
        num: how many.
        endpoint: whether ``stop`` is among them.
        dtype: float32, float16 or bfloat16.

    Raises:
        InvalidUsageError: no finite numbers that float32 holds, or a ``num`` that is no whole number from 0 up.
        UnsupportedError: another ``dtype``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> vkpar.linspace(device, 0, 1, 3).tolist()
        [0.0, 0.5, 1.0]
    """
    name = dtypes.resolve(dtype).name
    if name not in FLOATS:
        raise UnsupportedError(f"linspace makes {', '.join(FLOATS)}, not {name}")
    if not (holds(start) and holds(stop) and _is_whole(num)) or num < 0:
        raise InvalidUsageError(
            f"linspace takes finite numbers that float32 holds and how many there are, not {start}, {stop}, {num}"
        )
    parts = max(num - 1, 1) if endpoint else max(num, 1)
    made = _stepped(device, start, (float(stop) - float(start)) / parts, operator.index(num), name)
    if endpoint and num > 1:
        fill(made[-1:], stop)
    return made


def _is_whole(number: Any) -> bool:
    try:
        operator.index(number)
    except TypeError:
        return False
    return True


def _wrapped(number: float) -> int:
    """Return the int32 of the same bits."""
    return (int(number) + (1 << 31)) % (1 << 32) - (1 << 31)


def in_place(name: str, a: Array, b: Any) -> None:
    """Run the operation ``name`` on ``a`` and ``b`` into ``a``; floats are rounded to its type, as NumPy's are."""
    operation = operations[name]
    if isinstance(b, Array) and b.storage is a.storage and overlaps(a, b) and not same_elements(a, b):
        b = b.copy()
    floats = isinstance(b, Array) and a.dtype.is_float and b.dtype.is_float
    if floats and dtypes.result_type(a.dtype, b.dtype) != a.dtype:
        cast(operation(a, b), a.dtype, out=a)
    else:
        operation(a, b, out=a)
