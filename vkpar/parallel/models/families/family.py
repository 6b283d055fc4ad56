"""What tells a family of decoders from Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Found = Mapping[str, Any]
"""What a configuration says, by key."""

_NONE: Final[Mapping[str, str]] = {}


class Family(NamedTuple):
    """What tells a family of decoders from Llama.

    Attributes:
        biased: queries, keys and values have biases.
        head_norms: each head of queries and of keys is normed before it is turned.
        style: which elements of a head are turned together in GGUF files; see :class:`Config`.
        gate: of the feed-forward block, as :class:`ParallelMLP` takes it.
        post_norms: what attention and the feed-forward block give is normed before it is added to the stream.
        scaled: rows of the embedding table are multiplied by the root of their width.
        centred: weights of norms in transformers' files are what is added to 1.
        mixture: its feed-forward blocks are mixtures of experts; False where some of its models' are.
        shared: its mixtures have an expert besides that all tokens take, each by a weight of its own.
        transformers: what transformers' files call parts of a block, where it is not what Llama's do.
        gguf: the same of GGUF files.
        of_json: takes the object in a ``config.json`` and where it is from; returns that object with Llama's keys, and
            attributes of :class:`Config` besides. None where the keys are Llama's.
        of_gguf: takes metadata and where they are from; returns attributes of :class:`Config`.
    """

    biased: bool = False
    head_norms: bool = False
    style: str = "neox"
    gate: str = "swiglu"
    post_norms: bool = False
    scaled: bool = False
    centred: bool = False
    mixture: bool = False
    shared: bool = False
    transformers: Mapping[str, str] = _NONE
    gguf: Mapping[str, str] = _NONE
    of_json: Callable[[Found, str], tuple[Found, Found]] | None = None
    of_gguf: Callable[[Found, str], Found] | None = None
