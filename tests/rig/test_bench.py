"""The benchmarks on real drivers, through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from conftest import require
from helpers.process.benching import QUICK, TWO, Idle, corrupt, run_json
from helpers.process.children import child_environment, run_child

import vkpar
from vkpar.bench import host, matmul, selfcheck
from vkpar.bench.measure import exact
from vkpar.bench.measure.collectives import TABLE
from vkpar.cli import main as cli
from vkpar.vulkan import api
from vkpar.vulkan.pump import native

pytestmark = pytest.mark.rig


@pytest.fixture(autouse=True)
def _driver() -> None:
    require("llvmpipe")


def test_all_reduce_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "all_reduce", *TWO, *QUICK, "-b", "1K", "-e", "20K"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(int(row[0]), int(row[1])) for row in rows] == [(1024, 256), (4096, 1024), (16384, 4096)]
    assert all(len(row) == 13 and row[7] == row[11] == "0" for row in rows)
    assert sum(line.startswith("# Rank ") for line in lines) == 2
    assert any(line.startswith("# Links: 2 ") for line in lines)
    assert "# Wrong elements    : 0 OK" in lines


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint32"])
def test_all_reduce_counts_nothing_wrong_for_any_dtype(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(
        capsys, "bench", "all_reduce", *TWO, *QUICK, "--dtype", dtype, "-b", "6", "-e", "600", "-f", "10", "-c", "2"
    )
    assert (status, found["wrong"], found["ok"]) == (0, 0, True)
    assert [row["count"] for row in found["rows"]] == [n // vkpar.dtypes.resolve(dtype).itemsize for n in (6, 60, 600)]
    assert {row["type"] for row in found["rows"]} == {dtype}


@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("algorithm", ["ring", "two_shot", "direct", "tree", "naive"])
def test_all_reduce_is_exact_on_every_wire(wire: str, algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--devices", "llvmpipe*3", "--wire", wire, "--algorithm", algorithm, "-b", "40012", "-e", "40012"]
    status, found = run_json(capsys, "bench", "all_reduce", *options, *QUICK)
    assert (status, found["wrong"]) == (0, 0)
    assert (found["nranks"], found["algorithm"], found["options"]["wire"]) == (3, algorithm, wire)
    assert found["links"][0]["kind"] in ("native", "bridged")
    assert len(found["ranks"]) == 3
    (row,) = found["rows"]
    assert row["algorithm"] == algorithm
    assert set(row) == {"size", "count", "type", "redop", "algorithm", "out_of_place", "in_place", "host_us"}
    for half in (row["out_of_place"], row["in_place"]):
        assert set(half) == {"time_us", "algbw_gbps", "busbw_gbps", "wrong"}
        assert half["busbw_gbps"] == pytest.approx(half["algbw_gbps"] * 4 / 3)
        assert half["algbw_gbps"] == pytest.approx(row["size"] / half["time_us"] / 1e3)
    assert row["host_us"] > 0


# --- bench all ---


def test_all_checks_every_collective(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "bench", "all", *TWO, "--sizes", "24,4012")
    assert (status, found["wrong"], found["ok"], found["nranks"]) == (0, 0, True, 2)
    ops = [(row["collective"], row["op"]) for row in found["rows"]]
    assert ops[:5] == [("all_reduce", op) for op in exact.OPS]
    assert list(dict(ops)) == list(TABLE)
    cells = {(row["collective"], row["op"]): row["cells"] for row in found["rows"]}
    others = ["float16", "bfloat16", "float64"]
    others += [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
    assert list(cells["all_reduce", "sum"]) == ["f16", "bf16", "q8", "f32", *others]
    assert list(cells["all_reduce", "max"]) == list(cells["scatter", None]) == ["f32", *others]
    assert cells["barrier", None] == {}
    bounded = {name for name, cell in cells["all_reduce", "avg"].items() if cell["bound"]}
    assert bounded == {"q8"}
    for key, row in cells.items():
        in_place = TABLE[key[0]].in_place
        assert {(cell["wrong"], cell["calls"]) for cell in row.values()} <= {(0, 4 if in_place else 2)}


def test_all_prints_a_table_and_can_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    corrupt(monkeypatch)
    monkeypatch.setattr(selfcheck, "TABLE", {name: TABLE[name] for name in ("reduce", "send_recv", "barrier")})
    assert cli.main(["bench", "all", "--devices", "llvmpipe*3", "--sizes", "4012"]) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:-1] for row in rows] == [
        ["reduce", "sum", "2", "2", "~2", "2", "2", "2", "2", "4", "4", "4", "4", "30"],
        ["send_recv", *"----", *"3333", *"6666", "12"],
        ["barrier", *"-" * 12, "1"],
    ]
    assert "# Wrong elements : 66 FAILED (43 calls)" in lines


# --- bench launch ---

LAUNCH = ["bench", "launch", "--devices", "llvmpipe", "-n", "3", "-w", "1", "--repeat", "2"]


def test_launch_times_small_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(LAUNCH) == 0
    said = capsys.readouterr().out.splitlines()
    rows = [line for line in said if not line.startswith("#")]
    assert len(rows) == 11
    assert "# Wrong elements    : 0 OK" in said
    status, found = run_json(capsys, *LAUNCH)
    assert status == 0
    assert [(row["operation"], row["result"], row["calls"], row["wrong"]) for row in found["rows"]] == [
        *((name, result, 3, 0) for name in ("add", "matmul", "Kernel") for result in ("out=", "fresh")),
        ("empty", "", 3, None),
        *((f"{name} adds", way, 1000, 0) for name in ("dependent", "independent") for way in ("out=", "captured")),
    ]
    for row in found["rows"]:
        assert 0 < row["host_us"] <= row["total_us"]
        assert row["launch_us"] == (1000 * row["host_us"] if row["result"] == "captured" else None)


def test_launch_sees_wrong_results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt(monkeypatch)
    status, found = run_json(capsys, *LAUNCH)
    assert status == 1
    assert [row["wrong"] for row in found["rows"]] == [1, 1, 1, 1, 1, 1, None, 1, 1, 1000, 1000]
    monkeypatch.undo()
    monkeypatch.setattr(vkpar.Graph, "launch", lambda graph: None)
    status, found = run_json(capsys, *LAUNCH)
    wrong = {row["operation"]: row["wrong"] for row in found["rows"] if row["result"] == "captured"}
    assert (status, wrong) == (1, {"dependent adds": 64, "independent adds": 64_000})


# --- bench host ---


def test_host_prints_quiet_busy_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "host", *TWO, "-n", "3", "-w", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [(row[0], len(row)) for row in rows] == [("quiet", 6), ("paced", 6), ("busy", 6), ("ratio", 6)]
    status, found = run_json(capsys, "bench", "host", *TWO, "-n", "3", "-w", "1", "--size", "1K")
    assert (status, found["options"]["size"], found["nranks"]) == (0, 1024, 2)
    for state in ("quiet_us", "paced_us", "busy_us", "ratio"):
        assert set(found[state]) == {"enqueue", "wait", "whole", "mean", "bridge"}
        assert all(value > 0 for value in found[state].values())
    assert not [thread for thread in threading.enumerate() if thread.name == "vkpar-bench-busy"]


def test_a_busy_thread_counts_until_the_end() -> None:
    with host.busy_thread():
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "vkpar-bench-busy"]
        assert thread.is_alive()
    assert not thread.is_alive()


class Counting:
    """A library whose functions are counted, by the thread that made it."""

    def __init__(self, lib: Any, calls: Counter[str]) -> None:
        self._lib, self._calls, self._thread = lib, calls, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._lib, name)

        def call(*arguments: Any) -> Any:
            if threading.get_ident() == self._thread:
                self._calls[name] += 1
            return function(*arguments)

        return call if callable(function) else function


class Helper:
    """The C helper's module with a counted library."""

    def __init__(self, helper: Any, calls: Counter[str]) -> None:
        self.ffi, self.lib = helper.ffi, Counting(helper.lib, calls)


