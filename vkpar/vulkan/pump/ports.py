"""What the C helper takes and gives, in Python's words: batches, handles and counters.

A *queue* submits command buffers in order and signals one more value of its timeline for each. A *group* ties one
queue per rank together: it knows which slot each batch reads and writes, and so what each batch must wait for. A
*program* is a list of batches in one global order that is enqueued as a whole, again and again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

# Every queue of the process sees all submissions in one total order: docs/notes/collectives.md says why.
enqueue_lock = threading.RLock()

HISTOGRAM_BUCKETS = 128


def bucket_ns(index: int) -> int:
    """Return the least latency in ns of a histogram bucket; there are four buckets per power of two."""
    return index if index < 4 else (4 + index % 4) << (index // 4 - 1)


def bucket_of(ns: int) -> int:
    """Return the bucket that counts a latency; the last one takes all from 7.5 s up."""
    power = ns.bit_length() - 1
    return min(ns if ns < 4 else 4 * (power - 1) + (ns >> power - 2 & 3), HISTOGRAM_BUCKETS - 1)


class TransferPieces(NamedTuple):
    """What goes from the memory of rank ``src`` to the same places in that of ``dst``, on a lane: offsets and bytes."""

    src: int
    dst: int
    lane: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Batch:
    """One submission: ``command`` on ``rank``'s queue, and the slots that it reads and writes.

    It waits for the value on ``hold``, a timeline of the rank's device, too: a test holds it up that way. It reads
    ``carried`` slots, too, which transfers bring: the command buffer itself waits for those; ``transfers`` are what
    it sends. It ``opens`` a round of such batches, whose command buffers wait for each other.

    It waits for what the queues of ``after`` were given before the program, or, of several programs that are submitted
    at once, before the one that ``begins`` with a batch.
    """

    rank: int
    command: Any
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    hold: tuple[Any, int] | None = None
    carried: tuple[int, ...] = ()
    opens: bool = False
    transfers: tuple[TransferPieces, ...] = ()
    after: tuple[int, ...] = ()
    begins: bool = False

    @property
    def taken(self) -> tuple[int, ...]:
        """All slots that it reads."""
        return (*self.reads, *self.carried)


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
