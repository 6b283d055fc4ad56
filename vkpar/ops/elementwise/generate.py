"""The GLSL of elementwise kernels, for the package's own operations and for the expressions of users; no Vulkan.

There are up to four kernels of an expression. *flat* takes operands that are side by side in one order, four elements
an invocation. *tile* takes up to four axes with strides, of which X is the output's fastest and Y another one's: an
invocation makes ROWS rows of four elements, and reads an operand that is fast along Y four columns at a time, so that
transposed operands are read in whole sectors of memory. Specialization constants say how each operand lies.

*full* is *flat* for drivers that test each lane: an invocation makes sixteen elements, a cache line, eight at a time,
and without tests for the end where nothing is left over; they then know that all lanes of a vector read and write.
*rows* is the same for two axes with strides, of which no operand is fast along Y.

Push constants are 32 words. flat and full: the number of elements, the index of the first one, and of each binding the
place of its first element. tile and rows: the lengths of DIMS axes, and of each binding the place of its first element
and DIMS strides. An input of mode SCALAR has its value in place of the first element's. The numbers of an expression
come from the end.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from typing import Final

from vkpar.errors import within_limits
from vkpar.ops.elementwise import eights
from vkpar.ops.elementwise.emit import Typed
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.elementwise.kinds import (
    COLUMN,
    FIRST_CONSTANT,
    FULL,
    LONG_SECTIONS,
    ONE,
    ROW,
    ROWS,
    SCALAR,
    TILE,
    KernelTypes,
    arguments,
    constant_of_type,
    glsl_of,
    has_long,
    is_float,
    of_bits,
    vector_of,
)

_CODES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_CALL: Final = re.compile(r"\bf_(\w+)\(")

_GROUPS: Final = "layout(local_size_x = 256) in;\n"
_PUSH: Final = "layout(push_constant) uniform Push { uint g[32]; } push;\n"
_AXES: Final = """\
layout(constant_id = 1) const uint WIDTH = 64u;
layout(constant_id = 2) const uint DIMS = 2u;
"""


@functools.cache
def _parts() -> tuple[str, dict[str, str]]:
    """Return what all kernels begin with, and the functions by name."""
    with within_limits("the file of elementwise functions"):
        text = importlib.resources.files("vkpar").joinpath("spirv", "elementwise.glsl").read_text()
    base, *sections = text.split("//: ")
    return base, {section.split("\n", 1)[0].strip(): section.split("\n", 1)[1] for section in sections}


def _functions(names: frozenset[str]) -> str:
    """Return the GLSL of functions, and of those that they call."""
    functions = _parts()[1]
    needed, pending = set(), list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += [other for other in _CALL.findall(functions[name]) if other != name]
    return "".join(text for name, text in functions.items() if name in needed)  # in the order of the file


def source(meaning: Typed | Sequence[Typed], kind: KernelTypes, form: str, *, precise: bool = False) -> str:
    """Return the GLSL of a kernel.

    Args:
        meaning: what the expression means for the types of ``kind``; of several, the last specialization constant,
            CHOSEN, says which is computed.
        kind: those types.
        form: ``FLAT``, ``TILE`` for the kernel with strides, or ``FULL`` or ``ROWS`` where :func:`may_be_full` says so.
        precise: round every product before it is added to something, so that all drivers give the same bits.
    """
    meanings = [meaning] if isinstance(meaning, Typed) else list(meaning)
    operands = [(f"a{place}", kind.inputs[number]) for place, number in enumerate(kind.bound)]
    results = [(f"r{place}", dtype) for place, dtype in enumerate(kind.results)]
    bindings = len(operands) + len(results)
    lines = [
        "#version 450",
        eights.INT64 if form in (FULL, ROWS) or has_long(kind) else "",
        eights.UNROLL if form == FULL and not all(is_float(dtype) for _, dtype in operands + results) else "",
        _parts()[0],
        ("" if form in (FULL, ROWS) else _GROUPS) + _PUSH + (_AXES if form == TILE else ""),
    ]
    called = frozenset().union(*(each.functions for each in meanings))
    if has_long(kind):
        sections = {LONG_SECTIONS[each] for _, each in operands + results if each in LONG}
        lines.append(_functions(frozenset({"moved", *sections})))
    for binding, (name, dtype) in enumerate([*operands, *results]):
        if form in (FULL, ROWS):
            lines.append(eights.declared(name, dtype, binding, bindings, reads=binding < len(operands)))
            continue
        code, long = f"{name}_TYPE", dtype in LONG
        if long:
            code = ""
        elif is_float(dtype) and not kind.open:
            code = _CODES[dtype]
        else:
            usual = "F32" if is_float(dtype) else "I32"
            lines.append(f"layout(constant_id = {constant_of_type(bindings, binding)}) const uint {code} = {usual};")
        first = FIRST_CONSTANT + 2 * binding
        lines.append(f"layout(constant_id = {first}) const uint {name}_MODE = {ROW}u;")
        lines.append(f"layout(constant_id = {first + 1}) const bool {name}_WIDE = false;")
        put = "IN" if binding < len(operands) else "OUT"
        if long:
            given = (name, str(binding), glsl_of(dtype), vector_of(dtype), f"{name}_WIDE")
            lines.append(f"LONG_{put}({', '.join(given)})")
            continue
        lines.append(f"{'ELEMENTS' if is_float(dtype) else 'WHOLE'}_{put}({name}, {binding}, {code}, {name}_WIDE)")
    lines.append(_functions(called))
    if len(meanings) > 1:
        last = constant_of_type(bindings, bindings)
        lines.append(f"layout(constant_id = {last}) const uint CHOSEN = 0u;")
    lines.append(_compute(meanings, kind, precise))
    if form in (FULL, ROWS):
        lines += eights.kernel(form, operands, results, kind)
    else:
        lines += (_tile if form == TILE else _flat)(operands, results, kind)
    return "\n".join(lines) + "\n"


def _compute(meanings: Sequence[Typed], kind: KernelTypes, precise: bool) -> str:
    """Return the function that computes one element of each output."""
    inputs = [f"{glsl_of(dtype)} x{number}" for number, dtype in enumerate(kind.inputs)]
    outputs = [f"out {glsl_of(dtype)} y{number}" for number, dtype in enumerate(kind.results)]
    bodies = [_body(meaning, precise) for meaning in meanings]
    body = bodies[0]
    if len(bodies) > 1:
        choices = [f"if (CHOSEN == {number}u) {{\n{text}\n    }}" for number, text in enumerate(bodies[:-1])]
        body = "    " + " else ".join([*choices, f"{{\n{bodies[-1]}\n    }}"])
    return f"void compute({', '.join([*inputs, *outputs])}) {{\n{body}\n}}"


def _body(meaning: Typed, precise: bool) -> str:
    kinds = ("float ", "int ", "uint ", "bool ")  # of all: what floats are compared for is no less precise
    lines = (f"precise {line}" if precise and line.startswith(kinds) else line for line in meaning.body)
    return "\n".join(f"    {line}" for line in lines)


def _four(name: str, dtype: str, at: str, n: str) -> str:
    """Return GLSL of four elements of an operand, side by side."""
    return f"{name}_at4({at}, {n})" if is_float(dtype) else f"{vector_of(dtype)}({name}_four({at}, {n}))"


def _one(name: str, dtype: str, at: str) -> str:
    """Return GLSL of one element of an operand."""
    if dtype in LONG:
        return f"{name}_raw({at})"
    return f"{name}_at({at})" if glsl_of(dtype) == "float" else of_bits(dtype, f"{name}_raw({at})")


def _packed(name: str, dtype: str, value: str) -> str:
    """Return GLSL of four values as what is stored."""
    if dtype in LONG:
        return value
    return f"{name}_pack4(floatBitsToUint({value}))" if is_float(dtype) else f"uvec4({value})"


def may_take_two(kind: KernelTypes) -> bool:
    """Say whether invocations of a flat kernel can make two blocks: where results may be fewer than 32 bits wide."""
    return not goes_by_pairs(kind) and (kind.open or not {"float32", *LONG}.issuperset(kind.results))


def goes_by_pairs(kind: KernelTypes) -> bool:
    """Say whether a flat kernel moves pairs, 16 bytes, rather than fours: where all results have 64 bits.

    Neighbouring invocations then move what lies side by side, as they do with fours of 32 bits.
    """
    return LONG.keys() >= {*kind.results}


def may_be_full(kind: KernelTypes) -> bool:
    """Say whether a kind has a full kernel: where all floats are known to be 32 bits wide."""
    return not kind.open and not has_long(kind) and {"float16", "bfloat16"}.isdisjoint(kind.inputs + kind.results)


_WHOLE: Final = """\
layout(constant_id = 0) const uint BLOCKS = 1u;  // of four elements that an invocation makes
layout(constant_id = 1) const bool WHOLE = false;  // all fours are whole
uint left(uint i) { return WHOLE ? 4u : min(push.g[0] - i, 4u); }
"""

_ONE_BLOCK: Final = """\
void main() {
    uint i = (group_number() * 256u + gl_LocalInvocationID.x) * 4u;
    if (i < push.g[0]) block(i);
}
"""


def _flat(operands: list[tuple[str, str]], results: list[tuple[str, str]], kind: KernelTypes) -> list[str]:
    vectors, loads, stores = _block(operands, results, kind)
    if may_take_two(kind) or goes_by_pairs(kind):
        return [_WHOLE, *_two_blocks(vectors, loads, stores, pairs=goes_by_pairs(kind))]
    return [_WHOLE, "void block(uint i) {", *(f"    {v};" for v in vectors), *loads, *stores, "}", _ONE_BLOCK]


def _block(
    operands: list[tuple[str, str]], results: list[tuple[str, str]], kind: KernelTypes
) -> tuple[list[str], list[str], list[str]]:
    """Return what makes four elements, or two: the operands' vectors, code that loads them, and code that stores."""
    loads, stores = [], []
    pairs = goes_by_pairs(kind)
    for place, (name, dtype) in enumerate(operands):
        at = f"push.g[{2 + place}]"
        vector = vector_of(dtype)
        loads.append(f"    if ({name}_MODE == {SCALAR}u) v{place} = {vector}({of_bits(dtype, at)});")
        loads.append(f"    else if ({name}_MODE == {ONE}u) v{place} = {vector}({_one(name, dtype, at)});")
        if pairs:
            loads += _pair(name, dtype, f"v{place}", f"{at} + i")
        else:
            loads.append(f"    else v{place} = {_four(name, dtype, f'{at} + i', 'left(i)')};")
    stores += [f"    {vector_of(dtype)} w{place};" for place, (_, dtype) in enumerate(results)]
    for j, part in enumerate("xy" if pairs else "xyzw"):
        stores.append(f"    compute({', '.join(arguments(kind, f'.{part}', f'push.g[1] + i + {j}u'))});")
    for place, (name, dtype) in enumerate(results):
        at = f"push.g[{2 + len(operands) + place}] + i"
        stores.append(f"    {name}_store{2 if pairs else 4}({at}, left(i), {_packed(name, dtype, f'w{place}')});")
    return [f"{vector_of(dtype)} v{place}" for place, (_, dtype) in enumerate(operands)], loads, stores


