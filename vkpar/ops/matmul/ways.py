"""The ways in which a matrix product is made, in the order in which they are tried: by one kernel, or in parts.

A way either dispatches, or makes a part of the request and hands on the rest. All is recorded into one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.dtypes import DType
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call
from vkpar.ops.matmul import dense, few, folded
from vkpar.ops.matmul.request import Request, rows_of
from vkpar.ops.quantized import scratch
from vkpar.ops.quantized.weights import Piece, Quantized, unpack_in
from vkpar.ops.rows import norms, swiglu
from vkpar.ops.tiles import cpu
from vkpar.ops.tiles.epilogue import Epilogue, Fold


class Way(NamedTuple):
    """A way, and whether it takes a request that those before it did not take."""

    fits: Callable[[Request], bool]
    record: Callable[[Call, Request], None]


def record(call: Call, request: Request) -> None:
    """Make a product of a call, in the first way that fits."""
    next(way for way in WAYS if way.fits(request)).record(call, request)


# ---- in parts ----


def _has_norm(request: Request) -> bool:
    return request.fold.norm is not None


def _norm_first(call: Call, request: Request) -> None:
    """Norm the rows, in their own type, then multiply."""
    norm = request.fold.norm
    assert norm is not None, "it was looked at"
    rows = call.temporary(request.a.shape, request.a.dtype)
    if rows.size:
        norms.check_length(request.a)
        norms.launch_rms(call, {"x": request.a, "weight": norm}, [rows], request.fold.eps)
    record(call, replace(request, a=rows, fold=Fold(gated=request.fold.gated)))


def _is_gated(request: Request) -> bool:
    return request.fold.gated


def _gate_after(call: Call, request: Request) -> None:
    """Multiply into float32, then let one half of the columns through the other."""
    *outer, half = request.out.shape
    both = call.temporary((*outer, 2 * half), dtypes.float32)
    record(call, replace(request, out=both, fold=Fold()))
    gate, up = (call.view(both, both[..., columns]) for columns in (slice(None, half), slice(half, None)))
    swiglu.launch(call, gate, up, request.out)


def _lies_apart(request: Request) -> bool:
    """Say whether anything but the second operand of floats has elements that do not lie side by side."""
    arrays = [request.a, request.out, *request.extras]
    turned = isinstance(request.b, Quantized) and request.transpose_a
    if isinstance(request.b, Array):
        arrays = [dense.as_stored(request.a, request.transpose_a)[0], request.out, *request.extras]
        arrays.append(dense.as_stored(request.b, request.transpose_b)[0])
    return turned or not all(array.is_contiguous for array in arrays)


def _packed(call: Call, request: Request) -> None:
    """Multiply copies whose elements lie side by side, and bring the result to its place."""
    a, b, transpose_a = request.a, request.b, request.transpose_a
    if isinstance(b, Quantized):
        if transpose_a:
            a, transpose_a = call.view(a, dense.turned(a)), False
    else:
        b = b if dense.as_stored(b, request.transpose_b)[0].is_contiguous else landing.packed(call, b)
    a = a if dense.as_stored(a, transpose_a)[0].is_contiguous and isinstance(b, Array) else landing.packed(call, a)
    out, follows = request.out, request.follows
    bias = None if follows.bias is None else landing.packed(call, follows.bias)
    residual = None if follows.residual is None else landing.packed(call, follows.residual)
    if not out.is_contiguous:
        out = call.temporary(out.shape, out.dtype)
    elif follows.residual is request.out:
        residual = out
    parts = replace(request, a=a, b=b, out=out, transpose_a=transpose_a)
    record(call, replace(parts, follows=Epilogue(bias, follows.activation, residual)))
    landing.land(call, out, request.out)
    given = {id(array.storage) for array in (request.a, request.out, *request.extras)}
    for array in (a, out, bias, residual):
        if array is not None and id(array.storage) not in given:
            call.spare(array)


def _turns(request: Request) -> tuple[bool, bool]:
    """Say which of two operands of floats, both transposed in memory, a processor multiplies copies of sooner."""
    if not isinstance(request.b, Array):
        return False, False
    (a, turns_a), (_, turns_b) = dense.stored(request)
    m, n, k = dense.sizes(request)
    if not cpu.weights_of(a.device.info).turned:
        return False, False
    return turns_a and not cpu.may_turn(a, n) and cpu.turns(n, m, k), turns_b and cpu.turns(m, n, k)


def _is_turned(request: Request) -> bool:
    return any(_turns(request))


def _turned(call: Call, request: Request) -> None:
    """Multiply by copies of the transposes of operands."""
    assert isinstance(request.b, Array), "it was looked at"
    turns_a, turns_b = _turns(request)
    (a, transpose_a), (b, transpose_b) = dense.stored(request)
    if turns_a:
        a, transpose_a = _transpose(call, request.a, a), False
    if turns_b:
        b, transpose_b = _transpose(call, request.b, b), False
    dense.record(call, replace(request, a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b))


def _transpose(call: Call, array: Array, stored: Array) -> Array:
    stored = call.view(array, stored)
    return landing.packed(call, call.view(stored, dense.turned(stored)))


def _is_quantized(request: Request) -> bool:
    return isinstance(request.b, Quantized)


def _unpacked(call: Call, request: Request) -> None:
    """Make the weights as floats, some rows at a time, all in one scratch array, and multiply by these."""
    q, out, follows = request.b, request.out, request.follows
    assert isinstance(q, Quantized), "it was looked at"
    dtype = few.slab_type(q.device, request.a.dtype)
    m, n = rows_of(request.a), q.shape[0]
    a = call.view(request.a, request.a.reshape(m, q.shape[1]))
    flat = call.view(out, out.reshape(m, n))
    added = follows.residual
    if added is not None:
        added = flat if added is out else call.view(added, added.reshape(m, n))
    for slab, first in _slabs(call, q, dtype):
        columns = slice(first, first + len(slab))
        whole = len(slab) == n
        part = flat if whole else call.view(flat, flat[:, columns])
        residual = part if added is flat else None if added is None else call.view(added, added[:, columns])
        bias = follows.bias if whole or follows.bias is None else call.view(follows.bias, follows.bias[columns])
        after = Epilogue(bias, follows.activation, residual)
        record(call, Request(a, slab, part, after, Fold(), transpose_a=False, transpose_b=True))


def _slabs(call: Call, q: Quantized, dtype: DType) -> Iterator[tuple[Array, int]]:
    """Yield rows of weights as arrays of a call, and the number of the first."""
    n, k = q.shape
    if not q.size:
        yield call.temporary((n, k), dtype), 0
        return
    most = scratch.rows_at_once(k, dtype.itemsize, halves=cpu.weights_of(call.device.info).halves)
    largest = min(most, max(piece.rows for piece in q.pieces))
    held = call.temporary((scratch.nbytes(largest, k, dtype.itemsize) // dtype.itemsize,), dtype)
    for piece in q.pieces:
        for start in range(0, piece.rows, most):
            rows = min(most, piece.rows - start)
            slab = call.view(held, held[: rows * k].reshape(rows, k))
            part = piece if rows == piece.rows else _part(call, piece, start, start + rows)
            unpack_in(call, q.kind, part, slab)
            yield slab, piece.first + start


def _part(call: Call, piece: Piece, start: int, stop: int) -> Piece:
    made = piece.part(start, stop, 0)
    call.view(piece.chunks, made.chunks)
    call.view(piece.scales, made.scales)
    return made


WAYS: Final = (
    Way(folded.fits, folded.record),
    Way(_has_norm, _norm_first),
    Way(_is_gated, _gate_after),
    Way(_lies_apart, _packed),
    Way(few.fits, few.record),
    Way(_is_quantized, _unpacked),
    Way(_is_turned, _turned),
    Way(lambda _: True, dense.record),
)
