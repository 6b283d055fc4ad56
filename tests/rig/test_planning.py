"""Plans of rigs that are there: measured once and kept, within the devices' memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.parallel import ModelSpec, kept, plan

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
TINY = ModelSpec(4, 256, 512, 8, 4, 32, 1000)


def test_a_plan_of_a_rig(
    rig: Open, settings_override: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = rig("LS")
    settings_override(tuning="auto", cache_dir=str(tmp_path))
    kept.forget()
    made = plan(TINY, comm)
    files = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert files == ["operation", "operation", "speed", "speed", "sum"]
    assert made.reasons[0].startswith(f"{made.mode}: ")
    assert 0 < made.seconds < 10
    assert all(rank.fits for rank in made.memory)
    kept.forget()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = plan(TINY, comm)
    assert (again.seconds, again.ratios) == (made.seconds, made.ratios)  # nothing was measured again
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    tensor = plan(TINY, comm.devices, mode="tensor", ratios=[3, 1])
    assert tensor.splits["heads"].counts == (6, 2)
    for options in ({"mode": "fast"}, {"context": 0}, {"batch": True}, {"ratios": [1]}, {"ratios": "slow"}):
        with pytest.raises(InvalidUsageError):
            plan(TINY, comm, **options)  # type: ignore[arg-type]


def test_a_model_that_does_not_fit_one_device_is_split(rig: Open, settings_override: Callable[..., None]) -> None:
    comm = rig("LLL")
    need = plan(TINY, comm, mode="single", ratios="even", context=64).memory[0]
    settings_override(max_memory=comm.devices[0].memory().arrays + need.total * 2 // 3)
    with pytest.raises(UnsupportedError, match="single: rank 0 would need"):
        plan(TINY, comm, mode="single", ratios="even", context=64)
    made = plan(TINY, comm, ratios="even", context=64)
    assert made.mode != "single"
    assert made.fit() >= 64
