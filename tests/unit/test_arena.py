"""The staging arena's layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import UnsupportedError, dtypes, env
from vkpar.comm import wires
from vkpar.comm.rig.arena import Arena, Slab, _largest_cache, last_level_cache, staging_nbytes
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.vulkan.memory.pool import round_up

Override = Callable[..., None]


class FakeMemory:
    """Stands in for host memory, whose class needs the Vulkan package."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        self.nbytes = round_up(nbytes, alignment)
        self.alignment = alignment

    def close(self) -> None:
        """Nothing to free."""


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkpar.comm.rig.arena.HostArena", FakeMemory)


def check(arena: Arena, nranks: int) -> None:
    """Check that no two slots overlap and that every slot is aligned and inside."""
    taken: list[tuple[int, int]] = []
    ids: list[int] = []
    for slab in (arena.small, arena.large):
        assert slab.number == nranks * slab.per_rank
        for slot in range(slab.base, slab.base + slab.number):
            start = slab.byte_of(slot)
            assert start % 4096 == 0
            assert slab.stamp_of(slot) >= start + slab.slot_nbytes
            taken.append((start, slab.stamp_of(slot) + 16))
            ids.append(slot)
    assert ids == list(range(arena.nslots))
    taken.sort()
    assert taken[0][0] == 0
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(taken))
    assert taken[-1][1] <= arena.report_of(0)
    assert arena.report_of(nranks - 1) + 256 <= arena.memory.nbytes
    offsets, sizes = arena.layout()
    assert list(zip(offsets, [start for start, _ in sorted(taken)], strict=True)) == [(o, o) for o in offsets]
    assert all(offset + size <= end for offset, size, (end, _) in zip(offsets, sizes, taken[1:], strict=False))


@given(
    st.integers(1, 16),
    st.integers(0, 1 << 28),
    st.sampled_from([1, 4096, 65536]),
    st.sampled_from([(1 << 24) + 1, 1 << 27, (1 << 32) - 1]),
)
def test_slots_never_overlap(nranks: int, nbytes: int, alignment: int, most: int) -> None:
    with env.override(staging_bytes=nbytes):
        arena = Arena(nranks, alignment, most)
    check(arena, nranks)
    assert arena.memory.nbytes <= most
    assert arena.memory.alignment == alignment
    for algorithm in TABLE.values():
        assert arena.small.per_rank >= algorithm.least_slots(nranks)
        for dtype in (dtypes.float32, dtypes.float16):
            plan = wires.plan(dtype, "f32", algorithm)
            assert plan.blocks(arena.small.slot_nbytes) >= 1
    assert arena.large.slot_nbytes > arena.small.slot_nbytes


@pytest.mark.parametrize("nranks", [1, 2, 3, 8])
@pytest.mark.parametrize("nbytes", [8 << 20, 64 << 20, 256 << 20])
def test_staging_bytes_bounds_the_arena(nranks: int, nbytes: int, settings_override: Override) -> None:
    settings_override(staging_bytes=nbytes)
    assert staging_nbytes() == nbytes
    arena = Arena(nranks, 4096, 1 << 32)
    least = arena.nslots * (64 << 10)
    assert arena.memory.nbytes <= max(nbytes, least)
    assert arena.memory.nbytes >= nbytes // 2


@pytest.mark.parametrize("nranks", [1, 2, 8, 17])
def test_the_arena_is_no_larger_than_the_ranks_can_bind(nranks: int, settings_override: Override) -> None:
    settings_override(staging_bytes=1 << 30)
    for most in (1 << 27, (1 << 27) - 1):
        arena = Arena(nranks, 4096, most)
        check(arena, nranks)
        assert most // 2 <= arena.memory.nbytes <= most
    with pytest.raises(UnsupportedError, match="staging"):
        Arena(nranks, 4096, 1 << 14)


def test_by_default_at_most_half_the_last_level_cache(settings_override: Override) -> None:
    settings_override(staging_bytes=0)
    assert 0 < staging_nbytes() <= last_level_cache() // 2


@pytest.mark.parametrize(
    ("sizes", "nbytes"),
    [
        ({"index0": "48K", "index3": "36608K"}, 36608 << 10),
        ({"index0": "8M"}, 8 << 20),
        ({}, 32 << 20),
        ({"index0": ""}, 32 << 20),
    ],
)
def test_last_level_cache(
    sizes: dict[str, str], nbytes: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    for name, size in sizes.items():
        (folder / name).mkdir()
        (folder / name / "size").write_text(size + "\n")
    monkeypatch.setattr("vkpar.comm.rig.arena.Path", lambda _: folder)
    _largest_cache.cache_clear()
    assert last_level_cache() == nbytes
    _largest_cache.cache_clear()


def test_a_slab_as_a_schedule_sees_it() -> None:
    slab = Slab(nranks=3, per_rank=4, slot_nbytes=8192, stride=12288, base=10, offset=4096)
    seen = slab.slot_set(7)
    assert (seen.nranks, seen.per_rank, seen.blocks, seen.base) == (3, 4, 7, 10)
    assert slab.byte_of(seen.slot(0, 0)) == 4096
    assert slab.byte_of(seen.slot(2, 3)) == 4096 + 11 * 12288
    assert slab.stamp_of(seen.slot(0, 1)) == 4096 + 12288 + 8192
    assert slab.nbytes == 12 * 12288
