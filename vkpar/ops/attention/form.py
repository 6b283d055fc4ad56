"""A kernel of attention, and how it runs."""

from __future__ import annotations

from typing import Final, NamedTuple

ROWS: Final = "attention_rows"  # how names of kernels begin that take so many queries, and of those by subgroups
WARPS: Final = "attention_warps_rows"


class Kernel(NamedTuple):
    """Which kernel runs, and how.

    Attributes:
        name: of the kernel, but for the type of the keys.
        threads: invocations of a work-group.
        rows: queries that a work-group takes.
        more: further constants of the kernel.
    """

    name: str
    threads: int
    rows: int
    more: tuple[int, ...] = ()

    @property
    def finishes(self) -> bool:
        """True where the last work-group of some queries brings their parts together; else another kernel does."""
        return self.name.startswith((ROWS, WARPS))
