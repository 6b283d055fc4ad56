"""Compute pipelines, made on first use and kept by their device."""

from __future__ import annotations

import struct
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Protocol

from vkpar.vulkan import api
from vkpar.vulkan.gate import Gate
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines import declared, shader
from vkpar.vulkan.pipelines.checks import check_shared
from vkpar.vulkan.pipelines.constants import frozen
from vkpar.vulkan.pipelines.declared import COOPERATIVE_MATRIX, Declared

_FULL_SUBGROUPS: Final = 2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
_REQUIRED_SIZE: Final = "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo"
_WIDEST: Final = 128  # invocations of the widest subgroups that there are
PACKS_HALVES: Final = 2046  # the specialization constant of shaders/common/halfs.glsl


class KernelQueue(Protocol):
    """What the cache asks of a queue, which lies above it: see :class:`vkpar.vulkan.queue.Queue`."""

    timeline: Any

    @property
    def last(self) -> int:
        """The timeline value that the newest submission will signal."""

    def confirm(self) -> None:
        """Let the validation layer see that what is done is done."""


class PipelineLayout:
    """Set 0 with ``bindings`` storage buffers and then ``texels`` texel buffers; ``push_nbytes`` of push constants.

    With ``pushes`` the buffers are named by vkCmdPushDescriptorSetKHR, else by a descriptor set.
    """

    def __init__(self, device: Any, bindings: int, push_nbytes: int, texels: int = 0, *, pushes: bool = False) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.push_nbytes, self.pushes = push_nbytes, pushes
        stage = vk.vk.VK_SHADER_STAGE_COMPUTE_BIT
        kinds = [vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER] * bindings
        kinds += [vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER] * texels
        entries = [
            vk.struct(
                "VkDescriptorSetLayoutBinding", binding=index, descriptorType=kind, descriptorCount=1, stageFlags=stage
            )
            for index, kind in enumerate(kinds)
        ]
        flags = vk.vk.VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR if pushes else 0
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", flags=flags, bindingCount=len(entries), pBindings=entries)
        push = [vk.struct("VkPushConstantRange", stageFlags=stage, offset=0, size=push_nbytes)] if push_nbytes else []
        with ExitStack() as undo:
            self.set_layout = vk.create("DescriptorSetLayout", device, info)
            undo.callback(vk.destroy, "DescriptorSetLayout", device, self.set_layout)
            info = vk.struct(
                "VkPipelineLayoutCreateInfo",
                setLayoutCount=1,
                pSetLayouts=[self.set_layout],
                pushConstantRangeCount=len(push),
                pPushConstantRanges=push,
            )
            self.handle = vk.create("PipelineLayout", device, info)
            undo.pop_all()

    def close(self) -> None:
        """Destroy the layouts."""
        self._vk.destroy("PipelineLayout", self._device, self.handle)
        self._vk.destroy("DescriptorSetLayout", self._device, self.set_layout)


class Pipeline:
    """A compute pipeline.

    Attributes:
        layout: its :class:`PipelineLayout`.
        read_only: the bindings that it cannot write.
        name: of a built-in kernel; empty for others. ``constants``: its specialization constants.
    """

    def __init__(
        self,
        device: Any,
        spirv: bytes,
        declared: Declared,
        entry: str,
        layout: PipelineLayout,
        constants: Sequence[int] = (),
        name: str = "",
        *,
        subgroup: int = 0,
        packs_halves: bool = False,
        required: int = 0,
    ) -> None:
        vk = self._vk = api.load()
        self._device = device
        self.layout = layout
        self.read_only = declared.readonly
        self.name, self.constants = name, tuple(constants)
        code = vk.ffi.new("uint32_t[]", len(spirv) // 4)
        vk.ffi.memmove(code, spirv, len(spirv))
        info = vk.struct("VkShaderModuleCreateInfo", codeSize=len(spirv), pCode=code)
        module = vk.create("ShaderModule", device, info)
        try:
            by_id = _by_id(constants, packs_halves)
            full = bool(required) or needs_full(declared, by_id, subgroup)
            self.handle = self._create(module, entry, by_id, full, required)
        finally:
            vk.destroy("ShaderModule", device, module)

    def _create(self, module: Any, entry: str, constants: Mapping[int, int], full: bool, required: int) -> Any:
        """Return a new VkPipeline, with ``full`` subgroups, of ``required`` invocations where that is not 0."""
        vk = self._vk
        sized = vk.struct(_REQUIRED_SIZE, requiredSubgroupSize=required) if required else vk.ffi.NULL
        entries = [
            vk.struct("VkSpecializationMapEntry", constantID=number, offset=4 * index, size=4)
            for index, number in enumerate(constants)
        ]
        data = struct.pack(f"<{len(constants)}i", *constants.values())
        specialization = vk.struct(
            "VkSpecializationInfo", mapEntryCount=len(entries), pMapEntries=entries, dataSize=len(data), pData=data
        )
        stage = vk.struct(
            "VkPipelineShaderStageCreateInfo",
            pNext=sized,
            flags=_FULL_SUBGROUPS if full else 0,
            stage=vk.vk.VK_SHADER_STAGE_COMPUTE_BIT,
            module=module,
            pName=entry,
            pSpecializationInfo=specialization,
        )
        info = vk.struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self.layout.handle)
        null, made = vk.ffi.NULL, vk.making("Pipeline", self._device)
        return vk.make(made, "vkCreateComputePipelines", self._device, null, 1, info, null)

    def close(self) -> None:
        """Destroy the pipeline; no pending submission may use it."""
        self._vk.destroy("Pipeline", self._device, self.handle)


