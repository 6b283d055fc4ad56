"""matmul against float64 references with derived bounds, on every kernel that a driver can run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.vulkan.planning import forget
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.ops.tiles import matvec, occupancy

module = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = [pytest.mark.device, pytest.mark.sampled(8)]

Floats = NDArray[np.float64]
KERNELS = ("default", "matmul_small", "matvec", "matmul_tiled")
EPS32, EPS16, EPSB = 2.0**-24, 2.0**-11, 2.0**-8


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[str]:
    """Force a kernel, so that the GPU ones are checked on CPU drivers too."""
    forget(device)  # those of other kernels
    if request.param != "default":
        monkeypatch.setattr(module, "kernel_for", lambda device, m: request.param)
        monkeypatch.setattr(module.choice, "choose", lambda *given, **_: None)
    yield str(request.param)
    forget(device)


def spare_swiftshader(device: vkpar.Device) -> None:
    """Leave SwiftShader out of a sample: it compiles each variant of the kernels of GPUs for seconds."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("lavapipe runs these kernels, and SwiftShader with --full")


def operand(
    device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> tuple[vkpar.Array, Floats]:
    """Return a random matrix on the device and its exact values."""
    values = rng.standard_normal(shape).astype(np.float32)
    array = device.array(values if dtype == "bfloat16" else values.astype(dtype), dtype)
    return array, array.numpy().astype(np.float64)


def check(out: vkpar.Array, a: Floats, b: Floats) -> None:
    """Compare with the bound of a float32 dot product of length K in any order, plus the rounding of the result."""
    got = out.numpy().astype(np.float64)
    want, k = a @ b, a.shape[1]
    bound = (k + 2) * EPS32 * (np.abs(a) @ np.abs(b)) + 1e-37
    rounding = {"float16": EPS16, "bfloat16": EPSB, "float32": 0.0}[out.dtype.name]
    bound = bound * (1 + rounding) + rounding * np.abs(want) + (2.0**-25 if out.dtype == "float16" else 0.0)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers, whose products add up exactly in float32."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def multiply(
    device: vkpar.Device, a: NDArray[Any], b: NDArray[Any], transpose_b: bool = False, **options: Any
) -> vkpar.Array:
    stored = np.ascontiguousarray(b.T) if transpose_b else b
    return vkpar.matmul(device.array(a), device.array(stored), transpose_b=transpose_b, **options)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 31, 7), (8, 68, 132), (2, 130, 515), (1, 24, 2600)])
def test_few_rows(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, m: int, n: int, k: int, transpose_b: bool
) -> None:
    a, b = integers(rng, m, k), integers(rng, k, n)
    np.testing.assert_array_equal(multiply(device, a, b, transpose_b).numpy(), a @ b)


def made_by(device: vkpar.Device) -> set[str]:
    """The kernels that a device has made so far."""
    return {pipeline.name for pipeline in device.logical.pipelines._pipelines.values()}


