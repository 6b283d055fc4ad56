"""The communicator: collectives over the devices of a rig."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from vkpar import dtypes, env
from vkpar.arrays.array import Array
from vkpar.comm import options, selftest, wires
from vkpar.comm.engine.group import Group
from vkpar.comm.engine.work import Work
from vkpar.comm.observe import report
from vkpar.comm.observe.profile import Profile
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.requests import collectives, movements
from vkpar.comm.requests.checks import Arrays, check_count_rows, check_counts, check_rank
from vkpar.comm.requests.keys import Call
from vkpar.comm.rig.links import Link
from vkpar.comm.tune import measure, opening
from vkpar.device import Device, close_orphans
from vkpar.errors import CommunicatorError
from vkpar.timeouts import COLLECTIVE_SECONDS
from vkpar.unpickled import Fixed, Unpickled
from vkpar.vulkan import tracing


class Communicator(Fixed, Unpickled):
    """Collectives over devices of any vendors; rank r is the r-th device.

    Every collective is enqueued and returns a :class:`~vkpar.comm.engine.work.Work`; later work on the same devices
    sees the results without waiting for it. ``arrays[r]`` lives on rank r. The arrays of a collective have equal
    dtypes: reductions take float32, float16, bfloat16, all integers of 8 to 64 bits, and float64 where every device
    computes it; collectives that only move data take any dtype.

    **Sums of float32 are rounded to half precision on the way by default**, as :meth:`all_reduce` says; ``wire="f32"``
    here, ``VKPAR_WIRE=f32`` or ``wire="f32"`` at the call sends them as they are. Everything else travels exactly.

    All ranks get the same bits, whatever the drivers. A communicator is a context manager, and ``close`` may be called
    twice; closing a device closes its communicators.

    Args:
        devices: one opened device per rank, each once.
        wire: how float32 crosses links in sums and averages: ``f16`` (scaled in blocks of 256), ``bf16``, ``q8`` (8
            bits and a scale for 32 elements) or ``f32`` (exact); by default ``VKPAR_WIRE``, or ``f16`` without it.
        algorithm: ``auto``, ``ring``, ``two_shot``, ``direct``, ``tree`` or ``naive``, for all_reduce; reduce and
            reduce_scatter take it where it does them, else ``two_shot``.
        transport: ``auto``, ``staged`` (all ranks import the same host memory) or ``mapped`` (the host copies between
            them), or one of them per rank; ``auto`` maps where a driver cannot import.
        timeout: seconds without progress after which a pending collective fails.
        deterministic: take built-in thresholds and equal chunks instead of the rig's tuning.

    Attributes:
        devices: the devices, in rank order.
        timeout: the timeout in seconds.

    Raises:
        InvalidUsageError: no devices, one twice, or an unknown option.
        UnsupportedError: ``staged`` on a device that cannot import host memory, or ``VKPAR_LINK=native`` where a link
            cannot be native.
        CommunicatorError: the self-test found that a link does not pass on what a rank writes.
    """

    _staging_nbytes: int | None = None
    _tunes = True

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        wire: str | None = None,
        algorithm: str = "auto",
        transport: str | Sequence[str] = "auto",
        timeout: float = COLLECTIVE_SECONDS,
        deterministic: bool = False,
    ) -> None:
        close_orphans()
        self.devices = options.devices(devices)
        wire = env.get().wire if wire is None else wire
        wires.check(dtypes.float32, wire)
        transports = options.transports(transport, len(self.devices))
        self.timeout = options.timeout(timeout)
        self.deterministic = deterministic
        chosen = choose.check(algorithm)
        chosen = choose.check(env.get().algorithm) if chosen == choose.AUTO else chosen
        wanted = env.debug_checks()
        self._engine, kept = opening.open_engine(
            self.devices,
            transports,
            self._staging_nbytes,
            algorithm=chosen,
            wire=wire,
            timeout=self.timeout,
            tunes=self._is_tuned(),
        )
        try:
            selftest.run(self._engine)
            if self._is_tuned():
                opening.tune(self._engine, kept)  # the plan is fixed from here on
            self._engine.check_more(wanted)
        except BaseException as error:
            if isinstance(error, CommunicatorError):
                self._engine.health.fail(error)  # so that close() does not wait for work that never ends
            self._engine.health.told = True
            self.close()
            raise
        if tracing.watcher is not None:
            tracing.watcher.connected(self._engine)
        self._engine.forget()

    def _is_tuned(self) -> bool:
        return self._tunes and not self.deterministic and self.nranks > 1 and env.get().tuning != "off"

    def measure(self, seconds: float = measure.SECONDS) -> Tuning:
        """Measure the rig and keep the tuning for communicators that are opened from now on.

        The communicator's own plan stays as it is. Nothing else should run on the devices meanwhile.

        Args:
            seconds: about how long measuring may take; sizes that it does not reach keep their built-in choices.

        Raises:
            InvalidUsageError: the communicator has a single rank, is inside a group or a profile, or is closed.
            OutOfMemoryError: no room for arrays of a few MiB.
            CommunicatorError: the communicator has failed.
        """
        return measure.run(self._engine, seconds)

    def __vkpar_graph__(self) -> Any:
        """Return what :func:`vkpar.capture` asks of the communicator."""
        return self._engine.collectives()

    # ---- what it is ----

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def tuning(self) -> Tuning:
        """The rig's choices, measured or built in; the plan of every collective follows from them."""
        return self._engine.builder.tuning

    def links(self) -> list[Link]:
        """Return how each ordered pair of ranks is linked, and why."""
        return list(self._engine.rig.links)

    def transports(self) -> list[str]:
        """Return how each rank reaches the staging memory."""
        return [transport.name for transport in self._engine.rig.transports]

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._engine.closed

    @property
    def failed(self) -> bool:
        """True once something has made the communicator unusable."""
        return self._engine.health.failed

    def stats(self) -> dict[str, Any]:
        """Return counters: collectives, cached command buffers, and the bridge's work.

        ``bridge_latency_ns`` counts bridged waits by the time from seeing a source's value to signalling: keys are the
        lower edges of the classes, in ns.

        Raises:
            InvalidUsageError: the communicator is closed.
        """
        return report.stats(self._engine)

    def dump(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the flight recorder as JSON, and write it to ``path`` where that is given.

        The recorder holds the last 256 collectives with every rank's step and wanted and reached timeline values, the
        links, the counters and the failure. It works on a failed or closed communicator too.
        """
        return report.dump(self._engine, path)

    # ---- collectives ----

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
        root = check_rank(self.devices, root)
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
        root = check_rank(self.devices, root)
        return self._engine.run(Call(movements.BROADCAST, arrays, out, root=root))

    def scatter(
        self, array: Array, root: int = 0, *, out: Arrays | None = None, counts: Sequence[int] | None = None
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
        root = check_rank(self.devices, root)
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
        root = check_rank(self.devices, root)
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

    def send_recv(self, pairs: Sequence[tuple[Array, Array]]) -> Work:
        """Copy each pair's first array to its second, of the same count and dtype, on any two ranks.

        No destination may overlap another one, or another pair's source: to swap two arrays, copy one of them first.

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

    def group(self) -> Group:
        """Return a context that enqueues the collectives of its block together, in one submission per queue.

        The collectives run in the order of the calls. Until the block is left, their arrays cannot be used, and their
        works cannot be waited for. Where the block raises, nothing is submitted. A group belongs to the thread that
        opened it.
        """
        return self._engine.group()

    def profile(self) -> Profile:
        """Return a context that times the collectives of its block, step by step; see :class:`Profile`.

        Collectives are recorded with timestamps only inside such a block. Profiles of a communicator do not nest.

        Raises:
            UnsupportedError: on entering, where a device's compute queue writes no timestamps.
            InvalidUsageError: on entering, inside another profile of the communicator.
        """
        return Profile(self._engine)

    # ---- the end ----

    def close(self) -> None:
        """Wait for pending collectives and free everything; a second call does nothing.

        Where nothing moves for 10 s, or for the communicator's timeout if that is longer, the pending collectives are
        aborted. After an interrupt, the next call continues the close. In a forked child nothing is touched.

        What the collectives of a failed communicator were to write stays unreadable, and whatever was computed from it,
        until it is written anew: by a write, a fill, an operation's ``out=``, a collective or a graph's launch.

        Raises:
            CommunicatorError: the communicator has failed, and nobody was told; it is closed all the same.
        """
        if hasattr(self, "_engine"):  # it is missing where the constructor raised
            self._engine.close()

    def __enter__(self) -> Communicator:
        self._engine.health.gate.check()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        with suppress(CommunicatorError) if kind is not None else nullcontext():  # what the block raised comes first
            self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else " failed" if self.failed else ""
        return f"<vkpar.Communicator of {self.nranks}: {', '.join(map(str, self.devices))}{state}>"
