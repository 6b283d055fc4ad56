"""How an axis is cut over the ranks of a rig: even or uneven, at borders that what lies there can be cut at."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

from vkpar.comm import ranks
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.memory import plan_memory
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.rates.speed import speeds

_T = TypeVar("_T")
Rig = Communicator | Sequence[Device]
Ratios = str | Sequence[float]

HEADROOM: Final = Fraction(1, 16)  # of a device's free memory, which "memory" leaves alone: staging, pipelines, others
_NAMED: Final = ("even", "memory", "speed")


@dataclass(frozen=True)
class Split:
    """An axis cut into one range per rank, in rank order; ranges may be empty.

    A split of ``size`` units cuts every axis whose length is a multiple of ``size`` at the same places: a split of 8
    groups of heads cuts 8 x 4 x 128 rows of queries and 8 x 128 rows of keys alike (:meth:`over`).

    Attributes:
        borders: where the ranges begin and end: rank r has ``borders[r]`` to ``borders[r + 1]``.
        granularity: every border is a multiple of it, or the axis' end.

    Examples:
        >>> heads = vkpar.parallel.split(8, comm, ratios=[3, 1])
        >>> heads.borders, heads.counts, heads.over(8 * 128).counts
        ((0, 6, 8), (6, 2), (768, 256))
    """

    borders: tuple[int, ...]
    granularity: int = 1

    def __post_init__(self) -> None:
        steps = [stop - start for start, stop in pairwise(self.borders)]
        if len(self.borders) < 2 or self.borders[0] != 0 or min(steps) < 0 or self.granularity < 1:
            raise InvalidUsageError(f"borders rise from 0, one more than there are ranks: {self.borders}")
        for border in self.borders:
            if border % self.granularity and border != self.size:
                raise InvalidUsageError(f"border {border} is no multiple of the granularity {self.granularity}")

    @classmethod
    def of(cls, counts: Sequence[int], granularity: int = 1) -> Split:
        """Return the split in which rank r has ``counts[r]`` elements."""
        return cls((0, *accumulate(counts)), granularity)

    @property
    def size(self) -> int:
        """The axis' length."""
        return self.borders[-1]

    @property
    def nranks(self) -> int:
        """Number of ranks, those with empty ranges included."""
        return len(self.borders) - 1

    @property
    def counts(self) -> tuple[int, ...]:
        """How many elements each rank has."""
        return tuple(stop - start for start, stop in pairwise(self.borders))

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return where a rank's range begins and ends."""
        return self.borders[rank], self.borders[rank + 1]

    def scaled(self, factor: int) -> Split:
        """Return the split in which every unit of this one is ``factor`` elements."""
        return Split(tuple(border * factor for border in self.borders), self.granularity * max(factor, 1))

    def over(self, length: int) -> Split:
        """Return this split of an axis that is a whole number of times as long.

        Raises:
            InvalidUsageError: the length is no multiple of the size.
        """
        if length == self.size:
            return self
        if not self.size or length % self.size:
            raise InvalidUsageError(f"a split of {self.size} does not cut {length} elements: no multiple of it")
        return self.scaled(length // self.size)

    def __str__(self) -> str:
        return "+".join(map(str, self.counts))


def split(
    size: int, comm: Rig, *, ratios: Ratios = "even", granularity: int = 1, used: Sequence[int] | None = None
) -> Split:
    """Cut ``size`` elements over the ranks in proportion to ``ratios``, by largest remainder.

    Units of ``granularity`` elements are dealt out: each rank gets the whole part of its quota, and what is left over
    goes to the ranks with the largest remainders, the lower rank first where they are equal. An incomplete unit at the
    end belongs to the last rank that has any.

    Args:
        size: the axis' length.
        comm: a communicator, or its devices.
        ratios: ``"even"``; ``"memory"``: what each device has free, less a sixteenth and less ``used``; ``"speed"``:
            how fast each reads weights in a matrix-vector product, which is measured once and kept; or one number of at
            least 0 per rank (``[3, 1]`` or ``"3,1"``). A rank with ratio 0 gets nothing.
        granularity: borders are multiples of it; see :func:`linked`.
        used: with ``"memory"``, bytes of each device that something else is going to take.

    Raises:
        InvalidUsageError: a negative size, a granularity below 1, ratios that are no numbers, negative, all zero, not
            one per rank or of an unknown name; no free memory on any device.
        OutOfMemoryError: no room for what ``"speed"`` measures.

    Examples:
        >>> vkpar.parallel.split(100, comm, ratios=[2, 1], granularity=8).counts
        (72, 28)
    """
    return cut(_natural("size", size), shares(comm, ratios, used), granularity)


def cut(size: int, ratios: Sequence[float | Fraction], granularity: int = 1) -> Split:
    """Cut ``size`` elements by numbers alone, as :func:`split` does; raises as it does."""
    if _natural("granularity", granularity) < 1:
        raise InvalidUsageError(f"the granularity is at least 1, not {granularity}")
    exact = [Fraction(ratio) for ratio in ratios]
    units = -(-size // granularity)
    quotas = [units * ratio / sum(exact) for ratio in exact]
    dealt = [math.floor(quota) for quota in quotas]
    order = sorted(range(len(quotas)), key=lambda rank: (dealt[rank] - quotas[rank], rank))
    for rank in order[: units - sum(dealt)]:
        dealt[rank] += 1
    return Split((0, *(min(border * granularity, size) for border in accumulate(dealt))), granularity)


def shares(comm: Rig, ratios: Ratios = "even", used: Sequence[int] | None = None) -> tuple[Fraction, ...]:
    """Return each rank's ratio as a number, however ``ratios`` gives them; raises as :func:`split` does."""
    nranks = comm.nranks if isinstance(comm, Communicator) else len(devices_of(comm))
    if isinstance(ratios, str) and "," in ratios:
        ratios = [_number(piece) for piece in ratios.split(",")]
    if used is not None and (ratios != "memory" or len(used) != nranks):
        raise InvalidUsageError('used takes a number of bytes per rank, beside ratios="memory"')
    if isinstance(ratios, str):
        if ratios not in _NAMED:
            raise InvalidUsageError(f"ratios are {', '.join(_NAMED)} or one number per rank, not {ratios!r}")
        return _named(comm, nranks, ratios, used)
    try:
        given = list(ratios)
    except TypeError as error:
        raise InvalidUsageError(f"ratios are {', '.join(_NAMED)} or one number per rank, not {ratios!r}") from error
    return check_ratios(given, nranks)


def check_ratios(ratios: Sequence[Any], nranks: int) -> tuple[Fraction, ...]:
    """Return ratios as exact numbers; raises InvalidUsageError as :func:`split` does."""
    if len(ratios) != nranks:
        raise InvalidUsageError(f"{len(ratios)} ratios for {nranks} ranks: {list(ratios)!r}")
    made = []
    for ratio in ratios:
        plain = isinstance(ratio, (numbers.Real, Fraction)) and not isinstance(ratio, bool)
        if not plain or not math.isfinite(ratio) or ratio < 0:
            raise InvalidUsageError(f"ratios are finite numbers of at least 0, not {ratio!r}")
        made.append(Fraction(ratio) if isinstance(ratio, (int, Fraction)) else Fraction(float(ratio)))
    if not any(made):
        raise InvalidUsageError("every ratio is 0: some rank must hold something")
    return tuple(made)


def devices_of(comm: Rig) -> tuple[Device, ...]:
    """Return the devices of this process that a communicator has, or those of a list.

    Raises:
        InvalidUsageError: neither, or an empty list.
    """
    if isinstance(comm, Communicator):
        return tuple(comm.devices)
    devices = tuple(comm) if isinstance(comm, Sequence) and not isinstance(comm, str) else ()
    if not devices or not all(isinstance(device, Device) for device in devices):
        raise InvalidUsageError(f"expected a vkpar.Communicator or a list of opened devices, not {comm!r}")
    return devices


def in_all(comm: Rig, what: str, find: Callable[[Sequence[Device]], Sequence[_T]]) -> list[_T]:
    """Return by rank what ``find`` says of devices, each process of its own; ``what`` is that, for errors."""
    if not isinstance(comm, Communicator):
        return list(find(devices_of(comm)))
    found = ranks.gathered(comm, what, lambda: list(find(comm.devices)))
    return [each for own in found for each in own]


def free_memory(devices: Sequence[Device]) -> list[int]:
    """Return the bytes that each device has for arrays now, never below zero.

    Devices that were opened on one card by this process share it. A sixteenth is left alone.
    """
    cards = [device.info.device_uuid for device in devices]
    free = []
    for rank, plan in enumerate(plan_memory(devices, [])):
        left = plan.available // cards.count(cards[rank])
        left -= int(left * HEADROOM)
        left = left if plan.limit is None else min(left, plan.limit)
        free.append(max(0, left))
    return free


def linked(*tensors: int | tuple[Any, int]) -> int:
    """Return the smallest granularity at which everything that is cut together can be cut.

    Args:
        tensors: a number of elements that must stay together (the width of a head, times the query heads that share a
            key head), or ``(tensor, axis)``: along its last axis a quantised tensor is cut between blocks; anything
            else is cut anywhere.

    Raises:
        InvalidUsageError: a number below 1, or something else.

    Examples:
        >>> vkpar.parallel.linked(32, 128 * 3)
        384
    """
    units = [1]
    for item in tensors:
        if isinstance(item, tuple) and len(item) == 2:
            units.append(unit_of(*item))
        elif item == 0:
            raise InvalidUsageError("a unit has at least one element")
        else:
            units.append(_natural("a unit", item))
    return math.lcm(*units)


def unit_of(tensor: Any, axis: int) -> int:
    """Return how many elements of ``tensor`` along ``axis`` cannot be cut apart: 1, or those of a block."""
    if isinstance(tensor, LazyTensor) and tensor.kind is not None and axis % len(tensor.shape) == len(tensor.shape) - 1:
        return tensor.kind.block
    return 1


def _named(comm: Rig, nranks: int, name: str, used: Sequence[int] | None) -> tuple[Fraction, ...]:
    if name == "even":
        return (Fraction(1),) * nranks
    if name == "speed":
        return tuple(map(Fraction, in_all(comm, "speeds of devices", speeds)))
    free = in_all(comm, "free memory", free_memory)
    free = free if used is None else [max(0, left - taken) for left, taken in zip(free, used, strict=True)]
    if not any(free):
        raise InvalidUsageError("no device has free memory to split by; give ratios, or free some")
    return tuple(map(Fraction, free))


def _natural(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise InvalidUsageError(f"{name} is a whole number, not {value!r}") from error
    if isinstance(value, bool) or number < 0:
        raise InvalidUsageError(f"{name} is a whole number of at least 0, not {value!r}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidUsageError(f"{text.strip()!r} is no number; ratios look like 3,1") from error
