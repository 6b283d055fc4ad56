"""GGUF's quantised blocks: what their bytes mean.

The layouts are those of ggml-common.h (https://github.com/ggml-org/llama.cpp, block_q8_0, block_q4_0, ...): little
endian, one block after the other along a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """A quantised format.

    Attributes:
        name: as :func:`vkpar.quantized` takes it, such as ``"q8_0"``.
        number: GGUF's (ggml_type).
        block: elements of a block, side by side along a row.
        nbytes: bytes of a block.
    """

    name: str
    number: int
    block: int
    nbytes: int
    _decode: Callable[[Bytes], F32] = field(repr=False, compare=False)

    def decode(self, rows: Bytes) -> F32:
        """Return the values of blocks, (rows, bytes of a row) becoming (rows, elements of a row) in float32."""
        with np.errstate(invalid="ignore", over="ignore"):  # a file's scales may be anything
            values = self._decode(rows.reshape(-1, self.nbytes))
        return values.reshape(rows.shape[0], -1)

    def __str__(self) -> str:
        return self.name


def _halves(blocks: Bytes, start: int) -> F32:
    """Return the float16 at byte ``start`` of each block, as a column."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> npt.NDArray[np.uint8]:
    """Return the low halves of the bytes of each row, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def q8_0(blocks: Bytes) -> F32:
    """Decode blocks of Q8_0."""
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def q4_0(blocks: Bytes) -> F32:
    """Decode blocks of Q4_0."""
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def q4_1(blocks: Bytes) -> F32:
    """Decode blocks of Q4_1."""
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _fifths(packed: Bytes) -> npt.NDArray[np.uint8]:
    """Return the fifth bits of 32 codes, which 4 bytes hold, as 0 and 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def q5_0(blocks: Bytes) -> F32:
    """Decode blocks of Q5_0."""
    codes = _nibbles(blocks[:, 6:]) | _fifths(blocks[:, 2:6])
    return _halves(blocks, 0) * (codes.astype(np.float32) - 16)


def q5_1(blocks: Bytes) -> F32:
    """Decode blocks of Q5_1."""
    codes = _nibbles(blocks[:, 8:]) | _fifths(blocks[:, 4:8])
    return _halves(blocks, 0) * codes.astype(np.float32) + _halves(blocks, 2)


def q4_k(blocks: Bytes) -> F32:
    """Decode blocks of Q4_K."""
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled(blocks, codes)


def q5_k(blocks: Bytes) -> F32:
    """Decode blocks of Q5_K."""
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifths = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return _scaled(blocks, codes | (fifths << 4).astype(np.uint8))


def _scaled(blocks: Bytes, codes: npt.NDArray[np.uint8]) -> F32:
    """Decode 8 groups of 32 codes with 6-bit scales and minima, which 12 bytes hold."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1).astype(np.float32)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1).astype(np.float32)
    scale, least = _halves(blocks, 0) * scales, _halves(blocks, 2) * minima
    return scale[:, :, None] * codes.astype(np.float32) - least[:, :, None]


def q6_k(blocks: Bytes) -> F32:
    """Decode 16 groups of 16 elements: four low bits, two high ones, and an 8-bit scale each."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    packed = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = packed >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    codes = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scales[:, :, None] * codes


def _by_two_bits(packed: Bytes) -> npt.NDArray[np.uint8]:
    """Return 256 codes of 2 bits, in 16 groups: of 32 bytes the lowest bits, then the next ones."""
    codes = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & np.uint8(3)
    return codes.reshape(-1, 16, 16).astype(np.uint8)


def q2_k(blocks: Bytes) -> F32:
    """Decode 16 groups of 16 elements of 2 bits, with a scale and a minimum of 4 bits each."""
    scale = _halves(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    least = _halves(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    return scale[:, :, None] * _by_two_bits(blocks[:, 16:80]).astype(np.float32) - least[:, :, None]


def q3_k(blocks: Bytes) -> F32:
    """Decode 16 groups of 16 elements: two low bits, a third one apart, and a 6-bit scale each."""
    third = blocks[:, :32].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    codes = (_by_two_bits(blocks[:, 32:96]) | third.reshape(-1, 16, 16) << 2).astype(np.float32) - 4
    high = blocks[:, 104:108].reshape(-1, 1, 4) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1) & 3
    scales = (_nibbles(blocks[:, 96:104]) | high.reshape(-1, 16) << 4).astype(np.float32) - 32
    return (_halves(blocks, 108) * scales)[:, :, None] * codes


_UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice its values


def iq4_nl(blocks: Bytes) -> F32:
    """Decode blocks of IQ4_NL: codes stand for 16 values that lie unevenly."""
    return _halves(blocks, 0) * _UNEVEN[_nibbles(blocks[:, 2:])]


def iq4_xs(blocks: Bytes) -> F32:
    """Decode 8 groups of 32 codes as IQ4_NL has them, with a 6-bit scale each."""
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    words = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (words >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scales = _halves(blocks, 0) * ((low | high << 4).astype(np.float32) - 32)
    values: F32 = scales[:, :, None] * _UNEVEN[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    return values


def mxfp4(blocks: Bytes) -> F32:
    """Decode blocks of MXFP4: elements of 4-bit floats, and a power of two."""
    scale = np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127)  # half, as the values are doubled
    return scale * _E2M1[_nibbles(blocks[:, 1:])]
