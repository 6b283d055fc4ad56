"""What identifies a call, so that a repeated one finds what was recorded for it."""

from __future__ import annotations

from typing import Any


def key_of(call: tuple[Any, ...], group: Any) -> tuple[Any, list[Any]]:
    """Return what identifies a call, and what keeps its arrays' memory until it is submitted.

    The key is of names and arrays' memory; whatever is no array makes one that no entry has.

    Raises:
        InvalidUsageError: an array that was closed, or is pending in a group.
    """
    name, arrays, out, *options = call
    pins: list[Any] = []
    try:
        return (name, _keys(arrays, group, pins), None if out is None else _keys(out, group, pins), *options), pins
    except (AttributeError, TypeError):
        return object(), pins


def _keys(arrays: Any, group: Any, pins: list[Any]) -> tuple[Any, ...]:
    keys: list[Any] = []
    for array in arrays:
        if array is None:
            keys.append(None)
            continue
        storage = array.storage
        pins.append(storage.pin())
        if storage.held_by is not None:
            storage.check_free(group)
        keys.append(array.key)
    return tuple(keys)
