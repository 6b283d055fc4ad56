"""Plans of rigs that are there: measured once and kept, within the devices' memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError
from vkpar.bench.decode import Shape
from vkpar.bench.model import of_shape
from vkpar.bench.model_weights import weights
from vkpar.parallel import ModelSpec, plan, spec_of
from vkpar.parallel.models import Llama, prompts
from vkpar.parallel.models.building import units_of
from vkpar.parallel.models.placement import place
from vkpar.parallel.rates import cache

planning = importlib.import_module("vkpar.parallel.plan.plan")
pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
TINY = ModelSpec(4, 256, 512, 8, 4, 32, 1000)


def arrays_of(comm: vkpar.Communicator) -> list[int]:
    """Return the bytes of arrays by rank once all work is done, with which dropped ones go."""
    for device in comm.devices:
        device.synchronize()
    return [device.memory().arrays for device in comm.devices]


def test_a_plan_of_a_rig(
    rig: Open, settings_override: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = rig("LS")
    settings_override(tuning="auto", cache_dir=str(tmp_path))
    cache.forget()
    made = plan(TINY, comm)
    files = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert files == ["operation", "operation", "speed", "speed", "sum"]
    assert made.reasons[0].startswith(f"{made.mode}: ")
    assert 0 < made.seconds < 10
    assert all(rank.fits for rank in made.memory)
    cache.forget()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = plan(TINY, comm)
    assert (again.seconds, again.ratios) == (made.seconds, made.ratios)  # nothing was measured again
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    tensor = plan(TINY, comm.devices, mode="tensor", ratios=[3, 1])
    assert tensor.splits["heads"].counts == (6, 2)
    for options in ({"mode": "fast"}, {"context": 0}, {"batch": True}, {"ratios": [1]}, {"ratios": "slow"}):
        with pytest.raises(InvalidUsageError):
            plan(TINY, comm, **options)  # type: ignore[arg-type]


def test_ratios_that_auto_does_not_use_are_told(
    rig: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    comm = rig("LL")
    facts = replace(planning.measured(TINY, comm), sum_seconds=1.0)
    monkeypatch.setattr(planning, "measured", lambda spec, comm: facts)
    for ratios in ("3,1", [3, 1]):
        made = plan(TINY, comm, ratios=ratios)
        assert made.mode == "single"
        assert made.reasons[-1].startswith("the ratios 3:1 are not used: auto took single, on rank 0 (")
        assert "name a mode to split by them" in caplog.text
        caplog.clear()
    for options in ({"ratios": "even"}, {"ratios": [0, 1]}, {"ratios": [3, 1], "mode": "single"}):
        assert "not used" not in " ".join(plan(TINY, comm, **options).reasons)  # type: ignore[arg-type]
        assert not caplog.text


def test_a_model_that_does_not_fit_one_device_is_split(rig: Open, settings_override: Callable[..., None]) -> None:
    comm = rig("LLL")
    need = plan(TINY, comm, mode="single", ratios="even", context=64).memory[0]
    settings_override(max_memory=comm.devices[0].memory().arrays + need.total * 2 // 3)
    with pytest.raises(UnsupportedError, match="single: rank 0 would need"):
        plan(TINY, comm, mode="single", ratios="even", context=64)
    made = plan(TINY, comm, ratios="even", context=64)
    assert made.mode != "single"
    assert made.fit() >= 64


@pytest.mark.parametrize(
    ("letters", "mode", "ratios", "kind"),
    [
        ("L", "single", (1,), "float16"),
        ("LL", "tensor", (1, 1), "float32"),
        ("LLL", "tensor", (2, 1, 1), "q8_0"),
        ("LL", "layer", (3, 1), "float32"),
        ("LL", "row", (1, 1), "float32"),
        ("L", "single", (1,), "q8_0"),
        ("L", "single", (1,), "q4_k"),
        ("LL", "layer", (1, 1), "float16"),
        ("LL", "layer", (1, 1), "q8_0"),
        ("LL", "layer", (1, 1), "q4_k"),
        ("LL", "tensor", (1, 1), "float16"),
        ("LL", "tensor", (1, 1), "q8_0"),
        ("LL", "tensor", (1, 1), "q4_k"),
        ("LL", "tensor in halves", (1, 1), "float32"),
        ("LL", "tensor in halves", (1, 1), "float16"),
        ("LL", "tensor in halves", (1, 1), "q8_0"),
    ],
)
def test_memory_is_what_was_planned(
    rig: Open, monkeypatch: pytest.MonkeyPatch, letters: str, mode: str, ratios: tuple[int, ...], kind: str
) -> None:
    """With pieces of prompts captured, as on GPUs, so that what they compute in between is held."""
    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    comm, rows, halves = rig(letters, wire="f32"), 96, mode.endswith("halves")
    mode = mode.removesuffix(" in halves")
    shape = Shape(4, 512, 1024, 16, 4, 32) if kind == "q4_k" else Shape(4, 256, 1024, 8, 4, 32)
    config = of_shape(shape, 512, rows)
    made = weights(config, kind)
    spec = replace(spec_of(config, weights=kind), table=kind, cache="float32")
    found = plan(spec, comm, mode=mode, ratios=ratios, context=rows, strict=True)
    before = arrays_of(comm)
    placement = place(mode, config, found.ratios, units_of(config, made))
    with Llama(config, made, comm, placement, context=rows, batch=rows) as model:
        model.halves = halves
        for _ in range(2):  # of the second piece a graph is captured
            model.rewind()
            model.prefill([1] * rows)
        model.rewind(rows - 1)
        model.feed(1)
        model.next_token()
        held = [now - was for now, was in zip(arrays_of(comm), before, strict=True)]
        planned = [rank.total for rank in found.memory]
        shares = [rank.activations / rank.total for rank in found.memory]
        assert min(shares) > 0.1, "what is computed in between counts"
        if halves:  # these hold somewhat less: one half computes in what the other has dropped
            assert all(0.9 * total < now < 1.05 * total for now, total in zip(held, planned, strict=True))
        else:
            assert planned == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize("mode", ["tensor", "auto"])
def test_a_rank_without_heads_takes_no_memory_of_quantised_weights(rig: Open, mode: str) -> None:
    comm, config = rig("LLL"), of_shape(Shape(2, 256, 512, 8, 4, 32), 512, 96)
    spec = replace(spec_of(config, weights="q8_0"), table="q8_0", cache="float32")
    found = plan(spec, comm, mode=mode, ratios=(1, 0, 1), context=96)
    assert found.memory[1].weights < found.memory[0].weights
