"""``vkpar bench model``: a whole decoder with made-up weights, in every split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from conftest import require
from helpers.process.benching import run_json

import vkpar
from vkpar import InvalidUsageError
from vkpar.bench import model, model_weights
from vkpar.bench.decode import PRESETS
from vkpar.bench.frame import picture
from vkpar.bench.measure.experts import SumsOfEach, sum_each
from vkpar.cli import main as cli
from vkpar.ops.experts import few
from vkpar.ops.quantized.kinds import KINDS, MIXES
from vkpar.parallel import MixtureOfExperts, Split, spec_of
from vkpar.parallel.models import Generation, Llama, tiny
from vkpar.parallel.plan.placing import place

pytestmark = pytest.mark.rig

QUICK = ["--repeat", "2", "--prompts", "12", "--tokens", "3", "--depths", "0,9", "--vocabulary", "128"]


def command(*arguments: str) -> list[str]:
    require("llvmpipe")
    return ["bench", "model", "--devices", "llvmpipe*2", *QUICK, *arguments]


def test_every_split_has_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--splits", "single,layer,tensor,row", "--ratios", "even,1:0", "--steps", "captured,eager"]
    status, found = run_json(capsys, *command(*options, "--wires", "f32"))
    assert (status, found["benchmark"], found["wrong"], found["ok"], found["nranks"]) == (0, "model", 0, True, 2)
    tests = ["pp12", "tg3 @ d0", "tg3 @ d9", "tg3 @ d0", "tg3 @ d9"]
    splits = [("single", "even"), ("layer", "even"), ("tensor", "even"), ("single", "1,0")]
    rows = [(row["split"], row["ratios"], row["test"]) for row in found["rows"]]
    assert rows == [(*split, test) for split in splits for test in tests]
    assert [row["step"] for row in found["rows"]][:5] == ["-", "captured", "captured", "eager", "eager"]
    assert all(0 < row["least"] <= row["rate"] <= row["most"] for row in found["rows"])
    assert all(row["first"] > 0 for row in found["rows"])
    assert [line.split(":")[0] for line in found["auto"]] == [
        "auto, ratios even, wire f32",
        "auto, ratios 1,0, wire f32",
    ]
    assert [plan["mode"] for plan in found["plans"]] == [split for split, _ in splits]
    assert all(
        rank["weights"] <= held or not rank["weights"]
        for plan in found["plans"]
        for rank, held in zip(plan["memory"], plan["held"], strict=True)
    )
    assert [plan["sums"] for plan in found["plans"]] == [None] * len(splits)
    assert len(found["refused"]) == 4, "row has no large weights; one device alone is no split"


def test_several_texts_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, *command("--splits", "single,tensor", "--sequences", "1,3", "--wires", "f32"))
    assert (status, found["wrong"]) == (0, 0)
    tests = ["pp12", "tg3 @ d0", "tg3 @ d9", "pp12 x3", "tg3 x3 @ d0", "tg3 x3 @ d9"]
    assert [row["test"] for row in found["rows"]] == tests * 2
    assert [plan["batch"] for plan in found["plans"]] == [1, 3] * 2
    one, three = (plan["memory"][0]["cache"] for plan in found["plans"][:2])
    assert three >= 3 * one > 0
    with pytest.raises(InvalidUsageError, match="from 1 to 32, not 33"):
        model.start(model.Options(sequences=(1, 33)), ExitStack())


def test_prompts_of_tensor_splits_in_halves_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, *command("--splits", "layer,tensor", "--halves", "off,on"))
    assert (status, found["wrong"]) == (0, 0)
    prompts = [(row["split"], row["step"]) for row in found["rows"] if row["test"] == "pp12"]
    assert prompts == [("layer", "-"), ("tensor", "-"), ("tensor", "halves")]


def test_more_tokens_than_windows_are_kept_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was there before them is run again in each turn."""
    tiny.write_folder(tmp_path, replace(tiny.SIZES, window=5, vocabulary=128))
    options = ["--config", str(tmp_path / "config.json"), "--splits", "single", "--sequences", "1,2"]
    found = run_json(capsys, *command(*options, "--prompts", "9", "--depths", "500", "--tokens", "60"))[1]
    assert found["wrong"] == 0
    tests = ["pp9", "tg60 @ d500", "pp9 x2", "tg60 x2 @ d500"]
    assert [row["test"] for row in found["rows"]] == tests


