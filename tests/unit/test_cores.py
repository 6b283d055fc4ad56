"""Which kernels of matrix cores a device is given, and which of them makes a product, without Vulkan."""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.vulkan.infos import fake_info
from hypothesis import given
from hypothesis import strategies as st

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.abi import matmul as abi
from vkpar.abi.words import width
from vkpar.errors import VulkanError
from vkpar.ops.call import measured
from vkpar.ops.tiles import choice, core_rates, cores, streamed, tiled
from vkpar.ops.tiles.choice import Choice
from vkpar.ops.tiles.core_rates import Few, Rate, Rates
from vkpar.ops.tiles.cores import KHR, Core
from vkpar.ops.tiles.fragments import NARROW, WHOLE, Fragment
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.capabilities import missing
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.kernel import PACKS_HALVES

H200 = 132
FIRST_OF_DEVICES = 2000  # specialization constants from here on are the same for all of a device's kernels
OF_GROUPS = tuple(
    f"cooperativeMatrix{name}"
    for name in ("Conversions", "WorkgroupScope", "FlexibleDimensions", "PerElementOperations", "TensorAddressing")
)
FEATURES = ("cooperativeMatrix", *OF_GROUPS, "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix")
SUBGROUPS = ("16x8x16 f16*f16->f16", "16x16x16 f16*f16->f32", "16x16x16 bf16*bf16->f32")
GROUPS = (
    "16x16x16 f16*f16->f32 subgroup 0",
    "32x32x16 f16*f16->f16 workgroup 256",
    "32x32x16 f16*f16->f32 workgroup 256",
    "32x32x16 bf16*bf16->f32 workgroup 256",
)
MANIFEST = json.loads(importlib.resources.files("vkpar").joinpath("spirv", "manifest.json").read_text())["kernels"]


def h200(without: tuple[str, ...] = (), **changes: Any) -> DeviceInfo:
    """What driver 580 says of an H200, but for some features."""
    info = fake_info()
    matrices = {
        "cooperative_matrix": SUBGROUPS,
        "cooperative_matrix2": GROUPS,
        "subgroup_operations": ("basic", "vote", "arithmetic", "ballot", "shuffle"),
        "matrix_features": tuple(name for name in FEATURES if name not in without),
    }
    features = dataclasses.replace(info.features, **(matrices | changes))
    limits = dataclasses.replace(info.limits, max_workgroup_invocations=1024, max_shared_memory=48 << 10)
    return dataclasses.replace(info, features=features, limits=limits)


def cores_of(name: str) -> bool:
    """Say whether a kernel needs matrix cores."""
    return any(need.startswith("cooperative_matrix") for need in MANIFEST[name].get("needs", ()))


def kernels(info: DeviceInfo, dtype: str = "float16") -> set[str]:
    return {core.kernel for core in cores.available(info, dtype)}


def test_an_h200_has_all_of_them() -> None:
    for dtype in ("float16", "bfloat16"):
        assert cores.available(h200(), dtype) == cores.CORES


@pytest.mark.parametrize(
    ("info", "dtype", "want"),
    [
        (fake_info(), "float16", set()),
        (h200(matrix_features=()), "float16", set()),
        (h200(("cooperativeMatrix",)), "float16", set()),
        (h200(cooperative_matrix=SUBGROUPS[:1]), "float16", set()),
        (h200(cooperative_matrix2=()), "float16", {KHR}),
        (h200(subgroup_control=False), "float16", set()),
        (h200(storage_16bit=False), "float16", {KHR}),
        (h200(memory_model=False), "float16", set()),
        (h200(("shaderBFloat16CooperativeMatrix",)), "bfloat16", set()),
        (h200(("shaderBFloat16CooperativeMatrix",)), "float16", {KHR}),
        (h200(cooperative_matrix=SUBGROUPS[:2]), "bfloat16", set()),
    ],
)
def test_what_a_device_lacks_takes_kernels_away(info: DeviceInfo, dtype: str, want: set[str]) -> None:
    assert kernels(info, dtype) == want


def test_limits_take_kernels_away() -> None:
    small = dataclasses.replace(h200().limits, max_workgroup_invocations=128, max_shared_memory=20 << 10)
    left = cores.available(dataclasses.replace(h200(), limits=small), "float16")
    assert left
    assert all(core.threads <= 128 and core.shared_nbytes(32) <= 20 << 10 for core in left)


