"""How long a call may wait: whatever counts as a number of seconds, and what does not."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from vkpar import InvalidUsageError
from vkpar.timeouts import Deadline, seconds

HOUR_NS = 3600 * 1_000_000_000


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (np.float32(0.25), 0.25),
        (np.int64(3), 3.0),
        (Fraction(1, 2), 0.5),
        (1e300, 1e300),
        (10**400, math.inf),
        (math.inf, math.inf),
    ],
)
def test_numbers_from_zero_up_are_seconds(given: Any, found: float) -> None:
    assert seconds(given) == found


@pytest.mark.parametrize("given", [-1, -0.001, math.nan, -math.inf, -(10**400), "1", None, True, 1j, Decimal(1), [1]])
def test_what_is_no_such_number_is_refused(given: Any) -> None:
    with pytest.raises(InvalidUsageError, match="patience must be a number of seconds from 0 up"):
        seconds(given, "patience")


def test_a_number_that_python_does_not_print_is_refused_too() -> None:
    with pytest.raises(InvalidUsageError, match="not -inf"):
        seconds(-(10**5000))


@pytest.mark.parametrize("timeout", [None, math.inf, 1e300, 10**400, 3600])
def test_a_far_deadline_leaves_the_most_that_is_asked_for(timeout: Any) -> None:
    deadline = Deadline(timeout)
    assert deadline.left_ns(HOUR_NS // 2) == HOUR_NS // 2
    assert not deadline.passed


def test_a_deadline_passes() -> None:
    deadline = Deadline(0.01)
    time.sleep(0.02)
    assert deadline.passed
    assert deadline.left_ns(HOUR_NS) == 0
    assert Deadline(0).passed
