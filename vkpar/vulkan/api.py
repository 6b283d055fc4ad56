"""The door to the Vulkan loader: raw cffi calls, structs, typed errors and the count of live handles.

Nothing is loaded before :func:`load`. Raw calls are used because the package's wrappers cost 25-42 us each.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import Any

from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError

_MEMORY_RESULTS = {
    "VK_ERROR_OUT_OF_HOST_MEMORY",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "VK_ERROR_OUT_OF_POOL_MEMORY",
    "VK_ERROR_TOO_MANY_OBJECTS",
}
# Object kinds whose parent is the instance itself, so that destroy takes no parent argument.
_SELF_DESTROYING = {"Instance", "Device"}


class Api:
    """The loaded Vulkan loader.

    Attributes:
        ffi: the cffi instance that knows the Vulkan types.
        lib: the loader's exported functions.
        vk: the constants (``vk.VK_SUCCESS`` and so on).
    """

    def __init__(self, module: Any) -> None:
        self.vk = module
        self.ffi = module.ffi
        self.lib = module.lib
        self._names = _result_names(module)
        self._live: Counter[str] = Counter()
        self._lock = threading.RLock()  # a finalizer may destroy handles in the middle of a count

    def struct(self, name: str, **members: Any) -> Any:
        """Return a new zeroed struct ``name`` with its sType and ``members`` set; what they point to is kept alive.

        A Python list or bytes given for a pointer member becomes a C array.
        """
        made = self.ffi.new(f"{name}*")
        members_of = dict(self.ffi.typeof(name).fields)
        if "sType" in members_of:
            made.sType = getattr(self.vk, name).__defaults__[0]
        kept: list[Any] = []
        for key, value in members.items():
            plain = members_of[key].type.kind == "pointer" and isinstance(value, (list, bytes, str))
            item = self._array(members_of[key].type, value, kept) if plain else value
            kept.append(item)
            setattr(made, key, item)
        # The destructor holds what the struct points to. It is a built-in method because Python drops a Ctrl-C that
        # lands in a finalizer written in Python.
        return self.ffi.gc(made, kept.append)

    def _array(self, pointer: Any, value: list[Any] | bytes | str, kept: list[Any]) -> Any:
        """Return a C array of ``value`` for a member of type ``pointer``; ``kept`` gets what it points to."""
        if isinstance(value, str):
            return self.ffi.new("char[]", value.encode())
        if isinstance(value, bytes):
            kept.append(self.ffi.new("char[]", value))
            return self.ffi.cast(pointer, kept[-1])
        if pointer.item.cname == "char *":
            texts = [self.ffi.new("char[]", text.encode()) for text in value]
            kept.append(texts)
            return self.ffi.new("char*[]", texts)
        if pointer.item.kind == "struct":
            kept.append(list(value))
            return self.ffi.new(f"{pointer.item.cname}[]", [item[0] for item in value])
        return self.ffi.new(f"{pointer.item.cname}[]", list(value))

    def check(self, result: int, call: str, detail: str = "") -> None:
        """Raise the typed error that a negative ``result`` of ``call`` stands for.

        Raises:
            DeviceLostError, OutOfMemoryError, VulkanError
        """
        if result < 0:
            raise self.error(result, call, detail)

    def error(self, result: int, call: str, detail: str = "") -> VulkanError:
        """Return the typed error for ``result`` without raising it."""
        name = self.result_name(result)
        if name == "VK_ERROR_DEVICE_LOST":
            return DeviceLostError(name, call, detail)
        if name in _MEMORY_RESULTS:
            return OutOfMemoryError(name, call, detail)
        return VulkanError(name, call, detail)

    def result_name(self, result: int) -> str:
        """Return the VkResult's name, such as ``VK_ERROR_DEVICE_LOST``."""
        return self._names.get(result, f"VkResult {result}")

    def create(self, kind: str, parent: Any, info: Any, detail: str = "") -> Any:
        """Call ``vkCreate<kind>`` and count the new handle; ``parent`` is None for an instance."""
        made = self.ffi.new(f"Vk{kind}*")
        call = f"vkCreate{kind}"
        arguments = [info, self.ffi.NULL, made]
        if parent is not None:
            arguments.insert(0, parent)
        self.check(getattr(self.lib, call)(*arguments), call, detail)
        self.count(kind, 1)
        return made[0]

    def destroy(self, kind: str, parent: Any, handle: Any) -> None:
        """Call ``vkDestroy<kind>`` and uncount the handle."""
        function = getattr(self.lib, f"vkDestroy{kind}")
        if kind in _SELF_DESTROYING:
            function(handle, self.ffi.NULL)
        else:
            function(parent, handle, self.ffi.NULL)
        self.count(kind, -1)

    def count(self, kind: str, change: int) -> None:
        """Add ``change`` to the number of live handles of ``kind``."""
        with self._lock:
            self._live[kind] += change

    def live(self) -> dict[str, int]:
        """Return the handles created and not yet destroyed, by kind (kinds at zero left out)."""
        with self._lock:
            return {kind: number for kind, number in self._live.items() if number}

    def address(self, handle: Any) -> int:
        """Return a handle or pointer as an integer."""
        return int(self.ffi.cast("uintptr_t", handle))

    def device_function(self, device: Any, name: str) -> Any:
        """Return the device's own entry point ``name`` (no loader trampoline), or None."""
        pointer = self.lib.vkGetDeviceProcAddr(device, name.encode())
        return None if pointer == self.ffi.NULL else self.ffi.cast(f"PFN_{name}", pointer)

    def instance_function(self, instance: Any, name: str) -> Any:
        """Return the instance-level entry point ``name``, or None."""
        pointer = self.lib.vkGetInstanceProcAddr(instance, name.encode())
        return None if pointer == self.ffi.NULL else self.ffi.cast(f"PFN_{name}", pointer)

    def enumerate(self, type_name: str, function: Any, *arguments: Any, call: str = "", chained: bool = False) -> Any:
        """Run Vulkan's count-then-fill protocol and return the filled C array."""
        number = self.ffi.new("uint32_t*")
        self.check(function(*arguments, number, self.ffi.NULL) or 0, call)
        filled = self.ffi.new(f"{type_name}[]", number[0])
        if chained:
            for item in filled:
                item.sType = getattr(self.vk, type_name).__defaults__[0]
        self.check(function(*arguments, number, filled) or 0, call)
        if number[0] == len(filled):
            return filled
        fewer = self.ffi.new(f"{type_name}[]", number[0])  # a slice would not keep the array alive
        self.ffi.memmove(fewer, filled, self.ffi.sizeof(fewer))
        return fewer

    def text(self, chars: Any) -> str:
        """Return a C string as text."""
        return str(self.ffi.string(chars).decode("utf-8", "replace"))


def _result_names(module: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, int) and (name.startswith("VK_ERROR_") or name in ("VK_SUCCESS", "VK_TIMEOUT")):
            # Errors are negative; the package forgets the sign of those that extensions bring.
            names.setdefault(-abs(value) if name.startswith("VK_ERROR_") else value, name)
    return names


@functools.cache
def load() -> Api:
    """Load the Vulkan loader once a process.

    Raises:
        UnsupportedError: no loader on this machine.
    """
    try:
        import vulkan._vulkan as module
    except OSError as error:
        raise UnsupportedError(
            "no Vulkan loader found (libvulkan.so.1): install libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora) "
            "or vulkan-icd-loader (Arch)"
        ) from error
    return Api(module)


def version(packed: int) -> tuple[int, int, int]:
    """Return a VK_MAKE_API_VERSION number as (major, minor, patch)."""
    return (int(packed) >> 22 & 0x7F, int(packed) >> 12 & 0x3FF, int(packed) & 0xFFF)


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def loaded() -> bool:
    """Say whether :func:`load` has succeeded in this process."""
    return load.cache_info().currsize > 0
