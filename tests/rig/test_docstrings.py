"""The examples in the docstrings of public names give what they show."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np

import vkpar
from vkpar import ops


def test_examples_of_docstrings(rig: Callable[..., vkpar.Communicator]) -> None:
    devices = rig("LL").devices
    shown = {"np": np, "vkpar": vkpar, "devices": devices, "device": devices[0]}
    finder, runner = (
        doctest.DocTestFinder(recurse=False),
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE),
    )
    for name in vkpar.__all__:
        for test in finder.find(getattr(vkpar, name), name, globs=shown):
            runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 75


def test_every_operation_has_an_example() -> None:
    lacking = [
        name for name in vkpar.__all__ if hasattr(ops, name) and ">>>" not in (getattr(vkpar, name).__doc__ or "")
    ]
    assert sorted(lacking) == ["Normed", "Quantized"]  # which functions give
