"""A decoder from a file: its configuration, its weights, where they go, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vkpar import dtypes
from vkpar.comm import ranks as rig
from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.cut.split import Ratios
from vkpar.parallel.files.weights import Weights, open_weights
from vkpar.parallel.models import config as configs
from vkpar.parallel.models import loading, naming, tokens, two_halves
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.loading import Progress
from vkpar.parallel.models.tokens import Tokenizer
from vkpar.parallel.plan.placing import MODES
from vkpar.parallel.plan.plan import plan
from vkpar.parallel.plan.spec import ModelSpec
from vkpar.unpickled import Closable

_FORWARD: Final = ("gate", "up", "down")
AUTO: Final = "auto"
SPLITS: Final = (AUTO, *MODES)
_DIVISORS: Final = "rope_freqs.weight"


@dataclass(frozen=True)
class ModelFile(Closable):
    """A decoder's files, opened; nothing of the weights was read yet.

    Attributes:
        path: the folder or the GGUF file.
        config: the sizes.
        weights: the tensors.

    Examples:
        >>> from vkpar.parallel.models import open_model
        >>> with open_model(folder) as file:
        ...     file.config.family, len(file.weights) > 10
        ('llama', True)
    """

    path: Path
    config: Config
    weights: Weights

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the files.

        Raises:
            InvalidUsageError: there is none, or it is broken.
            UnsupportedError: a kind that is not known, or the package ``tokenizers`` is missing.
        """
        if self.path.is_dir():
            return tokens.of_folder(self.path, self.config.first)
        return tokens.of_gguf(self.weights.metadata, str(self.path))

    def spec(self, cache_dtype: object = "float16", dtype: str | None = None) -> ModelSpec:
        """Return the model as a plan sees it; see :class:`Llama` for the arguments."""
        config, names = self.config, naming.of(self.weights).of_family(self.config.differs)
        blocks = range(config.layers)
        parts = {part: [names.of_block(f"attention.{part}", block) for block in blocks] for part in "qkvo"}
        parts |= {part: [naming.matrix_of(config, self.weights, part, block) for block in blocks] for part in _FORWARD}
        if config.shared:
            layout = naming.experts_of(config, self.weights, names)
            sparse = [block for block in blocks if config.mixes(block)]
            homes = [block if config.mixes(block) else sparse[0] for block in blocks]
            parts |= {f"shared {part}": [layout.shared[part].format(block) for block in homes] for part in _FORWARD}
        kinds = {
            part: tuple(loading.kind_of(self.weights[name], dtype) for name in found) for part, found in parts.items()
        }
        most = kinds["up"][0]
        return ModelSpec(
            layers=config.layers,
            width=config.hidden,
            hidden=config.intermediate,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocabulary=config.vocabulary,
            weights=most,
            kinds=tuple((part, found) for part, found in kinds.items() if set(found) != {most}),
            table=loading.kind_of(self.weights[names.embedding], dtype),
            cache=dtypes.resolve(cache_dtype).name,
            tied=config.tied,
            head_norms=config.head_norms,
            post_norms=config.post_norms,
            experts=config.experts,
            active=config.active,
            shared=config.shared,
            sparse=config.sparse,
            dense=config.dense,
            window=config.window,
            sliding=config.sliding,
        )

    def load(
        self,
        comm: Communicator,
        *,
        mode: str = AUTO,
        ratios: Ratios = "speed",
        strict: bool = False,
        context: int = 4096,
        sequences: int = 1,
        cache_dtype: object = "auto",
        dtype: str | None = None,
        inputs: str = "auto",
        halves: str = two_halves.AUTO,
        progress: Progress | None = None,
    ) -> Llama:
        """Put the decoder on the ranks of a communicator, as :func:`vkpar.parallel.plan` says.

        Args:
            comm: the communicator.
            mode: ``"tensor"``, ``"row"``, ``"layer"``, ``"single"`` or ``"auto"``; see there.
            ratios: what the ranks get; see there.
            strict: raise where the mode is not possible, in place of falling back.
            context: tokens that there is room for, of each text.
            sequences: how many texts there is room for, 1 to 32; of several, see :class:`Texts`.
            cache_dtype: see :class:`Llama` for this and the others.
            dtype: what matrices that are not quantised are converted to.
            inputs: what the rows of a prompt are rounded to.
            halves: whether prompts of a tensor split go in two halves of their rows; see :attr:`Llama.halves`.
            progress: is told of each tensor that was read.

        Raises:
            InvalidUsageError: an unknown mode, wrong ratios, or halves where nothing is summed.
            UnsupportedError: a split that the decoder cannot have.
            OutOfMemoryError: no room.
        """
        loading.check_sequences(sequences)
        loading.check_types(dtype, inputs, cache_dtype)
        if cache_dtype == "auto":
            cache_dtype = loading.cache_type(self.config, self.weights, rig.everywhere(comm), dtype)
        spec = self.spec(cache_dtype, dtype)
        made = plan(spec, comm, mode=mode, ratios=ratios, context=context, batch=sequences, strict=strict)
        two_halves.check(halves, made.mode, comm.nranks)
        model = Llama(
            self.config,
            self.weights,
            comm,
            made.placement,
            context=context,
            sequences=sequences,
            cache_dtype=cache_dtype,
            dtype=dtype,
            inputs=inputs,
            progress=progress,
        )
        model.plan = made
        model.halves = halves
        return model

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self.weights.close()


