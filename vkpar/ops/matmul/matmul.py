"""Matrix products in every form."""

from __future__ import annotations

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.dispatch import run_pair
from vkpar.ops.matmul import ways
from vkpar.ops.matmul.request import Asked, call_of, check, request_of, weight_of
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.rows.normed import Normed


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

    Examples:
        >>> a = device.array([[1.0, 2.0], [3.0, 4.0]])
        >>> vkpar.matmul(a, a, activation="relu").tolist()
        [[7.0, 10.0], [15.0, 22.0]]
    """
    normed, name = isinstance(a, Normed), None if dtype is None else _name(dtype)
    options = (bool(transpose_a), bool(transpose_b), name)
    if bias is None and residual is None and activation is None and not (accumulate or normed):
        done = run_pair("matmul", a, b, out, *options, in_place=False)
        if done is not None:
            return done
    rows, norm, eps = (a.x, weight_of(a), a.eps) if isinstance(a, Normed) else (a, None, 0.0)
    asked = Asked(rows, b, out, bias, residual, norm, eps, activation, *options, bool(accumulate))
    done = asked.again()
    return _anew(asked) if done is None else done


def _anew(asked: Asked) -> Array:
    """Make a product that was not made before."""
    result = check(asked)
    made: Array = asked.a.device.empty(result.shape, result.dtype) if asked.out is None else asked.out
    if made.size:
        call = call_of(asked, made)
        ways.record(call, request_of(asked, call, result))
        call.keep(asked.pair_key())
    return made


def _name(dtype: object) -> object:
    """Return a type's name; what is none as it is, of which the checks speak in their turn."""
    try:
        return dtypes.resolve(dtype).name
    except InvalidUsageError:
        return dtype
