"""Traces: what stands in them is what ran, on one clock, in a form that Perfetto and Chrome read."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Rigs
from helpers.process.children import child_environment

import vkpar
from vkpar.cli import main as cli
from vkpar.vulkan import api, stamps, tracing

pytestmark = pytest.mark.rig
Events = list[dict[str, Any]]


def parsed(path: Path) -> tuple[Events, dict[str, Any]]:
    """Read a trace and check what the trace-event format asks for; return its slices and what it says of itself."""
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = Counter((e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name")
    assert set(threads.values()) <= {1}
    arrows: dict[int, list[dict[str, Any]]] = {}
    slices = []
    for event in events:
        assert event["ph"] in "MXsf"
        assert event["pid"] > 0  # 0 is an idle core to Perfetto
        assert event["tid"] > 0 or event["name"] == "process_name"
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            continue
        assert event["pid"] in processes
        assert (event["pid"], event["tid"]) in threads
        assert isinstance(event["ts"], float)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices.append(event)
        else:
            arrows.setdefault(event["id"], []).append(event)
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in slices:
        first = round(1000 * each["ts"])
        by_thread.setdefault((each["pid"], each["tid"]), []).append((first, first + round(1000 * each["dur"])))
    for spans in by_thread.values():  # Perfetto drops what overlaps, but for what lies inside of others
        around: list[int] = []
        for first, last in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= first:
                around.pop()
            assert not around or last <= around[-1]
            around.append(last)
    for pair in arrows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        for event in pair:  # an arrow is bound to the slice that it lies in
            on = [s for s in slices if (s["pid"], s["tid"]) == (event["pid"], event["tid"])]
            assert any(s["ts"] - 1e-2 <= event["ts"] <= s["ts"] + s["dur"] + 1e-2 for s in on)
    return slices, document["otherData"]


def named(document: Path, kind: str) -> dict[str, Any]:
    events = json.loads(document.read_text())["traceEvents"]
    return {
        e["args"]["name"]: e["pid"] if kind == "process_name" else (e["pid"], e["tid"])
        for e in events
        if e["ph"] == "M" and e["name"] == kind
    }


def on(slices: Events, pid: int, category: str) -> Events:
    return sorted((e for e in slices if e["pid"] == pid and e["cat"] == category), key=lambda e: e["ts"])


def test_operations_by_name_in_their_order(device: vkpar.Device, tmp_path: Path) -> None:
    a, b = device.array(np.ones((64, 64), "float32")), device.empty((64, 64))
    a.numpy()
    with vkpar.trace(tmp_path / "t.json"):
        vkpar.matmul(a, a, out=b)
        for _ in range(3):
            vkpar.add(a, b, out=b)
        b.fill(2)
        b.numpy()
    vkpar.add(a, b, out=b)
    slices, told = parsed(tmp_path / "t.json")
    mine = next(each for each in told["devices"] if each["device"] == str(device))
    assert mine["dropped"] == 0
    assert 0 <= mine["uncertainty_us"] < 1e6
    pid = named(tmp_path / "t.json", "process_name")[str(device)]
    compute = [e for e in on(slices, pid, "device") if e["tid"] == 100]
    assert [e["name"] for e in compute][:4] == ["matmul", "add", "add", "add"]
    assert len(compute) == 5
    slack = 1e-3 + 2 * mine["uncertainty_us"]
    for before, after in itertools.pairwise(compute):
        assert after["ts"] >= before["ts"] + before["dur"] - slack
    for each in compute:
        assert each["args"]["after_the_call_us"] >= -slack
    submits = [e for e in on(slices, 1, "host") if e["name"] == "submit" and e["tid"] == pid + 99]
    assert sum(e["args"]["operations"] for e in submits) == 5
    assert tracing.watcher is None


def test_kernels_of_files_have_their_names(device: vkpar.Device, tmp_path: Path, compiler: None) -> None:
    square = vkpar.Kernel(device, Path(__file__).resolve().parents[2] / "examples" / "square.comp")
    y = device.ones(100)
    with vkpar.trace(tmp_path / "t.json"):
        for _ in range(2):  # the second goes by a plan
            square(y, elements=100, push={"n": 100})
    slices, _ = parsed(tmp_path / "t.json")
    pid = named(tmp_path / "t.json", "process_name")[str(device)]
    assert [e["name"] for e in on(slices, pid, "device")] == ["Kernel square.comp"] * 2


def test_steps_of_collectives_with_bytes_and_peers(rigs: Rigs, tmp_path: Path) -> None:
    devices = rigs("llvmpipe&swiftshader")
    arrays = [device.array(np.ones(4096, "float32")) for device in devices]
    with vkpar.Communicator(devices, wire="f32", algorithm="ring") as before, vkpar.trace(tmp_path / "t.json"):
        before.all_reduce(arrays).wait()
        with vkpar.Communicator(devices, wire="f32", algorithm="ring") as inside:
            for _ in range(2):
                inside.all_reduce(arrays).wait()
        with vkpar.capture(devices, before) as graph:
            doubled = [array * 2 for array in arrays]
            before.all_reduce(doubled)
        graph.launch().wait()
        assert (doubled[1].numpy() == 2 * arrays[0].numpy() * 2).all()
    slices, _ = parsed(tmp_path / "t.json")
    steps = [e for e in slices if e["cat"] == "all_reduce" and e["name"] not in ("wait", "bridge")]
    threads = named(tmp_path / "t.json", "thread_name")
    assert {name for name in threads if name.startswith("communicator")} == {
        f"communicator {number}: {kind}" for number in (0, 1) for kind in ("steps", "waits")
    }
    by_rank = Counter((e["pid"], e["tid"]) for e in steps)
    assert len({pid for pid, _ in by_rank}) == 2
    assert all(e["args"]["sent_nbytes"] or e["args"]["received_nbytes"] for e in steps)
    received, sent = (sum(e["args"][f"{way}_nbytes"] for e in steps) for way in ("received", "sent"))
    assert received >= sent >= 3 * 2 * 4096 * 4
    reading = [e for e in steps if e["args"]["received_nbytes"]]
    assert all(e["args"]["from"] for e in reading)
    arrows = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "s"]
    assert len(arrows) >= 3 * 2
    host = Counter(e["name"] for e in slices if e["pid"] == 1)
    assert host["wait for all_reduce"] == 3
    assert host["graph launch"] == 1


def operations_of_graphs(path: Path, device: vkpar.Device) -> Events:
    pid = named(path, "process_name")[str(device)]
    events = json.loads(path.read_text())["traceEvents"]
    names = [e for e in events if e["ph"] == "M" and e["pid"] == pid]
    threads = [e["tid"] for e in names if e["args"]["name"] == "operations of graphs"]
    return [e for e in on(parsed(path)[0], pid, "device") if e["tid"] in threads]


def test_kernels_inside_a_captured_step(rigs: Rigs, tmp_path: Path) -> None:
    devices = rigs("llvmpipe&swiftshader")
    x = [device.array(np.full((1, 256), 2, "float32")) for device in devices]
    w = [device.array(np.eye(256, dtype="float32")) for device in devices]
    with vkpar.Communicator(devices, wire="f32") as comm:
        with vkpar.capture(devices, comm) as graph:
            h = [vkpar.matmul(a, b) for a, b in zip(x, w, strict=True)]
            comm.all_reduce(h)
            y = [vkpar.add(a, a) for a in h]
        for turn in range(2):  # a second trace records anew
            path = tmp_path / f"{turn}.json"
            with vkpar.trace(path):
                for _ in range(3):
                    graph.launch().wait()
            graph.launch().wait()
            for device in devices:
                found = operations_of_graphs(path, device)
                names = [e["name"] for e in found]
                launch = names[: len(names) // 3]
                assert names == 3 * launch
                assert launch[0] == "matmul"
                assert launch[-1] == "add"
                assert any(name.startswith("all_reduce ") for name in launch)
                assert all(b["ts"] >= a["ts"] + a["dur"] - 1e-2 for a, b in itertools.pairwise(found))
            slices, told = parsed(path)
            assert told["communicators"] == [{"untimed": 0}]
            assert sum(e["cat"] == "graph" and e["name"] not in ("wait", "bridge") for e in slices) >= 3 * 2 * len(
                devices
            )
        assert (y[1].numpy() == 8).all()


def test_kernels_of_a_graph_without_a_communicator(device: vkpar.Device, tmp_path: Path) -> None:
    x = device.ones(100)
    with vkpar.capture([device]) as graph:
        y = vkpar.add(x, x)
        vkpar.multiply(y, x, out=y)
    before = api.load().live().get("QueryPool", 0)
    for turn in range(2):
        path = tmp_path / f"{turn}.json"
        with vkpar.trace(path):
            for _ in range(4):
                work = graph.launch()
            work.wait()
        graph.launch().wait()
        assert [e["name"] for e in operations_of_graphs(path, device)] == 4 * ["add", "multiply"]
    assert (y.numpy() == 2).all()
    assert api.load().live().get("QueryPool", 0) == before
    graph.close()


def test_a_graph_closed_inside_a_trace(device: vkpar.Device, tmp_path: Path) -> None:
    x = device.ones(100)
    with vkpar.trace(tmp_path / "t.json"):
        with vkpar.capture([device]) as graph:
            vkpar.add(x, x)
        graph.launch()
        graph.close()
    assert [e["name"] for e in operations_of_graphs(tmp_path / "t.json", device)] == ["add"]


def test_what_timestamps_cost_is_bounded(rigs: Rigs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where timestamps are dear, operations without any stand where they must have been, and all are counted."""
    devices = rigs("llvmpipe&swiftshader")
    monkeypatch.setattr(stamps, "_price", lambda *_: 10.0)
    monkeypatch.setattr(stamps, "_FIRST", 0.0)
    monkeypatch.setattr(stamps, "_SURE", 16)  # timestamps, and one run
    a = devices[0].ones(1000)
    arrays = [device.ones(1000) for device in devices]
    with vkpar.capture([devices[0]]) as graph:
        vkpar.add(a, a)
    with vkpar.Communicator(devices) as comm, vkpar.trace(tmp_path / "t.json"):
        for _ in range(30):
            vkpar.add(a, a, out=a)
        devices[0].synchronize()
        for _ in range(3):
            comm.all_reduce(arrays).wait()
            graph.launch().wait()
    slices, told = parsed(tmp_path / "t.json")
    mine = next(each for each in told["devices"] if each["device"] == str(devices[0]))
    pid = named(tmp_path / "t.json", "process_name")[str(devices[0])]
    adds = [e for e in on(slices, pid, "device") if e["tid"] == 100]
    assert [e["name"] for e in adds] == ["add"] * 30
    assert 15 <= sum("estimated" in e["args"] for e in adds) == mine["estimated"] < 30
    assert all(b["ts"] >= a["ts"] + a["dur"] - 1e-2 for a, b in itertools.pairwise(adds))
    assert all(e["args"]["after_the_call_us"] >= -2 * mine["uncertainty_us"] - 1e-3 for e in adds)
    assert told["communicators"] == [{"untimed": 2}]
    assert len({e["args"]["sequence"] for e in slices if e["cat"] == "all_reduce"}) == 1
    assert [e["name"] for e in operations_of_graphs(tmp_path / "t.json", devices[0])] == ["add"]
    assert sum(e["name"] == "graph launch" for e in slices) == 3


