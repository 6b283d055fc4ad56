"""Calls over several processes: each describes its part, and makes one call of all parts, which it then checks.

An array of another process is known by its form alone, and stands in the call in place of the array.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from vkpar.comm.requests import calls, collectives, movements
from vkpar.comm.requests.checks import check_array
from vkpar.comm.requests.keys import Call
from vkpar.comm.requests.there import ThereArray, ThereStorage, Told
from vkpar.comm.schedule.processes import Division
from vkpar.errors import InvalidUsageError, VkparError

_MOST_KNOWN = 4096
_ROOT_GIVES = {movements.SCATTER}  # one array, of the root's process
_ROOT_GETS = {collectives.REDUCE, movements.GATHER}  # one destination, of the root's process
_MAY_BE_IN_PLACE = {collectives.ALL_REDUCE}  # on some ranks, while others name a destination
LEAVE, GATHER = "group.leave", "gather.objects"  # besides collectives and launches
IN_GROUP, CAPTURED = "in a group", "inside vkpar.capture"  # places


@dataclass(frozen=True)
class CallPart:
    """What one process tells of a call.

    Attributes:
        head: all that must be alike; and so must ``place``, where it makes the call: :data:`IN_GROUP`,
            :data:`CAPTURED` or "" for neither.
        error: why it cannot make the call.
    """

    head: tuple[Hashable, ...]
    arrays: tuple[Any, ...] = ()
    out: tuple[Any, ...] = ()
    error: str = ""
    place: str = ""

    def told(self) -> bytes:
        """Return it as it is sent."""
        return pickle.dumps(self)

    def __str__(self) -> str:
        """Return the call in words, without what it leaves to defaults."""
        name, *rest = self.head
        if name == GATHER:
            words = str(rest[0])
        elif name == LEAVE:
            enqueue, number = rest
            words = (
                f"the end of a group of {number} collectives"
                if enqueue is True
                else "the end of a group by an exception"
            )
        else:
            named = zip(("op", "wire", "root", "counts"), rest, strict=False)
            given = [f"{key}={value!r}" for key, value in named if value is not None]
            words = f"{name}({', '.join(given)}{', without out=' if rest and rest[-1] is True else ''})"
        return f"{words} {self.place}" if self.place else words


_Arrays = tuple[tuple[Any, ...], tuple[Any, ...]]  # of one process: those of a call, and its destinations


class Agreed(Call):
    """A call of all processes' parts, in which arrays of other processes are stood for."""


