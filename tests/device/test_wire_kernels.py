"""The wire kernels by themselves, against the NumPy model: every format and op, whole blocks and one cut short.

Slots lie in an ordinary array, here with a pattern around everything that the kernels may write.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.graph.flagging import ABORTED, APART, ARRIVED, AWAITED, RAISED
from helpers.ops.reducing import FORMATS as ALL_FORMATS
from helpers.ops.reducing import (
    INTEGERS,
    Numbers,
    Wires,
    from_dtype,
    integers,
    largest_of,
    reals,
    stored,
    through,
    to_dtype,
)
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import dtypes
from vkpar.abi.formats import WIRES
from vkpar.comm import wires
from vkpar.comm.record.kernels import ReduceSpec
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK, MOST_SOURCES
from vkpar.vulkan.command import CommandPool
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.queue import Frame
from vkpar.vulkan.tape import Tape

pytestmark = [pytest.mark.device, pytest.mark.sampled(6)]

BLOCKS_PER_GROUP = 8
SLOT = 16 << 10  # bytes
PATTERN = 0xA5
PROCESSORS = ("texel", "gpu", "cpu")
FORMATS = [form for form in ALL_FORMATS if not wires.in_words(dtypes.resolve(form[0]))]
WORDY = [form[0] for form in ALL_FORMATS if wires.in_words(dtypes.resolve(form[0]))]
OPS = ("sum", "prod", "max", "min", "avg")
NORMAL = 2.0**-126


@dataclass
class Kernels:
    """Runs the wire kernels on arrays of one device.

    Args:
        device: where.
        dtype: the arrays' type.
        form: how contributions and results travel.
        processor: ``"cpu"`` or ``"gpu"``, which run anywhere, or ``"texel"``, for which others take ``"cpu"``.
    """

    device: vkpar.Device
    dtype: str
    form: str | None
    processor: str
    op: str = "sum"
    sums_travel: bool = False
    slots: vkpar.Array = field(init=False)

    def __post_init__(self) -> None:
        algorithm = TABLE["ring" if self.sums_travel else "two_shot"]
        self.plan = wires.plan(dtypes.resolve(self.dtype), self.form or "f16", algorithm, self.op)
        self.slots = self.device.array(np.full(SLOT * (MOST_SOURCES + 2), PATTERN, np.uint8))
        if self.processor == "texel" and wires.processor(self.device.logical.info) != "texel":
            self.processor = "cpu"

    def reduce(
        self,
        count: int,
        *,
        own: Numbers | None = None,
        own_at: int = 0,
        sources: Sequence[int] = (),
        target: vkpar.Array | None = None,
        out: int | None = None,
        final: bool = True,
        contributors: int = 1,
        told: tuple[int, int] = (0, 0),
    ) -> None:
        """Reduce slots and own elements into an array, a slot, or both; ``told`` of what to wait for and to raise."""
        average = self.op == "avg" and final
        several = len(sources) + (own is not None) > 1
        code = wires.OPS[self.op] if several else 0
        order = wires.order(dtypes.resolve(self.dtype))
        flags = (own is not None, target is not None, out is not None)
        constants = (len(sources), *flags, code, average, order, own_at)
        spec = ReduceSpec(self.plan, self.op, divisor=contributors)
        push = struct.pack("<6I", 0, 0, self.plan.tail_at(SLOT) // 16, _at(out), *spec.factor_words)
        push += struct.pack(f"<{MOST_SOURCES}I", *(_at(slot) for slot in sources), *[0] * (MOST_SOURCES - len(sources)))
        push += struct.pack("<2I", *told)
        last = self.plan.final if final else self.plan.contribution
        name = f"wire_reduce_{self.processor}_{self.plan.element}_{self.plan.contribution.name}_{last.name}"
        source = self.slots if own is None else self.device.array(own, self.dtype)
        ending = wires.variant(code, average and self.plan.moves)
        self._dispatch(name, ending, count, source, target, push, constants)

    def forward(self, count: int, slot: int, target: vkpar.Array | None, out: int | None = None) -> None:
        """Store a slot in an array, pass it on, or both."""
        push = struct.pack("<4I", 0, self.plan.tail_at(SLOT) // 16, _at(slot), _at(out)).ljust(96, b"\0")
        name = f"wire_forward_{self.processor}_{self.plan.forwarded}_{self.plan.final.name}"
        self._dispatch(name, "", count, self.slots, target, push, (target is not None, out is not None))

    def _dispatch(
        self,
        name: str,
        variant: str,
        count: int,
        source: vkpar.Array,
        target: vkpar.Array | None,
        push: bytes,
        constants: Sequence[int],
    ) -> None:
        whole = count // BLOCK
        bound = [source, self.slots if target is None else target, self.slots]
        for part, first, blocks, end in (
            ("whole", 0, whole, whole * BLOCK),
            ("tail", whole, -(-count // BLOCK), count),
        ):
            groups = -(-(blocks - first) // BLOCKS_PER_GROUP)
            if groups:
                self._launch(
                    f"{name}_{part}{variant}",
                    [array.window()[0] for array in bound],
                    struct.pack("<2I", end, first) + push,
                    (groups, 1, 1),
                    tuple(map(int, constants)),
                )

    def _launch(
        self,
        name: str,
        ranges: list[BufferRange],
        push: bytes,
        groups: tuple[int, int, int],
        constants: tuple[int, ...],
    ) -> None:
        if self.processor != "texel":
            self.device.dispatch(name, ranges, push, groups, constants)
            return
        logical = self.device.logical
        pipeline = logical.pipelines.shipped(name, len(ranges), len(push), constants, wires.TEXELS)
        pool = CommandPool(logical.handle, logical.compute.family, apart=True)
        tape = Tape(logical.handle, pool)
        tape.commands()  # stays empty: the set alone is used
        tape.descriptors(pipeline.layout.set_layout, ranges, (ranges[0], ranges[2]))
        tape.seal()
        take = tape.take(())

        def record(frame: Frame) -> None:
            frame.commands.record_order()
            frame.commands.record_dispatch(pipeline, take.sets[0], push, groups)

        logical.compute.run(record)
        logical.synchronize()
        take.close()
        pool.close()

    def target(self, count: int) -> vkpar.Array:
        """Return an array for ``count`` elements and eight more, which must stay as they are."""
        raw = np.full((count + 8) * dtypes.resolve(self.dtype).itemsize, PATTERN, np.uint8)
        return self.device.array(raw.view(dtypes.resolve(self.dtype).numpy), self.dtype)

    def held(self, slot: int, count: int, final: bool = True) -> Numbers:
        """Return the values that a slot stands for; what lies around its blocks must be untouched."""
        form, blocks = self.plan.final if final else self.plan.contribution, -(-count // BLOCK)
        raw = self.slots.numpy()[slot * SLOT : (slot + 1) * SLOT]
        payload, tail_at = blocks * form.payload, self.plan.tail_at(SLOT)
        tail = tail_at + blocks * form.tail
        ends = (payload, tail_at if form.tail else SLOT), (tail if form.tail else SLOT, SLOT)
        assert all(np.all(raw[start:end] == PATTERN) for start, end in ends)
        return _decoded(raw[:payload], raw[tail_at:tail], form, self.dtype)[:count]


def _at(slot: int | None) -> int:
    return 0 if slot is None else slot * SLOT // 16


def _decoded(payload: Numbers, tail: Numbers, form: wires.Format, dtype: str) -> Numbers:
    """Return what a slot's bytes stand for, as docs/wires.md describes them."""
    if form is wires.WORD:
        return payload.view(dtype if dtype in INTEGERS else np.float32)
    if form is wires.BHALF:
        return from_dtype(payload.view(vkpar.bfloat16.numpy), "bfloat16")
    if form is WIRES["q8"].format:
        codes, scales = payload.view(np.int8).astype(np.int32), tail.view(np.float32).repeat(32)
        special = np.select([codes == -128, codes == 127, codes == -127], [np.nan, np.inf, -np.inf])
        values = np.clip(codes, -126, 126).astype(np.float32) * scales
        return np.where(np.abs(codes) > 126, special, values).astype(np.float32)
    values = payload.view(np.float16).astype(np.float32)
    if form is wires.HALF:
        return values
    scaled = np.ldexp(values, -tail.view(np.int32).repeat(BLOCK))
    return np.where(np.abs(scaled) < NORMAL, np.copysign(np.float32(0), scaled), scaled)


