"""Tensors of files that are read where they are needed, and no more of them than is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vkpar.dtypes import DType
from vkpar.errors import IndexingError, InvalidUsageError
from vkpar.ops.quantized.blocks import BlockFormat


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that lies in a file; making one reads nothing.

    Attributes:
        name: its name in the file.
        shape: its dimensions, outermost first.
        dtype: of its elements; float32 for a quantised one, whose values :meth:`read` gives.
        kind: how blocks of elements are stored, for a quantised tensor; else None.
        nbytes: what it takes in the file.
        source: the file, for messages.

    Examples:
        >>> with vkpar.parallel.open_weights(folder) as weights:
        ...     tensor = weights["model.norm.weight"]
        ...     tensor.read(np.s_[:4]).shape, tensor.nbytes == 4 * tensor.shape[0]
        ((4,), True)
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: BlockFormat | None
    nbytes: int
    source: str
    _bytes: Callable[[], npt.NDArray[np.uint8]] = field(repr=False, compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    def read(self, region: Any = ...) -> npt.NDArray[Any]:
        """Return elements: a view of the mapped file, read-only, or the float32 values of a quantised tensor's blocks.

        Args:
            region: what NumPy's basic indexing takes; all by default. Of a quantised tensor slices alone; whole rows
                are decoded, so ask for the rows that you need.

        Raises:
            InvalidUsageError: a region out of range; the file was closed.
        """
        try:
            if self.kind is None:
                whole: npt.NDArray[Any] = self._bytes().view(self.dtype.numpy.newbyteorder("<")).reshape(self.shape)
                return np.asarray(whole[region])
            cut = () if region is ... else region if isinstance(region, tuple) else (region,)
            if len(cut) > len(self.shape) or not all(isinstance(item, slice) for item in cut):
                raise InvalidUsageError(f"{self.source}: {self.name} is quantised: slices choose what is read of it")
            chosen = self._rows()[cut[: len(self.shape) - 1]]
            values = self.kind.decode(np.ascontiguousarray(chosen).reshape(-1, chosen.shape[-1]))
            columns = cut[-1] if len(cut) == len(self.shape) else slice(None)
            return values.reshape(*chosen.shape[:-1], self.shape[-1])[..., columns]
        except IndexError as error:
            raise IndexingError(f"{self.source}: {self.name} has shape {self.shape}: {error}") from error

    def blocks(self, start: int = 0, stop: int | None = None, rows: slice = slice(None)) -> npt.NDArray[np.uint8]:
        """Return the blocks of a quantised matrix as they lie in the file, (rows, bytes of a row), without a copy.

        Args:
            start: the first column; the first of a block.
            stop: where the columns end: at a block's end.
            rows: which rows.

        Raises:
            InvalidUsageError: not quantised, or a border within a block.
        """
        if self.kind is None:
            raise InvalidUsageError(f"{self.source}: {self.name} is {self.dtype}, not quantised")
        stop = self.shape[-1] if stop is None else stop
        unit, nbytes = self.kind.block, self.kind.nbytes
        if start % unit or stop % unit:
            raise InvalidUsageError(
                f"{self.source}: {self.name} is {self.kind.name}: it is cut between blocks of {unit} columns, not from "
                f"{start} to {stop}; a split with granularity=linked((tensor, 1)) has such borders"
            )
        flat = self._rows().reshape(-1, self.shape[-1] // unit * nbytes)
        return flat[rows, start // unit * nbytes : stop // unit * nbytes]

    def _rows(self) -> npt.NDArray[np.uint8]:
        assert self.kind is not None
        return self._bytes().reshape(*self.shape[:-1], self.shape[-1] // self.kind.block * self.kind.nbytes)
