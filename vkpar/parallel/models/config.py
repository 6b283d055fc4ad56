"""What a decoder looks like: read of a folder that transformers saved, or of a GGUF file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vkpar.errors import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.parallel.files.mapped import small
from vkpar.parallel.models import special_tokens
from vkpar.parallel.models.families import gemma3, mixtures
from vkpar.parallel.models.families.family import Family
from vkpar.parallel.models.families.values import Scaling, get, scaling_of
from vkpar.parallel.plan.sources import of_all_layers
from vkpar.parallel.plan.spec import check_size, check_sparse, is_positive, is_true

FAMILIES: Final = {
    "llama": Family(style="llama"),
    "qwen2": Family(biased=True),
    "qwen3": Family(head_norms=True),
    "qwen3moe": Family(head_norms=True, mixture=True),
    "qwen2moe": Family(biased=True, mixture=True, shared=True),
    "gemma3": gemma3.FAMILY,
}
_KNOWN: Final = " and ".join((", ".join(list(FAMILIES)[:-1]), list(FAMILIES)[-1]))
_MISTRAL: Final = "mistral"  # of Llama's shape; GGUF files say "llama"
_MIXTRAL: Final = "mixtral"  # the same, with experts
# Of families that a config.json calls otherwise.
_TYPES: Final = {
    _MISTRAL: "llama",
    _MIXTRAL: "llama",
    "qwen3_moe": "qwen3moe",
    "qwen2_moe": "qwen2moe",
    **dict.fromkeys(gemma3.TYPES, "gemma3"),
}
_MISTRAL_WINDOW: Final = 4096  # tokens, where a configuration has no word on it
_QUANTISED: Final = ("quantization_config", "compression_config", "quantization")  # transformers, its past, MLX
_HOW: Final = ("quant_method", "quant_algo", "format", "mode")
MOST_FILE: Final = 100_000_000  # bytes of a file of JSON


@dataclass(frozen=True)
class Config:
    """The sizes and constants of a Llama-shaped decoder.

    Attributes:
        family: one of :data:`FAMILIES`.
        layers: number of blocks.
        hidden: width of the residual stream.
        intermediate: width inside the feed-forward block.
        heads: of the queries; ``kv_heads`` of the keys and values, of ``head_dim`` elements each.
        vocabulary: rows of the embedding table.
        context: tokens that the model was made for.
        epsilon: what the norms add to the mean of squares.
        theta: base of the rotary embedding.
        scaling: what stretches the rotary embedding, as :func:`vkpar.rope` takes it; None for nothing.
        style: which elements of a head are turned together: ``"neox"`` those half a head apart, ``"llama"`` neighbours.
        tied: the output layer is the embedding table.
        stops: token ids that end a text.
        first: the token that begins a text; None where the model has none.
        window: how many tokens a token attends to, itself included; None for all before it.
        sliding: by block whether it has the window; none where all have it.
        local_theta: base of the rotary embedding in blocks with the window; None where it is the same.
        scale: of the scores; None for the root of a head's width, inverted.
        experts: of each feed-forward block, which ``intermediate`` is the width of one of; 0 for none. A token takes
            ``active`` of them.
        shared: width of the expert that all tokens take besides; 0 for none.
        sparse: by block whether it has the experts; none where all have them. Others are ``dense`` wide.
        dense: width inside the feed-forward block where there are no experts beside blocks that have some; else 0.
        normed: the weights of the experts that a token takes add up to 1; else they are shares of the softmax over all.

    Examples:
        >>> from vkpar.parallel.models import open_model
        >>> with open_model(folder) as file:
        ...     file.config.layers, file.config.heads * file.config.head_dim == file.config.hidden
        (2, True)
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    epsilon: float
    theta: float
    scaling: Scaling = None
    style: str = "neox"
    tied: bool = False
    stops: tuple[int, ...] = ()
    first: int | None = None
    window: int | None = None
    sliding: tuple[bool, ...] = ()
    local_theta: float | None = None
    scale: float | None = None
    experts: int = 0
    active: int = 0
    shared: int = 0
    sparse: tuple[bool, ...] = ()
    dense: int = 0
    normed: bool = True

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UnsupportedError(f"there is no model family {self.family!r}; there are {', '.join(FAMILIES)}")
        for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary", "context"):
            check_size(name, getattr(self, name))
        if self.window is not None:
            check_size("window", self.window)
        if self.sliding and len(self.sliding) != self.layers:
            raise InvalidUsageError(f"{len(self.sliding)} blocks with or without a window of {self.layers}")
        mixtures.check(self.experts, self.active, self.shared, FAMILIES[self.family])
        check_sparse(self.sparse, self.layers, self.experts, self.dense)
        if self.heads % self.kv_heads:
            raise InvalidUsageError(f"{self.heads} heads are no multiple of {self.kv_heads} heads of keys and values")
        if self.head_dim % 2:
            raise InvalidUsageError(f"a head of {self.head_dim} elements has no pairs that could be turned")
        for name in ("epsilon", "theta", "local_theta", "scale"):
            value, optional = getattr(self, name), name in ("local_theta", "scale")
            if not (is_positive(value) or (optional and value is None)):
                raise InvalidUsageError(f"the model's {name} is a number above 0, not {value!r}")
        found = self.scaling
        factors = found.values() if isinstance(found, Mapping) else found if isinstance(found, tuple) else (found,)
        for factor in factors:
            if factor is not None and not is_positive(factor):
                raise InvalidUsageError(f"the model's rotary scaling is made of numbers above 0, not {factor!r}")

    @property
    def differs(self) -> Family:
        """What tells the family from Llama."""
        return FAMILIES[self.family]

    @property
    def biased(self) -> bool:
        """Queries, keys and values have biases, whatever other products have."""
        return self.differs.biased

    @property
    def head_norms(self) -> bool:
        """Each head of queries and of keys is normed."""
        return self.differs.head_norms

    @property
    def post_norms(self) -> bool:
        """What attention and the feed-forward block give is normed before it is added to the stream."""
        return self.differs.post_norms

    def slides(self, block: int) -> bool:
        """Say whether a block has the window."""
        return self.sliding[block] if self.sliding else self.window is not None

    def mixes(self, block: int) -> bool:
        """Say whether a block has experts."""
        return bool(self.experts) and (not self.sparse or self.sparse[block])

    def inside(self, block: int) -> int:
        """Return the width inside a feed-forward block, of one expert where it has some."""
        return self.intermediate if self.mixes(block) or not self.experts else self.dense

    def rotary(self, block: int) -> tuple[float, Scaling]:
        """Return the base of a block's rotary embedding, and what stretches it."""
        if self.local_theta is not None and self.slides(block):
            return self.local_theta, None
        return self.theta, self.scaling

    @property
    def group(self) -> int:
        """Heads of queries that read one head of keys and values."""
        return self.heads // self.kv_heads

    def describe(self) -> str:
        """Return the sizes in words."""
        mixture = f"{self.active} of {self.experts} experts, " if self.experts else ""
        return (
            f"{self.family}, {self.layers} layers, hidden {self.hidden}, {mixture}intermediate {self.intermediate}, "
            f"{self.heads} heads of {self.head_dim}, {self.kv_heads} of keys and values, {self.vocabulary} tokens"
        )


