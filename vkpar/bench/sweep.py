"""``vkpar bench all_reduce`` and its like: a collective's times and checks by size, as nccl-tests prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any, Final, TextIO

from vkpar import dtypes
from vkpar.bench import frame, table
from vkpar.bench.collectives import TABLE, Collective, Launch, Setting
from vkpar.bench.trial import Trial, terms_of
from vkpar.comm.communicator import Communicator
from vkpar.comm.operands import check_rank
from vkpar.errors import InvalidUsageError

REDUCED: Final = ("float32", "float16", "bfloat16", "int32", "uint32")
MOVED: Final = (*REDUCED, "float64", "int64", "uint64", "int8", "uint8")
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
        collective: a name in :data:`vkpar.bench.collectives.TABLE`.
        devices: selector of the rig; None for the default one, with two virtual ranks where it is a single device.
        minbytes: the first size; None for 8 KiB, or ``maxbytes`` where that is less.
        maxbytes: the last size; None for 32 MiB, or ``minbytes`` where that is more.
        stepfactor: each size is that many times the one before.
        iters: timed calls, queued back to back with one wait at the end.
        warmup_iters: calls before them.
        check: checked calls, each on fresh data.
        root: the rank that gives or gets, in a broadcast or a reduce.
    """

    collective: str = "all_reduce"
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
    root: int = 0

    @property
    def case(self) -> Collective:
        """The collective.

        Raises:
            InvalidUsageError: there is none of that name.
        """
        if self.collective not in TABLE:
            raise InvalidUsageError(f"unknown collective {self.collective!r}; there are {', '.join(TABLE)}")
        return TABLE[self.collective]

    def sizes(self) -> list[int]:
        """Return the sizes in bytes, rounded down to whole elements.

        Raises:
            InvalidUsageError: options that name no size.
        """
        if not self.case.moves:
            return [0]
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

    def text(self) -> str:
        """Return the half's columns."""
        numbers = table.fixed(self.time_us, 9), table.fixed(self.algbw_gbps, 7), table.fixed(self.busbw_gbps, 7)
        return "".join(numbers) + table.wrong_text(self.wrong).rjust(7)


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        type: of the elements; None where there are none. ``redop`` is the reduction's op.
        algorithm: the one that was taken; None where there is no choice.
        in_place: None where the collective has no such form.
        host_us: the median time in which the call returned.
    """

    size: int
    count: int
    type: str | None
    redop: str | None
    algorithm: str | None
    out_of_place: Measurement
    in_place: Measurement | None
    host_us: float

    def halves(self) -> list[Measurement]:
        """Return what was measured."""
        return [half for half in (self.out_of_place, self.in_place) if half is not None]

    def text(self) -> str:
        """Return the row under :data:`_HEADER`."""
        nothing = "".join("N/A".rjust(width) for width in (9, 7, 7, 7))
        in_place = nothing if self.in_place is None else self.in_place.text()
        kind = f"{self.type or 'none':>9}{self.redop or 'none':>6}"
        return (
            f"{self.size:>11}{self.count:>11}{kind}{self.out_of_place.text()}{in_place}{table.fixed(self.host_us, 8)}"
        )


@dataclass
class Report:
    """Everything of one run; ``check`` says how elements are checked, ``algorithm`` is the requested one."""

    options: Options
    algorithm: str
    check: str
    rig: frame.Rig
    rows: list[Row] = field(default_factory=list)

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every half row."""
        return [half.wrong for row in self.rows for half in row.halves()]

    def average_busbw(self) -> float | None:
        """Return the mean bus bandwidth of all half rows, in GB/s; None where nothing moves."""
        halves = [half.busbw_gbps for row in self.rows for half in row.halves()]
        return fmean(halves) if halves and self.options.case.moves else None

    def header(self) -> list[str]:
        """Return the lines above the table."""
        options, case, sizes = self.options, self.options.case, self.options.sizes()
        span = f"minbytes {sizes[0]} maxbytes {sizes[-1]} stepfactor {options.stepfactor} " if case.moves else ""
        checks = f" check {options.check}" if case.moves else ""
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench {case.name}",
            f"# {span}warmup iters {options.warmup_iters} iters {options.iters}{checks}",
            f"# {', '.join(self._choices())}",
            f"# check {self.check}",
            "#",
            *self.rig.lines(),
            "#",
            *_HEADER,
        ]

    def _choices(self) -> Iterator[str]:
        options, case = self.options, self.options.case
        if case.rooted:
            yield f"root {options.root}"
        if case.reduces:
            exactly = (
                options.dtype if options.dtype != "float32" else options.op if options.op in ("max", "min") else ""
            )
            yield f"wire {options.wire}" + (f" ({exactly} travels exactly)" if exactly else "")
            yield f"algorithm {self.algorithm}"
        yield f"transport {options.transport}"
        yield f"pump {self.rig.versions['pump']}"

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        case, n, average = self.options.case, self.rig.nranks, self.average_busbw()
        lines = ["#"]
        if average is not None:
            lines += [
                f"# Wrong elements    : {table.verdict(self.wrong())}",
                f"# Avg bus bandwidth : {average:.4g} GB/s",
                f"# GB/s: 10^9 bytes; algbw = size / time; busbw = algbw * {case.factor_text}, n = {n}: "
                "a rank's traffic each way.",
            ]
        last = "# time: calls queued back to back, one wait at the end; host: median time until the call returns."
        return [*lines, last]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        plain = asdict(self) | {"average_busbw_gbps": self.average_busbw()}
        return frame.document(self.options.collective, plain, self.wrong())


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
    return frame.run(partial(_start, options), as_json=as_json, stream=stream)


