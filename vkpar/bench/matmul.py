"""``vkpar bench matmul``: time, rate and wrong elements of the matrix product, device by device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.random import default_rng

import vkpar
from vkpar import dtypes
from vkpar.bench.frame import frame, table
from vkpar.bench.measure import exact
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

DTYPES: Final = ("float32", "float16", "bfloat16")
CPU_SIZES: Final = ((128, 128, 128), (256, 256, 256), (512, 512, 512))
GPU_SIZES: Final = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
_NUMPY_SECONDS: Final = 0.5
_HEADER: Final = (
    f"#{'dev':>4}{'M':>7}{'N':>7}{'K':>7}{'type':>9}{'time':>11}{'rate':>15}{'#wrong':>8}{'vs NumPy':>10}",
    f"#{'':34}{'(us)':>11}",
)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        sizes: (M, N, K) of each product; None for squares that suit each device.
        transpose_b: give the second matrix as (N, K).
        iters: timed products, queued back to back with one wait at the end.
        warmup_iters: products before them.
        check: checked products, each on fresh data.
    """

    devices: str | None = None
    sizes: tuple[Shape, ...] | None = None
    dtypes: tuple[str, ...] = ("float32", "float16")
    transpose_b: bool = False
    iters: int = 20
    warmup_iters: int = 2
    check: int = 1

    def sizes_of(self, device: Device) -> tuple[Shape, ...]:
        """Return the products to run on ``device``."""
        return self.sizes or (CPU_SIZES if device.info.is_cpu else GPU_SIZES)


@dataclass(frozen=True)
class Row:
    """One product; ``device`` counts the opened devices, ``numpy_us`` is NumPy's time for float32 on the host."""

    device: int
    m: int
    n: int
    k: int
    type: str
    time_us: float
    gflops: float
    wrong: int | None
    numpy_us: float | None

    @property
    def against_numpy(self) -> float | None:
        """NumPy's time over the device's: above 1 the device is faster."""
        return self.numpy_us / self.time_us if self.numpy_us is not None and self.time_us > 0 else None

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        ratio = "-" if self.against_numpy is None else f"{self.against_numpy:.3g}x"
        shape = f"{self.m:>7}{self.n:>7}{self.k:>7}"
        return (
            f"{self.device:>5}{shape}{self.type:>9}{table.fixed(self.time_us, 11)}{rate(self.gflops):>15}"
            f"{table.wrong_text(self.wrong):>8}{ratio:>10}"
        )


@dataclass
class Report(frame.Report):
    """Everything of one run."""

    benchmark = "matmul"
    options: Options
    versions: dict[str, str]
    devices: list[dict[str, Any]]
    rows: list[Row] = field(default_factory=list)

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        lines = [
            f"# vkpar {self.versions['vkpar']} bench matmul",
            f"# (M, K) by {'(N, K) transposed' if options.transpose_b else '(K, N)'}, "
            f"warmup iters {options.warmup_iters} iters {options.iters} check {options.check}",
            "#",
        ]
        lines += [
            f"# Device {item['device']}: {item['name']} [{item['vendor']}, {item['driver']}]" for item in self.devices
        ]
        return [*lines, "#", *_HEADER]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            f"# Wrong elements : {table.verdict(self.wrong())}",
            "# rate = 2 M N K / time; vs NumPy: np.matmul's time on this host over the device's, float32.",
        ]

    def plain(self) -> dict[str, Any]:
        """Return the fields, and what is made of them."""
        return super().plain() | {"rows": [asdict(row) | {"against_numpy": row.against_numpy} for row in self.rows]}


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the products that ``text`` names: ``M,N,K`` or ``N`` for a square, several joined by ``;``.

    Raises:
        InvalidUsageError: not a list of sizes.
    """
    shapes = []
    for part in text.split(";"):
        numbers = [number.strip() for number in part.split(",")]
        if len(numbers) not in (1, 3) or not all(number.isdecimal() and int(number) > 0 for number in numbers):
            raise InvalidUsageError(f"{part!r} is no size: expected M,N,K (or one number for a square), joined by ';'")
        m, n, k = (int(number) for number in (numbers * 3)[:3])
        shapes.append((m, n, k))
    return tuple(shapes)


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the dtype names that ``text`` lists, joined by commas.

    Raises:
        InvalidUsageError: one that a matrix product does not take.
    """
    names = tuple(name.strip().lower() for name in text.split(","))
    unknown = next((name for name in names if name not in DTYPES), None)
    if unknown is not None:
        raise InvalidUsageError(f"matmul does not take {unknown!r}; it takes {', '.join(DTYPES)}")
    return names


