"""Float ``//`` and ``%`` of expressions beside NumPy's float32 and whole numbers of any size, on every driver."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from helpers.ops.elementwise import held, seen
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.doctor.functions import TINY

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("compiler")]
F32 = NDArray[np.float32]
BOTH = vkpar.elementwise("q = a // b; r = a % b")
SPECIAL = [0.0, 0.1, 1.0, 7.0, 2.0**24 - 1, 2.0**24, 2.0**-126, 3.4028235e38, np.inf, np.nan]


def both(device: vkpar.Device, a: F32, b: F32) -> tuple[F32, F32]:
    """The device's quotients and remainders."""
    q, r = BOTH(device.array(a), device.array(b))
    return q.numpy(), r.numpy()


def nearest(x: Fraction) -> float:
    """The float32 nearest to x, halves to even, infinity beyond the largest one; x is of 2^24 or more in size."""
    size = abs(x)
    power = int(size).bit_length() - 24
    kept = round(size / 2**power)  # Python rounds halves of fractions to even
    made = np.inf if kept * 2**power >= 2**128 else float(kept * 2**power)
    return -made if x < 0 else made


def quotient(a: np.float32, b: np.float32) -> float:
    """What docs/elementwise.md says of a // b, for finite numbers other than 0."""
    exact = Fraction(float(a)) / Fraction(float(b))
    return float(exact.__floor__()) if abs(exact) < 2**24 else nearest(exact)


def same(got: F32, want: F32) -> NDArray[np.bool_]:
    """Where numbers are equal, the signs of zeros included, or both no numbers."""
    return (np.isnan(got) & np.isnan(want)) | ((got == want) & (np.signbit(got) == np.signbit(want)))


def counted(*parts: F32) -> NDArray[np.bool_]:
    """Where no operand or result is one that drivers may take for zero."""
    return np.all([(np.abs(part) >= TINY) | (part == 0) | np.isnan(part) for part in parts], axis=0)


def check(device: vkpar.Device, a: F32, b: F32) -> None:
    """Compare all remainders with NumPy's, and all quotients with exact ones."""
    q, r = both(device, a, b)
    with np.errstate(all="ignore"):
        floor, rest = np.floor_divide(a, b), np.remainder(a, b)
    finite = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    for i in np.flatnonzero(finite):
        floor[i] = quotient(a[i], b[i])
    sure = counted(a, b, rest)
    wrong = np.flatnonzero(sure & ~(same(r, rest) & same(q, floor)))[:4]
    assert not wrong.size, [(a[wrong], b[wrong]), (q[wrong], floor[wrong]), (r[wrong], rest[wrong])]


def test_special_values_are_numpys(device: vkpar.Device) -> None:
    values = np.array([*SPECIAL, *(-value for value in SPECIAL)], np.float32)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    check(device, a, b)
    for left, right, q, r in ((1, np.inf, 0, 1), (-1, np.inf, -1, np.inf), (1, 0.1, 9, 0.1 - 1.4901161e-8)):
        made = both(device, np.float32([left]), np.float32([right]))
        assert (made[0].item(), made[1].item()) == (q, np.float32(r))


def test_bits_of_any_kind(device: vkpar.Device, rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32) for _ in range(2))
    check(device, a, b)


def test_values_around_multiples(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Products of the divisor and whole or half numbers, and the floats to either side of them."""
    b = rng.standard_normal(1500).astype(np.float32)
    times = rng.integers(-(1 << rng.integers(1, 24, b.size)), 1 << 24, b.size) / 2
    near = (b * times).astype(np.float32)
    for a in (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))):
        check(device, a, b)


@pytest.mark.sampled(1)
def test_quotients_at_the_end_of_whole_numbers(device: vkpar.Device) -> None:
    """Quotients from 2^22 to 2^27, whose last places are halves, ones and more."""
    sizes = [2.0**power + off for power in range(22, 28) for off in (-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 5, 6, 10, 12)]
    a, b = np.float32(list(itertools.product(sizes, [1, -1, 0.5, 3, 0.75, 1 + 2.0**-23, -1 - 2.0**-22]))).T
    check(device, a.copy(), b.copy())
    check(device, -a, b.copy())


@given(st.lists(st.tuples(*[st.floats(width=32, allow_subnormal=False)] * 2), min_size=1, max_size=20))
def test_numbers_that_hypothesis_finds(device: vkpar.Device, pairs: list[tuple[float, float]]) -> None:
    a, b = np.float32(pairs).T
    check(device, a.copy(), b.copy())


def test_numpys_quotients_below_2_to_the_21(device: vkpar.Device, rng: np.random.Generator) -> None:
    """NumPy rounds three times, by 2^-24 each, and then to the nearest whole number: exact below 2^24 / 6."""
    a = (rng.standard_normal(20_000) * 2.0 ** rng.integers(-30, 30, 20_000)).astype(np.float32)
    b = (a / 2.0 ** rng.uniform(-5, 20, a.size) * rng.choice([-1, 1], a.size)).astype(np.float32)
    q, r = both(device, a, b)
    np.testing.assert_array_equal(q, a // b)
    np.testing.assert_array_equal(r, a % b)


def test_subnormal_numbers_are_right_or_zero(device: vkpar.Device, rng: np.random.Generator) -> None:
    b = (rng.uniform(1, 8, 2000) * 2.0**-124).astype(np.float32)
    a = (b * rng.uniform(0, 64, b.size)).astype(np.float32)
    want = a % b
    got = both(device, a, b)[1]
    assert ((got == want) | ((got == 0) & (want < TINY))).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a, b = held(rng.standard_normal(3000) * 100, dtype), held(rng.standard_normal(3000), dtype)
    q, r = BOTH(device.array(a, dtype), device.array(b, dtype))
    np.testing.assert_array_equal(seen(q), held(a // b, dtype))
    np.testing.assert_array_equal(seen(r), held(a % b, dtype))


@pytest.mark.sampled(2)
def test_every_form_of_kernel(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Arrays that are large enough for kernels of their own on CPU drivers; rows with strides."""
    a, b = (rng.standard_normal((512, 1024)).astype(np.float32) for _ in range(2))
    x, y = device.array(a), device.array(b)
    for p, q, u, v in (
        (x, y, a, b),
        (x[:, :512], y[:, 512:], a[:, :512], b[:, 512:]),
        (x[:, 1:6], y[:, :5], a[:, 1:6], b[:, :5]),
    ):
        got = BOTH(p, q)
        np.testing.assert_array_equal(got[0].numpy(), u // v)
        np.testing.assert_array_equal(got[1].numpy(), u % v)
