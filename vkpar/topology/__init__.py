"""What a rig is, for people: which devices it takes, what each rank runs on, how ranks are linked and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import vkpar
from vkpar import env
from vkpar.vulkan.machine.selector import without_duplicates

if TYPE_CHECKING:
    from vkpar import Device, DeviceInfo
    from vkpar.comm.rig.links import Link


@dataclass(frozen=True)
class RankInfo:
    """One rank's device; ``memory_bytes`` is its largest local heap."""

    rank: int
    name: str
    vendor: str
    driver: str
    type: str
    memory_bytes: int
    transport: str


@dataclass(frozen=True)
class LinkGroup:
    """Ordered pairs of ranks that are linked in the same way for the same reason."""

    kind: str
    pairs: list[tuple[int, int]]
    reason: str


def choose(selector: str | None) -> str | None:
    """Return the selector of the rig to open, None for what ``open_devices`` takes by itself.

    Without a selector and without ``VKPAR_DEVICES``: every GPU where there are two or more, else every device there
    is, CPU drivers too, else two virtual ranks of the only one.
    """
    if selector is not None or env.get().devices:
        return selector
    devices = without_duplicates(vkpar.enumerate_devices())
    if sum(not device.is_cpu for device in devices) > 1:
        return "gpu"
    return "all" if len(devices) > 1 else "all*2"


def describe_rank(rank: int, device: DeviceInfo, transport: str) -> RankInfo:
    """Return what the device table says of one rank."""
    driver = f"{device.driver_name} {device.driver_info}".strip()
    return RankInfo(rank, device.name, device.vendor, driver, device.type, device.memory_bytes, transport)


def describe_links(links: Iterable[Link]) -> list[LinkGroup]:
    """Return a communicator's links, grouped by kind and reason."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for link in links:
        groups.setdefault((link.kind, link.reason), []).append((link.src, link.dst))
    return [LinkGroup(kind, pairs, reason) for (kind, reason), pairs in groups.items()]


def explain(devices: Sequence[Device]) -> str:
    """Return a sentence on how many real devices stand behind the ranks."""
    ranks = len(devices)
    real = without_duplicates([device.info for device in devices])
    vendors = sorted({info.vendor for info in real})
    if ranks == 1:
        return "One rank: nothing is summed across devices (--devices opens more, such as --devices 'all*2')."
    if len(real) == 1:
        return f"One physical device: its {ranks} ranks are virtual, so links and times are those of one device."
    text = f"{ranks} ranks on {len(real)} physical devices of {len(vendors)} vendor(s): {', '.join(vendors)}."
    return text if ranks == len(real) else f"{text} Ranks on the same device are virtual."
