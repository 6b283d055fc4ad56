"""What all_reduce would take over many hosts, by its schedules: each rank and network port does one thing at a time.

    python tests/helpers/comm/scaling.py                               # the tables of docs/notes/scale.md
    mpiexec -n 2 python tests/helpers/comm/scaling.py --measure FILE   # what steps and messages take on this machine,
                                                                       # at best, where FILE was measured before
    python tests/helpers/comm/scaling.py FILE                          # the tables for that, and what was measured

A step takes a fixed time, and one for the bytes that it reads and writes; it begins once its rank is free and what it
reads is there. What crosses takes its turn at the sender's outgoing port and, independent of that, at the receiver's
incoming one, as flows share networks; it is there a latency after both. Slots are as many as on devices, and are used
again once everybody has read them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import vkpar
from vkpar.abi.formats import WIRES
from vkpar.comm.plan import choose
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.processes import Division, crossings
from vkpar.comm.schedule.steps import BLOCK, Barrier, Carry, Problem, SlotSet, Step

FORMAT = WIRES["f16"].format
BLOCK_NBYTES = FORMAT.payload + FORMAT.tail
SLOT_NBYTES = 512 << 10


@dataclass(frozen=True)
class Costs:
    """Seconds a step and bytes a second in a host; seconds and bytes a second, each way, between hosts."""

    step: float = 30e-6
    memory: float = 20e9
    latency: float = 30e-6
    network: float = 1.25e9


@dataclass(frozen=True)
class Predicted:
    """An all_reduce: seconds, hops between hosts on the longest way, and bytes that the busiest host sent."""

    seconds: float
    crossings: int
    sent: int


def nbytes_of(step: Step) -> int:
    """Return the bytes that a step reads from slots and writes to them."""
    actions = [action for action in step.actions if not isinstance(action, (Barrier, Carry))]
    return sum(
        action.span.blocks * BLOCK_NBYTES * (len(action.reads) + (action.out_slot is not None)) for action in actions
    )


def schedule(name: str, hosts: int, ranks: int, nbytes: int, *, apart: bool = True) -> list[Step]:
    """Return the steps of an all_reduce of so many bytes on the wire, over hosts of so many ranks each.

    ``apart`` is False where these are processes of one machine.
    """
    n, blocks = hosts * ranks, max(1, nbytes // BLOCK_NBYTES)
    algorithm = TABLE[name]
    plan = choose.Plan(algorithm)
    segment = min(choose.segment_nbytes(plan, n, nbytes, apart=apart), SLOT_NBYTES)
    slots = SlotSet(n, max(4, algorithm.least_slots(n)), max(1, segment // BLOCK_NBYTES))
    groups = tuple(Division((ranks,) * hosts, 0).processes)
    return list(algorithm.steps(Problem(n, blocks * BLOCK, slots, tuple(range(n)), groups=groups)))


def predict(name: str, hosts: int, ranks: int, nbytes: int, costs: Costs) -> Predicted:
    """Return what the schedule takes."""
    division = Division((ranks,) * hosts, 0)
    home = division.processes
    steps = schedule(name, hosts, ranks, nbytes, apart=costs.network < costs.memory)
    free: dict[int, float] = defaultdict(float)  # by rank
    out: dict[int, float] = defaultdict(float)  # by host, its outgoing port; `into` its incoming one
    into: dict[int, float] = defaultdict(float)
    there: dict[tuple[int, int], tuple[float, int]] = {}  # by slot and host: when it is there, after which crossings
    read: dict[int, float] = defaultdict(float)  # by slot, when all have read it
    sent: dict[int, int] = defaultdict(int)
    end, longest = 0.0, 0
    for step, crossing in zip(steps, crossings(steps, division), strict=True):
        host = home[step.rank]
        found = [there[slot, host] for slot in step.reads]
        begin = max(free[step.rank], *(at for at, _ in found), *(read[slot] for slot in step.writes), 0.0)
        hops = max((count for _, count in found), default=0)
        done = begin + costs.step + nbytes_of(step) / costs.memory
        free[step.rank], end, longest = done, max(end, done), max(longest, hops)
        for slot in step.reads:
            read[slot] = max(read[slot], done)
        for slot in step.writes:
            there[slot, host] = done, hops
        for other, actions in crossing:
            for action in actions:
                slot, carried = action.out_slot, action.span.blocks * BLOCK_NBYTES  # type: ignore[union-attr]
                assert slot is not None
                out[host] = max(done, out[host]) + carried / costs.network
                into[other] = max(done, into[other]) + carried / costs.network
                over = max(out[host], into[other])
                there[slot, other] = over + costs.latency, hops + 1
                read[slot] = max(read[slot], over)
                sent[host] += carried
    return Predicted(end, longest, max(sent.values(), default=0))


def bound(hosts: int, nbytes: int, costs: Costs) -> float:
    """Return what no all_reduce between hosts goes below: two latencies, 2 (P-1)/P of the bytes out of each port."""
    return 2 * costs.latency + 2 * (hosts - 1) / hosts * nbytes / costs.network


def table(shapes: Sequence[tuple[int, int]], sizes: Sequence[int], costs: Costs) -> list[str]:
    """Return lines of a table: by shape and size, the bound and each algorithm's time in milliseconds."""
    names = ("two_shot", "two_level", "ring")
    lines = [f"| hosts x ranks | on the wire | bound | {' | '.join(names)} |", "| --- | --- | --- | --- | --- | --- |"]
    for hosts, ranks in shapes:
        for nbytes in sizes:
            fit = [name for name in names if hosts * ranks <= TABLE[name].most_ranks]
            times = {name: f"{1e3 * predict(name, hosts, ranks, nbytes, costs).seconds:.2f}" for name in fit}
            size = f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes >> 10} KiB"
            least = f"{1e3 * bound(hosts, nbytes, costs):.2f}"
            lines.append(
                f"| {hosts} x {ranks} | {size} | {least} | {' | '.join(times.get(name, '-') for name in names)} |"
            )
    return lines


