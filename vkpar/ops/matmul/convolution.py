"""Convolutions and pooling of images, by windows as views."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.arrays.join import concatenate
from vkpar.ops.arrays.making import fill
from vkpar.ops.arrays.recipes import landed, pad
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, key_of, repeat
from vkpar.ops.call.checks import check_arrays, check_float
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.functions import maximum, multiply
from vkpar.ops.matmul import images, ways
from vkpar.ops.matmul.images import WindowLayout
from vkpar.ops.matmul.request import Request
from vkpar.ops.tiles.epilogue import Epilogue, Fold

Pair = int | tuple[int, int]


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    groups: int = 1,
    out: Array | None = None,
) -> Array:
    """Return the correlation of images with small ones, as ``torch.nn.functional.conv2d`` does.

    Matrix cores read the windows of halves, of a multiple of 8 channels, from a copy of ``x`` whose channels come last.
    Elsewhere the windows of each image become columns of a matrix, which is a copy of ``x`` as many times as a window
    has elements. Each image, and each group, is one product, as precise as :func:`matmul`'s.

    Args:
        x: float32, float16 or bfloat16 (images, channels, height, width).
        weight: (channels of the result, channels / groups, height, width), of a type that products take beside ``x``'s.
        bias: (channels of the result,), or None.
        stride: from one window to the next: a number, or one downwards and one to the right.
        padding: how many zeros are put around the images, above and below, to the left and right; alike.
        groups: how many parts of the channels are convolved apart.
        out: where the result goes, sharing no memory with the others.

    Raises:
        InvalidUsageError: shapes that do not fit, windows larger than the padded images; a wrong ``out``.
        UnsupportedError: types that :func:`matmul` does not compute.

    Examples:
        >>> x = device.ones((1, 1, 3, 3))
        >>> vkpar.conv2d(x, device.ones((1, 1, 2, 2))).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    given = {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias}
    check_arrays("conv2d", out, **given)
    groups = operator.index(groups)
    if x.ndim != 4 or weight.ndim != 4 or groups < 1 or weight.shape[0] % groups:
        raise InvalidUsageError(f"conv2d: images {x.shape}, weights {weight.shape}, {groups} groups")
    channels, made_channels = x.shape[1] // groups, weight.shape[0]
    if x.shape[1] % groups or weight.shape[1] != channels or (bias is not None and bias.shape != (made_channels,)):
        raise InvalidUsageError(f"conv2d: images {x.shape} and weights {weight.shape} do not fit, of {groups} groups")
    layout = _layout("conv2d", x.shape[2:], weight.shape[2:], stride, padding)
    part, parts = made_channels // groups, []
    for group in range(groups):
        seen = x if groups == 1 else x[:, group * channels : (group + 1) * channels]
        rows = weight if groups == 1 else weight[group * part : (group + 1) * part]
        parts.append(_correlated(seen, rows, layout))
    made = parts[0] if groups == 1 else concatenate(parts, 1)
    if bias is not None:
        made = add(made, bias.reshape((made_channels, 1, 1)))
    return made if out is None else landed("conv2d", made, out, x, weight)


def max_pool2d(
    x: Array, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0, out: Array | None = None
) -> Array:
    """Return the largest element of each window of images, as ``torch.nn.functional.max_pool2d`` does; NaN stays.

    Args:
        x: float32, float16, bfloat16, int32 or uint32 (images, channels, height, width).
        kernel: height and width of a window, or a number for both.
        stride: from one window to the next; by default the window's size.
        padding: how far windows reach beyond the images; at most half their size.
        out: where the result goes, sharing no memory with ``x``.

    Raises:
        InvalidUsageError: no images; windows larger than the padded ones; too much padding; a wrong ``out``.
        UnsupportedError: a type that devices do not compute.

    Examples:
        >>> vkpar.max_pool2d(device.array([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
        [[[[4.0]]]]
    """
    return _pooled("max_pool2d", x, kernel, stride, padding, out, maximum)


def avg_pool2d(
    x: Array, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0, out: Array | None = None
) -> Array:
    """Return the means of windows of images of floats, as ``torch.nn.functional.avg_pool2d`` does.

    Zeros beyond the images count. Elements are added in float32, one after the other, and rounded once. Arguments and
    errors are those of :func:`max_pool2d`.

    Examples:
        >>> vkpar.avg_pool2d(device.array([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
        [[[[2.5]]]]
    """
    return _pooled("avg_pool2d", x, kernel, stride, padding, out, add)


