#!/usr/bin/env python3
"""Run a command and draw what it prints in a terminal of 88 columns: ``record_terminal.py FILE.svg COMMAND...``."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 88


def main() -> int:
    """Write the picture."""
    path, *command = sys.argv[1:]
    ours, theirs = pty.openpty()
    settings = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=settings) as child:
        os.close(theirs)
        printed = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            printed += piece
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    console.print(Text.from_ansi(printed.decode(errors="replace").replace("\r\n", "\n")))
    svg = console.export_svg(title=shlex.join(command))
    Path(path).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # from other hosts
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
