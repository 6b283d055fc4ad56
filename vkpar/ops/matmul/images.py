"""Convolutions on matrix cores, which read the windows of images where they lie."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from vkpar import dtypes
from vkpar.abi import matmul as abi
from vkpar.arrays.array import Array
from vkpar.ops.arrays.making import fill
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call
from vkpar.ops.call.windows import binding_room, writable_in_place
from vkpar.ops.call.work import MAX_WORK, WORK_PER_NS
from vkpar.ops.matmul import dense
from vkpar.ops.matmul.dispatches import CORES, SMALL, How, dispatch_tile
from vkpar.ops.tiles import choice, occupancy
from vkpar.ops.tiles.epilogue import Epilogue
from vkpar.ops.tiles.product import Matrix, Product

_UNIT: Final = 8  # elements that kernels load at once, of which channels are whole ones


class WindowLayout(NamedTuple):
    """Where windows of images lie.

    Attributes:
        size: of a window, downwards and to the right, as all of these.
        steps: from one window to the next.
        edge: what is put around the images.
        padded: size of the images with that.
        counts: of windows.
    """

    size: tuple[int, ...]
    steps: tuple[int, int]
    edge: tuple[int, int]
    padded: tuple[int, ...]
    counts: tuple[int, ...]

    def of(self, x: Array) -> Array:
        """Return a view (images, channels, down, right, height, width) of windows of padded images."""
        strides = x.strides
        apart = [stride * step for stride, step in zip(strides[2:], self.steps, strict=True)]
        return x.strided((*x.shape[:2], *self.counts, *self.size), (*strides[:2], *apart, *strides[2:]))

    def within(self, padded: Array, x: Array) -> Array:
        """Return the view of padded images (images, channels, height, width) that the images ``x`` go to."""
        (down, right), (height, width) = self.edge, x.shape[2:]
        return padded[:, :, down : down + height, right : right + width]

    def windows(self, channels: int) -> tuple[int, abi.Windows]:
        """Return the elements from one window to the next, where channels come last, and what kernels are told."""
        row, step = self.padded[1] * channels, self.steps[1] * channels
        span = self.size[1] * channels
        down = (self.steps[0] * row - self.counts[1] * step) % (1 << 32)
        return step, abi.Windows(self.counts[1], down, span, row - span)


def record(call: Call, x: Array, weight: Array, out: Array, layout: WindowLayout) -> bool:
    """Record a convolution of arrays of a call; False, and nothing done, where no matrix cores make it.

    Rows of a window with all their channels lie side by side in images whose channels come last: kernels load them
    from there, and nothing copies windows. Each image is a product of the weights by its windows.

    Args:
        call: that it is a part of.
        x: (images, channels, height, width).
        weight: (channels of the result, channels, height, width) of a window.
        out: the result, contiguous.
        layout: where the windows lie.
    """
    (images, channels), part = x.shape[:2], weight.shape[0]
    counts, steps = math.prod(layout.counts), weight.size // part
    padded, work = math.prod(layout.padded) * channels, part * counts * steps
    largest = max(images * padded * x.dtype.itemsize, weight.nbytes, out.size * 4)
    fits = (
        channels % _UNIT == 0 and x.dtype == weight.dtype and work <= MAX_WORK and largest <= binding_room(call.device)
    )
    fits = fits and (any(layout.edge) or _in_one(x)) and _in_one(weight)
    core = None
    if fits and dense.kernel_for(call.device, part) != SMALL:
        core = choice.choose(call.device, x.dtype.name, part, counts, steps, images, 1, transpose_b=True)
    if core is None:
        return False
    rows = landing.packed(call, call.view(weight, weight.transpose(0, 2, 3, 1)))
    step, windows = layout.windows(channels)
    seen = Matrix(_channels_last(call, x, layout), step, padded, covers=padded)
    target = out
    if out.dtype.itemsize == 2 and (counts % 2 or not writable_in_place(out)):
        target = call.temporary(out.shape, dtypes.float32)
    cut = occupancy.Cut(core.core.tile, 1, steps)
    rate = images * work / core.ns if core.ns else WORK_PER_NS
    how = How(CORES, False, call, Epilogue(), cut, core.core, rate)
    made = Matrix(target, counts, part * counts)
    product = Product(Matrix(rows, steps), seen, False, True, images, part, counts, steps, windows=windows)
    most = max(min(MAX_WORK // work, call.device.limits.max_workgroup_count[2]), 1)
    for start in range(0, images, most):
        some = product.part(start, min(most, images - start))
        dispatch_tile(how, some, made._replace(start=start * made.batch), dense.whole_tile(product))
    landing.land(call, target, out)
    return True


def _in_one(array: Array) -> bool:
    """Tell whether one binding holds an array with its channels last, or a copy that is made of it."""
    turned = array.transpose(0, 2, 3, 1)
    return not turned.is_contiguous or turned.reach() >= turned.size


def _channels_last(call: Call, x: Array, layout: WindowLayout) -> Array:
    """Return padded images (images, height, width, channels), which may be ``x`` itself."""
    turned = call.view(x, x.transpose(0, 2, 3, 1))
    if not any(layout.edge):
        return landing.packed(call, turned)
    made = call.temporary((x.shape[0], *layout.padded, x.shape[1]), x.dtype)
    fill(made, 0, call)
    inner = layout.within(made.transpose(0, 3, 1, 2), x)
    landing.move(call, x, call.view(made, inner))
    return made
