"""Carriers on CPU drivers: the host in the place of a vendor's library, and a kernel that waits in pieces.

lavapipe ends every loop after 65,535 turns, and SwiftShader runs no other device's kernels beside one that waits. So
these ranks are lavapipe's, and the kernel that waits for flags is run again and again; it differs from the shipped one
in what a turn does, and in that it waits for what earlier runs have not seen. Where a kernel of an
operation waits, that kernel does so before, and takes back what it has counted: the other one waits for what has come.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.comm.hostvendor import HostAlarm, HostVendor

import vkpar
from vkpar import env
from vkpar.abi.wire import Carry
from vkpar.abi.words import pack
from vkpar.comm.record.carried import CarriedRecorder
from vkpar.comm.rig import carriers
from vkpar.comm.rig.carriers import Carriers
from vkpar.comm.rig.transports import peer
from vkpar.comm.schedule.steps import Action
from vkpar.graph import record as record_graph
from vkpar.graph.fusion import Fused
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.recording import Recording

_SOURCE = Path(__file__).parents[3] / "shaders" / "carry.comp"
_RUNS = 80  # of some 60 ms each, where nothing comes: in turns, so that a busy machine waits longer
_NO_ARRIVALS = bytes(4 * 16)
_AGAIN = pack(Carry(0, (0,) * 16))
_WAIT = """
    uint wanted = flag_word[AWAITED + lane * LANE_WORDS] + arrivals[lane];
    flag_word[AWAITED + lane * LANE_WORDS] = wanted;
    for (uint turn = 0u; turn < 60000u; turn++) {
        if (int(flag_word[ARRIVED + lane * LANE_WORDS] - wanted) >= 0 || flag_word[ABORTED] != 0u) {
            break;
        }
        DELAY
    }
}
"""


@functools.cache
def _variant() -> bytes:
    text = _SOURCE.read_text()
    delay = "atomicAdd(flag_word[1000u + lane], 1u);\n" * 64
    text = text[: text.index("    if (arrivals[lane]")] + _WAIT.replace("DELAY", delay)
    with tempfile.TemporaryDirectory() as folder:
        source, module = Path(folder) / "carry.comp", Path(folder) / "carry.spv"
        source.write_text(text)
        command = ["glslangValidator", "-V", "--target-env", "vulkan1.2", f"-I{_SOURCE.parent}"]
        subprocess.run([*command, "-o", str(module), str(source)], check=True, capture_output=True)
        return module.read_bytes()


def _waiting_before(act: Any, record: Any) -> Any:
    """Return what has the kernel of flags wait before one that does so itself."""

    def record_actions(self: CarriedRecorder, commands: CommandBuffer, actions: Sequence[Action]) -> None:
        lanes = {divmod(lane, 2): self._own.awaits >> 2 * lane & 3 for lane in range(16)}
        awaited = {lane: number for lane, number in lanes.items() if number}
        if awaited:
            self._record_flags(commands, {}, awaited)
            record(self, commands, {}, {lane: -number % (1 << 32) for lane, number in awaited.items()})
        act(self, commands, actions)

    return record_actions


@contextmanager
def carried(monkeypatch: pytest.MonkeyPatch, masks: bool = False, *, grouped: bool = False) -> Iterator[HostVendor]:
    """Have communicators with the transport ``peer`` carry slots by the host inside; ``masks`` as HostVendor has it.

    ``grouped``: communicators that choose by themselves do so between lavapipe's ranks, two and two.
    """
    vendor, shipped, record = HostVendor(masks), shader.shipped, CarriedRecorder._record_flags
    into, record_fused = Carriers.record_flags, record_graph._record_fused
    waiting_before = _waiting_before(CarriedRecorder._record_actions, record)

    def record_flags(self: CarriedRecorder, commands: CommandBuffer, ready: dict, arrivals: dict) -> None:
        record(self, commands, ready, arrivals)
        for _ in range(_RUNS if arrivals else 0):
            self.record_small(commands, "carry", _AGAIN)

    def record_into(self: Carriers, rank: int, handle: Any, push: bytes) -> None:
        into(self, rank, handle, push)
        for _ in range(_RUNS if not push.endswith(_NO_ARRIVALS) else 0):
            into(self, rank, handle, _AGAIN)

    def record_waiting(fused: Fused, command: Any, recording: Recording) -> None:
        told = fused.step.flags
        if told is not None and told.waits and fused.flags is not None and not fused.flags.waits:
            told.record(command, {}, told.waits)
            told.record(command, {}, {lane: -number % (1 << 32) for lane, number in told.waits.items()})
            recording.strange()
        record_fused(fused, command, recording)

    def offer(ranks: list[DeviceInfo], _held: object = None) -> tuple[HostVendor, str]:
        if not all(info.is_cpu for info in ranks):
            pytest.skip("cards do not see what the host writes while their kernels run")
        return vendor, "the host carries"

    def offer_groups(
        ranks: list[DeviceInfo], _held: object
    ) -> tuple[HostVendor | None, tuple[int | None, ...] | None, str]:
        """Join all that are not SwiftShader's, two and two."""
        places = [rank for rank, info in enumerate(ranks) if "SwiftShader" not in info.name]
        groups = tuple(places.index(rank) // 2 if rank in places else None for rank in range(len(ranks)))
        joined = tuple(group if groups.count(group) > 1 else None for group in groups)
        return vendor, joined, "the host carries, within groups of ranks"

    with monkeypatch.context() as patch, ExitStack() as stack:
        if grouped:
            patch.setattr(peer, "offer_groups", offer_groups)
            stack.enter_context(env.override(peer="groups"))
        patch.setattr(Carriers, "record_flags", record_into)
        patch.setattr(record_graph, "_record_fused", record_waiting)
        patch.setattr(peer, "offer", (lambda *_: (None, "")) if grouped else offer)
        patch.setattr(carriers, "Alarm", lambda device: HostAlarm(vendor))
        patch.setattr(shader, "shipped", lambda name: _variant() if name == "carry" else shipped(name))
        patch.setattr(CarriedRecorder, "_record_flags", record_flags)
        patch.setattr(CarriedRecorder, "_record_actions", waiting_before)
        yield vendor


def check_a_copy_that_never_comes(
    vendor: HostVendor, devices: Sequence[vkpar.Device], transport: str, rank: str
) -> None:
    """Sum over devices whose slots are carried, and carry nothing: the error names a rank that ``rank`` matches.

    The kernels that wait are let go, the devices can be used again, and nothing is lost.
    """
    before = [imported_nbytes(device) for device in devices]
    comm = vkpar.Communicator(devices, transport=transport, timeout=1)
    arrays = [device.array(np.arange(999, dtype=np.int32)) for device in devices]
    vendor.go.clear()
    work = comm.all_reduce(arrays)
    threading.Timer(3, vendor.go.set).start()  # streams end, as they do when their flags are raised
    with pytest.raises(
        vkpar.CommunicatorError, match=rf"all_reduce #1: rank {rank} .* at .* no timeline advanced for 1"
    ):
        work.wait()
    comm.close()
    comm.close()
    del arrays
    for device, used in zip(devices, before, strict=True):
        np.testing.assert_array_equal((device.array([1, 2]) + 1).numpy(), [2, 3])
        assert imported_nbytes(device) == used
        device.close()


def imported_nbytes(device: vkpar.Device) -> int:
    """Return the bytes that a device has imported, slots among them."""
    return sum(heap.imported for heap in device.memory().heaps)
