"""Matrices of quantised weights, in the types of GGUF files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from vkpar import dtypes
from vkpar.abi import arrays as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.host import HostArray
from vkpar.arrays.region import sliced
from vkpar.arrays.shape import dimensions
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, INTEGERS, check_arrays, check_float, check_out, check_overlap
from vkpar.ops.call.dispatch import submit
from vkpar.ops.call.windows import GROUP, fold_groups, window, writable_in_place
from vkpar.ops.quantized.kinds import KINDS, Kind
from vkpar.unpickled import Closable, Fixed, Unpickled
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.subbuffers import GRANULE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


_SLAB: Final = 1 << 25  # bytes of blocks that lie on the device twice while they are laid out
_THREADS: Final = 256


class Piece(NamedTuple):
    """Rows of a matrix that kernels bind at once.

    Attributes:
        first: the number of its first row; ``rows`` of them.
        chunks: the whole numbers, 32-bit words.
        scales: what they are multiplied by.
    """

    first: int
    rows: int
    chunks: Array
    scales: Array

    def part(self, start: int, stop: int, first: int) -> Piece:
        """Return rows ``start`` to ``stop`` of it as a piece that begins at row ``first``."""
        return Piece(first, stop - start, self.chunks[start:stop], self.scales[start:stop])


class Quantized(Closable, Fixed, Unpickled):
    """A matrix of quantised weights on a device, made by :func:`quantized`, or a view of rows of one.

    ``vkpar.matmul(x, q, transpose_b=True)`` multiplies by it, ``q[a:b]`` is a view of whole rows. The device keeps
    as many bytes as the blocks have, the whole numbers apart from the scales and all in chunks of 16 bytes, so
    that kernels load them whole.

    It is a context manager.

    Attributes:
        device: where it lives.
        kind: ``"q8_0"``, ``"q4_0"``, ``"q4_k"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``, ``"q5_k"`` or ``"q6_k"``.
        shape: rows and columns.
        pieces: of its rows, each of which a kernel can bind.

    Examples:
        >>> blocks = np.zeros((64, 2 * 34), np.uint8)  # rows of two blocks of 32 weights and a scale
        >>> with vkpar.quantized(device, blocks, (64, 64), "q8_0") as weights:
        ...     weights.shape, weights[:32].shape, vkpar.matmul(device.ones((1, 64)), weights, transpose_b=True).shape
        ((64, 64), (32, 64), (1, 64))
    """

    def __init__(self, device: Device, kind: str, shape: tuple[int, int], pieces: tuple[Piece, ...]) -> None:
        self.device = device
        self.kind = kind
        self.shape = shape
        self.pieces = pieces

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<vkpar.Quantized {self.shape} {self.kind} on {self.device}{state}>"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the device: those of the blocks, and up to 12 for each row of Q5_0 or Q5_1 (see the page)."""
        return sum(piece.chunks.nbytes + piece.scales.nbytes for piece in self.pieces)

    @property
    def closed(self) -> bool:
        """True after :meth:`close`, that of a view that shares the memory included."""
        return any(piece.chunks.closed for piece in self.pieces)

    def close(self) -> None:
        """Give the memory back, that of all views included; a second call does nothing."""
        for piece in self.pieces:
            piece.chunks.close()
            piece.scales.close()

    def __enter__(self) -> Quantized:
        self.check_free()
        return self

    def check_free(self) -> None:
        """Refuse use after :meth:`close`, and of a closed device.

        Raises:
            InvalidUsageError: it is closed.
        """
        self.device.check_open()
        for piece in self.pieces:
            piece.chunks.check_free()
            piece.scales.check_free()

    def __getitem__(self, key: slice) -> Quantized:
        """Return a view of whole rows, ``q[start:stop]``.

        Raises:
            InvalidUsageError: another key, or a step.
        """
        if not isinstance(key, slice) or key.step not in (None, 1):
            raise InvalidUsageError(
                f"a quantised matrix is cut by rows, as q[2:5], not by {key!r}; cut columns before you upload it"
            )
        start, count, _ = sliced(key, self.shape[0])
        pieces = []
        for piece in self.pieces:
            low, high = max(start, piece.first), min(start + count, piece.first + piece.rows)
            if low < high:
                pieces.append(piece.part(low - piece.first, high - piece.first, low - start))
        return Quantized(self.device, self.kind, (count, self.shape[1]), tuple(pieces))

    def dequantize(self, dtype: object = "float32") -> Array:
        """Return the weights as a new array.

        In float32 they are what the ``gguf`` package gives, bit for bit; other types round these once.

        Args:
            dtype: float32, float16 or bfloat16.

        Raises:
            InvalidUsageError: it is closed, or no dtype.
            UnsupportedError: another dtype.
        """
        found = dtypes.resolve(dtype)
        check_float("dequantize", found)
        self.check_free()
        out = self.device.empty(self.shape, found)
        for piece in self.pieces:
            unpack(self.kind, piece, out[piece.first : piece.first + piece.rows])
        return out


