"""What users of NumPy write: assignment, lists, parts and stacks, products of vectors, integers that meet floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar.errors import InvalidUsageError, UnsupportedError, VkparError

FLOATS = ("float32", "float16")


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 97).astype(dtype)


def bits(array: vkpar.Array) -> Any:
    return array.numpy()


# ---- assignment ----

KEYS: list[Any] = [
    0,
    -1,
    slice(1, 3),
    (slice(None), 2),
    (slice(None, None, -1), slice(1, None, 3)),
    (Ellipsis, slice(0, 5)),
    (2, 3),
    slice(2, 2),
    Ellipsis,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "float64"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_numbers_and_arrays_are_assigned(device: vkpar.Device, key: Any, dtype: str) -> None:
    x = whole(4, 7, dtype=dtype)
    a = device.array(x)
    a[key] = 5
    x[key] = 5
    np.testing.assert_array_equal(bits(a), x)
    part = whole(*x[key].shape, dtype=dtype) + np.array(1, dtype)
    a[key] = device.array(part)
    x[key] = part
    np.testing.assert_array_equal(bits(a), x)
    a[key] = (part[::-1] if part.ndim else part) * 2
    x[key] = (part[::-1] if part.ndim else part) * 2
    np.testing.assert_array_equal(bits(a), x)


def test_views_made_by_broadcasting_are_not_assigned(device: vkpar.Device) -> None:
    a = device.zeros((3, 4))
    with pytest.raises(vkpar.InvalidUsageError, match="broadcast"):
        vkpar.broadcast_to(a[:1], (3, 4))[0] = 5.0
    assert not a.numpy().any()


def test_what_is_assigned_is_broadcast_and_converted(device: vkpar.Device) -> None:
    x, row, column = whole(4, 6), whole(6, dtype=np.int32), whole(4, 1, dtype=np.float16)
    a = device.array(x)
    for key, value in (
        (slice(1, 3), row),
        (Ellipsis, column),
        (2, row[None, None]),
        ((slice(None), slice(0, 2)), column),
    ):
        for given in (device.array(value), value, value[None, None].tolist()):
            a[key] = 0
            a[key] = given
            x[key] = value
            np.testing.assert_array_equal(a.numpy(), x)
    a[1, 2] = [[9.0]]
    assert a[1, 2].item() == 9
    n = device.zeros(3, "int32")
    n[:] = device.array([1.9, -1.9, 7.0])
    assert n.tolist() == [1, -1, 7]
    n[1:] = [4.9, 5]
    assert n.tolist() == [1, 4, 5]
    n[0] = np.int64(3)
    n[1] = True
    assert n.tolist() == [3, 1, 5]
    half = device.zeros(4, "bfloat16")
    half[:2] = device.array([1.5, 2.5])
    half[2:] = 3.5
    assert half.tolist() == [1.5, 2.5, 3.5, 3.5]


def test_parts_of_an_array_are_assigned_to_others_of_it(device: vkpar.Device) -> None:
    x = whole(5, 6)
    a = device.array(x)
    for target, source in (
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        ((slice(None), slice(0, 3)), (slice(None), slice(3, None))),
        (slice(None), slice(None, None, -1)),
        (slice(None), 2),
    ):
        a[target] = a[source]
        x[target] = x[source].copy()
        np.testing.assert_array_equal(a.numpy(), x)
    a[1:3] += 1
    x[1:3] += 1
    a[:, 4] *= a[:, 5]
    x[:, 4] *= x[:, 5]
    np.testing.assert_array_equal(a.numpy(), x)


def test_assignments_are_captured(device: vkpar.Device) -> None:
    a, b = device.zeros((3, 4)), device.array(whole(4))
    with vkpar.capture([device]) as graph:
        a[1] = b
        a[:, 2] = 9
        b[:] = b + 1
    with closing(graph):
        for turn in range(2):
            graph.launch().wait()
            expected = np.zeros((3, 4), np.float32)
            expected[1] = whole(4) + turn
            expected[:, 2] = 9
            np.testing.assert_array_equal(a.numpy(), expected)


@pytest.mark.parametrize(
    ("assign", "error", "message"),
    [
        (lambda d, a: a.__setitem__(0, d.zeros(5)), InvalidUsageError, r"\(5,\) cannot be broadcast to the \(4,\)"),
        (lambda d, a: a.__setitem__(0, np.zeros((2, 4))), InvalidUsageError, r"\(2, 4\) cannot be broadcast"),
        (lambda d, a: a.__setitem__((0, 0), np.zeros(2)), InvalidUsageError, r"\(2,\) cannot be broadcast to the \(\)"),
        (lambda d, a: a.__setitem__(0, np.zeros((4, 1))), InvalidUsageError, r"\(4, 1\) cannot be broadcast"),
        (lambda d, a: a.__setitem__(3, 1), InvalidUsageError, "3"),
        (lambda d, a: a.__setitem__((a > 0).astype("uint32"), 1), UnsupportedError, "takes a mask of bool"),
        (lambda d, a: a[0:1].broadcast_to((3, 4)).__setitem__(slice(None), a), InvalidUsageError, "broadcasting"),
        (lambda d, a: a.__setitem__(0, "x"), InvalidUsageError, "number"),
        (lambda d, a: a.__setitem__(0, None), InvalidUsageError, "number"),
        (lambda d, a: a.__setitem__(0, d.zeros(4, "complex64")), UnsupportedError, "complex64"),
        (lambda d, a: d.zeros(3, "int32").__setitem__(0, 1.5), InvalidUsageError, "no int32"),
        (lambda d, a: d.zeros(3, "int32").__setitem__(0, 1 << 31), InvalidUsageError, "no int32"),
        (lambda d, a: d.zeros(3, "uint8").__setitem__(0, -1), InvalidUsageError, "-1 is no uint8"),
        (lambda d, a: d.zeros(3, "uint8").__setitem__(0, math.inf), InvalidUsageError, "inf is no uint8"),
        (lambda d, a: d.zeros(3, "int64").__setitem__(0, 0.5), InvalidUsageError, "0.5 is no int64"),
        (lambda d, a: d.zeros(2, "uint8").__setitem__(slice(None), [300, 1]), InvalidUsageError, "from 1 to 300"),
        (lambda d, a: d.array([-1, 7], "uint32"), InvalidUsageError, "from -1 to 7 are no uint32"),
    ],
)
def test_bad_assignments_change_nothing(
    device: vkpar.Device, assign: Callable[..., None], error: type[VkparError], message: str
) -> None:
    a = device.array(whole(3, 4))
    with pytest.raises(error, match=message):
        assign(device, a)
    np.testing.assert_array_equal(a.numpy(), whole(3, 4))


def test_arrays_of_other_devices_and_closed_ones_are_not_assigned(
    device: vkpar.Device, reopen: Callable[..., vkpar.Device]
) -> None:
    a, other = device.zeros(4), reopen().zeros(4)
    with pytest.raises(InvalidUsageError, match="different devices"):
        a[:] = other
    view = a[1:]
    a.close()
    with pytest.raises(InvalidUsageError, match="close"):
        view[:] = 1
    with pytest.raises(InvalidUsageError, match="close"):
        view[:] = [1, 2, 3]


# ---- lists ----


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0), (0,)])
def test_lists_of_arrays(device: vkpar.Device, shape: tuple[int, ...]) -> None:
    x = whole(*shape)
    assert device.array(x).tolist() == x.tolist()
    assert device.array(x, "bfloat16").tolist() == x.tolist()
    assert device.array(x.astype(np.int32)).T.tolist() == x.astype(np.int32).T.tolist()


# ---- parts and stacks ----


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("where", [1, 2, [2], [1, 3], [0, 4, 9], [3, 1], [-1], [], np.array([1, 2])], ids=str)
def test_splits_are_views_as_numpys(device: vkpar.Device, where: Any, axis: int) -> None:
    x = whole(4, 6)
    a = device.array(x)
    parts, expected = vkpar.split(a, where, axis), np.split(x, where, axis)
    assert len(parts) == len(expected)
    for part, right in zip(parts, expected, strict=True):
        assert part.shape == right.shape
        assert part.storage is a.storage
        np.testing.assert_array_equal(part.numpy(), right)
    np.testing.assert_array_equal(vkpar.concatenate(vkpar.split(a, 2, axis), axis).numpy(), x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_stacks_are_numpys(device: vkpar.Device, axis: int, dtype: str) -> None:
    xs = [whole(2, 3, dtype=dtype) + np.array(k, dtype) for k in range(3)]
    arrays = [device.array(x) for x in xs]
    expected = np.stack(xs, axis)
    np.testing.assert_array_equal(vkpar.stack(arrays, axis).numpy(), expected)
    out = device.empty(expected.shape, dtype)
    assert vkpar.stack(arrays, axis, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)


def test_stacks_of_numbers_and_of_several_types(device: vkpar.Device) -> None:
    assert vkpar.stack([device.array(1.5), device.array(2.5)]).tolist() == [1.5, 2.5]
    mixed = vkpar.stack([device.full(2, 1.0), device.zeros(2, "float16")])
    assert mixed.dtype == "float32"
    assert mixed.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, a: vkpar.split(a, 4), "3 elements along the axis are not 4 equal parts"),
        (lambda d, a: vkpar.split(a, 0), "0 equal parts"),
        (lambda d, a: vkpar.split(a, 1.5), "whole number"),
        (lambda d, a: vkpar.split(a, [0.5]), "whole number"),
        (lambda d, a: vkpar.split(a, 1, 2), "axis 2"),
        (lambda d, a: vkpar.split(d.array(1.0), 1), "axis 0"),
        (lambda d, a: vkpar.split(np.zeros(3), 1), "vkpar.Array"),
        (lambda d, a: vkpar.stack([]), "at least one"),
        (lambda d, a: vkpar.stack(a), "sequence"),
        (lambda d, a: vkpar.stack([a, np.zeros((3, 4))]), "vkpar.Array"),
        (lambda d, a: vkpar.stack([a, a[0]]), r"one shape, not \(3, 4\) and \(4,\)"),
        (lambda d, a: vkpar.stack([a, a], 3), "axis 3"),
        (lambda d, a: vkpar.stack([a, a], out=d.zeros((3, 2, 4))), "out is"),
        (lambda d, a: vkpar.take(a, d.array([0]), 2), "axis 2"),
        (lambda d, a: vkpar.take(a, d.array([0]), 1, out=d.zeros((1, 4))), "out is"),
        (lambda d, a: vkpar.take(a, d.array([0]), -1, out=a[:, :1]), "share memory"),
    ],
)
def test_bad_parts_and_stacks(device: vkpar.Device, call: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        call(device, device.zeros((3, 4)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_taking_along_an_axis(device: vkpar.Device, axis: int, dtype: str) -> None:
    x, indices = whole(3, 4, 5, dtype=dtype), np.array([[0, 2], [-1, 1], [2, 2]])
    a, numbers = device.array(x), device.array(indices.tolist())
    expected = np.take(x, indices, axis)
    np.testing.assert_array_equal(vkpar.take(a, numbers, axis).numpy(), expected)
    out = device.empty(expected.shape, dtype)
    assert vkpar.take(a, numbers, axis, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)
    np.testing.assert_array_equal(vkpar.take(a, device.array(1), axis).numpy(), np.take(x, 1, axis))
    np.testing.assert_array_equal(vkpar.take(a.T, numbers, axis).numpy(), np.take(x.T, indices, axis))


def test_what_is_not_there_along_the_last_axis(device: vkpar.Device) -> None:
    made = vkpar.take(device.array(whole(2, 3)), device.array([0, 7]), -1).numpy()
    np.testing.assert_array_equal(made, [[0, np.nan], [3, np.nan]])


# ---- vectors in products ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 5), (5,)), ((5,), (5, 4)), ((5,), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4)), ((1, 5), (5,))],
)
def test_products_of_vectors(device: vkpar.Device, left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    x, y = (whole(*shape) % 7 for shape in (left, right))  # sums of whole numbers: exact in halves, too
    a, b = device.array(x, dtype), device.array(y, dtype)
    expected = x @ y
    for _ in range(2):
        made = a @ b
        assert made.shape == expected.shape
        assert made.dtype == dtype
        np.testing.assert_array_equal(made.numpy(), expected)
    out = device.zeros(expected.shape, "float32")
    vkpar.matmul(a, b, out=out, dtype="float32")
    for _ in range(2):
        assert vkpar.matmul(a, b, out=out, accumulate=True) is out
    np.testing.assert_array_equal(out.numpy(), 3 * expected)
    added = vkpar.matmul(a, b, residual=out, dtype="float32", activation="relu")
    np.testing.assert_array_equal(added.numpy(), 4 * expected)


def test_vectors_that_are_views_and_transposed_matrices(device: vkpar.Device) -> None:
    x, v = whole(4, 6) % 5, whole(12) % 5
    a, b = device.array(x), device.array(v)
    np.testing.assert_array_equal((a @ b[::2]).numpy(), x @ v[::2])
    np.testing.assert_array_equal((b[8:] @ a).numpy(), v[8:] @ x)
    np.testing.assert_array_equal(vkpar.matmul(b[::3], a.T, transpose_b=True).numpy(), v[::3] @ x)
    np.testing.assert_array_equal(vkpar.matmul(a, b[:4], transpose_a=True).numpy(), x.T @ v[:4])
    out = device.zeros((4, 3))
    vkpar.matmul(a, b[:6], out=out[:, 1])
    np.testing.assert_array_equal(out.numpy()[:, 1], x @ v[:6])
    assert not out.numpy()[:, 0].any()
    np.testing.assert_array_equal(vkpar.matmul(b[:4], a, bias=b[:6]).numpy(), v[:4] @ x + v[:6])
    assert (device.zeros((3, 0)) @ device.zeros(0)).tolist() == [0, 0, 0]
    assert (device.zeros((0, 3)) @ device.zeros(3)).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, a, v: a @ v[1:], "does not fit"),
        (lambda d, a, v: v @ a, "does not fit"),
        (lambda d, a, v: a @ d.array(1.0), "vectors, matrices"),
        (lambda d, a, v: vkpar.matmul(a, v, out=d.zeros(4)), r"result is \(3,\)"),
        (lambda d, a, v: vkpar.matmul(a, v, residual=d.zeros((3, 1))), "residual"),
        (lambda d, a, v: vkpar.matmul(a, v, transpose_b=True), "no transpose"),
        (lambda d, a, v: vkpar.matmul(a, v, bias=d.zeros(1)), "no bias"),
        (lambda d, a, v: vkpar.matmul(a, v, out=v[:3]), "share memory"),
        (lambda d, a, v: vkpar.matmul(a, v, accumulate=True), "out"),
    ],
)
def test_bad_products_of_vectors(device: vkpar.Device, call: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        call(device, device.zeros((3, 4)), device.zeros(4))


# ---- integers and floats ----


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("integers", ["int32", "uint32"])
def test_masks_and_integers_meet_floats(device: vkpar.Device, integers: str, dtype: str) -> None:
    x, k = whole(3, 4) - 5, whole(3, 4, dtype=integers)
    a, n = device.array(x, dtype), device.array(k)
    kf = k.astype(np.float32)
    for made, expected in (
        ((a > 0) * a, np.maximum(x, 0)),
        (a * n, x * kf),
        (n - a, kf - x),
        (a + n, x + kf),
        (n + a, kf + x),
        (a * n[0], x * kf[0]),
        (vkpar.maximum(n, a), np.maximum(kf, x)),
        (vkpar.where(a > 0, n, a), np.where(x > 0, kf, x)),
    ):
        assert made.dtype == dtype
        np.testing.assert_array_equal(made.numpy(), expected)
    halves = n * 0.5
    assert halves.dtype == "float32"
    np.testing.assert_array_equal(halves.numpy(), kf * 0.5)
    np.testing.assert_array_equal((n < a).numpy(), kf < x)
    np.testing.assert_array_equal((n == 1.5).numpy(), kf == 1.5)
    out = device.empty((3, 4), dtype)
    assert vkpar.multiply(n, a, out=out) is out
    np.testing.assert_array_equal(out.numpy(), x * kf)
    a *= n
    np.testing.assert_array_equal(a.numpy(), x * kf)
    with pytest.raises(InvalidUsageError, match=f"out is .*{integers}"):
        n *= a


EDGES = np.array([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])


def test_signed_and_unsigned_are_compared_as_numbers(device: vkpar.Device) -> None:
    x, y = np.meshgrid(np.unique(EDGES.astype(np.int32)), EDGES.astype(np.uint32))
    a, b = device.array(np.ascontiguousarray(x)), device.array(np.ascontiguousarray(y))
    wide, other = x.astype(np.int64), y.astype(np.int64)
    for compare in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        ours, theirs = getattr(vkpar, compare), getattr(np, compare)
        np.testing.assert_array_equal(ours(a, b).numpy(), theirs(wide, other))
        np.testing.assert_array_equal(ours(b, a).numpy(), theirs(other, wide))
        np.testing.assert_array_equal(ours(a, b, out=device.empty(b.shape, "bool")).numpy(), theirs(wide, other))
    np.testing.assert_array_equal((a.T[1:] == b.T[:-1]).numpy(), wide.T[1:] == other.T[:-1])
    labels = device.array([2, 0])
    assert (vkpar.argmax(device.array([[1, 2, 5.0], [1, 2, 5]]), 1) == labels).tolist() == [1, 0]


def test_integers_meet_floats_in_a_capture(device: vkpar.Device) -> None:
    a, n = device.array(whole(6)), device.array([1, 2, 3, 0, 1, 2])
    with vkpar.capture([device]) as graph:
        made = (a > 2) * a + n
    with closing(graph):
        graph.launch().wait()
        x = whole(6)
        np.testing.assert_array_equal(made.numpy(), np.where(x > 2, x, 0) + n.numpy())


def test_axes_are_whole_numbers_numpys_too(device: vkpar.Device) -> None:
    x = whole(4, 6)
    a, indices = device.array(x), device.array([2, 0])
    calls: list[tuple[str, Any]] = [
        ("softmax", lambda axis: vkpar.softmax(a, axis)),
        ("log_softmax", lambda axis: vkpar.log_softmax(a, axis)),
        ("take", lambda axis: vkpar.take(a, indices, axis)),
        ("concatenate", lambda axis: vkpar.concatenate([a, a], axis)),
        ("stack", lambda axis: vkpar.stack([a, a], axis)),
        ("split", lambda axis: vkpar.split(a, 2, axis)[1]),
    ]
    for name, call in calls:
        for axis in (0, 1, -1):
            np.testing.assert_array_equal(call(np.int64(axis)).numpy(), call(axis).numpy())
        for axis in (1.0, "0", None, (0,)):
            with pytest.raises(InvalidUsageError, match=f"{name}: an axis is a whole number, not "):
                call(axis)
