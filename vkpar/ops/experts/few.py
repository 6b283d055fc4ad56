"""Few rows: which experts each takes, and its products by their matrices; no weights of others are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import experts as of_experts
from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.ops.call import kept, landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.call.work import WORK_PER_NS
from vkpar.ops.experts.products import Stack
from vkpar.ops.quantized.kinds import KINDS
from vkpar.ops.reduce.scans import seen
from vkpar.ops.rows.normed import Normed
from vkpar.ops.tiles import matvec
from vkpar.ops.tiles.epilogue import Epilogue, Fold

if TYPE_CHECKING:
    from vkpar.device import Device

MOST_EACH: Final = 64
"""Experts of a row."""
_THREADS: Final = 256
_AHEAD: Final = 2  # chunks of an invocation on the way at once: with more, less of a matrix' work-groups fit a GPU
_CHUNK_NBYTES: Final = 16
_STAGED_NBYTES: Final = 24 << 10  # of shared memory, for what chunks are multiplied by


class Spread(NamedTuple):
    """How a product is spread.

    Attributes:
        span: invocations that make columns together: those of a subgroup.
        columns: that they make, 1 or 2.
        turns: chunks of each that are loaded together, 1 or 2.
    """

    span: int
    columns: int
    turns: int


def routes(x: Array | Normed, router: Array) -> bool:
    """Tell whether :func:`route` takes rows and the router's matrix."""
    experts, k = router.shape
    rows = x.x if isinstance(x, Normed) else x
    fitting = rows.ndim == 2 and rows.shape[1] == k and rows.dtype.name in FLOATS and rows.device is router.device
    if not fitting or not 0 < rows.shape[0] <= matvec.MOST_ROWS:
        return False
    return usable_on(router.device) and router.reach(0) >= experts * k


def usable_on(device: Device) -> bool:
    """Tell whether a device has the kernels, and is known to be fast with them."""
    return matvec.adds_up(device.info)


def fits(rows: int, each: int, *stacks: Stack) -> bool:
    """Tell whether the kernels take so many rows, ``each`` of which takes so many experts."""
    if not 0 < rows <= matvec.MOST_ROWS or each > MOST_EACH:
        return False
    return all(usable_on(stack.weights.device) and _whole(stack) for stack in stacks)


def _whole(stack: Stack) -> bool:
    """Tell whether rows of weights are whole chunks, and begin at one."""
    if stack.kind is not None:
        return True
    (weights,) = stack.arrays
    return not (weights.shape[1] % _chunk(stack) or weights.window()[1] % _chunk(stack))


def _chunk(stack: Stack) -> int:
    """Return the elements of 16 bytes of weights."""
    return KINDS[stack.kind].chunk if stack.kind is not None else _CHUNK_NBYTES // stack.arrays[0].dtype.itemsize


def route(x: Array | Normed, router: Array, each: int, *, normed: bool = True) -> Array:
    """Return which experts rows take, in one kernel that makes their logits.

    Args:
        x: (T, K), up to 8 rows of floats; a norm of them is made on the way.
        router: (experts, K), of floats, whose elements lie side by side.
        each: experts that a token takes.
        normed: their weights add up to 1; else they are shares of the softmax over all experts.

    Returns:
        What :func:`vkpar.ops.experts.routing.route` does.
    """
    plain, norm, eps = (x.x, x.weight, x.eps) if isinstance(x, Normed) else (x, None, 0.0)
    operands, options = (plain, router, norm), (each, normed, eps)
    done = repeat("router", operands, (None,), *options)
    if done is not None:
        return done[0]
    made = plain.device.empty((2, plain.shape[0], each), "uint32")
    key = key_of("router", operands, (None,), *options)
    call = Call("router", key, [array for array in operands if array is not None], (made,))
    _route(call, Fold(None if norm is None else call.operands[-1], eps), normed=normed)
    call.keep()
    return made


def gate(x: Array | Normed, stack: Stack, choice: Array) -> Array:
    """Return what goes into the last product of each expert that a row takes, times the weight of the expert.

    Args:
        x: (T, K), up to 8 rows of floats; a norm of them is made on the way.
        stack: of each expert the gates, and then what these let through.
        choice: of :func:`vkpar.ops.experts.routing.route`.

    Returns:
        (T, experts of a row times columns) float32; zeros where the device has not the expert.
    """
    plain, norm, eps = (x.x, x.weight, x.eps) if isinstance(x, Normed) else (x, None, 0.0)
    operands = (plain, *stack.arrays, choice, norm)
    options = (*stack.span, stack.kind, eps)
    done = repeat("gate", operands, (None,), *options)
    if done is not None:
        return done[0]
    _, rows, each = choice.shape
    columns = stack.rows // 2
    made = plain.device.empty((rows, each * columns), "float32")
    call = Call("gate", key_of("gate", operands, (None,), *options), [a for a in operands if a is not None], (made,))
    _dispatch(call, stack, Fold(None if norm is None else call.operands[-1], eps, gated=True), each)
    call.keep()
    return made


