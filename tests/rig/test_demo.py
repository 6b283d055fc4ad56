"""The demo on a rig, with a small encoder of random weights: right results end in OK, wrong ones in FAILED."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ops import reducing

from vkpar.demo import main, weights
from vkpar.parallel.models import encoding
from vkpar.parallel.models.bert_config import BertConfig, shapes

CONFIG = BertConfig(layers=2, hidden=64, intermediate=96, heads=4, vocabulary=30, context=9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trimmed file of random weights."""
    generator = np.random.default_rng(5)
    tensors = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in sorted(shapes(CONFIG).items())
    }
    ids = tuple(generator.integers(0, 30, length) for length in (4, 9, 6))
    model = weights.Model(CONFIG, ("one", "two", "three"), ids, tensors, "made up")
    weights.save_file(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def run(rigs: Any, letters: str, path: Path, wire: str = "f16", **options: Any) -> tuple[int, str]:
    indices = "&".join(str(rigs(reducing.POOLS[letter])[0].info.index) for letter in letters)
    stream = io.StringIO()
    status = main.run(indices, str(path), wire, repeats=1, stream=stream, **options)
    return status, stream.getvalue()


@pytest.mark.parametrize(("letters", "wire"), [("L", "f32"), ("LL", "bf16"), ("LLS", "f16")])
def test_the_demo_holds(rigs: Any, path: Path, letters: str, wire: str) -> None:
    status, text = run(rigs, letters, path, wire, as_json=True)
    found = json.loads(text)
    assert (status, found["ok"]) == (0, True), found["summary"]
    assert [layer["layer"] for layer in found["layers"]] == ["embedding", "block 1", "block 2", "pooling"]
    assert all(0 < layer["error"] <= layer["bound"] < 0.5 for layer in found["layers"])
    splits = ["single"] if len(letters) == 1 else ["tensor", "row", "layer", "single"]
    assert [split["split"] for split in found["splits"]] == splits
    assert all(split["distance"] <= split["accepted"] == 1e-3 for split in found["splits"])
    assert found["summary"].startswith("OK: ")


def test_what_a_person_sees(rigs: Any, path: Path) -> None:
    status, text = run(rigs, "LL", path)
    assert status == 0
    for part in ("Devices", "AllReduce of float32 over 2 ranks", "tensor split, 19 tokens", "block 2", "single"):
        assert part in text
    assert text.splitlines()[-1].startswith("OK: the whole model in 4 splits on 2 ranks, largest error ")


def test_a_bias_that_is_added_twice_is_found(rigs: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = encoding.load

    def load(config: Any, tensors: Any, *args: Any, **options: Any) -> Any:
        wrong = dict(tensors)
        wrong["encoder.layer.1.output.dense.bias"] = 2 * wrong["encoder.layer.1.output.dense.bias"]
        return true(config, wrong, *args, **options)

    monkeypatch.setattr(encoding, "load", load)
    status, text = run(rigs, "LL", path, "f32")
    assert status == 1
    last = text.splitlines()[-1]
    assert last.startswith("FAILED: block 2: error ")
    assert "tensor split" in last
