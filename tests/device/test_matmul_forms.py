"""Products in every form: transposed, in batches, added to, with what follows fused, split along K; on every kernel."""

from __future__ import annotations

import importlib
import math
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
from vkpar.doctor.functions import UNARY
from vkpar.ops.tiles import occupancy

products = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = [
    pytest.mark.device,
    pytest.mark.sampled(8),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp"),
]

Floats = NDArray[np.float64]
KERNELS = ("default", "matvec", "matmul_tiled", "matvec split", "matmul_tiled split")
DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
U = 2.0**-23  # Vulkan's rounding: one of the two neighbours
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0}


def force(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Force a kernel, so that those of GPUs are checked on CPU drivers too, and a split into parts of 16 steps of K."""
    kernel, _, split = name.partition(" ")
    if kernel == "default":
        return
    monkeypatch.setattr(
        products, "kernel_for", lambda device, m: kernel if kernel != "matvec" or m <= 8 else "matmul_tiled"
    )

    monkeypatch.setattr(products.choice, "choose", lambda *given, **_: None)

    def cut(k: int, most: int) -> occupancy.Cut:
        parts = -(-k // 16) if split and k > 16 else 1
        return occupancy.Cut((1, 2), parts, 16) if 1 < parts <= most else occupancy.Cut((2, 1), 1, k)

    monkeypatch.setattr(products.occupancy, "tiled", lambda m, n, k, batch, units, most, _: cut(k, most))
    monkeypatch.setattr(products.occupancy, "reading", lambda g, nb, m, n, k, batch, units, most, **_: cut(k, most))


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[str]:
    if "SwiftShader" in device.name and request.param != "default" and not FULL:
        pytest.skip("SwiftShader compiles each variant of these kernels for seconds; lavapipe runs them")
    forget(device)  # those of other kernels
    force(monkeypatch, request.param)
    yield str(request.param)
    forget(device)


def exact(array: vkpar.Array) -> Floats:
    """Return the values that an array holds."""
    return array.numpy().astype(np.float64)


def integers(rng: np.random.Generator, *shape: int, most: int = 3) -> NDArray[Any]:
    """Small whole numbers, whose products add up exactly."""
    return rng.integers(-most, most + 1, shape).astype(np.float32)


def swapped(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


# --- forms, by whole numbers ---

SHAPES = [((5,), (33,), (7,), (), ()), ((3,), (130,), (37,), (4,), ()), ((70,), (9,), (40,), (), (3,)),
          ((2,), (20,), (36,), (5,), (5,)), ((6,), (1,), (50,), (3,), (3,)), ((1,), (1,), (90,), (2,), ()),
          ((4,), (8,), (64,), (1,), (3,)), ((17,), (12,), (20,), (3,), (1,))]  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k", "a_batch", "b_batch"), SHAPES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposed_and_in_batches(
    device: vkpar.Device,
    rng: np.random.Generator,
    kernel: str,
    m: tuple[int],
    n: tuple[int],
    k: tuple[int],
    a_batch: tuple[int, ...],
    b_batch: tuple[int, ...],
    transpose_a: bool,
    transpose_b: bool,
) -> None:
    a, b = integers(rng, *a_batch, *m, *k), integers(rng, *b_batch, *k, *n)
    x = device.array(swapped(a) if transpose_a else a)
    y = device.array(swapped(b) if transpose_b else b)
    for _ in range(2):  # the second call goes by what the first one kept
        out = vkpar.matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)
        np.testing.assert_array_equal(out.numpy(), a @ b)


@pytest.mark.parametrize("types", ["float16 float16", "float32 float16", "float16 float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 20, 2064), (1, 41, 4104), (1, 19, 1031), (8, 24, 520), (3, 13, 700)])
def test_sums_of_subgroups(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, types: str, m: int, n: int, k: int
) -> None:
    """Whatever a subgroup's size: GPUs of some vendors alone use these kernels."""
    if "arithmetic" not in device.info.features.subgroup_operations or ("SwiftShader" in device.name and not FULL):
        pytest.skip("subgroups of this device do not add up, or SwiftShader compiles these kernels for seconds")
    forget(device)
    force(monkeypatch, "matvec split")
    monkeypatch.setattr(products.matvec, "adds_up", lambda info: True)
    monkeypatch.setattr(products.matvec, "_ENOUGH_COLUMNS", 20)
    a_type, b_type = types.split()
    a, b = integers(rng, 2, m, k).astype(a_type), integers(rng, 2, n, k).astype(b_type)
    want = a.astype(np.float32) @ swapped(b)
    found = vkpar.matmul(device.array(a), device.array(b), transpose_b=True, dtype="float32")
    np.testing.assert_array_equal(found.numpy(), want)
    turned = vkpar.matmul(
        device.array(swapped(a)), device.array(b), transpose_a=True, transpose_b=True, dtype="float32"
    )
    np.testing.assert_array_equal(turned.numpy(), want)
    forget(device)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a_batch", "b_batch"), [((), ()), ((3,), (3,)), ((2,), ())])
def test_accumulate_bias_activation_and_residual(
    device: vkpar.Device,
    rng: np.random.Generator,
    kernel: str,
    dtype: str,
    a_batch: tuple[int, ...],
    b_batch: tuple[int, ...],
) -> None:
    for m, n, k in ((3, 12, 40), (5, 9, 33)):
        a, b = integers(rng, *a_batch, m, k, most=1), integers(rng, *b_batch, k, n, most=1)  # exact in bfloat16
        bias, residual = integers(rng, n), integers(rng, *a_batch, m, n)
        x, y, v, r = (device.array(item, dtype) for item in (a, b, bias, residual))
        want = np.maximum(a @ b + bias, 0) + residual
        for _ in range(2):
            out = vkpar.matmul(x, y, bias=v, activation="relu", residual=r)
            assert out.dtype == dtype
            np.testing.assert_array_equal(exact(out), want)
            np.testing.assert_array_equal(exact(vkpar.matmul(x, y, bias=v, dtype="float32")), a @ b + bias)
            np.testing.assert_array_equal(exact(vkpar.matmul(x, y, residual=r)), a @ b + residual)
        for turn in range(3):
            assert vkpar.matmul(x, y, out=r, accumulate=True) is r
            np.testing.assert_array_equal(exact(r), residual + (turn + 1) * (a @ b))
        assert vkpar.matmul(x, y, out=r, residual=r, activation="relu") is r
        np.testing.assert_array_equal(exact(r), residual + 3 * (a @ b) + np.maximum(a @ b, 0))
        vkpar.matmul(x, y, out=r, bias=v, accumulate=True)
        np.testing.assert_array_equal(exact(r), residual + 4 * (a @ b) + np.maximum(a @ b, 0) + bias)


@pytest.mark.parametrize("transpose_a", [False, True])
def test_a_column_has_a_bias_of_one(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, transpose_a: bool
) -> None:
    a, b, residual = integers(rng, 2, 30, 40), integers(rng, 40, 1), integers(rng, 2, 30, 1)
    x = device.array(swapped(a) if transpose_a else a)
    out = vkpar.matmul(
        x,
        device.array(b),
        transpose_a=transpose_a,
        bias=device.array([5.0], "float32"),
        residual=device.array(residual),
    )
    np.testing.assert_array_equal(out.numpy(), a @ b + 5 + residual)


# --- values, by float64 ---


CASES = {case.name: case for case in UNARY}


def applied(name: str | None, x: Floats) -> Floats:
    """Return an activation in float64."""
    return x if name is None else CASES[name].reference(x)


def applied_error(name: str | None, x: Floats) -> Floats:
    """Return how far the device's activation of exactly ``x`` may be off."""
    return 1e-35 + (0 if name is None else CASES[name].bound(applied(name, x), x))


SLOPES = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "sigmoid": 0.25}


