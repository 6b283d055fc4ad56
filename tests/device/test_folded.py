"""Products with a norm of the rows before them and a gate after them, by one kernel and by several, against float64."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from gguf import GGMLQuantizationType, quants
from helpers.ops.elements import ROUNDING, check, normal, values_of
from helpers.ops.quantizing import NAMES, blocks_of, exact, scaled_by
from helpers.vulkan.planning import forget
from numpy.typing import NDArray

import vkpar
from vkpar.ops.call.makes import Make
from vkpar.ops.matmul import folded
from vkpar.ops.quantized.weights import KINDS
from vkpar.testing import U, gamma

products = importlib.import_module("vkpar.ops.matmul.dense")
quantized_products = importlib.import_module("vkpar.ops.matmul.few")
pytestmark = [pytest.mark.device, pytest.mark.sampled(6)]

F64 = NDArray[np.float64]
EPS = 1e-5


def force_few(put: Any) -> None:
    """Have products of few rows run by the kernels of GPUs."""
    put(products, "kernel_for", lambda device, m: "matvec" if m <= 8 else "matmul_small")
    put(quantized_products, "rows_at_once", lambda device: 8)
    put(quantized_products, "by_lanes", lambda device: False)
    put(folded, "_on_cores", lambda request: False)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gate_is_apart_where_matrix_cores_make_the_product(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """A norm stays within; and one row is no work for matrix cores, whatever they take."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each variant of these kernels for seconds; lavapipe runs them")
    force_few(monkeypatch.setattr)
    monkeypatch.setattr(folded, "_on_cores", lambda request: request.a.shape[0] > 1)
    forget(device)
    x, w, g = normal(rng, (rows, 64), "float16"), normal(rng, (48, 64), "float16", 0.1), normal(rng, 64, "float32")
    a, b, exact = device.array(x), device.array(w), w.astype(np.float64)
    apart, apart_operations = launched(device, lambda: vkpar.matmul(a, b, transpose_b=True, activation="swiglu"))
    size = np.abs(x).astype(np.float64) @ np.abs(exact).T
    check(apart, *gated(x.astype(np.float64) @ exact.T, gamma(66) * size))
    before = vkpar.Normed(a, device.array(g), EPS)
    _, operations = launched(device, lambda: vkpar.matmul(before, b, transpose_b=True, activation="swiglu"))
    assert (apart_operations, operations) == (1 if rows == 1 else 2, 1)
    forget(device)


