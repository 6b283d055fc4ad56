"""A decoder over ranks: logits within derived bounds of float64, the reference's tokens, replicas that agree."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest
from helpers.graph import fusing
from helpers.ops import reducing

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.ops.experts import few
from vkpar.ops.quantized.kinds import MIXES
from vkpar.parallel import spec_of
from vkpar.parallel.models import Generation, Llama, Sampling, llama, naming, open_model, tiny
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.generating import room_for
from vkpar.parallel.plan import footprint
from vkpar.parallel.plan.placing import place

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "generate.py"
Rig = Callable[..., vkpar.Communicator]

SMALL = replace(tiny.SIZES, vocabulary=128)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 32.0}
GEMMA3 = replace(SMALL, family="gemma3", tied=True, layers=3, window=5, sliding=(True, True, False), scale=0.3)
GEMMA3 = replace(GEMMA3, theta=1e6, local_theta=1e4, scaling=2.0)
CONFIGS = {
    "llama": SMALL,
    "qwen2": replace(SMALL, family="qwen2", tied=True, theta=1e6),
    "linear": replace(SMALL, scaling=2.0, heads=3, kv_heads=1),
    "llama3": replace(SMALL, scaling=LLAMA3, layers=3),
    "qwen3": replace(SMALL, family="qwen3", head_dim=32, theta=1e6),  # heads wider together than the stream
    "gemma3": GEMMA3,
    "wide gemma3": replace(GEMMA3, layers=2, hidden=256, intermediate=256, head_dim=64, sliding=(True, False)),
    "window": replace(SMALL, window=5),
    "mixtral": replace(SMALL, experts=5, active=2),
    "qwen3moe": replace(SMALL, family="qwen3moe", intermediate=32, experts=8, active=3, head_dim=32, normed=False),
    "qwen2moe": replace(SMALL, family="qwen2moe", intermediate=32, experts=6, active=2, shared=96, normed=False),
    "mixed": replace(SMALL, family="qwen2moe", layers=3, intermediate=32, experts=6, active=2, shared=96, normed=False),
    "wide window": replace(SMALL, layers=1, hidden=256, intermediate=256, head_dim=64, window=7),
    "wide qwen3": replace(SMALL, family="qwen3", layers=1, hidden=256, intermediate=256, head_dim=64),
    "wide": replace(SMALL, layers=1, hidden=256, intermediate=256, head_dim=64),  # what a row split slices
}
CONFIGS["mixed"] = replace(CONFIGS["mixed"], sparse=(False, True, False), dense=160)
SEEDS = {"wide": 1, "qwen3": 1, "wide window": 1}  # such that no two tokens are likely alike
PROMPT = (1, 5, 9, 33, 2, 100, 7, 8, 9, 10, 11, 90)
STEPS = 24
RARE = pytest.mark.sampled(1 << 32)  # with --full alone
CASES = [
    ("llama", "L", "single", (1,)),
    ("llama", "LL", "tensor", (1, 1)),
    ("llama", "LL", "tensor", (3, 1)),
    ("llama", "LLL", "tensor", (1, 0, 1)),
    ("llama", "LLL", "tensor", (1, 1, 1)),
    ("llama", "LL", "layer", (1, 1)),
    pytest.param("llama", "LLL", "layer", (1, 0, 1), marks=RARE),
    ("wide", "LL", "row", (3, 1)),
    pytest.param("wide", "LLL", "row", (1, 0, 1), marks=RARE),
    ("qwen2", "LL", "tensor", (1, 1)),
    pytest.param("qwen2", "LL", "layer", (1, 1), marks=RARE),
    ("linear", "LLL", "tensor", (1, 1, 1)),
    ("qwen3", "LLL", "tensor", (1, 0, 1)),
    ("qwen3", "LS", "tensor", (3, 1)),
    pytest.param("qwen3", "L", "single", (1,), marks=RARE),
    pytest.param("qwen3", "LL", "tensor", (1, 1), marks=RARE),
    pytest.param("qwen3", "LLL", "layer", (1, 1, 1), marks=RARE),
    ("wide qwen3", "LL", "row", (1, 1)),
    ("gemma3", "LLL", "tensor", (1, 0, 1)),
    ("gemma3", "LS", "tensor", (3, 1)),
    ("wide gemma3", "LL", "row", (1, 1)),
    pytest.param("gemma3", "L", "single", (1,), marks=RARE),
    pytest.param("gemma3", "LL", "tensor", (1, 1), marks=RARE),
    pytest.param("gemma3", "LLL", "layer", (1, 1, 1), marks=RARE),
    ("window", "LS", "tensor", (3, 1)),
    ("window", "LLL", "tensor", (1, 0, 1)),
    ("window", "LL", "layer", (1, 1)),
    pytest.param("window", "L", "single", (1,), marks=RARE),
    pytest.param("wide window", "LL", "row", (1, 1), marks=RARE),
    ("mixtral", "L", "single", (1,)),
    ("qwen3moe", "LLL", "tensor", (1, 0, 1)),
    pytest.param("qwen3moe", "LS", "tensor", (3, 1), marks=RARE),  # SwiftShader compiles for many seconds
    ("mixtral", "LLL", "tensor", (1, 1, 1)),
    ("mixtral", "LLL", "expert", (3, 0, 1)),
    pytest.param("mixtral", "LLLL", "expert", (1, 9, 1, 9), marks=RARE),  # two ranks with heads have no expert
    pytest.param("qwen3moe", "LL", "expert", (1, 1), marks=RARE),
    pytest.param("qwen3moe", "LS", "expert", (1, 1), marks=RARE),
    pytest.param("qwen3moe", "LL", "layer", (1, 1), marks=RARE),
    ("qwen2moe", "L", "single", (1,)),
    ("qwen2moe", "LLL", "tensor", (1, 0, 1)),
    ("qwen2moe", "LL", "expert", (3, 1)),
    pytest.param("qwen2moe", "LLL", "layer", (1, 1, 1), marks=RARE),
    pytest.param("qwen2moe", "LS", "tensor", (3, 1), marks=RARE),
    ("mixed", "LLL", "tensor", (1, 0, 1)),
    ("mixed", "LL", "expert", (1, 1)),
    ("mixed", "LL", "layer", (1, 1)),
    pytest.param("mixed", "L", "single", (1,), marks=RARE),
    ("llama3", "LL", "single", (0, 1)),
    ("llama", "LS", "tensor", (1, 1)),
    pytest.param("llama", "LS", "layer", (1, 1), marks=RARE),
    pytest.param("wide", "LS", "row", (1, 1), marks=RARE),
]


@cache
def weights_of(name: str) -> dict[str, Any]:
    return tiny.weights(CONFIGS[name], SEEDS.get(name, 0))


@cache
def expected(name: str, ranks: int, wire: str) -> tuple[reference.F64, reference.F64, list[int]]:
    """Logits of the prompt and of what the reference adds to it, their bounds, and the added tokens."""
    config, weights = CONFIGS[name], weights_of(name)
    added = reference.greedy(config, weights, PROMPT, STEPS)
    whole = [*PROMPT, *added]
    value, bound = reference.bounded(config, weights, whole, ranks=ranks, wire=wire)
    return value, bound, added


@contextmanager
def model_of(comm: vkpar.Communicator, name: str, mode: str, ratios: Sequence[int], **options: Any) -> Iterator[Llama]:
    config = CONFIGS[name]
    placement = place(spec_of(config), mode, [Fraction(ratio) for ratio in ratios])
    settings = {"context": 64, "cache_dtype": "float32", **options}
    with Llama(config, weights_of(name), comm, placement, **settings) as model:
        yield model


@pytest.mark.parametrize(("name", "letters", "mode", "ratios"), CASES)
def test_logits_and_tokens(rig: Rig, name: str, letters: str, mode: str, ratios: tuple[int, ...]) -> None:
    value, bound, added = expected(name, len(letters), "f32")
    assert reference.surest(value[len(PROMPT) - 1 :], bound[len(PROMPT) - 1 :]) > 2, "no device could choose otherwise"
    with model_of(rig(letters, wire="f32"), name, mode, ratios) as model:
        logits = model.prefill([*PROMPT, *added], logits=True)
        assert logits is not None
        assert (np.abs(logits - value) <= bound).all()
        model.rewind()
        assert list(Generation(model, PROMPT, STEPS)) == added
        assert model.length == len(PROMPT) + STEPS - 1
        assert (np.abs(model.next_logits() - value[-2]) <= bound[-2]).all(), "the captured step's"


LONG = ("llama", "qwen2", "qwen3", "gemma3", "window", "mixtral", "qwen3moe", "qwen2moe", "mixed")


@pytest.mark.parametrize("name", [pytest.param(name, marks=RARE) for name in LONG])
def test_two_hundred_tokens_over_two_drivers(rig: Rig, name: str) -> None:
    """By the captured step, each after the reference's tokens; where two are nearly as likely, either may be chosen."""
    config, weights, steps = CONFIGS[name], weights_of(name), 200
    added = reference.greedy(config, weights, PROMPT, steps)
    value, bound = reference.bounded(config, weights, [*PROMPT, *added], ranks=2, wire="f32")
    value, bound = value[len(PROMPT) - 1 :], bound[len(PROMPT) - 1 :]
    clear = [reference.surest(value[[place]], bound[[place]]) > 2 for place in range(steps)]
    assert sum(clear) > 0.9 * steps
    with model_of(rig("LS", wire="f32"), name, "tensor", (1, 1), context=256) as model:
        model.prefill(PROMPT)
        for place, token in enumerate(added):
            assert not clear[place] or model.next_token() == token, f"the token {place} after the prompt"
            model.feed(token)
        assert (np.abs(model.next_logits() - value[-1]) <= bound[-1]).all()


