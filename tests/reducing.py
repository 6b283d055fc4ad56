"""What a reduction must give: exact sums, error bounds, and a bit-for-bit model of the wires.

**The model** runs the algorithm's own schedule (see ``simulator``) in NumPy float32, with the wires written down once
more. Slots and segments are of other sizes than on devices: they must not change a bit.

**Error of the scaled half wire** (``shaders/common/wire.glsl``). A block of 256 values, the largest finite one M in
magnitude, is sent as halves of v * 2^s, where s brings M into [2^14, 2^15); s is clamped to [-113, 126]. Multiplying
by 2^s is exact. A half has 11 significand bits and steps of 2^-24 at least, so rounding moves the scaled value by at
most max(2^-11 |v| 2^s, 2^-25). Undone, and with 2^14 <= M 2^s, that is

    |decode(encode(v)) - v| <= max(2^-11 |v|, 2^-39 M).

- From M = 2^127 on (s = -113, its least) a value that rounds up to 2^15, which stands for 2^128, is sent as the
  largest half below instead: half a step more, so 2^-10 |v|.
- Where M < 2^-112, s stops at 126; halves' steps of 2^-24 then stand for 2^-150, under float32's smallest number.
- Decoded values below 2^-126 become zero: 2^-126 more.

``bf16`` has 8 significand bits and float32's exponents: 2^-8 |v|, and 2^-126 where subnormals are flushed; ``f32``
adds nothing.

**Error of a sum.** With A the sum of the contributions' magnitudes, every partial sum is at most A, and A's largest in
the block bounds every M. Encodings: the ring encodes each of its n - 1 unfinished sums and the result, n in all;
two_shot and naive encode each contribution (errors add up to at most one encoding of A, n times its absolute part)
and the result; direct the contributions alone. Each float32 addition rounds by 2^-24 of at most A, n - 1 times. The
errors so far are themselves encoded again, which (1 + 2^-8)^n covers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from simulator import Simulator, problem

import vkpar
from vkpar import dtypes
from vkpar.array import bfloat16_bits
from vkpar.comm import tuner, wires
from vkpar.comm.algorithms import TABLE
from vkpar.comm.schedule import BLOCK, SlotSet

Numbers = npt.NDArray[Any]
POOLS = {"L": "llvmpipe*8", "S": "swiftshader*3"}
ALGORITHMS = ("ring", "two_shot", "direct", "naive")
FORMATS = [("float32", "f16"), ("float32", "bf16"), ("float32", "f32")]
FORMATS += [(dtype, None) for dtype in ("float16", "bfloat16", "int32", "uint32")]


def mixed(letters: str) -> bool:
    """Say whether a rig written in letters has two drivers."""
    return len(set(letters)) > 1


def algorithms_for(letters: str) -> tuple[str, ...]:
    """Return the algorithms that the rig allows."""
    return tuple(name for name in ALGORITHMS if name != "direct" or not mixed(letters))


def devices_of(rigs: Any, letters: str) -> list[vkpar.Device]:
    """Return opened devices, one per letter: L is llvmpipe, S is SwiftShader; shared by all rigs of the run."""
    pools = {letter: iter(rigs(POOLS[letter])) for letter in dict.fromkeys(letters)}
    return [next(pools[letter]) for letter in letters]


# ---- values ----


def to_dtype(values: Numbers, dtype: str) -> Numbers:
    """Return values as the NumPy elements of ``dtype`` (bfloat16: its bits)."""
    if dtype == "bfloat16":
        return bfloat16_bits(np.ascontiguousarray(values, np.float32))
    return np.asarray(values).astype(dtypes.resolve(dtype).numpy)


def from_dtype(elements: Numbers, dtype: str) -> Numbers:
    """Return elements as float32 values, integers as they are."""
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float32) if dtype == "float16" else elements


def integers(rng: np.random.Generator, dtype: str, count: int, nranks: int) -> list[Numbers]:
    """Return values whose sums every dtype and wire holds exactly: small whole numbers; whole words for integers.

    bfloat16 holds whole numbers to 256, so n values must stay within 256 / n.
    """
    if dtype in ("int32", "uint32"):
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max, count, dtype, endpoint=True) for _ in range(nranks)]
    most = 256 // nranks
    return [to_dtype(rng.integers(-most, most, count, endpoint=True).astype(np.float32), dtype) for _ in range(nranks)]


def exact_sum(parts: Sequence[Numbers], dtype: str) -> Numbers:
    """Return the sum of such values; integers wrap."""
    if dtype in ("int32", "uint32"):
        return np.sum(np.stack(parts), axis=0, dtype=parts[0].dtype)
    return to_dtype(np.sum([from_dtype(part, dtype) for part in parts], axis=0, dtype=np.float32), dtype)


def reals(rng: np.random.Generator, dtype: str, count: int, nranks: int, size: float = 1.0) -> list[Numbers]:
    """Return normally distributed values whose sizes differ by six orders from block to block and in each block."""
    spread = 10.0 ** rng.uniform(-3, 3, -(-count // BLOCK)).repeat(BLOCK)[:count] if dtype == "float32" else 1.0
    within = 10.0 ** rng.uniform(-3, 0, count)
    return [to_dtype(size * spread * within * rng.standard_normal(count), dtype) for _ in range(nranks)]


# ---- bounds ----

_WIRE_ERRORS = {"f16": (2.0**-11, 2.0**-39), "bf16": (2.0**-8, 0.0), "f32": (0.0, 0.0)}
_ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def bound(parts: Sequence[Numbers], algorithm: str, wire: str) -> Numbers:
    """Return how far each element of a float32 sum may be from the true one; see the module's text."""
    n = len(parts)
    magnitude = np.sum(np.abs(np.stack(parts).astype(np.float64)), axis=0)
    largest = np.array([block.max(initial=0) for block in np.split(magnitude, range(BLOCK, magnitude.size, BLOCK))])
    largest = largest.repeat(BLOCK)[: magnitude.size]
    relative, absolute = _WIRE_ERRORS[wire]
    relative = np.where(largest >= 2.0**127, 2 * relative, relative)
    encodings, pieces = {"ring": (n, n), "direct": (1, n)}.get(algorithm, (2, n + 1))
    error = encodings * relative * magnitude + pieces * absolute * largest + (n - 1) * 2.0**-24 * magnitude
    return error * (1 + 2.0**-8) ** n + (n + 1) * 2.0**-126


