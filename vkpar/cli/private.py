"""Takes out of a report what is nobody's business: the home folder, the user's name and the machine's."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

_COMMON = ("root", "user", "localhost", "linux")  # names that say nothing, and are words of reports


def words() -> list[tuple[re.Pattern[str], str]]:
    """Return what is replaced, and by what."""
    found = [(re.escape(home), "~") for home in {os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))}]
    found = [(home, mark) for home, mark in found if len(home) > 1]
    found += [(r"/(?:home|Users)/[^/\s:;,]+", "~")]  # of others, too
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = ""
    for name, mark in ((user, "USER"), (socket.gethostname(), "HOST")):
        if len(name) > 1 and name.lower() not in _COMMON:
            found.append((rf"(?<![\w-]){re.escape(name)}(?![\w-])", mark))
    return [(re.compile(pattern), mark) for pattern, mark in found]


def cleaned(value: Any) -> Any:
    """Return texts, and all texts in lists and mappings, without them."""
    replaced = words()

    def clean(each: Any) -> Any:
        if isinstance(each, str):
            for pattern, mark in replaced:
                each = pattern.sub(mark, each)
            return each
        if isinstance(each, Mapping):
            return {key: clean(inner) for key, inner in each.items()}
        return [clean(inner) for inner in each] if isinstance(each, (list, tuple)) else each

    return clean(value)
