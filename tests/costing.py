"""Made-up costs of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from vkpar.comm.plan.shares import Costs


def links(speeds: Sequence[float], wire: str = "f16") -> tuple[Costs, ...]:
    """Return the costs of ranks with links of so many bytes per second each way, and nothing else to wait for."""
    others = max(1, len(speeds) - 1)
    return tuple(Costs(wire, **dict.fromkeys(_SINGLE, 1 / speed), meet=others / speed) for speed in speeds)


def processor(copies: float, sums: float, wire: str = "f32") -> Costs:
    """Return the costs of a rank that copies and sums so many bytes per second."""
    single = dict.fromkeys(_SINGLE, 1 / copies) | dict.fromkeys(("reduce", "own"), 1 / sums)
    return Costs(wire, **single, meet=2 / sums)


_SINGLE = ("publish", "reduce", "own", "forward", "gather", "exchange")
