#!/usr/bin/env python3
"""Times vkpar's operations beside NumPy's, in turns in one process, worst first: how a CPU driver does.

Processor time says what an operation takes where other work fills the cores: a driver's, which uses all of them, is
divided by their number, and NumPy's, of one thread, is not. ``times`` is the one over the other, ``wall`` the same of
the clock's time, which is the one to read on idle cores. Both reuse their results' memory where they can.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of NumPy's products; read when it is imported

import common
import numpy as np

import vkpar
from vkpar.bench.commands import whole
from vkpar.bench.frame.table import parse_size

_COLUMNS = 2048
_CUBES = (256, 1024)

Host = Any  # an array of NumPy's


class Case(NamedTuple):
    """One operation.

    Attributes:
        name: of the operation.
        ours: calls vkpar's, ``theirs`` NumPy's.
    """

    name: str
    ours: Callable[..., object]
    theirs: Callable[..., object]


class Times(NamedTuple):
    """What a case took, in milliseconds: medians of processor and clock time."""

    name: str
    ours: float
    ours_wall: float
    theirs: float
    theirs_wall: float

    @property
    def ratio(self) -> float:
        """Processor time, vkpar's over NumPy's."""
        return self.ours / self.theirs

    def line(self) -> str:
        """Return what is printed."""
        walls = f"{self.ours_wall:9.2f} {self.theirs_wall:9.2f} {self.ours_wall / self.theirs_wall:6.1f}"
        return f" {self.name:24s} {self.ours:9.2f} {self.theirs:9.2f} {self.ratio:6.1f} {walls}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="llvmpipe", help="a selector of one device (default: llvmpipe)")
    parser.add_argument("--size", type=parse_size, default=16 << 20, metavar="BYTES", help="of an array (default: 16M)")
    parser.add_argument("--repeat", type=whole(1), default=11, metavar="N", help="measure so often, take the median")
    parser.add_argument("--only", default="", metavar="WORD", help="operations whose names contain it")
    given = parser.parse_args(arguments)
    with vkpar.open_devices(given.device)[0] as device:
        cores = len(os.sched_getaffinity(0)) if device.info.type == "cpu" else 1
        print(f"# vkpar {vkpar.__version__}, NumPy {np.__version__} on {device.name}, {cores} cores: medians, ms")
        print(f"# {given.size >> 10} KiB, rows of {_COLUMNS}, float32 where nothing else is said")
        print("#operation                    vkpar     NumPy  times      wall     NumPy   wall")
        found = []
        for case in _cases(device, max(1, given.size // 4 // _COLUMNS)):
            if given.only in case.name:
                found.append(_measure(case, device, cores, given.repeat))
        for times in sorted(found, key=lambda times: -times.ratio):
            print(times.line())
    return 0


def _measure(case: Case, device: vkpar.Device, cores: int, repeat: int) -> Times:
    """Measure both sides in turns."""
    spent: tuple[list[tuple[float, float]], ...] = ([], [])
    for turn in range(repeat + 1):
        for side, (call, share) in enumerate(((case.ours, cores), (case.theirs, 1))):
            clock, processor = time.perf_counter(), time.process_time()
            kept = call()
            device.synchronize()
            took = (time.process_time() - processor) / share, time.perf_counter() - clock
            del kept
            if turn:  # the first one compiles
                spent[side].append(took)
    numbers = [1e3 * median(values) for side in spent for values in zip(*side, strict=True)]
    return Times(case.name, *numbers)


def _cases(device: vkpar.Device, rows: int) -> Iterator[Case]:
    values = np.random.default_rng(0).standard_normal((rows, _COLUMNS)).astype(np.float32)
    x, y = values, np.abs(values[::-1]) + np.float32(0.5)
    yield from _by_element(device, x, y)
    yield from _whole_numbers(device, x, y)
    yield from _shapes(device, x, y)
    yield from _reductions(device, x)
    yield from _orders(device, x)
    yield from _few_bits(device, x, y)
    for dtype in ("bool", "uint8", "int16", "float32", "int64", "float64"):
        yield from _of_type(device, x, dtype)
    yield from _rows(device, x, y)
    yield from _products(device, rows)


def _by_element(device: vkpar.Device, x: Host, y: Host) -> Iterator[Case]:
    a, b, out, put = device.array(x), device.array(y), device.empty(x.shape), np.empty_like(x)
    mask, put_mask, truth = device.empty(x.shape, "bool"), np.empty(x.shape, np.bool_), x < y
    bias, beside = device.array(y[0]), y[0].copy()
    condition = a < b
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(name, lambda f=ours: f(a, b, out=out), lambda f=theirs: f(x, y, out=put))
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(name, lambda f=ours: f(a, b, out=mask), lambda f=theirs: f(x, y, out=put_mask))
    for name in ("exp", "tanh", "abs", "negative"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(name, lambda f=ours: f(a, out=out), lambda f=theirs: f(x, out=put))
    for name in ("sqrt", "log"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(name, lambda f=ours: f(b, out=out), lambda f=theirs: f(y, out=put))
    yield Case("pow", lambda: vkpar.pow(b, 1.5, out=out), lambda: np.power(y, np.float32(1.5), out=put))
    yield Case("rsqrt", lambda: vkpar.rsqrt(b, out=out), lambda: np.divide(1, np.sqrt(y, out=put), out=put))
    yield Case("relu", lambda: vkpar.relu(a, out=out), lambda: np.maximum(x, 0, out=put))
    yield Case("sigmoid", lambda: vkpar.sigmoid(a, out=out), lambda: 1 / (1 + np.exp(-x)))
    yield Case("silu", lambda: vkpar.silu(a, out=out), lambda: x / (1 + np.exp(-x)))
    yield Case("gelu, tanh", lambda: vkpar.gelu(a, approximate="tanh", out=out), lambda: _gelu(x))
    yield Case("where", lambda: vkpar.where(condition, a, b, out=out), lambda: np.where(truth, x, y))
    yield Case("a number", lambda: vkpar.multiply(a, 2.0, out=out), lambda: np.multiply(x, np.float32(2), out=put))
    yield Case("a bias", lambda: vkpar.add(a, bias, out=out), lambda: np.add(x, beside, out=put))
    clip = vkpar.elementwise("y = clip(x, low, high)")
    yield Case("clip", lambda: clip(a, low=-1.0, high=1.0, out=out), lambda: np.clip(x, -1, 1, out=put))
    momentum = vkpar.elementwise("v2 = beta * v + g; w2 = w - rate * v2")
    w, v, put_w, put_v = device.zeros(x.shape), device.zeros(x.shape), np.zeros_like(x), np.zeros_like(x)
    yield Case(
        "momentum",
        lambda: momentum(v=v, g=a, w=w, beta=0.9, rate=0.1, out=(v, w)),
        lambda: np.subtract(put_w, 0.1 * np.add(np.multiply(put_v, 0.9, out=put_v), x, out=put_v), out=put_w),
    )
    half, half_out = a.astype("float16"), device.empty(x.shape, "float16")
    h, put_half = x.astype(np.float16), np.empty(x.shape, np.float16)
    yield Case("add, float16", lambda: vkpar.add(half, half, out=half_out), lambda: np.add(h, h, out=put_half))
    yield Case("cast to float16", lambda: vkpar.cast(a, "float16", out=half_out), lambda: x.astype(np.float16))
    yield Case("cast from float16", lambda: vkpar.cast(half, "float32", out=out), lambda: h.astype(np.float32))


def _gelu(x: Host) -> Host:
    inside = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inside))


def _whole_numbers(device: vkpar.Device, x: Host, y: Host) -> Iterator[Case]:
    n, m = (1000 * x).astype(np.int32), (1000 * y).astype(np.int32)
    a, b, out, put = device.array(n), device.array(m), device.empty(n.shape, "int32"), np.empty_like(n)
    mask, put_mask = device.empty(n.shape, "bool"), np.empty(n.shape, np.bool_)
    floats, put_floats = device.empty(n.shape), np.empty(n.shape, np.float32)
    source = device.array(x)
    for name in ("add", "multiply", "maximum"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(f"{name}, int32", lambda f=ours: f(a, b, out=out), lambda f=theirs: f(n, m, out=put))
    yield Case("less, int32", lambda: vkpar.less(a, b, out=mask), lambda: np.less(n, m, out=put_mask))
    shift = vkpar.elementwise("y = (x >> 3) & 255")
    yield Case(
        "bits, int32", lambda: shift(a, out=out), lambda: np.bitwise_and(np.right_shift(n, 3, out=put), 255, out=put)
    )
    yield Case("cast to int32", lambda: vkpar.cast(source, "int32", out=out), lambda: x.astype(np.int32))
    yield Case("cast from int32", lambda: vkpar.cast(a, "float32", out=floats), lambda: np.copyto(put_floats, n))
    yield Case("sum, int32", lambda: vkpar.sum(a), lambda: np.sum(n, dtype=np.int32))
    yield Case("max, int32", lambda: vkpar.max(a), lambda: np.max(n))


def _shapes(device: vkpar.Device, x: Host, y: Host) -> Iterator[Case]:
    a, out, put = device.array(x), device.empty(x.shape), np.empty_like(x)
    turned, put_turned = device.array(np.ascontiguousarray(y.T)), np.ascontiguousarray(y.T)
    yield Case("copy", lambda: out.copy_from(a), lambda: np.copyto(put, x))
    yield Case("fill", lambda: out.fill(1.5), lambda: put.fill(1.5))
    yield Case("arange", lambda: vkpar.arange(device, x.size), lambda: np.arange(x.size, dtype=np.int32))
    yield Case(
        "add, transposed", lambda: vkpar.add(a.T, turned, out=turned), lambda: np.add(x.T, put_turned, out=put_turned)
    )
    yield Case("contiguous(a.T)", lambda: vkpar.contiguous(a.T), lambda: np.ascontiguousarray(x.T))
    yield Case("contiguous(a[::-1])", lambda: vkpar.contiguous(a[::-1]), lambda: np.ascontiguousarray(x[::-1]))
    yield Case("contiguous(a[:, ::2])", lambda: vkpar.contiguous(a[:, ::2]), lambda: np.ascontiguousarray(x[:, ::2]))
    yield Case("add, halves of rows", lambda: a[:, :1024] + a[:, 1024:], lambda: x[:, :1024] + x[:, 1024:])
    half_rows = len(x) // 2
    top, bottom = a[:half_rows], a[half_rows:]
    yield Case(
        "concatenate, axis 0",
        lambda: vkpar.concatenate([top, bottom], out=out),
        lambda: np.concatenate([x[:half_rows], x[half_rows:]], out=put),
    )
    left, right = a[:, :1000].contiguous(), a[:, 1000:].contiguous()
    put_left, put_right = x[:, :1000].copy(), x[:, 1000:].copy()
    yield Case(
        "concatenate, axis 1",
        lambda: vkpar.concatenate([left, right], 1, out=out),
        lambda: np.concatenate([put_left, put_right], 1, out=put),
    )
    yield Case("stack", lambda: vkpar.stack([top, bottom]), lambda: np.stack([x[:half_rows], x[half_rows:]]))
    numbers = np.random.default_rng(1).integers(0, len(x), len(x)).astype(np.uint32)
    indices = device.array(numbers)
    yield Case("take, rows", lambda: vkpar.take(a, indices, out=out), lambda: np.take(x, numbers, 0))
    columns = np.random.default_rng(2).integers(0, x.shape[1], x.shape[1]).astype(np.uint32)
    places = device.array(columns)
    yield Case("take, columns", lambda: vkpar.take(a, places, 1, out=out), lambda: np.take(x, columns, 1))
    flat, line = a.reshape(x.size), x.reshape(x.size)
    every = np.random.default_rng(3).integers(0, x.size, x.size).astype(np.uint32)
    everywhere = device.array(every)
    yield Case("take, elements", lambda: vkpar.take(flat, everywhere), lambda: np.take(line, every))
    random, theirs = vkpar.random.Generator(0), np.random.default_rng(0)
    yield Case(
        "random.bits", lambda: random.bits(device, x.shape), lambda: theirs.integers(0, 1 << 32, x.shape, np.uint32)
    )
    yield Case("random.uniform", lambda: random.uniform(device, x.shape), lambda: theirs.random(x.shape, np.float32))
    yield Case(
        "random.normal", lambda: random.normal(device, x.shape), lambda: theirs.standard_normal(x.shape, np.float32)
    )


def _reductions(device: vkpar.Device, x: Host) -> Iterator[Case]:
    a = device.array(x)
    for name in ("sum", "mean", "max", "min", "argmax", "argmin"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(name, lambda f=ours: f(a), lambda f=theirs: f(x))
        for axis in (0, 1):
            yield Case(f"{name}, axis {axis}", lambda f=ours, n=axis: f(a, n), lambda f=theirs, n=axis: f(x, n))
    half, h = a.astype("float16"), x.astype(np.float16)
    yield Case("sum, float16", lambda: vkpar.sum(half), lambda: np.sum(h))
    yield Case("sum of a.T, axis 1", lambda: vkpar.sum(a.T, 1), lambda: np.sum(x.T, 1))


def _orders(device: vkpar.Device, x: Host) -> Iterator[Case]:
    a, x64 = device.array(x), x[: max(len(x) // 32, 1)]
    few, whole, n = device.array(x64), device.array(x, "int32"), x.astype(np.int32)
    long, n64, row = device.array(n.astype(np.int64)), n.astype(np.int64), x64[:1].repeat(16, 1)
    line = device.array(row)
    yield Case("sort", lambda: vkpar.sort(few), lambda: np.sort(x64, kind="stable"))
    yield Case("argsort", lambda: vkpar.argsort(few), lambda: np.argsort(x64, kind="stable"))
    yield Case("topk 64", lambda: vkpar.topk(line, 64), lambda: _topk(row, 64))
    for axis in (0, 1):
        yield Case(f"cumsum, axis {axis}", lambda n=axis: vkpar.cumsum(a, n), lambda n=axis: np.cumsum(x, n))
        yield Case(f"std, axis {axis}", lambda n=axis: vkpar.std(a, n), lambda n=axis: np.std(x, n))
        yield Case(f"any, axis {axis}", lambda n=axis: vkpar.any(a, n), lambda n=axis: np.any(x, n))
    yield Case("cumsum, int32", lambda: vkpar.cumsum(whole, 1), lambda: np.cumsum(n, 1, dtype=np.int32))
    yield Case("cumsum, int64", lambda: vkpar.cumsum(long, 1), lambda: np.cumsum(n64, 1))
    yield Case("add, int64", lambda: vkpar.add(long, long), lambda: np.add(n64, n64))
    for name in ("sum", "max", "argmax", "any"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(f"{name}, int64", lambda f=ours: f(long, 1), lambda f=theirs: f(n64, 1))
    mask, picked = device.array(x > 1), x > 1
    yield Case("a[mask]", lambda: a[mask], lambda: x[picked])
    for name, device_side, host_side in (("float32", a, x), ("int64", long, n64)):
        yield Case(
            f"pad, {name}", lambda d=device_side: vkpar.pad(d, 2, "edge"), lambda h=host_side: np.pad(h, 2, "edge")
        )
        yield Case(f"roll, {name}", lambda d=device_side: vkpar.roll(d, 3, 1), lambda h=host_side: np.roll(h, 3, 1))
        yield Case(
            f"tile, {name}",
            lambda d=device_side: vkpar.tile(d[:99], (4, 2)),
            lambda h=host_side: np.tile(h[:99], (4, 2)),
        )


def _topk(x: Host, k: int) -> tuple[Host, Host]:
    places = np.argpartition(x, -k, axis=-1)[..., -k:]
    order = np.argsort(-np.take_along_axis(x, places, -1), -1)
    places = np.take_along_axis(places, order, -1)
    return np.take_along_axis(x, places, -1), places


def _few_bits(device: vkpar.Device, x: Host, y: Host) -> Iterator[Case]:
    n, m = (50 * x).astype(np.uint8), (50 * y).astype(np.uint8)
    a, b, out, put = device.array(n), device.array(m), device.empty(n.shape, "uint8"), np.empty_like(n)
    floats, put_floats, source = device.empty(n.shape), np.empty(n.shape, np.float32), device.array(x)
    mask, put_mask = device.empty(n.shape, "bool"), np.empty(n.shape, np.bool_)
    for name in ("add", "multiply", "maximum", "bitwise_and"):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        yield Case(f"{name}, uint8", lambda f=ours: f(a, b, out=out), lambda f=theirs: f(n, m, out=put))
    yield Case("less, uint8", lambda: vkpar.less(a, b, out=mask), lambda: np.less(n, m, out=put_mask))
    yield Case("cast to uint8", lambda: vkpar.cast(source, "uint8", out=out), lambda: x.astype(np.uint8))
    yield Case("cast from uint8", lambda: vkpar.cast(a, "float32", out=floats), lambda: np.copyto(put_floats, n))
    yield Case("sum, uint8", lambda: vkpar.sum(a), lambda: np.sum(n, dtype=np.uint32))
    yield Case("max, uint8", lambda: vkpar.max(a), lambda: np.max(n))
    yield Case("max, uint8, axis 0", lambda: vkpar.max(a, 0), lambda: np.max(n, 0))
    yield Case("argmax, uint8", lambda: vkpar.argmax(a, 1), lambda: np.argmax(n, 1))
    yield Case("roll, uint8", lambda: vkpar.roll(a, 3, 1), lambda: np.roll(n, 3, 1))
    few, x64 = device.array(n[:64]), n[:64]
    yield Case("sort, uint8", lambda: vkpar.sort(few), lambda: np.sort(x64, kind="stable"))


def _of_type(device: vkpar.Device, x: Host, dtype: str) -> Iterator[Case]:
    bits = np.random.default_rng(4).integers(0, 1 << 63, x.shape, np.uint64)
    host = (bits % 2 if dtype == "bool" else bits).astype(dtype) if dtype[0] != "f" else x.astype(dtype)
    some, none, every = host[: max(len(x) // 4, 1)], np.zeros_like(host), np.ones_like(host)
    a, part, zeros, ones = device.array(host), device.array(some), device.array(none), device.array(every)
    for length in (4, 16, 64, 256, some.shape[1], some.size):
        few, rows = some.reshape(-1, length), part.reshape(-1, length)
        for name in ("sort", "argsort"):
            ours, theirs = getattr(vkpar, name), getattr(np, name)
            yield Case(
                f"{name}, {dtype}, {length}", lambda f=ours, r=rows: f(r), lambda f=theirs, r=few: f(r, kind="stable")
            )
    for name, device_side, host_side in (
        ("any", zeros, none),
        ("all", ones, every),
        *((n, a, host) for n in ("max", "prod", "count_nonzero", "argmax")),
    ):
        ours, theirs = getattr(vkpar, name), getattr(np, name)
        for axis in (0, 1, None):
            yield Case(
                f"{name}, {dtype}, axis {axis}",
                lambda f=ours, d=device_side, n=axis: f(d, n),
                lambda f=theirs, h=host_side, n=axis: f(h, n),
            )
    for times in (2, 3, 4):
        yield Case(
            f"repeat {times}, {dtype}", lambda n=times: vkpar.repeat(a, n, 1), lambda n=times: np.repeat(host, n, 1)
        )
        yield Case(
            f"stack {times}, {dtype}", lambda n=times: vkpar.stack([a] * n, 2), lambda n=times: np.stack([host] * n, 2)
        )
    yield Case(f"flip, {dtype}", lambda: vkpar.flip(a, 1).contiguous(), lambda: np.flip(host, 1).copy())
    yield Case(f"turned, {dtype}", lambda: vkpar.contiguous(a.T), lambda: np.ascontiguousarray(host.T))
    yield Case(
        f"every second, {dtype}", lambda: vkpar.contiguous(a[:, ::2]), lambda: np.ascontiguousarray(host[:, ::2])
    )


def _rows(device: vkpar.Device, x: Host, y: Host) -> Iterator[Case]:
    a, b, out = device.array(x), device.array(y), device.empty(x.shape)
    scale, shift = device.array(y[0]), device.array(x[0])
    numbers = np.random.default_rng(1).integers(0, x.shape[1], len(x))
    labels, at = device.array(numbers, "uint32"), np.arange(len(x))
    weight, bias, gradient = y[0].copy(), x[0].copy(), np.float32(1 / len(x))
    yield Case("softmax", lambda: vkpar.softmax(a, out=out), lambda: _softmax(x))
    yield Case("softmax, axis 0", lambda: vkpar.softmax(a, 0, out=out), lambda: _softmax(x, 0))
    yield Case("log_softmax", lambda: vkpar.log_softmax(a, out=out), lambda: _log_softmax(x))
    yield Case("cross_entropy", lambda: vkpar.cross_entropy(a, labels), lambda: -_log_softmax(x)[at, numbers])

    def hot() -> Host:
        made = _softmax(x)
        made[at, numbers] -= 1
        made *= gradient
        return made

    yield Case("cross_entropy_grad", lambda: vkpar.cross_entropy_grad(a, labels, out=out), hot)
    yield Case("layer_norm", lambda: vkpar.layer_norm(a, scale, shift, out=out), lambda: _normal(x) * weight + bias)
    yield Case("layer_norm_grad", lambda: vkpar.layer_norm_grad(a, scale, b), lambda: _layer_norm_grad(x, weight, y))
    yield Case("rms_norm", lambda: vkpar.rms_norm(a, scale, out=out), lambda: _rms(x) * weight)
    yield Case("rms_norm_grad", lambda: vkpar.rms_norm_grad(a, scale, b), lambda: _rms_norm_grad(x, weight, y))
    yield Case("swiglu", lambda: vkpar.swiglu(a, b, out=out), lambda: x / (1 + np.exp(-x)) * y)
    heads, positions = x.reshape(16, -1, 128), np.arange(x.size // 16 // 128)
    turned, where = device.array(heads), device.array(positions, "uint32")
    yield Case("rope", lambda: vkpar.rope(turned, where), lambda: _rope(heads, positions))


def _softmax(x: Host, axis: int = -1) -> Host:
    powers = x - x.max(axis, keepdims=True)
    np.exp(powers, out=powers)
    powers /= powers.sum(axis, keepdims=True)
    return powers


def _log_softmax(x: Host) -> Host:
    from_top = x - x.max(-1, keepdims=True)
    from_top -= np.log(np.exp(from_top).sum(-1, keepdims=True))
    return from_top


def _normal(x: Host) -> Host:
    centred = x - x.mean(-1, keepdims=True)
    centred /= np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))
    return centred


def _rms(x: Host) -> Host:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))


def _layer_norm_grad(x: Host, weight: Host, grad: Host) -> tuple[Host, Host, Host]:
    normal, inner = _normal(x), grad * weight
    factor = 1 / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))
    along = (inner * normal).mean(-1, keepdims=True)
    return (inner - inner.mean(-1, keepdims=True) - normal * along) * factor, (grad * normal).sum(0), grad.sum(0)


def _rms_norm_grad(x: Host, weight: Host, grad: Host) -> tuple[Host, Host]:
    factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    normal, inner = x * factor, grad * weight
    return (inner - normal * (inner * normal).mean(-1, keepdims=True)) * factor, (grad * normal).sum(0)


def _rope(x: Host, positions: Host) -> Host:
    angles = positions[:, None] * 10000.0 ** (-np.arange(64) / 64)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    low, high = x[..., :64], x[..., 64:]
    return np.concatenate([low * cosines - high * sines, high * cosines + low * sines], -1)


def _products(device: vkpar.Device, rows: int) -> Iterator[Case]:
    for size in _CUBES:
        x, y = (np.random.default_rng(seed).standard_normal((size, size)).astype(np.float32) for seed in (0, 1))
        a, b, out, put = device.array(x), device.array(y), device.empty((size, size)), np.empty_like(x)
        yield Case(
            f"matmul {size}",
            lambda a=a, b=b, o=out: vkpar.matmul(a, b, out=o),
            lambda x=x, y=y, o=put: np.matmul(x, y, out=o),
        )
        yield Case(
            f"matmul {size}, a.T",
            lambda a=a, b=b, o=out: vkpar.matmul(a.T, b, out=o),
            lambda x=x, y=y, o=put: np.matmul(x.T, y, out=o),
        )
        yield Case(
            f"matmul {size}, b.T",
            lambda a=a, b=b, o=out: vkpar.matmul(a, b.T, out=o),
            lambda x=x, y=y, o=put: np.matmul(x, y.T, out=o),
        )
    heads = np.random.default_rng(0).standard_normal((16, 128, 128)).astype(np.float32)
    batch = device.array(heads)
    yield Case("matmul 16 x 128", lambda: batch @ batch, lambda: heads @ heads)
    matrix = np.random.default_rng(0).standard_normal((rows, _COLUMNS)).astype(np.float32)
    w, v, u = device.array(matrix), device.array(matrix[0]), device.array(matrix[:, 0])
    vector, upright = matrix[0].copy(), matrix[:, 0].copy()
    yield Case("matrix @ vector", lambda: w @ v, lambda: matrix @ vector)
    yield Case("vector @ matrix", lambda: u @ w, lambda: upright @ matrix)


if __name__ == "__main__":
    sys.exit(common.main(main))
