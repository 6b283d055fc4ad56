"""``vkpar bench model``: a whole decoder with made-up weights, prompts and tokens, in every split of a rig.

Tests are named as llama-bench does: ``pp512`` is a prompt of 512 tokens, ``tg128 @ d4096`` 128 tokens one after the
other behind 4,096 that are kept. Weights are random blocks that repeat, so that nothing is read from a disk. The first
run of a test stands for itself; then GPUs are kept busy until their clocks have risen, and only then runs count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from vkpar import env
from vkpar.bench import model_plot, model_texts
from vkpar.bench.decode import PRESETS, Shape
from vkpar.bench.frame import frame, picture, table
from vkpar.bench.measure import experts
from vkpar.bench.model_presets import MODELS
from vkpar.bench.model_rows import COLUMNS, Row, line_of
from vkpar.bench.model_weights import KINDS, weights
from vkpar.comm.communicator import Communicator
from vkpar.comm.tune.settling import warm_up
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.files.weights import Weights
from vkpar.parallel.models import config as configs
from vkpar.parallel.models import two_halves
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.loading import cache_type, check_sequences
from vkpar.parallel.models.opening import ModelFile
from vkpar.parallel.models.texts import Texts
from vkpar.parallel.plan.placing import MODES
from vkpar.parallel.plan.plan import plan
from vkpar.parallel.plan.report import Plan
from vkpar.parallel.plan.scratch import batch_of
from vkpar.parallel.plan.spec import ModelSpec
from vkpar.text import units

STEPS: Final = ("captured", "eager")
SPLITS: Final = ("auto", *MODES)
_PROMPTS: Final = ((512, 2048), (64,))  # by default, on GPUs and on CPUs
_DEPTHS: Final = ((0, 4096, 16384), (0, 64))


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        preset: sizes of the model; None for what suits the devices, or where ``config``, a config.json, has them.
        vocabulary: of a preset that is a shape alone.
        weights: one of :data:`KINDS`.
        splits: among :data:`SPLITS`; those that are not possible are told, and left out.
        ratios: what the devices get, as plans take it, one or several.
        wires: how float32 crosses links.
        steps: among :data:`STEPS`.
        prompts: tokens of prompts; ``tokens`` that are made after ``depths`` tokens. None for what suits the devices.
        sequences: how many texts at once, one or several numbers. Prompts of several join one after the other.
        repeat: runs, of which the medians count.
        halves: how prompts of tensor splits go through, each in rows of its own; see :attr:`Llama.halves`.
        expert_sums: of mixtures in tensor splits, among :data:`experts.SUMS`: one after experts are added, or one
            of each expert before.
        slow_links: how many times staged transfers read and write host memory; 1 for once.
        profile: say what a prompt spends in sums, too.
        plot: a file for a picture.
    """

    devices: str | None = None
    preset: str | None = None
    config: str | None = None
    vocabulary: int = 32000
    weights: str = "float16"
    splits: tuple[str, ...] = ("single", "layer", "tensor")
    ratios: tuple[str, ...] = ("even",)
    wires: tuple[str, ...] = ("f16",)
    steps: tuple[str, ...] = ("captured",)
    prompts: tuple[int, ...] | None = None
    tokens: int = 128
    depths: tuple[int, ...] | None = None
    sequences: tuple[int, ...] = (1,)
    repeat: int = 3
    halves: tuple[str, ...] = (two_halves.AUTO,)
    expert_sums: tuple[str, ...] = (experts.DELAYED,)
    slow_links: int = 1
    profile: bool = False
    plot: str | None = None

    @property
    def context(self) -> int:
        """Tokens that there is room for."""
        return max(*(self.prompts or ()), *(depth + self.tokens for depth in self.depths or ()), 1, 1) + 8

    def on(self, *, cpu: bool) -> Options:
        """Return the options with what suits the devices: a CPU among them takes a small model and small prompts."""
        prompts = self.prompts and tuple(count for count in self.prompts if count)  # 0: no prompts
        depths = self.depths
        preset = "tiny" if cpu else "8b"
        return replace(
            self,
            preset=preset if self.preset is None and self.config is None else self.preset,
            prompts=_PROMPTS[cpu] if prompts is None else prompts,
            depths=_DEPTHS[cpu] if depths is None else depths,
        )

    def model(self) -> Config:
        """Return the decoder's sizes."""
        if self.preset in MODELS:
            return MODELS[self.preset]
        if self.config is None:
            return of_shape(PRESETS[self.preset or "8b"], self.vocabulary, self.context)
        path = Path(self.config)
        found = configs.read_object(path)
        if found is None:
            raise InvalidUsageError(f"{path} cannot be read: there is no such file")
        return configs.of_json(found, str(path))


def of_shape(shape: Shape, vocabulary: int, context: int) -> Config:
    """Return a Llama of a shape."""
    return Config(
        "llama",
        shape.layers,
        shape.hidden,
        shape.intermediate,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        vocabulary,
        context,
        1e-5,
        5e5,
    )


