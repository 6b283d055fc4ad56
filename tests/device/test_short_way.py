"""Operations of an array, or of an array and a number, go a way of their own from their second call on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkpar

NUMBERS: list[Any] = [1, 1.0, True, 0.0, -0.0, 2, 2.5, np.float32(2.5), np.int32(2), np.float64(-3)]


def bits(values: np.ndarray[Any, Any]) -> list[int]:
    return values.view(np.uint32).tolist()  # type: ignore[no-any-return]


def test_numbers_change_from_call_to_call(device: vkpar.Device) -> None:
    x = np.array([-2.0, 0.0, 3.5, np.inf], np.float32)
    a = device.array(x)
    for _ in range(2):
        for number in NUMBERS:
            got = vkpar.multiply(a, number).numpy()
            with np.errstate(invalid="ignore"):
                want = x * np.float32(number)
            assert np.array_equal(np.isnan(got), np.isnan(want)), number
            held = ~np.isnan(want)
            assert bits(got[held]) == bits(want[held]), number


def test_the_same_number_in_other_types(device: vkpar.Device) -> None:
    one: Any = 1
    for dtype in ("float32", "int32", "uint32", "float16"):
        a = device.array(np.arange(6), dtype)
        for _ in range(3):
            assert vkpar.add(a, one).tolist() == [1, 2, 3, 4, 5, 6], dtype


def test_in_place_beside_and_over_itself(device: vkpar.Device) -> None:
    x = np.arange(300, dtype=np.float32)
    for _ in range(3):  # the first call goes the long way
        a = device.array(x)
        vkpar.negative(a, out=a)
        assert np.array_equal(a.numpy(), -x)
        vkpar.multiply(a[:100], 2.0, out=a[100:200])
        assert np.array_equal(a[100:200].numpy(), -2 * x[:100])
        with pytest.raises(vkpar.InvalidUsageError, match="share"):
            vkpar.negative(a[:100], out=a[50:150])
        with pytest.raises(vkpar.InvalidUsageError, match="share"):
            vkpar.multiply(a[:100], 2.0, out=a[64:164])


def test_closed_and_missing_operands(device: vkpar.Device) -> None:
    a, out = device.zeros(8), device.empty(8)
    for _ in range(2):
        vkpar.exp(a, out=out)
    a.close()
    with pytest.raises(vkpar.InvalidUsageError, match="close"):
        vkpar.exp(a, out=out)
    with pytest.raises(vkpar.InvalidUsageError, match="at least one array"):
        vkpar.elementwise("y = 2.0")()


def test_results_that_go_another_way_are_kept(device: vkpar.Device) -> None:
    """Halves that begin inside a word, operands and results of other than C order: one recipe each."""
    x = np.arange(24, dtype=np.float16).reshape(4, 6)
    a, square = device.array(x), device.array(np.arange(36, dtype=np.float32).reshape(6, 6))
    odd, turned = device.zeros(25, "float16")[1:].reshape(4, 6), device.zeros((6, 6), "float16").transpose()
    calls = {
        "add": (lambda: vkpar.add(a, a, out=odd), odd, x + x),
        "cast": (lambda: vkpar.cast(square.transpose(), "float16", out=turned), turned, square.numpy().T),
    }
    for name, (call, out, expected) in calls.items():
        before = set(device.plans.recipes)
        for _ in range(3):
            out.fill(-1.0)
            call()
            np.testing.assert_array_equal(out.numpy(), expected)
        made = set(device.plans.recipes) - before
        assert [key[0] for key in made if key[0] == name] == [name]
