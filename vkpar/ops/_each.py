"""How elementwise operations run: what a call comes down to, in as few dispatches as the operands' memory allows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.layout import WIDE, broadcast_shape
from vkpar.arrays.views import overlaps, same_elements
from vkpar.errors import InvalidUsageError, OperandError, UnsupportedError
from vkpar.ops._geometry import Geometry, arrange
from vkpar.ops._launch import advice, fold_groups
from vkpar.ops._words import NUMBERS, Words
from vkpar.ops.expressions import FLOATS, INTEGERS
from vkpar.ops.generate import (
    COLUMN,
    FLAT,
    FULL,
    FULL_BLOCKS,
    GROUP,
    ROW,
    ROWS,
    SCALAR,
    TILE,
    WORDS,
    Kind,
    may_take_two,
)
from vkpar.plans import form_of
from vkpar.plans import make as make_plan
from vkpar.vulkan.memory.pool import round_up
from vkpar.vulkan.physical import ALIGNMENT

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline

COMPUTED: Final = (*FLOATS, *INTEGERS)
_CODES: Final = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3, "uint32": 3}
_FEW: Final = 2  # operands of the usual calls
_WIDE_TYPES: Final = frozenset({"float32", *INTEGERS})
_FEW_TESTS: Final = 1 << 18  # elements from which on kernels with fewer tests are worth their compilation
_SMALL: Final = 4  # elements: operands that no binding holds are copied aside
_HALVES_AT_ONCE: Final = 2  # blocks of four that an invocation of a GPU makes of halves

Operand = Any  # an Array, or a Python number


@dataclass(frozen=True)
class Meaning:
    """What a call means for the types of its operands.

    Attributes:
        kind: the types of its kernels.
        types: of each operand, the dtype's name, that of a number being what it is taken as.
        results: the dtypes of the results.
    """

    kind: Kind
    types: tuple[str, ...]
    results: tuple[str, ...]


class Operation(Protocol):
    """What is run.

    Attributes:
        name: for messages.
        key: what plans are found by.
        outputs: how many results there are.
    """

    name: str
    key: Hashable
    outputs: int

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what a call means.

        Raises:
            UnsupportedError: types that the operation does not compute.
        """

    def pipeline(self, device: Device, kind: Kind, constants: tuple[int, ...], form: str) -> Pipeline:
        """Return a pipeline for one of its kernels."""


def run(operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None]) -> list[Array]:
    """Run an operation and return its results; by the plan of an earlier call where there is one.

    Args:
        operation: what it is.
        operands: arrays, at least one, and numbers.
        outs: for each result where it goes, None for a new array.

    Raises:
        InvalidUsageError: not arrays or numbers, closed arrays, arrays of several devices; shapes that do not fit; a
            wrong ``out``, or one that shares memory with an operand without being that operand.
        UnsupportedError: types that devices do not compute.
    """
    if 0 < len(operands) <= _FEW and len(outs) == 1:
        quick = _quick(operation, operands, outs[0])
        if quick is not None:
            return [quick]
    key: list[Any] = [operation.key]
    arrays: list[Array] = []
    numbers: list[Any] = []
    try:
        for operand in operands:  # often taken: no calls
            if type(operand) is Array:
                key += (operand.form or form_of(operand),)
                arrays += (operand,)
            else:
                key += (type(operand),)
                numbers += (operand,)
        for out in outs:
            key += (None if out is None else out.form or form_of(out),)
        device = arrays[0].device
        plan = device.plans.known.get(tuple(key))
    except (AttributeError, TypeError, IndexError):  # not arrays: the long way says so
        plan = None
    if plan is not None:
        done: list[Array] | None = plan.apply(device, arrays, outs, plan.words(numbers) if numbers else b"")
        if done is not None:
            return done
    return _long_way(operation, operands, outs, tuple(key))


