"""Plans: what a call of an operation comes down to, kept for the next call on arrays of the same form.

A plan is found by the forms of the operands alone (:mod:`vkpar.arrays.forms`). What else a call has to look at, it
looks at each time: whether the arrays can be used (:attr:`vkpar.arrays.storage.Storage.ready`), and whether they share
memory. Where anything is amiss the call goes the long way, which checks everything and says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from vkpar.arrays.array import Array
from vkpar.arrays.forms import Form, form_of
from vkpar.vulkan import bulk
from vkpar.vulkan.pump import native
from vkpar.vulkan.pump.ledger import BOUND, PLACES, READS, REPLACES
from vkpar.vulkan.stream import Binding

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline

_NUMBER_LAST: Final = [0, 1, 1]  # the order of an array, a number and a result: what is bound for a number is not read


class Plan:
    """A dispatch that lacks nothing but the arrays' addresses.

    Args:
        stream: of the device.
        dispatch: the stream's plan.
        pipeline: its kernel.
        forms: of the arrays, in the order in which the operation takes them, its results last.
        swapped: the first two bindings are the second and the first of them.
        results: how many of the forms are those of results.

    Attributes:
        order: of :meth:`apply`, which operand or result each binding has; None for all in order.
        words: what the caller keeps to make push constants of.
    """

    __slots__ = (
        "_dispatch",
        "_entry",
        "_handle",
        "_held",
        "_meeting",
        "_null",
        "_pack",
        "_pipeline",
        "_result",
        "_results",
        "_stream",
        "_swapped",
        "_tail",
        "_watched",
        "order",
        "words",
    )

    def __init__(
        self,
        stream: Any,
        dispatch: Any,
        pipeline: Pipeline,
        forms: Sequence[Form],
        *,
        swapped: bool = False,
        results: int = 1,
    ) -> None:
        self._stream, self._dispatch = stream, dispatch
        self._pipeline = pipeline  # it lives as long as the plan
        self._entry, self._handle, self._null = stream.entry, stream.handle, stream.null
        self.order: Sequence[int] | None = None
        self.words: Any = None
        self._pack = struct.Struct(f"={2 * len(forms)}Q").pack
        result = self._result = forms[-1]
        self._results = tuple(forms[len(forms) - results :])
        # Bytes of an operand and of the result meet where the result's first element lies between these, both excluded,
        # counted from the operand's.
        self._meeting = tuple((form.low - result.high, form.high - result.low) for form in forms)
        self._swapped = swapped
        self._tail, self._held = b"", tuple[Any, ...]()  # addresses and memory of arrays that each call binds last
        self._watched = stream.watched  # where the validation layer speaks: its messages are raised by the long way

    def pair(self, a: Array, b: Array, out: Array | None, *, in_place: bool) -> Array | None:
        """Run it on two operands and return the result, a new array where ``out`` is None.

        Returns:
            None, and nothing done, where the long way has to be gone.
        """
        first, second = a.storage, b.storage
        pins = first.ready, second.ready
        watched = self._watched
        if pins[0] is None or pins[1] is None or (watched is not None and watched.messages):
            return None
        if out is None:
            form = self._result
            out = type(a).fresh(a.device, form.shape, form.dtype, form.nbytes)
            out.form = form
        elif (out.storage is first and self._meets(a, out, 0, in_place)) or (
            out.storage is second and self._meets(b, out, 1, in_place)
        ):
            return None
        third = out.storage
        pin = third.ready
        if pin is None:
            return None
        if self._swapped:
            a, b, first, second = b, a, second, first
        addresses = self._pack(
            first.number,
            first.base + a.byte_offset,
            second.number,
            second.base + b.byte_offset,
            third.number,
            third.base + out.byte_offset,
        )
        result = self._entry(self._handle, self._dispatch, addresses, self._null)
        if result and not self._stream.resume(result, self._dispatch, addresses, self._null, (*pins, pin)):
            return None
        return out

    def single(self, a: Array, out: Array | None, push: bytes = b"", *, in_place: bool = False) -> Array | None:
        """Run it on one operand, or on one and a number, as :meth:`pair` does; nothing for ``push`` takes its own."""
        first = a.storage
        pin = first.ready
        watched = self._watched
        order = self.order
        if pin is None or (order and order != _NUMBER_LAST) or (watched is not None and watched.messages):
            return None
        if out is None:
            form = self._result
            out = type(a).fresh(a.device, form.shape, form.dtype, form.nbytes)
            out.form = form
        elif out.storage is first and self._meets(a, out, 0, in_place):
            return None
        second = out.storage
        other = second.ready
        if other is None:
            return None
        source, target = first.base + a.byte_offset, second.base + out.byte_offset
        if order:
            addresses = self._pack(first.number, source, second.number, target, second.number, target)
        else:
            addresses = self._pack(first.number, source, second.number, target) + self._tail
        given = push or self._null
        result = self._entry(self._handle, self._dispatch, addresses, given)
        if result and not self._stream.resume(result, self._dispatch, addresses, given, (pin, other, *self._held)):
            return None
        return out

    def alone(self, forms: Sequence[Form], tables: Sequence[Array]) -> Plan:
        """Return one for :meth:`single`: of an operand and a result of these forms, and arrays that each call binds."""
        places = [word for each in tables for word in (each.storage.number, each.storage.base + each.byte_offset)]
        made = Plan(self._stream, self._dispatch, self._pipeline, forms)
        made._tail = struct.pack(f"={len(places)}Q", *places)
        made._held = tuple(each.memory for each in tables)
        return made

    def apply(
        self, device: Device, operands: Sequence[Array], outs: Sequence[Array | None], push: bytes
    ) -> list[Array] | None:
        """Run it on any number of operands and return the results, new arrays for those of ``outs`` that are None.

        A result may be an operand itself, of the same form.

        Returns:
            None, and nothing done, where the long way has to be gone.
        """
        made: list[Array] = []
        for form, out in zip(self._results, outs, strict=True):
            if out is None:
                new = Array.fresh(device, form.shape, form.dtype, form.nbytes)
                new.form = form
                made += (new,)
                continue
            storage, at = out.storage, out.byte_offset
            for other in made:
                if other.storage is storage:
                    return None
            for other in operands:
                if other.storage is storage and not (other.form is form and other.byte_offset == at):
                    theirs, apart = other.form or form_of(other), at - other.byte_offset
                    if theirs.low - form.high < apart < theirs.high - form.low:
                        return None
            made += (out,)
        arrays = (*operands, *made)
        return made if self.run([arrays[place] for place in self.order] if self.order else arrays, push) else None

    def ask(self) -> None:
        """Have calls go the long way as long as a failure has spoiled anything."""
        self._dispatch.asks = True

    def _meets(self, array: Array, out: Array, index: int, in_place: bool) -> bool:
        """Say whether ``out`` shares bytes with an operand in another way than being it (if ``in_place``)."""
        apart = out.byte_offset - array.byte_offset
        if in_place and apart == 0 and array.form is out.form:
            return False
        low, high = self._meeting[index]
        return low < apart < high

    def run(self, arrays: Sequence[Array], push: bytes, shifts: Sequence[int] = ()) -> bool:
        """Run it on ``arrays``, which may share memory; False, and nothing done, where the long way has to be gone.

        Args:
            arrays: by binding.
            push: the push constants; nothing for the plan's own.
            shifts: by binding, bytes from the array's first element to what is bound; nothing for no such bytes.
        """
        if self._watched is not None and self._watched.messages:
            return False
        pins: list[Any] = []
        addresses: list[int] = []
        for array in arrays:
            storage = array.storage
            memory = storage.ready
            if memory is None:
                return False
            pins += (memory,)
            addresses += (storage.number, storage.base + array.byte_offset)
        for binding, shift in enumerate(shifts):
            addresses[2 * binding + 1] += shift
        packed = self._pack(*addresses)
        given = push or self._null
        result = self._entry(self._handle, self._dispatch, packed, given)
        return not result or self._stream.resume(result, self._dispatch, packed, given, pins)


class CopyPlan:
    """The bytes of an array that become those of another, elements lying side by side in both."""

    __slots__ = ("_bulk", "_nbytes", "_stream")

    def __init__(self, device: Device, nbytes: int) -> None:
        self._stream, self._nbytes = device.logical.stream, nbytes
        self._bulk = device.logical.bulk if bulk.suits(device.info, nbytes) else None

    def run(self, arrays: Sequence[Array], push: bytes, shifts: Sequence[int]) -> bool:
        """Copy the first array to the second one, as :meth:`Plan.run` runs kernels."""
        there, here = arrays[0].storage, arrays[1].storage
        pins = there.ready, here.ready
        if pins[0] is None or pins[1] is None or there is here:
            return False
        start, at = (
            array.storage.base + array.byte_offset + shift for array, shift in zip(arrays, shifts, strict=True)
        )
        part = there.number, start, here.number, at, self._nbytes
        if self._bulk is None or not self._bulk.copy_part(*part, pins):
            self._stream.copy_part(*part, pins)
        return True


Step = tuple["Plan | CopyPlan", tuple[int, ...], tuple[int, ...]]


class Recipe:
    """The plans of an operation of any number of operands, results and dispatches.

    Args:
        steps: plans, and of each binding the number of its array: operands first, then results, temporaries, tables;
            and what :meth:`Plan.run` takes as shifts.
        operands: their forms, in the order in which the operation takes them; ``results`` and ``temporaries`` alike,
            None for one that no plan binds.
        tables: arrays that every call binds.
    """

    __slots__ = ("_clock", "_operands", "_results", "_steps", "_tables", "_temporaries")

    def __init__(
        self,
        steps: Sequence[Step],
        operands: Sequence[Form],
        results: Sequence[Form],
        temporaries: Sequence[Form | None],
        tables: Sequence[Array] = (),
    ) -> None:
        self._steps, self._tables = tuple(steps), tuple(tables)
        self._clock = native.helper().lib.vkp_ledger_clock()
        self._operands, self._results, self._temporaries = tuple(operands), tuple(results), tuple(temporaries)

    def single(self, a: Array, out: Array | None) -> Array | None:
        """Run it on one operand and return the one result, which shares no memory with it; None as :meth:`run` does."""
        made = self.run((a,), (out,), in_place=False)
        return None if made is None else made[0]

    def run(self, operands: Sequence[Array], outs: Sequence[Array | None], *, in_place: bool) -> list[Array] | None:
        """Run it and return the results, new arrays where ``outs`` has None.

        Returns:
            None, and nothing done, where the long way has to be gone.
        """
        if self._clock.lost:
            return None
        for array in operands:
            if array.storage.ready is None:
                return None
        results = []
        for number, out in enumerate(outs):
            if out is None:
                results.append(_fresh(operands[0], self._results[number]))
            elif out.storage.ready is None or not self._apart(operands, results, out, number, in_place):
                return None
            else:
                results.append(out)
        arrays: list[Any] = [*operands, *results]
        for form in self._temporaries:
            arrays.append(form and _fresh(operands[0], form))
        arrays += self._tables
        for plan, numbers, shifts in self._steps:
            if not plan.run([arrays[number] for number in numbers], b"", shifts):
                return None
        return results

    def _apart(
        self, operands: Sequence[Array], results: Sequence[Array], out: Array, number: int, in_place: bool
    ) -> bool:
        """Say whether a result shares no memory with those before it, nor, but for being it, with an operand."""
        storage = out.storage
        for other in results:
            if other.storage is storage:
                return False
        for array, form in zip(operands, self._operands, strict=True):
            if array.storage is storage and not (
                in_place and array.byte_offset == out.byte_offset and form is self._results[number]
            ):
                return False
        return True


def _fresh(like: Array, form: Form) -> Array:
    """Return a new array of a form, on the device of another."""
    made = type(like).fresh(like.device, form.shape, form.dtype, form.nbytes)
    made.form = form
    return made


def make(
    device: Device,
    name: str,
    pipeline: Pipeline,
    arrays: Sequence[Array],
    bindings: Sequence[Binding],
    groups: tuple[int, int, int],
    push: bytes = b"",
    *,
    cost_ns: int = 0,
    swapped: bool = False,
    results: int = 1,
) -> Plan | None:
    """Return the plan of a dispatch that was checked; None where no call can go by it.

    The arguments are those of :meth:`vkpar.vulkan.stream.Stream.plan`; ``arrays`` by binding, the last ``results`` of
    them results. ``swapped``: the first two bindings are the second and the first operand.
    """
    stream = device.logical.stream
    if any(array.storage.ready is None for array in arrays):
        return None
    forms = [form_of(array) for array in arrays]
    if swapped:
        forms[:2] = forms[1::-1]
    dispatch = stream.plan(name, pipeline, bindings, groups, push, cost_ns)
    return Plan(stream, dispatch, pipeline, forms, swapped=swapped, results=results)


def bindings_of(
    pipeline: Pipeline,
    arrays: Sequence[Array],
    ranges: Sequence[BufferRange],
    written: int = REPLACES,
    unread: Collection[int] = (),
) -> list[Binding]:
    """Return what a built-in kernel does to its arrays, whose results it writes whole.

    ``written`` is what it does to those that it writes (of views with gaps it leaves these alone), ``unread`` are
    bindings that it does not look at.
    """
    made = []
    for index, (array, item) in enumerate(zip(arrays, ranges, strict=True)):
        kind = BOUND if index in unread else READS if index in pipeline.read_only else written
        storage = array.storage
        start = storage.base + array.byte_offset
        back = max(start - item.offset, 0) if storage.number else 0
        if back > item.nbytes:  # a copy is bound in its place
            back = 0
        low, used = back, item.nbytes
        if storage.number and array.steps is None and not array.has_gaps:
            low, used = 0, min(start + array.nbytes, item.offset + item.nbytes) - item.offset - back
        elif kind == REPLACES:
            kind = PLACES
        made.append(Binding(item.nbytes, back, low, max(used, 0), kind))
    return made
