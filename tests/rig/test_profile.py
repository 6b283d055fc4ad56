"""Profiles of collectives on every driver: times in order, exact bytes, the same bits, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Rigs, require
from helpers.ops.reducing import algorithms_for, fresh_devices
from helpers.process.benching import TWO, run_json
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked

import vkpar
from vkpar import CommunicatorError, InvalidUsageError, UnsupportedError, env
from vkpar.abi.formats import BLOCK, WIRES
from vkpar.cli import main as cli
from vkpar.comm.observe.profile import Profile
from vkpar.comm.rig.links import BRIDGED
from vkpar.vulkan import query

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
RIGS = ["L", "LL", "LS", "SLS"]
_COMPUTED = 1e-8  # seconds: what doubles make of counters


def arrays_of(comm: vkpar.Communicator, rng: np.random.Generator, count: int) -> list[vkpar.Array]:
    return [device.array(rng.standard_normal(count).astype(np.float32)) for device in comm.devices]


def check_order(comm: vkpar.Communicator, profile: Profile) -> None:
    """Check that no step runs before what it needs, as far as the clocks can tell."""
    slack = [1e-6 * clock.uncertainty_us for clock in profile.clocks]
    bridged = {(link.src, link.dst) for link in comm.links() if link.kind == BRIDGED}
    found = {(step.sequence, step.rank, step.index): step for step in profile.steps}
    before: dict[int, float] = {}
    for step in profile.steps:
        assert step.end >= step.begin >= before.get(step.rank, 0.0) - _COMPUTED
        before[step.rank] = step.end
        assert step.wait >= step.bridge >= 0
        for rank, index in step.sources:
            source = found[step.sequence, rank, index]
            assert step.begin >= source.end - slack[rank] - slack[step.rank] - _COMPUTED
        if not any((rank, step.rank) in bridged for rank, _ in step.sources):
            assert step.bridge == 0


def sequences(profile: Profile) -> list[int]:
    return sorted({step.sequence for step in profile.steps})


@pytest.fixture
def own(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of the test's own, of two drivers where both are there."""
    devices = fresh_devices(rigs, "LLS")
    yield devices
    for device in devices:
        device.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("letters", RIGS)
def test_every_algorithm(rig: Open, rng: np.random.Generator, letters: str) -> None:
    """All steps of all calls have times in order; the results are those without a profile, bit for bit."""
    for algorithm in algorithms_for(letters) if len(letters) > 1 else ("auto",):
        comm = rig(letters, algorithm=algorithm)
        for count in (1000, 70_001):
            sources = arrays_of(comm, rng, count)
            want = [device.empty(count, "float32") for device in comm.devices]
            out = [device.empty(count, "float32") for device in comm.devices]
            comm.all_reduce(sources, out=want).wait()
            with comm.profile() as profile:
                for _ in range(3):
                    comm.all_reduce(sources, out=out)
            assert [array.numpy().tobytes() for array in out] == [array.numpy().tobytes() for array in want]
            assert len(sequences(profile)) == 3
            assert {step.rank for step in profile.steps} == set(range(len(letters)))
            assert comm.stats()["cached_programs"] == 0  # what was recorded with timestamps is not used outside
            check_order(comm, profile)
        comm.close()


@pytest.mark.parametrize("letters", ["LL", "SLS"])
@pytest.mark.parametrize("transport", ["staged", "mapped"])
def test_every_collective(rig: Open, rng: np.random.Generator, letters: str, transport: str) -> None:
    comm, n = rig(letters, transport=transport), len(letters)
    xs, gathered = arrays_of(comm, rng, 600), arrays_of(comm, rng, 600 * n)
    parts = [device.empty(size, "float32") for device, size in zip(comm.devices, part_sizes(600, n), strict=True)]
    swapped = [device.empty(size * n, "float32") for device, size in zip(comm.devices, part_sizes(600, n), strict=True)]
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.all_reduce(xs, op="max"),
        "reduce": lambda: comm.reduce(xs, n - 1),
        "reduce_scatter": lambda: comm.reduce_scatter(xs, out=parts),
        "all_gather": lambda: comm.all_gather(xs, out=gathered),
        "broadcast": lambda: comm.broadcast(xs, n - 1),
        "all_to_all": lambda: comm.all_to_all(xs, out=swapped),
        "send_recv": lambda: comm.send_recv([(xs[0], gathered[1][:600])]),
        "barrier": comm.barrier,
    }
    with comm.profile() as profile:
        for call in calls.values():
            call()
    assert list(dict.fromkeys(step.op for step in profile.steps)) == list(calls)
    check_order(comm, profile)
    rows = profile.summary()
    assert sum(row.steps for row in rows) == len(profile.steps)
    assert all(len(row.device) > 0 and row.median_us >= 0 for row in rows)


