"""The benchmarks' data: exact wherever a wire and an op allow it, else within a derived bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkpar import dtypes
from vkpar.bench.measure import exact
from vkpar.comm import wires


@pytest.mark.parametrize("nranks", [1, 2, 8, 64])
@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
def test_sums_fit_the_wire(wire: str, nranks: int) -> None:
    significand = {"f16": 11, "bf16": 8, "f32": 24}[wire]
    largest = exact.largest_term(dtypes.float32, wire, nranks)
    assert 1 <= largest <= 15
    assert largest * nranks <= 2**significand
    assert exact.largest_term(dtypes.bfloat16, "f32", nranks) * nranks <= 2**8


@pytest.mark.parametrize("depth", [1, 4096, 70_000, 1 << 20])
def test_products_sum_exactly(depth: int) -> None:
    assert exact.largest_factor(depth) ** 2 * depth <= 2**24


def test_floats_are_small_whole_numbers_and_integers_use_all_bits(rng: np.random.Generator) -> None:
    floats = exact.integers(rng, (10_000,), dtypes.float32, 15)
    assert floats.dtype == np.float32
    assert set(floats.tolist()) == set(range(-15, 16))
    wide = exact.integers(rng, (1000,), dtypes.uint32, 15)
    assert wide.dtype == np.uint32
    assert wide.max() > 2**31


def test_moved_numbers_cover_what_the_dtype_holds(rng: np.random.Generator) -> None:
    for name, most in (("float64", 2**53), ("float32", 2**24), ("float16", 2**11), ("bfloat16", 2**8)):
        dtype = dtypes.resolve(name)
        data = exact.anything(rng, (4000,), dtype)
        assert most * 0.9 < data.max() <= most
        assert np.array_equal(exact.rounded(data, dtype), data)
    for name in ("int8", "uint8", "int64", "uint64"):
        assert exact.anything(rng, (400,), dtypes.resolve(name)).dtype == name


def reduced(terms: exact.Terms, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    total = None
    for part in parts:
        total = terms.combine(total, part)
    assert total is not None
    return terms.finish(total)


@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "uint32", "int8", "uint64"])
@pytest.mark.parametrize("op", exact.OPS)
@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
def test_reductions_are_exact_in_every_order(
    op: str, dtype: str, wire: str, nranks: int, rng: np.random.Generator
) -> None:
    resolved = dtypes.resolve(dtype)
    terms = exact.Terms(op, resolved, wire, nranks)
    power_of_two = nranks & (nranks - 1) == 0
    assert terms.is_exact is (op != "avg" or power_of_two or dtype not in ("float32", "float64"))
    assert (terms.bound == 0.0) is terms.is_exact
    parts = [terms.draw(rng, 500) for _ in range(nranks)]
    want = reduced(terms, parts)
    assert want.tobytes() == reduced(terms, parts[::-1]).tobytes()
    assert len(np.unique(want)) > 1
    if not resolved.is_float:
        assert want.dtype == resolved.numpy
    elif terms.is_exact:
        wires_bits = {"f16": 11, "bf16": 8, "f32": 24}
        significant = {"float32": wires_bits[wire], "float16": 11, "bfloat16": 8, "float64": 53}[dtype]
        bits = 24 if op in ("max", "min") and dtype == "float32" else significant
        values = want.astype(np.float64)
        for numbers in (values, *parts):
            mantissas = np.frexp(numbers)[0] * 2.0**bits
            assert np.array_equal(mantissas, np.round(mantissas))
        true = np.array(parts, np.float64)
        operations: dict[str, Any] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "avg": np.mean}
        assert np.array_equal(values, operations[op](true, axis=0))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_averages_of_integers_are_sums_that_wrap_divided_toward_zero(dtype: str) -> None:
    info = np.iinfo(dtype)
    numbers = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 7], dtype)
    for divisor in (1, 2, 3, 7, 300):
        want = [abs(int(number)) // divisor * (-1 if number < 0 else 1) for number in numbers]
        if divisor > 1 or info.min == 0:
            assert exact.truncated_quotient(numbers, divisor).tolist() == want
    terms = exact.Terms("avg", dtypes.resolve(dtype), "f32", 2)
    assert reduced(terms, [np.array([info.max], dtype), np.array([3], dtype)]).tolist() == [
        1 if info.min == 0 else -(-(info.min + 2) // 2)
    ]


def encoded_q8(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float32 values after the q8 wire, roughly: 126 steps to the largest of 32."""
    blocks = values.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(126)
    return (np.rint(blocks / np.where(scales == 0, 1, scales)) * scales).astype(np.float32).reshape(-1)


@pytest.mark.parametrize("nranks", [2, 3, 8])
@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
def test_the_bound_of_q8_covers_a_ring_and_catches_a_slip(op: str, nranks: int, rng: np.random.Generator) -> None:
    terms = exact.Terms(op, dtypes.float32, "q8", nranks)
    assert not terms.is_exact
    parts = [terms.draw(rng, 3200) for _ in range(nranks)]
    want = reduced(terms, [part.copy() for part in parts])
    assert want.dtype == np.float64
    total = None
    for part in parts:
        total = part if total is None else terms.combine(encoded_q8(total), part)
    assert total is not None
    got = encoded_q8(total / np.float32(nranks) if op == "avg" else total)
    assert not exact.wrong_elements(got, want, terms.bound).any()
    error = np.abs(got - want).max()
    assert 0.02 * terms.bound < error or op == "prod"
    slip = want.astype(np.float32)
    slip[[3, 7]] += np.float32(1.01 * terms.bound)
    slip[11] = np.nan
    assert np.flatnonzero(exact.wrong_elements(slip, want, terms.bound)).tolist() == [3, 7, 11]
    assert terms.bound < 1.0 or nranks == 8


def test_a_bound_is_that_of_one_rounding_where_there_is_no_wire() -> None:
    terms = exact.Terms("avg", dtypes.float32, "f32", 3)
    assert terms.bound == pytest.approx(5 * 2.0**-23 * 15, rel=1e-3)
    assert exact.Terms("sum", dtypes.float32, "q8", 2).bound == pytest.approx(2 / 252 * 30, rel=0.02)
    assert "within 8.94e-06" in terms.describe()


def test_ops_are_those_of_the_communicator() -> None:
    assert set(exact.OPS) == set(wires.OPS)


class FakeArray:
    """What the checks need of an array."""

    def __init__(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> None:
        self._host, self.dtype = host, dtype

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._host


def test_wrong_elements_are_counted_by_value() -> None:
    expected = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    result = np.array([-0.0, 1.0, np.nan, 4.0], np.float32)
    assert exact.count_wrong(FakeArray(result, dtypes.float32), expected) == 2  # type: ignore[arg-type]
    halves = exact.rounded(expected, dtypes.bfloat16)
    assert exact.count_wrong(FakeArray(halves, dtypes.bfloat16), halves) == 0  # type: ignore[arg-type]
    assert exact.count_wrong(FakeArray(-halves, dtypes.bfloat16), halves) == 3  # type: ignore[arg-type]
