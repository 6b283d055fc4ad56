"""What pipelines have to know of their modules: of shipped ones from the manifest, so that no SPIR-V is read for it."""

from __future__ import annotations

import functools
import importlib.resources
import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vkpar.errors import within_limits
from vkpar.vulkan.pipelines.constants import size_of
from vkpar.vulkan.pipelines.interface import reflect
from vkpar.vulkan.pipelines.opcodes import HEADER, Mark, Op, Size

COOPERATIVE_MATRIX: Final = 6022  # the capability
_WARP: Final = struct.unpack("<2I", b"WARP\0\0\0\0")


class Declared(NamedTuple):
    """What a module declares, and one of its entry points.

    Attributes:
        version: of SPIR-V.
        capabilities: their numbers; see :func:`vkpar.vulkan.pipelines.capabilities.missing`.
        readonly: the bindings that it declares it does not write.
        width: invocations of a work-group in x; with ``width_id``, where that specialization constant is not given.
        width_id: the specialization constant that says how many they are; None where none does.
        shared: the bytes of its shared memory; see :func:`vkpar.vulkan.pipelines.opcodes.computed`.
        subgroup_id: of a module with matrices of subgroups, the specialization constant, named WARP, that says how many
            invocations these have; None where none does.
    """

    version: tuple[int, int]
    capabilities: frozenset[int]
    readonly: frozenset[int]
    width: int
    width_id: int | None
    shared: Size = 0
    subgroup_id: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        sorted_sets = {"capabilities": sorted(self.capabilities), "readonly": sorted(self.readonly)}
        made: dict[str, Any] = json.loads(json.dumps(self._asdict() | sorted_sets))
        if self.subgroup_id is None:  # as in nearly all
            del made["subgroup_id"]
        return made

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Declared:
        """Return what :meth:`as_dict` gave."""
        sets = {name: frozenset(found[name]) for name in ("capabilities", "readonly")}
        return cls(**{**found, **sets, "version": tuple(found["version"])})


def of_module(spirv: bytes, entry: str = "main") -> Declared:
    """Read it from a module.

    Raises:
        InvalidUsageError: see :func:`vkpar.vulkan.pipelines.interface.reflect`.
    """
    found = reflect(spirv)
    made = found.entries[entry]
    width = made.local_size[0], made.width_id
    subgroup = _warp_id(spirv) if COOPERATIVE_MATRIX in found.capabilities else None
    return Declared(found.version, found.capabilities, found.readonly, *width, size_of(spirv), subgroup)


def _warp_id(spirv: bytes) -> int | None:
    """Return the number of the specialization constant that is named WARP; None where a module has none."""
    words, at, named = struct.unpack(f"<{len(spirv) // 4}I", spirv), HEADER, set[int]()
    while at < len(words):
        opcode, count = words[at] & 0xFFFF, words[at] >> 16
        if opcode == Op.NAME and words[at + 2 : at + count] == _WARP:
            named.add(words[at + 1])
        elif opcode == Op.DECORATE and words[at + 1] in named and words[at + 2] == Mark.SPEC_ID:
            return words[at + 3]
        at += count
    return None


@functools.cache
def shipped(name: str) -> Declared:
    """Return what the module of the built-in kernel ``name`` declares.

    The manifest has a line for each kernel, of which this reads one: the whole of it takes longer than some modules.

    Raises:
        OutOfMemoryError: the system has no file descriptor for the manifest.
    """
    text, key = _manifest(), f"\n  {json.dumps(name)}: ".encode()
    start = text.index(key) + len(key)
    return Declared.of_dict(json.loads(text[start : text.index(b"\n", start)].rstrip(b","))["declares"])


@functools.cache
def _manifest() -> bytes:
    with within_limits("the file of the kernels' manifest"):
        return importlib.resources.files("vkpar").joinpath("spirv", "manifest.json").read_bytes()
