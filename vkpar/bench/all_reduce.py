"""``vkpar bench all_reduce``: times and checks of the AllReduce by size, as nccl-tests measures and prints them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Final, TextIO

import numpy as np
from numpy.random import default_rng

import vkpar
from vkpar import dtypes, env
from vkpar.array import Array
from vkpar.bench import exact, table
from vkpar.comm.communicator import Communicator
from vkpar.demo import rig
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

DTYPES: Final = ("float32", "float16", "bfloat16", "int32", "uint32")
OPS: Final = ("sum",)
MINBYTES: Final = 8 << 10
MAXBYTES: Final = 32 << 20
_HEADER: Final = (
    f"#{'':36}{'out-of-place':>22}{'':8}{'in-place':>18}",
    f"#{'size':>10}{'count':>11}{'type':>9}{'redop':>6}"
    + f"{'time':>9}{'algbw':>7}{'busbw':>7}{'#wrong':>7}" * 2
    + f"{'host':>8}",
    f"#{'(B)':>10}{'(elements)':>11}{'':15}" + f"{'(us)':>9}{'(GB/s)':>7}{'(GB/s)':>7}{'':7}" * 2 + f"{'(us)':>8}",
)


@dataclass(frozen=True)
class Options:
    """What to measure, named after nccl-tests' flags.

    Attributes:
        devices: selector of the rig; None for the default one, with two virtual ranks where it is a single device.
        minbytes: the first size; None for 8 KiB, or ``maxbytes`` where that is less.
        maxbytes: the last size; None for 32 MiB, or ``minbytes`` where that is more.
        stepfactor: each size is that many times the one before.
        iters: timed calls, queued back to back with one wait at the end.
        warmup_iters: calls before them.
        check: checked calls, each on fresh data.
    """

    devices: str | None = None
    minbytes: int | None = None
    maxbytes: int | None = None
    stepfactor: int = 4
    iters: int = 20
    warmup_iters: int = 5
    check: int = 1
    wire: str = "f16"
    algorithm: str = "auto"
    transport: str = "auto"
    dtype: str = "float32"
    op: str = "sum"

    def sizes(self) -> list[int]:
        """Return the sizes in bytes, rounded down to whole elements.

        Raises:
            InvalidUsageError: options that name no size.
        """
        if self.stepfactor < 2:
            raise InvalidUsageError(f"stepfactor must be 2 or more, not {self.stepfactor}")
        least, most = self.minbytes, self.maxbytes
        if least is None:
            least = MINBYTES if most is None else min(MINBYTES, most)
        if most is None:
            most = max(MAXBYTES, least)
        if not 1 <= least <= most:
            raise InvalidUsageError(f"minbytes ({least}) must be from 1 to maxbytes ({most})")
        width = dtypes.resolve(self.dtype).itemsize
        return [nbytes // width * width for nbytes in table.steps(least, most, self.stepfactor)]


@dataclass(frozen=True)
class Measurement:
    """One half of a row; ``wrong`` is None where nothing was checked."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One size; ``host_us`` is the median time in which the call returned, ``algorithm`` the requested one."""

    size: int
    count: int
    type: str
    redop: str
    algorithm: str
    out_of_place: Measurement
    in_place: Measurement
    host_us: float

    def text(self) -> str:
        """Return the row under :data:`_HEADER`."""
        halves = "".join(
            table.fixed(half.time_us, 9)
            + table.fixed(half.algbw_gbps, 7)
            + table.fixed(half.busbw_gbps, 7)
            + table.wrong_text(half.wrong).rjust(7)
            for half in (self.out_of_place, self.in_place)
        )
        return f"{self.size:>11}{self.count:>11}{self.type:>9}{self.redop:>6}{halves}{table.fixed(self.host_us, 8)}"


