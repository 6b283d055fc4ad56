"""Operations on rows against float64: softmax, its logarithm, cross entropy with its gradient, norms."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from helpers.ops.elements import FLOATS, check, normal, values_of
from helpers.ops.references import depth, log_error, norm_error, softmax_error
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkpar
from vkpar.testing import U, additions

cpu, rows_module = (importlib.import_module(f"vkpar.ops.{name}") for name in ("reduce.cpu", "rows.rows"))
pytestmark = [pytest.mark.device, pytest.mark.sampled(12)]

F64 = NDArray[np.float64]
SHAPES = [(1, 1), (5, 3), (64, 128), (2, 3, 260), (3, 1001), (1, 70_001)]


# ---- softmax ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> None:
    x = normal(rng, shape, dtype, 4)
    a, exact = either.array(x, dtype), x.astype(np.float64)
    out = either.empty(shape, dtype)
    for _ in range(2):  # the second time by the recipe
        check(vkpar.softmax(a), *softmax_error(exact))
        assert vkpar.log_softmax(a, out=out) is out
        check(out, *log_error(exact))
    vkpar.softmax(a, out=a)
    check(a, *softmax_error(exact))


@pytest.mark.parametrize("order", ["rising", "falling", "far"])
@pytest.mark.parametrize("length", [100, 5000, 70_000])
def test_softmax_of_ordered_rows(either: vkpar.Device, length: int, order: str) -> None:
    x = np.linspace(-60, 30, length, dtype=np.float32)
    x = {"rising": x, "falling": x[::-1].copy(), "far": x * 1e30}[order].reshape(1, -1)
    check(vkpar.softmax(either.array(x)), *softmax_error(x.astype(np.float64)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1, -3, -2])
def test_softmax_along_other_axes(either: vkpar.Device, rng: np.random.Generator, axis: int, dtype: str) -> None:
    x = normal(rng, (5, 33, 6), dtype, 4)
    moved = np.moveaxis(x.astype(np.float64), axis, -1)
    for name, (exact, error) in (("softmax", softmax_error(moved)), ("log_softmax", log_error(moved))):
        a = either.array(x, dtype)
        for _ in range(2):
            check(getattr(vkpar, name)(a, axis), np.moveaxis(exact, -1, axis), np.moveaxis(error, -1, axis))
        getattr(vkpar, name)(a, axis, out=a)
        check(a, np.moveaxis(exact, -1, axis), np.moveaxis(error, -1, axis))
        turned = either.array(x.T.copy(), dtype)
        out = either.empty(x.T.shape, dtype).T
        getattr(vkpar, name)(turned.T, axis, out=out)
        check(out, np.moveaxis(exact, -1, axis), np.moveaxis(error, -1, axis))


@pytest.mark.parametrize(("shape", "axis"), [((521, 512), 0), ((9, 301, 100), 1), ((4, 65_537), 0), ((100_000, 3), 0)])
def test_softmax_of_large_arrays_along_other_axes(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], axis: int
) -> None:
    """CPU drivers make it in several steps: in place, into a view, and of one."""
    x = normal(rng, shape, "float32", 4)
    turned = np.moveaxis(x.astype(np.float64), axis, -1)
    a, wide = either.array(x), either.zeros((*shape[:-1], shape[-1] + 3))
    for name, (exact, error) in (("softmax", softmax_error(turned)), ("log_softmax", log_error(turned))):
        operation = getattr(vkpar, name)
        want, off = np.moveaxis(exact, -1, axis), np.moveaxis(error, -1, axis)
        check(operation(a, axis), want, off)
        part = wide[..., 2:-1]
        operation(a, axis, out=part)
        check(part.contiguous(), want, off)
        assert (wide[..., :2].numpy() == 0).all()
        part.copy_from(a)
        check(operation(part, axis, out=part).contiguous(), want, off)


def test_softmax_of_special_values_along_the_first_axis(either: vkpar.Device) -> None:
    x = np.zeros((1 << 15, 9), np.float32)
    x[7, 0], x[8, 1], x[:, 2] = np.nan, np.inf, -np.inf
    x[1:, 3], x[:2, 4], x[0, 5] = -np.inf, (np.inf, -np.inf), -np.inf
    for name in ("softmax", "log_softmax"):
        found = getattr(vkpar, name)(either.array(x), 0).numpy()
        assert np.isnan(found[:, [0, 1, 2, 4]]).all()
        one, none = (1, 0) if name == "softmax" else (0, -np.inf)
        assert found[0, 3] == one
        assert (found[1:, 3] == none).all()
        assert found[0, 5] == none
        assert np.isfinite(found[1:, 5]).all()


@pytest.mark.parametrize("length", [5, 4099])
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_special_values(either: vkpar.Device, length: int, dtype: str) -> None:
    x = np.zeros((6, length), np.float32)
    x[0, 2] = np.nan
    x[1, 3] = np.inf
    x[2] = -np.inf
    x[3, 1:] = -np.inf
    x[4, :2] = (np.inf, -np.inf)
    x[5, 0] = -np.inf
    for name, axis in itertools.product(("softmax", "log_softmax"), (1, 0)):
        a = either.array(x if axis else x.T.copy(), dtype)
        found = values_of(getattr(vkpar, name)(a, axis))
        found = found if axis else found.T
        assert np.isnan(found[[0, 1, 2, 4]]).all()
        one, none = (1, 0) if name == "softmax" else (0, -np.inf)
        assert found[3, 0] == one
        assert (found[3, 1:] == none).all()
        assert found[5, 0] == none
        assert np.isfinite(found[5, 1:]).all()


@pytest.mark.parametrize("labels", ["int32", "uint32"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) == 2])
def test_cross_entropy(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, int], dtype: str, labels: str
) -> None:
    x = normal(rng, shape, dtype, 4)
    chosen = rng.integers(0, shape[1], shape[0])
    a, label, exact = either.array(x, dtype), either.array(chosen, labels), x.astype(np.float64)
    every = np.arange(shape[0])
    logs, error = log_error(exact)
    for _ in range(2):
        losses = vkpar.cross_entropy(a, label)
        assert losses.dtype == "float32"
        check(losses, -logs[every, chosen], error[every, chosen])
    y, error = softmax_error(exact)
    y[every, chosen] -= 1
    for scale in (None, 0.5):
        factor = 1 / shape[0] if scale is None else scale
        check(vkpar.cross_entropy_grad(a, label, scale), y * factor, factor * (error + 4 * U * np.abs(y)))
    assert vkpar.cross_entropy_grad(a, label, out=a) is a
    check(a, y / shape[0], (error + 4 * U * np.abs(y)) / shape[0])


def test_labels_that_are_no_class(either: vkpar.Device) -> None:
    a, labels = either.zeros((4, 3)), either.array(np.array([0, 3, -1, 2], np.int32))
    losses, grad = vkpar.cross_entropy(a, labels).numpy(), vkpar.cross_entropy_grad(a, labels).numpy()
    np.testing.assert_array_equal(np.isnan(losses), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(grad).all(axis=1), [False, True, True, False])
    assert np.isfinite(grad[[0, 3]]).all()


# ---- norms ----


WEIGHTS = {
    "float32": [("float32", "float32"), ("float16", None), (None, "bfloat16")],
    "float16": [("float16", "float32")],
    "bfloat16": [("float32", "bfloat16")],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_norms(either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> None:
    x = normal(rng, shape, dtype) + np.float32(2)
    x = values_of(either.array(x, dtype)).astype(np.float32)
    a, exact = either.array(x, dtype), x.astype(np.float64)
    for kinds in WEIGHTS[dtype]:
        (w, weight), (b, bias) = (
            _vector(either, rng, shape[-1], kind, one) for kind, one in zip(kinds, (1, 0), strict=True)
        )
        for _ in range(2):
            check(vkpar.layer_norm(a, weight, bias, 1e-3), *norm_error(exact, w, b, 1e-3, True))
            check(vkpar.rms_norm(a, weight), *norm_error(exact, w, np.zeros(1), 1e-6, False))
    vkpar.layer_norm(a, out=a)
    check(a, *norm_error(exact, np.ones(1), np.zeros(1), 1e-5, True))


def _vector(
    device: vkpar.Device, rng: np.random.Generator, length: int, dtype: str | None, filler: float
) -> tuple[F64, vkpar.Array | None]:
    if dtype is None:
        return np.full(1, float(filler)), None
    values = normal(rng, length, dtype)
    return values.astype(np.float64), device.array(values, dtype)


@pytest.mark.parametrize(
    "types", ["float32 float32", "float16 float16", "bfloat16 float32", "float32 float16", "float16 bfloat16"]
)
@pytest.mark.parametrize("shape", [SHAPES[1], *SHAPES[3:]])
def test_rms_norm_with_a_residual(
    either: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], types: str
) -> None:
    """Bit for bit the norm of the sum as it is stored."""
    x_type, r_type = types.split()
    x, r = (either.array(normal(rng, shape, kind), kind) for kind in (x_type, r_type))
    weight = either.array(normal(rng, shape[-1], "float32"))
    total = vkpar.add(x, r)
    w = weight.numpy().astype(np.float64)
    for _ in range(2):
        y, h = vkpar.rms_norm(x, weight, residual=r)
        assert (y.dtype, h.dtype) == (x.dtype, total.dtype)
        np.testing.assert_array_equal(h.numpy(), total.numpy())
        check(y, *norm_error(values_of(total), w, np.zeros(1), 1e-6, False))
        if total.dtype == x.dtype:
            np.testing.assert_array_equal(y.numpy(), vkpar.rms_norm(total, weight).numpy())
    expected = y.numpy()
    if total.dtype == r.dtype:
        made = vkpar.rms_norm(x, weight, residual=r, out=(x, r))
        assert made[0] is x
        assert made[1] is r
        np.testing.assert_array_equal(x.numpy(), expected)
        np.testing.assert_array_equal(r.numpy(), total.numpy())


def test_norms_of_special_values(either: vkpar.Device) -> None:
    x = np.ones((4, 70), np.float32)
    x[0, 3], x[1, 5], x[2, 7] = np.nan, np.inf, -np.inf
    layer, rms = (f(either.array(x)).numpy() for f in (vkpar.layer_norm, vkpar.rms_norm))
    assert np.isnan(layer[:3]).all()
    assert (layer[3] == 0).all()
    assert np.isnan(rms[0]).all()
    assert np.isnan([rms[1, 5], rms[2, 7]]).all()
    assert np.delete(rms[1], 5).tolist() == [0.0] * 69
    assert np.isfinite(rms[3]).all()


@pytest.mark.parametrize("types", ["float32 float32", "float16 float16", "bfloat16 float32", "float16 bfloat16"])
@pytest.mark.parametrize("shape", [(5, 3), (64, 128), (2, 3, 260), (300, 33), (2, 5000)])
def test_gradients_of_norms(device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], types: str) -> None:
    x_type, w_type = types.split()
    x, g, w = (normal(rng, each, kind) for each, kind in ((shape, x_type), (shape, x_type), (shape[-1], w_type)))
    a, grad, weight = device.array(x, x_type), device.array(g, x_type), device.array(w, w_type)
    exact, back = x.astype(np.float64), g.astype(np.float64)
    product = back * w
    for eps, centered in ((1e-5, True), (1e-6, False)):
        unit, off = norm_error(exact, np.ones(1), np.zeros(1), eps, centered)
        gradient, error = _gradient(exact, product, eps, centered)
        rows = tuple(range(len(shape) - 1))
        count = int(np.prod(shape[:-1]))
        terms = np.abs(back) * (off + 2 * U * np.abs(unit))
        along = terms.sum(axis=rows) + 1.1 * additions(count) * U * np.abs(back * unit).sum(axis=rows)
        for _ in range(2):
            made = vkpar.layer_norm_grad(a, weight, grad) if centered else vkpar.rms_norm_grad(a, weight, grad)
            assert [each.dtype.name for each in made] == [x_type, *[w_type] * (1 + centered)]
            check(made[0], gradient, error)
            check(made[1], (back * unit).sum(axis=rows), along)
            if centered:
                check(made[2], back.sum(axis=rows), additions(count) * U * np.abs(back).sum(axis=rows))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 260), (300, 33), (0, 4)])
def test_gradients_of_norms_without_a_weight(
    device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> None:
    x, g = (device.array(normal(rng, shape, dtype), dtype) for _ in range(2))
    views = device.array(values_of(x).T, dtype).T, g
    for a, grad in ((x, g), (x, g), views):
        dx, dw, db = vkpar.layer_norm_grad(a, None, grad)
        assert (dw, dx.dtype, db.dtype, db.shape) == (None, x.dtype, x.dtype, shape[-1:])
        _check_without_weight(x, g, dx, db, 1e-5)
        dx, dw = vkpar.rms_norm_grad(a, None, grad)
        assert dw is None
        _check_without_weight(x, g, dx, None, 1e-6)


def _check_without_weight(x: vkpar.Array, g: vkpar.Array, dx: vkpar.Array, db: vkpar.Array | None, eps: float) -> None:
    """Check gradients of rows: their bits differ from those with a weight of ones where compilers fuse products."""
    check(dx, *_gradient(values_of(x), values_of(g), eps, db is not None))
    if db is not None:
        rows, back = tuple(range(g.ndim - 1)), values_of(g)
        count = int(np.prod(g.shape[:-1]))
        check(db, back.sum(axis=rows), additions(count) * U * np.abs(back).sum(axis=rows))


def test_gradients_without_a_weight_over_several_buffers(
    reopen: Callable[..., vkpar.Device], rng: np.random.Generator
) -> None:
    """Rows lie to either side of borders between buffers."""
    device = reopen(max_buffer=4096, max_binding=4096)
    x, g = (device.array(normal(rng, (40, 300), "float32")) for _ in range(2))
    dx, _, db = vkpar.layer_norm_grad(x, None, g)
    _check_without_weight(x, g, dx, db, 1e-5)


def _gradient(exact: F64, product: F64, eps: float, centered: bool) -> tuple[F64, F64]:
    """Return the gradient of normed rows, where the weighted gradient of the results is ``product``, and its error."""
    unit, off = norm_error(exact, np.ones(1), np.zeros(1), eps, centered)
    inverse, gamma = _inverse(exact, eps, centered), 2 * depth(exact.shape[-1]) * U
    level = product.mean(axis=-1, keepdims=True) * centered
    slope = (product * unit).mean(axis=-1, keepdims=True)
    wrong = gamma * np.abs(product * unit).mean(axis=-1, keepdims=True)
    wrong = wrong + 1.1 * (np.abs(product) * off).mean(axis=-1, keepdims=True) + 4 * U * np.abs(slope)
    sizes = np.abs(product) + np.abs(level) + np.abs(unit * slope)
    scale = gamma * np.abs(product).mean(axis=-1, keepdims=True) + off * np.abs(slope) + np.abs(unit) * wrong
    return inverse * (product - level - unit * slope), inverse * (1.1 * scale + sizes * (gamma + 20 * U))


def _inverse(x: F64, eps: float, centered: bool) -> F64:
    off = x - x.mean(axis=-1, keepdims=True) if centered else x
    return 1 / np.sqrt((off * off).mean(axis=-1, keepdims=True) + eps)


# ---- swiglu ----


def swiglu_of(gate: F64, up: F64) -> tuple[F64, F64]:
    """Return what it is and its error: exp's, and of five operations."""
    with np.errstate(invalid="ignore", over="ignore"):
        y = gate / (1 + np.exp(-gate)) * up
        return y, np.abs(y) * U * (12 + 3 * np.abs(gate))


