"""Push constants by name, without Vulkan."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.modules import module, name
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.push import WORDS, Member, Packer

N, LR = Member("n", "uint n", 0, "I"), Member("lr", "float lr", 4, "f")
ORIGIN = Member("origin", "vec3 origin", 16, "f", (3,), (4,))
ROWS = Member("rows", "ivec2 rows[3]", 32, "i", (3, 2), (16, 4))
BLOCK = [N, LR, ORIGIN, ROWS]


def test_numbers_vectors_and_arrays() -> None:
    pack = Packer(BLOCK, 80)
    values: dict[str, Any] = {"lr": 0.5, "n": 7, "rows": [(1, 2), (3, 4), (-5, 6)], "origin": (1, 2, 3.5)}
    want = struct.pack("<If8x3f4x2i8x2i8x2i8x", 7, 0.5, 1, 2, 3.5, 1, 2, 3, 4, -5, 6)
    assert pack(values) == want
    values |= {"rows": np.array(values["rows"], np.int64), "origin": np.array([1, 2, 3.5]), "n": np.uint32(7)}
    assert pack(values) == want


@given(st.integers(-(1 << 65), 1 << 65), st.sampled_from(sorted(WORDS)))
def test_every_number_is_packed_as_struct_does_or_refused(number: int, code: str) -> None:
    pack = Packer([Member("x", f"{WORDS[code]} x", 0, code)], 8)
    try:
        want = struct.pack("<" + code, number)
    except (struct.error, OverflowError):
        with pytest.raises(InvalidUsageError, match=f"x is an? {WORDS[code]}, "):
            pack({"x": number})
    else:
        assert pack({"x": number}) == want.ljust(8, b"\0")


GOOD: dict[str, Any] = {"n": 1, "lr": 1.0, "origin": (0, 0, 0), "rows": [(0, 0)] * 3}
LISTED = r"the kernel's push constants are: uint n; float lr; vec3 origin; ivec2 rows\[3\]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": None}, "n is a uint, a whole number from 0 to 4294967295, not None"),
        ({"n": 1.0}, "n is a uint.*not 1.0"),
        ({"n": -1}, "n is a uint.*not -1"),
        ({"n": 1 << 32}, "n is a uint.*not 4294967296"),
        ({"n": "1"}, "n is a uint.*not '1'"),
        ({"lr": "fast"}, "lr is a float.*not 'fast'"),
        ({"lr": 1e39}, "lr is a float.*not 1e[+]39"),
        ({"lr": [1.0]}, r"lr is a float.*not \[1.0\]"),
        ({"origin": (1, 2)}, r"origin takes 3 numbers \(vec3 origin\), not \(1, 2\)"),
        ({"origin": 5}, r"origin takes 3 numbers \(vec3 origin\), not 5"),
        ({"origin": "abc"}, r"origin takes 3 numbers \(vec3 origin\), not 'abc'"),
        ({"origin": (1, 2, "x")}, "origin is a float.*not 'x'"),
        ({"rows": [(1, 2)] * 4}, r"rows takes 3 x 2 numbers \(ivec2 rows\[3\]\)"),
        ({"rows": np.zeros((3, 3))}, "rows takes 3 x 2 numbers"),
        ({"rows": np.zeros((3, 2))}, "rows is an int, a whole number from -2147483648 to 2147483647, not 0.0"),
        ({"learning_rate": 1.0}, "no push constant is named 'learning_rate'"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"push: {message}.*; {LISTED}$"):
        Packer(BLOCK, 80)({**GOOD, **change})


def test_missing_and_misspelt_names() -> None:
    pack = Packer([N, LR], 8)
    with pytest.raises(
        InvalidUsageError, match=r"^push: lr missing; the kernel's push constants are: uint n; float lr$"
    ):
        pack({"n": 1})
    with pytest.raises(InvalidUsageError, match=r"n, lr missing"):
        pack({})
    with pytest.raises(InvalidUsageError, match=r"named 'lrr' \(did you mean 'lr'\?\)"):
        pack({"n": 1, "lrr": 1.0})
    with pytest.raises(InvalidUsageError, match=r"named 'n'; the kernel declares no push constants"):
        Packer([], 0)({"n": 1})
    assert Packer([], 0)({}) == b""


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (Member("", "uint ", 4, "I"), "holds no names"),
        (Member("m", "a matrix m", 4, "f", (), ()), "overlap"),
        (Member("m", "a matrix m", 16, ""), "a matrix m is neither a number nor a vector"),
    ],
)
def test_blocks_that_take_bytes_only(member: Member, why: str) -> None:
    with pytest.raises(InvalidUsageError, match=f"{why}.*pass them as bytes"):
        Packer([N, LR, member], 32)({"n": 1, "lr": 2.0, "m": 3})


def reflected(
    *types: tuple[int, ...], kinds: list[int], offsets: list[int], marks: list[tuple[int, ...]]
) -> list[Member]:
    """Return the members m0, m1, ... of a push-constant block of these types."""
    names = [(6, 60, index, *name(f"m{index}")) for index in range(len(kinds))]
    places = [(72, 60, index, 35, at) for index, at in enumerate(offsets)]
    block = [(30, 60, *kinds), (32, 61, 9, 60), (59, 61, 62, 9)]
    return list(reflect(module(*names, *places, *marks, *types, *block)).members)


def test_members_are_read_with_their_types() -> None:
    types = [
        (22, 10, 32),
        (22, 11, 64),
        (21, 12, 32, 0),
        (21, 13, 32, 1),
        (23, 14, 10, 3),
        (23, 15, 11, 2),
        (24, 16, 14, 3),
        (43, 12, 20, 4),
        (28, 17, 14, 20),
        (28, 18, 13, 20),
        (28, 19, 18, 20),
        (30, 21, 10),
    ]
    found = reflected(
        *types,
        kinds=[10, 12, 14, 15, 17, 19, 16, 21],
        offsets=[0, 4, 16, 32, 48, 112, 176, 240],
        marks=[(71, 17, 6, 16), (71, 18, 6, 4), (71, 19, 6, 16), (72, 60, 6, 7, 16)],
    )
    assert [member.text for member in found] == [
        "float m0",
        "uint m1",
        "vec3 m2",
        "dvec2 m3",
        "vec3 m4[4]",
        "int m5[4][4]",
        "a matrix m6",
        "a struct m7",
    ]
    assert found[4] == Member("m4", "vec3 m4[4]", 48, "f", (4, 3), (16, 4))
    assert found[5].places() == [112 + 16 * i + 4 * j for i in range(4) for j in range(4)]
    assert [member.code for member in found[6:]] == ["", ""]


def test_an_array_of_itself_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="malformed"):
        reflected((21, 10, 32, 0), (43, 10, 20, 2), (28, 10, 10, 20), kinds=[10], offsets=[0], marks=[])
