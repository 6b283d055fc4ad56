"""Large arrays by element: on CPU drivers kernels without tests at the end make them, where work-groups fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.planning import forget
from numpy.typing import NDArray

import vkpar
from vkpar.ops.elementwise import cpu, ways
from vkpar.ops.elementwise.functions import SHIPPED
from vkpar.ops.elementwise.kinds import GROUP

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


SMALL = 1 << 10  # elements from which there may be one of a single axis
PLACES = [
    *((FULL + more, first) for more, first in ((0, 0), (0, 1), (1, 4), (4, 4096), (4096, 4), (12288, 1), (1024, 0))),
    *(
        (SMALL + more, first)
        for more, first in ((-1, 0), (0, 0), (1, 8), (15, 4), (16, 0), (3786, 8), (511, 12), (8, 1))
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
@pytest.mark.parametrize(("count", "first"), PLACES)
def test_any_place_and_size(device: vkpar.Device, rng: np.random.Generator, dtype: str, count: int, first: int) -> None:
    """What lies beside the result stays, and in place each element is made once."""
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", [4, 8, 12, 100, 1000, 1024, 2048, 4096])
def test_rows(device: vkpar.Device, rng: np.random.Generator, width: int) -> None:
    """Biases, columns of both sides, rows backwards, every second column, parts of rows: each unit of them once."""
    height = FULL // width + 3
    x = values(rng, 2 * height * width, "float32").reshape(height, 2 * width)
    a, bias, column = device.array(x), x[0, :width].copy(), x[:, :1]
    left, right = x[:, :width], x[:, width:]
    np.testing.assert_array_equal((a[:, :width] + a[:, width:]).numpy(), left + right)
    np.testing.assert_array_equal((a[:, :width] - device.array(bias)).numpy(), left - bias)
    np.testing.assert_array_equal((a[:, width:] + device.array(bias)).numpy(), right + bias)
    np.testing.assert_array_equal((a[:, width:] * a[:, :1]).numpy(), right * column)
    np.testing.assert_array_equal((a[::-1, ::2] * 2.0).numpy(), x[::-1, ::2] * 2)
    a[:, :width] += a[:, width:]  # in place, and nothing beside it
    left += right
    np.testing.assert_array_equal(a.numpy(), x)
    a[:, width:] = a[::-1, :width]
    right[:] = left[::-1].copy()
    np.testing.assert_array_equal(a.numpy(), x)
    np.testing.assert_array_equal((a[:, ::-1] < a[:, 1:2]).numpy(), x[:, ::-1] < x[:, 1:2])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("width", [4, 8, 12, 24, 64, 1000])
@pytest.mark.parametrize("start", [0, 1, 2, 4, 8, 9])
def test_every_second_column(device: vkpar.Device, rng: np.random.Generator, width: int, start: int) -> None:
    """Whole eights are read where they begin at eights; what lies between is no element."""
    height = FULL // width + 3
    for beside in (16, 12, 11):  # rows begin at multiples of eight, of four, and of one
        x = values(rng, height * (2 * width + beside), "float32").reshape(height, -1)
        seen = x[:, start : start + 2 * width : 2]
        a = device.array(x)
        part = a[:, start : start + 2 * width : 2]
        np.testing.assert_array_equal(part.contiguous().numpy(), seen)
        np.testing.assert_array_equal((part + part).numpy(), seen + seen)
        part += 1.0
        seen += 1
        np.testing.assert_array_equal(a.numpy(), x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16", "uint16"])
@pytest.mark.parametrize("count", [0, 1, 31, SMALL, SMALL + 1, 8192, 8192 + 16, 65536 + 31, FULL])
def test_few_bits(device: vkpar.Device, rng: np.random.Generator, dtype: str, count: int) -> None:
    """Where all operands begin at multiples of 32, of 16, or at none, and where they differ; in place, too."""
    x = (values(rng, count + 96, "uint32") % (2 if dtype == "bool" else 1 << 16)).astype(dtype)
    for first in (0, 32, 16, 8, 5):
        a, b = device.array(x), device.array(x[:count][::-1].copy())
        part, seen, other = a[first : first + count], x[first : first + count], x[:count][::-1]
        word = "bitwise_xor" if dtype == "bool" else "add"
        np.testing.assert_array_equal(getattr(vkpar, word)(part, b).numpy(), getattr(np, word)(seen, other))
        np.testing.assert_array_equal((part < b).numpy(), seen < other)
        np.testing.assert_array_equal(vkpar.where(b > part, part, b).numpy(), np.where(other > seen, seen, other))
        np.testing.assert_array_equal(vkpar.cast(part, "float32").numpy(), seen.astype(np.float32))
        vkpar.maximum(part, b, out=part)
        want = x.copy()
        want[first : first + count] = np.maximum(seen, other)
        np.testing.assert_array_equal(a.numpy(), want)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16"])
@pytest.mark.parametrize("width", [4, 8, 16, 24, 48, 1000, 2048])
@pytest.mark.parametrize("beside", [0, 8, 16, 3])
def test_rows_of_few_bits(device: vkpar.Device, rng: np.random.Generator, dtype: str, width: int, beside: int) -> None:
    """Rows that begin at multiples of sixteen, of eight and of one; a row for all, and an element for each."""
    height = FULL // width + 3
    x = (values(rng, height * (width + beside), "uint32") % (2 if dtype == "bool" else 1 << 16)).astype(dtype)
    x = x.reshape(height, -1)
    a, seen = device.array(x)[:, :width], x[:, :width]
    for other in (a[:1], a[:, 3:4], a[::-1]):
        host = other.numpy()
        np.testing.assert_array_equal(vkpar.maximum(a, other).numpy(), np.maximum(seen, host))
        np.testing.assert_array_equal((a < other).numpy(), seen < host)


@pytest.mark.parametrize("count", [1000, 1024, 4810, FULL, FULL + 13])
def test_counts(device: vkpar.Device, count: int) -> None:
    np.testing.assert_array_equal(vkpar.arange(device, 3, 3 + 7 * count, 7).numpy(), np.arange(3, 3 + 7 * count, 7))
    made = vkpar.arange(device, 0.5, 0.5 + count, 1.0).numpy()
    np.testing.assert_array_equal(made, np.arange(count, dtype=np.float32) + np.float32(0.5))


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
    SHIPPED["subtract"](a.reshape(512, 512), a[:512])
    assert {"full", "rows"} <= kernels(device) or not device.info.tests_lanes
    assert device.info.tests_lanes or not {"full", "rows"} & kernels(device)


def test_bytes_alone_are_more_of_an_invocation(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []
    constants = ways.Dispatch._constants
    monkeypatch.setattr(
        ways.Dispatch,
        "_constants",
        lambda self, grid: given.append(constants(self, grid).lying) or constants(self, grid),
    )
    a, words = device.zeros(FULL, "uint8"), device.zeros(FULL, "int32")
    forget(device)
    for first, second in ((a, a), (a[16:], a[: FULL - 16]), (a, words)):
        SHIPPED["mod"](first, second)  # which is not made word by word
    forget(device)
    assert [lying[2] for lying in given] == [8, 4, 4] or not device.info.tests_lanes


def test_the_longest_row_that_float32_divides() -> None:
    """As the kernel finds an invocation's row and its place in that: by a quotient of float32."""
    for units in (cpu.LONGEST_ROW // 4, cpu.LONGEST_ROW // 4 - 1, cpu.LONGEST_ROW // 16, 255, 1):
        unit = np.arange(max(units - 300, 0), units + GROUP - 1)
        middle = unit.astype(np.float32) + np.float32(0.5)
        np.testing.assert_array_equal((middle / np.float32(units)).astype(np.int64), unit // units)


def test_longer_rows_go_by_another_kernel(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    width, given = 1 << 12, []
    fold = ways.Dispatch._constants
    monkeypatch.setattr(ways.Dispatch, "_constants", lambda self, grid: given.append(self._form) or fold(self, grid))
    x = values(rng, 2 * FULL, "float32").reshape(-1, 2 * width)
    a = device.array(x)
    forget(device)
    for longest in (width, width - 1):
        monkeypatch.setattr(cpu, "LONGEST_ROW", longest)
        np.testing.assert_array_equal((a[:, :width] + a[:, width:]).numpy(), x[:, :width] + x[:, width:])
        forget(device)
    assert given == ["rows" if device.info.tests_lanes else "tile", "tile"]


def test_rows_of_more_groups_than_a_device_starts_along_x(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(device.limits, max_workgroup_count=(2, 65535, 65535))
    monkeypatch.setattr(vkpar.Device, "limits", limits)
    grids: list[tuple[int, int, int]] = []
    constants = ways.Dispatch._constants
    monkeypatch.setattr(
        ways.Dispatch,
        "_constants",
        lambda self, grid: grids.append(grid) or constants(self, grid),
    )
    x = values(rng, 2 * FULL, "float32").reshape(64, -1)
    a, half = device.array(x), x.shape[1] // 2
    forget(device)
    np.testing.assert_array_equal((a[:, :half] + a[:, half:]).numpy(), x[:, :half] + x[:, half:])
    np.testing.assert_array_equal((a.reshape(-1)[::-1] * 2.0).numpy(), x.reshape(-1)[::-1] * 2)
    forget(device)
    assert len(grids) == 2
    assert max(grid[0] for grid in grids) <= 2
