"""Asks the drivers which physical devices the machine has, and what these can do."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vkpar import env
from vkpar.errors import UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.machine import atomics, instance, matrices
from vkpar.vulkan.machine.physical import ALIGNMENT, DeviceInfo, Features, Heap, Limits, QueueFamily

_VENDORS = {
    0x1002: "AMD",
    0x1010: "ImgTec",
    0x10DE: "NVIDIA",
    0x13B5: "ARM",
    0x1AE0: "Google",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
    0x106B: "Apple",
}
_SUBGROUP_OPERATIONS = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad")
_PADDING = 4096  # SwiftShader asks for a few bytes more than a buffer has, and refuses them at the limit
_UNITS = {  # where drivers say how many compute units there are: structs of properties by extension, and their members
    "VK_NV_shader_sm_builtins": ("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", ("shaderSMCount",)),
    "VK_AMD_shader_core_properties2": ("VkPhysicalDeviceShaderCoreProperties2AMD", ("activeComputeUnitCount",)),
    "VK_AMD_shader_core_properties": (
        "VkPhysicalDeviceShaderCorePropertiesAMD",
        ("shaderEngineCount", "shaderArraysPerEngineCount", "computeUnitsPerShaderArray"),
    ),
    "VK_ARM_shader_core_builtins": ("VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", ("shaderCoreCount",)),
}
_TYPES = ("other", "integrated", "discrete", "virtual", "cpu")


def enumerate_devices(*, null_hardware: bool = False) -> list[DeviceInfo]:
    """List every physical device of every driver, in the loader's order; nothing is opened.

    Args:
        null_hardware: list the devices that compile kernels and execute nothing, too.

    Raises:
        UnsupportedError: no Vulkan loader, no driver, or no device.
        InvalidUsageError: the process is ending.
    """
    with instance.gate.lock():
        instance.gate.check()
        made = instance.get()
        found = [_describe(0, handle) for handle in made.physical_devices()]
    made.warn_of_missing()
    listed = [info for info in found if null_hardware or not info.is_null_hardware]
    if not listed:
        names = ", ".join(info.name for info in found)
        why = f" that executes anything: {names} (unset RADV_FORCE_FAMILY)" if found else ": the drivers list none"
        raise UnsupportedError(f"no Vulkan device{why}")
    return [replace(info, index=index) for index, info in enumerate(listed)]


def _describe(index: int, handle: Any) -> DeviceInfo:
    vk = api.load()
    extensions = frozenset(
        vk.text(item.extensionName)
        for item in vk.enumerate("VkExtensionProperties", "vkEnumerateDeviceExtensionProperties", handle, vk.ffi.NULL)
    )
    extensions -= {matrices.BY_NAME[name] for name in env.without() if name in matrices.BY_NAME}
    extensions -= instance.get().unknown_to_layer(extensions & set(matrices.FIRST_LAYERS), matrices.FIRST_LAYERS)
    if "VK_KHR_cooperative_matrix" not in extensions:
        extensions -= {"VK_NV_cooperative_matrix2"}  # which is an extension of that one
    queried = _Queried(handle, extensions)
    base, driver = queried.properties.properties, queried.vulkan12
    return DeviceInfo(
        index=index,
        name=vk.text(base.deviceName),
        vendor=_VENDORS.get(base.vendorID, f"0x{base.vendorID:04x}"),
        vendor_id=base.vendorID,
        device_id=base.deviceID,
        type=_TYPES[base.deviceType] if base.deviceType < len(_TYPES) else "other",
        driver_name=vk.text(driver.driverName),
        driver_id=driver.driverID,
        driver_info=vk.text(driver.driverInfo),
        driver_version=base.driverVersion,
        api_version=api.version(base.apiVersion),
        driver_uuid=_uuid(queried.vulkan11.driverUUID),
        device_uuid=_uuid(queried.vulkan11.deviceUUID),
        pci_address=queried.pci_address(),
        heaps=_heaps(handle, extensions),
        queue_families=_queue_families(handle),
        features=queried.features(),
        limits=queried.limits(),
        extensions=extensions,
        memory_types=_memory_types(handle),
        handle=handle,
    )


class _Queried:
    """The property and feature structs of one physical device, filled in one chain each."""

    def __init__(self, handle: Any, extensions: frozenset[str]) -> None:
        vk = api.load()
        self._vk, self._handle, self._extensions = vk, handle, extensions
        self.host_memory = self._chained(
            "VkPhysicalDeviceExternalMemoryHostPropertiesEXT", "VK_EXT_external_memory_host"
        )
        self.pci = self._chained("VkPhysicalDevicePCIBusInfoPropertiesEXT", "VK_EXT_pci_bus_info", self.host_memory)
        last = self.pci or self.host_memory or vk.ffi.NULL
        self.units = next((name for name in _UNITS if name in extensions), None)
        if self.units is not None:
            last = self.units_found = vk.struct(_UNITS[self.units][0], pNext=last)
        self.vulkan13 = None
        if self._version() >= (1, 3, 0):
            last = self.vulkan13 = vk.struct("VkPhysicalDeviceVulkan13Properties", pNext=last)
        self.vulkan11 = vk.struct("VkPhysicalDeviceVulkan11Properties", pNext=last)
        self.vulkan12 = vk.struct("VkPhysicalDeviceVulkan12Properties", pNext=self.vulkan11)
        self.properties = vk.struct("VkPhysicalDeviceProperties2", pNext=self.vulkan12)
        vk.lib.vkGetPhysicalDeviceProperties2(handle, self.properties)
        self.atomics = atomics.structs(extensions)
        self.matrices = matrices.chain(extensions, after=self.atomics[-1] if self.atomics else None)
        after = self.matrices.first
        self.features13 = None
        if self.vulkan13 is not None:
            after = self.features13 = vk.struct("VkPhysicalDeviceVulkan13Features", pNext=after)
        self.features11 = vk.struct("VkPhysicalDeviceVulkan11Features", pNext=after)
        self.features12 = vk.struct("VkPhysicalDeviceVulkan12Features", pNext=self.features11)
        self.features2 = vk.struct("VkPhysicalDeviceFeatures2", pNext=self.features12)
        vk.lib.vkGetPhysicalDeviceFeatures2(handle, self.features2)

    def _version(self) -> tuple[int, int, int]:
        base = self._vk.struct("VkPhysicalDeviceProperties")
        self._vk.lib.vkGetPhysicalDeviceProperties(self._handle, base)
        return api.version(base.apiVersion)

    def _chained(self, name: str, extension: str, after: Any = None) -> Any:
        if extension not in self._extensions:
            return None
        return self._vk.struct(name, pNext=after or self._vk.ffi.NULL)

    def pci_address(self) -> str | None:
        if self.pci is None:
            return None
        pci = self.pci
        return f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction:x}"

    def features(self) -> Features:
        core, eleven, twelve = self.features2.features, self.features11, self.features12
        thirteen, halves = self.features13, "storage_16bit" not in env.without()
        return Features(
            storage_16bit=halves and bool(eleven.storageBuffer16BitAccess),
            storage_8bit=bool(twelve.storageBuffer8BitAccess),
            float16=halves and bool(twelve.shaderFloat16),
            int8=bool(twelve.shaderInt8),
            int16=bool(core.shaderInt16),
            int64=bool(core.shaderInt64),
            float64=bool(core.shaderFloat64),
            timeline_semaphore=bool(twelve.timelineSemaphore),
            host_import=self.host_memory is not None and "host_import" not in env.without(),
            timeline_export=self._timeline_export(),
            foreign_queue_family="VK_EXT_queue_family_foreign" in self._extensions,
            memory_model=bool(twelve.vulkanMemoryModel and twelve.vulkanMemoryModelDeviceScope),
            subgroup_control=bool(thirteen and thirteen.subgroupSizeControl and thirteen.computeFullSubgroups),
            integer_dot=bool(
                thirteen and thirteen.shaderIntegerDotProduct and matrices.INTEGER_DOT in self._extensions
            ),
            integer_dot_fast=bool(
                self.vulkan13
                and self.vulkan13.integerDotProduct4x8BitPackedUnsignedAccelerated
                and self.vulkan13.integerDotProduct4x8BitPackedSignedAccelerated
                and self.vulkan13.integerDotProduct4x8BitPackedMixedSignednessAccelerated
            ),
            cooperative_matrix=self._shapes(matrices.KHR, matrices.subgroup_shapes),
            cooperative_matrix2=self._shapes(matrices.NV2, matrices.flexible_shapes),
            matrix_features=matrices.found(self.matrices.structs),
            subgroup_size=int(self.vulkan11.subgroupSize),
            subgroup_sizes=self._subgroup_sizes(),
            subgroup_operations=self._subgroup_operations(),
            float_atomics=tuple(name for item in self.atomics for name in atomics.named(item) if getattr(item, name)),
        )

    def _shapes(self, extension: str, listing: Callable[[Any], tuple[str, ...]]) -> tuple[str, ...]:
        return listing(self._handle) if extension in self._extensions else ()

    def _subgroup_sizes(self) -> tuple[int, ...]:
        """Return the least and the most invocations of a subgroup that compute shaders may ask for; () for none."""
        found, features, stage = self.vulkan13, self.features13, self._vk.vk.VK_SHADER_STAGE_COMPUTE_BIT
        controls = features and features.subgroupSizeControl and features.computeFullSubgroups
        if not found or not controls or not found.requiredSubgroupSizeStages & stage:
            return ()
        return int(found.minSubgroupSize), int(found.maxSubgroupSize)

    def _subgroup_operations(self) -> tuple[str, ...]:
        """Return the kinds of subgroup operations that compute shaders have, in the order of VkSubgroupFeatureFlags."""
        if not self.vulkan11.subgroupSupportedStages & self._vk.vk.VK_SHADER_STAGE_COMPUTE_BIT:
            return ()
        found = self.vulkan11.subgroupSupportedOperations
        if "subgroup" in env.without():
            found &= self._vk.vk.VK_SUBGROUP_FEATURE_BASIC_BIT
        return tuple(name for bit, name in enumerate(_SUBGROUP_OPERATIONS) if found & (1 << bit))

    def _timeline_export(self) -> bool:
        """True where a timeline can be exported to, and imported from, an OPAQUE_FD."""
        vk, constants = self._vk, self._vk.vk
        if "VK_KHR_external_semaphore_fd" not in self._extensions:
            return False
        timeline = vk.struct("VkSemaphoreTypeCreateInfo", semaphoreType=constants.VK_SEMAPHORE_TYPE_TIMELINE)
        info = vk.struct(
            "VkPhysicalDeviceExternalSemaphoreInfo",
            pNext=timeline,
            handleType=constants.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
        )
        found = vk.struct("VkExternalSemaphoreProperties")
        vk.lib.vkGetPhysicalDeviceExternalSemaphoreProperties(self._handle, info, found)
        both = (
            constants.VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT
            | constants.VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT
        )
        return bool(found.externalSemaphoreFeatures & both == both)

    def _compute_units(self) -> int:
        """Return the number of compute units, 0 where no extension says it."""
        if self.units is None:
            return 0
        return math.prod(int(getattr(self.units_found, member)) for member in _UNITS[self.units][1])

    def _max_buffer(self) -> int:
        """Return the most bytes of a buffer with memory of its own, which the driver may pad."""
        most = int(self.vulkan11.maxMemoryAllocationSize)
        if self.vulkan13 is not None:
            most = min(most, int(self.vulkan13.maxBufferSize))
        return most - _PADDING

    def limits(self) -> Limits:
        found = self.properties.properties.limits
        return Limits(
            max_storage_buffer_range=_lowered(found.maxStorageBufferRange, "max_binding"),
            max_allocation=int(self.vulkan11.maxMemoryAllocationSize),
            max_buffer=_lowered(self._max_buffer(), "max_buffer"),
            min_storage_buffer_offset_alignment=_alignment(int(found.minStorageBufferOffsetAlignment)),
            max_workgroup_count=tuple(found.maxComputeWorkGroupCount),
            max_workgroup_size=tuple(found.maxComputeWorkGroupSize),
            max_workgroup_invocations=found.maxComputeWorkGroupInvocations,
            max_shared_memory=found.maxComputeSharedMemorySize,
            max_push_constants=found.maxPushConstantsSize,
            host_import_alignment=int(self.host_memory.minImportedHostPointerAlignment) if self.host_memory else 0,
            timestamp_period_ns=float(found.timestampPeriod),
            max_storage_buffers=min(
                found.maxPerStageDescriptorStorageBuffers,
                found.maxDescriptorSetStorageBuffers,
                found.maxPerStageResources,
            ),
            max_texel_buffer_elements=found.maxTexelBufferElements,
            compute_units=self._compute_units(),
            max_workgroup_subgroups=int(self.vulkan13.maxComputeWorkgroupSubgroups) if self.vulkan13 else 0,
        )


def _alignment(limit: int) -> int:
    """Return where buffers may be bound: what the driver says, or what the strictest do with VKPAR_DEBUG=alignment."""
    return ALIGNMENT if "alignment" in env.debug_checks() else limit


def _lowered(limit: int, setting: str) -> int:
    """Return what the driver allows, or what the setting does where that is less."""
    wanted: int = getattr(env.get(), setting)
    return min(limit, wanted) if wanted else limit


def _uuid(raw: Any) -> str:
    return str(uuid.UUID(bytes=bytes(raw)))


def read_heaps(info: DeviceInfo) -> tuple[Heap, ...]:
    """Return the heaps of a device with what the driver says of them now; the process's instance must be open."""
    return _heaps(info.handle, info.extensions)


