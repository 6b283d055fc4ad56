"""The real model that ``tools/fetch_model.py gemma3-270m`` fetches: likeliest tokens of float64 on its own weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.parallel.llama_reference import F64, Reference

import vkpar
from vkpar.parallel.models import Generation, naming, open_model
from vkpar.parallel.models.config import Config

FILE = Path(__file__).resolve().parents[2] / ".cache" / "models" / "gemma-3-270m-q4_k_m.gguf"
gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytestmark = [
    pytest.mark.rig,
    pytest.mark.skipif(not FILE.exists(), reason=f"no {FILE.name}: tools/fetch_model.py gemma3-270m fetches it"),
]
RARE = pytest.mark.sampled(1 << 32)  # with --full alone
CAPITALS = "The capital of Germany is Berlin. The capital of Italy is Rome. The capital of France is"
ENGLISH = """The old lighthouse stood at the end of a long stone pier, where the waves had beaten against its walls for
more than two hundred years. Every evening, just before the sun went down, the keeper climbed the narrow stairs with a
can of oil in one hand and a cloth in the other. He cleaned the great lens until it shone, filled the lamp, and waited
for the first star. In summer the work was easy, and he would sit on the gallery and watch the fishing boats come home
one after the other. In winter it was another matter. The wind came from the north and shook the iron door, and the
spray froze on the glass as fast as he could scrape it away. But the light never went out, not once in all the years
that he was there, and the people of the village were proud of that. When he grew too old to climb the stairs, his
daughter took the can of oil and the cloth, and went up in his place. She had known the way since she was a child."""
TOKENS = 200
PATIENCE = 300.0  # seconds: what CPU drivers take for a step of such a model
CLEAR = 0.05  # a gap between the two likeliest tokens that no device closes


class Real(Reference):
    """The reference on a file's weights, whose large table is multiplied some rows at a time."""

    def __init__(self, config: Config, tensors: dict[str, Any], table: Any) -> None:
        super().__init__(config, tensors)
        self.table = table

    def embedded(self, tokens: Any) -> F64:
        return self.table[list(tokens)].astype(np.float64) * float(np.float32(np.sqrt(self.config.hidden)))

    def product(self, x: F64, name: str, ranks: int = 1) -> F64:
        if name != naming.TRANSFORMERS.embedding:
            return super().product(x, name, ranks)
        parts = [x @ self.table[at : at + 16384].astype(np.float64).T for at in range(0, len(self.table), 16384)]
        return np.concatenate(parts, axis=1)


@cache
def expected() -> tuple[list[int], F64]:
    """The tokens of a text in English, and the logits of float64 after each of them."""
    with open_model(FILE) as file:
        ids, config = file.tokenizer().encode(ENGLISH)[:TOKENS], file.config
    assert len(ids) == TOKENS
    ours, theirs = (names.of_family(config.differs) for names in (naming.TRANSFORMERS, naming.GGUF))
    known = {theirs.norm: ours.norm, theirs.embedding: ours.embedding}
    for block in range(config.layers):
        known |= {theirs.of_block(part, block): ours.of_block(part, block) for part in theirs.blocks}
    tensors = {}
    for tensor in gguf.GGUFReader(str(FILE)).tensors:
        made = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[known[tensor.name]] = made - 1 if made.ndim == 1 else made  # files have the 1 added already
    table = tensors.pop(ours.embedding)
    return ids, Real(config, tensors, table).logits(ids)


@pytest.mark.parametrize(
    ("letters", "mode", "ratios"),
    [
        pytest.param("L", "single", [1], marks=RARE),
        pytest.param("S", "single", [1], marks=RARE),
        pytest.param("LS", "tensor", [1, 1], marks=RARE),
        pytest.param("LS", "layer", [1, 1], marks=RARE),
    ],
)
def test_the_likeliest_tokens_of_english(
    rig: Callable[..., vkpar.Communicator], letters: str, mode: str, ratios: list[int]
) -> None:
    ids, want = expected()
    two = np.partition(want, -2, axis=1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > CLEAR
    assert clear.sum() > 0.9 * TOKENS
    with (
        open_model(FILE) as file,
        file.load(rig(letters, wire="f32", timeout=PATIENCE), mode=mode, ratios=ratios, context=256) as model,
    ):
        logits = model.prefill(ids, logits=True)
        assert logits is not None
        assert (logits.argmax(axis=1) == want.argmax(axis=1))[clear].all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("letters", "mode"), [("L", "single"), ("LS", "tensor")])
def test_it_knows_capitals(rig: Callable[..., vkpar.Communicator], letters: str, mode: str) -> None:
    """What a device holds meanwhile is little more than the file."""
    comm, most = rig(letters, timeout=PATIENCE), 1.25 * FILE.stat().st_size
    before = sum(device.memory().arrays for device in comm.devices)
    with open_model(FILE) as file:
        words, ratios = file.tokenizer(), [1] * len(letters)
        with file.load(comm, mode=mode, ratios=ratios, context=64) as model:
            assert words.decode(Generation(model, words.encode(CAPITALS), 2)) == " Paris."
            if letters == "L":
                assert sum(device.memory().arrays for device in comm.devices) - before < most