@pytest.mark.parametrize("name", ["all_reduce", "barrier"])
def test_a_call_gives_up_the_gil_once_to_enqueue_and_once_to_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    helper = Helper(native.helper(), calls)
    monkeypatch.setattr(native, "helper", lambda: helper)
    monkeypatch.setattr(api.load(), "lib", Counting(api.load().lib, calls))
    devices = vkpar.open_devices("llvmpipe*3")
    try:
        with vkpar.Communicator(devices) as communicator:
            arrays = [device.zeros(2048, "float32") for device in devices]
            launch = communicator.barrier if name == "barrier" else lambda: communicator.all_reduce(arrays)
            launch().wait()
            launch().wait()
            assert calls["vkp_enqueue"] >= 2
            for _ in range(3):
                calls.clear()
                work = launch()
                assert calls == {"vkp_enqueue": 1}
                calls.clear()
                work.wait()
                assert calls == {"vkp_wait": 1}
    finally:
        for device in devices:
            device.close()


def test_all_reduce_over_two_vendors(capsys: pytest.CaptureFixture[str]) -> None:
    require("swiftshader")
    rig = ["--devices", "llvmpipe&swiftshader"]
    status, found = run_json(capsys, "bench", "all_reduce", *rig, *QUICK, "-b", "40012", "-e", "40012")
    assert (status, found["wrong"]) == (0, 0)
    assert {rank["vendor"] for rank in found["ranks"]} == {"Mesa", "Google"}


