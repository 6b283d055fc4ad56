"""What needs no device of the models: configurations, names, where parts lie, sampling, tokenizers, the reference."""

from __future__ import annotations

import json
import runpy
import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.bench import model as bench_model
from vkpar.parallel.cut.heads import split_heads
from vkpar.parallel.models import BertConfig, Sampling, bert_config, naming, parse_ids, tiny, tokens
from vkpar.parallel.models import config as configs
from vkpar.parallel.models.generating import room_for
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.sources import spec_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "generate.py"
TEXT = "Sums of tensors over devices of any vendors.\nThe sum of 12 and 345 is 357; it's héllo, wörld!\n" * 8


# ---- configurations ----


def test_a_configuration_survives_its_json() -> None:
    for config in (
        tiny.SIZES,
        replace(tiny.SIZES, family="qwen2", tied=True, theta=1e6, stops=(2, 3), first=1, scaling=4.0),
        replace(tiny.SIZES, family="qwen3", head_dim=32),
        replace(tiny.SIZES, window=7),
    ):
        assert configs.of_json(json.loads(json.dumps(tiny.as_json(config))), "it") == config


def test_what_transformers_leaves_out_has_its_defaults() -> None:
    found = tiny.as_json(tiny.SIZES)
    for name in ("head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "hidden_act", "tie_word_embeddings"):
        del found[name]
    config = configs.of_json(found, "it")
    assert (config.head_dim, config.kv_heads, config.theta, config.epsilon) == (16, 4, 1e4, 1e-6)
    newer = {**found, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert configs.of_json(newer, "it").theta == 5e5
    stretched = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    assert configs.of_json({**found, "rope_parameters": stretched}, "it").scaling == 2.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_type": "gemma"}, UnsupportedError, "'gemma' is not supported"),
        ({"model_type": 3}, InvalidUsageError, "model_type is str"),
        ({"hidden_size": None}, InvalidUsageError, "has no hidden_size"),
        ({"hidden_size": True}, InvalidUsageError, "hidden_size is int"),
        ({"tie_word_embeddings": "false"}, InvalidUsageError, "tie_word_embeddings is true or false, not 'false'"),
        ({"mlp_bias": "no"}, InvalidUsageError, "mlp_bias is true or false"),
        ({"num_hidden_layers": 10**9}, InvalidUsageError, "layers is a whole number from 1"),
        ({"rms_norm_eps": float("nan")}, InvalidUsageError, "epsilon is a number above 0"),
        ({"rope_theta": 0}, InvalidUsageError, "theta is a number above 0"),
        ({"head_dim": 15}, InvalidUsageError, "no pairs"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, UnsupportedError, "'yarn' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, InvalidUsageError, "has no factor"),
        ({"rope_scaling": 3}, InvalidUsageError, "is an object"),
        ({"use_sliding_window": True}, UnsupportedError, "use_sliding_window"),
        ({"model_type": "qwen3", "use_sliding_window": True}, UnsupportedError, "use_sliding_window"),
        ({"model_type": "mistral", "sliding_window": 0}, InvalidUsageError, r"window \(sliding_window\) is a whole"),
        ({"model_type": "mistral", "sliding_window": "8"}, InvalidUsageError, "sliding_window is int, not '8'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, UnsupportedError, "'sliding_attention'"),
        ({"layer_types": 3}, InvalidUsageError, "layer_types is a list"),
        ({"mlp_bias": True}, UnsupportedError, "mlp_bias"),
        ({"eos_token_id": [1, "2"]}, InvalidUsageError, "a token is a whole number"),
        ({"bos_token_id": []}, InvalidUsageError, "not an empty list"),
        ({"rope_parameters": [1]}, InvalidUsageError, "rope_parameters is an object"),
        ({"rope_theta": 10**400}, InvalidUsageError, "rope_theta is beyond the range"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, InvalidUsageError, "numbers above 0, not -2.0"),
    ],
)
def test_wrong_configurations(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        configs.of_json({**tiny.as_json(tiny.SIZES), **changes}, "it")


ENCODER = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 4,
}
SIZES_IN_JSON = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "intermediate",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context",
}
NO_SIZES = ["64", 64.0, True, np.int64(64), np.float32(64), np.uint32([64]), [64], {}, 0, -64, 1 << 40, float("nan")]


@pytest.mark.parametrize("wrong", NO_SIZES, ids=repr)
def test_a_size_that_is_no_whole_number_is_named(wrong: Any) -> None:
    for key, name in SIZES_IN_JSON.items():
        with pytest.raises(InvalidUsageError, match=f"{key}|{name}"):
            configs.of_json({**tiny.as_json(tiny.SIZES), key: wrong}, "it")
        with pytest.raises(InvalidUsageError, match=f"the model's {name}"):
            replace(tiny.SIZES, **{name: wrong})
        if key in ENCODER:
            with pytest.raises(InvalidUsageError, match=f"{key}|{name}"):
                bert_config.of_json(ENCODER | {key: wrong}, "it")
            with pytest.raises(InvalidUsageError, match=f"the model's {name}"):
                replace(bert_config.of_json(ENCODER, "it"), **{name: wrong})


@pytest.mark.parametrize("wrong", ["1e-5", True, 10**400, float("inf"), 0, np.float32("nan"), [1e-5], None], ids=repr)
def test_constants_that_are_no_numbers(wrong: Any) -> None:
    for make in (lambda: replace(tiny.SIZES, epsilon=wrong), lambda: replace(tiny.SIZES, theta=wrong)):
        with pytest.raises(InvalidUsageError, match=r"the model's (epsilon|theta) is a number above 0"):
            make()
    with pytest.raises(InvalidUsageError, match="the model's epsilon is a number above 0"):
        replace(bert_config.of_json(ENCODER, "it"), epsilon=wrong)
    for scaling in ((wrong,), {"factor": wrong}):
        if wrong is not None:
            with pytest.raises(InvalidUsageError, match="numbers above 0"):
                replace(tiny.SIZES, scaling=scaling)


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": np.uint32(2).item(),
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 512,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 1,
}