@pytest.mark.parametrize(
    ("m", "n", "k", "kernel"),
    [
        *((m, n, k, "matmul_wide_rows8") for m, n, k in ((5, 8, 8), (8, 64, 64), (7, 132, 40), (1, 12, 4), (3, 8, 16))),
        *((m, n, k, "matmul_wide_rows16") for m, n, k in ((9, 12, 16), (33, 68, 72), (64, 60, 4), (70, 200, 100))),
        *((1, n, k, "matvec_steps_rows1") for n, k in ((512, 128), (516, 128), (1028, 64), (36, 2048), (4, 16384))),
        *((m, n, k, "matvec_steps_rows4") for m, n, k in ((2, 512, 128), (3, 1028, 64), (4, 2052, 32))),
        *((1, n, k, "matvec_lanes_rows1") for n, k in ((8, 8), (1, 16), (333, 72))),
        *((m, n, k, "matvec_lanes_rows4") for m, n, k in ((2, 9, 24), (3, 65, 40), (4, 16, 104))),
    ],
)
def test_vectors_of_eight_lanes(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, m: int, n: int, k: int, kernel: str
) -> None:
    """Sizes that lavapipe's own kernels take: what lies beside the result stays, and other products are added to it."""
    device = reopen()
    a, b = integers(rng, m, k), integers(rng, k, n)
    beside = device.array(np.full((m + 2, n), 7, np.float32))
    out, turned = beside[1 : m + 1], "lanes" in kernel
    x, y = device.array(a), device.array(b.T.copy() if turned else b)
    for _ in range(2):
        vkpar.matmul(x, y, transpose_b=turned, out=out)
        np.testing.assert_array_equal(out.numpy(), a @ b)
    assert kernel in made_by(device) or not device.info.tests_lanes
    vkpar.matmul(x, y, transpose_b=turned, out=out, accumulate=True)
    np.testing.assert_array_equal(out.numpy(), 2 * (a @ b))
    bias = integers(rng, n)
    made = vkpar.matmul(x, y, transpose_b=turned, bias=device.array(bias), activation="relu", residual=out)
    np.testing.assert_array_equal(made.numpy(), np.maximum(a @ b + bias, 0) + 2 * (a @ b))
    assert (beside[0].numpy() == 7).all()
    assert (beside[m + 1].numpy() == 7).all()


EIGHTS = [
    *((m, n, k, "matmul_eights_along") for m, n, k in ((9, 8, 8), (16, 64, 64), (33, 72, 24), (130, 200, 40))),
    *((m, n, k, "matmul_eights_across") for m, n, k in ((16, 8, 4), (40, 72, 36), (72, 136, 12), (24, 64, 100))),
    *((m, n, k, "matmul_narrow_along") for m, n, k in ((12, 10, 8), (36, 3, 24), (100, 15, 64), (32, 2, 16))),
    *((m, n, k, "matmul_narrow_across") for m, n, k in ((12, 10, 16), (64, 10, 32), (36, 7, 8), (100, 13, 24))),
    *((m, n, k, "matmul_short") for m, n, k in ((9, 8, 3), (33, 64, 10), (40, 72, 16), (12, 136, 1))),
]


@pytest.mark.parametrize(("m", "n", "k", "kernel"), EIGHTS)
def test_whole_eights(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, m: int, n: int, k: int, kernel: str
) -> None:
    """Sizes that lavapipe makes by eights: what lies beside stays, and what follows a product is done."""
    device = reopen()
    a, b, bias = integers(rng, m, k), integers(rng, k, n), integers(rng, n)
    turns_a, turns_b = "across" in kernel, "short" in kernel
    x, y = device.array(a.T.copy() if turns_a else a), device.array(b.T.copy() if turns_b else b)
    turns: dict[str, Any] = {"transpose_a": turns_a, "transpose_b": turns_b}
    beside = device.array(np.full((m + 16, n), 7, np.float32))
    added, more = device.array(bias), device.array(np.full(n + 1, 5, np.float32))
    more[1:] = added
    for first in (8, 1):  # the second one begins where these kernels do not store
        out = beside[first : first + m]
        for _ in range(2):
            vkpar.matmul(x, y, out=out, **turns)
            np.testing.assert_array_equal(out.numpy(), a @ b)
        assert (beside[:first].numpy() == 7).all()
        assert (beside[first + m :].numpy() == 7).all()
        for vector in (added, more[1:]):
            vkpar.matmul(x, y, bias=vector, activation="relu", out=out, **turns)
            np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + bias, 0))
            vkpar.matmul(x, y, bias=vector, residual=out, out=out, **turns)
            np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + bias, 0) + (a @ b + bias))
        vkpar.matmul(x, y, accumulate=True, out=out, **turns)
        np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + bias, 0) + (a @ b + bias) + a @ b)
        np.testing.assert_array_equal(vkpar.matmul(x, y, activation="relu", **turns).numpy(), np.maximum(a @ b, 0))
        beside.fill(7)
    assert {f"{kernel}_plain", f"{kernel}_biased"} <= made_by(device) or not device.info.tests_lanes


