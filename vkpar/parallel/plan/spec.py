"""What a model is made of, as far as a plan needs to know: sizes, and the steps of its blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.plan.states import Step

_MOST: Final = 1 << 24  # no size of a model is larger: token ids and positions are counted in float32 nowhere beyond
# What sizes are called in a config.json, in GGUF's metadata, and by objects; experts before the width inside of them.
_CONFIG: Final = {
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "experts": ("num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok",),
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
    "hidden": ("feed_forward_length",),
    "heads": ("attention.head_count",),
    "kv_heads": ("attention.head_count_kv",),
    "head_dim": ("attention.key_length",),
    "vocabulary": ("vocab_size",),
}
_ATTRIBUTES: Final = {"width": "hidden", "hidden": "intermediate"} | {
    name: name for name in ("layers", "heads", "kv_heads", "head_dim", "vocabulary")
}
_EXPERT: Final = ("moe_intermediate_size", "expert_feed_forward_length")
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
_STEPS: Final = ("q", "k", "v", "o", "gate", "up", "down")
# Of families that have it without a further word that it is meant.
_WINDOWS: Final = {
    "mistral": "sliding_window",
    "llama": "llama.attention.sliding_window",
    "gemma3_text": "sliding_window",
    "gemma3": "gemma3.attention.sliding_window",
}
_HEAD_NORMS: Final = ("qwen3", "qwen3_moe", "qwen3moe", "gemma3", "gemma3_text")
_POSTED: Final = ("gemma3", "gemma3_text")  # of which what comes of each half of a block is normed, too
_POST_NORMS: Final = ("attention's norm", "feed-forward's norm")
_ENCODERS: Final = ("bert", "roberta", "xlm-roberta", "distilbert", "nomic-bert")


@dataclass(frozen=True)
class Weight:
    """A tensor of a model.

    Attributes:
        step: the step of its block that takes it; ``"embedding"``, ``"norm"``, ``"head"`` outside of blocks.
        shape: (outputs, inputs), with the experts before them; (width,) of a norm.
        kind: a dtype or a quantised format.
        bias: a bias of float32 beside it.
        read: the share of it that a token reads: a row of a table, the experts that are taken.
    """

    step: str
    shape: tuple[int, ...]
    kind: str
    bias: bool = False
    read: float = 1.0

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns, of one expert."""
        return (self.shape[-2], self.shape[-1]) if len(self.shape) > 1 else (1, self.shape[0])


