"""Products of few float16 rows by quantised weights on matrix cores: within bounds, in every form and spread."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from helpers.ops.elements import check, normal
from helpers.ops.quantizing import NAMES, blocks_of, error_of, exact, made, whole_numbers
from helpers.vulkan.planning import dispatches, forget
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar.ops.matmul import cores as quantized_cores
from vkpar.ops.quantized.weights import KINDS

products = importlib.import_module("vkpar.ops.matmul.few")
pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def cores(device: vkpar.Device) -> None:
    if not quantized_cores.usable(device.info, KINDS["q8_0"]):
        pytest.skip(f"{device.name} has no matrix cores that take float16 and are known to be fast with these kernels")


def steps_of(kind: str, steps: int) -> int:
    """So many steps of the kernel, in whole blocks."""
    block = KINDS[kind].block
    return -(-steps * quantized_cores.step_of(KINDS[kind]) // block) * block


@pytest.mark.parametrize("kind", NAMES)
@given(m=st.integers(1, 18), n=st.integers(1, 150), steps=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_size(device: vkpar.Device, kind: str, m: int, n: int, steps: int, seed: int) -> None:
    rng, k = np.random.default_rng(seed), steps_of(kind, steps)
    blocks = blocks_of(rng, kind, n, k)
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    x = normal(rng, (m, k), "float16")
    a = device.array(x)
    bound = error_of(x, blocks, kind, "float32" if m <= quantized_cores.MOST_ROWS else "float16", dots=m == 1)
    first = vkpar.matmul(a, q, transpose_b=True, dtype="float32")
    check(first, x.astype(np.float64) @ weights.T, bound)
    again = vkpar.matmul(a, q, transpose_b=True, dtype="float32")  # by what the first one kept
    np.testing.assert_array_equal(again.numpy(), first.numpy())


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("m", [2, 7, 8, 9, 16])
def test_every_way(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str, m: int
) -> None:
    n, k = 133, steps_of(kind, 37)
    blocks = blocks_of(rng, kind, n, k)
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    x = normal(rng, (m, k), "float16")
    a, want, bound = device.array(x), x.astype(np.float64) @ weights.T, error_of(x, blocks, kind)
    found = list(quantized_cores.spreads(device.info, KINDS[kind], m))
    assert found
    for way in found:
        monkeypatch.setattr(quantized_cores, "spread", lambda *_, way=way: way)
        forget(device)
        check(vkpar.matmul(a, q, transpose_b=True, dtype="float32"), want, bound)
    forget(device)


@pytest.mark.parametrize("kind", NAMES)
def test_what_follows(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whole numbers, which are exact: a bias, an activation and a residual, eager and captured."""
    n, k, m = 70, steps_of(kind, 4), 5
    blocks = whole_numbers(blocks_of(rng, kind, n, k), kind)
    q, weights = made(device, blocks, kind), exact(blocks, kind)
    x, bias, more = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (n,), (m, n)))
    a, b, r = device.array(x, "float16"), device.array(bias), device.array(more)
    want = np.maximum(x @ weights.T + bias, 0) + more
    with monkeypatch.context() as patch:
        sent = dispatches(patch)
        vkpar.matmul(a, q, transpose_b=True, dtype="float32")
        assert [each.name for each in sent] == [quantized_cores.module_of(KINDS[kind])]

    def product(out: vkpar.Array | None = None) -> vkpar.Array:
        return vkpar.matmul(a, q, transpose_b=True, dtype="float32", bias=b, activation="relu", residual=r, out=out)

    np.testing.assert_array_equal(product().numpy(), want)
    out = device.zeros((m, n))
    with vkpar.capture([device]) as graph:
        product(out)
    for _ in range(2):
        out.fill_zeros()
        graph.launch().wait()
        np.testing.assert_array_equal(out.numpy(), want)
    graph.close()


@pytest.mark.parametrize("kind", NAMES)
def test_not_finite(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    """NaN and infinities stay in their row, and the largest halves do not overflow."""
    n, k = 40, steps_of(kind, 3)
    blocks = blocks_of(rng, kind, n, k)
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    x = normal(rng, (4, k), "float16")
    x[0, 5], x[1, 7], x[2, 3] = np.nan, np.inf, 65504
    found = vkpar.matmul(device.array(x), q, transpose_b=True, dtype="float32").numpy()
    assert np.isnan(found[0]).all()
    assert not np.isfinite(found[1]).any()
    error = error_of(x[2:], blocks, kind)
    assert (np.abs(found[2:] - x[2:].astype(np.float64) @ weights.T) <= error).all()
