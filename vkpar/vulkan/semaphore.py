"""Timeline semaphores: created, exported to a file descriptor, imported from one."""

from __future__ import annotations

from typing import Any

from vkpar.vulkan import api
from vkpar.vulkan.machine import instance


class TimelineSemaphore:
    """A timeline of one device; its value only grows.

    Args:
        device: the VkDevice.
        exportable: make it exportable as an OPAQUE_FD.
        host_only: no queue will ever signal it.

    Attributes:
        exported: True once :meth:`export_fd` was called.
    """

    def __init__(self, device: Any, *, exportable: bool = False, host_only: bool = False) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.exported = False
        export = vk.ffi.NULL
        if exportable:
            handle_type = vk.vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
            export = vk.struct("VkExportSemaphoreCreateInfo", handleTypes=handle_type)
        timeline = vk.struct(
            "VkSemaphoreTypeCreateInfo", pNext=export, semaphoreType=vk.vk.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=0
        )
        self.handle = vk.create("Semaphore", device, vk.struct("VkSemaphoreCreateInfo", pNext=timeline))
        if host_only:
            instance.mark_host_only(vk.address(self.handle))

    def value(self) -> int:
        """Return the counter's value now."""
        counter = self._vk.ffi.new("uint64_t*")
        result = self._vk.lib.vkGetSemaphoreCounterValue(self._device, self.handle, counter)
        self._vk.check(result, "vkGetSemaphoreCounterValue")
        return int(counter[0])

    def signal(self, value: int) -> None:
        """Set the counter from the host; ``value`` must be above it and below every pending signal."""
        info = self._vk.struct("VkSemaphoreSignalInfo", semaphore=self.handle, value=value)
        self._vk.check(self._vk.lib.vkSignalSemaphore(self._device, info), "vkSignalSemaphore")

    def export_fd(self) -> int:
        """Return a new file descriptor that names this timeline; the importer takes ownership of it."""
        vk = self._vk
        function = vk.device_function(self._device, "vkGetSemaphoreFdKHR")
        info = vk.struct(
            "VkSemaphoreGetFdInfoKHR",
            semaphore=self.handle,
            handleType=vk.vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
        )
        made = vk.ffi.new("int*")
        vk.check(function(self._device, info, made), "vkGetSemaphoreFdKHR")
        self.exported = True
        return int(made[0])

    def import_fd(self, fd: int) -> None:
        """Replace this timeline's payload by the one that ``fd`` names; the driver owns ``fd`` from then on."""
        vk = self._vk
        function = vk.device_function(self._device, "vkImportSemaphoreFdKHR")
        info = vk.struct(
            "VkImportSemaphoreFdInfoKHR",
            semaphore=self.handle,
            handleType=vk.vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
            fd=fd,
        )
        vk.check(function(self._device, info), "vkImportSemaphoreFdKHR")

    def close(self) -> None:
        """Destroy the semaphore; no submission that uses it may be pending."""
        handle, self.handle = self.handle, None
        if handle is not None:
            instance.mark_host_only(self._vk.address(handle), host_only=False)
            self._vk.destroy("Semaphore", self._device, handle)