@pytest.mark.parametrize(
    ("name", "letters", "wire"),
    [
        ("llama", "LLL", "q8"),
        ("llama", "LS", "f16"),
        ("qwen3", "LS", "f32"),
        ("window", "LS", "f32"),
        ("gemma3", "LS", "f32"),
        pytest.param("mixtral", "LS", "f32", marks=RARE),
    ],
)
def test_replicas_of_the_stream_agree_and_wires_stay_within_their_bounds(
    rig: Rig, name: str, letters: str, wire: str
) -> None:
    weights, ranks = weights_of(name), len(letters)
    value, bound = reference.bounded(CONFIGS[name], weights, PROMPT, ranks=ranks, wire=wire, kept=2.0**-11)
    comm = rig(letters, wire=wire)
    with model_of(comm, name, "tensor", (1,) * ranks, cache_dtype="float16") as model:
        streams = model.replicas(PROMPT)
        assert len(streams) == len(letters)
        assert all(stream.tobytes() == streams[0].tobytes() for stream in streams)
        logits = model.prefill(PROMPT, logits=True)
        assert logits is not None
        assert (np.abs(logits - value) <= bound).all()
        first = list(Generation(model, [3], 30))
        model.rewind(len(PROMPT))
        assert list(Generation(model, [3], 30)) == first, "repeatable"


