"""GGUF files: metadata by key, then what tensors there are, then their elements.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian. Numbers of the
file are believed only as far as the file's bytes go: nothing is allocated by a count that it holds.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.errors import WeightsError
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.files.mapped import MappedFile, Place, check_places

MAGIC: Final = b"GGUF"
_ALIGNMENT: Final = 32
_MOST_ALIGNMENT: Final = 1 << 20
_MOST_DIMS: Final = 4
_LONGEST_NAME: Final = 1024
_LEAST_KEY: Final = 14  # bytes that a key with its value takes at least
_LEAST_TENSOR: Final = 25
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PART: Final = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)  # llama_split_path

# gguf_metadata_value_type
_SCALARS: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# ggml_type, by number from 0 on; those that were given up included.
_NAMES: Final = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S "
    "IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 "
    "IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0"
)
_TYPES: Final = tuple(_NAMES.split())
_PLAIN: Final = {
    "F32": "float32",
    "F16": "float16",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F64": "float64",
    "BF16": "bfloat16",
}


def tensors_of(file: MappedFile) -> tuple[dict[str, LazyTensor], dict[str, Any]]:
    """Return the tensors and the metadata of a GGUF file: numbers, texts, NumPy arrays of numbers, lists of texts.

    Raises:
        WeightsError: it is none, is damaged, or has a tensor of a type that vkpar does not read.
    """
    reader = _Reader(file)
    if reader.take(4, "the magic number") != MAGIC:
        raise WeightsError("not a GGUF file: it does not begin with GGUF", file.path)
    version = reader.number("<I", "the version")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
        what = "of a big-endian machine" if swapped else f"of version {version}"
        raise WeightsError(f"a GGUF file {what}; vkpar reads versions 2 and 3, little endian: convert it", file.path)
    tensors = reader.count("tensors", _LEAST_TENSOR)
    keys = reader.count("keys", _LEAST_KEY)
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.name("a key")
        if not key or key in metadata:
            raise WeightsError(f"the key {key!r} {'twice' if key else 'without a name'}: it is damaged", file.path)
        metadata[key] = reader.value(reader.number("<I", f"the type of {key}"), key)
    infos = [reader.info() for _ in range(tensors)]
    return _placed(file, infos, reader.at, _alignment(file, metadata)), metadata


def parts_of(path: str | Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Return the files of the model of which a file is one or a part, in order, as llama-gguf-split calls them.

    Raises:
        WeightsError: a part whose name is not that of its number.
    """
    where, count = Path(path), _whole(metadata, "split.count", 1)
    if count <= 1:
        return [where]
    parts, number = named_parts(where), _whole(metadata, "split.no", 0)
    if len(parts) != count or not 0 <= number < count or parts[number] != where:
        raise WeightsError(
            f"part {number + 1} of {count} of a model; its name is to end in -{number + 1:05}-of-{count:05}.gguf, by "
            "which the others are found: name it so, or join them with llama-gguf-split --merge",
            str(path),
        )
    return parts


def named_parts(path: Path) -> list[Path]:
    """Return the parts of a model that a name of one speaks of; none for other names."""
    found = _PART.fullmatch(path.name)
    count = 0 if found is None else int(found[2])
    return [path.with_name(f"{found[1]}-{part + 1:05}-of-{count:05}.gguf") for part in range(count)] if found else []


def check_parts(parts: Mapping[Path, tuple[dict[str, LazyTensor], dict[str, Any]]]) -> None:
    """Refuse files that are not the parts of one model, together.

    Raises:
        WeightsError: one that is none, or another number of tensors than there are to be.
    """
    count = sum(len(tensors) for tensors, _ in parts.values())
    for path, (_, metadata) in parts.items():
        if parts_of(path, metadata) != list(parts):
            raise WeightsError(f"is none of the {len(parts)} parts of a model: fetch it again", str(path))
    for path, (_, metadata) in parts.items():
        wanted = _whole(metadata, "split.tensors.count", count)
        if wanted != count:
            raise WeightsError(f"says that all parts have {wanted} tensors; they have {count}", str(path))


def _whole(metadata: Mapping[str, Any], key: str, default: int) -> int:
    found = metadata.get(key, default)
    return found if isinstance(found, int) else default


def _alignment(file: MappedFile, metadata: dict[str, Any]) -> int:
    found = metadata.get("general.alignment", _ALIGNMENT)
    if type(found) is not int or not 0 < found <= _MOST_ALIGNMENT or found & (found - 1):
        raise WeightsError(f"general.alignment is {found!r}, no power of two: the file is damaged", file.path)
    return found


Info = tuple[str, tuple[int, ...], int, int]


