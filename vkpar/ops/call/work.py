"""How much a dispatch may do and what that takes; how many invocations a work-group has, and what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar.ops.call.makes import make_of

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.machine.physical import DeviceInfo

MAX_WORK: Final = 1 << 38  # multiply-adds of a dispatch: beyond it a slow GPU could run into its driver's watchdog
# Turns of one invocation's loops in a dispatch: CPU drivers give wrong results, silently, beyond 65,535.
MAX_TURNS: Final = 49_152
WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates
WARP: Final = 32
_GROUP: Final = {False: 256, True: 64}  # invocations of a work-group, by :func:`on_cpu`


def on_cpu(device: Device) -> bool:
    """Say whether work-groups are to be those for CPU drivers, which pay for each invocation at every barrier."""
    return device.info.is_cpu


def group_size(device: Device) -> int:
    """Return the invocations of a work-group: 256 where a GPU has them."""
    return min(_GROUP[on_cpu(device)], most_invocations(device))


def most_invocations(device: Device) -> int:
    """Return the largest power of two that a work-group may have of invocations."""
    return floor_power(device.limits.max_workgroup_invocations)


def ceil_power(value: int) -> int:
    """Return the least power of two that is not below ``value``, 1 for 0."""
    return 1 << max(value - 1, 0).bit_length()


def floor_power(value: int) -> int:
    """Return the largest power of two that is not above ``value``."""
    return 1 << (value.bit_length() - 1)


def has_warps(info: DeviceInfo, *operations: str) -> bool:
    """Tell whether subgroups are known to be 32 neighbours: some drivers run fewer than they name, if not asked.

    Args:
        info: the device.
        operations: what subgroups have to be able to do, too.
    """
    features = info.features
    known = make_of(info).warps and features.subgroup_size == WARP
    return known and set(operations) <= set(features.subgroup_operations)
