"""One row by quantised weights, multiplied as whole numbers: where that is done, and how it is spread."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from vkpar.abi import matmul as abi
from vkpar.ops.call.work import has_warps
from vkpar.ops.tiles import occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vkpar.device import Device
    from vkpar.ops.quantized.kinds import Kind

_SHARED: Final = 32 << 10  # bytes of shared memory that do
_SENDING: Final = 256  # of these, for what sends a result
_INVOCATIONS: Final = 1024  # that a unit runs side by side
_OCTETS: Final = 1024  # of the row's elements that lie in shared memory at most

# What a work-group's time is made of, in products of one chunk by its turn of the row, as an NVIDIA H200 has it.
_STEP: Final = 0.4  # for all columns of a step together: reading the row's chunk
_OCTET: Final = 1.7  # making eight whole numbers
_WAIT: Final = 2.0  # of groups that are all that a unit runs, at their barriers


class DotSpread(NamedTuple):
    """How a product is spread.

    Attributes:
        span: invocations that stride over K together, a power of two up to 256.
        columns: that they make.
        turns: chunks of each that are loaded together.
        passes: how often that is done for what shared memory holds of the row.
        threads: of a work-group.
    """

    span: int
    columns: int
    turns: int
    passes: int
    threads: int

    def shape(self, m: int) -> abi.QuantizedShape:
        """Return the constants that say what a work-group makes of ``m`` rows."""
        return abi.QuantizedShape(m, self.span, self.columns, self.turns)

    def each(self, kind: Kind) -> int:
        """Return how many fours of the row's elements an invocation makes whole numbers of at once, 2 or 4."""
        octets = self.span * self.turns * self.passes * kind.chunk // 8
        return 2 if octets <= self.threads else 4

    @property
    def width(self) -> int:
        """Columns of a work-group, a multiple of 4."""
        return self.threads // self.span * self.columns


def usable(device: Device) -> bool:
    """Tell whether a device has the kernels, and is known to be fast with them: GPUs of one vendor were measured."""
    limits = device.limits
    fits = limits.max_workgroup_invocations >= _INVOCATIONS and limits.max_shared_memory >= _SHARED
    features = device.info.features
    fast = features.integer_dot and features.integer_dot_fast and has_warps(device.info, "arithmetic", "quad")
    return fits and fast


def _held_nbytes(kind: Kind) -> int:
    """Return the bytes of shared memory that a chunk of the row takes, an odd number of 16."""
    return (3 * kind.chunk // 16 + 1 | 1) * 16


def spreads(device: Device, kind: Kind, k: int, together: int = 1, *, folded: bool = False) -> Iterator[DotSpread]:
    """Yield how products of (1, k) can be spread, where ``together`` columns make one of the result.

    Sums lie in shared memory, too: those of a norm's squares where that is ``folded`` into the product.
    """
    chunks, shared = k // kind.chunk, device.limits.max_shared_memory
    for threads, span, columns in itertools.product((512, 1024), (32, 64, 128, 256), (4, 2, 1)):
        fits = span <= chunks or span == 32  # else some would find no chunk at all
        sums = 8 * threads if folded else 4 * threads + _SENDING
        room = min(_OCTETS * 8 // kind.chunk, (shared - sums) // _held_nbytes(kind))
        whole = columns >= together and threads // span * columns % (4 * together) == 0
        if fits and whole and room >= span:
            yield DotSpread(span, columns, 1, min(-(-chunks // span), room // span), threads)


def spread(device: Device, kind: Kind, n: int, k: int, together: int = 1, *, folded: bool = False) -> DotSpread:
    """Return how a product of (1, k) by (n, k) is spread: in the way that promises to take the least time."""
    units = occupancy.units_of(device.info)

    def cost(how: DotSpread) -> float:
        together = _INVOCATIONS // how.threads
        turns = -(-n // (how.width * units * together))
        steps = -(-k // (kind.chunk * how.span))
        row = k / 8 / how.threads * _OCTET
        return turns * (steps * (how.columns + _STEP) + row + (_WAIT if together == 1 else 0.0))

    return min(spreads(device, kind, k, together, folded=folded), key=cost)
