"""What a run of tests says at its end: a line for each device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vkpar import text


@dataclass
class _Device:
    tests: int = 0
    failed: int = 0
    ulp: float | None = None
    worst: str = ""


def lines_of(reports: Iterable[Any]) -> list[str]:
    """Return a table: per device its tests, those that failed, and the worst measurement in ulps with its test.

    Args:
        reports: pytest's, each of one test; what they say of devices is in ``user_properties``.
    """
    rows: dict[str, _Device] = {}
    for report in reports:
        for device in {value for name, value in report.user_properties if name == "vkpar_device"}:
            row = rows.setdefault(device, _Device())
            row.tests += 1
            row.failed += report.failed
        for name, value in report.user_properties:
            if name == "vkpar_ulp":
                number, device = value.split(" ", 1)
                row = rows.setdefault(device, _Device())
                if row.ulp is None or float(number) > row.ulp:
                    row.ulp, row.worst = float(number), report.nodeid
    table = [("device", "tests", "failed", "worst ulp", "in")]
    for device in sorted(rows):
        row = rows[device]
        ulp = "-" if row.ulp is None else f"{row.ulp:.4g}"
        table.append((device.split(":")[0], str(row.tests), str(row.failed), ulp, row.worst.rsplit("::", 1)[-1]))
    return [*sorted(rows), *text.columns(table, left=(0, 4))]