def _quick(operation: Operation, operands: Sequence[Operand], out: Array | None) -> Array | None:
    """Run an operation of an array, or of an array and a number after it, as :func:`run` does; None for other ways."""
    try:
        a: Any = operands[0]
        form = a.form or form_of(a)
        given = None if out is None else out.form or form_of(out)
        known = a.device.plans.known
        if len(operands) == 1:
            plan = known.get((operation.key, form, given))
            return None if plan is None else plan.unary(a, out, b"")
        number = operands[1]
        if type(number) is Array:
            return None
        plan = known.get((operation.key, form, type(number), given))
    except (AttributeError, TypeError):  # no array: the long way says so
        return None
    return None if plan is None else plan.unary(a, out, plan.words((number,)))


def _long_way(
    operation: Operation, operands: Sequence[Operand], outs: Sequence[Array | None], key: tuple[Any, ...]
) -> list[Array]:
    """Check everything, and run."""
    arrays = check_operands(operation.name, operands, outs)
    meaning = operation.meaning(operands)
    device = arrays[0].device
    shape = broadcast_shape(*(array.shape for array in arrays))
    made: list[Array] = []
    for out, dtype in zip(outs, meaning.results, strict=True):
        if out is not None:
            _check_out(operation.name, out, shape, dtype, arrays, made)
        made.append(device.empty(shape, dtype) if out is None else out)
    Words(meaning.kind, meaning.types, operands)  # refuses numbers that do not fit
    if made[0].size:
        launch(operation, meaning, operands, made, key=key)
    return made


def check_operands(name: str, operands: Sequence[Operand], outs: Sequence[Array | None] = ()) -> list[Array]:
    """Return the arrays among the operands.

    Raises:
        InvalidUsageError: something else than arrays and numbers, or no array; closed ones, several devices.
    """
    arrays = []
    for operand in operands:
        if isinstance(operand, Array):
            arrays.append(operand)
        elif not isinstance(operand, NUMBERS):
            kind = type(operand).__name__
            hint = "; write device.array(x) first" if isinstance(operand, (np.ndarray, list, tuple)) else ""
            raise OperandError(f"{name} takes arrays of one device and numbers, not {kind}{hint}")
    if not arrays:
        raise InvalidUsageError(f"{name} takes at least one array; numbers alone say no device")
    for out in outs:
        if out is not None and not isinstance(out, Array):
            raise InvalidUsageError(f"{name}: out is a vkpar.Array, not {type(out).__name__}")
    given = [*arrays, *(out for out in outs if out is not None)]
    check_same_device(*given)
    arrays[0].device.logical  # noqa: B018  (refuses a closed device)
    for array in given:
        array.check_free()
    return arrays


def _check_out(
    name: str, out: Array, shape: tuple[int, ...], dtype: str, inputs: Sequence[Array], others: Sequence[Array]
) -> None:
    if out.shape != shape or out.dtype.name != dtype:
        raise InvalidUsageError(f"{name}: the result is {shape} {dtype}, out is {out.shape} {out.dtype}")
    out.check_writable(f"{name}: out")
    if any(overlaps(out, array) and not same_elements(out, array) for array in inputs if array.size):
        raise InvalidUsageError(f"{name}: out may not share memory with an operand other than being the same array")
    if any(overlaps(out, other) for other in others):
        raise InvalidUsageError(f"{name}: two results share memory")


def computed(name: str, *names: str) -> None:
    """Refuse dtypes that devices do not compute.

    Raises:
        UnsupportedError: there is one.
    """
    for dtype in names:
        if dtype not in COMPUTED:
            raise UnsupportedError(f"{name} computes {', '.join(COMPUTED)}, not {dtype}{advice(dtype)}")


def launch(
    operation: Operation,
    meaning: Meaning,
    operands: Sequence[Operand],
    outs: Sequence[Array],
    *,
    key: tuple[Any, ...] | None = None,
    base: int = 0,
) -> None:
    """Run on checked operands and results that have elements.

    Args:
        operation: what it is.
        meaning: what it means for these types.
        operands: arrays that can be broadcast to the results' shape, and numbers.
        outs: arrays of one shape.
        key: what a plan is kept by, where one dispatch does it all.
        base: the number of the first element.
    """
    shape = outs[0].shape
    views = [_shown(operand, shape) for operand in operands]
    made = _Dispatch.of(operation, meaning, views, outs, base)
    if made is None:
        _materialised(operation, meaning, views, outs, base)
        return
    aside = [made.aside(place, out) for place, out in enumerate(outs)]
    if any(target is not None for target in aside):
        targets = [out if target is None else target for out, target in zip(outs, aside, strict=True)]
        launch(operation, meaning, operands, targets, base=base)
        for out, target in zip(outs, aside, strict=True):
            if target is not None:
                out.copy_from(target)
        return
    made.run(key, operands)