def _heaps(handle: Any, extensions: frozenset[str]) -> tuple[Heap, ...]:
    vk = api.load()
    # RADV's null hardware, which has no heap, crashes where it is asked for budgets (Mesa 25.0).
    has_budget = "VK_EXT_memory_budget" in extensions and bool(_memory(handle).memoryHeapCount)
    budget = vk.struct("VkPhysicalDeviceMemoryBudgetPropertiesEXT") if has_budget else vk.ffi.NULL
    memory = vk.struct("VkPhysicalDeviceMemoryProperties2", pNext=budget)
    vk.lib.vkGetPhysicalDeviceMemoryProperties2(handle, memory)
    heaps = memory.memoryProperties.memoryHeaps
    return tuple(
        Heap(
            index=index,
            nbytes=int(heaps[index].size),
            device_local=bool(heaps[index].flags & vk.vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT),
            budget=int(budget.heapBudget[index]) if has_budget else None,
            used=int(budget.heapUsage[index]) if has_budget else None,
        )
        for index in range(memory.memoryProperties.memoryHeapCount)
    )


def _memory(handle: Any) -> Any:
    vk = api.load()
    memory = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    return memory


def _memory_types(handle: Any) -> tuple[tuple[int, int], ...]:
    """Return (property flags, heap index) of each memory type."""
    memory = _memory(handle)
    types = memory.memoryTypes
    return tuple((int(types[i].propertyFlags), int(types[i].heapIndex)) for i in range(memory.memoryTypeCount))


def _queue_families(handle: Any) -> tuple[QueueFamily, ...]:
    vk = api.load()
    found = vk.enumerate("VkQueueFamilyProperties", "vkGetPhysicalDeviceQueueFamilyProperties", handle)
    return tuple(
        QueueFamily(
            index=index,
            count=item.queueCount,
            compute=bool(item.queueFlags & vk.vk.VK_QUEUE_COMPUTE_BIT),
            transfer=bool(
                item.queueFlags
                & (vk.vk.VK_QUEUE_TRANSFER_BIT | vk.vk.VK_QUEUE_COMPUTE_BIT | vk.vk.VK_QUEUE_GRAPHICS_BIT)
            ),
            graphics=bool(item.queueFlags & vk.vk.VK_QUEUE_GRAPHICS_BIT),
            timestamp_bits=item.timestampValidBits,
        )
        for index, item in enumerate(found)
    )