def test_a_text_in_turns_is_that_of_one_prompt(rig: Rig) -> None:
    """Prompts in small batches, single tokens and more prompts after them; what is kept costs no further memory."""
    value, bound, added = expected("llama", 1, "f32")
    whole = [*PROMPT, *added]
    comm = rig("L", wire="f32")
    with model_of(comm, "llama", "single", (1,), batch=5) as model:
        held = 0
        for turn in range(5):
            model.rewind()
            found = model.prefill(whole[:7], logits=True)
            assert found is not None
            for token in whole[7:9]:
                model.feed(token)
                found = np.concatenate([found, model.next_logits()[None]])
            more = model.prefill(whole[9:], logits=True)
            assert more is not None
            found = np.concatenate([found, more])
            assert (np.abs(found - value) <= bound).all()
            comm.devices[0].synchronize()
            used = comm.devices[0].memory().arrays
            held = held if turn > 1 else used
            assert used <= held
        assert model.stats().launches == 10


@pytest.mark.parametrize(
    ("name", "letters", "mode", "ratios"),
    [
        ("window", "LS", "tensor", (3, 1)),
        ("window", "LLL", "layer", (1, 0, 1)),
        ("gemma3", "LL", "tensor", (1, 1)),
        pytest.param("gemma3", "L", "single", (1,), marks=RARE),
        pytest.param("wide window", "LL", "row", (1, 1), marks=RARE),
    ],
)
def test_windows_keep_the_latest_keys_alone(
    rig: Rig, name: str, letters: str, mode: str, ratios: tuple[int, ...]
) -> None:
    """Where these are moved to the front many times: between pieces of prompts, and between single tokens."""
    rng, comm, config = np.random.default_rng(5), rig(letters, wire="f32"), CONFIGS[name]
    whole = rng.integers(0, config.vocabulary, 180).tolist()
    value, bound = reference.bounded(config, weights_of(name), whole, ranks=len(letters), wire="f32")
    with model_of(comm, name, mode, ratios, batch=7, context=256) as model:
        rows = {cache.tokens for row in model._cache.together for cache in row if cache is not None}
        assert min(rows) == (config.window or 0) + 16 + 16
        assert (max(rows) == 256) == bool(config.sliding)
        parts = [model.prefill(whole[:80], logits=True)]
        for token in whole[80:130]:
            model.feed(token)
            parts.append(model.next_logits()[None])
        replicas = {part.tobytes() for part in model.replicas(whole[130:137])}
        assert len(replicas) == 1
        with pytest.raises(InvalidUsageError, match="100 tokens together; a cache of windows takes 16"):
            model.replicas([1] * 100)
        parts.append(model.prefill(whole[130:], logits=True))
        found = np.concatenate([part for part in parts if part is not None])
        assert (np.abs(found - value) <= bound).all()
        with pytest.raises(InvalidUsageError, match=r"token 99 has a window .* or those from \d+ on"):
            model.rewind(99)
        assert model.length == 180
        model.rewind(172)
        again = model.prefill(whole[172:], logits=True)
        assert again is not None
        assert (np.abs(again - value[172:]) <= bound[172:]).all()
        model.rewind()
        first = model.prefill(whole[:9], logits=True)
        assert first is not None
        assert (np.abs(first - value[:9]) <= bound[:9]).all()


def test_fifty_turns_of_windows(rig: Rig) -> None:
    """A context that grows to many times the window; tokens are the reference's while no two are nearly as likely."""
    config, comm = CONFIGS["window"], rig("LS", wire="f32")
    with model_of(comm, "window", "tensor", (1, 1), batch=4, context=256) as model:
        text: list[int] = []
        checked = 0
        for turn in range(50):
            given = [(7 * turn + 3) % 128, (11 * turn) % 128]
            text += [*given, *Generation(model, given, 2)]
            model.feed(text[-1])
        assert model.length == 200
        value, bound = reference.bounded(config, weights_of("window"), text, ranks=2, wire="f32")
        two = np.sort(value, axis=1)[:, -2:]
        for turn in range(50):
            for at in (4 * turn + 1, 4 * turn + 2):
                if two[at, 1] - two[at, 0] > 2 * bound[at].max():
                    assert text[at + 1] == value[at].argmax()
                    checked += 1
        assert checked > 60


