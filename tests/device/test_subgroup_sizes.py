"""Operations on subgroups of 4 and of 16: lavapipe makes its vectors as wide as an environment variable says.

The driver reads it once, so that a child process does the work, and says of what sizes its subgroups were. Mesa's cache
of compiled shaders does not tell vectors of different widths apart: with it the child, or whoever comes next, would run
code for another width, which crashes or is wrong.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import require
from helpers.process.children import check_child, child_environment

from vkpar import env

pytestmark = pytest.mark.device

TESTS = str(Path(__file__).parents[1])
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from helpers.ops import selection
import vkpar
from helpers.vulkan.planning import forget

ranks = vkpar.open_devices("llvmpipe*2")
rng = np.random.default_rng(1)
for name in ("reductions", "rows", "products", "attention", "quantised"):
    selection.CASES[name](ranks[0], rng, ["float32"])
forget(ranks[0])
selection.sums_of_subgroups(ranks[0], rng)
for algorithm in ("direct", "ring"):
    selection.sums(ranks, rng, algorithm)
print(ranks[0].info.features.subgroup_size)
for device in ranks:
    device.close()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [128, 512])
def test_operations(bits: int, tmp_path: Path) -> None:
    require("llvmpipe")
    variables = {
        "LP_NATIVE_VECTOR_WIDTH": str(bits),
        "MESA_SHADER_CACHE_DISABLE": "true",
        "VKPAR_CACHE_DIR": str(tmp_path),
        "VKPAR_TUNING": "off",
        "VKPAR_VALIDATION": str(int(bool(env.get().validation))),
    }
    found = check_child(CHILD, TESTS, environment=child_environment(**variables), timeout=280)
    assert int(found) == bits // 32