def test_metadata_of_gguf_files() -> None:
    given = GGUF
    found = configs.of_gguf(given, "it", 128, tied=False)
    assert found == replace(tiny.SIZES, vocabulary=128, style="llama", stops=(2,), first=1)
    with pytest.raises(UnsupportedError, match="'bert' is not supported"):
        configs.of_gguf({"general.architecture": "bert"}, "it", 128, tied=False)
    with pytest.raises(UnsupportedError, match=r"rope\.dimension_count of 8"):
        configs.of_gguf({**given, "llama.rope.dimension_count": 8}, "it", 128, tied=False)
    for metadata, error, message in (
        ({"expert_count": 8}, InvalidUsageError, r"llama\.expert_used_count\) is a whole number from 1"),
        ({"expert_count": 8, "expert_used_count": 9}, InvalidUsageError, r"expert_used_count is 9, and there are 8"),
        (
            {"expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1},
            UnsupportedError,
            r"expert_shared_count of 1",
        ),
    ):
        with pytest.raises(error, match=message):
            configs.of_gguf(
                {**given, **{f"llama.{key}": value for key, value in metadata.items()}}, "it", 128, tied=False
            )
    mixture = {**given, "llama.expert_count": 8, "llama.expert_used_count": 2}
    assert configs.of_gguf(mixture, "it", 128, tied=False) == replace(found, experts=8, active=2)
    mine = {key.replace("llama.", "qwen2moe."): value for key, value in mixture.items()}
    mine |= {"general.architecture": "qwen2moe", "qwen2moe.expert_feed_forward_length": 32}
    sizes = {"experts": 8, "active": 2, "normed": False, "style": "neox", "first": None}
    for more, width in (({}, 96), ({"qwen2moe.expert_shared_feed_forward_length": 48}, 48)):
        made = configs.of_gguf({**mine, **more}, "it", 128, tied=False)
        assert made == replace(found, family="qwen2moe", intermediate=32, shared=width, **sizes)
    with pytest.raises(UnsupportedError, match=r"llama\.expert_shared_feed_forward_length of 48"):
        configs.of_gguf({**mixture, "llama.expert_shared_feed_forward_length": 48}, "it", 128, tied=False)
    with pytest.raises(UnsupportedError, match="no expert that all tokens take"):
        replace(found, shared=48)
    dense = {key.replace("llama.", "qwen3."): value for key, value in mixture.items()}
    with pytest.raises(UnsupportedError, match=r"qwen3\.expert_count of 8"):
        configs.of_gguf({**dense, "general.architecture": "qwen3"}, "it", 128, tied=False)
    divided = configs.of_gguf(given, "it", 128, tied=False, divisors=[1.0] * 8)
    assert divided.scaling == (1.0,) * 8


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"scaling.factor": 4.0}, 4.0),  # llama.cpp: linear where there is no type
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 2.0}, 2.0),
        ({"scaling.type": "linear", "scale_linear": 2.0}, 2.0),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, 4.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.factor": 0.0}, None),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, None),
        ({"scaling.factor": 1.0, "scaling.attn_factor": 1.0}, None),
        ({}, None),
    ],
)
def test_rope_scaling_of_gguf_files(rope: dict[str, Any], scaling: float | None) -> None:
    given = GGUF | {f"llama.rope.{name}": value for name, value in rope.items()}
    assert configs.of_gguf(given, "it", 128, tied=False).scaling == scaling
    if scaling is None:
        assert configs.of_gguf(given, "it", 128, tied=False, divisors=[2.0] * 8).scaling == (2.0,) * 8
    else:
        with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight together with a rope scaling"):
            configs.of_gguf(given, "it", 128, tied=False, divisors=[2.0] * 8)


