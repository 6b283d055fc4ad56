"""The package's own elementwise operations on arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.abi.elementwise import Specialized
from vkpar.arrays.array import Array
from vkpar.arrays.operators import operations
from vkpar.errors import UnsupportedError
from vkpar.ops.call.call import Call, repeat
from vkpar.ops.call.call import key_of as call_key
from vkpar.ops.call.checks import NARROW, advice
from vkpar.ops.elementwise.expressions import BOOL, FLOATS, INTEGERS, LONG
from vkpar.ops.elementwise.kinds import TILE, WORDS, KernelTypes
from vkpar.ops.elementwise.run import check_operands, computed, kept, key_of, launch, long_way, result_of, run
from vkpar.ops.elementwise.table import BUILTINS, OF_TRUTH, Builtin, kind_of
from vkpar.ops.elementwise.ways import LongNumberError, Meaning, Operand, holds

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.pipelines.kernel import Pipeline

COMPARISONS: Final = frozenset({"equal", "not_equal", "less", "less_equal"})


class MixedTypesError(UnsupportedError):
    """Arrays, or an array and a number, of which some are floats and some are not.

    Attributes:
        result: the type that all can be converted to.
    """

    def __init__(self, message: str, result: str) -> None:
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
        self.name = shown or name.removeprefix("long_")
        self.key: Hashable = f"each {name}"
        self._builtin: Builtin = BUILTINS[name]
        self._recipe = f"converted {self.name}"

    def __call__(self, *operands: Operand, out: Array | None = None) -> Array:
        """Run it on arrays and numbers; integers that meet floats are converted first."""
        try:
            done = kept(self, operands, (out,))
        except LongNumberError:  # no word holds it, unlike that of the earlier call
            done = None
        if done is None and len({getattr(operand, "dtype", None) for operand in operands}) > 1:
            done = repeat(self._recipe, operands, (out,), in_place=True)
        if done is not None:
            return done[0]
        if any(getattr(operand, "dtype", None) in LONG for operand in operands):
            return self._long(operands, out)
        try:
            return long_way(self, operands, (out,))[0]
        except MixedTypesError as error:
            mixed = error
        return self._mixed(operands, out, mixed)

    def _long(self, operands: Sequence[Operand], out: Array | None) -> Array:
        """Run it on arrays of which some are of 64 bits; the others are converted to the type in which all meet."""
        long = SHIPPED.get(f"long_{self._builtin.name}")
        if long is None:
            names = [operand.dtype.name for operand in operands if isinstance(operand, Array)]
            computed(self.name, *names)
        assert long is not None
        arrays = check_operands(self.name, operands, (out,))
        valued = [a for a in operands[self._masks :] if isinstance(a, Array)]
        met = _meet(self.name, valued, [number for number in operands[self._masks :] if not isinstance(number, Array)])
        for dtype in (*(array.dtype for array in arrays), dtypes.resolve(met)):
            check_long(self.name, arrays[0].device, dtype)
        types = [met if number >= self._masks else "bool" for number in range(len(operands))]
        if met not in LONG:
            return self._converted(self, operands, types, out)
        try:
            if any(isinstance(a, Array) and a.dtype != dtype for a, dtype in zip(operands, types, strict=True)):
                return self._converted(long, operands, types, out)
            made = run(long, operands, (out,))[0]
        except LongNumberError:  # no word holds it: an array of one element does
            device = arrays[0].device
            wide = [a if isinstance(a, Array) else device.array(a, met) for a in operands]
            return self._converted(long, wide, types, out)
        plans = arrays[0].device.plans
        plan = plans.known.get(key_of(long, operands, (out,)))  # none where some were converted
        if plan is not None:
            plans.keep(key_of(self, operands, (out,)), plan)
        return made

    def _mixed(self, operands: Sequence[Operand], out: Array | None, mixed: MixedTypesError) -> Array:
        """Run it on integers that meet floats, or each other."""
        if mixed.result in LONG and f"long_{self._builtin.name}" in SHIPPED:
            return self._long(operands, out)
        types = [
            mixed.result if number >= self._masks and isinstance(a, Array) and not a.dtype.is_float else None
            for number, a in enumerate(operands)
        ]
        return self._converted(self, operands, types, out)

    def _converted(
        self, chosen: Shipped, operands: Sequence[Operand], types: Sequence[str | None], out: Array | None
    ) -> Array:
        """Run ``chosen`` on arrays that are converted to ``types`` first, None for those that stay; kept as a recipe.

        With numbers, which recipes do not take, the conversions and the operation are kept each for itself.
        """
        if not all(isinstance(a, Array) for a in operands):
            convert = operations["cast"]
            given = [
                convert(a, dtype) if isinstance(a, Array) and dtype not in (None, a.dtype) else a
                for a, dtype in zip(operands, types, strict=True)
            ]
            return run(chosen, given, (out,))[0]
        arrays = check_operands(self.name, operands, (out,))
        dtypes_of = [
            a.dtype if dtype is None else dtypes.resolve(dtype) for a, dtype in zip(arrays, types, strict=True)
        ]
        device = arrays[0].device
        meaning = chosen.meaning([device.empty(0, dtype) for dtype in dtypes_of])
        made = result_of(self.name, arrays, meaning.results[0], out)
        if not made.size:
            return made
        call = Call(self.name, call_key(self._recipe, arrays, (out,)), arrays, (made,))
        given = []
        for a, dtype in zip(call.operands, dtypes_of, strict=True):
            given.append(a if a.dtype == dtype else call.temporary(a.shape, dtype))
            if given[-1] is not a and a.size:
                operations["cast_in"](call, a, given[-1])
        launch(chosen, meaning, given, call.results, call=call)
        call.keep()
        return made

    @property
    def _masks(self) -> int:
        """How many of the first operands choose between the others, whatever their type."""
        return 1 if self._builtin.name.endswith("where") else 0

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what a call means: the types that NumPy gives, numbers taking those of the arrays."""
        masks = self._masks
        arrays = [operand.dtype for operand in operands if isinstance(operand, Array)]
        if self._builtin.name not in _LONG_NAMES:
            computed(self.name, *(dtype.name for dtype in arrays))
        result, number = self._common(operands[masks:])
        taken = ["bool"] * masks + [number] * (len(operands) - masks)
        types = [a.dtype.name if isinstance(a, Array) else kind for a, kind in zip(operands, taken, strict=True)]
        whole = "uint32" if "uint32" in types[masks:] else "int32"
        bases = [whole if each in NARROW else each for each in types]
        bases[:masks] = ["uint32"] * masks  # zero is the same bits in all
        kind = kind_of(self._builtin, tuple(bases))
        if kind is None:
            allowed = " or ".join(dict.fromkeys("floats" if k.open else k.inputs[-1] for k in self._builtin.kinds))
            given = ", ".join(dict.fromkeys(types))
            raise UnsupportedError(f"{self.name} computes {allowed}, not {given}; cast first")
        stored = kind.results[0]
        results = (stored if stored != kind.inputs[-1] else result,)
        return Meaning(kind, tuple(types), results, self._of_words(*{*types}))

    def _of_words(self, dtype: str, *others: str) -> Shipped | None:
        """Return the function of words of elements that are all of a type of 8 or 16 bits; None where there is none."""
        if others or dtype not in NARROW:
            return None
        name = self._builtin.name
        name = OF_TRUTH.get(name, name) if dtype == BOOL else name
        made = (f"{name}_{dtype}", f"{name}_{8 * dtypes.resolve(dtype).itemsize}", name)
        found = (SHIPPED[each] for each in made if each in SHIPPED)
        return next((each for each in found if name.startswith("bitwise") or not each._builtin.text), None)

    def _common(self, operands: Sequence[Operand]) -> tuple[str, str]:
        """Return the dtype that the operands meet in, and the one that numbers are taken as."""
        names = [operand.dtype for operand in operands if isinstance(operand, Array)]
        numbers = [operand for operand in operands if not isinstance(operand, Array)]
        floats = any(not _is_whole(number) for number in numbers)
        if not names:
            result = "float32" if floats else "int32"
            return result, result
        reals = [dtype for dtype in names if dtype.is_float]
        if 0 < len(reals) < len(names) or (floats and not reals):
            met = dtypes.result_type(*reals).name if reals else "float32"
            raise MixedTypesError(f"{self.name}: whole numbers with floats: cast one first", met)
        result = dtypes.result_type(*names).name
        if result not in FLOATS and result not in INTEGERS and result not in NARROW and len({*names}) > 1:
            given = " with ".join(sorted({dtype.name for dtype in names}))
            raise MixedTypesError(f"{self.name}: {given}: cast one first", result)
        if result == "bool" and any(not isinstance(number, bool | np.bool_) for number in numbers):
            result = "int32"
        if result == "bool" and self.name in ("subtract", "negative"):
            raise UnsupportedError(f"{self.name} of truth values: logical_xor and logical_not are what there is")
        truth = self._builtin.kinds[0].results[0] == BOOL and result in NARROW  # any number of 32 bits can be compared
        fits = not truth or result == BOOL or all(holds(number, result) for number in numbers)
        return result, result if fits else "int32"

    def pipeline(self, device: Device, kind: KernelTypes, constants: Specialized, form: str) -> Pipeline:
        """Return a pipeline for one of its kernels."""
        bindings = len(kind.bound) + len(kind.results)
        if kind.open and form != TILE:
            dtypes_of = zip((*(kind.inputs[n] for n in kind.bound), *kind.results), constants.types, strict=True)
            if all(code == 0 for dtype, code in dtypes_of if dtype in FLOATS):
                kind = kind.closed
        name = self._builtin.kernel(kind, form)
        logical = device.logical
        members = self._builtin.members(kind)
        chosen = (members.index(self._builtin),) if len(members) > 1 else ()
        given = (*constants.lying, *constants.types, *chosen)
        return logical.pipelines.shipped(name, bindings, 4 * WORDS, given, pushes=logical.pushes(bindings))


