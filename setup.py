"""Builds the optional C helper; everything else about the package is in pyproject.toml."""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup

PUMP_BUILD = Path(__file__).parent / "vkpar" / "vulkan" / "pump_build.py"


def pump_extension() -> list[Extension]:
    """Return the helper's extension, or nothing where it cannot be described; a failed build is no error."""
    if not PUMP_BUILD.exists():
        return []
    spec = importlib.util.spec_from_file_location("pump_build", PUMP_BUILD)
    assert spec is not None
    assert spec.loader is not None
    pump_build = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(pump_build)
    except ImportError as error:  # cffi is missing: a build without isolation
        print(f"vkpar: the C helper is left out: {error}")
        return []
    # Generated code goes into build/, never next to the hand-written _pump.c of the same name.
    extension: Extension = pump_build.ffibuilder.distutils_extension(tmpdir="build/cffi")
    extension.optional = True
    return [extension]


setup(ext_modules=pump_extension())
