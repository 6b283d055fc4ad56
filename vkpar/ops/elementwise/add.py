"""Elementwise addition."""

from __future__ import annotations

from typing import Any, Final

from vkpar import dtypes
from vkpar.abi import elementwise as abi
from vkpar.abi.words import pack
from vkpar.arrays.array import Array
from vkpar.dtypes import DType
from vkpar.errors import UnsupportedError
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import FLOATS, INTEGERS, OTHERS, SHORT, advice, check_arrays, check_out, check_overlap
from vkpar.ops.call.dispatch import run_pair
from vkpar.ops.call.windows import GROUP, spans, window, writable_in_place
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.shipped import SHIPPED

_LARGE: Final = 1 << 22  # elements from which all GPUs have invocations to spare


def add(a: Any, b: Any, *, out: Array | None = None) -> Array:
    """Return ``a + b``, computed in float32 and rounded once, or in wrapping 32-bit integers.

    Args:
        a: any shape; float32, float16, bfloat16, int32 or uint32; or a number.
        b: a shape that NumPy broadcasts with ``a``'s. Floats mix, as ``np.result_type`` says; integers are both of one
            type, or converted where they meet floats. One of both may be a number, which takes the other's type.
        out: where the result goes, of its shape and type; may be ``a`` or ``b`` itself (in place).

    Raises:
        InvalidUsageError: no array, a closed one, one of another device; shapes that do not fit; a wrong
            ``out``, or one that shares memory with an operand without being that operand.
        UnsupportedError: a type that devices do not compute, such as float64.

    Examples:
        >>> vkpar.add(device.array([3.0, 5.0]), 1).tolist()
        [4.0, 6.0]
    """
    done = run_pair("add", a, b, out, in_place=True)
    if done is not None:
        return done
    if not _is_plain(a, b, out):
        return _general(a, b, out)
    again = repeat("add", (a, b), (out,), in_place=True)
    if again is not None:
        return again[0]
    check_arrays("add", out, a=a, b=b)
    dtype = _result_dtype(a.dtype, b.dtype)
    if out is not None:
        check_out("add", out, a.shape, dtype)
        check_overlap("add", out, a, b, in_place=True)
    made = a.device.empty(a.shape, dtype) if out is None else out
    if a.size == 0:
        return made
    key = key_of("add", (a, b), (out,))
    call = Call("add", key, (a, b), (made,))
    target = call.results[0] if writable_in_place(made) else call.temporary(a.shape, dtype)
    first, second = call.operands
    _launch(call, first, second, target)
    landing.land(call, target, call.results[0])
    call.keep(key)
    return made


def _general(a: Any, b: Any, out: Array | None) -> Array:
    """Add by the kernel of other elementwise operations, whose plan serves later calls of this one, too."""
    made = SHIPPED["add"](a, b, out=out)
    if isinstance(a, Array) and isinstance(b, Array):
        forms = key_of("add", (a, b), (out,))
        plan = a.device.plans.known.get((SHIPPED["add"].key, *forms[1:]))
        if plan is not None:
            a.device.plans.keep(forms, plan)
    return made


def _is_plain(a: Any, b: Any, out: Array | None) -> bool:
    """Say whether the kernel of this module serves: arrays in C order of one shape, or ``b`` a bias along its rows."""
    for array in (a, b) if out is None else (a, b, out):
        if type(array) is not Array or array.steps is not None:
            return False
    if (
        OTHERS & {a.dtype.name, b.dtype.name}
        or "float64" in (a.dtype.name, b.dtype.name)
        or (a.dtype != b.dtype and not (a.dtype.is_float and b.dtype.is_float))
    ):
        return False
    words = a.dtype == b.dtype and a.dtype.itemsize == 4
    if words and cpu.has_few_tests(a.device, a.size, flat=a.shape == b.shape):
        return False  # of the other kernels, one suits such drivers
    return bool(b.shape == a.shape or (a.ndim and b.shape == a.shape[-1:]))


def _result_dtype(a: DType, b: DType) -> DType:
    if a.name not in SHORT or b.name not in SHORT or ((a.name in INTEGERS or b.name in INTEGERS) and a != b):
        both = a.name in SHORT and b.name in SHORT
        raise UnsupportedError(
            f"add computes {', '.join(FLOATS)}, mixed or not, and {' or '.join(INTEGERS)}, not {a} with {b}"
            + ("; cast one of them first" if both else advice(a, b) if "float64" in (a.name, b.name) else "")
        )
    return dtypes.result_type(a, b)


def _launch(call: Call, a: Array, b: Array, out: Array) -> None:
    """Add arrays of a call in as many dispatches as it takes."""
    bias = b.size if b.size != a.size else 0
    pairs = out.dtype.itemsize == 2
    if not bias or b.reach() == bias:
        operands = ((a, 0), (out, 0)) if bias else ((a, 0), (b, 0), (out, 0))
        for start, count in spans(a.size, *operands, pairs=pairs):
            _dispatch(call, a, b, out, start, start, count, bias)
        return
    if pairs and bias % 2:  # so that every repetition begins at a pair
        b = _twice(call, b)
    for row in range(0, a.size, b.size):
        for start, count in spans(min(b.size, a.size - row), (a, row), (b, 0), (out, row), pairs=pairs):
            _dispatch(call, a, b, out, row + start, start, count, 0)


def _twice(call: Call, array: Array) -> Array:
    made = call.temporary((2, array.size), array.dtype)
    for row in made:
        call.copy(array, call.view(made, row))
    return call.view(made, made.reshape(-1))


def _dispatch(call: Call, a: Array, b: Array, out: Array, start: int, b_start: int, count: int, bias: int) -> None:
    """Add ``count`` elements; ``bias`` is the length of b where it repeats, else 0."""
    range_a, a_first = window(a, start, count)
    range_b, b_first = b.window() if bias else window(b, b_start, count)
    range_o, o_first = out.window(start, count)
    phase = b_start % bias if bias else 0
    blocks = _blocks(out, count)
    constants = abi.AddConstants(
        a_wide=a_first % 4 == 0,
        b_wide=b_first % 4 == 0 and bias % 4 == 0 and phase % 4 == 0,
        o_wide=o_first % 4 == 0,
        bias=bias != 0,
        whole=count % 4 == 0 and cpu.leaves_out_tests(a.device, large=count >= _LARGE),
        blocks=blocks,
    )
    push = pack(abi.Add(count, a_first, b_first, o_first, max(bias, 1), phase))
    kernel = f"add_{SHORT[a.dtype.name]}_{SHORT[b.dtype.name]}"
    groups = -(-count // (GROUP * blocks))
    call.dispatch(kernel, (a, b, out), (range_a, range_b, range_o), push, groups, constants)


def _blocks(out: Array, count: int) -> int:
    """Return how many blocks of four elements an invocation adds."""
    return cpu.blocks_of_halves(out.device, large=out.dtype.itemsize == 2 and count >= _LARGE)
