"""How the pump hands a program's batches to drivers: the first ones of every rank, then, by a thread, the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import require
from helpers.vulkan.pumping import Stand, stand, until

import vkpar
from vkpar.errors import OutOfMemoryError
from vkpar.vulkan.pump import native
from vkpar.vulkan.pump.ports import Batch

pytestmark = pytest.mark.device
OUT_OF_HOST_MEMORY = -1


@pytest.fixture(scope="module")
def devices() -> Iterator[list[vkpar.Device]]:
    require("llvmpipe")
    opened = vkpar.open_devices("llvmpipe*3")
    yield opened
    for device in opened:
        device.close()


def ping_pong(s: Stand, rounds: int) -> list[Batch]:
    """Return batches of ranks 0 and 1 that read in turn what the other has just written."""
    batches = [s.batch(0, {}, {0: 1})]
    for word in range(1, 2 * rounds):
        batches.append(s.batch(word % 2, {(word - 1) % 2: word}, {word % 2: word + 1}))
    return batches


def many(s: Stand, count: int = 20) -> list[Batch]:
    """Return ``count`` batches of each of ranks 0 and 1, which wait for nothing."""
    return [s.batch(rank, {}, {}) for _ in range(count) for rank in range(2)]


def real_submit(device: vkpar.Device) -> Any:
    return device.logical.compute._handles().submit


class Held:
    """A rank's vkQueueSubmit, whose second call and all later ones wait until ``go`` is set, and fail where told to."""

    def __init__(self, device: vkpar.Device, result: int = 0) -> None:
        self.real, self.result = real_submit(device), result
        self.counts: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, queue: Any, count: int, infos: Any, fence: Any) -> int:
        self.counts.append(count)
        if len(self.counts) > 1:
            self.begun.set()
            assert self.go.wait(30)
            if self.result:
                return self.result
        return int(self.real(queue, count, infos, fence))


@pytest.mark.parametrize(("rounds", "parts"), [(16, [(0, 16), (1, 16)]), (17, [(0, 8), (1, 8), (0, 9), (1, 9)])])
def test_of_many_batches_every_rank_gets_the_first_ones_early(
    devices: list[vkpar.Device], rounds: int, parts: list[tuple[int, int]]
) -> None:
    seen: list[tuple[int, int]] = []
    real = [real_submit(device) for device in devices]

    def noting(rank: int) -> Callable[..., int]:
        def submit(queue: Any, count: int, infos: Any, fence: Any) -> int:
            seen.append((rank, count))
            return int(real[rank](queue, count, infos, fence))

        return submit

    with stand(devices, fakes={rank: {"submit": noting(rank)} for rank in range(2)}) as s:
        s.enqueue(ping_pong(s, rounds))
        s.check()
        assert seen == parts


def test_ranks_take_turns(devices: list[vkpar.Device]) -> None:
    seen: list[tuple[int, int]] = []
    real = [real_submit(device) for device in devices]

    def noting(rank: int) -> Callable[..., int]:
        return lambda queue, count, *rest: seen.append((rank, count)) or int(real[rank](queue, count, *rest))

    with stand(devices, fakes={rank: {"submit": noting(rank)} for rank in range(3)}) as s:
        s.enqueue([*many(s, 50), s.batch(2, {}, {})])
        s.finish()
        assert seen == [(0, 8), (1, 8), (2, 1), (0, 32), (1, 32), (0, 10), (1, 10)]


def test_an_enqueue_returns_before_the_driver_has_all(devices: list[vkpar.Device]) -> None:
    """The values count at once; whatever else uses the queue comes after, and waits for no other queue."""
    held = Held(devices[0])
    with stand(devices, fakes={0: {"submit": held}}) as s:
        values = s.enqueue(many(s))
        assert values == [20, 20, 0]
        assert [port.last for port in s.ports] == values
        assert held.begun.wait(30)
        assert (s.ports[0].submitted, held.counts) == (8, [8, 12])
        assert native.wait([s.ports[0]], [20], 1_000_000) == 0, "a wait for what is on its way ends at its timeout"
        later: list[int] = []
        commands = s.batch(0, {}, {}).command
        thread = threading.Thread(target=lambda: later.append(s.ports[0].submit(commands)))
        thread.start()
        time.sleep(0.05)
        assert not later
        held.go.set()
        thread.join(30)
        assert later == [21]
        assert s.ports[0].submitted == 21
        s.check()


def test_operations_come_after_what_is_sent_to_the_devices_other_queue(devices: list[vkpar.Device]) -> None:
    """That queue has batches left for the thread where the operations' own queue has none."""
    with vkpar.open_devices("llvmpipe")[0] as device:
        held = Held(device)
        with stand([device, devices[1]], fakes={0: {"submit": held}}) as s:
            a = device.full((4,), 1.0)
            device.synchronize()
            device.logical.compute.port.pair(s.ports[0])
            s.enqueue(many(s))
            assert held.begun.wait(30)
            found: list[int] = []

            def operate() -> None:
                a.fill(2.0)
                device.synchronize()
                found.append(s.reached(0))

            thread = threading.Thread(target=operate)
            thread.start()
            time.sleep(0.05)
            assert not found
            held.go.set()
            thread.join(30)
            assert found == [20]


