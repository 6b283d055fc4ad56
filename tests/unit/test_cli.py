"""The command line and its benchmarks as far as they need no Vulkan."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from children import check_child, run_child

import vkpar
from vkpar import cli, dtypes
from vkpar.bench import all_reduce, exact, matmul, table
from vkpar.demo.rig import LinkGroup, RankInfo
from vkpar.errors import InvalidUsageError, UnsupportedError, ValidationError
from vkpar.vulkan import api
from vkpar.vulkan.physical import DeviceInfo, Features, Heap, Limits, QueueFamily


def fake_info(index: int = 0, **changes: Any) -> DeviceInfo:
    """Return a GPU that no machine has."""
    shapes = tuple(f"16x16x{k} f16*f16->f32" for k in (8, 16, 32))
    flags: dict[str, Any] = {item.name: True for item in fields(Features)}
    members: dict[str, Any] = {
        "index": index,
        "name": "Fancy [bold]GPU[/] 9000",
        "vendor": "NVIDIA",
        "vendor_id": 0x10DE,
        "device_id": 0x2335,
        "type": "discrete",
        "driver_name": "NVIDIA",
        "driver_id": 4,
        "driver_info": "580.82.07",
        "driver_version": 1,
        "api_version": (1, 4, 312),
        "driver_uuid": "00000000-1111-2222-3333-444444444444",
        "device_uuid": f"abcdef0{index}-1111-2222-3333-444444444444",
        "pci_address": "0000:65:00.0",
        "heaps": (Heap(0, 140 << 30, True, 138 << 30, 2 << 30), Heap(1, 512 << 30, False, None, None)),
        "queue_families": (QueueFamily(0, 16, True, True, True, 64), QueueFamily(1, 2, False, True, False, 0)),
        "features": Features(
            **flags | {"cooperative_matrix": shapes, "subgroup_size": 32, "subgroup_operations": ("basic",)}
        ),
        "limits": Limits(1 << 32, 1 << 40, 16, (1, 2, 3), (4, 5, 6), 1024, 49152, 256, 4096, 1.0, 1 << 20),
        "extensions": frozenset({"VK_KHR_b", "VK_KHR_a"}),
        "memory_types": ((7, 0),),
        "handle": None,
    }
    return DeviceInfo(**(members | changes))


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [fake_info(0), fake_info(1, name="Plain CPU", vendor="Mesa", type="cpu", driver_info="", pci_address=None)]
    monkeypatch.setattr(vkpar, "enumerate_devices", lambda: infos)


# --- sizes, bandwidths, numbers ---


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("1.5M", 3 << 19), ("2G", 2 << 30), ("4KiB", 4096)],
)
def test_sizes_are_powers_of_1024(text: str, nbytes: int) -> None:
    assert table.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-8", "8X", "8 8", "0", "0.1", "1e3", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="is no size"):
        table.parse_size(text)


def test_steps_multiply_up_to_the_last_size() -> None:
    assert list(table.steps(8, 1000, 4)) == [8, 32, 128, 512]
    assert list(table.steps(8, 8, 2)) == [8]


def test_bandwidths_are_decimal_and_busbw_counts_a_ranks_traffic() -> None:
    assert table.algbw(10**9, 0.5) == 2.0
    assert table.algbw(10, 0.0) == 0.0
    assert [table.busbw(6.0, n) for n in (1, 2, 4)] == [0.0, 6.0, 9.0]


@pytest.mark.parametrize(
    ("value", "text"), [(1.234, "    1.23"), (12345.678, " 12345.7"), (123456.7, "  123457"), (1e9, "1000000000")]
)
def test_numbers_keep_their_columns_as_long_as_they_can(value: float, text: str) -> None:
    assert table.fixed(value, 8) == text


def test_sizes_round_down_to_whole_elements() -> None:
    options = all_reduce.Options(minbytes=6, maxbytes=60, stepfactor=3)
    assert options.sizes() == [4, 16, 52]


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [({}, 8 << 10, 8 << 20 << 2), ({"maxbytes": 16}, 16, 16), ({"minbytes": 64 << 20}, 64 << 20, 64 << 20)],
)
def test_one_bound_moves_the_other_ones_default(given: dict[str, int], first: int, last: int) -> None:
    sizes = all_reduce.Options(**given).sizes()
    assert sizes[0] == first
    assert last // 4 < sizes[-1] <= last


@pytest.mark.parametrize("given", [{"minbytes": 16, "maxbytes": 8}, {"stepfactor": 1}, {"minbytes": 0}])
def test_bounds_that_make_no_sizes_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(InvalidUsageError):
        all_reduce.Options(**given).sizes()


@pytest.mark.parametrize(
    ("text", "shapes"),
    [("2,3,4", ((2, 3, 4),)), ("64", ((64, 64, 64),)), ("2,3,4; 5 ,6,7", ((2, 3, 4), (5, 6, 7)))],
)
def test_shapes(text: str, shapes: tuple[tuple[int, int, int], ...]) -> None:
    assert matmul.parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "a", "1,2,0", "1,2,3;"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="is no size"):
        matmul.parse_shapes(text)


@pytest.mark.parametrize(
    ("gflops", "text"),
    [(0.01234, "0.012 GFLOP/s"), (12.3456, "12.35 GFLOP/s"), (999.9, "999.9 GFLOP/s"), (284123.0, "284.1 TFLOP/s")],
)
def test_rates(gflops: float, text: str) -> None:
    assert matmul.rate(gflops) == text


# --- exact data ---


@pytest.mark.parametrize("nranks", [1, 2, 8, 64])
@pytest.mark.parametrize("wire", ["f16", "bf16", "f32"])
def test_sums_fit_the_wire(wire: str, nranks: int) -> None:
    significand = {"f16": 11, "bf16": 8, "f32": 24}[wire]
    largest = exact.largest_term(dtypes.float32, wire, nranks)
    assert 1 <= largest <= 15
    assert largest * nranks <= 2**significand
    assert exact.largest_term(dtypes.bfloat16, "f32", nranks) * nranks <= 2**8


@pytest.mark.parametrize("depth", [1, 4096, 70_000, 1 << 20])
def test_products_sum_exactly(depth: int) -> None:
    assert exact.largest_factor(depth) ** 2 * depth <= 2**24


def test_floats_are_small_whole_numbers_and_integers_use_all_bits(rng: np.random.Generator) -> None:
    floats = exact.integers(rng, (10_000,), dtypes.float32, 15)
    assert floats.dtype == np.float32
    assert set(floats.tolist()) == set(range(-15, 16))
    wide = exact.integers(rng, (1000,), dtypes.uint32, 15)
    assert wide.dtype == np.uint32
    assert wide.max() > 2**31


class FakeArray:
    """What the checks need of an array."""

    def __init__(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> None:
        self._host, self.dtype = host, dtype

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._host


def test_wrong_elements_are_counted_by_value() -> None:
    expected = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    result = np.array([-0.0, 1.0, np.nan, 4.0], np.float32)
    assert exact.count_wrong(FakeArray(result, dtypes.float32), expected) == 2  # type: ignore[arg-type]
    bits = exact.rounded(expected, dtypes.bfloat16)
    assert exact.count_wrong(FakeArray(bits, dtypes.bfloat16), bits) == 0  # type: ignore[arg-type]
    assert exact.count_wrong(FakeArray(bits ^ 0x8000, dtypes.bfloat16), bits) == 3  # type: ignore[arg-type]


# --- reports ---


def report(*rows: all_reduce.Row) -> all_reduce.Report:
    rank = RankInfo(0, "Fancy GPU", "NVIDIA", "NVIDIA 580", "discrete", 1 << 30, "staged")
    links = [LinkGroup("native", [(0, 1), (1, 0)], "same device and driver")]
    versions = {"vkpar": "0", "python": "3", "numpy": "2", "pump": "c"}
    return all_reduce.Report(all_reduce.Options(), "ring", versions, [rank, rank], links, "Two ranks.", list(rows))


def row(wrong: int | None, time_us: float = 12.5) -> all_reduce.Row:
    half = all_reduce.Measurement(time_us, 3.0, 4.5, wrong)
    return all_reduce.Row(8192, 2048, "float32", "sum", "ring", half, half, 17.25)


@pytest.mark.parametrize(
    ("wrong", "said", "ok"), [(0, "0 OK", True), (3, "6 FAILED", False), (None, "N/A (not checked, see -c)", True)]
)
def test_an_all_reduce_report_says_what_was_wrong(wrong: int | None, said: str, ok: bool) -> None:
    made = report(row(wrong))
    assert f"# Wrong elements    : {said}" in made.footer()
    plain = json.loads(json.dumps(made.as_dict()))
    assert plain["ok"] is ok
    assert plain["wrong"] == (None if wrong is None else 2 * wrong)
    assert plain["average_busbw_gbps"] == 4.5
    assert plain["rows"][0]["out_of_place"] == {"time_us": 12.5, "algbw_gbps": 3.0, "busbw_gbps": 4.5, "wrong": wrong}


def test_an_all_reduce_row_stands_under_its_header() -> None:
    made = report(row(0), row(None, 1_019_453.9))
    header = made.header()
    assert max(map(len, header[-3:])) <= 105
    assert "# Links: 2 native (same device and driver)" in header
    assert [len(line.text()) for line in made.rows] == [len(header[-2])] * 2
    assert made.rows[0].text().split() == [
        "8192",
        "2048",
        "float32",
        "sum",
        "12.50",
        "3.00",
        "4.50",
        "0",
        "12.50",
        "3.00",
        "4.50",
        "0",
        "17.25",
    ]
    assert made.rows[1].text().split()[4:8] == ["1019454", "3.00", "4.50", "N/A"]
    titles, numbers = (
        [match.end() for match in re.finditer(r"\S+", line)] for line in (header[-2][1:], made.rows[0].text()[1:])
    )
    assert titles == numbers


def test_a_matmul_row_fits_80_columns_and_compares_with_numpy() -> None:
    made = matmul.Row(0, 4096, 4096, 4096, "float32", 2500.0, 54975.6, 0, 5000.0)
    assert made.against_numpy == 2.0
    assert made.text().split() == ["0", "4096", "4096", "4096", "float32", "2500.00", "54.98", "TFLOP/s", "0", "2x"]
    assert len(made.text()) <= 80
    whole = matmul.Report(matmul.Options(), {"vkpar": "0"}, [], [made])
    plain = json.loads(json.dumps(whole.as_dict()))
    assert (plain["ok"], plain["wrong"], plain["rows"][0]["against_numpy"]) == (True, 0, 2.0)
    assert len(whole.header()[-2]) == len(made.text())


def test_lines_are_written_as_they_come() -> None:
    stream = io.StringIO()
    table.Lines(stream, quiet=False)("a ", "b")
    table.Lines(stream, quiet=True)("c")
    assert stream.getvalue() == "a\nb\n"


# --- the command line ---


@pytest.mark.parametrize("command", [[], ["devices"], ["demo"], ["env"], ["bench", "all_reduce"], ["bench", "matmul"]])
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
        from vkpar import cli
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
        (["bench", "all_reduce", "--dtype", "float64"], "invalid choice: 'float64'"),
        (["bench", "matmul", "--sizes", "1,2"], "argument --sizes: '1,2' is no size"),
        (["bench", "matmul", "--dtypes", "int8"], "matmul does not take 'int8'"),
    ],
)
def test_wrong_arguments_end_with_status_2(command: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(command)
    assert leaving.value.code == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", [[], ["bench"]])
def test_without_a_command_the_help_is_shown(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("usage: vkpar")
    assert captured.out == ""


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
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_errors_are_one_line_and_a_status(
    error: BaseException,
    status: int,
    said: str,
    as_json: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> list[DeviceInfo]:
        raise error

    monkeypatch.setattr(vkpar, "enumerate_devices", fail)
    assert cli.main(["devices", *as_json]) == status
    assert capsys.readouterr() == ("", said)


def test_a_closed_pipe_is_no_error() -> None:
    done = run_child(
        """
        import os, sys
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        from vkpar import cli
        sys.exit(cli.main(sys.argv[1:]))
        """,
        "env",
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = run_child("import sys; sys.stdout = open('/dev/full', 'w'); from vkpar import cli; cli.main(['env'])")
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
    ):
        assert part in words
    if columns == 120:
        assert "NVIDIA, NVIDIA" in words
        assert "580.82.07" in words


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
    assert found["pump"] in ("c", "python")
    assert found["vulkan_loader"] == "no Vulkan loader found"
    link = next(item for item in found["variables"] if item["variable"] == "VKPAR_LINK")
    assert (link["value"], link["default"]) == ("bridged", "auto")
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"VKPAR_LINK +bridged +auto +links between ranks", shown)


def test_env_says_why_there_is_no_pump(settings_override: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from vkpar.vulkan import pump

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pump, "_c_available", lambda: False)
        settings_override(pump="c")
        assert cli.main(["env", "--json"]) == 0
    assert "was not built" in json.loads(capsys.readouterr().out)["pump"]


def test_arguments_reach_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(status: int) -> Any:
        return lambda options, *, as_json: seen.append((options, as_json)) or status

    monkeypatch.setattr(all_reduce, "run", record(1))
    monkeypatch.setattr(matmul, "run", record(0))
    flags = ["-b", "8", "-e", "1M", "-f", "2", "-n", "3", "-w", "0", "-c", "0", "--devices", "x*2", "--wire", "f32"]
    flags += ["--algorithm", "ring", "--transport", "staged", "--dtype", "int32", "--op", "sum", "--json"]
    assert cli.main(["bench", "all_reduce", *flags]) == 1
    assert cli.main(["bench", "matmul", "--sizes", "1,2,3;4", "--dtypes", "bfloat16", "--transpose-b", "-n", "7"]) == 0
    first = all_reduce.Options("x*2", 8, 1 << 20, 2, 3, 0, 0, "f32", "ring", "staged", "int32", "sum")
    second = matmul.Options(None, ((1, 2, 3), (4, 4, 4)), ("bfloat16",), True, 7, 2, 1)
    assert seen == [(first, True), (second, False)]


def test_defaults_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    for module in (all_reduce, matmul):
        monkeypatch.setattr(module, "run", lambda options, *, as_json: seen.append(options) or 0)
    cli.main(["bench", "all_reduce"])
    cli.main(["bench", "matmul"])
    assert seen == [all_reduce.Options(), matmul.Options()]


def test_arguments_reach_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkpar.demo import main as demo

    seen: list[Any] = []
    monkeypatch.setattr(demo, "run", lambda *arguments: seen.append(arguments) or 1)
    assert cli.main(["demo", "--devices", "all*2", "--weights", "w", "--wire", "f32", "--json"]) == 1
    assert cli.main(["demo"]) == 1
    assert seen == [("all*2", "w", "f32", True), (None, None, "f16", False)]
