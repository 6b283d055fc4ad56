"""How a block's tensors are cut, and where sums are due: states follow from the steps of the block; pure.

A value is ``mirrored`` (whole on every rank), ``split`` along a dimension with a name, or ``partial`` (a sum is owed).
A product of a mirrored value is cut by columns where the name of its outputs says that it can be; a product of a split
value is cut by rows and owes a sum. Sums are made as late as they can be: partial values are added and weighed as they
are, so that the experts of a mixture cost one sum together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vkpar.errors import InvalidUsageError
from vkpar.parallel.cut.sharded import MIRRORED, PARTIAL, SPLIT

SUM: Final = "all_reduce"
GATHER: Final = "all_gather"
COLLECT: Final = "gather"
SEND: Final = "broadcast"
OPS: Final = ("norm", "product", "lookup", "each", "attention", "weigh", "add", "decide")
COLUMN, ROW, WHOLE = "column", "row", "mirrored"


@dataclass(frozen=True)
class Step:
    """An operation of a block.

    Attributes:
        name: of the value that it makes, and of its weight.
        op: ``norm`` (of whole rows), ``product`` with a weight, ``lookup`` in a table by rows, ``each`` (by element),
            ``attention`` (by head), ``weigh`` (a value by numbers: linear), ``add``, ``decide`` (a router, a sampled
            token: on one rank, which tells the others).
        inputs: values that it takes: ``"x"`` is what goes into the block.
        dim: what a product's outputs, or a table's rows, are: ``"heads"``, ``"inner"``; empty where they stay whole.
        bias: it has a bias.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    dim: str = ""
    bias: bool = False


@dataclass(frozen=True)
class Placed:
    """A step with what it takes over ranks.

    Attributes:
        step: the step.
        cut: of its weight: ``"column"``, ``"row"`` or ``"mirrored"``.
        state: of its result; ``dim`` names what that is split along.
        before: collectives that come before it, ``(collective, value)``.
        bias: how its bias is added: ``"column"`` (cut as the weight), ``"after the sum"``, ``"mirrored"``, or empty.
    """

    step: Step
    cut: str
    state: str
    dim: str
    before: tuple[tuple[str, str], ...]
    bias: str


def infer(
    steps: Sequence[Step], cuts: Collection[str], inputs: Mapping[str, str] | None = None, end: str = MIRRORED
) -> list[Placed]:
    """Return where each step's tensors lie and which collectives are due.

    Args:
        steps: in the order in which they run; the last one's result leaves the block.
        cuts: names of the dimensions that are cut.
        inputs: states of the block's inputs; ``x`` is mirrored by default.
        end: the state in which the result leaves, ``mirrored`` or ``partial``.

    Raises:
        InvalidUsageError: an unknown operation, a value that no step before it makes, or one that is made twice.
    """
    states = {name: (state, "") for name, state in (inputs or {"x": MIRRORED}).items()}
    placed: list[Placed] = []
    for step in steps:
        if step.op not in OPS or step.name in states:
            raise InvalidUsageError(f"step {step.name!r} ({step.op}) is there twice, or no operation of {OPS}")
        unknown = [name for name in step.inputs if name not in states]
        if unknown or not step.inputs:
            raise InvalidUsageError(f"step {step.name!r} takes {unknown}, which no step before it makes")
        placed.append(_place(step, cuts, states))
    if placed and end == MIRRORED:
        last = placed[-1].step.name
        due = _whole(last, states)
        if due:
            placed.append(Placed(Step("", "each", (last,)), WHOLE, MIRRORED, "", due, ""))
    return placed


def collectives(placed: Sequence[Placed]) -> list[str]:
    """Return the names of the collectives of a block, in order."""
    return [name for each in placed for name, _ in (*each.before, *(((SEND, ""),) if each.step.op == "decide" else ()))]


_States = dict[str, tuple[str, str]]
_Due = tuple[tuple[str, str], ...]
_NONE: Final[_Due] = ()


def _place(step: Step, cuts: Collection[str], states: _States) -> Placed:
    given = [states[name] for name in step.inputs]
    cut, due = WHOLE, _NONE
    if step.op in ("product", "lookup"):
        cut, result, due = _product(step, cuts, states)
    elif step.op == "decide":
        split = given[0][0] == SPLIT
        due = ((COLLECT, step.inputs[0]),) if split else _whole(step.inputs[0], states)
        result = (MIRRORED, "")
    elif step.op == "add" and given[0][0] == given[1][0] == PARTIAL:
        result = (PARTIAL, "")
    elif step.op == "weigh" and given[0][0] == PARTIAL:
        due = tuple(item for name in step.inputs[1:] for item in _whole(name, states))
        result = (PARTIAL, "")
    elif step.op in ("each", "attention", "weigh", "add") and _alike(given):
        result = given[0]
    else:
        due = tuple(item for name in step.inputs for item in _whole(name, states))
        result = (MIRRORED, "")
    states[step.name] = result
    bias = "" if not step.bias else {COLUMN: COLUMN, ROW: "after the sum", WHOLE: MIRRORED}[cut]
    return Placed(step, cut, *result, due, bias)


def _product(
    step: Step, cuts: Collection[str], states: _States
) -> tuple[str, tuple[str, str], tuple[tuple[str, str], ...]]:
    """Return how a weight is cut, the state of the product, and the collectives before it."""
    if states[step.inputs[0]][0] == SPLIT:
        return ROW, (PARTIAL, ""), ()
    due = _whole(step.inputs[0], states)
    if step.dim not in cuts:
        return WHOLE, (MIRRORED, ""), due
    if step.op == "lookup":  # a rank finds the rows that it has, and zeros for the others
        return COLUMN, (PARTIAL, ""), due
    return COLUMN, (SPLIT, step.dim), due


def _alike(given: Sequence[tuple[str, str]]) -> bool:
    """Say whether values are split along one dimension, or all of them whole."""
    return len({state for state, _ in given}) == 1 and given[0][0] != PARTIAL


def _whole(name: str, states: _States) -> tuple[tuple[str, str], ...]:
    """Return what makes a value mirrored, which it is from here on."""
    state, _ = states[name]
    states[name] = (MIRRORED, "")
    return {MIRRORED: (), PARTIAL: ((SUM, name),), SPLIT: ((GATHER, name),)}[state]
