"""``vkpar bench host``: what a small all_reduce costs on the host, alone and beside a busy Python thread.

A busy thread keeps the interpreter's lock for a switch interval at a time (5 ms by default), so that every call that
gives it up may wait that long to go on. An all_reduce makes two such calls, one to enqueue everything and one to wait;
the bridge between ranks makes none. Calls beside a busy thread come one per switch interval, and what runs so seldom
finds caches and cores cold: the ratio compares them with calls at that pace, without a busy thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Final

from vkpar.arrays.array import Array
from vkpar.bench.frame import frame, table
from vkpar.comm.communicator import Communicator
from vkpar.dtypes import float32
from vkpar.vulkan.pump.ports import bucket_ns, bucket_of

SIZE: Final = 8 << 10
_HEADER: Final = (
    f"#{'':9}{'enqueue':>12}{'wait':>12}{'whole':>12}{'mean':>12}{'bridge':>12}",
    f"#{'':9}" + f"{'(us)':>12}" * 5,
)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector of the rig; None for the default one, with two virtual ranks where it is a single device.
        size: bytes of each rank's float32.
        iters: timed calls, each waited for.
        warmup_iters: calls before them.
    """

    devices: str | None = None
    size: int = SIZE
    iters: int = 200
    warmup_iters: int = 20
    transport: str = "auto"


@dataclass(frozen=True)
class Row:
    """Medians of one state of the process, in microseconds, or those of one state over those of another.

    Attributes:
        enqueue: until the call returned; ``wait``: of waiting for it; ``whole``: of both.
        mean: of both, not the median: some calls wait for the interpreter's lock, others do not.
        bridge: from seeing what a rank signalled to signalling the next; None where no link is bridged.
        is_ratio: the numbers are ratios.
    """

    state: str
    enqueue: float
    wait: float
    whole: float
    mean: float
    bridge: float | None
    is_ratio: bool = False

    def over(self, other: Row) -> Row:
        """Return these numbers over those of ``other``."""
        bridge = self.bridge / other.bridge if self.bridge is not None and other.bridge else None
        return Row(
            "ratio",
            enqueue=self.enqueue / other.enqueue,
            wait=self.wait / other.wait,
            whole=self.whole / other.whole,
            mean=self.mean / other.mean,
            bridge=bridge,
            is_ratio=True,
        )

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        cells = [
            "N/A".rjust(12) if value is None else f"{value:.3g}x".rjust(12) if self.is_ratio else table.fixed(value, 12)
            for value in self.numbers().values()
        ]
        return f"{self.state:>10}{''.join(cells)}"

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return {name: value for name, value in asdict(self).items() if name not in ("state", "is_ratio")}


@dataclass
class Report(frame.Report):
    """Everything of one run."""

    benchmark = "host"
    options: Options
    switch_interval_us: float
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)

    def wrong(self) -> list[int | None]:
        """Return nothing: no element is checked."""
        return []

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench host: medians of one all_reduce",
            f"# {options.size} bytes of float32, warmup iters {options.warmup_iters} iters {options.iters}, "
            f"transport {options.transport}",
            *self.rig.lines(),
            *_HEADER,
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        python = self.rig.versions["python"]
        return [
            "#",
            "# GIL: an all_reduce gives it up in two calls of the C helper, one to enqueue and one to wait.",
            f"# busy: a thread counts in pure Python {python}; it keeps the GIL for {self.switch_interval_us:.0f} us "
            "at a time.",
            "# paced: without that thread, a pause of as long before each call; ratio: busy over paced.",
            "# Medians of each, and the mean of whole = enqueue + wait.",
            "# bridge: from seeing a rank's signal to having passed it on (the middle of a class of latencies).",
        ]

    def plain(self) -> dict[str, Any]:
        """Return the fields, and the rows by name; times are in microseconds."""
        plain = super().plain()
        del plain["rows"]
        return plain | {row.state if row.is_ratio else f"{row.state}_us": row.numbers() for row in self.rows}


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    communicator, rig = frame.open_communicator(stack, options.devices, transport=options.transport)
    count = max(1, options.size // float32.itemsize)
    arrays = [device.zeros(count, float32) for device in communicator.devices]
    return Report(options, 1e6 * sys.getswitchinterval(), rig), _rows(options, communicator, arrays)


def _rows(options: Options, communicator: Communicator, arrays: list[Array]) -> Iterator[Row]:
    yield _measure("quiet", nullcontext(), options, communicator, arrays)
    paced = _measure("paced", nullcontext(), options, communicator, arrays, pause=sys.getswitchinterval())
    yield paced
    busy = _measure("busy", busy_thread(), options, communicator, arrays)
    yield busy
    yield busy.over(paced)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Keep a thread counting in pure Python for the length of a ``with`` block."""
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=count, name="vkpar-bench-busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _measure(
    state: str,
    beside: AbstractContextManager[None],
    options: Options,
    communicator: Communicator,
    arrays: list[Array],
    *,
    pause: float = 0.0,
) -> Row:
    enqueue, wait, whole = [], [], []
    for _ in range(options.warmup_iters):
        communicator.all_reduce(arrays).wait()
    before = communicator.stats()["bridge_latency_ns"]
    with beside:
        for _ in range(options.iters):
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            work = communicator.all_reduce(arrays)
            enqueued = time.perf_counter()
            work.wait()
            done = time.perf_counter()
            enqueue.append(enqueued - start)
            wait.append(done - enqueued)
            whole.append(done - start)
    bridge = median_class(before, communicator.stats()["bridge_latency_ns"])
    return Row(
        state,
        enqueue=1e6 * median(enqueue),
        wait=1e6 * median(wait),
        whole=1e6 * median(whole),
        mean=1e6 * fmean(whole),
        bridge=None if bridge is None else bridge / 1e3,
    )


def median_class(before: Mapping[int, int], after: Mapping[int, int]) -> float | None:
    """Return the middle of the class that holds the median of what two histograms of latencies differ by, in ns.

    Args:
        before: numbers by the lower edges of their classes, as ``Communicator.stats`` gives them.
        after: the same, later.
    """
    added = {edge: number - before.get(edge, 0) for edge, number in sorted(after.items())}
    left = (sum(added.values()) + 1) // 2
    for edge, number in added.items():
        left -= number
        if number and left <= 0:
            return (edge + bucket_ns(bucket_of(edge) + 1)) / 2
    return None
