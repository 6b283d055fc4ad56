"""The collectives of a communicator, as users call them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from vkpar.arrays.array import Array
from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.work import Work
from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.checks import Arrays, check_count_rows, check_counts, check_rank
from vkpar.comm.requests.keys import Call
from vkpar.device import Device


class Collectives:
    """Everything that a :class:`~vkpar.comm.communicator.Communicator` sums and moves.

    With ``mpi=``, ``arrays`` and ``out`` have an array for each rank of this process alone, and the one array of a root
    is given in the root's process, None in the others; docs/several-machines.md has a table of that.
    """

    devices: tuple[Device, ...]
    _engine: Engine

    @property
    @abstractmethod
    def nranks(self) -> int:
        """Number of ranks, in all processes."""

    def all_reduce(
        self, arrays: Arrays, *, op: str = "sum", out: Arrays | None = None, wire: str | None = None
    ) -> Work:
        """Sum ``arrays`` over the ranks; every rank gets the result.

        On their way sums and averages of float32 are rounded to half precision, unless the wire is ``f32``. A sum over
        n ranks on the ``f16`` wire differs from the true one by at most ((1 + 1/2000)^n - 1) (A + L / 2^27), which is
        about n/2000 of A: A is the sum of the magnitudes that the ranks give for the element, and L that of each rank's
        largest one in its block of 256. On the ``f32`` wire it differs by at most n/2^24 of A. docs/wires.md
        derives both bounds, and those of the other wires; numbers below 2^-126 may be taken for zero.

        Args:
            arrays: equal counts and dtypes. Where ``out[r]`` is given, ``arrays[r]`` may be None or of size zero: rank
                r then adds nothing.
            op: ``sum``, ``prod``, ``max``, ``min`` or ``avg`` (the sum times 1 over the number of ranks that
                contribute, in float32 or float64; of integers the sum, wrapped, divided by it and rounded toward zero,
                as NCCL does). Integers wrap; max and min propagate NaN, and -0 is less than 0.
            out: where the results go; in place by default. ``out[r]`` is ``arrays[r]`` or shares no byte with it.
            wire: overrides the communicator's wire, for sum and avg of float32. Products of float32 travel exactly
                unless a wire is given here; every other reduction always does.

        Raises:
            InvalidUsageError: unequal counts, an array on the wrong rank, a partial overlap, an unknown name.
            UnsupportedError: a dtype that collectives do not reduce, or float64 where a device lacks ``shaderFloat64``.
            CommunicatorError: the communicator has failed before.
        """
        return self._engine.run(Call(collectives.ALL_REDUCE, arrays, out, op, wire))

    def reduce_scatter(
        self,
        arrays: Arrays,
        *,
        op: str = "sum",
        out: Arrays | None = None,
        wire: str | None = None,
        counts: Sequence[int] | None = None,
    ) -> Work:
        """Sum ``arrays`` over the ranks; rank r gets part r of the flat result.

        Sums of float32 are rounded to half precision on their way, unless the wire is ``f32``: see :meth:`all_reduce`.

        Args:
            arrays: equal counts and dtypes; None or of size zero where a rank adds nothing.
            op: as in :meth:`all_reduce`.
            out: needed: ``out[r]`` has part r's count. It may be that very part of ``arrays[r]``.
            wire: as in :meth:`all_reduce`.
            counts: how many elements each part has; cut as ``numpy.array_split`` cuts by default.

        Raises:
            InvalidUsageError, UnsupportedError, CommunicatorError: as :meth:`all_reduce` does.
        """
        parts = None if counts is None else check_counts(counts, self.nranks)
        return self._engine.run(Call(collectives.REDUCE_SCATTER, arrays, out, op, wire, counts=parts))

    def reduce(
        self, arrays: Arrays, root: int = 0, *, op: str = "sum", out: Array | None = None, wire: str | None = None
    ) -> Work:
        """Sum ``arrays`` over the ranks; ``root`` alone gets the result, in place or in ``out``.

        Sums of float32 are rounded to half precision on their way, unless the wire is ``f32``: see :meth:`all_reduce`.

        Args:
            arrays: equal counts and dtypes; None or of size zero where a rank adds nothing.
            root: the rank that gets the result.
            op: as in :meth:`all_reduce`.
            out: an array on ``root``.
            wire: as in :meth:`all_reduce`.

        Raises:
            InvalidUsageError, UnsupportedError, CommunicatorError: as :meth:`all_reduce` does.
        """
        root = check_rank(range(self.nranks), root)
        return self._engine.run(Call(collectives.REDUCE, arrays, (out,), op, wire, root))

    def all_gather(self, arrays: Arrays, *, out: Arrays | None = None) -> Work:
        """Give every rank all arrays, flat, one after the other in rank order; their counts may differ.

        Args:
            arrays: one dtype; None or of size zero where a rank gives nothing.
            out: needed: every ``out[r]`` has the sum of the counts. ``arrays[r]`` may be its own place in ``out[r]``.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or a partial overlap.
            CommunicatorError: the communicator has failed before.
        """
        return self._engine.run(Call(movements.ALL_GATHER, arrays, out))

    def broadcast(self, arrays: Arrays, root: int = 0, *, out: Arrays | None = None) -> Work:
        """Copy ``arrays[root]`` into the arrays of all other ranks, or into ``out`` on every rank.

        Args:
            arrays: equal counts and dtypes; where ``out`` is given, only ``arrays[root]`` is needed.
            root: the rank whose array is copied.
            out: ``out[r]`` has the count of ``arrays[root]``. ``out[root]`` may be that very array.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or a partial overlap.
            CommunicatorError: the communicator has failed before.
        """
        root = check_rank(range(self.nranks), root)
        return self._engine.run(Call(movements.BROADCAST, arrays, out, root=root))

    def scatter(
        self, array: Array | None, root: int = 0, *, out: Arrays | None = None, counts: Sequence[int] | None = None
    ) -> Work:
        """Give rank r part r of the flat ``array``, which lives on rank ``root``.

        Args:
            array: any dtype.
            root: the rank that gives.
            out: needed: ``out[r]`` has part r's count. ``out[root]`` may be that very part of ``array``.
            counts: how many elements each part has; cut as ``numpy.array_split`` cuts by default.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or a partial overlap.
            CommunicatorError: the communicator has failed before.
        """
        root = check_rank(range(self.nranks), root)
        parts = None if counts is None else check_counts(counts, self.nranks)
        return self._engine.run(Call(movements.SCATTER, (array,), out, root=root, counts=parts))

    def gather(self, arrays: Arrays, root: int = 0, *, out: Array | None = None) -> Work:
        """Give rank ``root`` all arrays, flat, one after the other in rank order; their counts may differ.

        Args:
            arrays: one dtype; None or of size zero where a rank gives nothing.
            root: the rank that gets.
            out: needed: an array on ``root`` of the sum of the counts. ``arrays[root]`` may be its own place in it.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or a partial overlap.
            CommunicatorError: the communicator has failed before.
        """
        root = check_rank(range(self.nranks), root)
        return self._engine.run(Call(movements.GATHER, arrays, (out,), root=root))

    def all_to_all(
        self,
        arrays: Arrays,
        *,
        out: Arrays | None = None,
        counts: Sequence[int] | Sequence[Sequence[int]] | None = None,
    ) -> Work:
        """Send part q of each flat array to rank q.

        Args:
            arrays: one dtype, and equal counts unless ``counts`` says otherwise; with it, None or of size zero where a
                rank gives nothing.
            out: needed: ``out[q]`` gets part q of every rank's array in rank order, one after the other. It may be
                ``arrays[q]`` itself where q sends as many elements to each rank as it gets from there.
            counts: ``counts[r][q]`` elements go from rank r to rank q; one row for all ranks where they send alike. Cut
                as ``numpy.array_split`` cuts by default.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or a partial overlap.
            CommunicatorError: the communicator has failed before.
        """
        rows = None if counts is None else check_count_rows(counts, self.nranks)
        return self._engine.run(Call(movements.ALL_TO_ALL, arrays, out, counts=rows))

    def send_recv(self, pairs: Sequence[tuple[Array | int, Array | int]]) -> Work:
        """Copy each pair's first array to its second, of the same count and dtype, on any two ranks.

        No destination may overlap another one, or another pair's source: to swap two arrays, copy one of them first.
        With ``mpi=``, an end that lives in another process is written as its rank: ``(array, 3)`` sends, ``(3, array)``
        receives.

        Raises:
            InvalidUsageError: wrong counts, dtypes or ranks, or an overlap.
            CommunicatorError: the communicator has failed before.
        """
        return self._engine.run(Call(movements.SEND_RECV, *movements.unzipped(pairs)))

    def barrier(self) -> Work:
        """Let no rank's later work start before all ranks' earlier work is done.

        Raises:
            CommunicatorError: the communicator has failed before.
        """
        return self._engine.run(Call(collectives.BARRIER))