def _pair(name: str, dtype: str, vector: str, at: str) -> list[str]:
    """Return GLSL that loads two elements of an operand."""
    if dtype in LONG:
        return [f"    else {vector} = {name}_pair({at}, left(i));"]
    second = f"if (left(i) > 1u) {vector}.y = {_one(name, dtype, f'{at} + 1u')};"
    return [f"    else {{ {vector}.x = {_one(name, dtype, at)}; {second} }}"]


def _two_blocks(vectors: list[str], loads: list[str], stores: list[str], *, pairs: bool) -> list[str]:
    """Return the code of one block or two, of fours or of two pairs, the loads of both before the stores.

    Halves alone are few bytes a load.
    """
    lines = [f"void take({', '.join(['uint i', *(f'out {v}' for v in vectors)])}) {{", *loads, "}"]
    lines += [f"void put({', '.join(['uint i', *vectors])}) {{", *stores, "}", "void main() {"]
    blocks, each = ("2u", 2) if pairs else ("BLOCKS", 4)
    lines += [f"    uint i = (group_number() * 256u * {blocks} + gl_LocalInvocationID.x) * {each}u;"]
    lines += [f"    uint j = i + {256 * each}u;", "    if (i >= push.g[0]) return;"]
    lines += [f"    bool two = {blocks} > 1u && j < push.g[0];"]
    for block in "ij":
        lines += [f"    {v.replace(' v', f' {block}')};" for v in vectors]
    for call in ("take", "put"):
        for block, condition in (("i", ""), ("j", "if (two) ")):
            arguments = [block, *(f"{block}{place}" for place in range(len(vectors)))]
            lines.append(f"    {condition}{call}({', '.join(arguments)});")
    return [*lines, "}"]