def open_model(path: str | Path) -> ModelFile:
    """Open a folder that transformers saved, or a GGUF file.

    Args:
        path: the folder, or the file.

    Raises:
        InvalidUsageError: no such path, files that are damaged, a tensor that is missing or has another shape.
        UnsupportedError: another kind of model than the decoders that are known; weights that are quantised in an
            unknown way; tensors that the decoder would not use.

    Examples:
        >>> from vkpar.parallel.models import Generation, open_model
        >>> with open_model(folder) as file, file.load(comm, mode="tensor", ratios="even", context=32) as model:
        ...     len(list(Generation(model, [1, 5, 9], steps=4)))
        4
    """
    found = Path(path)
    config = configs.read_folder(found) if found.is_dir() else None
    weights = open_weights(found)
    try:
        if config is None:
            config = _gguf_config(weights, str(found))
        elif naming.of(weights) is naming.GGUF:  # its rows, and its configuration, are others than those of a folder
            file = weights[naming.GGUF.embedding].source
            raise UnsupportedError(f"{found} has the weights of a GGUF file beside config.json: open {file} itself")
        naming.check(config, weights, str(found))
    except BaseException:
        weights.close()
        raise
    return ModelFile(found, config, weights)


def _gguf_config(weights: Weights, where: str) -> Config:
    names = naming.GGUF
    if "general.architecture" not in weights.metadata:
        raise UnsupportedError(f"{where} is no GGUF file of a model; a safetensors file is opened with its folder")
    if names.embedding not in weights:
        raise InvalidUsageError(f"{where} has no tensor {names.embedding}")
    table = weights[names.embedding].shape
    if len(table) != 2:
        raise InvalidUsageError(f"{where}: {names.embedding} has shape {table}, not rows of tokens")
    divisors: npt.NDArray[Any] | None = None
    if _DIVISORS in weights:
        found = weights[_DIVISORS]
        if len(found.shape) != 1:
            raise InvalidUsageError(f"{where}: {_DIVISORS} has shape {found.shape}, not one divisor a pair")
        if found.kind is not None or found.dtype != np.float32:
            stored = found.dtype if found.kind is None else found.kind.name
            raise UnsupportedError(f"{where}: {_DIVISORS} of {stored} is not supported; float32 is")
        divisors = found.read()
    tied = names.output not in weights
    return configs.of_gguf(weights.metadata, where, table[0], tied=tied, divisors=divisors)
