"""Text to token ids and back: by a folder's ``tokenizer.json``, or by the vocabulary that a GGUF file carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vkpar.errors import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.parallel.files.mapped import small
from vkpar.parallel.models.config import MOST_FILE, gguf_first

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Rules

_INSTEAD: Final = "pass token ids (--tokens 1,5,9) in place of a text"
_DIGITS: Final = {"llama-bpe": "{1,3}", "llama3": "{1,3}", "llama-v3": "{1,3}", "qwen2": "", "deepseek-r1-qwen": ""}
_PLAIN: Final = ("default", "gpt-2", "gpt2")
_CONTROL, _OWN, _BYTE = 3, 4, 6  # kinds of a GGUF file's tokens
_SPACE: Final = "\u2581"
_MOST_PIECE: Final = 1024  # characters; all cuts of a piece are tried, so that its work grows with the square


class Tokenizer:
    """Text to token ids and back.

    Args:
        rules: of the ``tokenizers`` package.
        first: token that begins a text and that the rules do not put there; None for none.
    """

    def __init__(self, rules: _Rules, first: int | None = None) -> None:
        self._rules = rules
        self._first = first

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with what begins a text before them."""
        found = list(self._rules.encode(text).ids)
        if self._first is not None and found[:1] != [self._first]:
            found.insert(0, self._first)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without tokens that control."""
        return str(self._rules.decode(list(tokens)))

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Give the text that each token adds; a character of several tokens comes with its last one.

        Args:
            tokens: the ids.
            after: those that came before, of which the last one decides whether a space comes first.
        """
        held = list(after[-1:])
        shown = self.decode(held)
        for token in tokens:
            held.append(token)
            text = self.decode(held)
            if text.endswith("\ufffd"):
                continue
            yield text[len(shown) :]
            shown = text
            if text.endswith("\n"):  # later text depends on one token before it, for its spaces
                held = [token]
                shown = self.decode(held)
        rest = self.decode(held)
        if len(rest) > len(shown):
            yield rest[len(shown) :]


def parse_ids(text: str) -> list[int]:
    """Return the token ids of a list such as ``"1,5,9"``.

    Raises:
        InvalidUsageError: something else than whole numbers with commas between them.
    """
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise InvalidUsageError(f"token ids look like 1,5,9, not {text!r}") from None


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UnsupportedError(f"texts need the package tokenizers (pip install tokenizers); or {_INSTEAD}") from None
    return tokenizers