_PLACES: Final = """\
layout(constant_id = 0) const uint ROWS = 4u;
uint length_of(uint axis) { return axis < DIMS ? push.g[min(axis, 31u)] : 1u; }
uint first_of(uint binding) { return push.g[min(DIMS + binding * (DIMS + 1u), 31u)]; }
uint stride_of(uint binding, uint axis) {
    return axis < DIMS ? push.g[min(DIMS + binding * (DIMS + 1u) + 1u + axis, 31u)] : 0u;
}
uint place_of(uint binding, uvec4 at) {
    return first_of(binding) + at.x * stride_of(binding, 0u) + at.y * stride_of(binding, 1u)
        + at.z * stride_of(binding, 2u) + at.w * stride_of(binding, 3u);
}
"""

_WHERE: Final = """\
void main() {
    uint columns = (length_of(0u) + 4u * WIDTH - 1u) / (4u * WIDTH);
    uint height = 256u / WIDTH * ROWS;
    uint rows = (length_of(1u) + height - 1u) / height;
    uint group = group_number();
    uint local = gl_LocalInvocationID.x;
    uvec4 at = uvec4(group % columns * WIDTH + local % WIDTH, 0u, 0u, 0u);
    at.x *= 4u;
    group /= columns;
    at.y = (group % rows * (256u / WIDTH) + local / WIDTH) * ROWS;
    group /= rows;
    at.z = group % length_of(2u);
    at.w = group / length_of(2u);
    if (at.x >= length_of(0u) || at.y >= length_of(1u) || at.w >= length_of(3u)) return;
    uint nx = min(length_of(0u) - at.x, 4u);
    uint ny = min(length_of(1u) - at.y, ROWS);
"""


