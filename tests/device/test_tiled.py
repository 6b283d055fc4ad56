"""The tiled kernel by every tile that devices of some vendor get: inside of matrices, at their edges, in every form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.words import specialized
from helpers.vulkan.planning import dispatches, forget
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.ops.tiles import occupancy, tiled

products = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = [pytest.mark.device, pytest.mark.sampled(16)]

EPS32 = 2.0**-24
TILES = [(tile, sums) for sums in (32, 64, 128) for tile in ((1, 1), (1, 2), (2, 1), (2, 2))] + [((4, 2), 128)]
FORMS = [(False, False), (False, True), (True, False), (True, True)]
Force = Callable[..., None]


@pytest.fixture
def force(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Force]:
    """Have products made by one tile, of so many sums to an invocation, in parts of so many steps of K."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each variant of this kernel for seconds; lavapipe runs them")

    def forced(tile: tuple[int, int], sums: int, k_part: int = 0) -> None:
        def cut(m: int, n: int, k: int, batch: int, units: int, most: int, given: int) -> occupancy.Cut:
            assert given == sums
            parts = -(-k // k_part) if k_part else 1
            return occupancy.Cut(tile, parts, k_part) if 1 < parts <= most else occupancy.Cut(tile, 1, k)

        forget(device)
        monkeypatch.setattr(products, "kernel_for", lambda device, m: tiled.KERNEL)
        monkeypatch.setattr(products.choice, "choose", lambda *given, **_: None)
        monkeypatch.setattr(products.tiled, "sums_of", lambda info: sums)
        monkeypatch.setattr(products.occupancy, "tiled", cut)

    yield forced
    forget(device)


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers, whose products add up exactly."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def swapped(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("tile", "sums"), TILES, ids=str)
@pytest.mark.parametrize(("transpose_a", "transpose_b"), FORMS)
def test_inside_and_at_edges(
    device: vkpar.Device,
    rng: np.random.Generator,
    force: Force,
    tile: tuple[int, int],
    sums: int,
    transpose_a: bool,
    transpose_b: bool,
) -> None:
    """Tiles inside of the matrices, past their edges by whole fours and by odd numbers; K that ends within a step."""
    force(tile, sums)
    high, broad = 64 * tile[0], 64 * tile[1]
    for m, n, k in ((high, broad, 32), (2 * high, broad + 4, 24), (high + 3, 2 * broad + 7, 13), (high + 4, broad, 20)):
        a, b = integers(rng, m, k), integers(rng, k, n)
        x, y = device.array(swapped(a) if transpose_a else a), device.array(swapped(b) if transpose_b else b)
        for _ in range(2):  # the second call goes by what the first one kept
            out = vkpar.matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b)
            np.testing.assert_array_equal(out.numpy(), a @ b)


@pytest.mark.parametrize(("tile", "sums"), TILES, ids=str)
@pytest.mark.parametrize("k_part", [0, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batches_and_what_follows(
    device: vkpar.Device,
    rng: np.random.Generator,
    force: Force,
    tile: tuple[int, int],
    sums: int,
    k_part: int,
    dtype: str,
) -> None:
    """Whole and in parts, of which the last is shorter: each begins where the one before ends."""
    force(tile, sums, k_part)
    m, n, k = 64 * tile[0] + 8, 64 * tile[1], 40
    a, b, bias = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((2, m, k), (2, k, n), (n,)))
    residual = rng.integers(-1, 2, (2, m, n)).astype(np.float32)
    x, y, v, r = (device.array(item, dtype) for item in (a, b, bias, residual))
    out = vkpar.matmul(x, y, bias=v, activation="relu", residual=r)
    np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + bias, 0) + residual)
    vkpar.matmul(x, y, out=r, accumulate=True)
    np.testing.assert_array_equal(r.numpy(), a @ b + residual)


@pytest.mark.parametrize(("tile", "sums"), TILES, ids=str)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_neighbours_are_neither_read_nor_written(
    device: vkpar.Device,
    rng: np.random.Generator,
    force: Force,
    tile: tuple[int, int],
    sums: int,
    transpose_b: bool,
) -> None:
    """Operands in the midst of NaN, at whole fours and at odd places; a tile and a bit, K that ends within a step."""
    force(tile, sums)
    m, n, k = 64 * tile[0] + 4, 64 * tile[1] + 4, 20
    a, b = integers(rng, m, k), integers(rng, k, n)
    for at in (3, 4):

        def embedded(values: NDArray[np.float32], at: int = at) -> vkpar.Array:
            flat = np.full(values.size + 8, np.nan, np.float32)
            flat[at : at + values.size] = values.reshape(-1)
            return device.array(flat)[at : at + values.size].reshape(values.shape)

        around = device.array(np.full(m * n + 8, 7, np.float32))
        out = around[at : at + m * n].reshape(m, n)
        vkpar.matmul(embedded(a), embedded(swapped(b) if transpose_b else b), out=out, transpose_b=transpose_b)
        np.testing.assert_array_equal(out.numpy(), a @ b)
        assert (np.delete(around.numpy(), np.s_[at : at + m * n]) == 7).all()


@given(data=st.data())
def test_random_numbers_within_the_bound(device: vkpar.Device, force: Force, data: st.DataObject) -> None:
    tile, sums = data.draw(st.sampled_from(TILES))
    transpose_a, transpose_b = data.draw(st.sampled_from(FORMS))
    m, n = (data.draw(st.sampled_from([64, 128, 256, 5, 129, 260])) for _ in range(2))
    k = data.draw(st.sampled_from([8, 64, 80, 7, 99]))
    force(tile, sums, data.draw(st.sampled_from([0, 32])))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    x, y = device.array(swapped(a) if transpose_a else a), device.array(swapped(b) if transpose_b else b)
    got = vkpar.matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b).numpy()
    first, second = a.astype(np.float64), b.astype(np.float64)
    bound = (k + 2) * 2 * EPS32 * (np.abs(first) @ np.abs(second)) + 1e-37
    assert (np.abs(got - first @ second) <= bound).all()


def test_nan_and_infinity_stay_in_their_row(device: vkpar.Device, rng: np.random.Generator, force: Force) -> None:
    force((2, 2), 128)
    a, b = np.abs(integers(rng, 128, 24)) + 1, np.abs(integers(rng, 24, 128)) + 1
    a[1, 23], a[127, 0] = np.nan, np.inf
    np.testing.assert_array_equal(vkpar.matmul(device.array(a), device.array(b)).numpy(), a @ b)


@pytest.mark.parametrize(("tile", "sums"), TILES, ids=str)
@pytest.mark.parametrize("follows", [False, True])
def test_how_a_product_is_dispatched(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, force: Force, tile: tuple[int, int], sums: int, follows: bool
) -> None:
    """The grid covers the product, and the constants make the tile."""
    force(tile, sums)
    sent = dispatches(monkeypatch)
    vkpar.matmul(device.zeros((2, 300, 64)), device.zeros((2, 64, 520)), activation="relu" if follows else None)
    ((name, _, _, groups, constants),) = sent
    assert name == "matmul_tiled_forms"
    assert groups == 2 * -(-300 // (64 * tile[0])) * -(-520 // (64 * tile[1]))
    told = specialized(name, constants)
    mrep, nrep, threads = told["mrep"], told["nrep"], told["threads"]
    assert (threads // 4 * mrep, 64 * nrep) == (64 * tile[0], 64 * tile[1])
