"""Decoders that transformers made and saved: its logits, and its greedy tokens, on one device and on every split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest

import vkpar
from vkpar.parallel.models import Generation, open_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
torch = pytest.importorskip("torch", reason="torch is not installed: transformers needs it")
pytest.importorskip("safetensors", reason="safetensors is not installed")

STEPS = 200
PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 512, 40)]
SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA3 = {"head_dim": 64, "sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 48}
MODELS = {
    "llama": ("LlamaConfig", {"rope_theta": 5e5}),
    "llama3 scaling": ("LlamaConfig", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "linear scaling": ("LlamaConfig", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "biases, wide heads": ("LlamaConfig", {"attention_bias": True, "head_dim": 64, "rms_norm_eps": 1e-5}),
    "qwen2": ("Qwen2Config", {"rope_theta": 1e6}),
    "qwen2, tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"rope_theta": 1e6, "head_dim": 64}),
    "gemma3": ("Gemma3TextConfig", GEMMA3),
    "gemma3, stretched": ("Gemma3TextConfig", GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "mistral": ("MistralConfig", {"rope_theta": 1e6, "sliding_window": None}),
    "mistral, windows": ("MistralConfig", {"rope_theta": 1e6, "sliding_window": 24}),
}
SPLITS = [
    ("L", "single", [1]),
    ("LL", "tensor", [1, 1]),
    ("LL", "tensor", [3, 1]),
    ("LLL", "tensor", [1, 0, 1]),
    ("LLL", "layer", [1, 1, 1]),
    ("LL", "row", [1, 1]),
    ("LS", "tensor", [1, 1]),
]


@dataclass(frozen=True)
class Saved:
    folder: Path
    tensors: dict[str, np.ndarray]
    logits: np.ndarray
    tokens: list[int]


@pytest.fixture(scope="module", params=list(MODELS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A random model of transformers, what it makes of the prompt, and its 200 likeliest tokens."""
    kind, options = MODELS[request.param]
    config = getattr(transformers, kind)(**{**SIZES, **options})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("norm.weight", ".bias")):  # transformers makes them ones and zeros
                tensor.add_(torch.randn_like(tensor) / 8)
        folder = tmp_path_factory.mktemp("saved")
        model.save_pretrained(folder)
        tokens = list(PROMPT)
        for _ in range(STEPS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Saved(folder, tensors, logits, tokens[len(PROMPT) :])


@pytest.mark.parametrize(("letters", "mode", "ratios"), SPLITS)
def test_logits_and_200_greedy_tokens(
    rig: Callable[..., vkpar.Communicator], saved: Saved, letters: str, mode: str, ratios: list[int]
) -> None:
    whole = [*PROMPT, *saved.tokens]
    options: dict[str, Any] = {"context": 256, "cache_dtype": "float32", "mode": mode, "ratios": ratios}
    with open_model(saved.folder) as file, file.load(rig(letters, wire="f32"), **options) as model:
        value, bound = reference.bounded(file.config, saved.tensors, whole, ranks=len(letters))
        logits = model.prefill(whole, logits=True)
        assert logits is not None
        assert (np.abs(logits - value) <= bound).all(), "float64"
        assert (np.abs(saved.logits - value) <= bound).all(), "transformers itself, in float32"
        assert (np.abs(logits - saved.logits) <= 2 * bound).all()
        model.rewind()
        assert list(Generation(model, PROMPT, STEPS)) == saved.tokens
