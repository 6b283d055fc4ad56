"""Opened devices: what arrays live on and kernels run on."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vkpar import dtypes, env
from vkpar.arrays.array import Array
from vkpar.arrays.elements import host_elements
from vkpar.arrays.forms import Plans
from vkpar.arrays.host import HostArray
from vkpar.arrays.operators import operations
from vkpar.errors import CommunicatorError, InvalidUsageError, VkparError
from vkpar.unpickled import Closable, Fixed, Unpickled
from vkpar.vulkan import api, capturing, tracing
from vkpar.vulkan.device import LogicalDevice
from vkpar.vulkan.machine import drivers, instance
from vkpar.vulkan.machine.physical import DeviceInfo, Limits
from vkpar.vulkan.machine.selector import default as default_devices
from vkpar.vulkan.machine.selector import select
from vkpar.vulkan.memory.accounting import ARRAYS, DeviceMemory
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.memory.subbuffers import SubBuffers
from vkpar.vulkan.stream import Stream

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_log = logging.getLogger("vkpar")


class Device(Closable, Fixed, Unpickled):
    """An opened device; work given to it runs in program order.

    Closing it waits for its work and frees its memory; the arrays that lived on it can no longer be used. It is a
    context manager, and ``close`` may be called twice.

    Attributes:
        info: the physical device that it was opened on.
        plans: of the operations that were called on its arrays.

    Examples:
        >>> device.array(np.array([1, 2], np.float32)).sum().item()
        3.0
    """

    _internal = "adopt adopted allocate_array check_open dispatch logical notice_failures peer_copier plans stream"

    def __init__(self, info: DeviceInfo) -> None:
        if not isinstance(info, DeviceInfo):
            raise InvalidUsageError(
                f"vkpar.Device is made of a DeviceInfo (see vkpar.enumerate_devices), not of {info!r}: "
                "vkpar.open_devices(selector) opens devices by name or index and returns a list of them"
            )
        if info.handle is None:
            raise InvalidUsageError("a pickled DeviceInfo opens nothing: take one of vkpar.enumerate_devices()")
        close_orphans()
        self.info = info
        self._children: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pairs: list[Any] = []  # communicators made for copies to other devices
        self._logical = LogicalDevice(info, self._own)
        self.plans = Plans()
        living.add(self)
        tracing.opened(self)

    def _own(self, logical: LogicalDevice) -> None:
        _owners[logical] = weakref.ref(self)

    @property
    def name(self) -> str:
        """The driver's name for the device."""
        return self.info.name

    @property
    def limits(self) -> Limits:
        """The driver's limits."""
        return self.info.limits

    def check_open(self) -> None:
        """Refuse the device once it is closed.

        Raises:
            InvalidUsageError: the device is closed.
            DeviceLostError: the device was quarantined.
        """
        self._logical.check_open()

    @property
    def logical(self) -> LogicalDevice:
        """The Vulkan side, checked to be open; raises as :meth:`check_open` does."""
        self._logical.check_open()
        return self._logical

    @property
    def stream(self) -> Stream | None:
        """What gathers its operations, and refuses them once it is closed; None where messages are raised first."""
        return self._logical.stream if self._logical.serves else None

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._logical.closed

    def array(self, source: ArrayLike | HostArray, dtype: object = None) -> Array:
        """Return a new array with a copy of ``source``, of any shape, strides and size.

        Args:
            source: anything that ``np.asarray`` takes, a :class:`HostArray`, or what hands over its elements on the
                host by DLPack, such as torch's tensors of bfloat16; it may be changed as soon as the call returns.
            dtype: the element type. By default that of ``source``; Python's numbers and lists have none, and are
                float32, or int32 where all are whole and fit (else int64). NumPy's arrays keep theirs: float64 can be
                stored and not computed.

        Raises:
            InvalidUsageError: not an array of plain numbers.
            OutOfMemoryError: the device has no room.
        """
        host = host_elements(source, dtype)
        made = Array.allocate(self, host.values.shape, host.dtype)
        made.write(host.values)
        return made

    def empty(self, shape: int | Sequence[int], dtype: object = "float32") -> Array:
        """Return a new array with undefined contents.

        Raises:
            InvalidUsageError: a negative dimension or an unknown dtype.
            OutOfMemoryError: the device has no room.
        """
        return Array.allocate(self, shape, dtypes.resolve(dtype))

    def zeros(self, shape: int | Sequence[int], dtype: object = "float32") -> Array:
        """Return a new array of zeros; raises as :meth:`empty` does."""
        made = self.empty(shape, dtype)
        made.fill_zeros()
        return made

    def ones(self, shape: int | Sequence[int], dtype: object = "float32") -> Array:
        """Return a new array of ones; raises as :meth:`empty` does."""
        return self.full(shape, 1, dtype)

    def full(self, shape: int | Sequence[int], value: float, dtype: object = "float32") -> Array:
        """Return a new array of which every element is ``value``; see :func:`vkpar.full`."""
        made = self.empty(shape, dtype)
        made.fill(value)
        return made

    def arange(self, start: float, stop: float | None = None, step: float = 1, dtype: object = None) -> Array:
        """Return a new array of ``start``, ``start + step``, ... below ``stop``; see :func:`vkpar.arange`."""
        made: Array = operations["arange"](self, start, stop, step, dtype)
        return made

    def allocate_array(self, nbytes: int, label: Callable[[], str] | None, purpose: str) -> SubBuffers:
        """Return memory for an array: that of one that was dropped where the size is the same, else new memory.

        Raises:
            InvalidUsageError: the device is closed.
            OutOfMemoryError, UnsupportedError: as :meth:`LogicalDevice.allocate_array` says.
        """
        logical = self._logical
        if purpose == ARRAYS and logical.serves:
            memory = logical.recycler.take(nbytes, label)
            if memory is not None:
                return memory
        logical.check_open()
        return logical.allocate_array(nbytes, label, purpose)

    def dispatch(
        self,
        kernel: str,
        bindings: Sequence[BufferRange],
        push: bytes,
        groups: tuple[int, int, int],
        constants: tuple[int, ...] = (),
    ) -> None:
        """Run a built-in kernel asynchronously, in program order.

        Args:
            kernel: its name in the package's ``spirv`` folder.
            bindings: set 0, binding i.
            push: the push constants.
            groups: numbers of work-groups.
            constants: specialization constants 0, 1, ... (32-bit integers).
        """
        logical = self.logical
        pushes = logical.pushes(len(bindings))
        pipeline = logical.pipelines.shipped(kernel, len(bindings), len(push), constants, pushes=pushes)
        logical.dispatch(kernel, pipeline, bindings, push, groups)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until everything given to the device is done.

        Args:
            timeout: seconds from 0 up; None and infinity wait for ever (Ctrl-C works).

        Raises:
            InvalidUsageError: ``timeout`` is no number, NaN or negative; or the device is closed.
            WaitTimeoutError: the time ran out; the work goes on.
            DeviceLostError: the device is gone.
        """
        self.logical.synchronize(timeout)
        instance.raise_messages()

    def memory(self) -> DeviceMemory:
        """Return what the device's memory is used for now: bytes by heap and by purpose, and the driver's budgets.

        Budgets are read afresh (None without VK_EXT_memory_budget); dropped arrays count until work on them is done.

        Raises:
            InvalidUsageError: the device is closed.
        """
        return self.logical.memory()

    def trim(self) -> int:
        """Give memory that is kept for later arrays back to the driver; return how many bytes.

        Only blocks without any array in them go. An allocation that finds no room does this by itself.

        Raises:
            InvalidUsageError: the device is closed.
        """
        return self.logical.trim()

    def adopt(self, child: Any) -> None:
        """Close ``child`` before this device: a communicator, or a graph."""
        self._children.add(child)

    def adopted(self) -> list[Any]:
        """Return what is closed before this device."""
        return list(self._children)

    def peer_copier(self, other: Device) -> Any:
        """Return an object whose ``move(source, target)`` copies arrays between this device and ``other``.

        It is a communicator of both devices where there is one, else a communicator made for the two.
        """
        assert make_peer_copier is not None, "vkpar.comm.pairs is imported with the package"
        with _connecting:
            for child in list(self._children):
                if child.copies_between(self, other):
                    return child
            for device in (self, other):
                capturing.refuse(device.logical.stream, "a copy between devices without their communicator")
            for pair in [*self._pairs, *other._pairs]:
                if pair.failed:  # its failure is raised where its copies are read
                    with suppress(CommunicatorError):
                        pair.close()
            self._pairs = [pair for pair in self._pairs if not pair.closed]
            self._pairs.append(make_peer_copier(self, other))
            return self._pairs[-1]

    def notice_failures(self) -> None:
        """Have its communicators find out whether they have failed, and what of its memory that has spoiled."""
        for child in list(self._children):
            child.notice_failure()

    def close(self) -> None:
        """Wait for pending work, up to 30 s without progress, and free everything; a second call does nothing.

        Raises:
            VkparError: what closing a communicator or a graph on it raised first; the device is closed nevertheless.
        """
        close_orphans()  # a garbage collector may have dropped communicators of this device
        tracing.closing(self)
        self._logical.refuse_calls()  # no communicator is made from now on
        errors: list[VkparError] = []
        for child in [*self._children, *self._pairs]:
            try:
                child.close()
            except VkparError as error:
                errors.append(error)
        self._pairs.clear()
        if not errors:
            self._logical.outlive(close_orphans)
        self._logical.close()
        _owners.pop(self._logical, None)
        if errors:
            raise errors[0]

    def __del__(self) -> None:
        if hasattr(self, "_logical") and not self._logical.done:  # a close may have been interrupted
            orphans.append(self)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<vkpar.Device {self._logical.label}{state}>"

    def __str__(self) -> str:
        return self._logical.label


_connecting = threading.Lock()

# Makes the communicator that copies arrays between two devices; vkpar.comm, which lies above this module, sets it.
make_peer_copier: Callable[[Device, Device], Any] | None = None
living: weakref.WeakSet[Device] = weakref.WeakSet()

# Devices and communicators that were dropped without close(): a finalizer must not wait, so they are closed later.
orphans: deque[Any] = deque()

# The Vulkan side of every device that is not closed, from before it is opened: that of a device whose opening was
# interrupted, or its finalizer, is found here.
_owners: dict[LogicalDevice, weakref.ref[Device]] = {}


def close_orphans() -> None:
    """Close the objects that were dropped without ``close()``: communicators before the devices that they run on."""
    dropped = []
    while orphans:
        dropped.append(orphans.popleft())
    for item in sorted(dropped, key=lambda item: isinstance(item, Device)):
        _close_quietly(item)
    for logical, owner in _owners.copy().items():
        if owner() is None and not logical.users:
            _close_quietly(logical)
            _owners.pop(logical, None)


def _close_quietly(item: Any) -> None:
    try:
        item.close()
    except Exception:
        _log.exception("closing %r failed", item)


def enumerate_devices() -> list[DeviceInfo]:
    """List the physical devices of every driver in the loader's order; nothing is opened.

    Raises:
        UnsupportedError: no Vulkan loader or no driver; the message says what to install.

    Examples:
        >>> cards = [info.name for info in vkpar.enumerate_devices() if not info.is_cpu]
    """
    return drivers.enumerate_devices()


def open_devices(selector: str | int | None = None) -> list[Device]:
    """Open the devices that a selector names; their order is the rank order.

    Args:
        selector: an index, or text: parts joined by ``&``: an index, a UUID, a PCI address, a piece of a name, vendor
            or driver, ``all``, ``gpu`` or ``cpu``; ``*N`` opens N logical devices of each match. By default the value
            of ``VKPAR_DEVICES``, else all discrete GPUs, else the integrated ones, else the CPU drivers.

    Raises:
        InvalidUsageError: nothing matches; the message lists the devices.
        UnsupportedError: no loader, no driver, or a device that lacks what vkpar needs.

    Examples:
        >>> one, other = vkpar.open_devices(f"{device.info.index}*2")  # two ranks on one card
    """
    if not isinstance(selector, (str, int, type(None))):
        raise InvalidUsageError(f"a selector is an index or text such as '0&1', not {selector!r}")
    found = enumerate_devices()
    chosen = select(str(selector), found) if selector is not None else _default(found)
    return open_all(chosen)


def open_all(infos: Iterable[DeviceInfo]) -> list[Device]:
    """Open devices; where one cannot be opened, the others are closed again."""
    opened: list[Device] = []
    try:
        for info in infos:
            opened.append(Device(info))
    except BaseException:
        for device in opened:
            device.close()
        raise
    return opened


def _default(found: list[DeviceInfo]) -> list[DeviceInfo]:
    """Return what ``VKPAR_DEVICES`` names, else the best kind of device that there is."""
    text = env.get().devices
    if text:
        try:
            return select(text, found)
        except InvalidUsageError as error:
            raise InvalidUsageError(f"VKPAR_DEVICES={text!r}: {error}") from error
    chosen = default_devices(found)
    _log.info("opening %s", ", ".join(info.name for info in chosen))
    return chosen


@atexit.register
def _close_all() -> None:
    instance.end()
    close_orphans()
    for device in list(living):
        _close_quietly(device)
    if api.loaded() and not api.load().live().get("Device"):
        instance.close()
