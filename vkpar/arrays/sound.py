"""What failed collectives have spoiled of arrays: who reads it is refused, and who writes anew makes up for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from vkpar.arrays.layout import joined
from vkpar.arrays.views import Viewable
from vkpar.vulkan import api, capturing
from vkpar.vulkan.pump.ledger import READS, REPLACES, Span

_MOST_RUNS: Final = 1 << 16  # of elements side by side, that are looked at one by one


class Sound(Viewable):
    """An array that may hold what a failed collective has left."""

    @property
    def _ledger(self) -> Any:
        here: Any = self  # an Array: its device lies above
        return here.device.logical.ledger

    def check_sound(self) -> None:
        """Refuse to use elements that a failed collective was to write, or what was computed from these.

        Raises:
            CommunicatorError: some of them were not written anew since; ``__cause__`` is the failure.
        """
        ledger = self._ledger
        if ledger.clock.lost and self.size:
            refusal = ledger.refusal(self.touches(READS))
            if refusal is not None:
                raise refusal

    def renew(self, *sources: Sound) -> None:
        """Count all elements as written anew, from those of ``sources``: at once, or by each launch of a graph."""
        here: Any = self
        capture = capturing.current()
        if capture is not None and capture.holds(here.device.logical.stream):
            capture.renew(self.touches(REPLACES) if self._ledger.clock.lost and self.size else ())
            return
        ledger = self._ledger
        if (ledger.clock.lost or ledger.clock.active) and self.size:
            touches = self.touches(REPLACES)
            if touches:
                ledger.note([*(touch for source in sources for touch in source.touches(READS)), *touches])

    def touches(self, kind: int) -> list[tuple[int, ...]]:
        """Return what is done to all of its elements, as the ledger takes it.

        Of a view of very many runs it is all that it spans; nothing, where that would count as written.
        """
        return self._ledger.touches(self._spans(whole=kind == REPLACES), kind)  # type: ignore[no-any-return]

    def _spans(self, *, whole: bool) -> Iterator[Span]:
        memory = self.storage.pin()
        assert memory is not None, "it has elements"
        address = api.load().address
        for start, end in self._runs(whole=whole):
            for item in memory.ranges(start, end - start):
                yield address(item.buffer), item.offset, item.offset + item.nbytes

    def _runs(self, *, whole: bool) -> list[tuple[int, int]]:
        """Return the bytes of the storage that hold its elements, as runs."""
        if self.steps is None:
            return [self.span]
        counts, (strides,) = joined(self.shape, self.steps)
        axes, run = list(zip(counts, strides, strict=True)), 1
        if axes and axes[-1][1] == 1:
            run = axes.pop()[0]
        places, itemsize = np.zeros(1, np.int64), self.dtype.itemsize
        for count, stride in axes:
            if stride == 0:
                continue
            if len(places) * count > _MOST_RUNS:
                return [] if whole else [self.span]
            places = (places[:, None] + np.arange(count) * stride).ravel()
        starts = (self.byte_offset + places * itemsize).tolist()
        return [(start, start + run * itemsize) for start in starts]
