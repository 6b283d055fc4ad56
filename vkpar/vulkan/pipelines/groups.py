"""How many work-groups a call of a kernel runs."""

from __future__ import annotations

import math
import operator
from typing import Any

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import Limits

_COUNTED = "; kernel(*arrays, elements=n) runs as many as cover n invocations"


def check_groups(
    limits: Limits, label: str, groups: tuple[int, int, int], local_size: tuple[int, int, int] | None
) -> None:
    """Refuse more work-groups than the device runs in a call; ``local_size`` is given where elements were counted."""
    most = limits.max_workgroup_count
    if all(wanted <= allowed for wanted, allowed in zip(groups, most, strict=True)):
        return
    if local_size is not None:
        covered = tuple(count * size for count, size in zip(most, local_size, strict=True))
        raise InvalidUsageError(
            f"elements= asks for {groups} work-groups of {local_size}; {label} starts {most} in x, y and z, which "
            f"cover {covered} elements. Run the kernel on each of vkpar.pieces(*arrays, kernel=kernel), give elements= "
            "in two dimensions and count with both in the kernel, or declare a larger local size"
        )
    total = math.prod(groups)
    rows = -(-total // most[0])
    how = f"({-(-total // rows)}, {rows})" if rows <= most[1] else "several dimensions or calls"
    raise InvalidUsageError(
        f"{groups} work-groups; {label} allows {most} in x, y and z. Spread them over two dimensions, such as {how}, "
        "and count in the kernel with gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x + "
        "gl_GlobalInvocationID.x; leave out what is beyond the last element"
    )


def check_counted(elements: Any, groups: tuple[int, int, int], read: frozenset[int]) -> None:
    """Refuse elements counted in dimensions beyond the last in which the kernel tells its work-groups apart.

    Args:
        elements: as the call gives them.
        groups: the numbers of work-groups that cover them.
        read: the dimensions in which the kernel reads its place.

    Raises:
        InvalidUsageError: it would compute the same elements several times.
    """
    beyond = [axis for axis in range(max(read, default=2) + 1, 3) if groups[axis] > 1]
    if beyond:
        names = " and ".join("xyz"[axis] for axis in beyond)
        raise InvalidUsageError(
            f"elements={elements!r} counts in {names}, and the kernel reads neither gl_GlobalInvocationID nor "
            f"gl_WorkGroupID there: it would compute the same elements several times. Give it the number of all, "
            f"elements={math.prod(elements)} (array.size), or read .{'xyz'[beyond[0]]} in the kernel"
        )


def groups_of(groups: Any) -> tuple[int, int, int]:
    """Return the numbers of work-groups in x, y and z that a call names.

    Raises:
        InvalidUsageError: something other than one to three whole numbers.
    """
    x, y, z = (*_whole_numbers(groups, "work-groups", _COUNTED), 1, 1)[:3]
    return (x, y, z)


def groups_over(elements: Any, local_size: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the numbers of work-groups that cover ``elements`` invocations, in x, y and z.

    Raises:
        InvalidUsageError: no one to three whole numbers, or fewer than the local size has dimensions.
    """
    x, y, z = local_size
    if type(elements) is int and elements >= 0 and y == z == 1:  # often taken: kept short
        return -(-elements // x), 1, 1
    counts = _whole_numbers(elements, "elements")
    if any(size > 1 for size in local_size[len(counts) :]):
        raise InvalidUsageError(
            f"elements={elements!r} for a local size of {local_size}: give as many numbers, in the order x, y, z"
        )
    one, two, three = (-(-count // size) for count, size in zip((*counts, 1, 1), local_size, strict=False))
    return one, two, three


def _whole_numbers(given: Any, what: str, advice: str = "") -> list[int]:
    """Return one to three whole numbers from 0 up."""
    items = given if isinstance(given, (tuple, list)) else (given,)
    try:
        counts = [operator.index(item) for item in items]
    except TypeError:
        counts = []
    if not 1 <= len(counts) <= 3 or min(counts) < 0:
        shown = type(given).__name__ if hasattr(given, "shape") else repr(given)
        raise InvalidUsageError(f"{what} are one to three whole numbers, not {shown}{advice}")
    return counts
