"""``vkpar doctor``: looks at the machine, its drivers and its devices, and says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import vkpar
from vkpar.cli import console, private
from vkpar.doctor import page, report
from vkpar.doctor.findings import FAILED
from vkpar.doctor.run import Visit
from vkpar.errors import InvalidUsageError

if TYPE_CHECKING:
    from rich.console import Console

_FAILED: Final = 1


@dataclass(frozen=True)
class Options:
    """What to look at, and what to write.

    Attributes:
        devices: selector; None for all.
        quick: take a sample.
        json: print one JSON document and nothing else; ``row`` a row of the table of rigs.
        junit: a file for JUnit's XML; ``html`` one for a page.
    """

    devices: str | None = None
    quick: bool = False
    json: bool = False
    row: bool = False
    junit: str | None = None
    html: str | None = None


def run(options: Options) -> int:
    """Look at everything, and print a line for each check.

    Returns:
        the exit status: 0, or 1 where a check failed.

    Raises:
        InvalidUsageError: a file that cannot be written, before anything is looked at.
        UnsupportedError: a frozen program.
    """
    visit = Visit(options.devices, options.quick)
    prints = visit.job.prints
    for file in (options.junit, options.html):
        if file is not None and prints:
            _check_file(file)
    visit.job.alike(replace(options, devices=None))
    quiet = options.json or options.row or not prints
    terminal = console.console()
    width = terminal.width if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    lines = report.Lines(width)
    if not quiet:
        terminal.print(f"vkpar doctor {vkpar.__version__}{', quick' if options.quick else ''}")
    announce = _announce if prints else _say_nothing
    for finding in visit.run(announce):
        announce("")
        if not quiet:
            _print(terminal, lines.of(finding))
    announce("")
    if not prints:
        return 0 if visit.ok else _FAILED
    document = private.cleaned(visit.as_dict())
    for file, made in ((options.junit, report.junit), (options.html, page.page)):
        if file is not None:
            Path(file).write_text(made(document), encoding="utf-8")
    if options.json:
        print(json.dumps(document, indent=2))
    elif options.row:
        _print_row(visit, document, lines, terminal)
    else:
        _conclude(visit, document, lines, terminal, options.html)
    return 0 if visit.ok else _FAILED


def _check_file(file: str) -> None:
    path = Path(file)
    if path.is_dir() or not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise InvalidUsageError(f"{file} cannot be written: name a file in a folder that is there and yours")


def _print(terminal: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Print lines, each with the style of all of it, or of its mark."""
    from rich.text import Text

    for line, style in lines:
        shown = Text(line, style=style if style == "bold" else "")
        if style and style != "bold":
            shown.stylize(style, 2, 2 + len(line[2:].split(" ", 1)[0]))
        terminal.print(shown, soft_wrap=True)


def _conclude(visit: Visit, document: dict[str, Any], lines: report.Lines, terminal: Console, html: str | None) -> None:
    failed = [finding for finding in visit.findings if finding.state == FAILED]
    terminal.print()
    if failed and len(visit.findings) > len(failed) + 8:  # they have scrolled away
        terminal.print("what failed", style="bold")
        for finding in failed:
            _print(terminal, lines.line(finding, alone=True))
        terminal.print()
    terminal.print(report.summary(document), style="bold red" if failed else "bold green", soft_wrap=True)
    if html:
        terminal.print(f"{html}: {page.INVITATION}")
    elif failed:
        terminal.print("--html FILE writes a page to attach to a report.")


def _print_row(visit: Visit, document: dict[str, Any], lines: report.Lines, terminal: Console) -> None:
    if visit.ok:
        print(report.row(document))
        return
    for finding in visit.findings:
        if finding.state == FAILED:
            _print(terminal, lines.line(finding, alone=True))


def _say_nothing(check: str, subject: str = "") -> None:
    """Leave it to the first process."""


def _announce(check: str, subject: str = "") -> None:
    """Say on the terminal's standard error which check begins, in place of what was said before; nothing ends that."""
    if sys.stderr.isatty():
        words = f"  ..      {check}{f' of {subject}' if subject else ''}" if check else ""
        sys.stderr.write(f"\r\x1b[2K{words[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
