"""Testing work on GPUs: comparisons in ulps, arrays between guard words, bounds on errors; pytest's fixtures.

The pytest plugin (``pytest_vkpar``) comes with the package; docs/testing-kernels.md shows it.
"""

from vkpar.abi.formats import WIRES, Wire
from vkpar.testing.bounds import (
    U,
    additions,
    all_reduce_bound,
    gamma,
    norm,
    relative,
    wire_of,
)
from vkpar.testing.compare import assert_allclose, ulps
from vkpar.testing.guard import Guarded, guarded

__all__ = [
    "WIRES",
    "Guarded",
    "U",
    "Wire",
    "additions",
    "all_reduce_bound",
    "assert_allclose",
    "gamma",
    "guarded",
    "norm",
    "relative",
    "ulps",
    "wire_of",
]
