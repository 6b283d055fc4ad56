"""Matrix products with a norm of the rows before them, or a gate after them: one kernel for few rows on GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.dispatch import FLOATS, batch_of, check_arrays, check_float, check_number, window
from vkpar.ops.call.dispatch import writable_in_place as writable
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.matmul import dense, few
from vkpar.ops.matmul.request import adds_in_place, check_device, check_result, residual_of, result_type
from vkpar.ops.quantized.kinds import KINDS
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.rows.normed import Normed
from vkpar.ops.rows.norms import rms_norm
from vkpar.ops.rows.swiglu import swiglu
from vkpar.ops.tiles import matvec, occupancy
from vkpar.ops.tiles.epilogue import Epilogue, Fold, check_epilogue

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType

SWIGLU: Final = "swiglu"
_MOST_WORK: Final = 1 << 38  # multiply-adds of a dispatch
_WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates


@dataclass(frozen=True)
class _Options:
    """What a call asks for beside its arrays; see :func:`vkpar.matmul`."""

    transpose_a: bool
    transpose_b: bool
    dtype: str | None
    accumulate: bool
    activation: str | None
    eps: float

    @property
    def gated(self) -> bool:
        """Whether the second half of the columns go through a gate, the first half."""
        return self.activation == SWIGLU


class _Arrays(NamedTuple):
    """What a call is given."""

    a: Array
    b: Array | Quantized
    bias: Array | None
    residual: Array | None
    norm: Array | None


def folds(device: Device, rows: int) -> bool:
    """Say whether a device's kernels take the norm of so many rows into a product by a transposed matrix."""
    return 0 < rows <= matvec.MOST_ROWS and dense.kernel_for(device, rows) == "matvec"


def multiply(
    plain: Callable[..., Array], a: Any, b: Any, out: Array | None, added: tuple[Any, Any], **options: Any
) -> Array:
    """Return what ``vkpar.matmul`` returns of a :class:`Normed`, or with the activation ``"swiglu"``.

    Args:
        plain: ``vkpar.matmul``.
        a: the first operand.
        b: the second one.
        out: where the result goes.
        added: bias and residual.
        options: those of :class:`_Options` but eps.
    """
    x, norm, eps = (a.x, a.weight, a.eps) if isinstance(a, Normed) else (a, None, 0.0)
    if isinstance(a, Normed) and not isinstance(norm, Array):
        raise InvalidUsageError(f"matmul: the weight of a norm has to be a vkpar.Array, not {type(norm).__name__}")
    how, arrays = _Options(**options, eps=eps), _Arrays(x, b, *added, norm)
    arrays = arrays._replace(residual=residual_of(out, arrays.residual, how.accumulate))
    done = _again(arrays, out, how)
    if done is not None:
        return done
    shape, dtype = _checked(arrays, out, how)
    result = arrays.a.device.empty(shape, dtype) if out is None else out
    if _fits(arrays, result, how):
        _store(arrays, result, how, _key(arrays, out, how))
    else:
        _compose(plain, arrays, result, how)
    return result


# ---- checks ----


