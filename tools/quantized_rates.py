#!/usr/bin/env python3
"""Measure products of few rows by quantised weights beside those by float16, in bytes of weights a second.

Every product reads other weights than the ones before it, so many that no cache holds them. ``in turn``: each waits
for the one before, as those of a model do; ``at once``: none does. Times are those of a captured graph of many products
over their number, medians, after a while of the same work, which raises the device's clock. ``wrong`` counts results
that are further from float64 than the documented bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import vkpar
from vkpar.bench import matmul
from vkpar.bench.commands import whole
from vkpar.ops.matmul import cores, dots, few
from vkpar.ops.quantized.kinds import KINDS
from vkpar.testing import gamma

_CACHED = 256 << 20  # bytes of weights that are gone around
_RISE_SECONDS = 0.1
_CHECKED = 64  # columns that are compared with float64
_HALVES, _ACROSS = "float16", "float16_kn"  # the latter as (K, N)


class Weights(NamedTuple):
    """Equal matrices of one type, enough of them to go around."""

    kind: str
    all: list[Any]
    nbytes: int
    exact: np.ndarray[Any, Any]
    magnitude: np.ndarray[Any, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where results are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device")
    parser.add_argument("--shapes", type=_shapes, default="14336,4096;4096,14336", metavar="N,K;...")
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--kinds", nargs="+", choices=[_HALVES, _ACROSS, *KINDS], default=[_HALVES, _ACROSS, *KINDS])
    parser.add_argument("--x", choices=["float32", "float16"], default="float16", help="type of the other operand")
    parser.add_argument("--calls", type=whole(1), default=100, help="products of a graph")
    parser.add_argument("--repeat", type=whole(1), default=9, metavar="N", help="measure so often, take the median")
    parser.add_argument("--sweep", action="store_true", help="try every way to spread a product, best first")
    given = parser.parse_args(arguments)
    wrong = 0
    with vkpar.open_devices(given.device)[0] as device:
        print(f"# vkpar {vkpar.__version__} on {device.name}: x {given.x}, medians of {given.repeat}")
        print("#kind           N      K rows   in turn us   TB/s   at once us   TB/s  wrong  how it is spread")
        for n, k in given.shapes:
            for kind in given.kinds:
                weights = _weights(device, kind, n, k, given.calls)
                for m in given.rows:
                    for line, count in _lines(device, weights, (m, n, k), given):
                        print(line, flush=True)
                        wrong += count
    return 1 if wrong else 0


def _shapes(text: str) -> list[tuple[int, int]]:
    return [matmul.parse_shapes(f"1,{part}")[0][1:] for part in text.split(";")]


def _weights(device: vkpar.Device, kind: str, n: int, k: int, most: int) -> Weights:
    generator = np.random.default_rng(0)
    if kind in (_HALVES, _ACROSS):
        host = generator.standard_normal((n, k)).astype(np.float16)
        exact, host = host[:_CHECKED].astype(np.float64), host if kind == _HALVES else np.ascontiguousarray(host.T)
        copies = min(-(-_CACHED // host.nbytes) + 1, most)
        return Weights(kind, [device.array(host) for _ in range(copies)], host.nbytes, exact, np.abs(exact))
    found = KINDS[kind]
    blocks = generator.integers(0, 256, (n, k // found.block, found.nbytes), np.uint8)
    scales = generator.uniform(0.01, 0.02, (n, k // found.block, found.halves)).astype(np.float16)
    blocks[..., found.scale_at : found.scale_at + 2 * found.halves] = scales.view(np.uint8)
    blocks = blocks.reshape(n, -1)
    copies = min(-(-_CACHED // blocks.nbytes) + 1, most)
    made = [vkpar.quantized(device, blocks, (n, k), kind) for _ in range(copies)]
    exact = made[0][:_CHECKED].dequantize().numpy().astype(np.float64)
    least = 63 if found.block == 256 else 1
    magnitude = np.abs(exact) + (0.02 * least * 2 if found.halves == 2 else 0)  # what is subtracted counts twice
    return Weights(kind, made, made[0].nbytes, exact, magnitude)


def _lines(
    device: vkpar.Device, weights: Weights, shape: tuple[int, int, int], given: argparse.Namespace
) -> Iterator[tuple[str, int]]:
    """Yield a line for each way to spread a product, and the wrong results."""
    module, plain, ways = _spreads(device, weights.kind, shape, given.x)
    if module is None or not given.sweep:
        yield _line(device, weights, shape, given, plain)
        return
    kept, lines = module.spread, []
    for way in ways:
        module.spread = lambda *_, way=way, **__: way
        try:
            lines.append(_line(device, weights, shape, given, way))
        finally:
            module.spread = kept
    yield from sorted(lines, key=lambda line: float(line[0].split()[4]))


def _spreads(device: vkpar.Device, kind: str, shape: tuple[int, int, int], x: str) -> tuple[Any, Any, Iterable[Any]]:
    """Return the module that spreads a product, how it does, and all ways; None where there is no choice."""
    (m, n, k), found = shape, KINDS.get(kind)
    if found is None:
        return None, None, ()
    if m == 1 and dots.usable(device):
        return dots, dots.spread(device, found, n, k), dots.spreads(device, found, k)
    if x == "float16" and cores.fits(device.info, found, m, k):
        return (
            cores,
            cores.spread(device.info, found, m, n),
            cores.spreads(device.info, found, m),
        )
    if m > few.rows_at_once(device):
        return None, None, ()
    plain = few.spread(device, found, m, n, k)
    return few, plain, few.spreads(found, m, k)


def _line(
    device: vkpar.Device,
    weights: Weights,
    shape: tuple[int, int, int],
    given: argparse.Namespace,
    way: Any,
) -> tuple[str, int]:
    m, n, k = shape
    device.plans.known.clear()  # those of another way
    device.plans.recipes.clear()
    x = device.array(np.random.default_rng(1).standard_normal((m, k)), given.x)
    times, out = [], device.empty((m, n))
    vkpar.matmul(x, weights.all[0], transpose_b=weights.kind != _ACROSS, dtype="float32", out=out)  # measures first
    for outs in ([out], [device.empty((m, n)) for _ in range(given.calls)]):
        with vkpar.capture(device) as graph:
            for call in range(given.calls):
                w = weights.all[call % len(weights.all)]
                vkpar.matmul(x, w, transpose_b=weights.kind != _ACROSS, dtype="float32", out=outs[call % len(outs)])
        _rise(graph)
        times.append(median(_launch(graph) for _ in range(given.repeat)) / given.calls)
        graph.close()
    rows = x.numpy().astype(np.float64)
    error = np.abs(out[:, :_CHECKED].numpy() - rows @ weights.exact.T)
    bound = gamma(k + 40) * (np.abs(rows) @ weights.magnitude.T)
    if isinstance(way, dots.DotSpread):  # whose rows are whole numbers of what is largest for each chunk
        largest = np.abs(rows).reshape(-1, KINDS[weights.kind].chunk).max(-1).repeat(KINDS[weights.kind].chunk)
        bound += 2.0**-22 * (1 + gamma(k + 40)) * (largest[None] @ weights.magnitude.T)
    wrong = int((error > bound).sum())
    cells = "".join(f"{1e6 * seconds:13.1f} {weights.nbytes / seconds / 1e12:6.3f}" for seconds in times)
    name = f"{weights.kind:10s}{n:6d}{k:7d}{m:5d}"
    tail = "" if way is None else "  " + " ".join(f"{key} {value}" for key, value in way._asdict().items())
    return f" {name}{cells}{wrong:7d}{tail}", wrong


def _rise(graph: vkpar.Graph) -> None:
    """Launch a graph for a while: an idle GPU starts at a low clock."""
    end = time.perf_counter() + _RISE_SECONDS
    while time.perf_counter() < end:
        graph.launch().wait()


def _launch(graph: vkpar.Graph) -> float:
    start = time.perf_counter()
    graph.launch().wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
