"""all_reduce on rigs of one and of two drivers: every algorithm, wire, dtype and kind of count."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.reducing import (
    ALGORITHMS,
    FORMATS,
    Numbers,
    algorithms_for,
    check_bound,
    check_identical,
    check_reduction,
    exact_sum,
    from_dtype,
    integers,
    modelled,
    reals,
    reduced,
    to_dtype,
)
from helpers.vulkan.parking import parked

import vkpar
from vkpar import env
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.tape import TapedCommands

pytestmark = [pytest.mark.rig, pytest.mark.sampled(5)]
Open = Callable[..., vkpar.Communicator]

COUNTS = (1, 255, 256, 257, 1000)
LARGE = (65_537, 100_003)
MIXED = ["LS", "SL", "LLS", "LSL", "SLL", "SSL", "SLS", "LSS", "LSLS", "SLLS"]


def sampled(items: list[tuple], every: int) -> list[tuple]:
    """Return all items with --full, else each ``every``-th one."""
    return items if FULL else items[::every]


# ---- the product ----


@pytest.mark.parametrize("nranks", range(1, 9))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_number_of_ranks(rig: Open, rng: np.random.Generator, nranks: int, algorithm: str) -> None:
    comm = rig("L" * nranks, algorithm=algorithm)
    for number, count in enumerate(COUNTS):
        exact = integers(rng, "float32", count, nranks)
        check_reduction(comm, exact, "float32", algorithm, "f16", exact=True, in_place=bool(number % 2))
        check_reduction(comm, reals(rng, "float32", count, nranks), "float32", algorithm, "f16")


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("dtype", "wire"), FORMATS)
@pytest.mark.parametrize("nranks", [2, 3])
def test_every_format_on_one_driver(
    rig: Open, rng: np.random.Generator, dtype: str, wire: str | None, nranks: int
) -> None:
    for algorithm in ALGORITHMS:
        comm = rig("L" * nranks, algorithm=algorithm)
        for count in (0, 1, 257, 1000):
            exact = integers(rng, dtype, count, nranks)
            check_reduction(comm, exact, dtype, algorithm, wire, exact=True)
            if dtype not in ("int32", "uint32"):
                check_reduction(comm, reals(rng, dtype, count, nranks), dtype, algorithm, wire, in_place=False)


PRODUCT = list(itertools.product(["LS", "SL", "SS", "SLS"], ALGORITHMS[:3], FORMATS))


@pytest.mark.parametrize(("letters", "algorithm", "form"), sampled(PRODUCT, 3))
def test_formats_on_two_drivers(
    rig: Open, rng: np.random.Generator, letters: str, algorithm: str, form: tuple[str, str | None]
) -> None:
    dtype, wire = form
    if algorithm not in algorithms_for(letters):
        algorithm = "naive"
    comm = rig(letters, algorithm=algorithm)
    for count in (1, 600):
        exact = integers(rng, dtype, count, len(letters))
        check_reduction(comm, exact, dtype, algorithm, wire, exact=True)
        if dtype not in ("int32", "uint32"):
            check_reduction(comm, reals(rng, dtype, count, len(letters)), dtype, algorithm, wire, in_place=False)


@pytest.mark.parametrize("letters", MIXED)
def test_every_position_of_two_drivers(rig: Open, rng: np.random.Generator, letters: str) -> None:
    for algorithm in ("ring", "two_shot", "auto"):
        comm = rig(letters, algorithm=algorithm)
        check_reduction(comm, reals(rng, "float32", 1200, len(letters)), "float32", algorithm, "f16")
        check_reduction(comm, reals(rng, "float32", 1200, len(letters)), "float32", algorithm, "f16", in_place=False)


@pytest.mark.parametrize(
    ("letters", "algorithm"), [(x, a) for x in ("LL", "LLL", "LS", "SS", "LSL") for a in algorithms_for(x)]
)
@pytest.mark.parametrize("wire", ["f16", "f32"])
def test_large_counts(rig: Open, rng: np.random.Generator, letters: str, algorithm: str, wire: str) -> None:
    comm = rig(letters, algorithm=algorithm, wire=wire)
    for count in LARGE if FULL or letters in ("LL", "LS") else LARGE[:1]:
        check_reduction(comm, reals(rng, "float32", count, len(letters)), "float32", algorithm, wire)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
@pytest.mark.parametrize("letters", ["LLL", "LS"])
def test_large_counts_of_other_types(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm = rig(letters)
    check_reduction(comm, integers(rng, dtype, LARGE[1], len(letters)), dtype, "auto", None, exact=True)


def test_auto_over_all_sizes(rig: Open, rng: np.random.Generator) -> None:
    """The thresholds between algorithms: direct, two_shot and ring."""
    comm = rig("LL")
    for count in (0, 1, 16_000, 16_500, 300_000, 600_000):
        check_reduction(comm, reals(rng, "float32", count, 2), "float32", "auto", "f16")


def test_arrays_larger_than_a_binding(rig: Open) -> None:
    """Kernels bind windows of such arrays; views that are not aligned are copied as a whole."""
    comm = rig("LL", algorithm="two_shot")
    most = min(device.limits.max_storage_buffer_range for device in comm.devices)
    if most > 1 << 28:
        pytest.skip("would take too much memory")
    count = most // 4 + 1001
    hosts = [np.arange(count, dtype=np.int32) * (rank + 1) for rank in range(2)]
    arrays = [device.array(host) for device, host in zip(comm.devices, hosts, strict=True)]
    comm.all_reduce(arrays).wait()
    assert all(np.array_equal(array.numpy(), hosts[0] + hosts[1]) for array in arrays)
    comm.all_reduce([array[1:] for array in arrays]).wait()
    want = 2 * (hosts[0] + hosts[1])
    want[0] = 0
    assert all(np.array_equal(array.numpy(), want) for array in arrays)


# ---- who contributes ----


@pytest.mark.parametrize(
    ("letters", "algorithm"), [(x, a) for x in ("LL", "LLLL", "SLS") for a in (*algorithms_for(x), "auto")]
)
def test_ranks_that_contribute_nothing(rig: Open, rng: np.random.Generator, letters: str, algorithm: str) -> None:
    n = len(letters)
    comm = rig(letters, algorithm=algorithm)
    for silent in [*itertools.combinations(range(n), 1), tuple(range(1, n)), tuple(range(n - 1))]:
        parts: list[Numbers | None] = list(reals(rng, "float32", 700, n))
        for rank in silent:
            parts[rank] = None
        check_reduction(comm, parts, "float32", algorithm, "f16", in_place=False)


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "naive"])
def test_none_and_zero_size_say_the_same(rig: Open, rng: np.random.Generator, algorithm: str) -> None:
    comm = rig("LLL", algorithm=algorithm)
    a, _, c = integers(rng, "float32", 1000, 3)
    for nothing in (None, comm.devices[1].zeros(0), comm.devices[1].zeros((5, 0, 2))):
        arrays = [comm.devices[0].array(a), nothing, comm.devices[2].array(c)]
        out = [device.array(np.full(1000, np.nan, np.float32)) for device in comm.devices]
        comm.all_reduce(arrays, out=out).wait()
        assert np.array_equal(check_identical([array.numpy() for array in out]), a + c)


def test_a_stale_destination_is_written_not_scaled(rig: Open) -> None:
    """Were the result multiplied into a destination that holds NaN or Inf, it would show."""
    comm = rig("LL")
    for stale in (np.nan, np.inf, -np.inf):
        out = [device.array(np.full(300, stale, np.float32)) for device in comm.devices]
        comm.all_reduce([None, comm.devices[1].array(np.ones(300, np.float32))], out=out).wait()
        assert all(np.all(array.numpy() == 1) for array in out)


def test_in_place_and_out_may_differ_by_rank(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LLL")
    parts = integers(rng, "float32", 500, 3)
    arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
    out = [arrays[0], comm.devices[1].zeros(500), arrays[2]]
    comm.all_reduce(arrays, out=out).wait()
    assert np.array_equal(check_identical([array.numpy() for array in out]), exact_sum(parts, "float32"))
    assert np.array_equal(arrays[1].numpy(), parts[1])


def test_shapes_may_differ_where_counts_agree(rig: Open) -> None:
    comm = rig("LL")
    a, b = comm.devices[0].array(np.ones((6, 4), np.float32)), comm.devices[1].array(np.ones(24, np.float32))
    comm.all_reduce([a, b]).wait()
    assert a.numpy().shape == (6, 4)
    assert np.all(a.numpy() == 2)
    assert np.all(b.numpy() == 2)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_one_rank_checks_and_fills_out(rig: Open, count: int) -> None:
    comm = rig("L")
    a = comm.devices[0].array(np.arange(count, dtype=np.float32))
    out = comm.devices[0].array(np.full(count, 7, np.float32))
    comm.all_reduce([a], out=[out]).wait()
    comm.all_reduce([a]).wait()
    for array in (a, out):
        assert np.array_equal(array.numpy(), np.arange(count))
    with pytest.raises(vkpar.InvalidUsageError):
        comm.all_reduce([a], out=[comm.devices[0].zeros(count + 1)])


# ---- views ----


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("letters", ["LLL", "LS"])
def test_neighbours_of_views_stay(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    """Rows of an odd width start at any byte; what lies before and after them is not touched."""
    n = len(letters)
    comm = rig(letters)
    for width, first, last in [(7, 1, 4), (3, 2, 90), (1, 5, 6), (1, 3, 5), (257, 1, 3), (13, 0, 1)]:
        parts = integers(rng, dtype, (last + 2) * width, n)
        whole = [device.array(part, dtype).reshape(-1, width) for device, part in zip(comm.devices, parts, strict=True)]
        comm.all_reduce([array[first:last] for array in whole]).wait()
        inside = slice(first * width, last * width)
        want = exact_sum([part[inside] for part in parts], dtype)
        for array, part in zip(whole, parts, strict=True):
            changed = part.copy()
            changed[inside] = want
            assert array.numpy().reshape(-1).tobytes() == changed.tobytes()


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "naive"])
def test_views_as_sources_and_destinations(rig: Open, rng: np.random.Generator, algorithm: str) -> None:
    comm = rig("LLL", algorithm=algorithm)
    parts = integers(rng, "float32", 1003, 3)
    wholes = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
    outs = [device.array(np.full(1010, 7, np.float32)) for device in comm.devices]
    for at, to in [(0, 4), (1, 0), (3, 7), (4, 4)]:
        arrays = [whole[at + rank % 2 * 2 : at + rank % 2 * 2 + 900] for rank, whole in enumerate(wholes)]
        want = np.sum([array.numpy() for array in arrays], axis=0, dtype=np.float32)
        for out in outs:
            out.write(np.full(1010, 7, np.float32))
        comm.all_reduce(arrays, out=[out[to : to + 900] for out in outs]).wait()
        for out in outs:
            got = out.numpy()
            assert np.array_equal(got[to : to + 900], want)
            assert np.all(got[:to] == 7)
            assert np.all(got[to + 900 :] == 7)


def test_two_views_of_one_array_apart(rig: Open) -> None:
    comm = rig("LL")
    wholes = [device.array(np.arange(1000, dtype=np.float32)) for device in comm.devices]
    comm.all_reduce([whole[:500] for whole in wholes], out=[whole[500:] for whole in wholes]).wait()
    for whole in wholes:
        assert np.array_equal(whole.numpy()[:500], np.arange(500))
        assert np.array_equal(whole.numpy()[500:], 2 * np.arange(500))


# ---- sizes of numbers ----


@pytest.mark.parametrize("letters", ["LL", "LLLL", "LS", "SLS"])
def test_half_wire_has_the_range_of_float32(rig: Open, letters: str) -> None:
    n = len(letters)
    for algorithm in (*algorithms_for(letters), "auto"):
        comm = rig(letters, algorithm=algorithm)
        values = ([60000.0, 60000, -60000, -59000] if n == 4 else [40000.0, 40000, 40000])[:n]
        got = check_identical(reduced(comm, [np.full(300, value, np.float32) for value in values], "float32"))
        check_bound(got, [np.full(300, value, np.float32) for value in values], "float32", "ring", "f16")
        assert np.all(np.abs(got - sum(values)) <= 64)


@pytest.mark.parametrize("letters", ["LL", "LLL", "LS"])
@pytest.mark.parametrize("size", [2.0**-100, 2.0**-30, 2.0**0, 2.0**100, 2.0**123])
def test_errors_do_not_depend_on_the_size(rig: Open, letters: str, size: float) -> None:
    """The same data times a power of two gives the same result times it, to the bit."""
    n = len(letters)
    for algorithm in ("ring", "two_shot"):
        comm = rig(letters, algorithm=algorithm)
        units = [np.random.default_rng(rank).uniform(0.01, 1, 900).astype(np.float32) for rank in range(n)]
        want = modelled(units, "float32", algorithm, "f16")
        got = check_identical(reduced(comm, [unit * np.float32(size) for unit in units], "float32"))
        assert (got / np.float32(size)).tobytes() == want.tobytes()


@pytest.mark.parametrize("letters", ["LL", "LLL", "LS"])
@pytest.mark.parametrize("size", [1e-30, 1e-9, 1.0, 1e30, 1e37])
def test_relative_errors_of_any_size(rig: Open, rng: np.random.Generator, letters: str, size: float) -> None:
    n = len(letters)
    parts = [(size * rng.uniform(0.5, 1.5, 900)).astype(np.float32) for _ in range(n)]
    for algorithm in ("ring", "two_shot", "auto"):
        got = check_reduction(rig(letters, algorithm=algorithm), parts, "float32", algorithm, "f16")
        true = np.sum(np.stack(parts).astype(np.float64), axis=0)
        assert np.max(np.abs(got - true) / true) < (n + 1) * 2.0**-11


def test_small_gradients_beside_large_blocks(rig: Open) -> None:
    """The scale is a block's own: 1e-9 survives next to a block of 1e9."""
    comm = rig("LL")
    part = np.concatenate([np.full(256, 1e9), np.full(256, 1e-9), np.full(100, 1.0)]).astype(np.float32)
    for algorithm in ALGORITHMS:
        check_reduction(rig("LL", algorithm=algorithm), [part, part], "float32", algorithm, "f16")
    got = check_identical(reduced(comm, [part, part], "float32"))
    assert np.allclose(got, 2 * part, rtol=2**-10, atol=0)


