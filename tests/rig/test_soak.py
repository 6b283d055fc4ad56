"""Long runs: thousands of collectives of every kind, with delays, in threads; exact at every step, nothing grows."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.delays import Delays
from helpers.ops.reducing import devices_of, fresh_devices
from helpers.vulkan.handles import held

import vkpar

pytestmark = pytest.mark.rig
TURNS = 10_000 if FULL else 400
BLOCK = 250 if FULL else 200
EACH = 2_000 if FULL else 150
COUNTS = (1, 7, 255, 256, 257, 1000, 4097, 20_001)


class Replica:
    """Arrays on every rank beside what NumPy says they hold."""

    def __init__(self, devices: Sequence[vkpar.Device], count: int, rng: np.random.Generator) -> None:
        self.host = [rng.integers(-1000, 1000, count).astype(np.int32) for _ in devices]
        self.arrays = [device.array(part) for device, part in zip(devices, self.host, strict=True)]

    def check(self) -> None:
        for array, part in zip(self.arrays, self.host, strict=True):
            assert np.array_equal(array.numpy(), part)


class Soak:
    """Random collectives on the same devices."""

    def __init__(self, comms: Sequence[vkpar.Communicator], seed: int) -> None:
        self.comms = comms
        self.chance = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.devices = comms[0].devices
        self.replicas: list[Replica] = []

    def turn(self) -> None:
        """Do one collective, or change what they work on."""
        if len(self.replicas) < 6 or self.chance.random() < 0.05:
            self.replicas.append(Replica(self.devices, self.chance.choice(COUNTS), self.rng))
        if len(self.replicas) > 12:
            self.replicas.pop(self.chance.randrange(6)).check()
        one = self.chance.choice(self.replicas)
        kinds: list[Callable[[Any, Replica], Any]] = [self.reduce_all, self.reduce_all, self.reduce_all]
        kinds += [self.spread, self.shift, self.to_root, self.gather]
        self.chance.choice(kinds)(self.chance.choice(self.comms), one)
        if self.chance.random() < 0.02:
            self.chance.choice(self.replicas).check()

    def _of(self, comm: vkpar.Communicator, items: Sequence[Any]) -> list[Any]:
        """Return items, given by device, in the communicator's rank order."""
        return [items[self.devices.index(device)] for device in comm.devices]

    def reduce_all(self, comm: vkpar.Communicator, one: Replica) -> None:
        op = self.chance.choice(["sum", "sum", "max", "min", "prod"])
        comm.all_reduce(self._of(comm, one.arrays), op=op)
        function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
        with np.errstate(over="ignore"):
            total = function.reduce(one.host, dtype=np.int32)
        one.host = [total.copy() for _ in one.host]
        if self.chance.random() < 0.5:  # ranks that differ again
            rank = self.chance.randrange(len(self.devices))
            one.host[rank] = self.rng.integers(-1000, 1000, total.size).astype(np.int32)
            one.arrays[rank].write(one.host[rank])

    def spread(self, comm: vkpar.Communicator, one: Replica) -> None:
        root = self.chance.randrange(comm.nranks)
        comm.broadcast(self._of(comm, one.arrays), root)
        source = one.host[self.devices.index(comm.devices[root])]
        one.host = [source.copy() for _ in one.host]

    def shift(self, comm: vkpar.Communicator, one: Replica) -> None:
        n = comm.nranks
        arrays = self._of(comm, one.arrays)
        fresh = [device.empty(one.arrays[0].size, "int32") for device in comm.devices]
        comm.send_recv([(arrays[rank], fresh[(rank + 1) % n]) for rank in range(n)])
        hosts = self._of(comm, one.host)
        for rank in range(n):
            index = self.devices.index(comm.devices[(rank + 1) % n])
            one.arrays[index], one.host[index] = fresh[(rank + 1) % n], hosts[rank]

    def to_root(self, comm: vkpar.Communicator, one: Replica) -> None:
        root = self.chance.randrange(comm.nranks)
        comm.reduce(self._of(comm, one.arrays), root)
        index = self.devices.index(comm.devices[root])
        with np.errstate(over="ignore"):
            one.host[index] = np.add.reduce(one.host, dtype=np.int32)

    def gather(self, comm: vkpar.Communicator, one: Replica) -> None:
        """reduce_scatter and all_gather in one group: an all_reduce."""
        parts = np.array_split(np.zeros(one.arrays[0].size), comm.nranks)
        scattered = [device.empty(part.size, "int32") for device, part in zip(comm.devices, parts, strict=True)]
        arrays = self._of(comm, one.arrays)
        with comm.group():
            comm.reduce_scatter(arrays, out=scattered)
            comm.barrier()
            comm.all_gather(scattered, out=arrays)
        with np.errstate(over="ignore"):
            total = np.add.reduce(one.host, dtype=np.int32)
        one.host = [total.copy() for _ in one.host]


