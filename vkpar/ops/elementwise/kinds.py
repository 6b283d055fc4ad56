"""What the generators of elementwise kernels share: forms, how operands lie, types, and these in GLSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkpar.ops.elementwise.expressions import BOOL, FLOATS, LONG, WEAK_FLOAT, WEAK_INT, glsl_type

WORDS: Final = 32  # of push constants, which every device has
GROUP: Final = 256  # invocations of a work-group
FORMS = FLAT, TILE, FULL, ROWS = "flat", "tile", "full", "rows"
ROW_GROUPS: Final = 128, 64, 32  # invocations of groups of a rows kernel that lie in one row
FULL_BLOCKS: Final = 4  # of four elements: what an invocation of a full kernel makes, a cache line of 32-bit elements
BYTE_BLOCKS: Final = 8  # the same where all are bytes
FULL_GROUPS: Final = 256, 32  # invocations of groups of a full kernel, of large arrays and of small ones
# How an operand lies: any steps; side by side along X; side by side along Y; a number; one element for all; every
# second element of eights, for a kernel of rows alone; or as ROW, with all bytes of an invocation at once.
ANY, ROW, COLUMN, SCALAR, ONE, SECOND, BYTES = range(7)
INDEX: Final = "index"  # the type of an input that is the element's own number
# How elements are stored: the codes of shaders/common/elements.glsl and whole.glsl.
CODES: Final = {
    "float32": 0, "float16": 1, "bfloat16": 2, "int32": 3, "uint32": 3,
    "uint16": 4, "int16": 5, "uint8": 6, "int8": 7, "bool": 8, "int64": 9, "uint64": 9, "float64": 9,
}  # fmt: skip
_VECTORS: Final = {
    "float": "vec4", "int": "ivec4", "uint": "uvec4", "int64_t": "i64vec4", "uint64_t": "u64vec4", "double": "dvec4",
}  # fmt: skip
FIRST_CONSTANT: Final = 3  # after BLOCKS and WHOLE, or ROWS, WIDTH and DIMS

# Sections of shaders/common/long.glsl that elements of 64 bits take.
LONG_SECTIONS: Final = {"int64": "long", "uint64": "long", "float64": "double"}


@dataclass(frozen=True)
class KernelTypes:
    """The types that a kernel is made for.

    Attributes:
        inputs: of each input the type's name that it is computed in, ``weak int``, ``weak float`` or ``index``;
            specialization constants say how whole numbers and truth are stored.
        results: of each output the type's name.
        open: whether specialization constants say how floats are stored, too.
    """

    inputs: tuple[str, ...]
    results: tuple[str, ...]
    open: bool = False

    @property
    def bound(self) -> list[int]:
        """The numbers of the inputs that are arrays."""
        return [number for number, kind in enumerate(self.inputs) if kind not in (WEAK_INT, WEAK_FLOAT, INDEX)]

    @property
    def closed(self) -> KernelTypes:
        """The same where all floats are float32."""
        return KernelTypes(self.inputs, self.results)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the inputs that are Python's, which the push constants hold from the end on."""
        return [number for number, kind in enumerate(self.inputs) if kind in (WEAK_INT, WEAK_FLOAT)]


def glsl_of(dtype: str) -> str:
    """Return GLSL's name of a type."""
    return "uint" if dtype in (INDEX, BOOL) else glsl_type(dtype)


def vector_of(dtype: str) -> str:
    """Return GLSL's name of four of a type."""
    return _VECTORS[glsl_of(dtype)]


def is_float(dtype: str) -> bool:
    """Say whether elements of a type are floats."""
    return dtype in FLOATS


def constant_of_type(bindings: int, binding: int) -> int:
    """Return the number of the specialization constant that says how a binding's elements are stored."""
    return FIRST_CONSTANT + 2 * bindings + binding


def of_bits(dtype: str, bits: str) -> str:
    """Return GLSL of a value, or of four, with given bits; one of 64 bits by its value in 32."""
    made = {"float": f"uintBitsToFloat({bits})", "int": f"int({bits})", "uint": bits}
    long = {"int64_t": f"int64_t(int({bits}))", "uint64_t": f"uint64_t({bits})", "double": f"double({made['float']})"}
    return (made | long)[glsl_of(dtype)]


def number_of(kind: KernelTypes, number: int) -> str:
    """Return GLSL of a number of the expression."""
    return of_bits(kind.inputs[number], f"push.g[{WORDS - 1 - kind.numbers.index(number)}]")


def arguments(kind: KernelTypes, element: str, index: str) -> list[str]:
    """Return what ``compute`` is given: elements of the vectors ``v0``, ``v1``, ..., numbers, and the results' ones."""
    given = []
    for number, dtype in enumerate(kind.inputs):
        if dtype == INDEX:
            given.append(index)
        elif number in kind.numbers:
            given.append(number_of(kind, number))
        else:
            given.append(f"v{kind.bound.index(number)}{element}")
    return given + [f"w{place}{element}" for place in range(len(kind.results))]


def has_long(kind: KernelTypes) -> bool:
    """Say whether a kind has elements of 64 bits."""
    return not LONG.keys().isdisjoint(kind.inputs + kind.results)