def _tile(operands: list[tuple[str, str]], results: list[tuple[str, str]], kind: KernelTypes) -> list[str]:
    lines = [_PLACES]
    for binding, (name, dtype) in enumerate(operands):
        lines.append(_tile_input(binding, name, dtype))
    for place, (name, dtype) in enumerate(results):
        lines.append(_tile_output(len(operands) + place, name, dtype))
    lines.append(_WHERE)
    for place, (name, dtype) in enumerate(operands):
        lines += [f"    {vector_of(dtype)} t{place}[4];", f"    {name}_tile(at, nx, ny, t{place});"]
    lines.append("    for (uint r = 0u; r < ROWS; r++) {")
    lines += [f"        {vector_of(dtype)} v{place} = t{place}[r];" for place, (_, dtype) in enumerate(operands)]
    lines += [f"        {vector_of(dtype)} w{place};" for place, (_, dtype) in enumerate(results)]
    for part in "xyzw":
        lines.append(f"        compute({', '.join(arguments(kind, f'.{part}', '0u'))});")
    for place, (name, dtype) in enumerate(results):
        lines.append(
            f"        if (r < ny) {name}_row(at + uvec4(0u, r, 0u, 0u), nx, {_packed(name, dtype, f'w{place}')});"
        )
    return [*lines, "    }", "}"]


