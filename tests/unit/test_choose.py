"""Which algorithm a message takes."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from helpers.comm.costing import links
from hypothesis import given
from hypothesis import strategies as st

from vkpar import DeviceInfo, InvalidUsageError, dtypes
from vkpar.comm import wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import Choice, Plan, Tuning
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import MOST_SOURCES


def fake(**changes: object) -> DeviceInfo:
    """Return a made-up device."""
    values: dict[str, object] = {entry.name: None for entry in dataclasses.fields(DeviceInfo)}
    values |= {"name": "card", "driver_uuid": "d", "driver_version": 1, "vendor_id": 2, "device_id": 3}
    return DeviceInfo(**(values | changes))  # type: ignore[arg-type]


SAME = [fake(index=0, device_uuid="a"), fake(index=1, device_uuid="b")]
DIFFERENT = [
    [fake(), fake(**change)]
    for change in (
        {"driver_uuid": "e"},
        {"driver_version": 2},
        {"vendor_id": 9},
        {"device_id": 9},
        {"name": "another card"},
    )
]
KIB, MIB = 1 << 10, 1 << 20


def chosen(ranks: list[DeviceInfo], nbytes: int, name: str = "auto") -> str:
    """Return the name of the algorithm taken."""
    return choose.choose(name, ranks, nbytes).algorithm.name


@pytest.mark.parametrize("name", ["auto", *TABLE])
def test_known_names(name: str) -> None:
    assert choose.check(name) == name


@pytest.mark.parametrize("name", ["", "Ring", "butterfly", None])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidUsageError, match="auto, direct, two_shot, ring, two_level, tree, naive"):
        choose.check(name)


def test_auto_goes_by_size_and_rig() -> None:
    assert chosen(SAME, 8 * KIB) == "direct"
    assert chosen(SAME, 4 * MIB) == "two_shot"
    assert chosen(SAME * 4, 512 * KIB) == "two_shot"
    for mixed in DIFFERENT:
        assert chosen(mixed, 8 * KIB) == "two_shot"
    processors = [fake(type="cpu")] * 2
    assert [chosen(processors, nbytes * KIB) for nbytes in (320, 512)] == ["direct", "two_shot"]
    assert chosen(SAME, 512 * KIB) == "direct"


@pytest.mark.parametrize("mixed", DIFFERENT)
def test_direct_is_for_uniform_rigs(mixed: list[DeviceInfo]) -> None:
    assert choose.uniform(SAME)
    assert not choose.uniform(mixed)
    assert chosen(SAME, 64 * MIB, "direct") == "direct"
    with pytest.raises(InvalidUsageError, match=r"same driver and device model.*take auto, two_shot or ring$"):
        chosen(mixed, 1, "direct")


@pytest.mark.parametrize("name", ["ring", "two_shot", "naive"])
def test_a_named_algorithm_is_taken(name: str) -> None:
    for ranks in (SAME, *DIFFERENT):
        for nbytes in (0, 8 * KIB, 64 * MIB):
            assert chosen(ranks, nbytes, name) == name


def test_many_ranks_take_the_ring() -> None:
    assert chosen([fake()] * (MOST_SOURCES + 1), 1) == "ring"
    assert chosen([fake()] * MOST_SOURCES, 1) == "direct"


@given(st.integers(0, 1 << 40), st.booleans(), st.integers(1, 20))
def test_auto_is_a_pure_function_and_never_direct_on_mixed_rigs(nbytes: int, same: bool, nranks: int) -> None:
    ranks = [fake(device_uuid=str(rank), driver_uuid="d" if same or not rank else "e") for rank in range(nranks)]
    first = choose.choose("auto", ranks, nbytes)
    assert choose.choose("auto", ranks, nbytes) == first
    assert choose.uniform(ranks) or not first.algorithm.every_rank_sums
    assert choose.segment_nbytes(first, nranks, nbytes) > 0


def test_segments_between_hosts_are_shorter() -> None:
    plan = Plan(TABLE["two_shot"])
    assert [choose.segment_nbytes(plan, 2, nbytes * MIB) for nbytes in (0, 10)] == [512 * KIB, 2560 * KIB]
    assert [choose.segment_nbytes(plan, 2, nbytes * MIB, apart=True) for nbytes in (0, 10)] == [128 * KIB, 640 * KIB]
    assert choose.segment_nbytes(Plan(TABLE["two_shot"], 7 * KIB), 2, MIB, apart=True) == 7 * KIB


# ---- with what was measured ----

TUNING = Tuning(
    (Choice(KIB, "tree"), Choice(MIB, "two_shot", 64 * KIB), Choice(None, "ring", 2 * MIB)), links((1.0, 1.0))
)


def test_a_tuning_goes_by_size() -> None:
    wanted = [(0, "tree", 0), (KIB, "tree", 0), (KIB + 1, "two_shot", 64 * KIB), (1 << 40, "ring", 2 * MIB)]
    for nbytes, name, segment in wanted:
        assert choose.choose("auto", SAME, nbytes, TUNING) == Plan(TABLE[name], segment)
    assert choose.choose("naive", SAME, KIB, TUNING) == Plan(TABLE["naive"])
    assert choose.choose("ring", SAME, 8 * MIB, TUNING) == Plan(TABLE["ring"], 2 * MIB)  # its segments hold


def test_unequal_links_have_weights() -> None:
    tuning = Tuning(costs=links((10.0, 1.0, 10.0)))
    shot = choose.choose("two_shot", [fake()] * 3, MIB, tuning)
    assert shot.shares == pytest.approx((0.5, 0.0, 0.5))
    for name in ("direct", "ring", "tree", "naive"):
        assert choose.choose(name, [fake()] * 3, MIB, tuning) == Plan(TABLE[name])
    even = Tuning(costs=links((10.0, 7.0, 10.0)))
    assert choose.choose("two_shot", [fake()] * 3, MIB, even) == Plan(TABLE["two_shot"])
    equal = replace(tuning, choices=(Choice(None, "two_shot", equal=True),))
    assert choose.choose("auto", [fake()] * 3, MIB, equal) == Plan(TABLE["two_shot"])


def test_a_collective_that_the_algorithm_does_not_do_takes_the_built_in_choice() -> None:
    for ranks, name in ((SAME, "two_shot"), ([fake()] * (MOST_SOURCES + 1), "ring")):
        for collective in ("reduce", "reduce_scatter"):
            assert choose.choose("auto", ranks, 1, collective=collective).algorithm.name == name
            for chosen in ("tree", "direct") if ranks is SAME else ():
                assert choose.choose(chosen, ranks, 1, collective=collective).algorithm.name == name
    assert choose.choose("naive", SAME, 1, collective="reduce").algorithm.name == "naive"
    assert choose.choose("naive", SAME, 1, collective="reduce_scatter").algorithm.name == "two_shot"


def test_a_wire_has_its_own_choices_and_costs() -> None:
    coded, plain = links((1.0, 1.0, 1.0)), links((10.0, 1.0, 10.0), "f32")
    choices = (Choice(KIB, "tree"), Choice(None, "ring"), Choice(KIB, "naive", wire="f32"))
    tuning = Tuning(choices, (*coded, *plain))
    wanted = {("f16", 1): "tree", ("f16", MIB): "ring", ("f32", 1): "naive", ("f32", MIB): "two_shot"}
    for (wire, nbytes), name in wanted.items():
        plan = choose.choose("auto", [fake()] * 3, nbytes, tuning, wire)
        assert plan.algorithm.name == name
        assert (plan.shares is not None) == (name == "two_shot")
    assert tuning.speeds == (1.0, 1.0, 1.0)


def test_the_f32_wire_takes_what_was_found_for_the_f16_wire_where_it_was_not_measured() -> None:
    tuning = Tuning((Choice(None, "ring"),), links((10.0, 1.0, 10.0)))
    assert choose.choose("auto", [fake()] * 3, MIB, tuning, "f32") == choose.choose("auto", [fake()] * 3, MIB, tuning)
    assert tuning.costs_of("f32") == tuning.costs


@pytest.mark.parametrize(
    ("dtype", "wire", "op", "wanted"),
    [
        ("float32", "f16", "sum", "f16"),
        ("float32", "bf16", "sum", "f16"),
        ("float32", "q8", "avg", "f16"),
        ("float32", "f32", "sum", "f32"),
        ("float32", "f16", "max", "f32"),
        ("float16", "f16", "sum", "f32"),
        ("bfloat16", "q8", "sum", "f32"),
        ("int32", "f16", "sum", "f32"),
    ],
)
def test_the_wire_that_takes_about_as_long(dtype: str, wire: str, op: str, wanted: str) -> None:
    assert wires.timed_as(dtypes.resolve(dtype), wire, op) == wanted
