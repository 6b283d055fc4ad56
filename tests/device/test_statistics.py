"""Statistics, running sums, sorted elements and places, on every driver, against float64 and NumPy.

The cases are those of numpy/_core/tests: test_multiarray.py (TestStats, TestArgmax's and TestSort's values with NaN and
signed zeros), test_numeric.py (TestNonzeroAndCountNonzero, TestStdVar, TestStdVarComplex's axes), test_umath.py
(TestLogAddExpRange), numpy/lib/tests: test_function_base.py (TestCumsum, TestCumprod), test_shape_base.py
(TestTakeAlongAxis), numpy/linalg/tests/test_linalg.py (_TestNormGeneral), and of torch's test/test_sort_and_select.py
(test_topk_arguments, test_topk_nonfinite, test_stable_sort).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.ops.call import call
from vkpar.ops.call.kept import counters
from vkpar.ops.reduce import cpu, scans
from vkpar.testing import U

pytestmark = [pytest.mark.device, pytest.mark.sampled(5)]
AXES: tuple[Any, ...] = (None, 0, -1, (0, 2), (1,))
FEW = 60  # turns of a wait: lavapipe ends all loops of an invocation after 65,536 turns


def additions(count: int) -> float:
    return 24 * max(math.ceil(math.log2(max(count, 2)) / 6), 1) * 3  # of three axes, one after the other


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_statistics(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    a = (rng.standard_normal((3, 4, 5)) * 4 + 1).astype(dtype)
    a[a == 0] = 1
    x, x64 = device.array(a), a.astype(np.float64)
    unit = 2.0**-11 if dtype == "float16" else 0.0
    for axis, keepdims in itertools.product(AXES, (False, True)):
        count = a.size if axis is None else math.prod(a.shape[n] for n in np.atleast_1d(axis))
        d = additions(count)
        for ddof in (0, 1):
            got, want = vkpar.var(x, axis, keepdims, ddof=ddof), x64.var(axis, keepdims=keepdims, ddof=ddof)
            bound = (d + 5) * U * want + ((d + 3) * U * np.abs(a).max()) ** 2
            assert got.dtype == ("float32" if dtype == "int32" else dtype)
            assert got.shape == want.shape
            assert (np.abs(got.numpy() - want) <= bound * (1 + unit) + unit * want).all()
            root = vkpar.std(x, axis, keepdims, ddof=ddof).numpy()
            assert (
                np.abs(root - np.sqrt(want)) <= bound / np.sqrt(want.clip(1e-30)) + 5 * U * np.sqrt(want) + unit * want
            ).all()
        for order in (None, 1, 3, 0, np.inf, -np.inf):
            power = 2 if order is None else order
            size = np.abs(x64)
            flat = {np.inf: size.max, -np.inf: size.min}.get(power)
            if flat is not None:
                want = flat(axis, keepdims=keepdims)
            elif power == 0:
                want = (size != 0).sum(axis, keepdims=keepdims)
            else:
                want = (size**power).sum(axis, keepdims=keepdims) ** (1 / power)
            got = vkpar.norm(x, order, axis, keepdims)
            np.testing.assert_allclose(got.numpy(), want, rtol=(d + 60) * U + unit)
        np.testing.assert_array_equal(vkpar.any(x > 4, axis, keepdims).numpy(), (a > 4).any(axis, keepdims=keepdims))
        np.testing.assert_array_equal(vkpar.all(x > -4, axis, keepdims).numpy(), (a > -4).all(axis, keepdims=keepdims))
        counted = vkpar.count_nonzero(x > 1, axis, keepdims)
        np.testing.assert_array_equal(counted.numpy(), np.count_nonzero(a > 1, axis, keepdims=keepdims))
        if dtype == "int32":
            wrapped = a.prod(axis, keepdims=keepdims, dtype=np.int32)
            np.testing.assert_array_equal(vkpar.prod(x, axis, keepdims).numpy(), wrapped)
        elif dtype == "float32":
            want = x64.prod(axis, keepdims=keepdims)
            np.testing.assert_allclose(vkpar.prod(x, axis, keepdims).numpy(), want, rtol=count * U)
            want = np.log(np.exp(x64).sum(axis, keepdims=keepdims))
            got = vkpar.logsumexp(x, axis, keepdims).numpy()
            assert (np.abs(got - want) <= (d + 40) * U * (1 + np.abs(want))).all()


@pytest.mark.parametrize("gpu", [True, False])
def test_moments_of_rows_are_one_dispatch(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """By the layout of GPUs, which keep rows of up to 4,096 elements, and by that of CPU drivers."""
    if gpu:
        monkeypatch.setattr(cpu, "row_spread", lambda *given: None)
    device.plans.recipes.clear()  # those of the other layout
    found: list[str] = []
    dispatch = call.Call.dispatch
    monkeypatch.setattr(call.Call, "dispatch", lambda *given, **how: found.append(given[1]) or dispatch(*given, **how))
    for shape, axis in (((3, 1000), 1), ((5, 4096), -1), ((2, 2, 8192), (1, 2)), ((7, 37), 1)):
        a = (rng.standard_normal(shape) + 100).astype(np.float32)
        x, a64 = device.array(a), a.astype(np.float64)
        want = a64.var(axis, ddof=1)
        d = additions(a.size // want.size) / 3  # of one axis
        far = ((d + 3) * 2.0**-23 * np.abs(a64).max()) ** 2
        found.clear()
        got = vkpar.var(x, axis, ddof=1).numpy()
        assert len(found) == 1
        assert (np.abs(got - want) <= (d + 5) * 2.0**-23 * want + far).all()
        for _ in range(2):  # as a call and by its recipe
            root = vkpar.std(x, axis, ddof=1).numpy()
            np.testing.assert_allclose(root, np.sqrt(got.astype(np.float64)), rtol=2.0**-22)
        assert len(found) == 2


def test_running_sums_of_rows_of_any_length(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Lanes of work-groups of 32 have parts that begin at fours, or do not."""
    for count in (4, 132, 148, 224, 256, 720, 1000, 2500, 4000, 4092, 4096, 4100):
        a = rng.integers(-9, 9, (2, count)).astype(np.int32)
        np.testing.assert_array_equal(vkpar.cumsum(device.array(a), 1).numpy(), a.cumsum(1))


