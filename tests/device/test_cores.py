"""Products by matrix cores: exact on devices that have them, and how they are dispatched on those that have not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.words import specialized
from helpers.vulkan.planning import dispatches, forget
from numpy.typing import NDArray

import vkpar
from vkpar import env
from vkpar.ops.call import measured
from vkpar.ops.call.call import Call
from vkpar.ops.tiles import choice, core_rates, cores
from vkpar.ops.tiles.choice import Choice
from vkpar.ops.tiles.cores import KHR, Core
from vkpar.vulkan.pipelines import shader

products = importlib.import_module("vkpar.ops.matmul.dense")
pytestmark = [pytest.mark.device, pytest.mark.sampled(12)]

Floats = NDArray[np.float64]
SIZES = [
    (128, 256, 128),
    (300, 264, 200),
    (301, 267, 203),
    (17, 31, 33),
    (9, 8, 8),
    (130, 1, 70),
    (64, 520, 1000),
    (5, 136, 300),
    (256, 512, 1152),  # tiles and steps within the operands
    (264, 392, 1160),
]
EPS32, ROUNDING = 2.0**-24, {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0}


def only(monkeypatch: pytest.MonkeyPatch, device: vkpar.Device, core: Core, dtype: str, parts: int = 1) -> None:
    """Have all products of ``dtype`` made by a kernel of matrix cores; skip where the device has it not."""
    if core not in cores.available(device.info, dtype):
        pytest.skip(f"{device.name} has no matrix cores that run {core.label} on {dtype}")

    def choice(_: object, given: str, m: int, n: int, k: int, batch: int, most: int, **_more: bool) -> Choice | None:
        k_part = -(-k // (min(parts, most) * core.step)) * core.step
        return Choice(core, -(-k // k_part), min(k_part, k)) if given == dtype else None

    forget(device)
    monkeypatch.setattr(products, "kernel_for", lambda device, m: "matmul_tiled")
    monkeypatch.setattr(products.choice, "choose", choice)


def exact(array: vkpar.Array) -> Floats:
    return array.numpy().astype(np.float64)


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers, whose products add up exactly."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def upload(device: vkpar.Device, x: NDArray[Any], dtype: str, transposed: bool = False) -> vkpar.Array:
    x = np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x
    return device.array(x.astype(np.float16) if dtype == "float16" else x, dtype)


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_whole_numbers(
    device: vkpar.Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    core: Core,
    dtype: str,
    size: tuple[int, int, int],
    turned: tuple[bool, bool],
) -> None:
    """Exact into float32, both operands transposed or not, sizes that are no multiples of anything."""
    only(monkeypatch, device, core, dtype, parts=3 if size[2] > 256 else 1)
    m, n, k = size
    a, b = integers(rng, m, k), integers(rng, k, n)
    x, y = upload(device, a, dtype, turned[0]), upload(device, b, dtype, turned[1])
    for _ in range(2):  # the second call goes by what the first one kept
        out = vkpar.matmul(x, y, transpose_a=turned[0], transpose_b=turned[1], dtype="float32")
        np.testing.assert_array_equal(out.numpy(), a @ b)
    forget(device)


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [(256, 256, 300), (70, 65, 40)], ids=str)
def test_random_numbers_within_the_bound(
    device: vkpar.Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    core: Core,
    dtype: str,
    result: str,
    size: tuple[int, int, int],
) -> None:
    """A float32 sum in any order, rounded once to the nearest value of the result's type."""
    only(monkeypatch, device, core, dtype)
    m, n, k = size
    x, y = (upload(device, rng.standard_normal(shape), dtype) for shape in ((m, k), (k, n)))
    a, b = exact(x), exact(y)
    got, want = exact(vkpar.matmul(x, y, dtype=result)), a @ b
    bound = (k + 2) * 2 * EPS32 * (np.abs(a) @ np.abs(b)) + 1e-37
    bound = bound * (1 + ROUNDING[result]) + ROUNDING[result] * np.abs(want)
    bound += 2.0**-25 if result == "float16" else 0.0
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)
    forget(device)


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_what_follows(
    device: vkpar.Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    core: Core,
    dtype: str,
    parts: int,
    batch: tuple[int, ...],
) -> None:
    only(monkeypatch, device, core, dtype, parts)
    a, b, bias = integers(rng, *batch, 140, 600), integers(rng, *batch, 600, 264), integers(rng, 264)
    added = integers(rng, *batch, 140, 264)
    x, y = upload(device, a, dtype), upload(device, b, dtype)
    more, residual = device.array(bias), upload(device, added, dtype)
    want = np.maximum(a @ b + bias, 0) + added
    out = vkpar.matmul(x, y, bias=more, activation="relu", residual=residual, dtype="float32")
    np.testing.assert_array_equal(out.numpy(), want)
    held = device.array(added)
    vkpar.matmul(x, y, out=held, accumulate=True)
    np.testing.assert_array_equal(held.numpy(), a @ b + added)
    forget(device)


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [8, 3], ids=str)
def test_each_element_is_stored_once(
    device: vkpar.Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    core: Core,
    dtype: str,
    rows: int,
) -> None:
    """Where the last tiles are not whole, and what is added lies where results go."""
    only(monkeypatch, device, core, dtype)
    m, n, k = core.tile[0] + rows, 2 * core.tile[1] - 8, core.step * (core.span + 1) + 8
    a, b, added = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((m, k), (n, k), (m, n)))
    want = np.maximum(a @ b.T, 0) + added
    held = upload(device, added, dtype)
    kept = device.zeros((m * n + 16,), dtype)
    x, y = upload(device, a, dtype), upload(device, b, dtype)
    vkpar.matmul(x, y, transpose_b=True, activation="relu", residual=held, out=held)
    assert want.max() < 256  # which bfloat16 holds
    np.testing.assert_array_equal(exact(held), want)
    at = kept[6 : 6 + m * n].reshape((m, n))  # rows are whole eights, but not at multiples of eight elements
    vkpar.matmul(x, y, transpose_b=True, out=at)
    np.testing.assert_array_equal(exact(at), a @ b.T)
    assert not exact(kept)[:6].any()
    assert not exact(kept)[6 + m * n :].any()
    forget(device)


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
def test_views_at_any_element_and_special_values(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, core: Core
) -> None:
    only(monkeypatch, device, core, "float16")
    a, b = integers(rng, 40, 48), integers(rng, 48, 56)
    a[3, 5], a[7, 9], b[2, 6] = np.inf, np.nan, -np.inf
    b[5] = 1.0
    x = device.array(np.concatenate([np.zeros(3), a.ravel()]).astype(np.float16))[3:].reshape((40, 48))
    y = device.array(np.concatenate([np.zeros(1), b.ravel()]).astype(np.float16))[1:].reshape((48, 56))
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(vkpar.matmul(x, y, dtype="float32").numpy(), want)
    large = device.array(np.full((32, 32), 200.0, np.float16))
    assert np.isinf(vkpar.matmul(large, large).numpy()).all()  # 1,280,000 is more than float16 holds
    forget(device)


