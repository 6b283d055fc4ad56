"""What the commands print with rich: the console, tables, and pairs of names and texts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO, cast

from vkpar import text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Return the terminal, with no text taken for markup and no blanks at the ends of lines."""
    from rich.console import Console

    return Console(file=cast("TextIO", text.Trimmed(sys.stdout)), markup=False, highlight=False, emoji=False)


def table(*columns: str) -> Table:
    """Make a table whose last column gives way first."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column == "#" else "left")
    return made


def pairs(rows: Mapping[str, str]) -> Table:
    """Make a grid of names and texts."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, shown in rows.items():
        made.add_row(f"  {name}", shown)
    return made
