"""Texts and token ids: streams against whole texts, what begins and ends a text, and what vocabularies hold."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.parallel.models import config, special_tokens, tokens
from vkpar.parallel.models.spelling import Spelling

package = pytest.importorskip("tokenizers")

MARK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = [MARK, "a", f"{MARK}a", "\n", "b\n", f"{MARK}{MARK}", "é", "漢", "\ufffd", f"a{MARK}", "<x>"]
ALPHABET = sorted(set(package.pre_tokenizers.ByteLevel.alphabet()))
SIZES = {"embedding_length": 64, "block_count": 1, "feed_forward_length": 96, "attention.head_count": 4}


def gguf(**keys: Any) -> dict[str, Any]:
    """Metadata of a file with a vocabulary."""
    sizes = {f"llama.{name}": value for name, value in SIZES.items()}
    return {"general.architecture": "llama", **sizes, **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}


def scored(**keys: Any) -> dict[str, Any]:
    """Metadata of a vocabulary as SentencePiece makes it: tokens that control, bytes, pieces, one of the user's."""
    pieces = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(WORDS) - 1), 4]
    return gguf(model="llama", tokens=pieces, scores=[-float(i) for i in range(len(pieces))], token_type=kinds, **keys)


def paired(**keys: Any) -> dict[str, Any]:
    """Metadata of a vocabulary of bytes, with two merges, a token that controls, and one of the user's."""
    pieces = [*ALPHABET, "\u0120a", "\u010a\u010a", "<|eot_id|>", "<own one>"]
    kinds = [1] * (len(pieces) - 2) + [3, 4]
    return gguf(model="gpt2", tokens=pieces, merges=["\u0120 a", "\u010a \u010a"], token_type=kinds, **keys)


def of_decoder(decoder: Any, pieces: list[str]) -> Any:
    """Rules of a vocabulary with that decoder, in which one token controls."""
    rules = package.Tokenizer(package.models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    rules.add_special_tokens([package.AddedToken("[UNK]", special=True), package.AddedToken("[SEP]", special=True)])
    if decoder is not None:
        rules.decoder = decoder
    return rules


BACK = package.decoders
LLAMA2 = [BACK.Replace(MARK, " "), BACK.ByteFallback(), BACK.Fuse(), BACK.Strip(" ", 1, 0)]
DECODERS: dict[str, Any] = {
    "Llama 2": BACK.Sequence(LLAMA2),
    "Gemma": BACK.Sequence(LLAMA2[:3]),
    "BERT": BACK.WordPiece(prefix="##", cleanup=True),
    "as it is": BACK.WordPiece(prefix="##", cleanup=False),
    "T5": BACK.Metaspace(),
    "never a space first": BACK.Metaspace(prepend_scheme="never"),
    "bytes": BACK.ByteLevel(),
    "fused": BACK.Fuse(),
    "none": None,
    "by neighbours": BACK.CTC(pad_token="a"),
    "by the last one": BACK.BPEDecoder(suffix="b"),
    "across tokens": BACK.Sequence([BACK.Fuse(), BACK.Replace("aa", "b")]),
}
PIECES = ["[UNK]", "[SEP]", *WORDS, "##a", "##", ".", "n't", "'s", "\u0120a", " ", *BYTES]


def all_kinds() -> dict[str, tokens.Tokenizer]:
    """A tokenizer of each kind."""
    found = {name: tokens.Tokenizer(of_decoder(decoder, PIECES)) for name, decoder in DECODERS.items()}
    found["scored"] = tokens.of_gguf(scored(), "it")
    found["scored, no space"] = tokens.of_gguf(scored(add_space_prefix=False), "it")
    return found | {f"bytes, {pre}": tokens.of_gguf(paired(pre=pre), "it") for pre in ("gpt-2", "llama-bpe", "qwen2")}


KINDS = all_kinds()


# ---- streams ----


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(data=st.data())
def test_streams_are_what_decode_returns_and_what_the_package_does(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer._rules.get_vocab_size() + 1), max_size=12))
    streamed = list(tokenizer.stream(iter(ids)))
    assert "".join(streamed) == tokenizer.decode(ids)
    assert "" not in streamed
    theirs = tokenizer._rules.decode(ids)
    if "\ufffd" not in theirs or "ByteFallback" not in tokenizer._spelling._steps:
        assert tokenizer.decode(ids) == theirs
    cut = data.draw(st.integers(0, len(ids)))
    before = tokenizer.decode(ids[:cut])
    if "\ufffd" not in before and tokenizer._spelling._alone:
        assert before + "".join(tokenizer.stream(ids[cut:], after=ids[:cut])) == tokenizer.decode(ids)


