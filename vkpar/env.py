"""The ``VKPAR_*`` environment variables: one place, read once, overridable in tests."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from vkpar.abi.formats import WIRES
from vkpar.errors import InvalidUsageError

_log = logging.getLogger("vkpar")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_OF_TESTS = ("VKPAR_TEST_", "VKPAR_REQUIRE_")  # variables that the library does not read
FEATURES = (
    *("cooperative_matrix", "cooperative_matrix2", "bfloat16", "integer_dot", "storage_16bit", "subgroup"),
    "host_import",
)
DEBUG_CHECKS = ("slots", "memory", "alignment", "barriers", "bounds")


_registered: dict[str, tuple[str, ...]] = {}


def register(name: str, choices: tuple[str, ...]) -> None:
    """Let the setting ``name`` take ``choices`` only: for choices that stand in a table of a layer above."""
    _registered[name] = choices


def _setting(
    variable: str, meaning: str, default: Any, choices: tuple[str, ...] = (), *, several: bool = False, least: int = 0
) -> Any:
    """Return a field: ``several`` choices may be joined by commas, numbers are 0 or from ``least``."""
    limits = {"choices": choices, "several": several, "least": least}
    return field(default=default, metadata={"variable": variable, "meaning": meaning, **limits})


@dataclass(frozen=True)
class Environment:
    """The settings that vkpar takes from the environment at the first open; an empty variable counts as unset."""

    devices: str = _setting("VKPAR_DEVICES", "selector of the devices that open_devices() opens", "")
    validation: bool | str = _setting(
        "VKPAR_VALIDATION",
        "1 turns the Vulkan validation layer on and raises what it reports; gpu has it watch every access of kernels,"
        " too",
        False,
        ("gpu",),
    )
    link: str = _setting(
        "VKPAR_LINK",
        "links between ranks: auto, native or bridged; try lets two devices of any one driver that can share timelines"
        " take the self-test, and goes native where they pass",
        "auto",
        ("auto", "native", "bridged", "try"),
    )
    algorithm: str = _setting("VKPAR_ALGORITHM", "algorithm of every collective that does not name one", "auto")
    transport: str = _setting(
        "VKPAR_TRANSPORT",
        "how slots get from rank to rank: auto, peer (copy engines between cards of one vendor), staged (host memory"
        " that all import) or mapped (copied by the host)",
        "auto",
        ("auto", "peer", "staged", "mapped"),
    )
    peer: str = _setting(
        "VKPAR_PEER",
        "where copy engines may carry slots between cards: auto, where all ranks are cards of a vendor on whose cards"
        " it was run; try, by AMD's HIP, too, where the self-test passes; groups, also among such cards of a mixed rig",
        "auto",
        ("auto", "groups", "try"),
    )
    wire: str = _setting(
        "VKPAR_WIRE",
        "how sums and averages of float32 cross links where a communicator is not told: "
        + ", ".join(f"{name} ({wire.meaning})" for name, wire in WIRES.items()),
        "f16",
        tuple(WIRES),
    )
    path: str = _setting(
        "VKPAR_PATH",
        "how reductions reach the slots: fused (kernels in place), copies (copy queues around them), auto (as tuned)",
        "auto",
        ("auto", "fused", "copies"),
    )
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
        "VKPAR_MAX_MEMORY",
        "bytes that the arrays of a device may take, bounce buffers included (0: what the device has)",
        0,
    )
    max_buffer: int = _setting(
        "VKPAR_MAX_BUFFER", "bytes of a buffer: larger arrays take several (0: what the driver allows)", 0, least=4096
    )
    max_binding: int = _setting(
        "VKPAR_MAX_BINDING",
        "bytes that a kernel binds at a time, all slots included (0: what the driver allows)",
        0,
        least=4096,
    )
    slow_links: int = _setting(
        "VKPAR_SLOW_LINKS",
        "how many times steps of collectives read and write the staging memory (0: once): for measurements, a fast rig"
        " plays one of slow links",
        0,
    )
    debug: str = _setting(
        "VKPAR_DEBUG",
        "checks, joined by commas: slots (the generations of communicators' slots); memory (new arrays hold ones in"
        " every bit: NaN, -1); alignment (kernels bind at multiples of 256 bytes only, as on the"
        " strictest devices); barriers (a full one before every operation); bounds (kernels read zeros beyond"
        " a binding and their writes there are dropped: robustBufferAccess2, or robustBufferAccess)",
        "",
        DEBUG_CHECKS,
        several=True,
    )
    without: str = _setting(
        "VKPAR_WITHOUT",
        "features that devices are opened without, joined by commas, so that kernels do without, too:"
        " cooperative_matrix (matrix cores), cooperative_matrix2 (conversions of matrices, in attention), bfloat16 (in"
        " them), integer_dot (dot products of bytes), storage_16bit (16-bit storage and float16 arithmetic), subgroup"
        " (operations of subgroups but those that every device has), host_import (of memory of"
        " the host: communicators take the transport mapped)",
        "",
        FEATURES,
        several=True,
    )
    tuning: str = _setting(
        "VKPAR_TUNING",
        "auto measures a rig at its first use and keeps the result, redo at every use; off takes built-in thresholds",
        "auto",
        ("auto", "redo", "off"),
    )
    cache_dir: str = _setting(
        "VKPAR_CACHE_DIR", "where tunings and compiled kernels are kept (empty: vkpar in the user's cache)", ""
    )
    trace: str = _setting(
        "VKPAR_TRACE", "file that a trace of this process is written to at its end, from its first open device on", ""
    )
    spin_us: int | None = _setting(
        "VKPAR_SPIN_US",
        "microseconds that waits spin before they block (unset: 500 for GPUs, where cores are to spare)",
        None,
    )


def _parse(entry: Field[Any], text: str) -> Any:
    """Return the value that ``text`` gives the setting ``entry``."""
    meta, default = entry.metadata, entry.default
    choices = meta["choices"] or _registered.get(entry.name, ())
    if isinstance(default, bool):
        if text.lower() in choices:
            return text.lower()
        if text.lower() not in _TRUE | _FALSE:
            raise _bad(entry, text, f"expected {' or '.join(('0', '1', *choices))}")
        return text.lower() in _TRUE
    if isinstance(default, int) or default is None:
        if not text.isdecimal():
            raise _bad(entry, text, "expected a whole number")
        value = int(text)
        if 0 < value < meta["least"]:
            raise _bad(entry, text, f"expected 0, or {meta['least']} bytes or more")
        return value
    if choices and not set(_named(text) if meta["several"] else [text]) <= set(choices):
        expected = "expected names, joined by commas, among" if meta["several"] else "expected one of"
        raise _bad(entry, text, f"{expected} {', '.join(choices)}")
    return text


def _bad(entry: Field[Any], text: str, why: str) -> InvalidUsageError:
    return InvalidUsageError(f"{entry.metadata['variable']}={text!r}: {why}")


def _named(text: str) -> frozenset[str]:
    """Return the names in a list that is joined by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def unknown() -> Iterator[tuple[str, str]]:
    """Yield the ``VKPAR_*`` variables of the process that mean nothing, each with what may have been meant."""
    known = [entry.metadata["variable"] for entry in fields(Environment)]
    for name in sorted(os.environ):
        if name.startswith("VKPAR_") and name not in known and not name.startswith(_OF_TESTS):
            near = difflib.get_close_matches(name, known, 1, 0.8)
            yield name, f"did you mean {near[0]}?" if near else "'vkpar env' lists those that there are"


