"""What a mixture of experts computes on a device, against float64: who is taken, products by their matrices, sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.quantizing import NAMES, blocks_of, exact, made, magnitudes
from numpy.typing import NDArray

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.ops.experts import few, products, routing
from vkpar.ops.experts.products import Stack
from vkpar.ops.experts.routing import Span
from vkpar.testing import U, gamma

pytestmark = pytest.mark.device

F64 = NDArray[np.float64]


def taken(device: vkpar.Device, logits: NDArray[Any], each: int, *, normed: bool = True) -> tuple[Any, Any]:
    """Which experts a device takes, and their weights."""
    choice = routing.route(device.array(logits), each, normed=normed).numpy()
    return choice[0], choice[1].view(np.float32)


def choice_of(device: vkpar.Device, numbers: Any, weights: Any) -> vkpar.Array:
    both = [np.asarray(numbers, np.uint32), np.asarray(weights, np.float32).view(np.uint32)]
    return device.array(np.stack(both))


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("experts", "each"), [(8, 2), (128, 8), (300, 1), (5, 5)])
def test_the_likeliest_experts_and_their_shares(
    device: vkpar.Device, rng: np.random.Generator, experts: int, each: int, normed: bool
) -> None:
    logits = (4 * rng.standard_normal((19, experts))).astype(np.float32)
    logits[3] -= 1000  # no share is lost where all are far from zero
    for _ in range(2):
        numbers, weights = taken(device, logits, each, normed=normed)
        want = np.argsort(-logits, axis=1, kind="stable")[:, :each]
        np.testing.assert_array_equal(numbers, want)
        deep = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        shares = np.exp(deep)
        chosen = np.take_along_axis(shares, want, 1)
        exact = chosen / (chosen if normed else shares).sum(axis=1, keepdims=True)
        depth = -deep.min(axis=1, keepdims=True)
        assert (np.abs(weights - exact) <= (2 * (3 + 3 * depth) + experts + 4) * U * exact).all()


def test_of_equal_experts_the_first_ones_are_taken(device: vkpar.Device) -> None:
    logits = np.zeros((4, 9), np.float32)
    logits[1, [2, 5, 7]] = 1
    logits[2, ::2] = -0.0  # equal to zero
    logits[3, 4] = np.nan  # comes last
    numbers, weights = taken(device, logits, 4)
    np.testing.assert_array_equal(numbers, [[0, 1, 2, 3], [2, 5, 7, 0], [0, 1, 2, 3], [0, 1, 2, 3]])
    np.testing.assert_array_equal(weights[[0, 2, 3]], np.full((3, 4), 0.25, np.float32))
    numbers, _ = taken(device, np.full((1, 3), np.nan, np.float32), 3)
    np.testing.assert_array_equal(numbers, [[0, 1, 2]])


@pytest.mark.parametrize("span", [Span(0, 7), Span(2, 3), Span(6, 1)])
@pytest.mark.parametrize(("rows", "tile"), [(1, 8), (40, 8), (300, 32)])
def test_pairs_are_sorted_by_expert_in_their_order(
    device: vkpar.Device, rng: np.random.Generator, rows: int, tile: int, span: Span
) -> None:
    numbers = np.argsort(rng.random((rows, 7)) * [1, 1, 1, 1, 1, 1, 3], axis=1)[:, :2]
    groups = routing.group(choice_of(device, numbers, np.zeros((rows, 2))), span, tile)
    table, none = groups.table.numpy(), 0xFFFFFFFF
    experts, pairs = table[: groups.tiles], table[groups.tiles :].reshape(groups.tiles, tile)
    want: list[int] = []
    order: list[int] = []
    for expert in range(span.held):
        own = np.flatnonzero(numbers.reshape(-1) == span.first + expert)
        tiles = math.ceil(len(own) / tile)
        want += [expert] * tiles
        order += [*own, *[none] * (tiles * tile - len(own))]
    np.testing.assert_array_equal(experts, want + [none] * (groups.tiles - len(want)))
    np.testing.assert_array_equal(pairs[: len(want)].reshape(-1), order)


def reference(x: F64, matrices: F64, sizes: F64, numbers: Any, *, gated: bool) -> tuple[F64, F64]:
    """Products of pairs, and how far float32 may be from them; ``sizes`` are magnitudes of the weights."""
    rows = np.repeat(x, numbers.size // len(x), 0)
    chosen, magnitude = matrices[numbers.reshape(-1)], sizes[numbers.reshape(-1)]
    value = np.einsum("pk,pnk->pn", rows, chosen)
    error = gamma(x.shape[1] + 4) * np.einsum("pk,pnk->pn", np.abs(rows), magnitude)
    if not gated:
        return value, error
    half = value.shape[1] // 2
    gate, up, gate_off, up_off = value[:, :half], value[:, half:], error[:, :half], error[:, half:]
    with np.errstate(over="ignore"):
        share = gate / (1 + np.exp(-gate))
    off = (9 + 2 * np.abs(gate)) * U * np.abs(share * up)
    return share * up, off + 1.1 * gate_off * (np.abs(up) + up_off) + np.abs(share) * up_off + gate_off * up_off


@pytest.mark.parametrize(
    ("kind", "gated"), [(kind, gated) for kind in ("float32", "float16", "bfloat16", *NAMES) for gated in (False, True)]
)
def test_products_by_the_matrices_of_experts(
    device: vkpar.Device, rng: np.random.Generator, kind: str, gated: bool
) -> None:
    """Few pairs one by one and many in tiles; rows of tokens and rows of pairs; experts that the device has not."""
    if not FULL and "SwiftShader" in device.name and (kind, gated) != ("float16", True):
        pytest.skip("SwiftShader compiles each variant of the kernel for seconds; lavapipe runs them")
    experts, columns, k, span = 5, 20, 256, Span(1, 3)
    if kind in NAMES:
        blocks = blocks_of(rng, kind, experts * columns, k, scale=0.002)
        weights, sizes = exact(blocks, kind), magnitudes(blocks, kind)
        held: Any = made(device, blocks[columns : 4 * columns], kind)
    else:
        k = 51 if kind == "bfloat16" else 64
        held = device.array(rng.standard_normal((3 * columns, k)).astype(np.float32) / 8, kind)
        weights = np.zeros((experts * columns, k))
        weights[columns : 4 * columns] = held.numpy().astype(np.float64)
        sizes = np.abs(weights)
    matrices, magnitude = (each.astype(np.float64).reshape(experts, columns, k) for each in (weights, sizes))
    stack = Stack(held, span)
    assert stack.rows == columns
    for rows, share in ((1, 2), (6, 1), (33, 2)):
        numbers = np.argsort(rng.random((rows, experts)), axis=1)[:, :2]
        x = rng.standard_normal((rows * 2 // share, k)).astype(np.float32)
        choice = choice_of(device, numbers, np.ones((rows, 2)))
        value, error = reference(x.astype(np.float64), matrices, magnitude, numbers, gated=gated)
        mine = (numbers.reshape(-1) >= 1) & (numbers.reshape(-1) < 4)
        groups = routing.group(choice, span, products.TILE)
        for tiles in (None, groups):
            found = products.product(device.array(x), stack, choice, tiles, gated=gated).numpy()
            assert (np.abs(found - value) <= error + 1e-30)[mine].all()
        halves = products.product(device.array(x), stack, choice, groups, gated=gated, dtype="float16").numpy()
        np.testing.assert_array_equal(halves[mine], found[mine].astype(np.float16))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["float16", *NAMES])
def test_products_of_many_rows_on_matrix_cores(
    device: vkpar.Device, rng: np.random.Generator, kind: str, gated: bool
) -> None:
    """Tiles of 32 pairs, some of them not full, and columns past the last whole group."""
    experts, columns, k, span = 5, 2 * 150, 768, Span(1, 3)
    if kind in NAMES:
        blocks = blocks_of(rng, kind, span.held * columns, k, scale=0.002)
        held: Any = made(device, blocks, kind)
        weights, sizes = exact(blocks, kind).astype(np.float64), magnitudes(blocks, kind)
    else:
        held = device.array(rng.standard_normal((span.held * columns, k)).astype(np.float32) / 16, kind)
        weights = held.numpy().astype(np.float64)
        sizes = np.abs(weights)
    stack = Stack(held, span)
    if products.tile_for(stack, dtype="float16") != products.CORES_TILE:
        pytest.skip(f"{device.name} has no matrix cores that take float16")
    matrices, magnitude = (
        np.concatenate([part[:columns], part]).reshape(-1, columns, k) for part in (weights, sizes)
    )  # of experts 0 to 3, the first of them of no use
    for rows, share in ((9, 2), (300, 1)):
        numbers = np.argsort(rng.random((rows, experts)), axis=1)[:, :2]
        x = rng.standard_normal((rows * 2 // share, k)).astype(np.float16)
        choice = choice_of(device, numbers, np.ones((rows, 2)))
        mine = (numbers.reshape(-1) >= 1) & (numbers.reshape(-1) < 4)
        clipped = np.clip(numbers, 0, 3)
        value, error = reference(
            x.astype(np.float64), matrices, magnitude * (1 + 2.0**-11 / U / (k + 4)), clipped, gated=gated
        )
        groups = routing.group(choice, span, products.CORES_TILE)
        found = products.product(device.array(x), stack, choice, groups, gated=gated).numpy()
        assert (np.abs(found - value) <= error + 1e-30)[mine].all()
        halves = products.product(device.array(x), stack, choice, groups, gated=gated, dtype="float16").numpy()
        np.testing.assert_array_equal(halves[mine], found[mine].astype(np.float16))


@pytest.mark.parametrize("kind", ["float16", "float32", *NAMES])
def test_few_rows_read_the_experts_that_they_take(
    device: vkpar.Device, rng: np.random.Generator, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels of GPUs: a norm and gates, weights, and the sum of all experts with a residual."""
    if not few.usable_on(device) and "SwiftShader" in device.name:
        pytest.skip("SwiftShader compiles each variant of the kernels for seconds; lavapipe runs them")
    monkeypatch.setattr(few, "usable_on", lambda device: True)
    experts, inner, k, each, span = 5, 256 if kind in NAMES else 24, 512, 3, Span(1, 3)

    def drawn(rows: int, columns: int) -> tuple[Stack, F64]:
        if kind in NAMES:
            blocks = blocks_of(rng, kind, span.held * rows, columns, scale=0.002)
            held: Any = made(device, blocks, kind)
            values = exact(blocks, kind)
        else:
            held = device.array(rng.standard_normal((span.held * rows, columns)).astype(np.float32) / 16, kind)
            values = held.numpy()
        return Stack(held, span), values.astype(np.float64).reshape(span.held, rows, columns)

    (wide, gate_up), (back, down) = drawn(2 * inner, k), drawn(20, inner)
    for rows, normed in ((1, True), (3, False)):
        assert few.fits(rows, each, wide, back)
        numbers = np.argsort(rng.random((rows, experts)), axis=1)[:, :each]
        weights = rng.random((rows, each)).astype(np.float32)
        x, w, r = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, k), (k,), (rows, 20)))
        choice = choice_of(device, numbers, weights)
        given = vkpar.Normed(device.array(x), device.array(w), 1e-5) if normed else device.array(x)
        whole = x.astype(np.float64)
        if normed:
            whole = whole / np.sqrt(np.mean(whole**2, axis=1, keepdims=True) + 1e-5) * w
        for _ in range(2):
            active = few.gate(given, wide, choice)
            found = few.add_up(active, back, choice, device.array(r)).numpy()
        held = active.numpy().astype(np.float64).reshape(rows, each, inner)
        total, size = r.astype(np.float64), np.abs(r).astype(np.float64)
        for row, j in np.ndindex(rows, each):
            expert = numbers[row, j] - span.first
            if not 0 <= expert < span.held:
                assert not held[row, j].any()
                continue
            sums = gate_up[expert] @ whole[row]
            off = 2 * gamma(k + 12) * (np.abs(gate_up[expert]).max(axis=1) * np.abs(whole[row]).sum())
            gate, up = sums[:inner], sums[inner:]
            share = gate / (1 + np.exp(-gate))
            most = 1.2 * off[:inner] * (np.abs(up) + off[inner:]) + (np.abs(share) + off[:inner]) * off[inner:]
            most += (16 + 2 * np.abs(gate)) * U * np.abs(share * up)
            assert (np.abs(held[row, j] - weights[row, j] * share * up) <= weights[row, j] * most + 1e-30).all()
            total[row] += down[expert] @ held[row, j]
            size[row] += np.abs(down[expert]).max(axis=1) * np.abs(held[row, j]).sum()
        assert (np.abs(found - total) <= 4 * gamma(each * inner + 12) * size).all()
        alone = few.add_up(active, back, choice).numpy()
        assert (np.abs(alone + r - total) <= 4 * gamma(each * inner + 12) * size).all()


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("experts", "each", "k"), [(128, 8, 256), (9, 2, 50), (300, 3, 33)])
def test_few_rows_are_routed_by_one_kernel(
    device: vkpar.Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    experts: int,
    each: int,
    k: int,
    stored: str,
) -> None:
    """Logits of whole numbers, with equals among them, or all divided by one root; counters go back to zero."""
    monkeypatch.setattr(few, "usable_on", lambda device: True)
    router = device.array(rng.integers(-3, 4, (experts, k)).astype(np.float32), stored)
    for rows, normed in ((1, True), (1, False), (5, True), (8, False)):
        for _ in range(2):
            x = (2 * rng.choice([-1, 1], (rows, k))).astype(np.float32)
            w = rng.integers(1, 4, k).astype(np.float32)
            given = vkpar.Normed(device.array(x), device.array(w), 0.0) if normed else device.array(x)
            assert few.routes(given, router)
            found = few.route(given, router, each, normed=normed).numpy()
            logits = (x / 2 * w if normed else x) @ router.numpy().astype(np.float32).T
            wanted, shares = taken(device, logits, each, normed=normed)
            np.testing.assert_array_equal(found[0], wanted)
            off = 2 * 8 * U * np.abs(logits).max()  # of the root, of quotients, and of what is raised to their powers
            np.testing.assert_allclose(found[1].view(np.float32), shares, rtol=off)
    others = (device.zeros((2, k + 1)), device.zeros((2, 1, k)), device.zeros((2, k), "int32"), device.zeros((9, k)))
    assert not any(few.routes(other, router) for other in others)  # which matmul refuses, or takes
    assert not few.routes(vkpar.Normed(others[0], device.ones(k + 1)), router)


def test_sums_of_experts_are_weighed_in_their_order(device: vkpar.Device, rng: np.random.Generator) -> None:
    numbers = np.argsort(rng.random((9, 6)), axis=1)[:, :4]
    weights = rng.random((9, 4)).astype(np.float32)
    for kind, columns in (("float32", 20), ("float16", 7)):
        x = device.array(rng.standard_normal((36, columns)).astype(np.float32), kind)
        found = products.add_up(x, choice_of(device, numbers, weights), Span(1, 4)).numpy()
        there = ((numbers >= 1) & (numbers < 5))[..., None]
        terms = np.where(there, weights[..., None] * x.numpy().astype(np.float64).reshape(9, 4, columns), 0)
        assert (np.abs(found - terms.sum(axis=1)) <= gamma(6) * np.abs(terms).sum(axis=1)).all()


def test_what_cannot_be_routed(device: vkpar.Device) -> None:
    for logits, each in ((device.zeros((2, 4)), 5), (device.zeros((2, 4)), 0), (device.zeros(4), 1)):
        with pytest.raises(InvalidUsageError, match="route takes"):
            routing.route(logits, each)
    with pytest.raises(UnsupportedError, match="513 experts of a block are not supported"):
        routing.route(device.zeros((1, 513)), 1)