def test_fifty_turns_launch_the_same_graph(rig: Rig) -> None:
    """A turn costs as many operations as the one before: none is recorded anew, and no memory is taken."""
    comm = rig("L")
    with model_of(comm, "llama", "single", (1,), context=256) as model:
        counted = []
        for turn in range(50):
            list(Generation(model, [turn + 1, 7], 3))  # tokens that are given, the last of three stays out
            counted.append((model.stats().operations, [device.memory().arrays for device in comm.devices]))
        assert model.length == 50 * 4
        assert counted[-1] == counted[5]


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2moe"])
def test_sums_of_the_captured_step_are_fused_on_gpus(rigs: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each block's two sums take the place of a product's store and of the norm after them, on both ranks."""
    added = expected(name, 2, "f32")[2]
    monkeypatch.setattr(few, "usable_on", lambda device: True)
    devices = reducing.fresh_devices(rigs, "LL")
    fusing.force_gpu(monkeypatch.setattr)
    comm = vkpar.Communicator(devices, wire="f32", algorithm="direct")
    with comm, model_of(comm, name, "tensor", (1, 1)) as model:
        assert list(Generation(model, PROMPT, 3)) == added[:3]
        assert model.stats().fused == 2 * 2 * 2 * SMALL.layers
    for device in devices:
        device.close()


def test_rows_of_a_prompt_may_be_rounded(rig: Rig) -> None:
    """Inputs of products in float16, as matrix units take them, and weights that were converted."""
    weights = {name: tensor.astype(np.float16) for name, tensor in weights_of("llama").items()}
    kept = {name: tensor if tensor.ndim == 1 else weights[name] for name, tensor in weights_of("llama").items()}
    value, bound = reference.bounded(SMALL, kept, PROMPT, inputs=2.0**-11, kept=2.0**-11, ranks=2, wire="f32")
    options = {"inputs": "float16", "dtype": "float16", "cache_dtype": "float16"}
    with model_of(rig("LL", wire="f32"), "llama", "tensor", (1, 1), **options) as model:
        logits = model.prefill(PROMPT, logits=True)
        assert logits is not None
        assert sum(model.weights_nbytes) < 0.6 * sum(tensor.nbytes for tensor in weights_of("llama").values())
        assert (np.abs(logits - value) <= bound).all()
        exact, close = reference.bounded(SMALL, kept, PROMPT)  # of float32
        assert (np.abs(logits - exact) > close / 50).any(), "they were rounded"


def test_drawn_tokens_follow_the_seed(rig: Rig) -> None:
    with model_of(rig("LL", wire="f32"), "llama", "tensor", (1, 1)) as model:
        drawn = []
        for seed in (7, 7, 8):
            model.rewind()
            drawn.append(
                list(Generation(model, PROMPT, 20, Sampling(temperature=1.5, top_k=40, top_p=0.95, seed=seed)))
            )
        assert drawn[0] == drawn[1] != drawn[2]
        model.rewind()
        one = list(Generation(model, PROMPT, 20, Sampling(temperature=2.0, top_k=1)))
        assert one == expected("llama", 2, "f32")[2][:20], "of one token the likeliest"


def test_generation_stops_and_keeps_what_it_gave(rig: Rig) -> None:
    _, _, added = expected("llama", 1, "f32")
    with model_of(rig("L"), "llama", "single", (1,)) as model:
        end = added[4]
        generation = Generation(model, PROMPT, STEPS, stops=[end])
        assert list(generation) == added[: added.index(end) + 1]
        assert model.length == len(PROMPT) + added.index(end)
        model.rewind()
        for number, token in enumerate(Generation(model, PROMPT, STEPS)):
            assert token == added[number]
            if number == 9:
                break
        assert model.length == len(PROMPT) + 9
        for ask in (model.next_token, model.next_logits, model.feed):  # launches were ahead of what was given
            with pytest.raises(InvalidUsageError, match="give a prompt first"):
                ask()
        model.feed(added[9])
        assert model.next_token() == added[10]


def test_likeliest_tokens_of_nan_are_an_error(rig: Rig) -> None:
    """At once where every logit is NaN, and where a token that is reached later makes them so."""
    added = expected("llama", 1, "f32")[2]
    late = next(n for n in range(2, STEPS - 1) if added[n] not in (*PROMPT, *added[:n]))
    for name, rows, least, most in (
        ("model.norm.weight", slice(None), 0, 0),
        ("model.embed_tokens.weight", added[late], 1, late + 1),
    ):
        weights = dict(weights_of("llama"))
        weights[name] = weights[name].copy()
        weights[name][rows] = np.nan
        with Llama(SMALL, weights, rig("L"), place(spec_of(SMALL), "single", [Fraction(1)]), context=64) as model:
            generation = Generation(model, PROMPT, STEPS)
            with pytest.raises(InvalidUsageError, match="not finite"):
                list(generation)
            assert least <= len(generation.tokens) <= most
            assert generation.tokens == added[: len(generation.tokens)], "none of NaN was given"


# ---- files ----


def dequantised(config: Config, tensors: dict[str, Any], kind: str) -> dict[str, Any]:
    """What a GGUF file of the kind holds of the tensors."""
    gguf = pytest.importorskip("gguf")
    found = {}
    for name, tensor in tensors.items():
        used = "f32" if tensor.ndim == 1 else tiny.kind_in(kind, config, name, tensor.shape[-1])
        blocks, raw = tiny.quantised(tensor, used)
        found[name] = (
            blocks if used in ("f32", "f16") else gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[raw])
        )
    return found


def check_file(rig: Rig, path: Path, config: Config, tensors: dict[str, Any], letters: str, mode: str) -> None:
    value, bound = reference.bounded(config, tensors, PROMPT, ranks=len(letters), wire="f32")
    with open_model(path) as file:
        told: dict[str, int] = {}
        comm = rig(letters, wire="f32")
        options = {"context": 64, "cache_dtype": "float32", "inputs": "float32", "progress": told.__setitem__}
        with file.load(comm, mode=mode, ratios="even", strict=True, **options) as model:
            assert model.plan is not None
            assert model.plan.mode == model.placement.mode
            for memory, nbytes in zip(model.plan.memory, model.weights_nbytes, strict=True):
                assert abs(memory.weights - nbytes) <= 0.05 * nbytes + 256 * len(told), "padding of small tensors"
            logits = model.prefill(PROMPT, logits=True)
            assert logits is not None
            assert (np.abs(logits - value) <= bound).all()
            assert set(told) <= set(file.weights)
            assert sum(told.values()) >= 0.9 * file.weights.nbytes


# The others are in the mix, or have the layout of one that is here.
SELDOM = ("q4_1", "q5_1", "q5_k", "q6_k", "q5_k_m")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=RARE if kind in SELDOM else ()) for kind in tiny.FILES])
def test_gguf_files(rig: Rig, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    families = {"f16": "qwen2", "q4_0": "qwen2", "bf16": "qwen3", "q8_0": "qwen3"}
    family = families.get(kind, "llama")  # q4_0 with an output layer that is the table
    layers = 2 if kind == "q8_0" or kind in MIXES else 1
    window = 7 if kind == "f32" else None
    config = replace(CONFIGS["wide"], family=family, layers=layers, theta=5e5, tied=kind == "q4_0", window=window)
    tensors = tiny.weights(config)
    tiny.write_gguf(tmp_path / "m.gguf", config, tensors, kind)
    letters, mode = ("LL", "layer") if kind == "q8_0" else ("L", "single")
    check_file(rig, tmp_path / "m.gguf", config, dequantised(config, tensors, kind), letters, mode)


@pytest.mark.parametrize(
    ("kind", "family", "mode"),
    [
        ("q8_0", "qwen3moe", "tensor"),
        ("q4_k", "qwen3moe", "layer"),
        ("q4_k_m", "qwen3moe", "single"),
        ("f16", "llama", "expert"),
        pytest.param("q4_0", "llama", "expert", marks=RARE),
        pytest.param("bf16", "qwen3moe", "row", marks=RARE),
        ("q8_0", "qwen2moe", "tensor"),
        ("q4_0", "qwen2moe", "expert"),
        pytest.param("q4_k_m", "qwen2moe", "layer", marks=RARE),
        pytest.param("f16", "qwen2moe", "row", marks=RARE),
    ],
)
def test_gguf_files_of_mixtures(rig: Rig, tmp_path: Path, kind: str, family: str, mode: str) -> None:
    """The experts of a block are one tensor, which is cut by their width, or dealt out."""
    pytest.importorskip("gguf")
    shared = 512 * (family == "qwen2moe")
    sizes = {"layers": 1 + (mode == "layer"), "experts": 4, "active": 2, "shared": shared, "normed": not shared}
    config = replace(CONFIGS["wide"], family=family, **sizes)
    tensors = tiny.weights(config, 2)
    tiny.write_gguf(tmp_path / "m.gguf", config, tensors, kind)
    held = dequantised(config, tensors, kind)
    routers = naming.routers_of(config, naming.TRANSFORMERS)
    held |= {name: tensors[name] for name in routers}
    check_file(rig, tmp_path / "m.gguf", config, held, "LL", mode)


@pytest.mark.parametrize(
    ("told", "tensor"),
    [
        ({"experts": 5}, r"blk\.0\.ffn_gate_inp\.weight has shape \(4, 64\)"),
        ({"intermediate": 48}, r"blk\.0\.ffn_gate_exps\.weight has shape \(4, 32, 64\)"),
        ({"shared": 64}, r"blk\.0\.ffn_gate_shexp\.weight has shape \(96, 64\)"),
        ({"layers": 3}, r"has no tensor blk\.2\."),
        ({"layers": 1}, r"holds blk\.1\..* which the model does not use"),
    ],
)
def test_gguf_files_whose_experts_are_others_than_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, int], tensor: str
) -> None:
    """The first tensor that does not fit is named when the file is opened."""
    pytest.importorskip("gguf")
    config = replace(CONFIGS["qwen2moe"], experts=4)
    write = tiny._write_metadata
    monkeypatch.setattr(tiny, "_write_metadata", lambda writer, own: write(writer, replace(own, **told)))
    tiny.write_gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    with pytest.raises((InvalidUsageError, UnsupportedError), match=tensor):
        open_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("family", ["qwen3moe", "qwen2moe", "mixed"])
def test_experts_of_folders_one_by_one_and_together(rig: Rig, tmp_path: Path, family: str) -> None:
    """As transformers saves them, and as its fifth version holds them."""
    pytest.importorskip("safetensors")
    config, weights = CONFIGS[family], dict(weights_of(family))
    tiny.write_folder(tmp_path, config)
    value, bound = reference.bounded(config, tiny.weights(config), PROMPT)
    with open_model(tmp_path) as file:
        assert file.config == config
        with file.load(rig("L", wire="f32"), mode="single", context=32) as model:
            logits = model.prefill(PROMPT, logits=True)
    assert logits is not None
    assert (np.abs(logits - value) <= bound).all()
    for block in filter(config.mixes, range(config.layers)):
        own = f"model.layers.{block}.mlp.experts."
        gate, up, down = (
            np.stack([weights.pop(f"{own}{expert}.{part}_proj.weight") for expert in range(config.experts)])
            for part in ("gate", "up", "down")
        )
        weights |= {f"{own}gate_up_proj": np.concatenate([gate, up], axis=1), f"{own}down_proj": down}
    value, bound = reference.bounded(config, weights_of(family), PROMPT)
    with Llama(config, weights, rig("L"), place(spec_of(config), "single", [Fraction(1)]), context=32) as model:
        logits = model.prefill(PROMPT, logits=True)
        assert logits is not None
        assert (np.abs(logits - value) <= bound).all()


def test_wrong_experts_are_named_before_anything_is_allocated(rig: Rig, tmp_path: Path) -> None:
    comm = rig("L")
    config, weights = CONFIGS["qwen3moe"], dict(weights_of("qwen3moe"))
    placement, before = place(spec_of(config), "single", [Fraction(1)]), comm.devices[0].memory().arrays
    name = "model.layers.1.mlp.experts.5.up_proj.weight"
    for key, tensor, error, message in (
        (name, None, InvalidUsageError, f"no tensor {name}"),
        (name, np.zeros((16, 64), np.float32), InvalidUsageError, rf"{name} has shape \(16, 64\)"),
        ("model.layers.0.mlp.gate.weight", np.zeros((9, 64), np.float32), InvalidUsageError, r"mlp\.gate\.weight has"),
        (
            "model.layers.0.mlp.experts.0.up_proj.bias",
            np.zeros(32, np.float32),
            UnsupportedError,
            r"experts\.0\.up_proj\.bias",
        ),
        (
            "model.layers.0.mlp.shared_expert.up_proj.weight",
            np.zeros((8, 64), np.float32),
            UnsupportedError,
            "shared_expert",
        ),
    ):
        given = {key_: value for key_, value in weights.items() if key_ != key}
        given |= {} if tensor is None else {key: tensor}
        with pytest.raises(error, match=message):
            Llama(config, given, comm, placement)
    shared, given = CONFIGS["qwen2moe"], dict(weights_of("qwen2moe"))
    name = "model.layers.1.mlp.shared_expert_gate.weight"
    del given[name]
    with pytest.raises(InvalidUsageError, match=f"no tensor {name}"):
        Llama(shared, given, comm, place(spec_of(shared), "single", [Fraction(1)]))
    given[name] = np.zeros((2, 64), np.float32)
    with pytest.raises(InvalidUsageError, match=rf"{name} has shape \(2, 64\)"):
        Llama(shared, given, comm, place(spec_of(shared), "single", [Fraction(1)]))
    assert comm.devices[0].memory().arrays == before
    pytest.importorskip("safetensors")
    tiny.write_folder(tmp_path, config)
    found = (tmp_path / "config.json").read_text()
    for old, new, wrong, message in (
        ('"num_experts_per_tok": 3', '"num_experts_per_tok": 9', InvalidUsageError, "is 9, and there are 8 experts"),
        ('"num_experts_per_tok": 3', '"num_experts_per_tok": 0', InvalidUsageError, "num_experts_per_tok"),
        ('"num_local_experts": 8', '"num_local_experts": "8"', InvalidUsageError, "num_local_experts"),
        ("{", '{"mlp_only_layers": [1],', InvalidUsageError, r"no tensor model\.layers\.1\.mlp\.gate_proj\.weight"),
        ("{", '{"decoder_sparse_step": 2,', InvalidUsageError, r"no tensor model\.layers\.0\.mlp\.gate_proj\.weight"),
        ("{", '{"mlp_only_layers": [0, 1],', InvalidUsageError, "no block has experts"),
        ("{", '{"mlp_only_layers": [2],', InvalidUsageError, "mlp_only_layers is a list of numbers below 2"),
        ("{", '{"decoder_sparse_step": 0,', InvalidUsageError, "decoder_sparse_step is a whole number from 1"),
    ):
        (tmp_path / "config.json").write_text(found.replace(old, new, 1))
        with pytest.raises(wrong, match=message):
            open_model(tmp_path)


@pytest.mark.parametrize("kind", ["q8_0", *(pytest.param(kind, marks=RARE) for kind in ("q4_0", "q5_0", "q4_k_m"))])
def test_quantised_files_in_a_tensor_split(rig: Rig, tmp_path: Path, kind: str) -> None:
    """What columns are cut by are borders of blocks, of 256 where a mix of kinds has such."""
    pytest.importorskip("gguf")
    config = replace(CONFIGS["wide"], layers=1)
    if kind in MIXES:
        config = replace(config, layers=2, heads=8, kv_heads=2, intermediate=512)
    tensors = tiny.weights(config)
    tiny.write_gguf(tmp_path / "m.gguf", config, tensors, kind)
    check_file(rig, tmp_path / "m.gguf", config, dequantised(config, tensors, kind), "LL", "tensor")


def test_a_plan_of_a_mixed_file_has_the_model_s_pieces(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever matrices are quantised: here all but the first that a plan looks at, as whose kind it takes theirs."""
    pytest.importorskip("gguf")
    config = replace(CONFIGS["wide"], layers=2)
    tensors, quantised = tiny.weights(config), tiny.quantised
    kinds = {name: "f16" if ".up_proj." in name else "q8_0" for name, each in tensors.items() if each.ndim > 1}
    order = iter([kinds.get(name, "f32") for name in tensors])
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "quantised", lambda tensor, _: quantised(tensor, next(order)))
        tiny.write_gguf(tmp_path / "m.gguf", config, tensors)
    asked: dict[str, set[bool]] = {"plan": set(), "model": set()}

    def recorded(who: str, function: Any) -> Any:
        def called(*sizes: int, unpacks: bool) -> Any:
            asked[who].add(unpacks)
            return function(*sizes, unpacks=unpacks)

        return called

    monkeypatch.setattr(footprint, "most_rows", recorded("plan", footprint.most_rows))
    monkeypatch.setattr(llama, "piece_rows", recorded("model", llama.piece_rows))
    with open_model(tmp_path / "m.gguf") as file, file.load(rig("LL"), mode="layer", ratios="even") as model:
        model.prefill(PROMPT)
    assert asked == {"plan": {True}, "model": {True}}


