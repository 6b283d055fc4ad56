"""Where the time of a benchmark's last size goes: the same calls once more, under a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkpar.bench.measure.checked import CheckedCollective
from vkpar.bench.measure.collectives import Setting
from vkpar.comm.communicator import Communicator
from vkpar.comm.observe.profile import Profile
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from vkpar.bench.sweep import Options

_CALLS = 20  # where the number of timed calls is left to the benchmark


def take(options: Options, communicator: Communicator, setting: Setting) -> Profile:
    """Make the timed calls of one size under a profile, and write its trace where one is wanted.

    Raises:
        InvalidUsageError: the trace's file cannot be written.
    """
    subject = CheckedCollective(
        options.case, communicator, setting, in_place=options.case.in_place and options.in_place_only
    )
    subject.upload()
    for _ in range(options.warmup_iters):
        subject.launch()
    for device in communicator.devices:
        device.synchronize()
    with communicator.profile() as profile:
        for _ in range(options.iters or _CALLS):
            subject.launch()
    if options.trace:
        try:
            profile.trace(options.trace)
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