@pytest.mark.parametrize("types", ["float32 float32", "float16 float16", "bfloat16 bfloat16", "float16 float32"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33, 65), (2, 3, 1030)])
def test_swiglu(device: vkpar.Device, rng: np.random.Generator, shape: tuple[int, ...], types: str) -> None:
    kinds = types.split()
    x, y = (normal(rng, shape, kind, 5).reshape(shape) for kind in kinds)
    gate, up = (device.array(v, kind) for v, kind in zip((x, y), kinds, strict=True))
    expected = swiglu_of(x.astype(np.float64), y.astype(np.float64))
    for _ in range(2):
        made = vkpar.swiglu(gate, up)
        assert made.dtype == vkpar.add(gate, up).dtype
        check(made, *expected)
    if made.dtype == up.dtype:
        assert vkpar.swiglu(gate, up, out=up) is up
        check(up, *expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("half", [1, 5, 6, 64])
def test_swiglu_of_parts(device: vkpar.Device, rng: np.random.Generator, half: int, dtype: str) -> None:
    """Both parts of one projection, where they lie; odd rows of halves, and parts in other orders, by a copy."""
    values = normal(rng, (9, 2 * half), dtype)
    exact = values.astype(np.float64)
    a = device.array(values, dtype)
    for _ in range(2):
        check(vkpar.swiglu(a[:, :half], a[:, half:]), *swiglu_of(exact[:, :half], exact[:, half:]))
        check(vkpar.swiglu(a.T[:half], a.T[half:]), *swiglu_of(exact.T[:half], exact.T[half:]))
    vkpar.swiglu(a[:, :half], a[:, half:], out=a[:, half:])
    check(a[:, half:], *swiglu_of(exact[:, :half], exact[:, half:]))
    np.testing.assert_array_equal(values_of(a[:, :half].contiguous()), exact[:, :half])


def test_swiglu_of_special_values(device: vkpar.Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 100, -100, 0, 3e38, -3e38], np.float32)
    found = vkpar.swiglu(device.array(x), device.array(np.ones(8, np.float32))).numpy()
    np.testing.assert_array_equal(
        found[[0, 1, 2, 3, 5, 6]], np.array([np.nan, np.inf, np.nan, 100, 0, 3e38], np.float32)
    )
    assert (np.abs(found[[4, 7]]) < 1e-37).all()


