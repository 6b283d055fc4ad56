"""Reductions against float64 with the bound that is promised, and against NumPy exactly where results are exact."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, check, held, normal, values_of
from helpers.ops.words import specialized
from helpers.vulkan.planning import forget
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.testing import additions, gamma

reductions = importlib.import_module("vkpar.ops.reduce.reductions")
cpu, folding = (importlib.import_module(f"vkpar.ops.reduce.{name}") for name in ("cpu", "passes"))
reducing = importlib.import_module("vkpar.ops.reduce.once")
tables = importlib.import_module("vkpar.ops.call.kept")
pytestmark = [pytest.mark.device, pytest.mark.sampled(12)]

Axis = int | tuple[int, ...] | None
PLACES = ("argmax", "argmin")
EXTREMES = ("max", "min")
SHAPES: list[tuple[tuple[int, ...], Axis]] = [
    ((1,), None),
    ((5,), 0),
    ((), None),
    ((1023,), None),
    ((7, 3), 0),
    ((7, 3), 1),
    ((300, 33), 0),
    ((33, 300), -1),
    ((3, 70, 5), 1),
    ((3, 5, 70), (0, 2)),
    ((2, 130, 3, 2), (1, 3)),
    ((6, 1, 40), 1),
    ((4, 5), ()),
]


def bound(values: NDArray[np.float64], axis: Axis, mean: bool = False) -> NDArray[np.float64]:
    """The promised error of sums."""
    axes = range(values.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    inside = sorted(index % values.ndim for index in axes)
    runs = itertools.groupby(enumerate(inside), lambda pair: pair[1] - pair[0])
    depth = sum(additions(math.prod(values.shape[index] for _, index in run)) for _, run in runs)
    total = np.abs(values).sum(axis=axis) * gamma(max(depth, 24))
    count = max(values.size // max(total.size, 1), 1)
    return total / count + 4 * 2.0**-23 * np.abs(values).mean(axis=axis) if mean else total


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sums_and_means(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], axis: Axis, dtype: str
) -> None:
    values = normal(rng, shape, dtype)
    a, exact = either.array(values, dtype), values.astype(np.float64)
    for _ in range(2):  # the second time by the recipe
        total, mean = a.sum(axis), vkpar.mean(a, axis, True)
        assert total.dtype == mean.dtype == dtype
        check(total, np.asarray(exact.sum(axis=axis)), bound(exact, axis))
        check(mean, exact.mean(axis=axis, keepdims=True), bound(exact, axis, True).reshape(mean.shape))


@pytest.mark.parametrize("length", [2048, 2049, 16385, 40_001])
@pytest.mark.parametrize("columns", [1, 9])
def test_several_passes(either: vkpar.Device, rng: np.random.Generator, length: int, columns: int) -> None:
    values = normal(rng, (3, length, columns), "float16", 10)
    for dtype in ("float32", "float16"):
        a, exact = either.array(values, dtype), values.astype(np.float64)
        check(vkpar.sum(a, 1), exact.sum(axis=1), bound(exact, 1))
        np.testing.assert_array_equal(vkpar.max(a, axis=1).numpy(), values.max(axis=1).astype(dtype))
        np.testing.assert_array_equal(vkpar.argmin(a, axis=1).numpy(), values.argmin(axis=1))
    check(vkpar.sum(a), np.asarray(exact.sum()), bound(exact, None))
    assert int(vkpar.argmax(a)) == values.argmax()


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("shape", "straight"),
    [
        *(((1024, 512), True), ((32, 16416), True), ((4, 256, 512), True), ((2, 4112, 64), True)),
        *(((1027, 512), False), ((1024, 524), False), ((4, 250, 544), False), ((64, 512), False)),
    ],
)
def test_columns_without_loops(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, shape: tuple[int, ...], straight: bool, dtype: str
) -> None:
    """Whole ones, rows of a larger array, such that begin at no multiple of four, and transposes."""
    device = reopen()
    values = rng.integers(-99, 99, shape).astype(dtype)
    values.reshape(-1, shape[-1])[5::97, 3] = 99
    a = device.array(values)
    axis, extent = len(shape) - 2, shape[-2]
    views = [(a, values, axis), (a[..., 1:, :], values[..., 1:, :], axis), (a[..., :-4], values[..., :-4], axis)]
    for first in (4, 5):
        part = device.zeros((values.size + 5,), dtype)[first : first + values.size].reshape(shape)
        part.copy_from(a)
        views.append((part, values, axis))
    if len(shape) == 2:
        views += [(a.T, values.T, 1), (a[: extent // 2].T, values[: extent // 2].T, 1)]
    for view, seen, along in views:
        np.testing.assert_array_equal(vkpar.sum(view, along).numpy(), seen.sum(along, dtype=seen.dtype))
        np.testing.assert_array_equal(vkpar.min(view, along).numpy(), seen.min(along))
        np.testing.assert_array_equal(vkpar.argmax(view, along).numpy(), seen.argmax(along))
    made = {(pipeline.name, pipeline.constants) for pipeline in device.logical.pipelines._pipelines.values()}
    found = any("w64" in name and specialized(name, constants).get("straight") for name, constants in made)
    assert not device.info.tests_lanes or straight == found


def test_sums_of_one_sign(either: vkpar.Device) -> None:
    """Errors that add up: all terms are rounded the same way."""
    values = np.full((1 << 20,), 1.0 + 2.0**-20, np.float32)
    exact = values.astype(np.float64)
    check(vkpar.sum(either.array(values)), np.asarray(exact.sum()), bound(exact, None))
    square = exact.reshape(1024, 1024)
    check(vkpar.sum(either.array(values).reshape(1024, 1024), 0), square.sum(axis=0), bound(square, 0))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint32"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_extremes_and_places(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], axis: Axis, dtype: str
) -> None:
    if dtype in FLOATS:
        values: NDArray[Any] = normal(rng, shape, dtype)
    else:
        values = rng.integers(0, 2**32, shape, dtype=np.uint32).view(dtype)
    a = either.array(values, dtype)
    for name, keepdims in itertools.product(EXTREMES, (False, True)):
        found = getattr(vkpar, name)(a, axis, keepdims)
        expected = np.asarray(getattr(np, name)(values, axis=axis, keepdims=keepdims))
        assert (found.shape, found.dtype) == (expected.shape, dtype)
        np.testing.assert_array_equal(values_of(found), expected.astype(np.float64))
    if isinstance(axis, tuple):
        return
    for name, keepdims in itertools.product(PLACES, (False, True)):
        found = getattr(a, name)(axis, keepdims)
        expected = np.asarray(getattr(np, name)(values, axis=axis, keepdims=keepdims))
        assert (found.shape, found.dtype) == (expected.shape, "uint32")
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_integers(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], axis: Axis, dtype: str
) -> None:
    values = rng.integers(0, 2**32, shape, dtype=np.uint32).view(dtype)
    a = either.array(values)
    total, mean = vkpar.sum(a, axis), vkpar.mean(a, axis)
    assert (total.dtype, mean.dtype) == (dtype, "float32")
    np.testing.assert_array_equal(total.numpy(), np.asarray(values.sum(axis=axis, dtype=dtype)))
    exact = values.astype(np.float64)
    check(mean, np.asarray(exact.mean(axis=axis)), bound(exact, axis, True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(either: vkpar.Device, dtype: str) -> None:
    tiny = {"float32": 1e-45, "float16": 6e-8, "bfloat16": 1e-40}[dtype]
    rows = np.array(
        [
            [1, np.nan, 3, np.nan, np.inf],
            [-np.inf, 1, np.inf, 2, np.inf],
            [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
            [-0.0, 0.0, -0.0, 0.0, -0.0],
            [tiny, 0.0, -tiny, tiny, -tiny],
            [5, 5, -5, 5, -5],
        ]
    )
    with np.errstate(all="ignore"):
        values = held(rows, dtype)
        for a, axis in ((either.array(values, dtype), 1), (either.array(values.T.copy(), dtype), 0)):
            for name in EXTREMES:
                found = getattr(vkpar, name)(a, axis).numpy()
                expected = getattr(np, name)(values, axis=1)
                # NumPy's comparison takes no NaN of ml_dtypes for equal
                np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
                assert found.dtype == a.dtype.numpy
            for name in PLACES:
                np.testing.assert_array_equal(getattr(vkpar, name)(a, axis).numpy(), getattr(np, name)(values, axis=1))
            check(vkpar.sum(a, axis)[:3], values.astype(np.float64).sum(axis=1)[:3], 0.0)
            check(vkpar.mean(a, axis)[:3], values.astype(np.float64).mean(axis=1)[:3], 0.0)
    zeros = vkpar.max(either.array(values[3], dtype)).numpy()
    assert not np.signbit(zeros)


def test_first_of_equals(either: vkpar.Device, rng: np.random.Generator) -> None:
    values = rng.integers(0, 3, (5, 40_000)).astype(np.float32)
    values[1, 30_000:] = np.nan
    for name in PLACES:
        expected = getattr(np, name)(values, axis=1)
        np.testing.assert_array_equal(getattr(vkpar, name)(either.array(values), 1).numpy(), expected)
        np.testing.assert_array_equal(getattr(vkpar, name)(either.array(values.T.copy()), 0).numpy(), expected)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3), (2, 1000), (1000, 2), (2, 40_001)])
def test_places_of_what_no_element_is_beyond(either: vkpar.Device, shape: tuple[int, int], dtype: str) -> None:
    bounds = np.iinfo(dtype)
    for name, value in (("argmax", bounds.min), ("argmin", bounds.max)):
        a = either.array(np.full(shape, value, dtype))
        for axis in (0, 1, None):
            assert not getattr(vkpar, name)(a, axis).numpy().any()


@pytest.mark.parametrize("shape", [(40_001, 1), (33_000, 6), (3, 50_000, 1), (2, 40_000, 9), (40_000, 130)])
def test_one_dispatch_on_gpus(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several groups a result, of which the last one folds all parts; NaN, and zeros of both signs, in any of them."""
    sent: list[str] = []
    dispatch = reducing.Call.dispatch
    monkeypatch.setattr(
        reducing.Call,
        "dispatch",
        lambda call, name, *rest, **more: (sent.append(name), dispatch(call, name, *rest, **more))[1],
    )
    axis = len(shape) - 2
    for dtype in ("float32", "float16", "int32"):
        values = rng.integers(-9, 9, shape).astype(dtype)
        zeros = np.where(values < 0, values, -0.0 if dtype != "int32" else 0).astype(dtype)
        zeros[..., 30_000:, :] = np.abs(zeros[..., 30_000:, :])  # +0 and above, later
        spoilt = values.copy()
        if dtype != "int32":
            spoilt[..., 20_011::7000, -1] = np.nan
            spoilt[..., 20_004, -1] = -np.float32(np.nan)
        sent.clear()
        for each in (values, zeros, spoilt):
            a = either.array(each)
            np.testing.assert_array_equal(vkpar.max(a, axis).numpy(), each.max(axis))
            np.testing.assert_array_equal(vkpar.argmax(a, axis).numpy(), each.argmax(axis))
            np.testing.assert_array_equal(vkpar.argmin(a, axis).numpy(), each.argmin(axis))
        total = vkpar.sum(either.array(values), axis)
        np.testing.assert_array_equal(total.numpy(), values.astype(np.int64).sum(axis).astype(dtype))
        assert any("_once_" in name for name in sent) == (not cpu.on_cpu(either))
    counters = either.plans.tables.get(("counters",))
    assert counters is None or not counters.numpy().any()


