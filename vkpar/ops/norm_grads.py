"""What comes back through norms: gradients of layer_norm and rms_norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops import folding, reducing, rows
from vkpar.ops._calls import Call, key_of, repeat
from vkpar.ops._launch import FLOATS, SHORT, check_arrays, check_float, check_number
from vkpar.ops.rows import Binding

_SUM: Final = folding.Kind("sum")


def layer_norm_grad(x: Array, weight: Array, grad: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Return the gradients of ``layer_norm(x, weight, bias, eps)`` with respect to x, weight and bias.

    They are computed in float32 and rounded once each; those of weight and bias are sums as ``vkpar.sum`` makes them.

    Args:
        x: (..., n); float32, float16 or bfloat16.
        weight: (n,), of any of these types, which is that of the gradients of weight and bias, too.
        grad: the gradient with respect to the result, of ``x``'s shape and any of these types.
        eps: as in :func:`layer_norm`.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit.
        UnsupportedError: a type that devices do not compute; a row longer than what one binding holds.
    """
    dx, dw, db = _gradients("layer_norm_grad", x, weight, grad, eps)
    return dx, dw, db


def rms_norm_grad(x: Array, weight: Array, grad: Array, eps: float = 1e-6) -> tuple[Array, Array]:
    """Return the gradients of ``rms_norm(x, weight, eps)`` with respect to x and weight.

    Arguments and errors are those of :func:`layer_norm_grad`.
    """
    dx, dw = _gradients("rms_norm_grad", x, weight, grad, eps)
    return dx, dw


def _gradients(name: str, x: Array, weight: Array, grad: Array, eps: float) -> list[Array]:
    layer = name == "layer_norm_grad"
    outs = (None,) * (3 if layer else 2)
    done = repeat(name, (x, weight, grad), outs, eps)
    if done is not None:
        return done
    check_arrays(name, None, x=x, weight=weight, grad=grad)
    check_float(name, x.dtype, weight.dtype, grad.dtype)
    check_number(name, "eps", eps)
    if not x.ndim or weight.shape != x.shape[-1:] or grad.shape != x.shape:
        raise InvalidUsageError(
            f"{name}: x and grad have one shape (..., n) and weight (n,); "
            f"they have {x.shape}, {grad.shape} and {weight.shape}"
        )
    rows.check_length(name, x)
    made = [x.device.empty(x.shape, x.dtype), *(x.device.empty(weight.shape, weight.dtype) for _ in outs[1:])]
    if not x.size:
        for vector in made[1:]:
            vector.fill_zeros()
        return made
    call = Call(name, key_of(name, (x, weight, grad), outs, eps), (x, weight, grad), made)
    _launch(call, "layer" if layer else "rms", eps)
    call.keep()
    return made


def _launch(call: Call, kind: str, eps: float) -> None:
    x, weight, grad = (call.packed(number) for number in range(3))
    length = x.shape[-1]
    count = x.size // length
    terms = call.temporary((count, length), dtypes.float32)
    target = rows.stand_in(call, call.results[0], count, length)
    bindings = (
        Binding("x", x, length),
        Binding("w", weight, 0),
        Binding("b", grad, length),
        Binding("y", target, length, True),
        Binding("h", terms, length, True),
    )

    def constants(wide: Mapping[str, bool]) -> tuple[int, ...]:
        return (FLOATS[weight.dtype.name], wide["w"], FLOATS[grad.dtype.name], wide["b"], wide["h"])

    kernel = f"norm_grad_{kind}_{SHORT[x.dtype.name]}"
    rows.launch(call, kernel, count, length, bindings, eps, constants, keeps=False)
    rows.settle(call, target, call.results[0])
    for source, out in zip((terms, grad), call.results[1:], strict=False):
        _add_up(call, source, out, (count, length))


def _add_up(call: Call, source: Array, out: Array, shape: tuple[int, int]) -> None:
    """Add up columns."""
    halves = (source.dtype.itemsize, out.dtype.itemsize) == (2, 2) and source.dtype != out.dtype
    target = call.temporary(out.shape, dtypes.float32) if halves else out
    reducing.fold(call, _SUM, source, target, (1, *shape))
    if halves:
        call.convert(target, out)
