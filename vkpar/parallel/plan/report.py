"""What a plan is: how a model lies on a rig, what that takes of each device, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

from vkpar import text
from vkpar.ops.tiles.cpu import Weights
from vkpar.parallel.cut.split import Split
from vkpar.parallel.plan.footprint import Footprint, TensorPlan
from vkpar.parallel.plan.laying import footprint
from vkpar.parallel.plan.placing import Placement, place
from vkpar.parallel.plan.scratch import BATCH
from vkpar.parallel.plan.spec import ModelSpec

MOST_CONTEXT: Final = 1 << 24

HALVES_PAY: Final = 0.97  # of the time of whole prompts: what is nearer to that may as well be chance


@dataclass(frozen=True)
class RigFacts:
    """What a plan knows of a rig; by rank.

    Attributes:
        names: of the devices.
        free: bytes for arrays, a headroom left out.
        speeds: bytes of weights a second; none where nothing was measured.
        op_seconds: of an operation in a graph, besides what it reads of weights.
        sum_seconds: by which a sum of the residual stream over the ranks makes a step longer.
        piece: tokens of a prompt that go through the blocks together.
        products: by rank how its device takes weights; none where all are GPUs.
        bindings: the most bytes that a kernel sees at once; none where that is no limit.
    """

    names: tuple[str, ...]
    free: tuple[int, ...]
    speeds: tuple[float, ...] = ()
    op_seconds: tuple[float, ...] = ()
    sum_seconds: float = 0.0
    piece: int = BATCH
    products: tuple[Weights, ...] = ()
    bindings: tuple[int, ...] = ()

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.names)


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank.

    Attributes:
        weights: of its parts of the tensors.
        cache: of the keys and values of its heads.
        activations: of what is computed in between, for a piece of a prompt and for a token.
        free: what it has.
    """

    weights: int
    cache: int
    activations: int
    free: int

    @property
    def total(self) -> int:
        """All that it needs."""
        return self.weights + self.cache + self.activations

    @property
    def fits(self) -> bool:
        """It has what it needs."""
        return self.total <= self.free


@dataclass(frozen=True)
class Plan:
    """How a model is split over a rig; see :func:`plan`.

    Attributes:
        spec: the model.
        mode: ``"tensor"``, ``"row"``, ``"layer"`` or ``"single"``.
        ratios: by rank, as the splits were made by them; 0 for a rank that gets nothing.
        splits: ``"heads"``, ``"inner"`` and ``"vocabulary"`` of a tensor split, ``"layers"`` of a layer split.
        tensors: by tensor how it is cut, its bytes by rank, and the collective after it.
        memory: by rank.
        seconds: the estimate of one token at the beginning of a text; None where nothing was measured.
        collectives: of one token, by name.
        reasons: why this mode, and why none of those that come before it.
        context: tokens that there is room for; ``batch`` texts at once.
        names: of the devices.
        piece: tokens of a prompt that go through the blocks together where these are on one rank.
        products: by rank how its device takes weights; none where all are GPUs.
        halves: how long prompts take in two halves of their rows, of the time of whole ones; None where that was not
            measured.

    Examples:
        >>> sizes = {"width": 64, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocabulary": 256}
        >>> spec = vkpar.parallel.ModelSpec(layers=2, **sizes)
        >>> made = vkpar.parallel.plan(spec, comm, mode="layer", ratios=[1, 1], context=64)
        >>> made.splits["layers"].counts, made.seconds
        ((1, 1), None)
    """

    spec: ModelSpec
    mode: str
    ratios: tuple[Fraction, ...]
    splits: dict[str, Split]
    tensors: tuple[TensorPlan, ...]
    memory: tuple[RankMemory, ...]
    seconds: float | None
    collectives: dict[str, int]
    reasons: tuple[str, ...]
    context: int
    batch: int
    names: tuple[str, ...]
    piece: int = BATCH
    products: tuple[Weights, ...] = ()
    halves: float | None = None

    @property
    def in_halves(self) -> bool:
        """Whether prompts are to go through in two halves of their rows: it was measured to pay."""
        return self.halves is not None and self.halves < HALVES_PAY

    @property
    def placement(self) -> Placement:
        """Which rank has what: what the plan counted with, and what loading goes by."""
        return place(self.spec, self.mode, self.ratios)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes that each rank needs."""
        return tuple(rank.total for rank in self.memory)

    def fit(self) -> int:
        """Return the largest context that the devices' memory has room for in this mode; 0 where none."""

        def fits(context: int) -> bool:
            needs = footprint(self.spec, self.mode, self.ratios)
            need = memory_of(self.spec, needs, context, self.batch, self.piece, self.products)
            return all(total <= rank.free for total, rank in zip(map(sum, need), self.memory, strict=True))

        low, high = 0, MOST_CONTEXT
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return low

    def explain(self) -> str:
        """Return a table of the tensors, one of the devices, and the reasons, as plain text."""
        ranks = [f"rank {rank}" for rank in range(len(self.names))]
        rows = [
            (each.name, str(each.count), each.cut, *(text.units(n) if n else "-" for n in each.nbytes), each.after)
            for each in self.tensors
        ]
        lines = text.columns([("tensor", "times", "cut", *ranks, "then"), *rows], left=(0, 2, 3 + len(ranks)))
        memory = [
            (
                str(rank),
                *(text.units(n) for n in (each.weights, each.cache, each.activations, each.total, each.free)),
                "yes" if each.fits else "NO",
                name,
            )
            for rank, (each, name) in enumerate(zip(self.memory, self.names, strict=True))
        ]
        estimate = "" if self.seconds is None else f" {self.seconds * 1e3:.3g} ms a token (estimate),"
        titles = ("rank", "weights", "cache", "between", "together", "free", "fits", "device")
        sums = ", ".join(f"{count} {name}" for name, count in self.collectives.items() if count) or "no collective"
        return "\n".join(
            [
                f"mode {self.mode},{estimate} {sums} a token, context {self.context}",
                "",
                *lines,
                "",
                *text.columns([titles, *memory], left=(7,)),
                "",
                *self.reasons,
            ]
        )

    def __str__(self) -> str:
        return self.explain()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        return {
            "mode": self.mode,
            "ratios": [float(ratio) for ratio in self.ratios],
            "splits": {name: list(split.counts) for name, split in self.splits.items()},
            "tensors": [asdict(each) for each in self.tensors],
            "memory": [{**asdict(each), "total": each.total, "fits": each.fits} for each in self.memory],
            "seconds": self.seconds,
            "collectives": self.collectives,
            "reasons": list(self.reasons),
            "context": self.context,
            "batch": self.batch,
            "devices": list(self.names),
        }


def memory_of(
    spec: ModelSpec, needs: Footprint, context: int, batch: int, piece: int, products: Sequence[Weights]
) -> list[tuple[int, int, int]]:
    """Return each rank's bytes of weights, cache and what is computed in between."""
    return [
        (
            sum(tensor.nbytes[rank] for tensor in needs.tensors),
            needs.cache(spec, rank, context, batch, piece),
            needs.activations(spec, rank, context, batch, piece, products),
        )
        for rank in range(len(needs.blocks))
    ]