def test_threads_that_need_more_counters_and_fewer(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, plain = reopen(), tables._uploaded

    def overtaken(there: vkpar.Device, words: NDArray[Any]) -> vkpar.Array:
        made = plain(there, words)
        if words.size > 1024:
            assert tables.counters(there, 1).size == 1024  # as another thread would, while these are uploaded
        return made

    monkeypatch.setattr(tables, "_uploaded", overtaken)
    assert tables.counters(device, 5000).size >= 5000


def test_overflow_of_a_half(either: vkpar.Device) -> None:
    a = either.array(np.full(70, 1000), "float16")
    assert np.isinf(vkpar.sum(a).numpy())
    assert float(vkpar.mean(a)) == 1000.0


def test_the_same_bits_each_time(either: vkpar.Device, rng: np.random.Generator) -> None:
    a = either.array(rng.standard_normal((77, 5000)).astype(np.float32))
    for axis in (None, 0, 1):
        first = vkpar.sum(a, axis).numpy()
        for _ in range(5):
            np.testing.assert_array_equal(vkpar.sum(a.copy(), axis).numpy().view(np.uint32), first.view(np.uint32))


VIEWS = [
    (lambda a: a.T, (0, 1)),
    (lambda a: a[:, 3:17], (0, 1)),
    (lambda a: a[2:, 5], (0,)),
    (lambda a: a[::2], (0, 1)),
    (lambda a: a[:, ::3], (0, 1)),
    (lambda a: a[::-1, ::-1], (0, 1)),
    (lambda a: a.reshape(6, 5, 20).transpose(2, 0, 1), (0, 1, 2)),
    (lambda a: a.reshape(6, 5, 20).transpose(1, 0, 2), (0, 1, 2)),
    (lambda a: a.reshape(6, 5, 20)[:, :, 1:5], (0, 1, 2)),
    (lambda a: a.reshape(6, 5, 20)[:, 1:4:2], (0, 1, 2)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize(("view", "axes"), VIEWS)
def test_strided_views(
    either: vkpar.Device, rng: np.random.Generator, view: Callable[[Any], Any], axes: tuple[int, ...], dtype: str
) -> None:
    values = rng.integers(-50, 50, (30, 20)).astype(dtype)
    seen = view(values)
    for axis in (*axes, None):
        for _ in range(2):
            a = view(either.array(values))
            np.testing.assert_array_equal(vkpar.sum(a, axis).numpy(), seen.sum(axis=axis, dtype=dtype))
            np.testing.assert_array_equal(vkpar.min(a, axis).numpy(), seen.min(axis=axis))
            np.testing.assert_array_equal(vkpar.argmax(a, axis).numpy(), seen.argmax(axis=axis))


def test_transposes_are_not_copied(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and columns of a transpose, and columns of a part of it, are reduced where they lie."""
    values = rng.integers(-9, 9, (40, 64)).astype(np.float32)
    a = device.array(values)
    monkeypatch.setattr(vkpar.Array, "contiguous", None)
    for axis in (0, 1, None):
        np.testing.assert_array_equal(vkpar.sum(a.T, axis).numpy(), values.T.sum(axis=axis))
    for axis in (0, 1):
        np.testing.assert_array_equal(vkpar.max(a[:, 8:24], axis).numpy(), values[:, 8:24].max(axis=axis))


@given(data=st.data())
def test_views_at_odd_offsets(device: vkpar.Device, data: st.DataObject) -> None:
    """Operand and result anywhere in bigger arrays: nothing around the result changes."""
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    rows, columns, before, at = (data.draw(st.integers(low, 12)) for low in (1, 1, 0, 0))
    axis = data.draw(st.sampled_from([None, 0, 1]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = rng.integers(-30, 30, 170).astype(dtype)
    around = rng.standard_normal(40).astype(dtype)
    part = values[before : before + rows * columns].reshape(rows, columns)
    expected = np.asarray(part.astype(np.float32).sum(axis=axis)).astype(dtype)
    a = device.array(values)[before : before + rows * columns].reshape(rows, columns)
    target = device.array(around)
    out = target[at : at + expected.size].reshape(expected.shape)
    assert vkpar.sum(a, axis, out=out) is out
    around[at : at + expected.size] = expected.reshape(-1)
    np.testing.assert_array_equal(target.numpy(), around)


def test_results_in_columns(device: vkpar.Device, rng: np.random.Generator) -> None:
    values = rng.integers(-9, 9, (6, 40)).astype(np.float16)
    target = device.array(np.zeros((6, 3), np.float16))
    vkpar.sum(device.array(values), 1, out=target[:, 1])
    np.testing.assert_array_equal(target.numpy()[:, 1], values.sum(axis=1))
    assert not target.numpy()[:, ::2].any()


SMALL = {"max_buffer": 8192, "max_binding": 4352, "ring_bytes": 20_000}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((30_001,), None),
        ((3, 7001), 1),
        ((7001, 3), 0),
        ((3, 7001), 0),
        ((5000, 2), 1),
        ((2, 1501, 5), 1),
        ((2, 9, 1300), 1),
    ],
)
def test_arrays_over_several_buffers(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, shape: tuple[int, ...], axis: Axis, dtype: str
) -> None:
    device = reopen(**SMALL)
    values = rng.integers(-9, 9, shape).astype(dtype)
    a = device.array(values)
    total = np.asarray(values.astype(np.float64).sum(axis=axis))
    np.testing.assert_array_equal(vkpar.sum(a, axis).numpy(), total.astype(dtype))
    np.testing.assert_array_equal(vkpar.min(a, axis).numpy(), values.min(axis=axis))
    np.testing.assert_array_equal(vkpar.argmax(a, axis).numpy(), values.argmax(axis=axis))


def test_a_row_over_several_buffers_of_a_gpu(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group of a GPU reduces such a row at once where a binding holds it, else several do."""
    device = reopen(**SMALL)
    if "swiftshader" in device.info.name.lower():
        pytest.skip("SwiftShader takes seconds to compile groups of that size; lavapipe runs them")
    monkeypatch.setattr(cpu, "on_cpu", lambda device: False)
    values = rng.integers(-9, 9, 30_001).astype(np.float32)
    a = device.array(values)
    assert vkpar.sum(a).numpy() == values.sum()
    assert vkpar.argmax(a).numpy() == values.argmax()


def test_sizes_without_elements(device: vkpar.Device) -> None:
    for shape, axis, kept in (((0,), None, ()), ((3, 0), 1, (3,)), ((0, 4), 0, (4,)), ((2, 0, 5), 1, (2, 5))):
        for dtype in FLOATS:
            a = device.empty(shape, dtype)
            check(vkpar.sum(a, axis), np.zeros(kept), 0.0)
            check(vkpar.mean(a, axis), np.full(kept, np.nan), 0.0)
        assert (vkpar.mean(device.empty(shape, "int32"), axis).numpy() != 0).all()
        for name in (*EXTREMES, *PLACES):
            with pytest.raises(vkpar.InvalidUsageError, match=f"{name} of no elements"):
                getattr(vkpar, name)(a, axis)
    for name in ("sum", "mean", *EXTREMES, *PLACES):
        assert getattr(vkpar, name)(device.empty((3, 0)), 0).shape == (0,)


def test_a_repeated_call_takes_its_recipe(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (device.array(np.full((3, 20_000), value, np.float32)) for value in (1, 2))
    out = device.empty(3)
    vkpar.sum(a, 1, out=out)
    vkpar.sum(a, 1)
    monkeypatch.setattr(reductions, "Call", None)
    assert (vkpar.sum(b, 1, out=out).numpy() == 40_000).all()
    assert (vkpar.sum(b, 1).numpy() == 40_000).all()


def test_captured(device: vkpar.Device, rng: np.random.Generator) -> None:
    values = rng.standard_normal((50, 3000)).astype(np.float32)
    a = device.array(values)
    with vkpar.capture([device]) as graph:
        total, place, nothing = vkpar.sum(a), vkpar.argmax(a, 0), vkpar.mean(a[:, :0], 1)
    graph.launch().wait()
    np.testing.assert_array_equal(total.numpy(), vkpar.sum(a).numpy())
    np.testing.assert_array_equal(place.numpy(), values.argmax(axis=0))
    assert np.isnan(nothing.numpy()).all()
    graph.close()


@pytest.mark.parametrize("extent", [1, 100, 4096, 10**6, 2**25, 2**30])
@pytest.mark.parametrize("columns", [1, 2, 7, 100, 4096, 10**6])
@pytest.mark.parametrize("blocks", [1, 1000])
def test_turns_of_loops(either: vkpar.Device, extent: int, columns: int, blocks: int) -> None:
    """An invocation stays far below 65,535 turns of all its loops, and adds no more terms in sequence than promised."""
    for halves in (False, True):
        left, depth, last = extent, 0, False
        while not last:
            group, lanes, part = folding.first_shape(either, blocks, left, columns)
            last = left <= part
            if last:
                group, lanes, part = folding.shape_of(either, left, columns, halves=halves, blocks=blocks)
            turns = -(-min(part, left) // (lanes * (4 if columns == 1 else 1)))
            assert group % lanes == 0
            assert turns + -(-min(part, left) // lanes) + lanes.bit_length() + 4 < 60_000
            whole, rest = divmod(turns, 4)
            if cpu.on_cpu(either) and columns == 1 and whole > cpu.IN_A_ROW:
                whole = cpu.IN_A_ROW + -(-whole // cpu.IN_A_ROW)
            depth += whole + min(rest, 3) + 2 + (2 if columns == 1 else 0) + lanes.bit_length() - 1
            left = -(-left // part)
        assert depth <= additions(extent)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [1, 2, 20, 100, 128, 1000, 16_384])
@pytest.mark.parametrize("units", [1, 20, 60, 132, 304])
def test_turns_in_one_dispatch(either: vkpar.Device, monkeypatch: pytest.MonkeyPatch, units: int, columns: int) -> None:
    """As above, of parts and of what the last group makes of them, on GPUs of any number of compute units."""
    monkeypatch.setattr(reducing, "units_of", lambda info: units)
    for exponent, blocks in itertools.product(range(5, 27), (1, 3, 300)):
        for extent in (2**exponent, 2**exponent + 1, 7 * 2**exponent // 4):
            found = reducing.shape_of(either, blocks, extent, columns)
            if found is None:
                continue
            turns = -(-min(found.part, extent) // (found.lanes * (4 if columns == 1 else 1)))
            folds = -(-found.parts // found.lanes)
            folds = folds if columns == 1 else -(-folds // 4) + 2
            assert found.group % found.lanes == 0
            assert turns + folds + 2 * found.lanes.bit_length() < 1000
            whole, rest = divmod(turns, 4)
            tree = 2 + (2 if columns == 1 else 0) + 2 * (found.lanes.bit_length() - 1)
            assert whole + min(rest, 3) + folds + tree <= additions(extent)


Call = Callable[[vkpar.Device, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a: vkpar.sum([1.0]), vkpar.InvalidUsageError, "a has to be a vkpar.Array, not list"),
        (lambda d, a: vkpar.sum(a, 2), vkpar.InvalidUsageError, r"there is no axis 2 in an array of shape \(3, 4\)"),
        (lambda d, a: vkpar.max(a, -3), vkpar.InvalidUsageError, "there is no axis -3"),
        (lambda d, a: vkpar.mean(a, (0, -2)), vkpar.InvalidUsageError, "names an axis twice"),
        (lambda d, a: vkpar.sum(a, 0.5), vkpar.InvalidUsageError, "whole number"),
        (lambda d, a: vkpar.sum(a, [0]), vkpar.InvalidUsageError, "whole number"),
        (lambda d, a: vkpar.argmax(a, (0, 1)), vkpar.InvalidUsageError, "takes one axis"),
        (lambda d, a: vkpar.sum(a, 0, out=d.empty(3)), vkpar.InvalidUsageError, r"the result is \(4,\) float32"),
        (lambda d, a: vkpar.argmax(a, 0, out=d.empty(4)), vkpar.InvalidUsageError, r"the result is \(4,\) uint32"),
        (lambda d, a: vkpar.sum(a, 0, out=a[0]), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a: vkpar.sum(d.zeros(3, "complex64")), vkpar.UnsupportedError, "not complex64"),
        (lambda d, a: vkpar.argmin(d.zeros(3, "complex64")), vkpar.UnsupportedError, "not complex64"),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    a = device.zeros((3, 4))
    with pytest.raises(error, match=message):
        call(device, a)


def test_functions_of_numpy_name_the_methods(device: vkpar.Device) -> None:
    for call, ours in ((np.sum, "sum"), (np.mean, "mean"), (np.amax, "max"), (np.argmin, "argmin")):
        with pytest.raises(vkpar.OperandError, match=rf"write a\.{ours}\(\)"):
            call(device.zeros(3))


def test_a_closed_array(device: vkpar.Device) -> None:
    a = device.zeros(8)
    vkpar.sum(a)
    a.close()
    with pytest.raises(vkpar.InvalidUsageError, match="close"):
        vkpar.sum(a)


@pytest.mark.sampled(1)
def test_columns_of_more_groups_than_a_device_starts_along_x(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dataclasses.replace(device.limits, max_workgroup_count=(2, 65535, 65535))
    monkeypatch.setattr(vkpar.Device, "limits", limits)
    monkeypatch.setattr(cpu, "_MANY", 1)
    forget(device)
    for blocks, columns in itertools.product((1, 3), (32, 96, 480)):
        x = rng.integers(-100, 100, (blocks, 48, columns)).astype(np.int32)
        a = device.array(x)
        np.testing.assert_array_equal(a.sum(1).numpy(), x.sum(1))
        np.testing.assert_array_equal(a.argmax(1).numpy(), x.argmax(1))
    forget(device)
