"""Products of float32 on CPU drivers whose subgroups are the eight lanes of a vector: they are made for lavapipe.

Its time is that of single reads, each with tests of its own, so that the kernels read pairs of words, share what they
read by broadcasts, and have no code for what is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar import dtypes

if TYPE_CHECKING:
    from vkpar.ops.product import Matrix, Product
    from vkpar.vulkan.physical import DeviceInfo

_WIDE: Final = "matmul_wide"
_LANES: Final = "matvec_lanes"
_STEPS: Final = "matvec_steps"
_FEW_ROWS: Final = 4  # that the two above take; kernels for more would mostly make rows that there are not
_STEP: Final = 16  # steps of K, without a loop
_ENOUGH: Final = 1 << 16  # elements of a matrix, from which on it pays to add up parts
_THREADS: Final = 128  # of a group of the kernel without loops, where there are columns for so many
_LANE_COLUMNS: Final = 4


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
        return f"{_STEPS}_rows{few}", -(-n // (_LANE_COLUMNS * threads)), (threads,)
    if product.transpose_b:
        return f"{_LANES}_rows{few}", -(-n // 8), ()
    rows = 8 if m <= 8 else 16
    return f"{_WIDE}_rows{rows}", -(-m // rows) * -(-n // 64), ()


def _fours(*steps: int) -> bool:
    return all(step % 4 == 0 for step in steps)


def _suits(product: Product) -> bool:
    plain = all(matrix.array.dtype == dtypes.float32 for matrix in (product.a, product.b))
    return plain and not product.transpose_a and has_wide(product.device.info)
