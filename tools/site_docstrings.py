"""What the reference shows of docstrings: sections that the package adds when it is imported, and links for roles."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final

import griffe

REFERENCE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
_ROLE: Final = re.compile(r":(attr|class|data|exc|func|meth|mod):`(~?)([\w.]+)`")


@functools.cache
def shown() -> dict[str, str]:
    """Return what the reference has: whole names by their last words, the shortest of equal ones."""
    lines = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
    names = re.findall(r"^::: ([\w.]+)$", lines, re.MULTILINE)
    return {name.rpartition(".")[2]: name for name in sorted(names, key=len, reverse=True)}


@functools.cache
def internal() -> dict[str, list[str]]:
    """Return, by class, the names that are not for users: of those that the reference shows, and what they inherit."""
    found: dict[str, list[str]] = {}
    for name in shown().values():
        module, _, last = name.rpartition(".")
        kind = getattr(importlib.import_module(module), last)
        for base in inspect.getmro(kind) if inspect.isclass(kind) else ():
            found.setdefault(f"{base.__module__}.{base.__qualname__}", []).extend(
                getattr(kind, "_internal", "").split()
            )
    return found


def _has(name: str, member: str) -> bool:
    """Say whether an object that the reference shows has a member."""
    module, _, last = name.rpartition(".")
    return not member.startswith("_") and hasattr(getattr(importlib.import_module(module), last), member)


def linked(text: str, owner: str) -> str:
    """Return a docstring with links, or plain names, in place of roles; ``owner`` is the class that it is in."""

    def link(role: re.Match[str]) -> str:
        kind, hidden, target = role.groups()
        above, _, last = target.rpartition(".")
        words = f"`{last if hidden else target}`"
        whole = shown().get(above.rpartition(".")[2] or (owner if kind in ("attr", "meth") else ""))
        if whole is not None and _has(whole, last):
            return f"[{words}][{whole}.{last}]"
        if last in shown() and kind not in ("attr", "meth"):
            return f"[{words}][{shown()[last]}]"
        return f"`{last}`" if above.startswith("vkpar.") else words

    return _ROLE.sub(link, text)


class SharedSections(griffe.Extension):
    """Shows the docstrings of operations with the sections that they share with others, which no source has."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take the docstring of the imported function."""
        if func.path.startswith("vkpar.ops.") and func.docstring is not None and isinstance(func.parent, griffe.Module):
            whole = getattr(importlib.import_module(func.parent.path), func.name, None)
            func.docstring.value = linked(inspect.getdoc(whole) or func.docstring.value, "")

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out what parts of the package have of each other."""
        for name in internal().get(cls.path, ()):
            cls.members.pop(name, None)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Lead roles to what they name."""
        if obj.docstring is not None:
            parent = obj if isinstance(obj, griffe.Class) else obj.parent
            obj.docstring.value = linked(obj.docstring.value, parent.name if isinstance(parent, griffe.Class) else "")
