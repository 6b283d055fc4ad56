"""Layers of a model over the ranks of a communicator, with Megatron's names.

What flows between layers is a list of arrays by rank, None where a rank has none. In tensor parallelism the residual
stream is whole on every rank: a column-parallel layer takes it without talking to anybody and leaves each rank a part
of its results; a row-parallel one takes such parts, and sums over the ranks. Where the stream is on one rank alone, as
in a pipeline, the same layers add nothing up.

The stream is changed by sums only, which are the same bits on every rank: replicas stay equal over unlike drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from vkpar import dtypes, ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.tiles.matvec import MOST_ROWS
from vkpar.parallel.cut.sharded import SPLIT, Sharded
from vkpar.parallel.cut.sharding import shard
from vkpar.parallel.cut.split import Split
from vkpar.parallel.layers.linear import Linear
from vkpar.parallel.layers.moving import lent, only, sent
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, filled, present, there


def cut_by(
    weight: Any, comm: Communicator, axis: int, split: Split | Sequence[Split] | None, segments: Sequence[int] = ()
) -> Sharded:
    """Return a weight cut along an axis; one that is sharded already is checked."""
    if not isinstance(weight, Sharded):
        return shard(weight, comm, axis=axis, split=split, segments=segments)
    if weight.comm is not comm or weight.state != SPLIT or weight.axis != axis:
        raise InvalidUsageError(f"the layer takes a weight that is split along axis {axis}, not {weight!r}")
    if split is not None or len(segments):
        raise InvalidUsageError("a weight that is sharded has its split; give neither split nor segments")
    return weight


class ColumnParallelLinear:
    """``x @ weight.T + bias``, of which each rank computes some columns.

    Args:
        weight: (outputs, inputs): a :class:`Sharded` that is split along axis 0, or what :func:`shard` takes.
        bias: (outputs,), the same; None for none.
        comm: the communicator.
        split: of the outputs where the weight is not sharded yet; even by default.
        segments: lengths of what lies one after the other in the outputs; see :func:`shard`.
        gather_output: give all columns to the ranks that had ``x``.
        root: the one rank that has ``x`` and is to have all columns, where processes cannot see it; see :meth:`lend`.
        inputs: type that inputs of more than 8 rows are rounded to before the product, such as ``"float16"``,
            which matrix units take, and those of more than one where these take few; None keeps theirs.
        results: type of the results of rows that are rounded; of so few, float32 where they are gathered.

    Raises:
        InvalidUsageError: a weight or bias that is split in another way.

    Examples:
        >>> weight = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> layer = vkpar.parallel.ColumnParallelLinear(weight, comm=comm)
        >>> [part.tolist() for part in layer([d.ones((1, 2)) for d in comm.devices])]
        [[[1.0, 5.0]], [[9.0, 13.0]]]
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        comm: Communicator,
        split: Split | Sequence[Split] | None = None,
        segments: Sequence[int] = (),
        gather_output: bool = False,
        root: int | None = None,
        inputs: str | None = None,
        results: str = "float32",
    ) -> None:
        self.weight = cut_by(weight, comm, 0, split, segments)
        cut = None if bias is None else cut_by(bias, comm, 0, *self._as_weight(bias))
        if cut is not None and cut.segments != self.weight.segments:
            raise InvalidUsageError(f"the bias is split as {cut!r}, the weight as {self.weight!r}")
        self.bias = cut
        self.linear = Linear(
            comm, self.weight.parts, [None] * comm.nranks if cut is None else cut.parts, inputs, results
        )
        self.linear.prepare()
        self.gathers, self._root = gather_output, root

    def _as_weight(self, bias: Any) -> tuple[Sequence[Split] | None, Sequence[int]]:
        if isinstance(bias, Sharded):
            return None, ()
        return self.weight.segments, [each.size for each in self.weight.segments]

    def __call__(self, x: Inputs, activation: str | None = None) -> Parts:
        """Return each rank's columns, (T, its outputs).

        Args:
            x: (T, inputs) by rank. A rank that holds columns and has no ``x`` gets it from the first one that has.
            activation: of each rank's columns, as :func:`vkpar.matmul` takes it; ``"swiglu"`` where all stay there.

        Raises:
            InvalidUsageError: an activation of columns that are gathered.
        """
        if self.gathers and activation is not None:
            raise InvalidUsageError("columns that are gathered have no activation")
        comm, ranks = self.linear.comm, present(self.weight.parts)
        if self.gathers and (self._root is not None or (rig.is_whole(comm) and len(present(x)) == 1)):
            return self._gathered(x, only(x) if self._root is None else self._root, rows_of(x))
        given = sent(x, comm, self.weight.holders)
        made: Parts = [None] * comm.nranks
        for rank in ranks:
            dtype = self._type_of(rows_of(given)) if self.gathers else None
            made[rank] = self.linear.on(rank, given[rank], activation=activation, dtype=dtype)
        if not self.gathers:
            return made
        rows = rows_of(given)
        shape, common = (rows, self.weight.shape[0]), dtypes.resolve(self._type_of(rows))
        parts = Sharded(comm, shape, common, SPLIT, made, axis=1, segments=self.weight.segments)
        return list(parts.mirrored().parts)

    def giving(self, results: str) -> ColumnParallelLinear:
        """Return the layer with another type of results of rows that are rounded."""
        made = copy(self)
        made.linear = self.linear._replace(results=results)
        return made

    def lend(self, rows: int) -> None:
        """Compute this process' columns for ``root``, a rank of another one, which calls the layer with so many rows.

        Nothing is done where that rank has the whole weight, or the layer has no root.
        """
        if self._root is not None and self.weight.holders != [self._root]:
            self._gathered([None] * self.linear.comm.nranks, self._root, rows)

    def _type_of(self, rows: int) -> str:
        return self.linear.results if rows > MOST_ROWS else "float32"

    def _gathered(self, x: Inputs, root: int, rows: int) -> Parts:
        """Return all columns on ``root``, which alone has ``x``."""
        comm, holders = self.linear.comm, self.weight.holders
        if holders != [root]:
            x = self._lent(x, root, rows)
        made: Parts = [None] * comm.nranks
        device = rig.devices(comm)[root]
        if device is not None:
            made[root] = device.empty((rows, self.weight.shape[0]), self._type_of(rows))
        pairs: list[tuple[Array | int, Array | int]] = []
        placed: list[tuple[Array, Array]] = []
        for rank in holders:
            ranges = self._ranges(rank)
            pieces = self._pieces(rank, x) if rank in comm.local_ranks else [None] * len(ranges)
            for piece, (low, high) in zip(pieces, ranges, strict=True):
                landed = target = None if device is None else there(made, root)[:, low:high]
                if piece is not None and target is not None and rank == root:
                    placed.append((piece, target))
                    continue
                if target is not None and not target.is_contiguous:
                    landed = target.device.empty(target.shape, target.dtype)
                    placed.append((landed, target))
                if piece is not None or landed is not None:
                    sends = rank if piece is None else piece.contiguous()
                    pairs.append((sends, root if landed is None else landed))
        if holders != [root]:
            comm.send_recv(pairs)
        for piece, target in placed:
            target.copy_from(piece)
        return made

    def _lent(self, x: Inputs, root: int, rows: int) -> Inputs:
        """Return ``x`` on the ranks that hold columns."""
        comm, holders = self.linear.comm, self.weight.holders
        if rig.is_whole(comm):
            return sent(x, comm, holders)
        dtype = "float32" if self.linear.inputs is None or rows <= MOST_ROWS else self.linear.inputs
        return lent(x, comm, root, holders, (rows, self.weight.shape[1]), dtype)

    def _pieces(self, rank: int, x: Inputs) -> Sequence[Array | None]:
        """Return a rank's columns by range."""
        part, found, start = self.linear.on(rank, x[rank], dtype=self._type_of(rows_of(x))), [], 0
        for low, high in self._ranges(rank):
            found.append(part[:, start : start + high - low])
            start += high - low
        return found

    def _ranges(self, rank: int) -> list[tuple[int, int]]:
        found, start = [], 0
        for segment in self.weight.segments:
            low, high = segment.bounds(rank)
            if high > low:
                found.append((start + low, start + high))
            start += segment.size
        return found


