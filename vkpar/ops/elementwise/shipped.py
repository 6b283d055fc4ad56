"""The package's own elementwise operations on arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.abi.elementwise import Specialized
from vkpar.arrays.array import Array, check_same_device
from vkpar.arrays.operators import operations
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.call.checks import NARROW
from vkpar.ops.elementwise.expressions import FLOATS, INTEGERS, TESTS
from vkpar.ops.elementwise.kinds import TILE, WORDS, KernelTypes
from vkpar.ops.elementwise.run import NarrowTypesError, computed, run
from vkpar.ops.elementwise.table import BUILTINS, Builtin, kind_of
from vkpar.ops.elementwise.ways import Meaning, Operand
from vkpar.text import shown

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.pipelines.kernel import Pipeline

COMPARISONS: Final = frozenset({"equal", "not_equal", "less", "less_equal"})
_TRUTH: Final = COMPARISONS | {*TESTS, "logical_and", "logical_or", "logical_xor"}  # whose results are uint32 0 and 1


class MixedTypesError(UnsupportedError):
    """Arrays, or an array and a number, of which some are floats and some are not.

    Attributes:
        result: the float type that all can be converted to; None of int32 and uint32.
    """

    def __init__(self, message: str, result: str | None = None) -> None:
        super().__init__(message)
        self.result = result


class Shipped:
    """An operation whose kernels ship with the package; see :class:`vkpar.ops.elementwise.ways.Operation`.

    Args:
        name: of the operation in the table of builtins.
        shown: its name in messages, where that is another one.
    """

    outputs = 1

    def __init__(self, name: str, shown: str | None = None) -> None:
        self.name = shown or name
        self.key: Hashable = f"each {name}"
        self._builtin: Builtin = BUILTINS[name]

    def __call__(self, *operands: Operand, out: Array | None = None) -> Array:
        """Run it on arrays and numbers; integers that meet floats are converted first."""
        try:
            return run(self, operands, (out,))[0]
        except NarrowTypesError as error:
            narrow = error
        except MixedTypesError as error:
            return self._mixed(operands, out, error)
        return self._widened(operands, out, narrow)

    def _widened(self, operands: Sequence[Operand], out: Array | None, narrow: NarrowTypesError) -> Array:
        """Run it on integers of 8 and 16 bits, and truth, by way of 32 bits, which wrap alike."""
        arrays = [operand for operand in operands if isinstance(operand, Array)]
        if any(array.dtype.name in ("int64", "uint64", "float64") for array in arrays):
            raise narrow
        check_same_device(*arrays)
        valued = [operand for operand in operands[self._masks :] if isinstance(operand, Array)]
        numbers = [operand for operand in operands[self._masks :] if not isinstance(operand, Array)]
        target = dtypes.result_type(*(array.dtype for array in valued)) if valued else dtypes.int32
        if target == "bool" and any(not isinstance(number, bool | np.bool_) for number in numbers):
            target = dtypes.int32
        if target == "bool" and self.name in ("subtract", "negative"):
            raise UnsupportedError(f"{self.name} of truth values: logical_xor and logical_not are what there is")
        if target.name in NARROW and all(map(_is_whole, numbers)):
            _check_numbers(self.name, target, numbers)
        wide = "uint32" if target == "uint32" else "int32"
        convert = operations["cast"]
        given = [
            convert(operand, wide if number >= self._masks else "uint32")
            if isinstance(operand, Array) and operand.dtype.name in NARROW
            else operand
            for number, operand in enumerate(operands)
        ]
        kept = self._builtin.name in _TRUTH or target.name not in NARROW or not all(map(_is_whole, numbers))
        if kept:
            return self(*given, out=out)
        made: Array = convert(self(*given), target, out=out)
        return made

    def _mixed(self, operands: Sequence[Operand], out: Array | None, mixed: MixedTypesError) -> Array:
        """Run it on integers that meet floats, or each other."""
        if mixed.result is None:
            raise mixed
        convert = operations["cast"]
        converted = [
            convert(operand, mixed.result)
            if number >= self._masks and isinstance(operand, Array) and operand.dtype.name in INTEGERS
            else operand
            for number, operand in enumerate(operands)
        ]
        return run(self, converted, (out,))[0]

    @property
    def _masks(self) -> int:
        """How many of the first operands choose between the others, whatever their type."""
        return 1 if self._builtin.name == "where" else 0

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what a call means: the types that NumPy gives, numbers taking those of the arrays."""
        masks = self._masks
        computed(self.name, *(operand.dtype.name for operand in operands[:masks] if isinstance(operand, Array)))
        result = self._common(operands[masks:])
        types = [operand.dtype.name if isinstance(operand, Array) else result for operand in operands]
        for number, mask in enumerate(operands[:masks]):
            if not isinstance(mask, Array) or types[number] == "int32":  # zero is the same bits
                types[number] = "uint32"
        kind = kind_of(self._builtin, tuple(types))
        if kind is None:
            allowed = " or ".join(dict.fromkeys("floats" if k.open else k.inputs[-1] for k in self._builtin.kinds))
            given = ", ".join(dict.fromkeys(types))
            raise UnsupportedError(f"{self.name} computes {allowed}, not {given}; cast first")
        stored = kind.results[0]
        return Meaning(kind, tuple(types), (stored if stored != kind.inputs[-1] else result,))

    def _common(self, operands: Sequence[Operand]) -> str:
        """Return the dtype that the operands meet in."""
        names = [operand.dtype for operand in operands if isinstance(operand, Array)]
        computed(self.name, *(dtype.name for dtype in names))
        numbers = [operand for operand in operands if not isinstance(operand, Array)]
        floats = any(not _is_whole(number) for number in numbers)
        if not names:
            return "float32" if floats else "int32"
        kinds = {dtype.name for dtype in names}
        if len(kinds) > 1 and not kinds <= set(FLOATS):
            reals = [dtype for dtype in names if dtype.is_float]
            result = dtypes.result_type(*reals).name if reals else "float32" if floats else None
            raise MixedTypesError(f"{self.name}: {' with '.join(sorted(kinds))}: cast one first", result)
        result = dtypes.result_type(*names).name
        if floats and result in INTEGERS:
            raise MixedTypesError(f"{self.name}: {result} with a float: cast the array to float32", "float32")
        return result

    def pipeline(self, device: Device, kind: KernelTypes, constants: Specialized, form: str) -> Pipeline:
        """Return a pipeline for one of its kernels."""
        bindings = len(kind.bound) + len(kind.results)
        if kind.open and form != TILE:
            dtypes_of = zip((*(kind.inputs[n] for n in kind.bound), *kind.results), constants.types, strict=True)
            if all(code == 0 for dtype, code in dtypes_of if dtype in FLOATS):
                kind, constants = kind.closed, Specialized(constants.lying)
        name = self._builtin.kernel(kind, form)
        logical = device.logical
        members = self._builtin.members(kind)
        chosen = (members.index(self._builtin),) if len(members) > 1 else ()
        given = (*constants.lying, *constants.types, *chosen)
        return logical.pipelines.shipped(name, bindings, 4 * WORDS, given, pushes=logical.pushes(bindings))