@pytest.mark.parametrize("make", [scored, paired])
@given(raw=st.binary(max_size=12))
def test_bytes_that_are_no_utf8_become_one_character(make: Any, raw: bytes) -> None:
    tokenizer = tokens.of_gguf(make(add_space_prefix=False), "it")
    known = Spelling(tokenizer._rules)
    by_byte = {known._of(token, False): token for token in reversed(range(tokenizer._rules.get_vocab_size()))}
    assert tokenizer.decode([by_byte[raw[i : i + 1]] for i in range(len(raw))]) == raw.decode("utf-8", "replace")


def test_a_character_comes_with_its_last_token_and_a_space_stays_after_tokens_that_control() -> None:
    tokenizer = KINDS["scored"]
    a, newline = 3 + 256 + WORDS.index(f"{MARK}a"), 3 + 256 + WORDS.index("\n")
    assert list(tokenizer.stream([1, a, newline, 2, a])) == ["a", "\n", " a"]
    assert list(tokenizer.stream([3 + 0xC3, 3 + 0xA9, a, 3 + 0xFF])) == ["é", " a", "\ufffd"]
    assert list(tokenizer.stream([a], after=[a, 2])) == [" a"]
    assert list(tokenizer.stream([a], after=[1])) == ["a"]


def test_streams_are_lazy_and_take_each_token_once() -> None:
    spelling, count = KINDS["scored"]._spelling, 20_000
    taken: list[int] = []
    spelt = [0]

    def given() -> Any:
        for token in [3 + 256 + 1] * count:
            taken.append(token)
            yield token

    of = spelling._of

    def counted(token: int, first: bool) -> bytes | None:
        spelt[0] += 1
        return of(token, first)

    spelling._of = counted  # type: ignore[method-assign]
    try:
        stream = KINDS["scored"].stream(given())
        assert next(stream) == "a"
        assert len(taken) == 1
        assert len("".join(stream)) == count - 1
        assert spelt[0] == count  # each token once, however long the line
    finally:
        del spelling._of


def test_tokens_that_are_none() -> None:
    for tokenizer in KINDS.values():
        with pytest.raises(InvalidUsageError, match="a whole number from 0, not -1"):
            tokenizer.decode([-1])
        assert tokenizer.decode([10**6]) == tokenizer.decode(np.arange(0)) == ""


# ---- what begins and ends a text ----


@pytest.mark.parametrize("pre", sorted(special_tokens.LLAMA3))
def test_llama3_files_begin_their_texts_unless_they_say_no(pre: str) -> None:
    made = paired(pre=pre, bos_token_id=5)
    space_a = len(ALPHABET)
    assert tokens.of_gguf(made, "it").encode(" a") == [5, space_a]
    assert config.of_gguf(made, "it", 99, tied=True).first == 5
    no = made | {"tokenizer.ggml.add_bos_token": False}
    assert tokens.of_gguf(no, "it").encode(" a") == [space_a]
    assert config.of_gguf(no, "it", 99, tied=True).first is None


@pytest.mark.parametrize("pre", ["default", "gpt-2", "qwen2", "deepseek-r1-qwen", None])
def test_other_files_begin_texts_where_they_say_so(pre: str | None) -> None:
    made = paired(bos_token_id=5, **({} if pre is None else {"pre": pre}))
    assert tokens.of_gguf(made, "it").encode("b") == [ALPHABET.index("b")]
    yes = made | {"tokenizer.ggml.add_bos_token": True}
    assert tokens.of_gguf(yes, "it").encode("b") == [5, ALPHABET.index("b")]
    assert config.of_gguf(yes, "it", 99, tied=True).first == 5


