"""Rows whose norm the product that takes them is to make."""

from __future__ import annotations

from dataclasses import dataclass

from vkpar.arrays.array import Array
from vkpar.ops.rows.norms import rms_norm


@dataclass(frozen=True)
class Normed:
    """``rms_norm(x, weight, eps)`` as the first operand of :func:`vkpar.matmul`, made on the way where it can be.

    For up to eight rows, kernels of GPUs add up the squares of a row beside its products with a transposed matrix, or
    with quantised weights, and divide the sums in place of the row: a decode step has a kernel less.

    Attributes:
        x: (..., K), rows of float32, float16 or bfloat16.
        weight: (K,), of any of these types; if its elements do not lie side by side, the norm is a kernel of its own.
        eps: what is added to the mean of the squares.

    Examples:
        >>> x, weight = device.array([[3, 4]], "float32"), device.ones(2)
        >>> y = vkpar.matmul(vkpar.Normed(x, weight, 0.0), device.array(np.eye(2, dtype=np.float32)))
        >>> np.round(y.numpy(), 3)
        array([[0.849, 1.131]], dtype=float32)
    """

    x: Array
    weight: Array
    eps: float = 1e-6

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rows."""
        return self.x.shape

    def __getitem__(self, rows: slice) -> Normed:
        return Normed(self.x[rows], self.weight, self.eps)

    def array(self) -> Array:
        """Return the norm as an array."""
        return rms_norm(self.x, self.weight, self.eps)
