"""``vkpar``: its commands, their arguments, and how a run ends."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final, NoReturn

import vkpar
from vkpar.bench.commands import WIRE_HELP, add_benchmarks, add_command, add_devices, add_json
from vkpar.bench.measure import job
from vkpar.errors import InvalidUsageError, VkparError

_OK: Final = 0
_ERROR: Final = 2  # wrong usage or a failed call; 1 says that a check failed
_INTERRUPTED: Final = 130
_OVER_PROCESSES: Final = ("bench", "doctor")


class _Misuse(InvalidUsageError):
    """Arguments that a command does not take; ``usage`` says which it takes."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong, where argparse would print it and exit."""

    def error(self, message: str) -> NoReturn:
        raise _Misuse(message, self.format_usage())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; that of the process by default.

    Returns:
        the exit status: 0, 1 for a failed check, 2 for an error, 130 after Ctrl-C.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with _together(given):
            options, unknown = _parser().parse_known_args(given)
            if unknown:
                options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            with _progress():
                return int(options.run(options))
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
        return _failed(error, as_json="--json" in given, silent=_meets(given) and job.number() > 0)


@contextmanager
def _together(given: Sequence[str]) -> Iterator[None]:
    """Have the processes that mpiexec started run a command together, and end by one error, if by any."""
    meets = _meets(given)
    try:
        together = job.start() if meets else job.current()
        try:
            yield
        except (VkparError, MemoryError) as error:
            ending = together.ended(error)
            if ending is error:
                raise
            raise ending from error
        else:
            together.finish()
        finally:
            if meets:
                job.end()
    finally:
        sys.stdout.flush()


def _meets(given: Sequence[str]) -> bool:
    """Say whether processes run this command together, of which the first prints."""
    return next((word for word in given if not word.startswith("-")), "") in _OVER_PROCESSES


def _failed(error: Exception, *, as_json: bool, silent: bool) -> int:
    """Print what went wrong, as one JSON object on standard output where that is all that may be printed."""
    message = str(error) or type(error).__name__
    if silent:
        return _ERROR
    if as_json:
        public = next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
        return _print_json({"ok": False, "type": public, "message": message}, _ERROR)
    if isinstance(error, _Misuse):
        print(error.usage, end="", file=sys.stderr)
    print(f"vkpar: error: {message}", file=sys.stderr)
    return _ERROR


@contextmanager
def _progress() -> Iterator[None]:
    """Show on standard error what the library logs, from what it is doing for a while to its warnings."""
    logger = logging.getLogger("vkpar")
    if logger.hasHandlers():
        yield  # somebody else listens
        return
    level = logger.level
    handler = logging.StreamHandler(sys.stderr) if job.current().prints else logging.NullHandler()
    handler.setFormatter(logging.Formatter("vkpar: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _closed_pipe() -> int:
    """Take a reader that left early (``| head``) for a success; nothing more is written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _OK


def _completion(options: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(_parser(), shell=options.shell))
    return _OK


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vkpar", description="The Vulkan GPUs that you already have, of any vendors, working as one rig."
    )
    parser.set_defaults(run=lambda options: _without_command(parser, options), parser=parser, json=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    devices = add_command(commands, "devices", _devices, "list the devices: drivers, memory, features")
    add_devices(devices, "only those that it names")
    devices.add_argument(
        "-v", "--verbose", action="store_true", help="a block per device: limits, heaps, queues, UUIDs"
    )

    completion = add_command(commands, "completion", _completion, "print a script that completes commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"))
    _add_doctor(commands)

    demo = add_command(
        commands, "demo", _demo, "verify an AllReduce and run a complete real model, split over the rig in every way"
    )
    add_devices(demo, "the rig; by default all GPUs, or virtual ranks of the only device")
    demo.add_argument("--weights", metavar="FILE", help="trimmed model weights, for machines without the model package")
    demo.add_argument("--wire", default="f16", metavar="WIRE", help=WIRE_HELP)

    tune = add_command(commands, "tune", _tune, "show what a rig's collectives take at which size, or measure it again")
    add_devices(tune, "the rig; a single device is opened twice")
    tune.add_argument("--redo", action="store_true", help="measure again, and keep that")

    topo = add_command(commands, "topo", _topo, "measure the roads between ranks and each device, and plan models")
    add_devices(topo, "the rig; by default all GPUs, or virtual ranks of the only device")
    topo.add_argument("--plot", metavar="FILE.png", help="draw the roads and host links; needs matplotlib")

    trace = add_command(
        commands, "trace", _trace, "run a command and write what its devices did to a file for ui.perfetto.dev"
    )
    trace.add_argument("-o", "--output", metavar="FILE", required=True, help="where the trace is written to")
    trace.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what is run")

    add_command(commands, "env", _env, "show the VKPAR_* variables, versions and helpers")

    bench = commands.add_parser("bench", help="measure and check", description="Measure and check.")
    bench.set_defaults(run=lambda options: _show_help(bench, options), parser=bench)
    add_json(bench)
    benches = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    add_benchmarks(benches)
    return parser


def _add_doctor(commands: Any) -> None:
    text = "check the machine, every driver, every device and all together, and say what to mend"
    doctor = add_command(commands, "doctor", _doctor, text)
    add_devices(doctor, "what to look at; by default all devices, each card once")
    doctor.add_argument("--quick", action="store_true", help="a sample of the kernels and wires")
    doctor.add_argument("--junit", metavar="FILE", help="write the checks as JUnit's XML")
    doctor.add_argument("--html", metavar="FILE", help="write one page, to read or to attach to a report")
    doctor.add_argument("--row", action="store_true", help="print only a row for the table in docs/rigs.md")


def _without_command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if not options.version:
        return _show_help(parser, options)
    print(json.dumps({"version": vkpar.__version__}) if options.json else f"vkpar {vkpar.__version__}")
    return _OK


def _show_help(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.json:
        raise _Misuse(f"{parser.prog} needs a command; --help lists them", parser.format_usage())
    parser.print_help(sys.stderr)
    return _ERROR


def _print_json(document: dict[str, Any], status: int = _OK) -> int:
    print(json.dumps(document, indent=2))
    return status


def _devices(options: argparse.Namespace) -> int:
    from vkpar.cli import devices

    return devices.run(options.devices, verbose=options.verbose, as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from vkpar.cli import doctor

    names = [item.name for item in fields(doctor.Options)]
    return doctor.run(doctor.Options(**{name: getattr(options, name) for name in names}))


def _demo(options: argparse.Namespace) -> int:
    from vkpar.demo import main as demo

    return demo.run(options.devices, options.weights, options.wire, options.json)


def _tune(options: argparse.Namespace) -> int:
    from vkpar.cli import tune

    return tune.run(options.devices, redo=options.redo, as_json=options.json)


def _topo(options: argparse.Namespace) -> int:
    from vkpar.cli import topo

    return topo.run(options.devices, as_json=options.json, file=options.plot)


def _trace(options: argparse.Namespace) -> int:
    from vkpar.cli import trace

    if options.json:
        raise _Misuse("trace takes no --json: the command prints what it likes", options.parser.format_usage())
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return trace.run(options.output, command)


def _env(options: argparse.Namespace) -> int:
    from vkpar.cli import environment

    return environment.run(as_json=options.json)