def test_sentencepiece_has_the_usual_numbers_and_a_text_may_have_a_token_behind_it() -> None:
    assert tokens.of_gguf(scored(), "it").encode("")[:1] == [1]
    assert tokens.of_gguf(scored(add_bos_token=False, add_eos_token=True), "it").encode("a")[-1] == 2
    assert tokens.of_gguf(scored(add_eos_token=True, eos_token_id=9), "it").encode("a</s>")[-2:] == [2, 9]
    assert config.of_gguf(scored(), "it", 99, tied=True).stops == (2,)
    for key, value, message in (
        ("add_eos_token", "yes", "add_eos_token is true or false"),
        ("bos_token_id", 9999, "token 9999 of a text's beginning"),
        ("eos_token_id", -1, "a token is a whole number"),
        ("unknown_token_id", -1, "unknown_token_id is no token"),
        ("unknown_token_id", 9999, "unknown_token_id is no token"),
        ("unknown_token_id", 0.5, "unknown_token_id is no token"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            tokens.of_gguf(scored(**{key: value}), "it")


@pytest.mark.parametrize(
    ("texts", "stops"),
    [
        (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], (0, 1, 2)),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], (0, 2)),
        (["x", "<end_of_turn>", "<eos>"], (0, 1, 2)),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_repo|>"], (0, 4, 2)),
        (["<|return|>", "<|end|>", "<|call|>"], (0, 2)),
        (["<|end|>", "x"], (0,)),
        (["<turn|>", "</s>", "<|tool_response>"], (0, 2)),
    ],
)
def test_texts_end_at_tokens_that_are_known_by_their_texts(texts: list[str], stops: tuple[int, ...]) -> None:
    made = gguf(model="gpt2", tokens=texts, eos_token_id=0)
    assert config.of_gguf(made, "it", 9, tied=True).stops == stops
    assert config.of_gguf(made | {"tokenizer.ggml.eot_token_id": 7}, "it", 9, tied=True).stops[:2] == (0, 7)


def test_what_ends_a_text_controls_whatever_kind_it_has() -> None:
    made = paired()
    made["tokenizer.ggml.token_type"] = [1] * len(made["tokenizer.ggml.tokens"])
    found = tokens.of_gguf(made, "it")
    end = made["tokenizer.ggml.tokens"].index("<|eot_id|>")
    assert found.encode("b<|eot_id|>") == [ALPHABET.index("b"), end]
    assert found.decode([end, ALPHABET.index("b"), end]) == "b"


# ---- vocabularies ----


def test_qwen2_composes_characters_and_llama3_does_not() -> None:
    parts = "e\u0301"
    for pre, same in (("qwen2", True), ("deepseek-r1-qwen", True), ("llama-bpe", False), ("gpt-2", False)):
        found = tokens.of_gguf(paired(pre=pre), "it")
        assert found.decode(found.encode(parts)) == (unicodedata.normalize("NFC", parts) if same else parts)


def test_only_llama3_keeps_words_that_are_tokens_whatever_the_merges() -> None:
    for pre, count in (("llama-bpe", 1), ("qwen2", 3)):
        made = paired(pre=pre)
        made["tokenizer.ggml.tokens"] = [*made["tokenizer.ggml.tokens"], "bcd"]
        made["tokenizer.ggml.token_type"] = [*made["tokenizer.ggml.token_type"], 1]
        assert len(tokens.of_gguf(made, "it").encode("bcd")) == count


@pytest.mark.parametrize("make", [scored, paired])
def test_any_number_of_tokens_without_text(make: Any) -> None:
    made, whole = make(), tokens.of_gguf(make(), "it")
    count = len(made["tokenizer.ggml.tokens"])
    made["tokenizer.ggml.tokens"] = [*made["tokenizer.ggml.tokens"], "", "", ""]
    made["tokenizer.ggml.token_type"] = [*made["tokenizer.ggml.token_type"], 1, 3, 5]
    if "tokenizer.ggml.scores" in made:
        made["tokenizer.ggml.scores"] = [*made["tokenizer.ggml.scores"], 9.0, 9.0, 9.0]
    found = tokens.of_gguf(made, "it")
    for text in ("a a\n\n", "\uffff12", "漢 <own one>"):
        ids = whole.encode(text)
        assert found.encode(text) == ids
        assert found.decode([count, *ids, count + 1, count + 2]) == whole.decode(ids)
    made["tokenizer.ggml.tokens"][-1] = made["tokenizer.ggml.tokens"][3]
    with pytest.raises(InvalidUsageError, match=rf"all different: .* is both token 3 and token {count + 2}"):
        tokens.of_gguf(made, "it")


