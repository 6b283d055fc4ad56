"""Specs of models from what describes them: a config.json, the metadata of a GGUF file, an object with attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from reprlib import repr as shown
from typing import Any, Final

import numpy as np

from vkpar.errors import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.parallel.plan.spec import ModelSpec, check_size, is_true

# What sizes are called in a config.json, in GGUF's metadata, and by objects; experts before the width inside of them.
_CONFIG: Final = {
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "experts": ("num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok",),
    "shared": ("shared_expert_intermediate_size",),
    "hidden": ("intermediate_size", "n_inner"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "vocabulary": ("vocab_size",),
}
_GGUF: Final = {
    "layers": ("block_count",),
    "width": ("embedding_length",),
    "experts": ("expert_count",),
    "active": ("expert_used_count",),
    "shared": ("expert_shared_feed_forward_length",),
    "hidden": ("feed_forward_length",),
    "heads": ("attention.head_count",),
    "kv_heads": ("attention.head_count_kv",),
    "head_dim": ("attention.key_length",),
    "vocabulary": ("vocab_size",),
}
_ATTRIBUTES: Final = {"width": "hidden", "hidden": "intermediate"} | {
    name: name for name in ("layers", "heads", "kv_heads", "head_dim", "vocabulary", "experts", "active", "shared")
}
_EXPERT: Final = ("moe_intermediate_size", "expert_feed_forward_length")
_SHARING: Final = ("qwen2_moe", "qwen2moe")  # families with an expert that all tokens take, weighed
_MIXED: Final = ("qwen2_moe", "qwen3_moe")  # of which some blocks may have no experts
# Of blocks that are made of other steps than those below, in either kind of file.
_BEYOND: Final = (
    "kv_lora_rank",
    "n_routed_experts",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "mlp_only_layers",
    "linear_num_key_heads",
    "mamba_d_state",
    "attention.kv_lora_rank",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "leading_dense_block_count",
    "ssm.state_size",
)
_HEAD_NORMS: Final = ("qwen3", "qwen3_moe", "qwen3moe", "gemma3", "gemma3_text")
_POSTED: Final = ("gemma3", "gemma3_text")  # of which what comes of each half of a block is normed, too
_ENCODERS: Final = ("bert", "roberta", "xlm-roberta", "distilbert", "nomic-bert")


def spec_of(source: Any, *, weights: str = "float16", kinds: Mapping[str, Sequence[str]] | None = None) -> ModelSpec:
    """Return the spec of a model whose configuration is at hand.

    Args:
        source: the object in a ``config.json`` as transformers saves it; the metadata of a GGUF file; or an object with
            the attributes ``layers``, ``hidden``, ``intermediate``, ``heads``, ``kv_heads``, ``head_dim``,
            ``vocabulary``, ``tied`` and perhaps ``head_norms``, ``post_norms``, ``experts``, ``active``, ``window`` and
            ``sliding``. Of the others windows are not read: that all keys are kept.
        weights: what the weights are stored in on devices.
        kinds: of weights that are stored otherwise, by step and block; see :class:`ModelSpec`.

    Raises:
        WeightsError: a size that is missing; InvalidUsageError: one that is no whole number, named; sizes that do not
            fit together.
        UnsupportedError: a kind of model whose blocks are made of other steps, named.

    Examples:
        >>> from vkpar.parallel.models import open_model
        >>> with open_model(folder) as file:
        ...     spec = vkpar.parallel.spec_of(file.config)
        >>> spec.layers, spec.decoder
        (2, True)
    """
    if isinstance(source, Mapping) and isinstance(source.get("text_config"), Mapping):  # beside a tower for pictures
        source = {**source, **source["text_config"]}
    found, tied, decoder = _sizes_of(source)
    for name, (key, value) in found.items():
        least = int(name not in ("experts", "active", "shared"))
        check_size(name if key == name else f"{name} ({key})", value, least)
    sizes = {name: value for name, (_, value) in found.items()}
    missing = [name for name in ("layers", "width", "hidden", "heads", "vocabulary") if name not in sizes]
    if missing:
        raise WeightsError(f"the model's configuration lacks {', '.join(missing)}")
    sizes = {"kv_heads": sizes["heads"], "head_dim": sizes["width"] // sizes["heads"]} | sizes
    mixed = tuple((step, tuple(each)) for step, each in (kinds or {}).items())
    how: dict[str, Any] = {"tied": tied, "decoder": decoder, "gated": decoder, "bias": not decoder}
    how["head_norms"] = _is_of(source, "head_norms", _HEAD_NORMS)
    how["post_norms"] = _is_of(source, "post_norms", _POSTED)
    how["sparse"], how["dense"] = _sparse(source, sizes["layers"])
    how["window"], how["sliding"] = getattr(source, "window", None), getattr(source, "sliding", ())
    return ModelSpec(**sizes, **how, weights=weights, kinds=mixed)


def _is_of(source: Any, name: str, kinds: Sequence[str]) -> bool:
    """Say whether the source is an object with that attribute, or a configuration of one of the kinds that have it."""
    if not isinstance(source, Mapping):
        return is_true({name: getattr(source, name, None)}, name)
    return (source.get("general.architecture") or source.get("model_type")) in kinds


def _sparse(source: Any, layers: int) -> tuple[tuple[bool, ...], int]:
    """Return by block whether it has experts, and the width of others; neither where blocks are alike."""
    if not isinstance(source, Mapping):
        return getattr(source, "sparse", ()), getattr(source, "dense", 0)
    sparse = sparse_blocks(source, layers, "the model") if source.get("model_type") in _MIXED else ()
    return sparse, source.get("intermediate_size", 0) if sparse else 0


def sparse_blocks(found: Mapping[str, Any], layers: int, where: str) -> tuple[bool, ...]:
    """Return by block whether a config.json gives it experts; nothing where all have some.

    Raises:
        InvalidUsageError: numbers that are wrong, or no block with experts.
    """
    alone, step = found.get("mlp_only_layers") or [], found.get("decoder_sparse_step", 1)
    check_size("decoder_sparse_step", step)
    if not isinstance(alone, list) or not all(type(each) is int and 0 <= each < layers for each in alone):
        raise InvalidUsageError(f"{where}: mlp_only_layers is a list of numbers below {layers}, not {shown(alone)}")
    sparse = tuple(block not in alone and (block + 1) % step == 0 for block in range(layers))
    if not any(sparse):
        raise InvalidUsageError(f"{where}: by mlp_only_layers and decoder_sparse_step no block has experts")
    return () if all(sparse) else sparse


def _sizes_of(source: Any) -> tuple[dict[str, tuple[str, Any]], bool, bool]:
    """Return what the source calls each size that is there, and its value; whether it is tied, and a decoder."""
    if not isinstance(source, Mapping):
        values = {name: (key, getattr(source, key, None)) for name, key in _ATTRIBUTES.items()}
        tied = is_true({"tied": getattr(source, "tied", None)}, "tied")
        return {name: pair for name, pair in values.items() if pair[1] is not None}, tied, True
    gguf = "general.architecture" in source
    kind = source["general.architecture"] if gguf else source.get("model_type")
    if not isinstance(kind, str | None):
        raise InvalidUsageError(f"a model's kind is a text such as 'llama', not {kind!r}")
    before = f"{kind}." if gguf else ""
    own = [_CONFIG["shared"][0], _GGUF["shared"][0]] if kind in _SHARING else []
    own += ["mlp_only_layers"] if kind in _MIXED else []
    for key in (key for key in _BEYOND if key not in own):
        value = source.get(before + key)
        if len(value) if isinstance(value, Sized) else value:
            raise UnsupportedError(f"plans know no models of the kind {kind!r}, which has {key}")
    found: dict[str, tuple[str, Any]] = {}
    for name, keys in (_GGUF if gguf else _CONFIG).items():
        experts = found.get("experts", ("", 0))[1]
        first = _EXPERT if name == "hidden" and type(experts) is int and experts > 0 else ()
        there = [before + key for key in (*first, *keys) if source.get(before + key) is not None]
        if there:
            found[name] = (there[0], source[there[0]])
    if gguf:
        layers = found.get("layers", ("", None))[1]
        found = {name: (key, of_all_layers(value, layers, key)) for name, (key, value) in found.items()}
        words = source.get("tokenizer.ggml.tokens")
        if words is not None:
            found.setdefault("vocabulary", ("tokenizer.ggml.tokens", len(words) if isinstance(words, Sized) else words))
    return found, is_true(source, "tie_word_embeddings"), kind not in _ENCODERS


def of_all_layers(value: object, layers: object, name: str) -> object:
    """Return the number that a list or an array of GGUF's metadata has for every layer; another value as it is.

    Raises:
        InvalidUsageError: something else than a whole number for each of so many layers.
        UnsupportedError: numbers that differ.
    """
    if not isinstance(value, list | np.ndarray):
        return value
    numbers = value.tolist() if isinstance(value, np.ndarray) else value
    counted = type(layers) is int and len(numbers) == layers > 0
    if not counted or not all(type(number) is int for number in numbers):
        raise InvalidUsageError(f"{name} is a whole number, or one for each of {layers} layers, not {shown(value)}")
    if any(number != numbers[0] for number in numbers):
        raise UnsupportedError(f"{name} differs from layer to layer, which is not supported: {shown(value)}")
    return numbers[0]
