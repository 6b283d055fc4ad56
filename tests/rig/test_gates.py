"""Closing what other threads use: no call of a driver comes too late, whoever makes it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.process.children import check_child, child_environment
from helpers.vulkan.gates import Watch

import vkpar
from vkpar import device as devices_module
from vkpar.vulkan.pipelines.kernel import Pipeline, PipelineCache, PipelineLayout

pytestmark = pytest.mark.rig
SECONDS = 60 if FULL else 4
GLSL = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Data { float x[]; };
void main() { x[gl_GlobalInvocationID.x] += 1.0; }
"""


def on_one(device: vkpar.Device) -> None:
    """Do what calls the driver anew: kernels of all kinds, regions, imports, clocks, waits that run out."""
    a, b = device.array(np.ones((64, 64), np.float32)), device.full((64, 64), 2.0)
    assert np.all(vkpar.matmul(a, b).numpy() == 128)
    vkpar.softmax(a + b)
    a.sum().numpy()
    a[1:5, 3:9].numpy()
    a.T.copy()
    vkpar.cast(a, "float16" if device.info.features.float16 else "int32")
    vkpar.elementwise("y = x * 2 + 1")(a)
    kernel = vkpar.Kernel(device, GLSL)
    kernel(64, a)
    with contextlib.suppress(vkpar.UnsupportedError):
        kernel.time(64, a, repeat=2)
    with contextlib.suppress(vkpar.UnsupportedError), vkpar.host_array(1024, "float32", [device]) as memory:
        device.array(memory)
    with contextlib.suppress(vkpar.WaitTimeoutError):
        device.synchronize(0)
    with vkpar.capture(device) as graph:
        vkpar.matmul(a, b)
    graph.launch().wait()
    del kernel, graph
    device.memory()
    device.trim()


def on_two(devices: list[vkpar.Device]) -> None:
    """Do the same between devices: collectives, groups, profiles, reports, graphs, copies without a communicator."""
    arrays = [device.full(5000, 1.0) for device in devices]
    arrays[0].to(devices[1]).numpy()
    with vkpar.Communicator(devices) as comm:
        comm.all_reduce(arrays).wait()
        with comm.group():
            comm.all_reduce(arrays)
            comm.barrier()
        comm.dump()
        comm.stats()
        with vkpar.capture(devices, comm=comm) as graph:
            scale = graph.param("scale", "float32", 1.0)
            vkpar.add(arrays[0], scale[0], out=arrays[0])
            comm.all_reduce(arrays)
        graph.launch(scale=2.0).wait()
        with contextlib.suppress(vkpar.UnsupportedError), comm.profile():
            comm.all_reduce(arrays).wait()
            graph.launch().wait()
        comm.measure(0.1)
        graph.close()
    assert arrays[0].numpy()[0] == arrays[1].numpy()[0]


@pytest.mark.usefixtures("compiler")
def test_every_call_on_a_device_is_made_inside_a_gate(device: vkpar.Device) -> None:
    """A close waits for whoever is inside: what is outside may call a driver whose device is gone."""
    with Watch() as watch:
        devices = vkpar.open_devices(f"{device.info.index}*2")
        on_one(devices[0])
        on_two(devices)
        for each in devices:
            each.close()
    assert watch.calls > 100
    assert watch.strays == []


def _layout(cache: PipelineCache) -> None:
    cache.layout(5, 12)


def _shipped(cache: PipelineCache) -> None:
    cache.shipped("add_f32_f32", 3, 24)


def _leased(cache: PipelineCache) -> None:
    from vkpar.vulkan.pipelines import shader

    cache.lease("key", shader.shipped("add_f32_f32"), "main", 3, 24, own=True)


