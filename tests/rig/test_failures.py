"""What goes wrong is told: the watchdog, a dead bridge, kernels that never end, the flight recorder, slot checks."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Rigs, found, require
from helpers.comm.delays import Delays
from helpers.ops.reducing import check_identical, devices_of, exact_sum, fresh_devices, integers, own_devices
from helpers.process.children import child_environment, run_child
from helpers.vulkan.parking import parked
from helpers.vulkan.replacing import Functions, replace_functions

import vkpar
from vkpar import CommunicatorError, DeviceLostError, WaitTimeoutError, env, timeouts
from vkpar.comm.record import program, score
from vkpar.comm.rig.arena import Arena
from vkpar.comm.rig.transports import staged
from vkpar.errors import UnsupportedError
from vkpar.vulkan.pump.ports import QueueHandles

pytestmark = pytest.mark.rig


@pytest.fixture
def mixed(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of two drivers, the test's own."""
    with own_devices(rigs, "LLS") as devices:
        yield devices


def ones(devices: list[vkpar.Device], count: int = 1000) -> list[vkpar.Array]:
    return [device.array(np.ones(count, np.float32)) for device in devices]


def check_works(devices: list[vkpar.Device]) -> None:
    with vkpar.Communicator(devices) as comm:
        arrays = ones(devices)
        comm.all_reduce(arrays).wait(60)
        assert np.all(check_identical([array.numpy() for array in arrays]) == len(devices))


# ---- the watchdog ----


def test_a_pending_read_fails_with_its_peer(mixed: list[vkpar.Device]) -> None:
    """numpy() of a rank whose peer hangs does not wait for ever, though nobody waits for the Work."""
    comm = vkpar.Communicator(mixed, timeout=0.4)
    arrays = ones(mixed)
    with parked(mixed[2]) as release:
        comm.all_reduce(arrays)
        with pytest.raises(CommunicatorError, match=r"no timeline advanced for 0\.4 s"):
            arrays[0].numpy()
        release()
    comm.close()
    check_works(mixed)


