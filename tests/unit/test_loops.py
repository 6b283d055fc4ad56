"""Every loop of the kernels that CPU drivers take is one whose turns are counted."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from helpers.ops.turns import ELSEWHERE, LOOPS, MOST, counted, is_for_gpus, loop

import vkpar
from vkpar.vulkan.pipelines import shader

_LOOP_MERGE, _HEADER_WORDS = 246, 5
_SPIRV = Path(vkpar.__file__).parent / "spirv"
_KERNELS: list[str] = list(json.loads((_SPIRV / "manifest.json").read_text())["kernels"])


def loops_in(kernel: str) -> int:
    """Return how many loops a kernel's module has."""
    spirv = shader.shipped(kernel)
    words, at, found = struct.unpack(f"<{len(spirv) // 4}I", spirv), _HEADER_WORDS, 0
    while at < len(words):
        found += words[at] & 0xFFFF == _LOOP_MERGE
        at += words[at] >> 16
    return found


def on_cpus() -> dict[str, int]:
    """Return the loops of all kernels that CPU drivers take and whose loops no other test counts."""
    kernels = [name for name in _KERNELS if not is_for_gpus(name) and not name.startswith(tuple(ELSEWHERE))]
    return {name: loops_in(name) for name in kernels}


def test_every_loop_is_counted() -> None:
    uncounted = {name: loops for name, loops in on_cpus().items() if loops > counted(name)[0]}
    assert not uncounted, f"loops without a line in tests/helpers/ops/turns.py: {uncounted}"


def test_every_line_is_of_some_kernel() -> None:
    """With as many loops as the line says: one fewer, and a new loop could hide."""
    most = dict.fromkeys(LOOPS, 0)
    for kernel, loops in on_cpus().items():
        line = next((line for line, found in LOOPS.items() if found is counted(kernel)), None)
        if line is not None:
            most[line] = max(most[line], loops)
    assert most == {line: loops for line, (loops, _) in LOOPS.items()}


def test_loops_with_bounds_of_their_own_are_short() -> None:
    for line, (_, turns) in LOOPS.items():
        assert not isinstance(turns, int) or turns < MOST, line


@pytest.mark.parametrize(("bodies", "inside", "turns"), [(0, 0, 1), (7, 0, 8), (3, 4, 16)])
def test_turns_of_a_loop(bodies: int, inside: int, turns: int) -> None:
    assert loop(bodies, inside) == turns