def test_the_largest_floats_stay_finite(rig: Open) -> None:
    """At the least shift, what would round up to 2^128 is sent as the largest half below."""
    largest = np.float32(3.4028235e38)
    for letters in ("LL", "LS"):
        for algorithm in ("ring", "two_shot"):
            part = np.linspace(-float(largest), float(largest), 700).astype(np.float32)
            parts = [part, np.zeros(700, np.float32)]
            got = check_reduction(rig(letters, algorithm=algorithm), parts, "float32", algorithm, "f16")
            assert np.isfinite(got).all()


# ---- special values ----


def special(count: int) -> tuple[Numbers, Numbers]:
    """Return two ranks' values: ordinary ones, and here and there NaNs of several kinds and infinities."""
    first, second = np.ones(count, np.float32), np.full(count, 2, np.float32)
    first[3::97] = np.inf
    second[5::97] = -np.inf
    first[7::97], second[7::97] = np.inf, -np.inf
    nans = np.array([0x7F800001, 0xFFC00001, 0x7FFFFFFF], np.uint32).view(np.float32)
    for index in range(9, count, 97):
        second[index] = nans[index % 3]
    return first, second


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("letters", ["LL", "LLLL", "LS", "SL", "SS"])
def test_nan_and_infinity(rig: Open, letters: str, wire: str) -> None:
    first, second = special(1000)
    ones = np.ones(1000, np.float32)
    parts = [first, second, *[ones] * (len(letters) - 2)]
    with np.errstate(invalid="ignore"):
        true = np.sum(parts, axis=0, dtype=np.float32)
    for algorithm in (*algorithms_for(letters), "auto"):
        comm = rig(letters, algorithm=algorithm, wire=wire)
        got = check_identical(reduced(comm, parts, "float32"))
        assert np.array_equal(got, true, equal_nan=True)  # small whole numbers: the rest of the block is exact
        assert set(got[np.isnan(true)].view(np.uint32)) == {0x7FC00000}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("letters", ["LL", "LLL", "LS"])
