"""Builds the C helper; everything else about the package is in pyproject.toml."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

PUMP_BUILD = Path(__file__).parent / "vkpar" / "vulkan" / "pump" / "build.py"


def load_pump_build() -> ModuleType:
    """Load the helper's description without the package, which is not installed yet."""
    spec = importlib.util.spec_from_file_location("pump_build", PUMP_BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def helper_extension() -> Extension:
    """Describe the helper; generated code goes into build/, never next to the hand-written _pump.c of the same name."""
    extension: Extension = pump_build.make_builder().distutils_extension(tmpdir="build/cffi")
    extension.depends = [os.path.relpath(path) for path in extension.depends]  # what setuptools asks for
    return extension


class BuildHelper(build_ext):
    """Says in one line what a build of the helper lacks."""

    def run(self) -> None:
        lack = pump_build.missing()
        if lack:
            raise PlatformError(lack)
        super().run()


pump_build = load_pump_build()
setup(
    ext_modules=[helper_extension()],
    cmdclass={"build_ext": BuildHelper},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if pump_build.LIMITED_API else {},
)
