"""Rope with the append to a cache: the bits of the two calls that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, normal, values_of
from helpers.vulkan.planning import forget

import vkpar

pytestmark = [pytest.mark.device, pytest.mark.sampled(6)]

ROOM = 12
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}
# Heads of queries, of keys and values, their width, and how much of it is turned: the last four by several kernels.
HEADS = [(4, 2, 8, None), (3, 1, 20, 16), (2, 2, 64, None), (8, 1, 128, 64), (2, 1, 6, None), (1, 1, 12, 6),
         (1, 2, 7, 4), (3, 1, 10, 2)]  # fmt: skip


def apart(
    cache: vkpar.KVCache, qkv: vkpar.Array, positions: vkpar.Array, theta: float = 10000.0, **how: Any
) -> vkpar.Array:
    """What the one call stands for."""
    rows = qkv.reshape(len(qkv), -1, cache.width).transpose(1, 0, 2)
    heads = rows.shape[0] - 2 * cache.kv_heads
    k, v = rows[heads : heads + cache.kv_heads], rows[heads + cache.kv_heads :]
    cache.append(vkpar.rope(k, positions, theta, **how), v, positions)
    return vkpar.rope(rows[:heads], positions, theta, **how)


def held(cache: vkpar.KVCache) -> list[np.ndarray[Any, Any]]:
    return [array.numpy() for array in (cache.k, cache.v, cache.length)]


def check_same(one: list[np.ndarray[Any, Any]], two: list[np.ndarray[Any, Any]]) -> None:
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", ["llama", "neox"])
@pytest.mark.parametrize(("heads", "kv_heads", "n", "width"), HEADS)
def test_bits(
    device: vkpar.Device,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    n: int,
    width: int | None,
    style: str,
    dtype: str,
    stored: str,
) -> None:
    """At positions of a prompt, of one token, past the end and below zero."""
    one, two = (vkpar.KVCache(device, kv_heads, ROOM, n, stored) for _ in range(2))
    for places in ([0, 1, 2, 3, 4], [5], [3, 11, 12, 70_000], [-2, -1]):
        x = normal(rng, (len(places), (heads + 2 * kv_heads) * n), dtype)
        qkv, positions = device.array(x, dtype), device.array(np.array(places, np.int32))
        how = {"style": style, "width": width, "scaling": None if len(places) > 1 else 4.0}
        q = apart(one, qkv, positions, **how)
        assert q.shape == (heads, len(places), n)
        for _ in range(2):  # the second time by the recipe
            made = two.rope_append(qkv, positions, **how)
            np.testing.assert_array_equal(made.numpy(), q.numpy())
            check_same(held(one), held(two))
        out = device.empty((len(places), heads, n), dtype).transpose(1, 0, 2)
        assert two.rope_append(qkv, positions, out=out, **how) is out
        np.testing.assert_array_equal(out.numpy(), q.numpy())


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", ["llama", "neox"])
@pytest.mark.parametrize(("heads", "kv_heads", "n", "width"), HEADS)
def test_norms(
    device: vkpar.Device,
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    n: int,
    width: int | None,
    style: str,
    dtype: str,
    weights: str,
) -> None:
    """Heads of queries and keys are normed before they are turned; values are stored as they are."""
    places = np.array([3, 4, 9], np.int32)
    x = normal(rng, (3, (heads + 2 * kv_heads) * n), dtype)
    of_queries, of_keys = (normal(rng, (n,), weights) for _ in range(2))
    qkv, positions = device.array(x, dtype), device.array(places)
    apart_by_two = device.array(np.repeat(of_keys, 2), weights)[::2]
    norms = device.array(of_queries, weights), apart_by_two, 1e-6
    one, two = (vkpar.KVCache(device, kv_heads, ROOM, n, "float32") for _ in range(2))
    normed = values_of(qkv).astype(np.float64).reshape(3, -1, n)
    normed[:, : heads + kv_heads] /= np.sqrt((normed[:, : heads + kv_heads] ** 2).mean(-1, keepdims=True) + 1e-6)
    normed[:, :heads] *= values_of(norms[0])
    normed[:, heads : heads + kv_heads] *= values_of(norms[1])
    wanted = apart(one, device.array(normed.astype(np.float32).reshape(3, -1)), positions, style=style, width=width)
    # Sums of up to 128 squares, a root, a quotient and two products; then values of one size are turned. Norms that are
    # by themselves are rounded to the type, and queries are.
    most = np.abs(normed[:, : heads + kv_heads]).max() * np.sqrt(2)
    rounding = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    bound = most * (2**-20 + 3 * rounding)
    for _ in range(2):  # the second time by the recipe
        made = two.rope_append(qkv, positions, style=style, width=width, norms=norms)
        np.testing.assert_allclose(values_of(made), wanted.numpy(), rtol=0, atol=bound)
        np.testing.assert_allclose(two.k.numpy(), one.k.numpy(), rtol=0, atol=bound)
        np.testing.assert_array_equal(two.v.numpy(), one.v.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_views(device: vkpar.Device, rng: np.random.Generator, dtype: str, before: int) -> None:
    """Rows that lie apart and begin anywhere, queries too; nothing around these changes."""
    x = normal(rng, (3, 40), dtype)
    whole, around = device.zeros((3, 43), dtype), device.array(np.full(3 * 24 + 4, 7), dtype)
    view, out = whole[:, before : before + 40], around[before : before + 72].reshape(3, 3, 8)
    view.write(x)
    positions = device.arange(3)
    one, two = (vkpar.KVCache(device, 1, ROOM, 8) for _ in range(2))
    q = apart(one, device.array(x, dtype), positions, 500.0, scaling=LLAMA3)
    for _ in range(2):
        assert two.rope_append(view, positions, 500.0, scaling=LLAMA3, out=out) is out
        np.testing.assert_array_equal(out.numpy(), q.numpy())
        check_same(held(one), held(two))
    values = values_of(around)
    assert (values[:before] == 7).all()
    assert (values[before + 72 :] == 7).all()


def test_one_kernel_in_a_graph(device: vkpar.Device, rng: np.random.Generator) -> None:
    forget(device)
    cache, other = (vkpar.KVCache(device, 2, ROOM, 8) for _ in range(2))
    qkv = device.array(normal(rng, (1, 64), "float32"))
    with vkpar.capture(device) as graph:
        (position,) = graph.param("position", "int32")
        q = cache.rope_append(qkv, position, 777.0)
    assert graph.stats().operations == 1
    for place in (0, 7, 100):
        graph.launch(position=place).wait()
        wanted = apart(other, qkv, device.array(np.array([place], np.int32)), 777.0)
        np.testing.assert_array_equal(q.numpy(), wanted.numpy())
        check_same(held(cache), held(other))
    graph.close()


def test_sizes_without_elements(device: vkpar.Device) -> None:
    cache = vkpar.KVCache(device, 1, ROOM, 8)
    assert cache.rope_append(device.zeros((0, 40)), device.zeros(0, "int32")).shape == (3, 0, 8)
    assert cache.length.item() == 0
    one = cache.rope_append(device.array(np.ones((2, 16), np.float32)), device.arange(2))  # keys and values alone
    assert one.shape == (0, 2, 8)
    assert cache.length.item() == 2
    assert (cache.v.numpy()[:, :2] == 1).all()


def test_arrays_of_other_devices(reopen: Callable[..., vkpar.Device], device: vkpar.Device) -> None:
    cache, other = vkpar.KVCache(device, 1, ROOM, 8), reopen()
    with pytest.raises(vkpar.InvalidUsageError, match="different devices"):
        cache.rope_append(other.zeros((1, 24)), other.zeros(1, "int32"))


def test_what_is_refused(device: vkpar.Device) -> None:
    cache = vkpar.KVCache(device, 1, ROOM, 8)
    qkv, positions = device.zeros((2, 40)), device.zeros(2, "int32")
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("qkv is", device.zeros((2, 41)), {}),
        ("qkv is", device.zeros((2, 8)), {}),
        ("qkv is", device.zeros(40), {}),
        ("a cache of 12", device.zeros((13, 40)), {}),
        ("positions are", qkv[:1], {}),
        ("style is", qkv, {"style": "gptj"}),
        ("width is", qkv, {"width": 3}),
        ("theta", qkv, {"theta": -1.0}),
        ("two weights and epsilon", qkv, {"norms": (device.zeros(8), device.zeros(8))}),
        ("epsilon", qkv, {"norms": (device.zeros(8), device.zeros(8), "1e-6")}),
        ("share memory", qkv, {"norms": (cache.v[0, 0], device.zeros(8), 0.0)}),
        ("weights of norms are", qkv, {"norms": (device.zeros(8), device.zeros(4), 0.0)}),
        ("scaling has", qkv, {"scaling": {"factor": 2.0}}),
        ("the result is", qkv, {"out": device.zeros((3, 2, 7))}),
        ("share memory", cache.k.reshape(3, 32)[:2, :24], {}),
        ("not int", 3, {}),
    ]
    for match, rows, options in cases:
        with pytest.raises(vkpar.InvalidUsageError, match=match):
            cache.rope_append(rows, positions, **options)
    with pytest.raises(vkpar.UnsupportedError, match="positions are"):
        cache.rope_append(qkv, device.zeros(2))
    with pytest.raises(vkpar.UnsupportedError, match="float64"):
        cache.rope_append(device.zeros((2, 40), "float64"), positions)
    cache.close()
    with pytest.raises(vkpar.InvalidUsageError, match="close"):
        cache.rope_append(qkv, positions)
