#!/usr/bin/env python3
"""Time and check the decode step of ``vkpar bench step`` with torch, one process per GPU, eager and as a CUDA graph.

Options, columns and JSON are those of ``vkpar bench step``. Products, sums and the residual stream are float16, since
torch multiplies matrices of one type. Unless told otherwise, NCCL goes through host memory, as vkpar does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import common
import nccl
import torch_peer

from vkpar.bench import decode, step
from vkpar.bench.commands import add_counts, add_json, add_modes, add_repeat, add_shape, whole
from vkpar.bench.measure import exact

_MODES: Final = ("eager", "fresh", "captured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on as many GPUs as asked for, one by default; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(json=False)
    add_json(parser)
    add_shape(parser)
    add_modes(parser, _MODES)
    add_counts(parser, step.Options)
    add_repeat(parser, step.Options)
    parser.add_argument("--nranks", type=whole(1), default=1, metavar="N", help="GPUs, a process each (default: 1)")
    nccl.add_p2p(parser)
    found = parser.parse_args(arguments)
    named = {item.name: getattr(found, item.name) for item in fields(step.Options) if hasattr(found, item.name)}
    options = step.Options(**named)
    options.shape("8b").parts(found.nranks)  # refuses wrong ones before any process starts
    gpus = nccl.prepare(p2p=found.p2p)
    return common.spawn(measure, common.processes(found.nranks, gpus, gpus), options, found.json)


def measure(rank: int, nranks: int, rendezvous: str, options: step.Options, as_json: bool) -> int:
    """Measure as one rank."""
    peer = nccl.join(rank, nranks, rendezvous)
    try:
        return common.print_rows(peer, partial(_start, options, peer), as_json=as_json)
    finally:
        peer.close()


def _start(
    options: step.Options, peer: torch_peer.TorchPeer, stack: ExitStack
) -> tuple[step.Report, Iterator[step.Row]]:
    shape = options.shape("8b")
    report = step.Report(options, "torch", shape, shape.weights_nbytes(peer.nranks), peer.rig)
    return report, _rows(report, peer, stack)


def _rows(report: step.Report, peer: torch_peer.TorchPeer, stack: ExitStack) -> Iterator[step.Row]:
    bench = _Bench(peer, report.shape, stack)
    for name in report.options.modes:
        yield step.measure(report, bench.mode(name), bench.time)


@dataclass(frozen=True)
class _Block:
    """As :class:`decode.Block`, with transposed views of the matrices, for products of a row with them."""

    first: Any
    second: Any
    wide: Any
    narrow: Any
    partial: Any


class _Model:
    """One rank's part of the weights, and its step in the two styles of :class:`decode.Model`."""

    def __init__(self, device: Any, rank: int, nranks: int, shape: decode.Shape) -> None:
        import torch
        from torch import distributed

        self._torch, self._distributed = torch, distributed
        self._place = partial(torch.empty, dtype=torch.float16, device=device)
        self._generator = torch.Generator(device).manual_seed(rank)
        host = torch.from_numpy(decode.input_of(shape).reshape(1, -1))
        self.input = host.to(device=device, dtype=torch.float16)
        self.output = torch.empty_like(self.input)
        self.sums = nranks > 1
        part = shape.parts(nranks)[rank]
        places = [self._places(matrices) for matrices in part.matrices()]
        self._blocks = [
            self._block(matrices, fan_ins, kept)
            for _ in range(shape.layers)
            for matrices, fan_ins, kept in zip(part.matrices(), shape.fan_ins(), places, strict=True)
        ]

    def _places(self, matrices: list[tuple[int, int]]) -> tuple[Any, Any, Any]:
        (wide, hidden), (_, narrow) = matrices
        place = self._place((1, wide))
        return place, place[:, :narrow], self._place((1, hidden))

    def _block(self, matrices: list[tuple[int, int]], fan_ins: tuple[int, int], places: tuple[Any, Any, Any]) -> _Block:
        made = []
        for size, fan_in in zip(matrices, fan_ins, strict=True):
            most = decode.largest_weight(fan_in)
            made.append(self._place(size).uniform_(-most, most, generator=self._generator).t())
        return _Block(made[0], made[1], *places)

    def step(self, *, sums: bool = True) -> Any:
        """Run a step whose results all go to tensors that exist."""
        torch, x = self._torch, self.input
        for block in self._blocks:
            torch.mm(x, block.first, out=block.wide)
            torch.mm(block.narrow, block.second, out=block.partial)
            if sums and self.sums:
                self._distributed.all_reduce(block.partial)
            torch.add(x, block.partial, out=self.output)
            x = self.output
        return x

    def fresh_step(self, *, sums: bool = True) -> Any:
        """Run a step whose results are all new tensors."""
        torch, x = self._torch, self.input
        for block in self._blocks:
            wide = torch.mm(x, block.first)
            part = torch.mm(wide[:, : block.second.shape[0]], block.second)
            if sums and self.sums:
                self._distributed.all_reduce(part)
            x = torch.add(x, part)
        return x


class _Bench:
    """A model on this rank's GPU, and its modes."""

    def __init__(self, peer: torch_peer.TorchPeer, shape: decode.Shape, stack: ExitStack) -> None:
        self._peer, self._stack = peer, stack
        self._model = _Model(peer.device, peer.rank, peer.nranks, shape)
        self._expected = _elements(self._model.step())

    def mode(self, name: str) -> step.Mode:
        """Return what is measured under ``name``."""
        model = self._model
        if name == "fresh":
            run: Callable[..., Any] = model.fresh_step
            return step.Mode(name, run, self._bare(partial(run, sums=False)), lambda: self._wrong(run()))
        call: Callable[[], Any] = model.step
        bare: Callable[[], Any] = partial(model.step, sums=False)
        if name == "captured":
            call = torch_peer.captured(self._peer.device, call, self._stack)
            bare = torch_peer.captured(self._peer.device, bare, self._stack) if model.sums else call
        return step.Mode(name, call, self._bare(bare), partial(self._wrong_output, call))

    def _bare(self, call: Callable[[], object]) -> Callable[[], object] | None:
        return call if self._model.sums else None

    def _wrong_output(self, call: Callable[[], object]) -> int:
        self._model.output.fill_(float("nan"))
        call()
        return self._wrong(self._model.output)

    def _wrong(self, result: Any) -> int:
        return self._peer.total(step.count_wrong([_elements(result)], self._expected))

    def time(self, call: Callable[[], object], calls: int) -> tuple[float, float]:
        """See :data:`step.Timer`: the slowest rank's time, and that of the first call on this one."""
        self._peer.barrier()
        seconds, first = step.time_calls(call, calls, self._peer.finish)
        return self._peer.greatest(seconds), first


def _elements(tensor: Any) -> exact.Host:
    host: exact.Host = tensor.cpu().numpy()
    return host


if __name__ == "__main__":
    sys.exit(common.main(main))
