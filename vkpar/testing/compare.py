"""Comparisons of results with what they should be, in units in the last place (ulps)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError

_SHOWN: Final = 5  # mismatches
_COMPLEX: Final = {"complex64": np.float32, "complex128": np.float64}

# Told of every measurement in ulps: the array that was measured where it was a device's, and the worst.
on_measured: Callable[[Array | None, float], None] | None = None


def ulps(actual: Array | ArrayLike, desired: Array | ArrayLike) -> NDArray[np.float64]:
    """Return how far each element of ``actual`` is from ``desired``, in units in the last place of its own type.

    A unit is the distance between neighbouring numbers of ``actual``'s type at the size of ``desired``: 2^-23 for
    float32 from 1 to 2. ``desired`` is best given in float64, so that halves of a unit count. NaN is 0 from NaN and
    infinitely far from all else; infinity is 0 from itself and from what its type cannot hold. Of integers it is the
    difference, of complex numbers the larger one of both parts.

    Args:
        actual: an array of a device or anything that ``np.asarray`` takes.
        desired: likewise, of the same shape, or one number.

    Raises:
        InvalidUsageError: shapes that differ, or no numbers.

    Examples:
        >>> import vkpar.testing
        >>> vkpar.testing.ulps(np.array([1 + 2**-23], np.float32), [1.0])
        array([1.])
    """
    made = _ulps(*_pair(actual, desired))
    _tell(actual, made)
    return made


def assert_allclose(
    actual: Array | ArrayLike,
    desired: Array | ArrayLike,
    *,
    ulp: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Fail where ``actual`` is further from ``desired`` than allowed, element by element.

    Allowed is ``atol + rtol * abs(desired)`` and ``ulp`` units in the last place of ``actual``'s type, as :func:`ulps`
    counts them, on top of each other. Where none is given the two must be equal. NaN equals NaN, infinity itself.

    Args:
        actual: an array of a device, or anything that ``np.asarray`` takes.
        desired: likewise, of the same shape, or one number.
        ulp: units in the last place.
        rtol: share of ``desired``'s size.
        atol: in numbers.

    Raises:
        AssertionError: some elements are too far off; the message counts them, shows the first ones and the worst, and
            names the device of an array.
        InvalidUsageError: shapes that differ, no numbers, or an allowance that is negative or NaN.

    Examples:
        >>> import vkpar.testing
        >>> vkpar.testing.assert_allclose(vkpar.exp(device.zeros(3)), np.ones(3), ulp=2)
    """
    __tracebackhide__ = True
    allowed = [_allowance(name, value) for name, value in (("ulp", ulp), ("rtol", rtol), ("atol", atol))]
    found, wanted = _pair(actual, desired)
    far = _ulps(found, wanted)
    if ulp is not None:
        _tell(actual, far)
    wrong = far > _allowed(found, wanted, *allowed)
    if wrong.any():
        where = f" on {actual.device}" if isinstance(actual, Array) else ""
        terms = [f"{name}={value}" for name, value in (("ulp", ulp), ("rtol", rtol), ("atol", atol)) if value]
        raise AssertionError(_message(found, wanted, far, wrong, where, ", ".join(terms) or "equality"))


def _allowance(name: str, value: float | None) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value >= 0:
        raise InvalidUsageError(f"{name} is a number from 0 up, not {value!r}")
    return float(value)


