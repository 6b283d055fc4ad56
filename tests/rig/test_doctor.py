"""``vkpar doctor``: all green on sound drivers, and every planted fault its own red line, with nothing hanging."""

from __future__ import annotations

import dataclasses
import grp
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import REQUIRED, has

from vkpar import env
from vkpar.cli import main as cli
from vkpar.doctor import children, drivers, links, machine, report, table
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.doctor.run import Visit
from vkpar.vulkan.machine import manifests

pytestmark = pytest.mark.rig

FAULTS = Path(__file__).parents[1] / "faults"


@pytest.fixture(autouse=True)
def _ordinary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the suite sets is nobody's rig: children read their own environment."""
    for name in ("VKPAR_VALIDATION", "VKPAR_TUNING", "VKPAR_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VKPAR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the machine and the drivers, and at one check of each further section."""
    kept = ("features", "import", "norms", "links")
    wanted = (*(check.name for check in table.CHECKS if check.section in (table.MACHINE, table.DRIVERS)), *kept)
    monkeypatch.setattr(table, "CHECKS", tuple(check for check in table.CHECKS if check.name in wanted))


def visit(selector: str | None = None) -> Visit:
    made = Visit(selector, quick=True)
    for _ in made.run(lambda check, subject: None):
        pass
    return made


def red(made: Visit) -> list[tuple[str, str, str, str]]:
    return [(f.check, f.subject, f.found, f.fix) for f in made.findings if f.state == FAILED]


def the_red(made: Visit) -> tuple[str, str, str, str]:
    """The only red line; all that the good drivers are asked is green."""
    failures = red(made)
    assert len(failures) == 1, failures
    return failures[0]


def both_looked_at(made: Visit) -> bool:
    return [f.state for f in made.findings if f.check == "norms"] == [OK, OK]


@pytest.fixture
def two() -> None:
    if not (has("llvmpipe") and has("swiftshader")):
        pytest.skip("needs both CPU drivers")


# ---- all is well ----


def test_all_green(two: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, suite = tmp_path / "page.html", tmp_path / "suite.xml"
    assert cli.main(["doctor", "--quick", "--json", "--html", str(page), "--junit", str(suite)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["ok"]
    checks = made["checks"]
    of = {name: [check for check in checks if check["check"] == name] for name in table.BY_NAME}
    assert all(found for name, found in of.items() if table.BY_NAME[name].section != table.PROCESSES)
    kernels = [check.name for check in table.of(table.KERNELS)]
    assert all([check["state"] for check in of[name]] == [OK, OK] for name in kernels)
    assert all(check["state"] == OK for name in links.ALGORITHMS for check in of[f"all_reduce {name}"])
    assert {check["data"]["transport"] for name in links.ALGORITHMS for check in of[f"all_reduce {name}"]} == {
        "staged",
        "mapped",
    }
    found = ET.parse(suite).getroot()
    assert (int(found.get("tests", 0)), found.get("failures")) == (len(checks), "0")
    text = page.read_text()
    _check_page(text)
    for device in made["devices"]:
        assert device["name"] in text


def _check_page(text: str) -> None:
    """Every tag is closed, nothing is loaded from elsewhere."""
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "br", "p"):
                open_tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            """One that closes itself."""

        def handle_endtag(self, tag: str) -> None:
            if tag != "p":
                assert open_tags.pop() == tag

    Reader().feed(text)
    assert not open_tags


def test_nothing_private_is_in_what_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "jane"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("getpass.getuser", lambda: "jane_doe")
    monkeypatch.setattr("socket.gethostname", lambda: "janes-box")
    monkeypatch.setenv("VKPAR_CACHE_DIR", f"{home}/cache")
    monkeypatch.setattr(table, "CHECKS", tuple(check for check in table.CHECKS if check.section != table.KERNELS))
    told = [
        Finding("cache", "", FAILED, f"{home}/cache of jane_doe on janes-box, beside /home/joe/x", "ask jane_doe"),
        Finding("memory", "0 card", OK, "right", section=table.DEVICES),
    ]
    monkeypatch.setattr(Visit, "_run", lambda self, announce: iter(told))
    page, suite = tmp_path / "page.html", tmp_path / "suite.xml"
    assert cli.main(["doctor", "--json", "--html", str(page), "--junit", str(suite)]) == 1
    for text in (page.read_text(), suite.read_text(), capsys.readouterr().out):
        assert "~/cache of USER on HOST, beside ~/x" in text
        assert not any(word in text for word in (str(home), "jane_doe", "janes-box", "joe"))


# ---- faults of drivers ----


def _manifest(path: Path, library: str) -> Path:
    driver = {"library_path": library, "api_version": "1.3.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    return path


def _built(folder: Path, mode: int) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        (pytest.fail if REQUIRED else pytest.skip)("the driver of no use is built by a C compiler, which is not here")
    library = folder / "libuseless.so"
    command = [compiler, "-shared", "-fPIC", "-O1", f"-DMODE={mode}", str(FAULTS / "driver.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    return _manifest(folder / "useless.json", str(library))


def _nowhere(folder: Path) -> Path:
    return folder / "none.json"


def _torn(folder: Path) -> Path:
    path = folder / "torn.json"
    path.write_text('{"file_format_version": "1.0.0", "ICD": {')
    return path


def _folder(folder: Path) -> Path:
    """A folder that has a manifest's name; one in its place would be looked through, as the loader does."""
    path = folder / "drivers" / "odd.json"
    path.mkdir(parents=True)
    return path.parent


def _lost_library(folder: Path) -> Path:
    return _manifest(folder / "lost.json", str(folder / "none.so"))


PLANTED: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "points nowhere": (_nowhere, "it does not exist", "correct VK_ADD_DRIVER_FILES"),
    "does not parse": (_torn, "it is damaged: it is no JSON", "or take it out of VK_ADD_DRIVER_FILES"),
    "is a folder": (_folder, "it is no file", "or take it out of VK_ADD_DRIVER_FILES"),
    "no library": (_lost_library, "it names a library that does not exist", "or take it out of VK_ADD_DRIVER_FILES"),
    "crashes on load": (lambda at: _built(at, 1), "crashed (SIGABRT) while its library is loaded", "update it"),
    "hangs on load": (lambda at: _built(at, 2), "hung while its library is loaded: not done after 6 s", "update it"),
    "no device": (lambda at: _built(at, 3), "it gives no device", "take it out of VK_ADD_DRIVER_FILES"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_driver_of_no_use_is_the_only_red_line(
    fault: str, two: None, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, found, fix = PLANTED[fault]
    path = plant(tmp_path)
    before = os.environ.get(manifests.ADDING, "")
    monkeypatch.setenv(manifests.ADDING, os.pathsep.join(filter(None, (str(path), before))))
    if "hangs" in fault:
        monkeypatch.setitem(table.BY_NAME, "driver", _within(table.BY_NAME["driver"], 6.0))
    made = visit()
    check, subject, why, advice = the_red(made)
    assert (check, subject) == ("driver", str(path / "odd.json" if path.is_dir() else path))
    assert why.startswith(found)
    assert fix in advice
    assert both_looked_at(made)


def _within(check: table.Check, limit: float) -> table.Check:
    return dataclasses.replace(check, limit=limit)


def test_a_folder_without_manifests(two: None, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "driver.json"
    path.mkdir()
    monkeypatch.setenv(manifests.ADDING, f"{path}:{os.environ.get(manifests.ADDING, '')}")
    made = visit()
    check, subject, why, advice = the_red(made)
    assert (check, subject, why) == (
        "variables",
        manifests.ADDING,
        f"VK_ADD_DRIVER_FILES names {path}, a folder without manifests",
    )
    assert advice == "name a driver's manifest, a file of JSON, in VK_ADD_DRIVER_FILES"
    assert both_looked_at(made)


def test_no_driver_is_let_in(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "")
    check, subject, why, advice = the_red(visit())
    assert (check, subject, advice) == ("variables", "VK_DRIVER_FILES", "unset VK_DRIVER_FILES")
    assert "is set and empty" in why


def test_no_driver_is_there(short: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*manifests.REPLACING, manifests.ADDING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(manifests, "_installed_paths", list)
    check, _, why, _ = the_red(visit())
    assert (check, why[:22]) == ("devices", "no Vulkan driver found")


def test_a_driver_that_is_left_out_is_no_fault(two: None, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_LOADER_DRIVERS_DISABLE", "*swiftshader*")
    made = visit()
    assert not red(made)
    left = [f.found for f in made.findings if f.check == "driver" and f.state == SKIPPED]
    assert any("left out by VK_LOADER_DRIVERS_DISABLE" in found for found in left)
    assert [f.subject for f in made.findings if f.check == "norms"] == ["0 " + made.devices[0]["name"]]


# ---- faults of devices ----


def test_import_of_host_memory_is_off(two: None, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKPAR_WITHOUT", "host_import")
    failures = red(visit())
    assert [check for check, *_ in failures] == ["import", "import"]  # of each device
    assert {advice for *_, advice in failures} == {"take host_import out of VKPAR_WITHOUT"}


SPOILED = """
import vkpar
right = vkpar.rms_norm
def wrong(x, *given, **named):
    made = right(x, *given, **named)
    if "llvmpipe" in x.device.name and x.shape == (33, 256):
        made[3, 5] = made[3, 5:6] + 1.0
    return made
vkpar.rms_norm = wrong
"""


def test_a_kernel_that_is_wrong_on_one_device(
    two: None, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _hook(SPOILED, monkeypatch)
    assert cli.main(["doctor", "--quick"]) == 1
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith("  FAILED")]
    assert len(lines) == 2  # told again at the end, with the device's name
    assert all("norms" in line for line in lines)
    assert "1 llvmpipe" in lines[1]
    assert "rms_norm of (33, 256) float32: 1 of 8448 elements are wrong, the first: [3, 5]" in lines[0]
    assert shown.index("device 1 llvmpipe") < shown.index("  FAILED") < shown.index("all devices together")
    assert "-> compute nothing with this device" in shown


def _hook(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every child run ``code`` before its checks."""
    before, after = children.CODE.split("from vkpar.doctor import worker\n")
    monkeypatch.setattr(children, "CODE", f"{before}from vkpar.doctor import worker\n{code}\n{after}")


def test_a_link_that_passes_on_wrong_data(two: None, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    _hook(LOSING, monkeypatch)
    check, subject, why, advice = the_red(visit())
    assert (check, subject) == ("links", "rank 1")
    assert why.startswith("what it sends arrives wrong at rank 0: to 0 bridged")
    assert "update their drivers" in advice


LOSING = """
from vkpar.doctor import links
right = links._arrives
links._arrives = lambda place, comm, src, dst, turn: right(place, comm, src, dst, turn) and (src, turn) != (1, 2)
"""
CRASHING = """
import os, vkpar
vkpar.rms_norm = lambda *given, **named: os.abort()
"""
SLOW = """
import time, vkpar
vkpar.rms_norm = lambda *given, **named: time.sleep(600)
"""


@pytest.mark.parametrize(("code", "how"), [(CRASHING, "crashed (SIGABRT) in "), (SLOW, "hung in ")])
def test_a_check_that_ends_its_process_is_reported_and_the_next_one_runs(
    code: str, how: str, two: None, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hook(code, monkeypatch)
    monkeypatch.setitem(table.BY_NAME, "norms", _within(table.BY_NAME["norms"], 4.0))
    monkeypatch.setattr(table, "CHECKS", tuple(table.BY_NAME[check.name] for check in table.CHECKS))
    made = visit("llvmpipe")
    check, _, why, _ = the_red(made)
    assert check == "norms"
    assert how in why
    assert "layer_norm" in why  # what was done last
    assert [f.state for f in made.findings if f.check == "links"] == [OK, OK]


def test_a_driver_that_crashes_when_devices_are_closed_is_reported(
    two: None, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hook("if job['jobs'][0]['check'] == 'links':\n    import atexit\n    atexit.register(os.abort)\n", monkeypatch)
    check, subject, why, _ = the_red(visit())
    assert (check, subject, why) == ("links", "2 ranks", "crashed (SIGABRT) after it, while devices were closed")


def test_a_device_that_fails_again_and_again_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _hook(
        "def gone(*given):\n    os._exit(7)\nworker.BY_NAME['cache'] = type('', (), {'run': gone, 'apart': False})\n",
        monkeypatch,
    )
    jobs = [children.Job("cache", "a card", 30.0) for _ in range(4)]
    found = list(children.Run(jobs, {}, os.environ).findings(lambda check, subject: None))
    assert [f.state for f in found] == [FAILED, FAILED, SKIPPED, SKIPPED]
    assert found[0].found.startswith("ended the process with status 7")


def test_a_selector_that_matches_nothing(short: None) -> None:
    check, _, why, _ = the_red(visit("voodoo"))
    assert (check, "no device matches 'voodoo'" in why) == ("devices", True)


# ---- faults of the machine, in this process ----


def found_by(check: Callable[[Any], Iterator[Finding]]) -> Finding:
    (finding,) = check(None)
    return finding


def test_a_misspelt_variable(short: None, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKPAR_WIRES", "f32")
    check, subject, why, advice = the_red(visit("llvmpipe"))
    assert (check, subject, advice) == ("variables", "VKPAR_WIRES", "did you mean VKPAR_WIRE?")
    assert "has no effect" in why


def test_a_variable_with_a_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKPAR_LINK", "fast")
    monkeypatch.setattr(env, "_current", None)
    finding = found_by(machine.variables)
    assert (finding.state, "VKPAR_LINK='fast'" in finding.found) == (FAILED, True)


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user reaches, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


NOBODY = 65534


def _look_as_nobody(monkeypatch: pytest.MonkeyPatch, folder: Path, more: str = "") -> None:
    """Have the child that looks at the machine be a user without rights; root may open everything."""
    if os.getuid():
        pytest.skip("only root can become another user")
    own = folder / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    monkeypatch.setenv("VKPAR_CACHE_DIR", str(own / "cache"))
    monkeypatch.setenv("LOGNAME", "jane")
    become = f"os.setgroups([]), os.setresgid(*3 * ({NOBODY},)), os.setresuid(*3 * ({NOBODY},))"
    ahead = "import ctypes.util"  # Python's own folder may be closed to other users
    _hook(f"{ahead}\nif job['jobs'][0]['check'] == 'loader':\n    {become}\n    {more}\n", monkeypatch)


@pytest.mark.parametrize(
    ("mode", "fix"),
    [
        (0o660, "sudo usermod -aG {group} jane, then log in again; in a container: --group-add {number}"),
        (0o600, "let its group open it: sudo chmod g+rw {node}, or see the udev rules of the driver"),
    ],
)
def test_a_render_node_without_permission(
    mode: int, fix: str, two: None, short: None, monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    node, group = open_folder / "dri" / "renderD128", grp.getgrall()[-1]
    node.parent.mkdir()
    node.touch()
    os.chown(node, 0 if not os.getuid() else -1, group.gr_gid if not os.getuid() else -1)
    node.chmod(mode)
    move = f"from pathlib import Path; from vkpar.doctor import machine; machine.DEV = Path('{open_folder}')"
    _look_as_nobody(monkeypatch, open_folder, move)
    check, subject, why, advice = the_red(visit("llvmpipe"))
    assert (check, subject) == ("nodes", str(node))
    assert why == f"{node} may not be opened: mode {mode:o}, group {group.gr_name}"
    assert advice == fix.format(group=group.gr_name, number=group.gr_gid, node=node)


def test_a_render_node_that_its_driver_does_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVIDIA's computes through /dev/nvidia*."""
    node, folder = tmp_path / "dri" / "renderD128", tmp_path / "drm" / "renderD128" / "device"
    for made in (node.parent, folder, tmp_path / "nvidia"):
        made.mkdir(parents=True)
    node.touch()
    (folder / "driver").symlink_to(tmp_path / "nvidia")
    monkeypatch.setattr(machine, "DEV", tmp_path)
    monkeypatch.setattr(machine, "DRM", tmp_path / "drm")
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert found_by(machine.nodes).state == OK


def test_little_memory_may_be_locked(short: None, two: None) -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, before[1]))
    try:
        check, _, why, advice = the_red(visit("llvmpipe"))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
    assert (check, why.partition(" may")[0]) == ("memlock", "64 KiB")
    assert "ulimit -l unlimited" in advice


def test_a_cache_folder_that_cannot_be_written(short: None, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKPAR_CACHE_DIR", "/proc/vkpar")
    check, _, why, advice = the_red(visit("llvmpipe"))
    assert check == "cache"
    assert why.startswith("/proc/vkpar is not to be written: ")
    assert "VKPAR_CACHE_DIR" in advice


def test_a_cache_folder_of_another_user(
    short: None, two: None, monkeypatch: pytest.MonkeyPatch, open_folder: Path
) -> None:
    _look_as_nobody(monkeypatch, open_folder)
    monkeypatch.setenv("VKPAR_CACHE_DIR", str(open_folder))
    check, _, why, advice = the_red(visit("llvmpipe"))
    assert check == "cache"
    assert why.startswith(f"{open_folder} is not to be written: Permission denied; tunings and kernels are made anew")
    assert advice == f"make {open_folder} yours and writable (mode 700), or name another folder in VKPAR_CACHE_DIR"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "found", "fix"),
    [
        ("size=4k", "is full: No space left on device", "free some space, or name another folder in VKPAR_CACHE_DIR"),
        ("ro", "is not to be written: Read-only file system", "or name another folder in VKPAR_CACHE_DIR"),
    ],
)
def test_a_cache_folder_that_is_full_or_read_only(
    options: str, found: str, fix: str, short: None, two: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _mounted(tmp_path / "cache", options) as folder:
        if "ro" not in options:
            (folder / "all").write_bytes(bytes(4096))
        monkeypatch.setenv("VKPAR_CACHE_DIR", str(folder))
        check, _, why, advice = the_red(visit("llvmpipe"))
    assert check == "cache"
    assert why.startswith(f"{folder} {found}; ")
    assert advice.endswith(fix)


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_cache_folder_that_others_can_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with env.override(cache_dir=str(folder)):
        finding = found_by(machine.cache)
    assert (finding.state, "another user can write it" in finding.found) == (FAILED, True)


# ---- cards that no driver shows ----


def _card(root: Path, address: str, vendor: str, kernel: str = "", rendering: str = "") -> None:
    folder = root / "pci" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text("0x030000\n")
    if kernel:
        (root / kernel).mkdir(exist_ok=True)
        (folder / "driver").symlink_to(root / kernel)
    if rendering:
        (folder / "drm" / rendering).mkdir(parents=True)


@pytest.mark.parametrize(
    ("kernel", "rendering", "others", "state", "found", "fix"),
    [
        ("", "", False, FAILED, "no kernel driver has it, not amdgpu", "modprobe amdgpu"),
        ("vfio-pci", "", False, SKIPPED, "vfio-pci has it, not amdgpu", ""),
        (
            "amdgpu",
            "renderD99",
            False,
            FAILED,
            "there is no /dev/dri/renderD99",
            "docker run --device /dev/dri/renderD99",
        ),
        (
            "amdgpu",
            "renderD99",
            True,
            SKIPPED,
            "there is no /dev/dri/renderD99",
            "docker run --device /dev/dri/renderD99",
        ),
        ("amdgpu", "", True, FAILED, "no Vulkan driver shows it", "install mesa-vulkan-drivers (RADV)"),
    ],
)
def test_a_card_that_no_driver_shows(
    kernel: str,
    rendering: str,
    others: bool,
    state: str,
    found: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _card(tmp_path, "0000:03:00.0", "0x1002", kernel, rendering)
    _card(tmp_path, "0000:04:00.0", "0x10de", "nvidia")
    _card(tmp_path, "0000:05:00.0", "0x1234")  # of a virtual machine: no Vulkan
    monkeypatch.setattr(drivers, "PCI", tmp_path / "pci")
    (finding,) = drivers.cards(None, ["0000:04:00.0"], others)  # type: ignore[arg-type]
    assert (finding.subject, finding.state, finding.found) == ("AMD card 0000:03:00.0", state, found)
    assert finding.fix.endswith(fix)


# ---- what is printed ----


FINDINGS = [
    Finding("memlock", "", FAILED, "64 KiB may be locked " * 8, "ulimit -l unlimited " * 6, section=table.MACHINE),
    Finding("driver", "/usr/share/vulkan/icd.d/lvp.json", OK, "llvmpipe", section=table.DRIVERS),
    Finding("norms", "0 card", OK, "6 right", section=table.KERNELS),
    Finding("links", "rank 0", OK, "staged", section=table.RIG, data={"transport": "staged", "links": []}),
]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_lines_fit_the_terminal(width: int) -> None:
    lines = report.Lines(width)
    shown = [line for finding in FINDINGS for line, _ in lines.of(finding)]
    assert max(map(len, shown)) <= max(width, 54)  # words of 20 letters fit in any case
    assert [line for line in shown if line and not line.startswith(" ")] == [
        "machine",
        "drivers",
        "device 0 card",
        "all devices together",
    ]
    assert any(line.lstrip().startswith("-> ulimit") for line in shown)


def test_files_are_checked_before_anything_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Visit, "run", lambda self, announce: pytest.fail("it looks"))
    for option in ("--html", "--junit"):
        for file in (tmp_path, tmp_path / "none" / "page.html"):
            assert cli.main(["doctor", option, str(file)]) == 2
            assert "cannot be written" in capsys.readouterr().err


def test_a_row_of_the_table_of_rigs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = {"name": "Card | X", "driver": "radv Mesa 25"}
    told = [
        *(Finding("features", f"{n} Card", OK, "", data={"device": device}) for n in range(2)),
        Finding(
            "links", "rank 0", OK, "", data={"transport": "staged", "links": [{"dst": 1, "kind": "native", "ok": True}]}
        ),
    ]
    monkeypatch.setattr(Visit, "_run", lambda self, announce: iter(told))
    assert cli.main(["doctor", "--row"]) == 0
    cells = capsys.readouterr().out.strip().split(" | ")
    assert cells[0] == "| 2 x Card / X, radv Mesa 25"
    assert cells[2] == "native; staged"
    monkeypatch.setattr(Visit, "_run", lambda self, announce: iter([*told, Finding("memlock", "", FAILED, "64 KiB")]))
    assert cli.main(["doctor", "--row"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", ["SIGINT", "SIGKILL"])
def test_nothing_outlives_a_doctor_that_is_stopped(number: str, tmp_path: Path) -> None:
    """Even a driver that hangs while it is loaded."""
    path = _built(tmp_path, 2)
    environment = {**os.environ, "VK_DRIVER_FILES": str(path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "vkpar", "doctor"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as doctor:
        assert doctor.stdout is not None
        try:
            wait_until(lambda: _mapping(path.parent / "libuseless.so"), 60)
            doctor.send_signal(getattr(signal, number))
            doctor.wait(20)
            wait_until(lambda: not _mapping(path.parent / "libuseless.so"), 20)
        finally:
            doctor.kill()


def _mapping(library: Path) -> list[int]:
    """The processes that have loaded a library."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(library) in (folder / "maps").read_text():
                found.append(int(folder.name))
    return found


def wait_until(holds: Callable[[], Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
