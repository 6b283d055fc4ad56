"""Arrays over several buffers, and beyond what a kernel binds: under limits of a few KiB, and once at the real ones."""

from __future__ import annotations

import contextlib
import importlib
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.vulkan.planning import forget
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, OutOfMemoryError, UnsupportedError, env
from vkpar.ops.elementwise.ways import Dispatch
from vkpar.vulkan.device import LogicalDevice

matmul_module = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = pytest.mark.device
SMALL = {"max_buffer": 8192, "max_binding": 4352, "ring_bytes": 20_000}
FLOATS = ("float32", "float16", "bfloat16")
STAMP = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer A { uint a[]; };
layout(set = 0, binding = 1) buffer B { uint b[]; };
layout(push_constant) uniform Push { uint count; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) b[i] = a[i] + 1u;
}
"""


@pytest.fixture(scope="module")
def small(device: vkpar.Device) -> Iterator[vkpar.Device]:
    """The physical device once more, with sub-buffers of 8 KiB and bindings of half that."""
    with env.override(**SMALL), vkpar.open_devices(str(device.info.index))[0] as opened:
        yield opened


def force(monkeypatch: pytest.MonkeyPatch, device: vkpar.Device, kernel: str) -> None:
    """Have products use a kernel of GPUs, on lavapipe too."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each variant of these kernels for seconds; lavapipe runs them")
    forget(device)  # those of other kernels
    monkeypatch.setattr(matmul_module, "kernel_for", lambda device, m: kernel)