def _placed(file: MappedFile, infos: list[Info], end: int, alignment: int) -> dict[str, LazyTensor]:
    """Return the tensors, whose elements begin at the first multiple of the alignment from byte ``end`` on."""
    first = -(-end // alignment) * alignment
    found: dict[str, LazyTensor] = {}
    places = []
    for name, shape, code, offset in infos:
        if not name or name in found:
            raise WeightsError("is there twice" if name else "a tensor without a name", file.path, name)
        if offset % alignment:
            raise WeightsError(f"its offset {offset} is no multiple of {alignment}: damaged", file.path, name)
        stored = _TYPES[code] if code < len(_TYPES) else f"number {code}"
        kind = FORMATS.get(stored.lower())
        dtype = dtypes.resolve(_PLAIN.get(stored, "float32"))
        if kind is None and stored not in _PLAIN:
            known = ", ".join((*_PLAIN, *map(str.upper, FORMATS)))
            raise WeightsError(f"is of ggml's type {stored}; vkpar reads {known}: convert the model", file.path, name)
        if kind is not None and (not shape or shape[-1] % kind.block):
            raise WeightsError(f"rows of {shape} are no blocks of {kind.block} ({kind})", file.path, name)
        size = math.prod(shape)
        nbytes = size * dtype.itemsize if kind is None else size // kind.block * kind.nbytes
        place = Place(first + offset, first + offset + nbytes, name)
        places.append(place)
        found[name] = _tensor(file, place, shape, dtype, kind)
    check_places(file.path, places, first, file.nbytes)
    return found


def _tensor(file: MappedFile, place: Place, shape: tuple[int, ...], dtype: Any, kind: Any) -> LazyTensor:
    start, stop, name = place
    return LazyTensor(name, shape, dtype, kind, stop - start, file.path, lambda: file.view(start, stop))


class _Reader:
    """Reads a file from its beginning; each step checks that the bytes are there."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self._file.nbytes - self.at

    def take(self, nbytes: int, what: str) -> bytes:
        """Return the next bytes."""
        if nbytes > self.left:
            raise WeightsError(
                f"ends within {what}, at byte {self.at}: {nbytes} more are wanted, {self.left} are left; it was cut "
                "off, or is damaged: fetch it again",
                self._file.path,
            )
        self.at += nbytes
        return self._file.map[self.at - nbytes : self.at]

    def number(self, form: str, what: str) -> int:
        """Return the next whole number."""
        return int(struct.unpack(form, self.take(struct.calcsize(form), what))[0])

    def count(self, what: str, least: int) -> int:
        """Return a number of things, each of which takes at least so many bytes of what is left of the file."""
        found = self.number("<Q", f"the number of {what}")
        if found * least > self.left:
            raise WeightsError(
                f"{found} {what} in {self.left} bytes: the file was cut off, or is damaged; fetch it again",
                self._file.path,
            )
        return found

    def name(self, what: str) -> str:
        """Return the next text, one that names something."""
        found = self.text(what)
        if len(found) > _LONGEST_NAME:
            raise WeightsError(f"{what} of {len(found)} characters before byte {self.at}: damaged", self._file.path)
        return found

    def text(self, what: str) -> str:
        """Return the next text: its length, then UTF-8."""
        raw = self.take(self.number("<Q", f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{what} before byte {self.at} is no UTF-8: {error.reason}", self._file.path) from error

    def value(self, code: int, key: str) -> Any:
        """Return a value of metadata."""
        if code == _STRING:
            return self.text(f"the value of {key}")
        if code in _SCALARS:
            return self._scalars(code, 1, key)[0].item()
        if code != _ARRAY:
            raise WeightsError(f"the key {key!r} has a value of the unknown type {code}", self._file.path)
        inner = self.number("<I", f"the type of {key}")
        if inner == _STRING:
            return self._texts(self.count(f"texts of {key}", 8), f"the values of {key}")
        if inner not in _SCALARS:
            what = "arrays in an array" if inner == _ARRAY else f"values of the unknown type {inner}"
            raise WeightsError(f"the key {key!r} has {what}, which GGUF readers do not take", self._file.path)
        return self._scalars(inner, self.count(f"values of {key}", _SCALARS[inner].itemsize), key)

    def _texts(self, count: int, what: str) -> list[str]:
        """Return the next texts; a vocabulary has hundreds of thousands, for which a step each is too slow."""
        raw, at, nbytes = self._file.map, self.at, self._file.nbytes
        length = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            start = at + 8
            if start > nbytes or (stop := start + length(raw, at)[0]) > nbytes:
                break
            try:
                found.append(raw[start:stop].decode())
            except UnicodeDecodeError:
                break
            at = stop
        self.at = at
        return found + [self.text(what) for _ in range(count - len(found))]  # what is wrong is told there

    def _scalars(self, code: int, count: int, key: str) -> np.ndarray[Any, Any]:
        dtype = _SCALARS[code]
        found: np.ndarray[Any, Any] = np.frombuffer(self.take(count * dtype.itemsize, f"the value of {key}"), dtype)
        if code != _BOOL:
            return found
        if (found > 1).any():
            raise WeightsError(f"the key {key!r} is neither true nor false: the file is damaged", self._file.path)
        return found.astype(np.bool_)

    def info(self) -> Info:
        """Return a tensor's name, shape (outermost dimension first), type and offset."""
        name = self.name("a tensor's name")
        ndim = self.number("<I", f"the shape of {name}")
        if ndim > _MOST_DIMS:
            raise WeightsError(f"has {ndim} dimensions; GGUF allows {_MOST_DIMS}", self._file.path, name)
        shape = tuple(self.number("<Q", f"the shape of {name}") for _ in range(ndim))
        return name, shape[::-1], self.number("<I", f"the type of {name}"), self.number("<Q", f"the place of {name}")
