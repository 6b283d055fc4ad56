"""What a model is made of, as far as a plan needs to know: sizes, and the steps of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, WeightsError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.plan.states import Step

_MOST: Final = 1 << 24
_CONFIG: Final = {
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "hidden": ("intermediate_size", "n_inner"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok",),
}
_GGUF: Final = {
    "layers": "block_count",
    "width": "embedding_length",
    "hidden": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "experts": "expert_count",
    "active": "expert_used_count",
}
_STEPS: Final = ("q", "k", "v", "o", "gate", "up", "down")
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

    Raises:
        InvalidUsageError: sizes that are no numbers from 1, or that do not fit together; an unknown dtype or format.
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

    def __post_init__(self) -> None:
        for name in ("layers", "width", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= _MOST:
                raise InvalidUsageError(f"the model's {name} is a whole number from 1 to {_MOST}, not {value!r}")
        if self.heads % self.kv_heads:
            raise InvalidUsageError(f"{self.heads} heads are no multiple of {self.kv_heads} heads of keys and values")
        if not 0 <= self.active <= self.experts <= _MOST or bool(self.active) != bool(self.experts):
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
            ``vocabulary`` and ``tied``.
        weights: what the weights are stored in on devices.
        kinds: of weights that are stored otherwise, by step and block; see :class:`ModelSpec`.

    Raises:
        WeightsError: a size that is missing; InvalidUsageError: sizes that do not fit together.
    """
    found, decoder = _sizes_of(source)
    heads, width = found.get("heads"), found.get("width")
    if type(heads) is int and heads > 0 and type(width) is int:
        found.setdefault("kv_heads", heads)
        found.setdefault("head_dim", width // heads)
    missing = [name for name in ("layers", "width", "hidden", "heads", "vocabulary") if name not in found]
    if missing:
        raise WeightsError(f"the model's configuration lacks {', '.join(missing)}")
    mixed = tuple((step, tuple(each)) for step, each in (kinds or {}).items())
    return ModelSpec(**found, weights=weights, kinds=mixed, decoder=decoder, gated=decoder, bias=not decoder)


def _sizes_of(source: Any) -> tuple[dict[str, Any], bool]:
    """Return the sizes that are there, and whether it is a decoder."""
    decoder = True
    if not isinstance(source, Mapping):
        names = {"width": "hidden", "hidden": "intermediate"}
        same = ("layers", "heads", "kv_heads", "head_dim", "vocabulary", "tied")
        found = {name: getattr(source, names.get(name, name), None) for name in (*names, *same)}
    elif "general.architecture" in source:
        kind = source["general.architecture"]
        decoder = kind not in _ENCODERS
        found = {name: source.get(f"{kind}.{key}") for name, key in _GGUF.items()}
        words = source.get("tokenizer.ggml.tokens")
        found["vocabulary"] = source.get(f"{kind}.vocab_size", None if words is None else len(words))
    else:
        decoder = source.get("model_type") not in _ENCODERS
        found = {
            name: next((source[k] for k in keys if source.get(k) is not None), None) for name, keys in _CONFIG.items()
        }
        found["tied"] = bool(source.get("tie_word_embeddings", False))
    return {name: value for name, value in found.items() if value is not None}, decoder


def _attention(spec: ModelSpec) -> list[Step]:
    return [
        Step("attention norm", "norm", ("x",)),
        *(Step(name, "product", ("attention norm",), "heads", spec.bias) for name in "qkv"),
        Step("mixed", "attention", ("q", "k", "v")),
        Step("o", "product", ("mixed",), bias=spec.bias),
        Step("stream", "add", ("x", "o")),
        Step("feed-forward norm", "norm", ("stream",)),
    ]


def _feed_forward(spec: ModelSpec) -> list[Step]:
    wide = ["gate", "up"] if spec.gated else ["up"]
    return [
        *(Step(name, "product", ("feed-forward norm",), "inner", spec.bias) for name in wide),
        Step("inner", "each", tuple(wide)),
        Step("down", "product", ("inner",), bias=spec.bias),
        Step("out", "add", ("stream", "down")),
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
