"""How many turns an invocation's loops make in the kernels that CPU drivers take, by what the kernels are given.

lavapipe ends an invocation after 65,535 turns of all its loops together, silently. A loop counts its bodies and, once
more, the test that ends it; loops within others count each time that they are come to.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from helpers.ops.words import pushed, specialized

from vkpar.vulkan.device import LogicalDevice

MOST = 60_000  # that kernels keep to


class Sent(NamedTuple):
    """A dispatch: its kernel, its push constants, and what it is specialized by."""

    name: str
    push: bytes
    constants: tuple[int, ...]

    def told(self, *names: str) -> list[int]:
        """Return words of its push constants or its constants."""
        words = specialized(self.name, self.constants) | pushed(self.name, self.push)
        return [words[name] for name in names]


Turns = Callable[[Sent], int]


def loop(bodies: int, inside: int = 0) -> int:
    """Return the turns of a loop of so many bodies, each with as many turns ``inside``."""
    return bodies * (1 + inside) + 1


def _over_k(sent: Sent, step: int = 1) -> int:
    """A loop over K, so many steps at a time."""
    (k,) = sent.told("k")
    return loop(-(-k // step))


def _sorted(sent: Sent) -> int:
    """shaders/sort_lanes.comp: all of a row beside all of it, or digits, and a chunk's elements twice."""
    items, phase = sent.told("items", "phase")
    return 2 * loop(items, loop(items)) if phase == 3 else 3 * loop(256) + 2 * loop(items)


def _small(sent: Sent) -> int:
    """shaders/common/small.glsl: K, then each row and column that is stored."""
    return _over_k(sent) + loop(int(sent.name[-1]), loop(8))


