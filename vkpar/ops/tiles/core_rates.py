"""What the kernels of matrix cores take on a device.

Of each there are runs with one tile to four for each compute unit, all of a transposed second operand, as the weights
of linear layers are: with few steps of K, out of caches, and with many, out of memory, which some tiles wait for much
longer; and one that is not transposed. The tiled kernel without matrix cores is measured beside them, and so are the
kernels of products with few rows, against these on the same products.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.errors import UnsupportedError, within_limits
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.call.measured import Measurement
from vkpar.ops.tiles import matvec, occupancy, streamed
from vkpar.ops.tiles.fragments import WHOLE, Fragment
from vkpar.vulkan import query
from vkpar.vulkan.machine.physical import ALIGNMENT

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.device import Device
    from vkpar.errors import VulkanError
    from vkpar.ops.tiles.cores import Core
    from vkpar.vulkan.pipelines.kernel import Pipeline

_log = logging.getLogger("vkpar")

_WHAT: Final = "kernels of matrix cores"
_FORMAT: Final = 6
_STEPS: Final = (1024, 4096)  # of K, of the measured products: operands that caches hold, and larger ones
_SIDES: Final = ((1, 1), (1, 2), (1, 3), (2, 2))  # of the measured products, in units' tiles: those of :class:`Rate`
_RATES: Final = (*((k, *sides, True) for k in _STEPS for sides in _SIDES), (_STEPS[1], *_SIDES[-1], False))
_THREADS: Final = 16  # that wait for the driver's compiler
_RUNS: Final = 5
_ROUNDS: Final = 3  # over all kernels, of which the fastest counts
_RISE_SECONDS: Final = 0.3  # of work before them: an idle device starts at a low clock
_FEW: Final = (2, 4, 8)  # rows of the measured products that read one matrix
_GAIN: Final = 7.0  # of matrix cores over none, where nothing was measured
FEW_STEPS: Final = 4096  # of K, of these


class Rate(NamedTuple):
    """Nanoseconds of products over so many steps of K: with one tile for each unit, with two, three, and four."""

    one: float
    two: float
    three: float
    four: float

    def time(self, groups: int, units: int) -> float:
        """Return the nanoseconds of so many tiles: as long as the unit with most of them takes.

        Where units work on two side by side, those that are done first take two more, and others none: a last tile for
        each takes as long as a third one does after two.
        """
        fours, rest = divmod(-(-groups // units), 4)
        last = max(self.one, self.three - self.two) if fours else self.one
        return fours * self.four + (0.0, last, self.two, self.three)[rest]


class Rates(NamedTuple):
    """What products by a transposed matrix take.

    Attributes:
        few: over few steps of K, the first of _STEPS.
        many: over many, the last of them.
        plain: what one takes whose matrix is not transposed, over what it takes where that is; 1 of kernels for these.
    """

    few: Rate
    many: Rate
    plain: float = 1.0

    def time(self, groups: int, units: int, k: int, *, transpose_b: bool = True) -> float:
        """Return the nanoseconds of so many tiles over ``k`` steps.

        Beyond few steps each takes what it does up to many; of fewer, a third of the time is there without any.
        """
        few, many = (rate.time(groups, units) * (1.0 if transpose_b else self.plain) for rate in (self.few, self.many))
        if k <= _STEPS[0]:
            return few * (1 + 2 * k / _STEPS[0]) / 3
        return few + max(many - few, 0.0) * (k - _STEPS[0]) / (_STEPS[1] - _STEPS[0])


class Few(NamedTuple):
    """Nanoseconds of products of few rows by a matrix of so many columns and FEW_STEPS rows, larger than caches.

    Attributes:
        columns: how many.
        cores: by matrix cores in tiles, of any number of rows.
        rows: by the kernel of few rows, of 2, 4 and 8.
        streamed: by the kernel of few rows for matrix cores, of 8; 0 where the device does not run it.
    """

    columns: int
    cores: float
    rows: tuple[float, float, float]
    streamed: float = 0.0

    def rows_of(self, m: int) -> float:
        """Return the nanoseconds of ``m`` rows by the kernel of few rows."""
        return next(ns for rows, ns in zip(_FEW, self.rows, strict=True) if m <= rows)

    def time(self, m: int, n: int, k: int) -> float:
        """Return the nanoseconds of ``m`` rows by the kernel of few rows, in proportion to what it reads."""
        return self.rows_of(m) * n * k / (self.columns * FEW_STEPS)


class Measured(NamedTuple):
    """What was measured of a device.

    Attributes:
        rates: of the kernels.
        few: of few rows, where ``b`` is not transposed and where it is; None where nothing was measured.
    """

    rates: dict[Core, Rates]
    few: tuple[Few, Few] | None = None


def measured(device: Device, dtype: str, cores: tuple[Core, ...], *, streams: Fragment | None = None) -> Measured:
    """Return what was measured of kernels; fixed rates stand for it where nothing is.

    Args:
        device: whose.
        dtype: of both operands.
        cores: the kernels.
        streams: the matrices by which the device runs the kernel of :mod:`vkpar.ops.tiles.streamed`, too.
    """

    def measure() -> Mapping[str, object]:
        made = _measured(device, cores, dtype, streams=streams)
        return {"ns": {core.label: rate for core, rate in made.rates.items()}, "few": made.few}

    def unbuilt(error: VulkanError) -> Measured:
        if streams:  # the kernel of few rows may be all that the driver does not build
            _log.info("%s does not build its %s, or not that of few rows: %s", device, _WHAT, error)
            return measured(device, dtype, cores)
        _log.warning("%s does not build its %s, which are left alone: %s", device, _WHAT, error)
        return assumed(tuple(core for core in cores if core.tiled))

    return Measurement(
        _WHAT,
        ("products", dtype),
        measure,
        partial(_parsed, cores),
        partial(assumed, cores),
        unbuilt,
        {"format": _FORMAT, "streams": streams and streams.shape},
        (cores, streams),
    ).of(device)


def _parsed(cores: tuple[Core, ...], document: Mapping[str, Any]) -> Measured:
    """Return what a document holds.

    Raises:
        ValueError: times that make no sense.
    """
    found = {core: _rates(document["ns"][core.label]) for core in cores}
    times = [ns for rates in found.values() for ns in (*rates.few, *rates.many, rates.plain)]
    of_few = []
    for columns, of_cores, rows, streamed_ns in document["few"]:
        two, four, eight = map(float, rows)
        of_few.append(Few(int(columns), float(of_cores), (two, four, eight), float(streamed_ns)))
        times += [*of_few[-1][:2], two, four, eight]
        if not 0 <= of_few[-1].streamed < math.inf:
            raise ValueError(f"{streamed_ns} ns")
    if not all(0 < ns < math.inf for ns in times):
        raise ValueError(f"{times} ns")
    plain, turned = of_few
    return Measured(found, (plain, turned))


def _rates(kept: tuple[list[float], list[float], float]) -> Rates:
    few, many, plain = kept
    return Rates(Rate(*map(float, few)), Rate(*map(float, many)), float(plain))


def assumed(cores: tuple[Core, ...]) -> Measured:
    """Return rates that rank the kernels as an H200 does: larger tiles work at a higher rate, and wait longer.

    Kernels of narrower matrices than that has are taken where they were measured, and left out here.
    """
    made = {}
    for core in (core for core in cores if core.fragment == WHOLE):
        size, gain = core.tile[0] * core.tile[1], 1.0 if core.tiled else _GAIN
        step = 4 * size / (occupancy.MACS_PER_NS * gain * min(1.0, (size / 2**14) ** 0.5))
        few, many = (Rate(four / 2.5, four / 2, four, four) for four in (step * steps for steps in _STEPS))
        made[core] = Rates(few, many)
    return Measured(made)


def _measured(device: Device, cores: tuple[Core, ...], dtype: str, *, streams: Fragment | None) -> Measured:
    """Return what kernels take with one tile, two, and four for each of the device's units; and what few rows take."""
    device.synchronize()
    units = occupancy.units_of(device.info)
    tall = next(side for side in range(math.isqrt(units), 0, -1) if units % side == 0)
    of_cores = {
        core: [
            _tiles(device, core, dtype, high * tall, broad * units // tall, k=k, transpose_b=turned)
            for k, high, broad, turned in _RATES
        ]
        for core in cores
    }
    low = min(cores, key=lambda core: core.tile[0])
    columns = 4 * units * low.tile[1]
    few_runs = [_few_runs(device, low, dtype, columns, transpose_b=turned, streams=streams) for turned in (False, True)]
    runs = [run for made in (*of_cores.values(), *few_runs) for run in made]
    room, most = min(device.limits.max_storage_buffer_range, device.limits.max_buffer), max(run.most for run in runs)
    if most * dtypes.resolve(dtype).itemsize > room - ALIGNMENT:
        raise UnsupportedError(f"matrices of {most} {dtype} do not lie in one binding of {room} bytes")
    with ThreadPoolExecutor(_THREADS) as pool:  # most of the time goes to the driver's compiler
        once = {(run.kernel, run.constants): run for run in runs}  # no thread waits for what another one compiles
        with within_limits("threads that make kernels"):
            built = [pool.submit(run.pipeline, device) for run in once.values()]
        times = _times(device, dtype, runs, built)
    rates, each = {}, len(_SIDES)
    for core in cores:
        ns = [times[run] for run in of_cores[core]]
        few, many, plain = ns[:each], ns[each : 2 * each], ns[-1]
        rates[core] = Rates(Rate(*few), Rate(*many), plain / (many[-1] or math.inf))  # of clocks that stand still
    found = []
    for timed in few_runs:
        first, *rows = [times[run] for run in timed]
        found.append(Few(columns, first, (rows[0], rows[1], rows[2]), *rows[3:]))
    return Measured(rates, (found[0], found[1]))


def _times(device: Device, dtype: str, runs: list[_Run], built: list[Future[Pipeline]]) -> dict[_Run, float]:
    """Return the nanoseconds that runs take; the first one raises the clock while the others are compiled."""
    clock = query.DeviceClock(device.logical)
    built[0].result()
    risen = time.monotonic() + _RISE_SECONDS
    while time.monotonic() < risen or not all(each.done() for each in built):
        runs[0].seconds(device, clock, dtype)
    for each in built:
        each.result()
    rounds = [[run.seconds(device, clock, dtype) for run in runs] for _ in range(_ROUNDS)]
    return {run: 1e9 * min(times) for run, *times in zip(runs, *rounds, strict=True)}


def _few_runs(
    device: Device, low: Core, dtype: str, columns: int, *, transpose_b: bool, streams: Fragment | None
) -> list[_Run]:
    """Return products of few rows: by the tiles of ``low``, by the kernel of few rows, and by that of matrix cores."""
    m = _FEW[-1]
    runs = [_tiles(device, low, dtype, 1, columns // low.tile[1], k=FEW_STEPS, m=m, transpose_b=transpose_b)]
    runs += [_few(device, dtype, rows, columns, transpose_b=transpose_b) for rows in _FEW]
    info, way = device.info, None
    if streams is not None:
        way = streamed.spread(info, m, columns, FEW_STEPS, 1, transpose_b=transpose_b, fragment=streams)
    if way is not None:
        groups = -(-columns // way.tile[1])
        runs.append(_tiles(device, way, dtype, 1, groups, k=FEW_STEPS, m=m, transpose_b=transpose_b))
    return runs


class _Run(NamedTuple):
    """A product that is measured: its kernel, what that is given, and its sizes."""

    kernel: str
    constants: tuple[int, ...]
    extra: tuple[abi.Forms | abi.Windows, ...]  # push constants beyond those of every kernel
    groups: int
    m: int
    n: int
    k: int
    transpose_b: bool

    @property
    def most(self) -> int:
        """Elements of its largest matrix."""
        return max(self.m * self.k, self.k * self.n, self.m * self.n)

    def pipeline(self, device: Device) -> Pipeline:
        """Return its pipeline: of plain products whose rows are whole units of its loads."""
        return device.logical.pipelines.shipped(self.kernel, 3, len(self.push), self.constants)

    @property
    def push(self) -> bytes:
        """Its push constants."""
        m, n, k = self.m, self.n, self.k
        return pack(abi.Product(m, n, k, 0, 0, 0, k, k if self.transpose_b else n, n), *self.extra)

    def seconds(self, device: Device, clock: query.DeviceClock, dtype: str) -> float:
        """Return what it takes."""
        m, n, k = self.m, self.n, self.k
        arrays = [device.empty(shape, dtype) for shape in ((m, k), (n, k) if self.transpose_b else (k, n), (m, n))]
        for array in arrays[:2]:
            array.fill(0)
        return statistics.median(self.runs(device, clock, arrays, _RUNS))

    def runs(self, device: Device, clock: query.DeviceClock, arrays: list[Array], number: int) -> list[float]:
        """Return the seconds of ``number`` runs on operands and a result."""
        device.synchronize()
        ranges = [array.window()[0] for array in arrays]
        return query.timed_runs(clock, self.pipeline(device), ranges, self.push, (self.groups, 1, 1), number)


def _tiles(
    device: Device,
    core: Core | streamed.Stream,
    dtype: str,
    high: int,
    broad: int,
    *,
    k: int,
    m: int = 0,
    transpose_b: bool = False,
) -> _Run:
    """Return a product of ``high`` x ``broad`` tiles, of ``m`` rows where that is given."""
    wide = (*_wide(dtype, transpose_b=transpose_b), *core.shape(device.info)._replace(a_eights=1, b_eights=1))
    constants = (*wide, *abi.Turned(), *abi.Follows(), *core.tail(device.info, eights=True))
    windows = () if core.kernel == streamed.KERNEL else (abi.Windows(),)
    extra = () if core.tiled else (abi.Forms(k_part=k), *windows)
    size = m or high * core.tile[0], broad * core.tile[1]
    return _Run(core.kernel + core.variant(dtype), constants, extra, high * broad, *size, k, transpose_b)


def _few(device: Device, dtype: str, m: int, n: int, *, transpose_b: bool) -> _Run:
    """Return a product of few rows by the kernel for these."""
    groups, kernel, span = matvec.choose(device.info, m, n, 2, transpose_b=transpose_b, forms=False)
    constants = (*_wide(dtype, transpose_b=transpose_b), *abi.RowsShape(m, span, 1, 1))
    return _Run(kernel, constants, (), groups, m, n, FEW_STEPS, transpose_b)


def _wide(dtype: str, *, transpose_b: bool) -> abi.Operands:
    """Return the constants of operands whose rows begin at multiples of four elements."""
    code = FLOATS[dtype]
    return abi.Operands(code, code, code, transpose_b, 1, 1, 1)
