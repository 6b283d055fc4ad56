"""Elements of 64 bits: what NumPy gives, on devices that compute them; the others say which they are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar.errors import UnsupportedError
from vkpar.ops.elementwise.shipped import Shipped

LONG = ("int64", "uint64", "float64")
Host = np.ndarray[Any, np.dtype[Any]]


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Host:
    if dtype == "float64":
        made = rng.standard_normal(shape) * 10.0 ** rng.integers(-200, 200, shape)
        return np.where(rng.random(shape) < 0.1, rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape), made)
    bits = rng.integers(0, 1 << 64, shape, dtype=np.uint64).view(dtype)
    return np.where(rng.random(shape) < 0.3, rng.integers(0, 4, shape).astype(dtype), bits)


def computes(device: vkpar.Device, dtype: str) -> bool:
    features = device.info.features
    return features.float64 if dtype == "float64" else features.int64


@pytest.mark.parametrize("dtype", LONG)
def test_by_element(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = values(rng, dtype, (31, 37)), values(rng, dtype, (31, 37))
    x, y = device.array(a, dtype), device.array(b, dtype)
    if not computes(device, dtype):
        with pytest.raises(UnsupportedError, match=f"does not compute {dtype}"):
            x + y
        with pytest.raises(UnsupportedError, match=f"does not compute {dtype}"):
            x.sum()
        return
    words = ["add", "subtract", "multiply", "maximum", "minimum", "less", "less_equal", "equal", "not_equal"]
    words += ["divide"] if dtype == "float64" else ["mod", "floor_divide", "bitwise_xor", "bitwise_and"]
    with np.errstate(all="ignore"):
        for name in words:
            want = getattr(np, name)(a, b)
            for got in (getattr(vkpar, name)(x, y), getattr(vkpar, name)(x.T, y.T).T):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got.numpy(), want, err_msg=name)
        np.testing.assert_array_equal((x[1:, ::2] + y[:-1, :1]).numpy(), a[1:, ::2] + b[:-1, :1])
        number = 0.1 if dtype == "float64" else 1 << 40  # which no word holds
        for each in (3, number, 3):
            np.testing.assert_array_equal((x * each).numpy(), a * np.array(each, dtype))
        np.testing.assert_array_equal(vkpar.where(x > y, x, 1).numpy(), np.where(a > b, a, np.array(1, dtype)))
        np.testing.assert_array_equal((-x).numpy(), -a)
        np.testing.assert_array_equal(x.clip(1, 2).numpy(), a.clip(1, 2))
        if dtype != "float64":
            np.testing.assert_array_equal(
                (~x >> 3 << (y & 70)).numpy(), (~a >> np.array(3, dtype)) << (b & np.array(70, dtype))
            )
    out = device.zeros((31, 40), dtype)
    vkpar.add(x, 0, out=out[:, 1:38])
    np.testing.assert_array_equal(out.numpy()[:, 1:38], a + np.array(0, dtype))
    assert not out[:, 0].numpy().any()


@pytest.mark.parametrize("dtype", LONG)
def test_reductions(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    if not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    a = values(rng, dtype, (5, 7, 6)) if dtype != "float64" else rng.integers(-(1 << 40), 1 << 40, (5, 7, 6)) / 4
    x = device.array(a, dtype)
    for axis in (None, 0, (0, 2)):
        for name in ("sum", "max", "min", "any", "all"):
            got, want = getattr(vkpar, name)(x, axis), getattr(np, name)(a, axis=axis)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.numpy(), want, err_msg=name)  # exact: quarters of 2^53 at most
        np.testing.assert_allclose(x.mean(axis).numpy(), a.mean(axis, np.float64), rtol=1e-4, atol=a.max() * 1e-5)
    for axis in (None, 1):
        np.testing.assert_array_equal(x.argmax(axis).numpy(), a.argmax(axis))
        np.testing.assert_array_equal(x.argmin(axis, keepdims=True).numpy(), a.argmin(axis, keepdims=True))
        np.testing.assert_array_equal(vkpar.cumsum(x, axis).numpy(), a.cumsum(axis))
    assert int(vkpar.count_nonzero(x)) == np.count_nonzero(a)
    if dtype != "float64":
        np.testing.assert_array_equal(vkpar.prod(x, 1).numpy(), a.prod(1))
    else:
        assert vkpar.argmax(device.array([1.0, np.nan, 3.0], dtype)).item() == 1


@pytest.mark.parametrize("dtype", LONG)
def test_running_sums_of_several_chunks(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    if not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    for shape, axis in (((2, 4097), 1), ((9000,), 0), ((33, 5), 0), ((1, 1), 1)):
        a = rng.integers(-(1 << 40), 1 << 40, shape).astype(dtype)
        got = vkpar.cumsum(device.array(a), axis)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.numpy(), a.cumsum(axis))  # exact: less than 2^53
        if dtype != "float64":
            np.testing.assert_array_equal(
                vkpar.cumprod(device.array(a | a.dtype.type(1)), axis).numpy(), (a | a.dtype.type(1)).cumprod(axis)
            )
    if dtype == "float64":
        near = 1 + rng.standard_normal((3, 5000)) * 1e-3
        np.testing.assert_allclose(vkpar.cumprod(device.array(near), 1).numpy(), near.cumprod(1), rtol=5000 * 2.0**-52)
        odd = np.array([1, np.inf, 2, -np.inf, 3])
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(vkpar.cumsum(device.array(odd)).numpy(), odd.cumsum())


def test_types_that_meet_in_64_bits(device: vkpar.Device) -> None:
    signed, unsigned, wide = device.array([-1, 2]), device.array([3, 4], "uint32"), device.array([5, 6], "int64")
    if not computes(device, "int64"):
        with pytest.raises(UnsupportedError, match="does not compute int64"):
            signed + unsigned
        return
    assert (signed + unsigned).tolist() == [2, 6]
    assert (signed * wide).dtype == (signed + unsigned).dtype == "int64"
    assert (wide * 0.5).tolist() == [2.5, 3.0]
    assert (wide + device.array([1.0], "float16")).dtype == "float16"
    with pytest.raises(UnsupportedError, match="would be float64"):
        wide + device.array([1], "uint64")
    if computes(device, "float64"):
        long = device.array([0.1], "float64")
        assert (long + device.array([1.0])).tolist() == [1.1]
        assert long.astype("float32").tolist() == [np.float32(0.1)]
    with pytest.raises(UnsupportedError, match="divide computes float64"):
        wide / 2


def test_types_that_meet_are_converted_in_a_recipe(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Twice each, in place where the result has an operand's form, and in a graph; exact data."""
    names = [
        name
        for name in ("uint8", "int32", "int64", "float64", "float16")
        if name[-2:] != "64" or computes(device, name)
    ]
    for first, second in itertools.permutations(names, 2):
        a, b = rng.integers(0, 9, (6, 5)).astype(first), rng.integers(1, 9, 5).astype(second)
        x, y = device.array(a), device.array(b)
        for name in ("add", "maximum", "less"):
            want = getattr(np, name)(a.astype(np.float64), b.astype(np.float64))
            ours = getattr(vkpar, name)
            with vkpar.capture(device) as graph:
                recorded = ours(x, y)
            graph.launch()
            for got in (ours(x, y), ours(x, y), recorded):
                np.testing.assert_array_equal(got.numpy().astype(np.float64), want)
            graph.close()
        if vkpar.add(x, y).dtype == first:
            for _ in range(2):
                target = device.array(a)
                np.testing.assert_array_equal(vkpar.add(target, y, out=target).numpy(), (a + b).astype(first))
        assert vkpar.add(x[:0], y).shape == (0, 5)