@pytest.mark.parametrize(
    ("changes", "divisors", "error", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, [1.0] * 8, UnsupportedError, "'yarn' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, None, UnsupportedError, "'yarn' is not supported"),
        ({"llama.rope.scaling.type": "linear"}, [1.0] * 8, InvalidUsageError, "has no factor"),
        ({"llama.rope.scaling.type": np.arange(2)}, None, InvalidUsageError, "type is str"),
        ({"llama.rope.scaling.factor": -1.0}, None, InvalidUsageError, "numbers above 0"),
        ({"llama.rope.scaling.attn_factor": 2.0}, None, UnsupportedError, "attn_factor"),
        ({}, [1.0] * 7, InvalidUsageError, "has 7 divisors; heads of 16 take 8"),
        ({}, [1.0] * 7 + [0.0], InvalidUsageError, "numbers above 0, not 0.0"),
        ({}, [1.0] * 7 + [float("nan")], InvalidUsageError, "numbers above 0, not nan"),
        ({"tokenizer.ggml.bos_token_id": []}, None, InvalidUsageError, "not an empty list"),
        ({"tokenizer.ggml.add_bos_token": np.arange(2)}, None, InvalidUsageError, "add_bos_token is true or false"),
    ],
)
def test_wrong_metadata_of_gguf_files(
    changes: dict[str, Any], divisors: list[float] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        configs.of_gguf(GGUF | changes, "it", 128, tied=False, divisors=divisors)


GGUF_SIZES = {
    "block_count": "layers",
    "embedding_length": "hidden",
    "feed_forward_length": "intermediate",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "context_length": "context",
}


@pytest.mark.parametrize("wrong", NO_SIZES, ids=repr)
def test_a_size_of_gguf_metadata_that_is_no_whole_number_is_named(wrong: Any) -> None:
    for key, name in GGUF_SIZES.items():
        with pytest.raises((InvalidUsageError, UnsupportedError), match=f"{key}|{name}"):
            configs.of_gguf(GGUF | {f"llama.{key}": wrong}, "it", 128, tied=False)


@pytest.mark.parametrize("make", [list, np.uint32, np.int32, np.uint64])
def test_one_number_for_all_layers(make: Any) -> None:
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "attention.key_length"):
        want = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 96}.get(key, 16)
        given = GGUF | {f"llama.{key}": make([want, want])}
        assert configs.of_gguf(given, "it", 128, tied=False) == configs.of_gguf(GGUF, "it", 128, tied=False)
        with pytest.raises(UnsupportedError, match=f"it: llama.{key} differs from layer to layer"):
            configs.of_gguf(GGUF | {f"llama.{key}": make([want, 2 * want])}, "it", 128, tied=False)
        for wrong in ([], [want], [want] * 3):
            with pytest.raises(InvalidUsageError, match=f"llama.{key} is a whole number, or one for each of 2 layers"):
                configs.of_gguf(GGUF | {f"llama.{key}": make(wrong)}, "it", 128, tied=False)
    for wrong in (["2", "2"], [2.0, 2.0], np.float32([2, 2]), np.array([True, True]), np.uint32([[2], [2]])):
        with pytest.raises(InvalidUsageError, match="head_count_kv is a whole number, or one for each"):
            configs.of_gguf(GGUF | {"llama.attention.head_count_kv": wrong}, "it", 128, tied=False)


