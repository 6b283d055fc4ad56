"""Eight threads that use, close and reopen everything at random: run as a program, in a process of its own.

    python tests/helpers/process/storm.py SELECTOR SECONDS SEED

What a thread computes lies in arrays of its own, so that it is exact; the devices, kernels, communicators and graphs
are everybody's, and closed by anybody. A call is done, or refused because something is closed. At the end it prints
the deeds that were never done, nothing else; any other error, a wrong number, a hang or a handle that is left ends it
with a traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import random
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np

import vkpar
from vkpar.vulkan import api

THREADS, NDEVICES = 8, 3
HANG_SECONDS = 120.0
GLSL = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Data { uint x[]; };
layout(push_constant) uniform Push { uint n; uint add; };
void main() { if (gl_GlobalInvocationID.x < n) x[gl_GlobalInvocationID.x] += add; }
"""
DEEDS = ("operate", "reduce", "elementwise", "kernel", "time", "collect", "group", "capture", "launch", "move")
DEEDS += ("region", "host", "report")
ENDS = ("reopen", "end_comm", "end_graph", "end_kernel")
EXPRESSIONS = [f"y = x * {factor} + {term}" for factor in (2, 3, 5) for term in (1, 7)]


class Storm:
    """What the threads share.

    Args:
        selector: of one driver's device.
        seed: of everything that is drawn by lot.
    """

    def __init__(self, selector: str, seed: int) -> None:
        self.selector, self.seed = selector, seed
        self.devices = vkpar.open_devices(f"{selector}*{NDEVICES}")
        self.comms: list[Any] = [None, None]
        self.graphs: list[Any] = [None, None, None]
        self.kernels: list[Any] = [None, None]
        self.failures: list[BaseException] = []
        self.done: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self, seconds: float) -> None:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in threads:
            thread.join()
        for owner in (*self.graphs, *self.comms, *self.kernels, *self.devices):
            if owner is not None:
                owner.close()
        if self.failures:
            raise self.failures[0]

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        deeds, ends = [getattr(self, name) for name in DEEDS], [getattr(self, name) for name in ENDS]
        while not self.over.is_set():
            deed = chance.choice(ends if chance.random() < 0.08 else deeds)
            try:
                deed(chance)
                self.done[deed.__name__] += 1
            except vkpar.InvalidUsageError as error:  # another thread has closed what it takes, or captures the device
                if not any(word in str(error) for word in ("clos", "captur")):
                    self._failed(error)
            except BaseException as error:
                self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.over.set()

    # ---- what is drawn by lot ----

    def device(self, chance: random.Random) -> vkpar.Device:
        return self.devices[chance.randrange(NDEVICES)]

    def comm(self, chance: random.Random) -> vkpar.Communicator:
        place = chance.randrange(len(self.comms))
        made: vkpar.Communicator | None = self.comms[place]
        if made is None or made.closed:
            ranks = chance.sample(self.devices, chance.randint(2, NDEVICES))
            made = vkpar.Communicator(ranks, algorithm=chance.choice(["auto", "ring", "two_shot"]))
            self._put(self.comms, place, made)
        return made

    def _put(self, held: list[Any], place: int, made: Any) -> None:
        """Share ``made``; another thread may have shared one meanwhile, which is dropped without a close."""
        held[place] = made

    # ---- deeds ----

    def operate(self, chance: random.Random) -> None:
        device = self.device(chance)
        m, k, n = (chance.randint(1, 40) for _ in range(3))
        a, b = device.full((m, k), 2), device.full((k, n), 3)
        check(vkpar.matmul(a, b) + 1, 6 * k + 1)

    def reduce(self, chance: random.Random) -> None:
        a = self.device(chance).full(
            (chance.randint(1, 30), chance.randint(1, 300)), 1, chance.choice(["float32", "int32"])
        )
        axis = chance.choice([None, 0, 1])
        check(a.sum(axis), a.size if axis is None else a.shape[axis])

    def elementwise(self, chance: random.Random) -> None:
        number = chance.randrange(len(EXPRESSIONS))
        found = vkpar.elementwise(EXPRESSIONS[number])(self.device(chance).full(chance.randint(1, 999), 1))
        check(found, [3, 9, 4, 10, 6, 12][number])

    def kernel(self, chance: random.Random) -> None:
        place = chance.randrange(len(self.kernels))
        made = self.kernels[place]
        if made is None or made.closed or made.device.closed:
            made = vkpar.Kernel(self.device(chance), GLSL)
            self._put(self.kernels, place, made)
        a = made.device.zeros(500, "uint32")
        for _ in range(3):
            made(8, a, push={"n": 500, "add": 5})
        check(a, 15)

    def time(self, chance: random.Random) -> None:
        with vkpar.Kernel(self.device(chance), GLSL) as made:
            a = made.device.zeros(100, "uint32")
            with contextlib.suppress(vkpar.UnsupportedError):
                made.time(2, a, push={"n": 100, "add": 1}, repeat=2)

    def collect(self, chance: random.Random) -> None:
        comm = self.comm(chance)
        count = chance.choice([1, 255, 1000, 20_001])
        arrays = [device.full(count, rank + 1, "int32") for rank, device in enumerate(comm.devices)]
        work = comm.all_reduce(arrays)
        if chance.random() < 0.5:
            work.wait()
        check(chance.choice(arrays), comm.nranks * (comm.nranks + 1) // 2)

    def group(self, chance: random.Random) -> None:
        comm = self.comm(chance)
        arrays = [device.full(100, rank, "int32") for rank, device in enumerate(comm.devices)]
        with comm.group():
            comm.broadcast(arrays, 1)
            comm.barrier()
            comm.all_reduce(arrays)
        check(arrays[0], comm.nranks)

    def capture(self, chance: random.Random) -> None:
        place = chance.randrange(len(self.graphs))
        n = chance.randint(1, 30)
        if chance.random() < 0.5:
            device = self.device(chance)
            a, out = device.full((n, n), 1), device.empty((n, n))
            with vkpar.capture(device) as graph:
                vkpar.matmul(a, a, out=out)
            outs, want = [out], n
        else:
            comm = self.comm(chance)
            outs, want = [device.empty((n, n)) for device in comm.devices], n * comm.nranks
            ones = [device.full((n, n), 1) for device in comm.devices]
            with vkpar.capture(comm.devices, comm=comm) as graph:
                for one, out in zip(ones, outs, strict=True):
                    vkpar.matmul(one, one, out=out)
                comm.all_reduce(outs)
        graph.launch().wait()
        check(outs[0], want)
        self._put(self.graphs, place, graph)

    def launch(self, chance: random.Random) -> None:
        graph = chance.choice(self.graphs)
        if graph is not None:
            for _ in range(3):
                work = graph.launch()
            work.wait()
            graph.stats()

    def move(self, chance: random.Random) -> None:
        source, target = chance.sample(self.devices, 2)
        check(source.full(chance.randint(1, 3000), 4).to(target), 4)

    def region(self, chance: random.Random) -> None:
        a = self.device(chance).full((20, 30), 6, "int32")
        a[2:5, 3:9].write(np.full((3, 6), 7, np.int32))
        check(a[2:5, 3:9].T.copy(), 7)
        check(a[5:], 6)

    def host(self, chance: random.Random) -> None:
        device = self.device(chance)
        with vkpar.host_array(1024, "float32", [device]) as memory:
            memory.numpy()[:] = 8
            check(device.array(memory), 8)

    def report(self, chance: random.Random) -> None:
        device, comm = self.device(chance), chance.choice(self.comms)
        device.memory()
        device.trim()
        device.synchronize()
        if comm is not None:
            comm.dump()
            comm.stats()

    # ---- ends ----

    def reopen(self, chance: random.Random) -> None:
        place = chance.randrange(NDEVICES)
        old = self.devices[place]
        if chance.random() < 0.8:
            old.close()
        self.devices[place] = vkpar.open_devices(self.selector)[0]
        if chance.random() < 0.5:
            old.close()

    def end_comm(self, chance: random.Random) -> None:
        self._end(self.comms, chance)

    def end_graph(self, chance: random.Random) -> None:
        self._end(self.graphs, chance)

    def end_kernel(self, chance: random.Random) -> None:
        self._end(self.kernels, chance)

    def _end(self, held: list[Any], chance: random.Random) -> None:
        """Close one, or let go of it."""
        place = chance.randrange(len(held))
        if chance.random() < 0.7 and held[place] is not None:
            held[place].close()
        else:
            held[place] = None


def check(found: vkpar.Array, want: float) -> None:
    values = found.numpy()
    assert np.all(values == want), (values, want)


def main(selector: str, seconds: float, seed: int) -> None:
    faulthandler.dump_traceback_later(seconds + HANG_SECONDS, exit=True)
    storm = Storm(selector, seed)
    storm.run(seconds)
    print(*(name for name in (*DEEDS, *ENDS) if not storm.done[name]))
    del storm
    gc.collect()
    vkpar.open_devices(selector)[0].close()  # closes what was dropped
    left = api.load().live()
    assert left == {"Instance": 1}, left
    assert threading.active_count() == 1, threading.enumerate()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
