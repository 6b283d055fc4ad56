"""Carriers: the copy engines of one vendor's cards, which carry slots from card to card past the host.

Each card has a place for every slot in its own memory, and flags before them: words that its kernels raise when a slot
is ready for a rank, and words that the copy engine raises when one has come. See docs/notes/peer.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from vkpar.comm.rig.arena import Arena, Slab
from vkpar.comm.schedule.carried import LANES
from vkpar.comm.schedule.grouped import Grouping
from vkpar.errors import UnsupportedError, VkparError, VulkanError
from vkpar.timeouts import CLOSE_SECONDS
from vkpar.vulkan.command import CommandBuffer, DescriptorPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import SLOTS
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.peer import claims
from vkpar.vulkan.peer.vendor import Card, CardMemory, CopyStream, Vendor
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.roads import Lane, Roads
from vkpar.vulkan.queue import Frame

_log = logging.getLogger("vkpar")
KERNEL = "carry"
MOST_RANKS = 16 // LANES  # that one work-group of shaders/carry.comp looks after
# Words of a card's memory, as shaders/common/flags.glsl has them: one for each lane, 64 bytes apart.
_APART, _RAISED, _ARRIVED, _AWAITED, _ABORTED = 16, 0, 256, 512, 768
FARTHER = 4096  # bytes before the slots, for the words: a slot of a group lies so much farther than in the arena
_FAR = 1 << 30  # no stream waits for a word that is so much farther than what its lane was given

_SLOTS_PER_RANK = 16
_SMALL_SLOT = 64 << 10
_LAG = 2
_MOST_SLOT = 8 << 20
_MOST_MEMORY = 256 << 20  # a card
_ALIGNMENT = 4096
_LOOK_SECONDS = 0.0005


def _word(kind: int, rank: int, lane: int) -> int:
    """Return the byte at which a word of a kind lies, of the lane to or from a rank."""
    return 4 * (kind + _APART * (LANES * rank + lane))


def _like(arena: Arena) -> tuple[Slab, Slab]:
    """Return slots that lie in a card's memory as in the arena, and are numbered after its slots."""
    small, large = arena.small, arena.large
    small = replace(small, base=arena.nslots + small.base, offset=FARTHER + small.offset)
    return small, replace(large, base=arena.nslots + large.base, offset=FARTHER + large.offset)


class Alarm:
    """Writes words of a card's memory while its kernels and streams wait.

    That takes a queue that waits for nothing: copies by the vendor's library share queues with the streams, or wait for
    kernels.

    Raises:
        UnsupportedError: the device has no such queue.
    """

    def __init__(self, device: LogicalDevice) -> None:
        queues = device.copy_queues()
        if len(queues) < 2:
            raise UnsupportedError(f"{device.info.name} has no queue that copies beside those that wait")
        self._queue, self._last = queues[1], 0

    def write(self, memory: BufferRange, *stages: Mapping[int, int]) -> None:
        """Have words written, by byte, those of one of the ``stages`` after those of the one before."""

        def record(frame: Frame) -> None:
            for words in stages:
                for byte, word in words.items():
                    frame.commands.record_fill(BufferRange(memory.buffer, memory.offset + byte, 4), word)
                frame.commands.record_order()

        self._last = self._queue.run(record)

    def idle(self) -> bool:
        """Say whether all was written."""
        return not self._last or self._queue.passed(self._last, 0)


