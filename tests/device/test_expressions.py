"""Elementwise functions of users: expressions, broadcasting, strides, types, in place, on every driver."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.ops.elementwise import held, seen
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.ops.elementwise.emit import typed
from vkpar.ops.elementwise.expressions import parse
from vkpar.ops.elementwise.front import _spirv
from vkpar.ops.elementwise.kinds import FORMS, KernelTypes

pytestmark = [pytest.mark.device, pytest.mark.sampled(6), pytest.mark.usefixtures("compiler")]
DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32")
LINEAR = vkpar.elementwise("y = a * x + b; z = y - a")


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers, which every type computes exactly."""
    return (
        rng.integers(0, 12, shape)
        .astype(np.uint32 if dtype == "uint32" else np.int32)
        .astype(dtype if dtype in ("int32", "uint32") else np.float32)
    )


@st.composite
def operands(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], list[Any]]]]:
    """A shape of up to four axes, and for each of three operands the array and the view of it that fits the shape."""
    shape = draw(st.lists(st.integers(1, 7), max_size=4).map(tuple))
    made = []
    for number in range(3):
        own = tuple(1 if number < 2 and draw(st.booleans()) and draw(st.booleans()) else side for side in shape)
        own = own[draw(st.integers(0, len(own))) if number < 2 and draw(st.booleans()) else 0 :]
        order = draw(st.permutations(range(len(own))))
        base, key = [], []
        for axis in order:
            step, before, after = (
                draw(st.sampled_from([1, 1, 2, -1, -2])),
                draw(st.integers(0, 2)),
                draw(st.integers(0, 2)),
            )
            length = (own[axis] - 1) * abs(step) + 1
            base.append(before + length + after)
            stop = before + length
            key.append(slice(before, stop, step) if step > 0 else slice(stop - 1, before - 1 if before else None, step))
        back = [order.index(axis) for axis in range(len(own))]
        made.append((tuple(base), [tuple(key), tuple(back)]))
    return shape, made


def look(x: Any, key: Any, back: Any) -> Any:
    return x[(*key, ...)].transpose(back) if back else x[(*key, ...)]


