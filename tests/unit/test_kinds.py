"""The table of quantised kinds against GGUF's own."""

from __future__ import annotations

import pytest

from vkpar.bench import model_weights
from vkpar.ops.quantized.kinds import FORMATS, KINDS, Kind
from vkpar.parallel.models import loading, tiny

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_those_of_gguf(name: str) -> None:
    form, theirs = FORMATS[name], gguf.GGMLQuantizationType[name.upper()]
    assert form.number == theirs.value
    assert (form.block, form.nbytes) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_kinds_lie_in_as_many_bytes_as_their_blocks(kind: Kind) -> None:
    """Whole numbers in chunks of 16 bytes, what is behind them, and the scales."""
    assert kind.block * 16 // kind.chunk + kind.extra + kind.per_block * kind.scales.itemsize == kind.nbytes
    assert kind.row_words(4 * kind.block) * 4 == 4 * (kind.block * 16 // kind.chunk + kind.extra)
    assert bool(kind.code) == (kind.module != kind.name)
    assert len(kind.spreads) == 4


def test_every_list_has_every_kind() -> None:
    assert set(KINDS) <= set(model_weights.KINDS) & set(tiny.KINDS) & set(loading.PRODUCTS)
