"""Importing loads no Vulkan, and a machine without it is told what to install."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from helpers.process.children import check_child, child_environment

import vkpar

NO_LOADER = """
    import sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name == "vulkan._vulkan":
                raise OSError("libvulkan.so.1: cannot open shared object file")
            return None

    sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize(
    "module", ["vkpar", "vkpar.comm.communicator", "vkpar.ops", "vkpar.kernels.kernel", "vkpar.env"]
)
def test_importing_loads_no_vulkan(module: str) -> None:
    check_child(
        f"""
        import sys
        import {module}
        import vkpar
        from vkpar.vulkan import api
        assert not [name for name in sys.modules if name == "vulkan" or name.startswith("vulkan.")]
        assert not api.loaded()
        maps = open("/proc/self/maps").read()
        assert "libvulkan" not in maps
        """
    )


def test_pytest_rewrites_no_module_of_the_package() -> None:
    """Though the package brings a plugin: all its modules would be parsed anew wherever tests import it."""
    assert type(vkpar.__loader__).__name__ == "SourceFileLoader"


def test_describing_settings_and_types_loads_no_vulkan() -> None:
    check_child(
        """
        import sys
        import numpy as np
        import vkpar
        from vkpar import dtypes, env
        from vkpar.vulkan.pipelines import interface, shader
        env.describe()
        assert dtypes.resolve("bf16") == vkpar.bfloat16
        assert set(interface.reflect(shader.shipped("matvec_rows256")).entries) == {"main"}
        assert "vulkan" not in sys.modules
        """
    )


@pytest.mark.parametrize("call", ["enumerate_devices()", "open_devices()", "open_devices('cpu')"])
def test_no_loader_says_what_to_install(call: str) -> None:
    printed = check_child(
        NO_LOADER
        + f"""
    import vkpar
    for _ in range(2):
        try:
            vkpar.{call}
        except vkpar.UnsupportedError as error:
            print(error)
    """
    )
    lines = printed.splitlines()
    assert len(lines) == 2
    assert all("libvulkan1" in line and "vulkan-loader" in line for line in lines)


@pytest.mark.parametrize("call", ["enumerate_devices()", "open_devices()", "open_devices('llvmpipe')"])
def test_no_driver_says_what_to_install(call: str) -> None:
    pytest.importorskip("vulkan")
    environment = child_environment(
        VK_DRIVER_FILES="/nonexistent/none.json", VK_ICD_FILENAMES="/nonexistent/none.json", VK_ADD_DRIVER_FILES=None
    )
    printed = check_child(
        f"""
        import vkpar
        for _ in range(2):
            try:
                vkpar.{call}
            except vkpar.UnsupportedError as error:
                print(error)
        """,
        environment=environment,
    )
    lines = printed.splitlines()
    assert len(lines) == 2
    assert all("no Vulkan driver found" in line and "VK_DRIVER_FILES=/nonexistent" in line for line in lines)


def test_a_bad_variable_is_refused_at_the_first_open() -> None:
    printed = check_child(
        """
        import vkpar
        try:
            vkpar.enumerate_devices()
        except vkpar.InvalidUsageError as error:
            print(error)
        """,
        environment=child_environment(VKPAR_VALIDATION="perhaps"),
    )
    assert "VKPAR_VALIDATION" in printed


def test_version_and_names() -> None:
    check_child(
        """
        import vkpar
        assert vkpar.__version__.split(".")[0].isdigit()
        assert all(getattr(vkpar, name) is not None for name in vkpar.__all__)
        """
    )


@pytest.mark.parametrize(
    "module", sorted((Path(vkpar.__file__).parent / "arrays").glob("*.py")), ids=lambda file: file.stem
)
def test_arrays_know_devices_from_annotations_alone(module: Path) -> None:
    """import-linter ignores the import of :mod:`vkpar.arrays.array` as a whole, and would let it into a function."""
    tree = ast.parse(module.read_text())
    typing = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    allowed = {id(inner) for node in typing for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in allowed:
            names = {node.module} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
            names |= {f"{node.module}.{a.name}" for a in node.names} if isinstance(node, ast.ImportFrom) else set()
            assert "vkpar.device" not in names


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("zeros", r"device\.zeros\(\.\.\.\)$"),
        ("tensor", r"device\.array\(\.\.\.\)$"),
        ("open_device", r"open_devices\(selector\)\[0\] opens one$"),
        ("nothing", "no attribute 'nothing'$"),
    ],
)
def test_names_of_other_libraries_say_where_theirs_are(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(vkpar, name)
    assert not hasattr(vkpar, name)
