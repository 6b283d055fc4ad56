"""A device that compiles and runs nothing, and what its compiler says of pipelines."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from kernel_variants import Module, ReportError

# What drivers call each statistic: RADV, ANV, NVK, turnip. Of several that there are the sum counts.
_STATISTICS: Final = {
    "scalars": ("sgprs",),
    "registers": ("vgprs", "max live registers", "number of gprs", "registers used"),
    "spills": (
        "spilled sgprs",
        "spilled vgprs",
        "spills",
        "spill count",
        "spills to memory",
        "stp count",
    ),
    "shared": ("lds size", "workgroup memory size"),
    "scratch": ("scratch size", "scratch memory size"),
    "code": ("code size",),
    "waves": ("subgroups per simd",),
}
_PUSH_NBYTES: Final = 128
# What takes so many seconds is made again, and the least counts: others on the machine make it longer.
_LONG, _TURNS = 0.4, 3
# Capabilities, and the flag of stages whose subgroups are full, which kernels with cooperative matrices ask for.
_COOPERATIVE, _FULL_SUBGROUPS = 6022, 2
_REQUIRED_SIZE: Final = "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo"
_COOPERATIVE_NV: Final = frozenset({5357, *range(5430, 5440)})
_EXTENSIONS: Final = {
    "VK_KHR_pipeline_executable_properties": "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
    "VK_KHR_cooperative_matrix": "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
}


@dataclass(frozen=True)
class Built:
    """A pipeline, as far as its driver says; 0 where it does not.

    Attributes:
        registers: of an invocation; ``scalars``: of a subgroup.
        spills: registers that were kept in memory.
        shared: bytes of shared memory of a work-group; ``scratch``: of private memory.
        waves: subgroups that a part of a unit holds at once.
        width: invocations of a subgroup.
        ms: of processors that making it took.
    """

    kernel: str
    source: str
    variant: str
    constants: tuple[int, ...]
    registers: int
    scalars: int
    spills: int
    shared: int
    scratch: int
    code: int
    waves: int
    width: int
    ms: int = 0


class Compiler:
    """A device that compiles and runs nothing: the one that the loader lists in this process.

    Raises:
        ReportError: there is another, or none; it cannot say what it made of pipelines.
    """

    def __init__(self) -> None:
        from vkpar.vulkan import api
        from vkpar.vulkan.machine import drivers, instance

        infos = [info for info in drivers.enumerate_devices(null_hardware=True) if not info.is_cpu]
        if len(infos) != 1:
            raise ReportError(f"expected one card that is played, not {', '.join(info.name for info in infos)}")
        self.info = infos[0]
        if "VK_KHR_pipeline_executable_properties" not in self.info.extensions:
            raise ReportError(f"{self.info.name} lacks VK_KHR_pipeline_executable_properties")
        self._vk, self._instance = api.load(), instance.get()
        self._device = self._open()
        names = ("vkGetPipelineExecutableStatisticsKHR", "vkGetPipelineExecutablePropertiesKHR")
        self._statistics, self._executables = ((name, self._vk.device_function(self._device, name)) for name in names)

    def _open(self) -> Any:
        """Return a VkDevice with every feature that kernels may need."""
        vk, last = self._vk, self._vk.ffi.NULL
        wanted = [name for name in _EXTENSIONS if name in self.info.extensions]
        for name in wanted:
            last = vk.struct(_EXTENSIONS[name], pNext=last)
        for number in (11, 12, 13):
            last = vk.struct(f"VkPhysicalDeviceVulkan{number}Features", pNext=last)
        features = vk.struct("VkPhysicalDeviceFeatures2", pNext=last)
        vk.lib.vkGetPhysicalDeviceFeatures2(self.info.handle, features)
        features.features.robustBufferAccess = 0  # vkpar does without; it changes what is compiled
        queue = vk.struct("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=[1.0])
        asked = vk.struct(
            "VkDeviceCreateInfo",
            pNext=features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=[queue],
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=wanted,
        )
        return vk.create("Device", self.info.handle, asked)

    def lacks(self, module: Module, values: Sequence[int]) -> str:
        """Return what a card of this family has not and the kernel needs, nothing where it has all.

        Args:
            module: of the kernel.
            values: its constants.
        """
        from vkpar.vulkan.pipelines.capabilities import missing
        from vkpar.vulkan.pipelines.constants import shared_nbytes

        features = self.info.features
        if module.capabilities & _COOPERATIVE_NV:
            return "NVIDIA's cooperative matrices"
        if names := missing(module.capabilities, features):
            return ", ".join(names)
        if module.name.startswith("quantized_dots") and not features.integer_dot_fast:
            return "instructions that multiply four bytes at once"
        fragment = "x".join(map(str, module.given(values, {"FM": 16, "FN": 16, "FK": 16})))
        fragments = any(shape.startswith(f"{fragment} ") for shape in features.cooperative_matrix)
        if _COOPERATIVE in module.capabilities and not fragments:
            return f"cooperative matrices of {fragment}"
        nbytes, most = shared_nbytes(module.spirv, dict(enumerate(values))), self.info.limits.max_shared_memory
        return f"shared memory for {nbytes} bytes (it has {most})" if nbytes > most else ""

    def build(self, module: Module, variant: str, constants: tuple[int, ...]) -> Built:
        """Make a pipeline and return what the compiler says of it.

        Raises:
            VulkanError: it does not compile.
        """
        vk = self._vk
        with ExitStack() as stack:

            def made(kind: str, info: Any) -> Any:
                handle = vk.create(kind, self._device, info)
                stack.callback(vk.destroy, kind, self._device, handle)
                return handle

            layout = self._layout(module, made)
            code = vk.ffi.new("uint32_t[]", len(module.spirv) // 4)
            vk.ffi.memmove(code, module.spirv, len(module.spirv))
            shader = made("ShaderModule", vk.struct("VkShaderModuleCreateInfo", codeSize=len(module.spirv), pCode=code))
            stage = self._stage(module, shader, constants)
            flags = vk.vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
            info = vk.struct("VkComputePipelineCreateInfo", flags=flags, stage=stage[0], layout=layout)
            taken: list[float] = []
            while not taken or (min(taken) > _LONG and len(taken) < _TURNS):
                making, start = vk.making("Pipeline", self._device), time.process_time()
                pipeline = vk.make(making, "vkCreateComputePipelines", self._device, vk.ffi.NULL, 1, info, vk.ffi.NULL)
                taken.append(time.process_time() - start)
                found = self._read(pipeline)
                vk.destroy("Pipeline", self._device, pipeline)  # else drivers would find it again
            return Built(module.name, module.source, variant, constants, **found, ms=round(1000 * min(taken)))

    def _stage(self, module: Module, shader: Any, constants: tuple[int, ...]) -> Any:
        vk = self._vk
        entries = [
            vk.struct("VkSpecializationMapEntry", constantID=number, offset=4 * number, size=4)
            for number in range(len(constants))
        ]
        given = vk.struct(
            "VkSpecializationInfo",
            mapEntryCount=len(entries),
            pMapEntries=entries,
            dataSize=4 * len(constants),
            pData=struct.pack(f"<{len(constants)}i", *constants),
        )
        (warp,) = module.given(constants, {"WARP": self.info.features.subgroup_size})
        required = _COOPERATIVE in module.capabilities and warp != self.info.features.subgroup_size
        return vk.struct(
            "VkPipelineShaderStageCreateInfo",
            pNext=vk.struct(_REQUIRED_SIZE, requiredSubgroupSize=warp) if required else vk.ffi.NULL,
            flags=_FULL_SUBGROUPS if _COOPERATIVE in module.capabilities else 0,
            stage=vk.vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=shader,
            pName="main",
            pSpecializationInfo=given,
        )

    def _layout(self, module: Module, made: Callable[[str, Any], Any]) -> Any:
        vk, stage = self._vk, self._vk.vk.VK_SHADER_STAGE_COMPUTE_BIT
        kinds = (vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER)
        entries = [
            vk.struct(
                "VkDescriptorSetLayoutBinding",
                binding=number,
                descriptorType=kinds[texel],
                descriptorCount=1,
                stageFlags=stage,
            )
            for number, texel in sorted(module.bindings.items())
        ]
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", bindingCount=len(entries), pBindings=entries)
        sets = made("DescriptorSetLayout", info)
        push = [vk.struct("VkPushConstantRange", stageFlags=stage, size=_PUSH_NBYTES)]
        info = vk.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=[sets],
            pushConstantRangeCount=1,
            pPushConstantRanges=push,
        )
        return made("PipelineLayout", info)

    def _read(self, pipeline: Any) -> dict[str, int]:
        """Return the members of :class:`Built` that the driver knows: of several executables the most of each."""
        vk = self._vk
        info = vk.struct("VkPipelineInfoKHR", pipeline=pipeline)
        name, function = self._executables
        stages = vk.enumerate(
            "VkPipelineExecutablePropertiesKHR", name, self._device, info, function=function, chained=True
        )
        found = [self._read_one(pipeline, index) for index in range(len(stages))]
        known = {key for one in found for key in one}
        if not known & set(_STATISTICS["spills"]):
            raise ReportError(f"{self.info.name} does not say what it spills; it says {', '.join(sorted(known))}")
        sums = {
            member: max(sum(one.get(name, 0) for name in names) for one in found)
            for member, names in _STATISTICS.items()
        }
        return sums | {"width": max(int(stage.subgroupSize) for stage in stages)}

    def _read_one(self, pipeline: Any, index: int) -> dict[str, int]:
        vk = self._vk
        info = vk.struct("VkPipelineExecutableInfoKHR", pipeline=pipeline, executableIndex=index)
        name, function = self._statistics
        items = vk.enumerate(
            "VkPipelineExecutableStatisticKHR", name, self._device, info, function=function, chained=True
        )
        return {vk.text(item.name).lower(): int(item.value.u64) for item in items}

    def close(self) -> None:
        """Destroy the device."""
        self._vk.destroy("Device", None, self._device)