MIXTURE = replace(tiny.SIZES, family="qwen3moe", vocabulary=128, intermediate=32, experts=8, active=3, head_dim=32)
Rig = Callable[..., vkpar.Communicator]


def test_sums_of_each_expert_have_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_folder(tmp_path, MIXTURE)
    options = ["--config", str(tmp_path / "config.json"), "--splits", "layer,tensor,expert", "--expert-sums"]
    status, found = run_json(capsys, *command(*options, "delayed,each", "--depths", "0"))
    assert (status, found["wrong"]) == (0, 0)
    assert [row["split"] for row in found["rows"]] == [
        name for name in ("layer", "tensor", "tensor:each", "expert") for _ in ("pp12", "tg3 @ d0")
    ]
    assert [plan["expert_sums"] for plan in found["plans"]] == ["delayed", "delayed", "each", "delayed"]
    with pytest.raises(InvalidUsageError, match="no sum of experts 'twice'"):
        model.start(model.Options(expert_sums=("twice",)), ExitStack())


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("letters", "shares"), [("LS", (16, 8)), ("LLL", (8, 0, 16)), ("L", (24,))])
@pytest.mark.parametrize("are_few", [False, True])
def test_sums_of_each_expert_are_those_of_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, rows: int, letters: str, shares: tuple[int, ...], are_few: bool
) -> None:
    """Exactly, of whole numbers: two experts of five weigh a half each, and gates are so large that they are open."""
    monkeypatch.setattr(few, "usable_on", lambda device: are_few)
    rng, comm = np.random.default_rng(rows), rig(letters, wire="f32")
    gate, up = rng.integers(0, 3, (5, 24, 16)), rng.integers(-2, 3, (5, 24, 16))
    gate[..., -1] += 64
    down, router = rng.integers(-1, 2, (5, 16, 24)), np.eye(5, 16)
    x = rng.integers(0, 4, (rows, 16))
    chosen = np.stack([rng.choice(5, 2, replace=False) for _ in range(rows)])
    x[:, :5], x[:, -1] = 0, 1
    np.put_along_axis(x, chosen, 8, axis=1)
    wanted = [
        sum(down[e] @ ((gate[e] @ row) * (up[e] @ row)) / 2 for e in own) for row, own in zip(x, chosen, strict=True)
    ]
    weights = (each.astype(np.float32) for each in (gate, up, down))
    experts = MixtureOfExperts.cut(*weights, comm=comm, width=Split.of(shares))
    mixture = MixtureOfExperts(router.astype(np.float32), experts, comm=comm, active=2)
    for block in (mixture, SumsOfEach(mixture)):
        for part in block.summed([device.array(x.astype(np.float32)) for device in comm.devices]):
            assert part is not None
            assert np.array_equal(part.numpy(), np.array(wanted)), type(block)


@pytest.mark.parametrize("are_few", [False, True])
def test_sums_of_each_expert_give_the_same_tokens(rig: Rig, monkeypatch: pytest.MonkeyPatch, are_few: bool) -> None:
    monkeypatch.setattr(few, "usable_on", lambda device: are_few)
    placement, found = place(spec_of(MIXTURE), "tensor", [Fraction(1), Fraction(1)]), []
    for changed in (False, True):
        with Llama(MIXTURE, tiny.weights(MIXTURE), rig("LS", wire="f32"), placement, context=40) as decoder:
            if changed:
                sum_each(decoder)
            found.append([*Generation(decoder, range(12), 20)])
            assert any(isinstance(block.forward, SumsOfEach) for block in decoder._blocks) == changed
    assert found[0] == found[1]


