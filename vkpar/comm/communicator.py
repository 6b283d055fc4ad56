"""The communicator: collectives over the devices of a rig."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from vkpar import dtypes, env
from vkpar.comm import options, selftest, wires
from vkpar.comm.collectives import Collectives
from vkpar.comm.engine.group import Group
from vkpar.comm.observe import report
from vkpar.comm.observe.profile import Profile
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Tuning
from vkpar.comm.record import checks
from vkpar.comm.rig.arena import staging_nbytes
from vkpar.comm.rig.links import Link
from vkpar.comm.rig.processes.world import Settings, World
from vkpar.comm.tune import measure, opening
from vkpar.device import Device, close_orphans
from vkpar.errors import CommunicatorError, UnsupportedError
from vkpar.timeouts import COLLECTIVE_SECONDS
from vkpar.unpickled import Fixed, Unpickled
from vkpar.vulkan import tracing


class Communicator(Collectives, Fixed, Unpickled):
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
        algorithm: ``auto``, ``ring``, ``two_shot``, ``two_level``, ``direct``, ``tree`` or ``naive``, for all_reduce;
            reduce and reduce_scatter take it where it does them, else ``two_shot``.
        transport: ``auto``, ``peer`` (copy engines carry between cards of one vendor), ``staged`` (all ranks import the
            same host memory) or ``mapped`` (the host copies between them), or one of them per rank; ``auto`` takes
            ``peer`` where it passes a self-test, and maps where a driver cannot import.
        timeout: seconds without progress after which a pending collective fails.
        deterministic: take built-in thresholds and equal chunks instead of the rig's tuning.
        mpi: a communicator of mpi4py, each process of which opens this one with devices of its own: ranks are then
            counted over all processes, in MPI's order. Every process makes the same calls in the same order, and gives
            each the arrays of its own ranks; see docs/several-machines.md.

    Attributes:
        devices: the devices of this process, in rank order.
        timeout: the timeout in seconds.

    Raises:
        InvalidUsageError: no devices, one twice, or an unknown option.
        UnsupportedError: ``staged`` on a device that cannot import host memory, or ``VKPAR_LINK=native`` where a link
            cannot be native.
        CommunicatorError: the self-test found that a link does not pass on what a rank writes; or a process of ``mpi``
            has failed, or has not come within the timeout.

    Examples:
        >>> with vkpar.Communicator(devices, wire="f32") as comm:
        ...     arrays = [d.array(np.full(4, 1 + rank, np.float32)) for rank, d in enumerate(comm.devices)]
        ...     comm.all_reduce(arrays).wait()
        ...     arrays[0].tolist()
        [3.0, 3.0, 3.0, 3.0]
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
        mpi: Any = None,
    ) -> None:
        close_orphans()
        self.timeout = options.timeout(timeout)
        self.deterministic = deterministic
        self._world = None if mpi is None else World(mpi, self.timeout)
        try:
            if self._world is not None:
                self._world.connect()
            self._open(devices, wire, algorithm, transport)
        except BaseException as error:
            if self._world is not None:
                self._world.fail(error)
            raise

    def _open(
        self, devices: Sequence[Device], wire: str | None, algorithm: str, transport: str | Sequence[str]
    ) -> None:
        self.devices = options.devices(devices)
        wire = env.get().wire if wire is None else wire
        wires.check(dtypes.float32, wire)
        transports = options.transports(transport, len(self.devices))
        chosen = choose.check(algorithm)
        chosen = choose.check(env.get().algorithm) if chosen == choose.AUTO else chosen
        wanted = env.debug_checks()
        if self._world is not None:
            options.refuse_across(checks_slots=checks.SLOTS in wanted)
            settings = Settings(wire, chosen)
            self._world.meet([device.info for device in self.devices], settings, staging_nbytes())
        self._engine, kept = opening.open_engine(
            self.devices,
            transports,
            self._staging_nbytes,
            algorithm=chosen,
            wire=wire,
            timeout=self.timeout,
            tunes=self._is_tuned(),
            world=self._world,
        )
        try:
            selftest.run(self._engine)
            if self._is_tuned():
                opening.tune(self._engine, kept)  # the plan is fixed from here on
            self._engine.check_more(wanted)
        except BaseException as error:
            self._give_up(error)
            raise
        if tracing.watcher is not None:
            tracing.watcher.connected(self._engine)
        self._engine.forget()

    def _give_up(self, error: BaseException) -> None:
        """Close what was not opened to its end."""
        if isinstance(error, CommunicatorError):
            self._engine.health.fail(error)  # so that close() does not wait for work that never ends
        self._engine.health.told = True
        if self._world is not None:
            self._world.fail(error)  # before it is closed
        self.close()

    def _is_tuned(self) -> bool:
        alone = self._world is None and self.nranks > 1
        return self._tunes and not self.deterministic and alone and env.get().tuning != "off"

    def measure(self, seconds: float = measure.SECONDS) -> Tuning:
        """Measure the rig and keep the tuning for communicators that are opened from now on.

        The communicator's own plan stays as it is. Nothing else should run on the devices meanwhile.

        Args:
            seconds: about how long measuring may take; sizes that it does not reach keep their built-in choices.

        Raises:
            UnsupportedError: the communicator is over several processes.
            InvalidUsageError: the communicator has a single rank, is inside a group or a profile, or is closed.
            OutOfMemoryError: no room for arrays of a few MiB.
            CommunicatorError: the communicator has failed.
        """
        if self._world is not None:
            raise UnsupportedError("a communicator over several processes is not measured: its plans are built in")
        return measure.run(self._engine, seconds)

    def __vkpar_graph__(self) -> Any:
        """Return what :func:`vkpar.capture` asks of the communicator."""
        return self._engine.collectives()

    # ---- what it is ----

    @property
    def nranks(self) -> int:
        """Number of ranks, in all processes."""
        return len(self.devices) if self._world is None else self._world.division.nranks

    @property
    def local_ranks(self) -> range:
        """The ranks of this process: all of them without ``mpi``."""
        return range(self.nranks) if self._world is None else self._world.division.ranks()

    @property
    def tuning(self) -> Tuning:
        """The rig's choices, measured or built in; the plan of every collective follows from them."""
        return self._engine.builder.tuning

    def links(self) -> list[Link]:
        """Return how each ordered pair of ranks is linked, and why; not pairs that lie in another process."""
        return list(self._engine.rig.links)

    def transports(self) -> list[str]:
        """Return how each rank of this process reaches the staging memory."""
        return self._engine.rig.transport_names()

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

    # ---- around several collectives ----

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
            UnsupportedError: on entering, where a device's compute queue writes no timestamps, or the communicator is
                over several processes.
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
