"""The one VkInstance of a process, and what the validation layer says."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vkpar import env
from vkpar.errors import InvalidUsageError, UnsupportedError, ValidationError, VulkanError
from vkpar.vulkan import api
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine import icd, manifests

_log = logging.getLogger("vkpar")
_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
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

# What the layer says of GPU-assisted validation itself: it does without something, or altogether.
_GPU_NOTES = ("UNASSIGNED-GPU-Assisted", "WARNING-GPU-Assisted", "WARNING-Setting-Limit-Adjusted")
_GPU_EXTENSION = "VK_EXT_validation_features"

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
        watching: True when it watches every access of kernels, too. Each submission waits for its end then.
    """

    def __init__(self) -> None:
        self._vk = api.load()
        self._process = os.getpid()
        self.validating = bool(env.get().validation)
        self.watching = env.get().validation == "gpu"
        self.messages: list[str] = []
        self._notes: list[str] = []
        self._layer_version = (0, 0, 0)
        self._unknown: frozenset[str] = frozenset()
        self._callback: Any = None
        self._messenger: Any = None
        self._made: api.Making | None = None
        self._is_open = False
        self.handle: Any = None
        self._physical: list[Any] | None = None
        self._has_warned = False

    def open(self) -> None:
        """Make the VkInstance; do nothing where that was done. What an interrupt left is undone first.

        Raises:
            UnsupportedError: no loader, no driver, a damaged manifest, or no validation layer where one is asked for.
        """
        if self._is_open:
            return
        self._undo()
        broken = manifests.broken()
        if broken:
            raise UnsupportedError(broken)
        self._made = self._vk.making("Instance", None)
        self.handle = self._create(self._made)
        if self.validating:
            self._messenger = self._create_messenger()
        self._is_open = True

    def _undo(self) -> None:
        """Destroy a VkInstance that was not made to the end; its messenger, if there is one, goes with it."""
        self.handle = self._messenger = None
        if self._made is not None:
            self._vk.discard(self._made, None)

    def _create(self, made: api.Making) -> Any:
        vk = self._vk
        layers, extensions, features = [], [], vk.ffi.NULL
        if self.validating:
            self._layer_version = _require_validation_layer()
            layers, extensions = [_VALIDATION_LAYER], ["VK_EXT_debug_utils"]
            if self.watching:
                features = self._watch(extensions)
        application = vk.struct("VkApplicationInfo", pApplicationName="vkpar", apiVersion=_API_VERSION)
        info = vk.struct(
            "VkInstanceCreateInfo",
            pNext=features,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        with _explained():
            return vk.create("Instance", None, info, made=made)

    def _watch(self, extensions: list[str]) -> Any:
        """Return what asks the layer for GPU-assisted validation; nothing, and a warning, where it lacks that."""
        vk, c = self._vk, self._vk.vk
        named = _VALIDATION_LAYER.encode()
        there = vk.enumerate("VkExtensionProperties", "vkEnumerateInstanceExtensionProperties", named)
        if all(vk.text(item.extensionName) != _GPU_EXTENSION for item in there):
            self.watching = False
            _log.warning(
                "VKPAR_VALIDATION=gpu: the validation layer %s has no GPU-assisted validation (%s); accesses of "
                "kernels are not watched, the rest is validated",
                ".".join(map(str, self._layer_version)),
                _GPU_EXTENSION,
            )
            return vk.ffi.NULL
        extensions.append(_GPU_EXTENSION)
        enabled = [
            c.VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT,
            c.VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT,
        ]
        return vk.struct(
            "VkValidationFeaturesEXT", enabledValidationFeatureCount=len(enabled), pEnabledValidationFeatures=enabled
        )

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
            kept = self._notes if self._is_note(data) else self.messages
            kept.append(self._vk.text(data.pMessage))
        return 0

    def _is_note(self, data: Any) -> bool:
        """Say whether a message is about what GPU-assisted validation does without."""
        named = data.pMessageIdName != self._vk.ffi.NULL
        return self.watching and named and self._vk.text(data.pMessageIdName).startswith(_GPU_NOTES)

    def _is_false_alarm(self, data: Any) -> bool:
        if self._layer_version >= _HOST_SIGNALS_FIXED or data.pMessageIdName == self._vk.ffi.NULL:
            return False
        identifier = self._vk.text(data.pMessageIdName)
        if identifier == _PENDING_HOST_SIGNAL and data.objectCount:
            return data.pObjects[0].objectHandle in _host_only_timelines
        return identifier == _LAYER_STALLED

    def unknown_to_layer(self, extensions: Iterable[str], first: Mapping[str, tuple[int, int, int]]) -> frozenset[str]:
        """Return the extensions whose structs the validation layer would call errors, and warn of them once.

        Args:
            extensions: of a device.
            first: by extension, the first version of the layer that knows it.
        """
        if not self.validating:
            return frozenset()
        unknown = frozenset(name for name in extensions if self._layer_version < first[name])
        for name in sorted(unknown - self._unknown):
            _log.warning(
                "the validation layer %s does not know %s, which devices do without meanwhile: it takes %s",
                ".".join(map(str, self._layer_version)),
                name,
                ".".join(map(str, first[name])),
            )
        self._unknown |= unknown
        return unknown

    def raise_messages(self) -> None:
        """Raise the messages of the validation layer since the last call.

        Raises:
            ValidationError: there are any.
        """
        while self._notes:
            _log.warning("VKPAR_VALIDATION=gpu: %s", self._notes.pop(0))
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
            call = "vkEnumeratePhysicalDevices"
            try:
                found = vk.enumerate("VkPhysicalDevice", call, self.handle)
            except VulkanError as error:
                if error.result in ("VK_ERROR_INITIALIZATION_FAILED", "VK_ERROR_INCOMPATIBLE_DRIVER"):
                    raise UnsupportedError(f"{manifests.no_device()} ({call}: {error.result})") from error
                raise
            self._physical = list(found)
        if not self._physical:
            raise UnsupportedError(manifests.no_device())
        return self._physical

    def warn_of_missing(self) -> None:
        """Log, once, which drivers that were asked for by name gave no device, and why."""
        if not self._has_warned:
            self._has_warned = True
            for missing in manifests.without_device(icd.devices_of):
                _log.warning("%s", missing)

    def check_process(self) -> None:
        """Refuse use in a forked child, where the drivers' threads do not exist.

        Raises:
            InvalidUsageError: this process is such a child.
        """
        if os.getpid() != self._process:
            raise InvalidUsageError("vkpar was opened before a fork: open devices in the child, in a spawned process")

    def close(self) -> None:
        """Destroy the instance; every device must be closed before. In a forked child nothing is touched."""
        if os.getpid() != self._process:
            return
        if not self._is_open:
            self._undo()
            return
        self._is_open = False
        if self._messenger is not None:
            destroy = self._vk.instance_function(self.handle, "vkDestroyDebugUtilsMessengerEXT")
            destroy(self.handle, self._messenger, self._vk.ffi.NULL)
        self._vk.destroy("Instance", None, self.handle)
        self.handle = None
        for message in self.messages:
            _log.error("validation layer: %s", message)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what is wrong with drivers' and layers' manifests in place of the loader's word for it."""
    try:
        yield
    except VulkanError as error:
        if error.result == "VK_ERROR_INCOMPATIBLE_DRIVER":
            raise UnsupportedError(manifests.no_driver()) from error
        damaged = error.result == "VK_ERROR_OUT_OF_HOST_MEMORY" and manifests.damaged()
        if damaged:
            raise UnsupportedError(f"{damaged}; the loader takes no driver before it is mended") from error
        raise


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
    with _explained():
        layers = vk.enumerate("VkLayerProperties", "vkEnumerateInstanceLayerProperties")
    for layer in layers:
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
gate = Gate("vkpar")  # the process's: drivers are asked for devices, and devices opened, inside


def _renew() -> None:
    """In a forked child, which may open devices where its parent has not."""
    global gate
    gate = Gate("vkpar")


os.register_at_fork(after_in_child=_renew)


def end() -> None:
    """Ask drivers for nothing any more: the process ends. Wait for the threads that do."""
    gate.refuse(lambda: InvalidUsageError("the process is ending: no device can be opened any more"))
    gate.shut()


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
        try:
            _instance.open()
        except Exception:  # an interrupt leaves it to the next call
            _instance.close()
            _instance = None
            raise
        return _instance


def validating() -> bool:
    """Say whether the validation layer is on."""
    return _instance is not None and _instance.validating


def watching() -> bool:
    """Say whether the layer watches every access of kernels, and each submission waits for its end."""
    return _instance is not None and _instance.watching


def raise_messages() -> None:
    """Raise pending validation messages, if an instance exists.

    Raises:
        ValidationError: the validation layer has reported something since the last call.
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
