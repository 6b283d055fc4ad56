"""Names that NumPy and torch have and vkpar lacks say what to write; what type checkers see of those that it has."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.vulkan.infos import fake_info

import vkpar
from vkpar.arrays.array import Array


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("remainder", "vkpar.mod(a, b)"),
        ("permute", "a.transpose(axes)"),
        ("dot", "vkpar.matmul(a, b)"),
        ("zeros", "device.zeros(...)"),
        ("open_device", "vkpar.open_devices(selector)[0]"),
        ("logspace", "no attribute 'logspace'"),
    ],
)
def test_names_of_the_module(name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(vkpar, name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("norm", "vkpar.norm(a, ord, axis)"),
        ("sin", "vkpar.sin(a)"),
        ("exp", "vkpar.exp(a)"),
        ("cpu", "a.numpy()"),
        ("foo", "'foo'"),
    ],
)
def test_names_of_arrays(name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(object.__new__(Array), name)
    assert words in str(caught.value)
    assert not hasattr(Array, name)


def test_device_infos_are_pickled_and_open_nothing() -> None:
    info = fake_info(handle=object())
    again = pickle.loads(pickle.dumps(info))  # without the handle, which none can pickle
    assert again == info
    assert again.handle is None
    assert copy.copy(info) is copy.deepcopy(info) is info
    with pytest.raises(vkpar.InvalidUsageError, match="enumerate_devices"):
        vkpar.Device(again)


PROGRAM = """\
import vkpar
device = vkpar.open_devices("llvmpipe")[0]
a = device.zeros(3)
one: vkpar.Array = vkpar.elementwise("y = x + 1")(a)
into: vkpar.Array = vkpar.elementwise("y = x + 1")(a, out=a)
y, z = vkpar.elementwise("y = x; z = x")(a)
both: tuple[vkpar.Array, ...] = vkpar.elementwise("y = x; z = x")(a, out=(a, None))
with vkpar.capture([device]) as graph:
    a + y + z
work: vkpar.Work = graph.launch()
work.wait(1.0)
with vkpar.Communicator([device]) as comm:
    summed: vkpar.Work = comm.all_reduce([a])
shape: tuple[int, ...] = a.shape
"""


@pytest.mark.slow
def test_what_type_checkers_see(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    listed = "".join(f"vkpar.{name}\n" for name in vkpar.__all__)
    programs = {
        "right.py": PROGRAM,
        "names.py": f"import vkpar\n{listed}",
        "stars.py": "from vkpar import *\n" + listed.replace("vkpar.", ""),
        "wrong.py": PROGRAM + "a.shape = (3, 1)\nh: int = graph.launch()\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    # Another process, since mypy raises the recursion limit of its own; each reads the package.
    how = ["--strict", "--no-error-summary", "--config-file", "", "--follow-imports", "silent"]
    how += ["--cache-dir", str(tmp_path / "cache"), *(str(tmp_path / name) for name in programs)]
    done = subprocess.run([sys.executable, "-m", "mypy", *how], capture_output=True, text=True, check=False)
    said = [line.partition("wrong.py:") for line in done.stdout.splitlines()]
    assert [whole for whole, found, _ in said if not found] == []
    assert len(said) == 2
    assert '"shape"' in done.stdout
    assert 'variable has type "int"' in done.stdout


def test_public_names() -> None:
    """No module of the package's own is public but for two, and nothing that is only imported."""
    modules = {name for name in vkpar.__all__ if inspect.ismodule(getattr(vkpar, name))}
    assert modules == {"parallel", "random"}
    assert set(vkpar.ops.__all__) < set(vkpar.__all__)
    assert {"Array", "Work", "bfloat16", "elementwise", "open_devices"} < set(vkpar.__all__)
    assert len(vkpar.__all__) == len(set(vkpar.__all__)) == 175


def test_names_on_the_classes_are_for_users() -> None:
    """Of what ``dir`` shows, arrays and devices have what their pages describe."""
    graphs = [name for name in vkpar.Graph.__dir__(object.__new__(vkpar.Graph)) if not name.startswith("_")]
    assert {"launch", "param", "stats", "close"} <= set(graphs)
    assert not {"begin", "collect", "holds", "renew"} & set(graphs)
    for kind, hidden in ((Array, "storage steps ranges fetch"), (vkpar.Device, "logical adopt plans stream")):
        shown = [name for name in kind.__dir__(object.__new__(kind)) if not name.startswith("_")]
        assert not set(hidden.split()) & set(shown)
        assert not [name for name in shown if name.startswith(("check_", "allocate"))]
        assert {"shape", "numpy", "sum"} <= set(shown) or {"array", "zeros", "synchronize"} <= set(shown)
