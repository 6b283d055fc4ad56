"""The command line as far as it needs no Vulkan."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from helpers.process.children import check_child, run_child
from helpers.vulkan.infos import fake_info

import vkpar
from vkpar.bench import copy, host, launch, matmul, selfcheck, step, sweep
from vkpar.bench.frame import frame
from vkpar.bench.measure import collectives
from vkpar.cli import main as cli
from vkpar.comm.rig.transports import peer
from vkpar.errors import UnsupportedError, ValidationError
from vkpar.vulkan import api
from vkpar.vulkan.machine.physical import DeviceInfo, Limits
from vkpar.vulkan.pump import native


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [fake_info(0), fake_info(1, name="Plain CPU", vendor="Mesa", type="cpu", driver_info="", pci_address=None)]
    monkeypatch.setattr(vkpar, "enumerate_devices", lambda: infos)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["devices"],
        ["demo"],
        ["doctor"],
        ["topo"],
        ["env"],
        ["bench"],
        *(["bench", name] for name in ("all", "copy", "host", "launch", "matmul", "step", *collectives.TABLE)),
    ],
)
def test_help(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as leaving:
        cli.main([*command, "--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_importing_and_help_load_no_vulkan() -> None:
    check_child(
        """
        import contextlib, io, sys
        from vkpar.cli import main as cli
        from vkpar.vulkan import api
        for command in ([], ["bench", "all_reduce"], ["devices"]):
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
                cli.main([*command, "--help"])
        assert not api.loaded()
        assert not [name for name in sys.modules if name.split(".")[0] == "vulkan"]
        """
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["nonsense"], "invalid choice"),
        (["bench", "all_reduce", "-b", "8X"], "argument -b/--minbytes: '8X' is no size"),
        (["bench", "all_reduce", "-n", "0"], "argument -n/--iters: '0': expected a whole number from 1"),
        (["bench", "all_reduce", "-f", "1"], "expected a whole number from 2"),
        (["bench", "all_reduce", "--dtype", "complex64"], "invalid choice: 'complex64'"),
        (["bench", "all_reduce", "--op", "mean"], "invalid choice: 'mean'"),
        (["bench", "all_gather", "--op", "sum"], "unrecognized arguments: --op sum"),
        (["bench", "all_gather", "--wire", "f16"], "unrecognized arguments: --wire f16"),
        (["bench", "all_reduce", "--root", "0"], "unrecognized arguments: --root 0"),
        (["bench", "broadcast", "--root", "-1"], "argument --root: "),
        (["bench", "barrier", "-c", "1"], "unrecognized arguments: -c 1"),
        (["bench", "all", "--sizes", "1K,X"], "argument --sizes: 'X' is no size"),
        (["bench", "all", "-c", "0"], "expected a whole number from 1"),
        (["bench", "copy", "--size", "8X"], "argument --size: '8X' is no size"),
        (["bench", "copy", "--copies", "upload,steps"], "there is no copy 'steps'; there are upload, download, "),
        (["bench", "copy", "-n", "0"], "argument -n/--iters: '0': expected a whole number from 1"),
        (["bench", "host", "--size", "0"], "argument --size: '0' is no size"),
        (["bench", "step", "--modes", "eager,slow"], "there is no mode 'slow'; there are eager, fresh, captured"),
        (["bench", "step", "--preset", "9b"], "invalid choice: '9b'"),
        (["bench", "step", "--kv-heads", "0"], "argument --kv-heads: '0': expected a whole number from 1"),
        (["bench", "shuffle"], "invalid choice: 'shuffle'"),
        (["bench", "matmul", "--sizes", "1,2"], "argument --sizes: '1,2' is no size"),
        (["bench", "matmul", "--dtypes", "int8"], "matmul does not take 'int8'"),
    ],
)
def test_wrong_arguments_end_with_status_2(command: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("usage: vkpar")
    assert said in captured.err
    assert captured.out == ""
    assert cli.main([*command, "--json"]) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert said in found.pop("message")
    assert found == {"ok": False, "type": "InvalidUsageError"}
    assert captured.err == ""


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("", "--bogus"),
        ("devices", "more"),
        ("tune", "--foo 3"),
        ("bench", "-x"),
        ("bench all", "-e 256K"),
        ("bench model", "--bogus"),
        ("bench all_reduce -e 1K", "more words"),
    ],
)
def test_unknown_arguments_show_the_usage_of_their_command(
    command: str, unknown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command.split(), *unknown.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: vkpar {command.partition(' -')[0]}".rstrip() + " [-h]")
    assert said.endswith(f"vkpar: error: unrecognized arguments: {unknown}\n")


@pytest.mark.parametrize("command", [[], ["bench"]])
def test_without_a_command_the_help_is_shown(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("usage: vkpar")
    assert captured.out == ""
    assert cli.main([*command, "--json"]) == 2
    captured = capsys.readouterr()
    assert "needs a command" in json.loads(captured.out)["message"]
    assert captured.err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_knows_commands_and_their_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("doctor", "all_reduce", "devices", "quick"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"vkpar {vkpar.__version__}\n"
    assert cli.main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": vkpar.__version__}


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UnsupportedError("no Vulkan driver found"), 2, "vkpar: error: no Vulkan driver found\n"),
        (ValidationError(["one"]), 2, "vkpar: error: the Vulkan validation layer reported:\none\n"),
        (MemoryError(), 2, "vkpar: error: MemoryError\n"),
        (KeyboardInterrupt(), 130, "vkpar: interrupted\n"),
    ],
)
def test_errors_are_one_line_and_a_status(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> list[DeviceInfo]:
        raise error

    monkeypatch.setattr(vkpar, "enumerate_devices", fail)
    assert cli.main(["devices"]) == status
    assert capsys.readouterr() == ("", said)
    assert cli.main(["devices", "--json"]) == status
    shown = capsys.readouterr()
    if status == 2:
        message = said.removeprefix("vkpar: error: ").rstrip()
        assert json.loads(shown.out) == {"ok": False, "type": type(error).__name__, "message": message}
        assert shown.err == ""
    else:
        assert shown == ("", said)


def test_a_closed_pipe_is_no_error() -> None:
    done = run_child(
        """
        import os, sys
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        from vkpar.cli import main as cli
        sys.exit(cli.main(sys.argv[1:]))
        """,
        "env",
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = run_child("import sys; sys.stdout = open('/dev/full', 'w'); from vkpar.cli.main import main; main(['env'])")
    assert done.returncode != 0  # a full disk is one


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("columns", [80, 120])
def test_devices_in_a_table(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(["devices"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.split())
    for part in (
        "[bold]GPU[/]",
        "discrete",
        "140.0 GiB",
        "136.0 GiB free",
        "0000:65:00.0",
        "abcdef00",
        "16 GCT",
        "2 T",
        "names for --devices: 0, fancy; 1, plain; several: 0&1, 0*2, all, gpu, cpu.",
    ):
        assert part in words
    if columns == 120:
        assert "NVIDIA, NVIDIA" in words
        assert "580.82.07" in words


def test_devices_in_detail_say_which_cards_are_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = [fake_info(number, driver_id=next(iter(peer.VENDORS)), device_uuid=f"{number:032x}") for number in range(3)]

    def reach(ranks: list[DeviceInfo]) -> tuple[object, str]:
        near = max(info.index for info in ranks) < 2
        return (object(), "CUDA") if near else (None, "rank 0 does not reach rank 1's memory")

    monkeypatch.setattr(vkpar, "enumerate_devices", lambda: cards)
    monkeypatch.setattr(peer, "reach", reach)
    assert cli.main(["devices", "--verbose", "--devices", "0"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "other cards 1: reached by CUDA 2: not reached: rank 0 does not reach rank 1's memory" in words


@pytest.mark.usefixtures("two_devices")
def test_devices_in_detail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["devices", "--verbose", "--devices", "0"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for part in (
        "0: Fancy [bold]GPU[/] 9000",
        "abcdef00-1111-2222-3333-444444444444",
        "0: 140.0 GiB device-local, budget 138.0 GiB, used 2.0 GiB",
        "1: 512.0 GiB host",
        "readback: type 0 of heap 0",
        "device: type 0 of heap 0",
        "1: 2 x transfer, no timestamps",
        "16x16x32 f16*f16->f32",
        *(f"{item.name} " for item in fields(Limits)),
    ):
        assert part in shown
    assert "Plain CPU" not in shown


@pytest.mark.usefixtures("two_devices")
def test_devices_as_json_and_by_selector(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [info["name"] for info in found] == ["Fancy [bold]GPU[/] 9000", "Plain CPU"]
    assert found[0]["limits"]["max_push_constants"] == 256
    assert found[0]["extensions"] == ["VK_KHR_a", "VK_KHR_b"]
    assert cli.main(["--json", "devices", "--devices", "cpu*3"]) == 0
    assert [info["index"] for info in json.loads(capsys.readouterr().out)["devices"]] == [1]
    assert cli.main(["devices", "--devices", "radeon"]) == 2
    assert "no device matches 'radeon'; there are: 0: Fancy" in capsys.readouterr().err


def test_env(monkeypatch: pytest.MonkeyPatch, settings_override: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> api.Api:
        raise UnsupportedError("no Vulkan loader found")

    monkeypatch.setattr(api, "load", missing)
    settings_override(link="bridged")
    assert cli.main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["vkpar"] == vkpar.__version__
    assert Path(found["pump"]).name.startswith("_pump.")
    assert found["vulkan_loader"] == "no Vulkan loader found"
    link = next(item for item in found["variables"] if item["variable"] == "VKPAR_LINK")
    assert (link["value"], link["default"]) == ("bridged", "auto")
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"VKPAR_LINK +bridged +auto +links between ranks", shown)


def test_env_says_why_there_is_no_pump(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    native.helper.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vkpar.vulkan.pump._pump", None)
        assert cli.main(["env", "--json"]) == 0
    assert "C helper cannot be loaded" in json.loads(capsys.readouterr().out)["pump"]


def test_arguments_reach_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(start: Any, *, as_json: bool) -> int:
        seen.append((*start.args, as_json))
        return int(start.func is sweep.start)

    monkeypatch.setattr(frame, "run", run)
    flags = ["-b", "8", "-e", "1M", "-f", "2", "-n", "3", "-w", "0", "-c", "0", "--devices", "x*2", "--wire", "f32"]
    flags += ["--algorithm", "ring", "--transport", "staged", "--dtype", "int32", "--op", "sum", "--json"]
    assert cli.main(["bench", "all_reduce", *flags]) == 1
    assert cli.main(["bench", "matmul", "--sizes", "1,2,3;4", "--dtypes", "bfloat16", "--transpose-b", "-n", "7"]) == 0
    first = sweep.Options("all_reduce", "x*2", 8, 1 << 20, 2, 3, 0, 0, "f32", "ring", "staged", "int32", "sum")
    second = matmul.Options(None, ((1, 2, 3), (4, 4, 4)), ("bfloat16",), True, 7, 2, 1)
    assert seen == [(first, True), (second, False)]
    assert cli.main(["bench", "reduce", "--root", "1", "--op", "max", "--wire", "q8", "--transport", "mapped"]) == 1
    assert cli.main(["bench", "send_recv", "--dtype", "int8"]) == 1
    assert cli.main(["bench", "all", "--sizes", "8,1K", "-c", "2", "--algorithm", "tree", "--devices", "x"]) == 0
    assert cli.main(["bench", "host", "--size", "1K", "-n", "9", "-w", "0", "--devices", "x", "--json"]) == 0
    assert cli.main(["bench", "copy", "--size", "1K", "--copies", "Upload,read rows", "-n", "9", "-c", "0"]) == 0
    sizes = ["--preset", "70b-slice", "--layers", "3", "--kv-heads", "4", "--head-dim", "64", "--repeat", "2"]
    assert cli.main(["bench", "step", *sizes, "--modes", "Fresh, eager", "--wire", "f32", "--transport", "mapped"]) == 0
    assert cli.main(["bench", "launch", "-n", "5", "--repeat", "1"]) == 0
    modes = ("fresh", "eager")
    assert seen[2:] == [
        (sweep.Options("reduce", root=1, op="max", wire="q8", transport="mapped"), False),
        (sweep.Options("send_recv", dtype="int8"), False),
        (selfcheck.Options("x", (8, 1024), "tree", "auto", 2), False),
        (host.Options("x", 1024, 9, 0), True),
        (copy.Options(None, 1024, ("upload", "read_rows"), 9, check=0), False),
        (
            step.Options(
                None, "70b-slice", 3, kv_heads=4, head_dim=64, modes=modes, repeat=2, wire="f32", transport="mapped"
            ),
            False,
        ),
        (launch.Options(iters=5, repeat=1), False),
    ]


def test_defaults_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(frame, "run", lambda start, *, as_json: seen.extend(start.args) or 0)
    for name in ("matmul", "all", "host", "copy", "launch", "step", *collectives.TABLE):
        cli.main(["bench", name])
    assert seen[:4] == [matmul.Options(), selfcheck.Options(), host.Options(), copy.Options()]
    assert seen[4:6] == [launch.Options(), step.Options()]
    assert seen[6:] == [sweep.Options(name) for name in collectives.TABLE]


def test_arguments_reach_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkpar.demo import main as demo

    seen: list[Any] = []
    monkeypatch.setattr(demo, "run", lambda *arguments: seen.append(arguments) or 1)
    assert cli.main(["demo", "--devices", "all*2", "--weights", "w", "--wire", "f32", "--json"]) == 1
    assert cli.main(["demo"]) == 1
    assert seen == [("all*2", "w", "f32", True), (None, None, "f16", False)]
