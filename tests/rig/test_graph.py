"""Graphs of several devices: launches do what eager calls do, on native and bridged links, whatever else happens."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs, found, require
from helpers.graph.graphs import Machine, check, program
from helpers.ops.reducing import check_identical, devices_of, fresh_devices
from helpers.process.children import check_child, child_environment
from helpers.process.threads import in_threads
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked
from helpers.vulkan.replacing import Functions, replace_functions
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import CommunicatorError, InvalidUsageError, WaitTimeoutError, env
from vkpar.vulkan import capturing
from vkpar.vulkan.pump.ports import QueueHandles

pytestmark = [pytest.mark.rig, pytest.mark.sampled(6), pytest.mark.usefixtures("compiler")]
Open = Callable[..., vkpar.Communicator]
TESTS = str(Path(__file__).parents[1])
RIGS = ["L", "LL", "LLL", "SS", "LS", "LSL"]


@pytest.fixture
def own(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of the test's own, of two drivers where both are there."""
    devices = fresh_devices(rigs, "LS")
    yield devices
    for device in devices:
        device.close()


def ones(devices: Any, count: int = 1000) -> list[vkpar.Array]:
    return [device.array(np.ones(count, np.float32)) for device in devices]


def summing(comm: vkpar.Communicator, arrays: list[vkpar.Array]) -> vkpar.Graph:
    """Return a graph: a sum between two operations on each rank."""
    with vkpar.capture(comm.devices, comm=comm) as graph:
        for array in arrays:
            vkpar.add(array, array, out=array)
        comm.all_reduce(arrays)
        for array in arrays:
            vkpar.add(array, array, out=array)
    return graph


# ---- replay equals eager ----


def run(
    comm: vkpar.Communicator, seed: int, launches: int = 3, steps: int = 15, *, overlap: bool | None = None
) -> None:
    """Compare a random program with its launches; where nobody says, operations of odd seeds overlap collectives."""
    overlap = seed % 2 == 1 if overlap is None else overlap
    nranks = len(comm.devices)
    eager, captured = Machine(comm.devices, comm), Machine(comm.devices, comm)
    check(eager, captured, program(seed, nranks, steps, comm=True), launches, overlap=overlap).close()


@pytest.mark.parametrize("letters", RIGS)
def test_random_programs(rig: Open, letters: str) -> None:
    """Every collective, wire and group, copies between devices, operations between them."""
    comm = rig(letters)
    for seed in range(60 if FULL else 6):
        run(comm, 1000 * len(letters) + seed)


@given(st.sampled_from(["LL", "LLL", "LS"]), st.integers(0, 1 << 30), st.booleans())
def test_more_random_programs(rigs: Rigs, letters: str, seed: int, overlap: bool) -> None:
    with vkpar.Communicator(devices_of(rigs, letters)) as comm:
        run(comm, seed, 2, 10, overlap=overlap)


@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "tree", "naive"])
def test_every_algorithm(rig: Open, algorithm: str) -> None:
    comm = rig("LLL", algorithm=algorithm)
    for seed in range(3):
        run(comm, seed)


@pytest.mark.parametrize("letters", ["LL", "LS"])
@pytest.mark.parametrize("transport", ["mapped", ["mapped", "staged"]])
def test_mapped_transports(rig: Open, letters: str, transport: Any) -> None:
    comm = rig(letters, transport=transport)
    for seed in range(4):
        run(comm, seed)


@pytest.mark.parametrize("debug", ["barriers", "alignment", "memory", "slots"])
def test_the_checks_change_nothing(rigs: Rigs, debug: str) -> None:
    with env.override(debug=debug):
        devices = fresh_devices(rigs, "LS")
        with vkpar.Communicator(devices) as comm:
            for seed in range(3):
                run(comm, seed)
        for device in devices:
            device.close()


