"""The rig: a communicator's staging memory, links and queues on its devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from vkpar import env
from vkpar.comm.rig import choice, links
from vkpar.comm.rig.arena import Arena
from vkpar.comm.rig.carriers import Carriers
from vkpar.comm.rig.processes.progress import Progress
from vkpar.comm.rig.processes.world import World
from vkpar.comm.rig.transports import peer
from vkpar.comm.rig.transports.own import OwnSlots
from vkpar.comm.schedule.slot_copies import QueueMap
from vkpar.errors import InvalidUsageError, VulkanError
from vkpar.vulkan import api
from vkpar.vulkan.command import CommandPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.pump.hub import ErrandQueue
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.ports import bucket_ns
from vkpar.vulkan.queue import Queue, drain, spin_ns
from vkpar.vulkan.semaphore import TimelineSemaphore

_WAYS = ("to", "from")  # of the queues that lead to another process, in their order


class Rig:
    """The ranks' devices, tied together.

    Args:
        devices: the ranks' logical devices.
        transports: by rank: ``auto``, ``staged`` or ``mapped``.
        staging_nbytes: bytes for all slots; None for the settings'.
        copies: open copy queues, and memory for copies of the slots that kernels may work on.
        world: the processes that the ranks live in, where these are several; the devices are this one's.

    Attributes:
        queues: the queues that programs run on; the first n are the own ranks' compute queues, the last ones lead to
            and from other processes. ``ports`` are the pump's views of them, ``places`` has the rank and a name of
            each.
        progress: what carries slots between processes; None in one process.
        queue_map: the rank of each queue, and the queues that copy.
        own_slots: by rank, where its copies of the slots are; empty without ``copies``.
        aside: the same for what slow links are played with; empty without these.
        links: one per ordered pair of ranks.
        arena: the staging memory.
        transports: how each rank reaches it.
        carriers: what carries slots between the ranks' cards, past the staging memory; None where nothing does.
        group: the pump's group.
        pools: by queue, what its programs' command buffers come from; whoever uses one holds the engine's lock.
        spin_ns: how long waits spin before they block: only where all ranks are GPUs and cores are to spare.

    Raises:
        UnsupportedError: ``staged`` or ``copies`` on a device that cannot import host memory, or a link that cannot be
            native although ``VKPAR_LINK`` asks for it.
        OutOfMemoryError: no room for copies of the slots.
    """

    def __init__(
        self,
        devices: Sequence[LogicalDevice],
        transports: Sequence[str],
        staging_nbytes: int | None = None,
        *,
        copies: bool = False,
        world: World | None = None,
    ) -> None:
        self.devices = list(devices)
        self.world = world
        self.progress: Progress | None = None
        self.queue_map = QueueMap((), (), ())
        self._open_queues(copies)
        self.own_slots: list[OwnSlots] = []
        self.aside: list[OwnSlots] = []
        self._trusts_copies = True
        own = [device.info for device in devices]
        infos = own if world is None else world.infos
        most = min(min(info.limits.max_storage_buffer_range, info.limits.max_allocation) for info in infos)
        alignment = max(info.limits.host_import_alignment for info in infos)
        self.spin_ns = spin_ns(own, len(devices))  # bridges of queues that copy are hardly ever under way, too
        self.transports: list[choice.Transport] = []
        with ExitStack() as undo:
            undo.callback(self._leave)
            for device in devices:
                device.users.add(self)
            self.arena = Arena(len(infos), alignment, most, staging_nbytes)
            undo.push(self._close_arena)
            self._of_rank = [undo.enter_context(ExitStack()) for _ in devices]
            for rank, device in enumerate(devices):
                self._open_transport(rank, device, transports[rank], copies=copies)
            nslots = self._open_carriers(transports, undo)
            self.pools = [self._pool(queue) for queue in range(len(self.queues))]
            mapped = {rank for rank, transport in enumerate(self.transports) if transport.mirror}
            self._own_links = links.plan(own, mapped)
            self.links = self._told_links()
            if world is not None:
                self._reach_others(world, undo)
            self.group = CGroup(self.ports, nslots)
            undo.callback(self.group.close)
            self._share_slots()
            self._connect()
            undo.callback(self.group.stop)
            self.group.start(self.spin_ns)
            self._resources = undo.pop_all()

    def _open_transport(self, rank: int, device: LogicalDevice, wanted: str, *, copies: bool) -> None:
        """Open how a rank reaches the staging memory, and what it has of its own beside that."""
        undo = self._of_rank[rank]
        transport = choice.transport(device, self.arena, wanted, copies)
        undo.callback(transport.close)
        self.transports.append(transport)
        beside = [self.own_slots] * copies + [self.aside] * (env.get().slow_links > 1)
        for listed in beside:
            listed.append(OwnSlots(device, self.arena.memory.nbytes))
            undo.callback(listed[-1].close)

    def _open_carriers(self, transports: Sequence[str], undo: ExitStack) -> int:
        """Open what carries slots between the cards, where something does; return how many slots there are in all."""
        shared = self.arena.nslots * (1 + len(self.own_slots))
        copies, alone = bool(self.own_slots), self.world is None
        wanted = choice.Wanted(tuple(transports), copies=copies, alone=alone)
        self.carriers, self._road = choice.carriers(self.devices, wanted, self.arena)
        if self.carriers is None:
            return shared
        undo.callback(self.carriers.close)
        return shared + self.carriers.nslots

    def _reach_others(self, world: World, undo: ExitStack) -> None:
        """Open the queues to and from other processes."""
        self.links = links.across(self._own_links, world)
        self.progress = Progress(world)
        undo.callback(self.progress.close)
        undo.callback(self._part)
        for other in world.division.others:
            self.places += [(world.division.ranks(other).start, f"{way} {world.channel.names[other]}") for way in _WAYS]
        self.queues += self.progress.hub.queues
        self.ports += [queue.port for queue in self.progress.hub.queues]
        self.queue_map = self.queue_map.with_others(len(self.progress.hub.queues))

    def _part(self) -> None:
        """End what carries slots; where MPI may still use them, they stay for the life of the process."""
        if self.progress is None:
            return
        if not self.progress.stop():
            self.arena.memory.forget()
            return
        for device in self.devices:
            device.borrowers.discard(self.progress)

    def _close_arena(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Free the arena, and tell the other processes: what keeps the rig from being opened, or that it is closed."""
        if self.world is not None and error is not None:
            self.world.fail(error)
        self.arena.close()
        if self.world is not None:
            self.world.close()

    @property
    def first(self) -> int:
        """The first of the own ranks."""
        return 0 if self.world is None else self.world.division.ranks().start

    def _leave(self) -> None:
        """Let the devices be closed without waiting for it."""
        for device in self.devices:
            device.users.discard(self)

    def _open_queues(self, copies: bool) -> None:
        self.places: list[tuple[int, str]] = []
        added = [device.copy_queues() if copies else [] for device in self.devices]
        self.queue_map = QueueMap.of([len(queues) for queues in added])
        self.queues: list[Queue | ErrandQueue] = [device.compute for device in self.devices]
        first = self.first
        self.places += [(first + rank, device.info.name) for rank, device in enumerate(self.devices)]
        for rank, queues in enumerate(added):
            self.queues += queues
            kinds = ("copies in", "copies out") if len(queues) > 1 else ("copies",)
            self.places += [(rank, f"{self.devices[rank].info.name} ({kind})") for kind in kinds[: len(queues)]]
        self.ports: list[Any] = [queue.port for queue in self.queues]

    def _pool(self, number: int) -> CommandPool:
        """Return the pool of a queue's programs: drivers keep much with each pool, and little with a command buffer."""
        rank, queue = self.queue_map.ranks[number], self.queues[number]
        assert isinstance(queue, Queue), "pools are made before the queues to other processes"
        pool = CommandPool(self.devices[rank].handle, queue.family, apart=True)
        self._of_rank[rank].callback(pool.close)
        return pool

    @property
    def nranks(self) -> int:
        """Number of ranks, in all processes."""
        return len(self.devices) if self.world is None else self.world.division.nranks

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot of the largest kind through which reductions go."""
        return self.slots.large.slot_nbytes

    @property
    def slots(self) -> Arena | Carriers:
        """What has the slots by which schedules are made."""
        return self.arena if self.carriers is None or self.carriers.grouping is not None else self.carriers

    @property
    def groups(self) -> tuple[int, ...] | None:
        """By rank the group within which slots are carried, ranks alone in groups of their own; None without such."""
        if self.carriers is None or self.carriers.grouping is None:
            return None
        groups = self.carriers.grouping.groups
        return tuple(len(groups) + rank if group is None else group for rank, group in enumerate(groups))

    @property
    def copies(self) -> bool:
        """True where programs may have their kernels work on copies of the slots."""
        return bool(self.own_slots) and self._trusts_copies

    def distrust_copies(self) -> None:
        """Use no copies of the slots from now on: a test found wrong data in them."""
        self._trusts_copies = False

    def _share_slots(self) -> None:
        if self.carriers is not None:
            self.carriers.connect(self.group)
        if self.progress is not None:
            self.progress.broken = self.group.error
        offsets, sizes = self.arena.layout()
        unshared = [0] * (len(offsets) * len(self.own_slots) + (self.carriers.nslots if self.carriers else 0))
        self.group.set_slots(self.arena.memory.address, offsets + unshared, sizes + unshared)
        for rank, transport in enumerate(self.transports):
            if transport.mirror:
                self.group.set_mapped(rank, transport.mirror)

    def _told_links(self) -> list[links.Link]:
        """Return the links as people are told of them: which road a pair takes, or why it takes no shorter one."""
        return [self._told_link(link) for link in self._own_links]

    def _told_link(self, link: links.Link) -> links.Link:
        if self.carriers is not None and self.carriers.joins(link.src, link.dst):
            return replace(link, kind=peer.NAME, reason=self._road)
        if self.carriers is not None or not self._road:
            return link
        return replace(link, reason=f"{link.reason}; not {peer.NAME}: {self._road}")

    def _connect(self) -> None:
        queues_of: dict[int, list[int]] = {rank: [] for rank in range(len(self.devices))}
        for queue, rank in enumerate(self.queue_map.ranks):
            if rank >= 0:
                queues_of[rank].append(queue)
        compute = [queue for queue in self.queues if isinstance(queue, Queue)]
        for own in queues_of.values():
            for dst, src in itertools.permutations(own, 2):
                self.group.set_native(dst, src, compute[src].timeline.handle)
        for link in self._own_links:
            for src in queues_of[link.src] if link.kind == links.NATIVE else ():
                shared = links.share(compute[src], self.devices[link.dst])
                self._of_rank[link.dst].callback(shared.close)
                for dst in queues_of[link.dst]:
                    self.group.set_native(dst, src, shared.handle)
        bridged = {link.dst for link in self._own_links if link.kind == links.BRIDGED}
        for number, errands in enumerate(self.queues):
            if isinstance(errands, ErrandQueue):
                self.group.set_local(number, errands.released)
                errands.tell(self.group, number)
        for rank in sorted(bridged if self.world is None else queues_of):
            for dst in queues_of[rank]:
                local = TimelineSemaphore(self.devices[rank].handle, host_only=True)
                self._of_rank[rank].callback(local.close)
                self.group.set_local(dst, local.handle)

    def reached(self) -> list[int]:
        """Return each queue's timeline value now.

        Raises:
            InvalidUsageError: a device is closed.
        """
        return [queue.reached for queue in self.queues]

    def values(self) -> list[int]:
        """Return each queue's timeline value, -1 for a device that is closed; it never raises."""
        values = []
        for queue in self.queues:
            try:
                values.append(queue.reached)
            except (InvalidUsageError, VulkanError):
                values.append(-1)
        return values

    def drained(self) -> None:
        """Do nothing where each queue's timeline can be read, which works after their devices' gates were shut.

        Raises:
            VulkanError: what a driver says.
        """
        for queue in self.queues:
            queue.timeline.value()

    def last(self) -> list[int]:
        """Return, by queue, the timeline value at which all submitted work is done."""
        return [queue.last for queue in self.queues]

    def bridge_counters(self) -> dict[str, Any]:
        """Return the bridge threads' counters, for ``stats`` and errors."""
        bridge = self.group.stats()
        by_rank = [0] * self.nranks
        for (rank, _), number in zip(self.places, bridge.pending_by_rank, strict=True):
            by_rank[rank] += number
        return {
            "bridges": bridge.bridges,
            "bridges_pending": bridge.pending,
            "bridges_pending_by_rank": by_rank,
            "bridge_spins": bridge.spins,
            "bridge_blocks": bridge.blocks,
            "bridge_copies": bridge.copies,
            "bridge_copied_bytes": bridge.copied_bytes,
            "bridge_latency_ns": {bucket_ns(index): n for index, n in enumerate(bridge.histogram) if n},
        }

    def bridge_error(self, result: int) -> VulkanError:
        """Return the typed error for the VkResult that stopped the bridge, or the submission of a launch's rest."""
        call, queue = self.group.failed()
        rank, name = self.places[queue]
        error = api.load().error(result, call, f"rank {rank}, {name}")
        error.rank = queue  # type: ignore[attr-defined]
        return error

    def transport_names(self) -> list[str]:
        """Return, by rank, how slots get to other ranks."""
        carriers = self.carriers
        return [
            peer.NAME if carriers is not None and carriers.serves(rank) else transport.name
            for rank, transport in enumerate(self.transports)
        ]

    def confirm(self) -> None:
        """Let the validation layer see that the work which the queues' timelines have passed is done."""
        for queue in self.queues:
            queue.confirm()

    def drain(self, values: Sequence[int], patience: float, look: Callable[[], object]) -> list[int]:
        """Wait for each queue's timeline value; return the late queues where none moved for ``patience`` seconds.

        Meanwhile ``look`` is called again and again.
        """
        return drain(self.queues, values, patience, look)

    def own_ranks(self, queues: Collection[int]) -> list[int]:
        """Return which of this process' devices have these queues, in the order of :attr:`devices`."""
        found = {self.queue_map.ranks[queue] for queue in queues}
        return sorted(rank for rank in found if rank >= 0)

    def abort(self, cause: BaseException | str) -> None:
        """Let everything parked run out, its data undefined, and tell the other processes why."""
        if self.progress is not None:
            self.progress.hub.halt()
            self.progress.cancel()
            for device in self.devices if self.progress.uses_arrays else ():
                device.lend(self.progress)
        if self.world is not None:  # soon: others are about to blame this process
            self.world.fail(cause)
        self.group.abort()
        if self.carriers is not None:
            self.carriers.abort()
        if self.progress is not None:
            self.progress.hub.empty()

    def abandon(self, late: Collection[int]) -> None:
        """Stop the bridge and free everything on all ranks but the ``late`` ones, which still use their memory.

        The pump's group stays, because its counters are read after a failure.
        """
        self.group.stop()
        if self.progress is not None:
            self.progress.stop()
        if self.carriers is not None:
            self.carriers.abandon(late)
        for rank, own in enumerate(self._of_rank):
            if rank not in late:
                own.close()
        self._leave()

    def close(self) -> None:
        """Stop the bridge and free everything; no submission of the group may be pending."""
        self._resources.close()
