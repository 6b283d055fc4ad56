#!/usr/bin/env python3
"""Times sorting, scans, convolutions and whole numbers beside torch's and CuPy's on one GPU.

``v/t`` is vkpar's time over torch's, and CuPy's column is empty where it is not installed; ``copy`` is the rate of the
bytes that an operation has to read and write at least, as a share of the rate of the copy above it, the better one of
vkpar's and torch's.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import common
import numpy as np

import vkpar
from vkpar.bench.commands import whole

_COUNT = 1 << 24
_ROWS, _VOCABULARY, _K = 256, 32_000, 64
_IMAGES, _SIDE, _CHANNELS = 16, 56, (64, 128, 256)
_CALLS = 20

Call = Callable[[], object]


class Case(NamedTuple):
    """One operation.

    Attributes:
        name: of the operation.
        nbytes: that it has to read and write at least.
        ours: calls vkpar's, ``theirs`` torch's, ``third`` CuPy's where it has one.
    """

    name: str
    nbytes: int
    ours: Callable[[], object]
    theirs: Callable[[], object]
    third: Callable[[Any], object] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device, the GPU that torch calls cuda:0")
    parser.add_argument(
        "--mib", type=whole(1), nargs="+", default=[64, 256], help="sizes of arrays of whole numbers and of truth"
    )
    parser.add_argument("--repeat", type=whole(1), default=7, metavar="N", help="measure so often, take the median")
    given = parser.parse_args(arguments)
    common.need("torch", "pip install torch")
    import torch

    cupy = importlib.import_module("cupy") if find_spec("cupy") else None
    with vkpar.open_devices(given.device)[0] as device:
        also = f", CuPy {cupy.__version__}" if cupy else ""
        print(f"# vkpar {vkpar.__version__}, torch {torch.__version__}{also} on {device.name}: medians")
        print("#operation                      vkpar us  torch us    v/t   copy   CuPy us")
        copy = 0.0
        for case in _cases(device, torch, given.mib):
            ours = common.risen_us(case.ours, _CALLS, device.synchronize, given.repeat)
            theirs = common.risen_us(case.theirs, _CALLS, torch.cuda.synchronize, given.repeat)
            if case.name.startswith("copy"):
                copy = case.nbytes / min(ours, theirs)
            share, third = case.nbytes / ours / copy, ""
            if cupy and case.third:
                call = functools.partial(case.third, cupy)
                third = (
                    f"{common.risen_us(call, _CALLS, cupy.cuda.get_current_stream().synchronize, given.repeat):9.1f}"
                )
            print(f" {case.name:30s} {ours:8.1f}  {theirs:8.1f} {ours / theirs:6.2f} {share:6.2f} {third}", flush=True)
    return 0


def _cases(device: vkpar.Device, torch: Any, sizes: Sequence[int]) -> Iterator[Case]:
    """Yield the operations, a copy first."""
    yield from _orders(device, torch)
    yield from _convolutions(device, torch)
    for mib in sizes:
        yield _copy(device, torch, mib)
        for name in ("uint8", "int64", "bool"):
            yield from _narrow(device, torch, name, mib)


def _orders(device: vkpar.Device, torch: Any) -> Iterator[Case]:
    """Yield a copy, sorts, scans and selections of float32."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(_COUNT).astype(np.float32)
    a, ta = device.array(values), torch.from_numpy(values).cuda()
    out, tout = device.empty(_COUNT), torch.empty_like(ta)
    yield Case("copy, 2^24", 8 * _COUNT, lambda: out.copy_from(a), lambda: tout.copy_(ta))
    square, tsquare, nbytes = a.reshape(4096, 4096), ta.reshape(4096, 4096), 8 * _COUNT

    def case(name: str, ours: Call, theirs: Call, third: str = "", axis: int = 0) -> Case:
        x = tsquare if axis else ta
        return Case(name, nbytes, ours, theirs, (lambda cupy: getattr(cupy, third)(cupy.asarray(x), axis=axis)))

    yield case("sort, 2^24", lambda: vkpar.sort(a, out=out), lambda: torch.sort(ta, stable=True), "sort")
    yield case("argsort, 2^24", lambda: vkpar.argsort(a), lambda: torch.argsort(ta, stable=True), "argsort")
    yield case("cumsum, 2^24", lambda: vkpar.cumsum(a, out=out), lambda: torch.cumsum(ta, 0, out=tout), "cumsum")
    name = "rows of 4096"
    yield case(f"sort, {name}", lambda: vkpar.sort(square), lambda: torch.sort(tsquare, stable=True), "sort", 1)
    yield case(f"cumsum, {name}", lambda: vkpar.cumsum(square, 1), lambda: torch.cumsum(tsquare, 1), "cumsum", 1)
    ours = case(f"std, {name}", lambda: vkpar.std(square, axis=1), lambda: torch.std(tsquare, 1), "std", 1)
    yield ours._replace(nbytes=nbytes // 2)
    many, tmany, more = device.empty(4 * _COUNT), torch.empty(4 * _COUNT).cuda(), torch.empty(4 * _COUNT).cuda()
    big = device.zeros(4 * _COUNT)
    yield Case("copy, 2^26", 4 * nbytes, lambda: many.copy_from(big), lambda: more.copy_(tmany))
    yield Case(
        "cumsum, 2^26",
        4 * nbytes,
        lambda: vkpar.cumsum(big, out=many),
        lambda: torch.cumsum(tmany, 0, out=more),
        lambda cupy: cupy.cumsum(cupy.asarray(tmany)),
    )
    yield Case("copy, 2^24", nbytes, lambda: out.copy_from(a), lambda: tout.copy_(ta))
    logits = rng.standard_normal((_ROWS, _VOCABULARY)).astype(np.float32)
    b, tb = device.array(logits), torch.from_numpy(logits).cuda()
    name = f"topk({_K}), {_ROWS} x {_VOCABULARY}"
    yield Case(name, logits.nbytes, lambda: vkpar.topk(b, _K), lambda: torch.topk(tb, _K))


def _convolutions(device: vkpar.Device, torch: Any) -> Iterator[Case]:
    """Yield convolutions of halves by windows of 3 x 3, which keep the images' size."""
    rng = np.random.default_rng(1)
    for channels in _CHANNELS:
        images = rng.standard_normal((_IMAGES, channels, _SIDE, _SIDE)).astype(np.float16)
        weights = (rng.standard_normal((channels, channels, 3, 3)) / 32).astype(np.float16)
        x, w = device.array(images), device.array(weights)
        tx, tw = torch.from_numpy(images).cuda(), torch.from_numpy(weights).cuda()
        yield Case(
            f"conv2d 3x3, {channels} channels",
            2 * images.nbytes + weights.nbytes,
            lambda x=x, w=w: vkpar.conv2d(x, w, padding=1),  # type: ignore[misc]
            lambda tx=tx, tw=tw: torch.conv2d(tx, tw, padding=1),  # type: ignore[misc]
        )


def _copy(device: vkpar.Device, torch: Any, mib: int) -> Case:
    """Return the copy of an array of some MiB."""
    values = np.zeros(mib << 20, np.uint8)
    a, out, ta = device.array(values), device.array(values), torch.from_numpy(values).cuda()
    tout = torch.empty_like(ta)
    return Case(f"copy, {mib} MiB", 2 * values.nbytes, lambda: out.copy_from(a), lambda: tout.copy_(ta))


def _narrow(device: vkpar.Device, torch: Any, name: str, mib: int) -> Iterator[Case]:
    """Yield what reads and writes whole numbers, or truth, at memory's rate, in arrays of some MiB."""
    dtype = np.dtype(name)
    values = np.random.default_rng(2).integers(0, 2, (mib << 20) // dtype.itemsize).astype(dtype)
    a, b = device.array(values), device.array(values[::-1])
    ta, tb = torch.from_numpy(values).cuda(), torch.from_numpy(values[::-1].copy()).cuda()
    nbytes = values.nbytes
    label = f"{name}, {mib} MiB"

    def case(word: str, arrays: int) -> Case:
        """Return a function of one array, or of two whose result is as large."""
        ours, theirs = getattr(vkpar, word), getattr(torch, word)
        given, tgiven = ((a,), (ta,)) if arrays == 1 else ((a, b), (ta, tb))
        third = lambda cupy: getattr(cupy, word)(*map(cupy.asarray, tgiven))  # noqa: E731
        return Case(f"{word}, {label}", arrays * nbytes, lambda: ours(*given), lambda: theirs(*tgiven), third)

    words = ("logical_and",) if name == "bool" else ("add", "maximum")
    yield from (case(word, 3) for word in words)
    yield from (case(word, 1) for word in ("any" if name == "bool" else "max", "sum", "count_nonzero"))


if __name__ == "__main__":
    sys.exit(common.main(main))
