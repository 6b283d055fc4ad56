"""Faults from below: calls of the driver that fail or come late, in programs of every room.

Whatever fails, errors are typed, nothing hangs, crashes or is silently wrong; other devices, this one where it is not
lost, and fresh objects work afterwards; and every handle is destroyed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import FULL, KNOWN, REQUIRED, require
from faults.programs import PROGRAMS
from helpers.process import faulting
from helpers.process.faulting import Case, Worker

pytestmark = pytest.mark.rig

EACH = 4  # places of each call and kind of fault
SAMPLE = 7


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A child process under the layer."""
    if faulting.compiler() is None:
        (pytest.fail if REQUIRED else pytest.skip)("the layer that makes calls fail is built by gcc, which is not here")
    with Worker(faulting.build(tmp_path_factory.mktemp("faults"))) as made:
        yield made


def check(worker: Worker, cases: list[Case]) -> list[dict[str, Any]]:
    """Run the cases, all of them, then tell what is wrong."""
    told = [(case, worker.ask(case)) for case in cases]
    wrong = [f"{case}\n{problem}" for case, answer in told for problem in answer["problems"]]
    assert not wrong, "\n\n".join(wrong)
    return [answer for _, answer in told]


@pytest.mark.sampled(6)
@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_that_fail_or_come_late(worker: Worker, program: str) -> None:
    for selector in PROGRAMS[program].selectors():
        if selector in KNOWN:
            require(selector)
    cases = list(faulting.cases(program, worker.counts(program), EACH))
    answers = check(worker, cases if FULL else random.Random(program).sample(cases, SAMPLE))
    struck = sum(answer["fired"] > 0 for answer in answers)
    assert struck > len(answers) / 2, "waits and looks depend on timing, other calls do not"


@pytest.mark.parametrize("nth", [1, 6])
def test_what_waits_for_a_signal_that_fails_is_let_go_once_it_does_not(worker: Worker, nth: int) -> None:
    """The bridge's signal fails, then two of those that the abort makes so that the queues drain."""
    require("llvmpipe")
    (answer,) = check(
        worker, [faulting.case("collectives of one driver", "vkSignalSemaphore", "out of host memory", nth, 3)]
    )
    assert answer["fired"] == 3
    assert "vkSignalSemaphore failed: VK_ERROR_OUT_OF_HOST_MEMORY (rank " in answer["raised"]


def test_operations_that_are_lost_with_their_command_buffer_are_named(worker: Worker) -> None:
    """It cannot be ended: the device says so until it is closed."""
    require("llvmpipe")
    require("swiftshader")
    number = worker.counts("kernels")["vkEndCommandBuffer"]
    for nth in range(1, number + 1):
        (answer,) = check(worker, [faulting.case("kernels", "vkEndCommandBuffer", "out of device memory", nth)])
        if "close the device and open it anew" in answer["raised"]:  # those of uploads lose nothing
            break
    assert re.search(r"vkEndCommandBuffer failed: \w+ \(.*: lost: .* \(\d+ operations\); ", answer["raised"])
