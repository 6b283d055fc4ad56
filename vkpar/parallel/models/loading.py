"""Puts the tensors of a file on the ranks: fused where one product can do for several, and only what a rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from vkpar import dtypes, ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call.checks import FLOATS
from vkpar.ops.quantized.kinds import KINDS
from vkpar.ops.tiles.cpu import weights_of
from vkpar.parallel.cut.sharded import SPLIT, Sharded
from vkpar.parallel.cut.sharding import shard
from vkpar.parallel.cut.split import Split
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.models import naming
from vkpar.parallel.models.config import Config

Progress = Callable[[str, int], None]
"""Is told the name of each tensor that was read, and its bytes in the file."""

_CHUNK: Final = 4 << 20  # elements that are converted at a time
MOST_SEQUENCES: Final = 32  # texts at once
PRODUCTS: Final = tuple(KINDS)
"""Kinds of blocks that products take."""


class WeightRows(NamedTuple):
    """Rows of a weight by rank.

    Attributes:
        tensor: the weight, or a bias.
        ranges: by rank the first row and the last (excluded); ranks may have the same rows.
        columns: by rank the first column and the last (excluded); None for all of them.
    """

    tensor: LazyTensor
    ranges: Sequence[tuple[int, int]]
    columns: Sequence[tuple[int, int]] | None = None

    def cut(self, rank: int) -> tuple[slice, slice]:
        """Return the rows and the columns of a rank."""
        width = self.tensor.shape[-1]
        return slice(*self.ranges[rank]), slice(*((0, width) if self.columns is None else self.columns[rank]))


class Taking:
    """Takes tensors for layers, tells of each, and counts what ranks hold.

    Args:
        tensors: by name.
        nranks: how many ranks there are.
        progress: is told of each tensor that is taken.

    Attributes:
        held: bytes of weights by rank.
    """

    def __init__(self, tensors: Mapping[str, LazyTensor], nranks: int, progress: Progress | None) -> None:
        self._tensors, self._progress = tensors, progress
        self.held = [0] * nranks

    def _tensor(self, name: str) -> LazyTensor:
        tensor = self._tensors[name]
        if self._progress is not None:
            self._progress(name, tensor.nbytes)
        return tensor

    def _counted(self, parts: Sequence[Any]) -> None:
        for rank, part in enumerate(parts):
            if part is not None:
                self.held[rank] += part.nbytes


def lazy(tensors: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Return arrays of the host as tensors that are read where they are needed."""
    return {name: tensor if isinstance(tensor, LazyTensor) else _lazy(name, tensor) for name, tensor in tensors.items()}


def _lazy(name: str, array: Any) -> LazyTensor:
    kept = np.ascontiguousarray(array)
    flat = kept.reshape(-1).view(np.uint8)
    return LazyTensor(name, kept.shape, dtypes.resolve(kept.dtype), None, kept.nbytes, "memory", lambda: flat)


def kind_of(tensor: LazyTensor, dtype: str | None = None) -> str:
    """Return how a weight lies on devices: its type, or its blocks where products take them, else float16.

    Args:
        tensor: the weight.
        dtype: what matrices that are not quantised are converted to; None keeps their type.
    """
    if tensor.kind is None:
        return tensor.dtype.name if dtype is None or len(tensor.shape) < 2 else dtype
    return tensor.kind.name if tensor.kind.name in PRODUCTS else "float16"


def check_types(dtype: str | None, inputs: str, cache_dtype: object) -> None:
    """Refuse types that a decoder cannot have, before anything is measured, read or allocated.

    Raises:
        InvalidUsageError: no type, or not float32, float16 or bfloat16; of the last two ``"auto"`` is left alone.
    """
    given = {"dtype": "float32" if dtype is None else dtype, "inputs": inputs, "cache_dtype": cache_dtype}
    for name, kind in given.items():
        auto = isinstance(kind, str) and kind == "auto" and name != "dtype"
        if not auto and dtypes.resolve(kind).name not in FLOATS:
            raise InvalidUsageError(f"{name} is {', '.join(FLOATS)}, not {kind!r}")


def check_sequences(sequences: object) -> None:
    """Refuse a number of texts that no decoder can have.

    Raises:
        InvalidUsageError: it is no whole number, or not from 1 to 32.
    """
    if isinstance(sequences, bool) or not isinstance(sequences, int) or not 1 <= sequences <= MOST_SEQUENCES:
        raise InvalidUsageError(f"sequences is a whole number from 1 to {MOST_SEQUENCES}, not {sequences!r}")


