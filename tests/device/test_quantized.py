"""Quantised weights: values bit for bit as the gguf package has them, products within derived bounds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from gguf import quants
from helpers.ops.elements import FLOATS, check, normal, values_of
from helpers.ops.quantizing import NAMES, TYPES, blocks_of, columns_of, error_of, exact, made, scaled_by, whole_numbers
from helpers.vulkan.planning import forget
from numpy.typing import NDArray

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, env
from vkpar.ops.quantized import scratch
from vkpar.ops.quantized.weights import KINDS

products = importlib.import_module("vkpar.ops.matmul.few")
integer_dots = importlib.import_module("vkpar.ops.matmul.dots")
pytestmark = pytest.mark.device


@pytest.fixture(params=["default", "few"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: vkpar.Device) -> Iterator[str]:
    """The kernels of the device, and that of any GPU for few rows on all drivers, too."""
    if request.param == "few":
        if "SwiftShader" in device.name and not FULL:
            pytest.skip("SwiftShader compiles each variant of this kernel for seconds; lavapipe runs them")
        monkeypatch.setattr(products, "rows_at_once", lambda device: 8)
        monkeypatch.setattr(products, "by_lanes", lambda device: False)
        monkeypatch.setattr(integer_dots, "usable", lambda device: False)
    forget(device)
    yield str(request.param)
    forget(device)


def bits(array: vkpar.Array) -> NDArray[np.uint32]:
    """The bits of float32, those of every NaN the same."""
    host = array.numpy()
    return np.where(np.isnan(host), np.float32(np.nan), host).view(np.uint32)


# --- values ---

HALVES = np.array([0, -0.0, 2**-24, -(2**-24), 2**-14, 65504, -65504, 1, np.inf, -np.inf, np.nan], np.float16)


@pytest.mark.parametrize("kind", NAMES)
def test_weights_are_bit_for_bit_those_of_gguf(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    """With subnormal, huge and infinite scales and NaN among them, and every whole number under each."""
    rows = 37
    blocks = blocks_of(rng, kind, rows, columns_of(kind))
    blocks[:30] = scaled_by(blocks[:30], kind, rng.choice(HALVES, (30, 3, KINDS[kind].halves)))
    blocks[30:] = rng.integers(0, 256, blocks[30:].shape, np.uint8)  # any bits at all
    q, want = made(device, blocks, kind), exact(blocks, kind)
    assert q.shape == want.shape
    over = -(3 * KINDS[kind].extra) % 16  # bytes that fill a row up
    assert q.nbytes == blocks.nbytes + rows * over
    for _ in range(2):  # the second call goes by what the first one kept
        found = q.dequantize()
        np.testing.assert_array_equal(bits(found), np.where(np.isnan(want), np.float32(np.nan), want).view(np.uint32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(q.dequantize("float16").numpy(), want.astype(np.float16))
    in_bfloat16 = q.dequantize("bfloat16")
    np.testing.assert_array_equal(values_of(in_bfloat16), values_of(vkpar.cast(found, "bfloat16")))


@pytest.mark.parametrize("kind", NAMES)
def test_what_gguf_quantises_comes_back(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    if KINDS[kind].block == 256:
        pytest.skip("the gguf package does not quantise to these")
    values = rng.standard_normal((5, 64)).astype(np.float32)
    q = made(device, quants.quantize(values, TYPES[kind]), kind)
    half_step = np.abs(values).max() / (127 if kind == "q8_0" else 8)
    assert np.abs(q.dequantize().numpy() - values).max() <= 1.01 * half_step


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", NAMES)
def test_blocks_come_from_anywhere(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    blocks = blocks_of(rng, kind, 7, columns_of(kind, 1))
    want = exact(blocks, kind)
    shared = vkpar.host_array(blocks.shape, "uint8", [device])
    shared.numpy()[...] = blocks
    for source in (blocks, np.asfortranarray(blocks), device.array(blocks), device.array(blocks.T.copy()).T, shared):
        np.testing.assert_array_equal(vkpar.quantized(device, source, want.shape, kind).dequantize().numpy(), want)
    flat = device.zeros(blocks.size + 8, "uint8")
    for start in (1, 2, 3, 4):  # bytes of blocks begin anywhere in a word
        view = flat[start : start + blocks.size].reshape(blocks.shape)
        view.write(blocks)
        q = vkpar.quantized(device, view, want.shape, kind)
        view.write(np.zeros_like(blocks))  # what was made of them stays
        np.testing.assert_array_equal(q.dequantize().numpy(), want)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_rows_are_views(device: vkpar.Device, rng: np.random.Generator, kernel: str, kind: str) -> None:
    blocks = blocks_of(rng, kind, 11, columns_of(kind, 1))
    q, want = made(device, blocks, kind), exact(blocks, kind)
    x = rng.integers(-2, 3, (1, want.shape[1])).astype(np.float32)
    whole = vkpar.matmul(device.array(x), q, transpose_b=True).numpy()
    for part in (slice(None), slice(3, 8), slice(-5, None), slice(1, 2), slice(4, 4), slice(9, 50)):
        view = q[part]
        assert (view.shape, len(view)) == (want[part].shape, len(want[part]))
        np.testing.assert_array_equal(view.dequantize().numpy(), want[part])
        product = vkpar.matmul(device.array(x), view, transpose_b=True)
        np.testing.assert_array_equal(product.numpy(), whole[:, part])
    np.testing.assert_array_equal(q[2:9][1:5].dequantize().numpy(), want[3:7])
    for key in (3, slice(0, 4, 2), (slice(1), slice(1))):
        with pytest.raises(InvalidUsageError, match="cut by rows"):
            q[key]  # type: ignore[index]
    view = q[2:4]
    q.close()
    q.close()
    assert view.closed
    for use in (view.dequantize, lambda: vkpar.matmul(device.array(x), view, transpose_b=True)):
        with pytest.raises(InvalidUsageError, match="close"):
            use()


# --- products ---


@pytest.mark.sampled(27)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("m", [1, 2, 3, 8, 40])
def test_products(device: vkpar.Device, rng: np.random.Generator, kernel: str, kind: str, m: int) -> None:
    """Of views at odd offsets, with any number of columns and rows of weights."""
    if kernel == "few" and m == 40:
        pytest.skip("more rows than that kernel takes")
    for n, blocks_in_row, dtype in ((37, 5, FLOATS[m % 3]), (70, 9, "float32")):
        blocks = blocks_of(rng, kind, n, columns_of(kind, blocks_in_row))
        q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
        x = normal(rng, (m, weights.shape[1]), dtype)
        flat = device.array(np.concatenate([np.zeros(5, np.float32), x.reshape(-1)]), dtype)
        view = flat[5:].reshape(x.shape)
        few = m <= products.rows_at_once(device)
        slab = "float32" if few else products.slab_type(device, view.dtype).name
        error = error_of(x, blocks, kind, slab, dots=m == 1 and integer_dots.usable(device))
        first = vkpar.matmul(view, q, transpose_b=True, dtype="float32")
        check(first, x.astype(np.float64) @ weights.T, error)
        again = vkpar.matmul(view, q, transpose_b=True, dtype="float32")
        np.testing.assert_array_equal(again.numpy(), first.numpy())
        check(vkpar.matmul(view, q, transpose_b=True), x.astype(np.float64) @ weights.T, error)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_wide_and_narrow_spreads(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All ways of the kernel for few rows give whole numbers exactly."""
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each variant of this kernel for seconds; lavapipe runs them")
    monkeypatch.setattr(products, "rows_at_once", lambda device: 8)
    monkeypatch.setattr(products, "by_lanes", lambda device: False)
    monkeypatch.setattr(integer_dots, "usable", lambda device: False)
    blocks = whole_numbers(blocks_of(rng, kind, 19, 2048), kind)
    q, weights = made(device, blocks, kind), exact(blocks, kind)
    fours = KINDS[kind].chunk // 4
    for m, ways in ((1, [(32, 4, 2, 2), (64, 1, 2, 1), (128, 2, 1, 1)]), (3, [(64, 2, 1, 1)])):
        x = rng.integers(-3, 4, (m, 2048)).astype(np.float32)
        for span, columns, turns, passes in ways:
            way = products.Spread(span, columns, turns, max(passes, 256 // (span * turns * fours)))
            monkeypatch.setattr(products, "spread", lambda *_, way=way: way)
            forget(device)
            found = vkpar.matmul(device.array(x), q, transpose_b=True)
            np.testing.assert_array_equal(found.numpy(), x @ weights.T)
    forget(device)


def test_spreads_fit_shared_memory(device: vkpar.Device) -> None:
    """Whatever the sizes: it holds what a group needs, and sums find room in it; there is always a way."""
    for kind in KINDS.values():
        for m in range(1, 9):
            for blocks in (1, 2, 16, 56, 128):
                found = products.spreads(kind, m, blocks * kind.block)
                for n in (1, 100, 4096, 128256):
                    assert products.spread(device, kind, m, n, blocks * kind.block) in found
                for way in found:
                    quads = way.span * way.turns * way.passes * kind.chunk // 4
                    assert 256 <= quads <= 2048 // m
                    assert quads <= 1024 or kind.halves == 1  # the others keep sums of them, too
                    assert way.turns <= (4 if m == 1 else 2)
                    assert way.width % 4 == 0


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_sums_of_subgroups(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever a subgroup's size: GPUs of some vendors alone use these kernels."""
    if "arithmetic" not in device.info.features.subgroup_operations or ("SwiftShader" in device.name and not FULL):
        pytest.skip("subgroups of this device do not add up, or SwiftShader compiles these kernels for seconds")
    monkeypatch.setattr(products, "rows_at_once", lambda device: 8)
    monkeypatch.setattr(products, "by_lanes", lambda device: False)
    monkeypatch.setattr(products.matvec, "adds_up", lambda info: True)
    monkeypatch.setattr(integer_dots, "usable", lambda device: False)
    forget(device)
    blocks = blocks_of(rng, kind, 21, columns_of(kind, 7))
    q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
    for m in (1, 5):
        x = normal(rng, (m, weights.shape[1]), "float32")
        found = vkpar.matmul(device.array(x), q, transpose_b=True)
        check(found, x.astype(np.float64) @ weights.T, error_of(x, blocks, kind))
    forget(device)


@pytest.mark.parametrize("m", [1, 12])
def test_what_follows_a_product(device: vkpar.Device, rng: np.random.Generator, kernel: str, m: int) -> None:
    blocks = blocks_of(rng, "q4_0", 13, 64).reshape(13, 2, -1)
    blocks[..., :2] = np.array([1], np.float16).view(np.uint8)
    q, weights = made(device, blocks.reshape(13, -1), "q4_0"), exact(blocks.reshape(13, -1), "q4_0")
    x, bias, residual = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((m, 64), (13,), (m, 13)))
    want = np.maximum(x @ weights.T + bias, 0) + residual
    for dtype in ("float32", "float16"):
        a, v, r = (device.array(item, dtype) for item in (x, bias, residual))
        for _ in range(2):
            out = vkpar.matmul(a, q, transpose_b=True, bias=v, activation="relu", residual=r)
            np.testing.assert_array_equal(values_of(out), want)
        around = device.array(np.full(m * 13 + 2, 7), dtype)  # halves end and begin within words
        into = around[1 : 1 + m * 13].reshape(m, 13)
        assert vkpar.matmul(a, q, transpose_b=True, out=into, bias=v, activation="relu", residual=r) is into
        np.testing.assert_array_equal(values_of(around), np.concatenate([[7], want.reshape(-1), [7]]))
        for turn in range(2):
            vkpar.matmul(a, q, transpose_b=True, out=r, accumulate=True)
            np.testing.assert_array_equal(values_of(r), residual + (turn + 1) * (x @ weights.T))
    if kernel == "few":
        return
    batch = device.array(np.stack([x, x + 1]))
    made_batch = vkpar.matmul(batch, q, transpose_b=True, bias=device.array(bias)).numpy()
    np.testing.assert_array_equal(made_batch, np.stack([x, x + 1]) @ weights.T + bias)
    turned = vkpar.matmul(device.array(np.ascontiguousarray(x.T)), q, transpose_a=True, transpose_b=True)
    np.testing.assert_array_equal(turned.numpy(), x @ weights.T)
    target = device.zeros((13, m))
    vkpar.matmul(device.array(x), q, transpose_b=True, out=target.T)
    np.testing.assert_array_equal(target.numpy().T, x @ weights.T)


@pytest.mark.parametrize("m", [1, 9])
def test_captured(device: vkpar.Device, rng: np.random.Generator, kernel: str, m: int) -> None:
    blocks = blocks_of(rng, "q8_0", 24, 96)
    q = made(device, blocks, "q8_0")
    x, bias = device.array(normal(rng, (m, 96), "float32")), device.array(normal(rng, (24,), "float32"))
    out, weights = device.empty((m, 24)), device.empty(q.shape)
    want = vkpar.matmul(x, q, transpose_b=True, bias=bias, activation="silu").numpy()
    with vkpar.capture([device]) as graph:
        vkpar.matmul(x, q, transpose_b=True, bias=bias, activation="silu", out=out)
        vkpar.copy(q.dequantize(), weights)
    for _ in range(2):
        out.fill_zeros()
        graph.launch().wait()
        np.testing.assert_array_equal(out.numpy(), want)
    np.testing.assert_array_equal(weights.numpy(), exact(blocks, "q8_0"))
    graph.close()


@pytest.mark.sampled(11)
@pytest.mark.parametrize("kind", NAMES)
def test_what_is_no_number_stays_in_its_row(
    device: vkpar.Device, rng: np.random.Generator, kernel: str, kind: str
) -> None:
    blocks = blocks_of(rng, kind, 6, columns_of(kind))
    q, x = made(device, blocks, kind), normal(rng, (3, columns_of(kind)), "float32")
    x[1, 5] = np.nan
    found = vkpar.matmul(device.array(x), q, transpose_b=True).numpy()
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()
    alone = vkpar.matmul(device.array(x[1:2]), q, transpose_b=True).numpy()
    assert np.isnan(alone).all()
    x[1, 5] = np.inf
    assert not np.isfinite(vkpar.matmul(device.array(x[1:2]), q, transpose_b=True).numpy()).any()


def test_halves_for_many_rows(device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What GPUs do with float16: the weights are rounded to it, in slabs."""
    monkeypatch.setattr(products, "slab_type", lambda device, dtype: dtype)
    monkeypatch.setattr(scratch, "SLAB", 1 << 14)
    forget(device)
    blocks = blocks_of(rng, "q8_0", 300, 96)
    q, weights = made(device, blocks, "q8_0"), exact(blocks, "q8_0").astype(np.float64)
    x, residual = normal(rng, (12, 96), "float16"), normal(rng, (12, 300), "float16")
    r = [device.array(residual, dtype) for dtype in ("float16", "float32")]  # the latter is made float16 aside
    for options in ({}, {"residual": r[0]}, {"residual": r[1]}):
        found = vkpar.matmul(device.array(x, "float16"), q, transpose_b=True, **options)
        want = x.astype(np.float64) @ weights.T + (residual if options else 0)
        check(found, want, error_of(x, blocks, "q8_0", "float16") + 2.0**-23 * np.abs(want))
    forget(device)


def test_products_of_many_rows_share_scratch(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of many shapes are made in the same memory: nothing new is allocated once there is some."""
    monkeypatch.setattr(scratch, "SLAB", 1 << 19)
    device.memory()  # what earlier tests dropped goes
    monkeypatch.setattr(device.logical.recycler, "_most", 2 << 20)  # all of it, were there a slab of each size
    weights = [made(device, blocks_of(rng, "q8_0", rows, 512), "q8_0") for rows in (900, 700, 600, 500, 300, 260, 200)]
    x = device.array(normal(rng, (9, 512), "float32"))
    for q in weights:
        vkpar.matmul(x, q, transpose_b=True)
    new: list[int] = []
    allocate = device.logical.allocator.allocate

    def counted(nbytes: int, *arguments: Any, **options: Any) -> Any:
        new.append(nbytes)
        return allocate(nbytes, *arguments, **options)

    monkeypatch.setattr(device.logical.allocator, "allocate", counted)
    for _ in range(2):
        for q in weights:
            vkpar.matmul(x, q, transpose_b=True)
    assert not new


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", NAMES)
def test_take(device: vkpar.Device, rng: np.random.Generator, kind: str) -> None:
    blocks = blocks_of(rng, kind, 9, columns_of(kind))
    q, table = made(device, blocks, kind), np.concatenate([exact(blocks, kind), np.full((1, columns_of(kind)), np.nan)])
    for numbers in (np.array([[3, 0, -1], [8, -9, 9]], np.int32), np.array([2, 2**32 - 1, 0], np.uint32)):
        rows = numbers.astype(np.int64)
        rows[(rows < 0) & (rows >= -9)] += 9
        want = table[np.where((rows >= 0) & (rows < 9), rows, 9)]
        indices = device.array(numbers)
        for _ in range(2):
            np.testing.assert_array_equal(vkpar.take(q, indices).numpy(), want)
        flat = device.zeros(want.size + 1, "float16")
        out = flat[1:].reshape(want.shape)
        assert vkpar.take(q, indices, out=out) is out
        np.testing.assert_array_equal(out.numpy(), want.astype(np.float16))
    np.testing.assert_array_equal(vkpar.take(q[4:], indices[:1]).numpy(), table[[6]])
    np.testing.assert_array_equal(vkpar.take(q, device.array([8, 1, 7, 1], "int32")[::2]).numpy(), table[[8, 7]])
    with vkpar.capture([device]) as graph:
        got = vkpar.take(q, indices)
    graph.launch().wait()
    np.testing.assert_array_equal(got.numpy(), want)
    graph.close()
    assert vkpar.take(q, device.empty((0,), "int32")).shape == (0, columns_of(kind))
    none = vkpar.take(q[:0], indices)
    assert np.isnan(none.numpy()).all()
    with pytest.raises(UnsupportedError, match="indices are"):
        vkpar.take(q, device.zeros(3))
    with pytest.raises(InvalidUsageError, match="out is"):
        vkpar.take(q, indices, out=device.zeros(3))


def test_nothing(device: vkpar.Device) -> None:
    x = device.zeros((2, 32))
    none = vkpar.quantized(device, np.empty((0, 34), np.uint8), (0, 32), "q8_0")
    assert (none.nbytes, none.size, none.dequantize().shape) == (0, 0, (0, 32))
    assert vkpar.matmul(x, none, transpose_b=True).shape == (2, 0)
    flat = vkpar.quantized(device, np.empty((3, 0), np.uint8), (3, 0), "q4_k")
    bias = device.array([1, 2, 3], "float32")
    found = vkpar.matmul(device.empty((2, 0)), flat, transpose_b=True, bias=bias)
    np.testing.assert_array_equal(found.numpy(), [[1, 2, 3]] * 2)
    some = vkpar.quantized(device, np.zeros((3, 34), np.uint8), (3, 32), "q8_0")
    assert vkpar.matmul(device.empty((0, 32)), some, transpose_b=True).shape == (0, 3)
    np.testing.assert_array_equal(vkpar.matmul(x, some, transpose_b=True).numpy(), np.zeros((2, 3)))
    none.close()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", NAMES)
def test_over_several_buffers(device: vkpar.Device, rng: np.random.Generator, kernel: str, kind: str) -> None:
    """Rows are cut into pieces that a kernel binds each."""
    small = {"max_buffer": 8192, "max_binding": 4352, "ring_bytes": 20_000}
    with env.override(**small), vkpar.open_devices(str(device.info.index))[0] as opened:
        blocks = blocks_of(rng, kind, 99, columns_of(kind, 1 if KINDS[kind].block == 256 else 3))
        weights = exact(blocks, kind)
        for source in (blocks, opened.array(blocks)):
            q = vkpar.quantized(opened, source, weights.shape, kind)
            assert len(q.pieces) > 1
            np.testing.assert_array_equal(q.dequantize().numpy(), weights)
            np.testing.assert_array_equal(q[31:94].dequantize("float16").numpy(), weights[31:94].astype(np.float16))
        for m in (1, 3, 20) if kernel == "default" else (1,):
            x = normal(rng, (m, weights.shape[1]), "float32")
            bias = normal(rng, (99,), "float32")
            for dtype in ("float32", "float16") if m == 1 else ("float32",):
                found = vkpar.matmul(opened.array(x), q, transpose_b=True, bias=opened.array(bias), dtype=dtype)
                want = x.astype(np.float64) @ weights.T.astype(np.float64) + bias
                error = error_of(x, blocks, kind, dots=m == 1 and integer_dots.usable(opened))
                check(found, want, error + 2.0**-23 * np.abs(want))
        with pytest.raises(UnsupportedError, match="cannot see a table"):
            vkpar.take(q, opened.array([1], "int32"))
        with pytest.raises(UnsupportedError, match="binds at once"):
            vkpar.quantized(opened, np.zeros((1, 34 * 200), np.uint8), (1, 6400), "q8_0")


# --- what is refused ---


def test_bad_input(device: vkpar.Device, rigs: Any) -> None:
    blocks = np.zeros((2, 34), np.uint8)
    for shape, kind, say in (
        ((2, 33), "q8_0", "33 columns are no multiple of the 32"),
        ((2, 32), "q4_k", "32 columns are no multiple of the 256"),
        ((2, 64), "q8_0", r"uint8 of shape \(2, 68\)"),
        ((2, 32), "q4_0", r"uint8 of shape \(2, 18\)"),
        ((2, 32), "q3_k", "kind is one of q8_0, q4_0, q4_k, q4_1, q5_0, q5_1, q5_k, q6_k, not 'q3_k'"),
        ((64,), "q8_0", "rows and columns"),
    ):
        with pytest.raises(InvalidUsageError, match=say):
            vkpar.quantized(device, blocks, shape, kind)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="not float32"):
        vkpar.quantized(device, blocks.astype(np.float32), (2, 32), "q8_0")
    with pytest.raises(InvalidUsageError, match="opened vkpar"):
        vkpar.quantized("gpu", blocks, (2, 32), "q8_0")  # type: ignore[arg-type]
    other = rigs(f"{device.info.index}*2")[1]
    with pytest.raises(InvalidUsageError, match="blocks live on"):
        vkpar.quantized(device, other.array(blocks), (2, 32), "q8_0")
    q, x = vkpar.quantized(device, blocks, (2, 32), "q8_0"), device.zeros((1, 32))
    with pytest.raises(UnsupportedError, match="int32"):
        q.dequantize("int32")
    for call, say in (
        (lambda: vkpar.matmul(x, q), "transpose_b=True"),
        (lambda: x @ q, "transpose_b=True"),
        (lambda: vkpar.matmul(q, x, transpose_b=True), "a has to be a vkpar.Array, not Quantized"),
        (lambda: vkpar.matmul(q, q, transpose_b=True), "second operand"),
        (lambda: vkpar.matmul(np.zeros((1, 32)), q, transpose_b=True), "a has to be a vkpar.Array, not ndarray"),
        (lambda: vkpar.matmul(other.zeros((1, 32)), q, transpose_b=True), "different devices"),
        (lambda: vkpar.matmul(device.zeros((1, 31)), q, transpose_b=True), "does not fit weights"),
        (lambda: vkpar.matmul(device.zeros(32), q, transpose_b=True), "takes matrices"),
        (lambda: vkpar.matmul(x, q, transpose_b=True, activation="step"), "activation is one of"),
        (lambda: vkpar.matmul(x, q, transpose_b=True, bias=device.zeros(3)), "bias has shape"),
        (lambda: vkpar.matmul(x, q, transpose_b=True, accumulate=True), "accumulate adds to out"),
        (lambda: vkpar.matmul(x, q, transpose_b=True, out=device.zeros((2, 2))), "out is"),
        (lambda: vkpar.matmul(x, q, transpose_b=True, out=x[:, :2]), "share memory"),
    ):
        with pytest.raises(InvalidUsageError, match=say):
            call()  # type: ignore[operator]
    with pytest.raises(UnsupportedError, match="float64"):
        vkpar.matmul(device.array(np.zeros((1, 32))), q, transpose_b=True)