def test_cumsum_is_kept(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Along any axis, of views, into arrays whose elements lie apart; exact data."""
    for dtype in ("bool", "int16", "int32", "float16", "float32"):
        a = rng.integers(0, 2, (3, 40, 6)).astype(dtype)
        for x, host in ((device.array(a), a), (device.array(a).T, a.T), (device.array(a)[1:, ::2], a[1:, ::2])):
            for axis in (None, 0, 1, 2):
                want = host.cumsum(axis, np.float64)
                made = vkpar.cumsum(x, axis)
                out = device.zeros((*want.shape, 2), made.dtype)[..., 1]
                for _ in range(2):
                    np.testing.assert_array_equal(vkpar.cumsum(x, axis).numpy().astype(np.float64), want)
                    assert vkpar.cumsum(x, axis, out=out) is out
                    np.testing.assert_array_equal(out.numpy().astype(np.float64), want)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float32"])
def test_counts_are_uint32(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Those that go to an array of theirs, too, whose elements may lie apart."""
    a = rng.integers(0, 2, (40, 70)).astype(dtype)
    for x, host in ((device.array(a), a), (device.array(a).T, a.T)):
        for axis in (None, 0, 1):
            want, found = np.count_nonzero(host, axis), vkpar.count_nonzero(x, axis)
            for out in (device.zeros(found.shape, "uint32"), device.zeros((*found.shape, 3), "uint32")[..., 1]):
                assert vkpar.count_nonzero(x, axis, out=out) is out
                np.testing.assert_array_equal(out.numpy(), want)
            np.testing.assert_array_equal(found.numpy(), want)
            assert found.dtype == "uint32"


def test_statistics_of_odd_values(device: vkpar.Device) -> None:
    nan, inf = np.nan, np.inf
    a = device.array(np.float32([[1, 2, nan], [1000, 1000, -1000], [-inf, -inf, -inf], [inf, 1, 2], [0, 0, 0]]))
    np.testing.assert_allclose(vkpar.logsumexp(a, 1).numpy(), [nan, 1000 + np.log(2), -inf, inf, np.log(3)], rtol=1e-6)
    assert vkpar.any(a, 1).tolist() == vkpar.any(a, axis=1).tolist() == [1, 1, 1, 1, 0]
    assert vkpar.all(a, 1).tolist() == [1, 1, 1, 1, 0]
    assert vkpar.count_nonzero(a).tolist() == 12
    np.testing.assert_array_equal(np.isnan(a.var(1).numpy()), [True, False, True, True, False])
    none = device.zeros((0, 3))
    assert vkpar.prod(none, 0).tolist() == vkpar.all(none, 0).tolist() == [1, 1, 1]
    assert vkpar.any(none, 0).tolist() == vkpar.norm(none, axis=0).tolist() == [0, 0, 0]
    assert np.isnan(none.var(0).numpy()).all()
    assert vkpar.logsumexp(none, 0).tolist() == [-inf] * 3
    assert vkpar.cumsum(none, 0).shape == vkpar.sort(none, 0).shape == vkpar.argsort(none, 1).shape == (0, 3)
    with pytest.raises(InvalidUsageError, match="of no elements"):
        vkpar.norm(none, np.inf, 0)
    with pytest.raises(InvalidUsageError, match="ord is a number"):
        vkpar.norm(a, "nuc")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="no axis 2"):
        vkpar.cumsum(a, 2)
    with pytest.raises(InvalidUsageError, match="no 4 elements"):
        vkpar.topk(a, 4)
    with pytest.raises(UnsupportedError, match="sort computes"):
        vkpar.sort(device.zeros(3, "complex64"))


