"""Compute pipelines, made on first use and kept by their device."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from vkpar.vulkan import api
from vkpar.vulkan.pipelines import shader


class PipelineLayout:
    """Set 0 with ``bindings`` storage buffers and then ``texels`` texel buffers; ``push_nbytes`` of push constants."""

    def __init__(self, device: Any, bindings: int, push_nbytes: int, texels: int = 0) -> None:
        vk = self._vk = api.load()
        self._device = device
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
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", bindingCount=len(entries), pBindings=entries)
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
    """

    def __init__(
        self, device: Any, spirv: bytes, entry: str, layout: PipelineLayout, constants: Sequence[int] = ()
    ) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.layout = layout
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
        null, made = vk.ffi.NULL, vk.making("Pipeline", self._device)
        return vk.make(made, "vkCreateComputePipelines", self._device, null, 1, info, null)

    def close(self) -> None:
        """Destroy the pipeline; no pending submission may use it."""
        self._vk.destroy("Pipeline", self._device, self.handle)


class PipelineCache:
    """The pipelines of one device, by kernel, entry, constants and layout."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._layouts: dict[tuple[int, int, int], PipelineLayout] = {}
        self._pipelines: dict[tuple[Any, ...], Pipeline] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._pipelines)

    def shipped(
        self, name: str, bindings: int, push_nbytes: int, constants: tuple[int, ...] = (), texels: int = 0
    ) -> Pipeline:
        """Return the pipeline of the built-in kernel ``name``."""
        return self.get(name, shader.shipped(name), "main", bindings, push_nbytes, constants, texels)

    def get(
        self,
        key: Any,
        spirv: bytes,
        entry: str,
        bindings: int,
        push_nbytes: int,
        constants: tuple[int, ...] = (),
        texels: int = 0,
    ) -> Pipeline:
        """Return the pipeline known by ``key`` and the rest, made at the first call."""
        full = (key, entry, bindings, push_nbytes, constants, texels)
        with self._lock:
            pipeline = self._pipelines.get(full)
            if pipeline is None:
                layout = self.layout(bindings, push_nbytes, texels)
                pipeline = self._pipelines[full] = Pipeline(self._device, spirv, entry, layout, constants)
            return pipeline

    def layout(self, bindings: int, push_nbytes: int, texels: int = 0) -> PipelineLayout:
        """Return the layout of so many storage buffers, then texel buffers, and bytes of push constants."""
        key = (bindings, push_nbytes, texels)
        with self._lock:
            if key not in self._layouts:
                self._layouts[key] = PipelineLayout(self._device, bindings, push_nbytes, texels)
            return self._layouts[key]

    def close(self) -> None:
        """Destroy everything; nothing may be pending."""
        with self._lock:
            while self._pipelines:
                self._pipelines.popitem()[1].close()
            while self._layouts:
                self._layouts.popitem()[1].close()
