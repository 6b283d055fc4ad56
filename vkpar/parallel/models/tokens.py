"""Text to token ids and back: by a folder's ``tokenizer.json``, or by the vocabulary that a GGUF file carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vkpar.errors import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.parallel.files.mapped import small
from vkpar.parallel.models import special_tokens
from vkpar.parallel.models.config import MOST_FILE
from vkpar.parallel.models.spelling import Spelling

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Rules

_INSTEAD: Final = "pass token ids (--tokens 1,5,9) in place of a text"
_PLAIN: Final = ("default", "gpt-2", "gpt2")
_QWEN2: Final = ("qwen2", "deepseek-r1-qwen")
_UNKNOWN, _CONTROL, _OWN = 2, 3, 4  # kinds of a GGUF file's tokens
_SPACE: Final = "\u2581"
_EMPTY: Final = "\uffff"  # a code point that is no character
_MOST_PIECE: Final = 1024  # characters; all cuts of a piece are tried, so that its work grows with the square

_Numbers = npt.NDArray[np.intp]
_Hashes = npt.NDArray[np.uint64]


class Tokenizer:
    """Text to token ids and back.

    Args:
        rules: of the ``tokenizers`` package.
        first: token that begins a text and that the rules do not put there; None for none.
        last: token that is put behind a text; None for none.
        silent: tokens without text.

    Examples:
        >>> from vkpar.parallel.models import open_model
        >>> with open_model(folder) as file:
        ...     tokenizer = file.tokenizer()
        >>> tokenizer.decode(tokenizer.encode("a sum"))
        'a sum'
    """

    def __init__(
        self, rules: _Rules, first: int | None = None, last: int | None = None, silent: Iterable[int] = ()
    ) -> None:
        self._rules, self._spelling = rules, Spelling(rules, silent)
        self._first, self._last = first, last

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with what begins a text before them, and what is put behind it."""
        found = list(self._rules.encode(text).ids)
        if self._first is not None and found[:1] != [self._first]:
            found.insert(0, self._first)
        if self._last is not None and found[-1:] != [self._last]:
            found.append(self._last)
        return found

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids, without tokens that control.

        Raises:
            InvalidUsageError: a token below 0.
        """
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Give the text that each token adds, where it adds some; together they are what :meth:`decode` returns.

        A character of several tokens comes with its last one; bytes that are no UTF-8 become U+FFFD.

        Args:
            tokens: the ids.
            after: those that came before, which decide whether a space comes first.

        Raises:
            InvalidUsageError: a token below 0.
        """
        return self._spelling.texts(tokens, after)


def parse_ids(text: str) -> list[int]:
    """Return the token ids of a list such as ``"1,5,9"``.

    Args:
        text: the list.

    Raises:
        InvalidUsageError: something else than whole numbers with commas between them.

    Examples:
        >>> from vkpar.parallel.models import parse_ids
        >>> parse_ids("1,5,9")
        [1, 5, 9]
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


def of_folder(folder: Path, first: int | None, *, lower: bool = False) -> Tokenizer:
    """Return the tokenizer of a folder's ``tokenizer.json``, of one that takes texts in lower case where that is asked.

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
    if lower:
        steps = [] if rules.normalizer is None else [rules.normalizer]
        rules.normalizer = package.normalizers.Sequence([package.normalizers.Lowercase(), *steps])
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
    if not isinstance(tokens, list) or not {str}.issuperset(map(type, tokens)):
        raise InvalidUsageError(f"{where}: the vocabulary is not a list of texts that are all different")
    silent = frozenset(number for number, token in enumerate(tokens) if not token)
    vocabulary = _numbered(tokens, where)
    package = _package()
    kinds = _kinds(metadata.get("tokenizer.ggml.token_type", [1] * len(tokens)), len(tokens), where)
    first, last = special_tokens.first(metadata, where), special_tokens.last(metadata, where)
    for token in (first, last):
        if token is not None and token >= len(tokens):
            raise InvalidUsageError(f"{where}: token {token} of a text's beginning or end is none of {len(tokens)}")
    build = _byte_pairs if kind == "gpt2" else _pieces
    try:
        rules = build(package, vocabulary, metadata, where)
    except (InvalidUsageError, UnsupportedError):
        raise
    except Exception as error:  # the package raises Exception itself
        raise InvalidUsageError(f"{where}: the vocabulary cannot be read: {error}") from error
    controls = np.isin(kinds, (_UNKNOWN, _CONTROL))
    controls[[vocabulary[text] for text in special_tokens.ENDS & vocabulary.keys()]] = True
    added = [
        package.AddedToken(tokens[number], special=bool(controls[number]), normalized=False)
        for number in np.flatnonzero(controls | (kinds == _OWN)).tolist()
        if tokens[number]
    ]
    rules.add_tokens(added)  # all at once: each call makes the search for them anew
    return Tokenizer(rules, first, last, silent)


