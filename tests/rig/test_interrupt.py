"""Ctrl-C at any moment: every rank is submitted or none, nothing hangs, the process can go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs, found, has, require
from helpers.ops.reducing import check_identical, devices_of
from helpers.process.children import check_child, child_environment
from helpers.vulkan.parking import parked

import vkpar
from vkpar import env

pytestmark = [pytest.mark.rig, pytest.mark.usefixtures("interruptible")]
TIMES = 200 if FULL else 16

LOOPS = {
    # No more in flight than a few seconds take: at its end a process waits for what it queued.
    "queued": "for _ in range(30): work = comm.all_reduce(arrays)\n    work.wait()",
    "waited": "comm.all_reduce(arrays).wait()",
    "views": "comm.all_reduce([array[1:] for array in arrays]).wait()",
    "transfers": "arrays[0].write(host); comm.all_reduce(arrays); arrays[1].numpy()",
    "groups": "with comm.group(): comm.all_reduce(arrays); comm.broadcast(arrays); comm.barrier()",
    "copies": "arrays[0].to(devices[1]).numpy()",
    "communicators": "vkpar.Communicator(devices).close()",
    "new arrays": "comm.all_reduce([device.array(host) for device in devices]).wait()",
}
CHILD = """
import sys
import numpy as np
import vkpar
devices = vkpar.open_devices(sys.argv[1])
comm = vkpar.Communicator(devices, algorithm=sys.argv[2])
host = np.ones(int(sys.argv[3]), np.float32)
arrays = [device.array(host) for device in devices]
comm.all_reduce(arrays).wait()
comm.all_reduce([array[1:] for array in arrays]).wait()
print("ready", flush=True)
while True:
    LOOP
"""


def interrupt(code: str, arguments: list[str], delay: float) -> tuple[int, str]:
    """Start a child, interrupt it ``delay`` seconds after it is ready; return its status and stderr."""
    child = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        threading.Event().wait(delay)
        child.send_signal(signal.SIGINT)
        try:
            _, errors = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # Python drops an exception that is raised in a weak reference's callback
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        child.kill()
        pytest.fail(f"hung after an interrupt at {delay} s:\n{child.communicate()[1]}")
    finally:
        child.kill()
        child.wait()
    return child.returncode, errors


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(TIMES))
def test_interrupts_at_random_moments(number: int) -> None:
    require("llvmpipe")
    chance = random.Random(number)
    loop = list(LOOPS)[number % len(LOOPS)]
    selector = ("llvmpipe*2", "llvmpipe&swiftshader", "llvmpipe*4")[number % 3 if has("swiftshader") else 0]
    arguments = [selector, chance.choice(["auto", "ring", "two_shot"]), chance.choice(["300", "50000"])]
    code = CHILD.replace("LOOP", LOOPS[loop])
    status, errors = interrupt(code, arguments, chance.uniform(0, 0.4))
    assert status in (130, -signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    for sign in ("Fatal Python error", "Segmentation", "Error:", "validation"):
        assert sign not in errors, errors


def test_an_interrupt_of_a_wait_on_stuck_work() -> None:
    require("llvmpipe")
    code = """
    import sys
    import numpy as np
    import vkpar
    sys.path.insert(0, sys.argv[2])
    from helpers.vulkan.parking import parked
    devices = vkpar.open_devices("llvmpipe*2")
    with vkpar.Communicator(devices) as comm, parked(devices[0]):
        work = comm.all_reduce([device.zeros(100) for device in devices])
        print("ready", flush=True)
        work.wait()
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    status, errors = interrupt(textwrap.dedent(code), ["", folder], 0.3)
    assert status in (130, -signal.SIGINT), errors


# ---- in the middle of an enqueue ----


@pytest.fixture
def own_devices(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Three devices of the test's own."""
    devices_of(rigs, "L")
    devices = vkpar.open_devices("llvmpipe*3")
    yield devices
    for device in devices:
        device.close()


class InterruptingLib:
    """The C helper's functions; the named one is followed by an interrupt, once."""

    def __init__(self, real: Any, name: str) -> None:
        self._real, self._name = real, name

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._real, name)
        if name != self._name:
            return function

        def interrupted(*arguments: Any) -> Any:
            result = function(*arguments)
            self._name = ""
            os.kill(os.getpid(), signal.SIGINT)
            return result

        return interrupted


class InterruptingHelper:
    """Stands in for the compiled module."""

    def __init__(self, real: Any, name: str) -> None:
        self.ffi = real.ffi
        self.lib = InterruptingLib(real.lib, name)


def interrupt_after_submit(monkeypatch: pytest.MonkeyPatch, comm: vkpar.Communicator) -> None:
    """Arrange an interrupt right after the one call that submits all ranks."""
    for entry in comm._engine.cache.entries.values():
        for program in entry.programs.values():
            port: Any = program._port
            monkeypatch.setattr(port, "_c", InterruptingHelper(port._c, "vkp_enqueue"))


def ones(devices: list[vkpar.Device]) -> list[vkpar.Array]:
    return [device.array(np.ones(1000, np.float32)) for device in devices]