def check_same(got: Numbers, want: Numbers) -> None:
    """Compare bits, any NaN with any."""
    assert got.dtype == want.dtype
    nans = np.isnan(want) if want.dtype.kind == "f" else np.zeros(want.size, bool)
    assert np.array_equal(nans, np.isnan(got) if want.dtype.kind == "f" else nans)
    wrong = np.flatnonzero((got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}")) & ~nans)
    assert wrong.size == 0, f"{wrong.size} differ, first {wrong[0]}: {got[wrong[0]]!r}, not {want[wrong[0]]!r}"


def check_target(kernels: Kernels, target: vkpar.Array, want: Numbers) -> None:
    """Check the elements, NaN's bits too, and that those behind them are untouched."""
    got, want = target.numpy(), stored(want, kernels.dtype)
    assert np.all(got[want.size :].view(np.uint8) == PATTERN)
    check_same(got[: want.size], want)
    nans = np.isnan(want) if want.dtype.kind == "f" else np.zeros(want.size, bool)
    assert np.array_equal(got[: want.size][nans].view(np.uint8), want[nans].view(np.uint8))


def check_all(kernels: Kernels, parts: Sequence[Numbers], own_at: int) -> None:
    """Publish all parts but one, reduce them and that one, and forward the result: each against the model."""
    count, n = parts[0].size, len(parts)
    values = [from_dtype(part, kernels.dtype) for part in parts]
    model = Wires(kernels.plan, kernels.op, n)
    with np.errstate(all="ignore"):
        others = [rank for rank in range(n) if rank != own_at]
        for slot, rank in enumerate(others):
            kernels.reduce(count, own=parts[rank], out=slot, final=False)
            check_same(kernels.held(slot, count, final=False), model.encode(values[rank], final=False))
        terms = [x if rank == own_at else model.encode(x, final=False) for rank, x in enumerate(values)]
        want = model.finish(functools.reduce(model.combine, terms))
        sent = model.encode(want, final=True)
        both, alone, last = (kernels.target(count) for _ in range(3))
        inputs: dict[str, Any] = {"own": parts[own_at], "own_at": own_at, "sources": range(n - 1), "contributors": n}
        kernels.reduce(count, **inputs, target=both, out=MOST_SOURCES)
        kernels.reduce(count, **inputs, target=alone)
        kernels.forward(count, MOST_SOURCES, last, MOST_SOURCES + 1)
        check_target(kernels, alone, want)
        for target in (both, last):
            check_target(kernels, target, sent)
        check_same(kernels.held(MOST_SOURCES, count), sent)
        raw = kernels.slots.numpy().reshape(-1, SLOT)
        assert np.array_equal(raw[MOST_SOURCES], raw[MOST_SOURCES + 1])


def values_of(rng: np.random.Generator, dtype: str, count: int, n: int, op: str, size: float = 1.0) -> list[Numbers]:
    with np.errstate(over="ignore"):  # some of the largest become Inf
        return integers(rng, dtype, count, n) if dtype in INTEGERS else reals(rng, dtype, count, n, size, op)


def test_which_kernels_run_where(device: vkpar.Device) -> None:
    info = device.logical.info
    expected = {"llvmpipe": "texel", "SwiftShader driver": "cpu"}.get(info.driver_name, "cpu" if info.is_cpu else "gpu")
    assert wires.processor(info) == expected


PRODUCT = list(itertools.product(FORMATS, OPS))
EVERY = [(processor, *item) for processor in PROCESSORS for item in PRODUCT]
CASES = EVERY if FULL else [(PROCESSORS[index % 2], *item) for index, item in enumerate(PRODUCT)]
FLOATS = [item for item in PRODUCT if item[0][0] not in INTEGERS]


@pytest.mark.parametrize(("processor", "form", "op"), CASES, ids=str)
def test_formats_and_ops(
    device: vkpar.Device, rng: np.random.Generator, processor: str, form: tuple[str, str | None], op: str
) -> None:
    kernels = Kernels(device, *form, processor, op)
    check_all(kernels, values_of(rng, form[0], 3 * BLOCK + 77, 3, op), own_at=1)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [(dtype, op) for dtype in ("float16", "bfloat16") for op in (OPS if FULL else ("sum", "max", "avg"))],
)
def test_halves_whose_sums_travel(device: vkpar.Device, rng: np.random.Generator, dtype: str, op: str) -> None:
    kernels = Kernels(device, dtype, None, "cpu", op, sums_travel=True)
    check_all(kernels, values_of(rng, dtype, 300, 3, op), own_at=2)


