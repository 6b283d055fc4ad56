"""Plans: states through blocks, sizes that add up, modes that fall back and say why, the fastest that fits."""

from __future__ import annotations

import logging
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.infos import fake_info
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.ops.tiles.cpu import ON_GPUS, Weights
from vkpar.parallel import ModelSpec, spec_of
from vkpar.parallel.cut.heads import split_heads
from vkpar.parallel.cut.modules import parse_modules
from vkpar.parallel.plan.footprint import Footprint
from vkpar.parallel.plan.laying import footprint
from vkpar.parallel.plan.placing import MODES
from vkpar.parallel.plan.plan import choose
from vkpar.parallel.plan.report import Plan, RigFacts
from vkpar.parallel.plan.scratch import Stored, Widths, block_nbytes, stored_as
from vkpar.parallel.plan.spec import stored
from vkpar.parallel.plan.states import Step, collectives, infer

GIB = 1 << 30
LLAMA = ModelSpec(32, 4096, 14336, 32, 8, 128, 32000)
ENCODER = ModelSpec(6, 384, 1536, 12, 12, 32, 30522, weights="float32", decoder=False, gated=False, bias=True)
MIXTRAL = replace(LLAMA, experts=8, active=2)
SHARING = replace(LLAMA, hidden=2048, experts=8, active=2, shared=7168)
MIXED = replace(SHARING, sparse=(False,) + (True,) * 31, dense=14336)  # the first block has no experts


def rig(nranks: int, free: int = 130 * GIB, speed: float = 4e12, seconds: float = 14e-6) -> RigFacts:
    names = tuple(f"card {rank}" for rank in range(nranks))
    return RigFacts(names, (free,) * nranks, (speed,) * nranks, (4e-6,) * nranks, seconds)


def even(nranks: int) -> tuple[Fraction, ...]:
    return (Fraction(1),) * nranks


# ---- states ----


def cuts_of(spec: ModelSpec) -> dict[str, tuple[str, str]]:
    return {each.step.name: (each.cut, each.bias) for each in infer(spec.block(), {"heads", "inner", "shared"})}


@pytest.mark.parametrize("spec", [LLAMA, ENCODER, MIXTRAL, SHARING], ids=["decoder", "encoder", "experts", "shared"])
def test_column_then_row_then_one_sum(spec: ModelSpec) -> None:
    placed = infer(spec.block(), {"heads", "inner", "shared"})
    calls = collectives(placed)
    assert calls.count("all_reduce") == 2
    assert calls.count("broadcast") == bool(spec.experts)  # the router's choice, made on one rank
    assert len(calls) == 2 + bool(spec.experts)
    found = cuts_of(spec)
    bias = ("column", "after the sum") if spec.bias else ("", "")
    assert found["q"] == found["k"] == found["v"] == found["up"] == ("column", bias[0])
    assert found["o"] == found["down"] == ("row", bias[1])
    assert found["attention norm"][0] == "mirrored"
    if spec.shared:
        assert found["shared gate"] == found["shared up"] == ("column", "")
        assert (found["shared down"][0], found["share"][0]) == ("row", "mirrored")
    assert found.get("router", ("mirrored", ""))[0] == "mirrored"
    whole = infer(spec.block(), ())
    assert {each.cut for each in whole} == {"mirrored"}
    assert collectives(whole).count("all_reduce") == 0


def test_sums_of_experts_wait_until_they_are_added() -> None:
    steps = [
        *(Step(f"{name}{number}", "product", ("x",), "inner") for number in range(2) for name in ("gate", "up")),
        *(Step(f"act{number}", "each", (f"gate{number}", f"up{number}")) for number in range(2)),
        *(Step(f"down{number}", "product", (f"act{number}",)) for number in range(2)),
        Step("router", "product", ("x",)),
        Step("choice", "decide", ("router",)),
        Step("weighed", "weigh", ("down0", "choice")),
        Step("experts", "add", ("weighed", "down1")),
        Step("out", "add", ("x", "experts")),
    ]
    placed = infer(steps, {"inner"})
    assert collectives(placed) == ["broadcast", "all_reduce"]
    assert placed[-1].before == (("all_reduce", "experts"),)
    owed = infer(steps[:-1], {"inner"}, end="partial")
    assert (collectives(owed), owed[-1].state) == (["broadcast"], "partial")
    assert collectives(infer(steps[:-1], {"inner"})) == ["broadcast", "all_reduce"]


