"""``vkpar demo``: open the rig, verify an AllReduce, run a real model's feed-forward blocks split over it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TextIO, cast

import numpy as np
from rich.console import Console

import vkpar
from vkpar import text, topology
from vkpar.demo import checks, reference, report, weights
from vkpar.demo.bounds import feed_forward_bound
from vkpar.demo.feedforward import SplitFeedForward
from vkpar.errors import VkparError
from vkpar.testing import relative, wire_of

if TYPE_CHECKING:
    from vkpar import Communicator, Device

REPEATS: Final = 5


def run(
    selector: str | None = None,
    weights: str | None = None,
    wire: str = "f16",
    as_json: bool = False,
    *,
    repeats: int = REPEATS,
    stream: TextIO | None = None,
) -> int:
    """Run the demo and say on its last line whether everything held.

    It holds when every all_reduce of integers is exact, every error against float64 is within the bound that
    :mod:`vkpar.testing` and :mod:`vkpar.demo.bounds` derive, all ranks hold the same bits, and the sentence that the
    rig finds most similar to each sentence is the one that float64 finds.

    Args:
        selector: the rig's devices; None for ``VKPAR_DEVICES``, else all GPUs, see :func:`vkpar.topology.choose`.
        weights: a trimmed file of ``tools/trim_weights.py``; None for the installed model package.
        wire: how float32 crosses a link: ``f16``, ``bf16`` or ``f32``.
        as_json: print one JSON object and nothing else.
        repeats: timed steps a layer.
        stream: where to print; standard output by default.

    Returns:
        the exit status: 0 for OK, 1 for a check that FAILED, 2 for an error of vkpar (FAILED too, it is not raised).
    """
    target = stream if stream is not None else sys.stdout
    trimmed = cast("TextIO", text.Trimmed(target))
    console = Console(file=trimmed, quiet=as_json, markup=False, highlight=False, emoji=False)
    found = report.Report(wire)
    failure: dict[str, str] = {}
    try:
        _run(console, found, selector, weights, repeats)
        problems = _problems(found)
        found.ok = not problems
        found.summary = _failure(problems) if problems else _success(found)
    except VkparError as error:
        failure = {"type": type(error).__name__, "message": str(error)}
        found.summary = f"FAILED: {failure['type']}: {error}"
    if as_json:
        print(json.dumps(found.as_dict() | failure, indent=2), file=target)
    else:
        console.print(f"\n{found.summary}", style="bold green" if found.ok else "bold red", soft_wrap=True)
    return 2 if failure else 0 if found.ok else 1


def _run(console: Console, found: report.Report, selector: str | None, path: str | None, repeats: int) -> None:
    if not wire_of(found.wire).exact:
        raise vkpar.InvalidUsageError(f"the demo checks exact sums first, which {found.wire!r} does not carry")
    model = weights.load(path)
    found.model = f"all-MiniLM-L6-v2 ({model.source})"
    found.tokens = int(model.mask.sum())
    with ExitStack() as stack:
        devices = vkpar.open_devices(topology.choose(selector))
        for device in devices:
            stack.enter_context(device)
        communicator = stack.enter_context(vkpar.Communicator(devices, wire=found.wire))
        transports = communicator.transports()
        found.ranks = [topology.describe_rank(rank, dev.info, transports[rank]) for rank, dev in enumerate(devices)]
        found.links = topology.describe_links(communicator)
        found.rig = topology.explain(devices)
        report.show_rig(console, found)
        for count in checks.COUNTS:
            found.all_reduce.append(checks.check_all_reduce(devices, communicator, found.wire, count, repeats))
        report.show_all_reduce(console, found)
        found.similarities = _encode(found, model, devices, communicator, repeats)
        report.show_layers(console, found)
        report.show_similarities(console, found.similarities)


def _encode(
    found: report.Report,
    model: weights.Model,
    devices: list[Device],
    communicator: Communicator,
    repeats: int,
) -> report.Similarities:
    """Run the encoder with its feed-forward blocks on the rig; append each layer's result to ``found.layers``."""
    layers = [model.layer(index) for index in range(model.config.layers)]
    split = SplitFeedForward(devices, communicator, layers, found.tokens)

    def block(index: int, attended: reference.F64, layer: dict[str, weights.F32]) -> reference.F64:
        x = attended.astype(np.float32)
        exact = x.astype(np.float64)
        result, differing = split.run(index, x)
        expected = reference.feed_forward(exact, layer)
        bound = feed_forward_bound(exact, layer, len(devices), found.wire)
        found.layers.append(
            report.LayerResult(
                layer=index,
                error=relative(result - expected, expected),
                bound=relative(bound, expected),
                differing=differing,
                times=split.measure(index, repeats),
            )
        )
        return result.astype(np.float64)

    ours, theirs = reference.encode(model, block), reference.encode(model)
    return report.Similarities(
        sentences=list(model.sentences),
        table=(ours @ ours.T).tolist(),
        against_float64=np.sum(ours * theirs, axis=1).tolist(),
        nearest_agree=bool(np.array_equal(_nearest(ours), _nearest(theirs))),
    )


def _nearest(embeddings: reference.F64) -> weights.I64:
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -2.0)
    return np.asarray(cosines.argmax(axis=1), np.int64)


def _problems(found: report.Report) -> list[str]:
    problems = []
    for check in found.all_reduce:
        wrong = [f"{check.wrong:,} wrong"] if check.wrong else []
        parts = wrong + _shortfalls(check)
        problems += [f"all_reduce of {check.count:,}: {', '.join(parts)}"] if parts else []
    for result in found.layers:
        parts = _shortfalls(result)
        problems += [f"layer {result.layer}: {', '.join(parts)}"] if parts else []
    if found.similarities is None or not found.similarities.nearest_agree:
        problems.append("the rig pairs the sentences otherwise than float64 does")
    return problems


def _shortfalls(result: checks.AllReduceCheck | report.LayerResult) -> list[str]:
    parts = [] if result.error <= result.bound else [f"error {result.error:.1e} (accepted {result.bound:.1e})"]
    return parts + ([f"{result.differing:,} elements differ between ranks"] if result.differing else [])


def _failure(problems: list[str]) -> str:
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return f"FAILED: {'; '.join(problems[:3])}{more}"


def _success(found: report.Report) -> str:
    worst = max(found.layers, key=lambda result: result.error / result.bound)
    return (
        f"OK: {len(found.layers)} layers on {report.ranks(len(found.ranks))}, largest error {worst.error:.1e} "
        f"(accepted {worst.bound:.1e}), ranks bit-identical, #wrong 0"
    )
