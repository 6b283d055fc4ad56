"""Made-up costs of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.comm.plan.shares import Costs


def links(speeds: Sequence[float], wire: str = "f16") -> tuple[Costs, ...]:
    """Return the costs of ranks with links of so many bytes per second each way, and nothing else to wait for."""
    others = max(1, len(speeds) - 1)
    return tuple(Costs(wire, exchange=1 / speed, reduce=others / speed) for speed in speeds)


def processor(copies: float, sums: float, wire: str = "f32") -> Costs:
    """Return the costs of one of three ranks that copies and sums so many bytes per second."""
    return Costs(wire, exchange=1 / copies, reduce=2 / sums)
