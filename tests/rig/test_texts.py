"""Several texts at once: each gets the tokens that it gets alone, whatever joins and leaves, by one captured step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from hypothesis import given, settings
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError
from vkpar.arrays.array import Array
from vkpar.graph.graph import Graph
from vkpar.ops.attention import kvcaches
from vkpar.parallel import spec_of
from vkpar.parallel.models import Generation, Llama, Sampling, Text, Texts, open_model, prompts, texts, tiny
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.prompts import through_all
from vkpar.parallel.models.sampling import History
from vkpar.parallel.plan.placing import place

SMALL = replace(tiny.SIZES, vocabulary=128)
GEMMA3 = replace(SMALL, family="gemma3", tied=True, layers=3, window=5, sliding=(True, True, False), scale=0.3)
WIDE = replace(SMALL, layers=1, hidden=256, intermediate=256, head_dim=64)
CONFIGS = {
    "llama": SMALL,
    "qwen2": replace(SMALL, family="qwen2", tied=True, theta=1e6),
    "qwen3": replace(SMALL, family="qwen3", head_dim=32, theta=1e6),
    "gemma3": replace(GEMMA3, theta=1e6, local_theta=1e4, scaling=2.0),
    "window": replace(SMALL, window=5),
    "odd": replace(SMALL, heads=3, kv_heads=1),
    "mixtral": replace(SMALL, experts=5, active=2),
    "qwen3moe": replace(SMALL, family="qwen3moe", intermediate=32, experts=8, active=3, head_dim=32, normed=False),
    "wide": WIDE,
    "wide qwen3": replace(WIDE, family="qwen3"),
}
RARE = pytest.mark.sampled(1 << 32)  # with --full alone
CONTEXT, STEPS = 60, 12
LENGTHS = (12, 1, 5, 30, 2, 9, 3, 17, 1, 4, 6)
SAMPLINGS = (Sampling(), Sampling(0.8, seed=3), Sampling(), Sampling(1.5, top_k=9, seed=1), Sampling(0.7, top_p=0.9))
PROMPTS = [np.random.default_rng(size).integers(0, 128, size).tolist() for size in LENGTHS]


def sampling_of(number: int) -> Sampling:
    return SAMPLINGS[number % len(SAMPLINGS)]


@cache
def weights_of(name: str) -> dict[str, Any]:
    return tiny.weights(CONFIGS[name], 1)


@contextmanager
def model_of(
    comm: vkpar.Communicator, name: str, mode: str, ratios: Sequence[int], sequences: int, **options: Any
) -> Iterator[Llama]:
    config: Config = CONFIGS[name]
    placement = place(spec_of(config), mode, [Fraction(ratio) for ratio in ratios])
    settings = {"context": CONTEXT, "cache_dtype": "float32", "sequences": sequences, **options}
    with Llama(config, weights_of(name), comm, placement, **settings) as model:
        yield model


@cache
def alone(rigs_key: int, name: str, number: int, steps: int = STEPS) -> list[int]:
    """The tokens that a text gets of a model of one text, on one device."""
    comm = ALONE[rigs_key]
    with model_of(comm, name, "single", (1,), 1) as model:
        return list(Generation(model, PROMPTS[number], steps, sampling_of(number)))


ALONE: dict[int, vkpar.Communicator] = {}


@pytest.fixture
def one(rig: Any) -> int:
    """A key of a communicator of one device, by which :func:`alone` is kept while it is open."""
    comm = rig("L", wire="f32")
    ALONE[id(comm)] = comm
    return id(comm)


CASES = [
    ("llama", "L", "single", (1,), 3),
    pytest.param("llama", "S", "single", (1,), 11, marks=RARE),
    ("llama", "LS", "tensor", (3, 1), 8),
    ("llama", "LLL", "tensor", (1, 0, 1), 5),
    ("llama", "LLL", "layer", (1, 0, 1), 4),
    ("qwen2", "LL", "tensor", (1, 1), 32),
    pytest.param("qwen3", "LS", "tensor", (1, 1), 9, marks=RARE),
    ("qwen3", "LL", "tensor", (1, 3), 9),
    ("gemma3", "LL", "tensor", (1, 1), 3),
    pytest.param("gemma3", "SL", "layer", (1, 1), 10, marks=RARE),
    ("window", "LL", "tensor", (1, 3), 5),
    ("odd", "LLL", "tensor", (1, 1, 1), 5),
    ("wide", "LS", "row", (3, 1), 9),
    ("wide qwen3", "LL", "row", (1, 1), 4),
    ("mixtral", "LLL", "tensor", (1, 1, 1), 4),
    pytest.param("mixtral", "LS", "expert", (1, 1), 9, marks=RARE),
    ("qwen3moe", "LLL", "expert", (3, 0, 1), 3),
    pytest.param("qwen3moe", "LS", "layer", (1, 1), 11, marks=RARE),
]


@pytest.mark.parametrize(("name", "letters", "mode", "ratios", "sequences"), CASES)
def test_each_text_gets_what_it_gets_alone(
    rig: Any, one: int, name: str, letters: str, mode: str, ratios: tuple[int, ...], sequences: int
) -> None:
    """Likeliest tokens and drawn ones side by side, of prompts of unlike lengths, more than there is room for."""
    expected = [alone(one, name, number) for number in range(len(PROMPTS))]
    with model_of(rig(letters, wire="f32"), name, mode, ratios, sequences) as model:
        samplings = [sampling_of(number) for number in range(len(PROMPTS))]
        generation = Generation(model, PROMPTS, STEPS, samplings)
        rows = list(generation)
        assert generation.tokens == expected
        for number, tokens in enumerate(expected):
            assert [row[number] for row in rows if row[number] is not None] == tokens, "in their order"
        assert len(rows) >= -(-len(PROMPTS) // sequences) * (STEPS - 1)
        assert generation.prompt_rate > 0 < generation.step_rate
        assert model.length == 0
        greedy = [number for number in range(len(PROMPTS)) if sampling_of(number).greedy]  # several launches at a time
        again = Generation(model, [PROMPTS[number] for number in greedy], STEPS)
        list(again)
        assert again.tokens == [expected[number] for number in greedy]
        assert list(Generation(model, PROMPTS[0], STEPS)) == expected[0], "the model's own text, by its own step"


@pytest.mark.parametrize(
    ("name", "letters", "mode"),
    [("window", "LS", "tensor"), ("gemma3", "LL", "layer"), pytest.param("gemma3", "LS", "tensor", marks=RARE)],
)
def test_windows_of_texts_keep_the_latest_keys_alone(
    rig: Any, one: int, monkeypatch: pytest.MonkeyPatch, name: str, letters: str, mode: str
) -> None:
    """Each text's are moved to the front when its own are full, wherever it lies."""
    monkeypatch.setattr(kvcaches, "_MOVED", 1)
    numbers, steps, moved = (7, 0, 5), 43, []
    shift = kvcaches.KVCaches.shift
    monkeypatch.setattr(kvcaches.KVCaches, "shift", lambda *given: moved.append(given[1]) or shift(*given))
    with model_of(rig(letters, wire="f32"), name, mode, (1, 1), 2, batch=4) as model:
        prompts = [PROMPTS[number] for number in numbers]
        generation = Generation(model, prompts, steps, [sampling_of(number) for number in numbers])
        list(generation)
        assert generation.tokens == [alone(one, name, number, steps) for number in numbers]
        assert set(moved) == {0, 1}
        with Texts(model) as several:
            text = several.join(PROMPTS[7], steps)
            for _ in several.steps(8):
                pass
            while text.left > 1:
                several.step()
            with pytest.raises(InvalidUsageError, match="has a window of tokens whose keys are kept no longer"):
                several.rewind(text, 2)
            tokens = list(text.tokens)
            several.rewind(text, len(tokens) - 7)
            while several.joined:
                several.step()
            assert text.tokens == alone(one, name, 7, steps)