def test_the_device_measures_its_kernels(device: vkpar.Device) -> None:
    found = cores.available(device.info, "float16")
    if not found:
        pytest.skip(f"{device.name} has no matrix cores")
    made = core_rates._measured(device, (*found, cores.PLAIN), "float16", streams=None)
    assert set(made.rates) == {*found, cores.PLAIN}
    assert all(0 < ns < 1e9 for both in made.rates.values() for rate in both[:2] for ns in rate)
    assert all(0.1 < both.plain < 10 for both in made.rates.values())
    assert made.few is None or all(0 < ns < 1e9 for few in made.few for ns in (few.cores, *few.rows))


# --- without matrix cores ---


def test_without_matrix_cores_nothing_changes(device: vkpar.Device) -> None:
    if device.info.features.matrix_features:
        pytest.skip(f"{device.name} has matrix cores")
    assert choice.choose(device, "float16", 512, 512, 512, 1, 8, transpose_b=False) is None


def test_features_can_be_left_off(reopen: Callable[..., vkpar.Device]) -> None:
    left = reopen(without="cooperative_matrix, cooperative_matrix2,bfloat16").info
    assert left.features.matrix_features == left.features.cooperative_matrix == left.features.cooperative_matrix2 == ()
    assert not cores.available(left, "float16")
    with pytest.raises(vkpar.InvalidUsageError, match="VKPAR_WITHOUT"):
        reopen(without="matrices")


