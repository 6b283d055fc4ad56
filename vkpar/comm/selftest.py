"""The data self-test: what every rank writes into its slots must reach every other rank, again and again.

Vulkan has no rule that makes one vendor's writes to shared host memory visible to another vendor's device, and drivers
were seen that keep what they read from it cached. So each communicator passes patterns round before it is used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from vkpar.arrays.array import Array
from vkpar.errors import CommunicatorError

if TYPE_CHECKING:
    from vkpar.comm.communicator import Communicator

_log = logging.getLogger("vkpar")
_ROUNDS = 3  # in one submission: the third one reads the slots of the first again
_WORDS = 1024


class WrongSums(CommunicatorError):
    """Copies of the slots do not hold what they should."""


def run(communicator: Communicator) -> None:
    """Gather patterns from all ranks on all ranks, several times in one submission.

    Raises:
        CommunicatorError: a rank got wrong data, or nothing moved for the communicator's timeout.
    """
    n = communicator.nranks
    if n == 1:
        return
    sent = _patterns(n)
    arrays = [device.array(rows) for device, rows in zip(communicator.devices, sent, strict=True)]
    out = [device.zeros((_ROUNDS, n * _WORDS), "uint32") for device in communicator.devices]
    with communicator.group():
        works = [
            communicator.all_gather([array[turn] for array in arrays], out=[array[turn] for array in out])
            for turn in range(_ROUNDS)
        ]
    works[-1].wait()
    for rank, array in enumerate(out):
        _check(communicator, sent, rank, array)
    if communicator.rig.copies:
        _run_copies(communicator, sent)


def _run_copies(communicator: Communicator, sent: list[np.ndarray[Any, Any]]) -> None:
    """Test the copies of the slots; where they are wrong, do without them unless they were asked for."""
    recording = communicator._recording
    wanted, recording.through_copies = recording.through_copies, True
    try:
        _run_sums(communicator, sent)
    except WrongSums as error:
        if wanted:
            raise
        _log.warning("copy queues are not used: %s", error)
        communicator.rig.distrust_copies()
    finally:
        recording.through_copies = wanted


def _run_sums(communicator: Communicator, sent: list[np.ndarray[Any, Any]]) -> None:
    """Sum the patterns as well: reductions reach the slots by other queues than movements do."""
    arrays = [device.array(rows) for device, rows in zip(communicator.devices, sent, strict=True)]
    with communicator.group():
        works = [communicator.all_reduce([array[turn] for array in arrays]) for turn in range(_ROUNDS)]
    works[-1].wait()
    total = np.add.reduce(sent, dtype=np.uint32)
    for rank, array in enumerate(arrays):
        wrong = int(np.count_nonzero(array.fetch().reshape(total.shape) != total))
        if wrong:
            name = communicator.devices[rank].name
            raise WrongSums(
                f"self-test: rank {rank} ({name}) has {wrong} of {total.size} wrong sums through copies",
                {"dst": rank, "wrong": wrong, "transports": communicator.transports()},
            )


def _patterns(nranks: int) -> list[np.ndarray[Any, Any]]:
    """Return, by rank, rows of words that differ between ranks, rounds and places."""
    place = np.arange(_ROUNDS * _WORDS, dtype=np.uint32).reshape(_ROUNDS, _WORDS)
    return [(place + np.uint32(rank * _ROUNDS * _WORDS)) * np.uint32(2654435761) for rank in range(nranks)]


def _check(communicator: Communicator, sent: list[np.ndarray[Any, Any]], rank: int, array: Array) -> None:
    got = array.fetch().reshape(_ROUNDS, communicator.nranks, _WORDS)
    for source, rows in enumerate(sent):
        wrong = int(np.count_nonzero(got[:, source] != rows))
        if wrong:
            kinds = {(link.src, link.dst): link.kind for link in communicator.links()}
            names = [device.name for device in communicator.devices]
            raise CommunicatorError(
                f"self-test: rank {rank} ({names[rank]}) read {wrong} of {_ROUNDS * _WORDS} words of rank {source} "
                f"({names[source]}) wrong over a {kinds.get((source, rank), 'local')} link",
                {"src": source, "dst": rank, "wrong": wrong, "transports": communicator.transports()},
            )
