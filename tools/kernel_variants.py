"""The built-in kernels, and the constants that they are specialized by, read from their SPIR-V.

Of every kernel there are variants: what vkpar makes of it on GPUs for short arrays at odd places (``plain``), for long
ones at even places, with all that may follow (``wide``), and for 16-bit types (``halves``).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

# Values of specialization constants as vkpar gives them to GPUs, for each of the variants. Truths need no line: they
# are false in ``plain`` and true in the others. A row whose first column matches the kernel's name comes before others.
VARIANTS: Final = ("plain", "wide", "halves")
_FLOAT32, _FLOAT16, _BFLOAT16 = 0, 1, 2  # of shaders/common/elements.glsl
_VALUES: Final[Sequence[tuple[str, str, tuple[int, int, int]]]] = (
    ("^narrow$", "A_BITS", (8, 64, 32)),
    ("^narrow$", "O_BITS", (32, 8, 16)),
    ("^narrow$", "A_KIND", (0, 1, 2)),
    ("^narrow$", "O_KIND", (2, 3, 1)),
    # elementwise operations; the modes are codes of vkpar/ops/elementwise/generate.py
    ("^(each|add)_", "BLOCKS", (1, 1, 2)),
    ("^each_", "WIDTH", (8, 64, 8)),
    ("^each_", "CHOSEN", (0, 1, 0)),  # of a family
    ("^each_", "DIMS", (2, 3, 4)),
    ("^each_", "ROWS", (1, 4, 4)),
    ("^each_.*_(flat|full)$", r"[ar]\d+_MODE", (1, 1, 4)),
    ("^each_.*_full$", "THREADS", (32, 256, 256)),
    ("^each_.*_rows$", "THREADS", (256, 128, 128)),
    ("^each_.*_rows$", r"a\d+_MODE", (0, 1, 1)),
    ("^each_.*_rows$", r"r\d+_MODE", (1, 1, 1)),
    ("^each_.*_tile$", r"a\d+_MODE", (0, 1, 2)),
    ("^each_.*_tile$", r"r\d+_MODE", (0, 1, 1)),
    ("^scan_once", "PHASE", (3, 3, 3)),
    ("^scan_", "PHASE", (0, 1, 2)),
    ("^scan_", "THREADS", (256, 256, 256)),
    ("^(sort_|topk$)", "KIND", (0, 2, 2)),
    ("^sort_", "PHASE", (0, 2, 1)),
    ("^sort_lanes", "THREADS", (8, 8, 8)),
    ("^sort_lanes", "ITEMS", (2048, 64, 2048)),
    ("^sort_lanes", "PHASE", (0, 3, 1)),
    ("^sort_lanes", "WORDS", (1, 2, 2)),
    ("^sort_", "THREADS", (64, 256, 256)),
    ("^sort_", "ITEMS", (4, 16, 16)),
    ("^sort_", "WARP", (32, 32, 32)),
    ("^topk$", "THREADS", (32, 256, 64)),
    ("^topk$", "WORDS", (1, 1, 2)),
    ("^topk$", "EACH", (1, 8, 8)),
    # reductions and rows: invocations of a work-group, and fours that each keeps
    ("^reduce_units", "OP", (0, 1, 2)),
    ("^reduce_units_w64", "OP", (0, 1, 8)),
    ("^reduce_units", "BITS", (8, 16, 16)),
    ("^reduce_", "GROUP", (256, 256, 256)),
    ("^reduce_rows", "TURNS", (0, 16, 0)),  # 16 where a row is one invocation's, on CPU drivers
    ("^(norm|softmax)", "GROUP", (256, 1024, 256)),
    ("_long$", "KEEP", (1, 1, 1)),
    ("^(norm|softmax)", "KEEP", (1, 4, 4)),
    ("^norm_layer", "MOMENT", (0, 1, 2)),
    # products
    ("^matvec_.*(columns1|pairs1|rows1024)", "ROWS", (1, 1, 1)),
    ("^matvec_", "ROWS", (2, 8, 8)),
    ("^matvec_.*pairs1", "SPAN", (64, 64, 64)),
    ("^matvec_.*columns1", "SPAN", (64, 64, 64)),
    ("^matvec_.*columns8", "SPAN", (64, 64, 32)),
    ("^matvec_.*rows", "SPAN", (2, 8, 4)),
    ("^matvec_steps", "THREADS", (8, 128, 128)),
    ("^matmul_eights", "ROWS", (8, 16, 16)),
    ("^matmul_eights", "LANES", (2, 8, 4)),
    ("^matmul_narrow", "COLUMNS", (3, 16, 10)),
    ("^matmul_short", "STEPS", (3, 8, 10)),
    ("^matmul_tiled", "[MN]REP", (1, 2, 2)),
    ("^matmul_tiled", "THREADS", (256, 256, 256)),
    ("^(matmul|matvec|quantized)_", "ACTIVATION", (0, 2, 4)),
    # products by matrix cores: tiles, of AMD's subgroups of 64, as vkpar/ops/tiles/cores.py has them
    ("^matmul_coop_.*t128$", "TILE_M", (64, 128, 16)),
    ("^matmul_coop_.*t128$", "TILE_N", (64, 128, 64)),
    ("^matmul_coop_.*t128$", "WARP_M", (32, 64, 16)),
    ("^matmul_coop_.*t128$", "WARP_N", (64, 128, 32)),
    ("^matmul_coop_.*t128$", "STEP", (64, 32, 128)),
    ("^matmul_coop_.*t256$", "TILE_M", (128, 128, 128)),
    ("^matmul_coop_.*t256$", "TILE_N", (256, 256, 256)),
    ("^matmul_coop_.*t256$", "WARP_M", (64, 64, 64)),
    ("^matmul_coop_.*t256$", "WARP_N", (128, 128, 128)),
    ("^matmul_coop_.*t256$", "STEP", (32, 32, 32)),
    ("^matmul_coop_.*t256$", "SPAN", (1, 1, 1)),
    ("^matmul_coop_.*t128$", "SPAN", (1, 1, 1)),
    ("^matmul_coop_", "AHEAD", (0, 0, 0)),
    ("^matmul_coop_", "F[MNK]", (16, 16, 16)),
    ("^mat(mul_coop|vec_cores).*_bf16", "[AB]_TYPE", (_BFLOAT16, _BFLOAT16, _BFLOAT16)),
    ("^mat(mul_coop|vec_cores).*_bf16", "O_TYPE", (_FLOAT32, _FLOAT32, _BFLOAT16)),
    ("^mat(mul_coop|vec_cores).*_f16", "[AB]_TYPE", (_FLOAT16, _FLOAT16, _FLOAT16)),
    ("^matvec_cores_", "COLUMNS", (64, 16, 16)),
    ("^matvec_cores_", "STEP", (32, 64, 64)),
    ("^matvec_cores_", "THREADS", (256, 128, 384)),
    ("^matvec_cores_", "TURNS", (2, 2, 2)),
    ("^matvec_cores_", "F[MNK]", (16, 16, 16)),
    # attention; the subgroups of attention_warps are NVIDIA's
    ("^attention_combine", "THREADS", (256, 256, 256)),
    ("^attention_combine", "QUADS", (16, 32, 32)),
    ("^attention_combine", "SPLITS", (2, 64, 8)),
    ("^attention_small", "THREADS", (64, 64, 64)),
    ("^attention_", "THREADS", (128, 128, 128)),
    ("^attention_", "WIDTH", (64, 128, 80)),
    ("^attention_", "LENGTHS", (0, 1, 2)),
    ("^attention_warps", "LANES", (16, 16, 16)),
    ("^attention_warps", "WARP", (32, 32, 32)),
    ("^attention_cores", "KEYS", (32, 32, 16)),
    ("^attention_cores", "FM", (16, 16, 16)),
    ("^attention_cores", "AHEAD", (1, 1, 1)),
    ("^attention_cores", "PARTS", (1, 1, 1)),
    ("coop_|_cores", "WARP", (64, 64, 64)),
    # quantised weights
    ("^quantized_dots_", "ROWS", (1, 1, 1)),
    ("^quantized_dots_", "SPAN", (32, 64, 128)),
    ("^quantized_dots_", "COLUMNS", (4, 2, 4)),
    ("^quantized_dots_", "TURNS", (1, 1, 1)),
    ("^quantized_dots_", "PASSES", (8, 4, 2)),
    ("^quantized_dots_", "THREADS", (512, 1024, 1024)),
    ("^quantized_dots_.*q8_0", "EACH", (2, 2, 2)),
    ("^quantized_dots_", "EACH", (4, 2, 2)),
    ("^quantized_cores_", "ROWS", (2, 8, 16)),
    ("^quantized_cores_", "COLUMNS", (32, 32, 64)),
    ("^quantized_cores_", "TURNS", (1, 2, 1)),
    ("^quantized_cores_", "THREADS", (256, 256, 512)),
    ("^quantized_cores_", "HIGH", (16, 16, 16)),
    ("^quantized_matvec_.*rows1_", "ROWS", (1, 1, 1)),
    ("^quantized_matvec_", "ROWS", (2, 8, 8)),
    ("^quantized_matvec_.*rows1_", "SPAN", (64, 128, 256)),
    ("^quantized_matvec_", "SPAN", (32, 32, 32)),
    ("^quantized_matvec_", "COLUMNS", (4, 2, 4)),
    ("^quantized_matvec_", "TURNS", (1, 1, 1)),
    ("^quantized_matvec_q8_0_rows8", "PASSES", (2, 2, 2)),
    ("^quantized_matvec_", "PASSES", (1, 1, 1)),
    # mixtures of experts
    ("^expert_few", "ACTIVATION", (0, 4, 4)),
    ("^expert_few", "SPAN", (32, 32, 64)),
    ("^expert_few_folded", "COLUMNS", (2, 2, 2)),
    ("^expert_few", "COLUMNS", (1, 2, 1)),
    ("^expert_few", "TURNS", (1, 1, 2)),
    ("^expert_router", "SPAN", (32, 32, 64)),
    ("^expert_groups", "TILE", (4, 32, 32)),
    # copies of regions; what collectives sum, and how
    ("^region_", "AXES", (1, 3, 6)),
    ("^region_", "EACH", (1, 1, 16)),
    ("^(wire|norm_gather)_", "SOURCES", (1, 3, 15)),
    ("^(wire|norm_gather)_", "OWN_AT", (0, 1, 7)),
    ("^wire_", "OP", (0, 1, 2)),
    ("^wire_", "ORDER", (0, 1, 2)),
    # types: float32 and, of the halves, each one somewhere
    ("_mixed", "KIND_CODE", (9, 8, 6)),  # of shaders/common/kinds.glsl
    ("", r"(B|W|M|BIAS|RESIDUAL|NORM)_TYPE", (_FLOAT32, _FLOAT32, _BFLOAT16)),
    ("", r"\w+_TYPE", (_FLOAT32, _FLOAT32, _FLOAT16)),
)
_SPEC_TRUE, _SPEC_FALSE, _SPEC_NUMBER, _NAME, _DECORATE = 48, 49, 50, 5, 71  # opcodes
_POINTER, _VARIABLE, _CAPABILITY, _FUNCTION = 32, 59, 17, 54
_SPEC_ID, _BINDING, _UNIFORM_CONSTANT = 1, 33, 0


class ReportError(Exception):
    """What keeps a report from being made; the message says what to do."""


@dataclass(frozen=True)
class Constant:
    """A constant that a kernel is specialized by: its number, name and the value that the module has."""

    number: int
    name: str
    value: int
    truth: bool


@dataclass(frozen=True)
class Module:
    """What a kernel's SPIR-V declares, as far as making a pipeline of it needs."""

    name: str
    source: str
    spirv: bytes
    constants: tuple[Constant, ...]
    bindings: dict[int, bool]  # of set 0, and whether it is a texel buffer
    capabilities: frozenset[int]

    def values(self, variant: str) -> tuple[int, ...]:
        """Return the constants from number 0 on for one of :data:`VARIANTS`."""
        made = [0] * (1 + max((each.number for each in self.constants), default=-1))
        for each in self.constants:
            made[each.number] = self._value(each, VARIANTS.index(variant))
        return tuple(made)

    def given(self, values: Sequence[int], defaults: Mapping[str, int]) -> list[int]:
        """Return some constants by name; the defaults of those that the module has not, or is not given."""
        found = {each.name: values[each.number] for each in self.constants if each.number < len(values)}
        return [found.get(name, value) for name, value in defaults.items()]

    def _value(self, constant: Constant, variant: int) -> int:
        if constant.truth:
            return int(variant > 0)
        for kernel, name, values in _VALUES:
            if re.search(kernel, self.name) and re.fullmatch(name, constant.name):
                return values[variant]
        raise ReportError(
            f"{self.name} is specialized by {constant.name} (number {constant.number}): say what vkpar gives it, in a "
            "row of _VALUES in tools/kernel_variants.py"
        )