def _shown(operand: Operand, shape: tuple[int, ...]) -> Operand:
    if not isinstance(operand, Array) or operand.shape == shape:
        return operand
    return operand.broadcast_to(shape)


def _materialised(
    operation: Operation, meaning: Meaning, views: list[Operand], outs: Sequence[Array], base: int
) -> None:
    """Run where no kernel does: on parts of operands that no binding holds, or on contiguous copies."""
    shape, arrays = outs[0].shape, [*(view for view in views if isinstance(view, Array)), *outs]
    if all(binding(array) is not None for array in arrays):
        if all(array.is_contiguous for array in arrays):
            raise UnsupportedError(f"{operation.name}: {len(arrays)} arrays and numbers are more than a kernel takes")
        plain = [view.contiguous() if isinstance(view, Array) else view for view in views]
        targets = [out if out.is_contiguous else out.device.empty(shape, out.dtype) for out in outs]
        launch(operation, meaning, plain, targets, base=base)
        for out, target in zip(outs, targets, strict=True):
            if target is not out:
                out.copy_from(target)
        return
    if outs[0].size <= _SMALL:
        plain = [view.copy() if isinstance(view, Array) else view for view in views]
        targets = [out if binding(out) is not None else out.device.empty(shape, out.dtype) for out in outs]
        launch(operation, meaning, plain, targets, base=base)
        for out, target in zip(outs, targets, strict=True):
            if target is not out:
                out.copy_from(target)
        return
    axis, half = _cut(shape)
    row = outs[0].size // shape[axis]
    for part, start in ((slice(None, half), 0), (slice(half, None), half * row)):
        index = (slice(None),) * axis + (part,)
        pieces = [view[index] if isinstance(view, Array) else view for view in views]
        launch(operation, meaning, pieces, [out[index] for out in outs], base=base + start)


