"""When the system gives out: no file descriptor, no address space, no thread, waits that fail during a close."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.process.children import check_child, child_environment, run_child
from helpers.process.closing import MAKERS, Faults

import vkpar
from vkpar.timeouts import Waitable
from vkpar.vulkan import api
from vkpar.vulkan.pump.native import CGroup

pytestmark = pytest.mark.rig

PRELUDE = """
import os, resource, sys
import numpy as np
import vkpar
from vkpar.vulkan import api

GLSL = '''#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Data { float x[]; };
void main() { x[gl_GlobalInvocationID.x] += 1.0; }
'''
a, b = vkpar.open_devices(sys.argv[1] + "*2")

def communicate():
    with vkpar.Communicator([a, b]) as comm:
        arrays = [device.array(np.ones(500, np.float32)) for device in (a, b)]
        comm.all_reduce(arrays).wait()
        assert np.all(arrays[0].numpy() == 2)

def capture():
    x = a.array(np.ones((8, 8), np.float32))
    with vkpar.capture(a) as graph:
        y = vkpar.softmax(x, axis=0)
    graph.launch().wait()

def refused(name, call):
    try:
        call()
        return name + " done"
    except vkpar.OutOfMemoryError as error:
        return name if "nothing left for" in str(error) else f"{name}: {error}"

def end():
    for device in (a, b):
        device.close()
    assert api.load().live() == {"Instance": 1}, api.load().live()
"""

NO_FILES = """
deeds = {
    "operation": lambda: vkpar.add(a.array(np.ones(5, np.float32)), 1),
    "product": lambda: vkpar.matmul(a.array(np.ones((5, 5), np.float32)), a.array(np.ones((5, 5), np.float32))),
    "elementwise": lambda: vkpar.elementwise("y = x * 3 + 1.25")(a.array(np.ones(4, np.float32))),
    "kernel": lambda: vkpar.Kernel(a, GLSL),
    "view": lambda: a.array(np.ones((9, 8), np.float32)).T.copy(),
    "communicator": communicate,
    "capture": capture,
}
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
told = []
for name, call in deeds.items():
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        told.append(refused(name, call))
    finally:
        for each in held:
            os.close(each)
print(*told)
for call in deeds.values():  # once there are some again
    call()
end()
"""

NO_SPACE = """
deeds = {
    "communicator": communicate,
    "copy": lambda: a.array(np.ones(5)).to(b),
    "host": lambda: vkpar.host_array(16 << 20, "uint8", [a]),
}
communicate()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20), resource.RLIM_INFINITY))
told = [refused(name, call) for name, call in deeds.items()]
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(*told)
for call in deeds.values():
    call()
end()
"""


def told(program: str, device: vkpar.Device, **variables: str) -> list[str]:
    return check_child(PRELUDE + program, str(device.info.index), environment=child_environment(**variables)).split()


@pytest.mark.usefixtures("compiler")
def test_without_file_descriptors(device: vkpar.Device, tmp_path: Path) -> None:
    """What needs a file for the first time is refused in words, and works once there are some again."""
    found = told(NO_FILES, device, VKPAR_CACHE_DIR=str(tmp_path), VKPAR_TUNING="off")
    assert found == ["operation", "product", "elementwise", "kernel", "view", "communicator", "capture"]


def test_without_address_space(device: vkpar.Device) -> None:
    """As under ``ulimit -v``: what takes memory of the host's own."""
    found = told(NO_SPACE, device, VKPAR_STAGING_BYTES=str(16 << 20), VKPAR_TUNING="off")
    assert found == ["communicator", "copy", "host"]


def live() -> dict[str, int]:
    """Return how many handles there are, by kind, but for pipelines, which stay with a device."""
    return {kind: count for kind, count in api.load().live().items() if kind != "Pipeline"}


def test_without_threads(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = vkpar.open_devices(f"{device.info.index}*2")
    before = live()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Done(Waitable):
        def wait(self, timeout: float | None = None) -> None:
            pass

        def done(self) -> bool:
            return True

    async def wait() -> None:
        await Done()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(vkpar.OutOfMemoryError, match="nothing left for a communicator's watchdog"):
            vkpar.Communicator(devices)
        with (
            closing(asyncio.new_event_loop()) as loop,
            pytest.raises(vkpar.OutOfMemoryError, match="nothing left for a thread of the event loop's executor"),
        ):
            loop.run_until_complete(wait())
    assert live() == before
    with vkpar.Communicator(devices) as comm:
        comm.barrier().wait()
    for each in devices:
        each.close()


def test_without_a_thread_between_ranks() -> None:
    group = object.__new__(CGroup)
    group.handle = None
    group._c = SimpleNamespace(lib=SimpleNamespace(vkp_group_start=lambda *_: errno.EAGAIN))  # type: ignore[assignment]
    with pytest.raises(vkpar.OutOfMemoryError, match="nothing left for a thread between ranks"):
        group.start(0)


# ---- closes ----


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def failures_of(close: Callable[[], None]) -> list[vkpar.CommunicatorError]:
    """Return what a close tells, after it has closed all."""
    try:
        close()
    except vkpar.CommunicatorError as error:
        return [error]
    return []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("what", MAKERS)
def test_a_close_goes_on_where_a_wait_fails(device: vkpar.Device, faults: Faults, what: str, number: int) -> None:
    """Where the wait of a bridge between ranks fails, so does the collective: the close says that, at its end."""
    before = live()
    devices = vkpar.open_devices(f"{device.info.index}*2")
    made = MAKERS[what](devices)
    faults.left = number
    told = failures_of(made.close)
    assert made.closed
    faults.left = 0
    made.close()
    for each in devices:
        told += failures_of(each.close)
        assert each._logical.done
        assert not each._logical.quarantined
        each.close()
    assert live() == before
    if what == "communicator":
        assert len(told) == made._engine.health.failed
    assert len(told) <= (what in ("communicator", "shared_graph"))
    assert all(isinstance(error.__cause__, vkpar.OutOfMemoryError) for error in told)


NO_LOOK = """
import importlib, logging, sys, time
sys.path.insert(0, sys.argv[2])
import pytest
import vkpar
from vkpar import timeouts
from helpers.process.closing import MAKERS, Faults

logging.basicConfig(stream=sys.stdout, format="%(message)s")
timeouts.DRAIN_SECONDS = timeouts.CLOSE_SECONDS = 0.3
patch = pytest.MonkeyPatch()
faults = Faults(patch)
devices = vkpar.open_devices(sys.argv[1] + "*2")
real = vkpar.Communicator
vkpar.Communicator = lambda devices: real(devices, timeout=0.5)
made = MAKERS[sys.argv[3]](devices)
faults.left = 1 << 60
start = time.monotonic()
for each in (made, *devices, made, *devices):
    try:
        each.close()
    except vkpar.VkparError as error:
        print(type(error).__name__)
    assert each.closed
assert time.monotonic() - start < 20
try:
    devices[0].ones(3)
except (vkpar.InvalidUsageError, vkpar.DeviceLostError) as error:
    print("refused")
faults.left = 0
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", MAKERS)
def test_a_close_says_what_it_left_where_no_wait_succeeds(device: vkpar.Device, what: str) -> None:
    done = run_child(NO_LOOK, str(device.info.index), str(Path(__file__).parents[1]), what)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "VK_ERROR_OUT_OF_HOST_MEMORY" in done.stdout
    assert "it is given up and its handles are leaked" in done.stdout