@pytest.mark.parametrize("settings", [{"path": "copies"}, {"link": "bridged"}, {"max_buffer": 65_536}])
def test_other_paths(rigs: Rigs, settings: dict[str, Any]) -> None:
    with env.override(**settings):
        devices = fresh_devices(rigs, "LL")
        with vkpar.Communicator(devices) as comm:
            for seed in range(3):
                if "max_buffer" in settings:
                    spread(comm)
                else:
                    run(comm, seed)
        for device in devices:
            device.close()


def spread(comm: vkpar.Communicator) -> None:
    """Sum arrays over several buffers."""
    arrays = [device.array(np.arange(50_000, dtype=np.float32)) for device in comm.devices]
    with vkpar.capture(comm.devices, comm=comm) as graph:
        doubled = [vkpar.add(array, array) for array in arrays]
        comm.all_reduce(doubled, wire="f32")
        for array, total in zip(arrays, doubled, strict=True):
            vkpar.copy(total, array)
    graph.launch()
    graph.launch()
    n = len(arrays)
    assert all(np.array_equal(array.numpy(), np.arange(50_000) * 4.0 * n * n) for array in arrays)
    graph.close()


@pytest.mark.parametrize("count", [1, 70_001, 3_000_000])
@pytest.mark.parametrize("letters", ["LL", "LS"])
def test_sums_of_every_size(rig: Open, rng: np.random.Generator, letters: str, count: int) -> None:
    """Large messages go in segments through the slots; the bits are those of an eager sum."""
    comm = rig(letters)
    host = [rng.standard_normal(count).astype(np.float32) for _ in comm.devices]
    eager, captured = ([d.array(x) for d, x in zip(comm.devices, host, strict=True)] for _ in range(2))
    with vkpar.capture(comm.devices, comm=comm) as graph:
        comm.all_reduce(captured)
    for _ in range(3):
        comm.all_reduce(eager)
        graph.launch()
        assert check_identical([a.numpy() for a in captured]).tobytes() == eager[0].numpy().tobytes()
    graph.close()


SYNCHRONIZATION = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.graph.graphs import Machine, check, program
import vkpar
# Kernels of sums bind slots and arrays as a whole, one for each segment, which the layer takes for hazards.
KINDS = ("across", "to", "projection", "projection", "spread", "gather", "exchange", "barrier")
devices = vkpar.open_devices(sys.argv[2])
with vkpar.Communicator(devices) as comm:
    for seed in range(int(sys.argv[3])):
        steps = program(seed, len(devices), 15, comm=True, across=KINDS)
        check(Machine(devices, comm), Machine(devices, comm), steps, 1, overlap=seed % 2 == 1).close()
for device in devices:
    device.close()
