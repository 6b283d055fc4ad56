"""Host memory that NumPy and devices share, on every driver, and elements from and to other libraries."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.process.children import check_child, child_environment
from helpers.process.threads import in_threads
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import DLPackError, HostArray, InvalidUsageError, UnsupportedError
from vkpar.vulkan import api
from vkpar.vulkan.command import CommandBuffer

pytestmark = pytest.mark.device
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64", "bfloat16"]


@pytest.fixture
def fresh(device: vkpar.Device) -> Iterator[vkpar.Device]:
    """The same physical device, opened once more."""
    with vkpar.open_devices(str(device.info.index))[0] as opened:
        yield opened


@pytest.fixture
def no_ring(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail what goes through the staging ring."""

    def refuse(*given: object) -> None:
        raise AssertionError("staged")

    monkeypatch.setattr(device.logical.staging, "upload", refuse)
    monkeypatch.setattr(device.logical.staging, "download", refuse)


def fill(array: np.ndarray, seed: int) -> np.ndarray:
    """Fill an array with bytes that its dtype allows, and return a copy."""
    values = np.random.default_rng(seed).integers(0, 256, array.nbytes, np.uint8)
    array.reshape(-1).view(np.uint8)[:] = values % 2 if array.dtype == bool else values
    return array.copy()


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


def aligned(device: vkpar.Device, nbytes: int, off: int = 0) -> np.ndarray:
    """Return bytes that begin ``off`` past what the driver asks for."""
    alignment = device.limits.host_import_alignment
    raw = np.empty(nbytes + 2 * alignment, np.uint8)
    start = -raw.ctypes.data % alignment + off
    return raw[start : start + nbytes]


# ---- copies ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_and_comes(device: vkpar.Device, dtype: str, no_ring: None) -> None:
    with vkpar.host_array((7, 3), dtype, device) as h, vkpar.host_array((7, 3), dtype, [device]) as back:
        assert (h.shape, h.size, h.ndim, len(h), h.dtype) == ((7, 3), 21, 2, 7, vkpar.dtypes.resolve(dtype))
        assert h.nbytes == h.numpy().nbytes
        assert not h.numpy().any()
        want = fill(h.numpy(), 1)
        made = device.array(h)
        assert (made.shape, made.dtype) == (h.shape, h.dtype)
        h.numpy().fill(0)
        assert made.read(out=back) is back
        same(back.numpy(), want)
        fill(h.numpy(), 2)
        made.write(h)
        same(made.read(out=back).numpy(), h.numpy())


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 2**32 - 1),
)
def test_round_trips_of_parts(
    device: vkpar.Device, no_ring: None, dtype: str, shape: list[int], start: int, stop: int, seed: int
) -> None:
    shape = [6, *shape]
    with vkpar.host_array(shape, dtype, device) as h:
        values = h.numpy()
        want = fill(values, seed)
        made = device.empty(shape, dtype)
        made.write(h)
        values.fill(0)
        made[start:stop].read(out=values[start:stop])
        got = np.zeros_like(want)
        got[start:stop] = want[start:stop]
        same(values, got)
        part = slice(min(start, stop), stop)
        other = fill(values, seed + 1)
        made.write(values[part], part)
        want[part] = other[part]
        values.fill(0)
        same(made.read(out=h).numpy(), want)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_any_byte_offset(device: vkpar.Device, no_ring: None, here: int, there: int, count: int) -> None:
    with vkpar.host_array(600, "uint8", device) as h, vkpar.host_array(600, "uint8", device) as back:
        want = fill(h.numpy(), 3)
        made = device.empty(600, "uint8")
        made.write(h)
        made[there : there + count].write(h.numpy()[here : here + count])
        want[there : there + count] = want[here : here + count].copy()
        same(made.read(out=back).numpy(), want)
        back.numpy().fill(0)
        made[there : there + count].read(out=back.numpy()[here : here + count])
        got = np.zeros_like(want)
        got[here : here + count] = want[there : there + count]
        same(back.numpy(), got)


