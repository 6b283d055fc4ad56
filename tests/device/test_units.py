"""Sums and extremes of elements of 8, 16 and 64 bits, read in units of 32 bytes, of 16, 8, or 4, against NumPy's.

Each is made by the kernels of GPUs, and by those of CPU drivers that read storage buffers element by element.
The cases are those of numpy/_core/tests: test_ufunc.py (test_sum, of all types) and test_umath.py (TestMaximum and
TestMinimum's test_reduce, with NaN).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.process.threads import in_threads
from helpers.vulkan.planning import forget

import vkpar
from vkpar.ops.call import call, kept
from vkpar.ops.reduce import reductions, units

pytestmark = pytest.mark.device
SHAPES: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((5000,), None), ((3, 1000), 1),
    ((64, 48), 0), ((64, 48), 1), ((7, 33, 64), 1), ((7, 33, 64), (0, 2)), ((33, 7), 0),
    ((100_001,), None), ((4, 5, 6), (0, 1)), ((2, 4096), 1), ((1,), 0), ((17, 1), 0), ((513, 16), 0), ((5, 300, 3), 1),
    ((3, 70_016), 1), ((131, 4128), 0), ((2, 67, 40), 1), ((65_536,), None), ((9, 8), 1), ((70, 8), 0),
    ((3 << 20,), None),  # of 64 bits more parts than a group has invocations
)  # fmt: skip


def computes(device: vkpar.Device, dtype: str) -> bool:
    features = device.info.features
    return features.float64 if dtype == "float64" else features.int64


@pytest.fixture(autouse=True, params=["gpu", "w64"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[None]:
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each of these kernels for five seconds; lavapipe runs them")
    if request.param == "w64" and not device.info.features.int64:
        pytest.skip(f"{device} does not compute with 64 bits")
    monkeypatch.setattr(units, "reads_units", lambda device: True)
    monkeypatch.setattr(units, "w64", lambda device: request.param == "w64")
    forget(device)
    yield
    forget(device)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "uint16", "int16", "int64", "uint64", "float64"])
def test_against_numpy(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    if np.dtype(dtype).itemsize == 8 and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    for shape, axis in SHAPES if FULL else SHAPES[::3]:
        if dtype == "float64":  # whose sums are exact
            a = rng.integers(-(1 << 40), 1 << 40, shape).astype(dtype) * 2.0**-60
        elif dtype == "bool":
            a = rng.random(shape) < rng.choice([0, 0.5, 1])
        else:
            limits = np.iinfo(dtype)
            a = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        for part in (a, a[1:], np.flip(a, 0)):
            if not part.size:
                continue
            x = device.array(a, dtype)[:: -1 if part.strides[0] < 0 else 1][a.shape[0] - len(part) :]
            for name in ("sum", "max", "min"):
                got = getattr(vkpar, name)(x, axis)
                want = getattr(np, name)(part.astype("int64") if dtype == "bool" and name == "sum" else part, axis=axis)
                wide = "uint32" if dtype[0] == "u" else "int32"
                assert got.dtype == (dtype if name != "sum" or part.itemsize == 8 else wide)
                np.testing.assert_array_equal(
                    got.numpy(), want.astype(got.dtype.numpy), err_msg=f"{name} {shape} {axis}"
                )
            if part.itemsize == 1:
                for _ in range(2):  # as a call and by its recipe
                    away = vkpar.mean(x, axis).numpy() - part.mean(axis, dtype="float64")
                    assert (abs(away) <= 24 * 2.0**-23 * abs(part.astype("float64")).mean(axis)).all()
            if dtype == "bool":
                np.testing.assert_array_equal(vkpar.all(x, axis).numpy(), part.all(axis))
                np.testing.assert_array_equal(vkpar.any(x, axis, keepdims=True).numpy(), part.any(axis, keepdims=True))


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint64", "float64"])
def test_any_and_all_by_bits(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Zeros of either sign, the least numbers, NaN, and one element that differs from all others."""
    if np.dtype(dtype).itemsize == 8 and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    monkeypatch.setattr(units, "_MANY", 0)
    zeros, others = [0], [1, 1 << 30]
    if dtype[0] == "f":
        zeros, others = [0.0, -0.0], [np.finfo(dtype).smallest_subnormal, -1.0, np.nan, -np.nan, -np.inf]
        if "SwiftShader" in device.name:
            others = others[1:]  # it flushes subnormals
    for shape, axis in (*SHAPES, ((0, 8), 0), ((8, 0), 0)):
        for few, many in ((zeros, others), (others, zeros), (zeros, zeros)):
            a = rng.choice(np.array(many, dtype), shape)
            if a.size:
                a.reshape(-1)[rng.integers(a.size)] = rng.choice(np.array(few, dtype))
            x, out = device.array(a), device.zeros(np.any(a, axis).shape, "bool")
            for name in ("any", "all"):
                want = getattr(np, name)(a, axis)
                np.testing.assert_array_equal(getattr(vkpar, name)(x, axis).numpy(), want, err_msg=f"{name} {shape}")
                getattr(vkpar, name)(x, axis, out=out)
                np.testing.assert_array_equal(out.numpy(), want)
                turned, kept = np.flip(a, 0), getattr(vkpar, name)(x[::-1], axis, keepdims=True)
                np.testing.assert_array_equal(kept.numpy(), getattr(np, name)(turned, axis, keepdims=True))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "int64", "float64"])
