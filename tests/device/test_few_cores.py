"""Products of few rows by matrix cores that read one operand once: exact, within bounds, and what they are given."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.ops.elements import check, held, normal, values_of
from helpers.ops.words import specialized
from helpers.vulkan.planning import dispatches, forget
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.ops.tiles import cores, streamed
from vkpar.ops.tiles.choice import Choice

products = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = pytest.mark.device

HALVES = ["float16", "bfloat16"]
Force = Callable[..., list[streamed.Stream]]


@pytest.fixture
def force(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Force]:
    """Have products made so wherever they can be, in groups of some subgroups; what it returns gets each that is."""

    def begin(dtype: str = "float16", warps: tuple[int, ...] = (2, 4, 6, 8), *, offered: bool = False) -> list[Any]:
        if not offered and not cores.streams(device.info, dtype):
            pytest.skip(f"{device.name} has no matrix cores that take {dtype}")
        taken: list[streamed.Stream] = []

        def choose(
            device: vkpar.Device, given: str, m: int, n: int, k: int, batch: int, most: int, **how: bool
        ) -> Choice | None:
            if given != dtype or not how["whole"]:
                return None
            way = streamed.spread(device.info, m, n, k, batch, transpose_b=how["transpose_b"])
            if way is None:
                return None
            taken.append(way)
            return Choice(way, 1, k)

        forget(device)
        for name, value in (("_AHEAD", 0), ("_LEAST_AHEAD", 0), ("_LEAST_TURNS", 0), ("_WARPS", (*warps, 4, 8))):
            monkeypatch.setattr(streamed, name, value)
        monkeypatch.setattr(products, "kernel_for", lambda device, m: "matvec" if m <= 8 else "matmul_tiled")
        monkeypatch.setattr(products.choice, "choose", choose)
        return taken

    yield begin
    forget(device)


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers, whose products add up exactly."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def turned(b: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(b, -1, -2))


@pytest.mark.parametrize("dtype", HALVES)
@given(
    m=st.integers(2, 17),
    n=st.integers(1, 40),
    k=st.integers(1, 200),
    transpose_b=st.booleans(),
    warps=st.sampled_from([2, 4, 6, 8]),
    seed=st.integers(0, 99),
)
def test_whole_numbers(
    device: vkpar.Device, force: Force, dtype: str, m: int, n: int, k: int, transpose_b: bool, warps: int, seed: int
) -> None:
    """Exact into float32, of any number of columns that lie along K, and of whole units of the others."""
    taken = force(dtype, (warps,))
    n, k, rng = n * (3 if transpose_b else 8), 8 * k, np.random.default_rng(seed)
    a, b = integers(rng, m, k), integers(rng, k, n)
    x, y = device.array(a, dtype), device.array(turned(b) if transpose_b else b, dtype)
    for _ in range(2):  # the second call goes by what the first one kept
        out = vkpar.matmul(x, y, transpose_b=transpose_b, dtype="float32")
        np.testing.assert_array_equal(out.numpy(), a @ b)
    assert bool(taken) == (m <= (8 if transpose_b else 16))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [(8, 256, 1024), (3, 67, 4096), (5, 40, 200)], ids=str)
def test_random_numbers_within_the_bound(
    device: vkpar.Device,
    rng: np.random.Generator,
    force: Force,
    dtype: str,
    result: str,
    size: tuple[int, int, int],
) -> None:
    """A float32 sum in any order, rounded once to the nearest value of the result's type."""
    taken, (m, n, k) = force(dtype), size
    a, b = normal(rng, (m, k), dtype).astype(np.float64), normal(rng, (n, k), dtype).astype(np.float64)
    out = vkpar.matmul(device.array(a, dtype), device.array(b, dtype), transpose_b=True, dtype=result)
    check(out, a @ b.T, (k + 2) * 2.0**-23 * (np.abs(a) @ np.abs(b.T)))
    assert taken


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_what_follows(
    device: vkpar.Device, rng: np.random.Generator, force: Force, dtype: str, transpose_b: bool, batch: tuple[int, ...]
) -> None:
    taken = force(dtype)
    a, b, bias = integers(rng, *batch, 5, 600), integers(rng, *batch, 600, 264), integers(rng, 264)
    added = integers(rng, *batch, 5, 264)
    x, y = device.array(a, dtype), device.array(turned(b) if transpose_b else b, dtype)
    more, residual, want = device.array(bias), device.array(added, dtype), np.maximum(a @ b + bias, 0) + added
    for result in ("float32", dtype):
        out = vkpar.matmul(x, y, transpose_b=transpose_b, bias=more, activation="relu", residual=residual, dtype=result)
        nearest = values_of(device.array(want.astype(np.float64), result))
        np.testing.assert_array_equal(values_of(out), nearest)
    held_sums = device.array(added)
    vkpar.matmul(x, y, transpose_b=transpose_b, out=held_sums, accumulate=True)
    np.testing.assert_array_equal(held_sums.numpy(), a @ b + added)
    assert taken


@pytest.mark.parametrize("start", [0, 8, 3])
@pytest.mark.parametrize("length", [64, 67])
def test_only_rows_of_whole_units_are_read_so(
    device: vkpar.Device, rng: np.random.Generator, force: Force, start: int, length: int
) -> None:
    """Of any view; the results are the same. NaN and infinities stay in their rows and columns."""
    taken = force()
    a, b = integers(rng, 7, length), integers(rng, 40, length)
    a[3, 5], a[6, 9], b[2, 6] = np.inf, np.nan, -np.inf
    b[:, 5] = 1.0
    x, y = (
        device.array(np.concatenate([np.zeros(start), each.ravel()]).astype(np.float16))[start:].reshape(each.shape)
        for each in (a, b)
    )
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_array_equal(vkpar.matmul(x, y, transpose_b=True, dtype="float32").numpy(), want)
    assert bool(taken) == (start % 8 == 0 and length % 8 == 0)
    taken.clear()
    across = device.array(held(turned(a[:3]), "float16"), "float16")
    out = vkpar.matmul(across, y, transpose_a=True, transpose_b=True, dtype="float32")
    np.testing.assert_array_equal(out.numpy(), want[:3])
    assert not taken


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_how_a_product_is_dispatched(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, force: Force, follows: bool, transpose_b: bool
) -> None:
    """Where no device runs the kernels: their names, bindings, push constants and grids."""
    way = streamed.Stream((7, 16 if transpose_b else 64), 256, 64 if transpose_b else 32)
    force(offered=True)
    monkeypatch.setattr(streamed, "spread", lambda *_, **__: way)
    sent = dispatches(monkeypatch)
    x, y = device.zeros((7, 512), "float16"), device.zeros((312, 512) if transpose_b else (512, 312), "float16")
    vkpar.matmul(x, y, transpose_b=transpose_b, activation="relu" if follows else None)
    ((name, bindings, nbytes, groups, constants),) = sent
    assert name == ("matvec_cores_forms_f16" if follows else "matvec_cores_f16")
    assert (bindings, nbytes, groups) == (5 if follows else 3, 76, -(-312 // way.tile[1]))
    told = specialized(name, constants)
    assert (told["rows"], told["columns"]) == way.tile
    assert told.items() >= way.tail(device.info, eights=True)._asdict().items()
