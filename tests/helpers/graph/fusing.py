"""Sums in graphs, fused and not: what a launch leaves behind must be what eager calls leave, bit for bit.

CPU drivers have kernels of their own, of which nothing is fused. :func:`force_gpu` has them run those of GPUs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import vkpar
from vkpar.comm import wires

WIRES = wires.NAMES
SHARED = 33 << 10
Arrays = list[vkpar.Array]


def force_gpu(put: Callable[[Any, str, Any], None]) -> None:
    """Have products, additions, norms and the kernels of wires run as on GPUs; ``put`` is ``setattr``, or is undone."""
    products = importlib.import_module("vkpar.ops.matmul.dense")
    put(importlib.import_module("vkpar.ops.matmul.few"), "rows_at_once", lambda device: 8)
    put(importlib.import_module("vkpar.ops.matmul.few"), "by_lanes", lambda device: False)
    put(products, "kernel_for", lambda device, m: "matvec" if m <= products.matvec.MOST_ROWS else "matmul_small")
    put(products.matvec, "_MANY_SHARED", SHARED)  # no larger kernels than those whose variants fill slots here, too
    put(importlib.import_module("vkpar.ops.elementwise.cpu"), "FEW_TESTS_FLAT", 1 << 62)
    put(importlib.import_module("vkpar.ops.reduce.cpu"), "on_cpu", lambda device: False)
    put(importlib.import_module("vkpar.comm.record.kernels"), "processor", lambda info: "gpu")


class Sum:
    """Products of all ranks, and what sums of them are combined with; each array is written anew by :meth:`reset`.

    Attributes:
        x: (m, k); w: (k, n), or (n, k) where ``transposed``; y: (m, n); r: (m, n), the same on all ranks; by rank.
    """

    def __init__(
        self,
        comm: vkpar.Communicator,
        m: int,
        n: int,
        k: int = 40,
        *,
        transposed: bool = True,
        special: bool = False,
        weights: str = "float16",
    ) -> None:
        chance = np.random.default_rng([m, n, k])
        self.comm, self.transposed = comm, transposed
        self._values: list[tuple[vkpar.Array, np.ndarray[Any, Any]]] = []
        shape = (n, k) if transposed else (k, n)
        residual = chance.normal(size=(m, n)).astype(np.float32)
        self.x, self.w, self.y, self.r = [], [], [], []  # type: ignore[var-annotated]
        for device in comm.devices:
            x, w = (chance.normal(size=size).astype(np.float32) for size in ((m, k), shape))
            if special:
                spoil(x, w, residual)
            self.x.append(self.array(device, x))
            self.w.append(device.array(w.astype(weights)))
            self.y.append(self.array(device, np.full((m, n), np.nan, np.float32)))
            self.r.append(self.array(device, residual))

    def array(self, device: vkpar.Device, values: np.ndarray[Any, Any]) -> vkpar.Array:
        """Return an array that every reset gives these values."""
        self._values.append((device.array(values), values))
        return self._values[-1][0]

    def arrays(self, *shape: int) -> Arrays:
        """Return arrays, by rank, that every reset fills with NaN."""
        return [self.array(device, np.full(shape, np.nan, np.float32)) for device in self.comm.devices]

    def reset(self) -> None:
        """Write the arrays anew."""
        for array, values in self._values:
            array.write(values)

    def products(self, outs: Sequence[vkpar.Array] | None = None) -> Arrays:
        """Multiply on all ranks, into ``outs`` or y."""
        for x, w, out in zip(self.x, self.w, outs or self.y, strict=True):
            vkpar.matmul(x, w, transpose_b=self.transposed, out=out)
        return list(outs or self.y)

    def check(self, work: Callable[[], Arrays], fused: int, launches: int = 2) -> None:
        """Compare what ``work`` leaves in the arrays that it returns: eager, captured, and captured and fused."""
        self.reset()
        wanted = bits(work())
        for fuse in (False, True):
            with vkpar.capture(self.comm.devices, comm=self.comm, fuse=fuse) as graph:
                made = work()
            assert graph.stats().fused == (fused if fuse else 0)
            for _ in range(launches):
                self.reset()
                graph.launch().wait()
                assert bits(made) == wanted, f"fuse={fuse}"
            graph.close()


def layers(case: Sum, depth: int) -> Callable[[], Arrays]:
    """Return products whose sums go into norms, of which the next products are made."""

    def work() -> Arrays:
        x, states = list(case.x), list(case.r)
        for _ in range(depth):
            y = [vkpar.matmul(a, w, transpose_b=True) for a, w in zip(x, case.w, strict=True)]
            case.comm.all_reduce(y)
            pairs = [vkpar.rms_norm(a, residual=r) for a, r in zip(y, states, strict=True)]
            x, states = [a for a, _ in pairs], [h for _, h in pairs]
        return [*x, *states]

    return work


def check_launches(case: Sum, work: Callable[[], Arrays], made: Arrays, graph: vkpar.Graph, number: int) -> None:
    """Launch a graph of ``work``, which has made ``made``, with other values each time: old slots must not show."""
    for turn in range(number):
        for rank, x in enumerate(case.x):
            x.write(np.random.default_rng([turn, rank]).normal(size=x.shape).astype(np.float32))
        for launch in [graph.launch() for _ in range(3)]:
            launch.wait()
        found = bits(made)
        assert found == bits(work()), turn


def spoil(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], residual: np.ndarray[Any, Any]) -> None:
    """Have some sums be NaN and infinities, and others very large or very small."""
    w.reshape(-1)[3] = np.inf
    residual.reshape(-1)[1::97] = -np.inf
    residual.reshape(-1)[2::89] = np.nan
    x[-1] *= 1e30
    x[0, ::2] = 0.0
    if len(x) > 2:
        x[1] *= np.float32(1e-36)


def bits(arrays: Arrays) -> list[bytes]:
    """Return the arrays' bytes."""
    return [array.numpy().tobytes() for array in arrays]
