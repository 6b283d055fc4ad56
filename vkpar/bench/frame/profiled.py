"""Where the time of a benchmark's last size goes: the same calls once more, under a profile."""

from __future__ import annotations

from typing import Any

from vkpar.bench.measure.checked import CheckedCollective
from vkpar.comm.communicator import Communicator
from vkpar.comm.observe.profile import Profile
from vkpar.errors import InvalidUsageError

_CALLS = 20  # where the number of timed calls is left to the benchmark


def take(
    subject: CheckedCollective, communicator: Communicator, warmup: int, iters: int | None, trace: str | None
) -> Profile:
    """Make the timed calls of one size under a profile, and write its trace where one is wanted.

    Raises:
        InvalidUsageError: the trace's file cannot be written.
    """
    subject.upload()
    for _ in range(warmup):
        subject.launch()
    for device in communicator.devices:
        device.synchronize()
    with communicator.profile() as profile:
        for _ in range(iters or _CALLS):
            subject.launch()
    if trace:
        try:
            profile.trace(trace)
        except OSError as error:
            raise InvalidUsageError(f"cannot write the trace: {error}") from error
    return profile


def lines(profile: Profile, nbytes: int) -> list[str]:
    """Return what a report says of the profile of ``nbytes``."""
    return ["#", f"# Profile of {nbytes} bytes, all calls:", *(f"# {line}" for line in str(profile).splitlines())]


def document(profile: Profile) -> dict[str, Any]:
    """Return the same for JSON: single steps are for traces."""
    whole = profile.as_dict()
    del whole["steps"]
    return whole