SELDOM = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_1", "q5_k", "q6_k", "q5_k_m")  # others are alike
KINDS = [pytest.param(kind, marks=RARE if kind in SELDOM else ()) for kind in tiny.FILES]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("letters", "mode", "sequences"), [("LS", "tensor", 3), ("L", "single", 10)])
def test_weights_of_every_kind(rig: Any, tmp_path: Path, kind: str, letters: str, mode: str, sequences: int) -> None:
    """Up to the first token whose likeliest two are nearly as likely, where texts at once may round otherwise."""
    pytest.importorskip("gguf")
    config = replace(WIDE, layers=2, heads=8, kv_heads=2, intermediate=512)
    tiny.write_gguf(tmp_path / "m.gguf", config, tiny.weights(config, 3), kind)
    with open_model(tmp_path / "m.gguf") as file:
        options = {"mode": mode, "ratios": [1] * len(letters), "strict": True, "context": CONTEXT}
        with file.load(rig("L", wire="f32"), mode="single", ratios=[1], context=CONTEXT) as model:
            expected, gaps = [], []
            for prompt in PROMPTS[:6]:
                model.rewind()
                tokens = [int(token) for token in Generation(model, prompt, STEPS)]
                model.rewind()
                logits = np.sort(model.prefill([*prompt, *tokens], logits=True)[len(prompt) - 1 : -1])
                expected.append(tokens)
                gaps.append(logits[:, -1] - logits[:, -2])
        with file.load(rig(letters, wire="f32"), sequences=sequences, **options) as model:
            generation = Generation(model, PROMPTS[:6], STEPS)
            list(generation)
        compared = 0
        for tokens, wanted, gap in zip(generation.tokens, expected, gaps, strict=True):
            sure = next((number for number, each in enumerate(gap) if each < 1e-2), STEPS)
            assert tokens[:sure] == wanted[:sure]
            compared += sure
        assert compared > 6 * STEPS // 3, "most tokens are likelier than all others by far"


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, len(PROMPTS) - 1), st.integers(1, STEPS)),
        st.tuples(st.just("leave"), st.integers(0, 31), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("ahead"), st.integers(1, 8), st.integers(1, 8)),
        st.tuples(st.just("meanwhile"), st.integers(0, len(PROMPTS) - 1), st.integers(1, 8)),
    ),
    min_size=8,
    max_size=40,
)


