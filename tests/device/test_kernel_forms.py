"""Kernels as people call them: push constants by name, elements, several devices, files, uniforms, atomics, times."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.modules import module

import vkpar
from vkpar import InvalidUsageError, ShaderCompileError, UnsupportedError
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.uniforms import as_storage

pytestmark = [pytest.mark.device, pytest.mark.sampled(4)]

AXPY = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { float x[]; };
layout(binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform P { uint n; float by; ivec2 add[2]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = by * x[i] + float(add[0].y + add[1].x);
}
"""
STAMP = """
#version 450
layout(local_size_x = 8, local_size_y = 4, local_size_z = 2) in;
layout(binding = 0) buffer A { uint a[]; };
void main() { atomicAdd(a[0], 1); atomicMax(a[1], gl_GlobalInvocationID.z); }
"""
COUNT = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { uint a[]; };
void main() { atomicAdd(a[0], 1); }
"""


@pytest.fixture(autouse=True)
def _needs_a_compiler(compiler: None) -> None:
    """Skip every test of this file where there is no compiler."""


# --- push constants by name ---


@pytest.mark.parametrize("as_spirv", [False, True])
def test_push_constants_by_name(device: vkpar.Device, as_spirv: bool) -> None:
    kernel = vkpar.Kernel(device, shader.compile_glsl(AXPY) if as_spirv else AXPY)
    host = np.arange(200, dtype=np.float32)
    x, y = device.array(host), device.zeros(200)
    for count, by in ((200, 2.0), (100, -1.5), (200, np.float32(3))):  # the second call goes by a plan
        kernel(x, y, push={"n": count, "by": by, "add": [(9, 3), (4, 9)]}, elements=count)
        assert np.array_equal(y.numpy()[:count], float(by) * host[:count] + 7)


def test_a_repeated_call_by_name_is_one_call_of_the_helper(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = vkpar.Kernel(device, AXPY)
    x, y = device.array(np.ones(64, np.float32)), device.zeros(64)
    push = {"n": 64, "by": 2.0, "add": np.zeros((2, 2), np.int32)}
    kernel(x, y, push=push, elements=64)
    monkeypatch.setattr(device.logical, "dispatch", lambda *_: pytest.fail("no plan"))
    kernel(x, y, push=push | {"by": 5.0}, elements=64)
    kernel(1, x, y, push=push | {"by": 5.0})
    assert np.all(y.numpy() == 5)


@pytest.mark.parametrize(
    ("push", "message"),
    [
        ({"n": 1, "by": 1.0}, "add missing"),
        ({"n": 1, "by": 1.0, "add": [(0, 0)] * 2, "m": 1}, "no push constant is named 'm'"),
        ({"n": -1, "by": 1.0, "add": [(0, 0)] * 2}, "n is a uint"),
        ({"n": 1, "by": "x", "add": [(0, 0)] * 2}, "by is a float"),
        ({"n": 1, "by": 1.0, "add": [0, 0]}, "add takes 2 x 2 numbers"),
    ],
)
def test_wrong_push_constants_run_nothing(device: vkpar.Device, push: dict[str, Any], message: str) -> None:
    kernel = vkpar.Kernel(device, AXPY)
    x, y = device.array(np.ones(64, np.float32)), device.zeros(64)
    with pytest.raises(InvalidUsageError, match=rf"{message}.*uint n; float by; ivec2 add\[2\]"):
        kernel(1, x, y, push=push)
    with pytest.raises(InvalidUsageError, match=r"takes 24 bytes.*got 4 \(uint n; .*a dict names them"):
        kernel(1, x, y, push=bytes(4))
    assert not y.numpy().any()


def test_offsets_that_vkpar_fills_are_not_given_and_have_plans(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = AXPY.replace("ivec2 add[2];", "uint vkpar_offset_1; uint vkpar_offset_0;")
    source = source.replace("y[i]", "y[vkpar_offset_1 + i]").replace(
        "x[i] + float(add[0].y + add[1].x)", "x[vkpar_offset_0 + i]"
    )
    kernel = vkpar.Kernel(device, source)
    host = np.arange(300, dtype=np.float32)
    x, y, want = device.array(host), device.zeros(300), np.zeros(300, np.float32)
    for turn, start in enumerate((0, 3, 64, 65, 0, 3, 64, 65)):
        if turn == 4:  # views of these forms were seen
            monkeypatch.setattr(device.logical, "dispatch", lambda *_: pytest.fail("no plan"))
        by = turn + 1
        kernel(x[start : start + 50], y[2 * start : 2 * start + 50], push={"n": 50, "by": by}, elements=50)
        want[2 * start : 2 * start + 50] = by * host[start : start + 50]
    assert np.array_equal(y.numpy(), want)
    with pytest.raises(InvalidUsageError, match="no push constant is named 'vkpar_offset_0'"):
        kernel(x, y, push={"n": 50, "by": 1.0, "vkpar_offset_0": 0}, elements=50)


# --- groups by elements ---


@pytest.mark.parametrize("elements", [0, 1, 64, 65, 1000, np.int64(1000), (65,), [65]])
def test_elements_are_covered_by_groups(device: vkpar.Device, elements: Any) -> None:
    kernel, made = vkpar.Kernel(device, COUNT), device.zeros(4, "uint32")
    count = int(np.ravel(elements)[0])
    for turn in (1, 2):
        kernel(made, elements=elements)
        assert made.numpy()[0] == turn * -(-count // 64) * 64


def test_elements_in_three_dimensions(device: vkpar.Device) -> None:
    kernel, made = vkpar.Kernel(device, STAMP), device.zeros(4, "uint32")
    assert kernel.local_size == (8, 4, 2)
    kernel(made, elements=(9, 4, 3))
    assert list(made.numpy()[:2]) == [16 * 4 * 4, 3]
    for few in (9, (9,), (9, 4)):
        with pytest.raises(InvalidUsageError, match="give as many numbers, in the order x, y, z"):
            kernel(made, elements=few)


@pytest.mark.parametrize("elements", [-1, 1.5, "9", (1, 2, 3, 4), (), (1, -1), np.ones(2)])
def test_elements_that_are_no_counts(device: vkpar.Device, elements: Any) -> None:
    with pytest.raises(InvalidUsageError, match="elements are one to three whole numbers"):
        vkpar.Kernel(device, COUNT)(device.zeros(4, "uint32"), elements=elements)


def test_groups_and_elements_exclude_each_other(device: vkpar.Device) -> None:
    kernel, made = vkpar.Kernel(device, COUNT), device.zeros(4, "uint32")
    call: Any = kernel
    with pytest.raises(InvalidUsageError, match=r"elements= stands for the numbers of work-groups.*without 1 before"):
        call(1, made, elements=64)
    with pytest.raises(InvalidUsageError, match=r"work-groups are .*, not Array; kernel\(\*arrays, elements=n\)"):
        call(made)
    with pytest.raises(InvalidUsageError, match=r"binding 0 has to be a vkpar\.Array, not ndarray; write device\.arr"):
        call(np.zeros((50, 50)), elements=64)
    with pytest.raises(InvalidUsageError, match="work-groups"):
        call()
    with pytest.raises(InvalidUsageError, match="1 bindings; got 0"):
        call(elements=64)
    assert not made.numpy().any()


def test_more_elements_than_a_call_covers(device: vkpar.Device) -> None:
    kernel, most = vkpar.Kernel(device, COUNT), device.limits.max_workgroup_count[0]
    with pytest.raises(InvalidUsageError, match=r"cover \(\d+, \d+, \d+\) elements.*pieces\(\*arrays, kernel=kernel\)"):
        kernel(device.zeros(4, "uint32"), elements=64 * most + 1)


def test_pieces_that_a_call_of_a_kernel_covers(device: vkpar.Device) -> None:
    source = COUNT.replace("local_size_x = 64", "local_size_x = 1").replace(
        "atomicAdd(a[0], 1)", "a[gl_GlobalInvocationID.x] = 5"
    )
    kernel, most = vkpar.Kernel(device, source), device.limits.max_workgroup_count[0]
    if most > 1 << 20:
        pytest.skip("would take too much memory")
    whole = device.zeros(2 * most + 3, "uint32")
    assert [len(piece) for (piece,) in vkpar.pieces(whole)] == [whole.size]
    cut = [piece for (piece,) in vkpar.pieces(whole, kernel=kernel)]
    assert len(cut) == 3
    assert sum(piece.size for piece in cut) == whole.size
    for piece in cut:
        kernel(piece, elements=piece.size)
    assert np.all(whole.numpy() == 5)


# --- several devices ---


def test_one_kernel_over_several_devices(
    rigs: Callable[[str], list[vkpar.Device]], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, compiled = rigs("llvmpipe*2&swiftshader"), []
    compile_glsl = shader.compile_glsl

    def counting(*given: Any) -> bytes:
        compiled.append(given)
        return compile_glsl(*given)

    monkeypatch.setattr(shader, "compile_glsl", counting)
    kernel = vkpar.Kernel(devices, AXPY)
    assert len(compiled) == 1
    assert kernel.devices == tuple(devices)
    pipelines = [len(device.logical.pipelines) for device in devices]
    for turn in (1, 2):
        results = []
        for rank, device in enumerate(devices):
            x, y = device.array(np.full(100, rank, np.float32)), device.zeros(100)
            kernel(x, y, push={"n": 100, "by": turn, "add": [(0, 1), (0, 0)]}, elements=100)
            results.append(y)
        assert [set(y.numpy()) for y in results] == [{turn * rank + 1.0} for rank in range(3)]
    assert [len(device.logical.pipelines) for device in devices] == [count + 1 for count in pipelines]
    with pytest.raises(InvalidUsageError, match="different devices"):
        kernel(devices[0].zeros(4), devices[1].zeros(4), push=bytes(24), elements=4)
    kernel.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        kernel(x, y, push=bytes(24), elements=4)


def test_devices_that_a_kernel_cannot_have(device: vkpar.Device) -> None:
    wrong: Any
    for wrong in ((), [], None, "llvmpipe", [device, None], device.info):
        with pytest.raises(InvalidUsageError, match=r"opened vkpar\.Device, or a list of them"):
            vkpar.Kernel(wrong, COUNT)
    with pytest.raises(InvalidUsageError, match="named twice"):
        vkpar.Kernel([device, device], COUNT)
    with vkpar.open_devices(str(device.info.index))[0] as other:
        nothing = vkpar.Kernel([device, other], "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n")
        with pytest.raises(InvalidUsageError, match="runs where its arrays are"):
            nothing(1)
        one = vkpar.Kernel([device], COUNT)
        with pytest.raises(InvalidUsageError, match="the arrays are on"):
            one(1, other.zeros(4, "uint32"))
    with pytest.raises(InvalidUsageError, match="closed"):
        vkpar.Kernel([device, other], COUNT)


# --- files ---


def test_a_kernel_of_files(device: vkpar.Device, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "parts" / "value.glsl").write_text(
        '#pragma once\n#include "base.glsl"\nuint value() { return BASE + 1; }\n'
    )
    (tmp_path / "shared" / "base.glsl").write_text("#define BASE 6\n")
    text = COUNT.replace(
        "layout(binding", '#include "parts/value.glsl"\n#include "parts/value.glsl"\nlayout(binding', 1
    )
    text = text.replace("atomicAdd(a[0], 1)", "a[gl_GlobalInvocationID.x] = value()")
    path = tmp_path / "fill.comp"
    path.write_text(text.lstrip())
    made = device.zeros(64, "uint32")
    kernel = vkpar.Kernel(device, path, include_dirs=[tmp_path / "shared"])
    kernel(made, elements=64)
    assert set(made.numpy()) == {7}
    assert "fill.comp" in repr(kernel)
    (tmp_path / "shared" / "base.glsl").write_text("#define BASE 8\n")  # what was kept is not taken for the new one
    vkpar.Kernel(device, path, include_dirs=[str(tmp_path / "shared")])(made, elements=64)
    assert set(made.numpy()) == {9}
    binary = tmp_path / "fill.spv"
    binary.write_bytes(shader.compile_glsl(COUNT))
    vkpar.Kernel(device, binary)(made, elements=64)
    assert made.numpy()[0] == 9 + 64


def test_errors_name_the_file_and_the_line(device: vkpar.Device, tmp_path: Path) -> None:
    path, part = tmp_path / "bad.comp", tmp_path / "part.glsl"
    path.write_text(COUNT.lstrip().replace("layout(binding", '#include "part.glsl"\nlayout(binding'))
    part.write_text("// a comment\nuint f() { return missing; }\n")
    with pytest.raises(ShaderCompileError, match=r"part\.glsl:2: .*missing"):
        vkpar.Kernel(device, path)
    part.write_text("\n")
    path.write_text(path.read_text().replace("atomicAdd(a[0], 1)", "absent = 1"))
    with pytest.raises(ShaderCompileError, match=r"bad\.comp:5: .*absent"):
        vkpar.Kernel(device, path)
    path.write_text(path.read_text().replace("absent = 1", "a[0] = 1").replace("part.glsl", "gone.glsl"))
    with pytest.raises(ShaderCompileError, match=r"bad\.comp:3: 'gone\.glsl' is not found in"):
        vkpar.Kernel(device, path)
    path.write_text(path.read_text().replace('#include "gone.glsl"', '#ifdef NEVER\n#include "gone.glsl"\n#endif'))
    vkpar.Kernel(device, path)(1, device.zeros(4, "uint32"))
    with pytest.raises(ShaderCompileError, match="give include_dirs"):
        vkpar.Kernel(device, COUNT.replace("layout(binding", '#include "part.glsl"\nlayout(binding'))


def test_files_that_cannot_be_read(device: vkpar.Device, tmp_path: Path) -> None:
    for name in ("none.comp", "none.spv"):
        with pytest.raises(InvalidUsageError, match=f"cannot be read.*{name}"):
            vkpar.Kernel(device, tmp_path / name)
    binary = tmp_path / "spirv.comp"
    binary.write_bytes(shader.compile_glsl(COUNT))
    with pytest.raises(InvalidUsageError, match=r"is no text; SPIR-V has the suffix \.spv"):
        vkpar.Kernel(device, binary)
    with pytest.raises(InvalidUsageError, match="apply to GLSL"):
        vkpar.Kernel(device, shader.compile_glsl(COUNT), include_dirs=["."])


# --- uniform buffers ---

UNIFORM = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float a[]; };
layout(binding = 1, std140) uniform Settings { vec4 scale; int shift[3]; mat2 m; };
layout(push_constant) uniform P { uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) a[i] = scale[i % 4] * float(shift[i % 3]) + m[1][i % 2];
}
"""


