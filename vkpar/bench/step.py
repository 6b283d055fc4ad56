"""``vkpar bench step``: one token through a Llama-shaped model split over the devices, eager and captured.

Steps run in a row with one wait at the end. What is read of memory is the weights, once a step: their bytes over the
time are what the device makes of its memory. The step without its sums is measured in turns with the whole one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

import vkpar
from vkpar.bench.decode import PRESETS, Model, Shape
from vkpar.bench.frame import frame, table
from vkpar.bench.measure import exact
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError

MODES: Final = {"eager": "eager out=", "fresh": "eager fresh", "captured": "captured", "fused": "captured, fused"}
_HEADER: Final = (
    f"#{'mode':<16}{'step':>9}{'least':>9}{'most':>9}{'weights':>9}{'sums':>9}{'host':>10}{'#wrong':>8}",
    f"#{'':16}{'(ms)':>9}{'(ms)':>9}{'(ms)':>9}{'(TB/s)':>9}{'(ms)':>9}{'(us)':>10}",
)

_Call = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        preset: sizes of the model; None for what suits the devices. The sizes after it replace some of them.
        modes: keys of :data:`MODES`.
        iters: steps in a row.
        warmup_iters: steps before them.
        repeat: runs, of which the medians count.
        check: checked steps of each mode.
        wire: how float32 crosses a link.
    """

    devices: str | None = None
    preset: str | None = None
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    modes: tuple[str, ...] = tuple(MODES)
    iters: int = 10
    warmup_iters: int = 3
    repeat: int = 7
    check: int = 1
    wire: str | None = None
    algorithm: str = "auto"
    transport: str = "auto"

    def shape(self, default: str) -> Shape:
        """Return the sizes asked for, those of the preset ``default`` where there is none.

        Raises:
            InvalidUsageError: sizes that do not fit together.
        """
        given = {item.name: getattr(self, item.name) for item in fields(Shape)}
        return replace(
            PRESETS[self.preset or default], **{name: value for name, value in given.items() if value is not None}
        )

    def describe(self) -> str:
        """Return the line on the options above the table."""
        return f"warmup iters {self.warmup_iters} iters {self.iters} repeat {self.repeat} check {self.check}"


def parse_modes(text: str, known: Sequence[str] = tuple(MODES)) -> tuple[str, ...]:
    """Return the modes that ``text`` lists, joined by commas.

    Raises:
        InvalidUsageError: one that is not ``known``.
    """
    names = tuple(name.strip().lower() for name in text.split(","))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InvalidUsageError(f"there is no mode {unknown!r}; there are {', '.join(known)}")
    return names


@dataclass(frozen=True)
class Mode:
    """One way to run the step.

    Attributes:
        name: a key of :data:`MODES`.
        step: runs one, and may return before it is done.
        bare: the same without sums; None where there are none.
        wrong: runs one more and counts the wrong elements.
    """

    name: str
    step: _Call
    bare: _Call | None
    wrong: Callable[[], int]


