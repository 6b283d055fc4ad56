"""What a reduction must give: exact results, error bounds, and a bit-for-bit model of the wires.

**The model** runs the algorithm's own schedule (see ``simulator``) in NumPy float32, with the wires written down once
more. Slots and segments are of other sizes than on devices: they must not change a bit. All drivers encode alike, so
this holds for every wire; only what some drivers do with numbers below 2^-126, taking them for zero, is left open.

**Error of an encoding**, of v in a block whose largest finite magnitude is M (``shaders/common/wire.glsl``).

- ``f16``: max(2^-11 |v|, 2^-39 M) + 2^-126. A block of 256 is sent as halves of v 2^s, where s brings M into
  [2^14, 2^15); s is clamped to [-113, 126]. Multiplying by 2^s is exact. A half has 11 significand bits and steps of
  2^-24 at least, so rounding moves the scaled value by at most max(2^-11 |v| 2^s, 2^-25), and 2^14 <= M 2^s. From
  M = 2^127 on (s = -113) a value that rounds up to 2^15, which stands for 2^128, is sent as the largest half below
  instead: half a step more, so 2^-10 |v|. Where M < 2^-112, s stops at 126; halves' steps of 2^-24 then stand for
  2^-150, under float32's smallest number. Decoded values below 2^-126 become zero.
- ``bf16``: 8 significand bits and float32's exponents, so 2^-8 |v|, and 2^-126 where subnormals are flushed.
- ``q8``: max(M, 2^-118) / 251, in blocks of 32. The scale S is m/126, with m being M rounded up to 13 bits, and
  values are multiplied by W = 126/m, rounded down in steps of 1/516096 at most. The code is the whole number next to
  v W: half of S off, which is m/252, and v (1 - W S) besides, of which docs/wires.md shows that they stay below.
- ``f32`` adds nothing. Halves travel as they are, or in float32; their result is rounded once.

**Error of a result.** The same schedule is run on pairs of a number and a bound of its error (``Errors``). A sum adds
the errors of its terms and rounds by 2^-24 of its bound; in a product each error is multiplied by the other's bound;
an average divides the error of its sum, and rounds twice. What is encoded has its error, so |v| and M are as much
larger. For a sum, with A the sum of the magnitudes and L that of every contribution's M, it is to first order

    k (2^-11 A + 2^-39 L) + (n - 1) 2^-24 A

with k the encodings that any contribution goes through: 1 in direct; in two_shot and naive 2, its own and the
result's; n in the ring, of each of the n - 1 unfinished sums and the result. In the tree every rank sends each
unfinished sum once. Those that are equally far from the owner have no contribution in common: together they too are
at most A and L. They are at most ceil(log2 n) sends away (folding is one, where n is no power of two), and the owner
encodes the result, so that k = ceil(log2 n) + 1.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers.comm.simulator import Simulator, problem

import vkpar
from vkpar import dtypes
from vkpar.abi.formats import WIRES
from vkpar.bench.measure.exact import truncated_quotient
from vkpar.comm import wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Plan
from vkpar.comm.plan.shares import Costs
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, SlotSet

Numbers = npt.NDArray[Any]
# The drivers of test rigs by letter. VKPAR_TEST_L="0&1&0&1&0&1&0&1" runs the same rigs on two GPUs, not on lavapipe.
POOLS = {"L": os.environ.get("VKPAR_TEST_L", "llvmpipe*8"), "S": "swiftshader*3"}
ALGORITHMS = ("ring", "two_shot", "direct", "tree", "naive")
INTEGERS = ("int32", "uint32", "int8", "uint8", "int16", "uint16", "int64", "uint64")
FORMATS: list[tuple[str, str | None]] = [("float32", wire) for wire in ("f16", "bf16", "f32", "q8")]
FORMATS += [(dtype, None) for dtype in ("float16", "bfloat16", *INTEGERS)]


def mixed(letters: str) -> bool:
    """Say whether a rig written in letters has two drivers."""
    return len(set(letters)) > 1


def algorithms_for(letters: str) -> tuple[str, ...]:
    """Return the algorithms that the rig allows."""
    return tuple(name for name in ALGORITHMS if name != "direct" or not mixed(letters))


def devices_of(rigs: Any, letters: str) -> list[vkpar.Device]:
    """Return opened devices, one per letter: L is llvmpipe (see POOLS), S is SwiftShader; shared by the whole run."""
    pools = {letter: iter(rigs(POOLS[letter])) for letter in dict.fromkeys(letters)}
    return [next(pools[letter]) for letter in letters]


def fresh_devices(rigs: Any, letters: str) -> list[vkpar.Device]:
    """Return devices of the test's own, one per letter."""
    return [vkpar.open_devices(str(device.info.index))[0] for device in devices_of(rigs, letters)]


