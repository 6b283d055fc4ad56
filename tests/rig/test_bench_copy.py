"""The benchmark of copies on real drivers, through the command line."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from conftest import require
from helpers.process.benching import QUICK, run_json

import vkpar
from vkpar.bench.measure import copying
from vkpar.cli import main as cli

pytestmark = pytest.mark.rig

ONE = ["--devices", "llvmpipe"]
PLAIN = [name for name, made in copying.COPIES.items() if made.region is None]
STRIDED = [name for name in copying.COPIES if name not in PLAIN]
WHOLE = ["--copies", ",".join(PLAIN)]


@pytest.fixture(autouse=True)
def _driver() -> None:
    require("llvmpipe")


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "copy", "--devices", "llvmpipe*2", *QUICK, *WHOLE, "--size", "1M"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert [row[:18].split() for row in rows] == [[number, *name.split("_")] for number in "01" for name in PLAIN]
    assert all(len(row) == 79 and row.split()[-1] == "0" for row in rows)
    assert all(len(line) <= 90 for line in lines if not line.startswith("# Device"))
    assert any(line.startswith("#   upload ring: type ") for line in lines)
    assert "# Wrong elements : 0 OK" in lines


def test_json_has_what_the_bound_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "bench", "copy", *ONE, *QUICK, *WHOLE, "--size", "300001")
    assert (status, found["benchmark"], found["wrong"], found["ok"]) == (0, "copy", 0, True)
    (device,) = found["devices"]
    assert set(device["memory"]) == {"arrays", "upload ring", "read ring"}
    assert (device["size"], device["lowered"], device["refused"]) == (300001, False, "")
    assert [row["copy"] for row in found["rows"]] == PLAIN
    for row in found["rows"]:
        assert 290_000 < row["nbytes"] <= 300_001
        assert 0 < row["least_ms"] <= row["time_ms"] <= row["most_ms"]
        assert row["bound_ms"] == pytest.approx((row["raw_ms"] + row["memcpy_ms"]) / 0.8)
        assert row["ratio"] == pytest.approx(row["time_ms"] / row["bound_ms"])
        assert row["gbps"] == pytest.approx(row["nbytes"] / row["time_ms"] / 1e6)


@pytest.mark.parametrize("size", [1, 5, 8, 100, 4099, 1 << 20])
@pytest.mark.parametrize("ring", ["auto", "host"])
def test_sizes_of_any_kind_are_right(
    size: int, ring: str, settings_override: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_override(ring=ring, ring_bytes=1 << 16)
    status, found = run_json(capsys, "bench", "copy", *ONE, *QUICK, *WHOLE, "--size", str(size), "-c", "2")
    assert (status, found["wrong"]) == (0, 0)
    assert {row["nbytes"] for row in found["rows"]} <= set(range(min(size, 4), max(size, 4) + 1))
    assert (found["devices"][0]["memory"]["read ring"].startswith("type")) == (ring == "host")


@pytest.mark.parametrize("size", ["4", "1000", "256K"])
def test_strided_copies(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    copies = ["--copies", ",".join(STRIDED)]
    status, found = run_json(capsys, "bench", "copy", *ONE, *QUICK, *copies, "--size", size)
    assert (status, found["wrong"]) == (0, 0)
    assert [row["copy"] for row in found["rows"]] == STRIDED
    assert {row["factor"] for row in found["rows"]} == {2}


def test_wrong_elements_are_counted_and_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch = vkpar.Array.fetch

    def corrupt(array: vkpar.Array, out: Any = None) -> np.ndarray[Any, Any]:
        host = fetch(array, out)
        host.reshape(-1)[host.size // 2] ^= 1
        return host

    monkeypatch.setattr(vkpar.Array, "fetch", corrupt)
    status, found = run_json(capsys, "bench", "copy", *ONE, *QUICK, *WHOLE, "--size", "64K", "-c", "3")
    assert (status, found["ok"]) == (1, False)
    assert [row["wrong"] for row in found["rows"]] == [3] * len(PLAIN)
    assert cli.main(["bench", "copy", *ONE, *QUICK, *WHOLE, "--size", "64K", "-c", "0"]) == 0
    assert "# Wrong elements : N/A" in capsys.readouterr().out


def test_what_is_written_beside_the_region_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    write = vkpar.Array.write

    def spill(array: vkpar.Array, source: Any, region: Any = None) -> None:
        write(array, source, region)
        if array.size == 1024:
            write(vkpar.Array(array.storage, array.byte_offset + array.nbytes, (1,), array.dtype), [0x5EAD])

    with vkpar.open_devices("llvmpipe")[0] as device, ExitStack() as stack:
        copies = copying.Copies(device, 4096, ("upload", "read_rows"), stack)
        assert copies.wrong("upload") == 0
        monkeypatch.setattr(vkpar.Array, "write", spill)
        assert copies.wrong("upload") == 1


def test_small_devices_and_those_that_import_nothing(
    monkeypatch: pytest.MonkeyPatch, settings_override: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise vkpar.UnsupportedError("llvmpipe lacks VK_EXT_external_memory_host")

    monkeypatch.setattr(vkpar, "host_array", refuse)
    settings_override(max_memory=1 << 20)
    status, found = run_json(capsys, "bench", "copy", *ONE, *QUICK, *WHOLE)
    assert (status, found["devices"][0]["size"], found["devices"][0]["lowered"]) == (0, 1 << 18, True)
    assert [row["copy"] for row in found["rows"]] == ["upload", "download"]
    assert cli.main(["bench", "copy", *ONE, *QUICK, *WHOLE]) == 0
    shown = capsys.readouterr().out
    assert "#   262144 bytes: more do not fit its memory" in shown
    assert "# Device 0: no copies of imported memory: llvmpipe lacks" in shown


def test_two_vendors(capsys: pytest.CaptureFixture[str]) -> None:
    require("swiftshader")
    rig = ["--devices", "llvmpipe&swiftshader"]
    status, found = run_json(capsys, "bench", "copy", *rig, *QUICK, *WHOLE, "--size", "40012")
    assert (status, found["wrong"]) == (0, 0)
    assert [row["device"] for row in found["rows"]] == [0] * len(PLAIN) + [1] * len(PLAIN)
