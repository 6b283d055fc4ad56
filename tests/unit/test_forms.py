"""Forms of calls and keys of memory: what two calls must have in common for one check, one template, one program."""

from __future__ import annotations

from typing import Any

import pytest

from vkpar import dtypes
from vkpar.arrays.array import Array
from vkpar.comm.requests.forms import form_of
from vkpar.comm.requests.keys import Call
from vkpar.vulkan.memory.buffer import Buffer
from vkpar.vulkan.memory.pool import Pool
from vkpar.vulkan.memory.subbuffers import SubBuffers


class Memory:
    """A pool of blocks without Vulkan, of which a device hands out memory; ``device`` is that device."""

    def __init__(self) -> None:
        self.pool = Pool(1 << 30, lambda nbytes, kind: object(), lambda backing: None)
        self.device: Any = self

    def allocate_array(self, nbytes: int, label: Any = None, purpose: str = "") -> SubBuffers:
        """As a device does, in buffers of 4 MiB at most."""
        most, made = 4 << 20, []
        for start in range(0, nbytes, most):
            size = min(most, nbytes - start)
            reserved = -(-size // 256) * 256
            piece = self.pool.take(reserved, "device")
            buffer = Buffer(id(piece.block), piece.offset, size, reserved, 0, piece)
            buffer.__dict__["number"] = 1
            made.append(buffer)
        return SubBuffers(made)

    def give_back(self, array: Array) -> None:
        """Give back what the array lies in, and close it."""
        for buffer in array.storage.pin().buffers:  # type: ignore[union-attr]
            self.pool.give(buffer.piece)
        array.storage.close()

    def empty(self, shape: Any, dtype: str = "float32") -> Array:
        """Return an array without a device below it."""
        return Array.allocate(self.device, shape, dtypes.resolve(dtype))


def all_reduce(*arrays: Array | None, **more: Any) -> Call:
    return Call("all_reduce", list(arrays), more.pop("out", None), more.pop("op", "sum"), **more)


def test_an_array_that_takes_anothers_memory_is_found_by_its_place() -> None:
    memory = Memory()
    first = memory.empty(100)
    key, pins = all_reduce(first).key(None)
    assert pins == [first.storage.pin()]
    memory.give_back(first)
    again = memory.empty(100)
    assert again.storage.serial != first.storage.serial
    assert all_reduce(again).key(None)[0] == key
    other = memory.empty(100)
    assert all_reduce(other).key(None)[0] != key
    for changed in (again[1:], again.reshape(50, 2), memory.empty(100, "int32")):
        assert all_reduce(changed).key(None)[0] != key
    assert all_reduce(again, op="max").key(None)[0] != key


def test_a_new_block_is_never_taken_for_an_old_one() -> None:
    """Though the driver may give it the same handle."""
    memory = Memory()
    first = memory.empty(100)
    key, _ = all_reduce(first).key(None)
    block = first.storage.pin().buffers[0].piece.block  # type: ignore[union-attr]
    memory.give_back(first)
    assert not block.dropped
    assert memory.pool.trim() == block.nbytes
    assert block.dropped
    assert memory.pool.ndropped == 1
    assert all_reduce(memory.empty(100)).key(None)[0] != key


def test_arrays_without_elements_share_no_key() -> None:
    """They have no memory that would say which device they are on."""
    one, other = Memory(), Memory()
    one.check_open = other.check_open = lambda: None  # type: ignore[attr-defined]
    assert all_reduce(one.empty(0)).key(None)[0] != all_reduce(other.empty(0)).key(None)[0]


def test_arrays_over_several_buffers_have_their_places_and_borders() -> None:
    memory = Memory()
    large = memory.empty((9 << 20) // 4)
    assert len(large.storage.pin().buffers) == 3  # type: ignore[arg-type, union-attr]
    assert all_reduce(large).key(None)[0] == all_reduce(large.reshape(-1)).key(None)[0]
    form = form_of(all_reduce(large))
    assert form.memory == list(large.storage.pin().buffers)  # type: ignore[union-attr]
    assert form.key == form_of(all_reduce(memory.empty((9 << 20) // 4))).key


def test_one_form_wherever_the_arrays_lie() -> None:
    memory = Memory()
    calls = [all_reduce(memory.empty(100)[4:], memory.empty(96), out=[memory.empty(96), None]) for _ in range(2)]
    forms = [form_of(call) for call in calls]
    assert forms[0].key == forms[1].key
    assert [len(form.memory) for form in forms] == [3, 3]
    assert forms[0].memory != forms[1].memory


@pytest.mark.parametrize(
    "name", ["in place", "out", "half", "dtype", "shape", "offset", "other device", "none", "op", "wire", "count"]
)
def test_what_a_form_holds(name: str) -> None:
    """Each of these differs from all others: which arrays share memory, too."""
    memory = Memory()

    def call(name: str) -> Call:
        array, other = memory.empty(96), memory.empty(96)
        match name:
            case "in place":
                return all_reduce(array, out=[array])
            case "out":
                return all_reduce(array, out=[other])
            case "half":
                return all_reduce(array[:48], out=[array[48:]])
            case "dtype":
                return all_reduce(memory.empty(96, "int32"), out=[memory.empty(96, "int32")])
            case "shape":
                return all_reduce(array.reshape(48, 2), out=[other])
            case "offset":
                return all_reduce(memory.empty(97)[1:], out=[other])
            case "other device":
                return all_reduce(elsewhere.empty(96), out=[other])
            case "none":
                return all_reduce(None, out=[other])
            case "op":
                return all_reduce(array, out=[other], op="max")
            case "wire":
                return all_reduce(array, out=[other], wire="f32")
        return all_reduce(array, out=[other], counts=(96,))

    elsewhere = Memory()
    names = ["in place", "out", "half", "dtype", "shape", "offset", "other device", "none", "op", "wire", "count"]
    mine = form_of(call(name)).key
    assert form_of(call(name)).key == mine
    assert all(form_of(call(other)).key != mine for other in names if other != name)