def _pooled(
    name: str,
    x: Array,
    kernel: Pair,
    stride: Pair | None,
    padding: Pair,
    out: Array | None,
    join: Callable[..., Array],
) -> Array:
    check_arrays(name, out, x=x)
    size, edge = _pair(name, "kernel", kernel), _pair(name, "padding", padding)
    if x.ndim != 4 or min(size) < 1 or any(2 * each > most for each, most in zip(edge, size, strict=True)):
        raise InvalidUsageError(f"{name}: images {x.shape}, windows {size}, padding {edge}")
    means = join is add
    source = cast(x, "float32") if means and x.dtype != "float32" else x
    least = 0 if means else -np.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
    windows = _windows(name, source, size, size if stride is None else stride, edge, least)
    made = windows[..., 0, 0]
    for place in range(1, size[0] * size[1]):
        made = join(made, windows[..., place // size[1], place % size[1]])
    if means:
        made = multiply(made, 1.0 / (size[0] * size[1]))
    elif size == (1, 1):
        made = made.copy()
    if made.dtype != x.dtype:
        return cast(made, x.dtype, out=out)
    return made if out is None else landed(name, made, out, x)


def _correlated(x: Array, weight: Array, layout: WindowLayout) -> Array:
    """Return the correlation of images with small ones of as many channels: all of it is one kept call."""
    options = ("conv2d", (x, weight), (None,), layout)
    done = repeat(*options)
    if done is not None:
        return done[0]
    check_float("conv2d", x.dtype, weight.dtype)
    made = x.device.empty((x.shape[0], weight.shape[0], *layout.counts), dtypes.result_type(x.dtype, weight.dtype))
    if not made.size or not weight.size:
        fill(made, 0)
        return made
    call = Call("conv2d", key_of(*options), (x, weight), (made,))
    seen, rows = call.operands
    if not images.record(call, seen, rows, call.results[0], layout):
        _by_columns(call, layout)
    call.keep()
    return made


def _by_columns(call: Call, layout: WindowLayout) -> None:
    """Record a convolution by copies of the windows: each image is a product by a matrix of these."""
    seen, rows, result = *call.operands, call.results[0]
    (number, channels), part = seen.shape[:2], rows.shape[0]
    if any(layout.edge):
        seen = call.temporary((number, channels, *layout.padded), seen.dtype)
        fill(seen, 0, call)
        landing.move(call, call.operands[0], call.view(seen, layout.within(seen, call.operands[0])))
    windows = layout.of(seen).transpose((0, 1, 4, 5, 2, 3))
    columns = call.temporary(windows.shape, seen.dtype)
    landing.move(call, call.view(seen, windows), columns)
    rows, steps = landing.packed(call, rows), rows.size // part
    request = Request(
        call.view(rows, rows.reshape(part, steps)),
        call.view(columns, columns.reshape(number, steps, -1)),
        call.view(result, result.reshape(number, part, -1)),
        Epilogue(),
        Fold(),
        transpose_a=False,
        transpose_b=False,
    )
    ways.record(call, request)


def _layout(name: str, images: tuple[int, ...], size: tuple[int, ...], stride: Pair, padding: Pair) -> WindowLayout:
    steps, edge = _pair(name, "stride", stride), _pair(name, "padding", padding)
    if min(edge) < 0 or min(steps) < 1:
        raise InvalidUsageError(f"{name}: a stride of {steps}, a padding of {edge}")
    padded = tuple(whole + 2 * each for whole, each in zip(images, edge, strict=True))
    room = [whole - each for whole, each in zip(padded, size, strict=True)]
    if min(room) < 0 or min(size) < 1:
        raise InvalidUsageError(f"{name}: windows {tuple(size)} of images {padded}, padding counted")
    counts = tuple(left // step + 1 for left, step in zip(room, steps, strict=True))
    return WindowLayout(tuple(size), steps, edge, padded, counts)


def _windows(name: str, x: Array, size: tuple[int, ...], stride: Pair, padding: Pair, beyond: Any) -> Array:
    """Return the windows of images, which are padded with ``beyond``."""
    layout = _layout(name, x.shape[2:], size, stride, padding)
    if any(layout.edge):
        x = pad(x, ((0, 0), (0, 0), *((each, each) for each in layout.edge)), constant_values=beyond)
    return layout.of(x)


def _pair(name: str, what: str, given: Pair) -> tuple[int, int]:
    try:
        down, right = given if isinstance(given, tuple) else (given, given)
        return operator.index(down), operator.index(right)
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"{name}: {what} is a whole number or two, not {given!r}") from error
