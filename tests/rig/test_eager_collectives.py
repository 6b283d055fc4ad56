"""Eager operations and collectives in turns: program order holds across both, with barriers everywhere and without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.ops.eager import OnDevice, OnHost, program
from helpers.ops.reducing import devices_of, fresh_devices

import vkpar
from vkpar import env

pytestmark = [pytest.mark.rig, pytest.mark.usefixtures("compiler")]


def on_devices(devices: list[vkpar.Device], seeds: range) -> list[bytes]:
    """Run a program on each rank with sums over all of them between its steps."""
    found: list[bytes] = []
    with vkpar.Communicator(devices, deterministic=True) as comm:
        for seed in seeds:
            machines = [OnDevice(device) for device in devices]
            programs = [program(100 * seed + rank) for rank in range(len(devices))]
            for index, steps in enumerate(zip(*programs, strict=True)):
                for machine, step in zip(machines, steps, strict=True):
                    machine.run(step)
                if index % 7 == 0:
                    comm.all_reduce([machine.pools[index % 3] for machine in machines])
                if index % 11 == 0:
                    vkpar.copy(machines[0].pools[0], machines[-1].pools[1])
            for machine in machines:
                found += machine.result()
    return found


def on_host(nranks: int, seeds: range) -> list[bytes]:
    """Do the same with NumPy."""
    found: list[bytes] = []
    with np.errstate(over="ignore"):
        for seed in seeds:
            machines = [OnHost() for _ in range(nranks)]
            programs = [program(100 * seed + rank) for rank in range(nranks)]
            for index, steps in enumerate(zip(*programs, strict=True)):
                for machine, step in zip(machines, steps, strict=True):
                    machine.run(step)
                if index % 7 == 0:
                    total = sum(machine.pools[index % 3] for machine in machines)
                    for machine in machines:
                        machine.pools[index % 3] = total.copy()
                if index % 11 == 0:
                    machines[-1].pools[1] = machines[0].pools[0].copy()
            for machine in machines:
                found += machine.result()
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letters", ["LL", "SS", "LS", "LSL"])
def test_programs_with_collectives_between(
    letters: str, rigs: Callable[[str], list[vkpar.Device]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(4)
    want = on_host(len(letters), seeds)
    assert on_devices(devices_of(rigs, letters), seeds) == want
    with env.override(debug="barriers"):
        careful = fresh_devices(rigs, letters)
        try:
            assert on_devices(careful, seeds) == want
        finally:
            for device in careful:
                device.close()
