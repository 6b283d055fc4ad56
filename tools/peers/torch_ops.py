#!/usr/bin/env python3
"""Times vkpar's operations beside torch's and CuPy's on one GPU: large arrays at memory's rate, small at the host's.

``v/t`` is vkpar's time over torch's. ``rate`` is that of the bytes that an operation has to read and write, by vkpar;
``copy`` is its share of the rate of a copy, the better one of vkpar's and torch's. CuPy's column is empty where it is
not installed, or has no such function.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import common
import numpy as np

import vkpar
from vkpar.bench.commands import whole
from vkpar.bench.frame.table import parse_size

_COLUMNS = 1024


class Case(NamedTuple):
    """One operation.

    Attributes:
        name: of the operation.
        arrays: how many times the size it reads and writes.
        ours: calls vkpar's, ``theirs`` torch's, ``third`` CuPy's.
    """

    name: str
    arrays: float
    ours: Callable[[], object]
    theirs: Callable[[], object]
    third: Callable[[], object] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device, the GPU that torch calls cuda:0")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[64 << 20, 64 << 10], metavar="BYTES")
    parser.add_argument("--repeat", type=whole(1), default=7, metavar="N", help="measure so often, take the median")
    given = parser.parse_args(arguments)
    common.need("torch", "pip install torch")
    import torch

    cupy = importlib.import_module("cupy") if find_spec("cupy") else None
    with vkpar.open_devices(given.device)[0] as device:
        third = f", CuPy {cupy.__version__}" if cupy else ""
        print(f"# vkpar {vkpar.__version__}, torch {torch.__version__}{third} on {device.name}: float32, medians")
        for nbytes in given.sizes:
            _sweep(device, torch, cupy, nbytes, given.repeat)
    return 0


def _sweep(device: vkpar.Device, torch: Any, cupy: Any, nbytes: int, repeat: int) -> None:
    """Measure all operations on arrays of a size and print a line for each."""
    calls = max(10, min(300, (1 << 33) // nbytes))

    def us(call: Callable[[], object], wait: Callable[[], object]) -> float:
        return common.risen_us(call, calls, wait, repeat)

    print(f"#\n# {nbytes >> 10} KiB, rows of {_COLUMNS}, {calls} calls in a row")
    print("#operation          vkpar us  torch us    v/t   CuPy us  rate TB/s   copy")
    copy = 0.0
    for case in _cases(device, torch, cupy, nbytes):
        ours, theirs = us(case.ours, device.synchronize), us(case.theirs, torch.cuda.synchronize)
        third = f"{us(case.third, cupy.cuda.get_current_stream().synchronize):9.1f}" if case.third else f"{'':9s}"
        rate = case.arrays * nbytes / ours / 1e6
        copy = copy or case.arrays * nbytes / min(ours, theirs) / 1e6  # the first case
        line = (
            f" {case.name:18s} {ours:8.1f}  {theirs:8.1f} {ours / theirs:6.2f} {third} {rate:10.3f} {rate / copy:6.2f}"
        )
        print(line, flush=True)


def _cases(device: vkpar.Device, torch: Any, cupy: Any, nbytes: int) -> Iterator[Case]:
    """Yield the operations, a copy first."""
    functional = torch.nn.functional
    rows = max(1, nbytes // 4 // _COLUMNS)
    values = np.random.default_rng(0).standard_normal((rows, _COLUMNS)).astype(np.float32)
    a, b, out = device.array(values), device.array(values[::-1]), device.empty((rows, _COLUMNS))
    weight, bias = device.array(np.ones(_COLUMNS), "float32"), device.zeros(_COLUMNS)
    halves = np.resize(values, (2 * rows, _COLUMNS)).astype(np.float16)
    half, half_b = device.array(halves), device.array(halves[::-1])
    half_out = device.empty(halves.shape, "float16")
    ta, tb = torch.from_numpy(values).cuda(), torch.from_numpy(values[::-1].copy()).cuda()
    tout, tweight, tbias = torch.empty_like(ta), torch.ones(_COLUMNS).cuda(), torch.zeros(_COLUMNS).cuda()
    thalf, thalf_b = torch.from_numpy(halves).cuda(), torch.from_numpy(halves[::-1].copy()).cuda()
    thalf_out = torch.empty_like(thalf)
    turned, tturned = device.empty((_COLUMNS, rows)), torch.empty((_COLUMNS, rows)).cuda()
    width = (_COLUMNS,)
    third = _cupy_calls(cupy, values, halves)

    def case(name: str, arrays: float, ours: Callable[[], object], theirs: Callable[[], object]) -> Case:
        return Case(name, arrays, ours, theirs, third.get(name))

    yield case("copy", 2, lambda: out.copy_from(a), lambda: tout.copy_(ta))
    yield case("add", 3, lambda: vkpar.add(a, b, out=out), lambda: torch.add(ta, tb, out=tout))
    yield case("add a bias", 2, lambda: vkpar.add(a, bias, out=out), lambda: torch.add(ta, tbias, out=tout))
    yield case("multiply", 2, lambda: vkpar.multiply(a, 2.0, out=out), lambda: torch.mul(ta, 2.0, out=tout))
    yield case("exp", 2, lambda: vkpar.exp(a, out=out), lambda: torch.exp(ta, out=tout))
    yield case("relu", 2, lambda: vkpar.relu(a, out=out), lambda: torch.clamp(ta, min=0, out=tout))
    yield case("silu", 2, lambda: vkpar.silu(a, out=out), lambda: functional.silu(ta))
    yield case(
        "add, float16",
        3,
        lambda: vkpar.add(half, half_b, out=half_out),
        lambda: torch.add(thalf, thalf_b, out=thalf_out),
    )
    yield case("exp, float16", 2, lambda: vkpar.exp(half, out=half_out), lambda: torch.exp(thalf, out=thalf_out))
    yield case(
        "add, transposed", 3, lambda: vkpar.add(a.T, turned, out=turned), lambda: torch.add(ta.T, tturned, out=tturned)
    )
    yield case(
        "contiguous(a.T)",
        2,
        lambda: vkpar.contiguous(a.T),
        lambda: torch.clone(ta.T, memory_format=torch.contiguous_format),
    )
    yield case("sum", 1, lambda: vkpar.sum(a), lambda: torch.sum(ta))
    yield case("sum, axis 0", 1, lambda: vkpar.sum(a, axis=0), lambda: torch.sum(ta, 0))
    yield case("sum, axis 1", 1, lambda: vkpar.sum(a, axis=1), lambda: torch.sum(ta, 1))
    yield case("max", 1, lambda: vkpar.max(a), lambda: torch.max(ta))
    yield case("argmax, axis 1", 1, lambda: vkpar.argmax(a, axis=1), lambda: torch.argmax(ta, 1))
    yield case("softmax", 2, lambda: vkpar.softmax(a, out=out), lambda: torch.softmax(ta, -1))
    yield case(
        "layer_norm",
        2,
        lambda: vkpar.layer_norm(a, weight, bias, out=out),
        lambda: functional.layer_norm(ta, width, tweight, tbias),
    )
    yield case(
        "rms_norm", 2, lambda: vkpar.rms_norm(a, weight, out=out), lambda: functional.rms_norm(ta, width, tweight)
    )
    yield case("swiglu", 3, lambda: vkpar.swiglu(a, b, out=out), lambda: functional.silu(ta) * tb)


def _cupy_calls(
    cupy: Any, values: np.ndarray[Any, Any], halves: np.ndarray[Any, Any]
) -> dict[str, Callable[[], object]]:
    """Return what CuPy has of the cases, by their names; nothing where it is None."""
    if cupy is None:
        return {}
    a, b, bias = cupy.asarray(values), cupy.asarray(values[::-1].copy()), cupy.zeros(_COLUMNS, "float32")
    half, half_b = cupy.asarray(halves), cupy.asarray(halves[::-1].copy())
    out, half_out, turned = cupy.empty_like(a), cupy.empty_like(half), cupy.empty(a.shape[::-1], "float32")
    silu = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x / (1 + expf(-x))", "silu")
    swiglu = cupy.ElementwiseKernel("float32 x, float32 z", "float32 y", "y = x / (1 + expf(-x)) * z", "swiglu")
    return {
        "copy": lambda: cupy.copyto(out, a),
        "add": lambda: cupy.add(a, b, out=out),
        "add a bias": lambda: cupy.add(a, bias, out=out),
        "multiply": lambda: cupy.multiply(a, 2.0, out=out),
        "exp": lambda: cupy.exp(a, out=out),
        "relu": lambda: cupy.maximum(a, 0.0, out=out),
        "silu": lambda: silu(a, out),
        "add, float16": lambda: cupy.add(half, half_b, out=half_out),
        "exp, float16": lambda: cupy.exp(half, out=half_out),
        "add, transposed": lambda: cupy.add(a.T, turned, out=turned),
        "contiguous(a.T)": lambda: cupy.ascontiguousarray(a.T),
        "sum": lambda: cupy.sum(a),
        "sum, axis 0": lambda: cupy.sum(a, axis=0),
        "sum, axis 1": lambda: cupy.sum(a, axis=1),
        "max": lambda: cupy.max(a),
        "argmax, axis 1": lambda: cupy.argmax(a, axis=1),
        "swiglu": lambda: swiglu(a, b, out),
    }


if __name__ == "__main__":
    sys.exit(common.main(main))
