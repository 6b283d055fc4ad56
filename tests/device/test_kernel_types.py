"""Kernels of one's own on arrays of other types than they declare, and over more dimensions than they read."""

from __future__ import annotations

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError
from vkpar.vulkan.pipelines.elements import Padded
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.source import compiled

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


def holding(member: str, *, layout: str = "", before: str = "", after: str = "") -> str:
    """Return a kernel that adds one to the first two elements of ``v``."""
    extensions = "".join(f"#extension {name} : require\n" for name in EXTENSIONS)
    return (
        f"#version 450\n{extensions}layout(local_size_x = 1) in;\n{before}\n"
        f"layout({layout}binding = 0) buffer A {{ {member} }};\nvoid main() {{ {after or 'v[0] += v[1];'} }}\n"
    )


EXTENSIONS = ("GL_EXT_scalar_block_layout", "GL_EXT_shader_16bit_storage", "GL_EXT_shader_8bit_storage")
TIGHT = {
    "vec3 v[];": ((2, 3), "float32", (2, 4), "vec3, one every 16 bytes", 4),
    "vec3 v[2];": ((2, 3), "float32", (2, 4), "vec3", 4),
    "vec3 v[][3];": ((2, 3, 3), "float32", (2, 3, 4), "vec3", 4),
    "uvec3 v[];": ((2, 3), "float32", (2, 4), "uvec3", 4),
    "ivec3 v[];": ((2, 3), "int32", (2, 8), "ivec3", 4),
    "dvec3 v[];": ((2, 3), "float64", (2, 4), "dvec3, one every 32 bytes", 4),
    "mat3 v[];": ((2, 3, 3), "float32", (2, 3, 4), "vec3", 4),
    "mat3 v;": ((3, 3), "float32", (3, 4), "vec3", 4),
    "mat4x3 v[];": ((2, 4, 3), "float32", (2, 4, 4), "vec3", 4),
    "layout(row_major) mat3x4 v[];": ((2, 4, 3), "float32", (2, 4, 4), "vec3", 4),
}
ADDED = {"vec3 v[][3];": "v[0][0] += v[1][0];", "mat3 v;": "v[0] += v[1];"}


def made(device: vkpar.Device, source: str) -> vkpar.Kernel:
    """Return the kernel; skip where the device has no such numbers."""
    try:
        return vkpar.Kernel(device, source)
    except vkpar.UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("member", TIGHT)
def test_what_lies_tight_is_refused_where_a_binding_has_gaps(device: vkpar.Device, member: str) -> None:
    tight, dtype, padded, text, numbers = TIGHT[member]
    kernel = made(device, holding(member, after=ADDED.get(member, "")))
    given = device.array(np.arange(np.prod(tight)).reshape(tight), dtype)
    for call in (kernel, kernel.time):
        with pytest.raises(InvalidUsageError, match=rf"binding 0 is declared to hold {text}.*pad it to {numbers} num"):
            call(1, given)
    assert np.array_equal(given.numpy(), np.arange(np.prod(tight)).reshape(tight))
    if given.size % padded[-1]:
        with pytest.raises(InvalidUsageError, match="padding behind each"):
            kernel(1, given.reshape(-1))
    for shape in (padded, (np.prod(padded),)):
        for _ in range(2):  # by a plan, too
            kernel(1, device.zeros(shape, dtype))
            with pytest.raises(InvalidUsageError, match="padding behind each"):
                kernel(1, given)


def test_padded_vectors_are_where_the_kernel_has_them(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, holding("vec3 v[];"))
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    for given in (device.array(host), device.array(host.ravel())):
        kernel(1, given)
        host_after = host.copy()
        host_after[0, :3] += host[1, :3]
        assert np.array_equal(given.numpy().reshape(3, 4), host_after)
    one = device.array([[1, 2, 3]], "float32")  # alone it has no gap
    vkpar.Kernel(device, holding("vec3 v[];", after="v[0] *= 2.0;"))(1, one)
    assert np.array_equal(one.numpy(), [[2, 4, 6]])


@pytest.mark.parametrize(
    ("member", "shape", "dtype", "how"),
    [
        ("vec4 v[];", (2, 4), "float32", {}),
        ("vec2 v[];", (3, 2), "float32", {}),
        ("float v[];", (3, 3), "float32", {}),
        ("uint v[];", (3, 3), "float32", {}),  # whose bits it reads
        ("mat4 v[];", (2, 4, 4), "float32", {}),
        ("mat3x2 v[];", (2, 3, 2), "float32", {}),
        ("layout(row_major) mat4x3 v[];", (2, 3, 4), "float32", {}),
        ("S v[];", (3, 3), "float32", {"before": "struct S { vec3 a; };", "after": "v[0].a += v[1].a;"}),
        ("uint n; vec3 v[];", (3, 3), "float32", {}),
    ],
)
def test_what_has_no_gaps_or_is_not_looked_into_takes_what_lies_tight(
    device: vkpar.Device, member: str, shape: tuple[int, ...], dtype: str, how: dict[str, str]
) -> None:
    made(device, holding(member, **how))(1, device.zeros(shape, dtype))


@pytest.mark.parametrize("kind", ["float", "vec2", "vec3"])
def test_arrays_of_std140_have_gaps_of_their_own(device: vkpar.Device, kind: str) -> None:
    count = int(kind[-1]) if kind != "float" else 1
    kernel = vkpar.Kernel(device, holding(f"{kind} v[];", layout="std140, "))
    with pytest.raises(InvalidUsageError, match=rf"hold {kind}, one every 16 bytes.*lacks the {16 - 4 * count} bytes"):
        kernel(1, device.zeros((2, count)))
    kernel(1, device.zeros((2, 4)))


def test_vectors_of_a_scalar_layout_have_none() -> None:
    declared = [
        reflect(compiled(holding("vec3 v[];", layout=layout), "main", {}, [])[0]).padded for layout in ("", "scalar, ")
    ]
    assert declared == [((0, Padded(12, 16, "vec3")),), ()]


def test_a_binding_by_two_names_may_be_either(device: vkpar.Device) -> None:
    both = "layout(binding = 0) buffer B { float w[]; };"
    vkpar.Kernel(device, holding("vec3 v[];", before=both, after="v[0] *= w[3];"))(1, device.zeros((3, 3)))