def _numbered(tokens: list[str], where: str) -> dict[str, int]:
    """Return the numbers of tokens; those without text, of which there may be many, get names that no text has."""
    found = {token or f"{_EMPTY}{number}": number for number, token in enumerate(tokens)}
    if len(found) < len(tokens):
        number = next(number for number, token in enumerate(tokens) if token and found[token] != number)
        raise InvalidUsageError(
            f"{where}: the vocabulary is not a list of texts that are all different: {tokens[number]!r} is both token "
            f"{number} and token {found[tokens[number]]}"
        )
    return found


def _kinds(found: Any, count: int, where: str) -> _Numbers:
    """Return the kinds of tokens, a whole number each."""
    try:
        kinds = np.array(list(map(int, found.tolist() if isinstance(found, np.ndarray) else found)), np.intp)
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
    if not isinstance(name, str) or not (name in _PLAIN or name in special_tokens.LLAMA3 or name in _QWEN2):
        raise UnsupportedError(f"{where}: words that are cut as {name!r} says are not supported; {_INSTEAD}")
    whole = name in special_tokens.LLAMA3  # a word that is a token stays one, whatever the merges would make of it
    pairs = [_pair(merge, where) for merge in merges]
    rules = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole))
    if name in _PLAIN:
        rules.pre_tokenizer = split.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        # How Llama 3 and Qwen2 cut texts into words, as their tokenizer.json say; they differ in runs of digits.
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            + ("{1,3}" if whole else "")
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        words = split.Split(package.Regex(pattern), behavior="isolated")
        rules.pre_tokenizer = split.Sequence([words, split.ByteLevel(add_prefix_space=False, use_regex=False)])
    if name in _QWEN2:
        rules.normalizer = package.normalizers.NFC()
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
    unknown, names = metadata.get("tokenizer.ggml.unknown_token_id", 0), list(vocabulary)
    if not isinstance(unknown, int) or not 0 <= unknown < max(len(names), 1):
        raise InvalidUsageError(
            f"{where}: the vocabulary cannot be read: unknown_token_id is no token: {unknown!r} of {len(names)}"
        )
    rules = package.Tokenizer(
        package.models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, -np.asarray(scores, np.float64)),
            unk_token=names[unknown],
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


def _merges(vocabulary: dict[str, int], ranks: npt.NDArray[np.float64]) -> list[tuple[str, str]]:
    """Return every two pieces that make a third one, in the order of its ranks, then of their own numbers.

    Texts are told by a hash of 64 bits: of two that have the same one the package would refuse what is made of them.
    """
    names = list(vocabulary)
    text = np.frombuffer("".join(names).encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = np.fromiter(map(len, names), np.intp, len(names))
    ends = np.cumsum(sizes)
    begins, hashes = ends - sizes, _hashes(text)
    find, may_be = _finder(hashes(begins, ends))
    made = np.repeat(np.arange(len(names)), sizes - 1)  # a row for each place between two characters
    cuts = np.arange(len(made)) + made + 1
    lefts, rights = hashes(begins[made], cuts), hashes(cuts, ends[made])
    rows = np.flatnonzero(may_be(lefts) & may_be(rights) & (text[begins] != ord(_EMPTY))[made])
    left, right = find(lefts[rows]), find(rights[rows])
    both = np.flatnonzero((left >= 0) & (right >= 0))
    made, left, right = made[rows[both]], left[both], right[both]
    order = np.lexsort((left * len(names) + right, ranks[made]))
    pieces = np.array(names, object)
    return list(zip(pieces[left[order]].tolist(), pieces[right[order]].tolist(), strict=True))


def _hashes(text: npt.NDArray[np.uint32]) -> Callable[[_Numbers, _Numbers], _Hashes]:
    """Return what gives hashes of parts of a text: polynomials of their characters, none of them 0, modulo 2^64."""
    base = 0x9E3779B97F4A7C13
    sums: _Hashes = np.zeros(len(text) + 1, np.uint64)
    np.cumsum((text + np.uint64(1)) * np.cumprod(np.full(len(text), base, np.uint64)), out=sums[1:])
    back = np.cumprod(np.full(len(sums), pow(base, -1, 1 << 64), np.uint64), dtype=np.uint64)
    return lambda begins, ends: (sums[ends] - sums[begins]) * back[begins]


def _finder(keys: _Hashes) -> tuple[Callable[[_Hashes], _Numbers], Callable[[_Hashes], npt.NDArray[np.bool_]]]:
    """Return what says which of ``keys`` others are, -1 for none; and what says sooner whether they may be any."""
    first, order = np.full(1 << 22, -1, np.int32), np.argsort(keys)  # by first bits, which few keys share
    first[keys >> 42] = np.arange(len(keys))
    ordered = keys[order]

    def find(wanted: _Hashes) -> _Numbers:
        found: _Numbers = first[wanted >> 42].astype(np.intp)
        late = np.flatnonzero(keys[found] != wanted)
        places = order[np.minimum(np.searchsorted(ordered, wanted[late]), len(keys) - 1)]
        found[late] = np.where(keys[places] == wanted[late], places, -1)
        return found

    return find, lambda wanted: first[wanted >> 42] >= 0
