"""The pump alone: gates, bridged waits, slots copied to and from mirrors, and what is left after a failure."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from conftest import FULL, require
from helpers.process.children import check_child
from helpers.vulkan.pumping import SLOT, Stand, bytes_at, stand, until

import vkpar
from vkpar import timeouts
from vkpar.errors import DeviceLostError, OutOfMemoryError, VulkanError
from vkpar.vulkan.pump import native, ports
from vkpar.vulkan.pump.ports import Batch

pytestmark = pytest.mark.device
RANKS = 3
OUT_OF_HOST_MEMORY, DEVICE_LOST = -1, -4


@pytest.fixture(scope="module", params=[False, True], ids=["blocks", "naps"])
def devices(request: pytest.FixtureRequest) -> Iterator[list[vkpar.Device]]:
    """Devices whose queues are waited for as processors' and as GPUs' are."""
    require("llvmpipe")
    make = native.CQueue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "CQueue", lambda handles, **_: make(handles, naps=request.param))
        opened = vkpar.open_devices(f"llvmpipe*{RANKS}")
        yield opened
    for device in opened:
        device.close()


# ---- no helper ----


def test_without_the_helper_devices_are_listed_and_not_opened() -> None:
    require("llvmpipe")
    printed = check_child(
        """
        import sys
        sys.modules["vkpar.vulkan.pump._pump"] = None
        import vkpar
        from vkpar.vulkan import api
        assert vkpar.enumerate_devices()
        for _ in range(2):
            try:
                vkpar.open_devices("llvmpipe")
            except vkpar.UnsupportedError as error:
                print(error)
        assert api.load().live() == {"Instance": 1}, api.load().live()
        """
    )
    lines = printed.splitlines()
    assert len(lines) == 2
    assert all("apt install gcc" in line and "python -m vkpar.vulkan.pump.build" in line for line in lines)


# ---- gates ----


@pytest.mark.parametrize("mapped", [(), (1,)])
def test_a_gate_holds_a_batch(devices: list[vkpar.Device], mapped: tuple[int, ...]) -> None:
    with stand(devices, mapped) as s:
        writer, reader = s.batch(0, {}, {0: 7}, gated=True), s.batch(1, {0: 7}, {}, gated=True)
        wanted = s.enqueue([writer, reader, s.batch(2, {0: 7}, {})])
        time.sleep(0.05)
        assert s.reached(0) == wanted[0] - 1
        s.release(0)
        s.wait(2, wanted[2])
        assert s.reached(1) == wanted[1] - 1
        s.release(1)
        s.wait(1, wanted[1])
        s.check()
        assert s.group.stats().bridges == 2


# ---- mapped ranks ----


class Model:
    """Random programs: every rank owns two slots, and reads what any other one has last written."""

    def __init__(self, stand: Stand, seed: int) -> None:
        self.stand, self.chance = stand, random.Random(seed)
        self.content: dict[int, tuple[int, int]] = {}  # slot: its writer and word
        self.copied: set[tuple[int, int]] = set()  # (slot, memory) that have the content from the host
        self.copies = 0
        self.words = itertools.count(1)

    def memory(self, rank: int) -> int:
        return rank if rank in self.stand.mapped else -1

    def batch(self) -> Batch:
        chance = self.chance
        rank = chance.randrange(RANKS)
        reads = {}
        for slot in chance.sample(sorted(self.content), min(len(self.content), chance.randrange(4))):
            writer, reads[slot] = self.content[slot]
            if self.memory(writer) != self.memory(rank) and (slot, self.memory(rank)) not in self.copied:
                self.copied.add((slot, self.memory(rank)))
                self.copies += 1
        writes = {slot: next(self.words) for slot in (rank, rank + RANKS) if chance.random() < 0.5}
        for slot, word in writes.items():
            self.content[slot] = (rank, word)
            self.copied -= {(slot, memory) for memory in range(-1, RANKS)}
        return self.stand.batch(rank, reads, writes, gated=chance.random() < 0.3)


@contextmanager
def gates_opening(s: Stand, chance: random.Random) -> Iterator[None]:
    """Open gates one by one, after random delays, while the block runs and until all are open."""

    def run() -> None:
        while any(gate.value() < held for gate, held in zip(s.gates, s.held, strict=True)) or not over.is_set():
            rank = chance.randrange(RANKS)
            if s.gates[rank].value() < s.held[rank]:
                s.gates[rank].signal(s.gates[rank].value() + 1)
            time.sleep(chance.choice([0, 0, 0.0005, 0.002]))

    over = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


MAPPED = [(), (0,), (2,), (0, 1), (0, 1, 2)]


@pytest.mark.parametrize("seed", range(20 if FULL else 3))
@pytest.mark.parametrize("mapped", MAPPED)
def test_every_read_sees_the_last_write(devices: list[vkpar.Device], mapped: tuple[int, ...], seed: int) -> None:
    """Many generations of slots, in flight together; the host copies each content once to each memory."""
    with stand(devices, mapped, nslots=2 * RANKS) as s:
        model = Model(s, seed)
        with gates_opening(s, random.Random(seed)):
            for length in (1, 40, 5, 30):
                s.enqueue([model.batch() for _ in range(length)])
        s.check()
        assert s.group.stats().copies == model.copies


@pytest.mark.parametrize("mapped", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_slots_are_reused_at_full_speed(devices: list[vkpar.Device], mapped: tuple[int, ...]) -> None:
    """One slot, 200 generations queued back to back, all others read each."""
    with stand(devices, mapped) as s:
        batches = []
        for word in range(1, 201):
            writer = word % 2  # the slot changes hands
            batches.append(s.batch(writer, {}, {0: word}))
            batches += [s.batch(rank, {0: word}, {}) for rank in range(RANKS) if rank != writer]
        s.enqueue(batches)
        s.check()
        memory = [rank if rank in s.mapped else -1 for rank in range(RANKS)]
        others = [{memory[rank] for rank in range(RANKS) if rank != writer} - {memory[writer]} for writer in range(2)]
        assert s.group.stats().copies == 100 * sum(map(len, others))


def test_copies_come_late_too(devices: list[vkpar.Device]) -> None:
    """The writer was done long ago: its timeline says so, the mirror does not have the bytes."""
    with stand(devices, [1]) as s:
        for _ in range(2):
            s.enqueue([s.batch(0, {}, {0: 5}), s.batch(1, {}, {1: 6})])
            s.finish()
            assert s.group.stats().pending == 0
            s.enqueue([s.batch(2, {1: 6}, {}), s.batch(1, {0: 5}, {}), s.batch(1, {0: 5}, {}), s.batch(0, {1: 6}, {})])
            s.check()
        assert s.group.stats().copies == 4


def test_mirrors_meet_without_the_shared_memory(devices: list[vkpar.Device]) -> None:
    with stand(devices, [0, 1]) as s:
        s.enqueue([s.batch(0, {}, {0: 9, 1: 8, 2: 7}), s.batch(1, {0: 9, 2: 7}, {})])
        s.check()
        assert not np.any(bytes_at(s.arena.address, 3 * SLOT)), "the shared memory has what nobody there reads"
        assert list(bytes_at(s.mirrors[1], 3 * SLOT)[:: SLOT // 4]) == [9, 0, 7]
        assert s.group.stats().copies == 2


# ---- aborts, stops, failures ----


def refused(s: Stand) -> VulkanError:
    """Check that nothing is enqueued any more, and return the error."""
    last, held = [port.last for port in s.ports], list(s.held)
    with pytest.raises(VulkanError, match="nothing was submitted"):
        s.enqueue([s.batch(rank, {}, {}) for rank in range(RANKS)])
    with pytest.raises(VulkanError, match="nothing was submitted") as caught:
        s.enqueue([s.batch(0, {}, {0: 1}, gated=True), s.batch(1, {0: 1}, {}), s.batch(2, {0: 1}, {})])
    s.held = held
    assert [port.last for port in s.ports] == last
    assert s.group.stats().pending == 0
    return caught.value


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("mapped", [(), (0,), (1, 2)])
def test_an_abort_releases_what_is_parked(devices: list[vkpar.Device], mapped: tuple[int, ...], stopped: bool) -> None:
    """Also from the calling thread alone, where the waiter threads are gone."""
    with stand(devices, mapped) as s:
        s.enqueue([s.batch(0, {}, {0: 7}, gated=True), s.batch(1, {0: 7}, {1: 8}), s.batch(1, {0: 7}, {})])
        if stopped:
            s.group.stop()
        s.enqueue([s.batch(2, {1: 8, 0: 7}, {}), s.batch(2, {0: 7}, {2: 9}), s.batch(1, {2: 9}, {})])
        # A rank waits for a content once, where the host need not copy it.
        assert s.group.stats().pending_by_rank == ((0, 3, 2) if mapped else (0, 2, 1))
        if stopped:
            s.release(0)
            time.sleep(0.05)
            assert s.group.stats().bridges == 0
        s.group.abort()
        s.group.abort()
        assert s.group.stats().pending == 0
        s.wait(1)
        s.wait(2)
        stats = s.group.stats()
        assert stats.copies == stats.bridges == sum(stats.histogram) == 0
        assert s.group.error() == 0
        assert refused(s).result == "VK_ERROR_UNKNOWN"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("delay", [0, 0.003, 0.02, 0.05])
@pytest.mark.parametrize("end", ["abort", "stop"])
def test_the_end_comes_during_a_copy(devices: list[vkpar.Device], end: str, delay: float) -> None:
    """Copies of 32 MiB, of which one is under way most of the time."""
    with stand(devices, [1, 2], nslots=2, nbytes=32 << 20) as s:
        batches = [s.batch(0, {}, {0: 1, 1: 2})]
        batches += [Batch(rank, s.batch(rank, {}, {}).command, (0, 1)) for rank in (1, 2)]
        for _ in range(10):
            s.enqueue(batches)
        s.wait(0, 1)
        time.sleep(delay)
        getattr(s.group, end)()
        before = s.group.stats()
        time.sleep(0.05)
        idle = s.group.stats()
        time.sleep(0.05)
        assert s.group.stats() == idle, "the threads still find something to do"
        s.group.stop()
        s.group.abort()
        refused(s)
        s.finish()
        stats = s.group.stats()
        assert stats.copies - before.copies in ((0, 1) if end == "abort" else (0,))  # the one that it came into
        assert stats.copied_bytes == stats.copies * s.nbytes
        assert sum(stats.histogram) == stats.bridges == before.bridges
        s.group.close()
        mirrors = [bytes_at(mirror, s.nslots * s.nbytes) for mirror in s.mirrors.values()]
        for mirror in mirrors:
            mirror[:] = 77
        time.sleep(0.02)
        assert all(np.all(mirror == 77) for mirror in mirrors)


@pytest.mark.parametrize("aborts", [False, True])
def test_a_driver_that_takes_long_to_signal_holds_up_nobody_else(devices: list[vkpar.Device], aborts: bool) -> None:
    """Neither other ranks' bridges nor callers; an abort waits for that signal, and makes the others itself."""
    begun, go, made = threading.Event(), threading.Event(), []
    real = devices[1].logical.compute._handles().signal

    def signal(device: Any, info: Any) -> int:
        begun.set()
        assert go.wait(20)
        made.append(int(info.value))
        return int(real(device, info))

    with stand(devices, fakes={1: {"signal": signal}}) as s:
        try:
            s.enqueue(
                [s.batch(0, {}, {0: 7}), s.batch(1, {0: 7}, {1: 5}), s.batch(2, {}, {2: 8}), s.batch(1, {2: 8}, {})]
            )
            assert begun.wait(20)
            s.enqueue([s.batch(2, {}, {3: 9}), s.batch(0, {3: 9}, {})])
            s.wait(0)
            s.wait(2)
            assert s.group.stats().pending_by_rank == (0, 2, 0)
            thread = threading.Thread(target=s.group.abort if aborts else s.group.stats)
            thread.start()
            thread.join(0.05 if aborts else 20)
            assert thread.is_alive() == aborts
        finally:
            go.set()
        thread.join(20)
        if not aborts:
            s.check()
        assert s.group.stats().pending == 0
        assert made == [1, 2]
        s.finish()


