"""Normalization along the last axis: layer_norm and rms_norm, with a residual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from vkpar import dtypes
from vkpar.abi import rows as abi
from vkpar.arrays.array import Array
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, SHORT, check_arrays, check_float, check_number, check_out, check_overlap
from vkpar.ops.rows import rows
from vkpar.ops.rows.rows import Binding


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *, out: Array | None = None
) -> Array:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` along the last axis, in the type of ``x``.

    It is computed in float32, the variance as the mean of (x - mean)^2, and rounded once. A row with NaN or an
    infinity is NaN.

    Args:
        x: (..., n); float32, float16 or bfloat16.
        weight: (n,), of any of these types; None for ones.
        bias: (n,), of any of these types; None for zeros.
        eps: what is added to the variance.
        out: where the result goes, of ``x``'s shape and type; may be ``x`` itself (in place).

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; a wrong ``out``,
            or one that shares memory with an operand without being ``x``.
        UnsupportedError: a type that devices do not compute; a row longer than what one binding holds.

    Examples:
        >>> vkpar.layer_norm(device.array([[1.0, 3.0]])).numpy().round(3).tolist()
        [[-1.0, 1.0]]
    """
    done = repeat("layer_norm", (x, weight, bias), (out,), eps, in_place=True)
    if done is not None:
        return done[0]
    given = _given(x=x, weight=weight, bias=bias)
    check_arrays("layer_norm", out, **given)
    count, length = _check("layer_norm", x, eps, weight=weight, bias=bias)
    if out is not None:
        check_out("layer_norm", out, x.shape, x.dtype)
        _check_apart("layer_norm", out, (x,), weight, bias)
    key = key_of("layer_norm", (x, weight, bias), (out,), eps)
    made = x.device.empty(x.shape, x.dtype) if out is None else out
    if not made.size:
        return made
    call = Call("layer_norm", key, tuple(given.values()), (made,))
    operands = {name: landing.packed(call, call.operands[number]) for number, name in enumerate(given)}
    target = rows.stand_in(call, call.results[0], count, length)
    bindings = [
        Binding("x", operands["x"], length),
        Binding("w", operands.get("weight", operands["x"]), length if weight is None else 0),
        Binding("b", operands.get("bias", operands["x"]), length if bias is None else 0),
        Binding("y", target, length, True),
    ]

    def constants(wide: Mapping[str, bool]) -> tuple[int, ...]:
        return abi.NormConstants(*_constants(weight, wide["w"]), *_constants(bias, wide["b"]))

    rows.launch(call, f"norm_layer_{SHORT[x.dtype.name]}", count, length, bindings, eps, constants)
    landing.land(call, target, call.results[0])
    call.keep()
    return made


@overload
def rms_norm(
    x: Array, weight: Array | None = None, eps: float = 1e-6, residual: None = None, *, out: Array | None = None
) -> Array: ...


@overload
def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-6,
    *,
    residual: Array,
    out: tuple[Array | None, Array | None] | None = None,
) -> tuple[Array, Array]: ...


