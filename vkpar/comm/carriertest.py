"""The child process of the self-test of copies between cards (``transports.peer``): sums over them, and an abort.

It prints its proof once every rank has had the right sums, of few and of many elements, in both orders of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkpar import env
from vkpar.comm.communicator import Communicator
from vkpar.comm.rig.children import proof
from vkpar.comm.rig.transports import peer
from vkpar.device import Device, open_devices
from vkpar.errors import CommunicatorError
from vkpar.vulkan.peer import claims

_COUNTS = (1000, 3_000_000)
_ROUNDS = 3


def main(devices: Sequence[str], seed: int, nonce: str) -> None:
    """Run the test between the devices named by UUID and print the proof."""
    with env.override(tuning="off"):
        for uuids in (list(devices), list(reversed(devices))):
            peer.trust(uuids)
            claims.inherit(*uuids)
            opened = open_devices("&".join(uuids))
            with Communicator(opened, transport=peer.NAME) as comm:
                for count in _COUNTS:
                    _sum(comm, opened, count, seed)
            for device in opened:
                device.close()
    print(proof(nonce, [seed, len(devices)]))


def _sum(comm: Communicator, devices: Sequence[Device], count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(_ROUNDS):
        given = [random.integers(-1000, 1000, count).astype(np.int32) for _ in devices]
        arrays = [device.array(rows) for device, rows in zip(devices, given, strict=True)]
        comm.all_reduce(arrays).wait()
        total = np.add.reduce(given)
        for rank, array in enumerate(arrays):
            if not np.array_equal(array.numpy(), total):
                raise CommunicatorError(f"rank {rank} has wrong sums of {count} elements")
