"""The user's own compute kernels, from GLSL or SPIR-V."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.forms import form_of
from vkpar.device import Device
from vkpar.errors import InvalidUsageError
from vkpar.kernels.binding import bound, can_begin, check, operands
from vkpar.ops.call.plan import Plan, bindings_of
from vkpar.ops.call.plan import make as make_plan
from vkpar.unpickled import Closable, Unpickled
from vkpar.vulkan import capturing, query, queue
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.pipelines import checks
from vkpar.vulkan.pipelines.dimensions import measured, read_of_places
from vkpar.vulkan.pipelines.groups import check_counted, check_groups, groups_of, groups_over
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.kernel import Pipeline
from vkpar.vulkan.pipelines.push import Packer
from vkpar.vulkan.pipelines.source import as_bytes, compiled
from vkpar.vulkan.pipelines.uniforms import as_storage
from vkpar.vulkan.pump.ledger import REPLACES, UPDATES
from vkpar.vulkan.stream import Binding

_MOST_PLANS: Final = 4096
_MOST_RUNS: Final = 10_000

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from vkpar.vulkan.pipelines.source import Source

    Push = ReadableBuffer | Mapping[str, Any]


class Kernel(Closable, Unpickled):
    """A compute kernel on one device, or on several.

    Buffers are in set 0; binding i is the i-th array of a call: exactly the array's bytes, so that a kernel given a
    view cannot reach its neighbours. Only where an array ends its memory (any array but a view does) up to 15 bytes of
    padding follow, which make the length a multiple of 16. A binding that is declared ``uniform`` takes an array, too,
    of at least the block's bytes: laid out by std140, and as large as a storage buffer may be.

    A binding of numbers, vectors or matrices takes arrays of its own type (a complex one where the parts are of that
    type), with the padding along the last axis that GLSL puts behind each: (n, 4) for ``vec3 v[]``. ``uint`` takes
    every array, as words; uint8_t, uint16_t and uint64_t what is as wide. A block of several members takes their types,
    or bytes; one of structs takes every array.

    Devices bind buffers at multiples of 4 to 256 bytes, each its own, and views begin anywhere. A kernel whose last
    push constants are named ``vkpar_offset_<binding>`` (uint or int) takes views on every device: vkpar binds from a
    multiple of 256 bytes on and fills in the index of the array's first element (SPIR-V keeps its names for that)::

        layout(binding = 0) buffer A { float a[]; };
        layout(push_constant) uniform P { uint n; uint vkpar_offset_0; };   // push={"n": 100}
        void main() { if (gl_GlobalInvocationID.x < n) a[vkpar_offset_0 + gl_GlobalInvocationID.x] = 1.0; }

    Without them, a view that the device cannot bind is copied aside where the kernel declares its binding ``readonly``
    or ``uniform``, and refused elsewhere.

    It is a context manager. Kernels that are dropped or closed free their pipelines once the devices are done with
    them; SPIR-V made of GLSL is kept in the process and in ``VKPAR_CACHE_DIR``.

    Args:
        device: where it runs; or several devices: it is compiled once, its pipelines are made where they are first
            needed, and each call runs where its arrays are.
        source: GLSL text (``#version 450``, a compute shader); the ``pathlib.Path`` of a file of such text, or of
            SPIR-V (``.spv``); or SPIR-V bytes (anything with the buffer protocol). GLSL may ``#include "file"``.
        entry: the entry point's name; that of GLSL is ``main``.
        defines: macros for the GLSL, by name: numbers, texts, or truth values, which hold in ``#if``, too.
        include_dirs: folders in which included files are looked for, after that of the file that includes them.
        subgroup_size: how many invocations every subgroup has: a power of two that divides the local size in x, of
            which the devices have those of ``device.info.features.subgroup_sizes``. Without it a driver may run
            fewer, or more, than ``gl_SubgroupSize`` says.

    Attributes:
        devices: where it runs; ``device`` is the first.
        local_size: invocations of a work-group in x, y and z.

    Raises:
        ShaderCompileError: GLSL with errors; the message holds the compiler's log.
        UnsupportedError: no GLSL compiler on this machine, or a kernel that needs more than a device has or vkpar
            offers: storage and uniform buffers and push constants; 8- and 16-bit storage, small and 64-bit integers,
            float16, float64, atomics on floats, subgroup operations and cooperative matrices where the device has them.
        InvalidUsageError: neither text nor SPIR-V, the name of a file, a file that cannot be read, no such entry point,
            bindings with gaps, no device, a size of subgroups that the local size has not.

    Examples:
        >>> source = '''
        ... #version 450
        ... layout(local_size_x = 64) in;
        ... layout(binding = 0) buffer A { float a[]; };
        ... void main() { uint i = gl_GlobalInvocationID.x; if (i < a.length()) a[i] = 2.0 * a[i]; }
        ... '''
        >>> a = device.array([1, 2, 3], "float32")
        >>> with vkpar.Kernel(device, source) as double:
        ...     double(1, a)
        >>> a.tolist()
        [2.0, 4.0, 6.0]
    """

    def __init__(
        self,
        device: Device | Sequence[Device],
        source: Source,
        *,
        entry: str = "main",
        defines: Mapping[str, object] | None = None,
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        subgroup_size: int | None = None,
    ) -> None:
        self.devices = _devices(device)
        self.device = self.devices[0]
        folders = [Path(folder) for folder in include_dirs]
        spirv, self._name = compiled(source, entry, dict(defines or {}), folders)
        interface = reflect(spirv)
        checks.check_module(interface, entry)
        for item in self.devices:
            checks.check_device(item.info, str(item), interface, entry, queue.DESCRIPTORS_PER_FRAME)
            self._subgroup = checks.check_subgroup(item.info, str(item), subgroup_size, interface, entry)
        self._spirv = as_storage(spirv) if interface.uniforms else spirv
        self._entry, self._interface = entry, interface
        self.local_size = interface.entries[entry].local_size
        self._key = hashlib.sha256(self._spirv).hexdigest()
        self._pipelines: dict[tuple[Device, bool], Pipeline] = {}
        self._plans: dict[tuple[Any, ...], tuple[Plan, bytes]] = {}  # and the push constants that vkpar fills
        self.closed = False

    def close(self) -> None:
        """Free the pipelines once the work submitted so far is done; a second call does nothing."""
        self.closed = True
        self._pipelines = {}
        self._plans = {}

    def __repr__(self) -> str:
        declared = self._interface
        uniforms = dict(declared.uniforms)
        bindings = [
            f"{number} {'uniform' if number in uniforms else 'readonly'}"
            if number in declared.readonly
            else f"{number}"
            for number in sorted(declared.bindings)
        ]
        push = "; ".join(member.text for member in declared.members) if all(m.name for m in declared.members) else ""
        push = push or (f"{declared.given_nbytes} bytes" if declared.given_nbytes else "none")
        where = ", ".join(map(str, self.devices))
        state = ", closed" if self.closed else ""
        return (
            f"<vkpar.Kernel {self._name} on {where}: local size {self.local_size}, bindings "
            f"{', '.join(bindings) or 'none'}, push constants {push}{state}>"
        )

    @overload
    def __call__(self, groups: int | Sequence[int], /, *arrays: Array, push: Push = b"") -> None: ...

    @overload
    def __call__(self, /, *arrays: Array, push: Push = b"", elements: int | Sequence[int]) -> None: ...

    def __call__(
        self, groups: Any = None, /, *arrays: Array, push: Push = b"", elements: int | Sequence[int] | None = None
    ) -> None:
        """Run it on ``arrays``, after all earlier work on their device; returns at once.

        ``kernel(groups, a, b)`` says how many work-groups run, ``kernel(a, b, elements=n)`` how many invocations at
        least: as many work-groups as cover them. The kernel leaves out what is beyond the last element.

        Args:
            groups: numbers of work-groups in x, y and z (trailing ones may be left out).
            arrays: one per binding, all on one of the kernel's devices.
            push: the push constants: a dict by name (whole numbers, numbers, sequences of these for vectors and
                arrays), or exactly as many bytes as the kernel declares: bytes, a NumPy array or anything else with the
                buffer protocol.
            elements: numbers of invocations in x, y and z, at least as many as the local size has dimensions, and no
                more than those in which the kernel reads its place; in place of ``groups``.

        Raises:
            InvalidUsageError: a closed kernel, a wrong number of arrays, wrong push constants, an array of another
                device, of another type than its binding holds, without elements or at an offset that the device cannot
                bind, or bad group numbers, or more than the device starts in a call.
            UnsupportedError: an array larger than the device can bind.
        """
        if self.closed:
            raise InvalidUsageError("this Kernel was closed")
        if elements is not None:
            arrays = operands(groups, arrays)
            groups = groups_over(elements, self.local_size)
        if type(push) is dict:
            push = self._packer(push)
        counted = elements is not None and groups[1] * groups[2] > 1  # such groups are checked: no other call's plan
        if (
            type(push) is bytes
            and len(push) == self._interface.given_nbytes
            and self._run_plan(groups, arrays, push, counted=counted)
        ):
            return
        dims, constants, device = self._checked(groups, arrays, push, elements)
        ranges, constants = bound(self._interface, device, arrays, constants, self._measured)
        pipeline = self._pipeline(device, pushes=device.logical.pushes(len(arrays)))
        bindings = self._bindings(pipeline, arrays, ranges)
        device.logical.dispatch(f"Kernel {self._name}", pipeline, ranges, constants, dims, bindings=bindings)
        self._keep_plan(device, pipeline, arrays, ranges, dims, constants, counted=counted)

    def time(
        self,
        groups: Any = None,
        /,
        *arrays: Array,
        push: Push = b"",
        elements: int | Sequence[int] | None = None,
        repeat: int = 10,
    ) -> float:
        """Return the seconds that a run takes on the device: the median of ``repeat`` runs, by its timestamps.

        The kernel runs once more before, after all earlier work on the device, so ``repeat + 1`` times in all: what it
        changes in place it changes as often. The call waits for the end.

        Args:
            groups: as in a call.
            arrays: as in a call.
            push: as in a call.
            elements: as in a call.
            repeat: how many runs are timed, from 1 to 10,000.

        Raises:
            InvalidUsageError: as a call does; or ``repeat`` is out of range; or inside ``vkpar.capture``.
            UnsupportedError: as a call does; or the device's queue writes no timestamps.
            DeviceLostError: the device is gone.
        """
        if self.closed:
            raise InvalidUsageError("this Kernel was closed")
        runs = _runs(repeat)
        if elements is not None:
            arrays, groups = operands(groups, arrays), groups_over(elements, self.local_size)
        dims, constants, device = self._checked(groups, arrays, push, elements)
        capturing.refuse(device.logical.stream, "kernel.time()")
        ranges, constants = bound(self._interface, device, arrays, constants, self._measured)
        clock = query.DeviceClock(device.logical)
        pipeline = self._pipeline(device, pushes=False)
        return statistics.median(query.timed_runs(clock, pipeline, ranges, constants, dims, runs))

    def _checked(
        self, groups: Any, arrays: tuple[Array, ...], push: Push, elements: Any
    ) -> tuple[tuple[int, int, int], bytes, Device]:
        """Return the numbers of work-groups, the push constants and the device of a call, with all checks done."""
        dims, constants = groups_of(groups), self._constants(push)
        device = self._device_of(arrays)
        check_groups(device.limits, str(device), dims, self.local_size if elements is not None else None)
        if elements is not None and dims[1] * dims[2] > 1:
            check_counted(elements, dims, self._read)
        check(self._interface, arrays, constants)
        return dims, constants, device

    @functools.cached_property
    def _read(self) -> frozenset[int]:
        return read_of_places(self._spirv)

    @functools.cached_property
    def _measured(self) -> frozenset[int]:
        return measured(self._spirv)

    def _constants(self, push: Push) -> bytes:
        """Return the bytes of the push constants that a call gives."""
        if isinstance(push, Mapping):
            return self._packer(push)
        return as_bytes(push, "push constants are a dict of values by name, bytes or an array of plain numbers")

    @functools.cached_property
    def _packer(self) -> Packer:
        return Packer(self._interface.members, self._interface.given_nbytes)

    def _run_plan(self, groups: Any, arrays: tuple[Array, ...], push: bytes, *, counted: bool) -> bool:
        """Run it by the plan of an earlier call; False, and nothing done, where there is none."""
        dims = (groups, 1, 1) if type(groups) is int else groups_of(groups)
        try:
            forms = [array.form or form_of(array) for array in arrays]
        except AttributeError:  # not arrays: the long way says so
            return False
        found = self._plans.get((counted, dims, *forms))
        return found is not None and found[0].run(arrays, push + found[1] if found[1] else push)

    def _keep_plan(
        self,
        device: Device,
        pipeline: Pipeline,
        arrays: tuple[Array, ...],
        ranges: list[BufferRange],
        dims: tuple[int, int, int],
        block: bytes,
        *,
        counted: bool,
    ) -> None:
        """Have later calls on arrays of the same forms run by a plan, where none of these was copied aside."""
        taken = dict(self._interface.offsets)
        if not arrays or not all(number in taken or can_begin(array, 0) for number, array in enumerate(arrays)):
            return
        bindings = self._bindings(pipeline, arrays, ranges)
        plan = make_plan(device, f"Kernel {self._name}", pipeline, arrays, bindings, dims)
        if plan is not None and not self.closed:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[(counted, dims, *map(form_of, arrays))] = plan, block[self._interface.given_nbytes :]

    def _bindings(self, pipeline: Pipeline, arrays: tuple[Array, ...], ranges: Sequence[BufferRange]) -> list[Binding]:
        """Return what it does to arrays: who writes may read, unless that is declared ``writeonly``."""
        made = bindings_of(pipeline, arrays, ranges, UPDATES)
        return [
            each._replace(kind=REPLACES) if number in self._interface.writeonly else each
            for number, each in enumerate(made)
        ]

    def _device_of(self, arrays: tuple[Array, ...]) -> Device:
        """Return the device that a call runs on, checked to be open."""
        if arrays:
            check_same_device(*arrays)
            device = arrays[0].device
            if device not in self.devices:
                names = ", ".join(map(repr, self.devices))
                raise InvalidUsageError(f"the kernel is on {names}, the arrays are on {device!r}")
        elif len(self.devices) > 1:
            raise InvalidUsageError("a kernel on several devices runs where its arrays are, and this call has none")
        else:
            device = self.device
        device.check_open()
        return device

    def _pipeline(self, device: Device, *, pushes: bool) -> Pipeline:
        """Return the pipeline for a device, made where it is first needed; ``pushes`` is that of its layout."""
        made = self._pipelines.get((device, pushes))
        if made is None:
            count, nbytes = len(self._interface.bindings), self._interface.push_nbytes
            made = device.logical.pipelines.lease(
                self._key, self._spirv, self._entry, count, nbytes, pushes=pushes, required=self._subgroup
            )
            if not self.closed:
                self._pipelines[device, pushes] = made
        return made


def _devices(given: Device | Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices that a kernel is for, checked to be open."""
    found = (given,) if isinstance(given, Device) else tuple(given) if isinstance(given, Sequence) else ()
    if not found or not all(isinstance(device, Device) for device in found):
        raise InvalidUsageError(f"a kernel is for an opened vkpar.Device, or a list of them, not {given!r}")
    if len(set(found)) != len(found):
        raise InvalidUsageError("a kernel for a device that is named twice")
    for device in found:
        device.check_open()
    return found


def _runs(repeat: object) -> int:
    """Return how many runs are timed."""
    try:
        runs = 0 if isinstance(repeat, bool) else operator.index(repeat)  # type: ignore[arg-type]
    except TypeError:
        runs = 0
    if not 1 <= runs <= _MOST_RUNS:
        raise InvalidUsageError(f"repeat is a whole number from 1 to {_MOST_RUNS:,}, not {repeat!r}")
    return runs
