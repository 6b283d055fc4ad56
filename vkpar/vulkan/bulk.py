"""Copies of many bytes on a GPU, by a kernel: drivers' own copies on a compute queue may take five times as long."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.physical import ALIGNMENT, DeviceInfo

if TYPE_CHECKING:
    from vkpar.vulkan.pipelines.kernel import PipelineCache
    from vkpar.vulkan.stream import Stream

LEAST_NBYTES: Final = 256 << 10  # below, launching takes longest
_UNIT: Final = 16
_GROUP_NBYTES: Final = 256 * 4 * _UNIT  # that a work-group copies, see shaders/copy.comp


def suits(info: DeviceInfo, nbytes: int) -> bool:
    """Say whether the kernel copies so many bytes faster than the driver, as far as is known: on GPUs."""
    return nbytes >= LEAST_NBYTES and not info.is_cpu


def copy(
    info: DeviceInfo,
    pipelines: PipelineCache,
    stream: Stream,
    source: BufferRange,
    target: BufferRange,
    *,
    pushes: Callable[[int], bool],
) -> bool:
    """Copy ``source`` to ``target``, which do not overlap; False, and nothing done, where the kernel cannot.

    ``pushes`` says whether the descriptors of a kernel with so many bindings are pushed.
    """
    nbytes, limits = source.nbytes, info.limits
    if not suits(info, nbytes) or nbytes > limits.max_storage_buffer_range:
        return False
    if source.offset % ALIGNMENT or target.offset % ALIGNMENT or nbytes % _UNIT:
        return False
    groups = -(-nbytes // _GROUP_NBYTES)
    width, height, _ = limits.max_workgroup_count
    rows = -(-groups // width)
    if rows > height:
        return False
    pipeline = pipelines.shipped("copy", 2, 4, pushes=pushes(2))
    push = struct.pack("=I", nbytes // _UNIT)
    stream.dispatch("copy", pipeline, (source, target), push, (-(-groups // rows), rows, 1))
    return True
