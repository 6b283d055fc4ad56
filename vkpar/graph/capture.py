"""The context in which a thread captures its work into a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from vkpar.device import Device, close_orphans
from vkpar.errors import InvalidUsageError
from vkpar.graph.graph import Graph
from vkpar.graph.protocol import Collectives


class Capture:
    """What :func:`capture` returns; entering it gives the graph.

    Only the ``with`` statement holds it. Where an interrupt comes in the very moment in which that is left, the capture
    ends with this object.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> Graph:
        try:
            self._graph.begin()
        except BaseException:
            self._graph.end(keep=False)
            raise
        return self._graph

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._graph.end(keep=kind is None)

    def __del__(self) -> None:
        if hasattr(self, "_graph"):
            self._graph.end(keep=False)


def capture(
    devices: Device | Sequence[Device], comm: Any = None, *, fuse: bool = True, overlap: bool = False
) -> Capture:
    """Return a context that captures this thread's work on ``devices`` into a :class:`~vkpar.graph.graph.Graph`.

    Inside, operations, the user's kernels, copies and collectives are checked as always, but recorded in place of
    being run. Arrays that are made inside belong to the graph: each launch computes them anew. Reading, waiting,
    writing from the host and copies to other devices without the communicator raise. After an error nothing is
    recorded::

        with vkpar.capture(devices, comm=comm) as graph:
            vkpar.matmul(x, w, out=y)
            comm.all_reduce([y])
        graph.launch().wait()

    Args:
        devices: opened devices, each once.
        comm: the communicator whose collectives may be captured; all its devices are captured then.
        fuse: let a product whose results a collective sends next fill the slot itself, and let the step that stores a
            sum also add a residual, or make an RMS norm with one, where that comes next. It saves up to three kernels
            a sum, and the bits stay the same; ``graph.stats().fused`` says how often it was done.
        overlap: let operations that come after a collective and do not touch its arrays run between its steps, where
            the device would wait for other ranks. The bits stay the same.

    Raises:
        InvalidUsageError: no devices, one twice, one that the communicator lacks, or a closed one.

    Examples:
        >>> a = device.ones(2)
        >>> with vkpar.capture(device) as graph:
        ...     a += 1
        >>> for _ in range(3):
        ...     work = graph.launch()
        >>> a.tolist()
        [4.0, 4.0]
    """
    close_orphans()
    if not isinstance(devices, (Device, Iterable)):
        raise InvalidUsageError(f"capture(devices, comm=None) takes opened devices first, not {type(devices).__name__}")
    listed = [devices] if isinstance(devices, Device) else list(devices)
    for device in listed:
        if not isinstance(device, Device):
            raise InvalidUsageError(f"capture takes opened devices, not {type(device).__name__}; see open_devices")
        device.logical.check_open()
    if not listed or len(set(map(id, listed))) < len(listed):
        raise InvalidUsageError("capture takes one device or more, each once")
    collectives: Collectives | None = None
    if comm is not None:
        hook: Callable[[], Collectives] | None = getattr(comm, "__vkpar_graph__", None)
        if hook is None:
            raise InvalidUsageError(f"comm is a vkpar.Communicator, not {type(comm).__name__}")
        collectives = hook()
        strange = [device for device in listed if device not in collectives.devices]
        if strange:
            raise InvalidUsageError(f"{strange[0]!r} is no device of the communicator; capture it apart")
        listed = list(collectives.devices)
    return Capture(Graph(listed, collectives, fuses=fuse, overlaps=overlap))