@pytest.mark.sampled(40)
@given(data=st.data())
def test_any_form(device: vkpar.Device, kernel: str, data: st.DataObject) -> None:
    draw = data.draw
    m, n, k = (draw(st.integers(1, 70), label=name) for name in "mnk")
    batch = draw(st.integers(1, 3))
    a_batch, b_batch = (draw(st.sampled_from([(), (1,), (batch,)])) for _ in range(2))
    a_type, b_type, dtype, v_type, r_type = (draw(st.sampled_from(DTYPES)) for _ in range(5))
    ta, tb, with_bias, with_residual, accumulate = (draw(st.booleans()) for _ in range(5))
    activation = draw(st.sampled_from([None, *ACTIVATIONS]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def made(shape: tuple[int, ...], kind: str) -> tuple[vkpar.Array, Floats]:
        flat = device.array(rng.standard_normal(math.prod(shape) + 5).astype(np.float32), kind)
        start = draw(st.integers(0, 5))
        view = flat[start : start + math.prod(shape)].reshape(shape)
        return view, exact(view)

    a, exact_a = made((*a_batch, *((k, m) if ta else (m, k))), a_type)
    b, exact_b = made((*b_batch, *((n, k) if tb else (k, n))), b_type)
    shape = (m, n) if not a_batch and not b_batch else (max([*a_batch, *b_batch]), m, n)
    v, bias = made((n,), v_type)
    r, residual = made(shape, r_type)
    out, before = made(shape, dtype)
    first = np.swapaxes(exact_a, -1, -2) if ta else exact_a
    second = np.swapaxes(exact_b, -1, -2) if tb else exact_b
    sums, sizes = first @ second, np.abs(first) @ np.abs(second)
    options: dict[str, Any] = {"bias": v} if with_bias else {}
    sums, sizes = (sums + bias, sizes + np.abs(bias)) if with_bias else (sums, sizes)
    want = applied(activation, sums)
    error = applied_error(activation, sums) + SLOPES.get(activation or "", 1.0) * (k + 3) * U * sizes
    added = before if accumulate else residual if with_residual else np.zeros(1)
    options |= {"accumulate": True} if accumulate else {"residual": r} if with_residual else {}
    want, error = want + added, error + U * (np.abs(want) + np.abs(added))
    vkpar.matmul(a, b, transpose_a=ta, transpose_b=tb, activation=activation, dtype=dtype, out=out, **options)
    rounding = ROUNDING[dtype]
    error = error * (1 + rounding) + rounding * np.abs(want) + (2.0**-25 if dtype == "float16" else 0.0)
    got = exact(out)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= error).all(), np.max(np.abs(got - want) / error)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_elementwise_operations(device: vkpar.Device, kernel: str, activation: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 997), [-1e30, -200.0, -100.0, 100.0, 1e30, 0.0, -0.0, 1e-30]])
    x = np.append(x, [np.nan, np.inf, -np.inf, 1.0, 2.0]).astype(np.float32)
    got = vkpar.matmul(device.array(np.ones((1, 1), np.float32)), device.array(x[None, :]), activation=activation)
    name, options = ("gelu", {"approximate": "tanh"}) if activation == "gelu_tanh" else (activation, {})
    function = getattr(vkpar, name, None) or vkpar.elementwise(f"y = {name}(x)")
    want = function(device.array(x), **options).numpy().astype(np.float64)
    assert np.isnan(want[-5])  # which some drivers' maximum drops
    finite = np.abs(x) < 30
    error = 2 * applied_error(activation, x[finite].astype(np.float64))
    assert (np.abs(got.numpy()[0][finite] - want[finite]) <= error).all()
    np.testing.assert_array_equal(np.isnan(got.numpy()[0]), np.isnan(want))
    np.testing.assert_allclose(got.numpy()[0][~finite], want[~finite], rtol=1e-5, atol=1e-30)


