"""The devices together, of one process, and over several: data over every link, sums, and a captured step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import vkpar
from vkpar import Communicator, Device, dtypes, env
from vkpar.bench.measure.checked import CheckedCollective
from vkpar.bench.measure.collectives import TABLE, Setting, ranks_of
from vkpar.bench.measure.job import Job
from vkpar.comm import wires
from vkpar.comm.rig.transports import mapped, peer, staged
from vkpar.comm.schedule.algorithms.table import TABLE as _ALL
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.doctor.place import Place
from vkpar.errors import VkparError
from vkpar.text import number
from vkpar.timeouts import DOCTOR_COLLECTIVE_SECONDS

ALGORITHMS: Final = tuple(_ALL)
_HOST: Final = (staged.NAME, mapped.NAME)  # the transports that go through host memory
_COUNTS: Final = (6, 40_003)  # less than a block, and several with a piece that nothing divides
_WORDS: Final = 70_001
_ROUNDS: Final = 3
_OF_ONE_MODEL: Final = "direct"  # every rank adds, so that all must round alike
OPENED: Final = "processes"
_CARRIED: Final = "run vkpar doctor on each host without mpiexec, and MPI's own tests: one of the two carries wrongly"
_LINK: Final = "use these two together no more: update their drivers, and report it (VKPAR_LINK=bridged may help)"


def links(place: Place, indices: Sequence[int]) -> Iterator[Finding]:
    """Check that what each rank sends arrives at each other rank, again and again; tell how they are linked."""
    devices = place.rig(indices)
    n = len(devices)
    with env.override(tuning="off"), Communicator(devices, timeout=DOCTOR_COLLECTIVE_SECONDS) as comm:
        kinds = {(link.src, link.dst): link for link in comm.links()}
        transports = comm.transports()
        wrong: dict[int, list[int]] = {}
        for turn in range(_ROUNDS):
            for src, dst in kinds:
                place.stage(f"while rank {src} sends to rank {dst}")
                if not _arrives(place, comm, src, dst, turn):
                    wrong.setdefault(src, []).append(dst)
    for src in range(n):
        told = "; ".join(f"to {dst} {link.kind} ({link.reason})" for (a, dst), link in kinds.items() if a == src)
        bad = wrong.get(src, [])
        made = [{"dst": d, "kind": link.kind, "ok": d not in bad} for (a, d), link in kinds.items() if a == src]
        data: dict[str, Any] = {"links": made, "transport": transports[src]}
        if bad:
            at = ", ".join(str(dst) for dst in dict.fromkeys(bad))
            yield Finding.of(FAILED, f"what it sends arrives wrong at rank {at}: {told}", _LINK, f"rank {src}", **data)
        else:
            yield Finding.of(OK, f"{transports[src]}, {told}", "", f"rank {src}", **data)


def _arrives(place: Place, comm: Communicator, src: int, dst: int, turn: int) -> bool:
    words = place.generator(f"{src} {dst} {turn}").integers(0, 1 << 32, _WORDS, np.uint32)
    with comm.devices[src].array(words) as source, comm.devices[dst].zeros(_WORDS, "uint32") as target:
        comm.send_recv([(source, target)]).wait()
        return bool((target.numpy() == words).all())


def summing(algorithm: str) -> Callable[[Place, Sequence[int]], Iterator[Finding]]:
    """Return the check of an algorithm: exact sums of every wire, in place and not, over each transport."""

    def check(place: Place, indices: Sequence[int]) -> Iterator[Finding]:
        ranks = _alike(place, indices) if algorithm == _OF_ONE_MODEL else list(indices)
        infos = [place.info(index) for index in ranks]
        imports = all(info.features.host_import for info in infos)
        for transport in (*_HOST, peer.NAME) if peer.offer(infos)[0] else _HOST:
            if transport == staged.NAME and not imports:
                yield Finding.of(SKIPPED, f"{transport}: not every device imports host memory, as import says")
            else:
                yield _sums(place, place.rig(ranks), algorithm, transport)

    return check


def _alike(place: Place, indices: Sequence[int]) -> list[int]:
    """Return the ranks on devices of the first one's model and driver; that one twice where it is the only one."""
    models = [(info.name, info.driver_uuid) for info in map(place.info, indices)]
    found = [index for index, model in zip(indices, models, strict=True) if model == models[0]]
    return found if len(found) > 1 else found * 2


