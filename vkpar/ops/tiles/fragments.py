"""The matrices that a device's subgroups multiply: of which size, and how many invocations hold one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.ops.call.checks import SHORT
from vkpar.ops.call.makes import make_of

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo


class Fragment(NamedTuple):
    """Rows and columns of a matrix of sums, and the steps of K that are multiplied at once."""

    rows: int
    columns: int
    steps: int

    @property
    def shape(self) -> str:
        """As devices list it."""
        return f"{self.rows}x{self.columns}x{self.steps}"

    def warp(self, info: DeviceInfo) -> int:
        """Return the invocations of a subgroup that holds one: as many as the driver says, or one for each column."""
        return info.features.subgroup_size if self == WHOLE else self.columns


WHOLE: Final = Fragment(16, 16, 16)
NARROW: Final = (Fragment(8, 16, 16), Fragment(8, 8, 16))
"""Those of Intel's units, in the order in which they are taken; pipelines have to ask for their subgroups."""


def fragment_of(info: DeviceInfo, dtype: str) -> Fragment | None:
    """Return the matrices of a type of halves that a device's units multiply into float32; None where it has none.

    Args:
        info: the device.
        dtype: of both operands.
    """
    return next((each for each in (WHOLE, *NARROW) if has(info, each, dtype)), None)


def has(info: DeviceInfo, fragment: Fragment, dtype: str) -> bool:
    """Tell whether a device multiplies such matrices, by whole subgroups of as many invocations as these need."""
    features, kind = info.features, SHORT[dtype]
    if f"{fragment.shape} {kind}*{kind}->f32" not in features.cooperative_matrix or not features.subgroup_control:
        return False
    if fragment == WHOLE:
        return True
    least, most = features.subgroup_sizes or (0, 0)
    return least <= fragment.warp(info) <= most and not _emulated(info, fragment)


def _emulated(info: DeviceInfo, fragment: Fragment) -> bool:
    """Tell whether a driver lists matrices that the device has no units for."""
    old = info.driver_version >> 22 < make_of(info).matrices_since
    return old and info.type == "integrated" and fragment == NARROW[-1]