@pytest.mark.parametrize("letters", ["abc", "ab\U0001f600\u00e9", "\0\1", "a\uffff"])
def test_merges_of_scored_pieces_are_all_pairs_in_the_order_of_scores(letters: str) -> None:
    """Tokens without text have names of their own, which no pieces make."""
    rng = np.random.default_rng(3)
    drawn = (rng.integers(0, len(letters), rng.integers(1, 6)) for _ in range(150))
    names = list(dict.fromkeys("".join(letters[index] for index in each) for each in drawn))
    names[7:7] = [f"\uffff{number}" for number in (7, 8)]
    names += ["\uffff" * (letters[-1] != "\uffff") + "9", "8", "x" * 1000]
    ranks = rng.integers(0, 40, len(names)).astype(float).tolist()  # with equals among them
    vocabulary = {name: number for number, name in enumerate(names)}
    wanted = sorted(
        (ranks[number], vocabulary[name[:cut]], vocabulary[name[cut:]])
        for name, number in vocabulary.items()
        for cut in range(1, len(name))
        if name[:cut] in vocabulary and name[cut:] in vocabulary and name[0] != "\uffff"
    )
    assert len(wanted) > 20
    assert tokens._merges(vocabulary, np.array(ranks)) == [(names[left], names[right]) for _, left, right in wanted]


@pytest.mark.parametrize("names", [[], ["a"], ["\uffff0"], ["a", "b"]])
def test_pieces_that_make_none(names: list[str]) -> None:
    assert tokens._merges({name: number for number, name in enumerate(names)}, np.zeros(len(names))) == []


def test_many_tokens_that_control_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counted:
        def __init__(self, model: Any) -> None:
            self.__dict__["rules"] = package.Tokenizer(model)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.rules, name)

        def add_tokens(self, added: list[Any]) -> int:
            calls.append(len(added))
            return int(self.rules.add_tokens(added))

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.rules, name, value)

    monkeypatch.setattr(tokens, "_package", lambda: SimpleNamespace(**{**vars(package), "Tokenizer": Counted}))
    made = paired()
    made["tokenizer.ggml.tokens"] = [*made["tokenizer.ggml.tokens"], *(f"<|{i}|>" for i in range(500))]
    made["tokenizer.ggml.token_type"] = [*made["tokenizer.ggml.token_type"], *[3, 4] * 250]
    found = tokens.of_gguf(made, "it")
    assert calls == [502]
    first = len(paired()["tokenizer.ggml.tokens"])
    assert found.encode("<|0|><|1|>") == [first, first + 1]
    assert found.decode([first, first + 1]) == "<|1|>"


def test_texts_in_a_file_are_read_together_and_faults_among_them_are_told(tmp_path: Path) -> None:
    gguf_package = pytest.importorskip("gguf")
    from vkpar import WeightsError
    from vkpar.parallel import open_weights

    path = tmp_path / "a.gguf"
    listed = ["", "a", "héllo", "漢" * 50, *(str(number) for number in range(1000))]
    writer = gguf_package.GGUFWriter(str(path), "llama")
    writer.add_token_list(listed)
    writer.add_tensor("x", np.zeros(32, np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    with open_weights(path) as weights:
        assert weights.metadata["tokenizer.ggml.tokens"] == listed
    raw = path.read_bytes()
    path.write_bytes(raw.replace("é".encode(), b"\xc3\xc3"))
    with pytest.raises(WeightsError, match=r"the values of tokenizer\.ggml\.tokens before byte \d+ is no UTF-8"):
        open_weights(path)
    path.write_bytes(raw[: raw.index("漢".encode()) + 9])
    with pytest.raises(WeightsError, match=r"texts of tokenizer\.ggml\.tokens in|ends within"):
        open_weights(path)
