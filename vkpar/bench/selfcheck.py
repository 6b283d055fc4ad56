"""``vkpar bench all``: every collective on a few sizes of every dtype and wire, checked and not timed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from vkpar import dtypes
from vkpar.bench.frame import frame, table
from vkpar.bench.measure import job
from vkpar.bench.measure.checked import CheckedCollective, terms_of
from vkpar.bench.measure.collectives import TABLE, Collective, Setting, ranks_of
from vkpar.bench.measure.exact import OPS
from vkpar.comm import wires
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError

# A few elements, several blocks and a piece that nothing divides, several segments.
SIZES: Final = (24, 40_012, 2_000_004)
_WIRES: Final = wires.NAMES  # the last one is exact
_FLOATS: Final = {"f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_INTEGERS: Final = {bits: (f"int{bits}", f"uint{bits}") for bits in ("8", "16", "32", "64")}
_DTYPES: Final = (*_FLOATS.values(), *(name for names in _INTEGERS.values() for name in names))
# The columns: a title, and the cells that it counts.
_COLUMNS: Final = (
    *((name, (name,)) for name in _WIRES),
    *((name, (dtype,)) for name, dtype in _FLOATS.items()),
    *_INTEGERS.items(),
)
# Characters of a column; in narrow terminals, where the calls stand below the table alone.
_WIDTHS: Final = [5] * len(_COLUMNS)
_NARROW_WIDTHS: Final = [max(4, len(name) + 1) for name, _ in _COLUMNS]


def _line(collective: str, op: str, cells: Sequence[str], calls: str, seconds: str, width: int | None) -> str:
    """Return a line of the table, with the columns that a terminal of ``width`` columns can show."""
    line = f"{collective:>16}{op:>6} {''.join(map(str.rjust, cells, _WIDTHS))}{calls:>7}{seconds:>7}"
    if not table.is_narrow(width, line):
        return line
    return f"{collective:>15}{op:>5}{''.join(map(str.rjust, cells, _NARROW_WIDTHS))}{seconds:>7}"


def _titles(width: int | None) -> list[str]:
    names = [name for name, _ in _COLUMNS]
    line = _line("collective", "op", names, "calls", "time", width)
    units = _line("", "", [""] * len(names), "", "(s)", width)
    groups = {"float32 by wire": _WIRES[-1], "floats": [*_FLOATS][-1], "integers, bits": [*_INTEGERS][-1]}
    over, at = "", 0
    for title, last in groups.items():
        at = line.index(f" {last}", at) + 1 + len(last)
        over = over + title.rjust(at - len(over))
    return [f"#{text[1:]}".rstrip() for text in (over, line, units)]


@dataclass(frozen=True)
class Options:
    """What to check.

    Attributes:
        devices: selector of the rig; None for the default one, with two virtual ranks where it is a single device.
        sizes: in bytes, each rounded down to whole elements, at least one.
        check: calls of each kind, each on fresh data.
    """

    devices: str | None = None
    sizes: tuple[int, ...] = SIZES
    algorithm: str = "auto"
    transport: str = "auto"
    check: int = 1


@dataclass(frozen=True)
class Cell:
    """One dtype, or float32 on one wire: wrong elements of all its calls, and the largest bound, 0.0 for equality."""

    wrong: int
    calls: int
    bound: float


def _text(cells: Sequence[Cell]) -> str:
    """Return the number of wrong elements, marked where a bound was applied."""
    wrong = sum(cell.wrong for cell in cells)
    return "-" if not cells else f"~{wrong}" if any(cell.bound for cell in cells) else str(wrong)


@dataclass(frozen=True)
class Row:
    """One collective, with one op where it has any.

    Attributes:
        cells: by wire, those of float32, and by dtype.
    """

    collective: str
    op: str | None
    cells: dict[str, Cell]
    calls: int
    seconds: float

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        columns = ([self.cells[name] for name in names if name in self.cells] for _, names in _COLUMNS)
        cells = [_text(column) for column in columns]
        return _line(self.collective, self.op or "-", cells, str(self.calls), f"{self.seconds:.2f}", width)


@dataclass
class Report(frame.Report):
    """Everything of one run; ``algorithm`` is the requested one."""

    benchmark = "all"
    options: Options
    algorithm: str
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every cell."""
        return [cell.wrong for row in self.rows for cell in row.cells.values()]

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench all: wrong elements by collective",
            f"# sizes {', '.join(map(str, options.sizes))} bytes, out of place and in place, check {options.check}",
            f"# algorithm {self.algorithm}, transport {options.transport}",
            *self.rig.lines(),
            *_titles(width),
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        calls = sum(row.calls for row in self.rows)
        return [
            "#",
            f"# Wrong elements : {table.verdict(self.wrong())} ({calls} calls)",
            "# Every element must be equal to the true result; where ~ stands, within a derived bound of it.",
            "# -: always travels as f32's column says, or a device of the rig does not compute it.",
        ]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes that ``text`` lists, joined by commas.

    Raises:
        InvalidUsageError: one that is no size.
    """
    return tuple(table.parse_size(part) for part in text.split(","))


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    if not options.sizes or options.check < 1:
        raise InvalidUsageError("there is nothing to check: give at least one size, and check from 1")
    job.current().alike(replace(options, devices=None))
    communicator, rig = frame.open_communicator(
        stack, options.devices, algorithm=options.algorithm, transport=options.transport
    )
    return Report(options, frame.requested_algorithm(options.algorithm), rig), _rows(options, communicator)


def _rows(options: Options, communicator: Communicator) -> Iterator[Row]:
    for collective in TABLE.values():
        ops: Sequence[str | None] = (None,)
        if collective.reduces:
            ops = OPS if collective.name == "all_reduce" else OPS[:1]  # the others run the same kernels
        for op in ops:
            yield _row(options, communicator, collective, op)


def _row(options: Options, communicator: Communicator, collective: Collective, op: str | None) -> Row:
    start = time.perf_counter()
    cells, calls = {}, 0
    if collective.moves:
        for name, setting in _settings(communicator, collective, op).items():
            cells[name] = _cell(options, communicator, collective, setting)
        calls = sum(cell.calls for cell in cells.values())
    else:
        for _ in range(options.check):
            communicator.barrier().wait()
            calls += 1
    return Row(collective.name, op, cells, calls, time.perf_counter() - start)


def _settings(communicator: Communicator, collective: Collective, op: str | None) -> dict[str, Setting]:
    """Return what each cell stands for; what always travels exactly is checked in the exact wire's column.

    Float64 is reduced only where every device computes it.
    """
    made = {}
    infos = [info for each in job.current().gather([device.info for device in communicator.devices]) for info in each]
    lossy = _WIRES if collective.reduces and op not in ("max", "min") else _WIRES[-1:]
    for name in (*lossy, *_DTYPES):
        dtype = dtypes.resolve("float32" if name in lossy else name)
        wire = name if name in lossy else _WIRES[-1]
        root = communicator.nranks - 1
        if not collective.reduces or wires.lacking(dtype, infos) is None:
            made[name] = Setting(ranks_of(communicator), dtype, 0, op or "sum", root, wire)
    return made


def _cell(options: Options, communicator: Communicator, collective: Collective, setting: Setting) -> Cell:
    wrong, calls = 0, 0
    for nbytes in options.sizes:
        sized = setting.of(max(nbytes, setting.dtype.itemsize))
        for in_place in (False, True) if collective.in_place else (False,):
            subject = CheckedCollective(collective, communicator, sized, in_place=in_place)
            wrong += sum(subject.wrong() for _ in range(options.check))
            calls += options.check
    terms = terms_of(collective, setting)
    return Cell(wrong, calls, 0.0 if terms is None else terms.bound)
