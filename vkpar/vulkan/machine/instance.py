"""The one VkInstance of a process, and what the validation layer says."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from vkpar import env
from vkpar.errors import InvalidUsageError, UnsupportedError, ValidationError, VulkanError
from vkpar.vulkan import api
from vkpar.vulkan.gate import Gate

_log = logging.getLogger("vkpar")
_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_NO_DRIVER = "no Vulkan driver found: install your GPU's driver, or mesa-vulkan-drivers for a CPU one"
_NO_DEVICE = (
    "a Vulkan driver is installed, but it reaches no device. In a container, hand the GPU in (docker run --device "
    "/dev/dri, or --gpus all with NVIDIA_DRIVER_CAPABILITIES=all). Elsewhere, see that the card is listed by lspci, "
    "that its kernel driver is loaded, and that you may open /dev/dri/renderD* (groups render and video). "
    "mesa-vulkan-drivers adds a CPU device, which needs no card"
)
_REPLACING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # name the drivers to load, in place of the installed ones
_FILTERING = ("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
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
        self._callback: Any = None
        self._messenger: Any = None
        self._made: api.Making | None = None
        self._is_open = False
        self.handle: Any = None
        self._physical: list[Any] | None = None

    def open(self) -> None:
        """Make the VkInstance; do nothing where that was done. What an interrupt left is undone first.

        Raises:
            UnsupportedError: no loader, no driver, or no validation layer where one is asked for.
        """
        if self._is_open:
            return
        self._undo()
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
        try:
            return vk.create("Instance", None, info, made=made)
        except VulkanError as error:
            if error.result == "VK_ERROR_INCOMPATIBLE_DRIVER":
                raise UnsupportedError(no_driver()) from error
            raise

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
            "VkValidationFeaturesEXT",
            enabledValidationFeatureCount=len(enabled),
            pEnabledValidationFeatures=enabled,
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
                    raise UnsupportedError(f"{_no_device()} ({call}: {error.result})") from error
                raise
            self._physical = list(found)
        if not self._physical:
            raise UnsupportedError(_no_device())
        return self._physical

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


def no_driver() -> str:
    """Return what is wrong, and what to do, where the loader finds no driver."""
    for variable in _REPLACING:
        value = os.environ.get(variable)
        if value:
            lost = [path for path in value.split(os.pathsep) if path and not os.path.exists(path)]
            why = f"there is no {' nor '.join(lost)}" if lost else "none of them loads (VK_LOADER_DEBUG=error says why)"
            return (
                f"no Vulkan driver found: {variable}={value} names the only drivers that may be loaded, and {why}. "
                "Correct the variable, or unset it to use the installed drivers"
            )
    filters = " ".join(f"{name}={os.environ[name]}" for name in _FILTERING if os.environ.get(name))
    if filters:
        return f"no Vulkan driver found: {filters} may leave none of the installed ones. Correct or unset it"
    return _NO_DRIVER


def _no_device() -> str:
    """Return the same for drivers that offer no device."""
    named = next((name for name in (*_REPLACING, *_FILTERING) if os.environ.get(name)), None)
    return f"{_NO_DEVICE}; {named}={os.environ[named]} may keep other drivers from being asked" if named else _NO_DEVICE


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
    for layer in vk.enumerate("VkLayerProperties", "vkEnumerateInstanceLayerProperties"):
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
