"""tools/compare.py and tools/peers: what is run in which order, ratios, tables, errors; needs none of the libraries."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vkpar.bench import sweep
from vkpar.bench.frame import frame
from vkpar.cli import main as cli
from vkpar.errors import InvalidUsageError, UnsupportedError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "peers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import common
import compare
import comparison
import gloo
import mpi
import nccl
import torch_launch
import torch_ops
import torch_step

ROOT = Path(__file__).resolve().parents[2]

# --- variants and options ---


def test_a_variant_has_variables_and_settings() -> None:
    found = compare.parse_variant("slow:wire=f32,VKPAR_LINK=bridged,VKPAR_DEBUG=slots,wire,VKPAR_SPIN_US=0")
    assert (found.name, found.settings) == ("slow", {"wire": "f32"})
    assert found.environment == {"VKPAR_LINK": "bridged", "VKPAR_DEBUG": "slots,wire", "VKPAR_SPIN_US": "0"}
    assert compare.parse_variant("plain") == compare.parse_variant("plain:") == compare.Variant("plain")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no variant"),
        (":VKPAR_LINK=native", "is no variant"),
        ("VKPAR_LINK=native", "is no variant"),
        ("a:VKPAR_LINK", "expected NAME=VALUE"),
        ("a:=1", "expected NAME=VALUE"),
        ("a:op=max", "unknown setting 'op'; there are algorithm, transport, wire"),
        ("a:wire=f8", "unknown wire 'f8'"),
    ],
)
def test_what_is_no_variant_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        compare.parse_variant(text)


def options(**changes: Any) -> compare.Options:
    given = sweep.Options(devices="x*2", sizelist=(8192, 1 << 20), iters=None)
    return replace(compare.Options("gloo", given), **changes)


def test_both_are_asked_for_the_same() -> None:
    made = options(environment={"VKPAR_LINK": "native", "A": "1"})
    own = made.vkpar(compare.Variant("b", {"wire": "f32"}, {"VKPAR_LINK": "bridged"}))
    peer = made.other(2)
    assert own.environment == {"VKPAR_LINK": "bridged", "A": "1"}
    assert own.command[1:6] == ["-m", "vkpar", "bench", "all_reduce", "--in-place"]
    assert own.command[6:10] == ["--devices", "x*2", "--wire", "f32"]
    assert peer.command[2:4] == ["--nranks", "2"]
    shared = ["--sizes", "8192,1048576", "-n", "auto", "-w", "5", "-c", "1", "--json"]
    assert own.command[10:] == peer.command[4:] == shared
    assert Path(peer.command[1]) == ROOT / "tools" / "peers" / "gloo.py"
    assert options(peer="nccl", p2p=True).other(4).command[2:5] == ["--nranks", "4", "--p2p"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"variants": (compare.Variant("a"), compare.Variant("a"))}, "two libraries are named 'a'"),
        ({"variants": (compare.Variant("gloo"),)}, "two libraries are named 'gloo'"),
        ({"p2p": True}, "--p2p is for --peer nccl"),
        ({"sweep": sweep.Options(minbytes=2, maxbytes=1)}, "minbytes"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidUsageError, match=said):
        options(**changes)


# --- rounds ---

SIZES = (8192, 1 << 20)


def document(time_us: float, *, peer: bool = False, wrong: int | None = 0) -> dict[str, Any]:
    """What a library prints with ``--json``, cut down to what is read."""
    rows = []
    for size in SIZES:
        bandwidth = size / time_us / 1e3
        half = {"time_us": time_us, "algbw_gbps": bandwidth, "busbw_gbps": bandwidth, "wrong": wrong}
        rows.append({"size": size, "algorithm": None if peer else "ring", "out_of_place": None, "in_place": half})
    rank = {"name": "Fancy GPU", "driver": "CUDA 12" if peer else "Fancy 580"}
    return {
        "rows": rows,
        "iters": [1000, 5],
        "nranks": 2,
        "versions": {"torch": "2"} if peer else {"vkpar": "0"},
        "ranks": [rank, rank],
        "links": [] if peer else [{"kind": "native", "pairs": [[0, 1], [1, 0]], "reason": "one driver"}],
        "explanation": "Two.",
        "check": "exact",
        "environment": {"GLOO_SOCKET_IFNAME": "lo"},
        "options": {"wire": "f16", "algorithm": "auto", "transport": "auto"},
    }


class Machine:
    """Takes the place of :func:`compare.run`: vkpar takes 10, 20 and 40 us, the peer 20, 20 and 20."""

    def __init__(self, wrong: int | None = 0) -> None:
        self.order: list[str] = []
        self.wrong = wrong

    def __call__(self, library: compare.Library) -> dict[str, Any]:
        self.order.append(library.name)
        round_before = self.order.count(library.name) - 1
        time_us = 20.0 if library.is_peer else (10.0, 20.0, 40.0)[round_before]
        return document(time_us, peer=library.is_peer, wrong=self.wrong)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(compare, "run", made)
    return made


def measured(file: Path | None = None, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = compare.compare(options(rounds=3, commit="abc", **changes), file)
    return found


def test_rounds_go_to_and_fro(machine: Machine) -> None:
    measured(variants=(compare.Variant("native"), compare.Variant("bridged")))
    assert machine.order == [
        *("native", "bridged", "gloo"),
        *("gloo", "bridged", "native"),
        *("native", "bridged", "gloo"),
    ]


def test_ratios_are_taken_round_by_round(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    lines = comparison.summarise(measured(file))
    assert [(line.size, line.variant) for line in lines] == [(size, "vkpar") for size in SIZES]
    assert lines[0].time_us == comparison.Spread(20.0, 10.0, 40.0)
    assert lines[0].peer_time_us == comparison.Spread(20.0, 20.0, 20.0)
    assert lines[0].ratio == comparison.Spread(1.0, 0.5, 2.0)
    assert lines[1].busbw_gbps.most == pytest.approx((1 << 20) / 10e3)
    written = json.loads(file.read_text())
    assert (written["ok"], written["wrong"], len(written["rounds"])) == (True, 0, 3)
    assert written["rounds"][0]["vkpar"][0]["iters"] == 1000
    assert written["summary"][0]["ratio"] == {"median": 1.0, "least": 0.5, "most": 2.0}
    assert comparison.summarise(comparison.read(file)) == lines
    assert list(tmp_path.iterdir()) == [file]


def test_a_round_that_fails_leaves_those_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(library: compare.Library) -> dict[str, Any]:
        if len(machine.order) == 3:
            raise comparison.CompareError("gone")
        return machine(library)

    monkeypatch.setattr(compare, "run", fail)
    file = tmp_path / "results.json"
    with pytest.raises(comparison.CompareError, match="gone"):
        measured(file)
    assert len(comparison.read(file)["rounds"]) == 1


def test_the_table_names_what_was_compared(machine: Machine) -> None:
    found = list(comparison.lines(measured(environment={"VKPAR_LINK": "native"})))
    assert found[0] == "# vkpar 0 (abc) and gloo (torch 2)"
    assert found[1].startswith("# all_reduce, float32 sum in place, 2 ranks; ")
    assert "# Devices: 2 x Fancy GPU [Fancy 580]" in found
    (variant,) = (line for line in found if line.startswith("# vkpar: "))
    assert variant.startswith("# vkpar: algorithm auto, transport auto, wire f16, ")
    assert "VKPAR_LINK=native" in variant
    assert variant.endswith(", 2 links native")
    assert "# gloo: 2 x Fancy GPU [CUDA 12], GLOO_SOCKET_IFNAME=lo. Two." in found
    rows = [line for line in found if not line.startswith("#")]
    head = next(line for line in found if line.startswith("#      size"))
    assert {len(row) for row in rows} == {len(head)}
    assert rows[0].replace("[", " ").replace("]", " ").replace(" -", " ").split() == [
        *("8192", "vkpar", "20.00", "10.00", "40.00", "20.00", "20.00", "20.00"),
        *("1.00", "0.50", "2.00", "0.41", "0.41", "0"),
    ]


def test_wrong_elements_are_counted_and_end_with_status_1(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.wrong = 3
    assert compare.main(["--peer", "gloo", "--rounds", "2", "--sizes", "8K,1M"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [row.split()[-1] for row in rows] == ["12", "12"]


def test_what_was_not_checked_is_not_called_right(machine: Machine) -> None:
    machine.wrong = None
    results = measured()
    assert comparison.summarise(results)[0].wrong is None
    assert comparison.wrong_elements(results) == 0


def test_results_are_shown_again(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    results = measured(file)
    capsys.readouterr()
    assert compare.main(["--from", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == list(comparison.lines(results))


@pytest.mark.parametrize("sizes", [SIZES, (1 << 20, 4 << 20)], ids=["logarithmic", "linear"])
def test_the_picture(sizes: tuple[int, ...], machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(globals(), "SIZES", sizes)
    comparison.plot(measured(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("nbytes", "text"), [(8, "8 B"), (8192, "8 KiB"), (1 << 30, "1 GiB"), (9001, "9001 B")])
def test_sizes_as_text(nbytes: int, text: str) -> None:
    assert comparison.size_text(nbytes) == text


# --- errors ---


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('first\\nlast words')", "test ended with status 1: last words"),
        ("import os, sys; print('so it is', file=sys.stderr); os._exit(3)", "test ended with status 3: so it is"),
        ("pass", "status 0: nothing on its standard error"),
        ("print('{\"a\":')", "test printed no JSON document"),
    ],
)
def test_a_library_that_fails_is_a_typed_error(program: str, said: str) -> None:
    with pytest.raises(comparison.CompareError, match=said):
        compare.run(compare.Library("test", [sys.executable, "-c", program], {}))


def test_a_library_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_LIMIT_S", 0.2)
    with pytest.raises(comparison.CompareError, match=r"test took more than 0\.2 s"):
        compare.run(compare.Library("test", [sys.executable, "-c", "import time; time.sleep(60)"], {}))


def test_status_1_with_a_document_is_a_result() -> None:
    program = "import sys; print('{}'); sys.exit(1)"
    assert compare.run(compare.Library("test", [sys.executable, "-c", program], {})) == {}


def test_what_a_library_prints_around_its_document_is_passed_over() -> None:
    program = "import json, os; print('NCCL version 2'); print(json.dumps({'a': os.environ['A']})); print('bye')"
    assert compare.run(compare.Library("test", [sys.executable, "-c", program], {"A": "1"})) == {"a": "1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "{}/missing.json"], "No such file"),
        (["--from", "{}/text"], "is no JSON document"),
        (["--from", "{}/other"], "holds no results of this tool"),
        (["--peer", "gloo", "--json", "{}/no/x.json"], "there is no folder for"),
        (["--peer", "gloo", "--variant", "a:b=c"], "unknown setting 'b'"),
        (["--peer", "gloo", "--env", "VKPAR_LINK"], "expected NAME=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no")
    (tmp_path / "other").write_text("{}")
    assert compare.main([word.format(tmp_path) for word in arguments]) == 2
    said_all = capsys.readouterr()
    assert said in said_all.err
    assert (said_all.out, said_all.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        (gloo, "torch: pip install torch"),
        (torch_launch, "torch: pip install torch"),
        (torch_ops, "torch: pip install torch"),
        (torch_step, "torch: pip install torch"),
        (nccl, "torch: pip"),
        (mpi, "mpi4py: pip install mpi4py"),
    ],
)
def test_a_missing_package_is_named(
    module: Any, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    given = [] if module in (torch_launch, torch_ops, torch_step) else ["--sizes", "8K"]
    assert common.main(lambda: module.main(given)) == 2
    said = capsys.readouterr().err
    assert f"error: needs the package {package}" in said
    assert said.count("\n") == 1


def test_a_picture_without_matplotlib_is_refused_before_anything_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    assert compare.main(["--peer", "gloo", "--plot", "x.png"]) == 2
    assert "needs the package matplotlib" in capsys.readouterr().err
    assert machine.order == []


# --- peers ---


class Lone:
    """A library of one rank, so that a sum is what it was; ``fault`` is added to the first element."""

    name, rank, nranks = "Lone", 0, 1

    def __init__(self, fault: float = 0.0) -> None:
        self.rig = common.describe(1, ["a CPU"], "One.", driver="none", kind="cpu", lone="1.0")
        self.fault, self.calls = fault, 0
        self.array = np.empty(0, np.float32)

    def allocate(self, count: int) -> None:
        self.array = np.empty(count, np.float32)

    def write(self, host: np.ndarray[Any, Any]) -> None:
        self.array[:] = host

    def read(self) -> np.ndarray[Any, Any]:
        return self.array

    def call(self) -> None:
        self.calls += 1
        self.array[0] += self.fault

    def finish(self) -> None: ...

    def barrier(self) -> None: ...

    def greatest(self, value: float) -> float:
        return value

    def total(self, value: int) -> int:
        return value


def peer_options(**changes: Any) -> common.Options:
    found = common.parser("A peer.").parse_args(["--sizes", "8K,10", "-n", "2", "-w", "1", "--repeat", "3"])
    return replace(common.options_of(found), **changes)


@pytest.mark.parametrize(("fault", "wrong"), [(0.0, 0), (1.0, 2)])
def test_a_peer_prints_the_document_of_vkpar_bench(
    fault: float, wrong: int, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = Lone(fault)
    assert common.run_rank(peer, peer_options(json=True)) == min(wrong, 1)
    found = json.loads(capsys.readouterr().out)
    assert (found["benchmark"], found["peer"], found["wrong"], found["ok"]) == ("all_reduce", "Lone", wrong, not wrong)
    assert [(row["size"], row["count"]) for row in found["rows"]] == [(8192, 2048), (8, 2)]
    assert found["rows"][0]["in_place"].keys() == {"time_us", "algbw_gbps", "busbw_gbps", "wrong"}
    assert (found["nranks"], found["iters"], found["versions"]["lone"]) == (1, [2, 2], "1.0")
    assert peer.calls == 2 * (1 + 3 * 2 + 1)


def test_a_peer_prints_the_columns_of_vkpar_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert common.run_rank(Lone(), peer_options()) == 0
    found = capsys.readouterr().out.splitlines()
    assert set(sweep.HEADER) <= set(found)
    assert "# sizes 8192,8 warmup iters 1 iters 2 check 1 repeat 3" in found
    rows = [line.split() for line in found if not line.startswith("#")]
    assert [row[:8] for row in rows] == [
        [size, count, "float32", "sum", *["N/A"] * 4] for size, count in (("8192", "2048"), ("8", "2"))
    ]


def test_more_ranks_than_gpus_are_refused() -> None:
    assert common.processes(None, 2, 2) == 2
    with pytest.raises(InvalidUsageError, match="3 ranks need as many GPUs, and there are 2"):
        common.processes(3, 2, 2)


def test_processes_of_a_peer_end_together(capfd: pytest.CaptureFixture[str]) -> None:
    assert common.spawn(print, 2) == 0  # prints rank, ranks and rendezvous
    assert sorted(line[:3] for line in capfd.readouterr().out.splitlines()) == ["0 2", "1 2"]
    assert common.spawn(max, 1) == 2  # of a number and a text: raises
    assert "TypeError" in capfd.readouterr().err


# --- what it needs of vkpar bench ---


@pytest.mark.parametrize(
    ("overhead", "a_call", "calls"),
    [(0.0, 0.05, 5), (0.0, 0.01, 20), (0.001, 1e-3, 200), (0.0, 1e-6, 1000), (0.0, 0.0, 1000)],
)
def test_as_many_calls_as_fill_a_fifth_of_a_second(overhead: float, a_call: float, calls: int) -> None:
    made = frame.enough_calls(lambda number: overhead + number * a_call)
    assert calls * 0.9 <= made <= calls


def test_a_call_that_is_slow_is_tried_once() -> None:
    tried = []

    def time_calls(number: int) -> float:
        tried.append(number)
        return 3.0

    assert frame.enough_calls(time_calls) == 5
    assert tried == [1]


def test_listed_sizes_take_the_place_of_a_range() -> None:
    given = sweep.Options(minbytes=8, sizelist=(10, 4096), iters=None)
    assert given.sizes() == [8, 4096]
    assert given.describe() == "sizes 8,4096 warmup iters 5 iters auto check 1"


def test_a_row_without_its_out_of_place_half() -> None:
    half = sweep.Measurement(12.5, 3.0, 4.5, 0)
    row = sweep.Row(8192, 2048, "float32", "sum", "ring", None, half, 17.25, 1000)
    assert row.text().split()[4:] == [*["N/A"] * 4, "12.50", "3.00", "4.50", "0", "17.25"]
    assert row.halves() == [half]


def test_the_options_reach_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(frame, "run", lambda start, as_json: seen.extend(start.args) or 0)
    assert cli.main(["bench", "all_reduce", "-n", "auto", "--sizes", "8K,1M", "--in-place"]) == 0
    assert cli.main(["bench", "broadcast", "-n", "7"]) == 0
    assert (seen[0].iters, seen[0].sizelist, seen[0].in_place_only) == (None, (8192, 1 << 20), True)
    assert (seen[1].iters, seen[1].sizelist, seen[1].in_place_only) == (7, (), False)


def test_need_passes_what_is_there() -> None:
    common.need("json", "")
    with pytest.raises(UnsupportedError, match="needs the package no_such_thing: pip install it"):
        common.need("no_such_thing", "pip install it")


# --- launching ---


class _Tensor(np.ndarray):  # type: ignore[type-arg]
    def zero_(self) -> None:
        self[...] = 0


class _Torch:
    """As much of torch as the benchmark of small operations calls, on NumPy; ``fault`` is added to every product."""

    __version__ = "0.0"
    float32 = np.float32
    cuda = SimpleNamespace(is_available=lambda: False)

    def __init__(self, fault: float = 0.0) -> None:
        self._fault = fault

    @staticmethod
    def device(kind: str) -> Any:
        return SimpleNamespace(type=kind)

    @staticmethod
    def full(shape: Any, value: float, **_: Any) -> Any:
        return np.full(shape, value, np.float32).view(_Tensor)

    def ones(self, shape: Any, **_: Any) -> Any:
        return self.full(shape, 1)

    def zeros(self, shape: Any, **_: Any) -> Any:
        return self.full(shape, 0)

    empty = zeros

    @staticmethod
    def add(a: Any, b: Any, out: Any = None) -> Any:
        return np.add(a, b, out=out)

    def mm(self, a: Any, b: Any, out: Any = None) -> Any:
        made = np.matmul(a, b, out=out)
        made += self._fault
        return made


@pytest.mark.parametrize("fault", [0, 1])
def test_small_operations_of_torch(
    fault: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", _Torch(fault))
    monkeypatch.setattr(common, "need", lambda *_: None)
    assert torch_launch.main(["-n", "3", "-w", "1", "--repeat", "2", "--json"]) == fault
    found = json.loads(capsys.readouterr().out)
    assert [(row["operation"], row["result"], row["wrong"]) for row in found["rows"]] == [
        ("add", "out=", 0),
        ("add", "fresh", 0),
        ("matmul", "out=", 64 * fault),
        ("matmul", "fresh", 64 * fault),
        ("empty", "", None),
        ("dependent adds", "out=", 0),
        ("independent adds", "out=", 0),
    ]
    assert found["subject"] == "torch"
