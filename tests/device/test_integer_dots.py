"""One row by quantised weights as whole numbers: within derived bounds, in every spread."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.elements import FLOATS, check, normal
from helpers.ops.quantizing import NAMES, blocks_of, columns_of, error_of, exact, made, magnitudes, whole_numbers
from helpers.vulkan.planning import forget

import vkpar
from vkpar.ops.quantized.weights import KINDS
from vkpar.testing import U, gamma

products = importlib.import_module("vkpar.ops.matmul.few")
integer_dots = importlib.import_module("vkpar.ops.matmul.dots")
pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def dots(monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[None]:
    """Have one row multiplied so, on CPU drivers, too."""
    features, limits = device.info.features, device.limits
    if not (features.integer_dot and {"arithmetic", "quad"} <= set(features.subgroup_operations)):
        pytest.skip("the driver has no dot products of bytes")
    if limits.max_workgroup_invocations < 1024:
        pytest.skip("the driver's work-groups are too small")
    monkeypatch.setattr(products, "rows_at_once", lambda device: 8)
    monkeypatch.setattr(products, "by_lanes", lambda device: False)
    monkeypatch.setattr(integer_dots, "usable", lambda device: True)
    forget(device)
    yield
    forget(device)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_products(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    """Of rows at odd offsets, of any length in blocks, in every type; elements lie far apart in size."""
    for number, (n, count) in enumerate(((37, 5), (70, 9), (5, 34))):
        blocks, dtype = blocks_of(rng, kind, n, columns_of(kind, count)), FLOATS[number]
        q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
        x = normal(rng, (1, weights.shape[1]), dtype)
        x *= np.float32(2) ** rng.integers(-8, 3, x.shape)
        x[:, :64] = 0
        flat = device.array(np.concatenate([np.zeros(5, np.float32), x.reshape(-1)]), dtype)
        view = flat[5:].reshape(x.shape)
        x = vkpar.cast(view, "float32").numpy()
        for part in (slice(None), slice(1, None)):
            error, want = error_of(x, blocks[part], kind, dots=True), x.astype(np.float64) @ weights[part].T
            first = vkpar.matmul(view, q[part], transpose_b=True, dtype="float32")
            check(first, want, error)
            again = vkpar.matmul(view, q[part], transpose_b=True, dtype="float32")
            np.testing.assert_array_equal(again.numpy(), first.numpy())
        check(
            vkpar.matmul(view, q, transpose_b=True),
            x.astype(np.float64) @ weights.T,
            error_of(x, blocks, kind, dots=True),
        )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_every_spread(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All give whole numbers exactly, those that shared memory holds a part of included."""
    found = KINDS[kind]
    k = 10240
    blocks = whole_numbers(blocks_of(rng, kind, 19, k), kind)
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    x = rng.integers(-3, 4, (1, k)).astype(np.float32)
    bias, residual = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((19,), (1, 19)))
    want = x @ weights.T + bias + residual
    a, b, r = (device.array(item) for item in (x, bias, residual))
    for way in list(integer_dots.spreads(device, found, k))[:: 1 if FULL else 3]:
        monkeypatch.setattr(integer_dots, "spread", lambda *_, way=way, **__: way)
        forget(device)
        got = vkpar.matmul(a, q, transpose_b=True, bias=b, residual=r).numpy()
        np.testing.assert_array_equal(got, want, err_msg=str(way))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_large_small_and_no_numbers(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    blocks = blocks_of(rng, kind, 6, columns_of(kind))
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    x = normal(rng, (1, columns_of(kind)), "float32")
    for scale in (2.0**100, 2.0**-90):
        scaled = x * np.float32(scale)
        found = vkpar.matmul(device.array(scaled), q, transpose_b=True)
        check(found, scaled.astype(np.float64) @ weights.T, error_of(scaled, blocks, kind, dots=True))
    for value in (np.nan, np.inf, -np.inf):
        x[0, 5] = value
        assert not np.isfinite(vkpar.matmul(device.array(x), q, transpose_b=True).numpy()).any()
    x[0, 5] = np.nan
    assert np.isnan(vkpar.matmul(device.array(x), q, transpose_b=True).numpy()).all()
    nothing = device.zeros((1, columns_of(kind)))
    np.testing.assert_array_equal(vkpar.matmul(nothing, q, transpose_b=True).numpy(), np.zeros((1, 6)))


def test_captured(device: vkpar.Device, rng: np.random.Generator) -> None:
    blocks = blocks_of(rng, "q4_0", 24, 96)
    q = made(device, blocks, "q4_0")
    x, out = device.array(normal(rng, (1, 96), "float32")), device.empty((1, 24))
    want = vkpar.matmul(x, q, transpose_b=True, activation="silu").numpy()
    with vkpar.capture([device]) as graph:
        vkpar.matmul(x, q, transpose_b=True, activation="silu", out=out)
    for _ in range(2):
        out.fill_zeros()
        graph.launch().wait()
        np.testing.assert_array_equal(out.numpy(), want)
    graph.close()


def test_spreads_fit(device: vkpar.Device) -> None:
    """Whatever the sizes: there is a way, and shared memory holds what it needs."""
    for kind in KINDS.values():
        for blocks in (1, 2, 16, 56, 128):
            k = blocks * kind.block
            found = list(integer_dots.spreads(device, kind, k))
            for n in (1, 100, 4096, 128256):
                assert integer_dots.spread(device, kind, n, k) in found
            for way in found:
                chunks = way.span * way.passes
                assert chunks * kind.chunk <= 8192
                assert (
                    chunks * (5 if kind.name == "q8_0" else 7) * 16 + way.threads * 4 <= device.limits.max_shared_memory
                )
                assert way.width % 4 == 0
                assert 0 < chunks * kind.chunk <= way.threads * 2 * 8


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_norms_and_gates(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    """Of rows that shared memory holds a part of at a time, and of others; each element counts once in the norm."""
    for n, k in ((46, 9 * KINDS[kind].block), (22, 10240)):
        blocks = blocks_of(rng, kind, n, k)
        q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
        x, g = normal(rng, (1, k), "float32"), normal(rng, k, "float32")
        wide = x.astype(np.float64)
        rows = wide / np.sqrt((wide * wide).mean() + 1e-5) * g
        # Of the norm an element is rounded twice, its factor as often as in half a sum of squares, and ten times.
        size = np.abs(rows) @ magnitudes(blocks, kind).T
        error = error_of(rows, blocks, kind, dots=True) * (1 + 1e-5) + (gamma(2) + 0.55 * gamma(k + 6) + 12 * U) * size
        a, want = vkpar.Normed(device.array(x), device.array(g), 1e-5), rows @ weights.T
        for _ in range(2):
            check(vkpar.matmul(a, q, transpose_b=True), want, error)
        gate, through = np.split(want, 2, axis=1)
        off, off_through = np.split(error, 2, axis=1)
        silu = gate / (1 + np.exp(np.minimum(-gate, 700)))
        # silu is nowhere steeper than 1.1
        wrong = (
            1.1 * off * (np.abs(through) + off_through) + np.abs(silu) * off_through + 16 * U * np.abs(silu * through)
        )
        check(vkpar.matmul(a, q, transpose_b=True, activation="swiglu"), silu * through, wrong + 1e-30)
