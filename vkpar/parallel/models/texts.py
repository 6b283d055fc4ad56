"""Several texts at once: each joins and leaves while others go on, and one captured step serves all of them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import ops
from vkpar.comm import ranks as rig
from vkpar.errors import InvalidUsageError
from vkpar.graph.capture import capture
from vkpar.parallel.layers.norms import Parts, there
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.prompts import checked, listed
from vkpar.parallel.models.sampling import History, Sampling, Text, read_logits
from vkpar.unpickled import Closable, Unpickled

AHEAD: Final = 8  # launches of the step that are under way before their tokens are read
_PROMPTS: Final = 0  # the text whose place prompts run in, by pieces that were captured for it


def check_steps(steps: object) -> None:
    """Refuse what is no number of tokens."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidUsageError(f"steps is a whole number from 0, not {steps!r}")


class _Together:
    """What the devices have for a step of several texts: made once for a decoder, which keeps it.

    Args:
        model: the decoder.

    Attributes:
        tokens: of each text the latest one; ``positions`` where these go, ``going`` 1 for texts that go on, else 0.
        history: the tokens that launches gave.
        graph: the captured step; None before the first one.
    """

    def __init__(self, model: Llama) -> None:
        comm, self._model = model.comm, model
        self.tokens, self.positions, self.going = (
            rig.by_rank(comm, [device.zeros(model.sequences, "uint32") for device in comm.devices]) for _ in range(3)
        )
        self.history = History(there(self.tokens, model._here).device, AHEAD, model.sequences)
        self.graph: Any = None
        self._logits: Any = None

    @classmethod
    def of(cls, model: Llama) -> _Together:
        """Return what a decoder keeps."""
        kept = model._together
        if not isinstance(kept, cls):
            kept = model._together = cls(model)
        return kept

    def write(self, parts: Parts, values: dict[int, int]) -> None:
        """Write a value of each text, and 0 for those that are missing."""
        row = np.array([values.get(number, 0) for number in range(self._model.sequences)], np.uint32)
        for array in rig.own(self._model.comm, parts):
            assert array is not None, "ranks of this process have it"
            array.write(row)

    def launch(self, count: int) -> None:
        """Launch the step so many times."""
        if self.graph is None:
            self._capture()
        for number in range(count):
            self.graph.launch(number=number)

    def logits(self) -> NDArray[np.float32]:
        """Return those of the latest launch; over several processes all call it together."""
        return read_logits(self._model.comm, self._logits, self._model.root)

    def move(self, source: int, target: int, tokens: int) -> None:
        """Bring a text of so many tokens to another place, its row of the latest logits as well."""
        self._model._cache.move(source, target, tokens)
        if self._logits is not None:
            self._logits[target].copy_from(self._logits[source])

    def _capture(self) -> None:
        comm, here = self._model.comm, self._model._here
        with capture(comm.devices, comm=comm if comm.nranks > 1 else None) as step:
            number = there(rig.by_rank(comm, list(step.param("number"))), here)
            logits = self._model._of_rows(self.tokens, self.positions)
            self.history.note(number, there(self.tokens, here))
            for rank in comm.local_ranks:
                places = there(self.positions, rank)
                ops.add(places, there(self.going, rank), out=places)
        self.graph, self._logits = step, logits
        self._model._stack.callback(step.close)


