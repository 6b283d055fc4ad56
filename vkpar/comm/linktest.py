"""The self-test of native links: ``python -m vkpar.comm.linktest UUID UUID`` hops timelines both ways and back.

Exit status 0 means that each device's queue waited for, and saw, what the other's queue signalled.
"""

from __future__ import annotations

import sys

from vkpar.comm.links import share
from vkpar.vulkan import physical
from vkpar.vulkan.command import CommandPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.ports import Batch

_HOPS = 8
_SECONDS = 10.0


def hop(first: LogicalDevice, second: LogicalDevice) -> None:
    """Pass a token to and fro between two queues through each other's timelines.

    Raises:
        WaitTimeoutError: the token was lost.
        VulkanError: the driver refuses.
    """
    devices = (first, second)
    group = CGroup([device.compute.port for device in devices], nslots=2)
    shared = [share(first.compute, second), share(second.compute, first)]
    pools = [CommandPool(device.handle, device.compute.family) for device in devices]
    try:
        group.set_native(1, 0, shared[0].handle)
        group.set_native(0, 1, shared[1].handle)
        batches = []
        for turn in range(_HOPS):
            rank = turn % 2
            commands = pools[rank].allocate()
            commands.begin()
            commands.end()
            batches.append(Batch(rank, commands.handle, reads=(1 - rank,), writes=(rank,)))
        program = group.program(batches)
        program.enqueue()
        for device in devices:
            device.compute.wait(device.compute.last, _SECONDS)
        program.close()
    finally:
        for semaphore in shared:
            semaphore.close()
        for pool in pools:
            pool.close()
        group.close()


def main(arguments: list[str]) -> int:
    """Run the test between the two devices named by UUID."""
    by_uuid = {info.device_uuid: info for info in physical.enumerate_devices()}
    first, second = (LogicalDevice(by_uuid[uuid]) for uuid in arguments)
    hop(first, second)
    first.close()
    second.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
