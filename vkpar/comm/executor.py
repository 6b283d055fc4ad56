"""Records schedules into command buffers: the one place where algorithms, wires and transports meet."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from vkpar.array import Array
from vkpar.comm.operands import Operands
from vkpar.comm.schedule import BLOCK, MOST_SOURCES, Forward, Reduce, Span, Step
from vkpar.comm.slots import Region
from vkpar.comm.transports.staged import StagedTransport
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.command import CommandBuffer, CommandPool, DescriptorPool
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.pump import Batch, GroupPort, ProgramPort

_UNIT = 16  # bytes that the wire kernels count slots in
_BLOCKS_PER_GROUP = 8  # of both kernel variants, see shaders/wire_*.comp
_PUSH_WORDS = 7 + MOST_SOURCES
_PUSH = struct.Struct(f"<{_PUSH_WORDS}I")
_SETS_PER_POOL = 32
_BINDINGS = 3


@dataclass(frozen=True)
class Copies:
    """Copies that belong to a collective: by rank, (from, to) before its first step and after its last."""

    before: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    after: dict[int, tuple[Array, Array]] = field(default_factory=dict)


class Program:
    """A recorded collective, submitted as often as wanted.

    Attributes:
        batches: number of command buffers.
        values: each rank's timeline value of the last submission, 0 where it has no part.
        starts: the value that each rank's timeline has when nothing else keeps its first batch from running.
    """

    def __init__(self, recorders: Sequence[_Recorder], batches: Sequence[Batch], port: ProgramPort) -> None:
        self._recorders = recorders
        self._port = port
        self._per_rank = [sum(batch.rank == rank for batch in batches) for rank in range(len(recorders))]
        self.batches = len(batches)
        self.values = [0] * len(recorders)
        self.starts = [0] * len(recorders)
        self._noted = True

    def enqueue(self) -> None:
        """Submit every batch in one step that cannot be interrupted half-way."""
        self._noted = False  # until the values are: an interrupt can come right after the submits
        self._note(self._port.enqueue())
        self._noted = True

    def _note(self, values: Sequence[int]) -> None:
        pairs = list(zip(values, self._per_rank, strict=True))
        self.values = [value if number else 0 for value, number in pairs]
        self.starts = [value - number if number else 0 for value, number in pairs]

    def pending(self) -> list[int]:
        """Return, by rank, a timeline value at which no submission is pending any more."""
        return self.values if self._noted else self._port.last()

    def close(self) -> None:
        """Free the command buffers; the last submission must be done."""
        self._port.close()
        for recorder in self._recorders:
            recorder.close()


class _Recorder:
    """Records one rank's steps of one program."""

    def __init__(
        self,
        device: LogicalDevice,
        slots: SharedBuffer,
        region: Region,
        wires: WirePlan,
        source: Array | None,
        target: Array,
    ) -> None:
        self._device = device
        self._slots = slots
        self._region = region
        self._wires = wires
        self._source: Array | None = source if source is not None else target
        self._target: Array | None = target
        self._commands = CommandPool(device.handle, device.compute.family)
        self._pools: list[DescriptorPool] = []
        self._sets: dict[tuple[BufferRange, BufferRange], object] = {}
        self._processor = "cpu" if device.info.is_cpu else "gpu"
        self._tail = wires.tail_at(region.slot_nbytes) // _UNIT

    def record(
        self, step: Step, before: tuple[Array, Array] | None, after: tuple[Array, Array] | None
    ) -> CommandBuffer:
        """Return a reusable command buffer that does ``step``, between two copies where they are given."""
        commands = self._commands.allocate()
        commands.begin(reusable=True)
        commands.record_acquire(self._slots)
        if before:
            commands.record_copy(before[0].bytes_range(), before[1].bytes_range())
            commands.record_order()
        for action in step.actions:
            if isinstance(action, Reduce):
                self._record_reduce(commands, action)
            else:
                self._record_forward(commands, action)
        if after:
            commands.record_order()
            commands.record_copy(after[0].bytes_range(), after[1].bytes_range())
        commands.record_release(self._slots)
        commands.end()
        return commands

    def _record_reduce(self, commands: CommandBuffer, action: Reduce) -> None:
        out = self._wires.final if action.final else self._wires.contribution
        formats = f"{self._wires.element}_{self._wires.contribution.name}_{out.name}"
        constants = (
            len(action.sources),
            int(action.own_at is not None),
            int(action.to_array),
            int(action.out_slot is not None),
        )
        source_at, target_at, descriptors = self._bind(action.span)
        push = (
            source_at,
            target_at,
            action.own_at or 0,
            self._tail,
            self._unit(action.out_slot),
            *(self._unit(slot) for slot in action.sources),
        )
        self._dispatch(commands, f"wire_reduce_{self._processor}_{formats}", constants, descriptors, push, action.span)

    def _record_forward(self, commands: CommandBuffer, action: Forward) -> None:
        formats = f"{self._wires.element}_{self._wires.final.name}"
        constants = (1, int(action.out_slot is not None))
        _, target_at, descriptors = self._bind(action.span)
        push = (target_at, self._tail, self._unit(action.slot), self._unit(action.out_slot))
        self._dispatch(commands, f"wire_forward_{self._processor}_{formats}", constants, descriptors, push, action.span)

    def _dispatch(
        self,
        commands: CommandBuffer,
        kernel: str,
        constants: tuple[int, ...],
        descriptors: object,
        push: tuple[int, ...],
        span: Span,
    ) -> None:
        """Record the whole blocks, then a block that is cut short: only that launch pays for the checks."""
        whole = span.count // BLOCK
        launches = (("whole", 0, whole, whole * BLOCK), ("tail", whole, span.blocks - whole, span.count))
        for part, first, number, count in launches:
            if number:
                name = f"{kernel}_{part}"
                pipeline = self._device.pipelines.shipped(name, _BINDINGS, _PUSH.size, constants)
                words = (count, first, *push)
                packed = _PUSH.pack(*words, *([0] * (_PUSH_WORDS - len(words))))
                commands.record_dispatch(pipeline, descriptors, packed, (-(-number // _BLOCKS_PER_GROUP), 1, 1))

    def _unit(self, slot: int | None) -> int:
        return 0 if slot is None else self._region.byte_of(slot) // _UNIT

    def _bind(self, span: Span) -> tuple[int, int, object]:
        """Return the span's first element in the bindings of source and target, and the descriptor set."""
        source, source_at = self._window(self._source, span)
        target, target_at = self._window(self._target, span)
        key = (source, target)
        if key not in self._sets:
            self._sets[key] = self._descriptors([source, target, self._slots.range])
        return source_at, target_at, self._sets[key]

    def _window(self, array: Array | None, span: Span) -> tuple[BufferRange, int]:
        assert array is not None
        whole, first = array.window()
        if whole.nbytes <= self._device.info.limits.max_storage_buffer_range:
            return whole, first + span.start
        return array.window(span.start, span.count)

    def _descriptors(self, ranges: list[BufferRange]) -> object:
        if len(self._sets) % _SETS_PER_POOL == 0:
            self._pools.append(DescriptorPool(self._device.handle, _SETS_PER_POOL, _SETS_PER_POOL * _BINDINGS))
        layout = self._device.pipelines.layout(_BINDINGS, _PUSH.size)
        return self._pools[-1].allocate(layout.set_layout, ranges)

    def seal(self) -> None:
        """Let go of the arrays: what is recorded must not keep them alive."""
        self._source = self._target = None

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._pools.clear()
        self._commands.close()


class Executor:
    """Records programs for the ranks of one communicator."""

    def __init__(
        self, devices: Sequence[LogicalDevice], transports: Sequence[StagedTransport], group: GroupPort
    ) -> None:
        self._devices = devices
        self._transports = transports
        self._group = group

    def record(
        self, steps: Iterable[Step], wires: WirePlan, region: Region, operands: Operands, copies: Copies
    ) -> Program:
        """Record ``steps``, whose slots lie in ``region``, over ``operands``."""
        listed = list(steps)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, step in enumerate(listed):
            first.setdefault(step.rank, index)
            last[step.rank] = index
        with ExitStack() as undo:
            recorders = []
            for rank, source in enumerate(operands.sources):
                device, shared = self._devices[rank], self._transports[rank].shared()
                recorder = _Recorder(device, shared, region, wires, source, operands.targets[rank])
                undo.callback(recorder.close)
                recorders.append(recorder)
            batches = []
            for index, step in enumerate(listed):
                before = copies.before.get(step.rank) if first[step.rank] == index else None
                after = copies.after.get(step.rank) if last[step.rank] == index else None
                commands = recorders[step.rank].record(step, before, after)
                batches.append(Batch(step.rank, commands.handle, step.reads, step.writes))
            for recorder in recorders:
                recorder.seal()
            program = Program(recorders, batches, self._group.program(batches))
            undo.pop_all()
            return program