def quantized(device: Device, blocks: ArrayLike | HostArray | Array, shape: tuple[int, int], kind: str) -> Quantized:
    """Return a matrix of quantised weights on a device.

    Args:
        device: where it is to live.
        blocks: uint8 of shape (rows, bytes of a row), in the layout of GGUF files: on the host, or an array of that
            device. They may be changed once the call returns.
        shape: rows and columns. Columns are a multiple of 32, of 256 for ``"q4_k"``, ``"q5_k"`` and ``"q6_k"``.
        kind: ``"q8_0"`` (34 bytes for 32 weights), ``"q4_0"`` (18), ``"q4_1"`` (20), ``"q5_0"`` (22), ``"q5_1"``
            (24); ``"q4_k"`` (144 bytes for 256), ``"q5_k"`` (176) or ``"q6_k"`` (210).

    Raises:
        InvalidUsageError: an unknown kind, columns that are no whole blocks, blocks of another shape or type, or of
            another device.
        UnsupportedError: a single row is more than the device binds at once.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> blocks = np.zeros((4, 34), np.uint8)  # Q8_0: 32 weights in 34 bytes
        >>> vkpar.quantized(device, blocks, (4, 32), "q8_0").dequantize("float32").shape
        (4, 32)
    """
    if not isinstance(device, Device):
        raise InvalidUsageError(f"quantized: device is an opened vkpar.Device, not {type(device).__name__}")
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidUsageError(f"quantized: kind is one of {', '.join(KINDS)}, not {kind!r}")
    rows, columns = _checked_shape(shape, found)
    source = _source(device, blocks, (rows, columns // found.block * found.nbytes), found)
    device.check_open()
    pieces = []
    if rows and columns:
        most = _most_rows(device, found, columns)
        for first in range(0, rows, most):
            pieces.append(_piece(device, found, source, first, min(most, rows - first), columns))
    return Quantized(device, found.name, (rows, columns), tuple(pieces))


def _checked_shape(shape: Any, kind: Kind) -> tuple[int, int]:
    dims = dimensions(shape)
    if len(dims) != 2:
        raise InvalidUsageError(f"quantized: shape is rows and columns, not {shape!r}")
    if dims[1] % kind.block:
        raise InvalidUsageError(
            f"quantized: {dims[1]} columns are no multiple of the {kind.block} weights of a block of {kind.name}"
        )
    return dims[0], dims[1]


def _source(device: Device, blocks: Any, shape: tuple[int, int], kind: Kind) -> np.ndarray[Any, Any] | Array:
    """Return the blocks, checked, on the host or on the device."""
    if isinstance(blocks, Array):
        if blocks.device is not device:
            raise InvalidUsageError(f"quantized: blocks live on {blocks.device}, not on {device}; copy them with .to()")
        blocks.check_free()
        found: np.ndarray[Any, Any] | Array = blocks
        is_bytes = blocks.dtype == "uint8"
    else:
        found = blocks.numpy() if isinstance(blocks, HostArray) else np.asarray(blocks)
        is_bytes = found.dtype == np.uint8
    if not is_bytes or found.shape != shape:
        raise InvalidUsageError(
            f"quantized: blocks of {kind.name} are uint8 of shape {shape} here ({kind.nbytes} bytes for {kind.block} "
            f"weights), not {found.dtype} of shape {found.shape}"
        )
    return found.contiguous() if isinstance(found, Array) else found


def _most_rows(device: Device, kind: Kind, columns: int) -> int:
    """Return how many rows a kernel binds at once, an even number where it is more than one."""
    limits = device.limits
    room = min(limits.max_storage_buffer_range - ALIGNMENT, limits.max_buffer // GRANULE * GRANULE)
    most = room // max(columns // kind.block * kind.nbytes, 4 * kind.row_words(columns))
    if not most:
        raise UnsupportedError(
            f"quantized: a row of {columns} weights takes more than the {room} bytes that {device} binds at once"
        )
    return most // 2 * 2 or 1


def _piece(
    device: Device, kind: Kind, source: np.ndarray[Any, Any] | Array, first: int, rows: int, columns: int
) -> Piece:
    """Upload rows of blocks, and lay them out."""
    row = columns // kind.block * kind.nbytes
    chunks = device.empty((rows, kind.row_words(columns)), "uint32")
    scales = device.empty((rows, columns // kind.block * kind.per_block), kind.scales)
    step = max(_SLAB // row // 2 * 2, 2)  # an even number, whose scales are whole words
    for start in range(0, rows, step):
        count = min(step, rows - start)
        taken = source[first + start : first + start + count]
        blocks = taken if isinstance(taken, Array) else device.array(taken)
        if blocks.reach() < blocks.size:
            blocks = blocks.copy()
        _pack(kind, blocks, chunks[start : start + count], scales[start : start + count], columns // kind.block)
    return Piece(first, rows, chunks, scales)


def _pack(kind: Kind, blocks: Array, chunks: Array, scales: Array, row: int) -> None:
    """Lay blocks out, ``row`` side by side; all are contiguous and in one binding each, and scales begin on a word."""
    count = blocks.size // kind.nbytes
    (seen, first), (written, chunks_first), (multipliers, scales_first) = (
        array.window() for array in (blocks, chunks, scales)
    )
    push = pack(abi.Pack(count, first, chunks_first, scales_first * kind.scales.itemsize // 4, row))
    together = 4 // kind.scales.itemsize
    grid = fold_groups(blocks.device, -(-count // (together * _THREADS)))
    ranges = (seen, written, multipliers)
    constants = abi.PackConstants(kind.code) if kind.code else ()
    submit("quantized", f"quantized_pack_{kind.module}", (blocks, chunks, scales), ranges, push, grid, constants)


def unpack(kind: str, piece: Piece, out: Array) -> None:
    """Store the weights of a piece in a contiguous array of their shape."""
    given = (piece.chunks, piece.scales)
    if repeat("dequantize", given, (out,), kind) is not None:
        return
    call = Call("dequantize", key_of("dequantize", given, (out,), kind), given, [out])
    chunks, scales = call.operands
    unpack_in(call, kind, piece._replace(chunks=chunks, scales=scales), call.results[0])
    call.keep()


def unpack_in(call: Call, kind: str, piece: Piece, out: Array) -> None:
    """Store the weights of a piece in a contiguous array, of a call that has both."""
    target = out if writable_in_place(out) else call.temporary(out.shape, out.dtype)
    for start, count in _reached(target):
        if count:
            _unpack(call, KINDS[kind], piece, target, start, count)
            continue
        aside = call.temporary((1, out.shape[1]), out.dtype)  # a row that lies to either side of a border
        call.forget()
        unpack_in(call, kind, piece.part(start, start + 1, 0), aside)
        landing.move(call, aside, call.view(target, target[start : start + 1]))
    landing.land(call, target, out)


def _reached(array: Array) -> Iterator[tuple[int, int]]:
    """Yield from which row on how many lie in one binding; none where the first one does not."""
    columns = array.shape[-1]
    rows, start = array.size // columns, 0
    while start < rows:
        count = min(array.reach(start * columns) // columns, rows - start)
        yield start, count
        start += max(count, 1)


def _unpack(
    call: Call, kind: Kind, piece: Piece, out: Array, start: int, count: int, numbers: Sequence[Array] = ()
) -> None:
    """Store some rows of a result of a call: those of a piece, or those of it whose ``numbers`` are given."""
    chunks, scales = piece.chunks, piece.scales
    columns = out.shape[-1]
    (seen, chunk), (multipliers, scale) = (
        array.window() if numbers else array.window(start * array.shape[1], count * array.shape[1])
        for array in (chunks, scales)
    )
    written, first = out.window(start * columns, count * columns)
    indices, index = window(numbers[0], start, count) if numbers else (seen, 0)
    total = count * columns
    push = pack(abi.Unpack(total, chunk, scale // kind.per_block, first, columns // 4, chunks.shape[0], index))
    is_signed = bool(numbers) and numbers[0].dtype == dtypes.int32
    constants = abi.UnpackConstants(FLOATS[out.dtype.name], first % 4 == 0, bool(numbers), is_signed, kind.code)
    arrays, ranges = (chunks, scales, out, *(numbers or (chunks,))), (seen, multipliers, written, indices)
    call.dispatch(f"quantized_unpack_{kind.module}", arrays, ranges, push, -(-total // GROUP), constants)


def take_rows(q: Quantized, indices: Array, out: Array | None) -> Array:
    """Return rows of quantised weights by their numbers, as :func:`vkpar.take` says."""
    if len(q.pieces) == 1:
        made = repeat("take", (q.pieces[0].chunks, q.pieces[0].scales, indices), (out,), q.kind)
        if made:
            return made[0]
    check_arrays("take", out, indices=indices)
    q.check_free()
    if indices.device is not q.device:
        raise InvalidUsageError(
            f"take: {indices!r} and {q!r} live on different devices; copy one over with .to(device)"
        )
    if indices.dtype.name not in INTEGERS:
        raise UnsupportedError(f"take: indices are {' or '.join(INTEGERS)}, not {indices.dtype}; cast them")
    result_type = dtypes.float32 if out is None else out.dtype
    check_float("take", result_type)
    shape = (*indices.shape, q.shape[1])
    if out is not None:
        check_out("take", out, shape, result_type)
        check_overlap("take", out, indices, in_place=False)
    if len(q.pieces) > 1:
        raise UnsupportedError(f"take: a kernel of {q.device} cannot see a table of {q.nbytes} bytes at once")
    result = q.device.empty(shape, result_type) if out is None else out
    if result.size and q.size:
        _take(q, indices, result, out)
    elif result.size:
        result.fill(math.nan)
    return result


def _take(q: Quantized, indices: Array, result: Array, out: Array | None) -> None:
    """Store rows by their numbers; ``out`` is what the caller gave for them."""
    piece = q.pieces[0]
    key = key_of("take", (piece.chunks, piece.scales, indices), (out,), q.kind)
    call = Call("take", key, (piece.chunks, piece.scales, indices), [result])
    chunks, scales, given = call.operands
    made = target = call.results[0]
    if not (result.is_contiguous and writable_in_place(result)) or any(not count for _, count in _reached(result)):
        target = call.temporary(result.shape, result.dtype)
    numbers, named = landing.packed(call, given), piece._replace(chunks=chunks, scales=scales)
    for start, count in _reached(target):
        if not count:
            raise UnsupportedError(f"take: a row of {q.shape[1]} elements lies over several buffers of {q.device}")
        _unpack(call, KINDS[q.kind], named, target, start, count, (numbers,))
    landing.land(call, target, made)
    call.keep()
