"""The C helper's build says in one line what it lacks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers.process.children import run_child

from vkpar.errors import UnsupportedError
from vkpar.vulkan.pump import build, native

PACKAGES = "apt install gcc libc6-dev python3-dev"


def test_here_it_lacks_nothing() -> None:
    assert build.missing() is None
    assert build.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("/nonexistent/cc -m64", "a C compiler (/nonexistent/cc is not there"),
        ("gcc -nostdinc", "the C library's headers"),
    ],
)
def test_it_lacks_a_compiler(
    compiler: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build.main(["--check"]) == build.main([]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(words in line and PACKAGES in line for line in said)


def test_it_lacks_the_headers_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    said = build.missing()
    assert said is not None
    assert f"the Python headers ({tmp_path / 'Python.h'} is not there)" in said
    assert "compiler" not in said
    assert PACKAGES in said


def test_what_is_missing_is_found_before_anything_is_installed() -> None:
    """The set-up runs the file itself, where there is neither vkpar nor cffi."""
    done = run_child(
        """
        import runpy, sys
        sys.modules["cffi"] = sys.modules["vkpar"] = None
        sys.argv = [sys.argv[1], "--check"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        """,
        str(Path(build.__file__)),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_helper_is_built_for_all_later_pythons() -> None:
    from vkpar.vulkan.pump import native

    suffix = ".abi3.so" if build.LIMITED_API else f".{sys.implementation.cache_tag}"
    assert suffix in str(native.helper().__file__)


def test_a_clone_that_hides_the_installed_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vkpar" / "vulkan" / "pump").mkdir(parents=True)
    (tmp_path / "vkpar" / "vulkan" / "pump" / "_pump.abi3.so").touch()
    mine = Path(native.__file__).parents[3]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(mine), str(tmp_path)])

    def lost(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(native.importlib, "import_module", lost)
    for change, why in (
        (lambda: monkeypatch.chdir(mine), "Python was started there"),
        (lambda: monkeypatch.chdir(tmp_path), "a script that lies beside it was started"),
        (lambda: monkeypatch.setenv("PYTHONPATH", str(mine)), "PYTHONPATH names its parent"),
    ):
        change()
        with pytest.raises(UnsupportedError, match=re.escape(f"the folder {mine}/vkpar, which was never built")) as got:
            native.helper.__wrapped__()
        assert f"installed in {tmp_path}, since {why}" in str(got.value)
    monkeypatch.setattr(sys, "path", [str(mine)])
    with pytest.raises(UnsupportedError, match=r"apt install gcc .* python -m vkpar.vulkan.pump.build"):
        native.helper.__wrapped__()
