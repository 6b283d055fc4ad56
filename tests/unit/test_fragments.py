"""Which matrices of subgroups are taken of those that a device lists, and what pipelines ask for, without Vulkan."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.ops.words import specialized
from helpers.vulkan.infos import OF_BMG, OF_DG2
from helpers.vulkan.infos import intel_info as intel

from vkpar.abi import matmul as abi
from vkpar.ops.tiles import choice, core_rates, cores, streamed
from vkpar.ops.tiles.cores import Core
from vkpar.ops.tiles.fragments import NARROW, WHOLE, Fragment, fragment_of
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines import declared
from vkpar.vulkan.pipelines.kernel import PipelineCache, Traits, required_size

SIXTEEN, EIGHT = NARROW


@pytest.mark.parametrize(
    ("info", "dtype", "want"),
    [
        (intel(OF_BMG, (16, 32)), "float16", SIXTEEN),
        (intel(OF_BMG, (16, 32)), "bfloat16", SIXTEEN),
        (intel(OF_BMG, (16, 32), 25, "integrated"), "float16", SIXTEEN),
        (intel(OF_DG2, (8, 32)), "float16", EIGHT),
        (intel(OF_DG2, (8, 32)), "bfloat16", None),  # not listed for it
        (intel(OF_DG2, (8, 32), 25), "float16", EIGHT),
        (intel(OF_DG2, (8, 32), 26, "integrated"), "float16", EIGHT),
        (intel(OF_DG2, (8, 32), 25, "integrated"), "float16", None),  # emulated
        (intel((*OF_DG2, *OF_BMG), (8, 32)), "float16", SIXTEEN),
        (intel((*OF_BMG, "16x16x16 f16*f16->f32"), (16, 32)), "float16", WHOLE),
        (intel((*OF_BMG, "16x16x16 f16*f16->f32"), (16, 32)), "bfloat16", SIXTEEN),
        (intel(OF_DG2, (16, 32)), "float16", None),  # there are no subgroups of eight
        (intel(OF_BMG, ()), "float16", None),  # none can be asked for
        (intel(("8x16x16 f16*f16->f32 workgroup",), (16, 32)), "float16", None),  # not of subgroups
        (intel(("8x16x16 f16*f16->f16",), (16, 32)), "float16", None),  # sums of halves
        (intel(("32x8x16 f16*f16->f32",), (8, 32)), "float16", None),
        (intel((), (8, 32)), "float16", None),
    ],
)
def test_matrices_are_taken_from_what_a_device_lists(info: DeviceInfo, dtype: str, want: Fragment | None) -> None:
    assert fragment_of(info, dtype) == want
    found = cores.available(info, dtype)
    assert bool(found) == (want is not None)
    assert {core.fragment for core in found} <= {want}


def test_sizes_of_subgroups_need_control() -> None:
    info = intel(OF_BMG, (16, 32))
    without = dataclasses.replace(info, features=dataclasses.replace(info.features, subgroup_control=False))
    assert fragment_of(without, "float16") is None


@pytest.mark.parametrize(
    ("info", "tiles"),
    [
        (intel(OF_BMG, (16, 32)), {(64, 128), (64, 64), (16, 64)}),
        (intel(OF_BMG, (16, 32), 25), {(64, 64), (16, 64)}),  # whose compiler spills what the largest takes
        (intel(OF_DG2, (8, 32)), {(64, 64), (16, 64)}),
        (intel(OF_DG2, (8, 32), max_workgroup_subgroups=31), {(16, 64)}),
        (intel(OF_BMG, (16, 32), max_workgroup_invocations=128), {(16, 64)}),
        (intel(OF_BMG, (16, 32), max_shared_memory=4 << 10), set()),
    ],
)
def test_tiles_are_those_that_a_device_has_room_for(info: DeviceInfo, tiles: set[tuple[int, int]]) -> None:
    assert {core.tile for core in cores.available(info, "float16")} == tiles


@pytest.mark.parametrize("core", cores.OF_NARROW, ids=lambda core: core.label)
def test_subgroups_share_a_tile(core: Core) -> None:
    """As shaders/common/coop.glsl counts on; none makes more than 16 x 32, or 16 x 16 of an invocation for each row."""
    info = intel(OF_BMG, (16, 32)) if core.fragment == SIXTEEN else intel(OF_DG2, (8, 32))
    warp = core.fragment.warp(info)
    high, broad = core.warp_tile(warp)
    assert (core.tile[0] // high) * (core.tile[1] // broad) * warp == core.threads
    assert (high % core.fragment.rows, broad % core.fragment.columns) == (0, 0)
    assert high <= 16
    assert broad <= 32
    assert high * broad <= 32 * warp
    assert core.step // core.fragment.steps in {2, 4, 8}
    assert core.fragment.rows * broad // 8 % warp == 0  # all eights of a row of matrices are stored in turns
    for side in core.tile:  # lines of loads are whole, too
        assert (side * core.step // 8) % core.threads == 0 or side * core.step // 8 < core.threads
    tail = core.tail(info, eights=True)
    assert isinstance(tail, abi.CoresTail)
    assert (tail.fm, tail.fn, tail.fk, tail.warp, tail.ahead, tail.span) == (*core.fragment, warp, 0, 1)


def test_labels_are_all_different() -> None:
    every = (*cores.CORES, *cores.OF_NARROW, cores.PLAIN)
    assert len({core.label for core in every}) == len(every)


def test_narrow_matrices_are_for_devices_that_were_measured() -> None:
    """What an H200 takes says nothing of them: without measurements products stay where they are."""
    found = core_rates.assumed((*cores.OF_NARROW, cores.PLAIN))
    assert set(found.rates) == {cores.PLAIN}
    assert choice.soonest(found.rates, 32, 4096, 4096, 4096, 1, 8) is None


@pytest.mark.parametrize("faster", [True, False])
def test_they_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    info = intel(OF_BMG, (16, 32))
    rate = core_rates.Rate(1e5, 2e5, 3e5, 4e5)

    def measured(_: object, dtype: str, found: tuple[Core, ...], **__: bool) -> core_rates.Measured:
        assert dtype == "float16"
        assert found == (*cores.available(info, "float16"), cores.PLAIN)
        by = {core: core.tile[0] * core.tile[1] / 2**14 * (0.2 if faster != core.tiled else 1.0) for core in found}
        return core_rates.Measured(
            {core: core_rates.Rates(*(core_rates.Rate(*(ns * each for ns in rate)),) * 2) for core, each in by.items()}
        )

    monkeypatch.setattr(choice, "measured", measured)
    device: Any = SimpleNamespace(info=info, limits=info.limits)
    found = choice.choose(device, "float16", 512, 512, 512, 1, 1, transpose_b=True)
    assert (found is not None) == faster
    assert found is None or found.core in cores.OF_NARROW


# --- few rows ---


@pytest.mark.parametrize(
    ("info", "dtype", "want"),
    [
        (intel(OF_BMG, (16, 32)), "float16", SIXTEEN),
        (intel(OF_BMG, (16, 32)), "bfloat16", SIXTEEN),
        (intel(OF_DG2, (8, 32)), "float16", EIGHT),
        (intel(OF_DG2, (8, 32)), "bfloat16", None),
        (intel(OF_DG2, (8, 32), 25, "integrated"), "float16", None),
    ],
)
def test_few_rows_take_the_same_matrices(info: DeviceInfo, dtype: str, want: Fragment | None) -> None:
    assert cores.streams(info, dtype) == want
    if want is None:
        return
    for transpose_b in (False, True):
        fits = [
            streamed.spread(info, m, 14336, 4096, 1, transpose_b=transpose_b, fragment=want) is not None
            for m in range(2, 18)
        ]
        assert fits == [m <= (8 if transpose_b else want.columns) for m in range(2, 18)]


@pytest.mark.parametrize("fragment", NARROW, ids=lambda fragment: fragment.shape)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_an_invocation_of_few_rows_has_registers_for_what_it_loads(fragment: Fragment, transpose_b: bool) -> None:
    """At most eight units of both operands, which compilers spill nothing of; of twice as many they do."""
    info = intel(OF_BMG, (16, 32)) if fragment == SIXTEEN else intel(OF_DG2, (8, 32))
    way = streamed.spread(info, 8, 14336, 4096, 1, transpose_b=transpose_b, fragment=fragment)
    assert way is not None
    assert way.turns * (way.tile[0] + way.tile[1]) * way.step // 8 <= 8 * fragment.warp(info)
    name, constants = "matvec_cores_f16", (0,) * 7 + way.shape(info) + (0,) * 7 + way.tail(info, eights=False)
    told = specialized(name, constants)
    assert (told["fm"], told["fn"], told["fk"]) == fragment
    assert required_size(declared.shipped(name), dict(enumerate(constants)), 32) == fragment.columns


# --- what pipelines ask for ---


@pytest.mark.parametrize("core", [*cores.CORES, *cores.OF_NARROW], ids=lambda core: core.label)
@pytest.mark.parametrize("forms", ["", "_forms"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pipelines_ask_for_subgroups_that_are_not_the_usual_ones(core: Core, forms: str, dtype: str) -> None:
    info = intel(OF_BMG, (16, 32)) if core.fragment == SIXTEEN else intel(OF_DG2, (8, 32))
    name = cores.KHR + forms + core.variant(dtype)
    constants = (0,) * 5 + (0, 0) + core.shape(info) + (0,) * 7 + core.tail(info, eights=False)
    told = specialized(name, constants)
    assert told["warp"] == core.fragment.warp(info)
    want = 0 if core.fragment == WHOLE else core.fragment.columns
    declares, by_id = declared.shipped(name), dict(enumerate(constants))
    assert required_size(declares, by_id, 32) == want
    assert required_size(declares, by_id, 0) == 0  # the device cannot be told
    assert required_size(declares, {}, 32) == 0


def test_kernels_without_matrices_ask_for_none() -> None:
    for name in ("matmul_tiled", "attention_warps_rows4_f16", "add_f32_f32"):
        assert declared.shipped(name).subgroup_id is None


def test_built_in_kernels_are_made_as_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(PipelineCache, "_made", lambda self, *given, required=0, **_: made.append(required))
    monkeypatch.setattr(PipelineCache, "layout", lambda *_, **__: None)
    gate: Any = SimpleNamespace()
    cache = PipelineCache(None, gate, traits=Traits(32, label="a card"))
    for core in (cores.CORES[1], *cores.OF_NARROW[-2:]):
        info = intel(OF_DG2, (8, 32))
        constants = (0,) * 7 + core.shape(info) + (0,) * 7 + core.tail(info, eights=False)
        key = (f"{core.kernel}{core.variant('float16')}", 3, 76, constants, 0, False)
        cache._shipped(key, threading.RLock())
    assert made == [0, 8, 8]
