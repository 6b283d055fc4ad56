"""Scaled dot-product attention."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.arrays.layout import broadcast_strides
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops import rows as row_kernels
from vkpar.ops._calls import Call, key_of, pack, repeat
from vkpar.ops._launch import (
    FLOATS,
    INTEGERS,
    SHORT,
    check_arrays,
    check_float,
    check_number,
    check_out,
    check_overlap,
)
from vkpar.ops.cores import offers
from vkpar.ops.folding import ceil_power, most_invocations, on_cpu
from vkpar.ops.kvcache import KVCache
from vkpar.ops.matvec import WARP, has_warps
from vkpar.ops.occupancy import units_of
from vkpar.ops.strided import bind, stand_in
from vkpar.ops.strided import whole as whole_of

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.physical import DeviceInfo

_MOST_WIDTH: Final = 512
_LEAST_THREADS: Final = 64
_SMALL: Final = "attention_small"
_CORES: Final = "attention_cores"
_CORES_CONVERTING: Final = "attention_cores2"
_TILED: Final = "attention_tiled"
_TILED_THREADS: Final = 128
_MOST_TILED: Final = 128  # elements of a row
_TILED_SHARED: Final = 28_672  # bytes of shared memory
_MOST_OF_CORES: Final = 256  # elements of a row
_MOST_TURNS: Final = 50_000  # of loops in an invocation on CPU drivers: some stop at 65,535
_MOST_SPLITS: Final = 64
_KEYS_PER_ROW: Final = 64  # that a work-group of matrix cores takes while a part's sums of a row are stored and read
_WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates


@dataclass(frozen=True)
class Tuning:
    """How attention is spread over a GPU.

    Attributes:
        threads: invocations of a work-group.
        part: the least keys of a part.
        groups: work-groups that a compute unit is to have, where the keys suffice and matrix cores do not serve.
        rows: queries that a work-group takes at most, where matrix cores do not serve: 1, 4 or 8.
        cores: from so many queries of a head of keys on, matrix cores serve.
        keys: of a tile of theirs at most, a multiple of 16.
        core_threads: invocations of their work-groups at most: 128 or 256.
        tiled: from so many queries on, tiles of queries serve where these do not.
    """

    threads: int = 128
    part: int = 128
    groups: int = 6
    rows: int = 8
    cores: int = 9
    keys: int = 32
    core_threads: int = 256
    tiled: int = 24


tuning = Tuning()


def attention(
    q: Array,
    k: Array | KVCache,
    v: Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Array | None = None,
    lengths: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Return ``softmax(scale * q @ k.T + mask) @ v`` for each head, computed in float32 and rounded once.

    Matrix cores round the weights of a query to halves, 2^-11 or 2^-8 of themselves, before they meet the values.

    Scores are kept for a tile of keys alone, never for all of them: the softmax is computed as the keys go by (Milakov
    and Gimelshein, 2018; Dao and others, 2022). Heads of ``q`` may share those of ``k`` and ``v``, as many each: head h
    takes head ``h // (heads // kv_heads)``. Views whose rows lie apart are taken where they lie, ``out`` too.

    A query that sees no key is zeros. A score of -inf counts as a key that is not seen; one of NaN or +inf makes its
    query NaN. Keys past ``lengths`` are never looked at. A NaN or an infinity among the values of a key that is hidden
    by ``causal`` or ``mask`` may make queries NaN.

    Args:
        q: (heads, T, width) or (batch, heads, T, width); float32, float16 or bfloat16; width up to 512.
        k: (kv_heads, S, width), or with a leading batch; or a :class:`KVCache`, of which as many tokens count as it
            holds when the work runs.
        v: of ``k``'s shape and type; None with a cache.
        causal: the last query sees all keys, the one before it all but the last one, and so on.
        scale: of the scores; ``width ** -0.5`` by default.
        mask: added to the scores, floats of a shape that is broadcast to (batch, heads, T, S); -inf hides a key.
        lengths: int32 or uint32 on the device: how many keys count, the first ones. One element, or one for each of the
            batch. More than there are counts as all, less than none as none.
        out: where the result goes, of ``q``'s shape and type, in other memory.

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; shapes that do not fit; a wrong ``out``, or
            one that shares memory with an operand.
        UnsupportedError: a type that devices do not compute, rows that are too wide, an array that a kernel cannot see
            at once.
    """
    if isinstance(k, KVCache):
        if v is not None:
            raise InvalidUsageError("attention: a KVCache stands for k and v; leave v out")
        lengths = k.length if lengths is None else lengths
        cache = k
        k, v = cache.k, cache.v
    operands = (q, k, v, mask, lengths)
    done = repeat("attention", operands, (out,), causal, scale)
    if done is not None:
        return done[0]
    if v is None:
        raise InvalidUsageError("attention: v is missing; only a KVCache stands for k and v")
    given = {
        name: array
        for name, array in zip(("q", "k", "v", "mask", "lengths"), operands, strict=True)
        if array is not None
    }
    check_arrays("attention", out, **given)
    _check(q, k, v, mask, lengths)
    factor = q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else scale or 0.0
    check_number("attention", "scale", factor)
    if out is not None:
        check_out("attention", out, q.shape, q.dtype)
        check_overlap("attention", out, *given.values(), in_place=False)
    key = key_of("attention", operands, (out,), causal, scale)
    made = q.device.empty(q.shape, q.dtype) if out is None else out
    if not made.size:
        return made
    if not k.size:
        made.fill_zeros()
        return made
    call = Call("attention", key, tuple(given.values()), (made,))
    named = dict(zip(given, call.operands, strict=True))
    _Attention(call, named, causal=bool(causal), scale=float(factor)).run()
    call.keep()
    return made