class RowParallelLinear:
    """``x @ weight.T + bias``, of which each rank has some inputs; the results are summed over the ranks.

    Args:
        weight: (outputs, inputs): a :class:`Sharded` that is split along axis 1, or what :func:`shard` takes.
        bias: (outputs,), which one rank adds; None for none.
        comm: the communicator.
        split: of the inputs where the weight is not sharded yet; even by default.
        reduce: False leaves the sum to the caller: the results are partial.
        inputs: as :class:`ColumnParallelLinear` takes it.
        targets: the ranks that have residuals, those of other processes included; None for those that are given.

    Raises:
        InvalidUsageError: a weight that is split in another way, or a bias of another length.

    Examples:
        >>> weight = np.arange(8, dtype=np.float32).reshape(2, 4)
        >>> layer = vkpar.parallel.RowParallelLinear(weight, comm=comm)
        >>> stream, _ = layer([d.ones((1, 2)) for d in comm.devices])  # each has two of four inputs
        >>> [part.tolist() for part in stream]
        [[[6.0, 22.0]], [[6.0, 22.0]]]
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        comm: Communicator,
        split: Split | None = None,
        reduce: bool = True,
        inputs: str | None = None,
        targets: Sequence[int] | None = None,
    ) -> None:
        self.weight = cut_by(weight, comm, 1, split)
        self._targets = targets
        biases: Parts = [None] * comm.nranks
        ranks = self.weight.holders
        if bias is not None:
            if tuple(bias.shape) != self.weight.shape[:1]:
                raise InvalidUsageError(f"a bias of {tuple(bias.shape)} for {self.weight.shape[0]} outputs")
            values, dtype = (bias.read(), bias.dtype) if hasattr(bias, "read") else (bias, None)
            device = rig.devices(comm)[ranks[0]]
            biases[ranks[0]] = None if device is None else device.array(values, dtype)
        self.linear = Linear(comm, self.weight.parts, biases, inputs)
        self.linear.prepare()
        self._reduces = reduce

    def __call__(
        self,
        x: Parts,
        residual: Parts | None = None,
        norm: RMSNorm | None = None,
        post: RMSNorm | None = None,
    ) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm: the same arrays where there is no ``norm``.

        Where one rank sums alone, products that take the norm may have to make it: see :meth:`RMSNorm.before`.

        Args:
            x: (T, its inputs) of each rank that holds a part of the weight.
            residual: (T, outputs) float32 on the ranks that are to have the results; None for all ranks.
            norm: of the sum with the residual.
            post: of the results, before the residual is added.

        Raises:
            InvalidUsageError: inputs that are missing; a residual on some ranks only where several sum; a norm without
                a residual.
        """
        comm, ranks = self.linear.comm, self.weight.holders
        if residual is None and norm is not None:
            raise InvalidUsageError("a norm after the layer is that of the sum with a residual; give one")
        targets = self._targets_of(residual)
        if not self._reduces or (len(ranks) == 1 and targets == ranks):
            return self._local(x, residual, norm, post)
        if len(targets) < comm.nranks:
            raise InvalidUsageError(f"a sum over the ranks goes to all of them; the residual is on {targets} alone")
        return joined(self.summed(x, None if residual is None else rows_of(residual)), residual, norm, post)

    def _targets_of(self, residual: Parts | None) -> list[int]:
        """Return the ranks that are to have the results, those of other processes included."""
        comm = self.linear.comm
        if residual is None:
            return list(range(comm.nranks))
        if self._targets is not None:
            return list(self._targets)
        own = present(residual)
        return list(range(comm.nranks)) if own == list(comm.local_ranks) else own

    def lend(self, _rows: int) -> None:
        """Do nothing: each rank has its own inputs."""

    def summed(self, x: Parts, rows: int | None = None) -> Parts:
        """Return the results on all ranks, each of them the sum over the ranks; :func:`joined` adds a residual.

        Args:
            x: (T, its inputs) of each rank that holds a part of the weight.
            rows: T, where no rank of this process may hold a part.
        """
        comm = self.linear.comm
        sums: Parts = [None] * comm.nranks
        for rank in present(self.weight.parts):
            sums[rank] = self.linear.on(rank, there(x, rank))
        whole = filled(rig.devices(comm), sums, (rows_of(x) if rows is None else rows, self.weight.shape[0]))
        if len(self.weight.holders) < comm.nranks:
            comm.all_reduce(rig.own(comm, sums), out=rig.own(comm, whole))
        else:
            comm.all_reduce(rig.own(comm, whole))
        return whole

    def _local(
        self, x: Parts, residual: Parts | None, norm: RMSNorm | None, post: RMSNorm | None
    ) -> tuple[Parts, Inputs]:
        made: Parts = [None] * self.linear.comm.nranks
        adds = self._reduces and post is None and (norm is None or norm.folds(x))
        for rank in present(self.weight.parts):
            added = residual[rank] if residual is not None and adds else None
            made[rank] = self.linear.on(rank, there(x, rank), residual=added)
        if not adds:
            return joined(made, residual, norm, post)
        return made, made if norm is None else norm.before(made)


def rows_of(x: Inputs) -> int:
    """Return how many rows the ranks of this process have; raises UnsupportedError where none has any."""
    found = next((part.shape[0] for part in x if part is not None), None)
    if found is None:
        raise UnsupportedError("no rank of this process has a part of the weight: how many rows there are is not known")
    return found


def joined(x: Parts, residual: Parts | None, norm: RMSNorm | None, post: RMSNorm | None = None) -> tuple[Parts, Inputs]:
    """Return ``x + residual`` and its norm, the same arrays where there is no norm; ``post``: of ``x``, before that."""
    if post is not None:
        whole = post.onto(residual, x)
        return whole, whole if norm is None else norm.before(whole)
    if residual is None:
        return x, x
    if norm is not None:
        return norm.added(x, residual)
    stream: Parts = [None if part is None else ops.add(there(residual, rank), part) for rank, part in enumerate(x)]
    return stream, stream