def add_up(x: Array, stack: Stack, choice: Array, residual: Array | None = None) -> Array:
    """Return the products of rows by all experts that they take, added up, with ``residual`` added.

    Args:
        x: (T, experts of a row times K) float32, as :func:`gate` gives it.
        stack: the matrices.
        choice: as there.
        residual: (T, columns), of floats.
    """
    operands = (x, *stack.arrays, choice, residual)
    options = (*stack.span, stack.kind)
    done = repeat("add_experts", operands, (None,), *options)
    if done is not None:
        return done[0]
    _, rows, each = choice.shape
    made = x.device.empty((rows, stack.rows), "float32")
    key = key_of("add_experts", operands, (None,), *options)
    call = Call("add_experts", key, [array for array in operands if array is not None], (made,))
    _dispatch(call, stack, None, each, None if residual is None else call.operands[-1])
    call.keep()
    return made


def spread(stack: Stack, k: int, columns: int) -> Spread:
    """Return how a product is spread, of which an output has ``k`` steps and a subgroup makes so many ``columns``."""
    span = stack.weights.device.info.features.subgroup_size
    each = -(-k // (_chunk(stack) * span))
    staged = 16 * span * (_chunk(stack) // 4 | 1)
    most = min(_AHEAD // columns, _STAGED_NBYTES // staged)
    return Spread(span, columns, -(-each // -(-each // most)))


def _dispatch(call: Call, stack: Stack, fold: Fold | None, each: int, residual: Array | None = None) -> None:
    count = len(stack.arrays)
    x, weights, choice, out = call.operands[0], call.operands[1 : 1 + count], call.operands[1 + count], call.results[0]
    x = landing.packed(call, x)
    rows, kind = choice.shape[1], None if stack.kind is None else KINDS[stack.kind]
    k, n = weights[0].shape[1] if kind is None else stack.weights.shape[1], out.shape[1] // (each if fold else 1)
    held = [x, weights[0], out, x if residual is None else landing.packed(call, residual), weights[-1], choice]
    bound = [seen(call, array) for array in held]
    (_, a_first), (_, b_first), (_, o_first), (_, r_first), (_, s_first), (_, c_first) = bound
    how = spread(stack, k * (1 if fold else each), 2 if fold else 1)
    begin = b_first if kind is None else b_first // 4
    a_row = x.shape[1]
    product = abi.Product(1, n, k, a_first, begin, o_first, a_row, stack.rows, n)
    forms = abi.Forms(a_row, 0, n, k_part=k, residual_first=0 if residual is None else r_first)
    scales = abi.Scales(0 if kind is None else s_first // kind.per_block)
    words: list[tuple[float, ...]] = [product, forms, scales, abi.Chosen(each, *stack.span, rows, c_first)]
    wide = a_first % 4 == 0 and a_row % 4 == 0 and k % 4 == 0, False, not (o_first % 4 or n % 4)
    a_type, o_type = FLOATS[x.dtype.name], FLOATS["float32"]
    operands: tuple[int, ...]
    if kind is None:
        operands = abi.Operands(a_type, FLOATS[weights[0].dtype.name], o_type, True, *wide)
    else:
        operands = abi.BlockOperands(a_type, kind.code, o_type, True, *wide)
    after = Epilogue(None, 0, residual).constants(residual_wide=not (r_first % 4 or n % 4))
    constants: tuple[int, ...] = (*operands, *abi.QuantizedShape(1, *how), *abi.Turned(), *after, *abi.PassesTail())
    arrays, ranges = [x, weights[0], out, x, held[3], weights[-1], choice], [item for item, _ in bound]
    ranges = [*ranges[:3], ranges[0], *ranges[3:]]
    name, width = "expert_few", _THREADS // how.span * how.columns
    if fold is not None:
        range_n, n_first, norm_wide = fold.window(ranges[0])
        arrays, ranges = [*arrays, x if fold.norm is None else fold.norm], [*ranges, range_n]
        words.append(abi.Norm(n_first, float(fold.eps)))
        constants += fold.constants(wide=norm_wide)
        name, width = "expert_few_folded", width // 2
    name = name if kind is None else f"{name}_quantized_{kind.module}"
    layers = rows * each if fold else rows
    cost = rows * each * stack.rows * k // WORK_PER_NS
    call.dispatch(name, arrays, ranges, pack(*words), -(-n // width), constants, cost, layers=layers)


def _route(call: Call, fold: Fold, *, normed: bool) -> None:
    router, choice = call.operands[1], call.results[0]
    x = landing.packed(call, call.operands[0])
    (experts, k), (_, rows, each) = router.shape, choice.shape
    logits, counters = call.temporary((rows, experts), dtypes.float32), call.table(kept.counters(call.device, rows))
    held = (x, router, logits, choice)
    ranges, (a_first, b_first, l_first, c_first) = zip(*(seen(call, array) for array in held), strict=True)
    range_n, n_first, norm_wide = fold.window(ranges[0])
    span, a_row = call.device.info.features.subgroup_size, x.shape[1]
    push = of_experts.Router(rows, experts, each, k, a_first, a_row, b_first, n_first, l_first, c_first, fold.eps)
    tail = fold.constants(wide=norm_wide)
    constants = of_experts.RouterConstants(
        normed,
        FLOATS[x.dtype.name],
        not (a_first % 4 or a_row % 4),
        FLOATS[router.dtype.name],
        not (b_first % 4 or k % 4),
        tail.normed,
        tail.norm_type,
        norm_wide,
        span,
    )
    arrays = (x, router, x if fold.norm is None else fold.norm, logits, counters, choice)
    bound = (*ranges[:2], range_n, ranges[2], counters.window()[0], ranges[3])
    call.dispatch("expert_router", arrays, bound, pack(push), rows * experts, constants)
