"""Keys and values of the tokens so far, appended on the device."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from vkpar import dtypes
from vkpar.abi import attention as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays.making import full
from vkpar.ops.call import landing
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
from vkpar.ops.call.strided import bind, stand_in, takes
from vkpar.ops.call.windows import GROUP
from vkpar.ops.rows.norms import rms_norm
from vkpar.ops.rows.rope import Scaling, check_style, known_table, rope, table_of
from vkpar.unpickled import Fixed, Unpickled

if TYPE_CHECKING:
    from vkpar.device import Device

Norms = tuple[Array, Array, float]
"""Weights of a norm of each head of queries, those of one of keys, and what is added to the mean of squares."""

PITCH: Final = 8  # elements that rows are a multiple of, so that kernels read 16 bytes at once


class KVCache(Fixed, Unpickled):
    """The keys and values of one sequence on a device, which :func:`vkpar.attention` takes in place of both.

    Attributes:
        device: where it lies.
        kv_heads: heads of keys and values; ``tokens`` that it has room for, ``width`` elements of a head.
        dtype: of what it stores.
        k: the keys, (kv_heads, tokens, width); ``v`` the values. Zeros where nothing was stored yet.
        length: uint32, one element: how many tokens it holds, on the device. ``append`` sets it.

    Args:
        device: where it lies.
        kv_heads: heads of keys and values.
        tokens: how many it has room for.
        width: elements of a head.
        dtype: float16, bfloat16 or float32.

    Raises:
        InvalidUsageError: a number below 1.
        UnsupportedError: another type.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> cache = vkpar.KVCache(device, kv_heads=2, tokens=16, width=8)
    """

    _apart = 0  # rows of keys from one text to the next: there is one
    _base: Array | None = None  # position of the first row, uint32; None where that is 0

    def __init__(self, device: Device, kv_heads: int, tokens: int, width: int, dtype: object = "float16") -> None:
        self._take_sizes(device, kv_heads, tokens, width, dtype)
        shape = self.kv_heads, self.tokens, self._pitch
        self._hold(device.zeros(shape, self.dtype), device.zeros(shape, self.dtype))

    def _hold(self, keys: Array, values: Array, texts: int = 1) -> None:
        """Take the rows of keys and values, each as long as the pitch, of so many texts."""
        self._rows = keys, values
        self.k, self.v = (rows[..., : self.width] for rows in self._rows)
        self.length = self.device.zeros(texts, "uint32")

    def _take_sizes(self, device: Device, kv_heads: int, tokens: int, width: int, dtype: object) -> None:
        self.device, self.dtype = device, dtypes.resolve(dtype)
        check_float("KVCache", self.dtype)
        try:
            self.kv_heads, self.tokens, self.width = map(operator.index, (kv_heads, tokens, width))
        except TypeError:
            raise InvalidUsageError("KVCache: kv_heads, tokens and width are whole numbers") from None
        if min(self.kv_heads, self.tokens, self.width) < 1:
            raise InvalidUsageError(f"KVCache: kv_heads, tokens and width are 1 or more: {kv_heads}, {tokens}, {width}")
        self._pitch = -(-self.width // PITCH) * PITCH

    def append(self, k: Array, v: Array, positions: Array | int) -> None:
        """Store rows of keys and values, converted to the cache's type, in program order.

        The number of tokens held becomes the last position and one: a smaller position than before makes the cache
        shorter. Rows whose position is past the end are dropped, and ``length`` stays at ``tokens`` at most.

        Args:
            k: (kv_heads, T, width), any float type that devices compute. Views whose rows lie apart are taken as they
                lie.
            v: of ``k``'s shape.
            positions: int32 or uint32 on the device, of one element: where the first row goes, the others after it;
                or of T elements, rising, where each goes. A number is checked here.

        Raises:
            InvalidUsageError: not arrays, closed ones, several devices; wrong shapes; more tokens than the cache has
                room for, as far as the host knows; arrays that share memory with the cache.
            UnsupportedError: a type that devices do not compute; an array that a kernel cannot see at once.
        """
        places = self._places(k, positions) if isinstance(positions, int) else positions
        outs, operands = (*self._rows, self.length), (k, v, places, self._base)
        if repeat("KVCache.append", operands, outs, self.width) is not None:
            return
        check_arrays("KVCache.append", self._rows[0], k=k, v=v, positions=places)
        check_arrays("KVCache.append", self.length, v=self._rows[1])
        self._check(k, v, places)
        if not k.size:
            return
        key = key_of("KVCache.append", operands, outs, self.width)
        call = Call("KVCache.append", key, [array for array in operands if array is not None], outs)
        self._launch(call)
        call.keep()

    def rope_append(
        self,
        qkv: Array,
        positions: Array,
        theta: float = 10000.0,
        *,
        scaling: Scaling = None,
        style: str = "llama",
        width: int | None = None,
        norms: Norms | None = None,
        out: Array | None = None,
    ) -> Array:
        """Turn queries and keys by their positions, store keys and values there, and return the queries.

        The same, bit for bit, as :func:`vkpar.rope` of both and :meth:`append`, in one kernel where heads are
        multiples of four elements. With ``norms`` as these after :func:`vkpar.rms_norm` of queries and of keys, which
        rounds nothing to the type of ``qkv`` where it belongs to the kernel: where heads are a power of two, too.

        Args:
            qkv: (T, (heads + 2 kv_heads) * width of a head), of each row the heads of queries, then those of keys, then
                those of values; any float type that devices compute.
            positions: (T,), as :func:`vkpar.rope` and :meth:`append` take them.
            theta: as :func:`vkpar.rope` takes it, which says what the next ones are, too.
            scaling: of the frequencies.
            style: how elements are paired.
            width: how many elements of a head are turned.
            norms: of each head before it is turned: weights (width of a head,) of queries, those of keys, and epsilon;
                None for none.
            out: where the queries go, (heads, T, width of a head) of ``qkv``'s type.

        Raises:
            InvalidUsageError: as these two do; rows that are no whole number of heads.
            UnsupportedError: as these two do.
        """
        table, outs = known_table(self.k, theta, scaling, width), (*self._rows, self.length, out)
        if norms is not None and len(norms) != 3:
            raise InvalidUsageError(f"KVCache.rope_append: norms are two weights and epsilon, not {len(norms)} things")
        *weights, eps = (None, None, 0.0) if norms is None else norms
        options = style, self.width, eps
        if table is not None:
            done = repeat("KVCache.rope_append", (qkv, positions, table, self._base, *weights), outs, *options)
            if done is not None:
                return done[-1]
        heads = self._check_fused(qkv, positions, style, out, norms)
        if table is None:
            table = table_of(self.k, theta, scaling, width)
        made = qkv.device.empty((heads, len(qkv), self.width), qkv.dtype) if out is None else out
        if not qkv.size:
            return made
        operands = (qkv, positions, table, self._base, *weights)
        key = key_of("KVCache.rope_append", operands, outs, *options)
        given = [array for array in operands if array is not None]
        call = Call("KVCache.rope_append", key, given, (*self._rows, self.length, made))
        turning = table.size // 2  # pairs
        direct = heads and takes(qkv) and stand_in(call, call.results[-1]) is call.results[-1]
        if direct and self.width % 4 == 0 and turning % 2 == 0 and (norms is None or _in_kernel(norms)):
            self._launch_fused(call, heads, turning, eps, neox=style == "neox")
            call.keep()
            return made
        rows = qkv.reshape(len(qkv), heads + 2 * self.kv_heads, self.width).transpose(1, 0, 2)
        q, k, v = rows[:heads], rows[heads : heads + self.kv_heads], rows[heads + self.kv_heads :]
        if norms is not None:
            q, k = (rms_norm(each, weight, eps) for each, weight in ((q, norms[0]), (k, norms[1])))
        self.append(rope(k, positions, theta, scaling=scaling, style=style, width=width), v, positions)
        return rope(q, positions, theta, scaling=scaling, style=style, width=width, out=made)

    def _check_fused(self, qkv: Array, positions: Array, style: str, out: Array | None, norms: Norms | None) -> int:
        """Check fused rows, and return how many heads of queries they have."""
        name = "KVCache.rope_append"
        weights = {} if norms is None else {"norms[0]": norms[0], "norms[1]": norms[1]}
        check_number(name, "epsilon", 0.0 if norms is None else norms[2])
        check_arrays(name, out, qkv=qkv, positions=positions, **weights)
        for weight in weights.values():
            check_float(name, weight.dtype)
            if weight.shape != (self.width,):
                raise InvalidUsageError(f"{name}: weights of norms are {(self.width,)}, not {weight.shape}")
        check_arrays(name, self._rows[0], qkv=qkv)
        check_arrays(name, self.length, v=self._rows[1])
        check_float(name, qkv.dtype)
        check_style(style)
        heads = 0 if qkv.ndim != 2 else qkv.shape[1] // self.width - 2 * self.kv_heads
        if qkv.ndim != 2 or qkv.shape[1] % self.width or heads < 0:
            raise InvalidUsageError(
                f"{name}: qkv is (T, (heads + 2 * {self.kv_heads}) * {self.width}), not {qkv.shape}"
            )
        self._check_count(name, len(qkv), positions)
        if positions.dtype.name not in INTEGERS:
            raise UnsupportedError(f"{name}: positions are {' or '.join(INTEGERS)}, not {positions.dtype}; cast them")
        if positions.shape != (len(qkv),):
            raise InvalidUsageError(f"{name}: positions are {(len(qkv),)}, not {positions.shape}")
        if out is not None:
            check_out(name, out, (heads, len(qkv), self.width), qkv.dtype)
        for target in (*self._rows, self.length, *([] if out is None else [out])):
            check_overlap(name, target, qkv, positions, *weights.values(), in_place=False)
        if out is not None:
            for target in (*self._rows, self.length):
                check_overlap(name, target, out, in_place=False)
        return heads

    def _launch_fused(self, call: Call, heads: int, turning: int, eps: float, *, neox: bool) -> None:
        qkv, _, table, *others = call.operands
        base, weights = ([], others) if self._base is None else (others[:1], others[1:])
        weights = [landing.packed(call, weight) for weight in weights]
        source, places = bind(call, qkv), landing.packed(call, call.operands[1])
        targets = [bind(call, result) for result in call.results]
        bases = base[0] if base else places
        (seen, p_first), (numbers, _), (based, b_first) = places.window(), table.window(), bases.window()
        _, head, token = targets[-1].steps
        first, step = source.first, source.steps[-1]
        signed, q_first = int(places.dtype == dtypes.int32), targets[-1].first
        sizes = (heads, self.kv_heads, len(qkv), self.width, turning, self.tokens, self._pitch)
        (of_q, qw_first), (of_k, kw_first) = (each.window() for each in weights or (table, table))
        steps = (signed, first, step, q_first, head, token, p_first, self._apart, b_first, qw_first, kw_first)
        push = pack(abi.RopeAppend(*sizes, *steps, eps))
        wide, c_type = not (first % 4 or step % 4), FLOATS[self.dtype.name]
        normed = (1, FLOATS[weights[0].dtype.name], qw_first % 4 == 0, kw_first % 4 == 0) if weights else ()
        constants = abi.RopeAppendConstants(neox, c_type, wide, targets[-1].multiples(4), bool(base), *normed)
        keys, values, length, queries = targets
        ends = weights or [table, table]
        arrays = (source.array, places, table, *(each.array for each in (queries, keys, values, length)), bases, *ends)
        ranges = (
            source.range,
            seen,
            numbers,
            *(each.range for each in (queries, keys, values, length)),
            based,
            of_q,
            of_k,
        )
        groups = -(-qkv.size // GROUP)
        call.dispatch(f"rope_append_{SHORT[qkv.dtype.name]}", arrays, ranges, push, groups, constants)

    def _places(self, k: Array, position: int) -> Array:
        """Return a position that the host knows as an array."""
        count = k.shape[1] if isinstance(k, Array) and k.ndim == 3 else 0
        if not 0 <= position <= self.tokens - count:
            raise InvalidUsageError(
                f"KVCache.append: {count} tokens from position {position} on, of a cache of {self.tokens} tokens"
            )
        return full(self.device, 1, position, "uint32")

    def _check(self, k: Array, v: Array, positions: Array) -> None:
        check_float("KVCache.append", k.dtype, v.dtype)
        for name, array in (("k", k), ("v", v)):
            if array.ndim != 3 or (array.shape[0], array.shape[2]) != (self.kv_heads, self.width):
                raise InvalidUsageError(
                    f"KVCache.append: {name} is ({self.kv_heads}, T, {self.width}), not {array.shape}"
                )
        count = k.shape[1]
        if v.shape != k.shape:
            raise InvalidUsageError(f"KVCache.append: k and v have one shape, not {k.shape} and {v.shape}")
        self._check_count("KVCache.append", count, positions)
        if positions.dtype.name not in INTEGERS:
            raise UnsupportedError(
                f"KVCache.append: positions are {' or '.join(INTEGERS)}, not {positions.dtype}; cast them"
            )
        if positions.shape not in ((1,), (count,)):
            raise InvalidUsageError(f"KVCache.append: positions are (1,) or {(count,)}, not {positions.shape}")
        for target in (*self._rows, self.length):
            for operand in (k, v, positions):
                check_overlap("KVCache.append", target, operand, in_place=False)

    def _check_count(self, name: str, count: int, positions: Array) -> None:
        if count > self.tokens:
            raise InvalidUsageError(f"{name}: {count} tokens for a cache of {self.tokens}")

    def _launch(self, call: Call) -> None:
        k, v, _, *base = call.operands
        count = k.shape[1]
        one, two = bind(call, k), bind(call, v)
        targets = [bind(call, result) for result in call.results]
        places = landing.packed(call, call.operands[2])
        bases = base[0] if base else places
        (seen, first), (based, b_first) = places.window(), bases.window()
        sizes, each = (self.kv_heads, count, self.tokens, self.width, self._pitch), int(places.size > 1)
        steps = (word for bound in (one, two) for word in (bound.first, *bound.steps[1:]))
        push = pack(abi.Append(*sizes, each, first, *steps)._replace(apart=self._apart, b_first=b_first))
        wide = one.multiples(4) and two.multiples(4)
        constants = abi.AppendConstants(FLOATS[self.dtype.name], wide, FLOATS[v.dtype.name], bool(base))
        arrays = (one.array, two.array, places, *(each.array for each in targets), bases)
        ranges = (one.range, two.range, seen, *(each.range for each in targets), based)
        groups = -(-self.kv_heads * count * self._pitch // GROUP)
        call.dispatch(f"kv_append_{SHORT[k.dtype.name]}", arrays, ranges, push, groups, constants)

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._rows[0].closed

    def close(self) -> None:
        """Give the memory back once the work submitted so far is done; a second call does nothing."""
        for array in (*self._rows, self.length):
            array.close()

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shape = f"{self.kv_heads} x {self.tokens} x {self.width} {self.dtype}"
        return f"<vkpar.KVCache {shape} on {self.device}{', closed' if self.closed else ''}>"


def _in_kernel(norms: Norms) -> bool:
    """Tell whether the kernel that turns heads makes their norms: a work-group has whole ones."""
    queries, keys, _ = norms
    return GROUP % queries.size == 0 and queries.dtype == keys.dtype
