"""Transport peer between two NVIDIA cards; tests/rig/test_carriers.py has the same without them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import conftest
import numpy as np
import pytest
from helpers.graph.fusing import Sum, check_launches, layers

import vkpar
from vkpar import CommunicatorError, env
from vkpar.comm.rig.transports import peer
from vkpar.vulkan.machine.drivers import enumerate_devices
from vkpar.vulkan.pump.roads import Roads

_CARDS = sorted({info.device_uuid for info in enumerate_devices() if info.driver_id in peer.VENDORS})
pytestmark = pytest.mark.skipif(len(_CARDS) < 2, reason="two cards whose copy engines reach each other are not here")


@pytest.fixture(scope="module")
def cards() -> Iterator[list[vkpar.Device]]:
    devices = vkpar.open_devices("&".join(_CARDS[:2]))
    vendor, reason = peer.offer([device.info for device in devices])
    if vendor is None:
        pytest.skip(f"the cards do not reach each other: {reason}")
    with env.override(tuning="off"):
        yield devices
    for device in devices:
        device.close()


def given(seed: int, count: int) -> list[np.ndarray]:
    return [np.random.default_rng((seed, rank)).integers(-999, 999, count).astype(np.int32) for rank in range(2)]


def test_auto_takes_it(cards: list[vkpar.Device]) -> None:
    with vkpar.Communicator(cards) as comm:
        assert comm.transports() == ["peer", "peer"]


@pytest.mark.parametrize("algorithm", ["auto", "two_shot", "direct", "ring", "tree"])
def test_sums_are_exact(algorithm: str, cards: list[vkpar.Device]) -> None:
    with vkpar.Communicator(cards, transport="peer", algorithm=algorithm) as comm:
        for turn, count in enumerate((1, 255, 2048, 16_384, 70_001, 5_000_000, 40_000_001, 3, 40_000_001)):
            rows = given(turn, count)
            arrays = [device.array(each) for device, each in zip(cards, rows, strict=True)]
            for _ in range(3):
                comm.all_reduce(arrays)
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), 4 * (rows[0] + rows[1]))


@pytest.mark.parametrize("wire", ["f16", "bf16", "q8", "f32"])
def test_bits_are_those_of_staged_slots(wire: str, cards: list[vkpar.Device]) -> None:
    found = {}
    rows = [np.random.default_rng(rank).standard_normal(3_000_001).astype(np.float32) for rank in range(2)]
    for transport in ("staged", "peer"):
        with vkpar.Communicator(cards, transport=transport, algorithm="two_shot") as comm:
            arrays = [device.array(each) for device, each in zip(cards, rows, strict=True)]
            comm.all_reduce(arrays, wire=wire)
            comm.broadcast(arrays, root=1)
            found[transport] = [array.numpy().view(np.uint32) for array in arrays]
    for rank in range(2):
        np.testing.assert_array_equal(found["staged"][rank], found["peer"][rank])


@pytest.mark.parametrize("count", [100, 2048, 16_384, 300_000])
def test_hundreds_of_eager_sums_are_right(count: int, cards: list[vkpar.Device]) -> None:
    """They go to the drivers together, with what was asked for between them."""
    with vkpar.Communicator(cards, transport="peer") as comm:
        state = given(2, count)
        arrays = [device.array(each) for device, each in zip(cards, state, strict=True)]
        for turn in range(400):
            comm.all_reduce(arrays, op="max")
            state = [np.maximum(*state)] * 2
            if turn % 3:
                for rank, array in enumerate(arrays):
                    vkpar.add(array[:: turn % 5 + 1], rank + turn % 2, out=array[:: turn % 5 + 1])
                state = [each.copy() for each in state]
                for rank, each in enumerate(state):
                    each[:: turn % 5 + 1] += rank + turn % 2
            if turn % 100 == 7:
                np.testing.assert_array_equal(arrays[turn % 2].numpy(), state[turn % 2])
        for array, each in zip(arrays, state, strict=True):
            np.testing.assert_array_equal(array.numpy(), each)


def test_hundreds_of_launches_are_right(cards: list[vkpar.Device]) -> None:
    """A graph of sums and broadcasts in turn, launched beside eager calls: every launch equals the eager program."""
    with vkpar.Communicator(cards, transport="peer") as comm:
        rows = given(1, 5000)
        kept = [device.array(each) for device, each in zip(cards, rows, strict=True)]
        beside = [device.array(each) for device, each in zip(cards, rows, strict=True)]
        with vkpar.capture(cards, comm=comm) as graph:
            for turn in range(20):
                comm.all_reduce(kept, op="max")
                for rank, array in enumerate(kept):
                    vkpar.add(array, rank + turn % 3, out=array)
                comm.broadcast(kept, root=turn % 2)
        state = list(rows)
        for _ in range(300):
            graph.launch()
            comm.all_reduce(beside, op="max")
            for turn in range(20):
                top = np.maximum(*state)
                state = [top + turn % 2 + turn % 3] * 2
        for array, one in zip(kept, beside, strict=True):
            np.testing.assert_array_equal(array.numpy(), state[0])
            np.testing.assert_array_equal(one.numpy(), np.maximum(*rows))
        graph.close()


@pytest.mark.parametrize("wire", ["f16", "f32", "q8"])
@pytest.mark.parametrize("m", [1, 4])
def test_fused_sums_raise_flags_and_wait_for_them(cards: list[vkpar.Device], m: int, wire: str) -> None:
    with vkpar.Communicator(cards, transport="peer", algorithm="direct", wire=wire, timeout=10) as comm:
        case = Sum(comm, m, 4096, 4096)
        work = layers(case, 8)
        with vkpar.capture(cards, comm=comm) as graph:
            made = work()
        assert graph.stats().fused >= 16
        check_launches(case, work, made, graph, 200)
        graph.close()


def test_what_never_comes_ends_fused_sums(cards: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of operations that wait are let go as those of flags are."""
    nothing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    comm = vkpar.Communicator(cards, transport="peer", algorithm="direct", timeout=2)
    carriers = comm._engine.rig.carriers
    assert carriers is not None
    case = Sum(comm, 1, 4096, 4096)
    with vkpar.capture(cards, comm=comm) as graph:
        layers(case, 8)()
    monkeypatch.setattr(carriers, "_lanes", Roads(comm._engine.rig.group, [address] * 5, False, []))
    with pytest.raises(CommunicatorError, match=r"no timeline advanced for 2"):
        graph.launch().wait()
    comm.close()
    test_sums_are_exact("two_shot", cards)


