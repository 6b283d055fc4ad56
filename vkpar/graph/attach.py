"""What a capture changes of a device: where its thread's operations go, and which memory its arrays lie in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.memory.recycle import Divided, Recycler

_changing = threading.Lock()  # held while captures of devices begin and end


def attach(device: LogicalDevice, memory: Recycler) -> None:
    """Have what this thread asks of a device go to its capture; arrays that it makes lie in what ``memory`` keeps.

    Raises:
        InvalidUsageError: another thread captures the device, or it is closed.
    """
    with device.gate.lock(), _changing:
        device.gate.check()
        if isinstance(device.recycler, Divided):
            raise InvalidUsageError(f"{device.label} is captured by another thread already; one capture at a time")
        memory.ledger = device.ledger
        device.recycler = Divided(device.recycler, memory)
        device.stream.capture(on=True)


def detach(device: LogicalDevice, memory: Recycler) -> None:
    """End what :func:`attach` began with ``memory``; does nothing where it began nothing."""
    with _changing:
        divided = device.recycler
        if isinstance(divided, Divided) and divided.own is memory:
            device.stream.capture(on=False)
            device.recycler = divided.rest


@contextmanager
def outside(device: LogicalDevice) -> Iterator[None]:
    """Let this thread, which captures the device, make arrays that no captured operation but those on them reach.

    Others may lie where an array of the graph lay that was dropped.
    """
    divided = device.recycler
    assert isinstance(divided, Divided), "this thread captures the device"
    divided.paused = True
    device.stream.capture(on=False)
    try:
        yield
    finally:
        if device.recycler is divided:  # else an interrupt has ended the capture meanwhile
            device.stream.capture(on=True)
            divided.paused = False
