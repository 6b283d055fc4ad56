"""``python worker.py LAYER``, with the layer enabled: runs programs under faults, one request a line.

A request is JSON: a program alone has its calls counted, one with a call makes that fail or come late. So are answers;
their ``problems`` say what was wrong.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from programs import PROGRAMS, Program, Results, values

import vkpar
from vkpar.vulkan import api

LIMIT_SECONDS = 60.0  # of a case, but for the time in which its threads wait for a processor
LOOK_SECONDS = 5.0
LOST = -4


class Layer:
    """The layer's side in this process."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._lib.faults_name.restype = ctypes.c_char_p
        self._lib.faults_victim.restype = ctypes.c_void_p
        self._lib.faults_count.restype = ctypes.c_long
        self._lib.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_long]
        self.names: list[str] = []
        while name := self._lib.faults_name(len(self.names)):
            self.names.append(name.decode())

    def counts(self) -> dict[str, int]:
        """Return how often each call was made."""
        return {name: self._lib.faults_count(number) for number, name in enumerate(self.names)}

    @contextmanager
    def armed(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Make calls fail inside; what is yielded says afterwards how many were struck, and of which device."""
        struck: dict[str, Any] = {}
        numbers = (request["nth"], request.get("times", 1), request.get("result", 0), request.get("microseconds", 0))
        assert self._lib.faults_arm(request["call"].encode(), *numbers) == 0, request["call"]
        try:
            yield struck
        finally:
            struck.update(fired=self._lib.faults_disarm(), victim=self._lib.faults_victim())

    @property
    def stuck(self) -> int:
        """Lost devices that were freed while work on them waited."""
        return int(self._lib.faults_stuck())


class Case:
    """One program under one fault."""

    def __init__(self, layer: Layer, request: dict[str, Any], expected: Results) -> None:
        self._layer, self._request, self._expected = layer, request, expected
        self._program: Program = PROGRAMS[request["program"]]
        self.problems: list[str] = []
        self.raised = ""
        self.fired = 0

    def run(self) -> None:
        """Run it, then see what goes on afterwards."""
        before, stuck = live(), self._layer.stuck
        with ExitStack() as stack:
            devices = opened(self._program)
            for device in devices:
                stack.callback(self._close, device)
            with self._layer.armed(self._request) as struck:
                self._compare("silently wrong", devices, faulty=True)
            self.fired = struck["fired"]
            others = self._check_alive(devices, struck["victim"])
            if len(others) == len(devices):
                self._compare("once more, with fresh objects", devices)
        if len(others) < len(devices):
            with ExitStack() as stack:
                fresh = opened(self._program)
                for device in fresh:
                    stack.callback(self._close, device)
                self._compare("fresh devices", fresh)
        if (left := live()) != before:
            self.problems.append(f"live handles were {before} and are {left}")
        if self._layer.stuck > stuck:
            self.problems.append("a lost device was freed whose work waits for a signal that never came")

    def _check_alive(self, devices: list[vkpar.Device], victim: int) -> list[vkpar.Device]:
        """Check that devices go on, and return them: all but one that is lost, or that says it must be opened anew."""
        going: list[vkpar.Device] = []
        for device in devices:
            try:
                alive(device)
                going.append(device)
            except vkpar.DeviceLostError:
                if self._request["result"] != LOST or not is_of(device, victim):
                    self._note("another device")
            except vkpar.VulkanError as error:
                if self._request["call"] != "vkEndCommandBuffer" or "open it anew" not in str(error):
                    self._note("a device, afterwards")
            except BaseException:
                self._note("a device, afterwards")
        return going

    def _compare(self, what: str, devices: list[vkpar.Device], *, faulty: bool = False) -> None:
        """Run the program and compare what it gives; under a fault a typed error is right, too."""
        try:
            found = self._program.run(devices)
        except vkpar.VkparError as error:
            if faulty:
                self.raised = f"{type(error).__name__}: {error}"
                self._check_named(error)
            else:
                self._note(what)
        except BaseException:
            self._note(what)
        else:
            if not same(found, self._expected):
                self.problems.append(f"{what}: other results")

    def _check_named(self, error: BaseException) -> None:
        """Check that the error, or one in its chain, names the call that had no memory; waits are looks, too."""
        chain: list[str] = []
        link: BaseException | None = error
        while link is not None:
            chain.append(str(link))
            link = link.__cause__ or link.__context__
        call = self._request["call"]
        names = ("vkWaitSemaphores", call) if call == "vkGetSemaphoreCounterValue" else (call,)
        if "memory" in self._request["kind"] and not any(name in text for name in names for text in chain):
            self.problems.append(f"an error that does not name {call}: {self.raised}")

    def _close(self, device: vkpar.Device) -> None:
        """Close a device, which may raise what nobody has been told yet, but closes."""
        try:
            device.close()
        except vkpar.VkparError:
            pass
        except BaseException:
            self._note("close")
        if not device.closed:
            self.problems.append("close: the device is not closed")

    def _note(self, what: str) -> None:
        self.problems.append(f"{what}: {traceback.format_exc()}")


def opened(program: Program) -> list[vkpar.Device]:
    """Return the program's devices, none where it opens them itself."""
    return [] if program.opens else [vkpar.open_devices(selector)[0] for selector in program.selectors()]


def is_of(device: vkpar.Device, victim: int) -> bool:
    """Say whether the fault struck this device."""
    return api.load().address(device.logical.handle) == victim


def alive(device: vkpar.Device) -> None:
    """Check that a device computes."""
    x = device.array(values(0))
    assert same([(x + x).numpy()], [2 * values(0)])


def same(found: Results, expected: Results) -> bool:
    """Compare results bit for bit."""
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def live() -> dict[str, int]:
    """Return the live handles, the instance's aside: it is the process's."""
    gc.collect()
    return {kind: number for kind, number in api.load().live().items() if kind != "Instance"} if api.loaded() else {}


class Limit:
    """Ends the process, telling what its threads do, where a case hangs: one that gets no processor does not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: tuple[float, dict[str, int]] | None = None
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> None:
        with self._lock:
            self._begun = time.monotonic(), starved()
            faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._begun = None
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                if self._begun is not None:
                    begun, before = self._begun
                    lost = 1e-9 * max(count - before.get(thread, 0) for thread, count in starved().items())
                    left = LIMIT_SECONDS + lost - (time.monotonic() - begun)
                    faulthandler.dump_traceback_later(max(left, 0.1), exit=True)


def starved() -> dict[str, int]:
    """Return for how many nanoseconds each thread could have run and had no processor."""
    found = {"none": 0}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            found[path.parent.name] = int(path.read_text().split()[1])
    return found


def serve(layer: Layer) -> None:
    """Answer requests until there are no more."""
    loose: list[str] = []
    threading.excepthook = lambda args: loose.append(f"thread: {''.join(traceback.format_exception(args.exc_value))}")
    sys.unraisablehook = lambda args: loose.append(f"finalizer: {args.exc_value!r} in {args.object!r}")
    expected: dict[str, Results] = {}
    limit = Limit()
    for line in sys.stdin:
        request = json.loads(line)
        begun, name = time.monotonic(), request["program"]
        with limit:
            program = PROGRAMS[name]
            if name not in expected:
                for _ in range(2):  # the first run fills caches
                    before, devices = layer.counts(), opened(program)
                    start = layer.counts() if devices else before
                    expected[name] = program.run(devices)
                    counted = {call: number - start[call] for call, number in layer.counts().items()}
                    for device in devices:
                        device.close()
            if "call" not in request:
                answer: dict[str, Any] = {"counts": counted}
            else:
                case = Case(layer, request, expected[name])
                case.run()
                answer = {"fired": case.fired, "raised": case.raised, "problems": case.problems + loose}
                loose.clear()
        print(json.dumps({**answer, "seconds": round(time.monotonic() - begun, 2)}), flush=True)


if __name__ == "__main__":
    logging.getLogger("vkpar").setLevel(logging.CRITICAL + 1)
    serve(Layer(sys.argv[1]))
