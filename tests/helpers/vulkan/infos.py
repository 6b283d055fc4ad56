"""A device that no machine has, for tests without Vulkan."""

from __future__ import annotations

import dataclasses
from dataclasses import fields
from typing import Any

from vkpar.vulkan.machine.physical import DeviceInfo, Features, Heap, Limits, QueueFamily


def fake_info(index: int = 0, **changes: Any) -> DeviceInfo:
    """Return a GPU that no machine has."""
    shapes = tuple(f"16x16x{k} f16*f16->f32" for k in (8, 16, 32))
    flags: dict[str, Any] = {item.name: True for item in fields(Features)}
    members: dict[str, Any] = {
        "index": index,
        "name": "Fancy [bold]GPU[/] 9000",
        "vendor": "NVIDIA",
        "vendor_id": 0x10DE,
        "device_id": 0x2335,
        "type": "discrete",
        "driver_name": "NVIDIA",
        "driver_id": 4,
        "driver_info": "580.82.07",
        "driver_version": 1,
        "api_version": (1, 4, 312),
        "driver_uuid": "00000000-1111-2222-3333-444444444444",
        "device_uuid": f"abcdef0{index}-1111-2222-3333-444444444444",
        "pci_address": "0000:65:00.0",
        "heaps": (Heap(0, 140 << 30, True, 138 << 30, 2 << 30), Heap(1, 512 << 30, False, None, None)),
        "queue_families": (QueueFamily(0, 16, True, True, True, 64), QueueFamily(1, 2, False, True, False, 0)),
        "features": Features(
            **flags
            | {
                "cooperative_matrix": shapes,
                "cooperative_matrix2": (),
                "matrix_features": (),
                "subgroup_size": 32,
                "subgroup_sizes": (32, 32),
                "subgroup_operations": ("basic",),
                "float_atomics": (),
            }
        ),
        "limits": Limits(
            1 << 32, 1 << 40, 1 << 40, 16, (1, 2, 3), (4, 5, 6), 1024, 49152, 256, 4096, 1.0, 1 << 20, 1 << 27
        ),
        "extensions": frozenset({"VK_KHR_b", "VK_KHR_a"}),
        "memory_types": ((7, 0),),
        "handle": None,
    }
    return DeviceInfo(**(members | changes))


OF_DG2 = ("8x8x16 f16*f16->f32", "8x8x32 s8*s8->s32")
OF_BMG = ("8x16x16 f16*f16->f16", "8x16x16 f16*f16->f32", "8x16x16 bf16*bf16->f32")
_MATRICES = ("cooperativeMatrix", "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix")


def intel_info(
    shapes: tuple[str, ...], sizes: tuple[int, ...], mesa: int = 26, kind: str = "discrete", **limits: int
) -> DeviceInfo:
    """What Mesa's driver says of a card of Intel's: subgroups of 32, and others are run."""
    info = fake_info(vendor_id=0x8086, driver_version=mesa << 22 | 7, type=kind)
    features = dataclasses.replace(
        info.features,
        cooperative_matrix=shapes,
        matrix_features=_MATRICES,
        subgroup_size=32,
        subgroup_sizes=sizes,
        subgroup_operations=("basic", "vote", "arithmetic", "ballot", "shuffle"),
    )
    most = {"max_workgroup_invocations": 1024, "max_shared_memory": 48 << 10, "max_workgroup_subgroups": 64} | limits
    return dataclasses.replace(info, features=features, limits=dataclasses.replace(info.limits, **most))


def radv_info(mesa: int, driver: int = 3) -> DeviceInfo:
    """What Mesa's driver says of a card of AMD's with matrix cores, or another driver."""
    info = fake_info(vendor_id=0x1002, driver_id=driver, driver_version=mesa << 22 | 7)
    features = dataclasses.replace(
        info.features,
        cooperative_matrix=("16x16x16 f16*f16->f32",),
        matrix_features=_MATRICES[:1],
        subgroup_size=64,
        subgroup_sizes=(32, 64),
        subgroup_operations=("basic", "vote", "arithmetic", "ballot", "shuffle"),
    )
    limits = dataclasses.replace(info.limits, max_workgroup_invocations=1024, max_shared_memory=64 << 10)
    return dataclasses.replace(info, features=features, limits=limits)
