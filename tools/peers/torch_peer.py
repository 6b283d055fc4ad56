"""A rank of torch.distributed, whose backend is NCCL or gloo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import common
import numpy as np

from vkpar.bench.frame import frame
from vkpar.bench.measure.exact import Host


class TorchPeer:
    """A rank of torch.distributed, ``backend`` being its library's name there."""

    def __init__(self, name: str, backend: str, rank: int, nranks: int, rendezvous: str, rig: frame.RigInfo) -> None:
        import torch
        from torch import distributed

        self.name, self.rank, self.nranks, self.rig = name, rank, nranks, rig
        self._torch, self._distributed = torch, distributed
        self.device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        self._tensor = torch.empty(0)
        options: dict[str, Any] = {}
        if backend == "nccl":
            torch.cuda.set_device(self.device)
            options["device_id"] = self.device
        distributed.init_process_group(
            backend, init_method=f"file://{rendezvous}", rank=rank, world_size=nranks, **options
        )
        # NCCL's calls are put on a stream and return; gloo's return when they are done.
        self.call = partial(self._all_reduce, backend == "nccl")

    def _all_reduce(self, asynchronous: bool) -> None:
        self._distributed.all_reduce(self._tensor, async_op=asynchronous)

    def allocate(self, count: int) -> None:
        """See :class:`common.Peer`, here and below."""
        self._tensor = self._torch.empty(count, dtype=self._torch.float32, device=self.device)

    def write(self, host: Host) -> None:
        self._tensor.copy_(self._torch.from_numpy(host))
        self.finish()

    def read(self) -> Host:
        return np.asarray(self._tensor.cpu().numpy())

    def finish(self) -> None:
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        self.greatest(0.0)

    def greatest(self, value: float) -> float:
        held = self._torch.tensor([value], dtype=self._torch.float64, device=self.device)
        self._distributed.all_reduce(held, op=self._distributed.ReduceOp.MAX)
        return float(held.item())

    def total(self, value: int) -> int:
        held = self._torch.tensor([value], dtype=self._torch.int64, device=self.device)
        self._distributed.all_reduce(held)
        return int(held.item())

    def close(self) -> None:
        """Leave the group."""
        self._distributed.destroy_process_group()


def run_torch(
    make: Callable[[int, int, str], TorchPeer], rank: int, nranks: int, rendezvous: str, given: common.Options
) -> int:
    """Measure as rank ``rank`` of the group that ``make`` joins, in a process of its own."""
    peer = make(rank, nranks, rendezvous)
    try:
        return common.run_rank(peer, given)
    finally:
        peer.close()


def captured(device: Any, call: Callable[[], object], stack: ExitStack) -> Callable[[], None]:
    """Return what replays ``call`` as a CUDA graph of ``device``, which is freed with ``stack``.

    The call runs three times first, outside the graph, so that libraries set up what they make at a first use.
    """
    import torch

    with torch.cuda.device(device):
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own threads ask for events meanwhile, which would end a capture in the default mode.
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            call()
    stack.callback(graph.reset)
    replay: Callable[[], None] = graph.replay
    return replay
