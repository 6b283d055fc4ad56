"""What the pump takes and gives, in Python's words: batches, handles, counters, and what its objects can do.

A *queue* submits command buffers in order and signals one more value of its timeline for each. A *group* ties one
queue per rank together: it knows which slot each batch reads and writes, and so what each batch must wait for. A
*program* is a list of batches in one global order that is enqueued as a whole, again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Every queue of the process sees all submissions in one total order: see the deadlock note in docs/algorithms.md.
enqueue_lock = threading.RLock()

HISTOGRAM_BUCKETS = 128


def bucket_ns(index: int) -> int:
    """Return the least latency in ns of a histogram bucket; there are four buckets per power of two."""
    return index if index < 4 else (4 + index % 4) << (index // 4 - 1)


def bucket_of(ns: int) -> int:
    """Return the bucket that counts a latency; the last one takes all from 7.5 s up."""
    power = ns.bit_length() - 1
    return min(ns if ns < 4 else 4 * (power - 1) + (ns >> power - 2 & 3), HISTOGRAM_BUCKETS - 1)


@dataclass(frozen=True)
class Batch:
    """One submission: ``command`` on ``rank``'s queue, and the slots that it reads and writes.

    It waits for the value on ``hold``, a timeline of the rank's device, too: a test holds it up that way.
    """

    rank: int
    command: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    hold: tuple[Any, int] | None = None


@dataclass(frozen=True)
class BridgeStats:
    """What the bridge threads did.

    Attributes:
        bridges: batches that they let run (not those that an abort did).
        spins: looks at a source that saw it while spinning; ``blocks``: those that had to block.
        copies: slots that they copied, ``copied_bytes`` in all.
        histogram: for each of ``bridges`` the time from seeing the last source that it took, copies included, to the
            signal having been made; the i-th number counts those from ``bucket_ns(i)`` up.
        pending_by_rank: batches still parked, by destination.
    """

    bridges: int
    spins: int
    blocks: int
    copies: int
    copied_bytes: int
    histogram: tuple[int, ...]
    pending_by_rank: tuple[int, ...]

    @property
    def pending(self) -> int:
        """Batches still parked."""
        return sum(self.pending_by_rank)


@dataclass(frozen=True)
class QueueHandles:
    """The raw handles and entry points of a queue, in the order in which ``vkp_queue_new`` takes them."""

    device: Any
    queue: Any
    timeline: Any
    submit: Any
    wait: Any
    signal: Any
    counter: Any


class QueuePort(Protocol):
    """A queue's submissions, counted on its timeline."""

    @property
    def last(self) -> int:
        """The highest timeline value that a submitted batch will signal."""

    def pair(self, other: Any) -> None:
        """Make each submission wait for all that ``other``, a queue of the same device, was given before."""

    def submit(self, command: Any) -> int:
        """Submit one command buffer and return the value that it will signal."""

    def close(self) -> None:
        """Free what the port holds."""


class ProgramPort(Protocol):
    """Batches that are enqueued together."""

    def enqueue(self) -> list[int]:
        """Submit every batch in one uninterruptible step; return each rank's last timeline value.

        A failure aborts the group; on an aborted group nothing is submitted.
        """

    def last(self) -> list[int]:
        """Return each rank's last timeline value, whatever was submitted to its queue."""

    def close(self) -> None:
        """Free what the port holds."""


class GroupPort(Protocol):
    """The queues of a communicator's ranks, their links and their slots."""

    def set_native(self, dst: int, src: int, semaphore: Any) -> None:
        """Let ``dst`` wait on ``semaphore``: ``src``'s timeline as ``dst``'s device knows it."""

    def set_local(self, dst: int, semaphore: Any) -> None:
        """Name the timeline of ``dst``'s device that only the host signals."""

    def set_slots(self, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Give the host address of the memory that ranks share, and each slot's first byte in it and length."""

    def set_mapped(self, rank: int, address: int) -> None:
        """Let ``rank`` have its slots at ``address``, laid out alike; no link to or from it is native.

        What it reads of others, and others of it, the bridge copies: see ``copy_slot`` in ``_pump_bridge.h``.
        """

    def start(self, spin_ns: int) -> None:
        """Start a waiter thread per source rank that is bridged somewhere."""

    def program(self, batches: Sequence[Batch]) -> ProgramPort:
        """Prepare ``batches``, given in one global order."""

    def stop(self) -> None:
        """End the waiter threads, after the copy that each is at; parked batches stay parked."""

    def abort(self) -> None:
        """Let every parked batch run, its data undefined, so that the queues drain; nothing is enqueued any more."""

    def error(self) -> int:
        """Return the VkResult that stopped the bridge, 0 where none did."""

    def stats(self) -> BridgeStats:
        """Return the counters."""

    def close(self) -> None:
        """Stop, and free what the port holds."""