def read_folder(folder: Path) -> Config:
    """Return the configuration that ``config.json`` of ``folder`` holds.

    Raises:
        InvalidUsageError: no such file, not JSON, or a value that is missing or wrong.
        UnsupportedError: another architecture, activation or scaling than those that are known, or weights that are
            quantised.
    """
    found = read_object(folder / "config.json")
    if found is None:
        raise InvalidUsageError(f"{folder} has no config.json; a model's folder is one that transformers saved")
    ends = (read_object(folder / "generation_config.json") or {}).get("eos_token_id")
    if ends is not None:
        found["eos_token_id"] = ends
    config = of_json(found, str(folder / "config.json"))
    refuse_quantised(found, str(folder / "config.json"))
    return config


def read_object(path: Path, kind: type[Any] = dict) -> Any:
    """Return the object, or the list, in a file of JSON; None where there is no file.

    Raises:
        InvalidUsageError: the file cannot be read, is no JSON, or holds something else.
    """
    try:
        found = json.loads(small(path, MOST_FILE).decode("utf-8"))
    except FileNotFoundError:
        return None
    except WeightsError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidUsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise InvalidUsageError(f"{path} holds no {'object' if kind is dict else 'list'}")
    return found


def of_json(found: Mapping[str, Any], where: str) -> Config:
    """Return the configuration of the object in a ``config.json``; raises as :func:`read_folder` does."""
    kind = get(found, "model_type", str, where)
    family = _TYPES.get(kind, kind)
    if family not in FAMILIES:
        known = ", ".join(name for name in _TYPES if name not in FAMILIES)
        raise UnsupportedError(f"{where}: model_type {kind!r} is not supported; {known}, {_KNOWN} are")
    reader = FAMILIES[family].of_json
    found, more = (found, {}) if reader is None else reader(found, where)
    activation = found.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(f"{where}: hidden_act {activation!r} is not supported; silu is")
    for key in ("use_sliding_window", "mlp_bias"):
        if is_true(found, key, where):
            raise UnsupportedError(f"{where}: {key} is not supported")
    heads, hidden = get(found, "num_attention_heads", int, where), get(found, "hidden_size", int, where)
    kv_heads = found.get("num_key_value_heads")
    head_dim = found.get("head_dim")
    rotary = found.get("rope_parameters") or {}  # transformers 5 keeps theta beside the scaling
    if not isinstance(rotary, Mapping):
        raise InvalidUsageError(f"{where}: rope_parameters is an object, not {rotary!r}")
    scaling = found.get("rope_scaling") or rotary
    mixture = FAMILIES[family].mixture
    made = Config(
        family=family,
        layers=get(found, "num_hidden_layers", int, where),
        hidden=hidden,
        intermediate=get(found, "moe_intermediate_size" if mixture else "intermediate_size", int, where),
        heads=heads,
        kv_heads=heads if kv_heads is None else get(found, "num_key_value_heads", int, where),
        head_dim=hidden // max(heads, 1) if head_dim is None else get(found, "head_dim", int, where),
        vocabulary=get(found, "vocab_size", int, where),
        context=get(found, "max_position_embeddings", int, where, 2048),
        epsilon=get(found, "rms_norm_eps", float, where, 1e-6),
        theta=get({**rotary, **found}, "rope_theta", float, where, 1e4),
        scaling=scaling_of(scaling, where),
        tied=is_true(found, "tie_word_embeddings", where),
        stops=special_tokens.numbers_of(found.get("eos_token_id"), where),
        first=special_tokens.first_of(found.get("bos_token_id"), where),
        window=_window(found, kind, where),
        **(mixtures.of_json(found, kind, FAMILIES[family], where) if mixture or kind == _MIXTRAL else {}),
    )
    return replace(made, **more)


