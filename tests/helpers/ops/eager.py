"""Random programs of eager operations, and what they come to on the host."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkpar

COUNT = 400  # elements of a pool
POOLS = 3

# One word is added to another: the kernel's own views may begin anywhere that the device can bind.
SOURCE = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer A { int a[]; };
layout(set = 0, binding = 1, std430) buffer B { int b[]; };
layout(push_constant) uniform Push { int factor; } push;
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < a.length() && i < b.length()) { b[i] = b[i] * 3 + a[i] * push.factor; }
}
"""


@dataclass(frozen=True)
class Step:
    """One operation: what it does, to which elements of which pools."""

    kind: str
    pools: tuple[int, int, int]
    starts: tuple[int, int, int]
    count: int
    word: int


def program(seed: int, steps: int = 60) -> list[Step]:
    """Return random steps; views of a pool overlap by any number of bytes, or not at all."""
    chance = random.Random(seed)
    made = []
    for _ in range(steps):
        kind = chance.choice(("add", "add", "add", "fresh", "copy", "bytes", "kernel", "fill", "read", "write", "drop"))
        count = chance.choice((1, 2, 7, 64, 65, 100))
        pools = tuple(chance.randrange(POOLS) for _ in range(3))
        near = chance.randrange(COUNT - 2 * count)
        starts = tuple(
            chance.choice((near, near + count, near + count - 1, chance.randrange(COUNT - count))) for _ in range(3)
        )
        starts = tuple(min(start, COUNT - count) for start in starts)
        made.append(Step(kind, pools, starts, count, chance.randrange(1000)))  # type: ignore[arg-type]
    return made


class OnDevice:
    """Runs steps on a device."""

    def __init__(self, device: vkpar.Device) -> None:
        self.device = device
        self.kernel = vkpar.Kernel(device, SOURCE)
        self.pools = [device.array(np.arange(COUNT, dtype=np.int32) + pool) for pool in range(POOLS)]
        self.seen: list[bytes] = []
        # A pool's bytes from an odd one on: copies touch parts of words that kernels touch.
        self.raw = device.array(np.zeros(COUNT, np.uint8))

    def run(self, step: Step) -> None:
        """Do one step."""
        (p, q, r), (i, j, k), n = step.pools, step.starts, step.count
        a, b, out = self.pools[p][i : i + n], self.pools[q][j : j + n], self.pools[r][k : k + n]
        if step.kind == "add":
            if allowed(step):
                vkpar.add(a, b, out=out)
        elif step.kind == "fresh":
            made = vkpar.add(a, b)
            vkpar.copy(vkpar.add(made, made), out)
        elif step.kind == "copy":
            vkpar.copy(a, out)
        elif step.kind == "bytes":
            vkpar.copy(self.raw[i : i + n], self.raw[i + 1 : i + 1 + n] if i + 1 + n <= COUNT else self.raw[i : i + n])
            self.raw.write(np.full(1, step.word % 256, np.uint8), (slice(i, i + 1),))
        elif step.kind == "kernel":
            self.kernel(2, self.pools[p], self.device.array(np.full(n, step.word, np.int32)), push=word(step.word))
            if p != r:
                self.kernel((7, 1), self.pools[p], self.pools[r], push=word(step.word))
        elif step.kind == "fill":
            out.fill_zeros()
        elif step.kind == "read":
            self.seen.append(a.numpy().tobytes())
        elif step.kind == "write":
            out.write(np.full(n, step.word, np.int32))
        else:
            self.pools[p] = vkpar.add(self.pools[p], self.pools[q])

    def result(self) -> list[bytes]:
        """Return all that was read, and what is there at the end."""
        return [*self.seen, *(pool.numpy().tobytes() for pool in self.pools), self.raw.numpy().tobytes()]


class OnHost(OnDevice):
    """Does the same with NumPy."""

    def __init__(self) -> None:
        self.pools: list[Any] = [np.arange(COUNT, dtype=np.int32) + pool for pool in range(POOLS)]
        self.seen = []
        self.raw: Any = np.zeros(COUNT, np.uint8)

    def run(self, step: Step) -> None:
        """Do one step."""
        (p, q, r), (i, j, k), n = step.pools, step.starts, step.count
        a, b, out = self.pools[p][i : i + n], self.pools[q][j : j + n], self.pools[r][k : k + n]
        if step.kind == "add":
            if allowed(step):
                out[:] = a + b
        elif step.kind == "fresh":
            out[:] = 2 * (a + b)
        elif step.kind == "copy":
            out[:] = a.copy()
        elif step.kind == "bytes":
            if i + 1 + n <= COUNT:
                self.raw[i + 1 : i + 1 + n] = self.raw[i : i + n].copy()
            self.raw[i] = step.word % 256
        elif step.kind == "kernel":
            if p != r:
                self.pools[r][:] = self.pools[r] * np.int32(3) + self.pools[p] * np.int32(step.word)
        elif step.kind == "fill":
            out[:] = 0
        elif step.kind == "read":
            self.seen.append(a.tobytes())
        elif step.kind == "write":
            out[:] = step.word
        else:
            self.pools[p] = self.pools[p] + self.pools[q]

    def result(self) -> list[bytes]:
        """Return all that was read, and what is there at the end."""
        return [*self.seen, *(pool.tobytes() for pool in self.pools), self.raw.tobytes()]


def allowed(step: Step) -> bool:
    """Say whether an addition may write where it does: elsewhere, or exactly in place."""
    (p, q, r), (i, j, k), n = step.pools, step.starts, step.count
    apart = [pool != r or start == k or abs(start - k) >= n for pool, start in ((p, i), (q, j))]
    return all(apart)


def word(value: int) -> bytes:
    """Return a push constant."""
    return np.int32(value).tobytes()


def run(machine: OnDevice, steps: list[Step], between: Callable[[int], None] = lambda index: None) -> list[bytes]:
    """Run a program, with ``between`` called after each step; return all that it makes."""
    with np.errstate(over="ignore"):
        for index, step in enumerate(steps):
            machine.run(step)
            between(index)
    return machine.result()
