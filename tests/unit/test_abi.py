"""The words that the host writes are those that the shipped kernels read: their names, their order, their numbers."""

from __future__ import annotations

import struct

import pytest
from helpers.ops.words import GENERATED, MODULES, PACKS_HALVES, declared, fields, sections_of

from vkpar.abi import arrays, matmul
from vkpar.abi import elementwise as abi
from vkpar.abi.words import pack, read, section, width
from vkpar.ops.elementwise.kinds import WORDS


@pytest.mark.parametrize("name", sorted(name for name in MODULES if not name.startswith(GENERATED)))
def test_kernels_read_the_words_that_the_host_writes(name: str) -> None:
    push, constants = sections_of(name)
    members, numbers = declared(name)
    assert fields(push) == members
    given = dict(enumerate(found for found, _ in fields(constants)))
    own = {number: found for number, found in numbers.items() if number != PACKS_HALVES}
    assert {number: given.get(number) for number in own} == own


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.startswith(GENERATED)))
def test_kernels_of_expressions_are_told_how_all_lies(name: str) -> None:
    """Of each binding a mode and a width, in their order; then the types that the kernel does not know."""
    members, numbers = declared(name)
    assert members == [("g", WORDS)]
    shape = {"flat": abi.Flat, "tile": abi.Tile, "rows": abi.Rows, "full": abi.Full}[name.rsplit("_", 1)[1]]
    for number, found in numbers.items():
        if number == PACKS_HALVES:
            continue
        if number < len(shape._fields):
            assert found == shape._fields[number]
    behind = [found for number, found in sorted(numbers.items()) if len(shape._fields) <= number < PACKS_HALVES]
    types = [found for found in behind if found.endswith("_type")]
    if "chosen" in behind:  # the last one, of families that share their kernels
        assert behind.pop() == "chosen"
    assert behind[len(behind) - len(types) :] == types
    bindings = {number: found for number, found in numbers.items() if found.endswith(("_mode", "_wide", "_eights"))}
    for number, found in bindings.items():
        kind = (number - len(shape._fields)) % len(abi.Lying._fields)
        assert found.split("_")[1] in (("mode",), ("wide", "eights"))[kind]
    order = [bindings[number].split("_")[0] for number in sorted(bindings)]
    assert order == sorted(order)  # operands in turn, then results


def test_sections_become_words_and_words_sections() -> None:
    product = matmul.Product(1, 2, 3, 4, 5, 6, 7, 8, 9)
    push = pack(product, matmul.Norm(10, 0.5))
    assert push == struct.pack("=11If", *range(1, 10), 0, 10, 0.5)
    assert read(matmul.Product, push) == product
    assert read(matmul.Scales, push, 10) == matmul.Scales(10)


def test_arrays_of_a_block_have_as_many_words_as_the_shader_says() -> None:
    region = arrays.Region.of(1, 2, (3, 4), (-1, 5))
    assert region.count_ == 12
    assert pack(region) == struct.pack("=15I", 1, 2, 12, 3, 4, 1, 1, 1, 1, (1 << 32) - 1, 5, 1, 1, 1, 1)
    assert width(arrays.Region) == 15


def test_constants_that_are_not_given_are_zero() -> None:
    assert section(matmul.Follows, (9, 8), matmul.Turned) == matmul.Follows(8, 0, 0, 0, 0, 0)
