"""Matrix product."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops import matvec
from vkpar.ops._launch import (
    FLOATS,
    SHORT,
    check_arrays,
    check_float,
    check_out,
    check_overlap,
    dispatch,
    fold_groups,
    key_of,
    run_pair,
    words,
    writable_in_place,
)
from vkpar.ops.cast import convert
from vkpar.ops.tiling import Operand, Tile, tiles

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange

# Turns of one invocation's loops in a dispatch: CPU drivers give wrong results, silently, beyond 65,535.
_MAX_TURNS: Final = 49_152
# Multiply-adds of a dispatch: beyond it a slow GPU could run into its driver's watchdog.
_MAX_WORK: Final = 1 << 38
_WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates
_SMALL: Final = "matmul_small"
_SMALL_HALVES: Final = 4  # rows: for more, halves are converted once and not by each work-group that reads them
_MATVEC: Final = "matvec"
_TILED_SHARED: Final = 2 * 16 * (128 + 4) * 4  # bytes of shared memory of the largest tile
_BIG_TILES: Final = 256  # from so many 128 x 128 tiles on they fill a GPU


@dataclass(frozen=True)
class _Problem:
    """Checked, non-empty operands: a is (m, k), b is (k, n), or (n, k) when transposed.

    Where one dispatch does it, its plan is kept by ``key``; ``swapped`` operands are those of the transposed product.
    """

    a: Array
    b: Array
    transpose_b: bool
    m: int
    n: int
    k: int
    key: tuple[object, ...] | None = None
    swapped: bool = False

    @property
    def device(self) -> Device:
        """The device of both operands."""
        return self.a.device

    @property
    def b_row(self) -> int:
        """Elements of a row of b as it is stored."""
        return self.k if self.transpose_b else self.n


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
        UnsupportedError: a type that devices do not compute, such as float64.
    """
    options = (bool(transpose_b), None if dtype is None else _name(dtype))
    done = run_pair("matmul", a, b, out, *options, in_place=False)
    if done is not None:
        return done
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
    if out is not None and not out.is_contiguous:
        out.copy_from(matmul(a, b, transpose_b=transpose_b, dtype=dtype))
        return out
    a, b = a.contiguous(), b.contiguous()
    key = key_of("matmul", a, b, out, *options)
    problem = _Problem(a, b, transpose_b, m, n, k, key)
    if n == 1:  # a column is a row of the transposed product, which reads both along K
        problem = _Problem(b, a, True, 1, m, k, key, swapped=True)
    if out is None:
        out = device.empty((m, n), result)
    _multiply(problem, _kernel(device, problem.m), out)
    return out


def _name(dtype: object) -> str:
    """Return a type's name; nothing for what is none, of which the checks speak in their turn."""
    try:
        return dtypes.resolve(dtype).name
    except InvalidUsageError:
        return ""


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
    return _MATVEC if m <= matvec.MOST_ROWS else "matmul_tiled"


