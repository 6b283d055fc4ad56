"""How what devices do is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vkpar.comm.tune import settling
from vkpar.parallel.rates import speed


class Clock:
    """Runs that take less and less time, as those of a GPU whose clock rises."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self.calls, self._seconds = 0.0, 0, seconds

    def run(self) -> float:
        seconds = self._seconds[min(self.calls, len(self._seconds) - 1)]
        self.calls += 1
        self.now += seconds
        return seconds

    def perf_counter(self) -> float:
        return self.now


def device(*, cpu: bool) -> Any:
    return SimpleNamespace(info=SimpleNamespace(is_cpu=cpu))


@pytest.mark.parametrize("cpu", [False, True])
def test_it_measures_until_a_clock_has_risen(monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
    clock = Clock([0.06] * 5 + [0.02])
    monkeypatch.setattr(settling.time, "perf_counter", clock.perf_counter)
    least = settling.settled([clock.run], [device(cpu=cpu)])
    assert least == [0.06 if cpu else 0.02]


def test_what_rises_late_is_waited_for_and_what_never_rests_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Clock([0.1] * 3 + [0.09, 0.08, 0.07, 0.05, 0.03])
    monkeypatch.setattr(settling.time, "perf_counter", late.perf_counter)
    assert settling.settled([late.run], [device(cpu=False)]) == [0.03]
    restless = Clock([0.1 * 0.97**number for number in range(200)])
    monkeypatch.setattr(settling.time, "perf_counter", restless.perf_counter)
    settling.settled([restless.run], [device(cpu=False)])
    assert restless.calls < 200


def test_a_clock_that_rises_in_steps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a GPU which waits for another one half of the time stands still for a few runs, and rises again."""
    steps = Clock([0.075] * 4 + [0.06] * 4 + [0.05] * 4 + [0.0386])
    monkeypatch.setattr(settling.time, "perf_counter", steps.perf_counter)
    assert settling.settled([steps.run], [device(cpu=False)]) == [0.0386]


def test_measures_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = Clock([0.05]), []

    def named(name: str, seconds: float) -> float:
        order.append(name)
        clock.run()
        return seconds

    monkeypatch.setattr(settling.time, "perf_counter", clock.perf_counter)
    assert settling.settled([lambda: named("a", 2.0), lambda: named("b", 1.0)], [device(cpu=False)]) == [2.0, 1.0]
    assert order[:4] == ["a", "b", "a", "b"]


def named(name: str, driver: str = "driver") -> Any:
    return SimpleNamespace(info=SimpleNamespace(name=name, driver_uuid=driver, driver_version="1"))


def test_equal_devices_are_equally_fast() -> None:
    cards = [named("A"), named("B"), named("A"), named("A", "another")]
    assert speed.levelled(cards, [4.0, 3.9, 4.1, 4.08]) == [4.05, 3.9, 4.05, 4.08]


def test_a_slow_card_of_the_same_model_stays_slow() -> None:
    assert speed.levelled([named("A"), named("A")], [4.0, 3.0]) == [4.0, 3.0]