def _attention(sent: Sent) -> int:
    """shaders/attention_small.comp: tiles of keys; in each a query by a key, and twice all the tile's scores."""
    threads, width, keys, splits, window = sent.told("threads", "width", "keys", "splits", "window")
    share = -(-min(keys, window) // splits)
    return loop(-(-share // threads), loop(-(-width // 4))) + 2 * (share + -(-share // threads))


def _combine(sent: Sent) -> int:
    """shaders/attention_combine.comp: parts that are read, compared, weighed, added up, and added up again."""
    threads, quads, splits = sent.told("threads", "quads", "splits")
    slices = threads // quads
    return 2 * loop(-(-splits // threads)) + 2 * loop(splits) + loop(-(-splits // slices)) + loop(slices)


def _topk(sent: Sent) -> int:
    """shaders/topk.comp: bins, elements of a hand, digits and their values, what chosen hands hold, and its order."""
    k, chunk, threads, words, each = sent.told("k", "chunk", "threads", "words", "each")
    turns, digits = -(-chunk // (6 * threads)), 8 * (words + 1)
    cells = k * turns
    own, ordered = -(-cells // threads), -(-cells // (threads * each))
    searched = loop(-(-16 * digits // threads)) + loop(digits, loop(15))
    return 2 * searched + loop(turns) + loop(own) + loop(ordered, 2 * loop(cells))


def _routed(sent: Sent) -> int:
    """shaders/common/route.glsl: a lane's logits, their places among all, terms, their sum, and what a lane stores."""
    experts, each = sent.told("experts", "each")
    lanes = -(-experts // 128)
    return 2 * loop(lanes) + loop(lanes, loop(-(-experts // 4))) + loop(experts) + loop(-(-each // 128))


def _grouped(sent: Sent) -> int:
    """shaders/expert_groups.comp: a lane's experts, its pairs twice, all experts, and what it stores of tiles."""
    pairs, experts, tiles, tile = sent.told("pairs", "experts", "tiles", "tile")
    each = -(-pairs // 256)
    stored = loop(-(-tiles // 256)) * 2 + loop(-(-tile // 256) + 1)
    return 2 * loop(each) + loop(8) + loop(-(-experts // 256)) + loop(experts) + stored


def _rows(sent: Sent) -> int:
    """Kernels of rows that are read again (shaders/common/rows.glsl): loops over the row, others over lanes."""
    reads, trees = next(counts for name, counts in ROWS.items() if re.match(name, sent.name))
    extent, lanes = sent.told("extent", "lanes")
    return reads * loop(-(-extent // (4 * lanes))) + trees * loop(lanes.bit_length())


# Kernels of rows: how often they read one, and how often they add up over its lanes.
ROWS: dict[str, tuple[int, int]] = {
    "softmax_loss_": (1, 2),
    "softmax_": (2, 2),
    "norm_grad_layer_": (3, 4),
    "norm_grad_rms_": (2, 2),
    "norm_layer_": (3, 2),
    "norm_": (2, 1),
}

_LEFT = loop(4)  # what is left of four elements, one by one
_TERMS = loop(16) + 2 * _LEFT  # of a sum over the slots that a kernel takes, and the rank's own
_BLOCK = 32 * (1 + 2 * _TERMS + 2 * _LEFT) + 3 * loop(8)  # eights of elements of an invocation's blocks; see wire.glsl

# By kernels' names: how many loops their modules have at most, and the turns that these make, whatever the sizes where
# that is a number. A loop that is new has to come in here, with what bounds it.
LOOPS: dict[str, tuple[int, Turns | int]] = {
    r"matmul_small_": (3, _small),
    r"matmul_wide_": (1, lambda sent: _over_k(sent, 4)),
    # All loops but the one over K have constant bounds and are unrolled: these have no turns once they are compiled.
    r"matmul_eights_along_": (5, lambda sent: _over_k(sent, 8)),
    r"matmul_eights_across_": (6, lambda sent: _over_k(sent, 4)),
    r"matmul_narrow_": (4, lambda sent: _over_k(sent, 8)),
    r"matmul_short_": (5, loop(4)),
    r"matvec_lanes_": (1, lambda sent: _over_k(sent, 8)),
    r"quantized_lanes_q8_0": (1, lambda sent: _over_k(sent, 16)),
    r"quantized_lanes_": (1, lambda sent: _over_k(sent, 32)),
    r"matmul_finish$": (1, lambda sent: loop(*sent.told("parts"))),
    r"attention_small_": (4, _attention),
    r"attention_combine$": (6, _combine),
    **{rf"{name}\w+_long$": (sum(counts), _rows) for name, counts in ROWS.items()},
    r"take_u[124]$": (1, _LEFT),
    r"region_(un)?pack_": (2, loop(5) + loop(16, loop(4, loop(5)))),
    r"random_normal": (3, loop(10) + 2 * loop(3)),
    r"random_": (1, loop(10)),
    r"quantized_pack_mixed": (8, loop(2, loop(8, loop(4)) + loop(4))),
    r"quantized_pack_": (2, 2 * loop(8)),
    r"scan_": (7, loop(8) + 2 * (loop(32) + loop(3)) + loop(31) + loop(1024)),  # the last one of a chunk alone
    r"sort_lanes$": (8, _sorted),
    r"topk$": (16, _topk),
    r"scatter_add_": (1, loop(32)),
    r"expert_route$": (6, _routed),
    r"rope_append_": (1, lambda sent: loop(-(-sent.told("extent")[0] // 4))),  # squares of a head
    r"expert_groups$": (8, _grouped),
    r"expert_product": (4, lambda sent: 3 * _over_k(sent, 4)),  # and, within, over the fours of a chunk
    r"expert_sum$": (1, lambda sent: loop(*sent.told("each"), _LEFT)),
    r"add_": (2, 2 * _LEFT),
    r"wire_(reduce|forward)_(cpu|texel)_": (16, _BLOCK),
}
ELSEWHERE = {"each_": "tests/unit/test_expressions.py", "reduce_": "tests/device/test_reductions.py"}
# Those of GPUs alone. What CPU drivers take: vkpar/ops/matmul/dense.py, attention_kernels.py, rows.py, comm/wires.py.
_OF_GPUS = re.compile(
    r"matmul_(tiled|coop)|matvec_(?!lanes|steps)|attention_(rows|tiled|warps|cores)|quantized_(matvec|dots|cores)|expert_(few|router|cores)"
    r"|scan_once|wire_\w+_gpu_|wire_gather_|norm_gather_|(softmax|norm)_\w+_kept$|carry$|sort_(warps|masks)$"
)


def is_for_gpus(kernel: str) -> bool:
    """Say whether CPU drivers do without a kernel."""
    return _OF_GPUS.match(kernel) is not None


def counted(kernel: str) -> tuple[int, Turns | int]:
    """Return how many loops a kernel has at most, and what counts their turns; no loops of a kernel without a line."""
    return next((found for name, found in LOOPS.items() if re.match(name, kernel)), (0, 0))


def turns_of(sent: Sent) -> int:
    """Return the turns of a dispatch's loops in one invocation, at most."""
    _, turns = counted(sent.name)
    return turns if isinstance(turns, int) else turns(sent)


def record(patch: pytest.MonkeyPatch, *, run: bool = False) -> list[Sent]:
    """Have operations list what they dispatch, and not do it, so that arrays may be as large as there are.

    Args:
        patch: takes it back.
        run: do it all the same.
    """
    sent: list[Sent] = []
    modules = [importlib.import_module(f"vkpar.ops.{name}") for name in ("call.call", "arrays.randoms")]
    submit = modules[0].submit

    def submitted(
        operation: str,
        kernel: str,
        arrays: Any,
        ranges: Any,
        push: bytes,
        groups: tuple[int, int, int],
        constants: tuple[int, ...] = (),
        cost_ns: int = 0,
        *written: int,
    ) -> Any:
        sent.append(Sent(kernel, push, constants))
        assert math.prod(groups) > 0
        if not run:
            return None, []
        return submit(operation, kernel, arrays, ranges, push, groups, constants, cost_ns, *written)

    if not run:  # what does not go through submit: copies, such as of what lies transposed
        for name in ("dispatch", "copy", "fill"):
            patch.setattr(LogicalDevice, name, lambda *_, **__: None)
    for module in modules:
        patch.setattr(module, "submit", submitted)
    patch.setattr(modules[0], "make_plan", lambda *_, **__: None)
    return sent
