"""Copies of views: of long rows by CPU drivers' own copies, of many axes by a kept dispatch; as NumPy assigns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import env
from vkpar.arrays.rearrange import goes_by_rows
from vkpar.ops.elementwise import ways

pytestmark = pytest.mark.device
SHAPE = (70, 9, 2000)
VIEWS: dict[str, Callable[[Any], Any]] = {
    "parts of rows": lambda x: x[:, :, 3:1998],
    "backwards": lambda x: x[::-1, ::-2, 1:],
    "axes in another order": lambda x: x.transpose(1, 0, 2)[:, 5:, 7:],
    "one row often": lambda x: (np.broadcast_to if isinstance(x, np.ndarray) else spread)(
        x[:1, :, :1001], (140, 9, 1001)
    ),
    "one axis": lambda x: x.reshape(-1, 250)[:, :-1],
}


def spread(x: vkpar.Array, shape: tuple[int, ...]) -> vkpar.Array:
    return x.broadcast_to(shape)


def values(dtype: str) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(3).integers(0, 256, (*SHAPE, np.dtype(dtype).itemsize), np.uint8)
    return raw.view(dtype).reshape(SHAPE)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_rows_go_where_they_belong(device: vkpar.Device, dtype: str, view: Callable[[Any], Any]) -> None:
    host = np.tile(values(dtype), (2, 1, 1)) if dtype == "uint8" else values(dtype)
    source, want = device.array(host), view(host)
    seen = view(source)
    assert seen.copy().numpy().tobytes() == want.tobytes()
    around = np.ones((*want.shape[:-1], want.shape[-1] + 5), dtype)
    target = device.array(around)
    around[..., 1:-4] = want
    inner = target[..., 1:-4]
    if device.info.type == "cpu":
        assert goes_by_rows(seen, inner)
    inner.copy_from(seen)
    assert target.numpy().tobytes() == around.tobytes()
    packed = seen.copy()
    target.fill_zeros()
    inner.copy_from(packed)
    assert target[..., 1:-4].numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_elements_of_64_bits_in_other_orders(device: vkpar.Device, dtype: str) -> None:
    """Bit for bit, NaN too: backwards, turned, repeated, and every second one; into rows, and into steps."""
    raw = np.random.default_rng(4).integers(0, 256, (520, 530 * 8), np.uint8)
    host = raw.view(dtype)
    a = device.array(host)
    views: list[Callable[[Any], Any]] = [lambda x: x[:, ::-1], lambda x: x.T, lambda x: x[1:, ::2]]
    for view in views:
        assert view(a).copy().numpy().tobytes() == view(host).tobytes()
        target = device.zeros((view(host).shape[0] + 1, view(host).shape[1] + 3), dtype)
        inner = target[1:, 1:-2]
        for _ in range(2):  # the second time by a plan
            inner.copy_from(view(a))
        assert inner.numpy().tobytes() == view(host).tobytes()
        assert not target[0].numpy().any()
        assert not target[:, -2:].numpy().any()
    assert vkpar.repeat(a, 3, 1).numpy().tobytes() == np.repeat(host, 3, 1).tobytes()
    for _ in range(2):
        beside = vkpar.concatenate([a.T, a[::-1, ::-1].T], 1)
        assert beside.numpy().tobytes() == np.concatenate([host.T, host[::-1, ::-1].T], 1).tobytes()
    steps = device.zeros((530, 520, 2), dtype)
    steps[..., 1].copy_from(a.T)
    assert steps[..., 1].numpy().tobytes() == host.T.tobytes()
    assert not steps[..., 0].numpy().any()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "bfloat16", "float32", "int64"])
@pytest.mark.parametrize("count", [2, 3])
def test_arrays_beside_each_other(device: vkpar.Device, dtype: str, count: int) -> None:
    """Along the last axis, of whole arrays and of views, into other memory or rows of it; and repeated."""
    kind = vkpar.dtypes.resolve(dtype).numpy
    raw = np.random.default_rng(5).integers(0, 2 if dtype == "bool" else 256, (380, 401 * kind.itemsize), np.uint8)
    host = raw.view(kind)
    a = device.array(host)
    wanted = np.stack([host, host[::-1], host][:count], -1)
    out = device.zeros((381, 401, count), dtype)
    assert vkpar.stack([a, a[::-1], a][:count], -1).numpy().tobytes() == wanted.tobytes()
    vkpar.stack([a, a[::-1], a][:count], -1, out=out[1:])
    assert out[1:].numpy().tobytes() == wanted.tobytes()
    assert not out[0].numpy().astype(np.float32).any()
    assert vkpar.repeat(a[:, 1:], count, 1).numpy().tobytes() == np.repeat(host[:, 1:], count, 1).tobytes()
    with pytest.raises(vkpar.InvalidUsageError):
        vkpar.stack([a] * count, -1, out=a)
    with vkpar.capture([device]) as graph:
        caught = vkpar.stack([a, a[::-1], a][:count], -1)
    graph.launch().wait()
    assert caught.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_what_no_binding_holds(device: vkpar.Device, dtype: str) -> None:
    """Results of several bindings and buffers, of operands of one and of several."""
    limits = {"max_buffer": 1 << 21, "max_binding": (1 << 20) + 256}
    with env.override(**limits), vkpar.open_devices(str(device.info.index))[0] as small:
        for columns in (450, 2500):
            raw = np.random.default_rng(6).integers(0, 256, (301, columns * np.dtype(dtype).itemsize), np.uint8)
            host = raw.view(dtype)
            a = small.array(host)
            for count in (2, 3):
                wanted = np.stack([host, host[::-1], host][:count], -1)
                assert vkpar.stack([a, a[::-1], a][:count], -1).numpy().tobytes() == wanted.tobytes()
                out = small.zeros((302, columns, count), dtype)
                vkpar.stack([a, a[::-1], a][:count], -1, out=out[1:])
                assert out[1:].numpy().tobytes() == wanted.tobytes()
                assert vkpar.repeat(a, count, 1).numpy().tobytes() == np.repeat(host, count, 1).tobytes()
            assert a[:, ::-1].contiguous().numpy().tobytes() == host[:, ::-1].tobytes()
            assert vkpar.contiguous(a.T).numpy().tobytes() == host.T.tobytes()
            if dtype == "int64" and columns == 450:  # words of 32 bits have a binding each, and are sorted one by one
                np.testing.assert_array_equal(vkpar.argsort(a).numpy(), np.argsort(host, kind="stable"))


def test_few_bytes_and_short_rows_go_by_kernels(device: vkpar.Device) -> None:
    a = device.zeros((5000, 300))
    assert not goes_by_rows(a[:, :100], device.empty((5000, 100)))
    assert not goes_by_rows(a[:50, :200], device.empty((50, 200)))
    assert not goes_by_rows(a[:, ::2], device.empty((5000, 150)))
    assert not goes_by_rows(a.T, device.empty((300, 5000)))


def test_rows_wait_for_what_writes_and_reads_them(device: vkpar.Device) -> None:
    host = np.arange(1100 * 512, dtype=np.int32).reshape(1100, 512)
    a, made = device.array(host), device.zeros((1100, 520), "int32")
    for turn in range(4):
        vkpar.add(a, 1, out=a)
        made[:, turn : turn + 512].copy_from(a)
        vkpar.multiply(a, 3, out=a)
        a.copy_from(made[:, turn : turn + 512])
    want = np.zeros((1100, 520), np.int32)
    for turn in range(4):
        want[:, turn : turn + 512] = host + turn + 1
    assert (made.numpy() == want).all()
    assert (a.numpy() == host + 4).all()


def test_more_rows_than_go_at_once_and_graphs(device: vkpar.Device) -> None:
    host = np.random.default_rng(4).integers(0, 256, (20_000, 200), np.uint8)
    a = device.array(host)
    assert (vkpar.roll(a, 3, 1).numpy() == np.roll(host, 3, 1)).all()
    with vkpar.capture([device]) as graph:
        made = vkpar.pad(a, 1, "edge")
        again = vkpar.flip(made, 0).contiguous()
    for _ in range(2):
        graph.launch().wait()
        assert (again.numpy() == np.pad(host, 1, "edge")[::-1]).all()
        host = host[::-1].copy()
        a.write(host)
    graph.close()


# ---- views of many axes: one dispatch, kept ----

SIX = ((2, 3, 3, 3, 7, 7), (3 * 81, 81, 9, 1, 9, 1))  # windows of 3 x 3 of images of 9 x 9


def windows_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3)).transpose(0, 1, 4, 5, 2, 3)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_windows_are_copied_by_a_kept_dispatch(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """The second copy of a form, from other memory and to other memory, is as right as the first."""
    for turn in range(3):
        x = rng.integers(0, 100, (2, 3, 9, 9)).astype(dtype)
        held = device.empty(x.size + 64, dtype)
        a = held[64:].reshape(x.shape) if turn % 2 else device.empty(x.shape, dtype)
        a.write(x)
        np.testing.assert_array_equal(a.strided(*SIX).copy().numpy(), windows_of(x))
        target = device.zeros((2, 3, 5, 9, 9, 4), dtype)
        part = rng.integers(0, 100, (2, 3, 3, 7, 7, 2)).astype(dtype)
        target[:, :, 1:-1, 1:-1, 1:-1, ::2].copy_from(device.array(part))
        expected = np.zeros(target.shape, dtype)
        expected[:, :, 1:-1, 1:-1, 1:-1, ::2] = part
        np.testing.assert_array_equal(target.numpy(), expected)


def test_windows_in_graphs_and_within_calls(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = [rng.standard_normal((2, 3, 9, 9)).astype(np.float32) for _ in range(2)]
    a = device.array(x[0])
    with vkpar.capture([device]) as graph:
        made = a.strided(*SIX).copy()
        top = vkpar.max(a.strided(*SIX), axis=5)
    assert graph.stats().operations == 3  # a copy, and one before the extremes
    for values in x:
        a.write(values)
        graph.launch().wait()
        np.testing.assert_array_equal(made.numpy(), windows_of(values))
        np.testing.assert_array_equal(top.numpy(), windows_of(values).max(5))
        np.testing.assert_array_equal(vkpar.max(a.strided(*SIX), axis=5).numpy(), windows_of(values).max(5))
    graph.close()


def test_copies_of_many_axes_within_an_array(device: vkpar.Device, rng: np.random.Generator) -> None:
    """As NumPy has it: what is read is what was there before."""
    x = rng.integers(0, 100, (2, 3, 2, 3, 2, 8)).astype(np.int32)
    for _ in range(2):
        a, expected = device.array(x), x.copy()
        a[:, :, :, 1:, :, 1:].copy_from(a[:, :, :, :-1, :, :-1])
        expected[:, :, :, 1:, :, 1:] = x[:, :, :, :-1, :, :-1]
        np.testing.assert_array_equal(a.numpy(), expected)
        turned = a[:, ::-1, :, ::-1, :, ::-2]
        np.testing.assert_array_equal(turned.copy().numpy(), expected[:, ::-1, :, ::-1, :, ::-2])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["int64", "float64", "uint64"])
@pytest.mark.parametrize("width", [2, 3, 4, 6, 16, 250, 1024])
@pytest.mark.parametrize("start", [0, 1, 2, 4, 5])
def test_every_second_of_64_bits(device: vkpar.Device, dtype: str, width: int, start: int) -> None:
    """Whole fours are read where they begin at fours; what lies between is no element, nor what lies beside."""
    height = (1 << 17) // width + 3
    for beside in (8, 6, 5):  # rows begin at multiples of four, of two, and of one
        raw = np.random.default_rng(width).integers(0, 256, (2 * height, 8 * (2 * width + beside)), np.uint8)
        host = raw.view(dtype)
        for rows in (slice(height), slice(height, None), slice(None, None, -2)):
            source, want = device.array(host), host[rows, start : start + 2 * width : 2]
            seen = source[rows, start : start + 2 * width : 2]
            for _ in range(2):  # the second time by a plan
                assert seen.contiguous().numpy().tobytes() == want.tobytes()
            around = np.ones((height, width + 7), dtype)
            target = device.array(around)
            target[:, 3:-4] = seen
            around[:, 3:-4] = want
            assert target.numpy().tobytes() == around.tobytes()


def test_every_second_of_64_bits_of_one_axis_and_of_more(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    picked: list[bool] = []
    picks = ways.Dispatch.picks_long
    monkeypatch.setattr(ways.Dispatch, "picks_long", lambda self: picked.append(picks(self)) or picked[-1])
    host = np.random.default_rng(3).integers(0, 1 << 63, 3 << 17, np.uint64)
    for count in (host.size, host.size - 1, host.size - 2, host.size - 5):
        source = device.array(host[:count])
        for start in (0, 1, 4):
            assert source[start::2].contiguous().numpy().tobytes() == host[start:count:2].tobytes()
    assert (True in picked) == device.info.tests_lanes
    cube = host.reshape(3, -1, 256)
    assert device.array(cube)[:, 1:, 1::2].contiguous().numpy().tobytes() == cube[:, 1:, 1::2].tobytes()
    same = device.array(host)
    with vkpar.capture([device]) as graph:
        made = same[1::2].contiguous()
    for turn in range(2):
        same.write(host + np.uint64(turn))
        graph.launch()
        assert made.numpy().tobytes() == (host[1::2] + np.uint64(turn)).tobytes()
    graph.close()
    same[: host.size // 2] = same[::2]  # of its own memory
    assert same[: host.size // 2].numpy().tobytes() == (host[::2] + np.uint64(1)).tobytes()
    empty = device.zeros((0, 8), "int64")
    assert empty[:, ::2].contiguous().shape == (0, 4)
