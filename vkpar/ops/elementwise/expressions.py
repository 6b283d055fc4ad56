"""Elementwise expressions: their text, and what it is made of; no Vulkan.

An expression is a Python one, parsed by Python's own ``ast`` and never evaluated. Values have the type of an array's
elements, or are *weak*, as Python's numbers are in NumPy: they take the type of what they meet. Truth values are weak,
too, and are stored as bool.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

import numpy as np

from vkpar.errors import InvalidUsageError

FLOATS: Final = ("float32", "float16", "bfloat16")
INTEGERS: Final = ("int32", "uint32")
LONG: Final = {"int64": "int64_t", "uint64": "uint64_t", "float64": "double"}  # of 64 bits, and what GLSL calls them
BOOL: Final = "bool"
WEAK_INT: Final = "weak int"
WEAK_FLOAT: Final = "weak float"
WEAK: Final = (BOOL, WEAK_INT, WEAK_FLOAT)
CONSTANTS: Final = {"pi": np.pi, "inf": np.inf, "nan": np.nan}
INDEX_NAME: Final = "index"  # of the number of the element, counted in C order
_NAMES: Final = re.compile(r"\b[xv]\d+\b")  # in GLSL: of inputs, and of what is made of them
_RESERVED: Final = ("out", "True", "False", "None")

# Those functions of one number that products apply to their results, too; of floats alone, but for relu.
ACTIVATIONS: Final = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
# Functions of one float, by what they are called in expressions.
OF_FLOATS: Final = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "sinh", "cosh", "erf", "floor", "ceil", "round", "trunc", *ACTIVATIONS[1:],
)  # fmt: skip
TESTS: Final = ("isnan", "isinf", "isfinite")
OF_TWO_FLOATS: Final = ("arctan2", "hypot")
CASTS: Final = {"float32": "float32", "int32": "int32", "uint32": "uint32"}

BINARY: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip

# NumPy's names of operators.
OPERATORS: Final[dict[str, ast.operator]] = {
    "mod": ast.Mod(), "floor_divide": ast.FloorDiv(), "bitwise_and": ast.BitAnd(), "bitwise_or": ast.BitOr(),
    "bitwise_xor": ast.BitXor(), "left_shift": ast.LShift(), "right_shift": ast.RShift(),
}  # fmt: skip
LOGIC: Final = ("logical_and", "logical_or", "logical_xor")
_COUNTS: Final = {
    **dict.fromkeys((*OF_TWO_FLOATS, *OPERATORS, *LOGIC, "pow"), (2, 2)),
    **dict.fromkeys(("min", "max"), (2, 8)),
    **dict.fromkeys(("where", "clip"), (3, 3)),
}
FUNCTIONS: Final = tuple(
    sorted(
        {*OF_FLOATS, *OF_TWO_FLOATS, *TESTS, *CASTS, *OPERATORS, *LOGIC, *_COUNTS}
        | {"abs", "sign", "relu", "square", "reciprocal", "invert", "logical_not"}
    )
)

# What expressions are made of, beside calls.
_PARTS: Final = (ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp)


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Attributes:
        text: what was parsed.
        inputs: the names of arrays and scalars, in the order in which they come first.
        outputs: the names on the left, in order, those left out that begin with ``_``.
        indexed: whether it reads the number of the element.
    """

    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[tuple[str, ast.expr], ...] = field(compare=False)  # the text says it all
    indexed: bool = False


def glsl_type(dtype: str) -> str:
    """Return the GLSL type that elements are computed in."""
    return {**LONG, "int32": "int", "uint32": "uint", BOOL: "bool", WEAK_INT: "int"}.get(dtype, "float")


