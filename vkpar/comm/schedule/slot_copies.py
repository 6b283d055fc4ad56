"""The queues of a rig by number, and schedules whose kernels work on copies of the slots.

Queue r is rank r's compute queue. Further queues belong to the ranks' copy engines, which move slots between the memory
that ranks share and each rank's own: one queue for each direction, so that the next segment comes in and the last one
goes out while the kernel works on a third. No Vulkan here: the rig has the queues themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vkpar.comm.schedule.steps import Action, Forward, Reduce, SlotCopy, Step

IN, OUT = "copy in", "copy out"  # the phases of steps that copy


@dataclass(frozen=True)
class QueueMap:
    """The rank of each queue of a rig, and the queues that copy.

    Attributes:
        ranks: by queue, its rank; the first n are the ranks' compute queues. -1 for a queue to or from another process.
        into: by rank, the queue that copies slots into its memory; the compute queue where there is no other.
        out: by rank, the queue that copies slots back.
    """

    ranks: tuple[int, ...]
    into: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def of(cls, queues: Sequence[int]) -> QueueMap:
        """Return the map for ranks with these numbers of copy queues: none, one for both directions, or two."""
        ranks, into, out = list(range(len(queues))), [], []
        for rank, number in enumerate(queues):
            added = range(len(ranks), len(ranks) + min(number, 2))
            into.append(added[0] if added else rank)
            out.append(added[-1] if added else rank)
            ranks += [rank] * len(added)
        return cls(tuple(ranks), tuple(into), tuple(out))

    def with_others(self, number: int) -> QueueMap:
        """Return the map with so many queues to and from other processes."""
        return replace(self, ranks=(*self.ranks, *([-1] * number)))


def own_slot(rank: int, slot: int, nslots: int) -> int:
    """Return the id of ``rank``'s own copy of ``slot``, one of ``nslots`` that ranks share."""
    return nslots * (1 + rank) + slot


def copies(step: Step) -> bool:
    """Say whether ``step`` copies slots and does nothing else."""
    return set(map(type, step.actions)) == {SlotCopy}


def through_copies(steps: Iterable[Step], queue_map: QueueMap, nslots: int) -> Iterator[Step]:
    """Yield ``steps`` with kernels that read and write their ranks' own slots, and copies around them.

    Every yielded step reads only slots that an earlier step wrote, so that no queue waits for ever.

    Args:
        steps: in one global order, by rank.
        queue_map: the queues that the steps and the copies run on.
        nslots: how many slots ranks share; :func:`own_slot` numbers the copies.
    """
    holders: dict[int, set[int]] = {}  # by shared slot, the ranks whose own copy is as new
    for step in steps:
        rank = step.rank
        fetched: list[SlotCopy] = []
        for action in step.actions:
            if isinstance(action, (Reduce, Forward)):
                missing = [slot for slot in action.reads if rank not in holders.setdefault(slot, set())]
                fetched += [_fetched(action, rank, slot, nslots) for slot in missing]
        for copy in fetched:
            holders[copy.slot].add(rank)
        sent = [copy for action in step.actions for copy in _sent(action, rank, nslots)]
        holders.update({slot: set() for slot in step.writes})
        holders.update({copy.out_slot: {rank} for copy in sent})
        if fetched:
            yield Step(queue_map.into[rank], IN, tuple(fetched))
        own = partial(own_slot, rank, nslots=nslots)
        yield replace(step, actions=tuple(own_action(action, own, own) for action in step.actions))
        if sent:
            yield Step(queue_map.out[rank], OUT, tuple(sent))


def _fetched(action: Reduce | Forward, rank: int, slot: int, nslots: int) -> SlotCopy:
    return SlotCopy(action.span, slot, own_slot(rank, slot, nslots), final=isinstance(action, Forward))


def _sent(action: Action, rank: int, nslots: int) -> Iterator[SlotCopy]:
    if isinstance(action, (Reduce, Forward)) and action.out_slot is not None:
        final = isinstance(action, Forward) or action.final
        yield SlotCopy(action.span, own_slot(rank, action.out_slot, nslots), action.out_slot, final, sends=True)


def own_action(action: Action, read: Callable[[int], int], written: Callable[[int], int]) -> Action:
    """Return the action on the rank's own places of the slots that it reads and writes; tokens stay in shared ones."""
    if not isinstance(action, (Reduce, Forward)):
        return action
    out_slot = None if action.out_slot is None else written(action.out_slot)
    if isinstance(action, Reduce):
        return replace(action, sources=tuple(map(read, action.sources)), out_slot=out_slot)
    return replace(action, slot=read(action.slot), out_slot=out_slot)