def _by_id(constants: Sequence[int], packs_halves: bool) -> dict[int, int]:
    """Return the values of specialization constants by number."""
    return dict(enumerate(constants)) | ({PACKS_HALVES: 1} if packs_halves else {})


def needs_full(declared: Declared, constants: Mapping[int, int], subgroup: int) -> bool:
    """Say whether a pipeline is to have full subgroups: a module with matrices of subgroups, in whole ones.

    Args:
        declared: by the module.
        constants: its specialization constants by number.
        subgroup: invocations of a subgroup where the device can be told to fill these, else 0.
    """
    if not subgroup or COOPERATIVE_MATRIX not in declared.capabilities:
        return False
    width = declared.width if declared.width_id is None else constants.get(declared.width_id, declared.width)
    # VUID-VkPipelineShaderStageCreateInfo-flags-02759: SPIR-V 1.6 lets sizes vary, so that all of them have to fit.
    return width % (subgroup if declared.version < (1, 6) else _WIDEST) == 0


def required_size(declared: Declared, constants: Mapping[int, int], subgroup: int) -> int:
    """Return the invocations that the subgroups of a built-in kernel have to be asked for; 0 where they need not be.

    Args:
        declared: by the module.
        constants: its specialization constants by number.
        subgroup: see :func:`needs_full`.
    """
    wanted = 0 if declared.subgroup_id is None else constants.get(declared.subgroup_id, 0)
    return wanted if subgroup and wanted != subgroup else 0


class Traits(NamedTuple):
    """What of a device counts for its pipelines.

    Attributes:
        subgroup: invocations of a subgroup where the device can be told to fill these, else 0.
        packs_halves: see :attr:`vkpar.vulkan.machine.physical.DeviceInfo.packs_halves`.
        label: what messages call it.
        shared_nbytes: of a work-group, at most.
        freezes: see :attr:`vkpar.vulkan.machine.physical.DeviceInfo.leaves_branches`.
    """

    subgroup: int = 0
    packs_halves: bool = False
    label: str = "the device"
    shared_nbytes: int = 1 << 32
    freezes: bool = False

    @classmethod
    def of(cls, info: DeviceInfo, label: str) -> Traits:
        """Return those of a device."""
        subgroup = info.features.subgroup_size if info.features.subgroup_control else 0
        return cls(subgroup, info.packs_halves, label, info.limits.max_shared_memory, info.leaves_branches)


