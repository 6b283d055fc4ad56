"""Records schedules into command buffers: the one place where algorithms, wires and transports meet."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from vkpar.comm import lanes
from vkpar.comm.copying import CopyRecorder
from vkpar.comm.debug import SlotChecks, WireReports
from vkpar.comm.placement import Operands, Placement
from vkpar.comm.rig import Rig
from vkpar.comm.schedule import BLOCK, MOST_SOURCES, Forward, Reduce, Span, Step
from vkpar.comm.slots import Region
from vkpar.comm.timing import Collector, RankTimer, Stopwatch, timers_of
from vkpar.comm.verbatim import Copier
from vkpar.comm.wires import OPS, TEXELS, WirePlan, processor, variant
from vkpar.vulkan.buffer import BufferRange
from vkpar.vulkan.command import CommandBuffer, CommandPool, DescriptorPool
from vkpar.vulkan.pump import Batch, ProgramPort

_UNIT = 16  # bytes that the wire kernels count slots in
_BLOCKS_PER_GROUP = 8  # of both kernel variants, see shaders/wire_*.comp
# Work-groups of a GPU's kernel. With so few, all of them reading at first and writing at last is no matter: measured on
# H200s a link carries 33 GB/s each way with 64 to 132 of them, 28 with 16 and 24 with all at once.
_MOST_GROUPS = 64
_PUSH_WORDS = 7 + MOST_SOURCES
_PUSH = struct.Struct(f"<{_PUSH_WORDS}I")
_SETS_PER_POOL = 32
_BINDINGS = 4

# For tests: what a step waits for besides, a semaphore of its rank's device and a value.
Gates = Callable[[Step], "tuple[Any, int] | None"]


@dataclass(frozen=True)
class Arithmetic:
    """How the kernels of a program read, sum and write.

    Attributes:
        order: how max and min compare, see :func:`vkpar.comm.wires.order`.
        contributors: what an average divides by.
    """

    plan: WirePlan
    op: str = "sum"
    order: int = 0
    contributors: int = 1

    def constants(self, action: Reduce) -> tuple[int, ...]:
        """Return the specialization constants that ``action`` asks for; a single term is not compared."""
        terms = len(action.sources) + (action.own_at is not None)
        several = terms > 1
        return (
            len(action.sources),
            int(action.own_at is not None),
            int(action.to_array),
            int(action.out_slot is not None),
            OPS[self.op] if several else 0,
            int(self.op == "avg" and action.finishes),
            self.order if several and self.op in ("max", "min") else 0,
        )

    @property
    def factor_bits(self) -> int:
        """The float32 bits of what an average is multiplied by."""
        bits: int = struct.unpack("<I", struct.pack("<f", 1.0 / self.contributors))[0]
        return bits


class Program:
    """A recorded collective, submitted as often as wanted.

    Attributes:
        batches: number of command buffers; ``phases[i]`` says what each of lane i's is for.
        values: each lane's timeline value of the last submission, 0 where it has no part.
        starts: the value that each lane's timeline has when nothing else keeps its first batch from running.
        watch: takes the steps' times; None outside profiles.
    """

    def __init__(
        self,
        recorders: Sequence[_Recorder | CopyRecorder],
        steps: Sequence[Step],
        listed: Sequence[Batch],
        port: Any,
        watch: Stopwatch | None = None,
    ):
        self._recorders = recorders
        self.watch = watch
        self._port: ProgramPort = port
        self.listed = tuple(listed)
        nlanes = len(port.last())
        self.phases = tuple(tuple(step.phase for step in steps if step.rank == lane) for lane in range(nlanes))
        self._counts = [len(phases) for phases in self.phases]
        self._idle = 0 in self._counts
        self.batches = len(listed)
        self.values = [0] * nlanes
        self.starts = [0] * nlanes
        self._noted = True

    @property
    def uses_slots(self) -> list[bool]:
        """Say of every batch whether it reads or writes a slot."""
        return [bool(batch.reads or batch.writes) for batch in self.listed]

    def enqueue(self) -> None:
        """Submit every batch in one step that cannot be interrupted half-way."""
        self.expect()
        self.note(self._port.enqueue())

    def expect(self) -> None:
        """Count as pending until :meth:`note`: an interrupt can come right after the submits."""
        self._noted = False

    def note(self, values: Sequence[int]) -> None:
        """Remember what a submission will signal: ``values`` by lane, 0 or any value where it has no batch."""
        if self._idle:
            values = [value if number else 0 for value, number in zip(values, self._counts, strict=True)]
        self.values = list(values)
        self.starts = list(map(operator.sub, values, self._counts))
        self._noted = True

    def pending(self) -> list[int]:
        """Return, by lane, a timeline value at which no submission is pending any more."""
        return self.values if self._noted else self._port.last()

    def close(self, late: Collection[int] = ()) -> None:
        """Free the command buffers but for those of ``late`` ranks; the last submission must be done on the others."""
        if self.watch is not None:
            self.watch.close(late)
        self._port.close()
        for recorder in self._recorders:
            if recorder.rank not in late:
                recorder.close()


class _Recorder:
    """Records one rank's kernels of one program; ``timer`` has their times written, where it is given.

    ``copies`` says that they work on the rank's own copies of the slots.
    """

    def __init__(
        self,
        executor: Executor,
        rank: int,
        region: Region,
        doing: Arithmetic,
        operands: Operands,
        timer: RankTimer | None = None,
        *,
        copies: bool = False,
    ) -> None:
        self.timer = timer
        self._device = executor.rig.devices[rank]
        self._copies = copies
        self._nslots = executor.rig.arena.nslots
        self._slots = (executor.rig.own_slots if copies else executor.rig.transports)[rank].shared()
        self._report = executor.reports.range(rank) if executor.reports else None
        self._checks = executor.checks
        self.rank = rank
        self._region = region
        self._doing = doing
        self._operands: Operands | None = operands
        self._commands = CommandPool(self._device.handle, self._device.compute.family)
        self._pools: list[DescriptorPool] = []
        self._sets: dict[tuple[BufferRange, ...], Any] = {}
        self._processor = processor(self._device.info)
        self._texels = TEXELS if self._processor == "texel" else 0
        is_cpu = self._device.info.is_cpu
        self._copier = Copier(doing.plan, operands, rank, self._bytes_of) if is_cpu else None
        self._tail = doing.plan.tail_at(region.slot_nbytes) // _UNIT

    def record(self, step: Step, *, first: bool, last: bool) -> CommandBuffer:
        """Return a reusable command buffer that does ``step``, with the rank's copies around all of them."""
        assert self._operands is not None
        copies = self._operands.copies
        commands = self._commands.allocate()
        commands.begin(reusable=True)
        if self.timer:
            self.timer.record_begin(commands)
        commands.record_acquire(self._slots, self._ranges(step.reads))
        for source, target in copies.before.get(self.rank, ()) if first else ():
            commands.record_copy(source, target)
        if first and self.rank in copies.before:
            commands.record_order()
        if self._checks:
            self._checks.record_before(self, commands, step)
        self._record_actions(commands, step)
        if self._checks:
            self._checks.record_after(self, commands, step)
        if last and self.rank in copies.after:
            commands.record_order()
            for source, target in copies.after[self.rank]:
                commands.record_copy(source, target)
        commands.record_release(self._slots, self._ranges(step.writes))
        if self.timer:
            self.timer.record_end(commands)
        commands.end()
        return commands

    def _record_actions(self, commands: CommandBuffer, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Reduce):
                left = self._copier.record_reduce(commands, action) if self._copier else action
                if left is not None:
                    self._record_reduce(commands, left)
            elif isinstance(action, Forward) and not (self._copier and self._copier.record_forward(commands, action)):
                self._record_forward(commands, action)
        if self._copier:
            self._copier.record_late(commands)

    def _record_reduce(self, commands: CommandBuffer, action: Reduce) -> None:
        plan = self._doing.plan
        out = plan.final if action.final else plan.contribution
        formats = f"{plan.element}_{plan.contribution.name}_{out.name}"
        operands = self._operands
        assert operands is not None
        own = (operands.targets if action.own_stored else operands.sources)[self.rank]
        source = self._window(own, action.span) if action.own_at is not None else None
        target = self._window(operands.targets[self.rank], action.span) if action.to_array else None
        descriptors, source_at, target_at = self._bind(source, target)
        push = (
            source_at,
            target_at,
            self._tail,
            self._unit(action.out_slot),
            self._doing.factor_bits,
            *(self._unit(slot) for slot in action.sources),
        )
        constants = (*self._doing.constants(action), int(self._report is not None), action.own_at or 0)
        kernel = f"wire_reduce_{self._processor}_{formats}"
        ending = variant(constants[4], measure=self._report is not None)
        self._dispatch(commands, (kernel, ending), constants, descriptors, push, action.span)

    def _record_forward(self, commands: CommandBuffer, action: Forward) -> None:
        plan = self._doing.plan
        assert self._operands is not None
        target = self._window(self._operands.targets[self.rank], action.span)
        descriptors, _, target_at = self._bind(None, target)
        push = (target_at, self._tail, self._unit(action.slot), self._unit(action.out_slot))
        kernel = f"wire_forward_{self._processor}_{plan.element}_{plan.final.name}"
        self._dispatch(commands, (kernel, ""), (1, int(action.out_slot is not None)), descriptors, push, action.span)

    def _dispatch(
        self,
        commands: CommandBuffer,
        kernel: tuple[str, str],
        constants: tuple[int, ...],
        descriptors: Any,
        push: tuple[int, ...],
        span: Span,
    ) -> None:
        """Record the whole blocks, then a block that is cut short: only that launch pays for the checks."""
        whole = span.count // BLOCK
        launches = (("whole", 0, whole, whole * BLOCK), ("tail", whole, span.blocks - whole, span.count))
        for part, first, number, count in launches:
            if number:
                name = f"{kernel[0]}_{part}{kernel[1]}"
                pipeline = self._device.pipelines.shipped(name, _BINDINGS, _PUSH.size, constants, self._texels)
                words = (count, first, *push)
                packed = _PUSH.pack(*words, *([0] * (_PUSH_WORDS - len(words))))
                commands.record_dispatch(pipeline, descriptors, packed, (self._groups(number), 1, 1))

    def _groups(self, blocks: int) -> int:
        groups = -(-blocks // _BLOCKS_PER_GROUP)
        return min(groups, _MOST_GROUPS) if self._processor == "gpu" else groups

    def record_small(self, commands: CommandBuffer, kernel: str, push: bytes) -> None:
        """Record one work-group of a kernel that binds the slots alone, ordered against what is around it."""
        pipeline = self._device.pipelines.shipped(kernel, 1, len(push))
        descriptors = self._descriptors((self._slots.range,), pipeline.layout)
        commands.record_order()
        commands.record_dispatch(pipeline, descriptors, push, (1, 1, 1))
        commands.record_order()

    def _ranges(self, slots: Sequence[int]) -> list[BufferRange]:
        """Return where shared ``slots`` lie; the whole of the staging memory where checks touch more than that."""
        if self._copies:
            return []
        if self._checks:
            return [self._slots.range]
        whole, nbytes = self._slots.range, self._region.stride
        return [BufferRange(whole.buffer, whole.offset + self._region.byte_of(slot), nbytes) for slot in slots]

    def _unit(self, slot: int | None) -> int:
        return 0 if slot is None else self._region.byte_of(slot % self._nslots) // _UNIT

    def _bytes_of(self, slot: int, nbytes: int) -> BufferRange:
        whole = self._slots.range
        return BufferRange(whole.buffer, whole.offset + self._unit(slot) * _UNIT, nbytes)

    def _window(self, placement: Placement, span: Span) -> tuple[BufferRange, int]:
        """Return a bindable range that holds ``span``, and the index of its first element there."""
        array, at = placement.find(span.start)
        whole, first = array.window()
        if whole.nbytes <= self._device.info.limits.max_storage_buffer_range:
            return whole, first + at
        return array.window(at, span.count)

    def _bind(
        self, source: tuple[BufferRange, int] | None, target: tuple[BufferRange, int] | None
    ) -> tuple[Any, int, int]:
        """Return the descriptor set, and the first element's index in source and target; the slots fill in."""
        unused = (self._slots.range, 0)
        source, target = source or target or unused, target or source or unused
        ranges = (source[0], target[0], self._slots.range, self._report or self._slots.range)
        layout = self._device.pipelines.layout(_BINDINGS, _PUSH.size, self._texels)
        texels = (source[0], self._slots.range)[: self._texels]
        return self._descriptors(ranges, layout, texels), source[1], target[1]

    def _descriptors(self, ranges: tuple[BufferRange, ...], layout: Any, texels: Sequence[BufferRange] = ()) -> Any:
        if ranges not in self._sets:
            if len(self._sets) % _SETS_PER_POOL == 0:
                numbers = (_SETS_PER_POOL, _SETS_PER_POOL * _BINDINGS, _SETS_PER_POOL * self._texels)
                self._pools.append(DescriptorPool(self._device.handle, *numbers))
            self._sets[ranges] = self._pools[-1].allocate(layout.set_layout, list(ranges), texels)
        return self._sets[ranges]

    def seal(self) -> None:
        """Let go of the arrays: what is recorded must not keep them alive."""
        self._operands = self._copier = None

    def close(self) -> None:
        """Free the command buffers and descriptor sets."""
        while self._pools:
            self._pools.pop().close()
        if self.timer:
            self.timer.close()
        self._commands.close()


class Executor:
    """Records programs for the ranks of one communicator.

    Attributes:
        reports: where kernels write what the wire loses; None where that is not measured.
        checks: the generations of the slots; None where they are not checked.
        gates: for tests, what steps wait for besides.
        collector: takes the times of what is recorded; None outside profiles.
    """

    def __init__(self, rig: Rig, reports: WireReports | None = None, checks: SlotChecks | None = None) -> None:
        self.rig = rig
        self.reports = reports
        self.checks = checks
        self.gates: Gates | None = None
        self.collector: Collector | None = None

    def record(
        self,
        steps: Iterable[Step],
        doing: Arithmetic,
        region: Region,
        operands: Operands,
        *,
        copies: bool = False,
    ) -> Program:
        """Record ``steps``, whose slots lie in ``region``, over ``operands``.

        Args:
            steps: by rank, in one global order.
            doing: what the kernels do.
            region: the slots.
            operands: the arrays.
            copies: have copy queues move the slots around the kernels; the rig was opened for that.

        Raises:
            UnsupportedError: in a profile, a copy queue without timestamps.
        """
        listed = list(steps)
        busy = {step.rank for step in listed}
        listed += [Step(rank, "copy", ()) for rank in sorted(operands.copies.ranks - busy)]
        if copies:
            listed = list(lanes.through_copies(listed, self.rig.lanes, self.rig.arena.nslots))
        keys = [(step.rank, lanes.copies(step)) for step in listed]
        first: dict[tuple[int, bool], int] = {}
        last: dict[tuple[int, bool], int] = {}
        for index, key in enumerate(keys):
            first.setdefault(key, index)
            last[key] = index
        with ExitStack() as undo:
            recorders: dict[tuple[int, bool], _Recorder | CopyRecorder] = {}
            timers = timers_of(listed, self.rig, undo) if self.collector else {}
            batches = []
            for index, (key, step) in enumerate(zip(keys, listed, strict=True)):
                lane, timer = step.rank, timers.get(step.rank)
                if key not in recorders:
                    recorders[key] = (
                        CopyRecorder(self.rig, lane, region, doing.plan, timer)
                        if lanes.copies(step)
                        else _Recorder(self, lane, region, doing, operands, timer, copies=copies)
                    )
                    undo.callback(recorders[key].close)
                commands = recorders[key].record(step, first=first[key] == index, last=last[key] == index)
                gate = self.gates(step) if self.gates else None
                batches.append(Batch(lane, commands.handle, step.reads, step.writes, gate))
            for recorder in recorders.values():
                recorder.seal()
            port = self.rig.group.program(batches)
            undo.pop_all()
            ranks = self.rig.lanes.ranks
            watch = self.collector.stopwatch(listed, doing.plan, timers, ranks) if self.collector else None
            return Program(list(recorders.values()), listed, batches, port, watch)

    def joined(self, programs: Sequence[Program]) -> ProgramPort:
        """Return a program of the pump's that submits several at once; close it after use."""
        return self.rig.group.program([batch for program in programs for batch in program.listed])
