"""What comes back through norms: gradients of layer_norm and rms_norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, overload

from vkpar import dtypes
from vkpar.abi import rows as abi
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, SHORT, check_arrays, check_float, check_number
from vkpar.ops.reduce import once, passes
from vkpar.ops.rows import rows
from vkpar.ops.rows.rows import Binding

_SUM: Final = passes.Reduction("sum")


@overload
def layer_norm_grad(x: Array, weight: Array, grad: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]: ...


@overload
def layer_norm_grad(x: Array, weight: None, grad: Array, eps: float = 1e-5) -> tuple[Array, None, Array]: ...


def layer_norm_grad(
    x: Array, weight: Array | None, grad: Array, eps: float = 1e-5
) -> tuple[Array, Array | None, Array]:
    """Return the gradients of ``layer_norm(x, weight, bias, eps)`` with respect to x, weight and bias.

    They are computed in float32 and rounded once each; those of weight and bias are sums as ``vkpar.sum`` makes them.

    Args:
        x: (..., n); float32, float16 or bfloat16.
        weight: (n,), of any of these types, which is that of the gradients of weight and bias, too. None for ones:
            None stands in the place of its gradient then, and that of the bias has ``x``'s type.
        grad: the gradient with respect to the result, of ``x``'s shape and any of these types.
        eps: as in :func:`layer_norm`.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit.
        UnsupportedError: a type that devices do not compute; a row longer than what one binding holds.

    Examples:
        >>> x = device.array([[1.0, 3.0]])
        >>> dx, dw, db = vkpar.layer_norm_grad(x, device.ones(2), device.ones((1, 2)))
        >>> db.tolist()
        [1.0, 1.0]
    """
    dx, *dw, db = _gradients("layer_norm_grad", x, weight, grad, eps)
    return dx, dw[0] if dw else None, db


@overload
def rms_norm_grad(x: Array, weight: Array, grad: Array, eps: float = 1e-6) -> tuple[Array, Array]: ...


@overload
def rms_norm_grad(x: Array, weight: None, grad: Array, eps: float = 1e-6) -> tuple[Array, None]: ...


def rms_norm_grad(x: Array, weight: Array | None, grad: Array, eps: float = 1e-6) -> tuple[Array, Array | None]:
    """Return the gradients of ``rms_norm(x, weight, eps)`` with respect to x and weight.

    Arguments and errors are those of :func:`layer_norm_grad`; without a weight None is in its gradient's place.

    Examples:
        >>> x = device.array([[1.0, 1.0]])
        >>> dx, dw = vkpar.rms_norm_grad(x, device.ones(2), device.ones((1, 2)))
        >>> dw.numpy().round(3).tolist()
        [1.0, 1.0]
    """
    dx, *dw = _gradients("rms_norm_grad", x, weight, grad, eps)
    return dx, dw[0] if dw else None


def _gradients(name: str, x: Array, weight: Array | None, grad: Array, eps: float) -> list[Array]:
    """Return the gradient of x, that of the weight where there is one, and for layer_norm that of the bias."""
    outs = (None,) * (1 + (weight is not None) + (name == "layer_norm_grad"))
    done = repeat(name, (x, weight, grad), outs, eps)
    if done is not None:
        return done
    given = {"x": x, "weight": weight, "grad": grad} if weight is not None else {"x": x, "grad": grad}
    check_arrays(name, None, **given)
    check_float(name, *(array.dtype for array in given.values()))
    check_number(name, "eps", eps)
    if not x.ndim or (weight is not None and weight.shape != x.shape[-1:]) or grad.shape != x.shape:
        shapes = ", ".join(f"{what} {array.shape}" for what, array in given.items())
        raise InvalidUsageError(f"{name}: x and grad have one shape (..., n) and weight (n,); they have {shapes}")
    rows.check_length(name, x)
    vector = x.dtype if weight is None else weight.dtype
    made = [x.device.empty(x.shape, x.dtype), *(x.device.empty(x.shape[-1:], vector) for _ in outs[1:])]
    if not x.size:
        for empty in made[1:]:
            empty.fill_zeros()
        return made
    call = Call(name, key_of(name, (x, weight, grad), outs, eps), tuple(given.values()), made)
    operands = {what: landing.packed(call, call.operands[number]) for number, what in enumerate(given)}
    _launch(call, operands, "layer" if name == "layer_norm_grad" else "rms", eps)
    call.keep()
    return made


def _launch(call: Call, operands: Mapping[str, Array], kind: str, eps: float) -> None:
    x, weight, grad = operands["x"], operands.get("weight"), operands["grad"]
    length = x.shape[-1]
    count = x.size // length
    target = rows.stand_in(call, call.results[0], count, length)
    sums = [grad]
    if weight is None:  # the kernel touches neither then: anything stands for them
        w, h = Binding("w", x, length), Binding("h", target, length)
    else:
        terms = call.temporary((count, length), dtypes.float32)
        sums = [terms, grad]
        w, h = Binding("w", weight, 0), Binding("h", terms, length, True)
    bindings = (Binding("x", x, length), w, Binding("b", grad, length), Binding("y", target, length, True), h)

    def constants(wide: Mapping[str, bool]) -> tuple[int, ...]:
        own = (False, 0, False) if weight is None else (True, FLOATS[weight.dtype.name], wide["w"])
        return abi.NormGradConstants(*own, FLOATS[grad.dtype.name], wide["b"], wide["h"])

    kernel = f"norm_grad_{kind}_{SHORT[x.dtype.name]}"
    rows.launch(call, kernel, count, length, bindings, eps, constants, keeps=False)
    landing.land(call, target, call.results[0])
    for source, out in zip(sums, call.results[1:], strict=False):
        _add_up(call, source, out, (count, length))


def _add_up(call: Call, source: Array, out: Array, shape: tuple[int, int]) -> None:
    """Add up columns."""
    halves = (source.dtype.itemsize, out.dtype.itemsize) == (2, 2) and source.dtype != out.dtype
    target = call.temporary(out.shape, dtypes.float32) if halves else out
    once.fold(call, _SUM, source, target, (1, *shape))
    if halves:
        call.convert(target, out)
