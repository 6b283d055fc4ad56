"""Element types: NumPy's, and bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError, dtypes
from vkpar.arrays.elements import host_elements

PLAIN = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
PLAIN += ["float64", "complex64"]


@pytest.mark.parametrize("name", PLAIN)
def test_numpy_types_resolve_by_any_spelling(name: str) -> None:
    native = np.dtype(name)
    for spelling in (name, native, native.type, native.newbyteorder(">"), native.newbyteorder("<"), native.char):
        found = dtypes.resolve(spelling)
        assert found == name
        assert found == native
        assert found.numpy == native
        assert found.numpy.isnative
        assert (found.itemsize, str(found)) == (native.itemsize, name)
        assert found.is_float == (native.kind == "f")


def test_python_types_resolve_as_numpy_reads_them() -> None:
    assert dtypes.resolve(float) == np.float64
    assert dtypes.resolve(int) == np.dtype(int)
    assert dtypes.resolve(bool) == np.bool_


@pytest.mark.parametrize("spelling", ["bfloat16", "bf16", "BFloat16", dtypes.bfloat16, ml_dtypes.bfloat16])
def test_bfloat16(spelling: object) -> None:
    found = dtypes.resolve(spelling)
    assert found == dtypes.bfloat16
    assert found != dtypes.resolve("uint16")
    assert found.is_float
    assert (found.itemsize, found.numpy) == (2, np.dtype(ml_dtypes.bfloat16))
    assert np.zeros(3, found).dtype == np.dtype(found) == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "bad", [None, "float33", "", "U4", "S3", object, "object", "M8[s]", "m8", [("a", "f4")], "2f4", 3, 1.5, {}, []]
)
def test_everything_else_is_refused(bad: object) -> None:
    with pytest.raises(InvalidUsageError):
        dtypes.resolve(bad)
    assert dtypes.float32 != bad


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("f16", "'float16', or 'float128' for the 16 bytes that NumPy means"),
        ("f32", "'float32'"),
        ("i32", "'int32'"),
        ("u16", "'uint16'"),
        ("fp16", "'float16'"),
        ("torch.float16", "'float16'"),
        ("torch.bfloat16", "'bfloat16'"),
    ],
)
def test_names_of_others_are_told_ours(given: str, name: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        dtypes.resolve(given)
    assert str(caught.value) == f"not a dtype: {given!r}; write {name}"


@pytest.mark.parametrize("given", ["float8", "bfloat32", "torch.bool", None])
def test_what_has_no_name_is_told_none(given: object) -> None:
    with pytest.raises(InvalidUsageError, match=r"^not a dtype: [^;]*$" if given else "not a dtype: None; name one"):
        dtypes.resolve(given)


@pytest.mark.parametrize("text", ["0:", "01", "f4,:"])
def test_texts_that_numpy_cannot_parse_are_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        dtypes.resolve(text)


def test_dtypes_are_hashable() -> None:
    assert len({dtypes.resolve("f4"), dtypes.float32, dtypes.resolve(np.float32)}) == 1
    assert len({dtypes.bfloat16, dtypes.resolve("uint16")}) == 2


@pytest.mark.parametrize("first", PLAIN)
@pytest.mark.parametrize("second", ["float16", "float32", "int32", "uint32"])
def test_promotion_follows_numpy(first: str, second: str) -> None:
    assert dtypes.result_type(dtypes.resolve(first), dtypes.resolve(second)) == np.result_type(first, second)


def test_bfloat16_promotes_to_float32() -> None:
    bf16 = dtypes.bfloat16
    assert dtypes.result_type(bf16, bf16) == bf16
    for other in (dtypes.float16, dtypes.float32):
        assert dtypes.result_type(bf16, other) == dtypes.float32
        assert dtypes.result_type(other, bf16, bf16) == dtypes.float32
    for other in (dtypes.int32, dtypes.resolve("float64")):
        with pytest.raises(UnsupportedError, match="bfloat16"):
            dtypes.result_type(bf16, other)


def bfloat16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return host_elements(values, "bfloat16").values.view(np.uint16)


def _nearest_bfloat16(value: float) -> int:
    """Round by arithmetic on float64 instead of on bits: seven significand bits after the leading one."""
    if value == 0:
        return 0
    _, exponent = np.frexp(value)
    step = 2.0 ** max(int(exponent) - 8, -133)
    rounded = np.float32(np.rint(value / step) * step)
    return int(rounded.view(np.uint32)) >> 16


@given(st.floats(min_value=0, max_value=2.0**127, width=32, allow_subnormal=True))
def test_bfloat16_rounds_to_nearest_even(value: float) -> None:
    both = bfloat16_bits(np.array([value, -value], np.float32))
    assert int(both[0]) == _nearest_bfloat16(value)
    assert int(both[1]) == int(both[0]) | 0x8000


def test_bfloat16_special_values() -> None:
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 3.4e38, -0.0], np.float32)
    assert [hex(bits) for bits in bfloat16_bits(special)] == [
        "0x7f80",
        "0xff80",
        "0x7fc0",
        "0xffc0",
        "0x7f80",
        "0x8000",
    ]
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        assert {bits & 0x7FFF for bits in bfloat16_bits(signalling).tolist()} == {0x7FC0}


def test_host_elements() -> None:
    big_endian = np.array([1.5, -2.0], ">f4")
    made = host_elements(big_endian)
    assert made.dtype == dtypes.float32
    assert made.values.dtype.isnative
    assert list(made.values) == [1.5, -2.0]
    for source in (np.array([3], np.uint16), [3], np.array([3], ml_dtypes.bfloat16)):
        made = host_elements(source, "bfloat16")
        assert (made.dtype, made.values.dtype, list(made.values)) == (dtypes.bfloat16, ml_dtypes.bfloat16, [3])
    assert host_elements([1, 2], "float16").values.dtype == np.float16


NO_NUMBERS = [["a", "b"], [None], object(), np.array(["2020"], "M8[Y]"), b"ab"]


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("bad", NO_NUMBERS)
def test_host_elements_refuses_what_is_no_number(bad: object, dtype: str | None) -> None:
    with pytest.raises(InvalidUsageError):
        host_elements(bad, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", NO_NUMBERS)
def test_host_elements_refuses_what_is_no_bfloat16(bad: object) -> None:
    with pytest.raises(InvalidUsageError):
        host_elements(bad, "bfloat16")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_host_elements_refuses_ragged_lists(dtype: str | None) -> None:
    with pytest.raises(InvalidUsageError):
        host_elements([[1, 2], [3]], dtype)
