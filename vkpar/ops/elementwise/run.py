"""How elementwise operations run: what a call comes down to, in as few dispatches as the operands' memory allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.forms import form_of
from vkpar.arrays.layout import broadcast_shape
from vkpar.arrays.views import overlaps, same_elements
from vkpar.errors import InvalidUsageError, OperandError, UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call
from vkpar.ops.call.checks import NARROW, NUMBERS, advice
from vkpar.ops.elementwise.expressions import FLOATS, INTEGERS
from vkpar.ops.elementwise.kinds import INDEX, WORDS, KernelTypes
from vkpar.ops.elementwise.ways import Dispatch, Meaning, Operand, Operation, Words, binding

COMPUTED: Final = (*FLOATS, *INTEGERS, *sorted(NARROW))
_HALF, _BYTE = dtypes.resolve("uint16"), dtypes.resolve("uint8")
_FEW: Final = 2  # operands of the usual calls
_SMALL: Final = 4  # elements: operands that no binding holds are copied aside


def run(operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None]) -> list[Array]:
    """Run an operation and return its results, by the plan of an earlier call where there is one.

    Args:
        operation: what it is.
        operands: arrays, at least one, and numbers.
        outs: for each result where it goes, None for a new array.

    Raises:
        InvalidUsageError: not arrays or numbers, closed arrays, arrays of several devices; shapes that do not fit; a
            wrong ``out``, or one that shares memory with an operand without being that operand.
        UnsupportedError: types that devices do not compute.
    """
    done = kept(operation, operands, outs)
    return long_way(operation, operands, outs) if done is None else done


def kept(operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None]) -> list[Array] | None:
    """Run an operation as :func:`run` does, by the plan of an earlier call; None, and nothing done, where none serves.

    Raises:
        InvalidUsageError: a number that its type does not hold.
    """
    if 0 < len(operands) <= _FEW and len(outs) == 1:
        quick = _quick(operation, operands, outs[0])
        if quick is not None:
            return [quick]
    key: list[Any] = [operation.key]
    arrays: list[Array] = []
    numbers: list[Any] = []
    try:
        for operand in operands:  # often taken: no calls
            if type(operand) is Array:
                key += (operand.form or form_of(operand),)
                arrays += (operand,)
            else:
                key += (type(operand),)
                numbers += (operand,)
        for out in outs:
            key += (None if out is None else out.form or form_of(out),)
        device = arrays[0].device
        plan = device.plans.known.get(tuple(key))
    except (AttributeError, TypeError, IndexError):  # not arrays: the long way says so
        return None
    if plan is None:
        return None
    done: list[Array] | None = plan.apply(device, arrays, outs, plan.words(numbers) if numbers else b"")
    return done


def key_of(operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None]) -> tuple[Any, ...]:
    """Return what :func:`kept` finds the plan of a checked call by."""
    given = [form_of(operand) if isinstance(operand, Array) else type(operand) for operand in operands]
    return (operation.key, *given, *(None if out is None else form_of(out) for out in outs))


def _quick(operation: Operation, operands: Sequence[Operand], out: Array | None) -> Array | None:
    """Run an operation of an array, or of an array and a number after it, as :func:`run` does; None for other ways."""
    try:
        a: Any = operands[0]
        form = a.form or form_of(a)
        given = None if out is None else out.form or form_of(out)
        known = a.device.plans.known
        if len(operands) == 1:
            plan = known.get((operation.key, form, given))
            return None if plan is None else plan.single(a, out, in_place=True)
        number = operands[1]
        if type(number) is Array:
            return None
        plan = known.get((operation.key, form, type(number), given))
    except (AttributeError, TypeError):  # no array: the long way says so
        return None
    return None if plan is None else plan.single(a, out, plan.words((number,)), in_place=True)


def long_way(operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None]) -> list[Array]:
    """Check everything, and run."""
    arrays = check_operands(operation.name, operands, outs)
    meaning = operation.meaning(operands)
    device = arrays[0].device
    shape = broadcast_shape(*(array.shape for array in arrays))
    made: list[Array] = []
    for out, dtype in zip(outs, meaning.results, strict=True):
        if out is not None:
            _check_out(operation.name, out, shape, dtype, arrays, made)
        made.append(device.empty(shape, dtype) if out is None else out)
    Words(meaning.kind, meaning.types, operands)  # refuses numbers that do not fit
    if made[0].size:
        launch(operation, meaning, operands, made, key=key_of(operation, operands, outs))
    return made


def check_operands(name: str, operands: Sequence[Operand], outs: Sequence[Array | None] = ()) -> list[Array]:
    """Return the arrays among the operands.

    Raises:
        InvalidUsageError: something else than arrays and numbers, or no array; closed ones, several devices.
    """
    arrays = []
    for operand in operands:
        if isinstance(operand, Array):
            arrays.append(operand)
        elif not isinstance(operand, NUMBERS):
            kind = type(operand).__name__
            hint = "; write device.array(x) first" if isinstance(operand, (np.ndarray, list, tuple)) else ""
            raise OperandError(f"{name} takes arrays of one device and numbers, not {kind}{hint}")
    if not arrays:
        raise InvalidUsageError(f"{name} takes at least one array; numbers alone say no device")
    for out in outs:
        if out is not None and not isinstance(out, Array):
            raise InvalidUsageError(f"{name}: out has to be a vkpar.Array, not {type(out).__name__}")
    given = [*arrays, *(out for out in outs if out is not None)]
    check_same_device(*given)
    arrays[0].device.check_open()
    for array in given:
        array.check_free()
    for array in arrays:
        array.check_sound()
    return arrays


def result_of(name: str, arrays: Sequence[Array], dtype: str, out: Array | None) -> Array:
    """Return where the only result of checked arrays goes: ``out``, or a new array.

    Raises:
        InvalidUsageError: shapes that do not fit, or an ``out`` that does not.
    """
    shape = broadcast_shape(*(array.shape for array in arrays))
    if out is None:
        return arrays[0].device.empty(shape, dtype)
    _check_out(name, out, shape, dtype, arrays, ())
    return out


def _check_out(
    name: str, out: Array, shape: tuple[int, ...], dtype: str, inputs: Sequence[Array], others: Sequence[Array]
) -> None:
    if out.shape != shape or out.dtype.name != dtype:
        raise InvalidUsageError(f"{name}: the result is {shape} {dtype}, out is {out.shape} {out.dtype}")
    out.check_writable(f"{name}: out")
    if any(overlaps(out, array) and not same_elements(out, array) for array in inputs if array.size):
        raise InvalidUsageError(f"{name}: out may not share memory with an operand other than being the same array")
    if any(overlaps(out, other) for other in others):
        raise InvalidUsageError(f"{name}: two results share memory")
    out.renew()


def check_indexed(operands: Sequence[Operand]) -> None:
    """Refuse results whose elements an int32 does not count.

    Raises:
        UnsupportedError: there are too many.
    """
    size = math.prod(broadcast_shape(*(operand.shape for operand in operands if isinstance(operand, Array))))
    if size > 1 << 31:
        raise UnsupportedError(f"elementwise: index is an int32, which counts no {size} elements; take parts of them")


def computed(name: str, *names: str) -> None:
    """Refuse dtypes that devices do not compute.

    Raises:
        UnsupportedError: there is one.
    """
    for dtype in names:
        if dtype not in COMPUTED:
            raise UnsupportedError(f"{name} computes {', '.join(COMPUTED)}, not {dtype}{advice(dtype)}")


def launch(
    operation: Operation,
    meaning: Meaning,
    operands: Sequence[Operand],
    outs: Sequence[Array],
    *,
    key: tuple[Any, ...] | None = None,
    base: int = 0,
    call: Call | None = None,
) -> None:
    """Run on checked operands and results that have elements.

    Args:
        operation: what it is.
        meaning: what it means for these types.
        operands: arrays that can be broadcast to the results' shape, and numbers.
        outs: arrays of one shape.
        key: what a plan is kept by, where one dispatch does it all.
        base: the number of the first element.
        call: of which it is a part; one that takes more than a dispatch is not kept.
    """
    shape = outs[0].shape
    views = [_shown(operand, shape) for operand in operands]
    made = Dispatch.of(operation, meaning, views, outs, base)
    aside = [] if made is None else made.asides
    several = any(target is not None for target in aside)
    if call is not None and (made is None or several):
        call.forget()
    if made is None:
        _materialised(operation, meaning, views, outs, base)
    elif several:
        targets = [out if target is None else target for out, target in zip(outs, aside, strict=True)]
        launch(operation, meaning, operands, targets, base=base)
        landing.settle(targets, outs)
    else:
        made.run(key, operands, call)


def _shown(operand: Operand, shape: tuple[int, ...]) -> Operand:
    if not isinstance(operand, Array) or operand.shape == shape:
        return operand
    return operand.broadcast_to(shape)


def _materialised(
    operation: Operation, meaning: Meaning, views: list[Operand], outs: Sequence[Array], base: int
) -> None:
    """Run where no kernel does: on parts of operands that no binding holds, or on contiguous copies."""
    shape, arrays = outs[0].shape, [*(view for view in views if isinstance(view, Array)), *outs]
    bound = all(binding(array) is not None for array in arrays)
    plain = all(array.is_contiguous for array in arrays)
    if bound and plain:
        most = min(WORDS - 2 - len(meaning.kind.numbers), outs[0].device.limits.max_storage_buffers)
        raise UnsupportedError(
            f"{operation.name}: {len(arrays)} arrays, results among them, are more than the {most} that a kernel takes "
            "here; write two expressions, or put arrays into one, which vkpar.stack does, and take its rows in turn"
        )
    bound = bound or (INDEX in meaning.kind.inputs and not plain)  # elements are counted side by side
    if bound or outs[0].size <= _SMALL:
        beside = [(view.contiguous() if bound else view.copy()) if isinstance(view, Array) else view for view in views]
        direct = [out.is_contiguous if bound else binding(out) is not None for out in outs]
        targets = [out if fits else out.device.empty(shape, out.dtype) for out, fits in zip(outs, direct, strict=True)]
        launch(operation, meaning, beside, targets, base=base)
        landing.settle(targets, outs)
        return
    axis, half = _cut(shape, [array for array in arrays if binding(array) is None])
    row = outs[0].size // shape[axis]
    for part, start in ((slice(None, half), 0), (slice(half, None), half * row)):
        index = (slice(None),) * axis + (part,)
        pieces = [view[index] if isinstance(view, Array) else view for view in views]
        launch(operation, meaning, pieces, [out[index] for out in outs], base=base + start)


def _cut(shape: tuple[int, ...], wide: Sequence[Array]) -> tuple[int, int]:
    """Return the axis along which these arrays reach farthest, and where to cut it: at a multiple of wide accesses."""
    reach = [max(abs(array.strides[axis]) * (count - 1) for array in wide) for axis, count in enumerate(shape)]
    axis = reach.index(max(reach))
    half = shape[axis] // 2
    return axis, next((half // step * step for step in (4096, 4, 2) if half >= step), half)


def move(operation: Operation, kind: KernelTypes, source: Array, target: Array, call: Call | None = None) -> bool:
    """Copy bit for bit in one dispatch, between views that share no memory; False, and nothing done, where none does.

    Args:
        operation: which copies.
        kind: its types.
        source: of any type of the same size, of up to 4 bytes; of 8 every second element of rows.
        target: of the same shape; it shows no element twice.
        call: of which it is a part.
    """
    key = (operation.key, form_of(source), form_of(target))
    plan = None if call is not None else target.device.plans.known.get(key)
    if plan is not None and plan.run((source, target), b""):
        return True
    longs = (source, target) if source.dtype.itemsize == 8 else ()
    words = {8: dtypes.uint32, 4: dtypes.uint32, 2: _HALF, 1: _BYTE}[source.dtype.itemsize]
    seen, put = (
        _in_words(a) if longs else Array(a.storage, a.byte_offset, a.shape, words, a.steps) for a in (source, target)
    )
    made = Dispatch.of(operation, Meaning(kind, (words.name,), (words.name,)), [seen], [put], 0, longs=longs)
    if made is None or made.aside(0, put) is not None or made.goes_by_region():
        return False
    if call is None:
        made.run(key, [seen])
    else:
        call.view(source, seen)
        call.view(target, put)
        made.run(None, [seen], call)
    return True


def _in_words(a: Array) -> Array:
    """Return elements of 64 bits as twice as many of 32, as far apart as words as they are as elements."""
    steps = (*(2 * step for step in a.strides[:-1]), a.strides[-1])
    return Array(a.storage, a.byte_offset, (*a.shape[:-1], 2 * a.shape[-1]), dtypes.uint32, steps)
