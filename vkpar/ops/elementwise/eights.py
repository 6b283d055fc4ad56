"""The GLSL of the kernels *full* and *rows* of CPU drivers, which move eight elements at a time; see cpu.py."""

from __future__ import annotations

from typing import Final

from vkpar.ops.elementwise.kinds import (
    BYTES,
    FIRST_CONSTANT,
    ONE,
    ROW,
    ROWS,
    SCALAR,
    SECOND,
    KernelTypes,
    arguments,
    constant_of_type,
    glsl_of,
    is_float,
    of_bits,
    vector_of,
)

WHOLE_RAW, WHOLE_PUT = "WHOLE_RAW({name})\n", "WHOLE_PUT({name})\n"
INT64: Final = "#extension GL_ARB_gpu_shader_int64 : require"
UNROLL: Final = "#extension GL_EXT_control_flow_attributes : require"

# Four words of 64 bits in one access cost less than two and two; these cost less than single words of 32 bits.
_OPERAND: Final = """\
layout(constant_id = {constant}) const uint {name}_MODE = {ROW}u;
layout(constant_id = {constant} + 1) const bool {name}_EIGHTS = false;  // runs of eight begin at multiples of eight
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Eights {{ u64vec4 {name}_eight[]; }};
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Pairs {{ u64vec2 {name}_pair[]; }};
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Words {{ uint {name}_word[]; }};
"""

_TYPED: Final = """\
layout(constant_id = {constant}) const uint {name}_TYPE = I32;  // how whole numbers are stored
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Singles {{ uint64_t {name}_single[]; }};
WHOLE_TYPE({name}, {name}_TYPE)
u64vec4 {name}_bytes;  // all of an invocation
"""

_COMMON: Final = """\
uvec4 words_of(u64vec2 pairs) { return uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y)); }
u64vec2 pairs_of(uvec4 words) { return u64vec2(packUint2x32(words.xy), packUint2x32(words.zw)); }
uvec4 halves_of(u64vec4 pairs, bool second) {
    uvec4 low = words_of(pairs.xy), high = words_of(pairs.zw);
    return second ? uvec4(low.yw, high.yw) : uvec4(low.xz, high.xz);
}
"""

_WHOLE: Final = """\
uint part = 0u;  // which eight of an invocation's elements is made
uvec4 longs_of(u64vec4 pairs, bool second) { return words_of(second ? pairs.yw : pairs.xz); }
"""

_READ: Final = """\
void {name}_read(uint at, out uvec4 low, out uvec4 high) {{
    if (BLOCKS == 1u) {{
        low = words_of({name}_pair[at >> 2]);
        high = low;
    }} else if ({name}_EIGHTS) {{
        u64vec4 pairs = {name}_eight[at >> 3];
        low = words_of(pairs.xy);
        high = words_of(pairs.zw);
    }} else {{
        low = words_of({name}_pair[at >> 2]);
        high = words_of({name}_pair[(at >> 2) + 1u]);
    }}
}}
"""

# What is stored in fewer bits is one word of 64 bits, or two; where runs do not begin at these, halves of them. Where
# the bytes of an invocation begin at multiples of their number, all are moved at once.
_READ_WHOLE: Final = """\
void {name}_read(uint at, out uvec4 low, out uvec4 high) {{
    if ({name}_byte) {{
        uvec2 words;
        if ({name}_MODE == {BYTES}u) {{
            if (part == 0u && BLOCKS > 4u) {name}_bytes = {name}_eight[at >> 5];
            else if (part == 0u) {name}_bytes.xy = {name}_pair[at >> 4];
            words = unpackUint2x32({name}_bytes[part]);
        }} else if (BLOCKS > 1u && {name}_EIGHTS) words = unpackUint2x32({name}_single[at >> 3]);
        else words = uvec2({name}_word[at >> 2], {name}_word[(at >> 2) + (BLOCKS > 1u ? 1u : 0u)]);
        low = {name}_split(uvec2(words.x, 0u));
        high = {name}_split(uvec2(words.y, 0u));
    }} else if ({name}_half && BLOCKS > 1u && {name}_EIGHTS) {{
        u64vec2 pair = {name}_pair[at >> 3];
        low = {name}_split(unpackUint2x32(pair.x));
        high = {name}_split(unpackUint2x32(pair.y));
    }} else if ({name}_half) {{
        low = {name}_split(unpackUint2x32({name}_single[at >> 2]));
        high = low;
        if (BLOCKS > 1u) high = {name}_split(unpackUint2x32({name}_single[(at >> 2) + 1u]));
    }} else {{
        {name}_read_words(at, low, high);
    }}
}}
"""

