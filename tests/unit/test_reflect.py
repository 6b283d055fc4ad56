"""What a SPIR-V module declares, and bytes that are no module."""

from __future__ import annotations

import contextlib
import importlib.resources
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.vulkan import shader

MAGIC = 0x07230203
SHIPPED = sorted(
    item.name[: -len(".spv")]
    for item in importlib.resources.files("vkpar").joinpath("spirv").iterdir()
    if item.name.endswith(".spv")
)


def module(*instructions: tuple[int, ...]) -> bytes:
    """Return a module of (opcode, operands...) instructions."""
    words = [MAGIC, 0x00010500, 0, 100, 0]
    for opcode, *operands in instructions:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def name(text: str) -> tuple[int, ...]:
    """Return a string as SPIR-V words."""
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return struct.unpack(f"<{len(raw) // 4}I", raw)


@pytest.mark.parametrize("kernel", SHIPPED)
def test_shipped_kernels(kernel: str) -> None:
    found = shader.reflect(shader.shipped(kernel))
    assert found.entries == {"main"}
    assert not found.foreign
    # A forward does not read binding 0; it shares the layout of the reduce kernels.
    assert found.bindings == ({1, 2} if kernel.startswith("wire_forward") else set(range(len(found.bindings))))
    assert found.bindings
    assert found.push_nbytes <= 128
    assert found.push_nbytes % 4 == 0


@pytest.mark.parametrize("kernel", [kernel for kernel in SHIPPED if kernel.startswith("wire_")])
def test_wire_kernels_bind_source_target_and_slots(kernel: str) -> None:
    found = shader.reflect(shader.shipped(kernel))
    assert {1, 2} <= found.bindings <= {0, 1, 2}


def test_everything_that_is_declared() -> None:
    found = shader.reflect(
        module(
            (15, 5, 1, *name("first")),
            (15, 5, 2, *name("another one")),
            (15, 4, 3, *name("fragment")),
            (71, 20, 34, 0),
            (71, 20, 33, 0),
            (71, 21, 34, 0),
            (71, 21, 33, 3),
            (22, 10, 32),
            (23, 11, 10, 4),
            (21, 12, 32, 0),
            (43, 12, 13, 3),
            (28, 14, 11, 13),
            (71, 14, 6, 16),
            (30, 15, 12, 14),
            (72, 15, 0, 35, 0),
            (72, 15, 1, 35, 16),
            (32, 16, 9, 15),
            (30, 17, 10),
            (32, 18, 12, 17),
            (59, 16, 19, 9),
            (59, 18, 20, 12),
            (59, 18, 21, 12),
        )
    )
    assert found == shader.Interface(frozenset({"first", "another one"}), frozenset({0, 3}), False, 16 + 3 * 16)


@pytest.mark.parametrize("declared", [(12, 1), (2, 0), (0, 0)])
def test_other_sets_and_kinds_are_foreign(declared: tuple[int, int]) -> None:
    storage, in_set = declared
    found = shader.reflect(module((71, 20, 34, in_set), (71, 20, 33, 0), (32, 18, storage, 17), (59, 18, 20, storage)))
    assert found.foreign
    assert found.bindings == {0}


REAL = shader.shipped(SHIPPED[0])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 20,
        b"#version 450\n",
        REAL[:16],
        REAL[:-1],
        REAL[4:],
        REAL[::-1],
        bytes(reversed(REAL[:4])) + REAL[4:],
    ],
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidUsageError, match="SPIR-V"):
        shader.reflect(garbage)


@pytest.mark.parametrize("words", [[0], [0x00000011], [0x00FF0011, 1]])
def test_instructions_that_do_not_fit_are_refused(words: list[int]) -> None:
    with pytest.raises(InvalidUsageError, match="malformed"):
        shader.reflect(module() + struct.pack(f"<{len(words)}I", *words))


def _only_refuses(spirv: bytes) -> None:
    with contextlib.suppress(InvalidUsageError):
        shader.reflect(spirv)


def test_a_module_cut_anywhere_is_refused_or_read() -> None:
    for end in range(20, len(REAL), 4):
        _only_refuses(REAL[:end])


BROKEN = {
    "an entry point without words": module((15,)),
    "an entry point without a name": module((15, 5)),
    "a name that is not UTF-8": module((15, 5, 1, 0xFFFFFFFF, 0)),
    "a type without words": module((22,)),
    "a constant without a value": module((43, 1)),
    "a variable without words": module((59,)),
    "push constants of an unknown type": module((59, 50, 51, 9)),
    "push constants through no pointer": module((22, 50), (59, 50, 51, 9)),
    "a struct of itself": module((30, 17, 17), (32, 16, 9, 17), (59, 16, 19, 9)),
}


@pytest.mark.xfail(strict=True, reason="IndexError, KeyError, UnicodeDecodeError or RecursionError instead")
@pytest.mark.parametrize("what", BROKEN)
def test_broken_declarations_are_refused(what: str) -> None:
    _only_refuses(BROKEN[what])


@given(st.integers(5, len(REAL) // 4 - 1), st.integers(0, (1 << 32) - 1))
def test_a_changed_word_is_refused_or_read(at: int, word: int) -> None:
    _only_refuses(REAL[: 4 * at] + struct.pack("<I", word) + REAL[4 * at + 4 :])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidUsageError):
        shader.reflect(data)