def _check(q: Array, k: Array, v: Array, mask: Array | None, lengths: Array | None) -> None:
    """Raise unless the operands' types and shapes fit."""
    check_float("attention", q.dtype, k.dtype, v.dtype)
    if q.ndim not in (3, 4):
        raise InvalidUsageError(f"attention: q is (heads, T, width) or (batch, heads, T, width), not {q.shape}")
    if k.shape != v.shape or k.dtype != v.dtype:
        raise InvalidUsageError(
            f"attention: k and v have one shape and type, not {k.shape} {k.dtype} and {v.shape} {v.dtype}"
        )
    fits = k.ndim == q.ndim and k.shape[:-3] == q.shape[:-3] and k.shape[-1] == q.shape[-1]
    if not fits or not k.shape[-3] or q.shape[-3] % k.shape[-3]:
        raise InvalidUsageError(
            f"attention: k and v {k.shape} do not fit q {q.shape}: they are (..., kv_heads, S, width), and kv_heads "
            "divides the heads of q"
        )
    if q.shape[-1] > _MOST_WIDTH:
        raise UnsupportedError(f"attention: rows have {q.shape[-1]} elements, and kernels take {_MOST_WIDTH} at most")
    if mask is not None:
        check_float("attention", mask.dtype)
        wanted = (*q.shape[:-1], k.shape[-2])
        try:
            broadcast_strides(mask.shape, mask.strides, wanted)
        except InvalidUsageError as error:
            raise InvalidUsageError(f"attention: mask {mask.shape} cannot be broadcast to {wanted}") from error
    if lengths is not None:
        if lengths.dtype.name not in INTEGERS:
            raise UnsupportedError(f"attention: lengths are {' or '.join(INTEGERS)}, not {lengths.dtype}; cast them")
        if lengths.shape not in ((1,), q.shape[: q.ndim - 3]):
            raise InvalidUsageError(f"attention: lengths are (1,) or one for each of the batch, not {lengths.shape}")


class _Bound(NamedTuple):
    """What a kernel binds of an operand that may be missing.

    Attributes:
        array: what is bound, by ``range``; another operand where it is missing.
        code: what the kernel is told of its type.
        words: its first element and its steps.
    """

    array: Array
    range: BufferRange
    code: int = 0
    words: tuple[int, ...] = ()


