"""The communicator: ranks, their links and slots, and the collectives on them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from vkpar import dtypes, env
from vkpar.array import Array
from vkpar.comm import links, tuner, wires
from vkpar.comm.algorithms import TABLE
from vkpar.comm.cache import Entry, ProgramCache
from vkpar.comm.executor import Copies, Executor, Program
from vkpar.comm.operands import Operands, checked
from vkpar.comm.rig import Rig
from vkpar.comm.schedule import BLOCK, Problem, Step
from vkpar.comm.slots import Region
from vkpar.comm.work import Work
from vkpar.device import Device, close_orphans, orphans
from vkpar.errors import CommunicatorError, InvalidUsageError, UnsupportedError
from vkpar.vulkan.gate import Gate

_log = logging.getLogger("vkpar")
_OPS = ("sum",)
_LATER_OPS = ("avg", "max", "min", "prod")
_TRANSPORTS = ("auto", "staged")
_ALTERNATED_BATCHES = 8  # a rank; shorter programs are recorded twice, over different slots
_DRAIN_SECONDS = 10.0

# What ranks that never finished may still use: kept for the life of the process.
_abandoned: list[Any] = []


class Communicator:
    """Collectives over devices of any vendors; rank r is the r-th device.

    It is a context manager and ``close`` may be called twice; closing a device closes its communicators.

    Args:
        devices: one opened device per rank, each once.
        wire: how float32 crosses links: ``f16`` (scaled in blocks of 256; an error of 2^-11 of the element or 2^-39 of
            the block's largest, whichever is larger, each time), ``bf16`` or ``f32`` (exact).
        algorithm: ``auto``, ``ring``, ``two_shot``, ``direct`` or ``naive``.
        transport: ``auto`` or ``staged``: all ranks import the same host memory.
        timeout: seconds without progress after which a pending collective fails.
        deterministic: take built-in thresholds and equal chunks (both always hold at present).

    Attributes:
        devices: the devices, in rank order.

    Raises:
        InvalidUsageError: no devices, one twice, or an unknown option.
        UnsupportedError: a device that cannot import host memory, or ``VKPAR_LINK=native`` where a link cannot be.
    """

    _gate: Gate | None = None  # until the constructor is through

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        wire: str = "f16",
        algorithm: str = "auto",
        transport: str = "auto",
        timeout: float = 30.0,
        deterministic: bool = False,
    ) -> None:
        close_orphans()
        self.devices = _checked_devices(devices)
        wires.check(dtypes.float32, wire)
        _check_transport(env.get().transport if transport == "auto" else transport)
        self.timeout = _checked_timeout(timeout)
        self.deterministic = deterministic
        self._wire = wire
        chosen = tuner.check(algorithm)
        self._algorithm = tuner.check(env.get().algorithm) if chosen == tuner.AUTO else chosen
        self._process = os.getpid()
        self._lock = threading.RLock()  # the cache and what is recorded into it
        self._closing = threading.RLock()
        self._freed = False
        self._cache = ProgramCache()
        self._sequence = 0
        self._failure: BaseException | None = None
        with ExitStack() as undo:
            self._rig = Rig([device.logical for device in self.devices])
            undo.callback(self._rig.close)
            self._executor = Executor(self._rig.devices, self._rig.transports, self._rig.group)
            self._gate = Gate("the communicator")
            for device in self.devices:
                device.adopt(self)
            undo.pop_all()

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def rig(self) -> Rig:
        """What the communicator owns on its devices."""
        return self._rig

    def links(self) -> list[links.Link]:
        """Return how each ordered pair of ranks is linked, and why."""
        return list(self._rig.links)

    def transports(self) -> list[str]:
        """Return how each rank reaches the staging memory."""
        return [transport.name for transport in self._rig.transports]

    @property
    def gate(self) -> Gate:
        """Every call passes it; shut by :meth:`close`."""
        assert self._gate is not None
        return self._gate

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self.gate.is_shut

    def reached(self) -> list[int]:
        """Return each rank's timeline value now."""
        with self.gate:
            return [device.compute.reached for device in self._rig.devices]

    def stats(self) -> dict[str, Any]:
        """Return counters: collectives, cached command buffers, what the bridge did.

        ``bridge_latency_ns`` counts, by powers of two, the time from seeing a source's value to signalling.
        """
        with self.gate:
            bridge = self._rig.group.stats()
            return {
                "collectives": self._sequence,
                "cached_programs": len(self._cache),
                "cached_batches": self._cache.batches,
                "bridges": bridge.bridges,
                "bridges_pending": bridge.pending,
                "bridge_spins": bridge.spins,
                "bridge_blocks": bridge.blocks,
                "bridge_latency_ns": {1 << power: number for power, number in enumerate(bridge.histogram) if number},
                "staging_bytes": self._rig.arena.memory.nbytes,
            }

    def all_reduce(
        self,
        arrays: Sequence[Array | None],
        *,
        op: str = "sum",
        out: Sequence[Array] | None = None,
        wire: str | None = None,
    ) -> Work:
        """Sum ``arrays`` over the ranks; every rank gets the same bits.

        Args:
            arrays: ``arrays[r]`` lives on rank r; equal counts and dtypes (float32, float16, bfloat16, int32,
                uint32). Where ``out[r]`` is given it may be None or of size zero: that rank adds nothing.
            op: ``"sum"``; integers wrap.
            out: where the results go; in place by default. ``out[r]`` is ``arrays[r]`` or shares no byte with it.
            wire: overrides the communicator's wire, for float32 only: all other types travel exactly.

        Returns:
            A :class:`~vkpar.comm.work.Work`; later work on the same devices sees the result without waiting for it.

        Raises:
            InvalidUsageError: unequal counts, an array on the wrong rank, a partial overlap, an unknown name.
            UnsupportedError: a dtype or op that is not supported.
            CommunicatorError: the communicator has failed before.
        """
        with self.gate:
            self._check_usable()
            key = (_keys(arrays), None if out is None else _keys(out), op, wire)
            with self._lock:
                entry = self._cache.get(key) if isinstance(op, str) and isinstance(wire, (str, type(None))) else None
                if entry is None:
                    entry = self._prepare(key, arrays, op, out, wire)
                return self._launch(entry, (arrays, out))

    def _launch(self, entry: Entry, keep: tuple[Any, ...]) -> Work:
        self._sequence += 1
        if not entry.programs:
            return Work(self, "all_reduce", self._sequence, None, keep)
        program = entry.next()
        try:
            program.enqueue()
        except KeyboardInterrupt:
            raise  # every batch was submitted, or none
        except BaseException as error:
            self.fail(error)
            self.check_failure()
        return Work(self, "all_reduce", self._sequence, program, keep)

    def _prepare(
        self, key: Any, arrays: Sequence[Array | None], op: str, out: Sequence[Array] | None, wire: str | None
    ) -> Entry:
        """Check everything, record, and keep what was recorded."""
        _check_op(op)
        operands = checked(self.devices, arrays, out)
        dtype = operands.targets[0].dtype
        if wire is not None and dtype != dtypes.float32:
            raise InvalidUsageError(f"{dtype} travels exactly; wire= is for float32")
        wire = self._wire if wire is None else wire
        wires.check(dtype, wire)
        if self._algorithm != tuner.AUTO:
            tuner.choose(self._algorithm, self._infos, 0)
        self._cache.sweep(self.reached(), self._rig.confirm)
        if operands.targets[0].size == 0:
            entry = Entry([])
        elif self.nranks == 1:
            entry = Entry(self._record_copy(operands))
        else:
            aligned, copies, scratch = _aligned(operands)
            entry = Entry(self._record(aligned, copies, wire), scratch)
        self._cache.add(key, entry, operands.alive)
        return entry

    @property
    def _infos(self) -> list[Any]:
        return [device.info for device in self.devices]

    def _record(self, operands: Operands, copies: Copies, wire: str) -> list[Program]:
        dtype, count = operands.targets[0].dtype, operands.targets[0].size
        contributors = operands.contributors
        message = wires.message_nbytes(dtype, wire, count)
        algorithm = tuner.choose(self._algorithm, self._infos, message, complete=len(contributors) == self.nranks)
        plan = wires.plan(dtype, wire, algorithm)
        region = self._region(-(-count // BLOCK), plan)
        slots = region.slot_set(plan.blocks(region.slot_nbytes))

        def record(generation: int) -> Program:
            problem = Problem(self.nranks, count, slots, contributors, generation)
            return self._executor.record(algorithm.steps(problem), plan, region, operands, copies)

        first = record(0)
        return [first, record(1)] if first.batches <= _ALTERNATED_BATCHES * self.nranks else [first]

    def _record_copy(self, operands: Operands) -> list[Program]:
        """Return what a single rank runs: a copy to its destination, nothing in place."""
        source, target = operands.sources[0], operands.targets[0]
        assert source is not None
        if source.storage is target.storage and source.byte_offset == target.byte_offset:
            return []
        plan = wires.plan(target.dtype, self._wire, TABLE["naive"])
        copies = Copies(after={0: (source, target)})
        return [self._executor.record([Step(0, "copy", ())], plan, self._rig.arena.small, operands, copies)]

    def _region(self, blocks: int, plan: wires.WirePlan) -> Region:
        small, large = self._rig.arena.small, self._rig.arena.large
        return small if blocks <= plan.blocks(small.slot_nbytes) else large

    def fail(self, cause: BaseException) -> None:
        """Poison the communicator with its first failure and let what is parked run out."""
        if self._failure is None:
            self._failure = cause
            _log.error("the communicator failed: %s", cause)
            self._rig.group.abort()

    def check_failure(self) -> None:
        """Raise what has made the communicator unusable.

        Raises:
            CommunicatorError: its ``__cause__`` is the first failure.
        """
        if self._failure is None and not self._freed:
            result = self._rig.group.error()
            if result:
                self.fail(self._rig.bridge_error(result))
        if self._failure is not None:
            details = getattr(self._failure, "details", {})
            raise CommunicatorError(f"the communicator failed: {self._failure}", details) from self._failure

    def check_results(self) -> None:
        """Raise as :meth:`check_failure` does, unless the communicator was closed since.

        Raises:
            CommunicatorError
        """
        if not self.closed:
            self.check_failure()

    def _check_usable(self) -> None:
        self.check_failure()
        for device in self.devices:
            device.logical.check_open()

    def close(self) -> None:
        """Wait for pending collectives (abort them where nothing moves for 10 s) and free everything.

        A close that was interrupted goes on at the next call. In a forked child nothing is touched.
        """
        if self._gate is None:
            return
        if os.getpid() != self._process:
            self._gate.is_shut = True
            return
        with self._closing:
            self._gate.shut()
            if not self._freed:
                self._close()

    def _close(self) -> None:
        wanted = self._cache.pending(self.nranks)
        late = self._rig.drain(wanted, _DRAIN_SECONDS)
        if late:
            self.fail(CommunicatorError(f"closed while ranks {late} stood still for {_DRAIN_SECONDS} s"))
            late = self._rig.drain(wanted, _DRAIN_SECONDS)
        if late:
            self._abandon(late)
        else:
            self._cache.close()
            self._rig.close()
        self._freed = True

    def _abandon(self, late: Sequence[int]) -> None:
        """Leave alone what ranks that never finish may still use."""
        self._rig.group.stop()
        for rank in late:
            self._rig.devices[rank].quarantine()
        _abandoned.append((self._rig, self._cache))

    def join(self) -> None:
        """Wait until a close that another thread has begun is through."""
        with self._closing:
            pass

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._gate is not None and not self._gate.is_shut:
            orphans.append(self)

    def __repr__(self) -> str:
        return f"<vkpar.Communicator of {self.nranks}: {', '.join(device.name for device in self.devices)}>"


def _keys(arrays: Any) -> Any:
    """Return what identifies arrays' memory and type; whatever is no array makes a key that no entry has."""
    try:
        return tuple([None if array is None else array.key for array in arrays])
    except (AttributeError, TypeError):
        return object()


def _checked_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    listed = tuple(devices) if isinstance(devices, Iterable) else ()
    if not listed or not all(isinstance(device, Device) for device in listed):
        raise InvalidUsageError("a communicator takes a list of opened devices; see vkpar.open_devices")
    if len(set(map(id, listed))) != len(listed):
        raise InvalidUsageError("a device is named twice; open it twice for two virtual ranks: open_devices('name*2')")
    return listed


def _checked_timeout(timeout: float) -> float:
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidUsageError(f"timeout must be a positive number of seconds, not {timeout!r}")
    return float(timeout)


def _check_transport(name: str) -> None:
    if not isinstance(name, str) or name not in _TRANSPORTS:
        raise InvalidUsageError(f"unknown transport {name!r}; there are {', '.join(_TRANSPORTS)}")


def _check_op(op: str) -> None:
    if op in _LATER_OPS:
        raise UnsupportedError(f"all_reduce does not do {op!r} yet; it does {', '.join(_OPS)}")
    if op not in _OPS:
        raise InvalidUsageError(f"unknown op {op!r}; there is {', '.join(_OPS)}")


def _aligned(operands: Operands) -> tuple[Operands, Copies, list[Array]]:
    """Replace arrays that wide accesses cannot reach; return the copies that this takes, and the stand-ins."""
    copies = Copies()
    scratch: list[Array] = []
    sources, targets = list(operands.sources), list(operands.targets)
    for rank, (source, target) in enumerate(zip(operands.sources, operands.targets, strict=True)):
        if not target.is_aligned():
            targets[rank] = _stand_in(target, scratch)
            copies.after[rank] = (targets[rank], target)
        if source is not None and not source.is_aligned():
            in_place = source.key == target.key
            stand_in = targets[rank] if in_place else _stand_in(source, scratch)
            sources[rank] = stand_in
            copies.before[rank] = (source, stand_in)
    return Operands(sources, targets), copies, scratch


def _stand_in(array: Array, scratch: list[Array]) -> Array:
    scratch.append(Array.allocate(array.device, array.shape, array.dtype))
    return scratch[-1]
