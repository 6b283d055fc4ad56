"""Mixtures of experts in files: what configurations say of them, and what their tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, Final

from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.models.families.family import Family
from vkpar.parallel.models.families.values import get
from vkpar.parallel.plan.sources import sparse_blocks
from vkpar.parallel.plan.spec import check_size, is_true

PARTS: Final = ("gate", "up", "down")
"""The matrices of an expert."""
SHARE: Final = "share"
"""What gives the weight of the expert that all tokens take."""
_OF_GGUF: Final = ("llama", "qwen3moe", "qwen2moe")  # families whose files may have experts
_SHARED: Final = "expert_shared_feed_forward_length"
_ABSENT: Final = ("expert_shared_count", _SHARED, "leading_dense_block_count")


# ---- configurations ----


def check(experts: int, active: int, shared: int, family: Family) -> None:
    """Refuse numbers of experts, and of those that a token takes, that do not fit together or the family.

    Raises:
        InvalidUsageError: they do not.
        UnsupportedError: an expert that all tokens take, of a family that has none.
    """
    for name, value in (("experts", experts), ("active", active)):
        check_size(name, value, int(family.mixture))
    check_size("shared", shared, int(family.shared))
    if shared and not family.shared:
        raise UnsupportedError("the model's family has no expert that all tokens take (shared)")
    if active > experts or bool(active) != bool(experts):
        raise InvalidUsageError(f"a token takes {active} experts, of {experts}")


def of_json(found: Mapping[str, Any], kind: str, family: Family, where: str) -> dict[str, Any]:
    """Return the experts that a config.json of a ``kind`` of model has, as a configuration's fields.

    Raises:
        InvalidUsageError: a number that is missing or wrong.
    """
    key = "num_local_experts" if "num_local_experts" in found else "num_experts"
    made = _numbers(where, {key: found.get(key), "num_experts_per_tok": found.get("num_experts_per_tok")})
    normed = kind == "mixtral" or is_true(found, "norm_topk_prob", where)
    shared = get(found, "shared_expert_intermediate_size", int, where) if family.shared else 0
    sparse = sparse_blocks(found, get(found, "num_hidden_layers", int, where), where) if family.mixture else ()
    dense = get(found, "intermediate_size", int, where) if sparse else 0
    return {**made, "normed": normed, "shared": shared, "sparse": sparse, "dense": dense}


def of_gguf(
    metadata: Mapping[str, Any], family: str, differs: Family, size: Callable[[str, int | None], int], where: str
) -> dict[str, Any]:
    """Return the experts that a GGUF file's metadata have, as a configuration's fields; none where it has none.

    Args:
        metadata: by key.
        family: before the keys; ``differs`` is what tells it from Llama.
        differs: as said.
        size: gives one of the metadata's whole numbers.
        where: the file's name, for messages.

    Raises:
        InvalidUsageError: a number that is wrong.
        UnsupportedError: experts of another family, experts that all tokens take where the family has none, or blocks
            without any, named.
    """
    count = size("expert_count", 0)
    if not count:
        return {}
    for key in ("expert_count", *_ABSENT) if family not in _OF_GGUF else _ABSENT:
        if size(key, 0) and not (key == _SHARED and differs.shared):
            raise UnsupportedError(f"{where}: {family}.{key} of {size(key, 0)} is not supported")
    shared = (size(_SHARED, 0) or size("feed_forward_length", None)) if differs.shared else 0
    normed = metadata.get(f"{family}.expert_weights_norm", not differs.shared)  # as llama.cpp does
    scale = metadata.get(f"{family}.expert_weights_scale", 1)
    if scale not in (0, 1):
        raise UnsupportedError(f"{where}: {family}.expert_weights_scale of {shown(scale)} is not supported")
    numbers = {f"{family}.expert_count": count, f"{family}.expert_used_count": size("expert_used_count", 0)}
    return {**_numbers(where, numbers), "normed": bool(normed), "shared": shared}


def _numbers(where: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Return how many experts there are, and how many a token takes."""
    (key, experts), (name, active) = given.items()
    for what, value in given.items():
        if value is None:
            raise InvalidUsageError(f"{where} has no {what}")
        check_size(f"experts ({what})", value)
    if active > experts:
        raise InvalidUsageError(f"{where}: {name} is {active}, and there are {experts} experts ({key})")
    return {"experts": experts, "active": active}


