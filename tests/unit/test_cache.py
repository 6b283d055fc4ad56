"""Entries that are held: freed by nobody until they are let go, whatever cache stands before theirs by then."""

from __future__ import annotations

import pytest

from vkpar.comm.engine.cache import Entry, ProgramCache


@pytest.mark.parametrize("held_in", ["outer", "inner"])
@pytest.mark.parametrize("folds_first", [False, True])
def test_a_held_entry_outlives_a_cache_before_its_own(held_in: str, folds_first: bool) -> None:
    outer, entry = ProgramCache(), Entry([])
    if held_in == "outer":
        outer.hold(entry)
    inner = ProgramCache(outer)
    if held_in == "inner":
        inner.hold(entry)
    cache = inner.fold() if folds_first else inner
    cache.sweep([], lambda: None)
    assert cache._all() == [entry]
    cache.let_go(entry)
    cache.let_go(entry)  # it is gone already
    assert cache._all() == [entry]  # until a sweep finds it done
    cache.sweep([], lambda: None)
    assert cache._all() == []
