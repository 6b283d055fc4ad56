"""Products over axes that are named by letters."""

from __future__ import annotations

import math
from collections import Counter

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.arrays.recipes import landed
from vkpar.ops.call.checks import check_arrays
from vkpar.ops.elementwise.functions import multiply
from vkpar.ops.matmul.matmul import matmul
from vkpar.ops.reduce.reductions import sum as total


def outer(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return the products of each element of ``a`` with each of ``b``, both taken in one dimension.

    Args:
        a: an array, of any shape.
        b: an array of the same device.
        out: where the result goes: (elements of ``a``, elements of ``b``).

    Raises:
        InvalidUsageError: not arrays, closed ones; a wrong ``out``.
        UnsupportedError: types that :func:`multiply` does not compute.

    Examples:
        >>> vkpar.outer(device.array([1, 2]), device.array([3, 4])).tolist()
        [[3, 4], [6, 8]]
    """
    check_arrays("outer", out, a=a, b=b)
    return multiply(a.reshape(-1, 1), b.reshape(1, -1), out=out)


def einsum(subscripts: str, a: Array, b: Array, *, out: Array | None = None) -> Array:
    """Return sums of products of two arrays, whose axes letters name: one product of matrices, or of batches of them.

    Args:
        subscripts: such as ``"bij,bjk->bik"``: the letters of the arrays' axes, and of the result's. A letter that the
            result lacks is summed over. Without ``->`` the result has the letters that come once, in their order in the
            alphabet. A letter that comes twice for one array means its diagonal. ``...`` is not taken.
        a: float32, float16 or bfloat16, as :func:`matmul` takes them.
        b: alike.
        out: where the result goes, sharing no memory with ``a`` or ``b``.

    Raises:
        InvalidUsageError: subscripts that are no such text, or do not fit the arrays; a wrong ``out``.
        UnsupportedError: types that :func:`matmul` does not compute.

    Examples:
        >>> a = device.array([[1.0, 2.0], [3.0, 4.0]])
        >>> vkpar.einsum("ij,kj->ik", a, a).tolist()
        [[5.0, 11.0], [11.0, 25.0]]
    """
    check_arrays("einsum", out, a=a, b=b)
    first, second, result = _letters(subscripts)
    (a, first), (b, second) = _diagonal(a, first), _diagonal(b, second)
    sizes = dict(zip(first + second, a.shape + b.shape, strict=True))
    if any(sizes[letter] != size for letter, size in zip(first, a.shape, strict=True)):
        raise InvalidUsageError(f"einsum: {subscripts!r}: a letter names axes of {a.shape} and {b.shape} that differ")
    a, first = _summed(a, first, second + result)
    b, second = _summed(b, second, first + result)
    shared = [letter for letter in first if letter in second]
    batch = "".join(letter for letter in shared if letter in result)
    inner = "".join(letter for letter in shared if letter not in result)
    left = "".join(letter for letter in first if letter not in shared)
    right = "".join(letter for letter in second if letter not in shared)
    count, rows, depth, columns = (math.prod(sizes[each] for each in part) for part in (batch, left, inner, right))
    one = _ordered(a, first, batch + left + inner).reshape((count, rows, depth))
    other = _ordered(b, second, batch + inner + right).reshape((count, depth, columns))
    made = matmul(one, other) if batch else matmul(one[0], other[0])
    found = batch + left + right
    made = _ordered(made.reshape(tuple(sizes[letter] for letter in found)), found, result)
    return made.contiguous() if out is None else landed("einsum", made, out, a, b)


def _letters(subscripts: str) -> tuple[str, str, str]:
    """Return the letters of both arrays and of the result."""
    text = subscripts.replace(" ", "") if isinstance(subscripts, str) else ""
    given, arrow, result = text.partition("->")
    parts = given.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isalpha() for part in (*parts, result) if part):
        raise InvalidUsageError(f"einsum takes letters of the axes of two arrays, as 'ij,jk->ik', not {subscripts!r}")
    counts = Counter(given.replace(",", ""))
    if not arrow:
        result = "".join(sorted(letter for letter, count in counts.items() if count == 1))
    if len(set(result)) < len(result) or not set(result) <= counts.keys():
        raise InvalidUsageError(f"einsum: {subscripts!r} has a letter in its result twice, or one of no array")
    return parts[0], parts[1], result


def _diagonal(a: Array, letters: str) -> tuple[Array, str]:
    """Return a view in which each letter comes once."""
    if len(letters) != a.ndim:
        raise InvalidUsageError(f"einsum: {letters!r} names {len(letters)} axes of an array of shape {a.shape}")
    once = "".join(dict.fromkeys(letters))
    if once == letters:
        return a, letters
    axes = list(zip(letters, a.shape, a.strides, strict=True))
    shape = tuple(next(size for letter, size, _ in axes if letter == each) for each in once)
    if any(size != shape[once.index(letter)] for letter, size, _ in axes):
        raise InvalidUsageError(f"einsum: {letters!r} gives one letter to axes of {a.shape} that differ")
    return a.strided(shape, tuple(sum(step for letter, _, step in axes if letter == each) for each in once)), once


def _summed(a: Array, letters: str, kept: str) -> tuple[Array, str]:
    """Return the sums over letters that nothing else has."""
    alone = tuple(axis for axis, letter in enumerate(letters) if letter not in kept)
    left = "".join(letter for letter in letters if letter in kept)
    return (total(a, alone), left) if alone else (a, letters)


def _ordered(a: Array, letters: str, wanted: str) -> Array:
    return a.transpose([letters.index(letter) for letter in wanted]) if letters != wanted else a
