"""Communicators, works and devices from their beginning to their end, and beyond."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL, Rigs, has, require
from helpers.ops.reducing import devices_of, fresh_devices
from helpers.process.children import check_child, child_environment, run_child
from helpers.vulkan.parking import parked

import vkpar
from vkpar import CommunicatorError, InvalidUsageError, WaitTimeoutError, env
from vkpar.vulkan import api

pytestmark = pytest.mark.rig

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
import vkpar
from vkpar.vulkan import api

def rig():
    return vkpar.open_devices(sys.argv[1])

def ones(devices, count=1000):
    return [device.array(np.ones(count, np.float32)) for device in devices]
"""


def rig_selector() -> str:
    """Return the selector of a rig of two drivers where both are there."""
    require("llvmpipe")
    return "llvmpipe&swiftshader" if has("swiftshader") else "llvmpipe*2"


def check(code: str, **variables: str) -> str:
    """Run ``code`` after the prelude in a child that must be clean; return what it printed."""
    import textwrap

    return check_child(
        PRELUDE + textwrap.dedent(code), rig_selector(), environment=child_environment(**variables), timeout=180
    )


def validated() -> dict[str, str]:
    """Return the variables that turn validation on where this run has it."""
    return {"VKPAR_VALIDATION": "1"} if env.get().validation else {}


def settled(devices: list[vkpar.Device]) -> dict[str, int]:
    """Return the live handles once dropped communicators are closed, which opening the next one does."""
    gc.collect()
    vkpar.Communicator(devices).close()
    return api.load().live()


# ---- opening and closing ----


def test_opening_and_closing_leaves_nothing() -> None:
    """200 communicators: the same handles, threads and file descriptors, and no growth of memory.

    The bound: 180 communicators after the warm-up may add 4 MiB, 23 KiB each. One leaked command pool, thread stack
    or set of touched slots is more than that.
    """
    check(
        f"""
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from helpers.vulkan.handles import held
        devices = rig()
        arrays = ones(devices)

        def state():
            gc.collect()
            return held(devices), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for turn in range({400 if FULL else 200}):
            with vkpar.Communicator(devices, algorithm=("auto", "ring", "naive")[turn % 3]) as comm:
                comm.all_reduce(arrays, out=arrays).wait()
                for array in arrays:
                    array.write(np.ones(1000, np.float32))
            if turn == 20:
                before, memory = state(), resident()
        assert state() == before, (state(), before)
        assert resident() - memory < 4 << 20, (resident() - memory)
        for device in devices:
            device.close()
        assert api.load().live() == {{"Instance": 1}}, api.load().live()
        """,
    )


def test_opening_and_closing_devices_leaves_nothing() -> None:
    check(
        """
        for turn in range(6):
            devices = rig()
            with vkpar.Communicator(devices) as comm:
                comm.all_reduce(ones(devices)).wait()
            for device in devices:
                device.close()
            assert api.load().live() == {"Instance": 1}, api.load().live()
        """
    )