@pytest.mark.parametrize(("m", "n", "k", "kernel"), EIGHTS[::2])
def test_whole_eights_of_numbers_that_are_none(
    device: vkpar.Device, rng: np.random.Generator, m: int, n: int, k: int, kernel: str
) -> None:
    """Batches by one matrix and by several: NaN and infinities stay in their rows and columns; relu keeps NaN."""
    a, b = integers(rng, 3, m, k), integers(rng, 3, k, n)
    a[1, 0, k // 2], a[2, m - 1, k - 1], b[2, k - 1, n - 1], b[0, 0, 0] = np.nan, np.inf, np.inf, -np.inf
    turns_a, turns_b = "across" in kernel, "short" in kernel
    x = device.array(a.swapaxes(1, 2).copy() if turns_a else a)
    for second in (b, b[2:]):
        with np.errstate(invalid="ignore"):
            want = np.stack([left @ right for left, right in zip(a, np.broadcast_to(second, b.shape), strict=True)])
        y = device.array(second.swapaxes(1, 2).copy() if turns_b else second)
        got = vkpar.matmul(x, y, transpose_a=turns_a, transpose_b=turns_b)
        np.testing.assert_array_equal(got.numpy(), want)
        got = vkpar.matmul(x, y, transpose_a=turns_a, transpose_b=turns_b, activation="relu")
        np.testing.assert_array_equal(got.numpy(), np.maximum(want, 0))


@pytest.mark.parametrize(("m", "n", "k", "kernel"), EIGHTS[1::2])
def test_whole_eights_err_no_more(
    device: vkpar.Device, rng: np.random.Generator, m: int, n: int, k: int, kernel: str
) -> None:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    x = device.array(a.T.copy()).T if "across" in kernel else device.array(a)
    y = device.array(b.T.copy()).T if "short" in kernel else device.array(b)
    check(vkpar.matmul(x, y), a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 516, 128), (4, 260, 256), (1, 9, 24), (6, 20, 12), (17, 64, 32)])
def test_batches_of_vectors_of_eight_lanes(
    device: vkpar.Device, rng: np.random.Generator, m: int, n: int, k: int
) -> None:
    """Products by one matrix and by several, and what is no number stays where it is."""
    a, b = integers(rng, 3, m, k), integers(rng, 3, k, n)
    a[1, 0, 5], b[2, k - 1, n - 1], b[0, 0, 0] = np.nan, np.inf, -np.inf
    for second in (b, b[2:]):
        with np.errstate(invalid="ignore"):
            want = a @ second
        got = vkpar.matmul(device.array(a), device.array(second))
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("types", ["float16 float16", "float32 float16", "float16 float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 20, 2064), (1, 41, 4104), (1, 19, 1031), (8, 24, 520), (3, 13, 700)])
def test_sums_of_subgroups(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, types: str, m: int, n: int, k: int
) -> None:
    """Whatever a subgroup's size: GPUs of some vendors alone use these kernels."""
    spare_swiftshader(device)
    if "arithmetic" not in device.info.features.subgroup_operations:
        pytest.skip("subgroups of this device do not add up")
    forget(device)
    monkeypatch.setattr(module, "kernel_for", lambda device, m: "matvec")
    monkeypatch.setattr(matvec, "adds_up", lambda info: True)
    monkeypatch.setattr(matvec, "_ENOUGH_COLUMNS", 20)
    a_type, b_type = types.split()
    a, b = integers(rng, m, k).astype(a_type), integers(rng, k, n).astype(b_type)
    np.testing.assert_array_equal(multiply(device, a, b, True, dtype="float32").numpy(), a.astype(np.float32) @ b)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_few_rows_of_halves_have_a_plan(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, transpose_b: bool
) -> None:
    """Nothing is converted before the product, on CPU drivers neither: the next call finds all of it."""
    fresh = reopen()
    a, b = integers(rng, 3, 24), integers(rng, 24, 16).astype(np.float16)
    x, w = fresh.array(a), fresh.array(np.ascontiguousarray(b.T) if transpose_b else b)
    out, before = fresh.empty((3, 16)), len(fresh.plans.known)
    for _ in range(2):
        vkpar.matmul(x, w, out=out, transpose_b=transpose_b)
        np.testing.assert_array_equal(out.numpy(), a @ b)
        assert len(fresh.plans.known) == before + 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4100, 70), (1, 17000, 9), (2, 17000, 9), (1, 136, 1500), (7, 136, 300)])
