"""Elements of 8 and 16 bits side by side: functions of whole words, on every driver, against NumPy's of elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.planning import forget
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar import InvalidUsageError
from vkpar.ops.elementwise import cpu, ways

pytestmark = [pytest.mark.device, pytest.mark.sampled(6)]

TESTS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGIC = ("logical_and", "logical_or", "logical_xor")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
NAMES = ("add", "subtract", "multiply", "maximum", "minimum", *BITS)
CASES = [
    *((name, dtype) for dtype in ("uint8", "int8") for name in (*NAMES, *TESTS, *LOGIC)),
    *((name, dtype) for dtype in ("uint16", "int16") for name in NAMES),
    *((name, "bool") for name in (*NAMES, "equal", "not_equal", *LOGIC) if name != "subtract"),
]
Values = NDArray[Any]


@pytest.fixture(params=["usual", "flat", "two blocks"])
def runs(
    request: pytest.FixtureRequest, device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[int, str]]]:
    """What dispatches are made: how many elements a word has, and the kernel's form; on the roads of GPUs, too."""
    forget(device)
    made: list[tuple[int, str]] = []
    run = ways.Dispatch.run
    monkeypatch.setattr(
        ways.Dispatch, "run", lambda self, *given: made.append((self._run, self._form)) or run(self, *given)
    )
    if request.param != "usual":
        monkeypatch.setattr(cpu, "has_few_tests", lambda device, size, *, flat: False)
    if request.param == "flat":
        monkeypatch.setattr(cpu, "leaves_out_tests", lambda device, *, large: False)
    if request.param == "two blocks":
        monkeypatch.setattr(cpu, "blocks_of_halves", lambda device, *, large: 2)
    yield made
    forget(device)


def every_pair(rng: np.random.Generator, dtype: str) -> tuple[Values, Values]:
    """All pairs of bytes, whatever they are; of halves those of edges, and others."""
    if np.dtype(dtype).itemsize == 1:
        a, b = np.divmod(np.arange(1 << 16, dtype=np.uint32), 256)
        return a.astype(np.uint8).view(dtype), b.astype(np.uint8).view(dtype)
    edges = np.array([0, 1, 2, 0xFF, 0x100, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF], np.uint16)
    a, b = (rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint16) for _ in range(2))
    a[: edges.size**2], b[: edges.size**2] = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    return a.view(dtype), b.view(dtype)


