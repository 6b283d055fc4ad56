"""The benchmarks' part of the command line, and what its other commands share with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final, TypeVar

from vkpar.bench import copy, host, launch, matmul, model, model_weights, selfcheck, step, sweep
from vkpar.bench.decode import PRESETS
from vkpar.bench.frame import frame
from vkpar.bench.frame.table import parse_size
from vkpar.bench.measure import job
from vkpar.bench.measure.collectives import TABLE, Collective
from vkpar.bench.measure.copying import COPIES
from vkpar.bench.measure.exact import OPS
from vkpar.bench.model_presets import MODELS
from vkpar.comm.rig.choice import TRANSPORTS
from vkpar.comm.schedule.algorithms.table import TABLE as ALGORITHMS
from vkpar.comm.wires import NAMES
from vkpar.errors import UnsupportedError, VkparError
from vkpar.parallel.models import two_halves

WIRE_HELP: Final = f"how float32 crosses a link: {', '.join(NAMES)} (default: f16)"
_RIG: Final = "the rig; by default the GPUs, or two virtual ranks of the only device"

_OVER_PROCESSES: Final = (sweep, selfcheck)  # what mpiexec may start

_T = TypeVar("_T")


# ---- what all commands share ----


def add_command(commands: Any, name: str, run: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
    """Add the command ``name``, which calls ``run`` with the parsed arguments; ``text`` says what it does."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    made.set_defaults(run=run, parser=made)  # which of the parsers it was, for what is wrong
    add_json(made)
    return made


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take ``--json``."""
    # Suppressed, so that a --json before the command is not undone.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document and nothing else"
    )


def add_devices(parser: argparse.ArgumentParser, text: str) -> None:
    """Let ``parser`` take ``--devices``; ``text`` says what they are for."""
    selector = "an index, UUID, PCI address, piece of a name, all, gpu or cpu, joined by &, *N for N of each"
    parser.add_argument("--devices", metavar="SELECTOR", help=f"{text}: {selector}")


# ---- the benchmarks ----


def add_benchmarks(benches: Any) -> None:
    """Add every benchmark to the sub-commands of ``vkpar bench``."""
    for collective in TABLE.values():
        _add_collective(benches, collective)
    _add_all(benches)
    _add_host(benches)
    _add_launch(benches)
    _add_step(benches)
    _add_model(benches)
    _add_matmul(benches)
    _add_copy(benches)


def _add_collective(benches: Any, collective: Collective) -> None:
    name = collective.name
    text = f"time and check {name}, as nccl-tests does" if collective.moves else f"time {name}"
    parser = add_command(benches, name, _run(sweep), text)
    parser.set_defaults(collective=name)
    if collective.moves:
        add_sizes(parser)
    add_counts(parser, sweep.Options, check=collective.moves, auto=True)
    if collective.in_place:
        parser.add_argument("--in-place", dest="in_place_only", action="store_true", help="measure in place only")
    add_devices(parser, _RIG)
    _add_transport(parser)
    if collective.moves:
        _add_choice(parser, "--dtype", "TYPE", sweep.DTYPES, short="-d")
    if collective.reduces:
        text = f"how float32 crosses a link: {', '.join(NAMES)} (default: f32 for prod, else VKPAR_WIRE, or f16)"
        parser.add_argument("--wire", metavar="WIRE", help=text)
        _add_algorithm(parser)
        _add_choice(parser, "--op", "OP", OPS)
    if collective.rooted:
        parser.add_argument("--root", type=whole(0), default=0, metavar="RANK", help="the one rank (default: 0)")
    _add_profile(parser)
    if collective.moves:
        _add_plot(parser, "the time and the bandwidth over the size")


def _add_plot(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--plot", metavar="FILE", help=f"draw {what}, as PNG, SVG or PDF; needs matplotlib")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", action="store_true", help="say where the time of the last size goes, step by step")
    text = "write those steps as Chrome trace events, for chrome://tracing or ui.perfetto.dev"
    parser.add_argument("--trace", metavar="FILE", help=text)


def _add_choice(
    parser: argparse.ArgumentParser, name: str, metavar: str, choices: Sequence[str], *, short: str | None = None
) -> None:
    """Add an option with the first of ``choices`` as its default."""
    text = f"{', '.join(choices)} (default: {choices[0]})"
    parser.add_argument(
        *([short] if short else []), name, default=choices[0], choices=choices, metavar=metavar, help=text
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take the sizes of a sweep."""
    size = _argument(parse_size)
    parser.add_argument(
        "-b", "--minbytes", type=size, metavar="SIZE", help="first size, such as 8, 64K, 1M (default: 8K)"
    )
    parser.add_argument("-e", "--maxbytes", type=size, metavar="SIZE", help="last size (default: 32M)")
    parser.add_argument(
        "-f", "--stepfactor", type=whole(2), default=4, metavar="N", help="from size to size (default: 4)"
    )
    parser.add_argument(
        "--sizes",
        dest="sizelist",
        type=_argument(selfcheck.parse_sizes),
        default=(),
        metavar="SIZE[,...]",
        help="these sizes, in place of -b, -e and -f",
    )


