"""Caches of several texts: a row appended to each, and attention to its own, with the bits of single caches."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, normal, values_of

import vkpar
from vkpar.ops.attention.kvcaches import KVCaches, room_of

pytestmark = [pytest.mark.device, pytest.mark.sampled(3)]

LENGTHS = np.array([0, 3, 17, 1, 31], np.uint32)  # so many tokens each text has before
HEADS = [(4, 2, 8), (3, 1, 20), (2, 2, 64), (2, 1, 6), (3, 1, 10)]  # the last two by several kernels


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_bits(
    device: vkpar.Device, rng: np.random.Generator, heads: int, kv_heads: int, width: int, dtype: str
) -> None:
    """What is stored, and what queries get of it; the last text is full, and drops what comes next."""
    count, columns = len(LENGTHS), (heads + 2 * kv_heads) * width
    caches = KVCaches(device, count, kv_heads, 20, width, dtype)
    alone = [vkpar.KVCache(device, kv_heads, caches.tokens, width, dtype) for _ in LENGTHS]
    for number, length in enumerate(LENGTHS):
        if length:
            prompt, places = device.array(normal(rng, (length, columns), "float32")), device.arange(int(length))
            for cache in (alone[number], caches.sequence(number)):
                cache.rope_append(prompt, places)
    for step in range(3):
        x = normal(rng, (count, columns), "float32")
        places = LENGTHS + np.uint32(step)
        q = caches.rope_append(device.array(x), device.array(places))
        made = vkpar.attention(q.transpose(1, 0, 2).reshape(count, heads, 1, width), caches)
        for number, cache in enumerate(alone):
            row = slice(number, number + 1)
            query = cache.rope_append(device.array(x[row]), device.array(places[row]))
            np.testing.assert_array_equal(q[:, row].numpy(), query.numpy())
            bound = 0.0 if kernel_is_one(device) else 2e-6
            np.testing.assert_allclose(made[number].numpy(), vkpar.attention(query, cache).numpy(), bound, bound)
            for one, several in ((cache.k, caches.k), (cache.v, caches.v)):
                np.testing.assert_array_equal(values_of(several[number].contiguous()), values_of(one.contiguous()))
        assert caches.length.tolist() == [min(place + 1, caches.tokens) for place in places.tolist()]


def kernel_is_one(device: vkpar.Device) -> bool:
    """Whether keys are cut into as many parts for one query as for several, as on CPUs."""
    return device.info.is_cpu


def test_rooms(device: vkpar.Device) -> None:
    """Of several texts, each one's rows begin where a kernel can bind them."""
    assert [room_of(20, 1), room_of(20, 2), room_of(32, 2), room_of(1, 9)] == [20, 32, 32, 16]
    for sequences, kv_heads, width, dtype in ((1, 3, 5, "float16"), (3, 1, 5, "float16"), (5, 2, 7, "float32")):
        with KVCaches(device, sequences, kv_heads, 20, width, dtype) as caches:
            assert caches.k.shape == (sequences, kv_heads, caches.tokens, width)
            for number in range(sequences):
                rows = device.array(np.full((kv_heads, 1, width), number + 1, np.float32))
                caches.sequence(number).append(rows, rows, 2)
                assert caches.sequence(number) is caches.sequence(number)
            expected = np.zeros(caches.k.shape)
            expected[:, :, 2] = np.arange(1, sequences + 1).reshape(-1, 1, 1)
            for each in (caches.k, caches.v):
                np.testing.assert_array_equal(each.numpy(), expected)
        assert caches.closed
        caches.close()


def test_refused(device: vkpar.Device) -> None:
    with pytest.raises(vkpar.InvalidUsageError, match="sequences are 1 or more"):
        KVCaches(device, 0, 1, 4, 8)
    with pytest.raises(vkpar.InvalidUsageError, match="1 or more"):
        KVCaches(device, 2, 0, 4, 8)
    caches, rows = KVCaches(device, 3, 1, 4, 8), device.zeros((1, 3, 8))
    for positions in (device.zeros(1, "uint32"), device.zeros(2, "uint32"), 0):
        with pytest.raises(vkpar.InvalidUsageError, match="for 3 texts; each gets one"):
            caches.append(rows, rows, positions)
    two = device.zeros((1, 2, 8))
    with pytest.raises(vkpar.InvalidUsageError, match="2 tokens at 2 positions for 3 texts"):
        caches.append(two, two, device.zeros(2, "uint32"))
    with pytest.raises(vkpar.InvalidUsageError, match="2 tokens at 2 positions for 3 texts"):
        caches.rope_append(device.zeros((2, 24)), device.zeros(2, "int32"))
    q = device.zeros((2, 1, 1, 8))
    with pytest.raises(vkpar.InvalidUsageError, match="do not fit q"):
        vkpar.attention(q, caches)
