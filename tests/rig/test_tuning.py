"""Measuring a rig, keeping what was found, and taking it at the next opening."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import Rigs, require
from helpers.comm.costing import links, processor
from helpers.ops.reducing import fresh_devices
from helpers.process.children import check_child, child_environment, run_child
from helpers.vulkan.handles import held

import vkpar
from vkpar import InvalidUsageError, env
from vkpar.cli import main as cli
from vkpar.comm import selftest, wires
from vkpar.comm.plan import choose
from vkpar.comm.plan.choose import BUILT_IN, MEASURED, Choice, Trial, Tuning
from vkpar.comm.plan.shares import Costs
from vkpar.comm.tune import measure, opening, store
from vkpar.parallel.rates import cache as rates
from vkpar.vulkan.machine import instance

pytestmark = pytest.mark.rig
EVEN = links((1.0, 1.0)) + links((1.0, 1.0), "f32")
Open = Callable[..., vkpar.Communicator]


def named(comm: vkpar.Communicator) -> str:
    """Return the selector that opens such a rig."""
    return "&".join(str(device.info.index) for device in comm.devices)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings_override: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tunings in a directory of the test's own; no communicator measures by itself, with or without validation."""
    monkeypatch.setattr(instance, "validating", lambda: True)
    settings_override(tuning="auto", cache_dir=str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("letters", ["LL", "LLS"])
def test_a_rig_is_measured_once(rig: Open, letters: str, cache: Path) -> None:
    comm = rig(letters)
    before = comm.tuning
    found = comm.measure(0.2)
    assert comm.tuning == before  # its own plan is fixed
    assert found.origin == MEASURED
    assert [each.wire for each in found.costs] == ["f16"] * len(letters) + ["f32"] * len(letters)
    for wire in {trial.wire for trial in found.trials}:
        largest = max(trial.wire_nbytes for trial in found.trials if trial.wire == wire)
        assert [choice.up_to for choice in found.choices if choice.wire == wire and choice.up_to is not None][
            -1
        ] == 2 * largest
    hopeless = set()  # wires on which it took too long at a smaller size, as it may on a busy machine
    for wire, nbytes in sorted({(trial.wire, trial.wire_nbytes) for trial in found.trials}):
        here = [trial for trial in found.trials if (trial.wire, trial.wire_nbytes) == (wire, nbytes)]
        (chosen,) = [trial for trial in here if trial.chosen]
        naive = [trial.seconds for trial in here if trial.algorithm == "naive"]
        assert wire in hopeless if not naive else chosen.seconds <= min(naive)
        if naive and max(naive) > measure._HOPELESS * min(trial.seconds for trial in here):
            hopeless.add(wire)
    assert [file.name for file in cache.iterdir()] == [store.path(comm._engine.rig).name]
    comm.close()
    assert rig(letters).tuning == found


def test_what_was_measured_can_be_left_aside(rig: Open, settings_override: Callable[..., None]) -> None:
    rig("LL").measure(0.1)
    assert rig("LL").tuning.origin == MEASURED
    assert rig("LL", transport="mapped").tuning.origin == BUILT_IN  # another rig
    assert rig("LL", deterministic=True).tuning == Tuning()
    settings_override(tuning="off")
    assert rig("LL").tuning == Tuning()


@pytest.mark.parametrize(
    "change",
    [
        {"costs": []},
        {"costs": [asdict(each) for each in EVEN[:3]]},
        {"costs": [asdict(each) for each in (*EVEN[2:], *EVEN[:2])]},
        {"costs": [{**asdict(each), "reduce": 0.0} for each in EVEN]},
        {"costs": [{**asdict(each), "exchange": float("inf")} for each in EVEN]},
        {"costs": [{**asdict(each), "exchange": "1"} for each in EVEN]},
        {"costs": [{**asdict(each), "exchange": 1e-300} for each in EVEN]},
        {"costs": [{**asdict(each), "exchange": 1e3} for each in EVEN]},
        {"spin_us": 10**30},
        {"costs": [{**asdict(each), "wire": "q8"} for each in EVEN]},
        {"costs": [{"wire": each.wire, "exchange": 1.0} for each in EVEN]},
        {"costs": [{**asdict(each), "publish": 1e-9} for each in EVEN]},
        {"speeds": [1.0, 1.0], "costs": None},
        {"choices": [{"up_to": None, "algorithm": "ring", "wire": "bf16"}]},
        {"choices": [{"up_to": None, "algorithm": "butterfly", "segment_nbytes": 0}]},
        {"choices": [{"up_to": 5, "algorithm": "ring"}, {"up_to": 5, "algorithm": "tree"}]},
        {"choices": [{"up_to": 5.5, "algorithm": "ring"}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "segment_nbytes": 700000.5}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "copies": "no"}]},
        {"spin_us": -5},
        {"trials": [{"wire_nbytes": 9, "algorithm": "ring", "segment_nbytes": 0, "seconds": 0.5}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "segment_nbytes": -1}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "segment_nbytes": 1}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "segment_nbytes": 1 << 40}]},
        {"trials": None},
    ],
)
def test_a_file_that_makes_no_sense_is_not_used(
    rig: Open, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    comm = rig("LL")
    store.save(comm._engine.rig, Tuning(costs=EVEN, origin=MEASURED))
    file = store.path(comm._engine.rig)
    assert store.load(comm._engine.rig) is not None
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert store.load(comm._engine.rig) is None
    assert str(file) in caplog.text
    for text in ("{", "[" * 200_000, '{"choices":' * 100_000):
        file.write_text(text)
        assert store.load(comm._engine.rig) is None


def test_what_is_measured_of_slow_links_is_kept_apart(rig: Open) -> None:
    """A rig that plays slow links neither reads nor spoils what was measured of the links as they are."""
    usual = store.path(rig("LL")._engine.rig)
    with env.override(slow_links=4):
        slow = store.path(rig("LL")._engine.rig)
        assert rates.number("kept apart", {}, lambda: 4.0, 0.0, 9.0) == 4
    assert rates.number("kept apart", {}, lambda: 1.0, 0.0, 9.0) == 1
    assert slow != usual


def giant(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(20 << 30)  # nothing of it lies on the disk


@pytest.mark.timeout(120)
def test_a_tuning_that_is_no_file_is_neither_waited_for_nor_read(rig: Open, caplog: pytest.LogCaptureFixture) -> None:
    comm = rig("LL")
    store.save(comm._engine.rig, Tuning(costs=EVEN, origin=MEASURED))
    file = store.path(comm._engine.rig)
    for make, message in (
        (os.mkfifo, "not a regular file"),
        (giant, "more than"),
    ):
        file.unlink()
        make(file)
        with caplog.at_level(logging.WARNING, "vkpar"):
            assert store.load(comm._engine.rig) is None
        assert str(file) in caplog.text
        assert message in caplog.text
    store.save(comm._engine.rig, Tuning(costs=EVEN, origin=MEASURED))
    assert store.load(comm._engine.rig) is not None


def test_direct_is_refused_where_replicas_could_differ(rig: Open) -> None:
    same, mixed = rig("LL"), rig("LS")
    store.save(same._engine.rig, Tuning((), EVEN, origin=MEASURED))
    document = json.loads(store.path(same._engine.rig).read_text())
    document["choices"] = [{"up_to": None, "algorithm": "direct", "segment_nbytes": 0}]
    for comm in (same, mixed):
        store.path(comm._engine.rig).write_text(json.dumps(document))
    assert store.load(same._engine.rig) is not None
    assert store.load(mixed._engine.rig) is None


def test_a_directory_that_cannot_be_written_is_logged(
    rig: Open, cache: Path, settings_override: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "file").write_text("")
    settings_override(cache_dir=str(cache / "file"))
    comm = rig("LL")
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert store.save(comm._engine.rig, Tuning(costs=EVEN)) is None
    assert "not kept" in caplog.text


@pytest.mark.parametrize("home", [True, False])
def test_a_rig_that_no_file_can_be_kept_of_is_measured_once_in_a_process(
    rig: Open, cache: Path, settings_override: Callable[..., None], monkeypatch: pytest.MonkeyPatch, home: bool
) -> None:
    (cache / "file").write_text("")
    settings_override(cache_dir=str(cache / "file") if home else "")
    if not home:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home")))
    comm = rig("LL")._engine.rig
    monkeypatch.setattr(store, "_unwritten", {})
    assert store.load(comm) is None
    first, second = Tuning(costs=EVEN, origin=MEASURED), Tuning(costs=EVEN, spin_us=7, origin=MEASURED)
    for tuning in (first, second):
        assert store.save(comm, tuning) is None
        assert store.load(comm) is tuning
    assert store.load(rig("LL")._engine.rig) is second, "opened once more"
    assert store.load(rig("LLL")._engine.rig) is None, "another one"
    settings_override(cache_dir=str(cache))
    assert store.load(comm) is None, "another folder"


def test_measuring_leaves_nothing_behind(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LL")
    try:
        with vkpar.Communicator(devices) as comm:
            comm.measure(0.1)
            arrays = [device.array(np.ones(1000, np.float32)) for device in devices]
            comm.all_reduce(arrays).wait()
            before = held(devices)
            comm.measure(0.1)
            comm.all_reduce([device.array(np.ones(999, np.float32)) for device in devices]).wait()
            after = held(devices)
            assert after["DeviceMemory"] <= before["DeviceMemory"] + 2
            assert after["CommandPool"] <= before["CommandPool"] + 4
    finally:
        for device in devices:
            device.close()


def test_the_first_opening_measures_and_the_second_does_not(cache: Path, rig: Open) -> None:
    """In a process without the validation layer, which would be measured itself."""
    code = f"""
        import vkpar
        devices = vkpar.open_devices("{named(rig("LL"))}")
        for _ in range(2):
            with vkpar.Communicator(devices) as comm:
                print(comm.tuning.origin, hash(comm.tuning))
        with vkpar.Communicator(devices, deterministic=True) as comm:
            print(comm.tuning.origin)
    """
    environment = child_environment(VKPAR_TUNING=None, VKPAR_CACHE_DIR=str(cache))
    first, second, third = check_child(code, environment=environment).splitlines()
    assert first == second
    assert first.startswith(MEASURED)
    assert third == BUILT_IN
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["trials"]


def test_copies_are_tried_where_they_can_be(
    rig: Open, monkeypatch: pytest.MonkeyPatch, settings_override: Callable[..., None]
) -> None:
    """CPU drivers have no copy queue: here copies are steps of the compute queue."""
    monkeypatch.setattr(opening, "_can_copy", lambda _rig: True)
    monkeypatch.setattr(instance, "validating", lambda: False)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    monkeypatch.setattr(measure, "_LEAST_COPIED", 0)
    settings_override(tuning="redo")
    comm = rig("LL")
    assert comm._engine.rig.copies
    assert any(trial.copies for trial in comm.tuning.trials)
    tuning = Tuning((Choice(None, "two_shot", copies=True),), EVEN, origin=MEASURED)
    store.save(comm._engine.rig, tuning)
    settings_override(tuning="auto")
    copying = rig("LL")
    assert copying.tuning == tuning
    arrays = [device.array(np.full(5000, 2.0, np.float32)) for device in copying.devices]
    copying.all_reduce(arrays).wait()
    assert json.loads(copying.dump())["operations"][-1]["path"] == "copies"
    assert (arrays[1].numpy() == 4.0).all()


def test_a_driver_that_compiles_slowly_changes_nothing(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried of a size is what a rig can do, not what its driver had compiled before."""
    monkeypatch.setattr(measure, "_sizes_of", lambda _wire: (4 << 10,))
    comm = rig("LL")
    quick = {trial.algorithm for trial in comm.measure(2.0).trials}
    made = measure.request_by

    def slow(*arguments: Any) -> Any:
        time.sleep(0.5)
        return made(*arguments)

    monkeypatch.setattr(measure, "request_by", slow)
    assert {trial.algorithm for trial in comm.measure(2.0).trials} == quick
    assert len(quick) > 3


def test_clocks_have_risen_before_anything_is_measured(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    costs = measure.measured

    def warm_up(run: Callable[[], float], devices: Any) -> None:
        assert list(devices) == list(comm.devices)
        assert run() > 0
        order.append("clocks")

    def measured(engine: Any) -> Any:
        order.append("costs")
        return costs(engine)

    comm = rig("LS")
    monkeypatch.setattr(measure, "warm_up", warm_up)
    monkeypatch.setattr(measure, "measured", measured)
    comm.measure(0.1)
    assert order == ["clocks", "costs"]


def test_sizes_beyond_take_the_chunks_that_were_faster() -> None:
    trials = [
        Trial(1 << 20, "two_shot", 0, 0.3, wire="f32"),
        Trial(1 << 20, "two_shot", 0, 0.2, equal=True, wire="f32"),
    ]
    best = replace(trials[1], chosen=True)
    up_to = Choice(2 << 20, "two_shot", equal=True, wire="f32")
    beyond = Choice(None, "two_shot", equal=True, wire="f32")
    assert measure._choices([trials[0], best]) == (up_to, beyond)
    faster = replace(trials[0], seconds=0.1, chosen=True)
    assert measure._choices([faster, trials[1]]) == (replace(up_to, equal=False),)
    small = [replace(trial, wire_nbytes=4096) for trial in (trials[0], best)]
    assert measure._choices(small) == (replace(up_to, up_to=8192),)


def test_ranks_that_differ_try_shares(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both wires: two_shot, weighted and equal; what is kept holds for each wire."""
    slow = (processor(20e9, 20e9), processor(20e9, 20e9), processor(10e9, 0.2e9))
    costs = links((9e9, 9e9, 1e9)) + slow
    monkeypatch.setattr(measure, "measured", lambda _comm: costs)
    monkeypatch.setattr(measure, "_sizes_of", lambda _wire: (256 << 10,))
    comm = rig("LLS")
    found = comm.measure(20.0)
    for wire in ("f16", "f32"):
        tried = {(trial.algorithm, trial.equal) for trial in found.trials if trial.wire == wire}
        assert tried >= {("ring", False), ("two_shot", False), ("two_shot", True), ("naive", False)}
        assert ("ring", True) not in tried
        assert any(choice.wire == wire for choice in found.choices)
    comm.close()
    again = rig("LLS")
    assert again.tuning == found
    assert again.tuning.costs == costs


@pytest.mark.parametrize("slow", range(3))
def test_shares_follow_the_wire(rig: Open, slow: int) -> None:
    """The plan of each wire is its own; all ranks get the same bits with a rank that owns nothing, at any size."""
    costs = [processor(20e9, 20e9)] * 3
    costs[slow] = processor(10e9, 0.2e9)
    comm = rig("LLS", algorithm="two_shot")
    comm._engine.adopt(Tuning(costs=links((1.0, 1.0, 1.0)) + tuple(costs)))
    for wire, count in itertools.product(("f16", "f32"), (1, 255, 257, 1000, 70_000, 1 << 20)):
        rng = np.random.default_rng(count)
        parts = [rng.standard_normal(count).astype(np.float32) for _ in range(3)]
        arrays = [device.array(part) for device, part in zip(comm.devices, parts, strict=True)]
        comm.all_reduce(arrays, wire=wire).wait()
        first, *others = [array.numpy() for array in arrays]
        assert all(first.tobytes() == other.tobytes() for other in others)
        assert np.allclose(first, sum(parts), rtol=0.01, atol=0.01)
    plans = [
        choose.choose("two_shot", [device.info for device in comm.devices], 1 << 20, comm.tuning, w)
        for w in ("f16", "f32")
    ]
    assert plans[0].shares is None
    assert plans[1].shares is not None


def test_wrong_copies_are_not_used(rig: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = rig("LL")
    monkeypatch.setattr(comm._engine.rig, "own_slots", [object()])
    monkeypatch.setattr(selftest, "_run_sums", Mock(side_effect=selftest.WrongSums("1 wrong sum")))
    assert comm._engine.rig.copies
    selftest._run_copies(comm._engine, [])
    assert not comm._engine.rig.copies
    assert not comm._engine.builder.through_copies


def test_the_command_shows_shares(
    capsys: pytest.CaptureFixture[str], rig: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns, nothing cut."""
    comm = rig("LLS")
    slow = (processor(20e9, 20e9), processor(20e9, 20e9), processor(10e9, 0.2e9))
    ways = [("ring", False), ("two_shot", False), ("two_shot", True), ("tree", False), ("naive", False)]
    trials = [
        Trial(256 << 10, name, 0, 0.054321, equal=equal, chosen=(name, equal) == ("two_shot", False), wire=wire)
        for wire, (name, equal) in itertools.product(("f16", "f32"), ways)
    ]
    tuning = Tuning((), links((9e9, 9e9, 1e9)) + slow, origin=MEASURED, trials=tuple(trials))
    store.save(comm._engine.rig, tuning)
    selector = named(comm)
    comm.close()
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["tune", "--devices", selector]) == 0
    text = capsys.readouterr().out
    assert text.count("* 54321") == 2
    legend = {line.split("  ")[1].strip() for line in text.splitlines() if line[:2] == "  " and line[2] != " "}
    assert {"rows", "*", "segment", "exchange", "reduce"} <= legend
    assert "vs naive" not in legend  # such a column is not there
    for word in ("two_shot=", "GB/s", "exchange", "reduce", "two_shot f32", "50% 50% 0%", "0.1"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    assert cli.main(["tune", "--devices", selector, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["weights"]["f32"] == {"two_shot_shares": [0.5, 0.5, 0.0]}
    assert document["speeds"] == pytest.approx([9e9, 9e9, 1e9])


def test_no_measuring_inside_groups_and_profiles_or_after_close(rig: Open) -> None:
    comm = rig("LL")
    with pytest.raises(InvalidUsageError, match="group or a profile"), comm.group():
        comm.measure()
    with pytest.raises(InvalidUsageError, match="group or a profile"), comm.profile():
        comm.measure()
    comm.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        comm.measure()


def test_a_close_in_another_thread_ends_the_measuring(rig: Open) -> None:
    comm = rig("LL")
    closer = threading.Timer(0.15, comm.close)
    closer.start()
    with pytest.raises(InvalidUsageError, match="closed"):
        comm.measure(30.0)
    closer.join(20.0)
    assert not closer.is_alive()


def test_a_close_that_waits_for_a_call_lets_its_waits_end(rig: Open) -> None:
    """As in the moment between a launch and its wait while a rig is measured."""
    comm = rig("LL")
    with comm._engine.health.gate.lock():
        work = comm.barrier()
        closer = threading.Thread(target=comm.close)
        closer.start()
        while not comm._engine.health.gate.is_shut:
            time.sleep(0.001)
        work.wait(20.0)
    closer.join(20.0)
    assert not closer.is_alive()


def test_without_a_home_nothing_is_kept(
    rig: Open, monkeypatch: pytest.MonkeyPatch, settings_override: Callable[..., None]
) -> None:
    settings_override(cache_dir="")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home")))
    comm = rig("LL")
    assert store.path(comm._engine.rig) is None
    assert store.save(comm._engine.rig, Tuning(costs=EVEN)) is None


def test_a_single_rank_has_nothing_to_measure(rig: Open) -> None:
    with pytest.raises(InvalidUsageError, match="single rank"):
        rig("L").measure()


def test_the_command_shows_and_measures(
    capsys: pytest.CaptureFixture[str], rig: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where one rank is slower, as others' work on the machine makes it, the table has other columns.
    alike = tuple(Costs(wire, 1e-9, 1e-9) for wire in wires.TIMED for _ in range(2))
    monkeypatch.setattr(measure, "measured", lambda _engine: alike)
    comm = rig("LL")
    comm.measure(0.1)
    assert cli.main(["tune", "--devices", named(comm), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["origin"] == MEASURED
    assert Path(document["file"]).exists()
    assert cli.main(["tune", "--devices", named(comm)]) == 0
    text = "".join(capsys.readouterr().out.split())  # a long path is folded
    for word in ("naive", "4KiB", "8KiB", "GB/s", Path(document["file"]).name):
        assert word in text
    assert cli.main(["tune", "--devices", named(comm).split("&")[0]]) == 2
    assert "two ranks" in capsys.readouterr().err


def test_a_command_that_measures_a_rig_says_so_once(cache: Path) -> None:
    require("llvmpipe")
    environment = child_environment(VKPAR_VALIDATION="0", VKPAR_TUNING="auto", VKPAR_CACHE_DIR=str(cache))
    code = "import sys; from vkpar.cli.main import main; sys.exit(main(['bench', 'barrier', *sys.argv[1:]]))"
    arguments = ["--devices", "llvmpipe*2", "-n", "1", "-w", "0", "--json"]
    first, second = (run_child(code, *arguments, environment=environment) for _ in range(2))
    (kept,) = cache.iterdir()
    said = "vkpar: measuring this rig, once, for about 2 s: which algorithm is fast at which size"
    assert (first.returncode, first.stderr) == (0, f"{said} (kept in {kept})\n")
    assert (second.returncode, second.stderr) == (0, "")
    assert json.loads(first.stdout)["ok"]
