"""Programs that PyInstaller freezes hold all that they need."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FULL

import vkpar
from vkpar import _pyinstaller
from vkpar.comm.rig import links

PROGRAM = """
import numpy as np, vkpar
devices = vkpar.open_devices("cpu*2")[:2]
with vkpar.Communicator(devices) as comm:
    arrays = [device.array(np.ones(1000), "float32") for device in devices]
    comm.all_reduce(arrays).wait(60)
assert all((array.numpy() == 2).all() for array in arrays)
assert float(vkpar.sum(arrays[0] + arrays[0]).item()) == 4000
print("right", vkpar.__version__)
"""


def test_the_hook_finds_what_is_imported_by_name() -> None:
    pytest.importorskip("PyInstaller")
    (folder,) = _pyinstaller.hook_dirs()
    hook = runpy.run_path(str(Path(folder, "hook-vkpar.py")))
    names = {Path(path).name for path, _ in hook["datas"]}
    assert {path.name for path in Path(vkpar.__file__).parent.joinpath("spirv").glob("*.spv")} <= names
    assert {"manifest.json", "elementwise.glsl", "vulkan.cdef.h"} <= names
    assert "vkpar.vulkan.pump._pump" in hook["hiddenimports"]


def test_a_frozen_program_is_not_started_again_for_the_test_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("started"))
    assert "a frozen program" in links._self_test.__wrapped__("one", "two")


@pytest.mark.skipif(not FULL, reason="takes a minute: VKPAR_TEST_FULL=1")
def test_a_frozen_program_opens_devices_and_sums(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    (tmp_path / "program.py").write_text(PROGRAM)
    build = [sys.executable, "-m", "PyInstaller", "--onedir", "--noconfirm", "--log-level=WARN", "program.py"]
    made = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program = tmp_path / "dist" / "program" / "program"
    done = subprocess.run([program], cwd="/", env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"right {vkpar.__version__}\n", done.stderr
