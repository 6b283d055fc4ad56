"""Operations as they gather: program order, barriers, errors of a deferred submission, plans, dropped memory."""

from __future__ import annotations

import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.ops.eager import SOURCE, OnDevice, OnHost, program, run, word
from helpers.process.children import check_child, child_environment
from helpers.process.threads import in_threads
from helpers.vulkan.parking import parked
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import DeviceLostError, InvalidUsageError, OutOfMemoryError, VulkanError, env
from vkpar.comm.rig.rig import Rig
from vkpar.vulkan import api
from vkpar.vulkan.queue import Queue
from vkpar.vulkan.stream import Stream, StreamStats

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("compiler")]
TESTS = str(Path(__file__).parents[1])


def stream_of(device: vkpar.Device) -> Stream:
    """Return what gathers the device's operations."""
    return device.logical.stream


def stats(device: vkpar.Device) -> StreamStats:
    return stream_of(device).stats()


@pytest.fixture
def fresh(reopen: Callable[..., vkpar.Device]) -> vkpar.Device:
    """The device, opened anew."""
    return reopen()


# ---- program order ----


@given(st.integers(0, 1 << 30))
def test_random_programs(device: vkpar.Device, seed: int) -> None:
    """Views that overlap by any number of bytes, in place, through fresh arrays, with reads and writes between."""
    steps = program(seed)
    assert run(OnDevice(device), steps) == run(OnHost(), steps)


