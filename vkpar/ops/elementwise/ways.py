"""One dispatch of an elementwise operation: which kernel, which constants, which words, over which blocks."""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from vkpar import dtypes
from vkpar.abi import elementwise as abi
from vkpar.arrays.array import Array
from vkpar.arrays.layout import WIDE
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.checks import LARGEST, NARROW, NUMBERS
from vkpar.ops.call.plan import bindings_of
from vkpar.ops.call.plan import make as make_plan
from vkpar.ops.call.windows import fold_groups
from vkpar.ops.elementwise import cpu
from vkpar.ops.elementwise.expressions import INTEGERS, LONG
from vkpar.ops.elementwise.generate import may_take_two
from vkpar.ops.elementwise.geometry import Geometry, arrange
from vkpar.ops.elementwise.kinds import ANY, CODES, FLAT, INDEX, ONE, ROW, SCALAR, SECOND, TILE, WORDS, KernelTypes
from vkpar.text import shown
from vkpar.vulkan.machine.physical import ALIGNMENT
from vkpar.vulkan.memory.pool import round_up

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.ops.call.call import Call
    from vkpar.vulkan.memory.buffer import BufferRange
    from vkpar.vulkan.pipelines.kernel import Pipeline

_BOUNDS: Final = {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in ("int8", "uint8", "int16", "uint16", *INTEGERS)
} | {"bool": (0, 1), "int64": (-(1 << 31), (1 << 31) - 1), "uint64": (0, (1 << 32) - 1)}
_PACK: Final = struct.Struct(f"={WORDS}I").pack
_FULL_TYPES: Final = frozenset({*CODES, INDEX}) - {"float16", "bfloat16", *LONG}  # that kernels of CPU drivers take

Operand = Any  # an Array, or a Python number


@dataclass(frozen=True)
class Meaning:
    """What a call means for the types of its operands.

    Attributes:
        kind: the types of its kernels.
        types: of each operand, the dtype's name in which it is stored, that of a number being what it is taken as.
        results: the dtypes in which the results are stored.
        words: what makes int32 of words of several elements, where something does.
    """

    kind: KernelTypes
    types: tuple[str, ...]
    results: tuple[str, ...]
    words: Operation | None = None


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

    def pipeline(self, device: Device, kind: KernelTypes, constants: abi.Specialized, form: str) -> Pipeline:
        """Return a pipeline for one of its kernels."""


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


