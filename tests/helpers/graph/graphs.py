"""Random programs that run as they are, or captured: what a launch leaves behind must be the same, bit for bit."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkpar
from vkpar.comm import wires

COUNT = 700  # elements of a pool
POOLS = 3
WIRES = wires.NAMES
ALONE = ("add", "add", "fresh", "copy", "kernel", "param", "fill", "zeros", "cast", "matvec", "drop", "close")
ACROSS = (
    "across",
    "to",
    "sum",
    "sum",
    "total",
    "projection",
    "projection",
    "reduce",
    "spread",
    "gather",
    "exchange",
    "group",
    "barrier",
)

SOURCE = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer A { int a[]; };
layout(set = 0, binding = 1, std430) readonly buffer P { int p[]; };
layout(set = 0, binding = 2, std430) buffer B { int b[]; };
layout(push_constant) uniform Push { int factor; } push;
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < a.length() && i < b.length()) { b[i] = b[i] * 3 + a[i] * push.factor + p[0]; }
}
"""


@dataclass(frozen=True)
class Step:
    """One operation: what it does, on which device, to which elements of which pools; ``more`` are a group's."""

    kind: str
    rank: int
    other: int
    pools: tuple[int, int, int]
    starts: tuple[int, int, int]
    count: int
    word: int
    more: tuple[Step, ...] = ()


def program(
    seed: int, nranks: int = 1, steps: int = 25, *, comm: bool = False, across: Sequence[str] = ACROSS
) -> list[Step]:
    """Return random steps; views of a pool overlap by any number of elements, or not at all.

    With ``comm`` they are for several devices, and ``across`` says what they may do there.
    """
    chance = random.Random(seed)
    kinds = [*ALONE, *ALONE, *across] if comm else ALONE
    return [_step(chance, nranks, chance.choice(kinds)) for _ in range(steps)]


def _step(chance: random.Random, nranks: int, kind: str) -> Step:
    count = chance.choice((1, 2, 7, 64, 65, 100, 256))
    near = chance.randrange(COUNT - 2 * count)
    starts = tuple(
        min(chance.choice((near, near + count, near + count - 1, chance.randrange(COUNT - count))), COUNT - count)
        for _ in range(3)
    )
    rank, other = (chance.randrange(nranks) for _ in range(2))
    pools: Any = tuple(chance.randrange(POOLS) for _ in range(3))
    more: tuple[Step, ...] = ()
    if kind == "group":
        inner = [chance.choice(("sum", "total", "spread", "gather", "barrier")) for _ in range(chance.randint(1, 3))]
        more = tuple(_step(chance, nranks, each) for each in inner)
    return Step(kind, rank, other, pools, starts, count, chance.randrange(1000), more)  # type: ignore[arg-type]


