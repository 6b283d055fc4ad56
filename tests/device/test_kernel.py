"""The user's own kernels on every driver."""

from __future__ import annotations

import functools
import struct

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, ShaderCompileError, UnsupportedError
from vkpar.vulkan import shader

pytestmark = pytest.mark.device

SCALE = """
#version 450
#ifndef GROUP
#define GROUP 64
#endif
layout(local_size_x = GROUP) in;
layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) buffer B { float b[]; };
layout(push_constant) uniform P { uint n; float by; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) b[i] = by * a[i];
}
"""
STAMP = """
#version 450
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer A { uint a[]; };
void main() { a[gl_WorkGroupID.x + 4 * (gl_WorkGroupID.y + 3 * gl_WorkGroupID.z)] = VALUE; }
"""
NOTHING = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"


@functools.cache
def spirv(source: str) -> bytes:
    """Compile once a run; skip where there is no compiler."""
    if shader.compiler() is None:
        pytest.skip("no GLSL compiler")
    return shader.compile_glsl(source)


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    if shader.compiler() is None:
        pytest.skip("no GLSL compiler")


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("as_spirv", [False, True])
def test_glsl_and_spirv(device: vkpar.Device, count: int, as_spirv: bool) -> None:
    kernel = vkpar.Kernel(device, spirv(SCALE) if as_spirv else SCALE)
    a = device.array(np.arange(count, dtype=np.float32))
    b = device.zeros(count)
    kernel(-(-count // 64), a, b, push=struct.pack("<If", count, 2.5))
    assert np.array_equal(b.numpy(), 2.5 * np.arange(count, dtype=np.float32))


def test_defines_and_dimensions(device: vkpar.Device) -> None:
    for value in (7, 9):
        kernel = vkpar.Kernel(device, STAMP, defines={"VALUE": value})  # type: ignore[dict-item]
        for groups, number in [(4, 4), ((4,), 4), ((4, 2), 8), ((4, 3, 2), 24), ((0, 3, 2), 0)]:
            made = device.zeros(24, "uint32")
            kernel(groups, made)  # type: ignore[arg-type]
            assert list(made.numpy()) == [value] * number + [0] * (24 - number)


def test_a_spirv_entry_of_another_name(device: vkpar.Device) -> None:
    if shader.compiler() != "libshaderc":
        pytest.skip("renames the entry point of GLSL by libshaderc alone")
    renamed = spirv(STAMP.replace("VALUE", "5")).replace(b"main\0\0\0\0", b"stam\0\0\0\0")
    kernel = vkpar.Kernel(device, renamed, entry="stam")
    made = device.zeros(1, "uint32")
    kernel(1, made)
    assert made.numpy()[0] == 5
    with pytest.raises(InvalidUsageError, match=r"no compute entry point 'main'.*stam"):
        vkpar.Kernel(device, renamed)


def test_kernels_run_in_program_order(device: vkpar.Device) -> None:
    double = vkpar.Kernel(device, SCALE)
    a = device.array(np.ones(100, np.float32))
    for _ in range(300):  # more than the frames of a queue
        double(2, a, a, push=struct.pack("<If", 100, 1.0))
    for _ in range(10):
        double(2, a, a, push=struct.pack("<If", 100, 2.0))
    assert np.all(a.numpy() == 1024)


def test_a_kernel_without_arrays(device: vkpar.Device) -> None:
    vkpar.Kernel(device, NOTHING)(3)
    device.synchronize()


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 128])
def test_views_at_offsets_that_the_device_can_bind(device: vkpar.Device, rows: int) -> None:
    """A row is 4 bytes: views start at 4, 16, 64, 256 and 512 bytes."""
    kernel = vkpar.Kernel(device, STAMP.replace("VALUE", "5"))
    whole = device.zeros(200, "uint32")
    alignment = device.limits.min_storage_buffer_offset_alignment
    if 4 * rows % alignment == 0:
        kernel((4, 2), whole[rows : rows + 9])
        want = np.zeros(200, np.uint32)
        want[rows : rows + 8] = 5
        assert np.array_equal(whole.numpy(), want)
    else:
        with pytest.raises(InvalidUsageError, match=rf"multiple of {alignment}\b"):
            kernel((4, 2), whole[rows : rows + 9])
        assert not whole.numpy().any()


@pytest.mark.parametrize(
    "source", ["", "not GLSL", SCALE.replace("b[i] =", "b[i] ="), "#version 450\nvoid main() { x = 1; }"]
)
def test_glsl_with_errors(device: vkpar.Device, source: str) -> None:
    if "b[i] =" in source:
        source = source.replace("by * a[i]", "by * missing[i]")
    with pytest.raises(ShaderCompileError) as caught:
        vkpar.Kernel(device, source)
    assert caught.value.log.strip()
    assert caught.value.log.strip() in str(caught.value)
    if "missing" in source:
        assert "missing" in caught.value.log


@pytest.mark.parametrize("source", [b"", b"SPIR-V", b"\3\2\x23\7" * 5, bytes(100)])
def test_bytes_that_are_no_module(device: vkpar.Device, source: bytes) -> None:
    with pytest.raises(InvalidUsageError, match=r"SPIR-V|entry point"):
        vkpar.Kernel(device, source)


def test_defines_are_for_glsl(device: vkpar.Device) -> None:
    with pytest.raises(InvalidUsageError, match="defines"):
        vkpar.Kernel(device, spirv(SCALE), defines={"GROUP": "32"})


