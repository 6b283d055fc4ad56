"""pytest's way into vkpar: options, a marker, fixtures and the summary by device.

pytest imports this with every run of everybody who has vkpar installed. So it imports nothing of vkpar, let alone
Vulkan, before a test asks for one of the fixtures or has the marker; the work is done in ``vkpar.testing.plugin``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import vkpar
    from vkpar.testing.plugin import Session

_FIXTURES = frozenset({"vk_device", "vk_rig", "vk_comm"})
_MARKER = (
    "vkpar(min_devices=1, vendors=(), drivers=(), features=()): what a test needs of the devices that it runs on; it"
    " is skipped where that is missing"
)
_session: pytest.StashKey[Session] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("vkpar", "devices of Vulkan (vkpar)")
    group.addoption(
        "--vkpar-devices", metavar="SEL", help="run tests on the devices that this selector names (all by default)"
    )
    group.addoption(
        "--vkpar-strict",
        action="store_true",
        help="fail tests that find no device they can run on; else they are skipped",
    )
    group.addoption(
        "--vkpar-alignment",
        action="store_true",
        help="bind arrays at multiples of 256 bytes only, as the strictest devices do (VKPAR_DEBUG=alignment)",
    )
    group.addoption(
        "--vkpar-timeout",
        metavar="SECONDS",
        type=float,
        default=240.0,
        help="fail a test on devices that takes longer, and say which device it waits for (240; 0: never)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set what vkpar reads of the environment before anybody imports it, and leave its asserts as they are."""
    for finder in sys.meta_path:  # pytest would rewrite each module of whatever brings a plugin, which takes seconds
        getattr(finder, "_must_rewrite", set()).discard("vkpar")
    if early_config.known_args_namespace.vkpar_alignment:
        os.environ["VKPAR_DEBUG"] = ",".join(filter(None, [os.environ.get("VKPAR_DEBUG"), "alignment"]))


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", _MARKER)


def session_of(config: pytest.Config) -> Session:
    """Return what the run knows of devices, made where it is first asked for."""
    if _session not in config.stash:
        from vkpar.testing.plugin import Session

        config.stash[_session] = Session(config)
        config.pluginmanager.register(config.stash[_session], "vkpar.session")
    return config.stash[_session]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``vk_device`` once on each device."""
    if _FIXTURES & set(metafunc.fixturenames) or metafunc.definition.get_closest_marker("vkpar"):
        session_of(metafunc.config).parametrize(metafunc)


@pytest.fixture(scope="session")
def vk_device(request: pytest.FixtureRequest) -> vkpar.Device:
    """Each physical device in turn, opened once; ``--vkpar-devices`` and the marker ``vkpar`` choose among them."""
    return session_of(request.config).device(getattr(request, "param", None))


@pytest.fixture
def vk_rig(request: pytest.FixtureRequest) -> Callable[[int], list[vkpar.Device]]:
    """Give a function: ``vk_rig(n)`` is n devices, all physical ones in turn, then the same again as virtual ranks."""
    return session_of(request.config).rig_of(request.node)


@pytest.fixture
def vk_comm(vk_rig: Callable[[int], list[vkpar.Device]]) -> Iterator[Callable[..., vkpar.Communicator]]:
    """Give a function: ``vk_comm(n, **options)`` is a communicator over ``vk_rig(n)``, closed at the test's end."""
    from contextlib import ExitStack

    import vkpar

    with ExitStack() as stack:
        yield lambda n=2, **options: stack.enter_context(vkpar.Communicator(vk_rig(n), **options))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each device that tests ran on."""
    reports = [
        report
        for kind in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(kind, ())
        if getattr(report, "user_properties", None) and (report.when == "call" or report.failed)
    ]
    if any(name == "vkpar_device" for report in reports for name, _ in report.user_properties):
        from vkpar.testing.summary import lines_of

        terminalreporter.section("devices")
        for line in lines_of(reports):
            terminalreporter.line(line)
