"""Which kernels of matrix cores a device has for products of halves, and which of them makes a product soonest.

What a kernel takes is estimated from two runs of it, measured once per device and driver and kept in
``VKPAR_CACHE_DIR``: with one tile for each compute unit, and with four. The tiled kernel without matrix cores is
measured beside them and taken where it is the faster one.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError
from vkpar.ops import occupancy
from vkpar.ops._launch import FLOATS, SHORT, words
from vkpar.vulkan import capturing, query
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.capabilities import missing
from vkpar.vulkan.pipelines.interface import reflect

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.physical import DeviceInfo
    from vkpar.vulkan.pipelines.kernel import Pipeline

_log = logging.getLogger("vkpar")

KHR: Final = "matmul_coop"
TILED: Final = "matmul_tiled"

_FRAGMENT: Final = (16, 16, 16)  # of one matrix of subgroups
_FORMAT: Final = 1
_STEPS: Final = 1024  # of K, of the measured products
_RUNS: Final = 5
_ROUNDS: Final = 3  # over all kernels, of which the fastest counts: an idle device starts at a low clock
_LEAST_ROWS: Final = 9  # below it a product is bound by reading one matrix
_LEAST_PART: Final = 256  # steps of K that are worth a part
_PARTS: Final = (2, 3, 4, 6, 8, 12, 16)
_DISPATCH_NS: Final = 3000.0  # before a dispatch's work-groups run
_GAIN: Final = 0.9  # parts are taken only where they are so much faster


@dataclass(frozen=True)
class Core:
    """A kernel and the tile that a work-group of it makes.

    Attributes:
        kernel: :data:`KHR` or :data:`TILED`.
        threads: invocations of a work-group.
        tile: rows and columns.
        step: of K, at a time.
        buffers: how many steps shared memory holds.
    """

    kernel: str
    threads: int
    tile: tuple[int, int]
    step: int = 16
    buffers: int = 1

    @property
    def label(self) -> str:
        """What measurements are kept by."""
        return f"{self.kernel} {self.threads} {self.tile[0]}x{self.tile[1]}x{self.step} {self.buffers}"

    def variant(self, dtype: str) -> str:
        """Return how its module's name ends."""
        return "" if self.kernel == TILED else f"_{SHORT[dtype]}_t{self.threads}"

    @property
    def shape(self) -> tuple[int, int]:
        """The tile as the kernel's constants have it."""
        return (self.tile[0] // 64, self.tile[1] // 64) if self.kernel == TILED else self.tile

    def constants(self, info: DeviceInfo) -> tuple[int, ...]:
        """Return the constants that follow those of every kernel of products."""
        if self.kernel == TILED:
            return ()
        warp = info.features.subgroup_size
        return (self.step, *self.warp_tile(warp), warp, self.buffers, *_FRAGMENT)

    def warp_tile(self, warp: int) -> tuple[int, int]:
        """Return what a subgroup of ``warp`` invocations makes of the tile: halves of it, of the longer side first."""
        high, broad = self.tile
        for _ in range((self.threads // warp).bit_length() - 1):
            high, broad = (high // 2, broad) if high > broad else (high, broad // 2)
        return high, broad

    @property
    def shared_nbytes(self) -> int:
        """Bytes of shared memory that it takes at least, whichever operand is transposed."""
        if self.kernel != KHR:
            return 0
        high, broad = self.tile
        along = [max(side * (self.step + 8), self.step * (side + 8)) for side in (high, broad)]
        return 2 * self.buffers * sum(along)


CORES: Final = (
    Core(KHR, 256, (128, 256), 32),
    Core(KHR, 256, (128, 128), 32, 2),
    Core(KHR, 128, (128, 64), 32, 2),
    Core(KHR, 128, (64, 64), 32, 2),
    Core(KHR, 128, (16, 64), 64),
)
_PLAIN: Final = Core(TILED, 256, (128, 128))


class Rate(NamedTuple):
    """Nanoseconds of products over _STEPS steps of K: with one tile for each unit, and with four."""

    one: float
    four: float

    def time(self, groups: int, units: int, k: int) -> float:
        """Return the nanoseconds of so many tiles over ``k`` steps: from four for each unit on in proportion."""
        each = max(groups / units, 1.0)
        run = self.one + (each - 1) * (self.four - self.one) / 3 if each < 4 else self.four * each / 4
        return run * k / _STEPS + _DISPATCH_NS


class Choice(NamedTuple):
    """A kernel, and how many parts of K it makes of how many steps each."""

    core: Core
    parts: int
    k_part: int


@cache
def _module_needs(name: str) -> frozenset[int]:
    return reflect(shader.shipped(name)).capabilities


def available(info: DeviceInfo, dtype: str) -> tuple[Core, ...]:
    """Return the kernels of matrix cores that a device runs on a type of halves.

    Args:
        info: the device.
        dtype: of both operands.
    """
    return tuple(core for core in CORES if _runs(info, core, dtype))


def _runs(info: DeviceInfo, core: Core, dtype: str) -> bool:
    warp, limits = info.features.subgroup_size, info.limits
    if limits.max_workgroup_invocations < core.threads or limits.max_shared_memory < core.shared_nbytes:
        return False
    if not offers(info, core.kernel + core.variant(dtype), dtype) or core.threads % warp:
        return False
    high, broad = core.warp_tile(warp)
    return not (high % _FRAGMENT[0] or broad % _FRAGMENT[1])


def offers(info: DeviceInfo, module: str, dtype: str) -> bool:
    """Tell whether a device has matrix cores of a type of halves, whole subgroups, and what a shipped module needs."""
    features, kind = info.features, SHORT[dtype]
    shape = "x".join(map(str, _FRAGMENT)) + f" {kind}*{kind}->f32"
    if shape not in features.cooperative_matrix or not features.subgroup_control:
        return False
    return not missing(_module_needs(module), features)


def choose(device: Device, dtype: str, m: int, n: int, k: int, batch: int, most_parts: int) -> Choice | None:
    """Return which kernel of matrix cores makes a product; None where there is none, or none is faster than the others.

    Args:
        device: where.
        dtype: of both operands.
        m: rows.
        n: columns.
        k: steps.
        batch: how many products.
        most_parts: the most parts of K, 1 for no split.
    """
    if dtype == "float32" or m < _LEAST_ROWS or not (cores := available(device.info, dtype)):
        return None
    return soonest(rates(device, dtype, cores), occupancy.units_of(device.info), m, n, k, batch, most_parts)


def soonest(
    measured: Mapping[Core, Rate], units: int, m: int, n: int, k: int, batch: int, most_parts: int
) -> Choice | None:
    """Return the kernel, and the parts of K, that the measured rates say are the fastest; None for the tiled one."""

    def cost(choice: Choice) -> float:
        core, parts, k_part = choice
        groups = batch * parts * -(-m // core.tile[0]) * -(-n // core.tile[1])
        return measured[core].time(groups, units, k_part) + occupancy.finish_ns(parts, batch * m * n, units)

    whole = min((Choice(core, 1, k) for core in measured), key=cost)
    split = min(
        (Choice(core, *part) for core in measured for part in _splits(k, core, most_parts)), key=cost, default=whole
    )
    best = split if cost(split) < _GAIN * cost(whole) else whole
    return None if best.core.kernel == TILED else best


def _splits(k: int, core: Core, most: int) -> Iterator[tuple[int, int]]:
    """Yield the ways to split K: numbers of parts above 1, and steps of each, whole steps of the kernel."""
    for parts in _PARTS:
        k_part = -(-k // (parts * core.step)) * core.step
        if parts <= most and _LEAST_PART <= k_part < k and core.kernel != TILED:
            yield -(-k // k_part), k_part


_rates: dict[tuple[object, ...], dict[Core, Rate]] = {}
_lock = threading.Lock()


def rates(device: Device, dtype: str, cores: tuple[Core, ...]) -> dict[Core, Rate]:
    """Return what was measured of the kernels, and of the tiled one: in this process, an earlier one, or now.

    With VKPAR_TUNING=off, where there is no memory or no timestamps to measure by, and inside a capture, which waits
    for nothing, fixed rates stand for them.
    """
    info = device.info
    key = (info.device_uuid, info.driver_uuid, info.driver_version, dtype, cores)
    with _lock:
        found = _rates.get(key)
        if found is None and capturing.current() is not None:
            return _assumed((*cores, _PLAIN))
        if found is None:
            found = _rates[key] = _found(device, dtype, (*cores, _PLAIN))
        return found


def _found(device: Device, dtype: str, cores: tuple[Core, ...]) -> dict[Core, Rate]:
    tuning = env.get().tuning
    if tuning == "off":
        return _assumed(cores)
    info = device.info
    name = f"products-{info.device_uuid}-{dtype}.json"
    about = {"format": _FORMAT, "vkpar": __version__, "driver": [info.driver_uuid, info.driver_version]}
    kept = None if tuning == "redo" else _load(name, about, cores)
    if kept is not None:
        return kept
    try:
        made = _measured(device, cores, dtype)
    except (OutOfMemoryError, UnsupportedError) as error:
        _log.info("the kernels of matrix cores of %s are not measured: %s", device, error)
        return _assumed(cores)
    except DeviceLostError:
        raise
    except VulkanError as error:
        _log.warning("%s does not build its kernels of matrix cores, which are left alone: %s", device, error)
        return _assumed((_PLAIN,))
    if not _sound(made):
        _log.info("the times of the kernels of matrix cores of %s make no sense: %s", device, made)
        return _assumed(cores)
    try:
        text = json.dumps({**about, "ns": {core.label: rate for core, rate in made.items()}})
        cachedir.write(name, text.encode())
    except OSError as error:
        _log.info("the rates of matrix cores are not kept: %s", error)
    return made


def _load(name: str, about: Mapping[str, object], cores: tuple[Core, ...]) -> dict[Core, Rate] | None:
    """Return the rates that a file holds; None where there is none, or one of something else."""
    try:
        data = cachedir.read(name)
        document = json.loads(data) if data else {}
        if any(document[key] != value for key, value in about.items()):
            return None
        found = {core: Rate(*map(float, document["ns"][core.label])) for core in cores}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if _sound(found) else None


def _sound(rates_of: Mapping[Core, Rate]) -> bool:
    return all(0 < ns < math.inf for rate in rates_of.values() for ns in rate)


def _assumed(cores: tuple[Core, ...]) -> dict[Core, Rate]:
    """Return rates that rank the kernels as an H200 does: larger tiles work at a higher rate, and wait longer."""
    macs_per_ns = {KHR: 5.0, TILED: 1.0}
    made = {}
    for core in cores:
        size = core.tile[0] * core.tile[1]
        four = 4 * size * _STEPS / (occupancy.MACS_PER_NS * macs_per_ns[core.kernel] * min(1.0, (size / 2**14) ** 0.5))
        made[core] = Rate(four / 2.5, four)
    return made


def _measured(device: Device, cores: tuple[Core, ...], dtype: str) -> dict[Core, Rate]:
    """Return what kernels take with one tile, and with four, for each of the device's units."""
    device.synchronize()
    with ThreadPoolExecutor(len(cores)) as pool:  # most of the time goes to the driver's compiler
        pipelines = list(pool.map(lambda core: _pipeline(device, core, dtype), cores))
    clock, units = query.DeviceClock(device.logical), occupancy.units_of(device.info)
    tall = next(side for side in range(math.isqrt(units), 0, -1) if units % side == 0)
    seconds = [
        [
            [_run(device, clock, pipeline, core, dtype, much * tall, much * units // tall) for much in (1, 2)]
            for core, pipeline in zip(cores, pipelines, strict=True)
        ]
        for _ in range(_ROUNDS)
    ]
    return {
        core: Rate(*(1e9 * min(times) for times in zip(*rounds, strict=True)))
        for core, rounds in zip(cores, zip(*seconds, strict=True), strict=True)
    }


def _pipeline(device: Device, core: Core, dtype: str) -> Pipeline:
    """Return the pipeline that measures a kernel: of plain products whose rows are whole units of its loads."""
    code = FLOATS[dtype]
    constants: tuple[int, ...] = (code, code, code, 0, 1, 1, 1, *core.shape, 1, 1)
    if core.kernel != TILED:
        constants = (*constants, *[0] * 7, *core.constants(device.info))
    push_nbytes = 4 * (10 if core.kernel == TILED else 19)
    return device.logical.pipelines.shipped(core.kernel + core.variant(dtype), 3, push_nbytes, constants)


def _run(
    device: Device, clock: query.DeviceClock, pipeline: Pipeline, core: Core, dtype: str, high: int, broad: int
) -> float:
    """Return the seconds of a product of ``high`` x ``broad`` tiles."""
    m, n, k = high * core.tile[0], broad * core.tile[1], _STEPS
    arrays = [device.empty(shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    for array in arrays[:2]:
        array.fill(0)
    push = [m, n, k, 0, 0, 0, k, n, n, 0]
    if core.kernel != TILED:
        push += [0, 0, 0, 1, k, 0, 0, 0, 0]
    device.synchronize()
    ranges = [array.window()[0] for array in arrays]
    return statistics.median(query.timed_runs(clock, pipeline, ranges, words(*push), (high * broad, 1, 1), _RUNS))
