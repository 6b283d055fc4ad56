"""What calls have in common whose arrays lie elsewhere: one check and one template serve all of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from vkpar.comm.requests.keys import Call
from vkpar.vulkan.memory.buffer import Buffer


class Form(NamedTuple):
    """A call but for where its arrays lie.

    Two calls of one form are right or wrong alike, and are recorded alike: their arrays are of the same shapes and
    dtypes, on the same devices, begin at the same bytes of their memory and share it alike, cut at the same borders.
    The host sees the memory in both calls, or in none.

    Attributes:
        key: all of that, to compare.
        memory: the buffers that the arrays lie in, each once, in the order in which the call names them.
    """

    key: Hashable
    memory: list[Buffer]


def form_of(call: Call) -> Form:
    """Return the form of a call whose arrays are pinned.

    Raises:
        AttributeError, TypeError: something else stands in place of an array.
    """
    numbers: dict[int, int] = {}  # of memory, by identity
    memory: list[Buffer] = []
    named: list[Hashable] = []
    for arrays in (call.arrays, () if call.out is None else call.out):
        for array in arrays:
            if array is None:
                named.append(None)
                continue
            storage = array.storage
            held = storage.pin()
            number = numbers.get(id(storage))
            if number is None:
                number = numbers[id(storage)] = len(numbers)
                if held is not None:
                    memory.extend(held.buffers)
                    sizes = [(buffer.nbytes, buffer.mapped != 0) for buffer in held.buffers]
                    named.append(sizes[0][1] if len(sizes) == 1 else tuple(sizes))
            named.append((number, array.byte_offset, array.shape, array.dtype.name, id(array.device), array.steps))
        named.append(len(arrays))
    return Form((call.name, tuple(named), call.out is None, call.op, call.wire, call.root, call.counts), memory)
