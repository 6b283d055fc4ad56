"""Measuring a rig, keeping what was found, and taking it at the next opening."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from children import check_child, child_environment
from conftest import Rigs
from handles import held
from reducing import fresh_devices

import vkpar
from vkpar import InvalidUsageError, cli
from vkpar.comm import tuningfile
from vkpar.comm.tuner import BUILT_IN, MEASURED, Tuning

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings_override: Callable[..., None]) -> Path:
    """Keep tunings in a directory of the test's own."""
    settings_override(tuning="auto", cache_dir=str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("letters", ["LL", "LLS"])
def test_a_rig_is_measured_once(rig: Open, letters: str, cache: Path) -> None:
    comm = rig(letters)
    before = comm.tuning
    found = comm.measure(0.2)
    assert comm.tuning == before  # its own plan is fixed
    assert found.origin == MEASURED
    assert len(found.speeds) == len(letters)
    assert found.choices[-1].up_to is None
    for size in {trial.wire_nbytes for trial in found.trials}:
        here = [trial for trial in found.trials if trial.wire_nbytes == size]
        (chosen,) = [trial for trial in here if trial.chosen]
        assert chosen.seconds <= min(trial.seconds for trial in here if trial.algorithm == "naive")
    assert [file.name for file in cache.iterdir()] == [tuningfile.path(comm.rig).name]
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
        {"speeds": [1.0]},
        {"speeds": [1.0, 0.0]},
        {"choices": [{"up_to": None, "algorithm": "butterfly", "segment_nbytes": 0}]},
        {"choices": [{"up_to": 5, "algorithm": "ring", "segment_nbytes": 0}]},
        {"choices": [{"up_to": None, "algorithm": "ring", "segment_nbytes": -1}]},
        {"trials": None},
    ],
)
def test_a_file_that_makes_no_sense_is_not_used(
    rig: Open, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    comm = rig("LL")
    tuningfile.save(comm.rig, Tuning(speeds=(1.0, 1.0), origin=MEASURED))
    file = tuningfile.path(comm.rig)
    assert tuningfile.load(comm.rig) is not None
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert tuningfile.load(comm.rig) is None
    assert str(file) in caplog.text
    file.write_text("{")
    assert tuningfile.load(comm.rig) is None


def test_direct_is_refused_where_replicas_could_differ(rig: Open) -> None:
    same, mixed = rig("LL"), rig("LS")
    tuningfile.save(same.rig, Tuning((), (1.0, 1.0), origin=MEASURED))
    document = json.loads(tuningfile.path(same.rig).read_text())
    document["choices"] = [{"up_to": None, "algorithm": "direct", "segment_nbytes": 0}]
    for comm in (same, mixed):
        tuningfile.path(comm.rig).write_text(json.dumps(document))
    assert tuningfile.load(same.rig) is not None
    assert tuningfile.load(mixed.rig) is None


def test_a_directory_that_cannot_be_written_is_logged(
    rig: Open, cache: Path, settings_override: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "file").write_text("")
    settings_override(cache_dir=str(cache / "file"))
    comm = rig("LL")
    with caplog.at_level(logging.WARNING, "vkpar"):
        assert tuningfile.save(comm.rig, Tuning(speeds=(1.0, 1.0))) is None
    assert "not kept" in caplog.text


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
    rig("LL")
    code = """
        import vkpar
        devices = vkpar.open_devices("llvmpipe*2")
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


def test_a_single_rank_has_nothing_to_measure(rig: Open) -> None:
    with pytest.raises(InvalidUsageError, match="single rank"):
        rig("L").measure()


def test_the_command_shows_and_measures(capsys: pytest.CaptureFixture[str], rig: Open) -> None:
    rig("LL").measure(0.1)
    assert cli.main(["tune", "--devices", "llvmpipe*2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["origin"] == MEASURED
    assert Path(document["file"]).exists()
    assert cli.main(["tune", "--devices", "llvmpipe*2"]) == 0
    text = "".join(capsys.readouterr().out.split())  # a long path is folded
    for word in ("naive", "4KiB", "8KiB", "GB/s", Path(document["file"]).name):
        assert word in text
    assert cli.main(["tune", "--devices", "llvmpipe"]) == 2
    assert "two ranks" in capsys.readouterr().err
