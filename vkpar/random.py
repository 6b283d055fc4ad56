"""Random arrays, made on the device by counters: the same seed gives the same elements, whatever the device.

Philox4x32-10 makes four words of a counter and a key; no state lies on a device. All numbers are bit for bit the same
on every driver: the logarithms, roots and sines of normal ones are made of sums and products, each rounded once.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.arrays import randoms
from vkpar.ops.arrays.take import take
from vkpar.ops.call.checks import INTEGERS, NARROW, holds
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.mathematics import mod
from vkpar.ops.reduce.sorting import argsort
from vkpar.text import shown

if TYPE_CHECKING:
    from vkpar.device import Device

__all__ = ["Generator", "bits", "integers", "normal", "permutation", "uniform"]

_WORDS: Final = 1 << 32  # of 32 bits
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

    Examples:
        >>> generator = vkpar.random.Generator(seed=7)
        >>> first, second = generator.bits(device, 4), generator.bits(device, 4)
        >>> generator.position
        2
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

        Before they are scaled, they err by at most 2^-20 of the radius, which is the root of -2 log(u).

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

    def integers(
        self, device: Device, shape: int | Sequence[int], low: int, high: int, *, dtype: object = "int32"
    ) -> Array:
        """Return whole numbers from ``low`` up to ``high``, without that.

        They are ``low`` and what random words leave over ``high - low``. Where that is no power of two, some numbers
        come more often than others, by less than its share of 2^32.

        Args:
            device: where the array lives.
            shape: its dimensions.
            low: the least number.
            high: the bound.
            dtype: int32, uint32, or an integer of 8 or 16 bits.

        Raises:
            InvalidUsageError: bounds that the type does not hold, or none between them; a bad shape.
            UnsupportedError: another ``dtype``.
            OutOfMemoryError: the device has no room.
        """
        kind = dtypes.resolve(dtype)
        if kind.name not in (*INTEGERS, *NARROW - {"bool"}):
            raise UnsupportedError(f"integers are of 8 to 32 bits, not {kind}")
        low, high = operator.index(low), operator.index(high)
        limits = np.iinfo(kind.numpy)
        if not limits.min <= low < high <= limits.max + 1:
            raise InvalidUsageError(f"integers: there are none of {kind} from {low} up to {high}")
        made = self.bits(device, shape)
        if high - low < _WORDS:
            made = mod(made, high - low)
        made = add(made, low % _WORDS) if low else made
        return cast(made.view("int32") if low < 0 or kind == "int32" else made, kind)

    def permutation(self, device: Device, x: int | Array) -> Array:
        """Return the numbers from 0 up to ``x`` in a random order, as uint32; or the rows of an array in one.

        The order is that of random words, so that each one is as likely as any other but for equal words.

        Args:
            device: where the array lives.
            x: how many numbers; or an array of this device.

        Raises:
            InvalidUsageError: a negative number; an array of another device, or without rows.
            UnsupportedError: more than a sort takes.
            OutOfMemoryError: the device has no room.
        """
        order = argsort(self.bits(device, len(x) if isinstance(x, Array) else operator.index(x)))
        return take(x, order) if isinstance(x, Array) else order

    def _made(
        self, kind: str, device: Device, shape: int | Sequence[int], dtype: object, low: float, size: float,
        out: Array | None,
    ) -> Array:  # fmt: skip
        made = randoms.prepared(kind, device, shape, dtypes.resolve(dtype), out)
        randoms.fill(kind, made, self.seed, self.position, low, size)
        self.position = (self.position + -(-made.size // 4)) % _BLOCKS
        return made


def bits(device: Device, shape: int | Sequence[int], *, seed: int = 0) -> Array:
    """Return uint32 of which every bit is random: the first elements of :meth:`Generator.bits`.

    Args:
        device: where the array lives.
        shape: its dimensions.
        seed: a whole number from 0 up to 2^64 - 1; equal ones give equal elements.

    Raises:
        InvalidUsageError: a bad shape or seed.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> a = vkpar.random.bits(device, (2, 3), seed=1)
        >>> a.shape, str(a.dtype)
        ((2, 3), 'uint32')
    """
    return Generator(seed).bits(device, shape)


def uniform(
    device: Device, shape: int | Sequence[int], low: float = 0.0, high: float = 1.0, *, seed: int = 0,
    dtype: object = "float32",
) -> Array:  # fmt: skip
    """Return numbers from ``low`` up to ``high``: the first elements of :meth:`Generator.uniform`.

    Args:
        device: where the array lives.
        shape: its dimensions.
        low: the least number.
        high: the bound.
        seed: a whole number from 0 up to 2^64 - 1; equal ones give equal elements.
        dtype: float32, float16 or bfloat16.

    Raises:
        InvalidUsageError: numbers that are not finite in float32; a bad shape or seed.
        UnsupportedError: another ``dtype``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> a = vkpar.random.uniform(device, 1000, -1.0, 1.0)
        >>> float(a.min()) >= -1, float(a.max()) <= 1
        (True, True)
    """
    return Generator(seed).uniform(device, shape, low, high, dtype=dtype)


def normal(
    device: Device, shape: int | Sequence[int], mean: float = 0.0, std: float = 1.0, *, seed: int = 0,
    dtype: object = "float32",
) -> Array:  # fmt: skip
    """Return normal numbers: the first elements of :meth:`Generator.normal`.

    Args:
        device: where the array lives.
        shape: its dimensions.
        mean: what they lie around.
        std: the standard deviation.
        seed: a whole number from 0 up to 2^64 - 1; equal ones give equal elements.
        dtype: float32, float16 or bfloat16.

    Raises:
        InvalidUsageError: numbers that are not finite in float32; a bad shape or seed.
        UnsupportedError: another ``dtype``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> a = vkpar.random.normal(device, 1000, seed=3)
        >>> abs(float(vkpar.mean(a))) < 0.2
        True
    """
    return Generator(seed).normal(device, shape, mean, std, dtype=dtype)


def integers(
    device: Device, shape: int | Sequence[int], low: int, high: int, *, seed: int = 0, dtype: object = "int32"
) -> Array:
    """Return whole numbers from ``low`` up to ``high``, without that: the first elements of :meth:`Generator.integers`.

    Args:
        device: where the array lives.
        shape: its dimensions.
        low: the least number.
        high: the bound.
        seed: a whole number from 0 up to 2^64 - 1; equal ones give equal elements.
        dtype: int32, uint32, or an integer of 8 or 16 bits.

    Raises:
        InvalidUsageError: bounds that the type does not hold, or none between them; a bad shape or seed.
        UnsupportedError: another ``dtype``.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> a = vkpar.random.integers(device, 1000, 1, 7)
        >>> int(a.min()), int(a.max())
        (1, 6)
    """
    return Generator(seed).integers(device, shape, low, high, dtype=dtype)


def permutation(device: Device, x: int | Array, *, seed: int = 0) -> Array:
    """Return the numbers up to ``x``, or the rows of an array, in random order, as :meth:`Generator.permutation` does.

    Args:
        device: where the array lives.
        x: how many numbers; or an array of this device.
        seed: a whole number from 0 up to 2^64 - 1; equal ones give equal elements.

    Raises:
        InvalidUsageError: a negative number; an array of another device, or without rows; a bad seed.
        UnsupportedError: more than a sort takes.
        OutOfMemoryError: the device has no room.

    Examples:
        >>> sorted(vkpar.random.permutation(device, 4, seed=2).tolist())
        [0, 1, 2, 3]
    """
    return Generator(seed).permutation(device, x)


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