def test_one_copy_each_way(device: vkpar.Device, no_ring: None, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    record = CommandBuffer.record_copy
    monkeypatch.setattr(
        CommandBuffer, "record_copy", lambda self, *ranges: (copies.append(ranges[0].nbytes), record(self, *ranges))
    )
    nbytes = 3 * vkpar.env.get().ring_bytes + 12345
    with vkpar.host_array(nbytes, "uint8", device) as h:
        want = fill(h.numpy(), 4)
        made = device.array(h)
        h.numpy().fill(0)
        made.read(out=h)
        same(h.numpy(), want)
    assert copies == [nbytes, nbytes]


def test_what_is_not_imported_is_staged(device: vkpar.Device, fresh: vkpar.Device) -> None:
    with vkpar.host_array(1000, "float32", fresh) as h:
        want = fill(h.numpy(), 5)
        made = device.array(h)
        h.numpy().fill(0)
        made.read(out=h)
        same(h.numpy(), want)
        wider = np.lib.stride_tricks.as_strided(h.numpy(), (1 << 20,), (0,))
        fresh.array(wider)
        same(fresh.array(h.numpy()[::2]).numpy(), want[::2])


def test_several_devices(device: vkpar.Device, fresh: vkpar.Device, no_ring: None) -> None:
    with vkpar.host_array((50, 2), "int32", [device, fresh, device]) as h:
        assert h.devices == (device, fresh)
        want = fill(h.numpy(), 6)
        first = device.array(h)
        h.numpy().fill(0)
        first.read(out=h)
        second = fresh.array(h)
        h.numpy().fill(0)
        same(second.read(out=h).numpy(), want)


def test_two_drivers(rigs: Any) -> None:
    devices = rigs("llvmpipe&swiftshader")
    with vkpar.host_array(10_000, "float32", devices) as h:
        want = fill(h.numpy(), 7)
        for number in range(6):
            made = devices[number % 2].array(h)
            h.numpy().fill(0)
            made.read(out=h)
            same(h.numpy(), want)


def test_program_order(device: vkpar.Device, no_ring: None) -> None:
    with vkpar.host_array(5000, "float32", device) as h:
        made = device.empty(5000)
        total = device.zeros(5000)
        for number in range(1, 11):
            h.numpy().fill(number)
            made.write(h)
            vkpar.add(total, made, out=total)
        assert np.all(total.read(out=h).numpy() == 55)


def test_a_source_may_change_and_a_target_is_there(device: vkpar.Device, no_ring: None) -> None:
    with vkpar.host_array(100_000, "int32", device) as h:
        made = device.empty(100_000, "int32")
        for number in range(20):
            h.numpy().fill(number)
            made.write(h)
            h.numpy().fill(-1)
            made.read(out=h)
            assert np.all(h.numpy() == number)


def test_dtypes_that_differ(device: vkpar.Device) -> None:
    with vkpar.host_array(4, "bfloat16", device) as h, vkpar.host_array(4, "float32", device) as f:
        f.numpy()[:] = [1, -2.5, 3e38, np.inf]
        h.numpy()[:] = f.numpy()
        assert list(device.array(h, "float32").numpy()[:2]) == [1, -2.5]
        same(device.array(f, "bfloat16").numpy(), h.numpy())
        same(np.asarray(h), h.numpy())
        same(np.asarray(h, np.float32), h.numpy().astype(np.float32))
        same(np.array(h, copy=True), h.numpy())
        assert np.asarray(h).ctypes.data == h.numpy().ctypes.data
        assert np.array(h).ctypes.data != h.numpy().ctypes.data
        with pytest.raises(ValueError, match="without a copy"):
            h.__array__(np.float32, copy=False)
        same(np.from_dlpack(f), f.numpy())
        with vkpar.host_array(4, "uint16", device) as bits:
            for one, other in ((device.array(h), bits), (device.array(bits), h)):
                with pytest.raises(InvalidUsageError, match="cannot read"):
                    one.read(out=other)
        for wrong in (device.zeros(4), device.zeros(5, "bfloat16"), device.zeros((2, 2), "bfloat16")):
            with pytest.raises(InvalidUsageError, match="cannot read"):
                wrong.read(out=h)
        with pytest.raises(InvalidUsageError, match="cannot write"):
            device.zeros(3).write(f)


def test_read_only_views_are_refused(device: vkpar.Device) -> None:
    with vkpar.host_array(8, "float32", device) as h:
        view = h.numpy()
        view.flags.writeable = False
        made = device.array(np.ones(8, np.float32))
        submitted = device.logical.transfer.last
        with pytest.raises(InvalidUsageError, match="read-only"):
            made.read(out=view)
        assert device.logical.transfer.last == submitted
        assert not h.numpy().any()
        made.write(view)


@pytest.mark.parametrize("shape", [0, (3, 0, 2), (0, 1)])
def test_zero_sizes(device: vkpar.Device, shape: Any) -> None:
    before = held([device])
    with vkpar.host_array(shape, "float32", device) as h:
        assert held([device]) == before
        assert h.nbytes == 0
        made = device.array(h)
        assert made.read(out=h) is h
        made.write(h)
        assert h.numpy().shape == made.shape
        assert np.from_dlpack(h).shape == made.shape
        assert vkpar.register_host(h.numpy(), device).shape == made.shape
    with vkpar.host_array((), "int64", device) as one:
        one.numpy()[()] = 7
        assert device.array(one).numpy() == 7
        with pytest.raises(InvalidUsageError):
            len(one)


# ---- NumPy ----


def test_numpy_sees_the_memory(device: vkpar.Device) -> None:
    with vkpar.host_array((2, 3), "float32", device) as h:
        views = [h.numpy(), np.asarray(h), np.array(h, copy=False), np.frombuffer(h.__buffer__(0), np.float32)]
        if sys.version_info >= (3, 12):
            views.append(np.asarray(memoryview(h)))
        for number, view in enumerate(views):
            view.reshape(-1)[-1] = number
            assert h.numpy()[1, 2] == number
            assert view.flags.writeable
        address = h.__array_interface__["data"][0]
        assert address == h.numpy().ctypes.data
        assert address % max(4096, device.limits.host_import_alignment) == 0
        assert memoryview(h.numpy()).shape == (2, 3)
        assert np.add(h, 1).shape == (2, 3)
        assert repr(h) == f"<vkpar.HostArray (2, 3) float32 for {device}>"
        buffer = h.__buffer__(0)
        assert (buffer.shape, buffer.format, buffer.readonly) == ((2, 3), "f", False)


def test_views_outlive_it(device: vkpar.Device) -> None:
    h = vkpar.host_array(100_000, "int32", device)
    view, seen, buffer = h.numpy(), np.asarray(h), h.__buffer__(0)
    shared = np.from_dlpack(h)
    h.close()
    del h
    gc.collect()
    view[:] = np.arange(100_000)
    assert seen[-1] == shared[-1] == buffer[99_999] == 99_999
    made = device.array(view)
    del view, shared, buffer
    gc.collect()
    same(made.numpy(), seen)


def test_a_view_keeps_the_import(device: vkpar.Device, request: pytest.FixtureRequest) -> None:
    device.logical.reap()
    before = held([device])
    view = vkpar.host_array(100, "int32", device).numpy()
    gc.collect()
    request.getfixturevalue("no_ring")
    view[:] = np.arange(100)
    made = device.array(view)
    made.read(out=view)
    del view
    gc.collect()
    device.logical.reap()
    del made
    assert held([device]) == before


# ---- registering ----


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex64"])
def test_existing_memory(device: vkpar.Device, dtype: str, no_ring: None) -> None:
    alignment = device.limits.host_import_alignment
    array = aligned(device, 3 * alignment).view(dtype).reshape(3, -1)
    want = fill(array, 8)
    with vkpar.register_host(array, device) as h:
        assert (h.shape, h.dtype) == (array.shape, array.dtype)
        assert h.numpy().ctypes.data == array.ctypes.data
        for source in (h, array):
            made = device.array(source)
            array.fill(0)
            made[1:2].read(out=array[1:2])
            same(array[1], want[1])
            made.read(out=h)
            same(array, want)


def test_more_than_what_is_registered(device: vkpar.Device) -> None:
    alignment = device.limits.host_import_alignment
    array = aligned(device, 3 * alignment)
    want = fill(array, 12)
    with vkpar.register_host(array[alignment : 2 * alignment], device):
        for part in (slice(0, 3), slice(1, 3), slice(0, 2), slice(1, 2)):
            view = array[part.start * alignment : part.stop * alignment]
            made = device.array(view)
            view.fill(0)
            made.read(out=view)
            same(array, want)


def test_it_keeps_the_array_alive(device: vkpar.Device) -> None:
    h = vkpar.register_host(aligned(device, 1 << 20), device)
    want = fill(h.numpy(), 9)
    gc.collect()
    other = [np.full(1 << 20, 7, np.uint8) for _ in range(5)]
    same(device.array(h).numpy(), want)
    assert len(other) == 5
    h.close()


def test_misaligned_memory(device: vkpar.Device) -> None:
    alignment = device.limits.host_import_alignment
    before = held([device])
    with pytest.raises(
        InvalidUsageError, match=rf"multiples of {alignment} bytes.* is 16 bytes past .*vkpar.host_array"
    ):
        vkpar.register_host(aligned(device, alignment, 16), device)
    with pytest.raises(InvalidUsageError, match=rf"is 0 bytes past .* length {alignment + 4} is 4 past"):
        vkpar.register_host(aligned(device, alignment + 4), device)
    assert held([device]) == before


def test_what_cannot_be_registered(device: vkpar.Device) -> None:
    array = aligned(device, 2 * device.limits.host_import_alignment)
    read_only = array.view()
    read_only.flags.writeable = False
    cases: list[tuple[Any, str]] = [
        (read_only, "read-only"),
        (array[::2], "contiguous"),
        (array.view(">f4"), "byte order"),
        (array.view("V4"), "plain numbers"),
        (array.tobytes(), "bytes"),
        ([1.0], "list"),
        (None, "NoneType"),
    ]
    for wrong, match in cases:
        with pytest.raises(InvalidUsageError, match=match):
            vkpar.register_host(wrong, device)


# ---- arguments ----


def test_bad_arguments(device: vkpar.Device) -> None:
    for shape in (-1, (2, -1), 1.5, "ab", None):
        with pytest.raises(InvalidUsageError):
            vkpar.host_array(shape, "float32", device)  # type: ignore[arg-type]
    for dtype in (None, "nonsense", "V4", object):
        with pytest.raises(InvalidUsageError):
            vkpar.host_array(3, dtype, device)
    for devices in ([], None, 0, "llvmpipe", [device, None], device.info):
        with pytest.raises(InvalidUsageError):
            vkpar.host_array(3, "float32", devices)  # type: ignore[arg-type]
        with pytest.raises(InvalidUsageError):
            vkpar.register_host(aligned(device, 0), devices)  # type: ignore[arg-type]
    for shape in (1 << 70, (1 << 40, 1 << 40), 1 << 45):
        with pytest.raises((UnsupportedError, vkpar.OutOfMemoryError)):
            vkpar.host_array(shape, "float32", device)


def test_a_driver_that_cannot_import(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(fresh.info, features=replace(fresh.info.features, host_import=False))
    monkeypatch.setattr(fresh.logical, "info", lacking)
    for size in (0, 3):
        with pytest.raises(UnsupportedError, match=r"VK_EXT_external_memory_host") as caught:
            vkpar.host_array(size, "float32", fresh)
        assert fresh.name in str(caught.value)


@pytest.mark.parametrize(("result", "kind"), [(-1000072003, UnsupportedError), (-1, vkpar.OutOfMemoryError)])
def test_an_import_that_fails(
    device: vkpar.Device, fresh: vkpar.Device, result: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The imports into other devices are undone."""
    vk = api.load()
    device.logical.reap()
    before = held([device, fresh])
    real = vk.lib

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            if name != "vkAllocateMemory":
                return getattr(real, name)
            return lambda handle, *given: (
                result if handle == fresh.logical.handle else real.vkAllocateMemory(handle, *given)
            )

    with monkeypatch.context() as patch:
        patch.setattr(vk, "lib", Refusing())
        with pytest.raises(kind) as caught:
            vkpar.host_array(3, "float32", [device, fresh])
    assert fresh.name in str(caught.value)
    del caught
    assert held([device, fresh]) == before


# ---- ends ----


def test_nothing_leaks(device: vkpar.Device) -> None:
    device.array([1.0]).numpy()
    device.logical.reap()
    before = held([device])
    for number in range(3):
        h = vkpar.host_array(1000, "float32", device)
        r = vkpar.register_host(aligned(device, device.limits.host_import_alignment), device)
        assert held([device])["DeviceMemory"] == before["DeviceMemory"] + 2
        device.array(h).read(out=h)
        if number:
            h.close()
        r.close()
        del h, r
        gc.collect()
        device.logical.reap()
        assert held([device]) == before


def test_a_closed_one_is_refused(device: vkpar.Device) -> None:
    made = device.zeros(4)
    h = vkpar.host_array(4, "float32", device)
    h.close()
    h.close()
    assert h.closed
    assert h.devices == ()
    assert "closed" in repr(h)
    submitted = device.logical.transfer.last
    uses: list[Callable[[], object]] = [
        h.numpy,
        lambda: h.__array_interface__,
        lambda: h.__buffer__(0),
        h.__dlpack__,
        lambda: np.asarray(h),
        lambda: device.array(h),
        lambda: made.write(h),
        lambda: made.read(out=h),
        lambda: vkpar.from_dlpack(h, device),
    ]
    for use in uses:
        with pytest.raises(InvalidUsageError, match="closed"):
            use()
    assert device.logical.transfer.last == submitted


def test_closing_a_device_drops_its_import(device: vkpar.Device, fresh: vkpar.Device) -> None:
    h = vkpar.host_array(100, "int32", [device, fresh])
    made = fresh.array(h)
    before = api.load().live()["DeviceMemory"]
    fresh.close()
    assert api.load().live()["DeviceMemory"] < before
    assert h.devices == (device,)
    want = fill(h.numpy(), 10)
    same(device.array(h).read(out=h).numpy(), want)
    for use in (lambda: made.write(h), lambda: made.read(out=h), lambda: vkpar.host_array(3, "int32", fresh)):
        with pytest.raises(InvalidUsageError, match="closed"):
            use()
    h.close()
    h.close()


@pytest.mark.parametrize("how", ["write", "read"])
def test_close_waits_for_copies(fresh: vkpar.Device, how: str) -> None:
    h = vkpar.host_array(1000, "int32", fresh)
    made = fresh.array(np.arange(1000, dtype=np.int32))
    fresh.synchronize()
    view = h.numpy()
    view[:] = 5
    copying = threading.Thread(target=lambda: made.write(view) if how == "write" else made.read(out=view))
    closing = threading.Thread(target=h.close)
    with parked(fresh) as release:
        submitted = fresh.logical.transfer.last
        copying.start()
        while fresh.logical.transfer.last == submitted:
            time.sleep(0.005)
        closing.start()
        closing.join(0.25)
        assert closing.is_alive()
        assert copying.is_alive()
        later = threading.Thread(target=fresh.array, args=(view,))  # staged, so that it need not wait
        later.start()
        later.join(30)
        assert not later.is_alive()
        assert closing.is_alive()
        release()
        closing.join(30)
        copying.join(30)
    assert h.closed
    assert not closing.is_alive()
    assert not copying.is_alive()
    assert np.array_equal(made.numpy(), view)


def test_an_interrupted_copy_is_waited_for(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    h = vkpar.host_array(1000, "int32", fresh)
    made = fresh.zeros(1000, "int32")
    h.numpy()[:] = 3
    queue = fresh.logical.transfer

    def interrupt(value: int) -> None:
        raise KeyboardInterrupt

    with parked(fresh) as release:
        with monkeypatch.context() as patch:
            patch.setattr(queue, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                made.write(h)
        before = api.load().live()["DeviceMemory"]
        del h
        gc.collect()
        fresh.logical.reap()
        assert api.load().live()["DeviceMemory"] == before
        release()
    fresh.logical.reap()
    assert api.load().live()["DeviceMemory"] == before - 1
    assert np.all(made.numpy() == 3)


def test_a_device_closed_after_an_interrupt(fresh: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    h = vkpar.host_array(1000, "int32", fresh)
    made = fresh.zeros(1000, "int32")

    def interrupt(value: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fresh.logical.transfer, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.read(out=h)
    fresh.close()
    h.close()
    assert h.closed


def test_threads(device: vkpar.Device) -> None:
    shared = vkpar.host_array((4, 5000), "int32", device)

    def work(number: int) -> None:
        for turn in range(15):
            with vkpar.host_array(2000, "int32", device) as own:
                want = fill(own.numpy(), turn)
                made = device.array(own)
                row = shared.numpy()[number]
                mine = fill(row, turn + 100)
                other = device.array(row)
                row.fill(0)
                same(other.read(out=row), mine)
                same(made.numpy(), want)

    in_threads(work)
    shared.close()


FORK = """
    import ctypes, gc, os, sys, warnings
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of forks, where a driver has threads
    import numpy as np
    import vkpar
    device = vkpar.open_devices(sys.argv[1])[0]
    h = vkpar.host_array(100_000, "int32", device)
    other = vkpar.host_array(100_000, "int32", device)
    h.numpy()[:] = 7
    made = device.array(h)
    child = os.fork()
    if child == 0:
        for use in (h.numpy, lambda: np.asarray(h), h.__dlpack__, lambda: h.__buffer__(0), lambda: made.write(h),
                    lambda: made.read(out=h), lambda: device.array(h), lambda: vkpar.host_array(3, "int8", device),
                    lambda: vkpar.register_host(np.zeros(0), device)):
            try:
                use()
            except vkpar.InvalidUsageError as error:
                print("fork" in str(error), flush=True)
        # What the child has put in its place stays.
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        places = [(item._memory.block.address, item._memory.block.nbytes) for item in (h, other)]
        for address, nbytes in places:
            assert libc.mmap(address, nbytes, 3, 0x100022, -1, 0) == address  # FIXED_NOREPLACE: the place is free
            ctypes.memset(address, 5, nbytes)
        h.close()
        h = other = made = device = use = None
        gc.collect()
        vkpar.device.close_orphans()
        gc.collect()
        assert all(ctypes.string_at(address, nbytes) == bytes([5]) * nbytes for address, nbytes in places)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    h.numpy()[:] = 8  # the device sees the parent's pages
    made.write(h)
    h.numpy()[:] = 0
    made.read(out=h)
    assert np.all(h.numpy() == 8)
    view = h.numpy()  # whatever is open at the end troubles nobody
"""


def test_forks(device: vkpar.Device) -> None:
    assert check_child(FORK, str(device.info.index)).split() == ["True"] * 9 + ["0"]


GIVEN_UP = """
    import gc, logging, sys, threading, time
    import vkpar
    from helpers.vulkan.parking import parked
    from vkpar import timeouts
    timeouts.DRAIN_SECONDS = 0.2
    logging.getLogger("vkpar").setLevel(logging.CRITICAL)
    device = vkpar.open_devices(sys.argv[1])[0]
    h = vkpar.host_array(1000, "int32", device)
    made, view = device.zeros(1000, "int32"), h.numpy()
    device.synchronize()

    def read():
        try:
            made.read(out=view)
        except vkpar.VkparError as error:
            print(type(error).__name__)

    with parked(device) as release:
        submitted = device.logical.transfer.last
        reading = threading.Thread(target=read)
        reading.start()
        while device.logical.transfer.last == submitted:
            time.sleep(0.005)
        closing = threading.Thread(target=h.close)
        closing.start()
        time.sleep(0.05)
        device.close()
        reading.join(10)
        closing.join(10)
        print(h.closed, device._logical.quarantined, h.devices)
        address = view.ctypes.data
        del h, view, reading, closing
    del device, made, submitted, release  # the device may copy at any time: the memory stays
    gc.collect()
    with open("/proc/self/maps") as maps:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    print(any(start <= address < end for start, end in ranges))
"""


def test_a_device_that_is_given_up(device: vkpar.Device) -> None:
    printed = check_child(
        GIVEN_UP, str(device.info.index), environment=child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    )
    assert printed.split() == ["InvalidUsageError", "True", "True", "()", "True"]


# ---- DLPack ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_both_ways(device: vkpar.Device, dtype: str) -> None:
    with vkpar.host_array((3, 4), dtype, device) as h:
        want = fill(h.numpy(), 11)
        if dtype != "bfloat16":  # which NumPy does not take
            seen = np.from_dlpack(h)
            same(seen, want)
            assert seen.ctypes.data == h.numpy().ctypes.data
        for source in (want, want.T, want[::2, 1:3], h, h.__dlpack__()):
            made = vkpar.from_dlpack(source, device)
            assert made.device is device
            plain = source if isinstance(source, np.ndarray) else want
            same(made.numpy(), np.ascontiguousarray(plain))


def test_what_dlpack_may_ask_for(device: vkpar.Device) -> None:
    with vkpar.host_array(4, "float32", device) as h:
        assert h.__dlpack_device__() == (1, 0)
        for how in ({}, {"stream": None}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}, {"copy": False}):
            assert "dltensor" in repr(h.__dlpack__(**how))
        copied = vkpar.from_dlpack(h.__dlpack__(copy=True), device)
        assert copied.shape == (4,)
        with pytest.raises(InvalidUsageError, match="stream"):
            h.__dlpack__(stream=1)  # type: ignore[arg-type]
        for elsewhere in ((2, 0), (1, 1)):
            with pytest.raises(BufferError, match="CPU"):
                h.__dlpack__(dl_device=elsewhere)


def test_a_copy_for_dlpack_is_one(device: vkpar.Device) -> None:
    class Wanting:
        def __init__(self, h: HostArray) -> None:
            self.h = h

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.h.__dlpack_device__()

        def __dlpack__(self, **how: Any) -> Any:
            return self.h.__dlpack__(copy=True, max_version=(1, 0))

    with vkpar.host_array(4, "float32", device) as h:
        copied = np.from_dlpack(Wanting(h))
        h.numpy().fill(1)
        assert not copied.any()


def test_dlpack_errors_before_anything_is_submitted(device: vkpar.Device) -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **how: Any) -> Any:
            raise AssertionError("asked for")

    class Broken(Elsewhere):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **how: Any) -> Any:
            raise BufferError("not exportable")

    class Lying(Broken):
        def __init__(self, device: Any) -> None:
            self.device = device

        def __dlpack_device__(self) -> Any:
            return self.device

    used = np.arange(3.0).__dlpack__()
    vkpar.from_dlpack(used, device)
    made = device.zeros(3)
    submitted = device.logical.transfer.last
    cases: list[tuple[Any, type[Exception], str]] = [
        (used, InvalidUsageError, "capsule"),
        (Elsewhere(), DLPackError, "type 2"),
        (Broken(), DLPackError, "not exportable"),
        *((Lying(told), InvalidUsageError, "names no device") for told in ("cpu", None, 1, (), (None, 0), ("x",), {})),
        (np.array(["x"]), DLPackError, "NumPy cannot take"),
        (object(), InvalidUsageError, "does not export"),
        ([1.0], InvalidUsageError, "does not export"),
        (made, DLPackError, "Vulkan"),
    ]
    for wrong, kind, match in cases:
        with pytest.raises(kind, match=match):
            vkpar.from_dlpack(wrong, device)
    for wrong in (None, "llvmpipe", device.info):
        with pytest.raises(InvalidUsageError, match=r"vkpar\.Device"):
            vkpar.from_dlpack(np.zeros(3), wrong)  # type: ignore[arg-type]
    assert device.logical.transfer.last == submitted


def test_device_memory_is_not_handed_over(device: vkpar.Device) -> None:
    made = device.zeros(3)
    for use in (made.__dlpack__, made.__dlpack_device__, lambda: np.from_dlpack(made)):
        with pytest.raises(BufferError, match="Vulkan") as caught:
            use()
        assert isinstance(caught.value, UnsupportedError)


def test_torch(device: vkpar.Device) -> None:
    torch = pytest.importorskip("torch")
    with vkpar.host_array((3, 4), "float32", device) as h:
        tensor = torch.from_dlpack(h)
        assert tensor.data_ptr() == h.numpy().ctypes.data
        tensor[1] = 5
        assert np.all(h.numpy()[1] == 5)
        same(vkpar.from_dlpack(tensor, device).numpy(), h.numpy())
        same(vkpar.from_dlpack(tensor.T, device).numpy(), h.numpy().T.copy())
    capsule = torch.utils.dlpack.to_dlpack(torch.arange(3))
    assert list(vkpar.from_dlpack(capsule, device).numpy()) == [0, 1, 2]
    with pytest.raises(InvalidUsageError, match="capsule"):
        vkpar.from_dlpack(capsule, device)
    halves = torch.tensor([[1.0, -2.5], [3e38, 0.0]], dtype=torch.bfloat16)
    made = vkpar.from_dlpack(halves.T, device)
    assert made.dtype == vkpar.bfloat16
    same(made.numpy().view(np.uint16), halves.T.contiguous().view(torch.int16).numpy().view(np.uint16))
    same(device.array(halves).numpy(), halves.float().numpy().astype(made.numpy().dtype))
    with vkpar.host_array(4, "bfloat16", device) as bits:
        assert torch.from_dlpack(bits).dtype == torch.bfloat16
        assert vkpar.from_dlpack(bits, device).dtype == vkpar.bfloat16
    with pytest.raises(DLPackError, match="grad"):
        vkpar.from_dlpack(torch.ones(3, requires_grad=True), device)
    with pytest.raises(BufferError, match="Vulkan"):
        torch.from_dlpack(device.zeros(3))


# ---- __array__ ----


def test_arrays_by_the_rules_of_numpy_2(device: vkpar.Device) -> None:
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = device.array(want)
    for copy in (None, True):
        same(made.__array__(copy=copy), want)
        same(made.__array__(np.float64, copy=copy), want.astype(np.float64))
    same(made.__array__("int16"), want.astype(np.int16))
    same(np.asarray(made, np.complex64), want.astype(np.complex64))
    assert np.array(made).flags.writeable
    submitted = device.logical.transfer.last
    with pytest.raises(ValueError, match="without a copy"):
        made.__array__(copy=False)
    with pytest.raises(TypeError):
        made.__array__("nonsense")
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="without a copy"):
            np.array(made, copy=False)
    assert device.logical.transfer.last == submitted


def test_bfloat16_for_numpy(device: vkpar.Device) -> None:
    made = device.array([1.0, -2.5, np.inf], "bfloat16")
    same(np.asarray(made), made.numpy())
    same(np.asarray(made, np.float32), np.array([1, -2.5, np.inf], np.float32))
