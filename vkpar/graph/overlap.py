"""Collectives that are under way beside operations: these run between the steps of a collective that they do not touch.

On a device everything runs in the order of one queue. A step that reads what others send makes the queue wait, and what
comes after it in the program waits, too, although it may have nothing to do with the sum. So the operations that follow
a collective are put between its steps, evenly apart, up to the first one that touches its arrays, and to the next
collective. Neither operations nor steps change places among themselves, so that all results stay bit for bit the same.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from vkpar.graph.fusion import Fused
from vkpar.graph.stretches import Item, Memory
from vkpar.vulkan.capturing import Operation

_LEAST: Final = 2_000  # nanoseconds that any operation is taken to take
_RATE: Final = 100  # bytes a nanosecond that copies and fills are taken to move
_COPY, _FILL = 5, 3  # numbers that describe a part of each


def spread(items: Sequence[Item]) -> list[Item]:
    """Return a graph's items, given in one global order, with operations between the steps of collectives."""
    made: list[Item] = []
    steps: list[Item] = []  # of the collective that comes right before
    for call, found in itertools.groupby(items, key=lambda item: item.call):
        run = list(found)
        if call:
            made, steps = made + steps, run
        elif steps and _spreads(steps):
            free, rest = _apart(run, steps)
            made, steps = made + _merged(steps, free) + rest, []
        else:
            made, steps = made + steps + run, []
    return made + steps


def _spreads(steps: Sequence[Item]) -> bool:
    """Say whether operations may come between these steps: not where operations do a step's work, too."""
    return not any(isinstance(step.content, Fused) for step in steps)


def _apart(operations: Sequence[Item], steps: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the operations that have nothing to do with a collective, up to each rank's first other one; the rest."""
    held: dict[int, set[Memory]] = defaultdict(set)
    for step in steps:
        held[step.rank].update(step.touches)
    waits: set[int] = set()
    free: list[Item] = []
    rest: list[Item] = []
    for item in operations:
        touched = _touched(item.content)
        if touched is None or any(_meet(one, other) for one in touched for other in held[item.rank]):
            waits.add(item.rank)
        (rest if item.rank in waits else free).append(item)
    return free, rest


def _meet(one: Memory, other: Memory) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _merged(steps: Sequence[Item], operations: Sequence[Item]) -> list[Item]:
    """Return steps with operations between them: those of a rank end with its last step."""
    by_rank: dict[int, list[Item]] = defaultdict(list)
    for item in operations:
        by_rank[item.rank].append(item)
    counts = Counter(step.rank for step in steps)
    places = {rank: _places([_cost(item) for item in by_rank[rank]], count) for rank, count in counts.items()}
    seen: Counter[int] = Counter()
    made: list[Item] = []
    for step in steps:
        rank, number = step.rank, seen[step.rank]
        seen[rank] += 1
        stops = [*places[rank], len(by_rank[rank])]
        made.append(step)
        made += by_rank[rank][stops[number] : stops[number + 1]]
    return made + [item for rank, listed in by_rank.items() if rank not in counts for item in listed]


def _places(costs: Sequence[int], count: int) -> list[int]:
    """Return how many operations come before each of ``count`` steps, as evenly apart in time as can be."""
    at = [0, *itertools.accumulate(costs)]
    wanted = [at[-1] * step / max(count - 1, 1) for step in range(count)]
    return [at.index(min(at, key=lambda start: abs(start - due))) for due in wanted]


def _touched(content: object) -> list[Memory] | None:
    """Return the memory that an operation reads or writes; None where that is not known."""
    if not isinstance(content, Operation):
        return None
    if content.pins[-1] is not None:
        plan, addresses, _ = content.arguments
        flat = struct.unpack_from(f"={2 * plan.bindings}Q", addresses)
        starts = [flat[2 * index + 1] - plan.binding[index].back for index in range(plan.bindings)]
        return [(flat[2 * index], start, start + plan.binding[index].nbytes) for index, start in enumerate(starts)]
    return [
        (part[first], part[first + 1], part[first + 1] + part[-1])
        for part in _parts(content)
        for first in range(0, len(part) - 1, 2)
    ]


def _parts(content: Operation) -> list[tuple[int, ...]]:
    """Return the numbers that describe the parts of a copy, or of a fill: buffers and bytes in them, then a length."""
    _, count, packed, *word = content.arguments
    each = _FILL if word else _COPY
    flat = struct.unpack(f"={each * count}Q", packed)
    return [flat[start : start + each] for start in range(0, len(flat), each)]


def _cost(item: Item) -> int:
    """Return about how many nanoseconds an operation takes."""
    content = item.content
    assert isinstance(content, Operation), "it was looked at"
    if content.pins[-1] is not None:
        return max(_LEAST, int(content.arguments[0].cost_ns))
    return _LEAST + sum(part[-1] for part in _parts(content)) // _RATE
