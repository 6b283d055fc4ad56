"""Where a rig's tuning is kept: one JSON file per rig, named after what it depends on."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vkpar
from vkpar import env
from vkpar.comm import tuner
from vkpar.comm.rig import Rig
from vkpar.comm.tuner import MEASURED, Choice, Trial, Tuning
from vkpar.vulkan import pump
from vkpar.vulkan.physical import DeviceInfo

_log = logging.getLogger("vkpar")
_FORMAT = 1


def describe(rig: Rig) -> dict[str, Any]:
    """Return what a tuning depends on: devices, drivers, links, transports, memory, the helper, cores, the version."""
    ranks = [
        {
            "name": device.info.name,
            "device": device.info.device_uuid,
            "driver": device.info.driver_uuid,
            "version": device.info.driver_version,
            "transport": transport.name,
        }
        for device, transport in zip(rig.devices, rig.transports, strict=True)
    ]
    return {
        "format": _FORMAT,
        "vkpar": vkpar.__version__,
        "ranks": ranks,
        "links": [link.kind for link in rig.links],
        "slot_bytes": rig.arena.large.slot_nbytes,
        "path": env.get().path,
        "pump": pump.kind(),
        "cores": len(os.sched_getaffinity(0)),
    }


def path(rig: Rig) -> Path:
    """Return the rig's file, in ``VKPAR_CACHE_DIR``."""
    text = json.dumps(describe(rig), sort_keys=True)
    return directory() / f"tuning-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def directory() -> Path:
    """Return ``VKPAR_CACHE_DIR``, else ``vkpar`` in the user's cache directory."""
    if env.get().cache_dir:
        return Path(env.get().cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vkpar"


def load(rig: Rig) -> Tuning | None:
    """Return what was measured on the rig before; None where there is nothing, or nothing that can be used."""
    file = path(rig)
    try:
        return _parse(json.loads(file.read_text()), [device.info for device in rig.devices])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be used, the rig is measured again: %s", file, error)
        return None


def _parse(document: dict[str, Any], ranks: Sequence[DeviceInfo]) -> Tuning:
    choices = tuple(Choice(**choice) for choice in document["choices"])
    speeds = tuple(map(float, document["speeds"]))
    trials = tuple(Trial(**trial) for trial in document["trials"])
    for choice in choices:
        tuner.require(choice.algorithm, ranks)
        if choice.segment_nbytes < 0:
            raise ValueError("a negative segment")
    sizes = [math.inf if choice.up_to is None else choice.up_to for choice in choices]
    if choices and (sizes[-1] != math.inf or sizes != sorted(set(sizes))):
        raise ValueError("the sizes do not rise to the last, which takes all")
    if len(speeds) != len(ranks) or not all(speed > 0 for speed in speeds):
        raise ValueError("not one speed a rank")
    spin = document["spin_us"]
    return Tuning(choices, speeds, None if spin is None else int(spin), MEASURED, trials)


def save(rig: Rig, tuning: Tuning) -> Path | None:
    """Keep what was measured; return the file, None where it cannot be written (that is logged)."""
    file = path(rig)
    document = {**asdict(tuning), "rig": describe(rig)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".json")
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(document, stream, indent=2)
            os.replace(name, file)  # readers see the old file or the new one
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        _log.warning("the tuning is not kept: %s", error)
        return None
    return file
