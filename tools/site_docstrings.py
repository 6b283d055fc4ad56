"""What the reference shows of docstrings that the package completes when it is imported."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe


class SharedSections(griffe.Extension):
    """Shows the docstrings of operations with the sections that they share with others, which no source has."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take the docstring of the imported function."""
        if func.path.startswith("vkpar.ops.") and func.docstring is not None and isinstance(func.parent, griffe.Module):
            shown = getattr(importlib.import_module(func.parent.path), func.name, None)
            func.docstring.value = inspect.getdoc(shown) or func.docstring.value