@dataclass
class Report(frame.Report):
    """Everything of one run.

    ``refused`` says why splits are missing, ``plans`` how the others lie and what they took of each device, ``auto``
    which one a plan would take.
    """

    benchmark = "model"
    options: Options
    model: Config
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    auto: list[str] = field(default_factory=list)

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench model: {self.model.describe()}, {options.weights} weights",
            f"# repeat {options.repeat}, context {options.context}",
            *self.rig.lines(),
            "#" + line_of([title for title, _, _ in COLUMNS], width),
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            *(f"# {reason}" for reason in (*self.refused, *self.auto)),
            *(f"# {line}" for found in self.plans for line in _held_lines(found)),
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            "# pp: a prompt's tokens a second; tg: tokens a second, one after the other, d: after so many others.",
            "# x: so many texts at once, all of whose tokens count.",
            "# each: experts of a mixture are summed over the ranks before they are added, not after.",
            "# first(ms): of the first run, which makes pipelines and graphs; on GPUs others wait for clocks to rise.",
            "# #wrong: logits that are not finite, after each test.",
        ]


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    for name, chosen, known in (
        ("split", options.splits, SPLITS),
        ("step", options.steps, STEPS),
        ("kind of weights", (options.weights,), KINDS),
        ("setting of halves", options.halves, two_halves.SETTINGS),
        ("sum of experts", options.expert_sums, experts.SUMS),
    ):
        unknown = next((each for each in chosen if each not in known), None)
        if unknown is not None:
            raise InvalidUsageError(f"there is no {name} {unknown!r}; there are {', '.join(known)}")
    for count in options.sequences:
        check_sequences(count)
    if options.plot is not None:
        picture.check(options.plot)
    if options.slow_links > 1:
        stack.enter_context(env.override(slow_links=options.slow_links))
    devices = frame.open_devices(stack, options.devices)
    options = options.on(cpu=any(device.info.is_cpu for device in devices))
    model = options.model()
    with ExitStack() as brief:
        _, rig = frame.connect(brief, devices, wire=options.wires[0], algorithm="auto", transport="auto")
    report = Report(options, model, rig)
    return report, _rows(report, devices)


def _rows(report: Report, devices: Sequence[Device]) -> Iterator[Row]:
    options = report.options
    made = weights(report.model, options.weights)
    kept = cache_type(report.model, made, devices)
    spec = ModelFile(Path(), report.model, Weights("made up", [], made, {})).spec(kept)
    for wire in options.wires:
        with Communicator(devices, wire=wire) as comm:
            for ratios in options.ratios:
                report.auto += _auto(spec, comm, _Named("auto", ratios, wire), options)
                for mode, count in product(options.splits, options.sequences):
                    settings: dict[str, Any] = {"context": options.context, "batch": count, "strict": True}
                    try:
                        found = plan(spec, comm, mode=mode, ratios=ratios, **settings)
                    except UnsupportedError as error:
                        report.refused += [str(error)] * (str(error) not in report.refused)
                        continue
                    for sums in experts.sums_of(report.model, found.mode, options.expert_sums):
                        named = _Named(mode, ratios, wire, sums)
                        taken = {**found.as_dict(), "split": mode, "wire": wire, "expert_sums": sums}
                        report.plans.append({**taken, "held": [], "sums": None})
                        yield from _split(report, made, comm, found, named, report.plans[-1])
    if options.plot is not None and report.rows:
        model_plot.draw(report.as_dict(), options.plot)


def _auto(spec: ModelSpec, comm: Communicator, named: _Named, options: Options) -> list[str]:
    """Say what a plan takes by itself, and why; nothing where there is one device, or no mode is possible."""
    if comm.nranks == 1:
        return []
    try:
        found = plan(spec, comm, ratios=named.ratios, context=options.context)
    except UnsupportedError:
        return []
    return [f"auto, ratios {named.ratios}, wire {named.wire}: {found.reasons[0]}"] if found.reasons else []


@dataclass(frozen=True)
class _Named:
    split: str
    ratios: str
    wire: str
    expert_sums: str = experts.DELAYED


