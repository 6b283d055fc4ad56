#!/usr/bin/env python3
"""Time and check all_reduce of gloo (torch.distributed) between processes on this machine's CPU.

float32 sums in place, blocking calls in a row; columns and JSON as those of ``vkpar bench all_reduce``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import common
import torch_peer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in as many processes as asked for, 2 by default; return the exit status."""
    options = common.options_of(common.parser(str(__doc__)).parse_args(arguments))
    common.need("torch", "pip install torch")
    # The processes share one machine; a host name that resolves nowhere would stop gloo.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return common.spawn(measure, common.processes(options.nranks, 2), options)


def measure(rank: int, nranks: int, rendezvous: str, options: common.Options) -> int:
    """Measure as one rank."""
    return torch_peer.run_torch(_join, rank, nranks, rendezvous, options)


def _join(rank: int, nranks: int, rendezvous: str) -> torch_peer.TorchPeer:
    import torch

    note = f"{nranks} processes on one CPU, connected through {os.environ['GLOO_SOCKET_IFNAME']}."
    rig = common.describe(
        nranks, [common.cpu_name()] * nranks, note, driver="gloo", kind="cpu", torch=torch.__version__
    )
    return torch_peer.TorchPeer("gloo", "gloo", rank, nranks, rendezvous, rig)


if __name__ == "__main__":
    sys.exit(common.main(main))
