"""``vkpar bench model``: a whole decoder with made-up weights, prompts and tokens, in every split of a rig.

Tests are named as llama-bench does: ``pp512`` is a prompt of 512 tokens, ``tg128 @ d4096`` 128 tokens one after the
other behind 4,096 that are kept. Weights are random blocks that repeat, so that nothing is read from a disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.bench import frame, table
from vkpar.bench.decode import PRESETS, Shape
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.blocks import FORMATS
from vkpar.parallel.lazy import LazyTensor
from vkpar.parallel.models import config as configs
from vkpar.parallel.models import naming
from vkpar.parallel.models.building import units_of
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.loading import cache_type
from vkpar.parallel.models.placement import place
from vkpar.parallel.placing import MODES
from vkpar.parallel.plan import plan
from vkpar.parallel.planned import Plan
from vkpar.parallel.spec import ModelSpec, spec_of

KINDS: Final = ("float16", "float32", "bfloat16", "q8_0", "q4_0", "q4_k")
STEPS: Final = ("captured", "eager")
SPLITS: Final = ("auto", *MODES)
_POOL: Final = 1 << 20  # bytes of weights that are drawn, and repeated
_HEADER: Final = (
    f"#{'split':<8}{'ratios':<12}{'wire':<6}{'step':<10}{'test':<18}"
    f"{'tokens/s':>12}{'least':>12}{'most':>12}{'#wrong':>8}"
)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        devices: selector; None for the default devices.
        preset: sizes of the model; None for what suits the devices.
        config: a config.json in its place.
        vocabulary: of a preset.
        weights: one of :data:`KINDS`.
        splits: among :data:`SPLITS`; those that are not possible are told, and left out.
        ratios: what the devices get, as plans take it, one or several.
        wires: how float32 crosses links.
        steps: among :data:`STEPS`.
        prompts: tokens of prompts; ``tokens`` that are made after ``depths`` tokens.
        repeat: runs, of which the medians count.
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
    prompts: tuple[int, ...] = (512,)
    tokens: int = 128
    depths: tuple[int, ...] = (0, 4096)
    repeat: int = 3

    @property
    def context(self) -> int:
        """Tokens that there is room for."""
        return max(*self.prompts, *(depth + self.tokens for depth in self.depths), 1) + 8

    def model(self, default: str) -> Config:
        """Return the decoder's sizes, those of the preset ``default`` where none was asked for."""
        if self.config is None:
            return of_shape(PRESETS[self.preset or default], self.vocabulary, self.context)
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


@dataclass(frozen=True)
class Row:
    """One test of one split: tokens a second, the median of the runs, the least and the most of any."""

    split: str
    ratios: str
    wire: str
    step: str
    test: str
    rate: float
    least: float
    most: float
    wrong: int

    def text(self, width: int | None = None) -> str:
        """Return the row under the header."""
        rates = "".join(f"{rate:>12.2f}" for rate in (self.rate, self.least, self.most))
        return f" {self.split:<8}{self.ratios:<12}{self.wire:<6}{self.step:<10}{self.test:<18}{rates}{self.wrong:>8}"


