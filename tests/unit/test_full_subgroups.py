"""Kernels of matrix cores ask for full subgroups, whatever says how many invocations their work-groups have."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from vkpar.vulkan.pipelines import declared
from vkpar.vulkan.pipelines.kernel import needs_full

_COOPERATIVE_MATRIX = 6022
_THREADS = 19  # of kernels whose number of invocations is a constant
_SIZED = ("matvec_cores", "quantized_cores")
MANIFEST = json.loads(resources.files("vkpar.spirv").joinpath("manifest.json").read_text())
MATRIX = sorted(
    name
    for name in MANIFEST["kernels"]
    if name.startswith(("matmul_coop", "matvec_cores", "attention_cores", "quantized_cores"))
)


@pytest.mark.parametrize("name", MATRIX)
def test_shipped_kernels_are_told_to_fill_subgroups(name: str) -> None:
    found = declared.shipped(name)
    assert _COOPERATIVE_MATRIX in found.capabilities
    given = {_THREADS: 64} if name.startswith(_SIZED) else {}
    assert needs_full(found, given, 32)
    assert not needs_full(found, given, 0)


@pytest.mark.parametrize(("threads", "subgroup", "full"), [(64, 32, True), (192, 32, True), (96, 64, False)])
def test_sizes_by_a_constant(threads: int, subgroup: int, full: bool) -> None:
    name = next(name for name in MATRIX if name.startswith("matvec_cores"))
    assert needs_full(declared.shipped(name), {_THREADS: threads}, subgroup) == full
