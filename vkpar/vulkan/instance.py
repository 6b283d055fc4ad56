"""The one VkInstance of a process, and what the validation layer says."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from vkpar import env
from vkpar.errors import InvalidUsageError, UnsupportedError, ValidationError, VulkanError
from vkpar.vulkan import api

_log = logging.getLogger("vkpar")
_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_NO_DRIVER = "no Vulkan driver found: install your GPU's driver, or mesa-vulkan-drivers for a CPU one"
_API_VERSION = (1 << 22) | (3 << 12)

# False alarms of layers before 1.3.296, which track host signals wrongly
# (https://github.com/KhronosGroup/Vulkan-ValidationLayers/pull/8519):
# - a host signal that is done may stay among the pending ones. It is ignored for timelines that no queue ever signals
#   (see :func:`mark_host_only`), where the rule cannot be broken;
# - a wait on one thread beside a signal on another may stall in the layer for 10 s
#   (https://github.com/KhronosGroup/Vulkan-ValidationLayers/issues/4968).
_PENDING_HOST_SIGNAL = "VUID-VkSemaphoreSignalInfo-value-03259"
_LAYER_STALLED = "UNASSIGNED-VkSemaphore-state-timeout"
_HOST_SIGNALS_FIXED = (1, 3, 296)

_host_only_timelines: set[int] = set()


def mark_host_only(address: int, *, host_only: bool = True) -> None:
    """Note a timeline that only the host signals, or (``host_only=False``) forget it before it is destroyed."""
    if host_only:
        _host_only_timelines.add(address)
    else:
        _host_only_timelines.discard(address)


class Instance:
    """The process's VkInstance; devices of all drivers come from it.

    Attributes:
        handle: the VkInstance.
        validating: True when the validation layer is on.
        messages: what it has reported since they were raised last.
    """

    def __init__(self) -> None:
        self._vk = api.load()
        self._process = os.getpid()
        self.validating = env.get().validation
        self.messages: list[str] = []
        self._layer_version = (0, 0, 0)
        self._callback: Any = None
        self._messenger: Any = None
        self.handle = self._create()
        if self.validating:
            self._messenger = self._create_messenger()
        self._physical: list[Any] | None = None

    def _create(self) -> Any:
        vk = self._vk
        layers, extensions = [], []
        if self.validating:
            self._layer_version = _require_validation_layer()
            layers, extensions = [_VALIDATION_LAYER], ["VK_EXT_debug_utils"]
        application = vk.struct("VkApplicationInfo", pApplicationName="vkpar", apiVersion=_API_VERSION)
        info = vk.struct(
            "VkInstanceCreateInfo",
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        try:
            return vk.create("Instance", None, info)
        except VulkanError as error:
            if error.result == "VK_ERROR_INCOMPATIBLE_DRIVER":
                raise UnsupportedError(_NO_DRIVER) from error
            raise

    def _create_messenger(self) -> Any:
        vk = self._vk
        self._callback = vk.ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", self._on_message)
        constants = vk.vk
        info = vk.struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=constants.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
            | constants.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT,
            messageType=constants.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=self._callback,
        )
        create = vk.instance_function(self.handle, "vkCreateDebugUtilsMessengerEXT")
        made = vk.ffi.new("VkDebugUtilsMessengerEXT*")
        vk.check(create(self.handle, info, vk.ffi.NULL, made), "vkCreateDebugUtilsMessengerEXT")
        return made[0]

    def _on_message(self, severity: int, kind: int, data: Any, user: Any) -> int:
        if not self._is_false_alarm(data):
            self.messages.append(self._vk.text(data.pMessage))
        return 0

    def _is_false_alarm(self, data: Any) -> bool:
        if self._layer_version >= _HOST_SIGNALS_FIXED or data.pMessageIdName == self._vk.ffi.NULL:
            return False
        identifier = self._vk.text(data.pMessageIdName)
        if identifier == _PENDING_HOST_SIGNAL and data.objectCount:
            return data.pObjects[0].objectHandle in _host_only_timelines
        return identifier == _LAYER_STALLED

    def raise_messages(self) -> None:
        """Raise what the validation layer has reported since the last call.

        Raises:
            ValidationError
        """
        if self.messages:
            messages, self.messages = self.messages, []
            raise ValidationError(messages)

    def physical_devices(self) -> list[Any]:
        """Return the VkPhysicalDevice handles in the loader's order.

        Raises:
            UnsupportedError: no driver offers a device.
        """
        vk = self._vk
        if self._physical is None:
            found = vk.enumerate(
                "VkPhysicalDevice", vk.lib.vkEnumeratePhysicalDevices, self.handle, call="vkEnumeratePhysicalDevices"
            )
            self._physical = list(found)
        if not self._physical:
            raise UnsupportedError(_NO_DRIVER)
        return self._physical

    def check_process(self) -> None:
        """Refuse use in a forked child, where the drivers' threads do not exist.

        Raises:
            InvalidUsageError
        """
        if os.getpid() != self._process:
            raise InvalidUsageError("vkpar was opened before a fork: open devices in the child, in a spawned process")

    def close(self) -> None:
        """Destroy the instance; every device must be closed before. In a forked child nothing is touched."""
        if self.handle is None or os.getpid() != self._process:
            return
        if self._messenger is not None:
            destroy = self._vk.instance_function(self.handle, "vkDestroyDebugUtilsMessengerEXT")
            destroy(self.handle, self._messenger, self._vk.ffi.NULL)
        self._vk.destroy("Instance", None, self.handle)
        self.handle = None
        for message in self.messages:
            _log.error("validation layer: %s", message)


def loader_version() -> tuple[int, int, int]:
    """Return the Vulkan loader's version; no driver is loaded.

    Raises:
        UnsupportedError: no loader.
    """
    vk = api.load()
    version = vk.ffi.new("uint32_t*")
    vk.check(vk.lib.vkEnumerateInstanceVersion(version), "vkEnumerateInstanceVersion")
    return api.version(version[0])


def validation_layer_version() -> tuple[int, int, int] | None:
    """Return the validation layer's version, None where it is not installed; no driver is loaded.

    Raises:
        UnsupportedError: no loader.
    """
    vk = api.load()
    for layer in vk.enumerate("VkLayerProperties", vk.lib.vkEnumerateInstanceLayerProperties):
        if vk.text(layer.layerName) == _VALIDATION_LAYER:
            return api.version(layer.specVersion)
    return None


def _require_validation_layer() -> tuple[int, int, int]:
    version = validation_layer_version()
    if version is None:
        raise UnsupportedError(
            f"VKPAR_VALIDATION=1 needs {_VALIDATION_LAYER}: install vulkan-validationlayers (Debian, Ubuntu)"
        )
    return version


_instance: Instance | None = None
_lock = threading.Lock()


def get() -> Instance:
    """Return the process's instance, made at the first call.

    Raises:
        UnsupportedError: no loader, no driver, or no validation layer where one is asked for.
        InvalidUsageError: called in a forked child.
    """
    global _instance
    with _lock:
        if _instance is None:
            _instance = Instance()
        _instance.check_process()
        return _instance


def validating() -> bool:
    """Say whether the validation layer is on."""
    return _instance is not None and _instance.validating


def raise_messages() -> None:
    """Raise pending validation messages, if an instance exists.

    Raises:
        ValidationError
    """
    if _instance is not None and _instance.validating:
        _instance.raise_messages()


def close() -> None:
    """Destroy the process's instance, if there is one."""
    global _instance
    with _lock:
        if _instance is not None:
            _instance.close()
            _instance = None