def test_products_and_counts_by_parts(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Products that wrap, or are powers of two, and NaN; zeros and other numbers, the least ones among them."""
    if np.dtype(dtype).itemsize == 8 and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    monkeypatch.setattr(units, "_MANY", 0)
    for shape, axis in SHAPES if FULL else SHAPES[::2]:
        if dtype[0] == "f":
            a = rng.choice(np.array([1, -1], dtype), shape)
            for factor in (2, 0.5, 4):
                a.reshape(-1)[rng.integers(a.size)] *= factor
            if a.size > 5000:
                a.reshape(-1)[7] = np.nan
        else:
            limits = np.iinfo(dtype)
            a = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) | np.array(1, dtype)
        got = vkpar.prod(device.array(a), axis).numpy()
        np.testing.assert_array_equal(got, np.prod(a, axis, dtype=got.dtype))
        a *= rng.integers(0, 2, shape).astype(dtype)
        x, want = device.array(a), np.count_nonzero(a, axis)
        np.testing.assert_array_equal(vkpar.count_nonzero(x, axis).numpy(), want)
        out = device.zeros(want.shape if isinstance(want, np.ndarray) else (), "uint32")
        vkpar.count_nonzero(x, axis, out=out)
        np.testing.assert_array_equal(out.numpy(), want)


def test_nan_and_out(device: vkpar.Device) -> None:
    a = np.arange(300, dtype=np.uint8).reshape(3, 100)
    out = device.zeros((3, 2), "uint32")
    vkpar.sum(device.array(a), 1, out=out[:, 1])
    np.testing.assert_array_equal(out.numpy(), np.stack([np.zeros(3), a.sum(1)], 1))
    if computes(device, "float64"):
        b = np.float64([[1, np.nan, 3], [np.inf, 0, -np.inf], [-0.0, -0.0, -0.0]])
        x = device.array(b, "float64")
        np.testing.assert_array_equal(vkpar.max(x, 1).numpy(), b.max(1))
        np.testing.assert_array_equal(vkpar.min(x, 1).numpy(), b.min(1))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(vkpar.sum(x, 1).numpy(), b.sum(1))
        assert np.signbit(vkpar.sum(x, 1).numpy()[2])


COUNTED = ("uint8", "bool", "int16", "float16", "bfloat16", "int32", "float32", "int64", "float64")


@pytest.mark.parametrize("dtype", COUNTED)
def test_counts(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    if dtype in ("int64", "float64") and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    stored = vkpar.dtypes.resolve(dtype).numpy
    few = np.float32([0, 0, 0, 1]) if dtype == "bool" else np.float32([0, 0, -0.0, 1, 2, 64])
    some = few.astype(stored)
    if some.dtype.kind not in "iub":
        some = np.append(some, np.array([np.nan, -np.inf, -(2.0**-24)]).astype(stored))  # a subnormal half
    elif dtype != "bool":
        some = np.append(some, np.array([np.iinfo(stored).max, np.iinfo(stored).min]).astype(stored))
    for shape, axis in SHAPES if FULL else SHAPES[::2]:
        a = rng.choice(some, shape)
        for x, b in ((device.array(a), a), (device.array(a).T, a.T)):
            want = np.count_nonzero(b.astype("float64"), axis)
            np.testing.assert_array_equal(vkpar.count_nonzero(x, axis).numpy(), want, err_msg=f"{shape} {axis}")
            out = device.zeros((*want.shape, 2), "uint32")[..., 1]
            for _ in range(2):  # as a call and by its recipe
                assert vkpar.count_nonzero(x, axis, out=out) is out
                np.testing.assert_array_equal(out.numpy(), want)


@pytest.mark.parametrize(("dtype", "kernels"), [
    ("bool", ["reduce_units_once_u32"]), ("uint8", ["reduce_units_once_u32"]), ("float16", ["reduce_units_once_u32"]),
    ("int32", ["reduce_units_once_u32"]), ("int64", ["reduce_units_once_u64"]),
])  # fmt: skip
def test_a_count_reads_elements_as_they_are_stored(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, dtype: str, kernels: list[str]
) -> None:
    if units.w64(device) or (dtype == "int64" and not computes(device, dtype)):
        pytest.skip("they are compared with 0 first, or not computed")
    found: list[str] = []
    dispatch = call.Call.dispatch
    monkeypatch.setattr(call.Call, "dispatch", lambda *given, **how: found.append(given[1]) or dispatch(*given, **how))
    x = device.array(np.tile([0, 1, 1], 50_001), dtype)
    assert vkpar.count_nonzero(x).item() == 100_002
    assert found == kernels
    assert vkpar.count_nonzero(x).item() == 100_002
    assert found == kernels  # by the recipe


def test_a_grid_of_more_groups_than_parts_leaves_the_counters_as_they_were(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as devices have that take no more than 65,535 groups side by side."""
    monkeypatch.setattr(call, "fold_groups", lambda _, count: (-(-count // 2), 2, 1))
    for rows in (7, 9):  # of three parts each
        a = rng.integers(-100, 100, (rows, 40_000), np.int8)
        for _ in range(2):
            np.testing.assert_array_equal(vkpar.sum(device.array(a), 1).numpy(), a.sum(1, dtype=np.int32))
            assert not kept.counters(device, 1).numpy().any()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "float16", "int32", "int64"])
def test_long_parts(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Sums of bytes are kept in halves of words for as long as these have room; the last groups fold many parts."""
    if dtype == "int64" and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    monkeypatch.setattr(units, "_WANTED", 256)
    stored = np.dtype(dtype)
    ends = (1, 0) if stored.kind == "f" else (np.iinfo(stored).max, np.iinfo(stored).min)
    shapes: tuple[tuple[tuple[int, ...], Any], ...] = (
        ((600_001,), None), ((2, 300_004), 1), ((3000, 256), 0), ((2, 9000, 20), 1), ((20_000, 16), 0),
    )  # fmt: skip
    for shape, axis in shapes:
        for a in (np.full(shape, ends[0], stored), np.full(shape, ends[1], stored), rng.choice(ends, shape)):
            x = device.array(a.astype(stored))
            np.testing.assert_array_equal(vkpar.count_nonzero(x, axis).numpy(), np.count_nonzero(a, axis))
            np.testing.assert_array_equal(vkpar.any(x, axis).numpy(), a.any(axis))
            np.testing.assert_array_equal(vkpar.all(x, axis, keepdims=True).numpy(), a.all(axis, keepdims=True))
            for name in ("sum", "max", "min") if stored.kind != "f" else ("max", "min"):
                got = getattr(vkpar, name)(x, axis).numpy()
                want = a.sum(axis, "int64") if name == "sum" else getattr(np, name)(a, axis)
                np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=f"{name} {shape}")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16"])
def test_given_results(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Alone, among others that stay as they are, at any byte, and far from each other; as calls, recipes and graphs."""
    for shape, axis in (((5000,), None), ((64, 48), 0), ((5, 300, 8), 1), ((7, 400), 1), ((900, 16), 0)):
        a = rng.integers(0, 2, shape).astype(dtype)
        x = device.array(a)
        for name in ("sum", "max", "min", "mean"):
            want = getattr(np, name)(a, axis)
            kind = {"mean": "float32", "sum": "uint32" if dtype[0] == "u" else "int32"}.get(name, dtype)
            ones = vkpar.full(device, 3 * want.size + 7, 1, kind)
            for first, step in ((0, 1), (1, 1), (3, 1), (4, 1), (1, 3)):
                part = slice(first, first + step * want.size, step)
                reduce = functools.partial(getattr(vkpar, name), x, axis, out=ones[part].reshape(want.shape))
                with vkpar.capture(device) as graph:
                    reduce()
                for run in (reduce, reduce, graph.launch):
                    ones.fill(1)
                    run()
                    expected = np.ones(ones.size, kind)
                    expected[part] = want.reshape(-1)
                    np.testing.assert_allclose(ones.numpy(), expected, 1e-6, err_msg=f"{name} {shape} {first}")
                graph.close()


def test_groups_leave_their_parts_in_what_is_kept(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Calls of one dispatch share it, those of threads and graphs as well; their results are their own."""
    if units.w64(device):
        pytest.skip("no group is the last")
    reductions = (vkpar.sum, vkpar.max, vkpar.count_nonzero)
    hosts = [rng.integers(0, 3 + n, size).astype(dtype) for n, size in enumerate((70_000, 1 << 18)) for dtype in "Blf"]
    arrays = [device.array(a) for a in hosts if a.dtype.itemsize < 8 or computes(device, "int64")]
    want = [int(getattr(np, each.__name__)(a.numpy().astype("int64"))) for a in arrays for each in reductions]
    graphs = []
    for _ in range(2):
        with vkpar.capture(device) as graph:
            captured = [each(a) for a in arrays for each in reductions]
        graphs.append((graph, captured))

    def work(number: int) -> None:
        for turn in range(6):
            graph, captured = graphs[(number + turn) % 2]
            graph.launch()
            out = device.zeros((), "uint32")
            made = [each(a) for a in arrays for each in reductions]
            vkpar.count_nonzero(arrays[0], out=out)
            assert [int(each) for each in made] == want
            assert [int(each) for each in captured] == want
            assert int(out) == want[2]

    in_threads(work)
    for graph, _ in graphs:
        graph.close()
    assert not kept.counters(device, 1).numpy().any()


def test_a_call_of_one_dispatch_costs_the_host_little(device: vkpar.Device) -> None:
    if units.w64(device):
        pytest.skip("it has two")
    x, truths = device.zeros(100_000, "uint8"), device.zeros(100_000, "bool")
    counted: list[str] = []
    for work in (vkpar.sum, lambda a: vkpar.max(a, 0), lambda a: vkpar.any(truths), vkpar.count_nonzero):
        for _ in range(3):
            work(x)
        counted.clear()
        sys.setprofile(lambda frame, event, argument: counted.append(event) if event in ("call", "c_call") else None)
        try:
            work(x)
        finally:
            sys.setprofile(None)
        assert len(counted) <= 36


def test_captured(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = device.zeros((40, 48), "uint8")
    with vkpar.capture(device) as graph:
        made = vkpar.sum(x), vkpar.max(x, 0), vkpar.min(x, 1), vkpar.count_nonzero(x, 1)
    for _ in range(2):
        a = rng.integers(0, 256, (40, 48), dtype=np.uint8)
        x.write(a)
        graph.launch()
        for got, want in zip(made, (a.sum(), a.max(0), a.min(1), np.count_nonzero(a, 1)), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    graph.close()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "bool", "int64", "uint64", "float64"])
def test_places_by_parts_of_rows(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    if np.dtype(dtype).itemsize == 8 and not computes(device, dtype):
        pytest.skip(f"{device} does not compute {dtype}")
    found = []
    by_parts = reductions._by_parts
    monkeypatch.setattr(reductions, "_by_parts", lambda *given: found.append(by_parts(*given)) or found[-1])
    monkeypatch.setattr(reductions, "_MANY", 4096)
    monkeypatch.setattr(reductions, "_LEAST_PART", 32)
    shapes: tuple[tuple[tuple[int, ...], Any], ...] = (((40_000,), None), ((7, 3, 320), -1), ((6, 1, 4000), 2))
    shapes += (((520, 96), 1), ((520, 1056), 1), ((3, 4, 5 << 10), -1))  # rows that are not parted; then some that are
    for shape, axis in (*shapes, *shapes[2:5]):
        a = rng.integers(0, 2 if dtype == "bool" else 90, shape).astype(dtype)  # so that there are many equals
        if dtype == "float64":
            few = np.float64([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1 + 2**-52, 1.0])
            a = rng.choice(few[: rng.integers(1, 9)], shape)
            a[rng.random(shape) < 1 / 4000] = rng.choice([np.nan, -np.nan])
        elif dtype != "bool":
            limits = np.iinfo(dtype)
            ends = np.array([limits.min, limits.max, 1, limits.max - 1], dtype)
            a = a - np.array(45, dtype) if rng.integers(2) else rng.choice(ends[: rng.integers(1, 5)], shape)
        for name in ("argmax", "argmin"):
            want = getattr(np, name)(a, axis, keepdims=True)
            x, out = device.array(a), device.zeros(want.shape, "uint32")
            np.testing.assert_array_equal(getattr(vkpar, name)(x, axis, keepdims=True).numpy(), want)
            getattr(vkpar, name)(x, axis, True, out=out)
            np.testing.assert_array_equal(out.numpy(), want)
    assert any(each is not None for each in found) == units.w64(device)
    same = vkpar.full(device, 50_000, 1, dtype)
    assert same.argmax().item() == same.argmin().item() == 0
