"""Kernels of matrix cores for devices without any: the same GLSL, whose matrices are plain arrays.

Every invocation of a subgroup holds the whole of each matrix, and makes all of its products: what is executed is the
kernel's own way from memory to matrices and back, with matrices of any shape. Numbers of subgroups come of those of
invocations, and their barriers are the work-group's.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest

from vkpar.vulkan.pipelines import declared, includes, shader

SHADERS: Final = Path(__file__).resolve().parents[3] / "shaders"
_MATRIX: Final = re.compile(r"coopmat<\w+, gl_ScopeSubgroup, (\w+), (\w+), gl_MatrixUse(A|B|Accumulator)>")
_REPLACED: Final = (
    (r"#extension GL_(KHR_cooperative_matrix|EXT_bfloat16|KHR_shader_subgroup_\w+) : require", ""),
    (r"gl_SubgroupID\b", "(gl_LocalInvocationID.x / WARP)"),
    (r"gl_SubgroupInvocationID\b", "(gl_LocalInvocationID.x % WARP)"),
    (r"subgroupBarrier\(\)", "barrier()"),
    (r"subgroupAny\b", "any_of"),
    (r"subgroupShuffleXor\b", "shuffled"),
    (r"gl_CooperativeMatrixLayoutRowMajor", "false"),
    (r"gl_CooperativeMatrixLayoutColumnMajor", "true"),
)
# What attention does to elements; what only subgroups see that have hidden keys, all do: barriers are the work-group's.
_OF_ATTENTION: Final = (
    (r"#define (NOTHING|ADD_PRODUCT|SCALE)\b.*\n", ""),
    (r"#define EACH\(MATRIX\).*\n", ""),
    (r"\b(limits|most|top|total|scores\[n\])\[e\]", r"\1.e[e]"),
    (r"else if \(tile \+ KEYS > all_see\)", "else"),
    (r"if \(WINDOWED && !MASKED && tile < all_from\)", "if (WINDOWED && !MASKED)"),
    (
        r"SUMS sums\[BROAD\], top = SUMS\(LOWEST\), total = NOTHING;",
        "SUMS sums[BROAD], top, total;\nFILL(top, LOWEST)\nFILL(total, 0.0)",
    ),
    (r"(\w+\[\w\]) = NOTHING;", r"{ FILL(\1, 0.0) }"),
)
# What narrow matrices take nothing of: matrices ahead of what multiplies them, two steps at once, subgroups with more
# than two rows of matrices, more than four steps of these. CPU drivers would compile it for long.
_UNUSED: Final = (
    (r"    if \(AHEAD > 0u\) \{ \\\n        PAIR[^}]*\} else \{ \\\n", "    { \\\n"),
    (r"    if \(AHEAD > 0u\) \{ \\\n        LOAD\(x0, y0, 0u\)[^}]*\} \\\n", ""),
    (r"    if \(AHEAD > 0u\) LOAD\(x0, y0, 0u\)\n", ""),
    (r" *if \(SPAN == 2u\) MULTIPLY_STEP\(1u, true\)\n", ""),
    (r"( ALONE\([4-7]u\)){4}", ""),
    (r"( STORE\([23]u, ROWS\)){2}", ""),
    (r"( PLACE_AT\([23]u\)){2}", ""),
)
_HEADER: Final = """
struct Kind{use} {{ uint unused; }};
struct Of{use} {{ Kind{use} kind; float e[256]; }};
uint high_of(Kind{use} kind) {{ return {rows}; }}
uint broad_of(Kind{use} kind) {{ return {columns}; }}
uint each_of(Kind{use} kind) {{ return {each}; }}
float element_of(Kind{use} kind, uvec4 unit, uint i) {{ return {element}; }}
"""
_HALF: Final = """
float half_of(uint word, uint i) {
#if BFLOAT
    return uintBitsToFloat(i == 0u ? word << 16 : word & 0xFFFF0000u);
#else
    return unpackHalf2x16(word)[i];
#endif
}
"""
_CALLS: Final = r"""
#define EACH_ELEMENT(M) \
    [[dont_unroll]] for (uint i_ = 0u, broad_ = broad_of(M.kind); i_ < high_of(M.kind) * broad_; i_++)
#define FILL(M, VALUE) EACH_ELEMENT(M) M.e[i_] = VALUE;
#define coopMatLoad(M, FROM, AT, PITCH, TURNED) \
    EACH_ELEMENT(M) { \
        uint r_ = i_ / broad_, c_ = i_ % broad_, each_ = each_of(M.kind); \
        uint line_ = TURNED ? c_ : r_, place_ = TURNED ? r_ : c_; \
        M.e[i_] = element_of(M.kind, FROM[(AT) + line_ * (PITCH) + place_ / each_], place_ % each_); \
    }