def read(name: str, source: str, spirv: bytes) -> Module:
    """Read the module of the kernel ``name``, but for the constant that pipelines set by the driver."""
    from vkpar.vulkan.pipelines.kernel import PACKS_HALVES

    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    names: dict[int, str] = {}
    numbers: dict[int, int] = {}
    capabilities: set[int] = set()
    bindings: dict[int, int] = {}
    pointers: dict[int, int] = {}
    variables: dict[int, int] = {}
    found: list[tuple[int, int, bool]] = []
    at = 5
    while at < len(words) and words[at] & 0xFFFF != _FUNCTION:
        opcode, count = words[at] & 0xFFFF, words[at] >> 16
        given = words[at + 1 : at + count]
        if opcode == _NAME:
            names[given[0]] = struct.pack(f"<{count - 2}I", *given[1:]).split(b"\0")[0].decode()
        elif opcode == _DECORATE and given[1] == _SPEC_ID:
            numbers[given[0]] = given[2]
        elif opcode == _DECORATE and given[1] == _BINDING:
            bindings[given[0]] = given[2]
        elif opcode == _CAPABILITY:
            capabilities.add(given[0])
        elif opcode == _POINTER:
            pointers[given[0]] = given[1]
        elif opcode == _VARIABLE:
            variables[given[1]] = given[0]
        elif opcode in (_SPEC_TRUE, _SPEC_FALSE):
            found.append((given[1], int(opcode == _SPEC_TRUE), True))
        elif opcode == _SPEC_NUMBER:
            found.append((given[1], given[2], False))
        at += count
    # The size of a work-group has no name where the compiler made it of the layout qualifier, or another one's number.
    named = {number: names[i] for i, number in numbers.items() if names.get(i)}
    constants = {
        numbers[i]: Constant(numbers[i], named.get(numbers[i], "?" if numbers[i] else "GROUP"), value, truth)
        for i, value, truth in found
        if i in numbers and numbers[i] != PACKS_HALVES
    }
    kinds = {number: pointers[variables[i]] == _UNIFORM_CONSTANT for i, number in bindings.items()}
    return Module(name, source, spirv, tuple(constants.values()), kinds, frozenset(capabilities))


def modules(pattern: str = "") -> Iterator[Module]:
    """Yield the kernels of the package whose names match."""
    from vkpar.vulkan.pipelines import shader

    manifest = json.loads((ROOT / "vkpar" / "spirv" / "manifest.json").read_text())
    for name, entry in manifest["kernels"].items():
        if re.search(pattern, name):
            yield read(name, entry["source"], shader.shipped(name))
