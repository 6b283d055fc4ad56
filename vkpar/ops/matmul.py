"""Matrix products in every form."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.ops._launch import check_arrays, check_float, check_out, check_overlap, key_of, run_pair
from vkpar.ops.epilogue import Epilogue, checked
from vkpar.ops.products import Matrix, Product, multiply, store_finished
from vkpar.ops.recipes import Recipe, Trace
from vkpar.plans import form_of

Optional = TypeVar("Optional", Array, "Array | None")

_RESIDUAL = 3  # the operand that out may be


def matmul(
    a: Array,
    b: Array,
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
        a: (M, K), or (B, M, K) for B products; float32, float16 or bfloat16.
        b: (K, N) or (B, K, N); any of these types too. A matrix, or a batch of one, meets each product of the other's.
        out: where the result goes: (M, N) or (B, M, N), of the result's type. It shares no memory with an operand, but
            may be ``residual`` itself.
        transpose_a: multiply the transpose of ``a``, which is (K, M) or (B, K, M) then.
        transpose_b: multiply by the transpose of ``b``, which is (N, K) or (B, N, K) then.
        dtype: type of the result; by default that of ``out`` with ``accumulate``, else what ``np.result_type`` says of
            a and b (float16 of two float16).
        accumulate: add to what ``out`` holds, as ``residual=out`` does.
        bias: (N,), added to each row.
        activation: ``"relu"``, ``"gelu"`` (by the error function), ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or
            ``"tanh"``. NaN stays NaN.
        residual: of the result's shape, added at the end.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; an unknown
            activation; a wrong ``out``, or ``accumulate`` without one or beside ``residual``.
        UnsupportedError: a type that devices do not compute, such as float64.
    """
    options = (bool(transpose_a), bool(transpose_b), None if dtype is None else _name(dtype), bool(accumulate))
    plain = bias is None and residual is None and activation is None
    if plain:
        done = run_pair("matmul", a, b, out, *options, in_place=False)
    else:
        done = _run_recipe(a, b, out, bias, residual, activation, *options)
    if done is not None:
        return done
    extras = {name: array for name, array in (("bias", bias), ("residual", residual)) if array is not None}
    check_arrays("matmul", out, a=a, b=b, **extras)
    sizes = _sizes(a, b, bool(transpose_a), bool(transpose_b))
    epilogue = checked("matmul", sizes.shape, bias, activation, residual)
    if accumulate and (out is None or residual is not None):
        raise InvalidUsageError("matmul: accumulate adds to out, which has to be given; it is residual=out: give one")
    result_type = _result_type(a, b, out if accumulate else None, dtype)
    if out is not None:
        check_out("matmul", out, sizes.shape, result_type)
        check_overlap("matmul", out, a, b, *([] if bias is None else [bias]), in_place=False)
        check_overlap("matmul", out, *([] if residual is None else [residual]), in_place=True)
    result = a.device.empty(sizes.shape, result_type) if out is None else out
    first, turns_a = _as_stored(a, sizes.transpose_a)
    second, turns_b = _as_stored(b, sizes.transpose_b)
    call = _Call(first, second, sizes._replace(transpose_a=turns_a, transpose_b=turns_b), epilogue, bool(accumulate))
    if all(array.is_contiguous for array in (first, second, result, *extras.values())):
        trace = call.store(result, key_of("matmul", a, b, out, *options) if plain else None)
        recipe = None if trace is None else trace.recipe()
        if recipe is not None:
            result.device.plans.keep(_recipe_key(a, b, out, bias, residual, activation, *options), recipe)
        return result
    if result.is_contiguous:
        call.packed().store(result, None)
        return result
    whole = result.copy() if accumulate else a.device.empty(sizes.shape, result_type)
    call.packed().store(whole, None)
    result.copy_from(whole)
    return result


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


