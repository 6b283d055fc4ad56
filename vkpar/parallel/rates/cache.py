"""Short measurements, kept in the cache folder beside the tunings of rigs."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from typing import Any, Final

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.device import Device
from vkpar.vulkan.machine import instance

_log = logging.getLogger("vkpar")
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
    text = json.dumps(about, sort_keys=True)
    name = f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if name not in _found:
        found = _load(name, least, most) if env.get().tuning == "auto" else None
        if found is None:
            found = min(max(measure(), least), most)
            if env.get().tuning != "off":
                _save(name, {**about, "measured": found})
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


def _load(name: str, least: float, most: float) -> float | None:
    try:
        kept = cachedir.read(name)
        if kept is None:
            return None
        found = json.loads(kept)["measured"]
        if not isinstance(found, float) or not math.isfinite(found) or not least <= found <= most:
            raise ValueError(f"{found!r} cannot be")
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("%s cannot be used, it is measured again: %s", name, error)
        return None


def _save(name: str, document: dict[str, Any]) -> None:
    try:
        if cachedir.write(name, json.dumps(document, indent=2).encode()) is None:
            _log.warning("%s is not kept: there is no cache folder; VKPAR_CACHE_DIR may name one", name)
    except OSError as error:
        _log.warning("%s is not kept: %s", name, error)
