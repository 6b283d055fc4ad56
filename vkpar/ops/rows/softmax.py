"""Softmax along an axis, its logarithm, and the cross entropy of labels with its gradient."""

from __future__ import annotations

from typing import Final

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.arrays.take import axis_number
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import INTEGERS, SHORT, check_arrays, check_float, check_number, check_out, check_overlap
from vkpar.ops.call.dispatch import run_single
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.shipped import SHIPPED
from vkpar.ops.reduce import reductions
from vkpar.ops.rows import rows
from vkpar.ops.rows.rows import Binding

_SOFTMAX: Final = {"softmax": "softmax_softmax", "log_softmax": "softmax_log"}


def softmax(a: Array, axis: int = -1, *, out: Array | None = None) -> Array:
    """Return ``exp(a - m) / sum(exp(a - m))`` along an axis, m being its largest element.

    It is computed in float32 and rounded once. A row with NaN or +inf, or with nothing above -inf, gives NaN
    everywhere; -inf beside finite elements gives 0.

    Args:
        a: float32, float16 or bfloat16, of one dimension or more.
        axis: the axis that adds up to 1.
        out: where the result goes, of ``a``'s shape and type; may be ``a`` itself (in place).

    Raises:
        InvalidUsageError: not an array, a closed one; no such axis; a wrong ``out``, or one that shares memory with
            ``a`` without being it.
        UnsupportedError: a type that devices do not compute; an axis longer than what one binding holds.

    Examples:
        >>> vkpar.softmax(device.array([1.0, 1.0])).tolist()
        [0.5, 0.5]
    """
    return _along("softmax", a, axis, out)


def log_softmax(a: Array, axis: int = -1, *, out: Array | None = None) -> Array:
    """Return the logarithm of :func:`softmax`, which is exact where that is close to 0; arguments alike.

    Examples:
        >>> [round(x, 3) for x in vkpar.log_softmax(device.array([1.0, 1.0])).tolist()]
        [-0.693, -0.693]
    """
    return _along("log_softmax", a, axis, out)


def _along(name: str, a: Array, axis: int, out: Array | None) -> Array:
    if type(axis) is not int:
        axis = axis_number(name, axis)
    made = run_single(name, a, out, axis) if axis == -1 else None
    if made is not None:
        return made
    done = repeat(name, (a,), (out,), axis, in_place=True)
    if done is not None:
        return done[0]
    check_arrays(name, out, a=a)
    check_float(name, a.dtype)
    at = _axis(name, a, axis)
    if out is not None:
        check_out(name, out, a.shape, a.dtype)
        check_overlap(name, out, a, in_place=True)
    key = key_of(name, (a,), (out,), axis)
    made = a.device.empty(a.shape, a.dtype) if out is None else out
    if not made.size:
        return made
    if at != a.ndim - 1 and a.dtype == dtypes.float32 and cpu.has_few_tests(a.device, a.size, flat=False):
        return _by_steps(name, a, at, made)
    order = (*(index for index in range(a.ndim) if index != at), at)
    call = Call(name, key, (a,), (made,))
    x, y = (call.view(each, each.transpose(order)) for each in (call.operands[0], call.results[0]))
    rows.check_length(name, x)
    length = x.shape[-1]
    count = x.size // length
    target = rows.stand_in(call, y, count, length)
    bindings = (Binding("x", landing.packed(call, x), length), Binding("y", target, length, True))
    rows.launch(call, f"{_SOFTMAX[name]}_{SHORT[a.dtype.name]}", count, length, bindings, 0.0)
    landing.land(call, target, y)
    call.keep()
    return made


def _by_steps(name: str, a: Array, at: int, out: Array) -> Array:
    """Compute along another axis than the last one by operations that read it as it lies.

    Drivers that test each lane copy large arrays with other axes first for longer than these take.
    """
    below = SHIPPED["subtract"](a, reductions.max(a, at, keepdims=True), out=out)
    if name == "softmax":
        raised = SHIPPED["exp"](below, out=below)
        return SHIPPED["divide"](raised, reductions.sum(raised, at, keepdims=True), out=out)
    raised = SHIPPED["exp"](below)
    total = reductions.sum(raised, at, keepdims=True)
    return SHIPPED["subtract"](below, SHIPPED["log"](total, out=total), out=out)


def _axis(name: str, a: Array, axis: int) -> int:
    if not -a.ndim <= axis < a.ndim:
        raise InvalidUsageError(f"{name}: there is no axis {axis} in an array of shape {a.shape}")
    return axis % a.ndim


