"""Reductions through copies (``VKPAR_PATH=copies``): the bits of the fused path, and how they fail and end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.delays import Delays
from helpers.ops.reducing import (
    FORMATS,
    Numbers,
    algorithms_for,
    check_identical,
    devices_of,
    exact_sum,
    fresh_devices,
    integers,
    reals,
)
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked
from helpers.vulkan.queues import queues_apart

import vkpar
from vkpar import CommunicatorError, UnsupportedError, WaitTimeoutError, env
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.query import QueryPool
from vkpar.vulkan.queue import Queue

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]


@pytest.fixture
def opened(rig: Open) -> Open:
    """Give a function that opens a communicator whose reductions go through copies."""

    def make(letters: str, **options: Any) -> vkpar.Communicator:
        with env.override(path="copies"):
            return rig(letters, **options)

    return make


@pytest.fixture
def own(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of two drivers, the test's own."""
    with env.override(path="copies"):
        devices = fresh_devices(rigs, "LLS")
        yield devices
    for device in devices:
        device.close()


def results(
    comm: vkpar.Communicator, parts: list[Numbers], dtype: str, wire: str | None, *, out: bool
) -> list[Numbers]:
    """Return what every rank has after two all_reduces of the same arrays, in place or not."""
    arrays = [device.array(part, dtype) for device, part in zip(comm.devices, parts, strict=True)]
    targets = [device.empty(part.shape, dtype) for device, part in zip(comm.devices, parts, strict=True)]
    for _ in range(2):
        comm.all_reduce(arrays, out=targets if out else None, wire=wire)
    return [array.numpy() for array in (targets if out else arrays)]


def ones(devices: list[vkpar.Device], count: int = 1000) -> list[vkpar.Array]:
    return [device.array(np.ones(count, np.float32)) for device in devices]