def test_a_kernel_for_matrix_cores_is_refused_by_name(device: vkpar.Device) -> None:
    if device.info.features.matrix_features:
        pytest.skip(f"{device.name} has matrix cores")
    with pytest.raises(vkpar.UnsupportedError, match="CooperativeMatrixKHR"):
        vkpar.Kernel(device, shader.shipped("matmul_coop_f16_t128"))


@pytest.mark.parametrize(("ns", "want"), [(0.0, 150 * 300 * 100 // 500), (7000.0, 7000)])
def test_what_was_measured_says_how_long_a_product_takes(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, ns: float, want: int
) -> None:
    """And so how many gather in a submission: by the guess for slow GPUs each would be one of its own."""
    forget(device)
    costs: list[int] = []

    def dispatch(self: Any, *given: Any, **_: Any) -> None:
        costs.append(given[6])
        self.forget()

    monkeypatch.setattr(Call, "dispatch", dispatch)
    monkeypatch.setattr(products, "kernel_for", lambda device, m: "matmul_tiled")
    monkeypatch.setattr(products.choice, "choose", lambda *given, **_: Choice(cores.CORES[0], 1, 100, ns))
    vkpar.matmul(device.zeros((150, 100), "float16"), device.zeros((100, 300), "float16"))
    assert costs == [want]
    forget(device)


@pytest.mark.parametrize("instead", ["matmul_tiled", "matvec"])
@pytest.mark.parametrize("follows", [False, True])
def test_how_a_product_is_dispatched(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, follows: bool, instead: str
) -> None:
    """Where no device runs the kernels: their names, bindings, push constants and grids."""
    core = cores.CORES[0]
    forget(device)
    sent = dispatches(monkeypatch)
    monkeypatch.setattr(products, "kernel_for", lambda device, m: instead)
    monkeypatch.setattr(products.choice, "choose", lambda *given, **_: Choice(core, 2, 64))
    x, y = device.zeros((150, 100), "float16"), device.zeros((100, 300), "float16")
    vkpar.matmul(x, y, activation="relu" if follows else None)
    assert [name for name, *_ in sent] == [f"{KHR}_f16_t256", "matmul_finish"]
    tiles = -(-150 // core.tile[0]) * -(-300 // core.tile[1])
    name, bindings, nbytes, groups, constants = sent[0]
    assert (bindings, nbytes, groups) == (3, 92, 2 * tiles)
    told = specialized(name, constants)
    assert (told["tile_m"], told["tile_n"]) == core.tile
    assert told.items() >= core.tail(device.info, eights=False)._asdict().items()
    sent.clear()
    monkeypatch.setattr(products.choice, "choose", lambda *given, **_: Choice(core, 1, 100))
    vkpar.matmul(x, y, activation="relu" if follows else None)
    assert [(each.name, each.bindings, each.groups) for each in sent] == [
        (KHR + ("_forms" if follows else "") + "_f16_t256", 5 if follows else 3, tiles)
    ]
    sent.clear()  # it stores every type of results: no conversion follows
    vkpar.matmul(x, y, dtype="bfloat16")
    assert [name for name, *_ in sent] == [f"{KHR}_f16_t256"]
    forget(device)


def test_where_bindings_hold_no_measured_matrix_rates_are_assumed(
    device: vkpar.Device, reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_known", {})
    monkeypatch.setattr(measured.cachedir, "write", lambda *_: pytest.fail("nothing was measured"))
    small = reopen(max_buffer=65536, max_binding=65536)
    with env.override(tuning="redo"):
        found = core_rates.measured(small, "float16", (cores.PLAIN,))
    assert found == core_rates.assumed((cores.PLAIN,))
