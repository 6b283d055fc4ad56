"""One dispatch of a product of floats: its kernel's words and constants, what it binds, its work-groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.ops.call.checks import FLOATS, SHORT
from vkpar.ops.call.windows import window
from vkpar.ops.call.work import WORK_PER_NS
from vkpar.ops.tiles import cores, cpu, matvec, occupancy, streamed, tiled
from vkpar.ops.tiles.cut import Tile
from vkpar.ops.tiles.epilogue import Epilogue
from vkpar.ops.tiles.product import Matrix, Product

if TYPE_CHECKING:
    from vkpar.dtypes import DType
    from vkpar.ops.call.call import Call
    from vkpar.vulkan.memory.buffer import BufferRange

SMALL: Final = "matmul_small"
MATVEC: Final = "matvec"
CORES: Final = "matmul_cores"

_Shape = abi.RowsShape | abi.TiledShape | abi.CoresShape | abi.StreamShape


@dataclass(frozen=True)
class How:
    """How a product is dispatched.

    Attributes:
        kernel: ``matmul_small``, ``matmul_tiled``, ``matvec``, or ``matmul_cores``.
        adds: the product is added to what the output holds.
        call: of which they are a part.
        follows: what the kernel applies before it stores.
        cut: for kernels of GPUs, the size of work-groups' tiles, and the parts of K.
        core: of ``matmul_cores``, the kernel of matrix cores.
        work_per_ns: multiply-adds, for estimates of what a dispatch takes.
    """

    kernel: str
    adds: bool
    call: Call
    follows: Epilogue
    cut: occupancy.Cut
    core: cores.Core | streamed.Stream | None = None
    work_per_ns: float = WORK_PER_NS


def dispatch_tile(how: How, product: Product, out: Matrix, tile: Tile) -> None:
    """Multiply one tile of some products."""
    a, b, number = product.a, product.b, product.batch
    (m0, m), (n0, n), (k0, k) = tile["m"], tile["n"], tile["k"]
    range_a, a_first = a.block(*((k0, m0, k, m) if product.transpose_a else (m0, k0, m, k)), number)
    range_b, b_first = b.block(*((n0, k0, n, k) if product.transpose_b else (k0, n0, k, n)), number)
    range_o, o_first = out.block(m0, n0, m, n, number * how.cut.parts)
    arrays, ranges = [a.array, b.array, out.array], [range_a, range_b, range_o]
    firsts = (a_first, b_first, o_first)
    in_parts = how.cut.parts > 1
    forms = product.transpose_a or number > 1 or in_parts or not how.follows.empty
    if how.core is not None:  # of its two kernels one has all forms but what follows
        forms = not how.follows.empty
    adds, batches = int(how.adds or k0 > 0), (a.batch, b.batch, out.batch)
    groups, kernel, shape = _grid(how, product, m, n, forms)
    spirv, layers = ("_forms" if forms else "").join(kernel), number * how.cut.parts
    constants: tuple[int, ...] = ()
    if how.kernel == SMALL and (in_parts or (not adds and cpu.takes(product, out, firsts, (m, n, k)))):
        spirv, groups, constants = cpu.kernel_of(product, how.cut.parts, m, n)
        lanes = abi.Lanes(m, n, k, *firsts, a.row, b.row, out.row, *batches)
        packed = pack(lanes, *([abi.LanesPart(number * out.batch)] if in_parts else []))
    elif how.kernel == SMALL:
        steps = (1, b.row) if product.transpose_b else (b.row, 1)
        along, across = (1, a.row) if product.transpose_a else (a.row, 1)
        small = abi.Small(m, n, k, *firsts, along, *steps, out.row, adds)
        packed = pack(small, *([abi.SmallForms(across, *batches)] if forms else []))
    else:
        multiples = _multiples(product, out, firsts, (m, n, k))
        more = _Extras.of(how.follows, product, out, tile)
        constants = _constants(how, product, [x.dtype for x in arrays], shape, multiples, more.wide)
        packed = pack(abi.Product(m, n, k, *firsts, a.row, b.row, out.row, adds))
        if forms:
            arrays, ranges = [*arrays, *more.arrays], [*ranges, *more.ranges(range_a)]
        if forms or how.core is not None:
            packed += pack(abi.Forms(*batches, how.cut.parts, how.cut.k_part, number * out.batch, *more.push))
        if isinstance(how.core, cores.Core):
            packed += pack(product.windows or abi.Windows())
    cost_ns = int(number * m * n * k / how.work_per_ns)
    how.call.dispatch(spirv, arrays, ranges, packed, groups, constants, cost_ns, layers=layers)


def _constants(
    how: How, product: Product, types: list[DType], shape: _Shape, multiples: list[int], residual_wide: bool
) -> tuple[int, ...]:
    """Return the specialization constants of a kernel of GPUs."""
    a_type, b_type, o_type = (FLOATS[dtype.name] for dtype in types)
    operands = abi.Operands(a_type, b_type, o_type, product.transpose_b, *(step % 4 == 0 for step in multiples))
    shape = shape._replace(a_eights=multiples[0] % 8 == 0, b_eights=multiples[1] % 8 == 0)
    follows = how.follows.constants(residual_wide=residual_wide)
    tail: tuple[int, ...] = ()
    if how.core is not None:
        tail = how.core.tail(product.device.info, eights=multiples[2] % 8 == 0)
        if product.windows:
            assert isinstance(tail, abi.CoresTail), "streams read no windows"
            tail = tail._replace(windows=1)
    elif how.kernel == tiled.KERNEL:
        tail = tiled.tail(how.cut.tile, tiled.sums_of(product.device.info))
    return (*operands, *shape, *abi.Turned(product.transpose_a), *follows, *tail)


class _Extras(NamedTuple):
    """What a fused epilogue binds besides the matrices; the first matrices stand for what it has not.

    Attributes:
        arrays: the bias and the residual.
        bound: what the kernel sees of them, None for nothing.
        push: their part of the push constants.
        wide: rows of the residual begin at multiples of four elements.
    """

    arrays: tuple[Array, Array]
    bound: tuple[BufferRange | None, BufferRange | None]
    push: tuple[int, int, int]
    wide: bool

    @classmethod
    def of(cls, follows: Epilogue, product: Product, out: Matrix, tile: Tile) -> _Extras:
        """Return those of one tile of some products."""
        (m0, m), (n0, n) = tile["m"], tile["n"]
        bias, residual, each = follows.bias, follows.residual, not product.swapped
        range_x, x_first = (None, 0) if bias is None else window(bias, n0 if each else 0, n if each else 1)
        range_r, r_first = None, 0
        if residual is not None:
            range_r, r_first = out._replace(array=residual).block(m0, n0, m, n, product.batch)
        arrays = (product.a.array if bias is None else bias, product.a.array if residual is None else residual)
        return cls(arrays, (range_x, range_r), (x_first, int(each), r_first), not (r_first % 4 or out.row % 4))

    def ranges(self, instead: BufferRange) -> tuple[BufferRange, BufferRange]:
        """Return what is bound, ``instead`` where there is nothing."""
        bias, residual = (instead if item is None else item for item in self.bound)
        return bias, residual


def _multiples(product: Product, out: Matrix, firsts: tuple[int, ...], sizes: tuple[int, int, int]) -> list[int]:
    """Return of each matrix a number of elements of which all its rows, and their ends, are at multiples."""
    m, n, k = sizes
    along = (m if product.transpose_a else k, k if product.transpose_b else n, n)
    matrices = (product.a, product.b, out)
    return [
        math.gcd(first, matrix.row, matrix.batch, length)
        for first, matrix, length in zip(firsts, matrices, along, strict=True)
    ]


def _grid(how: How, product: Product, m: int, n: int, forms: bool) -> tuple[int, tuple[str, str], _Shape]:
    """Return the number of work groups, the halves of the kernel's name, and how much a group makes, as constants."""
    if how.kernel == MATVEC:
        info, itemsize = product.device.info, product.b.array.dtype.itemsize
        turned = product.transpose_b
        groups, name, span = matvec.choose(info, m, n, itemsize, transpose_b=turned, forms=forms)
        return groups, (MATVEC, name.removeprefix(MATVEC)), abi.RowsShape(m, span)
    if how.kernel == SMALL:
        rows = next(rows for rows in (1, 4, 8) if m <= rows or rows == 8)
        types = "_".join(SHORT[matrix.array.dtype.name] for matrix in (product.a, product.b))
        return -(-m // (4 * rows)) * -(-n // 64), (SMALL, f"_{types}_rows{rows}"), abi.RowsShape(0, 0)
    high, broad = how.cut.tile
    if how.core is not None:
        variant = how.core.variant(product.a.array.dtype.name)
        return -(-m // high) * -(-n // broad), (how.core.kernel, variant), how.core.shape(product.device.info)
    shape = tiled.shape(how.cut.tile, tiled.sums_of(product.device.info))
    return -(-m // (64 * high)) * -(-n // (64 * broad)), (tiled.KERNEL, ""), shape