def _warn_of_unknown() -> None:
    """Warn of them: a misspelt one would be taken for obeyed."""
    for name, hint in unknown():
        _log.warning("the environment variable %s is none of vkpar's and has no effect; %s", name, hint)


def _read() -> Environment:
    _warn_of_unknown()
    values = {}
    for entry in fields(Environment):
        text = os.environ.get(entry.metadata["variable"])
        if text:
            values[entry.name] = _parse(entry, text)
    return Environment(**values)


def _checked(settings: Environment, names: Collection[str]) -> Environment:
    """Return ``settings``, of which the fields ``names`` have passed the checks of their variables."""
    for entry in fields(Environment):
        value = getattr(settings, entry.name)
        if entry.name in names and value is not None and value != "":
            _parse(entry, str(value))
    return settings


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
    """Return the checks that ``VKPAR_DEBUG`` names."""
    return _named(get().debug)


def without() -> frozenset[str]:
    """Return the features that ``VKPAR_WITHOUT`` names."""
    return _named(get().without)


@contextmanager
def override(**values: Any) -> Iterator[Environment]:
    """Replace settings by field name for the length of a ``with`` block (for tests).

    Raises:
        InvalidUsageError: a value that its variable could not have.
    """
    global _current
    before = get()
    _current = _checked(replace(before, **values), values)
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
