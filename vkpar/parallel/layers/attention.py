"""Attention over the ranks of a communicator: each rank has some heads, and keeps their keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError
from vkpar.ops.attention.kvcaches import KVCaches, room_of, rows_of, seen_of
from vkpar.parallel.cut.heads import Heads
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, present, there
from vkpar.unpickled import Unpickled


class KVCache(Unpickled):
    """The keys and values of all layers: each rank keeps those of its heads.

    Args:
        comm: the communicator.
        tokens: how many tokens there is room for, of each text.
        kv_heads: by layer and rank, as :attr:`Heads.kv_counts` says.
        head_dim: elements of a head.
        dtype: float32, float16 or bfloat16.
        sequences: how many texts are kept. Of several, each has room for a multiple of 16 tokens.
        windows: by layer how many tokens a token attends to, None for all; none where all do. Of the keys and values of
            others only the latest are kept, those of two windows and of a piece after them; :meth:`make_room` comes
            before each piece then.
        piece: the most tokens that are appended together.

    Attributes:
        layers: by layer and rank the cache of the first text; :meth:`of` gives those of others.
        together: by layer and rank those of all texts, for a token of each.

    Examples:
        >>> cache = vkpar.parallel.KVCache(comm, 32, [[1, 1]], 16, "float32")  # one layer, a head on each rank
        >>> len(cache.layers), cache.tokens
        (1, 32)
        >>> cache.close()
    """

    def __init__(
        self,
        comm: Communicator,
        tokens: int,
        kv_heads: Sequence[Sequence[int]],
        head_dim: int,
        dtype: object = "float16",
        sequences: int = 1,
        windows: Sequence[int | None] = (),
        piece: int = 512,
    ) -> None:
        self.tokens, devices = room_of(tokens, sequences), rig.devices(comm)
        self._window = max((window for window in windows if window is not None), default=0)
        rows = [
            rows_of(tokens, sequences, window and self._window, piece) for window in windows or [None] * len(kv_heads)
        ]
        self._rows = min(rows, default=self.tokens)
        self._starts = [0] * sequences  # positions of the first rows of layers that keep fewer
        self._bases = [None if device is None else device.zeros(sequences, "uint32") for device in devices]
        self.together: list[list[KVCaches | None]] = [
            [
                KVCaches(device, sequences, count, each, head_dim, dtype, base if each < self.tokens else None)
                if count and device is not None
                else None
                for device, count, base in zip(devices, row, self._bases, strict=True)
            ]
            for row, each in zip(kv_heads, rows, strict=True)
        ]
        self.layers = self.of(0)

    def of(self, sequence: int) -> list[list[ops.KVCache | None]]:
        """Return by layer and rank the cache of one text."""
        return [[None if cache is None else cache.sequence(sequence) for cache in row] for row in self.together]

    def make_room(self, sequence: int, position: int, count: int) -> None:
        """Let so many tokens of a text be appended from a position on: move what their windows have to the front.

        Raises:
            InvalidUsageError: more tokens than the cache takes together.
        """
        start = self._starts[sequence] if position else 0
        if position - start + count > self._rows < self.tokens:
            kept = min(position - start, seen_of(self._window))
            if kept + count > self._rows:
                raise InvalidUsageError(f"{count} tokens together; a cache of windows takes {self._rows - kept}")
            for cache in self._caches():
                cache.shift(sequence, position - kept - start, kept)
            start = position - kept
        self._begin(sequence, start)

    def check_rewind(self, sequence: int, position: int) -> None:
        """Refuse to forget all from a position on where the windows there are no longer kept.

        Raises:
            InvalidUsageError: it is refused.
        """
        least = self._starts[sequence] + max(self._window - 1, 0)
        if self._starts[sequence] and 0 < position < least:
            raise InvalidUsageError(
                f"token {position} has a window of tokens whose keys are kept no longer; forget all, or those from "
                f"{least} on"
            )

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of a text's first tokens, so many and maybe more, to another text's place."""
        for cache in self._caches():
            cache.move(source, target, tokens)
        self._begin(target, self._starts[source])

    def close(self) -> None:
        """Give the memory back once the work on it is done; a second call does nothing."""
        for cache in self._caches():
            cache.close()

    def _caches(self) -> Iterator[KVCaches]:
        return (cache for row in self.together for cache in row if cache is not None)

    def _begin(self, sequence: int, start: int) -> None:
        """Let the first row of a text be that of a position."""
        if self._starts[sequence] != start:
            self._starts[sequence] = start
            for base in self._bases:
                if base is not None:
                    base[sequence : sequence + 1].write(np.array([start], np.uint32))