"""


@pytest.mark.parametrize("selector", ["llvmpipe*2", "swiftshader*2", "llvmpipe&swiftshader"])
def test_synchronization_validation(selector: str) -> None:
    for driver in ("llvmpipe", "swiftshader"):
        if driver in selector:
            require(driver)
    found()
    if not env.get().validation:
        pytest.skip("no validation layer")
    variables = {
        "VKPAR_VALIDATION": "1",
        "VKPAR_TUNING": "off",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    number = 12 if FULL else 1
    environment = child_environment(**variables)
    check_child(SYNCHRONIZATION, TESTS, selector, str(number), environment=environment, timeout=120 + 40 * number)


# ---- graphs and what is around them ----


def test_graphs_and_eager_work_in_turns(rig: Open) -> None:
    """Several graphs of one communicator, eager collectives over the same slots, in a random order."""
    comm = rig("LSL")
    eager, captured = Machine(comm.devices, comm), Machine(comm.devices, comm)
    programs = [program(seed, 3, 6, comm=True) for seed in range(4)]
    graphs = []
    for steps in programs:
        with vkpar.capture(comm.devices, comm=comm) as graph:
            captured.run(steps)
        graphs.append(graph)
    chance = random.Random(5)
    for _ in range(20):
        number = chance.randrange(len(programs))
        eager.run(programs[number])
        if chance.random() < 0.6:
            graphs[number].launch()
        else:
            captured.run(programs[number])
    assert captured.contents() == eager.contents()
    for graph in graphs:
        graph.close()


@pytest.mark.parametrize("letters", ["LL", "LS"])
def test_a_hundred_launches_queued(rig: Open, letters: str) -> None:
    comm = rig(letters)
    totals = [device.zeros(300, "int32") for device in comm.devices]
    with vkpar.capture(comm.devices, comm=comm) as graph:
        xs = graph.param("x", "int32")
        comm.all_reduce(xs)
        for total, x in zip(totals, xs, strict=True):
            vkpar.add(total[:1], x, out=total[:1])
    works = [graph.launch(x=value) for value in range(100)]
    works[-1].wait(100)
    assert all(work.done() for work in works)
    n = len(letters)
    # The sum is made in the parameter's own arrays, which a launch with the same value does not write anew.
    assert [int(total.numpy()[0]) for total in totals] == [n * sum(range(100))] * n
    graph.close()


def test_ranks_that_only_send_are_not_ahead(rig: Open) -> None:
    """A rank may be launches ahead of another one that is held up: nothing of the other's is overwritten."""
    comm = rig("LS")
    source, target = comm.devices[0].zeros(500, "int32"), comm.devices[1].zeros(500, "int32")
    one = comm.devices[0].array(np.ones(500, np.int32))
    total = comm.devices[1].zeros(500, "int32")
    with vkpar.capture(comm.devices, comm=comm) as graph:
        vkpar.add(source, one, out=source)
        vkpar.copy(source, target)
        vkpar.add(total, target, out=total)
    with parked(comm.devices[1]) as release:
        works = [graph.launch() for _ in range(30)]
        time.sleep(0.05)
        assert not works[0].done()
        release()
        works[-1].wait(60)
    assert np.all(total.numpy() == sum(range(1, 31)))
    graph.close()


def test_groups_inside(rig: Open) -> None:
    comm = rig("LL")
    arrays, others = ones(comm.devices), ones(comm.devices)
    with vkpar.capture(comm.devices, comm=comm) as graph:
        with comm.group():
            works = [comm.all_reduce(arrays), comm.broadcast(others, 1)]
            with pytest.raises(InvalidUsageError, match="pending in a group"):
                vkpar.add(arrays[0], arrays[0])
        for work in works:
            assert repr(work) == "<vkpar.Work captured>"
            for act in (work.wait, work.done):
                with pytest.raises(InvalidUsageError, match=r"graph\.launch"):
                    act()
        vkpar.add(arrays[0], arrays[0], out=arrays[0])
    assert np.all(arrays[0].numpy() == 1)
    graph.launch()
    assert (arrays[0].numpy()[0], arrays[1].numpy()[0]) == (4, 2)
    assert graph.stats().collectives == 2
    graph.close()


def test_groups_around_raise(rig: Open) -> None:
    comm = rig("LL")
    graph = summing(comm, ones(comm.devices))
    with comm.group():
        with pytest.raises(InvalidUsageError, match="outside groups"):
            graph.launch()
        with pytest.raises(InvalidUsageError, match="outside groups"), vkpar.capture(comm.devices, comm=comm):
            pass
    graph.launch().wait()
    graph.close()


def test_threads(rig: Open) -> None:
    """Two threads with a graph each, then both with one, and eager sums from a third."""
    comm = rig("LS")
    sets = [[device.zeros(200, "int32") for device in comm.devices] for _ in range(4)]
    added = [device.array(np.ones(200, np.int32)) for device in comm.devices]
    graphs = []
    for arrays in sets[:3]:
        with vkpar.capture(comm.devices, comm=comm) as graph:
            for rank, array in enumerate(arrays):
                moved = vkpar.add(array, added[rank])
                vkpar.copy(moved, array)
            comm.all_reduce(arrays, op="max")
        graphs.append(graph)

    def work(index: int) -> None:
        for _ in range(40):
            if index == 2:
                comm.all_reduce(sets[3])
            else:
                graphs[index].launch()
                graphs[2].launch()

    in_threads(work, 3)
    assert [int(arrays[1].numpy()[0]) for arrays in sets] == [40, 40, 80, 0]
    for graph in graphs:
        graph.close()


