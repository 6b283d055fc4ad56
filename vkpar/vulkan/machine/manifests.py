"""The drivers that the Vulkan loader is told to take: what its variables name, and why a driver gives no device.

Nothing here calls Vulkan: manifests are files of JSON that name libraries, and libraries can be opened.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

REPLACING: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the drivers to load, in place of the installed ones
ADDING: Final = "VK_ADD_DRIVER_FILES"
FILTERING: Final = ("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
_LAYERS: Final = ("VK_LAYER_PATH", "VK_ADD_LAYER_PATH", "VK_IMPLICIT_LAYER_PATH", "VK_ADD_IMPLICIT_LAYER_PATH")
_NO_DRIVER: Final = "no Vulkan driver found: install your GPU's driver, or mesa-vulkan-drivers for a CPU one"
_NO_DEVICE: Final = (
    "a Vulkan driver is installed, but it reaches no device. In a container, hand the GPU in (docker run --device "
    "/dev/dri, or --gpus all with NVIDIA_DRIVER_CAPABILITIES=all). Elsewhere, see that the card is listed by lspci, "
    "that its kernel driver is loaded, and that you may open /dev/dri/renderD* (groups render and video). "
    "mesa-vulkan-drivers adds a CPU device, which needs no card"
)
_ENTRIES: Final = ("vk_icdGetInstanceProcAddr", "vkGetInstanceProcAddr")  # a driver has one of them
_MOST_BYTES: Final = 1 << 20  # of a manifest


@dataclass(frozen=True)
class Manifest:
    """A driver's manifest.

    Attributes:
        path: of the file.
        variable: that names it, or its folder; empty for an installed one.
        library: of the driver, as the loader opens it; empty where the manifest does not say.
        problem: why no driver can come of it, in words after "it"; empty where nothing is known.
        breaks: the loader may crash over it.
    """

    path: str
    variable: str
    library: str = ""
    problem: str = ""
    breaks: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({self.variable})" if self.variable else self.path


def replacing() -> str:
    """Return the variable that names the only drivers that may be loaded; nothing where none is set."""
    return next((name for name in REPLACING if name in os.environ), "")


def named() -> list[Manifest]:
    """Return the manifests that variables ask for; the loader ignores those to add where others replace all."""
    return [read(path, variable) for path, variable in _named_paths()]


def installed() -> list[Manifest]:
    """Return the manifests of drivers in the loader's folders."""
    return [read(path, "") for path in _installed_paths()]


def paths() -> list[tuple[str, str]]:
    """Return the manifests that the loader looks at, each with the variable that names it; no library is opened."""
    found = _named_paths()
    every = found if replacing() else [*((path, "") for path in _installed_paths()), *found]
    return [(path, variable) for path, variable in dict(every).items()]


def _named_paths() -> list[tuple[str, str]]:
    variable = replacing() or ADDING
    return [(path, variable) for path in _expanded(os.environ.get(variable, ""))]


def _installed_paths() -> list[str]:
    folders = [os.path.join(folder, "vulkan", "icd.d") for folder in _data_folders()]
    return [path for path in _expanded(os.pathsep.join(folders)) if path not in folders]


def read(path: str, variable: str) -> Manifest:
    """Return what a manifest says, and what is wrong with it."""
    document, problem = _document(path)
    if problem:
        return Manifest(path, variable, problem=problem)
    document = document if isinstance(document, dict) else {}
    driver = document["ICD"] if isinstance(document.get("ICD"), dict) else {}
    library = driver.get("library_path")
    if not isinstance(library, str) or not library:
        breaks = not isinstance(driver.get("library_path", ""), str)
        return Manifest(path, variable, problem="names no library (a text ICD.library_path)", breaks=breaks)
    if "/" in library:
        library = os.path.join(os.path.dirname(os.path.abspath(path)), library)
    for name, place in (("file_format_version", document), ("api_version", driver)):
        if name not in place:
            return Manifest(path, variable, library, f"says no {name}")
    return Manifest(path, variable, library, _unopened(library))


def no_driver() -> str:
    """Return what is wrong, and what to do, where the loader finds no driver."""
    variable = replacing()
    value = os.environ.get(variable, "")
    if variable and not value.strip(os.pathsep + " "):
        others = [name for name in (*REPLACING, ADDING) if os.environ.get(name)]
        hidden = f", {' and '.join(others)} included" if others else ""
        return (
            f"no Vulkan driver found: {variable} is set and empty, so that the loader takes no driver{hidden}: "
            "unset it to use the installed drivers"
        )
    if variable:
        found = named()
        lost = [manifest.path for manifest in found if not os.path.exists(manifest.path)]
        faults = "; ".join(f"{manifest.path} {manifest.problem}" for manifest in found if manifest.problem)
        why = f"there is no {' nor '.join(lost)}" if lost else "none of them loads (VK_LOADER_DEBUG=error says why)"
        return (
            f"no Vulkan driver found: {variable}={value} names the only drivers that may be loaded, and {why}"
            f"{f': {faults}' if faults and not lost else ''}. Correct the variable, or unset it to use the installed "
            "drivers"
        )
    filters = " ".join(f"{name}={os.environ[name]}" for name in FILTERING if os.environ.get(name))
    if filters:
        return f"no Vulkan driver found: {filters} may leave none of the installed ones. Correct or unset it"
    faults = "; ".join(f"{manifest} {manifest.problem}" for manifest in (*named(), *installed()) if manifest.problem)
    return f"{_NO_DRIVER} ({faults})" if faults else _NO_DRIVER