def test_wrong_configurations_of_encoders() -> None:
    assert bert_config.of_json(ENCODER, "it").epsilon == 1e-12
    with pytest.raises(InvalidUsageError, match="layer_norm_eps is beyond the range"):
        bert_config.of_json(ENCODER | {"layer_norm_eps": 10**400}, "it")


@pytest.mark.parametrize(
    ("text", "message"), [("[" * 100_000, "cannot be read"), ("[1]", "no object"), (None, r"config\.json")]
)
def test_files_that_hold_no_configuration(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    for read in (configs.read_folder, bert_config.read_folder):
        with pytest.raises(InvalidUsageError, match=message):
            read(tmp_path)
    with pytest.raises(InvalidUsageError, match=message):
        bench_model.Options(config=str(path)).model()


def test_a_folder_may_say_elsewhere_what_ends_a_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**tiny.as_json(tiny.SIZES), "eos_token_id": 2}))
    assert configs.read_folder(tmp_path).stops == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert configs.read_folder(tmp_path).stops == (2, 9)


# ---- where parts lie ----


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ratios", "counts", "keys"),
    [
        (8, 4, (1, 1), (4, 4), ((0, 2), (2, 4))),
        (8, 4, (3, 1), (6, 2), ((0, 3), (3, 4))),
        (8, 4, (1, 0, 1), (4, 0, 4), ((0, 2), (0, 0), (2, 4))),
        (8, 2, (1, 1, 1), (2, 2, 4), ((0, 1), (0, 1), (1, 2))),
        (8, 2, (1, 0, 1, 3), (2, 0, 2, 4), ((0, 1), (0, 0), (0, 1), (1, 2))),
        (3, 1, (2, 1), (2, 1), ((0, 1), (0, 1))),
        (2, 1, (1, 1, 1), (1, 1, 0), ((0, 1), (0, 1), (0, 0))),
        (4, 4, (1, 1, 1), (2, 1, 1), ((0, 2), (2, 3), (3, 4))),
    ],
)
def test_heads_are_cut_at_groups_or_shared_within_one(
    heads: int, kv_heads: int, ratios: tuple[int, ...], counts: tuple[int, ...], keys: tuple[tuple[int, int], ...]
) -> None:
    found = split_heads(heads, kv_heads, 16, ratios)
    assert found.queries.counts == counts
    assert found.keys == keys
    for count, kept in zip(found.queries.counts, found.kv_counts, strict=True):
        assert count % max(kept, 1) == 0


def test_borders_keep_blocks_whole() -> None:
    config = replace(tiny.SIZES, heads=8, kv_heads=4, head_dim=64, intermediate=1024)
    found = place(spec_of(config, weights="q4_k"), "tensor", [Fraction(1), Fraction(2)])
    assert all(border * 64 % 256 == 0 for border in found.heads[0].queries.borders)
    assert all(border % 256 == 0 for border in found.inner[0].borders)


def test_modes() -> None:
    spec = spec_of(replace(tiny.SIZES, layers=5, hidden=256, heads=4, head_dim=64))
    ratios = [Fraction(3), Fraction(0), Fraction(2)]
    layered = place(spec, "layer", ratios)
    assert layered.streams == ((0,), (0,), (0,), (2,), (2,))
    assert layered.table.counts == (320, 0, 0)
    assert layered.outputs.counts == (0, 0, 320)
    assert layered.heads[3].kv_counts == (0, 0, 2)
    sliced = place(spec, "row", ratios)
    assert sliced.streams == ((0,),) * 5
    assert sliced.sliced([128, 192], 256) == [[(0, 128), (128, 128), (128, 128)], [(0, 64), (64, 64), (64, 192)]]
    assert [sliced.sliced([255], 256), sliced.sliced([256], 255), layered.sliced([256], 256)] == [None] * 3
    assert place(spec, "single", [Fraction(1), Fraction(2)]).streams == ((1,),) * 5
    assert place(spec, "tensor", ratios).streams == ((0, 1, 2),) * 5
    with pytest.raises(InvalidUsageError, match="no mode 'ring'"):
        place(spec, "ring", ratios)