@dataclass(frozen=True)
class ModelSpec:
    """A decoder or an encoder as a plan sees it.

    Attributes:
        layers: number of blocks.
        width: of the residual stream; ``hidden`` inside the feed-forward block (of one expert, where there are some).
        heads: of queries; ``kv_heads`` of keys and values, of ``head_dim`` elements each.
        vocabulary: rows of the embedding table.
        weights: what products' weights are stored in: a dtype, or a quantised format such as ``"q8_0"``.
        table: the same of the embedding table and the output layer; by default ``weights``, float16 for quantised ones.
        cache: of keys and values; an encoder keeps none.
        tied: the output layer is the embedding table.
        decoder: it has an output layer, and keeps keys and values.
        gated: the feed-forward block has a gate.
        bias: products have biases.
        experts: of the feed-forward block, 0 for none; a token takes ``active`` of them.
        kinds: of weights that are not stored in ``weights``: the name of a step (``"q" "k" "v" "o" "gate" "up"
            "down"``) and what each block's is stored in, in order. Mixed GGUF files are such.
        head_norms: each head of queries and of keys is normed.
        window: how many tokens a token attends to, in all blocks or some; 0 for all before it.
        post_norms: what attention and the feed-forward block give is normed before it is added to the stream.

    Raises:
        InvalidUsageError: sizes that are no numbers from 1, or that do not fit together; an unknown dtype or format.

    Examples:
        >>> spec = vkpar.parallel.ModelSpec(
        ...     layers=2, width=64, hidden=128, heads=4, kv_heads=2, head_dim=16, vocabulary=256, weights="float32"
        ... )
        >>> vkpar.parallel.plan(spec, comm, mode="tensor", ratios="even", context=64).mode
        'tensor'
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    weights: str = "float16"
    table: str = ""
    cache: str = "float16"
    tied: bool = False
    decoder: bool = True
    gated: bool = True
    bias: bool = False
    experts: int = 0
    active: int = 0
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    head_norms: bool = False
    window: int = 0
    post_norms: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
            check_size(name, getattr(self, name))
        for name in ("experts", "active", "window"):
            check_size(name, getattr(self, name), 0)
        if self.heads % self.kv_heads:
            raise InvalidUsageError(f"{self.heads} heads are no multiple of {self.kv_heads} heads of keys and values")
        if self.active > self.experts or bool(self.active) != bool(self.experts):
            raise InvalidUsageError(f"{self.active} of {self.experts} experts")
        for step, kinds in self.kinds:
            if step not in _STEPS or len(kinds) != self.layers:
                raise InvalidUsageError(f"kinds has {len(kinds)} for {step!r}: one per block, for {', '.join(_STEPS)}")
        for kind in {
            self.weights,
            self.cache,
            self.table or self.weights,
            *(k for _, each in self.kinds for k in each),
        }:
            stored(kind, 1)

    @property
    def attention(self) -> int:
        """Columns of queries."""
        return self.heads * self.head_dim

    @property
    def product_kinds(self) -> frozenset[str]:
        """What the weights of some product in a block are stored in."""
        mixed = dict(self.kinds)
        alike = {self.weights for step in _STEPS if step not in mixed and (self.gated or step != "gate")}
        return frozenset(alike.union(*mixed.values()))

    def inner(self, nranks: int) -> int:
        """Return what lies between the two products of as many weights as a rank of a tensor split has to a sum."""
        matrices = [weight for weight in self.weights_of_block(0) if len(weight.shape) > 1 and weight.step != "router"]
        elements = sum(math.prod(weight.shape) * weight.read for weight in matrices)
        return max(int(elements / (4 * self.width * nranks)) // 64 * 64, 64)

    def block(self) -> list[Step]:
        """Return the steps of a block; ``"x"`` goes in."""
        return [*_attention(self), *(_experts() if self.experts else _feed_forward(self))]

    def weights_of_block(self, block: int) -> list[Weight]:
        """Return the tensors of a block, in the order of its steps."""
        bias = self.bias
        kind = dict.fromkeys(_STEPS, self.weights) | {step: kinds[block] for step, kinds in self.kinds}
        keys = self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "q": (self.attention, self.width),
            "k": (keys, self.width),
            "v": (keys, self.width),
            "o": (self.width, self.attention),
        }
        made = [Weight("attention norm", (self.width,), "float32", bias)]
        made += [Weight(name, shape, kind[name], bias) for name, shape in shapes.items()]
        if self.head_norms:
            made += [Weight(f"{name} norm", (self.head_dim,), "float32") for name in "qk"]
        if self.post_norms:
            made += [Weight(name, (self.width,), "float32") for name in _POST_NORMS]
        made.append(Weight("feed-forward norm", (self.width,), "float32", bias))
        inner = (self.experts,) if self.experts else ()
        share = self.active / self.experts if self.experts else 1.0
        if self.experts:
            made.append(Weight("router", (self.experts, self.width), "float32"))
        wide = ["gate", "up"] if self.gated else ["up"]
        made += [Weight(name, (*inner, self.hidden, self.width), kind[name], bias, share) for name in wide]
        return [*made, Weight("down", (*inner, self.width, self.hidden), kind["down"], bias, share)]

    def weights_outside(self) -> list[Weight]:
        """Return the tensors before and after the blocks."""
        kind = self.table or (self.weights if self.weights not in FORMATS else "float16")
        table = (self.vocabulary, self.width)
        made = [Weight("embedding", table, kind, read=1.0 if self.tied else 1 / self.vocabulary)]
        if self.decoder:
            made.append(Weight("norm", (self.width,), "float32"))
            made += [] if self.tied else [Weight("head", table, kind)]
        return made


def check_size(name: str, value: object, least: int = 1) -> None:
    """Refuse anything but one of Python's whole numbers from ``least`` on; raises InvalidUsageError that names it."""
    if type(value) is not int or not least <= value <= _MOST:
        raise InvalidUsageError(f"the model's {name} is a whole number from {least} to {_MOST}, not {shown(value)}")