def test_nan_and_infinity_of_halves(rig: Open, letters: str, dtype: str) -> None:
    parts = [np.full(600, rank + 1, np.float32) for rank in range(len(letters))]
    parts[0][::50], parts[1][1::50], parts[1][::100] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        true = np.sum(parts, axis=0, dtype=np.float32)
    for algorithm in (*algorithms_for(letters), "auto"):
        elements = [to_dtype(part, dtype) for part in parts]
        got = check_identical(reduced(rig(letters, algorithm=algorithm), elements, dtype))
        assert np.array_equal(from_dtype(got, dtype), true, equal_nan=True)
        canonical = 0x7E00 if dtype == "float16" else 0x7FC0
        assert set(got.view(np.uint16)[np.isnan(true)]) == {canonical}


def test_blocks_of_nothing_but_special_values(rig: Open) -> None:
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        for algorithm in ALGORITHMS:
            parts = [np.full(300, value, np.float32)] * 2
            got = check_identical(reduced(rig("LL", algorithm=algorithm), parts, "float32"))
            with np.errstate(invalid="ignore"):
                assert np.array_equal(got, parts[0] + parts[1], equal_nan=True)


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
def test_signs_of_zero(rig: Open, wire: str) -> None:
    """-0 + -0 is -0, -0 + 0 is 0."""
    for letters in ("LL", "LS"):
        parts = [np.array([-0.0, -0.0, 0.0, 1.0], np.float32), np.array([-0.0, 0.0, -0.0, -1.0], np.float32)]
        got = check_identical(reduced(rig(letters, algorithm="two_shot", wire=wire), parts, "float32"))
        assert [bool(np.signbit(value)) for value in got] == [True, False, False, False]
        assert not got.any()


