"""Gemma 3's configurations, names and sizes: as transformers and llama.cpp write them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.parallel import spec_of
from vkpar.parallel.models import config as configs
from vkpar.parallel.models import naming, tiny
from vkpar.parallel.plan.laying import footprint

SMALL = replace(
    tiny.SIZES,
    family="gemma3",
    tied=True,
    layers=3,
    window=5,
    sliding=(True, True, False),
    theta=1e6,
    local_theta=1e4,
    scale=0.25,
    stops=(1,),
    first=2,
)
GGUF = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 12,
    "gemma3.embedding_length": 64,
    "gemma3.feed_forward_length": 96,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 2,
    "gemma3.attention.key_length": 16,
    "gemma3.attention.value_length": 16,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 5,
    "gemma3.context_length": 512,
    "gemma3.rope.freq_base": 1e6,
}


def of_json(**changes: Any) -> configs.Config:
    return configs.of_json({**tiny.as_json(SMALL), **changes}, "it")


def of_gguf(**changes: Any) -> configs.Config:
    given = {f"gemma3.{name.replace('__', '.')}": value for name, value in changes.items()}
    return configs.of_gguf(
        {key: value for key, value in (GGUF | given).items() if value is not None}, "it", 320, tied=True
    )


def test_a_configuration_survives_its_json() -> None:
    for config in (SMALL, replace(SMALL, scaling=8.0), replace(SMALL, window=None), replace(SMALL, tied=False)):
        assert configs.of_json(json.loads(json.dumps(tiny.as_json(config))), "it") == config


def test_newer_files_have_the_two_bases_apart() -> None:
    old = tiny.as_json(SMALL)
    for key in ("rope_theta", "rope_local_base_freq"):
        del old[key]
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    local = {"rope_type": "default", "rope_theta": 2e4}
    found = configs.of_json(old | {"rope_parameters": {"full_attention": full, "sliding_attention": local}}, "it")
    assert found == replace(SMALL, theta=5e5, local_theta=2e4, scaling=8.0)
    assert [found.rotary(block) for block in range(3)] == [(2e4, None), (2e4, None), (5e5, 8.0)]
    assert configs.of_json(old, "it") == SMALL


def test_what_files_leave_out_has_transformers_defaults() -> None:
    """Of files on the hub, of which the inner configuration has what differs alone."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    found = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}, "eos_token_id": [1, 106]}
    config = configs.of_json(found, "it")
    assert (config.hidden, config.intermediate, config.heads, config.kv_heads) == (2560, 9216, 8, 4)
    assert (config.head_dim, config.vocabulary, config.tied, config.stops) == (256, 262_208, True, (1, 106))
    assert (config.theta, config.local_theta, config.scaling, config.scale) == (1e6, 1e4, 8.0, 1 / 16)
    assert config.sliding == tuple(number % 6 != 5 for number in range(34))
    every = of_json(layer_types=None, sliding_window_pattern=2)
    assert every.sliding == (True, False, True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sliding_window": 0}, InvalidUsageError, r"window \(sliding_window\) is a whole number from 1"),
        ({"sliding_window": "5"}, InvalidUsageError, "sliding_window is int"),
        ({"layer_types": None, "sliding_window_pattern": 0}, InvalidUsageError, "sliding_window_pattern"),
        ({"layer_types": ["full_attention"]}, InvalidUsageError, "one kind for each of 3 layers"),
        ({"layer_types": ["linear_attention"] * 3}, UnsupportedError, "'linear_attention'"),
        ({"layer_types": [None] * 3}, UnsupportedError, "layer_types with None"),
        ({"final_logit_softcapping": 30.0}, UnsupportedError, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, UnsupportedError, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention"),
        ({"hidden_activation": "silu"}, UnsupportedError, "hidden_activation 'silu'"),
        ({"query_pre_attn_scalar": 0}, InvalidUsageError, "query_pre_attn_scalar is a number above 0"),
        ({"query_pre_attn_scalar": float("nan")}, InvalidUsageError, "query_pre_attn_scalar is a number above 0"),
        ({"rope_local_base_freq": -1.0}, InvalidUsageError, "local_theta is a number above 0"),
        ({"rope_parameters": 3}, InvalidUsageError, "rope_parameters is an object"),
        (
            {"rope_parameters": {"full_attention": 3}},
            InvalidUsageError,
            r"rope_parameters\.full_attention is an object",
        ),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}}, UnsupportedError, "of 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, UnsupportedError, "'yarn' is not supported"),
        ({"model_type": "gemma3", "text_config": 3}, InvalidUsageError, "text_config is an object"),
        ({"num_hidden_layers": 1 << 40}, InvalidUsageError, "layers is a whole number"),
    ],
)
def test_wrong_configurations(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        of_json(**changes)


def test_metadata_of_gguf_files() -> None:
    """What a file does not say is as llama.cpp has it."""
    found = of_gguf()
    assert (found.window, found.local_theta, found.theta, found.scale, found.style) == (5, 1e4, 1e6, None, "neox")
    assert found.sliding == tuple(number % 6 != 5 for number in range(12))
    assert of_gguf(attention__sliding_window=None).window is None, "no windows, no second base"
    assert not of_gguf(attention__sliding_window=None).sliding
    assert of_gguf(attention__sliding_window_pattern=4).sliding == tuple(number % 4 != 3 for number in range(12))
    listed = np.arange(12) % 2
    assert of_gguf(attention__sliding_window_pattern=listed).sliding == tuple(map(bool, listed))
    assert of_gguf(rope__scaling__type="linear", rope__scaling__factor=8.0).rotary(5) == (1e6, 8.0)
    assert of_gguf(rope__freq_base_swa=2e4).rotary(0) == (2e4, None)
    assert of_gguf(block_count=62).scale == 64**-0.5 * 2, "of the stream's share of a head"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"attention__sliding_window": 0},
            InvalidUsageError,
            r"window \(gemma3\.attention\.sliding_window\) is a whole",
        ),
        (
            {"attention__sliding_window": "5"},
            InvalidUsageError,
            r"window \(gemma3\.attention\.sliding_window\) is a whole",
        ),
        ({"attention__sliding_window_pattern": 0}, InvalidUsageError, "sliding_window_pattern"),
        ({"attention__sliding_window_pattern": [True]}, InvalidUsageError, "one for each of 12 layers"),
        ({"attention__value_length": 8}, UnsupportedError, "unlike widths"),
        ({"final_logit_softcapping": 30.0}, UnsupportedError, r"gemma3\.final_logit_softcapping"),
        ({"rope__freq_base_swa": 0.0}, InvalidUsageError, "local_theta is a number above 0"),
        ({"block_count": 1 << 40}, InvalidUsageError, "layers is a whole number"),
    ],
)
def test_wrong_metadata_of_gguf_files(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        of_gguf(**changes)


def test_names_of_tensors() -> None:
    """In both kinds of files, and with a tower for pictures beside the text."""
    weights = tiny.weights(SMALL)
    naming.check(SMALL, weights, "it")
    beside = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    beside |= {"vision_tower.embeddings.patch_embedding.weight": np.zeros(1), "multi_modal_projector.x": np.zeros(1)}
    naming.check(SMALL, beside, "it")
    zeros = {name: np.zeros(shape, np.float32) for name, shape in naming.shapes(SMALL, naming.GGUF)}
    assert {"blk.2.post_attention_norm.weight", "blk.2.post_ffw_norm.weight", "blk.2.ffn_norm.weight"} <= set(zeros)
    naming.check(SMALL, zeros, "it")
    for given, name in (
        (weights, "model.layers.1.post_feedforward_layernorm.weight"),
        (zeros, "blk.1.post_ffw_norm.weight"),
    ):
        with pytest.raises(InvalidUsageError, match=f"no tensor {name}"):
            naming.check(SMALL, {key: tensor for key, tensor in given.items() if key != name}, "it")
        with pytest.raises(InvalidUsageError, match=rf"{name} has shape \(63,\)"):
            naming.check(SMALL, given | {name: np.zeros(63, np.float32)}, "it")
        with pytest.raises(UnsupportedError, match=f"{name}.more"):
            naming.check(SMALL, given | {f"{name}.more": np.zeros(64, np.float32)}, "it")


def test_plans_know_the_norms() -> None:
    for source in (tiny.as_json(SMALL), {"model_type": "gemma3", "text_config": tiny.as_json(SMALL)}, SMALL):
        spec = spec_of(source)
        assert (spec.head_norms, spec.post_norms, spec.head_dim) == (True, True, 16)
    plain = replace(spec, post_norms=False)
    assert len(spec.weights_of_block(0)) == len(plain.weights_of_block(0)) + 2
    found, usual = (footprint(each, "tensor", (1, 1)) for each in (spec, plain))  # type: ignore[arg-type]
    assert found.collectives == usual.collectives, "norms after sums cost none"


def test_the_reference_in_turns() -> None:
    config = replace(SMALL, vocabulary=64, scaling=2.0)
    weights, ids = tiny.weights(config, seed=2), [1, 5, 9, 33, 2, 60, 7, 8]
    whole = reference.Reference(config, weights).logits(ids)
    turned = reference.Reference(config, weights)
    parts = np.concatenate([turned.logits(ids[:2]), turned.logits(ids[2:3]), turned.logits(ids[3:])])
    assert np.abs(parts - whole).max() < 1e-12
    bound = reference.bounded(config, weights, ids)[1]
    for change in ({"window": 4}, {"sliding": (True, False, False)}, {"local_theta": 2e4}, {"scale": 0.26}):
        other = reference.Reference(replace(config, **change), weights).logits(ids)
        assert (np.abs(other - whole) > bound).any(), "a wrong configuration shows"