def of_folder(folder: Path, first: int | None) -> Tokenizer:
    """Return the tokenizer of a folder's ``tokenizer.json``.

    Raises:
        UnsupportedError: the package ``tokenizers`` is not installed.
        InvalidUsageError: no such file, or one that the package cannot read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InvalidUsageError(f"{folder} has no tokenizer.json; {_INSTEAD}")
    package = _package()
    try:
        rules = package.Tokenizer.from_buffer(small(path, MOST_FILE))
    except WeightsError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise InvalidUsageError(f"{path} is no tokenizer: {error}") from error
    rules.no_padding()
    rules.no_truncation()
    return Tokenizer(rules, first if rules.post_processor is None else None)


def of_gguf(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Return the tokenizer of the vocabulary in a GGUF file's metadata.

    Raises:
        UnsupportedError: the package ``tokenizers`` is not installed, or a kind of vocabulary that is not known.
        InvalidUsageError: the vocabulary is missing or broken.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind is None or tokens is None:
        raise InvalidUsageError(f"{where} has no vocabulary; {_INSTEAD}")
    if not isinstance(kind, str) or kind not in ("gpt2", "llama"):
        raise UnsupportedError(f"{where}: a vocabulary of the kind {kind!r} is not supported; {_INSTEAD}")
    texts = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    if not texts or len(set(tokens)) < len(tokens):
        raise InvalidUsageError(f"{where}: the vocabulary is not a list of texts that are all different")
    package = _package()
    vocabulary = {str(token): number for number, token in enumerate(tokens)}
    kinds = _kinds(metadata.get("tokenizer.ggml.token_type", [1] * len(tokens)), len(tokens), where)
    first = gguf_first(metadata, where, begins=kind == "llama")
    build = _byte_pairs if kind == "gpt2" else _pieces
    try:
        rules = build(package, vocabulary, metadata, where)
    except (InvalidUsageError, UnsupportedError):
        raise
    except Exception as error:  # the package raises Exception itself
        raise InvalidUsageError(f"{where}: the vocabulary cannot be read: {error}") from error
    for number, token in enumerate(tokens):
        if kinds[number] in (_CONTROL, _OWN):
            added = package.AddedToken(token, special=kinds[number] == _CONTROL, normalized=False)
            (rules.add_special_tokens if kinds[number] == _CONTROL else rules.add_tokens)([added])
    return Tokenizer(rules, first)


def _kinds(found: Any, count: int, where: str) -> list[int]:
    """Return the kinds of tokens, a whole number each."""
    try:
        kinds = [int(number) for number in found]
    except (TypeError, ValueError, OverflowError):
        raise InvalidUsageError(f"{where}: tokenizer.ggml.token_type is no list of whole numbers") from None
    if len(kinds) != count:
        raise InvalidUsageError(f"{where}: {len(kinds)} kinds of {count} tokens")
    return kinds


def _byte_pairs(package: Any, vocabulary: dict[str, int], metadata: Mapping[str, Any], where: str) -> _Rules:
    """Return the rules of a vocabulary whose tokens are bytes, merged in an order that the file lists."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise InvalidUsageError(f"{where}: the vocabulary has no merges; {_INSTEAD}")
    split = package.pre_tokenizers
    if name in _PLAIN:
        before = split.ByteLevel(add_prefix_space=False, use_regex=True)
    elif name in _DIGITS:
        # How Llama 3 and Qwen2 cut texts into words, as their tokenizer.json say; they differ in runs of digits.
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            + _DIGITS[name]
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        words = split.Split(package.Regex(pattern), behavior="isolated")
        before = split.Sequence([words, split.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        raise UnsupportedError(f"{where}: words that are cut as {name!r} says are not supported; {_INSTEAD}")
    pairs = [_pair(merge, where) for merge in merges]
    rules = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=name in _DIGITS))
    rules.pre_tokenizer = before
    rules.decoder = package.decoders.ByteLevel()
    return rules  # type: ignore[no-any-return]


def _pair(merge: object, where: str) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else []
    if len(parts) != 2:
        raise InvalidUsageError(f"{where}: a merge is two tokens, not {merge!r}")
    return parts[0], parts[1]


def _pieces(package: Any, vocabulary: dict[str, int], metadata: Mapping[str, Any], where: str) -> _Rules:
    """Return the rules of a vocabulary of scored pieces: of all merges the one with the best result goes first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary):
        raise InvalidUsageError(f"{where}: the vocabulary has no score for each token; {_INSTEAD}")
    longest = max(vocabulary, key=len, default="")
    if len(longest) > _MOST_PIECE:
        raise UnsupportedError(
            f"{where}: token {vocabulary[longest]} has {len(longest)} characters, more than {_MOST_PIECE}; {_INSTEAD}"
        )
    ranks = [-float(score) for score in scores]
    merges = []
    for piece, number in vocabulary.items():
        for at in range(1, len(piece)):
            left, right = vocabulary.get(piece[:at]), vocabulary.get(piece[at:])
            if left is not None and right is not None:
                merges.append((ranks[number], left, right, piece[:at], piece[at:]))
    merges.sort()
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    names = list(vocabulary)
    rules = package.Tokenizer(
        package.models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in merges],
            unk_token=names[int(unknown)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [package.normalizers.Prepend(_SPACE)] if spaced else []
    rules.normalizer = package.normalizers.Sequence([*steps, package.normalizers.Replace(" ", _SPACE)])
    back = package.decoders
    rules.decoder = back.Sequence(
        [back.Replace(_SPACE, " "), back.ByteFallback(), back.Fuse(), *([back.Strip(" ", 1, 0)] if spaced else [])]
    )
    return rules  # type: ignore[no-any-return]
