"""Cards whose slots one process carries are no other process's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vkpar.comm.rig import choice
from vkpar.comm.rig.transports import peer
from vkpar.errors import UnsupportedError
from vkpar.vulkan.peer import claims
from vkpar.vulkan.peer.claims import claimed

_CHILD = """
from vkpar.errors import UnsupportedError
from vkpar.vulkan.peer import claims
if {inherits}:
    claims.inherit("a", "b")
try:
    with claims.claimed("a", "b"):
        print("claimed")
except UnsupportedError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def other(*, inherits: bool = False) -> str:
    """Return what another process says that claims both cards."""
    command = [sys.executable, "-c", _CHILD.format(inherits=inherits)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_one_process_has_a_card() -> None:
    assert other() == "claimed"
    with claimed("b"):
        with claimed("b", "c"):  # a second communicator of the process
            pass
        assert other() == "another process carries slots between cards, of which b is one"
    assert other() == "claimed"


def test_what_was_claimed_before_a_refusal_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _CHILD.format(inherits=False).replace('print("claimed")', 'print("has it", flush=True); input()'),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "has it\n"
    with pytest.raises(UnsupportedError, match="of which b is one"), claimed("c", "b"):
        pass
    holder.communicate("\n")
    with claimed("c", "b"):
        assert other() == "another process carries slots between cards, of which b is one"


def test_a_process_that_was_forked_meanwhile_keeps_no_card() -> None:
    read, write = os.pipe()
    with claimed("a"):
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
    try:
        assert other() == "claimed"
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_children_of_the_self_test_have_their_parents_cards() -> None:
    with claimed("a", "b"):
        assert other(inherits=True) == "claimed"


def test_a_folder_that_takes_no_file_is_no_refusal(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "vkpar-a.lock").symlink_to(folder / "elsewhere")
    with caplog.at_level("INFO", "vkpar"), claimed("a"):
        assert "other processes may use the streams of card a" in caplog.text
    assert not (folder / "elsewhere").exists()


def test_any_user_may_open_the_file_and_nobody_waits_at_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "vkpar-b.lock")
    before = os.umask(0o077)
    try:
        with claimed("a", "b"):
            assert (folder / "vkpar-a.lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_offered_cards_are_held_until_they_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = "another process carries slots between cards, of which a is one"
    infos: Any = [SimpleNamespace(device_uuid=uuid, driver_id=4) for uuid in ("b", "a")]
    opened: list[str] = []
    monkeypatch.setattr(peer, "reach", lambda _: (SimpleNamespace(alone=True), "CUDA"))
    monkeypatch.setattr(peer, "_self_test", lambda _: "")
    monkeypatch.setattr(choice, "Carriers", lambda *_: opened.append(other()))
    wanted = choice.Wanted(("auto", "auto"), copies=False, alone=True)
    devices: Any = [SimpleNamespace(info=info) for info in infos]
    choice.carriers(devices, wanted, None)  # type: ignore[arg-type]
    assert opened == [taken]
    assert peer.offer(infos)[1] == "CUDA, self-test passed"
    assert other() == "claimed"


def test_all_processes_take_cards_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(claims, "_claim", asked.append)
    monkeypatch.setattr(claims, "_release", lambda _: None)
    for uuids in ("ab", "ba"):
        with claimed(*uuids):
            pass
    assert asked == ["a", "b"] * 2