def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-6,
    residual: Array | None = None,
    *,
    out: Array | tuple[Array | None, Array | None] | None = None,
) -> Array | tuple[Array, Array]:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` along the last axis, in the type of ``x``.

    With ``residual`` it is ``y, h = rms_norm(x, weight, eps, residual=r)``: h = x + r, as ``vkpar.add`` gives it, and y
    the norm of h as it is stored, in the type of ``x``. All is computed in float32 and each result is rounded once. A
    row with NaN or an infinity has NaN in its places, and NaN or 0 elsewhere.

    Args:
        x: (..., n); float32, float16 or bfloat16.
        weight: (n,), of any of these types; None for ones.
        eps: what is added to the mean of the squares.
        residual: ``x``'s shape, any of these types.
        out: where the result goes, of ``x``'s shape and type; may be ``x`` itself. With ``residual`` a pair (y, h), of
            which either may be None for a new array; h has the shape of ``x`` and the type of the sum, and each of them
            may be ``x`` or ``residual`` itself (in place), but not both be the same.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; a wrong ``out``,
            or one that shares memory with an operand in another way.
        UnsupportedError: a type that devices do not compute; a row longer than what one binding holds.

    Examples:
        >>> vkpar.rms_norm(device.array([[3.0, 3.0]])).numpy().round(3).tolist()
        [[1.0, 1.0]]
    """
    pair = out if isinstance(out, tuple) else (out, None)
    if residual is None:
        if isinstance(out, tuple):
            raise InvalidUsageError("rms_norm: out is one array without a residual")
        return _rms_norm(x, weight, eps, None, (out,))[0]
    if len(pair) != 2 or isinstance(out, Array):
        raise InvalidUsageError("rms_norm: with a residual, out is a pair of arrays (y, h)")
    y, h = _rms_norm(x, weight, eps, residual, pair)
    return y, h


def _rms_norm(
    x: Array, weight: Array | None, eps: float, residual: Array | None, outs: tuple[Array | None, ...]
) -> list[Array]:
    done = repeat("rms_norm", (x, weight, residual), outs, eps, in_place=True)
    if done is not None:
        return done
    given = _given(x=x, weight=weight, residual=residual)
    others = {} if len(outs) == 1 or outs[1] is None else {"h of out": outs[1]}
    check_arrays("rms_norm", outs[0], **given, **others)
    _check("rms_norm", x, eps, weight=weight)
    kinds = [x.dtype]
    if residual is not None:
        check_float("rms_norm", residual.dtype)
        if residual.shape != x.shape:
            raise InvalidUsageError(f"rms_norm: residual has shape {residual.shape}, x has {x.shape}")
        kinds.append(dtypes.result_type(x.dtype, residual.dtype))
    same = tuple(each for each in (x, residual) if each is not None)
    for out, dtype in zip(outs, kinds, strict=True):
        if out is not None:
            check_out("rms_norm", out, x.shape, dtype)
            _check_apart("rms_norm", out, same, weight, None)
    if len(outs) == 2 and outs[0] is not None and outs[1] is not None:
        check_overlap("rms_norm", outs[0], outs[1], in_place=False)
    key = key_of("rms_norm", (x, weight, residual), outs, eps)
    made = [x.device.empty(x.shape, dtype) if out is None else out for out, dtype in zip(outs, kinds, strict=True)]
    if not x.size:
        return made
    call = Call("rms_norm", key, tuple(given.values()), made)
    launch_rms(call, dict(zip(given, call.operands, strict=True)), call.results, eps)
    call.keep()
    return made


def check_length(x: Array) -> None:
    """Raise UnsupportedError where rows are too long for :func:`launch_rms`."""
    rows.check_length("rms_norm", x)


def launch_rms(call: Call, operands: Mapping[str, Array], outs: Sequence[Array], eps: float) -> None:
    """Norm checked rows with elements, in arrays of a call: x, and perhaps weight and residual."""
    packed = {name: landing.packed(call, array) for name, array in operands.items()}
    x, weight, residual = packed["x"], packed.get("weight"), packed.get("residual")
    length = x.shape[-1]
    count = x.size // length
    targets = [rows.stand_in(call, out, count, length) for out in outs]
    bindings = [
        Binding("x", x, length),
        Binding("w", x if weight is None else weight, length if weight is None else 0),
        Binding("y", targets[0], length, True),
    ]
    if residual is not None:
        bindings[2:2] = [Binding("b", residual, length)]
        bindings.append(Binding("h", targets[1], length, True))

    def constants(wide: Mapping[str, bool]) -> tuple[int, ...]:
        own = _constants(weight, wide["w"])
        if residual is None:
            return abi.NormConstants(*own)
        h = outs[1].dtype
        kept = (FLOATS[h.name], targets[1].dtype != h, wide["h"])
        return abi.NormConstants(*own, *_constants(residual, wide["b"]), *kept)

    kernel = "norm_rms" if residual is None else "norm_residual"
    rows.launch(call, f"{kernel}_{SHORT[x.dtype.name]}", count, length, bindings, eps, constants)
    for target, out in zip(targets, outs, strict=True):
        landing.land(call, target, out)


def _given(**arrays: Array | None) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if array is not None}


def _check(name: str, x: Array, eps: float, **vectors: Array | None) -> tuple[int, int]:
    """Check operands and return how many rows there are, and how long they are."""
    check_number(name, "eps", eps)
    if not x.ndim:
        raise InvalidUsageError(f"{name}: x has one dimension or more, not shape ()")
    length = x.shape[-1]
    check_float(name, x.dtype, *(vector.dtype for vector in vectors.values() if vector is not None))
    for what, vector in vectors.items():
        if vector is not None and vector.shape != (length,):
            raise InvalidUsageError(f"{name}: {what} has shape {vector.shape}; for x of {x.shape} it is {(length,)}")
    rows.check_length(name, x)
    return (x.size // length if length else 0), length


def _check_apart(name: str, out: Array, same: tuple[Array, ...], *others: Array | None) -> None:
    """Raise InvalidUsageError where ``out`` shares memory with operands, other than being one of ``same``."""
    check_overlap(name, out, *same, in_place=True)
    check_overlap(name, out, *(other for other in others if other is not None), in_place=False)


def _constants(vector: Array | None, wide: bool) -> tuple[int, int, int]:
    """Return the constants that say whether a vector is there, its type and whether wide loads read it."""
    if vector is None:
        return (False, 0, False)
    return (True, FLOATS[_name(vector.dtype)], wide)


def _name(dtype: DType) -> str:
    return dtype.name