def _cut(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the first axis that can be cut, and where: at a multiple of as many wide accesses as there are."""
    axis = next(axis for axis, count in enumerate(shape) if count > 1)
    half = shape[axis] // 2
    return axis, next((half // step * step for step in (4096, 4, 2) if half >= step), half)


def binding(array: Array) -> tuple[BufferRange, int] | None:
    """Return what a kernel is given of a view of any strides, and the index of its first element; None for too much."""
    low, high = array.span
    memory = array.memory
    buffer, offset = memory.resolve(low)
    aligned = offset // ALIGNMENT * ALIGNMENT
    if offset + high - low > buffer.reserved:
        return None
    nbytes = min(round_up(offset + high - low, WIDE), buffer.reserved) - aligned
    if nbytes > array.device.limits.max_storage_buffer_range:
        return None
    first = offset - aligned + array.byte_offset - low
    return buffer.range(aligned, nbytes, memory), first // array.dtype.itemsize


def move(operation: Operation, kind: Kind, source: Array, target: Array) -> bool:
    """Copy bit for bit in one dispatch, between views that share no memory; False, and nothing done, where none does.

    Args:
        operation: which copies.
        kind: its types.
        source: of any type of the same size.
        target: of the same shape; it shows no element twice.
    """
    key = (operation.key, form_of(source), form_of(target))
    plan = target.device.plans.known.get(key)
    if plan is not None and plan.run((source, target), b""):
        return True
    words = dtypes.resolve(kind.results[0])
    seen, put = (Array(a.storage, a.byte_offset, a.shape, words, a.steps) for a in (source, target))
    made = _Dispatch.of(operation, Meaning(kind, kind.inputs, kind.results), [seen], [put], 0)
    if made is None or made.aside(0, put) is not None:
        return False
    made.run(key, [seen])
    return True


class _Dispatch:
    """One dispatch: operands and results of one shape, each in one binding."""

    def __init__(
        self,
        operation: Operation,
        meaning: Meaning,
        views: Sequence[Operand],
        outs: Sequence[Array],
        geometry: Geometry,
        bindings: list[tuple[BufferRange, int]],
        base: int,
    ) -> None:
        self._operation, self._meaning, self._views, self._outs = operation, meaning, views, outs
        self._geometry, self._bindings, self._base = geometry, bindings, base

    @classmethod
    def of(
        cls, operation: Operation, meaning: Meaning, views: Sequence[Operand], outs: Sequence[Array], base: int
    ) -> _Dispatch | None:
        """Return it; None where one dispatch cannot do it."""
        bound = [views[number] for number in meaning.kind.bound]
        arrays = [*(view for view in bound if isinstance(view, Array)), *outs]
        places = [binding(array) for array in arrays]
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            return None
        geometry = arrange(outs[0].shape, [array.strides for array in arrays], len(outs))
        if geometry is None:
            return None
        numbers = [number for number, view in enumerate(bound) if not isinstance(view, Array)]
        modes, strides = list(geometry.modes), list(geometry.strides)
        for number in numbers:  # bound to the first result, and not read
            modes.insert(number, SCALAR)
            strides.insert(number, (0,) * len(geometry.counts))
            found.insert(number, found[len(found) - len(outs)])
        geometry = Geometry(geometry.counts, tuple(strides), tuple(modes), geometry.tile, geometry.rows, geometry.width)
        used = len(geometry.counts) * (1 + len(modes)) + len(modes) if geometry.tile else 2 + len(modes)
        if used + len(meaning.kind.numbers) > WORDS or len(modes) > outs[0].device.limits.max_storage_buffers:
            return None
        return cls(operation, meaning, views, outs, geometry, found, base)

    def aside(self, place: int, out: Array) -> Array | None:
        """Return where a result has to go first, since kernels write halves in pairs; None for where it is."""
        number = len(self._bindings) - len(self._outs) + place
        if out.dtype.itemsize == 4 or self._geometry.can_pair(number, self._bindings[number][1]):
            return None
        if not self._geometry.tile or not out.ndim or out.shape[-1] % 2 == 0:
            return out.device.empty(out.shape, out.dtype)
        padded = out.device.empty((*out.shape[:-1], round_up(out.shape[-1], 4)), out.dtype)
        return padded[..., : out.shape[-1]]

    def run(self, key: tuple[Any, ...] | None, operands: Sequence[Operand]) -> None:
        """Run it, and keep its plan."""
        meaning, outs = self._meaning, self._outs
        device = outs[0].device
        words = self._words()
        form = self._form
        grid = self._grid(form)
        pipeline = self._operation.pipeline(device, meaning.kind, self._constants(form, grid), form)
        ranges = [item for item, _ in self._bindings]
        device.logical.dispatch(self._operation.name, pipeline, ranges, words.packed(), grid)
        if key is None:
            return
        bound = [operands[number] for number in meaning.kind.bound]
        arrays = [*(operand if isinstance(operand, Array) else outs[0] for operand in bound), *outs]
        push = b"" if words.places else words.packed()
        plan = make_plan(device, self._operation.name, pipeline, arrays, ranges, grid, push, results=len(outs))
        if plan is not None:
            plan.words = words
            plan.order = _order(bound, len(outs))
            device.plans.keep(key, plan)

    @property
    def _is_large(self) -> bool:
        """Whether it has invocations to spare on any GPU."""
        return self._geometry.groups >= 1 << 12

    @property
    def _form(self) -> str:
        """Which kernel runs: on drivers that test each lane of a vector, of large arrays one that has few tests."""
        geometry, device = self._geometry, self._outs[0].device
        usual = TILE if geometry.tile else FLAT
        dtypes_of = {*self._meaning.types, *self._meaning.results}
        if not device.info.tests_lanes or self._outs[0].size < _FEW_TESTS or not dtypes_of <= _WIDE_TYPES:
            return usual
        rows = [number for number, mode in enumerate(geometry.modes) if mode == ROW]
        if not all(geometry.is_wide(number, self._bindings[number][1]) for number in rows):
            return usual
        if geometry.tile:
            into_rows = all(mode == ROW for mode in geometry.modes[-len(self._outs) :])
            turns = len(geometry.counts) > 2 or COLUMN in geometry.modes
            return ROWS if into_rows and not turns and geometry.counts[0] % 4 == 0 else TILE
        return FULL if math.prod(self._grid(FULL)) * 4 * GROUP * FULL_BLOCKS == geometry.counts[0] else FLAT

    def _grid(self, form: str) -> tuple[int, int, int]:
        count, device = self._geometry.groups, self._outs[0].device
        if form == ROWS:
            return fold_groups(device, -(-math.prod(self._geometry.counts) // (4 * GROUP * self._row_blocks())))
        return fold_groups(device, -(-count // (FULL_BLOCKS if form == FULL else self._blocks())))

    def _row_blocks(self) -> int:
        """Return how many blocks of a row an invocation of a kernel of rows makes."""
        return math.gcd(self._geometry.counts[0] // 4, FULL_BLOCKS)

    def _blocks(self) -> int:
        """Return how many blocks of four elements an invocation makes."""
        halves = any(out.dtype.itemsize == 2 for out in self._outs)
        large = self._is_large and not self._outs[0].device.info.is_cpu
        two = halves and large and not self._geometry.tile and may_take_two(self._meaning.kind)
        return _HALVES_AT_ONCE if two else 1

    def _is_whole(self) -> bool:
        """Say whether a flat kernel takes fours alone, the last of them with the padding behind the arrays.

        CPU drivers run the code for less than a four with every four; small arrays on GPUs deserve no further pipeline.
        """
        if not (self._outs[0].device.info.is_cpu or self._is_large):
            return False
        geometry = self._geometry
        if geometry.counts[0] % 4 == 0:
            return True
        wide = (geometry.is_wide(number, first) for number, (_, first) in enumerate(self._bindings))
        rows = all(is_wide for is_wide, mode in zip(wide, geometry.modes, strict=True) if mode == ROW)
        return rows and all(out.byte_offset + out.nbytes == out.storage.nbytes for out in self._outs)

    def _constants(self, form: str, grid: tuple[int, int, int]) -> tuple[int, ...]:
        geometry, kind = self._geometry, self._meaning.kind
        if form == ROWS:
            blocks = self._row_blocks()
            made = [blocks, math.prod(grid) * 4 * GROUP * blocks == math.prod(geometry.counts)]
        else:
            made = [geometry.rows, geometry.width] if geometry.tile else [self._blocks(), self._is_whole()]
        made.append(len(geometry.counts))
        for number, (_, first) in enumerate(self._bindings):
            made += [geometry.modes[number], geometry.is_wide(number, first)]
        if kind.open:
            types = [self._meaning.types[number] for number in kind.bound]
            made += [_CODES[dtype] for dtype in (*types, *(out.dtype.name for out in self._outs))]
        return tuple(made)

    def _words(self) -> Words:
        geometry, kind = self._geometry, self._meaning.kind
        words = Words(kind, self._meaning.types, self._views)
        firsts = [first for _, first in self._bindings]
        if geometry.tile:
            dims = len(geometry.counts)
            words.words[:dims] = geometry.counts
            places = [dims + number * (dims + 1) for number in range(len(firsts))]
            for place, first, strides in zip(places, firsts, geometry.strides, strict=True):
                words.words[place : place + dims + 1] = [first, *(stride % (1 << 32) for stride in strides)]
        else:
            words.words[:2] = [geometry.counts[0], self._base]
            places = [2 + number for number in range(len(firsts))]
            words.words[2 : 2 + len(firsts)] = firsts
        for number, view in enumerate(self._views):
            if isinstance(view, NUMBERS):
                weak = number in kind.numbers
                place = WORDS - 1 - kind.numbers.index(number) if weak else places[kind.bound.index(number)]
                words.places.append(place)
        return words


def _order(bound: Sequence[Operand], outs: int) -> Sequence[int] | None:
    """Return which of the arrays and results each binding has; None where all have them in order."""
    if all(isinstance(operand, Array) for operand in bound):
        return None
    arrays = sum(isinstance(operand, Array) for operand in bound)
    made, seen = [], 0
    for operand in bound:
        made.append(seen if isinstance(operand, Array) else arrays)
        seen += isinstance(operand, Array)
    return [*made, *range(arrays, arrays + outs)]
