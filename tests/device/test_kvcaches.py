"""Caches of several texts: a row appended to each, and attention to its own, with the bits of single caches."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, normal, values_of

import vkpar
from vkpar.ops.attention.kvcaches import KVCaches, room_of, rows_of

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


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_rows_from_a_base_on(
    device: vkpar.Device, rng: np.random.Generator, heads: int, kv_heads: int, width: int, dtype: str
) -> None:
    """Positions turn as ever; rows lie as many places before, those before the first and behind the last nowhere."""
    columns, bases = (heads + 2 * kv_heads) * width, np.array([0, 40, 7], np.uint32)
    whole = KVCaches(device, 3, kv_heads, 64, width, dtype)
    based = KVCaches(device, 3, kv_heads, 16, width, dtype, device.array(bases))
    places = bases + np.array([3, 0, 20], np.uint32)  # the last one has no row
    x = device.array(normal(rng, (3, columns), "float32"))
    made = [cache.rope_append(x, device.array(places)).numpy() for cache in (whole, based)]
    np.testing.assert_array_equal(*made)
    prompt = device.array(normal(rng, (5, columns), "float32"))
    rows = prompt[:, : 2 * kv_heads * width].reshape(5, 2 * kv_heads, width).transpose(1, 0, 2)
    for cache in (whole, based):
        cache.sequence(1).rope_append(prompt, device.arange(45, 50, dtype="uint32"))
        cache.sequence(2).append(rows[:kv_heads], rows[kv_heads:], device.array([5], "uint32"))  # two rows before
        cache.sequence(0).append(rows[:kv_heads], rows[kv_heads:], device.array([5], "uint32"))
    for one, other in ((whole.k, based.k), (whole.v, based.v)):
        wanted, found = values_of(one.contiguous()), values_of(other.contiguous())
        for number, base in enumerate(bases):
            np.testing.assert_array_equal(found[number], wanted[number, :, base : base + 16])
    assert based.length.tolist() == [4, 1, 16]
    assert [based.sequence(number).length.item() for number in range(2)] == [10, 10]
    before = values_of(based.k.contiguous())
    based.shift(1, 5, 5)
    moved = before.copy()
    moved[1, :, :5] = before[1, :, 5:10]
    np.testing.assert_array_equal(values_of(based.k.contiguous()), moved)
    based.move(1, 2, 4)
    moved[2] = moved[1]
    np.testing.assert_array_equal(values_of(based.k.contiguous()), moved)


def test_rows_of_windows() -> None:
    assert [rows_of(*each) for each in ((100, 1, None, 7), (100, 1, 20, 30), (60, 1, 20, 30), (100, 2, 20, 30))] == [
        100,
        70,
        60,
        80,
    ]
    assert rows_of(1000, 1, 1, 1) == 1 + 16 + 16, "some tokens may be forgotten, some launches are under way"


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
