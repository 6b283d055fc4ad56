"""How much a dispatch may do, and what that takes of a slow GPU."""

from __future__ import annotations

from typing import Final

MAX_WORK: Final = 1 << 38  # multiply-adds of a dispatch: beyond it a slow GPU could run into its driver's watchdog
WORK_PER_NS: Final = 500  # multiply-adds of a slow GPU, for estimates
