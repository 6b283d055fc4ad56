"""Compute pipelines, made on first use and kept by their device."""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.vulkan import api, shader
from vkpar.vulkan.interface import reflect


class PipelineLayout:
    """Set 0 with ``bindings`` storage buffers and then ``texels`` texel buffers; ``push_nbytes`` of push constants.

    With ``pushes`` the buffers are named by vkCmdPushDescriptorSetKHR, else by a descriptor set.
    """

    def __init__(self, device: Any, bindings: int, push_nbytes: int, texels: int = 0, *, pushes: bool = False) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.push_nbytes, self.pushes = push_nbytes, pushes
        stage = vk.vk.VK_SHADER_STAGE_COMPUTE_BIT
        kinds = [vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER] * bindings
        kinds += [vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER] * texels
        entries = [
            vk.struct(
                "VkDescriptorSetLayoutBinding",
                binding=index,
                descriptorType=kind,
                descriptorCount=1,
                stageFlags=stage,
            )
            for index, kind in enumerate(kinds)
        ]
        flags = vk.vk.VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR if pushes else 0
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", flags=flags, bindingCount=len(entries), pBindings=entries)
        push = [vk.struct("VkPushConstantRange", stageFlags=stage, offset=0, size=push_nbytes)] if push_nbytes else []
        with ExitStack() as undo:
            self.set_layout = vk.create("DescriptorSetLayout", device, info)
            undo.callback(vk.destroy, "DescriptorSetLayout", device, self.set_layout)
            info = vk.struct(
                "VkPipelineLayoutCreateInfo",
                setLayoutCount=1,
                pSetLayouts=[self.set_layout],
                pushConstantRangeCount=len(push),
                pPushConstantRanges=push,
            )
            self.handle = vk.create("PipelineLayout", device, info)
            undo.pop_all()

    def close(self) -> None:
        """Destroy the layouts."""
        self._vk.destroy("PipelineLayout", self._device, self.handle)
        self._vk.destroy("DescriptorSetLayout", self._device, self.set_layout)


class Pipeline:
    """A compute pipeline.

    Attributes:
        layout: its :class:`PipelineLayout`.
        spirv: its module.
    """

    def __init__(
        self, device: Any, spirv: bytes, entry: str, layout: PipelineLayout, constants: Sequence[int] = ()
    ) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.layout = layout
        self.spirv = spirv
        code = vk.ffi.new("uint32_t[]", list(struct.unpack(f"<{len(spirv) // 4}I", spirv)))
        info = vk.struct("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        module = vk.create("ShaderModule", device, info)
        try:
            self.handle = self._create(module, entry, constants)
        finally:
            vk.destroy("ShaderModule", device, module)

    def _create(self, module: Any, entry: str, constants: Sequence[int]) -> Any:
        vk = self._vk
        entries = [
            vk.struct("VkSpecializationMapEntry", constantID=index, offset=4 * index, size=4)
            for index in range(len(constants))
        ]
        data = struct.pack(f"<{len(constants)}i", *constants)
        specialization = vk.struct(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=entries,
            dataSize=len(data),
            pData=data,
        )
        stage = vk.struct(
            "VkPipelineShaderStageCreateInfo",
            stage=vk.vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName=entry,
            pSpecializationInfo=specialization,
        )
        info = vk.struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self.layout.handle)
        made = vk.ffi.new("VkPipeline[1]")
        null = vk.ffi.NULL
        vk.check(vk.lib.vkCreateComputePipelines(self._device, null, 1, info, null, made), "vkCreateComputePipelines")
        vk.count("Pipeline", 1)
        return made[0]

    @functools.cached_property
    def read_only(self) -> frozenset[int]:
        """The bindings that it cannot write."""
        return reflect(self.spirv).read_only

    def close(self) -> None:
        """Destroy the pipeline; no pending submission may use it."""
        self._vk.destroy("Pipeline", self._device, self.handle)


class PipelineCache:
    """The pipelines of one device, by kernel, entry, constants and layout."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._layouts: dict[tuple[int, int, int, bool], PipelineLayout] = {}
        self._pipelines: dict[tuple[Any, ...], Pipeline] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._pipelines)

    def shipped(
        self,
        name: str,
        bindings: int,
        push_nbytes: int,
        constants: tuple[int, ...] = (),
        texels: int = 0,
        *,
        pushes: bool = False,
    ) -> Pipeline:
        """Return the pipeline of the built-in kernel ``name``."""
        return self.get(name, shader.shipped(name), "main", bindings, push_nbytes, constants, texels, pushes=pushes)

    def get(
        self,
        key: Any,
        spirv: bytes,
        entry: str,
        bindings: int,
        push_nbytes: int,
        constants: tuple[int, ...] = (),
        texels: int = 0,
        *,
        pushes: bool = False,
    ) -> Pipeline:
        """Return the pipeline known by ``key`` and the rest, made at the first call."""
        full = (key, entry, bindings, push_nbytes, constants, texels, pushes)
        with self._lock:
            pipeline = self._pipelines.get(full)
            if pipeline is None:
                layout = self.layout(bindings, push_nbytes, texels, pushes=pushes)
                pipeline = self._pipelines[full] = Pipeline(self._device, spirv, entry, layout, constants)
            return pipeline

    def layout(self, bindings: int, push_nbytes: int, texels: int = 0, *, pushes: bool = False) -> PipelineLayout:
        """Return the layout of so many storage buffers, then texel buffers, and bytes of push constants."""
        key = (bindings, push_nbytes, texels, pushes)
        with self._lock:
            if key not in self._layouts:
                self._layouts[key] = PipelineLayout(self._device, bindings, push_nbytes, texels, pushes=pushes)
            return self._layouts[key]

    def close(self) -> None:
        """Destroy everything; nothing may be pending."""
        with self._lock:
            while self._pipelines:
                self._pipelines.popitem()[1].close()
            while self._layouts:
                self._layouts.popitem()[1].close()
