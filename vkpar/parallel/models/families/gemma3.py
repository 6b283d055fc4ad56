"""Gemma 3, its text: windows in most blocks, which turn heads by a base of their own, and norms after each half."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, Final

import numpy as np

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.models.families.family import Family, Found
from vkpar.parallel.models.families.values import get, scaling_of
from vkpar.parallel.plan.spec import check_size, is_true

TYPES: Final = ("gemma3_text", "gemma3")
"""What a ``config.json`` may call the model: the second has the text beside a tower for pictures, which is left out."""

_ACTIVATION: Final = "gelu_pytorch_tanh"
_SLIDING: Final = "sliding_attention"
_FULL: Final = "full_attention"
_PATTERN: Final = 6  # the last of so many blocks attends to all tokens
_LOCAL: Final = 1e4  # base of the rotary embedding in blocks with a window
_DEFAULTS: Final = {  # what transformers takes for what a file leaves out
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_DEEPEST: Final = 62  # blocks of the one model whose scores are scaled by the stream's share of a head (GGUF)
_SCALAR: Final = 256.0  # whose root divides scores
_WINDOW: Final = 4096
_CAPS: Final = ("final_logit_softcapping", "attn_logit_softcapping")


def of_json(found: Found, where: str) -> tuple[Found, Found]:
    """Return the configuration with Llama's keys, and what :class:`Config` has besides.

    Raises:
        InvalidUsageError: a value that is wrong.
        UnsupportedError: one that asks for what is not known.
    """
    text = _text(found, where)
    for key in _CAPS:
        if text.get(key):
            raise UnsupportedError(f"{where}: {key} is not supported")
    if is_true(text, "use_bidirectional_attention", where):
        raise UnsupportedError(f"{where}: use_bidirectional_attention is not supported")
    activation = text.get("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        raise UnsupportedError(f"{where}: hidden_activation {activation!r} is not supported; {_ACTIVATION} is")
    layers = get(text, "num_hidden_layers", int, where)
    check_size("layers", layers)
    window = None
    if text.get("sliding_window", _WINDOW) is not None:
        window = get(text, "sliding_window", int, where, _WINDOW)
        check_size("window (sliding_window)", window)
    theta, local, scaling = _rotary(text, where)
    scalar = get(text, "query_pre_attn_scalar", float, where, _SCALAR)
    if not scalar > 0:
        raise InvalidUsageError(f"{where}: query_pre_attn_scalar is a number above 0, not {scalar!r}")
    left_out = ("layer_types", "hidden_act", "rope_parameters", "rope_scaling", "sliding_window")
    plain = {key: value for key, value in text.items() if key not in left_out}
    more = {
        "window": window,
        "sliding": _sliding(text, layers, where),
        "local_theta": local,
        "scaling": scaling,
        "scale": scalar**-0.5,
    }
    return plain | {"rope_theta": theta}, more


def _text(found: Found, where: str) -> Found:
    """Return the configuration of the text, with what files leave out."""
    inner = found.get("text_config", {}) if found.get("model_type") == TYPES[1] else found
    if not isinstance(inner, Mapping):
        raise InvalidUsageError(f"{where}: text_config is an object, not {shown(inner)}")
    outer = ("eos_token_id", "bos_token_id", "tie_word_embeddings")
    return {**_DEFAULTS, **inner, **{key: found[key] for key in outer if found.get(key) is not None}}


def _sliding(text: Found, layers: int, where: str) -> tuple[bool, ...]:
    """Return by block whether it has the window."""
    kinds = text.get("layer_types")
    if kinds is None:
        key = next((key for key in ("sliding_window_pattern", "_sliding_window_pattern") if key in text), None)
        every = _PATTERN if key is None else get(text, key, int, where)
        check_size("pattern of windows (sliding_window_pattern)", every)
        return _every(every, layers)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise InvalidUsageError(f"{where}: layer_types is a list of one kind for each of {layers} layers")
    for kind in kinds:
        if kind not in (_SLIDING, _FULL):
            raise UnsupportedError(
                f"{where}: layer_types with {shown(kind)} is not supported; {_SLIDING} and {_FULL} are"
            )
    return tuple(kind == _SLIDING for kind in kinds)


def _every(count: int, layers: int) -> tuple[bool, ...]:
    return tuple((block + 1) % count != 0 for block in range(layers))


def _rotary(text: Found, where: str) -> tuple[float, float, Any]:
    """Return the bases of the rotary embedding in blocks without and with a window, and what stretches the first."""
    parts = text.get("rope_parameters") or {}
    if not isinstance(parts, Mapping):
        raise InvalidUsageError(f"{where}: rope_parameters is an object, not {shown(parts)}")
    for key in (_FULL, _SLIDING):
        if not isinstance(parts.get(key) or {}, Mapping):
            raise InvalidUsageError(f"{where}: rope_parameters.{key} is an object, not {shown(parts[key])}")
    full, local = (parts.get(key) or {} for key in (_FULL, _SLIDING))
    stretched = local.get("rope_type", "default")
    if stretched != "default":
        raise UnsupportedError(f"{where}: rope_parameters.{_SLIDING} of {stretched!r} is not supported; default is")
    theta = get({"rope_theta": text["rope_theta"], **full}, "rope_theta", float, where)
    base = get({"rope_theta": text.get("rope_local_base_freq", _LOCAL), **local}, "rope_theta", float, where)
    scaling = text.get("rope_scaling") or {key: value for key, value in full.items() if key != "rope_theta"}
    return theta, base, scaling_of(scaling, where)


def of_gguf(metadata: Found, where: str) -> Found:
    """Return what :class:`Config` has besides, of a GGUF file's metadata, whose gaps are filled as llama.cpp does.

    Raises:
        InvalidUsageError: a value that is wrong.
        UnsupportedError: one that asks for what is not known.
    """
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if metadata.get(f"gemma3.{key}"):
            raise UnsupportedError(f"{where}: gemma3.{key} is not supported")
    layers = get(metadata, "gemma3.block_count", int, where)
    check_size("layers", layers)
    key = "gemma3.attention.sliding_window"
    if key not in metadata:
        return {}
    check_size(f"window ({key})", metadata[key])
    found: dict[str, Any] = {"window": metadata[key], "sliding": _sliding_gguf(metadata, layers, where)}
    found["local_theta"] = get(metadata, "gemma3.rope.freq_base_swa", float, where, _LOCAL)
    if layers == _DEEPEST:
        width = get(metadata, "gemma3.embedding_length", int, where)
        found["scale"] = (width // max(get(metadata, "gemma3.attention.head_count", int, where), 1)) ** -0.5
    return found


def _sliding_gguf(metadata: Found, layers: int, where: str) -> tuple[bool, ...]:
    key = "gemma3.attention.sliding_window_pattern"
    found = metadata.get(key, _PATTERN)
    listed = found.tolist() if isinstance(found, np.ndarray) else found
    if isinstance(listed, list):
        if len(listed) != layers or not all(isinstance(each, bool | int) for each in listed):
            raise InvalidUsageError(f"{where}: {key} is a number, or one for each of {layers} layers")
        return tuple(map(bool, listed))
    check_size(f"pattern of windows ({key})", listed)
    return _every(listed, layers)


FAMILY: Final = Family(
    head_norms=True,
    gate="geglu",
    post_norms=True,
    scaled=True,
    centred=True,
    transformers={
        "attention.post": "post_attention_layernorm",
        "forward.norm": "pre_feedforward_layernorm",
        "forward.post": "post_feedforward_layernorm",
    },
    gguf={"attention.post": "post_attention_norm", "forward.post": "post_ffw_norm"},
    of_json=of_json,
    of_gguf=of_gguf,
)
