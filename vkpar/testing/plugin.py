"""The pytest plugin at work: which devices tests run on, what is checked after each, what is said of them.

``pytest_vkpar`` makes a :class:`Session` when the first test asks for devices.
"""

from __future__ import annotations

import _thread
import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

import pytest

from vkpar.arrays.array import Array
from vkpar.device import Device, enumerate_devices, open_devices
from vkpar.errors import InvalidUsageError, UnsupportedError, VkparError
from vkpar.testing import compare, guard
from vkpar.vulkan.machine import instance
from vkpar.vulkan.machine.physical import DeviceInfo, Features
from vkpar.vulkan.machine.selector import select

_GRACE_SECONDS = 10.0  # until a test that an interrupt did not end is called stuck in its driver


def label_of(info: DeviceInfo) -> str:
    """Return what stands for a device in ids of tests: a word of its driver, and its index."""
    return f"{info.driver_name.split()[0].lower() if info.driver_name else 'device'}-{info.index}"


def _line(info: DeviceInfo) -> str:
    return f"{label_of(info)}: {info.name}, driver {' '.join(filter(None, (info.driver_name, info.driver_info)))}"


@dataclass(frozen=True)
class Needs:
    """What the marker ``vkpar`` of a test asks for.

    Attributes:
        min_devices: so many physical devices, each with all the rest.
        vendors: the device's is one of these; ``drivers``: one of these is a piece of its driver's or its own name.
        features: all of these, names of :class:`vkpar.vulkan.machine.physical.Features` or of Vulkan's extensions.
    """

    min_devices: int = 1
    vendors: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: Any) -> Needs:
        """Return those of a test.

        Raises:
            pytest.UsageError: the marker has other arguments than these, or of other kinds.
        """
        mark = item.get_closest_marker("vkpar")
        given = dict(mark.kwargs) if mark else {}
        if mark and (mark.args or given.keys() - {entry.name for entry in fields(cls)}):
            raise pytest.UsageError(f"{item.nodeid}: vkpar takes {', '.join(f.name for f in fields(cls))}, by name")
        for name in ("vendors", "drivers", "features"):
            value = given.get(name, ())
            given[name] = (value,) if isinstance(value, str) else tuple(value)
        known = {entry.name for entry in fields(Features)}
        strange = [name for name in given["features"] if name not in known and not name.startswith("VK_")]
        if strange:
            raise pytest.UsageError(
                f"{item.nodeid}: no feature {strange[0]!r} but extensions and {', '.join(sorted(known))}"
            )
        return cls(**given)

    def lacking(self, info: DeviceInfo) -> str:
        """Say what a device lacks; empty where it has all."""
        names = f"{info.name} {info.driver_name} {info.driver_info}".lower()
        if self.vendors and info.vendor.lower() not in {name.lower() for name in self.vendors}:
            return f"needs a device of {' or '.join(self.vendors)}"
        if self.drivers and not any(name.lower() in names for name in self.drivers):
            return f"needs the driver {' or '.join(self.drivers)}"
        missing = [
            name for name in self.features if not (name in info.extensions or getattr(info.features, name, False))
        ]
        return f"{label_of(info)} lacks {', '.join(missing)}" if missing else ""


class Rigs:
    """Opened devices by selector, shared by the whole run; those that a test has closed or lost are opened anew.

    Args:
        told: is given the devices of every call.
    """

    def __init__(self, told: Callable[[list[Device]], None]) -> None:
        self._told = told
        self._open: dict[str, list[Device]] = {}

    def __call__(self, selector: str) -> list[Device]:
        """Return the devices that a selector names."""
        devices = self._open.get(selector)
        if devices is None or not all(map(_usable, devices)):
            devices = self._open[selector] = open_devices(selector)
        self._told(devices)
        return devices

    def opened(self) -> list[Device]:
        """Return those that are open."""
        return [device for devices in self._open.values() for device in devices if not device.closed]

    def close(self) -> None:
        """Close them all."""
        for devices in self._open.values():
            for device in devices:
                device.close()


def _usable(device: Device) -> bool:
    with suppress(VkparError):
        device.logical.check_open()
        return True
    return False