# ---- names ----


def test_every_tensor_is_named_once() -> None:
    for names in (naming.TRANSFORMERS, naming.GGUF):
        shapes = dict(naming.shapes(tiny.SIZES, names))
        assert len(shapes) == 3 + 9 * tiny.SIZES.layers
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        naming.check(tiny.SIZES, zeros, "it")
        assert naming.of(zeros) is names
        name = names.of_block("attention.k", 1)
        zeros[naming.bias_of(name)] = np.zeros(3, np.float32)
        with pytest.raises(InvalidUsageError, match="bias has shape"):
            naming.check(tiny.SIZES, zeros, "it")


def test_a_missing_tensor_is_found_without_a_list_of_all() -> None:
    tracemalloc.start()
    with pytest.raises(InvalidUsageError, match=r"no tensor model\.embed_tokens"):
        naming.check(replace(tiny.SIZES, layers=1 << 24), {}, "it")
    with pytest.raises(InvalidUsageError, match=r"no tensor embeddings\.word_embeddings"):
        bert_config.check(BertConfig(1 << 24, 8, 16, 2, 10, 4), {}, "it")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_every_tensor_of_an_encoder_is_checked() -> None:
    config = bert_config.of_json(ENCODER, "it")
    shapes = bert_config.shapes(config)
    assert len(shapes) == 3 + 2 + 2 * 8 * config.layers
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    bert_config.check(config, zeros, "it")
    for name in shapes:
        with pytest.raises(InvalidUsageError, match=f"no tensor {name}"):
            bert_config.check(config, {other: zeros[other] for other in shapes if other != name}, "it")


# ---- sampling ----


def test_sampling_follows_its_definition() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.06, 0.04]))
    assert np.allclose(Sampling(1.0).sampler().probabilities(logits), np.exp(logits))
    assert np.allclose(Sampling(1.0, top_k=2).sampler().probabilities(logits), [2 / 3, 1 / 3, 0, 0, 0])
    # The likeliest tokens until their sum reaches top_p, the one that reaches it included.
    assert np.allclose(Sampling(1.0, top_p=0.6).sampler().probabilities(logits), [2 / 3, 1 / 3, 0, 0, 0])
    assert np.allclose(Sampling(1.0, top_p=0.5).sampler().probabilities(logits), [1, 0, 0, 0, 0])
    halved = np.exp(logits) ** 2
    assert np.allclose(Sampling(0.5).sampler().probabilities(logits), halved / halved.sum())
    assert np.allclose(Sampling(0.001).sampler().probabilities(1e4 * logits), [1, 0, 0, 0, 0])
    drawn = [Sampling(1.0, seed=3).sampler() for _ in range(2)]
    counts = np.bincount([drawn[0](logits) for _ in range(4000)], minlength=5) / 4000
    assert np.abs(counts - np.exp(logits)).max() < 5 * 0.5 / np.sqrt(4000)
    assert [drawn[1](logits) for _ in range(20)] != [0] * 20


def test_greedy_takes_the_first_of_equals_and_no_sampling_takes_nan() -> None:
    assert Sampling().sampler()(np.array([1.0, 3.0, 3.0])) == 1
    for sampling in (Sampling(), Sampling(1.0)):
        with pytest.raises(InvalidUsageError, match="not finite"):
            sampling.sampler()(np.array([1.0, np.nan]))


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"seed": -1}],
)
def test_wrong_sampling(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidUsageError, match=next(iter(options))):
        Sampling(**options)


# ---- room for a text ----


def test_the_room_is_what_the_text_takes_or_what_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(tiny.SIZES, context=16)
    assert [room_for(config, [1, 5], steps) for steps in (0, 1, 14)] == [3, 3, 16]
    assert [room_for(config, [1, 5], 4, context) for context in (5, 16, 99)] == [5, 16, 99]  # the last is not kept
    assert not caplog.records
    assert room_for(config, [1, 5], 15, 17) == 17
    assert "2 tokens of the prompt and 15 steps are more than the 16" in caplog.text


