"""What all benchmarks do around their measurements: open the rig, print rows as they come, or one JSON document."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol, TextIO

import vkpar
from vkpar import env, topology
from vkpar.bench.frame import table
from vkpar.bench.measure import job
from vkpar.comm.communicator import Communicator
from vkpar.comm.rig.links import MPI
from vkpar.device import Device
from vkpar.text import number

# What ``-n auto`` aims at: so long a measurement, of so many calls.
AUTO_SECONDS: Final = 0.2
AUTO_CALLS: Final = (5, 1000)
_BY_MPI: Final = "from host memory to host memory"


class Row(Protocol):
    """One line of a table."""

    def text(self, width: int | None = None) -> str:
        """Return the row under the report's header, for a terminal of ``width`` columns where there is one."""


class Report(ABC):
    """Everything of one run: a benchmark's own is a dataclass, whose ``rows`` are added as they are measured."""

    benchmark: str
    rows: list[Any]

    @abstractmethod
    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table; one that is too wide for ``width`` columns leaves columns out."""

    @abstractmethod
    def footer(self) -> list[str]:
        """Return the lines below the table."""

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of everything measured; None where nothing was checked."""
        return [row.wrong for row in self.rows]

    def plain(self) -> dict[str, Any]:
        """Return the fields; those of a ``rig`` among them go to the top of :meth:`as_dict`."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        plain = self.plain()
        described = plain.pop("rig", None)
        rig_fields = {} if described is None else {**described, "nranks": len(described["ranks"])}
        checked = [number for number in self.wrong() if number is not None]
        outcome = {"wrong": sum(checked) if checked else None, "ok": not any(checked)}
        return {"benchmark": self.benchmark, **plain, **rig_fields, **outcome}


# Opens what is measured, to be closed with the stack, and returns the report and an iterator that measures row by row.
Start = Callable[[ExitStack], tuple[Report, Iterator[Row]]]


def run(start: Start, *, as_json: bool = False, stream: TextIO | None = None) -> int:
    """Measure, and print a row as soon as it is there.

    Args:
        start: opens what is measured.
        as_json: print one JSON document at the end, and nothing else.
        stream: where to print; standard output by default.

    Returns:
        the exit status: 0, or 1 where any element was wrong.

    Raises:
        VkparError: what the library raises, for wrong options before anything runs.
    """
    target = stream if stream is not None else sys.stdout
    prints = job.current().prints
    emit = table.Lines(target, quiet=as_json or not prints)
    with ExitStack() as stack:
        report, rows = start(stack)
        emit(*report.header(emit.width))
        for row in rows:
            report.rows.append(row)
            emit(row.text(emit.width))
        emit(*report.footer())
    if as_json and prints:
        table.as_json(report.as_dict(), target)
    return 1 if any(report.wrong()) else 0


@dataclass(frozen=True)
class RigInfo:
    """The rig of a communicator, as reports describe it."""

    versions: dict[str, str]
    ranks: list[topology.RankInfo]
    links: list[topology.LinkGroup]
    explanation: str

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def lines(self) -> list[str]:
        """Return the header lines that name the ranks and their links, and an empty one before and after them."""
        ranks = [
            f"# Rank {rank.rank}: {rank.name} [{rank.vendor}, {rank.driver}] {rank.transport}" for rank in self.ranks
        ]
        links = [f"# Links: {len(group.pairs)} {group.kind} ({group.reason})" for group in self.links]
        return ["#", *ranks, *links, f"# {self.explanation}", "#"]


def open_communicator(
    stack: ExitStack, selector: str | None, *, wire: str | None = None, algorithm: str = "auto", transport: str = "auto"
) -> tuple[Communicator, RigInfo]:
    """Open devices and a communicator over them, closed with ``stack``; return it and its description.

    Alone, a single device that nobody asked for by name is opened twice: two virtual ranks. The communicator is
    over all processes of the command.

    Raises:
        VkparError: what opening them raises.
    """
    devices = open_devices(stack, selector)
    together = job.current()
    if together.size > 1:
        together.gather(None)  # all have their devices
        return connect(stack, devices, wire=wire, algorithm=algorithm, transport=transport, mpi=together.comm)
    if selector is None and not env.get().devices and len(devices) == 1:
        devices += open_devices(stack, str(devices[0].info.index))
    return connect(stack, devices, wire=wire, algorithm=algorithm, transport=transport)


def open_devices(stack: ExitStack, selector: str | None) -> list[Device]:
    """Open devices, closed with ``stack``; raises as :func:`vkpar.open_devices` does."""
    return [stack.enter_context(device) for device in vkpar.open_devices(selector)]


def connect(
    stack: ExitStack, devices: Sequence[Device], *, wire: str | None, algorithm: str, transport: str, mpi: Any = None
) -> tuple[Communicator, RigInfo]:
    """Open a communicator over ``devices``, closed with ``stack``; return it and its description."""
    communicator = stack.enter_context(
        Communicator(devices, wire=wire, algorithm=algorithm, transport=transport, mpi=mpi)
    )
    return communicator, _describe(devices, communicator)


def _describe(devices: Sequence[Device], communicator: Communicator) -> RigInfo:
    together = job.current() if communicator.nranks > len(devices) else job.Job()
    own = [
        topology.describe_rank(rank, device.info, transport)
        for rank, device, transport in zip(communicator.local_ranks, devices, communicator.transports(), strict=True)
    ]
    ranks = [rank for each in together.gather(own) for rank in each]
    joined = [replace(link, reason=_BY_MPI) if link.kind == MPI else link for link in communicator.links()]
    told = together.gather(joined)
    links = {(link.src, link.dst): link for each in told for link in each}
    explanation = topology.explain(devices)
    if together.size > 1:
        hosts = number(len(set(together.hosts)), "host")
        meet = f"{len(ranks)} ranks in {together.size} processes on {hosts}; those on the same device are virtual"
        advice = together.advice(computes=any(device.info.is_cpu for device in devices))
        explanation = "; ".join(filter(None, (meet, advice))) + "."
    return RigInfo(table.versions(), ranks, topology.describe_links(links[pair] for pair in sorted(links)), explanation)


def describe_device(index: int, device: Device) -> dict[str, Any]:
    """Return what reports say of the ``index``-th device where there are no ranks."""
    described = asdict(topology.describe_rank(index, device.info, ""))
    del described["rank"], described["transport"]
    return {"device": index, **described}


def described(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Return :func:`describe_device` of all."""
    return list(map(describe_device, range(len(devices)), devices))


def enough_calls(time_calls: Callable[[int], float]) -> int:
    """Return how many calls ``-n auto`` times: about 0.2 s of them, but from 5 to 1000.

    Args:
        time_calls: makes so many calls, waits for them, and returns the seconds that they took.
    """
    least, most = AUTO_CALLS
    calls = 1
    # One call's time is mostly that of its wait where messages are small, hence more and more of them.
    while (seconds := time_calls(calls)) < AUTO_SECONDS / 10 and calls < most:
        calls = min(2 * calls, most)
    return min(max(round(AUTO_SECONDS * calls / seconds), least), most) if seconds > 0 else most


def requested_algorithm(name: str) -> str:
    """Return the algorithm that a run asks for, ``VKPAR_ALGORITHM`` taken into account."""
    return env.get().algorithm if name == "auto" else name