class Session:
    """The devices of one run of pytest, and the hooks that a run with devices has.

    Attributes:
        rigs: opened devices by selector.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[DeviceInfo] | None = None
        self._missing = ""
        self.rigs = Rigs(self._used)
        self._item: pytest.Item | None = None
        self._worst: dict[str, float] = {}

    @property
    def infos(self) -> list[DeviceInfo]:
        """The physical devices that tests may run on; none where there is no driver.

        Raises:
            pytest.UsageError: ``--vkpar-devices`` names none, or a variable is wrong.
        """
        if self._found is None:
            try:
                named = select(self._config.getoption("--vkpar-devices") or "all", enumerate_devices())
                self._found = list({info.index: info for info in named}.values())
            except UnsupportedError as error:
                self._found, self._missing = [], f"no device of Vulkan: {error}"
            except InvalidUsageError as error:
                raise pytest.UsageError(str(error)) from error
        return self._found

    # ---- which devices ----

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that takes ``vk_device`` once on each device; those that lack what it needs show as skipped."""
        needs = Needs.of(metafunc.definition)
        if "vk_device" not in metafunc.fixturenames:
            return
        lacking = {info.index: self._lacking(info, needs) for info in self.infos}
        none = "" if any(not why for why in lacking.values()) else self._missing or next(iter(lacking.values()))
        if none and (self._config.getoption("--vkpar-strict") or not lacking):
            values = [pytest.param(none, id="none")]
        else:
            values = [
                pytest.param(info.index, id=label_of(info), marks=[pytest.mark.skip(reason=why)] if why else [])
                for info, why in zip(self.infos, lacking.values(), strict=True)
            ]
        metafunc.parametrize("vk_device", values, indirect=True, scope="session")

    def _lacking(self, info: DeviceInfo, needs: Needs) -> str:
        return needs.lacking(info) or self._too_few(needs)

    def _too_few(self, needs: Needs) -> str:
        good = [info for info in self.infos if not needs.lacking(info)]
        if len(good) >= needs.min_devices:
            return ""
        if self._missing:
            return self._missing
        why = next((needs.lacking(info) for info in self.infos if needs.lacking(info)), "")
        return f"needs {needs.min_devices} physical devices, and {len(good)} serve" + (f": {why}" if why else "")

    def device(self, chosen: int | str | None) -> Device:
        """Return the device of an index; text says why there is none."""
        if isinstance(chosen, str):
            self._refuse(chosen)
        if not isinstance(chosen, int):
            pytest.fail("vk_device is asked for as an argument of the test or of a fixture, not by getfixturevalue")
        return self.rigs(str(chosen))[0]

    def _refuse(self, why: str) -> None:
        if self._config.getoption("--vkpar-strict"):
            pytest.fail(f"{why} (--vkpar-strict)", pytrace=False)
        pytest.skip(why)

    def rig_of(self, item: pytest.Item) -> Callable[[int], list[Device]]:
        """Return the function that the fixture ``vk_rig`` is."""
        needs = Needs.of(item)
        if why := self._too_few(needs):
            self._refuse(why)
        good = [info for info in self.infos if not needs.lacking(info)]

        def rig(n: int) -> list[Device]:
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise InvalidUsageError(f"vk_rig takes a number of devices from 1 up, not {n!r}")
            chosen = [good[rank % len(good)] for rank in range(n)]
            return self.rigs("&".join(str(info.index) for info in chosen))

        return rig

    # ---- hooks ----

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        """Name the devices and their drivers."""
        return [f"vkpar: {_line(info)}" for info in self.infos] if items and self._found else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note which device a test runs on, and have its guarded arrays remembered."""
        self._item, guard.made, compare.on_measured = item, [], self._measured
        self._worst.clear()
        index = _index_of(item)
        _note(item, [info for info in self._found or () if info.index == index])
        if item.get_closest_marker("vkpar") and "vk_device" not in getattr(item, "fixturenames", ()):
            why = self._too_few(Needs.of(item))
            if why:
                self._refuse(why)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check, after a test, what it left: guard words, and what the validation layer said."""
        try:
            with self._limited(item):
                result = yield
                _check_guards()
                if _named(item):
                    instance.raise_messages()
            return result
        finally:
            for device, worst in self._worst.items():
                item.user_properties.append(("vkpar_ulp", f"{worst:.6g} {device}"))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        """Let go of what the test made."""
        self._item = guard.made = compare.on_measured = None

    def pytest_unconfigure(self) -> None:
        """Close the devices."""
        self.rigs.close()

    def _used(self, devices: list[Device]) -> None:
        if self._item is not None:
            _note(self._item, [device.info for device in devices])

    def _measured(self, array: Array | None, worst: float) -> None:
        if array is not None:
            device = _line(array.device.info)
        else:
            used = (
                [str(value) for name, value in self._item.user_properties if name == "vkpar_device"]
                if self._item
                else []
            )
            device = used[0] if len(used) == 1 else ""
        if device:
            self._worst[device] = max(worst, self._worst.get(device, 0.0))

    @contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        """End a test that takes too long, and say which device it ran on and what that was waiting for."""
        seconds = float(self._config.getoption("--vkpar-timeout"))
        if not seconds:
            yield
            return
        limit = _Limit(seconds, item)
        place = ""
        try:
            try:
                yield
            finally:
                limit.over()
        except KeyboardInterrupt as error:
            if not limit.fired:
                raise
            place = _place(error, item)
        if limit.fired:
            said = f"timed out after {seconds:g} s on {_named(item)}{place}\n{self._pending()}"
            pytest.fail(said, pytrace=False)

    def _pending(self) -> str:
        """Say of each opened device how far its queues are."""
        lines = []
        for device in self.rigs.opened():
            for queue in device.logical.queues if _usable(device) else ():
                state = "idle" if queue.reached >= queue.last else "WAITS"
                lines.append(f"  {device}: {queue.label} queue {state}, at {queue.reached} of {queue.last}")
        return "\n".join(sorted(lines))