def _start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    sizes = options.sizes()
    communicator, rig = frame.open_communicator(
        stack, options.devices, wire=options.wire, algorithm=options.algorithm, transport=options.transport
    )
    check_rank(communicator.devices, options.root)
    setting = Setting(communicator.devices, dtypes.resolve(options.dtype), 0, options.op, options.root, options.wire)
    algorithm = frame.requested_algorithm(options.algorithm)
    report = Report(options, algorithm, _check_text(options, setting), rig)
    return report, (_row(options, communicator, setting.of(nbytes)) for nbytes in sizes)


def _check_text(options: Options, setting: Setting) -> str:
    terms = terms_of(options.case, setting)
    if not options.check or not options.case.moves:
        return "none"
    return "exact: any numbers, every element must be equal to what was sent" if terms is None else terms.describe()


def _row(options: Options, communicator: Communicator, setting: Setting) -> Row:
    """Time, then check, out of place and in place."""
    case = options.case
    separate, host = _measure(options, communicator, setting, in_place=False)
    in_place = None
    if case.in_place:
        in_place, more = _measure(options, communicator, setting, in_place=True)
        host += more
    return Row(
        size=setting.nbytes,
        count=setting.count,
        type=setting.dtype.name if case.moves else None,
        redop=setting.op if case.reduces else None,
        algorithm=_taken_algorithm(communicator, case.name),
        out_of_place=separate,
        in_place=in_place,
        host_us=1e6 * median(host),
    )


def _taken_algorithm(communicator: Communicator, name: str) -> str | None:
    """Return the algorithm of the last collective of that name, from the flight recorder."""
    operations = json.loads(communicator.dump())["operations"]
    return next((item.get("algorithm") for item in reversed(operations) if item["op"] == name), None)


def _measure(
    options: Options, communicator: Communicator, setting: Setting, *, in_place: bool
) -> tuple[Measurement, list[float]]:
    trial = Trial(options.case, communicator, setting, in_place=in_place)
    trial.upload()
    seconds, host = _time(options, communicator, trial.launch)
    checked = options.check if options.case.moves else 0
    wrong = sum(trial.wrong() for _ in range(checked)) if checked else None
    bandwidth = table.algbw(setting.nbytes, seconds)
    return Measurement(1e6 * seconds, bandwidth, bandwidth * options.case.factor(setting.nranks), wrong), host


def _time(options: Options, communicator: Communicator, launch: Launch) -> tuple[float, list[float]]:
    """Return the time of one call, and each call's time on the host, in seconds.

    In place, the numbers of a reduction grow from call to call and may overflow: the time does not depend on them.
    """
    for _ in range(options.warmup_iters):
        launch()
    for device in communicator.devices:
        device.synchronize()
    host = []
    start = time.perf_counter()
    for _ in range(options.iters):
        before = time.perf_counter()
        work = launch()
        host.append(time.perf_counter() - before)
    work.wait()
    return (time.perf_counter() - start) / options.iters, host
