"""What vkpar itself chooses on a device: the pipelines that public calls make there, of many sizes and types."""

from __future__ import annotations

import itertools
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
from kernel_variants import Module, read

import vkpar
from vkpar.ops.attention import rates
from vkpar.ops.quantized.kinds import KINDS
from vkpar.parallel.models import Generation, open_model, tiny
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.pipelines.kernel import Pipeline, Traits

_OF_MEMORY: Final = ("host_import", "timeline_export", "foreign_queue_family")

Call = Callable[[vkpar.Device], Any]


def _module(*instructions: tuple[int, ...]) -> bytes:
    """Return the SPIR-V of some instructions: opcodes and their words."""
    words = [0x07230203, 0x00010000, 0, 5, 0]
    for opcode, *operands in instructions:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


FLOATS: Final = ("float32", "float16", "bfloat16")
_PRODUCTS: Final = (
    *((1, 64, 64), (1, 1000, 96), (1, 4096, 4096), (1, 14336, 4096), (2, 4096, 4096), (3, 31, 50), (5, 4096, 1024)),
    *((8, 14336, 4096), (9, 64, 64), (16, 4096, 4096), (33, 512, 512), (64, 64, 64), (128, 4096, 1024)),
    *((512, 4096, 4096), (2048, 2048, 2048), (100, 1000, 10), (256, 96, 8192)),
)
_ALONE: Final = 500
_QUERIES: Final = ((1, _ALONE), (1, 4096), (2, 64), (4, 4096), (5, 100), (9, 300), (24, 24), (100, 2000), (512, 512))
_ATTENTION: Final = tuple((*sizes, width) for sizes in _QUERIES for width in (24, 64, 80, 128, 256))
_ROWS: Final = ((5, 3), (4, 64), (3, 1001), (7, 4096), (2, 20_000))
_SUMS: Final = ((3, 4099), (4099, 6), (1, 70_001), (300, 300), (17,), (1 << 20,))
_MODELS: Final = ("f32", "f16", "bf16", *KINDS)
_MIXTURES: Final = (
    {"experts": 5, "active": 2},
    {"family": "qwen2moe", "experts": 6, "active": 2, "shared": 512, "normed": False},
)
# A kernel that does nothing stands in for those that are chosen: each is compiled once, behind the calls.
_EMPTY: Final = _module(
    (17, 1),  # capability Shader
    (14, 0, 1),  # logical addresses, GLSL450
    (15, 5, 1, *struct.unpack("<2I", b"main\0\0\0\0")),
    (16, 1, 17, 1, 1, 1),  # a local size of 1
    (19, 2),
    (33, 3, 2),
    (54, 2, 1, 0, 3),
    (248, 4),
    (253,),
    (56,),
)


def recorded(card: DeviceInfo, pattern: str = "", *, sample: int = 1) -> Iterator[tuple[Module, str, tuple[int, ...]]]:
    """Yield the kernels that calls on a card make pipelines of, and their constants.

    The calls run on Mesa's CPU driver, which passes for the card: all that is chosen depends on what is known of it.

    Args:
        card: what it is.
        pattern: that names match.
        sample: one call of so many is made.
    """
    found: dict[tuple[str, bytes, tuple[int, ...]], None] = {}
    whole = Pipeline.__init__

    def noting(self: Pipeline, device: Any, spirv: bytes, *given: Any, **_: Any) -> None:
        declared, entry, layout, constants = given[:4]
        name = given[4] if len(given) > 4 else ""
        whole(self, device, _EMPTY, declared, entry, layout, (), name)
        self.constants = tuple(constants)
        found[name, spirv, self.constants] = None

    # Kernels that do nothing cannot be compared: what is taken where it is measured to be faster counts as that.
    faster = mock.patch.object(rates, "faster", return_value=True)
    with vkpar.open_devices("llvmpipe")[0] as device, mock.patch.object(Pipeline, "__init__", noting), faster:
        passing = _passing(device.info, card)
        object.__setattr__(device, "info", passing)  # a device's attributes cannot be set otherwise
        device.logical.info = passing
        device.logical.pipelines._traits = Traits.of(passing, card.name)
        for call in list(calls())[::sample]:
            call(device)
            device.synchronize()
    for name, spirv, constants in found:
        if re.search(pattern, name):
            yield read(name or "expression", f"{name or 'expression'}.spv", spirv), "chosen", constants