def test_another_thread_goes_on_while_one_captures(rig: Open) -> None:
    """Its collectives and launches run; the one that captures takes none of them."""
    comm = rig("LS")
    arrays, theirs, base = ones(comm.devices), ones(comm.devices), ones(comm.devices)
    other = summing(comm, base)

    def work(_: int) -> None:
        for _ in range(20):
            comm.all_reduce(theirs, op="max")
            other.launch()
        assert np.all(theirs[1].numpy() == 1)
        assert vkpar.add(theirs[0], theirs[0]).to(comm.devices[1]).numpy()[0] == 2

    with vkpar.capture(comm.devices, comm=comm) as graph:
        comm.all_reduce(arrays)
        in_threads(work, 1)
        comm.all_reduce(arrays)
    assert graph.stats().collectives == 2
    assert np.all(arrays[0].numpy() == 1)
    graph.launch()
    assert np.all(arrays[0].numpy() == 4)
    graph.close()
    other.close()


def test_a_mistake_inside_is_told_and_leaves_nothing(rig: Open) -> None:
    comm = rig("LS")
    arrays = ones(comm.devices)
    comm.barrier().wait()

    def wrong() -> None:
        with vkpar.capture(comm.devices, comm=comm):
            comm.all_reduce(arrays)
            comm.all_reduce([arrays[0]])

    before = held(comm.devices)
    for _ in range(3):
        with pytest.raises(InvalidUsageError):
            wrong()
    gc.collect()
    assert {kind: n for kind, n in held(comm.devices).items() if "Pipeline" not in kind and "Layout" not in kind} == {
        kind: n for kind, n in before.items() if "Pipeline" not in kind and "Layout" not in kind
    }
    with vkpar.capture(comm.devices, comm=comm) as graph:
        with pytest.raises(InvalidUsageError):
            comm.all_reduce([arrays[0]])
        comm.all_reduce(arrays)
    assert np.all(arrays[0].numpy() == 1)
    graph.launch()
    assert np.all(arrays[0].numpy() == 2)
    comm.all_reduce(arrays)
    assert np.all(arrays[1].numpy() == 4)
    graph.close()


def test_collectives_that_cannot_be_captured(rig: Open, rigs: Rigs) -> None:
    comm = rig("LL")
    other = rig("LL")
    elsewhere = rig("SS")
    arrays, others = ones(comm.devices), ones(elsewhere.devices)
    with vkpar.capture(comm.devices) as graph:
        with pytest.raises(InvalidUsageError, match=r"capture\(devices, comm=\.\.\.\)"):
            comm.all_reduce(arrays)
        with pytest.raises(InvalidUsageError, match="without their communicator"):
            vkpar.copy(arrays[0], arrays[1])
    with vkpar.capture(comm.devices, comm=comm) as graph:
        with pytest.raises(InvalidUsageError, match=r"give the collective's communicator"):
            other.all_reduce(arrays)
        elsewhere.all_reduce(others)  # on devices that are not captured: it runs
        assert np.all(others[0].numpy() == 2)
        with pytest.raises(InvalidUsageError, match="inside vkpar"):
            vkpar.Communicator(comm.devices)
    assert graph.stats().collectives == 0
    with pytest.raises(InvalidUsageError, match="no device of the communicator"):
        vkpar.capture(elsewhere.devices, comm=comm)
    comm.all_reduce(arrays)
    assert np.all(arrays[0].numpy() == 2)
    graph.close()


def test_one_device_of_several_captures_all(rig: Open) -> None:
    comm = rig("LL")
    with vkpar.capture(comm.devices[1], comm=comm) as graph:
        comm.barrier()
    assert list(graph.devices) == list(comm.devices)
    graph.launch().wait()
    graph.close()


