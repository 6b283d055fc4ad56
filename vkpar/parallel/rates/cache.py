"""Short measurements, kept in the cache folder beside the tunings of rigs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.device import Device
from vkpar.vulkan.machine import instance

_FORMAT: Final = 2
_found: dict[str, float] = {}


def number(what: str, about: dict[str, Any], measure: Callable[[], float], least: float, most: float) -> float:
    """Return a number that was measured once.

    It is kept in ``VKPAR_CACHE_DIR``, but for ``VKPAR_TUNING=off``, which measures in each process, as ``redo`` does.

    Args:
        what: the beginning of the file's name.
        about: everything else that the number depends on.
        measure: measures it.
        least: the smallest number that a file is believed to hold.
        most: the largest.
    """
    about = {
        "format": _FORMAT,
        "vkpar": __version__,
        "debug": env.get().debug,
        "slow_links": env.get().slow_links,
        "validation": instance.validating(),
        **about,
    }
    name = cachedir.named(what, about)

    def read(document: Any) -> float:
        found = document["measured"]
        if not isinstance(found, float) or not math.isfinite(found) or not least <= found <= most:
            raise ValueError(f"{found!r} cannot be")
        return found

    if name not in _found:
        found = cachedir.document(name, read) if env.get().tuning == "auto" else None
        if found is None:
            found = min(max(measure(), least), most)
            if env.get().tuning != "off":
                cachedir.keep(name, {**about, "measured": found})
        _found[name] = found
    return _found[name]


def forget() -> None:
    """Forget what this process measured or read."""
    _found.clear()


def describe(device: Device) -> dict[str, Any]:
    """Return what a measurement on a device depends on."""
    info = device.info
    uuids = {"device": info.device_uuid, "driver": info.driver_uuid}
    return {"name": info.name, "version": info.driver_version, **uuids}
