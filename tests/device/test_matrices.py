"""A user's kernel with cooperative matrices, as SPIR-V: exact where a device has them, else refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vkpar

pytestmark = pytest.mark.device

MODULE = Path(__file__).parent / "modules" / "matrices.spv"  # of the source beside it
SHAPE, SIDE, SUBGROUP = "16x16x16 f16*f16->f32", 16, 32


def test_products_are_exact(device: vkpar.Device, rng: np.random.Generator) -> None:
    """Of whole numbers, whose products and sums both types hold; a work-group a product."""
    features = device.info.features
    if SHAPE not in features.cooperative_matrix:
        pytest.skip(f"{device.name} has no cooperative matrices of {SHAPE}")
    if features.subgroup_size != SUBGROUP or not features.storage_16bit:
        pytest.skip(f"the module is for subgroups of {SUBGROUP} and 16-bit storage, which {device.name} has not")
    a, b = (rng.integers(-8, 9, (5, SIDE, SIDE)).astype(np.float16) for _ in range(2))
    c = rng.integers(-1000, 1001, (5, SIDE, SIDE)).astype(np.float32)
    sums = device.array(c)
    kernel = vkpar.Kernel(device, MODULE)
    assert kernel.local_size == (SUBGROUP, 1, 1)
    for times in (1, 2):  # the second call goes by what the first one kept
        kernel(5, device.array(a), device.array(b), sums)
        np.testing.assert_array_equal(sums.numpy(), c + times * (a.astype(np.float32) @ b.astype(np.float32)))


def test_devices_without_them_refuse_it_by_name(reopen: Callable[..., vkpar.Device]) -> None:
    with pytest.raises(vkpar.UnsupportedError, match="CooperativeMatrixKHR"):
        vkpar.Kernel(reopen(without="cooperative_matrix"), MODULE)


@pytest.mark.parametrize("lacks", ["StorageBuffer16BitAccess", "Float16"])
def test_everything_that_is_lacking_is_named(reopen: Callable[..., vkpar.Device], lacks: str) -> None:
    with pytest.raises(vkpar.UnsupportedError, match=lacks):
        vkpar.Kernel(reopen(without="storage_16bit"), MODULE)