def test_unaligned_arrays(rig: Open) -> None:
    """Bounce buffers, which are the graph's."""
    comm = rig("LS")
    whole = [device.array(np.arange(1001, dtype=np.float32)) for device in comm.devices]
    with vkpar.capture(comm.devices, comm=comm) as graph:
        comm.all_reduce([array[1:] for array in whole], wire="f32")
        comm.broadcast([array[3:300] for array in whole], 1)
    for turn in range(1, 4):
        graph.launch()
        assert np.array_equal(whole[0].numpy()[1:], np.arange(1, 1001) * 2.0**turn)
    graph.close()


# ---- the ends ----


def test_a_graph_outlives_its_communicator(own: list[vkpar.Device]) -> None:
    arrays = ones(own)
    comm = vkpar.Communicator(own)
    graph = summing(comm, arrays)
    work = graph.launch()
    comm.close()
    work.wait()
    assert np.all(arrays[0].numpy() == 8)
    with pytest.raises(InvalidUsageError, match="graph's communicator is closed"):
        graph.launch()
    with pytest.raises(InvalidUsageError, match="closed"), vkpar.capture(own, comm=comm):
        pass
    graph.close()
    with vkpar.Communicator(own) as again:
        summing(again, arrays).launch().wait()
    assert np.all(arrays[0].numpy() == 64)


@pytest.mark.parametrize("first", ["communicator", "device", "graph", "dropped"])
def test_whatever_is_closed_first(rigs: Rigs, first: str) -> None:
    devices = fresh_devices(rigs, "LS")
    comm = vkpar.Communicator(devices)
    graph: Any = summing(comm, ones(devices))
    for _ in range(5):
        graph.launch()
    if first == "communicator":
        comm.close()
    elif first == "device":
        devices[1].close()
    elif first == "graph":
        graph.close()
    else:
        del graph, comm
        gc.collect()
        graph = comm = None
    for device in devices:
        device.close()
    for item in (graph, comm):
        if item is not None:
            item.close()


