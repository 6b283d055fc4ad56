"""Matrix products in every form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.dispatch import batch_of, check_arrays, check_out, run_pair
from vkpar.ops.call.dispatch import key_of as pair_key
from vkpar.ops.matmul import few, folded
from vkpar.ops.matmul.dense import multiply, store_finished
from vkpar.ops.matmul.request import adds_in_place, check_result, residual_of, result_type
from vkpar.ops.quantized import scratch
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.rows.normed import Normed
from vkpar.ops.tiles.cpu import has_wide, may_turn
from vkpar.ops.tiles.epilogue import Epilogue, check_epilogue
from vkpar.ops.tiles.product import Matrix, Product


def matmul(
    a: Array | Normed,
    b: Array | Quantized,
    *,
    out: Array | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: object = None,
    accumulate: bool = False,
    bias: Array | None = None,
    activation: str | None = None,
    residual: Array | None = None,
) -> Array:
    """Return ``activation(a @ b + bias) + residual``, computed in float32 and rounded once.

    A sum over K errs by at most (K + 2) 2^-23 of the sum of its terms' magnitudes. What follows the product is done
    before the result is stored where one kernel does it all: on GPUs, unless operands lie in several buffers.

    Args:
        a: (M, K), or (B, M, K) for B products; float32, float16 or bfloat16. A vector (K,) stands for (1, K), and the
            result has no such row. Or a :class:`Normed` of matrices, not of a vector, whose norm is rounded to its
            type only where no kernel makes it on the way.
        b: (K, N) or (B, K, N); any of these types too. A matrix, or a batch of one, meets each product of the other's.
            A vector (K,) stands for (K, 1), and the result has no such column, nor a bias. Or quantised weights (N, K),
            see :func:`vkpar.quantized`, with ``transpose_b=True`` and an ``a`` of two or three dimensions.
        out: where the result goes: (M, N) or (B, M, N), of the result's type. It shares no memory with an operand, but
            may be ``residual`` itself.
        transpose_a: multiply the transpose of ``a``, which is (K, M) or (B, K, M) then.
        transpose_b: multiply by the transpose of ``b``, which is (N, K) or (B, N, K) then.
        dtype: type of the result; by default that of ``out`` with ``accumulate``, else what ``np.result_type`` says of
            a and b (float16 of two float16).
        accumulate: add to what ``out`` holds, as ``residual=out`` does.
        bias: (N,), added to each row.
        activation: ``"relu"``, ``"gelu"`` (by the error function), ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or
            ``"tanh"``; see the functions of these names. Or ``"swiglu"``, of which the columns are gates, and then as
            many that these let through: the result has half of them, no residual, and operands that are no vectors.
        residual: of the result's shape, added at the end.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; an unknown
            activation; a wrong ``out``, or ``accumulate`` without one or beside ``residual``.
        UnsupportedError: a type that devices do not compute, such as float64.
    """
    if isinstance(a, Normed) or activation == folded.SWIGLU:
        how = {"transpose_a": bool(transpose_a), "transpose_b": bool(transpose_b), "accumulate": bool(accumulate)}
        name = None if dtype is None else dtypes.resolve(dtype).name
        return folded.multiply(matmul, a, b, out, (bias, residual), **how, dtype=name, activation=activation)
    if isinstance(b, Quantized):
        follows = {"bias": bias, "activation": activation, "residual": residual}
        turns = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        return few.multiply(matmul, a, b, out, **turns, dtype=dtype, accumulate=accumulate, **follows)
    options = (bool(transpose_a), bool(transpose_b), None if dtype is None else _name(dtype), bool(accumulate))
    done = _again(a, b, out, bias, residual, activation, *options)
    if done is not None:
        return done
    extras = {name: array for name, array in (("bias", bias), ("residual", residual)) if array is not None}
    check_arrays("matmul", out, a=a, b=b, **extras)
    if a.ndim == 1 or b.ndim == 1:
        form = {"transpose_a": transpose_a, "transpose_b": transpose_b, "bias": bias}
        return _of_vectors(a, b, out, residual, form, dtype=dtype, accumulate=accumulate, activation=activation)
    sizes = _sizes(a, b, bool(transpose_a), bool(transpose_b))
    code = check_epilogue("matmul", sizes.shape, bias, activation, residual)
    residual_of(out, residual, accumulate)
    found = result_type([a, b], out if accumulate else None, dtype)
    if out is not None:
        check_result(out, sizes.shape, found, [a, b, bias], residual)
    result = a.device.empty(sizes.shape, found) if out is None else out
    first, turns_a = _as_stored(a, sizes.transpose_a)
    second, turns_b = _as_stored(b, sizes.transpose_b)
    sizes = sizes._replace(transpose_a=turns_a, transpose_b=turns_b)
    keys = _keys(a, b, out, bias, residual, activation, *options)
    copies_a = turns_a and not may_turn(first, sizes.n) and scratch.turns(sizes.n, sizes.m, sizes.k)
    copies_b = turns_b and scratch.turns(sizes.m, sizes.n, sizes.k)
    if (copies_a or copies_b) and has_wide(a.device.info):
        first, second = _turned(first, copies_a), _turned(second, copies_b)
        sizes = sizes._replace(transpose_a=turns_a and not copies_a, transpose_b=turns_b and not copies_b)
        keys = (None, None)
    operands = [first, second, *extras.values()]
    target = result
    if not all(array.is_contiguous for array in (*operands, result)):
        operands, keys = [array.contiguous() for array in operands], (None, None)
        if not result.is_contiguous:
            target = result.copy() if accumulate else a.device.empty(sizes.shape, found)
    call = Call("matmul", keys[1], operands, [target])
    taken = dict(zip(("a", "b", *extras), call.operands, strict=True))
    _store(call, sizes, Epilogue(taken.get("bias"), code, taken.get("residual")), bool(accumulate), keys[0])
    call.keep()
    if target is not result:
        result.copy_from(target)
    return result


def _turned(array: Array, turns: bool) -> Array:
    """Return matrices, or copies of their transposes."""
    return array.transpose(*range(array.ndim - 2), array.ndim - 1, array.ndim - 2).contiguous() if turns else array


def _of_vectors(
    a: Array, b: Array, out: Array | None, residual: Array | None, form: dict[str, Any], **how: Any
) -> Array:
    """Multiply where an operand is a vector: as a matrix of one row, or of one column, which the result has not."""
    _check_dimensions(a, b)
    for name, array in (("a", a), ("b", b)):
        if array.ndim == 1 and form[f"transpose_{name}"]:
            raise InvalidUsageError(f"matmul: {name} of shape {array.shape} is a vector, which has no transpose")
    if b.ndim == 1 and form["bias"] is not None:
        raise InvalidUsageError("matmul: a product by a vector takes no bias, which has an element for each column")
    row, column = a.ndim == 1, b.ndim == 1
    if a.shape[-2 if form["transpose_a"] else -1] != b.shape[-1 if column or form["transpose_b"] else -2]:
        raise _misfit(a, b, form["transpose_a"], form["transpose_b"])
    first, second = a[None] if row else a, b[:, None] if column else b
    whole = _sizes(first, second, bool(form["transpose_a"]), bool(form["transpose_b"])).shape
    shape = whole[:-2] + (() if row else whole[-2:-1]) + (() if column else whole[-1:])
    if out is not None:
        check_out("matmul", out, shape, result_type([a, b], out if how["accumulate"] else None, how["dtype"]))
    if residual is not None and residual.shape != shape:
        raise InvalidUsageError(f"matmul: residual has shape {residual.shape}, the result is {shape}")
    target = None if out is None else _shaped(out, whole)
    added = target if residual is out else None if residual is None else _shaped(residual, whole)
    made = matmul(first, second, out=target, residual=added, **form, **how)
    return _shaped(made, shape) if out is None else out


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view with axes of one element more or less."""
    steps = iter([stride for stride, count in zip(array.strides, array.shape, strict=True) if count != 1])
    return array.strided(shape, tuple(0 if count == 1 else next(steps) for count in shape))


