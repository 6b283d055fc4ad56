"""Builds the layer of ``tests/faults`` and runs its worker: what a sweep of faults does, and how a case is told."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.process.children import child_environment

HERE = Path(__file__).resolve().parents[2] / "faults"
NAME = "VK_LAYER_VKPAR_faults"
RESULTS = {
    "out of host memory": -1,
    "out of device memory": -2,
    "initialisation failed": -3,
    "device lost": -4,
    "timeout": 2,
    "late": 0,
}
_FOREVER = 1_000_000
_LOSABLE = {"vkQueueSubmit", "vkQueueWaitIdle", "vkWaitSemaphores", "vkGetSemaphoreCounterValue"}
_OPENING = {"vkCreateInstance", "vkEnumeratePhysicalDevices", "vkCreateDevice"}
_LATE = {*_LOSABLE, "vkSignalSemaphore", "vkAllocateMemory", "vkCreateComputePipelines", "vkCreateDevice"}
_SECONDS = (0.05, 0.3, 2.0)

Case = dict[str, Any]


def compiler() -> list[str] | None:
    """Return the command that compiles C; None where there is none."""
    command = shlex.split(os.environ.get("CC", "")) or ["gcc"]
    return command if shutil.which(command[0]) else None


def build(folder: Path) -> Path:
    """Build the layer and its manifest into ``folder``; return the library."""
    library = folder / "libfaults.so"
    command = [*(compiler() or []), "-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden"]
    built = subprocess.run(
        [*command, str(HERE / "layer.c"), "-o", str(library), "-lpthread"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    shutil.copy(HERE / "layer.json", folder / "VkLayer_vkpar_faults.json")
    return library


class Worker:
    """A child process that runs cases one after another, and a new one after each that ends it."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._said = library.parent / "said.txt"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[str]:
        settings = {"VK_LAYER_PATH": str(self._library.parent), "VK_INSTANCE_LAYERS": NAME}
        environment = child_environment(**settings, VKPAR_VALIDATION="0", VKPAR_TUNING="off")
        command = [sys.executable, "-X", "faulthandler", str(HERE / "worker.py"), str(self._library)]
        pipe = subprocess.PIPE
        with self._said.open("w") as said:
            return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=said, text=True)

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.communicate(timeout=60)
        return process.returncode

    def ask(self, request: Case) -> dict[str, Any]:
        """Run one request; what ends the child is a problem of its answer."""
        self._process = process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return dict(json.loads(line))
        problem = f"the process ended with status {self._end()}:\n{self._said.read_text()}"
        return {"fired": 1, "raised": "", "problems": [problem]}

    def counts(self, program: str) -> dict[str, int]:
        """Return how often a program makes each call, those that it makes."""
        answer = self.ask({"program": program})
        assert "counts" in answer, answer["problems"]
        return {call: number for call, number in answer["counts"].items() if number}


def case(program: str, call: str, kind: str, nth: int, times: int = 1) -> Case:
    """Return the request that has a program's ``nth`` such call, and the ``times - 1`` after it, fail."""
    return {"program": program, "call": call, "kind": kind, "nth": nth, "times": times, "result": RESULTS[kind]}


def kinds(call: str) -> list[str]:
    """Return the faults that a call may have."""
    found = ["out of host memory", "out of device memory"]
    if call in _LOSABLE or call == "vkCreateDevice":
        found.append("device lost")
    if call in _OPENING:
        found.append("initialisation failed")
    if call == "vkWaitSemaphores":
        found.append("timeout")
    if call in _LATE:
        found.append("late")
    return found


def _times(call: str, kind: str, chance: random.Random) -> int:
    """Return how often it fails in a row.

    Where a driver never says whether work is done, or lets none go on, devices are given up, and rightly so.
    """
    most = 3 if call in _LOSABLE or call == "vkSignalSemaphore" else 4
    return chance.choice((1, 1, 3, _FOREVER)[:most]) if "memory" in kind else 1


def cases(program: str, counts: dict[str, int], each: int) -> Iterator[Case]:
    """Yield cases of a program: of each call and kind of fault ``each`` places, the first one and others by a seed."""
    chance = random.Random(program)
    for call, number in sorted(counts.items()):
        for kind in kinds(call):
            places = [1, *sorted(chance.sample(range(2, number + 1), min(each, number) - 1))] if number else []
            for nth in places:
                made = case(program, call, kind, nth, _times(call, kind, chance))
                yield {**made, "microseconds": int(1e6 * chance.choice(_SECONDS)) if kind == "late" else 0}
