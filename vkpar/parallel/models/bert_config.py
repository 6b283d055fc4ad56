"""What a sentence encoder of BERT's shape looks like, and what its files call the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.models.config import read_object, refuse_quantised
from vkpar.parallel.models.naming import Tensors, Wanted, bias_of, check_tensors
from vkpar.parallel.plan.spec import check_size, is_positive

WORDS: Final = "embeddings.word_embeddings.weight"
POSITIONS: Final = "embeddings.position_embeddings.weight"
TYPES: Final = "embeddings.token_type_embeddings.weight"
NORM: Final = "embeddings.LayerNorm.weight"
_IDLE: Final = re.compile(
    r"embeddings\.position_ids|pooler\.dense\.(weight|bias)"
)  # of the first token: not pooled here

_KEYS: Final = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
}
_PARTS: Final = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "forward.norm": "output.LayerNorm",
}
_TRANSFORMER: Final = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
}
_TEXT: Final = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}


@dataclass(frozen=True)
class BertConfig:
    """The sizes of an encoder whose blocks norm what they give (BERT, MiniLM).

    Attributes:
        layers: number of blocks.
        hidden: width of the hidden states.
        intermediate: width inside the feed-forward block, whose activation is gelu by the error function.
        heads: of attention.
        vocabulary: rows of the embedding table.
        context: the most tokens of a sentence.
        epsilon: what the norms add to the variance.
        normalized: embeddings are scaled to length 1.
        lower: texts are taken in lower case, whatever the tokenizer does.
        prompt: what is put before every text.

    Examples:
        >>> from vkpar.parallel.models import open_encoder
        >>> with open_encoder() as file:  # all-MiniLM-L6-v2, as its package installs it
        ...     file.config.context, file.config.normalized
        (256, True)
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    context: int
    epsilon: float = 1e-12
    normalized: bool = True
    lower: bool = False
    prompt: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "intermediate", "heads", "vocabulary", "context"):
            check_size(name, getattr(self, name))
        if self.hidden % self.heads:
            raise InvalidUsageError(f"a width of {self.hidden} is no multiple of {self.heads} heads")
        if not is_positive(self.epsilon):
            raise InvalidUsageError(f"the model's epsilon is a number above 0, not {self.epsilon!r}")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: each head of queries has its own."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    def describe(self) -> str:
        """Return the sizes in words."""
        return (
            f"{self.layers} layers, hidden {self.hidden}, intermediate {self.intermediate}, "
            f"{self.heads} heads of {self.head_dim}, {self.vocabulary} tokens"
        )


def of_json(found: Mapping[str, Any], where: str) -> BertConfig:
    """Return the configuration of the object in a ``config.json``.

    Raises:
        InvalidUsageError: a value that is missing or wrong.
        UnsupportedError: another architecture or activation than those that are known.
    """
    _only(
        found,
        {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False},
        where,
    )
    names = _KEYS | {"vocabulary": "vocab_size", "context": "max_position_embeddings"}
    sizes: dict[str, Any] = {ours: _number(found, theirs, where) for ours, theirs in names.items()}
    epsilon = found.get("layer_norm_eps", 1e-12)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise InvalidUsageError(f"{where}: layer_norm_eps is a number, not {epsilon!r}")
    try:
        return BertConfig(**sizes, epsilon=float(epsilon))
    except OverflowError:
        raise InvalidUsageError(f"{where}: layer_norm_eps is beyond the range of a float") from None


def read_folder(folder: Path) -> BertConfig:
    """Return the configuration of a folder that sentence-transformers or transformers saved.

    ``modules.json`` says what is done: a transformer, means over its tokens, and a scaling to length 1 where it lists
    that; a folder without this file has all three. Texts are cut where ``sentence_bert_config.json`` says, else where
    the tokenizer's configuration does.

    Raises:
        InvalidUsageError: no ``config.json``, or a value that is missing or wrong.
        UnsupportedError: something that changes embeddings and that is not known, by its name; quantised weights.
    """
    found = read_object(folder / "config.json")
    if found is None:
        raise InvalidUsageError(f"{folder} has no config.json; give a folder that sentence-transformers saved")
    config = of_json(found, str(folder / "config.json"))
    refuse_quantised(found, str(folder / "config.json"))
    where = folder / "sentence_bert_config.json"
    own = read_object(where) or {}
    _only(own, _TRANSFORMER, str(where))
    _only(own.get("modality_config") or {}, _TEXT, str(where))
    prompt = _prompt(folder / "config_sentence_transformers.json")
    most = own.get("max_seq_length")
    if most is None:
        most = _longest(folder / "tokenizer_config.json", config.context)
    else:
        most = _number(own, "max_seq_length", str(where))
    return replace(
        config,
        context=min(most, config.context),
        normalized=_modules(folder, bool(prompt)),
        lower=bool(own.get("do_lower_case")),
        prompt=prompt,
    )


