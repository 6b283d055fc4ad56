"""Makes the layers of a decoder out of a file's tensors, each on the ranks that a placement says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.ops.experts.products import Stack
from vkpar.ops.experts.routing import Span
from vkpar.parallel.cut.split import Split
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.layers.attention import ParallelAttention
from vkpar.parallel.layers.embedding import ParallelEmbedding
from vkpar.parallel.layers.experts import Experts, MixtureOfExperts
from vkpar.parallel.layers.feedforward import ParallelMLP, SharedExpert
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm
from vkpar.parallel.models import loading, naming
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.families.mixtures import SHARE, ExpertNames
from vkpar.parallel.models.loading import Progress, WeightRows
from vkpar.parallel.plan.placing import Placement
from vkpar.parallel.plan.scratch import unpacks_some


class DecoderBlock(NamedTuple):
    """A block, and the ranks that have the residual stream there."""

    ranks: tuple[int, ...]
    attention_norm: RMSNorm
    attention: ParallelAttention
    forward_norm: RMSNorm
    forward: ParallelMLP | MixtureOfExperts


def lend(blocks: Sequence[DecoderBlock], rows: int, nranks: int) -> tuple[Parts, Inputs]:
    """Compute what a row split has of the blocks' weights in this process, for the rank of another that has the stream.

    Returns:
        the stream and its norm here: nothing, by rank.
    """
    for block in blocks:
        block.attention.lend(rows)
        block.forward.lend(rows)
    made: Parts = [None] * nranks
    return made, made


class Builder(loading.Taking):
    """Makes the layers of one decoder.

    Args:
        config: the sizes.
        tensors: by name.
        comm: the communicator.
        placement: which rank has what.
        progress: is told of each tensor that was read.
        dtype: what matrices that are not quantised are converted to; None keeps their type.
        inputs: what many rows of inputs are rounded to, or ``"auto"``.

    Attributes:
        held: bytes of weights by rank.
    """

    @property
    def quantized(self) -> bool:
        """True where some weights of blocks lie on the devices in quantised blocks."""
        config, names = self._config, self._names
        mixes = [block for block in range(config.layers) if config.mixes(block)]
        others = [block for block in range(config.layers) if not config.mixes(block)]
        found = [names.of_block(f"attention.{part}", block) for part in "qkvo" for block in range(config.layers)]
        # Products by the matrices of experts take their blocks as they are, but for what all tokens take.
        found += [names.of_block(f"forward.{part}", block) for part in ("gate", "up", "down") for block in others]
        if config.shared:
            layout = naming.experts_of(config, self._tensors, names)
            found += [name.format(block) for name in layout.shared.values() for block in mixes]
        return unpacks_some(loading.kind_of(self._tensors[name], self._dtype) for name in found)

    @property
    def _gguf(self) -> bool:
        return self._names.embedding == naming.GGUF.embedding

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, LazyTensor],
        comm: Communicator,
        placement: Placement,
        progress: Progress | None,
        dtype: str | None,
        inputs: str,
    ) -> None:
        super().__init__(tensors, comm.nranks, progress)
        self._config, self._comm, self._placement = config, comm, placement
        self._names, self._dtype, self._inputs = naming.of(tensors).of_family(config.differs), dtype, inputs

    def nbytes(self) -> list[int]:
        """Return the bytes of weights by rank, of all processes; these call it together."""
        held = rig.gathered(self._comm, "the bytes of weights", lambda: self.held)
        return [sum(each) for each in zip(*held, strict=True)]

    def embedding(self) -> ParallelEmbedding:
        """Return the embedding table."""
        table = self._tensor(self._names.embedding)
        placement = self._placement
        weight = loading.stacked(self._comm, [WeightRows(table, _ranges(placement.table))], self._dtype)
        self._counted(weight.parts)
        scale = None
        if self._config.differs.scaled:  # rounded to the file's type, as transformers does, not of blocks
            exact = np.float32(math.sqrt(self._config.hidden))
            scale = float(exact if self._gguf else exact.astype(table.dtype.numpy))
        return ParallelEmbedding(weight, comm=self._comm, ranks=placement.streams[0], scale=scale)

    def final_norm(self) -> RMSNorm:
        """Return the norm before the output layer."""
        return self._norm(self._names.norm, self._placement.streams[-1])

    def _norm(self, name: str, ranks: Sequence[int]) -> RMSNorm:
        weight: Any = self._tensor(name)
        if self._config.differs.centred and not self._gguf:
            weight = np.float32(1) + weight.read().astype(np.float32)
        made = RMSNorm(weight, self._config.epsilon, comm=self._comm, ranks=ranks)
        self._counted(made.weight)
        return made

    def head(self, embedding: ParallelEmbedding) -> ColumnParallelLinear:
        """Return the output layer, which is the table where they are tied and lie alike."""
        placement, config = self._placement, self._config
        if config.tied and placement.outputs == placement.table:
            inputs = self._inputs_of(str(embedding.weight.dtype))
            return ColumnParallelLinear(embedding.weight, comm=self._comm, inputs=inputs)
        name = self._names.embedding if config.tied else self._names.output
        return self._column([WeightRows(self._tensor(name), _ranges(placement.outputs))], [None], whole=True)

    def block(self, number: int) -> DecoderBlock:
        """Return a block."""
        placement, names = self._placement, self._names
        ranks, heads, inner = placement.streams[number], placement.heads[number], placement.inner[number]
        width, config = heads.width, self._config
        queries = _ranges(heads.queries.scaled(width))
        keys = [(start * width, stop * width) for start, stop in heads.keys]

        def name(part: str) -> str:
            return names.of_block(part, number)

        post = [self._norm(name(part), ranks) if config.post_norms else None for part in naming.POST_NORMS]
        qkv = self._columns([name(f"attention.{part}") for part in "qkv"], [queries, keys, keys], halves=True)
        theta, scaling = config.rotary(number)
        attention = ParallelAttention(
            qkv,
            self._rows(name("attention.o"), heads.queries.scaled(width), ranks),
            heads,
            theta=theta,
            scaling=scaling,
            style=config.style,
            norms=self._head_norms(number) if config.head_norms else None,
            scale=config.scale,
            window=config.window if config.slides(number) else None,
            post=post[0],
        )
        forward: ParallelMLP | MixtureOfExperts
        if config.mixes(number):
            forward = self._mixture(number, post[1])
        else:
            gate_up = self._columns([name("forward.gate"), name("forward.up")], [_ranges(inner)] * 2)
            down = self._rows(name("forward.down"), inner, ranks)
            forward = ParallelMLP(gate_up, down, gate=config.differs.gate, post=post[1])
        norms = [self._norm(name(part), ranks) for part in ("attention.norm", "forward.norm")]
        return DecoderBlock(ranks, norms[0], attention, norms[1], forward)

    def _mixture(self, number: int, post: RMSNorm | None) -> MixtureOfExperts:
        """Return the experts of a block; ``post``: a norm of their results."""
        config, comm, placement = self._config, self._comm, self._placement
        spans, widths = placement.of_experts(number, config.experts, config.intermediate)
        layout = naming.experts_of(config, self._tensors, self._names)
        tensors: dict[str, LazyTensor] = {}

        def rows(part: str, expert: int) -> WeightRows:
            """Return what ranks have of an expert's matrix, which may lie among others in a tensor."""
            name = layout.name(part, number, expert)
            if name not in tensors:
                found = self._tensor(name)
                tensors[name] = replace(found, shape=(math.prod(found.shape[:-1]), found.shape[-1]))
            first = layout.row(part, expert, config.intermediate, config.hidden)
            cut = [(0, config.hidden)] * comm.nranks if part == "down" else widths
            taken = [
                (first + start, first + stop) if low <= expert < high else (0, 0)
                for (low, high), (start, stop) in zip(spans, cut, strict=True)
            ]
            return WeightRows(tensors[name], taken, widths if part == "down" else None)

        def stacks(*parts: str) -> list[Stack | None]:
            """Return matrices of all experts by rank, those of several parts one after the other for each expert."""
            pieces = [rows(part, expert) for expert in range(config.experts) for part in parts]
            _, made = loading.by_rank(comm, pieces, self._dtype)
            self._counted(made)
            return [
                None if part is None else Stack(part, Span(low, high - low))
                for part, (low, high) in zip(made, spans, strict=True)
            ]

        kinds = [loading.kind_of(self._tensors[layout.name(part, number)], self._dtype) for part in ("gate", "up")]
        wide = [stacks("gate", "up")] if kinds[0] == kinds[1] else [stacks("gate"), stacks("up")]
        down = stacks("down")
        gates = [tuple(stack for stack in own if stack is not None) for own in zip(*wide, strict=True)]
        experts = [None if back is None else Experts(own, back) for own, back in zip(gates, down, strict=True)]
        router = self._tensor(layout.router.format(number))
        shared = self._shared(number, layout) if config.shared else None
        made = MixtureOfExperts(
            router,
            experts,
            comm=comm,
            active=config.active,
            normed=config.normed,
            ranks=placement.streams[number],
            inputs=self._inputs_of(kinds[0]),
            post=post,
            shared=shared,
        )
        self._counted(made.router)
        return made

    def _shared(self, number: int, layout: ExpertNames) -> SharedExpert:
        """Return the expert of a block that all tokens take."""
        names, split = (
            {part: name.format(number) for part, name in layout.shared.items()},
            self._placement.shared[number],
        )
        wide = self._columns([names["gate"], names["up"]], [_ranges(split)] * 2, whole=True)
        weight = loading.cut_columns(self._comm, self._tensor(names["down"]), split, self._dtype)
        down = RowParallelLinear(weight, comm=self._comm, inputs=self._inputs_of(str(weight.dtype)))
        made = SharedExpert(wide, down, self._tensor(names[SHARE]))
        self._counted(weight.parts)
        self._counted(made.share)
        return made

    def _head_norms(self, number: int) -> tuple[RMSNorm, RMSNorm]:
        """Return the norms of queries and keys, on the ranks that have heads."""
        ranks = [rank for rank, count in enumerate(self._placement.heads[number].queries.counts) if count]
        q, k = (self._norm(self._names.of_block(part, number), ranks) for part in naming.HEAD_NORMS)
        return q, k

    def _columns(
        self,
        names: Sequence[str],
        ranges: Sequence[Sequence[tuple[int, int]]],
        *,
        halves: bool = False,
        whole: bool = False,
    ) -> list[ColumnParallelLinear]:
        """Return one layer for tensors that lie on devices alike, else one for each; ``ranges`` are rows by rank.

        ``halves``: the results of many rows are of the type that inputs are rounded to; ``whole``: a row split does
        not slice them.
        """
        tensors = [self._tensor(name) for name in names]
        biases = [self._tensors.get(naming.bias_of(name)) for name in names]
        alike = len({loading.kind_of(tensor, self._dtype) for tensor in tensors}) == 1
        alike = alike and len({None if bias is None else loading.kind_of(bias) for bias in biases}) == 1
        rows = [WeightRows(tensor, part) for tensor, part in zip(tensors, ranges, strict=True)]
        if alike:
            return [self._column(rows, biases, halves=halves, whole=whole)]
        pairs = zip(rows, biases, strict=True)
        return [self._column([row], [bias], halves=halves, whole=whole) for row, bias in pairs]

    def _column(
        self,
        rows: Sequence[WeightRows],
        biases: Sequence[LazyTensor | None],
        *,
        halves: bool = False,
        whole: bool = False,
    ) -> ColumnParallelLinear:
        """Return a layer; ``whole``: a row split does not slice it."""
        comm, counts = self._comm, [row.tensor.shape[0] for row in rows]
        sliced = None if whole else self._placement.sliced(counts, rows[0].tensor.shape[1])
        gathers = self._placement.ratios is not None and not whole
        if sliced is not None:
            rows = [WeightRows(row.tensor, part) for row, part in zip(rows, sliced, strict=True)]
        found = [WeightRows(bias, row.ranges) for bias, row in zip(biases, rows, strict=True) if bias is not None]
        bias = loading.stacked(comm, found) if found else None
        weight = loading.stacked(comm, rows, self._dtype)
        self._counted(weight.parts)
        self._counted([] if bias is None else bias.parts)
        inputs = self._inputs_of(str(weight.dtype))
        results = inputs if halves and inputs is not None else "float32"
        root = self._placement.streams[0][0] if gathers else None
        return ColumnParallelLinear(
            weight, bias, comm=comm, gather_output=gathers, root=root, inputs=inputs, results=results
        )

    def _inputs_of(self, kind: str) -> str | None:
        """Return what the inputs of a weight of a kind are rounded to."""
        if self._inputs != "auto":
            return None if self._inputs == "float32" else self._inputs
        halves = kind != "bfloat16" and loading.in_halves(kind, rig.everywhere(self._comm))
        return "float16" if halves else None

    def _rows(self, name: str, split: Split, ranks: Sequence[int]) -> RowParallelLinear | GatheredLinear:
        comm, bias = self._comm, self._tensors.get(naming.bias_of(name))
        tensor = self._tensors[name]
        count, columns = tensor.shape
        if self._placement.sliced([count], columns) is not None:
            return GatheredLinear(self._columns([name], [[(0, count)]])[0])
        self._tensor(name)
        weight = loading.cut_columns(comm, tensor, split, self._dtype)
        self._counted(weight.parts)
        return RowParallelLinear(weight, bias, comm=comm, inputs=self._inputs_of(str(weight.dtype)), targets=ranks)


def _ranges(split: Split) -> list[tuple[int, int]]:
    return [split.bounds(rank) for rank in range(split.nranks)]
