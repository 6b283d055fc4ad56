"""One request for all ways of making a matrix product: what a call asks for, checked once, and found again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.call import Call, Key, key_of, repeat
from vkpar.ops.call.checks import batch_of, check_arrays, check_float, check_number, check_out, check_overlap
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.rows.normed import Normed
from vkpar.ops.tiles.epilogue import Epilogue, Fold, check_epilogue

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType

SWIGLU: Final = "swiglu"


class Asked(NamedTuple):
    """What a call of ``vkpar.matmul`` is given, nothing of it checked.

    Attributes:
        a, b: the operands, ``a`` without the norm of its rows.
        norm: the weight of that norm, None for none; ``eps`` its number.
        dtype: a type's name, None for the type that the operands ask for.

    The others are those of :func:`vkpar.matmul`.
    """

    a: Any
    b: Any
    out: Any
    bias: Any
    residual: Any
    norm: Any
    eps: float
    activation: Any
    transpose_a: bool
    transpose_b: bool
    dtype: Any
    accumulate: bool

    @property
    def gated(self) -> bool:
        """Whether the first half of the columns are gates of the second half."""
        return isinstance(self.activation, str) and self.activation == SWIGLU

    @property
    def adds(self) -> bool:
        """Whether the product is added to what ``out`` holds."""
        return self.accumulate or (self.residual is not None and self.residual is self.out)

    @property
    def weights(self) -> tuple[Any, ...] | None:
        """The arrays of the second operand; None of weights in several pieces, by which no call is kept."""
        if not isinstance(self.b, Quantized):
            return (self.b,)
        return tuple(self.b.pieces[0][2:]) if len(self.b.pieces) == 1 else None

    @property
    def operands(self) -> tuple[Any, ...]:
        """All arrays but the result, None for those that the call has not."""
        weights = self.weights or ()
        return (self.a, *weights, self.bias, None if self.adds else self.residual, self.norm)

    @property
    def options(self) -> tuple[object, ...]:
        """What else a kept call depends on."""
        kind = self.b.kind if isinstance(self.b, Quantized) else None
        turns = self.transpose_a, self.transpose_b
        return (*turns, self.dtype, self.accumulate, self.activation, self.eps, kind, self.adds)

    def again(self) -> Array | None:
        """Run the call by what an earlier one has kept; None, and nothing done, where there is nothing."""
        made = None
        if self.weights is not None:
            made = repeat("matmul", self.operands, (self.out,), *self.options)
        return made[0] if made else None

    def key(self) -> Key | None:
        """Return what :meth:`again` finds a recipe by, of a call that was checked; None where none is kept."""
        return key_of("matmul", self.operands, (self.out,), *self.options) if self.weights is not None else None

    def pair_key(self) -> Key | None:
        """Return what ``run_pair`` finds a plan by, of a call of two arrays of floats and nothing else; None of others.

        See :func:`vkpar.matmul`, which looks for it first.
        """
        others = (self.bias, self.residual, self.norm, self.activation)
        if isinstance(self.b, Quantized) or self.accumulate or any(other is not None for other in others):
            return None
        turns = self.transpose_a, self.transpose_b
        return key_of("matmul", (self.a, self.b), (self.out,), *turns, self.dtype)


@dataclass(frozen=True)
class Request:
    """A checked product of matrices, or of batches of them, on arrays of a call.

    Attributes:
        a: (..., M, K), or (..., K, M) where ``transpose_a``.
        b: (..., K, N), or (..., N, K) where ``transpose_b``, as quantised weights are.
        out: (..., M, N), where the result goes; half as many columns where these are gated.
        follows: what follows the product; its residual is ``out`` itself where the product is added to that.
        fold: a norm of the rows before it, a gate after it.
    """

    a: Array
    b: Array | Quantized
    out: Array
    follows: Epilogue
    fold: Fold
    transpose_a: bool
    transpose_b: bool

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self.a.device

    @property
    def extras(self) -> list[Array]:
        """The arrays that there are beside operands and result."""
        found = (self.follows.bias, self.follows.residual, self.fold.norm)
        return [array for array in found if array is not None and array is not self.out]


class Result(NamedTuple):
    """What a checked call gives: shape and dtype; the product's shape, of matrices; the activation's code."""

    shape: tuple[int, ...]
    dtype: DType
    whole: tuple[int, ...]
    code: int


def weight_of(a: Normed) -> Array:
    """Return the weight of a norm.

    Raises:
        InvalidUsageError: it is no array.
    """
    weight: object = a.weight
    if not isinstance(weight, Array):
        raise InvalidUsageError(f"matmul: the weight of a norm has to be a vkpar.Array, not {type(weight).__name__}")
    return weight


def check(asked: Asked) -> Result:
    """Check a call.

    Raises:
        InvalidUsageError, UnsupportedError: as :func:`vkpar.matmul` says.
    """
    _check_accumulate(asked)
    _check_kinds(asked)
    whole, shape = _shapes(asked)
    residual = asked.out if asked.adds else asked.residual
    code = check_epilogue("matmul", whole, asked.bias, None if asked.gated else asked.activation, None)
    if residual is not None:
        if residual.shape != shape:
            raise InvalidUsageError(f"matmul: residual has shape {residual.shape}, the result is {shape}")
        check_float("matmul", residual.dtype)
    floats = [asked.a] if isinstance(asked.b, Quantized) else [asked.a, asked.b]
    dtype = _result_type(floats, asked.out if asked.accumulate else None, asked.dtype)
    if asked.out is not None:
        check_out("matmul", asked.out, shape, dtype)
        others = (array for array in (*floats, asked.bias, asked.norm) if array is not None)
        check_overlap("matmul", asked.out, *others, in_place=False)
        check_overlap("matmul", asked.out, *([] if residual is None else [residual]), in_place=True)
    return Result(shape, dtype, whole, code)


def _check_accumulate(asked: Asked) -> None:
    if asked.accumulate and (asked.out is None or asked.residual is not None):
        raise InvalidUsageError("matmul: accumulate adds to out, which has to be given; it is residual=out: give one")


def _check_kinds(asked: Asked) -> None:
    """Check that all are arrays, or weights, of one device, and nothing is closed."""
    a, b = asked.a, asked.b
    quantized = isinstance(b, Quantized)
    if quantized and isinstance(a, Quantized):
        raise InvalidUsageError("matmul: quantised weights are the second operand: matmul(x, q, transpose_b=True)")
    if quantized and not asked.transpose_b:
        raise InvalidUsageError(
            f"matmul: quantised weights {b.shape} are multiplied by as they lie, rows by columns: "
            "matmul(x, q, transpose_b=True)"
        )
    residual = asked.out if asked.adds else asked.residual
    named = (("bias", asked.bias), ("residual", residual), ("norm", asked.norm))
    extras = {name: array for name, array in named if array is not None}
    check_arrays("matmul", asked.out, a=a, **({} if quantized else {"b": b}), **extras)
    if quantized:
        b.check_free()
        if a.device is not b.device:
            raise InvalidUsageError(
                f"matmul: {a!r} and {b!r} live on different devices; copy one over with .to(device)"
            )


def _shapes(asked: Asked) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the product of matrices, and that of the result."""
    a, b = asked.a, asked.b
    folded = asked.norm is not None or asked.gated
    if isinstance(b, Quantized) and a.ndim not in (2, 3):
        raise InvalidUsageError(f"matmul takes matrices, or batches of them in three dimensions, not shape {a.shape}")
    if not (1 <= a.ndim <= 3 and 1 <= len(b.shape) <= 3):
        raise InvalidUsageError(
            f"matmul takes vectors, matrices, or batches in three dimensions, not shapes {a.shape} and {b.shape}"
        )
    if folded and (a.ndim == 1 or len(b.shape) == 1):
        raise InvalidUsageError(
            f"matmul: a norm or {SWIGLU!r} goes with matrices, or batches of them, not shapes {a.shape} and {b.shape}"
        )
    for name, array, turned in (("a", a, asked.transpose_a), ("b", b, asked.transpose_b)):
        if len(array.shape) == 1 and turned:
            raise InvalidUsageError(f"matmul: {name} of shape {array.shape} is a vector, which has no transpose")
    if len(b.shape) == 1 and asked.bias is not None:
        raise InvalidUsageError("matmul: a product by a vector takes no bias, which has an element for each column")
    first = (1, *a.shape) if a.ndim == 1 else a.shape
    second = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    rows, k = reversed(first[-2:]) if asked.transpose_a else first[-2:]
    columns, depth = second[-2:] if asked.transpose_b else reversed(second[-2:])
    if asked.norm is not None:
        _check_norm(asked)
    added = asked.accumulate or asked.residual is not None
    if asked.gated and (columns % 2 or added):
        raise InvalidUsageError(
            f"matmul: {SWIGLU!r} takes an even number of columns, gates and then what they let through, and no "
            f"residual; not {columns} columns{' and a residual' if added else ''}"
        )
    if k != depth:
        raise _misfit(asked)
    whole = (*batch_of("matmul", first, second), rows, columns)
    shape = (*whole[:-1], columns // 2) if asked.gated else whole
    kept = shape[:-2] + (() if a.ndim == 1 else shape[-2:-1]) + (() if len(b.shape) == 1 else shape[-1:])
    return whole, kept


def _misfit(asked: Asked) -> InvalidUsageError:
    turned = [" transposed" if transposed else "" for transposed in (asked.transpose_a, asked.transpose_b)]
    what = "weights" if isinstance(asked.b, Quantized) else "b"
    return InvalidUsageError(
        f"matmul: a of shape {asked.a.shape}{turned[0]} does not fit {what} of shape {asked.b.shape}{turned[1]}"
    )


def _check_norm(asked: Asked) -> None:
    check_number("matmul", "eps", asked.eps)
    check_float("matmul", asked.norm.dtype)
    if asked.transpose_a:
        raise InvalidUsageError("matmul: a norm is that of rows as they lie; leave transpose_a out")
    if asked.norm.shape != asked.a.shape[-1:]:
        raise InvalidUsageError(
            f"matmul: norm has shape {asked.norm.shape}; for a of {asked.a.shape} it is {asked.a.shape[-1:]}"
        )


def _result_type(operands: Sequence[Array], out: Array | None, dtype: object) -> DType:
    """Return the result's type; ``out`` is given where the product is added to it."""
    check_float("matmul", *(array.dtype for array in operands))
    if dtype is not None:
        found = dtypes.resolve(dtype)
    else:
        found = dtypes.result_type(*(array.dtype for array in operands)) if out is None else out.dtype
    check_float("matmul", found)
    return found


def call_of(asked: Asked, result: Array) -> Call:
    """Return the call that a checked product is made by."""
    weights = asked.weights if asked.weights is not None else ()
    given = (asked.a, *weights, *asked.operands[1 + len(weights) :])
    return Call("matmul", asked.key(), [array for array in given if array is not None], [result])


def request_of(asked: Asked, call: Call, result: Result) -> Request:
    """Return a checked product on the arrays of its call, vectors as matrices of one row, or of one column."""
    taken = iter(call.operands)
    a, out = next(taken), call.results[0]
    b = asked.b
    if not isinstance(b, Quantized):
        b = next(taken)
    elif asked.weights is not None:
        b = _of_call(b, next(taken), next(taken))
    bias = None if asked.bias is None else next(taken)
    residual = None if asked.adds or asked.residual is None else next(taken)
    norm = None if asked.norm is None else next(taken)
    if a.ndim == 1 or len(b.shape) == 1:
        shape = result.whole
        a = a if a.ndim > 1 else call.view(a, a[None])
        b = b if isinstance(b, Quantized) or b.ndim > 1 else call.view(b, b[:, None])
        out = call.view(out, _shaped(out, shape))
        residual = residual if residual is None else call.view(residual, _shaped(residual, shape))
    follows = Epilogue(bias, result.code, out if asked.adds else residual)
    fold = Fold(norm, asked.eps, asked.gated)
    return Request(a, b, out, follows, fold, asked.transpose_a, asked.transpose_b)


def _of_call(q: Quantized, chunks: Array, scales: Array) -> Quantized:
    """Return weights in one piece, by the arrays that a call knows them by."""
    return Quantized(q.device, q.kind, q.shape, (q.pieces[0]._replace(chunks=chunks, scales=scales),))


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view with axes of one element more or less."""
    steps = iter([stride for stride, count in zip(array.strides, array.shape, strict=True) if count != 1])
    return array.strided(shape, tuple(0 if count == 1 else next(steps) for count in shape))


def rows_of(array: Array) -> int:
    """Return how many rows matrices have, in all."""
    return math.prod(array.shape[:-1])
