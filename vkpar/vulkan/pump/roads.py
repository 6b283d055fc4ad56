"""The roads of a group: what the C helper gives a vendor's streams, see ``_pump_peer.h``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vkpar.errors import OutOfMemoryError
from vkpar.vulkan.pump.native import CGroup, helper


class Lane(NamedTuple):
    """One lane of the road from rank ``src`` to rank ``dst``.

    Attributes:
        number: among the road's lanes.
        context: what the vendor's calls need to be current; ``stream``: what carries.
        raised: the address of the word that src's kernels raise; ``arrived``: of the one that the stream raises.
        base: where offsets count from in src's memory; ``dst_base``: in that of dst.
    """

    src: int
    dst: int
    number: int
    context: int
    stream: int
    raised: int
    arrived: int
    base: int
    dst_base: int


class Roads:
    """Has a group's programs carry what they transfer.

    Args:
        group: the group.
        functions: of the vendor's library; ``masks``: see :class:`vkpar.vulkan.peer.vendor.Vendor`.
        lanes: all that programs use.

    Raises:
        OutOfMemoryError: no room for them.
    """

    def __init__(self, group: CGroup, functions: Sequence[int], masks: bool, lanes: Sequence[Lane]) -> None:
        self._c, self._group = helper(), group
        self._c.lib.vkp_group_vendor(group.handle, self._c.ffi.new("uint64_t[]", functions), masks)
        for src, dst, number, *handles in lanes:
            road = self._c.ffi.new("vkp_road*", (*handles, 0))
            if not self._c.lib.vkp_group_road(group.handle, src, dst, number, road):
                raise OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", "vkp_group_road")

    def sent(self, src: int, dst: int, number: int) -> int:
        """Return how many transfers a lane was given, modulo 2^32."""
        return int(self._c.lib.vkp_group_sent(self._group.handle, src, dst, number))
