"""Random arrays, made on the device by counters: the same seed gives the same elements, whatever the device.

Philox4x32-10 makes four words of a counter and a key; no state lies on a device. Words and uniform numbers are bit for
bit the same on every driver. Normal numbers are made by logarithms and roots, in which drivers differ by units in the
last place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from vkpar import dtypes
from vkpar.errors import InvalidUsageError
from vkpar.ops.arrays import randoms
from vkpar.ops.call.checks import holds
from vkpar.text import shown

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.device import Device

_BLOCKS: Final = 1 << 64  # of four elements; then they come again


class Generator:
    """A stream of random elements, each of which is given out once.

    Attributes:
        seed: what the stream depends on.
        position: how many blocks of four elements were given out. It may be set: generators of one seed and position
            give the same elements.

    Args:
        seed: a whole number from 0 up to 2^64 - 1.
        position: where it begins.

    Raises:
        InvalidUsageError: a number out of range.
    """

    def __init__(self, seed: int = 0, position: int = 0) -> None:
        self.seed = _whole("seed", seed)
        self.position = _whole("position", position)

    def __repr__(self) -> str:
        return f"vkpar.random.Generator({self.seed}, {self.position})"

    def bits(self, device: Device, shape: int | Sequence[int], *, out: Array | None = None) -> Array:
        """Return uint32 of which every bit is random.

        Args:
            device: where the array lives.
            shape: its dimensions.
            out: an array of the shape to fill instead of a new one.

        Raises:
            InvalidUsageError: a bad shape, or a wrong ``out``.
            OutOfMemoryError: the device has no room.
        """
        return self._made("bits", device, shape, "uint32", 0.0, 1.0, out)

    def uniform(
        self,
        device: Device,
        shape: int | Sequence[int],
        low: float = 0.0,
        high: float = 1.0,
        *,
        dtype: object = "float32",
        out: Array | None = None,
    ) -> Array:
        """Return numbers from ``low`` up to ``high``: ``low + (high - low) * u``, each step rounded to float32.

        u is below 1, one of 2^24 (float16: 2^11, bfloat16: 2^8) numbers at equal steps. Where ``low`` and ``high`` are
        not 0 and 1, rounding may give ``high`` itself.

        Args:
            device: where the array lives.
            shape: its dimensions.
            low: the least number.
            high: the bound.
            dtype: float32, float16 or bfloat16.
            out: an array of the shape and type to fill instead of a new one.

        Raises:
            InvalidUsageError: numbers that are not finite in float32, a bad shape, or a wrong ``out``.
            UnsupportedError: another ``dtype``.
            OutOfMemoryError: the device has no room.
        """
        _finite(low=low, high=high)
        size = float(high) - float(low)
        _finite(**{"high - low": size})
        return self._made("uniform", device, shape, dtype, low, size, out)

    def normal(
        self,
        device: Device,
        shape: int | Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        *,
        dtype: object = "float32",
        out: Array | None = None,
    ) -> Array:
        """Return normal numbers, by the method of Box and Muller; no further than 5.8 ``std`` from the ``mean``.

        Args:
            device: where the array lives.
            shape: its dimensions.
            mean: what they lie around.
            std: the standard deviation.
            dtype: float32, float16 or bfloat16.
            out: an array of the shape and type to fill instead of a new one.

        Raises:
            InvalidUsageError: numbers that are not finite in float32, a bad shape, or a wrong ``out``.
            UnsupportedError: another ``dtype``.
            OutOfMemoryError: the device has no room.
        """
        _finite(mean=mean, std=std)
        return self._made("normal", device, shape, dtype, mean, std, out)

    def _made(
        self, kind: str, device: Device, shape: int | Sequence[int], dtype: object, low: float, size: float,
        out: Array | None,
    ) -> Array:  # fmt: skip
        made = randoms.prepared(kind, device, shape, dtypes.resolve(dtype), out)
        randoms.fill(kind, made, self.seed, self.position, low, size)
        self.position = (self.position + -(-made.size // 4)) % _BLOCKS
        return made


def bits(device: Device, shape: int | Sequence[int], *, seed: int = 0) -> Array:
    """Return the first elements of :meth:`Generator.bits`."""
    return Generator(seed).bits(device, shape)


def uniform(
    device: Device, shape: int | Sequence[int], low: float = 0.0, high: float = 1.0, *, seed: int = 0,
    dtype: object = "float32",
) -> Array:  # fmt: skip
    """Return the first elements of :meth:`Generator.uniform`."""
    return Generator(seed).uniform(device, shape, low, high, dtype=dtype)


def normal(
    device: Device, shape: int | Sequence[int], mean: float = 0.0, std: float = 1.0, *, seed: int = 0,
    dtype: object = "float32",
) -> Array:  # fmt: skip
    """Return the first elements of :meth:`Generator.normal`."""
    return Generator(seed).normal(device, shape, mean, std, dtype=dtype)


def _whole(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < _BLOCKS:
        raise InvalidUsageError(f"{name} is a whole number from 0 up to 2^64 - 1, not {shown(value)}")
    return number


def _finite(**numbers: float) -> None:
    for name, value in numbers.items():
        if not holds(value):
            raise InvalidUsageError(f"{name} is a finite number that float32 holds, not {shown(value)}")
