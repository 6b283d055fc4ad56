"""Prompts in two halves of their rows: the logits of whole ones within bounds, equal replicas, sums beside products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import helpers.parallel.llama_reference as reference
import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError
from vkpar.parallel.models import Llama, prompts, tiny, two_halves
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.plan import plan
from vkpar.parallel.plan.sources import spec_of
from vkpar.parallel.rates import speed

pytestmark = pytest.mark.rig
Rig = Callable[..., vkpar.Communicator]

SMALL = replace(tiny.SIZES, vocabulary=96)
PROMPT = [1 + 7 * number % 95 for number in range(37)]


@cache
def weights() -> dict[str, Any]:
    return tiny.weights(SMALL, 0)


@contextmanager
def model_of(comm: vkpar.Communicator, mode: str = "tensor", **options: Any) -> Iterator[Llama]:
    config = options.pop("config", SMALL)
    placement = place(spec_of(config), mode, options.pop("ratios", [Fraction(1)] * comm.nranks))
    with Llama(config, weights(), comm, placement, **{"context": 64, "cache_dtype": "float32", **options}) as model:
        model.halves = "on"
        yield model


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("letters", "wire", "ratios", "window"),
    [
        ("LL", "f32", (1, 1), None),
        ("LLL", "q8", (1, 1, 1), None),
        ("LS", "f16", (3, 1), None),
        ("LLL", "f32", (1, 0, 1), 9),
    ],
)
def test_halves_are_within_the_bounds_of_whole_prompts(
    rig: Rig, letters: str, wire: str, ratios: Sequence[int], window: int | None
) -> None:
    """Of every length, one row and an odd one included, before and after tokens that are kept."""
    config = replace(SMALL, window=window)
    value, bound = reference.bounded(config, weights(), PROMPT, ranks=len(letters), wire=wire)
    with model_of(rig(letters, wire=wire), ratios=[Fraction(each) for each in ratios], config=config) as model:
        for cuts in ([37], [1, 36], [2, 3, 32], [18, 19]):
            model.rewind()
            found = []
            for count in cuts:
                start = model.length
                found.append(model.prefill(PROMPT[start : start + count], logits=True))
            assert (np.abs(np.concatenate(found) - value) <= bound).all()
        model.rewind()
        streams = model.replicas(PROMPT)
        assert len(streams) == len(letters)
        assert all(stream.tobytes() == streams[0].tobytes() for stream in streams)


@pytest.mark.parametrize("letters", ["LL", "LLL", "LS"])
def test_captured_halves_are_eager_ones(rig: Rig, monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    comm, config = rig(letters), replace(SMALL, window=9 if letters == "LL" else None)
    with model_of(comm, config=config) as model:
        eager = model.prefill(PROMPT, logits=True)
    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    with model_of(comm, batch=len(PROMPT), config=config) as model:
        for _ in range(3):
            model.rewind()
            found = model.prefill(PROMPT, logits=True)
        assert found is not None
        assert eager is not None
        assert model._pieces._rows == len(PROMPT), "it was captured"
        assert found.tobytes() == eager.tobytes()
        model.halves = "off"
        assert model._pieces._rows == 0, "what is captured next goes through whole"
        whole: list[Any] = []
        for _ in range(3):
            model.rewind()
            whole.append(model.prefill(PROMPT, logits=True))
        assert whole[0].tobytes() == whole[2].tobytes()


@pytest.mark.parametrize("mode", ["layer", "row", "single"])
def test_other_splits_have_no_halves(rig: Rig, mode: str) -> None:
    comm = rig("L" if mode == "single" else "LL")
    with pytest.raises(InvalidUsageError, match="tensor split"), model_of(comm, mode):
        pass


@pytest.mark.parametrize(("rows", "first"), [(2, 1), (3, 2), (255, 128), (256, 128), (257, 192), (512, 256)])
def test_the_first_half_has_whole_tiles(rows: int, first: int) -> None:
    assert two_halves.middle(rows) == first


def test_auto_goes_by_the_plan(rig: Rig) -> None:
    """Prompts that are long enough go in halves where the plan measured that to pay; no others do."""
    comm = rig("LL")
    with model_of(comm) as model:
        made = plan(spec_of(SMALL), comm, mode="tensor", ratios="even", context=64)
        assert made.halves is None, "processors share their cores: nothing is measured"
        for ratio, halved in ((None, False), (0.98, False), (0.8, True)):
            model.plan = replace(made, halves=ratio)
            model.halves = "auto"
            assert model.halves == "auto"
            assert model.in_halves(two_halves.WORTH) == halved
            assert not model.in_halves(two_halves.WORTH - 1)
        model.halves = "off"
        assert not model.in_halves(two_halves.WORTH)
        for wrong in (True, "yes", ""):
            with pytest.raises(InvalidUsageError, match="one of auto, on, off"):
                model.halves = wrong  # type: ignore[assignment]


def test_what_decides_is_measured(rig: Rig) -> None:
    comm = rig("LL")
    assert speed.halves_ratio(comm.devices, 64, 64, comm) is None or not comm.devices[0].info.is_cpu
    with ExitStack() as stack:
        weights = speed._Weights(comm.devices, 64, 6, 64)
        whole, halves = (speed._Chain(stack, weights, comm, cut).seconds() for cut in (6, 3))
    assert whole > 0
    assert halves > 0