def _passing(real: DeviceInfo, card: DeviceInfo) -> DeviceInfo:
    """Return a device that has the memory and the queues of one, and of the other all that kernels are chosen by."""
    kept = {name: getattr(real.features, name) for name in _OF_MEMORY}
    chosen = {name: getattr(card, name) for name in ("vendor", "vendor_id", "type", "driver_id", "api_version")}
    return replace(real, features=replace(card.features, **kept), limits=card.limits, **chosen)


def calls() -> Iterator[Call]:
    """Yield the calls, each of a few pipelines."""
    for shape, dtype, transposed in itertools.product(_PRODUCTS, FLOATS, (False, True)):
        yield _product(shape, dtype, transpose_b=transposed)
    for shape, dtype, causal in itertools.product(_ATTENTION, FLOATS, (False, True)):
        yield _attention(shape, dtype, causal=causal)
    for dtype in FLOATS:
        yield from (_rows(rows, dtype) for rows in _ROWS)
        yield from (_sums(sizes, dtype) for sizes in _SUMS)
    for kind, m, dtype in itertools.product(KINDS, (1, 2, 8, 16, 200), FLOATS):
        yield _quantised(kind, m, dtype)
    for dtype in FLOATS:
        yield _elementwise(dtype)
        yield _ordered(dtype)
        yield _trained(dtype)
    for dtype in ("int8", "uint16", "int32", "int64"):
        yield _whole(dtype)
    for kind in _MODELS:
        yield _model(kind)
    for mixture in _MIXTURES:
        yield from (_model(kind, **mixture) for kind in ("f32", "bf16", "q8_0", "q4_k"))


def _product(shape: tuple[int, int, int], dtype: str, *, transpose_b: bool) -> Call:
    m, n, k = shape

    def call(device: vkpar.Device) -> None:
        a, b = device.empty((m, k), dtype), device.empty((n, k) if transpose_b else (k, n), dtype)
        bias, residual = device.empty((n,), dtype), device.empty((m, n), dtype)
        vkpar.matmul(a, b, transpose_b=transpose_b)
        vkpar.matmul(a, b, transpose_b=transpose_b, dtype="float32")
        vkpar.matmul(a, b, transpose_b=transpose_b, bias=bias, activation="gelu", residual=residual)
        vkpar.matmul(device.empty((k, m), dtype), b, transpose_a=True, transpose_b=transpose_b)

    return call


