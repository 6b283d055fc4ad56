"""The ``VKPAR_*`` environment variables: one place, read once, overridable in tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vkpar.errors import InvalidUsageError

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
DEBUG_CHECKS = ("slots", "wire", "memory", "barriers")


def _setting(variable: str, meaning: str, default: Any, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"variable": variable, "meaning": meaning, "choices": choices})


@dataclass(frozen=True)
class Environment:
    """The settings that vkpar takes from the environment at the first open; an empty variable counts as unset."""

    devices: str = _setting("VKPAR_DEVICES", "selector of the devices that open_devices() opens", "")
    validation: bool = _setting("VKPAR_VALIDATION", "turn the Vulkan validation layer on, raise what it reports", False)
    link: str = _setting(
        "VKPAR_LINK", "links between ranks: auto, native or bridged", "auto", ("auto", "native", "bridged")
    )
    algorithm: str = _setting("VKPAR_ALGORITHM", "algorithm of every collective that does not name one", "auto")
    transport: str = _setting(
        "VKPAR_TRANSPORT",
        "how ranks reach the staging memory: auto, staged (imported) or mapped (copied by the host)",
        "auto",
        ("auto", "staged", "mapped"),
    )
    path: str = _setting(
        "VKPAR_PATH",
        "how reductions reach the slots: fused (kernels in place), copies (copy queues around them), auto (as tuned)",
        "auto",
        ("auto", "fused", "copies"),
    )
    pump: str = _setting("VKPAR_PUMP", "enqueue and bridge helper: auto, c or python", "auto", ("auto", "c", "python"))
    staging_bytes: int = _setting(
        "VKPAR_STAGING_BYTES", "bytes of all slots of a communicator (0: half the last-level cache)", 0
    )
    ring_bytes: int = _setting("VKPAR_RING_BYTES", "bytes of a device's upload and download ring", 16 << 20)
    ring: str = _setting(
        "VKPAR_RING",
        "how arrays are written and read: auto (straight, where the host sees their memory; else through a ring, for"
        " writes in resizable BAR where that is there) or host (through a ring in host memory)",
        "auto",
        ("auto", "host"),
    )
    max_memory: int = _setting(
        "VKPAR_MAX_MEMORY", "bytes that the arrays of a device may take (0: what the device has)", 0
    )
    max_buffer: int = _setting(
        "VKPAR_MAX_BUFFER", "bytes of a buffer: larger arrays take several (0: what the driver allows)", 0
    )
    max_binding: int = _setting(
        "VKPAR_MAX_BINDING", "bytes that a kernel binds at a time, all slots included (0: what the driver allows)", 0
    )
    debug: str = _setting(
        "VKPAR_DEBUG",
        "checks, joined by commas: of communicators slots (their generations) and wire (what it loses); memory (new"
        " arrays hold ones in every bit: NaN, -1); barriers (a full one before every operation)",
        "",
    )
    tuning: str = _setting(
        "VKPAR_TUNING",
        "auto measures a rig at its first use and keeps the result, redo at every use; off takes built-in thresholds",
        "auto",
        ("auto", "redo", "off"),
    )
    cache_dir: str = _setting("VKPAR_CACHE_DIR", "where tunings are kept (empty: vkpar in the user's cache)", "")
    spin_us: int | None = _setting(
        "VKPAR_SPIN_US", "microseconds that waits spin before they block (unset: chosen by the rig)", None
    )


def _parse(variable: str, text: str, default: Any, choices: tuple[str, ...]) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise InvalidUsageError(f"{variable}={text!r}: expected 0 or 1")
        return text.lower() in _TRUE
    if isinstance(default, int) or default is None:
        if not text.isdecimal():
            raise InvalidUsageError(f"{variable}={text!r}: expected a whole number")
        return int(text)
    if choices and text not in choices:
        raise InvalidUsageError(f"{variable}={text!r}: expected one of {', '.join(choices)}")
    return text


def _read() -> Environment:
    values = {}
    for entry in fields(Environment):
        meta = entry.metadata
        text = os.environ.get(meta["variable"])
        if text:
            values[entry.name] = _parse(meta["variable"], text, entry.default, meta["choices"])
    return Environment(**values)


_current: Environment | None = None


def get() -> Environment:
    """Return the settings, reading the process environment the first time.

    Raises:
        InvalidUsageError: a variable holds a value that it cannot take.
    """
    global _current
    if _current is None:
        _current = _read()
    return _current


def debug_checks() -> frozenset[str]:
    """Return the checks that ``VKPAR_DEBUG`` names.

    Raises:
        InvalidUsageError: an unknown one.
    """
    text = get().debug
    if not text:
        return frozenset()
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if names - set(DEBUG_CHECKS):
        raise InvalidUsageError(f"VKPAR_DEBUG={text!r}: there are {', '.join(DEBUG_CHECKS)}")
    return names


@contextmanager
def override(**values: Any) -> Iterator[Environment]:
    """Replace settings by field name for the length of a ``with`` block (for tests)."""
    global _current
    before = get()
    _current = replace(before, **values)
    try:
        yield _current
    finally:
        _current = before


def describe() -> list[dict[str, Any]]:
    """Return one row per variable: name, value in force, default, meaning."""
    settings = get()
    return [
        {
            "variable": entry.metadata["variable"],
            "value": getattr(settings, entry.name),
            "default": entry.default,
            "meaning": entry.metadata["meaning"],
        }
        for entry in fields(Environment)
    ]
