"""Command buffers written down once, and recorded as often as wanted, each time over other memory.

A *tape* holds the commands of one queue family's command buffers and the descriptor sets that they bind, as C structs
that are ready for the driver. What lies in the memory that :class:`Places` numbers is named by number and byte there.
A *take* is one recording: its command buffers and sets, in pools of its own. To record a take anew over other memory
costs one call of the driver's a command, and nothing that Python has to work out.

Takes of a tape, and of tapes that :meth:`Tape.another` returned, share structs, so that two threads must not record
them at the same time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar import env
from vkpar.errors import InvalidUsageError
from vkpar.vulkan import api
from vkpar.vulkan.command import Command, CommandBuffer, CommandPool, pool_info
from vkpar.vulkan.machine.physical import ALIGNMENT, TEXEL
from vkpar.vulkan.memory.buffer import Buffer, BufferRange

_ELSEWHERE = -1  # the number of memory that is the same for all takes


class _Place(NamedTuple):
    """Byte ``start`` of numbered memory, or of the VkBuffer ``handle`` where the memory has no number."""

    number: int
    start: int
    handle: Any = None

    def among(self, memory: Sequence[Buffer]) -> tuple[Any, int]:
        """Return the VkBuffer and the byte in it, ``memory`` being what the numbers stand for."""
        if self.handle is not None:
            return self.handle, self.start
        buffer = memory[self.number]
        return buffer.handle, buffer.offset + self.start


_Named = tuple[_Place, int]  # where a range begins, and its bytes


class Noted(NamedTuple):
    """What was noted of a command buffer, and of each memory that it speaks of the VkBuffer, the byte and the bytes."""

    what: Any
    places: tuple[tuple[Any, int, int], ...]


class Places:
    """Memory whose place may differ from take to take, numbered in the order given.

    A range belongs to the buffer that it begins in: pieces of memory in use never overlap.
    """

    def __init__(self, memory: Sequence[Buffer] = ()) -> None:
        self._by_handle: dict[Any, list[tuple[int, int, int]]] = {}
        for number, buffer in enumerate(memory):
            piece = (buffer.offset, buffer.offset + buffer.reserved, number)
            self._by_handle.setdefault(buffer.handle, []).append(piece)

    def find(self, item: BufferRange) -> _Place:
        """Return where ``item`` begins."""
        for start, end, number in self._by_handle.get(item.buffer, ()):
            if start <= item.offset < end:
                return _Place(number, item.offset - start)
        return _Place(_ELSEWHERE, item.offset, item.buffer)


class TapedCommands(CommandBuffer):
    """Writes down what is recorded, in ``commands``, in place of giving it to a driver."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(None)
        self._tape = tape
        self.commands: list[Command] = []

    def _append(self, function: Any, *arguments: Any) -> None:
        self.commands.append((function, arguments))

    def _extend(self, commands: Sequence[Command]) -> None:
        self.commands += commands

    def record_copy(self, source: BufferRange, target: BufferRange) -> None:
        """Copy ``source`` to ``target``, of equal length; any byte offset will do."""
        region = self._vk.ffi.new("VkBufferCopy*", {"size": source.nbytes})
        arguments = [None, None, 1, region]
        self._tape.note_copy(arguments, source, target)
        self.commands.append((self._vk.lib.vkCmdCopyBuffer, arguments))


