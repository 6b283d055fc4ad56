"""The package's own elementwise operations: their expressions, and the kernels of them that ship; no Vulkan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vkpar.ops.elementwise.emit import Typed, typed
from vkpar.ops.elementwise.expressions import ACTIVATIONS, BOOL, FLOATS, INTEGERS, LONG, TESTS, parse
from vkpar.ops.elementwise.generate import may_be_full, source
from vkpar.ops.elementwise.kinds import FLAT, FULL, INDEX, ROWS, TILE, KernelTypes

# Functions of one float that share their kernels.
OF_ONE: Final = (
    "floor", "ceil", "round", "trunc", "sign", "square", "reciprocal", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "sinh", "cosh", "log2", "log10", "log1p", "expm1", "exp2", "erf",
)  # fmt: skip
# What kernels are called after.
_SHORT: Final = {
    "float32": "f32", "int32": "i32", "uint32": "u32", BOOL: "truth", "int64": "i64", "uint64": "u64", "float64": "f64",
}  # fmt: skip
# Functions of words, by types or numbers of bits.
_WORDS: Final = {
    ("add", "subtract", "multiply"): ("8", "16"),
    ("maximum", "minimum"): ("uint8", "int8", "uint16", "int16"),
    ("less", "less_equal"): ("uint8", "int8"),
    ("equal", "not_equal", "logical_and", "logical_or", "logical_xor", "logical_equal"): ("8",),
}
# What functions of truth values are, of which any bits but zeros say that one holds.
OF_TRUTH: Final = {
    "add": "logical_or", "maximum": "logical_or", "bitwise_or": "logical_or", "multiply": "logical_and",
    "minimum": "logical_and", "bitwise_and": "logical_and", "bitwise_xor": "logical_xor", "not_equal": "logical_xor",
    "equal": "logical_equal",
}  # fmt: skip


@dataclass(frozen=True)
class Builtin:
    """An operation that ships.

    Attributes:
        name: of the operation.
        text: its expression; nothing of functions of words, of which each holds several elements side by side.
        kinds: the types that there are kernels of, by name: for each input and result.
        family: of operations that share their kernels, of which a specialization constant says which one is meant.
    """

    name: str
    text: str
    kinds: tuple[KernelTypes, ...]
    family: str = ""

    def kernels(self) -> Iterator[tuple[str, KernelTypes, str]]:
        """Yield the name of each kernel, its types, and its form; those of a family with its first member."""
        for kind in self.kinds:
            if self.members(kind)[0] is not self:
                continue
            forms = [(kind, FLAT)]
            if INDEX not in kind.inputs:  # these make new arrays, whose elements lie side by side
                forms.append((kind, TILE))
            if kind.open:
                forms.append((kind.closed, FLAT))
            if may_be_full(kind.closed):
                forms.append((kind.closed, FULL))
                if INDEX not in kind.inputs:
                    forms.append((kind.closed, ROWS))
            yield from ((self.kernel(types, form), types, form) for types, form in forms)

    def kernel(self, kind: KernelTypes, form: str) -> str:
        """Return the name of a kernel."""
        types = dict.fromkeys(kind.inputs + kind.results)
        short = "_".join(_SHORT[dtype] for dtype in types if dtype != INDEX)
        return f"each_{self.family or self.name}_{'any' if kind.open else short}_{form}"

    def glsl(self, kind: KernelTypes, form: str) -> str:
        """Return the GLSL of a kernel."""
        chosen = [each for each in self.members(kind) if each.text or form in (FLAT, FULL)]
        return source([each.meaning(kind) for each in chosen], kind, form)

    def meaning(self, kind: KernelTypes) -> Typed:
        """Return what it means for the types of a kernel."""
        if self.text:
            return typed(parse(self.text), kind.inputs)
        return Typed((f"y0 = f_{self.name}(x0, x1);",), kind.results, frozenset({self.name}))

    def members(self, kind: KernelTypes) -> list[Builtin]:
        """Return the operations that have a kernel in common."""
        if not self.family:
            return [self]
        return [
            other
            for other in BUILTINS.values()
            if other.family == self.family and any(kind in (mine, mine.closed) for mine in other.kinds)
        ]


def _floats(inputs: int, result: str = "float32") -> tuple[KernelTypes, ...]:
    return (KernelTypes(("float32",) * inputs, (result,), open=True),)


def _integers(inputs: int, *dtypes: str, result: str | None = None) -> tuple[KernelTypes, ...]:
    return tuple(KernelTypes((dtype,) * inputs, (result or dtype,)) for dtype in dtypes)


def _all(inputs: int, *dtypes: str, result: str | None = None) -> tuple[KernelTypes, ...]:
    return _floats(inputs, result or "float32") + _integers(inputs, *dtypes, result=result)


def _table() -> Iterator[Builtin]:
    # Of what the bits of int32 and uint32 make no difference to there are kernels for int32 alone.
    for name, sign in (("add", "+"), ("subtract", "-"), ("multiply", "*")):
        yield Builtin(name, f"y = a {sign} b", _all(2, "int32"), "arithmetic")
    yield Builtin("divide", "y = a / b", _floats(2))
    yield Builtin("power", "y = pow(a, b)", _floats(2))
    for name, function in (("maximum", "max"), ("minimum", "min")):
        yield Builtin(name, f"y = {function}(a, b)", _all(2, *INTEGERS), "arithmetic")
    yield Builtin("squared_distance", "y = (a - b) * (a - b)", _floats(2), "arithmetic")
    for name, sign in (("equal", "=="), ("not_equal", "!=")):
        yield Builtin(name, f"y = a {sign} b", _all(2, "int32", result=BOOL), "comparison")
    for name, sign in (("less", "<"), ("less_equal", "<=")):
        yield Builtin(name, f"y = a {sign} b", _all(2, *INTEGERS, result=BOOL), "comparison")
    for name in ("exp", "log", "sqrt", "rsqrt", *ACTIVATIONS[1:]):
        yield Builtin(name, f"y = {name}(x)", _floats(1))
    yield Builtin("negative", "y = -x", _all(1, "int32"))
    yield Builtin("abs", "y = abs(x)", _all(1, "int32"))
    yield Builtin("relu", "y = relu(x)", _all(1, "int32"))
    masked = KernelTypes(("uint32", "float32", "float32"), ("float32",), open=True)
    yield Builtin("where", "y = where(c, a, b)", (masked, KernelTypes(("uint32", "int32", "int32"), ("int32",))))
    yield Builtin("fill", "y = x", _all(1, "int32"))
    yield Builtin("move", "y = x", _integers(1, "uint32"))  # any elements of up to 32 bits, bit for bit
    to_float = [KernelTypes((dtype,), ("float32",), open=True) for dtype in INTEGERS]
    to_integer = [KernelTypes(("float32",), (dtype,), open=True) for dtype in INTEGERS]
    yield Builtin("from_int32", "y = float32(x)", (to_float[0],))
    yield Builtin("from_uint32", "y = float32(x)", (to_float[1],))
    yield Builtin("to_int32", "y = int32(x)", (to_integer[0],))
    yield Builtin("to_uint32", "y = uint32(x)", (to_integer[1],))
    kept = KernelTypes(("float32",) * 3, ("int32",), open=True)
    yield Builtin("to_narrow", "y = int32(clip(x, low, high))", (kept,))
    yield from _families()
    yield from _long()
    steps = KernelTypes((INDEX, "float32", "float32"), ("float32",), open=True)
    whole = KernelTypes((INDEX, "int32", "int32"), ("int32",))
    yield Builtin("arange", "y = start + step * float32(i)", (_reordered(steps),))
    yield Builtin("arange_whole", "y = start + step * int32(i)", (_reordered(whole),))


def _families() -> Iterator[Builtin]:
    for name in OF_ONE:
        yield Builtin(name, f"y = {name}(x)", _floats(1), "unary")
    for name in TESTS:
        yield Builtin(name, f"y = {name}(x)", _floats(1, BOOL), "test")
    for name in ("arctan2", "hypot"):
        yield Builtin(name, f"y = {name}(a, b)", _floats(2), "binary")
    for name in ("mod", "floor_divide"):
        yield Builtin(name, f"y = {name}(a, b)", _all(2, *INTEGERS), "binary")
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift"):
        yield Builtin(name, f"y = {name}(a, b)", _integers(2, "int32"), "binary")
    yield Builtin("right_shift", "y = right_shift(a, b)", _integers(2, *INTEGERS), "binary")
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Builtin(name, f"y = {name}(a, b)", _all(2, "int32", result=BOOL), "logic")
    yield Builtin("clip", "y = clip(x, low, high)", _all(3, *INTEGERS))
    for names, kinds in _WORDS.items():
        for name, kind in itertools.product(names, kinds):
            yield Builtin(f"{name}_{kind}", "", _integers(2, "int32"), "binary")


def _long() -> Iterator[Builtin]:
    """Yield what there is of 64 bits, by names that begin so."""
    signs = {"add": "+", "subtract": "-", "multiply": "*"}
    for name, text in {name: f"y = a {sign} b" for name, sign in signs.items()}.items():
        yield Builtin(f"long_{name}", text, _integers(2, *LONG), "long")
    for name, function in (("maximum", "max"), ("minimum", "min")):
        yield Builtin(f"long_{name}", f"y = {function}(a, b)", _integers(2, *LONG), "long")
    yield Builtin("long_divide", "y = a / b", _integers(2, "float64"), "long")
    for name in ("mod", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
        yield Builtin(f"long_{name}", f"y = {name}(a, b)", _integers(2, "int64", "uint64"), "long")
    for name, sign in (("equal", "=="), ("not_equal", "!="), ("less", "<"), ("less_equal", "<=")):
        yield Builtin(f"long_{name}", f"y = a {sign} b", _integers(2, *LONG, result=BOOL), "long_test")
    masked = tuple(KernelTypes(("uint32", dtype, dtype), (dtype,)) for dtype in LONG)
    yield Builtin("long_where", "y = where(c, a, b)", masked)
    yield Builtin("long_from_float32", "y = x", (KernelTypes(("float32",), ("float64",)),))
    yield Builtin("long_to_float32", "y = float32(x)", (KernelTypes(("float64",), ("float32",)),))


def _reordered(kind: KernelTypes) -> KernelTypes:
    """Return the kind with its first input last, as the names of ``start + step * i`` come."""
    return KernelTypes((*kind.inputs[1:], kind.inputs[0]), kind.results, kind.open)


BUILTINS: Final = {builtin.name: builtin for builtin in _table()}


def kind_of(builtin: Builtin, dtypes: tuple[str, ...]) -> KernelTypes | None:
    """Return the kernels' types for inputs of ``dtypes``, those of scalars included; None where there are none."""
    for kind in builtin.kinds:
        if all(_serves(mine, given) for mine, given in zip(kind.inputs, dtypes, strict=True)):
            return kind
    same_bits = {"uint32": "int32"}
    if any(dtype in same_bits for dtype in dtypes) and not any(dtype in FLOATS for dtype in dtypes):
        return next((kind for kind in builtin.kinds if "int32" in kind.inputs and not kind.open), None)
    return None


def _serves(mine: str, given: str) -> bool:
    return mine == given or (mine in FLOATS and given in FLOATS)