class Texts(Closable, Unpickled):
    """The texts of a decoder that was made for several: they join, get a token with each step, and leave.

    A prompt is run when its text joins. Then one launch of a captured step gives every text its next token, whichever
    they are: each has its own position, keys and values on the devices, and gets the tokens that it would get alone.
    Over several processes all make the same calls.

    Args:
        model: the decoder. It takes no prompt of its own until this is closed.

    Raises:
        InvalidUsageError: the model keeps tokens of a text of its own, or its texts are taken already.

    Examples:
        >>> from vkpar.parallel.models import Sampling, Texts, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", context=32, sequences=2) as model:
        ...     with Texts(model) as texts:
        ...         one = texts.join([1, 5, 9], steps=5)
        ...         _ = texts.step()
        ...         two = texts.join([7], steps=2, sampling=Sampling(temperature=0.8, seed=1))
        ...         while texts.joined:
        ...             _ = texts.step()
        >>> len(one.tokens), len(two.tokens)
        (5, 2)
    """

    def __init__(self, model: Llama) -> None:
        if model.length:
            raise InvalidUsageError(f"the model keeps {model.length} tokens of its own; rewind it first")
        self._free = list(range(model.sequences - 1, -1, -1))
        self._joined: list[Text] = []
        self._places: dict[Text, int] = {}  # where texts lay in the launches whose tokens are being given
        self._model = model
        self._aside = model._aside()
        self._aside.callback(self._release)
        self._step: _Together | None = _Together.of(model)
        self._stepped = False
        self._changed, self._ahead = True, 0  # what devices have: other texts, or more tokens than texts were given

    @property
    def joined(self) -> tuple[Text, ...]:
        """The texts that go on, in the order in which they joined."""
        return tuple(self._joined)

    @property
    def free(self) -> int:
        """How many texts may join."""
        return len(self._free)

    def logits(self) -> NDArray[np.float32]:
        """Return the logits that the latest step gave, (sequences, vocabulary): of a text the row ``text.sequence``.

        Over several processes all call it together.

        Raises:
            InvalidUsageError: there was no step.
        """
        if not self._stepped:
            raise InvalidUsageError("no step was made")
        return self._open().logits()

    def stats(self) -> Any:
        """Return what the captured step is made of, :class:`vkpar.GraphStats`; None before the model's first one."""
        graph = self._open().graph
        return None if graph is None else graph.stats()

    def warm_up(self, tokens: int = 1) -> None:
        """Make what a first prompt of so many tokens, and a first step, would wait for: pipelines, graphs.

        The model keeps them for the texts of all later ones, those of a :class:`Generation` too. GPUs are kept busy for
        as long as their clocks rise.

        Raises:
            InvalidUsageError: texts go on.
        """
        step, model = self._open(), self._model
        if self._joined:
            raise InvalidUsageError(f"warm_up comes before the first text; {len(self._joined)} go on")
        with model._within(lent=False):
            model._warm_prompts(min(tokens, model.context))
        if model.sequences > 1:
            step.move(0, 1, tokens)
        self._launch(1)
        step.history.read(0, 1)  # waits

    def join(
        self, prompt: Iterable[int], steps: int, sampling: Sampling | None = None, stops: Iterable[int] = ()
    ) -> Text:
        """Run a prompt, and return the text that goes on with each step; its first token is there.

        Args:
            prompt: the tokens that the text begins with.
            steps: how many tokens are made at most; the text leaves by itself once it has them.
            sampling: how they are chosen; the likeliest ones by default.
            stops: tokens after which the text leaves, too; they are given out.

        Raises:
            InvalidUsageError: as many texts as there is room for go on; a prompt without tokens, with one that the
                vocabulary lacks, or too long for ``steps`` and the model's context; logits that are not finite.
        """
        together, model = self._open(), self._model
        check_steps(steps)
        ids = checked(listed(prompt, model.context), model.config.vocabulary)
        if ids.size + max(steps - 1, 0) > model.context:
            raise InvalidUsageError(
                f"{ids.size} tokens of the prompt and {steps} steps do not fit the {model.context} that there is room "
                "for"
            )
        if not self._free:
            raise InvalidUsageError(f"{len(self._joined)} texts go on, and there is room for no more; one has to leave")
        text = Text(ids.size, steps, sampling or Sampling(), frozenset(stops), _PROMPTS)
        start = time.perf_counter()
        self._make_way(together)
        with model._within(lent=False):
            model.prefill(ids)
            likeliest = model.next_token()
            if steps:
                needs = likeliest == 0 or not text.sampling.greedy
                text._add(text._drawn(model.next_logits() if needs else np.zeros(1), likeliest))
        text.prompt_seconds = time.perf_counter() - start
        text.ended = text.ended or not steps
        if not text.ended:
            self._joined.append(text)
            self._free.remove(_PROMPTS)
            self._changed = True
        return text

    def leave(self, text: Text) -> None:
        """End a text before it has all its tokens; others may join in its place.

        Raises:
            InvalidUsageError: it has ended, or is none of these texts.
        """
        self._check_joined(text)
        text.ended = True
        self._remove(text)

    def rewind(self, text: Text, count: int = 1) -> None:
        """Forget the tokens of a text after the first ``count`` of those that were made.

        Raises:
            InvalidUsageError: it has ended, or is none of these texts; no token would be left, or there are fewer;
                windows go back beyond what is kept.
        """
        self._check_joined(text)
        if not 1 <= count <= len(text.tokens):
            raise InvalidUsageError(f"of {len(text.tokens)} tokens that were made, {count} cannot be left")
        self._model._cache.check_rewind(text.sequence, text.count + count - 1)
        del text.tokens[count:]
        self._places.pop(text, None)
        self._changed = True

    def step(self) -> list[Text]:
        """Give every text its next token by a launch of the captured step; return those that got one.

        Raises:
            InvalidUsageError: no text goes on; logits that are not finite.
        """
        return next(self.steps(1))

    def steps(self, most: int = AHEAD) -> Generator[list[Text]]:
        """Make some steps, and yield after each the texts that got a token.

        Several launches are under way before the first token is read where devices choose all tokens and no text ends
        by its number of steps before; so texts that join, or are rewound, between two of them go on after the last one.

        Args:
            most: steps; 0 for none.

        Raises:
            InvalidUsageError: as :meth:`step`; ``most`` is no whole number from 0.
        """
        together = self._open()
        check_steps(most)
        if not self._joined:
            raise InvalidUsageError("no text goes on; join one")
        greedy = all(text.sampling.greedy for text in self.joined)
        count = min(most, AHEAD if greedy else 1, *(text.left for text in self.joined))
        if not count:
            return
        start = time.perf_counter()
        self._launch(count)
        self._stepped = True
        found = together.history.read(0, count)
        logits = self._read_logits(found[-1])
        # Those that join meanwhile may move them; what was made of a text is void once it is rewound.
        places = self._places = {text: text.sequence for text in self._joined}
        taken = time.perf_counter() - start
        for number, row in enumerate(found):
            self._ahead = count - number
            start, given = time.perf_counter(), [text for text in places if not text.ended]
            for text in given:
                place = places[text]
                text._add(text._drawn(logits.get(place, np.zeros(1)), int(row[place])))
                if text.ended:
                    self._remove(text)
            seconds = taken / count + time.perf_counter() - start
            for text in given:
                text.step_seconds += seconds
            self._ahead -= 1
            if given:
                yield given

    def close(self) -> None:
        """End all texts, and let the model take prompts of its own; a second call does nothing."""
        self._aside.close()

    # ---- within ----

    def _open(self) -> _Together:
        if self._step is None:
            raise InvalidUsageError("the texts are closed")
        return self._step

    def _check_joined(self, text: Text) -> None:
        self._open()
        if text not in self._joined:
            raise InvalidUsageError("the text has ended already, or is one of another model")

    def _remove(self, text: Text) -> None:
        self._joined.remove(text)
        self._free.append(text.sequence)
        self._changed = True

    def _make_way(self, together: _Together) -> None:
        """Let the text that lies where prompts run go on in a free place."""
        for text in self._joined:
            if text.sequence == _PROMPTS:
                text.sequence = self._free.pop()
                together.move(_PROMPTS, text.sequence, text.position + self._ahead)
                self._free.append(_PROMPTS)
                self._changed = True

    def _launch(self, count: int) -> None:
        """Tell the devices what changed, and launch the step so many times."""
        step, texts, changed = self._open(), self._joined, self._changed or self._ahead > 0
        if changed:
            step.write(step.positions, {text.sequence: text.position for text in texts})
            step.write(step.going, {text.sequence: 1 for text in texts})
        if changed or not all(text.sampling.greedy for text in texts):
            step.write(step.tokens, {text.sequence: text.tokens[-1] for text in texts})
        self._changed, self._ahead = False, count  # until the tokens are given: a launch may fail, or the wait for it
        for text in texts:
            self._model._cache.make_room(text.sequence, text.position, count)
        step.launch(count)

    def _read_logits(self, latest: NDArray[Any]) -> dict[int, NDArray[np.float32]]:
        """Return the logits of texts whose tokens the host draws, or of whose last one it has to see what made it."""
        needs = [t.sequence for t in self.joined if not t.sampling.greedy or latest[t.sequence] == 0]
        if not needs:
            return {}
        whole = self.logits()
        return {number: whole[number] for number in needs}

    def _release(self) -> None:
        """End what goes on."""
        for text in self._joined:
            text.ended = True
        self._joined, self._free, self._step = [], [], None
