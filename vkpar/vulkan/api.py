"""The door to the Vulkan loader: raw cffi calls, structs, typed errors and the record of live handles.

Nothing is loaded before :func:`load`. Raw calls are used because the package's wrappers cost 25-42 us each.

An interrupt loses no handle. Python runs signal handlers, and so raises what they raise, in the main thread when a call
of Python's own returns and where a loop turns, never inside a function that is implemented in C. So:

- A handle is written down by the call that makes it: what the driver fills, and the list that takes the call's result,
  are in the record before, and ``list.extend`` makes the call and keeps the result.
- A handle leaves the record by the call that destroys it: ``next`` drives both, over functions that are implemented in
  C. An interrupt comes before both or after both, and a second call finds nothing to do.
- What lost its owner to an interrupt is still in the record, and is destroyed with its device.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError

_log = logging.getLogger("vkpar")
_MEMORY_RESULTS = {
    "VK_ERROR_OUT_OF_HOST_MEMORY",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "VK_ERROR_OUT_OF_POOL_MEMORY",
    "VK_ERROR_TOO_MANY_OBJECTS",
}
# Object kinds whose parent is the instance itself, so that destroy takes no parent argument.
_SELF_DESTROYING = {"Instance", "Device"}
_DESTROYERS = {"DeviceMemory": "vkFreeMemory"}

_Key = tuple[str, int, int, int]  # kind, parent's address, handle's, and a number that tells equal handles apart


@dataclass(eq=False)
class Making:
    """A handle, from before the call that makes it: that call fills ``cell``, and its result goes to ``results``."""

    kind: str
    owner: int
    cell: Any
    results: list[int] = field(default_factory=list)

    @property
    def has_handle(self) -> bool:
        """True once the call has made it."""
        return bool(self.results) and self.results[0] >= 0 and bool(self.cell[0])


class Api:
    """The loaded Vulkan loader.

    Attributes:
        ffi: the cffi instance that knows the Vulkan types.
        lib: the loader's exported functions.
        vk: the constants (``vk.VK_SUCCESS`` and so on).
        left: how many handles had lost their owners and were destroyed with their devices.
    """

    def __init__(self, module: Any) -> None:
        self.vk = module
        self.ffi = module.ffi
        self.lib = module.lib
        self._names = _result_names(module)
        self.left = 0
        self._live: dict[_Key, Making] = {}  # in the order in which they were made
        self._making: dict[int, Making] = {}  # what calls make that are under way, or were interrupted

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
            DeviceLostError: the device is lost.
            OutOfMemoryError: the driver has no memory, or no further handles.
            VulkanError: any other failure.
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

    def making(self, kind: str, parent: Any) -> Making:
        """Return what a handle of ``kind`` is going to be recorded as.

        Who keeps it from before the handle is made can :meth:`discard` that, wherever an interrupt comes.
        """
        owner = 0 if kind in _SELF_DESTROYING else self.address(parent)
        return Making(kind, owner, self.ffi.new(f"Vk{kind}[1]"))

    def create(self, kind: str, parent: Any, info: Any, detail: str = "", made: Making | None = None) -> Any:
        """Call ``vkCreate<kind>`` and record the new handle; ``parent`` is None for an instance."""
        arguments = (info, self.ffi.NULL) if parent is None else (parent, info, self.ffi.NULL)
        return self.make(made or self.making(kind, parent), f"vkCreate{kind}", *arguments, detail=detail)

    def make(self, made: Making, call: str, *arguments: Any, detail: str = "") -> Any:
        """Call ``call``, which stores a new handle through its last argument; record the handle as ``made``, return it.

        Raises:
            VulkanError: the call failed; raised as :meth:`check` does.
        """
        self._making[id(made)] = made
        function, given = getattr(self.lib, call), (*arguments, made.cell)
        made.results.extend(map(function, *zip(given)))
        self._record(made)
        self.check(made.results[0], call, detail)
        return made.cell[0]

    def _record(self, made: Making) -> None:
        """Record what ``made`` says; once more where an interrupt came before it was through."""
        if made.has_handle:
            key = (made.kind, made.owner, self.address(made.cell[0]), 0)
            while self._live.get(key, made) is not made:  # drivers may give equal handles for equal objects
                key = (*key[:3], key[3] + 1)
            self._live[key] = made
        self._making.pop(id(made), None)

    def destroy(self, kind: str, parent: Any, handle: Any) -> None:
        """Destroy ``handle``; do nothing where that was done before."""
        owner = 0 if kind in _SELF_DESTROYING else self.address(parent)
        key = (kind, owner, self.address(handle), 0)
        while (*key[:3], key[3] + 1) in self._live:
            key = (*key[:3], key[3] + 1)
        if key in self._live:
            self._destroy(key, parent)

    def discard(self, made: Making, parent: Any) -> None:
        """Destroy what ``made`` stands for; do nothing where it never was made, or is destroyed.

        What is left of a device's own goes with the device.
        """
        if id(made) in self._making:
            self._record(made)
        for key in [key for key, recorded in self._live.copy().items() if recorded is made]:
            if made.kind == "Device":
                self._destroy_left(made.cell[0])
            self._destroy(key, parent)

    def _destroy(self, key: _Key, parent: Any) -> None:
        """Take a handle from the record and destroy it, in one step (see the head of the module)."""
        function = getattr(self.lib, _DESTROYERS.get(key[0], f"vkDestroy{key[0]}"))
        taken = map(operator.getitem, map(operator.attrgetter("cell"), map(self._live.pop, (key,))), (0,))
        nothing = (self.ffi.NULL,)
        if key[0] in _SELF_DESTROYING:
            next(map(function, taken, nothing))
        else:
            next(map(function, (parent,), taken, nothing))

    def _destroy_left(self, device: Any) -> None:
        """Destroy what was made of ``device`` and has no owner: the newest first."""
        owner = self.address(device)
        for made in [made for made in self._making.copy().values() if made.owner == owner]:
            self._record(made)
        left = [key for key in list(self._live) if key[1] == owner]
        self.left += len(left)
        for key in reversed(left):
            _log.info("%s %#x has no owner any more; it is destroyed with its device", key[0], key[2])
            self._destroy(key, device)

    def live(self) -> dict[str, int]:
        """Return the handles created and not yet destroyed, by kind (kinds at zero left out)."""
        recorded = self._live.copy()
        known = set(map(id, recorded.values()))
        making = [made for made in self._making.copy().values() if made.has_handle and id(made) not in known]
        return dict(Counter(made.kind for made in (*making, *recorded.values())))

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

    def enumerate(self, type_name: str, call: str, *arguments: Any, function: Any = None, chained: bool = False) -> Any:
        """Run Vulkan's count-then-fill protocol and return the filled C array.

        Args:
            type_name: of its elements.
            call: what is called, a function of the loader, or of an extension where ``function`` is given.
            arguments: before the count and the array.
            function: of an extension.
            chained: its elements have types and chains.
        """
        function = getattr(self.lib, call) if function is None else function
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
