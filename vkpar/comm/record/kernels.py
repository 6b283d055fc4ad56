"""Writes down one rank's kernels: what each action of a schedule binds, pushes and dispatches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from vkpar.abi import wire as abi
from vkpar.abi.words import pack, padded, width
from vkpar.comm.record.checks import SlotChecks
from vkpar.comm.record.plain_copies import Copier
from vkpar.comm.record.slow import SlowRoad
from vkpar.comm.requests.operands import Operands, Placement, Window
from vkpar.comm.rig.arena import Slab
from vkpar.comm.rig.rig import Rig
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES, Action, Forward, Reduce, Span, Step
from vkpar.comm.wires import OPS, TEXELS, WirePlan, processor, variant
from vkpar.graph.protocol import WireSend, WireStore
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import BufferRange, SharedBuffer
from vkpar.vulkan.stamps import Marks
from vkpar.vulkan.tape import Places, Tape, TapedCommands

_UNIT = 16  # bytes that the wire kernels count slots in
_BLOCKS_PER_GROUP = 8  # of both kernel variants, see shaders/wire_*.comp
# Work-groups of a GPU's kernel. With so few, all of them reading at first and writing at last is no matter: measured on
# H200s a link carries 33 GB/s each way with 64 to 132 of them, 28 with 16 and 24 with all at once.
_MOST_GROUPS = 64
_PUSH_NBYTES = 4 * width(abi.Reduce)  # of all wire kernels, so that they share a layout
_BINDINGS = 3
_WORD = 1 << 32

_Words = TypeVar("_Words", abi.Reduce, abi.Forward)


@dataclass(frozen=True)
class ReduceSpec:
    """What a reduction does, and the formats that its kernels read and write.

    Attributes:
        plan: the formats; of a movement of data too.
        op: the operation (NCCL's redop).
        order: what integers' bits mean, see :func:`vkpar.comm.wires.order`.
        divisor: what an average divides by: the number of ranks that contribute.
    """

    plan: WirePlan
    op: str = "sum"
    order: int = 0
    divisor: int = 1

    def constants(self, action: Reduce) -> abi.ReduceConstants:
        """Return the specialization constants that ``action`` asks for; a single term is not compared."""
        terms = len(action.sources) + (action.own_at is not None)
        several = terms > 1
        return abi.ReduceConstants(
            sources=len(action.sources),
            has_own=int(action.own_at is not None),
            to_array=int(action.to_array),
            to_slot=int(action.out_slot is not None),
            op=OPS[self.op] if several else 0,
            average=int(self.op == "avg" and action.finishes),
            order=self.order if (several and self.op in ("max", "min")) or self.divides(action) else 0,
            own_at=action.own_at or 0,
        )

    def divides(self, action: Reduce) -> bool:
        """Say whether ``action`` finishes an average of integers."""
        return self.op == "avg" and action.finishes and self.plan.moves

    @property
    def factor_words(self) -> tuple[int, int]:
        """The bits of the factor that makes an average of a sum of floats; for integers, the divisor."""
        if self.plan.moves:
            return self.divisor, 0
        factor = 1.0 / self.divisor
        packed = struct.pack("<d", factor) if self.plan.element == "f64" else struct.pack("<f4x", factor)
        low, high = struct.unpack("<2I", packed)
        return low, high


class Recorder:
    """Writes down one rank's kernels of one program; ``timer`` has their times written, where it is given.

    ``copies`` says that they work on the rank's own copies of the slots; ``places`` numbers the memory of the arrays.

    Attributes:
        rank: the rank; ``tape``: what was written down; ``timer``: as it was given.
    """

    _most_groups = _MOST_GROUPS

    def __init__(
        self,
        rig: Rig,
        rank: int,
        slab: Slab,
        spec: ReduceSpec,
        operands: Operands,
        timer: Marks | None = None,
        *,
        copies: bool = False,
        checks: SlotChecks | None = None,
        places: Places | None = None,
    ) -> None:
        self.timer = timer
        self._device = rig.devices[rank]
        self._copies = copies
        self._slots, self._nslots = self._place(rig, rank)
        self._checks = checks
        self.rank = rank
        self._slab = slab
        self._spec = spec
        self._operands = operands
        self.tape = Tape(self._device.handle, rig.pools[rank], places)
        self._slow = None if copies else SlowRoad.of(rig, rank, slab, spec.plan, self._slots.range)
        self._processor = processor(self._device.info)
        self._texels = TEXELS if self._processor == "texel" else 0
        verbatim = spec.plan.is_verbatim(spec.plan.contribution) or spec.plan.is_verbatim(spec.plan.final)
        bytes_of = _bytes_of(self._slots.range, slab, self._nslots)
        self._copier = Copier(spec.plan, operands, rank, bytes_of) if verbatim and self._device.info.is_cpu else None
        self._factor_words = spec.factor_words
        self._tail = spec.plan.tail_at(slab.slot_nbytes) // _UNIT
        # What programs over other slots have in common.
        self._ways: dict[tuple[Any, ...], tuple[tuple[str, str], abi.ReduceConstants]] = {}
        self._cuts: dict[tuple[int, ...], list[_Run]] = {}
        self._bound: dict[tuple[Any, ...], tuple[Any, int, int]] = {}

    def _place(self, rig: Rig, rank: int) -> tuple[SharedBuffer, int]:
        """Return the memory in which the rank's kernels have the slots, and the number with which slots begin anew."""
        return (rig.own_slots if self._copies else rig.transports)[rank].shared(), rig.arena.nslots

    def record(self, step: Step, *, first: bool, last: bool) -> None:
        """Write down a command buffer that does ``step``, with the rank's copies around all of them."""
        copies = self._operands.copies
        commands = self.tape.commands()
        if self.timer:
            self.timer.record_begin(commands)
        commands.record_acquire(self._slots, self._ranges(step.reads))
        for source, target in copies.before.get(self.rank, ()) if first else ():
            commands.record_copies(source, target)
        if first and self.rank in copies.before:
            commands.record_order()
        if self._checks:
            self._checks.record_before(self, commands, step)
        if self._slow:
            self._slow.record(commands, step)
        start = len(commands.commands)
        self._record_step(commands, step)
        self._note(commands, step, start)
        if self._checks:
            self._checks.record_after(self, commands, step)
        if last and self.rank in copies.after:
            commands.record_order()
            for source, target in copies.after[self.rank]:
                commands.record_copies(source, target)
        commands.record_release(self._slots, self._ranges(step.writes))
        if self.timer:
            self.timer.record_end(commands)

    def _note(self, commands: TapedCommands, step: Step, first: int) -> None:
        """Tell the tape what the step's kernels do, from command ``first`` on, where a graph may put others there."""
        action = step.actions[0] if len(step.actions) == 1 and not self._operands.copies.ranks else None
        plan = self._spec.plan
        plain = not (self._checks or self._copies or self._slow or self.timer)
        if not isinstance(action, Reduce) or not plain or self._processor != "gpu" or plan.element != "f32":
            return
        if action.own_at is None or not action.to_array or action.final:
            return
        runs = self._runs(action.span, *self._ends(action))
        if len(runs) != 1 or runs[0].source is None or runs[0].target is None:
            return
        where = (first, len(commands.commands))
        if action.out_slot is None:
            self._note_stored(action, runs[0], where)
        elif not action.sources and not action.own_stored:
            unit, name = self._unit(action.out_slot), plan.contribution.name
            sent = WireSend(name, action.span.count, self._slots.range.bare, unit, self._tail)
            self.tape.note(sent, (_from(runs[0].source), _from(runs[0].target)), where)

    def _note_stored(self, action: Reduce, run: _Run, where: tuple[int, int]) -> None:
        plan, constants = self._spec.plan, self._spec.constants(action)
        if variant(constants.op) or run.source is None or run.target is None:
            return
        words = self._words(action)._replace(source_at=run.source[1], target_at=run.target[1])
        name = plan.contribution.name
        stored = WireStore(name, action.span.count, constants, tuple(self._launches(run, words)))
        ranges = (run.source[0], run.target[0], self._slots.range)
        self.tape.note(stored, (_from(run.target), *ranges), where)

    def _record_step(self, commands: CommandBuffer, step: Step) -> None:
        self._record_actions(commands, step.actions)

    def _record_actions(self, commands: CommandBuffer, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Reduce):
                left = self._copier.record_reduce(commands, action) if self._copier else action
                if left is not None:
                    self._record_reduce(commands, left)
            elif isinstance(action, Forward) and not (self._copier and self._copier.record_forward(commands, action)):
                self._record_forward(commands, action)
        if self._copier:
            self._copier.record_late(commands)

    def _record_reduce(self, commands: CommandBuffer, action: Reduce) -> None:
        source, target = self._ends(action)
        kernel, constants = self._way(action)
        words = self._words(action)
        for run in self._runs(action.span, source, target):
            descriptors, source_at, target_at = self._bind(run)
            placed = words._replace(source_at=source_at, target_at=target_at)
            self._dispatch(commands, kernel, constants, descriptors, placed, run)

    def _ends(self, action: Reduce) -> tuple[Placement | None, Placement | None]:
        """Return where an action has the own elements, and where it stores its result."""
        operands = self._operands
        own = (operands.targets if action.own_stored else operands.sources)[self.rank]
        return own if action.own_at is not None else None, operands.targets[self.rank] if action.to_array else None

    def _groups_of(self, action: Reduce) -> list[int]:
        """Return the work-groups of the launches that do an action."""
        runs, words = self._runs(action.span, *self._ends(action)), self._words(action)
        return [groups for run in runs for _, _, (groups, _, _) in self._launches(run, words)]

    def _way(self, action: Reduce) -> tuple[tuple[str, str], abi.ReduceConstants]:
        """Return the beginning and the end of the kernel's name, and its constants; not by which slots it works on."""
        key = (len(action.sources), action.own_at, action.to_array, action.out_slot is None, action.final)
        found = self._ways.get(key)
        if found is None:
            plan, constants = self._spec.plan, self._spec.constants(action)
            out = plan.final if action.final else plan.contribution
            ending = variant(constants.op, self._spec.divides(action))
            name = f"wire_reduce_{self._processor}_{plan.element}_{plan.contribution.name}_{out.name}"
            found = self._ways[key] = (name, ending), constants
        return found

    def _words(self, action: Reduce) -> abi.Reduce:
        """Return the push constants of an action, but for those of a launch."""
        slots = padded([self._unit(slot) for slot in action.sources], MOST_SOURCES)
        return abi.Reduce(0, 0, 0, 0, self._tail, self._unit(action.out_slot), self._factor_words, slots)

    def _record_forward(self, commands: CommandBuffer, action: Forward) -> None:
        plan = self._spec.plan
        words = abi.Forward(0, 0, 0, self._tail, self._unit(action.slot), self._unit(action.out_slot))
        constants = abi.ForwardConstants(1, int(action.out_slot is not None))
        kernel = f"wire_forward_{self._processor}_{plan.forwarded}_{plan.final.name}"
        for run in self._runs(action.span, None, self._operands.targets[self.rank]):
            descriptors, _, target_at = self._bind(run)
            self._dispatch(commands, (kernel, ""), constants, descriptors, words._replace(target_at=target_at), run)

    def _runs(self, span: Span, source: Placement | None, target: Placement | None) -> list[_Run]:
        """Cut ``span`` into whole blocks of which one binding each covers source and target, where they are given."""
        key = (span.start, span.count, id(source), id(target))  # places of the operands, which stay
        found = self._cuts.get(key)
        if found is None:
            found = self._cuts[key] = list(_runs(span, source, target))
        return found

    def _dispatch(
        self,
        commands: CommandBuffer,
        kernel: tuple[str, str],
        constants: tuple[int, ...],
        descriptors: Any,
        words: _Words,
        run: _Run,
    ) -> None:
        for part, placed, groups in self._launches(run, words):
            name = f"{kernel[0]}_{part}{kernel[1]}"
            pipeline = self._device.pipelines.shipped(name, _BINDINGS, _PUSH_NBYTES, constants, self._texels)
            commands.record_bound(pipeline, descriptors, pack(placed).ljust(_PUSH_NBYTES, b"\0"), groups)

    def _launches(self, run: _Run, words: _Words) -> Iterator[tuple[str, _Words, tuple[int, int, int]]]:
        """Yield the whole blocks, then a block that is cut short: only that launch pays for the checks."""
        whole = run.end // BLOCK
        launches = (
            ("whole", run.first, whole - run.first, whole * BLOCK),
            ("tail", whole, run.first + run.blocks - whole, run.end),
        )
        for part, first, number, end in launches:
            if number:
                yield part, words._replace(count_=end, first_block=first), (self._groups(number), 1, 1)

    def _groups(self, blocks: int) -> int:
        groups = -(-blocks // _BLOCKS_PER_GROUP)
        return min(groups, self._most_groups) if self._processor == "gpu" else groups

    def record_small(self, commands: CommandBuffer, kernel: str, push: bytes) -> None:
        """Record one work-group of a kernel that binds the slots alone, ordered against what is around it."""
        pipeline = self._device.pipelines.shipped(kernel, 1, len(push))
        descriptors = self.tape.descriptors(pipeline.layout.set_layout, (self._slots.range,))
        order = commands.record_order if self._copier else commands.record_kernel_order
        order()
        commands.record_bound(pipeline, descriptors, push, (1, 1, 1))
        order()

    def _ranges(self, slots: Sequence[int]) -> list[BufferRange]:
        """Return where shared ``slots`` lie; the whole of the staging memory where checks touch more than that."""
        if self._copies:
            return []
        if self._checks:
            return [self._slots.range]
        whole, nbytes, starts = self._slots.range, self._slab.stride, self._slab.starts
        return [BufferRange(whole.buffer, whole.offset + starts[slot], nbytes) for slot in slots]

    def _unit(self, slot: int | None) -> int:
        return 0 if slot is None else self._slab.starts[slot % self._nslots] // _UNIT

    def _bind(self, run: _Run) -> tuple[Any, int, int]:
        """Return the tape's descriptor set, and where in source and target the span's first element would be.

        These two are modulo 2^32. Kernels count from that one. What is not given is filled in.
        """
        key = (run.first, run.source, run.target)
        if key in self._bound:
            return self._bound[key]
        unused = (self._slots.range, 0)
        source, target = run.source or run.target or unused, run.target or run.source or unused
        ranges = (source[0], target[0], self._slots.range)
        layout = self._device.pipelines.layout(_BINDINGS, _PUSH_NBYTES, self._texels)
        texels = (source[0], self._slots.range)[: self._texels]
        skipped = run.first * BLOCK
        descriptors = self.tape.descriptors(layout.set_layout, ranges, texels)
        found = self._bound[key] = descriptors, (source[1] - skipped) % _WORD, (target[1] - skipped) % _WORD
        return found


def _runs(span: Span, source: Placement | None, target: Placement | None) -> Iterator[_Run]:
    first, every, places = 0, span.blocks, {source, target}
    while first < every:
        at, left = span.start + first * BLOCK, span.count - first * BLOCK
        reached = min((place.reach(at) for place in places if place is not None), default=left)
        blocks = every - first if reached >= left else reached // BLOCK
        count = min(left, blocks * BLOCK)
        windows = {place: None if place is None else place.window(at, count) for place in places}
        yield _Run(first, blocks, first * BLOCK + count, windows[source], windows[target])
        first += blocks


def _from(window: Window) -> BufferRange:
    """Return what a window of float32 covers from its first element on."""
    item, first = window
    return BufferRange(item.buffer, item.offset + 4 * first, item.nbytes - 4 * first)


class _Run(NamedTuple):
    """Some blocks of a span.

    Attributes:
        first: the first of them, of the span's.
        blocks: how many.
        end: the elements of the span up to their last one.
        source: a range that holds them, and the first one's index there; ``target`` likewise.
    """

    first: int
    blocks: int
    end: int
    source: Window | None
    target: Window | None


def _bytes_of(slots: BufferRange, slab: Slab, nslots: int) -> Callable[[int, int], BufferRange]:
    """Return a function of a slot and a length in bytes that names so much from the slot's start.

    The function knows no recorder: a circle of references would keep the arrays until Python looks for circles.
    """
    return lambda slot, nbytes: BufferRange(slots.buffer, slots.offset + slab.byte_of(slot % nslots), nbytes)
