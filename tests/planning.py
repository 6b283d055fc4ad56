"""What devices keep of the calls of operations."""

from __future__ import annotations

import vkpar


def forget(device: vkpar.Device) -> None:
    """Have the next calls go the long way: those that a test made choose other kernels would run by what is kept."""
    device.plans.known.clear()
    device.plans.recipes.clear()
