"""One collective on arrays of its own: launched, and checked on fresh data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.random import default_rng  # imported here: NumPy's lazy import can swallow a Ctrl-C

from vkpar.arrays.array import Array
from vkpar.bench.measure import exact, job
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
            if isinstance(source, Array):
                source.write(data)
            given.append(exact.rounded(data, source.dtype))
        return given

    def _upload_terms(self, terms: Terms) -> list[Host]:
        total = None
        for source in self._buffers.given():
            part = terms.draw(self._generator, source.size)
            if isinstance(source, Array):
                source.write(part)
            total = terms.combine(total, part)
        return [] if total is None else [terms.finish(total)]

    def wrong(self) -> int:
        """Return the wrong elements of one more call, over all ranks, those of other processes included.

        Of ranks that get the same, those are wrong too whose bits differ from a right element of the first.
        """
        for array in self._buffers.taken():
            exact.poison(array)
        expected = self.upload()  # after the poison: in place, sources lie in results
        self.launch().wait()
        bound = 0.0 if self._terms is None else self._terms.bound
        wrong = 0
        replicas: dict[int, tuple[Host, Host]] = {}  # by what is expected: the first result, and what is right of it
        firsts: dict[int, int] = {}  # by what is expected: the first rank that gets it
        for rank, (result, wanted) in enumerate(zip(self._buffers.results, expected, strict=True)):
            if wanted is None:
                continue
            key = firsts.setdefault(id(wanted), rank)
            if isinstance(result, Array):
                found = result.numpy()
                mask = exact.wrong_elements(found, wanted, bound)
                first, right = replicas.setdefault(key, (found, ~mask))
                wrong += int(np.count_nonzero(mask | (_differing(found, first) & right)))
        return wrong if None not in self._setting.devices else _over_processes(wrong, replicas)


def _over_processes(wrong: int, replicas: Mapping[int, tuple[Host, Host]]) -> int:
    """Return the wrong elements of all processes, with those that differ from the first process'."""
    current = job.current()
    digests = {key: hashlib.sha256(found.tobytes()).digest() for key, (found, _) in replicas.items()}
    told = current.gather(digests)
    first = {key: digest for each in reversed(told) for key, digest in each.items()}
    differing = {key for each in told for key, digest in each.items() if digest != first[key]}
    if differing:
        arrays = current.gather({key: replicas[key][0] for key in differing & replicas.keys()})
        leading = {key: found for each in reversed(arrays) for key, found in each.items()}
        for key in differing & replicas.keys():
            found, right = replicas[key]
            wrong += int(np.count_nonzero(_differing(found, leading[key]) & right))
    return sum(current.gather(wrong))


def _differing(found: Host, first: Host) -> Host:
    bits = f"u{found.dtype.itemsize}"
    return np.asarray(found.view(bits) != first.view(bits))