def _only(found: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
    """Check that what is there has the one value that is known."""
    if not isinstance(found, Mapping):
        raise InvalidUsageError(f"{where}: an object is wanted, not {found!r}")
    for key, value in known.items():
        if found.get(key) is not None and found[key] != value:
            raise UnsupportedError(f"{where}: {key} {found[key]!r} is not supported; {value} is")


def _longest(path: Path, most: int) -> int:
    """Return how many tokens a tokenizer's configuration allows; ``most`` where it does not say."""
    found = (read_object(path) or {}).get("model_max_length")
    if found is None:
        return most
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 1:
        raise InvalidUsageError(f"{path}: model_max_length is a number from 1, not {found!r}")
    return int(min(found, most))  # transformers writes 1e30 for no limit


def _prompt(path: Path) -> str:
    """Return what is put before every text."""
    found = read_object(path) or {}
    _only(found, {"model_type": "SentenceTransformer"}, str(path))
    if found.get("truncate_dim") is not None:
        raise UnsupportedError(f"{path}: truncate_dim {found['truncate_dim']!r} is not supported")
    name, prompts = found.get("default_prompt_name"), found.get("prompts")
    if name is None:
        return ""
    text = prompts.get(name, 0) if isinstance(prompts, Mapping) and isinstance(name, str) else 0
    if not isinstance(text, str | None):
        raise InvalidUsageError(f"{path}: there is no text of default_prompt_name {name!r} among the prompts")
    return text or ""


def _modules(folder: Path, prompted: bool) -> bool:
    """Check what is done with a text, and return whether embeddings are scaled to length 1."""
    path = folder / "modules.json"
    listed = read_object(path, list)
    if listed is None:
        where = folder / "1_Pooling" / "config.json"
        _check_pooling(read_object(where) or {}, str(where), prompted)
        return True
    if not all(isinstance(module, Mapping) for module in listed):
        raise InvalidUsageError(f"{path} holds no list of modules")
    left = ["Transformer", "Pooling"]  # in this order; what comes behind them may be there or not
    normalized = False
    for module in listed:
        kind, place = str(module.get("type")), str(module.get("path") or "")
        name = kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else ""
        if name != left[0] if left else name not in ("Normalize", "Dropout"):
            what = f"{left[0]} comes there" if left else "Normalize and Dropout are"
            raise UnsupportedError(f"{path}: the module {kind} is not supported; {what}")
        if left and left.pop(0) == "Transformer" and place:
            raise UnsupportedError(f"{path}: a Transformer in the folder {place!r} is not supported; give that folder")
        if name == "Pooling":
            where = folder / place / "config.json"
            pooling = read_object(where)
            if pooling is None:
                raise InvalidUsageError(f"{path} lists a module Pooling, and there is no {where}")
            _check_pooling(pooling, str(where), prompted)
        if name == "Normalize":
            where = folder / place / "config.json"
            inner = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
            _only(read_object(where) or {}, inner, str(where))
            normalized = True
    if left:
        raise UnsupportedError(f"{path}: encoders without the module {left[0]} are not supported")
    return normalized


def _check_pooling(found: Mapping[str, Any], where: str, prompted: bool) -> None:
    """Check that an embedding is a mean over all tokens, by either way of writing that down."""
    mode = found.get("pooling_mode")
    named = [key for key, value in found.items() if key.startswith("pooling_mode_") and value]
    others = [key for key in named if key != "pooling_mode_mean_tokens"]
    if mode is None and others:
        raise UnsupportedError(f"{where}: {others[0]} is not supported; pooling_mode_mean_tokens is")
    if mode not in (None, "mean", ["mean"]):
        raise UnsupportedError(f"{where}: pooling_mode {mode!r} is not supported; 'mean' is")
    if prompted and not found.get("include_prompt", True):
        raise UnsupportedError(
            f"{where}: include_prompt false, together with a prompt for every text, is not supported"
        )


def _number(found: Mapping[str, Any], key: str, where: str) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidUsageError(f"{where}: {key} is a whole number, not {value!r}")
    return value


def of_block(part: str, block: int) -> str:
    """Return the name of a weight of a block: ``q``, ``k``, ``v``, ``o``, ``up``, ``down`` or a norm."""
    return f"encoder.layer.{block}.{_PARTS[part]}.weight"


def shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a model has to have, by name; tables may have more rows."""
    return dict(_each_shape(config))


def _each_shape(config: BertConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    wide, inner = config.hidden, config.intermediate
    yield WORDS, (config.vocabulary, wide)
    yield POSITIONS, (config.context, wide)
    yield TYPES, (1, wide)
    yield NORM, (wide,)
    yield bias_of(NORM), (wide,)
    parts: dict[str, tuple[int, ...]] = dict.fromkeys("qkvo", (wide, wide))
    parts |= {"up": (inner, wide), "down": (wide, inner), "attention.norm": (wide,), "forward.norm": (wide,)}
    for block in range(config.layers):
        for part, shape in parts.items():
            name = of_block(part, block)
            yield name, shape
            yield bias_of(name), shape[:1]


def check(config: BertConfig, weights: Tensors, where: str) -> None:
    """Check the tensors of an encoder by :func:`vkpar.parallel.models.naming.check_tensors`."""
    wanted = (Wanted(name, shape, longer=name in (POSITIONS, TYPES)) for name, shape in _each_shape(config))
    check_tensors(wanted, weights, where, _IDLE)
