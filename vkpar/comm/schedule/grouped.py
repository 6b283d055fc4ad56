"""Schedules of ranks that fall into groups, within which slots are carried: other ranks read them in host memory.

A slot of a rank in a group has two places: in the memory of each card of the group, and in the memory that all ranks
share. Kernels of the group's ranks work in the cards' own memory. What ranks outside read is copied to the shared
place after the kernels that fill the slot, and what ranks outside have filled is copied from there before the kernels
that read it. No Vulkan here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vkpar.comm.schedule.slot_copies import own_action
from vkpar.comm.schedule.steps import Forward, Reduce, SlotCopy, Step


class LoneStep(Step):
    """A step of a rank for which nothing is carried: a submission by itself, on the shared slots."""


@dataclass(frozen=True)
class GroupStep(Step):
    """A step whose kernels work on the slots in the memory of its rank's card.

    Attributes:
        arrived: the slots that it reads and that other ranks of its group fill.
        fetched: what is copied from the shared slots before the kernels; ``published``: into them, after these.
    """

    arrived: tuple[int, ...] = ()
    fetched: tuple[SlotCopy, ...] = ()
    published: tuple[SlotCopy, ...] = ()

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """The slots that are carried to it."""
        return self.arrived


@dataclass(frozen=True)
class Grouping:
    """The numbers of slots: shared ones come first, then as many in the memory of cards.

    Attributes:
        groups: by rank its group; None where nothing is carried for it.
        nslots: how many slots ranks share.
    """

    groups: tuple[int | None, ...]
    nslots: int

    def near(self, slot: int) -> int:
        """Return the number of a slot in the memory of the cards of its rank's group."""
        return self.nslots + slot

    def fetched(self, slot: int) -> int:
        """Return the number of a rank's own copy of a foreign slot, which lies where :meth:`near` would, modulo all."""
        return 3 * self.nslots + slot

    def same(self, rank: int, other: int) -> bool:
        """Say whether slots are carried from one rank to the other, or both are the same."""
        return self.groups[rank] is not None and self.groups[rank] == self.groups[other]


def placed(steps: Sequence[Step], grouping: Grouping) -> Iterator[Step]:
    """Yield ``steps``, in one global order, with the slots where their ranks have them."""
    wanted = _read_outside(steps, grouping)
    writer: dict[int, int] = {}
    holders: dict[int, set[int]] = {}  # by shared slot, the ranks that have fetched it since it was filled
    for index, step in enumerate(steps):
        if grouping.groups[step.rank] is None:
            yield LoneStep(step.rank, step.phase, step.actions)
        else:
            yield _of_group(step, grouping, writer, holders, wanted[index])
        for slot in step.writes:
            writer[slot], holders[slot] = step.rank, set()


def _of_group(
    step: Step, grouping: Grouping, writer: dict[int, int], holders: dict[int, set[int]], wanted: set[int]
) -> GroupStep:
    rank = step.rank
    actions = [action for action in step.actions if isinstance(action, (Reduce, Forward))]
    carried = {slot for slot in step.reads if grouping.same(writer[slot], rank)}
    fetched: dict[int, SlotCopy] = {}
    for action in actions:
        for slot in action.reads:
            if slot not in carried and rank not in holders[slot]:
                final = isinstance(action, Forward)
                fetched[slot] = SlotCopy(action.span, slot, grouping.fetched(slot), final)
                holders[slot].add(rank)

    def near(slot: int) -> int:
        return grouping.fetched(slot) if slot not in carried else grouping.near(slot)

    return GroupStep(
        rank,
        step.phase,
        tuple(own_action(action, near, grouping.near) for action in step.actions),
        tuple(map(grouping.near, dict.fromkeys(slot for slot in step.reads if slot in carried))),
        tuple(fetched.values()),
        tuple(_published(step, grouping, wanted)),
    )


def _published(step: Step, grouping: Grouping, wanted: set[int]) -> Iterator[SlotCopy]:
    for action in step.actions:
        if isinstance(action, (Reduce, Forward)) and action.out_slot is not None and action.out_slot in wanted:
            final = isinstance(action, Forward) or action.final
            yield SlotCopy(action.span, grouping.near(action.out_slot), action.out_slot, final, sends=True)


def _read_outside(steps: Sequence[Step], grouping: Grouping) -> list[set[int]]:
    """Return, by step, which of the slots that it fills ranks outside its group read."""
    outside: list[set[int]] = [set() for _ in steps]
    filled: dict[int, int] = {}  # by slot, the step that filled it last
    for index, step in enumerate(steps):
        for slot in step.reads:
            if not grouping.same(steps[filled[slot]].rank, step.rank):
                outside[filled[slot]].add(slot)
        filled.update(dict.fromkeys(step.writes, index))
    return outside