def _tile_input(binding: int, name: str, dtype: str) -> str:
    """Return the function that reads an operand's rows of four."""
    vector = vector_of(dtype)
    zero = f"{vector}(0)"
    return f"""\
void {name}_tile(uvec4 at, uint nx, uint ny, out {vector} t[4]) {{
    uint p = place_of({binding}u, at);
    uint sx = stride_of({binding}u, 0u);
    uint sy = stride_of({binding}u, 1u);
    t[0] = {zero}; t[1] = {zero}; t[2] = {zero}; t[3] = {zero};
    if ({name}_MODE == {SCALAR}u) {{
        {vector} all = {vector}({of_bits(dtype, f"first_of({binding}u)")});
        t[0] = all; t[1] = all; t[2] = all; t[3] = all;
    }} else if ({name}_MODE == {COLUMN}u) {{
        {vector} c0 = {_four(name, dtype, "p", "ny")};
        {vector} c1 = {_four(name, dtype, "p + sx", "nx > 1u ? ny : 0u")};
        {vector} c2 = {_four(name, dtype, "p + 2u * sx", "nx > 2u ? ny : 0u")};
        {vector} c3 = {_four(name, dtype, "p + 3u * sx", "nx > 3u ? ny : 0u")};
        t[0] = {vector}(c0.x, c1.x, c2.x, c3.x);
        t[1] = {vector}(c0.y, c1.y, c2.y, c3.y);
        t[2] = {vector}(c0.z, c1.z, c2.z, c3.z);
        t[3] = {vector}(c0.w, c1.w, c2.w, c3.w);
    }} else {{
        for (uint r = 0u; r < ROWS; r++) {{
            uint n = r < ny ? nx : 0u;
            if ({name}_MODE == {ROW}u) {{
                t[r] = {_four(name, dtype, "p", "n")};
            }} else {{
                if (n > 0u) t[r].x = {_one(name, dtype, "p")};
                if (n > 1u) t[r].y = {_one(name, dtype, "p + sx")};
                if (n > 2u) t[r].z = {_one(name, dtype, "p + 2u * sx")};
                if (n > 3u) t[r].w = {_one(name, dtype, "p + 3u * sx")};
            }}
            p += sy;
        }}
    }}
}}"""


def _tile_output(binding: int, name: str, dtype: str) -> str:
    """Return the function that writes a row of four; what is less than a word is written in words, side by side."""
    if dtype in LONG:
        return f"""\
void {name}_row(uvec4 at, uint n, {vector_of(dtype)} v) {{
    uint p = place_of({binding}u, at);
    uint sx = stride_of({binding}u, 0u);
    if ({name}_MODE == {ROW}u) {{
        {name}_store4(p, n, v);
    }} else {{
        for (uint j = 0u; j < n; j++) {name}_put(p + j * sx, v[j]);
    }}
}}"""
    narrow = f"{name}_half" if is_float(dtype) else f"({name}_half || {name}_byte)"
    return f"""\
void {name}_row(uvec4 at, uint n, uvec4 packed) {{
    uint p = place_of({binding}u, at);
    uint sx = stride_of({binding}u, 0u);
    if ({name}_MODE == {ROW}u) {{
        {name}_store4(p, n, packed);
    }} else if (!{narrow}) {{
        if (n > 0u) {name}_word[p] = packed.x;
        if (n > 1u) {name}_word[p + sx] = packed.y;
        if (n > 2u) {name}_word[p + 2u * sx] = packed.z;
        if (n > 3u) {name}_word[p + 3u * sx] = packed.w;
    }}
}}"""
