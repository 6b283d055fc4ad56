"""What prompts of quantised weights cost besides products: scratch memory, and weights that are made anew."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import vkpar
from vkpar.bench.decode import Shape
from vkpar.bench.model import of_shape
from vkpar.bench.model_weights import weights
from vkpar.ops.matmul import few
from vkpar.ops.quantized import scratch
from vkpar.parallel.models import Llama
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.scratch import batch_of, piece_rows
from vkpar.parallel.plan.sources import spec_of

ways = importlib.import_module("vkpar.ops.matmul.ways")
pytestmark = pytest.mark.rig
Rig = Callable[..., vkpar.Communicator]


def model_of(comm: vkpar.Communicator, mode: str, shape: Shape, context: int) -> Llama:
    config = of_shape(shape, 96, context)
    made = weights(config, "q8_0")
    ratios = [Fraction(mode == "layer" or not rank) for rank in range(comm.nranks)]
    placement = place(spec_of(config, weights="q8_0"), mode, ratios)
    return Llama(config, made, comm, placement, context=context)


def prompt(model: Llama, count: int) -> None:
    model.rewind()
    model.prefill([1] * count)
    model.next_token()


@pytest.mark.parametrize("mode", ["single", "layer"])
def test_eager_prompts_take_no_new_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """What weights are made in, what is computed in between, and what a device keeps are as of an 8B shape, smaller."""
    monkeypatch.setattr(scratch, "SLAB", 1 << 18)
    comm, new = rig("LL", wire="f32"), []
    with model_of(comm, mode, Shape(4, 128, 448, 4, 1, 32), 64) as model:
        for device in comm.devices:
            device.memory()  # what was dropped before goes
            monkeypatch.setattr(device.logical.recycler, "_most", 1 << 20)
        for _ in range(2):
            prompt(model, 16)
        for device in comm.devices:
            allocate = device.logical.allocator.allocate

            def counted(nbytes: int, *arguments: Any, allocate: Any = allocate, **options: Any) -> Any:
                new.append(nbytes)
                return allocate(nbytes, *arguments, **options)

            monkeypatch.setattr(device.logical.allocator, "allocate", counted)
        for _ in range(3):
            prompt(model, 16)
        assert not new


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tokens", [130, 512, 1024])
def test_a_layer_split_unpacks_no_weight_more_often(rig: Rig, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Of a prompt that one device takes in one piece, two ranks make each weight once a piece of theirs."""
    unpacked: list[tuple[vkpar.Device, int]] = []
    unpack = ways.unpack_in

    def counted(call: Any, kind: str, piece: Any, out: vkpar.Array) -> None:
        unpacked.append((out.device, out.size))
        unpack(call, kind, piece, out)

    monkeypatch.setattr(ways, "unpack_in", counted)
    monkeypatch.setattr("vkpar.arrays.forms._MOST", 0)  # kept plans run without it
    comm, found = rig("LL", wire="f32"), {}
    for mode in ("single", "layer"):
        with model_of(comm, mode, Shape(4, 32, 32, 1, 1, 32), 1024) as model:
            unpacked.clear()
            model.prefill([1] * tokens)
            model.next_token()
            found[mode] = [sum(size for where, size in unpacked if where is each) for each in comm.devices]
    blocks = 4 * (4 * 32 * 32 + 3 * 32 * 32)
    most = batch_of(comm.devices)
    whole, parts = (-(-tokens // piece_rows(tokens, stages, most, unpacks=True)) for stages in (1, 2))
    head = 0 if all(map(few.rows_at_once, comm.devices)) else 96 * 32  # of the last token, which most read as it is
    assert found["single"] == [whole * blocks + head, 0]
    assert found["layer"] == [parts * blocks // 2, parts * blocks // 2 + head]