class _Limit:
    """Interrupts the main thread once the time of a test is over that has used devices by then.

    vkpar's waits answer an interrupt within 100 ms. A thread inside a driver does not: after a while that is said.
    """

    def __init__(self, seconds: float, item: pytest.Item) -> None:
        self.fired = False
        self._item, self._seconds = item, seconds
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._main = threading.current_thread() is threading.main_thread()
        self._ignored = self._main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # by nohup's shell, for one
        if self._ignored:
            signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._watch, name="vkpar-timeout", daemon=True).start()

    def _watch(self) -> None:
        if self._over.wait(self._seconds):
            return
        with self._lock:
            if self._over.is_set() or not _named(self._item):
                return
            self.fired = True
            if self._main:
                _thread.interrupt_main()
        if not self._over.wait(_GRACE_SECONDS):
            what = f"{self._item.nodeid} on {_named(self._item)}"
            said = f"\nvkpar: {what} does not end after {self._seconds:g} s: a thread is inside the driver\n"
            sys.__stderr__.write(said) if sys.__stderr__ else None
            with suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]

    def over(self) -> None:
        """The time stops; an interrupt that was sent arrives in here."""
        with self._lock:
            self._over.set()
        try:
            if self.fired and self._main:
                time.sleep(0.01)
        finally:
            if self._ignored:
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: object) -> None:
        """Go on ignoring interrupts, but for the limit's own."""
        if self.fired:
            raise KeyboardInterrupt


def _named(item: pytest.Item) -> str:
    """Name the devices that a test has used so far."""
    return "; ".join(str(value) for name, value in item.user_properties if name == "vkpar_device")


def _check_guards() -> None:
    """Fail where a guarded array of the test that has ended was written around."""
    found = [_broken(array) for array in guard.made or () if not array.closed and not array.device.closed]
    if any(found):
        pytest.fail("\n".join(filter(None, found)), pytrace=False)


def _broken(array: guard.Guarded) -> str:
    try:
        array.check()
    except AssertionError as error:
        return str(error)
    return ""


def _place(error: BaseException, item: pytest.Item) -> str:
    """Say which line of the test's own file an exception passed last."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(item.path)]
    return f", at {item.path.name}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _index_of(item: pytest.Item) -> int | None:
    spec = getattr(item, "callspec", None)
    index = spec.params.get("vk_device") if spec else None
    return index if isinstance(index, int) else None


def _note(item: pytest.Item, infos: Collection[DeviceInfo]) -> None:
    """Write down which devices a test runs on: reports carry it, to xdist's controller and into JUnit files, too."""
    for line in dict.fromkeys(map(_line, infos)):
        if ("vkpar_device", line) not in item.user_properties:
            item.user_properties.append(("vkpar_device", line))