def _attention(shape: tuple[int, int, int], dtype: str, *, causal: bool) -> Call:
    queries, keys, width = shape

    def call(device: vkpar.Device) -> None:
        q = device.empty((2 if keys == _ALONE else 8, queries, width), dtype)  # heads that share keys, but for one size
        k, v = (device.empty((2, keys, width), dtype) for _ in range(2))
        vkpar.attention(q, k, v, causal=causal and queries <= keys)
        if keys > 1:
            vkpar.attention(q, k, v, causal=causal and queries <= keys, window=keys // 2)

    return call


def _rows(shape: tuple[int, int], dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        a, weight = device.empty(shape, dtype), device.empty(shape[1:], dtype)
        vkpar.softmax(a)
        vkpar.rms_norm(a, weight, 1e-5)
        vkpar.rms_norm(a, weight, 1e-5, residual=device.empty(shape, dtype))
        vkpar.layer_norm(a, weight, weight, 1e-5)

    return call


def _sums(shape: tuple[int, ...], dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        a = device.empty(shape, dtype)
        for axis in (*range(len(shape)), None):
            for made in (vkpar.sum, vkpar.max, vkpar.argmax):
                made(a, axis)

    return call


def _quantised(kind: str, m: int, dtype: str) -> Call:
    found = KINDS[kind]

    def call(device: vkpar.Device) -> None:
        n, k = 512, 4096
        blocks = np.zeros((n, k // found.block * found.nbytes), np.uint8)
        q = vkpar.quantized(device, blocks, (n, k), kind)
        a = device.empty((m, k), dtype)
        vkpar.matmul(a, q, transpose_b=True)
        vkpar.matmul(a, q, transpose_b=True, residual=device.empty((m, n), dtype))

    return call


def _elementwise(dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        a, b = device.empty((37, 66), dtype), device.empty((37, 66), dtype)
        for other in (a + b, a * b[3], a.T - b.T, a[:, 1:6].contiguous(), vkpar.swiglu(a, b), vkpar.gelu(a)):
            vkpar.cast(other, "float32")
        vkpar.concatenate([a, b], 1)
        vkpar.elementwise("y = a * b + 1.0; z = max(a, b)")(a, b)
        vkpar.rope(device.empty((3, 4, 64), dtype), device.zeros((4,), "int32"))

    return call


def _ordered(dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        for shape in ((37, 66), (3, 50_000)):
            a, places = device.empty(shape, dtype), device.zeros(shape, "int32")
            vkpar.sort(a)
            vkpar.argsort(a, 0)
            vkpar.topk(a, 5)
            for axis in (0, 1):
                vkpar.cumsum(a, axis)
                vkpar.take_along_axis(a, places, axis)
            vkpar.take(a, places[0, :9])
            vkpar.flip(a)
            vkpar.repeat(a, 2, 0)
            vkpar.scatter_add(vkpar.cast(a, "float32"), 1, places, vkpar.cast(a, "float32"))
        vkpar.random.Generator(5).normal(device, 1000, dtype=dtype)

    return call


def _trained(dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        for shape in ((7, 66), (5, 4096)):
            a, weight, targets = (
                device.empty(shape, dtype),
                device.empty(shape[1:], dtype),
                device.zeros(shape[0], "int32"),
            )
            vkpar.layer_norm_grad(a, weight, a)
            vkpar.rms_norm_grad(a, weight, a)
            vkpar.cross_entropy(a, targets)
            vkpar.cross_entropy_grad(a, targets)
        picture = device.empty((2, 8, 16, 16), dtype)
        vkpar.conv2d(picture, device.empty((8, 8, 3, 3), dtype))
        vkpar.max_pool2d(picture, 2)
        vkpar.avg_pool2d(picture, 2)

    return call


def _whole(dtype: str) -> Call:
    def call(device: vkpar.Device) -> None:
        if dtype == "int64" and not device.info.features.int64:
            return
        a = device.zeros((37, 66), dtype)
        for made in (a + a, a * a[3], a.T - a.T, a > 1, vkpar.cumsum(a, 1), vkpar.sort(a), a[:, 1:6].contiguous()):
            vkpar.cast(made, "float32")
        for reduced in (vkpar.sum, vkpar.max, vkpar.argmax):
            reduced(a, 0)
            reduced(a, 1)

    return call


def _model(kind: str, **changes: Any) -> Call:
    def call(device: vkpar.Device) -> None:
        config = replace(tiny.SIZES, **{"hidden": 256, "intermediate": 512, "head_dim": 64, "context": 256, **changes})
        with tempfile.TemporaryDirectory() as folder, vkpar.Communicator([device]) as comm:
            path = Path(folder) / "tiny.gguf"
            tiny.write_gguf(path, config, tiny.weights(config), kind)
            with open_model(path) as file:
                model = file.load(comm, context=256)
                for prompt in (7, 40):
                    list(Generation(model, list(range(1, prompt)), steps=3))

    return call