@contextmanager
def own_devices(rigs: Any, letters: str) -> Iterator[list[vkpar.Device]]:
    """Devices of the test's own, one per letter, that are closed behind it."""
    devices = fresh_devices(rigs, letters)
    yield devices
    for device in devices:
        device.close()


# ---- values ----


def to_dtype(values: Numbers, dtype: str) -> Numbers:
    """Return values as the NumPy elements of ``dtype``."""
    return np.asarray(values).astype(dtypes.resolve(dtype).numpy)


def from_dtype(elements: Numbers, dtype: str) -> Numbers:
    """Return elements as float32 values, integers as they are."""
    return elements.astype(np.float32) if dtype in ("float16", "bfloat16") else elements


def integers(rng: np.random.Generator, dtype: str, count: int, nranks: int, op: str = "sum") -> list[Numbers]:
    """Return values whose results every dtype, and every wire but q8, holds exactly; whole words for integers.

    bfloat16 holds whole numbers to 256, so n terms must stay within 256 / n, and factors are 1 or 2.
    """
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max, count, dtype, endpoint=True) for _ in range(nranks)]
    if op == "prod":
        return [to_dtype(rng.choice([-2.0, -1.0, 1.0, 2.0], count), dtype) for _ in range(nranks)]
    most = 256 // nranks
    return [to_dtype(rng.integers(-most, most, count, endpoint=True).astype(np.float32), dtype) for _ in range(nranks)]


def exact_sum(parts: Sequence[Numbers], dtype: str, op: str = "sum") -> Numbers:
    """Return the sum of such values, or what else ``op`` makes of them; integers wrap."""
    return to_dtype(functools.reduce(lambda a, b: combined(a, b, op), [from_dtype(p, dtype) for p in parts]), dtype)


