"""A driver asked without the loader: which devices it offers."""

from __future__ import annotations

import ctypes
from typing import Any

from vkpar.errors import VulkanError
from vkpar.vulkan import api

_INTERFACE = 5  # of loaders and drivers; from 2 on a driver has vk_icdGetInstanceProcAddr


def devices_of(library: str) -> str:
    """Say why a driver offers no device, in words after "it"; nothing where it offers some, or cannot be asked."""
    vk = api.load()
    try:
        opened = ctypes.CDLL(library)
        opened.vk_icdNegotiateLoaderICDInterfaceVersion(ctypes.byref(ctypes.c_uint32(_INTERFACE)))
        lookup = ctypes.cast(opened.vk_icdGetInstanceProcAddr, ctypes.c_void_p).value
    except (OSError, AttributeError):  # a driver of another age
        return ""
    function = vk.ffi.cast("PFN_vkGetInstanceProcAddr", lookup)
    made = vk.ffi.new("VkInstance*")
    null = vk.ffi.NULL

    def found(kind: str) -> Any:
        return vk.ffi.cast(f"PFN_{kind}", function(made[0], kind.encode()))

    try:
        vk.check(found("vkCreateInstance")(vk.struct("VkInstanceCreateInfo"), null, made), "vkCreateInstance")
    except VulkanError as error:
        return f"cannot start ({error})"
    number = vk.ffi.new("uint32_t*")
    try:
        vk.check(found("vkEnumeratePhysicalDevices")(made[0], number, null), "vkEnumeratePhysicalDevices")
    except VulkanError as error:
        return f"finds no device that it drives ({error})"
    finally:
        found("vkDestroyInstance")(made[0], null)
    return "" if number[0] else "finds no device that it drives"
