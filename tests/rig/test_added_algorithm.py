"""A sixth algorithm is one schedule and one row of the table: everything else takes it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from helpers.comm.scheduling import posed, reduction, run, slots_for, split

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.comm.plan import choose
from vkpar.comm.schedule.algorithms.table import TABLE, Algorithm
from vkpar.comm.schedule.pipeline import pipelined, segments
from vkpar.comm.schedule.primitives import recv_copy, recv_reduce_copy_send, recv_reduce_send
from vkpar.comm.schedule.steps import Problem, Span, Step
from vkpar.comm.tune import measure

Open = Callable[..., vkpar.Communicator]


def steps(problem: Problem) -> Iterator[Step]:
    """Hand a growing sum from rank to rank; the last one finishes it, and all others take it from there."""
    parts = segments(Span(0, problem.count), problem.slots.blocks)
    return pipelined([_stages(problem, index + problem.generation, span) for index, span in enumerate(parts)])


def _stages(problem: Problem, turn: int, span: Span) -> list[list[Step]]:
    slots = [problem.slots.slot(rank, turn % 2) for rank in range(problem.nranks)]
    last, stages, sources = problem.nranks - 1, [], ()
    for rank in range(last):
        if sources or problem.contributes(rank):
            own_at = len(sources) if problem.contributes(rank) else None
            stages.append([Step(rank, "hand on", (recv_reduce_send(span, sources, own_at, slots[rank]),))])
            sources = (slots[rank],)
    own_at = len(sources) if problem.contributes(last) else None
    to = slots[last] if problem.sent(last) else None
    stages.append([Step(last, "finish", (recv_reduce_copy_send(span, sources, own_at, to),))])
    return [*stages, [Step(rank, "take", (recv_copy(span, slots[last]),)) for rank in range(last)]]


CHAIN = Algorithm("chain", steps, lambda _nranks: 2, frozenset({"all_reduce"}), most_ranks=5, sums_travel=True)


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that adds it."""
    monkeypatch.setitem(TABLE, CHAIN.name, CHAIN)


@pytest.mark.parametrize("nranks", range(1, 6))
def test_the_simulator_runs_it(nranks: int) -> None:
    slots = slots_for(CHAIN, nranks, 1)
    silent = [0] if nranks > 2 else []
    run([reduction("chain", posed("all_reduce", split(5000, nranks), slots, silent, call)) for call in (0, 1)], slots)


def test_the_row_is_asked_for_everything() -> None:
    assert choose.check("chain") == "chain"
    with pytest.raises(InvalidUsageError, match="naive, chain"):
        choose.check("train")
    six = posed("all_reduce", split(5000, 6), slots_for(CHAIN, 6, 1))
    with pytest.raises(UnsupportedError, match="chain sums at most 5 ranks; there are 6"):
        CHAIN.steps(six)


@pytest.mark.rig
@pytest.mark.parametrize("letters", ["LL", "LLS"])
def test_a_communicator_takes_it(rig: Open, letters: str) -> None:
    comm = rig(letters, algorithm="chain")
    rng = np.random.default_rng(6)
    for count in (1, 1000, 300_000):
        parts = [rng.standard_normal(count) for _ in letters]
        arrays = [device.array(part, "float32") for device, part in zip(comm.devices, parts, strict=True)]
        comm.all_reduce(arrays, wire="f32").wait()
        first, *others = [array.numpy() for array in arrays]
        assert all(first.tobytes() == other.tobytes() for other in others)
        assert np.allclose(first, sum(parts), rtol=1e-5, atol=1e-5)
    gathered = [device.zeros(100) for device in comm.devices]
    out = [device.zeros(part) for device, part in zip(comm.devices, split(100, comm.nranks), strict=True)]
    comm.reduce_scatter(gathered, out=out).wait()  # which it does not do: the built-in choice does


@pytest.mark.rig
@pytest.mark.parametrize("tuned", [True, False])
def test_the_tuner_times_it(rig: Open, monkeypatch: pytest.MonkeyPatch, tuned: bool) -> None:
    monkeypatch.setitem(TABLE, "chain", replace(CHAIN, tuned=tuned))
    monkeypatch.setattr(measure, "_sizes_of", lambda _wire: (256 << 10,))
    comm = rig("LL")
    wanted = {name for name, algorithm in TABLE.items() if algorithm.tuned}
    assert {trial.algorithm for trial in comm.measure(20.0).trials} == wanted
