"""Elementwise expressions without a device: what they are made of, their types, and where an error is."""

from __future__ import annotations

import struct

import pytest

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.arrays.layout import c_strides
from vkpar.ops.elementwise.emit import typed
from vkpar.ops.elementwise.expressions import parse
from vkpar.ops.elementwise.generate import source
from vkpar.ops.elementwise.geometry import arrange
from vkpar.ops.elementwise.kinds import ANY, COLUMN, FORMS, ONE, ROW, KernelTypes
from vkpar.ops.elementwise.table import BUILTINS
from vkpar.vulkan.pipelines import shader


def results(text: str, *types: str) -> tuple[str, ...]:
    return typed(parse(text), types).results


def of_floats(text: str) -> None:
    expression = parse(text)
    typed(expression, ("float32",) * len(expression.inputs))


def test_names_are_inputs_or_outputs() -> None:
    made = parse("y = a*x + b; z = y*y + a\nw = z if x > 0 else exp(c)")
    assert made.inputs == ("a", "x", "b", "c")
    assert made.outputs == ("y", "z", "w")


@pytest.mark.parametrize(
    ("text", "types", "want"),
    [
        ("y = a + b", ("float16", "bfloat16"), "float32"),
        ("y = a + b", ("float16", "weak float"), "float16"),
        ("y = a + 1", ("int32",), "int32"),
        ("y = a * 2.5 / 3", ("bfloat16",), "bfloat16"),
        ("y = a > b", ("float32", "float16"), "bool"),
        ("y = (a > 0) * a", ("float16",), "float16"),
        ("y = (a > 0) + (a < 1)", ("float16",), "int32"),
        ("y = a if c else 0", ("float16", "int32"), "float16"),
        ("y = float32(a) * b", ("uint32", "float16"), "float32"),
        ("y = int32(a)", ("float16",), "int32"),
        ("y = a // b % 7", ("uint32", "uint32"), "uint32"),
        ("y = not a and b or 0 < a <= 3", ("int32", "float32"), "bool"),
        ("y = isnan(a)", ("bfloat16",), "bool"),
        ("y = max(a, 0, b)", ("float16", "float16"), "float16"),
        ("y = -a ** 2 + ~b", ("int32", "int32"), "int32"),
        ("y = 2 ** 10 / 4", (), "float32"),
        ("y = a * sqrt(b)", ("float16", "weak float"), "float16"),
        ("y = a * exp(-b)", ("bfloat16", "weak int"), "bfloat16"),
        ("y = a * abs(-2)", ("float16",), "float16"),
        ("y = a * sign(b)", ("uint32", "weak int"), "uint32"),
        ("y = a + exp(a > 0)", ("float16",), "float16"),
        ("y = sqrt(a)", ("weak int",), "float32"),
    ],
)
def test_types_are_those_of_numpy(text: str, types: tuple[str, ...], want: str) -> None:
    expression = parse(text)
    order = [types["abc".index(name)] if name != "c" else types[-1] for name in expression.inputs]
    assert typed(expression, tuple(order)).results == (want,)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("y = x +", 8, "invalid syntax"),
        ("y = foo(x)", 5, "there is no function 'foo'"),
        ("y = x.T", 5, "an attribute cannot stand"),
        ("y = x[0]", 5, "an index cannot stand"),
        ("y = 'a'", 5, "is no number"),
        ("y = (lambda: x)()", 6, "there is no function 'a lambda'"),
        ("x + 1", 1, "made of assignments"),
        ("y += x", 1, "made of assignments"),
        ("import os", 1, "made of assignments"),
        ("a = b = x", 1, "made of assignments"),
        ("a, b = x", 1, "a name stands on the left"),
        ("y = x; x = y", 8, "'x' is an input"),
        ("y = x; y = 2", 8, "was assigned before"),
        ("out = x", 1, "'out' means something else"),
        ("y = out", 5, "'out' means something else"),
        ("exp = x", 1, "'exp' means something else"),
        ("y = pi * __x", 10, "no name for a value"),
        ("y = pow(x)", 5, "pow takes 2 arguments"),
        ("y = exp(x, 2)", 5, "exp takes 1 arguments"),
        ("y = exp(*x)", 5, "plain arguments"),
        ("y = x @ x", 5, "this operator cannot stand"),
        ("y = x in x", 10, "this comparison cannot stand"),
        ("y = 1 // 0", 5, "zero"),
        ("y = (-1) ** 0.5", 5, "no real number"),
        ("y = 1 << 1000 << 1", 5, "unsupported operand"),
        ("y = 9 ** 9 ** 9", 5, "out of range"),
        ("y = f'{x}'", 5, "cannot stand"),
        ("y = x ? 1 : 0", 7, "invalid syntax"),
        ("y = [i for i in x]", 5, "cannot stand"),
    ],
)
def test_an_error_says_where(text: str, column: int, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message) as caught:
        of_floats(text)
    first, shown, caret = str(caught.value).split("\n")
    assert f"column {column})" in first
    assert shown.strip() == text
    assert caret.index("^") - 4 == column - 1


