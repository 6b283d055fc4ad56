"""``vkpar env``: the ``VKPAR_*`` variables, versions and helpers."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable

import vkpar
from vkpar import env
from vkpar.cli import console
from vkpar.errors import UnsupportedError, VkparError
from vkpar.vulkan import api
from vkpar.vulkan.machine import instance
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pump import native


def run(*, as_json: bool) -> int:
    """Print every variable with its value, and what vkpar runs with.

    Raises:
        InvalidUsageError: a variable holds a value that it cannot take.
    """
    rows = env.describe()
    about = {
        "vkpar": vkpar.__version__,
        "python": platform.python_version(),
        "pump": _or_error(lambda: str(native.helper().__file__)),
        "glsl_compiler": shader.compiler() or "none: install glslang-tools",
        **_loader(),
    }
    if as_json:
        print(json.dumps({**about, "variables": rows}, indent=2))
        return 0
    terminal = console.console()
    table = console.table("variable", "value", "default", "meaning")
    for row in rows:
        changed = "bold" if row["value"] != row["default"] else ""
        table.add_row(row["variable"], _setting(row["value"]), _setting(row["default"]), row["meaning"], style=changed)
    terminal.print(table)
    terminal.print()
    terminal.print(console.pairs({name.replace("_", " "): str(value) for name, value in about.items()}))
    return 0


def _loader() -> dict[str, str]:
    """Say what there is of the loader and the validation layer; no driver is loaded."""
    try:
        loader, layer = instance.loader_version(), instance.validation_layer_version()
    except UnsupportedError as error:
        return {"vulkan_loader": str(error), "validation_layer": "none"}
    return {
        "vulkan_loader": api.dotted(loader),
        "validation_layer": "none: install vulkan-validationlayers" if layer is None else api.dotted(layer),
    }


def _or_error(call: Callable[[], str]) -> str:
    try:
        return call()
    except VkparError as error:
        return str(error)


def _setting(value: object) -> str:
    if value is None or value == "":
        return "-"
    return str(int(value)) if isinstance(value, bool) else str(value)