def _split(
    report: Report, made: dict[str, LazyTensor], comm: Communicator, found: Plan, named: _Named, taken: dict[str, Any]
) -> Iterator[Row]:
    """Measure one split; what it took of the devices goes to ``taken``."""
    options, config, devices = report.options, report.model, comm.devices
    before = _arrays(devices)
    name = named.split if named.split != "auto" else f"auto:{found.mode}"
    name += f":{named.expert_sums}" * (named.expert_sums != experts.DELAYED)
    with Llama(config, made, comm, found.placement, context=options.context, sequences=found.batch) as model:
        if named.expert_sums == experts.EACH:
            experts.sum_each(model)
        model.plan = found
        if found.batch > 1:
            for count in options.prompts or ():
                with Texts(model) as texts:
                    times = _times(partial(model_texts.prompts, texts, count), devices, options.repeat)
                    texts.step()
                    test, tokens = f"pp{count} x{found.batch}", count * found.batch
                    yield _row(name, named, "-", test, tokens, times, texts.logits())
            for depth in options.depths or ():
                test = f"tg{options.tokens} x{found.batch} @ d{depth}"
                tokens = options.tokens * found.batch
                with model_texts.joined(model, depth, options.tokens) as texts:
                    times = _times(partial(model_texts.tokens, texts, options.tokens), devices, options.repeat)
                    yield _row(name, named, "captured", test, tokens, times, texts.logits())
            taken["held"] = [now - was for now, was in zip(_arrays(devices), before, strict=True)]
            return
        for count in options.prompts or ():
            for halves in _halves(model, options):
                model.halves = halves
                times = _times(partial(_prompt, model, count), devices, options.repeat)
                step = "halves" if model.in_halves(count) else "-"
                yield _row(name, named, step, f"pp{count}", count, times, model.next_logits())
        model.halves = two_halves.AUTO
        for step in options.steps:
            for depth in options.depths or ():
                model.rewind()
                model.prefill([1] * max(depth, 1))
                run = partial(_tokens, model, max(depth, 1), options.tokens, step)
                test = f"tg{options.tokens} @ d{depth}"
                times = _times(run, devices, options.repeat)
                yield _row(name, named, step, test, options.tokens, times, model.next_logits())
        taken["held"] = [now - was for now, was in zip(_arrays(devices), before, strict=True)]
        count = min(max(options.prompts or (0,)), batch_of(devices)) - 1  # of no other prompt: it runs eagerly
        if options.profile and count > 0 and comm.nranks > 1:
            taken["sums"] = _sums(model, comm, count)


def _halves(model: Llama, options: Options) -> tuple[str, ...]:
    """Return how a split's prompts are run: as asked for where ranks sum, else in one way."""
    sums = two_halves.possible(model.placement.mode, model.comm.nranks)
    return options.halves if sums else (two_halves.OFF,)


def _arrays(devices: Sequence[Device]) -> list[int]:
    """Return the bytes of each device's arrays once its work is done."""
    for device in devices:
        device.synchronize()
    return [device.memory().arrays for device in devices]


def _sums(model: Llama, comm: Communicator, count: int) -> dict[str, Any]:
    """Return how long a prompt took, and by rank how long the kernels of its sums."""
    _prompt(model, count)  # makes pipelines
    _prompt(model, 1)
    with comm.profile() as profile:
        seconds = _prompt(model, count)
    kernels = [0.0] * comm.nranks
    for step in profile.steps:
        kernels[step.rank] += step.seconds * (step.op == "all_reduce")
    return {"tokens": count, "seconds": seconds, "kernels": kernels}


def _held_lines(found: dict[str, Any]) -> Iterator[str]:
    """Say what a split took of the devices beside what was planned, and what sums took of a prompt."""
    split = found["mode"] if found["split"] == found["mode"] else f"{found['split']} ({found['mode']})"
    name = f"{split}, ratios {':'.join(f'{ratio:.3g}' for ratio in found['ratios'])}, wire {found['wire']}"
    name += f", {found['batch']} texts" * (found["batch"] > 1)
    name += ", a sum an expert" * (found["expert_sums"] == experts.EACH)
    held = [
        (units(nbytes), units(rank["total"]))
        for nbytes, rank in zip(found["held"], found["memory"], strict=False)
        if rank["weights"]
    ]
    if held:
        now, planned = (", ".join(side) for side in zip(*held, strict=True))
        yield f"{name}: arrays hold {now}; planned, with a piece of a prompt under way: {planned}"
    sums = found["sums"]
    if sums is not None and any(sums["kernels"]):
        most = max(sums["kernels"])
        yield (
            f"{name}: of a prompt of {sums['tokens']} tokens, run eagerly and profiled, {1e3 * most:.1f} of "
            f"{1e3 * sums['seconds']:.1f} ms are sums"
        )


def _times(run: Callable[[], float], devices: Sequence[Device], repeat: int) -> list[float]:
    """Return the seconds of the first run, and then those of runs once clocks have risen."""
    first = run()
    warm_up(run, devices)
    return [first, *(run() for _ in range(repeat))]


def _row(name: str, named: _Named, step: str, test: str, count: int, times: list[float], logits: Any) -> Row:
    wrong = int(np.count_nonzero(~np.isfinite(logits)))
    first, *seconds = times
    rate, least, most = (count / each for each in (median(seconds), max(seconds), min(seconds)))
    return Row(name, named.ratios, named.wire, step, test, rate, least, most, first, wrong)


def _prompt(model: Llama, count: int) -> float:
    """Return the seconds of a prompt."""
    ids = [1 + number % (model.config.vocabulary - 1) for number in range(count)]
    model.rewind()
    start = time.perf_counter()
    model.prefill(ids)
    model.next_token()
    return time.perf_counter() - start


def _tokens(model: Llama, depth: int, count: int, step: str) -> float:
    """Return the seconds of tokens one after the other."""
    try:
        model.rewind(depth)
    except InvalidUsageError:  # more tokens than windows are kept for
        model.rewind()
        model.prefill([1] * depth)
    start = time.perf_counter()
    for number in range(count):
        token = None if number else 1
        if step == "captured":
            model.feed(token)
        else:
            model.prefill([model.next_token() if token is None else token])
    model.next_token()
    return time.perf_counter() - start