def test_it_prints_a_table_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("safetensors")
    tiny.write_folder(tmp_path)
    options = ["--config", str(tmp_path / "config.json"), "--splits", "single", "--weights", "q8_0"]
    assert cli.main(command(*options)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert rows[0][:5] == ["single", "even", "f16", "-", "pp12"]
    assert [row[-1] for row in rows] == ["0"] * 3
    assert "2 layers, hidden 64, intermediate 96" in lines[0]
    assert "# Wrong elements    : 0 OK" in lines


def test_it_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "rates.png"
    options = ["--splits", "single,tensor", "--steps", "captured,eager", "--plot", str(picture)]
    assert cli.main(command(*options)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()


def test_it_says_what_a_prompt_spends_in_sums(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = run_json(capsys, *command("--splits", "single,tensor", "--profile"))
    assert status == 0
    alone, split = [plan["sums"] for plan in found["plans"]]
    assert alone["kernels"] == [0, 0]
    assert (split["tokens"], len(split["kernels"])) == (11, 2)
    assert all(0 < seconds < split["seconds"] for seconds in split["kernels"])


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    assert cli.main(command("--plot", str(tmp_path / "rates.png"))) == 2
    assert "needs the package matplotlib" in capsys.readouterr().err
    monkeypatch.setattr(picture, "find_spec", lambda name: name)
    assert cli.main(command("--plot", str(tmp_path / "nowhere" / "rates.png"))) == 2
    assert "there is no folder" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert cli.main(command("--plot", str(tmp_path))) == 2
    assert "is a folder" in capsys.readouterr().err
    assert cli.main(command("--plot", str(tmp_path / "rates.xyz"))) == 2
    assert "no suffix of a picture" in capsys.readouterr().err


def test_without_rows_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "rates.png"
    options = ("--splits", "row", "--ratios", "1:1,even", "--prompts", "0", "--depths", "0", "--plot", str(picture))
    assert cli.main(command(*options)) == 0
    assert not picture.exists()
    assert capsys.readouterr().out.count("row: no weight") == 1


@pytest.mark.parametrize("kind", model_weights.KINDS)
def test_made_up_weights_are_about_as_large_as_they_should_be(kind: str) -> None:
    config = model.of_shape(PRESETS["tiny"], 64, 32)
    if kind in KINDS and KINDS[kind].block == 256:
        with pytest.raises(InvalidUsageError, match="no multiple of the 256"):
            model_weights.weights(config, kind)
        return
    made = model_weights.weights(config, kind)
    tensor = made["model.layers.1.mlp.gate_proj.weight"]
    if kind in MIXES:  # what there is in place of blocks that do not divide rows
        mix = MIXES[kind]
        kinds = {each.kind.name for each in made.values() if each.kind}
        assert kinds == {mix.narrow, KINDS[mix.finer].narrow, mix.name, mix.finer}
    assert tensor.shape == (256, 64)
    if tensor.kind is None:
        values = tensor.read(slice(3, 9))
        assert values.shape == (6, 64)
    else:
        blocks = tensor.blocks(0, 32, slice(3, 9))
        assert blocks.shape == (6, tensor.kind.nbytes)
        values = tensor.kind.decode(blocks)
    assert 0.1 < np.linalg.norm(values.astype(np.float64)) / np.sqrt(6 * values.shape[1] / 64) < 1.5
    assert np.abs(values.astype(np.float64)).max() < 1.1 * np.sqrt(3 / 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--splits", "ring"], "no split 'ring'"),
        (["--steps", "twice"], "no step 'twice'"),
        (["--ratios", "1:2:3"], "3 ratios for 2 ranks"),
        (["--config", "/nowhere/config.json"], "cannot be read"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command(*arguments)) == 2
    assert message in capsys.readouterr().err
