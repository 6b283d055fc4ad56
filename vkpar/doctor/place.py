"""Where checks run: what was opened for them, once, and closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from zlib import crc32

from numpy.random import Generator, default_rng  # imported here: NumPy's lazy import can swallow a Ctrl-C

import vkpar
from vkpar import Device, DeviceInfo


class Place:
    """A child's devices.

    Args:
        stack: closes them.
        stage: told what a check does now, in words after "crashed" or "hung".
        quick: take a sample.

    Attributes:
        stage: the same; ``quick`` too.
    """

    def __init__(self, stack: ExitStack, stage: Callable[[str], None], *, quick: bool = False) -> None:
        self.stage, self.quick = stage, quick
        self._stack = stack
        self._infos: list[DeviceInfo] = []
        self._devices: dict[tuple[int, int], Device] = {}

    def info(self, index: int) -> DeviceInfo:
        """Return what is known of the device number ``index``."""
        if not self._infos:
            self._infos = vkpar.enumerate_devices()
        return self._infos[index]

    def device(self, index: int, number: int = 0) -> Device:
        """Return the device number ``index``, opened; ``number`` counts the times that it is."""
        key = (index, number)
        if key not in self._devices:
            self._devices[key] = self._stack.enter_context(Device(self.info(index)))
        return self._devices[key]

    def rig(self, indices: Sequence[int]) -> list[Device]:
        """Return the devices of a rig, in which a device may stand several times."""
        return [self.device(index, indices[:rank].count(index)) for rank, index in enumerate(indices)]

    def generator(self, name: str) -> Generator:
        """Return random numbers that are the same for ``name`` every time."""
        return default_rng(crc32(name.encode()))
