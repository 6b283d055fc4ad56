"""Functions, comparisons and operators by element, on every driver, against float64: bounds, special values, types."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.elementwise import COMPARISONS, check, held, pow_bound, seen

import vkpar
from vkpar import InvalidUsageError, OperandError, UnsupportedError
from vkpar.doctor.functions import BINARY, UNARY, Case

pytestmark = [pytest.mark.device, pytest.mark.sampled(6)]
FLOATS = ("float32", "float16", "bfloat16")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 88.5, -88.5, 300.0, -300.0, 1e-4, 0.25, 0.5, 2.0])


def sample(rng: np.random.Generator, count: int = 1200) -> np.ndarray:
    """Values of all sizes that matter, and special ones."""
    spread = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 2, count)
    return np.concatenate([SPECIAL, spread, np.linspace(-20, 20, 401), np.linspace(0.4, 2.1, 300)])


def function(name: str) -> Callable[..., vkpar.Array]:
    if name == "gelu_tanh":
        return lambda x, **more: vkpar.gelu(x, approximate="tanh", **more)
    made: Callable[..., vkpar.Array] = getattr(vkpar, name)
    return made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", UNARY, ids=lambda case: case.name)
def test_functions_of_one(device: vkpar.Device, rng: np.random.Generator, case: Case, dtype: str) -> None:
    x = held(sample(rng), dtype)
    out = function(case.name)(device.array(x, dtype))
    assert out.dtype == dtype
    with np.errstate(all="ignore"):
        x64 = x.astype(np.float64)
        want = case.reference(x64)
        bound = np.nan_to_num(case.bound(want, x64), nan=0.0, posinf=np.inf)
        check(seen(out), want, bound, dtype)


@pytest.mark.parametrize(
    "types", ["float32 float32", "float16 float16", "bfloat16 bfloat16", "bfloat16 float16", "float32 float16"]
)
@pytest.mark.parametrize("case", BINARY, ids=lambda case: case.name)
def test_functions_of_two(device: vkpar.Device, rng: np.random.Generator, case: Case, types: str) -> None:
    one, other = types.split()
    a, b = held(sample(rng), one), held(rng.permutation(sample(rng)), other)
    out = function(case.name)(device.array(a, one), device.array(b, other))
    assert out.dtype == (one if one == other else "float32")
    with np.errstate(all="ignore"):
        want = case.reference(a.astype(np.float64), b.astype(np.float64))
        bound = np.nan_to_num(case.bound(want, a, b), nan=0.0)
        # Subnormal operands and results may count as zero.
        if case.name in ("add", "subtract"):
            bound = bound + 2.0**-126
        check(seen(out), want, bound, out.dtype.name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a = held(np.concatenate([SPECIAL, rng.standard_normal(800) * 4, rng.random(400) * 100]), dtype)
    exponents = [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.7, np.inf, -np.inf, np.nan]
    b = held(rng.choice(exponents, a.size), dtype)
    b[:15] = held(rng.standard_normal(15) * 3, dtype)
    every = held(np.stack(np.broadcast_arrays(SPECIAL[:, None], SPECIAL[None, :])), dtype)
    a, b = np.concatenate([a, every[0].ravel()]), np.concatenate([b, every[1].ravel()])
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        want = x**y
        bound = np.nan_to_num(pow_bound(x, y), nan=0.0, posinf=np.inf)
        check(seen(vkpar.pow(device.array(a, dtype), device.array(b, dtype))), want, bound, dtype)
        for number in (2, 3, 0.5, -1, -0.75):
            got = device.array(a, dtype) ** number
            want = x ** np.float64(number)
            if number == 0.5:
                want = np.sqrt(x)  # NaN of -infinity
            check(seen(got), want, np.nan_to_num(pow_bound(x, np.full_like(x, number)), nan=0, posinf=np.inf), dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint32"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(device: vkpar.Device, rng: np.random.Generator, name: str, dtype: str) -> None:
    if dtype in FLOATS:
        a = held(rng.choice(SPECIAL, 500), dtype)
        b = held(rng.choice(SPECIAL, 500), dtype)
    else:
        a, b = (rng.choice([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1], 500).astype(np.uint32).view(dtype) for _ in range(2))
    want = getattr(np, name)(a, b)
    out = function(name)(device.array(a, dtype), device.array(b, dtype))
    assert out.dtype == "bool"
    np.testing.assert_array_equal(out.numpy(), want)
    sign = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
    compare = getattr(operator, sign[name])
    np.testing.assert_array_equal(compare(device.array(a, dtype), device.array(b, dtype)).numpy(), out.numpy())
    np.testing.assert_array_equal(compare(device.array(a, dtype), 2).numpy(), getattr(np, name)(a, 2))
    np.testing.assert_array_equal(compare(2, device.array(a, dtype)).numpy(), getattr(np, name)(2, a))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = (rng.integers(0, 2**32, 1003, dtype=np.uint32).view(dtype) for _ in range(2))
    x, y = device.array(a), device.array(b)
    for name in ("subtract", "multiply", "maximum", "minimum"):
        np.testing.assert_array_equal(function(name)(x, y).numpy(), getattr(np, name)(a, b))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal((-x).numpy(), (0 - a).astype(dtype))
        np.testing.assert_array_equal(abs(x).numpy(), np.abs(a))
        np.testing.assert_array_equal((x * 3 - 7).numpy(), a * np.array(3, dtype) - np.array(7, dtype))
        np.testing.assert_array_equal((7 - x).numpy(), np.array(7, dtype) - a)
    np.testing.assert_array_equal(vkpar.relu(x).numpy(), np.maximum(a, 0))
    np.testing.assert_array_equal(vkpar.where(x > y, x, y).numpy(), np.maximum(a, b))
    with pytest.raises(UnsupportedError, match="divide computes floats"):
        x / y
    with pytest.raises(UnsupportedError, match="exp computes floats"):
        vkpar.exp(x)
    for number in (-(1 << 31) - 1, 1 << 32, -1 if dtype == "uint32" else 1 << 31):
        for _ in range(2):
            with pytest.raises(InvalidUsageError, match=dtype):
                x + number
            x + 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("condition", ["int32", "uint32", *FLOATS])
def test_where_takes_a_condition_of_any_type(device: vkpar.Device, condition: str) -> None:
    mask = device.array([0, -1 if condition == "int32" else 1, 2], condition)
    for dtype in (*FLOATS, "int32", "uint32"):
        a, b = device.array([1, 2, 3], dtype), device.array([4, 5, 6], dtype)
        assert seen(vkpar.where(mask, a, b)).tolist() == [4, 2, 3]
        assert seen(vkpar.where(mask, a, 0)).tolist() == [0, 2, 3]
    assert vkpar.where(mask, device.array([1, 2, 3], "int32"), 0.5).tolist() == [0.5, 2, 3]
    assert vkpar.where(mask, 1, 0).tolist() == [0, 1, 1]
    assert vkpar.where(device.array([True, False, True]), mask, 0).tolist()[1:] == [0, 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint32"])
def test_where_takes_a_number_as_condition(device: vkpar.Device, dtype: str) -> None:
    a, b = device.array([1, 2, 3], dtype), device.array([4, 5, 6], dtype)
    for condition in (True, -1, 0.5, np.float32(np.nan), 0, -0.0, np.bool_(False)):
        for _ in range(2):
            assert seen(vkpar.where(condition, a, b)).tolist() == ([1, 2, 3] if condition else [4, 5, 6])
        assert seen(vkpar.where(condition, a, 0)).tolist() == ([1, 2, 3] if condition else [0, 0, 0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_where(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = held(sample(rng), dtype), held(rng.permutation(sample(rng)), dtype)
    mask = rng.integers(0, 3, a.size).astype(np.uint32)
    x, y = device.array(a, dtype), device.array(b, dtype)
    np.testing.assert_array_equal(seen(vkpar.where(device.array(mask), x, y)), np.where(mask, a, b))
    np.testing.assert_array_equal(seen(vkpar.where(x, x, y)), np.where(a != 0, a, b))
    np.testing.assert_array_equal(seen(vkpar.where(device.array(mask), x, 0)), np.where(mask, a, 0))
    np.testing.assert_array_equal(seen(vkpar.where(x > y, -1.5, y)), np.where(a > b, np.float32(-1.5), b))
    np.testing.assert_array_equal(vkpar.where(x > y, 1.0, 0.0).numpy(), np.where(a > b, 1, 0).astype(np.float32))
    assert vkpar.where(x > y, 1, 0).dtype == "int32"
    if dtype != "float32":
        mixed = vkpar.where(device.array(mask), x, device.array(b, "float32"))
        assert mixed.dtype == "float32"
        np.testing.assert_array_equal(mixed.numpy(), np.where(mask, a, b))


def test_operators(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 7)).astype(np.float32)
    a = device.array(x)
    for got, want in (
        (a + 1.5, x + np.float32(1.5)),
        (1.5 + a, x + np.float32(1.5)),
        (a - a[0], x - x[0]),
        (2 - a, 2 - x),
        (a * a[:, 1:2], x * x[:, 1:2]),
        (np.float32(2) * a, 2 * x),
        (a * np.float64(2), 2 * x),
        (-a, -x),
        (abs(a), abs(x)),
        (a.T * 2, x.T * 2),
        (a[None] + a[:, None], x[None] + x[:, None]),
        (a + True, x + 1),
    ):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_allclose((a / 3).numpy(), x / 3, rtol=3 * 2.0**-23)
    np.testing.assert_allclose((3 / a).numpy(), 3 / x, rtol=3 * 2.0**-23)
    np.testing.assert_allclose((a @ a.T).numpy(), x @ x.T, rtol=1e-5, atol=1e-5)
    assert bool(a[0, 0] == a[0, 0])
    with pytest.raises(InvalidUsageError, match="ambiguous"):
        bool(a == a.T.T)
    assert a in [a]
    assert len({a, a.T}) == 2


def test_operators_in_place(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((6, 8)).astype(np.float32)
    a = device.array(x)
    same, part = a, a[:, 1::2]
    a += 1
    a -= a[0]
    a *= 2
    x += 1
    x -= x[0].copy()
    x *= 2
    part /= 4
    x[:, 1::2] /= 4
    assert a is same
    np.testing.assert_array_equal(a.numpy(), x)
    half, start = device.array(x, "float16"), x.astype(np.float16)
    half += device.array(x)
    assert half.dtype == "float16"
    np.testing.assert_array_equal(half.numpy(), (start.astype(np.float32) + x).astype(np.float16))
    with pytest.raises(InvalidUsageError, match=r"\(6, 6, 8\)"):
        a += device.zeros((6, 6, 8))
    row = a[0]
    row += a[:, 0][:1].broadcast_to((8,))
    x[0] += x[0, 0].copy()
    np.testing.assert_array_equal(a.numpy(), x)


@pytest.mark.parametrize("other", [None, "a", [1.0], np.ones(3), 1j, object()])
@pytest.mark.parametrize("call", [operator.add, operator.eq, operator.lt, operator.truediv, vkpar.maximum])
def test_operands_that_are_refused(device: vkpar.Device, call: Callable[..., Any], other: Any) -> None:
    with pytest.raises(OperandError):
        call(device.zeros(3), other)
    if not isinstance(other, (np.ndarray, str)) and call is not vkpar.maximum:
        with pytest.raises(OperandError):
            call(other, device.zeros(3))


@pytest.mark.parametrize("source", [*FLOATS, "int32", "uint32"])
@pytest.mark.parametrize("target", [*FLOATS, "int32", "uint32"])
def test_casts(device: vkpar.Device, rng: np.random.Generator, source: str, target: str) -> None:
    if source in FLOATS:
        values = held(
            [0, -0.0, 1.5, -1.5, 2.5e9, -2.5e9, 5e9, np.inf, -np.inf, np.nan, 3e38, *rng.standard_normal(50) * 1e4],
            source,
        )
    else:
        values = (
            np.concatenate([[0, 1, 2**31 - 1, 2**31, 2**32 - 1], rng.integers(0, 2**32, 50)])
            .astype(np.uint32)
            .view(source)
        )
    out = device.array(values, source).astype(target)
    assert out.dtype == target
    with np.errstate(all="ignore"):
        if target in FLOATS:
            want = held(values.astype(np.float32), target)
        elif source in FLOATS:
            low, high = np.iinfo(target).min, np.iinfo(target).max
            want = np.clip(np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0), low, high).astype(target)
        else:
            want = values.view(target)
    np.testing.assert_array_equal(seen(out), want)
    view = device.zeros((values.size, 3), target)
    vkpar.cast(device.array(values, source), target, out=view[:, 1])
    np.testing.assert_array_equal(seen(view[:, 1]), want)
    with pytest.raises(UnsupportedError, match="complex64"):
        device.zeros(3, source).astype("complex64")


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint32", "float64", "int8"])
def test_fill_and_full(device: vkpar.Device, dtype: str) -> None:
    for shape, look in (
        ((5,), lambda x: x),
        ((7, 9), lambda x: x[1:, 2::3]),
        ((7, 9), lambda x: x[:, 3]),
        ((33,), lambda x: x[1:]),
    ):
        want = np.zeros(shape, np.float64)
        array = device.zeros(shape, dtype)
        for value in (3, 5):
            look(array).fill(value)
            look(want)[...] = value
            np.testing.assert_array_equal(seen(array), want)
    np.testing.assert_array_equal(seen(device.full((3, 2), 2, dtype)), np.full((3, 2), 2))
    assert device.full((0,), 1, dtype).size == 0
    if dtype in FLOATS:
        got = seen(vkpar.full(device, 3, np.inf, dtype))
        assert np.isinf(got).all()
    if dtype in ("int32", "uint32"):
        for value in (1.5, 1 << 33, np.nan, np.inf):
            with pytest.raises(InvalidUsageError):
                device.full(3, value, dtype)
    with pytest.raises(InvalidUsageError, match="broadcasting"):
        device.zeros(1, dtype).broadcast_to(3).fill(1)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "float16"])
def test_whole_numbers_of_any_type_fill_again_and_again(device: vkpar.Device, dtype: str) -> None:
    """The second call of a kind goes by what the first one kept."""
    array = device.zeros(5, dtype)
    for kind in (int, float, np.float32, np.float64, np.int64, bool, np.bool_):
        for value in (0, 1, 1):
            array.fill(kind(value))
            np.testing.assert_array_equal(seen(array), np.full(5, value))
    for value in (1.5, np.float32(1.5), np.nan, np.inf, 1 << 40):
        if dtype != "float16":
            with pytest.raises(InvalidUsageError, match=f" is no {dtype}"):
                array.fill(value)
    array[1:3] = 7.0
    array[1:3] = 9.0
    np.testing.assert_array_equal(seen(array), [1, 9, 9, 1, 1])


def test_arange(device: vkpar.Device) -> None:
    for given in ((5,), (2, 9), (2, 9, 3), (9, 2, -2), (-5, 5), (5, 5), (5, 2), (0, 3000)):
        out = vkpar.arange(device, *given)
        assert out.dtype == "int32"
        np.testing.assert_array_equal(out.numpy(), np.arange(*given))
        for dtype in FLOATS:
            np.testing.assert_array_equal(seen(device.arange(*given, dtype=dtype)), held(np.arange(*given), dtype))
    np.testing.assert_array_equal(
        device.arange(2**32 - 3, 2**32, dtype="uint32").numpy(), [2**32 - 3, 2**32 - 2, 2**32 - 1]
    )
    np.testing.assert_allclose(device.arange(0.0, 1.0, 0.1).numpy(), np.arange(0.0, 1.0, 0.1), rtol=4e-7)
    for bad in ((0, 5, 0), (0, np.inf), ("a",), (2**31 - 1, 2**31 + 1)):
        with pytest.raises(InvalidUsageError):
            device.arange(*bad)
    with pytest.raises(InvalidUsageError, match="whole"):
        device.arange(0, 1, 0.5, dtype="int32")
    with pytest.raises(UnsupportedError):
        device.arange(5, dtype="float64")


@pytest.mark.parametrize("name", ["exp", "add", "where"])
def test_zero_sizes_and_numbers(device: vkpar.Device, name: str) -> None:
    a = device.zeros((0, 3), "float16")
    made = {"exp": lambda: vkpar.exp(a), "add": lambda: a + 1, "where": lambda: vkpar.where(a, a, 1.0)}[name]()
    assert (made.shape, made.dtype) == ((0, 3), "float16")
    scalar = device.array(np.float32(2))
    assert (scalar * 3).shape == ()
    assert (scalar * 3).item() == 6


def test_gelu_is_one_of_two(device: vkpar.Device) -> None:
    with pytest.raises(InvalidUsageError, match="'none' or 'tanh'"):
        vkpar.gelu(device.zeros(3), approximate="sigmoid")


def test_mistakes_are_told_before_anything_runs(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    a, b = device.zeros((3, 4)), device.zeros((2, 4))
    for call, error, message in (
        (lambda: a * b, InvalidUsageError, r"\(3, 4\), \(2, 4\) cannot be broadcast"),
        (lambda: vkpar.exp(a, out=b), InvalidUsageError, r"result is \(3, 4\) float32, out is \(2, 4\)"),
        (lambda: vkpar.exp(a, out=device.zeros((3, 4), "float16")), InvalidUsageError, "float16"),
        (lambda: vkpar.exp(a, out=1), InvalidUsageError, "out has to be a vkpar.Array"),
        (lambda: vkpar.exp(1.0), InvalidUsageError, "at least one array"),
        (lambda: vkpar.exp(device.zeros(3, "float64")), UnsupportedError, "float64"),
        (lambda: device.zeros(4, "uint64") * device.zeros(4, "int64"), UnsupportedError, "cast one first"),
        (lambda: a * reopen().zeros(4), InvalidUsageError, "different devices"),
        (lambda: vkpar.subtract(a[1:], a[1:], out=a[:2]), InvalidUsageError, "share memory"),
        (lambda: vkpar.subtract(a[:, :3], a[:, :3], out=a[:, 1:]), InvalidUsageError, "share memory"),
    ):
        for _ in range(2):
            with pytest.raises(error, match=message):
                call()
    closed = device.zeros(3)
    made = closed * 2
    closed.close()
    with pytest.raises(InvalidUsageError, match="close"):
        closed * 2
    assert not made.numpy().any()
