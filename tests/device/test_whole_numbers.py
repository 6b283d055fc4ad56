"""Whole numbers of 8, 16 and 64 bits and truth values, on every driver: conversions, and what computes them.

The cases are those of numpy/_core/tests: test_casting_unittests.py (all pairs), test_nep50_promotions.py (numbers with
small types), test_umath.py (TestAbsolute, TestBitwise of small types).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError

pytestmark = [pytest.mark.device, pytest.mark.sampled(5)]
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NARROW = ("int8", "uint8", "int16", "uint16")
Values = np.ndarray[Any, Any]


def values(rng: np.random.Generator, dtype: str, count: int = 43) -> Values:
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.startswith("float"):
        edges = [
            0,
            -0.0,
            0.9,
            -0.9,
            255,
            256,
            -129,
            2**31,
            2**32,
            2**33 + 1024,
            -(2**40),
            2.0**63,
            2.0**64,
            np.inf,
            np.nan,
        ]
        edges = [each for each in edges if dtype == "float32" or not 65504 < abs(each) < np.inf]
        return np.concatenate([edges, rng.standard_normal(count - len(edges)) * 100]).astype(dtype)
    limits = np.iinfo(dtype)
    edges = np.array([0, 1, limits.max, limits.min, limits.max - 1]).astype(dtype)
    return np.concatenate([edges, rng.integers(limits.min, limits.max, count - 5, dtype=dtype)])


def converted(a: Values, dtype: str) -> Values:
    if a.dtype.kind == "f" and dtype in WHOLE:
        limits = np.iinfo(dtype)
        ends = {np.inf: limits.max, -np.inf: limits.min}
        inside = (min(max(int(x), limits.min), limits.max) if np.isfinite(x) else ends.get(x, 0) for x in a.tolist())
        held = list(inside)
        return np.array(held, dtype)
    return a.astype("float32").astype(dtype) if dtype == "float16" and a.dtype.kind != "f" else a.astype(dtype)


def test_conversions(device: vkpar.Device, rng: np.random.Generator) -> None:
    types = (*WHOLE, "bool", "float32", "float16")
    for number, (source, target) in enumerate(itertools.permutations(types, 2)):
        if number % 3:
            continue  # drivers take a tenth of a second to compile each
        a = values(rng, source)
        with np.errstate(all="ignore"):
            want = converted(a, target)
        got = device.array(a).astype(target)
        assert got.dtype == target
        np.testing.assert_array_equal(got.numpy(), want, err_msg=f"{source} to {target}")


def test_conversions_of_views(device: vkpar.Device, rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)
    x = device.array(image)
    for key in ((slice(1, None),), (slice(None), slice(2, 5)), (slice(None, None, -2), slice(None), 1), (0, 1)):
        np.testing.assert_array_equal(x[key].astype("float32").numpy(), image[key])
        out = device.zeros(image.shape, "uint8")
        vkpar.cast(x[key].astype("int32"), "uint8", out=out[key])  # what lies around it stays
        want = np.zeros_like(image)
        want[key] = image[key]
        np.testing.assert_array_equal(out.numpy(), want)
    with vkpar.capture([device]) as graph:
        made = vkpar.clip(x.astype("float32") * 1.5 + 7, 0, 255).astype("uint8")
    graph.launch().wait()
    np.testing.assert_array_equal(made.numpy(), np.clip(image * np.float32(1.5) + 7, 0, 255).astype(np.uint8))
    graph.close()
    assert vkpar.cast(device.zeros((0, 3), "uint8"), "float32").shape == (0, 3)
    with pytest.raises(UnsupportedError, match="complex64"):
        vkpar.cast(x, "complex64")


@pytest.mark.parametrize("dtype", NARROW)
def test_arithmetic(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = values(rng, dtype), rng.permutation(values(rng, dtype))
    x, y = device.array(a), device.array(b)
    with np.errstate(all="ignore"):
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "mod", "floor_divide", "bitwise_xor"):
            got = getattr(vkpar, name)(x, y)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.numpy(), getattr(np, name)(a, b), err_msg=name)
        for name in ("less", "equal", "greater_equal", "logical_and"):
            np.testing.assert_array_equal(getattr(vkpar, name)(x, y).numpy(), getattr(np, name)(a, b))
        np.testing.assert_array_equal((x + 3).numpy(), a + np.array(3, dtype))
        np.testing.assert_array_equal(abs(x).numpy(), np.abs(a))
        np.testing.assert_array_equal((-x).numpy(), (0 - a).astype(dtype))
        np.testing.assert_array_equal(vkpar.invert(x).numpy(), ~a)
        np.testing.assert_array_equal(vkpar.sign(x).numpy(), np.sign(a))
        np.testing.assert_array_equal((x * 0.5).numpy(), a * np.float32(0.5))
        np.testing.assert_array_equal((x + device.array([2.0])).numpy(), a + np.float32([2]))
        np.testing.assert_array_equal(x.clip(3, 9).numpy(), a.clip(3, 9))
        x += 1
        np.testing.assert_array_equal(x.numpy(), a + np.array(1, dtype))
    with pytest.raises(InvalidUsageError, match=f"70000 is no {dtype}"):
        y + 70000
    wide = device.array(b.astype(np.int32))
    assert (y + wide).dtype == "int32"
    np.testing.assert_array_equal(
        vkpar.elementwise("y = a * 2 + index")(y).numpy(), b.astype(np.int64) * 2 + np.arange(b.size)
    )


@pytest.mark.parametrize("kinds", [("int8", "uint8"), ("uint8", "int32"), ("uint16", "uint32"), ("bool", "int16")])
def test_types_that_meet(device: vkpar.Device, rng: np.random.Generator, kinds: tuple[str, str]) -> None:
    """As NumPy has them, of views that do not begin at words, and with as many elements as whole words do not hold."""
    a, b = (rng.integers(0, 256, (41, 53)).astype(np.uint8).astype(dtype) for dtype in kinds)
    x, y = device.array(a), device.array(b)
    for cut in ((slice(None), slice(None)), (slice(1, None), slice(3, 50)), (slice(None, None, 3), slice(1, None, 2))):
        for name in ("add", "multiply", "bitwise_or", "less", "not_equal", "maximum"):
            got, want = getattr(vkpar, name)(x[cut], y[cut]), getattr(np, name)(a[cut], b[cut])
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.numpy(), want, err_msg=name)
        turned = (x[cut].T + y[cut].T).T
        np.testing.assert_array_equal(turned.numpy(), a[cut] + b[cut])
    out = device.zeros((43, 55), x.dtype)
    vkpar.bitwise_xor(x, 1 if kinds[0] != "bool" else True, out=out[1:42, 1:54])
    want = np.zeros((43, 55), a.dtype)
    want[1:42, 1:54] = a ^ np.array(1, a.dtype)
    np.testing.assert_array_equal(out.numpy(), want)
    large = device.array(np.resize(a, 5003)), device.array(np.resize(b, 5003))
    np.testing.assert_array_equal((large[0] + large[1]).numpy(), np.resize(a, 5003) + np.resize(b, 5003))


@pytest.mark.parametrize("share", [0.02, 0.98, 0, 1])
def test_whether_any_or_all_hold(device: vkpar.Device, rng: np.random.Generator, share: float) -> None:
    """Of rows that whole words hold, of others, of columns, and of views."""
    for shape in ((4,), (3, 8), (2, 3, 4), (5, 7), (16, 1)):
        mask = rng.random(shape) < share
        m = device.array(mask)
        for axis, keepdims in ((None, False), (0, True), (-1, False), (tuple(range(1, len(shape))), True)):
            for name in ("any", "all", "max", "min"):
                got = getattr(vkpar, name)(m, axis, keepdims)
                assert got.dtype == "bool"
                np.testing.assert_array_equal(got.numpy(), getattr(np, name)(mask, axis=axis, keepdims=keepdims))
    out = device.zeros(3, "bool")
    mask = rng.random((3, 9)) < share
    assert vkpar.all(device.array(mask)[:, 1:], 1, out=out) is out
    np.testing.assert_array_equal(out.numpy(), mask[:, 1:].all(1))


def test_reductions_and_truth(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.integers(0, 256, (6, 11), dtype=np.uint8)
    x = device.array(a)
    total = x.sum(0)
    assert total.dtype == "uint32"
    np.testing.assert_array_equal(total.numpy(), a.sum(0))
    np.testing.assert_allclose(x.mean().numpy(), a.mean(), rtol=1e-6)
    assert x.max(1).dtype == "uint8"
    np.testing.assert_array_equal(x.max(1).numpy(), a.max(1))
    np.testing.assert_array_equal(x.argmin(0).numpy(), a.argmin(0))
    np.testing.assert_array_equal(vkpar.cumsum(x, 1).numpy(), a.cumsum(1))
    signed = a.view(np.int8)
    np.testing.assert_array_equal(vkpar.sort(device.array(signed), 1).numpy(), np.sort(signed, 1))
    np.testing.assert_allclose(x.std(1).numpy(), a.std(1), rtol=1e-5)
    mask = a > 99
    m = device.array(mask)
    np.testing.assert_array_equal(vkpar.where(m, x, 7).numpy(), np.where(mask, a, np.uint8(7)))
    np.testing.assert_array_equal(vkpar.where(m, 1.5, device.array(np.float32(2))).numpy(), np.where(mask, 1.5, 2))
    assert int(m.sum()) == mask.sum() == int(vkpar.count_nonzero(m))
    other = device.array(~mask)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "add", "multiply"):
        got = getattr(vkpar, name)(m, other)
        assert got.dtype == "bool"
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(mask, ~mask))
    np.testing.assert_array_equal(vkpar.invert(m).numpy(), ~mask)
    np.testing.assert_array_equal(vkpar.logical_not(m).numpy(), ~mask)
    assert (x > 99).dtype == m.any().dtype == m.all(0).dtype == "bool"
    np.testing.assert_array_equal((~(x > 99) & m[:, :1]).numpy(), ~mask & mask[:, :1])
    np.testing.assert_array_equal(x[x > 99].numpy(), a[mask])
    np.testing.assert_array_equal(m.all(0).numpy(), mask.all(0))
    np.testing.assert_array_equal(vkpar.any(x > 250, 1).numpy(), (a > 250).any(1))
    np.testing.assert_array_equal(vkpar.elementwise("y = m and a < 200")(m=m, a=x).numpy(), mask & (a < 200))
    with pytest.raises(UnsupportedError, match="of truth values"):
        m - other
    labels = rng.integers(-6, 6, 9).astype(np.int8)
    for indices in (labels, labels.astype(np.int16), labels.astype(np.uint8) % 6):
        np.testing.assert_array_equal(vkpar.take(x, device.array(indices)).numpy(), a[indices])
    with pytest.raises(UnsupportedError, match=r"on the device: a\.astype\("):
        vkpar.softmax(device.zeros(3, "int64"))


def test_masks_and_places(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.integers(-50, 50, (5, 4, 3)).astype(np.float32)
    x = device.array(a)
    for mask in (a > 0, a[..., 0] > 0, a[:, 0, 0] > 0, np.zeros((5, 4), bool)):
        m = device.array(mask)
        np.testing.assert_array_equal(x[m].numpy(), a[mask])
        x[m] = 7
        a[mask] = 7
        np.testing.assert_array_equal(x.numpy(), a)
        x[1:][m[1:]] = device.array([0.5])
        a[1:][mask[1:]] = 0.5
        np.testing.assert_array_equal(x.numpy(), a)
    for places in (np.int32([[0, -1], [4, 2]]), np.int8([1, 1]), np.uint8([4]), np.uint32([2, 0])):
        np.testing.assert_array_equal(x[device.array(places)].numpy(), a[places])
    np.testing.assert_array_equal(x[x > 0].numpy(), a[a > 0])
    with pytest.raises(vkpar.IndexingError, match="does not fit"):
        x[device.array([True, False])]
    with pytest.raises(UnsupportedError, match="takes one number"):
        x[device.array(a > 0)] = device.array([1.0, 2.0])
