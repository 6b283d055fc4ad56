#!/usr/bin/env python3
"""Build the wheel and the editable install from a copy of the tree, put each into a fresh environment and use it.

Setuptools and the packages that vkpar needs are taken from the environment that runs this: no network is used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IGNORED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__")
MOST_BYTES = 16 << 20  # of a wheel; tools/wheel has the same bound
USE = """
import numpy, sys, vkpar
devices = vkpar.open_devices("llvmpipe*2")
with vkpar.Communicator(devices) as comm:
    arrays = [device.array(numpy.ones(1000, "float32")) for device in devices]
    comm.all_reduce(arrays).wait(60)
assert all((array.numpy() == 2).all() for array in arrays)
"""


def run(command: list[str], folder: Path, *, fails: bool = False, **changes: str) -> str:
    """Run a command without this process's PYTHON* settings; return all that it printed."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=folder, env=settings | changes, stdout=pipe, stderr=both, text=True, check=False)
    if (done.returncode != 0) is not fails:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def build(clone: Path, kind: str, *, fails: bool = False, **changes: str) -> str:
    """Have setuptools build a wheel (kind ``wheel`` or ``editable``) into ``dist`` and return what it said."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    return run([sys.executable, "-c", code], clone, fails=fails, **changes)


def check_messages(said: str) -> None:
    """No warning of setuptools or the compiler, but for the one that says how this Python was started."""
    warned = [line for line in said.splitlines() if re.search("warning|won't be", line, re.IGNORECASE)]
    warned = [line for line in warned if "byte-compiling is disabled" not in line]
    if warned:
        raise SystemExit("\n".join(["the build warns:", *warned]))


def check_refusal(clone: Path) -> None:
    """Without a compiler the build ends in one line that says what to install."""
    said = build(clone, "wheel", fails=True, CC="/nonexistent/cc")
    last = said.strip().splitlines()[-1]
    if "apt install gcc" not in last or "Traceback" in said:
        raise SystemExit(f"no word of what is missing:\n{said}")


def check_wheel(wheel: Path) -> None:
    """The tag promises one wheel for all Pythons since 3.10; what it must hold is there."""
    if "-cp310-abi3-" not in wheel.name:
        raise SystemExit(f"{wheel.name} is no cp310-abi3 wheel")
    if wheel.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"vkpar/py.typed", "vkpar/spirv/manifest.json", "vkpar/vulkan/pump/_pump.abi3.so"}
    wanted |= {"vkpar/_pyinstaller/hook-vkpar.py", "pytest_vkpar.py", "vkpar/testing/plugin.py"}
    wanted |= {f"vkpar/spirv/{path.name}" for path in (ROOT / "vkpar" / "spirv").glob("*.spv")}
    if wanted - held:
        raise SystemExit(f"{wheel.name} lacks {sorted(wanted - held)}")


def install(python: Path, libraries: Path, wheel: Path) -> None:
    """Install the wheel alone; where its needs lie is told afterwards, since pip would take all there as installed."""
    needs = libraries / "needs.pth"
    needs.unlink(missing_ok=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]  # installing one there takes seconds
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--force-reinstall"]
    run([*pip, "install", *options, str(wheel)], wheel.parent)
    needs.write_text(sysconfig.get_path("purelib"))


def check_use(python: Path, folder: Path, package: Path) -> None:
    """Use the package from ``folder`` by -c, by -m and from a script that lies there; it must be ``package``."""
    asked = USE + f"assert vkpar.__file__ == {str(package / '__init__.py')!r}, vkpar.__file__\n"
    (folder / "script.py").write_text(asked)
    run([str(python), "-c", asked], folder, VKPAR_TUNING="off")
    run([str(python), "-m", "vkpar", "--version"], folder)
    run([str(python), "script.py"], folder, VKPAR_TUNING="off")


def check_shadow(python: Path, clone: Path, libraries: Path) -> None:
    """Python started in a clone that was never built says which folder hides the installed package."""
    (clone / "script.py").write_text(USE)
    for command in (["-c", USE], ["script.py"]):
        said = run([str(python), *command], clone, fails=True)
        if f"{clone}/vkpar, which was never built" not in said or f"installed in {libraries}" not in said:
            raise SystemExit(f"no word of the folder that hides the package:\n{said}")


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        above = Path(scratch).resolve()
        clone = above / "vkpar"
        shutil.copytree(ROOT, clone, ignore=IGNORED)
        check_refusal(clone)
        check_messages(build(clone, "wheel"))
        (wheel,) = (clone / "dist").glob("*.whl")
        check_wheel(wheel)
        venv.create(above / "env", with_pip=False)
        python, libraries = above / "env" / "bin" / "python", next((above / "env" / "lib").glob("*/site-packages"))
        install(python, libraries, wheel)
        away = above / "away"
        away.mkdir()
        check_use(python, away, libraries / "vkpar")
        check_shadow(python, clone, libraries)
        wheel.unlink()
        build(clone, "editable")
        install(python, libraries, next((clone / "dist").glob("*.whl")))
        check_use(python, above, clone / "vkpar")
    print("the wheel and the editable install work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