@pytest.mark.parametrize(
    ("warp", "nbytes"),
    [
        (8, (73728, 36864, 36864, 57344, 40960, 20480, 24576)),
        (16, (69632, 34816, 36864, 53248, 36864, 18432, 24576)),
        (32, (34816, 20480, 36864, 46080, 27648, 18432, 24576)),
        (64, (33792, 20480, 36864, 46080, 27648, 18432, 24576)),
    ],
)
def test_shared_memory_holds_operands_and_results(warp: int, nbytes: tuple[int, ...]) -> None:
    """As the array of shaders/common/coop.glsl does: a step of K, and then a row of matrices of each subgroup."""
    assert tuple(core.shared_nbytes(warp) for core in cores.CORES) == nbytes
    for core, need in zip(cores.CORES, nbytes, strict=True):
        for room in (need, need - 1):
            info = h200(subgroup_size=warp)
            limited = dataclasses.replace(info, limits=dataclasses.replace(info.limits, max_shared_memory=room))
            high, broad = core.warp_tile(warp)
            runs = high % 16 == broad % 16 == 0 and not (core.roomy and warp > 32)
            assert (core in cores.available(limited, "float16")) == (runs and room == need)


NVK = dataclasses.replace(h200(), driver_id=24)


@pytest.mark.parametrize("info", [h200(subgroup_size=64), NVK], ids=["subgroups of 64", "NVK"])
def test_some_have_no_registers_for_the_most_sums_and_long_steps(info: DeviceInfo) -> None:
    lacking = set(cores.CORES) - set(cores.available(info, "float16"))
    assert {(core.tile, core.threads, core.step) for core in lacking} == {((128, 128), 128, 64)}


def test_no_subgroup_has_more_rows_of_matrices_than_the_kernel_stores() -> None:
    """MREP of shaders/common/coop.glsl is 4 at most; subgroups of 128 would have eight."""
    for warp in (8, 16, 32, 64, 128):
        found = cores.available(h200(subgroup_size=warp), "float16")
        assert all(core.warp_tile(warp)[0] <= 4 * 16 for core in found)
        assert ((128, 128) in {core.tile for core in found}) == (warp < 128)


def test_what_is_loaded_ahead_and_rolled_is_by_the_driver() -> None:
    """Of NVIDIA's own, two steps at once, and copies of what follows; of Mesa's for the same cards neither."""
    for info, told in ((h200(), (1, 2, 0)), (NVK, (0, 1, 1)), (h200(subgroup_size=64), (0, 1, 0))):
        tail = cores.CORES[0].tail(info, eights=True)
        assert isinstance(tail, abi.CoresTail)
        assert (tail.ahead, tail.span, tail.rolled) == told
    assert (tiled.sums_of(h200()), tiled.sums_of(NVK)) == (128, 64)


