"""The arguments of a call, and its key, by which an equal call finds the recorded programs."""

from __future__ import annotations

from typing import Any, NamedTuple


class Call(NamedTuple):
    """The arguments of one collective as its caller gave them, not checked yet.

    Attributes:
        name: the collective's.
        arrays: by rank, what goes in; of ``send_recv`` the pairs' sources.
        out: by rank, where the results go; of ``send_recv`` the pairs' targets.
        op: what a reduction does.
        wire: how float32 crosses links.
        root: the rank that gives or gets all.
        counts: how many elements each part has, as tuples; None for equal parts.
    """

    name: str
    arrays: Any = ()
    out: Any = None
    op: Any = None
    wire: Any = None
    root: Any = None
    counts: Any = None

    def key(self, group: object) -> tuple[Any, list[Any]]:
        """Return what identifies the call, and what keeps its arrays' memory until it is submitted.

        The key consists of names and of the arrays' memory. Where something else stands in place of an array, the key
        is a new object, which no recorded program has.

        Raises:
            InvalidUsageError: an array was closed, or another group of collectives names it.
        """
        pins: list[Any] = []
        try:
            arrays = _memory_of(self.arrays, group, pins)
            out = None if self.out is None else _memory_of(self.out, group, pins)
        except (AttributeError, TypeError):
            return object(), pins
        return (self.name, arrays, out, self.op, self.wire, self.root, self.counts), pins


def _memory_of(arrays: Any, group: object, pins: list[Any]) -> tuple[Any, ...]:
    keys: list[Any] = []
    for array in arrays:
        if array is None:
            keys.append(None)
            continue
        storage = array.storage
        memory = storage.ready
        if memory is None:  # no memory, several buffers, closed, or named by a group
            memory = storage.pin()
            storage.check_free(group)
        pins.append(memory)
        keys.append(array.key)
    return tuple(keys)
