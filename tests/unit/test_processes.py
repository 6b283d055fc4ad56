"""Schedules divided among processes: both ends of a crossing know of it, and nothing waits in a circle."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from helpers.process.children import check_child

from vkpar.bench.measure.job import sharing
from vkpar.comm.engine.flights import Flight
from vkpar.comm.rig.processes import mpi
from vkpar.comm.rig.processes.world import World
from vkpar.comm.schedule import processes
from vkpar.comm.schedule.algorithms import barrier, p2p
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.processes import RECEIVE, SEND, Division, divided
from vkpar.comm.schedule.steps import BLOCK, Carry, Move, Problem, SlotSet, Span, Step
from vkpar.errors import UnsupportedError

DIVISIONS = [(1, 1), (2, 1), (1, 3), (2, 2), (1, 2, 1), (1, 1, 1, 2)]


def schedules(n: int) -> Iterator[tuple[str, list[Step]]]:
    """Yield every algorithm's steps, over segments that fill all slots several times."""
    for name, algorithm in TABLE.items():
        slots = SlotSet(n, max(4, 2 * n), 1)
        for count in (1, 40 * BLOCK + 3):
            if "all_reduce" in algorithm.collectives:
                groups = tuple(rank // 2 for rank in range(n))
                yield name, list(algorithm.steps(Problem(n, count, slots, tuple(range(n)), groups=groups)))
    moves = [
        Move(Span(BLOCK * 9 * rank, 9 * BLOCK - 1), rank, tuple(o for o in range(n) if o != rank)) for rank in range(n)
    ]
    yield "p2p", list(p2p.steps(moves, SlotSet(n, 4, 1)))
    yield "barrier", list(barrier.steps(SlotSet(n, 4, 1)))


def carried(steps: list[Step], queue: int) -> list[tuple[str, list[tuple[Span | None, int, bool]]]]:
    """Return what crosses on a queue, in order."""
    return [
        (step.phase, [(action.span, action.slot, action.final) for action in step.actions if isinstance(action, Carry)])
        for step in steps
        if step.rank == queue
    ]


@pytest.mark.parametrize("counts", DIVISIONS)
def test_both_ends_list_the_same_crossings_in_the_same_order(counts: tuple[int, ...]) -> None:
    for name, steps in schedules(sum(counts)):
        divisions = [Division(counts, me) for me in range(len(counts))]
        parts = [list(divided(steps, division)) for division in divisions]
        crossed = 0
        for a, division in enumerate(divisions):
            for b in division.others:
                sent = carried(parts[a], division.queue(b, sends=True))
                got = carried(parts[b], divisions[b].queue(a, sends=False))
                assert [moved for _, moved in sent] == [moved for _, moved in got], (name, a, b)
                assert {phase for phase, _ in sent} <= {SEND}
                assert {phase for phase, _ in got} <= {RECEIVE}
                crossed += len(sent)
        assert crossed, name
        own = sum(step.rank < counts[me] for me, part in enumerate(parts) for step in part)
        assert own == len(steps), name


@pytest.mark.parametrize("counts", DIVISIONS)
def test_what_slots_hold_is_what_the_one_schedule_says_and_all_ends(counts: tuple[int, ...]) -> None:
    rng = random.Random(str(counts))
    for name, steps in schedules(sum(counts)):
        for _ in range(3):
            team = [
                _Process(list(divided(steps, Division(counts, me))), Division(counts, me)) for me in range(len(counts))
            ]
            moved = True
            while moved:
                moved = False
                heads = [(one, queue) for one in team for queue in one.queues]
                rng.shuffle(heads)
                for one, queue in heads:
                    moved |= one.advance(queue, team)
            assert not any(queue for one in team for queue in one.queues.values()), f"{name}: stands still"


class _Process:
    """One process: queues in order, each step waits as the pump has it wait, slots hold the step that filled them.

    Attributes:
        queues: by number, the steps that were not done.
    """

    def __init__(self, steps: list[Step], division: Division) -> None:
        self.division = division
        self.queues: dict[int, list[int]] = {}
        self._steps, self._done = steps, [False] * len(steps)
        self._needs: list[list[int]] = []
        self._filled: list[dict[int, int]] = []  # by step, whose content each slot that it reads must hold
        self._slots: dict[int, int] = {}
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            self.queues.setdefault(step.rank, []).append(number)
            self._filled.append({slot: writer[slot] for slot in step.reads})
            needs = [writer[slot] for slot in step.reads]
            for slot in step.reads:
                readers.setdefault(slot, []).append(number)
            for slot in step.writes:
                needs += [*readers.pop(slot, []), *([writer[slot]] if slot in writer else [])]
                writer[slot] = number
            self._needs.append(needs)

    def ready(self, queue: int) -> bool:
        return bool(self.queues.get(queue)) and all(self._done[need] for need in self._needs[self.queues[queue][0]])

    def advance(self, queue: int, team: list[_Process]) -> bool:
        """Do the head of a queue where it may begin; what crosses ends at both ends at once."""
        if not self.ready(queue):
            return False
        phase = self._steps[self.queues[queue][0]].phase
        if phase == RECEIVE:
            return False  # its sender does both
        if phase == SEND:
            peer = self.division.others[(queue - self.division.counts[self.division.me]) // 2]
            other = team[peer].division.queue(self.division.me, sends=False)
            if not team[peer].ready(other):
                return False
            team[peer].finish(other)
        self.finish(queue)
        return True

    def finish(self, queue: int) -> None:
        number = self.queues[queue].pop(0)
        for slot, content in self._filled[number].items():
            assert self._slots[slot] == content, "a slot was overwritten before it was read"
        self._slots.update(dict.fromkeys(self._steps[number].writes, number))
        self._done[number] = True


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (4, 4), (2, 2, 2), (1, 1, 1, 1)])
def test_what_crosses_is_what_the_page_says(counts: tuple[int, ...]) -> None:
    """Blocks that each process sends to others, of an array of n chunks of two blocks."""
    processes_, k, n = len(counts), counts[0], sum(counts)
    groups = tuple(Division(counts, 0).processes)
    wanted = {
        "two_shot": k * (n - k) * 2 + k * (processes_ - 1) * 2,
        "two_level": (n - k) * 2 + k * (processes_ - 1) * 2,
        "ring": 2 * (n - 1) * 2,
    }
    for name, blocks in wanted.items():
        slots = SlotSet(n, max(4, 2 * n), 2)
        problem = Problem(n, 2 * n * BLOCK, slots, tuple(range(n)), groups=groups)
        for me in range(processes_):
            steps = divided(list(TABLE[name].steps(problem)), Division(counts, me))
            sent = [
                action.span
                for step in steps
                if step.phase == SEND
                for action in step.actions
                if isinstance(action, Carry)
            ]
            assert sum(span.blocks for span in sent if span) == blocks, (name, counts)


