"""Counts live Vulkan handles, so that tests see what leaks."""

from __future__ import annotations

from collections.abc import Iterable

import vkpar
from vkpar.vulkan import api


def held(devices: Iterable[vkpar.Device]) -> dict[str, int]:
    """Return live handles by kind, less what is kept for later and depends on timing.

    That is the frames of queues for one-shot work, and the blocks of memory that arrays are cut from.
    """
    counts = dict(api.load().live())
    for device in devices:
        logical = device._logical
        for queue in logical.queues:
            counts["CommandPool"] -= len(queue._frames)
            counts["DescriptorPool"] -= len(queue._frames)
        blocks = len(list(logical.allocator._pool.blocks()))
        counts["DeviceMemory"] -= blocks
        counts["Buffer"] -= blocks
    return counts
