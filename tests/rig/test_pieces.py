"""Pieces of prompts: those that a graph runs give the bits of those that run eagerly, in every split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.vulkan.parking import parked
from numpy.typing import NDArray

import vkpar
from vkpar.parallel.models import Llama, prompts, tiny
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.sources import spec_of
from vkpar.timeouts import Deadline

pytestmark = pytest.mark.rig
Rig = Callable[..., vkpar.Communicator]

NARROW = replace(tiny.SIZES, vocabulary=128)
WIDE = replace(NARROW, layers=2, hidden=256, intermediate=256, head_dim=64)  # what a row split slices
BATCH = 12
PROMPT = [1 + 7 * number % 127 for number in range(4 * BATCH + 5)]


@contextmanager
def model_of(comm: vkpar.Communicator, mode: str, ratios: Sequence[int]) -> Iterator[Llama]:
    config = WIDE if mode == "row" else NARROW
    placement = place(spec_of(config), mode, [Fraction(ratio) for ratio in ratios])
    with Llama(config, tiny.weights(config), comm, placement, context=128, batch=BATCH) as model:
        yield model


def turns(model: Llama) -> NDArray[np.float32]:
    """Return the logits of a prompt, of another one that goes on, and of a token after both."""
    first = model.prefill(PROMPT, logits=True)
    second = model.prefill(PROMPT[: 2 * BATCH], logits=True)
    model.feed(3)
    assert first is not None
    assert second is not None
    return np.concatenate([first, second, model.next_logits()[None]])


def counted_captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Have pieces captured on every device from now on; return a list that gets an item a capture."""
    captures: list[object] = []

    def counted(*arguments: object, **options: object) -> object:
        captures.append(arguments)
        return vkpar.capture(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    monkeypatch.setattr(prompts, "capture", counted)
    return captures


@pytest.mark.parametrize(
    ("letters", "mode", "ratios"),
    [
        ("L", "single", (1,)),
        ("LL", "tensor", (1, 1)),
        ("LS", "tensor", (1, 1)),
        ("LLL", "layer", (1, 0, 1)),
        ("LS", "layer", (1, 1)),
        ("LL", "row", (3, 1)),
    ],
)
def test_captured_pieces_are_eager_ones(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, letters: str, mode: str, ratios: tuple[int, ...]
) -> None:
    comm = rig(letters)
    with model_of(comm, mode, ratios) as model:
        eager = turns(model)
    captures = counted_captures(monkeypatch)
    with model_of(comm, mode, ratios) as model:
        assert turns(model).tobytes() == eager.tobytes()
        model.rewind(7)  # pieces at other places
        model.prefill(PROMPT[7:], logits=False)
        model.rewind()
        assert turns(model).tobytes() == eager.tobytes()
    assert len(captures) == (2 if mode == "layer" else 1), "one graph for all pieces, or one for each rank's blocks"


def test_a_rank_goes_on_with_the_next_piece_while_the_one_after_it_is_held_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of layer splits wait for no launch of another rank's but by what is sent."""
    captures, comm = counted_captures(monkeypatch), rig("LL")
    places = [np.arange(start, start + BATCH, dtype=np.uint32) for start in (0, BATCH, 2 * BATCH)]
    tokens = np.array(PROMPT[:BATCH], np.uint32)
    with model_of(comm, "layer", (1, 1)) as model:

        def run() -> bytes:
            found = [model._pieces.run(model._through, tokens, each)[1] for each in places]
            assert isinstance(found[-1], vkpar.Array)
            return found[-1].numpy().tobytes()

        run()
        expected = run()
        assert len(captures) == 2
        first, second = comm.devices
        with parked(second) as release:
            for each in places[:2]:
                model._pieces.run(model._through, tokens, each)
            first.logical.stream.flush()
            first.logical.compute.wait(first.logical.compute.last, Deadline(30.0))
            release()
        assert run() == expected
        assert len(captures) == 2


def test_another_length_takes_the_graphs_place_when_it_comes_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    with model_of(rig("L"), "single", (1,)) as model:
        whole, last = model.prefill(PROMPT[:BATCH], logits=True), b""
        for count in (BATCH, 5, 5, BATCH - 1, BATCH - 1, BATCH):
            model.rewind()
            found = model.prefill(PROMPT[:count], logits=True)
            assert whole is not None
            assert found is not None
            assert np.abs(found - whole[:count]).max() < 1e-4
            last = found.tobytes()
        assert last == whole.tobytes()


def test_pieces_are_captured_on_gpus_alone(rig: Rig) -> None:
    assert not prompts.captured_on(rig("LS").devices)


def test_without_room_for_a_graph_pieces_run_eagerly(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_arguments: object, **_options: object) -> object:
        raise vkpar.OutOfMemoryError(-2, "vkAllocateMemory")

    comm = rig("LL")
    with model_of(comm, "tensor", (1, 1)) as model:
        eager = turns(model)
    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    monkeypatch.setattr(prompts, "capture", full)
    with model_of(comm, "tensor", (1, 1)) as model:
        assert turns(model).tobytes() == eager.tobytes()
    assert [record.message.split(":")[0] for record in caplog.records if "graph" in record.message] == [
        "prompts run without a graph, which has no room"
    ]


def test_a_prompt_that_comes_again_needs_no_new_graph(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its last piece has the same length each time, others come in between."""
    captures = counted_captures(monkeypatch)
    monkeypatch.setattr(prompts, "_LEAST", 4)
    with model_of(rig("L"), "single", (1,)) as model:
        for _ in range(4):
            model.rewind()
            model.prefill(PROMPT)  # four pieces and five tokens
    assert len(captures) == 1


def test_a_graph_makes_room_for_a_piece_of_another_length(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    with model_of(rig("L"), "single", (1,)) as model:
        whole = turns(model).tobytes()
        real, refused = model._through, []

        def full(*arguments: Any) -> object:
            if not refused:
                refused.append(arguments)
                raise vkpar.OutOfMemoryError(-2, "vkAllocateMemory")
            return real(*arguments)

        monkeypatch.setattr(model, "_through", full)
        model.rewind()
        assert turns(model).tobytes() == whole
    assert refused
    assert "prompts run without a graph" in caplog.text