def test_a_communicator_closed_inside(own: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(own)
    arrays = ones(own)
    capture = vkpar.capture(own, comm=comm)
    graph = capture.__enter__()
    comm.all_reduce(arrays)
    comm.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        comm.all_reduce(arrays)
    with pytest.raises(InvalidUsageError, match="closed"):
        capture.__exit__(None, None, None)
    assert capturing.current() is None
    with pytest.raises(InvalidUsageError):
        graph.launch()
    vkpar.add(arrays[0], arrays[0], out=arrays[0])
    assert np.all(arrays[0].numpy() == 2)


def test_memory_comes_back(own: list[vkpar.Device]) -> None:
    with vkpar.Communicator(own) as comm:
        arrays = ones(own, 100_000)
        summing(comm, arrays).close()
        comm.barrier().wait()

        def used() -> list[int]:
            for device in own:
                device.synchronize()
            return [device.memory().used for device in own]

        before, handles = used(), held(own)
        for _ in range(5):
            with vkpar.capture(own, comm=comm) as graph:
                made = [vkpar.add(array, array) for array in arrays]
                comm.all_reduce(made)
                comm.all_reduce([array[1:] for array in made])
                graph.param("x")
            graph.launch().wait()
            graph.close()
            del made
        comm._engine.sweep()
        assert used() == before
        kept = ("Pipeline", "PipelineLayout", "DescriptorSetLayout")
        assert {k: n for k, n in held(own).items() if k not in kept} == {
            k: n for k, n in handles.items() if k not in kept
        }


def test_temporaries_of_sums_share_memory(own: list[vkpar.Device]) -> None:
    with vkpar.Communicator(own) as comm:
        arrays = ones(own, 100_000)
        before = own[0].memory().arrays
        with vkpar.capture(own, comm=comm) as graph:
            made = arrays
            for _ in range(30):
                made = [vkpar.add(array, array) for array in made]
                comm.all_reduce(made, op="max")
        assert own[0].memory().arrays - before <= 4 * 400_128
        graph.launch().wait()
        assert np.all(made[0].numpy() == 2.0**30)
        graph.close()


# ---- failures, what is seen of launches ----


def test_a_rank_that_is_held_up_is_named(own: list[vkpar.Device]) -> None:
    """The error says which graph, rank and step; everything is let go, and the devices work on."""
    comm = vkpar.Communicator(own, timeout=0.4, algorithm="two_shot")
    arrays = ones(own)
    graph = summing(comm, arrays)
    graph.launch().wait()
    with parked(own[1]) as release:
        work = graph.launch()
        with pytest.raises(WaitTimeoutError) as early:
            work.wait(0.05)
        assert early.value.details["op"] == "graph"
        with pytest.raises(CommunicatorError, match=r"no timeline advanced for 0\.4 s") as caught:
            work.wait()
        release()
    details = caught.value.details
    assert (details["op"], details["sequence"], details["operations"], details["collectives"]) == ("graph", 2, 4, 1)
    assert details["ranks"][1]["step"] == "1 operation, all_reduce publish (1 of 3)"
    assert details["ranks"][0]["step"] == "all_reduce reduce (2 of 3)"
    assert [item["device"] for item in details["ranks"]] == [device.name for device in own]
    assert all(item["reached"] < item["wanted"] for item in details["ranks"])
    for piece in ("rank 1", own[1].name, "graph #2", "1 operation, all_reduce publish (1 of 3)", "0.4 s"):
        assert piece in str(caught.value)
    with pytest.raises(CommunicatorError):
        graph.launch()
    with pytest.raises(CommunicatorError), vkpar.capture(own, comm=comm):
        pass
    with pytest.raises(CommunicatorError):
        arrays[0].numpy()
    comm.close()
    graph.close()
    with vkpar.Communicator(own) as again:
        summing(again, ones(own)).launch().wait()


def test_a_dead_proxy(own: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(own, timeout=0.5)
    graph = summing(comm, ones(own))
    graph.launch().wait()
    comm._engine.rig.group.stop()
    with pytest.raises(CommunicatorError, match="no timeline advanced"):
        graph.launch().wait()
    for device in own:
        device.synchronize(10)
    comm.close()


def test_a_rank_whose_driver_refuses(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch raises, names the rank, and leaves devices that can be closed."""
    refuses = threading.Event()

    def functions(true: QueueHandles) -> Functions:
        def submit(handle: Any, count: int, infos: Any, fence: Any) -> int:
            return -4 if refuses.is_set() else int(true.submit(handle, count, infos, fence))

        return {"submit": submit}

    good = fresh_devices(rigs, "L")
    with monkeypatch.context() as patch:
        replace_functions(patch, functions)
        devices = [*good, *fresh_devices(rigs, "S")]
    comm = vkpar.Communicator(devices, timeout=5)
    graph = summing(comm, ones(devices))
    graph.launch().wait()
    refuses.set()
    with pytest.raises(CommunicatorError, match="rank 1") as caught:
        graph.launch()
    assert caught.value.details["op"] == "graph"
    with pytest.raises(CommunicatorError):
        graph.launch()
    refuses.clear()
    comm.close()
    graph.close()
    for device in devices:
        device.close()


def test_dumps_show_launches(rig: Open) -> None:
    comm = rig("LS")
    graph = summing(comm, ones(comm.devices))
    graph.launch().wait()
    (record,) = json.loads(comm.dump())["operations"]
    assert (record["op"], record["operations"], record["collectives"], record["done"]) == ("graph", 4, 1, True)
    assert [rank["step"] for rank in record["ranks"]] == ["done", "done"]
    graph.close()


def test_profiles_cover_launches(rig: Open, rng: np.random.Generator, tmp_path: Path) -> None:
    comm = rig("LS")
    arrays = [device.array(rng.standard_normal(3000).astype(np.float32)) for device in comm.devices]
    others = [device.array(array.numpy()) for device, array in zip(comm.devices, arrays, strict=True)]
    with vkpar.capture(comm.devices, comm=comm) as graph, comm.group():
        comm.all_reduce(arrays)
    plain = summing(comm, others)
    for _ in range(2):
        graph.launch()
        plain.launch()
    with comm.profile() as profile:
        start = comm.stats()["collectives"]
        for _ in range(5):
            graph.launch()
            plain.launch()
        comm.all_reduce(arrays)
    for _ in range(5):
        graph.launch()
    assert [step.sequence for step in profile.steps] == sorted(step.sequence for step in profile.steps)
    assert {step.sequence for step in profile.steps} == set(range(start + 1, start + 12))
    assert {step.op for step in profile.steps} == {"graph", "all_reduce"}
    launched = [step for step in profile.steps if step.sequence == start + 2]
    assert len(launched) == plain.stats().stretches
    assert {step.phase for step in launched if step.rank == 1} == {
        "1 operation, all_reduce publish",
        "all_reduce reduce",
        "all_reduce gather, 1 operation",
    }
    alone = [step for step in profile.steps if step.sequence == start + 11]
    mine = [step for step in profile.steps if step.sequence == start + 1]
    assert [(s.rank, s.sent_nbytes, s.received_nbytes, s.sources) for s in mine] == [
        (s.rank, s.sent_nbytes, s.received_nbytes, s.sources) for s in alone
    ]
    assert all(step.end >= step.begin and step.wait >= step.bridge >= 0 for step in profile.steps)
    profile.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["tid"] == 1 for event in events) == len(profile.steps)
    assert len(str(profile).splitlines()) == 4 + len(profile.summary())
    eager = [device.array(array) for device, array in zip(comm.devices, [a.numpy() for a in arrays], strict=True)]
    comm.all_reduce(eager)
    graph.launch()
    assert eager[0].numpy().tobytes() == arrays[0].numpy().tobytes() == arrays[1].numpy().tobytes()
    graph.close()
    plain.close()


def test_a_profile_leaves_nothing(own: list[vkpar.Device]) -> None:
    with vkpar.Communicator(own) as comm:
        graph = summing(comm, ones(own))
        graph.launch().wait()
        with comm.profile():
            graph.launch()
        before = held(own)
        for _ in range(3):
            with comm.profile() as profile:
                for _ in range(7):
                    graph.launch()
                assert held(own)["QueryPool"] > 0
            assert len({step.sequence for step in profile.steps}) == 7
            comm._engine.sweep()
            assert held(own) == before
        with comm.profile():
            graph.launch()
            graph.close()
    assert held(own).get("QueryPool", 0) == 0


def test_parameters_in_profiles(rig: Open) -> None:
    comm = rig("LL")
    totals = [device.zeros(1, "uint32") for device in comm.devices]
    with vkpar.capture(comm.devices, comm=comm) as graph:
        for total, x in zip(totals, graph.param("x"), strict=True):
            vkpar.add(total, x, out=total)
        comm.barrier()
    with comm.profile() as profile:
        for value in range(10):
            graph.launch(x=value)
    for value in range(10):
        graph.launch(x=value)
    assert [int(total.numpy()[0]) for total in totals] == [90, 90]
    assert len({step.sequence for step in profile.steps}) == 10
    graph.close()


# ---- long runs ----


def test_thousands_of_launches_do_not_grow(own: list[vkpar.Device]) -> None:
    with vkpar.Communicator(own) as comm:
        totals = [device.zeros(64, "int32") for device in own]
        with vkpar.capture(own, comm=comm) as graph:
            for total, x in zip(totals, graph.param("x", "int32"), strict=True):
                vkpar.add(total[:1], x, out=total[:1])
            comm.all_reduce(totals, op="max")

        def launch(times: int) -> tuple[dict[str, int], list[int], int]:
            for _ in range(times):
                work = graph.launch(x=1)
            work.wait()
            del work
            comm._engine.health.flights.drop_done(comm._engine.health.look())
            gc.collect()
            return held(own), [device.memory().used for device in own], len(gc.get_objects())

        handles, memory, objects = launch(300)  # the flight recorder is full then
        times = 10_000 if FULL else 1_000
        later = launch(times)
        assert later[:2] == (handles, memory)
        assert later[2] - objects < 50
        assert int(totals[0].numpy()[0]) == 300 + times
        graph.close()


INTERRUPTED = """
import random, signal, sys
import numpy as np
import vkpar

wanted = int(sys.argv[2])
chance, seen, mistakes = random.Random(wanted), 0, []
sys.unraisablehook = lambda found: None if found.exc_type is KeyboardInterrupt else sys.__unraisablehook__(found)


def on_alarm(number, frame):
    global seen
    seen += 1
    raise KeyboardInterrupt


devices = vkpar.open_devices(sys.argv[1])
comm = vkpar.Communicator(devices)
one = [device.array(np.ones(300, np.int32)) for device in devices]


def loop():
    while seen < wanted:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 6e-3))
            arrays = [vkpar.add(x, x) for x in one]
            with vkpar.capture(devices, comm=comm) as graph:
                xs = graph.param("x", "int32")
                made = [vkpar.add(array, x) for array, x in zip(arrays, one)]
                comm.all_reduce(made, op="max")
                for array, other in zip(arrays, made):
                    vkpar.copy(other, array)
            for value in range(4):
                graph.launch(x=value)
            graph.launch().wait()
            graph.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass


signal.signal(signal.SIGALRM, on_alarm)
while seen < wanted:
    try:
        loop()
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0)
arrays = [vkpar.add(x, x) for x in one]
with vkpar.capture(devices, comm=comm) as graph:
    comm.all_reduce(arrays)
