"""Links between ranks: native where the drivers share timelines, else bridged by the host."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from vkpar import env
from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.physical import DeviceInfo
from vkpar.vulkan.queue import Queue
from vkpar.vulkan.semaphore import TimelineSemaphore

_log = logging.getLogger("vkpar")
NATIVE, BRIDGED = "native", "bridged"

# Drivers on which timelines were measured to work between two GPUs, which Vulkan does not promise. VkDriverId 4 is
# VK_DRIVER_ID_NVIDIA_PROPRIETARY.
_MEASURED_DRIVERS = {4: "NVIDIA proprietary"}
_SELF_TEST_SECONDS = 60.0


@dataclass(frozen=True)
class Link:
    """How rank ``dst`` learns that rank ``src`` is done.

    Attributes:
        kind: ``native`` (dst's queue waits on src's own timeline) or ``bridged`` (the host passes it on).
        reason: why it is of that kind.
    """

    src: int
    dst: int
    kind: str
    reason: str


def plan(ranks: Sequence[DeviceInfo], mapped: Collection[int] = ()) -> list[Link]:
    """Decide every ordered pair's link; ``mapped`` ranks' slots are copied by the host, so it must pass them on.

    Raises:
        UnsupportedError: ``VKPAR_LINK=native`` and a pair that cannot be native.
    """
    wanted = env.get().link
    links = []
    for src, source in enumerate(ranks):
        for dst, target in enumerate(ranks):
            if src != dst:
                if wanted == BRIDGED:
                    kind, reason = BRIDGED, "VKPAR_LINK=bridged"
                elif src in mapped or dst in mapped:
                    kind, reason = BRIDGED, "the host copies what a mapped rank reads and writes"
                else:
                    kind, reason = _decide(source, target)
                links.append(Link(src, dst, kind, reason))
    blocked = next((link for link in links if wanted == NATIVE and link.kind != NATIVE), None)
    if blocked:
        raise UnsupportedError(
            f"VKPAR_LINK=native: rank {blocked.src} to rank {blocked.dst}: {blocked.reason}; take auto"
        )
    return links


def _decide(source: DeviceInfo, target: DeviceInfo) -> tuple[str, str]:
    for info in (source, target):
        if not info.features.timeline_export:
            return BRIDGED, f"{info.driver_name} does not share timelines (OPAQUE_FD)"
    if source.driver_uuid != target.driver_uuid:
        return BRIDGED, "different drivers"
    if source.device_uuid == target.device_uuid:
        return NATIVE, "same device and driver"
    if source.driver_id not in _MEASURED_DRIVERS or not sys.platform.startswith("linux"):
        return BRIDGED, f"{source.driver_name} is not known to share timelines between devices"
    if not _self_test(*sorted((source.device_uuid, target.device_uuid))):
        return BRIDGED, "the timeline self-test failed"
    return NATIVE, f"{_MEASURED_DRIVERS[source.driver_id]} driver, self-test passed"


@functools.cache
def _self_test(first: str, second: str) -> bool:
    """Pass timelines between two devices, by UUID, in a child process: a driver that cannot may crash it."""
    command = [sys.executable, "-m", "vkpar.comm.rig.linktest", first, second]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SELF_TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        _log.warning("the timeline self-test between %s and %s did not end", first, second)
        return False
    if done.returncode != 0:
        _log.warning("the timeline self-test between %s and %s failed: %s", first, second, done.stderr[-500:])
    return done.returncode == 0


def share(source: Queue, target: LogicalDevice) -> TimelineSemaphore:
    """Return ``source``'s timeline as ``target``'s device knows it; only for native links."""
    with ExitStack() as undo:
        imported = TimelineSemaphore(target.handle)
        undo.callback(imported.close)
        descriptor = source.timeline.export_fd()
        try:
            imported.import_fd(descriptor)
        except VulkanError:
            os.close(descriptor)  # the driver did not take it
            raise
        undo.pop_all()
    return imported