def act(several: Texts, made: list[tuple[Text, int]], what: str, number: int, count: int) -> None:
    """Do what hypothesis drew, where that is possible."""
    if what == "join" and several.free:
        made.append((several.join(PROMPTS[number], count, sampling_of(number)), number))
    if not several.joined:
        return
    if what == "leave":
        several.leave(several.joined[number % len(several.joined)])
    if what == "step":
        several.step()
    if what == "ahead":
        for taken, _ in enumerate(several.steps(number), 1):  # what was made ahead is dropped
            if taken == count:
                break
    if what == "meanwhile":
        for _ in several.steps(count):
            if several.free:
                made.append((several.join(PROMPTS[number], STEPS, sampling_of(number)), number))


@pytest.mark.parametrize(
    ("name", "letters", "mode", "ratios", "sequences"),
    [("llama", "LS", "tensor", (1, 1), 3), ("qwen3moe", "L", "single", (1,), 4), ("window", "LL", "layer", (1, 1), 9)],
)
def test_whatever_joins_and_leaves(
    rig: Any,
    one: int,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    letters: str,
    mode: str,
    ratios: tuple[int, ...],
    sequences: int,
) -> None:
    monkeypatch.setattr(kvcaches, "_MOVED", 1)
    with model_of(rig(letters, wire="f32"), name, mode, ratios, sequences) as model, Texts(model) as several:

        @settings(max_examples=50 if FULL else 5, deadline=None)
        @given(actions=ACTIONS)
        def run(actions: list[tuple[str, int, int]]) -> None:
            made: list[tuple[Text, int]] = []
            for action in actions:
                act(several, made, *action)
            while several.joined:
                several.step()
            for text, number in made:
                assert text.tokens == alone(one, name, number)[: len(text.tokens)]
                assert text.ended
                assert len(text.tokens) <= text.steps

        run()
        assert several.free == sequences


