"""Whether matrix cores make attention of many queries sooner, on devices whose matrices are narrower than others'."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vkpar.abi import attention as abi
from vkpar.abi.words import pack
from vkpar.ops.call.checks import FLOATS, SHORT
from vkpar.ops.call.measured import Measurement
from vkpar.vulkan import query

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.attention.form import Kernel


_HEADS: Final = 8
_TOKENS: Final = 512  # and as many keys
_RUNS: Final = 5
_ROUNDS: Final = 3  # of which the fastest counts: an idle device starts at a low clock


def faster(device: Device, cores: Kernel, plain: Kernel, dtype: str, width: int) -> bool:
    """Tell whether a kernel of matrix cores is faster than one without; it is taken not to be where nobody can say.

    Args:
        device: whose.
        cores: the kernel of matrix cores.
        plain: the other one, which brings no parts of keys together either.
        dtype: of queries, keys and values.
        width: elements of a row; what was measured counts for all rows of as many matrices.
    """
    wide = -(-width // 16) * 16

    def measure() -> Mapping[str, object]:
        return {"ns": [1e9 * seconds for seconds in _seconds(device, (cores, plain), dtype, wide)]}

    file = "attention", f"{dtype}-{wide}"
    return Measurement("attention by matrix cores", file, measure, _parsed, lambda: False).of(device)


def _parsed(document: Mapping[str, Any]) -> bool:
    cores, plain = map(float, document["ns"])
    if not all(0 < ns < math.inf for ns in (cores, plain)):
        raise ValueError(f"{cores} and {plain} ns")
    return cores < plain


def _seconds(device: Device, kernels: tuple[Kernel, Kernel], dtype: str, width: int) -> list[float]:
    """Return what kernels take of the same queries, keys and values, all zeros."""
    clock = query.DeviceClock(device.logical)
    arrays = [device.empty((_HEADS, _TOKENS, width), dtype) for _ in range(4)]
    for array in arrays[:3]:
        array.fill(0)
    device.synchronize()
    q, k, v, out = (array.window()[0] for array in arrays)
    rounds: list[list[float]] = []
    for _ in range(_ROUNDS):
        rounds.append([])
        for kernel in kernels:
            groups, name = _HEADS * -(-_TOKENS // kernel.rows), f"{kernel.name}_{SHORT[dtype]}"
            push = _push(kernel, width)
            pipeline = device.logical.pipelines.shipped(name, 6, len(push), _constants(kernel, dtype, width))
            taken = query.timed_runs(clock, pipeline, [q, k, v, q, q, out], push, (groups, 1, 1), _RUNS)
            rounds[-1].append(statistics.median(taken))
    return [min(times) for times in zip(*rounds, strict=True)]


def _constants(kernel: Kernel, dtype: str, width: int) -> tuple[int, ...]:
    """Return a kernel's constants for rows that lie one after the other, without masks, lengths or windows."""
    code = FLOATS[dtype]
    own = abi.AttentionConstants(
        threads=kernel.threads,
        width=width,
        q_type=code,
        o_type=code,
        v_wide=1,
        q_wide=1,
        o_wide=1,
        causal=0,
        masked=0,
        m_type=0,
        lengths=0,
        split=0,
        windowed=0,
    )
    return (*own, *kernel.more)


def _push(kernel: Kernel, width: int) -> bytes:
    """Return the push constants of queries, keys and values of the measured size."""
    head, blocks = _TOKENS * width, -(-_TOKENS // kernel.rows)
    steps = (0, 0, head, width) * 4
    return pack(abi.Attention(1, _HEADS, 1, _TOKENS, _TOKENS, blocks, 1, width**-0.5, *steps, *(0,) * 7, _TOKENS))
