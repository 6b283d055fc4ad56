"""The cache of recorded collectives: what is held, what goes where there is no room, joined ports."""

from __future__ import annotations

from typing import Any

import pytest

from vkpar.comm.engine import cache as module
from vkpar.comm.engine.cache import ProgramCache
from vkpar.comm.record.entry import Entry


class Recorded:
    """A program of one command buffer on one queue, done at once."""

    def __init__(self, batches: int = 1) -> None:
        self.batches = batches
        self.closed = False

    def pending(self) -> list[int]:
        return [0]

    def close(self, late: object = ()) -> None:
        self.closed = True


def entry(batches: int = 1) -> Entry:
    programs: dict[int, Any] = {0: Recorded(batches)}
    return Entry(programs)


def sweep(cache: ProgramCache) -> None:
    cache.sweep([0], lambda: None)


@pytest.mark.parametrize("retires", [False, True])
def test_a_held_entry_stays_until_it_is_let_go(retires: bool) -> None:
    cache, held = ProgramCache(), entry()
    cache.hold(held)
    if retires:
        cache.retire_all()
    sweep(cache)
    assert held.programs
    cache.let_go(held)
    cache.let_go(held)  # it is gone already
    assert held.programs  # until a sweep finds it done
    sweep(cache)
    assert not held.programs


def test_a_retired_entry_is_found_no_more_and_is_freed() -> None:
    cache, one = ProgramCache(), entry()
    cache.add("key", one)
    assert cache.get("key") is one
    cache.retire_all()
    assert cache.get("key") is None
    assert cache.batches == 1
    sweep(cache)
    assert cache.batches == 0
    assert not one.programs


@pytest.mark.parametrize("limit", ["_MOST_ENTRIES", "_MOST_BATCHES"])
def test_the_newest_entry_stays_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(module, limit, 8)
    cache = ProgramCache()
    for number in range(100):
        cache.add(number, entry())
        assert cache.get(number) is not None
        assert len(cache) == min(number + 1, 8)
        sweep(cache)
        assert cache.batches == len(cache)


def test_a_cycle_a_little_longer_than_the_cache_is_mostly_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 80 keys and room for 64 by lot, a fixed point has e^(-1.25 (1 - h)) = h, so 0.63 of the calls hit."""
    monkeypatch.setattr(module, "_MOST_ENTRIES", 64)
    cache, found = ProgramCache(), 0
    for turn in range(20):
        for key in range(80):
            if cache.get(key) is None:
                cache.add(key, entry())
            elif turn >= 10:
                found += 1
        sweep(cache)
    assert 0.5 * 800 < found < 0.75 * 800


def test_an_entry_larger_than_all_room_is_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BATCHES", 8)
    cache = ProgramCache()
    cache.add("small", entry())
    cache.add("large", entry(9))
    assert cache.get("small") is None
    assert cache.get("large") is not None


def test_programs_that_were_joined_share_a_port_until_one_is_freed() -> None:
    cache, made = ProgramCache(), []

    def join(programs: Any) -> Any:
        made.append(Recorded())
        return made[-1]

    first, second = entry(), entry()
    cache.add("first", first)
    cache.add("second", second)
    programs = [*first.programs.values(), *second.programs.values()]
    assert cache.joined(programs, join) is cache.joined(programs, join)
    assert cache.joined(programs[::-1], join) is made[1]
    cache.retire_all()
    sweep(cache)
    assert [port.closed for port in made] == [True, True]
    cache.joined([], join)
    cache.close()
    assert made[2].closed