def test_threads_wait_in_slices(devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper's threads take the length that Python's waits have: see vkpar/timeouts.py."""
    assert native.SLICE_NS == timeouts.SLICE_NS
    monkeypatch.setattr(native, "SLICE_NS", 7_000_000)
    lengths = []
    real = devices[0].logical.compute._handles().wait

    def wait(device: Any, info: Any, timeout_ns: int) -> int:
        lengths.append(timeout_ns)
        return int(real(device, info, timeout_ns))

    with stand(devices, fakes={0: {"wait": wait}}) as s:
        s.enqueue([s.batch(0, {}, {0: 7}, gated=True), s.batch(1, {0: 7}, {})])
        until(lambda: len(lengths) > 1)  # none was long enough
        s.check()
    assert max(lengths) <= 7_000_000  # less where the thread looked now and then before


def test_no_enqueue_slips_past_an_abort(devices: list[vkpar.Device]) -> None:
    chance = random.Random(3)
    for _ in range(60 if FULL else 12):
        with stand(devices, [1]) as s:
            batches = [s.batch(0, {}, {0: 1}), s.batch(1, {0: 1}, {1: 2}), s.batch(2, {0: 1, 1: 2}, {})]
            errors = []

            def run(s: Stand = s, batches: list[Batch] = batches, errors: list[VulkanError] = errors) -> None:
                program = s.group.program(batches)
                try:
                    while True:
                        program.enqueue()
                except VulkanError as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            time.sleep(chance.uniform(0, 0.02))
            s.group.abort()
            thread.join(20)
            assert "nothing was submitted" in str(errors[0])
            s.finish()
            assert s.group.stats().pending == 0


def test_a_submit_that_fails_leaves_nothing_parked(devices: list[vkpar.Device]) -> None:
    """Rank 0's batch waits for rank 1's, which never comes."""
    with stand(devices, fakes={1: {"submit": lambda *_: OUT_OF_HOST_MEMORY}}) as s:
        with pytest.raises(OutOfMemoryError, match="rank 1") as caught:
            s.enqueue([s.batch(1, {}, {0: 1}), s.batch(0, {0: 1}, {}), s.batch(2, {0: 1}, {})])
        assert getattr(caught.value, "rank", None) == 1
        assert [port.last for port in s.ports] == [1, 0, 0]
        s.wait(0)
        assert refused(s).result == "VK_ERROR_UNKNOWN"


def test_a_dead_source(devices: list[vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    """What stopped the bridge is known without a C call, which would give up the GIL."""
    dead = threading.Event()

    def counter(*_: object) -> int:
        return DEVICE_LOST if dead.is_set() else 0

    with stand(devices, fakes={0: {"counter": counter}}) as s:
        s.enqueue([s.batch(0, {}, {0: 1}, gated=True), s.batch(1, {0: 1}, {})])
        dead.set()
        with monkeypatch.context() as patch:
            for owner in (s.group, *s.ports):
                patch.setattr(owner, "_c", None)
            until(s.group.error)
            assert s.group.error() == DEVICE_LOST
            assert [port.last for port in s.ports] == [1, 1, 0]
        assert s.group.stats().pending_by_rank == (0, 1, 0)
        assert isinstance(refused(s), DeviceLostError)
        s.wait(1)
    assert s.group.error() == DEVICE_LOST
    assert [port.last for port in s.ports] == [1, 1, 0]


# ---- counters ----


def test_buckets() -> None:
    edges = [ports.bucket_ns(index) for index in range(ports.HISTOGRAM_BUCKETS)]
    assert edges[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert all(low < high <= 1.25 * low for low, high in itertools.pairwise(edges[4:]))
    for index, edge in enumerate(edges):
        assert ports.bucket_of(edge) == index
        assert ports.bucket_of(max(edge - 1, 0)) == max(index - 1, 0)
    assert edges[-1] < 1e10 < 1 << 40
    assert ports.bucket_of(1 << 40) == ports.HISTOGRAM_BUCKETS - 1


def test_counters(devices: list[vkpar.Device]) -> None:
    """A latency begins when the source is seen, so a gate held for 0.2 s does not count; large copies do."""
    with stand(devices, [2], nbytes=16 << 20) as s:
        batches = [s.batch(0, {}, {0: 1, 1: 2}, gated=True)]
        batches += [Batch(rank, s.batch(rank, {}, {}).command, (0, 1)) for rank in (1, 2, 2)]
        s.enqueue(batches)
        assert s.group.stats().pending_by_rank == (0, 1, 2)
        time.sleep(0.2)
        s.check()
        stats = s.group.stats()
        assert (stats.bridges, stats.copies, stats.copied_bytes) == (3, 2, 32 << 20)
        assert stats.blocks > 0
        latencies = [ports.bucket_ns(index) for index, number in enumerate(stats.histogram) for _ in range(number)]
        assert latencies[0] < 200e6
        assert latencies[-1] > 32 << 20 >> 6  # no host copies 64 bytes a ns
