"""Kernels of matrix cores with matrices that no device here has: their GLSL, by arrays, against exact numbers.

What the compilers of cards with such matrices take is in test_compilers.py; here is what the kernels compute.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.ops import played
from helpers.ops.elements import check, normal, values_of
from helpers.ops.windows import windowed
from helpers.vulkan.infos import OF_BMG, intel_info, radv_info
from numpy.typing import NDArray

import vkpar
from vkpar.abi import attention as abi
from vkpar.doctor.references import attended
from vkpar.ops.call.makes import Make
from vkpar.ops.matmul import images
from vkpar.ops.tiles import cores, streamed
from vkpar.ops.tiles.choice import Choice
from vkpar.ops.tiles.cores import Core
from vkpar.ops.tiles.fragments import NARROW, Fragment

products = importlib.import_module("vkpar.ops.matmul.dense")
attention = importlib.import_module("vkpar.ops.attention.kernels")
pytestmark = pytest.mark.device

HALVES = ["float16", "bfloat16"]
# One of each shape of matrices with each number of invocations, whose work-groups a CPU is done with soon.
TILES = [core for core in cores.OF_NARROW if core.tile != (64, 128)]
BROAD = [core for core in cores.OF_NARROW if core.tile == (64, 128)]


@pytest.fixture
def player(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[vkpar.Device]:
    """A device of its own, whose kernels of matrix cores are those by arrays."""
    if device.info.limits.max_workgroup_invocations < 256:
        pytest.skip(f"{device.name} has no work-groups of 256")
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each for a minute")
    played.play(monkeypatch, "matmul_coop|matmul_coop_forms|matvec_cores|matvec_cores_forms|attention_cores")
    monkeypatch.setattr(products, "kernel_for", lambda device, m: "matmul_tiled")
    with vkpar.Device(device.info) as made:
        yield made


def take(monkeypatch: pytest.MonkeyPatch, core: Core, parts: int = 1) -> list[Core]:
    """Have products made by one kernel, in parts of K; what it returns gets that for each product."""
    taken = []

    def choose(device: Any, dtype: str, m: int, n: int, k: int, *_: Any, **__: Any) -> Choice:
        taken.append(core)
        k_part = -(-k // (parts * core.step)) * core.step if parts > 1 else k
        return Choice(core, -(-k // k_part), k_part)

    monkeypatch.setattr(products.choice, "choose", choose)
    return taken


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers, whose products add up exactly."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def turned(a: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(a, -1, -2))


@pytest.mark.sampled(1)
def test_there_is_one_of_each_shape() -> None:
    assert {core.fragment for core in TILES} == set(NARROW)
    assert {core.threads for core in TILES} == {128, 256}


@pytest.mark.sampled(97)
@pytest.mark.parametrize("core", [*TILES, *BROAD], ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layout", range(4), ids=["plain", "b", "a", "a b"])
def test_whole_numbers(
    player: vkpar.Device,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    core: Core,
    dtype: str,
    layout: int,
) -> None:
    """Exact, of both layouts of both operands, where rows are whole units and where they are not."""
    taken, (turn_a, turn_b) = take(monkeypatch, core), (layout // 2, layout % 2)
    high, broad = core.tile
    for m, n, k in ((high + 8, broad + 24, 2 * core.step + 16), (high - 3, broad + 5, core.step + 7)):
        a, b = integers(rng, m, k), integers(rng, k, n)
        x = player.array(turned(a) if turn_a else a, dtype)
        y = player.array(turned(b) if turn_b else b, dtype)
        out = vkpar.matmul(x, y, transpose_a=bool(turn_a), transpose_b=bool(turn_b), dtype="float32")
        np.testing.assert_array_equal(out.numpy(), a @ b)
    assert taken == [core] * 2


@pytest.mark.sampled(97)
@pytest.mark.parametrize("core", TILES, ids=lambda core: core.label)
@pytest.mark.parametrize(("dtype", "brief"), [("float16", False), ("bfloat16", False), ("float16", True)])
def test_what_follows(
    player: vkpar.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, core: Core, dtype: str, brief: bool
) -> None:
    """Bias, activation and residual; batches; parts of K; what is added to; once in loops, for some compilers."""
    monkeypatch.setattr(cores, "make_of", lambda _: Make(brief=brief))
    m, n, k = core.tile[0] + 8, core.tile[1], 4 * core.step
    a, b, bias, added = integers(rng, 2, m, k), integers(rng, 2, n, k), integers(rng, n), integers(rng, 2, m, n)
    x, y, more = player.array(a, dtype), player.array(b, dtype), player.array(bias)
    take(monkeypatch, core)
    want = np.maximum(a @ turned(b) + bias, 0) + added
    for result in ("float32", dtype):
        out = vkpar.matmul(
            x, y, transpose_b=True, bias=more, activation="relu", residual=player.array(added, dtype), dtype=result
        )
        np.testing.assert_array_equal(values_of(out), values_of(player.array(want, result)))
    take(monkeypatch, core, parts=2)
    held_sums = player.array(added)
    vkpar.matmul(x, y, transpose_b=True, out=held_sums, accumulate=True)
    np.testing.assert_array_equal(held_sums.numpy(), a @ turned(b) + added)


@pytest.mark.sampled(97)
@pytest.mark.parametrize("core", TILES, ids=lambda core: core.label)
def test_random_numbers_within_the_bound(
    player: vkpar.Device, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, core: Core
) -> None:
    """A float32 sum in any order, rounded once to the nearest value of the result's type."""
    take(monkeypatch, core)
    m, n, k = core.tile[0], core.tile[1] + 8, 3 * core.step
    for dtype in HALVES:
        a, b = normal(rng, (m, k), dtype).astype(np.float64), normal(rng, (n, k), dtype).astype(np.float64)
        out = vkpar.matmul(player.array(a, dtype), player.array(b, dtype), transpose_b=True)
        check(out, a @ b.T, (k + 2) * 2.0**-23 * (np.abs(a) @ np.abs(b.T)))