def rate(gflops: float) -> str:
    """Return a rate with its unit."""
    if gflops >= 999.95:
        return f"{gflops / 1e3:.4g} TFLOP/s"
    return f"{gflops:.4g} GFLOP/s" if gflops >= 1 else f"{gflops:.3f} GFLOP/s"


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    devices = frame.open_devices(stack, options.devices)
    return Report(options, table.versions(), frame.described(devices)), _rows(options, devices)


def _rows(options: Options, devices: Sequence[Device]) -> Iterator[Row]:
    numpy_seconds: dict[Shape, float] = {}
    for number, device in enumerate(devices):
        for shape in options.sizes_of(device):
            for name in options.dtypes:
                yield _Product(options, device, shape, dtypes.resolve(name)).row(number, numpy_seconds)


class _Product:
    """The matrices of one product on one device, and what is measured on them."""

    def __init__(self, options: Options, device: Device, shape: Shape, dtype: DType) -> None:
        self._options = options
        self._shape = shape
        self._dtype = dtype
        m, n, k = shape
        self._a = device.empty((m, k), dtype)
        self._b = device.empty((n, k) if options.transpose_b else (k, n), dtype)
        self._out = device.empty((m, n), dtype)
        self._device = device
        self._generator = default_rng(m * n * k)

    def row(self, number: int, numpy_seconds: dict[Shape, float]) -> Row:
        """Time, then check; NumPy's time is measured once a shape."""
        a, b = self._upload()
        if self._dtype == dtypes.float32 and self._shape not in numpy_seconds:
            numpy_seconds[self._shape] = _time_numpy(a, b)
        seconds = self._time()
        wrong = sum(self._wrong() for _ in range(self._options.check)) if self._options.check else None
        m, n, k = self._shape
        return Row(
            device=number,
            m=m,
            n=n,
            k=k,
            type=self._dtype.name,
            time_us=1e6 * seconds,
            gflops=2e-9 * m * n * k / seconds,
            wrong=wrong,
            numpy_us=1e6 * numpy_seconds[self._shape] if self._dtype == dtypes.float32 else None,
        )

    def _run(self) -> None:
        vkpar.matmul(self._a, self._b, out=self._out, transpose_b=self._options.transpose_b)

    def _time(self) -> float:
        for _ in range(self._options.warmup_iters):
            self._run()
        self._device.synchronize()
        start = time.perf_counter()
        for _ in range(self._options.iters):
            self._run()
        self._device.synchronize()
        return (time.perf_counter() - start) / self._options.iters

    def _upload(self) -> tuple[exact.Host, exact.Host]:
        """Give the device fresh data and return it, in float32, as (M, K) and (K, N)."""
        largest = exact.largest_factor(self._shape[2])
        a, b = (exact.integers(self._generator, x.shape, self._dtype, largest) for x in (self._a, self._b))
        self._a.write(a)
        self._b.write(b)
        return a, b.T if self._options.transpose_b else b

    def _wrong(self) -> int:
        """Return the wrong elements of one more product; the expected ones are exact, then rounded once."""
        a, b = self._upload()
        exact.poison(self._out)
        self._run()
        with np.errstate(over="ignore"):
            expected = exact.rounded(np.matmul(a, b), self._dtype)
        return exact.count_wrong(self._out, expected)


def _time_numpy(a: exact.Host, b: exact.Host) -> float:
    """Return the median time of np.matmul, measured for half a second or three times, whichever is longer."""
    np.matmul(a, b)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < _NUMPY_SECONDS and len(times) < 1000):
        start = time.perf_counter()
        np.matmul(a, b)
        times.append(time.perf_counter() - start)
    return median(times)
