"""Which rank has how much of each of a model's tensors in each mode, and what runs between collectives; pure."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.attention.kvcache import PITCH
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.cut.heads import Heads, split_heads
from vkpar.parallel.cut.split import Split, cut
from vkpar.parallel.plan.scratch import Widths, block_nbytes, most_rows, slices_nbytes, stored_as
from vkpar.parallel.plan.spec import ModelSpec, Weight, stored
from vkpar.parallel.plan.states import COLLECT, COLUMN, ROW, SEND, SUM, Placed, Step, collectives, infer
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.pool import padded, round_up

MODES: Final = ("tensor", "row", "layer", "single")  # each falls back to the next
ELIGIBLE: Final = 256  # a row split slices weights of so many rows and columns at least
# Dispatches of a step: attention with two ropes and an append; sums take additions along.
_OPERATIONS: Final = {"attention": 5, "add": 0}
_TOGETHER: Final = ("k", "v", "gate")  # done by the product of "q" or "up"
_GROUPS: Final = {"q": "q", "k": "q", "v": "q", "gate": "up", "up": "up"}  # what one product does together
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
class Stage:
    """What ranks do between two collectives.

    Attributes:
        nbytes: of weights that each rank reads for a token.
        operations: that each rank runs.
    """

    nbytes: list[float]
    operations: list[int]


@dataclass(frozen=True)
class Placement:
    """How a model lies on ranks.

    Attributes:
        mode: one of :data:`MODES`.
        splits: by name.
        tensors: how each lies.
        stages: what runs between collectives, in order.
        collectives: of one token, by name.
        blocks: by rank how many blocks it has, or has parts of.
        kv_heads: by rank how many heads of keys and values it keeps in each of its blocks.
        queries: by rank columns of queries; ``inner`` of the feed-forward width; ``words`` of the output layer's rows.
        streams: the ranks that have the residual stream in some block.
    """

    mode: str
    splits: Mapping[str, Split]
    tensors: tuple[TensorPlan, ...]
    stages: tuple[Stage, ...] = field(repr=False)
    collectives: dict[str, int]
    blocks: tuple[int, ...]
    kv_heads: tuple[int, ...]
    queries: tuple[int, ...]
    inner: tuple[int, ...]
    words: tuple[int, ...]
    streams: frozenset[int]

    def cache(self, spec: ModelSpec, rank: int, context: int) -> int:
        """Return the bytes of a rank's keys and values of one text."""
        if not spec.decoder:
            return 0
        each = padded(self.kv_heads[rank] * context * spec.head_dim * dtypes.resolve(spec.cache).itemsize)
        return 2 * each * self.blocks[rank] if self.kv_heads[rank] else 0

    def seen(self, spec: ModelSpec, rank: int, context: int) -> dict[str, int]:
        """Return, by name, the bytes of what a kernel of a rank has to see as a whole; there are pieces of all else."""
        table = next(tensor.nbytes[rank] for tensor in self.tensors if tensor.name == "embedding")
        found = {"the embedding table": table + ALIGNMENT * (spec.weights_outside()[0].kind in FORMATS)}
        if spec.decoder:
            keys = self.kv_heads[rank] * context * round_up(spec.head_dim, PITCH)
            found["a block's keys"] = keys * dtypes.resolve(spec.cache).itemsize
        return found

    def activations(
        self, spec: ModelSpec, rank: int, context: int, batch: int, piece: int, *, turned: bool = False
    ) -> int:
        """Return the bytes of what a rank computes for a ``piece`` of a prompt, and a captured step of one token.

        Args:
            spec: the model.
            rank: the rank.
            context: tokens of a text.
            batch: texts.
            piece: the most tokens that go through the blocks together.
            turned: its products take copies of transposed weights.
        """
        stored = stored_as(spec)._replace(turned=turned)
        stages = len(self.streams) if self.mode == "layer" else 1
        unpacks = stored.quantized
        rows = batch * (most_rows(context, stages, piece, unpacks=unpacks) if spec.decoder else context)
        if rank not in self.streams:
            share = self._share(rank)
            whole = Widths(*self._widths(spec, min(self.streams)), spec.gated)
            return sum(slices_nbytes(whole, share, count, stored) for count in (rows, batch)) if share else 0
        widths = Widths(*self._widths(spec, rank), spec.gated, self._share(rank))
        nbytes = block_nbytes(widths, rows, stored)
        return nbytes + (self._step(spec, rank, context, batch, widths) if spec.decoder else 0)

    def _widths(self, spec: ModelSpec, rank: int) -> tuple[int, int, int, int]:
        return spec.width, self.queries[rank], self.kv_heads[rank] * spec.head_dim, self.inner[rank]

    def _share(self, rank: int) -> float:
        """Return which share of the products of the ranks with the stream a rank computes: in a row split a part."""
        sliced = [tensor for tensor in self.tensors if tensor.cut == "sliced"]
        if not sliced:
            return float(rank in self.streams)
        return sum(tensor.nbytes[rank] for tensor in sliced) / sum(sum(tensor.nbytes) for tensor in sliced)

    def _step(self, spec: ModelSpec, rank: int, context: int, batch: int, widths: Widths) -> int:
        """Return the bytes of what the captured step computes, and of the tokens that it keeps."""
        nbytes = block_nbytes(widths, batch, stored_as(spec)) + padded(_F32 * batch * self.words[rank])
        holders = [other for other, words in enumerate(self.words) if words]
        if rank == holders[0]:
            whole = _F32 * batch * spec.vocabulary if len(holders) > 1 else 0
            nbytes += whole + 2 * padded(_F32 * context) + padded(context)
        return nbytes


