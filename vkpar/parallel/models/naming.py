"""What files call the tensors of a decoder: transformers' names, and those of GGUF files."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.families import mixtures
from vkpar.parallel.models.families.family import Family
from vkpar.parallel.models.families.mixtures import ExpertNames

FLOATS: Final = ("float32", "float16", "bfloat16")
"""What weights may be stored as, besides quantised blocks."""
_LISTED: Final = 3  # names in a message

Tensors = Mapping[str, Any]
"""By name, as :func:`vkpar.parallel.open_weights` gives them, or arrays."""


@dataclass(frozen=True)
class Names:
    """What a kind of file calls the tensors; ``{}`` stands for the number of a block.

    ``idle`` matches what files hold besides, and what results do not depend on.
    """

    embedding: str
    output: str
    norm: str
    blocks: Mapping[str, str]
    idle: re.Pattern[str]

    def of_family(self, family: Family) -> Names:
        """Return what files of a family call the tensors."""
        gguf = self.embedding == GGUF.embedding
        own, usual = (family.gguf, _GGUF) if gguf else (family.transformers, _TRANSFORMERS)
        norm = self.blocks["attention.norm"]
        blocks = {part: norm.replace(usual["attention.norm"], name) for part, name in own.items()}
        return replace(self, blocks={**self.blocks, **blocks}) if own else self

    def of_block(self, part: str, block: int) -> str:
        """Return the name of a part of a block, such as ``attention.q``."""
        return self.blocks[part].format(block)


class Wanted(NamedTuple):
    """A tensor that a model takes.

    Attributes:
        name: what its files call it.
        shape: its dimensions.
        needed: it has to be there.
        longer: it may have more rows.
    """

    name: str
    shape: tuple[int, ...]
    needed: bool = True
    longer: bool = False


_TRANSFORMERS: Final = {
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "forward.norm": "post_attention_layernorm",
    "forward.gate": "mlp.gate_proj",
    "forward.up": "mlp.up_proj",
    "forward.down": "mlp.down_proj",
}
_GGUF: Final = {
    "attention.norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.o": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "forward.norm": "ffn_norm",
    "forward.gate": "ffn_gate",
    "forward.up": "ffn_up",
    "forward.down": "ffn_down",
}
_BIASED: Final = ("attention.q", "attention.k", "attention.v")
POST_NORMS: Final = ("attention.post", "forward.post")
HEAD_NORMS: Final = ("attention.q_norm", "attention.k_norm")
TRANSFORMERS: Final = Names(
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    {part: f"model.layers.{{}}.{name}.weight" for part, name in _TRANSFORMERS.items()},
    re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)"),  # tables of older versions
)
_BESIDE: Final = "language_model."  # stands before all names where a tower for pictures is beside the text
_WITH_PICTURES: Final = Names(
    _BESIDE + TRANSFORMERS.embedding,
    _BESIDE + TRANSFORMERS.output,
    _BESIDE + TRANSFORMERS.norm,
    {part: _BESIDE + name for part, name in TRANSFORMERS.blocks.items()},
    re.compile(TRANSFORMERS.idle.pattern + r"|(vision_tower|multi_modal_projector)\..*"),
)
GGUF: Final = Names(
    "token_embd.weight",
    "output.weight",
    "output_norm.weight",
    {part: f"blk.{{}}.{name}.weight" for part, name in _GGUF.items()},
    # The first is a part of the configuration; llama.cpp's converters leave the others out.
    re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd(\.weight)?"),
)


def of(weights: Tensors) -> Names:
    """Return the names that a file uses, but for what its family calls otherwise."""
    return next((names for names in (GGUF, _WITH_PICTURES) if names.embedding in weights), TRANSFORMERS)


def experts_of(config: Config, weights: Container[str], names: Names) -> ExpertNames:
    """Return what the experts of a model that has some are called."""
    first = next(block for block in range(config.layers) if config.mixes(block))
    return mixtures.layout_of(config.family, weights, first, gguf=names.embedding == GGUF.embedding)


def routers_of(config: Config, names: Names) -> frozenset[str]:
    """Return the names of what weighs experts: routers and shares, which files keep as floats."""
    if not config.experts:
        return frozenset()
    layout = experts_of(config, (), names)
    found = [layout.router, *([layout.shared[mixtures.SHARE]] if config.shared else [])]
    return frozenset(name.format(block) for name in found for block in range(config.layers) if config.mixes(block))


def matrix_of(config: Config, weights: Tensors, part: str, block: int) -> str:
    """Return the name of a block's matrix ``"gate"``, ``"up"`` or ``"down"``, of one expert where there are some."""
    names = of(weights).of_family(config.differs)
    if not config.mixes(block):
        return names.of_block(f"forward.{part}", block)
    return experts_of(config, weights, names).name(part, block)


def bias_of(name: str) -> str:
    """Return what the bias of the weight ``name`` is called."""
    return name.removesuffix("weight") + "bias"