@pytest.fixture(params=["default", "few"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[str]:
    """The kernels of the device, and those of GPUs for few rows on CPU drivers, too."""
    if request.param == "few":
        if "SwiftShader" in device.name and not FULL:
            pytest.skip("SwiftShader compiles each variant of these kernels for seconds; lavapipe runs them")
        force_few(monkeypatch.setattr)
    forget(device)
    yield str(request.param)
    forget(device)


def normed(x: NDArray[Any], g: NDArray[Any], eps: float = EPS) -> F64:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * g


def norm_error(k: int, dtype: str) -> float:
    """How far a product may be off, in terms of the sum of its terms' magnitudes.

    Of the sum: a term is multiplied twice and added up to K times. Of the factor, an inverse square root: half of what
    the squares are off, which are as many terms without signs, and 10 U for what follows them. A norm that is stored is
    rounded twice, and to its type.
    """
    return gamma(k + 2) + 0.55 * gamma(k + 6) + 12 * U + ROUNDING[dtype][0] * 1.01


def gated(p: F64, off: F64) -> tuple[F64, F64]:
    """Return what a gate makes of a product that is off by so much; the derivative of silu is 1.1 at most."""
    half = p.shape[-1] // 2
    (g, u), (dg, du) = np.split(p, [half], axis=-1), np.split(off, [half], axis=-1)
    with np.errstate(over="ignore"):
        s = g / (1 + np.exp(-g))
    most = (np.abs(s) + 1.1 * dg) * (np.abs(u) + du)
    return s * u, 1.1 * dg * (np.abs(u) + du) + np.abs(s) * du + most * U * (12 + 3 * (np.abs(g) + dg))


def launched(device: vkpar.Device, call: Any) -> tuple[vkpar.Array, int]:
    """Return what a captured call makes, and how many operations it is."""
    with vkpar.capture(device) as graph:
        made = call()
    graph.launch().wait()
    copy = made.copy()
    operations = graph.stats().operations
    graph.close()
    return copy, operations


TYPES = ["float32 float16", "float32 float32", "float16 float16", "bfloat16 float32", "float32 bfloat16"]


@pytest.mark.sampled(97)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 24, 2064), (1, 7, 33), (3, 130, 520), (8, 12, 40), (12, 10, 64)])
def test_norm(device: vkpar.Device, rng: np.random.Generator, kernel: str, types: str, m: int, n: int, k: int) -> None:
    x_type, w_type = types.split()
    x, w, g = normal(rng, (m, k), x_type), normal(rng, (n, k), w_type, 0.1), normal(rng, k, w_type)
    bias, residual = normal(rng, n, "float32"), normal(rng, (m, n), "float32")
    a = vkpar.Normed(device.array(x, x_type), device.array(g, w_type), EPS)
    b, v, r = device.array(w, w_type), device.array(bias), device.array(residual)
    rows = normed(x, g)
    size = np.abs(rows) @ np.abs(w.astype(np.float64)).T
    plain, off = rows @ w.astype(np.float64).T, norm_error(k, x_type) * size
    off += ROUNDING[x_type][1] * np.abs(w).sum(axis=1)
    for _ in range(2):  # the second time by the recipe
        found = vkpar.matmul(a, b, transpose_b=True, dtype="float32")
        check(found, plain, off)
    same, operations = launched(device, lambda: vkpar.matmul(a, b, transpose_b=True, dtype="float32"))
    np.testing.assert_array_equal(same.numpy(), found.numpy())
    if kernel == "few" and m <= 8:
        assert operations == 1
    made = vkpar.matmul(a, b, transpose_b=True, dtype="float32", bias=v, activation="relu", residual=r)
    added = plain + bias
    check(made, np.maximum(added, 0) + residual, off + U * (np.abs(added) + off))
    again = vkpar.matmul(a, b, transpose_b=True, out=r, accumulate=True)
    assert again is r
    check(r, plain + residual, off + U * np.abs(plain))
    turned = vkpar.matmul(a, device.array(np.ascontiguousarray(w.T), w_type), dtype="float32")
    check(turned, plain, off)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 24, 2064), (1, 6, 33), (3, 130, 520), (8, 12, 40), (12, 10, 64)])
