"""Creates a VkDevice: its queue families, features and extensions."""

from __future__ import annotations

from typing import Any

from vkpar import env
from vkpar.errors import UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.machine import atomics, matrices
from vkpar.vulkan.machine.physical import DeviceInfo, QueueFamily

_EXTENSIONS = (
    "VK_EXT_external_memory_host",
    "VK_KHR_external_semaphore_fd",
    "VK_KHR_external_memory_fd",
    "VK_EXT_queue_family_foreign",
    "VK_KHR_push_descriptor",
    "VK_EXT_shader_atomic_float",
    "VK_EXT_shader_atomic_float2",
    *matrices.EXTENSIONS,
)
_ROBUSTNESS = "VK_EXT_robustness2"
CLOCK_EXTENSIONS = ("VK_EXT_calibrated_timestamps", "VK_KHR_calibrated_timestamps")  # the first one there is enabled


def require(info: DeviceInfo) -> None:
    """Refuse a device that lacks what vkpar needs.

    Raises:
        UnsupportedError: no Vulkan 1.2, no timeline semaphores, or no compute queue; the message says which.
    """
    if info.api_version < (1, 2, 0):
        version = ".".join(str(part) for part in info.api_version)
        raise UnsupportedError(f"{info.name} offers Vulkan {version}; vkpar needs 1.2")
    if not info.features.timeline_semaphore:
        raise UnsupportedError(f"{info.name} lacks timelineSemaphore")
    if not any(family.compute for family in info.queue_families):
        raise UnsupportedError(f"{info.name} has no compute queue")


def choose_families(info: DeviceInfo) -> tuple[int, int]:
    """Return the compute family, and the family of a copy engine where there is one."""
    compute = next(family for family in info.queue_families if family.compute)

    def is_copy_engine(family: QueueFamily) -> bool:
        return family.transfer and not family.compute and not family.graphics

    copy = next((family for family in info.queue_families if is_copy_engine(family)), compute)
    return compute.index, copy.index


def has_second(info: DeviceInfo, family: int) -> bool:
    """Say whether a second queue of ``family``, for another copy engine, is to be had and may be wanted."""
    several = any(item.index == family and item.count > 1 for item in info.queue_families)
    return several and env.get().path != "fused"


def _bounds(info: DeviceInfo, after: Any) -> Any:
    """Return ``after`` behind a struct that turns robustBufferAccess2 on, or alone: not asked for, or not there."""
    if "bounds" not in env.debug_checks() or _ROBUSTNESS not in info.extensions:
        return after
    vk = api.load()
    found = vk.struct("VkPhysicalDeviceRobustness2FeaturesEXT")
    vk.lib.vkGetPhysicalDeviceFeatures2(info.handle, vk.struct("VkPhysicalDeviceFeatures2", pNext=found))
    if not found.robustBufferAccess2:
        return after
    return vk.struct("VkPhysicalDeviceRobustness2FeaturesEXT", pNext=after, robustBufferAccess2=1)


def _queues(families: dict[int, int]) -> list[Any]:
    """Return what asks for so many queues of each family."""
    return [
        api.load().struct(
            "VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=number, pQueuePriorities=[1.0] * number
        )
        for family, number in sorted(families.items())
    ]


def create_device(info: DeviceInfo, families: dict[int, int], made: api.Making) -> Any:
    """Create the VkDevice with so many queues of each family; it is recorded as ``made``."""
    vk = api.load()
    features = info.features
    queues = _queues(families)
    floats = atomics.structs(info.extensions, features.float_atomics)
    cores = matrices.chain(info.extensions, features.matrix_features, after=floats[-1] if floats else None)
    after = cores.first
    if features.subgroup_control or features.integer_dot:
        after = vk.struct(
            "VkPhysicalDeviceVulkan13Features",
            pNext=after,
            subgroupSizeControl=features.subgroup_control,
            computeFullSubgroups=features.subgroup_control,
            shaderIntegerDotProduct=features.integer_dot,
        )
    eleven = vk.struct("VkPhysicalDeviceVulkan11Features", pNext=after, storageBuffer16BitAccess=features.storage_16bit)
    twelve = vk.struct(
        "VkPhysicalDeviceVulkan12Features",
        pNext=eleven,
        timelineSemaphore=1,
        hostQueryReset=1,  # every driver of Vulkan 1.2 has it
        storageBuffer8BitAccess=features.storage_8bit,
        shaderFloat16=features.float16,
        shaderInt8=features.int8,
        vulkanMemoryModel=features.memory_model,
        vulkanMemoryModelDeviceScope=features.memory_model,  # atomics have that scope, in every kernel
    )
    last = _bounds(info, twelve)
    two = vk.struct("VkPhysicalDeviceFeatures2", pNext=last)
    two.features.robustBufferAccess = "bounds" in env.debug_checks()  # every driver has it
    two.features.shaderInt16 = features.int16
    two.features.shaderInt64 = features.int64
    two.features.shaderFloat64 = features.float64
    extensions = [name for name in _EXTENSIONS if name in info.extensions]
    extensions += [name for name in CLOCK_EXTENSIONS if name in info.extensions][:1]
    extensions += [] if last is twelve else [_ROBUSTNESS]
    asked = vk.struct(
        "VkDeviceCreateInfo",
        pNext=two,
        queueCreateInfoCount=len(queues),
        pQueueCreateInfos=queues,
        enabledExtensionCount=len(extensions),
        ppEnabledExtensionNames=extensions,
    )
    return vk.create("Device", info.handle, asked, info.name, made)