def test_running_sums_and_products(device: vkpar.Device, rng: np.random.Generator) -> None:
    for shape, axis in (((3, 4, 5), 1), ((3, 4, 5), None), ((2, 5000), 1), ((9001,), 0), ((17, 6), 0)):
        a = rng.standard_normal(shape).astype(np.float32)
        levels = 16 * (1 + math.ceil(math.log2(a.size) / 12))
        out = vkpar.cumsum(device.array(a), axis)
        want, size = np.cumsum(a.astype(np.float64), axis), np.cumsum(np.abs(a.astype(np.float64)), axis)
        assert (np.abs(out.numpy() - want) <= levels * U * size).all()
        whole = rng.integers(-(2**31), 2**31, shape).astype(np.int32)
        np.testing.assert_array_equal(vkpar.cumsum(device.array(whole), axis).numpy(), np.cumsum(whole, axis, np.int32))
        odd = device.array(whole.view(np.uint32) | 1)
        np.testing.assert_array_equal(odd.cumprod(axis).numpy(), np.cumprod(odd.numpy(), axis, np.uint32))
        for out in (device.zeros(want.shape, "int32"), device.zeros((2, *want.shape), "int32")[1]):
            assert vkpar.cumsum(device.array(whole), axis, out=out) is out
            np.testing.assert_array_equal(out.numpy(), np.cumsum(whole, axis, np.int32))
    near = (1 + rng.standard_normal((3, 70)) * 0.1).astype(np.float32)
    out = device.zeros((70, 3))
    vkpar.cumprod(device.array(near), 1, out=out.T)
    np.testing.assert_allclose(out.numpy().T, np.cumprod(near.astype(np.float64), 1), rtol=70 * U)
    halves = device.array(near.astype(np.float16))
    np.testing.assert_allclose(halves.cumsum(0).numpy(), np.cumsum(near.astype(np.float16), 0, np.float64), rtol=2**-10)
    odd_one = np.float32([1, np.inf, 2, -np.inf, 3, np.nan, 4])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(vkpar.cumsum(device.array(odd_one)).numpy(), np.cumsum(odd_one))


