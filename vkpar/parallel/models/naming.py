"""What files call the tensors of a decoder: transformers' names, and those of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from vkpar.errors import InvalidUsageError
from vkpar.parallel.models.config import Config


class Named(Protocol):
    """Tensors by name, as :func:`vkpar.parallel.open_weights` gives them."""

    def __contains__(self, name: object) -> bool: ...

    def __getitem__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Names:
    """What a kind of file calls the tensors; ``{}`` stands for the number of a block."""

    embedding: str
    output: str
    norm: str
    blocks: Mapping[str, str]

    def of_block(self, part: str, block: int) -> str:
        """Return the name of a part of a block, such as ``attention.q``."""
        return self.blocks[part].format(block)


_TRANSFORMERS: Final = {
    "attention.norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.o": "self_attn.o_proj",
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
    "forward.norm": "ffn_norm",
    "forward.gate": "ffn_gate",
    "forward.up": "ffn_up",
    "forward.down": "ffn_down",
}
_BIASED: Final = ("attention.q", "attention.k", "attention.v")  # of Qwen2
TRANSFORMERS: Final = Names(
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    {part: f"model.layers.{{}}.{name}.weight" for part, name in _TRANSFORMERS.items()},
)
GGUF: Final = Names(
    "token_embd.weight",
    "output.weight",
    "output_norm.weight",
    {part: f"blk.{{}}.{name}.weight" for part, name in _GGUF.items()},
)


def of(weights: Named) -> Names:
    """Return the names that a file uses."""
    return GGUF if GGUF.embedding in weights else TRANSFORMERS


def bias_of(name: str) -> str:
    """Return what the bias of the weight ``name`` is called."""
    return name.removesuffix("weight") + "bias"


def shapes(config: Config, names: Names) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Give the names and shapes of the tensors that a model has to have."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    parts: dict[str, tuple[int, ...]] = {
        "attention.norm": (config.hidden,),
        "attention.q": (queries, config.hidden),
        "attention.k": (keys, config.hidden),
        "attention.v": (keys, config.hidden),
        "attention.o": (config.hidden, queries),
        "forward.norm": (config.hidden,),
        "forward.gate": (config.intermediate, config.hidden),
        "forward.up": (config.intermediate, config.hidden),
        "forward.down": (config.hidden, config.intermediate),
    }
    yield names.embedding, (config.vocabulary, config.hidden)
    yield names.norm, (config.hidden,)
    if not config.tied:
        yield names.output, (config.vocabulary, config.hidden)
    for block in range(config.layers):
        for part, shape in parts.items():
            yield names.of_block(part, block), shape
            if config.family == "qwen2" and part in _BIASED:
                yield bias_of(names.of_block(part, block)), shape[:1]


def check(config: Config, weights: Named, where: str) -> None:
    """Check that every tensor is there and fits, before any is read.

    Raises:
        InvalidUsageError: the first tensor that is missing or has another shape.
    """
    for name, shape in shapes(config, of(weights)):
        if name not in weights:
            raise InvalidUsageError(f"{where} has no tensor {name}; the configuration asks for {shape}")
        found = tuple(weights[name].shape)
        if found != shape:
            raise InvalidUsageError(f"{where}: {name} has shape {found}, the configuration asks for {shape}")
        bias = bias_of(name)
        if len(shape) == 2 and bias in weights and tuple(weights[bias].shape) != shape[:1]:
            raise InvalidUsageError(f"{where}: {bias} has shape {tuple(weights[bias].shape)}, not {shape[:1]}")
