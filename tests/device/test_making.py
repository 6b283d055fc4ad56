"""Random arrays, take and concatenate, on every driver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.elementwise import held, seen

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.doctor.references import philox

pytestmark = [pytest.mark.device, pytest.mark.sampled(4)]
FLOATS = ("float32", "float16", "bfloat16")


def test_philox_is_the_published_one() -> None:
    """The known answers of Random123 for counters and keys of zeros."""
    assert [f"{word:08x}" for word in philox(4, 0)] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**64 - 1])
def test_bits_are_the_same_on_every_driver(device: vkpar.Device, seed: int) -> None:
    for count in (1, 3, 4, 1023, 5000):
        np.testing.assert_array_equal(vkpar.random.bits(device, count, seed=seed).numpy(), philox(count, seed))
    generator = vkpar.random.Generator(seed, position=2**32 - 2)
    np.testing.assert_array_equal(generator.bits(device, (5, 7)).numpy().ravel(), philox(35, seed, 2**32 - 2))
    assert generator.position == 2**32 + 7
    np.testing.assert_array_equal(generator.bits(device, 8).numpy(), philox(8, seed, 2**32 + 7))


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_is_the_same_on_every_driver(device: vkpar.Device, dtype: str) -> None:
    words = philox(4001, 5)
    shift, step = {"float32": (8, 2.0**-24), "float16": (21, 2.0**-11), "bfloat16": (24, 2.0**-8)}[dtype]
    u = (words >> shift).astype(np.float32) * np.float32(step)
    got = seen(vkpar.random.uniform(device, 4001, seed=5, dtype=dtype))
    np.testing.assert_array_equal(got, u)
    assert got.max() < 1
    low, size = np.float32(-0.3), np.float32(0.7 - -0.3)
    np.testing.assert_array_equal(
        seen(vkpar.random.uniform(device, 4001, -0.3, 0.7, seed=5, dtype=dtype)), held(u * size + low, dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(device: vkpar.Device, dtype: str) -> None:
    words = philox(40_000, 11).reshape(-1, 2).astype(np.float64)
    radius = np.sqrt(-2 * np.log((np.floor(words[:, 0] / 256) + 1) * 2.0**-24))
    angle = 2 * math.pi * np.floor(words[:, 1] / 256) * 2.0**-24
    want = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    got = seen(vkpar.random.normal(device, 40_000, seed=11, dtype=dtype))
    step = {"float32": 0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert (np.abs(got - want) <= 4e-6 + step * np.abs(want)).all()
    assert abs(got.astype(np.float64).mean()) < 0.03
    assert abs(got.astype(np.float64).std() - 1) < 0.03
    moved = seen(vkpar.random.normal(device, 4000, 3, 0.5, seed=11, dtype=dtype))
    assert (np.abs(moved - (3 + want[:4000] / 2)) <= 4e-6 + step * 8).all()


def test_random_elements_go_where_they_are_sent(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    around = device.zeros((40, 7), "float16")
    for view in (around[1:, 2:5], around.T[3:], around.reshape(-1)[1:20]):
        around.fill(9)
        made = vkpar.random.Generator(3).uniform(device, view.shape, dtype="float16", out=view)
        assert made is view
        want = seen(vkpar.random.uniform(device, view.shape, seed=3, dtype="float16"))
        np.testing.assert_array_equal(seen(view), want)
        assert (seen(around) == 9).sum() == around.size - view.size
    small = reopen(max_buffer=4096, max_binding=4096)
    np.testing.assert_array_equal(vkpar.random.bits(small, 9001, seed=2).numpy(), philox(9001, 2))
    assert vkpar.random.bits(device, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda d: vkpar.random.Generator(-1), InvalidUsageError),
        (lambda d: vkpar.random.Generator(1 << 64), InvalidUsageError),
        (lambda d: vkpar.random.Generator(1.5), InvalidUsageError),
        (lambda d: vkpar.random.uniform(d, 3, 0, np.inf), InvalidUsageError),
        (lambda d: vkpar.random.normal(d, -3), InvalidUsageError),
        (lambda d: vkpar.random.normal(d, 3, dtype="int32"), UnsupportedError),
        (lambda d: vkpar.random.Generator().bits(d, 3, out=d.zeros(4, "uint32")), InvalidUsageError),
        (lambda d: vkpar.random.Generator().bits(d, 3, out=d.zeros(3)), InvalidUsageError),
    ],
)
def test_random_arguments_that_are_refused(device: vkpar.Device, call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(device)


def _check_same(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Compare elements, NaN equal to NaN, which NumPy's own check does not know of bfloat16."""
    if got.dtype == want.dtype == vkpar.bfloat16:
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8", "int16", "float64", "complex64", "complex128", "bool"])
@pytest.mark.parametrize("width", [(), (1,), (3,), (4,), (2, 5)])
def test_take(device: vkpar.Device, rng: np.random.Generator, dtype: str, width: tuple[int, ...]) -> None:
    numpy = vkpar.dtypes.resolve(dtype).numpy
    host = rng.integers(0, 2 if dtype == "bool" else 100, (23, *width)).astype(numpy)
    missing = {"f": np.nan, "V": np.nan, "c": complex(np.nan, np.nan)}.get(numpy.kind, 0)
    for view in (lambda x: x, lambda x: x[1:], lambda x: x[::-2]):
        table, rows = view(device.array(host, dtype)), view(host)
        for shape in ((1,), (7,), (3, 4), ()):
            numbers = rng.integers(-len(rows) - 2, len(rows) + 2, shape).astype(np.int32)
            inside = (numbers >= -len(rows)) & (numbers < len(rows))
            want = np.where(
                inside.reshape((*shape, *(1,) * len(width))),
                rows[np.where(inside, numbers, 0)],
                np.array(missing).astype(numpy),
            )
            got = vkpar.take(table, device.array(numbers)).numpy()
            assert got.shape == shape + width
            _check_same(got, want.astype(numpy))
    unsigned = np.array([0, 22, 23, 2**32 - 1], np.uint32)
    got = vkpar.take(device.array(host, dtype), device.array(unsigned)).numpy()
    _check_same(got[:2], host[[0, 22]])
    _check_same(got[2:], np.full_like(got[2:], missing))
    out = device.zeros((4, 5, *width), dtype)
    vkpar.take(device.array(host, dtype), device.array(unsigned), out=out[:, 1])
    _check_same(out[:, 1].numpy(), got)
    assert not out[:, 2:].numpy().any()
    empty = vkpar.take(device.zeros((0, *width), dtype), device.array(unsigned)).numpy()
    _check_same(empty, np.full((4, *width), missing, numpy))