def test_closing_a_device_closes_its_communicators(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LS")
    first, second = vkpar.Communicator(devices), vkpar.Communicator(devices[::-1])
    arrays = [device.array(np.ones(100_000, np.float32)) for device in devices]
    first.all_reduce(arrays)
    devices[0].close()
    assert np.all(arrays[1].numpy() == 2)
    for comm in (first, second):
        with pytest.raises(InvalidUsageError, match="closed"):
            comm.all_reduce([device.zeros(1) for device in devices[1:]])
    devices[1].zeros(3).numpy()
    devices[1].close()
    first.close()


def test_a_dropped_communicator_is_closed(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LL")
    before = settled(devices)
    arrays = [device.array(np.ones(100_000, np.float32)) for device in devices]
    for _ in range(3):
        vkpar.Communicator(devices).all_reduce(arrays)  # dropped with the work under way
    assert all(np.all(array.numpy() == 8) for array in arrays)
    assert settled(devices)["Semaphore"] == before["Semaphore"]


def test_a_failed_communicator_leaves_nothing(rigs: Rigs, settings_override: Callable[..., None]) -> None:
    devices = devices_of(rigs, "LS")
    before, threads = settled(devices), threading.active_count()
    settings_override(link="native")
    for _ in range(3):
        with pytest.raises(vkpar.UnsupportedError):
            vkpar.Communicator(devices)
    gc.collect()
    assert api.load().live() == before
    assert threading.active_count() == threads


def test_dropped_devices_are_clean_at_exit() -> None:
    printed = check(
        """
        def use():
            devices = rig()
            comm = vkpar.Communicator(devices)
            comm.all_reduce(ones(devices)).wait()
        use()
        gc.collect()
        """,
        **(validated()),
    )
    assert printed == ""  # the layer prints what it finds once nobody listens


def test_exit_without_closing_anything() -> None:
    printed = check(
        """
        devices = rig()
        comm = vkpar.Communicator(devices)
        other = vkpar.Communicator(devices[::-1], algorithm="ring")
        arrays = ones(devices, 200_000)
        views = [array[1:] for array in arrays]
        work = [comm.all_reduce(arrays), other.all_reduce(arrays[::-1]), comm.all_reduce(views)]
        print("end")
        """,
        **validated(),
    )
    assert printed == "end\n"


def test_exit_by_an_exception() -> None:
    done = run_child(
        PRELUDE
        + "devices = rig()\ncomm = vkpar.Communicator(devices)\ncomm.all_reduce(ones(devices))\nraise SystemExit(7)",
        rig_selector(),
        environment=child_environment(**validated()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


# ---- what is cached ----


def test_arrays_that_come_and_go_leave_nothing(rigs: Rigs) -> None:
    """A leak would add an array a turn; a bounce buffer that was freed counts until the fills after it are done."""
    devices = fresh_devices(rigs, "LL")
    with vkpar.Communicator(devices) as comm:
        used = []
        for _ in range(40 if FULL else 16):
            comm.all_reduce([device.zeros(1 << 16)[1:] for device in devices]).wait()
            gc.collect()
            used.append(max(device.logical.allocator.used for device in devices))
        assert max(used[8:]) <= max(used[:8]) + (1 << 18)
        assert comm.stats()["cached_programs"] <= 2
    for device in devices:
        device.close()


def test_arrays_of_one_rank_leave_nothing(rigs: Rigs) -> None:
    (device,) = fresh_devices(rigs, "L")
    with vkpar.Communicator([device]) as comm:
        out = device.zeros(1 << 16)
        for _ in range(40):
            comm.all_reduce([device.zeros(1 << 16)], out=[out]).wait()
        gc.collect()
        device.synchronize()
        device.logical.reap()
        used = device.logical.allocator.used
    device.close()
    assert used < 4 << 20


@pytest.mark.validation
def test_out_may_be_another_view_of_the_same_elements_on_one_rank(rigs: Rigs) -> None:
    if not env.get().validation:
        pytest.skip("shows under the validation layer alone")
    (device,) = fresh_devices(rigs, "L")
    with vkpar.Communicator([device]) as comm:
        a = device.array(np.arange(100, dtype=np.float32))
        comm.all_reduce([a], out=[a[:]]).wait()
        assert np.array_equal(a.numpy(), np.arange(100))
    device.close()


@pytest.mark.parametrize("start", [0, 1])
def test_out_may_be_another_view_of_the_same_elements(rigs: Rigs, start: int) -> None:
    with vkpar.Communicator(devices_of(rigs, "LL")) as comm:
        wholes = [device.array(np.ones(121, np.float32)) for device in comm.devices]
        arrays = [whole[start : start + 120] for whole in wholes]
        comm.all_reduce(arrays, out=[array.reshape(12, 10) for array in arrays]).wait()
        for whole in wholes:
            want = np.ones(121)
            want[start : start + 120] = 2
            assert np.array_equal(whole.numpy(), want)


# ---- work ----


@pytest.mark.parametrize("letters", ["LL", "SL"])
def test_work_under_way(rigs: Rigs, letters: str) -> None:
    devices = devices_of(rigs, letters)
    with vkpar.Communicator(devices) as comm:
        arrays = [device.array(np.ones(1000, np.float32)) for device in devices]
        with parked(devices[0]) as release:
            work = comm.all_reduce(arrays)
            assert not work.done()
            assert work.exception() is None
            for timeout in (0, 0.01, 0.15):
                start = time.monotonic()
                with pytest.raises(WaitTimeoutError) as caught:
                    work.wait(timeout)
                assert time.monotonic() - start >= timeout
            assert isinstance(caught.value, TimeoutError)
            details = caught.value.details
            assert details["op"] == "all_reduce"
            assert [rank["rank"] for rank in details["ranks"]] == [0, 1]
            assert details["ranks"][0]["reached"] < details["ranks"][0]["wanted"]
            assert devices[0].name in str(caught.value)
            assert not work.done()
            release()
            work.wait(30)
        assert work.done()
        assert work.exception() is None
        work.wait(0)
        assert all(np.all(array.numpy() == 2) for array in arrays)
        comm.all_reduce(arrays).wait()
        assert all(np.all(array.numpy() == 4) for array in arrays)


def test_work_can_be_awaited(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LL")

    async def both(comm: vkpar.Communicator) -> None:
        first, second = ([device.array(np.ones(500, np.float32)) for device in devices] for _ in range(2))
        with parked(devices[1]) as release:
            works = [comm.all_reduce(first), comm.all_reduce(second)]
            asyncio.get_running_loop().call_later(0.05, release)
            await asyncio.wait_for(asyncio.gather(*(_wait(work) for work in works)), 30)
        assert all(work.done() for work in works)
        assert all(np.all(array.numpy() == 2) for array in (*first, *second))

    async def _wait(work: vkpar.Work) -> None:
        await work

    with vkpar.Communicator(devices) as comm:
        asyncio.run(both(comm))


def test_work_holds_its_arrays(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LL")
    with vkpar.Communicator(devices) as comm, parked(devices[0]) as release:
        work = comm.all_reduce([device.zeros(100) for device in devices])
        gc.collect()
        assert work._keep is not None
        release()
        work.wait()
        assert work._keep is None


def test_a_wait_in_another_thread(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LL")
    with vkpar.Communicator(devices) as comm:
        arrays = [device.array(np.ones(100, np.float32)) for device in devices]
        with parked(devices[0]) as release:
            work = comm.all_reduce(arrays)
            threads = [threading.Thread(target=work.wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            release()
            for thread in threads:
                thread.join(30)
            assert not any(thread.is_alive() for thread in threads)
        assert work.done()


# ---- failures ----


def test_the_watchdog_poisons(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LS")
    comm = vkpar.Communicator(devices, timeout=0.3)
    arrays = [device.array(np.ones(1000, np.float32)) for device in devices]
    with parked(devices[0]):
        work = comm.all_reduce(arrays)
        with pytest.raises(CommunicatorError, match=r"no timeline advanced for 0\.3 s") as caught:
            work.wait()
        assert isinstance(caught.value.__cause__, CommunicatorError)
        assert caught.value.details["ranks"][0]["device"] == devices[0].name
        for use in (lambda: comm.all_reduce(arrays), work.wait, work.done):
            with pytest.raises(CommunicatorError) as again:
                use()
            assert again.value.__cause__ is caught.value.__cause__
        assert isinstance(work.exception(), CommunicatorError)
        devices[1].synchronize(30)  # what was parked on the bridge ran out
    comm.close()
    for array in arrays:
        array.write(np.ones(1000, np.float32))
    with vkpar.Communicator(devices) as other:
        other.all_reduce(arrays).wait()
    assert all(np.all(array.numpy() == 2) for array in arrays)
    for device in devices:
        device.close()


def test_the_watchdog_lets_slow_work_go_on(rigs: Rigs) -> None:
    """Progress of any timeline counts: many collectives may take longer than the timeout together."""
    with vkpar.Communicator(devices_of(rigs, "LL"), timeout=0.5) as comm:
        arrays = [device.zeros(300_000) for device in comm.devices]
        works = [comm.all_reduce(arrays) for _ in range(60)]
        works[-1].wait()


CLOSE_WHILE_STUCK = """
    from vkpar import timeouts
    sys.path.insert(0, sys.argv[2])
    from helpers.vulkan.parking import parked
    timeouts.CLOSE_SECONDS = 0.3
    devices = rig()
    comm = vkpar.Communicator(devices, timeout=0.3)
    arrays = ones(devices)
    with parked(devices[0]):
        comm.all_reduce(arrays)
        start = time.monotonic()
        try:
            comm.close()
            raise SystemExit("finished?")
        except vkpar.CommunicatorError as error:
            assert "stood still" in str(error), error
        assert comm.closed and time.monotonic() - start < 10
    from vkpar.vulkan.machine import instance
    instance.raise_messages()
    for device in devices:
        try:
            device.close()
        except vkpar.DeviceLostError:
            pass
    print("closed")
"""


def test_closing_while_a_queue_is_stuck() -> None:
    """close() returns; what may still run is not freed but left alone."""
    import textwrap

    if not env.get().validation:
        pytest.skip("shows under the validation layer alone")
    done = run_child(
        PRELUDE + textwrap.dedent(CLOSE_WHILE_STUCK),
        rig_selector(),
        str(Path(__file__).parents[1]),
        environment=child_environment(**validated()),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("closed\n")


def test_closing_with_a_long_backlog() -> None:
    """The time to drain is over while all works are under way: slow, but nothing hangs."""
    check(
        """
        import logging
        from vkpar.comm.engine.closing import Closer
        logging.getLogger("vkpar").setLevel(logging.CRITICAL)
        Closer._patience = 0.05  # less than a timeout may be
        devices = rig()
        comm = vkpar.Communicator(devices, algorithm="two_shot")
        arrays = [device.zeros(200_000) for device in devices]
        for _ in range(100):
            comm.all_reduce(arrays)
        comm.close()
        """,
        **validated(),
    )


CLOSE_IN_THREADS = """
def run(work):
    def guarded():
        try:
            while True:
                work()
        except vkpar.InvalidUsageError:
            pass
    return threading.Thread(target=guarded, daemon=True)

for turn in range(20):
    devices = vkpar.open_devices("llvmpipe*2")
    comm = vkpar.Communicator(devices)
    arrays = [device.zeros(5000) for device in devices]
    comm.all_reduce(arrays).wait()
    threads = [run(lambda: USE) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.003 * (turn % 5))
    WHAT.close()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    for device in devices:
        device.close()
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("arrays[0].numpy()", "devices[0]"),
        ("arrays[0].fill_zeros()", "devices[0]"),
        ("comm.all_reduce(arrays)", "comm"),
        ("comm.all_reduce(arrays).wait()", "comm"),
    ],
)
def test_closing_while_other_threads_work(use: str, what: str) -> None:
    """Public calls are thread-safe: the others are done first, or refused."""
    check(CLOSE_IN_THREADS.replace("USE", use).replace("WHAT", what))


# ---- forks ----

FORK = """
    devices = rig()
    comm = vkpar.Communicator(devices)
    arrays = ones(devices)
    comm.all_reduce(arrays).wait()
    work = comm.all_reduce(arrays)
    work.wait()
    late = comm.all_reduce(arrays)
    late_done = comm.all_reduce(arrays)
    for device in devices:
        device.synchronize()

    def refused(call):
        try:
            call()
        except vkpar.InvalidUsageError as error:
            return "fork" in str(error)
        return False

    def in_child(work, seconds=4):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            work()
            os._exit(0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "hung"
"""
AFTER_FORK = """
    comm.all_reduce(arrays).wait()
    assert np.all(arrays[0].numpy() == 32), arrays[0].numpy()
    for device in devices:
        device.close()
"""


def forked(body: str) -> str:
    """Run ``body`` in a forked child of a process with an open rig, which must be whole afterwards."""
    import textwrap

    return check(textwrap.dedent(FORK) + textwrap.dedent(body) + textwrap.dedent(AFTER_FORK))


def test_use_after_a_fork_is_refused() -> None:
    printed = forked(
        """
        def child():
            calls = (
                arrays[0].numpy,
                lambda: arrays[0].write(np.zeros(1000)),
                lambda: devices[0].zeros(3),
                lambda: devices[0].array([1.0]),
                devices[0].synchronize,
                lambda: comm.all_reduce(arrays),
                lambda: vkpar.Communicator(devices),
                lambda: vkpar.open_devices(sys.argv[1]),
                vkpar.enumerate_devices,
            )
            for call in calls:
                print(refused(call), flush=True)
        print(in_child(child))
        """
    )
    assert printed.split() == ["True"] * 9 + ["0"]


def test_work_after_a_fork_is_refused() -> None:
    printed = forked(
        """
        def child():
            print(refused(late.wait), refused(late_done.done), flush=True)
        print(in_child(child))
        """
    )
    assert printed.split() == ["True", "True", "0"]


@pytest.mark.parametrize("end", ["comm.close()", "devices[0].close()"])
def test_closing_after_a_fork_hangs_nowhere(end: str) -> None:
    printed = forked(
        f"""
        def child():
            try:
                {end}
            except vkpar.InvalidUsageError:
                pass
        print(in_child(child))
        """
    )
    assert printed.split() == ["0"]


def test_a_forked_child_may_end_as_usual() -> None:
    """Through the atexit handlers too: they must not wait for threads that the child does not have."""
    printed = forked(
        """
        def child():
            import atexit
            gc.collect()
            atexit._run_exitfuncs()
        print(in_child(child))
        """
    )
    assert printed.split() == ["0"]


def test_a_forked_child_that_lets_everything_go() -> None:
    printed = forked(
        """
        def child():
            global comm, arrays, devices, work, late, late_done
            comm = arrays = devices = work = late = late_done = None
            gc.collect()
        print(in_child(child))
        """
    )
    assert printed.split() == ["0"]