def _meet(name: str, arrays: Sequence[Array], numbers: Sequence[Any]) -> str:
    """Return the type in which arrays meet, of which some are of 64 bits: that of the floats, if any."""
    reals = [array.dtype for array in arrays if array.dtype.is_float]
    if not reals and not all(map(_is_whole, numbers)):
        return "float32"
    met = dtypes.result_type(*(reals or [array.dtype for array in arrays])) if arrays else dtypes.int32
    if met == "float64" and not reals:
        raise UnsupportedError(f"{name}: int64 with uint64 would be float64: cast one first")
    return met.name


def check_long(name: str, device: Device, dtype: dtypes.DType) -> None:
    """Refuse elements of 64 bits where a device does not compute them.

    Raises:
        UnsupportedError: it does not.
    """
    features = device.info.features
    if (dtype == "float64" and not features.float64) or (dtype.name in ("int64", "uint64") and not features.int64):
        raise UnsupportedError(f"{name}: {device} does not compute {dtype}{advice(dtype)}")


def _is_whole(number: object) -> bool:
    return hasattr(number, "__index__") or type(number).__name__ in ("bool_", "bool")


class Comparison(Shipped):
    """A comparison, of int32 with uint32 too: by their bits, and the sign of the one that has it."""

    def _mixed(self, operands: Sequence[Operand], out: Array | None, mixed: MixedTypesError) -> Array:
        if mixed.result not in LONG:
            return super()._mixed(operands, out, mixed)
        operands = [operations["cast"](a, "int32") if a.dtype.numpy.kind == "i" else a for a in operands]
        signed = next(operand for operand in operands if operand.dtype == dtypes.int32)
        bits = Array(signed.storage, signed.byte_offset, signed.shape, dtypes.uint32, signed.steps)
        found = run(self, [bits if operand is signed else operand for operand in operands], (None,))[0]
        name = self._builtin.name
        if name == "not_equal" or (name != "equal" and operands[0] is signed):  # true of what is below zero
            return SHIPPED["maximum"](found, SHIPPED["less"](signed, 0), out=out)
        return SHIPPED["multiply"](found, SHIPPED["less_equal"](0, signed), out=out)


_LONG_NAMES: Final = frozenset(name for name in BUILTINS if name.startswith("long_"))
SHIPPED: Final = {name: (Comparison if name in COMPARISONS else Shipped)(name) for name in BUILTINS}