@pytest.mark.parametrize(
    ("prompt", "steps", "context", "message"),
    [
        ([], 4, None, "the prompt has no tokens"),
        ([1, 320], 4, None, "token 320 is none of the 320"),
        ([-1], 4, None, "token -1 is none"),
        ([1], -9, None, "steps is a whole number from 0, not -9"),
        ([1], 4, 0, "context is a whole number from 1, not 0"),
        ([1, 5], 4, 4, "4 steps do not fit a context of 4; it takes 5"),
        ([1] * 500, 13, None, "more than the 512 that the model was made for"),
        ([1] * 500, 13, 512, "more than the 512 that the model was made for"),
    ],
)
def test_texts_without_room(prompt: list[int], steps: int, context: int | None, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        room_for(tiny.SIZES, prompt, steps, context)


def exit_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """What examples/generate.py ends with, where it must not come as far as opening a device."""

    def opened(*_: object) -> NoReturn:
        raise AssertionError("a device was opened before the arguments were checked")

    monkeypatch.setattr(vkpar, "open_devices", opened)
    monkeypatch.setattr(sys, "argv", ["generate.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return ended.value.code


def test_the_program_refuses_arguments_before_it_opens_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors")
    tiny.write_folder(tmp_path / "m")
    model = ["--model", str(tmp_path / "m")]
    for arguments, message in (
        ("--tokens 1 --temperature -1", "temperature is a number from 0"),
        ("--tokens 1 --top-p 2", "top_p is above 0"),
        ("--tokens 1 --steps -9", "steps is a whole number from 0, not -9"),
        ("--tokens 1,320", "token 320 is none of the 320"),
        ("--tokens 1 --steps 9 --context 3", "9 steps do not fit a context of 3"),
        ("--tokens 1 --context 0", "context is a whole number from 1"),
        ("--tokens 1 --steps 512", "more than the 512 that the model was made for"),
        (f"--tokens 1 --logits {tmp_path}/none/x.npy", f"there is no folder {tmp_path}/none"),
        ("--steps 3", "give a --prompt, --prompts or --tokens"),
        ("--tokens 1 --halves on", "--halves on needs --split tensor"),
        ("--tokens 1 --halves on --split layer", "--halves on needs --split tensor"),
    ):
        assert message in str(exit_of(monkeypatch, *model, *arguments.split()))
    for arguments in ("--prompt x", "--split layer", "--wire q8", "--halves on"):
        assert f"{arguments.split()[0]} needs a --model" in str(exit_of(monkeypatch, *arguments.split()))


def test_the_program_refuses_a_prompt_without_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    tiny.write_folder(tmp_path, text=TEXT)
    assert "the prompt has no tokens" in str(exit_of(monkeypatch, "--model", str(tmp_path), "--prompt", ""))


def test_the_program_ends_quietly_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("vkpar.parallel.models.open_model", interrupted)
    assert exit_of(monkeypatch, "--model", str(tmp_path), "--tokens", "1") == 130


# ---- tokenizers ----


def test_ids() -> None:
    assert parse_ids("1, 5,9") == [1, 5, 9]
    for text in ("", "1,,2", "a"):
        with pytest.raises(InvalidUsageError, match="token ids look like"):
            parse_ids(text)


def test_a_folder_and_a_gguf_file_give_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    rules = tiny.train_tokenizer(TEXT, 300)
    rules.save(str(tmp_path / "tokenizer.json"))
    described = json.loads(rules.to_str())["model"]
    vocabulary = sorted(described["vocab"], key=described["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["merges"]]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3] + [1] * (len(vocabulary) - 1),
    }
    folder, file = tokens.of_folder(tmp_path, None), tokens.of_gguf(metadata, "it")
    for text in ("The sum of 357 devices", "héllo, wörld! 漢字", ""):
        ids = folder.encode(text)
        assert file.encode(text) == ids
        assert folder.decode(ids) == file.decode(ids) == text
        assert "".join(folder.stream(ids)) == text
    assert tokens.of_gguf(
        {**metadata, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}, "it"
    ).encode("sum") == [0, *folder.encode("sum")]
    for name, digits in (("llama-bpe", 3), ("qwen2", 1)):
        found = tokens.of_gguf({**metadata, "tokenizer.ggml.pre": name}, "it")
        assert found.decode(found.encode("it's 12345 devices\n\n of")) == "it's 12345 devices\n\n of"
        words = found._rules.pre_tokenizer.pre_tokenize_str("12345 of")
        assert len(words[0][0]) == digits


def test_pieces_with_scores_merge_the_best_first() -> None:
    """A vocabulary as SentencePiece makes it: spaces as a mark, bytes for what is not there."""
    pytest.importorskip("tokenizers")
    mark = "\u2581"
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    scored = {mark: -9.0, "a": -9.1, "b": -9.2, "c": -9.3, "ab": -1.0, "bc": -0.5, mark + "a": -2.0, "abc": -3.0}
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(scored)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *scored],
        "tokenizer.ggml.scores": [0.0] * len(pieces) + list(scored.values()),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
    }
    found = tokens.of_gguf(metadata, "it")
    number = {piece: index for index, piece in enumerate(metadata["tokenizer.ggml.tokens"])}
    assert found.encode("abc") == [1, number[mark + "a"], number["bc"]]  # "bc" has the best score, then "_a"
    assert found.encode("é") == [1, number[mark], number["<0xC3>"], number["<0xA9>"]]
    for text in ("abc ab", "é a"):
        assert found.decode(found.encode(text)) == text
    assert found.encode("a</s>")[-1] == 2


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({}, InvalidUsageError, "has no vocabulary; pass token ids"),
        ({"model": "bert", "tokens": ["a"]}, UnsupportedError, "kind 'bert'"),
        ({"model": "gpt2", "tokens": ["a"]}, InvalidUsageError, "no merges"),
        ({"model": "gpt2", "tokens": ["a", "a"], "merges": []}, InvalidUsageError, "all different"),
        ({"model": "gpt2", "tokens": ["a", 5], "merges": []}, InvalidUsageError, "all different"),
        ({"model": "gpt2", "tokens": ["a"], "merges": ["abc"]}, InvalidUsageError, "a merge is two tokens"),
        ({"model": "gpt2", "tokens": ["a"], "merges": ["a b"]}, InvalidUsageError, "cannot be read"),
        ({"model": "gpt2", "tokens": ["a"], "merges": [], "pre": "odd"}, UnsupportedError, "as 'odd' says"),
        ({"model": "gpt2", "tokens": ["a"], "merges": [], "token_type": [1, 1]}, InvalidUsageError, "2 kinds of 1"),
        ({"model": "gpt2", "tokens": 5, "merges": []}, InvalidUsageError, "not a list of texts"),
        ({"model": "gpt2", "tokens": "abc", "merges": []}, InvalidUsageError, "not a list of texts"),
        ({"model": "gpt2", "tokens": np.arange(3), "merges": []}, InvalidUsageError, "not a list of texts"),
        ({"model": np.arange(3), "tokens": ["a"]}, UnsupportedError, "kind array"),
        ({"model": "gpt2", "tokens": ["a"], "merges": [], "token_type": 1}, InvalidUsageError, "no list of whole"),
        ({"model": "gpt2", "tokens": ["a"], "merges": [], "token_type": ["x"]}, InvalidUsageError, "no list of whole"),
        (
            {"model": "gpt2", "tokens": ["a"], "merges": [], "add_bos_token": True, "bos_token_id": "x"},
            InvalidUsageError,
            "a token is a whole number",
        ),
        ({"model": "llama", "tokens": ["a"]}, InvalidUsageError, "no score"),
        ({"model": "llama", "tokens": ["b", "a" * 1025], "scores": [0, 0]}, UnsupportedError, "token 1 has 1025"),
        ({"model": "llama", "tokens": ["a"], "scores": ["x"]}, InvalidUsageError, "cannot be read"),
        (
            {"model": "llama", "tokens": ["a"], "scores": [0.5], "unknown_token_id": 7},
            InvalidUsageError,
            "cannot be read",
        ),
    ],
)
def test_wrong_vocabularies(metadata: dict[str, Any], error: type[Exception], message: str) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(error, match=message):
        tokens.of_gguf({f"tokenizer.ggml.{name}": value for name, value in metadata.items()}, "it")


