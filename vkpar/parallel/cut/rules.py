"""How the weights of a model are cut: a rule for each tensor, by patterns of names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, WeightsError
from vkpar.parallel.cut.sharded import Sharded
from vkpar.parallel.cut.sharding import check_cut, shard
from vkpar.parallel.cut.split import Ratios, Split, cut, shares, unit_of
from vkpar.parallel.files.weights import alike

_LISTED = 8  # names in a message


@dataclass(frozen=True)
class Column:
    """Cut a weight of (outputs, inputs), and its bias, between outputs.

    Attributes:
        unit: outputs that stay together: the width of a head times the query heads that share a key head, the block of
            the quantised weight that takes these outputs as its inputs. See :func:`linked`.
        segments: outputs of each of the weights that are fused in this one; each is cut on its own.
        split: how the outputs are cut; by default in proportion to :func:`parallelize`'s ratios.

    Examples:
        >>> rules = {"up": vkpar.parallel.Column(), "down": vkpar.parallel.Row()}
        >>> weights = {"up": np.ones((8, 4), np.float32), "down": np.ones((4, 8), np.float32)}
        >>> made = vkpar.parallel.parallelize(weights, comm, rules)
        >>> [part.shape for part in made["up"].parts]
        [(4, 4), (4, 4)]
    """

    unit: int = 1
    segments: tuple[int, ...] = ()
    split: Split | Sequence[Split] | None = None


@dataclass(frozen=True)
class Row:
    """Cut a weight of (outputs, inputs) between inputs; its products are partial sums.

    A bias beside it is added once: give it another rule, :class:`Mirrored` where it is added to the sum.

    Attributes:
        unit: inputs that stay together; as the :class:`Column` that they come from has it.
        split: as that of :class:`Column`.

    Examples:
        >>> made = vkpar.parallel.parallelize({"down": np.ones((4, 8), np.float32)}, comm, {"*": vkpar.parallel.Row()})
        >>> [part.shape for part in made["down"].parts]
        [(4, 4), (4, 4)]
    """

    unit: int = 1
    split: Split | None = None


@dataclass(frozen=True)
class Mirrored:
    """Put all of a tensor on every rank.

    Examples:
        >>> made = vkpar.parallel.parallelize({"bias": np.ones(4, np.float32)}, comm, {"*": vkpar.parallel.Mirrored()})
        >>> made["bias"].state, [part.shape for part in made["bias"].parts]
        ('mirrored', [(4,), (4,)])
    """


@dataclass(frozen=True)
class Only:
    """Put all of a tensor on one rank, nothing on the others.

    Examples:
        >>> weights = {"head": np.ones((4, 8), np.float32)}
        >>> made = vkpar.parallel.parallelize(weights, comm, {"*": vkpar.parallel.Only(1)})
        >>> made["head"].nbytes
        (0, 128)
    """

    rank: int


Rule = Column | Row | Mirrored | Only


def parallelize(
    weights: Mapping[str, Any],
    comm: Communicator,
    rules: Mapping[str, Rule],
    *,
    ratios: Ratios = "even",
    dtype: object = None,
) -> dict[str, Sharded]:
    """Put weights on the ranks, each by the one rule whose pattern matches its name.

    All rules and shapes are checked before anything is read or allocated.

    Args:
        weights: by name: what :func:`open_weights` returns, or arrays.
        comm: the communicator.
        rules: by pattern, in which ``*`` stands for any text, ``?`` for a character and ``[ab]`` for one of some; a
            rule that is a tensor's very name means that tensor.
        ratios: how much of a tensor each rank gets, see :func:`split`.
        dtype: what elements are converted to, quantised tensors included; by default they stay what they are.

    Raises:
        InvalidUsageError: names without a rule, or with several; rules that match nothing; a rule that does not fit a
            tensor. The message lists the names.
        OutOfMemoryError: no room.

    Examples:
        >>> weights = {"0.up": np.ones((8, 4), np.float32), "0.norm": np.ones(4, np.float32)}
        >>> rules = {"*.up": vkpar.parallel.Column(), "*.norm": vkpar.parallel.Mirrored()}
        >>> made = vkpar.parallel.parallelize(weights, comm, rules, ratios=[3, 1])
        >>> [part.shape for part in made["0.up"].parts], made["0.norm"].state
        ([(6, 4), (2, 4)], 'mirrored')
    """
    chosen = _chosen(list(weights), rules)
    exact = shares(comm, ratios)
    placed = {}
    for name, rule in chosen.items():
        try:
            placed[name] = _placed(weights[name], rule, comm, exact, dtype is None)
            if "axis" in placed[name]:
                check_cut(weights[name], comm, **placed[name], dtype=dtype)
        except InvalidUsageError as error:
            raise InvalidUsageError(f"{name}: {error}") from error
    return {name: shard(weights[name], comm, dtype=dtype, **placed[name]) for name in chosen}


def _chosen(names: Sequence[str], rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return each name's rule."""
    for pattern, rule in rules.items():
        if not isinstance(rule, Rule):
            raise InvalidUsageError(f"the rule of {pattern!r} is Column, Row, Mirrored or Only, not {rule!r}")
    alone = rules.keys() & set(names)  # brackets in a tensor's very name are no pattern
    matches = {
        name: [rule for rule in rules if (name == rule if rule in alone else fnmatchcase(name, rule))] for name in names
    }
    without = [name for name, found in matches.items() if not found]
    if without:
        raise InvalidUsageError(f"no rule matches {_listed(without)}; '*': Mirrored() would take what is left over")
    several = [f"{name} ({' and '.join(found)})" for name, found in matches.items() if len(found) > 1]
    if several:
        raise InvalidUsageError(f"several rules match {_listed(several)}: one tensor, one rule")
    used = {found[0] for found in matches.values()}
    for pattern in rules:
        if pattern not in used:
            raise WeightsError(f"no tensor matches the rule {pattern!r}; {alike(pattern, names)}")
    return {name: rules[found[0]] for name, found in matches.items()}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _placed(tensor: Any, rule: Rule, comm: Communicator, exact: Sequence[Any], keeps_blocks: bool) -> dict[str, Any]:
    """Return how :func:`shard` is to place a tensor."""
    shape = tuple(tensor.shape if hasattr(tensor, "shape") else np.shape(tensor))
    if isinstance(rule, Mirrored):
        return {}
    if isinstance(rule, Only):
        if type(rule.rank) is not int or not 0 <= rule.rank < comm.nranks:
            raise InvalidUsageError(f"rank {rule.rank!r} of {comm.nranks}")
        if not shape:
            raise InvalidUsageError("a tensor without dimensions lies on every rank: Mirrored()")
        return {
            "axis": 0,
            "split": cut(shape[0], [int(rank == rule.rank) for rank in range(comm.nranks)], max(shape[0], 1)),
        }
    if len(shape) < (2 if isinstance(rule, Row) else 1):
        raise InvalidUsageError(
            f"shape {shape}: a weight that is cut between inputs has two dimensions. A bias beside it is "
            "added once, to the sum: Mirrored()"
        )
    axis = 0 if isinstance(rule, Column) else len(shape) - 1
    segments = rule.segments if isinstance(rule, Column) else ()
    if rule.split is not None:
        return {"axis": axis, "split": rule.split, "segments": segments}
    unit = math.lcm(_unit(rule.unit), unit_of(tensor, axis) if keeps_blocks else 1)
    lengths = segments or (shape[axis],)
    return {"axis": axis, "split": [cut(length, exact, unit) for length in lengths], "segments": segments}


def _unit(unit: Any) -> int:
    if type(unit) is not int or unit < 1:
        raise InvalidUsageError(f"a unit is a whole number of at least 1, not {unit!r}")
    return unit