def cross_entropy(logits: Array, labels: Array, *, out: Array | None = None) -> Array:
    """Return ``-log(softmax(logits))`` at each row's label, as float32: a loss for each row.

    Args:
        logits: (N, classes), float32, float16 or bfloat16.
        labels: (N,), int32 or uint32, from 0. A label that is no class gives NaN.
        out: where the losses go: (N,) float32, sharing no memory with the others.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; a wrong ``out``.
        UnsupportedError: a type that devices do not compute, or that no labels have; a row longer than what one
            binding holds.

    Examples:
        >>> logits, labels = device.zeros((1, 2)), device.array([0], "uint32")
        >>> round(float(vkpar.cross_entropy(logits, labels)), 3)
        0.693
    """
    done = repeat("cross_entropy", (logits, labels), (out,))
    if done is not None:
        return done[0]
    check_arrays("cross_entropy", out, logits=logits, labels=labels)
    count, length = _check_labels("cross_entropy", logits, labels)
    if out is not None:
        check_out("cross_entropy", out, (count,), dtypes.float32)
        check_overlap("cross_entropy", out, logits, labels, in_place=False)
    key = key_of("cross_entropy", (logits, labels), (out,))
    made = logits.device.empty(count) if out is None else out
    if not count:
        return made
    call = Call("cross_entropy", key, (logits, labels), (made,))
    x, label = landing.packed(call, call.operands[0]), landing.packed(call, call.operands[1])
    target = rows.stand_in(call, call.results[0], count, 1)
    bindings = (Binding("x", x, length), Binding("w", label, 1), Binding("y", target, 1, True))
    rows.launch(call, f"softmax_loss_{SHORT[logits.dtype.name]}", count, length, bindings, 0.0)
    landing.land(call, target, call.results[0])
    call.keep()
    return made


def cross_entropy_grad(logits: Array, labels: Array, scale: float | None = None, *, out: Array | None = None) -> Array:
    """Return the gradient of ``scale * sum(cross_entropy(logits, labels))``: ``(softmax - one hot) * scale``.

    Args:
        logits: as for :func:`cross_entropy`.
        labels: as for :func:`cross_entropy`; the row of a label that is no class is NaN.
        scale: by default 1 / N, which makes it the gradient of the mean.
        out: where it goes, of the logits' shape and type; may be ``logits`` itself (in place).

    Raises:
        InvalidUsageError, UnsupportedError: as :func:`cross_entropy` says; a ``scale`` that is no number.

    Examples:
        >>> logits, labels = device.zeros((1, 2)), device.array([0], "uint32")
        >>> vkpar.cross_entropy_grad(logits, labels).tolist()
        [[-0.5, 0.5]]
    """
    done = repeat("cross_entropy_grad", (logits, labels), (out,), scale, in_place=True)
    if done is not None:
        return done[0]
    check_arrays("cross_entropy_grad", out, logits=logits, labels=labels)
    count, length = _check_labels("cross_entropy_grad", logits, labels)
    if scale is not None:
        check_number("cross_entropy_grad", "scale", scale)
    if out is not None:
        check_out("cross_entropy_grad", out, logits.shape, logits.dtype)
        check_overlap("cross_entropy_grad", out, logits, in_place=True)
        check_overlap("cross_entropy_grad", out, labels, in_place=False)
    key = key_of("cross_entropy_grad", (logits, labels), (out,), scale)
    made = logits.device.empty(logits.shape, logits.dtype) if out is None else out
    if not count:
        return made
    call = Call("cross_entropy_grad", key, (logits, labels), (made,))
    x, label = landing.packed(call, call.operands[0]), landing.packed(call, call.operands[1])
    target = rows.stand_in(call, call.results[0], count, length)
    bindings = (Binding("x", x, length), Binding("w", label, 1), Binding("y", target, length, True))
    factor = 1.0 / count if scale is None else float(scale)
    rows.launch(call, f"softmax_grad_{SHORT[logits.dtype.name]}", count, length, bindings, factor)
    landing.land(call, target, call.results[0])
    call.keep()
    return made


def _check_labels(name: str, logits: Array, labels: Array) -> tuple[int, int]:
    check_float(name, logits.dtype)
    if labels.dtype.name not in INTEGERS:
        raise InvalidUsageError(f"{name}: labels are {' or '.join(INTEGERS)}, not {labels.dtype}")
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InvalidUsageError(
            f"{name}: logits are (N, classes) and labels (N,), not {logits.shape} and {labels.shape}"
        )
    count, length = logits.shape
    if count and not length:
        raise InvalidUsageError(f"{name}: there are no classes in logits of shape {logits.shape}")
    rows.check_length(name, logits)
    return count, length
