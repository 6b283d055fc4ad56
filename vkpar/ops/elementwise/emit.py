"""The GLSL of elementwise expressions, for given types; no Vulkan."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np

from vkpar import dtypes
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.elementwise.expressions import (
    BINARY,
    BOOL,
    CASTS,
    COMPARE,
    CONSTANTS,
    FLOATS,
    INDEX_NAME,
    INTEGERS,
    LOGIC,
    OF_TWO_FLOATS,
    OPERATORS,
    TESTS,
    WEAK,
    WEAK_FLOAT,
    WEAK_INT,
    Expression,
    fault,
    glsl_type,
    may_cancel,
    opaque,
    operator_of,
)

_FOLD: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """What an expression means for inputs of certain types.

    Attributes:
        body: GLSL statements that set ``y0``, ``y1``, ... from ``x0``, ``x1``, ... (by number of the input).
        results: the dtypes of the outputs.
        functions: the names of the GLSL functions that the body calls.
    """

    body: tuple[str, ...]
    results: tuple[str, ...]
    functions: frozenset[str]


@dataclass(frozen=True)
class _Value:
    """A part of an expression: GLSL of its type, and the number that it is where it is one.

    ``varies`` where it is an input, or made of inputs by arithmetic of floats: no compiler takes it for a constant.
    """

    code: str
    type: str
    number: int | float | None = None
    varies: bool = False


@functools.lru_cache(maxsize=1024)
def typed(expression: Expression, types: tuple[str, ...]) -> Typed:
    """Return what an expression means where its inputs are of ``types``: dtypes' names, ``weak int``, ``weak float``.

    Raises:
        InvalidUsageError, UnsupportedError: a part that these types do not have; the message shows where.
    """
    given = types[:-1] if expression.indexed else types
    given = tuple("uint32" if kind == "index" else kind for kind in given)
    emitter = _Emitter(expression.text, dict(zip(expression.inputs, given, strict=True)), expression.inputs)
    if expression.indexed:
        emitter.values[INDEX_NAME] = _Value(f"int(x{len(given)})", WEAK_INT)
    body: list[str] = []
    results: list[str] = []
    for number, (name, node) in enumerate(expression.statements):
        try:
            value = emitter.visit(node)
        except RecursionError:
            fault(expression.text, node, "the parts of this expression lie too deep in each other")
        stored = {BOOL: BOOL, WEAK_INT: "int32", WEAK_FLOAT: "float32"}.get(value.type, value.type)
        body.append(f"{glsl_type(stored)} v{number} = {emitter.coerced(value, stored, node)};")
        emitter.values[name] = _Value(f"v{number}", stored, varies=value.varies)
        if name in expression.outputs:
            y = f"uint(v{number})" if stored == BOOL else f"v{number}"
            body.append(f"y{len(results)} = {y};")
            results.append(stored)
    return Typed(tuple(body), tuple(results), frozenset(emitter.functions))


def _input(number: int, kind: str) -> _Value:
    return _Value(f"(x{number} != 0u)" if kind == BOOL else f"x{number}", kind, varies=kind != BOOL)


class _Emitter:
    """Makes GLSL of the parts of an expression."""

    def __init__(self, text: str, types: Mapping[str, str], order: tuple[str, ...]) -> None:
        self._text = text
        self.values = {name: _input(order.index(name), kind) for name, kind in types.items()}
        self.functions: set[str] = set()

    def fault(self, node: ast.AST, message: str, kind: type[Exception] = InvalidUsageError) -> NoReturn:
        fault(self._text, node, message, kind)

    def visit(self, node: ast.expr) -> _Value:
        """Return the value of a part."""
        made: Callable[[Any], _Value] = getattr(self, f"_{type(node).__name__.lower()}")
        return made(node)

    # --- leaves ---

    def _constant(self, node: ast.Constant) -> _Value:
        if isinstance(node.value, bool):
            return _Value(str(node.value).lower(), BOOL)
        if not isinstance(node.value, (int, float)):
            self.fault(node, f"{node.value!r} is no number")
        return _Value("", WEAK_INT if isinstance(node.value, int) else WEAK_FLOAT, node.value)

    def _name(self, node: ast.Name) -> _Value:
        if node.id in CONSTANTS:
            return _Value("", WEAK_FLOAT, CONSTANTS[node.id])
        return self.values[node.id]

    # --- operators ---

    def _unaryop(self, node: ast.UnaryOp) -> _Value:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _Value(f"(!{self._truth(value, node.operand)})", BOOL)
        if isinstance(node.op, ast.Invert):
            if value.type == BOOL:
                return _Value(f"(!{value.code})", BOOL)
            self._need_integers(node, value)
            return _Value(f"(~{self.coerced(value, value.type, node)})", value.type)
        sign = -1 if isinstance(node.op, ast.USub) else 1
        if value.number is not None:
            return _Value("", value.type, sign * value.number)
        if value.type == BOOL:
            value = _Value(self.coerced(value, "int32", node), "int32")
        return value if sign == 1 else _Value(f"(-{value.code})", value.type, varies=value.varies)

    def _binop(self, node: ast.BinOp) -> _Value:
        sign = BINARY.get(type(node.op))
        if sign is None:
            self.fault(node, "this operator cannot stand in an expression; + - * / // % ** & | ^ << >> can")
        a, b = self.visit(node.left), self.visit(node.right)
        if a.number is not None and b.number is not None:
            return self._folded(node, sign, a.number, b.number)
        return self._binary(node, sign, a, b)

    def _folded(self, node: ast.BinOp, sign: str, a: Any, b: Any) -> _Value:
        """Compute a part that is made of numbers alone, as Python does."""
        try:
            if (sign == "**" and abs(b) > 64) or (sign == "<<" and b > 64):
                a = float(a)  # no huge whole number
            made: Any = _FOLD[sign](a, b)
        except (ArithmeticError, TypeError, ValueError) as error:
            self.fault(node, str(error.args[-1]))
        if not isinstance(made, (int, float)):
            self.fault(node, "this is no real number")
        return _Value("", WEAK_INT if isinstance(made, int) else WEAK_FLOAT, made)

    def _binary(self, node: ast.BinOp, sign: str, a: _Value, b: _Value) -> _Value:
        if sign in "&|^" and a.type == b.type == BOOL:
            return _Value(f"({a.code} {dict(zip('&|^', ('&&', '||', '^^'), strict=True))[sign]} {b.code})", BOOL)
        if sign == "**":
            return self._power(node, node.right, a, b)
        both = self._promoted(node, a, b)
        if sign in ("&", "|", "^", "<<", ">>"):
            self._need_integers(node, a, b)
        if sign == "/" and both in (*INTEGERS, WEAK_INT):
            self.fault(node, f"/ of {both} would be float64: write // or float32(...)", UnsupportedError)
        x, y = self.coerced(a, both, node.left), self.coerced(b, both, node.right)
        if sign in ("*", "/", "//", "%") and glsl_type(both) == "float":
            x, y = _unfolded(a, x), _unfolded(b, y)
        if sign in ("+", "-") and glsl_type(both) == "float" and may_cancel(a.code, b.code):
            y = opaque(y)
        if sign in ("//", "%"):
            name = {"//": "floor_divide", "%": "modulo"}[sign] + f"_{glsl_type(both)}"
            return self._called(name, both, x, y)
        if sign in ("<<", ">>"):
            return self._called(f"shift_{'left' if sign == '<<' else 'right'}_{glsl_type(both)}", both, x, y)
        return _Value(f"({x} {sign} {y})", both, varies=(a.varies or b.varies) and glsl_type(both) == "float")

    def _power(self, node: ast.expr, right: ast.expr, a: _Value, b: _Value) -> _Value:
        both = self._promoted(node, a, b)
        if isinstance(b.number, int) and abs(b.number) <= 16 and (b.number >= 0 or both in (*FLOATS, WEAK_FLOAT)):
            made = self._called(f"power_{glsl_type(both)}", both, self.coerced(a, both, node), f"{abs(b.number)}u")
            return made if b.number >= 0 else _Value(f"(1.0 / {made.code})", both)
        if both in (*INTEGERS, WEAK_INT):
            self.fault(right, "the power of an integer is a whole number from 0 to 16 in the expression itself")
        return self._called("pow", both, self.coerced(a, both, node), self.coerced(b, both, right))

    def _compare(self, node: ast.Compare) -> _Value:
        parts, left = [], node.left
        for comparison, right in zip(node.ops, node.comparators, strict=True):
            sign = COMPARE.get(type(comparison))
            if sign is None:
                self.fault(right, "this comparison cannot stand in an expression; < <= > >= == != can")
            a, b = self.visit(left), self.visit(right)
            both = self._promoted(node, a, b)
            x, y = self.coerced(a, both, left), self.coerced(b, both, right)
            if glsl_type(both) == "float" and sign in ("==", "!="):
                parts.append(self._called("equal" if sign == "==" else "not_equal", BOOL, x, y).code)
            else:
                parts.append(f"({x} {sign} {y})")
            left = right
        return _Value(parts[0] if len(parts) == 1 else f"({' && '.join(parts)})", BOOL)

    def _boolop(self, node: ast.BoolOp) -> _Value:
        sign = " && " if isinstance(node.op, ast.And) else " || "
        return _Value(f"({sign.join(self._truth(self.visit(part), part) for part in node.values)})", BOOL)

    def _ifexp(self, node: ast.IfExp) -> _Value:
        return self._select(node, node.test, node.body, node.orelse)

    def _select(self, node: ast.expr, test: ast.expr, first: ast.expr, second: ast.expr) -> _Value:
        truth, a, b = self._truth(self.visit(test), test), self.visit(first), self.visit(second)
        both = BOOL if a.type == b.type == BOOL else self._promoted(node, a, b)
        return _Value(f"({truth} ? {self.coerced(a, both, first)} : {self.coerced(b, both, second)})", both)

    # --- functions ---

    def _call(self, node: ast.Call) -> _Value:
        assert isinstance(node.func, ast.Name)  # checked when the text was parsed
        name = node.func.id
        if name == "where":
            return self._select(node, *node.args)
        if name in OPERATORS or name in ("square", "reciprocal", "invert", "logical_not"):
            return self.visit(operator_of(node, name))
        values = [self.visit(part) for part in node.args]
        if name == "pow":
            return self._power(node, node.args[1], *values)
        if name in ("min", "max", "clip"):
            return self._extreme(node, name, values)
        if name in LOGIC:
            return self._logic(node, name, values)
        if name in OF_TWO_FLOATS:
            return self._of_two(node, name, values)
        return self._of_one(node, name, values[0])

    def _extreme(self, node: ast.Call, name: str, values: list[_Value]) -> _Value:
        both = functools.reduce(lambda kind, value: self._promoted(node, _Value("", kind), value), values, BOOL)
        codes = [self.coerced(value, both, part) for value, part in zip(values, node.args, strict=True)]
        if name == "clip":
            low = self._called(f"max_{glsl_type(both)}", both, codes[0], codes[1])
            return self._called(f"min_{glsl_type(both)}", both, low.code, codes[2])
        return functools.reduce(
            lambda a, code: self._called(f"{name}_{glsl_type(both)}", both, a.code, code),
            codes[1:],
            _Value(codes[0], both),
        )

    def _logic(self, node: ast.Call, name: str, values: list[_Value]) -> _Value:
        sign = {"logical_and": "&&", "logical_or": "||", "logical_xor": "^^"}[name]
        a, b = (self._truth(value, part) for value, part in zip(values, node.args, strict=True))
        return _Value(f"({a} {sign} {b})", BOOL)

    def _of_two(self, node: ast.Call, name: str, values: list[_Value]) -> _Value:
        """Return a function of two floats."""
        both = self._promoted(node, *values)
        if both in INTEGERS:
            self.fault(node, f"{name} of {both} would be float64: write float32(...)", UnsupportedError)
        both = both if both in FLOATS else WEAK_FLOAT
        codes = [self.coerced(value, both, part) for value, part in zip(values, node.args, strict=True)]
        return self._called(name, both, *codes)

    def _of_one(self, node: ast.Call, name: str, value: _Value) -> _Value:
        argument = node.args[0]
        if name in CASTS:
            code = self.coerced(value, CASTS[name], argument, cast=True)
            return _Value(code, CASTS[name], varies=value.varies and CASTS[name] == "float32")
        kind = WEAK_INT if value.type == BOOL else value.type  # what is made of numbers alone stays weak
        if name in ("abs", "sign", "relu"):
            return self._called(f"{name}_{glsl_type(kind)}", kind, self.coerced(value, kind, argument))
        if value.type in INTEGERS:
            self.fault(argument, f"{name} of {value.type} would be float64: write float32(...)", UnsupportedError)
        kind = kind if kind in FLOATS else WEAK_FLOAT
        made = self._called(name, BOOL if name in TESTS else kind, self.coerced(value, kind, argument))
        return replace(made, varies=value.varies and name not in TESTS)

    # --- types ---

    def _called(self, name: str, kind: str, *codes: str) -> _Value:
        self.functions.add(name)
        return _Value(f"f_{name}({', '.join(codes)})", kind)

    def _truth(self, value: _Value, node: ast.expr) -> str:
        if value.type == BOOL:
            return value.code
        kind = "float32" if value.type in (*FLOATS, WEAK_FLOAT) else value.type
        return f"({self.coerced(value, kind, node)} != {self.coerced(_Value('', WEAK_INT, 0), kind, node)})"

    def _need_integers(self, node: ast.expr, *values: _Value) -> None:
        if any(value.type in (*FLOATS, WEAK_FLOAT) for value in values):
            self.fault(node, "~ & | ^ << >> take integers and truth values", UnsupportedError)

    def _promoted(self, node: ast.expr, a: _Value, b: _Value) -> str:
        """Return the type in which two values meet."""
        one, other = a.type, b.type
        if one in WEAK and other in WEAK:
            return max(one, other, WEAK_INT, key=WEAK.index)
        if one in WEAK or other in WEAK:
            weak, strong = (one, other) if one in WEAK else (other, one)
            if weak == WEAK_FLOAT and strong in INTEGERS:
                self.fault(node, f"{strong} with a float would be float64: write float32(...)", UnsupportedError)
            return strong
        if one != other and (one in INTEGERS or other in INTEGERS):
            self.fault(
                node, f"{one} with {other} would be {_numpy_result(one, other)}: cast one first", UnsupportedError
            )
        return dtypes.result_type(dtypes.resolve(one), dtypes.resolve(other)).name

    def coerced(self, value: _Value, kind: str, node: ast.AST, *, cast: bool = False) -> str:
        """Return GLSL of the value as another type; ``cast`` turns floats to integers, too."""
        target = glsl_type(kind)
        if value.number is not None:
            return self._literal(value.number, target, node)
        source = glsl_type(value.type)
        if source == target:
            return value.code
        if "double" in (source, target):
            return f"{target}({value.code})"
        if source == "float":
            assert cast
            return self._called(f"{target}_of_float", kind, value.code).code
        if (source, target) == ("uint", "float"):
            return self._called("float_of_uint", kind, value.code).code
        return f"{target}({value.code})"

    def _literal(self, number: int | float, target: str, node: ast.AST) -> str:
        if target == "float":
            try:
                return _float_literal(number)
            except OverflowError:
                self.fault(node, "this whole number is larger than any float")
        low, high = (-(1 << 31), 1 << 31) if target == "int" else (0, 1 << 32)
        if not low <= int(number) < high if isinstance(number, int) else True:
            self.fault(node, f"{number} is no {target}32")
        return f"{int(number) % (1 << 32)}u" if target == "uint" else f"int({int(number) % (1 << 32)}u)"


def _unfolded(value: _Value, code: str) -> str:
    """Return GLSL of a value as no compiler's constant where one may find it to be zero: ``0 if x > 0 else 0``.

    lavapipe takes 0 * x and 0 / x for 0 whatever x is, and leaves out everything that needs x / 0.
    """
    if value.number is not None and _float32(value.number) == 0:
        sign = " | 0x80000000u" if np.signbit(value.number) else ""
        return f"uintBitsToFloat((gl_NumWorkGroups.x >> 31){sign})"
    if value.number is not None or value.varies:
        return code
    return opaque(code)


def _float32(number: float) -> np.float32:
    """Return a number rounded to float32, what is beyond it as infinity, without NumPy's warning."""
    with np.errstate(over="ignore"):
        return np.float32(number)


def _float_literal(number: float) -> str:
    value = _float32(number)
    if not np.isfinite(value):
        return f"uintBitsToFloat({int(value.view(np.uint32))}u)"
    text = str(value)
    return f"({text})" if any(sign in text for sign in ".e") else f"({text}.0)"


def _numpy_result(one: str, other: str) -> str:
    floats = {"bfloat16": "float32"}
    return str(np.result_type(floats.get(one, one), floats.get(other, other)))
