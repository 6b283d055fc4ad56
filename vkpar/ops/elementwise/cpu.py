"""What elementwise operations do on CPU drivers: when the kernels *full* and *rows* run, and how.

These move eight elements at a time, of 32 bits, or whole ones of fewer, for drivers that test each lane of a vector at
each access; eights.py has their GLSL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import elementwise as abi
from vkpar.ops.call.windows import fold_groups
from vkpar.ops.elementwise.kinds import (
    ANY,
    BYTE_BLOCKS,
    BYTES,
    COLUMN,
    FULL,
    FULL_BLOCKS,
    FULL_GROUPS,
    GROUP,
    ONE,
    ROW,
    ROW_GROUPS,
    ROWS,
    SECOND,
)

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.device import Device
    from vkpar.ops.elementwise.geometry import Geometry

FEW_TESTS: Final = 1 << 18  # elements from which on kernels with fewer tests are worth their compilation
FEW_TESTS_FLAT: Final = 1 << 10  # of operands that lie side by side
LONGEST_ROW: Final = 1 << 24  # elements: float32, by which kernels of rows divide, tells apart the units of these
# Lanes of a vector that lie along the result's rows, where an operand is fast along its columns: these read lines of a
# cache that are powers of two apart, of which it holds few at a time.
_TURNED_WIDTH: Final = 4
_HALVES_AT_ONCE: Final = 2  # blocks of four that an invocation of a GPU makes of halves


def has_few_tests(device: Device, size: int, *, flat: bool) -> bool:
    """Say whether so many elements of 32 bits are worth a kernel with few tests of lanes; ``flat``: side by side."""
    return device.info.tests_lanes and size >= (FEW_TESTS_FLAT if flat else FEW_TESTS)


def width_of(device: Device, geometry: Geometry) -> int:
    """Return how many invocations of a tile's work-group lie side by side."""
    narrow = COLUMN in geometry.modes and device.info.tests_lanes
    return min(geometry.width, _TURNED_WIDTH) if narrow else geometry.width


def leaves_out_tests(device: Device, *, large: bool) -> bool:
    """Say whether kernels for fours alone run where they can.

    CPU drivers run the code for less than a four with every four; small arrays on GPUs deserve no further pipeline.
    """
    return device.info.is_cpu or large


def blocks_of_halves(device: Device, *, large: bool) -> int:
    """Return how many blocks of four halves an invocation makes; large arrays have invocations to spare on any GPU."""
    return _HALVES_AT_ONCE if large and not device.info.is_cpu else 1


def moves_long(source: Array, target: Array) -> bool:
    """Say whether elements of 64 bits are copied as whole numbers, of views that CPU drivers take long for by words.

    Those lie side by side in the result and, either way or along any axis, in the source.
    """
    info, size = target.device.info, target.size
    if not (info.tests_lanes and info.features.int64 and size >= FEW_TESTS and target.dtype.itemsize == 8):
        return False
    return target.strides[-1:] == (1,) and (source.strides[-1] in (-1, 0) or 1 in source.strides)


def picks_long(source: Array, target: Array) -> bool:
    """Say whether elements of 64 bits may be every second one of rows, which a kernel picks out of fours."""
    fits = target.dtype.itemsize == 8 and target.strides[-1:] == (1,) and source.strides[-1] == 2
    return fits and has_few_tests(target.device, 2 * target.size, flat=False)


def packs_singles(device: Device) -> bool:
    """Say whether elements that are read one by one are packed faster than a usual kernel copies them."""
    return device.info.tests_lanes


def moves_in_parts(target: Array) -> bool:
    """Say whether what no kernel writes at once is written in parts, by kernels that are fast where they can."""
    whole = target.nbytes <= target.device.limits.max_storage_buffer_range
    return target.device.info.tests_lanes and not whole and target.ndim > 0 and target.shape[0] > 1


def stacks_first(device: Device, size: int) -> bool:
    """Say whether arrays that are stacked along the last axis are stacked along the first one, and turned."""
    return device.info.tests_lanes and size >= FEW_TESTS


def run_of_rows(device: Device, nbytes: int) -> int:
    """Return the bytes that a kernel moves at once of rows of so many, a multiple of 16."""
    return 64 if nbytes % 64 == 0 and device.info.tests_lanes else 16


