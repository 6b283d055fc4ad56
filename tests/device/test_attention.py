"""Attention and its cache against float64: every form of operands, eager and captured."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.ops.attending import made_of
from helpers.ops.elements import FLOATS, check, normal, values_of
from helpers.ops.windows import windowed

import vkpar
from vkpar.doctor.references import attended
from vkpar.ops.call.call import Call
from vkpar.vulkan import query as timing

FULL = os.environ.get("VKPAR_TEST_FULL") == "1"
module = importlib.import_module("vkpar.ops.attention.kernels")
pytestmark = [pytest.mark.device, pytest.mark.sampled(9)]


def weights_of(q: vkpar.Array, kv_heads: int) -> str:
    """Return as what the kernel for these queries stores weights: in their type where it is that of matrix cores."""
    queries = q.shape[-3] // kv_heads * q.shape[-2]
    name, width = q.dtype.name, q.shape[-1]
    kernel = module.kernel_for(q.device, queries, name, name, width).name
    return name if kernel.startswith(module.CORES) else "float32"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 2), (3, 3)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 200, 128), (5, 9, 20), (3, 70, 80), (9, 9, 7), (2, 130, 264)])
def test_attention(
    device: vkpar.Device,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    heads: int,
    kv_heads: int,
    causal: bool,
    dtype: str,
) -> None:
    arrays, exact = made_of(device, rng, heads, kv_heads, shape, dtype)
    out = device.empty(arrays[0].shape, dtype)
    stored = weights_of(arrays[0], kv_heads)
    expected = attended(*exact, causal=causal, stored=stored)
    for _ in range(2):  # the second time by the recipe
        check(vkpar.attention(*arrays, causal=causal), *expected)
        assert vkpar.attention(*arrays, causal=causal, scale=0.5, out=out) is out
        check(out, *attended(*exact, causal=causal, scale=0.5, stored=stored))


def check_windows(
    arrays: Any,
    exact: Any,
    windows: tuple[int, ...],
    length: int | None = None,
    stored: str = "float32",
    ways: Sequence[tuple[bool, bool]] = ((True, True), (True, False), (False, True), (False, False)),
) -> None:
    """Check results of windows; ``ways``: causal or not, with a mask besides or without."""
    q, device = arrays[0], arrays[0].device
    tokens, keys = q.shape[-2], arrays[1].shape[-2]
    own = np.where(np.arange(keys) % 5 == 3, -np.inf, 0.25 * (np.arange(keys) % 3)).astype(np.float32)
    lengths = None if length is None else device.array(np.array([length], np.int32))
    for (causal, masked), window in itertools.product(ways, windows):
        hidden = windowed(tokens, keys, window, causal=causal, length=length)
        given = device.array(own) if masked else None
        made = vkpar.attention(*arrays, causal=causal, mask=given, lengths=lengths, window=window)
        check(made, *attended(*exact, mask=hidden + own.astype(np.float64) if masked else hidden, stored=stored))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 300, 16), (5, 200, 8), (40, 90, 20)])
def test_windows(device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int, int], dtype: str) -> None:
    """Of one key, of some, of as many as there are, and of more, which are no limit."""
    arrays, exact = made_of(device, rng, 4, 2, shape, dtype)
    check_windows(arrays, exact, (1, 7, 64, shape[1], 1 << 20), stored=weights_of(arrays[0], 2))
    check_windows(arrays, exact, (9,), length=shape[1] - 30, stored=weights_of(arrays[0], 2))


def test_what_lies_before_all_windows_is_not_read(device: vkpar.Device, rng: np.random.Generator) -> None:
    """NaN there would make every result NaN, by scores and by values."""
    (q, k, v), _ = made_of(device, rng, 2, 1, (3, 200, 8), "float32")
    wanted = vkpar.attention(q, k, v, causal=True, window=20)
    for spoilt in (k, v):
        spoilt[:, : 200 - 22].write(np.full((1, 178, 8), np.nan, np.float32))
        made = vkpar.attention(q, k, v, causal=True, window=20)
        assert made.numpy().tobytes() == wanted.numpy().tobytes()
    assert np.isnan(vkpar.attention(q, k, v, causal=True, window=23).numpy()).any()
    for window in (0, -1, 2.0, True):
        with pytest.raises(vkpar.InvalidUsageError, match="window is a whole number from 1"):
            vkpar.attention(q, k, v, window=window)


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_are_rounded_to_the_nearest(device: vkpar.Device, dtype: str) -> None:
    """Of two keys the second one counts, by weights all over a power of two: rounded toward zero all were too small."""
    q, k, v = (np.zeros((1, rows, 64), np.float32) for rows in (64, 2, 2))
    q[0, :, 0], k[0, 1, 0], v[0, 1] = -np.linspace(0.01, 0.69, 64), 1.0, 1.0
    arrays = [device.array(each, dtype) for each in (q, k, v)]
    exact = [values_of(array) for array in arrays]
    check(vkpar.attention(*arrays, scale=1.0), *attended(*exact, scale=1.0, stored=weights_of(arrays[0], 1)))


# Kernels of GPUs and what they take: heads, heads of keys, queries. CPU drivers take long to compile them.
GPU_KERNELS = {
    "attention_tiled float32": (2, 1, 40),
    "attention_tiled_rows4 float16": (2, 1, 40),
    "attention_rows4_slim float32": (3, 1, 2),
    "attention_warps_rows1 float16": (2, 2, 1),
}
if FULL:
    GPU_KERNELS |= {
        "attention_rows4 float16": (4, 1, 1),
        "attention_tiled bfloat16": (4, 2, 33),
        "attention_rows1 float32": (1, 1, 1),
        "attention_rows8 bfloat16": (4, 2, 5),
    }


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", GPU_KERNELS)
@pytest.mark.parametrize("splits", [1, 3])
def test_kernels_of_gpus(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str, splits: int
) -> None:
    """With tiles that are cut short, parts, lengths within a part and before it, and rows that no query fills."""
    if "swiftshader" in device.info.name.lower():
        pytest.skip("SwiftShader takes minutes to compile these kernels")
    kernel, dtype = name.split()
    heads, kv_heads, tokens = GPU_KERNELS[name]
    warp = device.info.features.subgroup_size
    tiled = kernel.startswith("attention_tiled")
    rows = 64 if tiled else int(kernel.removesuffix("_slim")[-1])
    more = (max(8, warp // 2), warp) if "warps" in kernel else ()
    threads = 256 if kernel == "attention_tiled_rows4" else 64 if warp < 32 and more else 128
    found = module.Kernel(kernel, threads, rows, more)
    monkeypatch.setattr(module, "kernel_for", lambda *about: found)
    monkeypatch.setattr(module, "splits_for", lambda *about: splits)
    device.plans.recipes.clear()
    arrays, exact = made_of(device, rng, heads, kv_heads, (tokens, 300, 40), dtype)
    for length in (None, 3, 290):
        lengths = None if length is None else device.array(np.array([length], np.int32))
        made = vkpar.attention(*arrays, causal=True, lengths=lengths)
        check(made, *attended(*exact, causal=True, length=length))
    check_windows(arrays, exact, (1, 37), 290, ways=[(True, False)])
    check_windows(arrays, exact, (37,), ways=[(False, True)])
    mask = np.where(rng.random((tokens, 300)) < 0.3, -np.inf, rng.standard_normal((tokens, 300))).astype(np.float32)
    made = vkpar.attention(*arrays, mask=device.array(mask))
    check(made, *attended(*exact, mask=mask.astype(np.float64)))
    spoilt = exact[0].astype(np.float32)
    spoilt[0, 0, 1] = np.nan
    made = vkpar.attention(device.array(spoilt, dtype), *arrays[1:])
    assert np.isnan(values_of(made)[0, 0]).all()
    assert np.isnan(values_of(made)).sum() == 40
    again = vkpar.attention(device.array(spoilt, dtype), *arrays[1:])
    assert again.numpy().tobytes() == made.numpy().tobytes()
    counters = device.plans.tables.get(("counters",))
    assert found.finishes == (not tiled)
    assert counters is None or not counters.numpy().any()
    assert counters is not None or splits == 1 or not found.finishes
    device.plans.recipes.clear()


GPU_CASES = [
    (4, 1, 1, 128),
    (1, 1, 1, 20),
    (2, 1, 3, 200),
    (4, 2, 5, 64),
    (8, 2, 40, 128),
    (4, 1, 70, 256),
    (2, 2, 90, 72),
]


@pytest.mark.gpu
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_on_gpus(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """By the kernels that GPUs take for few and many queries: whole rows, and parts of long ones."""
    if device.info.is_cpu:
        pytest.skip("needs a GPU")
    for (heads, kv_heads, tokens, width), more in itertools.product(GPU_CASES, (30, 3000)):
        keys = tokens + more
        arrays, exact = made_of(device, rng, heads, kv_heads, (tokens, keys, width), dtype)
        stored = weights_of(arrays[0], kv_heads)
        for length in (None, keys - 7):
            lengths = None if length is None else device.array(np.array([length], np.int32))
            made = vkpar.attention(*arrays, causal=True, lengths=lengths)
            check(made, *attended(*exact, causal=True, length=length, stored=stored))
            check_windows(arrays, exact, (1, 29, 300), length, stored)
        mask = np.where(rng.random((tokens, keys)) < 0.3, -np.inf, rng.standard_normal((tokens, keys)))
        mask = mask.astype(np.float32)
        made = vkpar.attention(*arrays, mask=device.array(mask))
        check(made, *attended(*exact, mask=mask.astype(np.float64), stored=stored))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_lengths(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Keys past the length are never looked at; none, and rows before the first key, give zeros."""
    (q, _, _), exact = made_of(device, rng, 4, 2, (3, 20, 8), "float32")
    for length in (0, 1, 2, 7, 20, 1000, *([-5] if dtype == "int32" else [])):
        lengths = device.array(np.array([length], dtype))
        found = min(max(length, 0), 20)
        dirty = [
            device.array(np.where(np.arange(20)[:, None] < found, each, np.nan).astype(np.float32))
            for each in exact[1:]
        ]
        for causal in (False, True):
            made = vkpar.attention(q, *dirty, causal=causal, lengths=lengths)
            check(made, *attended(*exact, causal=causal, length=length))
            hidden = 3 - found if causal else 3 * (found == 0)
            assert (made.numpy()[:, : max(hidden, 0)] == 0).all()


