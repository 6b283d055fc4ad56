"""``vkpar bench launch``: what small operations cost, on the host until the call returns and in all, device by device.

Each figure is the median of several runs of calls in a row with one wait at the end. *out=* gives the result a place
that exists, *fresh* makes a new array for each, which the next but one takes the memory of. A chain is of additions in
one run: each takes the result of the one before (dependent), or none takes any other's (independent); *captured*, it
is the launch of a graph that was recorded before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

import vkpar
from vkpar.abi.elementwise import Add
from vkpar.abi.words import pack
from vkpar.bench.frame import frame, table
from vkpar.device import Device
from vkpar.vulkan.pipelines import shader

COUNT: Final = 64  # elements of a sum; the products are of (1, 64) with (64, 64)
CHAIN: Final = 1000
_HEADER: Final = (
    f"#{'dev':>4}  {'operation':<20}{'result':<8}{'calls':>7}{'host':>10}{'total':>10}{'launch':>10}{'#wrong':>8}",
    f"#{'':41}{'(us)':>10}{'(us)':>10}{'(us)':>10}",
)
CAPTURED: Final = "captured"


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        iters: calls in a row of each operation; chains have 1,000.
        warmup_iters: calls before them.
        repeat: runs, of which the medians count.
        check: 0 to check nothing.
    """

    devices: str | None = None
    iters: int = 200
    warmup_iters: int = 50
    repeat: int = 7
    check: int = 1

    def describe(self) -> str:
        """Return the line on the options above the table."""
        return f"warmup iters {self.warmup_iters} iters {self.iters} repeat {self.repeat} check {self.check}"


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes:
        result: ``out=``, ``fresh``, :data:`CAPTURED` or nothing.
        call: makes ``calls`` of them; ``wrong`` makes some more and counts the wrong elements.
    """

    operation: str
    result: str
    call: Callable[[], object]
    wrong: Callable[[], int] | None = None
    calls: int = 1


@dataclass(frozen=True)
class Row:
    """Medians of one operation, in microseconds a call; ``device`` counts the opened devices.

    Attributes:
        launch_us: host time of a launch, which makes many calls; None where nothing is captured.
    """

    device: int
    operation: str
    result: str
    calls: int
    host_us: float
    total_us: float
    launch_us: float | None
    wrong: int | None

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        return (
            f"{self.device:>5}  {self.operation:<20}{self.result:<8}{self.calls:>7}{table.fixed(self.host_us, 10)}"
            f"{table.fixed(self.total_us, 10)}{'-' if self.launch_us is None else table.fixed(self.launch_us, 10):>10}"
            f"{table.wrong_text(self.wrong):>8}"
        )


@dataclass
class Report(frame.Report):
    """Everything of one run; ``subject`` is the library that was measured."""

    benchmark = "launch"
    options: Options
    subject: str
    versions: dict[str, str]
    devices: list[dict[str, Any]]
    rows: list[Row] = field(default_factory=list)

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        return [
            f"# {self.subject} {self.versions[self.subject]} bench launch: medians a call",
            f"# sums of {COUNT} float32, products of (1, {COUNT}) and ({COUNT}, {COUNT}); {self.options.describe()}",
            "#",
            *(f"# Device {device['device']}: {device['name']} [{device['driver']}]" for device in self.devices),
            "#",
            *_HEADER,
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            "# host: until the last call of a run has returned; total: until all of them are done.",
            "# launch: host time of one launch of a captured chain.",
        ]


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    devices = frame.open_devices(stack, options.devices)
    return Report(options, "vkpar", table.versions(), frame.described(devices)), _rows(options, devices, stack)


def _rows(options: Options, devices: Sequence[Device], stack: ExitStack) -> Iterator[Row]:
    for number, device in enumerate(devices):
        for case in cases(device, stack):
            yield measure(options, number, case, device.synchronize)


def measure(options: Options, device: int, case: Case, wait: Callable[[], object]) -> Row:
    """Time ``case``, then check it; ``wait`` returns when all that was called is done."""
    loops = max(1, options.iters // case.calls)
    for _ in range(-(-options.warmup_iters // case.calls)):
        case.call()
    runs = [_time(case.call, loops, wait) for _ in range(options.repeat)]
    calls = loops * case.calls
    host, total = (1e6 * median(part) / calls for part in zip(*runs, strict=True))
    launch = host * case.calls if case.result == CAPTURED else None
    wrong = case.wrong() if options.check and case.wrong is not None else None
    return Row(device, case.operation, case.result, calls, host, total, launch, wrong)


def _time(call: Callable[[], object], loops: int, wait: Callable[[], object]) -> tuple[float, float]:
    wait()
    start = time.perf_counter()
    for _ in range(loops):
        call()
    returned = time.perf_counter()
    wait()
    return returned - start, time.perf_counter() - start


def cases(device: Device, stack: ExitStack) -> list[Case]:
    """Return what is measured on a device; graphs are closed with ``stack``."""
    ones, twos = (device.array(np.full(COUNT, value, np.float32)) for value in (1, 2))
    row, square = device.array(np.ones((1, COUNT), np.float32)), device.array(np.ones((COUNT, COUNT), np.float32))
    out, product = device.empty(COUNT), device.empty((1, COUNT))
    kernel = vkpar.Kernel(device, shader.shipped("add_f32_f32"))  # as one of the user's own
    push = pack(Add(COUNT, 0, 0, 0))

    def run_kernel(target: vkpar.Array) -> vkpar.Array:
        kernel(1, ones, twos, target, push=push)
        return target

    calls: list[tuple[str, str, Callable[[], vkpar.Array], int]] = [
        ("add", "out=", lambda: vkpar.add(ones, twos, out=out), 3),
        ("add", "fresh", lambda: vkpar.add(ones, twos), 3),
        ("matmul", "out=", lambda: vkpar.matmul(row, square, out=product), COUNT),
        ("matmul", "fresh", lambda: vkpar.matmul(row, square), COUNT),
        ("Kernel", "out=", lambda: run_kernel(out), 3),
        ("Kernel", "fresh", lambda: run_kernel(device.empty(COUNT)), 3),
    ]
    found = [Case(name, result, call, _checked(call, value)) for name, result, call, value in calls]
    return [*found, Case("empty", "", lambda: device.empty(COUNT)), *_chains(device, ones, twos, stack)]


def _checked(call: Callable[[], vkpar.Array], value: float) -> Callable[[], int]:
    return lambda: int(np.count_nonzero(call().numpy() != value))


def _chains(device: Device, ones: vkpar.Array, twos: vkpar.Array, stack: ExitStack) -> list[Case]:
    held = device.zeros(COUNT)
    outs = [device.empty(COUNT) for _ in range(CHAIN)]

    def dependent() -> None:
        for _ in range(CHAIN):
            vkpar.add(held, ones, out=held)

    def independent() -> None:
        for out in outs:
            vkpar.add(ones, twos, out=out)

    return [
        Case(f"{name} adds", result, call, partial(_wrong_of_chain, call, results, value), CHAIN)
        for name, eager, results, value in (
            ("dependent", dependent, [held], CHAIN),
            ("independent", independent, outs, 3),
        )
        for result, call in (("out=", eager), (CAPTURED, _captured(device, eager, stack)))
    ]


def _captured(device: Device, call: Callable[[], object], stack: ExitStack) -> Callable[[], object]:
    """Return what launches ``call`` as a graph."""
    with vkpar.capture([device]) as graph:
        call()
    stack.callback(graph.close)
    return graph.launch


def _wrong_of_chain(call: Callable[[], object], results: Sequence[vkpar.Array], value: float) -> int:
    """Return how many elements are not ``value`` after ``call`` where all were 0 before."""
    for array in results:
        array.fill_zeros()
    call()
    return sum(int(np.count_nonzero(array.numpy() != value)) for array in results)
