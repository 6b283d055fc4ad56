"""The programs that the documentation shows run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import found

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _run(source: str) -> subprocess.CompletedProcess[str]:
    if not found():
        pytest.skip("no Vulkan driver")
    environment = {**os.environ, "VKPAR_VALIDATION": "0"}
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    done = _run(example.read_text())
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


def test_own_kernel_takes_more_elements_than_one_dimension_of_groups() -> None:
    source = (ROOT / "examples" / "own_kernel.py").read_text()
    assert source.count("1001") == 1
    done = _run(source.replace("1001", "4_200_001"))
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


def test_readme_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    done = _run("\n".join(blocks))  # a reader goes on where the block before ended
    assert done.returncode == 0, done.stderr
