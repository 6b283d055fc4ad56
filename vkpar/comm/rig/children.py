"""Self-tests in a child process: what a driver cannot do may end the process that tries."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vkpar import timeouts

_CHILD = """
import importlib, json, sys
job = json.load(sys.stdin)
sys.path += job.pop("path")
importlib.import_module(job.pop("module")).main(**job)
"""


def prove(module: str, job: Mapping[str, Any], wanted: str) -> str:
    """Run ``main(**job)`` of ``module`` in a child process; return why it failed, "" where it printed ``wanted``.

    The child imports modules from the standard library, then from where this process has vkpar, then from this
    process's search path, but nothing from the current directory.
    """
    if getattr(sys, "frozen", False):  # sys.executable is the program itself, which would start all over
        return "a frozen program has no Python to run it in"
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    try:
        done = subprocess.run(
            command,
            input=json.dumps({"path": search_path(), "module": module, **job}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeouts.LINK_TEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {timeouts.LINK_TEST_SECONDS:g} s"
    except OSError as error:
        return f"it could not be started: {error}"
    return _problem(done, wanted)


def search_path() -> list[str]:
    """Return the folders where the child looks for modules; no empty entry, which is the current directory."""
    mine = str(Path(__file__).resolve().parents[3])
    return [mine, *(os.path.abspath(entry) for entry in sys.path if entry)]


def proof(nonce: str, found: Sequence[int]) -> str:
    """Return what the child prints: a digest of the parent's number and of what it has found."""
    return hashlib.sha256(f"{nonce} {list(found)}".encode()).hexdigest()


def _problem(done: subprocess.CompletedProcess[str], wanted: str) -> str:
    if done.returncode != 0:
        how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        return f"it ended with {how}: {words[-1][-300:]}"
    return "" if wanted in done.stdout.split() else "it ended without proof of having run"
