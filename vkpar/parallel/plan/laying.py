"""Lays a model's tensors out by a placement: what each rank holds of each, what runs between collectives; pure."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from vkpar.errors import UnsupportedError
from vkpar.parallel.cut.split import Split
from vkpar.parallel.plan.footprint import Footprint, TensorPlan, Workload
from vkpar.parallel.plan.placing import ELIGIBLE, MODES, Placement, place, unit_of
from vkpar.parallel.plan.spec import ModelSpec, Weight, stored
from vkpar.parallel.plan.states import COLLECT, COLUMN, ROW, SEND, SUM, Placed, Step, collectives, infer
from vkpar.vulkan.memory.pool import padded

# Dispatches of a step: attention with two ropes and an append; sums take additions along.
_OPERATIONS: Final = {"attention": 5, "add": 0}
_TOGETHER: Final = ("k", "v", "gate", "shared gate")  # done by the product of "q", "up" or "shared up"
_GROUPS: Final = {  # what one product does together
    **dict.fromkeys("qkv", "q"),
    **dict.fromkeys(("gate", "up"), "up"),
    **dict.fromkeys(("shared gate", "shared up"), "shared up"),
}
_KEPT: Final = ("router", "share", "shared gate", "shared up", "shared down")  # by row splits, on the first rank
_CUTS: Final = ("heads", "inner", "shared")
_ENDS: Final = ("o", "down", "shared down")  # what gives the results of the halves of a block
_F32: Final = 4


def footprint(spec: ModelSpec, mode: str, ratios: Sequence[Fraction]) -> Footprint:
    """Return what a model takes of ranks in a mode; see :func:`vkpar.parallel.plan.placing.place`.

    Raises:
        InvalidUsageError: an unknown mode.
        UnsupportedError: the mode is not possible with these ratios; the message says why.
    """
    return _footprint(spec, mode, tuple(ratios))


@functools.lru_cache(maxsize=256)
def _footprint(spec: ModelSpec, mode: str, ratios: tuple[Fraction, ...]) -> Footprint:
    if sum(ratio > 0 for ratio in ratios) < 2 and mode in MODES and mode != "single":
        raise UnsupportedError(f"{mode}: one device alone has a share")
    if mode == "expert" and not spec.experts:
        raise UnsupportedError("expert: the model has no experts")
    placement = place(spec, mode, ratios)
    if mode in ("expert", "tensor"):
        return _tensor(spec, placement)
    if mode == "row":
        return _row(spec, placement)
    if mode == "layer" and len(set(placement.streams)) < 2:
        raise UnsupportedError(f"layer: of {spec.layers} blocks by these ratios one device gets all")
    return _by_blocks(spec, placement)


# ---- tensor ----


def _tensor(spec: ModelSpec, placement: Placement) -> Footprint:
    blocks = [spec.weights_of_block(number) for number in range(spec.layers)]
    heads, inner, words = placement.heads[0], placement.inner[0], placement.table
    if sum(map(bool, heads.queries.counts)) < 2:
        unit = unit_of(spec, "o")
        raise UnsupportedError(
            f"{placement.mode}: {spec.heads} heads over {spec.kv_heads} of keys and values, {spec.head_dim} wide, "
            f"cannot be cut by these ratios{f' between blocks of {unit}' if unit > 1 else ''}: one device gets all"
        )
    laid = [(infer(spec.block(number), _CUTS), _Sizes(spec, placement, number)) for number in range(spec.layers)]
    sizes, tensors = laid[0][1], []
    for row in _alike(blocks):
        number, first = row[0]
        placed, step = laid[number][0], first.step
        rule = next(each.cut for each in placed if each.step.name == step)
        nbytes = tuple(sum(laid[own][1].nbytes(each, rule, rank) for own, each in row) for rank in sizes.ranks)
        after = _after(placed, step) if step in _ENDS else ""
        tensors.append(TensorPlan(step, len(row), rule, nbytes, after))
    outside = infer(_outside(spec), {"vocabulary"})
    rules = {each.step.name: each.cut for each in outside}
    for weight in spec.weights_outside():
        rule = rules[weight.step]
        nbytes = tuple(padded_bytes(weight, *sizes.part(weight, rule, rank)) for rank in sizes.ranks)
        after = {"embedding": SUM, "head": COLLECT}.get(weight.step, "")
        tensors.append(TensorPlan(weight.step, 1, rule, nbytes, after))
    stages = [stage for (placed, own), block in zip(laid, blocks, strict=True) for stage in _stages(placed, block, own)]
    stages += _stages(outside, [*spec.weights_outside(), *_tied_head(spec)], sizes)
    calls = Counter(name for placed in (*(placed for placed, _ in laid), outside) for name in collectives(placed))
    return Footprint(
        placement,
        spec.decoder,
        tuple(map(spec.mixes, range(spec.layers))),
        splits={
            "heads": heads.queries,
            **({"experts": placement.experts[0]} if placement.experts else {"inner": inner}),
            "vocabulary": words,
        },
        tensors=tuple(tensors),
        stages=tuple(stages),
        collectives=dict(calls),
    )


def _alike(blocks: Sequence[Sequence[Weight]]) -> list[list[tuple[int, Weight]]]:
    """Return the tensors that blocks have of one step and of as many dimensions, each with its block, in order."""
    found: dict[tuple[str, int], list[tuple[int, Weight]]] = {}
    for number, block in enumerate(blocks):
        for weight in block:
            found.setdefault((weight.step, len(weight.shape)), []).append((number, weight))
    return list(found.values())


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

    def __init__(self, spec: ModelSpec, placement: Placement, block: int) -> None:
        heads, inner, words, shared = placement.heads[0], placement.inner[block], placement.table, placement.shared[0]
        self._experts = placement.experts[0] if placement.experts else None
        columns = [count * spec.head_dim for count in heads.queries.counts]
        keys = [count * spec.head_dim for count in heads.kv_counts]
        self.ranks = range(inner.nranks)
        self._rows = {"q": columns, "k": keys, "v": keys, "gate": inner.counts, "up": inner.counts}
        self._rows |= {"embedding": words.counts, "head": words.counts}
        self._rows |= {"shared gate": shared.counts, "shared up": shared.counts}
        self._columns = {"o": columns, "down": inner.counts, "shared down": shared.counts}

    def nbytes(self, weight: Weight, rule: str, rank: int) -> int:
        """Return what a rank's part of a weight takes, of whole experts those that it has."""
        if self._experts is not None and len(weight.shape) > 2:
            weight = replace(weight, shape=(self._experts.counts[rank], *weight.matrix))
        return padded_bytes(weight, *self.part(weight, rule, rank))

    def part(self, weight: Weight, rule: str, rank: int) -> tuple[int, int]:
        """Return the rows and columns that a rank has, of each expert that it has."""
        rows, columns = weight.matrix
        if self._experts is not None and len(weight.shape) > 2:
            return (rows, columns) if self._experts.counts[rank] else (0, 0)
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


