"""The pages lead where they say, are in the site, stay short, and name what there is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vkpar
import vkpar.parallel.models
import vkpar.testing

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SOURCES = ("vkpar/**/*.py", "vkpar/**/*.[ch]", "shaders/**/*", "tools/**/*", "tests/**/*.py", "examples/*.py")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _text(page: Path) -> str:
    """Return a page without its programs."""
    return CODE.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _section(title: str) -> str:
    """Return a section of CONTRIBUTING, up to the next one."""
    return CONTRIBUTING.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(_text(page)):
        if ":" in target:  # another site
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), f"{target}#{anchor}"


def test_every_page_and_note_is_in_the_site_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1], re.MULTILINE)
    for page in DOCS.rglob("*.md"):
        assert listed.count(page.relative_to(DOCS).as_posix()) == 1, _name(page)


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = re.findall(r"^::: (.*)$", "\n".join(map(Path.read_text, DOCS.glob("reference/*.md"))), re.MULTILINE)
    public = {f"vkpar.{name}" for name in vkpar.__all__} - {"vkpar.parallel", "vkpar.random", "vkpar.__version__"}
    for module in (vkpar.parallel, vkpar.parallel.models, vkpar.testing):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    public |= {f"vkpar.random.{name}" for name in ("Generator", "bits", "uniform", "normal", "integers", "permutation")}
    assert sorted(shown) == sorted(public)


def test_messages_that_the_page_of_errors_cites_are_those_of_the_package() -> None:
    said = "\0".join(
        node.value
        for path in (ROOT / "vkpar").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    rows = [line.split(" | ")[0] for line in (DOCS / "errors.md").read_text().splitlines() if line.startswith("| `")]
    pieces = [piece for row in rows for message in re.findall(r"`([^`]+)`", row) for piece in message.split("…")]
    assert len(pieces) > 60
    assert not [piece for piece in pieces if len(piece) > 3 and piece not in said and not hasattr(vkpar, piece)]


def test_pictures_are_those_that_the_script_draws() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "pictures.py"), "--check"], check=True)


def test_every_example_is_shown() -> None:
    page = (DOCS / "examples.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        assert f"\n## {path.stem}\n" in page
        most = {"embed": 140, "generate": 215}.get(path.stem, 60)
        assert len(path.read_text().splitlines()) < most, path.name


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md"))], ids=_name)
def test_pages_for_users_are_short_and_name_their_notes(page: Path) -> None:
    assert page.stat().st_size <= 10 * 1024
    has_note = page.parent == DOCS and (DOCS / "notes" / page.name).exists()
    assert not has_note or f"](notes/{page.name}" in page.read_text()


def test_notes_lead_back_to_their_pages() -> None:
    pages = {page.name for page in DOCS.glob("*.md")}
    notes = [note for note in (DOCS / "notes").glob("*.md") if note.name in pages]
    assert notes
    for note in notes:
        assert f"](../{note.name}" in note.read_text(), _name(note)


def test_sources_name_pages_that_exist() -> None:
    found = 0
    for source in {path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}:
        for named in re.findall(r"(?<![\w/])docs/[\w/-]+\.md\b", source.read_text(errors="replace")):
            found += 1
            assert (ROOT / named).exists(), f"{_name(source)}: {named}"
    assert found > 5


def test_one_version_everywhere() -> None:
    assert f"\nversion: {vkpar.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_changelog_is_short_and_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## [{vkpar.__version__}] - 2" in text
    assert len(text.encode()) <= 8 * 1024


def test_contributing_is_short() -> None:
    assert CONTRIBUTING.stat().st_size <= 12 * 1024


def test_contributing_pictures_every_module_at_the_top() -> None:
    picture = _section("Floors and rooms")
    tops = {path.stem for path in (ROOT / "vkpar").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert tops - set(re.findall(r"\w+", picture)) <= {name for name in tops if name.startswith("_")}


def test_contributing_has_a_row_a_room() -> None:
    rooms = [row.split("|")[1] for row in _section("A row a room").splitlines() if row.startswith("| ")]
    named = re.findall(r"`([\w/]+/)`", _section("A row a room"))
    assert len(rooms) < 50
    for package in (ROOT / "vkpar").glob("*/**/__init__.py"):
        folder = package.parent.relative_to(ROOT / "vkpar").as_posix()
        assert folder == "spirv" or f"{folder}/" in named, folder


def test_contributing_names_what_exists() -> None:
    """Rows name what lies in ``vkpar/`` or beside it, recipes whole paths."""
    for title, roots in (("A row a room", (ROOT, ROOT / "vkpar")), ("Recipes", (ROOT,))):
        for path in re.findall(r"`([\w.*-]+/[\w./*-]*)`", _section(title)):
            assert any(list(root.glob(path.rstrip("/"))) for root in roots), path
