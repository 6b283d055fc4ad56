"""Whether a device can run what a module declares: checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines.capabilities import OF_DEVICES, extension_of, missing
from vkpar.vulkan.pipelines.interface import Interface
from vkpar.vulkan.pipelines.opcodes import Size, computed


def check_module(interface: Interface, entry: str) -> None:
    """Refuse a module that is no kernel of vkpar's on any device.

    Raises:
        InvalidUsageError: no such entry point, bindings with gaps, no local size.
        UnsupportedError: images, other descriptor sets, arrays of buffers.
    """
    if not isinstance(entry, str) or entry not in interface.entries:
        raise InvalidUsageError(f"no compute entry point {entry!r}; there are: {sorted(interface.entries)}")
    if interface.foreign:
        raise UnsupportedError(
            f"a kernel may use storage and uniform buffers of set 0 and push constants only, not {interface.foreign}"
        )
    if interface.bindings != frozenset(range(len(interface.bindings))):
        raise InvalidUsageError(f"bindings must be 0, 1, 2, ... without gaps, not {sorted(interface.bindings)}")
    beyond = [binding for binding, _ in interface.offsets if binding not in interface.bindings]
    if beyond:
        raise InvalidUsageError(f"the push constant vkpar_offset_{beyond[0]} is for a binding that the kernel lacks")
    if not all(interface.entries[entry].local_size):
        raise InvalidUsageError(f"the entry point {entry!r} declares no local size")


def check_device(info: DeviceInfo, label: str, interface: Interface, entry: str, most_buffers: int) -> None:
    """Refuse a device that lacks what a module needs.

    Args:
        info: the device.
        label: what messages call it.
        interface: of the module, which :func:`check_module` has passed.
        entry: the entry point's name.
        most_buffers: that vkpar binds at a time.

    Raises:
        UnsupportedError: a capability or a feature that is missing, by its name, or a limit that is too low.
    """
    newest = (1, 6) if info.api_version >= (1, 3, 0) else (1, 5)
    if interface.version > newest:
        raise UnsupportedError(f"SPIR-V {_dotted(interface.version)}; {label} takes {_dotted(newest)} at most")
    names = missing(interface.capabilities, info.features)
    if names:
        raise UnsupportedError(lacking(label, names))
    atomics = sorted(interface.float_atomics - set(info.features.float_atomics))
    if atomics:
        raise UnsupportedError(
            f"the kernel needs {', '.join(atomics)} ({', '.join(sorted(set(map(extension_of, atomics))))}), which "
            f"{label} does not have: run it on a device that has them (vkpar devices -v), or sum in another way"
        )
    _check_limits(info, label, interface, entry, most_buffers)


def check_subgroup(info: DeviceInfo, label: str, size: int | None, interface: Interface, entry: str) -> int:
    """Return the invocations of a subgroup that a kernel asks for, 0 for none; refuse what a device cannot give.

    Raises:
        InvalidUsageError: no power of two, or not a divisor of the work-group's invocations in x.
        UnsupportedError: the device takes no sizes, or others, or so many subgroups make no work-group.
    """
    if size is None:
        return 0
    local_size, sizes = interface.entries[entry].local_size, info.features.subgroup_sizes
    if type(size) is not int or size < 1 or size & (size - 1) or local_size[0] % size:
        raise InvalidUsageError(
            f"subgroup_size= is a power of two that divides the local size in x, {local_size[0]}, not {size!r}"
        )
    if not sizes:
        raise UnsupportedError(f"{label} takes no subgroup_size=: it lacks subgroupSizeControl for compute shaders")
    if not sizes[0] <= size <= sizes[1]:
        raise UnsupportedError(f"subgroup_size={size}; {label} takes {sizes[0]} to {sizes[1]}")
    number, most = math.prod(local_size) // size, info.limits.max_workgroup_subgroups
    if number > most:
        raise UnsupportedError(f"{number} subgroups of {size} in a work-group; {label} allows {most}")
    return size


def lacking(label: str, names: list[str]) -> str:
    """Say which capabilities the kernel must do without, and where it need not."""
    refused = [name for name in names if name not in OF_DEVICES]
    if refused:
        return (
            f"the kernel needs {', '.join(refused)} (SPIR-V capabilities), which vkpar turns on for no device, "
            f"{label} included: write the kernel without them"
        )
    return (
        f"the kernel needs {', '.join(names)} (SPIR-V capabilities), which {label} does not have: write the kernel "
        "without them, or run it on a device that has them (vkpar devices -v)"
    )


def _check_limits(info: DeviceInfo, label: str, interface: Interface, entry: str, most_buffers: int) -> None:
    limits, declared = info.limits, interface.entries[entry]
    size = declared.local_size
    if any(wanted > most for wanted, most in zip(size, limits.max_workgroup_size, strict=True)):
        raise UnsupportedError(f"a local size of {size}; {label} allows {limits.max_workgroup_size}")
    for what, wanted, most in (
        ("storage buffers", len(interface.bindings), min(limits.max_storage_buffers, most_buffers)),
        ("invocations in a work-group", math.prod(size), limits.max_workgroup_invocations),
        ("bytes of shared memory", declared.shared_nbytes, limits.max_shared_memory),
        ("bytes of push constants", interface.push_nbytes, limits.max_push_constants),
        (
            "bytes of a uniform block",
            max((size for _, size in interface.uniforms), default=0),
            limits.max_storage_buffer_range,
        ),
    ):
        if wanted > most:
            raise UnsupportedError(f"{wanted} {what}; {label} allows {most}")
    if interface.push_nbytes % 4:
        raise UnsupportedError(f"{interface.push_nbytes} bytes of push constants; their number is a multiple of 4")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def check_shared(label: str, name: str, size: Size, given: Mapping[int, int], most: int) -> None:
    """Refuse a kernel that takes more shared memory than a device has: some drivers end the process by it.

    Args:
        label: what messages call the device.
        name: of the kernel, empty for a user's.
        size: of its module's shared memory, see :func:`vkpar.vulkan.pipelines.constants.size_of`.
        given: the values of specialization constants, by number.
        most: bytes of shared memory of a work-group.

    Raises:
        UnsupportedError: it takes more.
    """
    nbytes = computed(size, given)
    if nbytes > most:
        raise UnsupportedError(f"{name or 'the kernel'}: {nbytes} bytes of shared memory; {label} allows {most}")
