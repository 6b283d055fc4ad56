#!/usr/bin/env python3
"""Times small operations of torch, eager, in the columns of ``vkpar bench launch``: on CUDA devices, else on a CPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import common

from vkpar.bench import frame, launch, table
from vkpar.bench.commands import add_counts, add_json, whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status, which is that of ``vkpar bench``."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_counts(parser, launch.Options)
    parser.add_argument("--repeat", type=whole(1), default=launch.Options.repeat, metavar="N", help="runs")
    add_json(parser)
    parser.set_defaults(json=False)
    given = parser.parse_args(arguments)
    options = launch.Options(iters=given.iters, warmup_iters=given.warmup_iters, repeat=given.repeat, check=given.check)
    common.need("torch", "pip install torch")
    return frame.run(partial(_start, options), as_json=given.json)


def _start(options: launch.Options, _stack: ExitStack) -> tuple[launch.Report, Iterator[launch.Row]]:
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
    return launch.Report(options, versions, described, subject="torch"), _rows(options, torch, devices)


def _rows(options: launch.Options, torch: Any, devices: list[Any]) -> Iterator[launch.Row]:
    for number, device in enumerate(devices):
        wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
        for case in _cases(torch, device):
            yield launch.measure(options, number, case, wait)


def _cases(torch: Any, device: Any) -> list[launch.Case]:
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
    return [*found, empty, *_chains(torch, device, ones, twos)]


def _checked(call: Callable[[], Any], value: float) -> Callable[[], int]:
    return lambda: int((call() != value).sum().item())


def _chains(torch: Any, device: Any, ones: Any, twos: Any) -> list[launch.Case]:
    held = torch.zeros(launch.COUNT, device=device)
    outs = [torch.empty(launch.COUNT, device=device) for _ in range(launch.CHAIN)]

    def dependent() -> Any:
        for _ in range(launch.CHAIN):
            torch.add(held, ones, out=held)
        return held

    def independent() -> None:
        for out in outs:
            torch.add(ones, twos, out=out)

    def wrong_of_dependent() -> int:
        held.zero_()
        return _checked(dependent, launch.CHAIN)()

    def wrong_of_independent() -> int:
        for out in outs:
            out.zero_()
        independent()
        return sum(int((out != 3).sum().item()) for out in outs)

    return [
        launch.Case("dependent adds", "out=", dependent, wrong_of_dependent, launch.CHAIN),
        launch.Case("independent adds", "out=", independent, wrong_of_independent, launch.CHAIN),
    ]


if __name__ == "__main__":
    sys.exit(common.main(main))
