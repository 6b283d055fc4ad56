"""Names that NumPy and torch have and vkpar lacks say what to write; what type checkers see of those that it has."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
from helpers.vulkan.infos import fake_info

import vkpar
from vkpar.arrays.array import Array


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sin", 'vkpar.elementwise("y = sin(x)")(a)'),
        ("clip", "vkpar.minimum(vkpar.maximum(a, low), high)"),
        ("var", "(d * d).mean(axis)"),
        ("dot", "vkpar.matmul(a, b)"),
        ("zeros", "device.zeros(...)"),
        ("open_device", "vkpar.open_devices(selector)[0]"),
        ("linspace", "no attribute 'linspace'"),
    ],
)
def test_names_of_the_module(name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(vkpar, name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("var", "a - a.mean(axis"),
        ("clip", "vkpar.maximum"),
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
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = ["--strict", "--no-error-summary", "--config-file", "", "--follow-imports", "silent"]
    out, errors, status = api.run([*checked, str(program)])
    assert (out, errors, status) == ("", "", 0)
    program.write_text(PROGRAM + "a.shape = (3, 1)\nh: int = graph.launch()\n")
    out, _, _ = api.run([*checked, str(program)])
    assert "shape" in out
    assert 'expression has type "' in out
    assert out.count("error:") == 2
