"""The pages lead where they say, are in the index, stay short, and name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
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


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(_text(page)):
        if ":" in target:  # another site
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), f"{target}#{anchor}"


def test_every_page_and_note_is_in_the_index_once() -> None:
    index = [target for target, _ in LINK.findall(_text(DOCS / "README.md"))]
    for page in DOCS.rglob("*.md"):
        if page != DOCS / "README.md":
            assert index.count(page.relative_to(DOCS).as_posix()) == 1, _name(page)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=_name)
def test_pages_for_users_are_short_and_name_their_notes(page: Path) -> None:
    assert page.stat().st_size <= 10 * 1024
    assert (
        page.name == "README.md"
        or not (DOCS / "notes" / page.name).exists()
        or f"](notes/{page.name}" in page.read_text()
    )


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
