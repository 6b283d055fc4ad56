"""What a graph does to memory as a whole: what it reads before it replaces that, and all that it writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkpar.vulkan.pump.ledger import BOUND, PLACES, READS, REPLACES, UPDATES, together


def test_what_a_graph_makes_for_itself_is_not_read_from_before() -> None:
    touches = [
        (1, 7, 0, 10, REPLACES),
        (1, 7, 2, 8, READS),
        (1, 7, 5, 12, READS),
        (1, 8, 2, 8, READS),
        (2, 7, 2, 8, READS),
    ]
    assert together(touches) == [*((*touch[:4], READS) for touch in touches[2:]), touches[0]]


def test_ranges_that_meet_are_one() -> None:
    touches = [(1, 7, 0, 4, REPLACES), (1, 7, 8, 12, REPLACES), (1, 7, 4, 8, REPLACES), (1, 7, 0, 12, READS)]
    assert together(touches) == touches[:3]


_TOUCH = st.tuples(
    st.just(1),
    st.integers(0, 1),
    st.integers(0, 15),
    st.integers(1, 5),
    st.sampled_from([READS, UPDATES, REPLACES, PLACES, BOUND]),
)


@given(st.lists(_TOUCH, max_size=12))
def test_bytes_by_bytes(found: list[tuple[int, int, int, int, int]]) -> None:
    """No byte that is read first is left out; what is reported as read was read, and written as written."""
    touches = [(device, buffer, start, start + count, kind) for device, buffer, start, count, kind in found]
    made = together(touches)
    replaced: set[tuple[int, int]] = set()
    reads: set[tuple[int, int]] = set()
    writes: set[tuple[int, int]] = set()
    for _, buffer, start, end, kind in touches:
        places = {(buffer, place) for place in range(start, end)}
        reads |= places - replaced if kind in (READS, UPDATES) else set()
        writes |= places if kind in (UPDATES, REPLACES, PLACES) else set()
        replaced |= places if kind == REPLACES else set()
    told = {
        kind: {(buffer, place) for _, buffer, start, end, each in made if each == kind for place in range(start, end)}
        for kind in (READS, REPLACES, PLACES)
    }
    assert reads <= told[READS]
    assert told[READS] <= {
        (buffer, place) for _, buffer, start, end, kind in touches if kind <= UPDATES for place in range(start, end)
    }
    assert told[REPLACES] == replaced
    assert told[REPLACES] | told[PLACES] == writes
    assert {touch[-1] for touch in made} <= {READS, REPLACES, PLACES}