@pytest.mark.sampled(97)
@pytest.mark.parametrize("core", TILES, ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("kernel", "stride", "padding"), [((3, 3), (1, 1), (1, 1)), ((2, 3), (2, 4), (0, 0))])
def test_windows(
    player: vkpar.Device,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    core: Core,
    dtype: str,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    """Exact, of more windows than a tile has columns; with odd numbers of results in a row; of views; come again."""
    taken = take(monkeypatch, core)
    x, w = integers(rng, 2, 16, 9, 11), integers(rng, core.tile[0] + 1, 16, *kernel)
    edges = ((0, 0), (0, 0), *((each, each) for each in padding))
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, edges), kernel, (2, 3))
    want = np.einsum("nchwij,ocij->nohw", seen[:, :, :: stride[0], :: stride[1]], w)
    last = player.array(x.transpose(0, 2, 3, 1).copy(), dtype).transpose(0, 3, 1, 2)
    for image in (player.array(x, dtype), last, player.array(x, dtype)):
        made = vkpar.conv2d(image, player.array(w, dtype), stride=stride, padding=padding)
        np.testing.assert_array_equal(values_of(made), values_of(player.array(want, dtype)))
    assert taken == [core] * 2
    monkeypatch.setattr(images, "MAX_WORK", w[0].size * len(w) * want[0, 0].size)  # an image for each dispatch
    made = vkpar.conv2d(player.array(x, dtype), player.array(w, dtype), stride=stride, padding=padding, groups=1)
    np.testing.assert_array_equal(values_of(made), values_of(player.array(want, dtype)))


def test_windows_of_what_lies_over_a_border_of_buffers(
    player: vkpar.Device,
    reopen: Callable[..., vkpar.Device],
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    """Images, and weights, that no binding sees at once where they lie."""
    device = reopen(max_buffer=65536, max_binding=65536)
    take(monkeypatch, TILES[0])
    many, all_weights = integers(rng, 8, 24, 24, 16), integers(rng, 300, 3, 3, 16)
    images_there, weights_there = device.array(many, "float16"), device.array(all_weights, "float16")
    for first, of in ((0, 0), (2, 0), (0, 200)):
        x, w = many[first : first + 3].transpose(0, 3, 1, 2), all_weights[of : of + 41].transpose(0, 3, 1, 2)
        seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::3, ::3]
        made = vkpar.conv2d(
            images_there[first : first + 3].transpose(0, 3, 1, 2),
            weights_there[of : of + 41].transpose(0, 3, 1, 2),
            stride=3,
        )
        np.testing.assert_array_equal(values_of(made), np.einsum("nchwij,ocij->nohw", seen, w))


# ---- few rows ----