class ParallelAttention:
    """Causal attention with a rotary embedding, keys and values kept.

    Args:
        qkv: a layer whose results are queries, keys and values, one after the other on each rank; or three layers.
        output: what takes the heads' results back to the residual stream.
        heads: which rank has which.
        theta: base of the rotary embedding; ``scaling`` and ``style`` as :func:`vkpar.rope` takes them.
        norms: of each head of queries, and of each of keys, before they are turned: weights of (head_dim,) on the ranks
            that have heads, one epsilon; None for none.
        scale: of the scores; None for the root of a head's width, inverted.
        window: how many tokens a token attends to, itself included; None for all before it.
        post: a norm of the results before a residual is added; None for none.

    Examples:
        >>> from vkpar.parallel import ColumnParallelLinear, KVCache, ParallelAttention, RowParallelLinear
        >>> heads = vkpar.parallel.split_heads(4, 2, 16, [1, 1])
        >>> weights = [np.zeros((rows, 64), np.float32) for rows in (4 * 16, 2 * 16, 2 * 16)]
        >>> qkv = [ColumnParallelLinear(weight, comm=comm) for weight in weights]
        >>> output = RowParallelLinear(np.zeros((64, 64), np.float32), comm=comm)
        >>> attention = ParallelAttention(qkv, output, heads, theta=1e4)
        >>> cache = KVCache(comm, 32, [heads.kv_counts], 16, "float32")
        >>> where = [d.array(np.arange(3, dtype=np.uint32)) for d in comm.devices]
        >>> result, _ = attention([d.zeros((3, 64)) for d in comm.devices], where, cache.layers[0])
        >>> result[0].shape
        (3, 64)
    """

    def __init__(
        self,
        qkv: Sequence[ColumnParallelLinear],
        output: RowParallelLinear | GatheredLinear,
        heads: Heads,
        *,
        theta: float,
        scaling: float | Mapping[str, float] | Sequence[float] | None = None,
        style: str = "neox",
        norms: tuple[RMSNorm, RMSNorm] | None = None,
        scale: float | None = None,
        window: int | None = None,
        post: RMSNorm | None = None,
    ) -> None:
        if len(qkv) not in (1, 3):
            raise InvalidUsageError(f"queries, keys and values are one layer or three, not {len(qkv)}")
        if norms is not None and norms[0].epsilon != norms[1].epsilon:
            raise InvalidUsageError(f"norms of queries and of keys have one epsilon, not {[n.epsilon for n in norms]}")
        self._qkv = tuple(qkv)
        self._output = output
        self._heads = heads
        self._theta, self._scaling, self._style = theta, scaling, style
        self._norms, self._scale, self._window, self.post = norms, scale, window, post

    def __call__(
        self,
        x: Inputs,
        positions: Parts,
        cache: Sequence[Any],
        residual: Parts | None = None,
        norm: RMSNorm | None = None,
    ) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm; see :meth:`RowParallelLinear.__call__`.

        Args:
            x: (T, hidden) by rank.
            positions: (T,) uint32, rising by one, on each rank that has heads. Of several texts: one of each.
            cache: of the layer, by rank: what the tokens are appended to and attend.
            residual: the stream.
            norm: of the sum with the stream.
        """
        return self._output(self._mixed(x, positions, cache), residual, norm, self.post)

    def summed(self, x: Inputs, positions: Parts, cache: Sequence[Any]) -> Parts:
        """Return the results on all ranks of a tensor split; see :meth:`RowParallelLinear.summed`."""
        assert isinstance(self._output, RowParallelLinear), "a row split sums nothing"
        return self._output.summed(self._mixed(x, positions, cache))

    def lend(self, rows: int) -> None:
        """Compute for a rank of another process, in its order; see :meth:`ColumnParallelLinear.lend`."""
        for layer in (*self._qkv, self._output):
            layer.lend(rows)

    def _mixed(self, x: Inputs, positions: Parts, cache: Sequence[Any]) -> Parts:
        made = [layer(x) for layer in self._qkv]
        mixed: Parts = [None] * len(x)
        for rank in present(made[0]):
            where, kept = positions[rank], cache[rank]
            if where is None or kept is None:
                raise InvalidUsageError(f"rank {rank} has heads, but no positions or no cache")
            mixed[rank] = self._attend(rank, made, where, kept)
        return mixed

    def _attend(self, rank: int, made: Sequence[Parts], positions: Array, cache: Any) -> Array:
        width, queries = self._heads.width, self._heads.queries.counts[rank]
        norms = self._norms
        if len(made) == 1:
            qkv, how = made[0][rank], dict[str, Any](scaling=self._scaling, style=self._style)
            if norms is not None:
                how["norms"] = (*(there(norm.weight, rank) for norm in norms), norms[0].epsilon)
            q: Array = cache.rope_append(qkv, positions, self._theta, **how)
        else:
            if norms is not None:
                self._norm_heads(rank, made, norms)
            q, k, v = (_as_heads(part[rank], width) for part in made)
            q, k = self._turned(q, positions), self._turned(k, positions)
            cache.append(k, v, positions)
        tokens = positions.size
        result = q.device.empty((tokens, queries * width), q.dtype)
        if isinstance(cache, KVCaches):  # each token is of another text
            q, out = (_as_texts(each, width) for each in (q.transpose(1, 0, 2), result))
            ops.attention(q, cache, scale=self._scale, window=self._window, out=out)
        else:
            out = _as_heads(result, width)
            ops.attention(q, cache, causal=True, scale=self._scale, window=self._window, out=out)
        return result

    def _norm_heads(self, rank: int, made: Sequence[Parts], norms: tuple[RMSNorm, RMSNorm]) -> None:
        """Norm each head of queries and keys where it lies."""
        for part, norm in zip(made[:2], norms, strict=True):
            rows = there(part, rank)
            heads = rows.reshape(rows.shape[0], -1, self._heads.width)
            ops.rms_norm(heads, there(norm.weight, rank), norm.epsilon, out=heads)

    def _turned(self, x: Array, positions: Array) -> Array:
        return ops.rope(x, positions, self._theta, scaling=self._scaling, style=self._style)


def _as_heads(x: Array | None, width: int) -> Array:
    """Return a view of (T, heads * width) as (heads, T, width)."""
    assert x is not None
    return x.reshape(x.shape[0], -1, width).transpose(1, 0, 2)


def _as_texts(x: Array, width: int) -> Array:
    """Return a view of a token of each text as (texts, heads, 1, width)."""
    return x.reshape(x.shape[0], -1, 1, width)
