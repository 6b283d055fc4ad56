"""Arrays on every driver: whatever NumPy holds goes up and comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.process.threads import in_threads
from helpers.vulkan.parking import parked
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, env

pytestmark = pytest.mark.device
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64"]


def same(array: vkpar.Array, want: np.ndarray) -> None:
    """Check that an array reads back as ``want``, bit for bit."""
    got = array.numpy()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(device: vkpar.Device, dtype: str, rng: np.random.Generator) -> None:
    want = rng.integers(0, 256, (7, 3, np.dtype(dtype).itemsize), np.uint8)
    want = (want % 2).astype(bool)[..., 0] if dtype == "bool" else want.view(dtype)[..., 0]
    made = device.array(want)
    assert (made.shape, made.size, made.ndim, len(made)) == ((7, 3), 21, 2, 7)
    assert made.dtype == dtype
    assert made.nbytes == want.nbytes
    same(made, np.ascontiguousarray(want))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 255, 256, 257, 65537])
def test_any_size(device: vkpar.Device, count: int) -> None:
    for dtype in ("uint8", "int16", "float32"):
        want = np.arange(count).astype(dtype)
        same(device.array(want), want)
        same(device.zeros(count, dtype), np.zeros(count, dtype))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4), (1, 1, 1, 1, 1)])
def test_any_shape(device: vkpar.Device, shape: tuple[int, ...]) -> None:
    want = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    made = device.array(want)
    assert (made.shape, made.ndim, made.size) == (shape, len(shape), want.size)
    same(made, want)
    assert device.empty(shape).numpy().shape == shape
    same(device.zeros(shape, np.int32), np.zeros(shape, np.int32))


def test_numbers_and_lists(device: vkpar.Device) -> None:
    same(device.array(2.5), np.array(2.5, np.float32))
    same(device.array([[1, 2], [3, 4]], "float32"), np.array([[1, 2], [3, 4]], np.float32))
    same(device.array(np.float32(7)), np.array(7, np.float32))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: x[:, 1:3],
        lambda x: x[1:2, :, None],
        lambda x: np.broadcast_to(x[0], (5, 6)),
        np.asfortranarray,
        lambda x: x[3:3],
    ],
)
def test_strided_sources(device: vkpar.Device, view: Callable[[np.ndarray], np.ndarray]) -> None:
    source = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    same(device.array(source), np.ascontiguousarray(source))
    target = device.empty(source.shape)
    target.write(source)
    same(target, np.ascontiguousarray(source))


def test_read_only_and_big_endian_sources(device: vkpar.Device) -> None:
    source = np.arange(9, dtype=">f4")
    source.flags.writeable = False
    same(device.array(source), np.arange(9, dtype=np.float32))
    same(device.array(np.arange(9, dtype=">i2")[::-2]), np.arange(9, dtype=np.int16)[::-2].copy())
    same(device.array(np.frombuffer(b"\1\0\2\0", "<u2")), np.array([1, 2], np.uint16))


def test_a_source_may_change_after_the_call(device: vkpar.Device) -> None:
    source = np.arange(100_000, dtype=np.float32)
    with parked(device):
        made = device.array(source)
        source[:] = -1
    same(made, np.arange(100_000, dtype=np.float32))


def test_bfloat16(device: vkpar.Device) -> None:
    values = np.array([0.0, -0.0, 1.0, 1.00390625, 1.01171875, np.inf, np.nan, 1e-40], np.float32)
    made = device.array(values, "bfloat16")
    assert made.dtype == vkpar.bfloat16
    halves = made.numpy()
    assert halves.dtype == ml_dtypes.bfloat16
    assert halves.view(np.uint16)[:7].tolist() == [0, 0x8000, 0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x7FC0]
    for source in (halves, values):
        same(device.array(source, "bfloat16"), halves)
    made.write(np.zeros(8, np.float32))
    same(made, np.zeros(8, halves.dtype))
    same(device.array(np.array([1, 300], np.uint16), "bfloat16"), np.array([1, 300], halves.dtype))


def test_dtype_converts_the_source(device: vkpar.Device) -> None:
    same(device.array(np.arange(5), "float16"), np.arange(5, dtype=np.float16))
    same(device.array(np.array([0.0, 2.0]), bool), np.array([False, True]))


def test_empty_and_zeros_follow_their_arguments(device: vkpar.Device) -> None:
    assert device.empty(3).dtype == np.float32
    assert device.zeros(np.int64(3), "bf16").dtype == vkpar.bfloat16
    assert device.empty([2, 3], np.int8).shape == (2, 3)


@pytest.mark.parametrize("shape", [-1, (2, -1), (1.5,), "ab", (None,)])
def test_bad_shapes(device: vkpar.Device, shape: object) -> None:
    with pytest.raises(InvalidUsageError):
        device.empty(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [None, 1.5, 3.0, np.float32(2), (2, np.nan), [[1, 2]], np.array(3.0), {"a": 1}])
def test_shapes_that_are_no_shape(device: vkpar.Device, shape: object) -> None:
    with pytest.raises(InvalidUsageError):
        device.empty(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [1 << 70, (1 << 40, 1 << 40), 1 << 45])
def test_shapes_beyond_all_memory(device: vkpar.Device, shape: Any) -> None:
    with pytest.raises((UnsupportedError, vkpar.OutOfMemoryError)):
        device.empty(shape)


@pytest.mark.parametrize("source", [["a"], object(), [None], np.array(["x"]), [[1, 2], [3]], [1 << 70]])
def test_sources_that_are_no_numbers(device: vkpar.Device, source: Any) -> None:
    for dtype in (None, "float32", "bfloat16", "bool"):
        with pytest.raises(InvalidUsageError):
            device.array(source, dtype)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(InvalidUsageError):
            device.zeros(3, dtype).write(source)


def test_what_is_no_array(device: vkpar.Device) -> None:
    made = device.zeros(4)
    for wrong in (None, np.zeros(4, np.float32), [1.0]):
        for use in (
            lambda wrong: vkpar.copy(made, wrong),
            lambda wrong: vkpar.copy(wrong, made),
            made.copy_from,
            made.to,
        ):
            with pytest.raises(InvalidUsageError):
                use(wrong)
    for wrong in ([0.0] * 4, b"0123456789abcdef", "x"):
        with pytest.raises(InvalidUsageError, match="cannot read into"):
            made.read(out=wrong)  # type: ignore[arg-type]


# ---- views ----


def test_rows_and_slices_are_views(device: vkpar.Device) -> None:
    want = np.arange(30, dtype=np.float32).reshape(6, 5)
    made = device.array(want)
    same(made[2], want[2])
    same(made[-1], want[-1])
    same(made[1:4], want[1:4])
    same(made[:-2][1:], want[:-2][1:])
    same(made[4:2], want[4:2])
    same(made[10:], want[10:])
    same(made[np.int64(3)], want[3])
    same(made[2][3:5], want[2][3:5])
    same(made[2, 3:5], want[2, 3:5])
    same(made[1, 2], want[1, 2])
    same(made[1:2, 3:4], want[1:2, 3:4])
    same(made[..., :], want)
    same(made[-2:, :][1, -3:], want[-1, -3:])
    same(made[()], want)
    made[1:3].write(-want[1:3])
    want[1:3] *= -1
    same(made, want)
    made[3].fill_zeros()
    want[3] = 0
    same(made, want)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_neighbours_of_a_written_view_stay(device: vkpar.Device, dtype: str) -> None:
    want = np.arange(1, 92).astype(dtype)
    for start, stop in [(0, 1), (1, 2), (3, 10), (7, 7), (89, 91), (1, 90)]:
        made = device.array(want)
        made[start:stop].write(np.full(stop - start, 77, dtype))
        changed = want.copy()
        changed[start:stop] = 77
        same(made, changed)
        made[start:stop].fill_zeros()
        changed[start:stop] = 0
        same(made, changed)


@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 12), st.integers(0, 12))
def test_slices_are_those_of_numpy(device: vkpar.Device, start: int, stop: int, low: int, high: int) -> None:
    want = np.arange(64 * 3, dtype=np.uint8).reshape(64, 3)
    same(device.array(want)[start:stop][low:high], want[start:stop][low:high])


@pytest.mark.parametrize("key", [6, -7, "a", 1.0, (0, 2), (0, 0, 0), [0, 1], True, slice("a", None)])
def test_keys_that_are_refused(device: vkpar.Device, key: object) -> None:
    with pytest.raises(InvalidUsageError):
        device.zeros((6, 2))[key]
    with pytest.raises(InvalidUsageError):
        device.array(1.0)[0]


def test_a_number_has_no_length(device: vkpar.Device) -> None:
    with pytest.raises(InvalidUsageError):
        len(device.array(1.0))


@pytest.mark.parametrize("shape", [(6, 2), (12,), (3, -1), (-1,), (2, 2, 3), 12, -1, np.int64(12), (1, 12, 1)])
def test_reshape(device: vkpar.Device, shape: object) -> None:
    want = np.arange(12, dtype=np.int16).reshape(3, 4)
    made = device.array(want)
    same(made.reshape(shape), want.reshape(shape))  # type: ignore[call-overload]
    if isinstance(shape, tuple):
        same(made.reshape(*shape), want.reshape(shape))
    made.reshape(12)[5:7].write([90, 91])
    assert list(made.numpy().reshape(-1)[4:8]) == [4, 90, 91, 7]


@pytest.mark.parametrize("shape", [(5,), (-1, 5), (-1, -1), ("a",), 7])
def test_reshape_to_another_size(device: vkpar.Device, shape: object) -> None:
    with pytest.raises(InvalidUsageError):
        device.zeros((3, 4)).reshape(shape)


def test_reshape_without_elements(device: vkpar.Device) -> None:
    assert device.zeros((0, 3)).reshape(5, 0).shape == (5, 0)
    assert device.array(3.0).reshape(1, 1).shape == (1, 1)
    same(device.array([7.0]).reshape(()), np.array(7.0, np.float32))


# ---- read and write ----


def test_read_into_an_array_of_the_caller(device: vkpar.Device) -> None:
    want = np.arange(12, dtype=np.float32).reshape(3, 4)
    target = np.empty_like(want)
    assert device.array(want).read(out=target) is target
    assert np.array_equal(target, want)


def test_bad_download_targets(device: vkpar.Device) -> None:
    made = device.zeros((3, 4))
    read_only = np.ones((3, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(InvalidUsageError, match="read-only"):
        made.read(out=read_only)
    assert read_only.all()
    for target in (np.empty((4, 3), np.float32), np.empty((3, 4)), np.empty((3, 4), ">f4")):
        with pytest.raises(InvalidUsageError, match="cannot read"):
            made.read(out=target)
    transposed = np.empty((4, 3), np.float32).T
    with pytest.raises(InvalidUsageError, match="contiguous"):
        made.read(out=transposed)
    empty = np.empty((0,), np.float32)
    empty.flags.writeable = False
    with pytest.raises(InvalidUsageError, match="read-only"):
        device.zeros(0).read(out=empty)


def test_writes_of_another_shape(device: vkpar.Device) -> None:
    for source in (np.zeros((4, 3)), np.zeros(12), 1.0):
        with pytest.raises(InvalidUsageError, match="cannot write"):
            device.zeros((3, 4)).write(source)


def test_copies(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    want = np.arange(1001, dtype=np.float32)
    source, other = device.array(want), reopen()
    assert source.to(device) is source
    with pytest.raises(InvalidUsageError, match=r"opened vkpar\.Device, not 'float16': astype\(dtype\) converts"):
        source.to("float16")  # type: ignore[arg-type]
    moved = source.to(other)
    assert moved.device is other
    same(moved, want)
    target = device.zeros(1001)
    vkpar.copy(source, target)
    same(target, want)
    vkpar.copy(source[1:4], target[5:8])
    want[5:8] = want[1:4]
    same(target, want)
    same(source[3:7].copy(), np.arange(3, 7, dtype=np.float32))
    vkpar.copy(device.zeros(0), other.zeros(0))
    for wrong in (device.zeros(3), device.zeros(1001, "int32"), device.zeros((7, 143))):
        with pytest.raises(InvalidUsageError, match="must agree"):
            vkpar.copy(source, wrong)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_copies_that_overlap(device: vkpar.Device, dtype: str, source: int, target: int, count: int) -> None:
    want = np.random.default_rng(count).integers(0, 256, 1000).astype(dtype)
    count = min(count, 1000 - max(source, target))
    made = device.array(want)
    vkpar.copy(made[source : source + count], made[target : target + count])
    want[target : target + count] = want[source : source + count].copy()
    same(made, want)


def test_copies_to_themselves(device: vkpar.Device) -> None:
    want = np.arange(1000, dtype=np.float32)
    made = device.array(want)
    device.synchronize()
    submitted = device.logical.compute.last
    vkpar.copy(made, made)
    vkpar.copy(made, made[:])
    vkpar.cast(made, made.dtype, out=made[:])
    made.reshape(10, 100)[3:5].copy_from(made[300:500])
    assert device.logical.compute.last == submitted
    same(made, want)
    vkpar.copy(made[0:900], made[100:1000])
    want[100:1000] = want[0:900].copy()
    same(made, want)


@pytest.mark.parametrize(
    ("dtype", "start", "stop", "on_device"),
    [
        ("float32", 3, 10, True),
        ("float32", 0, 100, True),
        ("float16", 2, 8, True),
        ("float16", 1, 8, False),
        ("float16", 2, 9, False),
        ("float16", 2, 99, True),
        ("uint8", 96, 99, True),
        ("uint8", 97, 99, False),
        ("uint8", 0, 99, True),
    ],
)
def test_where_views_are_filled(
    device: vkpar.Device, dtype: str, start: int, stop: int, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = np.arange(1, stop + 1 if stop >= 99 else 100).astype(dtype)
    made = device.array(want)
    uploads: list[object] = []
    upload = device.logical.staging.upload
    monkeypatch.setattr(device.logical.staging, "upload", lambda *given: (uploads.append(given), upload(*given)))
    made[start:stop].fill_zeros()
    want[start:stop] = 0
    same(made, want)
    assert bool(uploads) != on_device


@pytest.mark.parametrize("ring", ["auto", "host"])
def test_arrays_larger_than_the_staging_ring(
    ring: str, reopen: Callable[..., vkpar.Device], rng: np.random.Generator
) -> None:
    small = reopen(ring_bytes=4096, ring=ring)
    for count in (1023, 1024, 1025, 4 * 1024, 50_001):
        want = rng.integers(0, 256, count, np.uint8)
        same(small.array(want), want)
    made, want = small.zeros((300, 33), np.uint8), np.zeros((300, 33), np.uint8)
    made[7:250].write(want[7:250] + 5)
    want[7:250] += 5
    same(made, want)


@pytest.mark.parametrize("ring", ["auto", "host"])
def test_ring_of_less_than_a_cell(ring: str, reopen: Callable[..., vkpar.Device]) -> None:
    tiny = reopen(ring_bytes=1, ring=ring)
    same(tiny.array(np.arange(5000, dtype=np.int16)), np.arange(5000, dtype=np.int16))


def test_program_order(device: vkpar.Device) -> None:
    made = device.zeros(1000)
    for value in range(20):
        made.write(np.full(1000, value, np.float32))
        half = device.empty(1000)
        half.copy_from(made)
        made.fill_zeros()
        assert np.all(half.numpy() == value)
    assert not made.numpy().any()


def test_threads_with_their_own_arrays(device: vkpar.Device) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            want = rng.integers(0, 1 << 30, int(rng.integers(1, 3000)), np.int32)
            same(device.array(want), want)

    in_threads(work)


def test_memory_of_dropped_arrays_is_used_again(reopen: Callable[..., vkpar.Device]) -> None:
    fresh = reopen()
    for value in range(40):
        made = fresh.array(np.full(1 << 18, value, np.float32))
        assert made.numpy()[-1] == value
    used = fresh.logical.allocator.used
    assert used <= 3 * (1 << 20) + 2 * env.get().ring_bytes
    del made
    gc.collect()
    assert fresh.memory().arrays == 0
    assert fresh.logical.allocator.used <= 2 * env.get().ring_bytes


def test_a_view_keeps_its_memory(device: vkpar.Device) -> None:
    view = device.array(np.arange(1000, dtype=np.int32))[500:]
    gc.collect()
    others = [device.zeros(1000, "int32") for _ in range(10)]
    assert view.numpy()[0] == 500
    assert len(others) == 10


def test_use_after_close(reopen: Callable[..., vkpar.Device]) -> None:
    closing = reopen()
    made, nothing = closing.zeros((4, 2)), closing.zeros(0)
    closing.close()
    closing.close()
    assert closing.closed
    assert "closed" in repr(closing)
    for use in (
        made.numpy,
        made[1].numpy,
        nothing.numpy,
        made.fill_zeros,
        lambda: made.write(np.zeros((4, 2))),
        lambda: made.copy_from(made),
        lambda: vkpar.copy(made, made),
        lambda: made.memory,
        lambda: closing.zeros(3),
        lambda: closing.empty(0),
        lambda: closing.array([1.0]),
        closing.synchronize,
        lambda: closing.logical,
    ):
        with pytest.raises(InvalidUsageError, match="closed"):
            use()
    assert made.shape == (4, 2)


def test_devices_are_context_managers(device: vkpar.Device) -> None:
    with vkpar.open_devices(str(device.info.index))[0] as opened:
        same(opened.zeros(3), np.zeros(3, np.float32))
    assert opened.closed


def test_synchronize_gives_up_in_time(reopen: Callable[..., vkpar.Device]) -> None:
    fresh = reopen()
    made = fresh.array(np.arange(3, dtype=np.int32))
    with parked(fresh) as release:
        made.fill_zeros()
        for timeout in (0, 0.02, 0.15):
            with pytest.raises(vkpar.WaitTimeoutError) as caught:
                fresh.synchronize(timeout)
            assert caught.value.details["reached"] < caught.value.details["wanted"]
        release()
        fresh.synchronize(30)
    same(made, np.zeros(3, np.int32))


def test_regions(device: vkpar.Device) -> None:
    want = np.arange(30, dtype=np.float32).reshape(6, 5)
    made = device.array(want)
    assert np.array_equal(made.read(slice(1, 3)), want[1:3])
    assert np.array_equal(made.read(-1), want[-1])
    made.write(-want[2:5], slice(2, 5))
    made.write(np.zeros(5), 0)
    want[2:5] *= -1
    want[0] = 0
    same(made, want)
    target = np.empty((2, 5), np.float32)
    assert made.read(slice(4, 6), out=target) is target
    assert np.array_equal(target, want[4:6])
    for region in (6, "a", (0, 5), [0, 1]):
        with pytest.raises(InvalidUsageError):
            made.read(region)
    with pytest.raises(InvalidUsageError):
        made.write(want, slice(0, 2))


def test_arrays_larger_than_one_memory_block(device: vkpar.Device) -> None:
    want = np.arange(40 << 18, dtype=np.int32)
    same(device.array(want), want)


def test_rows_and_numpy_take_a_copy(device: vkpar.Device) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = device.array(values)
    assert [row.numpy().tolist() for row in array] == values.tolist()
    assert np.array_equal(np.asarray(array), values)
    assert np.asarray(array, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        array.__array__(copy=False)
