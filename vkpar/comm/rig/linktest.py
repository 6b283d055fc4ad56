"""The child process of the self-test of native links (``links._self_test``): it hops between timelines, to and fro.

It prints its proof once each device's queue waited for, and saw, what the other's queue signalled.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.comm.rig.children import proof
from vkpar.comm.rig.links import share
from vkpar.timeouts import HOP_SECONDS
from vkpar.vulkan.command import CommandPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine import drivers
from vkpar.vulkan.pump.native import CGroup
from vkpar.vulkan.pump.ports import Batch


def hop(first: LogicalDevice, second: LogicalDevice, hops: int) -> list[int]:
    """Pass a token to and fro between two queues through each other's timelines; return how far each timeline got.

    Raises:
        WaitTimeoutError: the token was lost.
        VulkanError: the driver refuses.
    """
    devices = (first, second)
    group = CGroup([device.compute.port for device in devices], nslots=2)
    shared = [share(first.compute, second), share(second.compute, first)]
    before = [device.compute.reached for device in devices]
    pools = [CommandPool(device.handle, device.compute.family) for device in devices]
    try:
        group.set_native(1, 0, shared[0].handle)
        group.set_native(0, 1, shared[1].handle)
        batches = []
        for turn in range(hops):
            rank = turn % 2
            commands = pools[rank].allocate()
            commands.begin()
            commands.end()
            batches.append(Batch(rank, commands.handle, reads=(1 - rank,), writes=(rank,)))
        program = group.program(batches)
        program.enqueue()
        for device in devices:
            device.compute.wait(device.compute.last, HOP_SECONDS)
        program.close()
        return [device.compute.reached - was for device, was in zip(devices, before, strict=True)]
    finally:
        for semaphore in shared:
            semaphore.close()
        for pool in pools:
            pool.close()
        group.close()


def main(devices: Sequence[str], hops: int, nonce: str) -> None:
    """Run the test between the two devices named by UUID and print the proof."""
    by_uuid = {info.device_uuid: info for info in drivers.enumerate_devices()}
    first, second = (LogicalDevice(by_uuid[uuid]) for uuid in devices)
    reached = hop(first, second, hops)
    first.close()
    second.close()
    print(proof(nonce, reached))
