"""What a model is made of, as far as a plan needs to know: sizes, and the steps of its blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.errors import InvalidUsageError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.plan.states import Step

_MOST: Final = 1 << 24  # no size of a model is larger: token ids and positions are counted in float32 nowhere beyond
_STEPS: Final = ("q", "k", "v", "o", "gate", "up", "down")
_SHARED: Final = ("shared gate", "shared up", "shared down")
_POST_NORMS: Final = ("attention's norm", "feed-forward's norm")


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
        shared: width of the expert that all tokens take besides; 0 for none.
        sparse: by block whether it has the experts; all have where this is empty. Others are ``dense`` wide.
        dense: width inside the feed-forward block where there are no experts beside blocks that have some; else 0.
        kinds: of weights that are not stored in ``weights``: the name of a step (``"q" "k" "v" "o" "gate" "up"
            "down"``, ``"shared gate"`` and the like) and what each block's is stored in, in order. Mixed GGUF files
            are such.
        head_norms: each head of queries and of keys is normed.
        post_norms: what attention and the feed-forward block give is normed before it is added to the stream.
        window: how many tokens a token attends to; None for all.
        sliding: by block whether it has the window; all have where this is empty.

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
    shared: int = 0
    sparse: tuple[bool, ...] = ()
    dense: int = 0
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    head_norms: bool = False
    post_norms: bool = False
    window: int | None = None
    sliding: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "width", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
            check_size(name, getattr(self, name))
        for name in ("experts", "active", "shared", "dense"):
            check_size(name, getattr(self, name), 0)
        if self.heads % self.kv_heads:
            raise InvalidUsageError(f"{self.heads} heads are no multiple of {self.kv_heads} heads of keys and values")
        if self.active > self.experts or bool(self.active) != bool(self.experts):
            raise InvalidUsageError(f"{self.active} of {self.experts} experts")
        if self.shared and not self.experts:
            raise InvalidUsageError(f"an expert of {self.shared} columns that all tokens take, and no others")
        check_sparse(self.sparse, self.layers, self.experts, self.dense)
        if self.window is not None:
            check_size("window", self.window)
        if self.sliding and len(self.sliding) != self.layers:
            raise InvalidUsageError(f"{len(self.sliding)} blocks with or without a window of {self.layers}")
        for step, kinds in self.kinds:
            if step not in self._steps or len(kinds) != self.layers:
                known = ", ".join(self._steps)
                raise InvalidUsageError(f"kinds has {len(kinds)} for {step!r}: one per block, for {known}")
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
        alike = {self.weights for step in self._steps if step not in mixed and (self.gated or step != "gate")}
        return frozenset(alike.union(*mixed.values()))

    @property
    def _steps(self) -> tuple[str, ...]:
        """Names of steps that are products by a weight that may be stored in any way."""
        return (*_STEPS, *(_SHARED if self.shared else ()))

    def window_of(self, block: int) -> int | None:
        """Return the window of a block; None where it has none."""
        return self.window if not self.sliding or self.sliding[block] else None

    def mixes(self, block: int) -> bool:
        """Say whether a block has experts."""
        return bool(self.experts) and (not self.sparse or self.sparse[block])

    def inside(self, block: int) -> int:
        """Return the width inside a feed-forward block, of one expert where it has some."""
        return self.hidden if self.mixes(block) or not self.experts else self.dense

    def inner(self, nranks: int) -> int:
        """Return what lies between the two products of as many weights as a rank of a tensor split has to a sum."""
        matrices = [weight for weight in self.weights_of_block(0) if len(weight.shape) > 1 and weight.step != "router"]
        elements = sum(math.prod(weight.shape) * weight.read for weight in matrices)
        return max(int(elements / (4 * self.width * nranks)) // 64 * 64, 64)

    def block(self, number: int = 0) -> list[Step]:
        """Return the steps of a block; ``"x"`` goes in."""
        return [*_attention(self), *(_experts(self) if self.mixes(number) else _feed_forward(self))]

    def weights_of_block(self, block: int) -> list[Weight]:
        """Return the tensors of a block, in the order of its steps."""
        bias = self.bias
        kind = dict.fromkeys(self._steps, self.weights) | {step: kinds[block] for step, kinds in self.kinds}
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
        return [*made, *self._inside(block, kind)]

    def _inside(self, block: int, kind: Mapping[str, str]) -> list[Weight]:
        """Return the tensors of a feed-forward block."""
        width, wide, mixes = self.inside(block), ["gate", "up"] if self.gated else ["up"], self.mixes(block)
        made, inner, share = [], (self.experts,) if mixes else (), self.active / self.experts if mixes else 1.0
        if mixes:
            made.append(Weight("router", (self.experts, self.width), "float32"))
        if mixes and self.shared:
            shape = self.shared, self.width
            made += [Weight(name, shape[:: -1 if name == "shared down" else 1], kind[name]) for name in _SHARED]
            made.append(Weight("share", (1, self.width), "float32"))
        made += [Weight(name, (*inner, width, self.width), kind[name], self.bias, share) for name in wide]
        return [*made, Weight("down", (*inner, self.width, width), kind["down"], self.bias, share)]

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


def check_sparse(sparse: tuple[bool, ...], layers: int, experts: int, dense: int) -> None:
    """Refuse blocks with and without experts that do not fit the other sizes; raises InvalidUsageError."""
    if sparse and (len(sparse) != layers or not any(sparse) or not experts):
        raise InvalidUsageError(
            f"{sum(sparse)} of {len(sparse)} blocks with experts, of {layers} and {experts} experts"
        )
    if bool(dense) == all(sparse):
        raise InvalidUsageError(f"blocks without experts are {dense} wide, and there are {sparse.count(False)}")


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


def stored(kind: str, elements: int) -> int:
    """Return the bytes that ``elements`` side by side take.

    Raises:
        InvalidUsageError: an unknown dtype or format.
    """
    form = FORMATS.get(kind)
    if form is not None:
        return -(-elements // form.block) * form.nbytes
    return elements * dtypes.resolve(kind).itemsize


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


def _experts(spec: ModelSpec) -> list[Step]:
    """Return a mixture of experts: the router decides on one rank, the experts' results are weighed and added."""
    return [
        Step("router", "product", ("feed-forward norm",)),
        Step("choice", "decide", ("router",)),
        Step("gate", "product", ("feed-forward norm",), "inner"),
        Step("up", "product", ("feed-forward norm",), "inner"),
        Step("inner", "each", ("gate", "up")),
        Step("down", "product", ("inner",)),
        Step("weighed", "weigh", ("down", "choice")),
        *(_shared() if spec.shared else ()),
        *_added(spec, 1, "experts" if spec.shared else "weighed", "stream", "out"),
    ]


def _shared() -> list[Step]:
    """Return the expert that all tokens take, and its sum with the others."""
    return [
        *(Step(name, "product", ("feed-forward norm",), "shared") for name in _SHARED[:2]),
        Step("shared inner", "each", _SHARED[:2]),
        Step("shared down", "product", ("shared inner",)),
        Step("share", "product", ("feed-forward norm",)),
        Step("shared", "weigh", ("shared down", "share")),
        Step("experts", "add", ("weighed", "shared")),
    ]
