"""Work-groups of CPU drivers for reductions and rows: an invocation makes much, since each is paid for at barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar.ops.call.work import ceil_power, floor_power, most_invocations, on_cpu

if TYPE_CHECKING:
    from vkpar.device import Device

STRAIGHT: Final = 16  # rows that an invocation of a driver that tests each lane reduces without a loop
IN_A_ROW: Final = 16  # turns of an invocation that are folded before what they make
_STRAIGHT_GROUPS: Final = (128, 64, 32, 16, 8)  # invocations of a group then
_MANY: Final = 1 << 19  # elements from which on it pays to reduce so few
_GROUP: Final = 64
_PART: Final = 4096  # elements of a row that one unit of invocations reduces
_EACH: Final = 512  # of them that an invocation does
_TURNS: Final = 32  # rows of an invocation where columns are reduced: there are few units
_WHOLE: Final = 2048  # elements of a row that one invocation reduces where there are rows for all
_ROWS: Final = 64  # that are enough for all
_FEW: Final = 16  # invocations of a group then
_SCANS: Final = 32  # of those of running sums; see shaders/scan.comp
_ALONE: Final = 256  # chunks of running sums, from which on there are enough for an invocation each
_SORTS: Final = 8  # invocations of a work-group that sort a chunk each
_CHUNKS: Final = 16  # that are enough for all, as far as they have
_SORTED: Final = (1024, 4096)  # elements at least, and at most
_ALONE_SORTED: Final = (2048, 16_384)  # elements of a row that is one chunk, and of one where there are rows for all
_COMPARED: Final = (32, 64)  # elements of a row, up to which all are compared with all: of few passes, and of many
_COMPARED_ELSEWHERE: Final = 16  # by drivers that do not unroll loops
_FEW_PASSES: Final = 2
_AT_ONCE: Final = 8
_WIDEST: Final = 256  # and where columns are reduced
_LONG_ROW: Final = 1 << 16  # elements from which on operations on rows take the widest groups
_MOST_FOURS: Final = 16_384  # of a row that an invocation reads, up to three times: some stop at 65,535 turns

# How a pass lies over invocations: those of a group, those that share a result, and the length of a part.
Spread = tuple[int, int, int]


def passes_alone(device: Device) -> bool:
    """Say whether a device reduces in passes rather than at once: its work-groups run one after the other."""
    return on_cpu(device)


def shape_of(device: Device, extent: int, columns: int, room: int, *, halves: bool, blocks: int) -> Spread | None:
    """Return what :func:`vkpar.ops.reduce.passes.shape_of` does, for parts of up to ``room`` elements; None on GPUs."""
    if not on_cpu(device):
        return None
    if columns == 1:
        if room >= _WHOLE and (extent <= _WHOLE or extent > _PART) and blocks * extent >= _ROWS * _WHOLE:
            return _FEW, 1, _WHOLE
        part = min(_PART, floor_power(room))
        lanes = ceil_power(-(-min(extent, part) // _EACH))
        return _GROUP, min(lanes, _GROUP // 2 if halves else _GROUP), part
    fours = ceil_power(-(-columns // 4))  # the lanes of a processor read what lies side by side, and rows are far apart
    group = max(min(fours, _WIDEST, most_invocations(device)), 8)
    lanes = min(group // min(fours, group), ceil_power(extent))
    return group, lanes, min(lanes * _TURNS, floor_power(room // 4))


def straight(device: Device, blocks: int, extent: int, columns: int) -> Spread | None:
    """Return the first pass over many columns without loops: drivers that test each lane know then that all read."""
    group = next((threads for threads in _STRAIGHT_GROUPS if columns % (4 * threads) == 0), 0)
    parts, left = divmod(extent, STRAIGHT)
    many = blocks * extent * columns >= _MANY and blocks * parts <= device.limits.max_workgroup_count[2]
    fits = group and parts > 1 and not left and many
    return (group, 1, STRAIGHT) if fits and reads_pairs(device) else None


def reads_pairs(device: Device) -> bool:
    """Say whether a driver reads storage buffers element by element, for which there are kernels of 64-bit words."""
    return device.info.tests_lanes


def turns_in_a_row(device: Device) -> int:
    """Return how many turns of an invocation are folded before what they make; 0 on GPUs."""
    return IN_A_ROW if on_cpu(device) else 0


def scan_group(device: Device, most: int, *, ordered: bool) -> int:
    """Return the invocations of a running sum's work-group: few where the order of additions does not count."""
    return _SCANS if on_cpu(device) and not ordered else most


def scans_alone(device: Device, chunks: int) -> int:
    """Return the invocations of a work-group of which each makes the running sums of a chunk; 0 where groups do."""
    return _FEW if reads_pairs(device) and chunks >= _ALONE else 0


def sorts(device: Device, rows: int, count: int, passes: int) -> tuple[int, int, bool] | None:
    """Return how rows are sorted whose keys have so many digits; None on GPUs.

    Returns:
        The invocations of a work-group, the elements of a chunk of each, and whether it compares all of a row.
    """
    if not on_cpu(device):
        return None
    if count <= (_COMPARED[passes > _FEW_PASSES] if reads_pairs(device) else _COMPARED_ELSEWHERE):
        return _GROUP, count, True
    if count <= _ALONE_SORTED[rows >= _CHUNKS]:
        return _SORTS, ceil_power(count), False
    least, most = _SORTED
    return _SORTS, min(max(ceil_power(-(-rows * count // _CHUNKS)), least), most), False


def in_order_at_once(device: Device) -> int:
    """Return how many of a row's largest elements an invocation puts in order at once: each word that is read tells."""
    return _AT_ONCE if on_cpu(device) else 1


def row_spread(device: Device, length: int, most: int) -> tuple[int, int] | None:
    """Return the invocations of a group, ``most`` at the most, and those of a row; None on GPUs.

    A row is read again rather than kept: memory is the processor's cache.
    """
    if not on_cpu(device):
        return None
    if length >= _LONG_ROW:
        return most, most
    return _GROUP, min(ceil_power(-(-length // (4 * _GROUP))), _GROUP)


def longest_row(device: Device, most: int, threads: int) -> int:
    """Return how long a row may be that ``threads`` invocations go through, of ``most`` that a binding holds."""
    return min(most, 4 * _MOST_FOURS * threads) if on_cpu(device) else most
