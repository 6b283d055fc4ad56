"""Large arrays by element: on CPU drivers kernels without tests at the end make them, where work-groups fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.ops.functions import SHIPPED

pytestmark = pytest.mark.device

FULL = 1 << 18  # elements from which there may be one, and multiples of 4,096


def kernels(device: vkpar.Device) -> set[str]:
    """The forms of the elementwise kernels that a device has made so far."""
    made = device.logical.pipelines._pipelines.values()
    return {pipeline.name.rpartition("_")[2] for pipeline in made if pipeline.name.startswith("each_")}


def values(rng: np.random.Generator, count: int, dtype: str) -> NDArray[Any]:
    if dtype == "float32":
        return rng.standard_normal(count).astype(np.float32)
    return rng.integers(0, 2**32, count, dtype=np.uint32).view(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
@given(
    more=st.sampled_from([0, 1, 4, 1024, 4096, 12288]),
    first=st.sampled_from([0, 1, 4, 4096]),
    seed=st.integers(0, 99),
)
def test_any_place_and_size(device: vkpar.Device, dtype: str, more: int, first: int, seed: int) -> None:
    """What lies beside the result stays, and in place each element is made once."""
    rng = np.random.default_rng(seed)
    count = FULL + more
    x, y = values(rng, count + first + 9, dtype), values(rng, count, dtype)
    a, b = device.array(x), device.array(y)
    part = a[first : first + count]
    one = device.array(y[:1])
    np.testing.assert_array_equal((part + b).numpy(), x[first : first + count] + y)
    np.testing.assert_array_equal((part * one).numpy(), x[first : first + count] * y[:1])
    np.testing.assert_array_equal((part < b).numpy(), x[first : first + count] < y)
    part += b
    x[first : first + count] += y
    np.testing.assert_array_equal(a.numpy(), x)
    part.fill(7)
    x[first : first + count] = 7
    np.testing.assert_array_equal(a.numpy(), x)


@pytest.mark.parametrize("name", sorted({"subtract", "maximum", "where", "relu", "abs", "negative"}))
def test_exact_functions(device: vkpar.Device, rng: np.random.Generator, name: str) -> None:
    x, y, mask = values(rng, FULL, "float32"), values(rng, FULL, "float32"), values(rng, FULL, "uint32") & 1
    a, b, c = device.array(x), device.array(y), device.array(mask)
    x[:5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    a.write(x)
    if name == "where":
        got, want = vkpar.where(c, a, b), np.where(mask, x, y)
    elif name in ("subtract", "maximum"):
        got, want = getattr(vkpar, name)(a, b), getattr(np, name)(x, y)
    else:
        got, want = getattr(vkpar, name)(a), np.maximum(x, 0) if name == "relu" else getattr(np, name)(x)
    np.testing.assert_array_equal(got.numpy(), want)


def test_numbers_several_results_and_later_calls(device: vkpar.Device, rng: np.random.Generator) -> None:
    """The plan of the first call has the grid of the kernel that it took."""
    step = vkpar.elementwise("v2 = beta * v + g; w2 = w - rate * v2")
    w, v, g = (values(rng, FULL, "float32") for _ in range(3))
    arrays = [device.array(x) for x in (w, v, g)]
    for beta, rate in ((0.5, 0.25), (2.0, 0.125), (0.5, 4.0)):
        step(w=arrays[0], v=arrays[1], g=arrays[2], beta=beta, rate=rate, out=(arrays[1], arrays[0]))
        v = np.float32(beta) * v + g
        w = w - np.float32(rate) * v
        np.testing.assert_array_equal(arrays[0].numpy(), w)
        np.testing.assert_array_equal(arrays[1].numpy(), v)


def test_which_drivers_take_them(device: vkpar.Device) -> None:
    a = device.zeros(FULL)
    SHIPPED["subtract"](a, a)
    assert ("full" in kernels(device)) == device.info.tests_lanes
