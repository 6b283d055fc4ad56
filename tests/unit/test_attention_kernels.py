"""Which kernel attends, without a device: matrix cores, tiles, subgroups, and what shared memory allows."""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.vulkan.infos import fake_info

from vkpar.vulkan.machine.physical import DeviceInfo

module = importlib.import_module("vkpar.ops.attention.kernels")

SHAPES = ("16x16x16 f16*f16->f32", "16x16x16 bf16*bf16->f32")
MATRICES = (
    "cooperativeMatrix",
    "cooperativeMatrixConversions",
    "shaderBFloat16Type",
    "shaderBFloat16CooperativeMatrix",
)


def gpu(shared: int = 48 << 10, **features: Any) -> DeviceInfo:
    """Return a card of NVIDIA's with matrix cores, but for what is changed."""
    info = fake_info()
    whole = {
        "cooperative_matrix": SHAPES,
        "matrix_features": MATRICES,
        "subgroup_operations": ("basic", "vote", "shuffle"),
    }
    return dataclasses.replace(
        info,
        features=dataclasses.replace(info.features, **(whole | features)),
        limits=dataclasses.replace(info.limits, max_workgroup_invocations=1024, max_shared_memory=shared),
    )


def chosen(info: DeviceInfo, queries: int, width: int = 128, dtype: str = "float16", q_type: str | None = None) -> Any:
    device: Any = SimpleNamespace(info=info, limits=info.limits)
    return module.kernel_for(device, queries, q_type or dtype, dtype, width)


@pytest.mark.parametrize(
    ("queries", "dtype", "width", "expected"),
    [
        (1, "float16", 128, "attention_warps_rows1"),
        (4, "float32", 128, "attention_warps_rows4"),
        (8, "bfloat16", 64, "attention_warps_rows8"),
        (8, "float16", 512, "attention_rows8"),
        (9, "float16", 128, "attention_cores2_t256"),
        (2048, "bfloat16", 256, "attention_cores2_t256"),
        (2048, "float16", 300, "attention_rows8"),
        (2048, "float32", 128, "attention_tiled"),
        (12, "float32", 128, "attention_warps_rows8"),
    ],
)
def test_what_a_card_with_matrix_cores_takes(queries: int, dtype: str, width: int, expected: str) -> None:
    assert chosen(gpu(), queries, width, dtype).name == expected


@pytest.mark.parametrize(
    ("queries", "width", "expected"),
    [
        (1, 128, ("attention_rows1", 128, 1)),
        (4, 128, ("attention_rows4_slim", 128, 4)),
        (12, 64, ("attention_rows4_slim", 128, 4)),
        (24, 128, ("attention_tiled_rows4", 256, 64)),
        (2048, 256, ("attention_rows4_slim", 128, 4)),
    ],
)
def test_what_a_card_with_few_registers_takes(queries: int, width: int, expected: tuple[str, int, int]) -> None:
    intel = dataclasses.replace(gpu(cooperative_matrix=()), vendor_id=0x8086)
    assert chosen(intel, queries, width)[:3] == expected


def test_queries_of_another_type_are_not_for_matrix_cores() -> None:
    assert chosen(gpu(), 2048, q_type="float32").name == "attention_tiled"


@pytest.mark.parametrize(
    "features",
    [
        {"cooperative_matrix": ("8x16x16 f16*f16->f32",)},
        {"subgroup_control": False},
        {"matrix_features": ()},
        {"subgroup_operations": ("basic", "vote")},
        {"subgroup_size": 8},
    ],
)
def test_what_matrix_cores_need(features: dict[str, Any]) -> None:
    assert chosen(gpu(**features), 2048).name == "attention_tiled"


def test_other_vendors_have_no_kernel_of_subgroups() -> None:
    info = dataclasses.replace(gpu(), vendor_id=0x1002)
    assert chosen(info, 4).name == "attention_rows4"


def test_weights_are_converted_where_they_are_or_in_shared_memory() -> None:
    found = chosen(gpu(), 2048)
    assert found == ("attention_cores2_t256", 256, 128, (32, 32))
    without = tuple(name for name in MATRICES if name != "cooperativeMatrixConversions")
    assert chosen(gpu(matrix_features=without), 2048) == ("attention_cores_t256", *found[1:])


@pytest.mark.parametrize("shared", [16 << 10, 32 << 10, 48 << 10, 64 << 10])
@pytest.mark.parametrize("width", [20, 128, 256])
def test_shared_memory_is_enough(shared: int, width: int) -> None:
    """With little of it fewer queries are taken, or none by tiles."""
    for queries in (1, 4, 8, 2048):
        kernel = chosen(gpu(shared), queries, width)
        chunks = -(-width // 8)
        if kernel.name.startswith("attention_warps"):
            assert module._shared_of_warps(kernel.threads, kernel.rows, chunks) <= shared
        elif kernel.name == "attention_tiled":
            assert shared >= module._TILED_SHARED[0]
    assert "cores" in chosen(gpu(48 << 10), 2048, width).name
    assert "cores" not in chosen(gpu(8 << 10), 2048, width).name


@pytest.mark.parametrize(
    ("tokens", "keys", "expected"),
    [
        (2048, 2048, 1),  # more work-groups than units
        (512, 512, 1),  # four units less than all
        (128, 128, 1),  # few, but adding up parts takes longer than the keys
        (64, 16384, 8),  # as many as fill the units
        (16, 16384, 16),
        (512, 65536, 1),
    ],
)
def test_parts_of_keys_for_matrix_cores(tokens: int, keys: int, expected: int) -> None:
    info = gpu()
    info = dataclasses.replace(info, limits=dataclasses.replace(info.limits, compute_units=132))
    kernel = chosen(info, 4 * tokens)
    device: Any = SimpleNamespace(info=info)
    groups = 8 * -(-4 * tokens // kernel.rows)
    assert module.splits_for(device, kernel, groups, 32 * tokens, keys, 128) == expected