@pytest.mark.parametrize("freed", [(0, 1), (1, 0)])
def test_queues_may_be_freed_in_any_order(devices: list[vkpar.Device], freed: tuple[int, int]) -> None:
    """After a program of which one rank's batches all went ahead, and another's did not; an abort asks them no more."""
    asked: list[int] = []
    real = [device.logical.compute._handles().counter for device in devices]

    def noting(rank: int) -> Callable[..., int]:
        return lambda *given: asked.append(rank) or int(real[rank](*given))

    with stand(devices, fakes={rank: {"counter": noting(rank)} for rank in range(3)}) as s:
        s.enqueue([s.batch(0, {}, {}), *(s.batch(1, {}, {}) for _ in range(20))])
        until(lambda: s.reached(1) == 20)
        for rank in freed:
            s.ports[rank].close()
        asked.clear()
        s.group.abort()
        assert asked == [2]


def test_an_abort_after_the_end_asks_no_queue(devices: list[vkpar.Device]) -> None:
    """They may be gone by then."""
    with stand(devices) as s:
        s.enqueue(many(s))
        s.finish()
        s.group.stop()
        for port in s.ports:
            port.close()
        s.group.abort()


@pytest.mark.parametrize("end", ["again", "close", "free"])
def test_a_program_that_is_being_sent(devices: list[vkpar.Device], end: str) -> None:
    """It is launched again, or freed, or its group is, only once the thread is done with it."""
    held = Held(devices[1])
    with stand(devices, fakes={1: {"submit": held}}) as s:
        program = s.group.program(many(s))
        program.enqueue()
        assert held.begun.wait(30)
        act = {"again": program.enqueue, "close": program.close, "free": s.group.close}[end]
        thread = threading.Thread(target=act)
        thread.start()
        time.sleep(0.05)
        assert thread.is_alive()
        held.go.set()
        thread.join(30)
        assert not thread.is_alive()
        s.finish()
        assert held.counts == ([8, 12, 8, 12] if end == "again" else [8, 12])
        program.close()


def test_a_submit_that_fails_later(devices: list[vkpar.Device]) -> None:
    """Waits for what was not submitted say so, what waits for it on other queues is let go, the queue goes on."""
    held = Held(devices[1], OUT_OF_HOST_MEMORY)
    held.go.set()
    with stand(devices, fakes={1: {"submit": held}}) as s:
        writer, reader = s.batch(1, {}, {0: 7}), s.batch(0, {0: 7}, {})
        assert s.enqueue([*many(s), writer, reader, s.batch(2, {}, {})]) == [21, 21, 1]
        until(
            s.group.error
        )  # before the thread hands the program back: a wait may begin in between, and lasts its second
        assert (s.group.error(), s.group.failed()) == (OUT_OF_HOST_MEMORY, ("vkQueueSubmit", 1))
        for _ in range(2):
            with pytest.raises(OutOfMemoryError):
                native.wait([s.ports[1]], [9], 1_000_000_000)
        assert native.wait([s.ports[1]], [8], 10_000_000_000) == 1
        s.wait(0, 21)
        with pytest.raises(OutOfMemoryError, match="nothing was submitted"):
            s.enqueue([s.batch(2, {}, {})])
        held.result = 0
        assert s.ports[1].submit(s.batch(1, {}, {}).command) == 22
        assert native.wait([s.ports[1]], [22], 10_000_000_000) == 1
        with pytest.raises(OutOfMemoryError):
            native.wait([s.ports[1]], [21], 0)


def test_a_wait_that_began_before_its_submit_failed(devices: list[vkpar.Device]) -> None:
    """Its timeout passes, and then it says why nothing came."""
    held = Held(devices[1], OUT_OF_HOST_MEMORY)
    with stand(devices, fakes={1: {"submit": held}}) as s:
        s.enqueue(many(s))
        assert held.begun.wait(30)
        release = threading.Timer(0.05, held.go.set)
        release.start()
        with pytest.raises(OutOfMemoryError):
            native.wait([s.ports[1]], [9], 2_000_000_000)
        release.join(30)
        held.result = 0
        s.ports[1].submit(s.batch(1, {}, {}).command)


def test_a_submit_that_fails_at_once(devices: list[vkpar.Device]) -> None:
    """The values say how far each queue came, and what waits for the others is let go."""
    with stand(devices, fakes={1: {"submit": lambda *_: OUT_OF_HOST_MEMORY}}) as s:
        with pytest.raises(OutOfMemoryError, match="rank 1") as caught:
            s.enqueue([*many(s), s.batch(2, {}, {})])
        assert getattr(caught.value, "rank", None) == 1
        assert [port.last for port in s.ports] == [8, 0, 0]
        s.finish()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("_turn", range(10))
def test_a_stop_while_batches_go_out(devices: list[vkpar.Device], rank: int, when: int, _turn: int) -> None:
    """What was handed to the group's thread is submitted, and nobody waits for a thread that waits for itself."""
    real, calls, stands = real_submit(devices[rank]), [], []

    def submit(queue: Any, count: int, infos: Any, fence: Any) -> int:
        calls.append(count)
        if len(calls) == when:
            stands[0].group.stop()
        return int(real(queue, count, infos, fence))

    with stand(devices, fakes={rank: {"submit": submit}}) as s:
        stands.append(s)
        s.enqueue(many(s))
        assert [port.last for port in s.ports] == [20, 20, 0]
