"""A sentence encoder of BERT's shape (MiniLM) over the ranks of a communicator: token ids in, embeddings out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar import ops
from vkpar.arrays.array import Array
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.cut.split import Split
from vkpar.parallel.layers.embedding import ParallelEmbedding
from vkpar.parallel.layers.gathered import GatheredLinear
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.moving import moved
from vkpar.parallel.layers.norms import Parts, present
from vkpar.parallel.models import bert_config as names
from vkpar.parallel.models import loading
from vkpar.parallel.models.bert_blocks import Batch, EncoderBlock, RowNorm
from vkpar.parallel.models.bert_config import BertConfig
from vkpar.parallel.models.loading import Progress, WeightRows
from vkpar.parallel.models.naming import bias_of
from vkpar.parallel.models.prompts import checked, listed
from vkpar.parallel.plan.placing import Placement

F32 = NDArray[np.float32]
Sentences = Iterable[Iterable[int] | NDArray[np.integer[Any]]]
"""Token ids by sentence."""

BATCH: Final = 32
_QUEUED: Final = 4  # batches that are on their way before the first one is read
_LEAST_NORM: Final = 1e-12  # of an embedding; as torch's normalize has it


class Bert:
    """A sentence encoder on devices: means over the last hidden states, scaled to length 1 where its files say so.

    Args:
        config: the sizes.
        weights: by name: tensors of :func:`vkpar.parallel.open_weights`, or arrays.
        comm: the communicator; its wire is that of the sums.
        placement: which rank has what; see :func:`vkpar.parallel.plan.placing.place`.
        batch: sentences that go through the blocks together.
        progress: is told of each tensor that was read.

    Raises:
        InvalidUsageError: a tensor that is missing or has another shape.
        UnsupportedError: a communicator over several processes.
        OutOfMemoryError: no room.

    Examples:
        >>> from vkpar.parallel.models import open_encoder
        >>> with open_encoder() as file:  # all-MiniLM-L6-v2, as its package installs it
        ...     model = file.load(comm)
        ...     model.embed(file.tokens(["a sum", "a total"])).shape
        (2, 384)
    """

    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, Any],
        comm: Communicator,
        placement: Placement,
        *,
        batch: int = BATCH,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(batch, int) or batch < 1:
            raise InvalidUsageError(f"batch is a whole number from 1, not {batch!r}")
        if not rig.is_whole(comm):
            raise UnsupportedError("encoders take a communicator of one process, without mpi=")
        tensors = loading.lazy(weights)
        names.check(config, tensors, "the model")
        self.config, self.comm, self.placement = config, comm, placement
        self._batch = batch
        builder = _Builder(config, tensors, comm, placement, progress)
        self._words = builder.words()
        self._positions = builder.positions()
        self._norm = builder.norm(names.NORM, 0)
        self._blocks = [builder.block(number) for number in range(config.layers)]
        self.root = placement.streams[-1][0]
        self._weights_nbytes = builder.held

    @property
    def weights_nbytes(self) -> list[int]:
        """Bytes of the weights on each rank."""
        return self._weights_nbytes

    def parts(self) -> dict[str, Any]:
        """Return which rank has what, ready for JSON."""
        return {
            "mode": self.placement.mode,
            "devices": [str(device) for device in self.comm.devices],
            "streams": [list(ranks) for ranks in self.placement.streams],
            "heads": [list(heads.queries.counts) for heads in self.placement.heads],
            "inner": [list(split.counts) for split in self.placement.inner],
            "vocabulary": list(self.placement.table.counts),
            "weights_nbytes": self.weights_nbytes,
        }

    def __repr__(self) -> str:
        return f"<Bert of {self.config.describe()}, split by {self.placement.mode} over {self.comm.nranks}>"

    def embed(self, sentences: Sentences, *, progress: Callable[[int], object] | None = None) -> F32:
        """Return the embeddings of sentences, (sentences, hidden).

        Where ``config.normalized`` says so, each is of length 1, so that products are cosines.

        Sentences of about the same length go through the blocks together, several batches at a time where several
        ranks have blocks.

        Args:
            sentences: the token ids of each, with those that begin and end it, up to ``config.context``.
            progress: is told of how many more sentences the embeddings are there.

        Raises:
            InvalidUsageError: a sentence without tokens, or with too many, or a token that the vocabulary lacks.
        """
        ids = self._checked(sentences)
        made = np.empty((len(ids), self.config.hidden), np.float32)
        order = list(range(len(ids)))
        if len(ids) > self._batch:
            order.sort(key=lambda index: -len(ids[index]))
        queued: deque[tuple[list[int], Array]] = deque()

        def read() -> None:
            chosen, pooled = queued.popleft()
            made[chosen] = pooled.numpy()
            if progress is not None:
                progress(len(chosen))

        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            queued.append((chosen, self._pooled([ids[index] for index in chosen])))
            if len(queued) > _QUEUED:
                read()
        while queued:
            read()
        return made

    def hidden_states(self, sentences: Sentences) -> list[list[F32 | None]]:
        """Return the hidden states after the embedding and after each block, by rank: None where it has none.

        Args:
            sentences: as for :meth:`embed`; they go through the blocks together.

        Returns:
            for each of these places and each rank (tokens of all sentences, hidden), one sentence after the other.

        Raises:
            InvalidUsageError: as :meth:`embed`.
        """
        ids = self._checked(sentences)
        if not ids:
            return [[None] * self.comm.nranks for _ in range(self.config.layers + 1)]
        batch = self._put(ids)
        counts = np.array([len(each) for each in ids])
        kept = (np.arange(batch.shape[1]) < counts[:, None]).reshape(-1)
        return [[None if part is None else part.numpy()[kept] for part in state] for state in list(self._states(batch))]

    # ---- within ----

    def _checked(self, sentences: Sentences) -> list[NDArray[np.uint32]]:
        found = []
        for number, sentence in enumerate(sentences):
            ids = checked(listed(sentence, self.config.context), self.config.vocabulary, f"sentence {number}: ")
            if ids.size > self.config.context:
                raise InvalidUsageError(
                    f"sentence {number} has {ids.size} tokens; the model takes {self.config.context}: cut it before"
                )
            found.append(ids)
        return found

    def _put(self, sentences: Sequence[NDArray[np.uint32]]) -> Batch:
        lengths = np.array([len(sentence) for sentence in sentences], np.uint32)
        ids = np.zeros((len(sentences), lengths.max()), np.uint32)
        for row, sentence in zip(ids, sentences, strict=True):
            row[: len(sentence)] = sentence
        devices, ranks = self.comm.devices, range(self.comm.nranks)
        reading = {rank for heads in self.placement.heads for rank in ranks if heads.queries.counts[rank]}
        tables = present(self._words.weight.parts)
        return Batch(
            [devices[rank].array(ids.reshape(-1)) if rank in tables else None for rank in ranks],
            [devices[rank].array(lengths) if rank in reading else None for rank in ranks],
            ids.shape,
        )

    def _states(self, batch: Batch) -> Iterator[Parts]:
        """Give the hidden states after the embedding, and after each block."""
        x = self._words(batch.ids)
        for rank in present(self._positions):
            words, table = x[rank], self._positions[rank]
            assert words is not None
            assert table is not None
            by_sentence = words.reshape(*batch.shape, self.config.hidden)
            ops.add(by_sentence, table[: batch.shape[1]], out=by_sentence)
        x = self._norm(x)
        yield x
        ranks = self._blocks[0].ranks
        for block in self._blocks:
            if block.ranks != ranks:
                x, ranks = moved(x, self.comm, block.ranks[0]), block.ranks
            x = block(x, batch)
            yield x

    def _pooled(self, sentences: Sequence[NDArray[np.uint32]]) -> Array:
        """Return the embeddings of a batch on the root."""
        batch = self._put(sentences)
        state = deque(self._states(batch), 1).pop()[self.root]
        assert state is not None
        counts = np.array([len(sentence) for sentence in sentences])[:, None]
        parts = (np.arange(batch.shape[1]) < counts) / counts
        rows = state.device.array(parts[:, None, :], "float32")
        means = ops.matmul(rows, state.reshape(*batch.shape, -1)).reshape(len(sentences), -1)
        if not self.config.normalized:
            return means
        norms = ops.sqrt(ops.sum(ops.multiply(means, means), axis=1, keepdims=True))
        return ops.divide(means, ops.maximum(norms, _LEAST_NORM))


class _Builder(loading.Taking):
    """Makes the layers of an encoder out of a file's tensors."""

    def __init__(
        self,
        config: BertConfig,
        tensors: Mapping[str, Any],
        comm: Communicator,
        placement: Placement,
        progress: Progress | None,
    ) -> None:
        super().__init__(tensors, comm.nranks, progress)
        self._config, self._comm, self._placement = config, comm, placement

    def words(self) -> ParallelEmbedding:
        placement = self._placement
        table = self._tensor(names.WORDS)
        made = ParallelEmbedding(table, comm=self._comm, split=placement.table, ranks=placement.streams[0])
        self._counted(made.weight.parts)
        return made

    def positions(self) -> Parts:
        """Return what is added to words by where they stand, on ranks that norm the sums; the first type is in it."""
        rows, kind = self._tensor(names.POSITIONS), self._tensor(names.TYPES)
        made: Parts = [None] * self._comm.nranks
        for rank in (rank for rank, share in enumerate(self._placement.inner[0].counts) if share):
            device = self._comm.devices[rank]
            of_places = device.array(rows.read(slice(0, self._config.context)), rows.dtype)
            of_type = device.array(kind.read(slice(0, 1)), kind.dtype)
            made[rank] = ops.add(ops.cast(of_places, "float32"), ops.cast(of_type, "float32"))
        self._counted(made)
        return made

    def norm(self, name: str, block: int) -> RowNorm:
        placement = self._placement
        everywhere = placement.mode == "tensor"
        made = RowNorm(
            self._tensor(name),
            self._tensor(bias_of(name)),
            self._config.epsilon,
            comm=self._comm,
            shares=placement.inner[block].counts,
            everywhere=everywhere,
        )
        for both in zip(*(part or (None, None) for part in made.parts), strict=True):
            self._counted(both)
        return made

    def block(self, number: int) -> EncoderBlock:
        placement = self._placement
        heads, inner = placement.heads[number], placement.inner[number]
        columns = heads.queries.scaled(heads.width)

        def name(part: str) -> str:
            return names.of_block(part, number)

        return EncoderBlock(
            placement.streams[number],
            heads,
            self._columns([name(part) for part in "qkv"], columns),
            self._rows(name("o"), columns),
            self.norm(name("attention.norm"), number),
            self._columns([name("up")], inner),
            self._rows(name("down"), inner),
            self.norm(name("forward.norm"), number),
        )

    def _columns(self, listed: Sequence[str], split: Split) -> ColumnParallelLinear:
        """Return one layer for the weights that are named, each cut between outputs."""
        tensors, added_to = [self._tensor(name) for name in listed], [self._tensor(bias_of(name)) for name in listed]
        bounds = self._placement.sliced([each.shape[0] for each in tensors], tensors[0].shape[1])
        if bounds is None:
            bounds = [[split.bounds(rank) for rank in range(self._comm.nranks)]] * len(listed)
        weights, biases = list(map(WeightRows, tensors, bounds)), list(map(WeightRows, added_to, bounds))
        whole, added = loading.stacked(self._comm, weights), loading.stacked(self._comm, biases)
        self._counted(whole.parts)
        self._counted(added.parts)
        return ColumnParallelLinear(whole, added, comm=self._comm, gather_output=self._placement.mode == "row")

    def _rows(self, name: str, split: Split) -> RowParallelLinear | GatheredLinear:
        rows, columns = self._tensors[name].shape
        if self._placement.sliced([rows], columns) is not None:
            return GatheredLinear(self._columns([name], split))
        weight = loading.cut_columns(self._comm, self._tensor(name), split)
        self._counted(weight.parts)
        bias = self._tensor(bias_of(name))
        return RowParallelLinear(weight, bias, comm=self._comm, reduce=self._placement.mode != "tensor")
