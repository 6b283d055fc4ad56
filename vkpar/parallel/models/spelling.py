"""What each token adds to a text, so that a text can be shown while it is made.

A text is the bytes of its tokens, one after the other, read as UTF-8. What a token adds depends on itself and on
whether it is the first (most decoders take a space away there), on nothing else. Of byte tokens that are no UTF-8, what
is wrong becomes U+FFFD and what is right stays, as llama.cpp shows it; the package ``tokenizers`` makes U+FFFD of every
byte of such a run.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Rules

_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_BEFORE: Final = "a"  # stands before a token that is not the first
_BY_TOKEN: Final = ("Replace", "Strip", "WordPiece", "Metaspace")  # decoders' steps that look at one token alone
_PRINTED: Final = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES: Final = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + index): byte for index, byte in enumerate(sorted(set(range(256)) - set(_PRINTED)))
}
"""GPT-2's alphabet: the byte that each character stands for."""


class Spelling:
    """The bytes that tokens add to a text.

    Args:
        rules: of the ``tokenizers`` package.
        silent: tokens that add nothing, besides those that control.
    """

    def __init__(self, rules: _Rules, silent: Iterable[int] = ()) -> None:
        self._rules, self._decoder = rules, rules.decoder
        self._steps = _steps(self._decoder)
        added = rules.get_added_tokens_decoder()
        self._hidden = {token.content for token in added.values() if token.special}
        self._kept: dict[tuple[int, bool], bytes | None] = dict.fromkeys(
            ((token, first) for token in silent for first in (False, True)), None
        )
        self._alone = _stand_alone(self._steps)

    def texts(self, tokens: Iterable[int], after: Sequence[int]) -> Iterator[str]:
        """Give the text that each token adds, where it adds some."""
        if not self._alone:
            if text := self._at_once([*after, *tokens], after):
                yield text
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        first = True
        for token in after:
            spelt = self._of(token, first)
            first = first and spelt is None
            decoder.decode(spelt or b"")
        for token in tokens:
            spelt = self._of(token, first)
            first = first and spelt is None
            if text := decoder.decode(spelt or b""):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def _at_once(self, tokens: list[int], after: Sequence[int]) -> str:
        """Return a text by a decoder whose tokens depend on their neighbours; no model known here has one."""
        for token in tokens:
            self._text(token)
        return str(self._rules.decode(tokens)).removeprefix(str(self._rules.decode(list(after))))

    def _of(self, token: int, first: bool) -> bytes | None:
        """Return what a token adds; None where it is none of the text."""
        key = (token, first)
        if key not in self._kept:
            self._kept[key] = self._spelt(token, first)
        return self._kept[key]

    def _text(self, token: int) -> str | None:
        try:
            return self._rules.id_to_token(int(token))
        except OverflowError:
            raise InvalidUsageError(f"a token is a whole number from 0, not {token!r}") from None

    def _spelt(self, token: int, first: bool) -> bytes | None:
        text = self._text(token)
        if not text or text in self._hidden:
            return None
        if self._steps == ["ByteLevel"]:
            known = all(char in _BYTES for char in text)
            return bytes(_BYTES[char] for char in text) if known else text.encode()
        byte = _BYTE.fullmatch(text) if "ByteFallback" in self._steps else None
        if byte is not None and int(byte[1], 16) > 127:
            return bytes.fromhex(byte[1])
        if self._decoder is None:
            return (text if first else " " + text).encode()
        if first:
            return str(self._decoder.decode([text])).encode()
        return str(self._decoder.decode([_BEFORE, text])).removeprefix(_BEFORE).encode()


def _steps(decoder: Any) -> list[str]:
    """Return the names of a decoder's steps; an empty one for what takes more than a space from a text's beginning."""
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    listed = state["decoders"] if state["type"] == "Sequence" else [state]
    return ["" if step["type"] == "Strip" and _takes_more(step) else step["type"] for step in listed]


def _takes_more(strip: dict[str, Any]) -> bool:
    return bool(strip["stop"] or strip["start"] > 1 or strip["content"] != " ")


def _stand_alone(steps: list[str]) -> bool:
    """Return whether what a token adds depends on itself alone, and on whether it is the first."""
    if steps == ["ByteLevel"]:
        return True
    joined = next((index for index, step in enumerate(steps) if step in ("ByteFallback", "Fuse")), len(steps))
    before, behind = steps[:joined], steps[joined:]
    return all(step in _BY_TOKEN for step in before) and all(
        step in ("ByteFallback", "Fuse", "Strip") for step in behind
    )