def test_an_error_in_a_later_line() -> None:
    with pytest.raises(InvalidUsageError, match=r"line 2, column 12") as caught:
        typed(parse("y = x\nz = 'ä' if foo(y) else 1".replace("'ä'", "1  ")), ("float32",))
    assert str(caught.value).endswith("\n    z = 1   if foo(y) else 1\n               ^")


@pytest.mark.parametrize(
    ("text", "types", "message"),
    [
        ("y = a + b", ("int32", "uint32"), "would be int64"),
        ("y = a + b", ("int32", "float32"), "would be float64"),
        ("y = a * 0.5", ("int32",), "int32 with a float"),
        ("y = a / 2", ("uint32",), "write // or float32"),
        ("y = exp(a)", ("int32",), "write float32"),
        ("y = a & 1", ("float32",), "take integers"),
        ("y = ~a", ("float16",), "take integers"),
    ],
)
def test_types_that_no_device_computes(text: str, types: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        results(text, *types)


@pytest.mark.parametrize(
    ("text", "types"),
    [("y = a + 5000000000", ("int32",)), ("y = a - (-1)", ("uint32",)), ("y = a ** b", ("int32", "int32"))],
)
def test_numbers_that_do_not_fit(text: str, types: tuple[str, ...]) -> None:
    with pytest.raises(InvalidUsageError):
        results(text, *types)


def test_parts_that_lie_too_deep_in_each_other() -> None:
    expression = parse("y = " + "-" * 2000 + "x")
    with pytest.raises(InvalidUsageError, match="too deep"):
        typed(expression, ("float32",))


def test_nothing_that_python_would_run_is_run() -> None:
    for text in ("y = __import__('os')", "y = x.__class__", "y = print(x)", "y = open(x)", "y = eval(x)"):
        with pytest.raises(InvalidUsageError):
            of_floats(text)


@pytest.mark.parametrize("text", [None, 3, "", "   ", "# nothing", "y = x" + "+x" * 100_000, "\0"])
def test_texts_that_are_none(text: object) -> None:
    with pytest.raises(InvalidUsageError):
        typed(parse(text), ("float32",))  # type: ignore[arg-type]


def test_how_operands_lie() -> None:
    flat = arrange((4, 6), [(6, 1), (0, 0), (6, 1)], 1)
    assert flat is not None
    assert (flat.tile, flat.counts, flat.modes) == (False, (24,), (ROW, ONE, ROW))
    turned = arrange((64, 48), [(1, 64), (48, 1), (48, 1)], 1)
    assert turned is not None
    assert (turned.tile, turned.counts, turned.modes, turned.rows) == (True, (48, 64), (COLUMN, ROW, ROW), 4)
    steps = arrange((10,), [(2,), (1,)], 1)
    assert steps is not None
    assert (steps.counts, steps.modes, steps.rows) == ((10, 1), (ANY, ROW), 1)
    shape = (2, 3, 4, 5, 6)
    assert arrange(shape, [c_strides(shape)[::-1], c_strides(shape)], 1) is None


def test_every_shipped_kernel_has_a_name_of_its_own() -> None:
    names = [name for builtin in BUILTINS.values() for name, _, _ in builtin.kernels()]
    assert len(names) == len(set(names))


def test_kernels_have_no_long_loops() -> None:
    """CPU drivers end an invocation after 65,535 turns of its loops; here no loop has more than a few."""
    expression = parse("y = a ** 7 + pow(a, b)")
    kind = KernelTypes(("float32", "float32"), ("float32",))
    for form in FORMS:
        text = source(typed(expression, kind.inputs), kind, form)
        bounds = [part.split("<")[1].split(";")[0].strip() for part in text.split("for (")[1:]]
        assert set(bounds) <= {"5u", "BLOCKS", "ROWS", "end"}  # the last one: of what is less than sixteen elements


@pytest.mark.parametrize("form", FORMS)
def test_a_power_has_no_more_branches_than_its_parts(form: str) -> None:
    """SwiftShader takes seconds to compile those of sixteen powers."""

    def count(name: str) -> int:
        return next(branches(shader.shipped(file)) for file, _, found in BUILTINS[name].kernels() if found == form)

    parts = sum(count(name) - count("negative") for name in ("exp", "log"))
    assert 0 < count("power") - count("divide") <= parts


def branches(spirv: bytes) -> int:
    """Count the conditional branches of a module."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at, found = 5, 0
    while at < len(words):
        found += words[at] & 0xFFFF == 250  # OpBranchConditional
        at += words[at] >> 16
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = math.sin(x)", r"no function 'math\.sin'; write sin\(\.\.\.\)"),
        ("y = np.exp(x) + 1", r"no function 'np\.exp'; write exp\(\.\.\.\)"),
        ("y = x.sum()", r"no function 'x\.sum'; there are abs"),
        ("y = nothing(x)", "no function 'nothing'"),
        ("y = x[0]", "an index cannot stand"),
        ("y = x.T", "an attribute cannot stand"),
        ("y = x if sin(x, x) else 0", "sin takes 1"),
        ("y = x; z = y + where(y, 1)", "where takes 3"),
    ],
)
def test_what_no_types_mend_is_refused_when_the_function_is_made(text: str, message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        parse(text)