def test_swiglu_over_several_buffers(reopen: Callable[..., vkpar.Device], rng: np.random.Generator) -> None:
    device = reopen(**SMALL)
    x, y = (normal(rng, 7001, "float16") for _ in range(2))
    gate, up = device.array(x, "float16"), device.array(y, "float16")
    check(vkpar.swiglu(gate, up), *swiglu_of(x.astype(np.float64), y.astype(np.float64)))


# ---- what all of them have in common ----

NAMES = ("softmax", "log_softmax", "layer_norm", "rms_norm")


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_views_at_odd_offsets(device: vkpar.Device, name: str, data: st.DataObject) -> None:
    """Operand and result anywhere in bigger arrays: nothing around the result changes, and bits are the same."""
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    rows, columns, before, at = (data.draw(st.integers(low, 9)) for low in (1, 1, 0, 0))
    in_place = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values, around = (rng.standard_normal(100).astype(dtype) for _ in range(2))
    size = rows * columns
    operation = getattr(vkpar, name)
    expected = operation(device.array(values[before : before + size].reshape(rows, columns))).numpy()
    source, target = device.array(values), device.array(around)
    if in_place:
        target, around, at = source, values, before
    a = source[before : before + size].reshape(rows, columns)
    out = target[at : at + size].reshape(rows, columns)
    assert operation(a, out=out) is out
    around[at : at + size] = expected.reshape(-1)
    np.testing.assert_array_equal(target.numpy(), around)


