"""How the pump hands a program's batches to the drivers: the first ones of every rank, then the others side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import require
from pumping import Stand, stand

import vkpar
from vkpar.errors import OutOfMemoryError
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


@pytest.mark.parametrize(("rounds", "parts"), [(16, [(0, 16), (1, 16)]), (17, [(0, 8), (1, 8), (0, 9), (1, 9)])])
def test_of_many_batches_every_rank_gets_the_first_ones_early(
    devices: list[vkpar.Device], rounds: int, parts: list[tuple[int, int]]
) -> None:
    seen: list[tuple[int, int]] = []
    real = [device.logical.compute._handles().submit for device in devices]

    def noting(rank: int) -> Callable[..., int]:
        def submit(queue: Any, count: int, infos: Any, fence: Any) -> int:
            seen.append((rank, count))
            return int(real[rank](queue, count, infos, fence))

        return submit

    with stand(devices, fakes={rank: {"submit": noting(rank)} for rank in range(2)}) as s:
        s.enqueue(ping_pong(s, rounds))
        assert (seen[:2], sorted(seen[2:])) == (parts[:2], parts[2:])  # two threads make the last two calls
        s.check()


def test_a_submit_that_fails_after_the_first_batches(devices: list[vkpar.Device]) -> None:
    """The values say how far each queue came, and what waits for the others is let go."""
    real, calls = devices[1].logical.compute._handles().submit, []

    def second(queue: Any, count: int, infos: Any, fence: Any) -> int:
        calls.append(count)
        return OUT_OF_HOST_MEMORY if len(calls) == 2 else int(real(queue, count, infos, fence))

    with stand(devices, fakes={1: {"submit": second}}) as s:
        batches = [s.batch(rank, {}, {}) for _ in range(20) for rank in range(2)]
        with pytest.raises(OutOfMemoryError, match="rank 1") as caught:
            s.enqueue([*batches, s.batch(2, {}, {})])
        assert getattr(caught.value, "rank", None) == 1
        assert [port.last for port in s.ports] == [20, 8, 1]
        s.finish()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("_turn", range(10))
def test_a_stop_while_batches_go_out(devices: list[vkpar.Device], rank: int, when: int, _turn: int) -> None:
    """What was handed to a rank's thread is submitted, and nobody waits for a thread that waits for itself."""
    real, calls, stands = devices[rank].logical.compute._handles().submit, [], []

    def submit(queue: Any, count: int, infos: Any, fence: Any) -> int:
        calls.append(count)
        if len(calls) == when:
            stands[0].group.stop()
        return int(real(queue, count, infos, fence))

    with stand(devices, fakes={rank: {"submit": submit}}) as s:
        stands.append(s)
        s.enqueue([s.batch(rank, {}, {}) for _ in range(20) for rank in range(2)])
        assert [port.last for port in s.ports] == [20, 20, 0]