def test_what_never_comes_is_a_typed_error(cards: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is carried: the kernels that wait are let go, and the cards can be used again."""
    nothing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    comm = vkpar.Communicator(cards, transport="peer", timeout=2)
    carriers = comm._engine.rig.carriers
    assert carriers is not None
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    monkeypatch.setattr(carriers, "_lanes", Roads(comm._engine.rig.group, [address] * 5, False, []))
    arrays = [device.zeros(1000) for device in cards]
    with pytest.raises(CommunicatorError, match=r"no timeline advanced for 2"):
        comm.all_reduce(arrays).wait()
    comm.close()
    del arrays
    test_sums_are_exact("two_shot", cards)


def test_several_communicators_take_turns(cards: list[vkpar.Device]) -> None:
    """Their lanes share the cards' few queues: graphs of many sums beside single ones of other communicators."""
    with ExitStack() as stack:
        comms = [stack.enter_context(vkpar.Communicator(cards, transport="peer", timeout=10)) for _ in range(6)]
        arrays = [[device.full(4096, rank) for rank, device in enumerate(cards)] for _ in comms]
        with vkpar.capture(cards, comm=comms[0]) as graph:
            for _ in range(100):
                comms[0].all_reduce(arrays[0], op="max")
        for _ in range(20):
            graph.launch()
            for comm, each in zip(comms[1:], arrays[1:], strict=True):
                comm.all_reduce(each, op="max")
            for comm, each in zip(comms, arrays, strict=True):
                comm.all_reduce(each, op="max").wait()
        for each in arrays:
            assert all((array.numpy() == 1).all() for array in each)
        graph.close()


def test_what_never_comes_ends_beside_other_communicators(cards: list[vkpar.Device]) -> None:
    """An abort gets through to kernels and streams while all lanes of the cards wait."""
    nothing = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    comms = [vkpar.Communicator(cards, transport="peer", timeout=4) for _ in range(4)]
    carriers = comms[0]._engine.rig.carriers
    assert carriers is not None
    carriers._lanes = Roads(comms[0]._engine.rig.group, [address] * 5, False, [])
    small = [device.zeros(1000) for device in cards]
    large = [[device.zeros(16 << 20) for device in cards] for _ in comms[1:]]
    works = [comms[0].all_reduce(small)]
    works += [comm.all_reduce(each) for comm, each in zip(comms[1:], large, strict=True)]
    with pytest.raises(CommunicatorError, match=r"no timeline advanced for 4"):
        works[0].wait()
    for comm in comms:
        with suppress(CommunicatorError):
            comm.close()
    del small, large
    test_sums_are_exact("two_shot", cards)


@pytest.mark.parametrize("order", ["NNS", "NSN", "SNN"])
@pytest.mark.parametrize("algorithm", ["two_shot", "two_level"])
def test_groups_of_a_mixed_rig(algorithm: str, order: str) -> None:
    """Two cards carry slots between themselves, and a CPU driver takes part through host memory."""
    if not conftest.has("swiftshader"):
        pytest.skip("SwiftShader is not here: VK_ADD_DRIVER_FILES names its file")
    names = iter(_CARDS[:2])
    devices = vkpar.open_devices("&".join(next(names) if letter == "N" else "swiftshader" for letter in order))
    with env.override(tuning="off", peer="groups"), vkpar.Communicator(devices, algorithm=algorithm) as comm:
        assert comm.transports().count("peer") == 2
        for turn, count in enumerate((1, 255, 70_001, 2_000_001, 3)):
            rows = [np.random.default_rng((turn, rank)).integers(-999, 999, count, np.int32) for rank in range(3)]
            arrays = [device.array(each) for device, each in zip(devices, rows, strict=True)]
            comm.all_reduce(arrays)
            comm.broadcast(arrays, root=1)
            comm.all_reduce(arrays)
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), 3 * sum(rows))
    for device in devices:
        device.close()


def test_opened_and_closed_again_and_again(cards: list[vkpar.Device]) -> None:
    with vkpar.Communicator(cards, transport="peer"):
        pass
    before = [sum(heap.imported for heap in device.memory().heaps) for device in cards]
    for _ in range(30):
        with vkpar.Communicator(cards, transport="peer") as comm:
            arrays = [device.array([1, 2, 3]) for device in cards]
            comm.all_reduce(arrays).wait()
            assert [array.numpy().tolist() for array in arrays] == [[2, 4, 6]] * 2
    assert [sum(heap.imported for heap in device.memory().heaps) for device in cards] == before
