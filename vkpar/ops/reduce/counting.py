"""How many elements are not 0, read as they are stored."""

from __future__ import annotations

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.ops.call import landing
from vkpar.ops.call.call import Call, Key
from vkpar.ops.elementwise.cast import convert_in
from vkpar.ops.elementwise.expressions import LONG
from vkpar.ops.reduce import once, units
from vkpar.ops.reduce.passes import Reduction


def takes(a: Array) -> bool:
    """Say whether elements of an array are counted as they are stored; other CPU drivers compare them first."""
    counts = units.reads_units(a.device) and not units.w64(a.device)
    return counts and (a.dtype.name not in LONG or a.device.info.features.int64)


def count(key: Key | None, a: Array, axes: frozenset[int], made: Array) -> bool:
    """Count the elements of ``a``, of which there are some, along axes into ``made``.

    False, and nothing in ``made``, where rows begin between words, and where no axis goes.

    Args:
        key: by which the call is kept.
        a: a checked array for which :func:`takes` holds.
        axes: counted from 0.
        made: of the result's shape; or of bool, which says whether there are any.
    """
    call = Call("count_nonzero", key, (a,), (made,))
    source = landing.packed(call, call.operands[0])
    bits = Array(source.storage, source.byte_offset, source.shape, dtypes.resolve(f"uint{8 * a.dtype.itemsize}"))
    source, result = call.view(source, bits), call.results[0]
    name = ("any" if made.dtype == "bool" else "count") + " of floats" * a.dtype.is_float
    groups = units.groups_of(a.shape, axes)
    target = units.target_of(call, name, dtypes.uint32, groups)
    found, left = units.reduced(call, "sum" if a.dtype == "bool" else name, source, groups, target)
    if found is source:
        return False
    if found is not target:
        once.reduce(call, Reduction("sum"), found, left, target)
    if made.dtype == dtypes.uint32:
        landing.land(call, target, result)
    elif target.storage is not result.storage:  # one result is one dispatch's, which stores 1 for any
        convert_in(call, target, result)
    call.keep()
    return True
