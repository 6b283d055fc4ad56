"""Arrays of the host and tensors of files, cut over the ranks of a rig; only the slices are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vkpar import dtypes, ops
from vkpar.arrays.array import Array
from vkpar.arrays.elements import host_elements
from vkpar.comm import ranks
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.cut.exchange import Layout
from vkpar.parallel.cut.sharded import MIRRORED, SPLIT, Sharded, layout_of
from vkpar.parallel.cut.split import Split
from vkpar.parallel.files.lazy import LazyTensor

_CHUNK: Final = 16 << 20  # bytes of elements that are converted at a time

Index = tuple[slice, ...]
Read = Callable[[Index], npt.NDArray[Any]]


def shard(
    x: Any,
    comm: Communicator,
    *,
    axis: int | None = None,
    split: Split | Sequence[Split] | None = None,
    segments: Sequence[int] = (),
    dtype: object = None,
) -> Sharded:
    """Put an array on the ranks: all of it on each, or cut along ``axis``.

    Of a tensor of a file only what a rank holds is read, a few MiB at a time where it is converted.

    Args:
        x: what ``np.asarray`` takes, a :class:`~vkpar.HostArray`, or a tensor of :func:`open_weights`. A quantised one
            stays in its blocks unless ``dtype`` is given; its rows may be cut anywhere, its columns between blocks.
        comm: the communicator.
        axis: along which it is cut; None for a mirrored array.
        split: of the axis, or of units of which it is a multiple (a split of heads cuts rows of heads); even by
            default.
        segments: lengths of what lies one after the other along the axis, such as the queries, keys and values of a
            fused weight. Each is split on its own, by its own split where ``split`` is a sequence, and a rank's pieces
            lie one after the other.
        dtype: what the elements are converted to; their own by default. A quantised tensor is decoded to it.

    Raises:
        InvalidUsageError: an axis that is not there; a split of another length, of other ranks, or with borders within
            blocks; segments that do not add up; a split or segments without an axis; finite values beyond the dtype's
            largest.
        UnsupportedError: quantised weights of more or less than two dimensions,
            or of a format without products.
        OutOfMemoryError: no room.

    Examples:
        >>> x = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> made = vkpar.parallel.shard(x, comm, axis=0, split=vkpar.parallel.split(4, comm, ratios=[3, 1]))
        >>> [part.shape for part in made.parts], (made.numpy() == x).all()
        ([(3, 2), (1, 2)], np.True_)
    """
    source = _Source(x, dtype)
    if axis is None:
        if split is not None or len(segments):
            raise InvalidUsageError("shard: a split or segments need an axis")
        whole = [_all(source.shape)]
        parts = [None if device is None else source.put(device, source.shape, whole) for device in ranks.devices(comm)]
        return Sharded(comm, source.shape, source.dtype, MIRRORED, parts)
    layout = source.layout(comm, axis, split, segments)
    parts = []
    for rank, device in enumerate(ranks.devices(comm)):
        shape = layout.part_shape(rank)
        boxes = [layout.index(start, stop) for start, stop in layout.ranges(rank)]
        parts.append(source.put(device, shape, boxes) if device is not None and math.prod(shape) > 0 else None)
    return Sharded(comm, source.shape, source.dtype, SPLIT, parts, axis=layout.axis, segments=layout.segments)


def check_cut(
    x: Any,
    comm: Communicator,
    *,
    axis: int,
    split: Split | Sequence[Split] | None = None,
    segments: Sequence[int] = (),
    dtype: object = None,
) -> None:
    """Refuse what :func:`shard` would refuse, without reading or allocating anything; raises as it does."""
    _Source(x, dtype).layout(comm, axis, split, segments)


def _all(shape: tuple[int, ...]) -> Index:
    return (slice(None),) * len(shape)


class _Source:
    """What is sharded: its shape, the type that it gets, and how boxes of it are put on a device."""

    def __init__(self, x: Any, dtype: object) -> None:
        self.shape: tuple[int, ...]
        self.dtype: DType | str
        self._x = x
        wanted = None if dtype is None else dtypes.resolve(dtype)
        if isinstance(x, LazyTensor):
            self.shape, self._own = x.shape, x.dtype
            self._read: Read = x.read
            self.dtype = x.kind.name if x.kind is not None and wanted is None else wanted or x.dtype
        elif isinstance(x, Array | Sharded):
            raise InvalidUsageError(f"shard takes values of the host or of a file, not {x!r}; give x.numpy()")
        else:
            host = host_elements(x)
            self.shape, self._own = host.values.shape, host.dtype
            self._read = host.values.__getitem__
            self.dtype = wanted or host.dtype

    def layout(
        self, comm: Communicator, axis: int, split: Split | Sequence[Split] | None, segments: Sequence[int]
    ) -> Layout:
        """Return where the elements go; refuses borders within blocks of a quantised tensor whose columns are cut."""
        layout = layout_of(self.shape, comm, axis, split, segments)
        if not isinstance(self.dtype, DType) and layout.axis == len(self.shape) - 1:
            for rank in range(comm.nranks):
                for start, stop in layout.ranges(rank):
                    self._x.blocks(start, stop, slice(0, 0))
        return layout

    def put(self, device: Device, shape: tuple[int, ...], boxes: Sequence[Index]) -> Any:
        """Return a part of ``shape`` on ``device``, made of boxes that follow each other along one axis."""
        if not isinstance(self.dtype, DType):
            return self._put_blocks(device, shape, boxes)
        made = device.empty(shape, self.dtype)
        if len(boxes) == 1:
            self._write(made, boxes[0])
            return made
        axis = next(axis for axis in range(len(shape)) if any(box[axis] != slice(None) for box in boxes))
        start = 0
        for box in boxes:
            stop = start + box[axis].stop - box[axis].start
            self._write(made[(*[slice(None)] * axis, slice(start, stop))], box)
            start = stop
        return made

    def _write(self, target: Array, box: Index) -> None:
        """Write a box of the source, some rows at a time where they are converted."""
        if not target.shape or (self._own == self.dtype and not self._is_decoded()):
            target.write(self._converted(self._read(box)))
            return
        row = max(1, math.prod(target.shape[1:]) * 4)
        step = max(1, _CHUNK // row)
        first = box[0].start or 0
        for start in range(0, target.shape[0], step):
            stop = min(start + step, target.shape[0])
            values = self._converted(self._read((slice(first + start, first + stop), *box[1:])))
            target[start:stop].write(values)

    def _is_decoded(self) -> bool:
        return isinstance(self._x, LazyTensor) and self._x.kind is not None

    def _converted(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values in the part's type; raises where finite ones become infinite."""
        assert isinstance(self.dtype, DType)
        if self._own == self.dtype:
            return values
        with np.errstate(invalid="ignore", over="ignore"):
            made = values.astype(self.dtype.numpy, copy=False)
        if self.dtype.is_float and made.dtype.itemsize <= values.dtype.itemsize:
            lost = np.isinf(made) & np.isfinite(values)
            if lost.any():
                name = getattr(self._x, "name", "an array")
                raise InvalidUsageError(
                    f"{name} holds {values[lost][0]!s}, beyond the largest {self.dtype}: keep it in float32"
                    + (" or bfloat16" if self.dtype == dtypes.float16 else "")
                )
        return made

    def _put_blocks(self, device: Device, shape: tuple[int, ...], boxes: Sequence[Index]) -> Any:
        x: LazyTensor = self._x
        make = getattr(ops, "quantized", None)
        if make is None or len(shape) != 2:
            raise UnsupportedError(
                f"{x.source}: no products of {x.name}, {x.kind} of shape {x.shape}: give dtype=, to decode it"
            )
        if not math.prod(shape):
            return None
        found = [x.blocks(box[1].start or 0, box[1].stop, box[0]) for box in boxes]
        axis = 0 if all(box[1] == slice(None) for box in boxes) else 1
        blocks = found[0] if len(found) == 1 else np.concatenate(found, axis=axis)
        return make(device, blocks, shape, x.kind.name if x.kind else "")
