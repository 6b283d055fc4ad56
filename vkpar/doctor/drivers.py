"""Each driver alone: its manifest, its library and the devices that it gives; and the cards that no driver gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import vkpar
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.doctor.place import Place
from vkpar.errors import VkparError
from vkpar.vulkan.machine import manifests

PCI: Final = Path("/sys/bus/pci/devices")
_VENDORS: Final = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}
_DISPLAY, _ACCELERATOR = "0x03", "0x12"  # what the classes of cards begin with
_KERNEL: Final = {"AMD": "amdgpu", "NVIDIA": "nvidia", "Intel": "i915 or xe"}
_MENDS: Final = {
    "AMD": "install mesa-vulkan-drivers (RADV)",
    "NVIDIA": "install NVIDIA's driver with its Vulkan library (libnvidia-gl), the one of the kernel module's version",
    "Intel": "install mesa-vulkan-drivers (ANV)",
}


def environment(paths: Sequence[str]) -> dict[str, str]:
    """Return this process's environment in which the loader takes only the drivers of ``paths``."""
    dropped = (*manifests.REPLACING, manifests.ADDING, *manifests.FILTERING)
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | dict.fromkeys(manifests.REPLACING, os.pathsep.join(paths))


def driver(place: Place, path: str, variable: str) -> Iterator[Finding]:
    """Check one driver, the only one that this process's loader takes from now on.

    Args:
        place: where.
        path: of its manifest.
        variable: that names it; empty for an installed one.
    """
    only = environment([path])
    os.environ.clear()
    os.environ.update(only)
    place.stage("while its library is loaded")
    manifest = manifests.read(path, variable)
    if manifest.problem:
        yield Finding.of(FAILED, f"it {manifest.problem}", _mend(path, variable))
        return
    place.stage("while it is asked for its devices")
    try:
        infos = vkpar.enumerate_devices()
    except VkparError as error:
        yield _without_device(manifest, str(error))
        return
    found = ", ".join(f"{info.name}{f', {info.driver_info}' if info.driver_info else ''}" for info in infos)
    names, addresses = [info.name for info in infos], [info.pci_address for info in infos]
    yield Finding.of(OK, found, devices=names, cards=addresses, cpu=all(info.is_cpu for info in infos))


def _mend(path: str, variable: str) -> str:
    if not variable:
        return f"reinstall the driver's package, or remove {path}"
    return f"mend {path}, or take it out of {variable}" if os.path.exists(path) else f"correct {variable}"


def _without_device(manifest: manifests.Manifest, why: str) -> Finding:
    """Tell of a driver without a device: it is no fault of installed ones, which come for all the cards there are."""
    if not manifest.variable:
        return Finding.of(SKIPPED, "no device that it drives")
    fix = f"take it out of {manifest.variable}, or see that its card is there and its kernel driver is loaded"
    short = why.partition(". ")[0].partition(": ")[0] if "reaches no device" in why else why
    return Finding.of(FAILED, f"it gives no device: {short}", fix)


def cards(_: Place, shown: Sequence[str], others: bool) -> Iterator[Finding]:
    """Check that a driver shows each graphics card that the kernel knows.

    Args:
        shown: PCI addresses of the devices that drivers show.
        others: drivers show some GPU, so that cards without a file in ``/dev`` may be kept from this container.
    """
    lost = [card for card in _known() if card["address"] not in shown]
    for card in lost:
        yield _lost(card, others)
    if not lost:
        number = len(list(_known()))
        yield Finding.of(OK if number else SKIPPED, f"all of {number}" if number else "no graphics card")


def _known() -> Iterator[Mapping[str, str]]:
    """Yield the cards of vendors whose drivers have Vulkan, as the kernel lists them."""
    for folder in sorted(PCI.glob("*")):
        with suppress(OSError):
            vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
            if vendor in _VENDORS and kind.startswith((_DISPLAY, _ACCELERATOR)):
                bound = folder / "driver"
                kernel = os.path.basename(os.readlink(bound)) if bound.is_symlink() else ""
                yield {"address": folder.name, "vendor": _VENDORS[vendor], "kernel": kernel, "folder": str(folder)}


def node_of(card: Mapping[str, str]) -> str:
    """Return the file in ``/dev`` by which a card is reached; nothing where its kernel driver makes none."""
    for rendering in sorted(Path(card["folder"], "drm").glob("renderD*")):
        if card["vendor"] != "NVIDIA":
            return f"/dev/dri/{rendering.name}"
    with suppress(OSError):
        for line in Path("/proc/driver/nvidia/gpus", card["address"], "information").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Device Minor":
                return f"/dev/nvidia{value.strip()}"
    return ""


def _lost(card: Mapping[str, str], others: bool) -> Finding:
    vendor, node = card["vendor"], node_of(card)
    name = f"{vendor} card {card['address']}"
    if not card["kernel"] or card["kernel"] == "vfio-pci":
        bound = card["kernel"] or "no kernel driver"
        found, fix = f"{bound} has it, not {_KERNEL[vendor]}", f"load the kernel driver: modprobe {_KERNEL[vendor]}"
        given = card["kernel"] == "vfio-pci"  # to a virtual machine
        return Finding.of(SKIPPED if given else FAILED, found, "" if given else fix, name, address=card["address"])
    if node and not os.path.exists(node):
        fix = f"hand it in: docker run --device {node}" + (", or --gpus all" if vendor == "NVIDIA" else "")
        return Finding.of(SKIPPED if others else FAILED, f"there is no {node}", fix, name, address=card["address"])
    if node and not os.access(node, os.R_OK | os.W_OK):
        return Finding.of(SKIPPED, f"{node} may not be opened, as nodes says", "", name, address=card["address"])
    return Finding.of(FAILED, "no Vulkan driver shows it", _MENDS[vendor], name, address=card["address"])
