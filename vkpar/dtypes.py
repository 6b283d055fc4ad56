"""Element types: everything ``np.dtype`` takes, plus ``"bfloat16"``, that of the package ``ml_dtypes``."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import ml_dtypes
import numpy as np

from vkpar.errors import InvalidUsageError, UnsupportedError


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; compares equal to whatever names the same type (``np.float32``, ``"float32"``).

    Attributes:
        name: such as ``"float32"``.
        numpy: the NumPy type that holds its elements on the host.

    Examples:
        >>> kind = device.zeros(3, "bf16").dtype
        >>> kind.name, kind == vkpar.bfloat16, kind == "bfloat16"
        ('bfloat16', True, True)
    """

    name: str
    numpy: np.dtype[Any] = field(repr=False)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        """True for floating-point types, bfloat16 included."""
        return self.name == "bfloat16" or self.numpy.kind == "f"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same as :attr:`numpy`, under the name that ``np.zeros(a.shape, a.dtype)`` asks for."""
        return self.numpy

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The same, under the name that NumPy asks for from 2.4 on."""
        return self.numpy

    def __eq__(self, other: object) -> bool:
        try:
            return resolve(other).name == self.name
        except InvalidUsageError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


bfloat16: Final = DType("bfloat16", np.dtype(ml_dtypes.bfloat16))
float32: Final = DType("float32", np.dtype(np.float32))
float16: Final = DType("float16", np.dtype(np.float16))
int32: Final = DType("int32", np.dtype(np.int32))
uint32: Final = DType("uint32", np.dtype(np.uint32))


def resolve(dtype: object) -> DType:
    """Return the :class:`DType` that ``dtype`` names.

    Raises:
        InvalidUsageError: nothing that NumPy or vkpar knows, or a type without a fixed plain layout.
    """
    if type(dtype) is DType:
        return dtype
    try:
        return _known[dtype]
    except (KeyError, TypeError):
        found = _resolve(dtype)
    with suppress(TypeError):
        _known[dtype] = found
    return found


_known: dict[object, DType] = {}  # what was asked for before


def _resolve(dtype: object) -> DType:
    if isinstance(dtype, str) and dtype.lower() in ("bfloat16", "bf16"):
        return bfloat16
    if dtype is None or (isinstance(dtype, str) and dtype in _ODD):
        raise InvalidUsageError(f"not a dtype: {dtype!r}{_way_out(dtype)}")
    try:
        native = np.dtype(dtype).newbyteorder("=")  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidUsageError(f"not a dtype: {dtype!r}{_way_out(dtype)}") from error
    if native == bfloat16.numpy:
        return bfloat16
    if native.kind not in "biufc":
        raise InvalidUsageError(f"arrays hold plain numbers, not {native}{_way_out(native)}")
    return DType(native.name, native)


# NumPy's short names count bytes; those of wires, shaders and torch count bits.
_SHORT: Final = re.compile(r"(?:torch\.)?(fp?|i|u|float|bfloat|int|uint)(8|16|32|64)")
_KINDS: Final = {"f": "float", "fp": "float", "i": "int", "u": "uint"}
_ODD: Final = {"f16": ", or 'float128' for the 16 bytes that NumPy means"}


def _way_out(dtype: object) -> str:
    """Return what to do about something that is no dtype of arrays, for the end of a message."""
    if isinstance(dtype, (int, np.integer)):
        return f"; a shape of several dimensions is a tuple, such as (3, {dtype})"
    if dtype is None:
        return "; name one, such as 'float32'"
    short = _SHORT.fullmatch(str(dtype))
    name = short and _KINDS.get(short[1], short[1]) + short[2]
    if name and (name == "bfloat16" or hasattr(np, name)):
        return f"; write '{name}'" + _ODD.get(str(dtype), "")
    if not isinstance(dtype, np.dtype):
        return ""
    if dtype.kind == "O":
        return " (rows of unequal lengths, or objects that are no numbers)"
    if dtype.kind == "V" and dtype.names is None and dtype.name.startswith(("float", "int", "uint", "bfloat")):
        return "; convert it first, such as with x.astype(np.float32)"
    return ""


def result_type(*dtypes: DType) -> DType:
    """Promote as ``np.result_type`` does; bfloat16 with another float gives float32.

    Raises:
        UnsupportedError: bfloat16 mixed with a type that has no float32 promotion.
    """
    if all(dtype == dtypes[0] for dtype in dtypes):
        return dtypes[0]
    if bfloat16 not in dtypes:
        return resolve(np.result_type(*(dtype.numpy for dtype in dtypes)))
    others = [dtype for dtype in dtypes if dtype != bfloat16]
    if all(dtype in (float16, float32) for dtype in others):
        return float32
    raise UnsupportedError("bfloat16 mixes with float16 and float32 only; cast first")
