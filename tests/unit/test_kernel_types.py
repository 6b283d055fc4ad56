"""What bindings hold, which arrays they take, and in which dimensions kernels read their place."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.vulkan.modules import module

from vkpar import dtypes
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pipelines.dimensions import read_of_places
from vkpar.vulkan.pipelines.elements import takes
from vkpar.vulkan.pipelines.interface import reflect

TYPES = """
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
struct Pair { float a; float b; };
layout(buffer_reference) buffer Far { float x; };
"""
TAKEN = {
    "float": ["complex64", "float32"],
    "double": ["complex128", "float64"],
    "float16_t": ["float16"],
    "int": ["int32"],
    "int8_t": ["bool", "int8"],
    "int16_t": ["int16"],
    "int64_t": ["int64"],
    "uint8_t": ["bool", "int8", "uint8"],
    "uint16_t": ["bfloat16", "float16", "int16", "uint16"],
    "uint64_t": ["complex64", "float64", "int64", "uint64"],
}
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
EVERY = sorted([*INTEGERS, "bool", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"])


@pytest.fixture(autouse=True)
def _needs_a_compiler(compiler: None) -> None:
    """Skip every test of this file where there is no compiler."""


def _compiled(body: str, local: str = "local_size_x = 8", declared: str = "") -> bytes:
    return shader.compile_glsl(f"#version 450\n{TYPES}\nlayout({local}) in;\n{declared}\nvoid main() {{ {body} }}\n")


def _taken(*members: str, kind: str = "buffer") -> list[str]:
    """Return the types of the arrays that a block of ``members`` takes."""
    block = " ".join(f"{member};" for member in members)
    found = dict(reflect(_compiled("", declared=f"layout(binding = 0) {kind} A {{ {block} }};")).elements)
    kinds = [dtypes.resolve(name) for name in EVERY]
    return [kind.name for kind in kinds if 0 not in found or takes(found[0], kind.name, kind.itemsize)]


@pytest.mark.parametrize("kind", TAKEN)
def test_a_binding_takes_its_own_type(kind: str) -> None:
    for member in (f"{kind} v[]", f"{kind} v", f"{kind} v[3][4]"):
        assert _taken(member) == TAKEN[kind], member
    assert _taken(f"{kind} v[4]", kind="uniform") == TAKEN[kind]
    assert _taken(f"{kind} v[]", kind="readonly buffer") == TAKEN[kind]


@pytest.mark.parametrize("member", ["uint v[]", "uvec2 v[]", "uvec4 v[3][]", "Pair v[]", "Pair v", "Far v[]"])
def test_words_structs_and_addresses_take_every_type(member: str) -> None:
    assert _taken(member.replace("[3][]", "[]")) == EVERY


@pytest.mark.parametrize(
    ("member", "kind"),
    [
        ("vec2 v[]", "float"),
        ("vec3 v[]", "float"),
        ("vec4 v", "float"),
        ("mat4 v[]", "float"),
        ("mat2x3 v", "float"),
        ("dvec2 v[]", "double"),
        ("dmat2 v[]", "double"),
        ("ivec4 v[]", "int"),
        ("f16vec4 v[]", "float16_t"),
        ("i8vec4 v[]", "int8_t"),
        ("u16vec2 v[2]", "uint16_t"),
        ("i64vec2 v[]", "int64_t"),
    ],
)
def test_vectors_and_matrices_take_the_type_of_their_numbers(member: str, kind: str) -> None:
    assert _taken(member) == TAKEN[kind]
    assert _taken(member.replace("[]", "[5]"), kind="uniform") == TAKEN[kind]


def test_blocks_of_several_members_take_their_types_or_bytes() -> None:
    assert _taken("float a", "vec4 b[]") == sorted({*TAKEN["float"], *TAKEN["uint8_t"]})
    assert _taken("int a", "float b", kind="uniform") == sorted({*TAKEN["int"], *TAKEN["float"], *TAKEN["uint8_t"]})
    assert _taken("uint n", "float v[]") == EVERY
    assert _taken("float n", "Pair v[]") == EVERY


def test_two_names_of_a_binding_take_what_either_takes() -> None:
    blocks = "layout(binding = 0) buffer A { float a[]; }; layout(binding = 0) buffer B { int b[]; };"
    found = dict(reflect(_compiled("b[0] = int(a[0]);", declared=blocks)).elements)[0]
    assert takes(found, "float32", 4)
    assert takes(found, "int32", 4)
    assert not takes(found, "uint32", 4)
    assert not takes(found, "float16", 2)


@pytest.mark.parametrize(
    ("encoding", "taken"), [((), "float16"), ((0,), "bfloat16"), ((4214,), None)], ids=["half", "bfloat16", "other"]
)
def test_floats_of_16_bits_in_modules(encoding: tuple[int, ...], taken: str | None) -> None:
    declared = ((22, 10, 16, *encoding), (29, 11, 10), (30, 12, 11), (32, 13, 12, 12), (59, 13, 14, 12))
    found = dict(reflect(module((71, 14, 33, 0), *declared)).elements)
    for name in ("float16", "bfloat16"):
        assert taken is None if 0 not in found else takes(found[0], name, 2) == (name == taken)


def test_types_made_of_themselves_are_looked_at_no_longer_than_others() -> None:
    declared = ((22, 10, 32), (29, 11, 11), (30, 12, 11), (32, 13, 12, 12), (59, 13, 14, 12))
    assert reflect(module((71, 14, 33, 0), *declared)).elements == ()


# --- places ---

OUT = "layout(binding = 0) buffer A { uint a[]; };\nuint at(uvec3 id) { return id.z; }\n"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("a[gl_GlobalInvocationID.x] = 1;", {0}),
        ("a[gl_WorkGroupID.x * 8 + gl_LocalInvocationIndex] = 1;", {0}),
        ("a[gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x] = 1;", {0, 1}),
        ("a[gl_GlobalInvocationID.z] = 1;", {2}),
        ("a[gl_LocalInvocationID.y] = 1;", set()),
        ("uvec3 id = gl_GlobalInvocationID; a[id.x] = 1;", {0}),
        ("ivec3 id = ivec3(gl_GlobalInvocationID); a[id.x] = id.y;", {0, 1}),
        ("uvec3 id = gl_GlobalInvocationID; uvec3 other = id; a[other.x] = 1;", {0}),
        ("uvec2 id = gl_GlobalInvocationID.xy; a[id.x] = 1;", {0, 1}),
        ("uvec3 id = gl_GlobalInvocationID; id += uvec3(0, 1, 0) * id.x; a[id.x] = 1;", {0, 1, 2}),
        ("uvec3 id = gl_GlobalInvocationID * 2; a[id.x] = 1;", {0, 1, 2}),
        ("a[at(gl_GlobalInvocationID)] = 1;", {0, 1, 2}),
        ("a[gl_GlobalInvocationID[a[0]]] = 1;", {0, 1, 2}),
        (
            "uvec3 id = uvec3(0); for (uint i = 0; i < 2; i++) { a[i] = id.y; id = gl_GlobalInvocationID; } "
            "a[9] = id.x;",
            {0, 1},
        ),
    ],
)
def test_which_places_a_kernel_reads(body: str, read: set[int]) -> None:
    assert read_of_places(_compiled(body, declared=OUT)) == read


def test_types_by_their_names_here_are_those_of_numpy() -> None:
    assert [dtypes.resolve(name).name for name in EVERY] == EVERY
    assert all(np.dtype(name).name == name for name in EVERY if name != "bfloat16")
