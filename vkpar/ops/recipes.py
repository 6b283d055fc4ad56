"""Recipes: what a call that takes several dispatches, or more than two operands, comes down to, for the next call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkpar.arrays.array import Array
from vkpar.ops._launch import dispatch
from vkpar.plans import Form, Plan, form_of
from vkpar.plans import make as make_plan

if TYPE_CHECKING:
    from vkpar.dtypes import DType
    from vkpar.vulkan.memory.buffer import BufferRange


class Recipe:
    """The dispatches of a call on arrays of some forms; each is a plan.

    Args:
        steps: the plans, and which arrays each takes: the operands by number, then the result, then scratch arrays.
        result: the result's form.
        scratch: the forms of the scratch arrays.
        shared: the operand that the result may be, exactly.
    """

    def __init__(
        self, steps: Sequence[tuple[Plan, tuple[int, ...]]], result: Form, scratch: Sequence[Form], shared: int
    ) -> None:
        self._steps, self._result, self._scratch, self._shared = tuple(steps), result, tuple(scratch), shared

    def run(self, operands: Sequence[Array | None], out: Array | None) -> Array | None:
        """Run it and return the result, a new array where ``out`` is None.

        Returns:
            None where the long way has to be gone, which writes all of the result anew.
        """
        arrays = [array for array in operands if array is not None]
        if any(array.storage.ready is None for array in arrays):
            return None
        if out is None:
            out = _fresh(arrays[0], self._result)
        elif out.storage.ready is None or any(
            array is not None and array.storage is out.storage and not (number == self._shared and _same(array, out))
            for number, array in enumerate(operands)
        ):
            return None
        scratch = (_fresh(arrays[0], form) for form in self._scratch)
        taken: list[Array | None] = [*operands, out, *scratch]
        for plan, numbers in self._steps:
            if not plan.run([taken[number] for number in numbers], b""):  # type: ignore[misc]
                return None
        return out

    def pair(self, a: Array, b: Array, out: Array | None, *, in_place: bool) -> Array | None:
        """Run it on two operands, as :meth:`vkpar.plans.Plan.pair` does."""
        return self.run((a, b, None, None), out)


class Trace:
    """The dispatches of one call, noted as they are made.

    Args:
        operation: the call's name.
        operands: of the call; None where one was not given.
        out: the result.
        shared: the operand that the result may be, exactly.
    """

    def __init__(self, operation: str, operands: Sequence[Array | None], out: Array, shared: int) -> None:
        self._operation = operation
        self._arrays: list[Array | None] = [*operands, out]
        self._given = len(self._arrays)
        self._shared = shared
        self._steps: list[tuple[Plan, tuple[int, ...]]] = []
        self._broken = False

    def scratch(self, count: int, dtype: DType) -> Array:
        """Return a new array for the length of the call."""
        made = Array.allocate(self._arrays[self._given - 1].device, count, dtype)  # type: ignore[union-attr]
        self._arrays.append(made)
        return made

    def dispatch(
        self,
        kernel: str,
        arrays: Sequence[Array],
        ranges: Sequence[BufferRange],
        push: bytes,
        groups: tuple[int, int, int],
        constants: tuple[int, ...],
        cost_ns: int = 0,
    ) -> None:
        """Run a kernel as :func:`vkpar.ops._launch.dispatch` does, and note it.

        Where it takes other arrays than those of the call, or has no plan, there will be no recipe.
        """
        name, device = self._operation, arrays[0].device
        pipeline = dispatch(name, kernel, arrays, ranges, push, groups, constants, cost_ns=cost_ns)
        if self._broken:
            return
        plan = make_plan(device, name, pipeline, arrays, ranges, groups, push, cost_ns=cost_ns)
        numbers = [next((n for n, known in enumerate(self._arrays) if known is array), -1) for array in arrays]
        if plan is None or -1 in numbers:
            self._broken = True
        else:
            self._steps.append((plan, tuple(numbers)))

    def spoil(self) -> None:
        """Note that the call does something that no recipe holds."""
        self._broken = True

    def recipe(self) -> Recipe | None:
        """Return what the next call on arrays of these forms may go by; None where there is nothing."""
        if self._broken or not self._steps or len(self._steps) > _MOST_STEPS:
            return None
        forms = [form_of(array) for array in self._arrays[self._given - 1 :] if array is not None]
        return Recipe(self._steps, forms[0], forms[1:], self._shared)


_MOST_STEPS = 8


def _fresh(like: Array, form: Form) -> Array:
    made = Array.fresh(like.device, form.shape, form.dtype, form.nbytes)
    made.form = form
    return made


def _same(a: Array, b: Array) -> bool:
    """Say whether two arrays of one memory are the same elements."""
    return a.byte_offset == b.byte_offset and a.form is not None and a.form is b.form