def _window(found: Mapping[str, Any], family: str, where: str) -> int | None:
    """Return how many tokens a token attends to; refuse what differs from layer to layer.

    Other families than Mistral's have a number for it without a meaning, and say ``use_sliding_window`` where they mean
    it.
    """
    kinds = found.get("layer_types") or []
    if not isinstance(kinds, list):
        raise InvalidUsageError(f"{where}: layer_types is a list, not {shown(kinds)}")
    for kind in kinds:
        if kind != "full_attention":
            raise UnsupportedError(f"{where}: layer_types with {shown(kind)} is not supported; full_attention is")
    if family not in (_MISTRAL, _MIXTRAL) or found.get("sliding_window", 0 if family == _MISTRAL else None) is None:
        return None
    window = get(found, "sliding_window", int, where, _MISTRAL_WINDOW)
    check_size("window (sliding_window)", window)
    return int(window)


def refuse_quantised(found: Mapping[str, Any], where: str) -> None:
    """Refuse a configuration whose weights are quantised in one of the ways that safetensors files know.

    Raises:
        UnsupportedError: what it says, such as ``quantization_config``.
    """
    for key in _QUANTISED:
        how = found.get(key)
        if how:
            words = [how[name] for name in _HOW if isinstance(how.get(name), str)] if isinstance(how, Mapping) else []
            of = f" ({', '.join(words)})" if words else ""
            raise UnsupportedError(
                f"{where}: {key}{of} is not supported: weights come as floats, or in the blocks of a GGUF file"
            )


