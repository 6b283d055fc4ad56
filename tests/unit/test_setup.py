"""The set-up's steps: quiet where they work, the end of the log where they do not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "lib" / "setup.sh"
STUBS = """
VENV=env
mkdir -p env/bin vkpar/vulkan/pump fake
cat >env/bin/python <<'END'
#!/bin/sh
[ "$1" != -c ] || exec echo python3.9-dev
[ -e compiler ] || { echo it needs a compiler; exit 1; }
END
cat >fake/apt-get <<'END'
#!/bin/sh
echo many words of apt
[ "$*" = "-q update" ] || INSTALL
END
printf '#!/bin/sh\\nexit 0\\n' >fake/apt-cache
chmod +x env/bin/python fake/*
as_root() { "$@"; }
PATH=$PWD/fake:$PATH
setup_toolchain
"""


def bash(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    script = f"set -euo pipefail\nsource {SETUP}\n{code}"
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_step_that_works_says_nothing(tmp_path: Path) -> None:
    done = bash(tmp_path, "logged sh -c 'echo WARNING: no such location; echo two >&2'")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    log = (tmp_path / ".cache" / "setup.log").read_text()
    assert "$ sh -c" in log
    assert "WARNING: no such location\ntwo\n" in log


def test_a_step_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    done = bash(tmp_path, "logged sh -c 'seq 100; echo why >&2; exit 3' || die 'the step failed'\necho 'not reached'")
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert "setup.log" in lines[0]
    assert lines[-3:] == ["100", "why", "error: the step failed"]
    assert len(lines) < 30
    assert "\n1\n" in (tmp_path / ".cache" / "setup.log").read_text()


@pytest.mark.parametrize(
    ("installs", "status", "words"), [(": >compiler", 0, "there"), (":", 1, "error: it needs a compiler")]
)
def test_the_toolchain_is_installed_where_it_is_missing(tmp_path: Path, installs: str, status: int, words: str) -> None:
    done = bash(tmp_path, STUBS.replace("INSTALL", installs))
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert words in said.splitlines()[-1]
    assert "apt: installing gcc libc6-dev python3.9-dev" in said
    assert "many words" not in said


def test_without_apt_the_packages_are_named(tmp_path: Path) -> None:
    code = 'have() { [ "$1" != apt-get ] && command -v "$1"; }\n' + STUBS
    done = bash(tmp_path, code)
    assert done.returncode == 1
    assert "install by hand" in done.stderr
    assert "gcc libc6-dev python3-dev" in done.stderr


MESA25 = """
mesa25_packaged() { true; }
mkdir -p fake made/usr/lib/x86_64-linux-gnu
touch made/usr/lib/x86_64-linux-gnu/libvulkan_{lvp,radeon,intel}.so
tar -c -C made . >package.tar
cat >fake/apt-get <<'END'
#!/bin/sh
echo "$*" >>"$ROOT/calls"
case "$*" in
    *indextargets*) echo http://mirror.example/packages/ ;;
    *download*) touch mesa-vulkan-drivers_25.deb; cp sources.list "$ROOT/sources.list" ;;
esac
END
printf '#!/bin/sh\\ncat "$ROOT/package.tar"\\n' >fake/dpkg-deb
chmod +x fake/*
as_root() { "$@"; }
export ROOT=$PWD PATH=$PWD/fake:$PATH
fetch_mesa25
fetch_mesa25
"""


def test_mesa_25_is_unpacked_and_not_installed(tmp_path: Path) -> None:
    done = bash(tmp_path, MESA25)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ".cache" / "mesa25"
    names = ("intel", "lvp", "radeon")
    files = [*(f"{name}_icd.json" for name in names), *(f"libvulkan_{name}.so" for name in names)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    named = json.loads((folder / "radeon_icd.json").read_text())["ICD"]["library_path"]
    assert (folder / named).exists()
    assert "http://mirror.example/packages/ bookworm-backports main" in (tmp_path / "sources.list").read_text()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if "install" in call.split()] == []
    assert len([call for call in calls if "download" in call]) == 1
    private = [call for call in calls if "Dir::Etc::sourcelist=" in call and "Dir::State::lists=" in call]
    assert len(private) == 2  # its update and its download


def test_mesa_25_that_cannot_be_had_is_a_failure(tmp_path: Path) -> None:
    done = bash(tmp_path, MESA25.replace("*download*)", "*download*) exit 100;;\n    never)"))
    assert done.returncode == 1
    assert "error: apt-get download mesa-vulkan-drivers failed" in done.stderr
    assert not (tmp_path / ".cache" / "mesa25").exists()


FETCHED = MESA25[: MESA25.index("fetch_mesa25")]


@pytest.mark.parametrize(("what", "folder"), [("stubs", "stubs"), ("mesa26", "mesa26")])
def test_what_cannot_be_had_is_a_failure_with_its_reason(tmp_path: Path, what: str, folder: str) -> None:
    (tmp_path / "tools" / "stubs").mkdir(parents=True)
    (tmp_path / "tools" / "stubs" / "build.sh").touch()
    code = FETCHED.replace("esac", 'esac\n[ "$*" = -q\\ update ] || case "$*" in *update) exit 100;; esac')
    done = bash(tmp_path, code + f"fetch_{what}")
    assert done.returncode == 1
    assert "failed (is there a network?)" in done.stderr
    assert not (tmp_path / ".cache" / folder).exists()


def test_stubs_are_built_anew_where_their_source_changed(tmp_path: Path) -> None:
    (tmp_path / "tools" / "stubs").mkdir(parents=True)
    (tmp_path / "tools" / "stubs" / "build.sh").write_text("one")
    code = "mkdir -p .cache/stubs; stubs_key >.cache/stubs/key; have_stubs && echo there; echo >>tools/stubs/build.sh"
    done = bash(tmp_path, f"{code}; have_stubs || echo old")
    assert done.stdout == "there\nold\n", done.stderr
