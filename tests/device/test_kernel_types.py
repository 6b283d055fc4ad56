"""Kernels of one's own on arrays of other types than they declare, and over more dimensions than they read."""

from __future__ import annotations

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError

SCALE = """#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float v[]; };
layout(binding = 1) uniform By { float by; };
layout(push_constant) uniform P { uint n; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) v[i] *= by; }
"""
BITS = SCALE.replace("float v", "uint v").replace("v[i] *= by", "v[i] = ~v[i]")
ROWS = """#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float v[]; };
layout(push_constant) uniform P { uint rows; uint columns; };
void main() {
    uvec2 at = gl_GlobalInvocationID.xy;
    if (at.x < columns && at.y < rows) v[at.y * columns + at.x] += 1.0;
}
"""


@pytest.fixture(autouse=True)
def _needs_a_compiler(compiler: None) -> None:
    """Skip every test of this file where there is no compiler."""


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "uint32", "int8", "bool"])
def test_arrays_of_other_types_are_refused(device: vkpar.Device, dtype: str) -> None:
    kernel = vkpar.Kernel(device, SCALE)
    by, wrong = device.array([3.0], "float32"), device.array(np.ones(8, np.int32), dtype)
    before = wrong.numpy()
    for call in (kernel, kernel.time):
        with pytest.raises(
            InvalidUsageError, match=f"binding 0 is declared to hold float, not {dtype} as <vkpar.Array"
        ):
            call(wrong, by, elements=8, push={"n": 8})
    good = device.array(np.ones(8), "float32")
    for _ in range(2):  # by a plan, too
        kernel(good, by, elements=8, push={"n": 8})
        with pytest.raises(InvalidUsageError, match="binding 1 is declared to hold float"):
            kernel(good, wrong, elements=8, push={"n": 8})
        with pytest.raises(InvalidUsageError, match="binding 0 is declared to hold float"):
            kernel(wrong, by, elements=8, push={"n": 8})
    assert (good.numpy() == 9).all()
    assert np.array_equal(before, wrong.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "complex64"])
def test_uint_reads_the_bits_of_every_type(device: vkpar.Device, dtype: str) -> None:
    kernel, by = vkpar.Kernel(device, BITS), device.array([3.0], "float32")
    array = device.array(np.arange(64), dtype)
    host = array.numpy()
    nwords = array.nbytes // 4
    kernel(array, by, elements=nwords, push={"n": nwords})
    assert np.array_equal(array.numpy().view(np.uint8), ~host.view(np.uint8))


def test_elements_in_two_dimensions_of_a_kernel_that_reads_one(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, SCALE)
    a, by = device.array(np.ones((10, 10)), "float32"), device.array([2.0], "float32")
    kernel((1, 10), a, by, push={"n": 0})  # groups are the caller's own
    for call in (kernel, kernel.time):
        with pytest.raises(InvalidUsageError, match=r"elements=\(10, 10\) counts in y.*elements=100 \(array.size\)"):
            call(a, by, elements=a.shape, push={"n": 100})
    with pytest.raises(InvalidUsageError, match=r"counts in y and z"):
        kernel(a, by, elements=(1, 2, 3), push={"n": 100})
    kernel(a, by, elements=(100, 1), push={"n": 100})
    kernel(a, by, elements=a.size, push={"n": 100})
    assert (a.numpy() == 4).all()


def test_elements_in_two_dimensions_of_a_kernel_that_reads_both(device: vkpar.Device) -> None:
    kernel, a = vkpar.Kernel(device, ROWS), device.zeros((5, 70))
    for _ in range(3):
        kernel(a, elements=(70, 5), push={"rows": 5, "columns": 70})
    assert (a.numpy() == 3).all()
    with pytest.raises(InvalidUsageError, match="counts in z"):
        kernel(a, elements=(70, 5, 2), push={"rows": 5, "columns": 70})