def _store(call: Call, sizes: _Sizes, epilogue: Epilogue, adds: bool, key: tuple[object, ...] | None) -> None:
    """Store a product, and what follows it, in the result of a call.

    Args:
        call: on contiguous arrays.
        sizes: of the product.
        epilogue: what follows.
        adds: the product is added to what the result holds.
        key: what the plan is kept by where one plain dispatch does it.
    """
    a, b, out = call.operands[0], call.operands[1], call.results[0]
    if not out.size:
        call.forget()
        return
    if adds and (out.dtype != dtypes.float32 or not epilogue.empty or not sizes.k):
        epilogue, adds = Epilogue(epilogue.bias, epilogue.activation, out), False
    if not sizes.k:
        store_finished(out, 0, out, epilogue, call)
        return
    batch, m, n, k, a_batch, b_batch, _, transpose_a, transpose_b = sizes
    if not (b_batch or transpose_a):  # the rows of all the first matrices meet the same second one
        batch, m, a_batch = 1, batch * m, 0
    first, second = Matrix(a, m if transpose_a else k, a_batch), Matrix(b, k if transpose_b else n, b_batch)
    product = Product(first, second, transpose_a, transpose_b, batch, m, n, k, key if epilogue.empty else None)
    multiply(product.turned() if n == 1 else product, out, epilogue, adds=adds, call=call)


