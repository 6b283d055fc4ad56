"""Rules: one for each tensor of a file, each rank reading its own slice; what is refused, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError
from vkpar.parallel import Column, Mirrored, Only, Row, Split, open_weights, parallelize

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
RULES = {"*.q": Column(unit=4), "*.o": Row(unit=4), "*.bias": Mirrored(), "head": Only(1)}


def test_each_rank_reads_its_own(rig: Open, tmp_path: Path, rng: np.random.Generator) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    shapes = {"0.q": (20, 6), "0.o": (6, 20), "0.bias": (6,), "head": (3, 6)}
    values = {name: rng.integers(-99, 99, shape).astype(np.float32) for name, shape in shapes.items()}
    numpy.save_file(values, tmp_path / "m.safetensors")
    comm = rig("LS")
    with open_weights(tmp_path) as weights:
        made = parallelize(weights, comm, RULES, ratios=[2, 1], dtype="float16")
        assert {name: one.state for name, one in made.items()} == {
            "0.q": "split",
            "0.o": "split",
            "0.bias": "mirrored",
            "head": "split",
        }
        for name, one in made.items():
            assert np.array_equal(one.numpy(), values[name])
            assert one.dtype == "float16"
        assert made["0.q"].split == made["0.o"].split == Split.of((12, 8), 4)
        assert made["head"].nbytes == (0, 36)
        given = Split.of((1, 2))
        made = parallelize(
            weights, comm, {"0.[qo]": Mirrored(), "0.bias": Column(split=given), "head": Column(split=given)}
        )
        assert [part.shape for part in made["0.bias"].parts] == [(2,), (4,)]


def test_a_rule_that_is_a_tensor_s_very_name_means_that_tensor(rig: Open) -> None:
    comm = rig("LL")
    names = ["blocks[0].w", "blocks[1].w", "blocks0.w", "[ab]", "a", "x*", "xy", "q?"]
    weights = {name: np.full((2, 2), number, np.float32) for number, name in enumerate(names)}
    for first in names:
        rules: dict[str, Any] = {name: Mirrored() for name in names} | {first: Column()}
        made = parallelize(weights, comm, rules)
        assert {name: one.state for name, one in made.items()} == dict.fromkeys(names, "mirrored") | {first: "split"}
    patterns = {
        "blocks[[]?[]].w": Column(),
        "blocks0.w": Mirrored(),
        "[ab]": Mirrored(),
        "a": Mirrored(),
        "[xq]*": Row(),
    }
    made = parallelize(weights, comm, patterns)
    assert made["blocks[1].w"].state == "split"
    assert made["x*"].state == made["xy"].state == "split"
    del weights["[ab]"]  # a pattern again, which matches a
    with pytest.raises(InvalidUsageError, match=r"several rules match a \(\[ab\] and a\)"):
        parallelize(weights, comm, patterns)


def test_what_is_refused(rig: Open) -> None:
    comm = rig("LL")
    weights = {"0.q": np.zeros((8, 4)), "0.o": np.zeros((4, 8)), "0.bias": np.zeros(4), "head": np.zeros((2, 4))}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"0.q": RULES["*.q"]}, r"no rule matches 0\.o, 0\.bias, head"),
        (RULES | {"0.*": Mirrored()}, r"several rules match 0\.q \(\*\.q and 0\.\*\), 0\.o"),
        (RULES | {"0.k": Mirrored()}, r"no tensor matches the rule '0\.k'; did you mean"),
        (RULES | {"head": 3}, "is Column, Row, Mirrored or Only"),
        (RULES | {"head": Only(2)}, "head: rank 2 of 2"),
        (RULES | {"*.bias": Row()}, r"bias: shape \(4,\): .* Mirrored"),
        (RULES | {"head": Column(unit=0)}, "head: a unit"),
        (RULES | {"head": Column(segments=(1, 2))}, "segments"),
    ]
    for rules, message in cases:
        with pytest.raises(InvalidUsageError, match=message):
            parallelize(weights, comm, rules)