def _sums(place: Place, devices: Sequence[Device], algorithm: str, transport: str) -> Finding:
    place.stage(f"over the transport {transport}")
    used = wires.NAMES if transport != mapped.NAME or not place.quick else wires.NAMES[:1]
    with env.override(tuning="off"), _opened(devices, algorithm, transport) as comm:
        wrong = {wire: found for wire in used if (found := _wrong(place, comm, wire))}
    ranks = "" if algorithm != _OF_ONE_MODEL else f" on {len(devices)} ranks of one model"
    if not wrong:
        return Finding.of(OK, f"{transport}{ranks}: wires {', '.join(used)}", transport=transport)
    told = ", ".join(f"{number} wrong elements on the wire {wire}" for wire, number in wrong.items())
    return Finding.of(FAILED, f"{transport}{ranks}: {told}", _LINK, transport=transport, wrong=wrong)


def _opened(devices: Sequence[Device], algorithm: str, transport: str) -> Communicator:
    return Communicator(devices, transport=transport, algorithm=algorithm, timeout=DOCTOR_COLLECTIVE_SECONDS)


def _wrong(place: Place, comm: Communicator, wire: str) -> int:
    wrong = 0
    for count in _COUNTS:
        for in_place in (False, True):
            setting = Setting(comm.devices, dtypes.float32, count, wire=wire)
            place.stage(f"in an all_reduce of {count} float32 on the wire {wire}")
            wrong += CheckedCollective(TABLE["all_reduce"], comm, setting, in_place=in_place).wrong()
    return wrong


def replicas(place: Place, indices: Sequence[int]) -> Iterator[Finding]:
    """Check that all ranks get the same bits of sums of any numbers, from call to call too."""
    devices = place.rig(indices)
    rng = place.generator("replicas")
    numbers = [rng.standard_normal(_WORDS).astype(np.float32) * np.float32(10.0**rank) for rank in range(len(devices))]
    differing = []
    with env.override(tuning="off"), Communicator(devices, timeout=DOCTOR_COLLECTIVE_SECONDS) as comm:
        for wire in wires.NAMES:
            first = None
            for _ in range(_ROUNDS):
                arrays = [device.array(each) for device, each in zip(devices, numbers, strict=True)]
                comm.all_reduce(arrays, wire=wire).wait()
                for array in arrays:
                    bits = array.numpy().view(np.uint32)
                    first = bits if first is None else first
                    if (bits != first).any():
                        differing.append(wire)
    if differing:
        yield Finding.of(FAILED, f"ranks or calls differ on the wires {', '.join(dict.fromkeys(differing))}", _LINK)
    else:
        yield Finding.of(OK, f"{len(devices)} ranks, {_ROUNDS} calls, wires {', '.join(wires.NAMES)}")


def captured(place: Place, indices: Sequence[int]) -> Iterator[Finding]:
    """Check that a captured step of products and sums gives what it gives eagerly, bit for bit, each time."""
    devices = place.rig(indices)
    rng = place.generator("captured")
    rows = [rng.standard_normal((1, 64)).astype(np.float32) for _ in devices]
    weights = [rng.standard_normal((64, 64)).astype(np.float32) for _ in devices]
    with env.override(tuning="off"), Communicator(devices, timeout=DOCTOR_COLLECTIVE_SECONDS) as comm:
        x = [device.array(row) for device, row in zip(devices, rows, strict=True)]
        w = [device.array(weight) for device, weight in zip(devices, weights, strict=True)]
        wrong = _wrong_when_captured(comm, x, w, place.stage)
    if wrong:
        yield Finding.of(FAILED, f"{wrong} elements differ from those of the same step, not captured", _LINK)
    else:
        yield Finding.of(OK, f"a product, a sum and an addition, launched {_ROUNDS} times, as eager bit for bit")


def _wrong_when_captured(
    comm: Communicator, x: Sequence[vkpar.Array], w: Sequence[vkpar.Array], stage: Callable[[str], object] | None = None
) -> int:
    """Return how many elements of a captured step, launched again and again, differ from those of the eager one."""
    eager = [array.numpy() for array in _step(comm, x, w)]
    with vkpar.capture(comm.devices, comm=comm) as graph:
        made = _step(comm, x, w)
    wrong = 0
    with closing(graph):
        for turn in range(_ROUNDS):
            if stage is not None:
                stage(f"in launch {turn}")
            graph.launch().wait(DOCTOR_COLLECTIVE_SECONDS)
            wrong += sum(_different(array, row) for array, row in zip(made, eager, strict=True))
    return wrong


def _step(comm: Communicator, x: Iterable[vkpar.Array], w: Iterable[vkpar.Array]) -> list[vkpar.Array]:
    sums = [vkpar.matmul(row, weight, transpose_b=True) for row, weight in zip(x, w, strict=True)]
    comm.all_reduce(sums)
    return [row + part for row, part in zip(x, sums, strict=True)]


