"""The doctor's round: the machine, then each driver alone, then each device, then all together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import vkpar
from vkpar.bench.measure import job
from vkpar.doctor import children, drivers, links, table
from vkpar.doctor.children import Announce, Job, Run
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.errors import VkparError
from vkpar.vulkan.machine import manifests

_LIST: Final = "devices"  # what lists the devices of the drivers that are left


@dataclass
class Visit:
    """A visit of the doctor.

    Attributes:
        selector: of the devices to look at; None for all that there are, each card once.
        quick: take a sample.
        findings: so far.
        seconds: that it took.
        job: the processes that look.
    """

    selector: str | None = None
    quick: bool = False
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    job: job.Job = field(default_factory=job.current)

    @property
    def ok(self) -> bool:
        """True where no check failed."""
        return all(finding.state != FAILED for finding in self.findings)

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """What is known of the devices."""
        return [finding.data["device"] for finding in self.findings if "device" in finding.data]

    def count(self, state: str) -> int:
        """Return how many lines there are of a state."""
        return sum(finding.state == state for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "vkpar": vkpar.__version__,
            "ok": self.ok,
            "quick": self.quick,
            "seconds": round(self.seconds, 2),
            "devices": self.devices,
            "checks": [finding.as_dict() for finding in self.findings],
        }

    def run(self, announce: Announce) -> Iterator[Finding]:
        """Run every check, and yield what it found; ``announce`` is told what begins."""
        start = time.monotonic()
        own = (replace(found, section=table.BY_NAME[found.check].section) for found in self._run(announce))
        for whole in own if self.job.size == 1 else self._over_processes(own, announce):
            self.findings.append(whole)
            self.seconds = time.monotonic() - start
            yield whole
        self.seconds = time.monotonic() - start

    def _run(self, announce: Announce) -> Iterator[Finding]:
        good = yield from self._machine(announce)
        if good == []:
            if self.ok:  # else it was told why there is none
                yield Finding(_LIST, "", FAILED, manifests.no_driver())
            return
        environment = dict(os.environ) if good is None else drivers.environment(good)
        chosen: dict[int, str] = {}
        cpu = False
        last = [
            _job(table.BY_NAME["cards"], "", **self._shown()),
            _job(table.BY_NAME[_LIST], "", selector=self.selector),
        ]
        for finding in self._start(last, environment)().findings(announce):
            yield finding
            chosen = {int(index): name for index, name in finding.data.get("chosen", {}).items()}
            cpu = finding.data.get("cpu", False)
        ranks = list(chosen) if len(chosen) > 1 else list(chosen) * 2
        checks = [*table.of(table.DEVICES), *table.of(table.KERNELS)]
        each = [[_job(check, name, index=index) for check in checks] for index, name in chosen.items()]
        rig = [_job(check, f"{len(ranks)} ranks", indices=ranks) for check in table.of(table.RIG)]
        runs = [self._start(jobs, environment) for jobs in (*each, *([rig] if ranks else []))]
        apart = 0 if cpu else len(each)  # a card that one process has hung is no other's to use
        yield from children.side_by_side(runs[:apart], announce)
        yield from children.side_by_side(runs[apart:], announce)

    def _over_processes(self, own: Iterable[Finding], announce: Announce) -> Iterator[Finding]:
        """Look at each host by one process, then at all of them together."""
        well = yield from links.visits(self.job, own)
        together = [_here(links.skipped(), links.OPENED)] if not well else self._meet(announce)
        yield from (replace(found, section=table.PROCESSES) for found in together)

    def _meet(self, announce: Announce) -> Iterator[Finding]:
        name, began = links.OPENED, time.monotonic()
        try:
            with ExitStack() as stack:
                announce(name, "")
                meeting, opened = links.meet(self.job, self.selector, stack, quick=self.quick)
                yield _here(opened, name, time.monotonic() - began)
                for check in table.of(table.PROCESSES):
                    name, began = check.name, time.monotonic()
                    announce(name, "")
                    yield from (_here(found, name, time.monotonic() - began) for found in check.run(meeting))
        except VkparError as error:
            yield _here(links.ended(self.job, error), name, time.monotonic() - began)

    def _machine(self, announce: Announce) -> Generator[Finding, None, list[str] | None]:
        """Look at the machine and at each driver alone; return the manifests to take, None for all that there are."""
        runs = [self._start([_job(check, "") for check in table.of(table.MACHINE)], os.environ)]
        driver = table.BY_NAME["driver"]
        left_out, alone = [], []
        for path, variable in manifests.paths():
            why = manifests.filtered(path)
            if why:
                left_out.append(Finding(driver.name, path, SKIPPED, f"it {why}"))
            else:
                alone.append(_job(driver, path, path=path, variable=variable))
        if alone:
            runs.append(self._start(alone, os.environ))
        found = []
        for finding in children.side_by_side(runs, announce):
            yield finding
            found.append(finding)
        yield from left_out
        of_drivers = [finding for finding in found if finding.check == driver.name]
        good = [finding.subject for finding in of_drivers if finding.state == OK]
        return good if not good or any(finding.state == FAILED for finding in of_drivers) else None

    def _shown(self) -> dict[str, Any]:
        """Return what drivers show: the addresses of cards, and whether there are any GPUs."""
        found = [finding.data for finding in self.findings if "cards" in finding.data]
        shown = [address for data in found for address in data["cards"] if address]
        return {"shown": shown, "others": any(not data["cpu"] for data in found)}

    def _start(self, jobs: Sequence[Job], environment: Mapping[str, str]) -> Callable[[], Run]:
        return lambda: Run(jobs, {"quick": self.quick}, environment)


def _here(found: Finding, check: str, seconds: float = 0.0) -> Finding:
    return replace(found, check=check, seconds=seconds)


def _job(check: table.Check, subject: str, **arguments: Any) -> Job:
    return Job(check.name, subject, check.limit, arguments)
