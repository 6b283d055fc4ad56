"""Runs benchmarks through the command line, and makes them see wrong results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar.cli import main as cli
from vkpar.comm import selftest

TWO = ["--devices", "llvmpipe*2"]
QUICK = ["-n", "2", "-w", "1"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command with ``--json`` and return its status and the document; stderr must be empty."""
    status = cli.main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, json.loads(captured.out)


def skip_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let communicators that would notice a fault themselves open."""
    monkeypatch.setattr(selftest, "run", lambda communicator: None)


def corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read of an array give one wrong element."""
    skip_self_test(monkeypatch)
    read = vkpar.Array.numpy

    def wrong(array: vkpar.Array) -> np.ndarray[Any, Any]:
        host = read(array)
        host.reshape(-1)[host.size // 2] += 1
        return host

    monkeypatch.setattr(vkpar.Array, "numpy", wrong)


class Idle:
    """A work that is none."""

    def wait(self) -> None:
        """Wait for nothing."""
