"""Which drivers the loader's variables ask for, and why they give no device; without a loader."""

from __future__ import annotations

import ctypes.util
import json
from pathlib import Path

import pytest

from vkpar.vulkan.machine import manifests

_VARIABLES = (*manifests.REPLACING, manifests.ADDING, *manifests.FILTERING, "VK_LAYER_PATH", "VK_ADD_LAYER_PATH")
_C = ctypes.util.find_library("c") or "libc.so.6"
GOOD = {"file_format_version": "1.0.0", "ICD": {"library_path": _C, "api_version": "1.3.0"}}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is named or installed, and the C library passes for a driver."""
    _clear(monkeypatch, tmp_path)
    monkeypatch.setattr(manifests, "_ENTRIES", ("malloc",))


def _clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


def _file(path: Path, text: str | None = None, **driver: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(GOOD | {"ICD": GOOD["ICD"] | driver}) if text is None else text)  # type: ignore[operator]
    return path


def _warnings(gives: str = "") -> list[str]:
    return list(manifests.without_device(lambda library: gives))


FAULTS = {
    "{": "is damaged: it is no JSON",
    "": "is damaged: it is no JSON",
    '{"ICD": {"library_path": "./lib.so"},}': "is damaged: it is no JSON",
    "[" * 100_000: "is damaged: it is no JSON",
    "[]": "names no library",
    '{"ICD": 5}': "names no library",
    '{"ICD": {"library_path": ""}}': "names no library",
    '{"ICD": {"library_path": 5}}': "names no library",
    '{"ICD": {"library_path": "libc.so.6", "api_version": "1.0"}}': "says no file_format_version",
    '{"file_format_version": "1.0.0", "ICD": {"library_path": "libc.so.6"}}': "says no api_version",
}


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
@pytest.mark.parametrize("text", FAULTS, ids=[str(number) for number in range(len(FAULTS))])
def test_a_manifest_that_is_wrong_is_named(
    variable: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, good = _file(tmp_path / "odd.json", text), _file(tmp_path / "good.json")
    monkeypatch.setenv(variable, f"{path}:{good}")
    (warning,) = _warnings()
    assert warning.startswith(f"{variable} asks for the driver {path}, which gave no device: it {FAULTS[text]}")
    damaged = FAULTS[text].startswith("is damaged")
    assert bool(manifests.damaged()) == damaged
    assert not damaged or f"{path} ({variable}) is damaged" in manifests.damaged()
    assert bool(manifests.broken()) == (text == '{"ICD": {"library_path": 5}}')


@pytest.mark.parametrize(
    ("library", "why"),
    [
        ("./none.so", "names a library that does not exist ("),
        ("/none/none.so", "names a library that does not exist (/none/none.so)"),
        ("libnone_at_all.so", "names a library that cannot be opened (libnone_at_all.so"),
        ("./odd.json", "names a library that cannot be opened ("),
        ("libm.so.6", "names a library that is no driver (libm.so.6)"),
    ],
)
def test_a_library_that_is_no_driver_is_named(
    library: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    _clear(monkeypatch, tmp_path)
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(_file(tmp_path / "odd.json", library_path=library)))
    (warning,) = _warnings()
    assert f"it {why}" in warning


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, good = tmp_path / "gone.json", _file(tmp_path / "good.json")
    for variable in ("VK_ADD_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_DRIVER_FILES"):  # the next hides those before
        monkeypatch.setenv(variable, f"{lost}:{good}")
        assert _warnings() == [f"{variable} asks for the driver {lost}, which gave no device: it does not exist"]
    assert not manifests.damaged()


def test_what_a_variable_hides_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(tmp_path / "gone.json"))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(_file(tmp_path / "good.json")))
    assert _warnings("finds none") == []  # what there is comes of the only driver
    monkeypatch.setenv("VK_DRIVER_FILES", "")
    assert manifests.named() == []


def test_drivers_that_find_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "drivers"
    paths = [_file(folder / name) for name in ("a.json", "b.json")]
    _file(folder / "readme.txt")
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder))
    assert [manifest.path for manifest in manifests.named()] == [str(path) for path in paths]
    assert _warnings() == []
    assert [str(path) in text for path, text in zip(paths, _warnings("finds none"), strict=True)] == [True, True]
    monkeypatch.setenv("VK_LOADER_DRIVERS_SELECT", "b*,x*")
    assert _warnings() == [
        f"VK_DRIVER_FILES asks for the driver {paths[0]}, which gave no device: it is left out by "
        "VK_LOADER_DRIVERS_SELECT=b*,x*"
    ]
    monkeypatch.setenv("VK_LOADER_DRIVERS_DISABLE", "*B.json")
    assert len(_warnings()) == 2


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
@pytest.mark.parametrize("value", ["", ":", " "])
def test_a_variable_that_is_set_and_empty_is_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "/x.json")
    monkeypatch.setenv(variable, value)
    assert f"{variable} is set and empty" in manifests.no_driver()
    assert "VK_ADD_DRIVER_FILES included: unset it to use the installed drivers" in manifests.no_driver()


def test_without_any_driver_the_installed_ones_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path}/share")
    path = _file(tmp_path / "share/vulkan/icd.d/odd.json", library_path="/none.so")
    assert f"{path} names a library that does not exist (/none.so)" in manifests.no_driver()
    path.write_text("{")
    assert f"{path} is damaged" in manifests.damaged()


@pytest.mark.parametrize("kind", ["implicit_layer.d", "explicit_layer.d"])
def test_damaged_manifests_of_layers_are_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not manifests.damaged()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = _file(tmp_path / "vulkan" / kind / "layer.json", "{")
    assert f"the manifest {path} is damaged" in manifests.damaged()
    path.write_text("{}")
    monkeypatch.setenv("VK_LAYER_PATH", str(tmp_path / "layers"))
    path = _file(tmp_path / "layers" / "layer.json", "{")
    assert f"the manifest {path} is damaged" in manifests.damaged()


@pytest.mark.parametrize(("before", "after"), [("\ufeff", ""), ("", "\nmore"), (" \n", "")])
def test_what_the_loader_bears_is_no_fault(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path / "odd.json")
    path.write_text(before + path.read_text() + after, encoding="utf-8")
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(path))
    assert _warnings() == []


def test_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.json")
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(tmp_path / "pipe.json"))
    assert "is no file" in _warnings()[0]
