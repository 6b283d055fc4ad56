"""add, bit for bit against NumPy: types, biases, in place, views at any offset, windows and folded grids."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar

each = importlib.import_module("vkpar.ops.elementwise.run")
windows = importlib.import_module("vkpar.ops.call.windows")
elementwise = importlib.import_module("vkpar.ops.elementwise.add")
pytestmark = pytest.mark.device

FLOATS = ("float32", "float16", "bfloat16")
SIZES = (1, 2, 3, 4, 5, 63, 1024, 1025, 4099)


def normal(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Random values that ``dtype`` holds exactly, as float32."""
    values = rng.standard_normal(shape).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def stored(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The bits that an array of ``dtype`` holds for these float32 values, rounded to nearest even."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(vkpar.bfloat16.numpy)
    return values.astype(dtype)


def result_type(a: str, b: str) -> str:
    return a if a == b else "float32"


@pytest.mark.parametrize("b_type", FLOATS)
@pytest.mark.parametrize("a_type", FLOATS)
def test_types(device: vkpar.Device, rng: np.random.Generator, a_type: str, b_type: str) -> None:
    for size in SIZES:
        a, b = normal(rng, size, a_type), normal(rng, size, b_type)
        out = vkpar.add(device.array(a, a_type), device.array(b, b_type))
        assert out.dtype == result_type(a_type, b_type)
        np.testing.assert_array_equal(out.numpy(), stored(a + b, out.dtype.name))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers_wrap(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = (rng.integers(0, 2**32, 4099, dtype=np.uint32).view(dtype) for _ in range(2))
    out = vkpar.add(device.array(a), device.array(b))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.numpy(), a + b)
    bias = vkpar.add(device.array(a[:4095].reshape(-1, 9)), device.array(b[:9]))
    np.testing.assert_array_equal(bias.numpy(), a[:4095].reshape(-1, 9) + b[:9])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 100, 1023, 1024])
@pytest.mark.parametrize("types", ["float32 float32", "float16 float16", "float16 float32", "bfloat16 float16"])
def test_bias(device: vkpar.Device, rng: np.random.Generator, types: str, length: int) -> None:
    a_type, b_type = types.split()
    a, b = normal(rng, (7, length), a_type), normal(rng, length, b_type)
    out = vkpar.add(device.array(a, a_type), device.array(b, b_type))
    np.testing.assert_array_equal(out.numpy(), stored(a + b, out.dtype.name))


def test_bias_of_many_dimensions(device: vkpar.Device, rng: np.random.Generator) -> None:
    a, b = normal(rng, (2, 3, 5), "float32"), normal(rng, 5, "float32")
    np.testing.assert_array_equal(vkpar.add(device.array(a), device.array(b)).numpy(), a + b)
    scalar = vkpar.add(device.array(np.float32(1.5)), device.array(np.float32(2)))
    assert scalar.shape == ()
    assert scalar.numpy() == 3.5


