"""What the benchmarks of other libraries share: options, the measurement, its report, and processes started per rank.

Each of them times all_reduce of float32 sums in place, with the calls queued back to back, and prints the columns and
the JSON document of ``vkpar bench all_reduce``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

# The clone need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import vkpar
from vkpar import dtypes
from vkpar.bench import sweep
from vkpar.bench.commands import add_counts, add_json, add_sizes, whole
from vkpar.bench.frame import frame, table
from vkpar.bench.measure.collectives import TABLE
from vkpar.bench.measure.exact import Host, Terms
from vkpar.errors import InvalidUsageError, UnsupportedError, VkparError
from vkpar.topology import RankInfo

WRONG: Final = 1  # exit statuses, as those of vkpar
ERROR: Final = 2
_INTERRUPTED: Final = 130
_RISE_SECONDS: Final = 0.3
_FACTOR: Final = TABLE["all_reduce"].factor


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        sweep: sizes and numbers of calls.
        nranks: processes; None for the library's default.
        repeat: measurements of each size, of which the median counts.
        json: print one JSON document and nothing else.
    """

    sweep: sweep.Options
    nranks: int | None = None
    repeat: int = 1
    json: bool = False


class Peer(Protocol):
    """One rank of another library, in a process of its own."""

    name: str
    rank: int
    nranks: int
    rig: frame.RigInfo

    def allocate(self, count: int) -> None:
        """Make the rank's array of ``count`` float32, in place of the one before."""

    def write(self, host: Host) -> None:
        """Fill the array."""

    def read(self) -> Host:
        """Return the array's elements."""

    def call(self) -> None:
        """Make one call of all_reduce on the array; it may return before it is done."""

    def finish(self) -> None:
        """Wait for all calls."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def greatest(self, value: float) -> float:
        """Return the largest value that any rank gave."""

    def total(self, value: int) -> int:
        """Return the sum of what the ranks gave."""


# ---- the command line ----


def parser(text: str) -> argparse.ArgumentParser:
    """Return what takes the options that all peers have; ``text`` describes the peer."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.set_defaults(json=False)
    add_json(made)
    add_sizes(made)
    add_counts(made, sweep.Options, auto=True)
    made.add_argument("--nranks", type=whole(1), metavar="N", help="processes (default: a GPU each, else 2)")
    made.add_argument(
        "--repeat", type=whole(1), default=1, metavar="N", help="measure so often, take the median (default: 1)"
    )
    return made


def options_of(found: argparse.Namespace) -> Options:
    """Return what the command line asked for."""
    named = {item.name: getattr(found, item.name) for item in fields(sweep.Options) if hasattr(found, item.name)}
    chosen = sweep.Options(**named, wire="f32", in_place_only=True)
    chosen.sizes()  # refuses wrong ones before any process starts
    return Options(chosen, found.nranks, found.repeat, found.json)


def main(command: Callable[[], int]) -> int:
    """Run ``command`` and return its exit status; what it raises for wrong usage becomes one line."""
    try:
        return command()
    except VkparError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED


def need(module: str, install: str) -> None:
    """Check that ``module`` is installed.

    Raises:
        UnsupportedError: it is not; the message says what to install.
    """
    if find_spec(module) is None:
        raise UnsupportedError(f"needs the package {module}: {install}")


# ---- processes ----


def spawn(target: Callable[..., int], nranks: int, *arguments: Any) -> int:
    """Run ``target(rank, nranks, rendezvous, *arguments)`` in a process per rank.

    Returns:
        the first exit status that is not 0; the other processes are ended then.
    """
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory(prefix="vkpar-peer-") as folder:
        rendezvous = str(Path(folder) / "rendezvous")  # a file: nothing to agree on, unlike a port
        processes = [
            context.Process(target=_child, args=(target, rank, nranks, rendezvous, *arguments), daemon=True)
            for rank in range(nranks)
        ]
        try:
            for process in processes:
                process.start()
            return _first_failure(processes)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.terminate()
                    process.join()


