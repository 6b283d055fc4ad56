"""What is predicted of many hosts: counts are the published ones, times above the bounds (helpers/comm/scaling.py)."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from helpers.comm.scaling import BLOCK_NBYTES, MESSAGE, SIZES, Costs, bound, compared, costs_of, predict, quicker

FREE = Costs(step=0.0, memory=math.inf, latency=1.0, network=math.inf)
SHAPES = [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize(("hosts", "ranks"), SHAPES)
def test_a_host_sends_what_the_page_says(hosts: int, ranks: int) -> None:
    n = hosts * ranks
    whole = 4 * n * BLOCK_NBYTES
    shares = {
        "two_shot": (hosts - 1) * (ranks + 1) / hosts,
        "two_level": 2 * (hosts - 1) / hosts,
        "ring": 2 * (n - 1) / n,
    }
    for name, share in shares.items():
        assert predict(name, hosts, ranks, whole, FREE).sent == pytest.approx(share * whole), name


@pytest.mark.parametrize("hosts", [2, 3, 8, 16])
def test_latencies_are_as_many_as_hops_between_hosts(hosts: int) -> None:
    wanted = {"two_shot": 2, "two_level": 2, "ring": 2 * (hosts - 1)}
    for name, hops in wanted.items():
        found = predict(name, hosts, 1, hosts * BLOCK_NBYTES, FREE)
        assert (found.seconds, found.crossings) == (hops, hops), name
    for ranks in (2, 4):
        if hosts * ranks <= 16:
            assert predict("two_level", hosts, ranks, hosts * ranks * BLOCK_NBYTES, FREE).crossings == 2


@pytest.mark.parametrize(("hosts", "ranks"), SHAPES)
def test_nothing_is_faster_than_the_bound_and_two_levels_come_near(hosts: int, ranks: int) -> None:
    costs = Costs(latency=100e-6, network=0.125e9)
    for nbytes in (64 << 10, 4 << 20):
        least = bound(hosts, nbytes, costs)
        times = {name: predict(name, hosts, ranks, nbytes, costs).seconds for name in ("two_shot", "two_level", "ring")}
        assert all(seconds > 0.97 * least for seconds in times.values()), times  # whole blocks make chunks unequal
        assert times["two_level"] < 1.25 * least
        if ranks > 1:
            assert times["two_level"] < 0.8 * times["two_shot"]


def test_costs_and_what_they_predict_follow_from_what_was_measured() -> None:
    wanted = Costs(step=70e-6, memory=3e9, latency=2e-6, network=5e9)
    few, many = (predict("two_shot", 1, 2, nbytes, wanted).seconds for nbytes in (SIZES[0], SIZES[-1]))
    expected = predict("ring", 2, 1, 1 << 20, wanted).seconds
    messages = {"latency": 2e-6, "message": MESSAGE / 5e9}
    found = {**messages, "few": few, "many": many, "seconds": {"ring": {str(1 << 20): 2 * expected}}}
    assert asdict(costs_of(found)) == pytest.approx(asdict(wanted))
    assert compared(found)[2:] == [f"| 1 MiB | ring | {2e3 * expected:.2f} | {1e3 * expected:.2f} | 2.00 |"]
    assert quicker(found, {**found, "few": 0.5 * few, "many": 2 * many}) == {**found, "few": 0.5 * few}
