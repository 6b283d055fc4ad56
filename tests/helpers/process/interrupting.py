"""Interrupts that come in the midst of a block, wherever Python looks for them."""

from __future__ import annotations

import inspect
import sys
import weakref
from types import FrameType
from typing import Any


class Interrupt:
    """Interrupts a block the ``number``-th time that a call begins or has returned: Python looks for signals then."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.fired = False

    def __enter__(self) -> Interrupt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> bool:
        sys.setprofile(None)
        return self.fired

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.fired or event not in ("call", "c_return") or argument is sys.setprofile:
            return
        if frame.f_code is Interrupt.__exit__.__code__ or (
            event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR
        ):
            return  # it may be the end of a generator that was dropped, where Python looks for none
        if frame.f_code.co_filename == weakref.WeakSet.add.__code__.co_filename:
            return  # it may be the callback of a weak reference, whose exceptions Python reports and drops
        if frame.f_code.co_name == "gc_callback":
            return  # of hypothesis: what is raised where garbage is collected Python reports and drops
        self.left -= 1
        if self.left < 0:
            self.fired = True
            raise KeyboardInterrupt
