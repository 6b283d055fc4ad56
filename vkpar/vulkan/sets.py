"""The descriptor sets that tapes name: what they bind, by numbers of memory, and how takes get theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkpar import env
from vkpar.errors import InvalidUsageError
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import ALIGNMENT, TEXEL
from vkpar.vulkan.memory.buffer import Buffer, BufferRange

_ELSEWHERE = -1  # the number of memory that is the same for all takes


class Place(NamedTuple):
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


Named = tuple[Place, int]  # where a range begins, and its bytes


class Places:
    """Memory whose place may differ from take to take, numbered in the order given.

    A range belongs to the buffer that it begins in: pieces of memory in use never overlap.
    """

    def __init__(self, memory: Sequence[Buffer] = ()) -> None:
        self._by_handle: dict[Any, list[tuple[int, int, int]]] = {}
        for number, buffer in enumerate(memory):
            piece = (buffer.offset, buffer.offset + buffer.reserved, number)
            self._by_handle.setdefault(buffer.handle, []).append(piece)

    def find(self, item: BufferRange) -> Place:
        """Return where ``item`` begins."""
        for start, end, number in self._by_handle.get(item.buffer, ()):
            if start <= item.offset < end:
                return Place(number, item.offset - start)
        return Place(_ELSEWHERE, item.offset, item.buffer)


class NamedSets:
    """The descriptor sets that tapes over the same memory name, each once."""

    def __init__(self, vk: api.Api, device: Any) -> None:
        self._vk, self._device = vk, device
        self._cells: dict[tuple[Any, ...], Any] = {}  # by what they name
        self._named: list[tuple[Any, list[Named], list[Named]]] = []
        self._alignment = ALIGNMENT if "alignment" in env.debug_checks() else 1
        self._made: Sets | None = None

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

    def sets(self) -> Sets | None:
        """Return all sets that were named so far; None for no set."""
        if self._made is None and self._named:
            self._made = Sets(self._vk, self._device, self._named, list(self._cells.values()))
        return self._made


class Sets:
    """The descriptor sets of a tape: how many of what a take needs, and what is written to them.

    Args:
        vk: the loader's door.
        device: the VkDevice.
        named: by set, its layout, the storage buffers that it names and the texel buffers, with their bytes.
        cells: by set, the C array that commands bind.
    """

    def __init__(
        self,
        vk: api.Api,
        device: Any,
        named: Sequence[tuple[Any, list[Named], list[Named]]],
        cells: list[Any],
    ) -> None:
        self._vk, self._device, self._cells = vk, device, cells
        ffi, c = vk.ffi, vk.vk
        buffers = [item for _, ranges, _ in named for item in ranges]
        self._views = [item for _, _, texels in named for item in texels]
        self._infos = ffi.new("VkDescriptorBufferInfo[]", [{"range": nbytes} for _, nbytes in buffers])
        self._places = [(self._infos[index], place) for index, (place, _) in enumerate(buffers)]
        self._texels = ffi.new("VkBufferView[]", len(self._views))
        self._layouts = ffi.new("VkDescriptorSetLayout[]", [layout for layout, _, _ in named])
        self._pool = _pool_info(vk, len(named), len(buffers), len(self._views))
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

    def bind(self, sets: Any) -> None:
        """Have the commands bind ``sets``, those of one take."""
        for index, cell in enumerate(self._cells):
            cell[0] = sets[index]

    def write(self, sets: Any, views: dict[Named, Any], memory: Sequence[Buffer]) -> None:
        """Have ``sets``, those of one take, name ``memory``; ``views`` are the take's, by place and bytes."""
        for info, place in self._places:
            info.buffer, info.offset = place.among(memory)
        if self._views:
            self._make_views(views, memory)
        for index, number in enumerate(self._targets):
            self._writes[index].dstSet = sets[number]
        self._vk.lib.vkUpdateDescriptorSets(self._device, len(self._targets), self._writes, 0, self._vk.ffi.NULL)

    def _make_views(self, views: dict[Named, Any], memory: Sequence[Buffer]) -> None:
        """View the texel buffers; of those that lie elsewhere than before, the old views go first."""
        for item in [item for item in views if item[0].handle is None]:
            self._vk.destroy("BufferView", self._device, views.pop(item))
        for index, item in enumerate(self._views):
            if item not in views:
                place, nbytes = item
                self._view.buffer, self._view.offset = place.among(memory)
                self._view.range = nbytes // TEXEL * TEXEL
                views[item] = self._vk.create("BufferView", self._device, self._view)
            self._texels[index] = views[item]


def _pool_info(vk: api.Api, sets: int, buffers: int, texels: int) -> Any:
    kinds = [
        (vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers),
        (vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, texels),
    ]
    sizes = [vk.struct("VkDescriptorPoolSize", type=kind, descriptorCount=number) for kind, number in kinds if number]
    return vk.struct("VkDescriptorPoolCreateInfo", maxSets=sets, poolSizeCount=len(sizes), pPoolSizes=sizes)
