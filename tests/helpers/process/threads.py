"""Does something in several threads at a time, and fails where one of them does."""

from __future__ import annotations

import threading
from collections.abc import Callable

_SECONDS = 60.0


def in_threads(work: Callable[[int], object], number: int = 4) -> None:
    """Call ``work`` in ``number`` threads, with each one's number; it must not raise, and must end."""
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)