# ---- the tests' own reference ----


def test_the_reference_is_the_same_in_turns_and_knows_of_errors() -> None:
    config = replace(tiny.SIZES, vocabulary=64)
    weights = tiny.weights(config)
    ids = [1, 5, 9, 33, 2, 60]
    whole = reference.Reference(config, weights).logits(ids)
    turned = reference.Reference(config, weights)
    parts = np.concatenate([turned.logits(ids[:2]), turned.logits(ids[2:3]), turned.logits(ids[3:])])
    assert np.abs(parts - whole).max() < 1e-12
    value, bound = reference.bounded(config, weights, ids)
    assert (value == whole).all()
    assert bound.max() < 1e-2 * np.abs(whole).max()
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"] * np.float32(1.01)
    assert (np.abs(reference.Reference(config, weights).logits(ids) - whole) > bound).any(), "a wrong weight shows"


def test_mistral_is_llama_with_a_window_perhaps() -> None:
    """Of 4,096 tokens where a configuration does not say, as transformers has it; plans know it, too."""
    found = tiny.as_json(tiny.SIZES) | {"model_type": "mistral"}
    for given, window in (({"sliding_window": None}, None), ({"sliding_window": 9}, 9), ({}, 4096)):
        assert configs.of_json(found | given, "it") == replace(tiny.SIZES, window=window)
    assert configs.of_json(tiny.as_json(tiny.SIZES) | {"sliding_window": 9}, "it").window is None
    assert spec_of(found | {"sliding_window": 9}) == spec_of(tiny.SIZES), "all keys are kept, as far as a plan knows"
    assert spec_of(replace(tiny.SIZES, window=9)) == replace(spec_of(tiny.SIZES), window=9)
    for wrong in ({"window": 0}, {"sliding": (True,)}):
        with pytest.raises(InvalidUsageError, match="window"):
            replace(spec_of(tiny.SIZES), **wrong)
    assert configs.of_gguf(GGUF | {"llama.attention.sliding_window": 9}, "it", 128, tied=False).window == 9
    with pytest.raises(InvalidUsageError, match="window is a whole number from 1"):
        replace(tiny.SIZES, window=0)


