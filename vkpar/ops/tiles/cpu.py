"""Products of float32 on CPU drivers whose subgroups are the eight lanes of a vector: they are made for lavapipe.

Its time is that of single reads, each with tests of its own, so that the kernels read pairs of words or fours, share
what they read, and have no code for what is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.ops.tiles.product import Matrix, Product
    from vkpar.vulkan.machine.physical import DeviceInfo
    from vkpar.vulkan.memory.buffer import BufferRange

_WIDE: Final = "matmul_wide"
_LANES: Final = "matvec_lanes"
_STEPS: Final = "matvec_steps"
_FEW_ROWS: Final = 4  # that the two above take; kernels for more would mostly make rows that there are not
_STEP: Final = 16  # steps of K, without a loop
_ENOUGH: Final = 1 << 16  # elements of a matrix, from which on it pays to add up parts
_THREADS: Final = 128  # of a group of the kernel without loops, where there are columns for so many
_LANE_COLUMNS: Final = 4
_MOST_COLUMNS: Final = 16  # of matrices that are no whole eights: each has a kernel of its own
_MOST_STEPS: Final = 16  # of K, alike, where b is transposed
_TURNED: Final = 1 << 21  # multiply-adds from which on these kernels make up for a copy of a transposed operand,
_ROWS: Final = 16  # each of whose elements meets so many of the other one's rows


class Weights(NamedTuple):
    """How products take weights.

    Attributes:
        halves: many rows take halves as they are, and others rounded to these: GPUs multiply halves several times as
            fast. Processors have neither kernels for quantised weights nor any gain by halves: all become float32.
        turned: many rows take copies of their transposes, where :func:`turns` says so.
        lanes: one row takes quantised ones as they are, a column to a lane.
    """

    halves: bool
    turned: bool
    lanes: bool


ON_GPUS: Final = Weights(halves=True, turned=False, lanes=False)


def weights_of(info: DeviceInfo) -> Weights:
    """Return how a device takes weights."""
    return Weights(not info.is_cpu, turned=has_wide(info), lanes=has_wide(info))


def turns(others: int, rows: int, columns: int) -> bool:
    """Say whether a copy of a transposed operand of so many elements pays, for ``others`` rows."""
    return others >= _ROWS and others * rows * columns >= _TURNED


def has_wide(info: DeviceInfo) -> bool:
    """Say whether a device has these kernels."""
    return info.tests_lanes and info.features.subgroup_size == 8 and "ballot" in info.features.subgroup_operations


def parts_of(product: Product, most: int) -> int:
    """Return in how many parts of K the kernel without loops makes a product; 1 where it does not.

    Args:
        product: what is multiplied.
        most: parts that there may be.
    """
    m, n, k = product.m, product.n, product.k
    few = m <= _FEW_ROWS and not product.transpose_b and k % _STEP == 0 and n * k >= _ENOUGH
    if not (few and _suits(product)) or k // _STEP > most:
        return 1
    _, first = product.b.block(0, 0, k, n, product.batch)
    return k // _STEP if _fours(n, product.b.row, product.b.batch, first) else 1


def takes(product: Product, out: Matrix, firsts: tuple[int, ...], sizes: tuple[int, int, int]) -> bool:
    """Say whether one of the other kernels makes a tile of some products.

    Args:
        product: what is multiplied.
        out: where it goes.
        firsts: the elements of the three bindings at which the tile begins.
        sizes: of the tile: rows, columns, and steps of K.
    """
    m, n, k = sizes
    a, b, o = ((x.row, x.batch, first) for x, first in zip((product.a, product.b, out), firsts, strict=True))
    if not _suits(product):
        return False
    if product.transpose_b:
        return m <= _FEW_ROWS and k % 8 == 0 and _fours(*b)
    return n >= 8 and _fours(n, k, *a, *b, *o)


def kernel_of(product: Product, parts: int, m: int, n: int) -> tuple[str, int, tuple[int, ...]]:
    """Return the kernel that makes ``m`` rows and ``n`` columns, how many work-groups it has, and its constants."""
    few = 1 if m == 1 else _FEW_ROWS
    if parts > 1:
        threads = _THREADS if n >= _LANE_COLUMNS * _THREADS else 8
        return f"{_STEPS}_rows{few}", -(-n // (_LANE_COLUMNS * threads)), abi.StepsConstants(threads)
    if product.transpose_b:
        return f"{_LANES}_rows{few}", -(-n // 8), ()
    rows = 8 if m <= 8 else 16
    return f"{_WIDE}_rows{rows}", -(-m // rows) * -(-n // 64), ()


def _fours(*steps: int) -> bool:
    return all(step % 4 == 0 for step in steps)


def _suits(product: Product) -> bool:
    plain = all(matrix.array.dtype == dtypes.float32 for matrix in (product.a, product.b))
    return plain and not product.transpose_a and has_wide(product.device.info)


class Eights(NamedTuple):
    """A kernel that moves eight elements at a time, and makes all of some products in one dispatch.

    Attributes:
        kernel: its name, ``groups``: how many work-groups it has, ``constants``: its own, without a relu.
        firsts: the elements of the bindings at which operands and output begin.
        ranges: what is bound of them.
    """

    kernel: str
    groups: int
    constants: abi.EightsConstants | abi.NarrowConstants | abi.ShortConstants
    firsts: tuple[int, int, int]
    ranges: tuple[BufferRange, ...]


def eights(product: Product, out: Matrix) -> Eights | None:
    """Return the kernel that stores products in one dispatch, whose operands fit one binding each; None for none."""
    a, b, m, n, k = product.a, product.b, product.m, product.n, product.k
    arrays = (a.array, b.array, out.array)
    if any(array.dtype != dtypes.float32 for array in arrays) or not has_wide(product.device.info) or m <= 8:
        return None
    across, few = product.transpose_a, n <= _MOST_COLUMNS and n % 8 != 0
    shapes = ((k, m) if across else (m, k), (n, k) if product.transpose_b else (k, n), (m, n))
    places = [x.block(0, 0, *shape, product.batch) for x, shape in zip((a, b, out), shapes, strict=True)]
    ranges, firsts = zip(*places, strict=True)
    form = "across" if across else "along"
    found: tuple[str, int, abi.EightsConstants | abi.NarrowConstants | abi.ShortConstants] | None = None
    rows = _eights(*firsts, a.batch, b.batch, out.batch)
    if product.transpose_b:
        if rows and not across and k <= _MOST_STEPS and _eights(n) and (a.row, b.row) == (k, k):
            found = "matmul_short", -(-m // 32) * -(-n // 64), abi.ShortConstants(0, k)
    elif few and b.row == out.row == n:
        beside = _fours(m, a.row, *firsts, a.batch, out.batch) if across else _eights(a.row, *firsts[:1], a.batch)
        if beside and _fours(m, firsts[2], out.batch) and _eights(k, firsts[1], b.batch):
            found = f"matmul_narrow_{form}", -(-m // 32), abi.NarrowConstants(0, n)
    elif rows and _eights(n, a.row, b.row, out.row, m if across else k) and _fours(k):
        wide = next((wide for wide in (2, 4) if n <= 8 * wide), 8)  # lanes beside each other, the others below
        each = 8 if m * wide <= 64 else 16  # rows of a lane
        found = (
            f"matmul_eights_{form}",
            -(-m * wide // (8 * each)) * -(-n // (8 * wide)),
            abi.EightsConstants(0, each, wide),
        )
    return None if found is None else Eights(*found, firsts, ranges)


def may_turn(a: Array, columns: int) -> bool:
    """Say whether such a kernel takes the transposes of whole matrices, for so many columns, rather than copies."""
    return _eights(columns, a.shape[-1], a.window(0, 1)[1]) and a.shape[-2] % 4 == 0


def may_add(made: Eights, first: int) -> bool:
    """Say whether a kernel adds a bias of float32 whose first element of a binding is given."""
    return made.kernel.startswith("matmul_narrow") or first % 8 == 0


def _eights(*steps: int) -> bool:
    return all(step % 8 == 0 for step in steps)
