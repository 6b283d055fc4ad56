"""Calls of any number of operands, results and dispatches: found again by a recipe, or recorded as one."""

from __future__ import annotations

import copy
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkpar.arrays.array import Array
from vkpar.ops.call.dispatch import GROUP, SHORT, fold_groups, spans, submit, window, words
from vkpar.plans import Form, Plan, Recipe, form_of
from vkpar.plans import make as make_plan
from vkpar.vulkan.pump.ledger import PLACES, REPLACES

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType
    from vkpar.vulkan.memory.buffer import BufferRange

Key = tuple[object, ...]
_PLACING = ("kv_append", "rope_append")  # kernels that write to a part of what they bind


def repeat(
    operation: str,
    operands: Sequence[Array | None],
    outs: Sequence[Array | None],
    *options: object,
    in_place: bool = False,
) -> list[Array] | None:
    """Run an operation by the recipe of an earlier call; None, and nothing done, where there is none.

    Args:
        operation: its name.
        operands: none of them is checked; None for those that the call does not have.
        outs: where the results go; None for new arrays.
        options: whatever else the recipe depends on.
        in_place: a result may be an operand.
    """
    try:
        key = key_of(operation, operands, outs, *options)
        recipe = operands[0].device.plans.recipes.get(key)  # type: ignore[union-attr]
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    if recipe is None:
        return None
    return recipe.run([array for array in operands if array is not None], outs, in_place=in_place)


def key_of(operation: str, operands: Sequence[Array | None], outs: Sequence[Array | None], *options: object) -> Key:
    """Return what :func:`repeat` finds a recipe by."""
    forms = [None if array is None else array.form or form_of(array) for array in (*operands, *outs)]
    return (operation, *forms, *options)


class Call:
    """A call that goes the long way: it sends the dispatches, and keeps them as a recipe where it can.

    Args:
        operation: its name, for messages.
        key: of :func:`key_of`, with the results that were given; None where no recipe is to be kept.
        operands: checked arrays.
        results: the arrays that it fills; some may be operands.

    Attributes:
        operands: the same ones, each an object of its own, so that each dispatch tells which of them it means; a later
            call may have several arrays where this one has one in several places.
        results: alike.
    """

    def __init__(self, operation: str, key: Key | None, operands: Sequence[Array], results: Sequence[Array]) -> None:
        self.operation = operation
        self.device: Device = operands[0].device
        self._key = key
        self.operands, self.results = [list(map(copy.copy, arrays)) for arrays in (operands, results)]
        self._arrays = [*self.operands, *self.results]
        self._steps: list[tuple[Plan, tuple[int, ...]]] = []
        self._names: dict[int, Array] = {}  # what dispatches name operands by, too: by identity
        self._tables: list[Array] = []
        self._flats: list[Array] = []
        self._whole = True  # all of it is in the steps

    def temporary(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return a new array for what one dispatch leaves to the next."""
        made = self.device.empty(shape, dtype)
        self._arrays.append(made)
        return made

    def table(self, array: Array) -> Array:
        """Return an array of :mod:`vkpar.ops.call.kept`, which later calls by the recipe bind, too."""
        if not any(known is array for known in self._tables):
            self._tables.append(array)
        return array

    def packed(self, number: int) -> Array:
        """Return an operand, a copy where its elements do not lie side by side."""
        array = self.operands[number]
        if not array.is_contiguous:
            self.forget()
        return array.contiguous()

    def flat(self, array: Array) -> Array:
        """Return all elements from the first to the last that an array of the call reaches, no stride being negative.

        Args:
            array: one of ``operands`` or ``results``, or a temporary one.
        """
        low, high = array.span
        made = Array(array.storage, array.byte_offset, ((high - low) // array.dtype.itemsize,), array.dtype)
        made.has_gaps = not array.is_contiguous
        self._names[id(made)] = array
        self._flats.append(made)
        return made

    def forget(self) -> None:
        """Keep no recipe: something is done by other ways than :meth:`dispatch`."""
        self._whole = False

    def dispatch(
        self,
        kernel: str,
        arrays: Sequence[Array],
        ranges: Sequence[BufferRange],
        push: bytes,
        groups: int,
        constants: tuple[int, ...] = (),
        cost_ns: int = 0,
        *,
        layers: int = 1,
    ) -> None:
        """Run a built-in kernel in program order.

        Args:
            kernel: its name.
            arrays: by binding: operands, results and temporaries of the call.
            ranges: what the kernel sees of them.
            push: the push constants.
            groups: the number of work-groups.
            constants: specialization constants 0, 1, ...
            cost_ns: an estimate of its time on a slow GPU, that of moving the bytes at least.
            layers: how many times as many there are, counted in z.
        """
        grid = (*fold_groups(self.device, groups)[:2], layers)
        how = PLACES if kernel.startswith(_PLACING) else REPLACES
        pipeline, bindings = submit(self.operation, kernel, arrays, ranges, push, grid, constants, cost_ns, how)
        if not self._whole:
            return
        numbers = tuple(self._number(array) for array in arrays)
        pairs = zip(arrays, ranges, strict=True)
        if None in numbers or any(_begins_later(array, item) for array, item in pairs):
            self._whole = False
            return
        plan = make_plan(self.device, self.operation, pipeline, arrays, bindings, grid, push, cost_ns=cost_ns)
        self._whole = plan is not None
        if plan is not None:
            self._steps.append((plan, tuple(number for number in numbers if number is not None)))

    def _number(self, array: Array) -> int | None:
        """Return an array's number; tables are counted from the end, -1 the first of them."""
        array = self._names.get(id(array), array)
        for number, known in enumerate(self._tables):
            if known is array:
                return -1 - number
        return next((number for number, known in enumerate(self._arrays) if known is array), None)

    def keep(self) -> None:
        """Have later calls find what was sent."""
        if self._key is None or not self._whole:
            return
        forms: list[Form] = [form_of(array) for array in self._arrays]
        first, after = len(self.operands), len(self.operands) + len(self.results)
        recipe = Recipe(self._steps, forms[:first], forms[first:after], forms[after:], self._tables[::-1])
        self.device.plans.keep_recipe(self._key, recipe)
        if len(self._steps) == 1 and len(self._arrays) == 2 and self._steps[0][1] == (0, 1):
            self._steps[0][0].ask()
            self.device.plans.keep(self._key, self._steps[0][0])  # for _launch.run_single, which costs less

    def convert(self, a: Array, out: Array) -> None:
        """Convert an array to another floating-point type; ``out`` begins where kernels can write it."""
        kernel = f"cast_{SHORT[a.dtype.name]}_{SHORT[out.dtype.name]}"
        for start, count in spans(a.size, (a, 0), (out, 0), pairs=out.dtype.itemsize == 2):
            source, a_first = window(a, start, count)
            target, o_first = out.window(start, count)
            constants = (a_first % 4 == 0, o_first % 4 == 0)
            push = words(count, a_first, o_first)
            self.dispatch(kernel, (a, out), (source, target), push, -(-count // GROUP), constants)


def _begins_later(array: Array, item: BufferRange) -> bool:
    """Say whether a range begins after its array does, or lies in other memory."""
    storage = array.storage
    return storage.ready is None or item.offset > storage.base + array.byte_offset


def pack(*values: float) -> bytes:
    """Pack push constants: whole numbers as unsigned words, others as float32."""
    return struct.pack("=" + "".join("I" if isinstance(v, int) else "f" for v in values), *values)