# Makes so many calls in a row; the seconds until all are done, and until the first one returned.
Timer = Callable[[_Call, int], tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One mode.

    Attributes:
        time_ms: of a step, the median of the runs; ``least_ms`` and ``most_ms`` of any of them.
        tbps: bytes of weights of the device that has most of them, over that time, in TB/s of 10^12 bytes.
        sums_ms: how much longer the step takes than one without sums; None where there are none.
        host_us: until the call returned that ran a step on idle devices.
    """

    mode: str
    time_ms: float
    least_ms: float
    most_ms: float
    tbps: float
    sums_ms: float | None
    host_us: float
    wrong: int | None

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        times = "".join(f"{value:>9.3f}" for value in (self.time_ms, self.least_ms, self.most_ms))
        sums = f"{'-':>9}" if self.sums_ms is None else f"{self.sums_ms:>9.3f}"
        return (
            f" {MODES[self.mode]:<16}{times}{self.tbps:>9.3g}{sums}{table.fixed(self.host_us, 10)}"
            f"{table.wrong_text(self.wrong):>8}"
        )


@dataclass
class Report(frame.Report):
    """Everything of one run; ``subject`` is the library that was measured, ``weights_nbytes`` those of each device."""

    benchmark = "step"
    options: Options
    subject: str
    shape: Shape
    weights_nbytes: list[int]
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)

    def sums(self) -> int:
        """Return how many sums over the devices a step has."""
        return 2 * self.shape.layers if self.rig.nranks > 1 else 0

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        weights = ", ".join(f"{nbytes / 1e9:.4g}" for nbytes in self.weights_nbytes)
        products = f"{4 * self.shape.layers} products and {self.sums()} sums a step"
        return [
            f"# {self.subject} {self.rig.versions[self.subject]} bench step: one token, {self.rig.nranks} device(s)",
            f"# {self.shape.describe()}",
            f"# {products}; float16 weights of {weights} GB by device",
            f"# {self.options.describe()}",
            *self.rig.lines(),
            *_HEADER,
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            "# step: the median of runs of steps in a row with one wait at the end; least and most of the runs.",
            "# weights: bytes of the device with most of them over the time; sums: the step less one without sums.",
            "# host: until the first call of a run returned.",
            "# #wrong: elements, of all devices, that are not bit for bit those of an eager step with out=.",
        ]

    def plain(self) -> dict[str, Any]:
        """Return the fields, and what is made of them."""
        return super().plain() | {"products": 4 * self.shape.layers, "sums": self.sums()}


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    devices = frame.open_devices(stack, options.devices)
    shape = options.shape("tiny" if any(device.info.is_cpu for device in devices) else "8b")
    weights = shape.weights_nbytes(len(devices))
    comm, rig = frame.connect(
        stack, devices, wire=options.wire, algorithm=options.algorithm, transport=options.transport
    )
    report = Report(options, "vkpar", shape, weights, rig)
    return report, _rows(report, comm, stack)


def _rows(report: Report, comm: Communicator, stack: ExitStack) -> Iterator[Row]:
    bench = _Bench(comm, report.shape, stack)
    for name in report.options.modes:
        yield measure(report, bench.mode(name), bench.time)


def measure(report: Report, mode: Mode, timer: Timer) -> Row:
    """Time ``mode``, in turns with the step without sums, then check it."""
    options = report.options
    calls = [mode.step] if mode.bare is None else [mode.step, mode.bare]
    if options.warmup_iters:
        for call in calls:
            timer(call, options.warmup_iters)
    runs = [[timer(call, options.iters) for call in calls] for _ in range(options.repeat)]
    seconds = [run[0][0] / options.iters for run in runs]
    without = [(run[0][0] - run[1][0]) / options.iters for run in runs if len(run) > 1]
    return Row(
        mode=mode.name,
        time_ms=1e3 * median(seconds),
        least_ms=1e3 * min(seconds),
        most_ms=1e3 * max(seconds),
        tbps=max(report.weights_nbytes) / median(seconds) / 1e12,
        sums_ms=1e3 * median(without) if without else None,
        host_us=1e6 * median(run[0][1] for run in runs),
        wrong=sum(mode.wrong() for _ in range(options.check)) if options.check else None,
    )


def time_calls(call: _Call, calls: int, finish: _Call) -> tuple[float, float]:
    """Return the seconds of ``calls`` calls in a row and a ``finish``, and those until the first call returned."""
    finish()
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    for _ in range(calls - 1):
        call()
    finish()
    return time.perf_counter() - start, first


def count_wrong(results: Sequence[exact.Host], expected: exact.Host) -> int:
    """Return how many elements of all ``results`` are not finite, or differ from ``expected`` in a bit."""
    bits = np.dtype(f"u{expected.itemsize}")
    return sum(
        int(np.count_nonzero((found.view(bits) != expected.view(bits)) | ~np.isfinite(found))) for found in results
    )


class _Bench:
    """A model on opened devices, and its modes."""

    def __init__(self, comm: Communicator, shape: Shape, stack: ExitStack) -> None:
        self._devices: Sequence[Device] = comm.devices
        self._comm = comm if len(comm.devices) > 1 else None
        self._stack = stack
        self._model = Model(self._devices, shape, self._comm)
        self._expected = self._model.step()[0].read()

    def mode(self, name: str) -> Mode:
        """Return what is measured under ``name``."""
        model = self._model
        if name == "fresh":
            fresh = model.fresh_step
            return Mode(name, fresh, self._bare(partial(fresh, sums=False)), lambda: self._wrong(fresh()))
        call: _Call
        if name == "eager":
            call, bare = model.step, self._bare(partial(model.step, sums=False))
        else:
            capture = partial(self._capture, fuse=name == "fused")
            call, bare = capture(model.step), self._bare(partial(model.step, sums=False), capture)
        return Mode(name, call, bare, partial(self._wrong_outputs, call))

    def _bare(self, call: _Call, made: Callable[[_Call], _Call] | None = None) -> _Call | None:
        """Return a step without sums, where one with sums differs; ``made`` makes what is measured of it."""
        if self._comm is None:
            return None
        return call if made is None else made(call)

    def _capture(self, call: _Call, *, fuse: bool) -> _Call:
        with vkpar.capture(self._devices, comm=self._comm, fuse=fuse) as graph:
            call()
        self._stack.callback(graph.close)
        return graph.launch

    def _wrong_outputs(self, call: _Call) -> int:
        """Return the wrong elements of a step that writes the model's outputs."""
        for array in self._model.outputs:
            exact.poison(array)
        call()
        return self._wrong(self._model.outputs)

    def _wrong(self, results: Sequence[vkpar.Array]) -> int:
        return count_wrong([array.numpy() for array in results], self._expected)

    def time(self, call: _Call, calls: int) -> tuple[float, float]:
        """See :data:`Timer`."""
        return time_calls(call, calls, self._finish)

    def _finish(self) -> None:
        for device in self._devices:
            device.synchronize()
