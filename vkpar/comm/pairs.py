"""Copies between two devices that share no communicator: one of their own, made at the first copy."""

from __future__ import annotations

from vkpar import device as devices
from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.device import Device

_STAGING_BYTES = 8 << 20


class PairCommunicator(Communicator):
    """A communicator that only copies, with little staging memory."""

    _staging_nbytes = _STAGING_BYTES
    _tunes = False

    def move(self, source: Array, target: Array) -> None:
        """Enqueue a copy between the two devices."""
        self._engine.move(source, target)


def connect(source: Device, target: Device) -> PairCommunicator:
    """Return what carries arrays from ``source`` to ``target`` and back."""
    return PairCommunicator([source, target])


devices.connect = connect