def test_a_division_knows_its_ranks() -> None:
    division = Division((2, 1, 3), 1)
    assert division.nranks == 6
    assert division.ranks() == range(2, 3)
    assert division.ranks(2) == range(3, 6)
    assert division.processes == [0, 0, 1, 2, 2, 2]
    assert [division.queue(process, sends=sends) for process in (0, 2) for sends in (True, False)] == [1, 2, 3, 4]
    assert processes.SEND != processes.RECEIVE


def test_mpi4py_is_loaded_where_it_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check_child("import sys, vkpar; vkpar.Communicator; assert 'mpi4py' not in sys.modules")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UnsupportedError, match="pip install mpi4py mpich"):
        mpi.check(object())


def test_hosts_whose_processes_share_processors_are_named() -> None:
    hosts = ["a", "a", "b", "b", "c"]
    assert sharing(hosts, [{0}, {1}, {0, 1}, {0, 1}, {0}]) == ["b"]
    assert sharing(hosts, [{0, 1}, {1, 2}, {0}, set(), {0}]) == ["a"]
    assert sharing(["a"], [{0}]) == []


def test_who_waits_for_several_batches_of_a_device_waits_for_other_processes_first() -> None:
    def order(*phases: tuple[str, ...]) -> list[int]:
        return list(Flight("all_reduce", 1, {}, phases, lambda: [1] * len(phases)).order())

    assert order(("reduce",), ("send",), ("receive",)) == [0, 1, 2]
    assert order(("reduce", "gather"), ("send",), ("receive",)) == [2, 1, 0]
    assert order() == []


def test_processes_on_several_hosts_are_apart() -> None:
    world = World.__new__(World)
    for hosts, apart in (("aa", False), ("aba", True)):
        world.members = [SimpleNamespace(host=host) for host in hosts]  # type: ignore[misc]
        assert world.is_apart == apart
