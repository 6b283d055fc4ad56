#!/usr/bin/env python3
"""Time and check all_reduce of MPI (mpi4py) between processes on this machine's CPU, which it starts with mpiexec.

float32 sums in place, blocking calls in a row; columns and JSON as those of ``vkpar bench all_reduce``. Options of the
MPI itself are given through its environment variables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

from vkpar.bench.measure.exact import Host
from vkpar.errors import InvalidUsageError, UnsupportedError

_INSTALL = "pip install mpi4py mpich"
_WORKER = "VKPAR_PEER_MPI_RANKS"  # set for the processes that mpiexec starts: how many they are


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in as many processes as asked for, 2 by default; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = common.options_of(common.parser(str(__doc__)).parse_args(given))
    if _WORKER in os.environ:
        return measure(options)
    nranks = common.processes(options.nranks, 2)
    command = [_launcher(), "-n", str(nranks), sys.executable, str(Path(__file__).resolve()), *given]
    status = subprocess.run(command, env=os.environ | {_WORKER: str(nranks)}, check=False).returncode
    return status if status in (0, common.WRONG) else common.ERROR


def _launcher() -> str:
    """Return mpiexec: that of this Python's environment, where wheels put it, else the system's.

    Raises:
        UnsupportedError: mpi4py or an MPI is missing.
    """
    common.need("mpi4py", _INSTALL)
    import mpi4py

    mpi4py.rc.initialize = False  # this process is no rank
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        raise UnsupportedError(f"mpi4py finds no MPI ({' '.join(str(error).split())}): {_INSTALL}") from error
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)
    if found is None:
        raise UnsupportedError(f"needs mpiexec or mpirun: {_INSTALL}")
    return found


class MpiPeer:
    """A rank of MPI's world."""

    def __init__(self, nranks: int) -> None:
        import mpi4py
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.name, self.rank, self.nranks = "MPI", self._world.Get_rank(), nranks
        seen = self._world.Get_size()
        if seen != nranks:
            raise InvalidUsageError(
                f"{nranks} processes see {seen} of themselves: mpiexec is of another MPI than mpi4py"
            )
        library = " ".join(MPI.Get_library_version().split("\n")[0].replace("Version:", "").split())
        versions = {"mpi4py": mpi4py.__version__, "mpi": library}
        note = f"{nranks} processes on one CPU."
        self.rig = common.describe(nranks, [common.cpu_name()] * nranks, note, driver=library, kind="cpu", **versions)
        self._array = np.empty(0, np.float32)

    def allocate(self, count: int) -> None:
        """See :class:`common.Peer`, here and below."""
        self._array = np.empty(count, np.float32)

    def write(self, host: Host) -> None:
        self._array[:] = host

    def read(self) -> Host:
        return self._array

    def call(self) -> None:
        self._world.Allreduce(self._mpi.IN_PLACE, self._array, op=self._mpi.SUM)

    def finish(self) -> None:
        """Do nothing: a call returns when it is done."""

    def barrier(self) -> None:
        self._world.Barrier()

    def greatest(self, value: float) -> float:
        return float(self._world.allreduce(value, op=self._mpi.MAX))

    def total(self, value: int) -> int:
        return int(self._world.allreduce(value))

    def abort(self) -> Any:
        """End all ranks."""
        return self._world.Abort(common.ERROR)


def measure(options: common.Options) -> int:
    """Measure as one rank."""
    peer = MpiPeer(int(os.environ[_WORKER]))
    try:
        return common.run_rank(peer, options)
    except Exception:
        # The other ranks would wait for this one for ever.
        traceback.print_exc()
        sys.stderr.flush()
        return int(peer.abort() or common.ERROR)


if __name__ == "__main__":
    sys.exit(common.main(main))
