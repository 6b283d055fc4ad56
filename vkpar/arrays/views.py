"""Views: arrays over the memory of another array, with elements any steps apart."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from vkpar import dtypes
from vkpar.arrays.forms import Form, form_of
from vkpar.arrays.interop import Interoperable
from vkpar.arrays.layout import Strides, broadcast_strides, c_strides, extent, is_c_order, repeats, reshaped
from vkpar.arrays.region import select, sliced
from vkpar.arrays.shape import dimensions
from vkpar.arrays.storage import Storage
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError

_V = TypeVar("_V", bound="Viewable")

_MOST_WORK: Any = 10_000  # that NumPy puts into the question whether two views overlap
_TooHard: type[Exception] = getattr(np, "exceptions", np).TooHardError


class Viewable(Interoperable):
    """Elements in a storage, and the views of them.

    Attributes:
        storage: what it shares with its views.
        byte_offset: bytes from the start of its storage to its first element.
        steps: elements of memory from one place to the next along each axis; None where the elements lie side by side
            in C order, as they do in all arrays but some views. :attr:`strides` has them in both cases.
        form: all of it that plans depend on; None until one asks for it.
        has_gaps: it stands for elements that have others between them, which whoever writes to it leaves alone.
    """

    storage: Storage
    byte_offset: int
    steps: Strides | None = None
    form: Form | None = None
    has_gaps = False

    def __init__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], dtype: DType, steps: Strides | None = None
    ) -> None:
        raise NotImplementedError

    @property
    def strides(self) -> Strides:
        """Elements of memory from one place to the next along each axis (NumPy's strides count bytes)."""
        return c_strides(self.shape) if self.steps is None else self.steps

    @property
    def is_contiguous(self) -> bool:
        """True where the elements lie side by side in C order."""
        return self.steps is None

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the storage that it reaches, and the one after the last."""
        if self.steps is None:
            return self.byte_offset, self.byte_offset + self.nbytes
        low, high = extent(self.shape, self.steps)
        itemsize = self.dtype.itemsize
        return self.byte_offset + low * itemsize, self.byte_offset + high * itemsize

    def strided(self: _V, shape: tuple[int, ...], strides: Strides, first: int = 0) -> _V:
        """Return a view of any strides; nothing is checked.

        Args:
            shape: its dimensions.
            strides: its strides.
            first: how many elements of memory its first element lies behind this one's.
        """
        steps = None if is_c_order(shape, strides) else strides
        return type(self)(self.storage, self.byte_offset + first * self.dtype.itemsize, shape, self.dtype, steps)

    def check_contiguous(self, what: str) -> None:
        """Refuse a view whose elements do not lie side by side, for something that needs them to.

        Args:
            what: names the array, or what needs it, in the message.

        Raises:
            InvalidUsageError: it is such a view.
        """
        if self.steps is not None:
            raise InvalidUsageError(
                f"{what}: the elements of this view {self.shape} (strides {self.steps}) do not lie side by side; call "
                ".contiguous() for a copy whose elements do"
            )

    def check_writable(self, what: str) -> None:
        """Refuse a view that shows some of its elements more than once, as :meth:`broadcast_to` makes them.

        Raises:
            InvalidUsageError: it is such a view.
        """
        if self.steps is not None and repeats(self.shape, self.steps):
            raise InvalidUsageError(
                f"{what}: a view made by broadcasting shows elements more than once and cannot be written; call "
                ".contiguous() for an array of its own"
            )

    # --- views ---

    def __getitem__(self: _V, key: Any) -> _V:
        """Return a view, by NumPy's basic indexing: ``a[i:j]``, ``a[:, 2]``, ``a[::-1]``, ``a[..., None]``.

        By an array it returns a new array: of the elements where a mask of bool holds, whose number the host reads; or
        of rows, as :func:`vkpar.take` takes them, by places of any integers but uint32 and those of 64 bits.

        Raises:
            IndexingError: another kind of key, or a number out of range; an IndexError, and an InvalidUsageError.
        """
        shape, dtype = self._shape, self._dtype
        if self.steps is None and isinstance(key, slice) and key.step is None and shape:  # often taken: kept short
            first, rows, _ = sliced(key, shape[0])
            row = math.prod(shape[1:]) * dtype.itemsize
            return type(self)(self.storage, self.byte_offset + first * row, (rows, *shape[1:]), dtype)
        if isinstance(key, Viewable):
            return self._picked(key)
        found = select(key, self.shape, self.steps)
        return self.strided(found.shape, found.strides, found.start)

    def _picked(self: _V, key: Viewable) -> _V:
        """Return the elements that a mask, or an array of places, names."""
        raise NotImplementedError

    def __iter__(self: _V) -> Iterator[_V]:
        """Yield views of the rows along the first axis."""
        return (self[row] for row in range(len(self)))

    @property
    def T(self: _V) -> _V:
        """A view with the axes in the opposite order."""
        form = self.form or form_of(self)
        turned = form.turned
        if turned is None:
            turned = form.turned = form_of(self.transpose())
        made = self.__class__(self.storage, self.byte_offset, turned.shape, self._dtype, turned.steps)
        made.form = turned
        return made

    def view(self: _V, *dtype: object) -> _V:
        """Return a view of the same bytes as elements of another type, as NumPy's ``view(dtype)`` does.

        Where their sizes differ, the last axis gets another length, and the elements have to lie side by side.

        Raises:
            InvalidUsageError: no dtype (``reshape`` takes shapes), or a last axis whose bytes are no whole elements.
        """
        if len(dtype) != 1 or isinstance(dtype[0], int | tuple | list):
            raise InvalidUsageError("view takes a dtype, such as a.view('uint32'); a.reshape(shape) takes a shape")
        kind, size = dtypes.resolve(dtype[0]), self.dtype.itemsize
        if kind.itemsize == size:
            return type(self)(self.storage, self.byte_offset, self.shape, kind, self.steps)
        self.check_contiguous(f"a view as {kind}")
        nbytes = self.shape[-1] * size if self.shape else size
        if not self.shape or nbytes % kind.itemsize or self.byte_offset % kind.itemsize:
            raise InvalidUsageError(f"{self.shape} {self.dtype} from byte {self.byte_offset} is no array of {kind}")
        return type(self)(self.storage, self.byte_offset, (*self.shape[:-1], nbytes // kind.itemsize), kind)

    def transpose(self: _V, *axes: Any) -> _V:
        """Return a view with permuted axes.

        Args:
            axes: for each axis of the view the number of the array's axis, as NumPy takes them: several numbers or a
                sequence, negative ones from the end; by default all in the opposite order.

        Raises:
            InvalidUsageError: not each axis once.
        """
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = _permutation(given, self.ndim) if given else range(self.ndim)[::-1]
        strides = self.strides
        return self.strided(tuple(self.shape[axis] for axis in order), tuple(strides[axis] for axis in order))

    def broadcast_to(self: _V, shape: int | Sequence[int]) -> _V:
        """Return a view in a larger shape that shows elements more than once, as NumPy broadcasts; it is only read.

        Raises:
            InvalidUsageError: the array does not fit the shape.
        """
        wanted = dimensions(shape)
        return self.strided(wanted, broadcast_strides(self.shape, self.strides, wanted))

    def reshape(self: _V, *shape: Any) -> _V:
        """Return the elements in another shape of the same size; one dimension may be -1.

        It is a view wherever one has the shape: always, of arrays whose elements lie side by side. Of other views it
        may be a copy, as NumPy's ``reshape`` makes one.

        Raises:
            InvalidUsageError: the sizes differ.
        """
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            dims = np.empty(self.shape, np.dtype("V0")).reshape(wanted).shape
        except (ValueError, TypeError) as error:
            raise InvalidUsageError(f"cannot reshape {self.shape} to {wanted}") from error
        if self.steps is None:
            return type(self)(self.storage, self.byte_offset, dims, self.dtype)
        strides = reshaped(self.shape, self.steps, dims)
        return self.copy().reshape(dims) if strides is None else self.strided(dims, strides)

    def ravel(self: _V) -> _V:
        """Return the elements along one axis: a view, or a copy where :meth:`reshape` makes one."""
        return self.reshape(-1)

    def squeeze(self: _V, axis: int | Sequence[int] | None = None) -> _V:
        """Return a view without axes of length 1.

        Args:
            axis: the axes to drop, negative ones from the end; by default all of length 1.

        Raises:
            InvalidUsageError: an axis that is not there, twice, or of another length.
        """
        if axis is None:
            kept = [i for i, length in enumerate(self.shape) if length != 1]
        else:
            dropped = _axes(axis if isinstance(axis, Sequence) else (axis,), self.ndim)
            if len(set(dropped)) < len(dropped) or any(not 0 <= i < self.ndim or self.shape[i] != 1 for i in dropped):
                raise InvalidUsageError(f"squeeze drops axes of length 1, each once, of {self.shape}, not {axis!r}")
            kept = [i for i in range(self.ndim) if i not in dropped]
        strides = self.strides
        return self.strided(tuple(self.shape[i] for i in kept), tuple(strides[i] for i in kept))

    def copy(self: _V) -> _V:
        """Return a copy on the same device, made in program order."""
        raise NotImplementedError

    def __copy__(self: _V) -> _V:
        """Return another array of the same elements, for Python's ``copy.copy``, as torch's tensors do."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self: _V, memo: Any) -> _V:
        """Return :meth:`copy`, for Python's ``copy.deepcopy``."""
        return self.copy()


def _axes(named: Any, ndim: int) -> list[int]:
    """Return the axes that a caller names, from 0 up where they are there; ``[-1]`` for what names none."""
    try:
        numbers = [operator.index(axis) for axis in named]
    except TypeError:
        return [-1]
    return [axis + ndim * (axis < 0) for axis in numbers]


def _permutation(axes: Any, ndim: int) -> list[int]:
    """Return the axes that a caller names, from 0 up."""
    order = _axes(axes, ndim)
    if sorted(order) != list(range(ndim)):
        raise InvalidUsageError(f"transpose takes each of the {ndim} axes once, not {axes!r}")
    return order


def overlaps(a: Viewable, b: Viewable) -> bool:
    """Say whether two arrays share any byte; exactly, but for views of so many odd steps that nobody can tell soon."""
    if a.storage is not b.storage:
        return False
    if a.steps is None and b.steps is None:
        return a.byte_offset < b.byte_offset + b.nbytes and b.byte_offset < a.byte_offset + a.nbytes
    (low, high), (first, last) = a.span, b.span
    if low >= last or first >= high:
        return False
    try:
        return bool(np.shares_memory(_shadow(a), _shadow(b), _MOST_WORK))
    except _TooHard:
        return True


def same_elements(a: Viewable, b: Viewable) -> bool:
    """Tell whether two arrays are the same elements of the same memory in the same order, so that in place is safe."""
    if a.dtype != b.dtype or a.storage is not b.storage or a.byte_offset != b.byte_offset:
        return False
    if a.steps is None and b.steps is None:
        return a.size == b.size
    return a.shape == b.shape and a.strides == b.strides


class _Shadow:
    """What NumPy is told of a view: the same places in memory that is never touched."""

    def __init__(self, array: Viewable) -> None:
        itemsize = array.dtype.itemsize
        self.__array_interface__ = {
            "data": ((1 << 52) + array.byte_offset, True),
            "shape": array.shape,
            "strides": tuple(stride * itemsize for stride in array.strides),
            "typestr": array.dtype.numpy.str,
            "version": 3,
        }


def _shadow(array: Viewable) -> np.ndarray[Any, Any]:
    return np.asarray(_Shadow(array))
