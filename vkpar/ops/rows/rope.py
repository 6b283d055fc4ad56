"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.abi import attention as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call import kept, landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import INTEGERS, SHORT, check_arrays, check_float, check_out, check_overlap, holds
from vkpar.ops.call.strided import bind, stand_in
from vkpar.ops.call.windows import GROUP
from vkpar.text import shown

Scaling = float | Mapping[str, float] | Sequence[float] | np.ndarray[Any, Any] | None

_STYLES: Final = ("llama", "neox")
_LLAMA3: Final = ("factor", "low_freq_factor", "high_freq_factor", "original_context")


def rope(
    x: Array,
    positions: Array,
    theta: float = 10000.0,
    *,
    scaling: Scaling = None,
    style: str = "llama",
    width: int | None = None,
    out: Array | None = None,
) -> Array:
    """Return ``x`` with pairs of elements of each row turned by ``position * theta ** (-2 i / width)``, i their number.

    That is rotary position embedding (Su and others, 2021). Angles are reduced in whole numbers, so that they are as
    exact at position 100,000 as at 1: the sine and the cosine err by less than 2^-21.

    Args:
        x: (heads, T, n) or (batch, heads, T, n); float32, float16 or bfloat16. Views whose rows lie apart, such as
            ``h.reshape(T, heads, n).transpose(1, 0, 2)``, are taken where they lie, as ``out`` is.
        positions: int32 or uint32, (T,) or (batch, T); below zero turns backwards.
        theta: the base of the frequencies.
        scaling: None; a number that positions are divided by (linear scaling); the mapping of Llama 3 with
            ``factor``, ``low_freq_factor``, ``high_freq_factor`` and ``original_context``; or a divisor of each
            frequency, ``width / 2`` of them, as GGUF's ``rope_freqs``.
        style: ``"llama"`` pairs elements (2 i, 2 i + 1), as weights in GGUF's order of Llama want it; ``"neox"`` pairs
            (i, i + width / 2), as transformers does.
        width: how many elements of a row are turned, the first ones; n by default. The others stay.
        out: where the result goes, of ``x``'s shape and type; may be ``x`` itself (in place).

    Raises:
        InvalidUsageError: not arrays, closed ones, several devices; shapes that do not fit, an odd ``width``, another
            style or scaling; a wrong ``out``, or one that shares memory with an operand without being ``x``.
        UnsupportedError: a type that devices do not compute; an array that a kernel cannot see at once.

    Examples:
        >>> x = device.ones((1, 3, 8))  # (heads, tokens, width)
        >>> vkpar.rope(x, device.arange(3)).shape
        (1, 3, 8)
    """
    table = known_table(x, theta, scaling, width)
    if table is not None:
        done = repeat("rope", (x, positions, table), (out,), style, in_place=True)
        if done is not None:
            return done[0]
    check_arrays("rope", out, x=x, positions=positions)
    _check(x, positions, style)
    if out is not None:
        check_out("rope", out, x.shape, x.dtype)
        check_overlap("rope", out, x, in_place=True)
        check_overlap("rope", out, positions, in_place=False)
    if table is None:
        table = table_of(x, theta, scaling, width)
    key = key_of("rope", (x, positions, table), (out,), style)
    made = x.device.empty(x.shape, x.dtype) if out is None else out
    if not made.size:
        return made
    call = Call("rope", key, (x, positions, table), (made,))
    _launch(call, neox=style == "neox")
    call.keep()
    return made


def check_style(style: str) -> None:
    """Raise InvalidUsageError where there is no such style."""
    if style not in _STYLES:
        raise InvalidUsageError(f"rope: style is {' or '.join(map(repr, _STYLES))}, not {style!r}")


def _check(x: Array, positions: Array, style: str) -> None:
    check_float("rope", x.dtype)
    if x.ndim not in (3, 4):
        raise InvalidUsageError(f"rope: x is (heads, T, width) or (batch, heads, T, width), not {x.shape}")
    if positions.dtype.name not in INTEGERS:
        raise UnsupportedError(f"rope: positions are {' or '.join(INTEGERS)}, not {positions.dtype}; cast them")
    allowed = [(x.shape[-2],)] + ([(x.shape[0], x.shape[-2])] if x.ndim == 4 else [])
    if positions.shape not in allowed:
        expected = " or ".join(map(str, allowed))
        raise InvalidUsageError(f"rope: positions are {expected} for x of {x.shape}, not {positions.shape}")
    check_style(style)


