"""Copies of many bytes on a GPU, by a kernel: drivers' own copies on a compute queue may take five times as long."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import ALIGNMENT, DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.pump.ledger import READS, REPLACES
from vkpar.vulkan.stream import Binding, Stream

if TYPE_CHECKING:
    from vkpar.vulkan.pipelines.kernel import PipelineCache

LEAST_NBYTES: Final = 256 << 10  # below, launching takes longest
_UNIT: Final = 16
_GROUP_NBYTES: Final = 256 * 4 * _UNIT  # that a work-group copies, see shaders/copy.comp
_MOST_PLANS: Final = 256
_ADDRESSES: Final = struct.Struct("=4Q").pack


def suits(info: DeviceInfo, nbytes: int) -> bool:
    """Say whether the kernel copies so many bytes faster than the driver, as far as is known: on GPUs."""
    return nbytes >= LEAST_NBYTES and not info.is_cpu


class Copies:
    """The copies of many bytes on one device; how each length is copied is kept.

    Args:
        info: of the device.
        pipelines: its kernels.
        stream: that the copies are appended to.
        pushes: says whether the descriptors of a kernel with so many bindings are pushed.
    """

    def __init__(
        self, info: DeviceInfo, pipelines: PipelineCache, stream: Stream, pushes: Callable[[int], bool]
    ) -> None:
        self._info, self._pipelines, self._stream, self._pushes = info, pipelines, stream, pushes
        self._plans: dict[int, Any] = {}

    def copy(self, source: BufferRange, target: BufferRange) -> bool:
        """Copy ``source`` to ``target``, which do not overlap; False, and nothing done, where the kernel cannot."""
        if not suits(self._info, source.nbytes):
            return False
        first, second = (api.load().address(item.buffer) for item in (source, target))
        pins = [item.owner for item in (source, target) if item.owner is not None]
        return self.copy_part(first, source.offset, second, target.offset, source.nbytes, pins)

    def copy_part(
        self, source: int, start: int, target: int, at: int, nbytes: int, pins: Sequence[object] = ()
    ) -> bool:
        """Copy as :meth:`copy` does, of VkBuffers given as numbers, where :func:`suits` says so.

        ``pins`` keep their memory, for a graph.
        """
        if start % ALIGNMENT or at % ALIGNMENT or nbytes % _UNIT:
            return False
        plan = self._plans.get(nbytes) or self._plan(nbytes)
        if plan is None:
            return False
        self._stream.launch(plan, _ADDRESSES(source, start, target, at), pins=pins)
        return True

    def _plan(self, nbytes: int) -> Any:
        """Return the dispatch that copies so many bytes; None where one does not suffice."""
        limits = self._info.limits
        groups = -(-nbytes // _GROUP_NBYTES)
        width, height, _ = limits.max_workgroup_count
        rows = -(-groups // width)
        if rows > height or nbytes > limits.max_storage_buffer_range:
            return None
        pipeline = self._pipelines.shipped("copy", 2, 4, pushes=self._pushes(2))
        push = struct.pack("=I", nbytes // _UNIT)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        bindings = [Binding.of(nbytes, READS), Binding.of(nbytes, REPLACES)]
        plan = self._stream.plan("copy", pipeline, bindings, (-(-groups // rows), rows, 1), push)
        return self._plans.setdefault(nbytes, plan)
