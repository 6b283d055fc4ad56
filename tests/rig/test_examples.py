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
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {
    page: blocks
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if (blocks := BLOCK.findall(page.read_text()))
}


def _run(source: str) -> subprocess.CompletedProcess[str]:
    if not found():
        pytest.skip("no Vulkan driver")
    environment = {**os.environ, "VKPAR_VALIDATION": "0"}
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    if "sklearn" in example.read_text() and not find_spec("sklearn") and "VKPAR_REQUIRE_DRIVERS" not in os.environ:
        pytest.skip("no scikit-learn; tools/test installs it")
    done = _run(example.read_text())
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


@pytest.mark.parametrize(("stem", "most"), [("train_digits", 80), ("kmeans", 45), ("transformer_block", 45)])
def test_examples_stay_short_and_need_no_glsl(stem: str, most: int) -> None:
    text = (ROOT / "examples" / f"{stem}.py").read_text()
    assert len(text.splitlines()) < most
    assert "Kernel" not in text


def test_digits_without_scikit_learn_say_what_to_install() -> None:
    done = _run('import sys; sys.modules["sklearn"] = None\n' + (ROOT / "examples" / "train_digits.py").read_text())
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr == "train_digits.py: the digits are scikit-learn's: pip install scikit-learn\n"


def test_own_kernel_takes_more_elements_than_one_dimension_of_groups() -> None:
    source = (ROOT / "examples" / "own_kernel.py").read_text()
    assert source.count("1001") == 1
    done = _run(source.replace("1001", "4_200_001"))
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    done = _run("\n".join(PAGES[page]))  # a reader goes on where the block before ended
    assert done.returncode == 0, done.stderr


def test_pages_with_programs_are_found() -> None:
    assert {"README", "arrays", "collectives"} <= {page.stem for page in PAGES}


def test_every_page_is_in_the_index_and_every_link_leads_somewhere() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    index = (ROOT / "docs" / "README.md").read_text()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        assert page.parent == ROOT or page.name == "README.md" or f"]({page.name})" in index
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(linked), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_contributing_names_files_that_exist() -> None:
    """A name without a folder is a file beside the one that its row names before."""
    rows = (ROOT / "CONTRIBUTING.md").read_text().split("## Where do I change X?")[1].split("## ")[0]
    named = [re.findall(r"`([\w.*-]+(?:/[\w.*-]*)+|\w+\.(?:py|c|h|comp))`", row) for row in rows.splitlines()]
    assert sum(map(len, named)) > 50
    for paths in named:
        folder = ""
        for path in paths:
            folder, whole = (path[: path.rindex("/") + 1], path) if "/" in path else (folder, folder + path)
            assert list(ROOT.glob(whole.rstrip("/"))), f"{path} in a row of {paths}"


def test_contributing_has_a_row_per_package() -> None:
    rows = (ROOT / "CONTRIBUTING.md").read_text().split("## Where do I change X?")[1].split("## ")[0]
    for package in ROOT.glob("vkpar/*/**/__init__.py"):
        folder = package.parent.relative_to(ROOT).as_posix()
        assert folder == "vkpar/spirv" or f"`{folder}/" in rows, folder