@dataclass(frozen=True)
class Full:
    """A dispatch of a kernel *full*.

    Attributes:
        device: where it runs.
        geometry: how operands and results lie.
        firsts: the elements of the bindings at which they begin.
        results: how many of them are results.
        sizes: of each binding, the bytes of an element; of 64 bits those that are copied as two words each.
    """

    device: Device
    geometry: Geometry
    firsts: Sequence[int]
    results: int
    sizes: Sequence[int]

    form = FULL

    @property
    def threads(self) -> int:
        """How many invocations a work-group has: few, where many would be idle."""
        return FULL_GROUPS[self.geometry.counts[0] < FEW_TESTS]

    def grid(self) -> tuple[int, int, int]:
        """Return the numbers of work-groups."""
        return fold_groups(self.device, -(-self.geometry.counts[0] // (4 * self.blocks * self.threads)))

    def shape(self, groups: int) -> abi.Full | abi.Rows:
        """Return the constants that say what so many work-groups make."""
        return abi.Full(self.threads, groups * self.threads * 4 * self.blocks == self.geometry.counts[0], self.blocks)

    @property
    def blocks(self) -> int:
        """How many blocks of four elements an invocation makes."""
        run = 4 * BYTE_BLOCKS
        rows = [number for number, mode in enumerate(self.geometry.modes) if mode == ROW]
        bytes_alone = all(self.sizes[n] == 1 and self.geometry.is_wide(n, self.firsts[n], run) for n in rows)
        return BYTE_BLOCKS if bytes_alone else FULL_BLOCKS

    def lying(self, number: int) -> int:
        """Return how an operand lies."""
        return self.geometry.modes[number]

    def mode(self, number: int) -> int:
        """Return how an operand lies, and whether all bytes of an invocation are moved at once."""
        usual = self.lying(number)
        blocks = self.blocks
        if usual != ROW or self.sizes[number] > 1 or blocks < FULL_BLOCKS:
            return usual
        return BYTES if self.geometry.is_wide(number, self.firsts[number], 4 * blocks) else usual

    def in_eights(self, number: int) -> bool:
        """Say whether an operand is read in eights, or in those of which it is every second element of 64 bits."""
        long = self.sizes[number] > 4 and self.mode(number) == SECOND
        return long or self.geometry.is_wide(number, self.firsts[number], 8)


class FullRows(Full):
    """A dispatch of a kernel *rows*."""

    form = ROWS

    @property
    def blocks(self) -> int:
        """How many blocks of a row an invocation makes."""
        single = ANY in map(self.lying, range(len(self.firsts)))
        most = FULL_BLOCKS // 2 if single else FULL_BLOCKS  # single elements are more code
        return math.gcd(self.geometry.counts[0] // 4, most)

    @property
    def units(self) -> int:
        """How many invocations make a row."""
        return self.geometry.counts[0] // (4 * self.blocks)

    @property
    def threads(self) -> int:
        """How many invocations a work-group has; of fewer than the most, each has a part of one row."""
        units, limits = self.units, self.device.limits.max_workgroup_count
        fitting = (threads for threads in ROW_GROUPS if units % threads == 0 and units // threads <= limits[0])
        return GROUP if self.geometry.counts[1] > limits[1] else next(fitting, GROUP)

    def grid(self) -> tuple[int, int, int]:
        """Return the numbers of work-groups."""
        y, units, threads = self.geometry.counts[1], self.units, self.threads
        return (units // threads, y, 1) if threads < GROUP else fold_groups(self.device, -(-units * y // GROUP))

    def shape(self, groups: int) -> abi.Full | abi.Rows:
        """Return the constants that say what so many work-groups make."""
        return abi.Rows(self.blocks, groups * self.threads == self.units * self.geometry.counts[1], self.threads)

    def lying(self, number: int) -> int:
        """Return how an operand lies: the kernel reads every second element by whole eights, a row's only one once."""
        x, y = self.geometry.strides[number][:2]
        is_operand = number < len(self.firsts) - self.results
        beside = self.sizes[number] // 4  # words of an element
        starts = beside > 0 and self.firsts[number] % 8 in (0, beside)
        second = starts and x == 2 and y % 8 == 0 and is_operand
        usual = super().lying(number)
        if usual in (ANY, COLUMN) and x == 0 and is_operand:
            return ONE
        return SECOND if usual == ANY and second else usual


def taken(
    device: Device, geometry: Geometry, firsts: Sequence[int], results: int, size: int, sizes: Sequence[int]
) -> Full | None:
    """Return the dispatch of elements of 32 bits, or fewer, by one of these kernels; None where the usual ones run."""
    if not has_few_tests(device, size, flat=not geometry.tile):
        return None
    if not all(geometry.is_wide(number, firsts[number]) for number, mode in enumerate(geometry.modes) if mode == ROW):
        return None
    if not geometry.tile:
        return Full(device, geometry, firsts, results, sizes)
    into_rows = all(mode == ROW for mode in geometry.modes[-results:])
    turns = len(geometry.counts) > 2 or any(
        mode == COLUMN and geometry.strides[number][0] for number, mode in enumerate(geometry.modes)
    )
    whole = geometry.counts[0] % 4 == 0 and geometry.counts[0] <= LONGEST_ROW
    return FullRows(device, geometry, firsts, results, sizes) if into_rows and not turns and whole else None