def of_gguf(
    metadata: Mapping[str, Any],
    where: str,
    vocabulary: int,
    *,
    tied: bool,
    divisors: Sequence[float] | npt.NDArray[np.float32] | None = None,
) -> Config:
    """Return the configuration that a GGUF file's metadata hold.

    Args:
        metadata: by key, such as ``llama.block_count``.
        where: the file's name, for messages.
        vocabulary: rows of the embedding table.
        tied: the file has no output layer of its own.
        divisors: of the rotary embedding's frequencies, where the file has them as ``rope_freqs.weight``.

    Raises:
        InvalidUsageError: a value that is missing or wrong.
        UnsupportedError: another architecture or scaling than those that are known.
    """
    family = get(metadata, "general.architecture", str, where)
    if family not in FAMILIES:
        raise UnsupportedError(f"{where}: architecture {family!r} is not supported; {_KNOWN} are")

    layers = get(metadata, f"{family}.block_count", int, where)

    def size(key: str, default: int | None = None) -> int:
        key = f"{family}.{key}"
        one = of_all_layers(metadata.get(key, default), layers, f"{where}: {key}")
        return int(get({key: one}, key, int, where))

    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", hidden // max(heads, 1))
    if size("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{where}: keys and values of unlike widths are not supported")
    reader = FAMILIES[family].of_gguf
    more = {} if reader is None else reader(metadata, where)
    window = size("attention.sliding_window", 0) if family == "llama" else more.get("window", 0)
    for key, whole in (("rope.dimension_count", head_dim), ("attention.sliding_window", window)):
        if size(key, whole) != whole:
            raise UnsupportedError(f"{where}: {family}.{key} of {size(key)} is not supported")
    scaling = _gguf_scaling(metadata, f"{family}.rope", where)
    if divisors is not None:
        scaling = _of_divisors(divisors, scaling, head_dim, where)
    made = Config(
        family=family,
        layers=layers,
        hidden=hidden,
        intermediate=size("expert_feed_forward_length" if FAMILIES[family].mixture else "feed_forward_length"),
        heads=heads,
        kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocabulary=vocabulary,
        context=size("context_length", 2048),
        epsilon=get(metadata, f"{family}.attention.layer_norm_rms_epsilon", float, where, 1e-6),
        theta=get(metadata, f"{family}.rope.freq_base", float, where, 1e4),
        scaling=scaling,
        style=FAMILIES[family].style,
        tied=tied,
        stops=special_tokens.ends(metadata, where),
        first=special_tokens.first(metadata, where),
        window=window or None,
        **mixtures.of_gguf(metadata, family, FAMILIES[family], size, where),
    )
    return replace(made, **more)


def _of_divisors(
    divisors: Sequence[float] | npt.NDArray[np.float32], scaling: Scaling, head_dim: int, where: str
) -> Scaling:
    """Return what stretches the rotary embedding of a file that has divisors of its frequencies."""
    if scaling is not None:
        raise UnsupportedError(f"{where}: rope_freqs.weight together with a rope scaling is not supported")
    if len(divisors) != head_dim // 2:
        raise InvalidUsageError(
            f"{where}: rope_freqs.weight has {len(divisors)} divisors; heads of {head_dim} take {head_dim // 2}"
        )
    return tuple(map(float, divisors))


def _gguf_scaling(metadata: Mapping[str, Any], rope: str, where: str) -> Scaling:
    """Return what stretches the rotary embedding; as llama.cpp has it, the type is linear where a file gives none."""
    if get(metadata, f"{rope}.scaling.attn_factor", float, where, 1.0) != 1:
        raise UnsupportedError(f"{where}: {rope}.scaling.attn_factor is not supported")
    named = f"{rope}.scaling.type" in metadata
    kind = get(metadata, f"{rope}.scaling.type", str, where, "linear")
    keys = [key for key in (f"{rope}.scaling.factor", f"{rope}.scale_linear") if key in metadata]  # the old name last
    factor = get(metadata, keys[0], float, where) if keys else None
    if kind == "linear" and (factor in (0, 1) or (factor is None and not named)):  # llama.cpp takes 0 for nothing, too
        return None
    return scaling_of({"type": kind, "factor": factor}, where)