def _launch(call: Call, *, neox: bool) -> None:
    x, positions, table = call.operands
    out = call.results[0]
    half = table.size // 2
    target = stand_in(call, out)
    if neox and half % 2 and target.dtype.itemsize == 2:
        target = call.temporary(out.shape, dtypes.float32)
    source, result = bind(call, x), bind(call, target)
    packed = landing.packed(call, call.operands[1])
    places, p_first = packed.window()
    numbers, _ = table.window()
    heads, tokens, width = x.shape[-3:]
    count = x.size // width
    p_batch = tokens if positions.ndim == 2 else 0
    signed = positions.dtype == dtypes.int32
    steps = (*source.words, *result.words)
    push = pack(abi.Rope(count, heads, tokens, width, half, *steps, p_first, p_batch, int(signed)))
    units = count * ((half + 1) // 2 + (width - 2 * half + 3) // 4)
    arrays = (source.array, packed, table, result.array)
    ranges = (source.range, places, numbers, result.range)
    constants = abi.RopeConstants(neox, target.dtype != x.dtype)
    call.dispatch(f"rope_{SHORT[x.dtype.name]}", arrays, ranges, push, -(-units * 4 // GROUP), constants)
    landing.land(call, target, out)


# ---- frequencies ----


def known_table(x: Array, theta: float, scaling: Scaling, width: int | None) -> Array | None:
    """Return the device's table of frequencies; None where there is none yet, or the arguments are wrong."""
    try:
        if width is not None and width > x.shape[-1]:
            return None
        return x.device.plans.tables.get(("rope", x.shape[-1] if width is None else width, theta, _hashed(scaling)))
    except (AttributeError, TypeError, IndexError, ValueError):  # the long way says what is wrong
        return None


def _hashed(scaling: Scaling) -> object:
    if scaling is None or isinstance(scaling, (int, float)):
        return scaling
    if isinstance(scaling, Mapping):
        return tuple(sorted(scaling.items()))
    return np.asarray(scaling, np.float64).tobytes()


def table_of(x: Array, theta: float, scaling: Scaling, width: int | None) -> Array:
    """Make the table of frequencies that :func:`known_table` finds, checked, and keep it for later calls."""
    width = x.shape[-1] if width is None else width
    if not isinstance(width, int) or width % 2 or not 2 <= width <= x.shape[-1]:
        raise InvalidUsageError(f"rope: width is an even number of the {x.shape[-1]} elements of a row, not {width!r}")
    if not holds(theta) or theta <= 0:
        raise InvalidUsageError(f"rope: theta is a positive number that float32 holds, not {shown(theta)}")
    exact = frequencies(width, theta, scaling)
    fractions = [int(math.ldexp(each, 64)) % (1 << 64) for each in exact / (2 * math.pi)]
    words = np.array([part for each in fractions for part in (each % (1 << 32), each >> 32)], np.uint32)
    return kept.keep(x.device, ("rope", width, theta, _hashed(scaling)), words)


def frequencies(width: int, theta: float, scaling: Scaling = None) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the angle of each pair at position 1; see :func:`rope` for the arguments.

    Raises:
        InvalidUsageError: a scaling that is none.
    """
    exact = float(theta) ** (-2.0 * np.arange(width // 2) / width)
    if scaling is None:
        return exact
    if isinstance(scaling, Mapping):
        return _llama3(exact, scaling)
    try:
        divisors = np.asarray(scaling, np.float64)
    except (TypeError, ValueError, OverflowError):
        divisors = np.zeros(())
    if divisors.shape not in ((), exact.shape) or not (np.isfinite(divisors) & (divisors > 0)).all():
        raise InvalidUsageError(
            f"rope: scaling is a positive number, {width // 2} of them, or a mapping of {', '.join(_LLAMA3)}; "
            f"not {scaling!r}"
        )
    return exact / divisors


def _llama3(
    exact: np.ndarray[Any, np.dtype[np.float64]], scaling: Mapping[str, float]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Scale frequencies as Llama 3.1 does: low ones by the factor, high ones not, those between by some of it."""
    if set(scaling) != set(_LLAMA3) or not all(holds(value) and value > 0 for value in scaling.values()):
        raise InvalidUsageError(f"rope: scaling has {', '.join(_LLAMA3)}, positive numbers; not {dict(scaling)!r}")
    factor, low, high, context = (float(scaling[name]) for name in _LLAMA3)
    if high <= low:
        raise InvalidUsageError(f"rope: high_freq_factor {high} is not above low_freq_factor {low}")
    turns = exact * context / (2 * math.pi)  # that a pair makes in the original context
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return exact * (share + (1 - share) / factor)