def check_sizes(sequences: object, **sizes: object) -> None:
    """Refuse sizes below 1 and, as :func:`check_sequences`, numbers of texts."""
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise InvalidUsageError(f"{name} is a whole number from 1, not {value!r}")
    check_sequences(sequences)


def in_halves(kind: str, devices: Sequence[Device]) -> bool:
    """Say whether what meets weights of a kind is rounded to halves by default: where GPUs have no float32 weights."""
    return kind != "float32" and all(weights_of(device.info).halves for device in devices)


def cache_type(
    config: Config, weights: Mapping[str, LazyTensor], devices: Sequence[Device], dtype: str | None = None
) -> str:
    """Return the type of kept keys and values by default: float16 by weights :func:`in_halves`, else float32."""
    kind = kind_of(weights[naming.matrix_of(config, weights, "up", 0)], dtype)
    return "float16" if in_halves(kind, devices) else "float32"


def stacked(comm: Communicator, pieces: Sequence[WeightRows], dtype: str | None = None) -> Sharded:
    """Return rows of several tensors, one after the other on each rank, as one array that is split along axis 0.

    All have the same columns and lie on devices in the same way (:func:`kind_of`). Where ranks have the same rows, the
    logical array has them as often.
    """
    kind, parts = by_rank(comm, pieces, dtype)
    segments = [Split.of([stop - start for start, stop in piece.ranges]) for piece in pieces]
    shape = (sum(segment.size for segment in segments), *pieces[0].tensor.shape[1:])
    held_as = kind if kind in PRODUCTS else dtypes.resolve(kind)
    return Sharded(comm, shape, held_as, SPLIT, parts, axis=0, segments=segments)


def by_rank(comm: Communicator, pieces: Sequence[WeightRows], dtype: str | None = None) -> tuple[str, list[Any]]:
    """Return how rows of several tensors lie on devices, and what each rank has of them, one after the other.

    Raises:
        UnsupportedError: they lie on devices in unlike ways.
    """
    kinds = {kind_of(piece.tensor, dtype) for piece in pieces}
    if len(kinds) > 1:
        raise UnsupportedError(f"rows of unlike kinds cannot be stacked: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    parts: list[Any] = []
    for rank, device in enumerate(rig.devices(comm)):
        taken = [piece for piece in pieces if piece.ranges[rank][1] > piece.ranges[rank][0]]
        rows = sum(stop - start for start, stop in (piece.ranges[rank] for piece in taken))
        first, last = taken[0].cut(rank)[1].indices(taken[0].tensor.shape[-1])[:2] if taken else (0, 0)
        columns = (last - first,) if taken and len(taken[0].tensor.shape) > 1 else ()
        if not rows or columns == (0,) or device is None:
            parts.append(None)
        elif kind in PRODUCTS:
            blocks = [piece.tensor.blocks(first, last, rows=piece.cut(rank)[0]) for piece in taken]
            held = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            parts.append(ops.quantized(device, held, (rows, *columns), kind))
        else:
            made, at = device.empty((rows, *columns), kind), 0
            for piece in taken:
                start, stop = piece.ranges[rank]
                cut = slice(first, last) if piece.columns is not None else None
                _write(made[at : at + stop - start], piece.tensor, start, stop, cut)
                at += stop - start
            parts.append(made)
    return kind, parts


def _write(target: Array, tensor: LazyTensor, start: int, stop: int, columns: slice | None = None) -> None:
    """Write rows of a tensor, or some columns of them, some at a time where they are converted."""

    def read(first: int, last: int) -> Any:
        return tensor.read(slice(first, last) if columns is None else (slice(first, last), columns))

    if tensor.kind is None and tensor.dtype == target.dtype:
        target.write(np.ascontiguousarray(read(start, stop)))
        return
    step = max(1, _CHUNK // max(math.prod(tensor.shape[1:]), 1))
    for first in range(start, stop, step):
        last = min(first + step, stop)
        values = read(first, last)
        with np.errstate(over="ignore", invalid="ignore"):
            made = values.astype(target.dtype.numpy)
        if np.isinf(made).any() and not np.isinf(values).any():
            raise InvalidUsageError(
                f"{tensor.source}: {tensor.name} has values beyond the largest {target.dtype}; keep the file's type"
            )
        target[first - start : last - start].write(made)


def cut_columns(comm: Communicator, tensor: LazyTensor, split: Split, dtype: str | None = None) -> Sharded:
    """Return a weight that is split along axis 1; see :func:`kind_of`."""
    kind = kind_of(tensor, dtype)
    return shard(tensor, comm, axis=1, split=split, dtype=None if kind in PRODUCTS else kind)