@pytest.mark.parametrize("waits", [0, 4])
def test_running_sums_in_one_pass(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    """Exact of whole numbers, the same bits of floats; where nobody waits the last group makes nearly all."""
    monkeypatch.setattr(scans, "passes_once", lambda _: True)
    device.plans.recipes.clear()
    made = []
    for turns in (waits, FEW):
        monkeypatch.setattr(scans, "_WAIT", turns)
        for shape in ((1, 3 * scans.CHUNK + 5), (2, 258 * scans.CHUNK + 4)):
            whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) % 1000 - 400
            x = device.array(whole)
            np.testing.assert_array_equal(vkpar.cumsum(x, 1).numpy(), whole.cumsum(1, np.int32))
            a = whole.astype(np.float32) * np.float32(1.1)
            out = vkpar.cumsum(device.array(a), 1).numpy()
            levels = 16 * (1 + math.ceil(math.log2(shape[1]) / 12))
            close = np.abs(out - a.cumsum(1, np.float64)) <= levels * U * np.abs(a).cumsum(1, np.float64)
            assert close.all()
            made.append(out)
        flags = rng.integers(0, 2, 2 * scans.CHUNK + 3).astype(bool)
        np.testing.assert_array_equal(vkpar.nonzero(device.array(flags))[0].numpy(), np.nonzero(flags)[0])
        device.plans.recipes.clear()
        assert not counters(device, 1).numpy().any()
    np.testing.assert_array_equal(made[0], made[2])
    np.testing.assert_array_equal(made[1], made[3])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_sorting_elements_of_few_bits(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    lowest, highest = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for shape, axis in (((5, 7), 1), ((7, 5), 0), ((2, 4097), -1)):
        a = rng.integers(lowest, highest, shape, endpoint=True).astype(dtype)
        np.testing.assert_array_equal(vkpar.sort(device.array(a), axis).numpy(), np.sort(a, axis, kind="stable"))
        np.testing.assert_array_equal(vkpar.argsort(device.array(a), axis).numpy(), np.argsort(a, axis, kind="stable"))


def test_sorting_float64(device: vkpar.Device, rng: np.random.Generator) -> None:
    for shape, axis in (((5, 70), 1), ((7, 5), 0)):
        a = rng.standard_normal(shape) * 10.0 ** rng.integers(-300, 300, shape)
        special = rng.choice(7, shape, p=[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
        a = np.choose(special, [a, np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0])
        x = device.array(a, "float64")
        np.testing.assert_array_equal(vkpar.sort(x, axis).numpy(), np.sort(a, axis, kind="stable"))
        np.testing.assert_array_equal(vkpar.argsort(x, axis).numpy(), np.argsort(a, axis, kind="stable"))
    a = np.float64([1, np.nan, -np.inf, 3, 3, -0.0, 0.0])
    values, places = vkpar.topk(device.array(a, "float64"), 7)
    np.testing.assert_array_equal(places.numpy(), [3, 4, 0, 5, 6, 2, 1])
    np.testing.assert_array_equal(values.numpy(), a[places.numpy()])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_running_sums_of_a_chunk_an_invocation(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    if not cpu.reads_pairs(device):
        pytest.skip(f"{device} has no such kernel")
    monkeypatch.setattr(cpu, "_ALONE", 1)
    for shape in ((3, 16), (70, 24), (2, 4096), (3, 12_296), (1, 8192), (2, 5001)):
        limits = np.iinfo(dtype)
        a = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        x = device.array(a)
        np.testing.assert_array_equal(vkpar.cumsum(x, 1).numpy(), np.cumsum(a, 1, dtype))
        np.testing.assert_array_equal(vkpar.cumprod(x[1:] | 1, 1).numpy(), np.cumprod(a[1:] | 1, 1, dtype))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "float16"])
def test_sorting(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    for shape, axis in (((5, 7), 1), ((7, 5), 0), ((4, 3, 6), None), ((2, 4097), -1), ((12289,), 0)):
        if dtype.startswith("float"):
            a = rng.integers(-9, 9, shape).astype(dtype)
            special = rng.choice([0, 1, 2, 3, 4], shape, p=[0.6, 0.1, 0.1, 0.1, 0.1])
            a = np.choose(special, [a, np.nan, np.inf, -np.inf, -0.0]).astype(dtype)
        else:
            a = rng.integers(0, 2**32, shape, dtype=np.uint32).view(dtype) >> 28 * (len(shape) > 1)
        x = device.array(a)
        want = np.argsort(a, axis=axis, kind="stable")
        np.testing.assert_array_equal(vkpar.argsort(x, axis).numpy(), want)
        got = vkpar.sort(x, axis).numpy()
        flat = a.reshape(-1) if axis is None else a
        exact = np.take_along_axis(flat, want, 0 if axis is None else axis)
        np.testing.assert_array_equal(got, exact)
        if dtype != "float16":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(exact))
        if axis is None:
            continue
        for k, largest in ((0, True), (3, True), (a.shape[axis], False), (2, False)):
            values, places = vkpar.topk(x, k, axis, largest)
            order = want if not largest else falling(a, axis)
            chosen = np.take(order, np.arange(k), axis)
            np.testing.assert_array_equal(places.numpy(), chosen)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, chosen, axis))


