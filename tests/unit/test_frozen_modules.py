"""Modules with plain constants in place of specialization constants, for drivers that leave branches by them in."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib import resources

import pytest
from conftest import FULL
from helpers.vulkan.infos import fake_info

from vkpar.vulkan.pipelines import declared, shader
from vkpar.vulkan.pipelines.constants import frozen, shared_nbytes
from vkpar.vulkan.pipelines.declared import COOPERATIVE_MATRIX
from vkpar.vulkan.pipelines.kernel import Traits

NAMES = sorted(json.loads(resources.files("vkpar.spirv").joinpath("manifest.json").read_text())["kernels"])
DECORATE, FUNCTION, SPEC_ID, SPEC_COMPOSITE, SPEC_OP = 71, 54, 1, 51, 52
OF_SPECIALIZATION = {48, 49, 50, SPEC_COMPOSITE, SPEC_OP}
UINT, ONE, TWO, HALF, WIDE = 2, 5, 6, 7, 9  # ids of the module below


def instructions(spirv: bytes) -> Iterator[tuple[int, ...]]:
    words, at = struct.unpack(f"<{len(spirv) // 4}I", spirv), 5
    while at < len(words):
        yield words[at] & 0xFFFF, *words[at + 1 : at + (words[at] >> 16)]
        at += words[at] >> 16


def module(*made: tuple[int, ...]) -> bytes:
    words = [0x07230203, 0x00010300, 0, 50, 0]
    for opcode, *operands in made:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize("values", [{}, dict.fromkeys(range(32), 1)], ids=["own", "ones"])
def test_shipped_kernels_have_none_left(values: dict[int, int]) -> None:
    for name in NAMES if FULL else NAMES[::19]:
        spirv = shader.shipped(name)
        made = frozen(spirv, values)
        before, after = list(instructions(spirv)), list(instructions(made))
        left = [each for each in after if each[0] in OF_SPECIALIZATION]
        assert all(each[0] in (SPEC_COMPOSITE, SPEC_OP) for each in left)
        # Of 64 bits; by zero, where nobody said how large matrices are.
        assert not left or name.endswith(("f64", "u64")) or COOPERATIVE_MATRIX in declared.shipped(name).capabilities, (
            name
        )
        marks = [each for each in before if each[0] == DECORATE and each[2] == SPEC_ID]
        assert len(after) == len(before) - len(marks)
        functions = [[each[0] for each in listed].index(FUNCTION) for listed in (before, after)]
        assert before[functions[0] :] == after[functions[1] :]
        assert shared_nbytes(made, {}) == shared_nbytes(spirv, values), name


@pytest.mark.parametrize(
    ("operation", "operands", "expected"),
    [
        (132, (ONE, ONE), (43, UINT, 20, 4_000_000_000**2 % 2**32)),
        (128, (ONE, ONE), (43, UINT, 20, 3_705_032_704)),
        (134, (ONE, TWO), (43, UINT, 20, 571_428_571)),
        (137, (ONE, TWO), (43, UINT, 20, 3)),
        (200, (TWO,), (43, UINT, 20, 0xFFFFFFF8)),
        (134, (ONE, HALF), (SPEC_OP, UINT, 20, 134, ONE, HALF)),  # by zero
        (135, (ONE, TWO), (SPEC_OP, UINT, 20, 135, ONE, TWO)),  # with a sign
        (195, (ONE, TWO), (SPEC_OP, UINT, 20, 195, ONE, TWO)),
        (128, (ONE, WIDE), (SPEC_OP, UINT, 20, 128, ONE, WIDE)),  # of 64 bits
    ],
)
def test_what_is_computed(operation: int, operands: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Composites of what is left stay what they are, too."""
    numbers = [(DECORATE, number, SPEC_ID, at) for at, number in enumerate((ONE, TWO, HALF))]
    types = [(21, UINT, 32, 0), (21, 8, 64, 0), (23, 10, UINT, 2)]
    constants = [(50, UINT, ONE, 1), (50, UINT, TWO, 7), (50, UINT, HALF, 5), (50, 8, WIDE, 1, 2)]
    given = {0: 4_000_000_000, 2: 0}
    spirv = module(*numbers, *types, *constants, (SPEC_OP, UINT, 20, operation, *operands), (51, 10, 21, 20, ONE))
    found = list(instructions(frozen(spirv, given)))
    plain = [(43, UINT, ONE, 4_000_000_000), (43, UINT, TWO, 7), (43, UINT, HALF, 0), (43, 8, WIDE, 1, 2)]
    left = expected[0] == SPEC_OP
    assert found == [*types, *plain, expected, (51 if left else 44, 10, 21, 20, ONE)]


@pytest.mark.parametrize(("driver", "freezes"), [(10, True), (13, False), (4, False), (3, False)])
def test_who_gets_them(driver: int, freezes: bool) -> None:
    assert Traits.of(fake_info(driver_id=driver), "a device").freezes == freezes
