"""Tiny decoders with random weights, in the files that real ones come in: programs and tests run without a download."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.quantized.encode import ENCODERS, encode
from vkpar.ops.quantized.kinds import KINDS as QUANTISED
from vkpar.ops.quantized.kinds import MIXES
from vkpar.parallel.models import naming
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.families import mixtures
from vkpar.parallel.models.families.values import Scaling

F32 = NDArray[np.float32]
KINDS: Final = ("f32", "f16", "bf16", *QUANTISED)
FILES: Final = (*KINDS, *MIXES)  # of the matrices of a file
SIZES: Final = Config("llama", 2, 64, 96, 4, 2, 16, 320, 512, 1e-5, 1e4)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UnsupportedError(f"a tiny model needs the package {package}: pip install {package}") from None


def weights(config: Config, seed: int = 0) -> dict[str, F32]:
    """Return random weights by transformers' names; those of ``qwen2`` have biases of queries, keys and values."""
    generator = np.random.default_rng(seed)
    made: dict[str, F32] = {}
    for name, shape in naming.shapes(config, naming.TRANSFORMERS):
        drawn = generator.standard_normal(shape)
        if name.endswith("bias"):
            drawn = drawn / 4
        else:
            middle = 0 if config.differs.centred else 1
            drawn = middle + drawn / 10 if len(shape) == 1 else drawn / np.sqrt(shape[-1])
        made[name] = drawn.astype(np.float32)
    if not config.differs.scaled:
        made[naming.TRANSFORMERS.embedding] *= np.float32(np.sqrt(config.hidden))
    return made


def as_json(config: Config) -> dict[str, Any]:
    """Return what transformers writes into ``config.json``."""
    names = {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "gemma3": "Gemma3ForCausalLM",
        "mixtral": "MixtralForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "qwen2_moe": "Qwen2MoeForCausalLM",
    }
    family = "mistral" if config.window is not None and config.family == "llama" else config.family
    if config.experts:
        family = {"llama": "mixtral", "qwen2moe": "qwen2_moe"}.get(family, "qwen3_moe")
    found: dict[str, Any] = {
        "architectures": [names[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.theta,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
    }
    if config.family == "gemma3":
        found |= _of_gemma3(config)
    if config.scaling is not None:
        found["rope_scaling"] = _as_rope_scaling(config.scaling)
    if config.window is not None:
        found["sliding_window"] = config.window
    if config.experts:
        found |= {"num_local_experts": config.experts, "num_experts_per_tok": config.active}
    if config.sparse:
        found["mlp_only_layers"] = [block for block in range(config.layers) if not config.mixes(block)]
        found["intermediate_size"] = config.dense
    if config.shared:
        found["shared_expert_intermediate_size"] = config.shared
    if family in ("qwen3_moe", "qwen2_moe"):
        found |= {"moe_intermediate_size": config.intermediate, "norm_topk_prob": config.normed}
    if config.stops:
        found["eos_token_id"] = list(config.stops)
    if config.first is not None:
        found["bos_token_id"] = config.first
    return found


def _of_gemma3(config: Config) -> dict[str, Any]:
    scale = config.head_dim**-0.5 if config.scale is None else config.scale
    kinds = ["sliding_attention" if config.slides(block) else "full_attention" for block in range(config.layers)]
    local = {} if config.local_theta is None else {"rope_local_base_freq": config.local_theta}
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scale**-2),
        "layer_types": kinds,
        "sliding_window": None,
        **local,
    }


def _as_rope_scaling(scaling: Scaling) -> dict[str, Any]:
    if isinstance(scaling, Mapping):
        kept = dict(scaling)
        return {"rope_type": "llama3", "original_max_position_embeddings": int(kept.pop("original_context")), **kept}
    if isinstance(scaling, (int, float)):
        return {"rope_type": "linear", "factor": float(scaling)}
    raise InvalidUsageError("transformers has no scaling with a divisor of each frequency")


