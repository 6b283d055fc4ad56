"""``VKPAR_DEBUG=bounds``: what kernels do beyond their bindings is defined, on every driver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vkpar
from vkpar.vulkan import api

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("compiler")]
FAR = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer Y { float y[]; };
layout(binding = 1) buffer Z { float z[]; };
layout(push_constant) uniform Push { uint by; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    z[i] = y[i + by];
    y[i + by] = 5.0;
}
"""


def test_reads_beyond_give_zeros_and_writes_are_dropped(reopen: Callable[..., vkpar.Device]) -> None:
    device = reopen(debug="bounds")
    kernel = vkpar.Kernel(device, FAR)
    whole = device.array(np.ones(1024, "float32"))
    view, read = whole[256:320], device.array(np.full(64, 9, "float32"))
    kernel(view, read, elements=64, push={"by": 0})
    assert (read.numpy() == 1).all()
    for by in (64, 1 << 20, (1 << 32) - 64):
        kernel(view, read, elements=64, push={"by": by})
        if "VK_EXT_robustness2" in device.info.extensions:
            assert (read.numpy() == 0).all()
    expected = np.ones(1024, "float32")
    expected[256:320] = 5
    assert np.array_equal(whole.numpy(), expected)


@pytest.mark.parametrize("debug", ["", "bounds"])
def test_the_driver_is_asked_for_it(
    reopen: Callable[..., vkpar.Device], monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    made: list[tuple[str, object]] = []
    vk = api.load()
    struct = vk.struct

    def note(name: str, **fields: object) -> object:
        item = struct(name, **fields)
        made.append((name, item))
        return item

    monkeypatch.setattr(vk, "struct", note)
    device = reopen(debug=debug)
    two = [item for name, item in made if name == "VkPhysicalDeviceFeatures2"][-1]
    assert two.features.robustBufferAccess == bool(debug)
    asked = [item for name, item in made if name == "VkDeviceCreateInfo"][-1]
    names = [vk.text(asked.ppEnabledExtensionNames[i]) for i in range(asked.enabledExtensionCount)]
    robust = [item.robustBufferAccess2 for name, item in made if name == "VkPhysicalDeviceRobustness2FeaturesEXT"]
    assert ("VK_EXT_robustness2" in names) == bool(debug and "VK_EXT_robustness2" in device.info.extensions)
    assert bool(robust and robust[-1]) == ("VK_EXT_robustness2" in names)
