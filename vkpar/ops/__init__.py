"""Operations on arrays of one device: asynchronous, in program order, checked before anything is submitted."""

from __future__ import annotations

from vkpar.ops.cast import cast
from vkpar.ops.elementwise import add
from vkpar.ops.matmul import matmul
from vkpar.ops.shapes import broadcast_to, transpose

__all__ = ["add", "broadcast_to", "cast", "matmul", "transpose"]
