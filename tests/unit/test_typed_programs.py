"""Short programs of users are clean under strict type checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Images, components and neighbours, and a flow lie in the first one.
PROGRAMS = ("tests/device/test_programs.py", "examples/cnn_digits.py", "examples/tour.py")


def test_programs_are_strictly_typed() -> None:
    call = [sys.executable, "-m", "mypy", "--strict", *PROGRAMS]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
