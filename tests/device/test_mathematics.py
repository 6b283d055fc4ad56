"""NumPy's functions of numbers, bits and truth, on every driver: float64 references, special values, whole numbers.

The special values are those of numpy/_core/tests/test_umath.py (TestArctan2SpecialValues, TestHypotSpecialValues,
TestLog2Special, TestExp2Special, TestDivision, TestBitwiseUFuncs, TestLogical) and test_numeric.py (TestClip).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.elementwise import check, held, seen

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.testing import U

pytestmark = [pytest.mark.device, pytest.mark.sampled(5)]
F64 = np.ndarray[Any, np.dtype[np.float64]]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 88.5, -88.5, 300.0, 1e-4])


def times(units: float) -> Callable[[F64, F64], F64]:
    return lambda want, x: units * U * np.abs(want)


def near_one(units: float, shift: float = 0.0) -> Callable[[F64, F64], F64]:
    """Logarithms: 2^-21 where Vulkan allows it, between 1/2 and 2, and so many units."""
    return lambda want, x: units * U * np.abs(want) + np.where((x + shift > 0.5) & (x + shift < 2), 2.0**-21, 0)


def growing(units: float) -> Callable[[F64, F64], F64]:
    """Vulkan's exponentials err by 3 + 2 |x| units; twice that in what two of them are multiplied to."""
    return lambda want, x: (units + 2 * np.abs(x)) * U * np.abs(want)


# The bounds of docs/operations.md: Vulkan's of the instructions, added up along shaders/common/functions.glsl.
ONE: dict[str, tuple[Callable[[F64], F64], Callable[[F64, F64], F64]]] = {
    **{name: (getattr(np, name), times(0)) for name in ("floor", "ceil", "trunc", "sign")},
    "round": (np.round, times(0)),
    "square": (np.square, times(0.5)),
    "reciprocal": (np.reciprocal, times(2.5)),
    "sin": (np.sin, lambda want, x: np.full_like(x, 2.0**-22)),
    "cos": (np.cos, lambda want, x: np.full_like(x, 2.0**-22)),
    "tan": (np.tan, lambda want, x: 2.0**-22 * (1 + abs(want)) / abs(np.cos(x)) + 3 * U * abs(want)),
    "arcsin": (np.arcsin, times(14)),
    "arccos": (np.arccos, times(14)),
    "arctan": (np.arctan, times(8)),
    "sinh": (np.sinh, growing(12)),
    "cosh": (np.cosh, growing(12)),
    "log2": (np.log2, near_one(9)),
    "log10": (np.log10, near_one(9)),
    "log1p": (np.log1p, near_one(9, 1.0)),
    "expm1": (np.expm1, lambda want, x: np.where(abs(x) < 0.5, 4 * abs(want), (5 + 2 * abs(x)) * np.exp(x) + 1) * U),
    "exp2": (np.exp2, growing(4)),
    "erf": (np.vectorize(math.erf), lambda want, x: np.where(np.abs(x) < 0.5, 8 * U * np.abs(want), 3e-7)),
}  # fmt: skip


