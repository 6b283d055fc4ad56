"""The command line: ``vkpar devices``, ``demo``, ``tune``, ``env`` and, from :mod:`vkpar.bench.commands`, ``bench``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import vkpar
from vkpar import console, env
from vkpar.bench.commands import WIRE_HELP, add_benchmarks, add_command, add_devices, add_json
from vkpar.errors import UnsupportedError, VkparError
from vkpar.vulkan import api, instance, selector
from vkpar.vulkan.memory import memtypes
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pump import native

if TYPE_CHECKING:
    from vkpar.vulkan.physical import DeviceInfo, Heap, QueueFamily

_OK: Final = 0
_ERROR: Final = 2  # wrong usage or a failed call; 1 says that a check failed
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; that of the process by default.

    Returns:
        the exit status: 0, 1 for a failed check, 2 for an error, 130 after Ctrl-C.
    """
    try:
        try:
            options = _parser().parse_args(arguments)
            return int(options.run(options))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich ends the program so
            return _closed_pipe()
        raise
    except KeyboardInterrupt:
        print("vkpar: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (VkparError, MemoryError) as error:
        print(f"vkpar: error: {str(error) or type(error).__name__}", file=sys.stderr)
        return _ERROR


def _closed_pipe() -> int:
    """Take a reader that left early (``| head``) for a success; nothing more is written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vkpar", description="The Vulkan GPUs that you already have, of any vendors, working as one rig."
    )
    parser.set_defaults(run=lambda options: _without_command(parser, options), json=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    devices = add_command(commands, "devices", _devices, "list the devices: drivers, memory, features")
    add_devices(devices, "only those that it names")
    devices.add_argument(
        "-v", "--verbose", action="store_true", help="a block per device: limits, heaps, queues, UUIDs"
    )

    demo = add_command(commands, "demo", _demo, "verify an AllReduce and run a real model split over the rig")
    add_devices(demo, "the rig; by default all GPUs, or virtual ranks of the only device")
    demo.add_argument("--weights", metavar="FILE", help="trimmed model weights, for machines without the model package")
    demo.add_argument("--wire", default="f16", metavar="WIRE", help=WIRE_HELP)

    tune = add_command(commands, "tune", _tune, "show what a rig's collectives take at which size, or measure it again")
    add_devices(tune, "the rig; a single device is opened twice")
    tune.add_argument("--redo", action="store_true", help="measure again, and keep that")

    add_command(commands, "env", _env, "show the VKPAR_* variables, versions and helpers")

    bench = commands.add_parser("bench", help="measure and check", description="Measure and check.")
    bench.set_defaults(run=lambda _: _show_help(bench))
    add_json(bench)
    benches = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    add_benchmarks(benches)
    return parser


def _without_command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not options.version:
        return _show_help(parser)
    print(json.dumps({"version": vkpar.__version__}) if options.json else f"vkpar {vkpar.__version__}")
    return _OK


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return _ERROR


def _print_json(document: Mapping[str, Any]) -> int:
    print(json.dumps(document, indent=2))
    return _OK


def _demo(options: argparse.Namespace) -> int:
    from vkpar.demo import main as demo

    return demo.run(options.devices, options.weights, options.wire, options.json)


def _tune(options: argparse.Namespace) -> int:
    from vkpar import tune

    return tune.run(options.devices, redo=options.redo, as_json=options.json)


def _env(options: argparse.Namespace) -> int:
    rows = env.describe()
    about = {
        "vkpar": vkpar.__version__,
        "python": platform.python_version(),
        "pump": _or_error(lambda: str(native.helper().__file__)),
        "glsl_compiler": shader.compiler() or "none: install libshaderc1 or glslang-tools",
        **_loader(),
    }
    if options.json:
        return _print_json({**about, "variables": rows})
    terminal = console.console()
    table = console.table("variable", "value", "default", "meaning")
    for row in rows:
        changed = "bold" if row["value"] != row["default"] else ""
        table.add_row(row["variable"], _setting(row["value"]), _setting(row["default"]), row["meaning"], style=changed)
    terminal.print(table)
    terminal.print()
    terminal.print(console.pairs({name.replace("_", " "): str(value) for name, value in about.items()}))
    return _OK


def _loader() -> dict[str, str]:
    """Say what there is of the loader and the validation layer; no driver is loaded."""
    try:
        loader, layer = instance.loader_version(), instance.validation_layer_version()
    except UnsupportedError as error:
        return {"vulkan_loader": str(error), "validation_layer": "none"}
    return {
        "vulkan_loader": _dotted(loader),
        "validation_layer": "none: install vulkan-validationlayers" if layer is None else _dotted(layer),
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _or_error(call: Callable[[], str]) -> str:
    try:
        return call()
    except VkparError as error:
        return str(error)


def _setting(value: object) -> str:
    if value is None or value == "":
        return "-"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _devices(options: argparse.Namespace) -> int:
    infos = vkpar.enumerate_devices()
    if options.devices is not None:
        wanted = {info.index for info in selector.select(options.devices, infos)}
        infos = [info for info in infos if info.index in wanted]
    if options.json:
        return _print_json({"vkpar": vkpar.__version__, "devices": [info.as_dict() for info in infos]})
    terminal = console.console()
    if options.verbose:
        for info in infos:
            terminal.print(f"{info.index}: {info.name}", style="bold")
            terminal.print(console.pairs(_details(info)))
            terminal.print()
        return _OK
    table = console.table("#", "device", "type, memory", "PCI, UUID", "queues", "features")
    for info in infos:
        table.add_row(str(info.index), *("\n".join(cell) for cell in _cells(info)), ", ".join(_features(info)))
        table.add_section()
    terminal.print(table)
    terminal.print("queues: number and abilities (Graphics, Compute, Transfer). More: -v, --json.", style="dim")
    return _OK


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
        "cooperative matrix": "\n".join(info.features.cooperative_matrix) or "-",
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
    return info.driver_info or _dotted(api.version(info.driver_version))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _limit(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, (tuple, list)) else f"{value:,}"
