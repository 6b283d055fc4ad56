"""Holds back Ctrl-C over what cannot be made one step: enqueueing without the C helper.

It costs two system calls, and holds no other signal. What can be made of single steps is safe without it: see the heads
of :mod:`~vkpar.vulkan.memory.memory` (buffers) and :mod:`~vkpar.vulkan.api` (handles).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done, then deliver it (Python runs handlers in the main thread only)."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: held.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)