@dataclass
class Report:
    """Everything of one run; ``refused`` says why splits are missing, ``plans`` how the others lie."""

    options: Options
    model: Config
    rig: frame.RigInfo
    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)

    def wrong(self) -> list[int | None]:
        """Return the wrong elements of every row."""
        return [row.wrong for row in self.rows]

    def header(self, width: int | None = None) -> list[str]:
        """Return the lines above the table."""
        options = self.options
        return [
            f"# vkpar {self.rig.versions['vkpar']} bench model: {self.model.describe()}, {options.weights} weights",
            f"# repeat {options.repeat}, context {options.context}",
            "#",
            *self.rig.lines(),
            "#",
            _HEADER,
        ]

    def footer(self) -> list[str]:
        """Return the lines below the table."""
        return [
            "#",
            *(f"# {reason}" for reason in self.refused),
            f"# Wrong elements    : {table.verdict(self.wrong())}",
            "# pp: a prompt's tokens a second; tg: tokens a second, one after the other, d: behind so many.",
            "# #wrong: logits that are not finite, after each test.",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return frame.document("model", asdict(self), self.wrong())


def start(options: Options, stack: ExitStack) -> tuple[Report, Iterator[Row]]:
    """Open what ``options`` name, closed with ``stack``; return the report and what measures its rows."""
    for name, chosen, known in (
        ("split", options.splits, SPLITS),
        ("step", options.steps, STEPS),
        ("kind of weights", (options.weights,), KINDS),
    ):
        unknown = next((each for each in chosen if each not in known), None)
        if unknown is not None:
            raise InvalidUsageError(f"there is no {name} {unknown!r}; there are {', '.join(known)}")
    devices = frame.open_devices(stack, options.devices)
    model = options.model("tiny" if any(device.info.is_cpu for device in devices) else "8b")
    with ExitStack() as brief:
        _, rig = frame.connect(brief, devices, wire=options.wires[0], algorithm="auto", transport="auto")
    report = Report(options, model, rig)
    return report, _rows(report, devices)


def _rows(report: Report, devices: Sequence[Device]) -> Iterator[Row]:
    options = report.options
    made = weights(report.model, options.weights)
    spec = _spec(report.model, options.weights, cache_type(made, devices))
    for wire in options.wires:
        with Communicator(devices, wire=wire) as comm:
            for ratios in options.ratios:
                for mode in options.splits:
                    try:
                        found = plan(spec, comm, mode=mode, ratios=ratios, context=options.context, strict=True)
                    except UnsupportedError as error:
                        report.refused.append(str(error))
                        continue
                    report.plans.append(found.as_dict())
                    yield from _split(report, made, comm, found, _Named(mode, ratios, wire))


@dataclass(frozen=True)
class _Named:
    split: str
    ratios: str
    wire: str


def _split(
    report: Report, made: dict[str, LazyTensor], comm: Communicator, found: Plan, named: _Named
) -> Iterator[Row]:
    """Measure one split."""
    options, config = report.options, report.model
    placement = place(found.mode, config, found.ratios, units_of(config, made))
    name = named.split if named.split != "auto" else f"auto:{found.mode[0]}"
    with Llama(config, made, comm, placement, context=options.context) as model:
        model.warm_up(max(options.prompts))
        for count in options.prompts:
            rates = [_prompt(model, count) for _ in range(options.repeat)]
            yield _row(name, named, "-", f"pp{count}", rates, model)
        for step in options.steps:
            for depth in options.depths:
                model.rewind()
                model.prefill([1] * max(depth, 1))
                rates = [_tokens(model, max(depth, 1), options.tokens, step) for _ in range(options.repeat)]
                yield _row(name, named, step, f"tg{options.tokens} @ d{depth}", rates, model)


def _row(name: str, named: _Named, step: str, test: str, rates: list[float], model: Llama) -> Row:
    wrong = int(np.count_nonzero(~np.isfinite(model.next_logits())))
    return Row(name, named.ratios, named.wire, step, test, median(rates), min(rates), max(rates), wrong)


def _prompt(model: Llama, count: int) -> float:
    """Return the rate of a prompt."""
    ids = [1 + number % (model.config.vocabulary - 1) for number in range(count)]
    model.rewind()
    start = time.perf_counter()
    model.prefill(ids)
    model.next_token()
    return count / (time.perf_counter() - start)


def _tokens(model: Llama, depth: int, count: int, step: str) -> float:
    """Return the rate of tokens one after the other."""
    model.rewind(depth)
    start = time.perf_counter()
    for number in range(count):
        token = None if number else 1
        if step == "captured":
            model.feed(token)
        else:
            model.prefill([model.next_token() if token is None else token])
    model.next_token()
    return count / (time.perf_counter() - start)


# ---- weights ----


def _spec(config: Config, kind: str, cache: str) -> ModelSpec:
    return replace(spec_of(config, weights=kind), table=kind, cache=cache)


class _Repeated(LazyTensor):
    """A tensor of drawn elements, or blocks, that repeat."""

    def read(self, region: Any = ...) -> np.ndarray[Any, Any]:
        """Return elements of the region's shape."""
        drawn = self._bytes().view(self.dtype.numpy)
        return np.resize(drawn, np.broadcast_to(drawn[:1], self.shape)[region].shape)

    def blocks(
        self, start: int = 0, stop: int | None = None, rows: slice = slice(None)
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return blocks of the region's shape."""
        assert self.kind is not None
        count = (self.shape[1] if stop is None else stop) - start
        nbytes = count // self.kind.elements * self.kind.nbytes
        return np.resize(self._bytes(), (len(range(self.shape[0])[rows]), nbytes))


def weights(config: Config, kind: str) -> dict[str, LazyTensor]:
    """Return made-up weights by transformers' names, matrices of ``kind``, each result about as large as an input.

    Raises:
        InvalidUsageError: rows that the kind's blocks do not divide.
    """
    made: dict[str, LazyTensor] = {}
    form = FORMATS.get(kind)
    for name, shape in naming.shapes(config, naming.TRANSFORMERS):
        plain = len(shape) == 1
        if form is not None and not plain and shape[1] % form.elements:
            raise InvalidUsageError(
                f"rows of {shape[1]} weights are no multiple of the {form.elements} of {kind}'s blocks"
            )
        drawn = _ones(shape[0]) if plain else _drawn(kind, shape[1])
        stored = "float32" if plain or form is not None else kind
        own = None if plain else form
        nbytes = int(np.prod(shape)) * (4 if plain else dtypes.resolve(stored).itemsize)
        made[name] = _Repeated(name, shape, dtypes.resolve(stored), own, nbytes, "made up", drawn.__array__)
    return made


def _ones(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ones(count, np.float32).view(np.uint8)


def _drawn(kind: str, inputs: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return drawn bytes of weights for products of so many inputs."""
    generator, most = np.random.default_rng(inputs), np.sqrt(3 / inputs)
    form = FORMATS.get(kind)
    if form is None:
        values = generator.uniform(-most, most, _POOL // 4 - 8).astype(np.float32)
        if kind == "bfloat16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(kind).view(np.uint8)
    blocks = generator.integers(0, 256, (_POOL // form.nbytes, form.nbytes), dtype=np.uint8)
    # Scales that take the largest codes to about `most`: 127, 8, and 15 times a scale of up to 63.
    unit = np.float16(most / {"q8_0": 127, "q4_0": 8, "q4_k": 15 * 63}[kind])
    blocks[:, :2] = np.frombuffer(unit.tobytes(), np.uint8)
    if kind == "q4_k":
        blocks[:, 2:4] = np.frombuffer(np.float16(unit * 7).tobytes(), np.uint8)
    return blocks.reshape(-1)