class _Attention:
    """A checked call.

    Args:
        call: of which the dispatches are a part.
        operands: its operands by name.
        causal: see :func:`attention`.
        scale: alike.
    """

    def __init__(self, call: Call, operands: dict[str, Array], *, causal: bool, scale: float) -> None:
        self._call, self._causal, self._scale = call, causal, scale
        self._q, self._k, self._v = (operands[name] for name in "qkv")
        self._mask, self._lengths = operands.get("mask"), operands.get("lengths")
        *batch, self._heads, self._tokens, self._width = self._q.shape
        self._batch = batch[0] if batch else 1
        self._kv_heads, self._keys = self._k.shape[-3:-1]
        self._chunks = -(-self._width // 8)

    def run(self) -> None:
        """Dispatch."""
        call, device = self._call, self._call.device
        grouped = self._heads // self._kv_heads
        queries = grouped * self._tokens
        kernel = _kernel_for(device, queries, self._q.dtype.name, self._k.dtype.name, self._width)
        blocks = -(-queries // kernel.rows)
        splits = self._splits(kernel, self._batch * self._kv_heads * blocks)
        target = stand_in(call, call.results[0])
        if splits > 1:
            count = self._batch * self._heads * self._tokens * splits
            sums = call.temporary((1, 1, count * (8 * self._chunks + 2)), dtypes.float32)
            self._multiply(kernel, blocks, splits, sums, split=True)
            self._combine(sums, splits, target)
        else:
            self._multiply(kernel, blocks, 1, target, split=False)
        row_kernels.settle(call, target, call.results[0])

    def _splits(self, kernel: _Kernel, groups: int) -> int:
        """Return in how many parts the keys are cut, where ``groups`` work-groups take whole rows."""
        if kernel.name == _SMALL:
            return -(-self._keys * (130 + 2 * self._chunks) // (64 * _MOST_TURNS))
        units = units_of(self._call.device.info)
        wanted = -(-tuning.groups * units // groups)
        if kernel.name.startswith(_CORES):  # one of their groups fills a unit; s parts take keys / s + s * rows / 64
            rows = self._batch * self._heads * self._tokens
            wanted = min(units // groups, math.isqrt(_KEYS_PER_ROW * self._keys // rows))
        return max(min(wanted, -(-self._keys // tuning.part), _MOST_SPLITS), 1)

    def _multiply(self, kernel: _Kernel, blocks: int, splits: int, out: Array, *, split: bool) -> None:
        """Run the kernel that reads keys and values; ``split``: what it stores are the sums of parts."""
        call = self._call
        q, k, v = (bind(call, array) for array in (self._q, self._k, self._v))
        mask = _Bound(q.array, q.range) if self._mask is None else self._bind_mask(self._mask)
        lengths = _Bound(q.array, q.range) if self._lengths is None else self._bind_lengths(self._lengths)
        result = bind(call, out)
        bound = (q, k, v, mask, lengths, result)
        whole = 16 // self._k.dtype.itemsize
        constants = (
            kernel.threads,
            self._width,
            FLOATS[self._q.dtype.name],
            FLOATS[out.dtype.name],
            k.multiples(whole) and v.multiples(whole),
            q.multiples(4),
            split or result.multiples(4),
            self._causal,
            self._mask is not None,
            mask.code,
            lengths.code,
            split,
            *kernel.more,
        )
        push = pack(
            self._batch,
            self._kv_heads,
            self._heads // self._kv_heads,
            self._tokens,
            self._keys,
            blocks,
            splits,
            self._scale,
            *(word for each in (q, k, v, result) for word in each.words),
            *(mask.words or (0,) * 5),
            *(lengths.words or (0,) * 2),
        )
        cost = 2 * self._batch * self._heads * self._tokens * self._keys * self._width // _WORK_PER_NS
        name = f"{kernel.name}_{SHORT[self._k.dtype.name]}"
        arrays, ranges = [each.array for each in bound], [each.range for each in bound]
        call.dispatch(name, arrays, ranges, push, self._batch * self._kv_heads * blocks * splits, constants, cost)

    def _bind_mask(self, mask: Array) -> _Bound:
        if min(mask.strides, default=0) < 0:
            self._call.forget()
            mask = mask.contiguous()
        wanted = (self._batch, self._heads, self._tokens, self._keys)
        flat, seen, first = whole_of(self._call, mask)
        steps = broadcast_strides(mask.shape, mask.strides, wanted)
        return _Bound(flat, seen, FLOATS[mask.dtype.name], (first, *steps))

    def _bind_lengths(self, lengths: Array) -> _Bound:
        if not lengths.is_contiguous:
            self._call.forget()
            lengths = lengths.contiguous()
        seen, first = lengths.window()
        return _Bound(lengths, seen, 2 if lengths.dtype == dtypes.int32 else 1, (first, int(lengths.size > 1)))

    def _combine(self, sums: Array, splits: int, out: Array) -> None:
        call, device = self._call, self._call.device
        result = bind(call, out)
        quads = 2 * self._chunks
        lanes = ceil_power(quads)
        threads = max(lanes, _LEAST_THREADS if on_cpu(device) else min(256, most_invocations(device)))
        count = self._batch * self._heads * self._tokens
        made, _ = sums.window()
        push = pack(
            count,
            self._heads,
            self._tokens,
            self._width,
            quads,
            count * splits * quads * 2,
            *result.words,
        )
        constants = (threads, lanes, splits, FLOATS[result.array.dtype.name], result.multiples(4))
        call.dispatch("attention_combine", (sums, result.array), (made, result.range), push, count, constants)


class _Kernel(NamedTuple):
    """Which kernel runs, and how.

    Attributes:
        name: of the kernel, but for the type of the keys.
        threads: invocations of a work-group.
        rows: queries that a work-group takes.
        more: further constants of the kernel.
    """

    name: str
    threads: int
    rows: int
    more: tuple[int, ...] = ()


def _kernel_for(device: Device, queries: int, q_type: str, k_type: str, width: int) -> _Kernel:
    """Return the kernel for so many queries that share a head of keys."""
    if queries >= tuning.cores and q_type == k_type:
        cores = _cores(device.info, k_type, width)
        if cores is not None:
            return cores
    chunks = -(-width // 8)
    limits = device.limits
    threads = min(tuning.threads, limits.max_workgroup_invocations)
    if on_cpu(device) or threads < 2 * _LEAST_THREADS:
        return _Kernel(_SMALL, max(_LEAST_THREADS, ceil_power(2 * chunks)), 1)
    if queries >= tuning.tiled and width <= _MOST_TILED and limits.max_shared_memory >= _TILED_SHARED:
        return _Kernel(_TILED, _TILED_THREADS, 64)
    warps = has_warps(device.info, "vote", "shuffle") and chunks <= WARP and threads % WARP == 0
    shared = _shared_of_warps if warps else _shared_of_tiles
    rows = 1 if queries == 1 else 4 if queries <= 4 else tuning.rows
    while rows > 1 and shared(threads, rows, chunks) > limits.max_shared_memory:
        rows = 4 if rows == 8 else 1
    if warps:
        return _Kernel(f"attention_warps_rows{rows}", threads, rows, (16 if chunks <= 16 else 32, WARP))
    return _Kernel(f"attention_rows{rows}", threads, rows)


def _shared_of_tiles(threads: int, rows: int, chunks: int) -> int:
    """Return the bytes of shared memory of shaders/attention.comp."""
    each = 2 if rows == 8 else 4
    return 32 * rows * chunks + 4 * threads * (max(rows * each, 8) + rows * each // 4 + 2) + 64


def _shared_of_warps(threads: int, rows: int, chunks: int) -> int:
    """Return the bytes of shared memory of shaders/attention_warps.comp."""
    return threads // WARP * rows * (32 * chunks + 8) + 64


def _cores(info: DeviceInfo, dtype: str, width: int) -> _Kernel | None:
    """Return the kernel of matrix cores for rows of a type; None where the device does not run it."""
    warp, limits = info.features.subgroup_size, info.limits
    kinds = (_CORES_CONVERTING, _CORES)
    kind = next((kind for kind in kinds if offers(info, f"{kind}_t128_{SHORT[dtype]}", dtype)), None)
    if kind is None or warp not in (16, 32, 64) or width > _MOST_OF_CORES:
        return None
    pitch = 2 * -(-width // 16) + 1
    most = tuning.keys if width <= _MOST_TILED else 16  # the sums of wider rows leave no registers for more
    for threads, keys in itertools.product(dict.fromkeys((tuning.core_threads, 128)), dict.fromkeys((most, 16))):
        rows = threads // warp * 16
        units = max(4 * keys * pitch + rows * 4, rows * 9)
        if threads <= limits.max_workgroup_invocations and 16 * units + 8 * rows <= limits.max_shared_memory:
            return _Kernel(f"{kind}_t{threads}", threads, rows, (keys, warp))
    return None