class Machine:
    """Runs steps on devices, each time from the same arrays on; what is made on the way belongs to one run.

    Args:
        devices: the devices.
        comm: their communicator, for steps across devices.
    """

    def __init__(self, devices: Sequence[vkpar.Device], comm: vkpar.Communicator | None = None) -> None:
        self.devices, self.comm = list(devices), comm
        self.kernels = [vkpar.Kernel(device, SOURCE) for device in devices]
        base = np.arange(COUNT, dtype=np.int32)
        self.ints = [[device.array(base * (pool + 1) + rank) for pool in range(POOLS)] for rank, device in self._ranks]
        self.floats = [device.array((base % 61 - 30).astype(np.float32) * (rank + 1)) for rank, device in self._ranks]
        self.weights = [
            device.array(np.random.default_rng(rank).standard_normal((256, 256)).astype(np.float32))
            for rank, device in self._ranks
        ]
        self.params = [device.array(np.zeros(1, np.int32)) for device in devices]

    @property
    def _ranks(self) -> list[tuple[int, vkpar.Device]]:
        return list(enumerate(self.devices))

    def run(self, steps: Sequence[Step], params: Sequence[vkpar.Array] | None = None) -> list[vkpar.Array]:
        """Do the steps; return the arrays that they end with."""
        pools = [list(ints) for ints in self.ints]
        floats = list(self.floats)
        given = self.params if params is None else list(params)
        for step in steps:
            getattr(self, f"_{step.kind}")(step, pools, floats, given)
        return [array for ints in pools for array in ints] + floats

    def contents(self, more: Sequence[vkpar.Array] = ()) -> list[bytes]:
        """Return the bytes of the arrays that runs begin with, and of ``more``."""
        mine = [array for ints in self.ints for array in ints] + self.floats
        return [array.numpy().tobytes() for array in [*mine, *more]]

    # ---- on one device ----

    @staticmethod
    def _views(step: Step, pools: Sequence[Sequence[vkpar.Array]]) -> tuple[vkpar.Array, vkpar.Array, vkpar.Array]:
        ints, (p, q, r), (i, j, k), n = pools[step.rank], step.pools, step.starts, step.count
        return ints[p][i : i + n], ints[q][j : j + n], ints[r][k : k + n]

    def _add(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        a, b, out = self._views(step, pools)
        if _allowed(a, out) and _allowed(b, out):
            vkpar.add(a, b, out=out)

    def _fresh(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        a, b, out = self._views(step, pools)
        made = vkpar.add(a, b)
        vkpar.copy(vkpar.add(made, made), out)

    def _copy(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        a, _, out = self._views(step, pools)
        vkpar.copy(a, out)

    def _kernel(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        ints, (p, _, r) = pools[step.rank], step.pools
        if ints[p].storage is not ints[r].storage:
            self.kernels[step.rank](
                11, ints[p], self.params[step.rank].device.zeros(1, "int32"), ints[r], push=struct.pack("i", step.word)
            )

    def _param(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        ints, (p, _, r) = pools[step.rank], step.pools
        if ints[p].storage is not ints[r].storage:
            self.kernels[step.rank]((11, 1), ints[p], params[step.rank], ints[r], push=struct.pack("i", step.word))

    def _fill(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        self._views(step, pools)[2].fill_zeros()

    def _zeros(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        a, _, out = self._views(step, pools)
        if _allowed(a, out):
            vkpar.add(self.devices[step.rank].zeros(step.count, "int32"), a, out=out)

    def _cast(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        whole, (i, j, _), n = floats[step.rank], step.starts, step.count
        vkpar.copy(vkpar.cast(vkpar.cast(whole[i : i + n], "float16"), "float32"), whole[j : j + n])

    def _matvec(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        whole = floats[step.rank]
        made = vkpar.matmul(whole[:256].reshape(1, 256), self.weights[step.rank])
        small = vkpar.matmul(made, self.weights[step.rank])
        vkpar.copy(vkpar.cast(vkpar.cast(small.reshape(256), "float16"), "float32"), whole[256:512])

    def _drop(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        ints, (p, q, _) = pools[step.rank], step.pools
        ints[p] = vkpar.add(ints[p], ints[q])

    def _close(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        a, b, out = self._views(step, pools)
        with vkpar.add(a, b) as made:
            vkpar.copy(made, out)

    # ---- across devices ----

    def _across(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        (p, _, r), (i, _, k), n = step.pools, step.starts, step.count
        vkpar.copy(pools[step.rank][p][i : i + n], pools[step.other][r][k : k + n])

    def _to(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        (p, _, r), (i, _, k), n = step.pools, step.starts, step.count
        made = pools[step.rank][p][i : i + n].to(self.devices[step.other])
        vkpar.copy(vkpar.add(made, made), pools[step.other][r][k : k + n])

    def _sum(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        p, i, n = step.pools[0], step.starts[0], step.count
        op = ("sum", "prod", "max", "min")[step.word % 4]
        if step.word % 3:
            self._comm.all_reduce([ints[p] for ints in pools], op=op)
        else:
            sources = [ints[p][i : i + n] for ints in pools]
            self._comm.all_reduce(sources, op=op, out=[device.zeros(n, "int32") for device in self.devices])
            self._comm.all_reduce(sources, op=op)

    def _total(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        n, wire = 64 + step.word % 400, WIRES[step.word % 4]
        scaled = [whole[:n] for whole in floats]
        self._comm.all_reduce(scaled, op="avg", wire=wire)

    def _projection(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        """Products that are summed, and what is added to the sums: a graph may fuse all of that."""
        wire, how = WIRES[step.word % 4], step.word // 4 % 5
        n = (256, 192, 255)[step.count % 3]
        parts = [(floats[rank][:256].reshape(1, 256), self.weights[rank].reshape(-1)) for rank, _ in self._ranks]
        made = [vkpar.matmul(x, w[: 256 * n].reshape(256, n)) for x, w in parts]
        self._comm.all_reduce(made, op="sum", wire=wire)
        for rank, product in enumerate(made):
            flat, rest = product.reshape(n), floats[rank][256 : 256 + n]
            if how == 1:
                vkpar.add(flat, rest, out=flat)
            elif how == 2:
                vkpar.add(rest, flat, out=rest)
            elif how == 3:
                flat = vkpar.add(flat, rest)
            elif how == 4:
                flat = vkpar.add(flat, flat)
            vkpar.copy(vkpar.cast(vkpar.cast(flat, "float16"), "float32"), floats[rank][256 : 256 + n])

    def _reduce(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        arrays = [ints[step.pools[0]] for ints in pools]
        self._comm.reduce(arrays, step.rank)
        parts = [len(part) for part in np.array_split(np.zeros(COUNT), len(self.devices))]
        out = [device.empty(count, "int32") for device, count in zip(self.devices, parts, strict=True)]
        self._comm.reduce_scatter(arrays, out=out)
        self._comm.all_gather(out, out=[ints[step.pools[1]] for ints in pools])

    def _spread(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        self._comm.broadcast([ints[step.pools[0]] for ints in pools], step.rank)

    def _gather(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        n = len(self.devices)
        parts = [ints[step.pools[0]][: COUNT // n] for ints in pools]
        targets = [ints[step.pools[1]][: COUNT // n * n] for ints in pools]
        if step.pools[0] != step.pools[1]:
            self._comm.all_gather(parts, out=targets)

    def _exchange(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        n = len(self.devices)
        even = COUNT // n * n
        arrays = [ints[step.pools[0]][:even] for ints in pools]
        swapped = [device.empty(even, "int32") for device in self.devices]
        self._comm.all_to_all(arrays, out=swapped)
        self._comm.scatter(swapped[step.rank], step.rank, out=[array[: even // n] for array in arrays])
        self._comm.gather([array[: even // n] for array in arrays], step.other, out=swapped[step.other])
        self._comm.send_recv([(swapped[rank], arrays[(rank + 1) % n]) for rank in range(n)])

    def _group(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        with self._comm.group():
            for one in step.more:
                getattr(self, f"_{one.kind}")(one, pools, floats, params)

    def _barrier(self, step: Step, pools: Any, floats: Any, params: Any) -> None:
        self._comm.barrier()

    @property
    def _comm(self) -> vkpar.Communicator:
        assert self.comm is not None, "the steps are for a communicator"
        return self.comm


def _allowed(a: vkpar.Array, out: vkpar.Array) -> bool:
    apart = a.storage is not out.storage or abs(a.byte_offset - out.byte_offset) >= a.nbytes
    return apart or a.byte_offset == out.byte_offset


def check(
    eager: Machine,
    captured: Machine,
    steps: Sequence[Step],
    launches: int = 3,
    between: Callable[[int, Machine], object] = lambda turn, machine: None,
    *,
    overlap: bool = False,
) -> vkpar.Graph:
    """Run steps on one machine and launch them on another, equal one; all arrays must be the same after each run."""
    with vkpar.capture(captured.devices, comm=captured.comm, overlap=overlap) as graph:
        params = graph.param("word", "int32")
        kept = captured.run(steps, params)
    for turn in range(launches):
        word = turn // 2
        for device, param in zip(eager.devices, eager.params, strict=True):
            assert param.device is device
            param.write(np.full(1, word, np.int32))
        ended = eager.run(steps)
        graph.launch(word=word)
        between(turn, eager)
        between(turn, captured)
        assert captured.contents(kept) == eager.contents(ended), f"launch {turn}"
    return graph
