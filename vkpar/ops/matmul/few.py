"""Matrix products by quantised weights: which kernel, how it is spread, and what follows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.dispatch import FLOATS, check_arrays, window, writable_in_place
from vkpar.ops.elementwise.cast import convert
from vkpar.ops.matmul import cores as quantized_cores
from vkpar.ops.matmul import dots as integer_dots
from vkpar.ops.matmul.request import adds_in_place, check_device, check_result, residual_of, result_type
from vkpar.ops.quantized import scratch as slabs
from vkpar.ops.quantized.kinds import KINDS, Kind
from vkpar.ops.quantized.weights import Piece, Quantized, unpack
from vkpar.ops.tiles import matvec, occupancy
from vkpar.ops.tiles.epilogue import Epilogue, Fold, check_epilogue

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType

MOST_ROWS: Final = 8
_THREADS: Final = 256
# Fours of the first operand's elements that lie in shared memory: of all rows at most, of each row at least, since sums
# take their place in the end.
_QUADS: Final = 2048
_LEAST_QUADS: Final = 256
_GROUPS: Final = 3  # work-groups of each unit that keep memory busy
_UNEVEN: Final = 1.1  # units that have the most groups may have so many times the mean
_WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates


class Spread(NamedTuple):
    """How a product of few rows is spread.

    Attributes:
        span: invocations that stride over K together, a power of two up to 256.
        columns: that they make, 1 to 4.
        turns: chunks of each that are loaded together.
        passes: how often that is done for what shared memory holds of the first operand.
    """

    span: int
    columns: int
    turns: int
    passes: int

    def shape(self, m: int) -> abi.QuantizedShape:
        """Return the constants that say what a work-group makes of ``m`` rows."""
        return abi.QuantizedShape(m, self.span, self.columns, self.turns)

    @property
    def width(self) -> int:
        """Columns of a work-group, a multiple of 4."""
        return _THREADS // self.span * self.columns


def ways(kind: Kind, m: int, k: int, least: int = 4) -> list[Spread]:
    """Return how products of (m, k) can be spread: teams are not too wide for K, nor for shared memory.

    Args:
        kind: of the weights.
        m: rows.
        k: steps.
        least: columns that a work-group's are a multiple of.
    """
    chunks, fours = k // kind.chunk, kind.chunk // 4
    room = max(min(_QUADS // m, _QUADS // 2), _LEAST_QUADS)
    found = []
    for span, columns, turns in itertools.product((32, 64, 128, 256), (4, 2, 1), (1, 2, 4) if m == 1 else (1, 2)):
        ahead = span * turns
        passes = max(min(-(-chunks // ahead), room // (ahead * fours)), -(-_LEAST_QUADS // (ahead * fours)))
        wide = ahead > 32 and ahead - span >= chunks  # some would find no chunk at all
        if not wide and _THREADS // span * columns % least == 0 and ahead * passes * fours <= room:
            found.append(Spread(span, columns, turns, passes))
    return found


def spread(device: Device, kind: Kind, m: int, n: int, k: int, together: int = 1) -> Spread:
    """Return how a product of (m, k) by (n, k) is spread: in groups as wide as leaves all units enough of them.

    Args:
        device: where.
        kind: of the weights.
        m: rows.
        n: columns.
        k: steps.
        together: columns that make one of the result, 1 or 2; a team has them all.
    """
    units = occupancy.units_of(device.info)
    most = kind.turns if m == 1 else 1
    found = [way for way in ways(kind, m, k, 4 * together) if way.turns <= most and way.columns >= together]
    found.sort(key=lambda way: (way.width, way.columns, way.turns), reverse=True)
    narrow = [way for way in found if way.width == found[-1].width]

    def fills(way: Spread) -> bool:
        groups = -(-n // way.width)
        return groups >= _GROUPS * units and -(-groups // units) * units <= _UNEVEN * groups

    return next(filter(fills, found), narrow[0])


def rows_at_once(device: Device) -> int:
    """Return of how many rows the kernel for few rows makes products on a device; 0 where it is not used."""
    limits = device.limits
    fits = limits.max_workgroup_invocations >= _THREADS and limits.max_shared_memory >= 16 * _QUADS
    return MOST_ROWS if fits and not device.info.is_cpu else 0


def multiply(plain: Callable[..., Array], a: Any, q: Quantized, out: Array | None, **options: Any) -> Array:
    """Return what ``vkpar.matmul`` returns for a second operand of quantised weights.

    Args:
        plain: ``vkpar.matmul``, for rows that weights are dequantised for.
        a: the first operand.
        q: the second one.
        out: where the result goes.
        options: all others of matmul.
    """
    transpose_a, dtype, accumulate = options["transpose_a"], options["dtype"], options["accumulate"]
    bias, activation, residual = options["bias"], options["activation"], options["residual"]
    residual = residual_of(out, residual, accumulate)
    name = None if dtype is None else dtypes.resolve(dtype).name
    kept = (bool(transpose_a), bool(options["transpose_b"]), name, bool(accumulate), q.kind, activation)
    done = _again(a, q, out, bias, residual, kept)
    if done is not None:
        return done
    _check_operand(a, q, options["transpose_b"])
    extras = {name: array for name, array in (("bias", bias), ("residual", residual)) if array is not None}
    check_arrays("matmul", out, a=a, **extras)
    q.check_free()
    shape = _shape(a, q, transpose_a)
    code = check_epilogue("matmul", shape, bias, activation, residual)
    found = result_type([a], out if accumulate else None, name)
    if out is not None:
        check_result(out, shape, found, [a, bias], residual)
    result = a.device.empty(shape, found) if out is None else out
    rows = (a.transpose(*range(a.ndim - 2), -1, -2) if transpose_a else a).contiguous()
    product = _Product(
        plain, rows.reshape(math.prod(shape[:-1]), q.shape[1]), q, Epilogue(bias, code, residual), activation
    )
    target = result if result.is_contiguous else a.device.empty(shape, found)
    if result.size:
        exact = rows is a and target is result
        product.store(target, _key(a, q, out, bias, residual, kept) if exact else None)
    if target is not result:
        result.copy_from(target)
    return result


def _again(a: Any, q: Quantized, out: Any, bias: Any, residual: Any, kept: tuple[object, ...]) -> Array | None:
    """Run a call by what an earlier one has kept; None, and nothing done, where there is nothing."""
    if len(q.pieces) != 1:
        return None
    piece, same = q.pieces[0], residual is not None and residual is out
    in_place = adds_in_place(out, residual, a, bias)
    operands = (a, piece.chunks, piece.scales, bias, residual)
    made = repeat("matmul", operands, (out,), *kept, same, in_place=in_place)
    return made[0] if made else None


def _key(
    a: Array, q: Quantized, out: Array | None, bias: Array | None, residual: Array | None, kept: tuple[object, ...]
) -> tuple[object, ...] | None:
    """Return what :func:`_again` finds a recipe by."""
    if len(q.pieces) != 1:
        return None
    piece, same = q.pieces[0], residual is not None and residual is out
    return key_of("matmul", (a, piece.chunks, piece.scales, bias, residual), (out,), *kept, same)


def _check_operand(a: Any, q: Quantized, transpose_b: bool) -> None:
    """Raise InvalidUsageError where quantised weights do not stand where they can."""
    if isinstance(a, Quantized):
        raise InvalidUsageError("matmul: quantised weights are the second operand: matmul(x, q, transpose_b=True)")
    if not transpose_b:
        raise InvalidUsageError(
            f"matmul: quantised weights {q.shape} are multiplied by as they lie, rows by columns: "
            "matmul(x, q, transpose_b=True)"
        )
    if isinstance(a, Array):
        check_device(a, q)


def _shape(a: Array, q: Quantized, transpose_a: bool) -> tuple[int, ...]:
    """Return the result's shape."""
    if a.ndim not in (2, 3):
        raise InvalidUsageError(f"matmul takes matrices, or batches of them in three dimensions, not shape {a.shape}")
    k, m = a.shape[-2:] if transpose_a else reversed(a.shape[-2:])
    if k != q.shape[1]:
        turned = " transposed" if transpose_a else ""
        raise InvalidUsageError(
            f"matmul: a of shape {a.shape}{turned} does not fit weights of shape {q.shape} transposed"
        )
    return (*a.shape[:-2], m, q.shape[0])


