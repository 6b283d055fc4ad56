"""``vkpar trace``: run a command whose process writes a trace of its devices."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vkpar.errors import InvalidUsageError


def run(output: str, command: Sequence[str]) -> int:
    """Run ``command`` and return its exit status; 1 where it has succeeded and there is no trace.

    Raises:
        InvalidUsageError: no such command, or the file cannot be written.
    """
    path = Path(output).absolute()
    try:
        path.write_text("")
        path.unlink()
    except OSError as error:
        raise InvalidUsageError(f"cannot write the trace: {error}") from error
    if not command or shutil.which(command[0]) is None:
        raise InvalidUsageError(f"no such command: {command[0]}" if command else "vkpar trace -o FILE -- COMMAND...")
    status = subprocess.run(list(command), env={**os.environ, "VKPAR_TRACE": str(path)}, check=False).returncode
    if not path.exists():
        print(f"vkpar trace: {command[0]} has opened no device by vkpar; there is no {output}")
        return status or 1
    if not path.stat().st_size:
        print(f"vkpar trace: {command[0]} has ended (status {status}) before it could write {output}")
        return status or 1
    document = json.loads(path.read_text())
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    print(f"vkpar trace: {len(events):,} slices in {output}; open it at https://ui.perfetto.dev or chrome://tracing")
    for each in document["otherData"]["devices"]:
        told = each.get("error") or f"clock: {each['clock']}, within {each['uncertainty_us']:.1f} us"
        print(f"  {each['device']}: {told}")
    return status