def add_counts(parser: argparse.ArgumentParser, defaults: Any, *, check: bool = True, auto: bool = False) -> None:
    """Let ``parser`` take numbers of calls; ``auto`` adds that choice for the timed ones."""
    timed = "timed calls, or auto: about 0.2 s of them, 5 to 1000" if auto else "timed calls"
    for short, long, convert, default, text in (
        ("-n", "--iters", _iters if auto else whole(1), defaults.iters, timed),
        ("-w", "--warmup_iters", whole(0), defaults.warmup_iters, "calls before them"),
    ):
        parser.add_argument(
            short, long, type=convert, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    if check:
        _add_check(parser, 0, "checked calls, 0 for none")


def _add_check(parser: argparse.ArgumentParser, least: int, text: str) -> None:
    parser.add_argument("-c", "--check", type=whole(least), default=1, metavar="N", help=f"{text} (default: 1)")


def _add_algorithm(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(("auto", *ALGORITHMS))
    parser.add_argument("--algorithm", default="auto", metavar="NAME", help=f"{names} (default: auto)")


def _add_transport(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(TRANSPORTS)
    parser.add_argument("--transport", default="auto", metavar="NAME", help=f"{names} (default: auto)")


def _add_all(benches: Any) -> None:
    text = "check every collective on a few sizes of every dtype and wire"
    parser = add_command(benches, "all", _run(selfcheck), text)
    add_devices(parser, _RIG)
    parser.add_argument(
        "--sizes",
        type=_argument(selfcheck.parse_sizes),
        default=selfcheck.SIZES,
        metavar="SIZE[,...]",
        help=f"default: {','.join(map(str, selfcheck.SIZES))}",
    )
    _add_check(parser, 1, "calls of each kind")
    _add_transport(parser)
    _add_algorithm(parser)


def _add_host(benches: Any) -> None:
    text = "time a small all_reduce on the host, alone and beside a busy Python thread"
    parser = add_command(benches, "host", _run(host), text)
    size = _argument(parse_size)
    parser.add_argument("--size", type=size, default=host.SIZE, metavar="SIZE", help="of the message (default: 8K)")
    add_counts(parser, host.Options, check=False)
    add_devices(parser, _RIG)
    _add_transport(parser)


def _add_launch(benches: Any) -> None:
    text = "time and check small operations on the host and in all, alone and in chains, device by device"
    parser = add_command(benches, "launch", _run(launch), text)
    add_devices(parser, "what to measure; by default the GPUs")
    add_counts(parser, launch.Options)
    add_repeat(parser, launch.Options)


def _add_step(benches: Any) -> None:
    text = "time and check a decode step of a Llama-shaped model split over the devices, eager and captured"
    parser = add_command(benches, "step", _run(step), text)
    add_devices(parser, "what the model is split over; by default the GPUs")
    add_shape(parser)
    add_modes(parser, tuple(step.MODES))
    add_counts(parser, step.Options)
    add_repeat(parser, step.Options)
    parser.add_argument("--wire", metavar="WIRE", help=WIRE_HELP)
    _add_algorithm(parser)
    _add_transport(parser)


def _add_model(benches: Any) -> None:
    text = "time prompts and tokens of a whole decoder with made-up weights, in every split of the devices"
    parser = add_command(benches, "model", _run(model), text)
    add_devices(parser, "what the model is split over; by default the GPUs")
    sizes = f"sizes of the model: {', '.join((*PRESETS, *MODELS))} (default: 8b, on CPUs tiny)"
    parser.add_argument("--preset", choices=[*PRESETS, *MODELS], metavar="NAME", help=sizes)
    parser.add_argument("--config", metavar="FILE", help="a config.json of a model in place of a preset")
    defaults = model.Options
    parser.add_argument(
        "--vocabulary", type=whole(2), default=defaults.vocabulary, metavar="N", help="of a preset (default: 32000)"
    )
    _add_choice(parser, "--weights", "KIND", model_weights.KINDS)
    for name, known in (("splits", ", ".join(model.SPLITS)), ("ratios", "even, speed, memory, or numbers such as 3:1")):
        default = getattr(defaults, name)
        listed = f"{known} (default: {','.join(default)})"
        parser.add_argument(f"--{name}", type=_names, default=default, metavar="NAMES", help=listed)
    parser.add_argument("--wires", type=_names, default=defaults.wires, metavar="NAMES", help=WIRE_HELP)
    parser.add_argument(
        "--steps", type=_names, default=defaults.steps, metavar="NAMES", help=f"{', '.join(model.STEPS)}, or both"
    )
    for name, text in (
        ("prompts", "tokens of prompts (default: 512,2048, on CPUs 64)"),
        ("depths", "tokens that are kept before those that are made (default: 0,4096,16384, on CPUs 0,64)"),
    ):
        parser.add_argument(f"--{name}", type=_numbers, metavar="N[,...]", help=text)
    parser.add_argument("--tokens", type=whole(1), default=defaults.tokens, metavar="N", help="made (default: 128)")
    text = "texts at once, up to 32 (default: 1)"
    parser.add_argument("--sequences", type=_numbers, default=defaults.sequences, metavar="N[,...]", help=text)
    add_repeat(parser, defaults)
    known = ", ".join(two_halves.SETTINGS)
    parser.add_argument(
        "--halves",
        type=_names,
        default=defaults.halves,
        metavar="NAMES",
        help=f"whether prompts of tensor splits go in two halves: {known}, or several (default: auto, as planned)",
    )
    text = "of mixtures in tensor splits: delayed, after experts are added (default), each, of each one before, or both"
    parser.add_argument("--expert-sums", type=_names, default=defaults.expert_sums, metavar="NAMES", help=text)
    parser.add_argument(
        "--slow-links",
        type=whole(1),
        default=defaults.slow_links,
        metavar="K",
        help="have staged transfers read and write host memory K times, as a rig of slower links would take",
    )
    parser.add_argument("--profile", action="store_true", help="say what a prompt spends in sums")
    _add_plot(parser, "the rates")


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take the sizes of a model."""
    text = f"sizes of the model: {', '.join(PRESETS)} (default: 8b, on CPUs tiny)"
    parser.add_argument("--preset", choices=list(PRESETS), metavar="NAME", help=text)
    for name in ("layers", "hidden", "intermediate", "heads", "kv-heads", "head-dim"):
        parser.add_argument(f"--{name}", type=whole(1), metavar="N", help="in place of the preset's")


def add_modes(parser: argparse.ArgumentParser, known: tuple[str, ...]) -> None:
    """Let ``parser`` take the modes of a step, all the ``known`` ones by default."""
    convert = _argument(partial(step.parse_modes, known=known))
    text = f"among {', '.join(known)} (default: all)"
    parser.add_argument("--modes", type=convert, default=known, metavar="NAMES", help=text)


def add_repeat(parser: argparse.ArgumentParser, defaults: Any) -> None:
    """Let ``parser`` take a number of runs."""
    repeat = defaults.repeat
    parser.add_argument("--repeat", type=whole(1), default=repeat, metavar="N", help=f"runs (default: {repeat})")


def _add_matmul(benches: Any) -> None:
    parser = add_command(benches, "matmul", _run(matmul), "time and check the matrix product, device by device")
    add_devices(parser, "what to measure; by default the GPUs")
    sizes = _argument(matmul.parse_shapes)
    parser.add_argument(
        "--sizes", type=sizes, metavar="M,N,K[;...]", help="default: squares of 1024 to 4096, on CPUs of 128 to 512"
    )
    parser.add_argument(
        "--dtypes",
        type=_argument(matmul.parse_dtypes),
        default=matmul.Options.dtypes,
        metavar="TYPES",
        help=f"among {', '.join(matmul.DTYPES)} (default: {','.join(matmul.Options.dtypes)})",
    )
    parser.add_argument("--transpose-b", action="store_true", help="give the second matrix as (N, K)")
    add_counts(parser, matmul.Options)


def _add_copy(benches: Any) -> None:
    text = "time and check writes and reads of arrays beside raw copies and a memcpy, device by device"
    parser = add_command(benches, "copy", _run(copy), text)
    add_devices(parser, "what to measure; by default the GPUs")
    size = _argument(parse_size)
    parser.add_argument("--size", type=size, default=copy.SIZE, metavar="SIZE", help="of each copy (default: 256M)")
    parser.add_argument(
        "--copies",
        type=_argument(copy.parse_copies),
        default=copy.Options.copies,
        metavar="NAMES",
        help=f"among {', '.join(COPIES)} (default: all)",
    )
    add_counts(parser, copy.Options)


def _run(module: Any) -> Callable[[argparse.Namespace], int]:
    """Return the command that runs ``module`` with the parsed arguments that its ``Options`` name."""

    def run(options: argparse.Namespace) -> int:
        if module not in _OVER_PROCESSES and job.current().size > 1:
            raise UnsupportedError(f"{options.parser.prog} measures one process: start it without mpiexec")
        names = [item.name for item in fields(module.Options) if hasattr(options, item.name)]
        chosen = module.Options(**{name: getattr(options, name) for name in names})
        return frame.run(partial(module.start, chosen), as_json=options.json)

    return run


# ---- arguments ----


def _argument(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Make an argparse type of a function that raises :class:`VkparError`, keeping its message."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except VkparError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def whole(least: int) -> Callable[[str], int]:
    """Return an argparse type that takes whole numbers from ``least``."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from {least}")
        return int(text)

    return convert


def _names(text: str) -> tuple[str, ...]:
    """Return names that commas join; colons within one are commas of its own."""
    return tuple(name.strip().replace(":", ",") for name in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers from 0 that commas join."""
    return tuple(whole(0)(number) for number in text.split(","))


def _iters(text: str) -> int | None:
    """Return a number of timed calls, None for ``auto``."""
    if text == "auto":
        return None
    try:
        return whole(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from error