def check_bound(got: Numbers, parts: Sequence[Numbers], dtype: str, algorithm: str, wire: str | None) -> None:
    """Check a sum of floats against float64.

    Halves travel exactly and are summed in float32, so that only that and the rounding of the result count.
    """
    values = [from_dtype(part, dtype) for part in parts]
    true = np.sum(np.stack(values).astype(np.float64), axis=0)
    error = bound(values, algorithm, wire or "f32")
    error = error + _ROUNDING[dtype] * (np.abs(true) + error) + (2.0**-25 if dtype == "float16" else 0)
    wrong = np.flatnonzero(~(np.abs(from_dtype(got, dtype).astype(np.float64) - true) <= error))
    assert wrong.size == 0, f"{wrong.size} elements, first {wrong[0]}: {got[wrong[0]]} for {true[wrong[0]]}"


# ---- the model ----


def _canonical(values: Numbers) -> Numbers:
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits.view(np.float32)


def _flushed(values: Numbers) -> Numbers:
    bits = values.view(np.uint32)
    return np.where(np.abs(values) < np.float32(2.0**-126), bits & 0x80000000, bits).astype(np.uint32).view(np.float32)


def _scaled(values: Numbers) -> Numbers:
    """Return one block after the scaled wire."""
    finite = np.abs(values[np.isfinite(values)])
    largest = finite.max(initial=np.float32(0)).astype(np.float32)
    exponent = int(largest.view(np.uint32)) >> 23
    shift = int(np.clip(141 - exponent, -113, 126)) if largest else 0
    with np.errstate(all="ignore"):
        halves = (values * np.float32(2.0**shift)).astype(np.float16)
        if shift == -113:
            rounded_up = np.abs(halves) == np.float16(2.0**15)
            halves[rounded_up] = np.copysign(np.float16(32752), halves[rounded_up])
        return _flushed(halves.astype(np.float32) * np.float32(2.0**-shift))


def _blocks(values: Numbers) -> list[Numbers]:
    return np.split(values, range(BLOCK, values.size, BLOCK))


def through(values: Numbers, form: wires.Format) -> Numbers:
    """Return what is left of float32 values (or integers) after a format."""
    if values.dtype != np.float32:
        return values
    if form is wires.WORD:
        return _canonical(values)
    if form is wires.SCALED_HALF:
        return np.concatenate([_scaled(block) for block in _blocks(values)])
    with np.errstate(all="ignore"):
        if form is wires.HALF:
            return values.astype(np.float16).astype(np.float32)
    return from_dtype(bfloat16_bits(values), "bfloat16")


