"""What a device has, against what each of vkpar's paths needs; its memory, timelines, and import of host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import vkpar
from vkpar import DeviceInfo, env, text
from vkpar.arrays.host import HostArray
from vkpar.comm.rig.transports import mapped
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.doctor.place import Place
from vkpar.errors import UnsupportedError, WaitTimeoutError
from vkpar.ops.attention import kernels
from vkpar.ops.tiles import cores, matvec
from vkpar.timeouts import DOCTOR_QUEUE_SECONDS
from vkpar.vulkan.machine import create
from vkpar.vulkan.machine.selector import select, without_duplicates
from vkpar.vulkan.semaphore import TimelineSemaphore

_WORDS: Final = (1 << 20) + 3  # of test arrays: 4 MiB and a few bytes
_KHR: Final = "VK_KHR_cooperative_matrix"
_TILES: Final = "tiles in registers"
_REPORT: Final = "report it to the driver's makers; update the driver"


@dataclass(frozen=True)
class Path:
    """One of vkpar's ways to do a thing, which needs something of a device.

    Attributes:
        name: of the way, in words.
        lacks: what a device lacks for it, in Vulkan's names; nothing where it takes the way.
        instead: what is done where it lacks that.
    """

    name: str
    lacks: Callable[[DeviceInfo], str]
    instead: str


def _feature(name: str, vulkan: str) -> Callable[[DeviceInfo], str]:
    return lambda info: "" if getattr(info.features, name) else vulkan


def _halves(info: DeviceInfo) -> str:
    wanted = {"storageBuffer16BitAccess": info.features.storage_16bit, "shaderFloat16": info.features.float16}
    return ", ".join(name for name, there in wanted.items() if not there)


def _cores_of(dtype: str, extension: str) -> Callable[[DeviceInfo], str]:
    def lacks(info: DeviceInfo) -> str:
        if any(core.kernel == cores.KHR for core in cores.available(info, dtype)):
            return ""
        if extension not in info.extensions:
            return extension
        if not info.features.subgroup_control:
            return "computeFullSubgroups"
        return f"matrices of 16 x 16 x 16 {dtype} with float32 sums, or what their kernel needs besides"

    return lacks


def _attention_cores(info: DeviceInfo) -> str:
    if kernels.on_cores(info, "float16"):
        return ""
    return "VK_KHR_cooperative_matrix of 16 x 16 x 16 or 8 x 16 x 16 float16, with whole subgroups"


def _dots(info: DeviceInfo) -> str:
    if not info.features.integer_dot:
        return "VK_KHR_shader_integer_dot_product"
    return "" if info.features.integer_dot_fast else "dot products of four bytes as instructions"


def _warps(info: DeviceInfo) -> str:
    return "" if matvec.adds_up(info) else "subgroups that are known to be 32 neighbours"


def _copy_queue(info: DeviceInfo) -> str:
    compute, copy = create.choose_families(info)
    return "" if compute != copy else "a queue family that only transfers"


PATHS: Final = (
    Path("float16 in storage and arithmetic", _halves, "halves are packed in words of 32 bits"),
    Path("products on matrix cores", _cores_of("float16", _KHR), _TILES),
    Path("products of bfloat16 on matrix cores", _cores_of("bfloat16", "VK_KHR_shader_bfloat16"), _TILES),
    Path("attention on matrix cores", _attention_cores, "attention by tiles or rows"),
    Path("quantised products by integer dots", _dots, "weights are made floats"),
    Path("kernels of whole subgroups", _warps, "sums through shared memory"),
    Path("import of host memory (transport staged)", _feature("host_import", "VK_EXT_external_memory_host"), "mapped"),
    Path("shared timelines (native links)", _feature("timeline_export", "timelines as OPAQUE_FD"), "bridged links"),
    Path("a queue of its own for copies", _copy_queue, "copies on the compute queue"),
    Path("float64 in collectives", _feature("float64", "shaderFloat64"), "refused"),
    Path("integers of 64 bits in kernels", _feature("int64", "shaderInt64"), "pairs of words"),
)


def listed(_: Place, selector: str | None) -> Iterator[Finding]:
    """List the devices, and choose those to look at.

    Args:
        selector: of them; None for all, each card once.
    """
    every = vkpar.enumerate_devices()
    wanted = select(selector, every) if selector is not None else without_duplicates(every)
    found = ", ".join(f"{info.index} {info.name}" for info in every)
    left = [info.name for info in every if info not in wanted]
    beside = f"; not looked at: {', '.join(left)}" if left else ""
    chosen = {info.index: f"{info.index} {info.name}" for info in wanted}
    yield Finding.of(OK, found + beside, chosen=chosen, cpu=all(info.is_cpu for info in wanted))


def features(place: Place, index: int) -> Iterator[Finding]:
    """Check that a device has what vkpar needs; tell which of its paths the device takes, and why not others."""
    info = place.info(index)
    described = describe(info)
    try:
        create.require(info)
    except UnsupportedError as error:
        yield Finding.of(
            FAILED, str(error), "update its driver; vkpar leaves the device out until then", device=described
        )
        return
    rows = [(path.name, path.lacks(info), path.instead) for path in PATHS]
    taken = [name for name, lacks, _ in rows if not lacks]
    paths = [{"path": name, "lacks": lacks, "instead": instead if lacks else ""} for name, lacks, instead in rows]
    version, size = ".".join(map(str, info.api_version)), text.units(info.memory_bytes)
    found = f"Vulkan {version}, {size}; takes {len(taken)} of {len(rows)} ways"
    yield Finding.of(OK, found, device=described, paths=paths)


def describe(info: DeviceInfo) -> dict[str, Any]:
    """Return what a report says of a device: nothing that names this one card among others of its model."""
    return {
        "index": info.index,
        "name": info.name,
        "vendor": info.vendor,
        "type": info.type,
        "driver": f"{info.driver_name} {info.driver_info}".strip(),
        "vulkan": ".".join(map(str, info.api_version)),
        "memory_bytes": info.memory_bytes,
        "ids": f"{info.vendor_id:04x}:{info.device_id:04x}",
        "pci_address": info.pci_address,
        "subgroup_size": info.features.subgroup_size,
        "extensions": sorted(info.extensions),
    }


def memory(place: Place, index: int) -> Iterator[Finding]:
    """Check that arrays hold what is written to them, and give it back, whole and in part."""
    device, words = place.device(index), _words(place)
    with device.array(words) as array, device.empty(words.shape, "uint32") as other:
        other.copy_from(array)
        wrong = int(np.count_nonzero(other.numpy() != words))
        wrong += int(np.count_nonzero(other[7 : _WORDS // 2].numpy() != words[7 : _WORDS // 2]))
    yield _exact(wrong, f"{text.units(words.nbytes)} written, copied and read")


def timeline(place: Place, index: int) -> Iterator[Finding]:
    """Check that the host's signals of a timeline are seen, and that a queue's reach the host in order."""
    device = place.device(index)
    semaphore = TimelineSemaphore(device.logical.handle, host_only=True)
    try:
        seen = []
        for value in (1, 2, 1 << 40):
            semaphore.signal(value)
            seen.append(semaphore.value())
    finally:
        semaphore.close()
    if seen != [1, 2, 1 << 40]:
        yield Finding.of(FAILED, f"a timeline that the host set to 1, 2 and 2^40 was {seen}", _REPORT)
        return
    queue = device.logical.compute
    with device.zeros(64) as array:
        for turn in range(8):
            before = queue.reached
            array.fill(float(turn))
            try:
                device.synchronize(timeout=DOCTOR_QUEUE_SECONDS)
            except WaitTimeoutError:
                yield Finding.of(
                    FAILED, f"the queue did not reach its value within {DOCTOR_QUEUE_SECONDS:g} s", _REPORT
                )
                return
            if queue.reached <= before or queue.reached != queue.last:
                yield Finding.of(FAILED, f"the queue's timeline is {queue.reached}, not {queue.last}", _REPORT)
                return
    yield Finding.of(OK, "set by the host and by the queue")


def host_memory(place: Place, index: int) -> Iterator[Finding]:
    """Check that the device reads and writes memory of the host that it imports."""
    device, words = place.device(index), _words(place)
    if not device.info.features.host_import:
        if "host_import" in env.without():
            found = "VKPAR_WITHOUT=host_import leaves it out: every sum is copied by the host (transport mapped)"
            yield Finding.of(FAILED, found, "take host_import out of VKPAR_WITHOUT")
        else:
            found = f"the driver has no VK_EXT_external_memory_host: {mapped.COST} (transport mapped)"
            yield Finding.of(SKIPPED, found, "a newer driver may have it; NVK, turnip and v3dv have none yet")
        return
    with vkpar.host_array(_WORDS, "uint32", device) as shared, device.array(words) as array:
        wrong = _through(shared, array, words)
    yield _exact(wrong, f"{text.units(words.nbytes)} both ways, aligned to {device.limits.host_import_alignment} bytes")


def _through(shared: HostArray, array: vkpar.Array, words: np.ndarray[Any, Any]) -> int:
    array.read(out=shared)
    wrong = int(np.count_nonzero(shared.numpy() != words))
    shared.numpy()[...] = ~words
    array.write(shared)
    return wrong + int(np.count_nonzero(array.numpy() != ~words))


def _words(place: Place) -> np.ndarray[Any, Any]:
    return place.generator("words").integers(0, 1 << 32, _WORDS, np.uint32)


def _exact(wrong: int, found: str) -> Finding:
    if not wrong:
        return Finding.of(OK, found)
    return Finding.of(FAILED, f"{wrong} words are wrong: {found}", _REPORT)