def test_what_cannot_stay_split_is_gathered() -> None:
    steps = [Step("a", "product", ("x",), "inner"), Step("b", "norm", ("a",)), Step("c", "decide", ("a",))]
    assert collectives(infer(steps, {"inner"})) == ["all_gather", "broadcast"]
    steps = [Step("a", "product", ("x",), "words"), Step("c", "decide", ("a",))]
    assert collectives(infer(steps, {"words"})) == ["gather", "broadcast"]
    for bad in ([Step("a", "dance", ("x",))], [Step("a", "norm", ("y",))], [Step("x", "norm", ("x",))]):
        with pytest.raises(InvalidUsageError):
            infer(bad, ())


# ---- sizes ----


def elements(spec: ModelSpec) -> int:
    """Return the bytes of a model's tensors, counted by hand."""
    block = stored(spec.weights, spec.width) * (spec.attention + 2 * spec.kv_heads * spec.head_dim)
    block += stored(spec.weights, spec.attention) * spec.width
    experts = spec.experts or 1
    block += experts * stored(spec.weights, spec.width) * spec.hidden * (2 if spec.gated else 1)
    block += experts * stored(spec.weights, spec.hidden) * spec.width
    block += 2 * stored(spec.weights, spec.width) * spec.shared + stored(spec.weights, spec.shared) * spec.width
    kind = "float16" if spec.weights.startswith("q") else spec.weights
    whole = spec.layers * block
    for _ in range(spec.sparse.count(False)):
        whole += stored(spec.weights, spec.width) * (2 * spec.dense - 2 * experts * spec.hidden - 2 * spec.shared)
        whole += spec.width * (
            stored(spec.weights, spec.dense)
            - experts * stored(spec.weights, spec.hidden)
            - stored(spec.weights, spec.shared)
        )
    return whole + stored(kind, spec.width) * spec.vocabulary * (1 if spec.tied or not spec.decoder else 2)


SPECS = [
    LLAMA,
    ENCODER,
    MIXTRAL,
    SHARING,
    MIXED,
    replace(LLAMA, weights="q4_k"),
    replace(LLAMA, weights="q8_0", tied=True),
]


