"""Matrix products with a norm of the rows before them, or a gate after them, by one kernel for few rows on GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.ops.call.call import Call
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.call.makes import make_of
from vkpar.ops.call.windows import window
from vkpar.ops.call.windows import writable_in_place as writable
from vkpar.ops.call.work import MAX_WORK, WORK_PER_NS
from vkpar.ops.matmul import dense, few
from vkpar.ops.matmul.request import Request, rows_of
from vkpar.ops.quantized.weights import Quantized
from vkpar.ops.tiles import matvec, occupancy

if TYPE_CHECKING:
    from vkpar.device import Device


def folds(device: Device, rows: int) -> bool:
    """Say whether a device's kernels take the norm of so many rows into a product by a transposed matrix."""
    return 0 < rows <= matvec.MOST_ROWS and dense.kernel_for(device, rows) == "matvec"


def fits(request: Request) -> bool:
    """Say whether one kernel makes the product, and the norm or the gate."""
    a, b, out, fold, device = request.a, request.b, request.out, request.fold, request.device
    if fold.empty or request.transpose_a or not request.transpose_b or not a.size:
        return False
    if len(b.shape) != 2 or (fold.gated and request.follows.bias is not None):
        return False
    m, k, columns = rows_of(a), a.shape[-1], b.shape[-2]
    bound = [a, out, *request.extras]
    if m * k * columns > MAX_WORK or not all(array.is_contiguous and array.reach() >= array.size for array in bound):
        return False
    if out.dtype.itemsize == 2 and (out.shape[-1] % 2 or not writable(out)):
        return False
    if fold.norm is None and _on_cores(request):
        return False  # what a gate of its own takes is less than what they save
    if isinstance(b, Quantized):
        one = len(b.pieces) == 1 and b.pieces[0].rows == columns
        if few.by_lanes(device):
            return False  # whose kernel takes neither
        if fold.norm is not None and m > make_of(device.info).rows:
            return False  # what the norm takes beside the sums of so many rows is in no register
        return one and folds(device, m) and m <= few.rows_at_once(device)
    if not folds(device, m) or not b.is_contiguous or b.reach() < b.size:
        return False
    groups, _, _ = matvec.choose_folded(device.info, m, columns, gated=fold.gated)
    nbytes = columns * k * b.dtype.itemsize // groups
    units = occupancy.units_of(device.info)
    return occupancy.reading(groups, nbytes, m, columns, k, 1, units, device.limits.max_workgroup_count[2]).parts == 1


def _on_cores(request: Request) -> bool:
    """Say whether matrix cores make the product, which is faster."""
    return few.on_cores(request) if isinstance(request.b, Quantized) else dense.on_cores(request)


def record(call: Call, request: Request) -> None:
    """Dispatch it."""
    if isinstance(request.b, Quantized):
        (piece,) = request.b.pieces
        few.dispatch(call, request, request.b.kind, piece)
    else:
        _dispatch(call, request)


def _dispatch(call: Call, request: Request) -> None:
    """Multiply by a matrix of floats."""
    a, b, out, follows, fold = request.a, request.b, request.out, request.follows, request.fold
    assert not isinstance(b, Quantized), "these have a kernel of their own"
    device, n, k = call.device, out.shape[-1], a.shape[-1]
    m, columns = a.size // k, b.shape[0]
    (range_a, a_first), (range_b, b_first), (range_o, o_first) = (array.window() for array in (a, b, out))
    bias, residual = follows.bias, follows.residual
    range_x, x_first = (range_a, 0) if bias is None else window(bias, 0, n)
    range_r, r_first = (range_a, 0) if residual is None else residual.window()
    range_n, n_first, norm_wide = fold.window(range_a)
    groups, kernel, span = matvec.choose_folded(device.info, m, columns, gated=fold.gated)
    steps = math.gcd(a_first, k), math.gcd(b_first, k), math.gcd(o_first, n)
    a_type, b_type, o_type = (FLOATS[array.dtype.name] for array in (a, b, out))
    operands = abi.Operands(a_type, b_type, o_type, True, *(step % 4 == 0 for step in steps))
    shape = abi.RowsShape(m, span, *(step % 8 == 0 for step in steps[:2]))
    after = follows.constants(residual_wide=not math.gcd(r_first, n) % 4)
    constants = (*operands, *shape, *abi.Turned(), *after, *abi.PassesTail(), *fold.constants(wide=norm_wide))
    product = abi.Product(m, n, k, a_first, b_first, o_first, k, k, n)
    forms = abi.Forms(k_part=k, bias_first=x_first, residual_first=r_first)
    arrays = [a if array is None else array for array in (bias, residual, fold.norm)]
    call.dispatch(
        kernel,
        [a, b, out, *arrays],
        [range_a, range_b, range_o, range_x, range_r, range_n],
        pack(product, forms, abi.Norm(n_first, float(fold.eps))),
        groups,
        constants,
        m * columns * k // WORK_PER_NS,
    )