def falling(a: np.ndarray, axis: int) -> np.ndarray:
    """Return the places of a stable falling order with NaN last."""
    return np.argsort(-a.astype(np.float64), axis=axis, kind="stable")


def test_places(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 4, 5)).astype(np.float32)
    x = device.array(a)
    for axis in (0, 1, -1, None):
        shape = list(a.shape) if axis is not None else [a.size]
        at = 0 if axis is None else axis
        length = shape[at]
        shape[at] = 6
        indices = rng.integers(-length, length, shape).astype(np.int32)
        got = vkpar.take_along_axis(x, device.array(indices), axis)
        np.testing.assert_array_equal(got.numpy(), np.take_along_axis(a, indices, axis))
    beyond = vkpar.take_along_axis(device.array(a[0]), device.array(np.int32([[5, -6], [0, 4], [1, 7], [0, 0]])), 1)
    np.testing.assert_array_equal(np.isnan(beyond.numpy()), [[1, 1], [0, 0], [0, 1], [0, 0]])
    labels = np.uint32([[1, 0], [3, 9]])
    np.testing.assert_array_equal(vkpar.one_hot(device.array(labels), 4).numpy(), labels[..., None] == np.arange(4))
    assert vkpar.one_hot(device.array([1, -1]), 3, "int32").tolist() == [[0, 1, 0], [0, 0, 0]]


def test_nonzero(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.integers(0, 3, (5, 6, 7)).astype(np.float32)
    for part in (a, a[0], a[0, 0], a[:0], np.float32([0, -0.0, np.nan, 2])):
        found = vkpar.nonzero(device.array(part))
        for got, want in zip(found, np.nonzero(part), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    x = device.array(a)
    with pytest.raises(InvalidUsageError, match=r"vkpar\.where takes all"), vkpar.capture([device]):
        vkpar.nonzero(x)


def test_in_a_graph_and_again(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((2, 5000)).astype(np.float32)
    x = device.array(a)
    with vkpar.capture([device]) as graph:
        made = vkpar.sort(x), vkpar.cumsum(x, 1), vkpar.std(x, 0), vkpar.prod(x, 0)
    first = [vkpar.sort(x), vkpar.cumsum(x, 1), vkpar.std(x, 0), vkpar.prod(x, 0)]
    again = [vkpar.sort(x), vkpar.cumsum(x, 1), vkpar.std(x, 0), vkpar.prod(x, 0)]
    graph.launch().wait()
    for captured, eager, kept in zip(made, first, again, strict=True):
        np.testing.assert_array_equal(captured.numpy(), eager.numpy())
        np.testing.assert_array_equal(kept.numpy(), eager.numpy())
    graph.close()
    np.testing.assert_array_equal(first[0].numpy(), np.sort(a))
