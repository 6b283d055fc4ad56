"""``vkpar demo``: open the rig, verify an AllReduce, run a complete real model split over it in every way."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Final, TextIO, cast

import numpy as np
from rich.console import Console

import vkpar
from vkpar import text, topology
from vkpar.demo import bounds, checks, reference, report, weights
from vkpar.errors import VkparError
from vkpar.parallel.models import Bert, encoding
from vkpar.testing import norm, wire_of

REPEATS: Final = 5
ENOUGH: Final = 1.0  # seconds after which a slow rig need not encode the sentences again
SPLITS: Final = ("tensor", "row", "layer", "single")
ACCEPTED: Final = 1e-3  # cosine distance of an embedding from float64's


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
    :mod:`vkpar.testing` and :mod:`vkpar.demo.bounds` derive, all ranks hold the same bits, and in every split the
    sentence that the rig finds most similar to each sentence is the one that float64 finds.

    Args:
        selector: the rig's devices; None for ``VKPAR_DEVICES``, else all GPUs, see :func:`vkpar.topology.choose`.
        weights: a trimmed file of ``tools/trim_weights.py``; None for the installed model package.
        wire: how float32 crosses a link: ``f16``, ``bf16`` or ``f32``.
        as_json: print one JSON object and nothing else.
        repeats: how often what is timed runs.
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
    found.tokens = model.tokens
    with ExitStack() as stack:
        devices = vkpar.open_devices(topology.choose(selector))
        for device in devices:
            stack.enter_context(device)
        communicator = stack.enter_context(vkpar.Communicator(devices, wire=found.wire))
        transports = communicator.transports()
        found.ranks = [topology.describe_rank(rank, dev.info, transports[rank]) for rank, dev in enumerate(devices)]
        found.links = topology.describe_links(communicator.links())
        found.rig = topology.explain(devices)
        report.show_rig(console, found)
        for count in checks.COUNTS:
            found.all_reduce.append(checks.check_all_reduce(devices, communicator, found.wire, count, repeats))
        report.show_all_reduce(console, found)
        expected = reference.encode(model)
        for mode in SPLITS if len(devices) > 1 else SPLITS[-1:]:
            encoder = encoding.load(model.config, model.tensors, communicator, mode=mode, batch=len(model.ids))
            if not found.layers:
                found.split = mode
                _check_layers(found, model, encoder)
                report.show_layers(console, found)
            found.splits.append(_encode(found, model, encoder, expected, repeats))
        report.show_splits(console, found)
        assert found.similarities is not None
        report.show_similarities(console, found.similarities)


def _check_layers(found: report.Report, model: weights.Model, encoder: Bert) -> None:
    """Hold each part of the encoder against float64 on the same input; append what was found to ``found.layers``."""
    heads, inner = (encoder.parts()[key][0] for key in ("heads", "inner"))
    nranks = len(found.ranks)
    errors = bounds.errors_of(found.wire, nranks, heads, inner, model.config.head_dim)
    states = encoder.hidden_states(model.ids)
    root = encoder.root

    def check(
        name: str, results: Sequence[weights.F32 | None], run: Callable[[reference.Errors], reference.F64]
    ) -> None:
        expected, bound = bounds.bounded(run, errors)
        own = results[root]
        assert own is not None
        bits = [part.view(np.uint32) for part in results if part is not None]
        differs = np.any([other != bits[0] for other in bits], axis=0)
        whole = norm(expected)
        result = report.LayerResult(name, norm(own - expected) / whole, norm(bound) / whole, int(differs.sum()))
        found.layers.append(result)

    check("embedding", states[0], partial(reference.embed, model))
    for index, (before, after) in enumerate(pairwise(states)):
        check(f"block {index + 1}", after, partial(reference.block, model, index, _exact(before[root])))
    pooled: list[weights.F32 | None] = [None] * nranks
    pooled[root] = encoder.embed(model.ids)
    check("pooling", pooled, partial(reference.pool, model, _exact(states[-1][root])))


def _exact(state: weights.F32 | None) -> reference.F64:
    assert state is not None
    return state.astype(np.float64)


def _encode(
    found: report.Report, model: weights.Model, encoder: Bert, expected: reference.F64, repeats: int
) -> report.SplitResult:
    """Encode the sentences, and time that; keep the cosines of the first split."""
    times: list[float] = []
    deadline = time.perf_counter() + ENOUGH
    while not times or (len(times) <= repeats and time.perf_counter() < deadline):
        start = time.perf_counter()
        ours = encoder.embed(model.ids)
        times.append(time.perf_counter() - start)
    exact = ours.astype(np.float64)
    if found.similarities is None:
        found.similarities = report.Similarities(list(model.sentences), (exact @ exact.T).tolist())
    cosines = np.sum(exact * expected, axis=1) / np.linalg.norm(exact, axis=1)
    return report.SplitResult(
        split=encoder.placement.mode,
        weights_nbytes=encoder.weights_nbytes,
        distance=float(np.maximum(1.0 - cosines, 0.0).max()),
        accepted=ACCEPTED,
        nearest_agree=bool(np.array_equal(_nearest(exact), _nearest(expected))),
        microseconds=1e6 * median(times[1:] or times),  # the first time, work is planned
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
        problems += [f"{result.layer}: {', '.join(parts)}"] if parts else []
    for split in found.splits:
        if not split.distance <= split.accepted:
            problems.append(
                f"{split.split} split: cosine distance {split.distance:.1e} (accepted {split.accepted:.1e})"
            )
        if not split.nearest_agree:
            problems.append(f"{split.split} split: pairs the sentences otherwise than float64 does")
    return problems


def _shortfalls(result: checks.AllReduceCheck | report.LayerResult) -> list[str]:
    parts = [] if result.error <= result.bound else [f"error {result.error:.1e} (accepted {result.bound:.1e})"]
    return parts + ([f"{result.differing:,} elements differ between ranks"] if result.differing else [])


def _failure(problems: list[str]) -> str:
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return f"FAILED: {'; '.join(problems[:3])}{more}"


def _success(found: report.Report) -> str:
    worst = max(found.layers, key=lambda result: result.error)
    splits = f"{len(found.splits)} splits" if len(found.splits) > 1 else "one piece"
    return (
        f"OK: the whole model in {splits} on {report.ranks(len(found.ranks))}, largest error {worst.error:.1e} "
        f"(accepted {worst.bound:.1e}), ranks bit-identical, #wrong 0"
    )
