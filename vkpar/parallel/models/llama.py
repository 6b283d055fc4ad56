"""A Llama-shaped decoder over the ranks of a communicator: pieces of prompts, and tokens, by captured graphs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.comm.tune.settling import warm_up
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.graph.capture import capture
from vkpar.parallel.layers.attention import KVCache
from vkpar.parallel.layers.norms import Inputs, Parts, present, there
from vkpar.parallel.models import loading, naming, two_halves
from vkpar.parallel.models.building import Builder, lend
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.loading import Progress
from vkpar.parallel.models.prompts import Pieces, Stage, checked, listed, through_all
from vkpar.parallel.models.sampling import History, choose, read_logits
from vkpar.parallel.plan.placing import Placement
from vkpar.parallel.plan.report import Plan
from vkpar.parallel.plan.scratch import batch_of, piece_rows
from vkpar.unpickled import Closable, Unpickled


class Llama(Closable, Unpickled):
    """A decoder of the Llama family on devices, with the keys and values of one text, or of several.

    Args:
        config: the sizes.
        weights: by name: tensors of :func:`vkpar.parallel.open_weights`, or arrays.
        comm: the communicator; its wire is that of the sums.
        placement: which rank has what; see :func:`vkpar.parallel.plan.placing.place`.
        context: tokens that there is room for, of each text.
        sequences: how many texts there is room for, 1 to 32; of several, see :class:`Texts`.
        cache_dtype: of the keys and values that are kept. ``"auto"`` is float16 where all devices are GPUs and the
            weights no float32, else float32.
        dtype: what matrices that are not quantised are converted to; None keeps the file's type.
        inputs: type that the rows of a prompt are rounded to before products, ``"float32"`` or ``"float16"``.
            ``"auto"`` is float16 where weights are float16 or quantised and all devices are GPUs: matrix units want it.
            Queries, keys and values of prompts are of that type then, too.
        batch: the most tokens of a prompt that go through the blocks together; there are fewer where blocks lie on
            several ranks, which work on different pieces at a time. By default 2,048 on GPUs of 32 GiB and more, else
            512.
        progress: is told of each tensor that was read.

    Attributes:
        plan: what the placement was made by; None where nobody said. Set :attr:`halves` after it.

    Raises:
        InvalidUsageError: a tensor that is missing or has another shape.
        OutOfMemoryError: no room.

    Examples:
        >>> from vkpar.parallel.models import Generation, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", ratios="even", context=32) as model:
        ...     model.prefill([1, 5, 9], logits=True).shape == (3, file.config.vocabulary), model.length
        (True, 3)
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Any],
        comm: Communicator,
        placement: Placement,
        *,
        context: int = 4096,
        sequences: int = 1,
        cache_dtype: object = "auto",
        dtype: str | None = None,
        inputs: str = "auto",
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        batch = batch_of(rig.everywhere(comm)) if batch is None else batch
        loading.check_sizes(sequences, context=context, batch=batch)
        loading.check_types(dtype, inputs, cache_dtype)
        tensors = loading.lazy(weights)
        naming.check(config, tensors, "the model")
        self.config, self.comm, self.placement = config, comm, placement
        self.context, self.sequences, self._batch = context, sequences, batch
        self._length = 0
        self._lent = False  # to a Texts, through which prompts come then
        self._together: object = None  # what it has on the devices
        builder = Builder(config, tensors, comm, placement, progress, dtype, inputs)
        self._embedding = builder.embedding()
        self._blocks = [builder.block(number) for number in range(config.layers)]
        self._norm = builder.final_norm()
        self._head = builder.head(self._embedding)
        self._weights_nbytes = builder.nbytes()
        self._unpacks = builder.quantized
        kept = (
            loading.cache_type(config, tensors, rig.everywhere(comm), dtype) if cache_dtype == "auto" else cache_dtype
        )
        counts = [heads.kv_counts for heads in placement.heads]
        windows = [config.window if config.slides(block) else None for block in range(config.layers)]
        self._cache = KVCache(comm, context, counts, config.head_dim, kept, sequences, windows, batch)
        self.root = self._head.weight.holders[0] if placement.ratios is None else placement.streams[-1][0]
        self._tokens = rig.by_rank(comm, [device.zeros(1, "uint32") for device in comm.devices])
        self._here = self.root if self.root in comm.local_ranks else comm.local_ranks[0]  # where tokens are read
        self._history = History(there(self._tokens, self._here).device, context)
        self.plan: Plan | None = None
        self._logits: Array | None = None  # of the latest token; what the captured step writes is always the same
        self._step_logits: Array | None = None
        self._stack = ExitStack()
        self._graph: Any = None
        self._pieces = Pieces(comm, self._batch, placement.streams, config.hidden)
        self._stack.callback(self._pieces.close)
        self._halves = two_halves.AUTO

    # ---- state ----

    @property
    def length(self) -> int:
        """Tokens whose keys and values are kept."""
        return self._length

    @property
    def halves(self) -> str:
        """Whether prompts go through a tensor split in two halves of their rows: ``"auto"``, ``"on"`` or ``"off"``.

        In captured pieces, sums of one half run beside products of the other: that pays where links are slow.
        ``"auto"`` does so in prompts of at least 256 tokens where :attr:`plan` found it faster, by measurement. To set
        it frees the captured pieces.

        Raises:
            InvalidUsageError: another word; ``"on"`` for a model that several ranks do not sum.
        """
        return self._halves

    @halves.setter
    def halves(self, value: str) -> None:
        two_halves.check(value, self.placement.mode, self.comm.nranks)
        planned = self.plan is not None and self.plan.in_halves
        found = {two_halves.ON: two_halves.FEWEST, two_halves.AUTO: two_halves.WORTH if planned else 0}
        self._pieces.close()
        self._halves, self._pieces.halved = value, found.get(value, 0)

    def in_halves(self, rows: int) -> bool:
        """Say whether a prompt's piece of so many tokens goes through in two halves."""
        return self._pieces.in_halves(rows)

    def placed(self) -> dict[str, Any]:
        """Return which rank has what, ready for JSON."""
        devices = [str(device) for device in rig.everywhere(self.comm)]
        return {**self.placement.as_dict(), "devices": devices, "weights_nbytes": self.weights_nbytes}

    @property
    def weights_nbytes(self) -> list[int]:
        """Bytes of the weights on each rank."""
        return self._weights_nbytes

    def stats(self) -> Any:
        """Return what the captured step is made of, :class:`vkpar.GraphStats`; None before the first single token."""
        return None if self._graph is None else self._graph.stats()

    def __repr__(self) -> str:
        return f"<Llama of {self.config.describe()}, split by {self.placement.mode} over {self.comm.nranks}>"

    def rewind(self, length: int = 0) -> None:
        """Forget all tokens from ``length`` on; a prompt or a given token comes next where any are forgotten.

        Raises:
            InvalidUsageError: more tokens than there are; or windows of these go back beyond what is kept.
        """
        if not 0 <= length <= self._length:
            raise InvalidUsageError(f"{self._length} tokens are kept; {length} cannot be left of them")
        self._cache.check_rewind(0, length)
        if length < self._length:
            self._logits = None  # they were of tokens that are forgotten
        self._length = length

    def close(self) -> None:
        """Give graphs and the cache back; a second call does nothing. Weights go with the closed object."""
        self._stack.close()
        self._graph = None
        self._cache.close()

    # ---- running ----

    def prefill(self, tokens: Iterable[int], *, logits: bool = False) -> NDArray[np.float32] | None:
        """Go on with ``tokens``; the token after them can be asked for next.

        Args:
            tokens: ids, at least one; an iterator over them will do.
            logits: return those of all positions.

        Returns:
            (T, vocabulary) where ``logits`` is true, else None.

        Raises:
            InvalidUsageError: no tokens, one that the vocabulary lacks, or more than there is room for.
            UnsupportedError: logits of all positions over several processes.
        """
        ids = self._checked(tokens)
        if logits and not rig.is_whole(self.comm):
            raise UnsupportedError("logits of all positions are given by models of one process")
        stages = len(self._pieces.stages)
        rows, most = [], piece_rows(len(ids), stages, self._batch, unpacks=self._unpacks)
        for start in range(0, len(ids), most):
            chunk = ids[start : start + most]
            places = np.arange(self._length, self._length + len(chunk), dtype=np.uint32)
            self._cache.make_room(0, self._length, len(chunk))
            normed = self._pieces.run(self._through, chunk, places)
            self._length += len(chunk)
            if logits:
                rows.append(np.concatenate([part.numpy() for part in self._head(normed) if part is not None], axis=1))
            if start + len(chunk) == len(ids):
                last = [None if part is None else part[-1:] for part in normed]
                self._logits = self._choose(self._head(last), self._tokens)
        return np.concatenate(rows) if logits else None

    def next_token(self) -> int:
        """Return the likeliest token after all that were given, the first of equals.

        Raises:
            InvalidUsageError: no prompt, or a rewind, since when no token was given.
        """
        self._check_logits()
        return int(there(self._tokens, self._here).numpy()[0])

    def next_logits(self) -> NDArray[np.float32]:
        """Return the logits of the token after all that were given, (vocabulary,); raises as :meth:`next_token`.

        Over several processes all call it together.
        """
        self._check_logits()
        assert self._logits is not None
        return read_logits(self.comm, self._logits, self.root).reshape(-1)

    def feed(self, token: int | None = None) -> None:
        """Go on with one token by a launch of the captured step, which may be under way when this returns.

        Args:
            token: its id; None for the likeliest one, which never leaves the devices.

        Raises:
            InvalidUsageError: no room, a token that the vocabulary lacks, or no prompt before.
        """
        if token is None:
            self._check_logits()
        elif not self._length:
            raise InvalidUsageError("give a prompt before single tokens")
        if token is not None:
            value = self._checked([token])
            for array in rig.own(self.comm, self._tokens):
                assert array is not None, "ranks of this process have it"
                array.write(value)
        elif self._length >= self.context:
            raise InvalidUsageError(f"there is room for {self.context} tokens, and all of it is taken")
        if self._graph is None:
            self._capture()
        self._cache.make_room(0, self._length, 1)
        self._graph.launch(position=self._length)
        self._logits = self._step_logits
        self._length += 1

    def fed(self, start: int, stop: int) -> list[int]:
        """Return the likeliest tokens after positions ``start`` to ``stop``, of launches of the step."""
        return [int(token) for token in self._history.read(start, stop)[:, 0]]

    def replicas(self, tokens: Iterable[int]) -> list[NDArray[np.float32]]:
        """Return the residual stream's norm after ``tokens`` on each rank that has it, without keeping the tokens."""
        ids, kept = self._checked(tokens), self._length
        self._cache.make_room(0, kept, len(ids))
        places = np.arange(kept, kept + len(ids), dtype=np.uint32)
        devices = self.comm.devices
        given = ([device.array(values) for device in devices] for values in (ids, places))
        stream = self._stream(*(rig.by_rank(self.comm, each) for each in given))
        return [part.numpy() for part in stream[0] if part is not None]

    def warm_up(self, tokens: int = 1) -> None:
        """Make what a first prompt of so many tokens, and a first single token, would wait for: pipelines, graphs.

        GPUs are kept busy for as long as their clocks rise.

        Raises:
            InvalidUsageError: tokens are kept already.
        """
        if self._length:
            raise InvalidUsageError(f"warm_up comes before the first prompt; {self._length} tokens are kept")
        room = self.context - 1
        if room:
            self._warm_prompts(min(tokens, room))
            self.feed()
            self.next_token()  # waits
            self.rewind()
        self._logits = None

    # ---- within ----

    def _warm_prompts(self, tokens: int) -> None:
        """Run prompts of so many tokens, until all is made and clocks have risen."""
        run = partial(self._rehearse, min(tokens, self._batch))
        for _ in range(1 + self._pieces.captures):  # the second one is captured
            run()
        if rig.is_whole(self.comm):  # else processes would make unlike numbers of calls
            warm_up(run, self.comm.devices)

    def _rehearse(self, count: int) -> float:
        """Return the seconds of a prompt that is forgotten again."""
        self.rewind()
        start = time.perf_counter()
        self.prefill([0] * count)
        self.next_token()  # waits
        return time.perf_counter() - start

    def _check_logits(self) -> None:
        if self._logits is None:
            raise InvalidUsageError("give a prompt first: no token was given since the model was made, or rewound")

    @contextmanager
    def _within(self, *, lent: bool) -> Iterator[None]:
        """Take prompts from a Texts alone, or for it, and forget what was given before and meanwhile."""
        before, self._lent = self._lent, lent
        self._length, self._logits = 0, None
        try:
            yield
        finally:
            self._lent, self._length, self._logits = before, 0, None

    def _aside(self) -> ExitStack:
        """Take no prompts until what is returned is closed, at the latest with the model."""
        if self._lent:
            raise InvalidUsageError("the model's texts are those of a Texts already; close that first")
        aside = ExitStack()
        aside.enter_context(self._within(lent=True))
        self._stack.callback(aside.close)
        return aside

    def _checked(self, tokens: Iterable[int]) -> NDArray[np.uint32]:
        if self._lent:
            raise InvalidUsageError("the model's texts are those of a Texts: join one there, or close that")
        ids = checked(listed(tokens, self.context - self._length), self.config.vocabulary)
        if self._length + ids.size > self.context:
            raise InvalidUsageError(
                f"{self._length} tokens and {ids.size} more do not fit the {self.context} that there is room for"
            )
        return ids

    def _through(
        self, stage: Stage, given: Parts, positions: Parts, caches: Sequence[Sequence[Any]] | None = None
    ) -> tuple[Parts, Inputs]:
        """Return the residual stream after a stage's blocks, and after the last block its norm.

        ``given``: tokens, or what came out of the stage before; ``caches``: of all texts, a row each; None for that of
        the text that goes on. A process without the ranks of the stage lends its own.
        """
        blocks = self._blocks
        if not set(stage.ranks) & set(self.comm.local_ranks):
            return lend(blocks[stage.first : stage.stop], there(positions, self._here).size, self.comm.nranks)
        if caches is None:
            caches = self._cache.layers
            if self.in_halves(there(given, present(given)[0]).shape[0]):
                return two_halves.through(blocks, caches, self._embedding, self._norm, given, positions)
        stream = given if stage.first else self._embedding(given)
        normed = blocks[stage.first].attention_norm.before(stream)
        for number in range(stage.first, stage.stop):
            block, cache = blocks[number], caches[number]
            stream, normed = block.attention(normed, positions, cache, stream, block.forward_norm)
            last = self._norm if number + 1 == len(blocks) else None
            following = blocks[number + 1].attention_norm if number + 1 < stage.stop else last
            stream, normed = block.forward(normed, stream, following)
        return stream, normed

    def _stream(self, tokens: Parts, positions: Parts) -> tuple[Parts, Inputs]:
        """Return the residual stream after all blocks, and its norm."""
        return through_all(self._pieces.stages, self._through, self.comm, tokens, positions, self.config.hidden)

    def _of_rows(self, tokens: Parts, positions: Parts) -> Array:
        """Put in a token of each text at its position; return the next ones' logits, the likeliest in ``tokens``."""
        through = partial(self._through, caches=self._cache.together)
        rows = through_all(self._pieces.stages, through, self.comm, tokens, positions, self.config.hidden)
        return self._choose(self._head(rows[1]), tokens)

    def _choose(self, logits: Parts, tokens: Parts) -> Array:
        """Gather the logits of rows on the root, and put the likeliest token of each on all ranks."""
        return choose(self.comm, logits, tokens, self.root, self.placement.outputs.counts)

    def _capture(self) -> None:
        comm = self.comm
        graph = capture(comm.devices, comm=comm if comm.nranks > 1 else None)
        with graph as step:
            positions = rig.by_rank(comm, list(step.param("position")))
            at, token = there(positions, self._here), there(self._tokens, self._here)
            normed = self._stream(list(self._tokens), positions)[1]
            self._step_logits = self._choose(self._head(normed), self._tokens)
            self._history.note(at, token)
        self._graph = step
        self._stack.callback(step.close)
