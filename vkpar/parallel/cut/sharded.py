"""Sharded arrays: one logical array over the ranks of a rig."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from vkpar.arrays.array import Array, copy
from vkpar.comm import ranks
from vkpar.comm.communicator import Communicator
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, OperandError, UnsupportedError
from vkpar.parallel.cut.exchange import Layout, Piece, pieces
from vkpar.parallel.cut.split import Split
from vkpar.parallel.cut.split import split as even_split
from vkpar.unpickled import Closable, Fixed

MIRRORED: Final = "mirrored"
SPLIT: Final = "split"
PARTIAL: Final = "partial"
STATES: Final = (MIRRORED, SPLIT, PARTIAL)


class Sharded(Closable, Fixed):
    """One logical array over the ranks of a communicator; see :func:`shard`.

    It is in one of three states. ``mirrored``: every rank has all of it, bit for bit the same. ``split``: each rank has
    a range along one axis, some perhaps none. ``partial``: every rank has an array of the whole shape, and the logical
    array is their sum, which is still owed: what a product gives whose inner dimension was split.

    It is a context manager.

    Attributes:
        comm: the communicator.
        shape: of the logical array.
        dtype: of its elements; of a quantised one, the format's name (``"q8_0"``).
        state: ``"mirrored"``, ``"split"`` or ``"partial"``.
        parts: by rank: an :class:`~vkpar.Array`, or quantised weights; None where a rank holds nothing, or lives in
            another process.
        axis: the axis that is split; None in the other states.
        segments: the splits of the axis' segments, in order; one of them but for fused weights; none in other states.

    Raises:
        InvalidUsageError: parts that do not fit the shape, dtype, state, or the communicator's devices.

    Examples:
        >>> x = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> with vkpar.parallel.shard(x, comm, axis=0) as rows:
        ...     rows.state, rows.parts[1].tolist(), rows.resplit(1).parts[1].shape
        ('split', [[4.0, 5.0], [6.0, 7.0]], (4, 1))
    """

    def __init__(
        self,
        comm: Communicator,
        shape: Sequence[int],
        dtype: DType | str,
        state: str,
        parts: Sequence[Any],
        *,
        axis: int | None = None,
        segments: Sequence[Split] = (),
    ) -> None:
        self.comm = comm
        self.shape = tuple(shape)
        self.dtype = dtype
        self.state = state
        self.parts: tuple[Any, ...] = tuple(parts)
        self.axis = axis
        self.segments = tuple(segments)
        self._check()

    def __bool__(self) -> NoReturn:
        raise InvalidUsageError("a sharded array has no truth of its own: write x.numpy().any() or .all()")

    def __eq__(self, other: object) -> NoReturn:
        raise OperandError("sharded arrays are not compared: write x.numpy() == y.numpy()")

    __hash__ = object.__hash__

    def _check(self) -> None:
        if self.state not in STATES or (self.state == SPLIT) != (self.axis is not None):
            raise InvalidUsageError(f"states are {', '.join(STATES)}, split along an axis; not {self.state!r}")
        if len(self.parts) != self.comm.nranks:
            raise InvalidUsageError(f"{len(self.parts)} parts for {self.comm.nranks} ranks")
        for rank, device in enumerate(ranks.devices(self.comm)):
            part = self.parts[rank]
            if device is None:
                if part is not None:
                    raise InvalidUsageError(f"rank {rank} lives in another process, which has its part")
                continue
            if part is None and self.state == MIRRORED:
                raise InvalidUsageError(f"a mirrored array lies on every rank; there is none on rank {rank}")
            wanted = self._layout().part_shape(rank) if self.state == SPLIT else self.shape
            if part is not None and part.shape != wanted:
                raise InvalidUsageError(f"rank {rank}'s part has shape {part.shape}, not {wanted}")
            if part is None and self.state == SPLIT and math.prod(wanted) > 0:
                raise InvalidUsageError(f"rank {rank} has no part, but {wanted} of it")
            if isinstance(part, Array) and (part.dtype != self.dtype or part.device is not device):
                raise InvalidUsageError(f"rank {rank}'s part is {part!r}, not {self.dtype} on that rank's device")

    @property
    def split(self) -> Split | None:
        """How many elements along the axis each rank has, all segments together; None in other states than split."""
        if self.axis is None:
            return None
        if len(self.segments) == 1:
            return self.segments[0]
        return Split.of([sum(counts) for counts in zip(*(each.counts for each in self.segments), strict=True)])

    @property
    def holders(self) -> list[int]:
        """The ranks that hold something, those of other processes included."""
        if self.state != SPLIT:
            return list(range(self.comm.nranks)) if self.state == MIRRORED else _held(self.parts)
        return [rank for rank in range(self.comm.nranks) if math.prod(self._layout().part_shape(rank))]

    @property
    def quantized(self) -> bool:
        """True for weights in blocks, which products alone take."""
        return not isinstance(self.dtype, DType)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes that the parts take, by rank."""
        return tuple(0 if part is None else part.nbytes for part in self.parts)

    def __repr__(self) -> str:
        how = f" along {self.axis} {self.split}" if self.state == SPLIT else ""
        return f"<vkpar.Sharded {self.shape} {self.dtype} {self.state}{how} over {self.comm.nranks}>"

    # ---- to the host ----

    def numpy(self) -> npt.NDArray[Any]:
        """Return the whole array on the host, once all work that writes it is done.

        Raises:
            InvalidUsageError: partial: a sum is owed, which :meth:`mirrored` makes; or closed.
            UnsupportedError: quantised; or split over several processes, where mirrored() comes first.
        """
        self._check_arrays("numpy()")
        if self.state == PARTIAL:
            raise InvalidUsageError("numpy() of a partial array: a sum over the ranks is owed; mirrored() makes it")
        if self.state == MIRRORED:
            whole: npt.NDArray[Any] = ranks.own(self.comm, self.parts)[0].numpy()
            return whole
        if len(self.comm.devices) < self.comm.nranks:
            raise UnsupportedError("numpy() of an array that is split over several processes: mirrored() it first")
        assert isinstance(self.dtype, DType)
        layout, made = self._layout(), np.empty(self.shape, self.dtype.numpy)
        for rank, part in enumerate(self.parts):
            if part is not None:
                values = part.numpy()
                for piece in pieces(layout, rank, None, rank):
                    made[piece.target] = values[piece.source]
        return made

    # ---- from one state to another ----

    def mirrored(self, wire: str | None = None) -> Sharded:
        """Return the whole array on every rank: the array itself where it is mirrored, else a new one.

        Args:
            wire: how float32 crosses links where a sum is owed, see :meth:`vkpar.Communicator.all_reduce`; what is
                split travels exactly.

        Raises:
            InvalidUsageError: a wire where no sum is owed; closed.
            UnsupportedError: quantised; or a dtype that is not summed.
            OutOfMemoryError: no room.
        """
        self._check_arrays("mirrored()")
        if wire is not None and self.state != PARTIAL:
            raise InvalidUsageError("mirrored(): a wire is for sums; what is mirrored or split travels exactly")
        if self.state == MIRRORED:
            return self
        made = self._fresh([self.shape] * self.comm.nranks)
        if math.prod(self.shape) and self.state == PARTIAL:
            self.comm.all_reduce(self._contributions(), out=ranks.own(self.comm, made), wire=wire)
        elif math.prod(self.shape):
            self._gather(made)
        return Sharded(self.comm, self.shape, self.dtype, MIRRORED, made)

    def resplit(self, axis: int, split: Split | None = None, *, wire: str | None = None) -> Sharded:
        """Return the array split along ``axis``, as a new one.

        From ``mirrored`` nothing crosses a link; a sum that is owed is made, by each rank for its own range along axis
        0; of a split array each rank sends to every other one what that is to have.

        Args:
            axis: negative ones count from the end.
            split: of the axis, or of units that it is a multiple of; even by default.
            wire: as :meth:`mirrored` takes it.

        Raises:
            InvalidUsageError: an axis that is not there, a split of another length or of other ranks; a wire where no
                sum is owed; closed.
            UnsupportedError: quantised; or a dtype that is not summed.
            OutOfMemoryError: no room.
        """
        self._check_arrays("resplit()")
        if wire is not None and self.state != PARTIAL:
            raise InvalidUsageError("resplit(): a wire is for sums; what is mirrored or split travels exactly")
        layout = layout_of(self.shape, self.comm, axis, split)
        shapes = [layout.part_shape(rank) for rank in range(self.comm.nranks)]
        made = self._fresh(shapes)
        if math.prod(self.shape):
            if self.state == SPLIT:
                self._exchange(layout, made)
            elif self.state == PARTIAL and layout.axis == 0:
                counts = [math.prod(shape) for shape in shapes]
                out = ranks.own(self.comm, made)
                self.comm.reduce_scatter(self._contributions(), out=out, wire=wire, counts=counts)
            else:
                whole = self.mirrored(wire) if self.state == PARTIAL else self
                for rank, part in enumerate(made):
                    if part is not None and part.size:
                        (start, stop), *_ = layout.ranges(rank)
                        copy(whole.parts[rank][layout.index(start, stop)], part)
        held = [part if part is not None and part.size else None for part in made]
        return Sharded(self.comm, self.shape, self.dtype, SPLIT, held, axis=layout.axis, segments=layout.segments)

    def _contributions(self) -> list[Array | None]:
        if not any(part is not None for part in self.parts) and ranks.is_whole(self.comm):
            raise InvalidUsageError("a sum over the ranks of which none contributes")
        return [None if part is None else part.contiguous() for part in ranks.own(self.comm, self.parts)]

    def _gather(self, made: list[Array | None]) -> None:
        """Give every rank all parts, one after the other, and put their boxes in place."""
        layout, comm = self._layout(), self.comm
        parts = [None if part is None else part.contiguous() for part in ranks.own(comm, self.parts)]
        if layout.axis == 0 and len(layout.segments) == 1:
            comm.all_gather(parts, out=ranks.own(comm, made))
            return
        flat = ranks.own(comm, self._fresh([(math.prod(self.shape),)] * comm.nranks))
        comm.all_gather(parts, out=flat)
        for whole, received in zip(ranks.own(comm, made), flat, strict=True):
            assert whole is not None, "it is of this process"
            assert received is not None, "it is of this process"
            start = 0
            for rank in range(comm.nranks):
                shape = layout.part_shape(rank)
                if math.prod(shape):
                    given = received[start : start + math.prod(shape)].reshape(shape)
                    for piece in pieces(layout, rank, None, rank):
                        copy(given[piece.source], whole[piece.target])
                    start += math.prod(shape)

    def _exchange(self, layout: Layout, made: list[Array | None]) -> None:
        """Send every rank the boxes that it is to have."""
        nranks, own = self.comm.nranks, self._layout()
        boxes = [[pieces(own, giver, layout, taker) for taker in range(nranks)] for giver in range(nranks)]
        counts = [[sum(piece.size for piece in row) for row in rows] for rows in boxes]
        sent = self._fresh([(sum(row),) for row in counts])
        received = self._fresh([(sum(row[rank] for row in counts),) for rank in range(nranks)])
        for giver, (part, flat) in enumerate(zip(self.parts, sent, strict=True)):
            if part is not None and flat is not None:
                for box, place in _laid_out([piece for row in boxes[giver] for piece in row]):
                    copy(part[box.source], flat[place].reshape(box.shape))
        self.comm.all_to_all(ranks.own(self.comm, sent), out=ranks.own(self.comm, received), counts=counts)
        for taker, (target, flat) in enumerate(zip(made, received, strict=True)):
            if target is not None and flat is not None:
                for box, place in _laid_out([piece for rows in boxes for piece in rows[taker]]):
                    copy(flat[place].reshape(box.shape), target[box.target])

    # ---- life ----

    @property
    def closed(self) -> bool:
        """True once every part's memory was given back."""
        held = [part for part in self.parts if part is not None]
        return bool(held) and all(part.closed for part in held)

    def close(self) -> None:
        """Give the parts' memory back once the work on them is done; a second call does nothing."""
        for part in self.parts:
            if part is not None:
                part.close()

    # ---- within ----

    def _layout(self) -> Layout:
        assert self.axis is not None
        return Layout(self.shape, self.axis, self.segments)

    def _fresh(self, shapes: Sequence[tuple[int, ...]]) -> list[Array | None]:
        devices = ranks.devices(self.comm)
        return [
            None if device is None else device.empty(shape, self.dtype)
            for device, shape in zip(devices, shapes, strict=True)
        ]

    def _check_arrays(self, call: str) -> None:
        if self.quantized:
            raise UnsupportedError(f"{call} of {self.dtype} weights: they are read by products alone")