def test_take_by_plan(device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated call goes by the plan of the first one, whatever the numbers; mistakes are still found."""
    host = rng.standard_normal((9, 6)).astype(np.float32)
    big, out = device.array(host), device.zeros((2, 3, 6))
    vkpar.take(big[1:], device.zeros((2, 3), "int32"))
    vkpar.take(big[1:], device.zeros((2, 3), "int32"), out=out)
    with monkeypatch.context() as patch:
        patch.setattr("vkpar.ops.arrays.take.check_arrays", None)
        for _ in range(3):
            numbers = rng.integers(-8, 8, (2, 3)).astype(np.int32)
            got = vkpar.take(big[1:], device.array(numbers))
            assert got.shape == (2, 3, 6)
            assert vkpar.take(big[1:], device.array(numbers), out=out) is out
            for made in (got, out):
                np.testing.assert_array_equal(made.numpy(), host[1:][numbers])
    with pytest.raises(InvalidUsageError, match="memory"):
        vkpar.take(out.reshape(6, 6), device.zeros((2, 3), "int32"), out=out)


def test_take_of_what_no_kernel_sees(reopen: Callable[..., vkpar.Device], rng: np.random.Generator) -> None:
    device = reopen(max_buffer=4096, max_binding=4096)
    host = rng.standard_normal((40, 17)).astype(np.float32)
    numbers = rng.integers(0, 40, 700).astype(np.int32)
    np.testing.assert_array_equal(vkpar.take(device.array(host), device.array(numbers)).numpy(), host[numbers])
    with pytest.raises(UnsupportedError, match="at once"):
        vkpar.take(device.zeros((90, 17)), device.array(numbers))
    for call, message in (
        (lambda: vkpar.take(device.array(host), device.zeros(3)), "indices are"),
        (lambda: vkpar.take(device.array(1.0), device.zeros(3, "int32")), "no dimension"),
        (
            lambda: vkpar.take(device.array(host), [1]),
            r"indices has to be a vkpar.Array, not list; write device\.array\(x\)",
        ),
        (lambda: vkpar.take(device.array(host), device.array(numbers), out=device.zeros(3)), "the result is"),
    ):
        with pytest.raises((InvalidUsageError, UnsupportedError), match=message):
            call()


@pytest.mark.parametrize(("max_buffer", "max_binding"), [(4096, 4096), (8192, 4096), (4096, 8192)])
def test_take_refuses_a_strided_table_before_it_is_copied(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch, max_buffer: int, max_binding: int
) -> None:
    device = reopen(max_buffer=max_buffer, max_binding=max_binding)
    fits, large = device.arange(1024, dtype="float32").reshape(64, 16), device.zeros((16, 65))
    numbers = device.array([1, 0], "int32")
    np.testing.assert_array_equal(vkpar.take(fits.T, numbers).numpy(), fits.numpy().T[[1, 0]])
    np.testing.assert_array_equal(vkpar.take(fits, numbers, axis=1).numpy(), fits.numpy()[:, [1, 0]])
    monkeypatch.setattr(vkpar.Array, "contiguous", None)
    for call in (lambda: vkpar.take(large.T, numbers), lambda: vkpar.take(large, numbers, axis=1)):
        with pytest.raises(UnsupportedError, match="cannot see a table of 4160 bytes at once"):
            call()


@pytest.mark.parametrize("axis", [0, 1, -1, -3])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "float64"])
def test_concatenate(device: vkpar.Device, rng: np.random.Generator, dtype: str, axis: int) -> None:
    numpy = vkpar.dtypes.resolve(dtype).numpy
    hosts = []
    for side in (3, 0, 1, 5):
        shape = [4, 2, 7]
        shape[axis] = side
        hosts.append(rng.integers(0, 100, shape).astype(numpy))
    arrays = [device.array(host, dtype) for host in hosts]
    np.testing.assert_array_equal(vkpar.concatenate(arrays, axis).numpy(), np.concatenate(hosts, axis))
    turned = [device.array(np.ascontiguousarray(host.T), dtype).T for host in hosts]
    out = device.empty(np.concatenate(hosts, axis).T.shape, dtype).T
    assert vkpar.concatenate(turned, axis, out=out) is out
    np.testing.assert_array_equal(out.numpy(), np.concatenate(hosts, axis))


def test_concatenate_converts_floats(device: vkpar.Device) -> None:
    made = vkpar.concatenate([device.full(3, 1, "float16"), device.full(2, 2, "float32")])
    assert made.dtype == "float32"
    assert made.numpy().tolist() == [1, 1, 1, 2, 2]
    with pytest.raises(vkpar.UnsupportedError, match="int32 with float32 would be float64: cast one first"):
        vkpar.concatenate([device.array([1], "int32"), device.zeros(1)])
    a = device.zeros((2, 3))
    for call in (
        lambda: vkpar.concatenate([]),
        lambda: vkpar.concatenate(a),
        lambda: vkpar.concatenate([a, 1]),
        lambda: vkpar.concatenate([a, a], 2),
        lambda: vkpar.concatenate([a, device.zeros((3, 2))]),
        lambda: vkpar.concatenate([a, device.zeros(3)]),
        lambda: vkpar.concatenate([a, a], out=device.zeros(3)),
        lambda: vkpar.concatenate([a[:1], a[1:]], out=a),
    ):
        with pytest.raises(InvalidUsageError):
            call()


def normals(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what shaders/random.comp makes of pairs of words, step by step in float32; and the radii, in float64."""
    f32 = np.float32
    n = (words[:, 0] >> 8) + np.uint32(1)
    bits = n.astype(f32).view(np.uint32)
    above = ((bits & 0x7FFFFF) > 0x3504F3).astype(np.uint32)
    power = ((bits >> 23).astype(np.int32) - 151 + above.astype(np.int32)).astype(f32)
    f = ((bits & np.uint32(0x7FFFFF)) | (np.uint32(0x3F800000) - (above << 23))).view(f32) - f32(1)
    p = np.full(len(f), f32(7.0376836292e-2))
    for each in (-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
                 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1):  # fmt: skip
        p = p * f + f32(each)
    square = f * f
    y = p * f * square - power * f32(2.12194440e-4) - square * f32(0.5)
    t = (f + y + power * f32(0.693359375)) * f32(-2)
    one = (np.uint32(0x5F3759DF) - (t.view(np.uint32) >> 1)).view(f32)
    for _ in range(3):
        one = one * (f32(1.5) - t * f32(0.5) * (one * one))
    r = t * one
    part = words[:, 1] >> 8
    quarter = (part + np.uint32(0x200000)) >> 22
    x = (part.astype(np.int64) - (quarter.astype(np.int64) << 22)).astype(f32) * f32(3.7450703e-7)
    z = x * x
    s = ((z * f32(-1.9515295891e-4) + f32(8.3321608736e-3)) * z - f32(1.6666654611e-1)) * z * x + x
    c = (z * f32(2.443315711809948e-5) - f32(1.388731625493765e-3)) * z + f32(4.166664568298827e-2)
    c = c * z * z - z * f32(0.5) + f32(1)
    pairs = np.where((quarter & 1)[:, None] == 0, np.stack([c, s], 1), np.stack([s, c], 1))
    signs = np.stack([(quarter + np.uint32(1)) >> 1, quarter >> 1], 1) << 31
    made = (pairs.view(np.uint32) ^ signs.astype(np.uint32)).view(f32) * r[:, None]
    return made, np.sqrt(-2 * np.log(n.astype(np.float64) * 2.0**-24))


def test_normal_numbers_have_the_same_bits_everywhere(device: vkpar.Device) -> None:
    """They are those of NumPy, whose sums and products of float32 are rounded once each; and close to float64's.

    With U = 2^-24: the logarithm errs by 4 U of itself, its root by half of that and 5 U, the angle by 2 U, its
    sine by 4 U more, the product by U: below 16 U of the radius.
    """
    words = vkpar.random.bits(device, 200_000, seed=3).numpy().reshape(-1, 2)
    made, radius = normals(words)
    got = vkpar.random.normal(device, 200_000, seed=3).numpy()
    np.testing.assert_array_equal(got.view(np.uint32), made.reshape(-1).view(np.uint32))
    angle = 2 * np.pi * (words[:, 1] >> 8).astype(np.float64) * 2.0**-24
    exact = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    assert (np.abs(made - exact) <= 2.0**-20 * radius[:, None]).all()
    moved = vkpar.random.normal(device, 200_000, 3, 0.7, seed=3).numpy()
    want = made.reshape(-1) * np.float32(0.7) + np.float32(3)
    np.testing.assert_array_equal(moved.view(np.uint32), want.view(np.uint32))