def fault(text: str, node: ast.AST | None, message: str, kind: type[Exception] = InvalidUsageError) -> NoReturn:
    """Raise ``kind``: the message, and the line of the expression with a caret under the node."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    _fault_at(text, line, column, message, kind)


def _fault_at(text: str, line: int, column: int, message: str, kind: type[Exception]) -> NoReturn:
    shown = (text.splitlines() or [""])[min(line, len(text.splitlines()) or 1) - 1]
    column = len(shown.encode()[:column].decode(errors="ignore"))  # ast counts bytes
    where = f"column {column + 1}" if line == 1 else f"line {line}, column {column + 1}"
    raise kind(f"elementwise: {message} ({where})\n    {shown}\n    {' ' * column}^")


def parse(text: str) -> Expression:
    """Return the expression of a text: assignments, separated by semicolons or lines.

    Raises:
        InvalidUsageError: no text, or one with an error; the message shows where.
    """
    if not isinstance(text, str):
        raise InvalidUsageError(f"elementwise takes an expression such as 'y = max(x, 0.0)', not {type(text).__name__}")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        _fault_at(text, error.lineno or 1, max((error.offset or 1) - 1, 0), error.msg, InvalidUsageError)
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidUsageError(f"elementwise: cannot parse the expression: {error}") from None
    statements: list[tuple[str, ast.expr]] = []
    inputs: dict[str, None] = {}
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            fault(text, statement, "an expression is made of assignments, such as 'y = a * x + b'")
        _check_parts(text, statement.value)
        known = {name for name, _ in statements}
        inputs.update(dict.fromkeys(_inputs(text, statement.value, known)))
        statements.append((_target(text, statement.targets[0], known | inputs.keys()), statement.value))
    if not statements:
        raise InvalidUsageError("elementwise: an expression assigns to at least one name, such as 'y = max(x, 0.0)'")
    outputs = tuple(name for name, _ in statements if not name.startswith("_"))
    if not outputs:
        raise InvalidUsageError("elementwise: names that begin with _ are not stored; give a result another name")
    given = tuple(name for name in inputs if name != INDEX_NAME)
    return Expression(text, given, outputs, tuple(statements), indexed=INDEX_NAME in inputs)


def _inputs(text: str, value: ast.expr, known: set[str]) -> Iterator[str]:
    """Yield the names of inputs that an assignment reads."""
    for node in _names(value):
        if node.id not in known and node.id not in CONSTANTS:
            _check_name(text, node)
            if node.id.startswith("_"):
                fault(text, node, f"{node.id!r} was not assigned before; no input begins with _")
            yield node.id


def _target(text: str, target: ast.expr, taken: set[str]) -> str:
    """Return the name that is assigned to."""
    if not isinstance(target, ast.Name):
        fault(text, target, "a name stands on the left of an assignment")
    if target.id == INDEX_NAME:
        fault(text, target, "'index' is the number of the element; take another name")
    if target.id in taken:
        fault(text, target, f"{target.id!r} is an input or was assigned before; an output has a name of its own")
    _check_name(text, target)
    return target.id


def _names(node: ast.expr) -> list[ast.Name]:
    """Return the names of values in an expression, those of called functions left out, in the order of the text."""
    called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    found = [part for part in ast.walk(node) if isinstance(part, ast.Name) and id(part) not in called]
    return sorted(found, key=lambda part: (part.lineno, part.col_offset))


def _check_parts(text: str, value: ast.expr) -> None:
    """Refuse what no expression is made of, whatever the types of its inputs."""
    called = set()
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            _check_call(text, node)
        elif isinstance(node, ast.expr) and not (id(node) in called or isinstance(node, _PARTS)):
            what = _kind(node)
            fault(text, node, f"{what} cannot stand in an expression; arithmetic, comparisons and functions can")


def _check_call(text: str, node: ast.Call) -> None:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else _kind(node.func)
        plain = name.rpartition(".")[2]
        way_out = f"write {plain}(...)" if plain in FUNCTIONS else f"there are {', '.join(FUNCTIONS)}"
        fault(text, node.func, f"there is no function {name!r}; {way_out}")
    if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
        fault(text, node, "functions take plain arguments")
    name = node.func.id
    least, most = _COUNTS.get(name, (1, 1))
    if not least <= len(node.args) <= most:
        fault(text, node, f"{name} takes {least if least == most else f'{least} to {most}'} arguments")


def _check_name(text: str, node: ast.Name) -> None:
    if not node.id.isascii() or node.id.startswith("__"):
        fault(text, node, f"{node.id!r} is no name for a value: letters of ASCII, digits and _ are")
    if node.id in _RESERVED or node.id in FUNCTIONS or node.id in CONSTANTS:
        fault(text, node, f"{node.id!r} means something else; take another name")


def _kind(node: ast.AST) -> str:
    """Say what a node is, in words."""
    words = {"Subscript": "an index", "Attribute": "an attribute", "Lambda": "a lambda", "Tuple": "a tuple"}
    name = type(node).__name__
    return words.get(name, f"a {name.lower()}")


def operator_of(node: ast.Call, name: str) -> ast.expr:
    """Return the expression that a function by NumPy's name of an operator stands for."""
    first = node.args[0]
    made: ast.expr
    if name == "invert":
        made = ast.UnaryOp(ast.Invert(), first)
    elif name == "logical_not":
        made = ast.UnaryOp(ast.Not(), first)
    elif name == "reciprocal":
        made = ast.BinOp(ast.copy_location(ast.Constant(1), node), ast.Div(), first)
    elif name == "square":
        made = ast.BinOp(first, ast.Mult(), first)
    else:
        made = ast.BinOp(first, OPERATORS[name], node.args[1])
    return ast.copy_location(made, node)


def opaque(code: str) -> str:
    """Return GLSL of a float of which no compiler knows what it was made of."""
    return f"uintBitsToFloat(floatBitsToUint({code}) | (gl_NumWorkGroups.x >> 31))"


def may_cancel(a: str, b: str) -> bool:
    """Say whether a compiler may find two values to be equal, or opposite: Mesa 26 takes x - x for 0 whatever x is."""
    used, also = (set(_NAMES.findall(code)) for code in (a, b))
    made = {name for name in used | also if name.startswith("v")}  # of any inputs
    return bool(used and also and (made or used & also))
