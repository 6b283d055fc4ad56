"""Arrays of random elements; :mod:`vkpar.random` says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkpar.abi import arrays as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.shape import dimensions
from vkpar.dtypes import DType
from vkpar.errors import UnsupportedError
from vkpar.ops.call.checks import FLOATS, check_arrays, check_out
from vkpar.ops.call.dispatch import submit
from vkpar.ops.call.windows import GROUP, fold_groups
from vkpar.ops.elementwise.ways import binding

if TYPE_CHECKING:
    from vkpar.device import Device


def prepared(kind: str, device: Device, shape: int | Sequence[int], dtype: DType, out: Array | None) -> Array:
    """Return the checked ``out``, or a new array.

    Raises:
        InvalidUsageError: a bad shape, or a wrong ``out``.
        UnsupportedError: a type that random numbers are not made of.
    """
    if kind != "bits" and dtype.name not in FLOATS:
        raise UnsupportedError(f"{kind} makes {', '.join(FLOATS)}, not {dtype}")
    if out is None:
        return device.empty(shape, dtype)
    check_arrays(kind, out, the_device=device.empty(0))
    check_out(kind, out, dimensions(shape), dtype)
    return out


def fill(kind: str, out: Array, seed: int, position: int, low: float, size: float) -> None:
    """Fill a checked array.

    Args:
        kind: ``bits``, ``uniform`` or ``normal``.
        out: uint32 for ``bits``, else a float.
        seed: of 64 bits.
        position: the number of the first block of four elements.
        low: the least number, or the mean.
        size: the range, or the standard deviation.
    """
    if not out.size:
        return
    place = binding(out) if out.is_contiguous else None
    if out.is_contiguous and place is None:  # in parts that begin at whole blocks
        flat = out.reshape(-1)
        half = max(out.size // 2 // GROUP * GROUP, 4)
        fill(kind, flat[:half], seed, position, low, size)
        fill(kind, flat[half:], seed, position + half // 4, low, size)
        return
    if place is None or (out.dtype.itemsize == 2 and place[1] % 2):
        aside = out.device.empty(out.shape, out.dtype)
        fill(kind, aside, seed, position, low, size)
        out.copy_from(aside)
        return
    window, first = place
    push = pack(abi.Random(out.size, first, _halves(seed), _halves(position % (1 << 64)), float(low), float(size)))
    grid = fold_groups(out.device, -(-out.size // GROUP))
    constants = abi.RandomConstants(FLOATS.get(out.dtype.name, 3), first % 4 == 0)
    submit("random", f"random_{kind}", (out,), (window,), push, grid, constants)


def _halves(number: int) -> tuple[int, int]:
    """Return the words of a number of 64 bits."""
    return number % (1 << 32), number >> 32