def test_strips_of_any_width(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, many: bool
) -> None:
    """Groups of 256 invocations and, where the device has them, of 1,024; two to eight of them side by side."""
    spare_swiftshader(device)
    forget(device)
    monkeypatch.setattr(module, "kernel_for", lambda device, m: "matvec")
    if not many:
        monkeypatch.setattr(matvec, "_MANY", 1 << 30)
    a, b = integers(rng, m, k).astype(np.float16), integers(rng, k, n).astype(np.float16)
    np.testing.assert_array_equal(multiply(device, a, b, dtype="float32").numpy(), a.astype(np.float32) @ b)


@pytest.mark.parametrize("kernel", ["default", "matmul_small", "matmul_tiled"], indirect=True)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(65, 132, 40), (17, 31, 33)])
def test_many_rows(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, m: int, n: int, k: int, transpose_b: bool
) -> None:
    a, b = integers(rng, m, k), integers(rng, k, n)
    np.testing.assert_array_equal(multiply(device, a, b, transpose_b).numpy(), a @ b)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_big_tiles(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, transpose_b: bool
) -> None:
    forget(device)
    monkeypatch.setattr(module, "kernel_for", lambda device, m: "matmul_tiled")
    monkeypatch.setattr(module.choice, "choose", lambda *given, **_: None)
    monkeypatch.setattr(module.occupancy, "tiled", lambda m, n, k, *_: occupancy.Cut((2, 2), 1, k))
    a, b = integers(rng, 140, 36), integers(rng, 36, 260)
    np.testing.assert_array_equal(multiply(device, a, b, transpose_b).numpy(), a @ b)


@pytest.mark.parametrize(("m", "n", "k"), [(4, 12, 64), (3, 9, 37)])
@pytest.mark.parametrize("types", ["float16 float16", "float16 float32", "float32 bfloat16", "bfloat16 bfloat16"])
def test_types(device: vkpar.Device, rng: np.random.Generator, kernel: str, types: str, m: int, n: int, k: int) -> None:
    a_type, b_type = types.split()
    transpose_b = n % 2 == 1
    a, exact_a = operand(device, rng, (m, k), a_type)
    b, exact_b = operand(device, rng, (n, k) if transpose_b else (k, n), b_type)
    out = vkpar.matmul(a, b, transpose_b=transpose_b)
    assert out.dtype == (a_type if a_type == b_type else "float32")
    check(out, exact_a, exact_b.T if transpose_b else exact_b)