@dataclass
class Wires:
    """The simulator's codec for a plan."""

    plan: wires.WirePlan

    def encode(self, values: Numbers, *, final: bool) -> Numbers:
        return through(values, self.plan.final if final else self.plan.contribution)

    def decode(self, raw: Numbers) -> Numbers:
        return raw


def modelled(
    parts: Sequence[Numbers | None], dtype: str, algorithm: str, wire: str | None, *, blocks: int = 7
) -> Numbers:
    """Return the bits that every rank must hold after the reduction."""
    n, count = len(parts), next(part.size for part in parts if part is not None)
    chosen = TABLE[algorithm]
    slots = SlotSet(n, chosen.least_slots(n) + 1, blocks)
    silent = [rank for rank, part in enumerate(parts) if part is None]
    values = [None if part is None else from_dtype(part, dtype).copy() for part in parts]
    targets = [np.zeros(count, np.float32 if dtype not in ("int32", "uint32") else dtype) for _ in parts]
    plan = wires.plan(dtypes.resolve(dtype), wire or "f16", chosen)
    steps = chosen.steps(problem(n, count, slots, silent))
    with np.errstate(all="ignore"):
        Simulator(slots).run(steps, values, targets, Wires(plan))
        results = [_stored(target, dtype) for target in targets]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


def _stored(values: Numbers, dtype: str) -> Numbers:
    if dtype == "float32":
        return _canonical(values)
    elements = to_dtype(values, dtype)
    if dtype == "float16":
        elements[np.isnan(elements)] = np.array(0x7E00, np.uint16).view(np.float16)
    return elements


def chosen_algorithm(comm: vkpar.Communicator, dtype: str, wire: str | None, count: int, *, complete: bool) -> str:
    """Return what ``auto`` takes."""
    message = wires.message_nbytes(dtypes.resolve(dtype), wire or "f16", count)
    return tuner.choose("auto", [device.info for device in comm.devices], message, complete=complete).name


# ---- running ----


def reduced(
    comm: vkpar.Communicator,
    parts: Sequence[Numbers | None],
    dtype: str,
    *,
    wire: str | None = None,
    in_place: bool = True,
) -> list[Numbers]:
    """Reduce and return every rank's result; what was not to change must not have."""
    count = next(part.size for part in parts if part is not None)
    arrays = [None if p is None else d.array(p, dtype) for d, p in zip(comm.devices, parts, strict=True)]
    if in_place:
        comm.all_reduce(arrays, wire=wire).wait()
        return [array.numpy() for array in arrays if array is not None]
    stale = to_dtype(np.full(count, 77.0), dtype)
    out = [device.array(stale, dtype) for device in comm.devices]
    comm.all_reduce(arrays, out=out, wire=wire).wait()
    for array, part in zip(arrays, parts, strict=True):
        assert array is None or array.numpy().tobytes() == part.tobytes()
    return [array.numpy() for array in out]


def check_identical(results: Sequence[Numbers]) -> Numbers:
    """Check that every rank holds the same bits, and return them."""
    for first, second in itertools.pairwise(results):
        assert first.tobytes() == second.tobytes()
    return results[0]


def check_reduction(
    comm: vkpar.Communicator,
    parts: Sequence[Numbers | None],
    dtype: str,
    algorithm: str,
    wire: str | None,
    *,
    in_place: bool = True,
    exact: bool = False,
) -> Numbers:
    """Reduce; check the replicas, the bits that the model gives, and the sum (exactly, or within the bound)."""
    given = [part for part in parts if part is not None]
    if algorithm == "auto":
        complete = len(given) == len(parts)
        algorithm = chosen_algorithm(comm, dtype, wire, given[0].size, complete=complete)
    explicit = wire if dtype == "float32" else None
    got = check_identical(reduced(comm, parts, dtype, wire=explicit, in_place=in_place))
    if comm.nranks > 1 and got.size:
        want = modelled(parts, dtype, algorithm, wire)
        wrong = np.flatnonzero(got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}"))
        assert wrong.size == 0, f"{wrong.size} elements differ from the model, first {wrong[0]}: {got[wrong[0]]}"
    if exact:
        assert np.array_equal(got, exact_sum(given, dtype))
    elif dtype.startswith(("float", "bfloat")):
        check_bound(got, given, dtype, algorithm, wire)
    return got
