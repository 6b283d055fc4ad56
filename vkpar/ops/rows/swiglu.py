"""The gate of a feed-forward block."""

from __future__ import annotations

from vkpar import dtypes
from vkpar.abi import rows as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, SHORT, check_arrays, check_float, check_out, check_overlap
from vkpar.ops.call.windows import GROUP, spans, window, writable_in_place


def swiglu(gate: Array, up: Array, *, out: Array | None = None) -> Array:
    """Return ``gate / (1 + exp(-gate)) * up``, computed in float32 and rounded once.

    NaN stays; a gate of -inf gives NaN. Parts of one array, such as ``h[:, :n]`` and ``h[:, n:]``, are taken where they
    lie.

    Args:
        gate: any shape; float32, float16 or bfloat16.
        up: ``gate``'s shape, any of these types.
        out: where the result goes, of their shape and the type that ``vkpar.add`` gives; may be either of them itself.

    Raises:
        InvalidUsageError: not an array, a closed one, one of another device; shapes that differ; a wrong ``out``, or
            one that shares memory with an operand without being that operand.
        UnsupportedError: a type that devices do not compute.

    Examples:
        >>> vkpar.swiglu(device.zeros((1, 2)), device.ones((1, 2))).tolist()
        [[0.0, 0.0]]
    """
    done = repeat("swiglu", (gate, up), (out,), in_place=True)
    if done is not None:
        return done[0]
    check_arrays("swiglu", out, gate=gate, up=up)
    check_float("swiglu", gate.dtype, up.dtype)
    if gate.shape != up.shape:
        raise InvalidUsageError(f"swiglu: gate and up have one shape, not {gate.shape} and {up.shape}")
    dtype = dtypes.result_type(gate.dtype, up.dtype)
    if out is not None:
        check_out("swiglu", out, gate.shape, dtype)
        check_overlap("swiglu", out, gate, up, in_place=True)
    key = key_of("swiglu", (gate, up), (out,))
    made = gate.device.empty(gate.shape, dtype) if out is None else out
    if not made.size:
        return made
    call = Call("swiglu", key, (gate, up), (made,))
    launch(call, call.operands[0], call.operands[1], call.results[0])
    call.keep()
    return made


def launch(call: Call, gate: Array, up: Array, out: Array) -> None:
    """Compute on arrays of a call, checked and with elements; ``out`` may be of another float type."""
    dtype = dtypes.result_type(gate.dtype, up.dtype)
    direct = out.dtype == dtype and out.is_contiguous and writable_in_place(out)
    target = out if direct else call.temporary(out.shape, dtype)
    if not _launch_rows(call, gate, up, target):
        _launch_flat(call, gate, up, target)
    landing.land(call, target, out)


def _launch_rows(call: Call, gate: Array, up: Array, out: Array) -> bool:
    """Compute row by row where operands are rows that lie apart; False, and nothing done, where they are not."""
    step, other = _row_step(gate), _row_step(up)
    length = out.shape[-1] if out.ndim else 1
    apart = not (gate.is_contiguous and up.is_contiguous)
    if not apart or step is None or other is None or (out.dtype.itemsize == 2 and length % 2):
        return False
    flats = [call.flat(gate), call.flat(up)]
    if any(array.reach() < array.size for array in (*flats, out)):
        return False
    _dispatch(call, flats[0], flats[1], out, (0, out.size), (out.size // length, length, step, other))
    return True


def _row_step(array: Array) -> int | None:
    """Return the elements from one row to the next; None where rows are not alike, or elements not side by side."""
    if array.ndim != 2 or array.strides[0] <= 0 or array.strides[1] != 1:
        return None
    return array.strides[0]


def _launch_flat(call: Call, gate: Array, up: Array, out: Array) -> None:
    gate, up = landing.packed(call, gate), landing.packed(call, up)
    for start, count in spans(out.size, (gate, 0), (up, 0), (out, 0), pairs=out.dtype.itemsize == 2):
        _dispatch(call, gate, up, out, (start, count), (1, count, count, count))


def _dispatch(
    call: Call, gate: Array, up: Array, out: Array, part: tuple[int, int], shape: tuple[int, int, int, int]
) -> None:
    """Compute a part (start, count) of rows (how many, their length, steps of gate and up)."""
    start, count = part
    rows, length, *steps = shape
    sizes = [(rows - 1) * step + length for step in steps]
    range_a, a_first = window(gate, start, sizes[0])
    range_b, b_first = window(up, start, sizes[1])
    range_o, o_first = out.window(start, count)
    a_wide, b_wide, o_wide = (
        first % 4 == 0 and (rows == 1 or step % 4 == 0)
        for first, step in ((a_first, steps[0]), (b_first, steps[1]), (o_first, length))
    )
    types = FLOATS[up.dtype.name], FLOATS[out.dtype.name]
    constants = abi.SwigluConstants(a_wide, b_wide, o_wide, *types, length % 4 == 0)
    push = pack(abi.Swiglu(rows, length, steps[0], steps[1], a_first, b_first, o_first))
    groups = -(-rows * -(-length // 4) * 4 // GROUP)
    arrays, ranges = (gate, up, out), (range_a, range_b, range_o)
    call.dispatch(f"swiglu_{SHORT[gate.dtype.name]}", arrays, ranges, push, groups, constants)