@given(
    form=st.sampled_from(FORMATS),
    op=st.sampled_from(OPS),
    processor=st.sampled_from(PROCESSORS),
    count=st.integers(1, 9 * BLOCK) | st.sampled_from([255, 256, 257, 511, 512]),
    n=st.integers(1, 5),
    size=st.sampled_from([1e-30, 1e-9, 1.0, 1e9, 1e30, 1e37]),
    seed=st.integers(0, 1 << 32),
    data=st.data(),
)
def test_any_reduction(
    device: vkpar.Device,
    form: tuple[str, str | None],
    op: str,
    processor: str,
    count: int,
    n: int,
    size: float,
    seed: int,
    data: st.DataObject,
) -> None:
    dtype = form[0]
    if dtype != "float32" or op == "prod":
        size = 1.0
    parts = values_of(np.random.default_rng(seed), dtype, count, n, op, size)
    check_all(Kernels(device, *form, processor, op), parts, own_at=data.draw(st.integers(0, n - 1)))


# By lane: transfers that are waited for, those that came before, and all that have come, which wrap around; then those
# that are told of.
LANES = {0: (1, 0, 1, 3), 3: (3, 7, 11, 0), 9: (2, (1 << 32) - 1, 1, 1), 15: (1, (1 << 32) - 1, 0, 2)}