def test_gate(device: vkpar.Device, rng: np.random.Generator, kernel: str, types: str, m: int, n: int, k: int) -> None:
    x_type, w_type = types.split()
    x, w, g = normal(rng, (m, k), x_type), normal(rng, (n, k), w_type, 0.1), normal(rng, k, w_type)
    a, b, weight = device.array(x, x_type), device.array(w, w_type), device.array(g, w_type)
    exact, bias = w.astype(np.float64), normal(rng, n, "float32")
    p, size = x.astype(np.float64) @ exact.T, np.abs(x).astype(np.float64) @ np.abs(exact).T
    rows = normed(x, g)
    q, q_size = rows @ exact.T, np.abs(rows) @ np.abs(exact).T
    q_off = norm_error(k, x_type) * q_size + ROUNDING[x_type][1] * np.abs(w).sum(axis=1)
    how: dict[str, Any] = {"transpose_b": True, "activation": "swiglu"}
    for dtype in ("float32", "float16"):
        cases = [
            (partial(vkpar.matmul, a, b, dtype=dtype, **how), gated(p, gamma(k + 2) * size)),
            (partial(vkpar.matmul, vkpar.Normed(a, weight, EPS), b, dtype=dtype, **how), gated(q, q_off)),
        ]
        for call, expected in cases:
            for _ in range(2):
                found = call()
                assert (found.shape, str(found.dtype)) == ((m, n // 2), dtype)
                check(found, *expected)
            same, operations = launched(device, call)
            np.testing.assert_array_equal(same.numpy(), found.numpy())
            if kernel == "few" and m <= 8 and (dtype == "float32" or n % 4 == 0):
                assert operations == 1
    added = p + bias
    made = vkpar.matmul(a, b, dtype="float32", bias=device.array(bias), **how)
    check(made, *gated(added, gamma(k + 2) * size + U * np.abs(added)))


@pytest.mark.sampled(53)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("m", [1, 5, 8, 12])
def test_quantised_weights(device: vkpar.Device, rng: np.random.Generator, kernel: str, kind: str, m: int) -> None:
    found = KINDS[kind]
    n, k = 46, found.block * (34 if found.block < 256 else 5)
    blocks = blocks_of(rng, kind, n, k)
    scales = rng.standard_normal((n, k // found.block, found.halves)) * (1e-4 if found.block == 256 else 1e-2)
    scales[..., 1:] = 0  # weights as large as what they are made of
    blocks = scaled_by(blocks, kind, scales)
    weights = exact(blocks, kind).astype(np.float64)
    q = vkpar.quantized(device, blocks, (n, k), kind)
    x, g, bias = normal(rng, (m, k), "float32"), normal(rng, k, "float32"), normal(rng, n, "float32")
    a = vkpar.Normed(device.array(x), device.array(g), EPS)
    rows = normed(x, g)
    plain, size = rows @ weights.T, np.abs(rows) @ np.abs(weights).T
    off = (norm_error(k, "float32") + gamma(40)) * size
    for _ in range(2):
        check(vkpar.matmul(a, q, transpose_b=True, bias=device.array(bias)), plain + bias, off + U * np.abs(plain))
        check(vkpar.matmul(a, q, transpose_b=True, activation="swiglu"), *gated(plain, off))
    p, size = x.astype(np.float64) @ weights.T, np.abs(x).astype(np.float64) @ np.abs(weights).T
    made, operations = launched(device, lambda: vkpar.matmul(a.x, q, transpose_b=True, activation="swiglu"))
    check(made, *gated(p, gamma(k + 40) * size))
    if kernel == "few" and m <= 8:
        assert operations == 1


@pytest.mark.parametrize("m", [4, 5])
def test_norms_of_many_rows_come_first_where_invocations_have_few_registers(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, m: int
) -> None:
    """Of Intel's, which spill up to 61 of both in one kernel by quantised weights (docs/notes/compilers.md)."""
    force_few(monkeypatch.setattr)
    monkeypatch.setattr(folded, "make_of", lambda info: Make(rows=4))
    forget(device)
    n, k = 8, 64
    blocks = blocks_of(rng, "q8_0", n, k)
    x, g = normal(rng, (m, k), "float32"), normal(rng, k, "float32")
    rows, weights = normed(x, g), exact(blocks, "q8_0").astype(np.float64)
    a, q = vkpar.Normed(device.array(x), device.array(g), EPS), vkpar.quantized(device, blocks, (n, k), "q8_0")
    made, operations = launched(device, lambda: vkpar.matmul(a, q, transpose_b=True))
    forget(device)
    check(made, rows @ weights.T, (norm_error(k, "float32") + gamma(40)) * (np.abs(rows) @ np.abs(weights).T))
    assert operations == 1 + (m > 4)


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("kind", [None, "q8_0"])
def test_sums_of_subgroups(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str | None, m: int
) -> None:
    """Whatever a subgroup's size: GPUs of some vendors alone use these kernels."""
    if "arithmetic" not in device.info.features.subgroup_operations or ("SwiftShader" in device.name and not FULL):
        pytest.skip("subgroups of this device do not add up, or SwiftShader compiles these kernels for seconds")
    force_few(monkeypatch.setattr)
    monkeypatch.setattr(products.matvec, "adds_up", lambda info: True)
    forget(device)
    values, g, x = normal(rng, (22, 544), "float32", 0.1), normal(rng, 544, "float32"), normal(rng, (m, 544), "float32")
    b: Any = device.array(values)
    if kind is not None:
        blocks = quants.quantize(values, GGMLQuantizationType.Q8_0)
        values, b = (
            quants.dequantize(blocks, GGMLQuantizationType.Q8_0),
            vkpar.quantized(device, blocks, (22, 544), kind),
        )
    rows, weights = normed(x, g), values.astype(np.float64)
    p, off = rows @ weights.T, (norm_error(544, "float32") + gamma(40)) * (np.abs(rows) @ np.abs(weights).T)
    a = vkpar.Normed(device.array(x), device.array(g), EPS)
    check(vkpar.matmul(a, b, transpose_b=True), p, off)
    check(vkpar.matmul(a, b, transpose_b=True, activation="swiglu"), *gated(p, off))
    forget(device)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_at_odd_offsets(device: vkpar.Device, rng: np.random.Generator, kernel: str, dtype: str) -> None:
    """Nothing around the result changes, and values are those of arrays of their own."""
    x, w, g = normal(rng, (2, 40), dtype), normal(rng, (12, 40), dtype), normal(rng, 40, dtype)

    def at_one(values: NDArray[Any]) -> vkpar.Array:
        whole = device.zeros(values.size + 3, dtype)
        view = whole[1 : 1 + values.size].reshape(values.shape)
        view.write(values)
        return view

    around = device.array(np.full(14, 7), dtype)
    out = around[1:13].reshape(2, 6)
    how: dict[str, Any] = {"transpose_b": True, "activation": "swiglu"}
    assert vkpar.matmul(vkpar.Normed(at_one(x), at_one(g), EPS), at_one(w), out=out, **how) is out
    rows, exact = normed(x, g), w.astype(np.float64)
    off = norm_error(40, dtype) * (np.abs(rows) @ np.abs(exact).T) + ROUNDING[dtype][1] * np.abs(w).sum(axis=1)
    check(out, *gated(rows @ exact.T, off))
    np.testing.assert_array_equal(values_of(around)[[0, 13]], [7, 7])
    strided = device.array(np.repeat(x, 2, axis=1), dtype)[:, ::2]
    check(vkpar.matmul(vkpar.Normed(strided, device.array(g, dtype), EPS), device.array(w, dtype), **how),
          *gated(rows @ exact.T, off))  # fmt: skip
    wide = device.array(np.stack([x, x]), dtype)
    batch = vkpar.matmul(vkpar.Normed(wide, device.array(g, dtype), EPS), device.array(w, dtype), **how)
    check(batch, *(np.stack([part, part]) for part in gated(rows @ exact.T, off)))


def test_biases_and_weights_with_steps(device: vkpar.Device, rng: np.random.Generator, kernel: str) -> None:
    x, w = normal(rng, (2, 40), "float32"), normal(rng, (12, 40), "float32")
    bias, g = normal(rng, 24, "float32"), normal(rng, 80, "float32")
    a, b, v, weight = device.array(x), device.array(w), device.array(bias), device.array(g)
    exact = w.astype(np.float64)
    for bias_step, g_step in ((2, 1), (1, 2), (2, 2)):
        rows, added = normed(x, g[: 40 * g_step : g_step]), bias[: 12 * bias_step : bias_step]
        off = norm_error(40, "float32") * (np.abs(rows) @ np.abs(exact).T)
        plain = rows @ exact.T + added
        first = vkpar.Normed(a, weight[: 40 * g_step : g_step], EPS)
        for _ in range(2):
            made = vkpar.matmul(first, b, transpose_b=True, bias=v[: 12 * bias_step : bias_step])
            check(made, plain, off + U * (np.abs(plain) + off))


def test_special_values(device: vkpar.Device, kernel: str) -> None:
    """NaN fills its row alone; squares that overflow leave zeros; nothing is divided by zero but without an epsilon.

    One kernel divides at last: where the sums of products overflow, too, it makes NaN.
    """
    x = np.ones((6, 40), np.float32)
    x[0, 3], x[1, 5], x[2], x[3], x[5] = np.nan, np.inf, 1e25, 0, 1e37
    w = device.array(np.ones((6, 40), np.float32))
    made = vkpar.matmul(vkpar.Normed(device.array(x), device.array(np.ones(40, np.float32))), w, transpose_b=True)
    found = made.numpy()
    assert np.isnan(found[0]).all()
    assert np.isnan(found[1]).all()
    assert (found[2:4] == 0).all()
    assert (np.abs(found[4] - 40) < 1e-3).all()
    folds = importlib.import_module("vkpar.ops.matmul.folded").folds(device, len(x))
    assert folds == (kernel == "few" or not device.info.is_cpu)
    assert np.isnan(found[5]).all() if folds else (found[5] == 0).all()
    none = vkpar.Normed(device.array(x[3:4]), device.array(np.ones(40, np.float32)), 0.0)
    assert np.isnan(vkpar.matmul(none, w, transpose_b=True).numpy()).all()


def test_rows_and_arrays(device: vkpar.Device, rng: np.random.Generator) -> None:
    x, g = normal(rng, (4, 8), "float32"), normal(rng, 8, "float32")
    whole = vkpar.Normed(device.array(x), device.array(g), EPS)
    assert whole.shape == (4, 8)
    np.testing.assert_array_equal(whole[-1:].array().numpy(), whole.array().numpy()[-1:])
    np.testing.assert_array_equal(whole.array().numpy(), vkpar.rms_norm(whole.x, whole.weight, EPS).numpy())


def test_sizes_without_elements(device: vkpar.Device, kernel: str) -> None:
    for m, n, k in ((0, 4, 8), (2, 0, 8), (2, 4, 0)):
        a = vkpar.Normed(device.zeros((m, k)), device.zeros(k))
        made = vkpar.matmul(a, device.zeros((n, k)), transpose_b=True, activation="swiglu")
        assert made.shape == (m, n // 2)
        assert not made.size or (made.numpy() == 0).all()
    for first, second, shape in (
        ((2, 8), (1, 6, 8), (1, 2, 6)),
        ((0, 2, 8), (6, 8), (0, 2, 6)),
        ((1, 2, 8), (0, 6, 8), (0, 2, 6)),
        ((0, 2, 8), (1, 6, 8), (0, 2, 6)),
    ):
        a, b = device.zeros(first), device.zeros(second)
        for activation, columns in ((None, 6), ("swiglu", 3)):
            made = vkpar.matmul(vkpar.Normed(a, device.zeros(8)), b, transpose_b=True, activation=activation)
            assert made.shape == (*shape[:-1], columns)
            assert not made.numpy().any()
        assert vkpar.matmul(a, b, transpose_b=True).shape == shape


def test_what_is_refused(device: vkpar.Device) -> None:
    a, b, g = device.zeros((2, 8)), device.zeros((6, 8)), device.zeros(8)
    normed_a = vkpar.Normed(a, g)
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("norm has shape", vkpar.Normed(a, device.zeros(6)), {}),
        ("weight of a norm has to be a vkpar.Array", vkpar.Normed(a, None), {}),  # type: ignore[arg-type]
        ("a has to be a vkpar.Array", vkpar.Normed(None, g), {}),  # type: ignore[arg-type]
        ("eps is a number", vkpar.Normed(a, g, 1e300), {}),
        ("go(es)? with matrices", vkpar.Normed(g, g), {}),
        ("no residual", a, {"activation": "swiglu", "residual": device.zeros((2, 3))}),
        ("even number", a[:, :8], {"activation": "swiglu", "b": device.zeros((5, 8))}),
        ("does not fit", a, {"activation": "swiglu", "b": device.zeros((6, 7))}),
        ("out is", a, {"activation": "swiglu", "out": device.zeros((2, 6))}),
        ("activation is one of", normed_a, {"activation": "swish"}),
        ("accumulate adds", normed_a, {"accumulate": True}),
        ("leave transpose_a out", normed_a, {"transpose_a": True}),
        ("bias has shape", a, {"activation": "swiglu", "bias": device.zeros(3)}),
    ]
    for match, first, options in cases:
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            vkpar.matmul(first, options.pop("b", b), transpose_b=True, **options)
    with pytest.raises(vkpar.InvalidUsageError, match="share memory"):
        vkpar.matmul(vkpar.Normed(a, g), b, transpose_b=True, out=a[:, :6])
    with pytest.raises(vkpar.UnsupportedError, match="float64"):
        vkpar.matmul(vkpar.Normed(a, device.zeros(8, "float64")), b, transpose_b=True)