def test_devices_that_come_and_go(tmp_path: Path, rigs: Rigs) -> None:
    rigs("llvmpipe")
    with vkpar.trace(tmp_path / "t.json"):
        with vkpar.open_devices("llvmpipe")[0] as first:
            first.zeros(10).numpy()
        device = vkpar.open_devices("llvmpipe")[0]
        (device.ones(10) + 1).numpy()
    slices, told = parsed(tmp_path / "t.json")
    assert {str(first), str(device)} <= {each["device"] for each in told["devices"]}
    pids = named(tmp_path / "t.json", "process_name")
    assert [e["name"] for e in on(slices, pids[str(first)], "device")]
    assert "add" in {e["name"] for e in on(slices, pids[str(device)], "device")}
    device.close()


def test_a_trace_leaves_no_query_behind(tmp_path: Path, rigs: Rigs) -> None:
    """The device whose opening begins the trace of a process is told of twice."""
    devices = rigs("llvmpipe&swiftshader")
    before = api.load().live().get("QueryPool", 0)
    with vkpar.trace(tmp_path / "t.json") as trace, vkpar.Communicator(devices) as comm:
        for device in devices:
            trace.opened(device)
        comm.all_reduce([device.ones(1000) for device in devices]).wait()
    assert api.load().live().get("QueryPool", 0) == before