@given(
    operands(), st.sampled_from(["float32", "float16", "bfloat16", "int32"]), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_views_of_any_strides(device: vkpar.Device, given: tuple[Any, Any], dtype: str, into: bool, seed: int) -> None:
    """Two operands and a result, each a view: what lies around the result stays."""
    shape, parts = given
    rng = np.random.default_rng(seed)
    hosts = [values(rng, base, dtype) for base, _ in parts]
    arrays = [device.array(host, dtype) for host in hosts]
    a, b, out = (look(array, *view) for array, (_, view) in zip(arrays, parts, strict=True))
    x, y, z = (look(host, *view) for host, (_, view) in zip(hosts, parts, strict=True))
    want = np.broadcast_to(x - y, shape)
    if into:
        assert vkpar.subtract(a.broadcast_to(shape), b, out=out) is out
        z[...] = want
        np.testing.assert_array_equal(seen(arrays[2]), hosts[2])
    else:
        np.testing.assert_array_equal(seen(vkpar.subtract(a.broadcast_to(shape), b)), want)
    y1, z1 = LINEAR(a, b, 3)
    np.testing.assert_array_equal(seen(y1), held(x * y + 3, dtype) if dtype != "int32" else x * y + 3)
    np.testing.assert_array_equal(seen(z1), held(x * y + 3 - x, dtype) if dtype != "int32" else x * y + 3 - x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_several_results(device: vkpar.Device, rng: np.random.Generator, dtype: str) -> None:
    w, m, g = (values(rng, (33, 21), dtype) for _ in range(3))
    step = vkpar.elementwise("m2 = beta * m + g; w2 = w - rate * m2")
    arrays = {"w": device.array(w, dtype), "m": device.array(m, dtype), "g": device.array(g, dtype)}
    for look in (lambda x: x, lambda x: x.T, lambda x: x[1::2, ::-1]):
        views = {name: look(array) for name, array in arrays.items()}
        made = step(**views, beta=2, rate=1, out=(views["m"], views["w"]))
        assert made == (views["m"], views["w"]) or made[0] is views["m"]
        look(m)[...] = 2 * look(m) + look(g)
        look(w)[...] = look(w) - look(m)
        np.testing.assert_array_equal(seen(arrays["m"]), m if dtype in ("int32", "uint32") else held(m, dtype))
        np.testing.assert_array_equal(seen(arrays["w"]), w if dtype in ("int32", "uint32") else held(w, dtype))


def test_repeated_calls_with_other_numbers(device: vkpar.Device) -> None:
    f = vkpar.elementwise("y = a * x + b")
    x = device.arange(6, dtype="float32")
    out = device.empty(6)
    for a in (1, 2.5, -3):
        for b in (0.5, 7):
            assert f(x=x, a=a, b=b, out=out) is out
            np.testing.assert_array_equal(out.numpy(), np.float32(a) * np.arange(6) + np.float32(b))
    assert f(x=x, a=True, b=np.float64(1)).numpy()[2] == 3


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


CASES = [
    ("y = x if x > 0 else s * x", lambda x, s: np.where(x > 0, x, s * x)),
    ("y = where(x > 1 and x < 3 or not x, 1.0, s)", lambda x, s: np.where(((x > 1) & (x < 3)) | (x == 0), 1.0, s)),
    (
        "y = clip(x, -1, 2) + min(x, s, 0) + max(x, s)",
        lambda x, s: np.clip(x, -1, 2) + np.minimum(np.minimum(x, s), 0) + np.maximum(x, s),
    ),
    (
        "y = x ** 3 - x ** -2 + (x % 3) * (x // 2)",
        lambda x, s: x**3 - 1 / x**2 + (x % 3) * (x // 2),
    ),
    ("y = sin(x) + cos(s * x)", lambda x, s: np.sin(x) + np.cos(s * x)),
    ("y = exp2(x) + expm1(x) + log1p(abs(x))", lambda x, s: 2**x + np.expm1(x) + np.log1p(abs(x))),
    ("y = log2(abs(x) + 1) + rsqrt(abs(x))", lambda x, s: np.log2(abs(x) + 1) + 1 / np.sqrt(abs(x))),
    ("y = floor(x) + 2 * ceil(x) + 4 * round(x)", lambda x, s: np.floor(x) + 2 * np.ceil(x) + 4 * np.rint(x)),
    ("y = 8 * trunc(x) + sign(x)", lambda x, s: 8 * np.trunc(x) + np.sign(x)),
    ("y = 10 * isnan(x) + 100 * isinf(x) + isfinite(x)", lambda x, s: 1.0 + 0 * x),
    ("y = pi * x - 1 / 2 + (x == s) + 2 * (x != s)", lambda x, s: np.pi * x - 0.5 + (x == s) + 2 * (x != s)),
    ("y = sigmoid(x) + tanh(x) + relu(x)", lambda x, s: logistic(x) + np.tanh(x) + np.maximum(x, 0)),
]


@pytest.mark.parametrize(("text", "want"), CASES, ids=[text for text, _ in CASES])
def test_the_language(device: vkpar.Device, rng: np.random.Generator, text: str, want: Callable[..., Any]) -> None:
    x = np.concatenate([rng.standard_normal(500) * 3, rng.integers(-5, 6, 99) + 0.5, np.arange(1, 9)]).astype(
        np.float32
    )
    f = vkpar.elementwise(text)
    made = f(x=device.array(x), s=0.75) if "s" in f.inputs else f(device.array(x))
    expected = want(x.astype(np.float64), 0.75)
    size = np.maximum(np.abs(expected), 1 + np.abs(x) ** 3 + 1 / x.astype(np.float64) ** 2)
    assert (np.abs(made.numpy() - expected) <= 1e-6 * size + 2.0**-20 * np.exp(np.abs(x)) * ("exp" in text)).all()


def test_functions_of_special_values(device: vkpar.Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
    names = "exp exp2 expm1 log1p log2 sin cos floor sign isnan isinf isfinite round"
    wanted = {name: getattr(np, name) for name in names.split()}
    with np.errstate(all="ignore"):
        for name, function in wanted.items():
            got = vkpar.elementwise(f"y = {name}(x)")(device.array(x)).numpy()
            np.testing.assert_allclose(got, function(x).astype(np.float32), rtol=1e-6, err_msg=name)
    got = vkpar.elementwise("y = max(x, 0.0); z = min(0.0, x); w = erf(x)")(device.array(x))
    assert [np.isnan(part.numpy()[0]) for part in got] == [True] * 3
    assert got[2].numpy()[1:4].tolist() == [1, -1, 0]


ZEROS: dict[str, Callable[..., Any]] = {
    "y = x * 0": lambda x: x * 0,
    "y = 0.0 * x": lambda x: 0 * x,
    "y = -0.0 * x": lambda x: -0.0 * x,
    "y = 1e-60 * x": lambda x: 0 * x,
    "y = x / 0": lambda x: x / np.float32(0),
    "y = x / -0.0": lambda x: x / np.float32(-0.0),
    "y = x / (1 - 1)": lambda x: x / np.float32(0),
    "y = 0 / x": lambda x: np.float32(0) / x,
    "y = x // 0": lambda x: x // np.float32(0),
    "y = x % 0": lambda x: x % np.float32(0),
    "y = x + 0": lambda x: x + 0,
    "y = x * min(0, 0.5)": lambda x: x * 0,
    "y = x / abs(0 * pi)": lambda x: x / np.float32(0),
}


@pytest.mark.sampled(1)
def test_zeros_in_the_text_do_what_zeros_in_arrays_do(device: vkpar.Device) -> None:
    x = np.array([0.0, -0.0, 1.5, -1.5, 7.0, np.inf, -np.inf, np.nan], np.float32)
    for text, function in ZEROS.items():
        with np.errstate(all="ignore"):
            want = function(x)
        out = vkpar.full(device, x.size, 77.0)
        got = vkpar.elementwise(text)(device.array(x), out=out).numpy()
        np.testing.assert_array_equal(got, want, err_msg=text)


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_infinite(device: vkpar.Device) -> None:
    x = device.array([1.5, -2.0], "float32")
    for text, want in {
        "y = x * 1e60": [np.inf, -np.inf],
        "y = x / -1e39": [-0.0, 0.0],
        "y = x * 10 ** 50": [np.inf, -np.inf],
    }.items():
        np.testing.assert_array_equal(vkpar.elementwise(text)(x).numpy(), np.array(want, np.float32), err_msg=text)
    with pytest.raises(InvalidUsageError, match="larger than any float"):
        vkpar.elementwise("y = x * 1" + "0" * 400)(x)


def test_integers_of_the_language(device: vkpar.Device, rng: np.random.Generator) -> None:
    a = rng.integers(-(2**31), 2**31, 500).astype(np.int32)
    b = rng.choice([-7, -1, 1, 2, 5, 31, 2**31 - 1, -(2**31)], 500).astype(np.int32)
    f = vkpar.elementwise(
        "q = a // b; r = a % b; s = (a & b) ^ (a | 5); t = ~a + (a >> 3); u = a << 2; v = a ** 3 - abs(b)"
    )
    made = [part.numpy() for part in f(device.array(a), device.array(b))]
    with np.errstate(over="ignore"):
        wide, by = a.astype(np.int64), b.astype(np.int64)
        want = [
            wide // by, wide % by, (wide & by) ^ (wide | 5), ~wide + (wide >> 3), wide << 2,
            a * a * a - np.abs(b),
        ]  # fmt: skip
    for got, right in zip(made, want, strict=True):
        np.testing.assert_array_equal(got, right.astype(np.int32))
    zero = vkpar.elementwise("q = a // b; r = a % b; s = a << b")
    got = zero(device.array(a), device.array(np.int32(0)))
    assert not got[0].numpy().any()
    assert not got[1].numpy().any()
    assert not zero(device.array(a), device.array(np.int32(32)))[2].numpy().any()
    unsigned = vkpar.elementwise("y = x // 7 + x % 7 * 2; z = float32(x)")
    x = rng.integers(0, 2**32, 300).astype(np.uint32)
    y, z = unsigned(device.array(x))
    np.testing.assert_array_equal(y.numpy(), x // 7 + x % 7 * 2)
    np.testing.assert_array_equal(z.numpy(), x.astype(np.float32))


def test_arguments_that_are_refused(device: vkpar.Device) -> None:
    f = vkpar.elementwise("y = a * x + b; z = y")
    a = device.zeros(4)
    for call, error, message in (
        (lambda: f(a), InvalidUsageError, "needs a, x, b"),
        (lambda: f(a, a, a, a), InvalidUsageError, "got 4"),
        (lambda: f(a, a, b=1, c=2), InvalidUsageError, "no input 'c'"),
        (lambda: f(a, a, 1, out=a), InvalidUsageError, "out has 1 arrays"),
        (lambda: f(a, a, 1, out=(a, a)), InvalidUsageError, "two results share memory"),
        (lambda: f(1, 2, 3), InvalidUsageError, "at least one array"),
        (lambda: f(a, a, device.zeros(4, "int32")), UnsupportedError, r"column 5\)"),
        (lambda: f(a, a, device.zeros(4, "float64")), UnsupportedError, "float64"),
        (lambda: f(a, a, device.zeros(3)), InvalidUsageError, "cannot be broadcast"),
    ):
        for _ in range(2):
            with pytest.raises(error, match=message):
                call()


def test_many_operands(device: vkpar.Device) -> None:
    names = [f"x{number}" for number in range(9)]
    f = vkpar.elementwise("y = " + " + ".join(names) + " + s")
    hosts = [np.arange(12, dtype=np.float32).reshape(3, 4) + number for number in range(9)]
    arrays = [device.array(host) for host in hosts]
    np.testing.assert_array_equal(f(*arrays, s=1.0).numpy(), sum(hosts) + 1)
    mixed = [array if number % 2 else array.T.contiguous().T for number, array in enumerate(arrays)]
    np.testing.assert_array_equal(f(*mixed, s=1.0).numpy(), sum(hosts) + 1)
    many = vkpar.elementwise("y = " + " + ".join(f"x{number}" for number in range(40)))
    with pytest.raises(UnsupportedError, match=r"more than the \d+ that a kernel takes"):
        many(*[arrays[0]] * 40)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrays_over_several_buffers(reopen: Callable[..., vkpar.Device], rng: np.random.Generator, dtype: str) -> None:
    device = reopen(max_buffer=4096, max_binding=4096)
    if "SwiftShader" in device.name and not FULL:
        pytest.skip("SwiftShader compiles each of these kernels for a second; lavapipe runs them")
    for shape in ((5000,), (90, 71), (3, 40, 50)) if FULL else ((2500,), (30, 71)):
        a, b = values(rng, shape, dtype), values(rng, shape, dtype)
        x, y = device.array(a, dtype), device.array(b, dtype)
        np.testing.assert_array_equal(seen(x - y), a - b)
        np.testing.assert_array_equal(seen(x * 2 - y[..., :1]), a * 2 - b[..., :1])
        np.testing.assert_array_equal(seen(x[..., ::-1] - y), a[..., ::-1] - b)
        np.testing.assert_array_equal(seen(x.T - y.T), a.T - b.T)
        around = device.zeros((*shape[:-1], shape[-1] + 3), dtype)
        vkpar.subtract(x, y, out=around[..., 1:-2])
        np.testing.assert_array_equal(seen(around[..., 1:-2]), a - b)
        assert not seen(around[..., :1]).any()
        assert not seen(around[..., -2:]).any()
        odd = device.array(np.zeros(a.size + 1), dtype)
        vkpar.subtract(x.reshape(-1), y.reshape(-1), out=odd[1:])
        np.testing.assert_array_equal(seen(odd[1:]), (a - b).ravel())
        np.testing.assert_array_equal(seen(device.array(np.zeros(a.size + 1), dtype)[1:] - x.reshape(-1)), -a.ravel())
    np.testing.assert_array_equal(device.arange(5000).numpy(), np.arange(5000))


def test_what_is_compiled_is_kept(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkpar.vulkan.pipelines import shader

    compiled: list[str] = []
    make = shader.compile_glsl
    monkeypatch.setattr(shader, "compile_glsl", lambda text: compiled.append(text) or make(text))
    _spirv.cache_clear()  # which serves all devices of the process
    a = device.zeros(5)
    vkpar.elementwise("y = a + 41.5")(a)
    count = len(compiled)
    assert count == 1
    vkpar.elementwise("y = a + 41.5")(a)
    vkpar.elementwise("y = a + 41.5")(device.zeros(7))
    assert len(compiled) == count
    assert "include" not in compiled[0]  # such texts are not kept on disk


def test_a_repeated_call_is_short(device: vkpar.Device) -> None:
    """Counts calls of Python and C functions, which machines do not change."""
    import sys

    f = vkpar.elementwise("y = a * x + b")
    a, out = device.zeros((64, 64)), device.empty((64, 64))
    turned = a.T
    for call, most in (
        (lambda: f(a, turned, a, out=out), 25),
        (lambda: f(a, a, a, out=out), 25),
        (lambda: vkpar.multiply(a, a, out=out), 25),
    ):
        for _ in range(3):
            call()
        counted = [0]

        def count(*_: Any, counted: list[int] = counted) -> None:
            counted[0] += 1

        sys.setprofile(lambda frame, event, argument: count() if event in ("call", "c_call") else None)
        try:
            call()
        finally:
            sys.setprofile(None)
        assert counted[0] <= most


def test_captured_operations_are_those_that_ran(device: vkpar.Device, rng: np.random.Generator) -> None:
    host = rng.standard_normal((17, 23)).astype(np.float32)
    x = device.array(host)
    half = vkpar.cast(x, "float16")
    numbers = device.array(np.array([3, 0, -1, 40], np.int32))
    f = vkpar.elementwise("y = a * x + b; z = y if y > s else -y")

    def program() -> list[vkpar.Array]:
        y, z = f(a=x.T, x=x[0, 0], b=1.5, s=0.25)
        made = [y, z, vkpar.gelu(half[:, 1:]), half.T * 2, (x > 0) * vkpar.full(device, 23, 2, "uint32")]
        made += [vkpar.take(x, numbers), vkpar.concatenate([x, x[::-1]], 1), device.arange(9), half.T.contiguous()]
        made += [vkpar.random.uniform(device, (5, 5), seed=4), (x[:, ::2] - 1).astype("int32")]
        made[0] += 1
        made[3].fill(3)
        return made

    want = [array.numpy() for array in program()]
    with vkpar.capture([device]) as graph:
        made = program()
    graph.launch().wait()
    for got, right in zip(made, want, strict=True):
        np.testing.assert_array_equal(got.numpy(), right)
    graph.close()


@pytest.mark.parametrize(
    "text",
    ["y = a * b + c", "y = max(a * b + c, 0.0)", "t = a * b; y = t - c", "y = a * b - c if c > 0 else a + b * c"],
)
def test_products_are_rounded_before_they_are_added(text: str) -> None:
    """No driver may contract them, so that replicas stay equal on drivers of several vendors."""
    kinds = ("float32",) * 3
    expression = parse(text)
    results = typed(expression, kinds).results
    for form in FORMS:
        _, spirv = _spirv(expression, KernelTypes(kinds, results), form)
        arithmetic, exact = set(), set()
        words, at = struct.unpack(f"<{len(spirv) // 4}I", spirv), 5
        while at < len(words):
            operation = words[at] & 0xFFFF
            if operation in (129, 131, 133):  # OpFAdd, OpFSub, OpFMul
                arithmetic.add(words[at + 2])
            if operation == 71 and words[at + 2] == 42:  # OpDecorate NoContraction
                exact.add(words[at + 1])
            at += words[at] >> 16
        assert arithmetic
        assert arithmetic <= exact


HIDDEN_ZEROS = (
    "(0 if x > 0 else 0)", "where(x > 0, 0.0, 0.0)", "abs(0 if x > 0 else 0)", "float32(0 if x > 0 else 0)",
    "(x != x) * 0", "float32(n * 0)", "float32(n - n)", "float32(n & 0)", "clip(x, 0, 0)", "0", "0.0",
)  # fmt: skip


@pytest.mark.parametrize("zero", HIDDEN_ZEROS)
def test_what_compilers_find_to_be_zero(device: vkpar.Device, zero: str) -> None:
    """Infinity times zero, and a division by zero, are what they are in NumPy, however zero is written."""
    x = np.array([np.inf, -np.inf, 1, -2.5, 0], np.float32)
    operands = {"x": device.array(x), "n": device.array([1, 2, 3, 4, 5])}
    with np.errstate(all="ignore"):
        wanted = {
            "x * Q": x * 0, "Q * x": x * 0, "x / Q": x / 0, "Q / x": 0 / x, "(x + 1) * Q": (x + 1) * 0,
            "isnan(x * Q)": np.isnan(x * 0), "1 if x * Q == x * Q else 2": np.where(np.isnan(x * 0), 2, 1),
            "x >= x * Q": x >= x * 0, "x % Q": np.full(5, np.nan),
        }  # fmt: skip
    for text, want in wanted.items():
        function = vkpar.elementwise(f"y = {text.replace('Q', zero)}")
        got = function(**{name: operands[name] for name in function.inputs}).numpy()
        np.testing.assert_array_equal(got, want, err_msg=text)


def test_differences_are_not_taken_for_zero(device: vkpar.Device) -> None:
    """Of infinities and NaN: Mesa 26 folds what it finds to be the difference of a value and itself."""
    x = device.array([np.inf, 1.0, np.nan])
    undefined, alike = [1, 0, 1], [0, 1, 0]
    differences = ("x - x", "x + -x", "-x + x", "(x + 1) - (x + 1)", "abs(x) - abs(x)")
    for text in differences:
        assert vkpar.elementwise(f"y = isnan({text})")(x).tolist() == undefined, text
    for text in ("x == x + (x - x)", "x - x == 0"):
        assert vkpar.elementwise(f"y = {text}")(x).tolist() == alike, text
    named = vkpar.elementwise("_s = x + 1; y = isnan(_s - (x + 1))")
    assert named(x).tolist() == undefined
