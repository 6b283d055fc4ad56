"""Integers of 8 to 64 bits and float64 in every reduction, exactly; wires of products; the error that is promised."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.reducing import (
    INTEGERS,
    Numbers,
    algorithms_for,
    check_identical,
    combined,
    largest_of,
    mixed,
    reduced,
)

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, env
from vkpar.bench.measure.exact import truncated_quotient

pytestmark = [pytest.mark.rig, pytest.mark.sampled(10)]
Open = Callable[..., vkpar.Communicator]
OPS = ("sum", "prod", "max", "min", "avg")
WORDY = [dtype for dtype in INTEGERS if "32" not in dtype]
RIGS = ["L", "LL", "SS", "LS", "LLL", "SLS", "LLSL", "LLLLL", "LSLSLS", "LLLLLLL", "LLLLLLLL"]
COUNTS = (1, 2, 5, 255, 513, 1003, 20_001)
# Each rig with two of the dtypes, each dtype on three rigs or more.
CASES = [
    (letters, dtype)
    for place, letters in enumerate(RIGS)
    for number, dtype in enumerate(WORDY)
    if FULL or (number - 2 * place) % 6 in (0, 1)
]


def drawn(rng: np.random.Generator, dtype: str, count: int, nranks: int) -> list[Numbers]:
    info = np.iinfo(dtype)
    return [rng.integers(info.min, info.max, count, dtype, endpoint=True) for _ in range(nranks)]


def result_of(parts: Sequence[Numbers], op: str) -> Numbers:
    with np.errstate(over="ignore"):
        total = functools.reduce(lambda a, b: combined(a, b, "sum" if op == "avg" else op), parts)
        return truncated_quotient(total, len(parts)) if op == "avg" else total


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("letters", "dtype"), CASES)
def test_all_reduce_of_integers(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    """Every op, every algorithm in turn, in place and not, some ranks adding nothing."""
    n, algorithms = len(letters), [*algorithms_for(letters), "auto"]
    for number, op in enumerate(OPS):
        comm = rig(letters, algorithm=algorithms[(number + n) % len(algorithms)])
        for turn, count in enumerate(COUNTS):
            parts: list[Numbers | None] = list(drawn(rng, dtype, count, n))
            in_place = (number + turn) % 2 == 0
            if not in_place and n > 1:
                parts[turn % n] = None
            given = [part for part in parts if part is not None]
            got = check_identical(reduced(comm, parts, dtype, op=op, in_place=in_place))
            assert np.array_equal(got, result_of(given, op)), (op, count)


@pytest.mark.parametrize("letters", ["LL", "LS", "SLS", "LLLL"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_reduce_and_reduce_scatter_of_integers(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    n = len(letters)
    comm = rig(letters)
    for number, op in enumerate(OPS):
        for count in (0, 1, 7, 1003, 5001):
            parts = drawn(rng, dtype, count, n)
            want = result_of(parts, op)
            arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
            comm.reduce(arrays, number % n, op=op).wait()
            assert np.array_equal(arrays[number % n].numpy(), want)
            cuts = sorted(int(cut) for cut in rng.integers(0, count + 1, n - 1))
            pieces = np.split(want, cuts)
            arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
            if number % 2:
                out = [array[start:end] for array, start, end in zip(arrays, [0, *cuts], [*cuts, count], strict=True)]
            else:
                out = [device.empty(piece.size, dtype) for device, piece in zip(comm.devices, pieces, strict=True)]
            comm.reduce_scatter(arrays, op=op, out=out, counts=[piece.size for piece in pieces]).wait()
            assert all(np.array_equal(array.numpy(), piece) for array, piece in zip(out, pieces, strict=True))


def test_neighbours_of_narrow_views_stay_as_they_are(rig: Open, rng: np.random.Generator) -> None:
    """A view that ends inside a word, or begins where no word does, is reduced without its neighbours."""
    for letters in ("LL", "LS"):
        comm = rig(letters)
        for dtype in ("int8", "uint16"):
            for start, count in ((0, 5), (16, 33), (3, 4), (1, 1001)):
                parts = drawn(rng, dtype, start + count + 7, 2)
                arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
                comm.all_reduce([array[start : start + count] for array in arrays]).wait()
                for array, part in zip(arrays, parts, strict=True):
                    want = part.copy()
                    want[start : start + count] = result_of([p[start : start + count] for p in parts], "sum")
                    assert np.array_equal(array.numpy(), want)


# ---- float64 ----


def doubles_of(comm: vkpar.Communicator) -> None:
    if not all(device.info.features.float64 for device in comm.devices):
        pytest.skip("a device lacks shaderFloat64")


@pytest.mark.sampled(30)
@pytest.mark.parametrize("letters", ["L", "LL", "LLL", "LLLLLL", "LLLLLLLL"])
@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "tree", "naive", "auto"])
def test_float64(rig: Open, rng: np.random.Generator, letters: str, algorithm: str) -> None:
    """Within n roundings of the exact result; whole numbers exactly; the same bits everywhere."""
    comm, n = rig(letters, algorithm=algorithm), len(letters)
    doubles_of(comm)
    for count in (1, 127, 129, 5001):
        whole = [rng.integers(-(2**49), 2**49, count).astype(np.float64) for _ in range(n)]
        assert np.array_equal(check_identical(reduced(comm, whole, "float64")), np.sum(whole, axis=0))
        parts = [rng.standard_normal(count) * 10.0 ** rng.integers(-200, 200, count) for _ in range(n)]
        exact = np.array([math.fsum(column) for column in zip(*parts, strict=True)])
        most = np.sum(np.abs(parts), axis=0) * n * 2.0**-53
        assert np.all(np.abs(check_identical(reduced(comm, parts, "float64", in_place=False)) - exact) <= most)
        mean = check_identical(reduced(comm, parts, "float64", op="avg"))
        assert np.all(np.abs(mean - exact / n) <= (most + 3 * 2.0**-53 * np.abs(exact)) / n)
        for op, function in (("max", np.max), ("min", np.min)):
            assert np.array_equal(check_identical(reduced(comm, parts, "float64", op=op)), function(parts, axis=0))
        factors = [rng.choice([-2.0, 0.5, 1.0, 3.0], count) for _ in range(n)]
        got = check_identical(reduced(comm, factors, "float64", op="prod"))
        assert np.array_equal(got, np.prod(factors, axis=0))


def test_float64_where_a_device_lacks_it(rig: Open) -> None:
    comm = rig("LS")
    arrays = [device.zeros(10, "float64") for device in comm.devices]
    with pytest.raises(UnsupportedError, match=r"float64 .* rank 1, .* lacks shaderFloat64"):
        comm.all_reduce(arrays)
    comm.broadcast(arrays).wait()


def test_a_kernel_of_ones_own_may_use_float64(device: vkpar.Device) -> None:
    if not device.info.features.float64:
        pytest.skip("lacks shaderFloat64")
    source = """#version 450
        layout(local_size_x = 1) in;
        layout(set = 0, binding = 0) buffer A { double a[]; };
        void main() { a[gl_GlobalInvocationID.x] += 0.1lf; }"""
    array = device.array(np.array([0.2, 0.7]))
    vkpar.Kernel(device, source)(2, array)
    assert np.array_equal(array.numpy(), np.array([0.2, 0.7]) + 0.1)


# ---- wires ----


def wires_of(comm: vkpar.Communicator) -> list[str]:
    return [item["wire"] for item in json.loads(comm.dump())["operations"] if "wire" in item]


@pytest.mark.parametrize("letters", ["LS", "LLLL"])
def test_products_travel_exactly_by_default(rig: Open, letters: str) -> None:
    """Factors of very different sizes: on a wire with shared scales the small ones would be lost."""
    comm = rig(letters, wire="q8")
    parts = [np.array([1000, 1, 2, 3], np.float32)] * len(letters)
    got = check_identical(reduced(comm, parts, "float32", op="prod"))
    assert np.array_equal(got, np.prod(parts, axis=0))
    reduced(comm, parts, "float32", op="prod", wire="bf16")
    reduced(comm, parts, "float32")
    assert wires_of(comm)[-3:] == ["f32", "bf16", "q8"]


def test_the_default_wire_is_a_setting(rig: Open) -> None:
    devices = rig("LS").devices
    parts = [np.array([1 + 2.0**-20], np.float32)] * 2
    with env.override(wire="f32"), vkpar.Communicator(devices) as comm:
        assert reduced(comm, parts, "float32")[0][0] == np.float32(2 + 2.0**-19)
        reduced(comm, parts, "float32", wire="f16")
        assert wires_of(comm) == ["f32", "f16"]
    with env.override(wire="q8"), vkpar.Communicator(devices, wire="bf16") as comm:
        reduced(comm, parts, "float32")
        assert wires_of(comm) == ["bf16"]
    with pytest.raises(InvalidUsageError, match="unknown wire"):
        vkpar.Communicator(devices, wire="half")


def promised(parts: Sequence[Numbers], wire: str) -> Numbers:
    """Return what all_reduce's documentation promises of a sum's error, whatever the algorithm."""
    n = len(parts)
    total = np.sum([np.abs(part).astype(np.float64) for part in parts], axis=0)
    if wire == "f32":
        return total * n / 2**24
    largest = np.sum([largest_of(part, 256).astype(np.float64) for part in parts], axis=0)
    return ((1 + 1 / 2000) ** n - 1) * (total + largest / 2**27)


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "tree", "naive"])
@pytest.mark.parametrize("letters", ["LL", "LLL", "SLS", "LLLL", "LLLLL", "LLLLLL", "LLLLLLL", "LLLLLLLL"])
def test_sums_keep_the_promised_error(rig: Open, rng: np.random.Generator, letters: str, algorithm: str) -> None:
    """Against float64, on ordinary numbers, equal signs, halves' ties, and blocks of very different sizes."""
    if algorithm == "direct" and mixed(letters):
        pytest.skip("direct needs equal devices")
    comm, n, count = rig(letters, algorithm=algorithm), len(letters), 3000
    sizes = 10.0 ** rng.uniform(-6, 6, (n, count))
    ties = (1 + (2 * rng.integers(0, 1024, (n, count)) + 1) / 2.0**11).astype(np.float32)
    for parts in (
        rng.standard_normal((n, count)).astype(np.float32),
        rng.uniform(1, 2, (n, count)).astype(np.float32),
        (sizes * rng.standard_normal((n, count))).astype(np.float32),
        ties,
    ):
        exact = np.sum(parts, axis=0, dtype=np.float64)
        for wire in ("f16", "f32"):
            got = check_identical(reduced(comm, list(parts), "float32", wire=wire))
            error = np.abs(got.astype(np.float64) - exact)
            assert np.all(error <= promised(list(parts), wire)), (wire, np.max(error / promised(list(parts), wire)))