_WRITE_WHOLE: Final = """\
void {name}_write(uint at, uvec4 low, uvec4 high) {{
    if ({name}_byte) {{
        uvec2 words = uvec2({name}_join(low).x, {name}_join(high).x);
        if ({name}_MODE == {BYTES}u) {{
            {name}_bytes[part] = packUint2x32(words);
            if (part == 3u) {name}_eight[at >> 5] = {name}_bytes;
            else if (part == 1u && BLOCKS == 4u) {name}_pair[at >> 4] = {name}_bytes.xy;
        }} else if (BLOCKS > 1u && {name}_EIGHTS) {{
            {name}_single[at >> 3] = packUint2x32(words);
        }} else {{
            {name}_word[at >> 2] = words.x;
            if (BLOCKS > 1u) {name}_word[(at >> 2) + 1u] = words.y;
        }}
    }} else if ({name}_half && BLOCKS > 1u && {name}_EIGHTS) {{
        {name}_pair[at >> 3] = u64vec2(packUint2x32({name}_join(low)), packUint2x32({name}_join(high)));
    }} else if ({name}_half) {{
        {name}_single[at >> 2] = packUint2x32({name}_join(low));
        if (BLOCKS > 1u) {name}_single[(at >> 2) + 1u] = packUint2x32({name}_join(high));
    }} else {{
        {name}_write_words(at, low, high);
    }}
}}
"""

_WRITE: Final = """\
void {name}_write(uint at, uvec4 low, uvec4 high) {{
    if (BLOCKS == 1u) {{
        {name}_pair[at >> 2] = pairs_of(low);
    }} else if ({name}_EIGHTS) {{
        {name}_eight[at >> 3] = u64vec4(pairs_of(low), pairs_of(high));
    }} else {{
        {name}_pair[at >> 2] = pairs_of(low);
        {name}_pair[(at >> 2) + 1u] = pairs_of(high);
    }}
}}
"""

_FULL_HEAD: Final = """\
layout(constant_id = 0) const uint THREADS = 256u;  // of a group
layout(constant_id = 1) const bool EXACT = false;  // each invocation has sixteen elements
layout(local_size_x_id = 0) in;
"""
_FULL_BLOCKS: Final = "const uint BLOCKS = 4u;  // of four elements that an invocation makes"
_WHOLE_BLOCKS: Final = "layout(constant_id = 2) const uint BLOCKS = 4u;  // of four elements of an invocation: 4 or 8"

_FULL_MAIN: Final = """\
void main() {
    const uint mine = 4u * BLOCKS;
    uint i = (group_number() * THREADS + gl_LocalInvocationID.x) * mine;
    if (EXACT || i + mine <= push.g[0]) {
        EIGHTS
    } else {
        uint end = min(push.g[0], i + mine - 1u);
        for (; i < end; i++) one(i);
    }
}
"""

_EIGHTS: Final = "eight(i);\n        eight(i + 8u);"
_PARTS: Final = "[[unroll]] for (part = 0u; part < BLOCKS / 2u; part++) eight(i + part * 8u);"  # less SPIR-V than four

_ROWS_HEAD: Final = """\
layout(constant_id = 0) const uint BLOCKS = 1u;  // of four elements that an invocation makes: 1, 2 or 4
layout(constant_id = 1) const bool EXACT = false;  // each invocation has a part of a row
layout(constant_id = 2) const uint THREADS = 256u;  // of a group; of fewer than 256 each has a part of one row
layout(local_size_x_id = 2) in;
"""

# Divisions of integers go lane by lane, those of small numbers by float32 do not. Where a group lies in one row, the
# places of its lanes differ by constants, which drivers need not take out of vectors.
_ROWS_MAIN: Final = """\
void blocks(uint x, uint y) {
    eight(x, y);
    NEXT
    if (BLOCKS > 2u) eight(x + 8u, y);
}

void main() {
    if (THREADS < 256u) {
        blocks(gl_GlobalInvocationID.x * 4u * BLOCKS, gl_WorkGroupID.y);
    } else {
        uint units = push.g[0] / (4u * BLOCKS);
        uint group = group_number() * 256u;
        uint unit = group % units + gl_LocalInvocationID.x;
        precise float middle = float(unit) + 0.5;
        uint down = uint(middle / float(units));
        uint x = (unit - down * units) * 4u * BLOCKS;
        uint y = group / units + down;
        if (EXACT || y < push.g[1]) blocks(x, y);
    }
}
"""


