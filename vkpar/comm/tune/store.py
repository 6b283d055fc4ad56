"""The files of tunings: one JSON file per rig, named after everything that the tuning depends on."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.comm import wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import MEASURED, Choice, Trial, Tuning
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.comm.rig.rig import Rig
from vkpar.vulkan.machine import instance
from vkpar.vulkan.machine.physical import DeviceInfo

_FORMAT = 4
_LEAST_COST, _MOST_COST = 1e-15, 1.0  # seconds per byte
_MOST_SPIN_US = 1_000_000
_unwritten: dict[tuple[Path | None, str], Tuning] = {}  # by folder and name, what could not be written there


def describe(rig: Rig) -> dict[str, Any]:
    """Return everything that a tuning depends on: devices, drivers, links, transports, memory, cores, the version."""
    ranks = [
        {
            "name": device.info.name,
            "device": device.info.device_uuid,
            "driver": device.info.driver_uuid,
            "version": device.info.driver_version,
            "transport": transport,
        }
        for device, transport in zip(rig.devices, rig.transport_names(), strict=True)
    ]
    return {
        "format": _FORMAT,
        "vkpar": __version__,
        "ranks": ranks,
        "links": [link.kind for link in rig.links],
        "slot_bytes": rig.slot_nbytes,
        # What changes times, or what is tried.
        "path": env.get().path,
        "spin_us": env.get().spin_us,
        "debug": env.get().debug,
        "slow_links": env.get().slow_links,
        "validation": instance.validating(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _name(rig: Rig) -> str:
    return cachedir.named("tuning", describe(rig))


def path(rig: Rig) -> Path | None:
    """Return the rig's file, in ``VKPAR_CACHE_DIR``; None where that is not set and the user has no home."""
    folder = cachedir.directory()
    return folder and folder / _name(rig)


def load(rig: Rig) -> Tuning | None:
    """Return the tuning that was kept for the rig; None where there is no file, or one that makes no sense (logged).

    Where none could be written, it is what this process measured before.
    """
    folder, name = cachedir.directory(), _name(rig)
    file = folder and folder / name
    if file is None or (folder, name) in _unwritten:
        return _unwritten.get((folder, name))
    ranks = [device.info for device in rig.devices]
    return cachedir.document(name, lambda kept: _parse(kept, ranks, rig.slot_nbytes))


def _parse(document: dict[str, Any], ranks: Sequence[DeviceInfo], slot_nbytes: int) -> Tuning:
    choices = tuple(_choice(raw, ranks, slot_nbytes) for raw in document["choices"])
    for wire in wires.TIMED:
        sizes = [math.inf if choice.up_to is None else choice.up_to for choice in choices if choice.wire == wire]
        if sizes != sorted(set(sizes)):
            raise ValueError("the sizes do not rise")
    costs = tuple(_costs(raw) for raw in document["costs"])
    if [each.wire for each in costs] != [wire for wire in wires.TIMED for _ in ranks]:
        raise ValueError("not the costs of every rank with every measured wire")
    trials = tuple(_trial(raw, slot_nbytes) for raw in document["trials"])
    sizes_of = [{(t.wire, t.wire_nbytes) for t in trials if t.chosen or not chosen} for chosen in (False, True)]
    if sizes_of[0] != sizes_of[1]:
        raise ValueError("a size without a choice")
    spin_us = _natural(document["spin_us"], optional=True)
    if spin_us is not None and spin_us > _MOST_SPIN_US:
        raise ValueError(f"waits that spin for {spin_us} us")
    return Tuning(choices, costs, spin_us, MEASURED, trials)


def _choice(raw: dict[str, Any], ranks: Sequence[DeviceInfo], slot_nbytes: int) -> Choice:
    choice = Choice(**raw)
    choose.require(choice.algorithm, ranks)
    _timed(choice.wire)
    _natural(choice.up_to, optional=True)
    _segment(choice.segment_nbytes, slot_nbytes)
    _flags(choice.copies, choice.equal)
    return choice


def _costs(raw: dict[str, Any]) -> Costs:
    costs = Costs(**raw)
    _timed(costs.wire)
    for role in ROLES:
        seconds = getattr(costs, role)
        if not isinstance(seconds, float) or not _LEAST_COST <= seconds <= _MOST_COST:
            raise ValueError(f"{role} without a cost that can be")
    return costs


def _timed(wire: Any) -> None:
    if wire not in wires.TIMED:
        raise ValueError(f"{wire!r} is no wire that is measured")


def _trial(raw: dict[str, Any], slot_nbytes: int) -> Trial:
    trial = Trial(**raw)
    choose.check(trial.algorithm)
    _timed(trial.wire)
    _natural(trial.wire_nbytes)
    _segment(trial.segment_nbytes, slot_nbytes)
    _flags(trial.copies, trial.equal, trial.chosen)
    if not isinstance(trial.seconds, float) or not 0 < trial.seconds < math.inf:
        raise ValueError("a trial without a time")
    return trial


def _segment(value: Any, slot_nbytes: int) -> None:
    """Refuse segments that measuring never tries: so short ones would take thousands of batches for a few MiB."""
    if _natural(value) and not min(choose.LEAST_SEGMENT // 2, slot_nbytes) <= value <= slot_nbytes:
        raise ValueError(f"segments of {value} bytes")


def _flags(*values: Any) -> None:
    if not all(isinstance(value, bool) for value in values):
        raise ValueError("a choice that is neither true nor false")


def _natural(value: Any, *, optional: bool = False) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no natural number")
    return value


def save(rig: Rig, tuning: Tuning) -> Path | None:
    """Keep the tuning; return the file, or None where it cannot be written, or not safely (logged).

    What is not written, this process keeps.
    """
    name = _name(rig)
    written = cachedir.keep(name, {**asdict(tuning), "rig": describe(rig)})
    if written is None:
        _unwritten[cachedir.directory(), name] = tuning
    return written
