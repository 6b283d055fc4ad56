"""Calls of any number of operands, results and dispatches: found again by a recipe, or recorded as one."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkpar.abi import elementwise as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.arrays.forms import Form, form_of
from vkpar.ops.call.checks import SHORT
from vkpar.ops.call.dispatch import submit
from vkpar.ops.call.plan import CopyPlan, Plan, Recipe, Step
from vkpar.ops.call.plan import make as make_plan
from vkpar.ops.call.windows import GROUP, fold_groups, spans, window
from vkpar.vulkan.pump.ledger import PLACES, REPLACES

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.dtypes import DType
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline
    from vkpar.vulkan.stream import Binding

Key = tuple[object, ...]
_PLACING = ("kv_append", "rope_append", "scatter_add")  # kernels that write to a part of what they bind


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
        recipe: Recipe | None = operands[0].device.plans.recipes.get(key)  # type: ignore[union-attr]
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
        self._steps: list[Step] = []
        self._views: dict[int, tuple[Array, Array]] = {}  # by identity: a view, and what of the call it is a view of
        self._tables: list[Array] = []
        self._spare: list[Array] = []
        self._whole = True  # all of it is in the steps

    def temporary(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return a new array for what one dispatch leaves to the next."""
        nbytes = math.prod(shape) * dtype.itemsize
        at = next((at for at, array in enumerate(self._spare) if array.nbytes == nbytes), None)
        if at is not None:
            spare = self._spare.pop(at)
            return self.view(spare, Array(spare.storage, spare.byte_offset, shape, dtype))
        made = self.device.empty(shape, dtype)
        self._arrays.append(made)
        return made

    def spare(self, array: Array) -> None:
        """Let a temporary array serve the next one of as many bytes: what is sent runs in program order."""
        self._spare.append(array)

    def table(self, array: Array) -> Array:
        """Return an array of :mod:`vkpar.ops.call.kept`, which later calls by the recipe bind, too."""
        if not any(known is array for known in self._tables):
            self._tables.append(array)
        return array

    def view(self, array: Array, view: Array) -> Array:
        """Return a view of an array of the call, by which dispatches may name it from now on.

        Args:
            array: one of ``operands`` or ``results``, a temporary one, or a view of one.
            view: of the same memory; its place from the array's first element on is the same in every call.
        """
        owner = self._views.get(id(array), (array, array))[1]
        if view is not owner:
            self._views[id(view)] = view, owner
        return view

    def flat(self, array: Array) -> Array:
        """Return all elements from the first to the last that an array of the call reaches; no stride is negative."""
        low, high = array.span
        made = Array(array.storage, array.byte_offset, ((high - low) // array.dtype.itemsize,), array.dtype)
        made.has_gaps = not array.is_contiguous
        return self.view(array, made)

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
        self.note(pipeline, arrays, ranges, bindings, grid, push, cost_ns)

    def note(
        self,
        pipeline: Pipeline,
        arrays: Sequence[Array],
        ranges: Sequence[BufferRange],
        bindings: Sequence[Binding],
        grid: tuple[int, int, int],
        push: bytes,
        cost_ns: int = 0,
    ) -> None:
        """Note a dispatch that was sent, with the arguments of :meth:`dispatch`; arrays may be views of the call's.

        ``bindings`` says what it does to them, as :func:`vkpar.ops.call.plan.bindings_of` gives it.
        """
        found = [self._find(array) for array in arrays] if self._whole else []
        pairs = zip(arrays, ranges, strict=True)
        if not found or None in found or any(_begins_later(array, item) for array, item in pairs):
            self._whole = False
            return
        numbers, shifts = zip(*(each for each in found if each is not None), strict=True)
        swapped = numbers == (1, 0, 2)  # the call is that of a pair, whose second operand comes first here
        plan = make_plan(
            self.device, self.operation, pipeline, arrays, bindings, grid, push, cost_ns=cost_ns, swapped=swapped
        )
        self._whole = plan is not None
        if plan is not None:
            direct = not any(shifts) and any(known is arrays[-1] for known in self._arrays)
            self._steps.append((plan, numbers, () if direct else shifts))

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array of the call to another, elements lying side by side in both, in program order."""
        target.copy_from(source)
        found = [self._find(array) for array in (source, target)] if self._whole else []
        if not found or None in found or source.storage.ready is None or target.storage.ready is None:
            self._whole = False
            return
        numbers, shifts = zip(*(each for each in found if each is not None), strict=True)
        self._steps.append((CopyPlan(self.device, source.nbytes), numbers, shifts))

    def _find(self, array: Array) -> tuple[int, int] | None:
        """Return the number of the array that is meant, and the bytes from its first element to that of ``array``.

        Tables are counted from the end, -1 the first of them.
        """
        owner = self._views.get(id(array), (array, array))[1]
        shift = array.byte_offset - owner.byte_offset
        for number, known in enumerate(self._tables):
            if known is owner:
                return -1 - number, shift
        return next(((number, shift) for number, known in enumerate(self._arrays) if known is owner), None)

    def keep(self, pair: Key | None = None) -> None:
        """Have later calls find what was sent.

        Args:
            pair: what :func:`run_pair` finds it by, where the call is that of a pair and one dispatch does it all.
        """
        if self._key is None or not self._whole:
            return
        forms: list[Form] = [form_of(array) for array in self._arrays]
        plan, numbers, shifts = self._steps[0] if len(self._steps) == 1 else (None, (), ())
        if isinstance(plan, Plan) and not any(shifts):
            if pair is not None and not shifts and numbers in ((0, 1, 2), (1, 0, 2)):
                plan.ask()
                self.device.plans.keep(pair, plan)
                return
            alone = (0, 1, *range(-1, -1 - len(self._tables), -1))
            if len(self.operands) == len(self.results) == 1 and numbers == alone:
                plan.ask()
                self.device.plans.keep(self._key, plan.alone(forms[:2], self._tables))  # for run_single: costs less
        first, after = len(self.operands), len(self.operands) + len(self.results)
        used = {number for _, numbers, _ in self._steps for number in numbers}
        temporaries = [form if number in used else None for number, form in enumerate(forms[after:], after)]
        recipe = Recipe(self._steps, forms[:first], forms[first:after], temporaries, self._tables[::-1])
        self.device.plans.keep_recipe(self._key, recipe)

    def convert(self, a: Array, out: Array) -> None:
        """Convert an array to another floating-point type; ``out`` begins where kernels can write it."""
        kernel = f"cast_{SHORT[a.dtype.name]}_{SHORT[out.dtype.name]}"
        for start, count in spans(a.size, (a, 0), (out, 0), pairs=out.dtype.itemsize == 2):
            source, a_first = window(a, start, count)
            target, o_first = out.window(start, count)
            constants = abi.CastConstants(a_first % 4 == 0, o_first % 4 == 0)
            push = pack(abi.Cast(count, a_first, o_first))
            self.dispatch(kernel, (a, out), (source, target), push, -(-count // GROUP), constants)


def _begins_later(array: Array, item: BufferRange) -> bool:
    """Say whether a range begins after its array does, or lies in other memory."""
    storage = array.storage
    return storage.ready is None or item.offset > storage.base + array.byte_offset