def place_model(spec: ModelSpec, mode: str, ratios: Sequence[Fraction]) -> Placement:
    """Return how a model lies on ranks.

    Args:
        spec: the model.
        mode: one of :data:`MODES`. A row split keeps all but slices on the first rank with a ratio above 0, a single
            one all on the rank with the largest ratio.
        ratios: by rank.

    Raises:
        UnsupportedError: the mode is not possible with these ratios; the message says why.
    """
    return _placed(spec, mode, tuple(ratios))


@functools.lru_cache(maxsize=256)
def _placed(spec: ModelSpec, mode: str, ratios: tuple[Fraction, ...]) -> Placement:
    if mode not in MODES:
        raise InvalidUsageError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    active = [rank for rank, ratio in enumerate(ratios) if ratio > 0]
    if len(active) < 2 and mode != "single":
        raise UnsupportedError(f"{mode}: one device alone has a share")
    if mode == "tensor":
        return _tensor(spec, ratios)
    if mode == "row":
        return _row(spec, ratios, active[0])
    if mode == "single":
        best = max(active, key=lambda rank: (ratios[rank], -rank))
        return _by_blocks(spec, mode, Split.of([spec.layers * (rank == best) for rank in range(len(ratios))]))
    blocks = cut(spec.layers, ratios)
    if sum(map(bool, blocks.counts)) < 2:
        raise UnsupportedError(f"layer: of {spec.layers} blocks by these ratios one device gets all")
    return _by_blocks(spec, mode, blocks)


# ---- tensor ----


def _tensor(spec: ModelSpec, ratios: tuple[Fraction, ...]) -> Placement:
    blocks = [spec.weights_of_block(number) for number in range(spec.layers)]
    unit = _unit(blocks, "o")
    heads = split_heads(spec.heads, spec.kv_heads, spec.head_dim, ratios, unit)
    if sum(map(bool, heads.queries.counts)) < 2:
        raise UnsupportedError(
            f"tensor: {spec.heads} heads over {spec.kv_heads} of keys and values, {spec.head_dim} wide, cannot be cut "
            f"by these ratios{f' between blocks of {unit}' if unit > 1 else ''}: one device gets all"
        )
    inner, words = cut(spec.hidden, ratios, _unit(blocks, "down")), cut(spec.vocabulary, ratios)
    sizes = _Sizes(spec, heads, inner, words)
    placed = infer(spec.block(), {"heads", "inner"})
    ends = {name: _after(placed, name) for name in ("o", "down")}
    rules = {each.step.name: each.cut for each in placed}
    tensors = []
    for row in zip(*blocks, strict=True):
        step, rule = row[0].step, rules[row[0].step]
        nbytes = tuple(sum(padded_bytes(each, *sizes.part(each, rule, rank)) for each in row) for rank in sizes.ranks)
        tensors.append(TensorPlan(step, spec.layers, rule, nbytes, ends.get(step, "")))
    outside = infer(_outside(spec), {"vocabulary"})
    rules = {each.step.name: each.cut for each in outside}
    for weight in spec.weights_outside():
        rule = rules[weight.step]
        nbytes = tuple(padded_bytes(weight, *sizes.part(weight, rule, rank)) for rank in sizes.ranks)
        after = {"embedding": SUM, "head": COLLECT}.get(weight.step, "")
        tensors.append(TensorPlan(weight.step, 1, rule, nbytes, after))
    stages = [stage for block in blocks for stage in _stages(placed, block, sizes)]
    stages += _stages(outside, [*spec.weights_outside(), *_tied_head(spec)], sizes)
    calls = Counter(collectives(placed))
    calls = Counter({name: count * spec.layers for name, count in calls.items()}) + Counter(collectives(outside))
    return Placement(
        mode="tensor",
        splits={"heads": heads.queries, "inner": inner, "vocabulary": words},
        tensors=tuple(tensors),
        stages=tuple(stages),
        collectives=dict(calls),
        blocks=(spec.layers,) * len(ratios),
        kv_heads=heads.kv_counts,
        queries=tuple(count * spec.head_dim for count in heads.queries.counts),
        inner=inner.counts,
        words=words.counts if spec.decoder else (0,) * len(ratios),
        streams=frozenset(range(len(ratios))),
    )


