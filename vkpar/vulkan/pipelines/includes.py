"""GLSL files that include others: one text, whose lines say which file they come from.

The compilers find includes in three different ways, and none says what a kernel that was compiled before depends on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vkpar.errors import InvalidUsageError

_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)[ \t]*(?://.*|/\*.*\*/[ \t]*)?$')
_VERSION: Final = re.compile(r"^[ \t]*#[ \t]*version\b")
_ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
_NAMED_LINES: Final = "#extension GL_GOOGLE_cpp_style_line_directive : enable"
_DEEPEST: Final = 32
NOT_FOUND: Final = "an included file is not found"


def has_includes(text: str) -> bool:
    """Say whether GLSL includes files."""
    return any(map(_INCLUDE.match, text.splitlines()))


def read(path: Path) -> str:
    """Return the text of a file of GLSL.

    Raises:
        InvalidUsageError: there is no such file, or it is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidUsageError(f"a kernel's source cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidUsageError(f"{path} is no text; SPIR-V has the suffix .spv") from error


def expand(text: str, name: str, folder: Path | None, folders: Sequence[Path]) -> tuple[str, list[str]]:
    """Return GLSL with the files that it includes in place; compilers name files and lines in what they say of it.

    A file is looked for beside the one that includes it, then in ``folders``. One that is not found is an error of the
    GLSL, :data:`NOT_FOUND`, where the preprocessor does not leave it out.

    Args:
        text: what the file ``name`` holds.
        name: what messages call it.
        folder: where the file is; None where the text comes from none.
        folders: where else.

    Returns:
        the text; and in words, which files were not found.

    Raises:
        InvalidUsageError: files that include each other for ever, or one that cannot be read.
    """
    expansion = _Expansion(folders)
    return "\n".join(expansion.lines(text, name, folder, 0)) + "\n", expansion.missing


class _Expansion:
    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self.missing: list[str] = []
        self._once: set[Path] = set()  # files that ask to be included a single time, and were

    def lines(self, text: str, name: str, folder: Path | None, depth: int) -> list[str]:
        """Return the lines of a file with those of the files that it includes."""
        if depth > _DEEPEST:
            raise InvalidUsageError(f"{name}: files that include each other ({_DEEPEST} deep)")
        made = [_line(1, name)] if depth else []
        for number, line in enumerate(text.splitlines(), 1):
            found = _INCLUDE.match(line)
            if found:
                made += self._included(found[1] or found[2], f"{name}:{number}", folder, depth)
                made.append(_line(number + 1, name))
            elif not depth and _VERSION.match(line):
                made += [line, _NAMED_LINES, _line(number + 1, name)]
            else:
                made.append(line)
        return made

    def _included(self, wanted: str, where: str, folder: Path | None, depth: int) -> list[str]:
        path = self._find(wanted, folder)
        if path is None:
            places = ", ".join(str(place) for place in (folder, *self._folders) if place is not None)
            self.missing.append(f"{where}: {wanted!r} is not found{places and ' in '}{places or ': give include_dirs'}")
            return [f"#error {NOT_FOUND}"]
        real = path.resolve()
        if real in self._once:
            return []
        text = read(path)
        if _ONCE.search(text):
            self._once.add(real)
            text = _ONCE.sub("", text)
        return self.lines(text, str(path), path.parent, depth + 1)

    def _find(self, wanted: str, folder: Path | None) -> Path | None:
        places = [*([folder] if folder is not None else []), *self._folders]
        return next((place / wanted for place in places if (place / wanted).is_file()), None)


def _line(number: int, name: str) -> str:
    """Return the directive that gives the next line its number and its file."""
    shown = name.replace("\\", "/").replace('"', "'")
    return f'#line {number} "{shown}"'
