"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import attention as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.layout import broadcast_strides
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.attention import kernels
from vkpar.ops.attention.form import Kernel
from vkpar.ops.attention.kvcache import KVCache
from vkpar.ops.call import kept, landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import (
    FLOATS,
    INTEGERS,
    SHORT,
    check_arrays,
    check_float,
    check_number,
    check_out,
    check_overlap,
)
from vkpar.ops.call.strided import bind, stand_in
from vkpar.ops.call.strided import whole as whole_of
from vkpar.ops.call.work import WORK_PER_NS, ceil_power

if TYPE_CHECKING:
    from vkpar.vulkan.memory.buffer import BufferRange

MOST_WIDTH: Final = 512


def attention(
    q: Array,
    k: Array | KVCache,
    v: Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Array | None = None,
    lengths: Array | None = None,
    window: int | None = None,
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
        window: how many keys a query sees at most, the last ones of those that it would see. What lies before the
            windows of all queries is not read. None for no limit.
        out: where the result goes, of ``q``'s shape and type, in other memory.

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; shapes that do not fit; a wrong ``out``, or
            one that shares memory with an operand.
        UnsupportedError: a type that devices do not compute, rows that are too wide, an array that a kernel cannot see
            at once.

    Examples:
        >>> q = device.ones((2, 3, 8))  # (heads, tokens, width)
        >>> vkpar.attention(q, q, q, causal=True).numpy().round(3).max().item()
        1.0
    """
    if isinstance(k, KVCache):
        if v is not None:
            raise InvalidUsageError("attention: a KVCache stands for k and v; leave v out")
        lengths = k.length if lengths is None else lengths
        cache = k
        k, v = cache.k, cache.v
    operands = (q, k, v, mask, lengths)
    done = repeat("attention", operands, (out,), causal, scale, window)
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
    if window is not None and (type(window) is not int or window < 1):
        raise InvalidUsageError(f"attention: window is a whole number from 1, not {window!r}")
    factor = q.shape[-1] ** -0.5 if scale is None and q.shape[-1] else scale or 0.0
    check_number("attention", "scale", factor)
    if out is not None:
        check_out("attention", out, q.shape, q.dtype)
        check_overlap("attention", out, *given.values(), in_place=False)
    made = q.device.empty(q.shape, q.dtype) if out is None else out
    if not made.size:
        return made
    if not k.size:
        made.fill_zeros()
        return made
    key = key_of("attention", operands, (out,), causal, scale, window)
    call = Call("attention", key, tuple(given.values()), (made,))
    named = dict(zip(given, call.operands, strict=True))
    seen = k.shape[-2] if window is None else min(window, k.shape[-2])
    _Attention(call, named, _way_for(q, k, seen), causal=bool(causal), scale=float(factor), window=seen).run()
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
    if q.shape[-1] > MOST_WIDTH:
        raise UnsupportedError(f"attention: rows have {q.shape[-1]} elements, and kernels take {MOST_WIDTH} at most")
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


class _Way(NamedTuple):
    """How a call runs.

    Attributes:
        kernel: by which kernel.
        blocks: of queries that share a head of keys.
        splits: parts of the keys.
        counted: blocks that have a counter, of all heads and batches.
    """

    kernel: Kernel
    blocks: int
    splits: int
    counted: int


def _way_for(q: Array, k: Array, window: int) -> _Way:
    *batch, heads, tokens, width = q.shape
    kv_heads, keys = k.shape[-3:-1]
    queries = heads // kv_heads * tokens
    kernel = kernels.kernel_for(q.device, queries, q.dtype.name, k.dtype.name, width)
    blocks = -(-queries // kernel.rows)
    groups = math.prod(batch) * kv_heads * blocks
    keys = min(keys, window + -(-kernel.rows * kv_heads // heads))  # that the queries of a group see
    splits = kernels.splits_for(q.device, kernel, groups, math.prod(batch) * heads * tokens, keys, width)
    return _Way(kernel, blocks, splits, groups if splits > 1 and kernel.finishes else 0)


class _Attention:
    """A checked call.

    Args:
        call: of which the dispatches are a part.
        operands: its operands by name.
        way: how it runs.
        causal: see :func:`attention`.
        scale: alike.
        window: alike; all keys for none.
    """

    def __init__(
        self, call: Call, operands: dict[str, Array], way: _Way, *, causal: bool, scale: float, window: int
    ) -> None:
        self._call, self._way, self._causal, self._scale, self._window = call, way, causal, scale, window
        self._q, self._k, self._v = (operands[name] for name in "qkv")
        self._mask, self._lengths = operands.get("mask"), operands.get("lengths")
        *batch, self._heads, self._tokens, self._width = self._q.shape
        self._batch = batch[0] if batch else 1
        self._kv_heads, self._keys = self._k.shape[-3:-1]
        self._chunks = -(-self._width // 8)

    def run(self) -> None:
        """Dispatch."""
        call, splits = self._call, self._way.splits
        target = stand_in(call, call.results[0])
        if splits > 1:
            count = self._batch * self._heads * self._tokens * splits
            sums = call.temporary((1, 1, count * (8 * self._chunks + 2)), dtypes.float32)
            self._multiply(target, sums)
            if not self._way.kernel.finishes:
                self._combine(sums, splits, target)
        else:
            self._multiply(target, None)
        landing.land(call, target, call.results[0])

    def _multiply(self, target: Array, sums: Array | None) -> None:
        """Run the kernel that reads keys and values; ``sums``: where it stores what parts of them make."""
        call = self._call
        q, k, v = (bind(call, array) for array in (self._q, self._k, self._v))
        mask = _Bound(q.array, q.range, words=(0,) * 5) if self._mask is None else self._bind_mask(self._mask)
        lengths = (
            _Bound(q.array, q.range, words=(0,) * 2) if self._lengths is None else self._bind_lengths(self._lengths)
        )
        kernel, blocks, splits, counted = self._way
        out = target if sums is None or kernel.finishes else sums
        result = bind(call, out)
        seen = [(each.array, each.range) for each in (q, k, v, mask, lengths, result)]
        if kernel.finishes:
            counters = call.table(kept.counters(call.device, counted)) if counted else None
            seen += [seen[-1] if array is None else (array, array.window()[0]) for array in (sums, counters)]
        whole = 16 // self._k.dtype.itemsize
        own = abi.AttentionConstants(
            threads=kernel.threads,
            width=self._width,
            q_type=FLOATS[self._q.dtype.name],
            o_type=FLOATS[out.dtype.name],
            v_wide=k.multiples(whole) and v.multiples(whole),
            q_wide=q.multiples(4),
            o_wide=out is sums or result.multiples(4),
            causal=self._causal,
            masked=self._mask is not None,
            m_type=mask.code,
            lengths=lengths.code,
            split=sums is not None,
            windowed=self._window < self._keys,
        )
        grouped = self._heads // self._kv_heads
        sizes = (self._batch, self._kv_heads, grouped, self._tokens, self._keys, blocks, splits)
        steps = (q, k, v, result, mask, lengths)
        words = [*(word for each in steps for word in each.words), self._window]
        push = pack(abi.Attention(*sizes, float(self._scale), *words))
        constants = (*own, *kernel.more)
        cost = 2 * self._batch * self._heads * self._tokens * self._window * self._width // WORK_PER_NS
        name = f"{kernel.name}_{SHORT[self._k.dtype.name]}"
        arrays, ranges = zip(*seen, strict=True)
        call.dispatch(name, arrays, ranges, push, self._batch * self._kv_heads * blocks * splits, constants, cost)

    def _bind_mask(self, mask: Array) -> _Bound:
        if min(mask.strides, default=0) < 0:
            mask = landing.packed(self._call, mask)
        wanted = (self._batch, self._heads, self._tokens, self._keys)
        flat, seen, first = whole_of(self._call, mask)
        steps = broadcast_strides(mask.shape, mask.strides, wanted)
        return _Bound(flat, seen, FLOATS[mask.dtype.name], (first, *steps))

    def _bind_lengths(self, lengths: Array) -> _Bound:
        if not lengths.is_contiguous:
            lengths = landing.packed(self._call, lengths)
        seen, first = lengths.window()
        return _Bound(lengths, seen, 2 if lengths.dtype == dtypes.int32 else 1, (first, int(lengths.size > 1)))

    def _combine(self, sums: Array, splits: int, out: Array) -> None:
        call = self._call
        result = bind(call, out)
        quads = 2 * self._chunks
        lanes = ceil_power(quads)
        threads = kernels.combining(call.device, self._width)
        count = self._batch * self._heads * self._tokens
        made, _ = sums.window()
        first = count * splits * quads * 2
        push = pack(abi.Combine(count, self._heads, self._tokens, self._width, quads, first, *result.words))
        o_type = FLOATS[result.array.dtype.name]
        constants = abi.CombineConstants(threads, lanes, splits, o_type, result.multiples(4))
        call.dispatch("attention_combine", (sums, result.array), (made, result.range), push, count, constants)