def reals(
    rng: np.random.Generator, dtype: str, count: int, nranks: int, size: float = 1.0, op: str = "sum"
) -> list[Numbers]:
    """Return normal values whose sizes differ by six orders from block to block and in each block; factors by less."""
    if op == "prod":
        sizes = size * 2.0 ** rng.uniform(-8 / nranks, 8 / nranks, (nranks, count))
        return [to_dtype(part * rng.choice([-1.0, 1.0], count), dtype) for part in sizes]
    spread = 10.0 ** rng.uniform(-3, 3, -(-count // BLOCK)).repeat(BLOCK)[:count] if dtype == "float32" else 1.0
    within = 10.0 ** rng.uniform(-3, 0, count)
    return [to_dtype(size * spread * within * rng.standard_normal(count), dtype) for _ in range(nranks)]


# ---- the model ----


def _keys(values: Numbers, nan: int) -> Numbers:
    """Return integers in the order of the values, -0 under +0; NaN as told."""
    if values.dtype != np.float32:
        return values
    bits = values.view(np.int32)
    return np.where(np.isnan(values), nan, bits ^ ((bits >> 31) & 0x7FFFFFFF))


def combined(a: Numbers, b: Numbers, op: str) -> Numbers:
    """Return what the kernels make of two terms."""
    if op == "prod":
        return a * b
    if op == "max":
        return np.where(_keys(b, 2**31 - 1) > _keys(a, 2**31 - 1), b, a)
    return np.where(_keys(b, -(2**31)) < _keys(a, -(2**31)), b, a) if op == "min" else a + b


def canonical(values: Numbers) -> Numbers:
    """Return float32 values with every NaN as 0x7FC00000."""
    return np.where(np.isnan(values), np.float32(np.nan), values)


def _flushed(values: Numbers) -> Numbers:
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


def largest_of(values: Numbers, size: int) -> Numbers:
    """Return, for each element, the largest finite magnitude of its ``size`` neighbours that share a scale."""
    padded = np.zeros(-(-values.size // size) * size, values.dtype)
    padded[: values.size] = np.where(np.isfinite(values), np.abs(values), 0)
    return padded.reshape(-1, size).max(axis=1).repeat(size)[: values.size]


def _scaled(values: Numbers) -> Numbers:
    """Return values after the scaled wire."""
    largest = largest_of(values, BLOCK)
    exponent = (largest.view(np.uint32) >> 23).astype(np.int32)
    shift = np.where(largest > 0, np.clip(141 - exponent, -113, 126), 0)
    halves = np.ldexp(values, shift).astype(np.float16)
    too_large = (shift == -113) & (np.abs(halves) == 2.0**15)
    halves[too_large] = np.copysign(np.float16(32752), halves[too_large])
    return _flushed(np.ldexp(halves.astype(np.float32), -shift))


def _eights(values: Numbers) -> Numbers:
    """Return values after q8."""
    largest = largest_of(values, 32).view(np.uint32)
    rounded = np.clip((largest + 0x7FF) & 0xFFFFF800, 0x04800000, 0x7F7FF800).astype(np.uint32)
    mantissa, exponent = rounded & 0x7FFFFF, (rounded >> 23).astype(np.int32)
    steps = (126 << 25) // ((mantissa | 0x800000) >> 11)
    codes = np.rint(values * np.ldexp(steps.astype(np.float32), 114 - exponent))
    unit = (mantissa | 0x3F800000).view(np.float32) * np.float32(1 / 126)
    # A code of zero has no sign.
    return np.where(np.isfinite(values), codes * np.ldexp(unit, exponent - 127) + np.float32(0), values)


def through(values: Numbers, form: wires.Format) -> Numbers:
    """Return what is left of float32 values (or integers) after a format."""
    if values.dtype != np.float32:
        return values
    with np.errstate(all="ignore"):
        if form is WIRES["f16"].format:
            values = _scaled(values)
        elif form is WIRES["q8"].format:
            values = _eights(values)
        elif form is wires.HALF:
            values = values.astype(np.float16).astype(np.float32)
        elif form is wires.BHALF:
            values = from_dtype(to_dtype(values, "bfloat16"), "bfloat16")
    return canonical(values)


@dataclass
class Wires:
    """The simulator's codec that makes the bits of a plan."""

    plan: wires.WirePlan
    op: str = "sum"
    contributors: int = 1

    def encode(self, values: Numbers, *, final: bool) -> Numbers:
        return through(values, self.plan.final if final else self.plan.contribution)

    def decode(self, raw: Numbers) -> Numbers:
        return raw

    def combine(self, a: Numbers, b: Numbers) -> Numbers:
        return combined(a, b, self.op)

    def finish(self, total: Numbers) -> Numbers:
        if self.op != "avg":
            return total
        if total.dtype.kind in "iu":
            return truncated_quotient(total, self.contributors)
        return total * np.float32(1 / self.contributors)


class Errors(Wires):
    """The simulator's codec for bounds: of a complex number, the real part is exact, the imaginary its error's bound.

    Numbers below 2^-126 may be taken for zero wherever they are used or made.
    """

    def encode(self, values: Numbers, *, final: bool) -> Numbers:
        form = self.plan.final if final else self.plan.contribution
        most, tiny = np.abs(values.real) + values.imag, 2.0**-126
        if form is WIRES["f16"].format:
            largest = largest_of(most, BLOCK)
            relative = np.where(largest >= 2.0**127, 2.0**-10, 2.0**-11)
            return values + 1j * (np.maximum(relative * most, 2.0**-39 * largest) + tiny)
        if form is WIRES["q8"].format:
            return values + 1j * np.maximum(largest_of(most, 32), 2.0**-118) / 251
        # A half is rounded at the end, see bound(): contributions are halves already.
        return values + 1j * (2.0**-8 * most + tiny) if self.plan.element == "f32" and form is wires.BHALF else values

    def combine(self, a: Numbers, b: Numbers) -> Numbers:
        tiny = 2.0**-126
        if self.op in ("max", "min"):
            pick = np.maximum if self.op == "max" else np.minimum
            return pick(a.real, b.real) + 1j * np.maximum(a.imag, b.imag)
        if self.op == "prod":
            exact, errors = a.real * b.real, (a.imag + tiny, b.imag + tiny)
            error = np.abs(a.real) * errors[1] + np.abs(b.real) * errors[0] + errors[0] * errors[1]
        else:
            exact, error = a.real + b.real, a.imag + b.imag + 2 * tiny
        return exact + 1j * (error + 2.0**-24 * (np.abs(exact) + error) + tiny)

    def finish(self, total: Numbers) -> Numbers:
        if self.op != "avg":
            return total
        mean = total / self.contributors
        return mean + 1j * (2.0**-23 * 1.0001 * (np.abs(mean.real) + mean.imag) + 2 * 2.0**-126)


def _simulated(
    codec: Callable[..., Wires],
    parts: Sequence[Numbers | None],
    dtype: str,
    algorithm: str,
    wire: str | None,
    op: str,
    number: Any,
    blocks: int = 7,
    costs: tuple[Costs, ...] = (),
) -> list[Numbers]:
    """Run the algorithm's schedule and return every rank's result, in ``number``; ``costs`` are the ranks'."""
    n, count = len(parts), next(part.size for part in parts if part is not None)
    chosen = TABLE[algorithm]
    slots = SlotSet(n, chosen.least_slots(n) + 1, blocks)
    silent = [rank for rank, part in enumerate(parts) if part is None]
    values = [None if part is None else from_dtype(part, dtype).astype(number) for part in parts]
    targets = [np.zeros(count, number) for _ in parts]
    plan = wires.plan(dtypes.resolve(dtype), wire or "f16", chosen, op)
    weighted = choose.weighted(Plan(chosen), costs)
    steps = chosen.steps(problem(n, count, slots, silent, shares=weighted.shares))
    with np.errstate(all="ignore"):
        Simulator(slots).run(steps, values, targets, codec(plan, op, n - len(silent)))
    return targets


def modelled(
    parts: Sequence[Numbers | None],
    dtype: str,
    algorithm: str,
    wire: str | None,
    op: str = "sum",
    *,
    blocks: int = 7,
    costs: tuple[Costs, ...] = (),
) -> Numbers:
    """Return the bits that every rank must hold after the reduction."""
    number = dtype if dtype in INTEGERS else np.float32
    results = _simulated(Wires, parts, dtype, algorithm, wire, op, number, blocks, costs)
    with np.errstate(all="ignore"):
        results = [stored(result, dtype) for result in results]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


def stored(values: Numbers, dtype: str) -> Numbers:
    """Return the elements that an array holds for float32 values (or integers)."""
    if dtype == "float32":
        return canonical(values)
    elements = to_dtype(values, dtype)
    if dtype in ("float16", "bfloat16"):
        elements[np.isnan(elements)] = np.nan  # 0x7E00, 0x7FC0
    return elements


# ---- bounds ----

_ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_REFERENCES: dict[str, Callable[..., Numbers]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def bound(
    parts: Sequence[Numbers | None],
    dtype: str,
    algorithm: str,
    wire: str | None,
    op: str = "sum",
    costs: tuple[Costs, ...] = (),
) -> tuple[Numbers, Numbers]:
    """Return the float64 result, and how far each element of the reduction's may be from it."""
    values = [from_dtype(part, dtype).astype(np.float64) for part in parts if part is not None]
    true = _REFERENCES.get(op, np.mean)(np.stack(values), axis=0)
    if len(parts) == 1:
        return true, np.zeros_like(true)
    results = _simulated(Errors, parts, dtype, algorithm, wire, op, np.complex128, costs=costs)
    error = np.max([result.imag for result in results], axis=0)
    error = error + _ROUNDING[dtype] * (np.abs(true) + error)
    return true, error + {"float16": 2.0**-25, "bfloat16": 2.0**-126}.get(dtype, 0.0)


def check_bound(
    got: Numbers,
    parts: Sequence[Numbers | None],
    dtype: str,
    algorithm: str,
    wire: str | None,
    op: str = "sum",
    costs: tuple[Costs, ...] = (),
) -> None:
    """Check a result of floats against float64."""
    true, error = bound(parts, dtype, algorithm, wire, op, costs)
    wrong = np.flatnonzero(~(np.abs(from_dtype(got, dtype).astype(np.float64) - true) <= error))
    assert wrong.size == 0, f"{wrong.size} elements, first {wrong[0]}: {got[wrong[0]]} for {true[wrong[0]]}"


# ---- running ----


def chosen_algorithm(comm: vkpar.Communicator, dtype: str, wire: str | None, count: int, op: str = "sum") -> str:
    """Return what ``auto`` takes."""
    message = wires.message_nbytes(dtypes.resolve(dtype), wire or "f16", count, op)
    timed = wires.timed_as(dtypes.resolve(dtype), wire or "f16", op)
    return choose.choose("auto", [device.info for device in comm.devices], message, comm.tuning, timed).algorithm.name


def reduced(
    comm: vkpar.Communicator, parts: Sequence[Numbers | None], dtype: str, *, in_place: bool = True, **options: Any
) -> list[Numbers]:
    """Reduce with ``op`` and ``wire`` and return every rank's result; what was not to change must not have."""
    count = next(part.size for part in parts if part is not None)
    arrays = [None if p is None else d.array(p, dtype) for d, p in zip(comm.devices, parts, strict=True)]
    if in_place:
        comm.all_reduce(arrays, **options).wait()
        return [array.numpy() for array in arrays if array is not None]
    stale = to_dtype(np.full(count, 77.0), dtype)
    out = [device.array(stale, dtype) for device in comm.devices]
    comm.all_reduce(arrays, out=out, **options).wait()
    for array, part in zip(arrays, parts, strict=True):
        assert array is None or part is None or array.numpy().tobytes() == part.tobytes()
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
    op: str = "sum",
    in_place: bool = True,
    exact: bool = False,
) -> Numbers:
    """Reduce; check the replicas, the bits that the model gives, and the result (exactly, or within the bound).

    Averages and q8 round whole numbers too, so that the bound is what holds for them.
    """
    given = [part for part in parts if part is not None]
    if algorithm == "auto":
        algorithm = chosen_algorithm(comm, dtype, wire, given[0].size, op)
    explicit = wire if dtype == "float32" and op not in ("max", "min") else None
    got = check_identical(reduced(comm, parts, dtype, wire=explicit, op=op, in_place=in_place))
    costs = comm.tuning.costs_of(wires.timed_as(dtypes.resolve(dtype), wire or "f16", op))
    if comm.nranks > 1 and got.size:
        want = modelled(parts, dtype, algorithm, wire, op, costs=costs)
        wrong = np.flatnonzero(got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}"))
        assert wrong.size == 0, f"{wrong.size} elements differ from the model, first {wrong[0]}: {got[wrong[0]]}"
    if exact and op != "avg" and (explicit != "q8" or comm.nranks == 1):
        assert np.array_equal(got, exact_sum(given, dtype, op))
    elif dtype not in INTEGERS and got.size:
        check_bound(got, parts, dtype, algorithm, wire, op, costs)
    return got
