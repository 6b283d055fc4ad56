"""The user's own kernels on every driver."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, ShaderCompileError, UnsupportedError
from vkpar.ops.elementwise.front import _spirv
from vkpar.vulkan import api
from vkpar.vulkan.command import DescriptorPool
from vkpar.vulkan.pipelines import compiled, shader

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
def _needs_a_compiler(compiler: None) -> None:
    """Skip every test of this file where there is no compiler."""


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
        with pytest.raises(InvalidUsageError, match=rf"multiple of {alignment}\b.*vkpar_offset_0.*a\.copy\(\)"):
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
    assert ("without a first line #version 450" in str(caught.value)) == ("#version" not in source)


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
        ("layout(set = 1, binding = 0) uniform A { uint a[4]; };", UnsupportedError),
        ("layout(set = 0, binding = 0) buffer A { uint a[4]; } b[4];", UnsupportedError),
        ("layout(push_constant) uniform A { uint a[1000]; };", UnsupportedError),
    ],
)
def test_interfaces_that_are_refused(device: vkpar.Device, declaration: str, error: type[Exception]) -> None:
    store = "" if "uniform" in declaration else "b[1].a[0] = 1;" if " b[4]" in declaration else "a[0] = 1;"
    use = store or "if (a[gl_WorkGroupID.x] == 7u) return;"
    with pytest.raises(error):
        vkpar.Kernel(device, f"#version 450\nlayout(local_size_x = 1) in;\n{declaration}\nvoid main() {{ {use} }}")


def capability(device: vkpar.Device, body: str, extensions: str = "", layout: str = "local_size_x = 1") -> vkpar.Kernel:
    """Make a kernel that writes four words into binding 0."""
    lines = [f"#extension GL_{name} : require" for name in extensions.split()]
    declared = "layout(set = 0, binding = 0) buffer A { uint a[]; };"
    text = "\n".join(["#version 450", *lines, f"layout({layout}) in;", declared, body])
    return vkpar.Kernel(device, text)


def test_more_buffers_than_the_device_binds(device: vkpar.Device) -> None:
    most = min(device.limits.max_storage_buffers, 64)
    for number in (most, most + 1):
        names = [f"layout(set = 0, binding = {i}) buffer B{i} {{ uint b{i}[]; }};" for i in range(number)]
        body = "".join(f"b{i}[0] = {i};" for i in range(number))
        source = "#version 450\nlayout(local_size_x = 1) in;\n" + "\n".join(names) + f"\nvoid main() {{ {body} }}"
        if number > most:
            with pytest.raises(UnsupportedError, match=f"{number} storage buffers; .* allows {most}"):
                vkpar.Kernel(device, source)
        else:
            whole = device.zeros(64 * number, "uint32")
            arrays = [whole[64 * i : 64 * i + 64] for i in range(number)]
            vkpar.Kernel(device, source)(1, *arrays)
            assert list(whole.numpy()[::64]) == list(range(number))


def with_local_size(*size: int) -> bytes:
    """Return a module of that local size, which GLSL compilers bound themselves."""
    code, one = spirv(STAMP.replace("VALUE", "5")), struct.pack("<4I", 17, 1, 1, 1)
    assert code.count(one) == 1
    words = memoryview(code).cast("I")
    built_in = [at for at in range(len(words) - 3) if (words[at], *words[at + 2 : at + 4]) == (4 << 16 | 71, 11, 25)]
    for at in built_in:  # the constant that would win over the execution mode
        code = code[: 4 * at] + code[4 * at + 16 :]
    return code.replace(one, struct.pack("<4I", 17, *size))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_local_sizes_over_the_limit(device: vkpar.Device, axis: int) -> None:
    size = [1, 1, 1]
    size[axis] = device.limits.max_workgroup_size[axis]
    vkpar.Kernel(device, with_local_size(*size))
    size[axis] += 1
    with pytest.raises(UnsupportedError, match="local size"):
        vkpar.Kernel(device, with_local_size(*size))
    size[axis] = 0
    with pytest.raises(InvalidUsageError, match="no local size"):
        vkpar.Kernel(device, with_local_size(*size))


def test_too_many_invocations(device: vkpar.Device) -> None:
    x, most = device.limits.max_workgroup_size[0], device.limits.max_workgroup_invocations
    y = most // x
    made = device.zeros(4, "uint32")
    vkpar.Kernel(device, with_local_size(x, y, 1))(1, made)
    assert made.numpy()[0] == 5
    with pytest.raises(UnsupportedError, match=f"{x * (y + 1)} invocations .* allows {most}"):
        vkpar.Kernel(device, with_local_size(x, y + 1, 1))


def test_spirv_that_is_too_new(device: vkpar.Device) -> None:
    code = bytearray(spirv(NOTHING))
    code[5] = 9
    with pytest.raises(UnsupportedError, match=r"SPIR-V 1\.9"):
        vkpar.Kernel(device, code)


def test_shared_memory_over_the_limit(device: vkpar.Device) -> None:
    most = device.limits.max_shared_memory
    body = "shared uint s[{}]; void main() {{ s[a[0]] = a[1]; barrier(); a[2] = s[a[3]]; }}"
    capability(device, body.format(most // 4))
    with pytest.raises(UnsupportedError, match=f"{most + 4} bytes of shared memory; .* allows {most}"):
        capability(device, body.format(most // 4 + 1))


@pytest.mark.parametrize(
    ("name", "extensions", "body", "feature"),
    [
        ("Float64", "", "void main() { double d = double(a[0]); a[1] = uint(d * d); }", "float64"),
        ("Int64", "ARB_gpu_shader_int64", "void main() { uint64_t d = a[0]; a[1] = uint((d * d) >> 3); }", "int64"),
        (
            "StoragePushConstant16",
            "EXT_shader_16bit_storage",
            "layout(push_constant) uniform P { float16_t h; }; void main() { a[0] = uint(float(h)); }",
            None,
        ),
        (
            "StorageBuffer16BitAccess",
            "EXT_shader_16bit_storage",
            "layout(set = 0, binding = 1) buffer H { float16_t h[]; }; void main() { a[0] = uint(float(h[0])); }",
            "storage_16bit",
        ),
        (
            "StorageBuffer8BitAccess",
            "EXT_shader_8bit_storage",
            "layout(set = 0, binding = 1) buffer H { uint8_t h[]; }; void main() { a[0] = uint(h[0]); }",
            "storage_8bit",
        ),
        (
            "Float16",
            "EXT_shader_explicit_arithmetic_types_float16",
            "void main() { a[0] = uint(float16_t(float(a[1])) * float16_t(2)); }",
            "float16",
        ),
    ],
)
def test_capabilities(device: vkpar.Device, name: str, extensions: str, body: str, feature: str | None) -> None:
    if feature is not None and getattr(device.info.features, feature):
        capability(device, body, extensions)
    else:
        with pytest.raises(UnsupportedError, match=rf"\b{name}\b") as caught:
            capability(device, body, extensions)
        assert device.name in str(caught.value)


def test_subgroup_operations(device: vkpar.Device) -> None:
    operations = device.info.features.subgroup_operations
    source = "void main() { a[gl_GlobalInvocationID.x] = subgroupAdd(1u); }"
    if "arithmetic" not in operations:
        with pytest.raises(UnsupportedError, match="GroupNonUniformArithmetic"):
            capability(device, source, "KHR_shader_subgroup_arithmetic")
        return
    kernel = capability(device, source, "KHR_shader_subgroup_arithmetic", "local_size_x = 64")
    made = device.zeros(64, "uint32")
    kernel(1, made)
    assert set(made.numpy()) == {min(64, device.info.features.subgroup_size)}


@pytest.mark.parametrize("entry", ["other", "", None, ["main"]])
def test_an_entry_of_glsl(device: vkpar.Device, entry: Any) -> None:
    with pytest.raises(InvalidUsageError, match="entry point of GLSL is 'main'"):
        vkpar.Kernel(device, NOTHING, entry=entry)
    with pytest.raises(InvalidUsageError, match="no compute entry point"):
        vkpar.Kernel(device, spirv(NOTHING), entry=entry)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda code: np.frombuffer(code, np.uint32)])
def test_spirv_in_other_buffers(device: vkpar.Device, kind: Callable[[bytes], Any]) -> None:
    kernel = vkpar.Kernel(device, kind(spirv(STAMP.replace("VALUE", "5"))))
    made = device.zeros(1, "uint32")
    kernel(1, made)
    assert made.numpy()[0] == 5


def test_push_constants_of_any_buffer(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, SCALE)
    a, packed = device.array(np.ones(4, np.float32)), struct.pack("<If", 4, 3.0)
    strided = np.repeat(np.frombuffer(packed, np.uint32), 2)[::2]
    record = np.array((4, 3.0), [("n", "<u4"), ("by", "<f4")])
    for push in (packed, bytearray(packed), memoryview(packed), np.frombuffer(packed, np.uint8), strided, record):
        b = device.zeros(4)
        kernel(1, a, b, push=push)
        assert np.all(b.numpy() == 3)
    with pytest.raises(InvalidUsageError, match="8 bytes of push constants; got 128"):
        kernel(1, a, b, push=np.arange(16))
    for wrong in (None, 8, "12345678", [1, 2], [3.0] * 8, object()):
        with pytest.raises(InvalidUsageError, match="push constants are a dict of values by name, bytes or"):
            kernel(1, a, b, push=wrong)  # type: ignore[arg-type]


LENGTH = """
#version 450
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer A { uint a[]; };
void main() { for (uint i = 0; i < a.length(); ++i) a[i] = a.length(); }
"""


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (0, 1), (0, 0), (64, 67), (64, 69), (64, 71), (0, 70)])
def test_a_kernel_sees_no_more_than_its_view(device: vkpar.Device, start: int, stop: int) -> None:
    kernel = vkpar.Kernel(device, LENGTH)
    whole = device.zeros(71, "uint32")
    if start == stop:
        with pytest.raises(InvalidUsageError, match="without elements"):
            kernel(1, whole[start:stop])
        return
    kernel(1, whole[start:stop])
    want = np.zeros(71, np.uint32)
    want[start:stop] = -(-(stop - start) // 4) * 4 if stop == 71 else stop - start
    assert np.array_equal(whole.numpy(), want)


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


@pytest.mark.parametrize("groups", [np.int64(1), (np.int32(1), 1), [1, 1]])
def test_whole_numbers_of_other_types(device: vkpar.Device, groups: Any) -> None:
    made = device.zeros(4, "uint32")
    vkpar.Kernel(device, STAMP.replace("VALUE", "5"))(groups, made)
    assert list(made.numpy()) == [5, 0, 0, 0]


@pytest.mark.parametrize("groups", [1.5, None, "1", (1, None), np.ones(2), (1.0, 1)])
def test_groups_that_are_no_whole_numbers(device: vkpar.Device, groups: Any) -> None:
    with pytest.raises(InvalidUsageError, match="work-groups"):
        vkpar.Kernel(device, NOTHING)(groups)


@pytest.mark.parametrize("source", [None, 5, 3.5, ["#version 450"], b"#version 450"])
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
    with pytest.raises(UnsupportedError, match=r"libshaderc, .*install glslang-tools"):
        vkpar.Kernel(device, NOTHING + "// a text that is never compiled\n")


@pytest.mark.usefixtures("compiler")
def test_what_was_compiled_before_needs_no_compiler(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings_override: Callable[..., None]
) -> None:
    settings_override(cache_dir=str(tmp_path))
    source, text = STAMP + "// kept\n", "y = 3 * x + 0.25"

    def stamped() -> list[int]:
        made = device.zeros(4, "uint32")
        vkpar.Kernel(device, source, defines={"VALUE": "9"})(4, made)
        assert vkpar.elementwise(text)(device.ones(3)).tolist() == [3.25] * 3
        return made.tolist()

    monkeypatch.setattr(compiled, "_modules", {})
    _spirv.cache_clear()
    assert stamped() == [9] * 4
    monkeypatch.setattr(shader, "_shaderc", lambda: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    for _ in range(2):
        compiled._modules.clear()  # as in a new process
        _spirv.cache_clear()
        assert stamped() == [9] * 4
    with pytest.raises(UnsupportedError, match="install glslang-tools"):
        vkpar.Kernel(device, source, defines={"VALUE": "10"})
    for file in tmp_path.iterdir():
        file.unlink()
    assert stamped() == [9] * 4  # by what the process keeps
    compiled._modules.clear()
    with pytest.raises(UnsupportedError, match="install glslang-tools"):
        stamped()


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


# --- views that begin anywhere ---

SHIFTED = """
#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer A { float a[]; };
layout(set = 0, binding = 1) buffer B { float b[]; };
layout(push_constant) uniform P { uint n; float by; uint vkpar_offset_1; uint vkpar_offset_0; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) b[vkpar_offset_1 + i] = by * a[vkpar_offset_0 + i];
}
"""


@pytest.mark.parametrize("start", [0, 1, 3, 4, 16, 63, 64, 65, 100])
def test_a_kernel_that_takes_offsets_takes_every_view(device: vkpar.Device, start: int) -> None:
    kernel = vkpar.Kernel(device, SHIFTED)
    host = np.arange(300, dtype=np.float32)
    a, b = device.array(host), device.zeros(300)
    kernel(2, a[start : start + 100], b[2 * start : 2 * start + 100], push=struct.pack("<If", 100, 3.0))
    want = np.zeros(300, np.float32)
    want[2 * start : 2 * start + 100] = 3 * host[start : start + 100]
    assert np.array_equal(b.numpy(), want)
    with pytest.raises(InvalidUsageError, match=r"8 bytes of push constants beside its vkpar_offset"):
        kernel(2, a, b, push=bytes(16))


def test_a_kernel_that_takes_an_offset_ends_where_its_view_does(device: vkpar.Device) -> None:
    source = LENGTH.replace("void main", "layout(push_constant) uniform P { uint vkpar_offset_0; };\nvoid main")
    kernel = vkpar.Kernel(device, source.replace("uint i = 0", "uint i = vkpar_offset_0"))
    for start, stop in ((0, 71), (3, 10), (64, 70), (67, 71)):
        whole = device.zeros(71, "uint32")
        kernel(1, whole[start:stop])
        want = np.zeros(71, np.uint32)
        length = start % 64 + stop - start
        want[start:stop] = start % 64 + -(-(stop - start) // 4) * 4 if stop == 71 else length
        assert np.array_equal(whole.numpy(), want)


def test_an_offset_of_a_binding_that_is_not_there(device: vkpar.Device) -> None:
    with pytest.raises(InvalidUsageError, match="vkpar_offset_7"):
        vkpar.Kernel(device, SHIFTED.replace("vkpar_offset_1", "vkpar_offset_7"))


@pytest.mark.parametrize("start", [1, 3, 16, 64])
def test_a_view_that_is_only_read_is_copied_aside(device: vkpar.Device, start: int) -> None:
    kernel = vkpar.Kernel(device, SCALE)
    host = np.arange(200, dtype=np.float32)
    a, b, push = device.array(host), device.zeros(100), struct.pack("<If", 100, 2.0)
    kernel(2, a[start : start + 100], b, push=push)
    assert np.array_equal(b.numpy(), 2 * host[start : start + 100])
    if 4 * start % device.limits.min_storage_buffer_offset_alignment == 0:
        return
    submitted = device.logical.compute.last
    with pytest.raises(InvalidUsageError, match=r"binding 1: .*not declared readonly.*a\.copy\(\)"):
        kernel(2, b, a[start : start + 100], push=push)
    with pytest.raises(InvalidUsageError, match=r"binding 0: .*through another binding"):
        kernel(2, a[start : start + 100], a, push=push)
    assert device.logical.compute.last == submitted
    assert np.array_equal(a.numpy(), host)


# --- what kernels leave behind ---


def numbered(number: int) -> str:
    return STAMP.replace("VALUE", f"{number}u")


def test_dropped_and_closed_kernels_free_their_pipelines(device: vkpar.Device) -> None:
    made = device.zeros(4, "uint32")
    device.synchronize()
    device.logical.reap()
    before, booked = api.load().live().get("Pipeline", 0), device.memory().pipelines
    for number in range(6):
        kernel = vkpar.Kernel(device, numbered(1000 + number))
        kernel(4, made)
        if number % 2:
            kernel.close()
            kernel.close()
            with pytest.raises(InvalidUsageError, match="closed"):
                kernel(4, made)
        del kernel
    assert list(made.numpy()) == [1005] * 4
    device.synchronize()
    device.logical.reap()
    assert api.load().live().get("Pipeline", 0) == before
    assert device.memory().pipelines == booked


def test_a_pipeline_stays_until_its_work_is_done(device: vkpar.Device) -> None:
    """The kernel is dropped while its dispatch waits for another; the next one of the same code is its own again."""
    made = device.zeros(4, "uint32")
    for _ in range(20):
        with vkpar.Kernel(device, numbered(7)) as kernel:
            assert not kernel.closed
            kernel(4, made)
        assert kernel.closed
    assert list(made.numpy()) == [7] * 4


def test_kernels_of_one_code_share_a_pipeline(device: vkpar.Device) -> None:
    made = device.zeros(4, "uint32")
    first, second = vkpar.Kernel(device, numbered(8)), vkpar.Kernel(device, numbered(8))
    first(4, made)
    number = api.load().live()["Pipeline"]
    second(4, made)
    assert api.load().live()["Pipeline"] == number
    first.close()
    second(4, made)
    device.synchronize()
    device.logical.reap()
    assert api.load().live()["Pipeline"] == number
    assert list(made.numpy()) == [8] * 4


def test_a_device_closes_the_pipelines_of_kernels_that_live_on(device: vkpar.Device) -> None:
    before = api.load().live()
    other = vkpar.open_devices(str(device.info.index))[0]
    made, kernel = other.zeros(4, "uint32"), vkpar.Kernel(other, numbered(9))
    kernel(4, made)
    other.close()
    assert api.load().live() == before
    kernel.close()
    del kernel
    assert api.load().live() == before


# --- what is said ---


@pytest.mark.parametrize("name", ["scale.comp", "shaders/scale.glsl", "kernel.spv", __file__])
def test_the_name_of_a_file_is_no_source(device: vkpar.Device, name: str) -> None:
    with pytest.raises(InvalidUsageError, match=r"name of a file.*pass pathlib\.Path\("):
        vkpar.Kernel(device, name)


def test_too_many_groups_say_how_to_spread_them(device: vkpar.Device) -> None:
    most = device.limits.max_workgroup_count[0]
    kernel = vkpar.Kernel(device, STAMP.replace("VALUE", "5"))
    with pytest.raises(InvalidUsageError, match=r"two dimensions, such as \((\d+), (\d+)\)") as caught:
        kernel(most + 1, device.zeros(4, "uint32"))
    assert f"such as ({-(-(most + 1) // 2)}, 2)" in str(caught.value)
    assert "gl_NumWorkGroups" in str(caught.value)


# --- VKPAR_DEBUG=alignment ---


def test_every_device_can_act_as_the_strictest(reopen: Callable[..., vkpar.Device]) -> None:
    strict = reopen(debug="alignment")
    assert strict.limits.min_storage_buffer_offset_alignment == 256
    whole = strict.zeros(200, "uint32")
    kernel = vkpar.Kernel(strict, STAMP.replace("VALUE", "5"))
    for rows in (4, 16, 32):
        with pytest.raises(InvalidUsageError, match=r"multiple of 256\b"):
            kernel(1, whole[rows : rows + 9])
    kernel(1, whole[64:73])
    assert list(np.flatnonzero(whole.numpy())) == [64]


def test_an_unaligned_binding_is_refused_wherever_it_comes_from(
    device: vkpar.Device, settings_override: Callable[..., None]
) -> None:
    settings_override(debug="alignment")
    layout = device.logical.pipelines.layout(1, 0)
    pool = DescriptorPool(device.logical.handle, 2, 2)
    try:
        inside = device.zeros(200).ranges()[0]
        pool.allocate(layout.set_layout, [inside])
        with pytest.raises(InvalidUsageError, match="VKPAR_DEBUG=alignment"):
            pool.allocate(layout.set_layout, [inside.tail(128)])  # type: ignore[list-item]
    finally:
        pool.close()


SIZED = """
#version 450
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 64) in;
layout(binding = 0) buffer Out { uint seen[]; };
void main() {
    seen[2u * gl_GlobalInvocationID.x] = gl_NumSubgroups * 1000u + gl_SubgroupSize;
    seen[2u * gl_GlobalInvocationID.x + 1u] = gl_SubgroupInvocationID;
}
"""


def test_subgroups_have_the_size_that_is_asked_for(device: vkpar.Device) -> None:
    sizes = device.info.features.subgroup_sizes
    if not sizes:
        with pytest.raises(vkpar.UnsupportedError, match="subgroupSizeControl"):
            vkpar.Kernel(device, SIZED, subgroup_size=8)
        return
    for size in (1 << bit for bit in range(8) if sizes[0] <= 1 << bit <= min(64, sizes[1])):
        out = device.zeros(128, "uint32")
        vkpar.Kernel(device, SIZED, subgroup_size=size)(out, elements=64)
        found = out.numpy().reshape(64, 2)
        assert set(found[:, 0]) == {64 // size * 1000 + size}
        assert set(found[:, 1]) == set(range(size))
    least, most = sizes
    if least > 1:
        with pytest.raises(vkpar.UnsupportedError, match=f"subgroup_size={least // 2}; .* takes {least} to {most}"):
            vkpar.Kernel(device, SIZED, subgroup_size=least // 2)


@pytest.mark.parametrize("size", [0, -8, 3, 128, 8.0, "8", True])
def test_sizes_that_no_subgroup_has(device: vkpar.Device, size: Any) -> None:
    with pytest.raises(vkpar.InvalidUsageError, match="a power of two that divides the local size in x, 64"):
        vkpar.Kernel(device, SIZED, subgroup_size=size)
