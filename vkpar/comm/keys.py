"""What identifies a call, so that a repeated one finds what was recorded for it."""

from __future__ import annotations

from typing import Any


def key_of(call: tuple[Any, ...], group: Any) -> Any:
    """Return what identifies a call: names and arrays' memory; whatever is no array makes a key that no entry has.

    Raises:
        InvalidUsageError: an array that is pending in a group.
    """
    name, arrays, out, *options = call
    try:
        return (name, _keys(arrays, group), None if out is None else _keys(out, group), *options)
    except (AttributeError, TypeError):
        return object()


def _keys(arrays: Any, group: Any) -> tuple[Any, ...]:
    keys = []
    for array in arrays:
        if array is not None and array.storage.held_by is not None:
            array.check_free(group)
        keys.append(None if array is None else array.key)
    return tuple(keys)