@pytest.mark.parametrize(
    ("make", "kind", "name"),
    [(_layout, PipelineLayout, "__init__"), (_shipped, Pipeline, "_create"), (_leased, Pipeline, "_create")],
)
def test_a_close_waits_for_the_kernel_that_another_thread_makes(
    device: vkpar.Device, make: Callable[[PipelineCache], None], kind: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, real = threading.Event(), threading.Event(), getattr(kind, name)

    def slow(self: Any, *given: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(self, *given, **named)

    own = vkpar.open_devices(str(device.info.index))[0]
    cache = own.logical.pipelines
    monkeypatch.setattr(kind, name, slow)
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            make(cache)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    maker, closer = threading.Thread(target=work), threading.Thread(target=own.close)
    maker.start()
    assert begun.wait(30)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive(), "the device went while a kernel was made on it"
    go_on.set()
    for thread in (maker, closer):
        thread.join(30)
        assert not thread.is_alive()
    assert ended == [None] or isinstance(ended[0], vkpar.InvalidUsageError)  # refused in the midst of it
    assert own.closed
    for refused in (_layout, _shipped, _leased):
        with pytest.raises(vkpar.InvalidUsageError, match="is closed"):
            refused(cache)


@pytest.mark.parametrize("use", ["matmul", "clock"])
def test_a_clock_and_an_operation_of_a_closed_device_are_refused(device: vkpar.Device, use: str) -> None:
    from vkpar.vulkan.query import DeviceClock

    own = vkpar.open_devices(str(device.info.index))[0]
    logical, a = own.logical, own.full((4, 4), 1.0)
    clock = DeviceClock(logical)
    own.close()
    calls = {
        "matmul": (lambda: vkpar.matmul(a, a),),
        "clock": (lambda: DeviceClock(logical), clock.sample, lambda: logical.compute.reached),
    }
    for call in calls[use]:
        with pytest.raises(vkpar.InvalidUsageError, match="is closed"):
            call()


@pytest.mark.parametrize("what", ["communicator", "graph"])
def test_a_device_outlives_what_a_garbage_collector_is_about_to_hand_over(
    device: vkpar.Device, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the end of a weak reference and a finalizer other threads run: the device does not see its users then."""
    devices = vkpar.open_devices(f"{device.info.index}*2")
    arrays = [each.full(100, 1.0) for each in devices]
    if what == "communicator":
        comm = vkpar.Communicator(devices)
        comm.all_reduce(arrays)
        dropped: Any = comm._engine
    else:
        with vkpar.capture(devices) as dropped:
            vkpar.add(arrays[0], 1.0, out=arrays[0])
        dropped.launch()
    for each in devices:
        each._children.discard(dropped)
    late = threading.Timer(0.3, devices_module.orphans.append, [dropped])
    late.start()
    with caplog.at_level(logging.ERROR, "vkpar"):
        for each in devices:
            each.close()
        late.join()
    assert dropped.closed
    assert all(not each._logical.users for each in devices)
    assert caplog.records == []


def test_a_device_is_closed_although_closing_a_communicator_on_it_fails(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkpar.comm.engine.engine import Engine

    devices = vkpar.open_devices(f"{device.info.index}*2")
    comm, real = vkpar.Communicator(devices), Engine.close

    def close(engine: Engine) -> None:
        real(engine)
        raise vkpar.CommunicatorError("nobody was told yet")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "close", close)
        with pytest.raises(vkpar.CommunicatorError, match="nobody was told yet"):
            devices[0].close()
    assert devices[0].closed
    assert devices[0]._logical.done
    assert comm.closed
    devices[1].close()


AT_EXIT = """
import sys, threading, time
import numpy as np
import vkpar

def use():
    while True:
        try:
            DEED
        except vkpar.InvalidUsageError:
            pass

devices = vkpar.open_devices(sys.argv[1] + "*2")
x = devices[0].ones(100)
for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "deed",
    [
        "vkpar.enumerate_devices()",
        "vkpar.open_devices(sys.argv[1])[0].close()",
        "vkpar.add(x, 1).numpy()",
        "devices[0].array(np.ones((30, 30), np.float32))[1:20, 2:7].to(devices[1])",
    ],
)
def test_a_process_ends_while_daemon_threads_go_on(device: vkpar.Device, deed: str) -> None:
    """They are refused before the drivers go."""
    check_child(AT_EXIT.replace("DEED", deed), str(device.info.index), environment=child_environment())


@pytest.mark.usefixtures("compiler")
def test_eight_threads_use_close_and_reopen_everything(device: vkpar.Device) -> None:
    """A process of its own, because what is wrong here crashes it."""
    program = (Path(__file__).parents[1] / "helpers" / "process" / "storm.py").read_text()
    never = check_child(
        program, str(device.info.index), str(SECONDS), "1", timeout=SECONDS + 200, environment=child_environment()
    )
    if FULL:
        assert never.split() == []
