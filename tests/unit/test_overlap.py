"""Operations between the steps of collectives: what is moved, and that nothing is that has to stay."""

from __future__ import annotations

import itertools
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vkpar.graph.fusion import Fused
from vkpar.graph.overlap import spread
from vkpar.graph.stretches import Item, Memory
from vkpar.vulkan.capturing import Operation

NEVER: Any = None


def copy(rank: int, source: int, target: int, nbytes: int = 8, buffer: int = 1) -> Item:
    parts = struct.pack("=5Q", buffer, source, buffer, target, nbytes)
    return Item(rank, "copy", Operation("copy", NEVER, (0, 1, parts), (None,)))


def fill(rank: int, start: int, nbytes: int = 8, buffer: int = 1) -> Item:
    return Item(rank, "fill", Operation("fill", NEVER, (0, 1, struct.pack("=3Q", buffer, start, nbytes), 0), (None,)))


def steps(call: int, count: int, *touches: Memory, ranks: int = 1) -> list[Item]:
    return [Item(rank, f"{call}", object(), call=call, touches=touches) for _ in range(count) for rank in range(ranks)]


def order(items: list[Item]) -> str:
    """Name items by what they are: digits are steps, letters operations."""
    return "".join(item.what if item.call else item.what[0] for item in items)


def test_operations_run_evenly_between_steps() -> None:
    items = [*steps(1, 3, (1, 0, 64)), *(copy(0, 64, 128, 1000) for _ in range(4))]
    assert order(spread(items)) == "1cc1cc1"


def test_an_operation_that_touches_the_arrays_waits_with_what_follows_it() -> None:
    for shared in (copy(0, 63, 128), copy(0, 128, 56), fill(0, 60)):
        found = order(spread([*steps(1, 2, (1, 0, 64)), fill(0, 64), shared, fill(0, 80)]))
        assert found == f"1f1{shared.what[0]}f"
    assert order(spread([*steps(1, 2, (1, 0, 64)), fill(0, 0, buffer=2)])) == "1f1"


def test_other_ranks_do_not_wait_for_it() -> None:
    found = spread([*steps(1, 2, (1, 0, 64), ranks=2), fill(0, 0), copy(1, 64, 128)])
    assert [(item.rank, item.what) for item in found] == [
        *((0, "1"), (1, "1"), (1, "copy"), (0, "1"), (1, "1"), (0, "fill"))
    ]


def test_what_is_not_known_and_what_was_fused_stays() -> None:
    strange = Item(0, "x", object())
    items = [*steps(1, 2, (1, 0, 64)), strange, fill(0, 64)]
    assert order(spread(items)) == "11xf"
    fused = Item(0, "1", Fused((), NEVER, None), call=1)
    assert order(spread([fused, *steps(1, 1), fill(0, 64)])) == "11f"


def meet(one: Memory, other: Memory) -> bool:
    return one[0] == other[0] and set(range(one[1], one[2])).isdisjoint(range(other[1], other[2])) is False


def memory(item: Item) -> list[Memory]:
    if item.call:
        return list(item.touches)
    flat = struct.unpack(f"={len(item.content.arguments[2]) // 8}Q", item.content.arguments[2])
    return [(flat[at], flat[at + 1], flat[at + 1] + flat[-1]) for at in range(0, len(flat) - 1, 2)]


PLACES = st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
PROGRAMS = st.lists(st.tuples(st.sampled_from("ccffffs"), st.integers(0, 2), PLACES), max_size=25)


@given(PROGRAMS)
def test_nothing_changes_places_with_what_it_shares_memory_with(listed: list[Any]) -> None:
    items: list[Item] = []
    for call, (kind, rank, (buffer, first, second, nbytes)) in enumerate(listed, 1):
        if kind == "s":
            items += steps(call, 1 + nbytes % 4, (buffer, first, first + nbytes), ranks=3)
        else:
            items.append(
                copy(rank, first, second, nbytes, buffer) if kind == "c" else fill(rank, first, nbytes, buffer)
            )
    found = spread(items)
    at = {id(item): place for place, item in enumerate(found)}
    assert sorted(at) == sorted(map(id, items))
    assert [item for item in found if item.call] == [item for item in items if item.call], "one order of all steps"
    for earlier, later in itertools.combinations(items, 2):
        same = earlier.rank == later.rank
        shares = any(meet(one, other) for one in memory(earlier) for other in memory(later))
        if same and (shares or bool(earlier.call) == bool(later.call) or later.call):
            assert at[id(earlier)] < at[id(later)]