def test_qwen3_wants_the_norms_of_its_heads() -> None:
    """By both names, and of a head's width; Llama has no use for them; GGUF's windows are refused."""
    config = replace(tiny.SIZES, family="qwen3")
    weights, name = tiny.weights(config), "model.layers.1.self_attn.k_norm.weight"
    naming.check(config, weights, "the model")
    for wrong, error, message in (
        (config, InvalidUsageError, r"no tensor model\.layers\.1\.self_attn\.k_norm\.weight"),
        (replace(config, head_dim=32, heads=2, kv_heads=1), InvalidUsageError, r"q_norm\.weight has shape \(16,\)"),
        (tiny.SIZES, UnsupportedError, r"self_attn\.q_norm\.weight"),
    ):
        given = {key: tensor for key, tensor in weights.items() if key != name or wrong is not config}
        with pytest.raises(error, match=message):
            naming.check(wrong, given, "the model")
    metadata = {key.replace("llama.", "qwen3."): value for key, value in GGUF.items()}
    metadata |= {"general.architecture": "qwen3", "qwen3.attention.key_length": 32}
    found = configs.of_gguf(metadata, "it", 128, tied=False)
    assert (found.head_norms, found.head_dim, found.style) == (True, 32, "neox")
    with pytest.raises(UnsupportedError, match=r"qwen3\.attention\.sliding_window of 64"):
        configs.of_gguf(metadata | {"qwen3.attention.sliding_window": 64}, "it", 128, tied=False)


def test_qwen2_wants_its_biases() -> None:
    config = replace(tiny.SIZES, family="qwen2")
    weights = tiny.weights(config)
    naming.check(config, weights, "the model")
    del weights["model.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(InvalidUsageError, match=r"no tensor model\.layers\.1\.self_attn\.k_proj\.bias"):
        naming.check(config, weights, "the model")
