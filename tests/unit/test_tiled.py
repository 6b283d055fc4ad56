"""Work-groups of the tiled kernel, without Vulkan."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.vulkan.infos import fake_info

from vkpar.ops.tiles import occupancy, tiled

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
TILES = [(tile, sums) for sums in (32, 64, 128) for tile in ((1, 1), (1, 2), (2, 1), (2, 2))] + [((4, 2), 128)]


@pytest.mark.parametrize(("tile", "sums"), TILES, ids=str)
def test_invocations_cover_their_tile(tile: tuple[int, int], sums: int) -> None:
    """As shaders/common/tiled.glsl lays them out: a quarter of the invocations' number times 4 MREP rows / 4."""
    threads, (mrep, nrep, *_) = tiled.threads(tile, sums), tiled.shape(tile, sums)
    assert (threads // 4 * mrep, 64 * nrep) == (64 * tile[0], 64 * tile[1])
    assert mrep in {1, 2, 4}
    assert 16 * mrep * nrep <= sums
    assert 16 * mrep * nrep * threads == 64 * 64 * tile[0] * tile[1]
    for side in tile:  # parts that the group loads at a time: whole turns, or one for some of it
        parts = 64 * side * 8 // 4
        assert parts % threads == 0 or parts < threads


def test_constants_say_how_many_invocations_there_are() -> None:
    assert tiled.tail((2, 2), 32).threads == 512
    assert tiled.tail((2, 2), 64).threads == 256
    assert tiled.tail((2, 2), 128).threads == 128


def test_sums_are_those_of_a_make() -> None:
    info = fake_info()
    features = dataclasses.replace(info.features, subgroup_size=32)
    limits = dataclasses.replace(info.limits, max_shared_memory=49152, max_workgroup_invocations=1024)
    nvidia = dataclasses.replace(info, vendor_id=NVIDIA, features=features, limits=limits)
    assert tiled.sums_of(nvidia) == 128
    assert tiled.sums_of(dataclasses.replace(nvidia, vendor_id=AMD)) == 64
    intel = dataclasses.replace(nvidia, vendor_id=INTEL)
    assert tiled.sums_of(intel) == 32
    few = dataclasses.replace(limits, max_workgroup_invocations=256)
    assert tiled.sums_of(dataclasses.replace(intel, limits=few)) == 64
    little = dataclasses.replace(limits, max_shared_memory=16896)
    assert tiled.sums_of(dataclasses.replace(nvidia, limits=little)) == 64


@pytest.mark.parametrize(
    ("invocations", "shared", "runs"), [(256, 16896, True), (128, 65536, False), (256, 16384, False)]
)
def test_limits(invocations: int, shared: int, runs: bool) -> None:
    info = fake_info()
    limits = dataclasses.replace(info.limits, max_shared_memory=shared, max_workgroup_invocations=invocations)
    assert tiled.runs(dataclasses.replace(info, limits=limits)) is runs


@pytest.mark.parametrize("sums", [32, 64, 128])
def test_every_tile_has_rates(sums: int) -> None:
    assert {(tile, sums) for tile in occupancy.TILED_RATES[sums]} == {each for each in TILES if each[1] == sums}
