"""What doctor makes of an answer that is right, barely right, and wrong in each way."""

from __future__ import annotations

import numpy as np
import pytest

import vkpar
from vkpar.doctor import conformance
from vkpar.doctor.comparing import Answer, compare
from vkpar.doctor.place import Place
from vkpar.testing import U

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    ("made", "share", "wrong"),
    [
        ([1, 2, 4], 0.0, ""),
        ([1, 2, 4 + 2**-19], 0.8, ""),
        ([1, 2.5, 4], 0.0, "1 of 3 elements are wrong, the first: [1] is 2.5, not 2 (off by "),
        ([np.nan, 2, 4], 0.0, "1 of 3 elements are wrong, the first: [0] is nan, not 1 (off by inf times its bound)"),
        ([1, np.inf, 4], 0.0, "1 of 3 elements are wrong, the first: [1] is inf, not 2"),
        ([[1, 2, 4]], 0.0, "has the shape (1, 3), not (3,)"),
    ],
)
def test_within_a_bound(device: vkpar.Device, made: list[float], share: float, wrong: str) -> None:
    answer = Answer("numbers", device.array(made, "float32"), np.array([1.0, 2.0, 4.0]), 16 * U)
    told, off = compare(answer)
    assert told.startswith(wrong) if wrong else not told
    assert wrong or abs(off - share) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_bit_for_bit(device: vkpar.Device, dtype: str) -> None:
    wanted = np.array([0, 1, 2], dtype)
    assert compare(Answer("right", device.array([0, 1, 2], dtype), wanted, None)) == ("", 0.0)
    told, _ = compare(Answer("wrong", device.array([0, 1, 3], dtype), wanted, None))
    assert told == "1 of 3 elements are wrong, the first: [2] is 3, not 2 (bit for bit)"
    if dtype != "int32":
        told, _ = compare(Answer("a sign", device.array([-0.0, 1, 2], dtype), wanted, None))
        assert "[0] is -0, not 0" in told


def test_rounding_to_halves_is_no_error_and_twice_as_much_is(device: vkpar.Device) -> None:
    wanted = np.array([1.0 + 2.0**-11])
    assert not compare(Answer("rounded", device.array([1.0], "float16"), wanted, 0.0))[0]
    assert compare(Answer("wrong", device.array([1.0 - 2.0**-11], "float16"), wanted, 0.0))[0]


def test_every_family_asks_of_every_type_and_is_the_same_each_time(device: vkpar.Device) -> None:
    """Names of answers tell them apart, so that a red line names one; a sample is a part of the whole."""
    if "llvmpipe" not in device.name:
        pytest.skip("doctor's own test runs them on each driver")
    for family in conformance.FAMILIES:
        names = {quick: [] for quick in (False, True)}
        for quick, told in names.items():
            rng = Place.generator(None, family.name)  # type: ignore[arg-type]
            told += [answer.what for answer in family.cases(conformance.Bench(device, rng, quick))]
            assert len(set(told)) == len(told), family.name
        assert set(names[True]) <= set(names[False])
        assert names[True]