def _check_numbers(name: str, dtype: dtypes.DType, numbers: Sequence[Any]) -> None:
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    for number in numbers:
        if not low <= int(number) <= high:
            raise InvalidUsageError(f"{name}: the number {shown(number)} is no {dtype}")


def _is_whole(number: object) -> bool:
    return hasattr(number, "__index__") or type(number).__name__ in ("bool_", "bool")


class Comparison(Shipped):
    """A comparison, of int32 with uint32 too: by their bits, and the sign of the one that has it."""

    def _mixed(self, operands: Sequence[Operand], out: Array | None, mixed: MixedTypesError) -> Array:
        if mixed.result is not None:
            return super()._mixed(operands, out, mixed)
        signed = next(operand for operand in operands if operand.dtype == dtypes.int32)
        bits = Array(signed.storage, signed.byte_offset, signed.shape, dtypes.uint32, signed.steps)
        found = run(self, [bits if operand is signed else operand for operand in operands], (None,))[0]
        name = self._builtin.name
        if name == "not_equal" or (name != "equal" and operands[0] is signed):  # true of what is below zero
            return SHIPPED["maximum"](found, SHIPPED["less"](signed, 0), out=out)
        return SHIPPED["multiply"](found, SHIPPED["less_equal"](0, signed), out=out)


SHIPPED: Final = {name: (Comparison if name in COMPARISONS else Shipped)(name) for name in BUILTINS}
