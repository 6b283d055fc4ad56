"""What elementwise operations do on CPU drivers: when the kernels *full* and *rows* run, how, and their GLSL.

These move eight elements of 32 bits at a time, for drivers that test each lane of a vector at each access.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkpar.abi import elementwise as abi
from vkpar.ops.call.windows import fold_groups
from vkpar.ops.elementwise.kinds import (
    ANY,
    COLUMN,
    FIRST_CONSTANT,
    FULL,
    FULL_BLOCKS,
    FULL_GROUPS,
    GROUP,
    ONE,
    ROW,
    ROW_GROUPS,
    ROWS,
    SCALAR,
    SECOND,
    KernelTypes,
    arguments,
    glsl_of,
    of_bits,
    vector_of,
)

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.elementwise.geometry import Geometry

FEW_TESTS: Final = 1 << 18  # elements from which on kernels with fewer tests are worth their compilation
FEW_TESTS_FLAT: Final = 1 << 10  # of operands that lie side by side
LONGEST_ROW: Final = 1 << 24  # elements: float32, by which kernels of rows divide, tells apart the units of these
# Lanes of a vector that lie along the result's rows, where an operand is fast along its columns: these read lines of a
# cache that are powers of two apart, of which it holds few at a time.
_TURNED_WIDTH: Final = 4
_HALVES_AT_ONCE: Final = 2  # blocks of four that an invocation of a GPU makes of halves
INT64: Final = "#extension GL_ARB_gpu_shader_int64 : require"

# Four words of 64 bits in one access cost less than two and two; these cost less than single words of 32 bits.
_OPERAND: Final = """\
layout(constant_id = {constant}) const uint {name}_MODE = {ROW}u;
layout(constant_id = {constant} + 1) const bool {name}_EIGHTS = false;  // runs of eight begin at multiples of eight
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Eights {{ u64vec4 {name}_eight[]; }};
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Pairs {{ u64vec2 {name}_pair[]; }};
layout(set = 0, binding = {binding}, std430) {access}buffer {name}_Words {{ uint {name}_word[]; }};
"""

_COMMON: Final = """\
uvec4 words_of(u64vec2 pairs) { return uvec4(unpackUint2x32(pairs.x), unpackUint2x32(pairs.y)); }
u64vec2 pairs_of(uvec4 words) { return u64vec2(packUint2x32(words.xy), packUint2x32(words.zw)); }
uvec4 halves_of(u64vec4 pairs, bool second) {
    uvec4 low = words_of(pairs.xy), high = words_of(pairs.zw);
    return second ? uvec4(low.yw, high.yw) : uvec4(low.xz, high.xz);
}
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
const uint BLOCKS = 4u;  // of four elements that an invocation makes
"""

_FULL_MAIN: Final = """\
void main() {
    uint i = (group_number() * THREADS + gl_LocalInvocationID.x) * 16u;
    if (EXACT || i + 16u <= push.g[0]) {
        eight(i);
        eight(i + 8u);
    } else {
        uint end = min(push.g[0], i + 15u);
        for (; i < end; i++) one(i);
    }
}
"""

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

# ---- what runs ----


def has_few_tests(device: Device, size: int, *, flat: bool) -> bool:
    """Say whether so many elements of 32 bits are worth a kernel with few tests of lanes; ``flat``: side by side."""
    return device.info.tests_lanes and size >= (FEW_TESTS_FLAT if flat else FEW_TESTS)


def width_of(device: Device, geometry: Geometry) -> int:
    """Return how many invocations of a tile's work-group lie side by side."""
    narrow = COLUMN in geometry.modes and device.info.tests_lanes
    return min(geometry.width, _TURNED_WIDTH) if narrow else geometry.width


def leaves_out_tests(device: Device, *, large: bool) -> bool:
    """Say whether kernels for fours alone run where they can.

    CPU drivers run the code for less than a four with every four; small arrays on GPUs deserve no further pipeline.
    """
    return device.info.is_cpu or large


def blocks_of_halves(device: Device, *, large: bool) -> int:
    """Return how many blocks of four halves an invocation makes; large arrays have invocations to spare on any GPU."""
    return _HALVES_AT_ONCE if large and not device.info.is_cpu else 1


