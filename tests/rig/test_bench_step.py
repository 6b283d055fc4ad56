"""``vkpar bench step``: one token of a small model over one device and several, in every mode."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from conftest import Rigs, require
from helpers.process.benching import run_json

import vkpar
from vkpar.bench import decode, step
from vkpar.cli import main as cli
from vkpar.testing import gamma, norm

pytestmark = pytest.mark.rig

QUICK = ["-n", "2", "-w", "1", "--repeat", "2"]
MIXED = "llvmpipe&swiftshader"


def command(devices: str, *arguments: str) -> list[str]:
    for driver in ("llvmpipe", "swiftshader"):
        if driver in devices:
            require(driver)
    return ["bench", "step", "--devices", devices, *QUICK, *arguments]


@pytest.mark.parametrize(
    ("devices", "nranks"),
    [("llvmpipe", 1), ("swiftshader", 1), ("llvmpipe*2", 2), (MIXED, 2), (f"{MIXED}&llvmpipe", 3)],
)
def test_all_modes_give_the_same_bits(devices: str, nranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, *command(devices))
    assert (status, found["benchmark"], found["wrong"], found["ok"]) == (0, "step", 0, True)
    assert (found["nranks"], found["products"], found["sums"]) == (nranks, 8, 4 if nranks > 1 else 0)
    assert [(row["mode"], row["wrong"]) for row in found["rows"]] == [(mode, 0) for mode in step.MODES]
    assert found["shape"]["hidden"] == 64
    assert sum(found["weights_nbytes"]) == 2 * 2 * 64 * ((8 + 2 * 4) * 8 + 8 * 8 + 3 * 256)
    for row in found["rows"]:
        assert 0 < row["least_ms"] <= row["time_ms"] <= row["most_ms"]
        assert row["tbps"] == pytest.approx(max(found["weights_nbytes"]) / row["time_ms"] / 1e9)
        assert row["host_us"] > 0
        assert (row["sums_ms"] is None) == (nranks == 1)


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command("llvmpipe*2", "--modes", "fresh,eager", "--layers", "1", "--wire", "f32")) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[:2], len(row), row[-1]) for row in rows] == [(["eager", "fresh"], 9, "0"), (["eager", "out="], 9, "0")]
    assert "# 1 layers, hidden 64, intermediate 256, 8 heads of 8, 4 of keys and values" in lines
    assert sum(line.startswith("# Rank ") for line in lines) == 2
    assert "# Wrong elements    : 0 OK" in lines
    assert max(len(line) for line in lines if not line.startswith("# Rank")) <= 110


def test_one_device_has_no_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command("llvmpipe", "--modes", "eager", "-c", "0")) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if not line.startswith("#")]
    assert (row[6], row[-1]) == ("-", "N/A")
    assert any(line.startswith("# 8 products and 0 sums a step") for line in lines)


@pytest.mark.parametrize("devices", ["llvmpipe", MIXED])
def test_a_mode_with_other_bits_is_wrong(
    devices: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = decode.Model.fresh_step

    def wrong(model: decode.Model, **given: Any) -> list[vkpar.Array]:
        results = right(model, **given)
        values = results[-1].numpy()
        values[3] = np.nextafter(values[3], np.float32(9))
        results[-1].write(values)
        return results

    monkeypatch.setattr(decode.Model, "fresh_step", wrong)
    status, found = run_json(capsys, *command(devices, "--modes", "eager,fresh"))
    assert (status, [row["wrong"] for row in found["rows"]]) == (1, [0, 1])


def test_a_step_that_does_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right, calls = decode.Model.step, []

    def first_only(model: decode.Model, **given: Any) -> list[vkpar.Array]:
        calls.append(given)
        return right(model, **given) if len(calls) == 1 else model.outputs

    monkeypatch.setattr(decode.Model, "step", first_only)
    status, found = run_json(capsys, *command("llvmpipe*2", "--modes", "eager"))
    assert (status, found["wrong"]) == (1, 2 * 64)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices", "llvmpipe*5"], "4 heads of keys and values cannot be split over 5 devices"),
        (["--devices", "llvmpipe*2", "--intermediate", "1"], "1 1 columns of the intermediate width cannot be split"),
        (["--devices", "llvmpipe", "--kv-heads", "3"], "8 heads are no multiple of 3 heads of keys and values"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    require("llvmpipe")
    assert cli.main(["bench", "step", *arguments]) == 2
    assert said in capsys.readouterr().err


# --- against NumPy ---


def reference(model: decode.Model) -> tuple[np.ndarray[Any, Any], float]:
    """Return the step in float64, and how far float32 may be from it in the Frobenius norm."""
    x, off = model.inputs[0].numpy().astype(np.float64), 0.0
    for row in model.blocks:
        total, far = x, off
        for block in row:
            y, y_off = x, off
            for matrix in (block.first, block.second):
                weights = matrix.numpy().astype(np.float64)
                terms = weights.shape[1]
                y = y[:terms]
                rounding = gamma(terms + 1) * (norm(abs(weights) @ abs(y)) + norm(weights) * y_off)
                y, y_off = weights @ y, float(np.linalg.norm(weights, 2)) * y_off + rounding
            total = total + y
            far += y_off + gamma(len(row) + 1) * (norm(y) + y_off)
        x, off = total, far + gamma(1) * (norm(total) + far)
    return x, off


@pytest.mark.parametrize("devices", ["llvmpipe", "swiftshader", MIXED, "llvmpipe*3"])
def test_the_step_is_that_of_the_weights(devices: str, rigs: Rigs) -> None:
    opened = rigs(devices)
    with ExitStack() as stack:
        comm = stack.enter_context(vkpar.Communicator(opened, wire="f32")) if len(opened) > 1 else None
        model = decode.Model(opened, decode.PRESETS["tiny"], comm)
        expected, bound = reference(model)
        for results in (model.step(), model.fresh_step()):
            for result in results:
                assert norm(result.numpy() - expected) <= bound
        assert 0.5 < np.std(expected) / np.std(model.inputs[0].numpy()) < 2  # neither vanishes nor grows
        assert norm(expected - model.inputs[0].numpy()) > 100 * bound  # the weights decide
        matrices = [matrix.numpy().tobytes() for row in model.blocks for b in row for matrix in (b.first, b.second)]
        assert len(set(matrices)) == len(matrices)