def is_positive(value: object) -> bool:
    """Say whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return False
    try:
        return 0 < float(value) < math.inf
    except OverflowError:  # a whole number beyond floats
        return False


def is_true(found: Mapping[str, Any], key: str, where: str = "the model") -> bool:
    """Return a value that is true or false, which it is where there is none; raises InvalidUsageError that names it."""
    value = found.get(key)
    if not isinstance(value, bool | None):
        raise InvalidUsageError(f"{where}: {key} is true or false, not {value!r}")
    return bool(value)


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


def stored(kind: str, elements: int) -> int:
    """Return the bytes that ``elements`` side by side take.

    Raises:
        InvalidUsageError: an unknown dtype or format.
    """
    form = FORMATS.get(kind)
    if form is not None:
        return -(-elements // form.block) * form.nbytes
    return elements * dtypes.resolve(kind).itemsize


def spec_of(source: Any, *, weights: str = "float16", kinds: Mapping[str, Sequence[str]] | None = None) -> ModelSpec:
    """Return the spec of a model whose configuration is at hand.

    Args:
        source: the object in a ``config.json`` as transformers saves it; the metadata of a GGUF file; or an object with
            the attributes ``layers``, ``hidden``, ``intermediate``, ``heads``, ``kv_heads``, ``head_dim``,
            ``vocabulary``, ``tied`` and perhaps ``head_norms``, ``post_norms`` and ``window``.
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
        check_size(name if key == name else f"{name} ({key})", value, 0 if name in ("experts", "active") else 1)
    sizes = {name: value for name, (_, value) in found.items()}
    missing = [name for name in ("layers", "width", "hidden", "heads", "vocabulary") if name not in sizes]
    if missing:
        raise WeightsError(f"the model's configuration lacks {', '.join(missing)}")
    sizes = {"kv_heads": sizes["heads"], "head_dim": sizes["width"] // sizes["heads"]} | sizes
    mixed = tuple((step, tuple(each)) for step, each in (kinds or {}).items())
    how: dict[str, Any] = {"tied": tied, "decoder": decoder, "gated": decoder, "bias": not decoder}
    how |= {"head_norms": _is_of(source, "head_norms", _HEAD_NORMS), "window": _window(source)}
    how["post_norms"] = _is_of(source, "post_norms", _POSTED)
    return ModelSpec(**sizes, **how, weights=weights, kinds=mixed)


def _is_of(source: Any, name: str, kinds: Sequence[str]) -> bool:
    """Say whether the source is an object with that attribute, or a configuration of one of the kinds that have it."""
    if not isinstance(source, Mapping):
        return is_true({name: getattr(source, name, None)}, name)
    return (source.get("general.architecture") or source.get("model_type")) in kinds


def _window(source: Any) -> int:
    """Return how many tokens a token attends to; 0 for all before it."""
    if not isinstance(source, Mapping):
        return getattr(source, "window", None) or 0
    kind = source.get("general.architecture") or source.get("model_type")
    return source.get(_WINDOWS.get(str(kind), "")) or 0


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
    for key in _BEYOND:
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


def _added(spec: ModelSpec, half: int, name: str, given: str, made: str) -> list[Step]:
    """Return the steps by which what a half of a block gives is added to the stream."""
    post = _POST_NORMS[half]
    if not spec.post_norms:
        return [Step(made, "add", (given, name))]
    return [Step(post, "norm", (name,)), Step(made, "add", (given, post))]


def _attention(spec: ModelSpec) -> list[Step]:
    turned = ("q norm", "k norm") if spec.head_norms else ("q", "k")
    return [
        Step("attention norm", "norm", ("x",)),
        *(Step(name, "product", ("attention norm",), "heads", spec.bias) for name in "qkv"),
        *(Step(name, "each", (name[0],)) for name in turned if spec.head_norms),
        Step("mixed", "attention", (*turned, "v")),
        Step("o", "product", ("mixed",), bias=spec.bias),
        *_added(spec, 0, "o", "x", "stream"),
        Step("feed-forward norm", "norm", ("stream",)),
    ]


def _feed_forward(spec: ModelSpec) -> list[Step]:
    wide = ["gate", "up"] if spec.gated else ["up"]
    return [
        *(Step(name, "product", ("feed-forward norm",), "inner", spec.bias) for name in wide),
        Step("inner", "each", tuple(wide)),
        Step("down", "product", ("inner",), bias=spec.bias),
        *_added(spec, 1, "down", "stream", "out"),
    ]


def _experts() -> list[Step]:
    """Return a mixture of experts: the router decides on one rank, the experts' results are weighed and added."""
    return [
        Step("router", "product", ("feed-forward norm",)),
        Step("choice", "decide", ("router",)),
        Step("gate", "product", ("feed-forward norm",), "inner"),
        Step("up", "product", ("feed-forward norm",), "inner"),
        Step("inner", "each", ("gate", "up")),
        Step("down", "product", ("inner",)),
        Step("weighed", "weigh", ("down", "choice")),
        Step("out", "add", ("stream", "weighed")),
    ]