def shapes(config: Config, names: Names, weights: Container[str] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Give the names and shapes of the tensors that a model has to have; ``weights`` are those that there are."""
    names = names.of_family(config.differs)
    layout = experts_of(config, weights, names) if config.experts else None
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    parts: dict[str, tuple[int, ...]] = {
        "attention.norm": (config.hidden,),
        "attention.q": (queries, config.hidden),
        "attention.k": (keys, config.hidden),
        "attention.v": (keys, config.hidden),
        "attention.o": (config.hidden, queries),
        "forward.norm": (config.hidden,),
    }
    if config.head_norms:
        parts |= dict.fromkeys(HEAD_NORMS, (config.head_dim,))
    if config.post_norms:
        parts |= dict.fromkeys(POST_NORMS, (config.hidden,))
    yield names.embedding, (config.vocabulary, config.hidden)
    yield names.norm, (config.hidden,)
    if not config.tied:
        yield names.output, (config.vocabulary, config.hidden)
    for block in range(config.layers):
        inside = {} if config.mixes(block) else _feed_forward(config.inside(block), config.hidden)
        for part, shape in (parts | inside).items():
            yield names.of_block(part, block), shape
            if config.biased and part in _BIASED:
                yield bias_of(names.of_block(part, block)), shape[:1]
        if layout is not None and config.mixes(block):
            yield from layout.shapes(block, config.experts, config.intermediate, config.hidden, config.shared)


def _feed_forward(inner: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a feed-forward block's matrices."""
    wide = dict.fromkeys(("forward.gate", "forward.up"), (inner, hidden))
    return {**wide, "forward.down": (hidden, inner)}


def check(config: Config, weights: Tensors, where: str) -> None:
    """Check the tensors of a decoder by :func:`check_tensors`."""
    names = of(weights)
    check_tensors(_wanted(config, names, weights), weights, where, names.idle)


def _wanted(config: Config, names: Names, weights: Tensors) -> Iterator[Wanted]:
    biased = tuple(name.rpartition("{}")[2] for name in names.blocks.values())  # routers and experts are not
    for name, shape in shapes(config, names, weights):
        yield Wanted(name, shape)
        if len(shape) == 2 and name.endswith(biased):
            yield Wanted(bias_of(name), shape[:1], needed=False)
    if config.tied:  # a copy of the table, which transformers does not read either
        yield Wanted(names.output, (config.vocabulary, config.hidden), needed=False)


def check_tensors(wanted: Iterable[Wanted], weights: Tensors, where: str, idle: re.Pattern[str]) -> None:
    """Check that every tensor is there, fits and is stored as something that is read, and that no other is there.

    Args:
        wanted: what the model takes.
        weights: what there is.
        where: the file, for messages.
        idle: matches the names of tensors that may be left out.

    Raises:
        InvalidUsageError: the first tensor that is missing or has another shape.
        UnsupportedError: one that is quantised in an unknown way, or stored as no floats; some that the model would
            not use, so that its results would be wrong.
    """
    known = set()
    for want in wanted:
        if want.name in weights:
            _check_tensor(want, weights[want.name], where)
            known.add(want.name)
        elif want.needed:
            raise _missing(want, weights, where)
    unused = [name for name in weights if name not in known and not idle.fullmatch(name)]
    if unused:
        file = Path(getattr(weights[unused[0]], "source", where)).name
        raise UnsupportedError(
            f"{where} holds {_listed(unused)} (in {file}), which the model does not use: results without would be wrong"
        )


def _check_tensor(want: Wanted, tensor: Any, where: str) -> None:
    name, shape, found = want.name, want.shape, tuple(tensor.shape)
    fits = (
        len(found) == len(shape) and found[0] >= shape[0] and found[1:] == shape[1:] if want.longer else found == shape
    )
    if not fits:
        least = "at least " if want.longer else ""
        raise InvalidUsageError(f"{where}: {name} has shape {found}, the configuration asks for {least}{shape}")
    blocks = getattr(tensor, "kind", None)
    stored = dtypes.resolve(tensor.dtype).name if blocks is None else str(blocks)
    if stored not in FLOATS and (blocks is None or len(shape) < 2):
        raise UnsupportedError(
            f"{where}: {name} is stored as {stored}, which is not supported; {', '.join(FLOATS)} are"
        )


def _missing(want: Wanted, weights: Tensors, where: str) -> InvalidUsageError | UnsupportedError:
    """Return the error of a tensor that is missing, perhaps since there are quantised ones in its place."""
    stem = want.name.removesuffix("weight")
    instead = [name for name in weights if name.startswith(stem) and name != bias_of(want.name)]
    if stem != want.name and instead:
        return UnsupportedError(
            f"{where} has {_listed(instead)} in place of {want.name}: weights that are quantised so are not supported"
        )
    return InvalidUsageError(f"{where} has no tensor {want.name}; the configuration asks for {want.shape}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(name[:200] for name in names[:_LISTED]) + more
