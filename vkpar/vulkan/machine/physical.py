"""What is known of a physical device: its driver, features, limits, memory and queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TEXEL = 16  # bytes of those that kernels read
_PACKING_DRIVERS = (4,)  # VK_DRIVER_ID_NVIDIA_PROPRIETARY
_LEAVING_DRIVERS = (10,)  # VK_DRIVER_ID_GOOGLE_SWIFTSHADER
ALIGNMENT = 256  # the largest minStorageBufferOffsetAlignment that Vulkan allows


@dataclass(frozen=True)
class Heap:
    """A memory heap; ``budget`` and ``used`` are bytes for this process (None without VK_EXT_memory_budget)."""

    index: int
    nbytes: int
    device_local: bool
    budget: int | None
    used: int | None


@dataclass(frozen=True)
class QueueFamily:
    """A queue family and what its queues can do."""

    index: int
    count: int
    compute: bool
    transfer: bool
    graphics: bool
    timestamp_bits: int


@dataclass(frozen=True)
class Features:
    """Optional abilities that kernels and links depend on.

    ``float_atomics`` has Vulkan's names of the features, of buffers and of shared memory, that allow atomics on floats;
    ``matrix_features`` those of the features of cooperative matrices and of bfloat16 that vkpar turns on. The shapes
    that subgroups multiply are in ``cooperative_matrix``; what the sizes of flexible ones are multiples of, in
    ``cooperative_matrix2``. ``integer_dot_fast`` says that dot products of four bytes, signed, unsigned or of both
    kinds, are instructions of the device's. ``subgroup_size`` is what the driver says; where it runs others,
    ``subgroup_sizes`` has the least and the most that a kernel may ask for, and is empty where none may.
    ``VKPAR_WITHOUT`` leaves features out.
    """

    storage_16bit: bool
    storage_8bit: bool
    float16: bool
    int8: bool
    int16: bool
    int64: bool
    float64: bool
    timeline_semaphore: bool
    host_import: bool
    timeline_export: bool
    foreign_queue_family: bool
    memory_model: bool
    subgroup_control: bool
    integer_dot: bool
    integer_dot_fast: bool
    cooperative_matrix: tuple[str, ...]
    cooperative_matrix2: tuple[str, ...]
    matrix_features: tuple[str, ...]
    subgroup_size: int
    subgroup_sizes: tuple[int, ...]
    subgroup_operations: tuple[str, ...]
    float_atomics: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """The driver's limits, in bytes where not said otherwise; ``max_storage_buffers`` counts those of one kernel.

    ``max_workgroup_subgroups`` holds for kernels that ask for a size of subgroups; 0 where none may.
    ``compute_units`` counts what vendors call streaming multiprocessors, compute units or shader cores; it is 0 where
    the driver does not say.
    ``VKPAR_MAX_BINDING`` and ``VKPAR_MAX_BUFFER`` lower the first and the third.
    """

    max_storage_buffer_range: int
    max_allocation: int
    max_buffer: int
    min_storage_buffer_offset_alignment: int
    max_workgroup_count: tuple[int, int, int]
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_invocations: int
    max_shared_memory: int
    max_push_constants: int
    host_import_alignment: int
    timestamp_period_ns: float
    max_storage_buffers: int
    max_texel_buffer_elements: int
    compute_units: int = 0
    max_workgroup_subgroups: int = 0


@dataclass(frozen=True)
class DeviceInfo:
    """A physical device; nothing is opened.

    Attributes:
        index: its place in :func:`vkpar.vulkan.machine.drivers.enumerate_devices`.
        type: ``discrete``, ``integrated``, ``virtual``, ``cpu`` or ``other``.
        pci_address: ``dddd:bb:dd.f``, None where the driver does not give one.

    Examples:
        >>> info = vkpar.enumerate_devices()[0]
        >>> info.index, info.type in ("discrete", "integrated", "virtual", "cpu", "other")
        (0, True)
    """

    index: int
    name: str
    vendor: str
    vendor_id: int
    device_id: int
    type: str
    driver_name: str
    driver_id: int
    driver_info: str
    driver_version: int
    api_version: tuple[int, int, int]
    driver_uuid: str
    device_uuid: str
    pci_address: str | None
    heaps: tuple[Heap, ...]
    queue_families: tuple[QueueFamily, ...]
    features: Features
    limits: Limits
    extensions: frozenset[str] = field(repr=False)
    memory_types: tuple[tuple[int, int], ...] = field(repr=False)
    handle: Any = field(repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the driver's handle, which means something in this process alone."""
        return {**self.__dict__, "handle": None}

    def __copy__(self) -> DeviceInfo:
        return self

    def __deepcopy__(self, memo: object) -> DeviceInfo:
        return self

    @property
    def is_cpu(self) -> bool:
        """True for a driver that runs on the host's processor."""
        return self.type == "cpu"

    @property
    def is_null_hardware(self) -> bool:
        """True for a device that compiles kernels and executes nothing: the card of ``RADV_FORCE_FAMILY``.

        It has no memory, of which every device that executes anything has some.
        """
        return not self.heaps

    @property
    def packs_halves(self) -> bool:
        """True for a driver whose packHalf2x16 was seen to round to nearest even, all the way to subnormal halves.

        Vulkan lets drivers choose, and AMD's cut off; a test compares every rounding with NumPy's.
        """
        return self.driver_id in _PACKING_DRIVERS

    @property
    def leaves_branches(self) -> bool:
        """True for a driver whose kernels keep all that constants computed from specialization constants rule out.

        SwiftShader's take up to twenty times as long then, to compile as well; its modules get plain constants.
        """
        return self.driver_id in _LEAVING_DRIVERS

    @property
    def reads_texels(self) -> bool:
        """True for a CPU driver whose texel buffers reach all that can be bound: its kernels read fast through them.

        That is lavapipe, which reads one texel of every lane in one go, and storage buffers word by word.
        """
        reach = self.limits.max_texel_buffer_elements * TEXEL
        return self.is_cpu and reach >= self.limits.max_storage_buffer_range

    @property
    def tests_lanes(self) -> bool:
        """True for a CPU driver that tests each lane of a vector at each access of a buffer, of 64 bits at most.

        That is lavapipe; SwiftShader, which has no integers of 64 bits, reads and writes as slowly in any form.
        """
        return self.is_cpu and self.features.int64

    @property
    def memory_bytes(self) -> int:
        """Bytes of the largest device-local heap."""
        return max((heap.nbytes for heap in self.heaps if heap.device_local), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return everything a person may want, ready for JSON."""
        from dataclasses import asdict, replace

        plain = asdict(replace(self, handle=None))
        del plain["handle"]
        plain["extensions"] = sorted(self.extensions)
        return plain