def _child(target: Callable[..., int], rank: int, *arguments: Any) -> None:
    try:
        status = target(rank, *arguments)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except Exception:
        traceback.print_exc()
        status = ERROR  # Python's own, 1, says that elements were wrong
    sys.exit(status)


def _first_failure(processes: Sequence[Any]) -> int:
    left = {process.sentinel: process for process in processes}
    while left:
        for sentinel in wait(list(left)):
            process = left.pop(sentinel)
            process.join()  # its end is seen before its status is known
            if process.exitcode:
                return int(process.exitcode) if process.exitcode > 0 else ERROR
    return 0


# ---- one rank's measurement ----


@dataclass
class Report(frame.Report):
    """Everything of one run, as rank 0 prints it."""

    benchmark = "all_reduce"
    options: Options
    peer: str
    check: str
    rig: frame.RigInfo
    environment: dict[str, str]
    rows: list[sweep.Row] = field(default_factory=list)

    def halves(self) -> list[sweep.Measurement]:
        """Return what was measured."""
        return [row.in_place for row in self.rows if row.in_place is not None]

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every row, over all ranks."""
        return [half.wrong for half in self.halves()]

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        versions = ", ".join(f"{name} {version}" for name, version in self.rig.versions.items())
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return [
            f"# {self.peer} all_reduce ({versions})",
            f"# {self.options.sweep.describe()} repeat {self.options.repeat}",
            *([f"# {settings}"] if settings else []),
            f"# check {self.check}",
            *self.rig.lines(),
            *sweep.titles(width),
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            f"# Avg bus bandwidth : {self._average():.4g} GB/s",
            f"# GB/s: 10^9 bytes; algbw = size / time; busbw = algbw * 2(n-1)/n, n = {self.rig.nranks}: "
            "a rank's traffic each way.",
            "# time: calls in a row, one wait at the end, slowest rank; host: median time until the call returns.",
        ]

    def plain(self) -> dict[str, Any]:
        """Return the fields, and what is made of them."""
        plain = super().plain() | {"average_busbw_gbps": self._average()}
        chosen = plain.pop("options")
        plain["options"] = chosen.pop("sweep") | chosen
        plain["iters"] = [row.pop("iters") for row in plain["rows"]]
        return plain

    def _average(self) -> float:
        return fmean(half.busbw_gbps for half in self.halves())


def run_rank(peer: Peer, options: Options) -> int:
    """Measure every size; rank 0 prints a row for each as soon as it is there.

    Returns:
        the exit status, the same on all ranks: 0, or 1 where any element was wrong.
    """
    terms = Terms("sum", dtypes.float32, "f32", peer.nranks)
    check = terms.describe() if options.sweep.check else "none"
    report = Report(options, peer.name, check, peer.rig, _environment())

    def start(_stack: ExitStack) -> tuple[Report, Iterator[sweep.Row]]:
        return report, (_row(peer, options, terms, nbytes) for nbytes in options.sweep.sizes())

    return print_rows(peer, start, as_json=options.json)


def print_rows(peer: Peer, start: frame.Start, *, as_json: bool) -> int:
    """Measure on every rank, and print on rank 0, as ``frame.run`` does; return the exit status."""
    with open(os.devnull, "w") as nowhere:
        stream = sys.stdout if peer.rank == 0 else nowhere
        status = frame.run(start, as_json=as_json, stream=stream)
    sys.stdout.flush()
    peer.barrier()  # a rank that left early with status 1 could end rank 0 before it has printed
    return status


def _environment() -> dict[str, str]:
    """Return the variables that steer these libraries."""
    prefixes = ("NCCL_", "GLOO_", "TORCH_NCCL_", "MPICH_", "MPIR_CVAR_", "OMPI_MCA_", "UCX_", "FI_", "OMP_NUM_THREADS")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def _row(peer: Peer, options: Options, terms: Terms, nbytes: int) -> sweep.Row:
    chosen, count = options.sweep, nbytes // dtypes.float32.itemsize
    peer.allocate(count)
    generator = np.random.default_rng(count)
    peer.write(_upload(peer, terms, generator, count)[0])
    for _ in range(chosen.warmup_iters):
        peer.call()
    iters = chosen.iters
    if iters is None:
        iters = frame.enough_calls(lambda calls: _time(peer, calls)[0])  # the slowest rank's time: all choose alike
    runs = [_time(peer, iters) for _ in range(options.repeat)]
    seconds = median(run[0] for run in runs) / iters
    wrong = sum(_wrong(peer, terms, generator, count) for _ in range(chosen.check)) if chosen.check else None
    bandwidth = table.algbw(nbytes, seconds)
    return sweep.Row(
        size=nbytes,
        count=count,
        type="float32",
        redop="sum",
        algorithm=None,
        out_of_place=None,
        in_place=sweep.Measurement(1e6 * seconds, bandwidth, bandwidth * _FACTOR(peer.nranks), wrong),
        host_us=1e6 * median(spent for run in runs for spent in run[1]),
        iters=iters,
    )


def _time(peer: Peer, calls: int) -> tuple[float, list[float]]:
    """Return the slowest rank's time of all calls, and each one's on this host, in seconds."""
    peer.finish()
    peer.barrier()
    host = []
    start = time.perf_counter()
    for _ in range(calls):
        before = time.perf_counter()
        peer.call()
        host.append(time.perf_counter() - before)
    peer.finish()
    return peer.greatest(time.perf_counter() - start), host


def _upload(peer: Peer, terms: Terms, generator: np.random.Generator, count: int) -> tuple[Host, Host]:
    """Return this rank's fresh contribution and the sum of all: each rank draws all of them, so nothing is sent."""
    total, own = None, None
    for rank in range(peer.nranks):
        part = terms.draw(generator, count)
        total = terms.combine(total, part)
        own = part if rank == peer.rank else own
    assert own is not None
    assert total is not None
    return own, terms.finish(total)


