"""What follows a matrix product, element by element: bias, activation, residual, rounding to the result's type.

And what kernels for few rows fold into it besides: a norm of these rows before, a gate after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import matmul as abi
from vkpar.abi.words import pack
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.checks import FLOATS, check_float
from vkpar.ops.call.windows import GROUP, spans, window
from vkpar.ops.elementwise import expressions

if TYPE_CHECKING:
    from vkpar.arrays.array import Array
    from vkpar.ops.call.call import Call
    from vkpar.vulkan.memory.buffer import BufferRange

ACTIVATIONS: Final = {name: code for code, name in enumerate(expressions.ACTIVATIONS, 1)}
"""Their codes, which tools/compile_shaders.py writes into shaders/common/activations.glsl."""


@dataclass(frozen=True)
class Epilogue:
    """``activation(product + bias) + residual``.

    Attributes:
        bias: one element per column, or a single one; None for none.
        activation: a code of :data:`ACTIVATIONS`, 0 for none.
        residual: of the result's shape; None for none.
    """

    bias: Array | None = None
    activation: int = 0
    residual: Array | None = None

    @property
    def empty(self) -> bool:
        """True where nothing follows."""
        return self.bias is None and not self.activation and self.residual is None

    def constants(self, *, residual_wide: bool) -> abi.Follows:
        """Return the specialization constants of the kernels that do it.

        Args:
            residual_wide: rows of the residual, if there is one, begin at multiples of four elements.
        """
        kinds = (None if array is None else FLOATS[array.dtype.name] for array in (self.bias, self.residual))
        bias, residual = ((kind is not None, kind or 0) for kind in kinds)
        return abi.Follows(self.activation, *bias, *residual, residual_wide)


@dataclass(frozen=True)
class Fold:
    """What shaders/common/folded.glsl does.

    Attributes:
        norm: what rows of the first operand are multiplied by once they were divided by their root mean square; None
            for rows as they are.
        eps: added to the mean of the squares.
        gated: of the columns, the first half are gates, and the second half what these let through.
    """

    norm: Array | None = None
    eps: float = 0.0
    gated: bool = False

    @property
    def empty(self) -> bool:
        """True where it does nothing."""
        return self.norm is None and not self.gated

    def constants(self, *, wide: bool) -> abi.FoldTail:
        """Return the specialization constants; ``wide`` where the norm begins at a multiple of four elements."""
        kind = 0 if self.norm is None else FLOATS[self.norm.dtype.name]
        return abi.FoldTail(self.norm is not None, kind, wide, self.gated)

    def window(self, instead: BufferRange) -> tuple[BufferRange, int, bool]:
        """Return what is bound of the norm and its first element's number, and whether that is a multiple of four.

        Args:
            instead: is bound where there is none.
        """
        if self.norm is None:
            return instead, 0, False
        bound, first = window(self.norm, 0, self.norm.size)
        return bound, first, first % 4 == 0


def check_epilogue(
    operation: str, shape: tuple[int, ...], bias: Array | None, activation: str | None, residual: Array | None
) -> int:
    """Check the epilogue that a call asks for, and return the activation's code, 0 for none.

    Args:
        operation: its name.
        shape: of the result.
        bias: an array, None for none.
        activation: as the call was given it.
        residual: an array, None for none.

    Raises:
        InvalidUsageError: an unknown activation, or shapes that do not fit.
        UnsupportedError: a type that devices do not compute.
    """
    if activation is not None and (not isinstance(activation, str) or activation not in ACTIVATIONS):
        raise InvalidUsageError(f"{operation}: activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if bias is not None and bias.shape != shape[-1:]:
        raise InvalidUsageError(
            f"{operation}: bias has shape {bias.shape}; for a result of {shape} it has {shape[-1:]}"
        )
    if residual is not None and residual.shape != shape:
        raise InvalidUsageError(f"{operation}: residual has shape {residual.shape}, the result is {shape}")
    for array in (bias, residual):
        if array is not None:
            check_float(operation, array.dtype)
    return 0 if activation is None else ACTIVATIONS[activation]


def finish(sums: Array, parts: int, out: Array, epilogue: Epilogue, call: Call) -> None:
    """Store what follows the sum of some parts.

    Args:
        sums: float32: the parts one after the other, each of as many elements as ``out``; one part may be ``out``. Of
            more than one, all lie in one binding.
        parts: how many, from 0 up.
        out: where the result goes; halves begin on a 32-bit word, or are copied there.
        epilogue: what follows.
        call: of which it is a part.
    """
    total, residual = out.size, epilogue.residual
    operands = [(out, 0)]
    operands += [(sums, 0)] if parts == 1 else []
    operands += [] if residual is None else [(residual, 0)]
    for start, count in spans(total, *operands, pairs=out.dtype.itemsize == 2):
        _finish(sums, parts, out, epilogue, call, start, count)


def _finish(sums: Array, parts: int, out: Array, epilogue: Epilogue, call: Call, start: int, count: int) -> None:
    """Store elements ``start`` to ``start + count``."""
    bias, residual = epilogue.bias, epilogue.residual
    range_s, s_first = sums.window() if parts > 1 else window(sums, start, count)
    range_b, b_first = (range_s, 0) if bias is None else window(bias, 0, bias.size)
    range_r, r_first = (range_s, 0) if residual is None else window(residual, start, count)
    range_o, o_first = out.window(start, count)
    at = s_first + (start if parts > 1 else 0)
    columns = 1 if bias is None else bias.size
    push = pack(abi.Finish(count, at, b_first, r_first, o_first, parts, out.size, columns, start % columns))
    wide = at % 4 == 0 and (parts < 2 or out.size % 4 == 0)
    own = abi.FinishConstants(FLOATS[out.dtype.name], o_first % 4 == 0, wide)
    constants = (*own, *epilogue.constants(residual_wide=residual is not None and r_first % 4 == 0))
    call.dispatch(
        "matmul_finish",
        (sums, sums if bias is None else bias, sums if residual is None else residual, out),
        (range_s, range_b, range_r, range_o),
        push,
        -(-count // GROUP),
        constants,
    )