class _Product(NamedTuple):
    """A checked product.

    Attributes:
        plain: ``vkpar.matmul``.
        a: contiguous rows.
        q: the weights.
        follows: the epilogue.
        activation: its name.
    """

    plain: Callable[..., Array]
    a: Array
    q: Quantized
    follows: Epilogue
    activation: str | None

    def store(self, result: Array, key: tuple[object, ...] | None) -> None:
        """Store it in a contiguous array, and keep what was done by a key."""
        m, n = self.a.shape[0], self.q.shape[0]
        out = result.reshape(m, n)
        residual = self.follows.residual
        if residual is not None:
            residual = out if residual is result else residual.contiguous().reshape(m, n)
        follows = Epilogue(self.follows.bias, self.follows.activation, residual)
        whole = [array for array in (self.a, out, residual) if array is not None]
        cores = quantized_cores.takes(self.a, self.q, KINDS[self.q.kind])
        few = (cores or 0 < m <= rows_at_once(self.a.device)) and self.q.size
        if few and all(array.reach() == array.size for array in whole):
            self._few(out, follows, key, cores=cores)
        else:
            self._many(out, follows)

    def _few(self, out: Array, follows: Epilogue, key: tuple[object, ...] | None, *, cores: bool) -> None:
        """Store the product of few rows, by a kernel that reads the weights as they are."""
        pieces = self.q.pieces
        extras = [array for array in (follows.bias, follows.residual) if array is not None]
        call = Call("matmul", key, [self.a, *pieces[0][2:], *extras], [out])
        taken = iter(call.operands[3:])
        bias = None if follows.bias is None else next(taken)
        residual = None if follows.residual is None else next(taken)
        target = call.results[0]
        halves = out.dtype.itemsize == 2
        if halves and not (writable_in_place(out) and all(x % 2 == 0 for p in pieces for x in (p.first, out.shape[1]))):
            target = call.temporary(out.shape, dtypes.float32)
        for number, piece in enumerate(pieces):
            if number:
                call.forget()
            named = piece if number else piece._replace(chunks=call.operands[1], scales=call.operands[2])
            dispatch(call, KINDS[self.q.kind], named, target, Epilogue(bias, follows.activation, residual), cores=cores)
        if target is not call.results[0] and writable_in_place(out):
            call.convert(target, call.results[0])
        elif target is not call.results[0]:
            call.forget()
            convert(target, out)
        call.keep()

    def _many(self, out: Array, follows: Epilogue) -> None:
        """Store the product of any number of rows: weights are made in slabs, and multiplied as arrays."""
        q, bias, residual = self.q, follows.bias, follows.residual
        dtype = slab_type(q.device, self.a.dtype)
        for slab, first, rows in _slabs(q, dtype):
            columns = slice(first, first + rows)
            part = out if rows == out.shape[1] else out[:, columns]
            self.plain(
                self.a,
                slab,
                out=part,
                transpose_b=True,
                dtype=out.dtype,
                bias=None if bias is None else bias[columns],
                activation=self.activation,
                residual=part if residual is out else None if residual is None else residual[:, columns],
            )


