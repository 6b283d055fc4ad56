"""What docstrings of operations have in common, given to each of them, since it is looked for there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

FLOATS: Final = "float32, float16, bfloat16"
WHOLE: Final = "int32, uint32, int8, uint8, int16, uint16"
LONG: Final = "int64, uint64, float64 where the device computes them"
_OPERANDS: Final = {
    "x": "of any shape; {types}.",
    "a": "an array, or a number where ``b`` is an array; {types}.",
    "b": "as ``a``; shapes broadcast.",
}
_OUT: Final = "where the result goes, of its shape and type; a new array by default."
_RAISES: Final = """Raises:
    InvalidUsageError: no array, closed ones, or arrays of several devices; shapes that do not broadcast; a number that
        the type does not hold; a wrong ``out``.
    UnsupportedError: another type than these."""


def by_element(functions: Iterable[Callable[..., Any]], types: str) -> None:
    """Give functions by element, of operands of some types, their arguments and what they raise."""
    for function in functions:
        names = [name for name in function.__code__.co_varnames if name in _OPERANDS][: function.__code__.co_argcount]
        lines = [f"    {name}: {_OPERANDS[name].format(types=types)}" for name in names]
        _add(function, "\n".join(["Args:", *lines, f"    out: {_OUT}"]), _RAISES)


def alike(functions: Iterable[Callable[..., Any]], other: Callable[..., Any]) -> None:
    """Give functions the arguments of another one, as far as they have them, and what it raises."""
    for function in functions:
        taken = {*function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]}
        _add(function, *(_of(taken, section) for section in _sections(other)))


def _sections(function: Callable[..., Any]) -> list[str]:
    """Return the paragraphs that begin with ``Args:`` and ``Raises:``."""
    return [part for part in (inspect.getdoc(function) or "").split("\n\n") if part.startswith(("Args:", "Raises:"))]


def _of(taken: set[str], section: str) -> str:
    """Return a section without the arguments that a function does not take."""
    if not section.startswith("Args:"):
        return section
    kept, keeps = [], True
    for line in section.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            keeps = line.strip().partition(":")[0] in taken
        if keeps:
            kept.append(line)
    return "\n".join(kept)


def _add(function: Callable[..., Any], *sections: str) -> None:
    """Put sections before a docstring's examples, but those that it has."""
    text = inspect.getdoc(function)
    if text is None:  # Python was told to leave docstrings out
        return
    head, found, examples = text.partition("Examples:")
    lacking = [section for section in sections if section.partition("\n")[0] not in head]
    function.__doc__ = "\n\n".join([head.rstrip(), *lacking, found + examples])
