"""Dispatches of built-in kernels, and the plans of earlier calls by which they go again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkpar.arrays.array import Array
from vkpar.arrays.forms import form_of
from vkpar.ops.call.plan import Plan, Recipe, bindings_of
from vkpar.vulkan.pump.ledger import REPLACES

if TYPE_CHECKING:
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline
    from vkpar.vulkan.stream import Binding


def run_pair(operation: str, a: Any, b: Any, out: Any, *options: object, in_place: bool) -> Array | None:
    """Run an operation of two operands by the plan of an earlier call; None, and nothing done, where there is none.

    Args:
        operation: its name.
        a: an operand; nothing is checked, not even that these are arrays.
        b: the other one.
        out: where the result goes; None for a new array.
        options: whatever else a plan depends on.
        in_place: ``out`` may be an operand.
    """
    try:
        forms = a.form or form_of(a), b.form or form_of(b), None if out is None else out.form or form_of(out)
        plan: Plan | None = a.device.plans.known.get((operation, *forms, *options))
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    return None if plan is None else plan.pair(a, b, out, in_place=in_place)


def run_single(operation: str, a: Array, out: Array | None, *options: object) -> Array | None:
    """Run an operation of one operand as :func:`run_pair` does, or by a recipe; ``out`` may share no memory with it."""
    try:
        key = operation, a.form or form_of(a), None if out is None else out.form or form_of(out), *options
        plans = a.device.plans
        plan: Plan | Recipe | None = plans.known.get(key) or plans.recipes.get(key)
    except (AttributeError, TypeError):  # not arrays: the long way says so
        return None
    return None if plan is None else plan.single(a, out)


def submit(
    operation: str,
    kernel: str,
    arrays: Sequence[Array],
    ranges: Sequence[BufferRange],
    push: bytes,
    groups: tuple[int, int, int],
    constants: tuple[int, ...] = (),
    cost_ns: int = 0,
    written: int = REPLACES,
) -> tuple[Pipeline, list[Binding]]:
    """Run a built-in kernel asynchronously, in program order; return its pipeline and what it does to arrays.

    ``operation`` is for messages, ``written`` what it does to arrays that it does not only read; the others are
    those of :meth:`vkpar.ops.call.call.Call.dispatch`, ``groups`` in three dimensions.
    """
    logical = arrays[0].device.logical
    pushes = logical.pushes(len(ranges))
    pipeline = logical.pipelines.shipped(kernel, len(ranges), len(push), constants, pushes=pushes)
    bindings = bindings_of(pipeline, arrays, ranges, written)
    logical.dispatch(operation, pipeline, ranges, push, groups, cost_ns, bindings)
    return pipeline, bindings