def _stages(placed: Sequence[Placed], weights: Sequence[Weight], sizes: _Sizes) -> list[Workload]:
    """Return what ranks do between the collectives of a block."""
    read = {weight.step: weight for weight in weights}

    def fresh() -> Workload:
        return Workload([0.0] * len(sizes.ranks), [0] * len(sizes.ranks))

    stages = [fresh()]
    for each in placed:
        if each.before:
            stages.append(fresh())
        weight = read.get(each.step.name)
        for rank in sizes.ranks:
            part = sizes.part(weight, each.cut, rank) if weight is not None else (1, 1)
            if all(part):
                stages[-1].operations[rank] += _operations(each.step)
                stages[-1].nbytes[rank] += 0 if weight is None else weight.read * sizes.nbytes(weight, each.cut, rank)
    return stages


def _operations(step: Step) -> int:
    return 0 if step.name in _TOGETHER else _OPERATIONS.get(step.op, 1)


# ---- row ----


def _row(spec: ModelSpec, placement: Placement) -> Footprint:
    main, ranks = placement.streams[0][0], range(placement.table.nranks)
    blocks = [list(_sliced(spec.weights_of_block(number), placement)) for number in range(spec.layers)]
    sliced = {(weight.step, len(weight.shape)) for block in blocks for weight, _, whole in block if not whole}
    moves = sum(
        len({_GROUPS.get(weight.step, weight.step) for weight, _, whole in block if not whole}) for block in blocks
    )
    if not sliced:
        raise UnsupportedError(f"row: no weight of a block has {ELIGIBLE} rows and columns")
    tensors, stages = [], []
    rows = {(number, id(weight)): counts for number, block in enumerate(blocks) for weight, counts, _ in block}
    for row in _alike([[weight for weight, *_ in block] for block in blocks]):
        held = [[padded_bytes(each, n, each.matrix[1]) for n in rows[number, id(each)]] for number, each in row]
        nbytes, first = tuple(map(sum, zip(*held, strict=True))), row[0][1]
        rule, after = ("sliced", COLLECT) if (first.step, len(first.shape)) in sliced else ("whole", "")
        tensors.append(TensorPlan(first.step, len(row), rule, nbytes, after))
        operations = [len(row) * (rule == "sliced" or rank == main) for rank in ranks]
        stages.append(Workload([first.read * n for n in nbytes], operations))
    stages[-1].operations[main] += (_OPERATIONS["attention"] + 1) * spec.layers
    outer, outer_stage = _whole(spec, placement)
    return Footprint(
        placement,
        spec.decoder,
        tuple(map(spec.mixes, range(spec.layers))),
        splits={},
        tensors=(*tensors, *outer),
        stages=(*stages, *outer_stage),
        collectives={SEND: moves + int(spec.decoder), COLLECT: moves},
    )


