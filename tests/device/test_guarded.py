"""Guard words catch what kernels write beyond their arrays, on every driver; nothing else is affected by them."""

from __future__ import annotations

import numpy as np
import pytest

import vkpar
from vkpar.testing import Guarded, assert_allclose, guarded

HEAD = "#version 450\nlayout(local_size_x = 64) in;\n"
ONES = HEAD + "layout(binding = 0) buffer Y { TYPE y[]; };\nvoid main() { y[gl_GlobalInvocationID.x] = TYPE(1); }"
SHIFTED = (
    HEAD
    + """
layout(binding = 0) buffer Y { float y[]; };
layout(push_constant) uniform Push { int from; uint vkpar_offset_0; };
void main() { y[vkpar_offset_0 + from + gl_GlobalInvocationID.x] = 1.0; }
"""
)
MEASURED = (
    HEAD
    + """
layout(binding = 0) buffer Y { float y[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < y.length()) y[i] = float(y.length()); }
"""
)

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("compiler")]


@pytest.fixture
def ones(device: vkpar.Device) -> vkpar.Kernel:
    """Writes 1 to as many elements as there are invocations, whole work-groups."""
    return vkpar.Kernel(device, ONES.replace("TYPE", "float"))


@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("uint", "uint32"), ("double", "float64")])
def test_what_is_written_behind_is_caught(device: vkpar.Device, kind: str, dtype: str) -> None:
    if dtype == "float64" and not device.info.features.float64:
        pytest.skip("no float64")
    kernel, array = vkpar.Kernel(device, ONES.replace("TYPE", kind)), guarded(device, (8, 16), dtype)
    kernel(array, elements=128)
    array.check()
    assert (array.numpy() == 1).all()
    kernel(array, elements=129)
    with pytest.raises(
        AssertionError, match=r"64 elements outside of .*: 0 before it, 64 behind it\n.*128 of 128 is now 1"
    ):
        array.check()


@pytest.mark.parametrize("size", [1, 63, 100, 129])
def test_sizes_that_end_within_a_word_of_padding(device: vkpar.Device, ones: vkpar.Kernel, size: int) -> None:
    array = guarded(device, size)
    ones(array, elements=size)
    whole = -(-size // 64) * 64
    with pytest.raises(AssertionError, match=f"{whole - size} elements? outside.*0 before it, {whole - size} behind"):
        array.check()


@pytest.mark.parametrize("first", [0, 1, 64, 100])
def test_views_too(device: vkpar.Device, first: int) -> None:
    kernel, array = vkpar.Kernel(device, SHIFTED), guarded(device, 400)
    array.write(np.full(400, 7, "float32"))
    view = array[first : first + 64]
    assert isinstance(view, Guarded)
    kernel(view, elements=64, push={"from": 0})
    view.check()
    kernel(view, elements=64, push={"from": 3})
    with pytest.raises(
        AssertionError, match=r"3 elements outside of .*: 0 before it, 3 behind it\n  element 64 of 64 "
    ):
        view.check()
    array.check()  # all of that lies in the array


@pytest.mark.parametrize("first", [0, 1, 64, 100])
def test_what_is_written_before_is_caught_of_kernels_that_take_offsets(device: vkpar.Device, first: int) -> None:
    kernel, array = vkpar.Kernel(device, SHIFTED), guarded(device, 400)
    view = array[first:]
    kernel(view, elements=128, push={"from": -2})
    with pytest.raises(AssertionError, match=r"2 elements outside of .*: 2 before it, 0 behind it\n  element -1 of "):
        view.check()
    if first == 0:
        with pytest.raises(AssertionError, match="2 before it"):
            array.check()


def test_the_plans_of_repeated_calls_catch_it_too(device: vkpar.Device, ones: vkpar.Kernel) -> None:
    """A call finds its plan by the array's form, and guarded arrays have forms of their own."""
    plain, array = device.zeros(256)[:100], guarded(device, 100)
    for each in (plain, array, plain, array):
        ones(each, elements=64)
    array.check()
    for _ in range(2):
        ones(array, elements=100)
    with pytest.raises(AssertionError, match="28 elements outside"):
        array.check()


def test_a_kernel_that_asks_for_the_length_gets_the_arrays_own(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, MEASURED)
    for each in (guarded(device, 100), guarded(device, 100)[:52]):
        kernel(each, elements=400)
        each.check()
        assert (each.numpy() == each.size).all()


def test_operations_take_them_and_their_results_have_no_guards(device: vkpar.Device, rng: np.random.Generator) -> None:
    x = rng.integers(-8, 8, (6, 20)).astype("float32")
    a, out = guarded(device, x.shape), guarded(device, (6, 6))
    a.write(x)
    vkpar.matmul(a, a, transpose_b=True, out=out)
    assert_allclose(out, x @ x.T)
    total = a + a
    assert type(total) is vkpar.Array
    assert_allclose(total, 2 * x)
    assert_allclose(a.sum(axis=0), x.sum(axis=0))
    assert type(a.copy()) is vkpar.Array
    a.T.copy_from(a.T)
    a[1:3, ::2].fill(3)
    vkpar.add(a[0], a[1], out=a[2])
    for each in (a, out, a.T, a.reshape(120), a[::2]):
        each.check()


def test_what_else_writes_around_it(device: vkpar.Device) -> None:
    array = guarded(device, 10, "uint8")
    view = array[2:4]
    view.fill(9)
    view.check()
    array[4] = 1
    with pytest.raises(AssertionError, match=r"1 element outside of .*\n  element 2 of 2 is now 1$"):
        view.check()
    array.check()


def test_bad_ones(device: vkpar.Device) -> None:
    with pytest.raises(vkpar.InvalidUsageError, match="takes an opened vkpar"):
        guarded(device.info, 3)  # type: ignore[arg-type]
    for shape in (0, (3, 0), device.limits.max_storage_buffer_range):
        with pytest.raises(vkpar.InvalidUsageError, match="has from 1 to"):
            guarded(device, shape, "uint8")
    with pytest.raises(vkpar.InvalidUsageError):
        guarded(device, -1)
    array = guarded(device, 3)
    array.close()
    with pytest.raises(vkpar.InvalidUsageError):
        array.check()