@given(data=st.data())
def test_views_in_place(device: vkpar.Device, data: st.DataObject) -> None:
    """Operands and output anywhere in a bigger array: nothing around the output changes."""
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    size, before_a, before_b = (data.draw(st.integers(low, 70)) for low in (1, 0, 0))
    target = data.draw(st.sampled_from(["a", "b", "new"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    around_a, around_b, around_c = (rng.standard_normal(size + 80).astype(dtype) for _ in range(3))
    spans = [(around_a, before_a), (around_b, before_b), (around_c, data.draw(st.integers(0, 9)))]
    arrays = [device.array(values) for values, _ in spans]
    views = [array[start : start + size] for array, (_, start) in zip(arrays, spans, strict=True)]
    sum32 = [v[s : s + size].astype(np.float32) for v, s in spans[:2]]
    index = ["a", "b", "new"].index(target)
    assert vkpar.add(views[0], views[1], out=views[index]) is views[index]
    spans[index][0][spans[index][1] : spans[index][1] + size] = (sum32[0] + sum32[1]).astype(dtype)
    for array, (values, _) in zip(arrays, spans, strict=True):
        np.testing.assert_array_equal(array.numpy(), values)


def test_the_same_array_twice(device: vkpar.Device, rng: np.random.Generator) -> None:
    values = normal(rng, 1001, "float16")
    a = device.array(values, "float16")
    vkpar.add(a, a, out=a)
    np.testing.assert_array_equal(a.numpy(), (values + values).astype(np.float16))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [4, 5, 6, 7, 1029])
def test_what_lies_beside_a_result_stays(device: vkpar.Device, count: int, dtype: str) -> None:
    """In the middle of an array, and at its end, where kernels may write the padding; eager and by plan; in place."""
    for first, total in ((4, count + 12), (0, count), (8, count + 8)):
        around = device.array(np.arange(total), dtype)
        part = around[first : first + count]
        expected = np.arange(total, dtype=dtype)
        for _ in range(2):
            vkpar.add(part, part, out=part)
            vkpar.subtract(part, 1, out=part)
            expected[first : first + count] = expected[first : first + count] * 2 - 1
        np.testing.assert_array_equal(around.numpy(), expected)


@pytest.mark.parametrize("count", [1, 1024, 1027, 2047, 2048, 4095, 5001])
def test_two_blocks_an_invocation(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """What GPUs do with many halves."""
    monkeypatch.setattr(elementwise, "_blocks", lambda out, count: 2)
    monkeypatch.setattr(each.Dispatch, "_blocks", lambda self: 2)
    values = (np.arange(count) % 1000).astype(np.float16)
    a = device.array(values.reshape(1, 1, -1), "float16")  # a shape that no other test has a plan of
    bias = device.array(values[:1], "float16")
    np.testing.assert_array_equal(vkpar.add(a, a).numpy().ravel(), values * 2)
    np.testing.assert_array_equal((a + bias).numpy().ravel(), values + values[0])
    np.testing.assert_array_equal(vkpar.subtract(a, 3).numpy().ravel(), values - 3)
    np.testing.assert_array_equal(vkpar.maximum(a, bias, out=a).numpy().ravel(), values)


def test_special_values(device: vkpar.Device) -> None:
    a = np.array([np.inf, -np.inf, np.inf, np.nan, 65504, -65504, 0.0, 3e38], np.float32)
    b = np.array([1, 1, -np.inf, 1, 16, -16, -0.0, 3e38], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(vkpar.add(device.array(a), device.array(b)).numpy(), a + b)
        a16, b16 = a.astype(np.float16), b.astype(np.float16)
        np.testing.assert_array_equal(vkpar.add(device.array(a16), device.array(b16)).numpy(), a16 + b16)


@pytest.mark.parametrize("length", [0, 100, 3000, 3001])
def test_windows(reopen: Callable[..., vkpar.Device], rng: np.random.Generator, length: int) -> None:
    """Arrays, and biases, beyond one binding: parts of 1024 elements here."""
    device = reopen(max_binding=5000)
    a = normal(rng, (3, length) if length else 5000, "float32")
    b = normal(rng, length or 5000, "float16")
    out = vkpar.add(device.array(a), device.array(b, "float16"))
    np.testing.assert_array_equal(out.numpy(), a + b)
    halves = vkpar.add(device.array(a, "float16"), device.array(b, "float16"))
    np.testing.assert_array_equal(halves.numpy(), (a.astype(np.float16).astype(np.float32) + b).astype(np.float16))


def test_grids_fold(device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(max_workgroup_count=(3, 65535, 65535))
    small = SimpleNamespace(limits=limits, info=device.info)
    for module in ("vkpar.ops.call.call", "vkpar.ops.elementwise.cpu"):
        monkeypatch.setattr(f"{module}.fold_groups", lambda device, count: windows.fold_groups(small, count))
    a, b = normal(rng, 10_007, "float32"), normal(rng, 10_007, "float32")
    np.testing.assert_array_equal(vkpar.add(device.array(a), device.array(b)).numpy(), a + b)
    with pytest.raises(vkpar.UnsupportedError, match="work groups"):
        windows.fold_groups(small, 3 * 65535 + 1)


def test_an_array_beyond_the_binding_limit(device: vkpar.Device) -> None:
    limit = device.limits.max_storage_buffer_range
    if limit > 1 << 28:
        pytest.skip("the limit is too high to cross it in a test")
    length = 1001
    rows = limit // 4 // length + 3
    a = device.zeros((rows, length))
    bias = np.arange(length, dtype=np.float32)
    vkpar.add(a, device.array(bias), out=a)
    assert (a.numpy() == bias).all()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_zero_sizes(device: vkpar.Device, shape: tuple[int, ...]) -> None:
    a = device.empty(shape, "float16")
    out = vkpar.add(a, device.empty(shape[-1:], "float32"))
    assert (out.shape, out.dtype) == (shape, "float32")
    assert vkpar.add(a, a, out=a) is a


Call = Callable[[vkpar.Device, vkpar.Array, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a, b: vkpar.add(a, d.zeros(3)), vkpar.InvalidUsageError, r"\(3, 4\), \(3,\) cannot be broadcast"),
        (lambda d, a, b: vkpar.add(a, None), vkpar.OperandError, "arrays of one device and numbers, not NoneType"),
        (lambda d, a, b: vkpar.add(2, 1.0), vkpar.InvalidUsageError, "at least one array"),
        (lambda d, a, b: vkpar.add(a, b, out=d.empty(12)), vkpar.InvalidUsageError, r"result is \(3, 4\) float32"),
        (lambda d, a, b: vkpar.add(a, b, out=d.empty((3, 4), "float16")), vkpar.InvalidUsageError, "float16"),
        (lambda d, a, b: vkpar.add(a[:2], b, out=a[1:]), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, b: vkpar.add(a, a[0], out=a), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, b: vkpar.exp(d.zeros(4, "float64")), vkpar.UnsupportedError, "float64"),
        (
            lambda d, a, b: vkpar.add(d.zeros(4, "int64"), d.zeros(4, "uint64")),
            vkpar.UnsupportedError,
            "int64 with uint64",
        ),
        (lambda d, a, b: vkpar.exp(d.zeros(4, "int64")), vkpar.UnsupportedError, "not int64"),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    a, b = device.zeros((3, 4)), device.zeros(4)
    with pytest.raises(error, match=message):
        call(device, a, b)


def test_arrays_of_another_or_closed_device(device: vkpar.Device) -> None:
    (other,) = vkpar.open_devices(str(device.info.index))
    b = other.zeros(4)
    with pytest.raises(vkpar.InvalidUsageError, match="different devices"):
        vkpar.add(device.zeros(4), b)
    other.close()
    with pytest.raises(vkpar.InvalidUsageError):
        vkpar.add(b, b)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_columns_that_stand_for_rows(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Of arrays so large that CPU drivers take kernels with few tests of lanes, and of such that they do not take."""
    for columns in (512, 516, 6) if device.info.tests_lanes else (6,):
        a = rng.integers(0, 100, (520, columns)).astype(dtype)
        column = rng.integers(0, 100, (520, 3)).astype(dtype)
        x, c = device.array(a), device.array(column)
        np.testing.assert_array_equal((x + c[:, 1:2]).numpy(), a + column[:, 1:2])
        np.testing.assert_array_equal((c[::-1, :1] + x).numpy(), column[::-1, :1] + a)
        np.testing.assert_array_equal((x < c[:, 2:]).numpy(), a < column[:, 2:])
        x *= c[:, :1]
        np.testing.assert_array_equal(x.numpy(), a * column[:, :1])
