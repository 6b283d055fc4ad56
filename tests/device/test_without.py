"""Every kind of operation, and a sum over ranks, on devices without features that the drivers at hand have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import require
from helpers.ops import selection

import vkpar
from vkpar import env
from vkpar.comm import wires

pytestmark = pytest.mark.device

KINDS = ("storage_16bit", "subgroup", "storage_16bit,subgroup")
HALVES = """
#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float16_t a[]; };
void main() { a[gl_GlobalInvocationID.x] = float16_t(float(a[gl_GlobalInvocationID.x]) * 2.0); }
"""
SUMS = """
#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float a[]; };
void main() { a[gl_GlobalInvocationID.x] = subgroupAdd(a[gl_GlobalInvocationID.x]); }
"""


@pytest.fixture(scope="module", params=KINDS)
def ranks(request: pytest.FixtureRequest) -> Iterator[list[vkpar.Device]]:
    """Two ranks on lavapipe, which has everything, opened without something."""
    require("llvmpipe")
    with env.override(without=request.param):
        devices = vkpar.open_devices("llvmpipe*2")
    yield devices
    for device in devices:
        device.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", selection.CASES)
def test_operations(ranks: list[vkpar.Device], rng: np.random.Generator, case: str) -> None:
    selection.CASES[case](ranks[0], rng)


def test_sums_over_ranks(ranks: list[vkpar.Device], rng: np.random.Generator) -> None:
    selection.sums(ranks, rng)


def test_devices_are_without(reopen: Callable[..., vkpar.Device]) -> None:
    """As vkpar sees them; the validation layer refuses what a device was created without."""
    halves = reopen(without="storage_16bit").info.features
    assert not halves.storage_16bit
    assert not halves.float16
    subgroups = reopen(without="subgroup").info
    assert subgroups.features.subgroup_operations == ("basic",)
    assert wires.processor(subgroups) != "texel"


@pytest.mark.parametrize(
    ("without", "source", "lacks"),
    [("storage_16bit", HALVES, "StorageBuffer16BitAccess"), ("subgroup", SUMS, "GroupNonUniformArithmetic")],
)
def test_kernels_that_need_it_are_refused_by_name(
    reopen: Callable[..., vkpar.Device], compiler: None, without: str, source: str, lacks: str
) -> None:
    with pytest.raises(vkpar.UnsupportedError, match=lacks):
        vkpar.Kernel(reopen(without=without), source)
