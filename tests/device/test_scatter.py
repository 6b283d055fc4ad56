"""Elements added at places, on every driver, against NumPy's add.at.

The cases are those of torch's test/test_scatter_gather_ops.py: test_scatter_add, its sizes that differ,
test_scatter_add_one_dim_deterministic, test_scatter_add_zero_size_index, and the types of its operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import FULL
from hypothesis import given, settings
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.testing import U

pytestmark = pytest.mark.device
Host = np.ndarray[Any, np.dtype[Any]]
TYPES = ("float32", "float16", "int32", "uint32", "uint8", "int16", "bool", "int64", "uint64", "float64")
INDICES = ("int32", "uint32", "int64", "uint64", "int16", "uint8")


def added(a: Host, axis: int, indices: Host, source: Host) -> Host:
    """Return what NumPy makes of it; places that are not there are left out."""
    made = a.copy()
    length = a.shape[axis]
    where = list(np.indices(indices.shape))
    there = (indices.astype(object) >= -length) & (indices.astype(object) < length)
    where[axis] = np.where(there, indices.astype(object), 0).astype(np.int64)
    kept = source[tuple(map(slice, indices.shape))]
    np.add.at(made, tuple(each[there] for each in where), kept[there])
    return made


def computes(device: vkpar.Device, dtype: str) -> bool:
    features = device.info.features
    return features.float64 if dtype == "float64" else features.int64 or dtype not in ("int64", "uint64")


@settings(max_examples=100 if FULL else 4)
@given(data=st.data())
def test_against_numpy(device: vkpar.Device, data: st.DataObject) -> None:
    """Numbers whose sums are exact in the type, any shapes, axes and types of places."""
    dtype = data.draw(st.sampled_from(TYPES))
    if not computes(device, dtype):
        with pytest.raises(UnsupportedError, match=f"does not compute {dtype}"):
            vkpar.scatter_add(device.zeros(2, dtype), 0, device.array([0]), device.zeros(1, dtype))
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    taken = [data.draw(st.integers(0, size)) for size in shape]
    taken[axis] = data.draw(st.integers(0, 200))
    kind = data.draw(st.sampled_from(INDICES))
    low = 0 if kind.startswith("u") else -shape[axis] - 2
    indices = rng.integers(low, shape[axis] + 2, taken).astype(kind)
    if kind in ("int64", "uint64"):
        indices = np.where(rng.random(taken) < 0.1, indices + np.array(1 << 33, kind), indices)
    most = 2 if dtype in ("bool", "float16") else 100
    a = rng.integers(0, most, shape).astype(dtype)
    wider = [size + data.draw(st.integers(0, 2)) for size in taken]
    source = rng.integers(0, most, wider).astype(dtype)
    x, i, s = (device.array(each, each.dtype) for each in (a, indices, source))
    want = added(a, axis, indices, source)
    np.testing.assert_array_equal(vkpar.scatter_add(x, axis, i, s).numpy(), want)
    room = device.zeros((*shape[:-1], shape[-1] + 3), dtype)
    out = room[..., 1:-2]
    vkpar.scatter_add(x.T.contiguous().T, axis, i, s, out=out)
    np.testing.assert_array_equal(out.numpy(), want)
    assert not room.numpy()[..., [0, -1, -2]].any()
    assert vkpar.scatter_add(x, axis, i, s, out=x) is x
    np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize(("length", "count"), [(1, 5000), (4, 40_000), (70_000, 70_000), (3, 1025)])
def test_long_rows(device: vkpar.Device, rng: np.random.Generator, length: int, count: int) -> None:
    """Runs that go over many invocations and dispatches: exact ones, and floats in the bound, with the same bits."""
    indices = rng.integers(0, length, count).astype(np.int32)
    indices[: count // 2] = 0
    whole = rng.integers(-(1 << 31), 1 << 31, count).astype(np.int32)
    x = device.zeros(length, "int32")
    got = vkpar.scatter_add(x, 0, device.array(indices), device.array(whole))
    np.testing.assert_array_equal(got.numpy(), added(np.zeros(length, np.int32), 0, indices, whole))
    source = rng.standard_normal(count).astype(np.float32)
    zeros = device.zeros(length)
    made = [vkpar.scatter_add(zeros, 0, device.array(indices), device.array(source)).numpy() for _ in range(2)]
    assert made[0].tobytes() == made[1].tobytes()
    want = added(np.zeros(length), 0, indices, source.astype(np.float64))
    size = added(np.zeros(length), 0, indices, np.abs(source.astype(np.float64)))
    additions = 33 * np.ceil(np.log2(count) / 4 + 1)
    assert (np.abs(made[0] - want) <= additions * 2 * U * size).all()


def test_values_that_are_no_numbers(device: vkpar.Device) -> None:
    a = np.float32([-0.0, 1, np.inf, np.inf, 0, -0.0, 2])
    indices, source = np.int32([0, 1, 2, 3, 3, 4]), np.float32([-0.0, np.nan, 1, -np.inf, 1, -0.0])
    got = vkpar.scatter_add(*(device.array(a), 0, device.array(indices), device.array(source))).numpy()
    with np.errstate(invalid="ignore"):
        want = added(a, 0, indices, source)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[[0, 5]]), [True, True])


def test_nothing_to_add(device: vkpar.Device) -> None:
    x, none = device.array([1.0, 2.0]), device.zeros(0, "int32")
    assert vkpar.scatter_add(x, 0, none, device.zeros(0)).tolist() == [1.0, 2.0]
    empty = device.zeros((0, 3))
    assert vkpar.scatter_add(empty, 0, device.zeros((2, 3), "int32"), device.zeros((2, 3))).shape == (0, 3)


def test_captured(device: vkpar.Device, rng: np.random.Generator) -> None:
    """A launch adds what lies there by then, once each time."""
    a, source = rng.integers(0, 9, (3, 50)).astype(np.float32), rng.integers(0, 9, (3, 70)).astype(np.float32)
    indices = rng.integers(0, 50, (3, 70)).astype(np.int32)
    x, i, s = device.array(a), device.array(indices), device.array(source)
    with vkpar.capture(device) as graph:
        vkpar.scatter_add(x, 1, i, s, out=x)
        made = vkpar.scatter_add(x, 1, i, s)
    for turn in range(3):
        graph.launch()
        once = added(a, 1, indices, source * (turn + 1))
        np.testing.assert_array_equal(x.numpy(), once)
        np.testing.assert_array_equal(made.numpy(), added(once, 1, indices, source))
    graph.close()


def test_what_is_refused(device: vkpar.Device) -> None:
    x, i = device.zeros((3, 4)), device.zeros((3, 2), "int32")
    for axis, indices, source in ((2, i, x), (0, i, x[:, :1]), (1, i[0], x[0]), (1, device.zeros((4, 2), "int32"), x)):
        with pytest.raises(InvalidUsageError):
            vkpar.scatter_add(x, axis, indices, source)
    with pytest.raises(InvalidUsageError, match="share memory"):
        vkpar.scatter_add(x, 1, i, x[:, 1:3], out=x)
    with pytest.raises(InvalidUsageError, match="whole number"):
        vkpar.scatter_add(x, "x", i, x)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="cast one first"):
        vkpar.scatter_add(x, 1, i, device.zeros((3, 4), "int32"))
    with pytest.raises(UnsupportedError, match="integers"):
        vkpar.scatter_add(x, 1, device.zeros((3, 2)), x)
