"""Which devices run which module of a model, as a person writes it: ``encoder=0&1,head=gpu``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vkpar.device import Device, enumerate_devices, open_all
from vkpar.errors import InvalidUsageError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.machine.selector import select

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True)
class Modules:
    """Devices that are to be opened, and which modules run on which of them.

    Attributes:
        devices: by rank.
        ranks: by module, in the order in which its devices were named.

    Examples:
        >>> modules = vkpar.parallel.parse_modules("text=0,image=0*2", ["text", "image"])
        >>> sorted(modules.ranks), modules.devices[0].index
        (['image', 'text'], 0)
    """

    devices: tuple[DeviceInfo, ...]
    ranks: dict[str, tuple[int, ...]]

    def open(self) -> list[Device]:
        """Open the devices; where one cannot be opened, the others are closed again."""
        return open_all(self.devices)


def parse_modules(text: str, known: Collection[str], infos: Sequence[DeviceInfo] | None = None) -> Modules:
    """Return the devices of each module.

    A device that several modules name is one rank; one that a module names several times (``0&0``, ``0*2``) is several.

    Args:
        text: ``MODULE=SELECTOR`` once or more, joined by commas; or a selector alone, for all modules. ``vkpar
            devices`` lists the names that selectors are made of. Modules that are not named run where the first does.
        known: names of the modules.
        infos: the devices that there are; by default those of this machine.

    Raises:
        InvalidUsageError: a module that is not known, or named twice; a selector that matches nothing.

    Examples:
        >>> modules = vkpar.parallel.parse_modules("text=0,image=0", ["text", "image"])
        >>> modules.ranks
        {'text': (0,), 'image': (0,)}
    """
    infos = enumerate_devices() if infos is None else infos
    selectors: dict[str, str] = {}
    for piece in text.split(",") if "=" in text else []:
        name, equals, selector = (part.strip() for part in piece.partition("="))
        if not equals or not _NAME.fullmatch(name) or not selector:
            raise InvalidUsageError(f"{piece.strip()!r} is not MODULE=DEVICES, such as {next(iter(known), 'head')}=gpu")
        if name not in known:
            raise InvalidUsageError(f"there is no module {name!r}; there are {', '.join(known)}")
        if name in selectors:
            raise InvalidUsageError(f"the module {name!r} is named twice")
        selectors[name] = selector
    first = next(iter(selectors.values()), text)
    chosen = {name: select(selectors.get(name, first), infos) for name in known}
    order: list[tuple[int, int]] = []  # a device's index, and which of its mentions
    devices: list[DeviceInfo] = []
    ranks: dict[str, tuple[int, ...]] = {}
    for name in sorted(chosen, key=lambda name: list(selectors).index(name) if name in selectors else len(selectors)):
        seen: Counter[int] = Counter()
        found = []
        for info in chosen[name]:
            mention = (info.index, seen[info.index])
            seen[info.index] += 1
            if mention not in order:
                order.append(mention)
                devices.append(info)
            found.append(order.index(mention))
        ranks[name] = tuple(found)
    return Modules(tuple(devices), ranks)
