"""Transport peer: copy engines carry slots from card to card, here with the host in the place of a vendor's library.

What NVIDIA cards do is in test_peer_cards.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import conftest
import numpy as np
import pytest
from helpers.comm.carrying import carried, check_a_copy_that_never_comes, imported_nbytes
from helpers.comm.hostvendor import HostMemory, HostVendor
from helpers.graph.flagging import ABORTED
from hypothesis import given, settings
from hypothesis import strategies as st

import vkpar
from vkpar import CommunicatorError, UnsupportedError, env
from vkpar.comm.rig.transports import peer
from vkpar.vulkan.peer.cuda import CudaError

RANKS = 3
heavy = pytest.mark.skipif(not conftest.FULL, reason="kernels that wait keep the cores busy: VKPAR_TEST_FULL")
COUNTS = (1, 255, 1000, 300_000, 300_000, 7) if conftest.FULL else (1, 300_000, 7)
WAYS = [("two_shot", COUNTS), ("direct", (1000,))]
MORE_WAYS = [("ring", (1000,)), ("tree", (300,))]


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[vkpar.Device]]:
    devices = vkpar.open_devices(f"llvmpipe*{RANKS}")
    yield devices
    for device in devices:
        device.close()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostVendor]:
    with carried(monkeypatch) as made, env.override(tuning="off"):
        yield made


@pytest.fixture
def comm(ranks: list[vkpar.Device], vendor: HostVendor) -> Iterator[vkpar.Communicator]:
    with vkpar.Communicator(ranks, transport="peer", timeout=60) as made:
        yield made


def integers(seed: int, count: int, dtype: str = "int32") -> list[np.ndarray]:
    return [np.random.default_rng((seed, rank)).integers(-99, 99, count).astype(dtype) for rank in range(RANKS)]


def word_of(memory: HostMemory, number: int) -> int:
    return ctypes.c_uint32.from_address(memory.address + 4 * number).value


def test_the_road_is_told(comm: vkpar.Communicator) -> None:
    assert comm.transports() == ["peer"] * RANKS
    assert {(link.kind, link.reason) for link in comm.links()} == {("peer", "the host carries")}


@pytest.mark.parametrize(("algorithm", "counts"), [*WAYS, *MORE_WAYS] if conftest.FULL else WAYS)
def test_sums_are_exact_and_carried(
    algorithm: str, counts: tuple[int, ...], ranks: list[vkpar.Device], vendor: HostVendor
) -> None:
    with vkpar.Communicator(ranks, transport="peer", algorithm=algorithm, timeout=60) as comm:
        for turn, count in enumerate(counts):
            before = vendor.copied_bytes
            given = integers(turn, count)
            arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
            comm.all_reduce(arrays).wait()
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), sum(given))
            assert vendor.copied_bytes - before >= 4 * count * (RANKS - 1) // RANKS


def test_waits_with_a_mask(ranks: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    given = integers(0, 1000)
    arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
    with (
        carried(monkeypatch, masks=True),
        env.override(tuning="off"),
        vkpar.Communicator(ranks, transport="peer", timeout=60) as comm,
    ):
        comm.all_reduce(arrays).wait()
        np.testing.assert_array_equal(arrays[0].numpy(), sum(given))


Run = Callable[[vkpar.Communicator, Sequence[vkpar.Array]], object]
CALLS: dict[str, Run] = {
    "all_reduce": lambda comm, a: comm.all_reduce(a),
    "average": lambda comm, a: comm.all_reduce(a, op="avg"),
    "max": lambda comm, a: comm.all_reduce(a, op="max"),
    "q8": lambda comm, a: comm.all_reduce(a, wire="q8"),
    "f32": lambda comm, a: comm.all_reduce(a, wire="f32"),
    "bf16": lambda comm, a: comm.all_reduce(a, wire="bf16"),
    "reduce": lambda comm, a: comm.reduce(a, root=1),
    "broadcast": lambda comm, a: comm.broadcast(a, root=2),
    "scatter": lambda comm, a: comm.scatter(a[0].reshape(RANKS, -1), out=[each[:25_000] for each in a], root=0),
}


@pytest.mark.parametrize("name", CALLS if conftest.FULL else ("q8", "broadcast"))
def test_bits_are_those_of_staged_slots(name: str, ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    found: dict[str, list[np.ndarray]] = {}
    count = 3 * 25_000
    given = [np.random.default_rng((7, rank)).standard_normal(count).astype(np.float32) for rank in range(RANKS)]
    for transport in ("staged", "peer"):
        with vkpar.Communicator(ranks, transport=transport, algorithm="two_shot", timeout=60) as comm:
            arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
            CALLS[name](comm, arrays)
            comm.barrier().wait()
            found[transport] = [array.numpy() for array in arrays]
    for staged, carried_ in zip(found["staged"], found["peer"], strict=True):
        np.testing.assert_array_equal(staged.view(np.uint32), carried_.view(np.uint32))
    assert vendor.copied


@heavy
def test_calls_of_many_kinds_in_turn(comm: vkpar.Communicator, ranks: list[vkpar.Device]) -> None:
    """Calls of all sizes and kinds are queued; every one leaves the slots to the next."""
    given = integers(3, 1200)
    arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
    outs = [device.empty((RANKS, 1200), "int32") for device in ranks]
    for turn in range(16):
        kind = turn % 4
        if kind == 0:
            comm.all_reduce(arrays)
            given = [sum(given)] * RANKS
        elif kind == 1:
            comm.broadcast(arrays, root=turn % RANKS)
            given = [given[turn % RANKS]] * RANKS
        elif kind == 2:
            comm.all_gather(arrays, out=outs)
            for array, out in zip(arrays, outs, strict=True):
                vkpar.add(out[turn % RANKS], 0, out=array)
            given = [given[turn % RANKS]] * RANKS
        else:
            for rank, array in enumerate(arrays):
                vkpar.multiply(array, rank - 1, out=array)
            given = [rows * (rank - 1) for rank, rows in enumerate(given)]
    for array, rows in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(array.numpy(), rows)


def test_a_thread_takes_transfers_of_calls_that_follow(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    """Where waits spin the thread looks for more, between calls that the caller gives few transfers of."""
    with (
        env.override(spin_us=20),
        vkpar.Communicator(ranks, transport="peer", algorithm="direct", timeout=60) as comm,
    ):
        given = integers(5, 100)
        arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
        want = sum(given)
        for turn in range(12):
            if turn % 4 == 3:
                comm.barrier().wait()  # it sleeps again
            comm.all_reduce(arrays, op="max" if turn else "sum")
        for array in arrays:
            np.testing.assert_array_equal(array.numpy(), want)
    assert vendor.copied


def test_a_profile_of_a_graph_knows_what_was_carried(comm: vkpar.Communicator, ranks: list[vkpar.Device]) -> None:
    arrays = [device.array(rows) for device, rows in zip(ranks, integers(2, 3000), strict=True)]
    with vkpar.capture(ranks, comm=comm) as graph:
        comm.all_reduce(arrays)
    with comm.profile() as profile:
        graph.launch()
    last = next(step for step in profile.steps if step.rank == RANKS - 1)
    assert {source for source, _ in last.sources} == set(range(RANKS - 1))
    graph.close()


def test_a_group_is_one_submission_of_all(comm: vkpar.Communicator, ranks: list[vkpar.Device]) -> None:
    given = [integers(turn, 500) for turn in range(12)]
    arrays = [[device.array(rows) for device, rows in zip(ranks, each, strict=True)] for each in given]
    with comm.group():
        works = [comm.all_reduce(each) for each in arrays]
    works[-1].wait()
    for each, rows in zip(arrays, given, strict=True):
        for array in each:
            np.testing.assert_array_equal(array.numpy(), sum(rows))


@heavy
def test_a_captured_graph_is_one_stretch_a_rank(comm: vkpar.Communicator, ranks: list[vkpar.Device]) -> None:
    """Replay equals the eager program bit for bit, launch after launch, with fused sums, broadcasts and a barrier."""
    rng = np.random.default_rng(5)
    start = [rng.standard_normal(1024).astype(np.float32) for _ in ranks]
    eager = [device.array(rows) for device, rows in zip(ranks, start, strict=True)]
    kept = [device.array(rows) for device, rows in zip(ranks, start, strict=True)]
    weights = [device.array(rng.standard_normal((1024, 1024)).astype(np.float32) / 64) for device in ranks]

    def step(arrays: Sequence[vkpar.Array]) -> None:
        for _ in range(2):
            sums = [vkpar.matmul(x, w) for x, w in zip(arrays, weights, strict=True)]
            comm.all_reduce(sums)
            for x, y in zip(arrays, sums, strict=True):
                vkpar.add(x, y, out=x)
        comm.broadcast(arrays, root=1)

    with vkpar.capture(ranks, comm=comm) as graph:
        step(kept)
    assert graph.stats().stretches == RANKS
    with vkpar.capture(ranks, comm=comm) as second:
        step(kept)
        comm.barrier()
        step(kept)
    for turn in range(3):
        (second if turn == 2 else graph).launch().wait()
        for _ in range(2 if turn == 2 else 1):
            step(eager)
        for one, other in zip(eager, kept, strict=True):
            np.testing.assert_array_equal(one.numpy().view(np.uint32), other.numpy().view(np.uint32))
    graph.close()
    second.close()


@heavy
@settings(max_examples=6)
@given(count=st.integers(0, 70_000), dtype=st.sampled_from(["int32", "uint8", "int64"]), seed=st.integers(0, 1 << 16))
def test_any_count_and_dtype(count: int, dtype: str, seed: int) -> None:
    with carried(pytest.MonkeyPatch()), env.override(tuning="off"):
        devices = vkpar.open_devices("llvmpipe*2")
        try:
            with vkpar.Communicator(devices, transport="peer", timeout=60) as comm:
                given = [rows.astype(dtype) for rows in integers(seed, count)[:2]]
                arrays = [device.array(rows) for device, rows in zip(devices, given, strict=True)]
                comm.all_reduce(arrays).wait()
                for array in arrays:
                    np.testing.assert_array_equal(array.numpy(), given[0] + given[1])
        finally:
            for device in devices:
                device.close()


# ---- failure ----


def test_a_copy_that_never_comes_is_a_typed_error(vendor: HostVendor) -> None:
    check_a_copy_that_never_comes(vendor, vkpar.open_devices("llvmpipe*2"), "peer", "0")


def test_a_call_that_the_vendor_refuses_is_a_typed_error(vendor: HostVendor) -> None:
    devices = vkpar.open_devices("llvmpipe*2")
    comm = vkpar.Communicator(devices, transport="peer", timeout=20)
    arrays = [device.array(rows) for device, rows in zip(devices, integers(1, 999), strict=False)]
    vendor.fails = 700
    with pytest.raises(CommunicatorError) as caught:
        comm.all_reduce(arrays).wait()
    assert "status 700" in str(caught.value)
    assert comm.failed
    comm.close()
    for device in devices:
        device.close()


def test_an_abort_reaches_all_cards_but_one_that_refuses(vendor: HostVendor) -> None:
    """And that one, once it does not refuse any more."""
    devices = vkpar.open_devices("llvmpipe*3")
    with vkpar.Communicator(devices, transport="peer", timeout=60) as comm:
        carriers = comm._engine.rig.carriers
        assert carriers is not None
        vendor.mute = vendor.memory[:1]
        carriers.abort()
        assert [word_of(memory, ABORTED) for memory in vendor.memory] == [0, 1, 1]
        vendor.mute = []
        carriers.abort()
        assert [word_of(memory, ABORTED) for memory in vendor.memory] == [1, 1, 1]
    for device in devices:
        device.close()


def test_what_is_abandoned_gives_healthy_cards_their_memory_back(
    vendor: HostVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = vkpar.open_devices("llvmpipe*2")
    before = [imported_nbytes(device) for device in devices]
    comm = vkpar.Communicator(devices, transport="peer", timeout=60)
    monkeypatch.setattr(comm._engine._closer, "_drain", lambda: [1])
    with pytest.raises(CommunicatorError):
        comm.close()
    assert imported_nbytes(devices[0]) == before[0]
    devices[0].close()


def test_a_forked_child_frees_what_the_thread_has(vendor: HostVendor) -> None:
    devices = vkpar.open_devices("llvmpipe*2")
    with vkpar.Communicator(devices, transport="peer", timeout=60) as comm:
        given = [[device.array(rows) for device, rows in zip(devices, integers(1, 500), strict=False)]] * 12
        vendor.go.clear()
        with comm.group():
            works = [comm.all_reduce(each) for each in given]
        program = next(iter(comm._engine.cache._joined.values()))
        child = os.fork()
        if not child:
            signal.alarm(20)
            program.close()
            os._exit(0)
        vendor.go.set()
        assert os.waitpid(child, 0)[1] == 0
        works[-1].wait()
    for device in devices:
        device.close()


@heavy
def test_opened_and_closed_again_and_again(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    vkpar.Communicator(ranks, transport="peer").close()
    before = [imported_nbytes(device) for device in ranks]
    for _ in range(2):
        vkpar.Communicator(ranks, transport="peer").close()
    assert [imported_nbytes(device) for device in ranks] == before
    assert not vendor.streams


# ---- who gets it ----


def test_auto_goes_on_where_the_library_refuses_a_card(
    ranks: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses:
        name = "CUDA"
        masks, alone = False, True

        def card(self, info: object) -> None:
            raise CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE", "cuDevicePrimaryCtxRetain")

    monkeypatch.setattr(peer, "_unlike", lambda ranks: "")
    monkeypatch.setitem(peer.VENDORS, ranks[0].info.driver_id, Refuses)
    with env.override(tuning="off"), vkpar.Communicator(ranks) as comm:
        assert "peer" not in comm.transports()
        assert all("cuDevicePrimaryCtxRetain" in link.reason for link in comm.links())
    with pytest.raises(UnsupportedError, match="cuDevicePrimaryCtxRetain"):
        vkpar.Communicator(ranks, transport="peer")


def test_forced_where_it_cannot_be_says_why(ranks: list[vkpar.Device]) -> None:
    with pytest.raises(UnsupportedError, match=r"transport peer: rank 0, llvmpipe.*no copy engine is known"):
        vkpar.Communicator(ranks, transport="peer")
    with pytest.raises(UnsupportedError, match="every rank is to have the transport, or none"):
        vkpar.Communicator(ranks, transport=["peer", "staged", "peer"])


def test_auto_goes_on_without_it(ranks: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ranks[0].info.driver_id
    monkeypatch.setitem(peer.VENDORS, driver, lambda: pytest.fail("two ranks of one card"))
    with env.override(tuning="off"), vkpar.Communicator(ranks) as comm:
        assert comm.transports() == ["staged"] * RANKS
        assert all(link.reason.endswith("not peer: two ranks are the same card") for link in comm.links())


def test_a_self_test_that_passed_is_remembered(
    ranks: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another process does not run it again, one with another driver does; one that failed is not remembered."""
    infos = [device.info for device in ranks[:2]]
    asked: list[object] = []
    monkeypatch.setattr(peer, "_tested", {})
    monkeypatch.setattr(
        peer, "_problem", lambda uuids: asked.append(uuids) or ("wrong sums" if len(asked) == 1 else "")
    )
    with env.override(cache_dir=str(tmp_path)):
        assert peer._self_test(infos) == "the self-test of copies between the cards failed: wrong sums"
        for times in (2, 2):
            peer._tested.clear()
            assert peer._self_test(infos) == ""
            assert len(asked) == times
        peer._tested.clear()
        assert peer._self_test([replace(info, driver_version=7) for info in infos]) == ""
        assert len(asked) == 3
