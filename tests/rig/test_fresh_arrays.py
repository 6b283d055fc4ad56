"""Collectives of arrays that come and go: recorded programs go by memory, and memory goes from array to array."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.ops.reducing import devices_of, fresh_devices
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked

import vkpar
from vkpar.comm.engine import cache
from vkpar.comm.plan import choose
from vkpar.comm.requests import calls
from vkpar.vulkan.pump.native import CProgram

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
Host = np.ndarray[Any, Any]
RIGS = ["LL", "LLL", "SS", "LS"]


def whole(count: int, dtype: str, seed: int, nranks: int) -> list[Host]:
    """Return whole numbers of any sign whose sums every wire holds exactly, by rank."""
    return list(np.random.default_rng(seed).integers(-8, 8, (nranks, count)).astype(dtype))


def on(devices: Sequence[vkpar.Device], values: Sequence[Host]) -> list[vkpar.Array]:
    return [device.array(each) for device, each in zip(devices, values, strict=True)]


def check_sum(arrays: Sequence[vkpar.Array], values: Sequence[Host]) -> None:
    total = np.add.reduce(list(values)).astype(values[0].dtype)
    for array in arrays:
        np.testing.assert_array_equal(array.numpy().reshape(-1), total.reshape(-1))


# ---- the same bits ----


def call(comm: vkpar.Communicator, choice: int, count: int, skip: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Run one of many collectives over new arrays; return what has to stay alive, and where the results are."""
    n = comm.nranks
    rng = np.random.default_rng(seed)

    def new(number: int) -> list[vkpar.Array]:
        """Return views that begin ``skip`` elements after their memory does."""
        values = (rng.standard_normal((n, number + skip)) * 100).astype(np.float32)
        return [array[skip:] for array in on(comm.devices, list(values))]

    arrays = new(count)
    match choice:
        case 0:
            comm.all_reduce(arrays, op=["sum", "max", "avg"][seed % 3])
            return arrays, arrays
        case 1:
            out = new(count)
            comm.all_reduce(arrays, out=out)
            return [*arrays, *out], out
        case 2:
            out = new(n * count)
            comm.all_gather(arrays, out=out)
            return [*arrays, *out], out
        case 3:
            comm.broadcast(arrays, root=seed % n)
            return arrays, arrays
        case 4:
            sent = new(n * count)
            out = new(count)
            comm.reduce_scatter(sent, out=out)
            return [*sent, *out], out
    halves = [(array[: count // 2], array[count // 2 : count // 2 * 2]) for array in arrays]
    comm.send_recv([(halves[0][0], halves[1][1]), (halves[1][0], halves[0][1])])
    return arrays, arrays


def run_calls(comm: vkpar.Communicator, seed: int, keep: list[Any] | None) -> list[bytes]:
    """Run random collectives; ``keep`` gets all arrays, so that no two calls share memory, or they go at any time."""
    rng, found = np.random.default_rng(seed), []
    late: list[Any] = []
    for number in range(60):
        count = int(rng.choice([8, 300, 5000, 70000]))
        alive, results = call(comm, int(rng.integers(6)), count, int(rng.choice([0, 0, 4, 1])), int(rng.integers(1000)))
        found += [array.numpy().tobytes() for array in results]
        goes_late = rng.integers(3) == 0
        if keep is not None:
            keep.append(alive)
        elif goes_late:
            late.append(alive)
        if number % 20 == 19:
            late.clear()
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letters", RIGS)
def test_fresh_arrays_give_the_bits_of_kept_ones(rig: Open, letters: str) -> None:
    for seed in range(2):
        kept = run_calls(rig(letters, deterministic=True), seed, [])
        assert run_calls(rig(letters, deterministic=True), seed, None) == kept


# ---- memory that goes on to another array ----


@pytest.mark.parametrize("letters", ["LL", "SS", "LS"])
def test_memory_of_another_shape_and_dtype_gets_its_own_program(rigs: Rigs, letters: str) -> None:
    devices = fresh_devices(rigs, letters)
    places = set()
    with vkpar.Communicator(devices, deterministic=True) as comm:
        for turn in range(24):
            count, dtype = [(256, "float32"), (256, "int32"), (512, "float16"), (128, "uint64"), (255, "int32")][
                turn % 5
            ]
            values = whole(count, dtype, turn, len(devices)) if dtype[0] != "u" else whole(count, "int64", turn, 2)
            values = [each.astype(dtype) for each in values]
            arrays = on(devices, values)
            places.add(arrays[0].storage.place)
            if turn % 2:
                arrays = [array.reshape((-1, 1)) for array in arrays]
            comm.all_reduce(arrays)
            check_sum(arrays, values)
            del arrays
    assert len(places) < 6  # else nothing was tested
    for device in devices:
        device.close()


def test_memory_is_taken_while_the_collective_before_is_pending(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LS")
    with vkpar.Communicator(devices, deterministic=True) as comm:
        first, second = whole(1024, "int32", 1, 2), whole(2048, "int16", 2, 2)
        out = [device.zeros(1024, "int32") for device in devices]
        for _ in range(3):
            arrays = on(devices, first)
            with parked(devices[0]):
                work = comm.all_reduce(arrays, out=out)
                places = [array.storage.place for array in arrays]
                del arrays, work
                taken = on(devices, second)
                assert [array.storage.place for array in taken] == places
                later = comm.all_reduce(taken)
            later.wait()
            check_sum(out, first)
            check_sum(taken, second)
            del taken
    for device in devices:
        device.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letters", ["LL", "SS"])
def test_blocks_that_go_take_their_programs_along(rigs: Rigs, letters: str) -> None:
    """New blocks may get the handles of old ones: programs of these are found no more, and are freed."""
    devices = fresh_devices(rigs, letters)
    with vkpar.Communicator(devices, deterministic=True) as comm:
        for turn in range(6):
            values = whole(50000, "int32", turn, len(devices))
            arrays = on(devices, values)
            for _ in range(2):
                comm.all_reduce(arrays).wait()
            total = np.add.reduce(values)
            check_sum(arrays, [total] * len(devices))
            gone = {buffer.piece.block for array in arrays for buffer in array.memory.buffers}
            while arrays:
                array = arrays.pop()
                if turn % 2:
                    array.close()
            del array
            gc.collect()
            for device in devices:
                device.synchronize()
                device.trim()
            assert all(block.dropped for block in gone)
            comm.barrier().wait()
            comm.all_reduce(on(devices, values)).wait()
            assert not any(entry.is_gone() for entry in comm._engine.cache.entries.values())
    for device in devices:
        device.close()


# ---- what is decided once ----


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_form_is_checked_and_chosen_once(rig: Open, monkeypatch: pytest.MonkeyPatch, letters: str, name: str) -> None:
    """Programs over other slots, and over other memory, are written from what the first call decided."""
    comm, count = rig(letters, algorithm="ring"), 3000
    n = comm.nranks
    checked, chosen = Mock(wraps=calls.check), Mock(wraps=choose.choose)
    monkeypatch.setattr(calls, "check", checked)
    monkeypatch.setattr(choose, "choose", chosen)
    for seed in range(3):
        values = whole(count, "float32", seed, n)
        arrays = on(comm.devices, values)
        out = [device.zeros(count * (n if name == "all_gather" else 1)) for device in comm.devices]
        for _ in range(3):
            if name == "all_reduce":
                comm.all_reduce(arrays, out=out).wait()
                check_sum(out, values)
            elif name == "reduce_scatter":
                parts = [array[: count // n] for array in out]
                comm.reduce_scatter(arrays, out=parts).wait()
                np.testing.assert_array_equal(np.concatenate([part.numpy() for part in parts]), np.add.reduce(values))
            else:
                comm.all_gather(arrays, out=out).wait()
                for array in out:
                    np.testing.assert_array_equal(array.numpy(), np.concatenate(values))
    assert checked.call_count == 1
    assert chosen.call_count == int(name != "all_gather")


def test_arrays_beyond_one_binding_are_asked_again(rigs: Rigs, settings_override: Callable[..., None]) -> None:
    """What a form keeps of memory are numbers; where these do not do, a call of it is checked for its other turn."""
    settings_override(max_binding=1 << 20, staging_bytes=1 << 19)
    devices = fresh_devices(rigs, "LL")
    with vkpar.Communicator(devices, deterministic=True) as comm:
        for seed in range(2):
            values = whole(700_000, "float32", seed, 2)
            arrays, out = on(devices, values), [device.zeros(700_000) for device in devices]
            for _ in range(3):
                comm.all_reduce(arrays, out=out).wait()
                check_sum(out, values)
        before = [device.memory().arrays for device in devices]
        del arrays, out
        for device, held_before in zip(devices, before, strict=True):
            device.synchronize()
            assert device.memory().arrays <= held_before - 2 * 700_000 * 4
    for device in devices:
        device.close()


# ---- more calls than are kept ----


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_cycle_longer_than_the_cache(rig: Open, monkeypatch: pytest.MonkeyPatch, letters: str, grouped: bool) -> None:
    """Entries are recorded over for other memory, never one that a group is about to enqueue; one check serves all."""
    monkeypatch.setattr(cache, "_MOST_ENTRIES", 6)
    comm = rig(letters, deterministic=True)
    n = comm.nranks
    values = [whole(700, "int32", seed, n) for seed in range(41)]
    live = [on(comm.devices, each) for each in values]
    comm.all_reduce(live[0])
    comm.all_reduce(live[0]).wait()
    check = Mock(side_effect=calls.check)
    monkeypatch.setattr(calls, "check", check)
    for _ in range(3):
        for start in range(1, 41, 10):
            if grouped:
                with comm.group():
                    works = [comm.all_reduce(arrays) for arrays in live[start : start + 10]]
            else:
                works = [comm.all_reduce(arrays) for arrays in live[start : start + 10]]
    works[-1].wait()
    assert check.call_count == 0
    assert len(comm._engine.cache) <= 6
    for arrays, given in zip(live[1:], values[1:], strict=True):
        check_sum(arrays, [np.add.reduce(given) * n] * n)


def test_threads_with_fresh_arrays(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_ENTRIES", 8)
    comm, failures = rig("LS", deterministic=True), []

    def run(number: int) -> None:
        try:
            late = []
            for turn in range(40):
                values = whole(100 * (1 + turn % 3), "int32", 100 * number + turn, 2)
                arrays = on(comm.devices, values)
                comm.all_reduce(arrays)
                late.append((arrays, values))
                if turn % 5 == 4:
                    for pair in late:
                        check_sum(*pair)
                    late.clear()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.sampled(4)
@pytest.mark.parametrize("letters", ["LL", "SS"])
def test_many_fresh_calls_leave_nothing_behind(rigs: Rigs, letters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_ENTRIES", 16)
    devices = fresh_devices(rigs, letters)
    with vkpar.Communicator(devices, deterministic=True) as comm:
        late: list[Any] = [None] * 24

        def run(number: int) -> None:
            for turn in range(number):
                late[turn % 24] = [device.empty(600) for device in devices]
                comm.all_reduce(late[turn % 24])
            comm.barrier().wait()

        run(400)
        comm._engine.sweep()
        before, batches = held(devices), comm._engine.cache.batches
        run(10_000 if FULL else 1_000)
        comm._engine.sweep()
        after = held(devices)
        assert comm._engine.cache.batches <= batches + 8 * 16
        assert {kind: after[kind] for kind in after if kind not in ("CommandPool", "DescriptorPool", "BufferView")} == {
            kind: before[kind] for kind in before if kind not in ("CommandPool", "DescriptorPool", "BufferView")
        }
        for kind in ("CommandPool", "DescriptorPool", "BufferView"):
            # Two programs for each of 16 entries, per rank a pool of each kind and three views.
            assert after.get(kind, 0) <= before.get(kind, 0) + 2 * 16 * 2 * (3 if kind == "BufferView" else 1)
    for device in devices:
        device.close()


# ---- what a call costs ----


def count_calls(operation: Callable[[], Any], wait: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Return how many functions one operation calls, and how often those of Python change file."""
    number = changes = 0
    last = ""

    def hook(frame: Any, event: str, argument: Any) -> None:
        nonlocal number, changes, last
        number += event in ("call", "c_call")
        if event == "call":
            changes += frame.f_code.co_filename not in (last, __file__)
            last = frame.f_code.co_filename

    for _ in range(repeats):
        wait()
        last = ""
        sys.setprofile(hook)
        operation()
        sys.setprofile(None)
    return number / repeats, changes / repeats


def test_what_repeated_and_fresh_calls_cost(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the validation layer's part: a look at its messages."""
    comm = vkpar.Communicator(devices_of(rigs, "LL"), deterministic=True)
    monkeypatch.setattr(comm._engine, "_validating", False)
    four = [[device.zeros(2048) for device in comm.devices] for _ in range(4)]
    kept = four[0]
    others = iter([[device.empty(2048) for device in comm.devices] for _ in range(40)])

    def wait() -> None:
        comm.barrier().wait()

    def group() -> None:
        with comm.group():
            for arrays in four:
                comm.all_reduce(arrays)

    for _ in range(4):
        comm.all_reduce(kept)
    for _ in range(4):  # groups that begin with either program
        comm.barrier()
        group()
    repeated, changes = count_calls(lambda: comm.all_reduce(kept), wait, 20)
    recorded, _ = count_calls(lambda: comm.all_reduce(next(others)), wait, 40)
    grouped, _ = count_calls(group, wait, 20)
    assert repeated <= 60
    assert changes <= 15  # to the C helper and back
    assert recorded <= 700
    assert grouped <= 4 * repeated
    comm.close()


def hops(operation: Callable[[], Any]) -> int:
    """Return how often an operation goes from one file of the package to another on its way to the C helper."""
    package = str(Path(vkpar.__file__).parent)
    files: list[str] = []
    submitted = CProgram.enqueue.__code__

    def hook(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.append(frame.f_code.co_filename)
            if frame.f_code is submitted:
                sys.setprofile(None)

    sys.setprofile(hook)
    operation()
    sys.setprofile(None)
    return sum(before != after for before, after in itertools.pairwise(files))


@pytest.mark.parametrize("letters", ["LL", "SS"])
def test_a_call_goes_straight_down(rigs: Rigs, letters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is checked in one place, then recorded; nothing further down asks the arrays again."""
    with vkpar.Communicator(devices_of(rigs, letters), deterministic=True) as comm:
        monkeypatch.setattr(comm._engine, "_validating", False)
        comm.all_reduce([device.zeros(100) for device in comm.devices])
        first, second, third = ([device.zeros(2048) for device in comm.devices] for _ in range(3))
        assert hops(lambda: comm.all_reduce(first)) <= 400
        assert hops(lambda: comm.all_reduce(second)) <= 400  # the other of two programs that take turns
        assert hops(lambda: comm.all_reduce(third)) <= 110
        comm.all_reduce(third)
        assert hops(lambda: comm.all_reduce(third)) <= 12