def _unit(blocks: Sequence[Sequence[Weight]], step: str) -> int:
    """Return how many columns of a step's weights stay together: those of quantised blocks."""
    kinds = {weight.kind for block in blocks for weight in block if weight.step == step}
    return math.lcm(*(FORMATS[kind].block for kind in kinds if kind in FORMATS))


def _outside(spec: ModelSpec) -> list[Step]:
    """Return the steps around the blocks, of which ``embedding`` is looked up and ``token`` decided."""
    steps = [Step("embedding", "lookup", ("x",), "vocabulary")]
    if not spec.decoder:
        return steps
    return [
        *steps,
        Step("norm", "norm", ("embedding",)),
        Step("head", "product", ("norm",), "vocabulary"),
        Step("token", "decide", ("head",)),
    ]


def _tied_head(spec: ModelSpec) -> list[Weight]:
    """Return what a product by the embedding table reads, where that is the output layer, too."""
    if not (spec.tied and spec.decoder):
        return []
    table = spec.weights_outside()[0]
    return [Weight("head", table.shape, table.kind)]


class _Sizes:
    """How many rows and columns of weights each rank has."""

    def __init__(self, spec: ModelSpec, heads: Heads, inner: Split, words: Split) -> None:
        columns = [count * spec.head_dim for count in heads.queries.counts]
        keys = [count * spec.head_dim for count in heads.kv_counts]
        self.ranks = range(inner.nranks)
        self._rows = {"q": columns, "k": keys, "v": keys, "gate": inner.counts, "up": inner.counts}
        self._rows |= {"embedding": words.counts, "head": words.counts}
        self._columns = {"o": columns, "down": inner.counts}

    def part(self, weight: Weight, rule: str, rank: int) -> tuple[int, int]:
        """Return the rows and columns that a rank has."""
        rows, columns = weight.matrix
        if rule == COLUMN:
            return self._rows[weight.step][rank], columns
        return rows, self._columns[weight.step][rank] if rule == ROW else columns


def padded_bytes(weight: Weight, rows: int, columns: int) -> int:
    """Return what rows and columns of a weight take of a device, with the bias of those rows."""
    if not rows or not columns:
        return 0
    experts = math.prod(weight.shape[:-2])
    return padded(experts * rows * stored(weight.kind, columns)) + (padded(_F32 * rows * experts) if weight.bias else 0)


def _after(placed: Sequence[Placed], name: str) -> str:
    """Return the collective that the results of a product, or what is made of them alone, go into."""
    follows = {name}
    for each in placed:
        found = [collective for collective, value in each.before if value in follows]
        if found:
            return found[0]
        if follows & set(each.step.inputs) and each.step.op in ("weigh", "add"):
            follows.add(each.step.name)
    return ""


def _stages(placed: Sequence[Placed], weights: Sequence[Weight], sizes: _Sizes) -> list[Stage]:
    """Return what ranks do between the collectives of a block."""
    read = {weight.step: weight for weight in weights}

    def fresh() -> Stage:
        return Stage([0.0] * len(sizes.ranks), [0] * len(sizes.ranks))

    stages = [fresh()]
    for each in placed:
        if each.before:
            stages.append(fresh())
        weight = read.get(each.step.name)
        for rank in sizes.ranks:
            part = sizes.part(weight, each.cut, rank) if weight is not None else (1, 1)
            if all(part):
                stages[-1].operations[rank] += _operations(each.step)
                stages[-1].nbytes[rank] += 0 if weight is None else weight.read * padded_bytes(weight, *part)
    return stages


def _operations(step: Step) -> int:
    return 0 if step.name in _TOGETHER else _OPERATIONS.get(step.op, 1)


# ---- row ----