def values(rng: np.random.Generator, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return small whole numbers: sums of them are exact in every type."""
    return rng.integers(-8, 9, count).astype(np.float32 if dtype == "bfloat16" else dtype)


def numbers(array: vkpar.Array) -> np.ndarray[Any, Any]:
    """Return the values as float64, whatever the type."""
    return array.numpy().astype(np.float64)


@given(st.data())
def test_what_is_written_comes_back(small: vkpar.Device, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count = data.draw(st.integers(1, 40_000))
    dtype = data.draw(st.sampled_from(["uint8", "int16", "float32", "complex128"]))
    want = rng.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    array = small.array(want)
    for _ in range(4):
        start = data.draw(st.integers(0, count))
        stop = data.draw(st.integers(start, count))
        view = array[start:stop]
        change = data.draw(st.sampled_from(["write", "zeros", "copy"]))
        if change == "write":
            want[start:stop] = rng.integers(0, 256, (stop - start) * want.itemsize, np.uint8).view(dtype)
            view.write(want[start:stop])
        elif change == "zeros":
            want[start:stop] = 0
            view.fill_zeros()
        else:
            source = data.draw(st.integers(0, count - (stop - start)))
            want[start:stop] = want[source : source + stop - start].copy()
            view.copy_from(array[source : source + stop - start])
    assert array.numpy().tobytes() == want.tobytes()
    assert array[start:stop].numpy().tobytes() == want[start:stop].tobytes()


@given(st.data())
def test_sums_of_views_anywhere(small: vkpar.Device, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count = data.draw(st.integers(1, 9000))
    sides = []
    for _ in range(2):
        before, dtype = data.draw(st.integers(0, 5)), data.draw(st.sampled_from(FLOATS))
        host = values(rng, before + count + 3, dtype)
        sides.append((host[before : before + count], small.array(host, dtype)[before : before + count]))
    (x, a), (y, b) = sides
    before = data.draw(st.integers(0, 5))
    dtype = "float32" if a.dtype != b.dtype else str(a.dtype)
    around = small.array(np.full(before + count + 3, 99.0, np.float32), dtype)
    vkpar.add(a, b, out=around[before : before + count])
    want = np.full(before + count + 3, 99.0)
    want[before : before + count] = x.astype(np.float64) + y
    np.testing.assert_array_equal(numbers(around), want)
    rows = data.draw(st.integers(1, 4))
    bias = small.array(values(rng, count, "float32"), data.draw(st.sampled_from(FLOATS)))
    tall = small.array(np.tile(x, (rows, 1)).astype(np.float32), str(bias.dtype))
    np.testing.assert_array_equal(numbers(vkpar.add(tall, bias)), np.tile(x, (rows, 1)) + numbers(bias))


@given(st.data())
def test_casts_of_views_anywhere(small: vkpar.Device, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count, before = data.draw(st.integers(1, 9000)), data.draw(st.integers(0, 5))
    source, target = data.draw(st.permutations(FLOATS))[:2]
    host = values(rng, before + count, source)
    array = small.array(host, source)[before:]
    out = small.array(np.full(before + count + 2, 99.0, np.float32), target)
    vkpar.cast(array, target, out=out[before : before + count])
    np.testing.assert_array_equal(numbers(out), [*[99] * before, *host[before:], 99, 99])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_views_made_by_broadcasting_are_copied_to_several_buffers(
    reopen: Callable[..., vkpar.Device], dtype: str
) -> None:
    device = reopen(max_buffer=8192)
    for shape in ((1, 1), (1, 300), (90, 1)):
        x = np.arange(math.prod(shape)).reshape(shape).astype(np.int8).astype(dtype)
        want = np.broadcast_to(x, (90, 300))
        view = device.array(x).broadcast_to(want.shape)
        np.testing.assert_array_equal(view.contiguous().numpy(), want)
        for target in (device.zeros(want.shape, dtype), device.zeros((300, 90), dtype).T):
            target[...] = view
            np.testing.assert_array_equal(target.numpy(), want)


def test_views_are_cut_along_what_no_binding_holds(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = reopen(max_buffer=0, max_binding=65536)
    x = rng.integers(-1000, 1000, (256, 256)).astype(np.float32)
    a, runs = device.array(x), [0]
    run = Dispatch.run

    def counted(self: Dispatch, *given: Any) -> None:
        runs[0] += 1
        run(self, *given)

    monkeypatch.setattr(Dispatch, "run", counted)
    for made, want in ((lambda: a.T + a.T, x.T + x.T), (lambda: a.T + a, x.T + x), (lambda: -a.T[::-1], -x.T[::-1])):
        runs[0] = 0
        np.testing.assert_array_equal(made().numpy(), want)
        assert runs[0] <= 40, "no piece for each row"


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("shape", [(8, 30_011), (6, 5000, 7)])
def test_long_rows_are_transposed_in_few_parts(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    """Though a binding holds some elements of every column, so that parts of whole rows would be single elements."""
    device = reopen(max_buffer=200_000, max_binding=65_536)
    host = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    a, turned = device.array(host), device.array(np.ascontiguousarray(host.T))
    dispatch, sent = LogicalDevice.dispatch, [0]

    def counted(self: LogicalDevice, *given: Any) -> None:
        sent[0] += 1
        dispatch(self, *given)

    monkeypatch.setattr(LogicalDevice, "dispatch", counted)
    packed, filled = a.T.contiguous(), device.empty(shape, dtype)
    filled.T.copy_from(turned)
    assert sent[0] < 2000
    np.testing.assert_array_equal(packed.numpy(), host.T)
    np.testing.assert_array_equal(filled.numpy(), host)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", ["default", "matvec", "matmul_tiled"])
@given(st.data())
def test_products_over_borders(
    small: vkpar.Device, monkeypatch: pytest.MonkeyPatch, kernel: str, data: st.DataObject
) -> None:
    """Rows longer than a binding, rows across borders of sub-buffers, views that begin anywhere."""
    if kernel != "default":
        force(monkeypatch, small, kernel)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    sizes = [(70, 41, 60), (3, 1500, 5), (4, 4, 2600), (1, 130, 90), (90, 1, 70), (2, 8, 1366), (3, 1366, 8)]
    m, n, k = data.draw(st.sampled_from(sizes if kernel != "matvec" else [size for size in sizes if size[0] <= 4]))
    transpose_b = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(FLOATS))

    def operand(rows: int, columns: int) -> tuple[np.ndarray[Any, Any], vkpar.Array]:
        before = data.draw(st.integers(0, 7))
        host = values(rng, before + rows * columns, dtype).astype(np.float32) % 3
        array = small.array(host, dtype)[before:].reshape(rows, columns)
        return host[before:].reshape(rows, columns), array

    x, a = operand(m, k)
    y, b = operand(n, k) if transpose_b else operand(k, n)
    want = x @ (y.T if transpose_b else y)
    found = vkpar.matmul(a, b, transpose_b=transpose_b, dtype="float32")
    np.testing.assert_array_equal(found.numpy(), want)
    halves = vkpar.matmul(a, b, transpose_b=transpose_b, dtype="float16")
    np.testing.assert_array_equal(halves.numpy(), want.astype(np.float16))


@pytest.mark.parametrize("m", [1, 2, 8])
def test_halves_of_a_product_cut_after_an_odd_number_of_rows(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch, m: int
) -> None:
    """Three rows of b fill a sub-buffer: kernels of GPUs write halves in pairs."""
    device = reopen(max_buffer=3 * 4096)
    force(monkeypatch, device, "matvec" if m <= 4 else "matmul_tiled")
    x = (np.arange(m * 2048) % 3 - 1).reshape(m, 2048).astype(np.float16)
    y = (np.arange(8 * 2048) % 5 - 2).reshape(8, 2048).astype(np.float16)
    want = x.astype(np.float64) @ y.T.astype(np.float64)
    found = vkpar.matmul(device.array(x), device.array(y), transpose_b=True)
    np.testing.assert_array_equal(found.numpy(), want.astype(np.float16))
    column = vkpar.matmul(device.array(y), device.array(x[:1].T.copy()))
    np.testing.assert_array_equal(column.numpy()[:, 0], want[0].astype(np.float16))


def test_halves_on_both_sides_of_a_border(reopen: Callable[..., vkpar.Device]) -> None:
    """Both operands' pairs lie across a border: neither's copy may take the other's place."""
    device = reopen(max_buffer=4096)
    for _ in range(30):
        a, b = (device.array(np.full(4000, value, np.float16))[1:] for value in (1, 2))
        np.testing.assert_array_equal(vkpar.add(a, b).numpy(), 3)


def test_products_in_halves_are_rounded_once(small: vkpar.Device, rng: np.random.Generator) -> None:
    """K is split where rows are longer than a binding; the parts must be added up before they are rounded."""
    x = np.ones((2, 5000), np.float16)
    y = np.full((5000, 2), 0.40625, np.float16)
    y[::2] = -0.40625
    y[0] = 1000.0
    found = vkpar.matmul(small.array(x), small.array(y))
    want = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(found.numpy(), want)


# ---- the user's kernels ----


def test_a_kernel_gets_pieces(small: vkpar.Device, compiler: None) -> None:
    kernel = vkpar.Kernel(small, STAMP)
    want = np.arange(10_000, dtype=np.uint32)
    a, b = small.array(want), small.zeros(10_000, "uint32")
    with pytest.raises(UnsupportedError, match=r"binding 0: .* several buffers of at most 8192 bytes.*vkpar.pieces"):
        kernel(157, a, b, push=struct.pack("<I", 10_000))
    for x, y in vkpar.pieces(a, b):
        kernel(-(-x.size // 64), x, y, push=struct.pack("<I", x.size))
    np.testing.assert_array_equal(b.numpy(), want + 1)
    for inside in (a[2048:3000], a[4096 : 4096 + 1000]):  # views in one buffer are bound as they are
        kernel(16, inside, b[: inside.size], push=struct.pack("<I", inside.size))
        np.testing.assert_array_equal(b[: inside.size].numpy(), inside.numpy() + 1)


def test_pieces(small: vkpar.Device) -> None:
    a, b = small.zeros((3, 3000)), small.zeros(9000, "float16")
    parts = list(vkpar.pieces(a, b))
    assert all(x.size == y.size and x.nbytes <= 4352 for x, y in parts)
    assert sum(x.size for x, _ in parts) == 9000
    assert list(vkpar.pieces(small.zeros(0))) == []
    assert [x.shape for (x,) in vkpar.pieces(small.zeros((2, 5)))] == [(10,)]
    with pytest.raises(InvalidUsageError, match="different sizes"):
        list(vkpar.pieces(a, b[1:]))
    alike = list(vkpar.pieces(a[1:], a[1:]))  # borders need not lie at multiples of anything
    assert sum(x.size for x, _ in alike) == 6000
    if small.limits.min_storage_buffer_offset_alignment > 4:
        with pytest.raises(UnsupportedError, match="copy"):
            vkpar.pieces(small.zeros(5000)[1:4001], small.zeros(4000))  # before any piece is handed out


def test_an_offset_that_cannot_be_bound(small: vkpar.Device, compiler: None) -> None:
    alignment = small.limits.min_storage_buffer_offset_alignment
    if alignment <= 4:
        pytest.skip("every element can be bound")
    kernel = vkpar.Kernel(small, STAMP)
    a = small.zeros(5000, "uint32")
    with pytest.raises(InvalidUsageError, match=f"multiple of {alignment}"):
        kernel(1, a[2049:2100], a[4096:4147], push=struct.pack("<I", 51))


# ---- freed arrays ----


def test_a_closed_array_is_refused(device: vkpar.Device, compiler: None) -> None:
    before = device.memory().arrays
    a, b = device.zeros((3, 4)), device.zeros((3, 4))
    view = a[1:]
    a.close()
    a.close()
    assert a.closed
    assert view.closed
    assert "closed" in repr(view)
    kernel = vkpar.Kernel(device, STAMP)
    uses: list[Callable[[], object]] = [
        a.numpy,
        view.numpy,
        a.fill_zeros,
        lambda: a.write(np.zeros((3, 4))),
        lambda: vkpar.copy(a, b),
        lambda: vkpar.copy(b, a),
        lambda: a.copy_from(a),
        lambda: vkpar.add(a, b),
        lambda: vkpar.add(b, b, out=a),
        lambda: vkpar.cast(a, "float16"),
        lambda: vkpar.matmul(a, b, transpose_b=True),
        lambda: kernel(1, a, b, push=struct.pack("<I", 1)),
        lambda: list(vkpar.pieces(a)),
    ]
    for use in uses:
        with pytest.raises(InvalidUsageError, match="close"):
            use()
    with vkpar.Communicator([device]) as comm:
        comm.all_reduce([b]).wait()
        b.close()
        for call in (lambda: comm.all_reduce([b]), lambda: comm.all_reduce([device.zeros((3, 4))], out=[b])):
            with pytest.raises(InvalidUsageError, match="close"):
                call()
    assert a.shape == (3, 4)
    device.synchronize()
    assert device.memory().arrays <= before


def test_closing_waits_for_nothing_and_breaks_nothing(device: vkpar.Device) -> None:
    """The work that was submitted before goes on with the memory, which nobody else gets until it is done."""
    total = device.zeros(100_000)
    ones = np.ones(100_000, np.float32)
    for _ in range(20):
        with device.array(ones) as part:
            vkpar.add(total, part, out=total)
    np.testing.assert_array_equal(total.numpy(), 20)
    nothing = device.zeros(0)
    nothing.close()
    with pytest.raises(InvalidUsageError, match="close"):
        nothing.numpy()


@pytest.mark.parametrize("ring", ["auto", "host"])
def test_closing_beside_other_threads_calls(reopen: Callable[..., vkpar.Device], ring: str) -> None:
    """A call under way keeps the memory: nobody else gets it before the call's work is done."""
    device = reopen(ring=ring, ring_bytes=1 << 16)
    ones = device.array(np.ones(50_000, np.float32))
    values = np.full(500_000, 7.0, np.float32)

    def use(array: vkpar.Array, large: vkpar.Array) -> None:
        with contextlib.suppress(InvalidUsageError):
            large.write(values)
            while True:
                vkpar.add(array, ones, out=array)

    for _ in range(20):
        array, large = device.zeros(50_000), device.empty(500_000)
        worker = threading.Thread(target=use, args=(array, large))
        worker.start()
        time.sleep(0.001)
        large.close()
        array.close()
        others = [device.zeros(50_000), device.zeros(500_000)]
        worker.join()
        for other in others:
            np.testing.assert_array_equal(other.numpy(), 0)


def test_closing_beside_a_collective(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that has found its arrays open runs on their memory, recorded or not."""
    with vkpar.Communicator([device]) as comm:
        a, b = device.array(np.ones(1000, np.float32)), device.zeros(1000)
        comm.all_reduce([a], out=[b]).wait()
        launch = comm._engine._launch

        def close_first(*arguments: Any) -> Any:
            a.close()
            taken.append(device.zeros(1000))
            return launch(*arguments)

        taken: list[vkpar.Array] = []
        b.fill_zeros()
        monkeypatch.setattr(comm._engine, "_launch", close_first)
        comm.all_reduce([a], out=[b]).wait()
        np.testing.assert_array_equal(b.numpy(), 1)
        monkeypatch.undo()
        with pytest.raises(InvalidUsageError, match="close"):
            comm.all_reduce([a], out=[b])


def test_a_group_does_not_open_what_was_closed(device: vkpar.Device) -> None:
    with vkpar.Communicator([device]) as comm:
        a = device.zeros(10)
        with comm.group():
            comm.all_reduce([a])
            with pytest.raises(InvalidUsageError, match="pending in a group"):
                a.close()
        a.close()
        with comm.group(), pytest.raises(InvalidUsageError, match="close"):
            comm.all_reduce([a])
        with pytest.raises(InvalidUsageError, match="close"):
            a.numpy()


# ---- the real limits ----


def test_the_real_limits(device: vkpar.Device) -> None:
    """More than a binding, on some drivers more than a buffer: 307 MiB on lavapipe, 1.2 GiB on SwiftShader."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("writing 1.2 GiB takes SwiftShader long; lavapipe's limit is a quarter of that")
    limit = min(device.limits.max_storage_buffer_range, device.limits.max_buffer) // 4096 * 4096
    nbytes = limit * 12 // (5 if limit <= 1 << 27 else 10) // 4096 * 4096
    array = device.empty(nbytes // 4, "int32")
    array.fill_zeros()
    borders = [0, *range(limit, nbytes, limit), nbytes - 4096]
    want = np.arange(-1000, 1000, dtype=np.int32)
    places = [max(0, min(border // 4 - 1000, array.size - 2000)) for border in borders]
    for place in places:
        array[place : place + 2000].write(want)
    vkpar.add(array, array, out=array)
    for place in places:
        np.testing.assert_array_equal(array[place : place + 2000].numpy(), 2 * want)
    total, step = 0, 1 << 24
    for start in range(0, array.size, step):
        total += int(np.count_nonzero(array[start : start + step].numpy()))
    assert total == len(places) * 1999
    array.close()
    device.trim()


def test_more_than_the_heap_names_the_heap(device: vkpar.Device) -> None:
    heap = max((heap for heap in device.info.heaps if heap.device_local), key=lambda heap: heap.nbytes)
    pattern = rf"an array of {heap.nbytes + 1} bytes .*heap {heap.index}, has {heap.nbytes} bytes"
    with pytest.raises(OutOfMemoryError, match=pattern):
        device.empty(heap.nbytes + 1, "uint8")


def test_an_allocation_that_fails_half_way_leaves_nothing(small: vkpar.Device) -> None:
    small.synchronize()
    before = small.memory()
    with env.override(max_memory=before.arrays + 50_000), pytest.raises(OutOfMemoryError, match="VKPAR_MAX_MEMORY"):
        small.empty(100_000, "uint8")
    small.synchronize()
    assert small.memory().arrays <= before.arrays


def test_what_is_left_is_said_of_whole_arrays(reopen: Callable[..., vkpar.Device]) -> None:
    device = reopen(max_buffer=8192)
    kept = device.empty((100, 1000), "uint8")
    with env.override(max_memory=150_000), pytest.raises(OutOfMemoryError) as caught:
        device.empty(100_001, "uint8")
    assert "100001 bytes asked of" in str(caught.value)
    assert f"array {kept.shape} uint8: 100000 bytes" in str(caught.value)


def test_limits_have_a_least() -> None:
    for name in ("max_buffer", "max_binding"):
        with pytest.raises(InvalidUsageError, match=f"VKPAR_{name.upper()}='4095': expected 0, or 4096"):
            env.override(**{name: 4095}).__enter__()