def no_device() -> str:
    """Return the same for drivers that offer no device."""
    variable = next((name for name in (*REPLACING, *FILTERING) if os.environ.get(name)), None)
    if variable is None:
        return _NO_DEVICE
    return f"{_NO_DEVICE}; {variable}={os.environ[variable]} may keep other drivers from being asked"


def broken() -> str:
    """Say which manifest a variable names that the loader may crash over; nothing where there is none."""
    return next((f"the manifest {manifest} {manifest.problem}" for manifest in named() if manifest.breaks), "")


def damaged() -> str:
    """Say which file of JSON that the loader reads, of drivers or layers, is damaged; nothing where none is.

    Loaders before 1.3.260 or so say that memory has run out in its place.
    """
    layers = (path for name in _LAYERS for path in _expanded(os.environ.get(name, "")))
    kinds = ("implicit_layer.d", "explicit_layer.d")
    folders = os.pathsep.join(os.path.join(folder, "vulkan", kind) for folder in _data_folders() for kind in kinds)
    every = [(manifest.path, str(manifest)) for manifest in (*named(), *installed())]
    for path, shown in (*every, *((path, path) for path in (*layers, *_expanded(folders)))):
        _, problem = _document(path)
        if problem and os.path.isfile(path):
            return f"the manifest {shown} {problem}"
    return ""


def without_device(devices_of: Callable[[str], str]) -> Iterator[str]:
    """Yield, for each driver that a variable asks for and that gave no device, a sentence that says why.

    Args:
        devices_of: says why a library that can be opened offers no device; nothing where it offers some.
    """
    found = named()
    alone = bool(replacing()) and sum(not manifest.problem for manifest in found) == 1  # what there is, is from it
    for manifest in found:
        why = manifest.problem or filtered(manifest.path) or ("" if alone else devices_of(manifest.library))
        if why:
            yield f"{manifest.variable} asks for the driver {manifest.path}, which gave no device: it {why}"


def _expanded(value: str) -> list[str]:
    """Return the paths in a variable, with the manifests of folders in place of these."""
    paths = []
    for item in value.split(os.pathsep):
        try:
            inside = sorted(str(path) for path in Path(item).iterdir() if path.suffix == ".json") if item else []
        except OSError:  # a file, or nothing
            inside = [item]
        paths += inside
    return paths


def _data_folders() -> list[str]:
    """Return the folders of data and settings that the loader looks through, as the XDG base directories go."""
    home = os.path.expanduser("~")
    one = {"XDG_CONFIG_HOME": f"{home}/.config", "XDG_DATA_HOME": f"{home}/.local/share"}
    many = {"XDG_CONFIG_DIRS": "/etc/xdg", "XDG_DATA_DIRS": "/usr/local/share:/usr/share"}
    values = [os.environ.get(name) or usual for name, usual in (one | many).items()]
    return [folder for value in (*values, "/etc:/usr/local/etc") for folder in value.split(":") if folder]


def _document(path: str) -> tuple[Any, str]:
    """Return what a file of JSON holds, and what is wrong with it."""
    if not os.path.exists(path):
        return None, "does not exist"
    if not os.path.isfile(path):  # nor opened: a pipe would be waited for
        return None, "is no file"
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    try:
        # As lenient as the loader: what follows the document counts for nothing.
        return json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8-sig").lstrip())[0], ""
    except (ValueError, RecursionError) as error:
        return None, f"is damaged: it is no JSON ({error})"


def _unopened(library: str) -> str:
    """Say why a driver's library cannot be opened; nothing where it can be."""
    if "/" in library and not os.path.exists(library):
        return f"names a library that does not exist ({library})"
    try:
        opened = ctypes.CDLL(library)
    except OSError as error:
        return f"names a library that cannot be opened ({error})"
    return "" if any(hasattr(opened, name) for name in _ENTRIES) else f"names a library that is no driver ({library})"


def filtered(path: str) -> str:
    """Say which variable leaves a manifest out; nothing where none does."""
    name = os.path.basename(path).lower()
    for variable, leaves in zip(FILTERING, (False, True), strict=True):
        globs = [glob.strip().lower() for glob in os.environ.get(variable, "").split(",") if glob.strip()]
        if globs and any(fnmatch(name, glob) for glob in globs) == leaves:
            return f"is left out by {variable}={os.environ[variable]}"
    return ""