def test_what_has_no_room_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rigs: Rigs
) -> None:
    monkeypatch.setattr(stamps, "OPERATIONS", 4)
    (device,) = rigs("llvmpipe")
    a = device.ones(10)
    with vkpar.trace(tmp_path / "t.json"):
        for _ in range(7):
            vkpar.add(a, a, out=a)
    slices, told = parsed(tmp_path / "t.json")
    mine = next(each for each in told["devices"] if each["device"] == str(device))
    assert mine["dropped"] == 3
    assert "lacks 3 operations" in caplog.text
    assert len(on(slices, named(tmp_path / "t.json", "process_name")[str(device)], "device")) == 4


def test_wrong_use(tmp_path: Path, rigs: Rigs) -> None:
    (device,) = rigs("llvmpipe")
    with pytest.raises(OSError, match="no"):
        vkpar.trace(tmp_path / "no" / "t.json").__enter__()
    assert tracing.watcher is None
    outer = vkpar.trace(tmp_path / "t.json")
    with outer:
        device.zeros(5)
        with pytest.raises(vkpar.InvalidUsageError, match="traces do not nest"):
            vkpar.trace(tmp_path / "u.json").__enter__()
        outer.__exit__(RuntimeError, RuntimeError(), None)
    assert parsed(tmp_path / "t.json")[0]  # what ran until then
    with pytest.raises(vkpar.InvalidUsageError, match="entered once"):
        outer.__enter__()
    assert not (tmp_path / "u.json").exists()