@pytest.mark.sampled(97)
@pytest.mark.parametrize("fragment", NARROW, ids=lambda fragment: fragment.shape)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_few_rows(
    player: vkpar.Device,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    fragment: Fragment,
    dtype: str,
    transpose_b: bool,
) -> None:
    """Exact, of as many rows as matrices have and of fewer, of columns and steps that end within a group's; batches.

    The subgroups of a group turn as often as each other: what stands in for their barriers is the group's.
    """
    monkeypatch.setattr(streamed, "_LEAST_AHEAD", 0)
    monkeypatch.setattr(streamed, "_LEAST_TURNS", 0)
    ways = []

    def choose(device: Any, _: str, m: int, n: int, k: int, batch: int, *__: Any, **how: Any) -> Choice:
        assert how["whole"]
        way = streamed.spread(device.info, m, n, k, batch, transpose_b=transpose_b, fragment=fragment)
        assert way is not None
        ways.append(way)
        return Choice(way, 1, k)

    monkeypatch.setattr(products.choice, "choose", choose)
    for m, n, k, form in ((2, 40, 504, False), (8, 24, 248, True), (16, 72, 256, False)):
        if m > (8 if transpose_b else fragment.columns):
            continue
        a, b = integers(rng, 2, m, k), integers(rng, 2, k, n)
        bias, added = integers(rng, n), integers(rng, 2, m, n)
        y = player.array(turned(b) if transpose_b else b, dtype)
        more: dict[str, Any] = {}
        want = a @ b
        if form:
            more = {"bias": player.array(bias), "activation": "relu", "residual": player.array(added)}
            want = np.maximum(want + bias, 0) + added
        out = vkpar.matmul(player.array(a, dtype), y, transpose_b=transpose_b, dtype="float32", **more)
        np.testing.assert_array_equal(out.numpy(), want)
    assert {way.tail(player.info, eights=True).fm for way in ways} == {8}


# ---- attention ----


@pytest.mark.skipif(not FULL, reason="CPU drivers compile each for a quarter of a minute")
@pytest.mark.parametrize(
    ("width", "parts", "causal", "masked", "splits", "dtype", "window"),
    [
        (20, 1, True, False, 2, "float16", 27),
        (20, 1, True, False, 2, "float16", 6),
        (72, 2, False, True, 1, "bfloat16", 19),
        (72, 2, True, False, 2, "float16", 27),
        (128, 4, True, False, 1, "bfloat16", 1),
        (30, 0, True, False, 2, "float16", 6),
        (24, 0, False, True, 1, "float16", 19),
    ],
)
def test_attention(
    player: vkpar.Device,
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
    width: int,
    parts: int,
    causal: bool,
    masked: bool,
    splits: int,
    dtype: str,
    window: int,
) -> None:
    """Subgroups that have queries to themselves, and such as share them; masks, windows, parts, rising scores.

    Of two tiles of keys: with more, invocations would turn more often than lavapipe counts. 0 parts: the widest rows of
    a card of AMD's, if less wide.
    """
    if parts:
        kernel = attention._narrow(intel_info(OF_BMG, (16, 32)), dtype, width)
        assert kernel.more.parts == parts
    else:
        for most in ("_MOST_HELD", "_MOST_TILED"):
            monkeypatch.setattr(attention, most, 16)
        kernel = attention._cores(radv_info(mesa=25), dtype, width)
        assert kernel.more == abi.CoresConstants(16, 64, ahead=0)
    monkeypatch.setattr(attention, "kernel_for", lambda *_: kernel)
    monkeypatch.setattr(attention, "splits_for", lambda *_: splits)
    tokens, keys = kernel.rows + 5, 27
    q, k, v = (normal(rng, (2, rows, width), dtype) for rows in (tokens, keys, keys))
    k *= 2.0 ** (np.arange(keys) // 7)[:, None].astype(np.float32)
    mask = np.where(rng.random((tokens, keys)) < 0.3, -np.inf, normal(rng, (tokens, keys), dtype)) if masked else None
    hidden = windowed(tokens, keys, window, causal=causal)
    exact = [each.astype(np.float64) for each in (q, k, v)]
    given = None if mask is None else player.array(mask.astype(np.float32))
    out = vkpar.attention(*(player.array(each, dtype) for each in (q, k, v)), causal=causal, mask=given, window=window)
    check(out, *attended(*exact, causal=causal, mask=hidden if mask is None else mask + hidden, stored=dtype))
