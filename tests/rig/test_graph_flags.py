"""Fused sums whose slots are carried: kernels of operations wait for flags and raise them, no others between.

What NVIDIA cards do is in test_peer_cards.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.carrying import carried
from helpers.graph.fusing import Arrays, Sum, bits, force_gpu
from helpers.ops.reducing import own_devices

import vkpar
from vkpar.comm.record.carried import word
from vkpar.comm.rig.carriers import FARTHER
from vkpar.graph import fusion, protocol, record
from vkpar.graph.protocol import Flags, Step
from vkpar.vulkan.pipelines import shader

pytestmark = [pytest.mark.rig, pytest.mark.sampled(6)]

# Words of a card's memory, as shaders/common/flags.glsl has them.
APART, RAISED, ARRIVED, AWAITED, ABORTED = 16, 0, 256, 512, 768
OP_LOOP_MERGE, OP_MEMORY_BARRIER = 246, 225
Counts = Mapping[tuple[int, int], int]


@pytest.fixture(autouse=True)
def gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU drivers run the kernels of GPUs, of which alone anything is fused."""
    force_gpu(monkeypatch.setattr)


@pytest.fixture(params=[*("L" * n for n in ((2, 3) if FULL else (2,)))])
def peers(request: pytest.FixtureRequest, rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[vkpar.Device]]:
    """Give devices of the test's own, whose slots the host carries."""
    with own_devices(rigs, request.param) as devices, carried(monkeypatch):
        yield devices


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Counts, Counts]]:
    """Give what kernels of flags raise and wait for, each as it is recorded into a graph."""
    found: list[tuple[Counts, Counts]] = []
    record_flags = record._record_flags

    def noting(raised: Flags | None, flags: Flags | None, *rest: Any) -> None:
        if raised is not None or (flags is not None and flags.waits):
            found.append((raised.raises if raised else {}, flags.waits if flags else {}))
        record_flags(raised, flags, *rest)

    monkeypatch.setattr(record, "_record_flags", noting)
    return found


def layers(case: Sum, depth: int) -> Callable[[], Arrays]:
    """Return products whose sums go into norms, of which the next products are made."""

    def work() -> Arrays:
        x, states = list(case.x), list(case.r)
        for _ in range(depth):
            y = [vkpar.matmul(a, w, transpose_b=True) for a, w in zip(x, case.w, strict=True)]
            case.comm.all_reduce(y)
            pairs = [vkpar.rms_norm(a, residual=r) for a, r in zip(y, states, strict=True)]
            x, states = [a for a, _ in pairs], [h for _, h in pairs]
        return [*x, *states]

    return work


@pytest.mark.parametrize("m", [1, 4])
def test_norms_wait_for_what_they_sum(peers: list[vkpar.Device], told: list[tuple[Counts, Counts]], m: int) -> None:
    """In every launch anew, whichever number of work-groups does so."""
    depth = 3
    with vkpar.Communicator(peers, transport="peer", algorithm="direct", timeout=60) as comm:
        case = Sum(comm, m, 1040, 1040)
        work = layers(case, depth)
        case.check(work, fused=2 * depth * comm.nranks, launches=3)
        told.clear()
        with vkpar.capture(peers, comm=comm) as graph:
            made = work()
        assert not any(waits for _, waits in told)
        case.reset()
        wanted = bits(work())
        for launch in [graph.launch() for _ in range(4)]:
            launch.wait()
        assert bits(made) == wanted
        graph.close()