class Carriers:
    """The copy engines between the cards of a rig's ranks, each of which is another card.

    Args:
        devices: by rank.
        vendor: the library of the cards' vendor.
        arena: what has the slots that all ranks share.
        groups: by rank the group whose cards reach each other, None for a rank that is in none; None where all are one.

    Attributes:
        small: slots for messages that fit them whole; ``large`` for all others. Each lies in the memory of every card,
            or of every card of its rank's group, and then as in the arena.
        grouping: how slots of groups are numbered; None where all ranks are one group.

    Raises:
        OutOfMemoryError: a card has no room for the slots.
        UnsupportedError: a card has no queue that copies beside those that wait, or another process carries slots
            from it.
        VulkanError: the vendor's library or a driver refuses, against what ``offer`` of the transport found.
    """

    def __init__(
        self,
        devices: Sequence[LogicalDevice],
        vendor: Vendor,
        arena: Arena,
        groups: Sequence[int | None] | None = None,
    ) -> None:
        self._devices = list(devices)
        self.vendor = vendor
        self.grouping = None if groups is None else Grouping(tuple(groups), arena.nslots)
        self.small, self.large = self._own_slabs(arena.nslots) if groups is None else _like(arena)
        self._roads: dict[tuple[int, int, int], CopyStream] = {}
        self._memory: dict[int, CardMemory] = {}
        ranks = [rank for rank in range(len(devices)) if self.serves(rank)]
        self._waits = set(ranks)  # the ranks whose flags an abort has not raised
        self._alarms = {rank: Alarm(devices[rank]) for rank in ranks}
        self._descriptors: dict[int, Any] = {}  # by rank, a set of its memory
        with ExitStack() as undo:
            self._of_rank = [undo.enter_context(ExitStack()) for _ in devices]
            self._cards: dict[int, Card] = {}
            for rank in ranks:
                if vendor.alone:
                    self._of_rank[rank].enter_context(claims.claimed(devices[rank].info.device_uuid))
                card = vendor.card(devices[rank].info)
                assert card is not None, "the cards were found before"
                self._cards[rank] = card
                self._of_rank[rank].callback(card.close)
            for rank in ranks:
                self._memory[rank] = self._open_memory(rank)
            for (src, dst), lane in itertools.product(itertools.permutations(ranks, 2), range(LANES)):
                if self.joins(src, dst):
                    self._roads[src, dst, lane] = self._cards[src].stream()
                    self._of_rank[src].callback(self._roads[src, dst, lane].close)
            undo.pop_all()

    def _own_slabs(self, base: int) -> tuple[Slab, Slab]:
        """Return slots of sizes that suit the cards' own link, from number ``base`` on."""
        n = len(self._devices)
        per_rank = max(_SLOTS_PER_RANK, (2 * _LAG + 1) * n)  # a rank knows how far others were two lags ago
        small = Slab(n, per_rank, _SMALL_SLOT, _SMALL_SLOT, base, FARTHER, _LAG)
        first, offset = base + small.number, FARTHER + small.nbytes
        limits = [device.info.limits for device in self._devices]
        most = min(min(each.max_storage_buffer_range, each.max_allocation) for each in limits)
        room = (min(_MOST_MEMORY, most) - offset) // (n * per_rank)
        slot = min(_MOST_SLOT, room // _ALIGNMENT * _ALIGNMENT)
        return small, Slab(n, per_rank, slot, slot, first, offset, _LAG)

    def serves(self, rank: int) -> bool:
        """Say whether slots are carried to and from a rank's card."""
        return self.grouping is None or self.grouping.groups[rank] is not None

    def joins(self, src: int, dst: int) -> bool:
        """Say whether slots are carried between two ranks."""
        return self.grouping is None or self.grouping.same(src, dst)

    def _open_memory(self, rank: int) -> CardMemory:
        """Return memory of a rank's card for all slots and flags, booked."""
        device, undo = self._devices[rank], self._of_rank[rank]
        families = sorted({queue.family for queue in device.queues})
        nbytes = self.large.offset + self.large.nbytes
        cards = [card for other, card in self._cards.items() if other == rank or self.joins(rank, other)]
        memory = self._cards[rank].memory(device.handle, device.info, families, nbytes, cards)
        undo.callback(memory.close)
        device.accounting.imported(SLOTS, memory.heap, memory.nbytes)
        undo.callback(device.accounting.imported, SLOTS, memory.heap, memory.nbytes, -1)
        return memory

    @property
    def nslots(self) -> int:
        """How many slots there are in all."""
        return self.small.number + self.large.number

    def shared(self, rank: int) -> SharedBuffer:
        """Return a rank's place for the slots as its command buffers name it."""
        return SharedBuffer(self._memory[rank].range(), self._devices[rank].compute.family, foreign=False)

    def record_flags(self, rank: int, handle: Any, push: bytes) -> None:
        """Record the kernel of flags into a rank's open command buffer, ordered after what is there.

        Args:
            rank: whose command buffer it is.
            handle: the VkCommandBuffer.
            push: what the kernel is to do.
        """
        pipeline = self._devices[rank].pipelines.shipped(KERNEL, 1, len(push))
        if rank not in self._descriptors:
            pool = DescriptorPool(self._devices[rank].handle, 1, 1)
            self._of_rank[rank].callback(pool.close)
            ranges = (self._memory[rank].range(),)
            self._descriptors[rank] = pool.allocate(pipeline.layout.set_layout, ranges)
        commands = CommandBuffer(handle)
        (commands.record_order if self._devices[rank].info.is_cpu else commands.record_kernel_order)()
        commands.record_dispatch(pipeline, self._descriptors[rank], push, (1, 1, 1))

    def connect(self, group: CGroup) -> None:
        """Have the pump's group give transfers to the streams."""
        memory, lanes = self._memory, []
        for (src, dst, number), stream in self._roads.items():
            raised = memory[src].address + _word(_RAISED, dst, number)
            arrived = memory[dst].address + _word(_ARRIVED, src, number)
            bases = memory[src].address, memory[dst].address
            lanes.append(Lane(src, dst, number, self._cards[src].context, stream.handle, raised, arrived, *bases))
        self._lanes = Roads(group, self.vendor.functions, self.vendor.masks, lanes)

    def abort(self) -> None:
        """Let everything that waits for a flag run out: kernels and streams; their data is undefined.

        A second call goes on where the first one was interrupted, or refused.
        """
        for rank in sorted(self._waits):
            words = {
                _word(_RAISED, dst, lane): (self._lanes.sent(src, dst, lane) + _FAR) % (1 << 32)
                for src, dst, lane in self._roads
                if src == rank
            }
            try:
                self._alarms[rank].write(self._memory[rank].range(), words, {4 * _ABORTED: 1})
                self._waits.discard(rank)
            except VkparError as error:
                _log.error("rank %d: flags that its card waits for cannot be raised: %s", rank, error)

    def close(self) -> None:
        """Give everything back, once the streams are idle; where they do not get there, their memory is lost."""
        self.abandon(())

    def abandon(self, late: Collection[int]) -> None:
        """Give back what no ``late`` rank's kernels use, once the streams are idle; else it is lost."""
        freed = [rank for rank in range(len(self._of_rank)) if rank not in late]
        resources = [self._of_rank[rank].pop_all() for rank in freed]
        ends = self._ends()
        self._roads = {way: stream for way, stream in self._roads.items() if way[0] not in freed}
        if not ends:
            _log.error("copies between the cards do not end: their memory is lost")
            return
        for each in resources:
            each.close()

    def _ends(self) -> bool:
        """Wait until the streams are idle; say whether they are."""
        end = time.monotonic() + CLOSE_SECONDS
        try:
            checks = [
                *(stream.idle for stream in self._roads.values()),
                *(alarm.idle for alarm in self._alarms.values()),
            ]
            while not all(is_idle() for is_idle in checks):
                if time.monotonic() > end:
                    return False
                time.sleep(_LOOK_SECONDS)
        except VulkanError as error:
            _log.error("copies between the cards failed: %s", error)
            return False
        return True