@pytest.mark.parametrize("warp", [8, 16, 32, 64])
@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
def test_subgroups_share_a_tile(core: Core, warp: int) -> None:
    high, broad = core.warp_tile(warp)
    assert (core.tile[0] // high) * (core.tile[1] // broad) * warp == core.threads
    assert (core.tile[0] % high, core.tile[1] % broad) == (0, 0)
    if core in cores.available(h200(subgroup_size=warp), "float16"):
        assert 16 * broad // 8 % warp == 0  # a subgroup stores all eights of a row of matrices in whole turns


@pytest.mark.parametrize("core", [core for core in cores.CORES if core.span > 1], ids=lambda core: core.label)
def test_two_steps_at_once_are_shared_evenly(core: Core) -> None:
    """As shaders/common/coop.glsl counts on: whole turns, an even number of them, of rows in groups of eight."""
    assert core.span == 2
    lines = core.threads // (2 * core.step // 8)
    for side in core.tile:
        assert side % (2 * lines) == lines % 4 == 0
        assert core.step % (core.threads // (side // 8)) == 0  # where the operand does not lie along K


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
def test_wide_subgroups_have_no_registers_for_two_steps_at_once(core: Core) -> None:
    assert core.tail(h200(), eights=True).span == core.span
    assert core.tail(h200(subgroup_size=64), eights=True).span == 1


@pytest.mark.parametrize("core", cores.CORES, ids=lambda core: core.label)
def test_kernels_ship_and_take_so_many_constants(core: Core) -> None:
    """The last specialization constant that a module declares is the last that it is given."""
    for dtype in ("float16", "bfloat16"):
        for forms in ("", "_forms"):
            spirv = shader.shipped(core.kernel + forms + core.variant(dtype))
            own = [number for number in _spec_ids(spirv) if number < FIRST_OF_DEVICES]
            assert max(own) == 17 + len(core.tail(h200(), eights=False))
            assert reflect(spirv).entries["main"].local_size == (core.threads, 1, 1)
            assert reflect(spirv).push_nbytes == 4 * width(abi.Product, abi.Forms, abi.Windows)


def _spec_ids(spirv: bytes) -> list[int]:
    words, at, found = struct.unpack(f"<{len(spirv) // 4}I", spirv), 5, []
    while at < len(words):
        if words[at] & 0xFFFF == 71 and words[at + 2] == 1 and words[at + 3] != PACKS_HALVES:  # OpDecorate ... SpecId
            found.append(words[at + 3])
        at += words[at] >> 16
    return found


@pytest.mark.parametrize("name", sorted(name for name, entry in MANIFEST.items() if "needs" in entry))
def test_the_manifest_says_what_kernels_need(name: str) -> None:
    """No device without these features can run it, and a device with them can."""
    needs, capabilities = set(MANIFEST[name]["needs"]), reflect(shader.shipped(name)).capabilities
    enough = [
        feature
        for feature in FEATURES
        if (feature == "cooperativeMatrix" and "cooperative_matrix" in needs)
        or (feature in OF_GROUPS and "cooperative_matrix2" in needs)
        or ("BFloat16" in feature and "bfloat16" in needs)
    ]
    dot = "integer_dot" in needs
    quads = {"subgroup_operations": ("basic", "arithmetic", "quad")} if dot else {}
    assert not cores_of(name) or missing(capabilities, h200(matrix_features=tuple(enough[1:])).features)
    assert not missing(capabilities, h200(matrix_features=tuple(enough), integer_dot=dot, **quads).features)
    assert not dot or missing(capabilities, h200(integer_dot=False, **quads).features)
    for family in ("cooperativeMatrix", "BFloat16"):
        left = tuple(feature for feature in enough if not re.search(family, feature))
        assert len(left) == len(enough) or missing(capabilities, h200(matrix_features=left).features)


def test_no_other_kernel_needs_matrix_cores() -> None:
    for name in MANIFEST:
        kinds = ("matmul_coop", "matvec_cores", "attention_cores", "quantized_cores", "expert_cores")
        assert cores_of(name) == name.startswith(kinds)


# --- the choice ---


BIG, LITTLE, PLAIN = Core(KHR, 256, (128, 256), 32), Core(KHR, 128, (64, 64), 32), cores.PLAIN


def rates(one: float, two: float, four: float) -> Rates:
    """Those of a kernel that takes no longer for what comes out of memory."""
    few = Rate(one, two, min(one + two, four), four)
    return Rates(few, Rate(*(4 * ns for ns in few)))


RATES = {BIG: rates(16e3, 32e3, 64e3), LITTLE: rates(12e3, 13e3, 16e3), PLAIN: rates(200e3, 240e3, 480e3)}


@pytest.mark.parametrize(
    ("rate", "wants"),
    [
        (Rate(10, 20, 30, 40), (10, 20, 30, 40, 50, 60, 70)),  # one tile at a time
        (Rate(10, 12, 24, 24), (10, 12, 24, 24, 36, 36, 48)),  # two: of three, some units get four
        (Rate(10, 11, 12, 13), (10, 11, 12, 13, 23, 24, 25)),  # four
    ],
)
def test_a_product_takes_as_long_as_the_unit_with_most_tiles(rate: Rate, wants: tuple[float, ...]) -> None:
    for each, want in enumerate(wants, start=1):
        for groups in (each * H200, each * H200 - H200 + 1):
            assert rate.time(groups, H200) == want


def test_what_comes_out_of_memory_takes_longer() -> None:
    few, many = Rate(10, 20, 30, 40), Rate(70, 110, 150, 190)
    both = Rates(few, many)
    for groups, first, last in ((H200, 10, 70), (4 * H200, 40, 190)):
        assert both.time(groups, H200, 1024) == first
        assert both.time(groups, H200, 4096) == last
        assert both.time(groups, H200, 4096 + 3072) == last + (last - first)
        assert both.time(groups, H200, 512) == pytest.approx(first * 2 / 3)
        assert both._replace(plain=0.9).time(groups, H200, 4096) == last
        assert both._replace(plain=0.9).time(groups, H200, 4096, transpose_b=False) == pytest.approx(0.9 * last)


@given(
    times=st.lists(st.floats(1, 1e9), min_size=8, max_size=8),
    groups=st.integers(1, 10_000),
    units=st.integers(1, 300),
    k=st.integers(1, 100_000),
)
def test_more_steps_never_take_less(times: list[float], groups: int, units: int, k: int) -> None:
    """Whatever was measured."""
    both = Rates(Rate(*times[:4]), Rate(*times[4:]), 1.1)
    assert 0 < both.time(groups, units, k) <= both.time(groups, units, k + 1)


# What an H200 was measured to take, in microseconds, and what a matrix that is not transposed makes of it.
MEASURED = {
    Core(KHR, 128, (128, 128), 32): ((23.1, 34.8, 67.6, 68.2), (68.3, 120.6, 239.1, 237.8), 0.93),
    Core(KHR, 128, (128, 128), 64): ((22.4, 41.7, 61.1, 80.4), (63.3, 129.7, 195.5, 257.6), 1.0),
    Core(KHR, 256, (128, 192), 64): ((25.8, 48.7, 71.9, 94.9), (78.7, 154.5, 230.1, 306.0), 1.01),
    Core(KHR, 256, (128, 64), 64): ((14.1, 25.4, 36.6, 47.9), (39.7, 76.8, 135.0, 196.8), 1.01),
    Core(KHR, 128, (64, 64), 64): ((11.7, 16.0, 28.6, 29.2), (32.8, 47.9, 92.2, 93.1), 1.0),
    PLAIN: ((130.7, 227.9, 451.1, 453.1), (503.9, 917.4, 1829.8, 1837.7), 1.0),
}


@pytest.mark.parametrize(
    ("m", "n", "k", "turned", "tile", "step"),
    [
        (1024, 1024, 1024, False, (128, 64), 64),
        (4096, 4096, 4096, False, (128, 128), 32),
        (4096, 4096, 4096, True, (128, 192), 64),
        (8192, 8192, 8192, False, (128, 192), 64),
        (8192, 8192, 8192, True, (128, 192), 64),
        (512, 28672, 4096, True, (128, 192), 64),
        (512, 14336, 4096, True, (128, 192), 64),
        (512, 6144, 4096, True, (128, 192), 64),
        (512, 4096, 4096, True, (128, 128), 64),
        (512, 4096, 14336, True, (128, 128), 64),
    ],
)
def test_the_fastest_kernels_of_an_h200_are_taken(
    m: int, n: int, k: int, turned: bool, tile: tuple[int, int], step: int
) -> None:
    """Each by a margin that is larger than what measurements differ by, half a percent."""
    for noise in itertools.product((0.99, 1.01), repeat=len(MEASURED)):
        found = {
            core: Rates(*(Rate(*(1e3 * us * by for us in times)) for times in both), plain)
            for by, (core, (*both, plain)) in zip(noise, MEASURED.items(), strict=True)
        }
        best = choice.soonest(found, H200, m, n, k, 1, 16, transpose_b=turned)
        assert best is not None
        assert (best.core.tile, best.core.step, best.parts) == (tile, step, 1)


def test_many_tiles_take_the_one_with_the_best_rate() -> None:
    assert choice.soonest(RATES, H200, 8192, 8192, 8192, 1, 1) == Choice(BIG, 1, 8192)


def test_few_tiles_are_small_or_split() -> None:
    assert choice.soonest(RATES, H200, 512, 512, 512, 1, 1) == Choice(LITTLE, 1, 512)
    split = choice.soonest(RATES, H200, 512, 512, 16384, 1, 16)
    assert split is not None
    assert split.parts > 1


@pytest.mark.parametrize(
    ("m", "n", "turned", "core"),
    [
        (1, 14336, True, False),
        (2, 14336, True, False),
        (3, 14336, True, True),
        (3, 14336, False, False),
        (8, 14336, False, True),
        (8, 512, True, False),  # work-groups for a few units, which is as slow as for all
    ],
)
def test_few_rows_take_matrix_cores_where_these_are_faster(
    monkeypatch: pytest.MonkeyPatch, m: int, n: int, turned: bool, core: bool
) -> None:
    device: Any = SimpleNamespace(info=h200())
    monkeypatch.setattr(choice.occupancy, "units_of", lambda _: H200)
    low = min(cores.CORES, key=lambda core: core.tile[0])
    known = {**RATES, low: rates(7.6e3, 9.2e3, 18.4e3)}
    monkeypatch.setattr(choice, "measured", lambda *_, **__: core_rates.Measured(known, FEW))
    found = choice.choose(device, "float16", m, n, 4096, 1, 1, transpose_b=turned)
    assert found == (Choice(low, 1, 4096) if core else None)
    monkeypatch.setattr(choice, "measured", lambda *_, **__: core_rates.Measured(known))
    assert choice.choose(device, "float16", m, n, 4096, 1, 1, transpose_b=turned) is None


@pytest.mark.parametrize(
    ("m", "n", "k", "turned", "taken"),
    [
        (2, 14336, 4096, True, True),
        (8, 4096, 14336, False, True),
        (8, 512, 4096, True, False),  # too small
        (8, 14336, 128, True, False),  # too short
        (9, 14336, 4096, True, False),
        (16, 14336, 4096, False, True),
        (17, 14336, 4096, False, False),
        (1, 14336, 4096, True, False),
    ],
)
def test_few_rows_are_streamed_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, turned: bool, taken: bool
) -> None:
    device: Any = SimpleNamespace(info=h200())
    monkeypatch.setattr(choice.occupancy, "units_of", lambda _: H200)
    monkeypatch.setattr(choice, "measured", lambda *_, **__: core_rates.Measured(RATES, STREAMED))

    def streams(**more: bool) -> bool:
        found = choice.choose(device, "float16", m, n, k, 1, 1, transpose_b=turned, **more)
        return found is not None and isinstance(found.core, streamed.Stream)

    assert streams(whole=True) == taken
    assert not streams()  # rows are no whole units
    slow = tuple(few._replace(streamed=99e3) for few in STREAMED)
    monkeypatch.setattr(choice, "measured", lambda *_, **__: core_rates.Measured(RATES, slow))
    assert not streams(whole=True)


@given(m=st.integers(2, 16), n=st.integers(1, 40_000), k=st.integers(1, 40_000), batch=st.integers(1, 9))
@pytest.mark.parametrize("warp", [4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("fragment", [WHOLE, *NARROW], ids=lambda fragment: fragment.shape)
def test_what_streams_fits_the_device(
    fragment: Fragment, warp: int, turned: bool, m: int, n: int, k: int, batch: int
) -> None:
    info = h200(subgroup_size=warp)
    way = streamed.spread(info, m, n, k, batch, transpose_b=turned, fragment=fragment)
    if way is None:
        return
    warp = way.tail(info, eights=True).warp
    assert warp == (info.features.subgroup_size if fragment == WHOLE else fragment.columns)
    assert m <= fragment.columns
    assert way.tile[1] % fragment.rows == way.step % fragment.steps == 0
    (rows, columns), units = way.tile, way.step // streamed.UNIT
    lines, along = (columns, units) if turned else (way.step, columns // streamed.UNIT)
    assert rows == m
    assert way.threads % warp == 0
    assert way.threads <= info.limits.max_workgroup_invocations
    assert way.shared_nbytes(warp, transpose_b=turned) <= info.limits.max_shared_memory
    assert m * columns <= 4 * way.threads  # each invocation stores four neighbours at most
    assert lines * along % warp == 0 == warp % along == warp % units  # lanes load whole lines
    sums, held = fragment.columns * columns // 4, fragment.columns * (units + 1)
    assert way.shared_nbytes(warp, transpose_b=turned) * warp // way.threads // 16 >= max(sums, held)


def test_the_tiled_kernel_stays_where_it_is_faster() -> None:
    slow = {BIG: rates(600e3, 700e3, 1200e3), PLAIN: RATES[PLAIN]}
    assert choice.soonest(slow, H200, 4096, 4096, 4096, 1, 8) is None


@given(
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    k=st.integers(1, 60_000),
    batch=st.integers(1, 50),
    most=st.integers(1, 40),
)
def test_parts_cover_k_and_none_is_empty(m: int, n: int, k: int, batch: int, most: int) -> None:
    found = choice.soonest(RATES, H200, m, n, k, batch, most)
    if found is not None:
        assert 1 <= found.parts <= most
        assert (found.parts - 1) * found.k_part < k <= found.parts * found.k_part
        assert found.parts == 1 or found.k_part % found.core.step == 0


def test_fixed_rates_rank_kernels_as_measured() -> None:
    """Of work-groups enough the kernels of matrix cores are faster than the tiled one, the largest tile the fastest."""
    fixed = core_rates.assumed((*cores.CORES, PLAIN)).rates
    assert all(rate.four > rate.two > rate.one > 0 for both in fixed.values() for rate in both[:2])
    found = choice.soonest(fixed, H200, 8192, 8192, 8192, 1, 1)
    assert found is not None
    assert found.core == cores.CORES[0]


# --- what is kept ---

DEVICE: Any = SimpleNamespace(info=SimpleNamespace(device_uuid="d", driver_uuid="a", driver_version=1))
ABOUT = {"format": core_rates._FORMAT, "streams": None, "vkpar": __version__, "driver": ["a", 1]}
FEW = (Few(16896, 46e3, (35e3, 44e3, 67e3)), Few(16896, 46e3, (38e3, 52e3, 68e3)))
STREAMED = (FEW[0]._replace(streamed=34e3), FEW[1]._replace(streamed=33e3))


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing was measured yet."""
    monkeypatch.setattr(measured, "_known", {})
    with env.override(tuning="auto"):
        yield monkeypatch


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[..., float]) -> Any:
    """Return a device on which a run takes what ``seconds`` says."""
    monkeypatch.setattr(choice.occupancy, "units_of", lambda _: 4)
    monkeypatch.setattr(core_rates, "_RISE_SECONDS", 0.0)
    monkeypatch.setattr(core_rates.query, "DeviceClock", lambda _: None)
    monkeypatch.setattr(core_rates._Run, "pipeline", lambda *_: None)
    monkeypatch.setattr(core_rates._Run, "seconds", seconds)
    limits = SimpleNamespace(max_storage_buffer_range=1 << 31, max_buffer=1 << 31)
    return SimpleNamespace(info=h200(), limits=limits, logical=None, synchronize=lambda: None)


def test_a_clock_that_stands_still_measures_nothing(unknown: pytest.MonkeyPatch) -> None:
    unknown.setattr(cachedir, "read", lambda _: None)
    unknown.setattr(cachedir, "write", lambda *_: pytest.fail("nothing was measured"))
    device = timed(unknown, lambda *_: 0.0)
    assert core_rates.measured(device, "float16", (BIG, PLAIN)) == core_rates.assumed((BIG, PLAIN))


def test_times_go_to_the_kernels_that_took_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(run: Any, *_: Any) -> float:
        return 1e-9 * (run.m + 3 * run.n + 7 * run.k + len(run.kernel)) * (1.0 if run.transpose_b else 1.5)

    device = timed(monkeypatch, seconds)
    made = core_rates._measured(device, (*cores.CORES, PLAIN), "float16", streams=None)
    assert set(made.rates) == {*cores.CORES, PLAIN}
    for core, found in made.rates.items():
        name = len(core.kernel + core.variant("float16"))
        for rate, k in ((found.few, 1024), (found.many, 4096)):
            sides = [(2, 2), (2, 4), (2, 6), (4, 4)]  # four units are two by two tiles, and so on
            want = [core.tile[0] * high + 3 * core.tile[1] * broad + 7 * k + name for high, broad in sides]
            assert tuple(rate) == pytest.approx(want)
        assert found.plain == pytest.approx(1.5)
    assert made.few is not None
    assert made.few[0].cores == pytest.approx(1.5 * made.few[1].cores)


@pytest.mark.parametrize(
    "document",
    [
        None,
        "",
        "[]",
        "{}",
        "[" * 200_000,
        json.dumps({**ABOUT, "ns": {}}),
        json.dumps(
            {
                **ABOUT,
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": [[math.inf, 1.0, [1, 2, 3], 0]] * 2,
            }
        ),
        json.dumps({**ABOUT, "ns": {BIG.label: [[1.0, 2.0, -3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]}, "few": FEW}),
        json.dumps({**ABOUT, "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0]]}, "few": FEW}),
        json.dumps({**ABOUT, "ns": {BIG.label: "ab"}, "few": FEW}),
        json.dumps({**ABOUT, "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]}}),
        json.dumps(
            {
                **ABOUT,
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": [[100, 1.0, [1, 2], 0]] * 2,
            }
        ),
        json.dumps(
            {
                **ABOUT,
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": [[100, 1.0, [1, 2, 0], 0], [100, 1.0, [1, 2, 3], 0]],
            }
        ),
        json.dumps(
            {
                **ABOUT,
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": [[100, 1.0, [1, 2, 3], -1]] * 2,
            }
        ),
        json.dumps(
            {
                **ABOUT,
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": [[100, 1.0, [1, 2, 3]]] * 2,
            }
        ),
        json.dumps(
            {
                **ABOUT,
                "driver": ["a", 2],
                "ns": {BIG.label: [[1.0, 2.0, 3.0, 4.0], [4.0, 5.0, 6.0, 7.0], 1.0]},
                "few": FEW,
            }
        ),
    ],
)
def test_files_of_something_else_are_not_believed(unknown: pytest.MonkeyPatch, document: str | None) -> None:
    unknown.setattr(cachedir, "read", lambda name: None if document is None else document.encode())
    unknown.setattr(measured.capturing, "current", object)
    assert core_rates.measured(DEVICE, "float16", (BIG,)) == core_rates.assumed((BIG,))


def test_what_was_measured_is_found_again(unknown: pytest.MonkeyPatch) -> None:
    """In a capture, too."""
    text = json.dumps(
        {**ABOUT, "ns": {BIG.label: RATES[BIG], "another": [[1, 2, 3, 4], [1, 2, 3, 4], 1]}, "few": STREAMED}
    )
    unknown.setattr(cachedir, "read", lambda name: text.encode())
    unknown.setattr(measured.capturing, "current", object)
    assert core_rates.measured(DEVICE, "float16", (BIG,)) == ({BIG: RATES[BIG]}, STREAMED)


def test_what_is_measured_is_kept(unknown: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}
    made = [core_rates.Measured({BIG: RATES[BIG]}, STREAMED)]
    unknown.setattr(core_rates, "_measured", lambda *_, **__: made.pop())
    unknown.setattr(cachedir, "read", kept.get)
    unknown.setattr(cachedir, "write", kept.__setitem__)
    for _ in range(2):
        assert core_rates.measured(DEVICE, "float16", (BIG,)) == ({BIG: RATES[BIG]}, STREAMED)
        measured._known.clear()
    assert list(kept) == ["products-d-float16.json"]


def test_a_capture_measures_nothing(unknown: pytest.MonkeyPatch) -> None:
    unknown.setattr(core_rates, "_measured", lambda *_, **__: pytest.fail("measured inside a capture"))
    unknown.setattr(measured.capturing, "current", object)
    unknown.setattr(cachedir, "read", lambda _: None)
    assert core_rates.measured(DEVICE, "float16", (BIG, PLAIN)) == core_rates.assumed((BIG, PLAIN))
    assert not measured._known, "a product outside a capture is yet to measure"


def test_a_kernel_that_the_driver_does_not_build_leaves_products_to_the_others(unknown: pytest.MonkeyPatch) -> None:
    """That of few rows may be all that it does not build: once more without."""
    asked = []

    def refuse(*_: object, streams: object) -> None:
        asked.append(streams)
        raise VulkanError(-13, "vkCreateComputePipelines")

    unknown.setattr(core_rates, "_measured", refuse)
    unknown.setattr(cachedir, "read", lambda _: None)
    made = core_rates.measured(DEVICE, "float16", (BIG, PLAIN), streams=WHOLE)
    assert asked == [WHOLE, None]
    assert choice.soonest(made.rates, 132, 4096, 4096, 4096, 1, 1) is None
