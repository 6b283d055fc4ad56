"""Links between ranks: native where the drivers share timelines, else bridged by the host."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import secrets
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from vkpar import env
from vkpar.comm.rig.children import proof, prove
from vkpar.comm.rig.processes.world import World
from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.queue import Queue
from vkpar.vulkan.semaphore import TimelineSemaphore

_log = logging.getLogger("vkpar")
NATIVE, BRIDGED, TRY = "native", "bridged", "try"
MPI = "mpi"

# Drivers on which timelines were measured to work between two GPUs, which Vulkan does not promise. VkDriverId 4 is
# VK_DRIVER_ID_NVIDIA_PROPRIETARY.
_MEASURED_DRIVERS = {4: "NVIDIA proprietary"}


@dataclass(frozen=True)
class Link:
    """How rank ``dst`` learns that rank ``src`` is done.

    Attributes:
        kind: ``native`` (dst's queue waits on src's own timeline), ``bridged`` (the host passes it on) or ``mpi``
            (slots cross between processes).
        reason: why it is of that kind.
    """

    src: int
    dst: int
    kind: str
    reason: str


def plan(ranks: Sequence[DeviceInfo], mapped: Collection[int] = ()) -> list[Link]:
    """Decide every ordered pair's link; links of ``mapped`` ranks are bridged, since the host copies their slots.

    Raises:
        UnsupportedError: ``VKPAR_LINK=native``, and a pair's link cannot be native.
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
                    kind, reason = _decide(source, target, trying=wanted == TRY)
                links.append(Link(src, dst, kind, reason))
    blocked = next((link for link in links if wanted == NATIVE and link.kind != NATIVE), None)
    if blocked:
        raise UnsupportedError(
            f"VKPAR_LINK=native: rank {blocked.src} to rank {blocked.dst}: {blocked.reason}; take auto"
        )
    for kind, reason in dict.fromkeys((link.kind, link.reason) for link in links):
        pairs = " ".join(f"{link.src}-{link.dst}" for link in links if (link.kind, link.reason) == (kind, reason))
        _log.log(logging.INFO if wanted == TRY else logging.DEBUG, "links %s are %s: %s", pairs, kind, reason)
    return links


def across(own: Sequence[Link], world: World) -> list[Link]:
    """Return the links of all ranks: ``own`` between those of this process, and those that MPI carries.

    Links between two ranks of another process are that one's to know.
    """
    division = world.division
    mine = division.ranks()
    made = [replace(link, src=mine.start + link.src, dst=mine.start + link.dst) for link in own]
    for process in division.others:
        for here, there in itertools.product(mine, division.ranks(process)):
            reason = world.channel.names[process]
            made += [Link(here, there, MPI, f"to {reason}"), Link(there, here, MPI, f"from {reason}")]
    return sorted(made, key=lambda link: (link.src, link.dst))


def _decide(source: DeviceInfo, target: DeviceInfo, *, trying: bool) -> tuple[str, str]:
    # First of all: importing a timeline into a driver that cannot take it ends the process.
    for info in (source, target):
        if not info.features.timeline_export:
            return BRIDGED, f"{info.driver_name} does not share timelines (OPAQUE_FD)"
    if source.driver_uuid != target.driver_uuid:
        return BRIDGED, "different drivers"
    if source.device_uuid == target.device_uuid:
        return NATIVE, "same device and driver"
    measured = _MEASURED_DRIVERS.get(source.driver_id) if sys.platform.startswith("linux") else None
    if measured is None and not trying:
        return BRIDGED, (
            f"{source.driver_name} is not known to share timelines between devices; VKPAR_LINK=try finds out"
        )
    problem = _self_test(*sorted((source.device_uuid, target.device_uuid)))
    if problem:
        return BRIDGED, f"the timeline self-test failed: {problem}"
    return NATIVE, f"{measured or source.driver_name} driver, self-test passed{'' if measured else ' (VKPAR_LINK=try)'}"


@functools.cache
def _self_test(first: str, second: str) -> str:
    """Pass timelines between two devices, by UUID, in a child process; return why that failed, "" where it passed.

    A driver that cannot pass them may crash the process that tries, hence the child. The test passes by a proof that
    only a run can give: how far the timelines got in a number of hops that is drawn here.
    """
    hops, nonce = 8 + secrets.randbelow(8), secrets.token_hex(16)
    job = {"devices": [first, second], "hops": hops, "nonce": nonce}
    problem = prove("vkpar.comm.rig.linktest", job, proof(nonce, [hops - hops // 2, hops // 2]))
    if problem:
        _log.warning("the timeline self-test between %s and %s failed: %s", first, second, problem)
    return problem


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
