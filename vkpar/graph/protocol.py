"""What a graph and the collectives in it know of each other: collectives lie above graphs and are not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from vkpar.abi.wire import Reduce, ReduceConstants
from vkpar.device import Device
from vkpar.timeouts import Waitable
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.pump.ports import Batch, TransferPieces
from vkpar.vulkan.tape import Noted

MOST_WAITING: Final = 64  # work-groups that wait for slots: others of a card would find no room beside many more
TIMED: Final = 2  # recordings of a graph with timestamps: one is read while the other runs


class WireSend(NamedTuple):
    """What a step notes that sends elements: from where they lie to a slot, and decoded to where the readers' go.

    Attributes:
        wire: the format of the slot, as kernels are named after it.
        nelements: how many elements, of float32.
        slots: the slots, as kernels bind them.
        out_slot: the first 16-byte unit of the slot there, and ``tail`` that of the scales from the slot's start.
    """

    wire: str
    nelements: int
    slots: BufferRange
    out_slot: int
    tail: int


class WireStore(NamedTuple):
    """What a step notes that stores a sum: where its first element goes, and what the kernels bind.

    Attributes:
        wire: the format of the slots, as kernels are named after it.
        nelements: how many elements, of float32.
        constants: the kernels' specialization constants.
        launches: of each the part that the kernel is named after, its push constants and numbers of work-groups.
    """

    wire: str
    nelements: int
    constants: ReduceConstants
    launches: tuple[tuple[str, Reduce, tuple[int, int, int]], ...]


Counts = Mapping[tuple[int, int], int]  # of transfers, by rank and lane


class Flags(NamedTuple):
    """How a step whose slots are carried is ordered: by flags, which a small kernel waits for and raises.

    Attributes:
        waits: what must have come before it; ``raises``: what it has made ready.
        record: records a kernel that raises flags, then waits for others, after all kernels before it; whoever records
            next orders that after it.
        word: as kernels that do so themselves are told of such counts; 0 where they cannot be.
    """

    waits: Counts
    raises: Counts
    record: Callable[[Any, Counts, Counts], None]
    word: Callable[[Counts], int]


class Step(NamedTuple):
    """One step of a captured collective.

    Attributes:
        rank: whose it is.
        phase: what it is for, such as ``"gather"``.
        reads: the slots that it reads; ``writes``: those that it fills.
        record: records it into an open command buffer of the rank's device; it is called again for a profile.
        kernels: a :class:`WireSend` or :class:`WireStore` where other kernels may do what its own do, else None.
        around: records what comes before, or ``after``, these kernels.
        received_nbytes: bytes that it reads from slots; ``sent_nbytes``: bytes that it writes to them.
        errand: what is submitted in place of a command buffer, where the step runs on no device: nothing is recorded
            then, and ``rank`` is the number of a queue beyond those of the devices. None elsewhere.
        flags: what carries its slots between cards, in place of waits between submissions; None elsewhere.
        transfers: what it sends that way.
        opens: all ranks begin new submissions with it.
    """

    rank: int
    phase: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    record: Callable[[Any], None]
    kernels: Noted | None
    around: Callable[..., None]
    received_nbytes: int = 0
    sent_nbytes: int = 0
    errand: Any = None
    flags: Flags | None = None
    transfers: tuple[TransferPieces, ...] = ()
    opens: bool = False


class Collective(Protocol):
    """A captured collective: its steps in one global order, and what they hold."""

    @property
    def name(self) -> str:
        """The collective's name."""

    @property
    def steps(self) -> Sequence[Step]:
        """The steps."""

    @property
    def parts(self) -> Sequence[tuple[int, Any]]:
        """What the steps hold on the ranks' devices, by rank; each has ``close()``."""


class Recorded(NamedTuple):
    """A graph as command buffers.

    Attributes:
        batches: the submissions in one global order.
        phases: by rank, what each of its batches does.
        parts: what they hold on the ranks' devices, by rank; each has ``close()``.
        label: what the graph consists of, for people.
        moved: by batch, the bytes that it reads from slots, and those that it writes to them.
        touches: what it does to memory, as the ledger of failures takes it.
        marks: by rank, how many timestamps tell its operations apart.
    """

    batches: Sequence[Batch]
    phases: Sequence[Sequence[str]]
    parts: Sequence[tuple[int, Any]]
    label: Mapping[str, int]
    moved: Sequence[tuple[int, int]]
    touches: Sequence[tuple[int, ...]] = ()
    marks: Sequence[int] = ()


class Timer(Protocol):
    """Takes the times of one rank's batches, in order."""

    def record_begin(self, commands: Any) -> None:
        """Record the begin of the next one."""

    def record_mark(self, commands: Any, name: str) -> None:
        """Record the end of one of its operations."""

    def record_end(self, commands: Any) -> None:
        """Record its end."""


Record = Callable[
    [Mapping[int, Timer]], Recorded
]  # given timers by rank, for a profile; nothing else is the same twice


class Launcher(Protocol):
    """Submits a recorded graph."""

    def launch(self, preludes: Sequence[Any] | None, keep: object) -> Waitable:
        """Submit the graph once and return its work.

        Args:
            preludes: by rank, a command buffer that runs before the first batch; None for none at all.
            keep: what the work holds until it is done.
        """

    def starts(self) -> Sequence[int]:
        """Return, by rank, the timeline value that the first batch of the last launch signals; 0 where it has none."""

    def close(self) -> None:
        """Free the graph once its launches are done; a second call does nothing."""


class Collectives(Protocol):
    """A communicator, as a graph sees it."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices, in rank order."""

    @property
    def owner(self) -> object:
        """What identifies the communicator."""

    def capture(self, graph: Any, call: Any) -> Any:
        """Check a collective, have ``graph`` take it, and return its work."""

    def begin(self) -> None:
        """Refuse a capture on a communicator that cannot be used."""

    def launcher(self, record: Record) -> Launcher:
        """Have a graph recorded, and return what submits it; ``record`` is called again in profiles."""