def _pair(actual: Any, desired: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    found, wanted = _host(actual, "actual"), _host(desired, "desired")
    if wanted.shape not in (found.shape, ()):
        raise InvalidUsageError(f"shapes differ: actual {found.shape}, desired {wanted.shape}")
    return found, np.broadcast_to(wanted, found.shape)


def _host(given: Any, name: str) -> NDArray[Any]:
    values = given.numpy() if isinstance(given, Array) else np.asarray(given)
    if values.dtype == np.bool_:
        values = values.view(np.uint8)
    try:
        is_number = values.dtype.kind in "iufc" or _finfo(values.dtype) is not None
    except ValueError:
        is_number = False
    if not is_number:
        raise InvalidUsageError(f"{name} has to hold numbers, not {values.dtype}")
    return values


def _parts(values: NDArray[Any]) -> NDArray[Any]:
    """Return real and imaginary parts along a last axis of two; real numbers have a zero there."""
    return np.stack([values.real, values.imag], axis=-1)


def _ulps(found: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    if found.dtype.kind == "c" or wanted.dtype.kind == "c":
        return np.asarray(_ulps(_parts(found), _parts(wanted)).max(axis=-1))
    if found.dtype.kind in "iu":
        return _whole(found, wanted)
    return _floating(found, wanted)


def _whole(found: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    """Return the differences of integers from integers, exactly up to 2^53, or from other numbers."""
    if wanted.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            far = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        return np.where(np.isnan(far), math.inf, far)
    if found.dtype.kind == wanted.dtype.kind:
        return _apart(np.maximum(found, wanted), np.minimum(found, wanted))
    signed, other = (found, wanted) if found.dtype.kind == "i" else (wanted, found)
    whole = np.maximum(signed, 0).astype(np.uint64)
    below = np.minimum(signed, 0).astype(np.float64)
    return np.asarray(_apart(np.maximum(whole, other), np.minimum(whole, other)) - below)


def _apart(larger: NDArray[Any], smaller: NDArray[Any]) -> NDArray[np.float64]:
    """Return differences of integers; modulo 2^64 they come out right whatever the signs."""
    return np.asarray((larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64))


def _floating(found: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        rounded = wanted.astype(found.dtype).astype(np.float64)
        a, d = found.astype(np.float64), wanted.astype(np.float64)
        far = np.abs(a - d) / _unit(d, found.dtype)
        same = (a == d) | (a == rounded) & np.isinf(a) | np.isnan(a) & np.isnan(d)
    return np.where(same, 0.0, np.where(np.isnan(far), math.inf, far))


def _finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _unit(d: NDArray[np.float64], dtype: Any) -> NDArray[np.float64]:
    """Return the distance of neighbouring numbers of ``dtype`` at the size of each number of ``d``."""
    info = _finfo(dtype)
    finite = np.where(np.isfinite(d), np.abs(d), 0.0)
    within = np.clip(finite, float(info.smallest_normal), float(info.max))
    return np.asarray(np.ldexp(1.0, np.frexp(within)[1] - 1 - int(info.nmant)))


def _allowed(
    found: NDArray[Any], wanted: NDArray[Any], ulp: float, rtol: float, atol: float
) -> NDArray[np.float64] | float:
    """Return how many units each element may be off."""
    if not rtol and not atol:
        return ulp
    with np.errstate(all="ignore"):
        size = np.abs(wanted).astype(np.float64)
        size = np.where(np.isfinite(size), size, 0.0)
        unit: Any = 1.0 if found.dtype.kind in "iu" else _unit(size, _real(found.dtype))
        return np.asarray(ulp + (atol + rtol * size) / unit)


def _real(dtype: Any) -> Any:
    return _COMPLEX.get(np.dtype(dtype).name, dtype)


def _tell(actual: object, far: NDArray[np.float64]) -> None:
    if on_measured is not None:
        on_measured(actual if isinstance(actual, Array) else None, float(np.max(far, initial=0.0)))


def _message(
    found: NDArray[Any],
    wanted: NDArray[Any],
    far: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    where: str,
    allowed: str,
) -> str:
    count, worst = int(wrong.sum()), np.unravel_index(int(np.argmax(far)), far.shape)
    lines = [
        f"{count:,} of {found.size:,} elements ({100 * count / found.size:.3g} %) are wrong{where} (allowed: {allowed})"
    ]
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:_SHOWN]]
    lines += [f"  {_element(place, found, wanted, far)}" for place in places]
    if count > len(places):
        lines.append(f"  ... and {count - len(places):,} more")
    lines.append(f"  worst: {_element(tuple(int(i) for i in worst), found, wanted, far)}")
    return "\n".join(lines)


def _element(place: tuple[int, ...], found: NDArray[Any], wanted: NDArray[Any], far: NDArray[np.float64]) -> str:
    name = f"[{', '.join(map(str, place))}]"
    unit = "off" if found.dtype.kind in "iu" else "ulp"
    return f"{name}: {found[place]!s}, not {wanted[place]!s} ({far[place]:.4g} {unit})"
