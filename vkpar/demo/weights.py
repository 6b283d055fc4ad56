"""The demo's model, all-MiniLM-L6-v2: from its installed package, or from a trimmed file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel import open_weights
from vkpar.parallel.models import bert_config, encoding
from vkpar.parallel.models.bert_config import POSITIONS, TYPES, WORDS, BertConfig

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

SENTENCES: Final = (
    "The graphics card finished the calculation in a few milliseconds.",
    "It took the GPU only milliseconds to complete the computation.",
    "A small dog is sleeping on the kitchen floor.",
    "The puppy takes a nap on the floor of the kitchen.",
    "The bakery on the corner sells fresh bread every morning.",
    "Each morning you can buy warm bread at the corner bakery.",
)
FORMAT: Final = "vkpar-demo-1"

_IDS: Final = "demo.ids"
_MASK: Final = "demo.mask"
_CONFIG_KEYS: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
}


@dataclass(frozen=True)
class Model:
    """An encoder and its sentences.

    Attributes:
        config: the sizes.
        sentences: the texts.
        ids: each sentence's rows of the word table, int64.
        tensors: float32, by their names in the published model, linear weights as (outputs, inputs).
        source: where it came from.
    """

    config: BertConfig
    sentences: tuple[str, ...]
    ids: tuple[I64, ...]
    tensors: Mapping[str, F32]
    source: str

    @property
    def tokens(self) -> int:
        """Tokens of all sentences."""
        return sum(len(ids) for ids in self.ids)

    def layer(self, index: int) -> dict[str, F32]:
        """Return one layer's tensors by their names within the layer, such as ``"output.dense.weight"``."""
        prefix = f"encoder.layer.{index}."
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def load(weights: str | Path | None = None) -> Model:
    """Load the model from ``weights``, a file of ``tools/trim_weights.py``, or else from the installed package.

    Raises:
        UnsupportedError: without ``weights``, and the model's package or ``tokenizers`` is not installed.
        InvalidUsageError: no such file, not a safetensors file, or not one with everything that the demo needs.
    """
    return load_package() if weights is None else load_file(weights)


def load_package(sentences: Sequence[str] = SENTENCES) -> Model:
    """Load the model from its installed package, whose code is not run, and tokenize ``sentences``.

    Raises:
        UnsupportedError: the package or ``tokenizers`` is missing.
        InvalidUsageError: no sentences, or the package's files are not those of the model.
    """
    if not sentences:
        raise InvalidUsageError("the demo needs at least one sentence")
    try:
        file = encoding.open_encoder()
        ids = tuple(np.asarray(found, np.int64) for found in file.tokens(sentences))
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{error}; without a network: vkpar demo --weights FILE with a file of tools/trim_weights.py"
        ) from error
    tensors = {name: tensor.read() for name, tensor in file.weights.items()}
    return _checked(Model(file.config, tuple(sentences), ids, tensors, f"package {encoding.PACKAGE}"))


def load_file(path: str | Path) -> Model:
    """Load a trimmed file.

    Raises:
        InvalidUsageError: no such file, not a safetensors file, or not one with everything that the demo needs.
    """
    if not Path(path).is_file():
        raise InvalidUsageError(f"no file {path}; tools/trim_weights.py writes one")
    found = open_weights(path)
    if found.metadata.get("format") != FORMAT:
        raise InvalidUsageError(f"{path} is no trimmed file of this demo; tools/trim_weights.py writes one")
    tensors = {name: tensor.read() for name, tensor in found.items()}
    try:
        fields = json.loads(found.metadata["config"])
        sentences = tuple(str(text) for text in json.loads(found.metadata["sentences"]))
        ids, mask = tensors.pop(_IDS), tensors.pop(_MASK)
        fields |= {"vocab_size": len(tensors[WORDS]), "max_position_embeddings": len(tensors[POSITIONS])}
        rows = tuple(row[keep.astype(bool)] for row, keep in zip(ids, mask, strict=True))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise InvalidUsageError(f"{path} is incomplete ({error}); write it again with tools/trim_weights.py") from error
    return _checked(Model(bert_config.of_json(fields, str(path)), sentences, rows, tensors, Path(path).name))


def save_file(model: Model, path: str | Path) -> int:
    """Write what the sentences need of ``model`` as a trimmed file; return its bytes.

    Raises:
        UnsupportedError: ``safetensors`` is not installed.
        OSError: the file cannot be written.
    """
    try:
        from safetensors.numpy import save_file as save
    except ImportError as error:
        raise UnsupportedError("writing a trimmed file needs safetensors: pip install safetensors") from error
    small = _trimmed(model)
    ids = np.zeros((len(small.ids), small.config.context), np.int64)
    mask = np.zeros_like(ids)
    for row, keep, tokens in zip(ids, mask, small.ids, strict=True):
        row[: len(tokens)], keep[: len(tokens)] = tokens, 1
    fields = {theirs: getattr(small.config, ours) for ours, theirs in _CONFIG_KEYS.items()}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(fields | {"layer_norm_eps": small.config.epsilon, "hidden_act": "gelu"}),
        "sentences": json.dumps(small.sentences),
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save({**small.tensors, _IDS: ids, _MASK: mask}, str(path), metadata=metadata)
    return Path(path).stat().st_size


def _trimmed(model: Model) -> Model:
    """Return the model with those rows of its tables that the sentences use, the words numbered anew."""
    used, rows = np.unique(np.concatenate(model.ids), return_inverse=True)
    ends = np.cumsum([len(ids) for ids in model.ids])[:-1]
    longest = max(len(ids) for ids in model.ids)
    cuts: dict[str, I64 | slice] = {WORDS: used, POSITIONS: slice(longest), TYPES: slice(1)}
    kept = {name: model.tensors[name] for name in bert_config.shapes(model.config) if name in model.tensors}
    tensors: dict[str, Any] = {
        name: np.ascontiguousarray(tensor[cuts[name]] if name in cuts else tensor) for name, tensor in kept.items()
    }
    config = replace(model.config, vocabulary=len(used), context=longest)
    return replace(model, config=config, ids=tuple(np.split(rows, ends)), tensors=tensors)


def _checked(model: Model) -> Model:
    """Return the model, once everything is there and fits."""
    if not model.sentences or len(model.ids) != len(model.sentences) or not all(len(ids) for ids in model.ids):
        raise InvalidUsageError(f"{model.source}: the tokens of {len(model.ids)} sentences do not fit the texts")
    words = model.config.vocabulary
    if any(ids.min() < 0 or ids.max() >= words for ids in model.ids):
        raise InvalidUsageError(f"{model.source}: token ids beyond the {words} rows of the word table")
    bert_config.check(model.config, model.tensors, model.source)
    for name in bert_config.shapes(model.config):
        if model.tensors[name].dtype != np.float32:
            raise InvalidUsageError(f"{model.source}: {name} is {model.tensors[name].dtype}, not float32")
    return model
