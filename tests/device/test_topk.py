"""The largest and the least elements of rows, found without sorting: what a stable sort of all of them has first."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ops.turns import MOST as MOST_TURNS
from helpers.ops.turns import Sent, record, turns_of

import vkpar
from vkpar.ops.reduce import selecting
from vkpar.ops.reduce.selecting import MOST

pytestmark = pytest.mark.device

KINDS = ["floats", "odd values", "words", "alike", "hard", "float64", "odd float64", "int64", "uint64"]


def data(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Return rows: any floats; few values with NaN, infinities and both zeros; all alike; or as hard as can be.

    These last repeat after as many elements as a work-group deals at a time, so that few hands hold all that is wanted.
    """
    if kind == "floats":
        return rng.standard_normal(shape).astype(np.float32)
    if kind == "odd values":
        values = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e-40])
        return rng.choice(values, shape)
    if kind == "odd float64":
        values = np.float64([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0 + 2**-52, -5e-324])
        return rng.choice(values, shape)
    if kind == "float64":
        return rng.standard_normal(shape)
    if kind in ("int64", "uint64"):
        return rng.integers(0, 2**64, shape, dtype=np.uint64).view(kind) >> np.array(rng.integers(0, 64), kind)
    if kind == "words":
        return rng.integers(0, 2**32, shape, dtype=np.uint32)
    if kind == "alike":
        return np.full(shape, -7, np.int8)
    return (np.arange(shape[1]) % 1536 + np.zeros(shape)).astype(np.int32)


def first(a: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Return the places of the first elements of a stable order with NaN last."""
    turned = a if not largest else -a if a.dtype.kind == "f" else ~a
    return np.argsort(turned, axis=-1, kind="stable")[..., :k]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 1), (70, 9), (3, 193), (2, 1537), (2, 5000), (1, 50_001)])
@pytest.mark.parametrize("largest", [True, False])
def test_first_elements(
    device: vkpar.Device, rng: np.random.Generator, kind: str, shape: tuple[int, int], largest: bool
) -> None:
    a = data(rng, kind, shape)
    x = device.array(a)
    for k in sorted({1, 3, 64, 65, MOST, MOST + 1, shape[1]}):
        if k > shape[1] or k > 2 * MOST:
            continue
        values, places = vkpar.topk(x, k, largest=largest)
        want = first(a, k, largest)
        np.testing.assert_array_equal(places.numpy(), want)
        exact = np.take_along_axis(a, want, -1)
        got = values.numpy()
        assert got.dtype == a.dtype
        np.testing.assert_array_equal(got, exact)
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(exact[exact == 0]))


def test_with_little_shared_memory(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = data(rng, "odd float64", (2, 3000))
    monkeypatch.setattr(selecting, "_groups", lambda _: (32, 64))
    for k in (128, 129):
        values, places = vkpar.topk(device.array(a), k)
        np.testing.assert_array_equal(places.numpy(), first(a, k, True))
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, first(a, k, True), -1))


@pytest.mark.parametrize("kind", ["floats", "int64"])
@pytest.mark.parametrize("largest", [True, False])
def test_chunks_that_are_not_alike(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, kind: str, largest: bool
) -> None:
    """Each has as many elements as are wanted, however many chunks there are: 18 million elements make so many."""
    shape = selecting._shape
    monkeypatch.setattr(selecting, "_shape", lambda count, *given: (70, 32) if count > 512 else shape(count, *given))
    a = np.sort(data(rng, kind, (2, 8 * 70 - 7)))
    values, places = vkpar.topk(device.array(a), 64, largest=largest)
    want = first(a, 64, largest)
    np.testing.assert_array_equal(places.numpy(), want)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(a, want, 1))


def test_along_other_axes_of_views_and_again(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((6, 300, 5)).astype(np.float16)
    x = device.array(a)
    for _ in range(2):
        for view, flat in ((x, a), (x[::-1, 1::2], a[::-1, 1::2])):
            values, places = vkpar.topk(view, 7, 1)
            want = np.moveaxis(first(np.moveaxis(flat, 1, -1), 7, True), -1, 1)
            np.testing.assert_array_equal(places.numpy(), want)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(flat, want, 1))


def test_of_one_array_in_a_graph(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.standard_normal((2, 50_000)).astype(np.float32)
    x = device.array(a)
    with vkpar.capture([device]) as graph:
        values, places = vkpar.topk(x, 64)
    x.write(-a)
    graph.launch().wait()
    np.testing.assert_array_equal(places.numpy(), first(-a, 64, True))
    np.testing.assert_array_equal(values.numpy(), -np.sort(a)[:, :64])
    graph.close()


@pytest.mark.parametrize("k", [1, 64, 100, MOST])
def test_turns_of_loops(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    sent: list[Sent] = record(monkeypatch)
    for shape in ((1, 1 << 24), (1 << 18, 64), (1 << 10, 32_000), (1 << 8, 32_000), (3, k)):
        if k <= shape[1]:
            sent.clear()
            for dtype in ("float32", "int64")[: 1 + (shape[0] * shape[1] < 1 << 24)]:
                vkpar.topk(device.empty(shape, dtype), k)
            assert sent
            assert {each.name for each in sent} == {"topk"}
            assert max(map(turns_of, sent)) < MOST_TURNS
