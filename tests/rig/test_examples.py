"""The programs that the documentation shows run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import found

ROOT = Path(__file__).resolve().parents[2]
# Programs; what pytest runs has its test in tests/device/test_pytest_plugin.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("test_"))
LONG = pytest.mark.skipif(os.environ.get("VKPAR_TEST_FULL") != "1", reason="kernels take SwiftShader long: --full only")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    page: blocks
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if (blocks := BLOCK.findall(page.read_text()))
}


def _run(source: str) -> subprocess.CompletedProcess[str]:
    if not found():
        pytest.skip("no Vulkan driver")
    environment = {**os.environ, "VKPAR_VALIDATION": "0"}
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=LONG) if path.stem == "cnn_digits" else path for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_example_runs(example: Path) -> None:
    if "sklearn" in example.read_text() and not find_spec("sklearn") and "VKPAR_REQUIRE_DRIVERS" not in os.environ:
        pytest.skip("no scikit-learn; tools/test installs it")
    done = _run(example.read_text())
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


@pytest.mark.parametrize("stem", ["train_digits", "kmeans", "transformer_block"])
def test_examples_need_no_glsl(stem: str) -> None:
    assert "Kernel" not in (ROOT / "examples" / f"{stem}.py").read_text()


def test_examples_name_devices_alike() -> None:
    assert all('add_argument("--devices"' in example.read_text() for example in EXAMPLES)


def test_digits_without_scikit_learn_say_what_to_install() -> None:
    script = ROOT / "examples" / "train_digits.py"
    done = _run(
        f'import runpy, sys; sys.modules["sklearn"] = None; runpy.run_path({str(script)!r}, run_name="__main__")'
    )
    assert done.returncode == 1
    assert not done.stdout
    assert "# pip install scikit-learn\n" in done.stderr  # the line that Python shows


def test_own_kernel_takes_more_elements_than_one_dimension_of_groups() -> None:
    source = (ROOT / "examples" / "own_kernel.py").read_text()
    assert source.count("1001") == 1
    done = _run(source.replace("1001", "4_200_001"))
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).with_suffix("").as_posix())
def test_the_blocks_of_a_page_run(page: Path) -> None:
    done = _run("\n".join(PAGES[page]))  # a reader goes on where the block before ended
    assert done.returncode == 0, done.stderr


def test_pages_with_programs_are_found() -> None:
    assert {"README", "arrays", "collectives"} <= {page.stem for page in PAGES}
