"""The communicator: ranks, their links and slots, and the collectives on them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from vkpar import dtypes, env
from vkpar.array import Array
from vkpar.comm import links, tuner, wires
from vkpar.comm.cache import Entry, ProgramCache
from vkpar.comm.executor import Executor, Program
from vkpar.comm.operands import Operands, checked
from vkpar.comm.rig import Rig
from vkpar.comm.schedule import BLOCK, Problem
from vkpar.comm.slots import Region
from vkpar.comm.work import Work
from vkpar.device import Device
from vkpar.errors import CommunicatorError, InvalidUsageError, UnsupportedError, VulkanError
from vkpar.vulkan import pump

_log = logging.getLogger("vkpar")
_OPS = ("sum", "avg", "max", "min", "prod")
_TRANSPORTS = ("auto", "staged", "mapped")
_ALTERNATED_BATCHES = 8  # a rank; shorter programs are recorded twice, over different slots
_DRAIN_SECONDS = 10.0


class Communicator:
    """Collectives over devices of any vendors; rank r is the r-th device.

    It is a context manager and ``close`` may be called twice; closing a device closes its communicators.

    Args:
        devices: one opened device per rank, each once.
        wire: how float32 crosses links: ``f16`` (scaled in blocks, range-safe), ``bf16`` or ``f32`` (exact).
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
        self._closed = True  # until all below is there
        self.devices = _checked_devices(devices)
        wires.check(dtypes.float32, wire)
        _check_transport(env.get().transport if transport == "auto" else transport)
        if not timeout > 0:
            raise InvalidUsageError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.timeout = timeout
        self.deterministic = deterministic
        self._wire = wire
        chosen = tuner.check(algorithm)
        self._algorithm = tuner.check(env.get().algorithm) if chosen == tuner.AUTO else chosen
        self._rig = Rig([device.logical for device in self.devices])
        self._executor = Executor(self._rig.devices, self._rig.transports, self._rig.group)
        self._cache = ProgramCache()
        self._sequence = 0
        self._failure: BaseException | None = None
        self._closed = False
        for device in self.devices:
            device.adopt(self)

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

    def reached(self) -> list[int]:
        """Return each rank's timeline value now."""
        return [device.compute.timeline.value() for device in self._rig.devices]

    def stats(self) -> dict[str, Any]:
        """Return counters: collectives, cached command buffers, what the bridge did.

        ``bridge_latency_ns`` counts, by powers of two, the time from seeing a source's value to signalling.
        """
        self._check_open()
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
        self._check_usable()
        key = (_keys(arrays), None if out is None else _keys(out), op, wire)
        with pump.enqueue_lock:
            entry = self._cache.get(key)
            if entry is None:
                entry = self._prepare(key, arrays, op, out, wire)
            return self._launch(entry, arrays, arrays if out is None else out)

    def _launch(self, entry: Entry, arrays: Sequence[Array | None], targets: Sequence[Any]) -> Work:
        self._sequence += 1
        for rank, copied in entry.inputs.items():
            source = arrays[rank]
            if source is not None:
                copied.copy_from(source)
        values = self._enqueue(entry) if entry.programs else [0] * self.nranks
        for rank, copied in entry.outputs.items():
            targets[rank].copy_from(copied)
            values[rank] = self._rig.devices[rank].compute.last
        return Work(self, "all_reduce", self._sequence, values, (arrays, targets))

    def _enqueue(self, entry: Entry) -> list[int]:
        try:
            return list(entry.next().enqueue())
        except VulkanError as error:
            self.fail(error)
            self.check_failure()
            raise

    def _prepare(
        self, key: Any, arrays: Sequence[Array | None], op: str, out: Sequence[Array] | None, wire: str | None
    ) -> Entry:
        """Check everything, record, and keep what was recorded."""
        _check_op(op)
        operands = checked(self.devices, arrays, out)
        dtype = operands.targets[0].dtype
        if wire is not None and dtype != dtypes.float32:
            raise InvalidUsageError(f"{dtype} travels exactly; wire= is for float32")
        wires.check(dtype, wire or self._wire)
        if self._algorithm != tuner.AUTO:
            tuner.choose(self._algorithm, self._infos, 0)
        self._cache.sweep(self.reached())
        if self.nranks == 1 or operands.targets[0].size == 0:
            entry = _alone(operands)
        else:
            aligned, inputs, outputs = _aligned(operands)
            entry = Entry(self._record(aligned, wire or self._wire), inputs, outputs)
        self._cache.add(key, entry, operands.alive)
        return entry

    @property
    def _infos(self) -> list[Any]:
        return [device.info for device in self.devices]

    def _record(self, operands: Operands, wire: str) -> list[Program]:
        dtype, count = operands.targets[0].dtype, operands.targets[0].size
        contributors = operands.contributors
        message = wires.message_nbytes(dtype, wire, count)
        algorithm = tuner.choose(self._algorithm, self._infos, message, complete=len(contributors) == self.nranks)
        plan = wires.plan(dtype, wire, algorithm)
        region = self._region(-(-count // BLOCK), plan)
        slots = region.slot_set(plan.blocks(region.slot_nbytes))

        def record(generation: int) -> Program:
            problem = Problem(self.nranks, count, slots, contributors, generation)
            return self._executor.record(algorithm.steps(problem), plan, region, operands)

        first = record(0)
        return [first, record(1)] if first.batches <= _ALTERNATED_BATCHES * self.nranks else [first]

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
        if self._failure is None and not self._closed:
            result = self._rig.group.error()
            if result:
                self.fail(self._rig.bridge_error(result))
        if self._failure is not None:
            details = getattr(self._failure, "details", {})
            raise CommunicatorError(f"the communicator failed: {self._failure}", details) from self._failure

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidUsageError("the communicator is closed")

    def _check_usable(self) -> None:
        self._check_open()
        self.check_failure()
        for device in self.devices:
            device.logical.check_open()

    def close(self) -> None:
        """Wait for pending collectives (10 s at most, then abort them) and free everything."""
        if self._closed:
            return
        self._closed = True
        if not self._drained(_DRAIN_SECONDS):
            _log.error("a collective did not end in %s s; it is aborted", _DRAIN_SECONDS)
            self._rig.group.abort()
            self._drained(_DRAIN_SECONDS)
        self._cache.close()
        self._rig.close()

    def _drained(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        try:
            for device, value in zip(self._rig.devices, self._cache.pending(self.nranks), strict=True):
                device.compute.wait(value, max(0.0, end - time.monotonic()))
        except TimeoutError:
            return False
        except VulkanError:
            return True  # a lost device runs nothing any more
        return True

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<vkpar.Communicator of {self.nranks}: {', '.join(device.name for device in self.devices)}>"


def _keys(arrays: Any) -> Any:
    """Return what identifies arrays' memory and type; whatever is no array makes a key that no entry has."""
    try:
        return tuple([None if array is None else array.key for array in arrays])
    except (AttributeError, TypeError):
        return object()


def _checked_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    listed = tuple(devices)
    if not listed or not all(isinstance(device, Device) for device in listed):
        raise InvalidUsageError("a communicator takes a list of opened devices; see vkpar.open_devices")
    if len(set(map(id, listed))) != len(listed):
        raise InvalidUsageError("a device is named twice; open it twice for two virtual ranks: open_devices('name*2')")
    return listed


def _check_transport(name: str) -> None:
    if name not in _TRANSPORTS:
        raise InvalidUsageError(f"unknown transport {name!r}; there are {', '.join(_TRANSPORTS)}")
    if name == "mapped":
        raise UnsupportedError("transport 'mapped' is not there yet; devices must import host memory")


def _check_op(op: str) -> None:
    if op not in _OPS:
        raise InvalidUsageError(f"unknown op {op!r}; there are {', '.join(_OPS)}")
    if op != "sum":
        raise UnsupportedError(f"all_reduce does not do {op!r} yet; it does 'sum'")


def _alone(operands: Operands) -> Entry:
    """Return the entry of a call in which nothing crosses a link: at most a copy from array to destination."""
    outputs = {
        rank: source
        for rank, (source, target) in enumerate(zip(operands.sources, operands.targets, strict=True))
        if source is not None and source is not target and target.size
    }
    return Entry([], {}, outputs)


def _aligned(operands: Operands) -> tuple[Operands, dict[int, Array], dict[int, Array]]:
    """Replace arrays that wide accesses cannot reach; return the stand-ins of sources and of targets by rank."""
    inputs: dict[int, Array] = {}
    outputs: dict[int, Array] = {}
    sources, targets = list(operands.sources), list(operands.targets)
    for rank, (source, target) in enumerate(zip(operands.sources, operands.targets, strict=True)):
        if not target.is_aligned():
            outputs[rank] = targets[rank] = Array.allocate(target.device, target.shape, target.dtype)
        if source is not None and not source.is_aligned():
            in_place = source.key == target.key
            stand_in = outputs[rank] if in_place else Array.allocate(source.device, source.shape, source.dtype)
            inputs[rank] = sources[rank] = stand_in
    return Operands(sources, targets), inputs, outputs
