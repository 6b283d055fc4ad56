"""Mixed rigs: slots are carried within groups of ranks, and go through host memory between them.

The host carries in the place of a vendor's library, between lavapipe's ranks; SwiftShader's are in no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import conftest
import numpy as np
import pytest
from helpers.comm.carrying import carried, check_a_copy_that_never_comes
from helpers.comm.hostvendor import HostVendor

import vkpar
from vkpar import env
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.tune import measure

NAMES = {"L": "llvmpipe", "S": "swiftshader"}
RIGS = ["LLS", "SLL", "LSL"]
MORE = ["LSSL", "LLL"]  # two groups would have four kernels wait for each other's turn on lavapipe's threads


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostVendor]:
    with carried(monkeypatch, grouped=True) as made, env.override(tuning="off"):
        yield made


@pytest.fixture(params=[*RIGS, *MORE] if conftest.FULL else RIGS)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[vkpar.Device]]:
    for letter in set(request.param):
        conftest.require(NAMES[letter])
    devices = vkpar.open_devices("&".join(NAMES[letter] for letter in request.param))
    yield devices
    for device in devices:
        device.close()


Run = Callable[[vkpar.Communicator, Sequence[vkpar.Array]], object]
CALLS: dict[str, Run] = {
    "f16": lambda comm, a: comm.all_reduce(a),
    "q8": lambda comm, a: comm.all_reduce(a, wire="q8"),
    "f32": lambda comm, a: comm.all_reduce(a, wire="f32", op="avg"),
    "max": lambda comm, a: comm.all_reduce(a, op="max"),
    "reduce": lambda comm, a: comm.reduce(a, root=1),
    "broadcast": lambda comm, a: comm.broadcast(a, root=2),
    "send": lambda comm, a: comm.send_recv([(a[0][:9000], a[1][9000:18_000]), (a[1][:9000], a[2][9000:18_000])]),
}


def results(ranks: Sequence[vkpar.Device], transport: str, algorithm: str, name: str, count: int) -> list[np.ndarray]:
    given = [np.random.default_rng((3, rank)).standard_normal(count).astype(np.float32) for rank in range(len(ranks))]
    with vkpar.Communicator(ranks, transport=transport, algorithm=algorithm, timeout=60) as comm:
        arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
        for _ in range(2):
            CALLS[name](comm, arrays)
        comm.barrier().wait()
        return [array.numpy() for array in arrays]


@pytest.mark.parametrize("algorithm", ["two_shot", "two_level"])
def test_integers_are_summed_exactly_and_carried(algorithm: str, ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    with vkpar.Communicator(ranks, algorithm=algorithm, timeout=60) as comm:
        for turn, count in enumerate((1, 1000, 300_000, 7)):
            given = [
                np.random.default_rng((turn, rank)).integers(-99, 99, count, np.int32) for rank in range(len(ranks))
            ]
            arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
            comm.all_reduce(arrays).wait()
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), sum(given))
    assert vendor.copied_bytes


@pytest.mark.parametrize("name", CALLS if conftest.FULL else ("q8", "broadcast"))
def test_bits_are_those_of_staged_slots(name: str, ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    staged, grouped = (results(ranks, each, "two_shot", name, 75_000) for each in ("staged", "auto"))
    assert vendor.copied
    for one, other in zip(staged, grouped, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("name", ["f16", "q8"])
def test_two_levels_leave_replicas_alike(name: str, ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    found = results(ranks, "auto", "two_level", name, 300_000)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))


def test_profiles_know_what_crosses_groups(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    with vkpar.Communicator(ranks, algorithm="two_shot", timeout=60) as comm:
        alone = {rank for rank, transport in enumerate(comm.transports()) if transport != "peer"}
        arrays = [device.array(np.arange(3000, dtype=np.int32)) for device in ranks]
        with comm.profile() as profile:
            comm.all_reduce(arrays).wait()
    pairs = {(source in alone, step.rank in alone) for step in profile.steps for source, _ in step.sources}
    assert {(True, False), (False, True)} <= pairs


def test_why_there_are_no_groups_is_told(ranks: list[vkpar.Device]) -> None:
    with env.override(tuning="off", peer="groups"), vkpar.Communicator(ranks) as comm:
        assert all(link.reason.endswith("no copy engine of these ranks' drivers is known") for link in comm.links())


def test_two_levels_are_measured(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    for transport, among in (("auto", True), ("staged", False)):
        with vkpar.Communicator(ranks, transport=transport, timeout=60) as comm:
            plans = measure._plans(comm._engine, Tuning(), "f16", 1 << 20)
            assert ("two_level" in {plan.algorithm.name for plan in plans}) == among


def test_the_roads_are_told(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    with vkpar.Communicator(ranks, timeout=60) as comm:
        kinds = {(link.src, link.dst): link.kind for link in comm.links()}
        joined = [rank for rank, kind in enumerate(comm.transports()) if kind == "peer"]
    assert len(joined) >= 2
    assert not any(kind == "peer" for pair, kind in kinds.items() if not set(pair) <= set(joined))
    assert sum(kind == "peer" for kind in kinds.values()) == len(joined)  # pairs, both ways


def test_graphs_groups_and_single_calls_take_turns(ranks: list[vkpar.Device], vendor: HostVendor) -> None:
    """A graph's collectives use the shared slots; whatever comes next finds them free."""
    given = [np.random.default_rng(rank).integers(-9, 9, 5000).astype(np.int32) for rank in range(len(ranks))]
    n = len(ranks)
    with vkpar.Communicator(ranks, timeout=60) as comm:
        arrays = [device.array(rows) for device, rows in zip(ranks, given, strict=True)]
        with vkpar.capture(ranks, comm=comm) as graph:
            comm.all_reduce(arrays)
        for _ in range(2):
            graph.launch()
            comm.all_reduce(arrays)
            with comm.group():
                comm.broadcast(arrays, root=1)
                comm.all_reduce(arrays)
        comm.barrier().wait()
        graph.close()
        want = sum(given).astype(np.int64) * n * n * n**3  # six sums, the first of what was given
        for array in arrays:
            np.testing.assert_array_equal(array.numpy(), want.astype(np.int32))


def test_a_copy_that_never_comes_is_a_typed_error(vendor: HostVendor) -> None:
    conftest.require("llvmpipe")
    conftest.require("swiftshader")
    devices = vkpar.open_devices("llvmpipe&llvmpipe&swiftshader")
    check_a_copy_that_never_comes(vendor, devices, "auto", r"\d")