def test_more_than_a_kernel_is_told_of_is_waited_for_before_it(
    peers: list[vkpar.Device], told: list[tuple[Counts, Counts]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is what too many work-groups would wait for."""
    monkeypatch.setattr(protocol, "MOST_WAITING", 1)
    assert word({(0, 1): 3, (7, 1): 1}) == 3 << 2 | 1 << 30
    assert word({(0, 1): 4, (7, 1): 1}) == 0
    with vkpar.Communicator(peers, transport="peer", algorithm="direct", timeout=60) as comm:
        case = Sum(comm, 4, 1040, 1040)
        case.check(layers(case, 2), fused=4 * comm.nranks)
    assert any(waits for _, waits in told)


class Memory:
    """What stands in for a card's memory, on each of some devices: no transfer comes, so the test says what came."""

    def __init__(self, nelements: int) -> None:
        self.nelements = FARTHER // 4 + nelements
        self.of: dict[vkpar.Device, vkpar.Array] = {}

    def on(self, device: vkpar.Device) -> vkpar.Array:
        return self.of.setdefault(device, device.zeros(self.nelements, "uint32"))

    def words(self, device: vkpar.Device, kind: int) -> dict[int, tuple[int, ...]]:
        """Return by lane the three words of a kind, those that are not zero."""
        words = self.on(device).numpy()[kind : kind + 16 * APART].reshape(16, APART)[:, :3]
        return {lane: tuple(map(int, each)) for lane, each in enumerate(words) if each.any()}


def lanes_of(values: Mapping[int, int]) -> list[int]:
    """Return words of a kind, given by lane."""
    words = [0] * (16 * APART)
    for lane, value in values.items():
        words[lane * APART] = value
    return words


# Transfers that are waited for, those that came before, and all that have come; by lane. Words wrap around.
WAITS = {0: (1, 0, 1), 3: (3, 7, 11), 9: (2, (1 << 32) - 1, 1), 15: (1, (1 << 32) - 1, 0)}


@pytest.mark.parametrize("letters", ["LL", "SS"])
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize(("m", "n", "groups"), [(1, 4096, 1), (3, 4096, 3), (7, 600, 2)])
def test_the_kernel_that_gathers_counts_what_came(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, letters: str, m: int, n: int, groups: int, aborted: bool
) -> None:
    """Once, whatever its work-groups are, and where the host ends the wait."""
    memory, normed = Memory(m * n), fusion._normed
    awaits = {divmod(lane, 2): number for lane, (number, _, _) in WAITS.items()}

    def made(step: Step, content: object, device: vkpar.Device) -> fusion.Fused | None:
        assert step.kernels is not None
        slots, noted = memory.on(device).window()[0], step.kernels
        stored = noted.what
        launches = [
            (part, words._replace(slots=(FARTHER // 16,) * 16), *rest) for part, words, *rest in stored.launches
        ]
        noted = noted._replace(
            what=stored._replace(launches=launches),
            places=(*noted.places[:-1], (slots.buffer, slots.offset, slots.nbytes)),
        )
        found = normed(step._replace(kernels=noted, flags=Flags(awaits, {}, never, word)), content, device)
        assert found is not None
        assert found.flags == Flags({}, {}, never, word)
        assert math.prod(tuple(found.operations[0].arguments[0].groups)) == groups
        return found

    monkeypatch.setattr(fusion, "_normed", made)
    with own_devices(rigs, letters) as devices, vkpar.Communicator(devices, algorithm="direct", wire="f32") as comm:
        case = Sum(comm, m, n)
        with vkpar.capture(devices, comm=comm) as graph:
            comm.all_reduce(case.products())
            pairs = [vkpar.rms_norm(y, residual=r) for y, r in zip(case.y, case.r, strict=True)]
        for _ in range(3):
            case.reset()
            for device in devices:
                words = memory.on(device)
                words[AWAITED : AWAITED + 16 * APART].write(
                    lanes_of({lane: was for lane, (_, was, _) in WAITS.items()})
                )
                came = {lane: 0 if aborted else came for lane, (_, _, came) in WAITS.items()}
                words[ARRIVED : ARRIVED + 16 * APART].write(lanes_of(came))
                words[ABORTED : ABORTED + 1].write([int(aborted)])
            graph.launch().wait()
            for device, (y, h), own, r in zip(devices, pairs, case.products(), case.r, strict=True):
                totals = own.numpy() + r.numpy()  # of a slot of zeros
                np.testing.assert_array_equal(h.numpy(), totals)
                roots = np.sqrt((totals.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
                np.testing.assert_allclose(y.numpy(), totals / roots, rtol=1e-5)
                counted = memory.words(device, AWAITED)
                for lane, (number, was, _) in WAITS.items():
                    assert counted.pop(lane, (0, 0, 0))[::2] == ((was + number) % (1 << 32), 0)
                assert not counted
        graph.close()


def never(*_arguments: Any) -> None:
    """Stand for a kernel of flags that is not recorded."""
    raise AssertionError("operations raise flags and wait for them")


@pytest.mark.parametrize("form", ["scaled", "bhalf", "word", "q8"])
def test_the_shipped_kernel_that_gathers_waits(form: str) -> None:
    """Optimizers drop a loop that only reads, whatever is volatile: one must come before the first barrier."""
    spirv = shader.shipped(f"norm_gather_{form}")
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    found, at = [], 5
    while at < len(words):
        found.append(words[at] & 0xFFFF)
        at += words[at] >> 16
    assert OP_LOOP_MERGE in found[: found.index(OP_MEMORY_BARRIER)]
