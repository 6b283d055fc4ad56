"""Copies in place of kernels, for elements that slots hold just as arrays do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vkpar.comm.requests.operands import Operands, RangeCopy
from vkpar.comm.schedule.steps import Forward, Reduce, Span
from vkpar.comm.wires import WirePlan
from vkpar.vulkan.command import CommandBuffer
from vkpar.vulkan.memory.buffer import BufferRange


class Copier:
    """Records one rank's actions that plain copies can do: CPU drivers copy many times as fast as they run kernels."""

    def __init__(
        self, plan: WirePlan, operands: Operands, rank: int, bytes_of: Callable[[int, int], BufferRange]
    ) -> None:
        self._plan = plan
        self._operands = operands
        self._rank = rank
        self._bytes_of = bytes_of
        self._late: list[RangeCopy] = []

    def record_reduce(self, commands: CommandBuffer, action: Reduce) -> Reduce | None:
        """Record ``action``, or return the part that a kernel must do; :meth:`record_late` records the rest."""
        form = self._plan.final if action.final else self._plan.contribution
        if action.out_slot is None or not self._plan.is_verbatim(form):
            return action
        if self._only_sends(action):
            self._record_publish(commands, action)
            return None
        if action.to_array and action.final:
            stored = self._stored(action.span)
            self._late.append((stored, self._slot(action.out_slot, stored)))
            return replace(action, out_slot=None)
        return action

    def _only_sends(self, action: Reduce) -> bool:
        """Say whether the rank's own elements travel as they are.

        Contributions may hold NaNs of any kind; the NaNs of finished sums are of one kind.
        """
        alone = action.own_at is not None and not action.sources
        return alone and (not action.finishes or self._plan.moves)

    def _record_publish(self, commands: CommandBuffer, action: Reduce) -> None:
        assert action.out_slot is not None
        own = self._operands.sources[self._rank].ranges(action.span)
        commands.record_copies(own, self._slot(action.out_slot, own))
        stored = self._stored(action.span) if action.to_array else own
        if stored != own:
            commands.record_copies(own, stored)

    def record_forward(self, commands: CommandBuffer, action: Forward) -> bool:
        """Record ``action`` if copies can do it, and say so."""
        if not self._plan.is_verbatim(self._plan.final):
            return False
        stored = self._stored(action.span)
        arrived = self._slot(action.slot, stored)
        commands.record_copies(arrived, stored)
        if action.out_slot is not None:
            commands.record_copies(arrived, self._slot(action.out_slot, stored))
        return True

    def record_late(self, commands: CommandBuffer) -> None:
        """Record the copies of elements that the kernels before have stored."""
        if self._late:
            commands.record_order()
        for stored, sent in self._late:
            commands.record_copies(stored, sent)
        self._late.clear()

    def _stored(self, span: Span) -> list[BufferRange]:
        return self._operands.targets[self._rank].ranges(span)

    def _slot(self, slot: int, elements: list[BufferRange]) -> list[BufferRange]:
        return [self._bytes_of(slot, sum(part.nbytes for part in elements))]
