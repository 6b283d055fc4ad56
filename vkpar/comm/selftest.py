"""The data self-test: every rank's writes to its slots must reach every other rank, again and again.

No rule of Vulkan makes one vendor's writes to shared host memory visible to another vendor's device, and some drivers
keep in a cache what they read from it. So each communicator passes patterns round before it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkpar import timeouts
from vkpar.arrays.array import Array
from vkpar.comm.engine.engine import Engine
from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.keys import Call
from vkpar.device import Device
from vkpar.errors import CommunicatorError, WaitTimeoutError

_log = logging.getLogger("vkpar")
_ROUNDS = 3  # in one submission: the third one reads the slots of the first again
_WORDS = 1024


class WrongSums(CommunicatorError):
    """Sums through copies of the slots are wrong."""


def run(engine: Engine) -> None:
    """Gather patterns from all ranks on all ranks, several times in one submission.

    Raises:
        CommunicatorError: a rank got wrong data, nothing moved for the communicator's timeout, or a device's earlier
            work does not end.
    """
    n = engine.rig.nranks
    if n == 1:
        return
    sent, first = _patterns(n), engine.rig.first
    own = engine.devices[first : first + len(engine.rig.devices)]
    _gather(engine, own, sent)
    if engine.rig.groups is not None:
        _run_arena(engine, own, sent)
    if engine.rig.copies:
        _run_copies(engine, sent)


def _run_arena(engine: Engine, own: Sequence[Device], sent: list[np.ndarray[Any, Any]]) -> None:
    """Have all ranks read the slots that they share: in graphs nothing is carried within groups."""
    engine.builder.through_arena = True
    try:
        _gather(engine, own, [rows[:, 1:] for rows in sent])  # of other counts, which are recorded anew
    finally:
        engine.builder.through_arena = False


def _gather(engine: Engine, own: Sequence[Device], sent: list[np.ndarray[Any, Any]]) -> None:
    n, first, words = len(sent), engine.rig.first, sent[0].shape[1]
    arrays = [device.array(rows) for device, rows in zip(own, sent[first:], strict=False)]
    out = [device.zeros((_ROUNDS, n * words), "uint32") for device in own]
    _finish_earlier(engine, own)  # after these uploads: where a device's last work was lost, a wait for it raises
    with engine.group():
        works = [
            engine.run(Call(movements.ALL_GATHER, [array[turn] for array in arrays], [array[turn] for array in out]))
            for turn in range(_ROUNDS)
        ]
    works[-1].wait()
    for rank, array in enumerate(out, first):
        _check(engine, sent, rank, array)


def _finish_earlier(engine: Engine, own: Sequence[Device]) -> None:
    """Wait for what the devices were given before, which the watchdog does not take for a failure of collectives.

    Raises:
        CommunicatorError: a device's queues moved by nothing for :data:`vkpar.timeouts.EARLIER_SECONDS`, or waits for
            them end before their timelines have moved: the watchdog, which looks at these, would never fail anything.
    """
    patience = max(timeouts.EARLIER_SECONDS, engine.health.timeout)
    for rank, device in enumerate(own, engine.rig.first):
        queues = device.logical.queues
        wanted = [queue.last for queue in queues]
        seen = [queue.reached for queue in queues]
        while True:
            try:
                device.logical.synchronize(patience)
                break
            except WaitTimeoutError as error:
                before, seen = seen, [queue.reached for queue in queues]
                if seen == before:
                    raise CommunicatorError(
                        f"self-test: what rank {rank} ({device.name}) was given before does not end: nothing of it, "
                        f"uploads included, was done for {patience:g} s",
                        {"rank": rank, "reached": seen, "wanted": [queue.last for queue in queues]},
                    ) from error
        reached = [queue.reached for queue in queues]
        if any(value < want for value, want in zip(reached, wanted, strict=True)):
            raise CommunicatorError(
                f"self-test: rank {rank} ({device.name}): waits say that its work is done, its timelines that it is "
                f"not: they stand at {reached}, not {wanted}",
                {"rank": rank, "reached": reached, "wanted": wanted},
            )


def _run_copies(engine: Engine, sent: list[np.ndarray[Any, Any]]) -> None:
    """Test the copies of the slots; where sums are wrong, use none, or raise if ``VKPAR_PATH`` wants them."""
    builder = engine.builder
    wanted, builder.through_copies = builder.through_copies, True
    try:
        _run_sums(engine, sent)
    except WrongSums as error:
        if wanted:
            raise
        _log.warning("copy queues are not used: %s", error)
        engine.rig.distrust_copies()
    finally:
        builder.through_copies = wanted


def _run_sums(engine: Engine, sent: list[np.ndarray[Any, Any]]) -> None:
    """Sum the patterns as well: reductions reach the slots by other queues than movements do."""
    arrays = [device.array(rows) for device, rows in zip(engine.devices, sent, strict=True)]
    with engine.group():
        works = [
            engine.run(Call(collectives.ALL_REDUCE, [array[turn] for array in arrays], op="sum"))
            for turn in range(_ROUNDS)
        ]
    works[-1].wait()
    total = np.add.reduce(sent, dtype=np.uint32)
    for rank, array in enumerate(arrays):
        wrong = int(np.count_nonzero(array.fetch().reshape(total.shape) != total))
        if wrong:
            name = engine.devices[rank].name
            raise WrongSums(
                f"self-test: rank {rank} ({name}) has {wrong} of {total.size} wrong sums through copies",
                {"dst": rank, "wrong": wrong, "transports": _transports(engine)},
            )


def _patterns(nranks: int) -> list[np.ndarray[Any, Any]]:
    """Return, by rank, rows of words that differ between ranks, rounds and places."""
    place = np.arange(_ROUNDS * _WORDS, dtype=np.uint32).reshape(_ROUNDS, _WORDS)
    return [(place + np.uint32(rank * _ROUNDS * _WORDS)) * np.uint32(2654435761) for rank in range(nranks)]


def _check(engine: Engine, sent: list[np.ndarray[Any, Any]], rank: int, array: Array) -> None:
    got = array.fetch().reshape(_ROUNDS, engine.rig.nranks, -1)
    for source, rows in enumerate(sent):
        wrong = int(np.count_nonzero(got[:, source] != rows))
        if wrong:
            kinds = {(link.src, link.dst): link.kind for link in engine.rig.links}
            names = [device.name for device in engine.devices]
            raise CommunicatorError(
                f"self-test: rank {rank} ({names[rank]}) read {wrong} of {rows.size} words of rank {source} "
                f"({names[source]}) wrong over a {kinds.get((source, rank), 'local')} link",
                {"src": source, "dst": rank, "wrong": wrong, "transports": _transports(engine)},
            )


def _transports(engine: Engine) -> list[str]:
    return engine.rig.transport_names()
