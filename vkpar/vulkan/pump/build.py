"""Builds the C helper: ``python -m vkpar.vulkan.pump.build`` builds it in place, ``--check`` says what that needs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cffi import FFI

_HERE = Path(__file__).resolve().parent

# CPython's stable ABI since 3.10, so that one build serves all later versions; some builds of Python do not have it.
LIMITED_API = sys.implementation.name == "cpython" and not (
    sysconfig.get_config_var("Py_GIL_DISABLED") or sysconfig.get_config_var("Py_DEBUG")
)


def make_builder() -> FFI:
    """Return cffi's description of the helper."""
    from cffi import FFI  # not at the top: --check runs before anything is installed

    builder = FFI()
    builder.cdef((_HERE / "_pump_api.h").read_text())
    builder.set_source(
        "vkpar.vulkan.pump._pump",
        (_HERE / "_pump.c").read_text(),
        include_dirs=[str(_HERE)],
        depends=[str(path) for path in sorted(_HERE.glob("_pump*.[ch]"))],
        extra_compile_args=["-O2", "-std=gnu11"],
        libraries=["pthread"],
        define_macros=[("Py_LIMITED_API", "0x030A0000") if LIMITED_API else ("_CFFI_NO_LIMITED_API", None)],
        py_limited_api=LIMITED_API,
    )
    return builder


def missing() -> str | None:
    """Return one line that says what to install before the helper can be built; None where all is there."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = Path(sysconfig.get_path("include"))
    lacking = []
    if shutil.which(compiler[0]) is None:
        lacking.append(f"a C compiler ({compiler[0]} is not there)")
    elif not _finds_headers_of_c(compiler):
        lacking.append("the C library's headers")
    if not (include / "Python.h").exists():
        lacking.append(f"the Python headers ({include / 'Python.h'} is not there)")
    if not lacking:
        return None
    return (
        f"vkpar's C helper needs {' and '.join(lacking)}; on Debian and Ubuntu: apt install gcc libc6-dev python3-dev"
    )


def _finds_headers_of_c(compiler: list[str]) -> bool:
    source = "#include <pthread.h>\n"
    command = [*compiler, "-E", "-x", "c", "-"]
    return (
        subprocess.run(command, input=source, capture_output=True, text=True, errors="replace", check=False).returncode
        == 0
    )


def build_in_place() -> Path:
    """Compile the helper beside its source and return the library's path."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(make_builder().compile(tmpdir=scratch))
        target = _HERE / made.name
        os.replace(shutil.copy(made, f"{target}.new"), target)  # it may be loaded: not overwritten in place
        return target


def main(arguments: list[str]) -> int:
    """Build, or with ``--check`` only say what is missing; return 1 where something is."""
    lack = missing()
    if lack:
        print(lack, file=sys.stderr)
        return 1
    if arguments != ["--check"]:
        print(build_in_place())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
