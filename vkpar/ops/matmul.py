"""Matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vkpar import dtypes
from vkpar.array import Array
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops._launch import (
    FLOATS,
    check_arrays,
    check_float,
    check_out,
    check_overlap,
    fold_groups,
    range_limit,
    words,
    writable_in_place,
)
from vkpar.ops.cast import convert

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.buffer import BufferRange

# Turns of one invocation's loops in a dispatch: CPU drivers give wrong results, silently, beyond 65,535.
_MAX_TURNS: Final = 49_152
# Multiply-adds of a dispatch: beyond it a slow GPU could run into its driver's watchdog.
_MAX_WORK: Final = 1 << 38
_SMALL: Final = "matmul_small"
_TILED_SHARED: Final = 2 * 16 * (128 + 4) * 4  # bytes of shared memory of the largest tile
_MATVEC_ROWS: Final = 4
_BIG_TILES: Final = 64  # from so many 128 x 128 tiles on they fill a GPU


@dataclass(frozen=True)
class _Problem:
    """Checked, non-empty operands: a is (m, k), b is (k, n), or (n, k) when transposed."""

    a: Array
    b: Array
    transpose_b: bool
    m: int
    n: int
    k: int

    @property
    def device(self) -> Device:
        """The device of both operands."""
        return self.a.device


@dataclass(frozen=True)
class _Plan:
    """How a product is cut into dispatches: the kernel, and rows, columns and steps of K of each."""

    kernel: str
    m: int
    n: int
    k: int


def matmul(a: Array, b: Array, *, out: Array | None = None, transpose_b: bool = False, dtype: object = None) -> Array:
    """Return the matrix product of ``a`` and ``b``, accumulated in float32 and rounded once.

    Args:
        a: (M, K); float32, float16 or bfloat16.
        b: (K, N), or (N, K) with ``transpose_b``; any of these types too.
        out: where the result goes: (M, N), of the result's type, sharing no memory with an operand.
        transpose_b: multiply by the transpose of ``b``.
        dtype: type of the result; by default what ``np.result_type`` says (float16 of two float16).

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that do not fit; a wrong ``out``.
        UnsupportedError: a type that devices do not compute, such as float64; a row too long for one binding.
    """
    check_arrays("matmul", out, a=a, b=b)
    m, n, k = _shape(a, b, transpose_b)
    check_float("matmul", a.dtype, b.dtype)
    result = dtypes.result_type(a.dtype, b.dtype) if dtype is None else dtypes.resolve(dtype)
    check_float("matmul", result)
    if out is not None:
        check_out("matmul", out, (m, n), result)
        check_overlap("matmul", out, a, b, in_place=False)
    device = a.device
    if not m * n * k:
        if out is None:
            return device.zeros((m, n), result)
        out.fill_zeros()
        return out
    problem = _Problem(a, b, transpose_b, m, n, k)
    if n == 1:  # a column is a row of the transposed product, which reads both along K
        problem = _Problem(b, a, True, 1, m, k)
    plan = _plan(problem)
    if out is None:
        out = device.empty((m, n), result)
    _multiply(problem, plan, out)
    return out


def _shape(a: Array, b: Array, transpose_b: bool) -> tuple[int, int, int]:
    if a.ndim != 2 or b.ndim != 2:
        raise InvalidUsageError(f"matmul takes matrices, not shapes {a.shape} and {b.shape}; reshape a vector")
    k, n = reversed(b.shape) if transpose_b else b.shape
    if a.shape[1] != k:
        raise InvalidUsageError(
            f"matmul: a of shape {a.shape} does not fit b of shape {b.shape}" + (" transposed" if transpose_b else "")
        )
    return a.shape[0], n, k


def _kernel(device: Device, m: int) -> str:
    limits = device.limits
    if device.info.is_cpu or limits.max_workgroup_invocations < 256 or limits.max_shared_memory < _TILED_SHARED:
        return _SMALL
    return "matvec" if m <= _MATVEC_ROWS else "matmul_tiled"


def _plan(problem: _Problem) -> _Plan:
    """Cut the product so that every operand's part fits one binding.

    Raises:
        UnsupportedError: not even one row does.
    """
    device, m, n, k = problem.device, problem.m, problem.n, problem.k
    kernel = _kernel(device, m)
    limit = range_limit(device)

    def rows_of(what: str, length: int, dtype: DType) -> int:
        row = length * (4 if kernel == _SMALL else dtype.itemsize)
        if row > limit:
            raise UnsupportedError(
                f"matmul of {problem.a.shape} by {problem.b.shape}: a row of {what} has {row} bytes, "
                f"{device.info.name} binds at most {limit} (max_storage_buffer_range {limit + 256})"
            )
        return limit // row

    part_m = min(rows_of("a", k, problem.a.dtype), rows_of("the result", n, dtypes.float32))
    part_m = min(m, part_m, max(_MAX_WORK // (n * k), 128))
    part_n, part_k = n, k
    if problem.transpose_b:
        part_n = min(n, rows_of("b", k, problem.b.dtype))
    else:
        part_k = min(k, rows_of("b", n, problem.b.dtype))
    if kernel == _SMALL:
        part_k = min(part_k, _MAX_TURNS)
    return _Plan(kernel, _rounded(part_m, m), _rounded(part_n, n), _rounded(part_k, k))


def _rounded(part: int, whole: int) -> int:
    """Round a part down to whole tiles, or to wide loads, where it is not the whole."""
    for step in (128, 4):
        if step <= part < whole:
            return part // step * step
    return part


def _multiply(problem: _Problem, plan: _Plan, out: Array) -> None:
    """Multiply into ``out``, through a float32 matrix where kernels cannot write or add up in it directly."""
    direct = out.dtype.itemsize == 4
    if plan.kernel == _SMALL:
        problem = replace(problem, a=_as_float32(problem.a), b=_as_float32(problem.b))
    else:
        direct = direct or (plan.k == problem.k and problem.n % 2 == 0 and writable_in_place(out))
    target = out if direct else problem.device.empty((problem.m, problem.n), dtypes.float32)
    for m0 in range(0, problem.m, plan.m):
        for n0 in range(0, problem.n, plan.n):
            for k0 in range(0, problem.k, plan.k):
                _dispatch(problem, plan, target, (m0, n0, k0))
    if target is not out:
        convert(target, out)


def _as_float32(array: Array) -> Array:
    if array.dtype == dtypes.float32:
        return array
    converted = array.device.empty(array.shape, dtypes.float32)
    convert(array, converted)
    return converted


def _dispatch(problem: _Problem, plan: _Plan, out: Array, start: tuple[int, int, int]) -> None:
    """Multiply the part of the product that begins at row, column and step of K ``start``."""
    a, b, (m0, n0, k0) = problem.a, problem.b, start
    m, n, k = min(plan.m, problem.m - m0), min(plan.n, problem.n - n0), min(plan.k, problem.k - k0)
    b_row = problem.k if problem.transpose_b else problem.n
    range_a, a_first = _block(a, problem.k, m0, k0, m, k)
    range_b, b_first = _block(b, b_row, *((n0, k0, n, k) if problem.transpose_b else (k0, n0, k, n)))
    range_o, o_first = _block(out, problem.n, m0, n0, m, n)
    groups, kernel, shape = _grid(plan.kernel, problem.transpose_b, m, n)
    constants: tuple[int, ...] = ()
    strides: tuple[int, ...] = (b_row,)
    if plan.kernel == _SMALL:
        strides = (1, b_row) if problem.transpose_b else (b_row, 1)
    else:
        wide = (
            not (a_first % 4 or problem.k % 4 or k % 4),
            not (b_first % 4 or b_row % 4 or (k if problem.transpose_b else n) % 4),
            not (o_first % 4 or problem.n % 4 or n % 4),
        )
        constants = (*(FLOATS[x.dtype.name] for x in (a, b, out)), problem.transpose_b, *wide, *shape)
    push = words(m, n, k, a_first, b_first, o_first, problem.k, *strides, problem.n, k0 > 0)
    grid = fold_groups(problem.device, groups)
    problem.device.dispatch(kernel, (range_a, range_b, range_o), push, grid, constants)


def _block(array: Array, row: int, row0: int, column0: int, rows: int, columns: int) -> tuple[BufferRange, int]:
    return array.window(row0 * row + column0, (rows - 1) * row + columns)


def _grid(kernel: str, transpose_b: bool, m: int, n: int) -> tuple[int, str, tuple[int, ...]]:
    """Return the number of work groups, the SPIR-V kernel, and the constants that say how much a group makes."""
    if kernel == "matvec":
        return (-(-n // 8), "matvec_columns", (m,)) if transpose_b else (-(-n // 32), "matvec_rows", (m,))
    if kernel == _SMALL:
        rows = next(rows for rows in (1, 4, 8) if m <= rows or rows == 8)
        return -(-m // (4 * rows)) * -(-n // 64), f"{kernel}_rows{rows}", ()
    tile = 2 if -(-m // 128) * -(-n // 128) >= _BIG_TILES else 1
    return -(-m // (64 * tile)) * -(-n // (64 * tile)), kernel, (tile, tile)
