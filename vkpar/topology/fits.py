"""What a rig is good for: shares of a model by speed and by memory, and how models of usual sizes would be split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkpar import Communicator
from vkpar.errors import UnsupportedError
from vkpar.parallel import ModelSpec, plan
from vkpar.parallel.cut.split import shares

# Llama 3.1 8B and 70B, Qwen2.5 32B: layers, width, feed-forward width, heads, heads of keys, their width, vocabulary.
SHAPES: Final = {
    "8B": (32, 4096, 14336, 32, 8, 128, 128_256),
    "32B": (64, 5120, 27648, 40, 8, 128, 152_064),
    "70B": (80, 8192, 28672, 64, 8, 128, 128_256),
}
_RATIOS: Final = ("speed", "memory")


@dataclass(frozen=True)
class Fit:
    """How a model would lie on the rig.

    Attributes:
        model: its size; ``weights`` what they are stored in.
        mode: that ``auto`` takes; empty where none is possible.
        fits: the devices' memory has room for it with a context of 4,096 tokens.
        ms: of one token, estimated.
        need_bytes: of all devices together.
        reason: for the mode, or why there is none.
    """

    model: str
    weights: str
    mode: str
    fits: bool
    ms: float | None
    need_bytes: int
    reason: str

    @property
    def shown(self) -> str:
        """The reason; where no mode is possible, without how much room each one lacks."""
        if self.mode:
            return self.reason
        clauses = self.reason.removeprefix("no mode is possible: ").split("; ")
        others = [clause for clause in clauses if "would need" not in clause]
        return "; ".join(["no room", *others] if len(others) < len(clauses) else others)


def suggested(comm: Communicator) -> dict[str, list[float]]:
    """Return the share of each rank, by name of ratios."""
    found = {name: shares(comm.devices, name) for name in _RATIOS}
    return {name: [float(part / sum(parts)) for part in parts] for name, parts in found.items()}


def fit(comm: Communicator, model: str, weights: str) -> Fit:
    """Plan one of the :data:`SHAPES`: nothing is loaded, but rates are measured the first time."""
    layers, width, hidden, heads, kv_heads, head_dim, vocabulary = SHAPES[model]
    spec = ModelSpec(layers, width, hidden, heads, kv_heads, head_dim, vocabulary, weights)
    try:
        made = plan(spec, comm)
    except UnsupportedError as error:
        return Fit(model, weights, "", False, None, 0, str(error))
    room = all(rank.fits for rank in made.memory)
    reason = made.reasons[0] if made.reasons else ""
    return Fit(model, weights, made.mode, room, 1e3 * made.seconds if made.seconds else None, sum(made.nbytes), reason)