class Dispatch:
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
        *,
        long: bool,
    ) -> None:
        self._operation, self._meaning, self._views, self._outs = operation, meaning, views, outs
        self._geometry, self._bindings, self._base, self._long = geometry, bindings, base, long
        self._name, self._run = operation.name, self._elements_of_word()

    @classmethod
    def of(
        cls,
        operation: Operation,
        meaning: Meaning,
        views: Sequence[Operand],
        outs: Sequence[Array],
        base: int,
        *,
        longs: Sequence[Array] = (),
    ) -> Dispatch | None:
        """Return it; None where one dispatch cannot do it.

        With ``longs``, words are copied two by two, of these arrays' elements of 64 bits, every second one of rows.
        """
        bound = [views[number] for number in meaning.kind.bound]
        arrays = [*(view for view in bound if isinstance(view, Array)), *outs]
        found = [(place[0], place[1] << bool(longs)) for place in map(binding, longs or arrays) if place is not None]
        if len(found) < len(arrays):
            return None
        geometry = arrange(outs[0].shape, [array.strides for array in arrays], len(outs))
        if geometry is None or (geometry.tile and INDEX in meaning.kind.inputs):
            return None
        numbers = [number for number, view in enumerate(bound) if not isinstance(view, Array)]
        modes, strides = list(geometry.modes), list(geometry.strides)
        for number in numbers:  # bound to the first result, and not read
            modes.insert(number, SCALAR)
            strides.insert(number, (0,) * len(geometry.counts))
            found.insert(number, found[len(found) - len(outs)])
        geometry = replace(geometry, strides=tuple(strides), modes=tuple(modes))
        geometry = replace(geometry, width=cpu.width_of(outs[0].device, geometry))
        used = len(geometry.counts) * (1 + len(modes)) + len(modes) if geometry.tile else 2 + len(modes)
        if used + len(meaning.kind.numbers) > WORDS or len(modes) > outs[0].device.limits.max_storage_buffers:
            return None
        made = cls(operation, meaning, views, outs, geometry, found, base, long=bool(longs))
        return None if longs and not made.picks_long() else made

    def _elements_of_word(self) -> int:
        """Return how many elements are made at once, side by side in a word, and turn to words where it is several."""
        geometry, words, outs = self._geometry, self._meaning.words, self._outs
        run, count = max(4 // outs[0].dtype.itemsize, 1), geometry.counts[0]
        fits = not geometry.tile and ONE not in geometry.modes and (count % run == 0 or self._has_ends)
        if words is None or not fits or any(first % run for _, first in self._bindings):
            return 1
        self._operation, self._geometry = words, replace(geometry, counts=(-(-count // run),))
        self._meaning = replace(self._meaning, kind=KernelTypes(("int32",) * len(self._meaning.types), ("int32",)))
        self._bindings = [(place, first // run) for place, first in self._bindings]
        return run

    def aside(self, place: int, out: Array) -> Array | None:
        """Return where a result has to go first, since kernels write words; None for where it is."""
        number = len(self._bindings) - len(self._outs) + place
        run = 4 // (out.dtype.itemsize * self._run)
        if run <= 1 or self._geometry.fills_words(number, self._bindings[number][1], run):
            return None
        axis = max((axis for axis, length in enumerate(out.shape) if length > 1), default=0)  # that of its rows
        if not self._geometry.tile or not out.ndim or out.shape[axis] % run == 0:
            return out.device.empty(out.shape, out.dtype)
        before, length, after = out.shape[:axis], out.shape[axis], out.shape[axis + 1 :]
        padded = out.device.empty((*before, round_up(length, 4), *after), out.dtype)
        return padded[(slice(None),) * axis + (slice(length),)]

    @property
    def asides(self) -> list[Array | None]:
        """Where each result has to go first; the first one, whose rows all are written by, in C order beside others."""
        found = [self.aside(place, out) for place, out in enumerate(self._outs)]
        first = self._outs[0]
        if found[0] is None and not first.is_contiguous and any(target is not None for target in found):
            found[0] = first.device.empty(first.shape, first.dtype)
        return found

    def run(self, key: tuple[Any, ...] | None, operands: Sequence[Operand], call: Call | None = None) -> None:
        """Run it, and keep its plan where there is a ``key``, or have ``call``, of which it is a part, note it."""
        meaning, outs = self._meaning, self._outs
        device = outs[0].device
        words = self._words()
        grid = self._grid()
        pipeline = self._operation.pipeline(device, meaning.kind, self._constants(grid), self._form)
        ranges = [item for item, _ in self._bindings]
        bound = [operands[number] for number in meaning.kind.bound]
        arrays = [*(operand if isinstance(operand, Array) else outs[0] for operand in bound), *outs]
        unread = [number for number, operand in enumerate(bound) if not isinstance(operand, Array)]
        bindings = bindings_of(pipeline, arrays, ranges, unread=unread)
        device.logical.dispatch(self._name, pipeline, ranges, words.packed(), grid, bindings=bindings)
        if call is not None:
            call.note(pipeline, arrays, ranges, bindings, grid, words.packed())
            return
        if key is None:
            return
        push = b"" if words.places else words.packed()
        plan = make_plan(device, self._name, pipeline, arrays, bindings, grid, push, results=len(outs))
        if plan is not None:
            plan.ask()
            plan.words = words
            plan.order = _order(bound, len(outs))
            device.plans.keep(key, plan)

    def picks_long(self) -> bool:
        """Say whether a kernel copies every second element of 64 bits; words that lie otherwise it has not."""
        return self._eights is not None and self._eights.mode(0) == SECOND

    def goes_by_region(self) -> bool:
        """Say whether the kernel that packs regions is faster: of single elements that no kernel of few tests takes."""
        out, single = self._outs[0], self._geometry.tile and self._geometry.modes[0] == ANY
        return single and out.is_contiguous and self._eights is None and cpu.packs_singles(out.device)

    @property
    def _is_large(self) -> bool:
        """Whether it has invocations to spare on any GPU."""
        return self._geometry.groups >= 1 << 12

    @functools.cached_property
    def _eights(self) -> cpu.Full | None:
        """The kernel with few tests that runs on drivers that test each lane of a vector; None for a usual one."""
        out = self._outs[0]
        if not {*self._meaning.types, *self._meaning.results} <= _FULL_TYPES:
            return None
        firsts = [first for _, first in self._bindings]
        sizes = [8 if self._long else dtypes.resolve(each).itemsize for each in self._stored]
        return cpu.taken(out.device, self._geometry, firsts, len(self._outs), math.prod(self._geometry.counts), sizes)

    @property
    def _stored(self) -> list[str]:
        """The types of all bindings."""
        if self._run > 1:
            return ["int32"] * len(self._bindings)
        return [*(self._meaning.types[number] for number in self._meaning.kind.bound), *self._meaning.results]

    @property
    def _form(self) -> str:
        """Which kernel runs."""
        return self._eights.form if self._eights else TILE if self._geometry.tile else FLAT

    def _grid(self) -> tuple[int, int, int]:
        if self._eights:
            return self._eights.grid()
        return fold_groups(self._outs[0].device, -(-self._geometry.groups // self._blocks()))

    def _blocks(self) -> int:
        """Return how many blocks of four elements an invocation makes."""
        if self._geometry.tile or not may_take_two(self._meaning.kind):
            return 1
        narrow = any(out.dtype.itemsize < 4 for out in self._outs)
        return cpu.blocks_of_halves(self._outs[0].device, large=narrow and self._is_large)

    def _is_whole(self) -> bool:
        """Say whether a flat kernel takes fours alone, the last of them with the padding behind the arrays."""
        if not cpu.leaves_out_tests(self._outs[0].device, large=self._is_large):
            return False
        geometry = self._geometry
        if geometry.counts[0] % 4 == 0:
            return True
        wide = (geometry.is_wide(number, first) for number, (_, first) in enumerate(self._bindings))
        rows = all(is_wide for is_wide, mode in zip(wide, geometry.modes, strict=True) if mode == ROW)
        return rows and self._has_ends

    @property
    def _has_ends(self) -> bool:
        """Whether what follows the results in their last words is padding."""
        return all(out.byte_offset + out.nbytes == out.storage.nbytes for out in self._outs)

    def _constants(self, grid: tuple[int, int, int]) -> abi.Specialized:
        geometry, eights = self._geometry, self._eights
        lying = list(eights.shape(math.prod(grid)) if eights else self._shape())
        for number, (_, first) in enumerate(self._bindings):
            if eights:
                lying += abi.Lying(eights.mode(number), eights.in_eights(number))
            else:
                lying += abi.Lying(geometry.modes[number], geometry.is_wide(number, first))
        return abi.Specialized(tuple(lying), tuple(CODES[dtype] for dtype in self._stored))

    def _shape(self) -> abi.Flat | abi.Tile:
        """Return the constants that say what a work-group of a usual kernel makes."""
        geometry, dims = self._geometry, len(self._geometry.counts)
        if geometry.tile:
            return abi.Tile(geometry.rows, geometry.width, dims)
        return abi.Flat(self._blocks(), self._is_whole(), dims)

    def _words(self) -> Words:
        geometry, kind = self._geometry, self._meaning.kind
        words = Words(kind, self._meaning.types, self._views, self._run)
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


class LongNumberError(InvalidUsageError):
    """A number that no word of its type holds, for which another call may serve: one of 64 bits goes as an array."""


def holds(number: int, dtype: str) -> bool:
    """Say whether a type of whole numbers holds one."""
    return int(np.iinfo(dtype).min) <= number <= int(np.iinfo(dtype).max)


def word_of(number: Any, dtype: str) -> int:
    """Return the bits of a number as float32, or as a whole number of a type of up to 32 bits.

    Raises:
        InvalidUsageError: a whole number that the type does not hold.
    """
    if dtype == "float64":
        if abs(number) < LARGEST and float(np.float32(number)) != number:
            raise LongNumberError(f"the number {shown(number)} is no float32")
        dtype = "float32"
    bounds = _BOUNDS.get(dtype)
    if bounds is not None:
        value = operator.index(number) if not isinstance(number, np.bool_) else int(number)
        if not bounds[0] <= value <= bounds[1]:
            other = dtype in NARROW or (dtype in LONG and holds(value, dtype))
            error = LongNumberError if other else InvalidUsageError
            raise error(f"the number {shown(value)} is no {dtype}")
        return value % (1 << 32)
    try:
        return int.from_bytes(struct.pack("=f", number), "little")
    except (OverflowError, struct.error):  # beyond float32, and whole numbers beyond float64
        return 0x7F800000 if number > 0 else 0xFF800000


class Words:
    """The push constants of a dispatch, numbers filled in, each ``run`` times in its word."""

    def __init__(self, kind: KernelTypes, types: Sequence[str], operands: Sequence[Any], run: int = 1) -> None:
        self._mask = 0xFFFFFFFF >> (32 - 32 // run)
        self._times = 0xFFFFFFFF // self._mask
        self.words = [0] * WORDS
        self.places: list[int] = []  # of the numbers, in order
        self._last: tuple[object, bytes] | None = None  # the only number of the last call, and what came of it
        self._types = [types[number] for number, operand in enumerate(operands) if isinstance(operand, NUMBERS)]
        self.bits = [
            word_of(operand, types[number]) for number, operand in enumerate(operands) if isinstance(operand, NUMBERS)
        ]

    def packed(self) -> bytes:
        """Return them with the numbers of this call."""
        return self._fill(self.bits)

    def __call__(self, numbers: Sequence[Any]) -> bytes:
        """Return them with other numbers; raises as :func:`word_of` does."""
        last = self._last
        if last is not None and last[0] is numbers[0]:
            return last[1]
        packed = self._fill(map(word_of, numbers, self._types))
        if len(numbers) == 1:  # the object itself is kept: 0.0 and -0.0, True and 1 are equal
            self._last = (numbers[0], packed)
        return packed

    def _fill(self, bits: Any) -> bytes:
        words = [*self.words]  # other threads may fill in their numbers meanwhile
        for place, word in zip(self.places, bits, strict=True):
            words[place] = (word & self._mask) * self._times
        return _PACK(*words)
