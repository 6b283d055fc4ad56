"""Counts live Vulkan handles, so that tests see what leaks."""

from __future__ import annotations

from collections.abc import Iterable

import vkpar
from vkpar.vulkan import api


def held(devices: Iterable[vkpar.Device]) -> dict[str, int]:
    """Return live handles by kind, less the frames that queues keep for one-shot work: how many depends on timing."""
    counts = dict(api.load().live())
    for device in devices:
        logical = device._logical
        for queue in logical.queues:
            counts["CommandPool"] -= len(queue._frames)
            counts["DescriptorPool"] -= len(queue._frames)
    return counts
