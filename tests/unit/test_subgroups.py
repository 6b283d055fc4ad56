"""Kernels that depend on subgroups are taken where these are known to be as they need them, and have the operations."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.vulkan.infos import fake_info

from vkpar.comm import wires
from vkpar.ops.experts import few
from vkpar.ops.matmul import cores, dots
from vkpar.ops.quantized.weights import KINDS
from vkpar.ops.tiles import cpu, matvec
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.capabilities import missing
from vkpar.vulkan.pipelines.interface import reflect

attention_kernels = importlib.import_module("vkpar.ops.attention.kernels")

NVIDIA, AMD = 0x10DE, 0x1002
ALL = ("basic", "vote", "arithmetic", "ballot", "shuffle", "shuffle_relative", "clustered", "quad")
OPERATIONS = {"all": ALL, "basic": ("basic",), "no arithmetic": tuple(name for name in ALL if name != "arithmetic")}


def card(vendor: int, size: int, operations: tuple[str, ...]) -> DeviceInfo:
    """Return a card without matrix cores, of some subgroups."""
    info = fake_info(vendor_id=vendor)
    features = dataclasses.replace(
        info.features, subgroup_size=size, subgroup_operations=operations, cooperative_matrix=()
    )
    limits = dataclasses.replace(info.limits, max_workgroup_invocations=1024)
    return dataclasses.replace(info, features=features, limits=limits)


def taken(info: DeviceInfo) -> set[str]:
    """Return the kernels of products and attention that a card takes, of those that there are with subgroups too."""
    device: Any = SimpleNamespace(info=info, limits=info.limits)
    names = set()
    for m, n, forms in itertools.product((1, 3, 8), (64, 9000), (False, True)):
        name = matvec.choose(info, m, n, 2, transpose_b=True, forms=forms)[1]
        names.add(name if not forms else name.replace("matvec_", "matvec_forms_"))
        names.add(matvec.choose_folded(info, m, n, gated=forms)[1])
    for queries, width in itertools.product((1, 4, 8), (64, 128, 512)):
        names.add(attention_kernels.kernel_for(device, queries, "float16", "float16", width).name + "_f16")
    if dots.usable(device):
        names |= {f"quantized_dots_{kind.module}" for kind in KINDS.values()}
    assert not any(cores.usable(info, kind) for kind in KINDS.values())
    assert not cpu.has_wide(info)
    assert wires.processor(info) == "gpu"
    return names


@pytest.mark.parametrize("operations", OPERATIONS)
@pytest.mark.parametrize(("vendor", "size"), [(NVIDIA, 32), (NVIDIA, 16), (AMD, 32), (AMD, 64), (0x8086, 8)])
def test_kernels_need_no_more_than_there_is(vendor: int, size: int, operations: str) -> None:
    info = card(vendor, size, OPERATIONS[operations])
    known = vendor == NVIDIA and size == 32
    needs = {}
    for name in taken(info):
        needs[name] = reflect(shader.shipped(name)).capabilities
        assert missing(needs[name], info.features) == [], name
    by_subgroups = {name for name in needs if 61 in needs[name]}  # GroupNonUniform
    assert not by_subgroups or known
    assert by_subgroups or not known or operations == "basic"
    device: Any = SimpleNamespace(info=info)
    assert few.usable_on(device) == (known and operations == "all")


@pytest.mark.parametrize(
    ("size", "operations", "found"), [(8, ALL, "texel"), (8, ("basic",), "cpu"), (4, ALL, "texel")]
)
def test_wires_of_a_cpu_driver_add_up_over_subgroups(size: int, operations: tuple[str, ...], found: str) -> None:
    info = dataclasses.replace(card(0x10005, size, operations), type="cpu")
    limits = dataclasses.replace(info.limits, max_storage_buffer_range=1 << 27)
    assert wires.processor(dataclasses.replace(info, limits=limits)) == found
    assert cpu.has_wide(info) == (size == 8 and "ballot" in operations)
