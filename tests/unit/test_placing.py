"""A plan counts with the placement that loading goes by: who has what, in every mode."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.plan.laying import footprint
from vkpar.parallel.plan.placing import ELIGIBLE, MODES, Placement, place
from vkpar.parallel.plan.spec import ModelSpec, stored
from vkpar.vulkan.memory.pool import padded

KINDS = ("float32", "float16", "q8_0", "q4_0", "q4_k")
STEPS = ("q", "k", "v", "o", "gate", "up", "down")


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    layers, kv_heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    mixed = draw(st.lists(st.sampled_from(STEPS), unique=True, max_size=3))
    decoder = draw(st.booleans())
    return ModelSpec(
        layers,
        width=256 * draw(st.integers(1, 2)),
        hidden=256 * draw(st.integers(1, 4)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 64, 128])),
        vocabulary=draw(st.integers(1, 1000)),
        weights=draw(st.sampled_from(KINDS)),
        table="float16",
        tied=draw(st.booleans()),
        decoder=decoder,
        bias=not decoder,
        kinds=tuple((step, tuple(draw(st.sampled_from(KINDS)) for _ in range(layers))) for step in mixed),
    )


ratios_of = st.lists(st.integers(0, 5).map(Fraction), min_size=1, max_size=5).filter(any)
modes = st.sampled_from(MODES[1:])  # the first is for mixtures alone


def rows_of(spec: ModelSpec, placement: Placement, block: int) -> dict[str, list[tuple[int, int]]]:
    """Return by weight what loading puts on each rank of a block: rows and columns."""
    heads, inner = placement.heads[block], placement.inner[block]
    queries, width = [count * heads.width for count in heads.queries.counts], spec.width
    keys = [count * heads.width for count in heads.kv_counts]
    found = {step: [(n, width) for n in queries] for step in ("q",)}
    found |= {step: [(n, width) for n in keys] for step in ("k", "v")}
    found |= {step: [(n, width) for n in inner.counts] for step in ("gate", "up")}
    return found | {"o": [(width, n) for n in queries], "down": [(width, n) for n in inner.counts]}


@given(specs(), modes, ratios_of)
def test_parts_are_whole_and_ranks_without_a_share_have_none(
    spec: ModelSpec, mode: str, ratios: list[Fraction]
) -> None:
    placed = place(spec, mode, ratios)
    idle = [rank for rank, ratio in enumerate(ratios) if ratio == 0]
    assert len(placed.streams) == len(placed.heads) == len(placed.inner) == spec.layers
    assert placed.table.size == placed.outputs.size == spec.vocabulary
    for ranks, heads, inner in zip(placed.streams, placed.heads, placed.inner, strict=True):
        assert heads.queries.size == spec.heads
        assert inner.size == spec.hidden
        group = spec.heads // spec.kv_heads
        for rank, (start, stop) in enumerate(heads.keys):
            first, last = heads.queries.bounds(rank)
            assert last <= first or (start <= first // group and -(-last // group) <= stop)
        if mode != "tensor":
            assert len(ranks) == 1
        assert not any(heads.queries.counts[rank] or inner.counts[rank] for rank in idle)
    assert not any(placed.table.counts[rank] or placed.outputs.counts[rank] for rank in idle)
    if mode == "row":
        assert set(placed.streams) == {(next(rank for rank, ratio in enumerate(ratios) if ratio),)}
    if mode == "single":
        assert set(placed.streams) == {(ratios.index(max(ratios)),)}


@given(specs(), ratios_of)
def test_blocks_of_quantised_weights_stay_whole(spec: ModelSpec, ratios: list[Fraction]) -> None:
    placed = place(spec, "tensor", ratios)
    for block in range(spec.layers):
        kinds = {weight.step: weight.kind for weight in spec.weights_of_block(block)}
        columns = placed.heads[block].queries.scaled(spec.head_dim), placed.inner[block]
        for step, split in zip(("o", "down"), columns, strict=True):
            elements = FORMATS[kinds[step]].block if kinds[step] in FORMATS else 1
            borders = [border for rank in range(len(ratios)) for border in split.bounds(rank)]
            assert all(border % elements == 0 or border == split.size for border in borders)


@given(specs(), modes, ratios_of)
def test_a_plan_counts_what_loading_puts_on_each_rank(spec: ModelSpec, mode: str, ratios: list[Fraction]) -> None:
    try:
        needs = footprint(spec, mode, ratios)
    except UnsupportedError:
        assume(False)
        return
    placed, nranks = place(spec, mode, ratios), len(ratios)
    assert needs.placement == placed
    want = {step: [0] * nranks for step in STEPS}
    for block in range(spec.layers):
        weights = {weight.step: weight for weight in spec.weights_of_block(block) if weight.step in STEPS}
        parts = sliced_rows(spec, placed, block) if mode == "row" else rows_of(spec, placed, block)
        for step, weight in weights.items():
            for rank, (rows, columns) in enumerate(parts[step]):
                if rows and columns:
                    bias = padded(4 * rows) if weight.bias else 0
                    want[step][rank] += padded(rows * stored(weight.kind, columns)) + bias
    found = {tensor.name: list(tensor.nbytes) for tensor in needs.tensors}
    assert {step: found[step] for step in want if step in found} == {step: want[step] for step in want if step in found}
    for block, ranks in enumerate(placed.streams):
        for rank in ranks:
            assert needs.kv_heads[rank] == placed.heads[block].kv_counts[rank]
            assert needs.inner[rank] == placed.inner[block].counts[rank]
    assert needs.blocks == tuple(sum(rank in ranks for ranks in placed.streams) for rank in range(nranks))
    table = next(tensor.nbytes for tensor in needs.tensors if tensor.name == "embedding")
    assert [bool(nbytes) for nbytes in table] == [bool(count) for count in placed.table.counts]
    heads = [tensor.nbytes for tensor in needs.tensors if tensor.name == "head"]
    for nbytes in heads if spec.decoder else ():
        assert [bool(each) for each in nbytes] == [bool(count) for count in placed.outputs.counts]


def sliced_rows(spec: ModelSpec, placement: Placement, block: int) -> dict[str, list[tuple[int, int]]]:
    """Return what a row split puts on each rank: slices of what one product takes, as the layers stack it."""
    weights = {weight.step: weight for weight in spec.weights_of_block(block)}
    whole, found = rows_of(spec, placement, block), {}
    for group in (["q", "k", "v"], ["o"], ["gate", "up"], ["down"]):
        alike = len({weights[step].kind for step in group}) == 1
        for product in [group] if alike else [[step] for step in group]:
            counts, columns = [weights[step].shape[0] for step in product], weights[product[0]].shape[1]
            bounds = placement.sliced(counts, columns)
            for number, step in enumerate(product):
                if bounds is None:
                    found[step] = whole[step]
                else:
                    found[step] = [(stop - start, columns) for start, stop in bounds[number]]
    return found


@given(st.lists(st.integers(1, 600), min_size=1, max_size=3), st.integers(1, 600), ratios_of)
def test_slices_cover_each_weight_once(counts: list[int], columns: int, ratios: list[Fraction]) -> None:
    placed = place(ModelSpec(1, 256, 256, 1, 1, 256, 1), "row", ratios)
    found = placed.sliced(counts, columns)
    assert (found is None) == (min(sum(counts), columns) < ELIGIBLE)
    for count, bounds in zip(counts, found or [], strict=False):
        assert bounds[0][0] == 0
        assert bounds[-1][1] == count
        assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert place(ModelSpec(1, 256, 256, 1, 1, 256, 1), "layer", ratios).sliced(counts, columns) is None


def test_an_unknown_mode() -> None:
    for decide in (place, footprint):
        with pytest.raises(InvalidUsageError, match="no mode"):
            decide(ModelSpec(1, 256, 256, 1, 1, 256, 1), "columns", [Fraction(1)])
