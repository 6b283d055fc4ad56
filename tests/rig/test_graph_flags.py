"""Fused sums whose slots are carried: kernels of operations wait for flags and raise them, no others between.

What NVIDIA cards do is in test_peer_cards.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.carrying import carried
from helpers.graph.flagging import ABORTED, ARRIVED, AWAITED, Memory, check_sent, gather_from
from helpers.graph.fusing import Sum, check_launches, force_gpu, layers
from helpers.ops.reducing import own_devices

import vkpar
from vkpar.comm.record.carried import word
from vkpar.graph import protocol, record
from vkpar.graph.protocol import Flags
from vkpar.vulkan.pipelines import shader

pytestmark = [pytest.mark.rig, pytest.mark.sampled(6)]

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
        assert not told
        check_launches(case, work, made, graph, 4)
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


# Transfers that are waited for, those that came before, and all that have come; by lane. Words wrap around.
WAITS = {0: (1, 0, 1), 3: (3, 7, 11), 9: (2, (1 << 32) - 1, 1), 15: (1, (1 << 32) - 1, 0)}


@pytest.mark.parametrize("letters", ["LL", "SS"])
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize(("m", "n", "groups"), [(1, 4096, 1), (3, 4096, 3), (7, 600, 2)])
def test_the_kernel_that_gathers_counts_what_came(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, letters: str, m: int, n: int, groups: int, aborted: bool
) -> None:
    """Once, whatever its work-groups are, and where the host ends the wait."""
    memory = Memory(m * n)
    made = gather_from(monkeypatch, memory, {lane: number for lane, (number, _, _) in WAITS.items()})
    with own_devices(rigs, letters) as devices, vkpar.Communicator(devices, algorithm="direct", wire="f32") as comm:
        case = Sum(comm, m, n)
        with vkpar.capture(devices, comm=comm) as graph:
            comm.all_reduce(case.products())
            pairs = [vkpar.rms_norm(y, residual=r) for y, r in zip(case.y, case.r, strict=True)]
        assert made == [groups] * 2
        for _ in range(3):
            case.reset()
            for device in devices:
                memory.put(device, AWAITED, {lane: was for lane, (_, was, _) in WAITS.items()})
                memory.put(device, ARRIVED, {} if aborted else {lane: came for lane, (_, _, came) in WAITS.items()})
                memory.put(device, ABORTED, {0: int(aborted)})
            graph.launch().wait()
            for device, (y, h), own, r in zip(devices, pairs, case.products(), case.r, strict=True):
                totals = own.numpy() + r.numpy()  # of a slot of zeros
                np.testing.assert_array_equal(h.numpy(), totals)
                roots = np.sqrt((totals.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
                np.testing.assert_allclose(y.numpy(), totals / roots, rtol=1e-5)
                counted = {lane: (was + number) % (1 << 32) for lane, (number, was, _) in WAITS.items()}
                assert memory.seen(device, AWAITED) == {lane: count for lane, count in counted.items() if count}
                assert not memory.seen(device, AWAITED, 2)
        graph.close()


@pytest.mark.parametrize("letters", ["LL", "SS"])
def test_products_raise_flags_once_all_was_sent(rigs: Rigs, monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    with own_devices(rigs, letters) as devices, vkpar.Communicator(devices, algorithm="direct") as comm:
        few = [(True, 1, 5), (True, 3, 257)]  # SwiftShader compiles the others' kernels for minutes
        more = [(False, 1, 256), (False, 3, 257), (True, 1, 4096)] if letters == "LL" else []
        for transposed, m, n in few + more:
            check_sent(monkeypatch, comm, Sum(comm, m, n, transposed=transposed).products)


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