def test_repeated_calls_go_the_short_way(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(first, second) for first, second in (("int64", "int64"), ("float64", "float64"), ("uint8", "int64"))]
    pairs = [pair for pair in pairs if all(computes(device, name) for name in pair if name in LONG)]
    pairs.append(("int32", "float32"))
    for first, second in pairs:
        x, y = device.array([1, 2, 3], first), device.array([3, 2, 1], second)
        mask = x < y
        for _ in range(2):  # the first calls find no plan
            made = [x + y, vkpar.maximum(x, y), x < y, vkpar.where(mask, x, y)]
            assert [each.tolist() for each in made] == [[4, 4, 4], [3, 2, 3], [True, False, False], [1, 2, 1]]
            monkeypatch.setattr(Shipped, "_long", _long_way)
            monkeypatch.setattr(Shipped, "_mixed", _long_way)
        monkeypatch.undo()


def _long_way(*given: Any) -> Any:
    raise AssertionError("a repeated call went the long way")


@pytest.mark.parametrize("dtype", LONG)
def test_numbers_that_no_word_holds_follow_those_that_one_does(device: vkpar.Device, dtype: str) -> None:
    if not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    x = device.array([1, 2, 3], dtype)
    for number in (5, 6, 1 << 40, 7, (1 << 40) + 1):
        assert (x + number).tolist() == [1 + number, 2 + number, 3 + number]


