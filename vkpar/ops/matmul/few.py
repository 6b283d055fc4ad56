"""Matrix products by quantised weights: which kernel, how it is spread, and what follows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.call.windows import window, writable_in_place
from vkpar.ops.call.work import MAX_TURNS, WORK_PER_NS
from vkpar.ops.matmul import cores, dots
from vkpar.ops.matmul.request import Request, rows_of
from vkpar.ops.quantized.kinds import KINDS, Kind
from vkpar.ops.quantized.weights import Piece, Quantized
from vkpar.ops.tiles import matvec, occupancy
from vkpar.ops.tiles.cpu import weights_of

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType
    from vkpar.ops.tiles.epilogue import Fold

_THREADS: Final = 256
# Fours of the first operand's elements that lie in shared memory: of all rows at most, of each row at least, since sums
# take their place in the end.
_QUADS: Final = 2048
_LEAST_QUADS: Final = 256
_GROUPS: Final = 3  # work-groups of each unit that keep memory busy
_UNEVEN: Final = 1.1  # units that have the most groups may have so many times the mean


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


class LaneSpread(NamedTuple):
    """How a product of one row is spread on CPU drivers: a lane of a vector makes a column."""

    width: int = 8
    passes: int = 1

    def shape(self, m: int) -> abi.QuantizedShape:
        """Return constants that its kernel has no use for."""
        return abi.QuantizedShape(m, self.width, 1, 1)


AnySpread = LaneSpread | Spread | dots.DotSpread | cores.CoreSpread


def spreads(kind: Kind, m: int, k: int, least: int = 4) -> list[Spread]:
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
    found = [how for how in spreads(kind, m, k, 4 * together) if how.turns <= most and how.columns >= together]
    found.sort(key=lambda how: (how.width, how.columns, how.turns), reverse=True)
    narrow = [how for how in found if how.width == found[-1].width]

    def fills(how: Spread) -> bool:
        groups = -(-n // how.width)
        return groups >= _GROUPS * units and -(-groups // units) * units <= _UNEVEN * groups

    return next(filter(fills, found), narrow[0])


def by_lanes(device: Device) -> bool:
    """Say whether one row is multiplied by the kernel of CPU drivers."""
    return weights_of(device.info).lanes


def rows_at_once(device: Device) -> int:
    """Return of how many rows the kernel for few rows makes products on a device; 0 where it is not used."""
    limits = device.limits
    if by_lanes(device):
        return 1
    fits = limits.max_workgroup_invocations >= _THREADS and limits.max_shared_memory >= 16 * _QUADS
    return matvec.MOST_ROWS if fits and weights_of(device.info).halves else 0


def fits(request: Request) -> bool:
    """Say whether a kernel reads the weights as they are: few contiguous rows, each array in one binding."""
    a, q, residual = request.a, request.b, request.follows.residual
    if not isinstance(q, Quantized) or not q.size or not request.fold.empty:
        return False
    bound = [array for array in (a, request.out, residual) if array is not None]
    if not all(array.is_contiguous and array.reach() >= array.size for array in bound):
        return False
    if by_lanes(a.device) and q.shape[1] // KINDS[q.kind].chunk > MAX_TURNS:
        return False
    return 0 < rows_of(a) <= rows_at_once(a.device) or on_cores(request)


def on_cores(request: Request) -> bool:
    """Say whether matrix cores make the product of a request."""
    q = request.b
    assert isinstance(q, Quantized), "it was looked at"
    rows = request.a.reshape(rows_of(request.a), request.a.shape[-1])
    return cores.takes(rows, q, KINDS[q.kind])


def record(call: Call, request: Request) -> None:
    """Dispatch the products by all pieces of the weights."""
    q, out = request.b, request.out
    assert isinstance(q, Quantized), "it was looked at"
    ends = (x for piece in q.pieces for x in (piece.first, q.shape[0]))
    direct = out.dtype.itemsize == 4 or (writable_in_place(out) and not any(x % 2 for x in ends))
    target = out if direct else call.temporary(out.shape, dtypes.float32)
    by_cores = on_cores(request)
    for piece in q.pieces:
        dispatch(call, replace(request, out=target), q.kind, piece, on_cores=by_cores)
    landing.land(call, target, out)


def slab_type(device: Device, dtype: DType) -> DType:
    """Return the type that weights are made in for many rows; float16 rounds them."""
    return dtypes.float16 if dtype == dtypes.float16 and weights_of(device.info).halves else dtypes.float32


def _spread_of(
    device: Device, kind: Kind, shape: tuple[int, int, int], fold: Fold, *, on_cores: bool
) -> tuple[AnySpread, str]:
    """Return how weights of a kind are multiplied by, for (rows, columns, inner width), and the module that does."""
    m, n, k = shape
    folded, together = "" if fold.empty else "_folded", 2 if fold.gated else 1
    if on_cores:
        return cores.spread(device.info, kind, m, n), cores.module_of(kind)
    if by_lanes(device):
        return LaneSpread(), f"quantized_lanes_{kind.module}"
    if m == 1 and dots.usable(device):
        return (
            dots.spread(device, kind, n, k, together, folded=not fold.empty),
            f"quantized_dots{folded}_{kind.module}",
        )
    rows, adds = 1 if m == 1 else matvec.MOST_ROWS, "subgroups" if matvec.adds_up(device.info) else "alone"
    return spread(device, kind, m, n, k, together), f"quantized_matvec{folded}_{kind.module}_rows{rows}_{adds}"


def dispatch(call: Call, request: Request, name: str, piece: Piece, *, on_cores: bool = False) -> None:
    """Multiply by the weights of a piece.

    Args:
        call: that it is a part of.
        request: on contiguous arrays; its result has the columns of all pieces.
        name: of the kind of the weights.
        piece: of them.
        on_cores: matrix cores make it.
    """
    a, out, follows, fold, kind = request.a, request.out, request.follows, request.fold, KINDS[name]
    bias, residual = follows.bias, follows.residual
    k, columns, gated = a.shape[-1], out.shape[-1], fold.gated
    m, n = a.size // k, columns if gated else piece.rows
    device, reached = a.device, (m - 1) * columns + n
    (range_a, a_first), (range_b, b_first), (range_s, s_first) = (
        array.window() for array in (a, piece.chunks, piece.scales)
    )
    range_o, o_first = out.window(piece.first, reached)
    range_x, x_first = (range_a, 0) if bias is None else window(bias, piece.first, n)
    range_r, r_first = (range_a, 0) if residual is None else residual.window(piece.first, reached)
    how, module = _spread_of(device, kind, (m, piece.rows, k), fold, on_cores=on_cores)
    words: list[tuple[float, ...]] = [
        abi.Product(m, n, k, a_first, b_first // 4, o_first, k, k // kind.chunk, columns),
        abi.Forms(k_part=k, bias_first=x_first, residual_first=r_first),
        abi.Scales(s_first // kind.per_block),
    ]
    wide = a_first % 4 == 0, False, not (o_first % 4 or columns % 4)
    operands = abi.BlockOperands(FLOATS[a.dtype.name], kind.code, FLOATS[out.dtype.name], True, *wide)
    after = follows.constants(residual_wide=not (r_first % 4 or columns % 4))
    constants: tuple[int, ...] = (*operands, *how.shape(m), *abi.Turned(), *after)
    constants += how.tail(device.info) if isinstance(how, cores.CoreSpread) else abi.PassesTail(how.passes)
    arrays = [a, piece.chunks, out, a if bias is None else bias, a if residual is None else residual, piece.scales]
    ranges = [range_a, range_b, range_o, range_x, range_r, range_s]
    if not fold.empty:
        range_n, n_first, norm_wide = fold.window(range_a)
        arrays, ranges = [*arrays, a if fold.norm is None else fold.norm], [*ranges, range_n]
        words.append(abi.Norm(n_first, float(fold.eps)))
        constants += fold.constants(wide=norm_wide)
    if isinstance(how, dots.DotSpread):
        constants += abi.FoldTail() if fold.empty else ()
        constants += abi.DotsTail(how.threads, not (k // kind.block % 2 or s_first % 2), how.each(kind))
    call.dispatch(
        module,
        arrays,
        ranges,
        pack(*words),
        -(-piece.rows // how.width),
        constants,
        m * piece.rows * k // WORK_PER_NS,
    )