@given(st.sampled_from(SPECS), st.sampled_from(MODES), st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
def test_parts_add_up_to_the_model(spec: ModelSpec, mode: str, ratios: list[int]) -> None:
    exact = tuple(map(Fraction, ratios))
    try:
        made = footprint(spec, mode, exact)
    except UnsupportedError:
        assert mode != "single"
        return
    if mode in ("expert", "tensor") and sum(map(bool, ratios)) > spec.kv_heads:
        return  # heads of keys are on several ranks
    large = [each for each in made.tensors if "norm" not in each.name and each.name not in ("router", "share")]
    total = sum(sum(each.nbytes) for each in large)
    second = spec.tied and mode == "layer" and made.splits["layers"].counts[-1] != spec.layers
    extra = elements(replace(spec, layers=1)) if second else 0  # the table once more on the last rank, at most
    assert elements(spec) <= total <= 1.01 * elements(spec) + extra
    for rank, ratio in enumerate(ratios):
        if not ratio:
            assert not any(each.nbytes[rank] for each in made.tensors if each.cut != "mirrored")


def test_quantised_weights_are_cut_between_blocks() -> None:
    spec = replace(LLAMA, weights="q4_k")
    made = footprint(spec, "tensor", tuple(map(Fraction, (5, 2, 1))))
    assert all(border % 256 == 0 for border in made.splits["inner"].borders)
    assert all(border * 128 % 256 == 0 for border in made.splits["heads"].borders)
    narrow = replace(spec, heads=2, kv_heads=1)  # 256 columns: one block of each row
    with pytest.raises(UnsupportedError, match="between blocks of 256: one device gets all"):
        footprint(narrow, "tensor", even(2))


@pytest.mark.parametrize("nranks", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("kind", "heads", "kv_heads", "width", "possible"),
    [
        ("q4_k", 6, 2, 128, False),
        ("q4_k", 10, 2, 64, False),
        ("q8_0", 9, 3, 40, False),
        ("q4_k", 8, 2, 128, True),
        ("q4_k", 5, 1, 128, True),  # what is left over at the end is no border
        ("q8_0", 6, 2, 128, True),
        ("float16", 6, 2, 40, True),
    ],
)
def test_more_ranks_than_heads_of_keys_between_blocks(
    caplog: pytest.LogCaptureFixture, nranks: int, kind: str, heads: int, kv_heads: int, width: int, possible: bool
) -> None:
    """Of a group of queries that ends within a block no rank can have a part: the plan says so, before it is loaded."""
    spec = ModelSpec(1, 256, 512, heads, kv_heads, width, 1000, weights=kind)
    if possible:
        assert choose(spec, rig(nranks), even(nranks), mode="tensor", strict=True).mode == "tensor"
        return
    with pytest.raises(UnsupportedError, match=f"tensor: {heads} heads over {kv_heads} .* one device gets all"):
        choose(spec, rig(nranks), even(nranks), mode="tensor", strict=True)
    assert choose(spec, rig(nranks), even(nranks), mode="tensor").mode == "row"
    assert "trying the mode row" in caplog.text


@given(
    kv_heads=st.integers(1, 12),
    group=st.integers(1, 8),
    width=st.sampled_from([16, 32, 40, 64, 80, 96, 128, 256]),
    unit=st.sampled_from([1, 32, 256]),
    ratios=st.lists(st.integers(0, 5), min_size=1, max_size=9).filter(any),
)
def test_heads_are_cut_at_borders_that_attention_and_blocks_have(
    kv_heads: int, group: int, width: int, unit: int, ratios: list[int]
) -> None:
    found = split_heads(kv_heads * group, kv_heads, width, ratios, unit)
    borders = found.queries.borders
    assert borders[-1] == kv_heads * group
    assert all(border * width % unit == 0 for border in borders if border != borders[-1])
    for rank, (start, stop) in enumerate(found.keys):
        first, last = found.queries.bounds(rank)
        if first == last:
            assert start == stop == 0
            continue
        assert ratios[rank] > 0
        assert (start, stop) == (first // group, -(-last // group))
        shares_one = stop - start == 1
        assert shares_one or (first % group == last % group == 0), "whole groups, or a part of one"


def test_what_kernels_do_not_see_as_a_whole_is_refused() -> None:
    """Keys of a block that no binding holds: other modes have them in parts, as all modes have tables."""
    keys = 8 * 4096 * 128 * 2
    facts = replace(rig(2), bindings=(32000 * 4096,) * 2)
    assert choose(LLAMA, facts, even(2), mode="single", strict=True).mode == "single"
    facts, small = replace(rig(2), bindings=(keys,) * 2), replace(LLAMA, vocabulary=100)
    assert choose(small, facts, even(2), mode="single", context=4096, strict=True).context == 4096
    with pytest.raises(UnsupportedError, match="layer: rank 0 would have a block's keys in "):
        choose(small, facts, even(2), mode="layer", context=4097, strict=True)
    assert choose(small, facts, even(2), mode="tensor", context=8192, strict=True).mode == "tensor"
    with pytest.raises(UnsupportedError, match="heads have 516 elements, and attention takes 512"):
        choose(replace(LLAMA, head_dim=516), rig(2), even(2))


def test_kernels_see_the_keys_that_windows_keep() -> None:
    """A context whose keys no kernel would see is no matter where all blocks have windows."""
    facts, windows = replace(rig(1), bindings=(32 << 20,)), replace(LLAMA, vocabulary=100, window=1000)
    assert choose(windows, facts, even(1), mode="single", context=1 << 20).memory[0].cache < 1 * GIB
    one = (False, *[True] * (LLAMA.layers - 1))
    for spec in (replace(windows, window=None), replace(windows, sliding=one)):
        with pytest.raises(UnsupportedError, match=r"would have a block's keys in .*, and a kernel sees"):
            choose(spec, replace(facts, free=(1000 * GIB,)), even(1), mode="single", context=1 << 20)


@pytest.mark.parametrize("mode", MODES[1:])
def test_without_measurements_there_is_no_estimate(mode: str) -> None:
    facts = RigFacts(("a", "b"), (130 * GIB,) * 2)
    made = choose(LLAMA, facts, (Fraction(1), Fraction(2)), mode=mode, strict=True)
    assert (made.mode, made.seconds, made.as_dict()["seconds"]) == (mode, None, None)
    assert "estimate" not in made.explain()
    assert made.explain().startswith(f"mode {mode}, ")
    if mode == "single":
        assert made.ratios == (0, 1), "the larger ratio, the first of equals"
        assert choose(LLAMA, facts, even(2), mode=mode).ratios == (1, 0)


def test_a_file_of_several_formats() -> None:
    mixed = tuple("q4_k" if number % 2 else "float16" for number in range(32))
    spec = replace(LLAMA, weights="q4_k", kinds=(("down", mixed), ("v", ("float16",) * 32)))
    for mode in MODES[1:]:
        made = footprint(spec, mode, even(2))
        sizes = {each.name: sum(each.nbytes) for each in made.tensors}
        assert sizes["down"] == 16 * 4096 * 14336 * 2 + 16 * 4096 * 14336 // 256 * 144
        assert sizes["v"] == 32 * 1024 * 4096 * 2
        assert sizes["q"] == 32 * 4096 * 4096 // 256 * 144
    halves = footprint(spec, "layer", (Fraction(1), Fraction(31))).tensors
    assert next(each.nbytes[0] for each in halves if each.name == "down") == 4096 * 14336 * 2  # the first block's
    for kinds in ((("down", ("q8_0",)),), (("sideways", mixed),), (("down", ("q9",) * 32),)):
        with pytest.raises(InvalidUsageError):
            replace(LLAMA, kinds=kinds)


@pytest.mark.parametrize("cache", ["float16", "float32"])
def test_pieces_and_scratch_memory_of_several_formats(cache: str) -> None:
    """What a plan says is unpacked does not depend on which format has a name of its own."""
    first = replace(LLAMA, weights="q8_0", kinds=(("down", ("float16",) * 32),), cache=cache)
    others = tuple((step, ("q8_0",) * 32) for step in ("q", "k", "v", "o", "gate", "up"))
    second = replace(LLAMA, weights="float16", kinds=others, cache=cache)
    assert first.product_kinds == second.product_kinds == {"q8_0", "float16"}
    assert replace(first, weights="q4_0", kinds=(*others, ("down", ("q4_k",) * 32))).product_kinds == {"q8_0", "q4_k"}
    assert stored_as(first) == stored_as(second)
    assert stored_as(first).quantized
    assert stored_as(replace(LLAMA, cache=cache)) == Stored(cache == "float16", False, cache != "float16", 2)
    mixed, rows = stored_as(first), 512
    alone = [stored_as(replace(LLAMA, weights=kind, kinds=(), cache=cache)) for kind in ("q8_0", "float16")]
    large = Widths(8192, 8192, 1024, 28672)
    assert block_nbytes(large, rows, mixed) >= max(block_nbytes(large, rows, each) for each in alone)
    assert block_nbytes(large, 1, mixed) >= max(block_nbytes(large, 1, each) for each in alone)


@pytest.mark.parametrize("cache", ["float16", "float32"])
def test_each_device_unpacks_as_its_products_do(cache: str) -> None:
    """Beside a CPU driver nothing is rounded, and a GPU unpacks as large pieces as ever."""
    gpu, processor = ON_GPUS, Weights(halves=False, turned=False, lanes=False)
    spec = replace(LLAMA, weights="q4_k", cache=cache)
    plain = replace(spec, weights="float32")
    for ways in ((gpu, processor), (processor, gpu), (processor, processor), (gpu, gpu)):
        made = choose(spec, replace(rig(2), products=ways), even(2), mode="tensor")
        without = choose(plain, replace(rig(2, free=100 * GIB), products=ways), even(2), mode="tensor")
        for rank, way in enumerate(ways):
            assert stored_as(spec, ways, rank).halves == (cache == "float16" and processor not in ways)
            if cache == "float16" and processor not in ways:
                continue  # inputs are rounded, and results are shorter
            more = made.memory[rank].activations - without.memory[rank].activations
            assert more > 64 << 20 if way is gpu else 0 < more < 64 << 20


# ---- choices ----


def total(made: Footprint | Plan, name: str) -> int:
    return sum(made.collectives.get(key, 0) for key in (name,))


def test_auto_takes_the_fastest_and_says_why() -> None:
    two = choose(LLAMA, rig(2), even(2))
    assert (two.mode, total(two, "all_reduce")) == ("tensor", 65)
    assert two.reasons[0].startswith("tensor: single would take 5.")
    assert "(67 sums or moves of 14 us)" in two.reasons[0]
    slow = choose(LLAMA, rig(2, seconds=1e-3), even(2))
    assert slow.mode == "single"
    assert slow.collectives == {}
    assert slow.seconds == pytest.approx((elements(LLAMA) - 2**18 * 1000) / 4e12, rel=0.5)
    assert choose(LLAMA, rig(1), even(1)).mode == "single"
    crowded = choose(LLAMA, rig(2, free=10 * GIB, seconds=1e-3), even(2))
    assert crowded.mode == "layer"
    assert any("single: rank 0 would need 14.1" in reason for reason in crowded.reasons)


def test_of_estimates_that_are_alike_auto_takes_the_simplest() -> None:
    """Of one text, two equal cards that have blocks of their own take turns: nothing is to be gained."""
    made = choose(LLAMA, rig(2, seconds=30e-6), even(2))
    assert made.mode == "single"
    assert made.ratios == (1, 0), "of equal cards the first"
    assert "single and layer differ by less than estimates are off (of one text," in made.reasons[0]
    assert made.reasons[0].endswith(": single is the simplest")
    uneven = replace(rig(2, seconds=30e-6), speeds=(4e12, 4.2e12))
    assert choose(LLAMA, uneven, even(2)).ratios == (0, 1)
    slower = replace(rig(2, seconds=30e-6), speeds=(4e12, 3e12))
    assert "differ by less" not in choose(LLAMA, slower, even(2)).reasons[0]


def test_a_slow_device_gets_nothing_and_the_plan_says_so() -> None:
    facts = RigFacts(("card", "processor"), (130 * GIB, 60 * GIB), (4e12, 1e10), (4e-6, 1e-4), 1e-4)
    made = choose(LLAMA, facts, (Fraction(400), Fraction(1)))
    assert made.mode == "single"
    assert made.nbytes[1] == 0
    assert "one device gets all" in " ".join(made.reasons)
    three = RigFacts(("a", "b", "processor"), (130 * GIB,) * 3, (4e12, 4e12, 1e10), (4e-6,) * 3, 1e-5)
    speeds = (Fraction(400), Fraction(400), Fraction(1))
    slow = choose(LLAMA, three, speeds, mode="tensor")
    assert slow.splits["inner"].counts[2] > 0  # as the ratios say
    made = choose(LLAMA, three, speeds, (Fraction(1),) * 3)
    assert (made.mode, made.splits["inner"].counts) == ("tensor", (7168, 7168, 0))
    assert made.seconds < slow.seconds
    assert "tensor: rank 2 (processor) gets nothing: a token would take" in " ".join(made.reasons)
    made = choose(LLAMA, three, speeds, mode="layer")
    assert made.splits["layers"].counts == (16, 16, 0)
    assert any(
        reason.startswith("rank 2 (processor) gets nothing: 0.12% of the blocks is less than a whole one")
        for reason in made.reasons
    )


def test_modes_fall_back_in_order(caplog: pytest.LogCaptureFixture) -> None:
    small = ModelSpec(4, 64, 128, 4, 1, 16, 100, weights="q8_0")
    with caplog.at_level(logging.WARNING, "vkpar"):
        made = choose(small, rig(2), (Fraction(1), Fraction(0)), mode="tensor")
    assert made.mode == "single"
    assert [record.message.split(":")[0] for record in caplog.records] == ["tensor", "row", "layer"]
    assert [reason.split(":")[0] for reason in made.reasons[:3]] == ["tensor", "row", "layer"]
    with pytest.raises(UnsupportedError, match="tensor: one device alone has a share"):
        choose(small, rig(2), (Fraction(1), Fraction(0)), mode="tensor", strict=True)
    with pytest.raises(UnsupportedError, match="row: no weight of a block has 256 rows and columns"):
        choose(small, rig(2), even(2), mode="row", strict=True)
    with pytest.raises(UnsupportedError, match=r"no mode is possible: .*single: rank 0 would need"):
        choose(LLAMA, rig(2, free=GIB), even(2))


def test_memory_decides_where_speed_does_not_fit() -> None:
    facts = RigFacts(("fast", "large"), (6 * GIB, 20 * GIB), (4e12, 1e12), (4e-6,) * 2, 14e-6)
    speeds, free = (Fraction(4), Fraction(1)), (Fraction(6), Fraction(20))
    made = choose(LLAMA, facts, speeds, free, mode="tensor")
    assert all(rank.fits for rank in made.memory)
    assert any("by memory in place of speed: tensor: rank 0 would need" in reason for reason in made.reasons)
    layers = choose(LLAMA, facts, speeds, free, mode="layer").splits["layers"].counts
    assert layers[0] + layers[1] == 32
    assert 0 < layers[0] < 16 < layers[1]
    assert choose(LLAMA, facts, speeds, free, mode="single").ratios == (0, 1)


def test_fit_is_the_largest_context() -> None:
    for mode in MODES[1:]:
        made = choose(LLAMA, rig(2, free=16 * GIB), even(2), mode=mode)
        context = made.fit()
        assert context > 4096
        assert choose(LLAMA, rig(2, free=16 * GIB), even(2), mode=mode, strict=True, context=context).mode == made.mode
        with pytest.raises(UnsupportedError):
            choose(LLAMA, rig(2, free=16 * GIB), made.ratios, mode=made.mode, strict=True, context=context + 256)


def test_what_a_plan_prints_and_gives() -> None:
    made = choose(LLAMA, rig(3), tuple(map(Fraction, (5, 2, 1))), mode="tensor")
    shown = str(made)
    for part in ("mode tensor", "65 all_reduce", "down", "row", "card 2", "fits", "context 4096"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 120
    data = made.as_dict()
    assert data["splits"]["heads"] == [20, 8, 4]
    assert sum(data["splits"]["inner"]) == 14336


# ---- specs ----


def test_specs_of_configurations() -> None:
    found = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    assert spec_of(found) == LLAMA
    assert spec_of(found | {"num_local_experts": 8, "num_experts_per_tok": 2}) == MIXTRAL
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 32,
        "llama.embedding_length": 4096,
        "llama.feed_forward_length": 14336,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "tokenizer.ggml.tokens": ["a"] * 32000,
    }
    assert spec_of(metadata, weights="q8_0") == replace(LLAMA, weights="q8_0")
    kinds = {"v": ["float16"] * 32}
    assert spec_of(metadata, kinds=kinds) == replace(LLAMA, kinds=(("v", ("float16",) * 32),))
    encoder = {"model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
    assert spec_of(encoder | {"num_attention_heads": 12, "vocab_size": 30522}, weights="float32") == ENCODER
    with pytest.raises(WeightsError, match="lacks width, hidden, heads, vocabulary"):
        spec_of({"num_hidden_layers": 3})
    for bad in (
        {"layers": 0},
        {"layers": True},
        {"kv_heads": 5},
        {"experts": 2},
        {"weights": "q3"},
        {"width": 1 << 40},
    ):
        with pytest.raises(InvalidUsageError):
            replace(LLAMA, **bad)


JSON = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 90,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 16,
    "llama.vocab_size": 90,
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "wrong", ["64", 64.0, True, np.int64(64), np.float32(64), np.uint32([64] * 3), [[64]], -1, 1 << 40], ids=repr
)
def test_a_size_that_is_no_whole_number_is_named(wrong: Any) -> None:
    assert spec_of(JSON) == spec_of(METADATA)
    for source in (JSON | EXPERTS, METADATA | {"llama.expert_count": 8, "llama.expert_used_count": 2}):
        for key in source:
            if key in ("model_type", "general.architecture"):
                continue
            with pytest.raises(InvalidUsageError, match=key):
                spec_of(source | {key: wrong})
    sizes = {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16}
    sizes |= {"vocabulary": 90, "tied": False}
    assert spec_of(SimpleNamespace(**sizes)) == spec_of(JSON)
    for key in sizes:
        if key != "tied":
            with pytest.raises(InvalidUsageError, match=rf"the model's (\w+ \()?{key}\)? is a whole number"):
                spec_of(SimpleNamespace(**sizes | {key: wrong}))
    del sizes["tied"]  # an encoder's configuration has none
    assert not spec_of(SimpleNamespace(**sizes)).tied
    with pytest.raises(InvalidUsageError, match="tied is true or false"):
        spec_of(SimpleNamespace(**sizes, tied=3))
    with pytest.raises(InvalidUsageError, match=r"vocabulary \(tokenizer\.ggml\.tokens\) is a whole number"):
        spec_of({key: value for key, value in METADATA.items() if "vocab" not in key} | {"tokenizer.ggml.tokens": 1.5})
    with pytest.raises(InvalidUsageError, match="expert_count is a whole number") as caught:
        spec_of(METADATA | {"llama.expert_count": ["long"] * 100_000})
    assert len(str(caught.value)) < 300
    with pytest.raises(InvalidUsageError, match="shared is a whole number"):
        replace(MIXTRAL, shared=wrong)
    with pytest.raises(InvalidUsageError, match="experts is a whole number"):
        replace(LLAMA, experts=wrong, active=1)
    with pytest.raises(InvalidUsageError, match="tie_word_embeddings is true or false, not 'false'"):
        spec_of(JSON | {"tie_word_embeddings": "false"})
    with pytest.raises(InvalidUsageError, match="a model's kind is a text"):
        spec_of(JSON | {"model_type": 3 if isinstance(wrong, str) else wrong})


def test_one_number_for_all_layers_of_a_gguf_file() -> None:
    for key in ("llama.attention.head_count", "llama.attention.head_count_kv", "llama.feed_forward_length"):
        assert spec_of(METADATA | {key: np.uint32([METADATA[key]] * 2)}) == spec_of(METADATA)
        with pytest.raises(UnsupportedError, match=f"{key} differs from layer to layer"):
            spec_of(METADATA | {key: np.uint32([4, 8])})
        with pytest.raises(InvalidUsageError, match=f"{key} is a whole number, or one for each of 2 layers"):
            spec_of(METADATA | {key: np.uint32([4, 4, 4])})


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("deepseek_v3", "n_routed_experts", 256),
        ("deepseek_v2", "kv_lora_rank", 512),
        ("kimi_k2", "n_shared_experts", 1),
        ("glm4_moe", "first_k_dense_replace", 1),
        ("other_moe", "shared_expert_intermediate_size", 5632),
        ("other_moe", "mlp_only_layers", [0]),
        ("qwen3_next", "linear_num_key_heads", 16),
        ("falcon_h1", "mamba_d_state", 256),
        ("deepseek2", "attention.kv_lora_rank", 512),
        ("glm4moe", "leading_dense_block_count", 1),
        ("qwen2moe", "expert_shared_count", 1),
        ("jamba", "ssm.state_size", 16),
    ],
)
def test_families_whose_blocks_are_others_are_refused_by_name(kind: str, key: str, value: Any) -> None:
    if kind in ("deepseek2", "glm4moe", "qwen2moe", "jamba"):
        sizes = {name.replace("llama.", f"{kind}."): size for name, size in METADATA.items()}
        source = sizes | {"general.architecture": kind, f"{kind}.{key}": value}
    else:
        source = JSON | EXPERTS | {"model_type": kind, key: value}
    with pytest.raises(UnsupportedError, match=f"models of the kind '{kind}', which has {key}"):
        spec_of(source)


