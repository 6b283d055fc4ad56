"""The collectives as the benchmarks see them: a few callbacks each, in one table.

As in nccl-tests, a collective's *size* is that of the largest array that a rank gives or gets: the gathered result of
an all_gather or a gather, the array that is scattered, the one that each rank gives to a reduce_scatter or an
all_to_all. Its *bus factor* turns size / time into what each rank's link carries each way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, cast

import numpy as np

from vkpar.arrays.array import Array
from vkpar.bench.measure.exact import Host, Terms
from vkpar.comm.communicator import Communicator
from vkpar.comm.engine.work import Work
from vkpar.device import Device
from vkpar.dtypes import DType


@dataclass(frozen=True)
class Elsewhere:
    """Stands for an array of another process' rank."""

    size: int
    dtype: DType

    @property
    def shape(self) -> tuple[int]:
        """As of an array."""
        return (self.size,)

    def __getitem__(self, span: slice) -> Elsewhere:
        return Elsewhere(len(range(self.size)[span]), self.dtype)


Anywhere = Array | Elsewhere
Arrays = Sequence[Anywhere | None]
Launch = Callable[[], Work]


@dataclass(frozen=True)
class Setting:
    """What is run.

    Attributes:
        devices: the ranks, None for those of other processes.
        count: elements of the size, see the module's text.
        op: of a reduction.
        root: the rank that gives or gets, where there is one.
        wire: how float32 crosses links in a reduction.
    """

    devices: Sequence[Device | None]
    dtype: DType
    count: int
    op: str = "sum"
    root: int = 0
    wire: str = "f16"

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def nbytes(self) -> int:
        """The size."""
        return self.count * self.dtype.itemsize

    def of(self, nbytes: int) -> Setting:
        """Return the same of another size, in whole elements."""
        return replace(self, count=nbytes // self.dtype.itemsize)

    @cached_property
    def spans(self) -> list[slice]:
        """The parts into which ``numpy.array_split`` cuts ``count`` elements."""
        sizes = [self.count // self.nranks + (rank < self.count % self.nranks) for rank in range(self.nranks)]
        return [slice(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(self.nranks)]

    @property
    def parts(self) -> list[int]:
        """The sizes of those parts."""
        return [span.stop - span.start for span in self.spans]

    @property
    def explicit_wire(self) -> str | None:
        """The wire that a call may name."""
        return self.wire if Terms(self.op, self.dtype, self.wire, self.nranks).takes_wire else None

    def arrays(self, counts: Sequence[int] | None = None) -> list[Anywhere]:
        """Return a new array per rank, of ``count`` elements or of ``counts``."""
        return [self.array(rank, count) for rank, count in enumerate(counts or [self.count] * self.nranks)]

    def array(self, rank: int, count: int) -> Anywhere:
        """Return a new array of one rank."""
        device = self.devices[rank]
        return Elsewhere(count, self.dtype) if device is None else device.empty(count, self.dtype)

    def own(self, arrays: Arrays) -> list[Array | None]:
        """Return what those ranks of this process have that lie in it."""
        own = [array for array, device in zip(arrays, self.devices, strict=True) if device is not None]
        assert not any(isinstance(array, Elsewhere) for array in own), "a rank's array is on its device"
        return cast("list[Array | None]", own)


@dataclass(frozen=True)
class Buffers:
    """What each rank gives (None: nothing), and what it gets."""

    sources: Arrays
    results: Arrays

    def given(self) -> list[Anywhere]:
        """Return the sources that there are."""
        return [array for array in self.sources if array is not None]

    def taken(self) -> list[Array]:
        """Return the results that there are in this process."""
        return [array for array in self.results if isinstance(array, Array)]


@dataclass(frozen=True)
class Collective:
    """One collective.

    Attributes:
        name: the communicator's method.
        make: makes the arrays, in place or not.
        launch: returns what enqueues one call on them.
        expected: what each rank must get, from what those that give something gave; for a reduction from its result.
        factor: the bus factor of n ranks; ``factor_text`` says it.
        reduces: it has an op and a wire; ``rooted``: it has a root.
        in_place: it has a form in which results lie where sources do.
        moves: it moves data at all.
    """

    name: str
    make: Callable[[Setting, bool], Buffers]
    launch: Callable[[Communicator, Buffers, Setting], Launch]
    expected: Callable[[Sequence[Host], Setting], Sequence[Host | None]]
    factor: Callable[[int], float]
    factor_text: str
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    moves: bool = True


def ranks_of(communicator: Communicator) -> list[Device | None]:
    """Return by rank the device, None for those of other processes."""
    first, devices = communicator.local_ranks.start, communicator.devices
    own = communicator.local_ranks
    return [devices[rank - first] if rank in own else None for rank in range(communicator.nranks)]


def _here(array: Anywhere | None) -> Array | None:
    return None if isinstance(array, Elsewhere) else array


def _all_reduce_arrays(setting: Setting, in_place: bool) -> Buffers:
    sources = setting.arrays()
    return Buffers(sources, sources if in_place else setting.arrays())


def _all_reduce(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    out = None if buffers.results is buffers.sources else setting.own(buffers.results)
    sources = setting.own(buffers.sources)
    return partial(communicator.all_reduce, sources, op=setting.op, out=out, wire=setting.explicit_wire)


def _reduce_scatter_arrays(setting: Setting, in_place: bool) -> Buffers:
    sources = setting.arrays()
    if in_place:
        return Buffers(sources, [source[span] for source, span in zip(sources, setting.spans, strict=True)])
    return Buffers(sources, setting.arrays(setting.parts))


def _reduce_scatter(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    call, wire = communicator.reduce_scatter, setting.explicit_wire
    out = setting.own(buffers.results)
    return partial(call, setting.own(buffers.sources), op=setting.op, out=out, wire=wire)


def _reduce_arrays(setting: Setting, in_place: bool) -> Buffers:
    sources, root = setting.arrays(), setting.root
    results: list[Anywhere | None] = [None] * setting.nranks
    results[root] = sources[root] if in_place else setting.array(root, setting.count)
    return Buffers(sources, results)


def _reduce(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    result, wire = buffers.results[setting.root], setting.explicit_wire
    out = None if result is buffers.sources[setting.root] else _here(result)
    return partial(communicator.reduce, setting.own(buffers.sources), setting.root, op=setting.op, out=out, wire=wire)


def _all_gather_arrays(setting: Setting, in_place: bool) -> Buffers:
    results = setting.arrays()
    if in_place:
        return Buffers([result[span] for result, span in zip(results, setting.spans, strict=True)], results)
    return Buffers(setting.arrays(setting.parts), results)


def _all_gather(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    return partial(communicator.all_gather, setting.own(buffers.sources), out=setting.own(buffers.results))


def _broadcast_arrays(setting: Setting, in_place: bool) -> Buffers:
    results, root = setting.arrays(), setting.root
    given = results[root] if in_place else setting.array(root, setting.count)
    return Buffers([given if rank == root else None for rank in range(setting.nranks)], results)


def _broadcast(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    root = setting.root
    results = setting.own(buffers.results)
    if buffers.sources[root] is buffers.results[root]:
        return partial(communicator.broadcast, results, root)
    return partial(communicator.broadcast, setting.own(buffers.sources), root, out=results)


def _scatter_arrays(setting: Setting, in_place: bool) -> Buffers:
    root = setting.root
    given = setting.array(root, setting.count)
    results = setting.arrays(setting.parts)
    if in_place:
        results[root] = given[setting.spans[root]]
    return Buffers([given if rank == root else None for rank in range(setting.nranks)], results)


def _scatter(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    (given,) = buffers.given()
    return partial(communicator.scatter, _here(given), setting.root, out=setting.own(buffers.results))


def _gather_arrays(setting: Setting, in_place: bool) -> Buffers:
    root = setting.root
    taken = setting.array(root, setting.count)
    sources = setting.arrays(setting.parts)
    if in_place:
        sources[root] = taken[setting.spans[root]]
    return Buffers(sources, [taken if rank == root else None for rank in range(setting.nranks)])


def _gather(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    out = _here(buffers.results[setting.root])
    return partial(communicator.gather, setting.own(buffers.sources), setting.root, out=out)


def _all_to_all_arrays(setting: Setting, in_place: bool) -> Buffers:
    """In place parts are equal: as many elements as the ranks divide."""
    if in_place:
        sources = setting.arrays([setting.count - setting.count % setting.nranks] * setting.nranks)
        return Buffers(sources, sources)
    return Buffers(setting.arrays(), setting.arrays([setting.nranks * part for part in setting.parts]))


def _all_to_all(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    return partial(communicator.all_to_all, setting.own(buffers.sources), out=setting.own(buffers.results))


def _send_recv_arrays(setting: Setting, _in_place: bool) -> Buffers:
    return Buffers(setting.arrays(), setting.arrays())


def _send_recv(communicator: Communicator, buffers: Buffers, setting: Setting) -> Launch:
    ends = enumerate([*buffers.results[1:], buffers.results[0]], 1)
    pairs = [
        (source if isinstance(source, Array) else rank, result if isinstance(result, Array) else to % setting.nranks)
        for rank, (source, (to, result)) in enumerate(zip(buffers.sources, ends, strict=True))
    ]
    return partial(communicator.send_recv, [pair for pair in pairs if not all(isinstance(end, int) for end in pair)])


def _everywhere(factor: float) -> Callable[[int], float]:
    return lambda nranks: factor * (nranks - 1) / nranks


def _once(_nranks: int) -> float:
    return 1.0


TABLE: Final = {
    made.name: made
    for made in (
        Collective(
            "all_reduce",
            _all_reduce_arrays,
            _all_reduce,
            lambda given, setting: [given[0]] * setting.nranks,
            _everywhere(2.0),
            "2(n-1)/n",
            reduces=True,
            in_place=True,
        ),
        Collective(
            "reduce_scatter",
            _reduce_scatter_arrays,
            _reduce_scatter,
            lambda given, setting: [given[0][span] for span in setting.spans],
            _everywhere(1.0),
            "(n-1)/n",
            reduces=True,
            in_place=True,
        ),
        Collective(
            "reduce",
            _reduce_arrays,
            _reduce,
            lambda given, setting: [given[0] if rank == setting.root else None for rank in range(setting.nranks)],
            _once,
            "1",
            reduces=True,
            rooted=True,
            in_place=True,
        ),
        Collective(
            "all_gather",
            _all_gather_arrays,
            _all_gather,
            lambda given, setting: [np.concatenate(given)] * setting.nranks,
            _everywhere(1.0),
            "(n-1)/n",
            in_place=True,
        ),
        Collective(
            "broadcast",
            _broadcast_arrays,
            _broadcast,
            lambda given, setting: [given[0]] * setting.nranks,
            _once,
            "1",
            rooted=True,
            in_place=True,
        ),
        Collective(
            "scatter",
            _scatter_arrays,
            _scatter,
            lambda given, setting: [given[0][span] for span in setting.spans],
            _everywhere(1.0),
            "(n-1)/n",
            rooted=True,
            in_place=True,
        ),
        Collective(
            "gather",
            _gather_arrays,
            _gather,
            lambda given, setting: [
                np.concatenate(given) if rank == setting.root else None for rank in range(setting.nranks)
            ],
            _everywhere(1.0),
            "(n-1)/n",
            rooted=True,
            in_place=True,
        ),
        Collective(
            "all_to_all",
            _all_to_all_arrays,
            _all_to_all,
            lambda given, setting: [
                np.concatenate(parts)
                for parts in zip(*(np.array_split(part, setting.nranks) for part in given), strict=True)
            ],
            _everywhere(1.0),
            "(n-1)/n",
            in_place=True,
        ),
        Collective(
            "send_recv",
            _send_recv_arrays,
            _send_recv,
            lambda given, setting: [given[rank - 1] for rank in range(setting.nranks)],
            _once,
            "1",
        ),
        Collective(
            "barrier",
            lambda _setting, _in_place: Buffers([], []),
            lambda communicator, _buffers, _setting: communicator.barrier,
            lambda _given, _setting: [],
            _once,
            "1",
            moves=False,
        ),
    )
}
