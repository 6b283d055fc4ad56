"""Shared fixtures: devices and rigs are opened once, with the validation layer on, and every driver present is used.

``VKPAR_REQUIRE_DRIVERS`` names drivers whose absence fails the run; ``VKPAR_REQUIRE_VALIDATION=1`` does the same for
the validation layer. ``VKPAR_TEST_FULL=1`` runs whole products instead of a fixed-seed sample.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import vkpar
from pytest_vkpar import session_of
from vkpar import env
from vkpar.vulkan.pipelines import shader

FULL = os.environ.get("VKPAR_TEST_FULL") == "1"
REQUIRED = [name for name in os.environ.get("VKPAR_REQUIRE_DRIVERS", "").split(",") if name]

settings.register_profile(
    "sample", max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("full", max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("full" if FULL else "sample")

# Drivers that tests know by name: the selector part that opens them.
_USUAL = 5  # one case of so many runs by default of tests that need a device and have no sample of their own
KNOWN = ("llvmpipe", "swiftshader")


# Before anything reads the settings. pytest-xdist tells its workers how wide the terminal is, but they print to none.
os.environ.pop("COLUMNS", None)
os.environ.setdefault("VKPAR_VALIDATION", "1")
os.environ.setdefault("VKPAR_TUNING", "off")  # tests name what they run; those of the tuner turn it on


def _open_instance() -> list[vkpar.DeviceInfo]:
    """List the devices, with validation where the layer is there (or must be)."""
    try:
        return vkpar.enumerate_devices()
    except vkpar.UnsupportedError:
        if os.environ.get("VKPAR_REQUIRE_VALIDATION") == "1" or not env.get().validation:
            raise
    env._current = None
    os.environ["VKPAR_VALIDATION"] = "0"
    return vkpar.enumerate_devices()


_found: list[vkpar.DeviceInfo] | None = None


def found() -> list[vkpar.DeviceInfo]:
    """Return the physical devices, an empty list where there is no driver."""
    global _found
    if _found is None:
        try:
            _found = _open_instance()
        except vkpar.UnsupportedError:
            if REQUIRED:
                raise
            _found = []
    return _found


def names_of(info: vkpar.DeviceInfo) -> str:
    """Return the text that selector parts are looked for in."""
    return f"{info.name} {info.driver_name} {info.driver_info}".lower()


def has(driver: str) -> bool:
    """Say whether a driver is there; fail the run where it is required and is not."""
    there = any(driver in names_of(info) for info in found())
    if not there and driver in REQUIRED:
        pytest.fail(f"the driver {driver} is required (VKPAR_REQUIRE_DRIVERS) and missing")
    return there


def require(driver: str) -> None:
    """Skip the test where a driver that it needs is not there (fail where it is required)."""
    if not has(driver):
        pytest.skip(f"needs the driver {driver}")


class Rigs:
    """Opened devices by selector, shared by the whole run: the plugin's, of drivers that are there."""

    def __init__(self, shared: Callable[[str], list[vkpar.Device]]) -> None:
        self._shared = shared

    def __call__(self, selector: str) -> list[vkpar.Device]:
        for part in selector.lower().split("&"):
            name = part.split("*")[0]
            if name in KNOWN:
                require(name)
        return self._shared(selector)


@pytest.fixture(scope="session")
def rigs(pytestconfig: pytest.Config) -> Rigs:
    """Give ``rigs("llvmpipe*2&swiftshader")``: that rig's devices, opened once."""
    return Rigs(session_of(pytestconfig).rigs)


@pytest.fixture
def rig(rigs: Rigs) -> Iterator[Callable[..., vkpar.Communicator]]:
    """Give a function that opens a communicator on the devices that letters name; see ``reducing.devices_of``."""
    from helpers.ops.reducing import devices_of

    opened: list[vkpar.Communicator] = []

    def make(letters: str, **options: Any) -> vkpar.Communicator:
        opened.append(vkpar.Communicator(devices_of(rigs, letters), **options))
        return opened[-1]

    yield make
    for comm in opened:
        comm.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt here and in children, also where this process was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a sample does not have; a test always keeps a case on each driver.

    Tests that need no device run whole unless they are marked; of others one case in :data:`_USUAL` runs.
    """
    if FULL:
        return
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    seen: set[tuple[str, str]] = set()
    for item in items:
        mark = item.get_closest_marker("sampled")
        index = item.callspec.params.get("vk_device", "") if hasattr(item, "callspec") else ""
        driver = found()[int(index)].driver_name if str(index).isdigit() else ""
        name = item.nodeid.partition("[")[0], driver
        every = mark.args[0] if mark else 1 if "unit" in item.path.parts else _USUAL
        chosen = name not in seen or zlib.crc32(item.nodeid.encode()) % every == 0
        seen.add(name)
        (kept if chosen else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Before the plugin runs tests once per physical device: list these, and fail where a required one is missing."""
    if "vk_device" in metafunc.fixturenames:
        found()
        for driver in REQUIRED:
            has(driver)


@pytest.fixture(scope="session")
def device(vk_device: vkpar.Device) -> vkpar.Device:
    """One opened device of each driver in turn."""
    return vk_device


@pytest.fixture(params=["its own groups", "the other groups"])
def either(
    device: vkpar.Device, rigs: Rigs, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> vkpar.Device:
    """The device, and another one of its driver with the work-groups of a GPU on a CPU, and the other way round."""
    if request.param == "its own groups":
        return device
    reduce_cpu = importlib.import_module("vkpar.ops.reduce.cpu")
    monkeypatch.setattr(reduce_cpu, "on_cpu", lambda device: not device.info.is_cpu)
    return rigs(f"{device.info.index}*2")[1]


@pytest.fixture
def compiler() -> None:
    """Skip the test where there is nothing that compiles GLSL."""
    if shader.compiler() is None:
        pytest.skip("no GLSL compiler")


@pytest.fixture
def reopen(device: vkpar.Device) -> Iterator[Callable[..., vkpar.Device]]:
    """Give a function that opens the same physical device once more, under changed settings."""
    opened: list[vkpar.Device] = []

    def make(**settings: object) -> vkpar.Device:
        with env.override(**settings):
            opened.extend(vkpar.open_devices(str(device.info.index)))
        return opened[-1]

    yield make
    for item in opened:
        item.close()


@pytest.fixture(autouse=True)
def _no_validation_messages() -> Iterator[None]:
    """Fail a test during which the validation layer spoke."""
    yield
    if _found:
        from vkpar.vulkan.machine import instance

        instance.raise_messages()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's name."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def settings_override() -> Iterator[Callable[..., None]]:
    """Give a function that overrides ``VKPAR_*`` settings by field name until the test's end."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(env.override(**values))


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: each ``gc.collect()`` of a test would look through them."""
    gc.collect()
    gc.freeze()
