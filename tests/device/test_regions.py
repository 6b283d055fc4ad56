"""Regions with steps on every driver: read and written as NumPy does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.ops.regions import keys, shapes
from helpers.process.threads import in_threads
from helpers.vulkan.parking import parked
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, env
from vkpar.arrays import transfer
from vkpar.arrays.region import select

pytestmark = [pytest.mark.device, pytest.mark.sampled(4)]
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128", "bfloat16"]
SMALL = {"max_buffer": 4096, "max_binding": 4096, "ring_bytes": 4096, "ring": "host"}
WAYS = ["chosen", "kernel", "runs"]


@pytest.fixture(scope="module")
def device(vk_device: vkpar.Device) -> Iterator[vkpar.Device]:
    """A device of each driver that copies through the ring, whether the host sees its memory or not."""
    with env.override(ring="host"):
        opened = vkpar.open_devices(str(vk_device.info.index))[0]
    with opened:
        yield opened


def force(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Let regions be packed in one way: by kernels, or by copies of runs."""
    if way != "chosen":
        monkeypatch.setattr(transfer, "packs", lambda *_box, **_device: way == "kernel")


def values_of(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return elements of any bits."""
    itemsize = vkpar.dtypes.resolve(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, itemsize), np.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    return raw.view(vkpar.dtypes.resolve(dtype).numpy).reshape(shape)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


def submitted(device: vkpar.Device) -> int:
    """Return how many submissions there were."""
    return sum(queue.last for queue in device.logical.queues)


def check(made: vkpar.Array, want: np.ndarray, key: Any, seed: int) -> None:
    """Read and write a region of ``made``, which holds ``want``; both hold the same afterwards."""
    same(made.read(key), want[key])
    part = values_of(want[key].shape, made.dtype.name, seed)
    made.write(part, key)
    want[key] = part
    same(made.numpy(), want)


# ---- as NumPy does ----


@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_regions_that_the_host_copies(
    reopen: Callable[..., vkpar.Device], data: st.DataObject, dtype: str, seed: int
) -> None:
    """Where the host sees the memory, across sub-buffers; through the ring elsewhere, and for small writes."""
    device = reopen(**{**SMALL, "ring": "auto", "ring_bytes": 1024})
    shape = data.draw(shapes())
    want = values_of(shape, dtype, seed)
    made = device.array(want, dtype)
    check(made, want, data.draw(keys(shape)), seed)
    want = values_of((40, 30, 7), dtype, seed)
    made = device.array(want, dtype)
    for turn in range(3):
        check(made, want, data.draw(keys(want.shape)), seed + turn)
    device.close()


@pytest.mark.parametrize("way", WAYS)
@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_regions_of_any_array(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject, dtype: str, seed: int
) -> None:
    force(monkeypatch, way)
    shape = data.draw(shapes())
    want = values_of(shape, dtype, seed)
    made = device.array(want, dtype)
    for turn in range(2):
        check(made, want, data.draw(keys(shape)), seed + turn)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str) -> None:
    force(monkeypatch, way)
    want = values_of((7, 9, 11), dtype, 1)
    made = device.array(want, dtype)
    for key in ((slice(1, None, 2), slice(2, 7), slice(3, None)), (..., slice(1, None, 3)), (slice(None), 4, 5)):
        check(made, want, key, 2)
        check(made[1:6, :, :], want[1:6], key, 3)
        same(made.numpy(), want)


@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_regions_of_views_of_views(device: vkpar.Device, data: st.DataObject, dtype: str, seed: int) -> None:
    want = values_of((9, 5, 7), dtype, seed)
    made = device.array(want, dtype)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    view, part = made[start:stop].reshape(-1, 7, 5), want[start:stop].reshape(-1, 7, 5)
    if len(part):
        row = data.draw(st.integers(0, len(part) - 1))
        low = data.draw(st.integers(0, 6))
        view, part = view[row, low:], part[row, low:]
    check(view, part, data.draw(keys(part.shape)), seed)
    same(made.numpy(), want)  # neighbours stay


def test_seven_axes(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "kernel")
    for dtype in ("uint8", "float16", "complex128"):
        want = values_of((3, 3, 3, 3, 3, 3, 3), dtype, 5)
        made = device.array(want, dtype)
        check(made, want, (slice(None, None, 2),) * 7, 6)
        check(made, want, (slice(1, None), slice(None, None, -2)) * 3, 7)


# ---- cells, bindings and sub-buffers ----


@pytest.fixture
def small(reopen: Callable[..., vkpar.Device]) -> vkpar.Device:
    """The same physical device with limits of a few KiB, so that little arrays cross them."""
    return reopen(**SMALL)


@pytest.mark.parametrize("way", WAYS)
@given(st.data(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_regions_across_all_limits(
    small: vkpar.Device, monkeypatch: pytest.MonkeyPatch, way: str, data: st.DataObject, dtype: str, seed: int
) -> None:
    force(monkeypatch, way)
    shape = data.draw(st.sampled_from([(20000,), (37, 211), (5, 13, 157), (101, 3, 3, 5), (2, 3, 5, 7, 11), (3, 4099)]))
    want = values_of(shape, dtype, seed)
    made = small.array(want, dtype)
    check(made, want, data.draw(keys(shape)), seed)


@pytest.mark.parametrize("way", ["kernel", "runs"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
def test_neighbours_stay_across_borders(
    small: vkpar.Device, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str
) -> None:
    force(monkeypatch, way)
    want = values_of((67, 331), dtype, 8)
    made = small.array(want, dtype)
    assert len(made.memory) > 1
    for key in ((slice(1, None, 2), slice(5, 320)), (slice(None), slice(3, None, 7)), (slice(None, None, -1), 330)):
        check(made[1:66], want[1:66], key, 9)
        same(made.numpy(), want)


def test_grids_are_folded(reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "kernel")
    narrow = reopen(ring="host")
    info = narrow.logical.info
    limits = replace(info.limits, max_workgroup_count=(3, 65535, 1))
    monkeypatch.setattr(narrow.logical, "info", replace(info, limits=limits))
    want = np.arange(40_000, dtype=np.int32).reshape(-1, 2)
    check(narrow.array(want), want, (slice(None), 1), 1)


# ---- submissions ----


@pytest.mark.parametrize("way", WAYS)
def test_a_region_that_fits_a_cell_takes_one_submission(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    force(monkeypatch, way)
    want = np.arange(300 * 400, dtype=np.float32).reshape(300, 400)
    made = device.array(want)
    for key in ((slice(3, 290, 3), slice(7, 390)), (slice(3, 290, 3), slice(7, None, 5)), (slice(None), 3)):
        out = np.empty_like(want[key], order="C")
        before = submitted(device)
        made.read(key, out=out)
        assert submitted(device) == before + 1
        made.write(-out, key)
        assert submitted(device) == before + 2
        want[key] *= -1
        same(made.numpy(), want)


@pytest.mark.parametrize("way", ["kernel", "runs"])
def test_a_region_of_just_a_cell(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    force(monkeypatch, way)
    device = reopen(ring_bytes=4 * 4096, ring="host")
    want = np.arange(3 * 32 * 64, dtype=np.float32).reshape(-1, 64)
    made = device.array(want)
    for rows in (31, 32, 33, 96):
        key = (slice(rows), slice(32))
        before = submitted(device)
        same(made.read(key), want[key].copy())
        assert submitted(device) == before + {31: 1, 32: 1, 33: 2, 96: 4}[rows]  # 31 rows of 128 bytes a cell


@pytest.mark.parametrize("step", [2, 3, 4, 16])
def test_gaps_do_not_count(reopen: Callable[..., vkpar.Device], step: int) -> None:
    device = reopen(ring_bytes=4 * 4096, ring="host")
    want = np.arange(32 * step * 32 * step, dtype=np.float32).reshape(32 * step, -1)
    made = device.array(want)
    for key in ((slice(None, None, step), slice(None, None, step)), (slice(1, None, step), slice(None, None, -step))):
        before = submitted(device)
        same(made.read(key), want[key].copy())
        assert submitted(device) == before + 1
        before = submitted(device)
        made.write(want[key], key)
        assert submitted(device) == before + 1
    same(made.numpy(), want)


def test_nothing_of_the_full_size_is_allocated(small: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small.zeros((64, 1024))
    for way in WAYS:
        force(monkeypatch, way)
        made.read((slice(None, None, 2), slice(None, None, 2)))
        made.write(np.ones((32, 1024), np.float32), (slice(None, None, 2), slice(None)))
        memory = small.memory()
        assert (memory.arrays, memory.staging) == (made.nbytes, 2 * SMALL["ring_bytes"])


def test_program_order(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = device.zeros((64, 64))
    odd, even = (slice(None), slice(1, None, 2)), (slice(None, None, 2), slice(8))
    for value in range(1, 13):
        force(monkeypatch, WAYS[1 + value % 2])
        made.write(np.full((64, 32), value), odd)
        made.write(np.full((32, 8), -value), even)
        doubled = vkpar.add(made, made)
        made.fill_zeros()
        want = np.zeros((64, 64), np.float32)
        want[odd] = value
        want[even] = -value
        want *= 2
        for key in (odd, even):
            same(doubled.read(key), np.ascontiguousarray(want[key]))
        assert not made.read(odd).any()


def test_a_source_may_change_after_the_call(device: vkpar.Device) -> None:
    made = device.zeros((50, 50))
    source = np.arange(625, dtype=np.float32).reshape(25, 25)
    want = source.copy()
    with parked(device):
        made.write(source, (slice(None, None, 2), slice(None, None, 2)))
        source[:] = -1
    same(made.read((slice(None, None, 2), slice(None, None, 2))), want)


def test_threads(device: vkpar.Device) -> None:
    want = np.arange(8 * 120 * 40, dtype=np.int32).reshape(8, 120, 40)
    made = device.array(want)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            step = int(rng.integers(1, 5))
            key = (seed, slice(None, None, step), slice(None, None, -step))
            part = made.read(key)
            assert part.shape == want[key].shape
            made.write(part, key)

    in_threads(work)
    same(made.numpy(), want)


# ---- host memory ----


def test_host_arrays(device: vkpar.Device) -> None:
    want = values_of((30, 40), "float32", 4)
    made = device.array(want)
    key = (slice(None, None, 3), slice(1, None, 2))
    with vkpar.host_array((10, 20), "float32", device) as h:
        assert made.read(key, out=h) is h
        same(h.numpy(), want[key].copy())
        h.numpy()[:] = 3
        made.write(h, key)
        want[key] = 3
        same(made.numpy(), want)
        rows = made.read((slice(5), slice(None, None, 2)), out=h.numpy()[3:8])
        same(rows, want[:5, ::2].copy())
        with pytest.raises(InvalidUsageError, match="cannot read"):
            made.read(slice(None, None, 3), out=h)


def test_sources_of_any_kind(device: vkpar.Device) -> None:
    made, want = device.zeros((6, 6)), np.zeros((6, 6), np.float32)
    key = (slice(None, None, 2), slice(1, None, 2))
    for source in ([[1, 2, 3]] * 3, np.arange(9, dtype=">i2").reshape(3, 3).T, np.arange(36.0).reshape(6, 6)[key]):
        made.write(source, key)
        want[key] = source
        same(made.numpy(), want)
    halves = device.zeros((4, 4), "bfloat16")
    halves.write(np.full((4, 2), 1.5, np.float32), (slice(None), slice(None, None, 2)))
    assert halves.read((0, slice(None, None, 2))).tolist() == [1.5, 1.5]


# ---- errors ----


def test_errors_before_anything_is_submitted(device: vkpar.Device) -> None:
    made = device.zeros((6, 4))
    device.synchronize()
    key = (slice(None, None, 2), slice(None, None, 2))
    read_only = np.ones((3, 2), np.float32)
    read_only.flags.writeable = False
    before = submitted(device)
    for bad in (6, (0, 4), (0, -5), (0, 0, 0), [0, 1], np.ones((6, 4), bool), True, 1.5, slice(None, None, 0)):
        with pytest.raises(InvalidUsageError):
            made.read(bad)
        with pytest.raises(InvalidUsageError):
            made.write(np.zeros(4), bad)
        with pytest.raises(InvalidUsageError):
            made[bad]
    with pytest.raises(InvalidUsageError, match="read-only"):
        made.read(key, out=read_only)
    for out in (np.empty((3, 3), np.float32), np.empty((3, 2)), np.empty((2, 3), np.float32).T, [0.0]):
        with pytest.raises(InvalidUsageError, match="cannot read"):
            made.read(key, out=out)
    for source in (1.0, np.zeros(6), np.zeros((2, 3)), np.zeros((6, 4)), [["a", "b"]] * 3):
        with pytest.raises(InvalidUsageError):
            made.write(source, key)
    assert submitted(device) == before
    assert read_only.all()


def test_regions_without_elements(device: vkpar.Device) -> None:
    made = device.zeros((6, 4))
    before = submitted(device)
    assert made.read((slice(3, 3), slice(None, None, 2))).shape == (0, 2)
    made.write(np.zeros((6, 0)), (..., slice(4, None)))
    assert made[:, 4:].shape == (6, 0)
    assert submitted(device) == before


def test_closed_arrays(device: vkpar.Device) -> None:
    made = device.zeros((6, 4))
    made.close()
    key = (slice(None), 1)
    with pytest.raises(InvalidUsageError, match="close"):
        made.read(key)
    with pytest.raises(InvalidUsageError, match="close"):
        made.write(np.zeros(6), key)


# ---- the way that is chosen ----


@pytest.mark.parametrize(
    ("shape", "key", "cpu", "gpu"),
    [
        ((4096, 4096), (slice(None), slice(2048)), False, True),
        ((4096, 4096), (slice(None), slice(31)), True, True),
        ((4096, 4096), (slice(None), slice(32)), False, True),
        ((4096, 4096), (slice(None, None, 2), slice(None, None, 2)), True, True),
        ((4096, 4096), (slice(None), 7), True, True),
        ((1 << 20, 4), (slice(None), slice(1, None)), True, True),
        ((64, 1 << 20), (slice(None), slice(1 << 19)), False, False),
    ],
)
def test_ways(shape: tuple[int, ...], key: Any, cpu: bool, gpu: bool) -> None:
    """Kernels pack what has short runs; what is short depends on the kind of device alone."""
    box = select(key, shape).box
    assert transfer.packs(box, 4, is_cpu=True) == cpu
    assert transfer.packs(box, 4, is_cpu=False) == gpu