def _different(array: vkpar.Array, row: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> int:
    return int(np.count_nonzero(array.numpy().view(np.uint32) != row.view(np.uint32)))


# ---- over the processes that mpiexec started ----


@dataclass(frozen=True)
class Meeting:
    """What the checks over processes are given: the processes, and a communicator over all of them."""

    job: Job
    comm: Communicator
    quick: bool


def visits(job: Job, own: Iterable[Finding]) -> Generator[Finding, None, bool]:
    """Yield what was found on every host, whose first process looks; say whether all of it is well.

    In the first process these are the findings of all, elsewhere its own host's.
    """
    made = []
    for finding in own if job.hosts.index(job.hosts[job.number]) == job.number else ():
        made.append(finding)
        yield finding
    told = job.gather(made)
    for host, found in zip(job.hosts[1:], told[1:], strict=True):
        if job.prints:
            yield from (replace(finding, subject=f"{host} {finding.subject}".rstrip()) for finding in found)
    return all(finding.state != FAILED for found in told for finding in found)


def meet(job: Job, selector: str | None, stack: ExitStack, *, quick: bool) -> tuple[Meeting, Finding]:
    """Open every process' devices, and a communicator over all; return what checks need, and what there is.

    Raises:
        VkparError: in every process, where one cannot.
    """
    devices = [stack.enter_context(device) for device in vkpar.open_devices(selector)]
    job.gather(None)  # all have theirs
    stack.enter_context(env.override(tuning="off"))
    comm = stack.enter_context(Communicator(devices, timeout=DOCTOR_COLLECTIVE_SECONDS, mpi=job.comm))
    infos = [device.info for device in devices]
    names = job.gather([info.name for info in infos])
    told = [f"{host}: {', '.join(own)}" for host, own in zip(job.hosts, names, strict=True)]
    each = "; ".join(f"{which} {text}" for which, text in enumerate(told))
    advice = job.advice(computes=any(info.is_cpu for info in infos))
    found = "; ".join(filter(None, (f"{number(comm.nranks, 'rank')}: {each}", advice)))
    return Meeting(job, comm, quick), Finding.of(OK, found, ranks=names)


def moved(meeting: Meeting) -> Iterator[Finding]:
    """Check that what each rank gives each other one arrives."""
    wrong = sum(_wrong_over(meeting, "all_to_all", count, wires.NAMES[0]) for count in _COUNTS)
    yield _found(wrong, f"from each of {meeting.comm.nranks} ranks to each")


def summed_over_processes(meeting: Meeting) -> Iterator[Finding]:
    """Check sums on every wire, and that all processes get the same bits."""
    used = wires.NAMES[:1] if meeting.quick else wires.NAMES
    wrong = sum(_wrong_over(meeting, "all_reduce", count, wire) for wire in used for count in _COUNTS)
    yield _found(wrong, f"wires {', '.join(used)}")


def _wrong_over(meeting: Meeting, name: str, count: int, wire: str) -> int:
    setting = Setting(ranks_of(meeting.comm), dtypes.float32, count, wire=wire)
    return CheckedCollective(TABLE[name], meeting.comm, setting).wrong()


def _found(wrong: int, told: str) -> Finding:
    return Finding.of(FAILED, f"{wrong} wrong elements: {told}", _CARRIED) if wrong else Finding.of(OK, told)


def captured_over_processes(meeting: Meeting) -> Iterator[Finding]:
    """Check that a captured step of products and sums gives what it gives eagerly, bit for bit, each time."""
    comm = meeting.comm
    wrong = _wrong_when_captured(comm, *_operands(comm.devices, comm.local_ranks.start))
    yield _found(sum(meeting.job.gather(wrong)), f"a step with a sum, launched {_ROUNDS} times, as eager bit for bit")


def _operands(devices: Iterable[Device], first: int) -> tuple[list[vkpar.Array], list[vkpar.Array]]:
    x, w = [], []
    for rank, device in enumerate(devices, first):
        rng = np.random.default_rng(rank)
        x.append(device.array(rng.standard_normal((1, 64)).astype(np.float32)))
        w.append(device.array(rng.standard_normal((64, 64)).astype(np.float32)))
    return x, w


def ended(job: Job, error: VkparError) -> Finding:
    """Return the line of what ended the checks in all processes."""
    return Finding.of(FAILED, str(job.ended(error)), "see docs/several-machines.md: when a process fails")


def skipped() -> Finding:
    """Return the line of processes that never met."""
    return Finding.of(SKIPPED, "what failed before is to be mended first")