@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("blocks", [1, 15])
def test_kernels_wait_for_what_cards_carry_and_tell_of_it(
    device: vkpar.Device, rng: np.random.Generator, blocks: int, aborted: bool
) -> None:
    """Once, whatever the work-groups are; what the host aborts is not waited for."""
    kernels, count = Kernels(device, "float32", "f32", "gpu"), blocks * BLOCK
    mine, others = (rng.integers(-99, 99, count).astype(np.float32) for _ in range(2))
    words = np.zeros(SLOT // 4, np.uint32)
    for lane, (_, was, came, _) in LANES.items():
        words[AWAITED + lane * APART], words[ARRIVED + lane * APART] = was, 0 if aborted else came
    words[ABORTED] = aborted
    kernels.slots[:SLOT].write(words.view(np.uint8))
    kernels.reduce(count, own=others, out=1)
    awaits, sends = (sum(each[at] << 2 * lane for lane, each in LANES.items()) for at in (0, 3))
    for turn in range(1, 3):
        target = kernels.target(count)
        kernels.reduce(count, own=mine, own_at=1, sources=[1], target=target, out=2, told=(awaits, sends))
        np.testing.assert_array_equal(target.numpy()[:count], mine + others)
        np.testing.assert_array_equal(kernels.held(2, count), mine + others)
        found = kernels.slots[:SLOT].numpy().view(np.uint32)
        for lane, (number, was, _, tells) in LANES.items():
            assert found[AWAITED + lane * APART] == (was + turn * number) % (1 << 32)
            assert found[RAISED + lane * APART] == turn * tells
            assert not found[AWAITED + lane * APART + 2]
        assert not found[RAISED + 2]
        found = found.copy()
        for lane, (number, *_) in LANES.items():
            found[ARRIVED + lane * APART] += np.uint32(0 if aborted else number)
        kernels.slots[:SLOT].write(found.view(np.uint8))


@pytest.mark.parametrize("processor", PROCESSORS)
def test_as_many_slots_as_one_kernel_reads(device: vkpar.Device, rng: np.random.Generator, processor: str) -> None:
    check_all(Kernels(device, "float32", "f16", processor), reals(rng, "float32", 500, MOST_SOURCES), own_at=15)
    kernels = Kernels(device, "int32", None, processor, "max")
    parts = integers(rng, "int32", 500, MOST_SOURCES)
    for slot, part in enumerate(parts):
        kernels.reduce(500, own=part, out=slot, final=False)
    target = kernels.target(500)
    kernels.reduce(500, sources=range(MOST_SOURCES), target=target)
    check_target(kernels, target, np.max(parts, axis=0))


# ---- elements that are counted as words ----


def edges(rng: np.random.Generator, dtype: str, count: int, n: int) -> list[Numbers]:
    """Return any integers, among them many of the largest, the smallest, and those around zero."""
    info = np.iinfo(dtype)
    some = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, info.max // 2 + 1], dtype)
    parts = integers(rng, dtype, count, n)
    for part in parts:
        where = rng.random(count) < 0.5
        part[where] = rng.choice(some, int(where.sum()))
    return parts


def check_words(kernels: Kernels, parts: Sequence[Numbers], own_at: int, want: Numbers) -> None:
    """Publish all parts but one, reduce them and that one, and forward the result; ``want`` has whole words."""
    words = parts[0].nbytes // 4
    for slot, part in enumerate(part for rank, part in enumerate(parts) if rank != own_at):
        kernels.reduce(words, own=part, out=slot, final=False)
    both, last = (kernels.target(want.size) for _ in range(2))
    inputs: dict[str, Any] = {"own": parts[own_at], "own_at": own_at, "sources": range(len(parts) - 1)}
    kernels.reduce(words, **inputs, contributors=len(parts), target=both, out=MOST_SOURCES)
    kernels.forward(words, MOST_SOURCES, last)
    for target in (both, last):
        got = target.numpy()
        check_same(got[: want.size], want)
        assert np.all(got[want.size :].view(np.uint8) == PATTERN)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", WORDY)
def test_integers_of_any_width(
    device: vkpar.Device, rng: np.random.Generator, dtype: str, op: str, processor: str
) -> None:
    kernels = Kernels(device, dtype, None, processor, op)
    parts = edges(rng, dtype, (2 * BLOCK + 76) * 4 // np.dtype(dtype).itemsize, 3)
    model = Wires(kernels.plan, op, 3)
    with np.errstate(over="ignore"):
        want = model.finish(functools.reduce(model.combine, parts))
    check_words(kernels, parts, OPS.index(op) % 3, want)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("op", OPS)
def test_doubles(device: vkpar.Device, rng: np.random.Generator, op: str, processor: str) -> None:
    """Bit for bit as NumPy computes them in rank order: NaN canonical, NaN wins, -0 below +0, subnormals kept."""
    if not device.info.features.float64:
        pytest.skip(f"{device.info.name} lacks shaderFloat64")
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1e-310, 1.7e308, 1.0, 2.0**-1022])
    pairs = [np.repeat(special, special.size), np.tile(special, special.size)]
    parts = [np.concatenate([part, rng.standard_normal(479) * 10.0 ** rng.integers(-300, 300, 479)]) for part in pairs]
    with np.errstate(all="ignore"):
        if op in ("max", "min"):
            a, b = parts
            before = (a < b) | ((a == b) & (np.signbit(a) > np.signbit(b)))
            want = np.where(before if op == "min" else ~before, a, b)
            want = np.where(np.isnan(a) | np.isnan(b), np.nan, want)
        else:
            want = parts[0] * parts[1] if op == "prod" else parts[0] + parts[1]
            want = want * 0.5 if op == "avg" else want
    want = np.where(np.isnan(want), np.nan, want)
    kernels = Kernels(device, "float64", None, processor, op)
    check_words(kernels, parts, 1, want)
    alone = kernels.target(parts[0].size)
    kernels.reduce(parts[0].nbytes // 4, own=parts[0], target=alone)
    assert alone.numpy()[: parts[0].size].tobytes() == np.where(np.isnan(parts[0]), np.nan, parts[0]).tobytes()


# ---- numbers of every kind ----

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 3e4, 1e-3, 3.4e38, -3.4e38], np.float32)
SMALL = np.array([1e-45, -1e-45, 1e-40, -1e-40, NORMAL, -NORMAL, 1.5 * NORMAL], np.float32)