@given(data=st.data())
def test_any_product(device: vkpar.Device, data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 70), label=name) for name in "mnk")
    a_type, b_type, dtype = (data.draw(st.sampled_from(["float32", "float16", "bfloat16"])) for _ in range(3))
    transpose_b = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, exact_a = operand(device, rng, (m, k), a_type)
    b, exact_b = operand(device, rng, (n, k) if transpose_b else (k, n), b_type)
    out = vkpar.matmul(a, b, transpose_b=transpose_b, dtype=dtype)
    assert out.dtype == dtype
    check(out, exact_a, exact_b.T if transpose_b else exact_b)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_long_k(device: vkpar.Device, rng: np.random.Generator, dtype: str, transpose_b: bool) -> None:
    a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((5, 70_001), (70_001, 6)))
    out = multiply(device, a, b, transpose_b, dtype="float32")
    np.testing.assert_array_equal(out.numpy(), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize(("m", "n"), [(1, 300), (300, 1), (1, 1)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_vectors(device: vkpar.Device, rng: np.random.Generator, m: int, n: int, transpose_b: bool) -> None:
    a, b = integers(rng, m, 77).astype(np.float16), integers(rng, 77, n).astype(np.float16)
    np.testing.assert_array_equal(multiply(device, a, b, transpose_b).numpy(), a @ b)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_split_over_rows_columns_and_k(
    reopen: Callable[..., vkpar.Device],
    rng: np.random.Generator,
    kernel: str,
    monkeypatch: pytest.MonkeyPatch,
    transpose_b: bool,
) -> None:
    device = reopen(max_binding=4352)
    monkeypatch.setattr(module, "MAX_TURNS", 24)
    m, n, k = 4 if kernel == "matvec" else 40, 130, 50
    a, b = integers(rng, m, k), integers(rng, k, n)
    np.testing.assert_array_equal(multiply(device, a, b, transpose_b).numpy(), a @ b)
    halves = multiply(device, a.astype(np.float16), b.astype(np.float16), transpose_b)
    np.testing.assert_array_equal(halves.numpy(), a @ b)


def test_many_work_groups_fold(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkpar.ops.call.call.fold_groups", lambda device, count: (2, -(-count // 2), 1))
    a, b = integers(rng, 4, 20), integers(rng, 20, 330)
    np.testing.assert_array_equal(multiply(device, a, b).numpy(), a @ b)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 9, 19), (3, 8, 20)])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_neighbours_are_neither_read_nor_written(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, dtype: str, transpose_b: bool, m: int, n: int, k: int
) -> None:
    """Views anywhere in a buffer of NaN: padding of tiles must not leak into the product, nor tails out of it."""

    def embedded(values: NDArray[Any]) -> vkpar.Array:
        flat = np.full(values.size + 5, np.nan, dtype)
        flat[3 : 3 + values.size] = values.reshape(-1)
        return device.array(flat)[3 : 3 + values.size].reshape(values.shape)

    a, b = integers(rng, m, k), integers(rng, k, n)
    around = device.array(np.full(m * n + 6, 7, dtype))
    out = around[1 : 1 + m * n].reshape(m, n)
    assert vkpar.matmul(embedded(a), embedded(b.T if transpose_b else b), out=out, transpose_b=transpose_b) is out
    np.testing.assert_array_equal(out.numpy(), a @ b)
    np.testing.assert_array_equal(np.delete(around.numpy(), np.s_[1 : 1 + m * n]), 7)


def test_nan_and_infinity_stay_in_their_row(device: vkpar.Device, rng: np.random.Generator, kernel: str) -> None:
    a, b = np.abs(integers(rng, 3, 21)) + 1, np.abs(integers(rng, 21, 5)) + 1
    a[1, 20], a[2, 20] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(multiply(device, a, b).numpy(), a @ b)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_zero_sizes(device: vkpar.Device, m: int, n: int, k: int, transpose_b: bool) -> None:
    a, b = device.empty((m, k), "float16"), device.empty((n, k) if transpose_b else (k, n))
    np.testing.assert_array_equal(vkpar.matmul(a, b, transpose_b=transpose_b).numpy(), np.zeros((m, n), np.float32))
    out = device.array(np.ones((m, n), np.float32))
    assert vkpar.matmul(a, b, out=out, transpose_b=transpose_b) is out
    np.testing.assert_array_equal(out.numpy(), np.zeros((m, n), np.float32))


def test_program_order(device: vkpar.Device, rng: np.random.Generator) -> None:
    a, b = integers(rng, 8, 8), integers(rng, 8, 8)
    x, y, bias = device.array(a), device.array(b), device.array(a[0])
    for _ in range(3):
        out = vkpar.cast(vkpar.add(vkpar.matmul(x, y), bias), "float16")
    np.testing.assert_array_equal(out.numpy(), a @ b + a[0])


Call = Callable[[vkpar.Device, vkpar.Array, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a, b: vkpar.matmul(a, a), vkpar.InvalidUsageError, r"\(3, 4\) does not fit b of shape \(3, 4\)"),
        (lambda d, a, b: vkpar.matmul(a, b, transpose_b=True), vkpar.InvalidUsageError, r"\(4, 5\) transposed"),
        (lambda d, a, b: vkpar.matmul(a[:, 0], b), vkpar.InvalidUsageError, r"\(3,\) does not fit b of shape \(4, 5\)"),
        (lambda d, a, b: vkpar.matmul(a, b[0]), vkpar.InvalidUsageError, r"\(3, 4\) does not fit b of shape \(5,\)"),
        (lambda d, a, b: vkpar.matmul(a[0], d.zeros(())), vkpar.InvalidUsageError, r"not shapes \(4,\) and \(\)"),
        (
            lambda d, a, b: vkpar.matmul(a[None, None], b),
            vkpar.InvalidUsageError,
            "takes vectors, matrices, or batches",
        ),
        (lambda d, a, b: vkpar.matmul(a[0], b, transpose_a=True), vkpar.InvalidUsageError, "has no transpose"),
        (
            lambda d, a, b: vkpar.matmul(a, b.numpy()),
            vkpar.InvalidUsageError,
            "b has to be a vkpar.Array, not ndarray; write",
        ),
        (
            lambda d, a, b: vkpar.matmul(a, b, out=d.empty((3, 4))),
            vkpar.InvalidUsageError,
            r"result is \(3, 5\) float32",
        ),
        (lambda d, a, b: vkpar.matmul(a, b, out=d.empty((3, 5), "float16")), vkpar.InvalidUsageError, "float16"),
        (lambda d, a, b: vkpar.matmul(a, b, dtype="float16", out=d.empty((3, 5))), vkpar.InvalidUsageError, "float32"),
        (lambda d, a, b: vkpar.matmul(d.empty((3, 4), "float64"), b), vkpar.UnsupportedError, "float64"),
        (lambda d, a, b: vkpar.matmul(d.empty((3, 4), "int32"), b), vkpar.UnsupportedError, "int32"),
        (lambda d, a, b: vkpar.matmul(a, b, dtype="float64"), vkpar.UnsupportedError, "float64"),
        (lambda d, a, b: vkpar.matmul(a, b, dtype="nonsense"), vkpar.InvalidUsageError, "nonsense"),
        (lambda d, a, b: vkpar.matmul(b[:3], b[:3], transpose_b=True, out=b[1:3]), vkpar.InvalidUsageError, "out"),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    a, b = device.zeros((3, 4)), device.zeros((4, 5))
    with pytest.raises(error, match=message):
        call(device, a, b)


def test_an_operand_is_not_an_output(device: vkpar.Device) -> None:
    square = device.zeros((4, 4))
    with pytest.raises(vkpar.InvalidUsageError, match="share memory"):
        vkpar.matmul(square, square, out=square)


def test_arrays_of_another_or_closed_device(device: vkpar.Device) -> None:
    a = device.zeros((3, 3))
    (other,) = vkpar.open_devices(str(device.info.index))
    b = other.zeros((3, 3))
    with pytest.raises(vkpar.InvalidUsageError, match="different devices"):
        vkpar.matmul(a, b)
    with pytest.raises(vkpar.InvalidUsageError, match="different devices"):
        vkpar.matmul(a, a, out=b)
    other.close()
    with pytest.raises(vkpar.InvalidUsageError):
        vkpar.matmul(b, b)
