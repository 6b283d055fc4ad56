"""Arrays on their way from rank to rank, where a layer's inputs lie elsewhere than its weights."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.layers.norms import Inputs, Parts, arrays_of, present, there


def moved(x: Parts, comm: Communicator, rank: int) -> Parts:
    """Return an array that one rank has on another one alone."""
    source = only(x)
    return x if source == rank else carried(x, comm, source, rank, there(x, source).shape)


def carried(x: Parts, comm: Communicator, source: int, rank: int, shape: tuple[int, ...]) -> Parts:
    """Return what the rank ``source`` has, float32 of ``shape``, on another one alone; either may live elsewhere.

    A process that has neither does nothing but the call.
    """
    made: Parts = [None] * comm.nranks
    given, device = x[source], rig.devices(comm)[rank]
    if device is not None:
        made[rank] = device.empty(shape, "float32" if given is None else given.dtype)
    ends = source if given is None else given, rank if device is None else there(made, rank)
    comm.send_recv([] if isinstance(ends[0], int) and isinstance(ends[1], int) else [ends])
    return made


def lent(x: Inputs, comm: Communicator, root: int, ranks: Sequence[int], shape: tuple[int, ...], dtype: str) -> Inputs:
    """Return ``x`` of the rank ``root`` with copies on ``ranks``, some of which other processes have.

    Every process calls it, with nothing where ``root`` lives elsewhere.

    Args:
        x: by rank.
        comm: the communicator.
        root: the rank that has it.
        ranks: those that are to have it, too; the same in every process, as ``shape`` and ``dtype`` are.
        shape: of what is sent.
        dtype: its type.
    """
    made = arrays_of(x)
    source = made[root]
    if source is not None and source.dtype != dtype:
        made[root] = source = ops.cast(source, dtype)
    pairs: list[tuple[Array | int, Array | int]] = []
    for rank, device in enumerate(rig.devices(comm)):
        if rank == root or rank not in ranks:
            continue
        if device is not None:
            made[rank] = device.empty(shape, dtype)
        if device is not None or source is not None:
            pairs.append((root if source is None else source, rank if device is None else there(made, rank)))
    comm.send_recv(pairs)
    return made


def only(x: Inputs) -> int:
    """Return the one rank that has something; raises InvalidUsageError where others have, too."""
    ranks = present(x)
    if len(ranks) != 1:
        raise InvalidUsageError(f"the array is on the ranks {ranks}; one rank alone is to have it")
    return ranks[0]


def sent(x: Inputs, comm: Communicator, ranks: Sequence[int]) -> Inputs:
    """Return ``x`` with copies on those of ``ranks`` that have none."""
    if len(x) != comm.nranks or (rig.is_whole(comm) and not present(x)):
        raise InvalidUsageError(
            f"a layer takes an array or None of each of {comm.nranks} ranks, and one array at least"
        )
    lacking = [rank for rank in ranks if x[rank] is None and rank in comm.local_ranks]
    if not lacking:
        return x
    if not rig.is_whole(comm):
        raise UnsupportedError("over several processes, layers take inputs that lie on every rank that holds a part")
    whole = arrays_of(x)
    source = whole[present(x)[0]]
    assert source is not None
    pairs = []
    for rank in lacking:
        whole[rank] = target = comm.devices[rank].empty(source.shape, source.dtype)
        pairs.append((source, target))
    comm.send_recv(pairs)
    return whole