CHILD = """
import os, subprocess, sys, vkpar
device = vkpar.open_devices("llvmpipe")[0]
assert "VKPAR_TRACE" not in os.environ  # children trace nothing
print(int((device.ones(3) + 1).numpy().sum()))
sys.exit(7)
"""


def traced(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vkpar", "trace", "-o", str(path), *command],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command(tmp_path: Path, rigs: Rigs) -> None:
    rigs("llvmpipe")
    done = traced(tmp_path / "t.json", "--", sys.executable, "-c", CHILD)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("6\n")
    assert "slices in" in done.stdout
    assert "clock: " in done.stdout
    slices, _ = parsed(tmp_path / "t.json")
    assert "add" in {e["name"] for e in slices}


def test_a_process_that_is_killed(tmp_path: Path, rigs: Rigs) -> None:
    rigs("llvmpipe")
    code = "import os, vkpar; vkpar.open_devices('llvmpipe'); os._exit(0)"
    done = traced(tmp_path / "t.json", "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert "has ended (status 0) before it could write" in done.stdout


def test_further_processes_write_files_of_their_own(tmp_path: Path, rigs: Rigs) -> None:
    rigs("llvmpipe")
    code = "import vkpar; vkpar.open_devices('llvmpipe')[0].ones(3).numpy()"
    two = f"import subprocess, sys; [subprocess.run([sys.executable, '-c', {code!r}]) for _ in range(2)]"
    assert traced(tmp_path / "t.json", "--", sys.executable, "-c", two).returncode == 0
    first, second = sorted(tmp_path.glob("t.json*"))
    assert second.name.removeprefix("t.json.").isdigit()
    for path in (first, second):
        assert parsed(path)[0]


def test_the_command_says_what_is_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "t.json")
    assert cli.main(["trace", "-o", out, "--", "true"]) == 1
    assert "has opened no device" in capfd.readouterr().out
    assert not os.path.exists(out)
    for arguments, said in (
        (["-o", out, "--", "no-such-command-here"], "no such command: no-such-command-here"),
        (["-o", out], "vkpar trace -o FILE -- COMMAND..."),
        (["-o", str(tmp_path / "no" / "t.json"), "--", "true"], "cannot write the trace"),
    ):
        assert cli.main(["trace", *arguments]) == 2
        assert said in capfd.readouterr().err