def resident() -> int:
    """Return this process's resident bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_ten_thousand_alternating_collectives(rigs: Rigs) -> None:
    """Random kinds, sizes, algorithms, rank orders and delays of single steps on a mixed rig of four."""
    devices = devices_of(rigs, "LSLS")
    with ExitStack() as stack:
        comms = [
            stack.enter_context(vkpar.Communicator(order, algorithm=algorithm, transport=transport))
            for order, algorithm, transport in (
                (devices, "ring", "staged"),
                (devices[::-1], "two_shot", "auto"),
                (devices, "tree", ["staged", "mapped", "staged", "staged"]),
                (devices[2:] + devices[:2], "naive", "auto"),
                (devices, "auto", "mapped"),
            )
        ]
        seen: list[tuple[dict[str, int], int]] = []
        late = 0
        for block in range(TURNS // BLOCK):
            soak = Soak(comms, block)
            with ExitStack() as delayed:
                gates = [delayed.enter_context(Delays(comm, block, share=0.05)) for comm in comms]
                for _ in range(BLOCK):
                    soak.turn()
                for one in soak.replicas:
                    one.check()
            late += sum(gate.held for gate in gates)
            del soak, one
            gc.collect()
            for device in devices:
                device.logical.reap()
            seen.append(({k: v for k, v in held(devices).items() if k != "Pipeline"}, resident()))
        assert late > TURNS // 10
        assert sum(comm.stats()["collectives"] for comm in comms) >= TURNS
        assert all(comm.stats()["bridges_pending"] == 0 for comm in comms)
        counts = [count for count, _ in seen]
        assert counts[-1] == counts[1], "handles grow"
        assert seen[-1][1] - seen[len(seen) // 2][1] < 24 << 20, "memory grows"


def test_two_communicators_in_opposite_order(rigs: Rigs) -> None:
    """Two threads, the same devices in opposite rank order: right, and no deadlock."""
    devices = fresh_devices(rigs, "LLS")
    failures: list[BaseException] = []

    def work(order: list[vkpar.Device], seed: int, algorithm: str) -> None:
        chance = random.Random(seed)
        try:
            with vkpar.Communicator(order, algorithm=algorithm) as comm:
                sets = [
                    [device.array(np.full(count, rank, np.int32)) for rank, device in enumerate(order)]
                    for count in (5, 1000, 9000)
                ]
                want = [np.full(1, 3, np.int32)] * 3  # 0 + 1 + 2, then three times as much each time
                done = [0] * 3
                for turn in range(EACH):
                    which = chance.randrange(3)
                    comm.all_reduce(sets[which])
                    done[which] += 1
                    if done[which] > 1:
                        want[which] = want[which] * np.int32(3)
                    if turn % 50 == 49:
                        comm.barrier().wait(60)
                for which, arrays in enumerate(sets):
                    for array in arrays:
                        assert done[which] == 0 or np.all(array.numpy() == want[which])
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(devices, 1, "ring"), daemon=True),
        threading.Thread(target=work, args=(devices[::-1], 2, "two_shot"), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(280)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not failures
    for device in devices:
        device.close()
