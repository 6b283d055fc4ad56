#!/usr/bin/env python3
"""Times vkpar's operations beside torch's on one GPU: large arrays at the memory's rate, small ones at the host's.

``v/t`` is vkpar's time over torch's. ``rate`` is that of the bytes that an operation has to read and write, by vkpar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import common
import numpy as np

import vkpar
from vkpar.bench.commands import whole
from vkpar.bench.table import parse_size

_COLUMNS = 1024


class Case(NamedTuple):
    """One operation.

    Attributes:
        name: of the operation.
        arrays: how many times the size it reads and writes.
        ours: calls vkpar's, ``theirs`` torch's.
    """

    name: str
    arrays: float
    ours: Callable[[], object]
    theirs: Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device, the GPU that torch calls cuda:0")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[64 << 20, 64 << 10], metavar="BYTES")
    parser.add_argument("--repeat", type=whole(1), default=7, metavar="N", help="measure so often, take the median")
    given = parser.parse_args(arguments)
    common.need("torch", "pip install torch")
    import torch

    with vkpar.open_devices(given.device)[0] as device:
        print(f"# vkpar {vkpar.__version__}, torch {torch.__version__} on {device.name}: float32, medians")
        for nbytes in given.sizes:
            print(f"#\n# {nbytes >> 10} KiB, rows of {_COLUMNS}")
            print("#operation          vkpar us  torch us    v/t  rate TB/s")
            for case in _cases(device, torch, nbytes):
                calls = max(10, min(300, (1 << 33) // nbytes))
                ours = [common.time_us(case.ours, calls, device.synchronize) for _ in range(given.repeat)]
                theirs = [common.time_us(case.theirs, calls, torch.cuda.synchronize) for _ in range(given.repeat)]
                a, b = median(ours), median(theirs)
                rate = case.arrays * nbytes / a / 1e6
                print(f" {case.name:18s} {a:8.1f}  {b:8.1f} {a / b:6.2f} {rate:9.3f}")
    return 0


def _cases(device: vkpar.Device, torch: Any, nbytes: int) -> Iterator[Case]:
    functional = torch.nn.functional
    rows = max(1, nbytes // 4 // _COLUMNS)
    values = np.random.default_rng(0).standard_normal((rows, _COLUMNS)).astype(np.float32)
    a, b, out = device.array(values), device.array(values[::-1]), device.empty((rows, _COLUMNS))
    weight, bias = device.array(np.ones(_COLUMNS), "float32"), device.zeros(_COLUMNS)
    half, half_out = a.astype("float16"), device.empty((rows, _COLUMNS), "float16")
    ta, tb = torch.from_numpy(values).cuda(), torch.from_numpy(values[::-1].copy()).cuda()
    tout, tweight, tbias = torch.empty_like(ta), torch.ones(_COLUMNS).cuda(), torch.zeros(_COLUMNS).cuda()
    thalf = ta.half()
    thalf_out = torch.empty_like(thalf)
    turned, tturned = device.empty((_COLUMNS, rows)), torch.empty((_COLUMNS, rows)).cuda()
    width = (_COLUMNS,)
    yield Case("copy", 2, lambda: out.copy_from(a), lambda: tout.copy_(ta))
    yield Case("add", 3, lambda: vkpar.add(a, b, out=out), lambda: torch.add(ta, tb, out=tout))
    yield Case("add a bias", 2, lambda: vkpar.add(a, bias, out=out), lambda: torch.add(ta, tbias, out=tout))
    yield Case("multiply", 2, lambda: vkpar.multiply(a, 2.0, out=out), lambda: torch.mul(ta, 2.0, out=tout))
    yield Case("exp", 2, lambda: vkpar.exp(a, out=out), lambda: torch.exp(ta, out=tout))
    yield Case("relu", 2, lambda: vkpar.relu(a, out=out), lambda: torch.clamp(ta, min=0, out=tout))
    yield Case("silu", 2, lambda: vkpar.silu(a, out=out), lambda: functional.silu(ta))
    yield Case(
        "add, float16", 1.5, lambda: vkpar.add(half, half, out=half_out), lambda: torch.add(thalf, thalf, out=thalf_out)
    )
    yield Case("exp, float16", 1, lambda: vkpar.exp(half, out=half_out), lambda: torch.exp(thalf, out=thalf_out))
    yield Case(
        "add, transposed", 3, lambda: vkpar.add(a.T, turned, out=turned), lambda: torch.add(ta.T, tturned, out=tturned)
    )
    yield Case(
        "contiguous(a.T)",
        2,
        lambda: vkpar.contiguous(a.T),
        lambda: torch.clone(ta.T, memory_format=torch.contiguous_format),
    )
    yield Case("sum", 1, lambda: vkpar.sum(a), lambda: torch.sum(ta))
    yield Case("sum, axis 0", 1, lambda: vkpar.sum(a, axis=0), lambda: torch.sum(ta, 0))
    yield Case("sum, axis 1", 1, lambda: vkpar.sum(a, axis=1), lambda: torch.sum(ta, 1))
    yield Case("max", 1, lambda: vkpar.max(a), lambda: torch.max(ta))
    yield Case("argmax, axis 1", 1, lambda: vkpar.argmax(a, axis=1), lambda: torch.argmax(ta, 1))
    yield Case("softmax", 2, lambda: vkpar.softmax(a, out=out), lambda: torch.softmax(ta, -1))
    yield Case(
        "layer_norm",
        2,
        lambda: vkpar.layer_norm(a, weight, bias, out=out),
        lambda: functional.layer_norm(ta, width, tweight, tbias),
    )
    yield Case(
        "rms_norm", 2, lambda: vkpar.rms_norm(a, weight, out=out), lambda: functional.rms_norm(ta, width, tweight)
    )
    yield Case("swiglu", 3, lambda: vkpar.swiglu(a, b, out=out), lambda: functional.silu(ta) * tb)


if __name__ == "__main__":
    sys.exit(common.main(main))
