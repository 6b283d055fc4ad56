"""Which tokens begin and end a text, by a GGUF file's metadata: as llama.cpp has it, whose rules the files rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vkpar.errors import InvalidUsageError

LLAMA3: Final = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
)
"""Cuts of words (``tokenizer.ggml.pre``) that are Llama 3's."""

_BEGUN: Final = LLAMA3 | {"tekken", "chameleon"}  # cuts of words whose texts begin with a token unless a file says no
_NUMBERS: Final = {"llama": {"bos": 1, "eos": 2}}  # by kind of vocabulary, where a file names none
ENDS: Final = frozenset(  # texts of tokens that end a text: these control, whatever kind a file gives them
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|eom_id|>"}
    | {"<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "</s>", "<eos>", "<turn|>", "[e~["}
    | {"<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}
)
_OF_FILES: Final = (  # what stands between files of code; the first one of each line that a vocabulary has
    ("fim_pad", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    ("fim_rep", ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    ("fim_sep", ("<|file_sep|>",)),
)


def first(metadata: Mapping[str, Any], where: str) -> int | None:
    """Return the token that begins a text; None where there is none.

    Raises:
        InvalidUsageError: a value that is wrong.
    """
    kind = str(metadata.get("tokenizer.ggml.model", metadata.get("general.architecture")))
    pre = str(metadata.get("tokenizer.ggml.pre"))
    return _added(metadata, "bos", kind == "llama" or (kind == "gpt2" and pre in _BEGUN), where)


def last(metadata: Mapping[str, Any], where: str) -> int | None:
    """Return the token that is put behind a text; None where there is none; raises as :func:`first` does."""
    return _added(metadata, "eos", False, where)


def ends(metadata: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Return the tokens at which a text ends: those that the file names, and those that are known by their texts.

    Raises:
        InvalidUsageError: a value that is wrong.
    """
    named = [_numbered(metadata, name, where) for name in ("eos", "eot", "eom")]
    listed = metadata.get("tokenizer.ggml.tokens")
    known: dict[str, int] = {}
    if isinstance(listed, list):
        texts = ENDS.union(*(names for _, names in _OF_FILES))
        known = {text: number for number, text in enumerate(listed) if isinstance(text, str) and text in texts}
    for name, texts_of in _OF_FILES:
        found = _numbered(metadata, name, where)
        named.append(next((known[text] for text in texts_of if text in known), None) if found is None else found)
    found_ends = known.keys() & ENDS
    if known.keys() & {"<|call|>", "<|calls|>"} and known.keys() & {"<|return|>", "<|flush|>"}:
        found_ends -= {"<|end|>"}  # gpt-oss and Solar end a message with it, not a text
    if "<|tool_response>" in known:
        found_ends -= {"</s>"}
    numbers = [*(number for number in named if number is not None), *sorted(known[text] for text in found_ends)]
    return tuple(dict.fromkeys(numbers))


def numbers_of(found: object, where: str) -> tuple[int, ...]:
    """Return the tokens of a number or a list of numbers, none for None.

    Raises:
        InvalidUsageError: something else than whole numbers from 0.
    """
    listed = found if isinstance(found, list) else [] if found is None else [found]
    for token in listed:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise InvalidUsageError(f"{where}: a token is a whole number from 0, not {token!r}")
    return tuple(listed)


def first_of(found: object, where: str) -> int | None:
    """Return the first of a token or a list of tokens, None for None; raises as :func:`numbers_of` does."""
    listed = numbers_of(found, where)
    if found is not None and not listed:
        raise InvalidUsageError(f"{where}: the token that begins a text is a whole number, not an empty list")
    return listed[0] if listed else None


def _numbered(metadata: Mapping[str, Any], name: str, where: str) -> int | None:
    """Return the token that the file gives a meaning, or that has it in every vocabulary of its kind."""
    listed = metadata.get("tokenizer.ggml.tokens")
    usual = _NUMBERS.get(str(metadata.get("tokenizer.ggml.model")), {}).get(name)
    if not isinstance(listed, list) or usual is None or usual >= len(listed):
        usual = None
    return first_of(metadata.get(f"tokenizer.ggml.{name}_token_id", usual), where)


def _added(metadata: Mapping[str, Any], name: str, usually: bool, where: str) -> int | None:
    key = f"tokenizer.ggml.add_{name}_token"
    asked = metadata.get(key, usually)
    if not isinstance(asked, int):
        raise InvalidUsageError(f"{where}: {key} is true or false, not {asked!r}")
    number = _numbered(metadata, name, where)
    return number if asked else None
