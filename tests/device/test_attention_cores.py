"""Attention by matrix cores of devices without conversions, whose weights go through shared memory."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from helpers.ops.attending import made_of
from helpers.ops.elements import check, normal

import vkpar
from vkpar.doctor.references import attended

module = importlib.import_module("vkpar.ops.attention.kernels")
pytestmark = [pytest.mark.device, pytest.mark.gpu]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_conversions(
    device: vkpar.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Scores rise so far that the one which weights are relative to does, too."""
    monkeypatch.setattr(module, "CORES_CONVERTING", module.CORES)
    device.plans.recipes.clear()
    if not module.kernel_for(device, 40, dtype, dtype, 40).name.startswith(module.CORES):
        pytest.skip("needs matrix cores")
    (q, _, v), exact = made_of(device, rng, 4, 2, (20, 150, 40), dtype)
    rising = normal(rng, (2, 150, 40), dtype) * 2.0 ** (np.arange(150) // 30)[:, None].astype(np.float32)
    made = vkpar.attention(q, device.array(rising, dtype), v, causal=True)
    check(made, *attended(exact[0], rising.astype(np.float64), exact[2], causal=True, stored=dtype))
    device.plans.recipes.clear()