def write_folder(
    folder: Path, config: Config = SIZES, *, seed: int = 0, dtype: str = "float32", text: str | None = None
) -> Config:
    """Write a model as transformers saves it.

    Args:
        folder: made where it is not there.
        config: the sizes.
        seed: of the weights.
        dtype: of the weights in the file: float32, float16 or bfloat16.
        text: what a tokenizer of at most ``config.vocabulary`` tokens is trained on; None for no tokenizer.

    Returns:
        the configuration, with the token that ends a text where there is a tokenizer.

    Raises:
        UnsupportedError: a package that is not installed.
    """
    if dtype not in ("float32", "float16", "bfloat16"):
        raise InvalidUsageError(f"weights are float32, float16 or bfloat16, not {dtype!r}")
    folder.mkdir(parents=True, exist_ok=True)
    if text is not None:
        train_tokenizer(text, config.vocabulary).save(str(folder / "tokenizer.json"))
        config = replace(config, stops=(0,))
    (folder / "config.json").write_text(json.dumps(as_json(config), indent=2) + "\n", encoding="utf-8")
    kept = {name: _stored(tensor, dtype) for name, tensor in weights(config, seed).items()}
    _package("safetensors.numpy").save_file(kept, str(folder / "model.safetensors"), {"format": "pt"})
    return config


def _stored(tensor: F32, dtype: str) -> NDArray[Any]:
    return tensor.astype(dtypes.resolve(dtype).numpy)


def train_tokenizer(text: str, vocabulary: int) -> Any:
    """Return a tokenizer of byte pairs that was trained on ``text``; token 0 ends a text."""
    package = _package("tokenizers")
    rules = package.Tokenizer(package.models.BPE())
    rules.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet() if vocabulary > 257 else []
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    rules.train_from_iterator(text.splitlines(keepends=True), trainer)
    return rules


# ---- GGUF ----


def write_gguf(path: Path, config: Config, tensors: Mapping[str, F32], kind: str = "f16", rules: Any = None) -> None:
    """Write a model as a GGUF file.

    Args:
        path: the file.
        config: the sizes.
        tensors: by transformers' names.
        kind: of the matrices, one of :data:`FILES`; norms and biases are float32.
        rules: a tokenizer of byte pairs, whose vocabulary goes into the file; None for none.

    Raises:
        InvalidUsageError: an unknown kind, or rows that blocks of the kind do not divide.
        UnsupportedError: the package ``gguf`` is not installed.
    """
    if kind not in FILES:
        raise InvalidUsageError(f"there is no kind {kind!r} of weights; there are {', '.join(FILES)}")
    if config.sparse:
        raise InvalidUsageError("a GGUF file of a mixture has experts in all blocks")
    package = _package("gguf")
    writer = package.GGUFWriter(str(path), config.family)
    _write_metadata(writer, config)
    if rules is not None:
        _write_vocabulary(writer, config, rules)
    of_gguf = dict(_gguf_names(config))
    routers = naming.routers_of(config, naming.TRANSFORMERS)
    for name, tensor in _stacked(config, tensors).items():
        plain = tensor.ndim == 1 or name in routers
        stored = tensor + np.float32(tensor.ndim == 1 and config.differs.centred)
        if name in routers and len(tensor) == 1:
            stored = tensor.reshape(-1)  # a share
        if config.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            stored = interleaved(tensor, config.heads if ".q_proj." in name else config.kv_heads)
        blocks, raw = quantised(stored, "f32" if plain else kind_in(kind, config, name, tensor.shape[-1]))
        writer.add_tensor(of_gguf[name], blocks, raw_dtype=getattr(package.GGMLQuantizationType, raw))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kind_in(file: str, config: Config, name: str, columns: int) -> str:
    """Return the kind of a matrix in a file of one of :data:`FILES`, as llama-quantize decides.

    Of a mix a finer kind has the output layer (the table where they are tied), and, in half of the blocks, values and
    the way down: the first and the last eighth, and every third one between.
    """
    mix = MIXES.get(file)
    if mix is None:
        return file
    names, count = naming.TRANSFORMERS, config.layers
    number = re.search(r"\.(\d+)\.", name)
    if number is None:
        finer = name == (names.embedding if config.tied else names.output)
    else:
        block, eighth = int(number[1]), count // 8
        more = block < eighth or block >= 7 * count // 8 or (block - eighth) % 3 == 2
        finer = more and any(part in name for part in (".v_proj.", "down_proj", ".w2."))  # the last of Mixtral's
    chosen = QUANTISED[mix.finer if finer else mix.name]
    return chosen.name if columns % chosen.block == 0 else chosen.narrow