@pytest.mark.parametrize("name", NAMES)
def test_strided_operands(either: vkpar.Device, rng: np.random.Generator, name: str) -> None:
    operation, values = getattr(vkpar, name), rng.standard_normal((12, 40)).astype(np.float32)
    for view in (lambda a: a.T, lambda a: a[:, 3:30], lambda a: a[::2, ::-3]):
        expected = operation(either.array(view(values).copy())).numpy()
        np.testing.assert_array_equal(operation(view(either.array(values))).numpy(), expected)
        target = either.zeros((12, 40))
        operation(view(either.array(values)), out=view(target))
        np.testing.assert_array_equal(view(target.numpy()), expected)


SMALL = {"max_buffer": 8192, "max_binding": 4352, "ring_bytes": 20_000}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(90, 33), (9, 1000), (601, 2)])
def test_arrays_over_several_buffers(
    device: vkpar.Device,
    reopen: Callable[..., vkpar.Device],
    rng: np.random.Generator,
    shape: tuple[int, int],
    dtype: str,
) -> None:
    cut = reopen(**SMALL)
    x, r, w = (normal(rng, each, dtype) for each in (shape, shape, shape[1]))
    labels = rng.integers(0, shape[1], shape[0]).astype(np.int32)
    (a, b, c, label), (d, e, f, other) = (
        [each.array(v, dtype) for v in (x, r, w)] + [each.array(labels)] for each in (cut, device)
    )
    for name in NAMES:
        np.testing.assert_array_equal(getattr(vkpar, name)(a).numpy(), getattr(vkpar, name)(d).numpy())
    for one, two in zip(vkpar.rms_norm(a, c, residual=b), vkpar.rms_norm(d, f, residual=e), strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    np.testing.assert_array_equal(vkpar.cross_entropy(a, label).numpy(), vkpar.cross_entropy(d, other).numpy())
    vkpar.cross_entropy_grad(a, label, out=a)
    np.testing.assert_array_equal(a.numpy(), vkpar.cross_entropy_grad(d, other).numpy())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_longer_than_a_buffer(reopen: Callable[..., vkpar.Device], dtype: str) -> None:
    device = reopen(max_buffer=8192)
    a = device.zeros((2, 8192), dtype)
    for call in (vkpar.softmax, vkpar.layer_norm, vkpar.rms_norm):
        with pytest.raises(vkpar.UnsupportedError, match="a row has 8192 elements"):
            call(a)


def test_rows_longer_than_a_binding(reopen: Callable[..., vkpar.Device]) -> None:
    device = reopen(**SMALL)
    with pytest.raises(vkpar.UnsupportedError, match="a row has 2000 elements"):
        vkpar.softmax(device.zeros((2, 2000)))
    with pytest.raises(vkpar.UnsupportedError, match="at most"):
        vkpar.rms_norm(device.zeros((2, 2000), "float16"), residual=device.zeros((2, 2000)))


def test_sizes_without_elements(device: vkpar.Device) -> None:
    for shape in ((0,), (0, 3), (3, 0)):
        a = device.empty(shape, "float16")
        for name in NAMES:
            assert getattr(vkpar, name)(a).shape == shape
            assert getattr(vkpar, name)(a, out=a) is a
        y, h = vkpar.rms_norm(a, residual=a)
        assert y.shape == h.shape == shape
    assert vkpar.cross_entropy(device.empty((0, 3)), device.empty(0, "int32")).shape == (0,)
    assert vkpar.cross_entropy_grad(device.empty((0, 3)), device.empty(0, "int32")).shape == (0, 3)
    with pytest.raises(vkpar.InvalidUsageError, match="no classes"):
        vkpar.cross_entropy(device.empty((2, 0)), device.empty(2, "int32"))


def test_repeated_calls_take_their_recipes(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that were one and the same in the first call may be several in the next."""
    a, b = (device.array(np.full((3, 65), value, np.float16)) for value in (1, 2))
    labels = device.zeros(3, "int32")
    vkpar.softmax(a, out=a.copy())
    vkpar.rms_norm(b, residual=b)
    vkpar.layer_norm(a)
    vkpar.cross_entropy(a, labels)
    vkpar.swiglu(a, a)
    vkpar.rms_norm_grad(a, a[0].copy(), a)
    for name in ("softmax", "norms", "swiglu", "norm_grads"):
        monkeypatch.setattr(importlib.import_module(f"vkpar.ops.rows.{name}"), "Call", None)
    a = device.array(np.full((3, 65), 1, np.float16))
    vkpar.softmax(a, out=a)
    np.testing.assert_array_equal(a.numpy(), np.full((3, 65), 1 / 65, np.float16))
    y, h = vkpar.rms_norm(a, residual=b)
    np.testing.assert_array_equal(h.numpy(), (a.numpy() + b.numpy()))
    assert (y.numpy() == 1).all()
    assert (vkpar.layer_norm(b).numpy() == 0).all()
    assert vkpar.cross_entropy(b, labels).shape == (3,)
    check(vkpar.swiglu(a, b), *swiglu_of(values_of(a), values_of(b)))
    check(vkpar.rms_norm_grad(b, b[0].copy(), a)[1], values_of(a).sum(axis=0), 1e-6)


def test_captured(device: vkpar.Device, rng: np.random.Generator) -> None:
    x, r = (device.array(rng.standard_normal((9, 300)).astype(np.float32)) for _ in range(2))
    labels = device.zeros(9, "uint32")
    with vkpar.capture([device]) as graph:
        made = [vkpar.softmax(x), *vkpar.rms_norm(x, residual=r), vkpar.layer_norm(r), vkpar.cross_entropy(x, labels)]
    graph.launch().wait()
    eager = [vkpar.softmax(x), *vkpar.rms_norm(x, residual=r), vkpar.layer_norm(r), vkpar.cross_entropy(x, labels)]
    for one, two in zip(made, eager, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    graph.close()


@pytest.mark.parametrize("length", [4096, 9001, 16_384, 16_385])
def test_rows_about_as_long_as_are_kept(either: vkpar.Device, rng: np.random.Generator, length: int) -> None:
    x = normal(rng, (3, length), "float32")
    a, exact = either.array(x), x.astype(np.float64)
    check(vkpar.softmax(a), *softmax_error(exact))
    check(vkpar.layer_norm(a), *norm_error(exact, np.ones(1), np.zeros(1), 1e-5, True))


@pytest.mark.parametrize("length", [1, 5, 1000, 4097, 65_535, 65_536, 10**6, 2**24, 2**26])
def test_turns_of_loops(either: vkpar.Device, length: int) -> None:
    """An invocation stays below 65,535 turns of all its loops where drivers stop there, reading a row three times."""
    layout = rows_module.layout_of(either, length)
    if cpu.on_cpu(either) and layout.group * 65_536 < length:
        a = vkpar.Array(either.zeros(1).storage, 0, (1, length), either.zeros(1).dtype)
        with pytest.raises(vkpar.UnsupportedError, match="a row has"):
            rows_module.check_length("softmax", a)
        return
    turns = -(-length // (4 * layout.lanes))
    if cpu.on_cpu(either):
        assert 3 * turns + 3 * layout.lanes.bit_length() < 60_000
    assert turns <= layout.keep or not layout.kept
    assert layout.group % layout.lanes == 0
    assert turns + 8 + 7 * -(-layout.lanes.bit_length() // 3) <= depth(length)


Call = Callable[[vkpar.Device, vkpar.Array, vkpar.Array], object]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a, w: vkpar.softmax([1.0]), vkpar.InvalidUsageError, "a has to be a vkpar.Array, not list"),
        (lambda d, a, w: vkpar.softmax(a, 2), vkpar.InvalidUsageError, r"no axis 2 in an array of shape \(3, 4\)"),
        (lambda d, a, w: vkpar.softmax(a, 0.5), vkpar.InvalidUsageError, "whole number"),
        (lambda d, a, w: vkpar.softmax(d.zeros(())), vkpar.InvalidUsageError, "no axis -1"),
        (lambda d, a, w: vkpar.softmax(a[:2], out=a[1:]), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, w: vkpar.softmax(a, out=w), vkpar.InvalidUsageError, r"the result is \(3, 4\) float32"),
        (lambda d, a, w: vkpar.softmax(d.zeros(3, "int32")), vkpar.UnsupportedError, "not int32"),
        (lambda d, a, w: vkpar.layer_norm(a, d.zeros(3)), vkpar.InvalidUsageError, r"weight has shape \(3,\).*\(4,\)"),
        (lambda d, a, w: vkpar.layer_norm(a, w, d.zeros((1, 4))), vkpar.InvalidUsageError, "bias has shape"),
        (lambda d, a, w: vkpar.layer_norm(a, w, eps="x"), vkpar.InvalidUsageError, "eps is a number"),
        (lambda d, a, w: vkpar.rms_norm(a, w, 1e300), vkpar.InvalidUsageError, "eps is a number that float32 holds"),
        (lambda d, a, w: vkpar.layer_norm(a, a[0], out=a), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, w: vkpar.layer_norm(d.zeros(())), vkpar.InvalidUsageError, "one dimension or more"),
        (lambda d, a, w: vkpar.rms_norm(a, w, residual=w), vkpar.InvalidUsageError, "residual has shape"),
        (lambda d, a, w: vkpar.rms_norm(a, w, residual=a, out=a), vkpar.InvalidUsageError, r"pair of arrays \(y, h\)"),
        (lambda d, a, w: vkpar.rms_norm(a, w, residual=a, out=(a, a)), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, w: vkpar.rms_norm(a, w, out=(a, None)), vkpar.InvalidUsageError, "out is one array"),
        (lambda d, a, w: vkpar.rms_norm(a, d.zeros(4, "float64")), vkpar.UnsupportedError, "not .*float64"),
        (lambda d, a, w: vkpar.cross_entropy(a, w), vkpar.InvalidUsageError, "labels are int32 or uint32"),
        (lambda d, a, w: vkpar.cross_entropy(a, d.zeros(4, "int32")), vkpar.InvalidUsageError, r"\(N, classes\)"),
        (lambda d, a, w: vkpar.swiglu(a, w), vkpar.InvalidUsageError, "have one shape"),
        (lambda d, a, w: vkpar.swiglu(a[:2], a[1:], out=a[:2]), vkpar.InvalidUsageError, "share memory"),
        (lambda d, a, w: vkpar.layer_norm_grad(a, w, w), vkpar.InvalidUsageError, "x and grad have one shape"),
        (lambda d, a, w: vkpar.rms_norm_grad(a, None, w), vkpar.InvalidUsageError, "x and grad have one shape"),
        (lambda d, a, w: vkpar.layer_norm_grad(a, 1.0, a), vkpar.InvalidUsageError, "weight has to be a vkpar.Array"),
        (
            lambda d, a, w: vkpar.cross_entropy_grad(a, d.zeros(3, "int32"), "1"),
            vkpar.InvalidUsageError,
            "scale is a number",
        ),
    ],
)
def test_bad_arguments(device: vkpar.Device, call: Call, error: type[Exception], message: str) -> None:
    a, w = device.zeros((3, 4)), device.zeros(4)
    with pytest.raises(error, match=message):
        call(device, a, w)
