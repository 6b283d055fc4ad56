"""``vkpar bench all_reduce`` and its like: a collective's times and checks by size, as nccl-tests prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any, Final

from vkpar import dtypes, env
from vkpar.bench import sweep_plot
from vkpar.bench.frame import frame, picture, profiled, table
from vkpar.bench.measure import job
from vkpar.bench.measure.checked import CheckedCollective, terms_of
from vkpar.bench.measure.collectives import TABLE, Collective, Launch, Setting, ranks_of
from vkpar.comm import wires
from vkpar.comm.communicator import Communicator
from vkpar.comm.observe.profile import Profile
from vkpar.comm.requests.checks import check_rank
from vkpar.errors import InvalidUsageError, UnsupportedError

DTYPES: Final = (
    *("float32", "float16", "bfloat16", "float64"),
    *("int32", "uint32", "int64", "uint64", "int16", "uint16", "int8", "uint8"),
)
MINBYTES: Final = 8 << 10
MAXBYTES: Final = 32 << 20
HEADER: Final = (
    f"#{'':36}{'out-of-place':>22}{'':8}{'in-place':>18}",
    f"#{'size':>10}{'count':>11}{'type':>9}{'redop':>6}"
    + f"{'time':>9}{'algbw':>7}{'busbw':>7}{'#wrong':>7}" * 2
    + f"{'host':>8}",
    f"#{'(B)':>10}{'(elements)':>11}{'':15}" + f"{'(us)':>9}{'(GB/s)':>7}{'(GB/s)':>7}{'':7}" * 2 + f"{'(us)':>8}",
)
# For narrow terminals: what all rows have in common stands above the table, and the count is left out.
_NARROW: Final = (
    f"#{'':10}{'out-of-place':>22}{'':8}{'in-place':>18}",
    f"#{'size':>10}" + f"{'time':>9}{'algbw':>7}{'busbw':>7}{'#wrong':>7}" * 2 + f"{'host':>8}",
    f"#{'(B)':>10}" + f"{'(us)':>9}{'(GB/s)':>7}{'(GB/s)':>7}{'':7}" * 2 + f"{'(us)':>8}",
)


@dataclass(frozen=True)
class Options:
    """What to measure, named after nccl-tests' flags.

    Attributes:
        collective: a name in :data:`vkpar.bench.measure.collectives.TABLE`.
        devices: selector of the rig; None for the default one, with two virtual ranks where it is a single device.
        minbytes: the first size; None for 8 KiB, or ``maxbytes`` where that is less.
        maxbytes: the last size; None for 32 MiB, or ``minbytes`` where that is more.
        stepfactor: each size is that many times the one before.
        iters: timed calls, queued back to back with one wait at the end; None for as many as fill a fifth of a second.
        warmup_iters: calls before them.
        check: checked calls, each on fresh data.
        sizelist: sizes in bytes, in place of ``minbytes``, ``maxbytes`` and ``stepfactor``.
        in_place_only: leave the out-of-place half out, where the collective has the other one.
        wire: how float32 crosses links; None for what a call without it takes.
        root: the rank that gives or gets, where there is one.
        profile: say where the time of the last size goes; ``trace`` is a file to write its steps to.
        plot: a file for a picture.
    """

    collective: str = "all_reduce"
    devices: str | None = None
    minbytes: int | None = None
    maxbytes: int | None = None
    stepfactor: int = 4
    iters: int | None = 20
    warmup_iters: int = 5
    check: int = 1
    wire: str | None = None
    algorithm: str = "auto"
    transport: str = "auto"
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    sizelist: tuple[int, ...] = ()
    in_place_only: bool = False
    profile: bool = False
    trace: str | None = None
    plot: str | None = None

    @property
    def case(self) -> Collective:
        """The collective.

        Raises:
            InvalidUsageError: there is none of that name.
        """
        if self.collective not in TABLE:
            raise InvalidUsageError(f"unknown collective {self.collective!r}; there are {', '.join(TABLE)}")
        return TABLE[self.collective]

    @property
    def taken_wire(self) -> str:
        """The wire of a reduction: the named one, or what a call without it takes."""
        return wires.chosen(self.op, env.get().wire) if self.wire is None else self.wire

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
        return [nbytes // width * width for nbytes in self.sizelist or table.steps(least, most, self.stepfactor)]

    def describe(self) -> str:
        """Return what is measured how often, as the header says it."""
        iters = "auto" if self.iters is None else self.iters
        counts = f"warmup iters {self.warmup_iters} iters {iters}"
        if not self.case.moves:
            return counts
        sizes = self.sizes()
        span = f"minbytes {sizes[0]} maxbytes {sizes[-1]} stepfactor {self.stepfactor}"
        listed = f"sizes {','.join(map(str, sizes))}" if self.sizelist else span
        return f"{listed} {counts} check {self.check}"


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
        out_of_place: None where only the other was measured.
        in_place: None where the collective has no such form.
        host_us: the median time in which the call returned.
        iters: timed calls of each half.
    """

    size: int
    count: int
    type: str | None
    redop: str | None
    algorithm: str | None
    out_of_place: Measurement | None
    in_place: Measurement | None
    host_us: float
    iters: int = 20

    def halves(self) -> list[Measurement]:
        """Return what was measured."""
        return [half for half in (self.out_of_place, self.in_place) if half is not None]

    def text(self, width: int | None = None) -> str:
        """Return the row under :data:`HEADER`, or what of it a terminal of ``width`` columns can show."""
        nothing = "".join("N/A".rjust(width) for width in (9, 7, 7, 7))
        out_of_place, in_place = (
            nothing if half is None else half.text() for half in (self.out_of_place, self.in_place)
        )
        kind = f"{self.count:>11}{self.type or 'none':>9}{self.redop or 'none':>6}"
        shown = "" if table.is_narrow(width, HEADER[1]) else kind
        return f"{self.size:>11}{shown}{out_of_place}{in_place}{table.fixed(self.host_us, 8)}"