# ---- costs that were measured ----

SIZES = (64 << 10, 1 << 20, 8 << 20)  # bytes on the wire
ALGORITHMS = ("two_shot", "ring")
_FITTED = "two_shot"
_FEW, _MANY = SIZES[0], SIZES[-1]
MESSAGE = 4 << 20


def fitted(few: float, many: float, costs: Costs) -> Costs:
    """Return ``costs`` with those of steps that explain what an all_reduce of two ranks of one host takes.

    Args:
        few: seconds of ``two_shot`` with the fewest bytes of :data:`SIZES`; ``many`` with the most.
    """
    rows, seconds = [], (few, many)
    for nbytes in (_FEW, _MANY):
        steps = predict(_FITTED, 1, 2, nbytes, replace(costs, step=1.0, memory=float("inf"))).seconds
        rows.append([steps, predict(_FITTED, 1, 2, nbytes, replace(costs, step=0.0, memory=1.0)).seconds])
    step, byte = np.linalg.solve(rows, seconds)
    return replace(costs, step=float(step), memory=1 / float(byte))


def seconds_of(work: Callable[[], object], together: Callable[[], object] = lambda: None) -> float:
    """Return what ``work`` takes, the quickest tenth of some turns; ``together`` comes before each."""
    spent = []
    for _ in range(61):
        together()
        begun = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begun)
    return sorted(spent)[len(spent) // 10]  # the machine may have more to do


def sums(comm: vkpar.Communicator, nbytes: int, together: Callable[[], object] = lambda: None) -> float:
    """Return the seconds of an all_reduce of so many bytes on the f16 wire."""
    arrays = [device.zeros(nbytes // BLOCK_NBYTES * BLOCK) for device in comm.devices]
    return seconds_of(lambda: comm.all_reduce(arrays).wait(), together)


def measured(world: Any) -> dict[str, Any] | None:
    """Return the seconds of messages between two processes and of sums, in one and over both; None in the second."""
    me = world.rank
    given, taken = (np.zeros(MESSAGE, np.uint8) for _ in range(2))

    def back_and_forth() -> None:
        for turn in (0, 1):
            (world.Send if turn == me else world.Recv)([given, 8], 1 - turn if turn == me else turn)

    latency = seconds_of(back_and_forth, world.Barrier) / 2
    message = seconds_of(lambda: world.Sendrecv(given, 1 - me, recvbuf=taken, source=1 - me), world.Barrier)
    found: dict[str, Any] = {"latency": latency, "message": message}
    if me == 0:
        with vkpar.Communicator(vkpar.open_devices("llvmpipe*2"), algorithm=_FITTED) as comm:
            found |= {"few": sums(comm, _FEW), "many": sums(comm, _MANY)}
    found["seconds"] = times = {}
    devices = vkpar.open_devices("llvmpipe")
    for name in ALGORITHMS:
        with vkpar.Communicator(devices, mpi=world, algorithm=name) as comm:
            times[name] = {str(nbytes): max(world.allgather(sums(comm, nbytes, world.Barrier))) for nbytes in SIZES}
    return None if me else found


def quicker(found: Any, before: Any) -> Any:
    """Return the lesser of each two times: a machine that has more to do shows in some of them."""
    if isinstance(found, dict):
        return {name: quicker(one, before[name]) for name, one in found.items()}
    return min(found, before)


def costs_of(found: dict[str, Any]) -> Costs:
    """Return the costs that follow from what was measured."""
    links = Costs(latency=found["latency"], network=MESSAGE / found["message"])
    return fitted(found["few"], found["many"], links)


def compared(found: dict[str, Any]) -> list[str]:
    """Return lines of a table: what was measured between two processes beside what is predicted, in milliseconds."""
    costs = costs_of(found)
    lines = ["| on the wire | algorithm | measured | predicted | by |", "| --- | --- | --- | --- | --- |"]
    for name, by_size in found["seconds"].items():
        for nbytes, seconds in by_size.items():
            expected = predict(name, 2, 1, int(nbytes), costs).seconds
            size = f"{int(nbytes) >> 20} MiB" if int(nbytes) >> 20 else f"{int(nbytes) >> 10} KiB"
            lines.append(f"| {size} | {name} | {1e3 * seconds:.2f} | {1e3 * expected:.2f} | {seconds / expected:.2f} |")
    return lines


def tables(title: str, costs: Costs) -> None:
    """Print what sums over few and over many hosts take."""
    few, many = [(2, 1), (16, 1), (2, 4), (4, 4)], [(64, 1), (512, 1), (64, 8)]
    print(f"\n{title}\n")
    print("\n".join(table(few, (64 << 10, 1 << 20, 16 << 20), costs)))
    print("\n".join(table(many, (1 << 20,), costs)[2:]))


def main() -> None:
    """Print the tables, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="write what is measured, as one of two processes")
    parser.add_argument("file", nargs="?", type=Path, help="what was measured")
    options = parser.parse_args()
    if options.measure:
        from mpi4py import MPI

        found = measured(MPI.COMM_WORLD)
        if found is not None:
            before = json.loads(options.file.read_text()) if options.file.exists() else found
            options.file.write_text(json.dumps(quicker(found, before), indent=1))
    elif options.file:
        found = json.loads(options.file.read_text())
        print(f"{costs_of(found)}\n\n" + "\n".join(compared(found)))
        tables("as measured", costs_of(found))
    else:
        tables("1 Gbit/s, 100 us", Costs(latency=100e-6, network=0.125e9))
        tables("10 Gbit/s, 30 us", Costs())
        tables("100 Gbit/s, 5 us", Costs(latency=5e-6, network=12.5e9))


if __name__ == "__main__":
    main()
