"""``vkpar bench copy``: how long writes and reads of arrays take beside the device's raw copies and one memcpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from vkpar.bench.frame import frame, table
from vkpar.bench.measure import rawcopy
from vkpar.bench.measure.copying import COPIES, Copies, most_bytes
from vkpar.device import Device
from vkpar.errors import InvalidUsageError

SIZE: Final = 256 << 20
SHARE: Final = 0.8  # of the speed of a raw copy and a memcpy, one after the other
_RAW_UPLOAD, _RAW_DOWNLOAD, _MEMCPY = "raw upload", "raw download", "memcpy"
_HEADER: Final = (
    f"#{'dev':>3}{'copy':>14}{'MiB':>6}{'time':>6}{'least':>6}{'most':>6}{'GB/s':>6}{'raw':>6}{'memcpy':>7}"
    f"{'bound':>6}{'ratio':>6}{'wrong':>6}",
    f"#{'':23}{'(ms)':>6}{'(ms)':>6}{'(ms)':>6}{'':6}{'(ms)':>6}{'(ms)':>7}{'(ms)':>6}",
)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        size: bytes of each copy.
        copies: names among those of :data:`~vkpar.bench.measure.copying.COPIES`.
        iters: rounds of all copies, raw copies and memcpy in turns.
        warmup_iters: rounds before them.
        check: checked copies of each kind, each of fresh data.
    """

    devices: str | None = None
    size: int = SIZE
    copies: tuple[str, ...] = tuple(COPIES)
    iters: int = 7
    warmup_iters: int = 1
    check: int = 1


