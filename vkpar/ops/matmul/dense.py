"""Matrix products of floats as dispatches: which kernel, which tiles, which parts, and what follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.ops.call import landing
from vkpar.ops.call.windows import window, writable_in_place
from vkpar.ops.call.work import MAX_TURNS, MAX_WORK, WORK_PER_NS
from vkpar.ops.matmul.dispatches import CORES, MATVEC, SMALL, How, dispatch_tile
from vkpar.ops.matmul.request import Request, rows_of
from vkpar.ops.tiles import choice, cpu, matvec, occupancy, streamed, tiled
from vkpar.ops.tiles.cut import Operand, Tile, tiles
from vkpar.ops.tiles.epilogue import ACTIVATIONS, Epilogue, finish
from vkpar.ops.tiles.product import Matrix, Product

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.call.call import Call
    from vkpar.vulkan.memory.buffer import BufferRange

_SMALL_HALVES: Final = 4  # rows: for more, halves are converted once and not by each work-group that reads them


def kernel_for(device: Device, m: int) -> str:
    """Return which kernel multiplies ``m`` rows on a device."""
    if not cpu.weights_of(device.info).halves or not tiled.runs(device.info):
        return SMALL
    return MATVEC if m <= matvec.MOST_ROWS else tiled.KERNEL


class Sizes(NamedTuple):
    """What a product is of: rows, columns and steps of each of the matrices."""

    m: int
    n: int
    k: int


def sizes(request: Request) -> Sizes:
    """Return what a request is of."""
    k, m = request.a.shape[-2:] if request.transpose_a else request.a.shape[:-3:-1]
    return Sizes(m, request.out.shape[-1], k)


def turned(array: Array) -> Array:
    """Return the transposes of matrices, as a view."""
    axes = range(array.ndim)
    return array.transpose(*axes[:-2], array.ndim - 1, array.ndim - 2)


def as_stored(array: Array, transposed: bool) -> tuple[Array, bool]:
    """Return matrices as they lie in memory, where they are a view of their transposes; whether a kernel turns them."""
    if array.is_contiguous:
        return array, transposed
    stored = turned(array)
    return (stored, not transposed) if stored.is_contiguous else (array, transposed)


def stored(request: Request) -> tuple[tuple[Array, bool], tuple[Array, bool]]:
    """Return both operands of floats as they lie in memory, and whether a kernel transposes them."""
    assert isinstance(request.b, Array), "quantised weights are made in floats first"
    return as_stored(request.a, request.transpose_a), as_stored(request.b, request.transpose_b)


def record(call: Call, request: Request) -> None:
    """Dispatch the product of operands of floats, whose elements lie side by side as they are or transposed."""
    (a, transpose_a), (b, transpose_b) = stored(request)
    assert isinstance(request.b, Array), "it was looked at"
    a, b, out, epilogue = call.view(request.a, a), call.view(request.b, b), request.out, request.follows
    m, n, k = sizes(request)
    adds = epilogue.residual is out and out.dtype == dtypes.float32 and k > 0
    if adds and epilogue.bias is None and not epilogue.activation:
        epilogue = Epilogue()
    else:
        adds = False
    if not k:
        store_finished(out, 0, out, epilogue, call)
        return
    batch = out.size // (m * n)
    a_batch, b_batch = (math.prod(x.shape[-2:]) if x.ndim == 3 and x.shape[0] > 1 else 0 for x in (a, b))
    if not (b_batch or transpose_a):  # the rows of all the first matrices meet the same second one
        batch, m, a_batch = 1, batch * m, 0
    first, second = Matrix(a, m if transpose_a else k, a_batch), Matrix(b, k if transpose_b else n, b_batch)
    product = Product(first, second, transpose_a, transpose_b, batch, m, n, k)
    multiply(product.turned() if n == 1 else product, out, epilogue, adds=adds, call=call)


def multiply(product: Product, out: Array, epilogue: Epilogue, *, adds: bool, call: Call) -> None:
    """Store a product, and what follows it.

    Args:
        product: of contiguous operands.
        out: where it goes, contiguous: ``batch`` x ``m`` x ``n`` elements.
        epilogue: what follows.
        adds: the product is added to what ``out`` holds, which is float32; nothing follows then.
        call: of which they are a part.
    """
    kernel = kernel_for(product.device, product.m)
    if kernel == SMALL and (product.m > _SMALL_HALVES or product.transpose_a or product.batch > 1):
        product = _widened(product, call)
    cuts = list(_cuts(product, kernel, out, epilogue.residual))
    if kernel == SMALL and len(cuts) == 1 and not adds and _in_eights(product, out, epilogue, call):
        return
    core = _core(product, kernel, len(cuts), out)
    cut = _spread(product, kernel, len(cuts), out)
    if core is not None:
        kernel, cut = CORES, occupancy.Cut(core.core.tile, core.parts, core.k_part)
    rate = product.batch * product.work / core.ns if core is not None and core.ns else WORK_PER_NS
    if cut.parts > 1:
        epilogue = Epilogue(residual=out) if adds else epilogue
        sums = call.temporary((cut.parts * out.size,), dtypes.float32)
        how = How(kernel, False, call, Epilogue(), cut, core and core.core, rate)
        dispatch_tile(how, product, *_whole(product, sums))
        store_finished(sums, cut.parts, out, epilogue, call)
        call.spare(sums)
        return
    fused = kernel != SMALL and _fuses(product, out, [tile for _, _, tile in cuts])
    direct = fused or (out.dtype == dtypes.float32 and _may_hold_sums(out, epilogue))
    target = out
    if not direct:
        target = call.temporary((out.size,), dtypes.float32)
        cuts = list(_cuts(product, kernel, target, None))
    how = How(kernel, adds, call, epilogue if fused else Epilogue(), cut, core and core.core, rate)
    for part, place, tile in cuts:
        dispatch_tile(how, part, place, tile)
    if not fused and not epilogue.empty:
        store_finished(target, 1, out, epilogue, call)
    elif target is not out:
        landing.land(call, target, out)
    if target is not out:
        call.spare(target)


def _in_eights(product: Product, out: Array, epilogue: Epilogue, call: Call) -> bool:
    """Store products by a kernel of CPU drivers that moves whole eights; False, and nothing done, where none does."""
    made = cpu.eights(product, Matrix(out, product.n, product.m * product.n))
    if made is None:
        return False
    a, b, bias = product.a, product.b, epilogue.bias
    added: list[tuple[Array, BufferRange, int]] = []
    fused = epilogue.residual is None and epilogue.activation in (0, ACTIVATIONS["relu"])
    if fused and bias is not None:
        bound, first = window(bias, 0, bias.size)
        fused = bias.dtype == dtypes.float32 and bias.size == product.n and cpu.may_add(made, first)
        added = [(bias, bound, first)] if fused else []
    if not fused and not _may_hold_sums(out, epilogue):
        return False
    arrays = [a.array, b.array, out, *(array for array, _, _ in added)]
    ranges = [*made.ranges, *(bound for _, bound, _ in added)]
    kernel = f"{made.kernel}_{'biased' if added else 'plain'}"
    constants = made.constants._replace(relu=int(fused and bool(epilogue.activation)))
    m, n, k = product.m, product.n, product.k
    lanes = abi.Lanes(m, n, k, *made.firsts, a.row, b.row, n, a.batch, b.batch, m * n)
    push = pack(lanes, *(abi.LanesBias(first) for *_, first in added))
    cost_ns = product.batch * product.work // WORK_PER_NS
    call.dispatch(kernel, arrays, ranges, push, made.groups, constants, cost_ns, layers=product.batch)
    if not fused:
        store_finished(out, 1, out, epilogue, call)
    return True


def _widened(product: Product, call: Call) -> Product:
    """Return a product with operands in float32."""
    operands = [product.a, product.b]
    for number, matrix in enumerate(operands):
        if matrix.array.dtype != dtypes.float32:
            converted = call.temporary(matrix.array.shape, dtypes.float32)
            call.convert(matrix.array, converted)
            operands[number] = matrix._replace(array=converted)
    return replace(product, a=operands[0], b=operands[1])


def _cuts(product: Product, kernel: str, out: Array, residual: Array | None) -> Iterator[tuple[Product, Matrix, Tile]]:
    """Yield dispatches that are not too long, and of which each binds a part of every array.

    Each is some of the products, where these go, and a tile of them. The kernels of GPUs bind a residual, too.
    """
    whole = Matrix(out, product.n, product.m * product.n)
    matrices = [product.a, product.b, whole]
    if residual is not None and kernel != SMALL:
        matrices.append(whole._replace(array=residual))
    start = 0
    while start < product.batch:
        count = _fitting(product, kernel, matrices, start)
        part = product.part(start, count)
        places = [matrix._replace(start=start * matrix.batch) for matrix in matrices]
        if count > 1:
            yield part, *_whole(product, out, start)
        else:
            for tile in _tiles(part, kernel, places):
                yield part, places[2], tile
        start += count


def _whole(product: Product, out: Array, start: int = 0) -> tuple[Matrix, Tile]:
    """Return where whole products go, from number ``start`` on, and the tile that is all of one."""
    m, n = product.m, product.n
    return Matrix(out, n, m * n, start * m * n), whole_tile(product)


def whole_tile(product: Product) -> Tile:
    """Return the tile that is all of a product."""
    return {"m": (0, product.m), "n": (0, product.n), "k": (0, product.k)}


def _fitting(product: Product, kernel: str, matrices: list[Matrix], start: int) -> int:
    """Return how many products from one on a dispatch does; 1 where that one may have to be cut."""
    most = min(product.batch - start, product.device.limits.max_workgroup_count[2], MAX_WORK // product.work)
    if most <= 1 or (kernel == SMALL and product.k > MAX_TURNS):
        return 1
    m, n, k = product.m, product.n, product.k
    for matrix, size in zip(matrices, (m * k, k * n, m * n, m * n), strict=False):
        room = matrix.reach(start * matrix.batch) - size
        if room < 0:
            return 1
        most = min(most, 1 + room // matrix.batch) if matrix.batch else most
    return most


def _tiles(product: Product, kernel: str, matrices: list[Matrix]) -> Iterator[Tile]:
    """Yield the tiles of one product; its matrices are a, b and those of the result's shape."""
    m, n, k = product.m, product.n, product.k
    most = {"m": max(MAX_WORK // (n * k), 128), "n": n, "k": MAX_TURNS if kernel == SMALL else k}
    along = [("k", "m") if product.transpose_a else ("m", "k"), ("n", "k") if product.transpose_b else ("k", "n")]
    along += [("m", "n")] * (len(matrices) - 2)
    operands = [Operand(item.reach, item.row, *axes) for item, axes in zip(matrices, along, strict=True)]
    return tiles({"m": m, "n": n, "k": k}, most, operands)


def _core(product: Product, kernel: str, dispatches: int, out: Array) -> choice.Choice | None:
    """Return the kernel of matrix cores that makes a product; None where none does."""
    dtypes_of = {matrix.array.dtype.name for matrix in (product.a, product.b)}
    if kernel == SMALL or len(dtypes_of) > 1:
        return None
    most, sizes = _most_parts(product, dispatches, out), (product.m, product.n, product.k, product.batch)
    whole = dispatches == 1 and not product.transpose_a and _whole_units(product)
    return choice.choose(product.device, dtypes_of.pop(), *sizes, most, transpose_b=product.transpose_b, whole=whole)


def on_cores(request: Request) -> bool:
    """Say whether matrix cores make the product of contiguous rows by a transposed matrix."""
    a, b = request.a, request.b
    assert isinstance(b, Array), "quantised weights have kernels of their own"
    m, (n, k) = rows_of(a), b.shape
    product = Product(Matrix(a, k), Matrix(b, k), False, True, 1, m, n, k)
    return _core(product, kernel_for(a.device, m), 1, request.out) is not None


def _whole_units(product: Product) -> bool:
    """Tell whether rows of both operands are whole units of the kernel that streams one of them."""
    a, b, number = product.a, product.b, product.batch
    m, n, k = product.m, product.n, product.k
    along = n if not product.transpose_b else k
    firsts = a.block(0, 0, m, k, number)[1], b.block(0, 0, n * k // along, along, number)[1]
    units = (k, along, a.row, b.row, a.batch, b.batch, *firsts)
    return all(size % streamed.UNIT == 0 for size in units)


def _most_parts(product: Product, dispatches: int, out: Array) -> int:
    """Return the most parts of K: all their sums lie in one binding."""
    limits = product.device.limits
    most = min(limits.max_storage_buffer_range, limits.max_buffer) // (4 * out.size)
    return 1 if dispatches > 1 else min(most, limits.max_workgroup_count[2] // product.batch)


def _spread(product: Product, kernel: str, dispatches: int, out: Array) -> occupancy.Cut:
    """Return how a kernel of GPUs spreads a product over the device's units."""
    m, n, k, batch = product.m, product.n, product.k, product.batch
    if kernel == SMALL:
        parts = cpu.parts_of(product, _most_parts(product, dispatches, out))
        return occupancy.Cut((1, 1), parts, k // parts)
    device = product.device
    units, most = occupancy.units_of(device.info), _most_parts(product, dispatches, out)
    if kernel == tiled.KERNEL:
        return occupancy.tiled(m, n, k, batch, units, most, tiled.sums_of(device.info))
    itemsize = product.b.array.dtype.itemsize
    groups, name, _ = matvec.choose(device.info, m, n, itemsize, transpose_b=product.transpose_b, forms=False)
    large = name == matvec.LARGE
    return occupancy.reading(batch * groups, n * k * itemsize // groups, m, n, k, batch, units, most, large=large)


def _fuses(product: Product, out: Array, cut: list[Tile]) -> bool:
    """Say whether the kernels of GPUs can store the result itself: nothing is added up, no pair of halves is cut."""
    if any(tile["k"][0] for tile in cut):
        return False
    pairs = product.n % 2 == 0 and not any(tile["n"][0] % 2 for tile in cut)
    return out.dtype.itemsize == 4 or (pairs and writable_in_place(out))


def _may_hold_sums(out: Array, epilogue: Epilogue) -> bool:
    """Say whether the bare product may be stored where the result goes: nothing that follows reads what is there."""
    return all(array is None or array.storage is not out.storage for array in (epilogue.bias, epilogue.residual))


def store_finished(sums: Array, parts: int, out: Array, epilogue: Epilogue, call: Call) -> None:
    """Store what follows the sum of some parts, as ``epilogue.finish`` does, wherever ``out`` begins."""
    aligned = out if writable_in_place(out) else call.temporary(out.shape, out.dtype)
    finish(aligned if sums is out else sums, parts, aligned, epilogue, call)
    landing.land(call, aligned, out)
