"""``vkpar devices``: what the machine's drivers offer, as a table or in detail."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import vkpar
from vkpar.cli import console
from vkpar.comm.rig.transports import peer
from vkpar.errors import UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.machine import selector
from vkpar.vulkan.memory import memtypes

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo, Heap, QueueFamily


def run(devices: str | None, *, verbose: bool, as_json: bool) -> int:
    """Print the devices that there are.

    Raises:
        InvalidUsageError: the selector matches nothing.
        UnsupportedError: no loader, no driver or no device.
    """
    with _behind():
        _show(devices, vkpar.enumerate_devices(), verbose=verbose, as_json=as_json)
    return 0


@contextmanager
def _behind() -> Iterator[None]:
    """Log what is logged in the block at its end: behind a table, where it is seen."""
    logger, records = logging.getLogger("vkpar"), list[logging.LogRecord]()

    def hold(record: logging.LogRecord) -> bool:
        records.append(record)
        return False

    logger.addFilter(hold)
    try:
        yield
    finally:
        sys.stdout.flush()
        logger.removeFilter(hold)
        for record in records:
            logger.handle(record)


def _show(devices: str | None, every: list[DeviceInfo], *, verbose: bool, as_json: bool) -> None:
    """Print those of the devices that a selector names."""
    infos = every
    if devices is not None:
        wanted = {info.index for info in selector.select(devices, infos)}
        infos = [info for info in infos if info.index in wanted]
    if as_json:
        document = {"vkpar": vkpar.__version__, "devices": [info.as_dict() for info in infos]}
        print(json.dumps(document, indent=2))
        return
    terminal = console.console()
    if verbose:
        for info in infos:
            terminal.print(f"{info.index}: {info.name}", style="bold")
            details = {"names": ", ".join(selector.names(info, every)), **_details(info)}
            terminal.print(console.pairs(details | {"other cards": "\n".join(_others(info, every)) or "-"}))
            terminal.print()
        return
    table = console.table("#", "device", "type, memory", "PCI, UUID", "queues", "features")
    for info in infos:
        table.add_row(str(info.index), *("\n".join(cell) for cell in _cells(info)), ", ".join(_features(info)))
        table.add_section()
    terminal.print(table)
    named = "; ".join(", ".join(selector.names(info, every)[:2]) for info in infos)
    joined = ", ".join(selector.several(every))
    terminal.print(f"names for --devices: {named}; several: {joined}.", style="dim", markup=False)
    terminal.print("queues: number and abilities (Graphics, Compute, Transfer). More: -v, --json.", style="dim")


def _others(info: DeviceInfo, every: list[DeviceInfo]) -> Iterator[str]:
    """Yield, for each other card of the vendor, how the card's copy engines reach its memory, or why they do not."""
    for other in every:
        if other.index != info.index and {info.driver_id, other.driver_id} <= set(peer.vendors()):
            vendor, told = peer.reach([info, other])
            yield f"{other.index}: {'not reached: ' if vendor is None else 'reached by '}{told}"


def _cells(info: DeviceInfo) -> tuple[list[str], ...]:
    """Return the lines of a device's cells in the table, up to its features."""
    queues = [f"{q.count} {''.join(name[0].upper() for name in _abilities(q)) or '-'}" for q in info.queue_families]
    largest = max((heap for heap in info.heaps if heap.device_local), key=lambda heap: heap.nbytes, default=None)
    budget, used = (largest.budget, largest.used) if largest else (None, None)
    free = [] if budget is None else [f"{_gib(budget - (used or 0))} free"]
    return (
        [info.name, f"{info.vendor}, {info.driver_name}", _driver_version(info)],
        [info.type, _gib(info.memory_bytes), *free],
        [info.pci_address or "-", info.device_uuid[:8]],
        queues,
    )


def _features(info: DeviceInfo) -> list[str]:
    features = info.features
    named = {
        "16-bit storage": features.storage_16bit,
        "f16": features.float16,
        "host import": features.host_import,
        "timeline export": features.timeline_export,
        f"subgroup {features.subgroup_size}": True,
        f"{len(features.cooperative_matrix)} coopmat shapes": bool(features.cooperative_matrix),
    }
    return [name for name, there in named.items() if there]


def _details(info: DeviceInfo) -> dict[str, str]:
    flags = {name: value for name, value in asdict(info.features).items() if isinstance(value, bool)}
    return {
        "vendor": f"{info.vendor} (0x{info.vendor_id:04x}), device 0x{info.device_id:04x}",
        "driver": f"{info.driver_name} {_driver_version(info)} (id {info.driver_id})",
        "Vulkan": ".".join(map(str, info.api_version)),
        "type": info.type,
        "PCI address": info.pci_address or "-",
        "device UUID": info.device_uuid,
        "driver UUID": info.driver_uuid,
        "heaps": "\n".join(map(_heap, info.heaps)),
        "memory taken": "\n".join(_taken(info, kind) for kind in memtypes.KINDS),
        "queue families": "\n".join(map(_family, info.queue_families)),
        "features": ", ".join(name for name, there in flags.items() if there) or "-",
        "without": ", ".join(name for name, there in flags.items() if not there) or "-",
        "subgroup size": str(info.features.subgroup_size),
        "float atomics": "\n".join(info.features.float_atomics) or "-",
        "cooperative matrix": "\n".join(info.features.cooperative_matrix) or "-",
        "flexible matrices": "\n".join(info.features.cooperative_matrix2) or "-",
        "matrix features": "\n".join(info.features.matrix_features) or "-",
        "limits": "\n".join(f"{name} {_limit(value)}" for name, value in asdict(info.limits).items()),
        "extensions": f"{len(info.extensions)} (names: --json)",
    }


def _heap(heap: Heap) -> str:
    local = "device-local" if heap.device_local else "host"
    budget = "" if heap.budget is None else f", budget {_gib(heap.budget)}, used {_gib(heap.used or 0)}"
    return f"{heap.index}: {_gib(heap.nbytes)} {local}{budget}"


def _taken(info: DeviceInfo, kind: str) -> str:
    """Say which memory is taken for arrays (``device``), for uploads and for reads."""
    try:
        number = memtypes.choose(info, kind)
    except UnsupportedError:
        return f"{kind}: none"
    return f"{kind}: type {number} of heap {info.memory_types[number][1]}"


def _family(family: QueueFamily) -> str:
    stamps = f"{family.timestamp_bits}-bit timestamps" if family.timestamp_bits else "no timestamps"
    return f"{family.index}: {family.count} x {' '.join(_abilities(family)) or 'other'}, {stamps}"


def _abilities(family: QueueFamily) -> list[str]:
    return [name for name in ("graphics", "compute", "transfer") if getattr(family, name)]


def _driver_version(info: DeviceInfo) -> str:
    return info.driver_info or api.dotted(api.version(info.driver_version))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _limit(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, (tuple, list)) else f"{value:,}"