def pairs(values: Numbers) -> list[Numbers]:
    """Return every value beside every other, among ordinary ones."""
    values = np.concatenate([values, np.linspace(-1, 1, 9, dtype=np.float32)])
    return [np.repeat(values, values.size), np.tile(values, values.size)]


@pytest.mark.parametrize(("form", "op"), FLOATS if FULL else FLOATS[::2], ids=str)
def test_special_values(device: vkpar.Device, form: tuple[str, str | None], op: str) -> None:
    """NaN and Inf arrive and leave the rest of their block alone; what is only compared or copied keeps every bit."""
    compared = op in ("max", "min")
    values = np.concatenate([SPECIAL, SMALL, -np.array([np.nan], np.float32)]) if compared else SPECIAL
    with np.errstate(over="ignore"):
        parts = [to_dtype(part, form[0]) for part in pairs(values)]
    for own_at in (0, 1):
        check_all(Kernels(device, *form, PROCESSORS[own_at], op), parts, own_at)


def any_bits(rng: np.random.Generator, count: int) -> Numbers:
    """Return floats of all kinds, whose exponents are anywhere, in groups of 32 where they are close together."""
    exponents = rng.integers(0, 255, -(-count // 32)).repeat(32)[:count] - rng.integers(0, 12, count)
    bits = (np.clip(exponents, 0, 254).astype(np.uint32) << 23) | rng.integers(0, 1 << 23, count, np.uint32)
    bits[rng.integers(0, 100, count) == 0] = 0x7F800000
    bits[rng.integers(0, 100, count) == 0] = 0x7FC00123
    edges = rng.integers(0, 8, count) == 0
    bits[edges] |= 0x007FFFFF - rng.integers(0, 3, count, np.uint32)[edges]
    return (bits | (rng.integers(0, 2, count, np.uint32) << 31)).view(np.float32)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("wire", ["bf16", "f32", "q8"])
def test_every_driver_encodes_any_floats_alike(
    device: vkpar.Device, rng: np.random.Generator, wire: str, processor: str
) -> None:
    """Subnormals included: these wires have no arithmetic that a driver may flush."""
    kernels = Kernels(device, "float32", wire, processor)
    blocks = SLOT // kernels.plan.nbytes_per_block
    for count in [blocks * BLOCK] * 4 + [blocks * BLOCK - 3]:
        values = any_bits(rng, count)
        target = kernels.target(count)
        kernels.reduce(count, own=values, target=target, out=0)
        want = through(values, kernels.plan.final)
        check_same(kernels.held(0, count), want)
        check_target(kernels, target, want)
        if wire == "q8":
            finite = np.isfinite(values)
            error = np.abs(want[finite].astype(np.float64) - values[finite])
            assert np.all(error <= np.maximum(largest_of(values, 32)[finite].astype(np.float64), 2.0**-118) / 251)


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1.0, 1e9, 1e37])
@pytest.mark.parametrize(("wire", "relative"), [("f16", 2.0**-11), ("q8", 2 / 251)])
def test_relative_errors_of_any_size(
    device: vkpar.Device, rng: np.random.Generator, wire: str, relative: float, size: float
) -> None:
    values = (size * rng.uniform(0.5, 1.0, 1000)).astype(np.float32)
    kernels = Kernels(device, "float32", wire, "cpu")
    kernels.reduce(1000, own=values, out=0)
    assert np.all(np.abs(kernels.held(0, 1000).astype(np.float64) - values) <= relative * values.astype(np.float64))