@dataclass
class Report:
    """Everything of one run."""

    options: Options
    algorithm: str
    versions: dict[str, str]
    ranks: list[rig.RankInfo]
    links: list[rig.LinkGroup]
    explanation: str
    rows: list[Row] = field(default_factory=list)

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every half row."""
        return [half.wrong for half in self._halves()]

    def average_busbw(self) -> float:
        """Return the mean bus bandwidth of all half rows, in GB/s."""
        return fmean([half.busbw_gbps for half in self._halves()])

    def _halves(self) -> list[Measurement]:
        return [half for row in self.rows for half in (row.out_of_place, row.in_place)]

    def header(self) -> list[str]:
        """Return the lines above the table."""
        options, sizes = self.options, self.options.sizes()
        exactly = "" if options.dtype == "float32" else f" ({options.dtype} travels exactly)"
        lines = [
            f"# vkpar {self.versions['vkpar']} bench all_reduce",
            f"# minbytes {sizes[0]} maxbytes {sizes[-1]} stepfactor {options.stepfactor} "
            f"warmup iters {options.warmup_iters} iters {options.iters} check {options.check}",
            f"# wire {options.wire}{exactly}, algorithm {self.algorithm}, "
            f"transport {options.transport}, pump {self.versions['pump']}",
            "#",
        ]
        lines += [
            f"# Rank {rank.rank}: {rank.name} [{rank.vendor}, {rank.driver}] {rank.transport}" for rank in self.ranks
        ]
        lines += [f"# Links: {len(group.pairs)} {group.kind} ({group.reason})" for group in self.links]
        return [*lines, f"# {self.explanation}", "#", *_HEADER]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        n = len(self.ranks)
        return [
            "#",
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            f"# Avg bus bandwidth : {self.average_busbw():.4g} GB/s",
            f"# GB/s: 10^9 bytes; algbw = size / time; busbw = algbw * 2(n-1)/n, n = {n}: a rank's traffic each way.",
            "# time: calls queued back to back, one wait at the end; host: median time until the call returns.",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        plain = asdict(self)
        wrong = [number for number in self.wrong() if number is not None]
        plain |= {
            "benchmark": "all_reduce",
            "nranks": len(self.ranks),
            "average_busbw_gbps": self.average_busbw(),
            "wrong": sum(wrong) if wrong else None,
            "ok": not any(wrong),
        }
        return plain


def run(options: Options, *, as_json: bool = False, stream: TextIO | None = None) -> int:
    """Measure every size and print a row for each as soon as it is there.

    Args:
        options: what to measure.
        as_json: print one JSON document at the end, and nothing else.
        stream: where to print; standard output by default.

    Returns:
        the exit status: 0, or 1 where any element was wrong.

    Raises:
        VkparError: what the library raises, for wrong options before anything runs.
    """
    target = stream if stream is not None else sys.stdout
    emit = table.Lines(target, quiet=as_json)
    sizes = options.sizes()
    dtype = dtypes.resolve(options.dtype)
    with ExitStack() as stack:
        devices = _open(options.devices)
        for device in devices:
            stack.enter_context(device)
        communicator = stack.enter_context(
            Communicator(devices, wire=options.wire, algorithm=options.algorithm, transport=options.transport)
        )
        report = _report(options, devices, communicator)
        emit(*report.header())
        for nbytes in sizes:
            row = _Size(options, communicator, dtype, nbytes // dtype.itemsize).row(report.algorithm)
            report.rows.append(row)
            emit(row.text())
        emit(*report.footer())
    if as_json:
        table.as_json(report.as_dict(), target)
    return 1 if any(report.wrong()) else 0


def _open(selector: str | None) -> list[Device]:
    """Open the rig; a single device that nobody asked for by name is opened twice."""
    devices = vkpar.open_devices(selector)
    if selector is None and not env.get().devices and len(devices) == 1:
        devices += vkpar.open_devices(str(devices[0].info.index))
    return devices


def _report(options: Options, devices: Sequence[Device], communicator: Communicator) -> Report:
    return Report(
        options=options,
        algorithm=env.get().algorithm if options.algorithm == "auto" else options.algorithm,
        versions=table.versions(),
        ranks=[
            rig.describe_rank(rank, device.info, transport)
            for rank, (device, transport) in enumerate(zip(devices, communicator.transports(), strict=True))
        ],
        links=rig.describe_links(communicator),
        explanation=rig.explain(devices),
    )


class _Size:
    """The arrays of one size on every rank, and what is measured on them."""

    def __init__(self, options: Options, communicator: Communicator, dtype: DType, count: int) -> None:
        self._options = options
        self._communicator = communicator
        self._dtype = dtype
        self._count = count
        self._sources = [device.empty(count, dtype) for device in communicator.devices]
        self._outputs = [device.empty(count, dtype) for device in communicator.devices]
        self._generator = default_rng(count)

    def row(self, algorithm: str) -> Row:
        """Time, then check, out of place and in place."""
        separate, host = self._measure(self._outputs)
        in_place, host_in_place = self._measure(None)
        return Row(
            size=self._count * self._dtype.itemsize,
            count=self._count,
            type=self._dtype.name,
            redop=self._options.op,
            algorithm=algorithm,
            out_of_place=separate,
            in_place=in_place,
            host_us=1e6 * median(host + host_in_place),
        )

    def _measure(self, outputs: Sequence[Array] | None) -> tuple[Measurement, list[float]]:
        self._upload()
        seconds, host = self._time(outputs)
        wrong = sum(self._wrong(outputs) for _ in range(self._options.check)) if self._options.check else None
        bandwidth = table.algbw(self._count * self._dtype.itemsize, seconds)
        nranks = self._communicator.nranks
        return Measurement(1e6 * seconds, bandwidth, table.busbw(bandwidth, nranks), wrong), host

    def _time(self, outputs: Sequence[Array] | None) -> tuple[float, list[float]]:
        """Return the time of one call, and each call's time on the host, in seconds.

        In place, the numbers grow from call to call and may overflow: the time does not depend on them.
        """
        reduce, sources, op = self._communicator.all_reduce, self._sources, self._options.op
        for _ in range(self._options.warmup_iters):
            reduce(sources, op=op, out=outputs)
        self._synchronize()
        host = []
        start = time.perf_counter()
        for _ in range(self._options.iters):
            before = time.perf_counter()
            work = reduce(sources, op=op, out=outputs)
            host.append(time.perf_counter() - before)
        work.wait()
        return (time.perf_counter() - start) / self._options.iters, host

    def _synchronize(self) -> None:
        for device in self._communicator.devices:
            device.synchronize()

    def _upload(self) -> exact.Host:
        """Give every rank fresh data and return its exact sum."""
        largest = exact.largest_term(self._dtype, self._options.wire, self._communicator.nranks)
        expected = np.zeros(self._count, np.float32 if self._dtype.is_float else self._dtype.numpy)
        for source in self._sources:
            data = exact.integers(self._generator, (self._count,), self._dtype, largest)
            source.write(data)
            expected += data
        return exact.rounded(expected, self._dtype)

    def _wrong(self, outputs: Sequence[Array] | None) -> int:
        """Return the wrong elements of one more call, over all ranks."""
        expected = self._upload()
        for output in outputs or ():
            exact.poison(output)
        self._communicator.all_reduce(self._sources, op=self._options.op, out=outputs).wait()
        return sum(exact.count_wrong(result, expected) for result in outputs or self._sources)
