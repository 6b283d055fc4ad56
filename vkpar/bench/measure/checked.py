"""One collective on arrays of its own: launched, and checked on fresh data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import default_rng  # imported here: NumPy's lazy import can swallow a Ctrl-C

from vkpar.bench.measure import exact
from vkpar.bench.measure.collectives import Collective, Setting
from vkpar.bench.measure.exact import Host, Terms
from vkpar.comm.communicator import Communicator


def terms_of(collective: Collective, setting: Setting) -> Terms | None:
    """Return what the ranks contribute to a reduction, None for what is only moved."""
    return Terms(setting.op, setting.dtype, setting.wire, setting.nranks) if collective.reduces else None


class CheckedCollective:
    """One collective's arrays, in place or not.

    Attributes:
        launch: enqueues one call.
    """

    def __init__(
        self, collective: Collective, communicator: Communicator, setting: Setting, *, in_place: bool = False
    ) -> None:
        self._collective = collective
        self._setting = setting
        self._terms = terms_of(collective, setting)
        self._buffers = collective.make(setting, in_place)
        self._generator = default_rng(setting.count)
        self.launch = collective.launch(communicator, self._buffers, setting)

    def upload(self) -> Sequence[Host | None]:
        """Give the ranks fresh data, and return what each must get."""
        given = self._upload_moved() if self._terms is None else self._upload_terms(self._terms)
        return self._collective.expected(given, self._setting)

    def _upload_moved(self) -> list[Host]:
        given = []
        for source in self._buffers.given():
            data = exact.anything(self._generator, source.shape, source.dtype)
            source.write(data)
            given.append(exact.rounded(data, source.dtype))
        return given

    def _upload_terms(self, terms: Terms) -> list[Host]:
        total = None
        for source in self._buffers.given():
            part = terms.draw(self._generator, source.size)
            source.write(part)
            total = terms.combine(total, part)
        return [] if total is None else [terms.finish(total)]

    def wrong(self) -> int:
        """Return the wrong elements of one more call, over all ranks.

        Of ranks that get the same, those are wrong too whose bits differ from a right element of the first.
        """
        for array in self._buffers.taken():
            exact.poison(array)
        expected = self.upload()  # after the poison: in place, sources lie in results
        self.launch().wait()
        bound = 0.0 if self._terms is None else self._terms.bound
        wrong = 0
        replicas: dict[int, tuple[Host, Host]] = {}  # by what is expected: the first result, and what is right of it
        for result, wanted in zip(self._buffers.results, expected, strict=True):
            if result is not None and wanted is not None:
                found = result.numpy()
                mask = exact.wrong_elements(found, wanted, bound)
                first, right = replicas.setdefault(id(wanted), (found, ~mask))
                wrong += int(np.count_nonzero(mask | (_differing(found, first) & right)))
        return wrong


def _differing(found: Host, first: Host) -> Host:
    bits = f"u{found.dtype.itemsize}"
    return np.asarray(found.view(bits) != first.view(bits))
