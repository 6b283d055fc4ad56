"""What a matrix product is: matrices in arrays, and which of them are multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vkpar.abi import matmul as abi
    from vkpar.arrays.array import Array
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange


class Matrix(NamedTuple):
    """Matrices of equal shape in an array, each in C order.

    Attributes:
        array: holds them.
        row: elements of a row.
        batch: elements from one to the next; 0 where all products take the same one.
        start: the first one's first element.
        covers: elements from the first of a matrix to its last, where rows overlap; 0 where they do not.
    """

    array: Array
    row: int
    batch: int = 0
    start: int = 0
    covers: int = 0

    def reach(self, index: int) -> int:
        """Return how many elements from one on a binding of a kernel covers."""
        return self.array.reach(self.start + index)

    def block(self, row0: int, column0: int, rows: int, columns: int, number: int = 1) -> tuple[BufferRange, int]:
        """Return a bindable range over a block of ``number`` matrices, and where in that the first one's begins."""
        nelements = (number - 1) * self.batch + (self.covers or (rows - 1) * self.row + columns)
        return self.array.window(self.start + row0 * self.row + column0, nelements)


@dataclass(frozen=True)
class Product:
    """``batch`` products of (m, k) by (k, n), none of these 0.

    Attributes:
        a: the first matrices, (k, m) where transposed.
        b: the second ones, (n, k) where transposed.
        swapped: the operands are those of the transposed product, the call's second and first.
        windows: the rows of ``b`` are windows of images.
    """

    a: Matrix
    b: Matrix
    transpose_a: bool
    transpose_b: bool
    batch: int
    m: int
    n: int
    k: int
    swapped: bool = False
    windows: abi.Windows | None = None

    @property
    def device(self) -> Device:
        """The device of both operands."""
        return self.a.array.device

    @property
    def work(self) -> int:
        """Multiply-adds of one of the products."""
        return self.m * self.n * self.k

    def turned(self) -> Product:
        """Return the transposed product, for matrices of one column: a row that reads both operands along K."""
        return replace(
            self,
            a=self.b._replace(row=self.k),
            b=self.a,
            transpose_a=False,
            transpose_b=not self.transpose_a,
            m=self.n,
            n=self.m,
            swapped=True,
        )

    def part(self, start: int, count: int) -> Product:
        """Return ``count`` of the products, from number ``start`` on."""
        a, b = (matrix._replace(start=matrix.start + start * matrix.batch) for matrix in (self.a, self.b))
        return replace(self, a=a, b=b, batch=count)