def interleaved(tensor: F32, heads: int) -> F32:
    """Return rows of queries or keys in the order in which GGUF files of Llama have them: pairs are neighbours."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)


def quantised(tensor: F32, kind: str) -> tuple[NDArray[Any], str]:
    """Return a tensor's elements or blocks as a GGUF file has them, and the name that the format gives their type."""
    package = _package("gguf")
    raw = kind.upper()
    if kind in ("f32", "f16"):
        return tensor.astype(np.float32 if kind == "f32" else np.float16), raw
    block = QUANTISED[kind].block if kind in QUANTISED else 1
    if tensor.shape[-1] % block:
        raise InvalidUsageError(
            f"rows of {tensor.shape[-1]} elements are no multiple of the {block} of {kind}'s blocks"
        )
    if kind in ENCODERS:
        return encode(tensor, kind), raw
    return package.quants.quantize(tensor, getattr(package.GGMLQuantizationType, raw)), raw


def _gguf_names(config: Config) -> dict[str, str]:
    """Return GGUF's name of every tensor by transformers' one, biases included."""
    ours, theirs = (names.of_family(config.differs) for names in (naming.TRANSFORMERS, naming.GGUF))
    found = {ours.embedding: theirs.embedding, ours.output: theirs.output, ours.norm: theirs.norm}
    for block in range(config.layers):
        for part in ours.blocks:
            found[ours.of_block(part, block)] = theirs.of_block(part, block)
    if config.experts:
        layout = naming.experts_of(config, (), ours)
        for block in range(config.layers):
            found[layout.router.format(block)] = mixtures.GGUF.router.format(block)
            found |= {layout.name(part, block): mixtures.GGUF.name(part, block) for part in mixtures.PARTS}
            found |= {
                name.format(block): mixtures.GGUF.shared[part].format(block) for part, name in layout.shared.items()
            }
    return found | {naming.bias_of(name): naming.bias_of(other) for name, other in found.items()}


def _stacked(config: Config, tensors: Mapping[str, F32]) -> dict[str, F32]:
    """Return tensors of which those of experts are one, by the name of the first expert's."""
    made = dict(tensors)
    if config.experts:
        layout = naming.experts_of(config, (), naming.TRANSFORMERS)
        for block in range(config.layers):
            for part in mixtures.PARTS:
                names = [layout.name(part, block, expert) for expert in range(config.experts)]
                made[names[0]] = np.stack([made.pop(name) for name in names])
    return made


def _write_metadata(writer: Any, config: Config) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.theta)
    writer.add_layer_norm_rms_eps(config.epsilon)
    if config.window is not None:
        writer.add_sliding_window(config.window)
    if config.sliding:
        writer.add_sliding_window_pattern(list(config.sliding))
    if config.local_theta is not None:
        writer.add_float32(f"{config.family}.rope.freq_base_swa", config.local_theta)
    if config.experts:
        writer.add_expert_count(config.experts)
        writer.add_expert_used_count(config.active)
        writer.add_expert_feed_forward_length(config.intermediate)
    if config.shared:
        writer.add_expert_shared_feed_forward_length(config.shared)
    if config.scaling is not None:
        if not isinstance(config.scaling, (int, float)):
            raise InvalidUsageError("a tiny GGUF file has linear rope scaling or none")
        writer.add_string(f"{config.family}.rope.scaling.type", "linear")
        writer.add_float32(f"{config.family}.rope.scaling.factor", config.scaling)


def _write_vocabulary(writer: Any, config: Config, rules: Any) -> None:
    described = json.loads(rules.to_str())["model"]
    tokens = [f"[unused{number}]" for number in range(config.vocabulary)]
    for token, number in rules.get_vocab().items():
        tokens[number] = token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (config.vocabulary - 1))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in described["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
