"""Bounce buffers, which stand in for views that kernels cannot reach, give way to what users ask for."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import vkpar
from vkpar import OutOfMemoryError, env
from vkpar.comm.engine import cache
from vkpar.device import living
from vkpar.vulkan import api

COUNT = 50_000


@pytest.fixture(params=["llvmpipe*2", "llvmpipe&swiftshader"])
def devices(request: pytest.FixtureRequest) -> Iterator[list[vkpar.Device]]:
    """Devices of their own, all of whose handles must be gone after their close."""
    from conftest import require

    for name in ("llvmpipe", "swiftshader"):
        if name in request.param:
            require(name)
    trim_all()  # what other devices keep goes where memory runs out
    before = api.load().live()
    made = vkpar.open_devices(request.param)
    yield made
    for device in made:
        device.close()
    trim_all()
    assert api.load().live() == before


def trim_all() -> None:
    """Free what open devices keep for later, and what was dropped on them."""
    gc.collect()
    for opened in list(living):
        if not opened.closed:
            opened.synchronize()
            opened.logical.reap()
            opened.trim()


def views(devices: list[vkpar.Device], count: int = COUNT) -> list[vkpar.Array]:
    """Return views of arrays that begin where no wide access can."""
    return [device.array(np.ones(count + 1, np.float32))[1:] for device in devices]


def test_they_are_booked_by_their_name(devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(devices) as comm:
        given = views(devices)
        for device in devices:
            device.synchronize()  # what the communicator's self-test dropped is in use until then
        before = [device.memory() for device in devices]
        comm.all_reduce(given, wire="f32").wait()
        for device, was in zip(devices, before, strict=True):
            now = device.memory()
            assert now.arrays == was.arrays
            assert was.bounce_buffers == 0
            assert COUNT * 4 <= now.bounce_buffers == now.used - was.used
            assert now.as_dict()["bounce_buffers"] == now.bounce_buffers
        assert (given[0].numpy() == 2).all()
        with env.override(max_memory=COUNT * 8 + 512), pytest.raises(OutOfMemoryError, match="VKPAR_MAX_MEMORY"):
            comm.all_reduce(views(devices, COUNT * 2), wire="f32")


def test_they_go_before_memory_runs_out(devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(devices) as comm:
        given = views(devices)
        with env.override(max_memory=COUNT * 12):
            for _ in range(3):
                comm.all_reduce(given, wire="f32")
                assert devices[0].memory().bounce_buffers >= COUNT * 4
                held = devices[0].empty(COUNT + COUNT // 2)
                assert devices[0].memory().bounce_buffers == 0
                del held
            assert (given[0].numpy() == 8).all()
            with pytest.raises(OutOfMemoryError):
                devices[0].empty(2 * COUNT)


def test_a_collective_takes_the_room_of_an_older_one(devices: list[vkpar.Device]) -> None:
    """Alone and in groups, whose own ones stay."""
    with vkpar.Communicator(devices) as comm:
        sets = [views(devices) for _ in range(4)]
        with env.override(max_memory=COUNT * 4 * 6 + 10_000):
            for given in sets:  # four arrays, and room for two bounce buffers
                comm.all_reduce(given, wire="f32")
            with comm.group():
                for given in sets[:2]:
                    comm.all_reduce(given, wire="f32")
            group = comm.group()
            group.__enter__()
            for given in sets[:3]:
                comm.all_reduce(given, wire="f32")
            with pytest.raises(OutOfMemoryError):
                group.__exit__(None, None, None)
            comm.all_reduce(sets[3], wire="f32")
        assert [given[0].numpy()[-1] for given in sets] == [4, 4, 2, 4]


def test_those_of_another_communicator_go_too(devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(devices) as comm, vkpar.Communicator(devices) as other:
        first, second = views(devices), views(devices)
        with env.override(max_memory=COUNT * 4 * 3 + 5000):
            comm.all_reduce(first, wire="f32")
            other.all_reduce(second, wire="f32")
            comm.all_reduce(first, wire="f32")
        assert (first[0].numpy()[0], second[0].numpy()[0]) == (4, 2)


def test_they_go_for_a_staging_ring(devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring is made at the first write; the driver has no memory for it while the bounce buffers are there."""
    vk = api.load()
    with vkpar.Communicator(devices) as comm:
        given = [device.zeros(COUNT + 1)[1:] for device in devices]
        comm.all_reduce(given, wire="f32").wait()
        device = devices[0]
        allocator = device.logical.allocator
        real = allocator._allocate_memory

        def scarce(nbytes: int, *rest: object) -> object:
            if device.logical.accounting.of("bounce buffers"):
                raise OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkAllocateMemory")
            return real(nbytes, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(allocator, "_allocate_memory", scarce)
        device.logical.staging.close()
        device.array(np.arange(5.0))
        assert device.memory().bounce_buffers == 0
        assert device.memory().staging > 0
    assert vk.live()["Device"] >= len(devices)


def test_what_is_kept_is_bounded(devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BOUNCE_NBYTES", COUNT * 4 * 2 + 10_000)
    with vkpar.Communicator(devices) as comm:
        sets = [views(devices) for _ in range(5)]
        large = views(devices, COUNT * 3)
        for _ in range(2):
            for given in [*sets, large]:
                comm.all_reduce(given, wire="f32").wait()
                assert all(device.memory().bounce_buffers <= COUNT * 4 * 6 for device in devices)
        comm.barrier().wait()
        comm._engine.sweep()
        gc.collect()
        for device in devices:
            device.synchronize()
            assert device.memory().bounce_buffers <= COUNT * 4 * 2 + 10_000
        assert large[0].numpy()[0] == sets[0][0].numpy()[0] == 4
