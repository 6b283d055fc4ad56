"""Parameters of a graph: values of one element that each launch may set."""

from __future__ import annotations

import keyword
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError
from vkpar.text import shown
from vkpar.vulkan.memory.accounting import STAGING
from vkpar.vulkan.memory.hostmemory import host_bytes
from vkpar.vulkan.memory.memtypes import HOST
from vkpar.vulkan.recording import Recording

CELLS: Final = 4  # launches with values of their own that may be under way
_NBYTES: Final = 16  # of a value in a cell
_CODES: Final = {"uint32": "I", "int32": "i", "float32": "f"}  # struct's
_LIMITS: Final = {"uint32": (0, (1 << 32) - 1), "int32": (-(1 << 31), (1 << 31) - 1)}


class Params:
    """The parameters of one graph.

    A value lies in an array of each device, which the kernels of the graph read. A launch that sets values writes all
    of them to a *cell* of host memory; the launch begins with a copy from the cell to the arrays.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._numbers: dict[str, int] = {}
        self._types: list[DType] = []
        self._arrays: list[list[Array]] = []  # by parameter, by device
        self._values: list[int | float] = []
        self._fresh = True  # the arrays hold nothing yet
        self._turn = 0  # the next cell
        self._cells: list[list[tuple[Any, np.ndarray[Any, Any]]]] = []  # by cell, by device: commands, mapped bytes
        self._buffers: list[Any] = []
        self._pack: Callable[..., bytes]
        self._starts: list[Sequence[int] | None] = [()] * CELLS

    def add(self, name: str, dtype: object, initial: float) -> list[Array]:
        """Declare a parameter and return its arrays.

        Raises:
            InvalidUsageError: a name that is taken or cannot be a keyword, another dtype, a value that it cannot hold.
        """
        wrong = not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name == "self"
        if wrong or name in self._numbers:
            known = f"; there are {', '.join(self._numbers)}" if self._numbers else ""
            raise InvalidUsageError(f"a parameter's name is a new keyword of launch, not {name!r}{known}")
        found = dtypes.resolve(dtype)
        if found.name not in _CODES:
            raise InvalidUsageError(f"a parameter is one of {', '.join(_CODES)}, not {found}")
        value = _value(name, found, initial)
        self._arrays.append([Array.allocate(device, 1, found) for device in self._devices])
        self._numbers[name] = len(self._types)
        self._types.append(found)
        self._values.append(value)
        return list(self._arrays[-1])

    @property
    def declared(self) -> bool:
        """Whether there are any."""
        return bool(self._types)

    def record(self, undo: ExitStack) -> list[tuple[int, Recording]]:
        """Record the copies of all cells; return what they lie in, by device. ``undo`` closes it on an error."""
        if not self._types:
            return []
        nbytes = _NBYTES * len(self._types)
        self._pack = struct.Struct("=" + "".join(f"{_CODES[dtype.name]}{_NBYTES - 4}x" for dtype in self._types)).pack
        parts: list[tuple[int, Recording]] = []
        self._cells = [[] for _ in range(CELLS)]
        for number, device in enumerate(self._devices):
            logical = device.logical
            buffer = logical.allocator.allocate(nbytes * CELLS, HOST, purpose=STAGING)
            self._buffers.append(buffer)
            mapped = host_bytes(buffer.mapped, nbytes * CELLS)
            recording = Recording(logical.stream)
            undo.callback(recording.close)
            parts.append((number, recording))
            for cell in range(CELLS):
                commands = recording.begin()
                recording.copy([self._part(buffer, nbytes * cell, index, number) for index in range(len(self._types))])
                recording.end()
                self._cells[cell].append((commands, mapped[nbytes * cell : nbytes * (cell + 1)]))
        return parts

    def _part(self, buffer: Any, start: int, index: int, device: int) -> tuple[int, int, int, int, int]:
        storage = self._arrays[index][device].storage
        nbytes = self._types[index].itemsize
        return buffer.number, buffer.offset + start + _NBYTES * index, storage.number, storage.base, nbytes

    @property
    def bound(self) -> list[object]:
        """What the commands name."""
        return [self._arrays, self._buffers]

    def check(self, values: Mapping[str, Any]) -> dict[int, int | float]:
        """Return the values by the parameters' numbers.

        Raises:
            InvalidUsageError: a name that no parameter has, or a value that its type cannot hold.
        """
        made: dict[int, int | float] = {}
        for name, value in values.items():
            number = self._numbers.get(name)
            if number is None:
                there = f"it has {', '.join(self._numbers)}" if self._numbers else "it has none"
                raise InvalidUsageError(f"the graph has no parameter {name!r}; {there}")
            made[number] = _value(name, self._types[number], value)
        return made

    def changes(self, values: Mapping[int, int | float]) -> bool:
        """Say whether a launch with these values has to copy."""
        return bool(self._types) and (self._fresh or any(self._values[index] != new for index, new in values.items()))

    @property
    def next_starts(self) -> Sequence[int] | None:
        """The devices' timeline values at which the next cell may be written; None where nobody knows."""
        return self._starts[self._turn]

    def write(self, values: Mapping[int, int | float]) -> list[Any]:
        """Write a launch's values to the next cell; return the commands that copy them, by device.

        Until :meth:`launched` tells of it, nobody knows whether they were copied.
        """
        self._fresh = True
        for index, new in values.items():
            self._values[index] = new
        made = self._pack(*self._values)
        number = self._turn
        self._starts[number] = None
        self._turn = (number + 1) % CELLS
        for _, mapped in self._cells[number]:
            mapped[:] = np.frombuffer(made, np.uint8)
        return [commands for commands, _ in self._cells[number]]

    def launched(self, starts: Sequence[int]) -> None:
        """Note that the copies were submitted: they are done when the devices' timelines have ``starts``."""
        self._starts[self._turn - 1] = starts
        self._fresh = False


def _value(name: str, dtype: DType, value: object) -> int | float:
    """Return ``value`` as a number that ``dtype`` holds."""
    if dtype.name == "float32":
        try:
            return float(np.float32(_plain(value)))
        except (TypeError, ValueError) as error:
            raise InvalidUsageError(f"{name} is a number, not {shown(value)}") from error
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidUsageError(f"{name} is a whole number ({dtype}), not {value!r}") from None
    least, most = _LIMITS[dtype.name]
    if not least <= number <= most:
        raise InvalidUsageError(f"{name} is {dtype}, from {least} to {most}, not {shown(number)}")
    return number


def _plain(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError("too large") from None
    if math.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
        raise ValueError("too large")
    return number
