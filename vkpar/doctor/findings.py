"""What a check found: a line of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

OK: Final = "ok"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: the name of the check's row in the table.
        subject: what was looked at: a device, a driver's manifest, a variable.
        state: ``ok``, ``failed``, or ``skipped``, where there was nothing to check.
        found: what there is, or why it fails.
        fix: what to do about it.
        seconds: what the check took.
        section: of the report; the table has it.
        data: more of it, ready for JSON.
    """

    check: str
    subject: str
    state: str
    found: str
    fix: str = ""
    seconds: float = 0.0
    section: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, state: str, found: str, fix: str = "", subject: str = "", **data: Any) -> Finding:
        """Return a line of which the one who runs the check knows the rest."""
        return cls("", subject, state, found, fix, data=data)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)
