"""What is known of GPUs by their maker or driver, where drivers do not say it: how their kernels are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo


class Make(NamedTuple):
    """What counts for the choice of kernels.

    Attributes:
        warps: subgroups are 32 neighbours, as the driver says; some drivers run fewer than they name, if not asked.
        sums: that an invocation of a product's tile keeps, at most.
        rows: queries of attention that an invocation keeps scores and sums of, at most.
        matrices_since: the version of the driver from which on integrated GPUs list matrices of 8x8x16 only where they
            have units for them.
        wide_since: the version of the driver from which on its compiler finds registers for the queries of attention's
            widest rows on matrix cores, beside their sums and what is loaded ahead.
        brief: kernels of matrix cores load nothing ahead, and what follows their products is a loop: the compiler
            spills registers otherwise, and takes seconds.
        waits: running sums go over memory once, and work-groups wait for others that have begun; discrete GPUs alone.
    """

    warps: bool = False
    sums: int = 64
    rows: int = 8
    matrices_since: int = 0
    wide_since: int = 0
    brief: bool = False
    waits: bool = False


# By PCI's number of the maker. 128 sums take some 200 registers: a unit of NVIDIA's still holds eight subgroups of
# these, which keep it busy; one of AMD's older cards holds a single one for each of its parts, which does not.
# Invocations of Intel's have 128 registers in the narrowest subgroups, and spill what 64 sums take, or 8 rows.
_MAKES: Final = {
    0x10DE: Make(warps=True, sums=128, waits=True),
    0x8086: Make(sums=32, rows=4, matrices_since=26),
}
_RADV, _NVK = 3, 24  # Mesa's drivers for AMD's and NVIDIA's cards
_OF_DRIVERS: Final = {_RADV: Make(wide_since=26), _NVK: Make(warps=True, brief=True)}
_OTHERS: Final = Make()


def make_of(info: DeviceInfo) -> Make:
    """Return what is known of a device's make, or of its driver where that differs from others of the make."""
    return _OF_DRIVERS.get(info.driver_id) or _MAKES.get(info.vendor_id, _OTHERS)