def test_a_failure_says_who_where_and_what(mixed: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(mixed, timeout=0.4, algorithm="two_shot")
    arrays = ones(mixed)
    comm.all_reduce(arrays).wait()
    with parked(mixed[1]) as release:
        work = comm.all_reduce(arrays)
        with pytest.raises(WaitTimeoutError) as early:
            work.wait(0.05)
        assert early.value.details["op"] == "all_reduce"
        with pytest.raises(CommunicatorError) as caught:
            work.wait()
        release()
    details = caught.value.details
    assert (details["op"], details["sequence"], details["algorithm"]) == ("all_reduce", 2, "two_shot")
    assert [item["device"] for item in details["ranks"]] == [device.name for device in mixed]
    assert all(item["reached"] <= item["wanted"] for item in details["ranks"])
    assert details["ranks"][1]["step"] == "publish (1 of 3)"
    assert "(2 of 3)" in details["ranks"][0]["step"]
    assert details["bridges_pending"] > 0
    assert sum(details["bridges_pending_by_rank"]) == details["bridges_pending"]
    message = str(caught.value)
    for piece in ("rank 1", mixed[1].name, "all_reduce #2", "publish (1 of 3)", "bridged waits pending", "0.4 s"):
        assert piece in message
    comm.close()


def test_work_before_the_collective_may_take_longer_than_the_timeout(mixed: list[vkpar.Device]) -> None:
    """The clock starts when the collective could."""
    with vkpar.Communicator(mixed, timeout=0.3) as comm, parked(mixed[1]) as release:
        copied = mixed[1].zeros(10).copy()  # earlier work, which has a value on the timeline
        timer = threading.Timer(1.0, release)
        timer.start()
        arrays = ones(mixed)
        comm.all_reduce(arrays).wait()
        timer.join()
        assert not copied.numpy().any()


def test_what_stands_still_is_told_when_it_is_due(mixed: list[vkpar.Device]) -> None:
    """Not at the next tick: other processes wait a second longer than the timeout for what this one has to say."""
    with vkpar.Communicator(mixed, timeout=0.4) as comm:
        arrays = ones(mixed)
        comm.all_reduce(arrays).wait()
        with parked(mixed[1]) as release:
            comm._engine._watchdog._tick = 20.0
            begun = time.monotonic()
            with pytest.raises(CommunicatorError, match=r"no timeline advanced for 0\.4 s"):
                comm.all_reduce(arrays).wait()
            assert time.monotonic() - begun < 10
            release()


def test_the_watchdog_parks_and_wakes(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkpar.comm.engine import watchdog

    monkeypatch.setattr(watchdog, "_LONGEST", 0.02)
    monkeypatch.setattr(watchdog, "_IDLE_LOOKS", 1)
    devices = devices_of(rigs, "LS")
    with vkpar.Communicator(devices, timeout=0.5) as comm:
        for _ in range(3):
            comm.all_reduce(ones(devices)).wait()
            time.sleep(0.2)
            assert comm._engine._watchdog.parked
        arrays = ones(devices)
        with parked(devices[0]) as release:
            work = comm.all_reduce(arrays)
            with pytest.raises(CommunicatorError, match="no timeline"):
                work.wait()
            release()


# ---- a bridge that died ----


def test_a_dead_proxy(mixed: list[vkpar.Device]) -> None:
    """Nobody passes timelines on any more: a typed error within the timeout, and the parked queues are let go."""
    comm = vkpar.Communicator(mixed, timeout=0.5)
    arrays = ones(mixed)
    comm.all_reduce(arrays).wait()
    comm._engine.rig.group.stop()
    start = time.monotonic()
    work = comm.all_reduce(arrays)
    with pytest.raises(CommunicatorError, match="no timeline advanced") as caught:
        work.wait()
    assert time.monotonic() - start < 5
    assert caught.value.details["bridges_pending"] > 0
    for device in mixed:
        device.synchronize(10)
    comm.close()
    check_works(mixed)


@pytest.mark.parametrize("noticed", ["wait", "read", "close"])
def test_an_error_in_the_bridge_is_noticed(rigs: Rigs, monkeypatch: pytest.MonkeyPatch, noticed: str) -> None:
    """A wait that fails in a bridge thread ends the communicator, with the call's error as the cause."""
    devices_of(rigs, "LLS")  # others' devices are opened as they are
    lost = threading.Event()

    def functions(true: QueueHandles) -> Functions:
        def counter(device: Any, semaphore: Any, value: Any) -> int:
            bridging = threading.current_thread().name.startswith("Dummy")  # Python did not start the thread
            return -4 if bridging and lost.is_set() else int(true.counter(device, semaphore, value))

        return {"counter": counter}

    with monkeypatch.context() as patch:
        replace_functions(patch, functions)
        mixed = fresh_devices(rigs, "LLS")
    comm = vkpar.Communicator(mixed, timeout=30)
    arrays = ones(mixed)
    comm.all_reduce(arrays).wait()
    with parked(mixed[0]) as release:
        work = comm.all_reduce(arrays)
        lost.set()
        if noticed == "close":  # which has to wait for the queue that is held up
            threading.Timer(0.5, release).start()
        with pytest.raises(CommunicatorError) as caught:
            work.wait(20) if noticed == "wait" else arrays[1].numpy() if noticed == "read" else comm.close()
        assert isinstance(caught.value.__cause__, DeviceLostError)
        lost.clear()
        release()
    comm.close()
    for array in arrays:
        with pytest.raises(CommunicatorError):
            array.numpy()
    check_works(mixed)
    for device in mixed:
        device.close()


# ---- devices that do not finish ----


def test_a_device_that_never_drains_is_given_up(mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting reader gets a typed error; the other devices go on."""
    monkeypatch.setattr(timeouts, "CLOSE_SECONDS", 0.4)
    stuck, sane = mixed[2], mixed[:2]
    comm = vkpar.Communicator(mixed, timeout=0.4)
    arrays = ones(mixed)
    with parked(stuck):
        comm.all_reduce(arrays)
        with pytest.raises((DeviceLostError, CommunicatorError)):
            arrays[2].numpy()
        start = time.monotonic()
        while not stuck.closed and time.monotonic() - start < 10:
            time.sleep(0.02)
        for use in (arrays[2].numpy, stuck.synchronize, lambda: stuck.zeros(3), lambda: vkpar.Communicator(mixed)):
            with pytest.raises(DeviceLostError, match="quarantined"):
                use()
        document = json.loads(comm.dump())
        assert "no timeline advanced" in document["failure"]
        assert comm.stats()["bridges_pending"] == 0
        with suppress(CommunicatorError):  # where the reader was told of the device
            comm.close()
        comm.close()
        check_works(sane)
    stuck.close()


ENDLESS = """
    import sys, time
    import numpy as np
    import vkpar
    from vkpar import timeouts
    timeouts.CLOSE_SECONDS = timeouts.DRAIN_SECONDS = 0.5
    devices = vkpar.open_devices(sys.argv[1])
    endless = vkpar.Kernel(devices[-1], '''
        #version 450
        layout(local_size_x = 1) in;
        layout(set = 0, binding = 0) coherent buffer Flag { uint flag; };
        void main() { while (atomicAdd(flag, 0u) == 0u) {} }
    ''')
    flag = devices[-1].zeros(1, "uint32")
    comm = vkpar.Communicator(devices, timeout=0.5)
    arrays = [device.array(np.ones(100, np.float32)) for device in devices]
    comm.all_reduce(arrays).wait()
    endless((1, 1, 1), flag)
    work = comm.all_reduce(arrays)
    try:
        work.wait(1.0)
        raise SystemExit("finished?")
    except vkpar.WaitTimeoutError as error:
        assert "waiting for earlier work" in str(error), error
    start = time.monotonic()
    try:
        comm.close()
        raise SystemExit("finished?")
    except vkpar.CommunicatorError as error:
        assert "stood still" in str(error), error
    assert comm.closed and time.monotonic() - start < 8
    for use in (arrays[-1].numpy, devices[-1].synchronize):
        try:
            use()
            raise SystemExit("usable?")
        except vkpar.DeviceLostError as error:
            assert "quarantined" in str(error), error
    devices[0].synchronize(5)
    assert devices[0].array(np.ones(3, np.float32)).numpy().sum() == 3
    print("given up", flush=True)
"""


def test_a_kernel_that_does_not_end() -> None:
    """close() returns, the device is quarantined, the others go on, and the process ends by itself.

    On SwiftShader alone: lavapipe ends every loop after 65,535 rounds.
    """
    require("swiftshader")
    require("llvmpipe")
    found()
    start = time.monotonic()
    done = run_child(ENDLESS, "llvmpipe&swiftshader", timeout=60, environment=child_environment(VKPAR_VALIDATION="0"))
    assert done.stdout == "given up\n", done.stderr
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 40


def test_a_busy_device_is_not_a_broken_one(mixed: list[vkpar.Device]) -> None:
    """Neither the self-test nor a close takes long earlier work for a failure."""
    with parked(mixed[0]) as release:
        copied = mixed[0].zeros(10).copy()
        timer = threading.Timer(1.0, release)
        timer.start()
        comm = vkpar.Communicator(mixed, timeout=0.3)
        timer.join()
        assert not copied.numpy().any()
    comm.close()
    check_works(mixed)


def test_earlier_work_that_never_ends_fails_the_self_test(
    mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "EARLIER_SECONDS", 0.3)
    with parked(mixed[1]):
        mixed[1].zeros(10).copy()
        with pytest.raises(CommunicatorError, match=r"self-test: what rank 1 .* was given before does not end"):
            vkpar.Communicator(mixed, timeout=0.1)
    check_works(mixed)


def test_a_timeline_that_stands_still_fails_the_self_test(
    mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does on cards that some libraries play: waits end, and what the watchdog looks at reads 0 for ever."""
    mixed[1].zeros(10).copy()
    still = mixed[1].logical.compute.timeline
    value = type(still).value
    with monkeypatch.context() as patched:
        patched.setattr(type(still), "value", lambda self: 0 if self is still else value(self))
        with pytest.raises(CommunicatorError, match=r"self-test: rank 1 .* its timelines that it is not"):
            vkpar.Communicator(mixed)
    check_works(mixed)


def test_a_copy_works_after_the_communicator_of_the_last_one_failed(mixed: list[vkpar.Device]) -> None:
    source = mixed[0].array(np.arange(5, dtype=np.float32))
    source.to(mixed[2])
    (pair,) = mixed[0]._pairs
    pair._engine.health.fail(RuntimeError("pulled out"))
    assert np.array_equal(source.to(mixed[2]).numpy(), np.arange(5))
    assert np.array_equal(source.numpy(), np.arange(5))


def test_a_new_communicator_beside_a_failed_one(mixed: list[vkpar.Device]) -> None:
    failed = vkpar.Communicator(mixed)
    failed._engine.health.fail(RuntimeError("pulled out"))
    with vkpar.Communicator(mixed) as comm:
        comm.barrier().wait()
    with pytest.raises(CommunicatorError, match="pulled out"):
        failed.close()
    failed.close()
    check_works(mixed)


def test_the_details_of_a_failed_submit(mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    comm = vkpar.Communicator(mixed)
    arrays = ones(mixed)
    comm.all_reduce(arrays).wait()

    def refusing(self: Any) -> None:
        raise DeviceLostError("VK_ERROR_DEVICE_LOST", "vkQueueSubmit", "rank 1")

    with monkeypatch.context() as patch:
        patch.setattr(program.Program, "enqueue", refusing)
        with pytest.raises(CommunicatorError) as caught:
            comm.all_reduce(arrays)
    assert isinstance(caught.value.__cause__, DeviceLostError)
    assert (caught.value.details["op"], caught.value.details["sequence"]) == ("all_reduce", 2)
    assert json.loads(comm.dump())["operations"][-1]["sequence"] == 2
    comm.close()
    check_works(mixed)


# ---- the flight recorder ----


def test_the_flight_recorder(rigs: Rigs, tmp_path: Path) -> None:
    devices = devices_of(rigs, "LS")
    comm = vkpar.Communicator(devices)
    arrays = ones(devices)
    for _ in range(260):
        comm.barrier()
    comm.all_reduce(arrays, op="max")
    comm.broadcast(arrays, 1).wait()
    path = tmp_path / "flights.json"
    text = comm.dump(path)
    assert path.read_text() == text + "\n"
    document = json.loads(text)
    operations = document["operations"]
    assert len(operations) == 256
    assert [item["sequence"] for item in operations] == list(range(7, 263))
    last, before = operations[-1], operations[-2]
    assert (last["op"], last["dtype"], last["count"], last["done"]) == ("broadcast", "float32", 1000, True)
    assert (before["op"], before["redop"], before["algorithm"]) == ("all_reduce", "max", "two_shot")
    assert {item["step"] for item in last["ranks"]} == {"done"}
    assert [item["device"] for item in document["ranks"]] == [device.name for device in devices]
    assert {item["kind"] for item in document["links"]} == {"bridged"}
    assert document["failure"] is None
    comm.close()
    closed = json.loads(comm.dump())
    assert closed["closed"]
    assert closed["operations"][-1]["done"] is None


def test_the_flight_recorder_of_a_failure(rigs: Rigs) -> None:
    devices = devices_of(rigs, "LS")
    comm = vkpar.Communicator(devices, timeout=0.3)
    arrays = ones(devices)
    with parked(devices[1]) as release:
        work = comm.all_reduce(arrays)
        with pytest.raises(CommunicatorError):
            work.wait()
        document = json.loads(comm.dump())
        release()
    assert "no timeline advanced" in document["failure"]
    assert document["operations"][-1]["ranks"][1]["step"].startswith("publish")
    assert not document["operations"][-1]["done"]
    comm.close()


# ---- checks of the slots ----


def late_reader_is_right(comm: vkpar.Communicator) -> bool:
    """Hold up one rank's read of a slot while its writer goes on with another rank; say whether it read the right."""
    first, second, _ = comm.devices
    with Delays(comm, 0, share=0) as delays:

        def gate(step: Any) -> tuple[Any, int] | None:
            late = step.rank == 2 and step.phase == "gather"
            return (delays._timelines[2].handle, 1) if late else None

        comm._engine.builder.recorder.holds = gate
        arrays = ones(list(comm.devices))
        arrays[2].fill_zeros()
        comm.broadcast(arrays, 0)
        later = [(first.array(np.full(1000, 7.0, np.float32)), second.zeros(1000)) for _ in range(8)]
        for pair in later:
            comm.send_recv([pair])
        timer = threading.Timer(0.5, delays._timelines[2].signal, (1,))
        timer.start()
        right = bool(np.all(arrays[2].numpy() == 1))
        timer.join()
        assert all(np.all(target.numpy() == 7) for _, target in later)
    return right


def forget_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As upstream: nobody waits until the rank beyond the next one has read."""
    real = score.Batch

    def batch(rank: int, command: Any, reads: Any, writes: Any, gate: Any, **rest: Any) -> Any:
        return real(rank, command, () if gate is not None else reads, writes, gate, **rest)

    monkeypatch.setattr(score, "Batch", batch)


def test_a_slot_is_not_filled_before_its_last_reader(rigs: Rigs) -> None:
    for letters in ("LLL", "LSL", "SLS"):
        with vkpar.Communicator(devices_of(rigs, letters)) as comm:
            assert late_reader_is_right(comm)


def test_without_the_record_of_every_reader_data_are_wrong(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: this is the race that waiting for one neighbour leaves at three ranks."""
    with vkpar.Communicator(devices_of(rigs, "LLL")) as comm:
        forget_a_reader(monkeypatch)
        assert not late_reader_is_right(comm)


def test_slot_checks_find_the_race(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    with env.override(debug="slots"):
        comm = vkpar.Communicator(devices_of(rigs, "LLL"))
    with comm:
        assert late_reader_is_right(comm)
        comm._engine.health.check_slots()
        forget_a_reader(monkeypatch)
        late_reader_is_right(comm)
        with pytest.raises(CommunicatorError, match=r"rank 2 read slot \d+ at generation \d+, not \d+"):
            comm._engine.health.check_slots()
        assert comm.failed


def test_slot_checks_stay_silent_on_everything(rigs: Rigs, rng: np.random.Generator) -> None:
    devices = devices_of(rigs, "LSL")
    for algorithm in ("ring", "two_shot", "tree", "naive"):
        with env.override(debug="slots"):
            comm = vkpar.Communicator(devices, algorithm=algorithm, transport=["staged", "mapped", "staged"])
        with comm, Delays(comm, 5, share=0.2):
            for count in (1, 5000, 60_000):
                parts = integers(rng, "float32", count, 3)
                arrays = [device.array(part) for device, part in zip(devices, parts, strict=True)]
                for turn in range(3):
                    work = comm.all_reduce(arrays, wire="f32")
                    with comm.group():
                        comm.barrier()
                        comm.broadcast(arrays, turn)
                work.wait()
                want = exact_sum(parts, "float32").astype(np.float64) * 9
                assert np.array_equal(check_identical([array.numpy() for array in arrays]), want)
            comm._engine.health.check_slots()


# ---- transports and the self-test ----


def test_a_device_without_host_import_is_mapped(
    mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = staged.HostImport

    def refusing(handle: Any, info: vkpar.DeviceInfo, *rest: Any) -> Any:
        if "swiftshader" in info.name.lower():
            raise UnsupportedError(f"{info.name} lacks VK_EXT_external_memory_host")
        return real(handle, info, *rest)

    monkeypatch.setattr(staged, "HostImport", refusing)
    monkeypatch.setattr("vkpar.comm.rig.choice._told", set())
    with caplog.at_level(logging.WARNING, "vkpar"):
        for _ in range(2):
            with vkpar.Communicator(mixed) as comm:
                assert comm.transports() == ["staged", "staged", "mapped"]
                arrays = ones(mixed)
                comm.all_reduce(arrays).wait()
                assert np.all(check_identical([array.numpy() for array in arrays]) == 3)
                assert comm.stats()["bridge_copies"] > 0
    assert sum("mapped" in record.message for record in caplog.records) == 1
    with pytest.raises(UnsupportedError, match="external_memory_host"):
        vkpar.Communicator(mixed, transport="staged")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transport", [["mapped"] * 3, ["mapped", "staged", "staged"], ["staged", "mapped", "mapped"]])
def test_mapped_ranks(mixed: list[vkpar.Device], rng: np.random.Generator, transport: list[str]) -> None:
    for algorithm in ("ring", "two_shot", "tree", "naive"):
        with vkpar.Communicator(mixed, transport=transport, algorithm=algorithm) as comm, Delays(comm, 3, share=0.1):
            assert comm.transports() == transport
            pending = []
            for count in (300, 20_000, 257, 100_003):
                parts = integers(rng, "float32", count, 3)
                arrays = [device.array(part) for device, part in zip(mixed, parts, strict=True)]
                pending.append((comm.all_reduce(arrays), arrays, exact_sum(parts, "float32")))
            for work, arrays, want in pending:
                work.wait()
                assert np.array_equal(check_identical([array.numpy() for array in arrays]), want)


def test_the_self_test_finds_a_broken_link(mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that reads other memory than its peers write is found before any collective runs."""
    private = Arena(3, 4096, 64 << 20)
    real = staged.HostImport

    def elsewhere(handle: Any, info: Any, arena: Any, *rest: Any) -> Any:
        return real(handle, info, private.memory if handle == mixed[2].logical.handle else arena, *rest)

    monkeypatch.setattr(staged, "HostImport", elsewhere)
    try:
        with pytest.raises(CommunicatorError, match=r"self-test: rank 0 .* read .* words of rank 2 .* wrong"):
            vkpar.Communicator(mixed)
    finally:
        monkeypatch.undo()
        private.close()
    check_works(mixed)


def test_the_self_test_finds_a_link_that_never_signals(
    mixed: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkpar.comm.rig import rig

    real = rig.CGroup

    def never(queues: Any, nslots: int) -> Any:
        group = real(queues, nslots)
        monkeypatch.setattr(group, "start", lambda spin_ns: None)
        return group

    monkeypatch.setattr(rig, "CGroup", never)
    with pytest.raises(CommunicatorError, match=r"self-test of the links did not end|no timeline advanced"):
        vkpar.Communicator(mixed, timeout=0.5)
    monkeypatch.undo()
    check_works(mixed)


# ---- cost while idle ----


def test_an_idle_communicator_sleeps(mixed: list[vkpar.Device]) -> None:
    """Under 1 % of a core over 10 s: CPU time of the whole process, which is not what a busy machine changes."""
    with vkpar.Communicator(mixed) as comm:
        comm.all_reduce(ones(mixed)).wait()
        before = time.process_time()
        time.sleep(10)
        assert time.process_time() - before < 0.1
