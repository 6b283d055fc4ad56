"""Rotary position embedding against float64, at positions as far as contexts go."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, check, normal, values_of
from numpy.typing import NDArray

import vkpar
from vkpar.doctor.references import plain, turned

pytestmark = [pytest.mark.device, pytest.mark.sampled(4)]

F64 = NDArray[np.float64]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", ["llama", "neox"])
@pytest.mark.parametrize(("n", "width"), [(128, None), (20, 14), (7, 6), (2, 2)])
def test_rope(
    device: vkpar.Device, rng: np.random.Generator, n: int, width: int | None, style: str, dtype: str
) -> None:
    positions = np.array([0, 1, 5, 4095, 131_071, -3], np.int32)
    x = normal(rng, (3, len(positions), n), dtype)
    a, places = device.array(x, dtype), device.array(positions)
    expected = turned(x.astype(np.float64), positions.astype(np.int64), plain(width or n), style)
    for _ in range(2):  # the second time by the recipe
        check(vkpar.rope(a, places, style=style, width=width), *expected)
    assert vkpar.rope(a, places, style=style, width=width, out=a) is a
    check(a, *expected)


def test_angles_are_as_exact_far_away(device: vkpar.Device) -> None:
    """Cosines and sines of whole contexts: within 2^-21 of float64's, position 0 exactly."""
    positions = np.concatenate([np.arange(0, 131_072, 37), [131_071]]).astype(np.uint32)
    x = np.zeros((1, len(positions), 64), np.float32)
    x[..., ::2] = 1
    made = vkpar.rope(device.array(x), device.array(positions), theta=500_000.0).numpy()[0].astype(np.float64)
    angles = positions.astype(np.float64)[:, None] * plain(64, 500_000.0)
    assert np.abs(made[:, ::2] - np.cos(angles)).max() < 2.0**-21
    assert np.abs(made[:, 1::2] - np.sin(angles)).max() < 2.0**-21
    np.testing.assert_array_equal(made[0], x[0, 0])


def scaled_llama3(exact: F64) -> F64:
    """The rule of Llama 3.1, written down by wavelengths."""
    made = []
    for f in exact:
        wavelength = 2 * np.pi / f
        if wavelength < LLAMA3["original_context"] / LLAMA3["high_freq_factor"]:
            made.append(f)
        elif wavelength > LLAMA3["original_context"] / LLAMA3["low_freq_factor"]:
            made.append(f / LLAMA3["factor"])
        else:
            smooth = LLAMA3["original_context"] / wavelength - LLAMA3["low_freq_factor"]
            smooth /= LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"]
            made.append((1 - smooth) * f / LLAMA3["factor"] + smooth * f)
    return np.array(made)


def test_scaling(device: vkpar.Device, rng: np.random.Generator) -> None:
    positions = np.arange(9, dtype=np.uint32) * 1000
    x = normal(rng, (2, 9, 64), "float32")
    a, places, exact = device.array(x), device.array(positions), x.astype(np.float64)
    base, divisors = plain(64, 500_000.0), np.linspace(1, 8, 32)
    cases = [(4.0, base / 4), (LLAMA3, scaled_llama3(base)), (divisors, base / divisors)]
    for scaling, frequencies in cases:
        for _ in range(2):
            made = vkpar.rope(a, places, 500_000.0, scaling=scaling)
            check(made, *turned(exact, positions.astype(np.int64), frequencies, "llama"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_views_are_taken_where_they_lie(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """(T, heads * n) seen as (heads, T, n), from an odd place on too, and a result that lies like that."""
    x = normal(rng, (5, 3, 8), dtype)
    positions = np.arange(5)
    expected, error = turned(x.transpose(1, 0, 2).astype(np.float64), positions, plain(8), "neox")
    places = device.array(positions.astype(np.int32))
    for before in (0, 1):
        whole = device.zeros(before + 121, dtype)
        view = whole[before : before + 120].reshape(5, 3, 8)
        view.write(x)
        target = device.zeros(before + 121, dtype)
        out = target[before : before + 120].reshape(5, 3, 8).transpose(1, 0, 2)
        for _ in range(2):
            assert vkpar.rope(view.transpose(1, 0, 2), places, style="neox", out=out) is out
            check(out, expected, error)
        assert values_of(target)[-1] == 0
    backwards = vkpar.rope(device.array(x.transpose(1, 0, 2)[::-1].copy(), dtype)[::-1], places, style="neox")
    check(backwards, expected, error)


def test_batches_with_positions_of_their_own(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = normal(rng, (2, 3, 1, 8), "float16")
    a = device.array(x, "float16")
    shared = vkpar.rope(a, device.array(np.array([7], np.uint32)))
    own = vkpar.rope(a, device.array(np.array([[7], [9]], np.uint32)))
    for number, place in enumerate((7, 9)):
        expected = turned(x[number].astype(np.float64), np.array([place]), plain(8), "llama")
        check(own[number], *expected)
    np.testing.assert_array_equal(shared[0].numpy(), own[0].numpy())


def test_captured_before_any_table_is_there(device: vkpar.Device, rng: np.random.Generator) -> None:
    a, theta = device.array(rng.standard_normal((2, 1, 6)).astype(np.float32)), 777.0
    with vkpar.capture(device) as graph:
        (position,) = graph.param("position", "int32")
        made = vkpar.rope(a, position, theta)
    for place in (3, 100_000):
        graph.launch(position=place).wait()
        eager = vkpar.rope(a, device.array(np.array([place], np.int32)), theta)
        np.testing.assert_array_equal(made.numpy(), eager.numpy())
    graph.close()


def test_what_is_refused(device: vkpar.Device) -> None:
    x, positions = device.zeros((2, 3, 8)), device.zeros(3, "int32")
    for match, arguments in {
        "x is": (x[0], positions),
        "positions are": (x, positions[:2]),
        "theta": (x, positions, 0.0),
    }.items():
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            vkpar.rope(*arguments)
    options: list[tuple[str, dict[str, object]]] = [
        ("style is", {"style": "gptj"}),
        ("width is", {"width": 5}),
        ("width is", {"width": 10}),
        ("scaling is", {"scaling": -1.0}),
        ("scaling is", {"scaling": [1.0, 2.0]}),
        ("scaling has", {"scaling": {"factor": 8.0}}),
        ("out", {"out": device.zeros((2, 3, 6))}),
    ]
    for match, given in options:
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            vkpar.rope(x, positions, **given)  # type: ignore[arg-type]
    big = device.zeros((3, 3, 8))
    with pytest.raises(vkpar.InvalidUsageError, match="share memory"):
        vkpar.rope(big[:2], positions, out=big[1:])
    with pytest.raises(vkpar.UnsupportedError, match="positions are"):
        vkpar.rope(x, device.zeros(3))
    with pytest.raises(vkpar.UnsupportedError, match="rope computes"):
        vkpar.rope(device.zeros((2, 3, 8), "float64"), positions)
    assert vkpar.rope(device.zeros((2, 0, 8)), device.zeros(0, "int32")).shape == (2, 0, 8)


def test_a_table_that_is_kept_does_not_let_wrong_widths_in(device: vkpar.Device) -> None:
    positions = device.array(np.arange(4, dtype=np.uint32))
    vkpar.rope(device.zeros((1, 4, 16)), positions)
    with pytest.raises(vkpar.InvalidUsageError, match="width"):
        vkpar.rope(device.zeros((1, 4, 8)), positions, width=16)
