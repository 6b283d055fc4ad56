"""Carriers: the copy engines of one vendor's cards, which carry slots from card to card past the host.

Each card has a place for every slot in its own memory, and flags before them: words that its kernels raise when a slot
is ready for a rank, and words that the copy engine raises when one has come. See docs/notes/peer.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.comm.rig.arena import Slab
from vkpar.comm.schedule.carried import LANES
from vkpar.errors import VulkanError
from vkpar.timeouts import CLOSE_SECONDS
from vkpar.vulkan.command import CommandBuffer, DescriptorPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.accounting import SLOTS
from vkpar.vulkan.memory.buffer import SharedBuffer
from vkpar.vulkan.peer.vendor import Card, CardMemory, CopyStream, Vendor
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.roads import Lane, Roads

_log = logging.getLogger("vkpar")
KERNEL = "carry"
MOST_RANKS = 16 // LANES  # that one work-group of shaders/carry.comp looks after
# Words of a card's memory, as shaders/carry.comp has them: one for each lane, 64 bytes apart.
_APART, _RAISED, _ARRIVED, _AWAITED, _ABORTED = 16, 0, 256, 512, 768
_QUARTERS = 800  # the first of four words: 0, 1, 2 and 3 times 2^30
_FLAGS_NBYTES = 4096
_QUARTER = 30  # bits: no stream waits for a word that is so much farther than what its lane was given

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


class Carriers:
    """The copy engines between the cards of a rig's ranks, each of which is another card.

    Args:
        devices: by rank.
        vendor: the library of the cards' vendor.
        base: the number of the first slot that is carried.

    Attributes:
        small: slots for messages that fit them whole; ``large`` for all others. Each lies in every card's memory.

    Raises:
        OutOfMemoryError: a card has no room for the slots.
        VulkanError: the vendor's library or a driver refuses, against what ``offer`` of the transport found.
    """

    def __init__(self, devices: Sequence[LogicalDevice], vendor: Vendor, base: int) -> None:
        n = len(devices)
        self._devices = list(devices)
        self.vendor = vendor
        per_rank = max(_SLOTS_PER_RANK, (2 * _LAG + 1) * n)  # a rank knows how far others were two lags ago
        self.small = Slab(n, per_rank, _SMALL_SLOT, _SMALL_SLOT, base, _FLAGS_NBYTES, _LAG)
        first, offset = base + self.small.number, _FLAGS_NBYTES + self.small.nbytes
        limits = [device.info.limits for device in devices]
        most = min(min(each.max_storage_buffer_range, each.max_allocation) for each in limits)
        room = (min(_MOST_MEMORY, most) - offset) // (n * per_rank)
        slot = min(_MOST_SLOT, room // _ALIGNMENT * _ALIGNMENT)
        self.large = Slab(n, per_rank, slot, slot, first, offset, _LAG)
        self._roads: dict[tuple[int, int, int], CopyStream] = {}
        self._memory: list[CardMemory] = []
        self._aborted = False
        self._descriptors: dict[int, Any] = {}  # by rank, a set of its memory
        with ExitStack() as undo:
            cards: list[Card] = []
            for device in devices:
                card = vendor.card(device.info)
                assert card is not None, "the cards were found before"
                cards.append(card)
                undo.callback(card.close)
            for device, card in zip(devices, cards, strict=True):
                nbytes = self.large.offset + self.large.nbytes
                memory = card.memory(device.handle, device.info, device.compute.family, nbytes, cards)
                undo.callback(memory.close)
                memory.put(4 * _QUARTERS, [quarter << _QUARTER for quarter in range(4)])
                self._memory.append(memory)
                device.accounting.imported(SLOTS, memory.heap, memory.nbytes)
                undo.callback(device.accounting.imported, SLOTS, memory.heap, memory.nbytes, -1)
            for (src, dst), lane in itertools.product(itertools.permutations(range(n), 2), range(LANES)):
                self._roads[src, dst, lane] = cards[src].stream()
                undo.callback(self._roads[src, dst, lane].close)
            self._cards = cards
            self._resources = undo.pop_all()

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
            self._resources.callback(pool.close)
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
        self._lanes = Roads(group, self.vendor.functions, lanes)

    def abort(self) -> None:
        """Let everything that waits for a flag run out: kernels and streams; their data is undefined."""
        if self._aborted:
            return
        self._aborted = True
        try:
            for rank, memory in enumerate(self._memory):
                other = self._memory[rank - 1]  # another card, whose copy engine works while this one's kernels wait
                memory.bring(4 * _ABORTED, other, 4 * (_QUARTERS + 1))
                for (src, dst, lane), sent in self._sent().items():
                    if src == rank:
                        quarter = ((sent >> _QUARTER) + 1) % 4
                        memory.bring(_word(_RAISED, dst, lane), other, 4 * (_QUARTERS + quarter))
        except VulkanError as error:
            _log.error("flags between the cards cannot be raised: %s", error)

    def _sent(self) -> dict[tuple[int, int, int], int]:
        return {way: self._lanes.sent(*way) for way in self._roads}

    def close(self) -> None:
        """Give everything back, once the streams are idle; where they do not get there, their memory is lost."""
        resources = self._resources.pop_all()
        if self._ends():
            resources.close()
        else:
            _log.error("copies between the cards do not end: their memory is lost")

    def _ends(self) -> bool:
        """Wait until the streams are idle; say whether they are."""
        end = time.monotonic() + CLOSE_SECONDS
        try:
            while not all(stream.idle() for stream in self._roads.values()):
                if time.monotonic() > end:
                    return False
                time.sleep(_LOOK_SECONDS)
        except VulkanError as error:
            _log.error("copies between the cards failed: %s", error)
            return False
        return True
