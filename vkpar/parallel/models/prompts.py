"""A prompt's way through the blocks of a decoder, a piece at a time."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Iterable, Sequence, Sized
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, OutOfMemoryError
from vkpar.graph.capture import capture
from vkpar.graph.graph import Graph
from vkpar.parallel.layers.moving import carried
from vkpar.parallel.layers.norms import Inputs, Parts, present, there
from vkpar.parallel.plan.scratch import captured_on

_log = logging.getLogger("vkpar")
_LEAST: Final = 128  # tokens: shorter pieces come in all lengths
_Ids = NDArray[np.uint32]


def listed(tokens: Iterable[int], most: int) -> Sequence[int]:
    """Return ids that can be gone through again: of an iterator, which may have no end, one more than ``most``."""
    given: Any = tokens
    return list(islice(given, most + 1)) if isinstance(given, Iterable) and not isinstance(given, Sized) else given


def checked(tokens: Sequence[int], vocabulary: int, where: str = "") -> NDArray[np.uint32]:
    """Return ids of a vocabulary as an array.

    Raises:
        InvalidUsageError: none, something else than whole numbers, or one that is none of the vocabulary; ``where``
            begins the message.
    """
    try:
        ids = np.asarray(tokens)
    except ValueError:  # lists of unlike lengths
        ids = np.empty((0, 0))
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise InvalidUsageError(f"{where}tokens are a sequence of at least one id, not {reprlib.repr(tokens)}")
    wrong = ids[(ids < 0) | (ids >= vocabulary)]
    if wrong.size:
        raise InvalidUsageError(f"{where}token {wrong[0]} is none of the {vocabulary} of the vocabulary")
    return ids.astype(np.uint32)


class Stage(NamedTuple):
    """Blocks that have the residual stream on the same ranks.

    Attributes:
        ranks: those.
        first: the number of the first block.
        stop: that of the last, and one more.
    """

    ranks: tuple[int, ...]
    first: int
    stop: int


Through = Callable[[Stage, Parts, Parts], tuple[Parts, Inputs]]
"""Takes tokens, (T,) uint32 by rank, or what comes out of the stage before, and positions alike, through a stage: gives
the residual stream, and its norm after the last block."""


def stages_of(streams: Sequence[tuple[int, ...]]) -> list[Stage]:
    """Return the stages of blocks that have the residual stream on these ranks."""
    starts = [block for block, ranks in enumerate(streams) if not block or ranks != streams[block - 1]]
    return [Stage(streams[first], first, stop) for first, stop in zip(starts, [*starts[1:], len(streams)], strict=True)]


class _Captured(NamedTuple):
    """A stage's graph.

    Attributes:
        graph: of all ranks where there is one stage, else of the stage's rank.
        given: what it takes; None for tokens.
        stream: what it gives to the next stage.
        normed: what the last one gives.
    """

    graph: Graph
    given: Parts | None
    stream: Parts
    normed: Inputs


class Pieces:
    """Runs pieces of a prompt, eagerly, and by graphs those of a length that comes twice in a row.

    So kernels are made and measured before a capture. What a graph computes in between has memory of its own; there is
    one length that is captured at a time.

    Where blocks lie on several ranks, each has a graph of its own, and the moves between them run eagerly: of one graph
    for all, the work of a rank between two moves would be one stretch, and what is sent to it would count as taken at
    the end of that. So launches would wait for each other, where the ranks are to work on different pieces at a time.

    Args:
        comm: the communicator.
        rows: tokens of a piece at most.
        streams: by block, the ranks that have the residual stream.
        width: of that.

    Attributes:
        stages: of the blocks.
        captures: a length that comes twice is captured; not on CPUs, nor where a graph had no room.
        halved: the tokens of the shortest pieces that go through in two halves of their rows; 0 where none do. In
            graphs, the sums of one half run beside products of the other.
    """

    def __init__(self, comm: Communicator, rows: int, streams: Sequence[tuple[int, ...]], width: int) -> None:
        self._comm, self._width = comm, width
        self.stages = stages_of(streams)
        self.halved = 0
        joins = len(self.stages) > 1 and not rig.is_whole(comm)  # graphs of several processes
        self.captures = captured_on(rig.everywhere(comm)) and not joins
        self._least = min(rows, _LEAST)
        self._latest = 0  # tokens of the latest piece
        self._rows = 0  # of the graphs
        self._graphs: list[_Captured] = []
        self._inputs: list[Array] = []

    def in_halves(self, rows: int) -> bool:
        """Say whether a piece of so many tokens goes through in two halves."""
        return 0 < self.halved <= rows

    def run(self, through: Through, tokens: _Ids, positions: _Ids) -> Inputs:
        """Return what comes out of the blocks, by rank; the next piece may overwrite it.

        Args:
            through: always the same.
            tokens: of the piece.
            positions: where they are in the text.
        """
        count, latest = len(tokens), self._latest
        self._latest = count
        again = self.captures and count == latest and count >= self._least
        if count != self._rows and not (again and self._captured(through, count)):
            return self._eager(through, tokens, positions)
        both = np.stack((tokens, positions))
        for device, part in zip(self._comm.devices, self._inputs, strict=True):
            if len(self.stages) == 1:
                part.write(both)
            else:  # in program order: the host could have to wait for the piece before
                part.copy_from(device.array(both))
        return self._launched()

    def _launched(self) -> Inputs:
        """Launch the graphs, and move the stream from each to the next."""
        last: _Captured | None = None
        for each in self._graphs:
            if last is not None and each.given is not None:
                pairs = [(there(last.stream, present(last.stream)[0]), there(each.given, present(each.given)[0]))]
                self._comm.send_recv(pairs)
            each.graph.launch()
            last = each
        assert last is not None
        return last.normed

    def _eager(self, through: Through, tokens: _Ids, positions: _Ids) -> Inputs:
        """Run a piece without a graph; where there is no room beside one, give that up and run it again."""
        comm = self._comm
        try:
            both = [
                rig.by_rank(comm, [device.array(values) for device in comm.devices]) for values in (tokens, positions)
            ]
            return through_all(self.stages, through, comm, both[0], both[1], self._width)[1]
        except OutOfMemoryError as error:
            if not self._graphs:
                raise
            self._give_up(error)
        return self._eager(through, tokens, positions)

    def _captured(self, through: Through, rows: int) -> bool:
        """Capture pieces of so many tokens, where there is room for that."""
        try:
            self._capture(through, rows)
        except OutOfMemoryError as error:
            self._give_up(error)
        return self.captures

    def _give_up(self, error: OutOfMemoryError) -> None:
        """Never capture again, and say why."""
        self.close()
        self.captures = False
        _log.warning("prompts run without a graph, which has no room: %s", error)

    def _capture(self, through: Through, rows: int) -> None:
        self.close()
        comm = self._comm
        self._inputs = [device.zeros((2, rows), "uint32") for device in comm.devices]
        tokens = rig.by_rank(comm, [part[0] for part in self._inputs])
        positions = rig.by_rank(comm, [part[1] for part in self._inputs])
        for stage in self.stages:
            given: Parts | None = None
            devices, sums = comm.devices, comm if comm.nranks > 1 else None
            if len(self.stages) > 1:
                devices, sums = (comm.devices[stage.ranks[0]],), None
            if self._graphs:
                given = _like(self._graphs[-1].stream, stage.ranks[0], comm)
            with capture(devices, comm=sums, overlap=self.in_halves(rows)) as graph:
                stream, normed = through(stage, tokens if given is None else given, positions)
            self._graphs.append(_Captured(graph, given, stream, normed))
        self._rows = rows

    def close(self) -> None:
        """Free the graphs; a second call does nothing."""
        graphs, self._graphs = self._graphs, []
        self._inputs, self._rows = [], 0
        for each in graphs:
            each.graph.close()


def _like(x: Parts, rank: int, comm: Communicator) -> Parts:
    """Return an array on one rank for what another one has."""
    source = there(x, present(x)[0])
    made: Parts = [None] * comm.nranks
    made[rank] = comm.devices[rank].empty(source.shape, source.dtype)
    return made


def through_all(
    stages: Sequence[Stage], through: Through, comm: Communicator, tokens: Parts, positions: Parts, width: int
) -> tuple[Parts, Inputs]:
    """Return the residual stream after all stages, moved from each to the next, and its norm.

    A process that has none of a stage's ranks makes the calls that move the stream, too.
    """
    shape = there(tokens, comm.local_ranks.start).size, width
    stream: Parts = [None] * comm.nranks
    normed: Inputs = stream
    for number, stage in enumerate(stages):
        given = tokens if not number else carried(stream, comm, stages[number - 1].ranks[0], stage.ranks[0], shape)
        stream, normed = through(stage, given, positions)
    return stream, normed