def settings() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the block, as std140 lays it out: an element of an array, and a column, each takes 16 bytes."""
    block = np.zeros((6, 4), np.float32)
    block[0] = (1, 2, 3, 4)
    block[1:4, 0] = np.array((5, 6, 7), np.int32).view(np.float32)
    block[5, :2] = (0.25, 0.5)
    return block


def test_a_uniform_buffer_takes_an_array(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, UNIFORM)
    made, block = device.zeros(120), settings()
    i = np.arange(120)
    want = (i % 4 + 1) * (i % 3 + 5) + np.array((0.25, 0.5))[i % 2]
    whole = device.array(np.concatenate([np.zeros(3, np.float32), block.ravel(), np.zeros(9, np.float32)]))
    for given in (device.array(block), whole[3 : 3 + block.size]):  # a view that is copied aside where it must be
        made.fill_zeros()
        kernel(made, given, push={"n": 120}, elements=120)
        assert np.array_equal(made.numpy(), want)
    assert "1 uniform" in repr(kernel)
    with pytest.raises(InvalidUsageError, match=r"binding 1 is a uniform block of 96 bytes; .*has 92"):
        kernel(made, device.zeros(23), push={"n": 120}, elements=120)


def test_what_writes_a_uniform_buffer_is_waited_for(device: vkpar.Device) -> None:
    """Barriers stand between the kernel that writes the block and the one that reads it, and the other way round."""
    kernel = vkpar.Kernel(device, UNIFORM)
    write = vkpar.Kernel(device, COUNT.replace("uint a[]", "float a[]").replace("atomicAdd(a[0], 1)", "a[20] += 1.0"))
    made, block = device.zeros(64), device.array(settings())
    for _ in range(20):
        write(1, block)
        kernel(made, block, push={"n": 64}, elements=64)
    assert made.numpy()[0] == 5 + block.numpy()[5, 0]


def spirv_10_with_both_kinds() -> bytes:
    """Return a module as of SPIR-V 1.0: a uniform block of a uint, and a storage buffer by BufferBlock."""
    return module(
        (15, 5, 1, *(0x6E69616D, 0)),
        (16, 1, 17, 1, 1, 1),
        (71, 17, 3),
        (72, 17, 0, 35, 0),
        (71, 18, 2),
        (72, 18, 0, 35, 0),
        (71, 20, 34, 0),
        (71, 20, 33, 0),
        (71, 21, 34, 0),
        (71, 21, 33, 1),
        (71, 16, 6, 4),
        (21, 15, 32, 0),
        (29, 16, 15),
        (30, 17, 16),
        (30, 18, 15),
        (32, 30, 2, 17),
        (32, 31, 2, 18),
        (59, 30, 20, 2),
        (59, 31, 21, 2),
        version=0x00010000,
    )


def test_uniform_blocks_become_storage_buffers_that_are_only_read() -> None:
    old = spirv_10_with_both_kinds()
    assert reflect(old).uniforms == ((1, 4),)
    made = reflect(as_storage(old))
    assert (made.version, made.uniforms, made.foreign) == ((1, 3), (), "")
    assert (made.bindings, made.readonly) == ({0, 1}, {1})
    new = reflect(as_storage(shader.compile_glsl(UNIFORM)))
    assert (new.version, new.uniforms, new.readonly) == ((1, 5), (), {1})


# --- atomics on floats, and float64 ---

ATOMIC = """
#version 450
#extension GL_EXT_shader_atomic_float : require
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { TYPE a[]; };
shared TYPE s;
void main() { BODY }
"""


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    ("where", "what", "body", "want"),
    [
        ("Buffer", "AtomicAdd", "atomicAdd(a[0], TYPE(0.5));", 64.0),
        ("Buffer", "Atomics", "atomicExchange(a[0], TYPE(3));", 3.0),
        ("Shared", "AtomicAdd", "s = TYPE(0); barrier(); atomicAdd(s, TYPE(0.5)); barrier(); a[0] = s;", 32.0),
    ],
)
def test_atomics_on_floats(device: vkpar.Device, kind: str, where: str, what: str, body: str, want: float) -> None:
    source = ATOMIC.replace("BODY", body).replace("TYPE", kind)
    if "s," not in body:
        source = source.replace(f"shared {kind} s;\n", "")
    feature, features = f"shader{where}Float{32 if kind == 'float' else 64}{what}", device.info.features
    if feature in features.float_atomics and (kind == "float" or features.float64):
        made = device.zeros(4, "float32" if kind == "float" else "float64")
        vkpar.Kernel(device, source)(2, made)
        assert made.numpy()[0] == want
    else:
        live = device.memory().pipelines
        missing = "Float64" if kind == "double" and not features.float64 else feature
        with pytest.raises(UnsupportedError, match=rf"{missing}|AtomicFloat\d\dAddEXT") as caught:
            vkpar.Kernel(device, source)
        assert device.name in str(caught.value)
        assert device.memory().pipelines == live


def test_atomics_on_integers_need_no_feature(device: vkpar.Device) -> None:
    made = device.zeros(4, "uint32")
    vkpar.Kernel(device, COUNT)(3, made)
    assert made.numpy()[0] == 192


def test_float64(device: vkpar.Device) -> None:
    source = "#version 450\nlayout(local_size_x = 1) in;\nlayout(binding = 0) buffer A { double a[]; };\n"
    source += "layout(push_constant) uniform P { double by; };\nvoid main() { a[gl_WorkGroupID.x] *= by; }\n"
    if not device.info.features.float64:
        with pytest.raises(UnsupportedError, match="Float64"):
            vkpar.Kernel(device, source)
        return
    made = device.array(np.array([1.0, 1e-300, 3.0]))
    vkpar.Kernel(device, source)(made, push={"by": 1 / 3}, elements=3)
    assert np.array_equal(made.numpy(), np.array([1.0, 1e-300, 3.0]) * (1 / 3))


# --- times ---


def test_time_is_that_of_a_run_on_the_device(device: vkpar.Device) -> None:
    body = "float x = 1.0; for (int i = 0; i < TURNS; ++i) x = x * 1.0001 + a[i & 3]; a[4] = x;"
    source = COUNT.replace("uint a[]", "float a[]").replace("atomicAdd(a[0], 1);", body)
    made = device.zeros(8)
    short = vkpar.Kernel(device, source, defines={"TURNS": 1}).time(1, made)
    long = vkpar.Kernel(device, source, defines={"TURNS": 30_000}).time(made, elements=64 * 64, repeat=3)
    assert 0 <= short < long < 60


def test_time_runs_once_more_than_it_times(device: vkpar.Device) -> None:
    made, kernel = device.zeros(4, "uint32"), vkpar.Kernel(device, COUNT)
    kernel(1, made)
    kernel.time(made, elements=65, repeat=5)
    kernel(1, made)
    assert made.numpy()[0] == 64 + 6 * 128 + 64
    assert kernel.time(0, made) >= 0
    for whole in (np.int64(2), np.uint8(2), np.array(2)):
        assert kernel.time(1, made, repeat=whole) >= 0
    assert made.numpy()[0] == 64 + 6 * 128 + 64 + 3 * 3 * 64
    wrong: Any
    for wrong in (0, -1, 1.5, None, 10_001, True, np.True_, np.int64(0), "3"):
        with pytest.raises(InvalidUsageError, match="repeat is a whole number from 1 to 10,000"):
            kernel.time(1, made, repeat=wrong)
    with pytest.raises(InvalidUsageError, match="1 bindings"):
        kernel.time(1, made, made)
    kernel.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        kernel.time(1, made)


def test_kernels_of_every_form_are_captured(device: vkpar.Device) -> None:
    kernel, x, y = vkpar.Kernel([device], AXPY), device.array(np.ones(100, np.float32)), device.zeros(100)
    push = {"n": 100, "by": 2.0, "add": [(0, 1), (0, 0)]}
    with vkpar.capture([device]) as graph:
        kernel(x, y, elements=100, push=push)
        with pytest.raises(InvalidUsageError, match=r"kernel\.time\(\) inside vkpar\.capture"):
            kernel.time(x, y, elements=100, push=push)
    assert not y.numpy().any()
    graph.launch().wait()
    assert np.all(y.numpy() == 3)
    graph.close()


def test_a_queue_without_timestamps(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    families = tuple(dataclasses.replace(family, timestamp_bits=0) for family in device.info.queue_families)
    monkeypatch.setattr(device.logical, "info", dataclasses.replace(device.info, queue_families=families))
    with pytest.raises(UnsupportedError, match="no timestamps"):
        vkpar.Kernel(device, COUNT).time(1, device.zeros(4, "uint32"))


# --- what is said ---


def test_repr_says_what_a_kernel_is(device: vkpar.Device) -> None:
    kernel = vkpar.Kernel(device, AXPY)
    said = repr(kernel)
    for part in (str(device), "(64, 1, 1)", "0 readonly, 1", "uint n; float by; ivec2 add[2]"):
        assert part in said
    kernel.close()
    assert "closed" in repr(kernel)
    nothing = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
    assert "bindings none, push constants none" in repr(vkpar.Kernel(device, nothing))


def test_a_device_is_opened_by_another_function(device: vkpar.Device) -> None:
    wrong: Any
    for wrong in ("llvmpipe", 0, None, device):
        with pytest.raises(InvalidUsageError, match=r"vkpar\.open_devices\(selector\)"):
            vkpar.Device(wrong)


def test_float64_operands_say_what_to_do(device: vkpar.Device) -> None:
    a = device.array(np.ones((4, 4)))
    for operation in (lambda: vkpar.matmul(a, a), lambda: vkpar.softmax(a)):
        with pytest.raises(UnsupportedError, match=r'float64.*dtype="float32".*astype\(np\.float32\)'):
            operation()
    if not device.info.features.float64:
        with pytest.raises(UnsupportedError, match=r'float64.*dtype="float32"'):
            vkpar.cast(a, "float16")


def test_the_words_of_a_module_stay_in_order(device: vkpar.Device) -> None:
    code = shader.compile_glsl(COUNT)
    assert as_storage(code) == code  # nothing in it is uniform
    assert struct.unpack_from("<I", as_storage(shader.compile_glsl(UNIFORM)))[0] == struct.unpack_from("<I", code)[0]