def _tiles(problem: _Problem, kernel: str, out: Array) -> list[Tile]:
    """Cut the product into dispatches that are not too long, and of which each binds a part of every operand."""
    m, n, k = problem.m, problem.n, problem.k
    most = {"m": max(_MAX_WORK // (n * k), 128), "n": n, "k": _MAX_TURNS if kernel == _SMALL else k}
    b_rows = ("n", "k") if problem.transpose_b else ("k", "n")
    operands = (
        Operand(problem.a.reach, k, "m", "k"),
        Operand(problem.b.reach, problem.b_row, *b_rows),
        Operand(out.reach, n, "m", "n"),
    )
    return list(tiles({"m": m, "n": n, "k": k}, most, operands))


def _multiply(problem: _Problem, kernel: str, out: Array) -> None:
    """Multiply into ``out``, through a float32 matrix where kernels cannot write or add up in it directly."""
    direct = out.dtype.itemsize == 4
    if kernel == _SMALL and problem.m > _SMALL_HALVES and {problem.a.dtype, problem.b.dtype} != {dtypes.float32}:
        problem = replace(problem, a=_as_float32(problem.a), b=_as_float32(problem.b), key=None)
    cut = _tiles(problem, kernel, out)
    if kernel != _SMALL:
        whole = not any(tile["k"][0] or tile["n"][0] % 2 for tile in cut)  # nothing is added up, no pair is cut
        direct = direct or (whole and problem.n % 2 == 0 and writable_in_place(out))
    target = out
    if not direct:
        target = problem.device.empty((problem.m, problem.n), dtypes.float32)
        cut = _tiles(problem, kernel, target)
    if target is not out or len(cut) > 1:
        problem = replace(problem, key=None)
    for tile in cut:
        _dispatch(problem, kernel, target, tile)
    if target is not out:
        convert(target, out)


def _as_float32(array: Array) -> Array:
    if array.dtype == dtypes.float32:
        return array
    converted = array.device.empty(array.shape, dtypes.float32)
    convert(array, converted)
    return converted


def _dispatch(problem: _Problem, kernel: str, out: Array, tile: Tile) -> None:
    """Multiply one tile of the product."""
    a, b, b_row = problem.a, problem.b, problem.b_row
    (m0, m), (n0, n), (k0, k) = tile["m"], tile["n"], tile["k"]
    range_a, a_first = _block(a, problem.k, m0, k0, m, k)
    range_b, b_first = _block(b, b_row, *((n0, k0, n, k) if problem.transpose_b else (k0, n0, k, n)))
    range_o, o_first = _block(out, problem.n, m0, n0, m, n)
    groups, spirv, shape = _grid(kernel, problem, m, n)
    constants: tuple[int, ...] = ()
    strides: tuple[int, ...] = (b_row,)
    if kernel == _SMALL:
        strides = (1, b_row) if problem.transpose_b else (b_row, 1)
    else:
        steps_a = math.gcd(a_first, problem.k, k)
        steps_b = math.gcd(b_first, b_row, k if problem.transpose_b else n)
        steps_o = math.gcd(o_first, problem.n, n)
        wide = (steps % 4 == 0 for steps in (steps_a, steps_b, steps_o))
        constants = (*(FLOATS[x.dtype.name] for x in (a, b, out)), problem.transpose_b, *wide, *shape)
        if kernel == _MATVEC:
            constants = (*constants, steps_a % 8 == 0, steps_b % 8 == 0)
    push = words(m, n, k, a_first, b_first, o_first, problem.k, *strides, problem.n, k0 > 0)
    grid = fold_groups(problem.device, groups)
    dispatch(
        "matmul",
        spirv,
        (a, b, out),
        (range_a, range_b, range_o),
        push,
        grid,
        constants,
        cost_ns=m * n * k // _WORK_PER_NS,
        key=problem.key,
        swapped=problem.swapped,
    )


def _block(array: Array, row: int, row0: int, column0: int, rows: int, columns: int) -> tuple[BufferRange, int]:
    return array.window(row0 * row + column0, (rows - 1) * row + columns)


def _grid(kernel: str, problem: _Problem, m: int, n: int) -> tuple[int, str, tuple[int, ...]]:
    """Return the number of work groups, the SPIR-V kernel, and the constants that say how much a group makes."""
    if kernel == _MATVEC:
        b, info = problem.b, problem.device.info
        groups, spirv, span = matvec.choose(info, m, n, b.dtype.itemsize, transpose_b=problem.transpose_b)
        return groups, spirv, (m, span)
    if kernel == _SMALL:
        rows = next(rows for rows in (1, 4, 8) if m <= rows or rows == 8)
        types = "_".join(SHORT[x.dtype.name] for x in (problem.a, problem.b))
        return -(-m // (4 * rows)) * -(-n // 64), f"{kernel}_{types}_rows{rows}", ()
    tile = 2 if -(-m // 128) * -(-n // 128) >= _BIG_TILES else 1
    return -(-m // (64 * tile)) * -(-n // (64 * tile)), kernel, (tile, tile)