def test_a_single_device_by_default_is_two_virtual_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings_override: Any
) -> None:
    settings_override(devices="")
    open_devices = vkpar.open_devices
    monkeypatch.setattr(vkpar, "open_devices", lambda text: open_devices("llvmpipe" if text is None else text))
    _, found = run_json(capsys, "bench", "all_reduce", *QUICK, "-b", "64", "-e", "64")
    assert found["nranks"] == 2
    assert "virtual" in found["explanation"]


def test_wrong_elements_are_counted_and_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt(monkeypatch)
    status, found = run_json(capsys, "bench", "all_reduce", *TWO, *QUICK, "-b", "4K", "-e", "4K")
    assert (status, found["ok"], found["wrong"]) == (1, False, 4)
    assert found["rows"][0]["out_of_place"]["wrong"] == found["rows"][0]["in_place"]["wrong"] == 2
    assert cli.main(["bench", "all_reduce", *TWO, *QUICK, "-b", "4K", "-e", "4K"]) == 1
    assert "# Wrong elements    : 4 FAILED" in capsys.readouterr().out
    status, found = run_json(capsys, "bench", "matmul", "--devices", "llvmpipe", *QUICK, "--sizes", "8,9,10")
    assert (status, found["ok"], found["wrong"]) == (1, False, 2)


def test_a_result_that_was_never_written_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vkpar.Communicator, "all_reduce", lambda *arguments, **options: Idle())
    status, found = run_json(capsys, "bench", "all_reduce", *TWO, *QUICK, "-b", "4K", "-e", "4K")
    assert status == 1
    assert found["rows"][0]["out_of_place"]["wrong"] == 2048
    assert found["rows"][0]["in_place"]["wrong"] > 0