def _sliced(weights: Sequence[Weight], placement: Placement) -> Iterator[tuple[Weight, list[int], bool]]:
    """Yield the weights of a block, in order, how many rows each rank has, and whether one rank has all of them."""
    main, ranks = placement.streams[0][0], range(placement.table.nranks)
    for product in _products(weights):
        plain = len(product[0].shape) == 2 and product[0].step not in _KEPT
        found = placement.sliced([each.shape[0] for each in product], product[0].shape[1]) if plain else None
        for number, each in enumerate(product):
            if found is None:
                yield each, [each.matrix[0] * (rank == main) for rank in ranks], True
            else:
                yield each, [stop - start for start, stop in found[number]], False


def _products(weights: Sequence[Weight]) -> list[list[Weight]]:
    """Return the weights of a block by product: one product takes what is stored alike of the same inputs."""
    groups: dict[str, list[Weight]] = {}
    for weight in weights:
        groups.setdefault(_GROUPS.get(weight.step, weight.step), []).append(weight)
    made = []
    for group in groups.values():
        together = len({weight.kind for weight in group}) == 1 and len(group[0].shape) == 2
        made += [group] if together else [[weight] for weight in group]
    return made


# ---- layer, single ----


def _by_blocks(spec: ModelSpec, placement: Placement) -> Footprint:
    ranks = range(placement.table.nranks)
    blocks = Split.of([placement.streams.count((rank,)) for rank in ranks])
    homes = [rank for rank in ranks if blocks.counts[rank]]
    every = [spec.weights_of_block(number) for number in range(spec.layers)]
    tensors, read = [], [0.0] * len(ranks)
    for row in _alike(every):
        taken = [0] * len(ranks)
        for number, each in row:
            taken[placement.streams[number][0]] += padded_bytes(each, *each.matrix)
        first = row[0][1]
        tensors.append(TensorPlan(first.step, len(row), "whole", tuple(taken), ""))
        read = [sum_ + first.read * n for sum_, n in zip(read, taken, strict=True)]
    outer, outer_stage = _whole(spec, placement)
    operations = [sum(map(_operations, spec.block(number))) for number in range(spec.layers)]
    stages = []
    for home in homes:
        stage = Workload([0.0] * len(ranks), [0] * len(ranks))
        stage.nbytes[home] = read[home]
        stage.operations[home] = sum(operations[slice(*blocks.bounds(home))])
        stages.append(stage)
    told = int(spec.decoder and len(ranks) > 1 and placement.mode == "layer")
    return Footprint(
        placement,
        spec.decoder,
        tuple(map(spec.mixes, range(spec.layers))),
        splits={"layers": blocks},
        tensors=(*tensors, *outer),
        stages=(*stages, *outer_stage),
        collectives={SEND: len(homes) - 1 + told} if len(homes) > 1 else {},
    )


def _whole(spec: ModelSpec, placement: Placement) -> tuple[list[TensorPlan], list[Workload]]:
    """Return how what is outside of the blocks lies: the table on one rank, the output layer on another or the same."""
    ranks, first, last = range(placement.table.nranks), placement.streams[0][0], placement.streams[-1][0]
    tensors = []
    stage = Workload([0.0] * len(ranks), [0] * len(ranks))
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
