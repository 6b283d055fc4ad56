"""Safetensors files: a length, a JSON header, the elements.

The format: https://github.com/huggingface/safetensors#format. Its own package is not needed, copies what it reads, and
gives no views.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from vkpar import dtypes
from vkpar.errors import WeightsError
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.files.mapped import MappedFile, Place, check_places

_MOST_HEADER: Final = 100_000_000  # what the format allows
_MOST_DIMS: Final = 32
_TYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def tensors_of(file: MappedFile) -> tuple[dict[str, LazyTensor], dict[str, Any]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises:
        WeightsError: it is none, or is damaged; the message names the tensor where it is one.
    """
    if file.nbytes < 8:
        raise WeightsError("not a safetensors file: it is shorter than 8 bytes", file.path)
    length = int.from_bytes(file.map[:8], "little")
    if length > min(file.nbytes - 8, _MOST_HEADER):
        raise WeightsError(
            f"not a safetensors file, or one that was cut off: a header of {length} bytes in a file of {file.nbytes}",
            file.path,
        )
    header = _parse(file, file.map[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise WeightsError("the header's __metadata__ is no table of texts", file.path)
    first = 8 + length
    found, places = {}, []
    for name, entry in header.items():
        tensor, place = _tensor(file, name, entry, first)
        found[name] = tensor
        places.append(place)
    check_places(file.path, places, first, file.nbytes)
    end = max((place.stop for place in places), default=first)
    if end != file.nbytes:
        raise WeightsError(f"{file.nbytes - end} bytes that belong to no tensor: the file is damaged", file.path)
    return found, metadata


def _parse(file: MappedFile, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_without_doubles, parse_constant=_refused)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise WeightsError(f"not a safetensors file: its header is not what it must be: {error}", file.path) from error
    if not isinstance(header, dict):
        raise WeightsError("not a safetensors file: its header is no JSON object", file.path)
    return header


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {_short(name)!r} twice")
            seen.add(name)
    return made


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _tensor(file: MappedFile, name: str, entry: Any, first: int) -> tuple[LazyTensor, Place]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError("its entry is not made of dtype, shape and data_offsets", file.path, name)
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise WeightsError(f"has the type {kind!r}; vkpar reads {', '.join(_TYPES)}: convert it", file.path, name)
    if not _naturals(shape) or len(shape) > _MOST_DIMS:
        raise WeightsError(f"its shape is {_short(shape)}, no list of whole numbers", file.path, name)
    if not _naturals(offsets) or len(offsets) != 2:
        raise WeightsError(f"its data_offsets are {_short(offsets)}, not two whole numbers", file.path, name)
    dtype = dtypes.resolve(_TYPES[kind])
    nbytes = math.prod(shape) * dtype.itemsize
    start, stop = (first + offset for offset in offsets)
    if stop - start != nbytes:
        raise WeightsError(
            f"{kind} of shape {_short(shape)} is not the {_short(stop - start)} bytes of its data_offsets: the file is "
            "damaged",
            file.path,
            name,
        )
    made = LazyTensor(name, tuple(shape), dtype, None, nbytes, file.path, lambda: file.view(start, stop))
    return made, Place(start, stop, name)


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _short(value: Any) -> str:
    shown = str(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
