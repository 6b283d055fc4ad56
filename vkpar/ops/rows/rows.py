"""How operations on rows become dispatches: work-groups by the rows' length, pieces of rows that bindings hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import rows as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.errors import UnsupportedError
from vkpar.ops.call.call import Call
from vkpar.ops.call.windows import window, writable_in_place
from vkpar.ops.call.work import ceil_power, most_invocations
from vkpar.ops.reduce import cpu
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.buffer import BufferRange

_MOST_KEPT: Final = 8  # fours that an invocation keeps in registers,
_MOST_OF_ROW: Final = 4096  # of so many in its row: where groups are widest, an invocation has fewer registers
_WIDEST: Final = 1024  # invocations of a group, at most

Constants = Callable[[Mapping[str, bool]], tuple[int, ...]]


class Binding(NamedTuple):
    """What a kernel on rows binds.

    Attributes:
        slot: where its first element stands in the push constants: x, y, w, b or h.
        array: its elements.
        each: how many of them a row has; 0 for those that all rows share.
        out: the kernel writes it.
    """

    slot: str
    array: Array
    each: int
    out: bool = False


class Layout(NamedTuple):
    """How rows lie over invocations.

    Attributes:
        kept: a row is read once and held in registers, ``keep`` fours an invocation; else it is read again.
        group: invocations of a work-group, ``lanes`` of a row.
    """

    kept: bool
    group: int
    keep: int
    lanes: int


def layout_of(device: Device, length: int, *, keeps: bool = True) -> Layout:
    """Return how rows of ``length`` elements lie over the invocations of a device; ``keeps``: they may be kept."""
    most = min(most_invocations(device), _WIDEST)
    fours = -(-length // 4)
    found = cpu.row_spread(device, length, most)
    if found is not None:
        return Layout(False, found[0], 1, found[1])
    lanes = min(ceil_power(-(-fours // 4)), most)
    group = max(lanes, min(256, most))
    keep = -(-fours // lanes)
    kept = keeps and keep <= _MOST_KEPT and fours <= _MOST_OF_ROW
    return Layout(kept, group, keep if kept else 1, lanes)


def check_length(operation: str, x: Array) -> None:
    """Raise UnsupportedError where a row is too long for a binding, in float32 as it may be stored in between."""
    device, length = x.device, x.shape[-1]
    most = (min(device.limits.max_storage_buffer_range, device.limits.max_buffer) - ALIGNMENT) // 4
    most = cpu.longest_row(device, most, min(most_invocations(device), _WIDEST))
    if length > most:
        raise UnsupportedError(
            f"{operation}: a row has {length} elements, and a kernel on {device.name} takes {most} at most"
        )


def launch(
    call: Call,
    kernel: str,
    rows: int,
    length: int,
    bindings: Sequence[Binding],
    value: float,
    constants: Constants | None = None,
    *,
    keeps: bool = True,
) -> None:
    """Run a kernel on rows.

    Args:
        call: that it is a part of.
        kernel: its name, but for what says whether rows are kept.
        rows: how many there are.
        length: elements of a row.
        bindings: in order; x is the first, y the one that is written first.
        value: the number that the kernel takes.
        constants: given which arrays have rows that begin at multiples of 4, by slot, the kernel's own constants.
        keeps: there is a kernel that keeps rows.
    """
    layout = layout_of(call.device, length, keeps=keeps)
    name = f"{kernel}_{'kept' if layout.kept else 'long'}"
    x_dtype = bindings[0].array.dtype
    for first, count in _pieces(rows, bindings):
        bound = [_bind(call, each, first, count) for each in bindings]
        at = dict.fromkeys(("x", "y", "w", "b", "h"), 0)
        wide = dict.fromkeys(at, False)
        for each, (_, _, start) in zip(bindings, bound, strict=True):
            at[each.slot] = start
            wide[each.slot] = start % 4 == 0 and (not each.each or count == 1 or each.each % 4 == 0)
        y = next(each.array for each in bindings if each.slot == "y")
        full = y.dtype == dtypes.float32 != x_dtype
        own = abi.RowsConstants(layout.group, layout.keep, wide["x"], wide["y"], full, length % 4 == 0)
        firsts = {f"{slot}_first": first for slot, first in at.items()}
        push = pack(abi.Rows(count, length, layout.lanes, **firsts, value=float(value)))
        told = (*own, *(constants(wide) if constants else ()))
        groups = -(-count * layout.lanes // layout.group)
        call.dispatch(name, [array for array, _, _ in bound], [item for _, item, _ in bound], push, groups, told)
        for each, (array, _, _) in zip(bindings, bound, strict=True):
            if array is not each.array and each.out:
                start = first * each.each
                each.array.reshape(-1)[start : start + count * each.each].copy_from(array)


def _pieces(rows: int, bindings: Sequence[Binding]) -> Iterator[tuple[int, int]]:
    """Cut rows into (first, count) that one dispatch takes; a row that lies to either side of a border comes alone."""
    first = 0
    while first < rows:
        room = (each.array.reach(first * each.each) // each.each for each in bindings if each.each)
        count = max(min(rows - first, *room), 1)
        yield first, count
        first += count


def _bind(call: Call, each: Binding, first: int, count: int) -> tuple[Array, BufferRange, int]:
    """Return what a kernel binds for some rows, its range and the first element's number in that."""
    array = each.array
    start, size = (first * each.each, count * each.each) if each.each else (0, array.size)
    if each.out and array.reach(start) < size:
        call.forget()
        made = array.device.empty(size, array.dtype)
        return (made, *made.window())
    return (array, *window(array, start, size))


def stand_in(call: Call, out: Array, rows: int, length: int) -> Array:
    """Return what kernels on rows write in place of ``out``, itself where they can.

    Halves are written two at a time, so that no two rows may share a word: float32 stands in for these.
    """
    if not out.is_contiguous:
        return call.temporary(out.shape, out.dtype if out.dtype.itemsize == 4 else dtypes.float32)
    if out.dtype.itemsize == 4:
        return out
    whole = length % 2 == 0 or rows == 1
    if whole and writable_in_place(out):
        return out
    return call.temporary(out.shape, out.dtype if whole else dtypes.float32)
