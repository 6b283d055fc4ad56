"""Runs pieces of Python in child processes: for what must not be loaded, or must end, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

_DROPPED = ("VKPAR_VALIDATION", "VKPAR_LINK", "VKPAR_DEVICES", "VKPAR_STAGING_BYTES")


def child_environment(**changes: str | None) -> dict[str, str]:
    """Return this process's environment without the settings of vkpar; None removes a variable."""
    made = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    for name, value in changes.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    return made


def run_child(
    code: str, *arguments: str, timeout: float = 120.0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new interpreter and return how it ended; after ``timeout`` it is killed and the test fails."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments],
        env=dict(environment if environment is not None else child_environment()),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def check_child(
    code: str, *arguments: str, timeout: float = 120.0, environment: Mapping[str, str] | None = None
) -> str:
    """Run ``code``, which must end with status 0 and write nothing to stderr; return what it printed."""
    done = run_child(code, *arguments, timeout=timeout, environment=environment)
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