# ---- tensors ----


@dataclass(frozen=True)
class ExpertNames:
    """What a kind of file calls the tensors of experts; ``{}`` stand for the numbers of a block and an expert.

    Attributes:
        router: the router.
        parts: the matrices, of all experts of a block one after the other where names have no number of an expert;
            ``"gate_up"`` those of ``"gate"`` and ``"up"``.
        shared: the matrices of the expert that all tokens take, and ``"share"``, which gives the weight of that; none
            where files have no such expert.
        flat: ``"share"`` is a list of numbers, and no row of a matrix.
    """

    router: str
    parts: Mapping[str, str]
    shared: Mapping[str, str]
    flat: bool = False

    @property
    def stacked(self) -> bool:
        """The experts of a block are one tensor."""
        return self.parts["down"].count("{}") == 1

    def name(self, part: str, block: int, expert: int = 0) -> str:
        """Return what holds a matrix of an expert: one of :data:`PARTS`."""
        found = self.parts[part] if part in self.parts else self.parts["gate_up"]
        return found.format(block, expert)

    def row(self, part: str, expert: int, inner: int, hidden: int) -> int:
        """Return the row of the tensor, its matrices one after the other, at which an expert's begins."""
        if not self.stacked:
            return 0
        if part == "down":
            return expert * hidden
        return expert * inner if part in self.parts else (2 * expert + (part == "up")) * inner

    def shapes(
        self, block: int, experts: int, inner: int, hidden: int, shared: int = 0
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Give the names and shapes of a block's tensors."""
        yield self.router.format(block), (experts, hidden)
        for part, name in self.shared.items() if shared else ():
            wide = ((hidden,) if self.flat else (1, hidden)) if part == SHARE else (shared, hidden)
            yield name.format(block), (hidden, shared) if part == "down" else wide
        for part, name in self.parts.items():
            shape = (hidden, inner) if part == "down" else (inner * (2 if part == "gate_up" else 1), hidden)
            if self.stacked:
                yield name.format(block), (experts, *shape)
            else:
                yield from ((name.format(block, expert), shape) for expert in range(experts))


_MLP: Final = "model.layers.{}.mlp."
_SPARSE: Final = "model.layers.{}.block_sparse_moe."
_OF_ALL: Final = {part: f"{_MLP}shared_expert.{part}_proj.weight" for part in PARTS}
_OF_ALL[SHARE] = f"{_MLP}shared_expert_gate.weight"
QWEN: Final = ExpertNames(
    f"{_MLP}gate.weight", {part: f"{_MLP}experts.{{}}.{part}_proj.weight" for part in PARTS}, _OF_ALL
)
MIXTRAL: Final = ExpertNames(
    f"{_SPARSE}gate.weight",
    {part: f"{_SPARSE}experts.{{}}.{name}.weight" for part, name in zip(PARTS, ("w1", "w3", "w2"), strict=True)},
    {},
)
TOGETHER: Final = ExpertNames(
    f"{_MLP}gate.weight", {"gate_up": f"{_MLP}experts.gate_up_proj", "down": f"{_MLP}experts.down_proj"}, _OF_ALL
)
GGUF: Final = ExpertNames(
    "blk.{}.ffn_gate_inp.weight",
    {part: f"blk.{{}}.ffn_{part}_exps.weight" for part in PARTS},
    {**{part: f"blk.{{}}.ffn_{part}_shexp.weight" for part in PARTS}, SHARE: "blk.{}.ffn_gate_inp_shexp.weight"},
    flat=True,
)


def layout_of(family: str, weights: Container[str], block: int, *, gguf: bool) -> ExpertNames:
    """Return how a family's experts are called: by what ``block`` has where a family's files differ."""
    if gguf:
        return GGUF
    if TOGETHER.name("down", block) in weights:  # as transformers 5 holds them in memory
        return TOGETHER
    return MIXTRAL if family == "llama" else QWEN
