"""The benchmarks' sizes, bandwidths and reports; their commands are in ``test_cli``."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import dtypes
from vkpar.bench import copy, decode, host, launch, matmul, model, model_rows, selfcheck, step, sweep
from vkpar.bench.frame import frame, table
from vkpar.bench.measure import collectives
from vkpar.errors import InvalidUsageError
from vkpar.topology import LinkGroup, RankInfo

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


def test_bandwidths_are_decimal() -> None:
    assert table.algbw(10**9, 0.5) == 2.0
    assert table.algbw(10, 0.0) == 0.0


@pytest.mark.parametrize(
    ("names", "factors"),
    [
        (("all_reduce",), (0.0, 1.0, 1.5)),
        (("reduce_scatter", "all_gather", "all_to_all"), (0.0, 0.5, 0.75)),
        (("reduce", "broadcast", "send_recv"), (1.0, 1.0, 1.0)),
    ],
)
def test_bus_factors_count_a_ranks_traffic(names: tuple[str, ...], factors: tuple[float, ...]) -> None:
    for name in names:
        assert tuple(collectives.TABLE[name].factor(n) for n in (1, 2, 4)) == factors


def test_every_collective_is_there() -> None:
    assert all(callable(getattr(vkpar.Communicator, name)) for name in collectives.TABLE)
    assert [name for name, made in collectives.TABLE.items() if made.reduces] == [
        "all_reduce",
        "reduce_scatter",
        "reduce",
    ]
    assert [name for name, made in collectives.TABLE.items() if not made.moves] == ["barrier"]


@pytest.mark.parametrize(
    ("value", "text"), [(1.234, "    1.23"), (12345.678, " 12345.7"), (123456.7, "  123457"), (1e9, "1000000000")]
)
def test_numbers_keep_their_columns_as_long_as_they_can(value: float, text: str) -> None:
    assert table.fixed(value, 8) == text


def test_sizes_round_down_to_whole_elements() -> None:
    options = sweep.Options(minbytes=6, maxbytes=60, stepfactor=3)
    assert options.sizes() == [4, 16, 52]
    assert sweep.Options("barrier", minbytes=6).sizes() == [0]


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="unknown collective 'shuffle'; there are all_reduce, "):
        sweep.Options("shuffle").sizes()


@pytest.mark.parametrize("nranks", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 10])
def test_parts_are_those_of_array_split(nranks: int, count: int) -> None:
    setting = collectives.Setting([None] * nranks, dtypes.float32, count)  # type: ignore[list-item]
    parts = np.array_split(np.arange(count), nranks)
    assert setting.parts == [len(part) for part in parts]
    assert [np.arange(count)[span].tolist() for span in setting.spans] == [part.tolist() for part in parts]


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [({}, 8 << 10, 8 << 20 << 2), ({"maxbytes": 16}, 16, 16), ({"minbytes": 64 << 20}, 64 << 20, 64 << 20)],
)
def test_one_bound_moves_the_other_ones_default(given: dict[str, int], first: int, last: int) -> None:
    sizes = sweep.Options(**given).sizes()
    assert sizes[0] == first
    assert last // 4 < sizes[-1] <= last


@pytest.mark.parametrize("given", [{"minbytes": 16, "maxbytes": 8}, {"stepfactor": 1}, {"minbytes": 0}])
def test_bounds_that_make_no_sizes_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(InvalidUsageError):
        sweep.Options(**given).sizes()


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


# --- reports ---


def fake_rig() -> frame.RigInfo:
    rank = RankInfo(0, "Fancy GPU", "NVIDIA", "NVIDIA 580", "discrete", 1 << 30, "staged")
    links = [LinkGroup("native", [(0, 1), (1, 0)], "same device and driver")]
    versions = {"vkpar": "0", "python": "3", "numpy": "2"}
    return frame.RigInfo(versions, [rank, rank], links, "Two ranks.")


def report(*rows: sweep.Row, **options: Any) -> sweep.Report:
    return sweep.Report(sweep.Options(**options), "ring", "exact: all", fake_rig(), list(rows))


def row(wrong: int | None, time_us: float = 12.5) -> sweep.Row:
    half = sweep.Measurement(time_us, 3.0, 4.5, wrong)
    return sweep.Row(8192, 2048, "float32", "sum", "ring", half, half, 17.25)


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
    assert (plain["benchmark"], plain["nranks"], plain["explanation"]) == ("all_reduce", 2, "Two ranks.")
    assert (plain["ranks"][0]["name"], plain["links"][0]["kind"]) == ("Fancy GPU", "native")
    assert (plain["versions"]["vkpar"], plain["check"], "rig" in plain) == ("0", "exact: all", False)


def test_an_all_reduce_row_stands_under_its_header() -> None:
    made = report(row(0), row(None, 1_019_453.9))
    header = made.header()
    assert max(map(len, header[-3:])) <= 105
    assert "# Links: 2 native (same device and driver)" in header
    assert "# check exact: all" in header
    assert "# wire f16, algorithm ring, transport auto" in header
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


def test_a_row_without_a_form_in_place_says_so() -> None:
    half = sweep.Measurement(12.5, 3.0, 4.5, 0)
    made = report(
        sweep.Row(8192, 2048, "int8", None, None, half, None, 17.25), collective="broadcast", dtype="int8", root=1
    )
    assert made.rows[0].text().split()[2:] == ["int8", "none", "12.50", "3.00", "4.50", "0", *["N/A"] * 4, "17.25"]
    assert len(made.rows[0].text()) == len(made.header()[-2])
    assert "# root 1, transport auto" in made.header()
    assert made.wrong() == [0]
    assert made.as_dict()["rows"][0]["in_place"] is None
    assert made.as_dict()["average_busbw_gbps"] == 4.5


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"dtype": "int32"}, "# wire f16 (int32 travels exactly), algorithm ring, transport auto"),
        ({"op": "max", "wire": "q8"}, "# wire q8 (max travels exactly), algorithm ring, transport auto"),
        ({"collective": "reduce", "root": 1}, "# root 1, wire f16, algorithm ring, transport auto"),
        ({"collective": "all_gather"}, "# transport auto"),
    ],
)
def test_a_header_names_what_plays_a_part(given: dict[str, Any], line: str) -> None:
    assert line in report(**given).header()


def test_a_barrier_has_times_alone() -> None:
    half = sweep.Measurement(12.5, 0.0, 0.0, None)
    made = report(sweep.Row(0, 0, None, None, None, half, None, 17.25), collective="barrier")
    assert made.rows[0].text().split()[:5] == ["0", "0", "none", "none", "12.50"]
    assert not [line for line in made.footer() if "busbw" in line or "Wrong" in line]
    plain = json.loads(json.dumps(made.as_dict()))
    assert (plain["wrong"], plain["ok"], plain["average_busbw_gbps"]) == (None, True, None)


@pytest.mark.parametrize(("wrong", "said", "ok"), [(0, "0 OK", True), (3, "3 FAILED", False)])
def test_a_self_check_report(wrong: int, said: str, ok: bool) -> None:
    cells = {"q8": selfcheck.Cell(wrong, 4, 0.25), "int32": selfcheck.Cell(0, 4, 0.0)}
    rows = [selfcheck.Row("all_reduce", "sum", cells, 8, 0.5), selfcheck.Row("barrier", None, {}, 1, 0.0)]
    made = selfcheck.Report(selfcheck.Options(), "auto", fake_rig(), rows)
    marks = ["-", "-", f"~{wrong}", *"-" * 6, "0", "-"]
    assert rows[0].text().split() == ["all_reduce", "sum", *marks, "8", "0.50"]
    assert {len(row.text()) for row in rows} == {len(made.header()[-2])} == {len(made.header()[-1])}
    assert f"# Wrong elements : {said} (9 calls)" in made.footer()
    plain = json.loads(json.dumps(made.as_dict()))
    assert (plain["benchmark"], plain["wrong"], plain["ok"], plain["nranks"]) == ("all", wrong, ok, 2)
    assert plain["rows"][0]["cells"]["q8"] == {"wrong": wrong, "calls": 4, "bound": 0.25}


def test_self_check_sizes() -> None:
    assert selfcheck.parse_sizes("24,1K, 1M") == (24, 1024, 1 << 20)


def test_a_host_report_compares() -> None:
    quiet = host.Row("quiet", 10.0, 20.0, 30.0, 32.0, 4.0)
    busy = host.Row("busy", 20.0, 5000.0, 6000.0, 6400.0, 6.0)
    ratio = busy.over(quiet)
    assert ratio.text().split() == ["ratio", "2x", "250x", "200x", "200x", "1.5x"]
    assert busy.text().split() == ["busy", "20.00", "5000.00", "6000.00", "6400.00", "6.00"]
    made = host.Report(host.Options(), 5000.0, fake_rig(), [quiet, busy, ratio])
    assert len(quiet.text()) == len(made.header()[-1]) == len(made.header()[-2])
    assert any("two calls of the C helper" in line for line in made.footer())
    plain = json.loads(json.dumps(made.as_dict()))
    assert plain["busy_us"]["wait"] == 5000.0
    assert plain["ratio"] == {"enqueue": 2.0, "wait": 250.0, "whole": 200.0, "mean": 200.0, "bridge": 1.5}
    assert (plain["benchmark"], plain["wrong"], plain["ok"]) == ("host", None, True)
    native = host.Row("quiet", 10.0, 20.0, 30.0, 32.0, None)
    assert native.text().split()[-1] == busy.over(native).text().split()[-1] == "N/A"


def test_the_median_class_is_of_what_was_added() -> None:
    assert host.median_class({}, {}) is None
    assert host.median_class({1024: 5}, {1024: 5}) is None
    assert host.median_class({}, {1024: 1}) == (1024 + 1280) / 2
    # Added: two of 1024 to 1279 ns, one of 2048 to 2559, and the 9 of before do not count.
    assert host.median_class({1024: 1, 2048: 9}, {1024: 3, 2048: 10}) == (1024 + 1280) / 2
    assert host.median_class({1024: 1, 2048: 9}, {1024: 1, 2048: 10, 4096: 2}) == (4096 + 5120) / 2


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


# --- copies ---


def test_a_copy_is_held_against_a_raw_copy_and_a_memcpy() -> None:
    row = copy.Row(0, "read_rows", 1 << 28, 30.0, 20.0, 40.0, raw_ms=6.0, memcpy_ms=10.0, factor=2, wrong=0)
    assert (row.bound_ms, row.ratio) == (40.0, 0.75)
    assert row.gbps == pytest.approx(2**28 / 30e-3 / 1e9)
    assert row.text() == ("   0     read rows   256 30.00 20.00 40.00  8.95  6.00  10.00 40.00  0.75     0")
    assert row.as_dict()["bound_ms"] == 40.0


def test_copies_are_timed_in_turns() -> None:
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}

    def seconds(call: Any) -> float:
        call()
        return float(len(seen))

    times = copy.in_turns(calls, seconds, 2, 1)
    assert seen == [*"abc"] * 3
    assert times == {"a": [4e3, 7e3], "b": [5e3, 8e3], "c": [6e3, 9e3]}


# --- terminals ---


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal(width: int) -> None:
    whole = report(row(0), row(None, 1_019_453.9))
    cells = {name: selfcheck.Cell(0, 4, 0.25) for name in ("q8", "f32", "float16", "bfloat16", "int32", "uint32")}
    checked = selfcheck.Row("reduce_scatter", "prod", cells, 8, 12.5)
    for made in (whole, selfcheck.Report(selfcheck.Options(), "auto", fake_rig(), [checked])):
        lines = [*made.header(width)[-3:], *(line.text(width) for line in made.rows)]
        assert max(map(len, lines)) <= width
        assert len({len(line) for line in lines[1:]}) == 1
    assert "# type float32, redop sum, wire f16, algorithm ring, transport auto" in whole.header(width)
    assert whole.rows[0].text(width).split() == ["8192", *["12.50", "3.00", "4.50", "0"] * 2, "17.25"]


def test_integers_of_one_width_share_a_column() -> None:
    cells = {"f32": selfcheck.Cell(0, 4, 0.0), "int32": selfcheck.Cell(2, 4, 0.0), "uint32": selfcheck.Cell(3, 4, 0.0)}
    made = selfcheck.Row("all_gather", None, cells, 8, 0.5)
    assert made.text(80).split() == ["all_gather", "-", *"---0", *"---", *"--5-", "0.50"]
    assert made.text().split() == ["all_gather", "-", *"---0", *"---", *"--5-", "8", "0.50"]


def test_files_and_pipes_get_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    lines = table.Lines(stream, quiet=False)
    lines(f"# {'word ' * 40}")
    assert lines.width is None
    assert stream.getvalue() == f"# {'word ' * 40}".rstrip() + "\n"


def test_wrapped_comments_stay_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    table.Lines(stream, quiet=False)(f"# {'word ' * 40}", "  1 row  " + "9" * 90, "#")
    *comments, number, last = stream.getvalue().splitlines()
    assert len(comments) == 3
    assert all(line.startswith("#") and len(line) <= 80 and line == line.rstrip() for line in comments)
    assert " ".join(comments).split().count("word") == 40
    assert (number, last) == ("  1 row  " + "9" * 90, "#")


# --- bench launch, step and model ---


@pytest.mark.parametrize("width", [None, 160, 115, 114, 80])
def test_rows_of_models_stand_under_their_header(width: int | None) -> None:
    named = ("auto: tensor", "1:1:1:1", "f16", "captured", "tg128 @ d16384")
    row = model.Row(*named, 12345.678, 12345.0, 23456.0, 1.5, 0)
    header = "#" + model_rows.line_of([title for title, _, _ in model_rows.COLUMNS], width)
    text = row.text(width)
    assert len(header) == len(text) <= (width or 115)
    narrow = width is not None and width < 115
    assert ("least" in header, "most" in header) == (not narrow, not narrow)
    numbers = ["12345.68", *([] if narrow else ["12345.00", "23456.00"]), "1500.0", "0"]
    assert text.split()[-len(numbers) :] == numbers
    for title, value in (("tokens/s", "12345.68"), ("first(ms)", "1500.0"), ("#wrong", "0")):
        assert header.index(title) + len(title) == text.index(f" {value}") + 1 + len(value)
    for title, value in zip(("split", "ratios", "wire", "step", "test"), named, strict=True):
        assert header.index(title) == text.index(value)


# --- bench launch and step ---


def test_launch_rows_say_what_a_launch_costs() -> None:
    plain = launch.Row(0, "add", "out=", 200, 2.5, 3.25, None, 0)
    chain = launch.Row(0, "dependent adds", launch.CAPTURED, 1000, 0.008, 2.5, 8.0, None)
    assert plain.text().split() == ["0", "add", "out=", "200", "2.50", "3.25", "-", "0"]
    assert chain.text().split() == ["0", "dependent", "adds", "captured", "1000", "0.01", "2.50", "8.00", "N/A"]
    header = launch.Report(launch.Options(), "vkpar", table.versions(), []).header()[-2:]
    assert {len(line.rstrip()) for line in (plain.text(), header[0])} == {80}
    assert len(header[1]) == 72  # above the last of the times


@pytest.mark.parametrize(("name", "layers", "gigabytes"), [("8b", 32, 13.96), ("70b-slice", 20, 34.23)])
def test_presets_have_the_weights_of_their_models(name: str, layers: int, gigabytes: float) -> None:
    shape = decode.PRESETS[name]
    assert shape.layers == layers
    assert sum(shape.weights_nbytes(1)) / 1e9 == pytest.approx(gigabytes, abs=0.005)
    one = shape.parts(1)[0].matrices()
    assert one[0][0] == ((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.hidden)
    assert one[0][1] == (shape.hidden, shape.heads * shape.head_dim)
    assert one[1] == [(2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)]
    for nranks in (2, 3, 8):
        assert sum(shape.weights_nbytes(nranks)) == shape.weights_nbytes(1)[0]
        assert all(width % 64 == 0 for part in shape.parts(nranks) for width in part.forward)


def test_a_step_is_timed_in_turns_with_one_without_sums() -> None:
    rig = frame.RigInfo(table.versions(), [RankInfo(n, "a", "b", "c", "cpu", 0, "staged") for n in (0, 1)], [], "Two.")
    options = step.Options(iters=4, warmup_iters=2, repeat=3, check=2)
    report = step.Report(options, "vkpar", decode.PRESETS["tiny"], [10**9, 3 * 10**9], rig)
    whole, bare = (lambda: "whole"), (lambda: "bare")
    order: list[tuple[object, int]] = []
    seconds = {"whole": iter([9.0, 0.020, 0.028, 0.024]), "bare": iter([9.0, 0.012, 0.012, 0.020])}

    def timer(call: Any, calls: int) -> tuple[float, float]:
        order.append((call(), calls))
        return next(seconds[call()]), 1e-6 * len(order)

    row = step.measure(report, step.Mode("fresh", whole, bare, lambda: 5), timer)
    assert order == [("whole", 2), ("bare", 2), *[("whole", 4), ("bare", 4)] * 3]
    assert (row.time_ms, row.least_ms, row.most_ms) == pytest.approx((6, 5, 7))
    assert (row.sums_ms, row.tbps, row.host_us) == pytest.approx((2, 0.5, 5))
    assert row.wrong == 10
    assert row.text().split() == ["eager", "fresh", "6.000", "5.000", "7.000", "0.5", "2.000", "5.00", "10"]
    report.rows.append(row)
    found = report.as_dict()
    assert (found["wrong"], found["ok"], found["products"], found["sums"]) == (10, False, 8, 4)
    assert {len(line.rstrip()) for line in (row.text(), report.header()[-2])} == {80}
    assert (
        step.measure(report, step.Mode("eager", whole, None, lambda: 0), lambda call, calls: (1.0, 0.0)).sums_ms is None
    )


def test_wrong_bits_are_counted_whatever_they_stand_for() -> None:
    expected = np.array([0.0, 1.0, 2.0, np.nan], np.float32)
    found = np.array([-0.0, 1.0, np.nextafter(np.float32(2), np.float32(3)), np.nan], np.float32)
    assert step.count_wrong([expected[:3], found[:3]], expected[:3]) == 2
    assert step.count_wrong([found], expected) == 3  # no correct result is NaN