def _held(parts: Sequence[Any]) -> list[int]:
    return [rank for rank, part in enumerate(parts) if part is not None]


def _laid_out(boxes: Sequence[Piece]) -> Iterator[tuple[Piece, slice]]:
    """Yield each box with its place in a flat array that holds them one after the other."""
    start = 0
    for box in boxes:
        yield box, slice(start, start + box.size)
        start += box.size


def layout_of(
    shape: tuple[int, ...],
    comm: Communicator,
    axis: int,
    split: Split | Sequence[Split] | None = None,
    segments: Sequence[int] = (),
) -> Layout:
    """Return the layout that an axis, a split and segments ask for; see :func:`vkpar.parallel.shard`."""
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -len(shape) <= axis < len(shape):
        raise InvalidUsageError(f"axis {axis!r} of an array of shape {shape}")
    axis = int(axis) % len(shape)
    lengths = [int(length) for length in segments] or [shape[axis]]
    if min(lengths) < 0 or sum(lengths) != shape[axis]:
        raise InvalidUsageError(f"segments {lengths} are not the {shape[axis]} elements of axis {axis}")
    given = list(split) if isinstance(split, Sequence) else [split] * len(lengths)
    if len(given) != len(lengths) or not all(isinstance(each, Split | None) for each in given):
        raise InvalidUsageError(f"a split is one vkpar.parallel.Split, or one for each of {len(lengths)} segments")
    made = [even_split(n, comm) if each is None else each.over(n) for each, n in zip(given, lengths, strict=True)]
    for each in made:
        if each.nranks != comm.nranks:
            raise InvalidUsageError(f"a split over {each.nranks} ranks for a communicator of {comm.nranks}")
    return Layout(shape, axis, tuple(made))
