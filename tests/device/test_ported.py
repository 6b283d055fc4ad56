"""Bounds, orders, places, statistics and convolutions by the cases of other libraries' tests, on every driver.

The cases are those of numpy/_core/tests: test_numeric.py (TestClip), test_multiarray.py (TestMethods' sort and argsort,
TestStats), numpy/lib/tests/test_shape_base.py (TestTakeAlongAxis); and of torch's test/test_sort_and_select.py
(test_stable_sort, test_stable_sort_against_numpy, test_topk_4d, test_topk_integral, test_topk_lower_precision) and
test/nn/test_convolution.py and test_pooling.py (groups without and with a bias, images and weights that lie otherwise,
types that differ, sizes that do not fit, NaN and infinities, empty batches).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.testing import U

pytestmark = [pytest.mark.device, pytest.mark.sampled(3)]
Host = np.ndarray[Any, np.dtype[Any]]
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NAN, INF = np.nan, np.inf


def computes(device: vkpar.Device, dtype: str) -> bool:
    return dtype not in ("int64", "uint64") or bool(device.info.features.int64)


# ---- clip ----


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [*WHOLE, "float32", "float16"])
def test_clip_by_numbers_and_arrays(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    if not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    low, high = (0, 20) if dtype.startswith("u") else (-10, 20)
    a = rng.integers(low, high, (5, 7)).astype(dtype)
    x = device.array(a)
    bounds: list[tuple[Any, Any]] = [(3, 8), (8, 3), (None, 5), (5, None), (a[::-1], a[:, ::-1])]
    for least, most in bounds:
        ours = [device.array(each) if isinstance(each, np.ndarray) else each for each in (least, most)]
        got, want = vkpar.clip(x, *ours), a.clip(least, most)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(vkpar.clip(x[::2, ::-3], 1, 4).numpy(), a[::2, ::-3].clip(1, 4))
    x_out = device.zeros((5, 7), dtype)
    assert vkpar.clip(x, 1, 6, out=x_out) is x_out
    assert vkpar.clip(x, 1, 6, out=x) is x
    for each in (x_out, x):
        np.testing.assert_array_equal(each.numpy(), a.clip(1, 6))


def test_clip_of_odd_values(device: vkpar.Device) -> None:
    values = np.float32([NAN, -INF, -2, -0.0, 0, 2, INF])
    x = device.array(values)
    for low, high in ((-1, 1), (-INF, INF), (INF, -INF), (-INF, -1), (1, INF), (0, 0)):
        np.testing.assert_array_equal(vkpar.clip(x, low, high).numpy(), values.clip(low, high))
    for low, high in ((NAN, 1), (-1, NAN), (NAN, NAN)):
        bounds = (device.full(7, low), device.full(7, high))
        np.testing.assert_array_equal(
            vkpar.clip(x, *bounds).numpy(), np.clip(values, np.float32(low), np.float32(high))
        )
    assert vkpar.clip(device.zeros((0, 3)), 0, 1).shape == (0, 3)
    assert vkpar.clip(device.array(np.float32(7)), 0, 1).item() == 1
    with pytest.raises(InvalidUsageError):
        vkpar.clip(x)
    with pytest.raises(InvalidUsageError):
        vkpar.clip(x, device.zeros(3), 1)


# ---- orders ----


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [*WHOLE, "float32", "float16", "bool"])
def test_orders_of_every_type(device: vkpar.Device, dtype: str) -> None:
    a = np.arange(101).astype(dtype)
    for values in (a, a[::-1], a[::7], np.roll(a, 50), np.zeros_like(a)):
        x = device.array(np.ascontiguousarray(values))
        np.testing.assert_array_equal(vkpar.sort(x).numpy(), np.sort(values))
        np.testing.assert_array_equal(vkpar.argsort(x).numpy(), np.argsort(values, kind="stable"))
    if np.dtype(dtype).kind in "iu":
        edges = np.array([np.iinfo(dtype).max, 0, np.iinfo(dtype).min, 1, np.iinfo(dtype).max - 1], dtype)
        np.testing.assert_array_equal(vkpar.sort(device.array(edges)).numpy(), np.sort(edges))
    if np.dtype(dtype).kind == "f":
        assert vkpar.argsort(device.array([NAN, 1.0, 0.0], dtype)).tolist() == [2, 1, 0]


def test_orders_along_axes(device: vkpar.Device) -> None:
    x = device.array([[3, 2], [1, 0]])
    for axis, want in ((0, [[1, 0], [3, 2]]), (1, [[2, 3], [0, 1]]), (-1, [[2, 3], [0, 1]])):
        assert vkpar.sort(x, axis).tolist() == want
    assert vkpar.sort(x, None).tolist() == [0, 1, 2, 3]
    none = device.zeros((3, 2, 1, 0))
    for axis in range(-4, 4):
        assert vkpar.sort(none, axis).shape == vkpar.argsort(none, axis).shape == none.shape
    assert vkpar.sort(none, None).shape == (0,)
    for axis in (2, -3):
        with pytest.raises(InvalidUsageError, match="no axis"):
            vkpar.sort(x, axis)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [100, 1000, 5000])
def test_orders_are_stable(device: vkpar.Device, rng: np.random.Generator, size: int) -> None:
    turns = np.tile(np.int8([0, 1]), size // 2)
    places = vkpar.argsort(device.array(turns)).numpy()
    np.testing.assert_array_equal(places, [*range(0, size, 2), *range(1, size, 2)])
    a = rng.choice(np.float32([NAN, INF, -INF, 0, -0.0, 1, 2]), (4, size // 4))
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(
            vkpar.argsort(device.array(a), axis).numpy(), np.argsort(a, axis=axis, kind="stable")
        )


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_orders_of_two_words(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """On every device, whether it computes such numbers or not."""
    a = rng.integers(0, 2**64, (3, 50), dtype=np.uint64).view(dtype)
    a[:, ::3] = a[:, :1]
    a[:, 1::4] &= np.array(0xFFFFFFFF, dtype)
    x = device.array(a)
    for axis in (0, 1, None):
        np.testing.assert_array_equal(vkpar.sort(x, axis).numpy(), np.sort(a, axis=axis))
    for k, largest in ((3, True), (50, True), (7, False)):
        values, places = vkpar.topk(x, k, largest=largest)
        want = np.argsort(~a if largest else a, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(places.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, 1))


def test_largest_of_four_axes(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = np.ones((2, 300, 2, 2), np.float32)
    x[:, 1] = 2
    x[:, 10] = 1.5
    values, places = vkpar.topk(device.array(x), 2, 1)
    want = np.ones((2, 2, 2, 2), np.float32) * np.float32([2, 1.5]).reshape(1, 2, 1, 1)
    np.testing.assert_array_equal(values.numpy(), want)
    np.testing.assert_array_equal(places.numpy(), np.where(want == 2, 1, 10))
    whole = rng.integers(-(2**31), 2**31, 5000).astype(np.int32)
    np.testing.assert_array_equal(vkpar.topk(device.array(whole), 50)[0].numpy(), np.sort(whole)[:-51:-1])
    halves = device.array([NAN, INF, -INF, 3.0, -1.0], "bfloat16")
    assert vkpar.topk(halves, 3)[1].tolist() == [1, 3, 4]
    assert vkpar.topk(halves, 2, largest=False)[0].tolist() == [-INF, -1.0]


def test_places_and_what_gives_them(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 4, 5)).astype(np.float32)
    x = device.array(a)
    pairs: list[tuple[Callable[..., vkpar.Array], Callable[..., vkpar.Array]]] = [
        (vkpar.sort, vkpar.argsort),
        (lambda b, n: vkpar.max(b, n, keepdims=True), lambda b, n: vkpar.argmax(b, n, keepdims=True)),
        (lambda b, n: vkpar.topk(b, 2, n)[0], lambda b, n: vkpar.topk(b, 2, n)[1]),
    ]
    for (values, places), axis in itertools.product(pairs, (0, -1)):
        got = vkpar.take_along_axis(x, places(x, axis), axis)
        np.testing.assert_array_equal(got.numpy(), values(x, axis).numpy())
    assert vkpar.take_along_axis(x, device.zeros((3, 0, 5), "int32"), 1).shape == (3, 0, 5)
    for shape, axis in (((4,), 1), ((3, 4, 4), 1), ((3, 4, 5), 3)):
        with pytest.raises(InvalidUsageError):
            vkpar.take_along_axis(x, device.zeros(shape, "int32"), axis)
    with pytest.raises(UnsupportedError):
        vkpar.take_along_axis(x, device.zeros((3, 4, 5)), 1)


# ---- statistics ----


def test_divisors_of_variances(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 5)).astype(np.float32)
    x = device.array(a)
    for ddof in range(5):
        want = a.astype(np.float64).var(1, ddof=ddof)
        np.testing.assert_allclose(vkpar.var(x, 1, ddof=ddof).numpy(), want, rtol=200 * U)
        np.testing.assert_allclose(vkpar.std(x, 1, ddof=ddof).numpy(), np.sqrt(want), rtol=200 * U)
    for ddof in (5, 6):  # no degree of freedom is left
        assert not np.isfinite(vkpar.var(x, 1, ddof=ddof).numpy()).any()
    one = device.array([[7.0], [3.0]])
    assert vkpar.var(one, 1).tolist() == vkpar.std(one, 1).tolist() == [0, 0]
    assert vkpar.std(device.array(np.float32(2))).item() == 0
    out = device.zeros(3)
    assert vkpar.std(x, 1, out=out) is out
    np.testing.assert_allclose(out.numpy(), a.std(1), rtol=200 * U)
    whole = device.array(np.tile(np.int8([-128, 127]), 8))
    assert (whole.mean().dtype, whole.mean().item(), whole.std().item()) == ("float32", -0.5, 127.5)


# ---- convolutions ----


def convolved(x: Host, w: Host, groups: int = 1) -> Host:
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[2:], (2, 3))
    parts = zip(np.split(seen, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", part, v) for part, v in parts], 1)


@pytest.mark.parametrize("biased", [False, True])
def test_groups_are_convolutions_beside_each_other(
    device: vkpar.Device, rng: np.random.Generator, biased: bool
) -> None:
    x, w = rng.integers(-3, 4, (2, 4, 6, 6)).astype(np.float32), rng.integers(-3, 4, (8, 2, 3, 3)).astype(np.float32)
    bias = rng.integers(-3, 4, 8).astype(np.float32) if biased else None
    a, b, c = device.array(x), device.array(w), None if bias is None else device.array(bias)
    whole = vkpar.conv2d(a, b, c, groups=2).numpy()
    for part, (channels, rows) in enumerate(((slice(0, 2), slice(0, 4)), (slice(2, 4), slice(4, 8)))):
        alone = vkpar.conv2d(a[:, channels], b[rows], None if c is None else c[rows])
        np.testing.assert_array_equal(whole[:, rows], alone.numpy(), err_msg=str(part))
    want = convolved(x, w, 2) + (0 if bias is None else bias[:, None, None])
    np.testing.assert_array_equal(whole, want)  # whole numbers: exactly
    depthwise = vkpar.conv2d(a, b[:4, :1], groups=4).numpy()
    np.testing.assert_array_equal(depthwise, convolved(x, w[:4, :1], 4))


def test_images_and_weights_that_lie_otherwise(device: vkpar.Device, rng: np.random.Generator) -> None:
    x, w = rng.integers(-3, 4, (2, 7, 6, 3)).astype(np.float32), rng.integers(-3, 4, (3, 3, 3, 5)).astype(np.float32)
    a, b = device.array(x), device.array(w)
    turned = vkpar.conv2d(a.transpose((0, 3, 1, 2)), b.transpose((3, 0, 1, 2))).numpy()
    np.testing.assert_array_equal(turned, convolved(x.transpose(0, 3, 1, 2), w.transpose(3, 0, 1, 2)))
    broad = vkpar.broadcast_to(b[:, :1, :1, :1].reshape(1, 3, 1, 1), (5, 3, 2, 2))
    got = vkpar.conv2d(a.transpose((0, 3, 1, 2)), broad).numpy()
    np.testing.assert_array_equal(got, convolved(x.transpose(0, 3, 1, 2), broad.numpy()))
    with pytest.raises(InvalidUsageError):
        vkpar.conv2d(a, b, groups=2)
    with pytest.raises((InvalidUsageError, UnsupportedError)):
        vkpar.conv2d(device.zeros((1, 1, 3, 3), "int32"), device.zeros((1, 1, 3, 3)))
    for steps in (0, -1):
        with pytest.raises(InvalidUsageError, match="stride"):
            vkpar.conv2d(device.zeros((1, 1, 3, 3)), device.zeros((1, 1, 1, 1)), stride=steps)
    with pytest.raises(InvalidUsageError):
        vkpar.conv2d(device.zeros((1, 3, 3)), device.zeros((1, 1, 1, 1)))


def test_pools_of_odd_values_and_of_nothing(device: vkpar.Device) -> None:
    for value in (NAN, INF, -INF):
        a = np.zeros((1, 1, 4, 4), np.float32)
        a[0, 0, 1, 1] = value
        want = np.lib.stride_tricks.sliding_window_view(a, (2, 2), (2, 3)).max((-2, -1))
        np.testing.assert_array_equal(vkpar.max_pool2d(device.array(a), 2, stride=1).numpy(), want)
        mean = vkpar.avg_pool2d(device.array(a), 2).numpy()[0, 0]
        np.testing.assert_array_equal(mean, [[value, 0], [0, 0]])
    below = vkpar.max_pool2d(device.full((1, 1, 2, 2), -INF), 2, padding=1)
    assert below.numpy().tolist() == np.full((1, 1, 2, 2), -INF).tolist()
    none = device.zeros((0, 3, 4, 4))
    assert vkpar.max_pool2d(none, 2).shape == vkpar.avg_pool2d(none, 2).shape == (0, 3, 2, 2)
    assert vkpar.conv2d(none, device.zeros((5, 3, 3, 3)), padding=1).shape == (0, 5, 4, 4)
