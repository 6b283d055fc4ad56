"""Runs checks in child processes: one that crashes or hangs is reported, and the next one goes on after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from queue import Empty, Queue
from typing import IO, Any, Final

from vkpar.comm.rig.children import search_path
from vkpar.doctor.findings import FAILED, SKIPPED, Finding
from vkpar.errors import UnsupportedError

# As the self-test of links: the child takes modules from where this process has them, none from the current directory.
CODE = """
import ctypes, json, os, sys
def follow():
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: nothing that hangs outlives its parent
follow()
os.register_at_fork(after_in_child=follow)
job = json.loads(sys.stdin.readline())
sys.path += job.pop("path")
from vkpar.doctor import worker
worker.main(**job)
"""
_STARTING: Final = 60.0  # seconds until a child's first check begins
_CLOSING: Final = 30.0  # and from its last check until it has ended, having closed what it opened
_MOST_FAILURES: Final = 2  # of a child over one subject, before the subject's other checks are left out
_UPDATE: Final = "a driver did this, in a process of its own: update it"
LOST: Final = "lost"  # said by a child that can go on with nothing
_TAIL: Final = 400  # characters of what a child said that are told


Announce = Callable[[str, str], None]  # told the name and the subject of every check that begins


@dataclass(frozen=True)
class Job:
    """A check to run.

    Attributes:
        check: the name of its row in the table.
        subject: as its line names what is checked.
        arguments: of the check's function.
        limit: in seconds.
    """

    check: str
    subject: str
    limit: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Child:
    """A child process that runs jobs.

    Args:
        jobs: to run, in order.
        options: of the worker.
        environment: of the process.

    Raises:
        UnsupportedError: a frozen program, which has no Python to run it in.
    """

    def __init__(self, jobs: Sequence[Job], options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        if getattr(sys, "frozen", False):
            raise UnsupportedError("the doctor's checks run in child processes, and a frozen program has no Python")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed at exit)
        work = {"path": search_path(), "jobs": [asdict(job) for job in jobs], "options": dict(options)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            start_new_session=True,  # so that what a driver's library starts ends with it
        )
        self._lines: Queue[dict[str, Any] | None] = Queue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is seen later
            self._process.stdin.write(json.dumps(work).encode() + b"\n")
            self._process.stdin.close()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                self._lines.put(json.loads(line))
            except ValueError:
                continue  # a driver writes to standard output
        self._lines.put(None)

    def next(self, limit: float) -> dict[str, Any] | None:
        """Return what the child says next; None once it has ended.

        Raises:
            TimeoutError: nothing within ``limit`` seconds.
        """
        try:
            return self._lines.get(timeout=limit)
        except Empty:
            raise TimeoutError from None

    def died(self) -> tuple[str, str]:
        """Wait for the child's end; return how it ended, nothing where that was well, and the last of what it said."""
        try:
            status = self._process.wait(_CLOSING)
        except subprocess.TimeoutExpired:
            return "hung", ""
        if not status:
            return "", ""
        if status < 0:
            how = f"crashed ({_signal(-status)})"
        else:
            how = f"ended the process with status {status}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-_TAIL:].splitlines()
        return how, said[-1] if said else ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process, if it has not ended by itself."""
        if self._errors.closed:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Run:
    """Jobs, run one after the other in as few child processes as it takes; the first one starts at once.

    A job that crashes, or is not done within its limit, is a failure; what follows it runs in a process of its own. The
    limit counts while :meth:`findings` is read.

    Args:
        jobs: to run.
        options: of the worker.
        environment: of the processes.
    """

    def __init__(self, jobs: Sequence[Job], options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._left, self._options, self._environment = list(jobs), options, dict(environment)
        self._child = self._start()

    def _start(self) -> Child:
        return Child(self._left, self._options, self._environment)

    def findings(self, announce: Announce) -> Iterator[Finding]:
        """Yield what the jobs find, as they are done; ``announce`` is told of each before."""
        failures = Counter[str]()
        try:
            while self._left:
                problem = yield from _until_it_fails(self._child, self._left, announce)
                self._child.close()
                if problem:
                    yield problem
                    del self._left[:1]
                    failures[problem.subject] += 1
                    if failures[problem.subject] >= _MOST_FAILURES:
                        yield from self._leave_out(problem.subject)
                if self._left:
                    self._child = self._start()
        finally:
            self._child.close()

    def _leave_out(self, subject: str) -> Iterator[Finding]:
        why = f"left out: {_MOST_FAILURES} checks of {subject} crashed or hung"
        for job in [job for job in self._left if job.subject == subject]:
            self._left.remove(job)
            yield Finding(job.check, subject, SKIPPED, why)

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self._child.is_over

    def close(self) -> None:
        """End what is running."""
        self._child.close()


def side_by_side(makes: Iterable[Callable[[], Run]], announce: Announce) -> Iterator[Finding]:
    """Yield what several runs find, in order; as many as there are cores are under way at once."""
    waiting, most = deque(makes), max(os.cpu_count() or 1, 1)
    started = deque[Run]()

    def start() -> None:
        while waiting and sum(not run.is_over for run in started) < most:
            started.append(waiting.popleft()())

    try:
        start()
        while started:
            for finding in started[0].findings(announce):
                yield finding
                start()
            started.popleft()
            start()
    finally:
        for run in started:
            run.close()


def _until_it_fails(child: Child, left: list[Job], announce: Announce) -> Generator[Finding, None, Finding | None]:
    """Yield what the child finds, taking done jobs from ``left``.

    Returns:
        what is wrong with the first job left, or with the child's end once none is left.
    """
    limit, stage, begun, job = _STARTING, "", time.monotonic(), left[0]

    def failed(how: str, fix: str = _UPDATE) -> Finding:
        return Finding(job.check, job.subject, FAILED, how, fix, time.monotonic() - begun)

    while left:
        job = left[0]
        try:
            said = child.next(limit)
        except TimeoutError:
            return failed(
                f"hung{stage}: not done after {limit:g} s", f"{_UPDATE}, and look into the kernel's log (dmesg)"
            )
        if said is None:
            how, words = child.died()
            return failed(f"{how or 'ended the process'}{stage}{f': {words}' if words else ''}")
        if "begins" in said:
            limit, stage, begun = job.limit, "", time.monotonic()
            announce(job.check, job.subject)
        elif "stage" in said:
            stage = f" {said['stage']}"
        elif "finding" in said:
            yield Finding(**said["finding"])
        elif "done" in said:
            left.pop(0)
            limit = _STARTING
            if said["done"] == LOST:
                return None
    how, words = child.died()
    return failed(f"{how} after it, while devices were closed{f': {words}' if words else ''}") if how else None
