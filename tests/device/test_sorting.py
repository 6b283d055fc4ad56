"""Kernels that sort, on whatever device there is: lanes that tell each other by subgroups, by shared memory, or not.

Stable orders of NumPy's are what they must give, of rows in shared memory and of rows in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.vulkan.planning import forget

import vkpar
from vkpar.ops.reduce import cpu, sorting

pytestmark = [pytest.mark.device, pytest.mark.sampled(9)]


@pytest.fixture(params=["sort_warps", "sort_masks", "sort_lanes", "compared"])
def sorter(
    device: vkpar.Device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[vkpar.Device]:
    """A device that takes the kernel, of short chunks where these or the subgroups are those of CPU drivers."""
    features = device.info.features
    subgroups = request.param == "sort_warps"
    if subgroups and ("ballot" not in features.subgroup_operations or not 4 <= features.subgroup_size <= 32):
        pytest.skip(f"{device} has subgroups of {features.subgroup_size} without ballots")
    forget(device)
    monkeypatch.setattr(cpu, "sorts", lambda _, rows, count, passes: _shape(request.param, count))
    monkeypatch.setattr(sorting, "has_warps", lambda *_: subgroups)
    if subgroups:
        monkeypatch.setattr(sorting, "_THREADS", min(8 * features.subgroup_size, 256))
    yield device
    forget(device)


def _shape(kernel: str, count: int) -> tuple[int, int, bool] | None:
    """Return the chunks of CPU drivers: short ones, or short rows that are compared; None for kernels of GPUs."""
    if kernel == "compared" and count <= 64:
        return 16, count, True
    return (8, 64, False) if kernel in ("sort_lanes", "compared") else None


SHAPES = [(3, 7), (70, 1), (40, 16), (2, 33), (9, 64), (3, 300), (1, 4096), (2, 4097), (1, 13_000)]


@pytest.mark.parametrize("shape", SHAPES)
def test_elements_and_places(sorter: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    a = rng.integers(-9, 9, shape).astype(np.float32) * 2.0 ** rng.integers(-40, 40, shape)
    special = rng.choice(6, shape, p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    a = np.choose(special, [a, np.nan, np.inf, -np.inf, -0.0, -np.nan]).astype(np.float32)
    order = np.argsort(a, kind="stable")
    x = sorter.array(a)
    np.testing.assert_array_equal(vkpar.argsort(x).numpy(), order)
    got, want = vkpar.sort(x).numpy(), np.take_along_axis(a, order, 1)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    "dtype", ["int32", "uint32", "int8", "uint16", "bool", "float16", "bfloat16", "int64", "uint64"]
)
def test_types(sorter: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    for shape in ((30, 20), (2, 500), (1, 9000)):
        a = rng.integers(-(1 << 31), 1 << 31, shape)
        x = sorter.array(
            (a % 2 if dtype == "bool" else a if dtype[0] in "iu" else a / 2**26).astype(
                vkpar.dtypes.resolve(dtype).numpy
            )
        )
        host = x.numpy()
        order = np.argsort(host.astype(np.float32) if "float" in dtype else host, kind="stable")
        np.testing.assert_array_equal(vkpar.argsort(x).numpy(), order)
        np.testing.assert_array_equal(vkpar.sort(x).numpy(), np.take_along_axis(host, order, 1))


@pytest.mark.parametrize("shape", [(50, 9), (2, 320), (1, 5000)])
def test_float64(sorter: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    """Zeros, infinities, NaN of either sign and numbers below the normal ones, and numbers whose upper words agree."""
    a = 1 + rng.integers(-9, 9, shape) * 2.0**-40
    special = [a, -a, np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, -5e-324, -1e-310]
    a = np.choose(rng.integers(0, len(special), shape), special)
    order = np.argsort(a, kind="stable")
    x, out = sorter.array(a), sorter.zeros((shape[0] + 1, shape[1]), "float64")
    np.testing.assert_array_equal(vkpar.argsort(x).numpy(), order)
    vkpar.sort(x, out=out[1:])
    want = np.take_along_axis(a, order, 1)
    np.testing.assert_array_equal(out[1:].numpy().view(np.uint64), want.view(np.uint64))
    falling = np.lexsort((np.where(np.isnan(a), 0, -a), np.isnan(a)))[:, :5]
    values, places = vkpar.topk(x, 5)
    np.testing.assert_array_equal(places.numpy(), falling)
    np.testing.assert_array_equal(values.numpy().view(np.uint64), np.take_along_axis(a, falling, 1).view(np.uint64))


@pytest.mark.parametrize("same", [True, False])
def test_sizes_that_fill_chunks_and_digits(sorter: vkpar.Device, rng: np.random.Generator, same: bool) -> None:
    """Of one digit all lanes, or of 255, as what is behind the end of a row has; and into a part of other memory."""
    for count in (1, 31, 512, 2048, 8192, 8193):
        a = (
            np.full(count, 0xFFFFFF01, np.uint32)
            if same
            else rng.integers(0xFFFFFFF0, 1 << 32, count).astype(np.uint32)
        )
        out = sorter.zeros(count + 3, "uint32")
        vkpar.sort(sorter.array(a), out=out[2:-1])
        np.testing.assert_array_equal(out.numpy(), [0, 0, *np.sort(a), 0])
        np.testing.assert_array_equal(vkpar.argsort(sorter.array(a)).numpy(), np.argsort(a, kind="stable"))


def test_the_largest_first_and_sums_at_places(sorter: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((2, 5000)).astype(np.float32)
    a[:, 7::9] = np.nan
    values, places = vkpar.topk(sorter.array(a), 600)
    order = np.argsort(-a, kind="stable")[:, :600]
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, order, 1))
    numbers = rng.integers(0, 3000, 20_000).astype(np.int32)
    whole = vkpar.scatter_add(sorter.zeros(3000, "int32"), 0, sorter.array(numbers), sorter.array(numbers))
    np.testing.assert_array_equal(whole.numpy(), np.bincount(numbers, minlength=3000) * np.arange(3000))