@pytest.mark.parametrize("algorithm", ["ring", "two_shot"])
def test_an_interrupt_of_an_enqueue(
    own_devices: list[vkpar.Device], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vkpar.Communicator(own_devices, algorithm=algorithm) as comm:
        arrays = ones(own_devices)
        for _ in range(2):  # both programs that take turns are recorded
            comm.all_reduce(arrays).wait()
        for array in arrays:
            array.write(np.ones(1000, np.float32))
        for device in own_devices:
            device.synchronize()
        before = [device.logical.compute.last for device in own_devices]
        with monkeypatch.context() as patch:
            interrupt_after_submit(patch, comm)
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(arrays)
        assert all(device.logical.compute.last > was for device, was in zip(own_devices, before, strict=True))
        for device in own_devices:
            device.synchronize(30)
        assert np.all(check_identical([array.numpy() for array in arrays]) == 3)
        for _ in range(3):
            comm.all_reduce(arrays).wait(30)
        assert np.all(check_identical([array.numpy() for array in arrays]) == 81)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_close_waits_for_what_was_interrupted(own_devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """An enqueue that was submitted counts, though the caller never got its Work."""
    comm = vkpar.Communicator(own_devices, algorithm="ring")
    arrays = ones(own_devices)
    for _ in range(2):  # both programs that take turns are recorded
        comm.all_reduce(arrays).wait()
    with parked(own_devices[0]) as release:
        with monkeypatch.context() as patch:
            interrupt_after_submit(patch, comm)
            with pytest.raises(KeyboardInterrupt):
                comm.all_reduce(arrays)
        timer = threading.Timer(0.3, release)
        timer.start()
        comm.close()
        timer.join()
    assert np.all(check_identical([array.numpy() for array in arrays]) == 27)


NOTE_INTERRUPTED = """
import sys
import threading
import numpy as np
import vkpar
from vkpar.comm.record.program import Program
sys.path.insert(0, sys.argv[1])
from helpers.vulkan.parking import parked

devices = vkpar.open_devices("llvmpipe*2")
comm = vkpar.Communicator(devices, algorithm="ring")
arrays = [device.array(np.ones(1000, np.float32)) for device in devices]
comm.all_reduce(arrays).wait()
mark_submitted = Program.mark_submitted

def interrupted(self, values):
    Program.mark_submitted = mark_submitted
    raise KeyboardInterrupt

with parked(devices[0]) as release:
    Program.mark_submitted = interrupted
    try:
        comm.all_reduce(arrays)
    except KeyboardInterrupt:
        pass
    threading.Timer(0.3, release).start()
    comm.close()
assert np.all(arrays[1].numpy() == 4)
"""


def test_close_waits_where_the_books_were_interrupted() -> None:
    """All is submitted; the interrupt comes before the communicator has noted up to where."""
    require("llvmpipe")
    found()
    validation = "1" if env.get().validation else "0"
    check_child(
        NOTE_INTERRUPTED,
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        environment=child_environment(VKPAR_VALIDATION=validation),
    )


def test_an_interrupt_after_a_plain_submit(own_devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame of an upload or a copy is not used again while it may be pending."""
    device = own_devices[0]
    array = device.array(np.ones(1000, np.float32))
    with parked(device) as release:
        with monkeypatch.context() as patch:
            stream: Any = device.logical.stream
            patch.setattr(stream, "_lib", InterruptingLib(stream._lib, "vkp_fill"))
            with pytest.raises(KeyboardInterrupt):
                array.fill_zeros()
        copied = [array.copy() for _ in range(5)]
        release()
    assert not any(copy.numpy().any() for copy in copied)


@pytest.mark.parametrize("call", ["vkp_program_free", "vkp_group_free", "vkp_queue_free"])
def test_an_interrupted_close_goes_on(call: str) -> None:
    """What was freed before the interrupt is not freed again."""
    require("llvmpipe")
    found()
    code = f"""
    import os, signal
    import numpy as np
    import vkpar
    from vkpar.vulkan.pump import native

    class Interrupting:
        def __init__(self, real):
            self.ffi, self._lib, self.lib, self.left = real.ffi, real.lib, self, 0
        def __getattr__(self, name):
            function = getattr(self._lib, name)
            if name != "{call}" or not self.left:
                return function
            def interrupted(*arguments):
                self.left = 0
                result = function(*arguments)
                os.kill(os.getpid(), signal.SIGINT)
                return result
            return interrupted

    helper = Interrupting(native.helper())
    native.helper = lambda: helper
    devices = vkpar.open_devices("llvmpipe*2")
    comm = vkpar.Communicator(devices)
    comm.all_reduce([device.zeros(1000) for device in devices]).wait()
    interrupts, helper.left = 0, 1
    for item in (comm, *devices):
        for _ in range(2):
            try:
                item.close()
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 1, interrupts
    print("closed")
    """
    assert check_child(code, environment=child_environment(VKPAR_VALIDATION="0")) == "closed\n"


def test_interrupts_while_waiting_leave_the_work(own_devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(own_devices) as comm:
        arrays = ones(own_devices)
        with parked(own_devices[1]) as release:
            work = comm.all_reduce(arrays)
            for wait in (work.wait, arrays[0].numpy, lambda: own_devices[2].synchronize(20)):
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    wait()
                timer.join()
            release()
            work.wait(30)
        assert np.all(check_identical([array.numpy() for array in arrays]) == 3)


def test_waits_where_interrupts_are_ignored_end_by_their_timeouts(own_devices: list[vkpar.Device]) -> None:
    """A parent such as nohup's shell or cron may start a program so; its waits go on, and raise what they always do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture puts it back
    with vkpar.Communicator(own_devices) as comm:
        arrays = ones(own_devices)
        with parked(own_devices[1]) as release:
            work = comm.all_reduce(arrays)
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(vkpar.WaitTimeoutError):
                work.wait(0.5)
            timer.join()
            release()
            work.wait(30)
        assert np.all(check_identical([array.numpy() for array in arrays]) == 3)