@pytest.mark.parametrize("wire", ["f16", "f32"])
def test_subnormals_are_kept_or_zero(rig: Open, rng: np.random.Generator, wire: str) -> None:
    tiny = [(rng.uniform(-1, 1, 700) * 2.0**-126).astype(np.float32) for _ in range(2)]
    for letters in ("LL", "LS", "SL"):
        for algorithm in ("ring", "two_shot"):
            got = check_identical(reduced(rig(letters, algorithm=algorithm, wire=wire), tiny, "float32"))
            true = tiny[0].astype(np.float64) + tiny[1]
            assert np.all(np.abs(got - true) <= 3 * 2.0**-126)


def test_integers_wrap(rig: Open) -> None:
    for letters in ("LLL", "LS"):
        for dtype in ("int32", "uint32"):
            info = np.iinfo(dtype)
            parts = [np.array([info.max, info.min, 1, 0x01020304], dtype)] * len(letters)
            got = check_identical(reduced(rig(letters), parts, dtype))
            assert np.array_equal(got, exact_sum(parts, dtype))


def test_patterns_of_nan_are_integers_too(rig: Open) -> None:
    """Integers must not be canonicalized as floats are."""
    parts = [np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00001], np.uint32), np.zeros(3, np.uint32)]
    for algorithm in ALGORITHMS:
        got = check_identical(reduced(rig("LL", algorithm=algorithm), parts, "uint32"))
        assert got.tobytes() == parts[0].tobytes()