def test_barriers_change_nothing(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    with env.override(debug="barriers"):
        careful = reopen()
    for seed in range(20):
        steps = program(seed)
        want = run(OnHost(), steps)
        before = stats(careful)
        assert run(OnDevice(device), steps) == run(OnDevice(careful), steps) == want
        after = stats(careful)
        assert after.barriers - before.barriers >= after.operations - before.operations


def test_threads_have_programs_of_their_own(device: vkpar.Device) -> None:
    def work(seed: int) -> None:
        for turn in range(5):
            steps = program(100 * seed + turn)
            assert run(OnDevice(device), steps) == run(OnHost(), steps)

    in_threads(work)


def test_synchronizing_at_any_time_changes_nothing(device: vkpar.Device) -> None:
    for seed in range(5):
        steps, chance = program(seed), random.Random(seed)

        def between(index: int, chance: random.Random = chance) -> None:
            if chance.random() < 0.2:
                chance.choice((device.synchronize, device.trim, gc.collect))()

        assert run(OnDevice(device), steps, between) == run(OnHost(), steps)


SYNCHRONIZATION = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.ops.eager import OnDevice, OnHost, program, run
import vkpar
from vkpar.vulkan.pipelines.kernel import Pipeline

(device,) = vkpar.open_devices(sys.argv[2])
if sys.argv[3] == "blind":
    Pipeline.read_only = property(lambda self: frozenset(range(64)), lambda self, value: None)
for seed in range(10):
    steps = program(seed)
    try:
        same = run(OnDevice(device), steps) == run(OnHost(), steps)
    except vkpar.ValidationError as error:
        assert "SYNC-HAZARD" in str(error), error
        print("found")
        break
    assert same or sys.argv[3] == "blind"
try:
    device.close()
except vkpar.ValidationError:
    pass
"""


@pytest.mark.parametrize("eyes", ["seeing", "blind"])
def test_synchronization_validation(device: vkpar.Device, eyes: str) -> None:
    """The layer finds no hazard; and it does find one where kernels are said to write nothing."""
    if not env.get().validation:
        pytest.skip("no validation layer")
    variables = {
        "VKPAR_VALIDATION": "1",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    environment = child_environment(**variables)
    said = check_child(SYNCHRONIZATION, TESTS, str(device.info.index), eyes, environment=environment, timeout=180)
    assert ("found" in said) == (eyes == "blind")


# ---- barriers ----


def test_barriers_stand_only_where_something_is_shared(fresh: vkpar.Device) -> None:
    a, b = fresh.zeros(1000), fresh.zeros(1000)
    outs = [fresh.empty(1000) for _ in range(30)]
    vkpar.add(a, b, out=outs[0])
    fresh.synchronize()
    with parked(fresh):
        vkpar.add(a, b, out=outs[0])  # its submission is what the others wait behind
        before = stats(fresh)
        for out in outs:
            vkpar.add(a, b, out=out)
        apart = stats(fresh)
        assert apart.barriers - before.barriers == 1 + apart.submissions - before.submissions
        for _ in range(10):
            vkpar.add(a, b, out=a)
        chained = stats(fresh)
        assert chained.barriers - apart.barriers >= 10


def test_long_operations_gather_behind_two_buffers(fresh: vkpar.Device) -> None:
    """A millisecond each, by estimate: two go ahead of a busy device, the others as one."""
    a, out = fresh.zeros(9 << 20), fresh.empty(9 << 20)
    fresh.synchronize()
    with parked(fresh):
        before = stats(fresh)
        for _ in range(8):
            vkpar.add(a, 1.0, out=out)
            vkpar.add(out, a, out=a)
        ahead = stats(fresh)
        assert 1 <= ahead.submissions - before.submissions <= 3
        assert ahead.gathered >= 4
    assert (a.numpy() == 2**8 - 1).all()


def test_more_ranges_than_are_told_apart(fresh: vkpar.Device) -> None:
    """A barrier makes room for more."""
    a = fresh.array(np.arange(64, dtype=np.float32))
    outs = [fresh.empty(64) for _ in range(500)]
    before = stats(fresh).barriers
    for number, out in enumerate(outs):
        vkpar.add(a, a if number % 2 else outs[number - 1], out=out) if number else vkpar.copy(a, out)
    for number, out in enumerate(outs):
        want = np.arange(64) * (1 if number == 0 else 2 if number % 2 else 3)
        assert np.array_equal(out.numpy(), want), number
    assert stats(fresh).barriers > before


# ---- the command buffers ----


def test_nothing_grows(fresh: vkpar.Device) -> None:
    a, one = fresh.zeros(100, "int32"), fresh.array(np.ones(100, np.int32))
    for _ in range(10_000):
        vkpar.add(a, one, out=a)
    assert (a.numpy() == 10_000).all()
    found = stats(fresh)
    assert found.operations >= 10_000
    assert found.buffers <= 32
    assert found.descriptor_pools <= 32 * 16
    for _ in range(2000):
        vkpar.add(vkpar.add(a, one), one)
    fresh.synchronize()
    assert stats(fresh).buffers <= 32
    assert fresh.memory().buffers <= 5


def test_a_full_ring_waits_for_the_device(fresh: vkpar.Device) -> None:
    a, one = fresh.zeros(100, "int32"), fresh.array(np.ones(100, np.int32))
    vkpar.add(a, one, out=a)
    fresh.synchronize()
    with parked(fresh) as release:
        timer = threading.Timer(0.5, release)
        timer.start()
        for _ in range(6000):
            vkpar.add(a, one, out=a)
        timer.join()
    assert (a.numpy() == 6001).all()
    assert stats(fresh).buffers <= 32


def test_what_nobody_waits_for_runs(fresh: vkpar.Device) -> None:
    a = fresh.zeros(100)

    def gathers() -> bool:
        """A machine that is busy elsewhere may look after a moment in which what was gathered has begun."""
        vkpar.add(a, a, out=a)
        return stats(fresh).gathered > 0

    with parked(fresh):
        wait_until(gathers)
    wait_until(lambda: not stats(fresh).gathered)


def test_a_frame_waits_for_its_own_submission(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other threads launch while one submits an upload does not make its command buffer free too early."""
    a, queue = fresh.zeros(100), fresh.logical.compute
    vkpar.add(a, a, out=a)
    fresh.synchronize()
    submit = queue.port.submit

    def submitting(command: Any) -> int:
        vkpar.add(a, a, out=a)
        return submit(command)

    with parked(fresh):
        vkpar.add(a, a, out=a)
        monkeypatch.setattr(queue.port, "submit", submitting)
        value = queue.run(lambda frame: None)
        assert queue._frames[-1].value == value == queue.last


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that a thread of the helper's does."""
    done = threading.Event()
    for _ in range(int(seconds * 100)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError(f"not within {seconds} s")


# ---- errors of a deferred submission ----


_callbacks: list[Any] = []  # they outlive the devices


class Driver:
    """Stands before a driver; ``result`` is what it says to submissions, 0 for all well.

    Attributes:
        only: the VkDevice that alone has such a driver; None for all.
        most: the most submissions that came in one call.
        meanwhile: is called once, before the next submission goes to the driver.
    """

    def __init__(self) -> None:
        self.result = self.most = 0
        self.only: Any = None
        self.meanwhile: Callable[[], None] | None = None

    def handles(self, real: Callable[[Queue], Any]) -> Callable[[Queue], Any]:
        """Return a bounce buffer for the function that collects a queue's handles."""
        from dataclasses import replace

        vk = api.load()

        def wrapped(queue: Queue) -> Any:
            found = real(queue)

            def submit(*arguments: Any) -> int:
                self.most = max(self.most, arguments[1])
                run, self.meanwhile = self.meanwhile, None
                if run is not None:
                    run()
                concerns = self.only is None or self.only == queue.device
                return (self.result if concerns else 0) or int(found.submit(*arguments))

            _callbacks.append(vk.ffi.callback("PFN_vkQueueSubmit", submit))
            return replace(found, submit=_callbacks[-1])

        return wrapped


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Let every queue that is opened from now on have a driver that can be told to fail."""
    made = Driver()
    monkeypatch.setattr(Queue, "_handles", made.handles(Queue._handles))
    return made


@pytest.mark.parametrize(("result", "error"), [(-1, OutOfMemoryError), (-4, DeviceLostError), (-13, VulkanError)])
def test_errors_of_a_deferred_submission(
    driver: Driver, reopen: Callable[..., vkpar.Device], result: int, error: type[VulkanError]
) -> None:
    """The next call says so, and every wait, until the driver takes it: then nothing is lost."""
    device = reopen()
    a, one = device.zeros(100, "int32"), device.array(np.ones(100, np.int32))
    device.synchronize()
    driver.result = result
    vkpar.add(a, one, out=a)  # gathered; the driver's refusal is for the next call
    calls: list[Callable[[], Any]] = [
        lambda: vkpar.add(a, one, out=a),
        lambda: vkpar.matmul(device.zeros((1, 4)), device.zeros((4, 4))),
        a.fill_zeros,
        a.numpy,
        device.synchronize,
        lambda: a.write(np.zeros(100, np.int32)),
    ]
    for call in calls:
        with pytest.raises(error, match="add"):
            call()
    driver.result = 0
    vkpar.add(a, one, out=a)
    assert (a.numpy() == 2).all()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_collective_after_a_refused_submission(
    driver: Driver, reopen: Callable[..., vkpar.Device], *, known: bool, alone: bool
) -> None:
    """Nothing of the collective is submitted where one driver refuses, whether it did so before or does now."""
    devices = [reopen(), reopen()]
    with vkpar.Communicator(devices, deterministic=True) as comm:
        arrays = [device.array(np.ones(100, np.int32)) for device in devices]
        comm.all_reduce(arrays).wait()
        for device in devices:
            device.synchronize()
        at = 1 if known else 0  # another rank than the first one, or the first one, which is given the most then
        driver.only = devices[at].logical.handle if alone else None
        driver.result = -1 if known else 0
        vkpar.add(arrays[at], arrays[at], out=arrays[at])
        if not known:  # the first one was submitted, as the device had nothing to do
            vkpar.add(arrays[at], arrays[at], out=arrays[at])
        driver.result = -1
        with pytest.raises(vkpar.CommunicatorError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
            comm.all_reduce(arrays)
        driver.result = 0
    assert (arrays[at].numpy() == (4 if known else 8)).all()
    assert (arrays[1 - at].numpy() == 2).all()


def test_an_abort_during_a_submission(driver: Driver, reopen: Callable[..., vkpar.Device]) -> None:
    """What a collective was to write is taken for lost, though the communicator failed before all was submitted."""
    devices = [reopen(), reopen()]
    comm = vkpar.Communicator(devices, deterministic=True)
    arrays = [device.array(np.ones(100, np.int32)) for device in devices]
    comm.all_reduce(arrays).wait()

    def fail() -> None:
        other = threading.Thread(target=comm._engine.health.fail, args=(vkpar.CommunicatorError("stalled"),))
        other.start()
        other.join(10)

    driver.meanwhile = fail
    with pytest.raises(vkpar.CommunicatorError, match="stalled"):
        comm.all_reduce(arrays).wait()
    for array in arrays:
        with pytest.raises(vkpar.CommunicatorError, match="stalled"):
            array.numpy()
    comm.close()


def test_operations_and_a_collective_in_one_call(driver: Driver, reopen: Callable[..., vkpar.Device]) -> None:
    """A driver gets what a device has gathered together with the collective's batches, unless a thread was faster."""
    devices = [reopen(), reopen()]
    with vkpar.Communicator(devices, algorithm="direct") as comm:
        arrays = [device.array(np.ones(100, np.int32)) for device in devices]
        comm.all_reduce(arrays).wait()
        driver.most = 0
        comm.all_reduce(arrays).wait()
        alone, want = driver.most, 4
        for _ in range(20):
            for array in arrays:
                vkpar.add(array, 1, out=array)  # the first one is submitted at once, as the device has nothing to do
                vkpar.subtract(array, 1, out=array)
            comm.all_reduce(arrays).wait()
            want *= 2
        assert driver.most == alone + 1
        assert all((array.numpy() == want).all() for array in arrays)


def test_closing_with_refused_work(driver: Driver, reopen: Callable[..., vkpar.Device], caplog: Any) -> None:
    device = reopen()
    a = device.zeros(100)
    device.synchronize()
    driver.result = -1
    vkpar.add(a, a, out=a)
    device.close()
    assert "add" in caplog.text
    with pytest.raises(InvalidUsageError, match="closed"):
        vkpar.add(a, a, out=a)


# ---- plans ----


def hits(device: vkpar.Device, call: Callable[[], Any]) -> Any:
    """Run a call that a plan is kept for."""
    call()
    assert device.plans.known
    return call()


def test_checks_come_before_plans(device: vkpar.Device, rigs: Any) -> None:
    """What a plan does not hold is looked at each time."""
    a, b, out = (device.array(np.arange(100, dtype=np.float32)) for _ in range(3))
    hits(device, lambda: vkpar.add(a, b, out=out))
    both = device.zeros(200)
    hits(device, lambda: vkpar.add(both[:100], b, out=both[100:]))
    square, result = device.zeros((10, 10)), device.zeros((10, 10))
    hits(device, lambda: vkpar.matmul(square, square, out=result))
    with pytest.raises(InvalidUsageError, match="share memory"):
        vkpar.add(both[:100], b, out=both[64:164])
    with pytest.raises(InvalidUsageError, match="share memory"):
        vkpar.matmul(square, square, out=square)
    gone = device.zeros(100)
    hits(device, lambda: vkpar.add(a, gone, out=out))
    gone.close()
    with pytest.raises(InvalidUsageError, match="given back"):
        vkpar.add(a, gone, out=out)
    for wrong in (np.zeros(100, np.float32), None, "1"):
        with pytest.raises(vkpar.OperandError):
            vkpar.add(a, wrong, out=out)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="out is"):
        vkpar.add(a, b, out=square)
    hits(device, lambda: vkpar.add(a, a, out=a))


def test_plans_are_of_one_device(device: vkpar.Device, fresh: vkpar.Device) -> None:
    a, other = device.zeros(100), fresh.zeros(100)
    hits(device, lambda: vkpar.add(a, a))
    hits(fresh, lambda: vkpar.add(other, other))
    with pytest.raises(InvalidUsageError, match="different devices"):
        vkpar.add(a, other)
    with pytest.raises(InvalidUsageError, match="different devices"):
        vkpar.add(a, a, out=other)
    fresh.close()
    for call in (lambda: vkpar.add(other, other), lambda: vkpar.add(other, other, out=other), lambda: fresh.empty(3)):
        with pytest.raises(InvalidUsageError, match="closed"):
            call()


def test_arrays_in_a_group_are_not_to_be_used(fresh: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    devices = [fresh, reopen()]
    with vkpar.Communicator(devices, deterministic=True) as comm:
        arrays = [device.array(np.ones(100, np.float32)) for device in devices]
        hits(fresh, lambda: vkpar.add(arrays[0], arrays[0], out=arrays[0]))
        with comm.group():
            comm.all_reduce(arrays)
            with pytest.raises(InvalidUsageError, match="group"):
                vkpar.add(arrays[0], arrays[0], out=arrays[0])
        assert (vkpar.add(arrays[0], arrays[1].to(fresh)).numpy() == 10).all()


def test_kernels_by_plan(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, SOURCE)
    a, b = (device.array(np.arange(128, dtype=np.int32)) for _ in range(2))
    want = np.arange(128, dtype=np.int32)
    for turn, groups in enumerate((2, 2, (2,), (2, 1), (2, 1, 1), [2, 1])):
        kernel(groups, a, b, push=word(turn))  # type: ignore[arg-type]
        want = want * 3 + np.arange(128, dtype=np.int32) * turn
    kernel(2, a, b, push=np.array([7], np.int32))
    assert np.array_equal(b.numpy(), want * 3 + np.arange(128, dtype=np.int32) * 7)
    for wrong in (2.0, (2.0, 1), "2", -1, (2, 1, 1, 1)):
        with pytest.raises(InvalidUsageError):
            kernel(wrong, a, b, push=word(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="push constants"):
        kernel(2, a, b)
    with pytest.raises(InvalidUsageError, match="bindings"):
        kernel(2, a, push=word(1))
    with pytest.raises(InvalidUsageError):
        kernel(2, a, np.zeros(128, np.int32), push=word(1))  # type: ignore[arg-type]


def test_more_forms_than_are_kept(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkpar.arrays.forms._MOST", 8)
    base = device.array(np.arange(1000, dtype=np.float32))
    for count in [*range(1, 40), *range(40, 1, -1)]:
        for _ in range(2):
            assert np.array_equal(vkpar.add(base[:count], base[:count]).numpy(), 2 * np.arange(count))
    assert len(device.plans.known) <= 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("transpose", [False, True])
def test_columns_by_plan(device: vkpar.Device, dtype: str, transpose: bool) -> None:
    """A product with one column is the transposed one with one row: its plan takes the operands in that order."""
    if dtype == "int32":
        with pytest.raises(vkpar.UnsupportedError):
            vkpar.matmul(device.zeros((3, 4), dtype), device.zeros((4, 1), dtype))
        return
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    a = device.array(values, dtype)
    for turn in range(3):
        column = np.arange(4, dtype=np.float32)[:, None] + turn
        b = device.array(column.T.copy() if transpose else column, dtype)
        got = vkpar.matmul(a, b, transpose_b=transpose, dtype="float32")
        assert np.array_equal(got.numpy(), values @ column)


# ---- dropped memory ----


def place(array: vkpar.Array) -> tuple[int, int]:
    return array.storage.number, array.storage.base


def test_dropped_memory_is_served_at_once(fresh: vkpar.Device) -> None:
    """While the work on it is still under way: program order protects it."""
    a, one = fresh.array(np.arange(100, dtype=np.int32)), fresh.array(np.ones(100, np.int32))
    with parked(fresh):
        first = vkpar.add(a, one)
        second = vkpar.add(first, one)
        was = place(first)
        del first
        third = vkpar.add(second, second)
        assert place(third) == was
        fresh.logical.reap()  # keeps it, too
        del third
        assert place(fresh.empty(100, "int32")) == was
    assert np.array_equal(second.numpy(), np.arange(100) + 2)


def test_views_keep_memory(fresh: vkpar.Device) -> None:
    made = fresh.zeros(100)
    was, view = place(made), made[10:20]
    del made
    assert place(fresh.empty(100)) != was
    del view
    assert place(fresh.empty(100)) == was


def test_kept_memory_goes_where_it_is_needed(fresh: vkpar.Device) -> None:
    with env.override(max_memory=3 << 20):
        for nbytes in (1 << 20, 2 << 20, 3 << 20, 1 << 20, (2 << 20) + 256):
            fresh.zeros(nbytes, "uint8")
        kept = [fresh.zeros(1 << 20, "uint8") for _ in range(3)]
        with pytest.raises(OutOfMemoryError, match="MAX_MEMORY"):
            fresh.zeros(1, "uint8")
    fresh.synchronize()
    del kept
    assert fresh.memory().arrays == 0
    assert fresh.trim() > 0
    assert fresh.memory().blocks <= 2  # the rings'


def test_what_is_kept_is_bounded(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    recycler = fresh.logical.recycler
    monkeypatch.setattr(recycler, "_most", 1 << 20)
    for count in range(1, 400):
        fresh.empty(256 * count, "uint8")
        assert recycler._nbytes <= 1 << 20
    fresh.synchronize()
    fresh.logical.reap()
    assert fresh.logical.allocator.used <= (2 << 20) + 2 * env.get().ring_bytes


def test_threads_drop_and_take(fresh: vkpar.Device) -> None:
    one = fresh.array(np.ones(100, np.int32))

    def work(seed: int) -> None:
        value = fresh.array(np.full(100, seed, np.int32))
        for _ in range(200):
            value = vkpar.add(vkpar.add(value, one), one)
        assert (value.numpy() == seed + 400).all()

    in_threads(work)
    gc.collect()
    assert fresh.memory().arrays <= 2 * 512


# ---- interrupts, forks ----


@pytest.fixture
def alarms() -> Iterator[Callable[[float], None]]:
    """Give a function that has an interrupt come after some seconds."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)  # type: ignore[func-returns-value]
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_interrupts_at_any_time(fresh: vkpar.Device, alarms: Callable[[float], None]) -> None:
    """Every operation runs once or not at all, and all goes on after it."""
    a, one = fresh.zeros(100, "int32"), fresh.array(np.ones(100, np.int32))
    vkpar.add(vkpar.add(a, a), a, out=a)  # makes the pipeline
    chance, done, interrupted = random.Random(1), 0, 0
    for _ in range(100):
        try:
            alarms(chance.uniform(1e-5, 2e-3))
            while True:
                vkpar.add(a, one, out=a)
                done += 1
                vkpar.add(a, one)
        except KeyboardInterrupt:
            interrupted += 1
    alarms(0)
    value = int(a.numpy()[0])
    assert done <= value <= done + interrupted
    assert (vkpar.add(a, one, out=a).numpy() == value + 1).all()


FORKED = """
import os
import sys
import warnings
import numpy as np
import vkpar

warnings.filterwarnings("ignore", category=DeprecationWarning)  # of forks, where a driver has threads
(device,) = vkpar.open_devices(sys.argv[1])
a = device.array(np.ones(10, np.float32))
for _ in range(3):
    vkpar.add(a, a, out=a)
    device.empty(10)
child = os.fork()
if child == 0:
    for call in (lambda: vkpar.add(a, a, out=a), lambda: vkpar.add(a, a), lambda: device.empty(10)):
        try:
            call()
        except vkpar.InvalidUsageError as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (a.numpy() == 8).all()
"""


def test_a_forked_child_is_refused(device: vkpar.Device) -> None:
    check_child(FORKED, str(device.info.index), environment=child_environment(VKPAR_VALIDATION="0"))


def test_close_from_another_thread(reopen: Callable[..., vkpar.Device]) -> None:
    """Launches go on until the device refuses them."""
    device = reopen()
    a = device.zeros(100)
    vkpar.add(a, a, out=a)
    started, said = threading.Event(), []

    def launch() -> None:
        try:
            while True:
                vkpar.add(a, a, out=a)
                started.set()
        except InvalidUsageError as error:
            said.append(str(error))

    thread = threading.Thread(target=launch)
    thread.start()
    started.wait(30)
    device.close()
    thread.join(30)
    assert len(said) == 1
    assert "clos" in said[0]


def test_memory_that_was_lent_serves_no_other_array(fresh: vkpar.Device) -> None:
    count, seen = 50_000, set()

    def made() -> vkpar.Array:
        array = fresh.array(np.arange(count, dtype=np.float32))
        seen.add(array.memory.buffers[0].place)
        return array

    kept, dropped = made(), made()
    del dropped
    made()
    assert len(seen) == 2, "what was dropped serves the next array"
    fresh.logical.lend("somebody")
    lent = set(seen)
    seen.clear()
    for _ in range(20):
        made()
    assert not seen & lent
    assert np.array_equal(kept.numpy(), np.arange(count))
    assert np.array_equal(made().numpy(), np.arange(count))
    logical = fresh.logical
    logical.borrowers.discard("somebody")  # who is done with it
    fresh.close()
    assert not logical.quarantined


def test_lent_memory_of_a_graph_that_is_closed_serves_no_other_array(fresh: vkpar.Device) -> None:
    a = fresh.ones(50_000)
    with vkpar.capture([fresh]) as graph:
        made = a + a
        last = made * 2
    lent = {array.memory.buffers[0].place for array in (made, last)}
    graph.launch().wait()
    fresh.logical.lend("somebody")
    graph.close()
    del made, last, graph
    fresh.synchronize()
    others = [fresh.zeros(50_000 + 64 * number) for number in range(40)]
    assert not lent & {array.memory.buffers[0].place for array in others}
    fresh.logical.borrowers.clear()


def test_what_one_communicator_lent_stays_so_where_another_one_ends(fresh: vkpar.Device) -> None:
    one, other = (SimpleNamespace(progress=Mock(), devices=[fresh.logical]) for _ in range(2))
    fresh.logical.lend(one.progress)
    Rig._part(cast(Any, other))
    assert fresh.logical.borrowers == {one.progress}
    Rig._part(cast(Any, one))
    assert not fresh.logical.borrowers
