#!/usr/bin/env python3
"""Times vkpar's matrix products beside torch's (cuBLAS) on one GPU, with and without its matrix cores.

Each row is a product by the kernels that vkpar takes; ``--without`` opens the device once more without these features,
so that what vkpar falls back to is in the same table. ``share`` is torch's time over vkpar's. Times are of calls in a
row with one wait, medians of several, after as many calls as raise the GPU's clock: one that was idle for a moment may
take four times as long, for a tenth of a second or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import vkpar
from vkpar import env
from vkpar.bench.commands import whole

_SHAPES = (
    ("float16", 1024, 1024, 1024, False),
    ("float16", 1024, 1024, 1024, True),
    ("float16", 2048, 2048, 2048, False),
    ("float16", 4096, 4096, 4096, False),
    ("float16", 4096, 4096, 4096, True),
    ("float16", 8192, 8192, 8192, False),
    ("float16", 8192, 8192, 8192, True),
    *(("float16", m, 14336, 4096, True) for m in (512, 500, 16)),
    ("float16", 512, 14336, 4096, False),
    ("float16", 512, 4096, 14336, True),
    *(("float16", 512, n, 4096, True) for n in (4096, 6144, 28672)),
    ("bfloat16", 4096, 4096, 4096, False),
    ("bfloat16", 512, 14336, 4096, True),
    *(("float32", size, size, size, turned) for size in (1024, 2048, 4096, 8192) for turned in (False, True)),
    *(
        ("float16", m, *size, turned)
        for size in ((14336, 4096), (4096, 14336))
        for turned in (False, True)
        for m in (1, 4, 8)
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device, the GPU that torch calls cuda:0")
    parser.add_argument("--without", nargs="*", default=[], metavar="FEATURES", help="as VKPAR_WITHOUT, a run for each")
    parser.add_argument("--repeat", type=whole(1), default=5, metavar="N", help="measure so often, take the median")
    given = parser.parse_args(arguments)
    common.need("torch", "pip install torch")
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    theirs = {shape: _torch(torch, shape, given.repeat) for shape in _SHAPES}
    print("#without / product                              us  TFLOP/s   GB/s of b  torch us  share")
    for without in ["", *given.without]:
        with env.override(without=without), vkpar.open_devices(given.device)[0] as device:
            print(f"# vkpar {vkpar.__version__}, torch {torch.__version__} on {device.name}")
            print(f"# without {without or 'nothing'}")
            for shape in _SHAPES:
                dtype, m, n, k, turned = shape
                us = _ours(device, shape, given.repeat)
                rate, itemsize = 2e-6 * m * n * k / us, 4 if dtype == "float32" else 2
                name = f"{dtype} {m}x{n}x{k}{' transposed' if turned else ''}"
                peer, read = theirs[shape], 1e-3 * itemsize * n * k / us
                print(f" {name:40s} {us:9.1f} {rate:8.1f} {read:11.0f} {peer:9.1f} {peer / us:6.2f}", flush=True)
    return 0


def _calls(shape: tuple[str, int, int, int, bool]) -> int:
    return max(3, min(400, (1 << 39) // (shape[1] * shape[2] * shape[3])))


def _ours(device: vkpar.Device, shape: tuple[str, int, int, int, bool], repeat: int) -> float:
    dtype, m, n, k, turned = shape
    rng = np.random.default_rng(0)
    a, b = (
        device.array(rng.standard_normal(size, dtype=np.float32)).astype(dtype)
        for size in ((m, k), (n, k) if turned else (k, n))
    )
    out = device.empty((m, n), dtype)

    def call() -> object:
        return vkpar.matmul(a, b, transpose_b=turned, out=out)

    return common.risen_us(call, _calls(shape), device.synchronize, repeat)


def _torch(torch: Any, shape: tuple[str, int, int, int, bool], repeat: int) -> float:
    dtype, m, n, k, turned = shape
    kind = getattr(torch, dtype)
    a = torch.randn(m, k, device="cuda", dtype=kind)
    b = torch.randn(*((n, k) if turned else (k, n)), device="cuda", dtype=kind)
    b, out = b.t() if turned else b, torch.empty(m, n, device="cuda", dtype=kind)
    return common.risen_us(lambda: torch.matmul(a, b, out=out), _calls(shape), torch.cuda.synchronize, repeat)


if __name__ == "__main__":
    sys.exit(common.main(main))
