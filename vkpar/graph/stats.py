"""What a graph is made of, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Counts(NamedTuple):
    """How many of each a graph has; see :class:`GraphStats`."""

    operations: int = 0
    collectives: int = 0
    barriers: int = 0
    stretches: int = 0
    fused: int = 0


@dataclass(frozen=True)
class GraphStats:
    """What a graph consists of.

    Attributes:
        operations: those of all devices, steps of collectives not counted.
        collectives: how many.
        barriers: between operations, one at the begin of each stretch included; those of collectives are not counted.
        stretches: submissions of all devices together; collectives cut a device's work into them.
        fused: steps of collectives that operations do together with their own work; see ``fuse`` of :func:`capture`.
        launches: so far.
        host_us: microseconds that a launch took the host, the median of the last 64; None before the first.

    Examples:
        >>> a = device.ones(3)
        >>> with vkpar.capture([device]) as graph:
        ...     b = vkpar.exp(vkpar.negative(a))
        >>> graph.stats().operations, graph.stats().collectives
        (2, 0)
        >>> graph.close()
    """

    operations: int
    collectives: int
    barriers: int
    stretches: int
    fused: int
    launches: int
    host_us: float | None
