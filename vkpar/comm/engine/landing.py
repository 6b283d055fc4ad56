"""Views whose elements do not lie side by side, in collectives: these take stand-ins, filled before and copied back."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from vkpar.arrays.array import Array
from vkpar.arrays.views import same_elements
from vkpar.comm.requests import calls
from vkpar.comm.requests.keys import Call
from vkpar.device import Device


class Landing:
    """A call with such views, and the call on contiguous arrays that stands for it.

    Attributes:
        call: the call to make in its place, once :meth:`fill` was called.

    Raises:
        InvalidUsageError, UnsupportedError: as :func:`vkpar.comm.requests.calls.check` does; or results overlap, or one
            was made by broadcasting.
        OutOfMemoryError: no room for the stand-ins.
    """

    def __init__(self, devices: Sequence[Device], call: Call) -> None:
        self._pairs: list[tuple[Array, Array]] = []  # of views and what stands for them
        arrays, out = self._stood_for(call.arrays), None if call.out is None else self._stood_for(call.out)
        self.call = call._replace(arrays=arrays, out=out)
        calls.check(devices, self.call)
        self._given = list(zip(calls.given_to(call), calls.given_to(self.call), strict=True))
        calls.check_results(call)
        self._results = [
            pair
            for pair in zip(calls.results_of(call), calls.results_of(self.call), strict=True)
            if pair[0] is not pair[1]
        ]
        self._ref = weakref.ref(self)

    def _stood_for(self, arrays: Sequence[Any]) -> list[Any]:
        return [array if getattr(array, "steps", None) is None else self._stand_in(array) for array in arrays]

    def _stand_in(self, array: Array) -> Array:
        for known, made in self._pairs:
            if same_elements(known, array):
                return made
        self._pairs.append((array, Array.allocate(array.device, array.shape, array.dtype)))
        return self._pairs[-1][1]

    def fill(self) -> None:
        """Copy what the call reads to the stand-ins, in program order."""
        for array, stand_in in self._given:
            if array is not stand_in:
                stand_in.copy_from(array)

    def copy_back(self) -> None:
        """Copy the results to where they belong, in program order."""
        for array, stand_in in self._results:
            array.copy_from(stand_in)

    def hold(self) -> None:
        """Refuse all use of the results' memory, in the same group, too, until :meth:`release`."""
        for array, _ in self._results:
            array.storage.held_by, array.storage.ready = self._ref, None

    def release(self) -> None:
        """End what :meth:`hold` began."""
        for array, _ in self._results:
            storage = array.storage
            if storage.held_by is self._ref:
                storage.ready, storage.held_by = storage.own if storage.number else None, None
