"""The child process that runs checks, and says what it is doing line by line (see :mod:`vkpar.doctor.children`)."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from vkpar.doctor.children import LOST
from vkpar.doctor.findings import FAILED, Finding
from vkpar.doctor.place import Place
from vkpar.doctor.table import BY_NAME
from vkpar.errors import CommunicatorError, DeviceLostError, VkparError


def main(jobs: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
    """Run ``jobs``, each the fields of a :class:`~vkpar.doctor.children.Job`, and print what they find."""
    logging.getLogger("vkpar").addHandler(logging.NullHandler())
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what drivers print is not taken for ours
    sys.stdout = sys.stderr

    def tell(**said: Any) -> None:
        print(json.dumps(said), file=told, flush=True)

    with ExitStack() as stack:
        place = Place(stack, lambda stage: tell(stage=stage), **options)
        for job in jobs:
            tell(begins=job["check"])
            forked = os.fork() if BY_NAME[job["check"]].apart else None
            if forked:
                _follow(os.waitpid(forked, 0)[1])
                tell(done="")
                continue
            start, lost = time.monotonic(), False
            try:
                found = list(BY_NAME[job["check"]].run(place, **job["arguments"]))
            except Exception as error:
                lost = isinstance(error, (DeviceLostError, CommunicatorError))
                found = [Finding(job["check"], job["subject"], FAILED, _words(error))]
            seconds = (time.monotonic() - start) / max(len(found), 1)
            for each in found:
                subject = each.subject or job["subject"]
                whole = replace(each, check=job["check"], subject=subject, seconds=seconds)
                tell(finding=whole.as_dict())
            if forked is not None:
                break
            tell(done=LOST if lost else "")
            if lost:
                break


def _follow(status: int) -> None:
    """End as a process has that was forked, unless it ended well."""
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    if status:
        os._exit(os.waitstatus_to_exitcode(status))


def _words(error: Exception) -> str:
    name = type(error).__name__
    return str(error) if isinstance(error, VkparError) else f"{name}: {error}"