def titles(width: int | None = None) -> tuple[str, ...]:
    """Return the table's header, for a terminal of ``width`` columns where there is one."""
    return _NARROW if table.is_narrow(width, HEADER[1]) else HEADER


@dataclass
class Report(frame.Report):
    """Everything of one run; ``check`` says how elements are checked, ``algorithm`` is the requested one."""

    options: Options
    algorithm: str
    check: str
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)
    profile: Profile | None = None

    def __post_init__(self) -> None:
        self.benchmark = self.options.collective

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every half row."""
        return [half.wrong for row in self.rows for half in row.halves()]

    def average_busbw(self) -> float | None:
        """Return the mean bus bandwidth of all half rows, in GB/s; None where nothing moves."""
        halves = [half.busbw_gbps for row in self.rows for half in row.halves()]
        return fmean(halves) if halves and self.options.case.moves else None

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        narrow = table.is_narrow(width, HEADER[1])
        common = [f"type {self.options.dtype}"] if narrow and self.options.case.moves else []
        common += [f"redop {self.options.op}"] if narrow and self.options.case.reduces else []
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench {self.options.case.name}",
            f"# {self.options.describe()}",
            f"# {', '.join([*common, *self._choices()])}",
            f"# check {self.check}",
            *self.rig.lines(),
            *titles(width),
        ]

    def _choices(self) -> Iterator[str]:
        options, case = self.options, self.options.case
        if case.rooted:
            yield f"root {options.root}"
        if case.reduces:
            exactly = (
                options.dtype if options.dtype != "float32" else options.op if options.op in ("max", "min") else ""
            )
            yield f"wire {options.taken_wire}" + (f" ({exactly} travels exactly)" if exactly else "")
            yield f"algorithm {self.algorithm}"
        yield f"transport {options.transport}"

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
        shown = self.profile if self.options.profile else None
        return [*lines, last, *(profiled.lines(shown, self.options.sizes()[-1]) if shown else ())]

    def plain(self) -> dict[str, Any]:
        """Return the fields, and what is made of them."""
        plain = asdict(replace(self, profile=None)) | {"average_busbw_gbps": self.average_busbw()}
        plain["profile"] = profiled.document(self.profile) if self.profile and self.options.profile else None
        plain["iters"] = [row.pop("iters") for row in plain["rows"]]
        return plain


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    sizes = options.sizes()
    if options.plot is not None:
        picture.check(options.plot)
        if not any(sizes):
            raise InvalidUsageError("--plot needs sizes of one element or more")
    wire = options.taken_wire
    options = replace(options, wire=wire)
    if job.current().size > 1 and (options.profile or options.trace):
        raise UnsupportedError("--profile and --trace look into one process: start it without mpiexec")
    job.current().alike(replace(options, devices=None))
    communicator, rig = frame.open_communicator(
        stack, options.devices, wire=wire, algorithm=options.algorithm, transport=options.transport
    )
    check_rank(ranks_of(communicator), options.root)
    setting = Setting(ranks_of(communicator), dtypes.resolve(options.dtype), 0, options.op, options.root, wire)
    algorithm = frame.requested_algorithm(options.algorithm)
    report = Report(options, algorithm, _check_text(options, setting), rig)
    return report, _rows(report, communicator, [setting.of(nbytes) for nbytes in sizes])


def _rows(report: Report, communicator: Communicator, settings: Sequence[Setting]) -> Iterator[Row]:
    options = report.options
    for setting in settings:
        yield _row(options, communicator, setting)
    if options.plot is not None and job.current().prints:
        sweep_plot.draw(report.as_dict(), options.plot)
    if options.profile or options.trace:
        in_place = options.case.in_place and options.in_place_only
        subject = CheckedCollective(options.case, communicator, settings[-1], in_place=in_place)
        report.profile = profiled.take(subject, communicator, options.warmup_iters, options.iters, options.trace)


def _check_text(options: Options, setting: Setting) -> str:
    terms = terms_of(options.case, setting)
    if not options.check or not options.case.moves:
        return "none"
    return "exact: any numbers, every element must be equal to what was sent" if terms is None else terms.describe()


def _row(options: Options, communicator: Communicator, setting: Setting) -> Row:
    """Time, then check, out of place and in place."""
    case = options.case
    separate, in_place, iters = None, None, options.iters
    host: list[float] = []
    if not (case.in_place and options.in_place_only):
        separate, iters, host = _measure(options, communicator, setting, iters, in_place=False)
    if case.in_place:
        in_place, iters, more = _measure(options, communicator, setting, iters, in_place=True)
        host += more
    assert iters is not None  # one of the two was measured
    return Row(
        size=setting.nbytes,
        count=setting.count,
        type=setting.dtype.name if case.moves else None,
        redop=setting.op if case.reduces else None,
        algorithm=_taken_algorithm(communicator, case.name),
        out_of_place=separate,
        in_place=in_place,
        host_us=1e6 * median(host),
        iters=iters,
    )


def _taken_algorithm(communicator: Communicator, name: str) -> str | None:
    """Return the algorithm of the last collective of that name, from the flight recorder."""
    operations = json.loads(communicator.dump())["operations"]
    return next((item.get("algorithm") for item in reversed(operations) if item["op"] == name), None)


def _measure(
    options: Options, communicator: Communicator, setting: Setting, iters: int | None, *, in_place: bool
) -> tuple[Measurement, int, list[float]]:
    """Return one half, the calls that were timed for it, and each call's time on the host in seconds."""
    subject = CheckedCollective(options.case, communicator, setting, in_place=in_place)
    subject.upload()
    for _ in range(options.warmup_iters):
        subject.launch()
    if iters is None:
        iters = frame.enough_calls(lambda calls: _time(calls, communicator, subject.launch)[0])
    seconds, host = _time(iters, communicator, subject.launch)
    checked = options.check if options.case.moves else 0
    wrong = sum(subject.wrong() for _ in range(checked)) if checked else None
    bandwidth = table.algbw(setting.nbytes, seconds / iters)
    factor = options.case.factor(setting.nranks)
    return Measurement(1e6 * seconds / iters, bandwidth, bandwidth * factor, wrong), iters, host


def _time(calls: int, communicator: Communicator, launch: Launch) -> tuple[float, list[float]]:
    """Return the time of all calls, the slowest process', and each one's on the host, in seconds.

    In place, the numbers of a reduction grow from call to call and may overflow: the time does not depend on them.
    """
    for device in communicator.devices:
        device.synchronize()
    job.current().gather(None)
    host = []
    start = time.perf_counter()
    for _ in range(calls):
        before = time.perf_counter()
        work = launch()
        host.append(time.perf_counter() - before)
    work.wait()
    return max(job.current().gather(time.perf_counter() - start)), host
