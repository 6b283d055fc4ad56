"""Distances in units in the last place, and what the comparison that counts in them says."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from vkpar import InvalidUsageError
from vkpar.testing import assert_allclose, compare, ulps

FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_a_unit_apart(dtype: object, rng: np.random.Generator) -> None:
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    values = rng.uniform(1, 1000, 100).astype(dtype)
    above = (values.view(bits) + 1).view(dtype)
    below = (values.view(bits) - 1).view(dtype)
    assert (ulps(above, values) == 1).all()
    powers = values.astype("float64") == 2.0 ** np.floor(np.log2(values.astype("float64")))
    assert (ulps(below, values)[~powers] == 1).all()
    assert (ulps(-above, -values) == 1).all()
    assert (ulps(values, values) == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_smallest_numbers(dtype: object) -> None:
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    small = np.arange(4).astype(bits).view(dtype)
    assert ulps(small, 0.0).tolist() == [0, 1, 2, 3]
    assert ulps(small[1:2], -small[1:2]).tolist() == [2]


def test_a_unit_is_that_of_the_actual_type_at_the_desired_number() -> None:
    assert ulps(np.float32([1.0]), 1.0 + 2.0**-24).tolist() == [0.5]
    assert ulps(np.float16([1.0]), 1.0 + 2.0**-11).tolist() == [0.5]
    assert ulps(np.float32([1.0]), np.nextafter(1.0, 0)).tolist() == [pytest.approx(2.0**-29)]  # that of 0.999...


def test_nan_and_infinity() -> None:
    odd = np.float32([math.nan, math.inf, -math.inf, 3e38])
    assert ulps(odd, odd).tolist() == [0, 0, 0, 0]
    assert ulps(odd, np.float32([1, 1, math.inf, math.nan])).tolist() == [math.inf] * 4
    assert ulps(np.float32([math.inf]), [1e39]).tolist() == [0]  # what float32 cannot hold
    assert ulps(np.float32([-math.inf, 3e38]), [1e39, math.inf]).tolist() == [math.inf] * 2


def test_integers_are_exact_at_both_ends() -> None:
    most, least = 2**63 - 1, -(2**63)
    assert ulps(np.int64([most, least, 5]), np.int64([most - 1, least + 3, -5])).tolist() == [1, 3, 10]
    assert ulps(np.uint64([2**64 - 1, 0]), np.int64([-1, 7])).tolist() == [float(2**64), 7]
    assert ulps(np.int8([-128, 127]), np.int8([127, -128])).tolist() == [255, 255]
    assert ulps([True, False], [True, True]).tolist() == [0, 1]
    assert ulps(np.int32([2]), 2.5).tolist() == [0.5]
    assert ulps(np.int32([2]), math.nan).tolist() == [math.inf]


def test_complex_numbers_count_the_worse_part() -> None:
    one = np.complex64([1 + 1j])
    assert ulps(one, one + 2.0**-24 + 2.0**-22 * 1j).tolist() == [2.0]
    assert_allclose(one, one + 2.0**-22 * 1j, rtol=2.0**-22)
    with pytest.raises(AssertionError, match=r"\[0\]: \(1\+1j\)"):
        assert_allclose(one, one + 2.0**-20 * 1j, ulp=1)


def test_allowances_add_up() -> None:
    value = np.float32([1.0])
    assert_allclose(value, 1 + 2.0**-22, ulp=2)
    assert_allclose(value, 1.1, atol=0.06, rtol=0.04)
    for allowed in ({"ulp": 1}, {"atol": 1e-7}, {"rtol": 1e-7}, {}):
        with pytest.raises(AssertionError):
            assert_allclose(value, 1 + 2.0**-22, **allowed)
    assert_allclose(np.float32([math.nan, 1]), [math.nan, 1])
    with pytest.raises(AssertionError):
        assert_allclose(value, math.inf, rtol=1)
    with pytest.raises(AssertionError):
        assert_allclose(np.float32([math.inf]), 1.0, rtol=1, atol=1e30)


def test_the_message_shows_the_first_and_the_worst() -> None:
    wrong = np.zeros((3, 4), np.float32)
    wrong[1], wrong[2, 3] = 1, 7
    with pytest.raises(AssertionError) as caught:
        assert_allclose(wrong, 0.0, atol=0.5)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 of 12 elements (41.7 %) are wrong (allowed: atol=0.5)"
    assert lines[1].startswith("  [1, 0]: 1.0, not 0.0 (")
    assert lines[-1].startswith("  worst: [2, 3]: 7.0, not 0.0 (")
    assert len(lines) == 7
    with pytest.raises(AssertionError, match=r"1 of 1 elements \(100 %\) are wrong \(allowed: equality\)\n.*\(3 off\)"):
        assert_allclose(np.int32([4]), 1)


@pytest.mark.parametrize("allowed", [{"ulp": -1}, {"rtol": math.nan}, {"atol": "1"}, {"ulp": True}])
def test_bad_allowances(allowed: dict[str, object]) -> None:
    with pytest.raises(InvalidUsageError, match=f"{next(iter(allowed))} is a number from 0 up"):
        assert_allclose([1.0], 1.0, **allowed)


def test_shapes_and_types() -> None:
    with pytest.raises(InvalidUsageError, match=r"shapes differ: actual \(2,\), desired \(1,\)"):
        assert_allclose([1.0, 1.0], [1.0])
    with pytest.raises(InvalidUsageError, match="desired has to hold numbers"):
        ulps([1.0], ["a"])
    assert ulps(np.zeros((0, 3)), 1.0).shape == (0, 3)
    assert_allclose(np.zeros(0), 1.0)


def test_measurements_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, float]] = []
    monkeypatch.setattr(compare, "on_measured", lambda array, worst: told.append((array, worst)))
    ulps(np.float32([1, 2]), [1, 2 + 2.0**-22])
    assert_allclose(np.float32([1]), 1.5, atol=1)  # near zero, ulps would say nothing
    with pytest.raises(AssertionError):
        assert_allclose(np.float32([1]), 1 + 2.0**-21, ulp=1)
    assert told == [(None, 1.0), (None, 4.0)]
