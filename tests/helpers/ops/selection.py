"""A small case of every kind of operation, checked against float64, for CPU drivers that have less than others or more.

Each function takes a device, a generator and, unless all are wanted, the types of floats. What it computes is as small
as takes all the branches that depend on subgroups and on types; the tests of each operation have the sizes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.ops.attending import made_of
from helpers.ops.elements import FLOATS, check, normal, values_of
from helpers.ops.quantizing import NAMES, blocks_of, columns_of, error_of, exact, made
from helpers.ops.reducing import check_bound as check_sum
from helpers.ops.reducing import check_identical, integers, reals, reduced
from helpers.ops.reducing import exact_sum as sum_of
from numpy.typing import NDArray

import vkpar
from vkpar.comm import wires
from vkpar.doctor.references import F64, attended, norm_error, plain, softmax_error, turned
from vkpar.testing import U, additions, gamma

module, quantized_products = (importlib.import_module(f"vkpar.ops.{name}") for name in ("matmul.dense", "matmul.few"))
Case = Callable[..., None]
WIRES = [*(("float32", wire) for wire in wires.NAMES), ("float16", None), ("bfloat16", None)]


def held_by(
    device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> tuple[vkpar.Array, F64]:
    """Return an array of random elements and their values."""
    values = normal(rng, shape, dtype)
    return device.array(values, dtype), values.astype(np.float64)


def elementwise(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    """Whole arrays, rows that are broadcast, and columns: three forms of kernels."""
    for dtype in dtypes:
        (a, x), (b, y) = (held_by(device, rng, (37, 66), dtype) for _ in range(2))
        check(a + b, x + y, U * np.abs(x + y))
        check(vkpar.multiply(a, b[3]), x * y[3], U * np.abs(x * y[3]))
        check(a.T - b.T, (x - y).T, U * np.abs(x - y).T)
        check(vkpar.relu(a[:, 1:6]), np.maximum(x[:, 1:6], 0), 0.0)
        both = vkpar.elementwise("y = a * b + 1.0; z = max(a, b)")(a, b)
        check(both[0], x * y + 1, 2 * U * (np.abs(x * y) + 1))
        check(both[1], np.maximum(x, y), 0.0)


def casts(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    for dtype in dtypes:
        a, x = held_by(device, rng, (5, 71), dtype)
        for other in FLOATS:
            check(vkpar.cast(a, other), x, 0.0)
        np.testing.assert_array_equal(vkpar.cast(a * 9.0, "int32").numpy(), np.trunc(values_of(a * 9.0)))


def copies(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = ("float32", "float16")) -> None:
    """Views copied, joined and taken, in words, in halves and in bytes."""
    for dtype in (*dtypes, "uint8"):
        host = rng.integers(0, 100, (9, 35, 3)).astype(dtype)
        a = device.array(host)
        np.testing.assert_array_equal(a[1::2, ::-1].contiguous().numpy(), host[1::2, ::-1])
        np.testing.assert_array_equal(a.transpose(2, 0, 1).copy().numpy(), host.transpose(2, 0, 1))
        np.testing.assert_array_equal(vkpar.concatenate([a, a[:, 3:8]], 1).numpy(), np.hstack([host, host[:, 3:8]]))
        table, rows = host.reshape(9, 105), np.array([8, 0, 3, 3], np.int32)
        if dtype != "uint8":
            np.testing.assert_array_equal(vkpar.take(device.array(table), device.array(rows)).numpy(), table[rows])


def reductions(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    """Of rows, of columns and of all, in one pass and in several."""
    for dtype in dtypes:
        for shape in ((3, 4099), (4099, 6), (1, 70_001)):
            a, x = held_by(device, rng, shape, dtype)
            for axis in (0, 1):
                check(vkpar.sum(a, axis), x.sum(axis), gamma(additions(x.shape[axis])) * np.abs(x).sum(axis))
                np.testing.assert_array_equal(values_of(vkpar.max(a, axis)), x.max(axis))
                np.testing.assert_array_equal(vkpar.argmax(a, axis).numpy(), x.argmax(axis))
                np.testing.assert_array_equal(vkpar.argmin(a, axis).numpy(), x.argmin(axis))


def rows(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    """Softmax and norms, of rows that are kept and of longer ones."""
    for dtype in dtypes:
        for shape in ((5, 3), (3, 1001), (1, 20_000)):
            a, x = held_by(device, rng, shape, dtype)
            w, weight = held_by(device, rng, shape[1:], dtype)
            check(vkpar.softmax(a), *softmax_error(x))
            check(vkpar.rms_norm(a, w, 1e-5), *norm_error(x, weight, np.zeros(1), 1e-5, False))
            check(vkpar.layer_norm(a, w, w, 1e-5), *norm_error(x, weight, weight, 1e-5, True))


def multiplied(
    device: vkpar.Device, rng: np.random.Generator, sizes: tuple[int, int, int], dtype: str, *, transpose_b: bool
) -> None:
    m, n, k = sizes
    (a, x), (b, y) = (held_by(device, rng, shape, dtype) for shape in ((m, k), (k, n)))
    if transpose_b:
        b = b.T.contiguous()
    error = gamma(k + 2) * (np.abs(x) @ np.abs(y))
    check(vkpar.matmul(a, b, transpose_b=transpose_b), x @ y, error)
    check(vkpar.matmul(a, b, transpose_b=transpose_b, dtype="float32"), x @ y, error)


def products(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    """Of few rows and of many; the last size is one that the kernels without loops take."""
    for dtype in dtypes:
        for sizes in ((1, 40, 96), (3, 31, 50), (20, 72, 64), (2, 520, 256)):
            for transpose_b in (False, True):
                multiplied(device, rng, sizes, dtype, transpose_b=transpose_b)


def attention(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    for dtype in dtypes:
        for shape in ((1, 70, 64), (9, 40, 24)):
            arrays, values = made_of(device, rng, 4, 2, shape, dtype)
            for causal in (False, True):
                check(vkpar.attention(*arrays, causal=causal), *attended(*values, causal=causal))


def quantised(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    for kind in NAMES:
        blocks = blocks_of(rng, kind, 24, columns_of(kind))
        q, weights = made(device, blocks, kind), exact(blocks, kind).astype(np.float64)
        np.testing.assert_array_equal(values_of(q.dequantize()), weights)
        np.testing.assert_array_equal(
            values_of(vkpar.take(q, device.array(np.array([5, 23], np.int32)))), weights[[5, 23]]
        )
        for m, dtype in ((1, "float32"), (1, "float16"), (5, "float32"), (30, "bfloat16")):
            if dtype not in dtypes:
                continue
            a, x = held_by(device, rng, (m, columns_of(kind)), dtype)
            check(vkpar.matmul(a, q, transpose_b=True), x @ weights.T, error_of(x, blocks, kind))


def rope(device: vkpar.Device, rng: np.random.Generator, dtypes: Sequence[str] = FLOATS) -> None:
    positions = np.array([0, 1, 4095, 131_071], np.int32)
    for dtype in dtypes:
        a, x = held_by(device, rng, (3, 4, 20), dtype)
        for style in ("llama", "neox"):
            found = vkpar.rope(a, device.array(positions), style=style)
            check(found, *turned(x, positions.astype(np.int64), plain(20), style))


CASES: dict[str, Case] = {
    case.__name__: case for case in (elementwise, casts, copies, reductions, rows, products, attention, quantised, rope)
}


def sums_of_subgroups(device: vkpar.Device, rng: np.random.Generator) -> None:
    """The kernels that add up over subgroups of any size; by themselves those of NVIDIA's GPUs alone take them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "kernel_for", lambda device, m: "matvec" if m <= 8 else "matmul_tiled")
        patch.setattr(module.matvec, "adds_up", lambda info: True)
        patch.setattr(quantized_products, "rows_at_once", lambda device: 8)
        patch.setattr(quantized_products, "by_lanes", lambda device: False)
        for dtype in ("float32", "float16"):
            for sizes in ((1, 40, 520), (1, 9, 1031), (5, 24, 520)):
                multiplied(device, rng, sizes, dtype, transpose_b=True)
        quantised(device, rng)


def sums(devices: Sequence[vkpar.Device], rng: np.random.Generator, algorithm: str = "auto") -> None:
    """All-reduces of every wire, of blocks and of a tail: exactly where whole numbers are, else within the bound."""
    with vkpar.Communicator(list(devices), algorithm=algorithm) as comm:
        for dtype, wire in WIRES:
            options: dict[str, Any] = {} if wire is None else {"wire": wire}
            taken = ("direct" if len(devices) == 2 else "ring") if algorithm == "auto" else algorithm
            parts: list[NDArray[Any]] = reals(rng, dtype, 3000, len(devices))
            check_sum(check_identical(reduced(comm, parts, dtype, **options)), parts, dtype, taken, wire)
            whole = integers(rng, dtype, 700, len(devices))
            if wire != "q8":
                found = check_identical(reduced(comm, whole, dtype, in_place=False, **options))
                np.testing.assert_array_equal(found, sum_of(whole, dtype))
