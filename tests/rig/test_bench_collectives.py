"""Every collective's benchmark: its sizes and forms, and that its check is sharp."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import require
from helpers.process.benching import QUICK, TWO, Idle, corrupt, run_json, skip_self_test

import vkpar
from vkpar.bench.measure import exact
from vkpar.bench.measure.collectives import TABLE
from vkpar.cli import main as cli

pytestmark = [pytest.mark.rig, pytest.mark.sampled(5)]

REDUCTIONS = [name for name, made in TABLE.items() if made.reduces]
MOVEMENTS = [name for name, made in TABLE.items() if made.moves and not made.reduces]


@pytest.fixture(autouse=True)
def _driver() -> None:
    require("llvmpipe")


@pytest.mark.parametrize("nranks", [2, 3])
@pytest.mark.parametrize("name", [*REDUCTIONS, *MOVEMENTS])
def test_every_collective_counts_nothing_wrong(name: str, nranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = TABLE[name]
    rig = ["--devices", f"llvmpipe*{nranks}", *(["--root", "1"] if made.rooted else [])]
    # No element, fewer than ranks, a block and a bit, and what no number of ranks divides.
    status, found = run_json(capsys, "bench", name, *rig, *QUICK, "-b", "1", "-e", "40012", "-f", "34")
    assert (status, found["benchmark"], found["nranks"]) == (0, name, nranks)
    assert (found["wrong"], found["ok"]) == (0, True)
    assert [row["count"] for row in found["rows"]] == [0, 8, 289, 9826]
    assert found["check"].startswith("exact: ")
    for row in found["rows"]:
        halves = [row["out_of_place"], row["in_place"]]
        assert (halves[1] is not None) is (name != "send_recv")
        assert [half["wrong"] for half in halves if half] == [0] * (1 + made.in_place)
        assert row["redop"] == ("sum" if made.reduces else None)
        for half in filter(None, halves):
            assert half["busbw_gbps"] == pytest.approx(half["algbw_gbps"] * made.factor(nranks))


@pytest.mark.parametrize("name", ["send_recv", "reduce_scatter"])
def test_a_table_of_every_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", name, *TWO, *QUICK, "-b", "4K", "-e", "4K"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(row) == 13
    assert row[:4] == ["4096", "1024", "float32", "none" if name == "send_recv" else "sum"]
    assert (row[7], row[11]) == ("0", "N/A" if name == "send_recv" else "0")


def drawn(picture: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each named line of an SVG file: to the right, and upward."""
    lines = {}
    for group in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}g"):
        path = group.find("{http://www.w3.org/2000/svg}path")
        if path is not None and re.fullmatch(r"\w+ \w+", group.get("id", "")):
            points = re.findall(r"[ML] ([\d.]+) ([\d.]+)", path.get("d", ""))
            lines[group.get("id", "")] = [(float(x), -float(y)) for x, y in points]
    return lines


@pytest.mark.parametrize(
    ("name", "forms"), [("all_reduce", ["out_of_place", "in_place"]), ("send_recv", ["out_of_place"])]
)
def test_its_picture_has_a_line_a_form(
    name: str, forms: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "times.svg"
    status, found = run_json(
        capsys, "bench", name, *TWO, *QUICK, "-b", "1", "-e", "40012", "-f", "34", "--plot", str(picture)
    )
    assert status == 0
    lines = drawn(picture)
    assert sorted(lines) == sorted(f"{form} {column}" for form in forms for column in ("time_us", "busbw_gbps"))
    for label, points in lines.items():
        form, column = label.split()
        values = [row[form][column] for row in found["rows"] if row["size"]]
        assert len(points) == len(values) == 3  # what has no element has no place on a logarithmic axis
        heights, expected = np.array([y for _, y in points]), np.array(values)
        if column == "time_us":
            expected = np.log(expected)
        # Axes map values to heights by a line, which the ends fix; SVG has six decimals.
        ends = [expected.argmin(), expected.argmax()]
        assert np.allclose(heights, np.interp(expected, expected[ends], heights[ends]), atol=1e-3)
        assert heights.argmax() == ends[1]
    said = picture.read_text()
    assert f"vkpar bench {name}" in said
    assert ("wire f16" in said) is (name == "all_reduce")


def test_a_picture_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(vkpar, "open_devices", lambda *given: pytest.fail("it opens devices"))
    assert cli.main(["bench", "all_reduce", *TWO, "--plot", str(tmp_path / "times.xyz")]) == 2
    assert "no suffix of a picture" in capsys.readouterr().err
    assert cli.main(["bench", "all_reduce", *TWO, "--sizes", "1", "--plot", str(tmp_path / "times.png")]) == 2
    assert "--plot needs sizes of one element" in capsys.readouterr().err


@pytest.mark.parametrize("op", exact.OPS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "uint32", "int8", "int64"])
def test_ops_are_exact(op: str, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "reduce_scatter", *TWO, *QUICK, "--op", op, "-d", dtype, "-b", "4012", "-e", "4012"]
    status, found = run_json(capsys, *arguments)
    assert (status, found["wrong"], found["rows"][0]["redop"]) == (0, 0, op)
    assert found["check"].startswith("exact: ")
    assert found["options"]["wire"] == ("f32" if op == "prod" else "f16")