class Agreement:
    """Makes calls of one process calls of all.

    Args:
        devices: by rank, the device or what stands for it.
        division: which process has which ranks.
        names: by process, what errors call it.
        check: refuses a call of all processes that cannot be made; every array in it is stood for, so that each process
            asks the same.
    """

    def __init__(
        self, devices: Sequence[Any], division: Division, names: Sequence[str], check: Callable[[Call], None]
    ) -> None:
        self._devices, self._division, self._names, self._refuse = devices, division, names, check
        self._ranks = division.ranks()
        self._described: dict[Hashable, bytes] = {}
        self._there: dict[tuple[bytes, ...], tuple[list[CallPart], list[_Arrays]]] = {}

    # ---- this process' part ----

    def describe(self, call: Call, group: object, place: str) -> tuple[bytes, VkparError | None]:
        """Return what this process tells of ``call``, and why it cannot make the call; None where it can."""
        key: Hashable
        try:
            key, _pins = call.key(group)
            try:
                known = self._described.get((place, key))
            except TypeError:  # an argument that cannot be hashed
                key, known = object(), None
            if known is None:
                part = self._part(call, place)
                if calls.is_strided(call):
                    calls.check_results(self._all_ranks(call))
                known = part.told()
            if calls.is_strided(call):
                self._check_free(call)
        except VkparError as error:
            return self.refusal(call.name, error), error
        if len(self._described) > _MOST_KNOWN:
            self._described.clear()
        if isinstance(key, tuple):
            self._described[place, key] = known
        return known, None

    def _check_free(self, call: Call) -> None:
        """Refuse views that are read and that the same group names: what stands for them is filled at once."""
        for array in calls.given_to(self._all_ranks(call)):
            if array is not None and array.steps is not None:
                array.storage.check_free(None)

    def _all_ranks(self, call: Call) -> Call:
        """Return a call with None for each array of other processes, and for what is no array."""
        first, after = self._ranks.start, self._division.nranks - self._ranks.stop

        def filled(given: Any, *, one: bool) -> tuple[Any, ...]:
            arrays = [None if isinstance(each, int) else each for each in given]
            around = 0 if one or call.name == movements.SEND_RECV else 1
            return (*[None] * first * around, *arrays, *[None] * after * around)

        arrays = filled(call.arrays, one=call.name in _ROOT_GIVES)
        return call._replace(arrays=arrays, out=call.out and filled(call.out, one=call.name in _ROOT_GETS))

    @staticmethod
    def refusal(name: str, error: VkparError) -> bytes:
        """Return what a process tells that cannot make a call."""
        return CallPart((name,), error=str(error)).told()

    def _part(self, call: Call, place: str) -> CallPart:
        if call.name == collectives.BARRIER:
            return CallPart((call.name,), place=place)
        numbers: dict[Hashable, int] = {}
        if call.name == movements.SEND_RECV:
            listed = enumerate(zip(call.arrays, call.out, strict=True))
            return CallPart(
                (call.name,), tuple(self._pair(index, *pair, numbers) for index, pair in listed), place=place
            )
        gives = self._of_root if call.name in _ROOT_GIVES else self._of_ranks
        gets = self._of_root if call.name in _ROOT_GETS else self._of_ranks
        arrays = gives(call.arrays, "arrays", call.root, numbers)
        out = () if call.out is None else gets(call.out, "out", call.root, numbers)
        placed = call.out is None and call.name not in _MAY_BE_IN_PLACE
        if not isinstance(call.op, (str, NoneType)) or not isinstance(call.wire, (str, NoneType)):
            raise InvalidUsageError(f"op and wire are names, not {call.op!r} and {call.wire!r}")
        return CallPart((call.name, call.op, call.wire, call.root, call.counts, placed), arrays, out, place=place)

    def _of_ranks(self, arrays: Any, name: str, _root: object, numbers: dict[Hashable, int]) -> tuple[Told | None, ...]:
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

    def _of_root(self, arrays: Any, name: str, root: int, numbers: dict[Hashable, int]) -> tuple[Told | None, ...]:
        """Return what is told of the one array, which the root's process gives."""
        if arrays[0] is None:
            return (None,)
        if root not in self._ranks:
            raise InvalidUsageError(f"{name} is given where the root, rank {root}, lives: it is None elsewhere")
        return (self._one(root, arrays[0], name, numbers),)

    def _one(self, rank: int, array: Any, name: str, numbers: dict[Hashable, int]) -> Told:
        steps = getattr(array, "steps", None)
        elements = check_array(self._devices, rank, array, name) if steps is None else None
        if elements is None and array.device is not self._devices[rank]:
            raise InvalidUsageError(f"{name} is on {array.device!r}, but rank {rank} is {self._devices[rank]!r}")
        if steps is None:
            return Told(array.size, array.dtype.name, _number(numbers, id(array.storage)), array.byte_offset)
        # What stands for a view lies apart, and once for the same elements, see vkpar.comm.engine.landing.Landing.
        view = id(array.storage), array.byte_offset, array.shape, steps, array.dtype.name
        return Told(array.size, array.dtype.name, _number(numbers, view), 0)

    def _words(self) -> str:
        ranks = self._ranks
        return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"

    def _pair(self, index: int, source: Any, target: Any, numbers: dict[Hashable, int]) -> tuple[int, Any, int, Any]:
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

    # ---- the call of all ----

    def check(self, payloads: Sequence[bytes], what: str) -> None:
        """Refuse what not every process calls alike; raises as :meth:`agree` does."""
        if len(set(payloads)) > 1:
            self._check([pickle.loads(payload) for payload in payloads], what)

    def agree(self, call: Call, payloads: Sequence[bytes], what: str) -> Call:
        """Return the call of all processes, from what they told.

        Raises:
            InvalidUsageError, UnsupportedError: a process makes another call, or the call cannot be made; every process
                raises that.
        """
        parts, there = self._known(call, tuple(payloads), what)
        there = list(there)
        there[self._division.me] = tuple(call.arrays), () if call.out is None else tuple(call.out)
        return self._joined(call, parts, there)

    def _known(self, call: Call, payloads: tuple[bytes, ...], what: str) -> tuple[list[CallPart], list[_Arrays]]:
        found = self._there.get(payloads)
        if found is None:
            parts = [pickle.loads(payload) for payload in payloads]
            self._check(parts, what)
            found = parts, [self._stood_for(number, part) for number, part in enumerate(parts)]
            self._refuse(self._joined(call, *found))
            if len(self._there) > _MOST_KNOWN:
                self._there.clear()
            self._there[payloads] = found
        return found

    def _check(self, parts: Sequence[CallPart], what: str) -> None:
        for number, part in enumerate(parts):
            if part.error:
                raise InvalidUsageError(f"{what}: {self._names[number]}: {part.error}")
        mine = parts[self._division.me]
        for number, part in enumerate(parts):
            if (part.head, part.place) != (mine.head, mine.place):
                raise InvalidUsageError(
                    f"{what}: {self._names[number]} calls {part}, {self._names[self._division.me]} {mine}: all must "
                    "make the same call"
                )

    def _stood_for(self, number: int, part: CallPart) -> _Arrays:
        """Return what stands for the arrays of process ``number``, and for its destinations."""
        storages: dict[int, ThereStorage] = {}
        if part.head[0] == movements.SEND_RECV:
            ends = [
                (self._stand_in(source_rank, source, storages), self._stand_in(target_rank, target, storages))
                for source_rank, source, target_rank, target in part.arrays
            ]
            return tuple(pair[0] for pair in ends), tuple(pair[1] for pair in ends)
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

    def _joined(self, call: Call, parts: Sequence[CallPart], there: Sequence[_Arrays]) -> Call:
        """Return the call of all, from the arrays and destinations of each process."""
        if call.name == movements.SEND_RECV:
            return self._paired(call, parts, there)
        owner = 0 if call.root is None else self._division.processes[call.root]
        given, outs = [item[0] for item in there], [item[1] for item in there]
        arrays = given[owner] if call.name in _ROOT_GIVES else tuple(itertools.chain.from_iterable(given))
        if call.name in _ROOT_GETS:
            out: Any = outs[owner]
        elif not any(part.out for part in parts):
            out = None
        else:
            filled = [item or (None,) * len(self._division.ranks(number)) for number, item in enumerate(outs)]
            out = tuple(itertools.chain.from_iterable(filled))
        return Agreed(call.name, arrays, out, *call[3:])

    @staticmethod
    def _paired(call: Call, parts: Sequence[CallPart], there: Sequence[_Arrays]) -> Call:
        """Return the pairs of all processes: those of process 0 in order, and so on, each with its other end."""
        waiting: dict[tuple[int, int], list[Any]] = {}
        sent: list[tuple[int, Any, int, Any]] = []
        for part, ends in zip(parts, there, strict=True):
            for (source_rank, source, target_rank, target), given, taken in zip(part.arrays, *ends, strict=True):
                if source is None:
                    waiting.setdefault((source_rank, target_rank), []).append(taken)
                else:
                    sent.append((source_rank, given, target_rank, None if target is None else taken))
        pairs = []
        for source_rank, given, target_rank, taken in sent:
            others = waiting.get((source_rank, target_rank))
            if taken is None and not others:
                raise InvalidUsageError(
                    f"send_recv: rank {target_rank} receives less from rank {source_rank} than it sends"
                )
            pairs.append((given, taken if taken is not None or others is None else others.pop(0)))
        left = next((ends for ends, arrays in waiting.items() if arrays), None)
        if left is not None:
            raise InvalidUsageError(f"send_recv: rank {left[0]} sends less to rank {left[1]} than that receives")
        return Agreed(call.name, tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs), *call[3:])


def _number(numbers: dict[Hashable, int], what: Hashable) -> int:
    return numbers.setdefault(what, len(numbers))
