"""Whether matrix cores make attention of many queries sooner: measured once per device and driver.

Kept in ``VKPAR_CACHE_DIR``. It is for devices whose matrices are narrower than those of which it is known.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import threading
from typing import TYPE_CHECKING, Final

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.abi import attention as abi
from vkpar.abi.words import pack
from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError
from vkpar.ops.call.checks import FLOATS, SHORT
from vkpar.vulkan import capturing, query

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.attention.form import Kernel
    from vkpar.vulkan.machine.physical import DeviceInfo

_log = logging.getLogger("vkpar")

_HEADS: Final = 8
_TOKENS: Final = 512  # and as many keys
_RUNS: Final = 5
_ROUNDS: Final = 3  # of which the fastest counts: an idle device starts at a low clock

_known: dict[tuple[object, ...], bool] = {}
_lock = threading.RLock()


def faster(device: Device, cores: Kernel, plain: Kernel, dtype: str, width: int) -> bool:
    """Tell whether a kernel of matrix cores is faster than one without: as was found in this process, earlier, or now.

    With VKPAR_TUNING=off, where it cannot be measured, and inside a capture, which waits for nothing and finds nothing
    kept, it is taken not to be.

    Args:
        device: whose.
        cores: the kernel of matrix cores.
        plain: the other one, which brings no parts of keys together either.
        dtype: of queries, keys and values.
        width: elements of a row; what was measured counts for all rows of as many matrices.
    """
    if env.get().tuning == "off":
        return False
    info, wide = device.info, -(-width // 16) * 16
    key = (info.device_uuid, info.driver_uuid, info.driver_version, dtype, wide)
    with _lock:
        if key not in _known:
            found = _kept(info, dtype, wide) if env.get().tuning == "auto" else None
            if found is None and capturing.current() is not None:
                return False
            _known[key] = _measured(device, cores, plain, dtype, wide) if found is None else found
        return _known[key]


def _file(info: DeviceInfo, dtype: str, width: int) -> tuple[str, dict[str, object]]:
    """Return the name of the file that keeps what was measured, and what it says that this is about."""
    about: dict[str, object] = {"vkpar": __version__, "driver": [info.driver_uuid, info.driver_version]}
    return f"attention-{info.device_uuid}-{dtype}-{width}.json", about


def _kept(info: DeviceInfo, dtype: str, width: int) -> bool | None:
    """Return what a file says; None where there is none, or one of something else."""
    name, about = _file(info, dtype, width)
    try:
        data = cachedir.read(name)
        document = json.loads(data) if data else {}
        if any(document[key] != value for key, value in about.items()):
            return None
        cores, plain = map(float, document["ns"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return cores < plain if _sound(cores, plain) else None


def _sound(*times: float) -> bool:
    return all(0 < ns < math.inf for ns in times)


def _measured(device: Device, cores: Kernel, plain: Kernel, dtype: str, width: int) -> bool:
    try:
        ns = [1e9 * seconds for seconds in _seconds(device, (cores, plain), dtype, width)]
    except DeviceLostError:
        raise
    except (OutOfMemoryError, UnsupportedError) as error:
        _log.info("attention by matrix cores of %s is not measured: %s", device, error)
        return False
    except VulkanError as error:
        _log.warning("%s does not build its attention by matrix cores, which is left alone: %s", device, error)
        return False
    if not _sound(*ns):
        _log.info("the times of attention by matrix cores of %s make no sense: %s", device, ns)
        return False
    name, about = _file(device.info, dtype, width)
    try:
        cachedir.write(name, json.dumps({**about, "ns": ns}).encode())
    except OSError as error:
        _log.info("what attention by matrix cores takes is not kept: %s", error)
    return ns[0] < ns[1]


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