def laid_into(host: Numbers, at: int) -> Numbers:
    """Return ``host`` with ``at`` ones before it and five behind."""
    return np.concatenate([np.ones(at, host.dtype), host, np.ones(5, host.dtype)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("letters", ["LL", "LS", "SS"])
def test_exact_formats_of_views_and_tails(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    """Where elements are copied into slots and back, what lies around them stays, and NaNs become one of a kind."""
    for algorithm in algorithms_for(letters):
        comm = rig(letters, algorithm=algorithm, wire="f32")
        for count, at in ((1, 0), (257, 4), (1003, 1), (50_001, 8)):
            parts = integers(rng, dtype, count, 2)
            want = exact_sum(parts, dtype)
            if dtype != "int32":
                quiet, signalling = (0x7FC00123, 0xFF800001) if dtype == "float32" else (0x7E12, 0xFC01)
                for part, nan in zip(parts, (quiet, signalling), strict=True):
                    part.view(f"u{part.itemsize}")[0] = nan
                parts[1].view(f"u{want.itemsize}")[-1] = signalling
                want.view(f"u{want.itemsize}")[[0, -1]] = 0x7FC00000 if dtype == "float32" else 0x7E00
            whole = [device.array(laid_into(part, at)) for device, part in zip(comm.devices, parts, strict=True)]
            comm.all_reduce([array[at : at + count] for array in whole]).wait()
            for array in whole:
                assert array.numpy().tobytes() == laid_into(want, at).tobytes()


# ---- the same bits again ----


@pytest.mark.parametrize("letters", ["LLL", "LS"])
def test_the_same_call_gives_the_same_bits(rig: Open, rng: np.random.Generator, letters: str) -> None:
    parts = reals(rng, "float32", 5000, len(letters))
    for algorithm in (*algorithms_for(letters), "auto"):
        comm = rig(letters, algorithm=algorithm)
        arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
        out = [device.zeros(5000) for device in comm.devices]
        seen = set()
        for _ in range(5):
            comm.all_reduce(arrays, out=out).wait()
            seen.add(check_identical([array.numpy() for array in out]).tobytes())
        seen.add(check_identical(reduced(rig(letters, algorithm=algorithm), parts, "float32")).tobytes())
        assert len(seen) == 1


def test_segments_do_not_change_bits(
    rig: Open, rng: np.random.Generator, settings_override: Callable[..., None]
) -> None:
    parts = reals(rng, "float32", 300_000, 3)
    wanted = {
        algorithm: check_identical(reduced(rig("LLL", algorithm=algorithm), parts, "float32")).tobytes()
        for algorithm in ALGORITHMS
    }
    settings_override(staging_bytes=1)
    for algorithm in ALGORITHMS:
        comm = rig("LLL", algorithm=algorithm)
        assert comm.stats()["staging_bytes"] < 4 << 20
        assert check_identical(reduced(comm, parts, "float32")).tobytes() == wanted[algorithm]


@pytest.mark.parametrize("letters", ["LL", "LSL"])
def test_slow_links_are_played(
    rig: Open, rng: np.random.Generator, settings_override: Callable[..., None], letters: str
) -> None:
    """Steps that move their slots again and again give the same bits, and copy so much more."""
    parts = reals(rng, "float32", 70_001, len(letters))
    record = TapedCommands.record_copy
    found, copies = [], []
    for times in (0, 3):
        settings_override(slow_links=times)
        sizes = Counter[int]()

        def counted(commands: TapedCommands, source: BufferRange, target: BufferRange, sizes: Any = sizes) -> None:
            sizes[source.nbytes] += 1
            record(commands, source, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TapedCommands, "record_copy", counted)
            for algorithm, wire in itertools.product(("two_shot", "ring", "tree"), ("f16", "q8", "f32")):
                comm = rig(letters, algorithm=algorithm, wire=wire)
                found.append(check_identical(reduced(comm, parts, "float32")).tobytes())
            with env.override(path="copies"):  # around kernels that do not touch the staging memory
                found.append(check_identical(reduced(rig("LL"), parts[:2], "float32")).tobytes())
        copies.append(sizes)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
    more = copies[1] - copies[0]
    assert more
    assert all(number % 2 == 0 for number in more.values()), "each part of a slot is moved twice more"


# ---- many at a time ----


@pytest.mark.parametrize("letters", ["LLL", "LS"])
def test_many_collectives_in_flight(rig: Open, rng: np.random.Generator, letters: str) -> None:
    """Alternating sizes, algorithms and rank orders, nothing waited for, all results checked at the end."""
    n = len(letters)
    forward = [rig(letters, algorithm=algorithm) for algorithm in algorithms_for(letters)]
    backward = [vkpar.Communicator(comm.devices[::-1], algorithm="ring") for comm in forward[:1]]
    pending = []
    for turn in range(40):
        comm = [*forward, *backward][turn % (len(forward) + 1)]
        parts = integers(rng, "float32", (1, 3000, 257, 40_000)[turn % 4], n)
        arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
        pending.append((comm.all_reduce(arrays), arrays, exact_sum(parts, "float32")))
    for work, arrays, want in reversed(pending):
        work.wait()
        assert np.array_equal(check_identical([array.numpy() for array in arrays]), want)
    for comm in backward:
        comm.close()


def test_a_chain_on_the_same_arrays(rig: Open) -> None:
    for letters in ("LLL", "LS"):
        comm = rig(letters, wire="f32")
        arrays = [device.array(np.ones(1000, np.float32)) for device in comm.devices]
        for _ in range(12):
            comm.all_reduce(arrays)
        want = float(len(letters)) ** 12
        for array in arrays:
            assert np.all(array.numpy() == want)


def test_results_are_ordered_with_other_work(rig: Open) -> None:
    """Later work sees the result, earlier writes are seen, without a wait in between."""
    comm = rig("LS")
    arrays = [device.zeros(2000) for device in comm.devices]
    copies = []
    for turn in range(10):
        for rank, array in enumerate(arrays):
            array.write(np.full(2000, turn + rank, np.float32))
        comm.all_reduce(arrays)
        copies.append([array.copy() for array in arrays])
    for turn, pair in enumerate(copies):
        assert all(np.all(copied.numpy() == 2 * turn + 1) for copied in pair)


def test_arrays_may_go_while_they_are_in_flight(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LLL")
    work = []
    with parked(comm.devices[1]):
        for count in (300, 5000) * 10:
            work.append(comm.all_reduce([device.zeros(count) for device in comm.devices]))
        others = [device.array(np.full(5000, 5, np.float32)) for device in comm.devices]
        assert not work[-1].done()
    for item in work:
        item.wait()
    assert all(np.all(array.numpy() == 5) for array in others)


def test_threads(rig: Open) -> None:
    """Four threads, each with arrays and a communicator of its own or shared, 50 collectives each."""
    shared = rig("LL")
    comms = [shared, shared, rig("LL", algorithm="ring"), rig("LL", algorithm="two_shot")]
    failures: list[BaseException] = []

    def work(seed: int, comm: vkpar.Communicator) -> None:
        rng = np.random.default_rng(seed)
        try:
            arrays = [device.zeros(700) for device in comm.devices]
            for _ in range(50):
                parts = integers(rng, "float32", 700, 2)
                for array, part in zip(arrays, parts, strict=True):
                    array.write(part)
                comm.all_reduce(arrays).wait(60)
                got = check_identical([array.numpy() for array in arrays])
                assert np.array_equal(got, exact_sum(parts, "float32"))
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    _join([threading.Thread(target=work, args=item, daemon=True) for item in enumerate(comms)])
    assert not failures


def test_threads_that_take_devices_in_opposite_orders(rig: Open) -> None:
    """Collectives over unaligned views, which copy first, beside uploads and copies: locks in one order alone."""
    comm, other = rig("LL"), rig("LL")
    failures: list[BaseException] = []

    def reduce(comm: vkpar.Communicator) -> None:
        arrays = [device.zeros(701)[1:] for device in comm.devices]
        for _ in range(40):
            comm.all_reduce(arrays).wait(60)

    def upload(device: vkpar.Device) -> None:
        array = device.zeros(3000)
        for turn in range(80):
            array.write(np.full(3000, turn, np.float32))
            assert array.numpy()[-1] == turn

    def guarded(function: Callable[..., None], argument: object) -> None:
        try:
            function(argument)
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    jobs: list[tuple[Callable[..., None], object]] = [(reduce, comm), (reduce, other)]
    jobs += [(upload, device) for device in comm.devices]
    _join([threading.Thread(target=guarded, args=job, daemon=True) for job in jobs])
    assert not failures


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "deadlock"


# ---- bridged links ----


@pytest.mark.parametrize("letters", ["LLL", "SL"])
def test_forced_bridges(
    rig: Open, rng: np.random.Generator, letters: str, settings_override: Callable[..., None]
) -> None:
    settings_override(link="bridged")
    comm = rig(letters, algorithm="ring")
    assert {link.kind for link in comm.links()} == {"bridged"}
    assert len(comm.links()) == len(letters) * (len(letters) - 1)
    for count in (300, 30_000):
        check_reduction(comm, reals(rng, "float32", count, len(letters)), "float32", "ring", "f16")
    stats = comm.stats()
    assert stats["bridges"] > 0
    assert stats["bridges_pending"] == 0
    assert sum(stats["bridge_latency_ns"].values()) == stats["bridges"]


@pytest.mark.parametrize("letters", ["LL", "SS", "LS"])
def test_links_that_are_tried_say_why_they_are_bridged(
    rig: Open, letters: str, settings_override: Callable[..., None]
) -> None:
    """Neither CPU driver shares timelines: none is imported, which would crash SwiftShader."""
    settings_override(link="try")
    comm = rig(letters)
    if any(device.logical.info.features.timeline_export for device in comm.devices):
        pytest.skip("this driver shares timelines")
    assert {link.kind for link in comm.links()} == {"bridged"}
    assert all("does not share timelines (OPAQUE_FD)" in link.reason for link in comm.links())


def test_what_a_communicator_tells(rig: Open) -> None:
    comm = rig("LL")
    arrays = [device.zeros(100) for device in comm.devices]
    for _ in range(3):
        comm.all_reduce(arrays).wait()
    stats = comm.stats()
    assert (stats["collectives"], stats["cached_programs"]) == (3, 1)
    assert comm.transports() == ["staged"] * 2
    assert comm.nranks == 2
    assert str(comm.devices[0]) in repr(comm)