def run_of_rows(device: Device, nbytes: int) -> int:
    """Return the bytes that a kernel moves at once of rows of so many, a multiple of 16."""
    return 64 if nbytes % 64 == 0 and device.info.tests_lanes else 16


@dataclass(frozen=True)
class Full:
    """A dispatch of a kernel *full*.

    Attributes:
        device: where it runs.
        geometry: how operands and results lie.
        firsts: the elements of the bindings at which they begin.
        results: how many of them are results.
    """

    device: Device
    geometry: Geometry
    firsts: Sequence[int]
    results: int

    form = FULL

    @property
    def threads(self) -> int:
        """How many invocations a work-group has: few, where many would be idle."""
        return FULL_GROUPS[self.geometry.counts[0] < FEW_TESTS]

    def grid(self) -> tuple[int, int, int]:
        """Return the numbers of work-groups."""
        return fold_groups(self.device, -(-self.geometry.counts[0] // (4 * FULL_BLOCKS * self.threads)))

    def shape(self, groups: int) -> abi.Full | abi.Rows:
        """Return the constants that say what so many work-groups make."""
        return abi.Full(self.threads, groups * self.threads * 4 * FULL_BLOCKS == self.geometry.counts[0])

    def mode(self, number: int) -> int:
        """Return how an operand lies."""
        return self.geometry.modes[number]


class FullRows(Full):
    """A dispatch of a kernel *rows*."""

    form = ROWS

    @property
    def blocks(self) -> int:
        """How many blocks of a row an invocation makes."""
        single = ANY in map(self.mode, range(len(self.firsts)))
        most = FULL_BLOCKS // 2 if single else FULL_BLOCKS  # single elements are more code
        return math.gcd(self.geometry.counts[0] // 4, most)

    @property
    def units(self) -> int:
        """How many invocations make a row."""
        return self.geometry.counts[0] // (4 * self.blocks)

    @property
    def threads(self) -> int:
        """How many invocations a work-group has; of fewer than the most, each has a part of one row."""
        units, limits = self.units, self.device.limits.max_workgroup_count
        fitting = (threads for threads in ROW_GROUPS if units % threads == 0 and units // threads <= limits[0])
        return GROUP if self.geometry.counts[1] > limits[1] else next(fitting, GROUP)

    def grid(self) -> tuple[int, int, int]:
        """Return the numbers of work-groups."""
        y, units, threads = self.geometry.counts[1], self.units, self.threads
        return (units // threads, y, 1) if threads < GROUP else fold_groups(self.device, -(-units * y // GROUP))

    def shape(self, groups: int) -> abi.Full | abi.Rows:
        """Return the constants that say what so many work-groups make."""
        return abi.Rows(self.blocks, groups * self.threads == self.units * self.geometry.counts[1], self.threads)

    def mode(self, number: int) -> int:
        """Return how an operand lies: the kernel reads every second element by whole eights."""
        x, y = self.geometry.strides[number][:2]
        is_operand = number < len(self.firsts) - self.results
        second = x == 2 and y % 8 == 0 and self.firsts[number] % 8 < 2 and is_operand
        usual = self.geometry.modes[number]
        return SECOND if usual == ANY and second else usual


def taken(device: Device, geometry: Geometry, firsts: Sequence[int], results: int, size: int) -> Full | None:
    """Return the dispatch of elements of 32 bits by one of these kernels; None where the usual ones run."""
    if not has_few_tests(device, size, flat=not geometry.tile):
        return None
    if not all(geometry.is_wide(number, firsts[number]) for number, mode in enumerate(geometry.modes) if mode == ROW):
        return None
    if not geometry.tile:
        return Full(device, geometry, firsts, results)
    into_rows = all(mode == ROW for mode in geometry.modes[-results:])
    turns = len(geometry.counts) > 2 or COLUMN in geometry.modes
    whole = geometry.counts[0] % 4 == 0 and geometry.counts[0] <= LONGEST_ROW
    return FullRows(device, geometry, firsts, results) if into_rows and not turns and whole else None


# ---- their GLSL ----

Named = list[tuple[str, str]]


def declared(name: str, binding: int, *, reads: bool) -> str:
    """Return the declaration of an operand, or of a result."""
    access = "readonly " if reads else ""
    constant = FIRST_CONSTANT + 2 * binding
    return _OPERAND.format(name=name, binding=binding, constant=constant, access=access, ROW=ROW)


def kernel(form: str, operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    """Return the GLSL that follows the declarations and ``compute``."""
    lines = [_ROWS_HEAD if form == ROWS else _FULL_HEAD, _COMMON]
    lines += [_READ.format(name=name) for name, _ in operands] + [_WRITE.format(name=name) for name, _ in results]
    lines += _four(operands, results, kind)
    return lines + (_rows(operands, results) if form == ROWS else _full(operands, results, kind))


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


def _full(operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    lines = ["void eight(uint i) {"]
    for place, (name, _) in enumerate(operands):
        at = f"push.g[{2 + place}]"
        lines.append(f"    uvec4 l{place}, h{place};")
        lines.append(f"    if ({name}_MODE == {SCALAR}u) l{place} = h{place} = uvec4({at});")
        lines.append(f"    else if ({name}_MODE == {ONE}u) l{place} = h{place} = uvec4({name}_word[{at}]);")
        lines.append(f"    else {name}_read({at} + i, l{place}, h{place});")
    lines += _eight(operands, results, "true")
    for place, (name, _) in enumerate(results):
        lines.append(f"    {name}_write(push.g[{2 + len(operands) + place}] + i, e{place}, f{place});")
    return [*lines, "}", *_single(operands, results, kind), _FULL_MAIN]


def _single(operands: Named, results: Named, kind: KernelTypes) -> list[str]:
    """Return the function that makes one element, of those that are no sixteen."""
    lines = ["void one(uint i) {"]
    for place, (name, dtype) in enumerate(operands):
        at = f"push.g[{2 + place}]"
        index = f"{at} + ({name}_MODE == {ONE}u ? 0u : i)"
        lines.append(f"    uint b{place} = {at};")
        lines.append(f"    if ({name}_MODE != {SCALAR}u) b{place} = {name}_word[{index}];")
        lines.append(f"    {glsl_of(dtype)} v{place} = {of_bits(dtype, f'b{place}')};")
    lines += [f"    {glsl_of(dtype)} w{place};" for place, (_, dtype) in enumerate(results)]
    lines.append(f"    compute({', '.join(arguments(kind, '', 'push.g[1] + i'))});")
    for place, (name, dtype) in enumerate(results):
        to = f"push.g[{2 + len(operands) + place}] + i"
        lines.append(f"    {name}_word[{to}] = {_bits(dtype, f'w{place}', 'uint')};")
    return [*lines, "}"]


def _rows(operands: Named, results: Named) -> list[str]:
    lines = ["void eight(uint x, uint y) {", "    uint i = 0u;"]
    for place, (name, _) in enumerate(operands):
        first = 2 + 3 * place
        step = f"push.g[{first + 1}]"
        low, high = (
            ", ".join(f"{name}_word[at{place} + {j}u * {step}]" for j in range(start, start + 4)) for start in (0, 4)
        )
        lines += [
            f"    uvec4 l{place}, h{place};",
            f"    uint at{place} = push.g[{first}] + y * push.g[{first + 2}] + x * {step};",
            f"    if ({name}_MODE == {SCALAR}u) {{",
            f"        l{place} = h{place} = uvec4(push.g[{first}]);",
            f"    }} else if ({name}_MODE == {ROW}u) {{",
            f"        {name}_read(at{place}, l{place}, h{place});",
            f"    }} else if ({name}_MODE == {SECOND}u) {{",
            f"        bool odd = (push.g[{first}] & 1u) != 0u;",
            f"        h{place} = l{place} = halves_of({name}_eight[at{place} >> 3], odd);",
            f"        if (BLOCKS > 1u) h{place} = halves_of({name}_eight[(at{place} >> 3) + 1u], odd);",
            "    } else {",
            f"        h{place} = l{place} = uvec4({low});",
            f"        if (BLOCKS > 1u) h{place} = uvec4({high});",
            "    }",
        ]
    lines += _eight(operands, results, "BLOCKS > 1u")
    for place, (name, _) in enumerate(results, start=len(operands)):
        at = f"push.g[{2 + 3 * place}] + y * push.g[{4 + 3 * place}] + x"
        lines.append(f"    {name}_write({at}, e{place - len(operands)}, f{place - len(operands)});")
    return [*lines, "}", _ROWS_MAIN]
