"""Functions in the place of Vulkan's, for the queues that a test opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from vkpar.vulkan import api
from vkpar.vulkan.pump.ports import QueueHandles
from vkpar.vulkan.queue import Queue

Functions = Mapping[str, Callable[..., int]]
_TYPES = {
    "submit": "PFN_vkQueueSubmit",
    "counter": "PFN_vkGetSemaphoreCounterValue",
    "signal": "PFN_vkSignalSemaphore",
    "wait": "PFN_vkWaitSemaphores",
}
_kept: list[dict[str, Any]] = []  # whatever becomes of a queue


def callbacks(functions: Functions) -> dict[str, Any]:
    """Return functions, named as :class:`QueueHandles` has them, as C calls them; they must outlive their queues."""
    return {name: api.load().ffi.callback(_TYPES[name], function) for name, function in functions.items()}


def replace_functions(patch: pytest.MonkeyPatch, of: Callable[[QueueHandles], Functions]) -> None:
    """Have queues that are made from now on call what ``of`` returns for their handles."""
    real = Queue._handles

    def handles(queue: Queue) -> QueueHandles:
        found = real(queue)
        _kept.append(callbacks(of(found)))
        return replace(found, **_kept[-1])

    patch.setattr(Queue, "_handles", handles)