class _Call(NamedTuple):
    """A checked call."""

    a: Array
    b: Array
    sizes: _Sizes
    epilogue: Epilogue
    accumulate: bool

    def packed(self) -> _Call:
        """Return the same call on operands whose elements lie side by side."""
        bias, activation, residual = self.epilogue.bias, self.epilogue.activation, self.epilogue.residual
        epilogue = Epilogue(
            None if bias is None else bias.contiguous(),
            activation,
            None if residual is None else residual.contiguous(),
        )
        return self._replace(a=self.a.contiguous(), b=self.b.contiguous(), epilogue=epilogue)

    def store(self, out: Array, key: tuple[object, ...] | None) -> Trace | None:
        """Store the result in ``out``, which is contiguous, as the operands are.

        Args:
            out: where it goes.
            key: what the plan is kept by where one plain dispatch does it.

        Returns:
            what was dispatched; None where the result has no elements.
        """
        if not out.size:
            return None
        epilogue, adds = self.epilogue, self.accumulate
        if adds and (out.dtype != dtypes.float32 or not epilogue.empty or not self.sizes.k):
            epilogue, adds = Epilogue(epilogue.bias, epilogue.activation, out), False
        # A recipe tells operands apart by their objects: the next call may have two where this one has one twice.
        a, b, given = self.a, _apart(self.b, self.a), _apart(self.epilogue.residual, out, self.a, self.b)
        bias = _apart(epilogue.bias, a, b, given)
        epilogue = Epilogue(bias, epilogue.activation, epilogue.residual if given is None else given)
        trace = Trace("matmul", (a, b, bias, given), out, _RESIDUAL)
        if not self.sizes.k:
            trace.spoil()
            store_finished(out, 0, out, epilogue, trace)
            return trace
        multiply(self._product(a, b, key), out, epilogue, adds=adds, trace=trace)
        return trace

    def _product(self, a: Array, b: Array, key: tuple[object, ...] | None) -> Product:
        batch, m, n, k, a_batch, b_batch, _, transpose_a, transpose_b = self.sizes
        if not (b_batch or transpose_a):  # the rows of all the first matrices meet the same second one
            batch, m, a_batch = 1, batch * m, 0
        first = Matrix(a, m if transpose_a else k, a_batch)
        second = Matrix(b, k if transpose_b else n, b_batch)
        product = Product(first, second, transpose_a, transpose_b, batch, m, n, k, key)
        return product.turned() if n == 1 else product


def _as_stored(array: Array, transposed: bool) -> tuple[Array, bool]:
    """Return a matrix as it lies in memory, where it is a view of its transpose, and whether a kernel transposes it."""
    if array.is_contiguous:
        return array, transposed
    axes = list(range(array.ndim))
    stored = array.transpose(*axes[:-2], axes[-1], axes[-2])
    return (stored, not transposed) if stored.is_contiguous else (array, transposed)


def _apart(array: Optional, *others: Array | None) -> Optional:
    """Return an array as an object of its own."""
    if array is None or not any(array is other for other in others):
        return array
    return array.reshape(array.shape)


def _run_recipe(
    a: Array, b: Array, out: Array | None, bias: Array | None, residual: Array | None, *options: Any
) -> Array | None:
    """Run a call by the recipe of an earlier one; None, and nothing done, where there is none."""
    try:
        recipe = a.device.plans.known.get(_recipe_key(a, b, out, bias, residual, *options))
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    return recipe.run((a, b, bias, residual), out) if isinstance(recipe, Recipe) else None


def _recipe_key(
    a: Array,
    b: Array,
    out: Array | None,
    bias: Array | None,
    residual: Array | None,
    activation: str | None,
    *options: Any,
) -> tuple[object, ...]:
    """Return what a recipe is found by; without extras, what a plan is."""
    extras = [None if array is None else array.form or form_of(array) for array in (bias, residual)]
    more = () if bias is None and residual is None and activation is None else (*extras, activation)
    return (*key_of("matmul", a, b, out, *options), *more)


def _name(dtype: object) -> str:
    """Return a type's name; nothing for what is none, of which the checks speak in their turn."""
    try:
        return dtypes.resolve(dtype).name
    except InvalidUsageError:
        return ""


def _result_type(a: Array, b: Array, out: Array | None, dtype: object) -> DType:
    """Return the result's type; ``out`` is given where the product is added to it.

    Raises:
        UnsupportedError: a type that devices do not compute.
        InvalidUsageError: no type.
    """
    check_float("matmul", a.dtype, b.dtype)
    if dtype is not None:
        found = dtypes.resolve(dtype)
    else:
        found = dtypes.result_type(a.dtype, b.dtype) if out is None else out.dtype
    check_float("matmul", found)
    return found


def _sizes(a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> _Sizes:
    if not (a.ndim in (2, 3) and b.ndim in (2, 3)):
        raise InvalidUsageError(
            f"matmul takes matrices, or batches of them in three dimensions, not shapes {a.shape} and {b.shape}; "
            "reshape a vector"
        )
    k, m = a.shape[-2:] if transpose_a else reversed(a.shape[-2:])
    n, b_k = b.shape[-2:] if transpose_b else reversed(b.shape[-2:])
    turned = [" transposed" if transposed else "" for transposed in (transpose_a, transpose_b)]
    if k != b_k:
        raise InvalidUsageError(f"matmul: a of shape {a.shape}{turned[0]} does not fit b of shape {b.shape}{turned[1]}")
    batches = [array.shape[0] if array.ndim == 3 else 1 for array in (a, b)]
    batch = batches[0] if batches[1] == 1 else batches[1]
    if batches[0] not in (1, batch):
        raise InvalidUsageError(
            f"matmul: {batches[0]} and {batches[1]} products, of shapes {a.shape} and {b.shape}: a batch meets one of "
            "as many matrices, or of one"
        )
    shape = (m, n) if a.ndim == b.ndim == 2 else (batch, m, n)
    a_batch, b_batch = (size if many > 1 else 0 for size, many in zip((m * k, k * n), batches, strict=True))
    return _Sizes(batch, m, n, k, a_batch, b_batch, shape, transpose_a, transpose_b)
