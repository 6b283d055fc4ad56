"""Every family of kernels that vkpar ships, on one device, against float64 with a derived bound.

What is only moved, compared or counted must be right bit for bit. A family is a function that yields cases: an array of
the device, what it is to hold, and how far it may be off before it is rounded to its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.random import Generator  # imported here: NumPy's lazy import can swallow a Ctrl-C
from numpy.typing import NDArray

import vkpar
from vkpar import Array, Device, dtypes
from vkpar.doctor import comparing, references
from vkpar.doctor.comparing import Answer
from vkpar.doctor.findings import FAILED, OK, Finding
from vkpar.doctor.functions import BINARY, F64, UNARY
from vkpar.doctor.place import Place
from vkpar.ops.matmul import dots
from vkpar.ops.quantized.kinds import KINDS, Kind
from vkpar.testing import U, additions, gamma

Host = NDArray[Any]
FLOATS: Final = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Bench:
    """What a family's cases are made on and of; ``quick`` asks for a sample of them."""

    device: Device
    rng: Generator
    quick: bool


@dataclass(frozen=True)
class Family:
    """Kernels that belong together.

    Attributes:
        name: of the check; ``title`` in words.
        cases: makes them.
    """

    name: str
    title: str
    cases: Callable[[Bench], Iterable[Answer]]


def checking(family: Family) -> Callable[[Place, int], Iterator[Finding]]:
    """Return the check of a family."""

    def check(place: Place, index: int) -> Iterator[Finding]:
        device, worst, number = place.device(index), 0.0, 0
        for case in family.cases(Bench(device, place.generator(family.name), place.quick)):
            place.stage(f"in {case.what}")
            wrong, off = comparing.compare(case)
            number += 1
            if case.made.dtype == "float32":  # else nearly all is the rounding of the result
                worst = max(worst, off)
            if wrong:
                yield Finding.of(FAILED, f"{case.what}: {wrong}", _FIX, case=case.what)
                return
        share = f"{worst:.0%}" if worst >= 0.01 else "under 1%"
        shown = f"{number} right, {f'float32 off by {share} of its bound at most' if worst else 'bit for bit'}"
        yield Finding.of(OK, shown, cases=number, worst=worst)

    return check


_FIX: Final = "compute nothing with this device until it is mended: update its driver, and report it (see the page)"


# ---- operands ----


def _normal(rng: Generator, shape: tuple[int, ...], dtype: str = "float32", scale: float = 1.0) -> Host:
    """Return random values that ``dtype`` holds, as float32."""
    values = (rng.standard_normal(shape) * scale).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return values.astype(dtype).astype(np.float32)


def _types(on: Bench) -> tuple[str, ...]:
    return FLOATS[:1] if on.quick else FLOATS


# ---- families ----