def floats(rng: np.random.Generator) -> Host:
    """Return all kinds of float64, and those around which types round, end, or lose their fraction."""
    steps = rng.choice([2.0**-8, 2.0**-9, 2.0**-10, 2.0**-11, 2.0**-12, 1.0], 3000)
    near = 2.0 ** rng.integers(-150, 130, 3000) * (1 + steps + rng.choice([0, 2.0**-40, -(2.0**-52)], 3000))
    ends = [sign * 2.0**n + by for sign in (1, -1) for n in (7, 8, 15, 16, 31, 32) for by in (-1, -0.5, 0, 0.5, 1)]
    others = [0, -0.0, np.inf, -np.inf, np.nan, 65519.99999, 65520, 2.0**63, -(2.0**63), 2.0**64, 2.0**53 + 2, 0.99999]
    bits = rng.integers(0, 1 << 64, 3000, dtype=np.uint64).view(np.float64)
    return np.concatenate([bits, near, rng.integers(-70000, 70000, 1000) + 0.5, ends, others])


def clipped(a: Host, dtype: str) -> Host:
    limits = np.iinfo(dtype)
    finite = np.where(np.isnan(a), 0, a).tolist()
    return np.array([int(min(max(x, limits.min), limits.max)) if abs(x) < 2.0**65 else limits.max if x > 0 else
                     limits.min for x in finite], dtype)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_float64_and_integers(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Both ways: what is out of range becomes the nearest, and integers of 64 bits are rounded once."""
    a, limits = floats(rng), np.iinfo(dtype)
    if not computes(device, "float64"):
        for x, target in ((device.zeros(3, "float64"), dtype), (device.zeros(3, dtype), "float64")):
            with pytest.raises(UnsupportedError, match="does not compute float64"):
                x.astype(target)
        return
    np.testing.assert_array_equal(device.array(a, "float64").astype(dtype).numpy(), clipped(a, dtype))
    whole = rng.integers(limits.min, limits.max, 3000, dtype, endpoint=True)
    parts = [whole, whole >> np.array(limits.bits // 8, dtype), np.array([0, limits.min, limits.max], dtype)]
    if limits.bits == 64:  # about the middle of two floats
        parts += [np.array([base + by for base in (1 << 53, 1 << 54, 1 << 62) for by in range(1, 1030)], dtype)]
    whole = np.concatenate(parts)
    got = device.array(whole, dtype).astype("float64").numpy()
    np.testing.assert_array_equal(got.view(np.uint64), whole.astype(np.float64).view(np.uint64))


def test_float64_and_other_floats(device: vkpar.Device, rng: np.random.Generator) -> None:
    """One rounding to halves: not to float32 and then once more, as what decides may lie behind float32."""
    a = floats(rng)
    x = device.array(a, "float64")
    if not computes(device, "float64"):
        for target in ("float16", "bfloat16", "bool"):
            with pytest.raises(UnsupportedError, match="does not compute float64"):
                x.astype(target)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(x.astype("float16").numpy(), a.astype(np.float16))
        power = np.maximum(np.frexp(a)[1] - 8, -133)  # of the last bit of a bfloat16
        want = np.ldexp(np.rint(np.ldexp(a, -power)), power)
    want = np.where(np.abs(want) >= 2.0**128, np.copysign(np.inf, want), want)
    np.testing.assert_array_equal(x.astype("bfloat16").numpy().astype(np.float64), want)
    np.testing.assert_array_equal(x.astype("bool").numpy(), a.astype(bool))
    out = device.zeros((2, a.size + 1), "float16")
    vkpar.cast(x, "float16", out=out[1, 1:])
    np.testing.assert_array_equal(out.numpy()[1, 1:], x.astype("float16").numpy())
    assert not out.numpy()[0].any()
    for name, bits in (("float16", np.uint16), ("bool", np.uint8)):
        half = np.arange(1 << 16).astype(bits).view(np.float16 if name == "float16" else bits)
        half = half if name == "float16" else half[:2].astype(bool)
        np.testing.assert_array_equal(device.array(half).astype("float64").numpy(), half.astype(np.float64))