class _Sizes(NamedTuple):
    """What a product is of.

    Attributes:
        batch: how many matrices; ``m``, ``n`` and ``k`` of each.
        a_batch: elements from one of the first matrices to the next, 0 where all are the same.
        b_batch: the same of the second ones.
        shape: of the result.
        transpose_a: the first matrices are stored as (k, m); ``transpose_b``: the second as (n, k).
    """

    batch: int
    m: int
    n: int
    k: int
    a_batch: int
    b_batch: int
    shape: tuple[int, ...]
    transpose_a: bool
    transpose_b: bool


def _as_stored(array: Array, transposed: bool) -> tuple[Array, bool]:
    """Return a matrix as it lies in memory, where it is a view of its transpose, and whether a kernel transposes it."""
    if array.is_contiguous:
        return array, transposed
    axes = list(range(array.ndim))
    stored = array.transpose(*axes[:-2], axes[-1], axes[-2])
    return (stored, not transposed) if stored.is_contiguous else (array, transposed)


def _again(
    a: Array, b: Array, out: Array | None, bias: Array | None, residual: Array | None, *options: Any
) -> Array | None:
    """Run a call by what an earlier one has kept; None, and nothing done, where there is nothing."""
    if bias is None and residual is None and options[0] is None:
        done = run_pair("matmul", a, b, out, *options[1:], in_place=False)
        if done is not None:
            return done
    in_place = adds_in_place(out, residual, a, b, bias)
    same = residual is not None and residual is out  # the product may not lie in out before it is added
    made = repeat("matmul", (a, b, bias, residual), (out,), *options, same, in_place=in_place)
    return made[0] if made else None


def _keys(
    a: Array, b: Array, out: Array | None, bias: Array | None, residual: Array | None, *options: Any
) -> tuple[tuple[object, ...] | None, tuple[object, ...] | None]:
    """Return what :func:`_again` finds a plan by, and a recipe."""
    same = residual is not None and residual is out
    return pair_key("matmul", a, b, out, *options[1:]), key_of("matmul", (a, b, bias, residual), (out,), *options, same)


def _name(dtype: object) -> str:
    """Return a type's name; nothing for what is none, of which the checks speak in their turn."""
    try:
        return dtypes.resolve(dtype).name
    except InvalidUsageError:
        return ""


def _check_dimensions(a: Array, b: Array) -> None:
    if not (1 <= a.ndim <= 3 and 1 <= b.ndim <= 3):
        raise InvalidUsageError(
            f"matmul takes vectors, matrices, or batches in three dimensions, not shapes {a.shape} and {b.shape}"
        )


def _misfit(a: Array, b: Array, transpose_a: object, transpose_b: object) -> InvalidUsageError:
    turned = [" transposed" if transposed else "" for transposed in (transpose_a, transpose_b)]
    return InvalidUsageError(f"matmul: a of shape {a.shape}{turned[0]} does not fit b of shape {b.shape}{turned[1]}")


def _sizes(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> _Sizes:
    _check_dimensions(a, b)
    k, m = a.shape[-2:] if transpose_a else reversed(a.shape[-2:])
    n, b_k = b.shape[-2:] if transpose_b else reversed(b.shape[-2:])
    if k != b_k:
        raise _misfit(a, b, transpose_a, transpose_b)
    batch = batch_of("matmul", a.shape, b.shape)
    a_batch = m * k if a.ndim == 3 and a.shape[0] > 1 else 0
    b_batch = k * n if b.ndim == 3 and b.shape[0] > 1 else 0
    shape = (*batch, m, n)
    return _Sizes(math.prod(batch), m, n, k, a_batch, b_batch, shape, transpose_a, transpose_b)
