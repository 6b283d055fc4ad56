"""Interrupts leave a device as it was: nothing booked that nobody holds, no handle lost, no other error."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import FULL
from helpers.process.children import check_child
from helpers.process.interrupting import Interrupt

import vkpar
from vkpar import env
from vkpar.vulkan import api
from vkpar.vulkan.machine import instance
from vkpar.vulkan.memory.pool import ALIGNMENT

RANDOM = """
import gc, random, signal, sys
import numpy as np
import vkpar
from vkpar.vulkan import api

wanted, index, by_hand = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "another signal's handler"
chance, seen = random.Random(wanted), 0
x = np.arange(3000, dtype=np.float32)


# What is interrupted in a finalizer is dropped by Python, which says so.
sys.unraisablehook = lambda found: None if found.exc_type is KeyboardInterrupt else sys.__unraisablehook__(found)


def on_alarm(number, frame):
    global seen
    seen += 1
    if by_hand:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def work(turn):
    held = []
    for _ in range(40):
        held.append(device.empty(chance.choice([10, 1000, 16_000, 60_000])))
        if len(held) > 4:
            del held[chance.randrange(len(held))]
    if turn % 3 == 0:
        a = device.array(x)
        assert vkpar.add(a, a).numpy()[5] == 10
    if turn % 50 == 0:
        device.trim()
    if turn % 50 == 25:
        vkpar.open_devices(index)[0].close()


def loop():
    for turn in range(10**9):
        if seen >= wanted:
            return
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 20e-3 if turn % 50 == 25 else 2e-3))
            work(turn)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass


(device,) = vkpar.open_devices(index)
signal.signal(signal.SIGALRM, on_alarm)
while seen < wanted:
    try:
        loop()
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0)

a = device.array(x)
assert (vkpar.add(a, a).numpy() == 2 * x).all()
del a
gc.collect()
device.synchronize()
device.trim()
now = device.memory()
assert now.arrays == 0, now
assert now.used == now.staging, now
assert now.cached == 0, now
device.close()
vkpar.device.close_orphans()
assert api.load().live() == {"Instance": 1}, api.load().live()
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("by", ["ctrl-c", "another signal's handler"])
def test_random_interrupts(device: vkpar.Device, by: str) -> None:
    number = 20_000 if FULL else 300
    check_child(RANDOM, str(number), str(device.info.index), by, timeout=120 + number * 0.1)


@pytest.fixture
def fresh(device: vkpar.Device) -> Iterator[vkpar.Device]:
    """Open the device anew; all its handles must be gone after its close."""
    before = api.load().live()
    (made,) = vkpar.open_devices(device.info.index)
    yield made
    made.close()
    assert api.load().live() == before


def check(device: vkpar.Device) -> None:
    """Check that leases, free lists and accounting of a device say the same."""
    allocator = device.logical.allocator
    memory, room = device.memory(), allocator.room()
    blocks, leases = list(allocator._pool.blocks()), list(allocator._live)
    assert memory.used == sum(lease.reserved for lease in leases)
    assert (memory.buffers, memory.blocks) == (len(leases), len(blocks))
    assert memory.cached == sum(block.backing.nbytes for block in blocks) - memory.used
    assert memory.trimmable == sum(block.nbytes for block in blocks if block.free.empty)
    assert room.free == sum(block.nbytes for block in blocks) - sum(lease.piece.nbytes for lease in leases)
    for block in blocks:
        taken = [(lease.offset, lease.piece.nbytes) for lease in leases if lease.piece.block is block]
        spans = sorted([*taken, *block.free.pieces()])
        assert [start for start, _ in spans] == [0, *(start + size for start, size in spans)][: len(spans)]
        assert sum(size for _, size in spans) == block.nbytes


def taken_and_dropped(device: vkpar.Device) -> None:
    held = [device.empty(size, "uint8") for size in (1000, 30_000, 2000)]
    del held[1]
    held.append(device.empty(5000, "uint8"))


def trimmed(device: vkpar.Device) -> None:
    device.empty(1000, "uint8")
    device.trim()


def limited(device: vkpar.Device) -> None:
    with env.override(max_memory=60_000):
        for _ in range(4):
            device.empty(40_000, "uint8")


def submitted(device: vkpar.Device) -> None:
    device.zeros(1000)


ACTIONS: list[Callable[[vkpar.Device], None]] = [taken_and_dropped, trimmed, limited, submitted]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_interrupt_at_every_step(fresh: vkpar.Device, action: Callable[[vkpar.Device], None]) -> None:
    fresh.array([1.0]).numpy()  # makes the rings
    staging = fresh.memory().used
    for number in itertools.count(0, 1 if FULL else 3):
        with Interrupt(number) as interrupt:
            action(fresh)
        fresh.synchronize()
        check(fresh)
        assert fresh.memory().used == staging
        if not interrupt.fired:
            break
    assert number > 50
    assert fresh.array(np.arange(9.0)).numpy()[8] == 8


@pytest.mark.parametrize("kind", ["CommandPool", "Buffer"])
def test_an_interrupt_at_every_step_of_a_handle(fresh: vkpar.Device, kind: str) -> None:
    """What a call made that was interrupted is recorded, and goes with its device; none is destroyed twice."""
    vk, handle = api.load(), fresh.logical.handle
    if kind == "Buffer":
        usage = vk.vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        info = vk.struct("VkBufferCreateInfo", size=ALIGNMENT, usage=usage)
    else:
        info = vk.struct("VkCommandPoolCreateInfo", queueFamilyIndex=fresh.logical.compute.family)
    before, lost = vk.live(), vk.left
    made = 0
    for number in itertools.count():
        with Interrupt(number) as interrupt:
            vk.destroy(kind, handle, vk.create(kind, handle, info))
        now = vk.live().get(kind, 0) - before.get(kind, 0)
        assert now - made in (0, 1)
        made = now
        if not interrupt.fired:
            break
    assert made > 5
    kept = vk.making(kind, handle)
    for number in itertools.count():
        with Interrupt(number) as interrupt:
            vk.create(kind, handle, info, made=kept)
            vk.discard(kept, handle)
        vk.discard(kept, handle)
        vk.discard(kept, handle)
        assert vk.live().get(kind, 0) - before.get(kind, 0) == made
        if not interrupt.fired:
            break
        kept = vk.making(kind, handle)
    fresh.close()
    assert vk.left - lost == made


def test_an_interrupted_instance_is_made_by_the_next_call(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = api.load().live()
    monkeypatch.setattr(instance, "_instance", None)
    for number in itertools.count():
        with Interrupt(number) as interrupt:
            instance.get()
        assert instance.get().handle is not None
        instance.close()
        assert api.load().live() == before
        if not interrupt.fired:
            break
    assert number > 10


def test_an_interrupted_close_goes_on(device: vkpar.Device) -> None:
    """An interrupt at many steps of a close: the next close goes on, and nothing is left."""
    before = api.load().live()
    info = device.info
    for number in itertools.chain(range(0, 300, 7), [10**9]):
        (opened,) = vkpar.open_devices(info.index)
        opened.zeros(3)
        with Interrupt(number):
            opened.close()
        opened.close()
        assert api.load().live() == before
