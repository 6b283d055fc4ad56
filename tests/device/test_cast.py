"""cast, bit for bit: every half, and float32 patterns around every rounding boundary."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar

launch = importlib.import_module("vkpar.ops.call.dispatch")
pytestmark = pytest.mark.device

Words = NDArray[np.uint32]
Halves = NDArray[np.uint16]
ALL = np.arange(1 << 16, dtype=np.uint16)


def to_f16(bits: Words) -> Halves:
    """NumPy rounds to nearest even; NaN is the canonical one."""
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        halves = values.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), 0x7E00, halves).astype(np.uint16)


def to_bf16(bits: Words) -> Halves:
    wide = bits.astype(np.uint64)
    rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
    return np.where(np.isnan(bits.view(np.float32)), 0x7FC0, rounded).astype(np.uint16)


def from_f16(halves: Halves) -> Words:
    values = halves.view(np.float16)
    return np.where(np.isnan(values), 0x7FC00000, values.astype(np.float32).view(np.uint32)).astype(np.uint32)


def from_bf16(halves: Halves) -> Words:
    bits = halves.astype(np.uint32) << 16
    return np.where(np.isnan(bits.view(np.float32)), 0x7FC00000, bits).astype(np.uint32)


def patterns(rng: np.random.Generator) -> Words:
    """Float32 bits: on, just beside and halfway between all halves of both kinds, and random ones."""
    on = np.concatenate([from_f16(ALL), ALL.astype(np.uint32) << 16])
    half_way = np.concatenate([on + 0x1000, on + 0x8000])
    beside = np.concatenate([half_way - 1, half_way + 1, on - 1, on + 1])
    # Halves below 2^-14 are spaced by 2^-24: the points halfway between them.
    steps = ((np.arange(1 << 11, dtype=np.float32) * 0.5 + 0.25) * np.float32(2.0**-24)).view(np.uint32)
    random = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    return np.concatenate([on, half_way, beside, steps, steps - 1, steps + 1, random])


def bits_of(array: vkpar.Array) -> NDArray[Any]:
    return array.numpy().view(np.uint32 if array.dtype.itemsize == 4 else np.uint16)


def test_float32_to_halves(device: vkpar.Device, rng: np.random.Generator) -> None:
    bits = patterns(rng)
    source = device.array(bits.view(np.float32))
    for dtype, reference in (("float16", to_f16), ("bfloat16", to_bf16)):
        out = vkpar.cast(source, dtype)
        assert (out.dtype, out.shape) == (dtype, source.shape)
        np.testing.assert_array_equal(bits_of(out), reference(bits))


def test_every_half(device: vkpar.Device) -> None:
    f16, bf16 = device.array(ALL.view(np.float16)), device.array(ALL.view(vkpar.bfloat16.numpy))
    np.testing.assert_array_equal(bits_of(vkpar.cast(f16, "float32")), from_f16(ALL))
    np.testing.assert_array_equal(bits_of(vkpar.cast(bf16, "float32")), from_bf16(ALL))
    np.testing.assert_array_equal(bits_of(vkpar.cast(f16, "bfloat16")), to_bf16(from_f16(ALL)))
    np.testing.assert_array_equal(bits_of(vkpar.cast(bf16, "float16")), to_f16(from_bf16(ALL)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "bool", "complex64"])
def test_the_same_type_is_a_copy(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    native = device.empty(1, dtype).dtype.numpy
    raw = rng.integers(0, 2, 33 * native.itemsize, dtype=np.uint8)
    source = device.array(raw.view(native), dtype)
    out = vkpar.cast(source, dtype)
    assert out is not source
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.numpy(), source.numpy())
    assert vkpar.cast(source, dtype, out=source) is source


@given(data=st.data())
def test_views(device: vkpar.Device, data: st.DataObject) -> None:
    """Source and output anywhere in a bigger array: nothing around the output changes."""
    types = st.sampled_from(["float32", "float16"])
    source_type, target_type = data.draw(types), data.draw(types)
    size, before, target_before = (data.draw(st.integers(low, 70)) for low in (1, 0, 0))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    source = rng.standard_normal(size + 80).astype(source_type)
    target = rng.standard_normal(size + 80).astype(target_type)
    array, around = device.array(source), device.array(target)
    out = around[target_before : target_before + size]
    assert vkpar.cast(array[before : before + size], target_type, out=out) is out
    target[target_before : target_before + size] = source[before : before + size].astype(target_type)
    np.testing.assert_array_equal(around.numpy(), target)


def test_windows(reopen: Callable[..., vkpar.Device], rng: np.random.Generator) -> None:
    device = reopen(max_binding=5000)
    values = rng.standard_normal(5001).astype(np.float32)
    halves = vkpar.cast(device.array(values), "float16")
    np.testing.assert_array_equal(halves.numpy(), values.astype(np.float16))
    np.testing.assert_array_equal(vkpar.cast(halves, "float32").numpy(), values.astype(np.float16).astype(np.float32))


def test_shapes(device: vkpar.Device) -> None:
    for shape in ((), (2, 3, 5), (0,), (3, 0)):
        assert vkpar.cast(device.zeros(shape), "float16").shape == shape
    empty = device.empty((0, 2), "float16")
    assert vkpar.cast(device.zeros((0, 2)), "float16", out=empty) is empty


Call = Callable[[vkpar.Device, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a: vkpar.cast(a, "complex64"), vkpar.UnsupportedError, "complex64"),
        (lambda d, a: vkpar.cast(d.zeros(4, "complex64"), "float32"), vkpar.UnsupportedError, "complex64"),
        (lambda d, a: vkpar.cast(a, "nonsense"), vkpar.InvalidUsageError, "nonsense"),
        (lambda d, a: vkpar.cast(a, None), vkpar.InvalidUsageError, "not a dtype: None"),
        (lambda d, a: vkpar.cast([1.0], "float16"), vkpar.InvalidUsageError, "a has to be a vkpar.Array, not list"),
        (lambda d, a: vkpar.cast(a, "float16", out=d.empty(9, "float16")), vkpar.InvalidUsageError, r"\(8,\) float16"),
        (lambda d, a: vkpar.cast(a, "float16", out=d.empty(8)), vkpar.InvalidUsageError, "float32"),
        (lambda d, a: vkpar.cast(a[:4], "float32", out=a[2:6]), vkpar.InvalidUsageError, "share memory"),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(device, device.zeros(8))


def test_a_closed_device(device: vkpar.Device) -> None:
    (other,) = vkpar.open_devices(str(device.info.index))
    a = other.zeros(4)
    other.close()
    with pytest.raises(vkpar.InvalidUsageError):
        vkpar.cast(a, "float16")


@pytest.mark.sampled(10)
@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16"])
def test_floats_become_numbers_of_few_bits(device: vkpar.Device, source: str, target: str) -> None:
    """The nearest of the type, 0 of NaN, wherever they lie and go, and of as many as CPU drivers take by eights."""
    odd = [np.nan, np.inf, -np.inf, -0.5, 0.99, 127.5, -128.9, -129, 254.9, 255.9, 256, 32767.5, -32769, 65504]
    values = np.resize(np.array(odd, np.float32).astype(source), 5003)
    x = device.array(values)
    limits = np.iinfo(target)
    held = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0, posinf=1e9, neginf=-1e9)
    want = held.clip(limits.min, limits.max).astype(target)
    for part in (slice(None), slice(1, 900), slice(None, None, -3)):
        np.testing.assert_array_equal(x[part].astype(target).numpy(), want[part])
    out = device.zeros((3, 11), target)
    assert vkpar.cast(x[:20].reshape(2, 10), target, out=out[1:, 1:]) is not None
    np.testing.assert_array_equal(out.numpy()[1:, 1:], want[:20].reshape(2, 10))
    assert not out.numpy()[0].any()
    assert not out.numpy()[:, 0].any()