def test_nothing_is_checked_with_c_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    corrupt(monkeypatch)
    assert cli.main(["bench", "all_reduce", *TWO, *QUICK, "-c", "0", "-b", "4K", "-e", "4K"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[7] for line in shown.splitlines() if not line.startswith("#")] == ["N/A"]
    assert "# Wrong elements    : N/A" in shown


def test_errors_of_the_library_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--devices", "radeon"], "no device matches 'radeon'"),
        ([*TWO, "--algorithm", "magic"], "unknown algorithm 'magic'"),
        ([*TWO, "--wire", "q9"], "unknown wire 'q9'"),
        ([*TWO, "-b", "2M", "-e", "1M"], "minbytes"),
        ([*TWO, "--transport", "pigeon"], "unknown transport 'pigeon'"),
    ):
        assert cli.main(["bench", "all_reduce", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("vkpar: error: ")
        assert said in captured.err
        status, found = run_json(capsys, "bench", "all_reduce", *arguments)
        assert status == 2
        assert said in found.pop("message")
        assert found == {"ok": False, "type": "InvalidUsageError"}


def test_a_root_that_is_no_rank_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "broadcast", *TWO, "--root", "2"]) == 2
    assert capsys.readouterr() == ("", "vkpar: error: root is a rank from 0 to 1, not 2\n")


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_is_exact(transposed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--transpose-b"] if transposed else []
    arguments = ["--devices", "llvmpipe", "--sizes", "17,33,65;1,40,300;16", "--dtypes", "float32,float16,bfloat16"]
    status, found = run_json(capsys, "bench", "matmul", *arguments, *QUICK, *extra)
    assert (status, found["wrong"], len(found["rows"])) == (0, 0, 9)
    first = found["rows"][0]
    assert (first["m"], first["n"], first["k"], first["type"]) == (17, 33, 65, "float32")
    assert first["gflops"] == pytest.approx(2e-3 * 17 * 33 * 65 / first["time_us"])
    assert first["against_numpy"] == pytest.approx(first["numpy_us"] / first["time_us"])
    assert found["rows"][1]["against_numpy"] is None


def test_matmul_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(matmul, "CPU_SIZES", ((8, 8, 8),))
    assert cli.main(["bench", "matmul", "--devices", "llvmpipe*2", *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[0], row[4]) for row in rows] == [
        ("0", "float32"),
        ("0", "float16"),
        ("1", "float32"),
        ("1", "float16"),
    ]
    assert max(map(len, (line for line in lines if not line.startswith("# Device")))) <= 100
    assert "# Wrong elements : 0 OK" in lines


def test_devices_and_env_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, "devices", "--devices", "llvmpipe")
    assert status == 0
    assert found["devices"][0]["driver_name"] == "llvmpipe"
    assert cli.main(["devices"]) == cli.main(["devices", "-v"]) == 0
    assert "llvmpipe" in capsys.readouterr().out
    _, found = run_json(capsys, "env")
    assert found["vulkan_loader"].startswith("1.")


CHILD = "import sys; from vkpar.cli import main as cli; sys.exit(cli.main(sys.argv[1:]))"
LONG = ["bench", "all_reduce", *TWO, "-b", "8K", "-e", "8K", "-n", "1000000"]


def test_no_driver_is_one_line() -> None:
    nothing = child_environment(
        VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent", VK_ADD_DRIVER_FILES=None
    )
    done = run_child(CHILD, "devices", environment=nothing)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("vkpar: error: no Vulkan driver found")
    assert done.stderr.count("\n") == 1
    done = run_child(CHILD, "devices", "--json", environment=nothing)
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["type"] == "UnsupportedError"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_with_130_and_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            while "host" not in child.stdout.readline():  # the header: measuring begins
                assert child.poll() is None
            child.send_signal(signal.SIGINT)
            child.wait(60)
            assert (child.returncode, child.stderr.read()) == (130, "vkpar: interrupted\n")
        finally:
            child.kill()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, "bench", "all_reduce", *TWO, *QUICK, "-b", "8", "-e", "1K", "-f", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            child.stdout.readline()
            child.stdout.close()
            assert child.wait(60) == 0
            assert child.stderr.read() == ""
        finally:
            child.kill()
