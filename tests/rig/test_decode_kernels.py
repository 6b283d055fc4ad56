"""A token's kernels as GPUs run them: how many a block has, and that logits and tokens are those of the reference."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest
from helpers.graph import fusing
from helpers.ops import reducing

import vkpar
from vkpar.parallel import ColumnParallelLinear, ParallelMLP, RMSNorm, RowParallelLinear, Split
from vkpar.parallel.models import Generation, Llama, open_model, tiny
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.sources import spec_of
from vkpar.testing import gamma

quantized_products = importlib.import_module("vkpar.ops.matmul.few")

PROMPT, STEPS = (1, 5, 9, 33, 2, 100, 7), 8  # few enough rows for the kernels of single tokens
SMALL = replace(tiny.SIZES, vocabulary=128)
CONFIGS = {
    "llama": SMALL,
    "qwen2": replace(SMALL, family="qwen2", tied=True, theta=1e6),  # with biases, and the other way to pair elements
    "linear": replace(SMALL, scaling=2.0, heads=3, kv_heads=1),
}


@pytest.fixture
def gpu_like(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[vkpar.Communicator]:
    """One or several ranks that run the kernels of GPUs."""
    devices = reducing.fresh_devices(rigs, request.param)
    fusing.force_gpu(monkeypatch.setattr)
    monkeypatch.setattr(quantized_products, "rows_at_once", lambda device: 8)
    monkeypatch.setattr(quantized_products, "by_lanes", lambda device: False)
    with vkpar.Communicator(devices, wire="f32", algorithm="direct") as comm:
        yield comm
    for device in devices:
        device.close()


def operations(comm: vkpar.Communicator, layers: int) -> int:
    config = replace(SMALL, layers=layers)
    with Llama(
        config, tiny.weights(config), comm, place(spec_of(config), "single", [Fraction(1)]), context=64
    ) as model:
        model.warm_up()
        return int(model.stats().operations)


@pytest.mark.parametrize("gpu_like", ["L"], indirect=True)
def test_a_block_is_six_kernels(gpu_like: vkpar.Communicator) -> None:
    """Two products with norms, one of them with the gate too; rope with the cache; attention; two with a residual."""
    assert operations(gpu_like, 3) - operations(gpu_like, 1) == 2 * 6


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("gpu_like", "name", "mode"),
    [("L", "llama", "single"), ("L", "qwen2", "single"), ("L", "linear", "single"), ("LL", "llama", "layer"),
     ("LL", "llama", "tensor")],
    indirect=["gpu_like"],
)  # fmt: skip
def test_logits_and_tokens(gpu_like: vkpar.Communicator, name: str, mode: str) -> None:
    config, weights, ranks = CONFIGS[name], tiny.weights(CONFIGS[name]), gpu_like.nranks
    added = reference.greedy(config, weights, PROMPT, STEPS)
    value, bound = reference.bounded(config, weights, [*PROMPT, *added], ranks=ranks, wire="f32")
    assert reference.surest(value[len(PROMPT) - 1 :], bound[len(PROMPT) - 1 :]) > 2, "no device could choose otherwise"
    placement = place(spec_of(config), mode, [Fraction(1)] * ranks)
    with Llama(config, weights, gpu_like, placement, context=64, cache_dtype="float32") as model:
        logits = model.prefill(PROMPT, logits=True)
        assert logits is not None
        assert (np.abs(logits - value[: len(PROMPT)]) <= bound[: len(PROMPT)]).all()
        model.rewind()
        assert list(Generation(model, PROMPT, STEPS)) == added
        assert (np.abs(model.next_logits() - value[-2]) <= bound[-2]).all(), "the captured step's"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpu_like", ["L"], indirect=True)
@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_quantised_weights(gpu_like: vkpar.Communicator, tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    config = replace(SMALL, layers=1, hidden=256, intermediate=256, head_dim=64)
    tensors = {}
    for name, tensor in tiny.weights(config).items():
        blocks, raw = tiny.quantised(tensor, kind if tensor.ndim > 1 else "f32")
        values = blocks if tensor.ndim == 1 else gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[raw])
        tensors[name] = np.asarray(values, np.float32)
    tiny.write_gguf(tmp_path / "m.gguf", config, tiny.weights(config), kind)
    value, bound = reference.bounded(config, tensors, PROMPT)
    options: dict[str, Any] = {"context": 64, "cache_dtype": "float32", "inputs": "float32"}
    with open_model(tmp_path / "m.gguf") as file, file.load(gpu_like, mode="single", **options) as model:
        model.prefill(PROMPT[:4])
        for token in PROMPT[4:]:
            model.feed(token)
        assert (np.abs(model.next_logits() - value[-1]) <= bound[-1]).all()


@pytest.mark.parametrize("gpu_like", ["LL"], indirect=True)
def test_norms_are_made_once_for_ranks_that_lack_the_rows(
    gpu_like: vkpar.Communicator, rng: np.random.Generator
) -> None:
    """Columns on both ranks, rows on one: it sends what is normalised, gathered columns come back as they are."""
    comm = gpu_like
    w, g, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((12, 16), (16,), (2, 16)))
    norm = RMSNorm(g, 1e-5, comm=comm, ranks=[0])
    before = norm.before([comm.devices[0].array(x), None])
    assert isinstance(before[0], vkpar.Normed)
    rows = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * g
    wanted, most = rows @ w.T, 4 * gamma(24) * (np.abs(rows) @ np.abs(w).T)
    for gathers in (False, True):
        layer = ColumnParallelLinear(w, comm=comm, split=Split.of([5, 7]), gather_output=gathers)
        made = layer(before)
        parts = [part.numpy() for part in made if part is not None]
        assert (np.abs((parts[0] if gathers else np.concatenate(parts, axis=1)) - wanted) <= most).all()
    with pytest.raises(vkpar.InvalidUsageError, match="no activation"):
        layer(before, "relu")
    whole = ColumnParallelLinear(w, comm=comm, split=Split.of([12, 0]))
    block = ParallelMLP([whole], RowParallelLinear(w[:6].T.copy(), comm=comm, split=Split.of([6, 0])))
    stream, after = block(before, [comm.devices[0].array(x), None], norm)
    assert isinstance(after[0], vkpar.Normed)
    assert after[0].x is stream[0]
