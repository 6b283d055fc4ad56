"""A mixture of experts over ranks: in a feed-forward block's place, some of many for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError
from vkpar.ops.experts import few, products, routing
from vkpar.ops.experts.products import Stack
from vkpar.ops.experts.routing import Span
from vkpar.ops.tiles.matvec import MOST_ROWS
from vkpar.parallel.cut.split import Split, split
from vkpar.parallel.layers.feedforward import SharedExpert
from vkpar.parallel.layers.layers import joined, rows_of
from vkpar.parallel.layers.norms import Inputs, Parts, RMSNorm, arrays_of, filled, missing, present, there


class Experts(NamedTuple):
    """What a rank has of the experts of a block.

    Attributes:
        gate_up: the matrices of gates and of what these let through, (hidden) columns each: rows of both one after the
            other in one stack, or a stack of each.
        down: the matrices back to the residual stream.

    Examples:
        >>> from vkpar.parallel import MixtureOfExperts
        >>> gate, up = np.zeros((2, 4, 16, 8), "float32")
        >>> experts = MixtureOfExperts.cut(gate, up, gate.transpose(0, 2, 1), comm=comm)
        >>> experts[0].nbytes
        3072
    """

    gate_up: tuple[Stack, ...]
    down: Stack

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(stack.weights.nbytes for stack in (*self.gate_up, self.down))


class MixtureOfExperts:
    """The feed-forward block of a mixture: ``down(silu(gate(x)) * up(x))`` of some experts for each token, weighed.

    A router gives each token a logit an expert; it takes the ``active`` likeliest ones, the first of equals. Ranks have
    parts of the experts' widths, or whole experts, and add up what theirs give before the one sum over the ranks. Of
    few rows the weights of experts that are taken are read, and no others; many rows are sorted by expert. The host
    reads nothing of it.

    Args:
        router: (experts, hidden), what ``np.asarray`` takes, or a tensor of a file.
        experts: by rank what it has of them, see :meth:`cut`; None where it has nothing.
        comm: the communicator.
        active: experts that a token takes.
        normed: their weights add up to 1; else they are shares of the softmax over all experts.
        ranks: those that have the residual stream, those of other processes included; all by default.
        inputs: type that more than 8 rows are rounded to before products, such as ``"float16"``; None keeps theirs.
        post: a norm of the results before a residual is added; None for none.
        shared: an expert besides that all tokens take; None for none.

    Raises:
        InvalidUsageError: ``active`` is no number from 1 to that of the experts, or no rank has experts.
        UnsupportedError: more than 512 experts, or more bytes of them than a kernel sees at once.

    Examples:
        >>> from vkpar.parallel import MixtureOfExperts
        >>> generator = np.random.default_rng(0)
        >>> gate, up = (generator.standard_normal((4, 16, 8)).astype("float32") for _ in range(2))
        >>> experts = MixtureOfExperts.cut(gate, up, gate.transpose(0, 2, 1), comm=comm)
        >>> block = MixtureOfExperts(np.zeros((4, 8), "float32"), experts, comm=comm, active=2)
        >>> block([device.zeros((3, 8)) for device in comm.devices])[0][0].shape
        (3, 8)
    """

    def __init__(
        self,
        router: Any,
        experts: Sequence[Experts | None],
        *,
        comm: Communicator,
        active: int,
        normed: bool = True,
        ranks: Sequence[int] | None = None,
        inputs: str | None = None,
        post: RMSNorm | None = None,
        shared: SharedExpert | None = None,
    ) -> None:
        count = router.shape[0]
        routing.check_experts(count)
        if type(active) is not int or not 0 < active <= count:
            raise InvalidUsageError(f"a token takes from 1 to {count} experts, not {active!r}")
        of_all = [] if shared is None else shared.ranks
        held = rig.gathered(comm, "ranks that have experts", lambda: sorted({*present(experts), *of_all}))
        self._holders = [rank for ranks_of_one in held for rank in ranks_of_one]
        if not self._holders:
            raise InvalidUsageError("no rank has experts")
        for own in experts:
            for stack in () if own is None else (*own.gate_up, own.down):
                _ = stack.arrays  # raises where a kernel cannot see them
        self.experts = list(experts)
        self._comm, self._active, self._normed, self._inputs = comm, active, normed, inputs
        self._targets = list(range(comm.nranks) if ranks is None else ranks)
        self._width, self.post, self.shared = router.shape[1], post, shared
        alike = len({_driver(comm, rank) for rank in self._targets}) == 1
        self._deciding = self._targets if alike else self._targets[:1]
        values, dtype = (router.read(), router.dtype) if hasattr(router, "read") else (router, None)
        self.router: Parts = [None] * comm.nranks
        for rank, device in enumerate(rig.devices(comm)):
            if rank in self._deciding and device is not None:
                self.router[rank] = device.array(values, dtype)

    @classmethod
    def cut(
        cls,
        gate: Any,
        up: Any,
        down: Any,
        *,
        comm: Communicator,
        width: Split | None = None,
        whole: Split | None = None,
    ) -> list[Experts | None]:
        """Return the matrices of experts on the ranks of a communicator.

        Args:
            gate: (experts, inner, hidden) floats; ``up`` the same.
            up: as ``gate``.
            down: (experts, hidden, inner).
            comm: the communicator.
            width: which rank has how many of the ``inner`` columns of each expert; evenly by default.
            whole: which rank has how many whole experts, in place of ``width``.

        Raises:
            InvalidUsageError: shapes that do not fit each other; both splits.
        """
        gate, up, down = (np.asarray(each) for each in (gate, up, down))
        if gate.ndim != 3 or up.shape != gate.shape or down.shape != (gate.shape[0], gate.shape[2], gate.shape[1]):
            raise InvalidUsageError(
                f"gate {gate.shape}, up {up.shape} and down {down.shape}: these are (experts, inner, hidden) twice and "
                "(experts, hidden, inner)"
            )
        if width is not None and whole is not None:
            raise InvalidUsageError("experts are cut by their width, or whole ones are dealt; give one split")
        count, inner, hidden = gate.shape
        if whole is None and width is None:
            width = split(inner, comm, ratios="even")
        made: list[Experts | None] = []
        for rank, device in enumerate(rig.devices(comm)):
            low, high = (0, count) if whole is None else whole.bounds(rank)
            start, stop = (0, inner) if width is None else width.bounds(rank)
            if low == high or start == stop or device is None:
                made.append(None)
                continue
            both = np.concatenate([gate[low:high, start:stop], up[low:high, start:stop]], axis=1)
            span = Span(low, high - low)
            wide = Stack(device.array(both.reshape(-1, hidden)), span)
            back = np.ascontiguousarray(down[low:high, :, start:stop]).reshape(-1, stop - start)
            made.append(Experts((wide,), Stack(device.array(back), span)))
        return made

    def __call__(self, x: Inputs, residual: Parts | None = None, norm: RMSNorm | None = None) -> tuple[Parts, Inputs]:
        """Return the results, with ``residual`` added, and their norm; see :meth:`RowParallelLinear.__call__`.

        Raises:
            InvalidUsageError: inputs that are missing; a residual on some ranks only where several sum; a norm without
                a residual.
        """
        if residual is None and norm is not None:
            raise InvalidUsageError("a norm after the layer is that of the sum with a residual; give one")
        targets = list(range(self._comm.nranks))
        if residual is not None:
            targets = present(residual) if rig.is_whole(self._comm) else self._targets
        if len(self._holders) == 1 and targets == self._holders:
            return self._local(x, residual, norm)
        if len(targets) < self._comm.nranks:
            raise InvalidUsageError(f"a sum over the ranks goes to all of them; the residual is on {targets} alone")
        return joined(self.summed(x), residual, norm, self.post)

    def lend(self, _rows: int) -> None:
        """Do nothing: a row split leaves experts on the rank that has the stream."""

    def summed(self, x: Inputs) -> Parts:
        """Return the results on all ranks, each of them the sum over the ranks."""
        return self._over_ranks(self._parts(x), rows_of(x))

    def _over_ranks(self, sums: Parts, rows: int) -> Parts:
        """Return rows that ranks with experts have, summed, on all ranks."""
        comm = self._comm
        whole = filled(rig.devices(comm), sums, (rows, self._width))
        if len(self._holders) < comm.nranks:
            comm.all_reduce(rig.own(comm, sums), out=rig.own(comm, whole))
        else:
            comm.all_reduce(rig.own(comm, whole))
        return whole

    def _local(self, x: Inputs, residual: Parts | None, norm: RMSNorm | None) -> tuple[Parts, Inputs]:
        """Return the results where one rank has it all."""
        adds = self.post is None and self._few(self._holders[0], x)
        if residual is None or not adds or not (norm is None or norm.folds(residual)):
            return joined(self._parts(x), residual, norm, self.post)
        made = self._parts(x, residual)
        return made, made if norm is None else norm.before(made)

    def _few(self, rank: int, x: Inputs) -> bool:
        """Say whether a rank reads the experts that rows take, and no others."""
        own, part = self.experts[rank], x[rank]
        if own is None or part is None or len(own.gate_up) > 1:
            return own is None
        return few.fits(part.shape[0], self._active, own.gate_up[0], own.down)

    def _parts(self, x: Inputs, residual: Parts | None = None) -> Parts:
        """Return what the experts of each rank give together, with ``residual`` where rows are few."""
        rows_are_few = [self._few(rank, x) for rank in range(self._comm.nranks)]
        given: Inputs = x if all(rows_are_few) else arrays_of(x)
        chosen = self._chosen(given)
        made: Parts = [None] * self._comm.nranks
        if self.shared is not None:
            made = residual = self.shared(given, residual)
        for rank, own in enumerate(self.experts):
            part = given[rank]
            if own is None:
                continue
            if part is None:
                raise missing(rank)
            choice = there(chosen, rank)
            added = None if residual is None else residual[rank]
            if rows_are_few[rank]:
                inner = few.gate(part, own.gate_up[0], choice)
                made[rank] = few.add_up(inner, own.down, choice, added)
            else:
                assert isinstance(part, Array), "norms were made"
                result = self._of(own, part, choice)
                made[rank] = result if added is None else ops.add(added, result, out=result)
        return made

    def _chosen(self, x: Inputs) -> Parts:
        """Return which experts tokens take, on each rank that has some: decided once, or alike on devices alike."""
        made: Parts = [None] * self._comm.nranks
        comm = self._comm
        for rank in self._deciding:
            if rank not in comm.local_ranks:
                continue
            part = x[rank]
            if part is None:
                raise missing(rank)
            router = there(self.router, rank)
            if few.routes(part, router):
                made[rank] = few.route(part, router, self._active, normed=self._normed)
            else:
                logits = ops.matmul(part, router, transpose_b=True, dtype="float32")
                made[rank] = routing.route(logits, self._active, normed=self._normed)
        if not set(self._holders) <= set(self._deciding):
            root = self._deciding[0]
            for rank, device in enumerate(rig.devices(comm)):
                if rank != root and device is not None:
                    made[rank] = device.empty((2, rows_of(x), self._active), "uint32")
            comm.broadcast(rig.own(comm, made), root)
        return made

    def _of(self, own: Experts, x: Array, choice: Array) -> Array:
        """Return what a rank's experts give together."""
        return products.add_up(self._pairs(own, x, choice), choice, own.down.span)

    def _pairs(self, own: Experts, x: Array, choice: Array) -> Array:
        """Return what each expert of a rank gives to each of its tokens."""
        span, many = own.down.span, x.shape[0] > MOST_ROWS
        dtype = "float32"
        if self._inputs is not None and many:
            dtype, x = self._inputs, x if x.dtype == self._inputs else ops.cast(x, self._inputs)
        tile = products.tile_for(*own.gate_up, own.down, dtype=x.dtype.name)
        groups = routing.group(choice, span, tile) if many else None
        if len(own.gate_up) == 1:
            inner = products.product(x, own.gate_up[0], choice, groups, gated=True, dtype=dtype)
        else:
            gate, up = (products.product(x, stack, choice, groups, dtype=dtype) for stack in own.gate_up)
            inner = ops.swiglu(gate, up)
        return products.product(inner, own.down, choice, groups)


def _driver(comm: Communicator, rank: int) -> tuple[object, ...]:
    """Return what devices that give the same bits for the same work have in common."""
    info = rig.everywhere(comm)[rank].info
    return info.name, info.driver_name, info.driver_info
