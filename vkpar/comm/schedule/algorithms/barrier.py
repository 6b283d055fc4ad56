"""Barrier: every rank leaves a token, then waits for all others': one hop, no data."""

from __future__ import annotations

from collections.abc import Iterator

from vkpar.comm.schedule.steps import Barrier, SlotSet, Step


def least_slots(_nranks: int) -> int:
    """Return the fewest slots a rank: the token's."""
    return 1


def steps(slots: SlotSet, generation: int = 0) -> Iterator[Step]:
    """Yield the steps; no rank's second begins before every other rank's first is done.

    Args:
        slots: the slots; ``generation`` picks the token's.
        generation: see :class:`~vkpar.comm.schedule.steps.Problem`.

    Raises:
        InvalidUsageError: no slots.
    """
    slots.require("barrier", least_slots(slots.nranks))
    tokens = [slots.slot(rank, generation) for rank in range(slots.nranks)]
    for rank, token in enumerate(tokens):
        yield Step(rank, "arrive", (Barrier(out_slot=token),))
    for rank, token in enumerate(tokens):
        yield Step(rank, "leave", (Barrier(tuple(other for other in tokens if other != token)),))
