"""The C helper where there is no memory: what it could not do it has not done by half, and no doubt stays for ever."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI
from conftest import REQUIRED
from helpers.process import faulting

from vkpar.vulkan.pump import build
from vkpar.vulkan.pump.ledger import READS, REPLACES

_OUT_OF_MEMORY, _LOST = -1, 1005
_HARNESS = """
vkp_queue *scarce_queue(uint64_t device);
vkp_stream *scarce_stream(vkp_queue *);
void scarce_memory(long allocations);
void scarce_sets(int there);
uint64_t scarce_stamp(void);
void scarce_reach(uint64_t value);
void scarce_counts(uint64_t *out);
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """cffi's view of the helper over a driver that does nothing."""
    compiler = faulting.compiler()
    if compiler is None:
        (pytest.fail if REQUIRED else pytest.skip)("the helper is built by gcc, which is not here")
    folder, library = Path(build.__file__).parent, tmp_path_factory.mktemp("scarce") / "libscarce.so"
    command = [*compiler, "-shared", "-fPIC", "-O1", "-std=gnu11", f"-I{folder}", str(faulting.HERE / "scarce.c")]
    made = subprocess.run([*command, "-o", str(library), "-lpthread"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    ffi = FFI()
    ffi.cdef((folder / "_pump_api.h").read_text() + _HARNESS)
    return ffi, ffi.dlopen(str(library))


class Devices:
    """Devices 1, 2, ... with a queue and a stream each, none of whose work ever ends."""

    def __init__(self, ffi: Any, lib: Any, number: int) -> None:
        self.ffi, self.lib = ffi, lib
        self.queues = [lib.scarce_queue(1 + device) for device in range(number)]
        self.streams = [lib.scarce_stream(queue) for queue in self.queues]

    def open(self) -> Any:
        """Return one more queue, of a device of its own."""
        self.queues.append(self.lib.scarce_queue(1 + len(self.queues)))
        self.streams.append(self.lib.scarce_stream(self.queues[-1]))
        return self.queues[-1]

    def close(self, device: int) -> None:
        """Close a device as Python does."""
        stream, self.streams[device] = self.streams[device], None
        if stream is not None:
            self.lib.vkp_stream_close(stream, 0)
            self.lib.vkp_ledger_forget(1 + device)
            self.lib.vkp_stream_free(stream)
            self.lib.vkp_queue_free(self.queues[device])

    def touches(self, count: int, kind: int, device: int = 0) -> Any:
        """Return that many ranges of a device's buffer 7."""
        return self.ffi.new("vkp_touch[]", [(1 + device, 7, 64 * i, 64 * i + 32, kind) for i in range(count)])

    def enqueue(self, writes: int) -> Any:
        """Enqueue a program of the first device that writes so many ranges; return its group."""
        ffi, lib = self.ffi, self.lib
        group = lib.vkp_group_new(1, ffi.new("vkp_queue *[]", self.queues[:1]), 1)
        none = ffi.new("uint64_t[]", 1)
        starts = ffi.new("uint32_t[]", [0, 0])
        empty = ffi.new("uint32_t[]", 1)
        self.program = lib.vkp_program_new(group, 1, empty, none, starts, empty, starts, empty, none, none)
        assert lib.vkp_program_touch(self.program, writes, self.touches(writes, REPLACES)) == 0
        assert lib.vkp_enqueue(self.program, ffi.new("uint64_t[]", 1), ffi.new("uint32_t *")) == 0
        return group

    def finish(self, group: Any) -> None:
        """Free what :meth:`enqueue` made."""
        self.lib.vkp_group_stop(group)
        self.lib.vkp_program_free(self.program)
        self.lib.vkp_group_free(group)

    def fill(self, device: int, count: int) -> int:
        """Fill that many parts."""
        parts = self.ffi.new("uint64_t[]", [word for i in range(count) for word in (7, 64 * i, 32)])
        return int(self.lib.vkp_fill(self.streams[device], 0, count, self.ffi.cast("char *", parts), 5))

    def stats(self, device: int) -> list[int]:
        """Return the stream's operations, submissions, barriers, buffers, pools and operations gathered now."""
        out = self.ffi.new("uint64_t[6]")
        self.lib.vkp_stream_stats(self.streams[device], out)
        return list(out)

    def counts(self) -> list[int]:
        """Return how many fills, dispatches and timestamps were recorded."""
        out = self.ffi.new("uint64_t[3]")
        self.lib.scarce_counts(out)
        return list(out)

    def is_lost(self, device: int) -> bool:
        """Say whether the device's buffer 9, which nothing writes, is taken for lost."""
        touch = self.ffi.new("vkp_touch[]", [(1 + device, 9, 0, 4, READS)])
        return bool(self.lib.vkp_ledger_lost(1, touch))


@pytest.fixture
def devices(built: tuple[Any, Any]) -> Iterator[Devices]:
    """Two devices."""
    with ExitStack() as undo:
        made = Devices(*built, 2)
        undo.callback(lambda: [made.close(device) for device in range(len(made.queues))])
        undo.callback(made.lib.scarce_memory, -1)
        yield made


@pytest.mark.parametrize("count", [1, 2, 1500])
def test_a_fill_for_which_there_is_no_memory_is_not_done_by_half(devices: Devices, count: int) -> None:
    """Its later parts are those for which the ledger has no room."""
    group = devices.enqueue(1)
    before, recorded = devices.stats(0), devices.counts()
    for allocations in range(3):
        devices.lib.scarce_memory(allocations)
        result = devices.fill(0, count)
        told = devices.stats(0)[0] - before[0], devices.counts()[0] - recorded[0]
        assert told == ((1, count) if result == 0 else (0, 0)), result
        if result == 0:
            break
        assert result == _OUT_OF_MEMORY
    devices.lib.scarce_memory(-1)
    devices.finish(group)


def test_a_dispatch_that_cannot_be_bound_leaves_no_timestamps(devices: Devices) -> None:
    """Queries that are counted and never written would leave a trace without times."""
    ffi, lib = devices.ffi, devices.lib
    plan = ffi.new("vkp_plan *", {"bindings": 1, "groups": [1, 1, 1], "binding": [(4, 4, 0, 0, READS)]})
    stamps = ffi.new("vkp_stamp[8]")
    trace = ffi.new("vkp_trace *", {"write": lib.scarce_stamp(), "room": 8, "stamps": stamps})
    kept = ffi.new("uint64_t[]", [7, 0])
    addresses = ffi.cast("char *", kept)
    lib.vkp_stream_trace(devices.streams[0], trace)
    before = devices.counts()
    lib.scarce_sets(0)
    assert lib.vkp_launch(devices.streams[0], plan, addresses, ffi.NULL) == _OUT_OF_MEMORY
    assert (trace.used, trace.queries, devices.counts()) == (0, 0, before)
    lib.scarce_sets(1)
    assert lib.vkp_launch(devices.streams[0], plan, addresses, ffi.NULL) == 0
    assert (trace.used, trace.queries) == (1, 2)
    assert devices.counts() == [before[0], before[1] + 1, before[2] + 2]
    lib.vkp_stream_trace(devices.streams[0], ffi.NULL)


def test_a_loss_that_found_no_memory_is_forgotten_with_the_devices_that_were_open(devices: Devices) -> None:
    """Until then anything may be lost, of any of them; what is opened later is free of it once they are closed."""
    group = devices.enqueue(3)
    assert not devices.is_lost(0)
    devices.lib.scarce_memory(0)
    devices.lib.vkp_group_abort(group)
    devices.lib.scarce_memory(-1)
    devices.finish(group)
    assert devices.is_lost(0)
    assert devices.is_lost(1)
    assert devices.fill(1, 1) == _LOST
    devices.open()
    devices.close(0)
    assert devices.is_lost(1), "the other one may hold what was lost"
    devices.close(1)
    assert not devices.is_lost(2)
    assert devices.lib.vkp_ledger_clock().lost == 0
    assert devices.fill(2, 1) == 0