def part_sizes(count: int, n: int) -> list[int]:
    return [len(part) for part in np.array_split(np.zeros(count), n)]


def test_unaligned_arrays_take_copies_along(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LS")
    whole = arrays_of(comm, rng, 1001)
    views = [array[1:] for array in whole]
    want = sum(view.numpy().astype(np.float64) for view in views)
    with comm.profile() as profile:
        for _ in range(10):
            comm.broadcast(views)
        comm.all_reduce(views, wire="f32").wait()
    assert len(sequences(profile)) == 11
    assert views[0].numpy().tobytes() == views[1].numpy().tobytes()
    assert want.shape == (1000,)
    check_order(comm, profile)


def test_bytes_are_exact(rig: Open, rng: np.random.Generator) -> None:
    """Naive, two ranks: rank 1 sends all, rank 0 sends the sum back, each in scaled blocks."""
    comm = rig("LL", algorithm="naive")
    arrays = arrays_of(comm, rng, 10 * BLOCK - 3)
    with comm.profile() as profile:
        comm.all_reduce(arrays)
    nbytes = 10 * (WIRES["f16"].format.payload + WIRES["f16"].format.tail)
    assert nbytes == 5160
    for rank in range(2):
        steps = [step for step in profile.steps if step.rank == rank]
        assert sum(step.sent_nbytes for step in steps) == nbytes
        assert sum(step.received_nbytes for step in steps) == nbytes


@pytest.mark.parametrize("letters", ["LL", "LS"])
def test_many_calls_stay_queued(rig: Open, rng: np.random.Generator, letters: str) -> None:
    """Each call has its own times, though the queries are used again; two keys take turns."""
    comm = rig(letters)
    first, second = arrays_of(comm, rng, 500), arrays_of(comm, rng, 3000)
    with comm.profile() as profile:
        start = comm.stats()["collectives"]
        for _ in range(30):
            comm.all_reduce(first)
        for _ in range(15):
            comm.all_reduce(first, op="max")
            comm.broadcast(second)
    assert sequences(profile) == list(range(start + 1, start + 61))
    begins = [min(s.begin for s in profile.steps if s.sequence == number) for number in sequences(profile)]
    assert begins == sorted(begins)
    check_order(comm, profile)


def test_eight_calls_are_enqueued_without_waiting(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LL")
    arrays = arrays_of(comm, rng, 500)
    free = comm.devices[1].logical.compute
    with comm.profile() as profile, parked(comm.devices[0]) as release:
        last = free.last
        works = [comm.all_reduce(arrays) for _ in range(8)]
        assert not works[0].done()
        free.wait(last + 1, 30)
        release()
    assert len(sequences(profile)) == 8
    first = min(profile.steps, key=lambda step: step.begin)
    assert first.rank == 1  # rank 0 was held up


def test_groups(rig: Open, rng: np.random.Generator) -> None:
    """A group submits programs at once, so each call in it needs one of its own, however many there are."""
    comm = rig("LS")
    arrays, others = arrays_of(comm, rng, 700), arrays_of(comm, rng, 700)
    with comm.profile() as profile:
        for calls in (3, 20):
            with comm.group():
                for _ in range(calls):
                    comm.all_reduce(arrays, op="max")
                comm.broadcast(others)
    assert len(sequences(profile)) == 3 + 1 + 20 + 1
    check_order(comm, profile)
    assert others[0].numpy().tobytes() == others[1].numpy().tobytes()


def test_forced_bridges(rigs: Rigs, rng: np.random.Generator) -> None:
    with env.override(link="bridged"):
        devices = fresh_devices(rigs, "LL")
        with vkpar.Communicator(devices) as comm:
            arrays = arrays_of(comm, rng, 5000)
            with comm.profile() as profile:
                for _ in range(12):
                    comm.all_reduce(arrays)
            check_order(comm, profile)
            assert len(sequences(profile)) == 12
            assert sum(step.bridge for step in profile.steps) > 0
    for device in devices:
        device.close()


def test_a_measured_clock(rig: Open, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension, a lone timestamp between two looks at the host's clock does."""
    comm = rig("LL")
    arrays = arrays_of(comm, rng, 2000)
    with comm.profile() as exact:
        comm.all_reduce(arrays)
    monkeypatch.setattr(query, "_extension", lambda device: None)
    with comm.profile() as profile:
        comm.all_reduce(arrays)
    assert [clock.method for clock in profile.clocks] == [query.MEASURED] * 2
    assert all(0 < clock.uncertainty_us < 100_000 for clock in profile.clocks)
    assert all(clock.uncertainty_us >= 0 for clock in exact.clocks)
    check_order(comm, profile)


def test_times_are_the_host_s(rig: Open, rng: np.random.Generator) -> None:
    import time

    comm = rig("LS")
    arrays = arrays_of(comm, rng, 2000)
    comm.all_reduce(arrays).wait()
    with comm.profile() as profile:
        start = time.monotonic()
        comm.all_reduce(arrays).wait()
        end = time.monotonic()
    for step in profile.steps:
        slack = 1e-6 * profile.clocks[step.rank].uncertainty_us + _COMPUTED
        assert start - slack <= step.begin <= step.end <= end + slack


def test_profiles_do_not_nest(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LL")
    arrays = arrays_of(comm, rng, 100)
    with comm.profile() as profile:
        with pytest.raises(InvalidUsageError, match="profiles do not nest"), comm.profile():
            pass
        comm.all_reduce(arrays)
        assert (profile.steps, repr(profile)) == ((), "<vkpar.comm.observe.profile.Profile of 0 steps, under way>")
    assert len(sequences(profile)) == 1
    with pytest.raises(InvalidUsageError, match="entered once"), profile:
        pass
    with comm.profile() as again:
        comm.barrier()
    assert len(sequences(again)) == 1


def test_a_queue_without_timestamps_is_refused(own: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    info = own[1].logical.info
    families = tuple(replace(family, timestamp_bits=0) for family in info.queue_families)
    monkeypatch.setattr(own[1].logical, "info", replace(info, queue_families=families))
    with vkpar.Communicator(own) as comm:
        with pytest.raises(UnsupportedError, match=r"has no timestamps on its compute queue"), comm.profile():
            pass
        comm.barrier().wait()


# ---- what goes wrong inside, and what is left ----


def test_an_exception_inside(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    """It passes; what was done is there, and the communicator goes on."""
    with vkpar.Communicator(own) as comm:
        arrays = arrays_of(comm, rng, 3000)
        profile = comm.profile()
        with suppress(ZeroDivisionError), profile:
            comm.all_reduce(arrays).wait()
            comm.all_reduce(arrays)
            raise ZeroDivisionError
        assert sequences(profile)[0] == 1
        check_order(comm, profile)
        with comm.profile() as again:
            comm.all_reduce(arrays)
        assert len(sequences(again)) == 1


def test_a_close_inside(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    """Of the communicator, or of one of its devices: what was enqueued before is there."""
    for close in (lambda comm: comm.close(), lambda comm: comm.devices[1].close()):
        comm = vkpar.Communicator(own)
        arrays = arrays_of(comm, rng, 3000)
        with comm.profile() as profile:
            comm.all_reduce(arrays)
            close(comm)
            with pytest.raises(InvalidUsageError, match="closed"):
                comm.all_reduce(arrays)
        assert len(sequences(profile)) == 1
        assert all(step.end >= step.begin for step in profile.steps)
        with pytest.raises(InvalidUsageError, match="closed"), comm.profile():
            pass


def test_a_failure_inside(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    comm = vkpar.Communicator(own, timeout=0.4)
    arrays = arrays_of(comm, rng, 3000)

    def too_many() -> None:
        with parked(own[2]):
            for _ in range(20):  # the ninth waits for the first
                comm.all_reduce(arrays)

    profile = comm.profile()
    with pytest.raises(CommunicatorError, match="no timeline advanced"), profile:
        too_many()
    assert profile.steps == ()
    with pytest.raises(CommunicatorError), comm.profile():
        pass
    comm.close()


def test_a_failure_that_leaving_finds(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    comm = vkpar.Communicator(own, timeout=0.4)
    arrays = arrays_of(comm, rng, 3000)
    with parked(own[0]):
        profile = comm.profile()
        profile.__enter__()
        comm.all_reduce(arrays)
        with pytest.raises(CommunicatorError, match="no timeline advanced"):
            profile.__exit__(None, None, None)
    comm.close()


def test_nothing_is_left(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    """A profile frees what was recorded for it, whichever way it ends, and what was recorded before."""
    with vkpar.Communicator(own) as comm:
        arrays = arrays_of(comm, rng, 3000)
        comm.all_reduce(arrays).wait()
        with comm.profile():
            pass
        before = left(own)
        for ending in (None, ZeroDivisionError):
            with suppress(ZeroDivisionError), comm.profile() as profile:
                use(comm, arrays, rng)
                assert held(own)["QueryPool"] > 0
                if ending:
                    raise ending
            assert len(sequences(profile)) == 21
            comm._engine.sweep()
            assert left(own) == before
            assert comm.stats()["cached_batches"] == 0


def test_a_close_inside_leaves_nothing(own: list[vkpar.Device], rng: np.random.Generator) -> None:
    with vkpar.Communicator(own) as comm:
        comm.barrier().wait()
        arrays_of(comm, rng, 3000)
    before = left(own)
    comm = vkpar.Communicator(own)
    with comm.profile() as profile:
        use(comm, arrays_of(comm, rng, 3000), rng)
        comm.close()
    assert len(sequences(profile)) == 21
    assert left(own) == before


def use(comm: vkpar.Communicator, arrays: list[vkpar.Array], rng: np.random.Generator) -> None:
    """Run the same call again and again, between calls on arrays that are gone after them."""
    for _ in range(10):
        comm.all_reduce(arrays_of(comm, rng, 300))
        comm.all_reduce(arrays)
    comm.barrier().wait()


def left(devices: list[vkpar.Device]) -> dict[str, int]:
    """Return the handles held once all is done, but for pipelines, layouts and memory, kept for the next use."""
    kept = ("Pipeline", "PipelineLayout", "DescriptorSetLayout", "DeviceMemory")
    for device in devices:
        device.synchronize()
        device.logical.reap()
    return {kind: number for kind, number in held(devices).items() if kind not in kept and number}


# ---- what it writes ----


def test_reports(rig: Open, rng: np.random.Generator, tmp_path: Path) -> None:
    comm = rig("LS")
    arrays = arrays_of(comm, rng, 1000)
    with comm.profile() as profile:
        comm.all_reduce(arrays)
    text = str(profile).splitlines()
    assert [line.split(":")[0] for line in text[:2]] == ["rank 0", "rank 1"]
    assert text[2].split()[:2] == ["rank", "phase"]
    assert len(text) == 4 + len(profile.summary())
    document = json.loads(json.dumps(profile.as_dict()))
    assert set(document) == {"clocks", "summary", "steps"}
    assert len(document["steps"]) == len(profile.steps)
    profile.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["tid"] == 1 for event in events) == len(profile.steps)


def test_bench_profiles_its_last_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    require("llvmpipe")
    trace = tmp_path / "steps.json"
    command = ["bench", "all_reduce", *TWO, "-n", "3", "-w", "1", "-b", "1K", "-e", "4K"]
    status, found = run_json(capsys, *command, "--profile", "--trace", str(trace))
    assert (status, found["ok"]) == (0, True)
    assert {row["rank"] for row in found["profile"]["summary"]} == {0, 1}
    assert all(row["steps"] == 3 for row in found["profile"]["summary"])
    assert len(found["profile"]["clocks"]) == 2
    assert json.loads(trace.read_text())["traceEvents"]
    assert cli.main([*command, "--profile"]) == 0
    assert "# Profile of 4096 bytes" in capsys.readouterr().out
    status, found = run_json(capsys, *command)
    assert (status, found["profile"]) == (0, None)
    assert cli.main([*command, "--trace", str(tmp_path / "no" / "such")]) == 2
    assert "cannot write the trace" in capsys.readouterr().err
