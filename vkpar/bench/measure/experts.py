"""Mixtures that are summed over ranks an expert at a time, beside which ``vkpar bench model`` shows the one sum."""

from __future__ import annotations

from typing import Final

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.ops.experts import few, products
from vkpar.ops.experts.routing import Span
from vkpar.parallel.layers.experts import Experts, MixtureOfExperts
from vkpar.parallel.layers.layers import rows_of
from vkpar.parallel.layers.norms import Inputs, Parts, arrays_of, there
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.llama import Llama

DELAYED: Final = "delayed"
EACH: Final = "each"
SUMS: Final = (DELAYED, EACH)


class SumsOfEach(MixtureOfExperts):
    """A mixture, of which ranks have parts of each expert's width, whose experts are summed before they are added.

    Args:
        mixture: what it stands for; it has no shared expert.
    """

    def __init__(self, mixture: MixtureOfExperts) -> None:
        vars(self).update(vars(mixture))

    def summed(self, x: Inputs) -> Parts:
        """Return the results on all ranks, added there: each expert's is a sum over the ranks."""
        rows, each, count = rows_of(x), self._active, there(self.router, self._deciding[0]).shape[0]
        few_rows = all(own is None or self._few_pairs(own, rows * each) for own in self.experts)
        given: Inputs = x if few_rows else arrays_of(x)
        chosen = self._chosen(given)
        pairs: Parts = [None] * self._comm.nranks
        for rank, own in enumerate(self.experts):
            part = given[rank]
            if own is None or part is None:
                continue
            choice = there(chosen, rank)
            if few_rows:  # the gates weigh what goes into the last products
                inner = few.gate(part, own.gate_up[0], choice).reshape(rows * each, -1)
                pairs[rank] = few.add_up(inner, own.down, choice.reshape(2, rows * each, 1))
            else:
                assert isinstance(part, Array), "norms were made"
                pairs[rank] = self._pairs(own, part, choice)
        made: Parts = []
        for rank, part in enumerate(self._over_ranks(pairs, rows * each)):
            if part is None:
                made.append(None)
            elif few_rows:
                made.append(ops.sum(part.reshape(rows, each, -1), axis=1))
            else:
                made.append(products.add_up(part, there(chosen, rank), Span(0, count)))
        return made

    def _few_pairs(self, own: Experts, pairs: int) -> bool:
        """Say whether kernels for few rows take so many pairs of a token and an expert as rows of one expert each."""
        return len(own.gate_up) == 1 and few.fits(pairs, 1, own.gate_up[0], own.down)


def sums_of(config: Config, mode: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return how a split's mixtures are summed: as is wanted where ranks have parts of each expert, else once."""
    cut = mode == "tensor" and config.experts and not config.shared
    return wanted if cut else (DELAYED,)


def sum_each(model: Llama) -> None:
    """Let the mixtures of a decoder sum each expert over the ranks; it has run nothing so far."""
    model._blocks = [
        block._replace(forward=SumsOfEach(block.forward)) if isinstance(block.forward, MixtureOfExperts) else block
        for block in model._blocks
    ]