def _checked(arrays: _Arrays, out: Array | None, how: _Options) -> tuple[tuple[int, ...], DType]:
    """Check a call, and return the shape and the type of its result."""
    a, b, bias, residual, norm = arrays
    named = (("bias", bias), ("residual", residual), ("norm", norm))
    extras = {name: array for name, array in named if array is not None}
    plain = {} if isinstance(b, Quantized) else {"b": b}
    check_arrays("matmul", out, a=a, **plain, **extras)
    if isinstance(b, Quantized):
        b.check_free()
        check_device(a, b)
    if a.ndim not in (2, 3) or len(b.shape) not in (2, 3):
        raise InvalidUsageError(
            f"matmul: a norm or {SWIGLU!r} goes with matrices, or batches of them, not shapes {a.shape} and {b.shape}"
        )
    columns, k = b.shape[-2:] if how.transpose_b else reversed(b.shape[-2:])
    if norm is not None:
        _check_norm(a, norm, how)
    if how.gated and (columns % 2 or residual is not None):
        raise InvalidUsageError(
            f"matmul: {SWIGLU!r} takes an even number of columns, gates and then what they let through, and no "
            f"residual; not {columns} columns{'' if residual is None else ' and a residual'}"
        )
    rows, depth = reversed(a.shape[-2:]) if how.transpose_a else a.shape[-2:]
    if depth != k:
        raise InvalidUsageError(f"matmul: a of shape {a.shape} does not fit b of shape {b.shape}")
    whole = (*batch_of("matmul", a.shape, b.shape), rows, columns)
    check_epilogue("matmul", whole, bias, None if how.gated else how.activation, residual)
    floats = [a] if isinstance(b, Quantized) else [a, b]
    shape = (*whole[:-1], columns // 2) if how.gated else whole
    dtype = result_type(floats, out if how.accumulate else None, how.dtype)
    if out is not None:
        check_result(out, shape, dtype, [*floats, bias, norm], residual)
    return shape, dtype


def _check_norm(a: Array, norm: Array, how: _Options) -> None:
    check_number("matmul", "eps", how.eps)
    check_float("matmul", norm.dtype)
    if how.transpose_a:
        raise InvalidUsageError("matmul: a norm is that of rows as they lie; leave transpose_a out")
    if norm.shape != a.shape[-1:]:
        raise InvalidUsageError(f"matmul: norm has shape {norm.shape}; for a of {a.shape} it is {a.shape[-1:]}")


# ---- by several operations ----


def _compose(plain: Callable[..., Array], arrays: _Arrays, result: Array, how: _Options) -> None:
    a, b, bias, residual, norm = arrays
    rows = a if norm is None else rms_norm(a, norm, how.eps)
    turns = {"transpose_a": how.transpose_a, "transpose_b": how.transpose_b}
    if not how.gated:
        added = {"bias": bias, "activation": how.activation, "residual": residual}
        plain(rows, b, out=result, dtype=result.dtype, **turns, **added)
        return
    both = plain(rows, b, dtype="float32", bias=bias, **turns)
    half = result.shape[-1]
    gate, up = both[..., :half], both[..., half:]
    if result.dtype == dtypes.float32:
        swiglu(gate, up, out=result)
    else:
        cast(swiglu(gate, up), result.dtype, out=result)


# ---- by one kernel ----


def _again(arrays: _Arrays, out: Array | None, how: _Options) -> Array | None:
    """Run a call by what an earlier one has kept; None, and nothing done, where there is nothing."""
    pieces = _pieces(arrays.b)
    if not pieces:
        return None
    in_place = adds_in_place(out, arrays.residual, arrays.a, *pieces, arrays.bias, arrays.norm)
    made = repeat("matmul", _operands(arrays), (out,), *_named(arrays, out, how), in_place=in_place)
    return made[0] if made else None


def _key(arrays: _Arrays, out: Array | None, how: _Options) -> tuple[object, ...] | None:
    """Return what :func:`_again` finds a recipe by, of a call that was checked; None where there is none."""
    return key_of("matmul", _operands(arrays), (out,), *_named(arrays, out, how)) if _pieces(arrays.b) else None


def _operands(arrays: _Arrays) -> tuple[Array | None, ...]:
    return (arrays.a, *_pieces(arrays.b), arrays.bias, arrays.residual, arrays.norm)


def _named(arrays: _Arrays, out: Array | None, how: _Options) -> tuple[object, ...]:
    same = arrays.residual is not None and arrays.residual is out
    kind = arrays.b.kind if isinstance(arrays.b, Quantized) else None
    return how, kind, same


def _pieces(b: Array | Quantized) -> tuple[Array, ...]:
    """Return the arrays of the second operand; none where there are several pieces."""
    if not isinstance(b, Quantized):
        return (b,)
    return tuple(b.pieces[0][2:]) if len(b.pieces) == 1 else ()


def _fits(arrays: _Arrays, result: Array, how: _Options) -> bool:
    """Say whether one kernel does it all."""
    a, b, bias, residual, norm = arrays
    if how.transpose_a or not how.transpose_b or not result.size or not a.size or (how.gated and bias is not None):
        return False
    m, k, columns = a.size // a.shape[-1], a.shape[-1], b.shape[-2]
    device, wholes = a.device, [array for array in (a, result, residual) if array is not None]
    if m * k * columns > _MOST_WORK or len(b.shape) != 2 or not all(array.is_contiguous for array in wholes):
        return False
    rows = [array for array in (bias, norm) if array is not None]
    if not all(array.is_contiguous for array in rows) or any(array.reach() < array.size for array in (*wholes, *rows)):
        return False
    if result.dtype.itemsize == 2 and (result.shape[-1] % 2 or not writable(result)):
        return False
    if isinstance(b, Quantized):
        one = len(b.pieces) == 1 and b.pieces[0].rows == columns
        return one and folds(device, m) and m <= few.rows_at_once(device)
    if not folds(device, m) or not b.is_contiguous or b.reach() < b.size:
        return False
    groups, _, _ = matvec.choose_folded(device.info, m, columns, gated=how.gated)
    nbytes = columns * k * b.dtype.itemsize // groups
    units = occupancy.units_of(device.info)
    return occupancy.reading(groups, nbytes, m, columns, k, 1, units, device.limits.max_workgroup_count[2]).parts == 1


def _store(arrays: _Arrays, result: Array, how: _Options, key: tuple[object, ...] | None) -> None:
    extras = [array for array in arrays[2:] if array is not None]
    call = Call("matmul", key, [arrays.a, *_pieces(arrays.b), *extras], [result])
    taken = iter(call.operands[1 + len(_pieces(arrays.b)) :])
    bias, residual, norm = (None if array is None else next(taken) for array in arrays[2:])
    code = 0 if how.gated else check_epilogue("matmul", result.shape, None, how.activation, None)
    follows, fold = Epilogue(bias, code, residual), Fold(norm, how.eps, how.gated)
    if isinstance(arrays.b, Quantized):
        (piece,) = arrays.b.pieces
        piece = piece._replace(chunks=call.operands[1], scales=call.operands[2])
        few.dispatch(call, KINDS[arrays.b.kind], piece, call.results[0], follows, fold)
    else:
        _dispatch(call, follows, fold)
    call.keep()


def _dispatch(call: Call, follows: Epilogue, fold: Fold) -> None:
    """Multiply by a matrix of floats."""
    a, b, out = call.operands[0], call.operands[1], call.results[0]
    device, n, k = call.device, out.shape[-1], a.shape[-1]
    m, columns = a.size // k, b.shape[0]
    (range_a, a_first), (range_b, b_first), (range_o, o_first) = (array.window() for array in (a, b, out))
    bias, residual = follows.bias, follows.residual
    range_x, x_first = (range_a, 0) if bias is None else window(bias, 0, n)
    range_r, r_first = (range_a, 0) if residual is None else residual.window()
    range_n, n_first, norm_wide = fold.window(range_a)
    groups, kernel, span = matvec.choose_folded(device.info, m, columns, gated=fold.gated)
    steps = math.gcd(a_first, k), math.gcd(b_first, k), math.gcd(o_first, n)
    a_type, b_type, o_type = (FLOATS[array.dtype.name] for array in (a, b, out))
    operands = abi.Operands(a_type, b_type, o_type, True, *(step % 4 == 0 for step in steps))
    shape = abi.RowsShape(m, span, *(step % 8 == 0 for step in steps[:2]))
    after = follows.constants(residual_wide=not math.gcd(r_first, n) % 4)
    constants = (*operands, *shape, *abi.Turned(), *after, *abi.PassesTail(), *fold.constants(wide=norm_wide))
    product = abi.Product(m, n, k, a_first, b_first, o_first, k, k, n)
    forms = abi.Forms(k_part=k, bias_first=x_first, residual_first=r_first)
    arrays = [a if array is None else array for array in (bias, residual, fold.norm)]
    call.dispatch(
        kernel,
        [a, b, out, *arrays],
        [range_a, range_b, range_o, range_x, range_r, range_n],
        pack(product, forms, abi.Norm(n_first, float(fold.eps))),
        groups,
        constants,
        m * columns * k // _WORK_PER_NS,
    )