def test_batches(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Sequences with lengths of their own, and one length for all."""
    both = [made_of(device, rng, 4, 2, (2, 30, 16), "float16") for _ in range(2)]
    q, k, v = (device.array(np.stack([exact[n] for _, exact in both]), "float16") for n in range(3))
    for lengths in ([30, 4], [9]):
        made = vkpar.attention(q, k, v, causal=True, lengths=device.array(np.array(lengths, np.uint32)))
        for number, (_, exact) in enumerate(both):
            check(made[number], *attended(*exact, causal=True, length=lengths[number % len(lengths)]))


MASKS = {
    "one for all": lambda rng: np.where(rng.random((1, 1, 40)) < 0.5, -np.inf, rng.standard_normal((1, 1, 40))),
    "by query": lambda rng: rng.standard_normal((5, 40)),
    "by head": lambda rng: rng.standard_normal((4, 1, 40)),
    "a number": lambda rng: np.array(2.5),
    "nothing seen": lambda rng: np.full((5, 1), -np.inf),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", MASKS)
def test_masks(device: vkpar.Device, rng: np.random.Generator, name: str, dtype: str) -> None:
    arrays, exact = made_of(device, rng, 4, 2, (5, 40, 12), "float32")
    mask = MASKS[name](rng).astype(dtype)
    for causal in (False, True):
        made = vkpar.attention(*arrays, mask=device.array(mask), causal=causal)
        check(made, *attended(*exact, mask=mask.astype(np.float64), causal=causal))
    flipped = vkpar.attention(
        *arrays,
        mask=device.array(mask[..., ::-1].copy() if mask.ndim else mask)[..., ::-1]
        if mask.ndim
        else device.array(mask),
    )
    check(flipped, *attended(*exact, mask=mask.astype(np.float64)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_scores_give_exact_means(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """Of whole numbers, over a power of two of keys: every weight is 1, every sum exact."""
    q = device.zeros((2, 3, 16), dtype)
    k = device.array(rng.integers(-9, 9, (1, 256, 16)), dtype)
    values = rng.integers(-1, 2, (1, 256, 16)) * 64
    values[:, 1:] = values[:, :1]
    values[:, ::2] *= -1
    values[:, :64] += 128
    made = values_of(vkpar.attention(q, k, device.array(values, dtype)))
    np.testing.assert_array_equal(made, np.broadcast_to(values.mean(axis=1), made.shape))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [16, 5])
def test_views_are_taken_where_they_lie(device: vkpar.Device, rng: np.random.Generator, width: int, dtype: str) -> None:
    """Queries, keys and values out of one projection (T, heads * width), and the result into (T, heads * width)."""
    tokens, heads, kv_heads = 6, 4, 2
    x = normal(rng, (tokens, heads + 2 * kv_heads, width), dtype)
    exact = x.transpose(1, 0, 2).astype(np.float64)
    parts = exact[:heads], exact[heads : heads + kv_heads], exact[heads + kv_heads :]
    stored = weights_of(device.empty((heads, tokens, width), dtype), kv_heads)
    expected, error = attended(*parts, causal=True, stored=stored)
    for before in (0, 1, 8):
        whole = device.zeros(before + x.size, dtype)
        whole[before:].reshape(x.shape).write(x)
        rows = whole[before:].reshape(x.shape).transpose(1, 0, 2)
        target = device.zeros((before + tokens * heads * width + 1,), dtype)
        place = target[before : before + tokens * heads * width].reshape(tokens, heads, width)
        out = place.transpose(1, 0, 2)
        for _ in range(2):
            vkpar.attention(
                rows[:heads], rows[heads : heads + kv_heads], rows[heads + kv_heads :], causal=True, out=out
            )
            check(place.contiguous(), expected.transpose(1, 0, 2), error.transpose(1, 0, 2))
        found = values_of(target)
        assert not found[:before].any()
        assert found[-1] == 0
    made = vkpar.attention(rows[:heads][:, ::-1], rows[heads : heads + kv_heads], rows[heads + kv_heads :])
    expected, error = attended(parts[0][:, ::-1], *parts[1:], stored=stored)
    check(made, expected, error)


@pytest.mark.parametrize("shape", [(1, 30_000, 8), (2, 40_000, 4)])
def test_more_keys_than_a_part_has(device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    arrays, exact = made_of(device, rng, 2, 1, shape, "float16")
    for length in (shape[1], 100):
        lengths = device.array(np.array([length], np.uint32))
        made = vkpar.attention(*arrays, causal=True, lengths=lengths)
        check(made, *attended(*exact, causal=True, length=length))


def test_special_values(device: vkpar.Device, rng: np.random.Generator) -> None:
    """NaN and +inf as scores make their query NaN; -inf hides a key; infinite values stay infinite."""
    (q, k, v), exact = made_of(device, rng, 3, 1, (2, 9, 4), "float32")
    for value, query in ((np.nan, 0), (np.inf, 0)):
        host = np.abs(exact[0]).astype(np.float32)
        host[1, query, 2] = value
        made = vkpar.attention(device.array(host), device.array(np.abs(exact[1]).astype(np.float32)), v).numpy()
        assert np.isnan(made[1, query]).all()
        assert np.isfinite(np.delete(made.reshape(6, 4), 2 + query, axis=0)).all()
    one = exact[1].astype(np.float32)
    one[0, 3] = np.nan
    assert np.isnan(vkpar.attention(q, device.array(one), v).numpy()).all()
    hidden = np.zeros(9, np.float32)
    hidden[3:] = -np.inf
    check(vkpar.attention(q, k, v, mask=device.array(hidden)), *attended(*(exact[0], exact[1][:, :3], exact[2][:, :3])))
    two = exact[2].astype(np.float32)
    two[0, 2, 1] = np.inf
    made = vkpar.attention(q, k, device.array(two)).numpy()
    assert (made[..., 1] == np.inf).all()
    assert np.isfinite(made[..., [0, 2, 3]]).all()


# ---- the cache ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [16, 5])
def test_appending(device: vkpar.Device, rng: np.random.Generator, width: int, dtype: str) -> None:
    cache = vkpar.KVCache(device, 2, 10, width, dtype)
    expected = np.zeros((2, 10, width)), np.zeros((2, 10, width))
    assert cache.length.item() == 0
    for positions, length in (
        (1, 4),
        (device.array(np.array([4], np.int32)), 7),
        (device.array(np.array([9], np.uint32)), 10),
        (device.array(np.array([0, 7, 8], np.uint32)), 9),
        (device.array(np.array([2, 2**31, 2**32 - 1], np.uint32)), 10),
        (device.array(np.array([2**32 - 1], np.uint32)), 10),
    ):
        x = normal(rng, (3, 2, width), "bfloat16")
        x = values_of(device.array(x, dtype)).astype(np.float32)
        k, v = device.array(x), device.array(2 * x)
        cache.append(k.transpose(1, 0, 2), v.transpose(1, 0, 2), positions)
        host = np.array([positions]) if isinstance(positions, int) else positions.numpy()
        places = host.astype(np.int64) + np.arange(3) if len(host) == 1 else host.astype(np.int64) % 2**32
        for number, place in enumerate(places):
            if 0 <= place < 10:
                expected[0][:, place], expected[1][:, place] = x[number], 2 * x[number]
        assert cache.length.item() == length
        for found, want in zip((cache.k, cache.v), expected, strict=True):
            np.testing.assert_array_equal(values_of(found.contiguous()), want)
    cache.close()
    assert cache.closed


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_decoding_eager_and_captured(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    """One parameter serves rope, the cache and attention; bits are the same at 20 positions after a prefill."""
    heads, kv_heads, width, first = 4, 2, 16, 5

    def step(cache: vkpar.KVCache, x: vkpar.Array, positions: vkpar.Array) -> vkpar.Array:
        tokens = len(x)
        rows = x.reshape(tokens, heads + 2 * kv_heads, width).transpose(1, 0, 2)
        q = vkpar.rope(rows[:heads], positions)
        k = vkpar.rope(rows[heads : heads + kv_heads], positions)
        cache.append(k, rows[heads + kv_heads :], positions)
        made = device.empty((tokens, heads, width), x.dtype)
        vkpar.attention(q, cache, causal=True, out=made.transpose(1, 0, 2))
        return made.reshape(tokens, heads * width)

    caches = [vkpar.KVCache(device, kv_heads, 40, width) for _ in range(2)]
    size = (heads + 2 * kv_heads) * width
    prompt = normal(rng, (first, size), dtype)
    for cache in caches:
        step(cache, device.array(prompt, dtype), device.arange(first))
    x = device.zeros((1, size), dtype)
    with vkpar.capture(device) as graph:
        (position,) = graph.param("position")
        captured = step(caches[1], x, position)
    every = [prompt]
    for place in range(first, first + 20):
        every.append(normal(rng, (1, size), dtype))
        x.write(every[-1].astype(dtype))
        eager = step(caches[0], x, device.array(np.array([place], np.uint32)))
        graph.launch(position=place).wait()
        np.testing.assert_array_equal(captured.numpy(), eager.numpy())
    assert caches[1].length.item() == first + 20
    fresh = vkpar.KVCache(device, kv_heads, 40, width)
    whole = step(fresh, device.array(np.concatenate(every), dtype), device.arange(first + 20))
    rows = fresh.k.numpy().astype(np.float64), fresh.v.numpy().astype(np.float64)
    last = vkpar.rope(
        x.reshape(1, -1, width).transpose(1, 0, 2)[:heads], device.array(np.array([first + 19], np.uint32))
    )
    expected, error = attended(values_of(last), *rows, length=first + 20)
    check(captured.reshape(heads, 1, width), expected, error)
    stored = weights_of(whole.reshape(first + 20, heads, width).transpose(1, 0, 2), kv_heads)
    expected, error = attended(values_of(last), *rows, length=first + 20, stored=stored)
    check(whole[-1:].reshape(heads, 1, width), expected, error)
    graph.close()


def test_a_length_of_ones_own(device: vkpar.Device, rng: np.random.Generator) -> None:
    (q, k, v), exact = made_of(device, rng, 2, 2, (1, 8, 8), "float16")
    cache = vkpar.KVCache(device, 2, 20, 8)
    check(vkpar.attention(q, cache), np.zeros((2, 1, 8)), 0.0)
    cache.append(k, v, 0)
    check(vkpar.attention(q, cache), *attended(*exact))
    check(vkpar.attention(q, cache, lengths=device.array(np.array([3], np.uint32))), *attended(*exact, length=3))


# ---- what is refused ----


def test_what_is_refused(device: vkpar.Device) -> None:
    q, k, lengths = device.zeros((4, 2, 8)), device.zeros((2, 5, 8)), device.zeros(1, "uint32")
    refused: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("v is missing", (q, k), {}),
        ("leave v out", (q, vkpar.KVCache(device, 2, 5, 8, "float32"), k), {}),
        ("q is", (q[0], k, k), {}),
        ("one shape and type", (q, k, k[:, :3]), {}),
        ("do not fit", (q[:3], k, k), {}),
        ("do not fit", (q[:, :, :4], k, k), {}),
        ("mask", (q, k, k), {"mask": device.zeros((3, 5))}),
        ("lengths are", (q, k, k), {"lengths": device.zeros(2, "uint32")}),
        ("scale", (q, k, k), {"scale": "big"}),
        ("out is", (q, k, k), {"out": device.zeros((4, 2, 7))}),
        ("share memory", (q, k, k), {"out": q}),
        ("has to be a vkpar.Array", (q, 3, k), {}),
    ]
    for match, operands, options in refused:
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            vkpar.attention(*operands, **options)
    for match, operands, options in [
        ("lengths are", (q, k, k), {"lengths": device.zeros(1)}),
        ("attention computes", (q.astype("int32"), k, k), {}),
        ("at most", (device.zeros((1, 1, 520)), device.zeros((1, 1, 520)), device.zeros((1, 1, 520))), {}),
    ]:
        with pytest.raises(vkpar.UnsupportedError, match=match):
            vkpar.attention(*operands, **options)
    cache = vkpar.KVCache(device, 2, 5, 8)
    for match, arguments in [
        ("of a cache of 5", (k, k, 1)),
        ("of a cache of 5", (k[:, :1], k[:, :1], -1)),
        ("6 tokens", (device.zeros((2, 6, 8)), device.zeros((2, 6, 8)), lengths)),
        ("k is", (q, q, 0)),
        ("one shape", (k, k[:, :2], 0)),
        ("positions are", (k, k, device.zeros(3, "uint32"))),
        ("share memory", (k[:, :1], k[:, :1], cache.length)),
        ("share memory", (cache.k[:, :1], k[:, :1], lengths)),
    ]:
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            cache.append(*arguments)
    with pytest.raises(vkpar.UnsupportedError, match="positions are"):
        cache.append(k, k, device.zeros(1))
    with pytest.raises(vkpar.InvalidUsageError, match="1 or more"):
        vkpar.KVCache(device, 2, 0, 8)
    with pytest.raises(vkpar.UnsupportedError, match="KVCache computes"):
        vkpar.KVCache(device, 2, 5, 8, "int8")


def test_sizes_without_elements(device: vkpar.Device) -> None:
    q, k = device.zeros((4, 2, 8)), device.zeros((2, 0, 8))
    assert (vkpar.attention(q, k, k).numpy() == 0).all()
    assert vkpar.attention(q[:, :0], k, k).shape == (4, 0, 8)
    cache = vkpar.KVCache(device, 2, 5, 8)
    cache.append(k, k, 3)
    assert cache.length.item() == 0


def test_arrays_that_no_binding_holds(reopen: Callable[..., vkpar.Device]) -> None:
    device = reopen(max_buffer=8192, max_binding=4352, ring_bytes=20_000)
    q, k = device.zeros((1, 1, 8)), device.zeros((1, 1000, 8))
    with pytest.raises(vkpar.UnsupportedError, match="at once"):
        vkpar.attention(q, k, k)
    with pytest.raises(vkpar.UnsupportedError, match="at once"):
        vkpar.rope(k, device.zeros(1000, "int32"))


# ---- what is measured ----


@pytest.mark.parametrize("width", [48, 64])
def test_what_is_measured_is_attention(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """What a measurement sends is what a call of its sizes sends; it is timed where there are timestamps."""
    rates = importlib.import_module("vkpar.ops.attention.rates")
    kernels = (module.Kernel("attention_small", max(64, 2 * width // 8), 1),) * 2  # as CPU drivers have them
    monkeypatch.setattr(rates, "_HEADS", 2)
    monkeypatch.setattr(rates, "_TOKENS", 20)
    monkeypatch.setattr(rates, "_RUNS", 1)
    sent: list[Any] = []
    timed = timing.timed_runs
    with monkeypatch.context() as patched:
        patched.setattr(Call, "dispatch", lambda self, *given: sent.append(given) or self.forget())
        patched.setattr(module, "kernel_for", lambda *_: kernels[0])
        patched.setattr(module, "splits_for", lambda *_: 1)
        q, k, v = (device.empty((2, 20, width), "float16") for _ in range(3))
        vkpar.attention(q, k, v)
    ((name, _, ranges, push, groups, constants, _),) = sent
    assert (name, len(ranges), groups) == ("attention_small_f16", 6, 40)
    assert push == rates._push(kernels[0], width)
    assert constants == rates._constants(kernels[0], "float16", width)

    def runs(clock: Any, pipeline: Any, ranges: Any, push: bytes, groups: tuple[int, int, int], number: int) -> Any:
        assert (len(ranges), groups, number) == (6, (40, 1, 1), 1)
        return timed(clock, pipeline, ranges, push, groups, number)

    monkeypatch.setattr(timing, "timed_runs", runs)
    found = rates._seconds(device, kernels, "float16", width)
    assert len(found) == 2
    assert all(0 < seconds < 60 for seconds in found)
