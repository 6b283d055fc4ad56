"""The examples in the docstrings of public names give what they show, and every public name has one."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs

import vkpar
import vkpar.ops
import vkpar.parallel.models
import vkpar.testing
from vkpar.parallel.models import tiny

MODULES = (vkpar, vkpar.parallel, vkpar.parallel.models, vkpar.random, vkpar.testing)
CANNOT_FAIL = {"additions", "gamma", "norm", "relative"}  # functions of numbers, which are not checked


def documented() -> dict[str, Any]:
    """Return the public classes and functions by their whole names."""
    named = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    return {name: given for name, given in named.items() if inspect.isclass(given) or inspect.isroutine(given)}


@pytest.fixture
def shown(rig: Callable[..., vkpar.Communicator], tmp_path: Path) -> dict[str, Any]:
    """Return the names that stand before examples; see docs/reference/index.md."""
    pytest.importorskip("tokenizers")
    comm = rig("LL", wire="f32")
    tiny.write_folder(tmp_path / "tiny", text="a sum of sums, a total of totals " * 9)
    opened = {"devices": comm.devices, "device": comm.devices[0], "comm": comm}
    return {"np": np, "vkpar": vkpar, **opened, "folder": str(tmp_path / "tiny")}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_give_what_they_show(module: Any, shown: dict[str, Any]) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for name in module.__all__:
        for test in finder.find(getattr(module, name), f"{module.__name__}.{name}", module=False, globs=dict(shown)):
            runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > {"vkpar": 200, "vkpar.random": 10}.get(module.__name__, 25)


def test_every_public_name_has_an_example() -> None:
    assert len(documented()) > 200
    assert [name for name, given in documented().items() if ">>>" not in (inspect.getdoc(given) or "")] == []


def test_every_function_says_what_it_takes_and_raises() -> None:
    lacking = []
    for name, given in documented().items():
        if inspect.isroutine(given):
            text = inspect.getdoc(given) or ""
            taken = text.partition("Args:")[2].partition("Raises:")[0]
            lacking += [f"{name}: {each}" for each in inspect.signature(given).parameters if f"{each}:" not in taken]
            if "Raises:" not in text and name.rpartition(".")[2] not in CANNOT_FAIL:
                lacking.append(f"{name}: Raises")
    assert lacking == []


def test_functions_by_element_take_what_they_say(rigs: Rigs) -> None:
    """The types that their docstrings name, of which a sample tries none, and no others."""
    (device,) = rigs("llvmpipe")
    tried = 0
    for name in vkpar.ops.__all__:
        function = getattr(vkpar, name)
        text = inspect.getdoc(function) or ""
        if "another type than these" not in text:
            continue
        operands = [each for each in inspect.signature(function).parameters if each in ("a", "b", "x")]
        named = set(re.findall(r"\w+", text.partition("Args:")[2].partition("Raises:")[0]))
        for dtype in ("float32", "int32", "bool", "int64"):
            given = [device.zeros(1, dtype) for _ in operands]
            tried += 1
            if dtype not in named:
                with pytest.raises(vkpar.UnsupportedError):
                    function(*given)
            elif FULL:
                function(*given)
    assert tried > 200


def test_dir_and_help_show_what_is_public() -> None:
    for module in MODULES:
        assert set(module.__all__) <= set(dir(module)), module.__name__
    assert "out: where the result goes" in pydoc.render_doc(vkpar.exp)
    said = [inspect.getdoc(given) or "" for given in documented().values()]
    assert all(text.split("\n")[0].endswith((".", ":")) for text in said)