def _row(spec: ModelSpec, ratios: tuple[Fraction, ...], main: int) -> Placement:
    ranks = range(len(ratios))
    blocks = [spec.weights_of_block(number) for number in range(spec.layers)]
    plain = [weight for weight in blocks[0] if len(weight.shape) == 2 and weight.step != "router"]
    sliced = {weight.step for weight in plain if min(weight.shape) >= ELIGIBLE}
    groups = {_GROUPS.get(weight.step, weight.step) for weight in plain if weight.step in sliced}
    if not sliced:
        raise UnsupportedError(f"row: no weight of a block has {ELIGIBLE} rows and columns")

    def rows_of(weight: Weight) -> tuple[int, ...]:
        rows = weight.matrix[0]
        return cut(rows, ratios).counts if weight.step in sliced else tuple(rows * (rank == main) for rank in ranks)

    tensors, stages = [], []
    for row in zip(*blocks, strict=True):
        held = [[padded_bytes(each, rows, each.matrix[1]) for rows in rows_of(each)] for each in row]
        rule, after = ("sliced", COLLECT) if row[0].step in sliced else ("whole", "")
        nbytes = tuple(map(sum, zip(*held, strict=True)))
        tensors.append(TensorPlan(row[0].step, spec.layers, rule, nbytes, after))
        counts = [spec.layers * (rule == "sliced" or rank == main) for rank in ranks]
        stages.append(Stage([row[0].read * n for n in nbytes], counts))
    stages[-1].operations[main] += (_OPERATIONS["attention"] + 1) * spec.layers
    outer, outer_stage = _whole(spec, ranks, main, main)
    moves = len(groups) * spec.layers
    alone = [rank == main for rank in ranks]
    return Placement(
        mode="row",
        splits={},
        tensors=(*tensors, *outer),
        stages=(*stages, *outer_stage),
        collectives={SEND: moves + int(spec.decoder), COLLECT: moves},
        blocks=tuple(spec.layers * own for own in alone),
        kv_heads=tuple(spec.kv_heads * own for own in alone),
        queries=tuple(spec.attention * own for own in alone),
        inner=tuple(spec.hidden * own for own in alone),
        words=tuple(spec.vocabulary * own * spec.decoder for own in alone),
        streams=frozenset([main]),
    )


# ---- layer, single ----


def _by_blocks(spec: ModelSpec, mode: str, blocks: Split) -> Placement:
    ranks = range(blocks.nranks)
    homes = [rank for rank in ranks if blocks.counts[rank]]
    every = [spec.weights_of_block(number) for number in range(spec.layers)]
    tensors, read = [], [0.0] * len(ranks)
    for row in zip(*every, strict=True):
        held = [padded_bytes(each, *each.matrix) for each in row]
        nbytes = tuple(sum(held[slice(*blocks.bounds(rank))]) for rank in ranks)
        tensors.append(TensorPlan(row[0].step, spec.layers, "whole", nbytes, ""))
        read = [sum_ + row[0].read * n for sum_, n in zip(read, nbytes, strict=True)]
    outer, outer_stage = _whole(spec, ranks, homes[0], homes[-1])
    operations = sum(map(_operations, spec.block()))
    stages = []
    for home in homes:
        stage = Stage([0.0] * len(ranks), [0] * len(ranks))
        stage.nbytes[home] = read[home]
        stage.operations[home] = operations * blocks.counts[home]
        stages.append(stage)
    told = int(spec.decoder and len(ranks) > 1 and mode == "layer")
    return Placement(
        mode=mode,
        splits={"layers": blocks},
        tensors=(*tensors, *outer),
        stages=(*stages, *outer_stage),
        collectives={SEND: len(homes) - 1 + told} if len(homes) > 1 else {},
        blocks=blocks.counts,
        kv_heads=tuple(spec.kv_heads * bool(count) for count in blocks.counts),
        queries=tuple(spec.attention * bool(count) for count in blocks.counts),
        inner=tuple(spec.hidden * bool(count) for count in blocks.counts),
        words=tuple(spec.vocabulary * spec.decoder * (rank == homes[-1]) for rank in ranks),
        streams=frozenset(homes),
    )


def _whole(spec: ModelSpec, ranks: range, first: int, last: int) -> tuple[list[TensorPlan], list[Stage]]:
    """Return how what is outside of the blocks lies: the table on one rank, the output layer on another or the same."""
    tensors = []
    stage = Stage([0.0] * len(ranks), [0] * len(ranks))
    outside = spec.weights_outside()
    if first != last:
        outside = [replace(outside[0], read=1 / spec.vocabulary), *outside[1:], *_tied_head(spec)]
    for weight in outside:
        home = first if weight.step == "embedding" else last
        nbytes = padded_bytes(weight, *weight.matrix)
        tensors.append(TensorPlan(weight.step, 1, "whole", tuple(nbytes * (rank == home) for rank in ranks), ""))
        stage.nbytes[home] += weight.read * nbytes
        stage.operations[home] += 1
    return tensors, [stage]
