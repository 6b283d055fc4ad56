"""Plans: what a call of an operation comes down to, kept for the next call on arrays of the same form.

A plan is found by the forms of the operands alone. What else a call has to look at, it looks at each time: whether the
arrays can be used (:attr:`vkpar.storage.Storage.ready`), and whether they share memory. Where anything is amiss the
call goes the long way, which checks everything and says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from vkpar.vulkan.physical import ALIGNMENT

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.arrays.layout import Strides
    from vkpar.device import Device
    from vkpar.dtypes import DType
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline

_MOST: Final = 4096  # plans, and forms, of a device


class Form:
    """All of an array that a plan depends on, made once per device, so that forms are compared by identity.

    Attributes:
        shape: the dimensions; ``dtype`` of the elements, ``nbytes`` of them all.
        steps: the strides, None for those of C order.
        low: the first byte that it reaches, counted from its first element; ``high`` the one after the last.
    """

    __slots__ = ("dtype", "high", "low", "nbytes", "shape", "steps")

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, nbytes: int, steps: Strides | None, span: tuple[int, int]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self.steps = steps
        self.low, self.high = span


class Plan:
    """A dispatch that lacks nothing but the arrays' addresses.

    Args:
        stream: of the device.
        dispatch: the stream's plan.
        pipeline: its kernel.
        forms: of the arrays, in the order in which the operation takes them, its result last.
        swapped: the first two bindings are the second and the first of them.
    """

    __slots__ = (
        "_dispatch",
        "_entry",
        "_handle",
        "_meeting",
        "_null",
        "_pack",
        "_pipeline",
        "_result",
        "_stream",
        "_swapped",
        "_watched",
    )

    def __init__(
        self, stream: Any, dispatch: Any, pipeline: Pipeline, forms: Sequence[Form], *, swapped: bool = False
    ) -> None:
        self._stream, self._dispatch = stream, dispatch
        self._pipeline = pipeline  # it lives as long as the plan
        self._entry, self._handle, self._null = stream.entry, stream.handle, stream.null
        self._pack = struct.Struct(f"={2 * len(forms)}Q").pack
        result = self._result = forms[-1]
        # Bytes of an operand and of the result meet where the result's first element lies between these, both excluded,
        # counted from the operand's.
        self._meeting = tuple((form.low - result.high, form.high - result.low) for form in forms)
        self._swapped = swapped
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
        if result:
            self._stream.resume(result, self._dispatch, addresses, self._null, (*pins, pin))
        return out

    def single(self, a: Array, out: Array | None) -> Array | None:
        """Run it on one operand, in other memory than that of the result, as :meth:`pair` does."""
        if out is None:
            form = self._result
            out = type(a).fresh(a.device, form.shape, form.dtype, form.nbytes)
            out.form = form
        elif out.storage is a.storage:
            return None
        return out if self.run((a, out), b"") else None

    def _meets(self, array: Array, out: Array, index: int, in_place: bool) -> bool:
        """Say whether ``out`` shares bytes with an operand in another way than being it (if ``in_place``)."""
        apart = out.byte_offset - array.byte_offset
        if in_place and apart == 0 and array.form is out.form:
            return False
        low, high = self._meeting[index]
        return low < apart < high

    def run(self, arrays: Sequence[Array], push: bytes) -> bool:
        """Run it on ``arrays``, which may share memory; False, and nothing done, where the long way has to be gone."""
        if self._watched is not None and self._watched.messages:
            return False
        pins: list[Any] = []
        addresses: list[int] = []
        for array in arrays:
            storage = array.storage
            memory = storage.ready
            if memory is None:
                return False
            pins.append(memory)
            addresses += (storage.number, storage.base + array.byte_offset)
        packed = self._pack(*addresses)
        given = push or self._null
        result = self._entry(self._handle, self._dispatch, packed, given)
        if result:
            self._stream.resume(result, self._dispatch, packed, given, pins)
        return True


class Plans:
    """The forms and plans of one device."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], Form] = {}
        self.known: dict[tuple[Any, ...], Any] = {}  # a Plan, or what an operation has of several

    def form(self, array: Array) -> Form:
        """Return the form of an array of the device."""
        start, nbytes = array.byte_offset, array.nbytes
        low, high = array.span
        key = (array.shape, array.dtype.name, start % ALIGNMENT, high == array.storage.nbytes, array.steps)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST:  # arrays that are left have forms that no plan has
                self._forms.clear()
                self.known.clear()
            form = self._forms.setdefault(
                key, Form(array.shape, array.dtype, nbytes, array.steps, (low - start, high - start))
            )
        array.form = form
        return form

    def keep(self, key: tuple[Any, ...], plan: object) -> None:
        """Have later calls find ``plan``."""
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[key] = plan


def form_of(array: Array) -> Form:
    """Return the form of an array, that of its device."""
    return array.form or array.device.plans.form(array)


def make(
    device: Device,
    name: str,
    pipeline: Pipeline,
    arrays: Sequence[Array],
    ranges: Sequence[BufferRange],
    groups: tuple[int, int, int],
    push: bytes = b"",
    *,
    cost_ns: int = 0,
    swapped: bool = False,
) -> Plan | None:
    """Return the plan of a dispatch that was checked; None where no call can go by it.

    Args:
        device: where it runs.
        name: of the operation.
        pipeline: its kernel.
        arrays: by binding.
        ranges: what the kernel sees of them.
        groups: numbers of work-groups.
        push: the push constants; empty where each call brings its own.
        cost_ns: an estimate of its time.
        swapped: the first two bindings are the second and the first operand.
    """
    stream = device.logical.stream
    if any(array.storage.ready is None for array in arrays):
        return None
    bindings = [
        (item.nbytes, array.storage.base + array.byte_offset - item.offset)
        for array, item in zip(arrays, ranges, strict=True)
    ]
    if any(back < 0 for _, back in bindings):  # a part of an array, which its address does not name
        return None
    forms = [form_of(array) for array in arrays]
    if swapped:
        forms[:2] = forms[1::-1]
    dispatch = stream.plan(name, pipeline, bindings, groups, push, cost_ns)
    return Plan(stream, dispatch, pipeline, forms, swapped=swapped)