Named = list[tuple[str, str]]


def declared(name: str, dtype: str, binding: int, bindings: int, *, reads: bool) -> str:
    """Return the declaration of an operand, or of a result."""
    access = "readonly " if reads else ""
    given = {"name": name, "binding": binding, "access": access, "ROW": ROW}
    made = _OPERAND.format(constant=FIRST_CONSTANT + 2 * binding, **given)
    if is_float(dtype):
        return made
    made += _TYPED.format(constant=constant_of_type(bindings, binding), **given)
    return made + (WHOLE_RAW if reads else WHOLE_PUT).format(name=name)


def _moved(text: str, whole: str, named: Named, what: str) -> list[str]:
    """Return the functions that read eight elements of each operand, or write those of each result."""
    lines = []
    for name, dtype in named:
        made = text.format(name=name)
        if not is_float(dtype):
            made = made.replace(f"{name}_{what}(", f"{name}_{what}_words(") + whole.format(name=name, BYTES=BYTES)
        lines.append(made)
    return lines


def kernel(form: str, operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    """Return the GLSL that follows the declarations and ``compute``."""
    whole = not all(is_float(dtype) for _, dtype in operands + results)
    lines = [_ROWS_HEAD if form == ROWS else _FULL_HEAD + (_WHOLE_BLOCKS if whole else _FULL_BLOCKS), _COMMON]
    lines += [_WHOLE] * whole
    lines += _moved(_READ, _READ_WHOLE, operands, "read") + _moved(_WRITE, _WRITE_WHOLE, results, "write")
    lines += _four(operands, results, kind)
    lines += _rows(operands, results) if form == ROWS else _full(operands, results, kind)
    if form == ROWS:
        return [*lines, _ROWS_MAIN.replace("NEXT", "part = 1u;" if whole else "")]
    return [*lines, _FULL_MAIN.replace("EIGHTS", _PARTS if whole else _EIGHTS)]


def _four(operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    """Return the function that makes four elements of the operands' bits."""
    given = [f"uvec4 b{place}" for place in range(len(operands))] + [f"out uvec4 d{n}" for n in range(len(results))]
    lines = [f"void four({', '.join(['uint i', *given])}) {{"]
    for place, (_, dtype) in enumerate(operands):
        bits = f"uintBitsToFloat(b{place})" if glsl_of(dtype) == "float" else f"{vector_of(dtype)}(b{place})"
        lines.append(f"    {vector_of(dtype)} v{place} = {bits};")
    lines += [f"    {vector_of(dtype)} w{place};" for place, (_, dtype) in enumerate(results)]
    for j, part in enumerate("xyzw"):
        lines.append(f"    compute({', '.join(arguments(kind, f'.{part}', f'push.g[1] + i + {j}u'))});")
    lines += [f"    d{place} = {_bits(dtype, f'w{place}', 'uvec4')};" for place, (_, dtype) in enumerate(results)]
    return [*lines, "}"]


def _bits(dtype: str, value: str, words: str) -> str:
    return f"floatBitsToUint({value})" if glsl_of(dtype) == "float" else f"{words}({value})"


def _eight(operands: Named, results: Named, second: str) -> list[str]:
    """Return the calls that make the two halves of what was read."""
    calls = []
    for half, to, index in (("l", "e", "i"), ("h", "f", "i + 4u")):
        given = [f"{half}{place}" for place in range(len(operands))] + [f"{to}{n}" for n in range(len(results))]
        calls.append(f"four({', '.join([index, *given])});")
    lines = [f"    uvec4 e{place}, f{place};" for place in range(len(results))]
    lines += [f"    {calls[0]}", f"    if ({second}) {calls[1]}", f"    else {{ {_copies(len(results))} }}"]
    return lines


def _copies(count: int) -> str:
    return " ".join(f"f{place} = e{place};" for place in range(count))


def _raw(name: str, dtype: str, at: str) -> str:
    """Return GLSL of the bits of one element."""
    return f"{name}_word[{at}]" if is_float(dtype) else f"{name}_raw({at})"


def _full(operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    lines = ["void eight(uint i) {"]
    for place, (name, dtype) in enumerate(operands):
        at = f"push.g[{2 + place}]"
        lines.append(f"    uvec4 l{place}, h{place};")
        lines.append(f"    if ({name}_MODE == {SCALAR}u) l{place} = h{place} = uvec4({at});")
        lines.append(f"    else if ({name}_MODE == {ONE}u) l{place} = h{place} = uvec4({_raw(name, dtype, at)});")
        lines.append(f"    else {name}_read({at} + i, l{place}, h{place});")
    lines += _eight(operands, results, "true")
    for place, (name, _) in enumerate(results):
        lines.append(f"    {name}_write(push.g[{2 + len(operands) + place}] + i, e{place}, f{place});")
    return [*lines, "}", *_single(operands, results, kind)]


def _single(operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    """Return the function that makes one element, of those that are no sixteen."""
    lines = ["void one(uint i) {"]
    for place, (name, dtype) in enumerate(operands):
        at = f"push.g[{2 + place}]"
        index = f"{at} + ({name}_MODE == {ONE}u ? 0u : i)"
        lines.append(f"    uint b{place} = {at};")
        lines.append(f"    if ({name}_MODE != {SCALAR}u) b{place} = {_raw(name, dtype, index)};")
        lines.append(f"    {glsl_of(dtype)} v{place} = {of_bits(dtype, f'b{place}')};")
    lines += [f"    {glsl_of(dtype)} w{place};" for place, (_, dtype) in enumerate(results)]
    lines.append(f"    compute({', '.join(arguments(kind, '', 'push.g[1] + i'))});")
    for place, (name, dtype) in enumerate(results):
        to = f"push.g[{2 + len(operands) + place}] + i"
        bits = _bits(dtype, f"w{place}", "uint")
        lines.append(f"    {name}_word[{to}] = {bits};" if is_float(dtype) else f"    {name}_put({to}, {bits});")
    return [*lines, "}"]


def _second(name: str, dtype: str, place: int, start: str) -> list[str]:
    """Return GLSL that reads every second element by eights, or of 64 bits, which are copied as words, by fours."""
    lines, kinds = [], [("", "halves_of", 1)]
    if not is_float(dtype):
        kinds = [(f"if ({name}_EIGHTS) ", "longs_of", 2), ("else ", "halves_of", 1)]
    for condition, picked, odd in kinds:
        chosen = f"({start} & {odd}u) != 0u"
        lines.append(f"        {condition}{{")
        lines.append(f"            h{place} = l{place} = {picked}({name}_eight[at{place} >> 3], {chosen});")
        lines.append(
            f"            if (BLOCKS > 1u) h{place} = {picked}({name}_eight[(at{place} >> 3) + 1u], {chosen});"
        )
        lines.append("        }")
    return lines


def _rows(operands: Named, results: Named) -> list[str]:
    lines = ["void eight(uint x, uint y) {", "    uint i = 0u;"]
    for place, (name, dtype) in enumerate(operands):
        first = 2 + 3 * place
        step = f"push.g[{first + 1}]"
        in_bytes = "" if is_float(dtype) else f" || {name}_MODE == {BYTES}u"
        low, high = (
            ", ".join(_raw(name, dtype, f"at{place} + {j}u * {step}") for j in range(start, start + 4))
            for start in (0, 4)
        )
        lines += [
            f"    uvec4 l{place}, h{place};",
            f"    uint at{place} = push.g[{first}] + y * push.g[{first + 2}] + x * {step};",
            f"    if ({name}_MODE == {SCALAR}u) {{",
            f"        l{place} = h{place} = uvec4(push.g[{first}]);",
            f"    }} else if ({name}_MODE == {ROW}u{in_bytes}) {{",
            f"        {name}_read(at{place}, l{place}, h{place});",
            f"    }} else if ({name}_MODE == {ONE}u) {{",
            f"        l{place} = h{place} = uvec4({_raw(name, dtype, f'at{place}')});",
            f"    }} else if ({name}_MODE == {SECOND}u) {{",
            *_second(name, dtype, place, f"push.g[{first}]"),
            "    } else {",
            f"        h{place} = l{place} = uvec4({low});",
            f"        if (BLOCKS > 1u) h{place} = uvec4({high});",
            "    }",
        ]
    lines += _eight(operands, results, "BLOCKS > 1u")
    for place, (name, _) in enumerate(results, start=len(operands)):
        at = f"push.g[{2 + 3 * place}] + y * push.g[{4 + 3 * place}] + x"
        lines.append(f"    {name}_write({at}, e{place - len(operands)}, f{place - len(operands)});")
    return [*lines, "}"]
