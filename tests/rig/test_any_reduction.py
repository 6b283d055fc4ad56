"""Any all_reduce: replicas agree bit for bit, runs repeat, and the result is what the model and the bound say."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.ops.reducing import (
    ALGORITHMS,
    FORMATS,
    INTEGERS,
    Numbers,
    check_identical,
    check_reduction,
    combined,
    devices_of,
    from_dtype,
    integers,
    mixed,
    reals,
    reduced,
    to_dtype,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import vkpar
from vkpar.comm.plan.choose import Choice, Tuning
from vkpar.comm.plan.shares import ROLES, Costs

pytestmark = pytest.mark.rig
OPS = ("sum", "prod", "max", "min", "avg")
RIGS = st.integers(1, 8).map(lambda n: "L" * n) | st.lists(st.sampled_from("LLS"), min_size=2, max_size=8).map(
    lambda letters: "".join(letters) if letters.count("S") <= 3 else "LSLSL"
)
COUNTS = st.integers(0, 2000) | st.sampled_from([255, 256, 257, 511, 512, 513]) | st.integers(0, 100_003)
COSTS = functools.partial(st.builds, Costs, **dict.fromkeys(ROLES, st.sampled_from([1e-10, 1e-10, 2e-10, 3e-9])))
SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e-40, -1e-42, 2.0**-126, 0.0, -0.0, 1e30, -1e30], np.float32)


def special(rng: np.random.Generator, dtype: str, count: int, nranks: int) -> list[Numbers]:
    """Return ordinary values, here and there a NaN, an infinity, a subnormal, a signed zero or a very large one."""
    made = []
    for part in reals(rng, "float32", count, nranks):
        where = rng.random(count) < 0.05
        part[where] = rng.choice(SPECIAL[:8] if dtype == "float16" else SPECIAL, int(where.sum()))
        made.append(to_dtype(part, dtype))
    return made


def check_special(comm: vkpar.Communicator, parts: list[Numbers], dtype: str, op: str, wire: str | None) -> None:
    """Check replicas, repetition, and which elements are NaN, infinite and finite."""
    explicit = wire if dtype == "float32" and op not in ("max", "min") else None
    first, second = (
        check_identical(reduced(comm, parts, dtype, op=op, wire=explicit, in_place=in_place))
        for in_place in (True, False)
    )
    assert first.tobytes() == second.tobytes()
    values = [from_dtype(part, dtype) for part in parts]
    got = from_dtype(first, dtype)
    with np.errstate(all="ignore"):
        if op in ("max", "min"):
            want = functools.reduce(lambda a, b: combined(a, b, op), values)
            assert np.array_equal(got, want, equal_nan=True)
            return
        true = functools.reduce(np.multiply if op == "prod" else np.add, [v.astype(np.float64) for v in values])
    given = np.stack(values)
    surely_nan = np.isnan(given).any(axis=0)
    if op != "prod":
        surely_nan |= np.isposinf(given).any(axis=0) & np.isneginf(given).any(axis=0)
        assert np.array_equal(np.isnan(got), surely_nan)
        infinite = np.isinf(given).any(axis=0) & ~surely_nan
        assert np.array_equal(np.sign(got[infinite]), np.sign(true[infinite]))
        assert np.isinf(got[infinite]).all()
        if dtype != "float16":
            assert np.isfinite(got[~infinite & ~surely_nan]).all()
    assert np.isnan(got[surely_nan]).all()


@settings(max_examples=300 if FULL else 40)
@given(
    letters=RIGS,
    algorithm=st.sampled_from([*ALGORITHMS, "auto"]),
    form=st.sampled_from(FORMATS),
    op=st.sampled_from(OPS),
    count=COUNTS,
    in_place=st.booleans(),
    values=st.sampled_from(["exact", "reals", "special"]),
    transport=st.sampled_from(["auto", "auto", "mapped"]),
    segment=st.sampled_from([0, 0, 1, 2000, 9000]),
    costs=st.none() | st.tuples(*[COSTS(st.just("f16"))] * 8, *[COSTS(st.just("f32"))] * 8),
    seed=st.integers(0, 1 << 32),
    data=st.data(),
)
def test_any_reduction(
    rigs: Rigs,
    *,
    letters: str,
    algorithm: str,
    form: tuple[str, str | None],
    op: str,
    count: int,
    in_place: bool,
    values: str,
    transport: str,
    segment: int,
    costs: tuple[Costs, ...] | None,
    seed: int,
    data: st.DataObject,
) -> None:
    """By every plan that a tuning can hold: any algorithm, any segments, any costs."""
    dtype, wire = form
    if algorithm == "direct" and mixed(letters):
        algorithm = "auto"
    rng, n = np.random.default_rng(seed), len(letters)
    with vkpar.Communicator(devices_of(rigs, letters), transport=transport) as comm:
        choices = (Choice(None, algorithm, segment),) if algorithm != "auto" else ()
        comm._engine.adopt(Tuning(choices, costs[:n] + costs[8 : 8 + n] if costs else ()))
        if values == "special" and dtype not in INTEGERS:
            check_special(comm, special(rng, dtype, count, n), dtype, op, wire)
            return
        exact = values == "exact" or dtype in INTEGERS
        parts: list[Numbers | None] = list((integers if exact else reals)(rng, dtype, count, n, op=op))
        if not in_place and count:
            for rank in data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1), label="silent"):
                parts[rank] = None
        check_reduction(comm, parts, dtype, algorithm, wire, op=op, in_place=in_place, exact=exact)
