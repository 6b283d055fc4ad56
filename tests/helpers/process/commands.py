"""Commands over several processes, run by mpiexec: each process writes what its commands printed to a file.

    mpiexec -n 2 python tests/helpers/process/commands.py FOLDER short L S

The letters name each process' devices, as in ``spanning.py``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import sys
from pathlib import Path

import pytest
from helpers.process.benching import QUICK, corrupt, skip_self_test
from helpers.process.spanning import NAMES

from vkpar.bench.measure import job
from vkpar.cli import main as cli

_LAST = "last"  # a command of which the last process is given another form
SIZE = ["-b", "4012", "-e", "4012", *QUICK]
SHORT = {
    "bounded": ["bench", "all_reduce", "--wire", "q8", "--json", *SIZE],
    "no such algorithm": ["bench", "reduce", "--algorithm", "tree", "--root", "7", *SIZE],
    "one process": ["bench", "matmul"],
    "unlike": ["bench", "reduce", "--root", _LAST, *SIZE],
    "no such option": ["bench", "reduce", "--nonsense"],
    "wrong": ["bench", "all_reduce", "--wire", "q8", "--json", *SIZE],
}
LONG = {
    "pairs": ["bench", "send_recv", *SIZE],
    "rooted": ["bench", "gather", "--root", "1", *SIZE],
    "all": ["bench", "all", "--sizes", "24,40012"],
    "doctor": ["doctor", "--quick"],
}


def run(name: str, arguments: list[str], letters: list[str]) -> dict[str, object]:
    """Run a command in this process; return its status and what it printed."""
    last = job.number() == len(letters) - 1
    told = [str(int(last)) if word == _LAST else word for word in arguments]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if name == "wrong":
            (corrupt if last else skip_self_test)(patch)
        if name != "one process" and "--nonsense" not in told:
            told += ["--devices", NAMES[letters[job.number()]]]
        status = cli.main(told)
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def main() -> None:
    """Run the commands one after the other."""
    folder, length, *letters = sys.argv[1:]
    faulthandler.dump_traceback_later(500, exit=True)
    made = {name: run(name, arguments, letters) for name, arguments in {"short": SHORT, "long": LONG}[length].items()}
    Path(folder, f"{job.number()}.json").write_text(json.dumps(made))
    print("done", flush=True)


if __name__ == "__main__":
    main()