class Tape:
    """The command buffers of one queue family of one device, written down.

    Args:
        device: the VkDevice.
        pool: what takes have their command buffers from, which live apart there.
        places: the memory that may differ.
        named: the sets that tapes beside this one name.
    """

    def __init__(
        self, device: Any, pool: CommandPool, places: Places | None = None, named: _NamedSets | None = None
    ) -> None:
        self._vk = api.load()
        self._device = device
        self._pool = pool
        self._places = places or Places()
        self._buffers: list[list[Command]] = []
        self._copies: list[tuple[list[Any], _Place, _Place]] = []
        self._named = named or _NamedSets(self._vk, device)
        self._sets: _Sets | None = None
        # by command buffer: what was noted, the memory, the first of its kernels' commands and the end of these
        self._notes: dict[int, tuple[object, list[_Named], tuple[int, int]]] = {}

    def another(self) -> Tape:
        """Return an empty tape beside this one: over the same memory, with sets that both name once."""
        return Tape(self._device, self._pool, self._places, self._named)

    def commands(self) -> TapedCommands:
        """Return the next command buffer, to write down what it does; it begins and ends by itself."""
        made = TapedCommands(self)
        self._buffers.append(made.commands)
        return made

    def note_copy(self, arguments: list[Any], source: BufferRange, target: BufferRange) -> None:
        """Note the arguments of a copy, which get their buffers and offsets at each take."""
        self._copies.append((arguments, self._places.find(source), self._places.find(target)))

    def descriptors(self, layout: Any, ranges: Sequence[BufferRange], texels: Sequence[BufferRange] = ()) -> Any:
        """Return a C array that holds, at each take, a set of ``layout`` that names ``ranges``, then ``texels``.

        The texel buffers have texels of 16 bytes.

        Raises:
            InvalidUsageError: ``VKPAR_DEBUG=alignment``, and a range begins elsewhere than every device can bind.
        """
        return self._named.cell(self._places, layout, ranges, texels)

    def note(self, what: object, places: Sequence[BufferRange], kernels: tuple[int, int]) -> None:
        """Note what the newest command buffer does, all of it, for those who put other kernels in place of its own.

        Args:
            what: is handed back as it is.
            places: memory that it speaks of.
            kernels: the number of the first command that does it, and that of the first one after them.
        """
        named = [(self._places.find(item), item.nbytes) for item in places]
        self._notes[len(self._buffers) - 1] = (what, named, kernels)

    def noted(self, number: int, memory: Sequence[Buffer]) -> Noted | None:
        """Return what was noted of command buffer ``number``; None where nothing was."""
        if number not in self._notes:
            return None
        what, named, _ = self._notes[number]
        return Noted(what, tuple((*place.among(memory), nbytes) for place, nbytes in named))

    def replay_around(self, number: int, handle: Any, *, after: bool) -> None:
        """Record what comes before, or ``after``, the kernels of command buffer ``number``, which were noted."""
        _, _, (first, end) = self._notes[number]
        commands = self._buffers[number]
        for function, arguments in commands[end:] if after else commands[:first]:
            function(handle, *arguments)

    def seal(self) -> None:
        """Make the tape ready for takes; nothing more is written down."""
        self._sets = self._named.sets()

    def take(self, memory: Sequence[Buffer]) -> Take:
        """Record everything over ``memory``, which stands for the numbers in turn; close the take after use.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        return Take(self, self._device, self._pool, self._sets, len(self._buffers), memory)

    def lay(self, memory: Sequence[Buffer]) -> Take:
        """Return a take without command buffers of its own: :meth:`place` and :meth:`replay` record it into others.

        Raises:
            OutOfMemoryError: no room for descriptor sets.
        """
        return Take(self, self._device, self._pool, self._sets, 0, memory)

    def place(self, take: Take, memory: Sequence[Buffer], *, again: bool = False) -> None:
        """Have the commands name ``memory`` and the sets of ``take``, until the next call.

        Args:
            take: no set of it is in use, but for ``again``.
            memory: what the numbers stand for.
            again: the sets name that memory from an earlier call.
        """
        for copy, source, target in self._copies:
            region = copy[3]
            copy[0], region.srcOffset = source.among(memory)
            copy[1], region.dstOffset = target.among(memory)
        if self._sets is not None:
            self._sets.bind(take)
            if not again:
                self._sets.write(take, memory)

    def replay(self, number: int, handle: Any) -> None:
        """Record what was written down for command buffer ``number`` into another one, which was begun."""
        for function, arguments in self._buffers[number]:
            function(handle, *arguments)

    def record(self, take: Take, memory: Sequence[Buffer]) -> None:
        """Record everything into the empty command buffers of ``take``, whose sets are none in use.

        Raises:
            OutOfMemoryError: no room for what is recorded.
        """
        self.place(take, memory)
        begin, end, check = self._vk.lib.vkBeginCommandBuffer, self._vk.lib.vkEndCommandBuffer, self._vk.check
        info = _begin_info()
        for number, handle in enumerate(take.handles):
            check(begin(handle, info), "vkBeginCommandBuffer")
            self.replay(number, handle)
            check(end(handle), "vkEndCommandBuffer")


@functools.cache
def _begin_info() -> Any:
    vk = api.load()
    return vk.struct("VkCommandBufferBeginInfo", flags=vk.vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT)


class _NamedSets:
    """The descriptor sets that tapes over the same memory name, each once."""

    def __init__(self, vk: api.Api, device: Any) -> None:
        self._vk, self._device = vk, device
        self._cells: dict[tuple[Any, ...], Any] = {}  # by what they name
        self._named: list[tuple[Any, list[_Named], list[_Named]]] = []
        self._alignment = ALIGNMENT if "alignment" in env.debug_checks() else 1
        self._made: _Sets | None = None

    def cell(self, places: Places, layout: Any, ranges: Sequence[BufferRange], texels: Sequence[BufferRange]) -> Any:
        """Return a C array for a set; raises as :meth:`Tape.descriptors`."""
        for item in (*ranges, *texels):
            if item.offset % self._alignment:
                raise InvalidUsageError(f"VKPAR_DEBUG=alignment: a binding at byte {item.offset} of a buffer")
        named = [(places.find(item), item.nbytes) for item in ranges]
        viewed = [(places.find(item), item.nbytes) for item in texels]
        key = (layout, tuple(named), tuple(viewed))
        if key not in self._cells:
            self._cells[key] = self._vk.ffi.new("VkDescriptorSet[1]")
            self._named.append((layout, named, viewed))
            self._made = None
        return self._cells[key]

    def sets(self) -> _Sets | None:
        """Return all sets that were named so far; None for no set."""
        if self._made is None and self._named:
            self._made = _Sets(self._vk, self._device, self._named, list(self._cells.values()))
        return self._made


class _Sets:
    """The descriptor sets of a tape: how many of what a take needs, and what is written to them.

    Args:
        vk: the loader's door.
        device: the VkDevice.
        named: by set, its layout, the storage buffers that it names and the texel buffers, with their bytes.
        cells: by set, the C array that commands bind.
    """

    def __init__(
        self, vk: api.Api, device: Any, named: Sequence[tuple[Any, list[_Named], list[_Named]]], cells: list[Any]
    ) -> None:
        self._vk, self._device, self._cells = vk, device, cells
        ffi, c = vk.ffi, vk.vk
        buffers = [item for _, ranges, _ in named for item in ranges]
        self._views = [item for _, _, texels in named for item in texels]
        self._infos = ffi.new("VkDescriptorBufferInfo[]", [{"range": nbytes} for _, nbytes in buffers])
        self._places = [(self._infos[index], place) for index, (place, _) in enumerate(buffers)]
        self._texels = ffi.new("VkBufferView[]", len(self._views))
        self._layouts = ffi.new("VkDescriptorSetLayout[]", [layout for layout, _, _ in named])
        self._pool = pool_info(vk, len(named), len(buffers), len(self._views))
        self._allocation = vk.struct("VkDescriptorSetAllocateInfo", descriptorSetCount=len(named))
        self._allocation.pSetLayouts = self._layouts
        writes: list[dict[str, Any]] = []
        self._targets: list[int] = []  # by write, the number of the set
        first = view = 0
        for number, (_, ranges, texels) in enumerate(named):
            storage = {"descriptorType": c.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, "pBufferInfo": self._infos + first}
            writes.append({"descriptorCount": len(ranges), **storage})
            for binding, _ in enumerate(texels, start=len(ranges)):
                kind = {"descriptorType": c.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER}
                writes.append(
                    {"dstBinding": binding, "descriptorCount": 1, **kind, "pTexelBufferView": self._texels + view}
                )
                view += 1
            self._targets += [number] * (1 + len(texels))
            first += len(ranges)
        for write in writes:
            write["sType"] = c.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
        self._writes = ffi.new("VkWriteDescriptorSet[]", writes)
        self._view = vk.struct("VkBufferViewCreateInfo", format=c.VK_FORMAT_R32G32B32A32_UINT)

    def pool(self) -> Any:
        """Return a new VkDescriptorPool with room for one take's sets."""
        return self._vk.create("DescriptorPool", self._device, self._pool)

    def allocate(self, pool: Any) -> Any:
        """Return a C array of the sets of one take."""
        vk = self._vk
        self._allocation.descriptorPool = pool
        made = vk.ffi.new("VkDescriptorSet[]", len(self._cells))
        vk.check(vk.lib.vkAllocateDescriptorSets(self._device, self._allocation, made), "vkAllocateDescriptorSets")
        return made

    def bind(self, take: Take) -> None:
        """Have the commands bind the sets of ``take``."""
        for index, cell in enumerate(self._cells):
            cell[0] = take.sets[index]

    def write(self, take: Take, memory: Sequence[Buffer]) -> None:
        """Have the sets of ``take`` name ``memory``."""
        sets = take.sets
        for info, place in self._places:
            info.buffer, info.offset = place.among(memory)
        if self._views:
            self._make_views(take, memory)
        for index, number in enumerate(self._targets):
            self._writes[index].dstSet = sets[number]
        self._vk.lib.vkUpdateDescriptorSets(self._device, len(self._targets), self._writes, 0, self._vk.ffi.NULL)

    def _make_views(self, take: Take, memory: Sequence[Buffer]) -> None:
        """Have ``take`` view its texel buffers; of those that lie elsewhere than before, the old views go first."""
        views = take.views
        for item in [item for item in views if item[0].handle is None]:
            self._vk.destroy("BufferView", self._device, views.pop(item))
        for index, item in enumerate(self._views):
            if item not in views:
                place, nbytes = item
                self._view.buffer, self._view.offset = place.among(memory)
                self._view.range = nbytes // TEXEL * TEXEL
                views[item] = self._vk.create("BufferView", self._device, self._view)
            self._texels[index] = views[item]


