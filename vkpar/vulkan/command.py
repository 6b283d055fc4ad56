"""Command buffers and descriptor sets: what is recorded, never executed here."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkpar import env
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import ALIGNMENT, Limits
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer, paired

_FOREIGN = 0xFFFFFFFD  # VK_QUEUE_FAMILY_FOREIGN_EXT
Command = tuple[Any, Sequence[Any]]  # a function of Vulkan's, and what follows the command buffer in its arguments
_REGIONS = 256  # that one call copies: the validation layer compares all of a call's regions with each other


@functools.cache
def _pool_info(family: int, apart: bool) -> Any:
    vk = api.load()
    flags = vk.vk.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT if apart else 0
    return vk.struct("VkCommandPoolCreateInfo", queueFamilyIndex=family, flags=flags)


class CommandPool:
    """Command buffers of one queue family, freed together, and by one thread at a time.

    Where they live ``apart``, each can also be freed and begun anew by itself.
    """

    def __init__(self, device: Any, family: int, *, apart: bool = False) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.handle = vk.create("CommandPool", device, _pool_info(family, apart))

    def allocate(self) -> CommandBuffer:
        """Return a new, empty command buffer."""
        return CommandBuffer(self.allocate_many(1)[0])

    def allocate_many(self, number: int) -> list[Any]:
        """Return the handles of so many new, empty command buffers."""
        vk = self._vk
        info = vk.ffi.new(
            "VkCommandBufferAllocateInfo*",
            {
                "sType": vk.vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                "commandPool": self.handle,
                "level": vk.vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                "commandBufferCount": number,
            },
        )
        made = vk.ffi.new("VkCommandBuffer[]", number)
        vk.check(vk.lib.vkAllocateCommandBuffers(self._device, info, made), "vkAllocateCommandBuffers")
        return vk.ffi.unpack(made, number)

    def free(self, handles: Sequence[Any]) -> None:
        """Free some command buffers, of which none may be pending; nothing where the pool is closed."""
        if self.handle is not None and handles:
            made = self._vk.ffi.new("VkCommandBuffer[]", list(handles))
            self._vk.lib.vkFreeCommandBuffers(self._device, self.handle, len(handles), made)

    def reset(self) -> None:
        """Empty all its command buffers; none may be pending."""
        self._vk.check(self._vk.lib.vkResetCommandPool(self._device, self.handle, 0), "vkResetCommandPool")

    def close(self) -> None:
        """Free the pool with its command buffers; none may be pending."""
        handle, self.handle = self.handle, None  # an interrupted close must not free it twice
        if handle is not None:
            self._vk.destroy("CommandPool", self._device, handle)


@functools.cache
def _barrier(source: int, target: int) -> Any:
    return api.load().struct("VkMemoryBarrier", srcAccessMask=source, dstAccessMask=target)


class CommandBuffer:
    """A VkCommandBuffer; ``record_*`` methods append to it."""

    def __init__(self, handle: Any) -> None:
        self._vk = api.load()
        self.handle = handle

    def _append(self, function: Any, *arguments: Any) -> None:
        """Record one command: ``function``, of Vulkan's, with what follows the command buffer in its ``arguments``."""
        function(self.handle, *arguments)

    def _extend(self, commands: Sequence[Command]) -> None:
        """Record several commands."""
        for function, arguments in commands:
            function(self.handle, *arguments)

    def begin(self) -> None:
        """Start over, for a single submission."""
        flags = self._vk.vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT
        info = self._vk.struct("VkCommandBufferBeginInfo", flags=flags)
        self._vk.check(self._vk.lib.vkBeginCommandBuffer(self.handle, info), "vkBeginCommandBuffer")

    def end(self) -> None:
        """Finish recording."""
        self._vk.check(self._vk.lib.vkEndCommandBuffer(self.handle), "vkEndCommandBuffer")

    def _record_barriers(
        self, stages: tuple[int, int], accesses: tuple[int, int], transfers: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Record one barrier for all memory, and ownership transfers with it: apart they would wait twice."""
        ffi = self._vk.ffi
        buffers = ffi.new("VkBufferMemoryBarrier[]", transfers) if transfers else ffi.NULL
        self._append(
            self._vk.lib.vkCmdPipelineBarrier, *stages, 0, 1, _barrier(*accesses), len(transfers), buffers, 0, ffi.NULL
        )

    def record_order(self) -> None:
        """Order everything before on the queue against everything after."""
        c = self._vk.vk
        every = c.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
        self._record_barriers(
            (every, every), (c.VK_ACCESS_MEMORY_WRITE_BIT, c.VK_ACCESS_MEMORY_READ_BIT | c.VK_ACCESS_MEMORY_WRITE_BIT)
        )

    def record_kernel_order(self) -> None:
        """Order the kernels before on the queue against those after, and nothing else."""
        c = self._vk.vk
        stage, written = c.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, c.VK_ACCESS_SHADER_WRITE_BIT
        self._record_barriers((stage, stage), (written, written | c.VK_ACCESS_SHADER_READ_BIT))

    def record_acquire(self, shared: SharedBuffer, ranges: Sequence[BufferRange]) -> None:
        """Order what follows against earlier work; make what others wrote to ``ranges`` of ``shared`` visible to it.

        It orders kernels and copies, all that a program consists of: wider scopes take longer.
        """
        c = self._vk.vk
        work, accesses = self._work(shared)
        stages, written = work, accesses
        if ranges:
            stages, written = work | c.VK_PIPELINE_STAGE_HOST_BIT, accesses | c.VK_ACCESS_HOST_WRITE_BIT
        transfers = self._transfers(shared, (_FOREIGN, shared.family), (0, accesses), ranges)
        self._record_barriers((stages, work), (written, accesses), transfers)

    def record_release(self, shared: SharedBuffer, ranges: Sequence[BufferRange]) -> None:
        """Make what this queue wrote to ``ranges`` of ``shared`` available to the host and to other devices."""
        if not ranges:
            return
        c = self._vk.vk
        work, accesses = self._work(shared)
        transfers = self._transfers(shared, (shared.family, _FOREIGN), (accesses, 0), ranges)
        stages = work | c.VK_PIPELINE_STAGE_HOST_BIT
        self._record_barriers((work, stages), (accesses, c.VK_ACCESS_HOST_READ_BIT), transfers)

    def record_host_release(self, *, rewrites: bool = False) -> None:
        """Make what this queue wrote available to the host, which may overwrite it if it ``rewrites``."""
        c = self._vk.vk
        self._record_barriers(
            (c.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, c.VK_PIPELINE_STAGE_HOST_BIT),
            (c.VK_ACCESS_MEMORY_WRITE_BIT, c.VK_ACCESS_HOST_READ_BIT | (c.VK_ACCESS_HOST_WRITE_BIT if rewrites else 0)),
        )

    def _work(self, shared: SharedBuffer) -> tuple[int, int]:
        """Return the stages of copies and, where the family runs them, of kernels, and their accesses."""
        c = self._vk.vk
        stages = c.VK_PIPELINE_STAGE_TRANSFER_BIT
        accesses = c.VK_ACCESS_TRANSFER_READ_BIT | c.VK_ACCESS_TRANSFER_WRITE_BIT
        if shared.kernels:
            stages |= c.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
            accesses |= c.VK_ACCESS_SHADER_READ_BIT | c.VK_ACCESS_SHADER_WRITE_BIT
        return stages, accesses

    def _transfers(
        self, shared: SharedBuffer, families: tuple[int, int], accesses: tuple[int, int], ranges: Sequence[BufferRange]
    ) -> list[dict[str, Any]]:
        """Return the ownership transfers of ``ranges`` that ``shared`` asks for."""
        if not shared.foreign:
            return []
        return [
            {
                "sType": self._vk.vk.VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER,
                "srcAccessMask": accesses[0],
                "dstAccessMask": accesses[1],
                "srcQueueFamilyIndex": families[0],
                "dstQueueFamilyIndex": families[1],
                "buffer": item.buffer,
                "offset": item.offset,
                "size": item.nbytes,
            }
            for item in ranges
        ]

    def record_copy(self, source: BufferRange, target: BufferRange) -> None:
        """Copy ``source`` to ``target``, of equal length; any byte offset will do."""
        region = self._vk.ffi.new(
            "VkBufferCopy*", {"srcOffset": source.offset, "dstOffset": target.offset, "size": source.nbytes}
        )
        self._append(self._vk.lib.vkCmdCopyBuffer, source.buffer, target.buffer, 1, region)

    def record_fill(self, target: BufferRange, word: int) -> None:
        """Fill ``target``, whole 32-bit words, with copies of one."""
        self._append(self._vk.lib.vkCmdFillBuffer, target.buffer, target.offset, target.nbytes, word)

    def record_copies(self, sources: Sequence[BufferRange], targets: Sequence[BufferRange]) -> None:
        """Copy the bytes of ``sources`` to those of ``targets``, as many: neither need be cut as the other is."""
        for source, target in paired(sources, targets):
            self.record_copy(source, target)

    def record_regions(self, source: Any, target: Any, regions: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        """Copy parts of a VkBuffer to another one: rows of offset in ``source``, offset in ``target``, bytes."""
        rows = self._vk.ffi.from_buffer("VkBufferCopy[]", np.ascontiguousarray(regions))
        for start in range(0, len(regions), _REGIONS):
            number = min(_REGIONS, len(regions) - start)
            self._append(self._vk.lib.vkCmdCopyBuffer, source, target, number, rows + start)

    def record_dispatch(self, pipeline: Any, descriptors: Any, push: bytes, groups: tuple[int, int, int]) -> None:
        """Run ``groups`` work-groups of ``pipeline`` on the buffers that ``descriptors`` names."""
        self.record_bound(pipeline, self._vk.ffi.new("VkDescriptorSet[1]", [descriptors]), push, groups)

    def record_bound(self, pipeline: Any, sets: Any, push: bytes, groups: tuple[int, int, int]) -> None:
        """Do what :meth:`record_dispatch` does, with the descriptor set that the C array ``sets`` holds."""
        vk, c = self._vk, self._vk.vk
        compute, layout = c.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.layout.handle
        stage = c.VK_SHADER_STAGE_COMPUTE_BIT
        pushed = (vk.lib.vkCmdPushConstants, (layout, stage, 0, len(push), vk.ffi.from_buffer(push)))
        self._extend(
            [
                (vk.lib.vkCmdBindPipeline, (compute, pipeline.handle)),
                (vk.lib.vkCmdBindDescriptorSets, (compute, layout, 0, 1, sets, 0, vk.ffi.NULL)),
                *([pushed] if push else []),
                (vk.lib.vkCmdDispatch, groups),
            ]
        )

    def record_reset(self, queries: Any, first: int, number: int) -> None:
        """Empty ``number`` queries of the VkQueryPool ``queries``: each is filled once after that."""
        self._append(self._vk.lib.vkCmdResetQueryPool, queries, first, number)

    def record_timestamp(self, queries: Any, index: int) -> None:
        """Write the device's counter once everything before on the queue is done."""
        every = self._vk.vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
        self._append(self._vk.lib.vkCmdWriteTimestamp, every, queries, index)


def check_dispatch(limits: Limits, label: str, ranges: Sequence[BufferRange], groups: tuple[int, int, int]) -> None:
    """Refuse ranges that a kernel cannot bind, and numbers of work-groups that a dispatch cannot have.

    Raises:
        InvalidUsageError: a number of work-groups above the device's limit, or a range that begins where none may.
        UnsupportedError: a range above the device's limit.
    """
    for item in ranges:
        if item.nbytes > limits.max_storage_buffer_range:
            raise UnsupportedError(
                f"a kernel on {label} can bind {limits.max_storage_buffer_range} bytes (maxStorageBufferRange), "
                f"not {item.nbytes}"
            )
        if item.offset % limits.min_storage_buffer_offset_alignment:
            raise InvalidUsageError(
                f"an array that starts at byte {item.offset} of its buffer cannot be bound on {label}: the offset must "
                f"be a multiple of {limits.min_storage_buffer_offset_alignment} (minStorageBufferOffsetAlignment)"
            )
    if any(wanted > most for wanted, most in zip(groups, limits.max_workgroup_count, strict=True)):
        raise InvalidUsageError(f"{groups} work-groups; {label} allows {limits.max_workgroup_count}")


def pool_info(vk: api.Api, sets: int, buffers: int, texels: int) -> Any:
    """Return the VkDescriptorPoolCreateInfo of so many sets, with so many storage and texel buffers in all."""
    kinds = [
        (vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers),
        (vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, texels),
    ]
    sizes = [vk.struct("VkDescriptorPoolSize", type=kind, descriptorCount=number) for kind, number in kinds if number]
    return vk.struct("VkDescriptorPoolCreateInfo", maxSets=sets, poolSizeCount=len(sizes), pPoolSizes=sizes)


class DescriptorPool:
    """Descriptor sets of storage buffers; a set is written once, at its allocation."""

    def __init__(self, device: Any, sets: int, descriptors: int) -> None:
        vk = self._vk = api.load()
        self._device = device
        self._alignment = ALIGNMENT if "alignment" in env.debug_checks() else 1
        self.handle = vk.create("DescriptorPool", device, pool_info(vk, sets, descriptors, 0))

    def allocate(self, layout: Any, ranges: Sequence[BufferRange]) -> Any:
        """Return a set of ``layout`` that names ``ranges`` in binding order."""
        vk = self._vk
        info = vk.struct(
            "VkDescriptorSetAllocateInfo", descriptorPool=self.handle, descriptorSetCount=1, pSetLayouts=[layout]
        )
        for item in ranges:
            if item.offset % self._alignment:
                raise InvalidUsageError(f"VKPAR_DEBUG=alignment: a binding at byte {item.offset} of a buffer")
        made = vk.ffi.new("VkDescriptorSet[1]")
        vk.check(vk.lib.vkAllocateDescriptorSets(self._device, info, made), "vkAllocateDescriptorSets")
        if ranges:
            self._write(made[0], ranges)
        return made[0]

    def _write(self, descriptors: Any, ranges: Sequence[BufferRange]) -> None:
        vk = self._vk
        buffers = vk.ffi.new(
            "VkDescriptorBufferInfo[]",
            [{"buffer": item.buffer, "offset": item.offset, "range": item.nbytes} for item in ranges],
        )
        write = vk.struct(
            "VkWriteDescriptorSet",
            dstSet=descriptors,
            dstBinding=0,
            descriptorCount=len(ranges),
            descriptorType=vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            pBufferInfo=buffers,
        )
        vk.lib.vkUpdateDescriptorSets(self._device, 1, write, 0, vk.ffi.NULL)

    def reset(self) -> None:
        """Free all sets; none may be in use by a pending submission."""
        self._vk.check(self._vk.lib.vkResetDescriptorPool(self._device, self.handle, 0), "vkResetDescriptorPool")

    def close(self) -> None:
        """Destroy the pool with its sets."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._vk.destroy("DescriptorPool", self._device, handle)