def _wrong(peer: Peer, terms: Terms, generator: np.random.Generator, count: int) -> int:
    """Return the wrong elements of one more call, over all ranks."""
    own, expected = _upload(peer, terms, generator, count)
    peer.write(own)
    peer.call()
    peer.finish()
    return peer.total(int(np.count_nonzero(peer.read() != expected)))


def describe(nranks: int, names: Sequence[str], note: str, *, driver: str, kind: str, **versions: str) -> frame.RigInfo:
    """Return the rig of a report.

    Args:
        nranks: processes.
        names: each rank's device.
        note: a sentence on how they reach each other.
        driver: what drives them.
        kind: "cpu" or "discrete", as vkpar calls the types of devices.
        versions: of the library.
    """
    common = {"python": platform.python_version(), "numpy": np.__version__, "vkpar": vkpar.__version__}
    ranks = [RankInfo(rank, names[rank], _vendor(names[rank]), driver, kind, 0, "") for rank in range(nranks)]
    return frame.RigInfo(versions | common, ranks, [], note)


def _vendor(name: str) -> str:
    return next((vendor for vendor in ("NVIDIA", "AMD", "Intel") if vendor.lower() in name.lower()), "unknown")


def cpu_name() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def processes(given: int | None, default: int, most: int | None = None) -> int:
    """Return the number of processes to start, ``default`` where none is ``given``.

    Raises:
        InvalidUsageError: more than ``most``.
    """
    nranks = given or default
    if most is not None and nranks > most:
        raise InvalidUsageError(f"{nranks} ranks need as many GPUs, and there are {most}")
    return nranks


def time_us(call: Callable[[], object], calls: int, wait: Callable[[], object]) -> float:
    """Return the microseconds of a call, of so many in a row with one wait."""
    call()
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls * 1e6


def risen_us(call: Callable[[], object], calls: int, wait: Callable[[], object], repeat: int) -> float:
    """Return the median microseconds of a call as :func:`time_us` has them, after as much work as raises a GPU's clock.

    One that was idle for a moment may take four times as long, for a tenth of a second or more.
    """
    risen = time.monotonic() + _RISE_SECONDS
    while time.monotonic() < risen:
        time_us(call, calls, wait)
    return median(time_us(call, calls, wait) for _ in range(repeat))
