"""The kinds of quantised weights: GGUF's block formats, and of some what products by them are told.

A new format that files may have is a row of :data:`FORMATS` and its decoder in ``blocks.py``. One with products is a
:class:`Kind` there; its kernels take ``KIND``, its name in capitals, which shaders/common/quantized*.glsl define. Kinds
of four bits and some more share kernels, which take ``MIXED``, and are told which kind it is by its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkpar import dtypes
from vkpar.dtypes import DType
from vkpar.ops.quantized import blocks
from vkpar.ops.quantized.blocks import BlockFormat


@dataclass(frozen=True)
class Kind(BlockFormat):
    """A format that there are products by.

    Attributes:
        chunk: elements whose whole numbers, or four bits of each, take 16 bytes.
        scales: the type that the scales of blocks are kept in.
        per_block: how many of these a block has.
        terms: numbers that make elements of a chunk's whole numbers: a scale, and a minimum or another scale.
        largest: the largest whole number times the largest that scales it within a block.
        turns: chunks of a column that an invocation loads together for one row, at most.
        least_rows: from so many on matrix cores are as fast as the kernel without, or faster.
        spreads: of products on matrix cores, columns, turns and subgroups of a work-group: of up to 8 rows by many
            columns, by few; of more rows by many, by few.
        extra: bytes of a block that a row has behind all its chunks: further bits, and scales within blocks.
        code: what kernels that several kinds share know it by; 0 for kinds with kernels of their own.
        scale_at: the byte of a block in a file where the float16 that scales it begins.
        halves: float16 that lie there: the scale, and what minima are multiplied by.
        narrow: what files have in its place where its blocks do not divide rows.
        finer: what mixed files, which are called after it, have in its place for the matrices that matter most.
    """

    chunk: int
    scales: DType
    per_block: int
    terms: int
    largest: int
    turns: int
    least_rows: int
    spreads: tuple[tuple[int, int, int], ...]
    extra: int = 0
    code: int = 0
    scale_at: int = 0
    halves: int = 1
    narrow: str = ""
    finer: str = ""

    @property
    def most(self) -> int:
        """The largest whole number, as far as that is one of up to five bits."""
        return 15 if self.extra == 0 else 31

    @property
    def module(self) -> str:
        """What the names of its kernels have for it."""
        return MIXED if self.code else self.name

    def row_words(self, columns: int) -> int:
        """Return the 32-bit words of a row of chunks, and of what is behind them: whole units of 16 bytes."""
        return columns // self.chunk * 4 + -(-columns // self.block * self.extra // 16) * 4


MIXED: Final = "mixed"
_HALF, _WORD = dtypes.float16, dtypes.uint32
_LIKE_Q4_K: Final = ((64, 1, 4), (16, 1, 8), (16, 1, 2), (16, 1, 4))
FORMATS: Final = {
    made.name: made
    for made in (
        Kind(
            "q8_0", 8, 32, 34, blocks.q8_0, chunk=16, scales=_HALF, per_block=1, terms=1, largest=127, turns=2,
            least_rows=3, spreads=((32, 2, 4), (32, 2, 8), (64, 1, 8), (32, 2, 8)),
        ),
        Kind(
            "q4_0", 2, 32, 18, blocks.q4_0, chunk=32, scales=_HALF, per_block=1, terms=1, largest=8, turns=2,
            least_rows=2, spreads=((16, 1, 8), (16, 1, 8), (16, 1, 2), (16, 1, 4)),
        ),
        Kind(
            "q4_k", 12, 256, 144, blocks.q4_k, chunk=32, scales=_WORD, per_block=4, terms=2, largest=15 * 63, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, halves=2, narrow="q5_0", finer="q6_k",
        ),
        Kind(
            "q4_1", 3, 32, 20, blocks.q4_1, chunk=32, scales=_WORD, per_block=1, terms=2, largest=15, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, code=5, halves=2,
        ),
        Kind(
            "q5_0", 6, 32, 22, blocks.q5_0, chunk=32, scales=_HALF, per_block=1, terms=1, largest=16, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, extra=4, code=6,
        ),
        Kind(
            "q5_1", 7, 32, 24, blocks.q5_1, chunk=32, scales=_WORD, per_block=1, terms=2, largest=31, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, extra=4, code=7, halves=2,
        ),
        Kind(
            "q5_k", 13, 256, 176, blocks.q5_k, chunk=32, scales=_WORD, per_block=4, terms=2, largest=31 * 63, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, extra=32, code=8, halves=2, narrow="q5_1", finer="q6_k",
        ),
        Kind(
            "q6_k", 14, 256, 210, blocks.q6_k, chunk=32, scales=_HALF, per_block=1, terms=2, largest=32 * 128, turns=1,
            least_rows=2, spreads=_LIKE_Q4_K, extra=80, code=9, scale_at=208, narrow="q8_0",
        ),
        BlockFormat("q2_k", 10, 256, 84, blocks.q2_k),
        BlockFormat("q3_k", 11, 256, 110, blocks.q3_k),
        BlockFormat("iq4_nl", 20, 32, 18, blocks.iq4_nl),
        BlockFormat("iq4_xs", 23, 256, 136, blocks.iq4_xs),
        BlockFormat("mxfp4", 39, 32, 17, blocks.mxfp4),
    )
}  # fmt: skip
KINDS: Final = {name: form for name, form in FORMATS.items() if isinstance(form, Kind)}
MIXES: Final = {f"{name}_m": kind for name, kind in KINDS.items() if kind.finer}
MODULES: Final = tuple(dict.fromkeys(kind.module for kind in KINDS.values()))