def test_the_width_of_an_expert() -> None:
    """Where a configuration has one besides the width of other blocks, of which there may be none."""
    found = spec_of(JSON | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2})
    assert found == replace(spec_of(JSON), experts=8, active=2, head_norms=True)
    wide = JSON | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": []}
    assert spec_of(wide | {"moe_intermediate_size": 32}) == replace(found, hidden=32)
    assert spec_of(JSON | {"moe_intermediate_size": 32}) == spec_of(JSON)
    shared = wide | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 96, "moe_intermediate_size": 32}
    assert spec_of(shared) == replace(found, hidden=32, shared=96, head_norms=False)
    mixed = spec_of(shared | {"mlp_only_layers": [1]})
    assert mixed == replace(spec_of(shared), sparse=(True, False), dense=JSON["intermediate_size"])
    assert spec_of(shared | {"decoder_sparse_step": 2}) == replace(mixed, sparse=(False, True))
    for key, value in (("mlp_only_layers", [0, 1]), ("mlp_only_layers", [2]), ("decoder_sparse_step", 0)):
        with pytest.raises(InvalidUsageError, match=key):
            spec_of(shared | {key: value})
    experts = {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_feed_forward_length": 32}
    assert spec_of(METADATA | experts) == replace(found, hidden=32, head_norms=False)


# ---- modules ----


def test_devices_by_module() -> None:
    infos = [fake_info(0, pci_address="0000:01:00.0"), fake_info(1, name="Plain CPU", type="cpu", pci_address=None)]
    known = ("encoder", "head")
    made = parse_modules("encoder=0&1, head=gpu", known, infos)
    assert [info.index for info in made.devices] == [0, 1]
    assert made.ranks == {"encoder": (0, 1), "head": (0,)}
    made = parse_modules("head=cpu*2,encoder=plain&0", known, infos)
    assert [info.index for info in made.devices] == [1, 1, 0]
    assert made.ranks == {"head": (0, 1), "encoder": (0, 2)}
    assert parse_modules("cpu", known, infos).ranks == {"encoder": (0,), "head": (0,)}
    assert parse_modules("head=cpu", known, infos).ranks == {"encoder": (0,), "head": (0,)}
    for bad in ("tail=0", "head=0,head=1", "head=", "=0", "head=radeon", "head=0,1", "", "3 4=0"):
        with pytest.raises(InvalidUsageError):
            parse_modules(bad, known, infos)
