"""A prompt's way through the blocks of a decoder, a piece at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar.arrays.array import Array
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import OutOfMemoryError
from vkpar.graph.capture import capture
from vkpar.parallel.norms import Inputs, Parts

_log = logging.getLogger("vkpar")
_LEAST: Final = 128  # tokens: shorter pieces come in all lengths
_Ids = NDArray[np.uint32]
Blocks = Callable[[Parts, Parts], Inputs]
"""Takes tokens and their positions by rank, (T,) uint32, through the blocks."""


def captured_on(devices: Sequence[Device]) -> bool:
    """Say whether pieces are captured: on GPUs, which wait for the host between the operations of eager work.

    On a CPU the host costs nothing beside the operations, and what runs between two collectives of a graph could take
    longer than the communicator's timeout.
    """
    return not any(device.info.is_cpu for device in devices)


class Pieces:
    """Runs pieces of a prompt, eagerly, and by a graph those of a length that comes twice in a row.

    So kernels are made and measured before a capture. What a graph computes in between has memory of its own; there is
    one graph at a time.

    Where blocks lie on several ranks, which work on different pieces at a time, all run eagerly: the work of a rank
    between two moves is one stretch of a graph, and what is sent to it counts as taken at the end of that. So launches
    would wait for each other.

    Args:
        comm: the communicator.
        rows: tokens of a piece at most.
        streams: by block, the ranks that have the residual stream.
    """

    def __init__(self, comm: Communicator, rows: int, streams: Sequence[tuple[int, ...]]) -> None:
        self._comm = comm
        self._captures = len(set(streams)) == 1 and captured_on(comm.devices)
        self._least = min(rows, _LEAST)
        self._latest = 0  # tokens of the latest piece
        self._rows = 0  # of the graph
        self._graph: Any = None
        self._inputs: list[Array] = []
        self._result: Inputs = []

    def run(self, blocks: Blocks, tokens: _Ids, positions: _Ids) -> Inputs:
        """Return what comes out of the blocks, by rank; the next piece may overwrite it.

        Args:
            blocks: always the same ones.
            tokens: of the piece.
            positions: where they are in the text.
        """
        count, latest = len(tokens), self._latest
        self._latest = count
        again = self._captures and count == latest and count >= self._least
        if count != self._rows and not (again and self._captured(blocks, count)):
            return self._eager(blocks, tokens, positions)
        both = np.stack((tokens, positions))
        for part in self._inputs:
            part.write(both)
        self._graph.launch()
        return self._result

    def _eager(self, blocks: Blocks, tokens: _Ids, positions: _Ids) -> Inputs:
        """Run a piece without a graph; where there is no room beside one, give that up and run it again."""
        devices = self._comm.devices
        try:
            return blocks([device.array(tokens) for device in devices], [device.array(positions) for device in devices])
        except OutOfMemoryError as error:
            if self._graph is None:
                raise
            self._give_up(error)
        return self._eager(blocks, tokens, positions)

    def _captured(self, blocks: Blocks, rows: int) -> bool:
        """Capture pieces of so many tokens, where there is room for that."""
        try:
            self._capture(blocks, rows)
        except OutOfMemoryError as error:
            self._give_up(error)
        return self._captures

    def _give_up(self, error: OutOfMemoryError) -> None:
        """Never capture again, and say why."""
        self.close()
        self._captures = False
        _log.warning("prompts run without a graph, which has no room: %s", error)

    def _capture(self, blocks: Blocks, rows: int) -> None:
        self.close()
        comm = self._comm
        self._inputs = [device.zeros((2, rows), "uint32") for device in comm.devices]
        tokens: Parts = [part[0] for part in self._inputs]
        positions: Parts = [part[1] for part in self._inputs]
        graph = capture(comm.devices, comm=comm if comm.nranks > 1 else None)
        with graph as step:
            self._result = blocks(tokens, positions)
        self._graph, self._rows = step, rows

    def close(self) -> None:
        """Free the graph; a second call does nothing."""
        graph, self._graph = self._graph, None
        self._result, self._inputs, self._rows = [], [], 0
        if graph is not None:
            graph.close()
