"""Selectors: the short texts by which a person names the devices of a rig.

Parts are joined by ``&`` and never merged: each mention opens a new logical device. A part is an index, a UUID,
a PCI address, ``all``, ``gpu``, ``cpu``, or a piece of a name, vendor or driver; ``*N`` opens N logical devices
of each match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import DeviceInfo

_MOST_DEVICES = 64
_MOST_WORDS = 2
_GROUPS = ("all", "gpu", "cpu")
_WORD = re.compile(r"[a-z][a-z0-9]{2,}")
_PCI = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def select(selector: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the devices that ``selector`` names, in order, repeated where they are to be opened repeatedly.

    Raises:
        InvalidUsageError: a part that is malformed or matches nothing; the message lists what there is.
    """
    chosen: list[DeviceInfo] = []
    for part in selector.split("&"):
        name, times = _split_times(part)
        matches = _matches(name, devices)
        if not matches:
            raise InvalidUsageError(f"no device matches {name!r}; {_choice(devices)}")
        chosen += [device for device in matches for _ in range(times)]
    if len(chosen) > _MOST_DEVICES:
        raise InvalidUsageError(f"{selector!r} names {len(chosen)} devices; the most is {_MOST_DEVICES}")
    return chosen


def names(device: DeviceInfo, devices: Sequence[DeviceInfo]) -> list[str]:
    """Return names that select this one of the devices alone: its index, words, PCI address and UUID."""
    words = dict.fromkeys(_WORD.findall(_words(device)))
    alone = [word for word in words if _matches(word, devices) == [device]]
    exact = [name for name in (device.pci_address, device.device_uuid) if name and _matches(name, devices) == [device]]
    return [str(device.index), *alone[:_MOST_WORDS], *exact]


def default(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the discrete GPUs, else the integrated ones, else the CPU drivers, each card once."""
    unique = without_duplicates(devices)
    for kinds in (("discrete",), ("integrated", "virtual"), ("cpu",)):
        found = [device for device in unique if device.type in kinds]
        if found:
            return found
    return unique


def without_duplicates(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Drop a card that a second driver shows again (same PCI address, or same device UUID)."""
    kept: list[DeviceInfo] = []
    seen: set[str] = set()
    for device in devices:
        marks = {f"uuid {device.device_uuid}"}
        if device.pci_address:
            marks.add(f"pci {device.pci_address}")
        if not marks & seen:
            kept.append(device)
        seen |= marks
    return kept


def _split_times(part: str) -> tuple[str, int]:
    name, star, times = part.strip().partition("*")
    name, times = name.strip(), times.strip()
    if not name or (star and not (times.isdecimal() and 1 <= int(times) <= _MOST_DEVICES)):
        raise InvalidUsageError(f"bad selector part {part!r}: expected NAME or NAME*N with N from 1 to {_MOST_DEVICES}")
    return name.lower(), int(times) if star else 1


def _matches(name: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    if name.isdecimal():
        return [device for device in devices if device.index == int(name)]
    if _UUID.fullmatch(name):
        return [device for device in devices if name in (device.device_uuid, device.driver_uuid)]
    if _PCI.fullmatch(name):
        full = name if name.count(":") > 1 else f"0000:{name}"
        return [device for device in devices if device.pci_address == full]
    if name in _GROUPS:
        unique = without_duplicates(devices)
        return [device for device in unique if name == "all" or device.is_cpu == (name == "cpu")]
    return [device for device in devices if name in _words(device)]


def _words(device: DeviceInfo) -> str:
    return "\n".join((device.name, device.vendor, device.driver_name, device.driver_info)).lower()


def _choice(devices: Sequence[DeviceInfo]) -> str:
    """Say which devices there are, and what a selector may call them."""
    if not devices:
        return "there are no devices at all: no driver offers any"
    listing = "; ".join(f"{device.index}: {device.name} ({device.vendor}, {device.driver_name})" for device in devices)
    each = ", ".join(" or ".join(names(device, devices)[:2]) for device in devices)
    return f"there are: {listing}. They are named {each}; several: {', '.join(several(devices))}"


def several(devices: Sequence[DeviceInfo]) -> list[str]:
    """Return selectors of several devices, for messages: those that select something among ``devices``."""
    first, last = devices[0].index, devices[-1].index
    pair = [] if first == last else [f"{first}&{last}"]
    return [*pair, f"{first}*2", *(word for word in _GROUPS if _matches(word, devices))]
