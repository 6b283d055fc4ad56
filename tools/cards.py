"""Cards that are not here, and the processes in which Mesa's drivers compile for them.

A driver finds its card in one of two ways. RADV before Mesa 26 compiles for the family that ``RADV_FORCE_FAMILY``
names: null hardware, that cannot be opened. Every other one asks the kernel, which a preloaded library stubs
(tools/stubs): what it plays can be opened, has memory, and executes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kernel_variants import ROOT, ReportError

CACHE: Final = ROOT / ".cache"
_FOLDERS: Final = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
_LOADER: Final = "ld-linux-x86-64.so.2"
_SYSTEM: Final = "/lib/x86_64-linux-gnu"
_DROPPED: Final = ("VK_ADD_DRIVER_FILES", "VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS_ENABLE")
_PREFIXES: Final = ("RADV_", "ACO_", "VKPAR_", "VK_LOADER_DRIVERS_")


class Card(NamedTuple):
    """A family of cards.

    Attributes:
        driver: the driver's name in its file, such as ``radeon``.
        stub: the library that plays the card.
        variable: what tells the library which card it plays, and ``value``.
        forced: the driver's own name of the family, where it needs no stub; ``older``: that of earlier versions.
    """

    driver: str
    stub: str
    variable: str
    value: str
    forced: str = ""
    older: str = ""


def _radv(name: str, older: str = "") -> Card:
    return Card("radeon", "amdgpu", "AMDGPU_GPU_ID", name, name, older or name)


CARDS: Final[Mapping[str, Card]] = {
    **{name: _radv(name) for name in ("polaris10", "vega10", "navi10", "navi21")},
    "navi31": _radv("navi31", "gfx1100"),  # what Mesa before 23 calls it
    "gfx1201": _radv("gfx1201"),
    **{name: Card("intel", "intel", "INTEL_STUB_GPU_PLATFORM", name) for name in ("dg2", "bmg", "tgl", "mtl", "lnl")},
    **{
        name: Card("nouveau", "nouveau", "NOUVEAU_CHIPSET", number)
        for name, number in (("turing", "162"), ("ampere", "172"))
    },
    **{f"adreno{number}": Card("freedreno", "freedreno", "FD_GPU_ID", number) for number in ("660", "740")},
}


def installed_driver() -> Path | None:
    """Return the file that names the installed RADV to the loader, None where there is none."""
    for folder in _FOLDERS:
        for path in sorted(Path(folder).glob("radeon_icd*.json")):
            return path
    return None


def driver_of(card: Card, cache: Path = CACHE) -> Path:
    """Return the file of the driver that compiles for a card, where none is named.

    Raises:
        ReportError: there is none.
    """
    unpacked = [cache / folder / f"{card.driver}_icd.json" for folder in ("mesa25", "mesa26")]
    installed = installed_driver() if card.forced else None
    found = installed or next((path for path in unpacked if path.exists()), None)
    if found is None:
        wanted = "install mesa-vulkan-drivers" if card.forced else "run tools/test (--full for all), which unpacks them"
        raise ReportError(f"there is no driver {card.driver} here: {wanted}, or name its file with --driver")
    return found


def stub_of(card: Card, driver: Path, folder: Path = CACHE / "stubs") -> Path | None:
    """Return the library that plays a card for a driver; None where the driver needs none.

    Raises:
        ReportError: it is not there.
    """
    if card.forced and not _brings_loader(driver):
        return None
    path = folder / f"lib{card.stub}_stub.so"
    if not path.exists():
        raise ReportError(f"there is no {path}: run tools/test, which builds it, or name its folder with --stubs")
    return path


def beside(driver: Path) -> list[Path]:
    """Return the file of the CPU driver that comes with a driver.

    Raises:
        ReportError: there is none.
    """
    found = sorted(driver.parent.glob("lvp_icd*.json"))[:1]
    if not found:
        raise ReportError(f"there is no CPU driver beside {driver}, which could pass for the card")
    return found


def _brings_loader(driver: Path) -> bool:
    """Say whether a driver lies with the libraries of a newer system, whose loader has to run it."""
    return (driver.parent / _LOADER).exists()


def command(driver: Path, stub: Path | None, arguments: Sequence[str]) -> list[str]:
    """Return the command of a Python process that can load a driver."""
    if not _brings_loader(driver):
        return [sys.executable, *arguments]
    folder = driver.parent.resolve()
    preloaded = ["--preload", str(stub.resolve())] if stub else []
    return [str(folder / _LOADER), *preloaded, "--library-path", f"{folder}:{_SYSTEM}", sys.executable, *arguments]


def environment(card: Card, driver: Path, stub: Path | None, *others: Path, older: bool = False) -> dict[str, str]:
    """Return the environment of a card: no driver but its own and ``others``, nothing that changes or keeps kernels."""
    kept = {
        name: value for name, value in os.environ.items() if name not in _DROPPED and not name.startswith(_PREFIXES)
    }
    files = os.pathsep.join(str(path.resolve()) for path in (driver, *others))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    made = kept | {
        "VK_DRIVER_FILES": files,
        "VK_ICD_FILENAMES": files,  # the same for loaders before 1.3.207
        "MESA_SHADER_CACHE_DISABLE": "true",
        "PYTHONPATH": path,
    }
    if stub is None:
        return made | {"RADV_FORCE_FAMILY": card.older if older else card.forced}
    made[card.variable] = card.value
    return made if _brings_loader(driver) else made | {"LD_PRELOAD": str(stub.resolve())}
