#!/usr/bin/env python3
"""Times small operations of torch in the columns of ``vkpar bench launch``: on CUDA devices, else on a CPU.

Chains are measured eager and, on CUDA devices, as CUDA graphs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import common
import torch_peer

from vkpar.bench import launch
from vkpar.bench.commands import add_counts, add_json, add_repeat
from vkpar.bench.frame import frame, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status, which is that of ``vkpar bench``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_counts(parser, launch.Options)
    add_repeat(parser, launch.Options)
    add_json(parser)
    parser.set_defaults(json=False)
    given = parser.parse_args(arguments)
    options = launch.Options(iters=given.iters, warmup_iters=given.warmup_iters, repeat=given.repeat, check=given.check)
    common.need("torch", "pip install torch")
    return frame.run(partial(_start, options), as_json=given.json)


def _start(options: launch.Options, stack: ExitStack) -> tuple[launch.Report, Iterator[launch.Row]]:
    import torch

    cuda = torch.cuda.is_available()
    found = [torch.device("cuda", number) for number in range(torch.cuda.device_count())] if cuda else []
    devices = found or [torch.device("cpu")]
    described = [
        {
            "device": number,
            "name": torch.cuda.get_device_name(device) if cuda else common.cpu_name(),
            "driver": f"CUDA {torch.version.cuda}" if cuda else "torch",
        }
        for number, device in enumerate(devices)
    ]
    versions = {"torch": torch.__version__} | table.versions()
    return launch.Report(options, "torch", versions, described), _rows(options, torch, devices, stack)


def _rows(options: launch.Options, torch: Any, devices: list[Any], stack: ExitStack) -> Iterator[launch.Row]:
    for number, device in enumerate(devices):
        wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
        for case in _cases(torch, device, stack):
            yield launch.measure(options, number, case, wait)


def _cases(torch: Any, device: Any, stack: ExitStack) -> list[launch.Case]:
    count = launch.COUNT
    ones, twos = (torch.full((count,), value, dtype=torch.float32, device=device) for value in (1.0, 2.0))
    row, square = torch.ones((1, count), device=device), torch.ones((count, count), device=device)
    out, product = torch.empty(count, device=device), torch.empty((1, count), device=device)
    calls: list[tuple[str, str, Callable[[], Any], int]] = [
        ("add", "out=", lambda: torch.add(ones, twos, out=out), 3),
        ("add", "fresh", lambda: torch.add(ones, twos), 3),
        ("matmul", "out=", lambda: torch.mm(row, square, out=product), count),
        ("matmul", "fresh", lambda: torch.mm(row, square), count),
    ]
    found = [launch.Case(name, result, call, _checked(call, value)) for name, result, call, value in calls]
    empty = launch.Case("empty", "", lambda: torch.empty(count, device=device))
    return [*found, empty, *_chains(torch, device, ones, twos, stack)]


def _checked(call: Callable[[], Any], value: float) -> Callable[[], int]:
    return lambda: int((call() != value).sum().item())


def _chains(torch: Any, device: Any, ones: Any, twos: Any, stack: ExitStack) -> list[launch.Case]:
    held = torch.zeros(launch.COUNT, device=device)
    outs = [torch.empty(launch.COUNT, device=device) for _ in range(launch.CHAIN)]

    def dependent() -> None:
        for _ in range(launch.CHAIN):
            torch.add(held, ones, out=held)

    def independent() -> None:
        for out in outs:
            torch.add(ones, twos, out=out)

    found = []
    for name, eager, results, value in (
        ("dependent adds", dependent, [held], launch.CHAIN),
        ("independent adds", independent, outs, 3),
    ):
        ways: list[tuple[str, Callable[[], object]]] = [("out=", eager)]
        if device.type == "cuda":
            ways.append((launch.CAPTURED, torch_peer.captured(device, eager, stack)))
        for result, call in ways:
            wrong = partial(_wrong_of_chain, call, results, value)
            found.append(launch.Case(name, result, call, wrong, launch.CHAIN))
    return found


def _wrong_of_chain(call: Callable[[], object], results: list[Any], value: float) -> int:
    for tensor in results:
        tensor.zero_()
    call()
    return sum(int((tensor != value).sum().item()) for tensor in results)


if __name__ == "__main__":
    sys.exit(common.main(main))
