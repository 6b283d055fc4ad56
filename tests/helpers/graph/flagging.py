"""Kernels of operations that raise flags and wait for them, alone: what they do to words that stand in for a card's.

Nothing is carried. A test says which transfers have come, and reads which were told of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from helpers.graph.fusing import Arrays, bits

import vkpar
from vkpar.comm.record.carried import word
from vkpar.comm.rig.carriers import FARTHER
from vkpar.graph import fusion
from vkpar.graph.protocol import Flags, Step, WireSend
from vkpar.vulkan.memory.buffer import BufferRange

# Words of a card's memory, as shaders/common/flags.glsl has them.
APART, RAISED, ARRIVED, AWAITED, ABORTED = 16, 0, 256, 512, 768
_LANES = 16


class Memory:
    """On each of some devices, words before a slot, and the slot; it begins with zeros."""

    def __init__(self, nelements: int) -> None:
        self._nelements = FARTHER // 4 + nelements
        self._of: dict[vkpar.Device, vkpar.Array] = {}

    def on(self, device: vkpar.Device) -> vkpar.Array:
        if device not in self._of:
            self._of[device] = device.zeros(self._nelements, "uint32")
        return self._of[device]

    def range(self, device: vkpar.Device) -> BufferRange:
        return self.on(device).window()[0]

    def put(self, device: vkpar.Device, kind: int, values: Mapping[int, int]) -> None:
        """Write the words of a kind, given by lane; all others become zero."""
        words = np.zeros((_LANES, APART), np.uint32)
        for lane, value in values.items():
            words[lane, 0] = value
        self.on(device)[kind : kind + _LANES * APART].write(words.reshape(-1))

    def seen(self, device: vkpar.Device, kind: int, at: int = 0) -> dict[int, int]:
        """Return, by lane, the words of a kind that are not zero, or those ``at`` a place behind them."""
        words = self.on(device).numpy()[kind : kind + _LANES * APART].reshape(_LANES, APART)[:, at]
        return {lane: int(value) for lane, value in enumerate(words) if value}


def _flags(waits: Mapping[int, int], raises: Mapping[int, int]) -> Flags:
    def never(*_arguments: Any) -> None:
        raise AssertionError("a kernel of flags is recorded")

    counts = [{divmod(lane, 2): number for lane, number in each.items()} for each in (waits, raises)]
    return Flags(counts[0], counts[1], never, word)


def gather_from(patch: pytest.MonkeyPatch, memory: Memory, waits: Mapping[int, int]) -> list[int]:
    """Have norms sum slots of ``memory``, once as many transfers have come by lane; return their work-groups."""
    made: list[int] = []
    normed = fusion._normed

    def waiting(step: Step, content: object, device: vkpar.Device) -> fusion.Fused | None:
        assert step.kernels is not None
        noted: Any = step.kernels
        held, slots = memory.range(device), (FARTHER // 16,) * 16
        launches = [(part, words._replace(slots=slots), groups) for part, words, groups in noted.what.launches]
        places = (*noted.places[:-1], (held.buffer, held.offset, held.nbytes))
        noted = noted._replace(what=noted.what._replace(launches=launches), places=places)
        found = normed(step._replace(kernels=noted, flags=_flags(waits, {})), content, device)
        assert found is not None
        assert found.flags is not None
        assert not found.flags.waits
        made.append(math.prod(tuple(found.operations[0].arguments[0].groups)))
        return found

    patch.setattr(fusion, "_normed", waiting)
    return made


def check_sent(patch: pytest.MonkeyPatch, comm: vkpar.Communicator, products: Callable[[], Arrays]) -> None:
    """Have float32 products, one a rank, fill a slot and tell of transfers in each of three launches."""
    wanted = bits(made := products())
    memory, counters = Memory(made[0].size), []
    sent, take = fusion._sent, fusion._Counters.take

    def sending(content: object, step: Step, device: vkpar.Device, counters: Any) -> fusion.Fused | None:
        noted: Any = step.kernels
        if not isinstance(noted.what, WireSend):
            return sent(content, step, device, counters)
        what = noted.what._replace(slots=memory.range(device), out_slot=FARTHER // 16)
        told = step._replace(kernels=noted._replace(what=what), flags=_flags({}, {1: 1, 15: 3}))
        found = sent(content, told, device, counters)
        assert found is not None
        assert found.flags is not None
        assert not found.flags.raises
        return found

    def taking(self: Any, *arguments: Any) -> vkpar.Array:
        counters.append(take(self, *arguments))
        return counters[-1]

    with patch.context() as inside:
        inside.setattr(fusion, "_sent", sending)
        inside.setattr(fusion._Counters, "take", taking)
        with vkpar.capture(comm.devices, comm=comm) as graph:
            comm.all_reduce(products(), wire="f32")
    for device in comm.devices:
        memory.put(device, RAISED, {1: 5, 15: (1 << 32) - 2})
    for _ in range(3):
        graph.launch().wait()
    for device, each in zip(comm.devices, wanted, strict=True):
        assert memory.on(device)[FARTHER // 4 :].numpy().tobytes() == each
        assert memory.seen(device, RAISED) == {1: 8, 15: 7}
    assert len(counters) == comm.nranks
    assert not any(counter.numpy().any() for counter in counters)
    graph.close()
