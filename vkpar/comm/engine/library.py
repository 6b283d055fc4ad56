"""The recorded collectives of a communicator: found for a call, or recorded for it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from vkpar.comm.engine.cache import ProgramCache, Together
from vkpar.comm.record.builder import GENERATIONS, ProgramBuilder, Written
from vkpar.comm.record.entry import Entry, Template
from vkpar.comm.record.program import Program
from vkpar.comm.record.score import LaidScore
from vkpar.comm.requests import calls
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.forms import Form, form_of
from vkpar.comm.requests.keys import Call
from vkpar.comm.rig.rig import Rig
from vkpar.device import Device

_MOST_WRITTEN = 4096  # command buffers of all templates


@dataclass(slots=True)
class Asked:
    """A call that is put off.

    Attributes:
        key: the key of the call's recorded programs.
        entry: the programs recorded for an equal call before, which may be another call's by now.
        nretired: the cache's when the entry was found.
        request: the checked call; None where it, or one of its form, was checked before.
    """

    key: Hashable
    call: Call
    entry: Entry | None
    nretired: int
    request: Request | None


class Library:
    """The recorded collectives of one communicator; its engine's lock is held at every call.

    A call finds its entry by the memory that its arrays lie in. Where a call of the same form was recorded over other
    memory, nothing is checked or planned again: the form's template is recorded over the call's memory. Where the cache
    is full, it is recorded into the command buffers of an entry that has to go anyway.

    Attributes:
        spared: entries that a group under way is about to enqueue.
    """

    def __init__(self, devices: Sequence[Device], rig: Rig, builder: ProgramBuilder, cache: ProgramCache) -> None:
        self.spared: Collection[Entry] = ()
        self._devices, self._rig, self._builder, self._cache = devices, rig, builder, cache
        self._templates: dict[Hashable, Template] = {}  # by form, the oldest first
        self._ndropped = 0

    def find(self, key: Hashable) -> Entry | None:
        """Return what was recorded for the call of ``key``."""
        return self._cache.get(key) if self._builder.recorder.checks is None else None

    def check(self, call: Call) -> Request | None:
        """Check a call; return None where a call of its form was checked before.

        Raises:
            InvalidUsageError, UnsupportedError: as :func:`vkpar.comm.requests.calls.check` does.
        """
        return None if self._template(self._form(call)) else calls.check(self._devices, call)

    def record(self, key: Hashable, call: Call, turn: int, request: Request | None = None) -> Entry:
        """Record a call, for the communicator's collective number ``turn``, and keep it by its ``key``.

        Args:
            key: what identifies the call.
            call: its arrays are pinned.
            turn: the number of the collective.
            request: the checked call, where it was checked already.

        Raises:
            InvalidUsageError, UnsupportedError: as :func:`vkpar.comm.requests.calls.check` does.
            OutOfMemoryError: no room for command buffers or bounce buffers.
        """
        form = self._form(call)
        template = self._template(form)
        if form is None or template is None:
            request = request or calls.check(self._devices, call)
            entry = self._builder.entry(request, turn=turn, memory=form.memory if form else ())
            if form is not None and entry.template is not None:
                self._keep(form, entry.template)
        else:
            entry = self._recorded(template, call, turn, form)
        try:
            touches = calls.touches_of(call) if entry.programs else []
            for program in entry.programs.values():
                program.touch(touches)
            entry.blocks = frozenset(buffer.piece.block for buffer in form.memory) if form else frozenset()
            self._cache.add(key, entry)
        except BaseException:
            self._cache.discard(key, entry)  # an interrupt
            raise
        return entry

    def lay(self, call: Call, turn: int, written: dict[Hashable, Written]) -> LaidScore | None:
        """Lay a call over its memory for a graph, as its collective number ``turn``; None where there is nothing to do.

        Args:
            call: its arrays are pinned.
            turn: the number of the collective in the graph.
            written: scores of the graph's calls by form and turn; a new one is added.

        Raises:
            InvalidUsageError, UnsupportedError: as :func:`vkpar.comm.requests.calls.check` does.
            OutOfMemoryError: no room for descriptor sets or bounce buffers.
        """
        request = calls.check(self._devices, call)
        form = form_of(call)
        key = (form.key, turn % GENERATIONS)
        known = written.get(key)
        if known is not None:
            return known.score.lay(call.name, form.memory, known.plan)
        bounce_buffers, made = self._builder.plain_score(request, turn, form.memory)
        if made is None:
            return None
        if not bounce_buffers:
            written[key] = made
        return made.score.lay(call.name, form.memory, made.plan, bounce_buffers)

    def together(self, members: Sequence[Asked], turn: int, entries: list[Entry]) -> Together:
        """Return the programs of a group, found or recorded, for the collectives from number ``turn`` on.

        Args:
            members: the collectives.
            turn: the number of the first of them.
            entries: gets the members' entries; they stay as they are until all are found.

        Raises:
            OutOfMemoryError: no room for command buffers or bounce buffers.
        """
        looked = [member.entry for member in members]
        # What the members found is theirs where no entry was retired since the first of them looked.
        known = None not in looked and members[0].nretired == self._cache.nretired
        key = (turn % GENERATIONS, *map(id, looked))
        found = self._cache.together(key) if known else None
        if found is not None:
            return found
        self.sweep()
        self.spared = entries
        programs: list[Program | None] = []
        for number, member in enumerate(members, start=turn):
            entry = self.find(member.key)
            if entry is None or entry.used_up(programs):
                entry = self.record(member.key, member.call, number, member.request)
            entries.append(entry)
            program = entry.program(number, programs) if entry.programs else None
            if program is None and entry.programs:
                program = self.program(entry, member.call, number)
            programs.append(program)
        real = [program for program in programs if program is not None]
        port = self._cache.joined(real, self._builder.recorder.joined)
        port.touch([touch for program in real for touch in program.touches])
        made = Together(entries, programs, port, sum(program.batches for program in real))
        if known and members[0].nretired == self._cache.nretired and self._builder.recorder.is_plain:
            self._cache.add_together(key, made)
        return made

    def program(self, entry: Entry, call: object, turn: int) -> Program:
        """Record the program of ``turn`` that ``entry`` lacks, from the call that it was made for.

        Raises:
            OutOfMemoryError: no room for command buffers.
        """
        assert isinstance(call, Call), "entries that no call finds have all their programs"
        touches = next(iter(entry.programs.values())).touches
        if entry.template is None:
            program = self._builder.program(calls.check(self._devices, call), turn)
            entry.add(turn, program)
        else:
            form = form_of(call)
            self._write(entry.template, call, turn, form)
            program = entry.template.program(entry, turn, form.memory)
        program.touch(touches)
        self._cache.grew(entry)
        return program

    def _recorded(self, template: Template, call: Call, turn: int, form: Form) -> Entry:
        """Return an entry of ``template`` over the call's memory."""
        self._write(template, call, turn, form)
        entry = self._cache.donor(template, self.spared, self._rig.reached)
        if entry is None:
            return template.entry(turn, form.memory)
        entry.spare()
        template.program(entry, turn, form.memory)
        return entry

    def _write(self, template: Template, call: Call, turn: int, form: Form) -> None:
        """Write down the program of ``turn`` where ``template`` lacks it: from its draft, else from the call."""
        if not template.has(turn):
            draft = template.draft or self._builder.draft(calls.check(self._devices, call), form.memory)
            template.add(turn, draft(turn % GENERATIONS))

    def _form(self, call: Call) -> Form | None:
        """Return the form of a call; None where no template serves, or where the arguments are no arrays."""
        if not self._builder.recorder.is_plain:
            return None
        try:
            form = form_of(call)
            hash(form.key)
        except (AttributeError, TypeError):
            return None
        return form

    def _template(self, form: Form | None) -> Template | None:
        return None if form is None else self._templates.get(form.key)

    def _keep(self, form: Form, template: Template) -> None:
        self._templates[form.key] = template
        written = sum(kept.batches for kept in self._templates.values())
        while written > _MOST_WRITTEN and len(self._templates) > 1:
            written -= self._templates.pop(next(iter(self._templates))).batches

    def forget(self) -> None:
        """Plan and record every call anew from now on, because the rig's tuning has changed."""
        self._templates.clear()
        self._cache.retire_all()

    def sweep(self) -> None:
        """Free the entries that no call finds any more and that are done.

        Raises:
            InvalidUsageError: a device is closed.
        """
        ndropped = sum(device.allocator.ndropped for device in self._rig.devices)
        if ndropped != self._ndropped:
            self._cache.retire_gone()
            self._ndropped = ndropped
        if self._cache.has_stale:
            self._cache.sweep(self._rig.reached(), self._rig.confirm)
