"""How products are spread over compute units, without Vulkan."""

from __future__ import annotations

import math

import pytest
from helpers.vulkan.infos import fake_info
from hypothesis import given
from hypothesis import strategies as st

from vkpar.ops.tiles import occupancy
from vkpar.ops.tiles.occupancy import Cut

H200 = 132
SIZES = st.integers(1, 20_000)


@given(m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 100), units=st.integers(1, 300), most=st.integers(1, 64))
def test_parts_cover_k_and_none_is_empty(m: int, n: int, k: int, batch: int, units: int, most: int) -> None:
    read = occupancy.reading(batch * -(-n // 32), 32 * k * 4, m, n, k, batch, units, most)
    for cut in (*(occupancy.tiled(m, n, k, batch, units, most, sums) for sums in (64, 128)), read):
        assert 1 <= cut.parts <= most
        assert (cut.parts - 1) * cut.k_part < k <= cut.parts * cut.k_part
        assert cut.parts == 1 or cut.k_part % 16 == 0
        assert set(cut.tile) <= {1, 2, 4}


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((4096, 4096, 4096), Cut((2, 2), 1, 4096)),  # 1024 tiles
        ((2048, 2048, 2048), Cut((2, 2), 1, 2048)),  # 256 tiles, two a unit
        ((1024, 1024, 1024), Cut((2, 2), 4, 256)),  # 64 tiles on 132 units: four parts fill these twice
        ((1024, 1024, 64), Cut((1, 1), 1, 64)),  # too short to split
        ((5, 5, 5), Cut((1, 1), 1, 5)),
    ],
)
def test_squares_with_few_sums(size: tuple[int, int, int], want: Cut) -> None:
    assert occupancy.tiled(*size, 1, H200, 64, 64) == want


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((8192, 8192, 8192), Cut((4, 2), 1, 8192)),
        ((4096, 4096, 4096), Cut((4, 2), 1, 4096)),  # 512 tiles
        ((2048, 2048, 2048), Cut((4, 2), 1, 2048)),  # 128 tiles, one a unit
        ((1024, 1024, 1024), Cut((1, 2), 1, 1024)),  # 128 tiles, one a unit, and no second kernel
        ((1024, 1024, 64), Cut((1, 2), 1, 64)),
        ((5, 5, 5), Cut((1, 2), 1, 5)),
    ],
)
def test_squares_on_an_h200(size: tuple[int, int, int], want: Cut) -> None:
    assert occupancy.tiled(*size, 1, H200, 64, 128) == want


def test_a_batch_fills_units_as_parts_do() -> None:
    assert occupancy.tiled(1024, 1024, 1024, 8, H200, 64, 64) == Cut((2, 2), 1, 1024)
    assert occupancy.tiled(1024, 1024, 1024, 8, H200, 64, 128).tile == (4, 2)


@pytest.mark.parametrize("sums", [64, 128])
def test_no_more_parts_than_there_is_room_for(sums: int) -> None:
    assert occupancy.tiled(256, 256, 16384, 1, H200, 64, sums).parts > 8
    assert occupancy.tiled(256, 256, 16384, 1, H200, 3, sums).parts == 3
    assert occupancy.tiled(256, 256, 16384, 1, H200, 1, sums).parts == 1


def test_reading_is_split_where_columns_are_few() -> None:
    assert occupancy.reading(128, 32 * 4096 * 2, 1, 4096, 4096, 1, H200, 64).parts == 1
    few = occupancy.reading(8, 32 * 65536 * 2, 1, 256, 65536, 1, H200, 64)
    assert few.parts * 8 >= H200
    assert few.parts == math.ceil(65536 / few.k_part)


def test_large_groups_read_fast_alone() -> None:
    for groups, large, parts in ((64, True, 1), (64, False, 4), (4, True, 32)):
        nbytes = 4096 * 14336 * 2 // 64
        assert occupancy.reading(groups, nbytes, 1, 64 * groups, 14336, 1, H200, 64, large=large).parts == parts


def test_units_are_the_drivers_or_a_guess() -> None:
    import dataclasses

    info = fake_info()
    assert occupancy.units_of(info) == 48
    assert occupancy.units_of(dataclasses.replace(info, type="integrated")) == 12
    limits = dataclasses.replace(info.limits, compute_units=132)
    assert occupancy.units_of(dataclasses.replace(info, limits=limits)) == 132