def test_one_launch_and_one_capture_serve_all(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever joins and leaves: nothing is captured anew, and the host reads no more than the tokens."""
    launches: list[int] = []
    captures: list[Any] = []
    reads: list[tuple[int, ...]] = []
    launch, read, captured = Graph.launch, Array.read, texts.capture
    monkeypatch.setattr(texts, "capture", lambda *args, **how: captures.append(args) or captured(*args, **how))
    with model_of(rig("LS", wire="f32"), "llama", "tensor", (1, 1), 4) as model, Texts(model) as several:
        assert several.stats() is None
        for number in range(3):
            several.join(PROMPTS[number], 9)
        several.step()  # captures
        stats = several.stats()

        def counted(array: Array, *args: Any, **options: Any) -> Any:
            found = read(array, *args, **options)
            if not args:  # a part of an array is read by itself
                reads.append(found.shape)
            return found

        monkeypatch.setattr(Graph, "launch", lambda *args, **how: launches.append(1) or launch(*args, **how))
        monkeypatch.setattr(Array, "read", counted)
        for _ in range(3):
            several.step()
        assert (len(launches), reads) == (3, [(1, 4)] * 3)
        launches.clear()
        reads.clear()
        for _ in several.steps(5):
            pass
        assert (len(launches), reads) == (4, [(4, 4)]), "all are under way before the first token is read"
        several.join(PROMPTS[3], 3)
        while several.joined:
            several.step()
        assert len(captures) == 1
        assert several.stats().operations == stats.operations


@pytest.mark.parametrize(
    ("name", "letters", "mode"), [("llama", "LSL", "tensor"), pytest.param("mixtral", "LS", "expert", marks=RARE)]
)
def test_replicas_are_the_same_bits(rig: Any, name: str, letters: str, mode: str) -> None:
    comm = rig(letters)
    with model_of(comm, name, mode, (1,) * len(letters), 10) as model, Texts(model) as several:
        for number in range(7):
            several.join(PROMPTS[number], 9)
        for _ in range(3):
            several.step()
        together = model._together
        for each in (together.positions, together.tokens):
            assert len({array.numpy().tobytes() for array in each if array is not None}) == 1

        def through(*given: Any) -> Any:
            return model._through(*given, caches=model._cache.together)

        given = together.tokens, together.positions
        stream, _ = through_all(model._pieces.stages, through, comm, *given, model.config.hidden)
        assert len({part.numpy().tobytes() for part in stream if part is not None}) == 1


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Pieces are captured on every device, short ones too, rows of texts moved one by one; an item a capture."""
    made: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return vkpar.capture(*arguments, **options)

    monkeypatch.setattr(prompts, "captured_on", lambda devices: True)
    monkeypatch.setattr(prompts, "_LEAST", 2)
    monkeypatch.setattr(kvcaches, "_MOVED", 1)
    for module in (prompts, texts):
        monkeypatch.setattr(module, "capture", counted)
    return made


@pytest.mark.parametrize(
    ("letters", "mode", "ratios"), [("LS", "tensor", (1, 1)), ("LLL", "layer", (1, 0, 1)), ("L", "single", (1,))]
)
def test_texts_that_join_share_captured_pieces(
    rig: Any, one: int, captures: list[object], letters: str, mode: str, ratios: tuple[int, ...]
) -> None:
    """Those of the model's own text, too: joining records nothing, and each text keeps what it has where it lies."""
    expected = alone(one, "llama", 0)
    captures.clear()
    stages = sum(map(bool, ratios)) if mode == "layer" else 1
    with model_of(rig(letters, wire="f32"), "llama", mode, ratios, 4) as model:
        for _ in range(2):
            model.rewind()
            model.prefill(PROMPTS[0])
        assert len(captures) == stages
        model.rewind()
        with Texts(model) as several:
            made = []
            for _ in range(4):
                made.append(several.join(PROMPTS[0], STEPS))
                several.step()
            assert len(captures) == stages + 1, "the step"
            assert {text.sequence for text in made} == {0, 1, 2, 3}
            several.leave(made[1])
            made.append(several.join(PROMPTS[0], STEPS))
            while several.joined:
                several.step()
            assert len(captures) == stages + 1
        assert [text.tokens for text in made] == [expected, made[1].tokens, *[expected] * 3]
        assert made[1].tokens == expected[: len(made[1].tokens)]


def test_texts_that_join_between_steps_that_are_under_way(rig: Any, one: int, captures: list[object]) -> None:
    """A text that gives way then has keys of tokens that it was not given yet."""
    with model_of(rig("LS", wire="f32"), "llama", "tensor", (1, 1), 3) as model, Texts(model) as several:
        first = several.join(PROMPTS[7], STEPS)
        for taken, _ in enumerate(several.steps(7), 1):
            if taken == 2:
                second = several.join(PROMPTS[0], STEPS)
                assert (first.sequence > 0, second.sequence) == (True, 0)
            if taken == 4:
                third = several.join(PROMPTS[2], STEPS)
                logits = several.logits()
        assert first.tokens == alone(one, "llama", 7)[:8]
        assert len(second.tokens) == 1
        while several.joined:
            several.step()
        assert [first.tokens, second.tokens, third.tokens] == [alone(one, "llama", number) for number in (7, 0, 2)]
        assert logits[first.sequence].argmax() == first.tokens[7], "the row of the latest step went with the text"


def test_a_text_that_is_rewound_between_steps_that_are_under_way(rig: Any, one: int) -> None:
    """What these have made of it is not given to it."""
    with model_of(rig("LS", wire="f32"), "llama", "tensor", (1, 1), 2) as model, Texts(model) as several:
        made = [several.join(PROMPTS[number], STEPS) for number in (7, 0)]
        for taken, given in enumerate(several.steps(7), 1):
            assert given == (made if taken <= 3 else made[1:])
            if taken == 3:
                several.rewind(made[0], 2)
        assert [len(text.tokens) for text in made] == [2, 8]
        while several.joined:
            several.step()
        assert [text.tokens for text in made] == [alone(one, "llama", number) for number in (7, 0)]


def test_steps_that_fail_are_made_again(rig: Any, one: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the step is captured; between its launches; and while their tokens are waited for."""

    def fail(several: Texts, place: type, name: str, before: int = 0) -> None:
        """Make steps, of which all calls but so many of a method fail."""
        method, calls = getattr(place, name), itertools.count()

        def call(*given: Any, **words: Any) -> Any:
            if next(calls) >= before:
                raise MemoryError(name)
            return method(*given, **words)

        with monkeypatch.context() as patched:
            patched.setattr(place, name, call)
            with pytest.raises(MemoryError, match=name):
                list(several.steps())

    with model_of(rig("LS", wire="f32"), "llama", "tensor", (1, 1), 3) as model, Texts(model) as several:
        made = [several.join(PROMPTS[0], STEPS)]
        fail(several, History, "note")
        made.append(several.join(PROMPTS[7], STEPS))
        fail(several, Graph, "launch", 2)
        several.step()
        fail(several, History, "read")
        made.append(several.join(PROMPTS[2], STEPS))
        while several.joined:
            several.step()
        assert [text.tokens for text in made] == [alone(one, "llama", number) for number in (0, 7, 2)]


def test_warm_up(rig: Any, one: int, captures: list[object]) -> None:
    """What it captured serves this Texts, and all of the model that come later."""
    with model_of(rig("LS", wire="f32"), "llama", "tensor", (1, 1), 2) as model:
        with Texts(model) as several:
            several.warm_up(len(PROMPTS[0]))
            count = len(captures)
            assert count == 2
            with pytest.raises(InvalidUsageError, match="no step was made"):
                several.logits()
            text = several.join(PROMPTS[0], STEPS)
            with pytest.raises(InvalidUsageError, match=r"before the first text; 1 go on"):
                several.warm_up()
            while several.joined:
                several.step()
        generation = Generation(model, [PROMPTS[0], PROMPTS[0]], STEPS)
        list(generation)
        assert [text.tokens, *generation.tokens] == [alone(one, "llama", 0)] * 3
        assert len(captures) == count
    with model_of(rig("L"), "llama", "single", (1,), 1, context=1) as model, Texts(model) as several:
        several.warm_up(5)
        assert len(several.join([3], 1).tokens) == 1


def test_ends(rig: Any) -> None:
    """A text leaves by itself after a token that stops it, or its last one."""
    with model_of(rig("L", wire="f32"), "llama", "single", (1,), 2) as model:
        tokens = list(Generation(model, PROMPTS[0], STEPS))
        stop = tokens[4]
        model.rewind()
        with Texts(model) as several:
            stopped = several.join(PROMPTS[0], STEPS, stops=[stop, 999])
            whole = several.join(PROMPTS[0], STEPS)
            while several.joined:
                several.step()
            assert stopped.tokens == tokens[: tokens.index(stop) + 1]
            assert whole.tokens == tokens
            first = several.join(PROMPTS[0], STEPS, stops=tokens[:1])
            assert (first.tokens, first.ended, several.free) == (tokens[:1], True, 2), "it has not joined at all"
            none = several.join(PROMPTS[0], 0)
            assert (none.tokens, none.ended) == ([], True)
            assert first.prompt_seconds > 0 < whole.step_seconds
        generation = Generation(model, [PROMPTS[0], PROMPTS[1]], 3, stops=tokens[1:2])
        assert list(generation)[2][0] is None
        assert list(Generation(model, [PROMPTS[0], PROMPTS[1]], 0)) == []
        long = several_of(model, CONTEXT - 1)
        assert len(long.tokens) == 2, "the last one is not put in"


def several_of(model: Llama, length: int) -> Text:
    with Texts(model) as several:
        text = several.join([1] * length, 2)
        several.step()
    return text


def test_logits_that_are_not_finite(rig: Any) -> None:
    config = SMALL
    weights = {name: np.array(each) for name, each in weights_of("llama").items()}
    name = next(name for name in weights if "down_proj" in name)
    weights[name][:] = np.nan
    placement = place(spec_of(config), "single", [Fraction(1)])
    with Llama(config, weights, rig("L"), placement, context=CONTEXT, sequences=2) as model, Texts(model) as several:
        for sampling in (Sampling(), Sampling(0.5)):
            with pytest.raises(InvalidUsageError, match="not finite"):
                several.join([1, 2], 3, sampling)
        assert several.free == 2


def test_bad_input(rig: Any) -> None:
    comm = rig("L", wire="f32")
    for wrong in (0, 33, -1, 1.5, True, None, "2"):
        with (
            pytest.raises(InvalidUsageError, match="sequences is a whole number from 1 to 32"),
            model_of(
                comm,
                "llama",
                "single",
                (1,),
                wrong,  # type: ignore[arg-type]
            ),
        ):
            pass
    with model_of(comm, "llama", "single", (1,), 2) as model:
        model.prefill([1])
        with pytest.raises(InvalidUsageError, match="keeps 1 tokens of its own"):
            Texts(model)
        model.rewind()
        several = Texts(model)
        for call in (several.step, several.logits):
            with pytest.raises(InvalidUsageError, match=r"no text goes on|no step was made"):
                call()
        with pytest.raises(InvalidUsageError, match="close that first"):
            Texts(model)
        for call in (lambda: model.prefill([1]), model.feed, lambda: model.replicas([1])):
            with pytest.raises(InvalidUsageError, match=r"of a Texts|give a prompt first"):
                call()
        for prompt, steps, message in (
            ([], 1, "at least one id"),
            ([128], 1, "none of the 128"),
            ([1], -1, "steps is"),
            ([1], True, "steps is"),
            ([1] * 50, 12, "do not fit the 60"),
            (iter(lambda: 1, 2), 1, "do not fit the 60"),
        ):
            with pytest.raises(InvalidUsageError, match=message):
                several.join(prompt, steps)
        one, two = (several.join([number], 5) for number in (1, 2))
        with pytest.raises(InvalidUsageError, match="room for no more"):
            several.join([3], 5)
        for most in (-1, 1.5, True, None):
            with pytest.raises(InvalidUsageError, match="steps is a whole number from 0"):
                next(several.steps(most))  # type: ignore[arg-type]
        assert list(several.steps(0)) == []
        assert len(one.tokens) == 1
        several.step()
        for count in (0, 3, -1):
            with pytest.raises(InvalidUsageError, match="of 2 tokens that were made"):
                several.rewind(one, count)
        tokens = list(one.tokens)
        several.rewind(one)
        several.step()
        assert one.tokens == tokens
        assert several.logits().shape == (2, 128)
        several.leave(one)
        for gone in (one, replace_of(two)):
            with pytest.raises(InvalidUsageError, match="has ended already"):
                several.leave(gone)
        several.close()
        several.close()
        assert two.ended
        for again in (several.step, lambda: several.join([1], 1), lambda: several.leave(two)):
            with pytest.raises(InvalidUsageError, match="the texts are closed"):
                again()
        for prompts, samplings, message in (
            ([[1], []], Sampling(), "prompt 1: tokens are"),
            ([[1], [128]], Sampling(), "prompt 1: token 128"),
            ([[1] * 59, [1]], Sampling(), "prompt 0: 59 tokens"),
            ([[1], [2]], [Sampling()], "one Sampling or 2, not 1"),
            ([1, 2], [Sampling()], "one text takes one"),
        ):
            with pytest.raises(InvalidUsageError, match=message):
                Generation(model, prompts, 4, samplings)
        open_still = Texts(model)
    with pytest.raises(InvalidUsageError, match="the texts are closed"):
        open_still.step()


def replace_of(text: Text) -> Text:
    """Another text of the same number."""
    return Text(text.count, text.steps, text.sampling, text.stops, text.sequence)