def _moved(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    whole = rng.integers(0, 1 << 32, (37, 65, 6), np.uint32)
    a = device.array(whole)
    yield Answer("a region with steps", a[3:30:4, ::-2, 1:5].contiguous(), whole[3:30:4, ::-2, 1:5], None)
    yield Answer("transpose", vkpar.transpose(a, (2, 0, 1)).contiguous(), whole.transpose(2, 0, 1), None)
    yield Answer("concatenate", vkpar.concatenate([a, a[:5]], axis=0), np.concatenate([whole, whole[:5]]), None)
    rows = rng.integers(0, 37, 50).astype(np.int32)
    yield Answer("take", vkpar.take(a, device.array(rows)), whole[rows], None)
    yield Answer("broadcast", vkpar.broadcast_to(a[:1], (4, 65, 6)).contiguous(), whole[:1].repeat(4, 0), None)
    yield Answer("arange", vkpar.arange(device, 1000), np.arange(1000, dtype=np.int32), None)


def _casts(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    values = rng.integers(0, 1 << 32, 20_000, np.uint32).view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(1.5))
    values = np.where(np.abs(values) < 2.0**-126, np.float32(0), values)  # some drivers flush smaller ones
    a = device.array(values)
    for name in FLOATS[1:]:
        with np.errstate(over="ignore"):
            wanted = values.astype(dtypes.resolve(name).numpy)
        narrow = vkpar.cast(a, name)
        yield Answer(f"float32 to {name}", narrow, wanted, None)
        yield Answer(f"{name} to float32", vkpar.cast(narrow, "float32"), wanted.astype(np.float32), None)


def _elementwise(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    functions = UNARY[::4] if on.quick else UNARY
    for dtype in _types(on):
        x, y = (_normal(rng, (61, 67), dtype, 3) for _ in range(2))
        y = np.where(y == 0, np.float32(1), y)
        a, b = device.array(x, dtype), device.array(y, dtype)
        for case in functions:
            positive = case.name in ("log", "sqrt", "rsqrt")
            given = np.maximum(np.abs(x), np.float32(2.0**-6)) if positive else x
            made = _unary(case.name)(device.array(given, dtype) if positive else a)
            exact = given.astype(np.float64)
            wanted = case.reference(exact)
            yield Answer(f"{case.name} of {dtype}", made, wanted, case.bound(wanted, exact))
        for case in BINARY:
            exact, other = x.astype(np.float64), y.astype(np.float64)
            wanted = case.reference(exact, other)
            yield Answer(
                f"{case.name} of {dtype}", getattr(vkpar, case.name)(a, b), wanted, case.bound(wanted, exact, other)
            )
    yield Answer("less", vkpar.less(a, b), x < y, None)
    yield Answer("where", vkpar.where(vkpar.less(a, b), a, b), np.minimum(x, y), 0.0)
    numbers = rng.integers(-(1 << 20), 1 << 20, (3, 1001), np.int32)
    yield Answer("add of int32", device.array(numbers) + device.array(numbers[0]), numbers + numbers[0], None)


def _unary(name: str) -> Callable[[Array], Array]:
    if name == "gelu_tanh":
        return lambda x: vkpar.gelu(x, approximate="tanh")
    found: Callable[[Array], Array] = getattr(vkpar, name)
    return found


def _products(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    shapes = [(1, 300, 260), (5, 64, 128), (70, 130, 96), (128, 128, 256)]
    for dtype in FLOATS[:2] if on.quick else FLOATS:
        for m, n, k in shapes[::2] if on.quick else shapes:
            x, w = _normal(rng, (m, k), dtype), _normal(rng, (n, k), dtype)
            a, b, turned = device.array(x, dtype), device.array(w, dtype), device.array(w.T.copy(), dtype)
            wanted, error = _product(x, w)
            sizes = f"{m} x {n} x {k} of {dtype}"
            yield Answer(f"{sizes}, transposed", vkpar.matmul(a, b, transpose_b=True), wanted, error)
            yield Answer(sizes, vkpar.matmul(a, turned), wanted, error)
    x, w = _normal(rng, (3, 40, 64)), _normal(rng, (3, 33, 64))
    made = vkpar.matmul(device.array(x), device.array(w), transpose_b=True)
    wanted, error = _product(x, w)
    yield Answer("three of float32", made, wanted, error)


def _product(x: Host, w: Host) -> tuple[F64, F64]:
    a, b = x.astype(np.float64), np.swapaxes(w.astype(np.float64), -1, -2)
    return a @ b, gamma(x.shape[-1] + 8) * (np.abs(a) @ np.abs(b)) + 1e-37


def _folded(on: Bench) -> Iterator[Answer]:
    """Products with a bias, an activation and a residual."""
    device, rng = on.device, on.rng
    for m in (1, 40):
        x, w, bias, rest = (
            _normal(rng, (m, 128)),
            _normal(rng, (72, 128), scale=0.1),
            *(_normal(rng, shape) for shape in ((72,), (m, 72))),
        )
        inner, error = _product(x, w)
        inner, error = inner + bias, error + U * np.abs(inner)
        wanted = np.maximum(inner, 0) + rest
        a, b, c, d = (device.array(each) for each in (x, w, bias, rest))
        made = vkpar.matmul(a, b, transpose_b=True, bias=c, activation="relu", residual=d)
        yield Answer(
            f"{m} rows with bias, relu and residual", made, wanted, error + 2 * U * (np.abs(inner) + np.abs(rest))
        )


def _quantized(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for kind in KINDS.values():
        rows, columns = 96, 512
        blocks = _blocks(rng, kind, rows, columns)
        weights = kind.decode(blocks)
        q = vkpar.quantized(device, blocks, (rows, columns), kind.name)
        yield Answer(f"{kind.name} made float32", q.dequantize(), weights, 2 * U * _sizes(kind, blocks))
        for m in (1, 40) if on.quick else (1, 4, 12, 40):
            x = _normal(rng, (m, columns))
            wanted = x.astype(np.float64) @ weights.astype(np.float64).T
            error = _quantized_error(device, x, kind, blocks, weights)
            yield Answer(f"{m} rows by {kind.name}", vkpar.matmul(device.array(x), q, transpose_b=True), wanted, error)


def _blocks(rng: Generator, kind: Kind, rows: int, columns: int) -> NDArray[np.uint8]:
    """Return random blocks, every byte any value, but for normal scales."""
    made = rng.integers(0, 256, (rows, columns // kind.block, kind.nbytes), np.uint8)
    scales = rng.standard_normal((rows, columns // kind.block, kind.halves)) * 0.02
    made[..., kind.scale_at : kind.scale_at + 2 * kind.halves] = scales.astype(np.float16).view(np.uint8)
    return made.reshape(rows, -1)


def _sizes(kind: Kind, blocks: NDArray[np.uint8]) -> F64:
    """Return what errors of weights are relative to: where there are minima, both parts of a weight."""
    weights = kind.decode(blocks).astype(np.float64)
    if kind.halves == 1:
        return np.abs(weights)
    without = blocks.copy().reshape(len(blocks), -1, kind.nbytes)
    without[..., 2:4] = 0
    scaled = kind.decode(without.reshape(len(blocks), -1)).astype(np.float64)
    return np.abs(scaled) + np.abs(scaled - weights)


def _quantized_error(device: Device, x: Host, kind: Kind, blocks: NDArray[np.uint8], weights: Host) -> F64:
    """Return how far a product may be off by any of the kernels.

    A term is rounded when it is multiplied, for each one added before it in its chunk, when the chunk is scaled, and
    for each chunk and invocation after it: K + 40 times at most. Weights that are made halves are rounded by
    2^-11 of themselves, or 2^-25. Integer dots round the row to within 2^-22 of the largest element of its chunk.
    """
    size, sums = np.abs(x).astype(np.float64), 1 + gamma(x.shape[1] + 40)
    error = (sums - 1) * (size @ _sizes(kind, blocks).T) + 1e-37
    if len(x) > 1:
        error += sums * (2.0**-11 * size @ np.abs(weights.astype(np.float64)).T + 2.0**-25 * size.sum(1, keepdims=True))
    elif dots.usable(device):
        largest = np.repeat(size.reshape(len(x), -1, kind.chunk).max(-1), kind.chunk, axis=1)
        error += sums * 2.0**-22 * (largest @ _sizes(kind, blocks).T)
    return error


def _reductions(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for dtype in _types(on):
        x = _normal(rng, (9, 1200, 7), dtype)
        a, exact = device.array(x, dtype), x.astype(np.float64)
        for axis in (0, 1, 2, None):
            terms = x.size if axis is None else x.shape[axis]
            error = np.abs(exact).sum(axis) * gamma(additions(terms))
            yield Answer(f"sum of {dtype} along {axis}", a.sum(axis), np.asarray(exact.sum(axis)), np.asarray(error))
            mean, off = exact.mean(axis), error / terms + 4 * U * np.abs(exact).mean(axis)
            yield Answer(f"mean of {dtype} along {axis}", vkpar.mean(a, axis), np.asarray(mean), np.asarray(off))
        yield Answer(f"max of {dtype}", vkpar.max(a, axis=1), x.max(1), 0.0)
        yield Answer(f"argmin of {dtype}", vkpar.argmin(a, axis=1), x.argmin(1), None)
    whole = rng.integers(-(1 << 31), 1 << 31, (40, 1200), np.int32)
    wrapped = whole.sum(1, dtype=np.int32)
    yield Answer("sum of int32", vkpar.sum(device.array(whole), 1), wrapped, None)


def _softmax(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for dtype in _types(on):
        for shape in ((5, 3), (33, 260), (2, 5000)):
            x = _normal(rng, shape, dtype, 4)
            a, exact = device.array(x, dtype), x.astype(np.float64)
            yield Answer(f"softmax of {shape} {dtype}", vkpar.softmax(a), *references.softmax_error(exact))
            yield Answer(f"log_softmax of {shape} {dtype}", vkpar.log_softmax(a), *references.log_error(exact))
    labels = rng.integers(0, 260, 33).astype(np.int32)
    x = _normal(rng, (33, 260), scale=4)
    logarithm, error = (each[np.arange(33), labels] for each in references.log_error(x.astype(np.float64)))
    yield Answer("cross entropy", vkpar.cross_entropy(device.array(x), device.array(labels)), -logarithm, error)


def _norms(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for dtype in _types(on):
        for shape in ((5, 7), (33, 256), (2, 4100)):
            x, w, b = (_normal(rng, each, dtype) for each in (shape, shape[-1:], shape[-1:]))
            a, weight, bias = (device.array(each, dtype) for each in (x, w, b))
            exact, scale, shift = (each.astype(np.float64) for each in (x, w, b))
            centered = references.norm_error(exact, scale, shift, 1e-5, centered=True)
            plain = references.norm_error(exact, scale, 0 * shift, 1e-5, centered=False)
            yield Answer(f"layer_norm of {shape} {dtype}", vkpar.layer_norm(a, weight, bias, 1e-5), *centered)
            yield Answer(f"rms_norm of {shape} {dtype}", vkpar.rms_norm(a, weight, 1e-5), *plain)


def _gradients(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for shape in ((33, 260), (2, 5000)):
        x, g, w = (_normal(rng, each) for each in (shape, shape, shape[-1:]))
        a, grad, weight = (device.array(each) for each in (x, g, w))
        exact, product = x.astype(np.float64), g.astype(np.float64) * w
        for centered in (True, False):
            function = vkpar.layer_norm_grad if centered else vkpar.rms_norm_grad
            made, name = function(a, weight, grad, 1e-5)[0], "layer_norm" if centered else "rms_norm"
            yield Answer(
                f"gradient of {name} of {shape}", made, *references.norm_gradient(exact, product, 1e-5, centered)
            )
    labels = rng.integers(0, 260, 33).astype(np.int32)
    x = _normal(rng, (33, 260), scale=4)
    y, error = references.softmax_error(x.astype(np.float64))
    y[np.arange(33), labels] -= 1
    made = vkpar.cross_entropy_grad(device.array(x), device.array(labels), 0.5)
    yield Answer("gradient of cross entropy", made, 0.5 * y, 0.5 * (error + 4 * U * np.abs(y)) + U)


def _rows(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for dtype in _types(on):
        x, y = (_normal(rng, (33, 130), dtype) for _ in range(2))
        made = vkpar.swiglu(device.array(x, dtype), device.array(y, dtype))
        yield Answer(f"swiglu of {dtype}", made, *references.swiglu_of(x.astype(np.float64), y.astype(np.float64)))
        places = np.array([0, 1, 5, 4095, 131_071, -3], np.int32)
        for style in ("llama", "neox"):
            x = _normal(rng, (3, len(places), 64), dtype)
            turned = references.turned(x.astype(np.float64), places.astype(np.int64), references.plain(64), style)
            made = vkpar.rope(device.array(x, dtype), device.array(places), style=style)
            yield Answer(f"rope of {dtype}, {style}", made, *turned)


def _attention(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    for dtype in _types(on):
        stored = dtype if device.info.features.cooperative_matrix else "float32"
        for queries, keys, width in ((1, 200, 64), (3, 77, 128), (70, 90, 64)):
            shapes = ((4, queries, width), (2, keys, width), (2, keys, width))
            host = [_normal(rng, shape, dtype) for shape in shapes]
            q, k, v = (device.array(each, dtype) for each in host)
            exact = [each.astype(np.float64) for each in host]
            for causal in (False, True):
                made = vkpar.attention(q, k, v, causal=causal)
                what = f"{queries} queries of {keys} keys of {dtype}{', causal' if causal else ''}"
                yield Answer(what, made, *references.attended(*exact, causal=causal, stored=stored))


def _caches(on: Bench) -> Iterator[Answer]:
    device, rng = on.device, on.rng
    cache = vkpar.KVCache(device, 2, 40, 64, "float16")
    k, v = (_normal(rng, (2, 30, 64), "float16") for _ in range(2))
    for start in (0, 10, 20):
        part = slice(start, start + 10)
        cache.append(device.array(k[:, part].copy()), device.array(v[:, part].copy()), start)
    yield Answer("keys", cache.k[:, :30].contiguous(), k.astype(np.float16), None)
    yield Answer("values", cache.v[:, :30].contiguous(), v.astype(np.float16), None)
    yield Answer("length", cache.length, np.array([30], np.uint32), None)


def _random(on: Bench) -> Iterator[Answer]:
    device = on.device
    yield Answer("Philox4x32-10", vkpar.random.bits(device, 4000, seed=7), references.philox(4000, 7), None)


FAMILIES: Final = (
    Family("moves", "regions, transposes, rows taken, joined and repeated", _moved),
    Family("casts", "float32 to 16 bits and back", _casts),
    Family("elementwise", "functions of elements", _elementwise),
    Family("products", "matrix products", _products),
    Family("folded", "products with bias, activation and residual", _folded),
    Family("quantized", "products by quantised weights", _quantized),
    Family("reductions", "sums, means, extremes and their places", _reductions),
    Family("softmax", "softmax, its logarithm and cross entropy", _softmax),
    Family("norms", "layer norm and RMS norm", _norms),
    Family("gradients", "gradients of norms and cross entropy", _gradients),
    Family("rows", "swiglu and rotary positions", _rows),
    Family("attention", "attention", _attention),
    Family("caches", "keys and values appended", _caches),
    Family("random", "random words", _random),
)
