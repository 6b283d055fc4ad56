"""What a visit found, as lines for a terminal, as JUnit's XML, and as a row of the table of rigs."""

from __future__ import annotations

import platform
import textwrap
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import vkpar
from vkpar.doctor import table
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.text import number

MARKS: Final = {OK: "ok", FAILED: "FAILED", SKIPPED: "-"}
STYLES: Final = {OK: "green", FAILED: "bold red", SKIPPED: "dim"}
_NAME: Final = 21  # columns of a check's name
_MARK: Final = 8


class Lines:
    """Turns findings into lines, as they come.

    Args:
        width: of the terminal; None where lines are not broken.
    """

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._heading = ""

    def of(self, finding: Finding) -> Iterator[tuple[str, str]]:
        """Yield the lines of a finding, each with the style of its mark, before them a heading where one is due."""
        heading = heading_of(finding)
        if heading != self._heading:
            self._heading = heading
            yield from (("", ""), (heading, "bold"))
        yield from self.line(finding)

    def line(self, finding: Finding, *, alone: bool = False) -> Iterator[tuple[str, str]]:
        """Yield a finding's own lines; ``alone`` says that no heading names its device."""
        device = alone and finding.section in (table.DEVICES, table.KERNELS)
        subject = finding.subject if device else subject_of(finding)
        said = f"{subject}: {finding.found}" if subject else finding.found
        head = f"  {MARKS[finding.state]:<{_MARK}}{finding.check:<{_NAME}}"
        for at, part in enumerate(self._broken(said)):
            yield (head if at == 0 else " " * len(head)) + part, STYLES[finding.state] if at == 0 else ""
        if finding.fix and finding.state == FAILED:
            for at, part in enumerate(self._broken(finding.fix, 3)):
                yield " " * (2 + _MARK + _NAME) + ("-> " if at == 0 else "   ") + part, ""

    def _broken(self, text: str, less: int = 0) -> list[str]:
        if self._width is None:
            return [text]
        room = max(self._width - 2 - _MARK - _NAME - less, 20)
        return textwrap.wrap(text, room, break_on_hyphens=False) or [""]


def heading_of(finding: Finding) -> str:
    """Return the heading that a finding stands under."""
    section = finding.section
    if section in (table.DEVICES, table.KERNELS):
        return f"device {finding.subject}"
    return {table.RIG: "all devices together", table.PROCESSES: "all processes together"}.get(section, section)


def subject_of(finding: Finding) -> str:
    """Return what a line says of its subject; nothing where the heading or the text says it."""
    if finding.check == "driver":
        return Path(finding.subject).name
    told = finding.section in (table.DEVICES, table.KERNELS, table.MACHINE) or finding.subject in finding.found
    return "" if told or finding.subject.endswith(" ranks") else finding.subject


def summary(visit: Mapping[str, Any]) -> str:
    """Return a sentence on the whole of a visit's document."""
    states = Counter(check["state"] for check in visit["checks"])
    parts = [f"{states[OK]} ok", f"{states[FAILED]} failed"]
    if states[SKIPPED]:
        parts.append(f"{states[SKIPPED]} had nothing to check")
    return f"{number(len(visit['checks']), 'line')} in {visit['seconds']:.0f} s: {', '.join(parts)}."


def junit(visit: Mapping[str, Any]) -> str:
    """Return a visit's document as a test suite of JUnit's XML."""
    states = Counter(check["state"] for check in visit["checks"])
    counts = {"failures": states[FAILED], "errors": 0, "skipped": states[SKIPPED], "time": visit["seconds"]}
    numbers = {name: str(value) for name, value in {"tests": len(visit["checks"]), **counts}.items()}
    suite = ET.Element("testsuite", {"name": "vkpar doctor", **numbers})
    for check in visit["checks"]:
        name = f"{check['check']} [{check['subject']}]" if check["subject"] else check["check"]
        told = {"classname": check["section"], "name": _allowed(name), "time": f"{check['seconds']:.3f}"}
        case, found = ET.SubElement(suite, "testcase", told), _allowed(check["found"])
        if check["state"] == OK:
            ET.SubElement(case, "system-out").text = found
        else:
            kind = "failure" if check["state"] == FAILED else "skipped"
            ET.SubElement(case, kind, {"message": found}).text = _allowed(check["fix"])
    ET.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suite, "unicode")}\n'


def _allowed(text: str) -> str:
    """Return a text without the characters that XML has no place for."""
    return "".join(letter if letter in "\t\n" or letter >= " " else "?" for letter in text)


def row(visit: Mapping[str, Any]) -> str:
    """Return a row of the table in ``docs/rigs.md``."""
    models = Counter((device["name"], device["driver"]) for device in visit["devices"])
    devices = "; ".join(f"{f'{n} x ' if n > 1 else ''}{name}, {driver}" for (name, driver), n in models.items())
    kinds = Counter(link["kind"] for check in visit["checks"] for link in check["data"].get("links", ()))
    transports = sorted({check["data"]["transport"] for check in visit["checks"] if check["check"] == "links"})
    roads = f"{', '.join(kinds)}; {', '.join(transports)}" if kinds else "-"
    system = f"{platform.system()} {platform.release().partition('-')[0]}, {platform.machine()}"
    states = Counter(check["state"] for check in visit["checks"])
    result = f"{states[OK]} ok in {visit['seconds']:.0f} s"
    cells = (devices, system, roads, result, f"{vkpar.__version__}, {time.strftime('%Y-%m')}")
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
