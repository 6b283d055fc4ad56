"""Made-up weights for ``vkpar bench model``: random elements, or blocks, that repeat."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vkpar import dtypes
from vkpar.errors import InvalidUsageError
from vkpar.ops.quantized.kinds import KINDS as QUANTISED
from vkpar.ops.quantized.kinds import MIXES
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.models import naming, tiny
from vkpar.parallel.models.config import Config

KINDS: Final = ("float16", "float32", "bfloat16", *QUANTISED, *MIXES)
_POOL: Final = 1 << 20  # bytes of weights that are drawn, and repeated


class _Repeated(LazyTensor):
    """A tensor of drawn elements, or blocks, that repeat."""

    def read(self, region: Any = ...) -> np.ndarray[Any, Any]:
        """Return elements of the region's shape."""
        drawn = self._bytes().view(self.dtype.numpy)
        return np.resize(drawn, np.broadcast_to(drawn[:1], self.shape)[region].shape)

    def blocks(
        self, start: int = 0, stop: int | None = None, rows: slice = slice(None)
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return blocks of the region's shape."""
        assert self.kind is not None
        count = (self.shape[1] if stop is None else stop) - start
        nbytes = count // self.kind.block * self.kind.nbytes
        return np.resize(self._bytes(), (len(range(self.shape[0])[rows]), nbytes))


def weights(config: Config, kind: str) -> dict[str, LazyTensor]:
    """Return made-up weights by transformers' names, matrices of ``kind``, each result about as large as an input.

    A mix of kinds is that of the files which are called so.

    Raises:
        InvalidUsageError: rows that the kind's blocks do not divide.
    """
    made: dict[str, LazyTensor] = {}
    for name, shape in naming.shapes(config, naming.TRANSFORMERS):
        plain = len(shape) == 1
        own_kind = kind if plain else tiny.kind_in(kind, config, name, shape[-1])
        form = QUANTISED.get(own_kind)
        if form is not None and not plain and shape[1] % form.block:
            raise InvalidUsageError(
                f"rows of {shape[1]} weights are no multiple of the {form.block} of {own_kind}'s blocks"
            )
        drawn = _ones(shape[0]) if plain else _drawn(own_kind, shape[1])
        stored = "float32" if plain or form is not None else own_kind
        own = None if plain else form
        nbytes = int(np.prod(shape)) * (4 if plain else dtypes.resolve(stored).itemsize)
        made[name] = _Repeated(name, shape, dtypes.resolve(stored), own, nbytes, "made up", drawn.__array__)
    return made


def _ones(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ones(count, np.float32).view(np.uint8)


def _drawn(kind: str, inputs: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return drawn bytes of weights for products of so many inputs."""
    generator, most = np.random.default_rng(inputs), np.sqrt(3 / inputs)
    form = QUANTISED.get(kind)
    if form is None:
        values = generator.uniform(-most, most, _POOL // 4 - 8).astype(np.float32)
        return values.astype(dtypes.resolve(kind).numpy).view(np.uint8)
    blocks = generator.integers(0, 256, (_POOL // form.nbytes, form.nbytes), dtype=np.uint8)
    unit = np.float16(most / form.largest)
    blocks[:, form.scale_at : form.scale_at + 2] = np.frombuffer(unit.tobytes(), np.uint8)
    if form.halves == 2:  # minima, about half of the largest; those of blocks of 256 are subtracted
        middle = unit * ((form.most + 1) // 2 - 1) * (1 if form.block == 256 else -1)
        blocks[:, 2:4] = np.frombuffer(np.float16(middle).tobytes(), np.uint8)
    return blocks.reshape(-1)
