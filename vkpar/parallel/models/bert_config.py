"""What a sentence encoder of BERT's shape looks like, and what its files call the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    context: int
    epsilon: float = 1e-12

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
    for key, known in (("model_type", "bert"), ("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if found.get(key, known) != known:
            raise UnsupportedError(f"{where}: {key} {found[key]!r} is not supported; {known} is")
    names = _KEYS | {"vocabulary": "vocab_size", "context": "max_position_embeddings"}
    sizes = {ours: _number(found, theirs, where) for ours, theirs in names.items()}
    epsilon = found.get("layer_norm_eps", 1e-12)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
        raise InvalidUsageError(f"{where}: layer_norm_eps is a number, not {epsilon!r}")
    try:
        return BertConfig(**sizes, epsilon=float(epsilon))
    except OverflowError:
        raise InvalidUsageError(f"{where}: layer_norm_eps is beyond the range of a float") from None


def read_folder(folder: Path) -> BertConfig:
    """Return the configuration of a folder that sentence-transformers or transformers saved.

    Sentences end where ``sentence_bert_config.json`` says, if it is there. Means over tokens are the only pooling.

    Raises:
        InvalidUsageError: no ``config.json``, or a value that is missing or wrong.
        UnsupportedError: another architecture, activation or pooling than those that are known, or weights that are
            quantised.
    """
    found = read_object(folder / "config.json")
    if found is None:
        raise InvalidUsageError(f"{folder} has no config.json; give a folder that sentence-transformers saved")
    limits = read_object(folder / "sentence_bert_config.json") or {}
    pooling = read_object(folder / "1_Pooling" / "config.json") or {}
    others = [key for key, value in pooling.items() if value is True and "mode" in key and "mean_tokens" not in key]
    if others:
        raise UnsupportedError(f"{folder}: {others[0]} is not supported; pooling_mode_mean_tokens is")
    config = of_json(found, str(folder / "config.json"))
    refuse_quantised(found, str(folder / "config.json"))
    if limits.get("max_seq_length") is not None:
        most = _number(limits, "max_seq_length", str(folder / "sentence_bert_config.json"))
        sizes = {name: getattr(config, name) for name in ("hidden", "intermediate", "heads", "layers", "vocabulary")}
        config = BertConfig(**sizes, context=min(most, config.context), epsilon=config.epsilon)
    return config


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
