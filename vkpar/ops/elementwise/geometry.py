"""How the operands of an elementwise operation lie, and what that asks of a kernel; no Vulkan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vkpar.arrays.layout import Strides, joined
from vkpar.ops.elementwise.kinds import ANY, COLUMN, GROUP, ONE, ROW

_MOST_AXES = 4
_ROWS = 4


@dataclass(frozen=True)
class Geometry:
    """The axes that a kernel runs over.

    Attributes:
        counts: their lengths, X first; one for a flat kernel.
        strides: of each operand and result along them.
        modes: of each operand and result, how it lies.
        tile: whether it takes the kernel with strides; else all lie side by side in one order.
        rows: that an invocation makes.
        width: how many invocations of a work-group lie side by side along X.
    """

    counts: tuple[int, ...]
    strides: tuple[Strides, ...]
    modes: tuple[int, ...]
    tile: bool
    rows: int = 1
    width: int = GROUP

    @property
    def groups(self) -> int:
        """How many work-groups there are, one block of elements each."""
        if not self.tile:
            return -(-self.counts[0] // (4 * GROUP))
        x, y, *others = self.counts
        rows = -(-y // (GROUP // self.width * self.rows))
        return -(-x // (4 * self.width)) * rows * math.prod(others)

    def is_wide(self, number: int, first: int, run: int = 4) -> bool:
        """Say whether an operand's runs of four, or of eight, begin at multiples; its first element is at ``first``."""
        mode = self.modes[number]
        if mode not in (ROW, COLUMN) or first % run:
            return False
        unit = 0 if mode == ROW else 1
        steps = [step for axis, step in enumerate(self.strides[number]) if axis != unit and self.counts[axis] > 1]
        return all(step % run == 0 for step in steps)

    def fills_words(self, number: int, first: int, run: int) -> bool:
        """Say whether elements of a result, ``run`` of them a word, can be written by words; the first is at ``first``.

        All rows then begin at whole words. Where one ends in the middle of a word, the rest is no element of the
        result, since the next row begins at a word, too.
        """
        if self.modes[number] != ROW or first % run:
            return False
        others = [axis for axis in range(1, len(self.counts)) if self.counts[axis] > 1]
        return all(self.strides[number][axis] % run == 0 for axis in others)


def arrange(shape: tuple[int, ...], strides: Sequence[Strides], results: int) -> Geometry | None:
    """Return how a kernel runs over operands of one shape, which has elements; None where no kernel does.

    Args:
        shape: what all are broadcast to.
        strides: of the operands, then of the results.
        results: how many of them are results.
    """
    counts, steps = joined(shape, *strides)
    if not counts:
        return Geometry((1,), ((1,),) * len(strides), (ROW,) * len(strides), tile=False)
    if len(counts) == 1 and all(step in ((0,), (1,)) for step in steps) and all(s == (1,) for s in steps[-results:]):
        return Geometry(counts, tuple(steps), tuple(ROW if step == (1,) else ONE for step in steps), tile=False)
    if len(counts) > _MOST_AXES:
        return None
    return _tiled(counts, steps, results)


def _tiled(counts: tuple[int, ...], steps: list[Strides], results: int) -> Geometry:
    x = min(range(len(counts)), key=lambda axis: (abs(steps[-results][axis]) or math.inf, -axis))
    others = [axis for axis in range(len(counts)) if axis != x]
    order = [x]
    if others:
        order.append(max(others, key=lambda axis: (sum(s[axis] == 1 for s in steps[:-results]), counts[axis])))
    order += [axis for axis in reversed(others) if axis not in order]
    counts = tuple(counts[axis] for axis in order)
    strides = [tuple(step[axis] for axis in order) for step in steps]
    if len(counts) == 1:
        counts, strides = (*counts, 1), [(*step, 0) for step in strides]
    operands = len(strides) - results
    modes = [_mode(step, counts) for step in strides[:operands]]
    modes += [ROW if step[0] == 1 else ANY for step in strides[operands:]]
    columns = COLUMN in modes
    rows = _ROWS if columns or counts[1] >= _ROWS else 1
    width = min(8 if columns else 64, 1 << (-(-counts[0] // 4) - 1).bit_length())
    return Geometry(counts, tuple(strides), tuple(modes), tile=True, rows=rows, width=width)


def _mode(step: Strides, counts: tuple[int, ...]) -> int:
    if step[0] == 1:
        return ROW
    return COLUMN if step[1] == 1 and counts[1] > 1 else ANY
