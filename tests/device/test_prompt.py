"""What Python's prompt shows of arrays, and whole random numbers and orders."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError

pytestmark = pytest.mark.device


def test_the_prompt_shows_small_arrays(device: vkpar.Device) -> None:
    lines = (
        "import vkpar",
        f"device = [d for d in vkpar.open_devices('all') if d.info.name == {device.info.name!r}][0]",
        "device.array([1.5, 2.0])",
        "device.zeros(5000)",
        "repr([device.array([3.5])])",
    )
    typed = "\n".join(lines) + "\n"
    prompt = [sys.executable, "-i", "-q"]
    done = subprocess.run(prompt, input=typed, capture_output=True, text=True, timeout=60, check=True)
    assert "vkpar.Array([1.5, 2. ], shape=(2,)" in done.stdout
    assert "<vkpar.Array (5000,) float32" in done.stdout
    assert repr(device.array([1.0])).startswith("<vkpar.Array")


def test_integers_and_orders(device: vkpar.Device) -> None:
    made = vkpar.random.Generator(7)
    for low, high, dtype in (
        (0, 10, "int32"), (-5, 6, "int8"), (-(2**31), 2**31, "int32"), (7, 2**32, "uint32"), (250, 256, "uint8"),
    ):  # fmt: skip
        position = made.position
        got = made.integers(device, 1001, low, high, dtype=dtype)
        assert got.dtype == dtype
        words = vkpar.random.Generator(7, position).bits(device, 1001).numpy()
        np.testing.assert_array_equal(got.numpy(), (words.astype(np.int64) % (high - low) + low).astype(dtype))
    order = vkpar.random.permutation(device, 5000, seed=3).numpy()
    words = vkpar.random.bits(device, 5000, seed=3).numpy()
    np.testing.assert_array_equal(order, np.argsort(words, kind="stable"))
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    mixed = vkpar.random.permutation(device, device.array(rows), seed=1).numpy()
    np.testing.assert_array_equal(np.sort(mixed[:, 0]), rows[:, 0])
    with pytest.raises(InvalidUsageError, match="none of uint8"):
        made.integers(device, 3, 0, 257, dtype="uint8")
    with pytest.raises(vkpar.UnsupportedError, match="8 to 32 bits"):
        made.integers(device, 3, 0, 2, dtype="int64")