@dataclass(frozen=True)
class Row:
    """One kind of copy on one device; times are in milliseconds.

    Attributes:
        device: counts the opened devices.
        time_ms: the median of all rounds; ``least_ms`` and ``most_ms`` are their extremes.
        raw_ms: the median of vkCmdCopyBuffer the same way; ``memcpy_ms`` that of a copy on the host.
        factor: how many times the bound of a contiguous copy it may take.
    """

    device: int
    copy: str
    nbytes: int
    time_ms: float
    least_ms: float
    most_ms: float
    raw_ms: float
    memcpy_ms: float
    factor: int
    wrong: int | None

    @property
    def bound_ms(self) -> float:
        """What it may take."""
        return self.factor * (self.raw_ms + self.memcpy_ms) / SHARE

    @property
    def ratio(self) -> float:
        """Its time over the bound: 1 and less is as fast as it must be."""
        return self.time_ms / self.bound_ms if self.bound_ms > 0 else 0.0

    @property
    def gbps(self) -> float:
        """Its speed in GB/s of 10^9 bytes."""
        return table.algbw(self.nbytes, self.time_ms / 1e3)

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        name = self.copy.replace("_", " ")
        times = "".join(table.fixed(value, 6) for value in (self.time_ms, self.least_ms, self.most_ms))
        beside = f"{table.fixed(self.raw_ms, 6)}{table.fixed(self.memcpy_ms, 7)}{table.fixed(self.bound_ms, 6)}"
        return (
            f"{self.device:>4}{name:>14}{self.nbytes / 2**20:>6.3g}{times}{table.fixed(self.gbps, 6)}{beside}"
            f"{self.ratio:>6.2f}{table.wrong_text(self.wrong):>6}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self) | {"bound_ms": self.bound_ms, "ratio": self.ratio, "gbps": self.gbps}


@dataclass
class Report(frame.Report):
    """Everything of one run."""

    benchmark = "copy"
    options: Options
    versions: dict[str, str]
    devices: list[dict[str, Any]]
    rows: list[Row] = field(default_factory=list)

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        return [
            f"# vkpar {self.versions['vkpar']} bench copy",
            f"# {options.size} bytes of uint32, warmup iters {options.warmup_iters} iters {options.iters} "
            f"check {options.check}",
            "#",
            *(line for item in self.devices for line in _lines(item)),
            "#",
            *_HEADER,
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            f"# Wrong elements : {table.verdict(self.wrong())}",
            "# time: median; of uploads until the data is on the device.",
            "# raw: one vkCmdCopyBuffer from or to memory of the ring's kind; memcpy: np.copyto.",
            f"# bound = (raw + memcpy) / {SHARE:g}, of strided copies (rows, steps) twice that;",
            "# ratio = time / bound. All of them were measured in turns, round by round.",
            *(f"# Device {item['device']}: no copies of imported memory: {why}" for item, why in self._refused()),
        ]

    def _refused(self) -> Iterator[tuple[dict[str, Any], str]]:
        return ((item, item["refused"]) for item in self.devices if item.get("refused"))

    def plain(self) -> dict[str, Any]:
        """Return the fields, and what is made of them."""
        return super().plain() | {"rows": [row.as_dict() for row in self.rows]}


def _lines(item: dict[str, Any]) -> Iterator[str]:
    yield f"# Device {item['device']}: {item['name']} [{item['vendor']}, {item['driver']}]"
    if item["lowered"]:
        yield f"#   {item['size']} bytes: more do not fit its memory"
    for name, memory in item["memory"].items():
        yield f"#   {name}: {memory}"


def parse_copies(text: str) -> tuple[str, ...]:
    """Return the copies that ``text`` lists, joined by commas.

    Raises:
        InvalidUsageError: one that there is not.
    """
    names = tuple(name.strip().lower().replace(" ", "_") for name in text.split(","))
    unknown = next((name for name in names if name not in COPIES), None)
    if unknown is not None:
        raise InvalidUsageError(f"there is no copy {unknown!r}; there are {', '.join(COPIES)}")
    return names


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    devices = frame.open_devices(stack, options.devices)
    described = [_describe(options, number, device) for number, device in enumerate(devices)]
    report = Report(options, table.versions(), described)
    return report, _rows(options, devices, report)


def _describe(options: Options, number: int, device: Device) -> dict[str, Any]:
    size = min(options.size, most_bytes(device))
    made = {"size": size, "lowered": size < options.size, "memory": rawcopy.ways(device), "refused": ""}
    return frame.describe_device(number, device) | made


def _rows(options: Options, devices: Sequence[Device], report: Report) -> Iterator[Row]:
    for number, device in enumerate(devices):
        with ExitStack() as stack:
            described = report.devices[number]
            copies = Copies(device, described["size"], options.copies, stack)
            described["refused"] = copies.refused
            yield from _measure(options, number, copies)
            del copies
        device.trim()


def _measure(options: Options, number: int, copies: Copies) -> Iterator[Row]:
    calls = {_RAW_UPLOAD: copies.raw.upload, _RAW_DOWNLOAD: copies.raw.download, _MEMCPY: copies.memcpy}
    calls |= {name: copies.call(name) for name in copies.names}
    times = in_turns(calls, copies.seconds, options.iters, options.warmup_iters)
    for name in copies.names:
        taken = times[name]
        yield Row(
            device=number,
            copy=name,
            nbytes=copies.nbytes,
            time_ms=median(taken),
            least_ms=min(taken),
            most_ms=max(taken),
            raw_ms=median(times[_RAW_UPLOAD if COPIES[name].writes else _RAW_DOWNLOAD]),
            memcpy_ms=median(times[_MEMCPY]),
            factor=COPIES[name].factor,
            wrong=sum(copies.wrong(name) for _ in range(options.check)) if options.check else None,
        )


def in_turns(
    calls: dict[str, Callable[[], None]], seconds: Callable[[Callable[[], None]], float], iters: int, warmup_iters: int
) -> dict[str, list[float]]:
    """Time every call once a round; return the milliseconds of ``iters`` rounds after ``warmup_iters``."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup_iters + iters):
        for name, call in calls.items():
            taken = seconds(call)
            if number >= warmup_iters:
                times[name].append(1e3 * taken)
    return times