class Take:
    """One recording of a tape.

    Attributes:
        handles: its command buffers, in the order in which the tape has them.
        sets: its descriptor sets; ``views``: the texel buffers that they name, by place and bytes.
    """

    def __init__(
        self, tape: Tape, device: Any, pool: CommandPool, sets: _Sets | None, number: int, memory: Sequence[Buffer]
    ) -> None:
        self._vk = api.load()
        self._device = device
        self.views: dict[_Named, Any] = {}
        self.sets: Any = None
        self._sets_pool: Any = None
        self._pool = pool
        self.handles: list[Any] = []
        try:
            self.handles = pool.allocate_many(number) if number else []
            if sets is not None:
                self._sets_pool = sets.pool()
                self.sets = sets.allocate(self._sets_pool)
            if number:
                tape.record(self, memory)
        except BaseException:
            self.close()
            raise

    def record_over(self, tape: Tape, memory: Sequence[Buffer]) -> None:
        """Record ``tape``, of which it is a take, anew over ``memory``; no submission of it may be pending.

        Raises:
            OutOfMemoryError: no room for what is recorded; the take can only be closed then.
        """
        tape.record(self, memory)

    def close(self) -> None:
        """Free the command buffers and the sets; none may be pending."""
        pool, self._sets_pool = self._sets_pool, None
        if pool is not None:
            self._vk.destroy("DescriptorPool", self._device, pool)
        while self.views:
            self._vk.destroy("BufferView", self._device, self.views.popitem()[1])
        handles, self.handles = self.handles, []
        self._pool.free(handles)
