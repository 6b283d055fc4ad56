#!/usr/bin/env python3
"""Times vkpar's attention beside torch's on one GPU: one query over many keys, and causal prefills.

``v/t`` is vkpar's time over torch's. ``rate`` is that of the keys' and values' bytes for one query, in TB/s, and of
multiply-adds counted twice for a prefill, in TFLOP/s, by vkpar. ``off`` is how far the two are apart at most.

Options that take several numbers try each of them, in one run.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import common
import numpy as np

import vkpar
from vkpar.bench.commands import whole

_module: Any = importlib.import_module("vkpar.ops.attention.kernels")
_TUNING = ("threads", "part", "groups", "rows", "cores", "keys", "core_threads", "tiled")

_COLUMN = 12  # characters


class Case(NamedTuple):
    """Attention of ``tokens`` queries over ``keys`` keys."""

    tokens: int
    keys: int

    @property
    def decodes(self) -> bool:
        return self.tokens == 1

    def __str__(self) -> str:
        return f"1 over {self.keys}" if self.decodes else f"prefill {self.tokens}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="0", help="a selector of one device, the GPU that torch calls cuda:0")
    parser.add_argument("--heads", type=whole(1), default=32, metavar="N")
    parser.add_argument("--kv-heads", type=whole(1), default=8, metavar="N")
    parser.add_argument("--width", type=whole(1), default=128, metavar="N")
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--decode", type=whole(1), nargs="*", default=[1024, 4096, 16384], metavar="KEYS")
    parser.add_argument("--prefill", type=whole(1), nargs="*", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--repeat", type=whole(1), default=7, metavar="N", help="measure so often, take the median")
    for name in _TUNING:
        now = getattr(_module.tuning, name)
        few = {"rows": [1, 4, 8], "core_threads": [128, 256]}.get(name)
        about = f"by default {now}"
        parser.add_argument(f"--{name}", type=whole(1), choices=few, nargs="+", default=[now], help=about)
    given = parser.parse_args(arguments)
    common.need("torch", "pip install torch")
    import torch

    cases = [Case(1, keys) for keys in given.decode] + [Case(tokens, tokens) for tokens in given.prefill]
    with vkpar.open_devices(given.device)[0] as device:
        print(f"# vkpar {vkpar.__version__}, torch {torch.__version__} on {device.name}: medians of {given.repeat}")
        print(f"# {given.heads} heads over {given.kv_heads}, {given.width} wide, {given.dtype}")
        names = " ".join(f"{name:>{_COLUMN}s}" for name in _TUNING)
        print(f"#case            {names}   vkpar us  torch us    v/t      rate      off")
        for case in cases:
            for line in _measure(device, torch, case, given):
                print(line, flush=True)
    return 0


def _measure(device: vkpar.Device, torch: Any, case: Case, given: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each way to spread the work."""
    rng = np.random.default_rng(0)
    shapes = [(given.heads, case.tokens, given.width)] + [(given.kv_heads, case.keys, given.width)] * 2
    host = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays = [device.array(each, given.dtype) for each in host]
    tensors = [torch.from_numpy(each).cuda().to(getattr(torch, given.dtype))[None] for each in host]
    out, causal = device.empty(shapes[0], given.dtype), not case.decodes
    attend = torch.nn.functional.scaled_dot_product_attention

    def ours() -> object:
        return vkpar.attention(*arrays, causal=causal, out=out)

    def theirs() -> Any:
        return attend(*tensors, is_causal=causal, enable_gqa=given.heads != given.kv_heads)

    calls = 200 if case.decodes else 20
    for values in itertools.product(*(getattr(given, name) for name in _TUNING)):
        _module.tuning = _module.Tuning(**dict(zip(_TUNING, values, strict=True)))
        device.plans.recipes.clear()
        pairs = [
            (
                common.time_us(ours, calls, device.synchronize),
                common.time_us(theirs, calls, torch.cuda.synchronize),
            )
            for _ in range(given.repeat)
        ]
        a, b = (median(each) for each in zip(*pairs, strict=True))
        off = np.abs(_floats(out) - theirs()[0].float().cpu().numpy()).max()
        nbytes = sum(array.nbytes for array in arrays[1:])
        flops = 4 * given.heads * given.width * case.tokens * (case.keys + 1) / 2
        rate = f"{nbytes / a / 1e6:6.2f} TB" if case.decodes else f"{flops / a / 1e6:6.1f} TF"
        numbers = " ".join(f"{value:{_COLUMN}d}" for value in values)
        yield f" {case!s:16s} {numbers} {a:10.1f} {b:9.1f} {a / b:6.2f} {rate} {off:8.1e}"


def _floats(array: vkpar.Array) -> np.ndarray[Any, Any]:
    return array.numpy().astype(np.float32)


if __name__ == "__main__":
    sys.exit(common.main(main))
