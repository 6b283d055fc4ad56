"""Ctrl-C is held back over what cannot be cut in two, and is never lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from children import check_child, run_child

from vkpar.vulkan import interrupts
from vkpar.vulkan.interrupts import uninterrupted


@contextlib.contextmanager
def handler(action: Any) -> Iterator[None]:
    """Install a handler for the length of a block."""
    before = signal.signal(signal.SIGINT, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_after_the_block() -> None:
    steps: list[str] = []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            steps.append("held")
        steps.append("not reached")

    with handler(signal.default_int_handler):
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert steps == ["held"]


def test_the_handler_in_place_is_called_once() -> None:
    calls: list[int] = []
    with handler(lambda number, _: calls.append(number)):
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]


def test_an_ignored_interrupt_stays_ignored() -> None:
    with handler(signal.SIG_IGN):
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_default_action_still_ends_the_process() -> None:
    done = run_child(
        """
        import signal
        from vkpar.vulkan.interrupts import uninterrupted
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            print("held", flush=True)
        print("not reached", flush=True)
        """
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "held\n")


def test_an_interrupt_at_the_edge_leaves_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt arrives once the handler is in place and before the block begins."""
    install = signal.signal

    def interrupted(number: int, action: Any) -> Any:
        before = install(number, action)
        if action is not signal.default_int_handler:
            raise KeyboardInterrupt
        return before

    with handler(signal.default_int_handler):
        monkeypatch.setattr(interrupts.signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            pass
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_hold_nothing() -> None:
    seen: list[Any] = []

    def work() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [before]


def test_a_handler_that_is_not_pythons_is_left_alone() -> None:
    check_child(
        """
        import signal
        from vkpar.vulkan import interrupts
        interrupts.signal.getsignal = lambda number: None
        with interrupts.uninterrupted():
            pass
        """
    )
