"""Files that outlive the process: only those that nobody else could have written; and SPIR-V that is made once."""

from __future__ import annotations

import logging
import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vkpar import cachedir
from vkpar.parallel.rates import cache
from vkpar.vulkan.pipelines import compiled, shader

SOURCE = "#version 450\nvoid main() {}\n"


@pytest.fixture
def folder(tmp_path: Path, settings_override: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that is not there yet, and nothing kept in the process."""
    settings_override(cache_dir=str(tmp_path / "a" / "cache"))
    monkeypatch.setattr(compiled, "_modules", {})
    monkeypatch.setattr(cachedir, "_refused", set())
    return tmp_path / "a" / "cache"


class Compiler:
    """Counts its calls."""

    def __init__(self, made: bytes = b"spirv") -> None:
        self.calls = 0
        self._made = made

    def __call__(self) -> bytes:
        self.calls += 1
        return self._made


def forget() -> None:
    """Act as a new process does."""
    compiled._modules.clear()


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


# --- the folder ---


def test_a_file_is_read_as_it_was_written(folder: Path) -> None:
    assert cachedir.read("one") is None
    assert not folder.exists()
    assert cachedir.write("one", b"first") == folder / "one"
    assert cachedir.write("one", b"second") == folder / "one"
    assert cachedir.read("one") == b"second"
    assert cachedir.read("two") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only(folder).stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cachedir.write("one", b"first")

    def fails(*given: Any, **how: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no room"):
        cachedir.write("one", b"second")
    assert only(folder).read_bytes() == b"first"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_one_warning(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    cachedir.write("one", b"first")
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert cachedir.read("one") is None
        assert cachedir.write("two", b"second") is None
        cachedir.prune("o", 0)
    (record,) = caplog.records
    assert str(folder) in record.getMessage()
    assert "VKPAR_CACHE_DIR" in record.getMessage()
    assert only(folder).read_bytes() == b"first"
    folder.chmod(0o700)
    assert cachedir.read("one") == b"first"


def test_a_folder_or_a_file_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cachedir.write("one", b"first")
    if os.geteuid() == 0:
        os.chown(folder / "one", 12345, -1)
        assert cachedir.read("one") is None
        os.chown(folder / "one", 0, -1)
        os.chown(folder, 12345, -1)
    else:
        real = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert cachedir.read("one") is None
    assert "another user" in caplog.text


def test_a_file_that_others_can_write_is_not_read(folder: Path) -> None:
    cachedir.write("one", b"first")
    (folder / "one").chmod(0o666)
    assert cachedir.read("one") is None


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    cachedir.write("one", b"first")
    (tmp_path / "elsewhere").write_bytes(b"other")
    (folder / "two").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        cachedir.read("two")


def giant(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(20 << 30)  # nothing of it lies on the disk


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        one.bind("s")  # a socket's path is short
    path.with_name("s").rename(path)


NO_FILES = {"pipe": os.mkfifo, "giant": giant, "folder": os.mkdir, "socket": socket_at}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(60)
def test_what_is_no_file_of_the_cache_is_neither_waited_for_nor_read(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cachedir.write("one", b"first") is not None
    (folder / "one").unlink()
    NO_FILES[kind](folder / "one")
    (folder / "one").chmod(0o700)
    tracemalloc.start()
    with pytest.raises(OSError, match=r"regular file|more than|directory|No such device"):
        cachedir.read("one")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert cachedir.names("one") == ["one"]
    if kind != "folder":
        cachedir.write("one", b"second")
        assert cachedir.read("one") == b"second"


def test_a_file_is_kept_as_long_as_it_would_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachedir, "_MOST", 8)
    cachedir.write("one", b"12345678")
    assert cachedir.read("one") == b"12345678"
    with pytest.raises(OSError, match="9 bytes are more than the 8"):
        cachedir.write("one", b"123456789")
    assert only(folder).read_bytes() == b"12345678"
    only(folder).write_bytes(b"123456789")
    with pytest.raises(OSError, match="more than 8 bytes"):
        cachedir.read("one")


@pytest.mark.timeout(60)
def test_a_cache_folder_that_is_a_pipe_is_none(
    tmp_path: Path, folder: Path, settings_override: Callable[..., None]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    settings_override(cache_dir=str(tmp_path / "pipe"))
    for call in (lambda: cachedir.read("one"), lambda: cachedir.write("one", b""), lambda: cachedir.names("o")):
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            call()


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(60)
def test_every_reader_of_the_cache_goes_on_without_what_is_no_file(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, settings_override: Callable[..., None]
) -> None:
    """Rates, those of matrix cores, kernels; for the tunings of rigs see tests/rig/test_tuning.py."""
    about = {"a": 1}
    settings_override(cache_dir=str(folder), tuning="auto")
    monkeypatch.setattr(cache, "_found", {})
    assert cache.number("rate", about, lambda: 2.0, 1.0, 3.0) == 2.0
    assert compiled.kept("glslc 1", SOURCE, {}, Compiler(b"one")) == b"one"
    files = list(folder.iterdir())
    assert len(files) == 2
    for file in files:
        file.unlink()
        NO_FILES[kind](file)
        file.chmod(0o700)
    forget()
    cache.forget()
    assert [cachedir.document(file.name, dict) for file in files] == [None, None]
    assert cache.number("rate", about, lambda: 2.5, 1.0, 3.0) == 2.5
    assert compiled.earlier(SOURCE, {}) is None
    assert compiled.kept("glslc 1", SOURCE, {}, Compiler(b"two")) == b"two"
    forget()
    cache.forget()
    if kind != "folder":  # what was made anew lies there now
        assert cache.number("rate", about, lambda: 3.0, 1.0, 3.0) == 2.5
        assert compiled.earlier(SOURCE, {}) == b"two"


def test_the_oldest_files_go(folder: Path) -> None:
    for number in range(12):
        cachedir.write(f"x-{number}", b"")
        os.utime(folder / f"x-{number}", (number, number))
    cachedir.write("other", b"")
    cachedir.prune("x-", 12)
    assert len(list(folder.iterdir())) == 13
    cachedir.prune("x-", 8)
    assert {file.name for file in folder.iterdir()} == {"other", *(f"x-{number}" for number in range(6, 12))}


# --- compiled kernels ---


def test_a_kernel_is_compiled_once_in_a_process_and_once_on_a_machine(folder: Path) -> None:
    make = Compiler()
    for _ in range(3):
        assert compiled.kept("glslc 1", SOURCE, {"A": "1"}, make) == b"spirv"
    forget()
    assert compiled.kept("glslc 1", SOURCE, {"A": "1"}, make) == b"spirv"
    assert make.calls == 1
    assert only(folder).name.startswith("spirv-")


@pytest.mark.parametrize(
    ("compiler", "source", "defines"),
    [
        ("glslc 2", SOURCE, {"A": "1", "B": "2"}),
        ("glslc 1", SOURCE + "\n", {"A": "1", "B": "2"}),
        ("glslc 1", SOURCE, {"A": "1"}),
        ("glslc 1", SOURCE, {"A": "2", "B": "1"}),
        ("glslc 1", SOURCE, {}),
    ],
)
def test_all_that_matters_tells_kernels_apart(
    folder: Path, compiler: str, source: str, defines: dict[str, str]
) -> None:
    first, second = Compiler(b"one"), Compiler(b"two")
    compiled.kept("glslc 1", SOURCE, {"A": "1", "B": "2"}, first)
    assert compiled.kept("glslc 1", SOURCE, {"B": "2", "A": "1"}, second) == b"one"
    assert compiled.kept(compiler, source, defines, second) == b"two"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"another format\n" + data[15:],
        lambda data: b"SPIR-V",
    ],
)
def test_a_damaged_file_is_made_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    make = Compiler()
    compiled.kept("glslc 1", SOURCE, {}, make)
    whole = only(folder).read_bytes()
    only(folder).write_bytes(damage(whole))
    forget()
    assert compiled.kept("glslc 1", SOURCE, {}, make) == b"spirv"
    assert make.calls == 2
    assert only(folder).read_bytes() == whole


def test_the_file_of_another_kernel_is_not_believed(folder: Path) -> None:
    compiled.kept("glslc 1", SOURCE, {}, Compiler(b"one"))
    data, name = only(folder).read_bytes(), only(folder).name
    compiled.kept("glslc 1", SOURCE, {"A": "1"}, Compiler(b"two"))
    (other,) = (file for file in folder.iterdir() if file.name != name)
    other.write_bytes(data)
    forget()
    assert compiled.kept("glslc 1", SOURCE, {"A": "1"}, Compiler(b"two")) == b"two"


def test_nothing_is_kept_where_a_change_would_not_be_seen(folder: Path) -> None:
    make = Compiler()
    for _ in range(2):
        compiled.kept("", SOURCE, {}, make)
        compiled.kept("glslc 1", '#include "/tmp/other.glsl"\n' + SOURCE, {}, make)
    assert make.calls == 4
    assert not folder.exists()


def test_what_any_compiler_made_is_found_without_one(folder: Path) -> None:
    assert compiled.earlier(SOURCE, {}) is None
    for number, version in enumerate((b"one", b"two", b"three")):
        compiled.kept(f"glslc {number}", SOURCE, {"A": "1"}, Compiler(version))
    compiled.kept("glslc 1", SOURCE, {}, Compiler(b"other"))
    assert compiled.earlier(SOURCE, {"A": "1"}) == b"three"
    forget()
    for age, file in enumerate(sorted(folder.iterdir(), key=lambda file: b"two" in file.read_bytes())):
        os.utime(file, (age, age))
    assert compiled.earlier(SOURCE, {"A": "1"}) == b"two"
    assert compiled.earlier(SOURCE, {}) == b"other"
    assert compiled.earlier(SOURCE, {"A": "2"}) is None
    assert compiled.earlier('#include "/tmp/other.glsl"\n' + SOURCE, {}) is None
    forget()
    (newest,) = (file for file in folder.iterdir() if file.read_bytes().endswith(b"two"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert compiled.earlier(SOURCE, {"A": "1"}) in (b"one", b"three")
    forget()
    folder.chmod(0o777)
    assert compiled.earlier(SOURCE, {}) is None


def test_kernels_are_made_where_nothing_can_be_kept(
    folder: Path, tmp_path: Path, settings_override: Callable[..., None]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    settings_override(cache_dir=str(tmp_path / "file"))
    assert compiled.kept("glslc 1", SOURCE, {}, Compiler()) == b"spirv"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    settings_override(cache_dir=str(folder))
    forget()
    assert compiled.kept("glslc 1", SOURCE, {}, Compiler()) == b"spirv"
    assert not list(folder.iterdir())


def test_the_process_keeps_no_more_than_so_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_MOST_KEPT", 3)
    for number in range(5):
        compiled.kept("glslc 1", SOURCE, {"A": str(number)}, Compiler())
    assert len(compiled._modules) == 3


def test_the_compiler_runs_once(folder: Path, compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real one: what comes from the file is what it made, and an error is never kept."""
    text = "#version 450\nlayout(local_size_x = SIZE) in;\nvoid main() {}\n"
    made = shader.compile_glsl(text, {"SIZE": "8"})
    forget()

    def never(*given: Any, **how: Any) -> None:
        raise AssertionError("the compiler ran")

    monkeypatch.setattr(shader, "_compile_with_tool", never)
    monkeypatch.setattr(shader, "_compile_with_shaderc", never)
    assert shader.compile_glsl(text, {"SIZE": "8"}) == made
    with pytest.raises(AssertionError, match="ran"):
        shader.compile_glsl(text, {"SIZE": "4"})
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(shader.ShaderCompileError):
            shader.compile_glsl(text)


def test_another_version_of_a_compiler_is_another_compiler(tmp_path: Path) -> None:
    tool = tmp_path / "glslc"
    seen = set()
    for version in ("1.0", "2.0", "2.0 "):
        tool.write_text(f"#!/bin/sh\necho {version!r}\n")
        tool.chmod(0o755)
        seen.add(shader._tool_version(str(tool)))
    assert len(seen) == 3
    tool.write_text("#!/bin/sh\nexit 3\n")
    assert shader._tool_version(str(tool)) == ""
    assert shader._tool_version(str(tmp_path / "nothing")) == ""
