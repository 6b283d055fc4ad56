#!/usr/bin/env python3
"""Time and check all_reduce of NCCL (torch.distributed), one process per GPU.

float32 sums in place, calls queued on NCCL's stream with one wait at the end; columns and JSON as those of
``vkpar bench all_reduce``. Unless told otherwise, NCCL goes through host memory, as vkpar does: GPUs without NVLink or
PCIe peer access have no other way.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import common
import torch_peer

from vkpar.errors import UnsupportedError

_INSTALL = "pip install torch, in its build for CUDA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on as many GPUs as asked for, all by default; return the exit status."""
    parser = common.parser(str(__doc__))
    add_p2p(parser)
    found = parser.parse_args(arguments)
    options = common.options_of(found)
    gpus = prepare(p2p=found.p2p)
    return common.spawn(measure, common.processes(options.nranks, gpus, gpus), options)


def add_p2p(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` take ``--p2p``."""
    parser.add_argument("--p2p", action="store_true", help="leave peer access between GPUs on")


def prepare(*, p2p: bool) -> int:
    """Set how NCCL goes between GPUs in processes that are started later; return the number of GPUs that it can use.

    Raises:
        UnsupportedError: torch is missing, or it can use none.
    """
    common.need("torch", _INSTALL)
    if not p2p:
        os.environ["NCCL_P2P_DISABLE"] = "1"
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast over NVLink is a way between GPUs too
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_nccl_available()):
        raise UnsupportedError(f"this build of torch has no NCCL: {_INSTALL}")
    if not torch.cuda.is_available():
        raise UnsupportedError("torch finds no CUDA GPU: NCCL needs NVIDIA GPUs and their driver")
    return int(torch.cuda.device_count())


def measure(rank: int, nranks: int, rendezvous: str, options: common.Options) -> int:
    """Measure as one rank."""
    return torch_peer.run_torch(join, rank, nranks, rendezvous, options)


def join(rank: int, nranks: int, rendezvous: str) -> torch_peer.TorchPeer:
    """Join the group of ``nranks`` processes as one of them."""
    import torch

    peer_access = os.environ.get("NCCL_P2P_DISABLE") != "1"
    note = f"One process per GPU; peer access {'on' if peer_access else 'off: through host memory'}."
    rig = common.describe(
        nranks,
        [torch.cuda.get_device_name(other) for other in range(nranks)],
        note,
        driver=f"CUDA {torch.version.cuda}",
        kind="discrete",
        torch=torch.__version__,
        nccl=".".join(map(str, torch.cuda.nccl.version())),
    )
    return torch_peer.TorchPeer("NCCL", "nccl", rank, nranks, rendezvous, rig)


if __name__ == "__main__":
    sys.exit(common.main(main))
