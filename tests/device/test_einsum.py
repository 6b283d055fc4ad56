"""Products over named axes, convolutions and pooling, on every driver, against float64.

The cases are those of numpy/_core/tests/test_einsum.py (of two operands) and torch's test/nn/test_convolution.py and
test_pooling.py (strides, padding, groups).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.testing import U

pytestmark = pytest.mark.device


def test_einsum(device: vkpar.Device, rng: np.random.Generator) -> None:
    sizes = dict(zip("bijklm", (2, 3, 4, 5, 2, 3), strict=True))
    for text in (
        "ij,jk->ik", "ij,kj", "bij,bjk->bik", "bij,bjk->kbi", "i,j->ij", "i,i->", "ij,ij->i", "ijk,jil->kl", "ij,j",
        "ijm,k->k", "ii,ij->j", "bij,bij->bij", "ij,kl->ljki", ",ij->ji", "bijk,lbjm->bilkm",
    ):  # fmt: skip
        one, other = text.split("->")[0].split(",")
        shapes = [tuple(sizes[letter] for letter in part) for part in (one, other)]
        a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
        want = np.einsum(text, a, b)
        got = vkpar.einsum(text, device.array(a), device.array(b))
        np.testing.assert_array_equal(got.numpy(), want, err_msg=text)  # whole numbers: exactly
    out = device.zeros((3, 3))
    a = rng.integers(-4, 5, (3, 4)).astype(np.float32)
    assert vkpar.einsum("ij,kj->ik", device.array(a), device.array(a), out=out.T) is not None
    np.testing.assert_array_equal(out.numpy(), (a @ a.T).T)
    np.testing.assert_array_equal(vkpar.outer(device.array(a), device.array(a[0])).numpy(), np.outer(a, a[0]))
    x = device.array(a)
    for text, message in (("ij", "two arrays"), ("ij,jk", "differ"), ("ijk,ij", "names 3"), ("ij,ij->iz", "no array")):
        with pytest.raises(InvalidUsageError, match=message):
            vkpar.einsum(text, x, x)


def windows(x: np.ndarray, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], beyond: float):
    edges = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    x = np.pad(x.astype(np.float64), edges, constant_values=beyond)
    return np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))[:, :, :: stride[0], :: stride[1]]


def test_convolutions(device: vkpar.Device, rng: np.random.Generator) -> None:
    for groups, kernel, stride, padding in (
        (1, (3, 3), (1, 1), (0, 0)), (2, (2, 3), (2, 3), (1, 2)), (4, (1, 1), (1, 1), (1, 2)),
    ):  # fmt: skip
        x = rng.standard_normal((2, 4, 7, 9)).astype(np.float32)
        w = rng.standard_normal((8, 4 // groups, *kernel)).astype(np.float32)
        bias = rng.standard_normal(8).astype(np.float32)
        seen = windows(x, kernel, stride, padding, 0)
        parts = np.split(seen, groups, 1)
        want = np.concatenate(
            [np.einsum("nchwij,ocij->nohw", part, v) for part, v in zip(parts, np.split(w, groups), strict=True)], 1
        )
        got = vkpar.conv2d(
            device.array(x), device.array(w), device.array(bias), stride=stride, padding=padding, groups=groups
        )
        terms = w[0].size
        most = np.abs(seen).max() * np.abs(w).max() * terms
        assert got.shape == want.shape
        assert np.abs(got.numpy() - want - bias[:, None, None]).max() <= (terms + 2) * U * (most + np.abs(bias).max())
    x = rng.integers(-3, 4, (1, 2, 5, 5)).astype(np.float16)
    w = rng.integers(-3, 4, (2, 2, 3, 3)).astype(np.float16)
    got = vkpar.conv2d(device.array(x), device.array(w), padding=1)
    assert got.dtype == "float16"
    want = np.einsum("nchwij,ocij->nohw", windows(x, (3, 3), (1, 1), (1, 1), 0), w.astype(np.float64))
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_that_come_again(device: vkpar.Device, rng: np.random.Generator, dtype: str, groups: int) -> None:
    """By what the first one kept: other images and weights, views of them, into a given result, in a graph."""

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return rng.integers(-3, 4, shape).astype(dtype)

    def wanted(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        pairs = zip(np.split(windows(x, (3, 2), (2, 1), (1, 2), 0), groups, 1), np.split(w, groups), strict=True)
        return np.concatenate([np.einsum("nchwij,ocij->nohw", part, each) for part, each in pairs], 1)

    how: Any = {"stride": (2, 1), "padding": (1, 2), "groups": groups}
    a, v = device.empty((2, 4, 7, 5), dtype), device.empty((6, 4 // groups, 3, 2), dtype)
    with vkpar.capture(device) as graph:
        made = vkpar.conv2d(a, v, **how)
    for _ in range(3):
        x, w = drawn(2, 4, 7, 5), drawn(6, 4 // groups, 3, 2)
        a.write(x)
        v.write(w)
        graph.launch().wait()
        out = device.empty(made.shape, dtype)
        vkpar.conv2d(device.array(x), device.array(w), out=out, **how)
        turned = device.array(np.ascontiguousarray(x[:, :, ::-1].transpose(0, 2, 3, 1)))
        view = vkpar.conv2d(turned.transpose(0, 3, 1, 2)[:, :, ::-1], device.array(w), **how)
        for found in (made, out, view, vkpar.conv2d(a, v, **how)):
            np.testing.assert_array_equal(found.numpy(), wanted(x, w))
    graph.close()
    assert vkpar.conv2d(device.empty((0, 4, 7, 5), dtype), v, **how).shape == (0, *made.shape[1:])
    with pytest.raises(UnsupportedError, match="conv2d"):
        vkpar.conv2d(vkpar.cast(a, "int32"), v, **how)


def test_pooling(device: vkpar.Device, rng: np.random.Generator) -> None:
    for dtype, kernel, stride, padding in (
        ("float32", (2, 2), None, (0, 0)), ("float16", (3, 2), (1, 2), (1, 1)),
    ):  # fmt: skip
        x = rng.integers(-50, 50, (2, 3, 8, 7)).astype(dtype)
        a = device.array(x)
        most = vkpar.max_pool2d(a, kernel, stride=stride, padding=padding)
        steps = kernel if stride is None else stride
        np.testing.assert_array_equal(most.numpy(), windows(x, kernel, steps, padding, -np.inf).max((-2, -1)))
        mean = vkpar.avg_pool2d(a, kernel, stride=stride, padding=padding)
        want = windows(x, kernel, steps, padding, 0).mean((-2, -1))
        np.testing.assert_allclose(mean.numpy(), want, rtol=0, atol=50 * (2 * U + 2.0**-11 * (dtype == "float16")))
    a = device.array(np.float32([[[[1, np.nan], [2, 3]]]]))
    assert np.isnan(vkpar.max_pool2d(a, 2).numpy()).all()
    for call, message in (
        (lambda: vkpar.max_pool2d(a, 3), "windows"),
        (lambda: vkpar.max_pool2d(a, 2, padding=2), "padding"),
        (lambda: vkpar.conv2d(a, device.zeros((1, 2, 1, 1))), "do not fit"),
        (lambda: vkpar.conv2d(a, device.zeros((1, 1, 3, 3))), "windows"),
        (lambda: vkpar.conv2d(a, device.zeros((1, 1, 1, 1)), stride="a"), "whole number"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            call()
