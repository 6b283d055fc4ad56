"""Calls over several processes: each describes its part, and makes one call of all parts, which it then checks.

An array of another process is known by its form alone, and stands in the call in place of the array.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.checks import check_array
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.there import ThereArray, ThereStorage, Told
from vkpar.comm.schedule.processes import Division
from vkpar.errors import InvalidUsageError, VkparError

_MOST_KNOWN = 4096
_ROOT_GIVES = {movements.SCATTER}  # one array, of the root's process
_ROOT_GETS = {collectives.REDUCE, movements.GATHER}  # one destination, of the root's process
_MAY_BE_IN_PLACE = {collectives.ALL_REDUCE}  # on some ranks, while others name a destination


@dataclass(frozen=True)
class CallPart:
    """What one process tells of a call: all that must be alike in ``head``; ``error`` where it cannot make the call."""

    head: tuple[Hashable, ...]
    arrays: tuple[Any, ...] = ()
    out: tuple[Any, ...] = ()
    error: str = ""


class Agreed(Call):
    """A call of all processes' parts, in which arrays of other processes are stood for."""


class Agreement:
    """Makes calls of one process calls of all.

    Args:
        devices: by rank, the device or what stands for it.
        division: which process has which ranks.
        names: by process, what errors call it.
    """

    def __init__(self, devices: Sequence[Any], division: Division, names: Sequence[str]) -> None:
        self._devices, self._division, self._names = devices, division, names
        self._ranks = division.ranks()
        self._described: dict[Hashable, bytes] = {}
        self._there: dict[tuple[bytes, ...], tuple[list[CallPart], list[Any]]] = {}

    # ---- this process' part ----

    def describe(self, call: Call, group: object) -> tuple[bytes, VkparError | None]:
        """Return what this process tells of ``call``, and why it cannot make the call; None where it can."""
        try:
            key, _pins = call.key(group)
            known = self._described.get(key)
        except VkparError as error:
            return pickle.dumps(CallPart((call.name,), error=str(error))), error
        except TypeError:  # an argument that cannot be hashed
            key, known = object(), None
        if known is None:
            try:
                known = pickle.dumps(self._part(call))
            except VkparError as error:
                return pickle.dumps(CallPart((call.name,), error=str(error))), error
            if len(self._described) > _MOST_KNOWN:
                self._described.clear()
            if isinstance(key, tuple):
                self._described[key] = known
        return known, None

    def _part(self, call: Call) -> CallPart:
        if call.name == collectives.BARRIER:
            return CallPart((call.name,))
        numbers: dict[int, int] = {}
        if call.name == movements.SEND_RECV:
            listed = enumerate(zip(call.arrays, call.out, strict=True))
            return CallPart((call.name,), tuple(self._pair(index, *pair, numbers) for index, pair in listed))
        gives = self._of_root if call.name in _ROOT_GIVES else self._of_ranks
        gets = self._of_root if call.name in _ROOT_GETS else self._of_ranks
        arrays = gives(call.arrays, "arrays", call.root, numbers)
        out = () if call.out is None else gets(call.out, "out", call.root, numbers)
        placed = call.out is None and call.name not in _MAY_BE_IN_PLACE
        if not isinstance(call.op, (str, NoneType)) or not isinstance(call.wire, (str, NoneType)):
            raise InvalidUsageError(f"op and wire are names, not {call.op!r} and {call.wire!r}")
        return CallPart((call.name, call.op, call.wire, call.root, call.counts, placed), arrays, out)

    def _of_ranks(self, arrays: Any, name: str, _root: object, numbers: dict[int, int]) -> tuple[Told | None, ...]:
        """Return what is told of an array for each rank of this process."""
        wanted = len(self._ranks)
        if not isinstance(arrays, Sequence) or len(arrays) != wanted:
            given = len(arrays) if isinstance(arrays, Sequence) else type(arrays).__name__
            raise InvalidUsageError(
                f"{name} takes one array per rank of this process, {wanted} ({self._words()}); got {given}"
            )
        named = [
            (rank, array, f"{name}[{at}], of rank {rank}")
            for at, (rank, array) in enumerate(zip(self._ranks, arrays, strict=True))
        ]
        return tuple(None if array is None else self._one(rank, array, words, numbers) for rank, array, words in named)

    def _of_root(self, arrays: Any, name: str, root: int, numbers: dict[int, int]) -> tuple[Told | None, ...]:
        """Return what is told of the one array, which the root's process gives."""
        if arrays[0] is None:
            return (None,)
        if root not in self._ranks:
            raise InvalidUsageError(f"{name} is given where the root, rank {root}, lives: it is None elsewhere")
        return (self._one(root, arrays[0], name, numbers),)

    def _one(self, rank: int, array: Any, name: str, numbers: dict[int, int]) -> Told:
        steps = getattr(array, "steps", None)
        elements = check_array(self._devices, rank, array, name) if steps is None else None
        if elements is None and array.device is not self._devices[rank]:
            raise InvalidUsageError(f"{name} is on {array.device!r}, but rank {rank} is {self._devices[rank]!r}")
        memory = numbers.setdefault(id(array.storage), len(numbers))
        return Told(array.size, array.dtype.name, memory, array.byte_offset)

    def _words(self) -> str:
        ranks = self._ranks
        return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"

    def _pair(self, index: int, source: Any, target: Any, numbers: dict[int, int]) -> tuple[int, Any, int, Any]:
        """Return a pair's ranks and arrays; a rank stands for an array of another process."""
        ends: list[Any] = []
        for end, name in ((source, "source"), (target, "target")):
            if isinstance(end, int) and not isinstance(end, bool):
                if not 0 <= end < self._division.nranks or end in self._ranks:
                    raise InvalidUsageError(f"the {name} of pair {index} is {end}, no rank of another process")
                ends += [end, None]
                continue
            rank = next((rank for rank in self._ranks if self._devices[rank] is getattr(end, "device", None)), None)
            if rank is None:
                raise InvalidUsageError(f"the {name} of pair {index}, {end!r}, is no array of this process' devices")
            ends += [rank, self._one(rank, end, f"the {name} of pair {index}", numbers)]
        if ends[1] is None and ends[3] is None:
            raise InvalidUsageError(f"pair {index} names no array: each pair has one of this process at least")
        return ends[0], ends[1], ends[2], ends[3]

    @staticmethod
    def launch(number: int) -> bytes:
        """Return what a process tells of a launch of graph ``number``."""
        return pickle.dumps(CallPart((f"graph {number}.launch",)))

    # ---- the call of all ----

    def check(self, payloads: Sequence[bytes], what: str) -> None:
        """Refuse what not every process calls alike; raises as :meth:`agree` does."""
        if len(set(payloads)) > 1:
            self._check([pickle.loads(payload) for payload in payloads], what)

    def agree(self, call: Call, payloads: Sequence[bytes], what: str) -> Call:
        """Return the call of all processes, from what they told.

        Raises:
            InvalidUsageError: a process makes another call, or cannot make it; every process raises that.
        """
        parts, there = self._known(tuple(payloads), what)
        if call.name == movements.SEND_RECV:
            return self._paired(call, parts, there)
        me = self._division.me
        if call.name in _ROOT_GIVES:
            arrays = self._root(call.arrays, call.root, [item[0] for item in there])
        else:
            arrays = self._joined(call.arrays, [item[0] for item in there])
        outs = [item[1] for item in there]
        if call.name in _ROOT_GETS:
            out: Any = self._root(call.out, call.root, outs)
        elif all(not part.out for part in parts) and call.out is None:
            out = None
        else:
            blank = [(None,) * len(self._division.ranks(number)) for number in range(len(parts))]
            filled = [item or blank[number] for number, item in enumerate(outs)]
            out = self._joined(blank[me] if call.out is None else call.out, filled)
        return Agreed(call.name, arrays, out, *call[3:])

    def _known(self, payloads: tuple[bytes, ...], what: str) -> tuple[list[CallPart], list[Any]]:
        found = self._there.get(payloads)
        if found is None:
            parts = [pickle.loads(payload) for payload in payloads]
            self._check(parts, what)
            found = parts, [self._stood_for(number, part) for number, part in enumerate(parts)]
            if len(self._there) > _MOST_KNOWN:
                self._there.clear()
            self._there[payloads] = found
        return found

    def _check(self, parts: Sequence[CallPart], what: str) -> None:
        for number, part in enumerate(parts):
            if part.error:
                raise InvalidUsageError(f"{what}: {self._names[number]}: {part.error}")
        mine = parts[self._division.me].head
        for number, part in enumerate(parts):
            if part.head != mine:
                raise InvalidUsageError(
                    f"{what}: {self._names[number]} calls {_call_words(part.head)}, "
                    f"{self._names[self._division.me]} {_call_words(mine)}: all must make the same call"
                )

    def _stood_for(self, number: int, part: CallPart) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what stands for the arrays of process ``number``, and for its destinations."""
        if number == self._division.me or part.head[0] == movements.SEND_RECV:
            return (), ()
        storages: dict[int, ThereStorage] = {}
        ranks = self._division.ranks(number)
        root = part.head[3] if len(part.head) > 3 else None

        def of(listed: Sequence[Told | None], *, one: bool) -> tuple[Any, ...]:
            first = root if one and isinstance(root, int) else ranks.start
            return tuple(self._stand_in(first + at, told, storages) for at, told in enumerate(listed))

        return of(part.arrays, one=part.head[0] in _ROOT_GIVES), of(part.out, one=part.head[0] in _ROOT_GETS)

    def _stand_in(self, rank: int, told: Told | None, storages: dict[int, ThereStorage]) -> ThereArray | None:
        if told is None:
            return None
        storage = storages.setdefault(told.memory, ThereStorage())
        return ThereArray(self._devices[rank], told, storage, ("there", rank, *told))

    def _joined(self, mine: Sequence[Any], there: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        me = self._division.me
        return tuple(array for number, arrays in enumerate(there) for array in (mine if number == me else arrays))

    def _root(self, mine: Sequence[Any], root: int, there: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        owner = self._division.processes[root]
        return tuple(mine) if owner == self._division.me else tuple(there[owner])

    def _paired(self, call: Call, parts: Sequence[CallPart], _there: Any) -> Call:
        """Return the pairs of all processes: those of process 0 in order, and so on, each with its other end."""
        storages: list[dict[int, ThereStorage]] = [{} for _ in parts]
        waiting: dict[tuple[int, int], list[Any]] = {}
        sent: list[tuple[int, Any, int, Any]] = []
        for number, part in enumerate(parts):
            for index, (source_rank, source, target_rank, target) in enumerate(part.arrays):
                own = number == self._division.me
                given = call.arrays[index] if own else self._stand_in(source_rank, source, storages[number])
                taken = call.out[index] if own else self._stand_in(target_rank, target, storages[number])
                if source is None:
                    waiting.setdefault((source_rank, target_rank), []).append(taken)
                else:
                    sent.append((source_rank, given, target_rank, None if target is None else taken))
        pairs = []
        for source_rank, given, target_rank, taken in sent:
            there = waiting.get((source_rank, target_rank))
            if taken is None and not there:
                raise InvalidUsageError(
                    f"send_recv: rank {target_rank} receives less from rank {source_rank} than it sends"
                )
            pairs.append((given, taken if taken is not None or there is None else there.pop(0)))
        left = next((ends for ends, arrays in waiting.items() if arrays), None)
        if left is not None:
            raise InvalidUsageError(f"send_recv: rank {left[0]} sends less to rank {left[1]} than that receives")
        return Agreed(call.name, tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs), *call[3:])


def _call_words(head: tuple[Hashable, ...]) -> str:
    """Return a call in words, without what it leaves to defaults."""
    if len(head) == 1:
        return f"{head[0]}()"
    named = zip(("op", "wire", "root", "counts"), head[1:5], strict=True)
    words = [f"{name}={value!r}" for name, value in named if value is not None]
    return f"{head[0]}({', '.join(words)}{', without out=' if head[5] is True else ''})"
