"""Holds up a device's queues, so that tests see work that is under way for as long as they want."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import vkpar
from vkpar.vulkan import api
from vkpar.vulkan.pump.ports import enqueue_lock
from vkpar.vulkan.semaphore import TimelineSemaphore


@contextmanager
def parked(device: vkpar.Device) -> Iterator[Callable[[], None]]:
    """Hold up every queue of the device until the given function is called, or the block ends."""
    vk, logical = api.load(), device.logical
    queues = logical.queues
    gate = TimelineSemaphore(logical.handle, host_only=True)
    values = vk.struct("VkTimelineSemaphoreSubmitInfo", waitSemaphoreValueCount=1, pWaitSemaphoreValues=[1])
    info = vk.struct(
        "VkSubmitInfo",
        pNext=values,
        waitSemaphoreCount=1,
        pWaitSemaphores=[gate.handle],
        pWaitDstStageMask=[vk.vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT],
    )
    logical.stream.flush()  # so that its thread submits nothing meanwhile
    with enqueue_lock:
        for queue in queues:
            vk.check(vk.lib.vkQueueSubmit(queue.handle, 1, info, vk.ffi.NULL), "vkQueueSubmit")
    released = False

    def release() -> None:
        nonlocal released
        if not released:
            released = True
            gate.signal(1)

    try:
        yield release
    finally:
        release()
        for queue in queues:
            queue.port.wait_idle(vk.device_function(logical.handle, "vkQueueWaitIdle"))
        gate.close()
