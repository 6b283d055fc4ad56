"""Links: which way each goes and why, the self-test's child process, the file descriptor of a shared timeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.vulkan.infos import fake_info

from vkpar import UnsupportedError, VulkanError, env, timeouts
from vkpar.comm.rig import children, links
from vkpar.vulkan.machine.physical import DeviceInfo


class FakeTimeline:
    """A timeline that exports one end of a pipe and takes it, or refuses."""

    refuses = False

    def __init__(self, device: Any) -> None:
        self.closed = False
        self.exported, self.writer = -1, -1
        made.append(self)

    def export_fd(self) -> int:
        self.exported, self.writer = os.pipe()
        return self.exported

    def import_fd(self, fd: int) -> None:
        if self.refuses:
            raise VulkanError("VK_ERROR_INVALID_EXTERNAL_HANDLE", "vkImportSemaphoreFdKHR")

    def close(self) -> None:
        self.closed = True


made: list[FakeTimeline] = []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_descriptor_belongs_to_the_driver_that_took_it(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TimelineSemaphore", FakeTimeline)
    monkeypatch.setattr(FakeTimeline, "refuses", refuses)
    source: Any = SimpleNamespace(timeline=FakeTimeline(None))
    target: Any = SimpleNamespace(handle=None)
    if refuses:
        with pytest.raises(VulkanError, match="vkImportSemaphoreFdKHR"):
            links.share(source, target)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(source.timeline.exported)
    else:
        assert links.share(source, target) is made[-1]
        os.close(source.timeline.exported)
    assert made[-1].closed == refuses
    os.close(source.timeline.writer)


# ---- which way a link goes ----

SAYS_THE_PROOF = """
import json, sys
job = json.load(sys.stdin)
sys.path += job["path"]
from vkpar.comm.rig.children import proof
print("a driver prints something", proof(job["nonce"], [job["hops"] - job["hops"] // 2, job["hops"] // 2]))
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Have no self-test's result kept from one test to the next."""
    links._self_test.cache_clear()
    yield
    links._self_test.cache_clear()


def card(index: int = 0, *, shares: bool = True, **changes: Any) -> DeviceInfo:
    """Return one of several Intel cards, whose driver was never measured."""
    info = fake_info(index, **({"driver_id": 6, "driver_name": "Intel open-source Mesa driver"} | changes))
    return replace(info, features=replace(info.features, timeline_export=shares))


def decide(*cards: DeviceInfo) -> tuple[str, str]:
    """Return the kind and reason of the links between two cards, the same both ways."""
    there, back = links.plan(cards)
    assert (there.src, there.dst, back.src, back.dst) == (0, 1, 1, 0)
    assert (there.kind, there.reason) == (back.kind, back.reason)
    return there.kind, there.reason


def never(first: str, second: str) -> str:
    raise AssertionError("a self-test between devices that cannot share timelines may crash")


@pytest.mark.parametrize("link", ["auto", "try"])
@pytest.mark.parametrize(
    ("cards", "why"),
    [
        ((card(0, shares=False), card(1)), "Intel open-source Mesa driver does not share timelines"),
        ((card(0), card(1, shares=False)), "does not share timelines"),
        ((card(0), card(1, driver_uuid="another", driver_name="NVIDIA", driver_id=4)), "different drivers"),
    ],
)
def test_what_cannot_share_timelines_is_bridged_untried(
    cards: tuple[DeviceInfo, ...], why: str, link: str, monkeypatch: pytest.MonkeyPatch, settings_override: Any
) -> None:
    settings_override(link=link)
    monkeypatch.setattr(links, "_self_test", never)
    kind, reason = decide(*cards)
    assert kind == links.BRIDGED
    assert why in reason


def test_an_unknown_driver_is_bridged_untried_unless_asked(
    monkeypatch: pytest.MonkeyPatch, settings_override: Any
) -> None:
    settings_override(link="auto")
    monkeypatch.setattr(links, "_self_test", never)
    kind, reason = decide(card(0), card(1))
    assert kind == links.BRIDGED
    assert "not known" in reason
    assert "VKPAR_LINK=try" in reason
    assert decide(card(0), card(0)) == (links.NATIVE, "same device and driver")
    settings_override(link="native")
    with pytest.raises(UnsupportedError, match="VKPAR_LINK=try"):
        links.plan([card(0), card(1)])


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [("", links.NATIVE, "self-test passed (VKPAR_LINK=try)"), ("signal 11", links.BRIDGED, "failed: signal 11")],
)
def test_try_goes_the_way_that_the_self_test_found(
    problem: str,
    kind: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    settings_override: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings_override(link="try")
    tried: list[tuple[str, str]] = []
    monkeypatch.setattr(links, "_self_test", lambda *pair: tried.append(pair) or problem)
    with caplog.at_level("INFO", "vkpar"):
        found = decide(card(1), card(0))
    assert found[0] == kind
    assert words in found[1]
    assert tried == [(card(0).device_uuid, card(1).device_uuid)] * 2
    assert f"links 0-1 1-0 are {kind}: {found[1]}" in caplog.text


def test_a_measured_driver_takes_the_self_test_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_self_test", lambda *pair: "")
    with env.override(link="auto"):
        assert decide(fake_info(0), fake_info(1)) == (links.NATIVE, "NVIDIA proprietary driver, self-test passed")


def test_try_leaves_mapped_ranks_bridged(monkeypatch: pytest.MonkeyPatch, settings_override: Any) -> None:
    settings_override(link="try")
    monkeypatch.setattr(links, "_self_test", never)
    assert {link.kind for link in links.plan([card(0), card(1)], mapped=[1])} == {links.BRIDGED}


# ---- the child process of the self-test ----


def test_nothing_in_the_current_directory_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules there end the child with status 0 and leave a file; it passes neither by that nor runs them."""
    for name in ("dataclasses", "json", "hashlib", "sitecustomize", "usercustomize", "vkpar", "numpy"):
        (tmp_path / f"{name}.py").write_text("import sys\nopen('ran', 'w').close()\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    problem = links._self_test("no such device", "nor this")
    assert "KeyError: 'no such device'" in problem or "no Vulkan" in problem
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "without proof"),
        ("import sys; print(sys.stdin.read())", "without proof"),
        ("import os; os.abort()", "signal 6: it said nothing"),
        ("raise SystemExit('the driver refuses')", "status 1: the driver refuses"),
        (SAYS_THE_PROOF + "raise SystemExit(3)", "status 3"),
        ("import time; time.sleep(60)", "did not end within 0.5 s"),
    ],
)
def test_a_child_that_did_not_run_the_test_does_not_pass(
    code: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "_CHILD", code)
    if "sleep" in code:
        monkeypatch.setattr(timeouts, "LINK_TEST_SECONDS", 0.5)
    problem = links._self_test("first", "second")
    assert words in problem
    assert f"between first and second failed: {problem}" in caplog.text


def test_a_child_passes_by_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_CHILD", SAYS_THE_PROOF)
    assert links._self_test("first", "second") == ""


def test_without_an_interpreter_nothing_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert "could not be started" in links._self_test("first", "second")