@pytest.mark.parametrize(("dtype", "scaling"), [("float32", LLAMA3), ("float16", 4.0), ("bfloat16", None)])
def test_folders(rig: Rig, tmp_path: Path, dtype: str, scaling: Any) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    config = tiny.write_folder(tmp_path, replace(SMALL, scaling=scaling, stops=(3, 4), first=1), dtype=dtype)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    with open_model(tmp_path) as file:
        assert file.config == config
    check_file(rig, tmp_path, config, {name: np.asarray(x, np.float32) for name, x in tensors.items()}, "L", "auto")


def test_the_program_prints_what_was_asked_for(rigs: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    config = tiny.write_folder(tmp_path / "m", SMALL)
    logits, weights = tmp_path / "logits.npy", tiny.weights(config)
    index = rigs(reducing.POOLS["L"])[0].info.index
    asked = f"--steps 12 --json --split tensor --ratios even --wire f32 --devices {index}*2".split()
    files = ["--model", str(tmp_path / "m"), "--logits", str(logits), "--tokens", ",".join(map(str, PROMPT))]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *files, *asked], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    value, bound = reference.bounded(config, weights, PROMPT, ranks=2)
    written = np.load(logits)
    assert written.dtype == np.float32
    assert (np.abs(written - value) <= bound).all()
    found = json.loads(done.stdout)
    assert found["tokens"] == expected("llama", 2, "f32")[2][:12]
    assert found["pp"] > 0
    assert found["tg"] > 0
    assert found["plan"]["mode"] == "tensor"
    assert found["plan"]["heads"] == [[2, 2]] * 2