def same(got: vkpar.Array, want: Values) -> None:
    """Compare bits: truth is 0 or 1."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy().view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_pair(
    device: vkpar.Device, rng: np.random.Generator, runs: list[tuple[int, str]], name: str, dtype: str
) -> None:
    a, b = every_pair(rng, dtype)
    x, y = device.array(a), device.array(b)
    want = getattr(np, name)(a, b)
    for out in (None, None, device.zeros(x.shape, want.dtype)):
        same(getattr(vkpar, name)(x, y, out=out), want)
    assert runs
    assert {run for run, _ in runs} == {4 // np.dtype(dtype).itemsize}


@pytest.mark.parametrize(("name", "dtype"), CASES[::5])
@given(data=st.data())
def test_any_place(device: vkpar.Device, name: str, dtype: str, data: st.DataObject) -> None:
    """Any number of elements from anywhere on, into a part of an array, of which the rest stays."""
    count, most = data.draw(st.integers(0, 4200)), 8
    firsts = data.draw(st.lists(st.sampled_from((0, 0, 4, 1, 2, 3)), min_size=3, max_size=3))
    beyond = data.draw(st.sampled_from((0, 5)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = (rng.integers(0, 256, 2 * (count + most)).astype(np.uint8).view(dtype)[: count + most] for _ in range(2))
    if dtype == "bool":
        a, b = a.view(np.uint8) > 127, b.view(np.uint8) > 127
    first, second = a[firsts[0] :][:count], b[firsts[1] :][:count]
    want = getattr(np, name)(first, second)
    around = np.ones(firsts[2] + count + beyond, want.dtype)
    x, y, out = (device.array(values) for values in (a, b, around))
    x, y, part = x[firsts[0] :][:count], y[firsts[1] :][:count], out[firsts[2] :][:count]
    around[firsts[2] :][:count] = want
    getattr(vkpar, name)(x, y, out=part)
    same(out, around)
    same(getattr(vkpar, name)(x, y), want)
    if want.dtype == dtype and name != "subtract":
        same(getattr(vkpar, name)(x, y, out=y), want)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_numbers(device: vkpar.Device, rng: np.random.Generator, runs: list[tuple[int, str]], dtype: str) -> None:
    """Also those that the type does not hold, to which elements are compared; after those that it holds, and before."""
    a = every_pair(rng, dtype)[0][:1003]
    x = device.array(a)
    limits = np.iinfo(dtype)
    for number in (3, int(limits.max), int(limits.min), 0):
        for name in ("add", "subtract", "maximum", "bitwise_xor"):
            same(getattr(vkpar, name)(x, number), getattr(np, name)(a, a.dtype.type(number)))
            same(getattr(vkpar, name)(number, x), getattr(np, name)(a.dtype.type(number), a))
    for number in (3, 70000, int(limits.max), -70000, int(limits.min), True):
        for name in ("less", "greater_equal", "equal"):
            want = getattr(np, name)(a.astype(np.int64), number)
            same(getattr(vkpar, name)(x, number), want)
        same(vkpar.logical_and(x, number), np.logical_and(a, number))
    same(~x, ~a)
    same(vkpar.logical_not(x), np.logical_not(a))
    same(x + device.array(a[:1]), a + a[:1])
    with pytest.raises(InvalidUsageError, match=f"70000 is no {dtype}"):
        x + 70000
    assert {1, 4 // x.dtype.itemsize} == {run for run, _ in runs}


def test_truth(device: vkpar.Device, runs: list[tuple[int, str]]) -> None:
    """Bytes of truth values that are neither 0 nor 1 are true."""
    a = np.arange(256, dtype=np.uint8).view(bool)
    x = device.array(a)
    same(vkpar.logical_not(x), np.logical_not(a))
    same(~x, ~a)
    for value in (True, False):
        for name in (*BITS, *LOGIC, "equal", "add", "maximum"):
            same(getattr(vkpar, name)(x, value), getattr(np, name)(a, value))
    assert {run for run, _ in runs} == {4}
    with vkpar.capture([device]) as graph:
        made = ~(x & ~vkpar.logical_or(x, x))
    graph.launch().wait()
    same(made, np.ones(256, bool))
    graph.close()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int16", "uint16"])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 64, 4095, 4096, 4099])
def test_filled(device: vkpar.Device, runs: list[tuple[int, str]], dtype: str, count: int) -> None:
    """Once more by plan, with another number; what lies beside a part stays."""
    x, a = device.zeros(count + 9, dtype), np.zeros(count + 9, dtype)
    for number in (1, 0, -3 if dtype[0] == "i" else 1):
        for first in (0, 4, 1):
            x[first : first + count].fill(number)
            a[first : first + count] = number
            same(x, a)
    whole = device.zeros(count, dtype)
    whole.fill(1)
    same(whole, np.ones(count, dtype))
    assert not count or 4 // x.dtype.itemsize in {run for run, _ in runs}


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int16"])
def test_views(device: vkpar.Device, rng: np.random.Generator, runs: list[tuple[int, str]], dtype: str) -> None:
    """Views in other orders, with gaps and broadcast; no elements; an expression with names between."""
    a = rng.integers(0, 2, (6, 1, 12)).astype(dtype)
    x = device.array(a)
    for view, seen in (
        (x[2:], a[2:]),
        (x.T, a.T),
        (x[:, :, ::2], a[:, :, ::2]),
        (x[..., 1:], a[..., 1:]),
        (x[::-1], a[::-1]),
    ):
        same((view ^ view).contiguous(), seen ^ seen)
        same((view | view).contiguous(), seen | seen)
    same(x & x[:1], a & a[:1])
    same(x | x.reshape(1, 6, 12), a | a.reshape(1, 6, 12))
    same(x[:0] ^ x[:0], a[:0])
    made = vkpar.elementwise("_t = a & b; y = _t ^ b")(x, x)
    np.testing.assert_array_equal(made.numpy(), (a & a) ^ a)
    assert {1, 4 // x.dtype.itemsize} == {run for run, _ in runs}
