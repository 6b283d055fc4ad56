"""Copies between two devices that share no communicator: the first copy makes one for the two."""

from __future__ import annotations

from vkpar import device
from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.device import Device

_STAGING_BYTES = 8 << 20


class PairCommunicator(Communicator):
    """A communicator for copies alone, with little staging memory."""

    _staging_nbytes = _STAGING_BYTES
    _tunes = False

    def move(self, source: Array, target: Array) -> None:
        """Enqueue a copy between the two devices."""
        self._engine.move(source, target)


def make_peer_copier(source: Device, target: Device) -> PairCommunicator:
    """Return a communicator that copies arrays from ``source`` to ``target`` and back."""
    return PairCommunicator([source, target])


device.make_peer_copier = make_peer_copier