class PipelineCache:
    """The pipelines of one device, by kernel, entry, constants and layout.

    Those of the built-in kernels stay; those that are leased go when nobody holds them any more and what was submitted
    until then is done. Work that is recorded to be submitted later must hold its pipelines.

    Args:
        device: the VkDevice.
        gate: the device's: nothing is made, and nothing destroyed but by :meth:`close`, once it is shut.
        queue: where leased pipelines run; None where there are none.
        traits: of the device.
    """

    def __init__(self, device: Any, gate: Gate, queue: KernelQueue | None = None, traits: Traits | None = None) -> None:
        self._device, self._gate, self._traits = device, gate, traits or Traits()
        self._queue = queue
        self._leased: weakref.WeakValueDictionary[tuple[Any, ...], Pipeline] = weakref.WeakValueDictionary()
        self._closed = False
        self._alive: dict[int, Any] = {}  # the handles of all leased pipelines that were not destroyed, by address
        self._dropped: deque[tuple[int, int]] = deque()  # the last submission that may use it, and the address
        self._layouts: dict[tuple[int, int, int, bool], PipelineLayout] = {}
        self._pipelines: dict[tuple[Any, ...], Pipeline] = {}
        self._making: dict[tuple[Any, ...], Any] = {}  # a lock for each pipeline that a thread makes
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._pipelines) + len(self._alive)

    def shipped(
        self,
        name: str,
        bindings: int,
        push_nbytes: int,
        constants: tuple[int, ...] = (),
        texels: int = 0,
        *,
        pushes: bool = False,
    ) -> Pipeline:
        """Return the pipeline of the built-in kernel ``name``, made at the first call; threads make several at once.

        Raises:
            InvalidUsageError: it is not there yet, and the device is closed.
            UnsupportedError: it takes more shared memory than the device has.
        """
        key = (name, bindings, push_nbytes, constants, texels, pushes)
        pipeline = self._pipelines.get(key)
        if pipeline is not None:
            return pipeline
        with self._gate.lock():  # a close in another thread waits
            self._gate.check()
            with self._lock:
                making = self._making.setdefault(key, threading.RLock())
            return self._shipped(key, making)

    def _shipped(self, key: tuple[Any, ...], making: Any) -> Pipeline:
        name, bindings, push_nbytes, constants, texels, pushes = key
        with making:
            pipeline = self._pipelines.get(key)
            if pipeline is None:
                declares, traits, by_id = declared.shipped(name), self._traits, dict(enumerate(constants))
                check_shared(traits.label, name, declares.shared, by_id, traits.shared_nbytes)
                layout, spirv = self.layout(bindings, push_nbytes, texels, pushes=pushes), shader.shipped(name)
                required = required_size(declares, by_id, traits.subgroup)
                pipeline = self._made(spirv, declares, "main", layout, constants, name, required=required)
                self._pipelines[key] = pipeline
            self._making.pop(key, None)
            return pipeline

    def lease(
        self,
        key: Any,
        spirv: bytes,
        entry: str,
        bindings: int,
        push_nbytes: int,
        constants: tuple[int, ...] = (),
        *,
        pushes: bool = False,
        own: bool = False,
        required: int = 0,
    ) -> Pipeline:
        """Return the pipeline known by ``key`` and the rest; it lives as long as somebody holds what is returned.

        Where ``required`` is not 0, its subgroups are full and of so many invocations.

        The module is vkpar's ``own`` where it has the constants that are the same for all of a device's kernels: in a
        user's, their numbers are the user's.

        Raises:
            InvalidUsageError: the device is closed.
        """
        full = (key, entry, bindings, push_nbytes, constants, pushes, own, required)
        with self._gate.lock():
            self._gate.check()
            self.reap()
            with self._lock:
                pipeline = self._leased.get(full)
                if pipeline is None:
                    layout = self.layout(bindings, push_nbytes, pushes=pushes)
                    declares = declared.of_module(spirv, entry)
                    pipeline = self._made(spirv, declares, entry, layout, constants, own=own, required=required)
                    address = api.load().address(pipeline.handle)
                    self._alive[address] = pipeline.handle
                    weakref.finalize(pipeline, self._drop, address).atexit = False
                    self._leased[full] = pipeline
                return pipeline

    def _made(
        self,
        spirv: bytes,
        declares: Declared,
        entry: str,
        layout: PipelineLayout,
        constants: Sequence[int],
        name: str = "",
        *,
        own: bool = True,
        required: int = 0,
    ) -> Pipeline:
        traits = self._traits
        given: dict[str, Any] = {"packs_halves": traits.packs_halves and own, "required": required}
        if traits.freezes:
            spirv = frozen(spirv, _by_id(constants, given["packs_halves"]))
        return Pipeline(
            self._device, spirv, declares, entry, layout, constants, name, subgroup=traits.subgroup, **given
        )

    def _drop(self, address: int) -> None:
        """Note that nobody holds a pipeline any more; safe in a finalizer."""
        if not self._closed:  # the queue may be gone, too
            self._dropped.append((self._queue.last if self._queue else 0, address))

    def reap(self) -> None:
        """Destroy the dropped pipelines whose work is done; the caller is inside the gate."""
        if not self._dropped:
            return
        reached = self._queue.timeline.value() if self._queue else 0
        # No lock: an interrupt would leave it taken. A pipeline that an interrupt loses here goes with the device.
        while self._dropped:
            try:
                last, address = self._dropped.popleft()
            except IndexError:  # another thread was faster
                return
            if last > reached:
                self._dropped.appendleft((last, address))
                return
            if self._queue:
                self._queue.confirm()
            self._destroy(address)

    def _destroy(self, address: int) -> None:
        handle = self._alive.pop(address, None)
        if handle is not None:
            api.load().destroy("Pipeline", self._device, handle)

    def layout(self, bindings: int, push_nbytes: int, texels: int = 0, *, pushes: bool = False) -> PipelineLayout:
        """Return the layout of so many storage buffers, then texel buffers, and bytes of push constants.

        Raises:
            InvalidUsageError: the device is closed.
        """
        key = (bindings, push_nbytes, texels, pushes)
        with self._gate.lock(), self._lock:
            self._gate.check()
            if key not in self._layouts:
                self._layouts[key] = PipelineLayout(self._device, bindings, push_nbytes, texels, pushes=pushes)
            return self._layouts[key]

    def close(self) -> None:
        """Destroy everything; nothing may be pending."""
        self._closed = True
        with self._lock:
            while self._pipelines:
                self._pipelines.popitem()[1].close()
            for address in list(self._alive):
                self._destroy(address)
            self._dropped.clear()
            while self._layouts:
                self._layouts.popitem()[1].close()