_ROUNDED = ("floor", "sign", "reciprocal", "arctan")  # those whose results of 16 bits are looked at, too


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions_of_one(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    spread = rng.standard_normal(500) * 10.0 ** rng.integers(-4, 3, 500)
    x = held(np.concatenate([SPECIAL, spread, np.linspace(-3, 3, 401)]), dtype)
    a, x64 = device.array(x, dtype), x.astype(np.float64)
    for name, (reference, bound) in ONE.items():
        if dtype != "float32" and name not in _ROUNDED:
            continue  # SwiftShader takes half a second to compile each
        got = getattr(vkpar, name)(a)
        assert got.dtype == dtype
        with np.errstate(all="ignore"):
            want = reference(x64)
            allowed = np.nan_to_num(bound(want, x64), nan=0.0, posinf=np.inf)
        try:
            check(seen(got), want, allowed, dtype)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    for name in ("isnan", "isinf", "isfinite"):
        np.testing.assert_array_equal(getattr(vkpar, name)(a).numpy(), getattr(np, name)(x))
    np.testing.assert_array_equal(vkpar.logical_not(a).numpy(), np.logical_not(x))
    np.testing.assert_array_equal(seen(a.clip(-1.5, 2)), np.clip(x, -1.5, 2))
    np.testing.assert_array_equal(seen(a.clip(low=0.25)), np.maximum(x, 0.25))
    np.testing.assert_array_equal(seen(a.round()), np.round(x))


def test_functions_of_two(device: vkpar.Device, rng: np.random.Generator) -> None:
    every = np.stack(np.broadcast_arrays(SPECIAL[:, None], SPECIAL[None, :])).reshape(2, -1)
    huge = np.array([[3e38, 1e38, 2e-38, 3e38], [1e38, 3e38, 3e38, 3e38]])
    a, b = held(np.concatenate([every, huge, rng.standard_normal((2, 600)) * 50], 1), "float32")
    x, y = device.array(a), device.array(b)
    with np.errstate(all="ignore"):
        one, other = a.astype(np.float64), b.astype(np.float64)
        for name, units in (("arctan2", 10), ("hypot", 10)):
            want = getattr(np, name)(one, other)
            check(
                seen(getattr(vkpar, name)(x, y)),
                want,
                np.nan_to_num(units * U * np.abs(want), posinf=np.inf),
                "float32",
            )
        signed = vkpar.arctan2(x, y).numpy()
        kept = ~np.isnan(signed)
        np.testing.assert_array_equal(np.signbit(signed[kept]), np.signbit(np.arctan2(one, other)[kept]))
        near = (np.abs(one / other) < 2**21) | ~np.isfinite(one / other)  # NumPy's quotients round beyond
        np.testing.assert_array_equal((x // y).numpy()[near], np.floor_divide(a, b)[near])
        np.testing.assert_array_equal((x % y).numpy(), np.mod(a, b))
        np.testing.assert_array_equal((x % 2.5).numpy(), np.mod(a, np.float32(2.5)))
        for name in ("logical_and", "logical_or", "logical_xor"):
            np.testing.assert_array_equal(getattr(vkpar, name)(x, y).numpy(), getattr(np, name)(a, b))
        np.testing.assert_array_equal(vkpar.clip(x, y, 2.0).numpy(), np.clip(a, b, np.float32(2.0)))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_whole_numbers(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    edges = np.array([0, 1, 2, 5, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    pairs = np.stack(np.broadcast_arrays(edges[:, None], edges[None, :])).reshape(2, -1)
    a, b = (part.astype(np.uint32).view(dtype) for part in np.concatenate([pairs, rng.integers(0, 2**32, (2, 301))], 1))
    x, y = device.array(a), device.array(b)
    by = np.arange(a.size, dtype=np.uint32).astype(dtype) % 32
    shift = device.array(by)
    with np.errstate(all="ignore"):
        for name in ("mod", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_xor", "logical_and"):
            np.testing.assert_array_equal(getattr(vkpar, name)(x, y).numpy(), getattr(np, name)(a, b), err_msg=name)
        np.testing.assert_array_equal(vkpar.square(x).numpy(), a * a)
    np.testing.assert_array_equal((x << shift).numpy(), a << by)
    np.testing.assert_array_equal((x >> shift).numpy(), a >> by)
    np.testing.assert_array_equal(((x & 12) | (3 ^ y)).numpy(), (a & 12) | (3 ^ b))
    np.testing.assert_array_equal(vkpar.invert(x).numpy(), ~a)
    np.testing.assert_array_equal(vkpar.sign(x).numpy(), np.sign(a))
    np.testing.assert_array_equal(x.clip(1, 5).numpy(), np.clip(a, 1, 5))
    for name in ("floor", "ceil", "round", "trunc"):
        np.testing.assert_array_equal(getattr(vkpar, name)(x).numpy(), a)
    assert vkpar.isnan(x).numpy().max() == 0 == vkpar.isinf(x).numpy().max()
    assert vkpar.isfinite(x).numpy().min() == 1
    with pytest.raises(UnsupportedError, match="sin computes floats"):
        vkpar.sin(x)
    with pytest.raises(UnsupportedError, match="bitwise_and computes int32"):
        device.array([1.0]) & 1
    with pytest.raises(UnsupportedError, match="bitwise_xor computes int32"):
        operator.invert(device.array([1.0]))


def test_forms(device: vkpar.Device) -> None:
    """Views, broadcasting, out=, no elements, and a captured graph: by kernels of families, too."""
    a = np.linspace(-3, 3, 42, dtype=np.float32).reshape(6, 7)
    x = device.array(a)
    out = device.zeros((7, 6))
    assert vkpar.floor(x.T, out=out) is out
    np.testing.assert_array_equal(out.numpy(), np.floor(a.T))
    np.testing.assert_array_equal(vkpar.ceil(x[::2, ::-3]).numpy(), np.ceil(a[::2, ::-3]))
    np.testing.assert_array_equal(vkpar.mod(x[:, None, :], x[1]).numpy(), np.mod(a[:, None, :], a[1]))
    vkpar.trunc(x[:, 1:3], out=x[:, 1:3])
    a[:, 1:3] = np.trunc(a[:, 1:3])
    np.testing.assert_array_equal(x.numpy(), a)
    assert vkpar.sin(device.zeros((0, 3))).shape == vkpar.arctan2(device.zeros((0, 3)), 1.0).shape == (0, 3)
    with vkpar.capture([device]) as graph:
        made = vkpar.tril(vkpar.clip(vkpar.floor(x), -1, 1).repeat(2, 0)[:7])
    graph.launch().wait()
    np.testing.assert_array_equal(made.numpy(), np.tril(np.clip(np.floor(a), -1, 1).repeat(2, 0)[:7]))
    graph.close()
    with pytest.raises(InvalidUsageError, match="a bound"):
        x.clip()


def test_intermediate_names_and_the_index(device: vkpar.Device) -> None:
    a = np.arange(15, dtype=np.float32).reshape(3, 5)
    x = device.array(a)
    both = vkpar.elementwise("_t = x * 2; y = _t + index; n = index * 2")
    assert both.outputs == ("y", "n")
    assert both.inputs == ("x",)
    index = np.arange(15)
    for view, want in ((x, a), (x.T, a.T), (x[:, :1].broadcast_to((3, 5)), a[:, :1].repeat(5, 1))):
        y, n = both(view)
        np.testing.assert_array_equal(y.numpy(), want * 2 + index.reshape(want.shape))
        np.testing.assert_array_equal(n.numpy(), 2 * index.reshape(want.shape))
        assert n.dtype == "int32"
    out = device.zeros((5, 3))
    both(x, out=(out.T, None))
    np.testing.assert_array_equal(out.numpy().T, a * 2 + index.reshape(3, 5))
    named = vkpar.elementwise("y = hypot(square(x), 0.0) + mod(index, 3) + logical_xor(x > 2, bitwise_and(index, 1))")
    want = a * a + index.reshape(3, 5) % 3 + ((a > 2) ^ (index.reshape(3, 5) & 1 > 0))
    np.testing.assert_allclose(named(x).numpy(), want, rtol=10 * U)
    for text, message in (
        ("_y = x", "not stored"), ("y = _x", "no input begins"), ("index = x", "number of the element"),
    ):  # fmt: skip
        with pytest.raises(InvalidUsageError, match=message):
            vkpar.elementwise(text)
    many = vkpar.elementwise("y = " + " + ".join(f"x{n}" for n in range(40)))
    with pytest.raises(UnsupportedError, match=r"more than the \d+ that a kernel takes here; write two"):
        many(*[x] * 40)