def slab_type(device: Device, dtype: DType) -> DType:
    """Return the type that weights are made in for many rows.

    GPUs multiply halves by halves, several times as fast, which rounds the weights to float16.
    """
    return dtypes.float16 if dtype == dtypes.float16 and not device.info.is_cpu else dtypes.float32


def _slabs(q: Quantized, dtype: DType) -> Iterator[tuple[Array, int, int]]:
    """Yield rows of weights as arrays, the number of the first, and how many."""
    n, k = q.shape
    if not q.size:
        yield q.device.empty((n, k), dtype), 0, n
        return
    most = slabs.rows_at_once(k, dtype.itemsize)
    for piece in q.pieces:
        for start in range(0, piece.rows, most):
            rows = min(most, piece.rows - start)
            scratch = q.device.empty(slabs.nbytes(rows, k, dtype.itemsize) // dtype.itemsize, dtype)
            slab = scratch[: rows * k].reshape(rows, k)
            unpack(q.kind, piece.part(start, start + rows, 0), slab)
            yield slab, piece.first + start, rows


def dispatch(
    call: Call,
    kind: Kind,
    piece: Piece,
    out: Array,
    follows: Epilogue,
    fold: Fold | None = None,
    *,
    cores: bool = False,
) -> None:
    """Multiply by the weights of a piece.

    Args:
        call: whose first operand are the rows.
        kind: of the weights.
        piece: of them.
        out: all columns of the result.
        follows: the epilogue.
        fold: what else the kernel does, of all columns.
        cores: matrix cores make it.
    """
    a, bias, residual = call.operands[0], follows.bias, follows.residual
    k, columns, gated = a.shape[-1], out.shape[-1], fold is not None and fold.gated
    m, n = a.size // k, columns if gated else piece.rows
    device, reached = a.device, (m - 1) * columns + n
    (range_a, a_first), (range_b, b_first), (range_s, s_first) = (
        array.window() for array in (a, piece.chunks, piece.scales)
    )
    range_o, o_first = out.window(piece.first, reached)
    range_x, x_first = (range_a, 0) if bias is None else window(bias, piece.first, n)
    range_r, r_first = (range_a, 0) if residual is None else residual.window(piece.first, reached)
    dots, together = m == 1 and integer_dots.usable(device), 2 if gated else 1
    way: Spread | integer_dots.Spread | quantized_cores.Spread
    if cores:
        way, name = quantized_cores.spread(device.info, kind, m, piece.rows), quantized_cores.module_of(kind)
    elif dots:
        way = integer_dots.spread(device, kind, piece.rows, k, together, folded=fold is not None)
        name = f"quantized_dots{'_folded' if fold else ''}_{kind.name}"
    else:
        way = spread(device, kind, m, piece.rows, k, together)
        name = f"quantized_matvec{'_folded' if fold else ''}_{kind.name}_rows{1 if m == 1 else MOST_ROWS}"
        name += "_subgroups" if matvec.adds_up(device.info) else "_alone"
    words: list[tuple[float, ...]] = [
        abi.Product(m, n, k, a_first, b_first // 4, o_first, k, k // kind.chunk, columns),
        abi.Forms(k_part=k, bias_first=x_first, residual_first=r_first),
        abi.Scales(s_first // kind.per_block),
    ]
    wide = a_first % 4 == 0, False, not (o_first % 4 or columns % 4)
    operands = abi.Operands(FLOATS[a.dtype.name], FLOATS["float32"], FLOATS[out.dtype.name], True, *wide)
    after = follows.constants(residual_wide=not (r_first % 4 or columns % 4))
    constants: tuple[int, ...] = (*operands, *way.shape(m), *abi.Turned(), *after)
    constants += way.tail(device.info) if isinstance(way, quantized_cores.Spread) else abi.PassesTail(way.passes)
    arrays = [a, piece.chunks, out, a if bias is None else bias, a if residual is None else residual, piece.scales]
    ranges = [range_a, range_b, range_o, range_x, range_r, range_s]
    if fold is not None:
        range_n, n_first, norm_wide = fold.window(range_a)
        arrays, ranges = [*arrays, a if fold.norm is None else fold.norm], [*ranges, range_n]
        words.append(abi.Norm(n_first, float(fold.eps)))
        constants += fold.constants(wide=norm_wide)
    if isinstance(way, integer_dots.Spread):
        constants += () if fold else abi.FoldTail()
        constants += abi.DotsTail(way.threads, not (k // kind.block % 2 or s_first % 2), way.each(kind))
    call.dispatch(
        name,
        arrays,
        ranges,
        pack(*words),
        -(-piece.rows // way.width),
        constants,
        m * piece.rows * k // _WORK_PER_NS,
    )