@pytest.mark.parametrize(
    ("declaration", "error"),
    [
        ("layout(set = 0, binding = 1) buffer A { uint a[]; };", InvalidUsageError),
        ("layout(set = 1, binding = 0) buffer A { uint a[]; };", UnsupportedError),
        ("layout(set = 0, binding = 0) uniform A { uint a[4]; };", UnsupportedError),
        ("layout(push_constant) uniform A { uint a[1000]; };", UnsupportedError),
    ],
)
def test_interfaces_that_are_refused(device: vkpar.Device, declaration: str, error: type[Exception]) -> None:
    store = "" if "uniform" in declaration else "a[0] = 1;"
    use = store or "if (a[gl_WorkGroupID.x] == 7u) return;"
    with pytest.raises(error):
        vkpar.Kernel(device, f"#version 450\nlayout(local_size_x = 1) in;\n{declaration}\nvoid main() {{ {use} }}")


def test_a_wrong_call_is_refused_and_runs_nothing(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, SCALE)
    a, b, push = device.array(np.ones(4, np.float32)), device.zeros(4), struct.pack("<If", 4, 2.0)
    submitted = device.logical.compute.last
    wrong: list[tuple[object, tuple[object, ...], bytes]] = [
        (1, (a,), push),
        (1, (a, b, b), push),
        (1, (), push),
        (1, (a, b), b""),
        (1, (a, b), push + b"\0"),
        (1, (a, device.zeros(0)), push),
        (1, (a, np.zeros(4, np.float32)), push),
        (1, (None, b), push),
        ((), (a, b), push),
        ((1, 1, 1, 1), (a, b), push),
        (-1, (a, b), push),
        ((1, "x"), (a, b), push),
        (1 << 40, (a, b), push),
    ]
    for groups, arrays, pushed in wrong:
        with pytest.raises(InvalidUsageError):
            kernel(groups, *arrays, push=pushed)  # type: ignore[arg-type]
    assert not b.numpy().any()
    assert device.logical.compute.last <= submitted + 2  # zeros and read, no kernel
    kernel(1, a, b, push=push)
    assert np.all(b.numpy() == 2)


@pytest.mark.xfail(strict=True, reason="TypeError: only int and tuples of int are taken")
@pytest.mark.parametrize("groups", [np.int64(1), (np.int32(1), 1), 1.5, None])
def test_groups_of_other_types(device: vkpar.Device, groups: object) -> None:
    """NumPy's whole numbers are whole numbers; anything else is refused with a typed error."""
    kernel = vkpar.Kernel(device, NOTHING)
    if isinstance(groups, (float, type(None))):
        with pytest.raises(InvalidUsageError):
            kernel(groups)  # type: ignore[arg-type]
    else:
        kernel(groups)  # type: ignore[arg-type]


@pytest.mark.xfail(strict=True, reason="TypeError from bytes(), or bytes(5) taken for a module")
@pytest.mark.parametrize("source", [None, 3.5, ["#version 450"]])
def test_sources_of_other_types(device: vkpar.Device, source: object) -> None:
    with pytest.raises(InvalidUsageError):
        vkpar.Kernel(device, source)  # type: ignore[arg-type]


def test_arrays_of_another_device(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, STAMP.replace("VALUE", "5"))
    with vkpar.open_devices(str(device.info.index))[0] as other:
        with pytest.raises(InvalidUsageError, match="are on"):
            kernel(1, other.zeros(4, "uint32"))
        with pytest.raises(InvalidUsageError, match="different devices"):
            vkpar.Kernel(device, SCALE)(1, device.zeros(4), other.zeros(4), push=bytes(8))


def test_a_closed_device(device: vkpar.Device) -> None:
    other = vkpar.open_devices(str(device.info.index))[0]
    kernel, made = vkpar.Kernel(other, STAMP.replace("VALUE", "5")), other.zeros(4, "uint32")
    other.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        kernel(1, made)
    with pytest.raises(InvalidUsageError, match="closed"):
        vkpar.Kernel(other, NOTHING)


def test_an_array_larger_than_the_device_can_bind(device: vkpar.Device) -> None:
    most = device.limits.max_storage_buffer_range
    if most > 256 << 20:
        pytest.skip("would take too much memory")
    kernel = vkpar.Kernel(device, STAMP.replace("VALUE", "5"))
    big = device.empty(most // 4 + 1, "uint32")
    with pytest.raises(UnsupportedError, match="maxStorageBufferRange"):
        kernel(1, big)
    kernel(1, big[: most // 4])
    assert big[:1].numpy()[0] == 5


def test_no_compiler_says_what_to_install(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shader, "_shaderc", lambda: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert shader.compiler() is None
    with pytest.raises(UnsupportedError, match=r"libshaderc1.*glslang-tools"):
        vkpar.Kernel(device, NOTHING)


@pytest.mark.parametrize("tool", ["glslc", "glslangValidator"])
def test_other_compilers(device: vkpar.Device, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shader.shutil.which(tool)
    if path is None:
        pytest.skip(f"no {tool}")
    monkeypatch.setattr(shader, "_shaderc", lambda: None)
    monkeypatch.setattr(shader.shutil, "which", lambda name: path if name == tool else None)
    assert shader.compiler() == tool
    kernel = vkpar.Kernel(device, STAMP, defines={"VALUE": "6"})
    made = device.zeros(4, "uint32")
    kernel(4, made)
    assert list(made.numpy()) == [6] * 4
    with pytest.raises(ShaderCompileError) as caught:
        vkpar.Kernel(device, "#version 450\nvoid main() { x = 1; }")
    assert "'x'" in caught.value.log