def test_nan_and_infinity_of_an_operand_stay_in_their_product(
    device: vkpar.Device, rng: np.random.Generator, kernel: str
) -> None:
    a, b = np.abs(integers(rng, 3, 4, 40)) + 1, np.abs(integers(rng, 40, 6)) + 1
    a[1, 2, 39], a[2, 0, 0] = np.nan, np.inf
    out = vkpar.matmul(device.array(swapped(a)), device.array(b), transpose_a=True)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out.numpy(), a @ b)


# --- memory ---


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [8, 9])
def test_neighbours_are_neither_read_nor_written(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, dtype: str, n: int
) -> None:
    def embedded(values: NDArray[Any]) -> vkpar.Array:
        flat = np.full(values.size + 5, np.nan, dtype)
        flat[3 : 3 + values.size] = values.reshape(-1)
        return device.array(flat)[3 : 3 + values.size].reshape(values.shape)

    a, b = integers(rng, 2, 3, 35), integers(rng, 2, 35, n)
    bias, residual = integers(rng, n), integers(rng, 2, 3, n)
    around = device.array(np.full(6 * n + 6, 7, dtype))
    out = around[1 : 1 + 6 * n].reshape(2, 3, n)
    vkpar.matmul(
        embedded(swapped(a)), embedded(swapped(b)), transpose_a=True, transpose_b=True, out=out, bias=embedded(bias),
        residual=embedded(residual),
    )  # fmt: skip
    np.testing.assert_array_equal(out.numpy(), a @ b + bias + residual)
    np.testing.assert_array_equal(np.delete(around.numpy(), np.s_[1 : 1 + 6 * n]), 7)