@pytest.mark.parametrize(
    ("op", "wire", "nranks"),
    [("sum", "q8", 2), ("prod", "q8", 3), ("avg", "q8", 2), ("avg", "f32", 3), ("avg", "f16", 3), ("avg", "bf16", 3)],
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_not_exact_has_a_bound(
    name: str, op: str, wire: str, nranks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = ["--devices", f"llvmpipe*{nranks}", *QUICK, "--op", op, "--wire", wire, "-b", "40012", "-e", "40012"]
    status, found = run_json(capsys, "bench", name, *rig, "-c", "2")
    assert (status, found["wrong"]) == (0, 0)
    assert found["check"].startswith("bound: ")
    corrupt(monkeypatch)
    status, found = run_json(capsys, "bench", name, *rig)
    results = 1 if name == "reduce" else nranks
    assert (status, found["wrong"], found["ok"]) == (1, 2 * results, False)


def test_replicas_that_differ_within_the_bound_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_self_test(monkeypatch)
    read, calls = vkpar.Array.numpy, iter(range(100))

    def nudged(array: vkpar.Array) -> np.ndarray[Any, Any]:
        values = read(array)
        values[7] = np.nextafter(values[7], np.float32(np.inf)) if next(calls) % 2 else values[7]
        return values

    monkeypatch.setattr(vkpar.Array, "numpy", nudged)
    status, found = run_json(capsys, "bench", "all_reduce", *TWO, *QUICK, "--wire", "q8", "-b", "4K", "-e", "4K")
    assert (status, found["wrong"]) == (1, 2)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "int8", "uint8", "bfloat16"])
@pytest.mark.parametrize("name", MOVEMENTS)
def test_any_dtype_is_moved(name: str, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    rig = ["--devices", "llvmpipe*3", *QUICK, "--dtype", dtype, "-b", "4012", "-e", "4012"]
    status, found = run_json(capsys, "bench", name, *rig)
    assert (status, found["wrong"], found["rows"][0]["type"]) == (0, 0, dtype)


@pytest.mark.parametrize("transport", ["staged", "mapped"])
def test_transports_are_taken(transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "bench", "all_gather", *TWO, *QUICK, "-e", "4K", "--transport", transport)
    assert (status, found["wrong"]) == (0, 0)
    assert {rank["transport"] for rank in found["ranks"]} == {transport}


@pytest.mark.parametrize("name", [*REDUCTIONS, *MOVEMENTS])
def test_a_wrong_element_of_any_collective_is_counted(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt(monkeypatch)
    status, found = run_json(capsys, "bench", name, *TWO, *QUICK, "--dtype", "int32", "-b", "4K", "-e", "4K")
    forms, results = 1 + TABLE[name].in_place, 1 if name in ("reduce", "gather") else 2
    assert (status, found["wrong"], found["ok"]) == (1, forms * results, False)


@pytest.mark.parametrize("name", MOVEMENTS)
def test_what_was_never_moved_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_self_test(monkeypatch)
    monkeypatch.setattr(vkpar.Communicator, name, lambda *arguments, **options: Idle())
    status, found = run_json(capsys, "bench", name, *TWO, *QUICK, "-b", "4K", "-e", "4K")
    row, half = found["rows"][0], {"scatter": 1024, "gather": 1024}.get(name, 2048)
    assert (status, row["out_of_place"]["wrong"]) == (1, half)
    if TABLE[name].in_place:  # some, or half of all, have their own
        assert row["in_place"]["wrong"] == {"scatter": 512, "gather": 512}.get(name, 1024)


def test_a_barrier_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "bench", "barrier", "--devices", "llvmpipe*3", *QUICK)
    assert (status, found["wrong"], found["ok"], found["nranks"]) == (0, None, True, 3)
    (row,) = found["rows"]
    assert (row["size"], row["type"], row["in_place"]) == (0, None, None)
    assert row["out_of_place"]["time_us"] > 0
    assert cli.main(["bench", "barrier", *TWO, *QUICK]) == 0
    assert "busbw =" not in capsys.readouterr().out
