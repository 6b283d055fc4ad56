"""Which kernel attends, without a device: matrix cores, tiles, subgroups, and what shared memory allows."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.vulkan.infos import OF_BMG, OF_DG2, fake_info, intel_info, radv_info

from vkpar import cachedir, env
from vkpar.abi import attention as abi
from vkpar.doctor.devices import PATHS
from vkpar.errors import DeviceLostError, OutOfMemoryError, VulkanError
from vkpar.ops.attention import rates
from vkpar.ops.call import measured
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
        (8, "bfloat16", 64, "attention_warps_rows4"),
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
    assert found == ("attention_cores2_t256", 256, 128, abi.CoresConstants(32, 32))
    without = tuple(name for name in MATRICES if name != "cooperativeMatrixConversions")
    assert chosen(gpu(matrix_features=without), 2048) == ("attention_cores_t256", *found[1:])


@pytest.mark.parametrize(
    ("mesa", "driver", "width", "expected"),
    [
        (25, 3, 256, (128, 32, abi.CoresConstants(16, 64, ahead=0))),
        (25, 3, 225, (128, 32, abi.CoresConstants(16, 64, ahead=0))),
        (25, 3, 224, (256, 64, abi.CoresConstants(16, 64))),
        (25, 3, 128, (256, 64, abi.CoresConstants(32, 64))),
        (26, 3, 256, (256, 64, abi.CoresConstants(16, 64))),
        (25, 2, 256, (256, 64, abi.CoresConstants(16, 64))),  # another driver for the same cards
    ],
)
def test_queries_of_the_widest_rows_lie_where_compilers_have_room(
    mesa: int, driver: int, width: int, expected: tuple[Any, ...]
) -> None:
    found = chosen(radv_info(mesa, driver), 2048, width)
    assert found == (f"attention_cores_t{expected[0]}", *expected)
    assert module._shared_of_cores(found.threads, found.more, width) <= 48 << 10


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


# --- matrices of eight rows ---

BMG = intel_info(OF_BMG, (16, 32))


@pytest.mark.parametrize(
    ("info", "queries", "width", "dtype", "rows", "parts"),
    [
        (BMG, 24, 48, "float16", 128, 1),
        (BMG, 2048, 64, "bfloat16", 64, 2),
        (BMG, 2048, 96, "float16", 64, 2),
        (BMG, 2048, 97, "float16", 32, 4),
        (BMG, 2048, 128, "float16", 32, 4),
        (BMG, 2048, 129, "float16", 0, 0),  # no tiles that it is measured beside
        (BMG, 23, 128, "float16", 0, 0),
        (BMG, 2048, 128, "float32", 0, 0),
        (intel_info(OF_DG2, (8, 32)), 2048, 64, "float16", 0, 0),  # whose compiler spills what it takes
        (intel_info(OF_BMG, (32, 32)), 2048, 64, "float16", 0, 0),
        (intel_info(OF_BMG, (16, 32), max_workgroup_subgroups=15), 2048, 64, "float16", 0, 0),
        (intel_info(OF_BMG, (16, 32), max_workgroup_invocations=255), 2048, 64, "float16", 0, 0),
    ],
)
def test_matrices_of_eight_rows(
    monkeypatch: pytest.MonkeyPatch, info: DeviceInfo, queries: int, width: int, dtype: str, rows: int, parts: int
) -> None:
    """Where they were measured to be faster; a subgroup has the sums of 48 columns at most."""
    monkeypatch.setattr(rates, "faster", lambda *_: True)
    found = chosen(info, queries, width, dtype)
    assert (found.name == "attention_cores_t256") == (rows > 0)
    if rows:
        assert (found.rows, found.more) == (rows, abi.CoresConstants(16, 16, 8, 0, parts))
        assert -(-width // 16) <= 3 * parts
    monkeypatch.setattr(rates, "faster", lambda *_: False)
    assert not chosen(info, queries, width, dtype).name.startswith("attention_cores")


@pytest.mark.parametrize(
    ("info", "want"),
    [(BMG, True), (gpu(), True), (intel_info(OF_DG2, (8, 32)), False), (gpu(cooperative_matrix=()), False)],
)
def test_the_doctor_names_attention_on_matrix_cores(info: DeviceInfo, want: bool) -> None:
    (path,) = (path for path in PATHS if path.name == "attention on matrix cores")
    assert (path.lacks(info) == "") == module.on_cores(info, "float16") == want


def test_they_fit_the_shared_memory() -> None:
    for width in range(1, 129):
        kernel = module._narrow(BMG, "float16", width)
        slots, depth = 256 // 16 * 8, -(-width // 16)
        units = 2 * 16 * (2 * depth + 1) + slots * 4 + kernel.rows * (2 * depth + 1)
        need = 16 * max(units, slots * 9) + 8 * slots
        for room, fits in ((need, True), (need - 1, False)):
            limits = dataclasses.replace(BMG.limits, max_shared_memory=room)
            assert (module._narrow(dataclasses.replace(BMG, limits=limits), "float16", width) is not None) == fits


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What measurements are to give, or to raise; kept files and what is known are those of the test."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(cachedir, "read", kept.get)
    monkeypatch.setattr(cachedir, "write", kept.__setitem__)
    monkeypatch.setattr(measured, "_known", {})
    gives: list[Any] = []

    def seconds(*_: Any) -> list[float]:
        made = gives.pop(0)
        if isinstance(made, Exception):
            raise made
        return [1e-9 * ns for ns in made]

    monkeypatch.setattr(rates, "_seconds", seconds)
    with env.override(tuning="auto"):
        yield gives


def asks(width: int = 128) -> bool:
    """Ask once more in a process that knows nothing."""
    measured._known.clear()
    device: Any = SimpleNamespace(info=BMG)
    kernel = module._narrow(BMG, "float16", 128)
    return rates.faster(device, kernel, kernel, "float16", width)


def test_what_is_faster_is_measured_once(monkeypatch: pytest.MonkeyPatch, timed: list[Any]) -> None:
    timed += [(1e5, 2e5), (3e5, 2e5)]
    assert [asks(), asks(), asks(120)] == [True] * 3
    assert [asks(64), asks(64)] == [False] * 2  # rows of fewer matrices
    assert not timed
    with env.override(tuning="off"):
        assert not asks()
    timed += [(2e5, 1e5), (1e5, 2e5)]
    with env.override(tuning="redo"):  # whatever is kept
        assert [asks(), asks()] == [False, True]
    monkeypatch.setattr(measured, "__version__", "another")
    timed += [(2e5, 1e5)]
    assert not asks()


@pytest.mark.parametrize(
    "gives",
    [
        OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkAllocateMemory"),
        VulkanError("VK_ERROR_UNKNOWN", "vkCreateComputePipelines"),
        (0.0, 1e5),
        (float("inf"), 1e5),
    ],
    ids=["no room", "not built", "none", "endless"],
)
def test_what_cannot_be_measured_is_left_alone(timed: list[Any], gives: Any) -> None:
    timed += [gives, (1e5, 2e5)]
    assert not asks()
    assert asks()  # nothing was kept


def test_a_lost_device_is_told(timed: list[Any]) -> None:
    timed.append(DeviceLostError("VK_ERROR_DEVICE_LOST", "vkQueueSubmit"))
    with pytest.raises(DeviceLostError):
        asks()


def test_captures_take_what_is_kept(monkeypatch: pytest.MonkeyPatch, timed: list[Any]) -> None:
    monkeypatch.setattr(measured.capturing, "current", object)
    assert not asks()
    monkeypatch.setattr(measured.capturing, "current", lambda: None)
    timed.append((1e5, 2e5))
    assert asks()
    monkeypatch.setattr(measured.capturing, "current", object)
    assert asks()