@pytest.mark.sampled(97)
@pytest.mark.parametrize("letters", ["LL", "LSL", "SS", "SLSL", "LLLLL"] if FULL else ["LL", "LSL", "SS"])
def test_the_bits_of_the_fused_path(rig: Open, opened: Open, rng: np.random.Generator, letters: str) -> None:
    counts = (1, 700, 65_537) if FULL else (700, 65_537)
    for number, algorithm in enumerate(algorithms_for(letters)):
        fused, through = rig(letters, algorithm=algorithm), opened(letters, algorithm=algorithm)
        assert through._engine.rig.copies
        assert not fused._engine.rig.copies
        some = FORMATS[:4] if letters == "LL" else FORMATS[number % 4 : number % 4 + 1]
        for turn, (dtype, wire) in enumerate(FORMATS if FULL else some):
            make = integers if dtype in ("int32", "uint32") else reals
            parts = make(rng, dtype, counts[(number + turn) % len(counts)], len(letters))
            out = bool((number + turn) // len(counts) % 2)
            want = results(fused, parts, dtype, wire, out=out)
            for got in results(through, parts, dtype, wire, out=out):
                assert np.array_equal(got.view(np.uint8), want[0].view(np.uint8)), (algorithm, dtype, wire)


def test_every_reduction_beside_movements_and_in_groups(opened: Open, rng: np.random.Generator) -> None:
    """Programs that go through copies and others use the same slots in turn."""
    comm = opened("LSL")
    for count in (900, 40_001):
        parts = integers(rng, "int32", count, 3)
        arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
        pieces = [
            device.empty(len(x), "int32") for device, x in zip(comm.devices, np.array_split(parts[0], 3), strict=True)
        ]
        whole = [device.empty(count, "int32") for device in comm.devices]
        rooted = comm.devices[1].empty(count, "int32")
        with comm.group():
            comm.reduce_scatter(arrays, out=pieces)
            comm.barrier()
            comm.all_gather(pieces, out=whole)
            comm.reduce(arrays, 1, out=rooted)
            comm.all_reduce(arrays)
            comm.broadcast(arrays, 2)
        want = exact_sum(parts, "int32")
        for array in (*whole, *arrays, rooted):
            assert np.array_equal(array.numpy(), want)


def test_silent_ranks_and_arrays_that_are_not_aligned(opened: Open, rng: np.random.Generator) -> None:
    """Stand-ins are filled before a rank's first kernel, and read after its last."""
    comm = opened("LLS", wire="f32")
    parts = integers(rng, "float32", 3001, 3)
    wide = [device.zeros(3003, "float32") for device in comm.devices]
    views = [array[1:3002] for array in wide]
    for view, part in zip(views, parts, strict=True):
        view.write(part)
    comm.all_reduce([views[0], None, views[2]], out=views)
    for array in wide:
        assert np.array_equal(array.numpy(), np.pad(parts[0] + parts[2], (1, 1)))


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_steps_that_are_held_up(own: list[vkpar.Device], rng: np.random.Generator, algorithm: str) -> None:
    with vkpar.Communicator(own, algorithm=algorithm) as comm, Delays(comm, 5, share=0.1):
        pending = []
        for count in (300, 20_000, 257, 40_003):
            parts = integers(rng, "float32", count, 3)
            arrays = [device.array(part) for device, part in zip(own, parts, strict=True)]
            pending.append((comm.all_reduce(arrays), arrays, exact_sum(parts, "float32")))
        for work, arrays, want in pending:
            work.wait()
            assert np.array_equal(check_identical([array.numpy() for array in arrays]), want)


def test_a_profile_has_the_copies(opened: Open) -> None:
    comm = opened("LS", algorithm="two_shot")
    arrays = ones(list(comm.devices), 2048)
    with comm.profile() as profile:
        for _ in range(3):
            comm.all_reduce(arrays).wait()
    rows = {(row.rank, row.phase): row for row in profile.summary()}
    assert {phase for _, phase in rows} == {"publish", "copy out", "copy in", "reduce", "gather"}
    nbytes = 3 * 4 * (2 * 256 + 4)  # of three calls, half of eight blocks: halves and their scales
    for step in ("copy in", "copy out"):
        moved = [x.received_nbytes if step == "copy in" else x.sent_nbytes for x in profile.steps if x.phase == step]
        assert sum(moved) == 2 * 2 * nbytes
    assert "copy in (" in json_of(comm)


def test_queries_that_the_host_empties(rigs: Rigs) -> None:
    """Queues that only copy cannot do it themselves."""
    (device,) = devices_of(rigs, "L")
    pool = QueryPool(device.logical.handle, 1)
    for _ in range(2):
        pool.reset()
        assert pool.read() is None
        device.logical.compute.run(lambda frame: frame.commands.record_timestamp(pool.handle, 0))
        device.synchronize()
        assert pool.read()
    pool.close()


def json_of(comm: vkpar.Communicator) -> str:
    """Return the flight recorder's text of a collective that stands still."""
    arrays = ones(list(comm.devices))
    with parked(comm.devices[1]) as release:
        work = comm.all_reduce(arrays)
        with pytest.raises(WaitTimeoutError):
            work.wait(0.2)
        text = comm.dump()
        release()
    work.wait()
    return text


# ---- several queues a rank ----


@pytest.fixture(params=[1, 2])
def several(
    request: pytest.FixtureRequest, rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[vkpar.Device]]:
    """Devices that pretend to have that many copy queues beside their one queue."""
    made: dict[LogicalDevice, list[Queue]] = {}

    def queues_of(device: LogicalDevice) -> list[Queue]:
        if device not in made:
            family = device.compute.family
            made[device] = [
                Queue(device.handle, device.info, family, "transfer", device.gate) for _ in range(request.param)
            ]
        return made[device]

    monkeypatch.setattr(LogicalDevice, "copy_queues", queues_of)
    with env.override(path="copies"), queues_apart(monkeypatch):
        devices = fresh_devices(rigs, "LLS")
        yield devices
        for device in devices:
            device.synchronize(60)
            for queue in made.get(device.logical, ()):
                queue.wait(queue.last, 60)
    for device in devices:
        for queue in made.pop(device.logical, ()):
            queue.close()
        device.close()


def test_queues_of_their_own(several: list[vkpar.Device], rng: np.random.Generator) -> None:
    with vkpar.Communicator(several, algorithm="ring") as comm, Delays(comm, 7, share=0.05):
        queue_map = comm._engine.rig.queue_map
        assert len(comm._engine.rig.queues) == len(queue_map.ranks) == len(comm._engine.rig.reached()) in (6, 9)
        assert set(queue_map.into) & set(range(3)) == set()
        for count in (300, 40_003):
            parts = integers(rng, "float32", count, 3)
            arrays = [device.array(part) for device, part in zip(several, parts, strict=True)]
            comm.all_reduce(arrays)
            comm.barrier()
            assert np.array_equal(check_identical([array.numpy() for array in arrays]), exact_sum(parts, "float32"))
        with comm.group():
            comm.all_reduce(arrays, op="max")
            comm.all_reduce(arrays, op="min")
        assert np.array_equal(arrays[0].numpy(), exact_sum(parts, "float32"))


def test_operations_between_sums(several: list[vkpar.Device]) -> None:
    """What a device has gathered is submitted once, before the batches of either of its queues."""
    for device in several:
        device.logical.compute.port.pair(device.logical.copy_queues()[0].port)
    with vkpar.Communicator(several, algorithm="ring") as comm:
        arrays, want = ones(several, 5000), 1
        for _ in range(4):
            for array in arrays:
                vkpar.add(array, 1, out=array)
            comm.all_reduce(arrays)
            want = 3 * (want + 1)
        assert all((array.numpy() == want).all() for array in arrays)


def test_queues_in_profiles_and_failures(several: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(several, timeout=0.4)
    arrays = ones(several, 5000)
    with comm.profile() as profile:
        comm.all_reduce(arrays)
    copied = [step for step in profile.steps if step.phase.startswith("copy")]
    assert len(copied) > 3
    assert all(step.lane is not None and comm._engine.rig.queue_map.ranks[step.lane] == step.rank for step in copied)
    assert all(step.lane is None for step in profile.steps if step not in copied)
    assert len({(step.rank, step.index) for step in profile.steps}) == len(profile.steps)
    with parked(several[2]) as release:
        work = comm.all_reduce(arrays)
        with pytest.raises(CommunicatorError, match="copies") as caught:
            work.wait()
        release()
    ranks = caught.value.details["ranks"]
    assert [item["rank"] for item in ranks] == list(comm._engine.rig.queue_map.ranks)
    assert [item["device"] for item in ranks][:3] == [device.name for device in several]
    assert all("(copies" in item["device"] for item in ranks[3:])
    comm.close()


# ---- how they fail and end ----


def test_what_cannot_be_copied_is_refused(opened: Open) -> None:
    with pytest.raises(UnsupportedError, match="copies need imported memory"):
        opened("LS", transport=["staged", "mapped"])
    with env.override(debug="slots"), pytest.raises(UnsupportedError, match="VKPAR_PATH=fused"):
        opened("LL")


def test_a_peer_that_hangs(own: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(own, timeout=0.4, algorithm="ring")
    arrays = ones(own, 50_000)
    with parked(own[1]) as release:
        works = [comm.all_reduce(arrays) for _ in range(3)]
        with pytest.raises(WaitTimeoutError):
            works[0].wait(0.05)
        with pytest.raises(CommunicatorError, match=r"no timeline advanced for 0\.4 s") as caught:
            works[2].wait()
        release()
    assert [item["device"] for item in caught.value.details["ranks"]] == [device.name for device in own]
    assert len(caught.value.details["bridges_pending_by_rank"]) == 3
    comm.close()
    check_works(own)


def test_close_waits_for_pending_copies(own: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(own)
    arrays = ones(own)
    with parked(own[0]) as release:
        comm.all_reduce(arrays)
        timer = threading.Timer(0.3, release)
        timer.start()
        comm.close()
        timer.join()
    assert np.all(check_identical([array.numpy() for array in arrays]) == 3)


def test_nothing_leaks(rigs: Rigs, opened: Open) -> None:
    devices = devices_of(rigs, "LS")
    opened("LS").close()  # pipelines stay
    for device in devices:
        device.trim()  # memory of dropped arrays too
    used, before = [device.logical.allocator.used for device in devices], held(devices)
    comm = opened("LS")
    assert all(device.logical.allocator.used > was for device, was in zip(devices, used, strict=True))
    comm.all_reduce(ones(devices, 30_000)).wait()
    comm.close()
    for device in devices:
        device.trim()  # memory of dropped arrays too
    after = held(devices)
    assert {kind: after[kind] - before.get(kind, 0) for kind in after if kind != "Pipeline"} == {
        kind: 0 for kind in after if kind != "Pipeline"
    }
    assert [device.logical.allocator.used for device in devices] == used


def check_works(devices: list[vkpar.Device]) -> None:
    """A new communicator over the devices works."""
    with vkpar.Communicator(devices) as comm:
        arrays = ones(devices)
        comm.all_reduce(arrays).wait(60)
        assert np.all(check_identical([array.numpy() for array in arrays]) == len(devices))