#define coopMatStore(M, INTO, AT, PITCH, TURNED) \
    if (gl_LocalInvocationID.x % WARP == 0u) EACH_ELEMENT(M) { \
        uint r_ = i_ / broad_, c_ = i_ % broad_; \
        uint line_ = TURNED ? c_ : r_, place_ = TURNED ? r_ : c_; \
        INTO[(AT) + line_ * (PITCH) + place_ / 4u][place_ % 4u] = floatBitsToUint(M.e[i_]); \
    }
#define ADD_PRODUCT(SUMS, X, Y) \
    EACH_ELEMENT(SUMS) { \
        [[dont_unroll]] for (uint k_ = 0u, deep_ = broad_of(X.kind); k_ < deep_; k_++) { \
            SUMS.e[i_] += X.e[i_ / broad_ * deep_ + k_] * Y.e[k_ * broad_ + i_ % broad_]; \
        } \
    }
"""
_ELEMENTS: Final = """
#define EACH(M) [[dont_unroll]] for (uint e = 0u; e < high_of(M.kind) * broad_of(M.kind); e++)
#define SCALE(M, FACTORS) EACH(M) M.e[e] *= FACTORS.e[e]
"""
# Of the whole work-group, which may know of more than a subgroup does, but not of less.
_EXCHANGED: Final = """
shared float swapped[THREADS];
shared uint flag;
bool any_of(bool it_is) {
    if (gl_LocalInvocationID.x == 0u) flag = 0u;
    barrier();
    if (it_is) flag = 1u;
    barrier();
    bool found = flag != 0u;
    barrier();
    return found;
}
float shuffled(float value, uint bits) {
    swapped[gl_LocalInvocationID.x] = value;
    barrier();
    float other = swapped[gl_LocalInvocationID.x ^ bits];
    barrier();
    return other;
}
"""


@functools.cache
def module(kernel: str, threads: int, *, bfloat: bool) -> bytes:
    """Return the SPIR-V of a kernel of ``shaders/`` by plain arrays; 0 threads: a constant says how many."""
    path = SHADERS / f"{kernel}.comp"
    text, missing = includes.expand(path.read_text(), path.name, path.parent, ())
    assert not missing
    sizes = {"THREADS": str(threads)} if threads else {}
    kind = {"BFLOAT": str(int(bfloat)), "K_TYPE": "BF16" if bfloat else "F16"}
    return shader.compile_glsl(played(text), kind | sizes)


def played(text: str) -> str:
    """Return GLSL whose matrices are plain arrays."""
    attends = "SLACK" in text
    for pattern, made in _OF_ATTENTION if attends else _UNUSED if "AHEAD" in text else ():
        text, found = re.subn(pattern, made, text)
        assert found, f"nothing is {pattern}"
    header = _HALF + (_EXCHANGED + _ELEMENTS if attends else "")
    for rows, columns, use in dict.fromkeys(_MATRIX.findall(text)):
        sums = use == "Accumulator"
        element = "uintBitsToFloat(unit[i])" if sums else "half_of(unit[i / 2u], i % 2u)"
        each = "4u" if sums else "8u"
        header += _HEADER.format(use=use, rows=rows, columns=columns, element=element, each=each)
    at = next(match.start() for match in re.finditer(r"^#define \w+ coopmat<", text, re.MULTILINE))
    text = text[:at] + header + _CALLS + text[at:]
    text = re.sub(r"(\S+) = SUMS\(([\d.]+)\)", r"FILL(\1, \2)", text)
    text = re.sub(r"(sums\[[^\]]+\]) = coopMatMulAdd\(([^,]+), ([^,]+), \1\)", r"ADD_PRODUCT(\1, \2, \3)", text)
    for pattern, made in (*_REPLACED, (_MATRIX.pattern, r"Of\3")):
        text = re.sub(pattern, made, text)
    return text


def play(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """Let devices have kernels by plain arrays in place of the shipped ones, whose names match ``kernels``."""
    named = re.compile(rf"({kernels})(?:_t(\d+))?_(f16|bf16)(?:_t(\d+))?")
    spirv_of, declares_of = shader.shipped, declared.shipped

    def found(name: str) -> bytes | None:
        match = named.fullmatch(name)
        return module(match[1], int(match[2] or match[4] or 0), bfloat=match[3] == "bf16") if match else None

    def spirv(name: str) -> bytes:
        return found(name) or spirv_of(name)

    def declares(name: str) -> declared.Declared:
        made = found(name)
        return declared.of_module(made) if made else declares_of(name)

    monkeypatch.setattr(shader, "shipped", spirv)
    monkeypatch.setattr(declared, "shipped", declares)
