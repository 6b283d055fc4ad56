"""Arrays made of others by views and copies, on every driver, against NumPy.

The cases are those of numpy/lib/tests: test_arraypad.py, test_shape_base.py (TestTile, TestExpandDims) and
test_twodim_base.py (TestEye, TestTri, TestFliplr), and of numpy/_core/tests: test_numeric.py (TestRoll, TestLikeFuncs)
and test_function_base.py (TestLinspace).
"""

from __future__ import annotations

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError

pytestmark = [pytest.mark.device, pytest.mark.sampled(5)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_padding_rolling_and_repeating(device: vkpar.Device, dtype: str) -> None:
    a = np.arange(24).reshape(2, 3, 4).astype(dtype)
    x = device.array(a)
    for width in (1, (1, 0), ((0, 1), (2, 1), (1, 3)), 0):
        got = vkpar.pad(x, width, constant_values=7)
        np.testing.assert_array_equal(got.numpy(), np.pad(a, width, constant_values=7))
    for mode, width in (
        ("edge", 5),
        ("reflect", 1),
        ("symmetric", 2),
        ("wrap", 2),
        ("reflect", ((0, 1), (2, 0), (3, 2))),
    ):
        np.testing.assert_array_equal(vkpar.pad(x, width, mode).numpy(), np.pad(a, width, mode), err_msg=mode)
    out = device.zeros((4, 5, 6), dtype)
    assert vkpar.pad(x, 1, "edge", out=out) is out
    np.testing.assert_array_equal(out.numpy(), np.pad(a, 1, "edge"))
    for shift, axis in ((1, None), (-5, None), (2, 1), (-1, -1), (7, 2), ((1, 2), (0, 2)), (1, (1, 1))):
        np.testing.assert_array_equal(vkpar.roll(x, shift, axis).numpy(), np.roll(a, shift, axis))
    for count, axis in ((2, None), (3, 1), (0, 0), ([1, 0, 2], 1), ([2, 1], 0)):
        np.testing.assert_array_equal(vkpar.repeat(x, count, axis).numpy(), np.repeat(a, count, axis))
    for count in (2, (2, 1), (1, 2, 3), (2, 1, 1, 2), 0):
        np.testing.assert_array_equal(vkpar.tile(x, count).numpy(), np.tile(a, count))
    once = vkpar.tile(x, 1)
    once.fill(0)
    np.testing.assert_array_equal(x.numpy(), a)  # a copy, as NumPy's
    for k in (-5, -1, 0, 2, 9):
        np.testing.assert_array_equal(vkpar.tril(x, k).numpy(), np.tril(a, k))
        np.testing.assert_array_equal(vkpar.triu(x, k).numpy(), np.triu(a, k))
        np.testing.assert_array_equal(vkpar.eye(device, 3, 4, k, dtype).numpy(), np.eye(3, 4, k, dtype))


def test_shapes_and_likes(device: vkpar.Device) -> None:
    a = np.arange(6, dtype=np.int32).reshape(1, 2, 3)
    x = device.array(a)
    for axis in (None, 1, (0, -1)):
        np.testing.assert_array_equal(vkpar.flip(x, axis).numpy(), np.flip(a, axis))
    for places in (0, -1, (0, 2), (-1, 1)):
        assert vkpar.expand_dims(x, places).shape == np.expand_dims(a, places).shape
    assert vkpar.squeeze(x).shape == vkpar.squeeze(x, 0).shape == (2, 3)
    assert vkpar.empty_like(x).dtype == "int32"
    np.testing.assert_array_equal(vkpar.zeros_like(x, "float16").numpy(), np.zeros_like(a, "float16"))
    np.testing.assert_array_equal(vkpar.ones_like(x).numpy(), np.ones_like(a))
    np.testing.assert_array_equal(vkpar.full_like(x, 3).numpy(), np.full_like(a, 3))
    for count, endpoint in ((0, True), (1, True), (2, True), (51, True), (50, False), (1, False)):
        got = vkpar.linspace(device, -2, 3.5, count, endpoint=endpoint).numpy()
        want = np.linspace(-2, 3.5, count, endpoint=endpoint)
        np.testing.assert_allclose(got, want, rtol=0, atol=3.5 * 2**-22)
    assert vkpar.linspace(device, 0, 0.1, 7).numpy()[-1] == np.float32(0.1)
    empty = device.zeros((0, 3))
    assert vkpar.pad(empty, ((1, 1), (0, 0))).shape == (2, 3)
    assert vkpar.roll(empty, 1, 0).shape == vkpar.flip(empty).shape == vkpar.tile(empty, 2)[:, :3].shape == (0, 3)


def test_what_is_refused(device: vkpar.Device) -> None:
    x = device.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    for call, message in (
        (lambda: vkpar.pad(x, 1, "mean"), "mode is one of"),
        (lambda: vkpar.pad(x, -1), "not negative"),
        (lambda: vkpar.pad(x, ((1, 1),) * 3), "no pair for each"),
        (lambda: vkpar.pad(x, 3, "reflect"), "adds 1 elements at most"),
        (lambda: vkpar.roll(x, (1, 2), 0), "2 shifts of 1 axes"),
        (lambda: vkpar.repeat(x, [1, 2], 1), "2 numbers for 3 places"),
        (lambda: vkpar.repeat(x, -1), "not negative"),
        (lambda: vkpar.flip(x, (0, 0)), "each once"),
        (lambda: vkpar.expand_dims(x, 5), "not axes of 3 dimensions"),
        (lambda: vkpar.tril(x[0]), "two dimensions or more"),
        (lambda: vkpar.linspace(device, 0, np.inf), "finite"),
        (lambda: vkpar.tile(x, 2, out=device.zeros((2, 3))), "out"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            call()
    with pytest.raises(UnsupportedError, match="linspace makes"):
        vkpar.linspace(device, 0, 1, dtype="int32")