def test_the_program_checks_itself_and_prints_one_json_object(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    index, opened = rigs(reducing.POOLS["L"])[0].info.index, []

    def open_devices(selector: str) -> list[vkpar.Device]:
        opened.append(vkpar.device.open_devices(selector))
        return opened[-1]

    monkeypatch.setattr(vkpar, "open_devices", open_devices)
    monkeypatch.setattr(sys, "argv", f"generate.py --json --steps 3 --devices {index}&{index}".split())
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["tokens"]) == 3
    assert "OK: the same tokens" in printed.err
    assert [len(devices) for devices in opened] == [1, 2]
    assert all(device.closed for devices in opened for device in devices)


def test_the_program_ends_with_rates_and_where_the_model_was(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    device = rigs(reducing.POOLS["L"])[0]
    monkeypatch.setattr(sys, "argv", f"generate.py --steps 3 --devices {device.info.index} --profile".split())
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr()
    rates = r"pp 3: [\d.]+ tokens/s of the prompt, tg 3: [\d.]+ tokens/s after it"
    name = re.escape(device.name)
    assert re.search(f"{rates}\nllama, .* tokens, on {name} #\\d+ \\([\\d.]+ [KM]iB\\)\n", printed.out)
    assert re.search(f"{rates}\nllama, .*, split by tensor over {name} .*iB\\), {name}", printed.out)
    assert re.search(r"^a token: \d+ operations with \d+ barriers", printed.err, re.MULTILINE)
    assert "<" not in printed.out


def test_the_program_runs_prompts_in_halves(
    rigs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    tiny.write_folder(tmp_path)
    index, given, halves = rigs(reducing.POOLS["L"])[0].info.index, [], vars(Llama)["halves"]

    def setter(model: Llama, value: str) -> None:
        given.append(value)
        halves.fset(model, value)

    monkeypatch.setattr(Llama, "halves", halves.setter(setter))
    made = []
    for more in ([], ["--halves", "on"]):
        arguments = (
            f"--model {tmp_path} --tokens 1,5,9,2,7 --steps 6 --split tensor --devices {index}*2 --wire f32 --json"
        )
        monkeypatch.setattr(sys, "argv", ["generate.py", *arguments.split(), *more])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        made.append(json.loads(capsys.readouterr().out)["tokens"])
    assert given == ["auto", "on"]
    assert made[0] == made[1]
    assert len(made[0]) == 6


def test_the_program_runs_several_prompts_at_once(
    rigs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each text is what it is alone, in the file's order, with its rates."""
    pytest.importorskip("tokenizers")
    subprocess.run([sys.executable, EXAMPLE.parents[1] / "tools" / "make_tiny_model.py", tmp_path / "m"], check=True)
    index, lines = rigs(reducing.POOLS["L"])[0].info.index, ["The sum of", "A", "How are you today"]
    (tmp_path / "lines.txt").write_text("\n\n".join(lines))

    def run(*more: str) -> str:
        arguments = f"--model {tmp_path / 'm'} --steps 5 --devices {index} --wire f32 --ignore-end"
        monkeypatch.setattr(sys, "argv", ["generate.py", *arguments.split(), *more])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return capsys.readouterr().out

    alone = [json.loads(run("--prompt", line, "--json"))["tokens"] for line in lines]
    assert json.loads(run("--prompts", str(tmp_path / "lines.txt"), "--json"))["tokens"] == alone
    printed = run("--prompts", str(tmp_path / "lines.txt"))
    places = [
        printed.index(part) for line, number in zip(lines, (1, 2, 3), strict=True) for part in (line, f"[{number}]")
    ]
    assert places == sorted(places)
    assert len(re.findall(r"pp \d+: [\d.]+ tokens/s of the prompt, tg 5: [\d.]+ tokens/s after it", printed)) == 3
    assert re.search(r"3 texts, together: pp \d+: .*, tg 15: ", printed)
    (tmp_path / "lines.txt").write_text("\n")
    with pytest.raises(SystemExit, match="has no line with a prompt"):
        run("--prompts", str(tmp_path / "lines.txt"))
    with pytest.raises(SystemExit, match="No such file"):
        run("--prompts", str(tmp_path / "none.txt"))


# ---- prompts of any kind ----


def test_a_prompt_may_be_an_iterator(rig: Rig) -> None:
    kinds: list[Callable[[Sequence[int]], Any]] = [
        list,
        tuple,
        iter,
        lambda ids: (token for token in ids),
        lambda ids: map(int, ids),
        np.array,
        lambda ids: iter(np.array(ids, np.uint16)),
    ]
    with model_of(rig("L", wire="f32"), "llama", "single", (1,)) as model:
        want = model.prefill(PROMPT, logits=True)
        assert want is not None
        model.rewind()
        replicas = model.replicas(PROMPT)
        texts = []
        for kind in kinds:
            logits = model.prefill(kind(PROMPT), logits=True)
            assert np.array_equal(logits, want)
            model.rewind()
            assert np.array_equal(model.replicas(kind(PROMPT)), replicas)
            for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
                text = Generation(model, kind(PROMPT), 4, sampling)
                texts.append(list(text))
                assert text.prompt_rate > 0
                assert model.length == len(PROMPT) + 3
                model.rewind()
        assert texts == texts[:2] * len(kinds)
        assert len(list(Generation(model, iter(PROMPT), 4, stops=iter([texts[0][1], -1])))) == 2
        model.rewind()


def test_prompts_that_are_none_are_refused(rig: Rig) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: iter([]),
        list,
        lambda: np.empty(0, np.int32),
        lambda: {1, 5},
        lambda: {1: 5},
        lambda: "15",
        lambda: 15,
        lambda: None,
        lambda: [[[1, 5], [9]]],
        lambda: [[]],
        lambda: iter("15"),
        lambda: [1.0],
        lambda: iter([1, 5.5]),
        lambda: [True],
        lambda: [1 << 70],
    ]
    with model_of(rig("L", wire="f32"), "llama", "single", (1,)) as model:
        for make in wrong:
            for call in (
                lambda make=make: model.prefill(make()),
                lambda make=make: model.replicas(make()),
                lambda make=make: Generation(model, make(), 1),
            ):
                with pytest.raises(InvalidUsageError, match="tokens are a sequence of at least one id"):
                    call()
            with pytest.raises(InvalidUsageError, match=r"tokens are a sequence|the prompt has no tokens"):
                room_for(SMALL, make(), 1)
        for call in (model.prefill, model.replicas, lambda ids: Generation(model, ids, 1)):
            with pytest.raises(InvalidUsageError, match="do not fit the 64"):
                call(itertools.repeat(1))  # without end
            with pytest.raises(InvalidUsageError, match="token 128 is none of the 128"):
                call(iter([1, 128]))
        assert room_for(SMALL, np.array([1, 5]), 4) == 6
        model.prefill([1] * 60)
        with pytest.raises(InvalidUsageError, match="60 tokens and 5 more do not fit"):
            model.prefill(itertools.count())


def test_one_number_of_heads_for_all_layers_of_a_file(rig: Rig, tmp_path: Path) -> None:
    """Converters write a list where some models have other heads in other layers."""
    gguf = pytest.importorskip("gguf")
    own, logits = gguf.GGUFWriter.add_head_count_kv, []
    for heads in (SMALL.kv_heads, [SMALL.kv_heads] * SMALL.layers):
        path = tmp_path / f"{len(logits)}.gguf"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf.GGUFWriter, "add_head_count_kv", lambda writer, count, heads=heads: own(writer, heads))
            tiny.write_gguf(path, SMALL, tiny.weights(SMALL), "f32")
        with open_model(path) as file, file.load(rig("L", wire="f32"), mode="single", context=32) as model:
            assert (file.weights.metadata["llama.attention.head_count_kv"] == np.array(heads)).all()
            assert spec_of(file.weights.metadata | {"llama.vocab_size": SMALL.vocabulary}).kv_heads == SMALL.kv_heads
            logits.append(model.prefill([1, 5, 9], logits=True))
    assert np.array_equal(logits[0], logits[1])


# ---- what is refused ----


def test_wrong_arguments(rig: Rig, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    comm = rig("LL", wire="f32")
    tiny.write_folder(tmp_path, SMALL)
    with open_model(tmp_path) as file:
        for options, message in (
            ({"mode": "diagonal"}, "no mode 'diagonal'"),
            ({"ratios": "1,2,3"}, "3 ratios for 2 ranks"),
            ({"ratios": [0, 0]}, "every ratio is 0"),
            ({"mode": "tensor", "context": 0}, "context is a whole number from 1"),
        ):
            with pytest.raises(InvalidUsageError, match=message):
                file.load(comm, **options)
        with pytest.raises(InvalidUsageError, match=r"no tokenizer\.json; pass token ids"):
            file.tokenizer()
    with model_of(comm, "llama", "tensor", (1, 1)) as model:
        for call, message in (
            (model.feed, "give a prompt"),
            (model.next_logits, "give a prompt first"),
            (lambda: model.prefill([]), "at least one id"),
            (lambda: model.prefill([128]), "token 128 is none of the 128"),
            (lambda: model.prefill([-1]), "token -1 is none"),
            (lambda: model.prefill([1] * 65), "do not fit the 64"),
            (lambda: model.rewind(1), "0 tokens are kept"),
            (lambda: Generation(model, PROMPT, 60), "do not fit the 64"),
            (lambda: Generation(model, PROMPT, -1), "steps is a whole number"),
        ):
            with pytest.raises(InvalidUsageError, match=message):
                call()
        model.prefill([1] * 64)
        with pytest.raises(InvalidUsageError, match="all of it is taken"):
            model.feed()


def test_a_tensor_that_is_missing_or_has_another_shape_is_named_before_anything_is_read(rig: Rig) -> None:
    comm = rig("L")
    weights = dict(weights_of("llama"))
    placement = place(spec_of(SMALL), "single", [Fraction(1)])
    before = comm.devices[0].memory().arrays
    name = "model.layers.1.mlp.up_proj.weight"
    for tensor, message in (
        (None, f"no tensor {name}"),
        (np.zeros((96, 32), np.float32), rf"{name} has shape \(96, 32\)"),
    ):
        weights.pop(name)
        if tensor is not None:
            weights[name] = tensor
        with pytest.raises(InvalidUsageError, match=message):
            Llama(SMALL, weights, comm, placement)
        weights[name] = np.zeros(1)
    assert comm.devices[0].memory().arrays == before


def test_folders_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    with pytest.raises(InvalidUsageError, match=r"has no config\.json"):
        open_model(tmp_path)
    tiny.write_folder(tmp_path, SMALL)
    config = (tmp_path / "config.json").read_text()
    for old, new, error, message in (
        ('"llama"', '"mamba"', UnsupportedError, "'mamba' is not supported"),
        ('"silu"', '"gelu"', UnsupportedError, "hidden_act 'gelu'"),
        ('"hidden_size": 64', '"hidden_size": "64"', InvalidUsageError, "hidden_size is int"),
        ('"hidden_size": 64', '"hidden_size": 1e999', InvalidUsageError, "hidden_size is int"),
        ('"num_hidden_layers": 2', '"num_hidden_layers": 3', InvalidUsageError, r"no tensor model\.layers\.2"),
        ('"num_key_value_heads": 2', '"num_key_value_heads": 3', InvalidUsageError, "no multiple of 3"),
        (
            '"num_key_value_heads": 2',
            '"num_key_value_heads": 0',
            InvalidUsageError,
            "kv_heads is a whole number from 1",
        ),
        ("{", "[", InvalidUsageError, "cannot be read"),
    ):
        assert old in config
        (tmp_path / "config.json").write_text(config.replace(old, new, 1))
        with pytest.raises(error, match=message), open_model(tmp_path) as file:
            naming.check(file.config, file.weights, "it")