def test_views_of_any_strides(device: vkpar.Device, rng: np.random.Generator, kernel: str) -> None:
    a, b, residual, bias = integers(rng, 40, 6), integers(rng, 40, 8), integers(rng, 8, 6), integers(rng, 16)
    x, y, r, v = (device.array(item) for item in (a, b, residual, bias))
    want = a.T @ b + bias[::2] + residual.T
    np.testing.assert_array_equal(vkpar.matmul(x.T, y, bias=v[::2], residual=r.T).numpy(), want)
    target = device.zeros((8, 6))
    assert vkpar.matmul(x, y, transpose_a=True, bias=v[::2], residual=r.T, out=target.T).shape == (6, 8)
    np.testing.assert_array_equal(target.numpy(), want.T)
    vkpar.matmul(x, y, transpose_a=True, out=target.T, accumulate=True)
    np.testing.assert_array_equal(target.numpy(), (want + a.T @ b).T)


def test_a_transposed_view_is_not_copied(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, other = integers(rng, 3, 40, 6), integers(rng, 3, 8, 40), integers(rng, 3, 40, 6)
    x, y, z = device.array(a), device.array(b), device.array(other)
    monkeypatch.setattr(vkpar.Array, "copy", lambda self: pytest.fail("a copy"))
    for turn, (array, values) in enumerate(((x, a), (z, other), (x, a))):
        if turn:
            monkeypatch.setattr(device.logical, "dispatch", lambda *_: pytest.fail("not by what was kept"))
        out = vkpar.matmul(array.transpose(0, 2, 1), y.transpose(0, 2, 1))
        np.testing.assert_array_equal(out.numpy(), swapped(values) @ swapped(b))
    monkeypatch.undo()
    square = device.array(integers(rng, 9, 9))
    np.testing.assert_array_equal(vkpar.matmul(square, square.T).numpy(), square.numpy() @ square.numpy().T)
    np.testing.assert_array_equal(vkpar.matmul(square.T, square).numpy(), square.numpy().T @ square.numpy())


def test_a_split_over_rows_columns_batches_and_k(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands that no binding holds, and products that one dispatch does not do."""
    device = reopen(max_binding=4352)
    monkeypatch.setattr(products, "MAX_TURNS", 24)
    m = 4 if "matvec" in kernel else 20
    for batch, n, k in ((3, 70, 50), (40, 8, 10)):
        a, b, residual = integers(rng, batch, m, k), integers(rng, batch, k, n), integers(rng, batch, m, n)
        bias = integers(rng, n)
        x, y, r, v = (device.array(item) for item in (swapped(a), b, residual, bias))
        for dtype in ("float32", "float16"):
            out = vkpar.matmul(x, y, transpose_a=True, bias=v, activation="relu", residual=r, dtype=dtype)
            np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + bias, 0) + residual)
        out = vkpar.matmul(x, y, transpose_a=True, out=r, accumulate=True)
        np.testing.assert_array_equal(out.numpy(), a @ b + residual)


def test_a_long_k(device: vkpar.Device, rng: np.random.Generator) -> None:
    """More steps than CPU drivers run an invocation for."""
    a, b, residual = integers(rng, 2, 70_001, 3, most=1), integers(rng, 70_001, 5, most=1), integers(rng, 2, 3, 5)
    x, y, r = device.array(a), device.array(b), device.array(residual)
    want = swapped(a).astype(np.float64) @ b
    out = vkpar.matmul(x, y, transpose_a=True, residual=r, activation="relu")
    np.testing.assert_array_equal(out.numpy(), np.maximum(want, 0) + residual)
    np.testing.assert_array_equal(vkpar.matmul(x, y, transpose_a=True, out=r, accumulate=True).numpy(), want + residual)


def test_arrays_over_several_buffers(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, kernel: str
) -> None:
    device = reopen(max_buffer=4096)
    a, b, residual = integers(rng, 3, 30, 50), integers(rng, 3, 50, 40), integers(rng, 3, 30, 40)
    x, y, r, v = (device.array(item) for item in (a, swapped(b), residual, integers(rng, 40)))
    want = np.maximum(a @ b + v.numpy(), 0) + residual
    for _ in range(2):
        out = vkpar.matmul(x, y, transpose_b=True, bias=v, activation="relu", residual=r)
        np.testing.assert_array_equal(out.numpy(), want)
    vkpar.matmul(x, y, transpose_b=True, out=r, accumulate=True)
    np.testing.assert_array_equal(r.numpy(), a @ b + residual)


def test_more_products_than_work_groups_in_z(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    limits = dataclasses.replace(device.info.limits, max_workgroup_count=(65535, 65535, 3))
    monkeypatch.setitem(vars(device), "info", dataclasses.replace(device.info, limits=limits))
    a, b = integers(rng, 8, 3, 20), integers(rng, 8, 20, 6)
    np.testing.assert_array_equal(vkpar.matmul(device.array(a), device.array(b)).numpy(), a @ b)


@pytest.mark.parametrize("shape", [(0, 3, 4, 2), (2, 0, 4, 2), (2, 3, 0, 2), (2, 3, 4, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_zero_sizes(
    device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int, int, int], dtype: str
) -> None:
    batch, m, k, n = shape
    a, b = device.zeros((batch, m, k), dtype), device.zeros((batch, k, n), dtype)
    bias, residual = integers(rng, n), integers(rng, batch, m, n)
    v, r = device.array(bias, dtype), device.array(residual, dtype)
    want = np.broadcast_to(np.maximum(bias, 0), residual.shape) + residual
    np.testing.assert_array_equal(vkpar.matmul(a, b, bias=v, activation="relu", residual=r).numpy(), want)
    np.testing.assert_array_equal(vkpar.matmul(a, b).numpy(), np.zeros((batch, m, n)))
    np.testing.assert_array_equal(vkpar.matmul(a, b, out=r, accumulate=True).numpy(), residual)
    np.testing.assert_array_equal(vkpar.matmul(a, b, out=r).numpy(), np.zeros((batch, m, n)))


# --- calls ---


def test_what_was_kept_is_of_the_form_not_of_the_arrays(
    device: vkpar.Device, rng: np.random.Generator, kernel: str
) -> None:
    """The same array in several places, then others in each: a kept call takes what it is given."""
    square = integers(rng, 2, 32, 32)
    x, other = device.array(square), device.array(integers(rng, 2, 32, 32))
    for a, b, r in ((x, x, x), (x, other, x), (other, x, other), (other, other, x), (x, x, x)):
        np.testing.assert_array_equal(vkpar.matmul(a, b).numpy(), a.numpy() @ b.numpy())
        want = a.numpy() @ b.numpy() + r.numpy()
        np.testing.assert_array_equal(vkpar.matmul(a, b, residual=r).numpy(), want)
    row, one = device.array(square[0, :1]), device.array(square[0, 0])
    for bias in (one, row.reshape(-1), device.array(square[0, 1])):
        out = vkpar.matmul(row, x[0], bias=bias)
        np.testing.assert_array_equal(out.numpy(), row.numpy() @ square[0] + bias.numpy())


def test_a_repeated_call_dispatches_without_checks(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, bias, residual = integers(rng, 3, 4, 40), integers(rng, 40, 12), integers(rng, 12), integers(rng, 3, 4, 12)
    x, y, v, r, out = (device.array(item) for item in (swapped(a), b, bias, residual, residual))
    calls: list[tuple[dict[str, Any], Any]] = [
        ({}, a @ b),
        ({"bias": v, "activation": "relu"}, np.maximum(a @ b + bias, 0)),
        ({"residual": r}, a @ b + residual),
        ({"out": out, "residual": r}, a @ b + residual),
    ]
    for options, _ in calls:
        vkpar.matmul(x, y, transpose_a=True, **options)
    monkeypatch.setattr(device.logical, "dispatch", lambda *_: pytest.fail("not by what was kept"))
    for options, want in calls:
        np.testing.assert_array_equal(vkpar.matmul(x, y, transpose_a=True, **options).numpy(), want)
    before = device.logical.stream.stats().operations
    vkpar.matmul(x, y, transpose_a=True, bias=v, activation="relu")
    one = kernel in ("matvec", "matmul_tiled")  # on CPU drivers what follows is a dispatch of its own
    assert device.logical.stream.stats().operations - before == (1 if one or not device.info.is_cpu else 2)


def test_captured_as_eager(device: vkpar.Device, rng: np.random.Generator, kernel: str) -> None:
    a, b, residual = integers(rng, 2, 4, 40), integers(rng, 2, 40, 12), integers(rng, 2, 4, 12)
    x, y, r, out = device.array(a), device.array(b), device.array(residual), device.zeros((2, 4, 12))
    for warm in (False, True):
        if warm:
            vkpar.matmul(x, y, residual=r, activation="relu")
        with vkpar.capture([device]) as graph:
            made = vkpar.matmul(x, y, residual=r, activation="relu")
            vkpar.matmul(x, y, out=out, accumulate=True)
        out.fill_zeros()
        for turn in (1, 2):
            graph.launch().wait()
            np.testing.assert_array_equal(made.numpy(), np.maximum(a @ b, 0) + residual)
            np.testing.assert_array_equal(out.numpy(), turn * (a @ b))
        graph.close()


def test_parts_are_added_in_their_order(device: vkpar.Device, rng: np.random.Generator, monkeypatch: Any) -> None:
    forget(device)
    a, b = rng.standard_normal((8, 400)).astype(np.float32), rng.standard_normal((400, 24)).astype(np.float32)
    force(monkeypatch, "matmul_tiled split")
    x, y = device.array(a), device.array(b)
    first = vkpar.matmul(x, y).numpy()
    for _ in range(5):
        assert vkpar.matmul(x, y).numpy().tobytes() == first.tobytes()


Call = Callable[[vkpar.Device, vkpar.Array, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda d, a, b: vkpar.matmul(a, b, transpose_a=True),
            vkpar.InvalidUsageError,
            r"\(3, 4\) transposed does not",
        ),
        (
            lambda d, a, b: vkpar.matmul(d.zeros((2, 3, 4)), d.zeros((3, 4, 5))),
            vkpar.InvalidUsageError,
            "2 and 3 products",
        ),
        (lambda d, a, b: vkpar.matmul(d.zeros((1, 2, 3, 4)), b), vkpar.InvalidUsageError, "in three dimensions"),
        (lambda d, a, b: vkpar.matmul(a, b, accumulate=True), vkpar.InvalidUsageError, "accumulate adds to out"),
        (
            lambda d, a, b: vkpar.matmul(a, b, accumulate=True, out=d.zeros((3, 5)), residual=d.zeros((3, 5))),
            vkpar.InvalidUsageError,
            "give one",
        ),
        (
            lambda d, a, b: vkpar.matmul(a, b, bias=d.zeros(4)),
            vkpar.InvalidUsageError,
            r"bias has shape \(4,\).*\(5,\)",
        ),
        (lambda d, a, b: vkpar.matmul(a, b, bias=np.zeros(5)), vkpar.InvalidUsageError, "bias has to be a vkpar.Array"),
        (lambda d, a, b: vkpar.matmul(a, b, bias=d.zeros(5, "float64")), vkpar.UnsupportedError, "float64"),
        (
            lambda d, a, b: vkpar.matmul(a, b, residual=d.zeros((5,))),
            vkpar.InvalidUsageError,
            r"residual has shape \(5,\)",
        ),
        (lambda d, a, b: vkpar.matmul(a, b, residual=d.zeros((3, 5), "int32")), vkpar.UnsupportedError, "int32"),
        (lambda d, a, b: vkpar.matmul(a, b, activation="swish"), vkpar.InvalidUsageError, "relu, gelu, .*'swish'"),
        (lambda d, a, b: vkpar.matmul(a, b, activation=["relu"]), vkpar.InvalidUsageError, "activation is one of"),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    a, b = device.zeros((3, 4)), device.zeros((4, 5))
    submitted = device.logical.stream.stats().operations
    with pytest.raises(error, match=message):
        call(device, a, b)
    assert device.logical.stream.stats().operations - submitted <= 2  # zeros, no product


def test_a_call_in_place_takes_no_plan_of_one_that_was_not(
    device: vkpar.Device, rng: np.random.Generator, kernel: str
) -> None:
    a, b, r = integers(rng, 5, 33), integers(rng, 33, 12), integers(rng, 5, 12)
    given = [device.array(x, "float32") for x in (a, b)]
    for in_place in (False, True, False, True):
        residual = device.array(r, "float32")
        out = residual if in_place else device.empty((5, 12))
        assert np.array_equal(exact(vkpar.matmul(*given, residual=residual, out=out)), a @ b + r)


def test_out_may_be_the_residual_and_nothing_else(device: vkpar.Device, rng: np.random.Generator, kernel: str) -> None:
    a, b = device.array(integers(rng, 4, 4)), device.array(integers(rng, 4, 4))
    whole = device.zeros(40)
    for bad in (
        {"out": whole[:16].reshape(4, 4), "residual": whole[4:20].reshape(4, 4)},
        {"out": whole[:16].reshape(4, 4), "bias": whole[8:12]},
        {"out": a},
        {"out": b, "residual": b},
    ):
        for _ in range(2):
            with pytest.raises(vkpar.InvalidUsageError, match="share memory"):
                vkpar.matmul(a, b, **bad)  # type: ignore[arg-type]
    for _ in range(2):
        vkpar.matmul(a, b, out=whole[:16].reshape(4, 4), residual=whole[16:32].reshape(4, 4), bias=whole[36:40])
        np.testing.assert_array_equal(whole[:16].numpy().reshape(4, 4), a.numpy() @ b.numpy())