graph.launch().wait(60)
assert all((array.numpy() == 2 * len(devices)).all() for array in arrays)
graph.close()
comm.close()
for device in devices:
    device.close()
"""


@pytest.mark.parametrize("selector", ["llvmpipe*2", "llvmpipe&swiftshader"])
def test_random_interrupts(selector: str) -> None:
    """Of captures, launches, waits and closes: nothing hangs or stays captured, and the devices can be closed."""
    for driver in ("llvmpipe", "swiftshader"):
        if driver in selector:
            require(driver)
    number = 3_000 if FULL else 150
    environment = child_environment(VKPAR_TUNING="off", VKPAR_VALIDATION="0")
    check_child(INTERRUPTED, selector, str(number), timeout=120 + number * 0.1, environment=environment)


FORKED = """
import os, sys
import numpy as np
import vkpar

devices = vkpar.open_devices(sys.argv[1])
arrays = [device.array(np.ones(100, np.float32)) for device in devices]
comm = vkpar.Communicator(devices)
graphs = []
for given in (None, comm):
    with vkpar.capture(devices, comm=given) as graph:
        for array in arrays:
            vkpar.add(array, array, out=array)
        if given is not None:
            comm.all_reduce(arrays, op="max")
    graph.launch().wait()
    graphs.append(graph)
child = os.fork()
if not child:
    told = 0
    for graph in graphs:
        try:
            graph.launch()
        except vkpar.InvalidUsageError as error:
            told += "fork" in str(error)
        graph.close()
    os._exit(told)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
for graph in graphs:
    graph.launch().wait()
    graph.close()
assert (arrays[1].numpy() == 16).all()
comm.close()
"""


def test_a_forked_child_may_not_launch() -> None:
    require("llvmpipe")
    check_child(FORKED, "llvmpipe*2", environment=child_environment(VKPAR_TUNING="off", VKPAR_VALIDATION="0"))


def test_a_launch_waits_for_a_close_in_another_thread(own: list[vkpar.Device]) -> None:
    """Threads that launch while the communicator is closed get an error that says so; nothing hangs."""
    comm = vkpar.Communicator(own)
    graph = summing(comm, [device.zeros(1000) for device in own])
    started = threading.Barrier(3)

    def act(index: int) -> None:
        graph.launch()
        started.wait(30)
        if index == 0:
            comm.close()
            return
        with pytest.raises(InvalidUsageError, match="closed"):
            for_ever(graph.launch)

    in_threads(act, 3)
    graph.close()


def for_ever(act: Callable[[], object]) -> None:
    while True:
        act()
