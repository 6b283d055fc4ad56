"""What a placement takes of each rank: bytes of weights, of keys and values, of what is computed in between; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from vkpar import dtypes
from vkpar.ops.attention.kvcache import PITCH
from vkpar.ops.attention.kvcaches import rows_of
from vkpar.ops.tiles.cpu import Weights
from vkpar.parallel.cut.split import Split
from vkpar.parallel.plan.placing import Placement
from vkpar.parallel.plan.scratch import Stored, Widths, block_nbytes, most_rows, slices_nbytes, stored_as
from vkpar.parallel.plan.spec import ModelSpec
from vkpar.vulkan.memory.pool import padded, round_up

_F32: Final = 4


@dataclass(frozen=True)
class TensorPlan:
    """How a tensor, or all blocks' tensors of one name, lie.

    Attributes:
        name: of the tensor.
        count: how many there are.
        cut: ``"column"``, ``"row"``, ``"mirrored"``, ``"sliced"`` (by a row split), or ``"whole"`` on single ranks.
        nbytes: that it takes of each rank, padding and bias included.
        after: the collective after its product; empty for none.
    """

    name: str
    count: int
    cut: str
    nbytes: tuple[int, ...]
    after: str


@dataclass
class Workload:
    """What ranks do between two collectives.

    Attributes:
        nbytes: of weights that each rank reads for a token.
        operations: that each rank runs.
    """

    nbytes: list[float]
    operations: list[int]


@dataclass(frozen=True)
class Footprint:
    """What a model takes of ranks, where it lies as a placement says.

    Attributes:
        placement: which rank has what.
        decoder: it has an output layer.
        mixing: by block whether it has experts.
        splits: by name.
        tensors: how each lies.
        stages: what runs between collectives, in order.
        collectives: of one token, by name.
    """

    placement: Placement
    decoder: bool
    mixing: tuple[bool, ...]
    splits: Mapping[str, Split]
    tensors: tuple[TensorPlan, ...]
    stages: tuple[Workload, ...] = field(repr=False)
    collectives: dict[str, int]

    @property
    def mode(self) -> str:
        """How the model is split."""
        return self.placement.mode

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """By rank how many blocks it has, or has parts of."""
        return tuple(sum(rank in ranks for ranks in self.placement.streams) for rank in self._ranks)

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """By rank how many heads of keys and values it keeps in each of its blocks."""
        return tuple(max(heads.kv_counts[rank] for heads in self.placement.heads) for rank in self._ranks)

    @cached_property
    def queries(self) -> tuple[int, ...]:
        """By rank columns of queries."""
        split = self.placement.heads
        return tuple(max(heads.queries.counts[rank] * heads.width for heads in split) for rank in self._ranks)

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """By rank columns of the feed-forward width, of each expert that it has."""
        whole = self.placement.experts
        if whole:
            width = self.placement.inner[self.mixing.index(True)].size
            return tuple(width * bool(whole[0].counts[rank]) for rank in self._ranks)
        return self._inside(mixes=any(self.mixing))

    def _inside(self, *, mixes: bool) -> tuple[int, ...]:
        """Return by rank columns of the width of blocks with experts or without."""
        inner = [split for split, own in zip(self.placement.inner, self.mixing, strict=True) if own == mixes]
        return tuple(max((split.counts[rank] for split in inner), default=0) for rank in self._ranks)

    @cached_property
    def dense(self) -> tuple[int, ...]:
        """By rank columns of the width of blocks without experts beside others that have some."""
        return self._inside(mixes=False) if any(self.mixing) else (0,) * len(self._ranks)

    @property
    def words(self) -> tuple[int, ...]:
        """By rank rows of the output layer."""
        return tuple(count * self.decoder for count in self.placement.outputs.counts)

    @cached_property
    def streams(self) -> frozenset[int]:
        """The ranks that have the residual stream in some block."""
        return frozenset().union(*self.placement.streams)

    @property
    def _ranks(self) -> range:
        return range(self.placement.table.nranks)

    def cache(self, spec: ModelSpec, rank: int, context: int, batch: int, piece: int) -> int:
        """Return the bytes of a rank's keys and values of ``batch`` texts, of which pieces of prompts are appended."""
        return sum(2 * padded(nbytes) for nbytes in self._keys(spec, rank, context, batch, piece))

    def _keys(self, spec: ModelSpec, rank: int, context: int, batch: int, piece: int) -> list[int]:
        """Return the bytes of a rank's keys, by block."""
        if not spec.decoder or not self.kv_heads[rank]:
            return []
        windows = [spec.window_of(block) for block, ranks in enumerate(self.placement.streams) if rank in ranks]
        row = batch * self.kv_heads[rank] * round_up(spec.head_dim, PITCH) * dtypes.resolve(spec.cache).itemsize
        return [row * rows_of(context, batch, window, piece) for window in windows]

    def seen(self, spec: ModelSpec, rank: int, context: int, batch: int, piece: int) -> dict[str, int]:
        """Return, by name, the bytes of what a kernel of a rank has to see as a whole; there are pieces of all else."""
        return {"a block's keys": max(self._keys(spec, rank, context, batch, piece), default=0)}

    def activations(
        self, spec: ModelSpec, rank: int, context: int, batch: int, piece: int, devices: Sequence[Weights] = ()
    ) -> int:
        """Return the bytes of what a rank computes for a ``piece`` of a prompt, and a captured step.

        Args:
            spec: the model.
            rank: the rank.
            context: tokens of a text.
            batch: texts. Prompts of a decoder's are run one after the other, and a step takes a token of each.
            piece: the most tokens that go through the blocks together.
            devices: by rank how its device takes weights; none where all are GPUs.
        """
        stored = stored_as(spec, devices, rank)
        stages = len(self.streams) if self.mode == "layer" else 1
        unpacks = stored.quantized
        rows = most_rows(context, stages, piece, unpacks=unpacks) if spec.decoder else batch * context
        if rank not in self.streams:
            share = self._share(rank)
            whole = Widths(*self._widths(spec, min(self.streams)), spec.gated)
            return sum(slices_nbytes(whole, share, count, stored) for count in (rows, batch)) if share else 0
        mixture = spec.experts, spec.active, self.placement.shared[0].counts[rank], self.dense[rank]
        widths = Widths(*self._widths(spec, rank), spec.gated, self._share(rank), spec.head_norms, *mixture)
        nbytes = block_nbytes(widths, rows, stored)
        return nbytes + (self._step(spec, rank, context, batch, widths, stored) if spec.decoder else 0)

    def _widths(self, spec: ModelSpec, rank: int) -> tuple[int, int, int, int]:
        return spec.width, self.queries[rank], self.kv_heads[rank] * spec.head_dim, self.inner[rank]

    def _share(self, rank: int) -> float:
        """Return which share of the products of the ranks with the stream a rank computes: in a row split a part."""
        sliced = [tensor for tensor in self.tensors if tensor.cut == "sliced"]
        if not sliced:
            return float(rank in self.streams)
        return sum(tensor.nbytes[rank] for tensor in sliced) / sum(sum(tensor.nbytes) for tensor in sliced)

    def _step(self, spec: ModelSpec, rank: int, context: int, batch: int, widths: Widths, stored: Stored) -> int:
        """Return the bytes of what the captured step computes, and of the tokens that it keeps."""
        nbytes = block_nbytes(widths, batch, stored) + padded(_F32 * batch * self.words[rank])
        holders = [other for other, words in enumerate(self.words) if words]
        if rank == holders[0]:
            whole = _F32 * batch * spec.vocabulary * (1 + (batch > 1)) if len(holders) > 1 else 0
            nbytes += whole + 2 * padded(_F32 * context) + padded(context)
        return nbytes
