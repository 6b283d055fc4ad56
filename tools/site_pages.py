"""What MkDocs is told beyond its file: pages that lie above ``docs/``, and where links out of that folder lead."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parent.parent
ABOVE: Final = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_SHORT: Final = re.compile(r"<code>(?=[^<]{1,28}</code>)")  # in running text: blocks have spans
_LINK: Final = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages above the folder, and what examples' and forms' links show."""
    for source, page in ABOVE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def place(path: str) -> str:
    """Return the site's page for a path of the repository.

    Raises:
        KeyError: the site has none.
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples"):
        return "examples.md"
    return {**ABOVE, "README.md": "index.md"}[path]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links of the repository to pages of the site."""
    name = page.file.src_uri
    source = {above: below for below, above in ABOVE.items()}.get(name, f"docs/{name}")

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        if source.startswith("docs/") and not target.startswith((".", "examples")) and target.startswith("docs/"):
            return link[0]
        try:
            there = place(target)
        except KeyError:
            return link[0]  # MkDocs warns of it
        return f"]({posixpath.relpath(there, posixpath.dirname(name) or '.')}{link[2] or ''})"

    return _LINK.sub(led, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark short words of code, which do not break: browsers take ``--json`` for two."""
    return _SHORT.sub('<code class="short">', html)
